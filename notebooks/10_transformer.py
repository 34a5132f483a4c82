# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(
        [
            "git",
            "clone",
            "-q",
            "--depth",
            "1",
            "https://github.com/annotated-transformer/annotated-transformer",
            "/content/book",
        ],
        check=True,
    )
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # The Transformer
#
# This chapter puts the whole model together from one configuration, starts its weights, counts its parameters against the paper's, and lets it write (sections 3.1 to 3.4 of the paper).
#
# All parts are made. What is left looks like glue, and glue is where models break without a sound. A dropout rate that never reaches its layer, six layers that start as copies of one, a target that shows its own answer: the model trains all the same, only worse, or it trains to do nothing. So each piece of glue gets a check.
#
# We begin with a map. Then comes the model, in the order in which a number meets it: configuration, parts, first weights, forward pass. The middle of the chapter asks whether it is right. The last part asks what it costs, and lets it write its first words.

# %% tags=["export"]
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
import copy
from dataclasses import replace
from math import log

import altair as alt
import torch.nn.functional as F

from annotated_transformer import load_pretrained
from book.figures import INK, KEY, POSITION, QUERY, RESIDUAL, VALUE, arrow, box
from book.figures import heatmap, plus, show, show_drawing, show_steps, stream
from book.figures import words_at

# %% [markdown]
# ## The map
#
# Read it from the bottom to the top, first the left side, then the right. Each box names the shape that comes out of it and the numbers that it learns. The letters are those of the [notation page](../book/notation.md): $B$ sentences, $S$ source and $T$ target positions, $D = 512$ numbers a word, $V = 37{,}000$ words.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-map", "caption": "Where am I, and what shape is it? The base model. Each box opens the chapter that builds it; this chapter makes the frame around them. Blue, orange and green arrows carry queries, keys and values, pink ones positions. Every plus is followed by a norm. The dashed frames stand six times on top of each other; their counts are for one layer."}}
attention = f"{4 * 512**2 / 1e6:.2f} M", "05_multi_head_attention.html"
network = f"{(2 * 512 * 2048 + 2560) / 1e6:.2f} M", "06_feed_forward.html"
kinds = {
    "feed-forward": (*network, [INK]),
    "cross-attention": (*attention, [QUERY]),
    "self-attention": (*attention, [QUERY, KEY, VALUE]),
}
sublayers = [
    (54, 280, "(B, S, D)", "feed-forward", ""),
    (54, 392, "(B, S, D)", "self-attention", "padding"),
    (414, 180, "(B, T, D)", "feed-forward", ""),
    (414, 292, "(B, T, D)", "cross-attention", "padding"),
    (414, 404, "(B, T, D)", "self-attention", "causal"),
]
parts = ['<g transform="translate(0,-40)">']
for x, top, name in ((54, 232, "encoder"), (414, 132, "decoder")):
    place = f'x="{x - 42}" y="{top}" width="340" height="{494 - top}" rx="8"'
    parts.append(f'<rect {place} fill="none" stroke="{INK}" stroke-dasharray="2 4"/>')
    parts += [stream([(x, 610), (x, top - 36)]), words_at(x + 80, top - 8, f"6 × {name} layer")]
    parts.append(plus(x, 534))
for x, y, shape, name, mask in sublayers:
    count, link, colors = kinds[name]
    parts += [arrow([(x + 60, y), (x + 10, y)]), plus(x, y)]
    parts.append(box(x - 34, y - 38, 68, 22, "norm", link="09_layers.html"))
    for i, color in enumerate(colors):
        parts.append(arrow([(x, y + 26 + 9 * i), (x + 60, y + 26 + 9 * i)], color))
    parts.append(box(x + 60, y - 12, 160, 68, name, f"{shape} · {count}", link))
    parts.append(box(x + 226, y + 11, 66, 22, mask, link="04_masks.html") if mask else "")
parts += [
    arrow([(54, 196), (54, 70), (366, 70), (366, 330), (474, 330)], KEY),
    arrow([(54, 196), (54, 64), (360, 64), (360, 339), (474, 339)], VALUE),
    words_at(200, 56, "memory (B, S, D)"),
    arrow([(140, 534), (64, 534)], POSITION) + arrow([(330, 534), (404, 534)], POSITION),
    box(140, 515, 190, 38, "positions", "not learned", "08_positional_encoding.html"),
    box(12, 584, 700, 42, "embedding: one table", "18.94 M", "07_embeddings.html"),
    box(474, 60, 190, 42, "output: the same table", "logits (B, T, V)", "07_embeddings.html"),
    arrow([(414, 98), (414, 80), (474, 80)]),
    words_at(54, 645, "source (B, S)") + words_at(414, 645, "target (B, T)") + "</g>",
]
show_drawing(
    parts, 724, 615, alt="The base model as boxes, each with shape, parameters and a link."
)

# %% [markdown]
# ### What happens to one sentence?
#
# Let the source be *die Katze schläft*, and let *the cat* be written already.
#
# 1. **Words become vectors.** The three German words and `</s>` are four ids. The table gives each its row, and a position is added: four vectors of 512 numbers.
# 2. **The encoder reads.** In each of six layers, every word fetches from the others what it needs, and then works on what it has. Out come four vectors, one for each word, now full of their neighbors: the memory.
# 3. **The target goes in.** `<s>` *the cat* are three more ids, and become three vectors in the same way, from the same table.
# 4. **The decoder reads and looks back.** In each of six layers, every target word first looks at those before it, then at the memory, and then works on what it has. *Cat* has to find out that *Katze* is done and *schläft* is next.
# 5. **The last vector becomes a word.** It is compared with all 37,000 rows of the table. *Sleeps* should fit best.
# 6. **Again,** with `<s>` *the cat sleeps*, from step 3. The memory stays.
#
# All of this is in the map, but for three things: who passes the sizes to the boxes, with which numbers they start, and how the target gets in while the model learns. We take them in turn.
#
# ## One configuration
#
# Every number that shapes the model has one place. The defaults are the paper's base model; what the paper does not have is off. Beside each field the letter that the paper uses:
#
# | field | paper | base | what it sets |
# |---|---|---|---|
# | `layers` | $N$ | 6 | layers of the encoder, and of the decoder |
# | `d_model` | $d_\text{model}$ | 512 | width of the stream |
# | `d_ff` | $d_\text{ff}$ | 2048 | width inside the feed-forward network |
# | `heads` | $h$ | 8 | heads of each attention |
# | `d_k`, `d_v` | $d_k$, $d_v$ | 64 | width of a head's keys and values |
# | `dropout` | $P_\text{drop}$ | 0.1 | rate at each place of [chapter 9](09_layers.ipynb) |
#
# A dataclass writes its own `__init__` from this list of fields. It is frozen: after it is made, nobody can change it, so a model and its configuration cannot drift apart. And `__post_init__` runs when a configuration has just been made, which is the moment to refuse a wrong one.
#
# The options below the paper's fields are departures that later code made popular. They are here to be compared, and a table of all of them is on the page of [departures](../book/departures.md).


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
# A wrong number should fail here, in one line that says what would do, and not an hour later inside a matrix product. Some of the checks concern one number by itself, others what must fit together. Heads must divide the width, unless both widths of a head are given. Sines come in pairs with cosines, so the width must be even.


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
# Table 3 of the paper varies the base model one number at a time. Each row is a **preset**, a name for a few changes. Rows A change the heads, B the width of keys, C the size, D dropout and label smoothing, E the positions. Three presets are ours: `tiny`, `mini` and `small` train on a laptop, the first within minutes. The rows with another label smoothing have the base model's shape: what changes there is the [loss](17_regularization.ipynb), so set it in the training.

