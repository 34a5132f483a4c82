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

# %% [markdown] needs=["multi30k"]
# # Speed
#
# This chapter counts what a step of training costs, measures it, and makes it cheaper one lever at a time (section 5.2 of the paper).
#
# The paper trained its base model for 12 hours and its big one for 3.5 days, on eight GPUs. What would it take today, on one? Two numbers answer that: how many multiplications the training has, and how many of them a machine does in a second. The first we can count exactly. The second is printed in a data sheet, and no training ever reaches it. So the real question of this chapter is: where does the rest of the time go?
#
# It goes to padding, to memory traffic, to waiting, and to numbers that are more exact than they need be. Each of these has a lever. We turn one lever at a time, with everything else as it was, and write down what it brings. A fast path is always checked against the slow one that we have read and understood. Some well-known levers turn out to bring nothing here, and they stay out of the package.
#
# One thing must be said first. **No GPU was available when this chapter was written.** Every measured number is from a processor, and the columns for a GPU are empty. One command fills them, on any machine with a GPU:
#
# ```bash
# python benchmarks/speed.py
# ```
#
# Nothing in the chapters before changes. The levers are put around the model, and a training without them gives the same result, only later.


# %% tags=["export"]
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# %% tags=["export"]
from annotated_transformer.batching import plan_batches
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import Transformer, TransformerConfig, parameter_count

# %%
import json
import time
import weakref
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import matplotlib.pyplot as plt
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.batching import Batch, batches, encode_pairs
from annotated_transformer.data import multi30k
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import training_step
from annotated_transformer.transformer import preset
from book.figures import INK, KEY, POSITION, QUERY, RESIDUAL, VALUE, style

# %% [markdown]
# ## What a step costs, counted
#
# Nearly all the work of a Transformer is matrix products. A product of $(n, a)$ with $(a, b)$ makes $n b$ numbers, each the sum of $a$ products. So it takes $n a b$ multiplications and as many additions: $2 n a b$ **operations**. The backward pass needs two more products of the same size, one for the gradient of the input and one for that of the weights. Training is three times the forward pass:
#
# $$ \text{operations} = 3 \cdot 2 \cdot n \, a \, b. $$ (eq-operations)
#
# Take the feed-forward network of the base model and one token. It has two matrices of $512 \times 2048$, so a forward pass takes $2 \cdot 2 \cdot 512 \cdot 2048 = 4.2$ million operations, training 12.6 million, and six layers 75 million.
#
# Attention has two kinds of product. The **projections** make queries, keys, values and the output. Their cost grows with the number of tokens, as in any linear map. The **products** of queries with keys, and of weights with values, have no parameters; their cost grows with the *pairs* of tokens. We count the two apart, since the levers for them differ. The decoder's second attention is a mixed case: its queries and outputs are made at the target's positions, its keys and values at the source's.
#
# With $w = H (d_k + d_v)$, which is $2 d$ in most presets, a sentence of $S$ and $T$ positions has these products in a layer. The function multiplies them by the number of layers, adds the output projection, and sums over sentences.
#
# | block | encoder layer | decoder layer |
# |---|---|---|
# | attention projections | $2 \, d \, w \, S$ | $d \, w \, (3 T + S)$ |
# | attention products | $w \, S^2$ | $w \, (T^2 + T S)$ |
# | feed-forward | $2 \, d \, d_\text{ff} \, S$ | $2 \, d \, d_\text{ff} \, T$ |


# %% tags=["export"]
def flops(c: TransformerConfig, source: Any, target: Any) -> dict[str, float]:
    """Count the operations of training on sentences of `source` and `target` positions, by block.

    Takes two numbers, or two arrays with one number a sentence. A multiplication and an addition
    count as two, and the backward pass as two forward passes.
    """
    s, t = (torch.as_tensor(lengths, dtype=torch.float64) for lengths in (source, target))
    width = c.heads * sum(size or c.d_model / c.heads for size in (c.d_k, c.d_v))
    forward = {
        "attention projections": 3 * c.layers * c.d_model * width * (s + t),
        "attention products": c.layers * width * (s * s + t * t + s * t),
        "feed-forward": 2 * c.layers * c.d_model * c.d_ff * (s + t),
        "output projection": c.d_model * c.vocabulary_size * t,
    }
    return {block: 3 * 2 * float(products.sum()) for block, products in forward.items()}


# %% [markdown]
# The numbers are floats, since the whole run will have more operations than an integer of 64 bits likes to multiply. What is not counted are sums, norms, softmax and dropout. They take few operations. Further down we see that they take time all the same.
#
# Is the count right? PyTorch can count for itself: `FlopCounterMode` looks at every product that is really made, forward and backward. We let it watch a small model whose $d_k$ and $d_v$ differ. The fused attention kernel would disturb the comparison, as it computes some products twice to save memory; so attention runs in its readable form.


# %%
odd = TransformerConfig(vocabulary_size=50, layers=2, d_model=32, d_ff=48, heads=4, d_k=6, d_v=10)
torch.manual_seed(0)
model = Transformer(odd)
for module in model.modules():
    if isinstance(module, MultiHeadAttention):
        module.keep_weights = True
batch = Batch(torch.full((3, 11), 5), torch.full((3, 8), 5))
with FlopCounterMode(display=False) as counter:
    SmoothedLoss(model)(*batch).backward()
ours = sum(flops(odd, torch.full((3,), 11), torch.full((3,), 7)).values())
print(f"{ours:,.0f} by formula, {counter.get_total_flops():,} counted")
assert ours == counter.get_total_flops()

# %% [markdown]
# Equal to the last operation. Now the paper's models. Their sentences have about 28 tokens on either side. A step has 25,000 tokens a side, and there are 100,000 steps for base, 300,000 for big.


# %%
runs = {"base": 100_000, "big": 300_000}
for name, steps in runs.items():
    config = preset(name)
    pair = sum(flops(config, 28, 28).values())
    layers, d = config.layers, config.d_model
    source = 6 * 14 * layers * d**2 + 12 * layers * 28 * d
    target = source + 6 * config.vocabulary_size * d + 12 * layers * 28 * d
    assert pair == 28 * (source + target)
    run = (source + target) * 25_000 * steps
    print(f"{name}: {source / 1e9:.3f} + {target / 1e9:.3f} GFLOP a pair of tokens; run {run:.1e}")
    products = 12 * layers * 28 * d * 3
    print(f"    {products / (source + target):.1%} of it are attention products")

