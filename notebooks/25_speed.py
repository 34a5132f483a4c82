# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", ".", "..", "../..") if os.path.exists(r + "/book/map.svg")]
os.chdir(up[0] + "/notebooks" if up else sys.exit(f"Open this in a clone of {url}"))
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown] needs=["multi30k"]
# # Speed
#
# The cost of a training step, counted in operations and in bytes, and three ways to lower it on a GPU: the loss in chunks, products in 16 bits, compiled layers (section 5.2 of the paper).
#
# The paper trained its base model for 12 hours on eight GPUs. How long would one GPU of today take?
#
# $$ \text{seconds} = \frac{\text{operations of the training}}{\text{peak of the GPU} \cdot \text{MFU}}. $$ (eq-hours)
#
# The operations can be counted exactly. The peak is on the data sheet of the GPU. MFU is the share of that peak which a training run really gets; for this model a third is good, and most of the chapter is about where the rest goes. Here is what it builds, with the answer:
#
# ```python
# plan = estimate(preset("base"), TrainingConfig(steps=100_000, max_tokens=25_000), lengths, "bf16")
# plan.flops                          # 9.5e17 operations
# plan.hours(peak=989e12, mfu=0.2)    # 1.3 hours on one H200, if it reaches a fifth of its peak
#
# train(model, tokenizer, pairs, loss=FastLoss(model, precision="bf16"))    # same loss, less memory
# ```
#
# Most measurements are from a CPU; [an H200](#on-a-gpu) has a section of its own.


# %% tags=["export"]
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.transformer import Transformer, TransformerConfig


# %% tags=["hide-input"]
import json
import math
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

from annotated_transformer import Tokenizer, preset
from annotated_transformer.attention import attention
from annotated_transformer.batching import batches, encode_pairs, plan_batches
from annotated_transformer.toolkit.downloads import multi30k
from annotated_transformer.toolkit.planning import activations, estimate
from annotated_transformer.toolkit.presets import parameter_count
from annotated_transformer.training import Hyperparameters, group_batches, training_step
from book.example import W_K, W_Q, W_V, WORDS, X
from book.figures import INK, POSITION, RESIDUAL, style


# %% [markdown]
# ## Which part of the model does the work
#
# Nearly all the work is matrix products. [The chapter on the model](10_transformer.ipynb#six-operations-per-weight) counts six operations for each weight of a matrix and each token that meets it: a multiplication and an addition in the forward pass, twice that in the backward pass. It remains to say which tokens meet which matrix. With $w = H (d_k + d_v)$, which is $2d$ in most presets, a sentence pair of $S$ and $T$ positions takes
#
# $$ 6 \, \big[ \, L \, (3 d w + 2 d \, d_\text{ff}) (S + T) + L \, w \, (S^2 + T^2 + S T) + d \, |V| \, T \, \big] $$ (eq-operations)
#
# operations. The first term holds the projections of attention, $2dw$ weights each, and the feed-forward networks. (The decoder attends twice, but one of its projections to keys and values is made at the source's positions: $3dw$ on either side.) The second holds the products of queries with keys and of weights with values: they have no parameters, and they grow with the *pairs* of positions. The last is the output projection.


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
        "attention projections": 3 * layers * d * width * (s + t),
        "attention products": layers * width * (s * s + t * t + s * t),
        "feed-forward": 2 * layers * d * config.d_ff * (s + t),
        "output projection": d * config.vocabulary_size * t,
    }
    return {
        block: 3 * 2 * float(numbers.sum())
        for block, numbers in multiplications.items()
    }


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-operations", "caption": "Which part of the model does the work? Share of the training operations, for sentences of 28 tokens on either side and 37,000 entries in the vocabulary. The attention products, the part that grows with the square of the length, are the thin bar after the projections."}, "image": {"alt": "In the base model the projections of attention take 30 percent, the feed-forward networks 40, the output projection 30; in the big model 35, 47 and 18. Attention products take less than 1 percent."}}
style()
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
looks = [("//", INK), ("", POSITION), ("", INK), ("..", RESIDUAL)]
for row, name in enumerate(("base", "big")):
    counts, left = flops(preset(name), 28, 28), 0.0
    for (block, number), (hatch, color) in zip(counts.items(), looks):
        share = 100 * number / sum(counts.values())
        label = block if row == 0 else None
        axes.barh(
            row, share, left=left, fc="none", ec=color, hatch=hatch, lw=1.4, label=label
        )
        if share > 4:
            ground = {"fc": "white", "ec": "none", "pad": 1}
            middle = left + share / 2
            axes.text(
                middle, row, f"{share:.0f}%", ha="center", va="center", bbox=ground
            )
        left += share
axes.set(yticks=(0, 1), yticklabels=("base", "big"), xlim=(0, 100))
axes.set_xlabel("share of the operations in %")
axes.invert_yaxis()
axes.grid(False)
figure.legend(loc="outside lower center", ncols=4, fontsize=8)
plt.show()


# %% [markdown]
# The output projection is a single matrix, and it takes 30% of the base model's work. The attention products, for which attention is famous, take less than one percent.
#
# That changes with the length. In an encoder layer, each position costs $w S = 1{,}024 \, S$ multiplications in the products and 3.1 million in everything else. Of all the work that is 1% at 28 tokens, 8% at 256, a quarter at 1,024 and half at 3,072.
#
# Is the formula right? PyTorch has a counter of its own. It watches a small model whose $d_k$ and $d_v$ differ.


# %%
odd = TransformerConfig(
    vocabulary_size=50, layers=2, d_model=32, d_ff=48, heads=4, d_k=6, d_v=10
)
torch.manual_seed(0)
model = Transformer(odd)
with (
    FlopCounterMode(display=False) as counter,
    sdpa_kernel(SDPBackend.MATH),  # the fused kernel computes some products twice
):
    SmoothedLoss(model)(torch.full((3, 11), 5), torch.full((3, 8), 5)).backward()
ours = sum(flops(odd, [11] * 3, [7] * 3).values())
print(f"{ours:,.0f} by the formula, {counter.get_total_flops():,} counted")

# %% tags=["remove-cell"]
assert ours == counter.get_total_flops()