# %% tags=["export"]
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "d_ff": 512, "heads": 4},
    "mini": {"layers": 3, "d_model": 192, "d_ff": 512, "heads": 4, "dropout": 0.15},
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {},
    "A-h1": {"heads": 1}, "A-h4": {"heads": 4}, "A-h16": {"heads": 16}, "A-h32": {"heads": 32},
    "B-dk16": {"d_k": 16}, "B-dk32": {"d_k": 32},
    "C-N2": {"layers": 2}, "C-N4": {"layers": 4}, "C-N8": {"layers": 8},
    "C-d256": {"d_model": 256}, "C-d1024": {"d_model": 1024},
    "C-ff1024": {"d_ff": 1024}, "C-ff4096": {"d_ff": 4096},
    "D-dropout0.0": {"dropout": 0.0}, "D-dropout0.2": {"dropout": 0.2},
    "D-smoothing0.0": {}, "D-smoothing0.2": {},  # label smoothing belongs to training
    "E-learned": {"positions": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
}  # fmt: skip

# %% [markdown]
# Row B shows why `d_k` and `d_v` are fields of their own: there, keys are narrower than values, which keep $d_\text{model} / h$.


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
# Encoder, decoder and the bridge between them all use the same form of attention. `partial` keeps the arguments until somebody calls it, and each call makes a new part. So six layers are six calls, and each layer has parts of its own.


# %% tags=["export"]
def build_stacks(c: TransformerConfig) -> tuple[Encoder, Decoder]:
    """Make the encoder and the decoder, each layer anew."""
    d, form = c.d_model, (c.dropout, c.pre_norm)
    attention = partial(
        MultiHeadAttention, d, c.heads, c.d_k, c.d_v, c.attention_bias, c.attention_dropout
    )
    network = partial(FeedForward, d, c.d_ff, c.relu_dropout)
    encoder = [EncoderLayer(d, attention(), network(), *form) for _ in range(c.layers)]
    decoder = [DecoderLayer(d, attention(), attention(), network(), *form) for _ in range(c.layers)]
    return Encoder(encoder, d, c.pre_norm), Decoder(decoder, d, c.pre_norm)


# %% [markdown]
# ### What if a rate is not passed on?
#
# Look again at `build_stacks`. It hands `c.dropout` to each layer. Leave that argument out, and the layer falls back on its own default, 0.1. In one public implementation it is the attention that keeps its 0.1 when the model is asked for 0. Nothing complains:

# %%
c = preset("tiny", vocabulary_size=100, dropout=0.0)
torch.manual_seed(0)
x = torch.randn(4, 10, 128)
for name, rates in {"forgotten": {}, "passed on": {"dropout": c.dropout}}.items():
    layer = EncoderLayer(128, MultiHeadAttention(128, 4), FeedForward(128, 512), **rates)
    once, again = layer(x), layer(x)
    print(f"{name}: two calls differ by {((once - again).std() / once.std()).item():.0%}")

# %% [markdown]
# Who runs an experiment "without dropout" with the first layer compares 0.1 with 0.1. So count the places that have a rate. The base model has 12 sub-layers in the encoder and 18 in the decoder, and one dropout for the sum of embedding and position, used on both sides: 31 modules.

# %%
stacks = build_stacks(preset("base"))
rates = [m.p for stack in stacks for m in stack.modules() if isinstance(m, nn.Dropout) and m.p]
assert rates == [0.1] * (6 * 2 + 6 * 3)
print(len(rates), "places in the stacks, all at rate", rates[0])

# %% [markdown]
# ## How weights start
#
# The paper does not say. The authors' code does: Glorot's uniform rule for every matrix, zero for biases, and $\mathcal{N}(0, d_\text{model}^{-0.5})$ for the [embedding](07_embeddings.ipynb). Glorot's rule draws the numbers of a matrix from
#
# $$
# \pm\sqrt{\frac{6}{\text{rows} + \text{columns}}}, \qquad \text{a standard deviation of } \sqrt{\frac{2}{\text{rows} + \text{columns}}}.
# $$ (eq-glorot)
#
# Why so? A vector of $n$ numbers of size 1, times a matrix with $n$ rows of numbers of size $\sigma$, has numbers of size $\sigma\sqrt n$. To keep size 1 on the way forward, $\sigma$ should be $1/\sqrt{\text{rows}}$. On the way back the gradient is multiplied by the transpose, and $\sigma$ should be $1/\sqrt{\text{columns}}$. Glorot's rule is the compromise. In a feed-forward network of the base model, $\sqrt{2/2560} = 0.028$, the signal leaves the first matrix at $0.028 \cdot \sqrt{512} = 0.63$ and gains in the second $0.028 \cdot \sqrt{2048} = 1.26$. The product is 0.8.


# %% tags=["export"]
def initialize(model: nn.Module) -> None:
    """Start every linear map: Glorot uniform matrix, zero bias. Embeddings start by themselves."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# %% [markdown]
# What counts as a matrix matters, since its rows and columns decide. For us each attention projection is one, 512 by 512, and starts at $\sqrt{2/1024} = 0.044$. PyTorch's `nn.MultiheadAttention` stacks three of them into a matrix with 1,536 columns before it applies the rule, and so starts at $\sqrt{2/2048} = 0.031$.

# %%
encoder, _ = build_stacks(preset("base", layers=1))
initialize(encoder)
query, stacked = (
    encoder.layers[0].self_attention.query,
    nn.MultiheadAttention(512, 8).in_proj_weight,
)
print(f"our query {query.weight.std():.3f}, PyTorch's {stacked[:512].std():.3f}")

# %% [markdown]
# ## The model
#
# Here is the whole of it. Tokens come in, logits come out, and nobody outside has to think of masks: they follow from the tokens.


# %% tags=["export"]
class Transformer(nn.Module):
    """The model of the paper (section 3), from token ids to logits."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocabulary_size, config.d_model)
        positions = LearnedPositions if config.positions == "learned" else SinusoidalPositions
        self.positions = positions(config.d_model, config.max_length)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder, self.decoder = build_stacks(config)
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
        """Score every next word: logits (B, T, |V|) at each position of target (B, T)."""
        return self.embedding.logits(self.decode(target, self.encode(source), source))


