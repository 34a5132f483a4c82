# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands


# %% [markdown]
# # The Transformer
#
# This chapter puts the whole model together from one configuration, checks and counts it, and lets it learn its first task (sections 3.1 to 3.4 of the paper).
#
# It has two stacks, and one table that is used three times:
#
# $$
# M = \text{Encoder}(\text{embed}(\text{source})), \qquad
# \text{logits} = \text{Decoder}(\text{embed}(\text{target}), M)\, E^\top
# $$ (eq-transformer)
#
# Both sides share `embed`, here the scaled rows of the table $E$ plus positions; transposed, the same table scores every word of the vocabulary. The class `Transformer` further down is these two lines with masks. All its parts exist, and this is where each goes:

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the imports of the demonstrations", "code_prompt_hide": "Hide the imports"}
import warnings
from dataclasses import replace
from math import log

import altair as alt
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import preset
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.toolkit.presets import TABLE_3, parameter_count
from book.figures import INK, KEY, POSITION, QUERY, RESIDUAL, VALUE, arrow, box
from book.figures import heatmap, plus, show, show_drawing, show_steps, stream
from book.figures import words_at

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-map", "caption": "Where am I, and what shape is it? The paper's Figure 1 for the base model: encoder on the left, decoder on the right, read from the bottom up. Each box opens the chapter that builds it; sub-layers name the shape that comes out, with B sentences, S source and T target positions, D = 512 numbers a word and |V| = 37,000 words, and how many numbers they learn. Blue, orange and green arrows carry queries, keys and values, pink ones positions. Inside a layer every plus is followed by a norm, which the paper draws as one box, Add & Norm; the two plus signs at the bottom are not. The dashed frames are stacked six times, and their counts are for one layer."}}
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
    (414, 404, "(B, T, D)", "self-attention", "target"),
]
parts = ['<g transform="translate(0,-40)">']
for x, top, name in ((54, 232, "encoder"), (414, 132, "decoder")):
    place = f'x="{x - 42}" y="{top}" width="340" height="{494 - top}" rx="8"'
    parts.append(f'<rect {place} fill="none" stroke="{INK}" stroke-dasharray="2 4"/>')
    parts += [
        stream([(x, 610), (x, top - 36)]),
        words_at(x + 80, top - 8, f"6 × {name} layer"),
    ]
    parts.append(plus(x, 534))
for x, y, shape, name, mask in sublayers:
    count, link, colors = kinds[name]
    parts += [arrow([(x + 60, y), (x + 10, y)]), plus(x, y)]
    parts.append(box(x - 34, y - 38, 68, 22, "norm", link="09_layers.html"))
    for i, color in enumerate(colors):
        parts.append(arrow([(x, y + 26 + 9 * i), (x + 60, y + 26 + 9 * i)], color))
    parts.append(box(x + 60, y - 12, 160, 68, name, f"{shape} · {count}", link))
    parts.append(
        box(x + 226, y + 11, 66, 22, mask, link="04_masks.html") if mask else ""
    )
parts += [
    arrow([(54, 196), (54, 70), (366, 70), (366, 330), (474, 330)], KEY),
    arrow([(54, 196), (54, 64), (360, 64), (360, 339), (474, 339)], VALUE),
    words_at(200, 56, "memory (B, S, D)"),
    arrow([(140, 534), (64, 534)], POSITION)
    + arrow([(330, 534), (404, 534)], POSITION),
    box(140, 515, 190, 38, "positions", "not learned", "08_positional_encoding.html"),
    box(12, 584, 700, 42, "embedding: one table", "18.94 M", "07_embeddings.html"),
    box(
        474,
        60,
        190,
        42,
        "output: the same table",
        "logits (B, T, |V|)",
        "07_embeddings.html",
    ),
    arrow([(414, 98), (414, 80), (474, 80)]),
    words_at(54, 645, "source (B, S)"),
    words_at(414, 645, "target (B, T), shifted right") + "</g>",
]
show_drawing(
    parts,
    724,
    615,
    alt="The base model as boxes, each with shape, parameters and a link.",
)

# %% [markdown]
# Let the source be *die schwarze Katze mag Fisch*, and let *the black cat* be written already.
#
# 1. **Words become vectors.** The five German words and `</s>` are six ids. The table gives each its row, a position is added, and six vectors of 512 numbers enter the encoder.
# 2. **The encoder reads.** In each of six layers every word fetches what it needs from the others and then works on what it has. Six vectors come out, full of their neighbors: the memory.
# 3. **The target goes in.** `<s>` *the black cat* become four vectors in the same way.
# 4. **The decoder reads and looks back.** In each of six layers every target word looks first at those before it, then at the memory. *Cat* has to find out that *Katze* is done and *mag* is next.
# 5. **The last vector becomes a word.** It's compared with all 37,000 rows of the table, and *likes* should fit best. Then `<s>` *the black cat likes* goes in, and so on; the memory stays.

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
from annotated_transformer.positional_encoding import (
    LearnedPositions,
    Positions,
    SinusoidalPositions,
)

# %% [markdown]
# ## One configuration
#
# Every number that shapes the model has one place. The defaults are the paper's base model, with the paper's letter beside each; what the paper doesn't have is off, but can be turned on to compare ([departures](../book/departures.md#the-model)). The dataclass is frozen, so a model and its configuration can't drift apart.


