# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Positional encoding
#
# A positional encoding is a vector that is added to each word's embedding and tells the model where in the sentence the word stands (section 3.5 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("positional_encoding")

# %% tags=["export", "hide-input"]
import torch
from torch import Tensor, nn

# %% [markdown]
# ## Attention is blind to order
#
# *Der Hund beißt den Mann* says that the dog bites the man. Exchange the two nouns, and the man bites the dog, in the same five words. The translator of the book's first page keeps the two apart. We take its positions away and ask again. What do you expect in the second line?

# %% tags=["nbval-ignore-output"]
from annotated_transformer import load_pretrained
from annotated_transformer.masks import EOS
from annotated_transformer.transformer import greedy_decode

model, tokenizer = load_pretrained("everyday-de-en")
pair = "Der Hund beißt den Mann.", "Der Mann beißt den Hund."


def english(german):
    source = torch.tensor([[*tokenizer.encode(german), EOS]])
    return tokenizer.decode(greedy_decode(model, source)[0])


print([english(german) for german in pair])
model.positions.table.zero_()  # take the positions away
print([english(german) for german in pair])

# %% tags=["remove-cell"]
if CHECKING:
    assert [english(german) for german in pair] == ["The man bites the dog."] * 2
    model, tokenizer = load_pretrained("everyday-de-en")
    assert english(pair[0]) == "The dog bites the man."
    assert english(pair[1]) == "The man is biting the dog."

# %% [markdown]
# Without positions, both sentences get the same translation, and no training could mend that. To see why, let $P$ be a matrix that shuffles rows. With the words in another order, the scores become $PQ\,(PK)^\top = P\,QK^\top P^\top$, the same numbers in other rows and columns. The softmax works row by row, the values are shuffled too, and $P^\top P$ is the identity:
#
# $$
# \operatorname{softmax}(P\,QK^\top P^\top)\, P V = P \operatorname{softmax}(QK^\top)\, P^\top P\, V = P \operatorname{softmax}(QK^\top)\, V
# $$ (eq-permutation)
#
# Attention sees a bag of words. Its scores ask *what* a key is, never *where*, and the feed-forward network, which looks at one position at a time, can't help.
#
# ## What a position should look like
#
# **A plain count** 0, 1, 2, ... is the first idea. But beside word vectors with numbers of size 1, a 500 would drown everything.
#
# **A share of the length**, from 0 to 1, is bounded. But then one step is 0.25 in a sentence of five words and 0.02 in one of fifty, and "the word before" means something else in each sentence.
#
# **Binary digits** of the count are better: they are small, and no two positions have the same four:
#
# | position | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
# |---|---|---|---|---|---|---|---|---|---|
# | digits | 0000 | 0001 | 0010 | 0011 | 0100 | 0101 | 0110 | 0111 | 1000 |
#
# The last digit flips at every step, the one before at every second, the next at every fourth. Each digit is a wave with half the speed of its neighbor on the right. But the waves jump: from 7 to 8 all four digits flip, although the places are neighbors.
#
# So we make the waves smooth. Each becomes a clock, a little slower than the one before, and we write down where its hand points: a sine and a cosine.

# %% tags=["hide-input"]
import math

import altair as alt
import matplotlib.pyplot as plt

from annotated_transformer import check
from annotated_transformer.attention import attention
from annotated_transformer.masks import causal_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from benchmarks.common import read_log
from book.example import FEATURES, WORDS, X
from book.figures import (
    INK,
    POSITION,
    SKY,
    curves,
    heatmap,
    show,
    show_plot,
    show_steps,
)
from book.figures import signed_colors, style

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-clocks", "caption": "How can sines tell where? The first four of the eight clocks of $d_\\text{model} = 16$ at the position that you choose. A sine says how far the tip of a hand is to the right, a cosine how far up; the dots are where it stood at the six positions before. Together the hands are different at every position."}}
SIDE, FACE = 140, 128  # pixels of a clock: its picture, its diameter
axis = {"axis": None, "scale": alt.Scale(domain=[-SIDE / FACE, SIDE / FACE])}
plane = alt.Chart(width=SIDE, height=SIDE)
plane = plane.encode(alt.X("sin:Q", **axis), alt.Y("cos:Q", **axis))
center = {"x": alt.value(SIDE / 2), "y": alt.value(SIDE / 2)}
round_it = math.pi * (FACE - 7)  # for twelve marks, a dashed line inside of the rim
hours = {"strokeWidth": 7, "strokeDash": [1, round_it / 12 - 1], "stroke": INK}