# %% [markdown]
# Read the methods from the bottom up; each line is a piece of the map.
#
# - `forward` is for training: the whole target is known, and one call scores all its positions.
# - `encode` and `decode` are separate because writing needs them so. The source is read once, the target grows word by word.
# - `decode` asks for the source as well as the memory. It needs the *tokens*, to know where the padding is. The memory does not tell: the encoder has turned padding into vectors like any other.
# - `embed` is shared. The same table, the same positions and the same dropout serve both sides.
#
# And there is no softmax. The logits go to the loss, which has it inside, or to a search, which wants the largest and gets it without ([Embeddings](07_embeddings.ipynb) explains both).
#
# ## A forward pass with every shape named
#
# We send two sentences through a toy model whose sizes are all different: $B = 2$, $S = 5$, $T = 3$, $D = 8$, $H = 4$, inner width 32, $V = 11$. Then a size tells which axis it is. A hook notes what leaves each part.

# %%
axes = {2: "B", 5: "S", 3: "T", 8: "D", 4: "H", 32: "F", 11: "V"}
toy = TransformerConfig(vocabulary_size=11, layers=2, d_model=8, d_ff=32, heads=4, dropout=0.0)
torch.manual_seed(0)
model = Transformer(toy)
source = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 4, 6], [BOS, 5, PAD]])


def note(name):
    return lambda part, _, out: print(f"{name:40} {' '.join(axes[n] for n in out.shape)}")


encoder, decoder = "encoder.layers.0.", "decoder.layers.0."
shown = ["embedding", "positions", encoder + "self_attention.query", encoder + "self_attention"]
shown += [encoder + "feed_forward.linear1", encoder + "feed_forward", encoder[:-1], "encoder"]
shown += [decoder + "cross_attention" + part for part in (".query", ".key", ".value", "")]
for name in [*shown, "decoder"]:
    model.get_submodule(name).register_forward_hook(note(name))
note("logits")(model, None, model(source, target))

# %% [markdown]
# Three things to see. The stream keeps its shape from bottom to top; only inside a sub-layer is it anything else. Cross-attention has queries of length $T$ and keys of length $S$, and what comes out has the length of the queries. And at the end every target position has a score for every word of the vocabulary.

# %% [markdown]
# ## Why not build one layer and copy it?
#
# It is a popular shortcut: make a layer, then `copy.deepcopy` it five times. The copies have memory of their own, so they may drift apart. But they start as one, and what starts equal is pushed in similar directions. We measure it. In a small model of four layers, how similar are the gradients of the feed-forward matrices of different layers at the first step?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-copied-layers", "caption": "Do copied layers learn the same? Cosine of the first gradients of two encoder layers, for the matrix $W_1$ of their networks. Left: layers made one by one; each is pushed in a direction of its own. Right: layers copied from the first; neighbors are pushed the same way to a large part. Purple is positive."}}


def gradient_cosines(copied):
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=100, layers=4, dropout=0.0)).double()
    for layer in model.encoder.layers[1:] if copied else ():
        layer.load_state_dict(model.encoder.layers[0].state_dict())
    source, target, says = torch.randint(4, 100, (3, 16, 9))
    F.cross_entropy(model(source, target).flatten(0, 1), says.flatten()).backward()
    first = [layer.feed_forward.linear1.weight.grad.flatten() for layer in model.encoder.layers]
    return torch.stack([F.cosine_similarity(g, torch.stack(first)) for g in first])


cosines = {"made one by one": gradient_cosines(False), "copied": gradient_cosines(True)}
assert cosines["made one by one"][0, 1].abs() < 0.1 and cosines["copied"][0, 1] > 0.3
layers = [f"layer {i}" for i in range(1, 5)]
look = {"signed": True, "cell": 44}
charts = [heatmap(m, layers, layers, titles=("", name), **look) for name, m in cosines.items()]
show(alt.hconcat(*charts), alt="Off the diagonal: near 0 if made one by one, far above if copied.")

# %% [markdown]
# The copies do drift apart in the end. It is a poor start and not a fatal one, and that is why nobody finds it. A relative of this mistake is even quieter. Many codes copy the layers and *then* draw every matrix anew, which cures the matrices and leaves out the biases, since they are no matrices:

# %%
first = nn.Linear(512, 2048)
clones = [copy.deepcopy(first) for _ in range(5)]
for clone in clones:
    nn.init.xavier_uniform_(clone.weight)
print("equal matrices:", any(torch.equal(clone.weight, first.weight) for clone in clones))
print("equal biases:  ", all(torch.equal(clone.bias, first.bias) for clone in clones))

# %% [markdown]
# Our biases start equal, too, but at zero, by choice. Zeros prefer no direction. Here all six layers start from the same random biases, and nobody asked for it.
#
# ## Is it a Transformer?
#
# PyTorch has one, written by other people. We give `nn.Transformer` our weights and feed both a padded batch. Their parameters have other names, and the three input projections lie in one matrix:


# %%
NAMES = {
    "self_attention": "self_attn", "cross_attention": "multihead_attn", "output": "out_proj",
    "feed_forward.linear1": "linear1", "feed_forward.linear2": "linear2", "gain": "weight",
    "residuals.0.norm": "norm1", "residuals.1.norm": "norm2", "residuals.2.norm": "norm3",
    ".query.weight": ".in_proj_weight", ".key.weight": ".in_proj_weight",
    ".value.weight": ".in_proj_weight",
}  # fmt: skip


def for_pytorch(model):
    """Return our weights under the names of nn.Transformer; projections of one name are stacked."""
    theirs = {}
    for name, weight in model.state_dict().items():
        for ours, their in NAMES.items():
            name = name.replace(ours, their)
        theirs[name] = torch.cat([theirs[name], weight]) if name in theirs else weight
    return theirs


