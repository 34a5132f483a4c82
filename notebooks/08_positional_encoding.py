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
# # Positional encoding
#
# This chapter builds what tells the model where in the sentence a word stands (section 3.5 of the paper).
#
# *The dog bites the man* and *the man bites the dog* are made of the same words. To attention they are the same sentence. Nothing that we have built so far knows the order of its input, and for a translator that is fatal.
#
# The paper's cure looks odd at first sight: a table of sines and cosines, added to the words. Why sines? Why both kinds? Why added, and not put beside? We answer these by trying simpler things first. At the end we move a trained model's sentences to places it has never seen, and look at what happens.

# %% tags=["export"]
from collections.abc import Callable

import torch
from torch import Tensor, nn

# %%
import math

import altair as alt
import matplotlib.pyplot as plt
import torch.nn.functional as F

from annotated_transformer import load_pretrained
from annotated_transformer.attention import attention
from annotated_transformer.embeddings import Embedding
from book.figures import POSITION, RESIDUAL, curves, heatmap, show, style
from annotated_transformer.masks import BOS, EOS, causal_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %% [markdown]
# ## Attention is blind to order
#
# Let us shuffle the words of a sentence, attend, and undo the shuffle in the output.

# %%
torch.manual_seed(0)
layer = MultiHeadAttention(d_model=16, heads=2).double()
embedding = Embedding(vocabulary_size=20, d_model=16).double()
sentence = torch.tensor([[1, 8, 5, 9, 3, 2]])
order = torch.tensor([3, 1, 4, 0, 5, 2])
x = embedding(sentence)
y = x[:, order]
print("order makes no difference:", torch.allclose(layer(y, y, y), layer(x, x, x)[:, order]))

# %% [markdown]
# Each word gets exactly the vector it got before. The formula says why. Let $P$ be the matrix that shuffles rows. The scores become $PQ\,(PK)^\top = P\,QK^\top P^\top$: the same numbers, in other rows and columns. The softmax works row by row and does not mind. The values are shuffled as well, and $P^\top P$ is the identity:
#
# $$
# \operatorname{softmax}(P\,QK^\top P^\top)\, P V = P \operatorname{softmax}(QK^\top)\, P^\top P\, V = P \operatorname{softmax}(QK^\top)\, V
# $$ (eq-permutation)
#
# So attention sees a bag of words. Its scores ask *what* a key is, never *where*. A feed-forward network looks at one position at a time and cannot help.
#
# ### Does the causal mask not tell the order?
#
# A good objection. In the decoder a position sees the ones before it only, so places are not alike. We shuffle the first five words and look at the output of the last:

# %%
mask = causal_mask(6)
y = x[:, [3, 1, 4, 0, 2, 5]]  # the last word stays
once = [layer(z, z, z, mask) for z in (x, y)]
twice = [layer(z, z, z, mask) for z in once]
print("one layer, last output the same: ", torch.allclose(once[0][:, -1], once[1][:, -1]))
print("two layers, last output the same:", torch.allclose(twice[0][:, -1], twice[1][:, -1]))

