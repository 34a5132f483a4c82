# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # A model in a page
#
# This appendix packs a trained model for a web page: its weights in whole numbers of eight bits, with its configuration and its merges, as text that a script can hold.
#
# A browser needs no PyTorch to translate. A few hundred lines of JavaScript, `book/site/assets/engine.js`, compute what chapters 3 to 10 compute, and the [first page](../book/index.md) runs on them. What they need of a model is packed here. [Export](F_export.ipynb) puts it into a page of its own, [the command line](G_cli.ipynb) does so for a folder, and this book's site packs its own model the same way, on machines that have no PyTorch: of the libraries, this module imports only NumPy and safetensors.

# %% tags=["export"]
from base64 import b64encode
from json import dumps, loads
from typing import Any

import numpy as np
from safetensors.numpy import save

# %% [markdown]
# ## One scale a row
#
# Weights of 32 bits are four times what a page has to carry. Each row $w$ of a matrix becomes whole numbers $n$ from -127 to 127 and one scale $s$:
#
# $$ s = \frac{\max_i |w_i|}{127}, \qquad n_i = \operatorname{round}(w_i / s), \qquad w_i \approx s \, n_i $$
#
# A row has a scale of its own, because one large weight makes the steps coarse for all that share its scale. In a product with a vector, each row gives one sum, and its scale multiplies that sum once, which costs next to nothing. Vectors, such as the gain of a layer norm, stay as they are.


# %% tags=["export"]
def quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whole numbers (R, C) and scales (R,) whose product is nearest to the matrix (R, C)."""
    largest = np.abs(matrix).max(axis=1)
    scales = largest.clip(1e-30) / np.float32(127)  # a row of zeros has one, too
    whole = np.rint(matrix / scales[:, None]).astype(np.int8)
    return whole, scales


# %%
matrix = np.array([[0.5, -0.02, 0.3, 0.0], [8.0, -0.02, 0.3, 0.0]], np.float32)
whole, scales = quantize(matrix)
print(whole)
print((whole * scales[:, None]).round(3))

# %% tags=["remove-cell"]
if CHECKING:
    error = np.abs(whole * scales[:, None] - matrix)
    assert (error <= 0.501 * scales[:, None]).all()

# %% [markdown]
# No weight moves by more than half a step. In the second row, where a step is 0.063 wide, that is enough to lose the 0.02.
#
# ## One text
#
# The matrices and their scales are saved as safetensors, like [every model here](A_model_io.ipynb): a header that names each tensor, its type, shape and place, then the numbers. In base 64 that can stand in JSON. Whatever a name or a merge may contain, JSON text can end a script in one way only, with a `<`, so each is written as `\u003c`.


# %% tags=["export"]
def pack(
    name: str, config: dict[str, Any], tokenizer: str, tensors: dict[str, np.ndarray]
) -> str:
    """Return a model as JSON for a page, from its tokenizer's JSON and its tensors by name."""
    packed = {}
    for key, tensor in tensors.items():
        exact = tensor.astype(np.float32)
        if tensor.ndim == 2:
            packed[key], packed[f"{key}.scales"] = quantize(exact)
        else:
            packed[key] = exact
    model = {
        "name": name,
        "config": config,
        "merges": loads(tokenizer)["model"]["merges"],
        "weights": b64encode(save(packed)).decode(),
    }
    return dumps(model, separators=(",", ":")).replace("<", "\\u003c")


# %% [markdown]
# ## What rounding costs
#
# Here is the captions model, packed and read back as the page reads it. What's left is about a third, not a quarter, because base 64 writes three bytes as four letters:

# %%
from base64 import b64decode
from dataclasses import asdict

import torch
from safetensors.numpy import load

from annotated_transformer.toolkit.model_io import load_pretrained

model, tokenizer = load_pretrained("captions-de-en")
exact = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
text = pack("captions", asdict(model.config), tokenizer.text, exact)
unpacked = load(b64decode(loads(text)["weights"]))
megabytes = sum(tensor.nbytes for tensor in exact.values()) / 1e6
print(f"{megabytes:.1f} MB become {len(text) / 1e6:.1f}")

# %% tags=["nbval-ignore-output"]
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.toolkit.synchronous_grammar import grammar

pairs = [
    (
        torch.tensor([[*tokenizer.encode(pair.source), EOS]]),
        torch.tensor([[BOS, *tokenizer.encode(pair.target)]]),
    )
    for pair in grammar(100)
]


@torch.no_grad()
def probabilities():
    """Those of all words, at each place of each target."""
    logits = [model(source, target)[0] for source, target in pairs]
    return torch.cat(logits).softmax(dim=-1)


rounded = {}
for name in exact:
    numbers = unpacked[name]
    if f"{name}.scales" in unpacked:
        numbers = numbers * unpacked[f"{name}.scales"][:, None]
    rounded[name] = torch.from_numpy(numbers)

before = probabilities()
model.load_state_dict(rounded)
after = probabilities()
moved = (before - after).abs().amax(dim=-1)
same = before.argmax(dim=-1) == after.argmax(dim=-1)
print(f"the same next word at {same.sum()} of {len(same)} places")
print(f"at half of them no probability moved by more than {moved.median():.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert same.double().mean() > 0.98
    assert moved.median() < 0.01

# %% [markdown]
# These are a hundred sentences of the grammar. At one place in a hundred another word comes out on top, where two were almost equally likely. The browser's tests compare the first page's model, rounded in the same way, with PyTorch: every logit of fifty sentences agrees to a thousandth.