# %% [markdown]
# ### Why not simply use `nn.Transformer`?
#
# One can, and then has to know what it leaves out and where it differs:
#
# | | ours, as in the paper | `nn.Transformer` |
# |---|---|---|
# | embedding, positions, output | inside | outside, to be written |
# | masks | made from the tokens | made by the caller, and True *hides* |
# | post-norm, end of each stack | nothing | one more norm |
# | biases in attention | none | yes, at zero in the beginning |
# | epsilon of the norms | $10^{-6}$ | $10^{-5}$ |
# | dropout | on updates | also on the weights of attention and after the ReLU |
#
# For the comparison we take its extra norms out, set epsilon and dropout, and turn the masks round.

# %%
import warnings

warnings.filterwarnings("ignore", message="enable_nested_tensor")  # speaks of a path not taken here
for pre_norm in (False, True):
    model = Transformer(replace(toy, pre_norm=pre_norm)).double()
    for parameter in model.parameters():  # so that no gain is 1 and no bias 0
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.Transformer(
        8, 4, 2, 2, 32, dropout=0.0, batch_first=True, norm_first=pre_norm, layer_norm_eps=1e-6
    ).double()
    if not pre_norm:
        theirs.encoder.norm = theirs.decoder.norm = None
    left = theirs.load_state_dict(for_pytorch(model), strict=False)
    assert left.unexpected_keys == ["embedding.weight"]
    assert all("attn" in name and name.endswith("bias") for name in left.missing_keys)
    hidden = {"src": source == PAD, "tgt": target == PAD, "memory": source == PAD}
    states = theirs(
        model.embed(source),
        model.embed(target),
        tgt_mask=torch.ones(3, 3).triu(1).bool(),
        **{f"{name}_key_padding_mask": mask for name, mask in hidden.items()},
    )
    torch.testing.assert_close(model(source, target), F.linear(states, model.embedding.weight))
    print("pre-norm: " if pre_norm else "post-norm:", "equal to nn.Transformer")

# %% [markdown]
# The check is strict: all parameters are random, gains and biases too, and no weight is left over on either side but those named. A norm, a mask or a residual in another place would show.
#
# ## Padding does not count, the future does not leak
#
# That was one reference on one batch. Two properties should hold for *any* batch, and they hold if every mask has reached its place. A sentence must get the same logits however much padding its batch adds. And changing a target word must leave all logits before it alone.

# %%
model = Transformer(toy).double()
logits = model(source, target)
more = F.pad(source, (0, 6), value=PAD), F.pad(target, (0, 3), value=PAD)
torch.testing.assert_close(model(*more)[:, :3], logits)
torch.testing.assert_close(model(source[1:, :3], target[1:, :2]), logits[1:, :2])
for t in (1, 2):
    other = target.clone()
    other[0, t] = 7
    changed = model(source, other)[0]
    torch.testing.assert_close(changed[:t], logits[0, :t])
    assert not torch.allclose(changed[t:], logits[0, t:])
print("padding does not count, the future does not leak")

# %% [markdown]
# "Only the decoder needs a mask" is a common belief. Let us take the padding mask away from the encoder and from cross-attention, and append six paddings to sentences of ten words:

# %%
torch.manual_seed(0)
wide = Transformer(preset("small", vocabulary_size=1000, dropout=0.0))
words, written = torch.randint(4, 1000, (2, 64, 10))
padded = F.pad(words, (0, 6), value=PAD)
with torch.no_grad():
    right = wide(padded, written)
    memory = wide.encoder(wide.embed(padded))
    states = wide.decoder(wide.embed(written), memory, target_mask(written), None)
    off = wide.embedding.logits(states) - right
print("off by more than a quarter of the logits' spread:", (off.std() > right.std() / 4).item())

# %% [markdown]
# The logits have moved because of positions that hold no word.
#
# ## The target, shifted by one
#
# The model learns to say the next word. In training it is given a whole target and asked, at each position, for the word that follows. So what it reads and what it must say are the same sentence, one place apart. Both come from one row that begins with `<s>` and ends with `</s>`:

# %%
sentence = torch.tensor([[BOS, 5, 9, 4, EOS]])
print("decoder reads:", sentence[:, :-1].tolist()[0])
print("must say:     ", sentence[:, 1:].tolist()[0])

# %% [markdown]
# Say 5, 9, 4 are *the cat sleeps*. One pass through the decoder then trains on four questions at once:
#
# | position | reads | may look at | must say |
# |:---:|---|---|---|
# | 0 | `<s>` | `<s>` | the |
# | 1 | the | `<s>` the | cat |
# | 2 | cat | `<s>` the cat | sleeps |
# | 3 | sleeps | `<s>` the cat sleeps | `</s>` |
#
# The paper's drawing has "outputs (shifted right)" at the entry of the decoder: the `<s>` in front pushes every word one place to the right.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-shift", "caption": "What does the decoder read, and when? Below each decoder what goes in, above what must come out. Left, training: the target is known, so all positions run at once, and the causal mask hides what lies to the right. Right, use: one step at a time, and each word that comes out (solid arrow back) is the next to go in."}}


def positions_of(x, reads, says, fed_back):
    yield box(x, 90, 310, 40, "decoder")
    for i, (read, said) in enumerate(zip(reads, says)):
        at = x + 40 + 77 * i
        yield arrow([(at, 168), (at, 132)]) + words_at(at, 184, read)
        yield arrow([(at, 90), (at, 56)]) + words_at(at, 46, said)
        if fed_back and i < 3:
            yield arrow([(at + 24, 42), (at + 38, 42), (at + 38, 180), (at + 50, 180)], VALUE)


reads, says = ["<s>", "the", "cat", "sleeps"], ["the", "cat", "sleeps", "</s>"]
parts = [words_at(165, 16, "training: all at once", 15), words_at(535, 16, "use: one by one", 15)]
parts += [*positions_of(10, reads, says, False), *positions_of(380, reads, says, True)]
label = "The words read are the words to say, shifted by one; in use each word said is fed back."
show_drawing(parts, 700, 195, alt=label)

# %% [markdown]
# ### Is it fair to show the target to the decoder?
#
# It looks like cheating: the answer is among the inputs. But position $t$ is asked for word $t + 1$ and may look at words up to $t$ only. The causal mask keeps the answer hidden, and the check above proves that it does.
#
# ### Why is the model not fed its own words in training?
#
# It would have to write word by word, one pass after the other, where now one pass does for all. And in the beginning its words are nonsense, so it would learn to continue nonsense. The price is that in use it meets its own mistakes, which it has never seen in training.
#
# ### What if the shift is forgotten?
#
# Then the model is asked for the word that it reads. Let us do both, on sentences of random words. There is nothing to learn in them: eight words, each as likely as the other, so no honest model gets below a loss of $\ln 8 = 2.08$.