# %% [markdown]
# One layer still sees a bag: the last word may look at all five, in whatever order. From the second layer on it differs, because the earlier words have seen different sets. So a deep decoder could work out the order. The encoder has no such mask and could not. The paper gives positions to both.
#
# ## What should a position look like?
#
# The place has to be put into the vectors. Let us give each position a vector of its own, and be clear about what we want from it.
#
# **A plain count** 0, 1, 2, ... is the first idea. It grows without bound: beside word vectors with numbers of size 1, a 500 would drown everything.
#
# **A share of the length**, from 0 to 1, is bounded. But then the same step means something else in each sentence. One step is 0.25 in a sentence of five words and 0.02 in one of fifty, and nobody could learn "the word before".
#
# **Binary digits** of the count are better. All numbers are 0 or 1, and no two positions are the same:
#
# | position | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
# |---|---|---|---|---|---|---|---|---|---|
# | digits | 0000 | 0001 | 0010 | 0011 | 0100 | 0101 | 0110 | 0111 | 1000 |
#
# The last digit flips at every step, the one before at every second, the next at every fourth. Each digit is a wave, twice as slow as its neighbor. What is left to complain about are the jumps: from 7 to 8 all four digits flip, although the places are neighbors.
#
# So we make the waves smooth. Each wave becomes the hand of a clock that turns at a steady rate, and each clock is slower than the one before. We write down where its hand points: a sine and a cosine.
#
# ## The formula
#
# With $\omega_i$ as the angle by which clock $i$ turns in one step, in radians:
#
# $$
# PE_{p,\,2i} = \sin(p\,\omega_i), \qquad
# PE_{p,\,2i+1} = \cos(p\,\omega_i), \qquad
# \omega_i = 10000^{-2i/d_\text{model}}
# $$ (eq-sinusoid)
#
# This is the paper's **positional encoding**. Here $p$ is the position and $i$ counts *pairs* of columns, from 0 to $d_\text{model}/2 - 1$. Clock 0 turns by one radian at each step, $\omega_0 = 1$, so it is round after $2\pi \approx 6.3$ positions. The number of positions for one turn is the **wavelength**, $2\pi / \omega_i$. For the base model:

# %%
for i in (0, 64, 128, 192, 255):
    print(f"clock {i:3}: one turn in {2 * math.pi * 10_000 ** (2 * i / 512):8,.1f} positions")

# %% [markdown]
# Every 64 clocks the wavelength is ten times as long, and the last clock needs almost $10000 \cdot 2\pi = 62{,}832$ positions. The fast clocks tell neighbors apart. The slow ones say roughly where in the text we are, like the hour hand beside the second hand.
#
# Would one clock do? Clock 0 alone cannot: 44 steps are seven turns nearly exactly ($44 / 2\pi = 7.003$), so positions 0 and 44 would look the same. The slowest clock alone tells all positions apart, but in a step it moves by 0.0001. No layer could use such a small difference. Each clock covers a range of distances, and 256 of them cover all.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-clocks", "caption": "How can sines tell where? The first four of the eight clocks of $d_\\text{model} = 16$. Each hand shows sine (to the right) and cosine (up) at one position; the dots are where it stood before. Move the slider on the website: the first clock runs, the last one creeps. Together the hands are different at every position."}}
names = [f"one turn in {2 * math.pi * 10 ** (i / 2):.0f}" for i in range(4)]
records = [{"clock": names[i], "w": 10 ** (-i / 2), "q": q} for i in range(4) for q in range(61)]
slider = alt.binding_range(min=0, max=60, step=1, name="position ")
hand_at = {"x": "sin(datum.q * datum.w)", "y": "cos(datum.q * datum.w)", "zero": "0"}
axis = {"axis": None, "scale": alt.Scale(domain=[-1.1, 1.1])}
base = alt.Chart(width=110, height=110).transform_calculate(**hand_at)
base = base.encode(alt.X("x:Q", **axis), alt.Y("y:Q", **axis))
dots = base.transform_filter("datum.q <= place").mark_circle(color=POSITION)
hand = base.transform_filter("datum.q == place").mark_rule(color=POSITION, strokeWidth=3)
dots = dots.add_params(alt.param("place", value=5, bind=slider))
chart = alt.layer(dots, hand.encode(x2="zero:Q", y2="zero:Q"), data=alt.Data(values=records))
show(
    chart.facet(alt.Column("clock:N", sort=names, title=None)),
    alt="After five steps the first hand is most of the way round, the second has done a quarter, the last has hardly moved.",
)

# %% [markdown]
# ### The sinusoids in code
#
# We need one angle for each position and clock, $p\,\omega_i$: an outer product of shape (length, D / 2). Then the sine and cosine of each.