# %% tags=["export"]
@dataclass(frozen=True)
class TransformerConfig:
    """All that shapes the model; the defaults are the paper's base model (section 3).

    Raises ValueError for a size below 1, or heads that do not divide d_model.
    """

    vocabulary_size: int
    layers: int = 6  # N, of the encoder and of the decoder
    d_model: int = 512  # width of the stream
    d_ff: int = 2048  # width inside the feed-forward network
    heads: int = 8  # h
    d_k: int | None = None  # None: d_model / heads
    d_v: int | None = None  # None: d_model / heads
    dropout: float = 0.1  # P_drop, on each sub-layer's output and on the embeddings
    attention_dropout: float = 0.0  # on the attention weights; not in the paper
    relu_dropout: float = 0.0  # inside the feed-forward network; not in the paper
    attention_bias: bool = False  # not in the paper
    pre_norm: bool = False  # not in the paper
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 1024  # positions

    def __post_init__(self) -> None:
        sizes = (self.vocabulary_size, self.layers, self.d_model, self.d_ff, self.heads)
        if min(sizes) < 1:
            raise ValueError(f"all sizes must be at least 1: {self}")
        if self.d_k is None or self.d_v is None:
            head_width(self.d_model, self.heads)


# %% [markdown]
# A **preset** is a name for a few changes. The paper has two models, `base` and `big`; `tiny` and `small` are ours, for laptops.

# %% tags=["export"]
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "d_ff": 512, "heads": 4},
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
}

# %% [markdown]
# The package's `preset("base")` makes a configuration from such a name, [checks every number of it](M_presets.ipynb), and also knows each row of the paper's Table 3.