# %%
def loss_after_training(shift, steps=30):
    torch.manual_seed(0)
    model = Transformer(replace(toy, vocabulary_size=12, d_model=32))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        source, words = torch.randint(4, 12, (2, 32, 6))
        rows = F.pad(words, (1, 0), value=BOS)
        logits, says = model(source, rows[:, :-1]), rows[:, shift : 6 + shift]
        loss = F.cross_entropy(logits.flatten(0, 1), says.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print("shifted, loss near ln 8:  ", abs(loss_after_training(1) - log(8)) < 0.3)
print("forgotten, loss near zero:", loss_after_training(0) < 0.2)

# %% [markdown]
# Thirty steps, and the loss is almost zero on data that nobody can predict. The loss has never looked better, and the model can only repeat what it hears. When a loss falls too well, look at the shift first.
#
# ### What does the loss look like, position by position?
#
# The loss is the mean of one number for each position, $-\ln p(\text{right word})$. A look ahead at the trained model shows how uneven they are:

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-position-loss", "caption": "Which words are hard to predict? Loss at each position of one reference translation, given the German sentence and all words before, by the trained model that comes with the book. Above, the piece that must be said. A loss of 0.7 means that the right piece got half of the probability."}}
trained, tokenizer = load_pretrained()
german, english = "Ein Hund läuft durch den Schnee.", "A dog runs through the snow."
heard = torch.tensor([[*tokenizer.encode(german), EOS]])
row = torch.tensor([[BOS, *tokenizer.encode(english), EOS]])
with torch.no_grad():
    logits = trained.eval()(heard, row[:, :-1])
losses = F.cross_entropy(logits[0], row[0, 1:], reduction="none")
says = [tokenizer.decode([i]).strip() or "</s>" for i in row[0, 1:].tolist()]
chart = heatmap([losses], ["loss"], says, titles=("", "must say"), limit=4, color=VALUE, cell=56)
assert losses.mean() < 3
show(chart, alt="The loss of each piece of one translation; most are small, a few are not.")

# %% [markdown]
# Where the sentence leaves a choice, between *runs* and *is running* say, even a good model must pay.
#
# ## The loss before training is ln V
#
# A model that knows nothing should give every word about the same chance, $1/V$, and have a loss near $-\ln(1/V) = \ln V$. For $V = 1000$ that is 6.9. It is the first number to check in a training run: if it is much higher, the start is wrong; if it is much lower, the answer leaks.
#
# Ours starts a little higher, for a reason that can be computed. The logits are not all equal at the start: they spread with some variance $s^2$. So the model is a little sure without any reason, and for normally distributed logits the price is half the variance:
#
# $$
# \text{loss} \approx \ln V + \tfrac12 s^2
# $$ (eq-first-loss)
#
# We start the embedding table in four ways. The logits are states of size 1 times the table, so its size decides about $s$.

# %%
small = preset("small", vocabulary_size=1000, dropout=0.0)
starts = {
    "all zero": nn.init.zeros_,
    "Glorot's rule": nn.init.xavier_uniform_,
    "N(0, 1/d_model), ours": lambda table: nn.init.normal_(table, std=small.d_model**-0.5),
    "N(0, 1)": nn.init.normal_,
}
torch.manual_seed(0)
words, rows = torch.randint(4, 1000, (16, 12)), torch.randint(4, 1000, (16, 13))
model = Transformer(small)
for name, start in starts.items():
    with torch.no_grad():
        start(model.embedding.weight)
        logits = model(words, rows[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, rows[:, 1:].flatten()).item()
    half = logits.var(dim=1).mean().item() / 2
    print(f"{name:22} ln V + {half:5.1f} = {log(1000) + half:5.1f}   loss {loss:4.1f}")

# %% [markdown]
# Our start costs half a nat, as the formula says. With numbers of size 1, PyTorch's default for an embedding, the variance is 256, the formula no longer holds, since one word takes all, and the loss starts at over fifty. Training would have to repair that first.
#
# ### An untrained model that repeats what it hears
#
# The shared table has a curious effect. In a pre-norm model the word that goes in stays on the stream. The output looks for the row most like the stream, and that is the row of the same word. So before any training, the model repeats each word that it reads. Post-norm shrinks the stream at each of nine norms on the way, and most of the word is lost in it:

# %%
for pre_norm in (False, True):
    torch.manual_seed(0)
    fresh = Transformer(replace(small, pre_norm=pre_norm))
    with torch.no_grad():
        repeats = (fresh(words, rows).argmax(dim=-1) == rows).float().mean()
    print("pre-norm: " if pre_norm else "post-norm:", "repeats its input:", (repeats > 0.9).item())

# %% [markdown]
# ## Counting parameters
#
# To count, a model need not exist. On PyTorch's `meta` device tensors have shapes but no memory, so even `big` is made at once. A shared table is one parameter and counts once.


# %% tags=["export"]
def parameter_count(model: nn.Module | TransformerConfig) -> int:
    """Count the parameters of a model, or of the model that a configuration describes."""
    if isinstance(model, TransformerConfig):
        with torch.device("meta"):
            model = Transformer(model)
    return sum(parameter.numel() for parameter in model.parameters())


# %% [markdown]
# A second count goes by hand. An attention has four matrices of $512 \times 512$, a feed-forward network two of $512 \times 2048$ with their biases, a norm a gain and a bias:

# %%
a, f, n = 4 * 512**2, 2 * 512 * 2048 + 2048 + 512, 2 * 512
by_hand = 37_000 * 512 + 6 * (a + f + 2 * n) + 6 * (2 * a + f + 3 * n)
assert parameter_count(preset("base")) == by_hand
print(f"attention {a:,}, network {f:,}, norm {n:,}: together {by_hand:,}")

# %% [markdown]
# ### Where do they sit?
#
# So base has 63.05 million parameters. The paper says 65; the next section is about the difference. Here is where they are:
#
# | where | how many | each | together | share |
# |---|---|---|---|---|
# | the one table | 1 | 37,000 × 512 | 18.94 M | 30 % |
# | encoder, self-attention | 6 | 1.05 M | 6.29 M | 10 % |
# | encoder, feed-forward | 6 | 2.10 M | 12.60 M | 20 % |
# | decoder, self-attention | 6 | 1.05 M | 6.29 M | 10 % |
# | decoder, cross-attention | 6 | 1.05 M | 6.29 M | 10 % |
# | decoder, feed-forward | 6 | 2.10 M | 12.60 M | 20 % |
# | norms | 30 | 1,024 | 0.03 M | 0 % |
#
# In tenths: three for words, three for attention, four for the networks. Answers on the web often count the table twice, once for the input and once for the output. That would be 82 million. In the paper's model the two are one matrix.
#
# The next figure does this for every row of Table 3. Choose what to count; operations come in a later section.


# %%
def flops(c, n):
    """Return multiplications a pair of tokens, by block; for n = 0, the matrices' parameters."""
    d_k, d_v = (width or c.d_model // c.heads for width in (c.d_k, c.d_v))
    attention = (2 * c.d_model + n) * c.heads * (d_k + d_v)
    return {
        "table": c.vocabulary_size * c.d_model,
        "self-attention": 2 * c.layers * attention,
        "cross-attention": c.layers * attention,
        "feed-forward": 2 * c.layers * 2 * c.d_model * c.d_ff,
    }


PAPER = {
    "base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80, "C-d256": 28,
    "C-d1024": 168, "C-ff1024": 53, "C-ff4096": 90, "big": 213,
}  # fmt: skip
rows = [name for name in PRESETS if name not in ("tiny", "mini", "small")]
for name in rows:
    biases_and_norms = parameter_count(preset(name)) - sum(flops(preset(name), 0).values())
    assert biases_and_norms < 0.7e6 and (name == "E-learned" or biases_and_norms < 0.3e6)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-parameters", "caption": "Where do the parameters of each row of Table 3 sit, and where does the work go? Choose what is shown. Blocks from left to right, the same in each row: the table, self-attention of both stacks, cross-attention, feed-forward networks; numbers in millions; norms, biases and learned positions, together at most 0.6, are left out. A black tick is the count that the paper gives. Operations are multiplications for one source and one target token, in sentences of the given length."}}
blocks = {"table": RESIDUAL, "self-attention": QUERY, "cross-attention": KEY, "feed-forward": VALUE}


records = [
    {"n": n, "row": name, "block": block, "millions": count / 1e6, "order": i}
    for n in (0, 25, 1000)
    for name in rows
    for i, (block, count) in enumerate(flops(preset(name), n).items())
]
paper = [{"row": name, "millions": millions} for name, millions in PAPER.items()]


def bars(n, title):
    chosen = [r | {"text": f"{r['millions']:.0f}"} for r in records if r["n"] == n]
    scale = alt.Scale(domain=list(blocks), range=list(blocks.values()))
    legend = alt.Legend(title=None, orient="top", symbolType="square")
    x, y = alt.X("millions:Q", stack="zero", title=title), alt.Y("row:N", sort=None, title=None)
    base = alt.Chart(alt.Data(values=chosen), width=520, height=19 * len(rows))
    base = base.encode(x, y, order="order:Q")
    color = alt.Color("block:N", scale=scale, sort=None, legend=legend)
    ticks = alt.Chart(alt.Data(values=paper if n == 0 else []))
    ticks = ticks.mark_tick(color=INK, thickness=2.5, size=17).encode(x="millions:Q", y=y)
    readable = alt.condition("datum.millions > 5", alt.value("white"), alt.value("transparent"))
    numbers = base.mark_text(align="right", dx=-3, fontSize=10)
    return (
        base.mark_bar(size=15).encode(color) + numbers.encode(text="text:N", color=readable) + ticks
    )


label = "Table and networks hold most; at 1,000 tokens the attentions work most."
steps = {
    "parameters": (bars(0, "millions of parameters"), label),
    "operations, 25 tokens": (bars(25, "millions of multiplications"), label),
    "operations, 1,000 tokens": (bars(1000, "millions of multiplications"), label),
}
show_steps(steps, "Show what?")

# %% [markdown]
# Rows A have the same blocks as base: heads cost nothing. Rows D change nothing that is counted. The narrow model, C-d256, is mostly table, and the wide ones are mostly networks.
#
# The rows for which the paper gives no number must come out as we expect them, and do: A and D have exactly the base model's count, and learned positions add $1024 \cdot 512$.

# %%
assert all(parameter_count(preset(name)) == by_hand for name in PRESETS if name[0] in "AD")
assert parameter_count(preset("E-learned")) - by_hand == 1024 * 512
for name in ("tiny", "mini", "small"):
    print(f"{name:6} {parameter_count(preset(name, vocabulary_size=4000)):,}")

# %% [markdown]
# ## Why do the counts differ from the paper's?

# %%
counts = {name: parameter_count(preset(name)) / 1e6 for name in PAPER}
for name, paper in PAPER.items():
    print(
        f"{name:9} ours {counts[name]:6.2f}   paper {paper:3}   difference {paper - counts[name]:5.2f}"
    )

# %% [markdown]
# Differences *between* rows test the model's shape without its table. The paper goes from 2 layers to 8 and adds 44 million: ours adds 44.10. From $d_\text{ff}$ 1024 to 4096 it adds 37, ours 37.79. From $d_k$ 16 to 64 it adds 7, ours 7.08. Every one of these agrees within the rounding. So the layers are right, and what we miss is outside them.
#
# What is missing grows with the width: about 1.2 million at 256, 2 at 512, 4 at 1024. A table grows in just that way. Let us ask, as a hypothesis, how many more rows of $d_\text{model}$ numbers each row of Table 3 would need, if the paper rounds to the nearest million.


# %%
def missing_rows(name):
    """Return the smallest and the largest number of extra table rows that give the paper's count."""
    width, ours = preset(name).d_model, parameter_count(preset(name))
    low, high = (PAPER[name] * 1_000_000 + half - ours for half in (-500_000, 500_000))
    return -(-low // width), high // width


intervals = {name: missing_rows(name) for name in PAPER}
ten = [interval for name, interval in intervals.items() if name != "big"]
low, high = max(low for low, _ in ten), min(high for _, high in ten)
print("all but big:", low, "to", high, " big:", intervals["big"])
assert low <= high and intervals["big"][1] < 0

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-missing-rows", "caption": "How many more table rows would give the paper's parameter count? Each bar spans what rounding to a million allows; 0 is our vocabulary of 37,000. The green band is where ten rows agree; big (orange, outlined) stands apart."}}
records = [{"row": name, "from": a, "to": b} for name, (a, b) in intervals.items()]
base = alt.Chart(alt.Data(values=records), width=460, height=230)
y, band = alt.Y("row:N", sort=None, title=None), [{"from": low, "to": high}]
x = alt.X("from:Q", title="extra rows of d_model numbers")
outlined = alt.condition("datum.row == 'big'", alt.value(KEY), alt.value(QUERY))
filled = alt.condition("datum.row == 'big'", alt.value(0), alt.value(0.5))
span = base.mark_bar(fill=QUERY, size=11).encode(
    x, y, x2="to:Q", stroke=outlined, fillOpacity=filled
)
agree = alt.Chart(alt.Data(values=band)).mark_rect(color=VALUE, opacity=0.4).encode(x, x2="to:Q")
zero = alt.Chart(alt.Data(values=[{"from": 0}])).mark_rule(color=INK).encode(x)
show(
    agree + span + zero,
    alt="Ten bars overlap near 4,100 extra rows; the bar of big lies below zero.",
)

# %% [markdown]
# Ten of the eleven counts agree with one another: all are as if the model had some 4,004 to 4,208 rows more than our 37,000. Three remarks.
#
# - We know that this is arithmetic. What the rows are, we do not know. A vocabulary of about 41,100 would do, but the paper says about 37,000. So would 37,000 words and a table of 4,096 positions, and nothing in the paper speaks for that. If the paper cut off the decimals in place of rounding them, the interval moves up by about a thousand rows.
# - `big` does not fit. The paper's 213 is *below* our 214.2 million; it would need a vocabulary near 36,000. No single table explains all eleven rows.
# - Biases do not explain it. Giving all 18 attentions of the base model theirs adds 36,864 parameters, and a bias on the output adds 37,000: together 0.07 million.
#
# We keep 37,000, and a base model of 63 million.
#
# ## What does a sentence cost?
#
# The function `flops` above counts multiplications, and it rests on one thought. In a matrix product, each number of the matrix is used once for each token that passes. So a token costs as many multiplications as there are parameters on its way. For one source token and one target token through the base model:
#
# | step | multiplications | |
# |---|---|---|
# | encoder, source token | $6 \cdot (4 \cdot 512^2 + 2 \cdot 512 \cdot 2048)$ | 18.87 M |
# | keys and values of the memory | $6 \cdot 2 \cdot 512^2$ | 3.15 M |
# | decoder, target token | $6 \cdot (6 \cdot 512^2 + 2 \cdot 512 \cdot 2048)$ | 22.02 M |
# | output, target token | $37{,}000 \cdot 512$ | 18.94 M |
# | together | | 62.98 M |
#
# That is every matrix once: 63.05 million parameters without biases and norms. The embedding at the entry costs nothing, it is a lookup; the same table at the exit is the largest single product of all.
#
# Only one thing does not show in the parameters: attention itself, whose two products take $2 \cdot 512 \cdot n$ multiplications a token in sentences of $n$ tokens. With 18 attentions that is $18{,}432\,n$. At 25 tokens, 0.46 M, it is less than 1 %. It overtakes everything else at $62.98 \text{ M} / 18{,}432 = 3{,}417$ tokens. The cost that grows with the square of the length is no concern of sentences.
#
# PyTorch can count for itself what a pass multiplies. We compare on a toy with uneven widths, without making any numbers:

# %%
from torch.utils.flop_counter import FlopCounterMode

uneven = replace(toy, d_k=3, d_v=7)
with torch.device("meta"), FlopCounterMode(display=False) as counter:
    model, tokens = Transformer(uneven), torch.zeros(1, 25, dtype=torch.long)
    for module in model.modules():
        module.keep_weights = True  # the readable attention: two products that can be counted
    model(tokens, tokens)
assert counter.get_total_flops() == 2 * 25 * sum(flops(uneven, 25).values())
print(f"{counter.get_total_flops():,} operations: each multiplication comes with an addition")

# %% [markdown]
# ### And the whole training?
#
# Each multiplication comes with an addition, so a pair of tokens costs $2 \cdot 63 = 126$ million operations. The way back costs twice the way forward, for the gradient of the input and of the weights: 378 million in all. The paper trains on batches of 25,000 source and 25,000 target tokens, for 100,000 steps:
#
# $$
# 3.78 \cdot 10^8 \times 25{,}000 \times 100{,}000 = 9.5 \cdot 10^{17}
# $$ (eq-training-cost)
#
# Its Table 2 says $3.3 \cdot 10^{18}$, three and a half times as much. There is no contradiction. The paper multiplies time by what the machine could do: 12 hours, 8 GPUs, $9.5 \cdot 10^{12}$ operations a second, $43{,}200 \cdot 8 \cdot 9.5 \cdot 10^{12} = 3.3 \cdot 10^{18}$. So its GPUs were busy with the model's own products for $1/3.5 = 29\,\%$ of what they could do, which is not unusual.
#
# ### How much memory does it take?
#
# Count in numbers of four bytes. The weights of base take $63 \cdot 4 = 252$ MB. Training keeps three more copies of that size, the gradients and two running means of [Adam](16_schedule.ipynb): about 1 GB. That is the small part.
#
# The large part is what the way back needs of the way forward. The largest single tensor is the last: logits for 25,000 target tokens are $25{,}000 \cdot 37{,}000 \cdot 4 = 3.7$ billion bytes, almost fifteen times the weights. If a training runs out of memory at the loss, this is why. Fewer tokens in a batch help, and so does a smaller vocabulary; a narrower model hardly does.
#
# ## Writing a sentence
#
# The model scores next words; somebody has to choose. The simplest way takes the best one each time and feeds it back in, as in the right half of the drawing above. This is **greedy decoding**. It starts at `<s>`, and a sentence is done at `</s>` or when it is 50 tokens longer than its source, the paper's limit (section 6.1).
#
# Decoding wants dropout off. Forgetting `model.eval()` is among the most common mistakes, and leaving it on for the rest of the training is the next. A context manager does both ways.


# %% tags=["export"]
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout and gradients off inside the block; afterwards each part is as before."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:
            module.training = training


# %% [markdown]
# The block of `with evaluating(model):` runs where `yield` stands. What comes after `finally` runs in any case, also when the block fails. Each part gets its own mode back: somebody may have frozen the dropout of the encoder alone.
#
# Sentences of a batch end at different times. A finished one is continued with padding, which nobody attends to, until the last is done. Each limit follows from the sentence's own length. So a translation does not depend on its neighbors in the batch.


# %% tags=["export"]
def greedy_decode(
    model: Transformer, source: Tensor, max_extra_tokens: int = 50
) -> list[list[int]]:
    """Write the best next word until `</s>`, or max_extra_tokens words more than the source has.

    Takes source tokens (B, S). Returns a list of ids for each sentence, without `<s>` and `</s>`.
    Readable and slow: each step computes all positions anew.
    """
    limits = ((source != PAD).sum(dim=1) + max_extra_tokens).clamp(max=model.config.max_length)
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
# Here is what it does with a sentence, as long as the model is a good one:
#
# | step | `target` before | last state says | `target` after |
# |:---:|---|---|---|
# | 1 | `<s>` | the | `<s>` the |
# | 2 | `<s>` the | cat | `<s>` the cat |
# | 3 | `<s>` the cat | sleeps | `<s>` the cat sleeps |
# | 4 | `<s>` the cat sleeps | `</s>` | `<s>` the cat sleeps `</s>` |
#
# The encoder runs once, before the loop. In the loop, `target` grows by a column, and of the states only the last is of use: the others were answered in earlier steps. That is why this version is slow. A sentence of $n$ words computes $1 + 2 + \dots + n$ positions where $n$ would do, and [Decoding](19_decoding.ipynb) will keep what can be kept.
#
# An untrained model writes nonsense, but it must write the same nonsense for a sentence alone and in a batch. We check that, and that every step is what a full pass over its own output says.

# %%
model = Transformer(toy).double().train()
together = greedy_decode(model, source, max_extra_tokens=6)
alone = [greedy_decode(model, row[row != PAD][None], max_extra_tokens=6)[0] for row in source]
assert together == alone and model.training
for row, words in zip(source, together):
    logits = model(row[row != PAD][None], torch.tensor([[BOS, *words[:-1]]]))
    logits[..., [PAD, BOS]] = -torch.inf
    assert logits.argmax(dim=-1)[0].tolist() == words
print("the same words alone, in a batch and in one pass")

# %% [markdown]
# ## Questions that come up
#
# **Must encoder and decoder have the same number of layers?** No. The decoder reads the last output of the encoder and does not care how it came about. The paper takes six and six, and has no row that tries anything else. Neither has our configuration.
#
# **How long may a sentence be?** As long as `max_length`, the rows of the position table. No matrix depends on the length. Whether a model makes sense of lengths that it never met in training is another matter ([Positional encoding](08_positional_encoding.ipynb)).
#
# **Why does the model give $T$ predictions, when writing needs one?** Because training uses them all, and they cost one pass. In use, all but the last are known already.
#
# **Where are the model's words for "source" and "target"?** There are none. Both languages share one vocabulary and one table, and nothing marks on which side a token stands. The two stacks have weights of their own, and that is enough.
#
# **Could one stack do all of it?** Yes: a decoder alone, which reads source and target as one long text, is how most large language models are built. It has the same parts, without cross-attention.
#
# ## What to remember
#
# - One frozen configuration; wrong numbers fail when it is made and say what would do.
# - Masks follow from the tokens, inside the model. Padding does not count and the future does not leak.
# - What the decoder reads and what it must say are one row, shifted by one. Without the shift, the loss falls to zero and means nothing.
# - Before training the loss is near $\ln V$; with this start, half a nat above.
# - Base has 63.05 million parameters: three tenths in the table, three in attention, four in the networks. The layers agree with the paper's counts; the last two million are open.
# - A token costs about as many multiplications as there are parameters on its way.
#
# ## Exercises
#
# **1. By hand.** How many parameters does one more layer, in encoder and decoder, add to base? Use the counts of an attention, a network and a norm.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three attentions, two networks, five norms: 3,145,728 + 4,199,424 + 5,120.
more = parameter_count(preset("base", layers=7)) - parameter_count(preset("base"))
print(f"{more:,}")
assert more == 3 * a + 2 * f + 5 * n == 7_350_272

# %% [markdown]
# **2. By hand.** How large is row C-d1024 with three separate tables in place of one?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Two tables more: 2 x 37,000 x 1024 = 75.8 million.
print(f"{(parameter_count(preset('C-d1024')) + 2 * 37_000 * 1024) / 1e6:.1f} million")

# %% [markdown]
# **3. Write it yourself.** Write `shift(target)`, which takes rows from `<s>` to `</s>` and returns what the decoder reads and what it must say. Then think of a row that ends with padding: what does your function ask for there, and what must the loss do about it?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A padded position is asked for <pad>. The loss must leave it out: F.cross_entropy(..., ignore_index=PAD).


def shift(target):
    return target[:, :-1], target[:, 1:]


reads, says = shift(torch.tensor([[BOS, 5, 9, EOS], [BOS, 7, EOS, PAD]]))
assert torch.equal(reads[:, 1:], says[:, :-1])
print("reads", reads.tolist(), " says", says.tolist())

from annotated_transformer import check

print(check("shift", shift))

# %% [markdown]
# **4. Write it yourself.** Count the parameters of any configuration with arithmetic only, biases of attention and learned positions included.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Matrices as in `flops`, then biases of the networks, norms (pre-norm has two more), biases of attention.


def my_count(c):
    d_k, d_v = (width or c.d_model // c.heads for width in (c.d_k, c.d_v))
    norms = 5 * c.layers + 2 * c.pre_norm
    biases = 3 * c.layers * c.attention_bias * (c.heads * (2 * d_k + d_v) + c.d_model)
    biases += 2 * c.layers * (c.d_ff + c.d_model) + 2 * norms * c.d_model
    learned = c.max_length * c.d_model * (c.positions == "learned")
    return sum(flops(c, 0).values()) + biases + learned


odd = preset("B-dk16", attention_bias=True, pre_norm=True, positions="learned")
assert all(my_count(c) == parameter_count(c) for c in (odd, preset("big"), preset("base")))
print("equal for base, big and an odd one")

# %% [markdown]
# **5. What breaks if** `greedy_decode` does not forbid `<pad>`? Think of a model that writes it once, in the middle of a sentence.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The next steps hide that position, since the mask takes every <pad> for filling: the model cannot see one of its
# own words. And the last line drops it from the output, so the text has a hole. Nothing fails.
seen = target_mask(torch.tensor([[BOS, 5, PAD, 6]]))[0, 0, -1]
print("what the last word may look at:", seen.tolist())
assert not seen[2]

# %% [markdown]
# **6. What breaks if** the decoder is trained with its causal mask missing? Guess the loss after a few steps on random words before you run it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The word to say stands one place to the right, and now it can be seen. So the loss may fall below ln V on random
# words, as with the forgotten shift. Here is the proof that the answer leaks: a later word changes an earlier logit.
model, hide = Transformer(toy).double(), padding_mask(source)
other = target.clone()
other[0, 2] = 7
memory = model.encode(source)
states = [model.decoder(model.embed(t), memory, padding_mask(t), hide) for t in (target, other)]
print(
    "a later word changes earlier states:", not torch.allclose(states[0][0, :2], states[1][0, :2])
)

# %% [markdown]
# ## Sources
#
# The rows of Table 3, the training cost and the length limit are from {cite:t}`vaswani2017attention`. The rule for the first weights is from {cite:t}`glorot2010understanding`, the shared table from {cite:t}`press2017using`.
