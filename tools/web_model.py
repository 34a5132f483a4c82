"""The models in the pages of the site: which, how they are packed, what rounding makes of them."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file

from annotated_transformer.page import pack
from tools.page import MOST

ROOT = Path(__file__).parents[1]
SHOWN = ROOT / "annotated_transformer" / "pretrained" / "everyday-de-en"  # on the first page


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a saved model."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def pack_folder(folder: Path) -> str:
    """Return a saved model as JSON for a page."""
    tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
    tensors = load_file(folder / "model.safetensors")
    return pack(folder.name, read_config(folder), tokenizer, tensors)


def unpacked(model: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a packed model as a page computes with them: multiplied out again."""
    found = load(b64decode(model["weights"]))
    scales = {name: found.pop(f"{name}.scales") for name in [*found] if f"{name}.scales" in found}
    return {n: t * scales[n][:, None] if n in scales else t for n, t in found.items()}


def rounded_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a saved model as a page computes with them."""
    return unpacked(json.loads(pack_folder(folder)))


def settings(folder: Path) -> dict[str, Any]:
    """Return what the translator of a page must know of a model before it is loaded."""
    config = read_config(folder)
    return {"most": MOST, "layers": config["layers"], "heads": config["heads"]}