# %%
for name, steps in (("base", 100_000), ("big", 300_000)):
    counts = flops(preset(name), 28, 28)
    a_pair = sum(counts.values()) / 28
    share = counts["attention products"] / (28 * a_pair)
    print(
        f"{name}: {a_pair / 1e9:.2f} GFLOP a pair of tokens, {share:.1%} attention products",
        end="",
    )
    print(f"; the paper's run: {a_pair * 25_000 * steps:.1e}")


# %% [markdown]
# Equal to the last operation. (A pair of tokens is one of the source with one of the target.) The paper's base model takes about $10^{18}$ operations and its big one ten times as many.
#
# ## The speed of the machine
#
# A machine's **peak** is the number of operations a second that it does at best. For a GPU it's in the data sheet: 312 · 10¹² for an A100, 989 · 10¹² for an H100 (SXM) or H200, 165 · 10¹² for an RTX 4090. These are for dense products in bf16, [a 16-bit format](#numbers-of-16-bits); a number "with sparsity", twice as large, is for matrices half of whose entries are zero.
#
# A CPU has no such sheet, so we measure one large product, the best of five rounds: other programs can make a round slower but never faster. On a GPU, beware of the clock. The program requests a product in microseconds, and the GPU computes it later: if you don't wait, you've timed the request. PyTorch's `Timer` waits.


# %% tags=["nbval-ignore-output"]
from annotated_transformer.toolkit.planning import measured_peak

measured = measured_peak(torch.device("cpu"))
print(f"this machine, one product of 1,024 by 1,024: {measured / 1e9:.0f} GFLOP/s")

# %% [markdown]
# With a peak, training runs on different machines can be compared. **Model FLOPs utilization** or **MFU** ({cite:t}`chowdhery2023palm`) is the share of it that *useful* operations take:
#
# $$ \text{MFU} = \frac{\text{operations of the model, without padding}}{\text{seconds} \cdot \text{peak}}. $$ (eq-mfu)
#
# Useful means counted by {eq}`eq-operations` for the real lengths of the sentences: no padding, and nothing twice.
#
# NVIDIA's training of the big model reports 82,059 tokens a second on one A100 and 551,599 on eight ([DeepLearningExamples](https://github.com/NVIDIA/DeepLearningExamples/blob/d666f14553125df590224ac11f12ba43fffbf1dc/PyTorch/Translation/Transformer/README.md)). At our 1.29 GFLOP a token, if target tokens are meant, that is an MFU of 34% and 29%. We plan with 20%; this book's code [has](#on-a-gpu) 14% with `base`, 28% with `big`.
#
# ### A GPU that is 100% busy
#
# What `nvidia-smi` prints as utilization is the share of time in which *some* kernel (a program that does one operation on the GPU) was running. A kernel that copies one number counts in full: 100% may be an MFU of 3%.
#
# ## Where the time of a step goes
#
# We take the `small` model, captions and one thread, and count the CPU's own time. The model's shape is `config`; `corpus` holds 6,000 captions and `few` three batches of them.


# %% tags=["hide-input"]
torch.set_num_threads(1)
pairs = multi30k("train")[:6000]
tokenizer = Tokenizer.train(pairs, vocabulary_size=8000)
corpus = encode_pairs(tokenizer, pairs)
config = preset("small", vocabulary_size=len(tokenizer))
plan = plan_batches(corpus.lengths, max_tokens=512, seed=0, epoch=0)
few = list(islice(batches(corpus, 512, seed=0, epoch=0), 3))
print(len(plan), "batches; the first:", *(tuple(side.shape) for side in few[0]))


def make_adam(model):
    return torch.optim.Adam(
        model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )


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
(first,) = group_batches(few[:1], 1)
useful = sum(flops(config, *corpus.lengths[plan[0]].T).values())
took = seconds(lambda: training_step(loss, first, adam))
peak = measured_peak(torch.device("cpu"))
print(
    f"{useful / 1e9:.0f} GFLOP in {took:.2f} s; the peak is {peak / 1e9:.0f} GFLOP/s",
    end="",
)
print(f"; MFU {useful / took / peak:.0%}")

# %% tags=["remove-cell"]
assert 0.05 < useful / took / peak < 5  # above 1 only if others keep the machine busy

# %% [markdown]
# A CPU's MFU is high, because its products are slow and everything else keeps up. What does a step do *beside* products? PyTorch's profiler times each kernel. (On a GPU, add `ProfilerActivity.CUDA`; `export_chrome_trace` writes a timeline for the browser.)


# %% tags=["hide-input", "nbval-ignore-output", "remove-stderr"] mystnb={"figure": {"name": "fig-kernels", "caption": "What does a step do beside matrix products? Share of the time of one training step by kind of kernel, from the profiler: the small model on captions, one thread of a processor. On a GPU the products shrink most, and the bars below them become what counts."}, "image": {"alt": "Matrix products take more than half of the time on a processor. Dropout, loss, the optimizer, normalization and attention take a few percent each, and many small kernels the rest."}}
groups = {
    "matrix products": ("mm", "addmm", "bmm", "linear"),
    "attention kernel": ("scaled_dot_product", "flash_attention"),
    "optimizer": ("_fused_adam", "adam"),
    "normalization": ("layer_norm",),
    "dropout": ("bernoulli", "dropout", "div_"),
    "loss, softmax": ("log_softmax", "exp_", "gather", "scatter", "mean", "sub_"),
    "the rest": ("",),
}
with profile(activities=[ProfilerActivity.CPU]) as watched:
    training_step(loss, first, adam)
times = dict.fromkeys(groups, 0.0)
for event in watched.key_averages():
    name = next(
        g for g, parts in groups.items() if any(part in event.key for part in parts)
    )
    times[name] += event.self_cpu_time_total
shares = {name: 100 * value / sum(times.values()) for name, value in times.items()}
figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
bars = axes.barh(list(shares), list(shares.values()), fc="none", ec=INK, lw=1.4)
axes.bar_label(bars, fmt="%.0f %%", padding=3)
axes.set(xlim=(0, 100), xlabel="share of the time of a step in %")
axes.invert_yaxis()
axes.grid(False)
plt.show()
assert shares["matrix products"] > 30