# %%
for wrong in ({"heads": 7}, {"dropout": 10}, {"positions": "rotary"}):
    try:
        preset("base", **wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## Parts from a configuration
#
# Each layer gets parts of its own. Pass every rate on: a layer that isn't given `c.dropout` keeps its own default of 0.1, and a comparison "without dropout" compares 0.1 with 0.1.


# %% tags=["export"]
def make_attention(c: TransformerConfig) -> MultiHeadAttention:
    """Make one attention of a layer."""
    return MultiHeadAttention(
        c.d_model, c.heads, c.d_k, c.d_v, c.attention_bias, c.attention_dropout
    )


def make_feed_forward(c: TransformerConfig) -> FeedForward:
    """Make the network of a layer."""
    return FeedForward(c.d_model, c.d_ff, c.relu_dropout)


# %% tags=["export"]
def make_encoder(c: TransformerConfig) -> Encoder:
    """Make the encoder, each layer anew."""
    layers = []
    for _ in range(c.layers):
        parts = make_attention(c), make_feed_forward(c)
        layers.append(EncoderLayer(c.d_model, *parts, c.dropout, c.pre_norm))
    return Encoder(layers, c.d_model, c.pre_norm)


def make_decoder(c: TransformerConfig) -> Decoder:
    """Make the decoder, each layer anew."""
    layers = []
    for _ in range(c.layers):
        parts = make_attention(c), make_attention(c), make_feed_forward(c)
        layers.append(DecoderLayer(c.d_model, *parts, c.dropout, c.pre_norm))
    return Decoder(layers, c.d_model, c.pre_norm)


# %%
fifth = preset("base", dropout=0.2)
rates = [
    module.p
    for stack in (make_encoder(fifth), make_decoder(fifth))
    for module in stack.modules()
    if isinstance(module, nn.Dropout) and module.p
]
print(len(rates), "places with dropout in 12 + 18 sub-layers, all at", rates[0])

# %% tags=["remove-cell"]
assert rates == [0.2] * (6 * 2 + 6 * 3)

# %% [markdown]
# ## How weights start
#
# The paper doesn't say. The authors' code, tensor2tensor, uses Glorot's (Xavier's) uniform rule for every matrix, zero for biases, and $\mathcal{N}(0, 1/d_\text{model})$, a standard deviation of $d_\text{model}^{-0.5}$, for the [embedding](07_embeddings.ipynb#why-multiply-by-the-square-root-of-). Glorot's rule {cite:p}`glorot2010understanding` draws the numbers of a matrix uniformly between
#
# $$
# \pm\sqrt{\frac{6}{\text{rows} + \text{columns}}}, \qquad \text{a standard deviation of } \sqrt{\frac{2}{\text{rows} + \text{columns}}}.
# $$ (eq-glorot)
#
# It's a compromise: to keep the size of a signal, the deviation should be $1/\sqrt{\text{rows}}$ on the way forward and $1/\sqrt{\text{columns}}$ on the way back. In a feed-forward network of the base model it's $\sqrt{2/2560} = 0.028$, and a signal of size 1 leaves the first matrix at $0.028\sqrt{512} = 0.63$. ReLU halves the mean square, a factor of 0.71, and the second matrix gives $0.028\sqrt{2048} = 1.26$. Together that's 0.56.


# %% tags=["export"]
def initialize(model: nn.Module) -> None:
    """Start every linear map: Glorot uniform matrix, zero bias. Embeddings start by themselves."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# %%
torch.manual_seed(0)
network = FeedForward(512, 2048)
initialize(network)
print(f"size after the network: {network(torch.randn(1000, 512)).std():.2f}")

# %% [markdown]
# ## The model
#
# Tokens come in, logits come out, and masks follow from the tokens, so the caller need not think of them. With all its parts it is also [one file](../book/model.md), to be read from top to bottom.


# %% tags=["export"]
class Transformer(nn.Module):
    """The model of the paper (section 3), from token ids to logits."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocabulary_size, config.d_model)
        if config.positions == "learned":
            self.positions: Positions = LearnedPositions(
                config.d_model, config.max_length
            )
        else:
            self.positions = SinusoidalPositions(config.d_model, config.max_length)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = make_encoder(config)
        self.decoder = make_decoder(config)
        initialize(self)

    def embed(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Turn tokens (B, T), the first at position offset, into vectors (B, T, D)."""
        return self.dropout(self.positions(self.embedding(tokens), offset))

    def encode(self, source: Tensor) -> Tensor:
        """Read source tokens (B, S); return the memory (B, S, D)."""
        return self.encoder(self.embed(source), padding_mask(source))

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Read target tokens (B, T) beside the memory; return states (B, T, D)."""
        masks = target_mask(target), padding_mask(source)
        return self.decoder(self.embed(target), memory, *masks)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Score every next word: logits (B, T, |V|) at each position of target (B, T)."""
        memory = self.encode(source)
        return self.embedding.logits(self.decode(target, memory, source))


# %% [markdown]
# `forward` is for training, when the whole target is known; `encode` and `decode` are separate because writing reads the source once and lets the target grow. `decode` also takes the source *tokens*, since only they tell where the padding is: in the memory, padding is a vector like any other. There's no softmax; it's [inside the loss](07_embeddings.ipynb#the-softmax-is-in-the-loss).
#
# We send two sentences through a toy whose sizes all differ ($B = 2$, $S = 5$, $T = 3$, $D = 8$, $H = 4$, $d_\text{ff} = 32$, $|V| = 11$), so that a size tells which axis it is. A hook notes what leaves each part.

# %%
axes = {2: "B", 5: "S", 3: "T", 8: "D", 4: "H", 32: "d_ff", 11: "|V|"}
toy = TransformerConfig(
    vocabulary_size=11, layers=2, d_model=8, d_ff=32, heads=4, dropout=0.0
)
torch.manual_seed(0)
model = Transformer(toy)
source = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 4, 6], [BOS, 5, PAD]])


def note(name):
    return lambda part, _, out: print(
        f"{name:40} {' '.join(axes[n] for n in out.shape)}"
    )


encoder, decoder = "encoder.layers.0.", "decoder.layers.0."
shown = ["embedding", encoder + "self_attention", encoder + "feed_forward.linear1"]
shown += [encoder + "feed_forward", "encoder"]
shown += [decoder + "cross_attention" + part for part in (".query", ".key", "")]
for name in [*shown, "decoder"]:
    model.get_submodule(name).register_forward_hook(note(name))
note("logits")(model, None, model(source, target))

# %% [markdown]
# The stream keeps its shape from bottom to top. Cross-attention has queries of length $T$ and keys of length $S$, and its output has the length of the queries.
#
# ### How does the model know which side a token is on?
#
# Nothing in the token says so: both languages share one vocabulary and one table. The two stacks have weights of their own, and that is enough.
#
# ### Could one stack do all of it?
#
# Yes. A decoder alone, which reads source and target as one long text, is how most large language models are built. It has the same parts, without cross-attention.

# %% [markdown]
# :::{admonition} For a second reading: what counts as a matrix, and why layers aren't copied
# :class: dropdown
# Our query projection is 512 by 512 and starts at $\sqrt{2/1024} = 0.044$. PyTorch's `nn.MultiheadAttention` stacks query, key and value into one matrix of 1,536 columns before it applies the rule, and so starts at $\sqrt{2/2048} = 0.031$. The first release of tensor2tensor did the same, and cross-attention's stacked keys and values started at 0.036 there.
#
# A popular shortcut makes one layer and copies it. The copies start equal, and the figure shows that neighbors are then pushed in similar directions. Harvard's *Annotated Transformer* copies and then draws every matrix anew, which leaves only the biases equal. What a copied start costs in the end, we haven't measured.
# :::

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-copied-layers", "caption": "Do copied layers learn the same? Cosine of the first gradients of two encoder layers, for the matrix $W_1$ of their networks. Left: layers made one by one; no two are pushed in similar directions. Right: layers copied from the first; neighbors have a cosine of 0.54 to 0.66, the first and the last 0.01. Purple is positive."}}


def gradient_cosines(copied):
    torch.manual_seed(0)
    model = Transformer(
        preset("tiny", vocabulary_size=100, layers=4, dropout=0.0)
    ).double()
    for layer in model.encoder.layers[1:] if copied else ():
        layer.load_state_dict(model.encoder.layers[0].state_dict())
    source, target, says = torch.randint(4, 100, (3, 16, 9))
    F.cross_entropy(model(source, target).flatten(0, 1), says.flatten()).backward()
    first = [
        layer.feed_forward.linear1.weight.grad.flatten()
        for layer in model.encoder.layers
    ]
    return torch.stack([F.cosine_similarity(g, torch.stack(first)) for g in first])


cosines = {"made one by one": gradient_cosines(False), "copied": gradient_cosines(True)}
assert cosines["made one by one"][0, 1].abs() < 0.1 and cosines["copied"][0, 1] > 0.5
layers = [f"layer {i}" for i in range(1, 5)]
look = {"signed": True, "cell": 44}
charts = [
    heatmap(m, layers, layers, titles=("", name), **look) for name, m in cosines.items()
]
show(
    alt.hconcat(*charts),
    alt="Off the diagonal: near 0 one by one, up to 0.66 if copied.",
)

# %% [markdown]
# ## The target, shifted by one
#
# The model learns to say the next word. In training it's given a whole target and asked at each position for the word that follows, so what it reads and what it must say are one row, shifted by one place:

# %%
sentence = torch.tensor(
    [[BOS, 5, 9, 4, 8, 7, EOS]]
)  # <s> the black cat likes fish </s>
print("decoder reads:", sentence[:, :-1].tolist()[0])
print("must say:     ", sentence[:, 1:].tolist()[0])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-shift", "caption": "What does the decoder read, and when? Below each decoder what goes in, above what must come out. Left, training: the target is known, so all positions run at once, and the causal mask hides from each what lies to its right. Right, translating: one word at a time, and each word that comes out is the next to go in (gray arrows)."}}


def positions_of(x, reads, says, fed_back):
    yield box(x, 90, 330, 40, "decoder")
    for i, (read, said) in enumerate(zip(reads, says)):
        at = x + 28 + 55 * i
        yield arrow([(at, 168), (at, 132)]) + words_at(at, 184, read)
        yield arrow([(at, 90), (at, 56)]) + words_at(at, 46, said)
        if fed_back and i < 5:
            path = [(at + 10, 62), (at + 27, 62), (at + 27, 160), (at + 50, 160)]
            yield arrow(path, RESIDUAL)


words = ["<s>", "the", "black", "cat", "likes", "fish", "</s>"]
parts = [words_at(175, 16, "training: all at once", 15)]
parts += [words_at(535, 16, "translating: one by one", 15)]
parts += [
    *positions_of(10, words, words[1:], False),
    *positions_of(370, words, words[1:], True),
]
label = "The words read are the words to say, shifted by one; when translating each word said is fed back."
show_drawing(parts, 710, 195, alt=label)

# %% [markdown]
# One pass trains on six questions at once: after `<s>` say *the*, after `<s>` *the* say *black*, and so on up to `</s>`. The paper's "outputs (shifted right)" means this: the `<s>` in front pushes every word one place to the right.
#
# ### Is it fair to show the target to the decoder?
#
# It looks like cheating, since the answer is among the inputs. But position $t$ is asked for word $t + 1$ and sees the words up to $t$ only: [the causal mask](04_masks.ipynb#the-causal-mask) hides the rest. Feeding the right words, whatever the model would have written, is **teacher forcing**. It lets one pass serve all positions; its price, [exposure bias](18_training.ipynb#what-the-decoder-sees), is that the model meets its own mistakes only when it translates.
#
# ### If the shift is forgotten
#
# Without the shift, the model is asked for the word that it reads. We train both ways on random sentences from a vocabulary of eight words, where an honest model can't get below $\ln 8 = 2.08$.


# %% tags=["nbval-ignore-output"]
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


honest, forgotten = loss_after_training(1), loss_after_training(0)
print(f"shifted {honest:.2f}, forgotten {forgotten:.2f}")

# %% tags=["remove-cell"]
assert abs(honest - log(8)) < 0.3 and forgotten < 0.2

# %% [markdown]
# Thirty steps, and the loss has almost vanished on data that can't be predicted. When a loss falls too fast, suspect the shift and [the causal mask](04_masks.ipynb#what-a-forgotten-causal-mask-costs): if either is missing, the answer gets through.
#
# ## The same as PyTorch's
#
# PyTorch has a Transformer of its own. We give `nn.Transformer` our weights, feed both a padded batch and compare the logits.
#
# ### Why not simply use `nn.Transformer`?
#
# You can, if you know what it leaves out and where it differs from the paper:
#
# | | ours | `nn.Transformer` |
# |---|---|---|
# | embedding, positions, output | inside | yours to write |
# | masks | made from the tokens | yours to make, and True *hides* |
# | end of each post-norm stack | nothing | one more norm |
# | biases in attention | none | yes, zero at first |
# | epsilon of the norms | $10^{-6}$ | $10^{-5}$ |
# | dropout | on updates | also on attention weights and after the ReLU |
#
# For the comparison we remove its extra norms, set epsilon and dropout, and flip the masks.

# %% tags=["hide-input"]
NAMES = {
    "self_attention": "self_attn",
    "cross_attention": "multihead_attn",
    "output": "out_proj",
    "feed_forward.linear1": "linear1",
    "feed_forward.linear2": "linear2",
    "gain": "weight",
    "residuals.0.norm": "norm1",
    "residuals.1.norm": "norm2",
    "residuals.2.norm": "norm3",
    ".query.weight": ".in_proj_weight",
    ".key.weight": ".in_proj_weight",
    ".value.weight": ".in_proj_weight",
}


def for_pytorch(model):
    """Return our weights under the names of nn.Transformer; projections of one name are stacked."""
    theirs = {}
    for name, weight in model.state_dict().items():
        for ours, their in NAMES.items():
            name = name.replace(ours, their)
        theirs[name] = torch.cat([theirs[name], weight]) if name in theirs else weight
    return theirs


warnings.filterwarnings(
    "ignore", message="enable_nested_tensor"
)  # speaks of a path not taken here
for pre_norm in (False, True):
    model = Transformer(replace(toy, pre_norm=pre_norm)).double()
    for parameter in model.parameters():  # so that no gain is 1 and no bias 0
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.Transformer(
        8,
        4,
        2,
        2,
        32,
        dropout=0.0,
        batch_first=True,
        norm_first=pre_norm,
        layer_norm_eps=1e-6,
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
    difference = (
        (model(source, target) - F.linear(states, model.embedding.weight)).abs().max()
    )
    print(
        "pre-norm: " if pre_norm else "post-norm:", f"logits differ by {difference:.6f}"
    )
    assert difference < 1e-9

# %% [markdown]
# All parameters are random, gains and biases too, so a norm, a mask or a residual in another place would show. Two properties hold for *any* batch once every mask is in place: padding doesn't change a sentence's logits, and a changed target word leaves all logits before it alone. Is it true, as one often reads, that only the decoder needs a mask? We also take the padding mask away from the encoder and cross-attention, and append six paddings to sentences of ten words.

# %% tags=["hide-input"]
torch.manual_seed(0)
wide = Transformer(preset("small", vocabulary_size=1000, dropout=0.0)).double()
words, written = torch.randint(4, 1000, (2, 64, 10))
padded, other = F.pad(words, (0, 6), value=PAD), written.clone()
other[:, 5] = 7
with torch.no_grad():
    right, spread = wide(words, written), wide(words, written).std()
    unmasked = wide.decoder(
        wide.embed(written),
        wide.encoder(wide.embed(padded)),
        target_mask(written),
        None,
    )
    moved = {
        "six paddings, masked": (wide(padded, written) - right).abs().max(),
        "word 5 changed, logits before": (wide(words, other) - right)[:, :5]
        .abs()
        .max(),
        "word 5 changed, logits from there": (wide(words, other) - right)[:, 5:].std(),
        "six paddings, not masked": (wide.embedding.logits(unmasked) - right).std(),
    }
for name, change in moved.items():
    print(f"{name:34} {change / spread:.2f} of the logits' spread")

# %% tags=["remove-cell"]
assert (
    moved["six paddings, masked"] < 1e-9
    and moved["word 5 changed, logits before"] < 1e-9
)

# %% [markdown]
# The last line answers the question: without its mask, padding that holds no word moves the logits by two fifths of their spread.
#
# ## The loss before training is ln |V|
#
# A model that knows nothing should give every word a chance of about $1/|V|$ and have a loss near $\ln |V|$, 6.9 for 1,000 words. Check it first in every run: if it's much higher, the start is wrong; if much lower, the answer leaks. Ours starts a little higher, because its logits already spread with some variance $s^2$. The model is a little overconfident, and since $e^z$ has the mean $e^{s^2/2}$ for normal logits with mean 0, the price is half the variance:
#
# $$
# \text{loss} \approx \ln |V| + \tfrac12 s^2
# $$ (eq-first-loss)

# %% tags=["hide-input"]
small = preset("small", vocabulary_size=1000, dropout=0.0)
starts = {
    "all zero": nn.init.zeros_,
    "Glorot's rule": nn.init.xavier_uniform_,
    "N(0, 1/d_model), ours": lambda table: nn.init.normal_(
        table, std=small.d_model**-0.5
    ),
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
    print(
        f"{name:22} ln |V| + {half:5.1f} = {log(1000) + half:5.1f}   loss {loss:4.1f}"
    )

# %% [markdown]
# Our start costs nearly half a nat, about as the formula says. With numbers of size 1, PyTorch's default for an embedding, one word takes all, the formula no longer holds, and the loss starts above fifty.
#
# The shared table has another effect at the start: a pre-norm model repeats its input. The word that goes in stays on the stream, and the row most like it is its own. Post-norm shrinks it at each of nine norms:

# %% tags=["nbval-ignore-output"]
repeats = {}
for pre_norm in (False, True):
    torch.manual_seed(0)
    fresh = Transformer(replace(small, pre_norm=pre_norm))
    with torch.no_grad():
        same = fresh(words, rows).argmax(dim=-1) == rows
    repeats[pre_norm] = same.float().mean().item()
    form = "pre-norm: " if pre_norm else "post-norm:"
    print(form, f"repeats {repeats[pre_norm]:.0%} of its input")

# %% tags=["remove-cell"]
assert repeats[False] < 0.9 < repeats[True]

# %% [markdown]
# ## Counting parameters
#
# An encoder layer has one attention, one network and two norms, a decoder layer one attention and one norm more; pre-norm adds a norm at the end of each stack. The package's `parameter_count` writes the sum down, so that even `big` costs nothing to count. Here are the numbers for base, and we compare all presets with the models themselves, on PyTorch's `meta` device, where tensors have shapes but no memory:


# %%
attention, network, norm = 4 * 512**2, 2 * 512 * 2048 + 2048 + 512, 2 * 512
encoder_layer = attention + network + 2 * norm
decoder_layer = 2 * attention + network + 3 * norm
by_hand = 37_000 * 512 + 6 * (encoder_layer + decoder_layer)
print(f"attention {attention:,}, network {network:,}, norm {norm:,}")
print(f"together {by_hand:,}")

# %% tags=["remove-cell"]
assert parameter_count(preset("base")) == by_hand
with torch.device("meta"):
    for name in PRESETS:
        weights = Transformer(preset(name)).parameters()
        assert parameter_count(preset(name)) == sum(w.numel() for w in weights)

# %% [markdown]
# Base has 63.05 million parameters. Three tenths are in the table, three in the 18 attentions and four in the 12 networks. The paper says 65.
#
# :::{margin}
# If you find 82 million somewhere, the table was counted twice. Input and output share it.
# :::


# %% tags=["hide-input"]
def multiplications(c, n):
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
    "base": 65,
    "B-dk16": 58,
    "B-dk32": 60,
    "C-N2": 36,
    "C-N4": 50,
    "C-N8": 80,
    "C-d256": 28,
    "C-d1024": 168,
    "C-ff1024": 53,
    "C-ff4096": 90,
    "big": 213,
}
drawn = ["base", *TABLE_3, "big"]
for name in drawn:
    rest = parameter_count(preset(name)) - sum(
        multiplications(preset(name), 0).values()
    )
    assert rest < 0.7e6 and (name == "E-learned" or rest < 0.3e6)
assert all(
    parameter_count(preset(name)) == by_hand for name in TABLE_3 if name[0] in "AD"
)
assert parameter_count(preset("E-learned")) - by_hand == 1024 * 512

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-parameters", "caption": "Where do the parameters of each row of Table 3 sit, and where does the work go? Choose what is shown. Blocks from left to right, the same in each row: the table, self-attention of both stacks, cross-attention, feed-forward networks; numbers in millions. Norms, biases and learned positions, together at most 0.6, are left out. A tick is the paper's count, where it gives one; it lies to the right of every bar but that of big, which it meets. Operations are multiplications for one source and one target token, in sentences of the given length."}}
blocks = {
    "table": RESIDUAL,
    "self-attention": "#7A5BB5",
    "cross-attention": "#B05A9A",
    "feed-forward": "#8C6D1F",
}
records = [
    {"n": n, "row": name, "block": block, "millions": count / 1e6, "order": i}
    for n in (0, 25, 1000)
    for name in drawn
    for i, (block, count) in enumerate(multiplications(preset(name), n).items())
]
paper = [{"row": name, "millions": millions} for name, millions in PAPER.items()]


def bars(n, title):
    chosen = [r | {"text": f"{r['millions']:.0f}"} for r in records if r["n"] == n]
    scale = alt.Scale(domain=list(blocks), range=list(blocks.values()))
    legend = alt.Legend(title=None, orient="top", symbolType="square")
    x, y = (
        alt.X("millions:Q", stack="zero", title=title),
        alt.Y("row:N", sort=None, title=None),
    )
    base = alt.Chart(alt.Data(values=chosen), width=520, height=19 * len(drawn))
    base = base.encode(x, y, order="order:Q")
    color = alt.Color("block:N", scale=scale, sort=None, legend=legend)
    ticks = alt.Chart(alt.Data(values=paper if n == 0 else []))
    ticks = ticks.mark_tick(color=INK, thickness=2.5, size=17).encode(
        x="millions:Q", y=y
    )
    readable = alt.condition(
        "datum.millions > 5", alt.value("white"), alt.value("transparent")
    )
    numbers = base.mark_text(align="right", dx=-3, fontSize=10)
    return (
        base.mark_bar(size=15).encode(color)
        + numbers.encode(text="text:N", color=readable)
        + ticks
    )


label = "Table and networks hold most; at 1,000 tokens attention usually leads."
steps = {
    "parameters": (bars(0, "millions of parameters"), label),
    "operations, 25 tokens": (bars(25, "millions of multiplications"), label),
    "operations, 1,000 tokens": (bars(1000, "millions of multiplications"), label),
}
show_steps(steps, "Show what?")

# %% [markdown]
# :::{admonition} For a second reading: why do the counts differ from the paper's?
# :class: dropdown
# *Between* rows the paper's counts agree with ours within rounding: from 2 layers to 8 it adds 44 million (ours 44.1), from $d_\text{ff}$ 1024 to 4096 it adds 37 (37.8), from $d_k$ 16 to 64 it adds 7 (7.1). So the layers are right, and what we miss grows with the width, as a table does. Ten of the eleven counts come out right if the model had 4,004 to 4,208 rows of $d_\text{model}$ numbers more. The arithmetic is certain; what those rows were is not. One guess fits: the authors' code gave its vocabulary [40,960 rows](https://github.com/tensorflow/tensor2tensor/blob/006ecb50f6b63a18e0665d7d97869f95a3003dc1/tensor2tensor/data_generators/problem_hparams.py), and with the biases that its attention had at first, all ten come out. `big` doesn't fit at all: 213 is *below* our 214.2.
# :::


# %% tags=["hide-input"]
def missing_rows(name):
    """Return the smallest and the largest number of extra table rows that give the paper's count."""
    width, ours = preset(name).d_model, parameter_count(preset(name))
    low, high = (PAPER[name] * 1_000_000 + half - ours for half in (-500_000, 500_000))
    return -(-low // width), high // width


intervals = {name: missing_rows(name) for name in PAPER}
for name, paper in PAPER.items():
    ours = parameter_count(preset(name)) / 1e6
    print(
        f"{name:9} ours {ours:6.2f}   paper {paper:3}   rows missing {intervals[name]}"
    )
ten = [interval for name, interval in intervals.items() if name != "big"]
low, high = max(low for low, _ in ten), min(high for _, high in ten)
print("all but big:", low, "to", high)
assert (low, high) == (4004, 4208) and intervals["big"][1] < 0
released = {
    name: parameter_count(
        replace(preset(name), vocabulary_size=40_960, attention_bias=True)
    )
    / 1e6
    for name in PAPER
}
print(
    "with 40,960 rows and biases:",
    {name: round(count, 1) for name, count in released.items()},
)
assert [name for name in PAPER if round(released[name]) != PAPER[name]] == ["big"]

# %% [markdown]
# ## Six operations a weight
#
# In a matrix product each weight is used once for each token that passes: one multiplication and one addition. Source tokens meet one part of the weights and target tokens the rest, so one of each takes two operations a weight, $2 \cdot 63 = 126$ million. The backward pass costs twice as much, once for the gradient of the input and once for that of the weight. Training takes *six operations a weight* for such a pair, here 378 million, and the paper's training, 100,000 batches of 25,000 tokens a side, takes
#
# $$
# 6 \cdot 63 \cdot 10^6 \times 25{,}000 \times 100{,}000 = 9.5 \cdot 10^{17}.
# $$ (eq-training-cost)
#
# Its Table 2 says $3.3 \cdot 10^{18}$, because it counts what the machines could have done: 12 hours on 8 GPUs at $9.5 \cdot 10^{12}$ operations a second. They were busy with the model for 29% of that.
#
# :::{margin}
# [WMT14](27_wmt14.ipynb#what-it-will-take), which doesn't count padding as work, gets 28%.
# :::
#
# One cost doesn't show in the weights: attention's two products, $2 \cdot 512 \cdot n$ multiplications a token in each of 18 attentions, with $n$ tokens in a sentence. At 25 tokens that's less than 1%; it overtakes all matrices, 62.98 M without norms and biases, at $62.98 \text{ M} / 18{,}432 = 3{,}417$. PyTorch can count for itself what a pass multiplies:

# %%
uneven = replace(toy, d_k=3, d_v=7)
with torch.device("meta"), FlopCounterMode(display=False) as counter:
    model, tokens = Transformer(uneven), torch.zeros(1, 25, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH):  # attention as two products, to be counted
        model(tokens, tokens)
by_formula = 2 * 25 * sum(multiplications(uneven, 25).values())
print(
    f"PyTorch counts {counter.get_total_flops():,} operations, our formula {by_formula:,}"
)

# %% tags=["remove-cell"]
assert counter.get_total_flops() == by_formula

# %% [markdown]
# Memory is another matter. Weights, gradients and Adam's two running means take four times 252 MB. But the logits of 25,000 target tokens alone are $25{,}000 \cdot 37{,}000 \cdot 4$ bytes, 3.7 GB: if a run dies at the loss for lack of memory, this is why.
#
# ## Writing a sentence
#
# **Greedy decoding** takes the best next word each time and feeds it back in, until `</s>` or until the sentence is 50 tokens longer than its source, the paper's limit. Dropout must be off meanwhile and restored afterwards, which a context manager does:


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


# %% tags=["export"]
def greedy_decode(
    model: Transformer, source: Tensor, max_extra_tokens: int = 50
) -> list[list[int]]:
    """Write the best next word until `</s>`, or max_extra_tokens words more than the source has.

    Takes source tokens (B, S). Returns a list of ids for each sentence, without `<s>` and `</s>`.
    Readable and slow: each step computes all positions anew.
    """
    limit = (source != PAD).sum(dim=1) + max_extra_tokens
    limit = limit.clamp(max=model.config.max_length)
    target = torch.full_like(source[:, :1], BOS)
    running = torch.ones_like(limit, dtype=torch.bool)
    with evaluating(model):
        memory = model.encode(source)
        while running.any():
            states = model.decode(target, memory, source)
            logits = model.embedding.logits(states[:, -1])
            logits[:, [PAD, BOS]] = -torch.inf  # neither is ever a next word
            word = logits.argmax(dim=-1).where(running, PAD)
            target = torch.cat([target, word[:, None]], dim=1)
            running &= (word != EOS) & (target.size(1) <= limit)
    written = target[:, 1:].tolist()
    return [[word for word in row if word not in (PAD, EOS)] for row in written]


# %% [markdown]
# A finished sentence is continued with padding until the last of the batch is done, and each has a limit of its own, so no translation depends on its neighbors. The loop computes every earlier position again at each step; [Decoding](19_decoding.ipynb#the-kv-cache) keeps them instead.

# %%
model = Transformer(toy).double().train()
together = greedy_decode(model, source, max_extra_tokens=6)
alone = [
    greedy_decode(model, row[row != PAD][None], max_extra_tokens=6)[0] for row in source
]
print("untrained, in a batch:", together)
print("untrained, alone:     ", alone)

# %% tags=["remove-cell"]
assert together == alone and model.training

# %% [markdown]
# The same nonsense alone and in a batch. Now let's teach the model something.
#
# ## The model learns to copy
#
# The simplest task for a translator is to write what it reads. Our rows are 4 to 10 random letters, so there's no meaning to learn, and with 26 letters there are far too many rows to memorize. A model that ignores the source can only guess, at a loss of $\ln 26 = 3.26$ a letter.


# %%
def letters(rows, longest=10):
    """Draw rows of 4 to 10 random letters, ids 4 to 29, each ended by </s> and padded."""
    ids, place = torch.randint(4, 30, (rows, longest + 1)), torch.arange(longest + 1)
    length = torch.randint(4, longest + 1, (rows, 1))
    return ids.where(place < length, EOS).where(place <= length, PAD)


def spell(ids):
    return "".join(chr(93 + i) for i in ids if i > 3)


torch.manual_seed(0)
for ids in letters(3):
    print(spell(ids.tolist()))

# %% tags=["hide-input"]
black_cat = torch.tensor([[*(ord(letter) - 93 for letter in "blackcat"), EOS]])
seen_so_far, maps = [], {}


def cross_attention(model, row):
    """Return the cross-attention of the last layer (T, S), the mean of its heads."""
    maps = attention_maps(model, row, F.pad(row, (1, 0), value=BOS)[:, :-1])
    return maps.cross[-1].mean(dim=0)


def watch(step, loss, model):
    """Note the loss, how many of 200 unseen rows come out right, and the attention."""
    copies = greedy_decode(model, unseen, max_extra_tokens=3)
    right = sum(spell(c) == spell(ids) for c, ids in zip(copies, unseen.tolist()))
    seen_so_far.append({"step": step, "loss": loss.item(), "right": right / 2})
    maps[step] = cross_attention(model, black_cat)
    wrote = spell(greedy_decode(model, black_cat, max_extra_tokens=3)[0])
    print(
        f"step {step:3}  loss {loss:.2f}  right {right:3} of 200   blackcat -> {wrote}"
    )


# %% [markdown]
# We take the preset `tiny` with one layer, and the simplest training loop there is: ten lines, Adam at a fixed rate. [Training](18_training.ipynb#the-loop) builds the real one. Every 50 steps `watch` (folded) prints the loss, lets the model copy 200 rows it hasn't seen with `greedy_decode`, and lets it write *blackcat*.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=30, layers=1, dropout=0.0))
unseen, optimizer = letters(200), torch.optim.Adam(model.parameters(), lr=5e-4)
for step in range(401):
    source = letters(64)
    target = F.pad(source, (1, 0), value=BOS)
    logits, says = model(source, target[:, :-1]), target[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), says.flatten(), ignore_index=PAD)
    if step % 50 == 0:
        watch(step, loss, model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% tags=["remove-cell"]
assert seen_so_far[0]["right"] == 0 and seen_so_far[-1]["right"] > 90

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-copy-loss", "caption": "Has it learned to copy? Left: the loss on every fiftieth batch; guessing letters would cost 3.26 nats each. Right: the share of 200 unseen rows that greedy decoding copies without an error. From step 50 to step 150 the loss falls from 3.0 to 0.2 and the exact copies rise from none to three in four; at step 400, 197 of 200 are right."}}
x = alt.X("step:Q", title="step", axis=alt.Axis(values=[0, 100, 200, 300, 400]))
panels = []
for field, title, top in (
    ("loss", "loss, nats a token", 6),
    ("right", "exact copies of unseen rows, %", 100),
):
    y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, top]))
    line = alt.Chart(alt.Data(values=seen_so_far)).encode(x, y)
    line = line.mark_line(color=INK, point=alt.OverlayMarkDef(color=INK, filled=True))
    panels.append(line.properties(width=240, height=190))