def clock(i, position):
    angles = [p * 10 ** (-i / 2) for p in range(position + 1)]
    tips = [{"sin": math.sin(angle), "cos": math.cos(angle)} for angle in angles]
    before = plane.properties(data=alt.Data(values=tips[-7:]))
    now = plane.properties(data=alt.Data(values=tips[-1:]))
    middle = now.encode(**center)
    hand = now.mark_rule(color=POSITION, strokeWidth=5, strokeCap="round")
    values = ", ".join(f"{name} {value:.2f}" for name, value in tips[-1].items())
    title = f"one turn in {2 * math.pi * 10 ** (i / 2):.0f}"
    return alt.layer(
        middle.mark_circle(size=FACE**2, color=POSITION, fillOpacity=0.1, stroke=INK),
        middle.mark_circle(size=(FACE - 7) ** 2, fillOpacity=0, **hours),
        before.mark_circle(color=POSITION, size=60, opacity=0.5),
        hand.encode(x2=center["x"], y2=center["y"]),
        middle.mark_circle(size=130, color=INK, opacity=1),
    ).properties(
        title={
            "text": title,
            "subtitle": values.replace("-", "\u2212"),
            "anchor": "middle",
        }
    )


label = "At position {}, the first hand has done {:.2f} turns, the second {:.2f}, the last {:.2f}."
steps = {}
for p in (0, 1, 2, 3, 4, 5, 10, 20, 30):
    turns = [p * 10 ** (-i / 2) / (2 * math.pi) for i in (0, 1, 3)]
    steps[str(p)] = [clock(i, p) for i in range(4)], label.format(p, *turns)
show_steps(steps, "Position:", start=5)

# %% [markdown]
# ## The code
#
# Let $p$ be the position, and let $i$ count *pairs* of columns, from 0 to $d_\text{model}/2 - 1$. Each pair is a clock, whose hand turns by the angle $\omega_i$ at every step:
#
# $$
# PE_{p,\,2i} = \sin(p\,\omega_i), \qquad
# PE_{p,\,2i+1} = \cos(p\,\omega_i), \qquad
# \omega_i = 10000^{-2i/d_\text{model}}
# $$ (eq-sinusoid)
#
# **Exercise 1. Write it first** (★★, 15 min). Before you read on, write `positions(length, d_model)`, with loops and `math` if you like, that returns a tensor. `check("positions", positions)` from `annotated_transformer` says whether it is right.


# %% tags=["export"]
def sinusoid(length: int, d_model: int) -> Tensor:
    """Return the encodings of positions 0 .. length - 1 as (length, D), D even (section 3.5)."""
    position = torch.arange(length, dtype=torch.float64)
    omega = 10_000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = torch.outer(position, omega)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)
    return pairs.reshape(length, d_model).to(torch.get_default_dtype())


# %% [markdown]
# `torch.arange(0, d_model, 2)` is $2i$ already.

# %% tags=["remove-cell"]
if CHECKING:
    PE = sinusoid(5, 6).double()
    assert (PE[:, 5] > 0.99).all()
    # number by number
    table, largest = sinusoid(50, 16), 0.0
    for p in range(50):
        for i in range(8):
            angle = p / 10_000 ** (2 * i / 16)
            sine, cosine = table[p, 2 * i : 2 * i + 2].tolist()
            largest = max(largest, abs(sine - math.sin(angle)))
            largest = max(largest, abs(cosine - math.cos(angle)))
    assert largest < 1e-6
    torch.testing.assert_close(table.square().sum(dim=1), torch.full((50,), 8.0))

