# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # The Transformer
#
# This chapter joins the parts into the whole model, and teaches it to copy (sections 3.1 to 3.4 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("transformer")

# %% [markdown]
# All parts are built. What remains is to connect them, and here a mistake is easy to miss: a model with a wrong connection raises no error, it trains, and its loss may even look better than it should. We'll meet such a loss further down.
#
# Let the source be *die schwarze Katze mag Fisch*, and let *the black cat* be written already. The next word should be *likes*, and nothing on the target's side can tell: only the source says *mag*. Try to trace this word on the map, before you read the text below it. By which lines does *mag* travel from the bottom to the output, and where does it meet *cat*?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-map", "caption": "Where am I, and what shape is it? The paper's Figure 1 for the base model: encoder on the left, decoder on the right, read from the bottom up. Each box opens the chapter that builds it, and says how many numbers it learns. With B sentences, S source and T target positions, the stream has the shape (B, S, D) on the left and (B, T, D) on the right, all the way up; D = 512 numbers per word, |V| = 37,000 words. Blue, orange and green arrows carry queries, keys and values, pink ones positions. Inside a layer every plus is followed by a norm; the two plus signs at the bottom are not. What stands in a dotted frame is stacked six times, and its counts are for one layer."}}
import re
import warnings
from dataclasses import replace
from math import log

import altair as alt
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import grammar
from annotated_transformer.attention_maps import attention_maps
from book.figures import AMBER, INK, KEY, PAPER, PLUM, POSITION, QUERY, RESIDUAL, SKY
from book.figures import VALUE, arrow, box, heatmap, plus, show, show_drawing
from book.figures import show_steps, stream, words_at

attention = f"{4 * 512**2 / 1e6:.2f} M", "05_multi_head_attention.html"
network = f"{(2 * 512 * 2048 + 2560) / 1e6:.2f} M", "06_feed_forward.html"
kinds = {
    "feed-forward": (*network, [INK]),
    "cross-attention": (*attention, [QUERY]),
    "self-attention": (*attention, [QUERY, KEY, VALUE]),
}
table = "07_embeddings.html"


def sublayer(x, y, name, mask=""):
    """Yield a sub-layer beside the stream at x: it reads, adds, and a norm follows."""
    count, link, colors = kinds[name]
    side = 1 if x < 178 else -1
    near, edge = x + 10 * side, x + 34 * side
    left = edge if side == 1 else edge - 102
    yield arrow([(edge, y + 10), (near, y + 10)]) + plus(x, y + 10)
    yield box(x - 20, y - 24, 40, 20, "norm", link="09_layers.html")
    for i, color in enumerate(colors):
        yield arrow([(x, y + 22 + 9 * i), (edge, y + 22 + 9 * i)], color)
    yield box(left, y, 102, 48, name, count, link)
    if mask:
        yield box(left + 3, y + 54, 96, 21, f"{mask} mask", link="04_masks.html")


parts = ['<g transform="translate(0,-130)">']
for x, left, top, name in ((26, 3, 312, "encoder"), (330, 187, 204, "decoder")):
    place = f'x="{left}" y="{top}" width="166" height="{540 - top}" rx="8"'
    parts.append(f'<rect {place} fill="none" stroke="{INK}" stroke-dasharray="2 4"/>')
    parts += [stream([(x, 616), (x, top - 8)]), plus(x, 574)]
    parts.append(words_at(left + 86, top - 9, f"{name}: 6 layers"))
parts += [*sublayer(26, 348, "feed-forward")]
parts += [*sublayer(26, 456, "self-attention", "padding")]
parts += [*sublayer(330, 240, "feed-forward")]
parts += [*sublayer(330, 348, "cross-attention", "padding")]
parts += [*sublayer(330, 456, "self-attention", "target")]
parts += [
    arrow([(26, 306), (26, 278), (181, 278), (181, 370), (194, 370)], KEY),
    arrow([(26, 306), (26, 285), (175, 285), (175, 388), (194, 388)], VALUE),
    words_at(90, 270, "memory (B, S, D)"),
    arrow([(108, 574), (36, 574)], POSITION),
    arrow([(248, 574), (320, 574)], POSITION),
    box(108, 555, 140, 38, "positions", "not learned", "08_positional_encoding.html"),
    box(3, 616, 350, 42, "embedding: one table", "18.94 M", table),
    arrow([(330, 196), (330, 180)]),
    box(187, 138, 166, 42, "output: the same table", "logits (B, T, |V|)", table),
    words_at(4, 676, "source (B, S)", anchor="start"),
    words_at(352, 676, "target (B, T), shifted", anchor="end") + "</g>",
]
show_drawing(
    parts,
    356,
    552,
    alt="The base model as boxes, each with its parameters and a link to its chapter.",
)

# %% [markdown]
# 1. **Words become vectors.** The five German words and `</s>` are six ids. The table gives each its row, a position is added, and six vectors of 512 numbers enter the encoder.
# 2. **The encoder reads.** In each of six layers every word fetches what it needs from the others and then works on what it has. Six vectors come out, full of their neighbors: the memory.
# 3. **The target goes in.** `<s>` *the black cat* become four vectors in the same way.
# 4. **The decoder reads and looks back.** In each of six layers every target word looks first at itself and those before it, then at the memory. *Cat* has to find out that *Katze* is done and *mag* is next.
# 5. **The last vector becomes a word.** It's compared with all 37,000 rows of the table, and *likes* should fit best. Then `<s>` *the black cat likes* goes in, and so on. The memory stays.
#
# So *mag* rises on the left, crosses over as a key and a value, and meets *cat* in cross-attention. There is no other way from one side to the other.
#
# ## The model
#
# Written as a formula, the model is two stacks and one table that is used three times:
#
# $$
# \begin{aligned}
# M &= \text{Encoder}(\text{embed}(\text{source})) \\
# \text{logits} &= \text{Decoder}(\text{embed}(\text{target}), M)\, E^\top
# \end{aligned}
# $$ (eq-transformer)
#
# Both sides share `embed`, the scaled rows of the table $E$ plus positions. Transposed, the same table scores every word of the vocabulary.
#
# ### One configuration
#
# All sizes stand in one dataclass, whose defaults are the paper's base model; what the paper doesn't have is off ([departures](../book/departures.md#the-model)). Sizes that no model can have, such as 7 heads for a width of 512, are refused at once by `check_fields`, which is folded below.

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
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


