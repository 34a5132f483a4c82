# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Speed
#
# The cost of a training step, counted in operations, in bytes and in launches, and what lowers it on a GPU (section 5.2 of the paper).

# %% tags=["export", "hide-input"]
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from annotated_transformer.batching import plan_batches
from annotated_transformer.decoding import use_fused
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    parameter_count,
)

# %% [markdown]
# The paper trained its base model for twelve hours on eight GPUs of 2016. All products of that training together are about $10^{18}$ operations, as we shall count. An NVIDIA H100 does $989 \cdot 10^{12}$ of them per second, says its data sheet. Divide, and one such card is done in a quarter of an hour.
#
# It isn't. At the pace that we measured with this book's code, the training takes nearly two and a half hours on an H100. {numref}`fig-step` shows what happens in one of its steps. Before you go on, make a guess: which of the gray parts could one get rid of, and how?

# %% tags=["hide-input"]
import math
import time
import weakref
from functools import partial
from itertools import islice
from statistics import median

import matplotlib.pyplot as plt
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import Tokenizer, preset
from annotated_transformer.attention import attention
from annotated_transformer.batching import batches, encode_pairs
from annotated_transformer.own_data import multi30k
from annotated_transformer.training import group_batches, training_step
from benchmarks.common import read_log
from book.example import W_K, W_Q, W_V, WORDS, X
from book.figures import AMBER, INK, PAPER, PLUM, RESIDUAL, SKY, show_plot, style


def by_name(name):
    return {line["name"]: line for line in read_log(name)[1:]}


H100, H200 = by_name("gpu-NVIDIA-H100-80GB-HBM3"), by_name("gpu-NVIDIA-H200")
PEAK = 989e12  # of both, in bf16
UPDATES = 5  # in each timed round of these logs

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-step", "caption": "What fills a training step on an H100? Base and big in 16 bits, 25,000 positions per side, from the profile of a step in the log gpu-NVIDIA-H100-80GB-HBM3. The full blue part is what the products would take at the card's peak; everything to its right is lost to something else."}}
style()
figure, axis = plt.subplots(figsize=(4.3, 2.8), layout="constrained")
waits, shown = {}, {}
for row, name in enumerate(("base", "big")):
    line = H100[name]
    products, kernels = line["kernels"]["products"], sum(line["kernels"].values())
    step = 1e3 * line["seconds"][0] / UPDATES  # the round that was profiled
    best = 1e3 * line["kernel_operations"] / PEAK
    waits[name], shown[name] = step - kernels, (step, best, products, kernels)
    parts = (
        ("products at the peak", best, SKY, SKY, ""),
        ("products, the rest", products - best, "none", SKY, "//"),
        ("all other kernels", kernels - products, (RESIDUAL, 0.25), RESIDUAL, ""),
        ("the GPU waits", step - kernels, "none", RESIDUAL, ".."),
    )
    left = 0.0
    for label, ms, fill, edge, hatch in parts:
        label = None if row else label
        axis.barh(row, ms, left=left, fc=fill, ec=edge, hatch=hatch, label=label)
        back = {"fc": PAPER if hatch else "none", "ec": "none", "pad": 1}
        ink = PAPER if fill == SKY else INK
        middle = left + ms / 2
        axis.text(
            middle, row, f"{ms:.0f}", ha="center", va="center", color=ink, bbox=back
        )
        left += ms
axis.set(yticks=(0, 1), yticklabels=("base", "big"), xlabel="milliseconds of a step")
axis.invert_yaxis()
axis.grid(False)
figure.legend(loc="outside upper center", ncols=2, fontsize=9, frameon=False)
show_plot(
    alt="Of 83 milliseconds of a step of the base model, 8 are products at the peak, 7 more products, 46 other kernels, and 21 waiting. Of 131 of big, 28 are products at the peak, 13 more products, 78 other kernels, and 12 waiting.",
)

# %% tags=["remove-cell"]
if CHECKING:
    seconds = H100["base"]["seconds"]
    assert 2.4 < 1e5 * sum(seconds) / len(seconds) / UPDATES / 3600 < 2.6
    assert round(waits["base"]) == 21 and round(waits["big"]) == 12
    assert [round(x) for x in shown["base"]] == [83, 8, 15, 62]

# %% [markdown]
# Products take less than a fifth of the base model's step. The rest of the time the GPU moves numbers, or waits to be told what to do next.
#
# ## Which part of the model does the work
#
# Nearly all the work is matrix products. [The chapter on the model](10_transformer.ipynb#six-operations-per-weight) counts six operations for each weight of a matrix and each token that meets it: a multiplication and an addition in the forward pass, twice that in the backward pass. Which tokens meet which matrix? Write $w = H (d_k + d_v)$, which is $2d$ in most presets. With $L$ layers in each stack, a sentence pair of $S$ and $T$ positions takes
#
# $$ 6 \, \big[ \, L \, (3 d w + 2 d \, d_\text{ff}) (S + T) + L \, w \, (S^2 + T^2 + S T) + d \, |V| \, T \, \big] $$ (eq-operations)
#
# operations. The first term holds the projections of attention and the feed-forward networks. The second holds the products of queries with keys and of weights with values. They have no parameters, and they grow with the *pairs* of positions. The last term is the output projection.


# %% tags=["export"]
def flops(
    config: TransformerConfig, source: np.ndarray | int, target: np.ndarray | int
) -> dict[str, float]:
    """Count the operations of training on sentences of `source` and `target` positions, by block.

    Takes two numbers, or two arrays with one number per sentence. A multiplication and an addition
    count as two, and the backward pass as two forward passes.
    """
    s = np.asarray(source, dtype=np.float64)
    t = np.asarray(target, dtype=np.float64)
    d = config.d_model
    d_k = config.d_k or d // config.heads
    d_v = config.d_v or d // config.heads
    width = config.heads * (d_k + d_v)
    layers = config.layers
    multiplications = {
        # At a source position 2 d w for the encoder's attention, and d w for the keys and values
        # of cross-attention; at a target position 2 d w, and d w for its queries and output
        "attention projections": 3 * layers * d * width * (s + t),
        "attention products": layers * width * (s * s + t * t + s * t),
        "feed-forward": 2 * layers * d * config.d_ff * (s + t),
        "output projection": d * config.vocabulary_size * t,
    }
    return {
        block: 3 * 2 * float(numbers.sum())
        for block, numbers in multiplications.items()
    }


# %% tags=["hide-input"]
odd = TransformerConfig(50, layers=2, d_model=32, d_ff=48, heads=4, d_k=6, d_v=10)
torch.manual_seed(0)
model = Transformer(odd)
with (
    FlopCounterMode(display=False) as counter,
    sdpa_kernel(SDPBackend.MATH),  # the fused kernel computes some products twice
):
    SmoothedLoss(model)(torch.full((3, 11), 5), torch.full((3, 8), 5)).backward()
