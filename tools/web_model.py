"""The models in the pages of the site: which, how they are packed, what rounding makes of them."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file

from annotated_transformer.toolkit.page import pack
from tools.page import MOST

ROOT = Path(__file__).parents[1]
PRETRAINED = ROOT / "annotated_transformer" / "pretrained"
SHOWN = PRETRAINED / "everyday-de-en"  # on the first page, and in the chapters
BACK = PRETRAINED / "everyday-en-de"  # on the first page: the other direction


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a saved model."""
    text = (folder / "config.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def pack_folder(folder: Path) -> str:
    """Return a saved model as JSON for a page."""
    tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
    tensors = load_file(folder / "model.safetensors")
    return pack(folder.name, read_config(folder), tokenizer, tensors)


def unpacked(packed: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a packed model as a page computes with them: multiplied out again."""
    stored = load(b64decode(packed["weights"]))
    tensors = {}
    for name, tensor in stored.items():
        if name.endswith(".scales"):
            continue
        if f"{name}.scales" in stored:
            tensor = tensor * stored[f"{name}.scales"][:, None]
        tensors[name] = tensor
    return tensors


def rounded_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a saved model as a page computes with them."""
    return unpacked(json.loads(pack_folder(folder)))


def settings(folder: Path) -> dict[str, Any]:
    """Return what the translator of a page must know of a model before it is loaded."""
    config = read_config(folder)
    return {"most": MOST, "layers": config["layers"], "heads": config["heads"]}