# %% [markdown]
# ### When a GPU waits for the program
#
# A step of the base model hands the GPU about 800 operations, in 16 bits 1,200 ([counted in the next chapter](26_distributed.ipynb#how-fast-it-can-be)), and the program needs 5 to 10 microseconds to hand over each, however small it is; in the virtual machine [below](#on-a-gpu) it's 40. If the GPU works longer than that on each, a queue builds up and it never pauses. If not, it waits for the next one: the number of operations decides, and neither the batch nor the peak matters. Such a step is **launch-bound**.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-launches", "caption": "When does a GPU wait for the program? Eight operations, each of which takes the program 5 microseconds to hand over. Above, an operation keeps the GPU busy for 9 microseconds: a queue builds up, and the GPU never pauses. Below, it is done in 2, and the GPU idles three fifths of the time. The numbers are made up."}, "image": {"alt": "Two timelines. With long operations the blocks of the GPU follow each other without a gap; with short ones each stands alone after the program has handed it over."}}
figure, axes = plt.subplots(2, 1, figsize=(7.4, 3.2), sharex=True, layout="constrained")
for axis, work in zip(axes, (9, 2)):
    free = 0
    for call in range(8):
        free = max(free, 5 * call + 5)
        axis.broken_barh([(5 * call, 5)], (1.1, 0.8), fc="none", ec=RESIDUAL, lw=1.4)
        axis.broken_barh(
            [(free, work)], (0.1, 0.8), fc="none", ec=INK, lw=1.4, hatch="//"
        )
        free += work
    axis.set(
        xlim=(0, 80), ylim=(0, 2), yticks=(0.5, 1.5), yticklabels=("GPU", "program")
    )
    axis.set_title(
        f"an operation takes the GPU {work} microseconds", fontsize=10, loc="left"
    )
    axis.grid(False)
axes[1].set_xlabel("microseconds")
plt.show()


# %% [markdown]
# Such a step gains nothing from faster operations. Larger batches help, and so does compilation, which merges several operations into one. To find out which case you have, double the batch: if the step takes no longer, it was launch-bound.
#
# The standard cure is a **CUDA graph**: the driver records all launches of a step once, and the GPU replays them on a single request. A recording fits only inputs of the same shape, at the same place in memory. `torch.compile(..., mode="reduce-overhead")` makes one for each shape. Our training would have to round its lengths to a few widths, so the package doesn't use them.
#
# ## One lever at a time
#
# Three levers are already in this book's training: [batches of similar lengths](15_batching.ipynb#the-cost-of-padding), Adam in one pass over memory (`fused=True`), and attention in one kernel. Three more are famous. *One product for queries, keys and values*: three matrices joined into one. *The causal kernel* makes the decoder's mask itself (`is_causal`), which suffices because padding stands on the right and isn't scored. *Additive masks*: zeros and minus infinities, made once a step instead of in each attention.
#
# All train on the same sentences, in turns. A gain is the median of the ratios to our plain step in the same round. The logs are of an earlier version of this code:
#
# ```bash
# python -m benchmarks.speed.step_speed --preset small --threads 1 --cpu-time --rounds 7 --batches 4 --max-tokens 512
# python -m benchmarks.speed.step_speed --preset base --threads 1 --cpu-time --rounds 5 --batches 2 --max-tokens 256
# ```


# %% tags=["hide-input"]
def read_log(name):
    path, site = (
        f"benchmarks/results/{name}",
        "github.com/annotated-transformer/annotated-transformer",
    )
    here = Path("..", path)
    text = (
        here.read_text()
        if here.exists()
        else urlopen(f"https://{site}/raw/main/{path}").read()
    )
    settings, *turns = map(json.loads, text.splitlines())
    rates = {}
    for turn in turns:
        rates.setdefault(turn["system"], {})[turn["round"]] = (
            turn["tokens"] / turn["seconds"]
        )
    return settings, rates


def gains(rates):
    """Speed of each system, relative to the plain step in the same round."""
    plain = rates["this book's step"]
    return {
        name: median(found[r] / plain[r] for r in found)
        for name, found in rates.items()
    }


measured = {}
for name in ("small", "base"):
    settings, rates = read_log(f"speed-{name}-cpu-1.jsonl")
    measured[name] = gains(rates)
    plain = median(rates["this book's step"].values())
    share = plain * settings["operations_per_token"] / settings["peak"]
    print(
        f"{name}: the plain step trains {plain:,.0f} tokens a second, MFU {share:.0%}"
    )
small, base = measured.values()
print(f"{'speed, relative to it':24} small  base")
for name in sorted(small, key=small.get):
    print(f"  {name:24} {small[name]:.2f}  {base[name]:.2f}")
assert small["without: sorted lengths"] < 0.75 and base["without: fused Adam"] < 0.93
others = ("causal kernel", "additive masks", "Q, K, V in one product")
assert all(0.99 < small[name] < 1.01 < base[name] < 1.05 for name in others)

# %% [markdown]
# **Sorted lengths** count on any machine. With 32 random sentences a batch, the small model trains a quarter fewer useful tokens a second and the base model almost a third. **Fused Adam** is worth three percent to the small one. The base model's eight are less than its rounds scatter.
#
# The others can't be told from noise: on the base model their medians lie two to four percent higher, and so does that of turning *off* the attention kernel, which should hurt. They hardly touch the matrix products, so they stay out of the package.
#
# ## Attention without the matrix
#
# FlashAttention ({cite:t}`dao2022flashattention`) made attention on GPUs several times as fast without saving a single operation. It saves bytes.
#
# Written as in [chapter 3](03_attention.ipynb#the-code), attention writes $S^2$ scores to memory, reads them for the softmax, writes $S^2$ weights and reads these for the product with the values. In 16 bits that's 8 bytes moved for each pair of positions, and $4 d_k = 256$ operations: 32 for each byte. An H200 does 989 · 10¹² operations in the time in which it moves 4.8 · 10¹² bytes, some 200 for each. In the small, fast memory on the chip, scores and weights would cost almost nothing to move. But softmax seems to need a whole row, and long rows don't fit.
#
# It doesn't. {cite:t}`milakov2018online` compute maximum and sum in one pass over the row, and attention can be added to the pass. It takes three running values: the maximum $m$ so far, the sum $\ell$ of exponentials relative to it, and the sum $o$ of values with these weights. When a block with scores $s_j$ brings a larger maximum $m'$, what has been summed so far was too large by one common factor:
#
# $$ \ell \leftarrow e^{m - m'} \ell + \sum_j e^{s_j - m'}, \qquad o \leftarrow e^{m - m'} o + \sum_j e^{s_j - m'} v_j, \qquad m \leftarrow m'. $$ (eq-online-softmax)
#
# At the end, $o / \ell$ is the output of attention. Here is the row of *likes*, two keys at a time:


