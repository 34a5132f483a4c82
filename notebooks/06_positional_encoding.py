# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Positional encoding
#
# This chapter builds what tells the model where in the sentence a word stands (section 3.5 of the
# paper).
#
# "The dog bites the man" and "the man bites the dog" are made of the same words. To attention
# they are the same sentence. Nothing we have built so far knows the order of its input.

# %% tags=["export"]
import torch
from torch import Tensor, nn

# %%
from math import log

import matplotlib.pyplot as plt

from annotated_transformer.embeddings import Embedding
from annotated_transformer.figures import KEY, POSITION, style
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %% [markdown]
# ## Attention is blind to order
#
# Let us shuffle the words of a sentence, attend, and undo the shuffle in the output.

# %%
torch.manual_seed(0)
attention = MultiHeadAttention(d_model=16, heads=2).double()
embedding = Embedding(vocabulary_size=20, d_model=16).double()
sentence = torch.tensor([[1, 8, 5, 9, 3, 2]])
order = torch.tensor([3, 1, 4, 0, 5, 2])

x = embedding(sentence)
y = x[:, order]
same = torch.allclose(attention(y, y, y), attention(x, x, x)[:, order])
print("order makes no difference:", same)

# %% [markdown]
# Each word gets exactly the vector it got before. Attention sees a bag of words: its scores ask *what* a
# key is, never *where*. A feed-forward network, which looks at one position at a time, cannot help.
#
# So the place must be put into the vectors. We give each position a vector of its own and add it
# to the word's.
#
# ## The formula
#
# A plain count 0, 1, 2, ... grows without bound. The binary digits of the count do not, and
# they show the way: the last digit flips at every step, the one before at every second, and so on.
# The paper uses a smooth version of such digits. Each *pair* of columns is a hand of a clock, and each
# clock goes slower than the one before:
#
# $$
# \begin{aligned}
# PE_{p,\,2i} &= \sin\left(p \,/\, 10000^{2i/d_\text{model}}\right) \\
# PE_{p,\,2i+1} &= \cos\left(p \,/\, 10000^{2i/d_\text{model}}\right)
# \end{aligned}
# $$ (eq-sinusoid)
#
# Here $p$ is the position and $i$ counts pairs of columns. The first clock turns once in $2\pi \approx 6.3$
# positions, the last one in almost $10000 \cdot 2\pi$. The base 10000 is a constant. It is not the length of
# the longest sentence, as is sometimes written.
#
# We compute in double precision and round once at the end, since $p$ times a rate loses digits in single
# precision when $p$ is large.


# %% tags=["export"]
def sinusoid(length: int, d_model: int) -> Tensor:
    """Return the paper's encodings of positions 0 .. length - 1 as (length, D) (section 3.5).

    Raises:
        ValueError: d_model is odd, so that a sine would be left without its cosine.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sine and cosine come in pairs, make it even")
    position = torch.arange(length, dtype=torch.float64)
    rate = 10_000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = torch.outer(position, rate)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(torch.get_default_dtype())


# %% [markdown]
# Stacking on a new last axis and flattening interleaves the two: sine, cosine, sine, cosine. The
# check computes each cell by itself with Python's own `math`, and in the form that most
# implementations use, with the power written as $e^{-2i \ln(10000) / d_\text{model}}$.

# %%
import math

table = sinusoid(50, 16)
for p in range(50):
    for i in range(8):
        angle = p * math.exp(-2 * i * log(10_000) / 16)
        assert abs(table[p, 2 * i] - math.sin(angle)) < 1e-6
        assert abs(table[p, 2 * i + 1] - math.cos(p / 10_000 ** (2 * i / 16))) < 1e-6
print(tuple(table.shape), "all cells agree")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sinusoid", "caption": "What does a position look like? Rows are positions, columns are the numbers of the vector. Fast clocks on the left, slow ones on the right. Purple is +1, orange is -1."}, "image": {"alt": "A table of 50 positions by 64 columns. The left columns alternate quickly from row to row; the right columns hardly change."}}
style()
fig, axis = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
picture = axis.imshow(sinusoid(50, 64), cmap="PuOr", vmin=-1, vmax=1, aspect="auto")
axis.set(xlabel="column of the vector", ylabel="position in the sentence")
axis.grid(False)
fig.colorbar(picture, label="value")
plt.show()

# %% [markdown]
# ## A shift is a rotation
#
# Why sine *and* cosine? Because then a step of $k$ positions is the same linear map everywhere. A hand
# of a clock that advances by the angle $k\,\omega_i$ is rotated, wherever it stood:
#
# $$
# \begin{pmatrix} \sin((p + k)\,\omega_i) \\ \cos((p + k)\,\omega_i) \end{pmatrix} =
# \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}
# \begin{pmatrix} \sin p\,\omega_i \\ \cos p\,\omega_i \end{pmatrix}
# $$ (eq-shift)
#
# So a head *can* learn to look three words back: a matrix for that exists, and it does not depend on
# $p$. We build it and check every position.

# %%
k, d_model = 3, 16
shift = torch.zeros(d_model, d_model, dtype=torch.float64)
for i in range(d_model // 2):
    turn = torch.tensor(k * 10_000 ** (-2 * i / d_model), dtype=torch.float64)
    block = torch.stack([turn.cos(), turn.sin(), -turn.sin(), turn.cos()]).reshape(2, 2)
    shift[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block

table = sinusoid(100, d_model).double()
assert torch.allclose(table[:-k] @ shift.T, table[k:], atol=1e-6)
assert torch.allclose(shift @ shift.T, torch.eye(d_model, dtype=torch.float64))
print("one rotation shifts all", len(table) - k, "positions")

# %% [markdown]
# A rotation keeps lengths and angles. So the dot product of two encodings depends only on their distance:
# $PE_p \cdot PE_{p+k} = \sum_i \cos k\omega_i$. It is largest at distance 0, where it is $d_\text{model}/2$.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-position-products", "caption": "How alike are two positions? Dot product of position 50 (solid) and of position 20 (dots) with positions at each distance, for 512 columns. The two curves are one: only the distance counts."}, "image": {"alt": "A curve with a peak of 256 at distance 0 that falls to two thirds at distance 10 and to a half at distance 50, the same on both sides."}}
table = sinusoid(101, 512)
products = table @ table.T
fig, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
axis.plot(range(-50, 51), products[50], color=POSITION, label="from position 50")
axis.plot(range(-20, 51), products[20, :71], ".", color=KEY, ms=4, label="from position 20")
axis.set(xlabel="distance", ylabel="dot product", ylim=(0, 270))
axis.legend()
plt.show()

# %% [markdown]
# ## Adding positions
#
# The table never changes, so it is a buffer and not a parameter. It is not saved with the
# model either, since `max_length` may be another one tomorrow. A longer sentence than the table is an
# error that says what to do.
#
# When a sentence is written word by word, the new word stands at position `offset`, not at 0.


# %% tags=["export"]
def add_positions(x: Tensor, table: Tensor, offset: int = 0) -> Tensor:
    """Add rows offset .. offset + T - 1 of the table (length, D) to x (B, T, D).

    Raises:
        ValueError: the table is too short.
    """
    end = offset + x.size(-2)
    if end > len(table):
        raise ValueError(
            f"{end} positions are needed, the model has {len(table)}: "
            "shorten the sentence, or build the model with a larger max_length"
        )
    return x + table[offset:end]


# %% tags=["export"]
class SinusoidalPositions(nn.Module):
    """Add the fixed sinusoids of section 3.5."""

    table: Tensor

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid(max_length, d_model), persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add positions to x (B, T, D), whose first vector stands at position offset."""
        return add_positions(x, self.table, offset)