# %% tags=["export"]
def sinusoid(length: int, d_model: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the paper's encodings of positions 0 .. length - 1 as (length, D) (section 3.5).

    They are computed in double precision and rounded once, to dtype (None: the default type).

    Raises:
        ValueError: d_model is odd, so that a sine would be left without its cosine.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sine and cosine come in pairs, make it even")
    position = torch.arange(length, dtype=torch.float64)
    rate = 10_000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = torch.outer(position, rate)
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)
    return pairs.flatten(-2).to(dtype or torch.get_default_dtype())


# %% [markdown]
# Two lines deserve a word. `torch.arange(0, d_model, 2)` is $2i$ already, so no 2 stands before it. And the last line interleaves. Stacking on a new last axis gives (length, D / 2, 2), a sine and a cosine for each clock. Flattening the last two axes puts the pairs in a row: sine, cosine, sine, cosine.
#
# We compute in double precision and round once, at the end. A number in single precision has about seven digits. The angle at position 100,000 has used five of them before the point, and a sine lives behind the point:

# %%
rate = 10_000 ** (-torch.arange(0, 512, 2, dtype=torch.float64) / 512)
single, double = (100_000 * rate.float()).sin(), (100_000 * rate).sin()
print(f"largest difference: {(single - double).abs().max():.3f}")

# %% [markdown]
# Many programs write the power as $e^{-2i \ln(10000) / d_\text{model}}$. It is the same number, since $a^b = e^{b \ln a}$. Our check computes every cell by itself, the sines in this form and the cosines in the other.

# %%
table = sinusoid(50, 16)
for p in range(50):
    for i in range(8):
        assert abs(table[p, 2 * i] - math.sin(p * math.exp(-2 * i * math.log(10_000) / 16))) < 1e-6
        assert abs(table[p, 2 * i + 1] - math.cos(p / 10_000 ** (2 * i / 16))) < 1e-6
print(tuple(table.shape), "first row", table[0, :4].tolist())