# %% [markdown]
# In {numref}`fig-added` the encodings are added to our five words. In six columns, words and places collide; 512 have [room for both](#why-added-not-concatenated).

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-added", "caption": "How does a word learn its place? To the five words of chapter 3 are added the encodings of positions 0 to 4, here in six columns, which is three clocks. The first turns fast; the second has hardly started, and the third stands still at sine 0, cosine 1. The sum is what the model reads; `likes` keeps only half of its \u201cverb\u201d, because its position has \u22121 there. Rounded to one decimal; purple is positive, orange negative."}}
encodings = sinusoid(5, 6).double()
waves = ["sin 0", "cos 0", "sin 1", "cos 1", "sin 2", "cos 2"]
places = [f"at {p}" for p in range(5)]
look = {"signed": True, "limit": 3, "cell": 26}
show(
    heatmap(X, WORDS, FEATURES, titles=("", "word"), **look),
    heatmap(
        encodings.round(decimals=1), places, waves, titles=("", "position"), **look
    ),
    heatmap(
        (X + encodings).round(decimals=1), WORDS, FEATURES, titles=("", "sum"), **look
    ),
    alt="Each row of the sum is the word's row plus its position's row. From position to position only the first two columns of the encoding change much.",
)

# %% [markdown]
# The number of positions for one turn is a clock's **wavelength**, $2\pi / \omega_i$. For the base model:

# %%
for i in (0, 64, 128, 192, 255):
    wavelength = 2 * torch.pi * 10_000 ** (2 * i / 512)
    print(f"clock {i:3}: one turn in {wavelength:8,.1f} positions")

# %% [markdown]
# Like the hour hand beside the second hand, the slow clocks say roughly where we are, and the fast ones tell neighbors apart. One clock wouldn't do: clock 0 nearly repeats itself after 44 steps ($44 / 2\pi = 7.003$ turns), and the slowest turns by only 0.0001 radians per step. With the base 10000, no text that the model reads comes near the slowest clock's full turn.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sinusoid", "caption": "What does a position look like? Each row is the vector of a position, here with 64 columns. Fast clocks are on the left, where the pattern repeats; on the right are stripes, because these clocks have hardly left the top: every sine is near 0, every cosine near 1."}}
style()
fig, axis = plt.subplots(figsize=(4.8, 3))
look = {"cmap": signed_colors(), "vmin": -1, "vmax": 1, "aspect": "auto"}
picture = axis.imshow(sinusoid(50, 64), interpolation="none", **look)
axis.set(xlabel="column of the vector", ylabel="position in the sentence")
fig.colorbar(picture, label="value")
show_plot(
    alt="A table of 50 positions by 64 columns. The left columns alternate quickly from row to row; the right columns are stripes that hardly change.",
)

# %% [markdown]
# No position is louder than another: since $\sin^2 + \cos^2 = 1$ for each clock, every row has the squared length $d_\text{model} / 2$.
#
# ## Why sine and cosine?
#
# A sine alone doesn't say where the hand is: it is 0.5 at 30 degrees and again at 150. Sine and cosine together do, and something better comes for free. A hand that advances by the angle $k\,\omega_i$ is rotated, and a rotation is a matrix:
#
# $$
# \begin{pmatrix} \sin((p + k)\,\omega_i) \\ \cos((p + k)\,\omega_i) \end{pmatrix} =
# \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}
# \begin{pmatrix} \sin p\,\omega_i \\ \cos p\,\omega_i \end{pmatrix}
# $$ (eq-shift)
#
# There is no $p$ in the matrix, so "three places on" is one linear map wherever we start. That is what the paper hoped for: a head that looks three words back has a single matrix to learn.
#
# In {numref}`fig-look-back` a head uses it. Its queries are the positions, turned three steps back, and its keys the positions as they are. So the score is highest at $p - 3$, where the two agree.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-look-back", "caption": "Can attention look three places back? Weights of a head built by hand: its query matrix is ten times a rotation, its key matrix the identity, and the vectors are positions only. Rows 0 to 2 have nothing three places back and take the first position."}}


def shift_by(k, d_model):
    angles = k * 10_000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    blocks = [[[a.cos(), a.sin()], [-a.sin(), a.cos()]] for a in angles]
    return torch.block_diag(*[torch.tensor(block).double() for block in blocks])


