# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Why self-attention
#
# This chapter sets self-attention beside recurrent and convolutional layers and asks of each how much it computes, how many of its steps have to wait for one another, and how far a signal travels from one word to another (section 4 of the paper).
#
# (This chapter is an extra: nothing later depends on it, and you may go straight to [the data](13_data.ipynb).)
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
# The path $n / k$ of a convolution and the row of separable convolutions are from the text beside the table. All entries leave out constant factors. A sentence has $n$ words of $d$ numbers, a convolution sees $k$ neighbors and restricted attention $r$. The first column says that attention is cheaper than recurrence as long as
#
# $$
# n^2 d < n d^2, \quad \text{that is,} \quad n < d.
# $$ (eq-crossover)
#
# With 25 words and $d = 512$ the case seems clear, but the table leaves out the four projections, and with them attention is the dashed line on top of {numref}`fig-table-1`. We'll build all five layers, count, time and trace them, and find a better reason.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-table-1", "caption": "Which layer multiplies least? Multiplications per word against the length $n$, at $d = 512$, with kernel $k = 3$ and $r = 64$ neighbors; both axes are logarithmic. Bare self-attention (the solid blue line) is cheaper than recurrence up to $n = 512$. With its projections (the dashed line on top) it is more expensive at every length."}}
import math
from itertools import count, pairwise

import altair as alt
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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
at_512 = by_formula(512, 512)
show(
    curves(records, length_axis(8, 32, 128, 512, 2048, 8192), y, "layer", LOOKS),
    alt="Only the two lines of full self-attention rise with the length. Without projections it crosses recurrence at 512, with projections it is always above.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert at_512["self-attention"] == at_512["recurrent"]
    assert all(
        by_formula(n, 512)["with projections"] > 2 * n * 512**2 for n in (1, 25, 512)
    )

# %% [markdown]
# ## Five layers
#
# Each takes a sentence, $n$ rows of $d$ numbers, and returns one of the same shape. To compare the bare mechanisms, we leave out heads, biases and batches. Self-attention you know; a recurrent layer is a loop.


# %%
def attend(q, k, v):
    return (q @ k.T / math.sqrt(q.size(-1))).softmax(-1) @ v


def recurrent(x, W, U):
    states = [torch.zeros_like(x[0])]
    for word in x @ W:
        states.append((word + states[-1] @ U).tanh())
    return torch.stack(states[1:])


# %% [markdown]
# The products with $W$ are made for all words at once. Those with $U$ can't be: a state needs the one to its left, and all the processors of a GPU wait for one vector times one matrix, $n$ times.
#
# The other three look through windows: each position sees itself and the $k - 1$ before it. In a *dilated* window these $k$ positions aren't neighbors, but lie, say, three or nine places apart. (The paper's windows look to both sides, which changes constants.) A **convolution** has a matrix for each place in the window. A **separable convolution** first sums over places, each column by itself, and then mixes the columns with one matrix. (A check that isn't shown compares all five with PyTorch's own layers and functions.)


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the window layers", "code_prompt_hide": "Hide the window layers"}
def windows(x, k, step=1):
    """Return (n, k, d): each position and the k - 1 before it, step apart."""
    reach = step * (k - 1)
    return F.pad(x, (0, 0, reach, 0)).unfold(0, reach + 1, 1)[..., ::step].mT


def convolve(x, W, step=1):
    return windows(x, len(W), step).flatten(1) @ W.flatten(0, 1)


def separable(x, taps, W):
    return torch.einsum("nkd,kd->nd", windows(x, len(taps)), taps) @ W


# %% [markdown]
# The fifth is **restricted self-attention**, attention within a window. The paper mentions it for very long inputs and leaves it for later; Longformer {cite:p}`beltagy2020longformer` and others took it up, as local or sliding-window attention.


# %%
def restricted(q, k, v, r):
    scores = torch.einsum("nd,nrd->nr", q, windows(k, r)) / math.sqrt(q.size(-1))
    before = torch.arange(len(q))[:, None] + torch.arange(r) < r - 1  # no word there
    weights = scores.masked_fill(before, -torch.inf).softmax(-1)
    return torch.einsum("nr,nrd->nd", weights, windows(v, r))


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show how the layers get random weights", "code_prompt_hide": "Hide the weights"}
def make_layers(d, k=3, r=64):
    """Return each layer as a function of x alone, with random weights."""
    W, U, taps, kernel = (torch.randn(*s) for s in ((d, d), (d, d), (k, d), (k, d, d)))
    return {
        "self-attention": lambda x: attend(x, x, x),
        "with projections": lambda x: attend(x @ W, x @ U, x @ W) @ U,
        "recurrent": lambda x: recurrent(x, W, U),
        "convolution": lambda x: convolve(x, kernel),
        "separable": lambda x: separable(x, taps, W),
        "restricted": lambda x: restricted(x, x, x, r),
    }


# %% tags=["remove-cell"]
if CHECKING:
    torch.manual_seed(0)
    n, d = 7, 4
    x, W, U, taps, kernel = (
        torch.randn(*shape) for shape in ((n, d), (d, d), (d, d), (3, d), (3, d, d))
    )
    batch = F.pad(x, (0, 0, 4, 0)).T[None]
    known = F.conv1d(batch, kernel.permute(2, 1, 0), dilation=2)[0].T
    torch.testing.assert_close(convolve(x, kernel, step=2), known)
    known = F.conv1d(batch[..., 2:], taps.T[:, None], groups=d)[0].T @ W
    torch.testing.assert_close(separable(x, taps, W), known)
    known = F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]
    torch.testing.assert_close(restricted(x, x, x, n), known)
    near = (torch.ones(n, n).tril() - torch.ones(n, n).tril(-3)).bool()
    known = F.scaled_dot_product_attention(x[None], x[None], x[None], near)[0]
    torch.testing.assert_close(restricted(x, x, x, 3), known)
    torch.testing.assert_close(attend(x, x, x), F.scaled_dot_product_attention(x, x, x))
    rnn = nn.RNN(d, d, bias=False)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(W.T)
        rnn.weight_hh_l0.copy_(U.T)
    torch.testing.assert_close(recurrent(x, W, U), rnn(x)[0])