# %% [markdown]
# Position 0 is not a zero vector. All hands point up: sine 0, cosine 1. And no position is louder than another: $\sin^2 + \cos^2 = 1$ for each clock, so every row has the squared length $d_\text{model} / 2$, which is 8 here.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sinusoid", "caption": "What does a position look like? Each row is the vector of a position. Fast clocks are on the left, slow ones on the right. Purple is +1, orange is \u22121."}, "image": {"alt": "A table of 50 positions by 64 columns. The left columns alternate quickly from row to row; the right columns hardly change."}}
style()
fig, axis = plt.subplots(figsize=(7.5, 3.4))
picture = axis.imshow(sinusoid(50, 64), cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
axis.set(xlabel="column of the vector", ylabel="position in the sentence")
fig.colorbar(picture, label="value")
plt.show()

# %% [markdown]
# On the left, neighboring rows differ strongly and the pattern repeats. On the right there are stripes: these clocks have hardly left the top, so every sine is near 0 and every cosine near 1. In a book of 50,000 tokens the stripes, too, would turn into waves.
#
# ### Sine and cosine in turn, or one half each?
#
# The formula interleaves them. The authors' code puts all sines first and all cosines after. It is another order of the same columns. The vector is multiplied by a learned matrix next, and a matrix with its rows in that order gives the same result. Only do not load weights that were trained with the other order.

# %%
halves = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
W = torch.randn(16, 5)
W_halves = torch.cat([W[0::2], W[1::2]])
print("same result:", torch.allclose(table @ W, halves @ W_halves, atol=1e-5))

# %% [markdown]
# ## Why sine *and* cosine?
#
# With a sine alone we know how far to the right a hand points, but not whether it is going up or down: it is 0.5 at 30 degrees and again at 150. With both, the place on the circle is known, and something better comes for free. A hand that advances by the angle $k\,\omega_i$ is rotated, and a rotation is a matrix:
#
# $$
# \begin{pmatrix} \sin((p + k)\,\omega_i) \\ \cos((p + k)\,\omega_i) \end{pmatrix} =
# \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}
# \begin{pmatrix} \sin p\,\omega_i \\ \cos p\,\omega_i \end{pmatrix}
# $$ (eq-shift)
#
# There is no $p$ in the matrix. So "three places on" is one linear map, the same wherever we start. That is what the paper hoped for: a head that is to look three words back needs to learn one matrix. We build it, a small rotation for each clock, and check it at every position.


# %%
def shift_by(k, d_model):
    angles = k * 10_000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    blocks = [[[a.cos(), a.sin()], [-a.sin(), a.cos()]] for a in angles]
    return torch.block_diag(*[torch.tensor(block) for block in blocks]).double()


table, shift = sinusoid(100, 64).double(), shift_by(3, 64)
torch.testing.assert_close(table[:-3] @ shift.T, table[3:], atol=1e-5, rtol=0)
torch.testing.assert_close(shift @ shift.T, torch.eye(64).double())  # it keeps lengths and angles
print("one matrix shifts all", len(table) - 3, "positions by 3")

# %% [markdown]
# ### A head that looks three words back
#
# Now use the matrix. Let queries be the positions moved three back, $PE_p\,S$, where $S$ is the matrix of a shift by three. (Its transpose moves on, so $S$ moves back.) Let keys be the positions as they are. The score is highest where the two agree, at $p - 3$. The factor 10 makes the head sure.

# %%
places = table[:8]
_, weights = attention(10 * places @ shift, places, places)
print("looks most at:", weights.argmax(dim=-1).tolist())

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-look-back", "caption": "Can attention look three places back? Weights of a head whose query matrix is a rotation and whose key matrix is the identity; the vectors are positions only. Rows 0 to 2 have nothing three places back and take the nearest. Built by hand, not learned."}}
at = [str(p) for p in range(8)]
show(
    heatmap(weights, at, at),
    alt="From row 3 on, most weight lies three columns to the left of the diagonal.",
)

# %% [markdown]
# ## How alike are two positions?
#
# A rotation keeps lengths and angles. So the dot product of two encodings depends on their distance alone, not on where they are:
#
# $$
# PE_p \cdot PE_{p+k} = \sum_{i} \big(\sin p\omega_i \sin (p+k)\omega_i + \cos p\omega_i \cos (p+k)\omega_i\big) = \sum_{i} \cos k\omega_i
# $$ (eq-distance)
#
# At distance 0 every cosine is 1, and the sum is $d_\text{model}/2$. With sines alone it would not work:

# %%
products = table @ table.T
sines = table[:, 0::2] @ table[:, 0::2].T
for name, matrix in (("sine and cosine", products), ("sines alone", sines)):
    same = torch.allclose(matrix.diagonal(5), matrix[0, 5], atol=1e-4)
    print(f"{name}: one value for all pairs at distance 5: {same}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-position-products", "caption": "How alike are two positions? Dot product of one position with all others, divided by its value at distance 0, for 512 columns. Choose the position with the slider on the website: the curve of the sinusoids (solid) slides along and keeps its shape. A learned table before training (dashed) is alike only to itself; it has to learn that 49 is next to 50."}}
looks = {"sinusoids": (POSITION, [1, 0]), "learned, at the start": (RESIDUAL, [4, 3])}
random = torch.Generator().manual_seed(0)
learned = torch.randn(101, 512, generator=random)
records = [
    {"p": p, "q": q, "alike": round(v, 2), "table": name}
    for name, rows in zip(looks, (sinusoid(101, 512), learned))
    for p in range(10, 100, 20)
    for q, v in enumerate((rows @ rows[p] / rows[p].square().sum()).tolist())
]
slider = alt.binding_range(min=10, max=90, step=20, name="position ")
y = alt.Y("alike:Q", title="dot product, relative")
chart = curves(records, alt.X("q:Q", title="other position"), y, "table", looks)
chart = chart.transform_filter("datum.p == place")
show(
    chart.add_params(alt.param("place", value=50, bind=slider)),
    alt="The sinusoids have a peak of 1 at the position itself, about two thirds at distance 10 and a half at distance 50. The learned table has a single spike.",
)