# %%
from book.example import W_K, W_Q, W_V, WORDS, X

scores, values = X[WORDS.index("likes")] @ W_Q @ (X @ W_K).T / 2, X @ W_V
m, total, out = -math.inf, 0.0, torch.zeros(3, dtype=X.dtype)
for start in range(0, len(WORDS), 2):
    block = scores[start : start + 2]
    larger = max(m, block.max().item())
    weights, rescale = (block - larger).exp(), math.exp(m - larger)
    total = rescale * total + weights.sum().item()
    out = rescale * out + weights @ values[start : start + 2]
    m = larger
    read, shown = (
        " ".join(WORDS[: start + 2]),
        [f"{x:.2f}" for x in (out / total).tolist()],
    )
    print(f"after {read:28} m {m:.2f}  sum {total:.2f}  output {shown}")

# %% tags=["remove-cell"]
assert (out / total - scores.softmax(dim=0) @ values).abs().max() < 1e-15

# %% [markdown]
# When *cat* comes, the two earlier words shrink by $e^{-3}$. The last line is [the result of chapter 3](03_attention.ipynb#from-scores-to-weights), equal to the plain softmax to $10^{-15}$. FlashAttention does this for many rows at a time, block by block on the chip. For the backward pass it keeps $m$ and $\ell$ of each row and *recomputes* the weights: more operations, and still faster, because fewer bytes move. The memory no longer grows with the square of the length. We can ask autograd what each form keeps:


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
    print(f"{S:5} positions: readable {readable:5.2f} MB, fused {fused:5.2f} MB")

# %% tags=["remove-cell"]
assert readable > 4 * fused

# %% [markdown]
# ### Does this training use FlashAttention?
#
# On a GPU, no. `scaled_dot_product_attention` chooses among several kernels, and its FlashAttention kernel for CUDA refuses an explicit mask (in PyTorch 2.13: "Flash Attention does not support non-null attn_mask"). We always pass one, so another fused kernel does the work.
#
# On an H100 or H200, in 16 bits, that would be cuDNN's, and a trap: it prepares a program [for each new length](https://github.com/pytorch/pytorch/pull/155958), and nearly every batch of ours has one. `base` began at a quarter of its speed. So [the fast loss](#the-fast-loss) takes cuDNN off the list. (A model that you translate with in 16 bits on such a GPU wants the same: `torch.backends.cuda.enable_cudnn_sdp(False)`.) The memory-efficient kernel, which works in blocks, too, takes any length. At ours it is also the faster one: in the decoder's self-attention, which can do without a mask, FlashAttention's took 7.2 ms of a step and this one 3.4.
#
# ## The loss without the logits
#
# The largest tensor of a step holds the logits. At the paper's batch it has $25{,}000 \cdot 37{,}000$ numbers, 3.7 GB in fp32, and gradients take twice that again. But the loss is a sum over positions. We can take a thousand positions, compute their logits, their loss *and their gradient*, add these up, and forget the logits before the next thousand.
#
# The gradient can come before the backward pass because the loss is the end of the computation. We cut the graph in front of the output projection, and each chunk calls `backward` from its loss down to the cut.
#
# :::{admonition} For a second reading: how the gradient gets past the cut
# :class: dropdown
# States and embedding matrix are detached, so the rest of the model hears nothing of these backward passes. But the gradient of $\sum_i g_i h_i$ with respect to $h$ is $g$. We add this sum to the loss once, and subtract it once without a gradient: the value stays, and the gradient is the one we know. A later factor, such as one over the number of tokens, multiplies both.
# :::
#
# **Label smoothing needs no logits.** The smoothed loss of a position with logits $z$ and label $y$ ([chapter 17](17_regularization.ipynb#why-smooth-the-labels)) is
#
# $$ \log \sum_v e^{z_v} - (1 - \epsilon) \, z_y - \epsilon \, \bar z = \underbrace{\log \sum_v e^{z_v} - z_y}_{\text{hard label}} + \; \epsilon \, (z_y - \bar z). $$ (eq-smoothing-apart)
#
# Since logits are linear in the state $h$, the second part is $\epsilon \, h \cdot (E_y - \bar E)$, with the row $E_y$ of the embedding matrix and the mean $\bar E$ of its rows.


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


# %% [markdown]
# Are value and gradients those of the readable loss, with five positions a chunk and some padding, and the memory smaller?


# %% tags=["hide-input", "nbval-ignore-output"]
def all_logits(states, table, labels):
    return label_smoothed_loss(F.linear(states, table), labels)


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
assert max(apart) < 1e-10

