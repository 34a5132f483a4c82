# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Why self-attention
#
# This chapter asks how much self-attention, recurrence and convolution multiply, and how many of their steps have to wait for one another (section 4 of the paper).
#
# (It is an extra: nothing later depends on it, and you may go straight to [the data](13_data.ipynb).)
#
# Is attention cheaper than the networks that it replaced? The paper's Table 1 says so:
#
# | layer | operations (complexity per layer) | steps in a row (sequential operations) | longest path |
# |---|:---:|:---:|:---:|
# | self-attention | $n^2 d$ | 1 | 1 |
# | recurrent | $n d^2$ | $n$ | $n$ |
# | convolution | $k n d^2$ | 1 | $n / k$, dilated $\log_k n$ |
# | separable convolution | $k n d + n d^2$ | 1 | as above |
# | restricted self-attention | $r n d$ | 1 | $n / r$ |
#
# A sentence has $n$ words of $d$ numbers, a convolution sees $k$ neighbors, and restricted attention sees $r$. (All entries leave out constant factors; the path $n / k$ and the separable convolution are from the text beside the table.) So attention is cheaper than recurrence as long as
#
# $$
# n^2 d < n d^2, \quad \text{that is,} \quad n < d.
# $$ (eq-crossover)
#
# With 25 words and $d = 512$ the case seems clear. But which matrices does an attention layer have, and are they in its row?
#
# ## Counting multiplications
#
# **Exercise 1. Write it first** (★★, 20 min). Write three layers as functions of one sentence $(n, d)$, without heads, biases and batches: bare self-attention, self-attention with its four projections, and a recurrent layer. How many multiplications does each of them take? Give formulas before you go on.

# %%
import math

import torch


def bare_attention(q, k, v):
    return (q @ k.T / math.sqrt(q.size(-1))).softmax(-1) @ v


def attention_with_projections(x, W_Q, W_K, W_V, W_O):
    return bare_attention(x @ W_Q, x @ W_K, x @ W_V) @ W_O


def recurrent(x, W, U):
    states = [torch.zeros_like(x[0])]
    for word in x @ W:
        states.append((word + states[-1] @ U).tanh())
    return torch.stack(states[1:])


def make_layers(d):
    """Return each layer as a function of x alone, with random weights."""
    W = torch.randn(4, d, d)
    return {
        "bare attention": lambda x: bare_attention(x, x, x),
        "with projections": lambda x: attention_with_projections(x, *W),
        "recurrent": lambda x: recurrent(x, *W[:2]),
    }


# %% tags=["remove-cell"]
if CHECKING:
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)
    x, W, U = torch.randn(7, 4), torch.randn(4, 4), torch.randn(4, 4)
    known = F.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(bare_attention(x, x, x), known)
    rnn = nn.RNN(4, 4, bias=False)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(W.T)
        rnn.weight_hh_l0.copy_(U.T)
    torch.testing.assert_close(recurrent(x, W, U), rnn(x)[0])

# %% [markdown]
# PyTorch counts a multiplication and the addition that follows as two operations, so we halve:

# %%
from torch.utils.flop_counter import FlopCounterMode


def multiplications(name, n, d):
    with FlopCounterMode(display=False) as counter:
        make_layers(d)[name](torch.zeros(n, d))
    return counter.get_total_flops() // 2


for name in make_layers(256):
    print(f"{name:16} {multiplications(name, n=128, d=256):11,}")

# %% [markdown]
# For 128 words of 256 numbers, the bare layer takes $2 n^2 d = 2 \cdot 128^2 \cdot 256 = 8{,}388{,}608$ multiplications, half as many as recurrence, $2 n d^2$. With projections, attention takes two and a half times as many as recurrence.
#
# ## The projections that Table 1 leaves out
#
# The table counts the two products of attention, but not $W^Q$, $W^K$, $W^V$ and $W^O$, which take $4 n d^2$ more. At the length of a sentence they are nearly everything: for 25 words, the products take $2 \cdot 25 \cdot 512 = 25{,}600$ multiplications per word, and the four matrices $4 \cdot 512^2 = 1{,}048{,}576$. In translation, attention is a layer of cost $n d^2$ like all the others.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-table-1", "caption": "Which layer multiplies least? Multiplications per word against the length $n$, at $d = 512$, $k = 3$ and $r = 64$; both axes are logarithmic. Bare self-attention is cheaper than recurrence up to $n = 512$. With its projections it is more expensive at every length."}}
import altair as alt

from book.figures import AMBER, INK, PLUM, SKY, curves, show


def by_formula(n, d, k=3, r=64):
    """Return the multiplications of each layer for a whole sentence."""
    return {
        "self-attention": 2 * n * n * d,
        "with projections": 2 * n * n * d + 4 * n * d * d,
        "recurrent": 2 * n * d * d,
        "convolution": k * n * d * d,
        "separable": k * n * d + n * d * d,
        "restricted": 2 * r * n * d,
    }


