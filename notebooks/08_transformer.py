# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # The Transformer
#
# This chapter puts the whole model together from one configuration, starts its weights, counts its
# parameters against the paper's, and lets it write (sections 3.1 to 3.4 of the paper).
#
# All parts are made. What is left looks like glue, and glue is where models break without a sound. A
# rate that never reaches its layer, six layers that start as copies of one, a target that shows its own
# answer: the model trains all the same, only worse. So each piece of glue gets a check.

# %% tags=["export"]
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Decoder, DecoderLayer, Encoder, EncoderLayer
from annotated_transformer.masks import BOS, EOS, PAD, padding_mask, target_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention, head_width
from annotated_transformer.positional_encoding import LearnedPositions, SinusoidalPositions

# %%
from dataclasses import replace
from math import log

import matplotlib.pyplot as plt
import torch.nn.functional as F

from annotated_transformer.figures import KEY, QUERY, VALUE, style

# %% [markdown]
# ## One configuration
#
# Every number that shapes the model has one place. The defaults are the paper's base model; what
# the paper does not have is off. The object is frozen: a model and its configuration cannot
# drift apart.


# %% tags=["export"]
@dataclass(frozen=True)
class TransformerConfig:
    """All that shapes the model; the defaults are the paper's base model. Checked when made."""

    vocabulary_size: int
    layers: int = 6  # N, of the encoder and of the decoder
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_k: int | None = None  # None: d_model / heads
    d_v: int | None = None  # None: d_model / heads
    dropout: float = 0.1  # on each sub-layer's output, and on embedding + position
    attention_dropout: float = 0.0  # on the attention weights; not in the paper
    relu_dropout: float = 0.0  # inside the feed-forward network; not in the paper
    attention_bias: bool = False  # not in the paper
    pre_norm: bool = False  # not in the paper
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 1024  # positions

    def __post_init__(self) -> None:
        check_config(self)


# %% [markdown]
# A wrong number should fail here, in one line that says what would do, and not an hour later inside a
# matrix product.


# %% tags=["export"]
def check_config(config: TransformerConfig) -> None:
    """Refuse a configuration that no model can have.

    Raises:
        ValueError: names the field, its value and what would do.
    """
    sizes = ["vocabulary_size", "layers", "d_model", "d_ff", "heads", "max_length"]
    sizes += [name for name in ("d_k", "d_v") if getattr(config, name) is not None]
    for name in sizes:
        size = getattr(config, name)
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r} must be a whole number, 1 or more")
    for name in ("dropout", "attention_dropout", "relu_dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} must be a rate from 0 to below 1")
    if config.vocabulary_size < 5:
        raise ValueError("vocabulary_size must be 5 or more: ids 0 to 3 are special")
    if config.d_k is None or config.d_v is None:
        head_width(config.d_model, config.heads)
    if config.positions not in ("sinusoidal", "learned"):
        raise ValueError(f'positions="{config.positions}" must be "sinusoidal" or "learned"')
    if config.positions == "sinusoidal" and config.d_model % 2:
        raise ValueError(f"d_model={config.d_model} must be even, or take positions='learned'")