# %% [markdown]
# The readable loss keeps 33 MB of log-probabilities beside states and matrix, the chunked one only gradients for these two. At the paper's batch that's 3.8 GB against 0.2 GB, plus 0.5 GB for one chunk's logits: room for a larger batch. (PyTorch 2.13 has the idea as `F.linear_cross_entropy` with `LinearCrossEntropyOptions()`, but with label smoothing it falls back to all logits, with a warning.)
#
# ## Numbers of 16 bits
#
# On an A100, products in 16 bits have sixteen times the peak of those in 32: 312 · 10¹² operations a second against 19.5 · 10¹². (TF32, which rounds the factors of an fp32 product to 10 bits of fraction, has 156 · 10¹²; in PyTorch it's off for matrix products unless you ask.) There are two formats. The exponent says how large a number is, the fraction what it is exactly.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-bits", "caption": "What does a number of 16 bits give up? The bits of three formats: sign (s), exponent (e), fraction (f). bf16 is fp32 with the last 16 bits cut off: the same range, up to 3.4e38, and a fraction of 7 bits, so that neighboring numbers differ by 0.4 to 0.8 percent. fp16 keeps 10 bits of the fraction and ends at 65,504; its smallest normal number is 6.1e-5."}, "image": {"alt": "Three rows of boxes. fp32 has 1 sign bit, 8 exponent bits and 23 fraction bits; bf16 has 1, 8 and 7, which line up with the first 16 of fp32; fp16 has 1, 5 and 10."}}
figure, axes = plt.subplots(figsize=(7.6, 1.9), layout="constrained")
formats = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10)}
for row, (exponent, fraction) in enumerate(formats.values()):
    for place, letter in enumerate("s" + "e" * exponent + "f" * fraction):
        color, _ = {"s": (INK, ""), "e": (POSITION, ""), "f": (RESIDUAL, "")}[letter]
        axes.broken_barh([(place, 0.9)], (row, 0.75), fc="none", ec=color, lw=1.3)
        axes.text(
            place + 0.45, row + 0.36, letter, color=color, ha="center", va="center"
        )
axes.set(xlim=(-0.2, 32), ylim=(2.9, -0.1), xticks=(), yticks=(0.4, 1.4, 2.4))
axes.set_yticklabels(formats)
axes.grid(False)
axes.spines[:].set_visible(False)
plt.show()


# %%
numbers = torch.tensor([1e-8, 1e6, 1.001])
print("fp16:", [f"{number:.4g}" for number in numbers.half().tolist()])
print("bf16:", [f"{number:.4g}" for number in numbers.bfloat16().tolist()])


# %% [markdown]
# In training, range counts. Many gradients are smaller than fp16's smallest number and become zero, unless the loss is multiplied by a factor that has to be adapted all the time. bf16 has the range of fp32, so there's nothing to adapt. It pays in exactness: each number is off by up to 0.4%, which a sum of thousands hardly notices.
#
# The third number shows where bf16 must *not* be used. An update changes a weight by a thousandth of its size, and in bf16 $1 + 0.001$ is $1$. Weights and Adam's [two averages](16_schedule.ipynb#what-adam-does-with-the-rate), its *moments*, therefore stay in fp32, and `torch.autocast` makes a narrow copy of the weights for the products. It computes linear maps and attention in bf16, and keeps normalization and the sums of softmax and loss in fp32.
#
# On a GPU without units for bf16, PyTorch emulates it, slowly. So [the package asks](P_planning.ipynb#what-the-machine-can-do) with an option that rules this out. A CPU gets fp32 unless you ask for bf16, since few have units for it. With them it gains, too: the [everyday models](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/everyday-de-en/README.md) were trained that way.


# %% [markdown]
# ## The fast loss
#
# Both come together in a class that's called like [`SmoothedLoss`](17_regularization.ipynb#the-loss-as-a-module) and returns the same number. It is also the one place that chooses among PyTorch's attention kernels. It has no weights of its own, and dropout draws the same numbers in the same order, so a run may change from one to the other.


# %% tags=["export"]
Precision = Literal["fp32", "bf16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class FastLoss(SmoothedLoss):
    """The same loss in chunks, and with "bf16" with products in 16 bits."""

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float = 0.1,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__(model, label_smoothing)
        if precision not in DTYPES:
            raise ValueError(
                f"precision={precision!r} must be one of {', '.join(DTYPES)}"
            )
        self.precision = precision

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
            )


# %% tags=["hide-input", "nbval-ignore-output"]
torch.manual_seed(0)
model = Transformer(config).eval()  # without dropout
results, errors = {}, {}
for name, loss in (
    ("readable", SmoothedLoss(model)),
    ("fast", FastLoss(model)),
    ("fast, bf16", FastLoss(model, precision="bf16")),
):
    model.zero_grad()
    value = loss(*few[1])
    value.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    results[name] = value.item(), gradient
    exact, whole = results["readable"]
    apart = ((gradient - whole).norm() / whole.norm()).item()
    errors[name] = abs(value.item() / exact - 1), apart
    print(f"{name:10} loss {value:.2f}, {value / exact - 1:+.4%};", end=" ")
    print(f"gradient differs by {apart:.2%}")


# %% tags=["remove-cell"]
for name, (of_loss, of_gradient) in errors.items():
    assert of_loss < 0.005 and of_gradient < (0.05 if "bf16" in name else 1e-3)


# %% [markdown]
# In 16 bits each product is rounded, so loss and gradient differ a little. And the time, taking turns?


# %% tags=["nbval-ignore-output"]
adam, losses = make_adam(model), (SmoothedLoss(model), FastLoss(model))
(three,) = group_batches(few, 3)
rounds = [
    [seconds(lambda: training_step(loss, three, adam), times=1) for loss in losses]
    for _ in range(3)
]
gain = median(slow / fast for slow, fast in rounds)
print(f"on this CPU the fast loss trains x {gain:.2f} as fast as the readable one")


# %% [markdown]
# In single precision the two are within a few percent on a CPU, and the chunks only save memory.
#
# ### Beside other Transformers
#
# Three systems learn the same captions by turns, on two threads of an AMD EPYC: this book's model, `torch.nn.Transformer`, and Hugging Face's `MarianMTModel`, all of one shape: `base`, or 3 + 3 layers of width 256 (`small`, 8 heads) or 192 (`mini`). How many times as fast is ours? The table gives the median of five or seven turns and, in brackets, the lowest and the highest ratio.
#
# ```bash
# python -m benchmarks.speed.training_speed --size base --threads 2 --precision fp32
# ```

# %% tags=["hide-input"]
print(f"{'':12}tokens/s  nn.Transformer      MarianMTModel")
for precision, ending in (("fp32", ""), ("bf16", "-bf16")):
    for size in ("mini", "small", "base"):
        _, rates = read_log(f"training-{size}-2{ending}.jsonl")
        ours, *others = (
            rates[s] for s in ("ours", "torch.nn.Transformer", "MarianMTModel")
        )
        line = f"{size:6} {precision} {median(ours.values()):8,.0f}"
        for other in others:
            times = [ours[turn] / other[turn] for turn in other]
            line += f"  {median(times):.2f} ({min(times):.2f}, {max(times):.2f})"
            assert median(times) > 1.25
        print(line)