# %% [markdown]
# Now order counts. The same shuffle as before no longer cancels:

# %%
positions = SinusoidalPositions(d_model=16, max_length=100).double()
x = positions(embedding(sentence))
y = positions(embedding(sentence[:, order]))
same = torch.allclose(attention(y, y, y), attention(x, x, x)[:, order])
print("order makes no difference:", same)

whole = positions(embedding(sentence))
steps = [positions(embedding(sentence[:, t : t + 1]), offset=t) for t in range(6)]
assert torch.equal(torch.cat(steps, dim=1), whole)

# %% [markdown]
# ## Learned positions
#
# We could also let the model learn the table. The paper tried (row E of Table 3) and found nearly the
# same quality: 25.7 BLEU against 25.8. It kept the sinusoids, which need no parameters and exist for
# positions that training never saw. Whether the model makes sense of those is another question.


# %% tags=["export"]
class LearnedPositions(nn.Module):
    """Add a learned vector for each position (section 3.5; row E of Table 3)."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add positions to x (B, T, D), whose first vector stands at position offset."""
        return add_positions(x, self.table, offset)


# %%
learned = LearnedPositions(d_model=16, max_length=5).double()
print(sum(p.numel() for p in learned.parameters()), "parameters")
try:
    learned(embedding(sentence))
except ValueError as error:
    print(error)

# %% [markdown]
# ## What to remember
#
# - Attention is blind to order: shuffled words give shuffled answers and nothing else.
# - The sinusoids are clocks, from one turn in 6.3 positions to one in almost 62,832. The base 10000 is fixed.
# - Sine and cosine together make a shift a rotation, the same at every position.
# - Learned positions do as well, but end where their table ends.

# %% [markdown]
# ## Exercises
#
# 1. By hand: how many positions does the slowest clock of the base model ($d_\text{model} = 512$) need for
#    one turn?
# 2. The authors' code puts all sines first and all cosines after. Does that change the model?
# 3. What breaks if the base is the maximum length, say 50, in place of 10000?
#
# :::{admonition} Solution
# :class: dropdown
# 1. $i = 255$: $2\pi \cdot 10000^{510/512} \approx 60{,}611$.
# 2. No. It is another order of the same columns. The next thing that happens to the vector is a
#    multiplication by a learned matrix, which can have its rows in that order too.
# 3. The slowest clock turns once in about 300 positions. The neighbors in a sentence stay easy to tell apart,
#    but positions far apart begin to look alike, and the scale changes with a setting that should not matter.
# :::

# %% tags=["hide-input"]
assert round(2 * math.pi * 10_000 ** (510 / 512)) == 60_611
halves = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
assert torch.allclose(halves @ halves.T, table @ table.T, atol=1e-3)
assert 2 * math.pi * 50 ** (510 / 512) < 315

# %% [markdown]
# ## Further reading
#
# Positions can also enter as distances, inside the attention scores: {cite:t}`shaw2018self`.
