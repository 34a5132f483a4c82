"""What a web page needs of a saved model: its weights in eight bits, and all of it as one text.

It needs NumPy and safetensors alone, so that the site is built without PyTorch.
"""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

ROOT = Path(__file__).parents[2]
PRETRAINED = ROOT / "annotated_transformer" / "pretrained"
MODEL_CODE = ROOT / "book" / "model.py"
MOST = 80  # subwords that a page takes
LINES = {  # how the line of code begins that a head's step shows
    "query": "query = split_heads(",
    "key": "key = split_heads(",
    "value": "value = split_heads(",
    "scores": "scores = query @",
    "mask": "scores = torch.where(mask",
    "weights": "weights = scores.softmax",
    "sum": "return dropout(weights) @",
    "output": "return self.output(",
}


def quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whole numbers (R, C) and scales (R,) whose product is nearest to the matrix (R, C).

    A row has a scale of its own: one large weight makes the steps coarse for all that share it.
    """
    largest = np.abs(matrix).max(axis=1)
    scales = largest.clip(1e-30) / np.float32(127)  # a row of zeros has one, too
    whole = np.rint(matrix / scales[:, None]).astype(np.int8)
    return whole, scales


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a saved model."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return config


def pack(folder: Path) -> str:
    """Return a saved model as JSON that can stand in a script."""
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        exact = tensor.astype(np.float32)
        if tensor.ndim == 2:
            tensors[name], tensors[f"{name}.scales"] = quantize(exact)
        else:
            tensors[name] = exact
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    model = {
        "config": read_config(folder),
        "merges": tokenizer["model"]["merges"],
        "weights": b64encode(save(tensors)).decode(),
    }
    text = json.dumps(model, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # so that no name or merge can end the script


def settings(folder: Path) -> dict[str, Any]:
    """Return what the scripts must know of a model before it is loaded."""
    config = read_config(folder)
    sizes = {name: config[name] for name in ("layers", "heads", "pre_norm")}
    return sizes | {"most": min(MOST, config["max_length"] - 1)}


def lines_of_a_head() -> dict[str, str]:
    """Return the line of code of each step, as the book has it; raises ValueError without it."""
    code = [line.strip() for line in MODEL_CODE.read_text("utf-8").splitlines()]
    lines = {}
    for step, beginning in LINES.items():
        found = [line for line in code if line.startswith(beginning)]
        if len(found) != 1:
            raise ValueError(
                f"{len(found)} lines of {MODEL_CODE.name} begin with {beginning!r}, "
                f"not one: change {Path(__file__).name}"
            )
        lines[step] = found[0]
    return lines