# %% [markdown]
# The assertion compares with a second formula, for the common case $d_\text{ff} = 4 d$: a source token costs $6 \cdot 14 L d^2$ for the projections and $12 L S d$ for the products. The base model's run is about $10^{18}$ operations, that of the big one ten times as many.
#
# Where are they? The figure shows the shares.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-operations", "caption": "Which part of the model does the work? Share of the training operations by block, for sentences of 28 tokens on either side and 37,000 entries. Attention products, the part that grows with the square of the length, hardly show."}, "image": {"alt": "In the base model the output projection takes 30 percent, in the big model 18. Feed-forward networks and projections share the rest, and attention products take less than 1 percent."}}
style()
figure, axes = plt.subplots(figsize=(8, 3.0), layout="constrained")
looks = [(KEY, "//"), (INK, ""), (KEY, ""), (QUERY, "//"), (INK, ""), (QUERY, ""), (VALUE, "")]
for row, name in enumerate(runs):
    counts, left = flops(preset(name), 28, 28), 0.0
    for (block, number), (color, hatch) in zip(counts.items(), looks):
        share = 100 * number / sum(counts.values())
        axes.barh(row, share, left=left, fc="none", ec=color, hatch=hatch, lw=1.4,
                  label=block if row == 0 else None)  # fmt: skip
        if share > 4:
            axes.text(
                left + share / 2,
                row,
                f"{share:.0f} %",
                ha="center",
                va="center",
                bbox={"fc": "white", "ec": "none", "pad": 1},
            )
        left += share
axes.set(
    yticks=range(len(runs)),
    yticklabels=list(runs),
    xlim=(0, 100),
    xlabel="share of the operations in %",
)
axes.invert_yaxis()
axes.grid(False)
figure.legend(loc="outside lower center", ncols=2, fontsize=8)
plt.show()

# %% [markdown]
# Two things are worth keeping in mind. The output projection is a single matrix, and it takes almost a third of the base model's work. And the attention products, for which attention is famous, take less than one percent at these lengths. If they cost nothing at all, a step would have one percent less to do. That bounds every lever that is about them.
#
# ### When does the length of a sentence matter?
#
# In an encoder layer of the base model, projections and feed-forward network take $2 d w + 2 d \, d_\text{ff} = 3.1$ million products for each position. The attention products take $w S = 1{,}024 \, S$ for each position, so 28,672 at 28 tokens: one percent. At 256 tokens they take 8 %, at 1,024 a third, and at 3,072 as much as all the rest. Papers that promise faster attention have such lengths in mind. For a corpus of sentences the square in the cost is harmless, and it is the wide matrices that one pays for.
#
# ### Are operations the right thing to count?
#
# They are what does not depend on the machine. Time also goes into reading and writing memory, and that is counted in bytes. Take the first matrix of the feed-forward network with 25,000 tokens in 16 bits: $2 \cdot 25{,}000 \cdot 512 \cdot 2{,}048 = 52$ billion operations on 26 + 2 + 102 MB of input, weights and output, some 400 operations a byte. An H200 does 989 · 10¹² operations while it moves 4.8 · 10¹² bytes, about 200 for each byte. So this product is bound by arithmetic. A normalization of the same 25,000 tokens does a handful of operations a number, one or two for a byte. It is bound by memory, and a faster arithmetic unit would not help it. A Transformer is made of both, and with each generation of GPUs the share of the second kind grows.
#
# ## How fast is the machine?
#
# A machine's **peak** is the number of operations a second that it can do when everything is right. For GPUs it is in the data sheet, and one must read it with care. There is a number for each kind of arithmetic. We want that of bf16 products, which a section below explains. And there is often a larger one "with sparsity", which is for matrices half of whose entries are zero. Ours are not. Where a sheet prints only the larger one, half of it counts. NVIDIA's sheets give, in this reading and in units of 10¹² a second, 312 for an A100, 989 for an H100 (SXM) and an H200, and 165 for an RTX 4090.
#
# A processor has no such sheet. There we measure: one large product of two square matrices, $2 n^3$ operations, the best of several rounds. The best and not the mean, since a peak is what a machine *can* do. Anything else that runs beside it makes a round slower, never faster.
#
# Work on a GPU runs beside the program. A product is *asked for* in microseconds, and done later. Who stops the clock without waiting measures the asking. This is the most common mistake in timing a GPU. PyTorch's own `Timer` does not make it: it waits for the GPU before it reads the clock. It also warms up first.


# %% tags=["export"]
Precision = Literal["fp32", "bf16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measured_peak(device: torch.device, precision: Precision = "fp32", size: int = 1024) -> float:
    """Return the operations a second of a product of two matrices (size, size), best of five."""
    from torch.utils.benchmark import Timer  # waits for a GPU; slow to import

    both = torch.randn(2, size, size, dtype=DTYPES[precision], device=device)
    timer = Timer("a @ b", globals=dict(zip("ab", both)), num_threads=torch.get_num_threads())
    return 2 * size**3 / min(timer.timeit(1).median for _ in range(5))


# %% [markdown]
# The two together give the one number by which trainings on different machines can be compared. The **model FLOPs utilization**, MFU ([Chowdhery et al.](https://arxiv.org/abs/2204.02311)), is the share of the peak that useful operations take:
#
# $$ \text{MFU} = \frac{\text{operations of the model, without padding}}{\text{seconds} \cdot \text{peak}}. $$ (eq-mfu)
#
# Useful means: counted by {eq}`eq-operations` for the real lengths of the sentences. Padding, and anything computed twice, does not count, however busy it keeps the machine.


# %%
def mfu(flops, seconds, peak):
    """The share of a machine's peak that useful operations took."""
    return flops / seconds / peak


# %% [markdown]
# What is a good value? Records for this very model are between 28 and 41 % on A100 cards: NVIDIA's own example trains the big model with 69,000 to 82,000 target tokens a second on one, and its entry to a benchmark in 2020 had 102,000. For sentences this short, half of the peak is out of reach. We plan with 20 %.
#
# ### The GPU is 100 % busy. Is that not enough?
#
# The number that `nvidia-smi` prints under *utilization* is the share of time in which *some* kernel was running. A kernel that copies one number counts as much as one that keeps every unit busy. A training can stand at 100 % there with an MFU of 3 %. What the number is good for is the opposite: if it is far below 100 %, the GPU is waiting, for batches or for launches. MFU asks how much of the machine did useful work, and only a clock and {eq}`eq-operations` answer that.
#
# ## What a step costs, measured
#
# We need a model, real batches, and a step. The model is `small`, with a vocabulary of 8,000, and the batches are captions. Everything is as the [training chapter](18_training.ipynb) left it. We use one thread and the clock of the processor's own time, so that other programs on the machine do not count.


# %%
torch.set_num_threads(1)
pairs = multi30k("train")[:6000]
tokenizer = Tokenizer.train(pairs, vocabulary_size=8000)
corpus = encode_pairs(tokenizer, pairs)
config = preset("small", vocabulary_size=len(tokenizer))
plan = plan_batches(corpus.lengths, max_tokens=512, seed=0, epoch=0)
few = list(islice(batches(corpus, 512, seed=0, epoch=0), 3))
print(len(plan), "batches; the first:", *(tuple(side.shape) for side in few[0]))


# %%
def make_adam(model):
    """The paper's Adam; the learning rate does not matter here."""
    return torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)