table, shift = sinusoid(100, 64).double(), shift_by(3, 64)
places = table[:8]
_, weights = attention(10 * places @ shift, places, places)
at = [str(p) for p in range(8)]
show(
    heatmap(weights, at, at),
    alt="From row 3 on, most weight lies three columns to the left of the diagonal.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert weights.argmax(dim=-1).tolist() == [0, 0, 0, 0, 1, 2, 3, 4]
    torch.testing.assert_close(table[:-3] @ shift.T, table[3:], atol=1e-5, rtol=0)

# %% [markdown]
# ### How alike two positions are
#
# A rotation keeps lengths and angles, so the dot product of two encodings depends on their distance alone:
#
# $$
# PE_p \cdot PE_{p+k} = \sum_{i} \big(\sin p\omega_i \sin (p+k)\omega_i + \cos p\omega_i \cos (p+k)\omega_i\big) = \sum_{i} \cos k\omega_i
# $$ (eq-distance)
#
# From a table of 100 positions and 64 columns, we take all 95 pairs of places at distance 5, once with both parts and once with the sines alone:

# %%
table = sinusoid(100, 64).double()
sines = table[:, 0::2]
for name, part in (("sine and cosine", table), ("sines alone", sines)):
    products = (part @ part.T).diagonal(5)
    print(f"{name}: {products.min():.2f} to {products.max():.2f}")

# %% [markdown]
# The plain dot product doesn't tell which of the two places comes first. That needs a rotation between query and key, and learned $W^Q$ and $W^K$ can contain one.
#
# ## Why added, not concatenated?
#
# Putting word and place side by side, $[x;\,p]$, looks cleaner. But look at what comes next, a multiplication by a learned matrix:
#
# $$
# [x;\,p] \begin{pmatrix} W_x \\ W_p \end{pmatrix} = x\,W_x + p\,W_p
# \qquad\text{and}\qquad
# (x + p)\,W = x\,W + p\,W
# $$ (eq-add)
#
# Adding is concatenating with one matrix, $W$, for both parts. That gives up some freedom, and it saves width: doubling $d_\text{model}$ would make every matrix of the model larger. That would matter only if words and positions needed the same directions. They needn't: 16 of the 512 directions hold 99% of the squared length of the first fifty positions. That leaves nearly 500 for the words, and because their table is learned, training can move them there.

# %% tags=["remove-cell"]
if CHECKING:
    sizes = torch.linalg.svdvals(sinusoid(50, 512).double()).square()
    needed = int((sizes.cumsum(0) < 0.99 * sizes.sum()).sum()) + 1
    assert needed == 16

# %% [markdown]
# ## Adding positions in code
#
# Positions are added once, at the bottom; source and target both count from 0. But when a sentence is written word by word, the new word isn't at 0. So we cut the rows from `offset` on out of the table:


# %% tags=["export"]
class Positions(nn.Module):
    """Add to each vector the row of a table (length, D) that belongs to its position."""

    table: Tensor

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add rows offset .. offset + T - 1 to x (B, T, D), whose first vector is at offset.

        Raises:
            ValueError: the table has too few rows.
        """
        end = offset + x.size(-2)
        if end > len(self.table):
            raise ValueError(
                f"{end} positions are needed, the model has {len(self.table)}: "
                "shorten the sentence, or build the model with a larger max_length"
            )
        return x + self.table[offset:end]


# %% [markdown]
# The sinusoids are a *buffer*: they move with the module to a GPU, but they aren't trained, and with `persistent=False` not saved.


# %% tags=["export"]
class SinusoidalPositions(Positions):
    """Add the fixed sinusoids of section 3.5."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid(max_length, d_model), persistent=False)


# %% [markdown]
# A sentence read word by word must give the same vectors as the whole. Forget the offset, and every word claims to be the first:

# %%
torch.manual_seed(0)
words = torch.randn(1, 6, 16)
positions = SinusoidalPositions(d_model=16, max_length=100)
for name, step in (("with the offset", 1), ("without", 0)):
    one_by_one = [positions(words[:, t : t + 1], offset=t * step) for t in range(6)]
    difference = torch.cat(one_by_one, dim=1) - positions(words)
    print(f"{name}: off by {difference.abs().max():.2f}")

# %% [markdown]
# :::{what-if} positions
# Does the order of the words matter to the model? Above is a sentence, below the same words shuffled; on the left the model has positions, on the right it hasn't. Each map shows where the words of the translation look in the source (the last layer's cross-attention in percent, the mean of its heads). Without positions both orders get the same translation, and only the columns of the map change places. Shuffle your own.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/08_positional_encoding.html#fig-what-if-positions).
# :::
#
# ## Learned positions
#
# We could also learn the table, one row for each position. In row E of the paper's Table 3 that gives 25.7 BLEU, against 25.8 with the sinusoids. The paper kept the sinusoids, hoping that they carry over to sentences longer than any in training. A learned table starts as noise, has no row beyond its last, and trains a row only with sentences that reach it.


# %% tags=["export"]
class LearnedPositions(Positions):
    """Add a learned vector for each position (section 3.5; row E of Table 3)."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)


# %% [markdown]
# ## Beyond the trained length
#
# The sinusoids are defined for every position, but can a model follow? If no training sentence has more than 50 tokens, only the clocks with a wavelength below 50 have been all the way round, 58 of the base model's 256. The others go on to point where they have never pointed.
#
# [The captions model](05_multi_head_attention.ipynb#how-heads-differ) has learned from short captions, each beginning at position 0. Let 500 new captions begin elsewhere, source and target alike. All distances stay the same, so a model that used only distances would not notice. Will this one?

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-beyond", "caption": "Does a trained model mind where a sentence begins? Mean loss of the captions model on 500 validation captions, by the position of the first token. From 25 on the loss stays between 1.96 and 2.15, most of the way to the loss with all positions set to zero (dashed). Measured by `benchmarks/experiments/beyond.py`."}}
settings, without, *lines = read_log("beyond")
by_start = {line["first"]: line["loss"] for line in lines}
records = [
    {"first": first, "loss": round(loss, 2), "table": "with positions"}
    for first, loss in by_start.items()
]
records += [
    {"first": first, "loss": round(without["loss"], 2), "table": "without"}
    for first in (0, 200)
]
looks = {"with positions": (POSITION, [1, 0]), "without": (SKY, [4, 3])}
y = alt.Y("loss:Q", scale=alt.Scale(zero=True), title="loss, nats per token")
x = alt.X("first:Q", title="position of the first token")
names = {"with positions": (100, "below"), "without": (0, "above right")}
show(
    curves(records, x, y, "table", looks, names),
    alt="The loss rises from 1.46 at a start of 0 to 2.03 at 25 and then wavers around 2.03. Without any positions it is 2.15.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert settings["sentences"] == 500 and settings["up_to_20_tokens"] == 0.83
    far = [loss for first, loss in by_start.items() if first >= 25]
    assert [round(by_start[first], 2) for first in (0, 25)] == [1.46, 2.03]
    assert round(min(far), 2) >= 1.96 and round(max(far), 2) == 2.15
    assert round(without["loss"], 2) == 2.15
    assert round(256 * math.log(50 / (2 * math.pi)) / math.log(10_000)) == 58

# %% [markdown]
# It does notice: a start at 25 raises the loss by 0.57. More than four in five German captions are over after 20 tokens, so in training the model met few words beyond, and it has learned the places themselves, not just distances.
#
# ## What to remember
#
# - Attention is blind to order: shuffled words give shuffled answers and nothing else.
# - The sinusoids are clocks. In the base model a turn takes between 6.3 and 60,611 positions, however long sentences are.
# - Sine and cosine together make a shift a rotation, the same at every position.
# - Adding a position is like concatenating it and using one matrix for both parts.
# - Sinusoids go on forever; our model, trained on short captions, does worse where it has never been.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** is [above](#the-code).
#
# :::{admonition} Solution 1
# :class: dropdown
# Columns $2i$ and $2i + 1$ have the same $\omega_i$, so subtract from the column what is odd about it:
#
# ```python
# def positions(length, d_model):
#     rows = torch.zeros(length, d_model)
#     for p in range(length):
#         for column in range(d_model):
#             angle = p / 10_000 ** ((column - column % 2) / d_model)
#             rows[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
#     return rows
# ```
# :::

# %% tags=["remove-cell"]
if CHECKING:

    def positions_by_loops(length, d_model):
        rows = torch.zeros(length, d_model)
        for p in range(length):
            for column in range(d_model):
                angle = p / 10_000 ** ((column - column % 2) / d_model)
                rows[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
        return rows

    assert check("positions", positions_by_loops)

# %% [markdown]
# **2. The column instead of the pair** (★★, 15 min). Somebody takes $i$ for the column, so that column $c = 0, 2, 4, \dots$ gets the rate $10000^{-2c/d_\text{model}}$. Which wavelength has the slowest of the 256 clocks of the base model then? And what is lost?
#
# :::{admonition} Solution 2
# :class: dropdown
# The right exponent of the last clock is $510/512$, the wrong one $1020/512$, so it needs $2\pi \cdot 10000^{1020/512} = 585$ million positions for a turn. All exponents are twice what they should be, and the slow clocks stand still: over 100 positions, 57% of the columns move by less than 0.01, where in the right table 14% do. These columns say nothing.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    slowest = 2 * math.pi * 10_000 ** (1020 / 512)
    column = torch.arange(0, 512, 2, dtype=torch.float64)
    still = []
    for exponent in (column / 512, 2 * column / 512):
        angle = torch.outer(torch.arange(100.0).double(), 10_000**-exponent)
        both = torch.cat([angle.sin(), angle.cos()], dim=1)
        still.append((both.amax(0) - both.amin(0) < 0.01).double().mean().item())
    quoted = round(slowest / 1e6), *(round(100 * share) for share in still)
    assert quoted == (585, 14, 57), quoted

# %% [markdown]
# **3. The maximum length as base** (★★, 20 min). Somebody takes `max_length` for the base instead of 10000, trains with 50, and raises it to 100 later. How alike are the vectors of positions 5, 20 and 49 before and after, by their cosine? Think of the clocks first, then compute it for $d_\text{model} = 512$.
#
# :::{admonition} Solution 3
# :class: dropdown
# Every clock but the first gets another rate, so the hands point elsewhere, and the more so the further they have turned. The cosine of the two vectors is the mean of the cosines of the angles between the hands,
#
# $$ \frac{1}{256} \sum_{i=0}^{255} \cos\!\big(p\, (50^{-2i/512} - 100^{-2i/512})\big), $$
#
# and that is 0.98 at position 5, 0.71 at position 20 and −0.12 at position 49. To a model trained with the one, most positions of the other are unfamiliar. With a constant base, `max_length` only says how many rows the table has.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    exponent = torch.arange(0, 512, 2, dtype=torch.float64) / 512
    turned = 50.0**-exponent - 100.0**-exponent
    likeness = [round((p * turned).cos().mean().item(), 2) for p in (5, 20, 49)]
    assert likeness == [0.98, 0.71, -0.12], likeness

# %% [markdown]
# ## Further
#
# ### Rotary positions (RoPE)
#
# Most of today's language models add nothing to the words. Rotary position embedding (**RoPE**, {cite:t}`su2021roformer`) turns queries and keys instead, in each layer. At position $p$, every pair of their columns is rotated by the angle $p\,\omega_i$, as in {eq}`eq-shift`, so that a score depends on positions only through their difference. [What has changed since 2017](25_since_2017.ipynb#rotary-positions) has the code.
#
# ### Doesn't the causal mask tell the order?
#
# In part. With one layer of the decoder, a position still sees the words before it as an unordered bag: shuffle the first five of six words, and the output of the last one stays as it was. From the second layer on, the earlier words have seen different sets, and it moves. So a deep decoder can work out the order, and there are language models without any positions (NoPE). The encoder has no such mask.

# %% tags=["remove-cell"]
if CHECKING:
    torch.manual_seed(0)
    layer = MultiHeadAttention(d_model=16, heads=2).double()
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    y = x[:, [3, 1, 4, 0, 2, 5]]  # the last word stays
    once = [layer(z, z, z, causal_mask(6)) for z in (x, y)]
    twice = [layer(z, z, z, causal_mask(6)) for z in once]
    stayed, moved = [(a - b)[:, -1].abs().max().item() for a, b in (once, twice)]
    assert stayed < 1e-9 and moved > 0.01

# %% [markdown]
# ## Sources
#
# The sinusoids and the learned variant are from section 3.5 and row E of Table 3 of {cite:t}`vaswani2017attention`. Rotation: {cite:t}`su2021roformer`.