# %% [markdown]
# ## Multiplications, counted
#
# PyTorch counts what each of them multiplies for a sentence of $n = 128$ words with $d = 256$ numbers each, with $k = 3$ and $r = 64$. Then we double $n$ and take the logarithm to base 2 of the growth: 1 means proportional to $n$, 2 to its square. Then we do the same with $d$. Attention with its four projections is counted as a sixth layer.


# %% tags=["hide-input"]
def multiplications(name, n, d):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        make_layers(d)[name](torch.zeros(n, d))
    return counter.get_total_flops() // 2


for name in by_formula(128, 256):
    once = multiplications(name, 128, 256)
    with_n = math.log2(multiplications(name, 256, 256) / once)
    with_d = math.log2(multiplications(name, 128, 512) / once)
    print(f"{name:17} {once:11,}   n to the {with_n:.2f}   d to the {with_d:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    for name, formula in by_formula(128, 256).items():
        assert multiplications(name, 128, 256) == formula

# %% [markdown]
# The counts match the formulas behind {numref}`fig-table-1` to the last digit: for self-attention, $2 n^2 d = 2 \cdot 128^2 \cdot 256 = 8{,}388{,}608$. The exponents match the table. Where a row is a sum, the exponent lies between those of its terms.
#
# ### The projections that Table 1 leaves out
#
# The table counts the two products of attention, but not $W^Q$, $W^K$, $W^V$ and $W^O$, which take $4 n d^2$ more. With them, a layer costs more than twice as much as the simple recurrence above. Yet Google's translator of 2016 used LSTMs {cite:p}`hochreiter1997long`, with eight matrices where ours has two. Complete layer against complete layer, attention is cheaper if
#
# $$
# 4 n d^2 + 2 n^2 d < 8 n d^2, \quad \text{that is,} \quad n < 2d.
# $$ (eq-fair-crossover)
#
# At the length of a sentence the squared term hardly counts. For 25 words and $d = 512$, the two products take $2 \cdot 25 \cdot 512 = 25{,}600$ multiplications per word and the projections $4 \cdot 512^2 = 1{,}048{,}576$, about forty times as many. In translation, attention is a layer of cost $n d^2$ like all the others.
#
# A convolution with $k = 3$ takes $3 n d^2$, less than attention's projections alone. Multiplications can't be the argument.
#
# ## Time and memory, measured
#
# Multiplications aren't seconds. The command `python -m benchmarks.experiments.table1 --cpu-time` runs each layer forward and backward on one sentence. It records processor time, the best of five runs on one thread of an Intel Xeon, and the bytes kept for the backward pass.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-table-1-measured", "caption": "What do the layers cost on a machine? Processor time forward and backward (left) and megabytes kept for the backward pass (right), for one sentence at $d = 512$, on one thread; all axes are logarithmic. Bare attention is the fastest layer up to 512 words, and full attention with or without projections the slowest at 8,192. On the right, recurrence and separable convolution share a line, and only the lines of full attention end steeper than the others."}}
from benchmarks.common import read_log

settings, *log = read_log("table1")


def series(name, of, along="n"):
    """Return [(size, value)] of one layer, along n or along d."""
    other = "d" if along == "n" else "n"
    return sorted(
        (r[along], r[of]) for r in log if r["layer"] == name and r[other] == 512
    )


panels = []
for of, title, scale in (
    ("seconds", "milliseconds", 1e3),
    ("kept_bytes", "megabytes", 1e-6),
):
    records = [
        {"n": n, "value": float(f"{v * scale:.3g}"), "layer": name}
        for name in LOOKS
        for n, v in series(name, of)
    ]
    y = alt.Y(
        "value:Q", title=title, scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=5)
    )
    chart = curves(records, length_axis(16, 64, 256, 1024, 4096), y, "layer", LOOKS)
    panels.append(chart.properties(width=154, height=220))