show(
    alt.hconcat(*panels),
    alt="The loss falls to nearly 0, and the share of exact copies rises from 0 to nearly all.",
)

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-copy-map", "caption": "How does a model find out where to look? Cross-attention while it copies *blackcat*, the mean of four heads; each row sums to 1, from 0 (paper) to 1 (ink). Choose a step. At 0 the weights are spread over all letters. At 50 every row prefers the first letter, and the model writes nothing but b. At 100 the upper rows look at the front of the word and the lower rows at its back. From 150 on there is a diagonal, which grows darker; at 400 it holds the largest weight of each row, and only the second *a* and the end share theirs, both with *t*."}}
names = [*"blackcat", "</s>"]
titles = ("query: is to write", "key: letter of the source")
found = {
    0: "Each row looks at all letters.",
    400: "Most of the weight is on the diagonal.",
}
assert maps[0].max() < 0.3 and maps[400].diagonal().mean() > 0.5
steps = {
    f"step {n}": (
        heatmap(maps[n], names, names, titles=titles, cell=32),
        found.get(n, f"Cross-attention after {n} steps, on its way to the diagonal."),
    )
    for n in (0, 50, 100, 150, 200, 400)
}
show_steps(steps, "After how many steps?", start=5)

# %% [markdown]
# The loss starts above $\ln 30 + \frac12 = 3.9$ because one layer isn't enough to hide the word that goes in: the untrained model says what it has just heard, and the first *a* is followed by eleven more. Then it learns to look, first anywhere, then roughly, then at the right place.
#
# What the diagonal compares are positions and not letters: *blackcat* has two a's and two c's, alike as letters, and each row finds its own. The [sines](08_positional_encoding.ipynb#why-sine-and-cosine) are all that tells them apart.
#
# This is a Transformer that has learned something, in less than a minute on one CPU thread. To translate, it needs [pairs of sentences](13_data.ipynb), [tokens](14_tokenization.ipynb) instead of letters, and a [better loop](18_training.ipynb#the-loop). The model stays as it is.
#
# ## What it buys
#
# From means of embeddings to the whole model, the loss falls from 2.03 to 0.60 in 300 updates. The second layer seems useless at first: 0.60 with it, 0.60 without. With 1,300 updates it pulls ahead, 0.12 against 0.17, though with 75% more parameters. A larger model may need longer to show its worth, one reason why short comparisons mislead.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-paid-transformer", "caption": "What does the whole model buy? Validation loss on the grammar, the mean of three seeds; less is better. Down to the filled row, the whole model with two layers, each row has one part more and all have 300 updates. The last two rows train one layer and two layers for 1,300."}}
from book.figures import paid

