"""Turn the folder of a trained model into a web page that translates, or into its script alone.

Each row of a matrix becomes whole numbers from -127 to 127 and one scale; vectors stay as they are.

usage: python -m tools.web_model MODEL (--page translator.html | --script model.js)
"""

import argparse
import base64
import html
import json
import re
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
SHOWN = ROOT / "annotated_transformer" / "pretrained" / "multi30k-de-en"  # on the first page
MOST = 80  # subwords that a page takes

Floats = NDArray[np.float32]


def quantize(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return whole numbers (R, C) and scales (R,) whose product is nearest to the matrix."""
    largest = np.abs(matrix).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def read_weights(folder: Path) -> dict[str, Floats]:
    """Return a saved model's tensors in single precision, by name in order."""
    found = load_file(folder / "model.safetensors")
    return {name: found[name].astype(np.float32) for name in sorted(found)}


def rounded_weights(folder: Path) -> dict[str, Floats]:
    """Return the tensors as the page computes with them: rounded, and multiplied out again."""
    rounded = {}
    for name, tensor in read_weights(folder).items():
        rounded[name] = tensor
        if tensor.ndim == 2:
            whole, scales = quantize(tensor)
            rounded[name] = whole * scales[:, None]
    return rounded


def pack(folder: Path) -> str:
    """Return the script. It names each tensor's shape and its places: in the singles, in the bytes.

    The singles are the vectors and the scales of the matrices; the bytes follow them.
    """
    tensors, singles, whole, places = {}, list[bytes](), list[bytes](), [0, 0]
    for name, tensor in read_weights(folder).items():
        tensors[name] = [[*tensor.shape], *places]
        if tensor.ndim == 2:
            numbers, tensor = quantize(tensor)
            whole.append(numbers.tobytes())
            places[1] += numbers.size
        singles.append(tensor.astype("<f4").tobytes())
        places[0] += tensor.size
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = {
        "name": folder.resolve().name,
        "config": json.loads((folder / "config.json").read_text(encoding="utf-8")),
        "merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tensors": tensors,
        "singles": places[0],
        "weights": base64.b64encode(b"".join([*singles, *whole])).decode(),
    }
    text = json.dumps(model, separators=(",", ":"))
    return f"bookFigures.model = {text};\n".replace("<", "\\u003c")


def settings(folder: Path) -> dict[str, Any]:
    """Return what the translator of a page must know of a model before it is loaded."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {"most": MOST, "layers": config["layers"], "heads": config["heads"]}


def page(folder: Path) -> str:
    """Return one file that translates and draws its attention, without a network."""
    assets = ROOT / "book" / "assets"
    css, *scripts = (
        (assets / name).read_text(encoding="utf-8")
        for name in ("book.css", "engine.js", "translator.js")
    )
    data = settings(folder) | {"megabytes": 0, "languages": ["", ""], "label": "Text"}
    return Template(
        (ROOT / "book" / "templates" / "translator.html").read_text("utf-8")
    ).substitute(
        name=html.escape(folder.resolve().name),
        style=re.sub(r"@font-face \{.*?\}\n", "", css, flags=re.DOTALL),  # the fonts stay at home
        scripts="\n".join([*scripts, pack(folder)]),
        data=json.dumps(data | {"examples": []}),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="folder with config, weights and tokenizer")
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("--page", type=Path, help="write a page that translates")
    output.add_argument("--script", type=Path, help="write the model alone")
    chosen = parser.parse_args()
    if chosen.page:
        chosen.page.write_text(page(chosen.model), encoding="utf-8")
    else:
        chosen.script.write_text(pack(chosen.model), encoding="utf-8")