# %% [markdown]
# The measurements are of an earlier commit, 688ad9e, which on AMD's processors with AVX-512 took its products from oneDNN in place of MKL. The package leaves that choice to PyTorch now. Without oneDNN's products the lead in single precision was 8 to 21% on the same machine; on an Intel processor nothing has changed. In bf16 it comes from attention: the fused kernel that the other two call has a slow backward pass on a CPU, so ours takes plain products there.
#
# ## Compiling a layer
#
# A layer is a few dozen operations, each of which reads from memory and writes back. `torch.compile` watches a function run once and writes a program for it, in which neighbors such as addition, dropout and normalization become one loop, and on a GPU one launch.
#
# **What to compile?** The whole model would be a program with twelve layers written out. Compile each *layer* in place instead, and the six of a stack share one program.
#
# **For which sizes?** Our batches come in many. With `dynamic=False` each new shape means new programs, one for each kind of layer. With `dynamic=True` the sizes of a batch are variables, while the widths of the model stay numbers. The benchmark compared the two on eleven shapes (`--compile`):


# %% tags=["hide-input"]
settings, rates = read_log("speed-small-cpu-1-compile.jsonl")
for name, note in settings["compiled"].items():
    print(
        f"{name:24} {note['programs']:2} programs in {note['seconds']:3.0f} s", end=""
    )
    print(f", then {gains(rates)[name]:.2f} times the speed of plain layers")
assert (
    settings["compiled"]["compiled"]["programs"] == 2 and gains(rates)["compiled"] < 0.9
)


# %% [markdown]
# Two programs do for all eleven shapes. On this CPU both are slower than plain layers, by about a fifth. Compilation is off unless you say `--compile`.
#
# :::{admonition} For a second reading: sizes of 1, and a limit that hides
# :class: dropdown
# Two programs do for *nearly* every batch. A size of 1 is always taken literally, two sizes that happen to be equal get the same symbol, and validation, without dropout and gradients, needs programs of its own. A test counts 24 at most. But Dynamo, the part of PyTorch that watches, gives up after eight versions of a function and runs it plainly from then on, so `compile_layers` raises that limit. It also tries the compiler on one addition first: a missing one should show before a run begins.
# :::


# %% tags=["export"]
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
# ## On a GPU
#
# One command measures what this chapter computes. On an H200, with PyTorch 2.11; below *big*, each row is *base* with one change:
#
# ```bash
# python -m benchmarks.speed.gpu --peak 989e12
# ```


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-gpu", "caption": "Where does the time of a step go on an H200? Left: share of the kernels' time in two training steps of base and of big with short sentences, in bf16, 25,000 positions a side; compare the share of the operations above. Right: milliseconds of a step of base, by the size of the batch (filled), and how long kernels ran in two other steps (hollow). Up to 12,500 positions the GPU waits most of the time."}, "image": {"alt": "Left, matrix products take 25 percent of the kernels' time in base and 36 in big, attention 19, casts and copies 18 and 14. Right, a step takes some 62 to 67 milliseconds up to 25,000 positions, though kernels run in only 10 to 53 of them; beyond, both grow together."}}
def gpu_log(ending=""):
    text = Path(f"../benchmarks/results/gpu-NVIDIA-H200{ending}.jsonl").read_text()
    settings, *lines = map(json.loads, text.splitlines())
    return settings, {line["name"]: line for line in lines}


def step_ms(line):
    return 1e3 * median(line["seconds"]) / updates


settings, gpu = gpu_log()
updates = settings["scale"]["updates"]
names = {
    "products": "matrix products",
    "copies and numbers of 16 bits": "casts and copies",
}
named = ("products", "attention", "copies and numbers of 16 bits", "loss")
looks = [("//", INK), ("", POSITION), ("..", RESIDUAL), ("xx", INK), ("", INK)]
figure, (bars, axis) = plt.subplots(
    1, 2, figsize=(8.8, 3), layout="constrained", width_ratios=(3, 2)
)
for row, name in enumerate(("base", "big")):
    kernels, left = gpu[name]["kernels"], 0.0
    parts = {names.get(kind, kind): kernels[kind] for kind in named}
    parts["everything else"] = sum(kernels.values()) - sum(parts.values())
    for (kind, ms), (hatch, color) in zip(parts.items(), looks):
        share, label = 100 * ms / sum(kernels.values()), kind if row == 0 else None
        bars.barh(
            row, share, left=left, fc="none", ec=color, hatch=hatch, lw=1.4, label=label
        )
        ground, middle = {"fc": "white", "ec": "none", "pad": 1}, left + share / 2
        bars.text(middle, row, f"{share:.0f}", ha="center", va="center", bbox=ground)
        left += share
bars.set(yticks=(0, 1), yticklabels=("base", "big"), xlim=(0, 100))
bars.set_xlabel("share of the kernels' time in %")
bars.invert_yaxis()
sizes = {
    line["max_tokens"]: line
    for name, line in gpu.items()
    if " tokens" in name or name == "base"
}
sizes = dict(sorted(sizes.items()))
axis.plot([*sizes], [*map(step_ms, sizes.values())], "o-", color=INK, lw=1.2)
busy = [sum(line["kernels"].values()) for line in sizes.values()]
axis.plot([*sizes], busy, "o--", color=RESIDUAL, mfc="white", lw=1.2)
axis.set(xscale="log", xticks=[*sizes], ylim=(0, 200), ylabel="ms a step")
axis.set_xticklabels([f"{size / 1000:.0f}" for size in sizes])
axis.minorticks_off()
axis.set_xlabel("thousands of positions a side")
for each in (bars, axis):
    each.grid(False)
figure.legend(loc="outside lower center", ncols=5, fontsize=8)
plt.show()