# %% [markdown]
# The curve is the same on both sides. So the plain dot product tells how far, and not in which direction. Direction needs a rotation between query and key, as in the head above. Learned $W^Q$ and $W^K$ can contain one.
#
# ### What if the base is the length of the longest sentence?
#
# Some texts say that 10000 is the maximum length. It is a constant. With the maximum length in its place, changing a setting changes every position's vector. We compare three positions under the base 50 with the same positions under the base 100, by the cosine.


# %%
def position(p, base, d_model=512):
    angles = p * base ** (-torch.arange(0, d_model, 2) / d_model)
    return torch.cat([angles.sin(), angles.cos()])


for p in (5, 20, 49):
    alike = F.cosine_similarity(position(p, 50), position(p, 100), dim=0)
    print(f"position {p:2}: base 50 against base 100: {alike:5.2f}")

# %% [markdown]
# A model trained with one of them finds strangers in most places of the other. With the constant, `max_length` only says how many rows the table has.
#
# ## Why added?
#
# "Add the place to the word? Then nobody can tell them apart again." Readers have asked this since the paper appeared. Putting the two side by side, $[x;\,p]$, looks cleaner. But look at what happens next: a multiplication by a learned matrix.
#
# $$
# [x;\,p] \begin{pmatrix} W_x \\ W_p \end{pmatrix} = x\,W_x + p\,W_p
# \qquad\text{and}\qquad
# (x + p)\,W = x\,W + p\,W
# $$ (eq-add)
#
# Both are sums. Adding is the case where the two matrices are one and the same. What is lost is the freedom to treat words and positions by different matrices; what is saved is width. To double $d_\text{model}$ would make every matrix of the model larger.
#
# %%
word, place, W_x, W_p = torch.randn(4, 16, 16, dtype=torch.float64)
beside = torch.cat([word, place], dim=1)
torch.testing.assert_close(beside @ torch.cat([W_x, W_p]), word @ W_x + place @ W_p)
torch.testing.assert_close(beside @ torch.cat([W_x, W_x]), (word + place) @ W_x)
print("beside each other:", tuple(beside.shape), " added:", tuple((word + place).shape))

# %% [markdown]
# Is the freedom missed? Only if words and positions lie in the same directions of the space. They need not. We count how many directions 50 positions take up: how many are needed to hold 99 % of their squares.

# %%
sizes = torch.linalg.svdvals(sinusoid(50, 512).double()).square()
needed = int((sizes.cumsum(0) < 0.99 * sizes.sum()).sum()) + 1
print("directions for 50 positions:", needed, "of 512")

# %% [markdown]
# The slow clocks hardly move within 50 positions, so most columns are nearly constant. That leaves the words nearly 500 directions of their own, and the table of words is learned: it can move there. One matrix $W$ can then read either the word or the place, by looking along the right directions.
#
# ### What the scores then consist of
#
# Let $A = W^Q {W^K}^\top$. The score of query $i$ and key $j$ is a sum of four:
#
# $$
# (x_i + p_i)\, A\, (x_j + p_j)^\top =
# \underbrace{x_i A\, x_j^\top}_{\text{word, word}} +
# \underbrace{x_i A\, p_j^\top}_{\text{word, place}} +
# \underbrace{p_i A\, x_j^\top}_{\text{place, word}} +
# \underbrace{p_i A\, p_j^\top}_{\text{place, place}}
# $$ (eq-four-terms)
#
# %%
A = W_x @ W_p.T
terms = [left @ A @ right.T for left in (word, place) for right in (word, place)]
torch.testing.assert_close((word + place) @ A @ (word + place).T, sum(terms))
print(len(terms), "tables of scores", tuple(terms[0].shape))