def seconds(action, times=2):
    """The median of the processor's time for an action, after one round that warms up."""
    found = []
    for _ in range(times + 1):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return median(found[1:])


# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = Transformer(config)
loss, adam = SmoothedLoss(model), make_adam(model)
source, target = corpus.lengths[plan[0]].T
useful = sum(flops(config, source, target).values())
took = seconds(lambda: training_step(loss, few[:1], adam))
peak = measured_peak(torch.device("cpu"))
print(f"{useful / 1e9:.0f} GFLOP in {took:.2f} s; the peak is {peak / 1e9:.0f} GFLOP/s")
print(f"MFU {mfu(useful, took, peak):.0%}")
assert 0.05 < mfu(useful, took, peak) < 5  # above 1 only if others keep the machine busy

# %% [markdown]
# On a processor the MFU is high, since its products are slow and everything else need not hurry. On a GPU it is the other way round. So it pays to know what a step does *beside* products. PyTorch's profiler lists each kernel with its own time. We put the kernels into a few groups.


# %% tags=["nbval-ignore-output", "remove-stderr"]
groups = {
    "matrix products": ("mm", "addmm", "bmm", "linear"),
    "attention kernel": ("scaled_dot_product", "flash_attention"),
    "optimizer": ("_fused_adam", "adam"),
    "normalization": ("layer_norm",),
    "dropout": ("bernoulli", "dropout", "div_"),
    "loss, softmax": ("log_softmax", "exp_", "gather", "scatter", "mean", "sub_"),
}
with profile(activities=[ProfilerActivity.CPU]) as watched:
    training_step(loss, few[:1], adam)
events = [event for event in watched.key_averages() if event.self_cpu_time_total > 0]
times = dict.fromkeys([*groups, "the rest"], 0.0)
for event in events:
    name = next(
        (g for g, parts in groups.items() if any(p in event.key for p in parts)), "the rest"
    )
    times[name] += event.self_cpu_time_total
kernels = sum(event.count for event in events if event.key.startswith("aten::"))
print({name: f"{value / sum(times.values()):.0%}" for name, value in times.items()})
print(f"{kernels:,} calls")
assert times["matrix products"] > 0.3 * sum(times.values())

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-kernels", "caption": "What does a step do beside matrix products? Share of the time of one training step by kind of kernel, from the profiler: the small model on captions, on a processor. On a GPU the products shrink most, and what is below them in the picture becomes what counts."}, "image": {"alt": "Matrix products take most of the time on a processor. Loss, dropout, the optimizer, normalization and attention share the rest."}}
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
shares = {name: 100 * value / sum(times.values()) for name, value in times.items()}
colors = [QUERY, KEY, VALUE, POSITION, RESIDUAL, INK, RESIDUAL]
bars = axes.barh(list(shares), list(shares.values()), fc="none", ec=colors, lw=1.6)
axes.bar_label(bars, fmt="%.0f %%", padding=3)
axes.set(xlim=(0, 100), xlabel="share of the time of a step in %")
axes.invert_yaxis()
axes.grid(False)
plt.show()

# %% [markdown]
# ### Who waits for whom?
#
# There are thousands of calls in a step, and most are tiny. A processor does not mind, as it makes one call after the other anyway. A GPU works beside the program. The program asks for a call, does not wait, and asks for the next. To ask takes some microseconds, whatever the size of the work. So there are two cases.
#
# If a call takes longer than asking for the next one, a queue builds up, and the GPU never pauses. The program is far ahead; asking costs nothing. If a call is shorter, the GPU is done before the next one is there, and waits. Then the number of calls decides about the speed, and neither the size of the batch nor the peak of the GPU matters. Such a step is **launch-bound**.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-launches", "caption": "When does a GPU wait for the program? Eight calls, each of which takes the program 5 microseconds to ask for. Above, a call keeps the GPU busy for 9 microseconds: a queue builds up, and it never pauses. Below, a call is done in 2: the GPU idles three fifths of the time. The numbers are made up."}, "image": {"alt": "Two timelines. With long calls the GPU's blocks follow each other without a gap and end late. With short calls each block stands alone after the program has asked, with gaps between."}}
figure, axes = plt.subplots(2, 1, figsize=(7.4, 3.2), sharex=True, layout="constrained")
for axis, work in zip(axes, (9, 2)):
    free = 0
    for call in range(8):
        free = max(free, 5 * call + 5)
        axis.broken_barh([(5 * call, 5)], (1.1, 0.8), fc="none", ec=QUERY, lw=1.4)
        axis.broken_barh([(free, work)], (0.1, 0.8), fc="none", ec=KEY, lw=1.4, hatch="//")
        free += work
    axis.set(xlim=(0, 80), ylim=(0, 2), yticks=(0.5, 1.5), yticklabels=("GPU", "program"))
    axis.set_title(f"a call takes the GPU {work} microseconds", fontsize=10, loc="left")
    axis.grid(False)
axes[1].set_xlabel("microseconds")
plt.show()

# %% [markdown]
# Two things help: larger batches, so that each call has more to do, and compilation, which makes one call of many. Everything that makes a single call faster, such as 16-bit numbers, brings a launch-bound step nothing at all. So the first question to a slow training is which of the two cases it is. A quick test is to double the batch: if the step takes no longer, it was launch-bound.
#
# ## Lever by lever
#
# Three levers are in the book's training already. We can measure them only by turning them off: batches sorted by length ([batching](15_batching.ipynb)), Adam in one pass over memory (`fused=True`), and attention in one kernel, which never writes the matrix of weights to memory ([FlashAttention](https://arxiv.org/abs/2205.14135)). A fourth is on only where there is a GPU: a second process makes the next batches while the GPU computes. The others we turn on. The benchmark lets all of them train on the same sentences, in turns. One round is A B C, the next B C A, and the gain is the median over the rounds of the ratio to our plain step in the same round. So a busy machine slows down all of them.
#
# Here is what the committed log says. The commands were the ones below. The second takes the paper's base model with its 37,000 entries.
#
# ```bash
# python benchmarks/speed.py --preset small --threads 1 --cpu-time --rounds 7 --batches 4 --max-tokens 512
# python benchmarks/speed.py --preset base --threads 1 --cpu-time --rounds 5 --batches 2 --max-tokens 256
# ```


# %% tags=["nbval-ignore-output", "hide-input"]
def read_log(name):
    path = Path("../benchmarks/results") / name
    address = "https://github.com/annotated-transformer/annotated-transformer/raw/main/benchmarks/results/"
    text = (
        path.read_text() if path.exists() else urlopen(address + name).read().decode()
    )  # in Colab
    return [json.loads(line) for line in text.splitlines()]