# %% tags=["export"]
@dataclass(frozen=True)
class TransformerConfig:
    """All that shapes the model; the defaults are the paper's base model (section 3).

    Raises ValueError for what no model can have.
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
        check_fields(self)


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show what a configuration refuses", "code_prompt_hide": "Hide what a configuration refuses"}
def check_fields(c: TransformerConfig) -> None:
    """Raise ValueError for what no model can have: it names the field and what would do."""
    sizes = ["vocabulary_size", "layers", "d_model", "d_ff", "heads", "max_length"]
    sizes += [name for name in ("d_k", "d_v") if getattr(c, name) is not None]
    for name in sizes:
        size = getattr(c, name)
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size!r} must be a whole number, 1 or more")
    for name in ("dropout", "attention_dropout", "relu_dropout"):
        if not 0 <= getattr(c, name) < 1:
            raise ValueError(f"{name}={getattr(c, name)} must be from 0 to below 1")
    if c.vocabulary_size < 5:
        raise ValueError("vocabulary_size must be 5 or more: ids 0 to 3 are special")
    if c.positions not in ("sinusoidal", "learned"):
        raise ValueError(f'positions="{c.positions}": take "sinusoidal" or "learned"')
    if c.positions == "sinusoidal" and c.d_model % 2:
        raise ValueError(f"d_model={c.d_model} must be even for sinusoidal positions")
    if c.d_k is None or c.d_v is None:
        head_width(c.d_model, c.heads)


# %% [markdown]
# A **preset** is a name for a few changes. `big` is the paper's larger model; `tiny` and `small` train on a laptop, and `captions` and `everyday` are models that come with the book. The rows of the paper's Table 3 have names as well (`TABLE_3`, folded).


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the rows of Table 3", "code_prompt_hide": "Hide the rows of Table 3"}
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
    "D-smoothing0.0": {},  # the label smoothing is a setting of the training
    "D-smoothing0.2": {},
    "E-learned": {"positions": "learned"},
}


# %% tags=["export"]
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "d_ff": 512, "heads": 4},
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    "captions": {"layers": 3, "d_model": 192, "d_ff": 512, "heads": 4, "dropout": 0.3},
    "everyday": {"layers": 3, "d_model": 256, "d_ff": 512, "heads": 4},
}


def preset(name: str, **changes: Any) -> TransformerConfig:
    """Return a named configuration, with changes; the paper's vocabulary has 37,000 words."""
    named = {**PRESETS, **TABLE_3}
    if name not in named:
        names = ", ".join(PRESETS)
        raise ValueError(f'no preset "{name}": take {names} or a row of TABLE_3')
    fields = {"vocabulary_size": 37_000, **named[name], **changes}
    return TransformerConfig(**fields)


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show how a configuration becomes layers with random weights", "code_prompt_hide": "Hide how layers are made"}
def make_attention(c: TransformerConfig) -> MultiHeadAttention:
    """Make one attention of a layer."""
    return MultiHeadAttention(
        c.d_model, c.heads, c.d_k, c.d_v, c.attention_bias, c.attention_dropout
    )


def make_feed_forward(c: TransformerConfig) -> FeedForward:
    """Make the network of a layer."""
    return FeedForward(c.d_model, c.d_ff, c.relu_dropout)


def make_positions(c: TransformerConfig) -> Positions:
    """Make the positions that are added at the bottom of both stacks."""
    kinds = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
    return kinds[c.positions](c.d_model, c.max_length)


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


def initialize(model: nn.Module) -> None:
    """Start every linear map: Glorot uniform matrix, zero bias. Embeddings start by themselves."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# %% [markdown]
# The folded code builds the two stacks from the parts of the earlier chapters (`make_encoder`, `make_decoder`, `make_positions`); `initialize` draws the [first weights](#how-weights-start).
#
# ### From tokens to logits
#
# The masks follow from the tokens, so the caller need not think of them. With all its parts, this class is also [one file](../book/model.md), to be read from top to bottom.


# %% tags=["export"]
class Transformer(nn.Module):
    """The model of the paper (section 3), from token ids to logits."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocabulary_size, config.d_model)
        self.positions = make_positions(config)
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


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show how parameters are counted", "code_prompt_hide": "Hide how parameters are counted"}
def parameter_count(model: nn.Module | TransformerConfig) -> int:
    """Count the parameters of a model, or of the model that a configuration describes."""
    if isinstance(model, TransformerConfig):
        with torch.device("meta"):  # shapes alone, no numbers
            model = Transformer(model)
    return sum(parameter.numel() for parameter in model.parameters())


# %% [markdown]
# `forward` is the formula, for training, when the whole target is known. `encode` and `decode` are separate because writing a sentence reads the source once and lets the target grow. `decode` takes the source *tokens*, too, since only they tell where the padding is: in the memory, padding is a vector like any other. There's no softmax, because it's [inside the loss](07_embeddings.ipynb#the-softmax-is-in-the-loss).
#
# ## The target, shifted by one
#
# The model learns to say the next word. In training it's given a whole target and asked at each position for the word that follows. So what it reads and what it must say are one row, shifted by one place. (To write the shift yourself first, go to exercise 2.)

# %%
# <s> the black cat likes fish </s>
sentence = torch.tensor([[BOS, 5, 9, 4, 8, 7, EOS]])
print("decoder reads:", sentence[:, :-1].tolist()[0])
print("must say:     ", sentence[:, 1:].tolist()[0])


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-shift", "caption": "What does the decoder read (below), what must it say (above), and when? Upper half, training: the target is known, so one run takes all positions, and the causal mask hides from each what lies to its right. Lower half, translating: each run adds one word, and that word goes into the next run (gray arrows), together with all before it."}}
def words_of(y, reads, says):
    """Yield what each position reads, below a decoder that begins at y, and what it says."""
    for i, (read, said) in enumerate(zip(reads, says)):
        at = 28 + 60 * i
        yield arrow([(at, y + 76), (at, y + 42)]) + words_at(at, y + 92, read)
        yield arrow([(at, y), (at, y - 32)]) + words_at(at, y - 40, said)