# %% [markdown]
# The first asks which words fit. The last is the head that looks three back. The second can say that some word looks at the beginning of the sentence, whatever stands there. All of it comes out of one dot product.
#
# ## Adding positions
#
# The code is one line. The rest is a good error for a sentence longer than the table.
#
# When a sentence is written word by word, the new word stands at position `offset`, not at 0.


# %% tags=["export"]
class Positions(nn.Module):
    """Add to each vector the row of a table (length, D) that belongs to its position."""

    table: Tensor

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add rows offset .. offset + T - 1 to x (B, T, D), whose first vector is at offset.

        Raises:
            ValueError: the table is too short.
        """
        end = offset + x.size(-2)
        if end > len(self.table):
            what = f"{end} positions are needed, the model has {len(self.table)}"
            raise ValueError(f"{what}: shorten the sentence, or build it with a larger max_length")
        return x + self.table[offset:end]


# %% [markdown]
# `self.table[offset:end]` has the shape $(T, D)$ and `x` has $(B, T, D)$, so every sentence of the batch gets the same rows.
#
# The sinusoids never change. They are a *buffer*: part of the module, moved to the GPU with it, but no parameter. With `persistent=False` they are not saved either. They can be computed again, and `max_length` may be another one tomorrow. They are computed again, too, when the module is moved or cast: PyTorch calls `_apply` for that. So a model in double precision has positions in double precision, not rounded ones.


# %% tags=["export"]
class SinusoidalPositions(Positions):
    """Add the fixed sinusoids of section 3.5."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid(max_length, d_model), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Move or cast the module; the table is computed anew, so that `double()` is exact."""
        super()._apply(fn, recurse)
        table = sinusoid(len(self.table), self.table.size(1), self.table.dtype)
        self.table = table.to(self.table.device)
        return self


# %% [markdown]
# Now order counts. The shuffle of the first section no longer cancels, because each word meets another position:

# %%
positions = SinusoidalPositions(d_model=16, max_length=100).double()
x, y = positions(embedding(sentence)), positions(embedding(sentence[:, order]))
print("order makes no difference:", torch.allclose(layer(y, y, y), layer(x, x, x)[:, order]))
print("saved with the model:", list(positions.state_dict()))

# %% [markdown]
# And a sentence read word by word is the same as the whole, if the offset is passed. Forget it, and every word claims to be the first:

# %%
for name, step in (("with offset", 1), ("forgotten", 0)):
    parts = [positions(embedding(sentence[:, t : t + 1]), offset=t * step) for t in range(6)]
    print(f"{name}: same as the whole sentence: {torch.equal(torch.cat(parts, dim=1), x)}")

# %% [markdown]
# ## Learned positions
#
# We could also let the model learn the table, one row for each position. The paper tried it (row E of Table 3) and found nearly the same quality: 25.7 BLEU against 25.8. It kept the sinusoids, which need no parameters and exist for positions that training never saw.