names = ("small-cpu-1", "small-cpu-1-compile", "base-cpu-1")
logs = [read_log(f"speed-{name}.jsonl") for name in names]
measured = [{**settings, "turns": turns} for settings, *turns in logs]


def gains(run):
    """Tokens a second and gain of each system of a run."""
    rates = {}
    for turn in run["turns"]:
        rates.setdefault(turn["system"], {})[turn["round"]] = turn["tokens"] / turn["seconds"]
    plain = rates["this book's step"]
    gain = {name: median(found[r] / plain[r] for r in found) for name, found in rates.items()}
    return {name: (median(found.values()), gain[name]) for name, found in rates.items()}


for run in measured:
    print(f"\n{run['preset']} on {run['device']}, {run['threads']} thread(s),", end=" ")
    print(f"peak {run['peak'] / 1e9:,.0f} GFLOP/s, {run['useful']:.1%} useful", end="")
    print(f", {run['shapes']} shapes" if run["compile"] else "")
    for name, (rate, gain) in sorted(gains(run).items(), key=lambda item: item[1][1]):
        share = mfu(run["operations_per_token"] * rate, 1, run["peak"])
        print(f"  {name:26} {rate:8,.0f} tokens/s   x {gain:.2f}   MFU {share:.0%}")
assert [run["preset"] for run in measured] == ["small", "small", "base"]

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-levers", "caption": "Which levers pay on a processor? Speed of each system relative to the plain step of this book, from the committed log of benchmarks/speed.py: the small model (circles) and the base model (squares), on one thread. Left of the line is slower. The rows of a GPU would stand here as well; none was available."}, "image": {"alt": "Turning off sorted lengths costs most, fused Adam and fused attention less. None of the levers that can be added moves a processor by much."}}
figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
shown = [run for run in measured if run["device"] == "cpu" and not run["compile"]]
order = sorted(gains(shown[0]), key=lambda name: gains(shown[0])[name][1])
for run, marker, color in zip(shown, "os", (QUERY, KEY)):
    found = gains(run)
    axes.plot(
        [found[name][1] for name in order],
        order,
        marker,
        color=color,
        mfc="none",
        label=run["preset"],
    )
axes.axvline(1, color=INK, lw=0.8)
axes.set(xlabel="speed, relative to the plain step of this book")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ### What the table says
#
# **Sorted lengths** are the lever that counts on any machine. Without them, with 32 random sentences a batch, the small model makes a quarter fewer useful tokens a second, the base model almost a third. **Fused Adam** is worth three percent to the one and eight to the other. The plain form goes over memory once for each of its dozen operations, and an update touches every weight, however few tokens the batch has. **Fused attention** brings nothing that we could measure on a processor. On a GPU it is by design the faster form, and it saves memory everywhere, so it stays.
#
# All others are noise. In the run of the small model they lie within two percent of the plain step. In that of the base model they scatter by four, upwards: its weights do not fit into any cache, and other programs on the machine wanted the memory too. That was to be expected. The MFU of the plain step is about a half to two thirds on this processor, so there is little left to win. What these levers are for is a GPU, where products take a far smaller share of a step.
#
# ### Levers that stay out
#
# Four well-known ones did not move the clock, and we leave them out of the package. The benchmark keeps them, so that a GPU can be asked for its opinion.
#
# - **One product for queries, keys and values.** The three matrices of self-attention could be one, three times as wide. The number of operations is the same, and a step has fewer calls. But the weights would have other names than in the chapter that explains them, and every checkpoint would be tied to the trick.
# - **The causal kernel.** The decoder's self-attention needs no padding mask: padding stands on the right, so the causal mask hides it from every word, and what padding itself sees is not counted. Then the fused kernel can make the mask by itself (`is_causal`), and a GPU has its fastest form for that. It is a part of the attention products, and all of these together are less than one percent of the operations.
# - **Masks that are added.** A boolean mask is turned into zeros and minus infinities inside each of the attention kernels. One could do so once a step. The masks are small, and so is the gain.
# - **A vocabulary of a multiple of 64.** The fast units of a GPU work on blocks, and 37,000 is not a multiple. This needs no code: a model may have more entries than its tokenizer, so choose `vocabulary_size=37_056`.
#
# ## The loss without the logits
#
# The largest tensor of a step is that of the logits. At the paper's batch it has $25{,}000 \cdot 37{,}000$ numbers: 3.7 GB in fp32, once for the logits or their logarithms, and twice more for gradients. Nobody needs them all at the same time. The loss is a sum over positions, so we can take a thousand positions, compute their logits, their loss *and their gradient*, add these up, and forget the logits before the next thousand.
#
# That is unusual, since the gradient normally comes in the backward pass. Here it can come at once, because the loss is the end of the computation. We cut the graph in front of the output projection: states and table are detached, and `backward` runs for each chunk from its loss to these two. Then the gradients are known, and only the rest of the model has to hear of them. A sum of products does that. The gradient of $\sum_i g_i h_i$ with respect to $h$ is $g$. So we add this sum to the loss, once with its gradient and once, subtracted, without: the value stays, and the slope is the one that we know. If what follows multiplies the loss by something, as training does when it divides by the number of tokens, the gradients are multiplied by the same.
#
# **Smoothing costs nothing.** The smoothed loss of a position with logits $z$ and label $y$ is ([chapter 17](17_regularization.ipynb))
#
# $$ \log \sum_v e^{z_v} - (1 - \epsilon) \, z_y - \epsilon \, \bar z = \underbrace{\log \sum_v e^{z_v} - z_y}_{\text{hard label}} + \; \epsilon \, (z_y - \bar z), $$ (eq-smoothing-apart)
#
# where $\bar z$ is the mean of the logits. The second part is linear in the logits, and these are linear in the state $h$: $z_y - \bar z = h \cdot (E_y - \bar E)$, with the row $E_y$ of the table and the mean $\bar E$ of all rows. It needs no logits at all. The loss over the vocabulary is that of hard labels, with fewer passes over the largest tensor.
#
# Padding runs through the products and is ignored in the loss. To cut it out, as `SmoothedLoss` does, a GPU would have to count it first, and the program would stand still to save 4 % of one product.


# %% tags=["export"]
CHUNK = 1024  # positions