# %% tags=["hide-input"]
print(f"{'':26}tokens/s (lowest, highest)    MFU  kernels ms   GB  planned")
for name, line in gpu.items():
    if "mfu" in line:
        rates = [tokens / took for tokens, took in zip(line["tokens"], line["seconds"])]
        print(
            f"{name:24} {median(rates):8,.0f} ({min(rates):7,.0f}, {max(rates):7,.0f})"
            f"  {line['mfu']:6.1%}  {sum(line['kernels'].values()):9.1f}"
            f"  {line['gigabytes']:5.1f}  {line['planned_gigabytes']:5.1f}"
        )
for name, steps in (("base", 100_000), ("big", 300_000)):
    tokens = steps * sum(gpu[name]["tokens"]) / len(gpu[name]["tokens"]) / updates
    hours = tokens / gpu[name]["tokens_per_second"] / 3600
    print(f"the paper's {steps:,} steps of {name}: {hours:.1f} hours at this rate")
for name, line in gpu_log("-first")[1].items():
    if name in ("base", "big", "base, compiled", "big, compiled"):
        print(f"first log, {name}: kernels {sum(line['kernels'].values()):.1f} ms")
long = gpu["5,000 steps of base"]
print(
    f"{long['progress'][-1]['step']:,} steps: loss from {long['first_loss']:.1f} to ",
    end="",
)
print(f"{long['last_loss']:.1f}, largest gradient {long['largest_gradient']:.1f}")


# %% [markdown]
# - **We hoped for an MFU of 30% and 45%; `base` has 14 and `big` 28.** The profile says why: matrix products take a quarter of the kernels' time in base, over a third in big. With attention, loss and Adam alone they would come to some 33% and 47%; casts between 32 and 16 bits and sums take the rest.
# - **This machine hands over slowly**: 62 ms for the 1,389 kernels of the smallest step, and five sixths of that the GPU waits. From 50,000 positions on it hardly does.
# - **Three levers count**: of 344,471 tokens a second, 74,364 are left without sorted lengths, 87,741 with cuDNN's attention (in the first 30 steps), 95,140 in fp32. Reading ahead brings a third. Most others differ less than the rounds.
# - **Chunks** save 10 GB and cost 4 ms a step: 18.9 against 15.1 for the loss with all logits.
# - **Memory** was 0 to 11% above the plan in bf16, 7% below in fp32.
# - 3,003 sentences, with random weights, take 2.0 s greedily and 3.0 s with a beam of 4. With batches of 6,250 and the paper's rate, training was stable for 2,200 steps; 5,000 were planned, and time was up.
# - Two processes on one GPU make the updates of one, through gloo; NCCL 2.28 refuses a shared GPU.
#
# **Compiled layers** ran only in [a first log](https://github.com/annotated-transformer/annotated-transformer/blob/main/benchmarks/results/gpu-NVIDIA-H200-first.jsonl), with attention still cuDNN's. Kernels took a tenth less time, compiling the best part of a minute. With the loss compiled, the profiled kernels would come to 18% and 30%. Not measured: `linear_cross_entropy`, several GPUs.


# %% [markdown]
# ## Memory and hours before a run
#
# Besides operations, a run needs memory. Weights, gradients and Adam's two moments take 16 bytes a parameter, and in bf16 a narrow copy of the weights adds 2. The loss takes three tensors of the size of a chunk's logits. The rest are **activations**, what the layers keep for the backward pass.
#
# :::{admonition} For a second reading: what a layer keeps
# :class: dropdown
# An encoder layer keeps $6 d + 2 w + d_\text{ff}$ numbers a position: its input, queries, keys, values, the output of the heads, the hidden layer of the feed-forward network and its input, two dropout masks and the inputs of two normalizations. A decoder layer keeps $9 d + 4 w + d_\text{ff}$, of which $w$, keys and values of the source, stand at the source's positions. In bf16 all are half as wide, except the inputs of normalizations. Kernels differ, so this is an estimate; a test holds it within 20% of what autograd stores.
# :::


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-gpu-memory", "caption": "What fills the memory of a GPU? Bytes by what they hold, computed for the paper's batch of 25,000 positions a side. With all logits at once (dotted) the loss of the base model would take more than its layers do in bf16; in chunks it is a small part of that."}, "image": {"alt": "For base and big, activations are the largest part, 11 and 22 gigabytes in fp32, and shrink by two fifths in bf16. Weights, gradients and Adam together take 1 and 3.4. The loss in chunks is half a gigabyte, with all logits eleven."}}
figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.8), sharey=True, layout="constrained")
for axis, name in zip(axes, ("base", "big")):
    c = preset(name)
    each = 12 * c.vocabulary_size  # bytes of the loss for a position
    for offset, precision, color, hatch in (
        (-0.2, "fp32", INK, ""),
        (0.2, "bf16", RESIDUAL, "//"),
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
            rows, sizes, 0.36, fc="none", ec=color, hatch=hatch, lw=1.3, label=precision
        )
    full = each * 892 * 28 / 1e9
    axis.barh(len(parts) - 1, full, 0.8, fc="none", ec=INK, lw=0.9, ls=":")
    axis.text(
        full / 2, len(parts) - 1, "all logits", ha="center", va="center", fontsize=8
    )
    axis.set(title=name, xlabel="GB", yticks=range(len(parts)), yticklabels=parts)
    axis.set_xlim(0, 1.05 * max(full, activations(c, 892, 28, 28) / 1e9))
    axis.grid(False)
axes[0].invert_yaxis()
axes[0].legend(frameon=False)
plt.show()


# %% [markdown]
# `estimate`, of [an appendix](P_planning.ipynb), puts operations and memory together. Its operations include padding, so the hours err on the long side by that share; the memory is that of the largest batch, divided among the processes.


# %%
PEAKS = {
    "H200": 989e12,
    "A100": 312e12,
    "RTX 4090": 165e12,
}  # dense bf16, from the data sheets
lengths, plans = np.full((892, 2), 28), {}
for name, steps in (("base", 100_000), ("big", 300_000)):
    training = Hyperparameters(steps=steps, max_tokens=25_000)
    plans[name] = plan = estimate(preset(name), training, lengths, precision="bf16")
    print(
        f"{name}: {plan.flops:.1e} operations, {plan.memory_bytes / 1e9:.0f} GB of memory"
    )
    for gpu, peak in PEAKS.items():
        low, high = (plan.hours(peak, mfu=share) for share in (0.2, 0.3))
        print(f"   one {gpu:8} {low:6.1f} hours at an MFU of 20%, {high:5.1f} at 30%")