show(
    alt.hconcat(*panels),
    alt="Bare attention is the fastest layer up to 512 words; at 8,192 words full attention, bare or complete, takes most time and by far the most memory.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert settings["threads"] == 1 and settings["rounds"] == 5 and settings["cpu_time"]
    for of in ("seconds", "kept_bytes"):
        last = {name: series(name, of)[-1][1] for name in LOOKS}
        assert sorted(last, key=last.get)[-2:] == ["self-attention", "with projections"]

# %% [markdown]
# The exponents are fitted to the last four points: the lengths 1,024 to 8,192 at $d = 512$, and the widths 256 to 2,048 at $n = 512$.


# %% tags=["hide-input"]
def slope(points):
    """Fit the exponent to the last four points: a line through their logarithms."""
    return np.polyfit(*np.log(points[-4:]).T, 1)[0]


kinds = (("seconds", "n"), ("seconds", "d"), ("kept_bytes", "n"))
slopes = {name: [slope(series(name, *kind)) for kind in kinds] for name in LOOKS}
print(f"{'':17} time, n   time, d   memory, n")
for name, (time_n, time_d, memory_n) in slopes.items():
    print(f"{name:17} {time_n:7.2f} {time_d:9.2f} {memory_n:11.2f}")


def ratios(one, other):
    """Return how many times as long `one` takes as `other`: length -> ratio."""
    return {
        n: a / b
        for (n, a), (_, b) in zip(series(one, "seconds"), series(other, "seconds"))
    }


def crossing(one, other):
    """Return the length from which `one` is slower than `other`, interpolated in logarithms."""
    gaps = [(math.log2(n), math.log(ratio)) for n, ratio in ratios(one, other).items()]
    (n0, g0), (n1, g1) = next(
        pair for pair in pairwise(gaps) if pair[0][1] < 0 <= pair[1][1]
    )
    return 2 ** (n0 - g0 * (n1 - n0) / (g1 - g0))


print()
for pair in (
    ("self-attention", "recurrent"),
    ("with projections", "recurrent"),
    ("self-attention", "restricted"),
):
    print("{} is slower than {}".format(*pair), f"from n = {crossing(*pair):,.0f} on")

# %% tags=["remove-cell"]
if CHECKING:
    for name in {*LOOKS} - {"self-attention"}:  # bare attention is the fastest
        faster = ratios(name, "self-attention")
        assert all(ratio > 1 for n, ratio in faster.items() if n <= 512)
    table = {  # the rows of a single term
        "self-attention": (2, 1, 2),
        "recurrent": (1, 2, 1),
        "convolution": (1, 2, 1),
        "restricted": (1, 1, 1),
    }
    excess = {
        (name, i): slopes[name][i] - e
        for name, es in table.items()
        for i, e in enumerate(es)
    }
    assert 9 < ratios("recurrent", "self-attention")[512] < 11
    assert 4600 < crossing("self-attention", "recurrent") < 4800
    assert all(0.8 < ratio < 1.2 for ratio in ratios("nn.RNN", "recurrent").values())
    assert 5500 < crossing("self-attention", "restricted") < 5700
    assert min(ratios("with projections", "convolution").values()) > 1
    assert max(map(abs, excess.values())) < 0.3 and max(excess, key=excess.get) == (
        "recurrent",
        1,
    )

# %% [markdown]
# The measured exponents agree with Table 1 to within 0.3, except where a row is a sum of terms.
#
# The crossover isn't where the counts put it. At $n = d = 512$, where the counts are equal, the loop takes ten times as long as attention, and it stays slower up to some 4,700 words. A vector times a matrix reads each weight for a single multiplication, while a matrix times a matrix reads it once for many. Python isn't to blame, for PyTorch's `nn.RNN`, with its loop in C++, takes the same time within 20%. All this is one thread, before anything has been done in parallel.
#
# Convolution is faster than complete attention at every length.
#
# What hurts most is how memory grows. Each head keeps $n \times n$ weights: nearly 17 million of them at $n = 4{,}096$, in every layer and for every sentence of a batch. FlashAttention {cite:p}`dao2022flashattention` removes this cost by computing the weights anew in the backward pass ([chapter 25](25_speed.ipynb#attention-without-the-matrix)). The multiplications remain.
#
# ## Steps in a row
#
# With enough processors, a layer takes as long as its longest chain of operations that wait for one another. PyTorch records for the backward pass which result came from which. We walk through this record and count the matrix products on the longest chain.


# %% tags=["hide-input"]
def longest_chain(y):
    """Return how many matrix products lie on the longest chain that leads to y."""
    chain, stack = {}, [(y.grad_fn, False)]
    while stack:
        node, ready = stack.pop()
        before = [parent for parent, _ in node.next_functions if parent is not None]
        if ready:
            is_product = node.name().startswith(("Mm", "Bmm"))
            chain[node] = is_product + max((chain[p] for p in before), default=0)
        elif node not in chain:
            chain[node] = 0
            stack += [(node, True), *((p, False) for p in before if p not in chain)]
    return chain[y.grad_fn]


torch.manual_seed(0)
sentences = [torch.randn(n, 16, requires_grad=True) for n in (8, 16, 32)]
chains = {}
for name, layer in make_layers(16).items():
    chains[name] = [longest_chain(layer(x)) for x in sentences]
    print(f"{name:17} {chains[name]}")

# %% tags=["remove-cell"]
if CHECKING:
    for name, lengths in chains.items():
        assert lengths == [8, 16, 32] if name == "recurrent" else len(set(lengths)) == 1

# %% [markdown]
# For 8, 16 and 32 words, the recurrent layer has chains of 8, 16 and 32 products, and each of the others a constant. This column of Table 1, *steps in a row*, is the better reason. In training, every layer reads all 25,000 source tokens of one of the paper's batches at once, however long the sentences are.
#
# That doesn't help where the words don't exist yet. A Transformer that *writes* needs one step for each word, as a recurrent network does; less sequential generation is among the goals that the paper's last section names.
#
# ## The distance a signal travels
#
# To translate a verb you may have to know a subject 20 words earlier. How many layers does it take until one word can matter to another? We put a NaN, which survives every sum and product, at the first position and stack layers until it arrives at the last.


# %% tags=["hide-input"]
def layers_needed(layer, n, d=4):
    """Stack layer(x, number of the layer) until the first position is seen at the last."""
    x = torch.randn(n, d)
    x[0] = torch.nan
    for depth in count():
        if x[-1].isnan().any():
            return depth
        x = layer(x, depth)


kernel, W = torch.randn(3, 4, 4) / 4, torch.eye(4)
stacks = {
    "self-attention": lambda x, depth: attend(x, x, x),
    "recurrent": lambda x, depth: recurrent(x, W, W),
    "convolution": lambda x, depth: convolve(x, kernel),
    "dilated": lambda x, depth: convolve(x, kernel, step=3**depth),
    "restricted": lambda x, depth: restricted(x, x, x, 8),
}
lengths = (4, 16, 64, 256)
paths = {
    name: [layers_needed(layer, n) for n in lengths] for name, layer in stacks.items()
}
for name, depths in paths.items():
    print(f"{name:15} layers for n = 4, 16, 64, 256: {depths}")

# %% tags=["remove-cell"]
if CHECKING:
    assert paths["convolution"] == [math.ceil((n - 1) / 2) for n in lengths]
    assert paths["dilated"] == [math.ceil(math.log(n, 3)) for n in lengths]
    assert paths["restricted"] == [math.ceil((n - 1) / 7) for n in lengths]
    assert paths["self-attention"] == paths["recurrent"] == [1] * 4

# %% [markdown]
# (From here on, restricted attention sees $r = 8$ words.) Contiguous windows of 3 move a signal by 2 positions per layer, so 64 words take 32 layers. Dilated windows, 1, 3, 9, … apart, triple the reach with each layer and need 4. ([Chapter 2](02_before_attention.ipynb#the-distance-between-two-words) counted with ByteNet's doubling, which needs 6.) The recurrent layer needs only one, but inside it the signal passes through $n$ steps. Self-attention needs one layer and one step, at every distance.
#
# ## What arrives over that distance
#
# That a path exists doesn't mean that much gets through. We take untrained stacks, as deep as they must be, and the gradient of the last output with respect to the first input: how much would the last word change if the first did? (Weights are drawn as in [chapter 10](10_transformer.ipynb#how-weights-start), and the recurrent matrix is orthogonal, the kindest choice for it.) `received` holds what arrives, by stack and number of words.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-gradient-distance", "caption": "How much of the first word arrives at the last? Size of the gradient in untrained stacks, the mean of five seeds, against the distance; both axes are logarithmic. Recurrence, contiguous convolution and restricted attention fall off a cliff and leave the picture; dilated convolution and attention decline slowly. Where the last word\u2019s query fits the key of the first (the dashed line on top), attention loses next to nothing."}}


def xavier(*shape):
    limit = math.sqrt(6 / (shape[-1] + shape[-2]))
    return torch.empty(*shape, dtype=torch.float64).uniform_(-limit, limit)


def project(x):
    return [x @ xavier(32, 32) for _ in range(3)]


def looks_for_first(x):
    q, k, v = project(x)
    return attend(torch.cat([q[:-1], 3 * k[:1].detach()]), k, v)


def stack(x, layer, reach):
    """Apply layer(x, depth) until the reach (a function of the depth) covers the sentence."""
    for depth in count(1):
        x = layer(x, depth - 1)
        if reach(depth) >= len(x):
            return x


def turn():
    return torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0]