@torch.enable_grad()
def chunked_loss(
    states: Tensor, weight: Tensor, labels: Tensor, label_smoothing: float = 0.1, chunk: int = CHUNK
) -> Tensor:
    """Return the label-smoothed loss of states (N, D) against labels (N,), summed over real tokens.

    The output projection with the table weight (|V|, D) belongs to it. Loss and gradient are
    computed `chunk` positions at a time, so that the logits of all never exist at once.
    """
    away = states * (F.embedding(labels, weight) - weight.mean(dim=0))
    total = label_smoothing * away.sum(dim=-1).masked_fill(labels == PAD, 0).sum()
    inputs: Any = [tensor.detach().requires_grad_() for tensor in (states, weight)]
    for some, wanted in zip(inputs[0].split(chunk), labels.split(chunk)):
        loss = label_smoothed_loss(F.linear(some, inputs[1]), wanted, label_smoothing=0)
        loss.backward()
        total = total + loss.detach()
    # Adds nothing but the gradients, which are known already
    known = (states * inputs[0].grad).sum() + (weight * inputs[1].grad).sum()
    return total + known - known.detach()


# %% [markdown]
# Does it agree with the readable loss? We compare value and both gradients, with five positions a chunk and some padding, in double precision. Then we ask autograd what each of the two keeps between the passes.


# %%
chance = torch.Generator().manual_seed(0)
states = torch.randn(36, 16, dtype=torch.float64, generator=chance, requires_grad=True)
table = torch.randn(30, 16, dtype=torch.float64, generator=chance, requires_grad=True)
labels = torch.randint(4, 30, (36,), generator=chance)
labels[30:] = PAD


def all_logits(states, table, labels):
    return label_smoothed_loss(F.linear(states, table), labels)


results = []
for function in (partial(chunked_loss, chunk=5), all_logits):
    value = function(states, table, labels)
    results.append([value, *torch.autograd.grad(value, (states, table))])
print([torch.allclose(ours, theirs) for ours, theirs in zip(*results)])


# %%
def kept(action):
    """Bytes that an action leaves behind for the backward pass, beside its inputs."""
    found = []

    def pack(tensor):
        found.append(weakref.ref(tensor))
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = action()
    alive = [tensor for tensor in (ref() for ref in found) if tensor is not None]
    del result
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values()
    )


states = torch.randn(1024, 256, requires_grad=True)
table = torch.randn(8000, 256, requires_grad=True)
labels = torch.randint(4, 8000, (1024,))
for function in (all_logits, partial(chunked_loss, chunk=128)):
    stored = kept(lambda: function(states, table, labels))
    print(f"{getattr(function, 'func', function).__name__}: {stored / 1e6:.0f} MB")

# %% [markdown]
# The first keeps the 33 MB of its log-probabilities, beside states and table of 1 and 8 MB. The second keeps the gradient of the table, and three tensors of the size of the states. With the paper's numbers it is 3.8 GB against 0.2 GB, and 0.5 GB for the logits of a chunk for a moment. On a GPU the room can be spent on a larger batch.
#
# PyTorch begins to have the same by itself: `F.linear_cross_entropy` takes chunks in its newest releases, but not yet together with label smoothing.
#
# ## Numbers of 16 bits
#
# Products of narrow numbers are faster, by a factor of sixteen on an A100: 312 · 10¹² operations a second against 19.5 · 10¹². There are two formats of 16 bits. A number has a sign, an exponent that says how large it is, and a fraction that says what it is exactly.
#
# | | exponent | fraction | smallest normal | largest |
# |---|---|---|---|---|
# | fp32 | 8 bits | 23 bits | 1.2e-38 | 3.4e38 |
# | fp16 | 5 bits | 10 bits | 6.1e-5 | 65,504 |
# | bf16 | 8 bits | 7 bits | 1.2e-38 | 3.4e38 |
#
# fp16 is more exact, and bf16 reaches as far as fp32. In a picture, with a box for each bit:


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-bits", "caption": "What does a number of 16 bits give up? The bits of three formats: sign (s), exponent (e), fraction (f). bf16 is fp32 with the last 16 bits cut off: the same reach, and a fraction of 7 bits, so numbers next to each other differ by almost one percent. fp16 keeps 10 bits of the fraction and pays with its reach."}, "image": {"alt": "Three rows of boxes. fp32 has 1 sign bit, 8 exponent bits and 23 fraction bits; fp16 has 1, 5 and 10; bf16 has 1, 8 and 7, which line up with the first 16 of fp32."}}
figure, axes = plt.subplots(figsize=(7.6, 1.9), layout="constrained")
formats = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10)}
for row, (exponent, fraction) in enumerate(formats.values()):
    for place, letter in enumerate("s" + "e" * exponent + "f" * fraction):
        color, hatch = {"s": (INK, ""), "e": (KEY, ""), "f": (QUERY, "")}[letter]
        axes.broken_barh([(place, 0.9)], (row, 0.75), fc="none", ec=color, lw=1.3)
        axes.text(place + 0.45, row + 0.36, letter, color=color, ha="center", va="center")
axes.set(xlim=(-0.2, 32), ylim=(2.9, -0.1), xticks=(), yticks=(0.4, 1.4, 2.4))
axes.set_yticklabels(formats)
axes.grid(False)
axes.spines[:].set_visible(False)
plt.show()

# %% [markdown]
# For training the reach counts. Gradients are often smaller than fp16's smallest number. In fp16 they become zero, unless the loss is scaled up by a factor that must be adapted all the time. With bf16 there is nothing to adapt: each product is wrong by up to half a percent, in either direction, and a sum of thousands hardly notices.


# %%
small = torch.tensor([1e-8, 3e-6, 1.001])
print("fp16:", [f"{number:.4g}" for number in small.half().tolist()])
print("bf16:", [f"{number:.4g}" for number in small.bfloat16().tolist()])

# %% [markdown]
# The first number is gone in fp16. The third has lost its last digit in bf16. And that shows where bf16 must *not* be used: an update adds a thousandth of its size to a weight, and $1 + 0.001$ is $1$. So weights and Adam's two moments stay in fp32, and a narrow copy of the weights is made for the products. `torch.autocast` does that. It computes linear maps and attention in bf16; normalization, softmax and loss stay in fp32, and cross-entropy too.
#
# There is a middle way for cards since Ampere: **TF32** keeps all bits of the numbers in memory and drops some inside the products. `torch.set_float32_matmul_precision("high")` turns it on. With autocast it has nothing left to do, so the package leaves this switch of the whole process to its user. The benchmark measures it on a GPU.
#
# Whether bf16 is a gain depends on the hardware. Where instructions are missing, PyTorch computes it by detours, and says nothing. On the machine that this page was made on:


# %% tags=["nbval-ignore-output"]
peaks = {kind: measured_peak(torch.device("cpu"), kind, size=512) for kind in ("fp32", "bf16")}
print({kind: f"{peak / 1e9:.0f} GFLOP/s" for kind, peak in peaks.items()})


# %% [markdown]
# So we ask before we choose. For a GPU there is an official question, with an option that rules out emulation; without it, a V100 says yes. For a processor the question is AMX, a unit for products of narrow matrices. To ask for any instruction on 16 bits is not enough: the numbers above are from a processor that has AVX512-BF16, and the narrow products take longer. The function that knows about AMX begins with an underscore and may go away in another release of PyTorch. Then `getattr` finds `bool` in its place, and `bool()` is `False`.


