# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth", "1", "https://github.com/annotated-transformer/annotated-transformer", "/content/book"], check=True)
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
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


# %% tags=["export"]
from annotated_transformer.batching import Batch, BatchPlan
from annotated_transformer.decoding import Cache, Reader, decoder_layers
from annotated_transformer.layers import DecoderLayer
from annotated_transformer.masks import BOS, PAD, UNK, padding_mask, target_mask
from annotated_transformer.transformer import Transformer, TransformerConfig, parameter_count


# %%
import json
from itertools import islice
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import matplotlib.pyplot as plt
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.batching import batches, encode_pairs, plan_batches, shapes_of
from annotated_transformer.data import multi30k
from annotated_transformer.decoding import next_logits, translate
from book.figures import INK, KEY, POSITION, QUERY, RESIDUAL, VALUE, style
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import Objective, make_optimizer
from annotated_transformer.model_io import load_pretrained
from annotated_transformer.transformer import preset

# %% [markdown]
# ## What a step costs, counted
#
# Nearly all the work of a Transformer is matrix products. A product of $(n, a)$ with $(a, b)$ makes $n b$ numbers, each the sum of $a$ products. So it takes $n a b$ multiplications and as many additions: $2 n a b$ **operations**. The backward pass needs two more products of the same size, one for the gradient of the input and one for that of the weights. Training is three times the forward pass:
#
# $$ \text{operations} = 3 \cdot 2 \cdot n \, a \, b. $$ (eq-operations)
#
# Take the feed-forward network of the base model and one token. It has two matrices of $512 \times 2048$, so a forward pass takes $2 \cdot 2 \cdot 512 \cdot 2048 = 4.2$ million operations, training 12.6 million, and six layers 75 million.
#
# Attention has two kinds of product. The **projections** make queries, keys, values and the output. Their cost grows with the number of tokens, as in any linear map. The **products** of queries with keys, and of weights with values, have no parameters; their cost grows with the *pairs* of tokens. We count the two apart, since the levers for them differ. The decoder's second attention is a mixed case: its queries and outputs are made at the target's places, its keys and values at the source's.
#
# With $w = H (d_k + d_v)$, which is $2 d$ in most presets, a sentence of $S$ and $T$ places has these products in a layer. The function multiplies them by the number of layers, adds the output projection, and sums over sentences.
#
# | block | encoder layer | decoder layer |
# |---|---|---|
# | attention projections | $2 \, d \, w \, S$ | $d \, w \, (3 T + S)$ |
# | attention products | $w \, S^2$ | $w \, (T^2 + T S)$ |
# | feed-forward | $2 \, d \, d_\text{ff} \, S$ | $2 \, d \, d_\text{ff} \, T$ |