words = ["<s>", "the", "black", "cat", "likes", "fish", "</s>"]
parts = [words_at(178, 16, "training: one run, all words at once", 14)]
parts += [box(2, 78, 352, 40, "decoder"), *words_of(78, words, words[1:])]
parts += [words_at(178, 216, "translating: one run for each word", 14)]
for i in range(6):
    parts.append(box(6 + 60 * i, 278, 44, 40, f"run {i + 1}"))
    if i < 5:  # the word that comes out is the next to go in
        x = 58 + 60 * i
        around = [(x - 11, 234), (x, 234), (x, 366), (x + 12, 366)]
        parts.append(arrow(around, RESIDUAL))
parts += words_of(278, words, words[1:])
label = "The words read are the words to say, shifted by one. In training one run takes all; when translating, each word said goes into the next run."
show_drawing(parts, 356, 378, alt=label)

# %% [markdown]
# One pass trains on six questions at once: after `<s>` say *the*, after `<s>` *the* say *black*, and so on up to `</s>`, which teaches it to stop. The paper's "outputs (shifted right)" means this: the `<s>` in front pushes every word one place to the right.
#
# ### Is it fair to show the target to the decoder?
#
# It looks like cheating, since the answer is among the inputs. But position $t$ is asked for word $t + 1$ and sees the words up to $t$ only: [the causal mask](04_masks.ipynb#the-causal-mask) hides the rest.
#
# There is a second oddity. The decoder always reads the *right* words, whatever it would have written itself. This is called **teacher forcing**, and it's what makes training fast: since no position waits for the model's own answer, a target of 20 words takes one pass instead of 20. At the start, the model's own words would be noise anyway, and no corpus says what follows noise.
#
# The price is **exposure bias**. When it translates, the model reads its own words, and it has never learned to go on from a mistake. So a low loss doesn't promise good translations, and [we'll score what it writes](20_evaluation.ipynb), too.
#
# ## Writing a sentence
#
# **Greedy decoding** takes the best next word each time and feeds it back in, until `</s>`. For one sentence:


# %%
def write(model, source, longest=12):
    memory = model.encode(source)
    words = [BOS]
    while words[-1] != EOS and len(words) <= longest:
        states = model.decode(torch.tensor([words]), memory, source)
        best = model.embedding.logits(states[:, -1]).argmax()
        words.append(best.item())
    return words[1:]


# %% [markdown]
# `greedy_decode`, folded here, does the same for a whole batch, with dropout turned off by `evaluating`.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show evaluating: dropout off, and as before afterwards", "code_prompt_hide": "Hide evaluating"}
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


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show greedy_decode, for a batch", "code_prompt_hide": "Hide greedy_decode"}
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
# The loop computes every earlier position again at each step. [Decoding](19_decoding.ipynb#the-kv-cache) keeps them instead.
#
# ## The model learns to copy
#
# The simplest task for a translator is to write what it reads. Our rows are 4 to 10 random letters (`letters`, folded below, draws them, and `spell` writes them out), so there's no meaning to learn, and with 26 letters there are far too many rows to memorize. A model that ignores the source can only guess, at a loss of $\ln 26 = 3.26$ per letter.


# %% tags=["hide-input"]
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

# %% [markdown]
# The training loop is the simplest there is, Adam at a fixed rate; [Training](18_training.ipynb#the-loop) builds the real one. What changes from task to task is `next_loss`, which draws a batch and returns its loss.


# %%
def loss_of(logits, says):
    return F.cross_entropy(logits.flatten(0, 1), says.flatten(), ignore_index=PAD)


def learn(model, next_loss, steps, watch=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for step in range(steps + 1):
        loss = next_loss(model)
        if watch and step % 50 == 0:
            watch(step, loss, model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


# %% tags=["hide-input"]
black_cat = torch.tensor([[*(ord(letter) - 93 for letter in "blackcat"), EOS]])
seen_so_far, maps = [], {}


def cross_attention(model, row):
    """Return the cross-attention of the last layer (T, S), the mean of its heads."""
    maps = attention_maps(model, row, F.pad(row, (1, 0), value=BOS)[:, :-1])
    return maps.cross[-1].mean(dim=0)


def watch_copies(step, loss, model):
    """Note the loss, how many of 200 unseen rows come out right, and the attention."""
    copies = greedy_decode(model, unseen, max_extra_tokens=3)
    right = sum(spell(c) == spell(ids) for c, ids in zip(copies, unseen.tolist()))
    share = 100 * right / len(unseen)
    seen_so_far.append({"step": step, "loss": loss.item(), "right": share})
    maps[step] = cross_attention(model, black_cat)
    wrote = spell(greedy_decode(model, black_cat, max_extra_tokens=3)[0])
    print(
        f"step {step:3}  loss {loss:.2f}  right {right:3} of {len(unseen)}   blackcat -> {wrote}"
    )


# %% [markdown]
# We take the preset `tiny` with one layer. Every 50 steps the folded `watch_copies` prints the loss, counts how many of 200 rows that it hasn't seen come out without an error, and lets it write *blackcat*.


# %% tags=["nbval-ignore-output"]
def copying(model):
    source = letters(64)
    target = F.pad(source, (1, 0), value=BOS)
    return loss_of(model(source, target[:, :-1]), target[:, 1:])


torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=30, layers=1, dropout=0.0))
unseen = letters(200)
loss = learn(model, copying, 400, watch_copies)
print("unseen:", spell(unseen[0].tolist()), "->", spell(write(model, unseen[:1])))

# %% tags=["remove-cell"]
if CHECKING:
    assert 5.2 < seen_so_far[0]["loss"] < 5.8  # above ln 30: it repeats its input
    assert seen_so_far[0]["right"] == 0 and seen_so_far[-1]["right"] > 90

# %% [markdown]
# The first loss, 5.50, is above $\ln 30 = 3.40$. An untrained layer hardly changes the word that goes in, so the model is sure that the same word comes next, and once it has written an *a* it goes on with *a*. In the run shown, it copies three unseen rows in four after 150 steps. How? Each word that is to be written can look anywhere in the source, and nobody has told it where. Guess what the weights of cross-attention look like at step 0, 50 and 400, and then choose a step.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-copy-map", "caption": "How does a model find out where to look? Cross-attention in the run shown, while the model copies *blackcat*, the mean of four heads; each row sums to 1, from 0 (empty) to 1 (full). Choose a step. At 0 the weights are spread over all letters. At 50 every row prefers the first letter, and the model writes nothing but b. At 100 the upper rows look at the front of the word and the lower rows at its back. From 150 on there is a diagonal, which grows fuller."}}
names = [*"blackcat", "</s>"]
titles = ("query: is to write", "key: letter of the source")
end = max(maps)
found = {0: "Each row looks at all letters."}
if maps[end].diagonal().mean() > 0.5:
    found[end] = "Most of the weight is on the diagonal."