ours = sum(flops(odd, [11] * 3, [7] * 3).values())
counted = counter.get_total_flops()
print(f"a small model: {ours:,.0f} by the formula, {counted:,} by PyTorch's counter")
a_pair = {}
for name, steps in (("base", 100_000), ("big", 300_000)):
    counts = flops(preset(name), 28, 28)
    a_pair[name] = sum(counts.values()) / 28
    share = counts["attention products"] / sum(counts.values())
    print(
        f"{name}: {a_pair[name] / 1e9:.2f}e9 operations per pair of tokens, {share:.1%} in",
        f"attention's products; the paper's run: {a_pair[name] * 25_000 * steps:.1e}",
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert ours == counter.get_total_flops()
    nvidia = a_pair["big"] * 82_059 / 312e12
    assert round(100 * nvidia) == 34

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-operations", "caption": "Which part of the model does the work? Share of the training operations, for sentences of 28 tokens on either side and 37,000 entries in the vocabulary. The attention products, the part that grows with the square of the length, are the thin bar after the projections."}}
figure, axes = plt.subplots(figsize=(4.3, 2.7), layout="constrained")
looks = [("//", SKY), ("", INK), ("", AMBER), ("..", PLUM)]
for row, name in enumerate(("base", "big")):
    counts, left = flops(preset(name), 28, 28), 0.0
    for (block, number), (hatch, color) in zip(counts.items(), looks):
        share = 100 * number / sum(counts.values())
        label = block if row == 0 else None
        axes.barh(
            row,
            share,
            left=left,
            fc=(color, 0.25),
            ec=color,
            hatch=hatch,
            lw=1.4,
            label=label,
        )
        if share > 4:
            ground = {"fc": PAPER, "ec": "none", "pad": 1}
            middle = left + share / 2
            axes.text(
                middle, row, f"{share:.0f}%", ha="center", va="center", bbox=ground
            )
        left += share
axes.set(yticks=(0, 1), yticklabels=("base", "big"), xlim=(0, 100))
axes.set_xlabel("share of the operations in %")
axes.invert_yaxis()
axes.grid(False)
figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
show_plot(
    alt="In the base model the projections of attention take 30 percent, the feed-forward networks 40, the output projection 30; in the big model 35, 47 and 18. Attention products take less than 1 percent.",
)

# %% [markdown]
# For a sentence of 28 tokens (the middle one of 10,000 WMT pairs has 27), attention's products are less than one percent of the work. That changes with the length; exercise 2 asks where they cost as much as all the rest of an encoder layer.
#
# ## The speed of the machine
#
# A machine's **peak** is the number of operations per second that it does at best: 989 · 10¹² for an H100 (SXM) or H200, 312 · 10¹² for an A100, 165 · 10¹² for an RTX 4090. These are from the data sheets, for dense products in bf16, [a 16-bit format](#numbers-of-16-bits). **Model FLOPs utilization** or **MFU** ({cite:t}`chowdhery2023palm`) is the share of the peak that *useful* operations get, those of {eq}`eq-operations` for the real lengths of the sentences, with no padding and nothing counted twice:
#
# $$ \text{MFU} = \frac{\text{operations of the model, without padding}}{\text{seconds} \cdot \text{peak}}. $$ (eq-mfu)
#
# Our step reaches 10% with base on the H100, and 24% with big. For comparison, what NVIDIA [reports](https://github.com/NVIDIA/DeepLearningExamples/blob/d666f14553125df590224ac11f12ba43fffbf1dc/PyTorch/Translation/Transformer/README.md) for big on an A100 is about a third, if it counts target tokens.
#
# :::{admonition} Two instruments that lie: `nvidia-smi` and the clock
# :class: dropdown
# The utilization of `nvidia-smi` is the share of time in which *some* kernel was running, and one that copies a single number counts in full. The clock is fooled because the program requests a product in microseconds, and the GPU computes it later. Stop the clock without `torch.cuda.synchronize()`, and you have timed the request.
# :::
#
# ## Few operations for each byte
#
# A GPU must fetch numbers before it can compute with them. The memory of an H100 delivers $3.35 \cdot 10^{12}$ bytes per second (data sheet). In the time in which one byte arrives, the card could do 295 operations.
#
# Which **kernels**, the programs that each do one operation on the GPU, have that much to do? Divide the operations of a kernel by the bytes that it has to read and write: its **arithmetic intensity**. Adding two vectors of fp32 numbers moves 12 bytes for each operation: two numbers read, one written. A product of $N$ rows with a matrix of $d$ by $d$ makes $2 N d^2$ operations from $2 \, (2 N d + d^2)$ bytes, in 16 bits; with many rows that is $d / 2$ for each byte, or 256 in the base model. A kernel can't be faster than the peak, nor than its intensity times the bytes per second. These two limits make a roof, and every kernel is a point below it.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-roofline", "caption": "Which kernels compute, and which only move numbers? Kernels of a training step on an H100 below its roof: the slope is what its memory delivers, the flat part its peak. The times are from the profile in the log; operations and bytes are computed, as if each kernel read its inputs and wrote its results once."}}
BYTES = 3.35e12  # per second, of an H100 with HBM3, from the data sheet
TIMES = {
    "fmha_cutlassF": 0,
    "fmha_cutlassB": 0,
    "SoftMaxForward": 0,
    "vectorized_layer_norm": 0,
}
for ms, _, kernel in H100["base"]["slowest"]:
    for part in TIMES:
        TIMES[part] += 1e-3 * ms * (part in kernel)


def linear(rows, inputs, outputs):
    """Operations and bytes of a product and of its two in the backward pass, in 16 bits."""
    moved = 3 * 2 * (rows * inputs + inputs * outputs + rows * outputs)
    return 6 * rows * inputs * outputs, moved


def products_of(name):
    """Operations and bytes of a step's products, for N positions on either side."""
    c, line = preset(name), H100[name]
    N = line["kernel_operations"] / a_pair[name] / line["useful"]
    d, chunks = c.d_model, N / 1024  # positions of a chunk of the loss
    all_of_them = [(18 * 4, (N, d, d)), (12, (N, d, c.d_ff)), (12, (N, c.d_ff, d))]
    all_of_them.append((chunks, (1024, d, c.vocabulary_size)))
    counts = np.array([n * np.array(linear(*shape)) for n, shape in all_of_them])
    return N, *counts.sum(axis=0), 1e-3 * line["kernels"]["products"]


N, *base_products = products_of("base")
c, numbers = (
    preset("base"),
    18 * N * 512,
)  # in all 18 attentions, for each of Q, K, V, O
attended = 4 * N * 28 * 512 * 18  # operations of q k and of weights times v, forward
parameters = parameter_count(c)
POINTS = {
    "products, base": (base_products, SKY, "o"),
    "products, big": (products_of("big")[1:], SKY, "s"),
    "attention": ((attended, 2 * 4 * numbers, TIMES["fmha_cutlassF"]), AMBER, "^"),
    "its backward pass": (
        (2.5 * attended, 2 * 8 * numbers, TIMES["fmha_cutlassB"]),
        AMBER,
        "v",
    ),
    "softmax of the loss": (
        (4 * N * 37_000, 4 * N * 37_000, TIMES["SoftMaxForward"]),
        PLUM,
        "D",
    ),
    "LayerNorm": (
        (8 * 30 * N * 512, 8 * 30 * N * 512, TIMES["vectorized_layer_norm"]),
        INK,
        "P",
    ),
    "Adam": (
        (12 * parameters, 28 * parameters, 1e-3 * H100["base"]["kernels"]["Adam"]),
        RESIDUAL,
        "X",
    ),
}
figure, axis = plt.subplots(figsize=(4.3, 3.7), layout="constrained")
roof = np.geomspace(0.2, 20_000, 200)
axis.plot(roof, np.minimum(PEAK, BYTES * roof) / 1e12, color=INK, lw=1.6)
places = {
    "attention": (-2, -17),
    "its backward pass": (10, 0),
    "products, base": (2, -18),
}
places |= {"softmax of the loss": (9, 3), "LayerNorm": (9, -9), "Adam": (9, -9)}
speeds = {}
for name, ((operations, moved, seconds), color, mark) in POINTS.items():
    x, y = operations / moved, operations / seconds / 1e12
    speeds[name] = x, y, moved / seconds / BYTES
    axis.plot(x, y, mark, color=color, ms=8)
    place = places.get(name, (8, -4))
    axis.annotate(
        name, (x, y), place, textcoords="offset points", color=INK, fontsize=9
    )
axis.annotate("3.35e12 bytes/s", (0.5, 3.2), rotation=48, fontsize=9)
axis.annotate("the peak", (500, 1250), fontsize=9)
axis.set(xscale="log", yscale="log", xlim=(0.2, 20_000), ylim=(0.3, 3000))
axis.set(xlabel="operations per byte", ylabel="10¹² operations per second")
axis.grid(False)
show_plot(
    alt="The products of base lie near the corner of the roof at about 300 operations per byte, those of big to the right of it at twice that. Attention, the softmax of the loss, LayerNorm and Adam all lie far to the left, below the slope.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        295 < speeds["products, base"][0] < 350
        and 590 < speeds["products, big"][0] < 620
    )
    assert [
        round(speeds[f"products, {n}"][1] * 1e12 / PEAK, 2) for n in ("base", "big")
    ] == [0.57, 0.73]
    others = [share for name, (*_, share) in speeds.items() if "products" not in name]
    assert min(others) > 0.18 and max(others) < 0.67

# %% [markdown]
# In this **roofline** plot ({cite:t}`williams2009roofline`) only the matrix products come near the peak. Those of base stand just at the corner, since a width of 512 is too narrow to get past it; big, twice as wide, has twice the intensity. All the others hang below the slope, with a fifth to two thirds of the bytes per second that the memory could deliver. (Attention is the one that gets only a fifth: its kernel works in blocks of 64 positions, and our sentences fill 28.) They can't become faster by computing less, because they hardly compute. What they need is fewer bytes.
#
# ## When a GPU waits for the program
#
# Now for the waiting. If you cut the batch to an eighth, how much shorter does a step get?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-launches", "caption": "When does a GPU wait for the program? Milliseconds of a step of base on an H200, by the size of the batch, and how long kernels ran in it; the numbers are launches per step. Up to 25,000 positions all steps take the same time, as long as the program takes to launch their kernels. (These were profiled on other batches than the steps; at 25,000 positions they had 15% less work.) From the log gpu-NVIDIA-H200."}}
sizes = {
    H200[n]["max_tokens"]: H200[n]
    for n in H200
    if n == "base" or "0 tokens" in n or "5 tokens" in n
}
sizes = dict(sorted(sizes.items()))
steps = [1e3 * median(line["seconds"]) / UPDATES for line in sizes.values()]
busy = [sum(line["kernels"].values()) for line in sizes.values()]
figure, axis = plt.subplots(figsize=(4.3, 3.1), layout="constrained")
axis.plot([*sizes], steps, "o-", color=AMBER, label="a step")
axis.plot([*sizes], busy, "s--", color=SKY, mfc=PAPER, label="its kernels")
for x, y, launches in zip(sizes, steps, [line["launches"] for line in sizes.values()]):
    axis.annotate(
        f"{launches:,}",
        (x, y),
        (-9, 8),
        textcoords="offset points",
        ha="center",
        fontsize=9,
    )
axis.set(xscale="log", xticks=[*sizes], ylim=(0, 225), xlim=(2000, 130_000))
axis.set_xticklabels([f"{size:,}" for size in sizes], fontsize=9)
axis.minorticks_off()
axis.set(xlabel="positions of the batch, on either side", ylabel="milliseconds")
axis.legend(frameon=False)
axis.grid(False)
show_plot(
    alt="A step takes 62 to 67 milliseconds from 3,125 to 25,000 positions, though its kernels run for only 10 to 53 of them. At 50,000 both take 105; at 100,000 the kernels take 182 of 190.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert [*sizes] == [3125, 12500, 25000, 50000, 100000]
    assert [round(step) for step in steps] == [62, 67, 65, 105, 190]
    assert round(busy[0]) == 10 and sizes[3125]["launches"] == 1389
    assert round(1e3 * steps[0] / 1389) == 45
    assert round(1e5 * steps[2] / 3.6e6, 1) == 1.8
    assert round(1e3 * median(sizes[25_000]["seconds"]) / UPDATES / 1983 * 1e3) == 33

# %% [markdown]
# Hardly: on an H200 it takes 62 to 67 milliseconds, at 3,125 positions as at 25,000. The program hands the GPU one kernel after the other, with PyTorch's bookkeeping around each. Up to 25,000 positions a step has 1,389 to 1,983 kernels, and handing one over takes the program 33 to 45 microseconds in this virtual machine, together some 60 ms. If the GPU takes longer than that for a kernel, a queue builds up and it never pauses. If not, it waits, and neither peak nor batch matters: the step is **launch-bound**. (To find out, double the batch: if the step takes no longer, it is launch-bound.)
#
# Larger batches help, and fewer kernels ([compiled layers](#compiling-a-layer)). So does a **CUDA graph**, which records all launches of a step and replays them on one request; a recording fits inputs of one shape only, and our batches have many.
#
# ## Attention without the matrix
#
# FlashAttention ({cite:t}`dao2022flashattention`) made attention on GPUs several times as fast without saving a single operation. It saves bytes. PyTorch's fused attention is built in this way, and the models that we train have it: `FastLoss`, below, calls [`use_fused`](19_decoding.ipynb#the-same-in-one-call), the switch that puts it in the place of ours.
#
# Written as in [chapter 3](03_attention.ipynb#the-code), attention writes $S^2$ scores to memory, reads them for the softmax, writes $S^2$ weights and reads these for the product with the values. In 16 bits that's 8 bytes moved for each pair of positions, and $4 d_k = 256$ operations: 32 for each byte, where the card wants 295. In the small, fast memory on the chip, scores and weights would cost almost nothing to move. But softmax seems to need a whole row, and long rows don't fit.
#
# It doesn't need one. {cite:t}`milakov2018online` compute maximum and sum in one pass over the row, and attention can be added to the pass. Three values are kept: the maximum $m$ so far, the sum $\ell$ of exponentials relative to it, and the sum $o$ of values weighted by these exponentials. When a block with scores $s_j$ brings a larger maximum $m'$, what has been summed so far was too large by one common factor:
#
# $$ \ell \leftarrow e^{m - m'} \ell + \sum_j e^{s_j - m'}, \qquad o \leftarrow e^{m - m'} o + \sum_j e^{s_j - m'} v_j, \qquad m \leftarrow m'. $$ (eq-online-softmax)
#
# At the end, $o / \ell$ is the output of attention. Here is the row of *likes*, two keys at a time. `WORDS` and their vectors `X` are those of chapter 3; `scores` holds the row, `values` what it mixes:

# %% tags=["hide-input"]
scores, values = X[WORDS.index("likes")] @ W_Q @ (X @ W_K).T / 2, X @ W_V

# %%
m, total, out = -math.inf, 0.0, torch.zeros(3, dtype=X.dtype)
for start in range(0, 5, 2):
    block = scores[start : start + 2]
    larger = max(m, block.max().item())
    weights, rescale = (block - larger).exp(), math.exp(m - larger)
    total = rescale * total + weights.sum().item()
    out = rescale * out + weights @ values[start : start + 2]
    m = larger
    shown = " ".join(f"{x:.2f}" for x in (out / total).tolist())
    print(f"after {' '.join(WORDS[: start + 2]):28} m {m:.2f}  output {shown}")

# %% tags=["remove-cell"]
if CHECKING:
    assert (out / total - scores.softmax(dim=0) @ values).abs().max() < 1e-15

# %% [markdown]
# When *cat* comes, the two earlier words shrink by $e^{-3}$. The last line is [the result of chapter 3](03_attention.ipynb#from-scores-to-weights), equal to the plain softmax to $10^{-15}$. FlashAttention does this for many rows at a time, block by block on the chip. For the backward pass it keeps $m$ and $\ell$ of each row and *recomputes* the weights: more operations, and still faster, because fewer bytes move. Memory no longer grows with the square of the length, either. For one sentence and eight heads, autograd keeps, with chapter 3's `attention` and with PyTorch's fused one, which works in blocks, too:


# %% tags=["hide-input", "nbval-ignore-output"]
def kept(action):
    """Bytes that an action leaves behind for the backward pass."""
    found = []

    def pack(tensor):
        found.append(weakref.ref(tensor))
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = action()
    alive = [
        tensor.untyped_storage()
        for tensor in (ref() for ref in found)
        if tensor is not None
    ]
    del result
    return sum({storage.data_ptr(): storage.nbytes() for storage in alive}.values())


for S in (28, 1024):
    q, k, v = (torch.randn(1, 8, S, 64, requires_grad=True) for _ in range(3))
    readable = kept(lambda: attention(q, k, v)) / 1e6
    fused = kept(lambda: F.scaled_dot_product_attention(q, k, v)) / 1e6
    print(f"{S:5} positions: chapter 3: {readable:5.2f} MB, fused: {fused:5.2f} MB")

# %% tags=["remove-cell"]
if CHECKING:
    assert readable > 4 * fused

# %% [markdown]
# ## The loss without the logits
#
# The largest tensor of a step holds the logits: $25{,}000 \cdot 37{,}000$ numbers at the paper's batch, 3.7 GB in fp32, and their gradients take as much again. But the loss is a sum over positions. We can take a thousand positions, compute their logits, their loss *and their gradient*, add these up, and forget the logits before the next thousand.
#
# The loss is the last thing that a step computes, so its backward pass may start at once. Cut the graph in front of the output projection, so that the states and the table of embeddings become its leaves. Then each chunk can call `backward` from its loss down to the cut.
#
# **Exercise 6. Write it first** (★★, 20 min). Write `loss_in_chunks(states, table, labels)`: a loop over `states.split(1024)` that returns the sum of the losses and leaves the right gradients in `states.grad` and `table.grad`. Compare it with `F.cross_entropy` on all logits.


# %%
def loss_in_chunks(states, table, labels, chunk=1024):
    total = 0.0
    for part, part_labels in zip(states.split(chunk), labels.split(chunk)):
        logits = part @ table.T
        loss = F.cross_entropy(logits, part_labels, reduction="sum")
        loss.backward()
        total += loss.item()
    return total


# %% tags=["remove-cell"]
if CHECKING:
    torch.manual_seed(0)
    states = torch.randn(36, 16, dtype=torch.float64, requires_grad=True)
    table = torch.randn(30, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(4, 30, (36,))
    together = F.cross_entropy(states @ table.T, labels, reduction="sum")
    expected = together, *torch.autograd.grad(together, (states, table))
    found = loss_in_chunks(states, table, labels, chunk=5), states.grad, table.grad
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(
            torch.as_tensor(ours, dtype=torch.float64), theirs.detach()
        )

# %% [markdown]
# `chunked_loss` also smooths the labels, leaves padding out, and hands the gradients of the states on to the layers below, as if the graph had never been cut.
#
# :::{admonition} How the gradient gets past the cut, and where label smoothing went
# :class: dropdown
# States and embedding matrix are detached, so the rest of the model hears nothing of these backward passes. But the gradient of $\sum_i g_i h_i$ with respect to $h$ is $g$. We add this sum to the loss once, and subtract it once without a gradient: the value stays, and the gradient is the one we know. A later factor, such as one over the number of tokens, multiplies both.
#
# Label smoothing needs no logits. The smoothed loss of a position with logits $z$ and label $y$ ([chapter 17](17_regularization.ipynb#why-smooth-the-labels)) is
#
# $$ \log \sum_v e^{z_v} - (1 - \epsilon) \, z_y - \epsilon \, \bar z = \underbrace{\log \sum_v e^{z_v} - z_y}_{\text{hard label}} + \; \epsilon \, (z_y - \bar z), $$ (eq-smoothing-apart)
#
# and since logits are linear in the state $h$, the second part is $\epsilon \, h \cdot (E_y - \bar E)$, with the row $E_y$ of the embedding matrix and the mean $\bar E$ of its rows.
# :::

# %% tags=["export"]
CHUNK = 1024  # positions


def chunked_loss(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.1,
    chunk: int = CHUNK,
) -> Tensor:
    """Return the label-smoothed loss of states (N, D) against labels (N,), summed over real tokens.

    It includes the output projection with weight (|V|, D). Loss and gradient are computed `chunk`
    positions at a time: the logits of all never exist at once. Second derivatives are wrong.
    """
    margin = states * (F.embedding(labels, weight) - weight.mean(dim=0))
    margins = margin.sum(dim=-1).masked_fill(labels == PAD, 0)
    total = label_smoothing * margins.sum()

    table: Any = weight.detach().requires_grad_()
    parts = states.detach().split(chunk)
    for part, part_labels in zip(parts, labels.split(chunk)):
        logits = F.linear(part.requires_grad_(), table)
        loss = label_smoothed_loss(logits, part_labels, label_smoothing=0)
        if loss.requires_grad:
            loss.backward()
        total = total + loss.detach()

    if not torch.is_grad_enabled():  # as in a validation
        return total
    # Add nothing but the gradients, which are known already
    state_gradient = torch.cat([part.grad for part in parts])
    carrier = (states * state_gradient).sum() + (weight * table.grad).sum()
    return total + carrier - carrier.detach()


# %% tags=["hide-input", "nbval-ignore-output"]
def all_logits(states, table, labels):
    return label_smoothed_loss(F.linear(states, table), labels)


torch.manual_seed(0)
states = torch.randn(36, 16, dtype=torch.float64, requires_grad=True)
table = torch.randn(30, 16, dtype=torch.float64, requires_grad=True)
labels = torch.tensor([*range(4, 30), *range(4, 8), *[PAD] * 6])
results = []
for function in (partial(chunked_loss, chunk=5), all_logits):
    value = function(states, table, labels)
    results.append([value, *torch.autograd.grad(value, (states, table))])
apart = [(ours - theirs).abs().max().item() for ours, theirs in zip(*results)]
print("loss, gradients differ by", *(f"{number:.0e}" for number in apart))

states, table = (torch.randn(n, 256, requires_grad=True) for n in (1024, 8000))
labels = torch.randint(4, 8000, (1024,))
for name, function in (
    ("chunked", partial(chunked_loss, chunk=128)),
    ("readable", all_logits),
):
    print(f"{name}: {kept(lambda: function(states, table, labels)) / 1e6:.0f} MB")

# %% tags=["remove-cell"]
if CHECKING:
    assert max(apart) < 1e-10

# %% [markdown]
# At the paper's batch on the H200, the loss needed 1.0 GB in chunks instead of 11.4, and 18.9 ms instead of 15.1.

# %% tags=["remove-cell"]
if CHECKING:
    losses = [H200[f"{name}, smoothing 0.1"] for name in ("all logits", "chunked_loss")]
    assert [round(line["gigabytes"], 1) for line in losses] == [11.4, 1.0]
    assert [round(line["milliseconds"], 1) for line in losses] == [15.1, 18.9]

# %% [markdown]
# ## Numbers of 16 bits
#
# A number of 16 bits takes half the bytes of one of 32, and an A100 multiplies matrices of such numbers 16 times as fast: 312 · 10¹² operations per second, against 19.5 · 10¹² in full fp32. There are two formats. The exponent gives a number's size, the fraction its digits.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-bits", "caption": "What does a number of 16 bits give up? The bits of three formats: sign (s), exponent (e), fraction (f). bf16 is fp32 with the last 16 bits cut off: the same range, up to 3.4e38, and a fraction of 7 bits, so that neighboring numbers differ by 0.4 to 0.8 percent. fp16 keeps 10 bits of the fraction and ends at 65,504; its smallest normal number is 6.1e-5."}}
figure, axes = plt.subplots(figsize=(4.8, 1.4), layout="constrained")
formats = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10)}
for row, (exponent, fraction) in enumerate(formats.values()):
    for place, letter in enumerate("s" + "e" * exponent + "f" * fraction):
        color, _ = {"s": (INK, ""), "e": (AMBER, ""), "f": (SKY, "")}[letter]
        axes.broken_barh([(place, 0.9)], (row, 0.75), fc="none", ec=color, lw=1.3)
        axes.text(
            place + 0.45, row + 0.36, letter, color=color, ha="center", va="center"
        )
axes.set(xlim=(-0.2, 32), ylim=(2.9, -0.1), xticks=(), yticks=(0.4, 1.4, 2.4))
axes.set_yticklabels(formats)
axes.grid(False)
axes.spines[:].set_visible(False)
show_plot(
    alt="Three rows of boxes. fp32 has 1 sign bit, 8 exponent bits and 23 fraction bits; bf16 has 1, 8 and 7, which line up with the first 16 of fp32; fp16 has 1, 5 and 10.",
)

# %%
numbers = torch.tensor([1e-8, 1e6, 1.001])
print("fp16:", [f"{number:.4g}" for number in numbers.half().tolist()])
print("bf16:", [f"{number:.4g}" for number in numbers.bfloat16().tolist()])

# %% [markdown]
# In training, range counts. Many gradients are smaller than fp16's smallest number and become zero, unless the loss is multiplied by a factor that has to be adapted all the time. bf16 has the range of fp32, so there's nothing to adapt. It pays in exactness: each number is off by up to 0.4%, which a sum of thousands hardly notices.
#
# The third number shows where bf16 must *not* be used. Suppose an update changes a weight by a thousandth of its size: in bf16 $1 + 0.001$ is $1$. Weights and Adam's [two averages](16_schedule.ipynb#what-adam-does-with-the-rate), its *moments*, therefore stay in fp32, and `torch.autocast` makes a narrow copy of the weights for the products. It computes linear maps and attention in bf16, and keeps normalization in fp32. On the H200 this made base 3.6 times as fast as fp32. Where a machine has no units for bf16, the package takes fp32:


# %% tags=["export"]
Precision = Literal["fp32", "bf16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def best_precision(device: torch.device | str) -> Precision:
    """Return "bf16" for a GPU that has units for products of such numbers, else "fp32"."""
    if torch.device(device).type != "cuda":
        return "fp32"
    has_units = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_units else "fp32"


# %% [markdown]
#
# ### The fast loss
#
# `FastLoss`, folded here, puts the chunks and the 16 bits together. In bf16 its gradient differs by about a percent from that of [`SmoothedLoss`](17_regularization.ipynb#the-loss-as-a-module).

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show FastLoss", "code_prompt_hide": "Hide FastLoss"}
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class FastLoss(SmoothedLoss):
    """The same loss in chunks, of a model with fused functions, and with "bf16" in 16 bits."""

    chunk = CHUNK  # positions

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float = 0.1,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__(model, label_smoothing)
        self.precision = precision
        use_fused(model)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        model = self.model
        bf16 = self.precision == "bf16"
        # In 16 bits, a CPU goes back through the fused attention slowly
        kernels = [SDPBackend.MATH] if bf16 and source.is_cpu else FUSED
        with (
            torch.autocast(source.device.type, torch.bfloat16, enabled=bf16),
            sdpa_kernel(kernels),  # never cuDNN's
        ):
            states = model.decode(target[:, :-1], model.encode(source), source)
            return chunked_loss(
                states.flatten(0, 1),
                model.embedding.weight,
                target[:, 1:].flatten(),
                self.label_smoothing,
                self.chunk,
            )


# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show whether it computes the same, and how fast this machine is", "code_prompt_hide": "Hide the comparison"}
torch.set_num_threads(1)
pairs = multi30k("train")[:6000]
tokenizer = Tokenizer.train(pairs, vocabulary_size=8000)
corpus = encode_pairs(tokenizer, pairs)
config = preset("small", vocabulary_size=len(tokenizer))
few = list(islice(batches(corpus, 512, seed=0, epoch=0), 3))

torch.manual_seed(0)
model = Transformer(config).eval()  # without dropout
results, errors = {}, {}
for name, loss in (
    ("SmoothedLoss", SmoothedLoss(model)),
    ("FastLoss", FastLoss(model)),
    ("FastLoss, bf16", FastLoss(model, precision="bf16")),
):
    model.zero_grad()
    value = loss(*few[1])
    value.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    results[name] = value.item(), gradient
    exact, whole = results["SmoothedLoss"]
    apart = ((gradient - whole).norm() / whole.norm()).item()
    errors[name] = abs(value.item() / exact - 1), apart
    print(f"{name:15} loss {value:.2f}; gradient differs by {apart:.2%}")

loss = FastLoss(model.train())
adam = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
(group,) = group_batches(few[:1], 1)
lengths_of = [(side != PAD).sum(dim=1).numpy() for side in few[0]]
useful = sum(flops(config, lengths_of[0], lengths_of[1] - 1).values())
took = []
for _ in range(3):
    start = time.process_time()
    training_step(loss, group, adam)
    took.append(time.process_time() - start)
left, right = torch.randn(2, 1024, 1024)
products = []
for _ in range(5):
    start = time.process_time()
    left @ right
    products.append(time.process_time() - start)
peak = 2 * 1024**3 / min(products)
print(f"this machine: {useful / 1e9:.0f}e9 operations in {min(took):.2f} s,", end=" ")
print(f"peak {peak / 1e9:.0f}e9 per second, MFU {useful / min(took) / peak:.0%}")

# %% tags=["remove-cell"]
if CHECKING:
    for name, (of_loss, of_gradient) in errors.items():
        assert of_loss < 0.005 and of_gradient < (0.05 if "bf16" in name else 1e-3)
    assert 0.05 < useful / min(took) / peak < 5  # above 1 only if others keep it busy

# %% [markdown]
# ## Compiling a layer
#
# A layer is a few dozen operations, each of which reads from memory and writes back. `torch.compile` watches a function run once and writes a program for it, in which neighbors such as addition, dropout and normalization become one loop, and on a GPU one launch. `compile_layers` compiles each *layer* in place, so that the six of a stack share a program.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show compile_layers", "code_prompt_hide": "Hide compile_layers"}
def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Compile each layer of a model in place, for batches of all sizes.

    Layers of a kind share their programs; Dynamo's limit for them is raised for this process.
    Raises OSError if a compiler is missing.
    """
    number = model.embedding.weight[0].detach()
    try:
        torch.compile(lambda x: x + 1, backend=backend)(number)
    except Exception as error:  # of Dynamo, of Triton, of a C++ compiler
        reason = " ".join(str(error).split())[:200]
        raise OSError(
            f"cannot compile: install g++ or triton, or do without ({reason})"
        ) from error
    torch._dynamo.config.cache_size_limit = 64  # programs; beyond them Dynamo gives up
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.compile(dynamic=True, backend=backend)


# %% [markdown]
# On the H100 it made big 16% faster, after 35 seconds of compiling. Base gained 5 and 9% in two sessions, less than its rounds scatter: of its 2,052 launches 1,794 remain, and it still waits for them. `train` compiles only with `--compile`.

# %% tags=["remove-cell"]
if CHECKING:
    for name, gain, least, most in (
        ("base", 1.09, 0.84, 0.86),
        ("big", 1.16, 0.82, 0.85),
    ):
        plain, fast = H100[name], H100[f"{name}, compiled"]
        assert round(fast["tokens_per_second"] / plain["tokens_per_second"], 2) == gain
        assert (
            least
            < sum(fast["kernels"].values()) / sum(plain["kernels"].values())
            < most
        )
        assert 34 < fast["first_seconds"] < 36
    assert (H100["base"]["launches"], H100["base, compiled"]["launches"]) == (
        2052,
        1794,
    )

# %% [markdown]
# ## On a GPU
#
# This is an H200 and an H100 in virtual machines, measured with `python -m benchmarks.speed.step_speed --peak 989e12`:

# %% tags=["hide-input"]
print("real target tokens per second, MFU    H200             H100")
rows = (
    "base",
    "big",
    "base, compiled",
    "big, compiled",
    "fp32",
    "without sorted lengths",
)
for name in (*rows, "3,125 tokens", "100,000 tokens"):
    cells = ""
    for log in (H200, H100):
        line = log.get(name)
        cell = f"{line['tokens_per_second']:9,} {line['mfu']:6.1%}" if line else "-"
        cells += f"{cell:>17}"
    label = name if "b" in name[:2] else f"base, {name}"
    print(f"{label:28}{cells}")

# %% [markdown]
# On the same batches, PyTorch's `nn.Transformer` and Hugging Face's `MarianMTModel` take more than four times as long; the fold has the turns, and a cause that we suspect.
#
# :::{admonition} Beside other Transformers on a GPU
# :class: dropdown
# Four systems took turns on the same batches, which were on the card before the clock started: ours, ours with compiled layers, and the two others. The rates are 40% higher than in the table above, and we don't know how much of that is due to the batches and how much to faster launches in another session, so compare only within a table. The factors are medians over the turns.
#
# Both others use cuDNN's attention, which prepares [a program for each new length](#does-this-training-use-flashattention). That may explain most of it; we haven't measured them without it.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the turns", "code_prompt_hide": "Hide the turns"}
_, *turns = read_log("peers_gpu")
rates = {}
for turn in turns:
    rate = turn["tokens"] / turn["seconds"]
    rates.setdefault(turn["system"], {})[turn["round"]] = rate
print("by turns on the H100, base: tokens per second, ours is x times as fast")
ratios = {}
for name, found in rates.items():
    ratios[name] = median(rates["ours"][turn] / found[turn] for turn in found)
    print(f"{name:26} {median(found.values()):9,.0f}  {ratios[name]:5.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    for name, share in (("base", 0.29), ("big", 0.44)):
        kernels = H100[name]["kernels"]
        needed = sum(
            kernels[kind] for kind in ("products", "attention", "loss", "Adam")
        )
        alone = H100[name]["kernel_operations"] / (1e-3 * needed) / PEAK
        assert round(alone, 2) == share
    assert (
        round(ratios["nn.Transformer"], 1) == 4.6
        and round(ratios["MarianMTModel"], 1) == 4.7
    )
    needed = [H100[n]["kernel_operations"] for n in ("base", "big")]
    assert H200["without sorted lengths"]["tokens_per_second"] == 74_364
    casts = H100["base"]["kernels"]["copies and numbers of 16 bits"]
    assert round(casts) == 12 and round(H100["base"]["kernels"]["other"]) == 14

# %% [markdown]
# :::{admonition} Where the rest of a step goes
# :class: dropdown
# If products, attention, loss and Adam were all there was, MFU would be 29% and 44%. Casts between 32 and 16 bits take another 12 ms of the base model's step, additions and other small kernels 14. (Unsorted, a batch gives up the token budget as well: it holds 208 sentences.) What else was tried, with what it gained or lost, is in [TRIALS.md](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/TRIALS.md#a-training-step).
# :::
#
# ## Memory and hours before a run
#
# A run needs memory for weights, gradients and Adam's two moments, 16 bytes per parameter, and in bf16 2 more for a narrow copy of the weights. The loss takes three tensors of the size of a chunk's logits. The rest are **activations**, what the layers keep for the backward pass.


# %% tags=["export"]
def activations(
    config: TransformerConfig,
    rows: np.ndarray | int,
    source: np.ndarray | int,
    target: np.ndarray | int,
    precision: Precision = "fp32",
) -> np.ndarray:
    """Return the bytes that layers keep for the backward pass of batches, about.

    A batch has so many rows, source and target positions; arrays hold one number per batch.
    """
    d = config.d_model
    d_k = config.d_k or d // config.heads
    d_v = config.d_v or d // config.heads
    width = 3 * config.heads * (d_k + d_v) + config.d_ff
    bytes_per_number = 2 if precision == "bf16" else 4
    wide_inputs = (2, 3) if precision == "bf16" else (0, 0)  # of norms, in 32 bits
    encoder = source * (width + (6 + wide_inputs[0]) * d)
    decoder = target * (width + (9 + wide_inputs[1]) * d)
    embedded = (2 * source + target) * d
    numbers = rows * (config.layers * (encoder + decoder) + embedded)
    return np.asarray(bytes_per_number * numbers)


# %% [markdown]
# For the paper's batch this makes:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-gpu-memory", "caption": "What fills the memory of a GPU? Bytes by what they hold, computed for the paper's batch of 25,000 positions per side. With all logits at once (dotted) the loss of the base model would take more than its layers do in bf16; in chunks it is a small part of that."}}
figure, axes = plt.subplots(1, 2, figsize=(4.8, 2.8), sharey=True, layout="constrained")
for axis, name in zip(axes, ("base", "big")):
    c = preset(name)
    each = 12 * c.vocabulary_size  # bytes of the loss for a position
    for offset, precision, color, hatch in (
        (-0.2, "fp32", SKY, ""),
        (0.2, "bf16", AMBER, "//"),
    ):
        parts = {
            "weights": (6 if precision == "bf16" else 4) * parameter_count(c),
            "gradients": 4 * parameter_count(c),
            "Adam": 8 * parameter_count(c),
            "activations": activations(c, 892, 28, 28, precision),
            "loss": each * CHUNK,
        }
        rows = [row + offset for row in range(len(parts))]
        sizes = [size / 1e9 for size in parts.values()]
        axis.barh(
            rows,
            sizes,
            0.36,
            fc=(color, 0.25),
            ec=color,
            hatch=hatch,
            lw=1.3,
            label=precision,
        )
    full = each * 892 * 28 / 1e9
    axis.barh(len(parts) - 1, full, 0.8, fc="none", ec=INK, lw=0.9, ls=":")
    axis.text(full / 2, len(parts) - 1, "all logits", ha="center", va="center")
    axis.set(title=name, xlabel="GB", yticks=range(len(parts)), yticklabels=parts)
    axis.set_xlim(0, 1.05 * max(full, activations(c, 892, 28, 28) / 1e9))
    axis.grid(False)
axes[0].invert_yaxis()
axes[0].legend(frameon=False)
show_plot(
    alt="For base and big, activations are the largest part, 11 and 22 gigabytes in fp32, and shrink by two fifths in bf16. Weights, gradients and Adam together take 1 and 3.4. The loss in chunks is half a gigabyte, with all logits eleven.",
)

# %% [markdown]
# `estimate` puts operations and memory together for the batches of a corpus; `train --dry-run` prints it. The hours follow from the share of the peak that our two cards reached, and from the launches, which no number of GPUs makes fewer.


# %% tags=["export"]
LAUNCHES = 0.062 / 12  # seconds of a step per layer, measured on an H200 with base


def measured_peak(device: torch.device, precision: Precision = "fp32") -> float:
    """Return the operations per second of a large product of matrices, the best of five."""
    from torch.utils.benchmark import Timer  # waits for a GPU; slow to import

    size = 8192 if device.type == "cuda" else 1024
    left, right = torch.randn(2, size, size, dtype=DTYPES[precision], device=device)
    factors = {"left": left, "right": right}
    timer = Timer("left @ right", globals=factors, num_threads=torch.get_num_threads())
    return 2 * size**3 / min(timer.timeit(1).median for _ in range(5))


class Estimate(NamedTuple):
    """What a run will take: parameters, operations in all, bytes of the largest batch."""

    parameters: int
    flops: float
    memory_bytes: float  # on each device
    usual_mfu: float
    launch_hours: float

    def hours(self, peak: float, gpus: int = 1) -> float:
        """Return the hours on GPUs with so many operations per second at their peak."""
        return max(
            self.flops / (gpus * peak * self.usual_mfu) / 3600, self.launch_hours
        )


def estimate(
    config: TransformerConfig,
    training: TrainingConfig,
    lengths: np.ndarray,
    precision: Precision = "fp32",
    processes: int = 1,
) -> Estimate:
    """Estimate a training run on examples of these lengths (N, 2), before it begins."""
    lengths = lengths.astype(np.int64)  # on disk they have 32 bits
    plan = plan_batches(lengths, training.max_tokens, training.seed, epoch=0)
    rows = np.array([len(batch) for batch in plan])
    source, target = np.array([lengths[batch].max(axis=0) for batch in plan]).T
    per_epoch = flops(config, source.repeat(rows), target.repeat(rows))
    batches = training.steps * training.grad_accum_steps

    parameters = parameter_count(config)
    share = np.ceil(rows / processes).astype(int)
    layers = activations(config, share, source, target, precision)
    loss = 12 * np.minimum(share * target, CHUNK) * config.vocabulary_size
    fixed = (18 if precision == "bf16" else 16) * parameters
    if precision == "bf16":  # a GPU: measured with the base and the big model
        usual_mfu = 0.26 if parameters > 100_000_000 else 0.12
        launch_hours = 2 * config.layers * batches * LAUNCHES / 3600
    else:  # a CPU, which launches nothing
        usual_mfu = 0.5
        launch_hours = 0.0
    return Estimate(
        parameters=parameters,
        flops=sum(per_epoch.values()) / len(plan) * batches,
        memory_bytes=float(fixed + (layers + loss).max()),
        usual_mfu=usual_mfu,
        launch_hours=launch_hours,
    )


# %% [markdown]
# For base and big, with the paper's batches:

# %% tags=["hide-input"]
PEAKS = {"H100": 989e12, "A100": 312e12, "RTX 4090": 165e12}  # bf16, from data sheets
lengths, plans = np.full((892, 2), 28), {}  # a batch of 25,000 tokens on either side
for name, steps in (("base", 100_000), ("big", 300_000)):
    training = TrainingConfig(steps=steps, max_tokens=25_000)
    plans[name] = plan = estimate(preset(name), training, lengths, precision="bf16")
    memory = plan.memory_bytes / 1e9
    print(f"{name}: {plan.flops:.1e} operations, {memory:.0f} GB, MFU {plan.usual_mfu}")
    for gpu, peak in PEAKS.items():
        print(f"   one {gpu:8} {plan.hours(peak):6.1f} hours")

# %% tags=["remove-cell"]
if CHECKING:
    assert f"{plans['base'].flops:.1e}" == "9.5e+17"
    for log in (H100, H200):
        for line in log.values():
            usual = line.get("precision") == "bf16" and line["loss"] == "chunked"
            if usual and line["max_tokens"] > 12_500 and line["chunk"] == CHUNK:
                above = line["gigabytes"] / line["planned_gigabytes"]
                assert 0.99 < above < (1.085 if line["max_tokens"] == 25_000 else 1.115)

# %% [markdown]
# Measured memory was up to 8% above this plan, and with 100,000 positions 11% above theirs. The plan counts 25,000 real tokens in a step, and ours had 22,000, the rest being padding: 100,000 of our steps of base take 1.8 hours on the H200 and 2.4 on the H100. A slower card waits less for launches, so it probably needs fewer hours than its line says.

# %% [markdown]
# ## What to remember
#
# - A step costs six operations for each token and each weight it meets. At the length of a sentence, attention's products add less than one percent.
# - MFU is the share of the peak that useful operations get. It counts no padding and nothing twice.
# - Only wide matrix products come near the peak. The other kernels move numbers, and become faster by moving fewer: FlashAttention never writes the matrix, the loss in chunks never holds the logits, bf16 halves the bytes.
# - With a small batch, a step takes as long as its launches. A still smaller batch doesn't shorten it.
# - Products in bf16; weights, moments and normalization in fp32.
#
# So much for one GPU. Eight of them must still make the same update, and talking to each other costs time.

# %% [markdown]
# ## Exercises
#
# **1. By hand.** (★, 5 min) How many operations does one training step of the base model take for the output projection alone, with 25,000 target tokens and 37,000 entries? How long is that at the peak of an H100?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Six operations a weight and token: 6 x 25,000 x 512 x 37,000.
step_output = 6 * 25_000 * 512 * 37_000
print(f"{step_output:.2e} operations, {1000 * step_output / PEAKS['H100']:.1f} ms")

# %% tags=["remove-cell"]
if CHECKING:
    assert math.isclose(
        step_output, 25_000 * flops(preset("base"), 0, 1)["output projection"]
    )

# %% [markdown]
# **2. Length.** (★★, 10 min) At which length do the attention products of an encoder layer cost as much as all its other products, for a model with $w = 2d$ and $d_\text{ff} = 4d$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Each position takes w S = 2 d S in products, and 2 d w + 2 d d_ff = 4 d^2 + 8 d^2 otherwise.
# Equal at S = 6 d: 3,072 positions for base, 6,144 for big.
d = preset("base").d_model
print("S =", (4 * d**2 + 8 * d**2) // (2 * d))

# %% [markdown]
# **3. Someone else's training.** (★★, 10 min) A training run of the big model reaches 60,000 target tokens per second on one A100. What is its MFU? And what would it seem to be if someone stopped the clock after half a millisecond, before the GPU had done a step of $1.2 \cdot 10^{12}$ operations?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Useful operations per second over the peak; a target token comes with its source token.
print(f"MFU {a_pair['big'] * 60_000 / PEAKS['A100']:.0%}")
# Only the request was timed: an MFU above 100% is how this mistake shows.
print(f"MFU {1.2e12 / 0.0005 / PEAKS['A100']:.0%}")

# %% [markdown]
# **4. Padding in the chunks.** (★★, 15 min) Which part of the loss would be wrong in `chunked_loss` without `masked_fill`, and by how much?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The smoothing of padding would be added: eps (z_PAD - mean z) for each padded position.
chance = torch.Generator().manual_seed(0)
states, table = (
    torch.randn(n, 4, dtype=torch.float64, generator=chance) for n in (3, 6)
)
labels, logits = torch.tensor([4, 5, PAD]), states @ table.T
extra = 0.1 * (logits[2, PAD] - logits[2].mean())
real, everything = (
    chunked_loss(states[:2], table, labels[:2]),
    chunked_loss(states, table, labels),
)
print(
    f"loss {real:.2f} without the padding, {everything:.2f} with it; {extra:+.2f} if it counted"
)

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.allclose(real, everything) and extra.abs() > 0.01

# %% [markdown]
# **5. Attention over two machines.** (★★★, 30 min) One machine holds the first half of the keys and values, another the second half. Each computes its own $m$, $\ell$ and $o$. What do they have to exchange to get the whole row, and how are the two triples joined? Try it on *likes*.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three values a query, whatever the number of keys: the block's (m, sum, o). Joining is one more
# step of the online softmax, in which both sides are rescaled to the larger maximum.
halves = []
for part in (slice(0, 2), slice(2, 5)):
    m = scores[part].max()
    weights = (scores[part] - m).exp()
    halves.append((m, weights.sum(), weights @ values[part]))
m = max(half[0] for half in halves)
total = sum((half[0] - m).exp() * half[1] for half in halves)
out = sum((half[0] - m).exp() * half[2] for half in halves)
print([f"{x:.2f}" for x in (out / total).tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    assert (out / total - scores.softmax(dim=0) @ values).abs().max() < 1e-15

# %% [markdown]
# **6. Write it first** is [above](#the-loss-without-the-logits); the code below it is the solution.
#
# **7. Your own machine.** (★★, an hour) Run `python -m benchmarks.speed.step_speed` on the machine you train on. Which levers gain more than they scatter from round to round?

# %% [markdown]
# ## Second reading: your GPU, and a CPU
#
# ### Does this training use FlashAttention?
#
# :::{admonition} A relative, and not the one that PyTorch would choose
# :class: dropdown
# It uses a relative. PyTorch's FlashAttention for CUDA refuses an explicit mask, and we always pass one, so its memory-efficient kernel does the work, which goes through blocks, too.
#
# On an H100 or H200 PyTorch would choose cuDNN's kernel, and that is a trap: it prepares a program [for each new length](https://github.com/pytorch/pytorch/pull/155958), and nearly every batch of ours has one. On the H200, base trained 87,741 tokens per second with it and 344,471 without. So [the fast loss](#the-fast-loss) takes cuDNN off the list, as `torch.backends.cuda.enable_cudnn_sdp(False)` would.
# :::
#
# ### I have a GPU. What should I look at first?
#
# :::{admonition} Tokens per second, and what twice the batch does to them
# :class: dropdown
# Look at tokens per second, in the progress line of the training. Multiply them by $0.38 \cdot 10^9$ operations for base, or $1.29 \cdot 10^9$ for big, and divide by the peak: that's your MFU. Cards older than Ampere have no bf16, so this package trains them in fp32, and the peak to divide by is fp32's. (V100 and T4 are much faster in fp16, [with a loss that is scaled](../book/questions.md#my-gpu-has-no-bf16-is-fp16-worth-the-trouble), which the package doesn't do.) Then double `--max-tokens` for a hundred steps: if tokens per second rise much, the step was launch-bound.
# :::
#
# ### On a CPU
#
# :::{admonition} Beside other Transformers
# :class: dropdown
# Three systems learn the same captions by turns, on two threads of an AMD EPYC: this book's model, `torch.nn.Transformer`, and Hugging Face's `MarianMTModel`, all of one shape: base, or 3 + 3 layers of width 256 (`small`, 8 heads) or 192 (`mini`). The table gives the median of three to seven turns, how many times as fast ours is, and in brackets the lowest and the highest ratio. In bf16 the lead comes from attention: the fused kernel that the other two call has a slow backward pass on a CPU, so ours takes plain products there. The logs are of commit cfef4cc, an earlier form of the same step. The command is `python -m benchmarks.speed.training_speed --size base --threads 2 --precision fp32`.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the table", "code_prompt_hide": "Hide the table"}
print(f"{'':12}tokens/s  nn.Transformer      MarianMTModel")
leads = {"fp32": [], "bf16": []}
for precision, ending in (("fp32", ""), ("bf16", "-bf16")):
    for size in ("mini", "small", "base"):
        found = {}
        for turn in read_log(f"training-{size}-2{ending}")[1:]:
            rate = turn["tokens"] / turn["seconds"]
            found.setdefault(turn["system"], {})[turn["round"]] = rate
        ours, *others = (
            found[s] for s in ("ours", "torch.nn.Transformer", "MarianMTModel")
        )
        line = f"{size:6} {precision} {median(ours.values()):8,.0f}"
        for other in others:
            times = [ours[turn] / other[turn] for turn in other]
            line += f"  {median(times):.2f} ({min(times):.2f}, {max(times):.2f})"
            leads[precision].append(median(times))
        print(line)

# %% tags=["remove-cell"]
if CHECKING:
    assert min(leads["fp32"]) > 1.05 and min(leads["bf16"]) > 1.2

# %% [markdown]
# :::{admonition} How time and memory grow with length and batch
# :class: dropdown
# On a CPU both halves of the estimate can be held against a measurement, `python -m benchmarks.experiments.growth --preset small`. Time follows the operations. Sentences 64 times as long cost 2.1 to 2.5 times as much for each token (length 32 was timed twice): only attention's products grow. Memory hardly does, because no kernel keeps a matrix of weights. The process takes up to 1.8 times what the estimate says: in the backward pass, gradients of activations need room as well. A GPU's allocator reuses more of it.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the measurement", "code_prompt_hide": "Hide the measurement", "figure": {"name": "fig-growth", "caption": "How do time and memory grow? Measured steps of the small model on one thread (dots) beside the estimate (lines), which counts operations at the speed of the step with sentences of 32 tokens. Left: longer and fewer sentences, 4,096 tokens in all. Right: more sentences of 32 tokens."}}
settings, *points = read_log("growth-small")
config = preset("small", vocabulary_size=settings["vocabulary"])


def operations(point):
    lengths = np.full(point["sentences"], point["length"])
    return sum(flops(config, lengths, lengths - 1).values())


def kept(point):
    rows, length = point["sentences"], point["length"]
    loss = 12 * min(rows * (length - 1), CHUNK) * config.vocabulary_size
    return activations(config, rows, length, length - 1) + loss


rate = next(operations(p) / p["seconds"] for p in points if p["length"] == 32)
figure, axes = plt.subplots(
    2, 2, figsize=(4.8, 3.8), sharex="col", layout="constrained"
)
for column, (series, axis) in enumerate((("length", "length"), ("batch", "sentences"))):
    some = [p for p in points if p["series"] == series]
    x = [p[axis] for p in some]
    for top, measured, computed in (
        (
            axes[0, column],
            [p["seconds"] for p in some],
            [operations(p) / rate for p in some],
        ),
        (
            axes[1, column],
            [p["bytes"] / 1e9 for p in some],
            [kept(p) / 1e9 for p in some],
        ),
    ):
        top.plot(x, computed, color=AMBER, lw=1.5)
        top.plot(x, measured, "o", color=SKY, ms=4)
        top.set_xscale("log", base=2)
        top.set_ylim(0, 1.1 * max(measured + computed))
        top.xaxis.set_major_formatter("{x:,.0f}")
axes[0, 0].set_ylabel("seconds per step")
axes[1, 0].set_ylabel("GB per step")
axes[1, 0].set_xlabel("tokens per sentence, 4,096 in all")
axes[1, 1].set_xlabel("sentences of 32 tokens")
show_plot(
    alt="Left, time stays near 2.4 seconds up to 128 tokens and doubles until 2,048, memory stays between 0.8 and 1 gigabyte. Right, time and memory grow in proportion to the number of sentences.",
)
rates = [operations(p) / p["seconds"] / 1e9 for p in points]
ratios = [p["bytes"] / kept(p) for p in points]
print(f"{min(rates):.0f} to {max(rates):.0f} billion operations per second")
print(f"memory: {min(ratios):.1f} to {max(ratios):.1f} times the estimate")
(short,) = (p for p in points if (p["series"], p["length"]) == ("length", 32))
(long,) = (p for p in points if p["length"] == 2048)
print(
    f"from 32 to 2,048 tokens per sentence: time times {long['seconds'] / short['seconds']:.1f}",
    end="",
)
print(f", memory times {long['bytes'] / short['bytes']:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        2 < long["seconds"] / short["seconds"] < 3
        and long["bytes"] / short["bytes"] < 1.3
    )

# %% [markdown]
# ## Sources
#
# The batch sizes, steps and hours are from section 5.2 of {cite:t}`vaswani2017attention`. MFU was defined for PaLM by {cite:t}`chowdhery2023palm`, the roofline by {cite:t}`williams2009roofline`. The softmax in one pass is by {cite:t}`milakov2018online`; {cite:t}`rabe2021self` used it for attention in little memory, and {cite:t}`dao2022flashattention` made it fast.