# %% tags=["export"]
class LearnedPositions(Positions):
    """Add a learned vector for each position (section 3.5; row E of Table 3)."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)


# %% [markdown]
# A learned table ends where it ends, and within it a row learns only if some sentence is that long. Ten rows, a sentence of six words:

# %%
learned = LearnedPositions(d_model=16, max_length=10).double()
learned(embedding(sentence)).sum().backward()
print("rows that learn:", learned.table.grad.abs().sum(dim=1).bool().tolist())
try:
    learned(embedding(sentence), offset=5)
except ValueError as error:
    print(error)

# %% [markdown]
# ## What happens beyond the trained length?
#
# A learned table has random rows there, or none. The sinusoids are defined for every position, and the paper hopes that the model can go on. The formula lets us doubt. If no sentence has more than 50 tokens, only clocks with a wavelength below 50 have gone all the way round. That is $256 \cdot \ln(50 / 2\pi) / \ln 10000 = 57.7$, so 58 of 256. All others have shown a part of their circle only. Further on they point where they have never pointed.
#
# We ask the trained model that comes with this book. It has learned from short captions, each beginning at position 0. We let three sentences begin elsewhere, source and target alike. All distances stay as they were, so a model that used distances only would not notice. We measure the loss of the right translation. For comparison, we take all positions away.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained()
model.eval()
pairs = [
    "Ein schwarzer Hund jagt einen weißen Hund. = A black dog chases a white dog.",
    "Das Mädchen sieht den Jungen an, der ein Buch liest. = The girl looks at the boy who is reading.",
    "Ein Mann hält ein Kind, während sie ein Foto macht. = A man holds a child while she takes a photo.",
]
texts = [[tokenizer.encode(side) for side in pair.split(" = ")] for pair in pairs]
tokens = [(torch.tensor([[*s, EOS]]), torch.tensor([[BOS, *t, EOS]])) for s, t in texts]
rows = model.positions.table


@torch.no_grad()
def loss_with(table):
    model.positions.table = table
    losses = [F.cross_entropy(model(s, t[:, :-1])[0], t[0, 1:]) for s, t in tokens]
    return round(torch.stack(losses).mean().item(), 2)


none = loss_with(torch.zeros_like(rows))
moved = {offset: loss_with(rows[offset:]) for offset in (0, 1, 2, 5, *range(10, 201, 10))}
print(f"from 0: {moved[0]}, from 1: {moved[1]}, from 100: {moved[100]}, no positions: {none}")
assert moved[0] + 0.2 < min(none, moved[100])

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beyond", "caption": "Does a trained model mind where a sentence begins? Loss of the book's trained model on three translations, by the position of the first token. A step of one or two is nothing. Further on the model loses its sense of order: the loss rises to the region of a model without any positions (dashed)."}}
records = [{"first": k, "loss": v, "table": "positions"} for k, v in moved.items()]
records += [{"first": k, "loss": none, "table": "none"} for k in (0, 200)]
looks = {"positions": (POSITION, [1, 0]), "none": (RESIDUAL, [4, 3])}
y = alt.Y("loss:Q", scale=alt.Scale(zero=True))
chart = curves(records, alt.X("first:Q", title="position of the first token"), y, "table", looks)
show(chart, alt="The loss is lowest at 0, and beyond 10 it is near the loss without any positions.")

# %% [markdown]
# So the model *could* have used distances only, and {eq}`eq-shift` makes that easy. It had no reason to. All its sentences began at 0, and it learned to rely on the places themselves, at least in part. A property of the encoding is an offer. What the model makes of it depends on the data.
#
# Later designs give the model no choice: they put distances into the scores of attention directly, or rotate queries and keys themselves by $p\,\omega_i$.
#
# ## Questions that come up
#
# **Is the position multiplied by $\sqrt{d_\text{model}}$, too?** No. The word is scaled, then the position is added. In that order, words have size 1 and positions 0.71 ([Embeddings](07_embeddings.ipynb)).
#
# **Are positions added in every layer?** Once, at the bottom. The residual stream ([Layers](09_layers.ipynb)) carries them up.
#
# **Do source and target count together?** Each counts from 0. Both use the same table, so position 3 of the target looks like position 3 of the source. For languages with similar order that is a good first guess.
#
# **How long may a sentence be?** As long as the table, `max_length`, which is 1,024 unless changed. The table can be made longer for a trained model, since it is computed and not learned. The section above says what to expect.
#
# **Is a position more important than a word?** Neither. At the start a word counts for two thirds of the squares of the sum, a position for one third. Training can change the words' share, since their table is learned.
#
# **Does the model see position or distance?** It is given positions. Scores between positions can be made to depend on distance, as the hand-made head shows. The trained model above relied on the places as well, as its loss shows.
#
# **Why 10000?** The paper does not say. The slowest clock must not come round within a text: with 10000 it takes 62,832 tokens.
#
# **Does padding get a position?** Yes, and it does not matter, since [masks](04_masks.ipynb) hide it. Pad on the right, though: on the left, padding would move the sentence to other places.
#
# ## What to remember
#
# - Attention is blind to order: shuffled words give shuffled answers and nothing else. With a causal mask this holds for one layer.
# - The sinusoids are clocks, from one turn in 6.3 positions to one in almost 62,832. The base 10000 is a constant.
# - Sine and cosine together make a shift a rotation, the same at every position.
# - Adding is putting side by side with one shared matrix. 50 positions take up few of 512 directions.
# - Learned positions do as well, but end where their table ends. Sinusoids go on, and a model need not be able to follow.
#
# ## Exercises
#
# **1. By hand.** Write down the encodings of positions 0 and 1 for $d_\text{model} = 4$, to two decimals. ($\sin 1 = 0.84$, $\cos 1 = 0.54$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The rates are 1 and 10000 ** -0.5 = 0.01. Position 0: all hands up. Position 1: angles 1 and 0.01.
print([[round(v, 2) for v in row] for row in sinusoid(2, 4).tolist()])

# %% [markdown]
# **2. Write it yourself.** Write `positions(length, d_model)` with loops and `math` only, returning a tensor. Compare with `sinusoid`, and ask the [checker](E_checker.ipynb).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}


def positions(length, d_model):
    rows = torch.zeros(length, d_model)
    for p in range(length):
        for column in range(d_model):
            angle = p / 10_000 ** ((column - column % 2) / d_model)
            rows[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return rows


torch.testing.assert_close(positions(60, 16), sinusoid(60, 16))
print("equal")

from annotated_transformer import check

print(check("positions", positions))

# %% [markdown]
# **3. What breaks if** $i$ is taken for the column, so that the rate of column $c$ becomes $10000^{-2c/d_\text{model}}$ for $c = 0, 2, 4, \dots$? Measure which share of the columns moves by less than 0.01 over 100 positions, for both.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The rates fall twice as fast, and the slow half of the clocks stands still: more than half of the columns say nothing.
column = torch.arange(0, 512, 2, dtype=torch.float64)
for name, exponent in (("right", column / 512), ("wrong", 2 * column / 512)):
    angle = torch.outer(torch.arange(100.0).double(), 10_000**-exponent)
    moves = torch.cat([angle.sin(), angle.cos()], dim=1)
    still = moves.amax(0) - moves.amin(0) < 0.01
    print(f"{name}: {still.double().mean():.0%} of the columns stand still")

# %% [markdown]
# **4. What breaks if** the factor $\sqrt{d_\text{model}}$ is applied after the addition, to word and position together? Compute the share of the word in the squares of the sum, for $d_\text{model} = 512$, in both cases.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Right: 1 / (1 + 0.5). Wrong: the table's numbers have the square 1/512 when the position is added.
for word in (1, 1 / 512):
    print(f"{word / (word + 0.5):.1%}")

# %% [markdown]
# **5. By hand.** Two clocks have the wavelengths 4 and 6. What is the dot product of two positions at distance 1, 2 and 12? At which distance is it smallest?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# cos 90 + cos 60 = 0.5; cos 180 + cos 120 = -1.5, the smallest; at 12 both are round again: 2.
for k in (1, 2, 12):
    print(f"{math.cos(2 * math.pi * k / 4) + math.cos(2 * math.pi * k / 6):.1f}")

# %% [markdown]
# ## Sources
#
# The sinusoids and the learned variant are from section 3.5 and row E of Table 3 of {cite:t}`vaswani2017attention`. Positions can also enter as distances, inside the attention scores: {cite:t}`shaw2018self`.