steps = {
    f"step {n}": (
        heatmap(maps[n], names, names, titles=titles, cell=32),
        found.get(n, f"Cross-attention after {n} steps, on its way to the diagonal."),
    )
    for n in sorted({0, 50, 100, 150, 200, end} & maps.keys())
}
show_steps(steps, "After how many steps?", start=len(steps) - 1)

# %% tags=["remove-cell"]
if CHECKING:
    assert maps[0].max() < 0.3 and maps[end].diagonal().mean() > 0.5

# %% [markdown]
# It learns to look: first anywhere, then roughly, then at the right place. What the diagonal compares are positions and not letters. *Blackcat* has two a's and two c's, alike as letters, and each row finds its own. The [sines](08_positional_encoding.ipynb#why-sine-and-cosine) are all that tells them apart.
#
# This is a Transformer that has learned something, in less than a minute on one CPU thread. To translate, it needs [pairs of sentences](13_data.ipynb), [tokens](14_tokenization.ipynb) instead of letters, and a [better loop](18_training.ipynb#the-loop). The model stays as it is.
#
# ### If the shift is forgotten
#
# Now the loss that looks too good. We train on targets that have nothing to do with their sources, ten random letters each, so no honest model can get below 3.26. With `shift=0`, the model must say the very word that it reads.


# %% tags=["nbval-ignore-output"]
def unpredictable(shift):
    def next_loss(model):
        source, words = torch.randint(4, 30, (2, 64, 10))
        rows = F.pad(words, (1, 0), value=BOS)
        reads, says = rows[:, : 11 - shift], rows[:, shift:]
        return loss_of(model(source, reads), says)

    fresh = Transformer(preset("tiny", vocabulary_size=30, layers=1, dropout=0.0))
    return learn(fresh, next_loss, 50)