# %% tags=["export"]
def best_precision(device: torch.device | str) -> Precision:
    """Return "bf16" for a GPU that has units for products of such numbers, else "fp32"."""
    gpu = torch.device(device).type == "cuda"
    return "bf16" if gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


# %% tags=["nbval-ignore-output"]
print(best_precision("cpu"))
assert best_precision("cpu") in ("fp32", "bf16")


# %% [markdown]
# ## The fast loss
#
# Now both come together, in a class that is called like `SmoothedLoss` and returns the same number. It has no weights of its own. Dropout draws the same numbers in the same order, so a run may change from one to the other. Nothing here is special to one process, and [many](26_distributed.ipynb) can share the work.


# %% tags=["export"]
class FastLoss(SmoothedLoss):
    """The same loss in chunks and, with precision "bf16", with matrix products in 16 bits."""

    def __init__(
        self, model: Transformer, label_smoothing: float = 0.1, precision: Precision = "fp32"
    ) -> None:
        super().__init__(model, label_smoothing)
        self.precision = precision

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        model, labels, dtype = self.model, target[:, 1:].flatten(), DTYPES[self.precision]
        with torch.autocast(source.device.type, torch.bfloat16, dtype == torch.bfloat16):
            states = model.decode(target[:, :-1], model.encode(source), source).flatten(0, 1)
            return chunked_loss(states, model.embedding.weight, labels, self.label_smoothing)


# %% [markdown]
# `train(..., loss=FastLoss(model))` uses it. The embedding table is used at both ends of the model, and autograd adds its gradients, as before.
#
# ### Is the result the same in 16 bits?
#
# No, and it need not be. Each product is rounded, so loss and gradient differ a little from those in 32 bits, as they would with another order of the sentences. What must not happen is a drift to one side. The tests compare both on the same batch. Here are two sentences, by way of a check that the machine at hand does what it should.

# %%
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer))).eval()
two = Batch(few[0].source[:2], few[0].target[:2])
exact, rounded = (FastLoss(model, 0.1, kind)(*two).item() for kind in ("fp32", "bf16"))
print(f"the same: {exact == rounded}; within half a percent: {abs(rounded / exact - 1) < 0.005}")

# %% [markdown]
# In 32 bits loss and gradients are those of the readable form, on a real batch:

# %%
torch.manual_seed(0)
model = Transformer(config).eval()  # without dropout
found, losses = [], (SmoothedLoss(model), FastLoss(model))
for loss in losses:
    model.zero_grad()
    value = loss(*few[1])
    value.backward()
    found.append([value.detach(), *(weight.grad.clone() for weight in model.parameters())])
print(all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(*found)))


# %% [markdown]
# And the time? The two take turns on three batches:

# %% tags=["nbval-ignore-output"]
adam = make_adam(model)
turns = [
    [seconds(lambda: training_step(loss, few, adam), times=1) for loss in losses] for _ in range(3)
]
gain = median(slow / fast for slow, fast in turns)
print(f"on this processor the fast loss trains x {gain:.2f} as fast as the readable one")

# %% [markdown]
# A processor gains a little, because logits of a thousand positions fit into memory that it has at hand, and because there are fewer passes over them. So `FastLoss` is a good choice everywhere, and the readable loss is there to be read.

# %% [markdown]
# ## Compiling
#
# A layer is a few dozen calls, and each one reads its input from memory and writes its result back. `torch.compile` watches a function run once, writes down what it does, and makes a **compiled** program of it: neighbors such as addition, dropout and normalization become one loop, and what they hand on to each other never leaves the processor's registers. On a GPU that also makes one launch of many.
#
# ### What shall be compiled?
#
# The whole model would be the obvious choice. But then a program has all twelve layers of the base model written out one after the other, and making it takes six times as long as for one layer of each kind. The layers are alike. If we compile *a layer*, as a function of its weights, the six layers of a stack share one program. `nn.Module.compile` does that: it replaces what a call of the module runs, in place, and names and weights stay as they are. What is left between the layers is little.
#
# ### How many programs?
#
# A program is made for certain sizes, and our batches come in many. There are two ways to deal with that.
#
# **Each shape by itself** (`dynamic=False`). The sizes are numbers in the program, so the loops are as long as they say. A new shape means a new program, or rather two, one for the encoder's layers and one for the decoder's. At several seconds each the paper's base model would spend a good part of its hour on compiling.
#
# **Sizes as symbols** (`dynamic=True`). The sizes that belong to the batch are variables in the program, as in any function that a person would write. The widths of the model stay numbers, since weights do not change their shape. Then two programs do for nearly every batch.
#
# Symbols cost something only where a loop over a batch's size could have been tuned. The loops that matter are matrix products, which come from a library either way, and sums over $d_\text{model}$, which is a number in both. Further down is what the benchmark says: the same speed, and a small part of the compiling. So we take symbols.
#
# Nearly every batch: a size of 1 is always taken literally, since an axis of length 1 is stretched where others are not, and two sizes that are equal when a program is made get the same symbol. Validation is without dropout and without gradients, and needs programs of its own. All that together makes 24 at most. But Dynamo, the part that watches, stops after eight versions of a function and runs it plainly from then on, with no more than a line in a log. So its limit is raised.
#
# What is missing on a machine shows best in an attempt, before a training begins: PyTorch writes C++ for a processor and Triton for a GPU, and needs a compiler for either.