def small_kernel():
    return xavier(3, 32, 32) / math.sqrt(3)


untrained = {
    "self-attention": lambda x: attend(*project(x)),
    "attention, first key fits": looks_for_first,
    "recurrent": lambda x: recurrent(x, xavier(32, 32), turn()),
    "convolution": lambda x: stack(
        x, lambda x, _: convolve(x, small_kernel()), lambda m: 2 * m + 1
    ),
    "dilated": lambda x: stack(
        x, lambda x, m: convolve(x, small_kernel(), 3**m), lambda m: 3**m
    ),
    "restricted": lambda x: stack(
        x, lambda x, _: restricted(*project(x), 8), lambda m: 7 * m + 1
    ),
}


def arrives(layer, n):
    """Return the size of the gradient of the last output with respect to the first input."""
    sizes = []
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(n, 32, dtype=torch.float64, requires_grad=True)
        toward = torch.randn(32, dtype=torch.float64) / math.sqrt(32)
        (gradient,) = torch.autograd.grad((layer(x)[-1] * toward).sum(), x)
        sizes.append(gradient[0].norm().item())
    return sum(sizes) / 5


LOOKS_PATH = {
    "attention, first key fits": (SKY, [8, 3]),
    "self-attention": (SKY, [1, 0]),
    "dilated": (AMBER, [6, 3]),
    "convolution": (AMBER, [1, 0]),
    "recurrent": (PLUM, [1, 0]),
    "restricted": (INK, [2, 2]),
}
received = {
    name: {n: arrives(untrained[name], n) for n in (2, 4, 8, 16, 32, 64, 128)}
    for name in LOOKS_PATH
}
records = [
    {"distance": n - 1, "size": float(f"{size:.3g}"), "layer": name}
    for name, sizes in received.items()
    for n, size in sizes.items()
]
x = alt.X(
    "distance:Q",
    title="distance in words",
    scale=alt.Scale(type="log", base=2, domain=[1, 128]),
    axis=alt.Axis(values=[1, 2, 4, 8, 16, 32, 64, 128], labelFlush=False),
)
y = alt.Y(
    "size:Q",
    title="size of the gradient",
    scale=alt.Scale(type="log", domain=[1e-10, 10], nice=False),
    axis=alt.Axis(format=".0e", values=[1e-8, 1e-6, 1e-4, 1e-2, 1]),
)
show(
    curves(records, x, y, "layer", LOOKS_PATH).mark_line(clip=True),
    alt="Recurrent, contiguous and restricted layers fall below a millionth within 63 words. Attention and dilated convolution stay above a hundredth, and attention that looks for the first word stays near 1.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert received["recurrent"][64] < 1e-9 and received["convolution"][64] < 1e-5
    assert received["restricted"][64] < 1e-6
    assert received["dilated"][128] > 2 * received["self-attention"][128]
    assert min(received["self-attention"].values()) > 0.01
    assert 0.5 < received["attention, first key fits"][128] < 1.5

# %% tags=["nbval-ignore-output", "hide-input"]
for name, sizes in received.items():
    gradients = "  ".join(f"{sizes[n]:.0e}" for n in (4, 16, 64))
    print(f"{name:26} {gradients}   (n = 4, 16, 64)")

# %% [markdown]
# A short path isn't enough. Untrained attention averages all $n$ words, so only a small part of each arrives. At 64 words, the dilated convolution lets through ten times as much, although its path has four layers. Attention's advantage shows when there is something to find. Let the query of the last word fit the key of the first, as *likes* finds *cat*, and most of the signal arrives, whether it comes from 3 words away or from 127, the longest distance in the figure. A convolution has a weight for each *place*, so it would need another one for each distance. Attention computes its weights from the *contents* of the words, so the distance makes no difference.
#
# The cliffs are steeper here than in practice. The LSTM was invented to fight this very decay, the vanishing gradient, and lets a state pass through many steps; ByteNet and ConvS2S have [residual connections](09_layers.ipynb#let-each-part-add).
#
# ## What else the table leaves out
#
# - **Position.** Recurrence and convolution get the order of words for free. Attention has to be [told](08_positional_encoding.ipynb#attention-is-blind-to-order).
# - **Memory while writing.** A recurrent network carries one state of $d$ numbers. A Transformer keeps keys and values of all earlier words, the [KV cache](19_decoding.ipynb#how-large-is-a-kv-cache), which grows with $n$.
# - **Width.** The table compares equal $d$. With equal parameters or equal quality the result may differ, and only training can tell.
# - **Long inputs.** At $n = 100{,}000$ and $d = 512$, attention's two products take nearly a hundred times as much as its projections. Restricted attention, recurrences that train in parallel (Mamba), and mixtures of them are answers to that.
#
# Last, the paper notes that weights can be looked at; how much they explain is the question of [chapter 21](21_attention_maps.ipynb#what-attention-does-not-explain).
#
# ## What to remember
#
# - By count, bare attention beats recurrence for $n < d$; with projections against an LSTM, for $n < 2d$.
# - At the length of sentences every complete layer costs about $n d^2$, so counting operations settles nothing.
# - What decides is that all positions are computed at once, and that any two words are one step apart.
# - The price is $n^2$: first in memory, and for long inputs in time.
#
# You know how the model works, and why. Next it learns to translate.
#
# ## Exercises
#
# **1. How long?** (★, 5 min). By hand: a base model reads a book of 100,000 words at once. How many numbers are the weights of one attention with eight heads? How many bytes in float32?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Eight matrices of 10^5 by 10^5, for one layer and one sentence.
print(f"{8 * 100_000**2:,} numbers, {4 * 8 * 100_000**2 / 1e9:.0f} GB")

# %% [markdown]
# **2. A GRU instead** (★, 10 min). A GRU has six matrices where our recurrence has two. Up to which length does complete attention multiply less?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 4 n d^2 + 2 n^2 d < 6 n d^2 gives 2 n^2 d < 2 n d^2, so n < d: by chance the paper's own inequality.
d = 512
for n in (511, 512, 513):
    print(n, f"{by_formula(n, d)['with projections'] - 6 * n * d * d:,}")

# %% [markdown]
# **3. The widest kernel** (★★, 10 min). Let $k = n$. How many layers does a convolution need until the last word sees the first, and what does it multiply? Compare with attention at $n = 25$, $d = 512$, also for a separable one.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# One layer. A full convolution pays n^2 d^2, six times what attention with projections does. A separable
# one is cheaper than attention, but its weights are bound to places, and to sentences of 25 words.
counts = by_formula(25, 512, k=25)
for name in ("with projections", "convolution", "separable"):
    print(f"{name:17} {counts[name]:12,}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 5.5 < counts["convolution"] / counts["with projections"] < 6.5
    assert counts["separable"] < counts["with projections"]

# %% [markdown]
# **4. An LSTM that keeps** (★★, 20 min). Add `nn.LSTM(32, 32)` to `untrained`. How does its gradient fall with the distance? Then set the bias of its forget gate (entries 32 to 63 of `bias_ih_l0`) to 5.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A fresh forget gate is about one half, so half of the state is lost at every step. With bias 5 it is
# 0.993, and much of the state gets through 63 steps.


def lstm(bias):
    def layer(x):
        module = nn.LSTM(32, 32).double()
        with torch.no_grad():
            module.bias_ih_l0[32:64] = bias
        return module(x)[0]

    return layer


for bias in (0.0, 5.0):
    print(
        f"bias {bias}", "  ".join(f"{arrives(lstm(bias), n):.0e}" for n in (4, 16, 64))
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert arrives(lstm(0.0), 64) < 1e-9 < 1e-5 < arrives(lstm(5.0), 64)

# %% [markdown]
# **5. Your machine** (★★, 30 min; open). Run `python -m benchmarks.experiments.table1 --results mine`, on a GPU with `--device cuda`. Which exponents change, and where does the crossover go?
#
# **6. Attention in strides** (★★★, an evening; open). Let each position attend to the $\sqrt n$ words before it, and in the next layer to every $\sqrt n$-th word. What are the three columns of Table 1 for this pair of layers? Build it and check them with `multiplications`, `longest_chain` and `layers_needed`. Sparse Transformers {cite:p}`child2019generating` are built like that.
#
# ## Sources
#
# Table 1 and its discussion are section 4 of {cite:t}`vaswani2017attention`. Its rivals are ByteNet {cite:p}`kalchbrenner2016neural`, ConvS2S {cite:p}`gehring2017convolutional` and separable convolutions {cite:p}`chollet2017xception`.