losses = paid("transformer")
shown = ("means", "layers", "transformer", "layers, longer", "transformer, longer")
assert [round(losses[name], 2) for name in shown] == [2.03, 0.6, 0.6, 0.17, 0.12]

# %% [markdown]
# ## What to remember
#
# - The model is two stacks and one table, made from one frozen configuration; masks follow from the tokens.
# - What the decoder reads and what it must say are one row, shifted by one. Without shift or causal mask the loss falls to zero and means nothing.
# - Before training the loss is near $\ln |V|$, with our start half a nat above.
# - Base has 63.05 million parameters, and training costs six operations for each weight and each token that meets it.
# - To copy, cross-attention turns into a diagonal.
#
# Before the model learns to translate, [the next chapter](11_by_hand.ipynb) takes one sentence through every one of its steps, with numbers small enough for a pocket calculator.
#
# ## Exercises
#
# **1. One more layer** (★, 5 min). By hand: how many parameters does one more layer, in encoder and decoder, add to base?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three attentions, two networks, five norms: 3,145,728 + 4,199,424 + 5,120.
more = parameter_count(preset("base", layers=7)) - parameter_count(preset("base"))
print(f"{more:,}")
assert more == encoder_layer + decoder_layer == 7_350_272

# %% [markdown]
# **2. Write it first** (★, 10 min). Without looking back at the section on the shift, write `shift(target)`, which takes rows from `<s>` to `</s>` and returns what the decoder reads and what it must say, and hand it to [the checker](E_checker.ipynb#the-parts-it-knows): `check("shift", yours)`. What does it ask for in a row that ends with padding, and what must the loss do about that?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A padded position is asked for <pad>. The loss must leave it out:
# F.cross_entropy(..., ignore_index=PAD).
from annotated_transformer import check