LOOKS = {
    "self-attention": (SKY, [1, 0]),
    "with projections": (SKY, [8, 3]),
    "recurrent": (PLUM, [1, 0]),
    "convolution": (AMBER, [1, 0]),
    "separable": (AMBER, [6, 3]),
    "restricted": (INK, [2, 2]),
}
records = [
    {"n": 2**power, "multiplications": total / 2**power, "layer": name}
    for power in range(3, 14)
    for name, total in by_formula(2**power, 512).items()
]


def length_axis(*ticks):
    axis = alt.Axis(values=ticks, labelFlush=False)
    return alt.X(
        "n:Q", title="length n", scale=alt.Scale(type="log", base=2), axis=axis
    )


y = alt.Y(
    "multiplications:Q",
    title="multiplications per word",
    scale=alt.Scale(type="log", domain=[5e3, 2e7], nice=False),
    axis=alt.Axis(format="~s", values=[1e4, 1e5, 1e6, 1e7]),
)
names = dict.fromkeys(LOOKS, (8192, "right"))
names |= {"self-attention": (16, "below right"), "with projections": (32, "above")}
x = length_axis(8, 32, 128, 512, 2048, 8192)
show(
    curves(records, x, y, "layer", LOOKS, names).properties(width=320, height=300),
    alt="Only the two lines of unrestricted self-attention rise with the length. Without projections it crosses recurrence at 512, with projections it is always above.",
)

# %% tags=["remove-cell"]
if CHECKING:
    formulas, at_512 = by_formula(128, 256), by_formula(512, 512)
    for ours, name in zip(make_layers(256), list(LOOKS)[:3]):
        assert multiplications(ours, 128, 256) == formulas[name]
    assert at_512["self-attention"] == at_512["recurrent"]
    assert all(
        by_formula(n, 512)["with projections"] > 2 * n * 512**2 for n in (1, 25, 512)
    )

# %% [markdown]
# But attention's real rival was not a recurrence as simple as ours. Google's translator of 2016 used LSTMs {cite:p}`hochreiter1997long`, with eight matrices where ours has two. Compared with a whole LSTM layer, attention with its projections multiplies less if
#
# $$
# 4 n d^2 + 2 n^2 d < 8 n d^2, \quad \text{that is,} \quad n < 2d.
# $$ (eq-fair-crossover)
#
# A plain convolution with $k = 3$ takes $3 n d^2$, the gated one of ConvS2S $6 n d^2$. Every complete layer takes a few times $n d^2$, so multiplications can't be the argument.
#
# ## Time and memory, measured
#
# Multiplications aren't seconds. `python -m benchmarks.experiments.table1 --cpu-time` ran each layer forward and backward on one sentence, on one thread of an Intel Xeon, and recorded the best of five runs and the bytes kept for the backward pass.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-table-1-measured", "caption": "What do the layers cost on a machine? Processor time, and megabytes kept for the backward pass, at $d = 512$; all axes are logarithmic. Bare attention is the fastest layer up to 512 words, and attention with or without projections the slowest at 8,192. In memory, only the two lines of attention end steeper than the others."}}
from benchmarks.common import read_log

settings, *log = read_log("table1")


def series(name, of, along="n"):
    """Return [(size, value)] of one layer, along n or along d."""
    other = "d" if along == "n" else "n"
    return sorted(
        (r[along], r[of]) for r in log if r["layer"] == name and r[other] == 512
    )


looks = {name: LOOKS[name] for name in list(LOOKS)[:4]}
panels = []
for of, title, scale, name, place in (
    ("seconds", "milliseconds", 1e3, "self-attention", (64, "below right")),
    ("kept_bytes", "megabytes", 1e-6, "with projections", (1024, "above left")),
):
    names = dict.fromkeys(looks, (8192, "right")) | {name: place}
    records = [
        {"n": n, "value": float(f"{v * scale:.3g}"), "layer": name}
        for name in looks
        for n, v in series(name, of)
    ]
    scaled = alt.Scale(type="log")
    y = alt.Y("value:Q", title=title, scale=scaled, axis=alt.Axis(tickCount=5))
    x = length_axis(16, 64, 256, 1024, 4096)
    chart = curves(records, x, y, "layer", looks, names)
    panels.append(chart.properties(width=170, height=260))