honest, forgotten = unpredictable(shift=1), unpredictable(shift=0)
print(f"shifted {honest:.2f}, forgotten {forgotten:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(honest - log(26)) < 0.3 and forgotten < 0.2

# %% [markdown]
# Fifty steps, and the loss has almost vanished on data that can't be predicted. When a loss falls too fast, suspect the shift and [the causal mask](04_masks.ipynb#what-a-forgotten-causal-mask-costs): if either is missing, the answer gets through.
#
# ## From here to GPT
#
# The language models of today, GPT among them, write without a source. Without a source there is no encoder, and the decoder's cross-attention has nothing to look at, so it goes, too. What is left of a decoder layer is self-attention and a network. That is an encoder layer! Only the mask, which hides the future, makes a writer of it. So a small GPT needs no new parts: it is our encoder's stack under the decoder's mask.
#
# As texts we take 9,000 short English sentences from the book's [grammar](13_data.ipynb#a-pair-and-its-alignment), one id for each word: `rows` holds the ids and `vocabulary` the words; both are folded here.

# %% tags=["hide-input"]
sentences = [re.findall(r"\w+|[.,?]", pair.target) for pair in grammar(20_000, seed=1)]
sentences = [words for words in sentences if len(words) <= 10]
vocabulary = [
    "<pad>",
    "<s>",
    "</s>",
    *sorted({w for words in sentences for w in words}),
]
numbers = [[BOS, *map(vocabulary.index, words), EOS] for words in sentences]
rows = pad_sequence([torch.tensor(row) for row in numbers], batch_first=True)
print(len(rows), "sentences,", len(vocabulary), "words;", " ".join(sentences[1]))


# %% tags=["nbval-ignore-output"]
def next_words(gpt, words):
    states = gpt.encoder(gpt.embed(words), target_mask(words))
    return gpt.embedding.logits(states)


def language(gpt):
    row = rows[torch.randint(len(rows), (64,))]
    return loss_of(next_words(gpt, row[:, :-1]), row[:, 1:])


torch.manual_seed(0)
gpt = Transformer(preset("tiny", vocabulary_size=len(vocabulary), dropout=0.0))
gpt.decoder = None  # one stack is enough
last = learn(gpt, language, 300)
print(f"loss {last:.2f}; with all words equally likely {log(len(vocabulary)):.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert last < 2.4

# %% [markdown]
# Now it may complete what we begin. The loop is the one above, without a memory.

# %% tags=["nbval-ignore-output"]
completed = []
for start in ("The black cat", "Does the black cat", "The child must"):
    unknown = set(start.split()) - set(vocabulary)
    if unknown:
        raise ValueError(f"unknown: {unknown}; known: {' '.join(vocabulary[3:])}")
    words = [BOS, *map(vocabulary.index, start.split())]
    while words[-1] != EOS and len(words) < 20:
        words.append(next_words(gpt, torch.tensor([words]))[0, -1].argmax().item())
    completed.append(" ".join(vocabulary[word] for word in words[1:-1]))
    print(completed[-1])

# %% tags=["remove-cell"]
if CHECKING:
    assert all(text.endswith((".", "?")) for text in completed)
    assert completed[1].endswith("?")

# %% [markdown]
# In the run shown, after 300 updates, what begins with *does* ends with a question mark and takes the bare *arrive*, and after *must* comes *laugh* and not *laughs*. Nobody gave the model a rule; it was only asked for the next word. What it writes is good English about nothing in particular, because no source says what to write. That is the whole difference between continuing and translating. A single stack can translate, too, if the source stands in front as part of its text: [chapter 24](24_since_2017.ipynb#a-model-of-todays-kind) builds one.
#
# ## What each part is worth
#
# One last look back, at a task with words: German sentences of the book's grammar, and their English. We begin with a translator that has almost nothing. It adds three vectors: the newest word, the average of the words written so far, and the average of the source words. Then it gets the parts of this book one by one, in the order in which you met them. Each rung of this ladder learns from the same 40,000 pairs for 3,000 updates, and then translates sentences that it has never seen.
#
# Two of them we read. *Den Hund jagt die Katze* begins with its object: the cat chases the dog. In *Der Lehrer ruft am Abend die Königin an*, the verb *anrufen*, to call, stands in two pieces. Which part, do you think, will be worth the most?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ladder", "caption": "What does each part bring, and what does a model write with it? Read upwards: each rung has one part more. The bar is the loss on 1,000 unseen pairs in nats per token, the mean of three seeds, and the line across its end is the 95% interval; at the right, the share of 300 translations that are right to the word. Below, what the first seed writes of the two sentences, behind one sign for each seed: right or wrong. Measured by `benchmarks/experiments/ladder.py`."}}
from statistics import mean, stdev

from benchmarks.common import read_log

LADDER = {
    "means with value matrices": "averages",
    "attention": "+ attention (chapter 3)",
    "masks": "+ padding mask (4)",
    "multi_head_attention": "+ four heads (5)",
    "feed_forward": "+ feed-forward network (6)",
    "embeddings": "+ one scaled table (7)",
    "positional_encoding": "+ positions (8)",
    "layers": "+ encoder and norms (9)",
    "transformer": "+ a second layer (10)",
}
WANTED = ["The cat chases the dog.", "The teacher calls the queen in the evening."]
ladder_settings, *ladder_runs = read_log("ladder")
rungs = {}
for record in ladder_runs:
    rungs.setdefault(record["rung"], []).append(record)
ladder_losses = {name: mean(r["loss"] for r in rungs[name]) for name in rungs}
right_share = {
    name: mean(r["right"] for r in rungs[name]) / ladder_settings["asked"]
    for name in rungs
}


def half_interval(name):
    """Half of Student's 95% interval for the mean of three runs."""
    return 4.303 * stdev(record["loss"] for record in rungs[name]) / 3**0.5


def draw_rung(name, y):
    """A part, its loss as a bar with the interval, and what the model writes."""
    mean_loss, half = ladder_losses[name], half_interval(name)
    low, high = (172 + 180 * (mean_loss + side) for side in (-half, half))
    bar = f'x="172" y="{y + 4}" width="{180 * mean_loss:.1f}" height="11"'
    yield f'<path d="M4,{y + 57}H346" stroke="{INK}" stroke-opacity="0.25"/>'
    yield words_at(4, y + 14, LADDER[name], anchor="start")
    yield f'<rect {bar} fill="{SKY}"/>'
    yield f'<path d="M{low:.1f},{y + 9.5}H{high:.1f}" stroke="{INK}" stroke-width="3"/>'
    yield words_at(high + 6, y + 14, f"{mean_loss:.2f}", 12, anchor="start")
    yield words_at(346, y + 14, f"{right_share[name]:.0%}", 12, anchor="end")
    for place, wanted in enumerate(WANTED):
        written = [record["writes"][place] for record in rungs[name]]
        signs = "".join("✓" if text == wanted else "✗" for text in written)
        yield words_at(4, y + 33 + 17 * place, signs, 12, anchor="start")
        yield words_at(46, y + 33 + 17 * place, written[0], 12, anchor="start")


drawn = [words_at(4, 14, "a model with", 12, anchor="start")]
drawn += [words_at(172, 14, "loss", 12, anchor="start")]
drawn += [words_at(346, 14, "right", 12, anchor="end")]
for place, name in enumerate(reversed(LADDER)):
    drawn += draw_rung(name, 22 + 62 * place)
show_drawing(
    drawn,
    350,
    22 + 62 * len(LADDER),
    alt="Losses fall from 0.58 for averages to 0.01 for the whole model, most of all with positions, from 0.29 to 0.08. Only with a whole layer on either side are both sentences right from all seeds.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(ladder_losses[name], 2) for name in LADDER] == [
        0.58,
        0.51,
        0.51,
        0.38,
        0.33,
        0.29,
        0.08,
        0.03,
        0.01,
    ]
    shares = [round(100 * right_share[name]) for name in LADDER]
    assert shares == [27, 27, 26, 33, 36, 37, 71, 88, 95]
    first_sentences = {
        name: [record["writes"][0] for record in rungs[name]] for name in LADDER
    }
    assert first_sentences["positional_encoding"].count("The cat chases the dogs.") == 2
    for name in LADDER:
        flawless = all(record["writes"] == WANTED for record in rungs[name])
        assert flawless == (name in ("layers", "transformer"))
    changed = {
        "means": 0.97,
        "one head with an output matrix": 0.47,
        "feed_forward without ReLU": 0.36,
        "three scaled tables": 0.27,
    }
    assert all(
        round(ladder_losses[name], 2) == value for name, value in changed.items()
    )
    weights_of = {name: rungs[name][0]["parameters"] for name in rungs}
    saved = weights_of["three scaled tables"] - weights_of["embeddings"]
    assert (saved, weights_of["three scaled tables"]) == (76_800, 181_056)
    for name, cats in (("attention", 2), ("multi_head_attention", 0)):
        assert first_sentences[name].count("The cat chases the dog.") == cats
    longer = "transformer, twice as long"
    assert (ladder_losses[longer], round(100 * right_share[longer])) == (0.005, 97)

# %% [markdown]
# Positions, by far. Without them, all these models see the source as a bag of words and get at most 37 of 100 sentences right. They have to guess who chases whom, and guess differently from seed to seed. With positions, 71 of 100 are right, yet two seeds of three write *The cat chases the dogs*: the order is right and a detail is lost. The next rung is a whole layer of [chapter 9](09_layers.ipynb#the-encoder-layer), which brings the norms, sub-layers that work one after the other, and an encoder, in which the source words look at one another. With it, both sentences are right from every seed, and 88 of 100 in all. A second layer brings 95.
#
# Not every part pays at this size: the padding mask changes nothing, and of the one scaled table only the scale helps, not the sharing.
#
# :::{admonition} What came with each part: five more rungs, each with one thing changed
# :class: dropdown
# A part seldom comes alone, so we also trained these, in the same way:
#
# - Attention brought matrices for the values, and we gave them to the averages as well. Without these, the averages have a loss of 0.97, not 0.58. Where to look is worth less than what is handed over, as long as no rung knows positions.
# - The four heads brought $W^O$. One head that has it comes to 0.47; so a third of the step from 0.51 to 0.38 is due to that matrix. (For a single head of full width it computes nothing new, since $W^V W^O$ is one square matrix; two factors only train differently from their product.)
# - The network without its ReLU comes to 0.36, where it has 0.33 with it.
# - Three separate tables, scaled in the same way, reach a loss of 0.27, the shared one 0.29: what helps is the scale. Sharing saves 76,800 of 181,056 weights here and 38 million in base, and {cite:t}`press2017using` found that translators lose nothing by it.
# - The padding mask changes nothing here, since these batches hold hardly any padding. It [is needed](04_masks.ipynb#what-goes-wrong-without-a-mask) all the same: without it, a sentence depends on its neighbors.
#
# Would more training even out the rungs? The whole model had not quite finished: with twice as many updates, from one seed, its loss ends at 0.005 and 97 of 100 sentences are right.
# :::

# %% [markdown]
# ## What to remember
#
# - The model is two stacks and one table; masks follow from the tokens. Source and target meet in cross-attention only.
# - What the decoder reads and what it must say are one row, shifted by one. Without shift or causal mask the loss falls to zero and means nothing.
# - In training all positions learn at once, from the right words. When translating, each word waits for the one before.
# - In a model that copies, cross-attention turns into a diagonal.
# - One stack with the decoder's mask, trained on the next word, is a language model.
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

# %% tags=["remove-cell"]
if CHECKING:
    assert more == 3_145_728 + 4_199_424 + 5_120

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
# Positions 0 to 10 were trained. In the run shown, twelve letters come out right: the sines carry the
# diagonal a little beyond what the model has seen. Then it is lost, and with it the place to stop.
# (On another processor that may happen after nine letters.)
long = torch.tensor([[*(ord(letter) - 93 for letter in "fishandblackcat"), EOS]])
print("fishandblackcat ->", spell(greedy_decode(model, long, max_extra_tokens=3)[0]))

# %% [markdown]
# **5. Which parts does copying need?** (★★, 45 min; no solution). Train the copier without positions (give `model.positions` a module whose `forward(x, offset)` returns `x`), with one head, with pre-norm, and on rows that must come out reversed. Before each run, predict the map.
#
# **6. Sort, add, translate** (★★★, an evening; no solution). Let the target be the source in alphabetical order, or the digits of a sum. How many layers does each need, and does the cross-attention show how it is done?
#
# ## Second reading
#
# ### Every shape, on a toy
#
# :::{admonition} A toy whose sizes all differ, so that a size tells which axis it is
# :class: dropdown
# Two sentences go through it ($B = 2$, $S = 5$, $T = 3$, $D = 8$, $H = 4$, $d_\text{ff} = 32$, $|V| = 11$). Cross-attention has queries of length $T$ and keys of length $S$, and its output has the length of the queries.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the shapes that leave each part", "code_prompt_hide": "Hide the shapes"}
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
# ### The same as PyTorch's
#
# Our logits agree with `nn.Transformer`'s to nine decimals, given the same weights and a padded batch.
#
# :::{admonition} What nn.Transformer leaves out, and where it differs from the paper
# :class: dropdown
# You can use PyTorch's model instead of ours, if you know this:
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
# For the comparison we remove its extra norms, set epsilon and dropout, and flip the masks. All parameters are random, gains and biases too, so a norm, a mask or a residual in another place would show.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the comparison with nn.Transformer", "code_prompt_hide": "Hide the comparison"}
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
differences, left = {}, {}
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
    left[pre_norm] = theirs.load_state_dict(for_pytorch(model), strict=False)
    hidden = {"src": source == PAD, "tgt": target == PAD, "memory": source == PAD}
    states = theirs(
        model.embed(source),
        model.embed(target),
        tgt_mask=torch.ones(3, 3).triu(1).bool(),
        **{f"{name}_key_padding_mask": mask for name, mask in hidden.items()},
    )
    logits = F.linear(states, model.embedding.weight)
    differences[pre_norm] = (model(source, target) - logits).abs().max()
    form = "pre-norm: " if pre_norm else "post-norm:"
    print(form, f"logits differ by {differences[pre_norm]:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    for keys in left.values():
        assert keys.unexpected_keys == ["embedding.weight"]
        assert all("attn" in k and k.endswith("bias") for k in keys.missing_keys)
    assert max(differences.values()) < 1e-9

# %% [markdown]
# ### Does only the decoder need a mask?
#
# No: padding that the encoder may attend to moves all logits. With every mask in place, it moves none, and a changed target word leaves all logits before it alone.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show how far six padding tokens move the logits, with and without a mask", "code_prompt_hide": "Hide the test of the masks"}
# Last line: the padding mask is taken away from the encoder and from cross-attention. Padding that
# holds no word then moves the logits by two fifths of their spread.
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
        "six padding tokens, masked": (wide(padded, written) - right).abs().max(),
        "word 5 changed, logits before": (wide(words, other) - right)[:, :5]
        .abs()
        .max(),
        "word 5 changed, logits from there": (wide(words, other) - right)[:, 5:].std(),
        "six padding tokens, not masked": (
            wide.embedding.logits(unmasked) - right
        ).std(),
    }
for name, change in moved.items():
    print(f"{name:34} {change / spread:.2f} of the logits' spread")

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        moved["six padding tokens, masked"] < 1e-9
        and moved["word 5 changed, logits before"] < 1e-9
    )

# %% [markdown]
# ### Parts from a configuration
#
# :::{admonition} Why every rate must be passed on
# :class: dropdown
# A layer that isn't given `c.dropout` keeps its own default of 0.1, and a comparison "without dropout" then compares 0.1 with 0.1.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show where a dropout of 0.2 arrives, and what a configuration refuses", "code_prompt_hide": "Hide the test of the rates"}
fifth = preset("base", dropout=0.2)
rates = [
    module.p
    for stack in (make_encoder(fifth), make_decoder(fifth))
    for module in stack.modules()
    if isinstance(module, nn.Dropout) and module.p
]
print(len(rates), "places with dropout in 12 + 18 sub-layers, all at", rates[0])
for wrong in ({"heads": 7}, {"dropout": 10}, {"positions": "rotary"}):
    try:
        preset("base", **wrong)
    except ValueError as error:
        print(error)

# %% tags=["remove-cell"]
if CHECKING:
    assert rates == [0.2] * (6 * 2 + 6 * 3)

# %% [markdown]
# ### How weights start
#
# The paper doesn't say. We take the rule of the authors' code.
#
# :::{admonition} Glorot's rule, and how large a signal leaves a network
# :class: dropdown
# tensor2tensor uses Glorot's (Xavier's) uniform rule for every matrix, zero for biases, and $\mathcal{N}(0, 1/d_\text{model})$, a standard deviation of $d_\text{model}^{-0.5}$, for the [embedding](07_embeddings.ipynb#why-multiply-by-the-square-root-of-). Glorot's rule {cite:p}`glorot2010understanding` draws the numbers of a matrix uniformly between
#
# $$
# \pm\sqrt{\frac{6}{\text{rows} + \text{columns}}}, \qquad \text{a standard deviation of } \sqrt{\frac{2}{\text{rows} + \text{columns}}}.
# $$ (eq-glorot)
#
# It's a compromise: to keep the size of a signal, the deviation should be $1/\sqrt{\text{rows}}$ on the way forward and $1/\sqrt{\text{columns}}$ on the way back. In a feed-forward network of the base model it's $\sqrt{2/2560} = 0.028$, and a signal of size 1 leaves the first matrix at $0.028\sqrt{512} = 0.63$. ReLU halves the mean square, a factor of 0.71, and the second matrix gives $0.028\sqrt{2048} = 1.26$. Together that's 0.56.
#
# What counts as a matrix makes a difference. Our query projection is 512 by 512 and starts at $\sqrt{2/1024} = 0.044$. PyTorch's `nn.MultiheadAttention` stacks query, key and value into one matrix of 1,536 columns before it applies the rule, and so starts at $\sqrt{2/2048} = 0.031$.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the measured size, next to 0.56", "code_prompt_hide": "Hide the measured size"}
torch.manual_seed(0)
network = FeedForward(512, 2048)
initialize(network)
print(f"size after the network: {network(torch.randn(1000, 512)).std():.2f}")

# %% [markdown]
# :::{admonition} Why layers aren't copied
# :class: dropdown
# A popular shortcut makes one layer and copies it. The copies start equal, and the figure below shows that neighbors are then pushed in similar directions. Harvard's *Annotated Transformer* copies and then draws every matrix anew, which leaves only the biases equal. What a copied start costs in the end, we haven't measured.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show whether copied layers learn the same", "code_prompt_hide": "Hide the copied layers", "figure": {"name": "fig-copied-layers", "caption": "Do copied layers learn the same? Cosine of the first gradients of two encoder layers, for the matrix $W_1$ of their networks. Left: layers made one by one; no two are pushed in similar directions. Right: layers copied from the first; neighbors have a cosine of 0.54 to 0.66, the first and the last 0.01. Purple is positive."}}


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
layers = [f"layer {i}" for i in range(1, 5)]
look = {"signed": True, "cell": 44}
charts = [
    heatmap(m, layers, layers, titles=("", name), **look) for name, m in cosines.items()
]
show(
    alt.hconcat(*charts),
    alt="Off the diagonal: near 0 one by one, up to 0.66 if copied.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        cosines["made one by one"][0, 1].abs() < 0.1 and cosines["copied"][0, 1] > 0.5
    )

# %% [markdown]
# ### The loss before training is ln |V|
#
# A model that knows nothing should give every word a chance of about $1/|V|$ and have a loss near $\ln |V|$, 6.9 for 1,000 words. Check it first in every run: if it's much higher, the start is wrong; if much lower, the answer leaks. Our start adds about half a nat from three layers on. A single layer adds two, because it [repeats its input](#the-model-learns-to-copy).
#
# :::{admonition} Why half a nat more, and why a pre-norm model repeats its input
# :class: dropdown
# The untrained logits already spread with some variance $s^2$, so the model is a little overconfident. Since $e^z$ has the mean $e^{s^2/2}$ for normal logits with mean 0, the price is half the variance:
#
# $$
# \text{loss} \approx \ln |V| + \tfrac12 s^2
# $$ (eq-first-loss)
#
# With an embedding of size 1, PyTorch's default, one word takes all, the formula no longer holds, and the loss starts above fifty.
#
# The shared table has another effect at the start: a pre-norm model repeats its input. The word that goes in stays on the stream, and the row most like it is its own. Post-norm shrinks it at each of nine norms. The two cells below measure both.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the first loss for four ways to start the table", "code_prompt_hide": "Hide the first losses"}
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

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show how much of its input an untrained model repeats", "code_prompt_hide": "Hide the repeated input"}
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
if CHECKING:
    assert repeats[False] < 0.9 < repeats[True]

# %% [markdown]
# ### Counting parameters
#
# Base has 63.05 million parameters: 30% of them in the table, 30% in the 18 attentions and 40% in the 12 feed-forward networks. The paper says 65. (If you find 82 million somewhere, the table was counted twice.)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the sum for base", "code_prompt_hide": "Hide the sum"}
attention, network, norm = 4 * 512**2, 2 * 512 * 2048 + 2048 + 512, 2 * 512
encoder_layer = attention + network + 2 * norm
decoder_layer = 2 * attention + network + 3 * norm
by_hand = 37_000 * 512 + 6 * (encoder_layer + decoder_layer)
print(f"attention {attention:,}, network {network:,}, norm {norm:,}")
print(f"together {by_hand:,}")

# %% tags=["remove-cell"]
if CHECKING:
    assert parameter_count(preset("base")) == by_hand


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show where the parameters sit and where the work goes, for each row of Table 3", "code_prompt_hide": "Hide where the parameters sit", "figure": {"name": "fig-parameters", "caption": "Where do the parameters of each row of Table 3 sit, and where does the work go? Choose what is shown. Blocks from left to right, the same in each row: the table, self-attention of both stacks, cross-attention, feed-forward networks; numbers in millions. Norms, biases and learned positions, together at most 0.6, are left out. A tick is the paper's count, where it gives one; it lies to the right of every bar but that of big, which it meets. Operations are multiplications for one source and one target token, in sentences of the given length."}}
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


IN_PAPER = {
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
blocks = {
    "table": RESIDUAL,
    "self-attention": PLUM,
    "cross-attention": SKY,
    "feed-forward": AMBER,
}
records = [
    {"n": n, "row": name, "block": block, "millions": count / 1e6, "order": i}
    for n in (0, 25, 1000)
    for name in drawn
    for i, (block, count) in enumerate(multiplications(preset(name), n).items())
]
paper = [{"row": name, "millions": millions} for name, millions in IN_PAPER.items()]


def bars(n, title):
    chosen = [r | {"text": f"{r['millions']:.0f}"} for r in records if r["n"] == n]
    scale = alt.Scale(domain=list(blocks), range=list(blocks.values()))
    legend = alt.Legend(title=None, symbolType="square", columns=2)
    x, y = (
        alt.X("millions:Q", stack="zero", title=title),
        alt.Y("row:N", sort=None, title=None),
    )
    base = alt.Chart(alt.Data(values=chosen), width=340, height=19 * len(drawn))
    base = base.encode(x, y, order="order:Q")
    color = alt.Color("block:N", scale=scale, sort=None, legend=legend)
    ticks = alt.Chart(alt.Data(values=paper if n == 0 else []))
    ticks = ticks.mark_tick(color=INK, thickness=2.5, size=17).encode(
        x="millions:Q", y=y
    )
    readable = alt.condition(
        "datum.millions > 5.5", alt.value(PAPER), alt.value("transparent")
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

# %% tags=["remove-cell"]
if CHECKING:
    for name in drawn:
        in_blocks = sum(multiplications(preset(name), 0).values())
        rest = parameter_count(preset(name)) - in_blocks
        assert rest < 0.7e6 and (name == "E-learned" or rest < 0.3e6)
    assert all(
        parameter_count(preset(name)) == by_hand for name in TABLE_3 if name[0] in "AD"
    )
    assert parameter_count(preset("E-learned")) - by_hand == 1024 * 512

# %% [markdown]
# :::{admonition} Why do the paper's counts differ from ours?
# :class: dropdown
# *Between* rows the paper's counts agree with ours within rounding: from 2 layers to 8 it adds 44 million (ours 44.1), from $d_\text{ff}$ 1024 to 4096 it adds 37 (37.8), from $d_k$ 16 to 64 it adds 7 (7.1). So the layers are right, and what we miss grows with the width, as a table does. Ten of the eleven counts come out right if the model had 4,004 to 4,208 rows of $d_\text{model}$ numbers more. What those rows were isn't known. The vocabulary of the authors' code had [40,960 rows](https://github.com/tensorflow/tensor2tensor/blob/006ecb50f6b63a18e0665d7d97869f95a3003dc1/tensor2tensor/data_generators/problem_hparams.py), and with the biases that its attention had at first, the same ten fit. `big` never does: 213 is *below* our 214.2.
# :::


# %% tags=["remove-cell"]
if CHECKING:

    def missing_rows(name):
        """Return the smallest and the largest number of extra table rows that give the paper's count."""
        width, ours = preset(name).d_model, parameter_count(preset(name))
        low, high = (
            IN_PAPER[name] * 1_000_000 + half - ours for half in (-500_000, 500_000)
        )
        return -(-low // width), high // width

    intervals = [missing_rows(name) for name in IN_PAPER if name != "big"]
    assert max(low for low, _ in intervals) == 4004
    assert min(high for _, high in intervals) == 4208 and missing_rows("big")[1] < 0
    released = {"vocabulary_size": 40_960, "attention_bias": True}
    for name, millions in IN_PAPER.items():
        count = parameter_count(replace(preset(name), **released))
        assert (round(count / 1e6) == millions) == (name != "big")

# %% [markdown]
# ### Six operations per weight
#
# Training takes six operations each time a token meets a weight, $9.5 \cdot 10^{17}$ in all for the paper's base model. What fills the memory is something else: the logits of one batch, for 25,000 target words, take 3.7 GB.
#
# :::{admonition} Where the six come from, and what the paper's number counts instead
# :class: dropdown
# In a matrix product each weight is used once for each token that passes: one multiplication and one addition. Source tokens meet one part of the weights and target tokens the rest, so one of each takes two operations per weight, $2 \cdot 63 = 126$ million. The backward pass costs twice as much, once for the gradient of the input and once for that of the weight. Training takes *six operations per weight* for such a pair, here 378 million, and the paper's training, 100,000 batches of 25,000 tokens per side, takes
#
# $$
# 6 \cdot 63 \cdot 10^6 \times 25{,}000 \times 100{,}000 = 9.5 \cdot 10^{17}.
# $$ (eq-training-cost)
#
# Its Table 2 says $3.3 \cdot 10^{18}$, because it counts what the machines could have done: 12 hours on 8 GPUs at $9.5 \cdot 10^{12}$ operations per second. They were busy with the model for 29% of that. [WMT14](29_wmt14.ipynb#what-it-will-take), which doesn't count padding as work, gets 28%.
#
# One cost doesn't show in the weights: attention's two products, $2 \cdot 512 \cdot n$ multiplications per token in each of 18 attentions, with $n$ tokens in a sentence. (The decoder's attention to itself is counted in full; some count only the half that its mask leaves open.) At 25 tokens that's less than 1%; it overtakes all matrices, 62.98 M without norms and biases, at $62.98 \text{ M} / 18{,}432 = 3{,}417$. The cell below lets PyTorch count for itself what a pass multiplies.
#
# Memory is another matter. Weights, gradients and Adam's two running means take four times 252 MB. But the logits of 25,000 target tokens alone are $25{,}000 \cdot 37{,}000 \cdot 4$ bytes, 3.7 GB: if a run dies at the loss for lack of memory, this is why.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show PyTorch's own count beside the formula", "code_prompt_hide": "Hide PyTorch's count"}
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
if CHECKING:
    assert counter.get_total_flops() == by_formula

# %% [markdown]
# ### No sentence depends on its neighbors
#
# :::{admonition} A limit for each
# :class: dropdown
# In a batch, `greedy_decode` gives each sentence a limit of its own, so what it writes is the same as for the sentence alone.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show a batch beside its sentences one by one", "code_prompt_hide": "Hide the batch"}
model = Transformer(toy).double().train()
together = greedy_decode(model, source, max_extra_tokens=6)
alone = [
    greedy_decode(model, row[row != PAD][None], max_extra_tokens=6)[0] for row in source
]
print("untrained, in a batch:", together)
print("untrained, alone:     ", alone)

# %% tags=["remove-cell"]
if CHECKING:
    assert together == alone and model.training

# %% [markdown]
# ## Sources
#
# Model, Table 3, training cost and length limit are from {cite:t}`vaswani2017attention`. The shared table is from {cite:t}`press2017using`. The shape of a page that builds the whole model and then lets it copy is due to {cite:t}`rush2018annotated`.