# %%
for wrong in ({"heads": 7}, {"dropout": 10}, {"positions": "rotary"}):
    try:
        TransformerConfig(vocabulary_size=1000, **wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## The paper's models by name
#
# Table 3 of the paper varies the base model one number at a time. Each row is a **preset**, a name
# for a few changes. Three presets are ours: `tiny`, `mini` and `small` train on a laptop, the first within minutes. The rows
# with another label smoothing have the base model's shape: what changes there is the
# [loss](13_regularization.ipynb), so set it in the training.

# %% tags=["export"]
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "d_ff": 512, "heads": 4},
    "mini": {"layers": 3, "d_model": 192, "d_ff": 512, "heads": 4, "dropout": 0.15},
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {},
    "A-h1": {"heads": 1, "d_k": 512, "d_v": 512},
    "A-h4": {"heads": 4, "d_k": 128, "d_v": 128},
    "A-h16": {"heads": 16, "d_k": 32, "d_v": 32},
    "A-h32": {"heads": 32, "d_k": 16, "d_v": 16},
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    "C-N2": {"layers": 2},
    "C-N4": {"layers": 4},
    "C-N8": {"layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-dropout0.0": {"dropout": 0.0},
    "D-dropout0.2": {"dropout": 0.2},
    "D-smoothing0.0": {},  # the base model; label smoothing belongs to training
    "D-smoothing0.2": {},  # likewise
    "E-learned": {"positions": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
}


# %% tags=["export"]
def preset(name: str, **changes: Any) -> TransformerConfig:
    """Return a named configuration, with changes; without one, the vocabulary has 37,000 words.

    Raises:
        ValueError: there is no preset of that name, or the changed one is no valid model.
    """
    if name not in PRESETS:
        raise ValueError(f'there is no preset "{name}": take one of {", ".join(PRESETS)}')
    return TransformerConfig(**{"vocabulary_size": 37_000, **PRESETS[name], **changes})


# %%
print(preset("tiny", vocabulary_size=1000))

# %% [markdown]
# ## Parts from a configuration
#
# Each function makes one new part. Six layers are six calls. The shortcut of making one layer and copying
# it five times gives six layers that start out identical, and we check below that ours do not.


# %% tags=["export"]
def build_attention(c: TransformerConfig) -> MultiHeadAttention:
    """Make one attention; encoder, decoder and the bridge between them all use the same form."""
    return MultiHeadAttention(
        c.d_model, c.heads, c.d_k, c.d_v, bias=c.attention_bias, dropout=c.attention_dropout
    )


def build_feed_forward(c: TransformerConfig) -> FeedForward:
    """Make one feed-forward network."""
    return FeedForward(c.d_model, c.d_ff, c.relu_dropout)


# %% tags=["export"]
def build_encoder(c: TransformerConfig) -> Encoder:
    """Make the encoder, each layer anew."""
    layers = [
        EncoderLayer(c.d_model, build_attention(c), build_feed_forward(c), c.dropout, c.pre_norm)
        for _ in range(c.layers)
    ]
    return Encoder(layers, c.d_model, c.pre_norm)


def build_decoder(c: TransformerConfig) -> Decoder:
    """Make the decoder, each layer anew."""
    layers = [
        DecoderLayer(
            c.d_model,
            self_attention=build_attention(c),
            cross_attention=build_attention(c),
            feed_forward=build_feed_forward(c),
            dropout=c.dropout,
            pre_norm=c.pre_norm,
        )
        for _ in range(c.layers)
    ]
    return Decoder(layers, c.d_model, c.pre_norm)


# %% tags=["export"]
def build_positions(c: TransformerConfig) -> SinusoidalPositions | LearnedPositions:
    """Make the positions, one table for source and target."""
    kind = LearnedPositions if c.positions == "learned" else SinusoidalPositions
    return kind(c.d_model, c.max_length)


# %% [markdown]
# ## How weights start
#
# The paper does not say. The authors' code does: Glorot's uniform rule for every matrix, zero for
# biases, and $\mathcal{N}(0, d_\text{model}^{-0.5})$ for the [embedding](05_embeddings.ipynb). Glorot's rule draws from
# $\pm\sqrt{6 / (\text{rows} + \text{columns})}$, which keeps the size of signals roughly the same both ways. Each
# attention projection counts as a matrix of its own. PyTorch's `nn.MultiheadAttention`
# stacks three of them into one before it applies the rule, and so starts with smaller numbers.


# %% tags=["export"]
def initialize(model: nn.Module) -> None:
    """Start every linear map: Glorot uniform matrix, zero bias. Embeddings start by themselves."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# %% [markdown]
# ## The model
#
# Here is the whole of it. Tokens come in, logits come out, and nobody outside has to think of masks: they
# follow from the tokens. `encode` and `decode` are separate because using the model needs them so:
# encode the source once, decode the target many times.
#
# Dropout stands on the sum of embedding and position (section 5.4); all others are inside the layers.


# %% tags=["export"]
class Transformer(nn.Module):
    """The model of the paper (section 3), from token ids to logits."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocabulary_size, config.d_model)
        self.positions = build_positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = build_encoder(config)
        self.decoder = build_decoder(config)
        initialize(self)

    def embed(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Turn tokens (B, T), the first at position offset, into vectors (B, T, D)."""
        return self.dropout(self.positions(self.embedding(tokens), offset))

    def encode(self, source: Tensor) -> Tensor:
        """Read source tokens (B, S); return the memory (B, S, D)."""
        return self.encoder(self.embed(source), padding_mask(source))

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Read target tokens (B, T) beside the memory; return states (B, T, D)."""
        return self.decoder(self.embed(target), memory, target_mask(target), padding_mask(source))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Score every next word: logits (B, T, V) at each position of target (B, T)."""
        return self.embedding.logits(self.decode(target, self.encode(source), source))


# %%
torch.manual_seed(0)
toy = TransformerConfig(vocabulary_size=11, layers=2, d_model=8, d_ff=32, heads=2, dropout=0.0)
model = Transformer(toy)
source = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 4, 6, EOS], [BOS, 5, EOS, PAD]])
print("logits", tuple(model(source, target).shape), "= (B, T, V)")

# %% [markdown]
# Does each rate reach its place, and no other? The base model has 12 sub-layers in the encoder and 18 in the
# decoder, and the sum of embedding and position: 31 places for dropout.

# %%
base = Transformer(preset("base", vocabulary_size=2000))
rates = [module.p for module in base.modules() if isinstance(module, nn.Dropout) and module.p]
assert rates == [0.1] * (6 * 2 + 6 * 3 + 1)
print(len(rates), "places, all at rate", rates[0])

# %% [markdown]
# Let us see that the start is as we say: sizes by Glorot's rule, zero biases, and no two layers alike.

# %%
query = base.encoder.layers[0].self_attention.query.weight
inner = base.encoder.layers[0].feed_forward.inner
bound = (6 / (512 + 2048)) ** 0.5
assert inner.weight.abs().max() <= bound and inner.weight.abs().max() > 0.99 * bound
assert not inner.bias.any()
queries = [layer.self_attention.query.weight for layer in base.encoder.layers]
assert all(not torch.equal(a, b) for i, a in enumerate(queries) for b in queries[:i])
stacked = torch.nn.MultiheadAttention(512, 8).in_proj_weight
print(f"a query matrix: ours {query.std():.3f}, PyTorch's {stacked[:512].std():.3f}")

# %% [markdown]
# ## Counting parameters
#
# To count, a model need not exist. On PyTorch's `meta` device tensors have shapes but no memory, so even `big`
# is made at once. A shared table is one parameter and counts once.


# %% tags=["export"]
def parameter_count(model: nn.Module | TransformerConfig) -> int:
    """Count the parameters of a model, or of the model that a configuration describes."""
    if isinstance(model, TransformerConfig):
        with torch.device("meta"):
            model = Transformer(model)
    return sum(parameter.numel() for parameter in model.parameters())


# %% [markdown]
# A second count goes by arithmetic, with $a = 4 \cdot 512^2$ for an attention, $f = 2 \cdot 512 \cdot 2048 +
# 2560$ for a feed-forward network and $n = 2 \cdot 512$ for a norm:

# %%
a, f, n = 4 * 512**2, 2 * 512 * 2048 + 2048 + 512, 2 * 512
by_hand = 37_000 * 512 + 6 * (a + f + 2 * n) + 6 * (2 * a + f + 3 * n)
assert parameter_count(preset("base")) == by_hand
print(f"{by_hand:,}")

# %% [markdown]
# So 63.05 million, and the paper says 65. Here is every row of Table 3 for which the paper gives a number, in
# millions.

# %%
PAPER = {
    "base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80, "C-d256": 28,
    "C-d1024": 168, "C-ff1024": 53, "C-ff4096": 90, "big": 213,
}  # fmt: skip
print("row         ours  paper  difference")
for name, paper in PAPER.items():
    ours = parameter_count(preset(name)) / 1e6
    print(f"{name:9} {ours:6.2f} {paper:6} {paper - ours:8.2f}")

# %% [markdown]
# The other rows have no number in the paper. Ours come out as they should: rows A and D have exactly the
# base model's count, and learned positions add $1024 \cdot 512$.

# %%
for name in PRESETS:
    if name[0] in "AD":
        assert parameter_count(preset(name)) == by_hand
assert parameter_count(preset("E-learned")) - by_hand == 1024 * 512
print(f"tiny {parameter_count(preset('tiny')):,}  small {parameter_count(preset('small')):,}")

# %% [markdown]
# ## Why do the counts differ?
#
# Differences *between* rows test the model's shape without its table. The paper goes from 2 layers to 8
# and adds 44 million: ours adds 44.10. From $d_\text{ff}$ 1024 to 4096 it adds 37, ours 37.79. From $d_k$ 16 to 64 it
# adds 7, ours 7.08. Every one of these agrees within the rounding. So the layers are right, and what we miss
# is outside them.
#
# What is missing grows with the width: about 1.2 million at 256, 2 at 512, 4 at 1024. A table grows in just
# that way. Let us ask, as a hypothesis, how many more rows of $d_\text{model}$ numbers each row of Table 3 would
# need, if the paper rounds to the nearest million.


# %%
def missing_rows(name):
    """Return the smallest and the largest number of extra table rows that give the paper's count."""
    config = preset(name)
    ours, paper = parameter_count(config), PAPER[name] * 1_000_000
    low, high = paper - 500_000 - ours, paper + 500_000 - ours
    return -(-low // config.d_model), high // config.d_model


intervals = {name: missing_rows(name) for name in PAPER}
for name, (low, high) in intervals.items():
    print(f"{name:9} {low:6} to {high:5}")
ten = [interval for name, interval in intervals.items() if name != "big"]
low, high = max(low for low, _ in ten), min(high for _, high in ten)
print("all but big:", low, "to", high)
assert low <= high and intervals["big"][1] < 0

# %% [markdown]
# Ten of the eleven counts agree with one another: all are as if the model had some 4,004 to 4,208 rows more
# than our 37,000. Three remarks.
#
# - We know that this is arithmetic. What the rows are, we do not know. A vocabulary of about 41,100
#   would do, but the paper says about 37,000. So would 37,000 words and a table of 4,096 positions, and
#   nothing in the paper speaks for that. If the paper cut off the decimals in place of rounding them, the
#   interval moves up by about a thousand rows.
# - `big` does not fit. The paper's 213 is *below* our 214.2 million; it would need a vocabulary near 36,000. No
#   single table explains all eleven rows.
# - Biases do not explain it. Giving all 18 attentions of the base model theirs adds 36,864
#   parameters, and a bias on the output adds 37,000: together 0.07 million.
#
# We keep 37,000, and a base model of 63 million.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-missing-rows", "caption": "How many more table rows would give the paper's parameter count? Each bar spans what rounding to a million allows. The band is where ten rows agree; big stands apart."}, "image": {"alt": "Horizontal bars for eleven rows of Table 3. Ten overlap in a narrow band near 4,100 extra rows; the bar for big lies at about minus 1,100."}}
style()
fig, axis = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
axis.axvspan(low, high, color=VALUE, alpha=0.25)
for name, (start, end) in intervals.items():
    color, hatch = (KEY, "////") if name == "big" else (QUERY, "")
    axis.barh(name, end - start, left=start, fc="none", ec=color, hatch=hatch, lw=1.5)
axis.text(low - 60, 10, "ten rows agree", ha="right", va="center", color=VALUE)
axis.axvline(0, color="#777777", lw=1)
axis.set(xlim=(-2000, 7000), xlabel="extra rows of d_model numbers (0: our vocabulary of 37,000)")
axis.invert_yaxis()
axis.grid(False)
plt.show()

# %% [markdown]
# ## Is it a Transformer?
#
# PyTorch has one, written by other people. We give `nn.Transformer` our weights, in double precision,
# and feed both a padded batch. Two settings need care. PyTorch puts a norm at the end of encoder and
# decoder even with post-norm; there the paper has none, so we take it out. And its masks say what to hide.


# %%
def copy_attention(ours, theirs):
    """Copy our projections into an nn.MultiheadAttention, whose biases become zero."""
    inputs = [ours.query.weight, ours.key.weight, ours.value.weight]
    theirs.in_proj_weight.data = torch.cat(inputs).detach()
    theirs.out_proj.weight.data = ours.output.weight.detach()
    nn.init.zeros_(theirs.in_proj_bias)
    nn.init.zeros_(theirs.out_proj.bias)


def copy_norm(ours, theirs):
    """Copy gain and bias into an nn.LayerNorm."""
    theirs.load_state_dict({"weight": ours.gain, "bias": ours.bias})


def copy_layer(ours, theirs):
    """Copy an encoder or decoder layer."""
    copy_attention(ours.self_attention, theirs.self_attn)
    if hasattr(ours, "cross_attention"):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    for i, residual in enumerate(ours.residuals):
        copy_norm(residual.norm, getattr(theirs, f"norm{i + 1}"))


# %%
def pytorch_twin(ours):
    """Return an nn.Transformer with our weights."""
    c = ours.config
    theirs = nn.Transformer(
        c.d_model, c.heads, c.layers, c.layers, c.d_ff, dropout=0.0,
        batch_first=True, norm_first=c.pre_norm, layer_norm_eps=1e-6,
        dtype=ours.embedding.table.dtype,
    )  # fmt: skip
    for stack, twin in [(ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)]:
        for layer, copy in zip(stack.layers, twin.layers):
            copy_layer(layer, copy)
        if c.pre_norm:
            copy_norm(stack.norm, twin.norm)
        else:
            twin.norm = None
    return theirs


# %%
import warnings

warnings.filterwarnings("ignore", message="enable_nested_tensor")  # speaks of a path not taken here
for pre_norm in (False, True):
    for dtype, tolerance in [(torch.float32, 1e-5), (torch.float64, 1e-12)]:
        model = Transformer(replace(toy, pre_norm=pre_norm)).to(dtype)
        for parameter in model.parameters():  # so that no gain is 1 and no bias 0
            nn.init.normal_(parameter, std=0.5)
        later = nn.Transformer.generate_square_subsequent_mask(4, dtype=dtype)
        states = pytorch_twin(model)(
            model.embed(source),
            model.embed(target),
            tgt_mask=later.isinf(),
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        expected = F.linear(states, model.embedding.table)
        difference = (model(source, target) - expected).abs().max() / expected.abs().max()
        assert difference < tolerance
    print("pre-norm:" if pre_norm else "post-norm:", "equal to nn.Transformer")

# %% [markdown]
# ## Padding does not count, the future does not leak
#
# Two properties hold for the whole model if every mask reached its place. A sentence must get the same logits
# however much padding a batch adds. And changing a target word must leave all logits before it alone.

# %%
model = Transformer(toy).double()
logits = model(source, target)
more = F.pad(source, (0, 6), value=PAD), F.pad(target, (0, 3), value=PAD)
assert torch.allclose(model(*more)[:, :4], logits)
alone = model(source[1:, :3], target[1:, :3])
assert torch.allclose(logits[1:, :3], alone)

for t in range(1, 4):
    other = target.clone()
    other[0, t] = 7
    changed = model(source, other)
    assert torch.allclose(changed[0, :t], logits[0, :t])
    assert not torch.allclose(changed[0, t:], logits[0, t:])
print("padding does not count, the future does not leak")

# %% [markdown]
# How much does a forgotten padding mask change? A batch with six padded positions tells:

# %%
torch.manual_seed(0)
wide = Transformer(preset("small", vocabulary_size=1000, dropout=0.0))
words = torch.randint(4, 1000, (64, 10))
written = torch.randint(4, 1000, (64, 10))
padded = F.pad(words, (0, 6), value=PAD)
with torch.no_grad():
    right = wide(padded, written)
    unmasked = wide.encoder(wide.embed(padded))
    states = wide.decoder(wide.embed(written), unmasked, target_mask(written), None)
    off = wide.embedding.logits(states) - right
print("off by more than a quarter of the logits' spread:", (off.std() > right.std() / 4).item())

# %% [markdown]
# ## Shifted targets
#
# In training the decoder sees the target up to a word and must say the next. So input and answer are the
# same sentence, one place apart. Both come from one row that begins with `<s>` and ends with `</s>`:

# %%
sentence = torch.tensor([[BOS, 5, 9, 4, EOS]])
print("decoder reads:", sentence[:, :-1].tolist()[0])
print("must say:     ", sentence[:, 1:].tolist()[0])

# %% [markdown]
# Forget the shift and the model learns to copy the word it is looking at. The loss falls to zero, and it can say
# nothing.
#
# ## The loss before training
#
# A model that knows nothing should give every word about the same chance, $1/V$, and have a loss near
# $\ln V$. It is the first number to check in a training run.
#
# Ours starts a little higher. The [embedding](05_embeddings.ipynb) was made so that logits have size 1. Not being
# equal, they make the model a little sure without a reason. For normally distributed logits the price is
# half their variance: $\ln V + \tfrac12$.

# %%
torch.manual_seed(0)
words, written = torch.randint(4, 8000, (16, 12)), torch.randint(4, 8000, (16, 13))
with torch.no_grad():
    logits = Transformer(preset("base", vocabulary_size=8000, dropout=0.0))(words, written[:, :-1])
loss = F.cross_entropy(logits.flatten(0, 1), written[:, 1:].flatten()).item()
expected = log(8000) + logits.var().item() / 2
print(f"ln V {log(8000):.1f}, with the half {expected:.1f}")
assert abs(loss - expected) < 0.3

# %% [markdown]
# Weight tying has a curious effect here. In a pre-norm model the word that goes in stays on the residual stream,
# and the output looks for the row most like the stream. So before any training, the model repeats each word
# it reads. Post-norm shrinks the stream twelve times on the way, and the word is lost in it:

# %%
for pre_norm in (False, True):
    fresh = Transformer(preset("base", vocabulary_size=8000, dropout=0.0, pre_norm=pre_norm))
    with torch.no_grad():
        said = fresh(words, written[:, :-1]).argmax(dim=-1)
    share = (said == written[:, :-1]).float().mean()
    print("pre-norm: " if pre_norm else "post-norm:", "repeats its input:", (share > 0.9).item())

# %% [markdown]
# ## Writing a sentence
#
# The model scores next words; somebody has to choose. The simplest way takes the best one each time and
# feeds it back in. This is **greedy decoding**. It starts at `<s>`, and a sentence is done at `</s>` or when
# it is 50 tokens longer than its source, the paper's limit (section 6.1).
#
# Decoding wants dropout off. Forgetting `model.eval()` is among the most common mistakes, and leaving
# it on for the rest of the training is the next. A context manager does both ways.


# %% tags=["export"]
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout and gradients off inside the block; afterwards the model is as before."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


# %% [markdown]
# Sentences of a batch end at different times. A finished one is continued with padding, which nobody attends to, until the
# last is done. Each limit follows from the sentence's own length. So a translation does not depend on its
# neighbors in the batch.


# %% tags=["export"]
def greedy_decode(model: Transformer, source: Tensor, extra: int = 50) -> list[list[int]]:
    """Write the best next word until `</s>`, or until extra words more than the source has.

    Takes source tokens (B, S). Returns a list of ids for each sentence, without `<s>` and `</s>`.
    Readable and slow: each step computes all positions anew.
    """
    limits = ((source != PAD).sum(dim=1) + extra).clamp(max=model.config.max_length)
    target = torch.full_like(source[:, :1], BOS)
    running = torch.ones_like(limits, dtype=torch.bool)
    with evaluating(model):
        memory = model.encode(source)
        while running.any():
            states = model.decode(target, memory, source)
            logits = model.embedding.logits(states[:, -1])
            logits[:, [PAD, BOS]] = -torch.inf  # neither is ever a next word
            word = logits.argmax(dim=-1).where(running, PAD)
            target = torch.cat([target, word[:, None]], dim=1)
            running &= (word != EOS) & (target.size(1) <= limits)
    return [[word for word in row if word not in (PAD, EOS)] for row in target[:, 1:].tolist()]


# %% [markdown]
# An untrained model writes nonsense, but it must write the same nonsense for a sentence alone and in a
# batch. We check that, and that every step is what a full pass over its own output says.

# %%
model = Transformer(toy).double().train()
together = greedy_decode(model, source, extra=6)
alone = [greedy_decode(model, row[row != PAD][None], extra=6)[0] for row in source]
assert together == alone
assert model.training
print("the same words alone and in a batch")

for row, words in zip(source, together):
    logits = model(row[row != PAD][None], torch.tensor([[BOS, *words[:-1]]]))
    logits[..., [PAD, BOS]] = -torch.inf
    assert logits.argmax(dim=-1)[0].tolist() == words

# %% [markdown]
# ## What to remember
#
# - One frozen configuration; wrong numbers fail when it is made and say what would do.
# - Masks follow from the tokens, inside the model. Padding does not count and the future does not leak.
# - Ours equals `nn.Transformer` with its extra final norms taken out.
# - Base has 63.05 million parameters. The layers agree with the paper's counts; the last two million are open.
# - Before training the loss is near $\ln V$; with this start, half a unit above.

# %% [markdown]
# ## Exercises
#
# 1. By hand: how many parameters does one more layer, encoder and decoder together, add to base?
# 2. How large is the model of row "C-d1024" with three separate tables in place of one?
# 3. What breaks if the second layer is a copy of the first, made with `copy.deepcopy`? Is anything
#    wrong with the gradients?
# 4. What does `greedy_decode` return if the model never says `</s>`?
#
# :::{admonition} Solution
# :class: dropdown
# 1. $3a + 2f + 5n = 3{,}145{,}728 + 4{,}199{,}424 + 5{,}120 = 7{,}350{,}272$.
# 2. $163.8 + 2 \cdot 37.9 = 239.6$ million.
# 3. Both start with the same numbers. Gradients differ, since the inputs do, so the two drift apart; it
#    is a poor start and not a fatal one. Nothing reports it.
# 4. As many words as the source has, and `extra` more.
# :::

# %% tags=["hide-input"]
assert 3 * a + 2 * f + 5 * n == 7_350_272
more = parameter_count(preset("base", layers=7)) - parameter_count(preset("base"))
assert more == 7_350_272
assert round((parameter_count(preset("C-d1024")) + 2 * 37_000 * 1024) / 1e6, 1) == 239.6
assert all(len(words) <= (row != PAD).sum() + 6 for row, words in zip(source, together))
