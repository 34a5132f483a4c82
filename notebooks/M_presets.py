# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Presets and checks
#
# This appendix names the shapes of models, checks every number of one, and counts its parameters before it is built.
#
# The [lesson](10_transformer.ipynb#one-configuration) describes a model by a `TransformerConfig` and refuses what it can't build. Here is what a user needs besides: names for all rows of the paper's Table 3 and for the models that come with the package, and one clear line for each wrong number, before any work is lost.

# %% tags=["export"]
from typing import Any

from torch import nn

from annotated_transformer import transformer
from annotated_transformer.transformer import TransformerConfig

# %% [markdown]
# ## Names for models
#
# `tiny`, `small`, `base` and `big` are the lesson's. `captions` and `everyday` are the shapes of the models that come along. The others are the rows of Table 3, all of them changes of `base`: A varies the heads (their widths follow), B the width of keys, C the size, D dropout and label smoothing, E the positions. Label smoothing belongs to the [loss](17_regularization.ipynb#why-smooth-the-labels), so its rows have the base model's shape.

# %% tags=["export"]
TABLE_3: dict[str, dict[str, Any]] = {
    "A-h1": {"heads": 1},
    "A-h4": {"heads": 4},
    "A-h16": {"heads": 16},
    "A-h32": {"heads": 32},
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-N2": {"layers": 2},
    "C-N4": {"layers": 4},
    "C-N8": {"layers": 8},
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-dropout0.0": {"dropout": 0.0},
    "D-dropout0.2": {"dropout": 0.2},
    "D-smoothing0.0": {},
    "D-smoothing0.2": {},
    "E-learned": {"positions": "learned"},
}
ALL_PRESETS = {
    **transformer.PRESETS,
    "captions": {"layers": 3, "d_model": 192, "d_ff": 512, "heads": 4, "dropout": 0.3},
    "everyday": {"layers": 3, "d_model": 256, "d_ff": 512, "heads": 4},
    **TABLE_3,
}


def preset(name: str, **changes: Any) -> TransformerConfig:
    """Return a named configuration, with changes; without one, the vocabulary has 37,000 words.

    Raises:
        ValueError: there is no preset of that name, or the changed one is no valid model.
    """
    if name not in ALL_PRESETS:
        names = ", ".join(preset for preset in ALL_PRESETS if preset not in TABLE_3)
        rows = f"or a row of Table 3 (ALL_PRESETS has them), such as {min(TABLE_3)}"
        raise ValueError(f'there is no preset "{name}": take one of {names}, {rows}')
    fields = {"vocabulary_size": 37_000, **ALL_PRESETS[name], **changes}
    return make_config(fields)


# %% [markdown]
# ## Checks
#
# A wrong number fails here, in one line that says what would do, and not an hour later inside a matrix product. The sizes have an upper limit, since a configuration may come from a file of unknown origin. The table of sinusoids has one of its own: it is the only thing that a model builds without a number of it in the file of weights. At a width of 512, it may have 65,536 positions.

# %% tags=["export"]
SIZES = ("vocabulary_size", "layers", "d_model", "d_ff", "heads", "max_length")
OPTIONAL_SIZES = ("d_k", "d_v")
RATES = ("dropout", "attention_dropout", "relu_dropout")
SWITCHES = ("attention_bias", "pre_norm")
LARGEST_SIZE = 1_000_000
LARGEST_TABLE = 2**25  # numbers of the table of sinusoids


def check_config(fields: dict[str, Any]) -> None:
    """Refuse the fields of a configuration that no model can have; missing ones are right.

    Raises:
        ValueError: names the field, its value and what would do.
    """
    for name, value in fields.items():
        if name in SIZES or (name in OPTIONAL_SIZES and value is not None):
            if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
                raise ValueError(
                    f"{name}={value!r} must be a whole number from 1 to 1,000,000"
                )
        elif name in RATES:
            is_number = isinstance(value, (int, float)) and value is not False
            if not is_number or not 0 <= value < 1:
                raise ValueError(f"{name}={value!r} must be a rate from 0 to below 1")
        elif name in SWITCHES:
            if not isinstance(value, bool):
                raise ValueError(f"{name}={value!r} must be True or False")
        elif name == "positions" and value not in ("sinusoidal", "learned"):
            raise ValueError(f'positions="{value}" must be "sinusoidal" or "learned"')


def make_config(fields: dict[str, Any]) -> TransformerConfig:
    """Make a configuration of its fields, every one of them checked.

    Raises:
        ValueError: names the field, its value and what would do.
        TypeError: there is no such field, or the vocabulary's size is missing.
    """
    fields = dict(fields)  # a file may hold something else
    check_config(fields)
    config = TransformerConfig(**fields)
    if config.vocabulary_size < 5:
        raise ValueError("vocabulary_size must be 5 or more: ids 0 to 3 are special")
    if config.positions == "sinusoidal" and config.d_model % 2:
        raise ValueError(
            f"d_model={config.d_model} must be even, or take positions='learned'"
        )
    table_size = config.max_length * config.d_model
    if config.positions == "sinusoidal" and table_size > LARGEST_TABLE:
        longest = LARGEST_TABLE // config.d_model
        raise ValueError(
            f"max_length={config.max_length} must be {longest} or less "
            f"for d_model={config.d_model}"
        )
    return config


# %%
for wrong in ({"heads": 7}, {"dropout": 10}, {"positions": "rotary"}, {"d_ff": 0}):
    try:
        preset("base", **wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## Counting parameters
#
# A model can count its own parameters. For a configuration we write the sum down, so that nothing has to be built to count it: an encoder layer has one attention, one network and two norms, a decoder layer one attention and one norm more.


# %% tags=["export"]
def parameter_count(model: nn.Module | TransformerConfig) -> int:
    """Count the parameters of a model, or of the model that a configuration describes."""
    if isinstance(model, nn.Module):
        return sum(parameter.numel() for parameter in model.parameters())
    config = model
    d = config.d_model
    keys = config.heads * (config.d_k or d // config.heads)
    values = config.heads * (config.d_v or d // config.heads)
    attention = 2 * d * (keys + values)
    if config.attention_bias:
        attention += 2 * keys + values + d
    network = 2 * d * config.d_ff + config.d_ff + d
    norm = 2 * d
    encoder_layer = attention + network + 2 * norm
    decoder_layer = 2 * attention + network + 3 * norm
    count = config.layers * (encoder_layer + decoder_layer)
    if config.pre_norm:
        count += 2 * norm
    if config.positions == "learned":
        count += config.max_length * d
    return count + config.vocabulary_size * d


# %%
for name in ("tiny", "small", "base", "big"):
    print(f"{name:5} {parameter_count(preset(name)):11,}")