# %% tags=["remove-cell"]
assert (
    round(plans["base"].hours(PEAKS["H200"]), 1) == 1.3
    and f"{plans['base'].flops:.1e}" == "9.5e+17"
)

# %% [markdown]
# On a CPU both halves of the estimate can be held against a measurement.
#
# ```bash
# python -m benchmarks.experiments.growth --preset small
# ```

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-growth", "caption": "How do time and memory grow? Measured steps of the small model on one thread (dots) beside the estimate (lines), which counts operations at the speed of the step with sentences of 32 tokens. Left: longer and fewer sentences, 4,096 tokens in all. Right: more sentences of 32 tokens."}, "image": {"alt": "Left, time stays near 2.4 seconds up to 128 tokens and doubles until 2,048, memory stays between 0.8 and 1 gigabyte. Right, time and memory grow in proportion to the number of sentences."}}
log = Path("../benchmarks/results/growth-small.jsonl").read_text().splitlines()
settings, *points = map(json.loads, log)
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
    2, 2, figsize=(7.4, 4.4), sharex="col", layout="constrained"
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
        top.plot(x, computed, color=RESIDUAL, lw=1.5)
        top.plot(x, measured, "o", color=INK, ms=4)
        top.set_xscale("log", base=2)
        top.set_ylim(0, 1.1 * max(measured + computed))
        top.xaxis.set_major_formatter("{x:,.0f}")
axes[0, 0].set_ylabel("seconds a step")
axes[1, 0].set_ylabel("GB a step")
axes[1, 0].set_xlabel("tokens a sentence, 4,096 in all")
axes[1, 1].set_xlabel("sentences of 32 tokens")
plt.show()
rates = [operations(p) / p["seconds"] / 1e9 for p in points]
ratios = [p["bytes"] / kept(p) for p in points]
print(f"{min(rates):.0f} to {max(rates):.0f} billion operations a second")
print(f"memory: {min(ratios):.1f} to {max(ratios):.1f} times the estimate")
(short,) = (p for p in points if (p["series"], p["length"]) == ("length", 32))
(long,) = (p for p in points if p["length"] == 2048)
print(
    f"from 32 to 2,048 tokens a sentence: time times {long['seconds'] / short['seconds']:.1f}",
    end="",
)
print(f", memory times {long['bytes'] / short['bytes']:.1f}")
assert (
    2 < long["seconds"] / short["seconds"] < 3 and long["bytes"] / short["bytes"] < 1.3
)

# %% [markdown]
# Time follows the operations. Sentences 64 times as long cost 2.1 to 2.5 times as much for each token (length 32 was timed twice): only attention's products grow. Memory hardly does, because no kernel keeps a matrix of weights. The process takes up to 1.8 times what the estimate says: in the backward pass, gradients of activations need room as well. The GPU's allocator reused more of it, and stayed [within 11%](#on-a-gpu).
#
# ### Why is it not eight times as fast on eight GPUs?
#
# The paper's batch is small for eight modern GPUs. Each gets 3,125 of the 25,000 tokens, for the base model $0.381 \cdot 10^9 \cdot 3{,}125 = 1.2 \cdot 10^{12}$ operations. An H200 does them in 4 ms at 30% of its peak. But 1,200 operations at 8 microseconds take 9.6 ms to hand over. The step is launch-bound, and [more GPUs don't help](26_distributed.ipynb#how-fast-it-can-be). A larger batch does, with another learning rate.
#
# ### I have a GPU. What should I look at first?
#
# 1. *Tokens a second*, from the progress line of the training. Times 0.38 · 10⁹ operations for base (1.29 · 10⁹ for big), divided by the peak, that's the MFU.
# 2. *Precision.* Cards older than Ampere have no bf16, and the peak is that of fp32.
# 3. *The batch.* Double `--max-tokens` for a hundred steps. If tokens a second rise much, the step was launch-bound.
#
# ## What to remember
#
# - A step costs six operations for each token and each weight it meets. At the length of a sentence, attention's products add less than one percent.
# - MFU is the share of the peak that useful operations take. It counts no padding and nothing twice.
# - Many kernels wait for bytes, not for arithmetic. FlashAttention computes the same softmax in blocks and keeps the matrix out of memory.
# - The logits need never exist all at once, and label smoothing doesn't need them.
# - bf16 for products; fp32 for weights, moments, normalization and sums.
#
# So much for one GPU. Eight of them must still make the same update, and talking to each other costs time.
#
# ## Exercises
#
# **1. By hand.** (★, 5 min) How many operations does one training step of the base model take for the output projection alone, with 25,000 target tokens and 37,000 entries? How long is that at the peak of an H200?


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Six operations a weight and token: 6 x 25,000 x 512 x 37,000.
step_output = 6 * 25_000 * 512 * 37_000
print(f"{step_output:.2e} operations, {1000 * step_output / PEAKS['H200']:.1f} ms")
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
# **3. Someone else's training.** (★★, 10 min) A training run of the big model reaches 60,000 target tokens a second on one A100. What is its MFU? And what would it seem to be if someone stopped the clock after half a millisecond, before the GPU had done a step of $1.2 \cdot 10^{12}$ operations?


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Useful operations a second over the peak; a target token comes with its source token.
a_token = sum(flops(preset("big"), 28, 28).values()) / 28
print(f"MFU {a_token * 60_000 / PEAKS['A100']:.0%}")
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
assert (out / total - scores.softmax(dim=0) @ values).abs().max() < 1e-15


# %% [markdown]
# **6. Your own machine.** (★★, an hour) Run `benchmarks/speed/step_speed.py` on the machine you train on. Which levers gain more than they scatter from round to round?
#
# ## Sources
#
# The batch sizes, steps and hours are from section 5.2 of {cite:t}`vaswani2017attention`. MFU was defined for PaLM by {cite:t}`chowdhery2023palm`. The softmax in one pass is by {cite:t}`milakov2018online`; {cite:t}`rabe2021self` used it for attention in little memory, and {cite:t}`dao2022flashattention` made it fast.