# %% tags=["export"]
def flops(config: TransformerConfig, source: Any, target: Any) -> dict[str, float]:
    """Count the operations of training on sentences with `source` and `target` places, by block.

    Takes two numbers, or two tensors with one number a sentence. A multiplication and an addition
    count as two, and the backward pass as two forward passes.
    """
    s, t = (torch.as_tensor(places, dtype=torch.float64) for places in (source, target))
    head = config.d_model / config.heads
    width = config.heads * ((config.d_k or head) + (config.d_v or head))
    project, feed = config.d_model * width, 2 * config.d_model * config.d_ff
    forward = {
        "encoder: attention projections": config.layers * 2 * project * s,
        "encoder: attention products": config.layers * width * s * s,
        "encoder: feed-forward": config.layers * feed * s,
        "decoder: attention projections": config.layers * project * (3 * t + s),
        "decoder: attention products": config.layers * width * (t * t + t * s),
        "decoder: feed-forward": config.layers * feed * t,
        "output projection": config.d_model * config.vocabulary_size * t,
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
    Objective(model, 0.1)(*batch).backward()
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
# In an encoder layer of the base model, projections and feed-forward network take $2 d w + 2 d \, d_\text{ff} = 3.1$ million products for each place. The attention products take $w S = 1{,}024 \, S$ for each place, so 28,672 at 28 tokens: one percent. At 256 tokens they take 8 %, at 1,024 a third, and at 3,072 as much as all the rest. Papers that promise faster attention have such lengths in mind. For a corpus of sentences the square in the cost is harmless, and it is the wide matrices that one pays for.
#
# ### Are operations the right thing to count?
#
# They are what does not depend on the machine. Time also goes into reading and writing memory, and that is counted in bytes. Take the first matrix of the feed-forward network with 25,000 tokens in 16 bits: $2 \cdot 25{,}000 \cdot 512 \cdot 2{,}048 = 52$ billion operations on 26 + 2 + 102 MB of input, weights and output, some 400 operations a byte. An H200 does 989 · 10¹² operations while it moves 4.8 · 10¹² bytes, about 200 for each byte. So this product is bound by arithmetic. A normalization of the same 25,000 tokens does a handful of operations a number, one or two for a byte. It is bound by memory, and a faster arithmetic unit would not help it. A Transformer is made of both, and with each generation of GPUs the share of the second kind grows.
#
# ## How fast is the machine?
#
# A machine's **peak** is the number of operations a second that it can do when everything is right. For GPUs it is in the data sheet, and one must read it with care. There is a number for each kind of arithmetic. We want that of bf16 products, which a section below explains. And there is often a larger one "with sparsity", which is for matrices half of whose entries are zero. Ours are not. Where a sheet prints only the larger one, half of it counts.


# %% tags=["export"]
# Dense bf16 products with sums in fp32, operations a second, from NVIDIA's data sheets (half of
# what they print "with sparsity"); V100 and T4 have fp16 only. The first fragment that fits counts.
PEAKS = {
    "B200": 2250e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12,
    "A100": 312e12, "A30": 165e12, "A40": 150e12, "A10": 125e12, "A6000": 155e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12,
    "RTX 5090": 209e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12,
}  # fmt: skip


# %% [markdown]
# The keys are pieces of the names that PyTorch reports, such as `NVIDIA H100 80GB HBM3`. The order matters: *H100 PCIe* is a slower card than the other *H100*, so it is asked for first. A card that is not in the table has no known peak, and `None` says so; a guess would make every share computed from it a guess.


# %% tags=["export"]
def known_peak(name: str) -> float | None:
    """Return the peak of the GPU of this name, in operations a second, or None if unknown."""
    return next((peak for part, peak in PEAKS.items() if part.lower() in name.lower()), None)


# %% [markdown]
# A processor has no such sheet. There we measure: one large product of two matrices, the best of several rounds, after one that does not count. Work on a GPU runs beside the program. A product is *asked for* in microseconds, and done later. Who stops the clock without waiting measures the asking. This is the most common mistake in timing a GPU, so the waiting gets a name.


# %% tags=["export"]
def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all it was asked to; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# %% [markdown]
# The matrices of the measurement are large enough that the product is all that counts, $2 n^3$ operations for $n = 1{,}024$. The best round is taken and not the mean, since a peak is what a machine *can* do. Anything else that runs beside it makes a round slower, never faster. The clock can be another one: on a busy machine with one thread, that of the processor's own time.


# %% tags=["export"]
def measured_peak(
    device: torch.device, dtype: torch.dtype = torch.float32, size: int = 1024, rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:  # fmt: skip
    """Return the operations a second of a large matrix product, the best of some rounds."""
    one, other = torch.randn(2, size, size, device=device).to(dtype)
    seconds = []
    for _ in range(rounds + 1):
        wait_for(device)
        start = clock()
        one @ other
        wait_for(device)
        seconds.append(clock() - start)
    return 2 * size**3 / min(seconds[1:])


# %% [markdown]
# The two together give the one number by which trainings on different machines can be compared. The **model FLOPs utilization**, MFU ([Chowdhery et al.](https://arxiv.org/abs/2204.02311)), is the share of the peak that useful operations take:
#
# $$ \text{MFU} = \frac{\text{operations of the model, without padding}}{\text{seconds} \cdot \text{peak}}. $$ (eq-mfu)
#
# Useful means: counted by {eq}`eq-operations` for the real lengths of the sentences. Padding, and anything computed twice, does not count, however busy it keeps the machine.


# %% tags=["export"]
def mfu(operations: float, seconds: float, peak: float) -> float:
    """Return the share of a machine's peak that useful operations took in some time."""
    return operations / seconds / peak


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
pairs = multi30k("train")
tokenizer = Tokenizer.train(pairs, vocabulary_size=8000)
examples = encode_pairs(tokenizer, pairs)
lengths = shapes_of(examples)
config = preset("small", vocabulary_size=len(tokenizer))
plan = plan_batches(lengths, max_tokens=512, seed=0, epoch=0)
few = list(islice(batches(examples, 512, seed=0, epoch=0), 3))
print(len(plan), "batches of", len({batch.shape for batch in plan}), "shapes (S, T)")


# %%
def step(objective, adam, batch):
    """One update, without the learning rate."""
    adam.zero_grad()
    loss = objective(*batch)
    (loss / (batch.target[:, 1:] != PAD).sum()).backward()
    adam.step()
    return float(loss.detach())


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
objective, adam = Objective(model, 0.1), make_optimizer(model)
source, target = lengths[list(plan[0].indices)].T
useful = sum(flops(config, source, target).values())
took, peak = (
    seconds(lambda: step(objective, adam, few[0])),
    measured_peak(torch.device("cpu"), clock=time.process_time),
)
print(f"{useful / 1e9:.0f} GFLOP in {took:.2f} s; the peak is {peak / 1e9:.0f} GFLOP/s")
print(f"MFU {mfu(useful, took, peak):.0%}")
assert 0.05 < mfu(useful, took, peak) < 2

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
    step(objective, adam, few[0])
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
# Four levers are in the book's training already. We can measure them only by turning them off: batches sorted by length ([batching](15_batching.ipynb)), Adam in one pass over memory (`fused=True`), and attention in one kernel, which never writes the matrix of weights to memory ([FlashAttention](https://arxiv.org/abs/2205.14135)). The others we turn on. The benchmark lets all of them train on the same sentences, in turns. One round is A B C, the next B C A, and the gain is the median over the rounds of the ratio to our plain step in the same round. So a busy machine slows down all of them.
#
# Here is what the committed log says. The commands were the ones below. The second takes the paper's base model with its 37,000 entries, and the third measures the machine's peak once more, after the others.
#
# ```bash
# python benchmarks/speed.py --preset small --threads 1 --cpu-time --rounds 7 --batches 4 --max-tokens 512
# python benchmarks/speed.py --preset base --threads 1 --cpu-time --rounds 5 --batches 2 --max-tokens 256
# python benchmarks/speed.py --peak --threads 1 --cpu-time
# ```


# %% tags=["nbval-ignore-output", "hide-input"]
def read_log(name):
    path = Path("../benchmarks/results") / name
    address = "https://github.com/annotated-transformer/annotated-transformer/raw/main/benchmarks/results/"
    text = (
        path.read_text() if path.exists() else urlopen(address + name).read().decode()
    )  # in Colab
    return [json.loads(line) for line in text.splitlines()]


lines = read_log("speed.jsonl")
measured = [line for line in lines if "benchmark" in line]


def gains(run):
    """Tokens a second and gain of each system of a run."""
    kind = {key: run[key] for key in ("preset", "device", "threads", "compile")}
    turns = [line for line in lines if "round" in line and kind.items() <= line.items()]
    rates = {}
    for turn in turns:
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
assert {"small", "base"} <= {run["preset"] for run in measured}

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
# All others are noise. In the run of the small model they lie within two percent of the plain step. In that of the base model they scatter by six, up and down: its weights do not fit into any cache, and other programs on the machine wanted the memory too. That was to be expected. The MFU of the plain step is about a half to two thirds on this processor, so there is little left to win. What these levers are for is a GPU, where products take a far smaller share of a step.
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
# The largest tensor of a step is that of the logits. At the paper's batch it has $25{,}000 \cdot 37{,}000$ numbers: 3.7 GB in fp32, once for the logits or their logarithms, and once more for the gradient. Nobody needs them all at the same time. The loss is a sum over positions, so we can take a few thousand positions, compute their logits, their loss *and their gradient*, add these up, and forget the logits before the next few thousand.
#
# That is unusual, since the gradient normally comes in the backward pass. Here it can come at once. The loss is the end of the computation, and [chapter 17](17_regularization.ipynb) showed that its gradient with respect to the logits is $p - q$: the prediction minus the smoothed label. From there two products lead on, to the states and to the table. If what follows multiplies the loss by something, as training does when it divides by the number of tokens, the stored gradients are multiplied by the same. The logits are gone by then.
#
# First the two formulas of chapter 17, on the rows of a chunk. They are written out again because that chapter's function treats padding in a way that makes a GPU wait: it asks at which places the padding is.


# %% tags=["export"]
def smoothed_sum(log_p: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum the label-smoothed losses of log-probabilities (N, V) over labels (N,) but PAD."""
    correct = log_p.gather(-1, labels[:, None])[:, 0]
    losses = -(1 - smoothing) * correct - smoothing * log_p.mean(-1)
    return losses.masked_fill(labels == PAD, 0).sum()


# %% [markdown]
# The gradient is written over the log-probabilities, since nobody needs them afterwards: exponentiate, subtract the share of smoothing that every entry gets, and subtract the rest at the right word.


# %% tags=["export"]
def smoothed_gradient(log_p: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return p - q (N, V), computed where the log-probabilities stood."""
    gradient = log_p.exp_().sub_(smoothing / log_p.size(-1))
    on = torch.full_like(labels[:, None], smoothing - 1, dtype=gradient.dtype)
    return gradient.scatter_add_(-1, labels[:, None], on)


# %% [markdown]
# Our form asks nothing. It lets padding run through the products, and hides it at both ends. Where the label is padding, the state is set to zero on the way in, so that it adds nothing to the table's gradient, and its own gradient is set to zero on the way out.
#
# Here is one chunk. There are three matrix products in it: the logits, the gradient of the states, and that of the table. The argument `wide` is the type in which softmax and loss are computed; the products may be narrower, as the next section has it.


# %% tags=["export"]
def pass_chunk(
    states: Tensor, weights: Tensor, labels: Tensor, smoothing: float, wide: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of states (N, D) against labels (N,), and its gradients: states, weights."""
    padding = (labels == PAD)[:, None]
    states = states.masked_fill(padding, 0)
    log_p = F.linear(states, weights).to(wide).log_softmax(-1)
    loss = smoothed_sum(log_p, labels, smoothing)
    slope = smoothed_gradient(log_p, labels, smoothing).to(weights.dtype)
    return loss, (slope @ weights).masked_fill(padding, 0), slope.T @ states


# %% [markdown]
# What surrounds it is a loop. It walks through states, labels and the place of the states' gradient in steps of one chunk, and adds to two sums: the loss, and the gradient of the table. The narrow copy of the table is made once.
#
# A class derived from `autograd.Function` tells PyTorch that it brings its own gradient. `forward` may do what it likes, and saves what `backward` will need. Here these are the two gradients, which are as large as the states and the table. `once_differentiable` says that nobody may differentiate a second time, as there is no graph behind these numbers.


# %% tags=["export"]
class ChunkedLoss(torch.autograd.Function):
    """Output projection and label-smoothed loss; the gradient is computed in the same pass."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, labels: Tensor, smoothing: float, chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        """Sum the losses of states (N, D) against labels (N,), `chunk` positions at a time."""
        weights, loss = table.to(dtype), torch.zeros((), dtype=table.dtype, device=table.device)
        to_states, to_table = torch.zeros_like(states), torch.zeros_like(table)
        for some, wanted, slope in zip(*(t.split(chunk) for t in (states, labels, to_states))):
            part = pass_chunk(some.to(dtype), weights, wanted, smoothing, table.dtype)
            loss += part[0]
            slope += part[1]
            to_table += part[2]
        ctx.save_for_backward(to_states, to_table)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that forward has computed, times the slope of what follows."""
        to_states, to_table = ctx.saved_tensors
        return to_states * slope, to_table * slope, None, None, None, None


# %% [markdown]
# The function that a caller sees flattens sentences and positions, and drops padding where that is free. On a processor it is. On a GPU the program would have to wait for the count, and a step would stand still to save 4 % of one product.


# %% tags=["export"]
LOSS_CHUNK = 2048  # positions


def chunked_loss(
    states: Tensor, table: Tensor, labels: Tensor, smoothing: float, chunk: int = LOSS_CHUNK,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Return the label-smoothed loss summed over real tokens, of states (..., D) against labels
    (...), with the table (V, D) as output projection.

    Raises ValueError unless 0 <= smoothing < 1.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, not {smoothing}")
    states, labels = states.flatten(0, -2), labels.flatten()
    if labels.device.type == "cpu":  # a GPU would have to be waited for
        states, labels = states[labels != PAD], labels[labels != PAD]
    settings = (smoothing, chunk, dtype or table.dtype)
    return cast("Tensor", ChunkedLoss.apply(states, table, labels, *settings))


# %% [markdown]
# Does it agree with the readable loss? We compare value and both gradients, with five positions a chunk and some padding, in double precision. Then we ask autograd what each of the two keeps between the passes.


# %%
chance = torch.Generator().manual_seed(0)
states = torch.randn(4, 9, 16, dtype=torch.float64, generator=chance, requires_grad=True)
table = torch.randn(30, 16, dtype=torch.float64, generator=chance, requires_grad=True)
labels = torch.randint(0, 30, (4, 9), generator=chance)
labels[1, 6:] = PAD


def all_logits(states, table, labels, smoothing):
    log_p = F.linear(states, table).log_softmax(-1).flatten(0, 1)
    return smoothed_sum(log_p, labels.flatten(), smoothing)


results = []
for loss in (partial(chunked_loss, chunk=5), all_logits):
    value = loss(states, table, labels, 0.1)
    results.append([value, *torch.autograd.grad(value, (states, table))])
print([torch.allclose(ours, theirs) for ours, theirs in zip(*results)])


# %%
def kept(action):
    """Bytes that an action saves for the backward pass, beside its weights."""
    found = {}

    def pack(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = action()  # keeps all storages alive until they are counted
    del result
    return sum(found.values())


states = torch.randn(1024, 256, requires_grad=True)
table = torch.randn(8000, 256, requires_grad=True)
labels = torch.randint(4, 8000, (1024,))
for loss in (all_logits, chunked_loss):
    some = states[None] if loss is all_logits else states
    print(loss.__name__, f"{kept(lambda: loss(some, table, labels, 0.1)) / 1e6:.0f} MB")

# %% [markdown]
# The first keeps the 33 MB of its log-probabilities, beside states and table. The second keeps two gradients, of 1 and 8 MB. With the paper's numbers it is 3.7 GB against 0.13 GB, and a chunk of 2,048 positions for a moment. On a processor the chunks are no faster, as the log shows. On a GPU the room can be spent on a larger batch.
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
# The first number is gone in fp16. The third has lost its last digit in bf16. And that shows where bf16 must *not* be used: an update adds a thousandth of its size to a weight, and $1 + 0.001$ is $1$. So weights and Adam's two moments stay in fp32, and a narrow copy of the weights is made for the products. `torch.autocast` does that. It computes linear maps and attention in bf16; normalization, softmax and loss stay in fp32, and our loss makes its own products narrow and the rest wide.
#
# There is a middle way for cards since Ampere: **TF32** keeps all bits of the numbers in memory and drops some inside the products. `torch.set_float32_matmul_precision("high")` turns it on. With autocast it has nothing left to do, so the package leaves this switch of the whole process to its user. The benchmark measures it on a GPU.
#
# Whether bf16 is a gain depends on the hardware. Where instructions are missing, PyTorch computes it by detours, and says nothing. On the machine that this page was made on:


# %% tags=["nbval-ignore-output"]
one, other = torch.randn(2, 192, 192)
wide = seconds(lambda: one @ other, times=9)
narrow = seconds(lambda: one.bfloat16() @ other.bfloat16(), times=9)
print(f"fp32 {wide * 1e6:.0f} µs, bf16 {narrow * 1e6:.0f} µs: {narrow / wide:.1f} times as long")
print("best_precision would take", "bf16" if narrow < wide else "fp32")

# %% [markdown]
# So we ask before we choose. For a GPU there is an official question, with an option that rules out emulation; without it, a V100 says yes. For a processor the two names of the instructions are AVX512-BF16 and AMX. The functions that know about them begin with an underscore and may go away in another release of PyTorch. Then `getattr` finds `bool` in their place, and `bool()` is `False`.


# %% tags=["export"]
Precision = Literal["fp32", "bf16"]


def best_precision(device: torch.device | str) -> Precision:
    """Return "bf16" where the device multiplies such numbers in hardware, else "fp32"."""
    kind = torch.device(device).type
    if kind == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        able = kind == "cpu" and any(
            getattr(torch.cpu, f"_is_{name}_supported", bool)()
            for name in ("avx512_bf16", "amx_tile")
        )
    return "bf16" if able else "fp32"


# %% tags=["nbval-ignore-output"]
print(best_precision("cpu"))
assert best_precision("cpu") in ("fp32", "bf16") and best_precision("mps") == "fp32"

# %% [markdown]
# ## The fast objective
#
# Now both come together, in a class that is called like `Objective` of the training chapter and returns the same number. It has no weights of its own.
#
# The loops over the layers are those of encoder and decoder. They are repeated here for one reason: each layer is passed through a function, which is plain for now and will be a compiled one in the next section. A test compares the two ways, so that they cannot drift apart.


# %% tags=["export"]
def call_layer(layer: nn.Module, *inputs: Tensor) -> Tensor:
    """Pass inputs through a layer; a function of its own, so that it can be compiled."""
    return cast("Tensor", layer(*inputs))


# %% [markdown]
# The objective itself has two halves. `states` is the model without its last product, and `forward` adds the loss in chunks.


# %% tags=["export"]
class FastObjective(nn.Module):
    """The loss of a batch under training, summed: as Objective, with less memory and time."""

    def __init__(
        self, model: Transformer, smoothing: float, precision: Precision = "fp32",
        chunk: int = LOSS_CHUNK,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.precision, self.chunk, self.call_layer = precision, chunk, call_layer

    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """Read source (B, S) and target (B, T), as the model does; return states (B, T, D)."""
        model, mask, past = self.model, padding_mask(source), target_mask(target)
        memory = model.embed(source)
        for layer in model.encoder.layers:
            memory = self.call_layer(layer, memory, mask)
        memory, x = model.encoder.norm(memory), model.embed(target)
        for layer in model.decoder.layers:
            x = self.call_layer(layer, x, memory, past, mask)
        return cast("Tensor", model.decoder.norm(x))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss summed over real target tokens."""
        half, table = self.precision == "bf16", self.model.embedding.weight
        with torch.autocast(source.device.type, dtype=torch.bfloat16, enabled=half):
            states = self.states(source, target[:, :-1])
        dtype = torch.bfloat16 if half else table.dtype
        return chunked_loss(states, table, target[:, 1:], self.smoothing, self.chunk, dtype)


# %% [markdown]
# ### Is the result the same in 16 bits?
#
# No, and it need not be. Each product is rounded, so loss and gradient differ a little from those in 32 bits, as they would with another order of the sentences. What must not happen is a drift to one side. The test compares both on the same batch, and here are two sentences, by way of a check that the machine at hand does what it should.


# %%
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer))).eval()
two = Batch(few[0].source[:2], few[0].target[:2])
exact, rounded = (FastObjective(model, 0.1, kind)(*two).item() for kind in ("fp32", "bf16"))
print(f"the same: {exact == rounded}; within half a percent: {abs(rounded / exact - 1) < 0.005}")

# %% [markdown]
# Autocast covers the layers and ends before the loss. The embedding table is used at both ends, and autograd adds its two gradients, as before. Dropout draws the same numbers in the same order as in the model, so a run may change from one objective to the other. Nothing here is special to one process, and [many](26_distributed.ipynb) can share the work.
#
# Here is the comparison on a real batch: loss, gradients, and a batch of empty sentences.


# %%
torch.manual_seed(0)
model = Transformer(config).eval()  # without dropout
found = []
for objective in (Objective(model, 0.1), FastObjective(model, 0.1)):
    model.zero_grad()
    loss = objective(*few[1])
    loss.backward()
    found.append([loss.detach(), *(weight.grad.clone() for weight in model.parameters())])
print(all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(*found)))

model.zero_grad()
empty = Batch(torch.full((3, 5), 2), torch.zeros(3, 6, dtype=torch.long))
FastObjective(model, 0.1)(*empty).backward()
print(any(bool(weight.grad.any()) for weight in model.parameters()))

# %% [markdown]
# ## Compiling
#
# A layer is a few dozen calls, and each one reads its input from memory and writes its result back. `torch.compile` watches a function run once, writes down what it does, and makes a **compiled** program of it: neighbors such as addition, dropout and normalization become one loop, and what they hand on to each other never leaves the processor's registers. On a GPU that also makes one launch of many.
#
# ### What shall be compiled?
#
# The whole objective would be the obvious choice. But then a program has all twelve layers of the base model written out one after the other, and making it takes six times as long as for one layer of each kind. The layers are alike. If we compile *a layer*, as a function of its weights, the six layers of a stack share one program. That is why `call_layer` is a function. What is left between the layers is little.
#
# ### How many programs?
#
# A program is made for certain sizes, and our batches come in many. There are two ways to deal with that.
#
# **Each shape by itself** (`dynamic=False`). The sizes are numbers in the program, so the loops are as long as they say. A new shape means a new program, or rather two, one for the encoder's layers and one for the decoder's. For captions that would be 64 pairs $(S, T)$ with two numbers of rows each, so up to 256 programs. At several seconds each the paper's base model would spend a good part of its hour on compiling. And Dynamo, the part that watches, gives up after eight versions of one function and runs it plainly from then on, with no more than a line in a log.
#
# **Sizes as symbols** (`dynamic=True`). The sizes that belong to the batch are variables in the program, as in any function that a person would write. The widths of the model stay numbers, since weights do not change their shape. Then two programs do for every batch there is.
#
# Symbols cost something only where a loop over a batch's size could have been tuned. The loops that matter are matrix products, which come from a library either way, and sums over $d_\text{model}$, which is a number in both. Further down is what the benchmark says: the same speed, and a small part of the compiling. So we take symbols.


# %% tags=["export"]
def check_compiler(device: torch.device) -> None:
    """Raise OSError if torch.compile lacks what it needs to write code for a device."""
    compilers = (os.environ.get("CXX", ""), "g++", "clang++", "c++", "cl")
    if not any(map(shutil.which, filter(None, compilers))):
        raise OSError("torch.compile needs a C++ compiler: install g++ or clang++, or do without")
    if device.type == "cuda" and find_spec("triton") is None:
        raise OSError("torch.compile needs triton for a GPU: pip install triton, or do without")


# %% [markdown]
# That was for the case that there is no compiler. On a processor PyTorch writes C++, and needs someone to translate it; on a GPU it writes for Triton. The error for what is missing comes late and is long, so we look first.
#
# The limit of eight versions is high enough for two programs. But a process may train more than one model, and each of them, each precision, and each special case from below counts. So it is set to 64. It has had two names.


# %% tags=["export"]
def allow_graphs(count: int = 64) -> None:
    """Let Dynamo compile a function so many times; beyond its limit it gives up in silence."""
    config = torch._dynamo.config
    for name in ("recompile_limit", "cache_size_limit"):  # the second before torch 2.7
        for limit in (name, f"accumulated_{name}"):
            if hasattr(config, limit):
                setattr(config, limit, max(count, getattr(config, limit)))


# %% [markdown]
# Now the switch itself is one line. It replaces the function that the objective calls its layers with, and leaves the model alone: validation and decoding are not affected.


# %% tags=["export"]
def compiled(objective: FastObjective) -> FastObjective:
    """Compile the layers of an objective, once for batches of all sizes; returns it.

    Raises OSError if there is no compiler.
    """
    check_compiler(objective.model.embedding.weight.device)
    allow_graphs()
    objective.call_layer = torch.compile(call_layer, dynamic=True)
    return objective


# %% [markdown]
# ### When is it compiled?
#
# When a function is first called, and that is the third thing that can go wrong. Without care, it happens in the middle of an epoch, on one GPU of eight, while seven wait. So we **warm up**: a forward and a backward pass before the training begins. Which batches does that take?
#
# Symbols have two exceptions. A size of 1 is always taken literally, since an axis of one place is stretched where others are not. So a batch with a single sentence is a case of its own, with programs of its own. And two sizes that happen to be equal get the same symbol: a program that was made for 21 rows of 21 words would not do for any other batch. So the batch to begin with should have three different sizes, none of them 1. The sizes 2, 3 and 5 will do. If some batch of the plan has a 1 somewhere, the same with a 1 in its place comes next.
#
# The last batch of the warm-up has another purpose. It is the largest of the plan, and it needs the most memory. If it fits, all others do. If it does not, one should hear of it in the first minute, with the shape and the remedy, and not in the second hour.


# %% tags=["export"]
class Shape(NamedTuple):
    """The size of a batch: sentences, and places in encoder and decoder."""

    rows: int
    source: int
    target: int

    @property
    def places(self) -> int:
        """Places of both sides, with padding."""
        return self.rows * (self.source + self.target)


# %% [markdown]
# A plan has many batches of one shape, and the set leaves one of each. From them follow the batches to try: for each way of having a 1, the smallest of its kind, and then the one with the most places.


# %% tags=["export"]
def batch_shapes(plan: Sequence[BatchPlan]) -> set[Shape]:
    """Return the shapes of a plan's batches, each once."""
    return {Shape(max(rows, len(indices)), *shape) for indices, shape, rows in plan}


def shapes_to_try(shapes: Iterable[Shape]) -> list[Shape]:
    """Return few shapes for which all is compiled that these need, and the largest of these."""
    shapes = list(shapes)
    ones = {tuple(size == 1 for size in shape) for shape in shapes}
    small = [Shape(*(1 if one else size for one, size in zip(row, (2, 3, 5)))) for row in ones]
    return [*sorted(small), *sorted(shapes, key=lambda shape: shape.places)[-1:]]


# %%
print(len(batch_shapes(plan)), "shapes; to try:", *map(tuple, shapes_to_try(batch_shapes(plan))))

# %% [markdown]
# A made-up batch will do. Its sentences consist of one word, repeated, because costs depend on sizes and not on words.


# %% tags=["export"]
def made_up(shape: Shape, device: torch.device) -> Batch:
    """Return a batch of a shape (B, S, T), all of one word."""
    source = torch.full((shape.rows, shape.source), UNK, device=device)
    target = torch.full((shape.rows, shape.target + 1), UNK, device=device)
    target[:, 0] = BOS
    return Batch(source, target)


# %% [markdown]
# On a GPU the lack of memory is an exception of its own, which names bytes. Ours names the batch. The `finally` throws the gradients away in either case. And the random numbers that dropout draws in these passes are given back, so a run with a warm-up and one without are the same run.


# %% tags=["export"]
def warm_up(objective: nn.Module, shapes: Iterable[Shape]) -> None:
    """Run a forward and a backward pass of a few batches, before those of these shapes come.

    So what does not fit into memory shows at once, and nothing is compiled later; weights stay.
    Raises MemoryError.
    """
    device = next(objective.parameters()).device
    for shape in shapes_to_try(shapes):
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                objective(*made_up(shape, device)).backward()
                wait_for(device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"a batch of {shape.rows} sentences with {shape.source} source and {shape.target} "
                f"target places does not fit into the memory of {device}: halve max_tokens and "
                "double accumulate"
            ) from error
        finally:
            objective.zero_grad(set_to_none=True)


# %% [markdown]
# Compiling takes too long for this page. A test compiles a model of two layers, counts two programs, lets batches of all kinds of sizes through, counts two programs again, and compares loss and gradients with the plain ones. The benchmark does it with `small`, and with both ways of treating sizes:
#
# ```bash
# python benchmarks/speed.py --preset small --threads 1 --cpu-time --rounds 5 --batches 2 --max-tokens 512 --compile
# ```


# %% tags=["nbval-ignore-output"]
for run in measured:
    if run["compile"]:
        print(f"{run['preset']} on {run['device']}, batches of {run['shapes']} shapes:")
        for name, note in run["compiled"].items():
            print(f"  {name}: {note['programs']} programs in {note['seconds']:.0f} s, ", end="")
            print(f"{note['at_the_end']} at the end, speed x {gains(run)[name][1]:.2f}")
        symbols = run["compiled"]["compiled"]
        assert symbols["programs"] == symbols["at_the_end"] == 2

# %% [markdown]
# Two programs, and none after the warm-up: that is what the warm-up promises. (The benchmark starts from nothing. PyTorch keeps programs in a folder, so when a run is continued on the same machine most of the compiling is found there.) On this processor the compiled layers are slower than the plain ones, whichever way the sizes are treated. So compilation is for GPUs, where it makes one launch of many, and it is off unless there is one. Whether it pays there, nobody has measured with this code.
#
# ## Batches ahead of time
#
# While a GPU computes, the processor has nothing to do; and while it makes the next batch, the GPU may wait. One thread is enough to do both at once. It reads, pads, and starts the copy to the GPU, at most `ahead` batches in advance. **Pinned** memory stays where it is, so the copy can run beside the computation.
#
# The hard part of such a thread is not the work. It is the end. An error in it must come out where the batches are used, and not disappear. When all batches are done, the thread must end; and also when the reader stops early, in the middle of an endless stream, with the queue full. So `put` never waits for long without looking at the flag.


# %% tags=["export"]
def make_ahead(
    batches: Iterable[Batch], device: torch.device, made: queue.Queue[Any], stop: threading.Event
) -> None:
    """Put batches, then what went wrong or None, into a queue until told to stop."""

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                return made.put(item, timeout=0.1)
            except queue.Full:
                continue

    try:
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # each thread has a current GPU of its own
        for batch in batches:
            put(to_place(batch, device))
            if stop.is_set():
                return
    except BaseException as error:
        put(error)
    put(None)


# %% [markdown]
# Bringing a batch to its place is two calls for each side. `non_blocking` returns before the copy is done; work that is asked for later on the same GPU waits for it by itself.


# %% tags=["export"]
def to_place(batch: Batch, device: torch.device) -> Batch:
    """Start to bring a batch to a device; does not wait until it is there."""
    if device.type == "cuda":
        batch = Batch(*(side.pin_memory() for side in batch))
    return Batch(*(side.to(device, non_blocking=True) for side in batch))


# %% [markdown]
# What the reader sees is a plain iterator in the same order. Everything goes through the queue: batches, then what went wrong, or `None` for the end. `finally` runs in each case, also when the loop over the batches is left by `break`.


# %% tags=["export"]
def prefetch(
    batches: Iterable[Batch], device: torch.device | str = "cpu", ahead: int = 2
) -> Iterator[Batch]:
    """Yield batches on a device, in order; a thread makes up to `ahead` of them meanwhile.

    What goes wrong in the thread is raised here, after the batches before it.
    """
    made: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    stop, place = threading.Event(), torch.device(device)
    worker = threading.Thread(target=make_ahead, args=(batches, place, made, stop), daemon=True)
    worker.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        worker.join()


# %%
ahead = [batch.source.shape for batch in prefetch(few)]
print(ahead == [batch.source.shape for batch in few])


def broken():
    yield few[0]
    raise OSError("shard 3 is damaged")


try:
    print([tuple(batch.source.shape) for batch in prefetch(broken())])
except OSError as error:
    print("raised here:", error)
print("threads left:", sum("make_ahead" in thread.name for thread in threading.enumerate()))

# %% [markdown]
# ## Before a run
#
# A run that takes a day should be estimated in a second. Operations we can count. Memory is the other question, and it has five parts. Weights and gradients take 4 bytes each for every parameter, Adam's moments 8. The loss takes a chunk of logits twice, and its two gradients. The rest are **activations**, what the layers keep for the backward pass.
#
# We count those a place: which vectors does a layer keep? An encoder layer keeps its input, queries, keys, values, what comes out of the heads, the hidden layer of the feed-forward network and its input, and twice a dropout mask and the input of a normalization. That is $6 d + 2 w + d_\text{ff}$ numbers, with $w = H (d_k + d_v)$ as above, if attention does not keep its weights. A decoder layer has one attention more: $9 d + 4 w + d_\text{ff}$, of which $w$, keys and values of the source, stand at the source's places. In bf16 all of them are half as wide, except what goes into the normalizations.


# %% tags=["export"]
def activations(config: TransformerConfig, shape: Shape, precision: Precision = "fp32") -> float:
    """Return the bytes that the layers keep for the backward pass of a batch, about."""
    rows, source, target = shape
    d, head = config.d_model, config.d_model / config.heads
    width = 3 * config.heads * ((config.d_k or head) + (config.d_v or head)) + config.d_ff
    layers = source * (width + 6 * d) + target * (width + 9 * d)
    normed = source * 2 * d + target * 3 * d
    around = (2 * source + target) * d
    if precision == "fp32":
        return 4 * rows * (config.layers * layers + around)
    return 2 * rows * (config.layers * (layers + normed) + around)


# %% [markdown]
# In bf16 the weights exist twice, once wide and once narrow. The name of each part is what a user will read.


# %% tags=["export"]
def memory(
    config: TransformerConfig, shape: Shape, precision: Precision = "fp32", chunk: int = LOSS_CHUNK
) -> dict[str, float]:
    """Return the bytes that training on batches of a shape takes, about, by what they hold."""
    count, positions = parameter_count(config), min(chunk, shape.rows * shape.target)
    states = shape.rows * shape.target + config.vocabulary_size
    return {
        "weights": 4 * count + (2 * count if precision == "bf16" else 0),
        "gradients": 4 * count,
        "Adam": 2 * 4 * count,
        "activations": activations(config, shape, precision),
        "loss": 4 * (2 * positions * config.vocabulary_size + states * config.d_model),
    }


# %% [markdown]
# For the base model, a place of the source keeps $6 \cdot (6 \cdot 512 + 3 \cdot 1024 + 2048) \cdot 4$ bytes, about 197 kB. So the paper's 25,000 places need 4.9 GB on that side, and a little more on the target's. The formula is "about": kernels differ in what they keep. A test compares it with what autograd really stores, within 20 %. Here is the comparison for one batch.


# %%
torch.manual_seed(0)
model = Transformer(config)
shape = max(batch_shapes(plan), key=lambda shape: shape.places)
batch = made_up(shape, torch.device("cpu"))
stored = kept(lambda: FastObjective(model, 0.1).states(batch.source, batch.target[:, :-1]))
stored -= 4 * sum(p.numel() for n, p in model.named_parameters() if n != "embedding.weight")
ratio = activations(config, shape) / stored
print(f"formula / stored within 10 %: {0.9 < ratio < 1.1}")

# %% [markdown]
# What do the parts of the paper's batch weigh? The figure takes the formula for both models, for 892 sentences of 28 places.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-gpu-memory", "caption": "What fills the memory of a GPU? Bytes by what they hold, computed for the paper's batch of 25,000 places a side. With all logits at once (dotted) the loss of the base model would take more than its layers in bf16; in chunks it is a tenth of that. Nothing here was measured on a GPU."}, "image": {"alt": "For base and big, activations are the largest part, 11 and 22 gigabytes, and shrink by two fifths in bf16. All others together are below 5. The loss in chunks is below one gigabyte, with all logits more than seven."}}
figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.8), sharey=True, layout="constrained")
paper = Shape(892, 28, 28)
for axis, name in zip(axes, ("base", "big")):
    for offset, precision, color, hatch in ((-0.2, "fp32", QUERY, ""), (0.2, "bf16", KEY, "//")):
        parts = memory(preset(name), paper, precision)
        rows = [row + offset for row in range(len(parts))]
        sizes = [size / 1e9 for size in parts.values()]
        axis.barh(rows, sizes, 0.36, fc="none", ec=color, hatch=hatch, lw=1.3, label=precision)
    full = memory(preset(name), paper, chunk=10**9)["loss"] / 1e9
    axis.barh(len(parts) - 1, full, 0.8, fc="none", ec=INK, lw=0.9, ls=":")
    axis.text(full, len(parts) - 1, " all logits", va="center", fontsize=8)
    axis.set(title=name, xlabel="GB", yticks=range(len(parts)), yticklabels=parts)
    axis.set_xlim(0, 1.05 * activations(preset(name), paper) / 1e9)
    axis.grid(False)
axes[0].invert_yaxis()
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# The parts come together in one object, which `annotated-transformer train --dry-run` prints.


# %% tags=["export"]
class Estimate(NamedTuple):
    """What a run will take: parameters, operations of all steps, bytes of the largest batch."""

    parameters: int
    operations: float
    memory: dict[str, float]

    def hours(self, peak: float, gpus: int = 1, share: float = 0.2) -> float:
        """Return the hours on GPUs of some peak, of which training gets a share (MFU)."""
        return self.operations / (gpus * peak * share) / 3600


# %% [markdown]
# The batches of a plan count with all their places, padding and empty rows included, since this is about time and not about merit. The memory is that of the batch with the largest activations.


# %% tags=["export"]
def estimate(
    config: TransformerConfig, plan: Sequence[BatchPlan], steps: int, accumulate: int = 1,
    precision: Precision = "fp32",
) -> Estimate:  # fmt: skip
    """Estimate a run whose steps take `accumulate` batches of a plan each, before it begins."""
    shapes = [Shape(max(rows, len(indices)), *shape) for indices, shape, rows in plan]
    rows, source, target = torch.tensor(shapes).T
    places = (side.repeat_interleave(rows) for side in (source, target))
    batch = sum(flops(config, *places).values()) / len(plan)
    largest = max(shapes, key=lambda shape: activations(config, shape, precision))
    most = memory(config, largest, precision)
    return Estimate(parameter_count(config), steps * accumulate * batch, most)


# %% [markdown]
# Hours are operations over peak, number of GPUs, and the share of the peak. With the 20 % that we plan with, and sentences of 28 tokens:


# %%
even = plan_batches(torch.full((892, 2), 28), max_tokens=25_000, seed=0, epoch=0)
for name, steps in runs.items():
    found = estimate(preset(name), even, steps, precision="bf16")
    print(f"{name}: {found.parameters / 1e6:.0f} M parameters, {found.operations:.1e} operations")
    print("   GB:", {part: round(size / 1e9, 1) for part, size in found.memory.items()})
    for gpu, count in (("H200", 1), ("H200", 8), ("A100", 8), ("RTX 4090", 1)):
        print(f"   {count} x {gpu}: {found.hours(known_peak(gpu), count):.1f} hours")

# %% [markdown]
# So the paper's base model is an hour's work on one current GPU, *if* it reaches 20 %. That is an estimate, and no measurement of ours stands behind it. The eight cards of the paper needed 12 hours.
#
# ### Why not eight times as fast on eight?
#
# Because the paper's batch is small for eight GPUs. Shared by eight, 25,000 tokens are 3,125 for each. For the base model these are $0.381 \cdot 10^9 \cdot 3{,}125 = 1.2 \cdot 10^{12}$ operations, which an H200 at its peak does in 1.2 milliseconds. A step has thousands of calls, as the profiler said, and each takes the program microseconds to launch. So the launches alone take longer than the products. On eight GPUs the base model is launch-bound at the paper's batch. Larger batches are the way out: with 200,000 tokens a step each GPU has as much to do as one had alone. That is another training, with another rate, and fewer steps.
#
# ## Decoding at scale
#
# Translating a test set is the second thing that takes time. Most of what helps is in [decoding](19_decoding.ipynb) already: keys and values of the source are projected once a sentence, those of the words so far are kept in a cache, finished sentences leave the batch, and the cache is reordered only when beams change places. Sentences are sorted by length, and batches are counted in tokens. What is that worth?


# %% tags=["nbval-ignore-output"]
reader, words = load_pretrained()
captions = [pair.source for pair in multi30k("val")[:24]]
for tokens in (1, 2048):
    action = partial(translate, reader, words, captions, beam=1, max_tokens=tokens)
    rate = len(captions) / seconds(action, times=1)
    print(f"batches of up to {tokens:5,} tokens: {rate:5.0f} sentences a second, greedy")
assert translate(reader, words, captions[:3], beam=1, max_tokens=1)

# %% [markdown]
# A batch of one sentence multiplies a vector by a matrix. The whole matrix must come from memory for one row of work. With many sentences side by side the same trip serves all.
#
# ### A step that can be compiled
#
# A step of decoding is launch-bound on a GPU, much more than one of training. It has as many calls, and each has only one word of each hypothesis to work on. So compiling should help here if anywhere. The step of the decoding chapter resists it in three ways:
#
# - **The past grows by a place a word.** Its length is a symbol, that would be no trouble. But it begins with 0 and goes on with 1, and these two are always taken literally: three programs where one would do.
# - **The layer changes the cache.** It takes a list apart and puts new tensors into it. A program wants tensors in and tensors out.
# - **Tensors change their layout on the way.** What `project` returns is a view of something else, with its axes exchanged. After `keep` the same numbers stand in a tensor of their own, in order. To a program these are different inputs.
#
# The remedy is a **static cache**. It has more room than there are words, so its size does not change from word to word; a step writes into the next free place, and a mask hides the places that are still empty. Its price is attention over empty places, and moving them when hypotheses change places. A place costs little, so the room need not be for the longest translation from the start: we give it eight places at a time.
#
# First the room. Before the first word everything is copied once into a layout that will not change.


# %% tags=["export"]
ROOM = 8  # places by which the room for the past grows


def make_room(cache: Cache) -> None:
    """Give the past of a cache room for some more words if it has none left."""
    if cache.written == 0:
        tidy = partial(torch.clone, memory_format=torch.contiguous_format)
        cache.mask = tidy(cache.mask)
        cache.memory = [(tidy(keys), tidy(values)) for keys, values in cache.memory]
    if cache.written == cache.past[0][0].size(2):
        more = (0, 0, 0, ROOM)  # at the end of the axis before the last
        cache.past = [(F.pad(keys, more), F.pad(values, more)) for keys, values in cache.past]


# %% [markdown]
# Then the layer. It has the same three lines as the one of the decoding chapter, and as `DecoderLayer.forward` in [Layers](09_layers.ipynb). What differs is the self-attention: keys and values of the new word are written into their place, and the query sees what is written so far. `place` is a tensor and not a number, since a number would be taken literally.


# %% tags=["export"]
def word_step(
    layer: DecoderLayer, x: Tensor, past: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor],
    mask: Tensor, place: Tensor, seen: Tensor,
) -> Tensor:  # fmt: skip
    """Pass the newest words (B, R, D) through a decoder layer.

    Their keys and values are written into the past, two of (B * R, H, T, K), at place (1,); seen
    (1, 1, 1, T) hides what comes after. Memory, two of (B, H, S, K), with its mask, only is read.
    """
    attend, translate, think = layer.residuals

    def to_past(y: Tensor) -> Tensor:
        rows = y.flatten(0, 1)[:, None]
        for kept, new in zip(past, layer.self_attention.project(rows, rows)):
            kept.index_copy_(2, place, new)
        return layer.self_attention.attend(rows, *past, seen).view_as(y)

    x = attend(x, to_past)
    x = translate(x, lambda y: layer.cross_attention.attend(y, *memory, mask))
    return cast("Tensor", think(x, layer.feed_forward))


# %% [markdown]
# Around the layers stands what stands around them in `next_logits`. The search takes any function of that form as its `read`, so there is nothing else to change. `clone` makes a tensor of its own out of a view.


# %% tags=["export"]
def static_reader(step: Callable[..., Tensor] = word_step) -> Reader:
    """Return what reads words as next_logits does, with a cache that has room."""

    def read(model: Transformer, words: Tensor, cache: Cache) -> Tensor:
        make_room(cache)
        x = model.embed(words.reshape(-1, 1), cache.written).view(*words.shape, -1).clone()
        place = torch.full((1,), cache.written, device=words.device)
        seen = torch.arange(cache.past[0][0].size(2), device=words.device) <= place
        for layer, past, memory in zip(decoder_layers(model), cache.past, cache.memory):
            x = step(layer, x, past, memory, cache.mask, place, seen[None, None, None])
        cache.written += 1
        return model.embedding.logits(model.decoder.norm(x))

    return read


# %%
for beam in (1, 4):
    slow, fast = (
        translate(reader, words, captions, beam, read=read)
        for read in (next_logits, static_reader())
    )
    print(f"beam {beam}: {sum(map(str.__eq__, slow, fast))} of {len(captions)} alike")

# %% [markdown]
# Compiled, it is one line more. How many programs are there? One for a batch of many sentences with many hypotheses, one for many sentences with one hypothesis each, which is how every search begins, and the two for a single sentence. That makes four, whatever the lengths, the batches and the beam.


# %% tags=["export"]
def compiled_reader(device: torch.device) -> Reader:
    """Return what reads words as next_logits does, compiled: for many sentences, on a GPU.

    Raises OSError if there is no compiler.
    """
    check_compiler(device)
    allow_graphs()
    return static_reader(torch.compile(word_step, dynamic=True))


# %% [markdown]
# A test compiles it, translates, counts four programs, and no more after other sentences with another beam. And is it faster? The benchmark of decoding lets the readers take turns on the same 256 captions, and `--compile` adds the two of this chapter:
#
# ```bash
# python benchmarks/decoding.py --model annotated_transformer/pretrained/multi30k-de-en --threads 1 --cpu-time --rounds 5 --compile
# ```


# %% tags=["nbval-ignore-output"]
first, *turns = read_log("decoding-compiled-1.jsonl")
print(f"{first['sentences']} captions on {first['device']}, {first['programs']} programs")
for search in ("greedy", "beam 4"):
    found = {}
    for turn in turns:
        if turn["search"] == search:
            found.setdefault(turn["system"], []).append(turn["seconds"])
    for name, times in found.items():
        rate, gain = first["sentences"] / median(times), zip(found["ours"], times)
        print(f"  {search}, {name:18} {rate:5.0f} a second", end="")
        print(f", x {median(a / b for a, b in gain):.2f}")
assert first["programs"] == 4

# %% [markdown]
# On this processor all three take the same time, within the noise. What it brings on a GPU we do not know. Its cost is the compiling, before the first word. So it is an option of the command line, `--compile`, and off by default.
#
# ## What a user sees
#
# All of this is behind [the command line](G_cli.ipynb), which turns on what suits the machine. Nobody has to know the levers to use them.
#
# | | a processor | one GPU | eight GPUs |
# |---|---|---|---|
# | precision | fp32, or bf16 where it is in hardware | bf16 since Ampere | the same |
# | loss | in chunks: less memory, about the same time | in chunks: room for larger batches | the same |
# | compilation | not worth it | two programs, before the first step | the same, each process for itself |
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
# 4. *Waiting for data.* If the processor is at its limit, the thread that makes batches is too slow. A prepared corpus needs next to nothing for a batch; tokenizing on the way would.
# 5. *The first minutes.* They contain compiling and warming up, and the clock of the GPU rises and falls with its temperature. Measure after them.
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
# - The logits need never exist all at once. The loss can compute its gradient on the way.
# - bf16 for products, fp32 for weights, moments, softmax and loss; and only where the hardware has it.
# - Compile a layer, with sizes as symbols, and warm up with sizes that all differ: two programs, and none later. Then try the largest batch: no surprise about memory.


# %% [markdown]
# ## Exercises
#
# 1. By hand: how many operations does one training step of the base model take for the output projection alone, with 25,000 target tokens and 37,000 entries? How long at the peak of an H200?
# 2. At which length do the attention products of the base model's encoder cost as much as its other products?
# 3. What breaks if `ChunkedLoss` did not set the states of padding to zero on the way in?
# 4. A training reaches 60,000 target tokens a second with the big model on one A100. What is its MFU?
# 5. What breaks if the clock is stopped without `wait_for` on a GPU? What would the MFU look like?


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

# 3. The table would learn from padding: its gradient gets p - q times the state of each padded place
states, table = torch.randn(3, 4), torch.randn(6, 4)
labels = torch.tensor([4, 5, PAD])
log_p = F.linear(states, table).log_softmax(-1)
wrong = smoothed_gradient(log_p, labels, 0.1).T @ states
_, _, right = pass_chunk(states, table, labels, 0.1, torch.float32)
print("the same gradient:", torch.allclose(wrong, right))

# 4. Useful operations a second over the peak; a target token comes with its source token
a_token = sum(flops(preset("big"), 28, 28).values()) / 28
print(f"MFU {mfu(a_token * 60_000, 1, PEAKS['A100']):.0%}")

# 5. Only the asking is timed, and the work overlaps with what comes after: an MFU far above 100 %
print(
    f"{mfu(1.2e12, 0.0005, PEAKS['H200']):.0%} if a step of 1.2e12 operations is asked for in 0.5 ms"
)