# %% tags=["export"]
def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Compile each layer of a model in place, for batches of all sizes.

    Layers of a kind share their programs. Raises OSError if a compiler is missing.
    """
    try:
        torch.compile(lambda x: x + 1, backend=backend)(model.embedding.weight[0].detach())
    except Exception as error:  # of Dynamo, of Triton, of a C++ compiler
        why = " ".join(str(error).split())[:200]
        raise OSError(f"cannot compile: install g++ or triton, or do without ({why})") from error
    torch._dynamo.config.cache_size_limit = 64  # programs; beyond them Dynamo gives up
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.compile(dynamic=True, backend=backend)


# %% [markdown]
# Compiling takes too long for this page. A test compiles a model, lets batches of all kinds of sizes through, and counts programs: none come later. The benchmark does it with `small`, and with both ways of treating sizes:
#
# ```bash
# python benchmarks/speed.py --preset small --threads 1 --cpu-time --rounds 5 --batches 2 --max-tokens 512 --compile
# ```

# %% tags=["nbval-ignore-output"]
for run in measured:
    if run["compile"]:
        print(f"{run['preset']} on {run['device']}, batches of {run['shapes']} shapes:")
        for name, note in run["compiled"].items():
            print(f"  {name}: {note['programs']} programs in {note['seconds']:.0f} s", end="")
            print(f", speed x {gains(run)[name][1]:.2f}")
        assert run["compiled"]["compiled"]["programs"] == 2


# %% [markdown]
# Two programs for eleven shapes. (The benchmark starts from nothing. PyTorch keeps programs in a folder, so when a run is continued on the same machine most of the compiling is found there.) On this processor the compiled layers are slower than the plain ones, whichever way the sizes are treated. So compilation is for GPUs, where it makes one launch of many, and it is off unless there is one. Whether it pays there, nobody has measured with this code.
#
# ## Before a run
#
# A run that takes a day should be estimated in a second. Operations we can count. Memory is the other question. Weights and gradients take 4 bytes each for every parameter, Adam's moments 8; in bf16 there is a narrow copy of the weights, with 2. The loss takes three tensors of the size of a chunk's logits. The rest are **activations**, what the layers keep for the backward pass.
#
# We count those a position: which vectors does a layer keep? An encoder layer keeps its input, queries, keys, values, what comes out of the heads, the hidden layer of the feed-forward network and its input, and twice a dropout mask and the input of a normalization. That is $6 d + 2 w + d_\text{ff}$ numbers, with $w = H (d_k + d_v)$ as above, if attention does not keep its weights. A decoder layer has one attention more: $9 d + 4 w + d_\text{ff}$, of which $w$, keys and values of the source, stand at the source's positions. In bf16 all of them are half as wide, except what goes into the normalizations.


# %% tags=["export"]
def activations(c: TransformerConfig, shape: Any, precision: Precision = "fp32") -> Any:
    """Return the bytes that layers keep for the backward pass of a batch, about.

    Its shape are the numbers of sentences, of source and of target positions.
    """
    (rows, source, target), d, bf16 = shape, c.d_model, precision == "bf16"
    width = 3 * c.heads * sum(size or d / c.heads for size in (c.d_k, c.d_v)) + c.d_ff
    layer = source * (width + (6 + 2 * bf16) * d) + target * (width + (9 + 3 * bf16) * d)
    return (2 if bf16 else 4) * rows * (c.layers * layer + (2 * source + target) * d)


# %% [markdown]
# For the base model, a position of the source keeps $6 \cdot (6 \cdot 512 + 3 \cdot 1024 + 2048) \cdot 4$ bytes, about 197 kB. So the paper's 25,000 positions need 4.9 GB on that side, and a little more on the target's. The formula is "about": kernels differ in what they keep. A test compares it with what autograd really stores, within 20 %. Here is the comparison for one batch.

# %%
torch.manual_seed(0)
model = Transformer(config)
batch = few[0]
stored = kept(lambda: model.decode(batch.target[:, :-1], model.encode(batch.source), batch.source))
stored -= 4 * sum(p.numel() for n, p in model.named_parameters() if n != "embedding.weight")
shape = (*batch.source.shape, batch.target.size(1) - 1)
print(f"formula / stored within 10 %: {0.9 < activations(config, shape) / stored < 1.1}")

# %% [markdown]
# What do the parts of the paper's batch weigh? The figure takes the formula for both models, for 892 sentences of 28 positions.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-gpu-memory", "caption": "What fills the memory of a GPU? Bytes by what they hold, computed for the paper's batch of 25,000 positions a side. With all logits at once (dotted) the loss of the base model would take more than its layers in bf16; in chunks it is a small part of that. Nothing here was measured on a GPU."}, "image": {"alt": "For base and big, activations are the largest part, 11 and 22 gigabytes, and shrink by two fifths in bf16. All others together are below 5. The loss in chunks is half a gigabyte, with all logits eleven."}}
figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.8), sharey=True, layout="constrained")
for axis, name in zip(axes, ("base", "big")):
    c = preset(name)
    each = 12 * c.vocabulary_size  # bytes of the loss for a position
    for offset, precision, color, hatch in ((-0.2, "fp32", QUERY, ""), (0.2, "bf16", KEY, "//")):
        parts = {
            "weights": (6 if precision == "bf16" else 4) * parameter_count(c),
            "gradients": 4 * parameter_count(c),
            "Adam": 8 * parameter_count(c),
            "activations": activations(c, (892, 28, 28), precision),
            "loss": each * CHUNK,
        }
        rows = [row + offset for row in range(len(parts))]
        sizes = [size / 1e9 for size in parts.values()]
        axis.barh(rows, sizes, 0.36, fc="none", ec=color, hatch=hatch, lw=1.3, label=precision)
    full = each * 892 * 28 / 1e9
    axis.barh(len(parts) - 1, full, 0.8, fc="none", ec=INK, lw=0.9, ls=":")
    axis.text(full / 2, len(parts) - 1, "all logits", ha="center", va="center", fontsize=8)
    axis.set(title=name, xlabel="GB", yticks=range(len(parts)), yticklabels=parts)
    axis.set_xlim(0, 1.05 * max(full, activations(c, (892, 28, 28)) / 1e9))
    axis.grid(False)
axes[0].invert_yaxis()
axes[0].legend(frameon=False)
plt.show()


# %% [markdown]
# The parts come together in one object. The batches of a plan count with all their positions, padding included, since this is about time and not about merit. The memory is that of the batch that needs most; several processes share its sentences.


# %% tags=["export"]
class Estimate(NamedTuple):
    """What a run will take: parameters, operations in all, bytes of the largest batch."""

    parameters: int
    flops: float
    memory_bytes: float

    def hours(self, peak: float, gpus: int = 1, mfu: float = 0.2) -> float:
        """Return the hours on GPUs of some peak, of which training gets a share."""
        return self.flops / (gpus * peak * mfu) / 3600


# %% tags=["export"]
def estimate(
    config: TransformerConfig, training: TrainingConfig, lengths: np.ndarray,
    precision: Precision = "fp32", processes: int = 1,
) -> Estimate:  # fmt: skip
    """Estimate a training with FastLoss on examples of these lengths (N, 2), before it begins.

    The memory is that of one process. Raises ValueError if there are no examples, or if one does
    not fit into a batch.
    """
    plan = plan_batches(lengths, training.max_tokens, training.seed, epoch=0)
    if not plan:
        raise ValueError("there are no sentence pairs to train on")
    rows, source, target = np.array([(len(b), *lengths[b].max(axis=0)) for b in plan]).T
    epoch = sum(flops(config, source.repeat(rows), target.repeat(rows)).values())
    updates, parameters = training.steps * training.grad_accum_steps, parameter_count(config)
    share = -(-rows // processes)
    loss = 12 * np.minimum(share * target, CHUNK) * config.vocabulary_size
    largest = max(activations(config, (share, source, target), precision) + loss)
    fixed = (18 if precision == "bf16" else 16) * parameters
    return Estimate(parameters, epoch / len(plan) * updates, fixed + largest)


# %% [markdown]
# Hours are operations over peak, number of GPUs, and the share of the peak. With the 20 % that we plan with, and sentences of 28 tokens:


# %%
PEAKS = {"H200": 989e12, "A100": 312e12, "RTX 4090": 165e12}  # dense bf16, from the data sheets
lengths = np.full((892, 2), 28)
for name, steps in runs.items():
    training = TrainingConfig(steps=steps, max_tokens=25_000)
    found = estimate(preset(name), training, lengths, precision="bf16")
    print(
        f"{name}: {found.parameters / 1e6:.0f} M parameters, {found.flops:.1e} operations", end=""
    )
    print(f", {found.memory_bytes / 1e9:.0f} GB")
    for gpu, count in (("H200", 1), ("H200", 8), ("A100", 8), ("RTX 4090", 1)):
        print(f"   {count} x {gpu}: {found.hours(PEAKS[gpu], count):.1f} hours")

# %% [markdown]
# So the paper's base model is an hour's work on one current GPU, *if* it reaches 20 %. That is an estimate, and no measurement of ours stands behind it. The eight cards of the paper needed 12 hours.
#
# ### Why not eight times as fast on eight?
#
# Because the paper's batch is small for eight GPUs. Shared by eight, 25,000 tokens are 3,125 for each. For the base model these are $0.381 \cdot 10^9 \cdot 3{,}125 = 1.2 \cdot 10^{12}$ operations, which an H200 at its peak does in 1.2 milliseconds. A step has thousands of calls, as the profiler said, and each takes the program microseconds to launch. So the launches alone take longer than the products. On eight GPUs the base model is launch-bound at the paper's batch. Larger batches are the way out: with 200,000 tokens a step each GPU has as much to do as one had alone. That is another training, with another rate, and fewer steps.


# %% [markdown]
# ## What a user sees
#
# All of this is behind [the command line](G_cli.ipynb), which turns on what suits the machine. Nobody has to know the levers to use them.
#
# | | a processor | one GPU | eight GPUs |
# |---|---|---|---|
# | precision | fp32, or bf16 where it is in hardware | bf16 since Ampere | the same |
# | loss | in chunks: less memory, a little faster | in chunks: room for larger batches | the same |
# | compilation | not worth it | two programs, in the first steps | the same, each process for itself |
# | what limits | matrix products | memory traffic, launches | launches, at the paper's batch |
# | target tokens a second, base | see the log above | not measured | not measured |
#
# The two empty cells are filled by `python benchmarks/speed.py`, which takes a GPU if there is one, with the base model and 25,000 tokens a batch. It waits for the GPU at the end of each turn, drops the first round, and writes down the name of the card and the version of PyTorch. `--compile` measures compilation as well.
#
# ### I have a GPU. What should I look at first?
#
# 1. *Tokens a second.* The progress line of a training prints the target tokens a second. Times the operations a token (0.38 · 10⁹ for base, 1.29 · 10⁹ for big), divided by the peak, that is the MFU.
# 2. *Precision.* If the card is older than Ampere, there is no bf16, and the peak is that of fp32, a tenth or less of the other. `train` says which of the two it takes.
# 3. *The size of a batch.* Double `--max-tokens` for a hundred steps. If tokens a second rise much, the step is launch-bound, and larger batches with fewer steps are the cheapest gain.
# 4. *Waiting for data.* If the processor is at its limit, the process that makes batches is too slow. An encoded corpus needs next to nothing for a batch; tokenizing on the way would.
# 5. *The first minutes.* They contain compiling, and the clock of the GPU rises and falls with its temperature. Measure after them.
#
# ### Where is the profile of my own training?
#
# `torch.profiler` works on a GPU as above, with `ProfilerActivity.CUDA` added, and `export_chrome_trace` writes a file for a timeline in the browser. Look at a few steps after the warm-up. Gaps in the row of the GPU are launches or waiting; what fills the row is work. Only for the second kind does it make sense to look for faster kernels.
#
# ## What to remember
#
# - A step costs six operations for each token and each weight of a matrix it meets. Attention's products add less than one percent at a sentence's length.
# - MFU is the share of the peak that useful operations take. It counts no padding and nothing twice.
# - Measure one lever at a time, in turns. Several famous ones bring nothing on a given machine.
# - The logits need never exist all at once. The loss can compute its gradient on the way, and label smoothing needs no logits at all.
# - bf16 for products, fp32 for weights, moments, softmax and loss; and only where the hardware has it.
# - Compile a layer, with sizes as symbols: two programs for nearly all batches.


# %% [markdown]
# ## Exercises
#
# 1. By hand: how many operations does one training step of the base model take for the output projection alone, with 25,000 target tokens and 37,000 entries? How long at the peak of an H200?
# 2. At which length do the attention products of the base model's encoder cost as much as its other products?
# 3. In `chunked_loss`, which part of the loss would be wrong without `masked_fill`, and by how much?
# 4. A training reaches 60,000 target tokens a second with the big model on one A100. What is its MFU?
# 5. What breaks if the clock is stopped without waiting for the GPU? What would the MFU look like?


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. 6 x 25,000 x 512 x 37,000
step_output = 6 * 25_000 * 512 * 37_000
print(f"{step_output:.2e} operations, {1000 * step_output / PEAKS['H200']:.1f} ms")
assert step_output == 25_000 * flops(preset("base"), 28, 28)["output projection"] / 28

# 2. w S^2 = (2 d w + 2 d d_ff) S with w = 2 d, d_ff = 4 d: at S = 6 d
base = preset("base")
long = flops(base, 6 * base.d_model, 0)
products, *others = (
    long[f"encoder: {name}"]
    for name in ("attention products", "attention projections", "feed-forward")
)
print("S =", 6 * base.d_model, products == sum(others))

# 3. The smoothing of padding would be added: eps (z_PAD - mean z) for each padded position
states, table = torch.randn(3, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
labels = torch.tensor([4, 5, PAD])
logits = states @ table.T
extra = 0.1 * (logits[2, PAD] - logits[2].mean())
real = chunked_loss(states[:2], table, labels[:2])
everything = chunked_loss(states, table, labels)
print("padding adds nothing:", torch.allclose(real, everything), f"; it would add {extra:.2f}")

# 4. Useful operations a second over the peak; a target token comes with its source token
a_token = sum(flops(preset("big"), 28, 28).values()) / 28
print(f"MFU {mfu(a_token * 60_000, 1, PEAKS['A100']):.0%}")

# 5. Only the asking is timed, and the work overlaps with what comes after: an MFU far above 100 %
print(
    f"{mfu(1.2e12, 0.0005, PEAKS['H200']):.0%} if a step of 1.2e12 operations is asked for in 0.5 ms"
)