def shift(target):
    return target[:, :-1], target[:, 1:]


reads, says = shift(torch.tensor([[BOS, 5, 9, EOS], [BOS, 7, EOS, PAD]]))
print("reads", reads.tolist(), " says", says.tolist())
print(check("shift", shift))

# %% [markdown]
# **3. A word that may not be written** (★★, 15 min). `greedy_decode` forbids `<pad>`. What would happen to a sentence if the model wrote it once, in the middle?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# From then on the mask takes it for filling, so the model can't see one of its own words, and the
# last line drops it from the output: the text has a hole.
seen = target_mask(torch.tensor([[BOS, 5, PAD, 6]]))[0, 0, -1]
print("what the last word may look at:", seen.tolist())

# %% [markdown]
# **4. Longer rows** (★★, 20 min). The copier has met rows of 4 to 10 letters. Predict what it does with the 15 of *fishandblackcat*, then look. Which letter is the first to go wrong?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Positions 0 to 10 were trained. In our run twelve letters come out right, so the sines carry the
# diagonal a little beyond what it has seen. Then it is lost, and with it the place to stop.
long = torch.tensor([[*(ord(letter) - 93 for letter in "fishandblackcat"), EOS]])
print("fishandblackcat ->", spell(greedy_decode(model, long, max_extra_tokens=3)[0]))

# %% [markdown]
# **5. Which parts does copying need?** (★★, 45 min; no solution). Train the copier without positions (give `model.positions` a module whose `forward(x, offset)` returns `x`), with one head, with pre-norm, and on rows that must come out reversed. Before each run, predict the map.
#
# **6. Sort, add, translate** (★★★, an evening; no solution). Let the target be the source in alphabetical order, or the digits of a sum. How many layers does each need, and does the cross-attention show how it is done?
#
# ## Sources
#
# Model, Table 3, training cost and length limit are from {cite:t}`vaswani2017attention`. The shared table is from {cite:t}`press2017using`. The shape of a page that builds the whole model and then lets it copy is due to {cite:t}`rush2018annotated`.