show(
    *panels,
    alt="Bare attention is the fastest layer up to 512 words; at 8,192 words attention, with or without projections, takes most time and by far the most memory.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert settings["threads"] == 1 and settings["rounds"] == 5 and settings["cpu_time"]
    for of in ("seconds", "kept_bytes"):
        last = {name: series(name, of)[-1][1] for name in LOOKS}
        assert sorted(last, key=last.get)[-2:] == ["self-attention", "with projections"]

# %% tags=["remove-cell"]
if CHECKING:

    def seconds(name):
        return dict(series(name, "seconds"))

    by_attention, by_loop = seconds("self-attention"), seconds("recurrent")
    logs = [
        (math.log2(n), math.log(by_attention[n] / by_loop[n])) for n in (4096, 8192)
    ]
    (n0, g0), (n1, g1) = logs
    assert 4600 < 2 ** (n0 - g0 * (n1 - n0) / (g1 - g0)) < 4800
    assert 9 < by_loop[512] / by_attention[512] < 11
    library = seconds("nn.RNN")
    assert all(0.8 < library[n] / by_loop[n] < 1.2 for n in library)
    complete, convolution = seconds("with projections"), seconds("convolution")
    assert all(complete[n] > convolution[n] for n in complete)

# %% [markdown]
# By the formula, bare attention and recurrence cost the same at $n = d = 512$; by the clock, recurrence takes nearly ten times as long. It stays slower up to some 4,700 words (interpolated), because a recurrent step fetches each weight from memory to use it once, while a matrix product fetches it once and uses it for many words. Python isn't to blame: PyTorch's `nn.RNN`, with its loop in C++, takes the same time to within 20%. And all this is one thread, before anything has been done in parallel.
#
# But a convolution is faster than attention with projections at every length, so time on one thread isn't the argument either. And attention has a price: each head keeps $n \times n$ weights, nearly 17 million of them at $n = 4{,}096$, in every layer and for every sentence. (Keeping them [can be avoided](26_speed.ipynb#attention-without-the-matrix), multiplying can't.)
#
# ## Steps in a row
#
# With enough processors, a layer takes as long as its longest chain of operations that wait for one another. You can read the chain off our three functions: two matrix products in a row for bare attention and four with projections, at any length; in `recurrent`, each `states[-1] @ U` waits for the one before, so $n$.
#
# This column of Table 1 is the better reason: in training, every layer reads all words of all sentences of a batch at once, where a recurrence takes as many steps as the longest sentence has words. It doesn't help where the words don't exist yet: a Transformer that *writes* needs one step for each word, as a recurrent network does.
#
# The last column, the path between two words, is the other reason, and [chapter 2](02_before_attention.ipynb) has told it. Convolutions have few steps in a row, too; what they lack is the short path.
#
# ## What to remember
#
# - By count, bare attention beats recurrence for $n < d$; with projections against an LSTM, for $n < 2d$.
# - At the length of sentences every complete layer costs a few times $n d^2$, so counting operations settles nothing.
# - What decides is that all positions are computed at once, and that any two words are one step apart.
# - The price is $n^2$: first in memory, and for long inputs in time.
#
# ## Exercises
#
# **Exercise 1** is [above](#counting-multiplications).

# %% [markdown]
# :::{admonition} Solution 1
# :class: dropdown
# The layers are those of the first cell below the exercise. Bare attention has two products, $(n, d)$ with $(d, n)$ and $(n, n)$ with $(n, d)$, so it takes $2 n^2 d$. Each projection takes $n d^2$, so four add $4 n d^2$. Recurrence multiplies each word with $W$ and each state with $U$, so it takes $2 n d^2$.
# :::

# %% [markdown]
# **2. A GRU instead** (★, 10 min). A GRU has six matrices where our recurrence has two. Up to which length does attention with projections multiply less?

# %% [markdown]
# :::{admonition} Solution 2
# :class: dropdown
# $4 n d^2 + 2 n^2 d < 6 n d^2$ gives $2 n^2 d < 2 n d^2$, so $n < d$: by chance the paper's own inequality.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    left = [by_formula(n, 512)["with projections"] - 6 * n * 512**2 for n in (511, 512)]
    assert left[0] < 0 == left[1]

# %% [markdown]
# **3. Your machine** (★★, 30 min; open). Run `python -m benchmarks.experiments.table1 --results mine`, on a GPU with `--device cuda`. From which length is recurrence faster than bare attention there?
#
# ## Further
#
# What else does the table leave out?
#
# - **Memory while writing.** A recurrent network carries one state of $d$ numbers. A Transformer keeps keys and values of all earlier words, the [KV cache](19_decoding.ipynb#the-kv-cache), which grows with $n$.
# - **Long inputs.** At $n = 100{,}000$ and $d = 512$, attention's two products take nearly a hundred times as much as its projections. Restricted attention, as in Longformer {cite:p}`beltagy2020longformer`, and recurrences that train in parallel, such as Mamba, are answers to that.
#
# ## Sources
#
# Table 1 and its discussion are section 4 of {cite:t}`vaswani2017attention`. Its rivals are ByteNet {cite:p}`kalchbrenner2016neural`, ConvS2S {cite:p}`gehring2017convolutional` and separable convolutions {cite:p}`chollet2017xception`.
