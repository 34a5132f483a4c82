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
# # Many GPUs
#
# This chapter shares one training among several processes, each with its own GPU, so that the updates stay what one process would make (section 5.2 of the paper).
#
# The paper's base model learned for twelve hours on eight GPUs, and the big one for three and a half days. On one of those GPUs it would have been four days and four weeks. Whoever wants to try three learning rates waits for a quarter of a year. So the work must be shared. It is easily shared so that it runs, and less easily so that it stays the same training:
#
# | what goes wrong | what one sees | the section about it |
# |---|---|---|
# | each process takes the mean over its own tokens | nothing: some words count more than others | Two halves of a batch |
# | gradients wait until all are computed | GPUs that stand still | Exchange while computing |
# | each process shuffles by itself | sentences seen twice, others never | One plan for all |
# | one process has a batch more than the others | all stand still for ever | One plan for all |
# | all processes drop the same numbers | nothing: less noise than was paid for | One plan for all |
# | all processes drop the same numbers | nothing: less noise than was paid for | One plan for all |
# | all processes write the checkpoint | half a file | The first one writes |
# | one process dies | the others wait for it | A process dies |
# | the machines do not hear each other | nothing happens at all | Several machines |
#
# [The training loop](18_training.ipynb) is ready for this: some of its lines do nothing in one process and all that is needed in several. This chapter explains them, after it has done the same by hand. What it adds to the package is short: how processes find each other, and their devices.
#
# If you only want to train: write `with process_group() as device:` around your call of `train`, move the model to this device, and start the script with `torchrun`. A whole script stands below, with its log, and further down one for a cluster.
#
# We had no GPU while we wrote this. All that runs on this page runs in several processes on one CPU, where they exchange gradients in the same way through another library. What follows from arithmetic alone is marked as such.

# %% tags=["export"]
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

# %%
import inspect
import json
import re
import runpy
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt
from safetensors.torch import load_file
from torch.optim import Adam
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer import training
from annotated_transformer.batching import batches, collate, encode_pairs, plan_batches
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import training_step
from annotated_transformer.transformer import Transformer, preset
from book.figures import INK, KEY, POSITION, QUERY, RESIDUAL, VALUE, style

# %% [markdown]
# ## What can be shared?
#
# First the bill. The base model learns for 100,000 steps, from about 25,000 tokens a side in each. Every weight matrix costs 2 operations a number and token in the forward pass (multiply, add) and 4 in the backward pass, so 6. A source token passes $14 d^2$ numbers a layer: 4 of the $d^2$ in self-attention, 8 in the feed-forward network, and 2 where the decoder makes keys and values of it. A target token passes as many, and the output table besides. Attention itself adds a little, since sentences are short.

# %%
layers, width, vocabulary, length = 6, 512, 37_000, 28
source = 6 * 14 * layers * width**2 + 12 * layers * length * width
target = 6 * (14 * layers * width**2 + vocabulary * width) + 12 * layers * 2 * length * width
a_step = 25_000 * (source + target)
print(f"{source / 1e9:.3f} and {target / 1e9:.3f} billion operations a source and a target token")
print(f"{100_000 * a_step:.1e} operations in all")
for speed in (0.1e12, 10e12, 300e12):
    print(f"at {speed:.0e} a second: {100_000 * a_step / speed / 3600:7,.1f} hours")

# %% [markdown]
# The three speeds are round numbers: two cores of a CPU, a graphics card for games, and a large GPU of today that reaches 30 percent of what its data sheet says. On the last of them the base model needs no sharing any more. The big one has ten times the operations, and few people own such a GPU.
#
# What could be cut into pieces?
#
# | what is cut | each process holds | they exchange | it is needed when |
# |---|---|---|---|
# | the batch | the whole model, and some of the sentences | one gradient a step | steps take too long |
# | the optimizer | the weights, and some of the moments | gradients and weights, each step | moments do not fit on one GPU |
# | the model | some layers, or some columns of each matrix | what the layers compute, in every layer | weights do not fit on one GPU |
#
# Training a weight takes 16 bytes: the weight, its gradient and two moments, 4 bytes each. The base model has 63 million, so it takes 1.0 GB, and the big one with 214 million takes 3.4 GB. Every GPU used for training has room for that. There is no need to cut the model. What takes time is the batch, and the batch is the easiest to cut, since its sentences have nothing to do with each other until the gradient is added up.
#
# So we choose the first row. It is called **data parallel** training: each process has the whole model and a part of every batch. All start with the same weights, get the same gradient, and make the same update. Their weights stay equal without ever being compared.
#
# ## Two halves of a batch
#
# Before there are two processes, we make two halves in one. What must their gradients be, so that together they are that of the whole batch?
#
# A loss in this book is a sum over real target tokens, divided by their number. Say one half has three sentences with 12 tokens and a loss of 30 in all, and the other three sentences with 24 tokens and a loss of 84. Each half by itself has a mean, $30/12 = 2.5$ and $84/24 = 3.5$, and the mean of the two is $3.0$. The mean over all tokens is $114/36 = 3.17$. The two halves have equally many sentences, and still the mean of means is wrong: a word of the first half would count twice as much as one of the second.
#
# It is the slip of [accumulation](18_training.ipynb) again, with processes in place of batches. The remedy is the same one: count the tokens of *all* before anybody divides, then add. The check, in double precision, with a model so small that it takes no time:

# %%
pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)
examples = [corpus[index] for index in range(8)]


def fresh(**changes):
    """Return a very small model, always with the same start."""
    torch.manual_seed(3)
    sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0, **changes}
    return Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes))


def labels(batch):
    return int((batch.target[:, 1:] != PAD).sum())


def gradient_of(batch, tokens):
    """Return the gradient of a batch's summed loss, divided by a number of tokens."""
    model = fresh().double()
    (SmoothedLoss(model)(*batch) / tokens).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %%
whole = collate(examples)
halves = [collate(examples[0::2]), collate(examples[1::2])]
right = gradient_of(whole, labels(whole))
added = sum(gradient_of(half, labels(whole)) for half in halves)
of_means = sum(gradient_of(half, labels(half)) for half in halves) / 2
print("tokens:", [labels(half) for half in halves])
print("sum over the tokens of all:", torch.allclose(added, right, rtol=0, atol=1e-14))
print("mean of means:             ", torch.allclose(of_means, right, rtol=0, atol=1e-14))
print(f"norm of the right gradient: {float(right.norm()):.4f}")

# %% [markdown]
# The halves were padded to different widths, and even that made no difference: padding has no part in loss or gradient. So nothing stands in the way of computing the halves at the same time, in two places.
#
# ## Two processes
#
# A **process** is a program at work: Python, with memory that no other process can see. Two of them share nothing, so what one knows the other must be told. Threads would share memory, but in Python they take turns, and while one has its turn the GPUs of the others wait for work. So the rule is one process a GPU.
#
# The tool `torchrun`, which comes with PyTorch, starts the same script several times. (It is short for `python -m torch.distributed.run`.) How does a process know which of them it is? It is told through the environment:
#
# | variable | what it says | two machines with four GPUs each |
# |---|---|---|
# | `RANK` | the number of this process among all, its **rank** | 0 to 3 on the first, 4 to 7 on the second |
# | `LOCAL_RANK` | its number on its own machine, and so the number of its GPU | 0 to 3 on both |
# | `WORLD_SIZE` | how many processes there are, the **world size** | 8 |
# | `MASTER_ADDR`, `MASTER_PORT` | where they meet at the beginning | the first machine, a free port |
#
# `dist.init_process_group` reads these and waits until all are there. From then on there are *collective* operations: all processes call the same one, in the same order, and each gets its result when all have called. One of them is nearly all we need. **All-reduce** takes a tensor from each process, adds them up, and leaves the sum with all.
#
# The processes talk through a library. On GPUs that is NCCL. On CPUs it is gloo, which is what this page uses.
#
# Here is data parallel training by hand, as a script for any number of processes: three updates of the weights, each from the same eight sentences. What several processes need are the lines with `dist`: one to begin, one to end, one that gives all the weights of the first (`broadcast`: what process 0 has in a tensor, all have afterwards), and `all_reduce` twice.

# %%
home = tempfile.TemporaryDirectory()
BY_HAND = """
import sys

import torch
import torch.distributed as dist
from torch.optim import Adam

from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, preset

pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)
sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0}

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3 + rank)  # the others begin with other weights
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes)).double()
for weight in model.parameters():
    dist.broadcast(weight.data, src=0)
loss, optimizer = SmoothedLoss(model), Adam(model.parameters(), lr=0.001)
batch = collate([corpus[index] for index in range(8)][rank::world_size])  # my share
for step in (1, 2, 3):
    tokens = (batch.target[:, 1:] != PAD).sum()
    mine = int(tokens)
    dist.all_reduce(tokens)
    (loss(*batch) / tokens).backward()
    own = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    optimizer.step()
    optimizer.zero_grad()
    # In one piece, or lines of two processes mix
    sys.stdout.write(
        f"step {step} [{rank}] {mine} of {int(tokens)} tokens, "
        f"norm {own:.4f} alone and {norm:.4f} together\\n"
    )
dist.destroy_process_group()
"""
_ = Path(home.name, "by_hand.py").write_text(BY_HAND)

# %% [markdown]
# To start it from a notebook takes a few lines. They tell the processes that there is no GPU, and to use one thread each: two processes with as many threads as there are cores would fight for the cores.

# %%
ALONE_ON_THE_CPU = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def launch(script, size, *arguments, restarts=0):
    """Run a script in `size` processes; return what they print, and what torchrun says."""
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command = [sys.executable, *run, f"--max-restarts={restarts}", script, *arguments]
    done = subprocess.run(
        command, cwd=home.name, capture_output=True, text=True, env=ALONE_ON_THE_CPU
    )
    assert done.returncode == 0, done.stderr
    # Some releases of gloo say on which terms they are with their neighbors
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    return "\n".join(lines), done.stderr


# %%
print("$ torchrun --standalone --nproc-per-node=2 by_hand.py")
out, _ = launch("by_hand.py", 2)
print(*sorted(out.splitlines()), sep="\n")
assert out.count(f"{float(right.norm()):.4f} together") == 2

# %% [markdown]
# Each process had its own tokens and its own gradient, and neither norm is that of the whole batch. After `all_reduce` both hold the same gradient, and in the first step its norm is the one that we have computed alone. So all three updates are those of a single process, which the same loop without `dist` confirms:

# %%
model = fresh().double()
optimizer = Adam(model.parameters(), lr=0.001)
for step in (1, 2, 3):
    (SmoothedLoss(model)(*whole) / labels(whole)).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: norm {norm:.4f}")
    assert len(re.findall(rf"step {step} .* and {norm:.4f} together", out)) == 2

# %% [markdown]
# The lines of the processes are sorted here. They print when they get there, and whose line comes first is chance.
#
# ### What does an all-reduce cost?
#
# The obvious way is to send all gradients to one process, which adds them up and sends the sum back. With $N$ processes and $G$ bytes of gradient, that one must take in $(N - 1) G$ bytes and send out as many. With 8 it is 7 gradients in and 7 out, through one cable, while the other cables are idle.
#
# A ring does better. The processes stand in a circle, and each cuts its gradient into $N$ chunks. In each round it sends *one* chunk to its right neighbor. In the first $N - 1$ rounds the receiver adds what comes to its own chunk and passes the sum on in the next round. Then each process has one chunk that is complete. In another $N - 1$ rounds the complete chunks travel once around. In code, with what the processes hold as the rows of a matrix:


# %%
def ring(held):
    """Return what N processes hold of N chunks, (N, N), before and after each round."""
    size, states = len(held), [held]
    for turn in range(2 * (size - 1)):
        before, after = states[-1], states[-1].clone()
        for rank in range(size):
            right, chunk = (rank + 1) % size, (rank - turn) % size
            own = before[right, chunk] if turn < size - 1 else 0
            after[right, chunk] = own + before[rank, chunk]
        states.append(after)
    return states


numbers = torch.arange(16).reshape(4, 4)
states = ring(numbers)
print(states[0], states[-1], sep="\n")
assert torch.equal(states[-1], numbers.sum(dim=0).expand(4, 4))
print("rounds:", len(states) - 1)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ring", "caption": "How does a sum get everywhere when each process talks to its neighbor only? Four processes (rows) with four chunks each (columns), after each of six rounds. The number says how many processes are in a chunk, gray from 1 (paper) to 4 (ink). A frame marks what has just arrived. After round 3 each process has one complete chunk; after round 6 all have all."}, "image": {"alt": "Seven grids of four by four. At the start all cells say 1; the sums grow along diagonals until each row has one 4 after round 3, and all cells say 4 after round 6."}}
style()
figure, axes = plt.subplots(1, 7, figsize=(10, 1.9), layout="constrained", sharey=True)
counted = ring(torch.ones(4, 4, dtype=torch.long))
for turn, (axis, state) in enumerate(zip(axes, counted)):
    axis.imshow(state, cmap="Greys", vmin=1, vmax=5)
    for row in range(4):
        for column in range(4):
            amount = int(state[row, column])
            axis.text(
                column, row, amount, ha="center", va="center", color="w" if amount > 3 else INK
            )
            if turn and amount != int(counted[turn - 1][row, column]):
                frame = (column - 0.46, row - 0.46)
                axis.add_patch(plt.Rectangle(frame, 0.92, 0.92, fill=False, ec=KEY, lw=2))
    axis.set(title="start" if turn == 0 else f"round {turn}", xticks=range(4), yticks=range(4))
    axis.set_xlabel("chunk")
axes[0].set_ylabel("process")
plt.show()

# %% [markdown]
# There are $2 (N - 1)$ rounds, and in each a process sends $G / N$ bytes. So each sends and receives
#
# $$ \frac{2 (N - 1)}{N} \, G $$ (eq-ring)
#
# bytes, which is $G$ for two processes and never more than $2 G$, however many there are. That is the remarkable thing about it. For the base model, $G$ is 63 million numbers of 4 bytes:

# %%
with torch.device("meta"):
    base = Transformer(preset("base"))
gradient = 4 * sum(p.numel() for p in base.parameters())
print(
    f"gradient: {gradient / 1e6:.0f} MB; with 8 processes each sends {1.75 * gradient / 1e6:.0f} MB"
)
links = {"1 Gbit a second": 0.125e9, "10 Gbit": 1.25e9, "100 Gbit": 12.5e9, "300 GB": 300e9}
for name, speed in links.items():
    times = [f"{2 * (n - 1) / n * gradient / speed * 1000:9,.1f}" for n in (2, 8, 64)]
    print(f"{name:16} {' '.join(times)}  milliseconds with 2, 8 and 64 processes")

# %% [markdown]
# The links are, roughly: the cable in an office, that in a machine room, that of a good cluster, and the direct connection between the GPUs of one machine. This is arithmetic, and a real network needs longer, because each round waits for the slowest.
#
# What is it to be compared with? A step of 25,000 tokens has $9.5 \cdot 10^{12}$ operations. At $300 \cdot 10^{12}$ a second that is 32 ms on one GPU and 4 ms on each of eight. Within a machine the exchange takes 1.5 ms, which is less. Over 10 Gbit it takes 353 ms, and eight machines with one GPU each would be eleven times *slower* than a single one. Sharing is worth it when the exchange is shorter than the computation that it saves.

# %% [markdown]
# ## Exchange while computing
#
# The script above computes its whole gradient and then exchanges it. While it computes, the network is idle. While it exchanges, the GPU is idle. It need not be so: the backward pass finishes the gradients of the last layer first, and these could travel while the layers below are still at work.
#
# PyTorch has a wrapper that does this, `DistributedDataParallel`. It takes a module and gives one that computes the same. What it adds happens in three places:
#
# 1. **When it is made**, it sends the weights of the first process to all others, and compares shapes.
# 2. **In the backward pass**, it waits for gradients with a hook on each parameter. They are collected in **buckets** of 25 MB, in about the order in which they become ready. As soon as a bucket is full, its all-reduce begins, on a stream of its own beside the computation.
# 3. **At the end of the backward pass**, it waits for the last bucket. So when `backward` returns, `.grad` is that of all.
#
# Why not send each gradient by itself? Each exchange has a fixed cost, of some tens of microseconds, and there are about two hundred tensors. Why not one bucket for all? It would be full when there is nothing left to compute.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-overlap", "caption": "What does it save to exchange early? One step, first with the exchange after the backward pass, then with four buckets that leave as they become full. The lengths are made up: forward 1, backward 2, exchange 1.6, Adam 0.3. Only the last bucket is still waited for."}, "image": {"alt": "Two timelines. Without overlap the step ends at 4.9; with overlap three of four exchanges lie beside the backward pass and the step ends at 3.7."}}
style()
figure, axes = plt.subplots(2, 1, figsize=(8, 3.2), layout="constrained", sharex=True)
for axis, early in zip(axes, (False, True)):
    blocks, free = [("GPU", 0.0, 1.0, QUERY, "forward")], 0.0
    for bucket in range(4):
        ready = 1.5 + 0.5 * bucket
        blocks.append(("GPU", ready - 0.5, 0.5, VALUE, f"back {4 - bucket}"))
        free = max(free, ready if early else 3.0)
        blocks.append(("network", free, 0.4, KEY, f"bucket {bucket + 1}"))
        free += 0.4
    blocks.append(("GPU", free, 0.3, POSITION, "Adam"))
    for place, start, length, color, label in blocks:
        row = 0 if place == "GPU" else 1
        axis.barh(row, length - 0.02, left=start, color="white", edgecolor=color, lw=1.8)
        axis.text(start + length / 2, row, label, ha="center", va="center", fontsize=7.5)
    axis.axvline(free + 0.3, color=INK, lw=0.8, ls="--")
    axis.text(free + 0.34, 0.5, f"{free + 0.3:.1f}", va="center", fontsize=9)
    axis.set(yticks=(0, 1), yticklabels=("GPU", "network"), ylim=(1.6, -0.6), xlim=(0, 5.4))
    axis.set_title("buckets leave early" if early else "exchange at the end", fontsize=10)
axes[1].set_xlabel("time")
plt.show()

# %% [markdown]
# In the figure the exchange takes 1.6 units, and 1.2 of them are hidden behind the backward pass. What stays in sight is the last bucket, since nothing is left to compute beside it. If the network is so slow that buckets queue up, more stays in sight, and overlap helps less.
#
# In our model the last bucket is a large one. The embedding matrix of the base model has 37,000 · 512 · 4 bytes, 76 of the 252 MB. It is [used at both ends](10_transformer.ipynb): the output layer is the first to send it a gradient, and the source embeddings are the last. So it is complete when all else is, and 30 percent of the exchange cannot be hidden.
#
# ### Which lines of the training loop are there for this?
#
# [The training loop](18_training.ipynb) uses this wrapper. These are all of its lines in which several processes appear:

# %%
SEVERAL = re.compile(r"dist\.|rank|world_size|all_reduce_sum|no_sync|DDP")
for line in inspect.getsource(training).splitlines():
    if SEVERAL.search(line) and not line.startswith(("import", "from")):
        print(line)

# %% [markdown]
# `rank_and_world_size` answers (0, 1) where nobody has made a process group, and `all_reduce_sum` then gives back its number. So one loop serves both cases. The rest of this section and the next two go through the others.
#
# What `DistributedDataParallel` wraps is the loss, which contains the model, and not the model. Only what is called *through* the wrapper is prepared for the exchange. Whoever wraps the model and then computes the loss by another way around it gets gradients that are never exchanged, and no error. The model inside stays as it was, with the names of its weights. So checkpoints know nothing of the wrapper, and validation goes around it on purpose.
#
# DDP also keeps buffers in step. Ours is the table of the [positional encoding](08_positional_encoding.ipynb), which never changes.
#
# ### Why is the loss multiplied by the number of processes?
#
# The wrapper does not leave the sum of all gradients but their *mean*: it divides by the number of processes $N$. That fits those who take a mean over each process's own batch. We have seen what is wrong with that. We want the sum over all tokens, divided by the tokens of all. Process $r$ has a summed loss $\ell_r$, and all together have $n$ tokens. If each multiplies its loss by $N$ before the backward pass, then
#
# $$ \frac{1}{N} \sum_{r} \nabla \frac{N \, \ell_r}{n} = \frac{1}{n} \nabla \sum_{r} \ell_r $$ (eq-times-size)
#
# and the division is undone. This is the factor `rank_and_world_size()[1]` in `training_step`. Without it the gradient would be $N$ times too small. An exercise below asks who would notice.
#
# ### Gradient accumulation: exchange once
#
# An update may be made of several batches, one after the other. Their gradients add up in `.grad` without any help. With the wrapper, each backward pass would end with an exchange: for `grad_accum_steps=4`, four times 441 MB a process, where one exchange of the sum would do. The wrapper has a context for this. Within `no_sync`, gradients stay at home and add up. The first backward pass outside exchanges what has come together. So `training_step` enters it for all batches of a group but the last.
#
# The forward pass must lie inside the block too, because it is there that the wrapper decides what the hooks will do.
#
# ### Why not `DataParallel`?
#
# PyTorch has an older wrapper with a similar name. It needs no second process: one Python program cuts each batch, sends the parts *and all weights* to the GPUs, runs them in threads, and collects the results on the first. So the weights travel in every step, the threads wait for each other in Python, the first GPU needs more memory than the rest, and a second machine cannot take part. PyTorch itself advises against it.
#
# ## One plan for all
#
# Who gets which sentences? There are three ways, and only one leaves the training what it was.
#
# | way | what happens |
# |---|---|
# | each process shuffles the corpus with a seed of its own | in an epoch, some sentences are seen several times and others not at all |
# | the corpus is cut once, each process keeps its part | each sentence is seen once, but always with the same company; parts with more tokens have more batches |
# | all make the same plan, and each takes its share of every batch | the batches are those of a single process |
#
# The first is an accident more often than a choice. The second is common for huge corpora, and it has a trap.
#
# ### Why does it hang at the end of an epoch?
#
# Because one process has a batch more than the others. Let process 0 have 101 batches and process 1 have 100. After 100 steps process 1 is done and leaves its loop. Process 0 begins its step 101, comes to the all-reduce, and waits for a partner that will never call. There is no error. The GPU even shows 100 percent load, because on it waiting is a busy loop. After the timeout, 20 minutes here, comes a message about a collective operation, which does not mention batches at all.
#
# The same happens whenever processes disagree about what comes next: one validates and the other does not, one skips a batch that it does not like, one leaves the loop early. So each such decision must come from what all know, the plan and the step, or be taken together.
#
# ### A share of every batch
#
# We take the third way. [The plan](15_batching.ipynb) follows from lengths, seed and epoch. Each process makes it by itself, and all get the same. Then they deal each batch like cards: of four processes, process 0 takes rows 0, 4, 8, ..., process 1 takes rows 1, 5, 9, and so on. That is the slice `[rank::world_size]` in `batches`.
#
# Sentences of a batch are about equally long, so about equal numbers of rows are about equal amounts of work. And if a batch has fewer sentences than there are processes, some get nothing but an empty sentence: a row with no label, whose loss is zero and whose count is zero. So all processes have as many batches, and they take part in every exchange.

# %%
plan = plan_batches(corpus.lengths, max_tokens=160, seed=0, epoch=0)
number = next(number for number, batch in enumerate(plan) if len(batch) == 10)


def share_of(rank, world_size):
    """Return what one of several processes gets of the batch."""
    return next(iter(batches(corpus, 160, start=number, rank=rank, world_size=world_size)))


for rank in range(4):
    count = labels(share_of(rank, 4))
    print(f"process {rank}: sentences {plan[number][rank::4]}, {count} target tokens")
alone = share_of(15, 16)
print(f"a process without a sentence: {tuple(alone.target.shape)}, {labels(alone)} target tokens")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-deal", "caption": "Who gets which row? The batch above, ten sentences, and the shares of four processes. The number is that of the process. Bars are target tokens, thin lines padding."}, "image": {"alt": "Ten bars of about the same length, dealt in turn to processes 0 to 3. Processes 0 and 1 get three sentences, processes 2 and 3 two."}}
style()
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
colors, tokens = (QUERY, KEY, VALUE, POSITION), corpus.lengths[plan[number], 1]
for row, amount in enumerate(tokens):
    share, turn = row % 4, row // 4
    for axis, place in zip(axes, (row, 4 * share + turn)):
        axis.plot([0, tokens.max()], [place, place], color=RESIDUAL, lw=0.8, zorder=0)
        axis.barh(place, amount, 0.7, color="white", edgecolor=colors[share], lw=1.8)
        axis.text(amount / 2, place, share, ha="center", va="center", color=colors[share])
axes[0].set(title="the batch", ylabel="row", ylim=(9.7, -0.7), yticks=range(10))
axes[1].set(title="four shares", ylim=(14.7, -0.7))
axes[1].set_yticks([1, 5, 9, 13], [f"process {share}" for share in range(4)])
for axis in axes:
    axis.set_xlabel("positions of the target side")
plt.show()

# %% [markdown]
# Note what `max_tokens` means: the positions of the *whole* batch. With 8 processes each gets an eighth of it. So the same settings make the same updates on any number of GPUs, and a run that began on one can go on with eight. In many tools the number is meant for each process, and whoever adds GPUs makes the batch larger without having decided to.
#
# ### Does each process need its own dice?
#
# Yes. Dropout draws numbers for the cells of a tensor. If all processes drew the same, row 0 of each share would lose the same units. Nothing breaks, but the noise of an update would be that of a smaller batch. Our loop takes the random numbers of a step from seed, step, rank and world size. So each process has its own in each step.
#
# It follows that with dropout, a run with two processes does not draw what a run with one draws. Both are equally good. They are not equal.
#
# ## The first one writes
#
# Some things only one process may do. Two that write one checkpoint would tear it apart. Two that print say everything twice. By custom it is the process with rank 0.
#
# | what | who | how the others learn of it |
# |---|---|---|
# | the folder, its lock, settings, checkpoints, log, progress bar | the first | not at all |
# | weights at the start | those of the first | the wrapper sends them to all |
# | going on from a checkpoint | all read it | they compare the step that they have found |
# | loss and count of tokens | each its part | all-reduce |
# | the norm of the gradient | all, each by itself | they have the same gradient |
# | a gradient that is not finite | all, each by itself | the same |
# | validation loss | each its share of the batches | all-reduce of sums and counts |
# | the score, if there is one | all, and they may share the work | they have the same weights |
# | SIGTERM | whoever gets it | all-reduce of "was I asked?" |
#
# The norm comes after the exchange, so one process with a `nan` in its part gives `nan` to all. All leave out the update, and all stop with the same message. Nobody goes on with weights that the others do not have.
#
# Reading is the interesting row. If one machine of two had a folder of its own, its processes would find no checkpoint and begin anew, while the others go on from step 40,000. So all add up the steps that they have found: the sum must be the own step times the number of processes, or all end with an error.
#
# ### One is enough
#
# A cluster sends SIGTERM to all processes of a job, but not at the same moment. One may get it in step 1,000 and another one in step 1,001. If each obeyed by itself, the first would leave and the second would wait for it in vain. So they ask each other in each step, and one yes is enough: the line with `stop.is_set()` adds up the answers. It is a single number, but a round of all processes, and all must have come to it. It is a number on the processor, so no GPU has to be waited for.
#
# ### Translations of all
#
# Scoring translates thousands of sentences, and here nothing has to be added up: each process translates its share, and all get all of it. They must, since the score decides when training stops, and a score that one process has alone would stop one process alone. Texts have no fixed size, so `all_gather_object` packs them first. It uses pickle, as a rule the wrong tool, since unpacking can run code. Between processes that run the same program for the same user there is nothing to fear that is not there already.


# %% tags=["export"]
def gather_texts(texts: list[str]) -> list[list[str]]:
    """Return the texts of all processes, in the order of their ranks; alone, one's own."""
    if not dist.is_initialized():
        return [texts]
    found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, texts)
    return found


# %% [markdown]
# ## In and out
#
# Last comes what joins the processes at the beginning and parts them at the end. Before they meet, each must know where it computes. A GPU is the better choice if there is one. A name that PyTorch does not know, or a GPU that is not there, gets a sentence in place of a traceback. (The [loop](18_training.ipynb) was never tried on PyTorch's other kinds of devices, so they are refused.)


# %% tags=["export"]
def find_device(name: str | None = None) -> torch.device:
    """Return the device of this name, such as cpu or cuda; without one, a GPU if there is one.

    Raises ValueError for any that is not there.
    """
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    found = [*(["cuda"] if gpus else []), *gpus, "cpu"]
    if name is not None and name not in found:
        raise ValueError(f"there is no device {name!r} here: take one of {', '.join(found)}")
    return torch.device(name or found[0])


# %% [markdown]
# To join, each process leaves its address in a store that `torchrun` keeps, and reads those of the others. Here lies a trap. When `torchrun` starts all anew after an accident, PyTorch 2.13, with which this page was made, keeps the same store, with the addresses of the dead still in it. A process that is quick reads the old address of one that is slow, calls a process that does not exist, and the restart hangs or fails. On an idle machine all are equally quick, and it works. So each restart gets its own prefix, and looks only at what was left under it. With several machines each `torchrun` has a count of its own, and they need not agree. There we tell `torchrun` to make a new store each time (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE`), in the script further down.


# %% tags=["export"]
PATIENCE = timedelta(minutes=20)  # how long one process waits for another


@contextmanager
def process_group(device: str | None = None) -> Iterator[torch.device]:
    """Join the processes that torchrun has started, if it has; give the device of this one."""
    place = find_device(device)
    if not dist.is_torchelastic_launched():
        yield place
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    # After a restart, the addresses in torchrun's store lead to processes that are dead
    store, rank, world_size = next(rendezvous("env://", timeout=PATIENCE))
    one_machine = os.environ["GROUP_WORLD_SIZE"] == "1"
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"] if one_machine else "0"
    store = dist.PrefixStore(f"restart {restart}", store)  # type: ignore[attr-defined] # untyped
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
        store=store, rank=rank, world_size=world_size, timeout=PATIENCE,
    )  # fmt: skip
    yield place
    dist.destroy_process_group()  # not after an error: the others may wait in an all-reduce


# %% [markdown]
# 1. Without `torchrun` there is nobody to join, and the same script trains alone. So it can be tried on a laptop as it is.
# 2. Each process takes the GPU with its local number. Forgetting this is a classic: all processes then share GPU 0, it runs out of memory, and the other seven are idle.
# 3. Tensors on a GPU go through NCCL, and numbers on the processor through gloo. The question of who was asked to stop is one of the latter.
# 4. The timeout says how long a process waits for the others. The first process may have something to do alone, such as writing a large checkpoint. So 20 minutes, and not 20 seconds.
# 5. After an error, the last line is not reached, on purpose. It would be polite to say good-bye. But if one process has failed, the others hang in an all-reduce, and good-byes that wait for them hang too. It is better to end at once, so that `torchrun` sees it and ends the rest.

# %% [markdown]
# ## The same training with one process and with two
#
# Here is a whole script, of the kind that you would write for your own pairs. Two of its lines are there for the sake of several processes: the import and the `with`.

# %%
TRAIN = '''
import sys

import torch

from annotated_transformer.distributed import process_group
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, rank_and_world_size, train
from annotated_transformer.transformer import Transformer, preset


def tell(line):
    """Print a line of the log; only the first process is asked to."""
    watched = line.get("validation_loss")
    more = "" if watched is None else f"  validation {watched:.4f}"
    print(f"step {line['step']:3}  loss {line['loss']:.4f}{more}", flush=True)


def main(folder, report=tell):
    pairs = grammar(600, seed=1)
    tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
    config = TrainingConfig(steps=60, max_tokens=300, grad_accum_steps=2, warmup=20, save_every=20)
    with process_group("cpu") as device:
        rank, world_size = rank_and_world_size()
        sys.stdout.write(f"process {rank} of {world_size} is there\\n")
        torch.manual_seed(rank)  # others than the first begin with other weights
        sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0}
        model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes))
        model = model.double().to(device)  # double, to tell a mistake from rounding
        train(model, tokenizer, pairs[20:], config, validation=pairs[:20],
              folder=folder, report=report)
    sys.stdout.write(f"process {rank} is done\\n")


if __name__ == "__main__":
    main(sys.argv[1])
'''
_ = Path(home.name, "train.py").write_text(TRAIN.lstrip())

# %% [markdown]
# Three things are there for this page alone. The seed depends on the rank: the processes begin with different weights, and if those of the first did not win, we would see it. The model computes in double precision, where rounding is too small to be taken for anything else. And `"cpu"` keeps GPUs out of it. Your own script leaves them out, and has a larger model.
#
# With one process it is a script like any other. We run it here, without `torchrun`:

# %% tags=["nbval-ignore-output"]
main = runpy.run_path(str(Path(home.name, "train.py")))["main"]
main(Path(home.name, "run-1"))

# %% [markdown]
# Now with two, and this is the launch as one types it, and the log as it comes. Nothing in the script has changed.

# %% tags=["nbval-ignore-output"]
print("$ torchrun --standalone --nproc-per-node=2 train.py run-2")
out, _ = launch("train.py", 2, "run-2")
print(out)
assert "process 1 of 2 is there" in out and "step  60" in out

# %% [markdown]
# Both are there, and one reports. The losses are those of the single process, as far as four digits tell. Now a look at the weights that each run has left:


# %% tags=["nbval-ignore-output"]
def distance(one, other):
    """Return the largest difference between the weights that two runs have left."""
    first, second = (load_file(Path(home.name, run, "model.safetensors")) for run in (one, other))
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def losses(run):
    """Return step and loss of each record of a run's log."""
    lines = Path(home.name, run, "log.jsonl").read_text().splitlines()
    return {r["step"]: r["loss"] for r in map(json.loads, lines) if "loss" in r}


apart = max(abs(loss - losses("run-1")[step]) for step, loss in losses("run-2").items())
print(f"losses differ by {apart:.0e}, weights by {distance('run-1', 'run-2'):.0e}")
assert apart < 1e-5 and distance("run-1", "run-2") < 1e-12
assert losses("run-2").keys() == losses("run-1").keys()

# %% tags=["nbval-ignore-output"]
print("$ tail -n 3 run-2/log.jsonl")
for line in Path(home.name, "run-2", "log.jsonl").read_text().splitlines()[-3:]:
    record = json.loads(line)
    kept = ("step", "loss", "learning_rate", "gradient_norm", "validation_loss")
    print({name: round(record[name], 4) for name in kept if name in record})

# %% [markdown]
# ### Is the result the same as on one GPU?
#
# In double precision, to the last digits of a number. (The losses are added up for the report in single precision, so there it is seven digits.) What is left is rounding: two processes add up in another order than one, and the last bit depends on the order. In single precision, in which one trains, rounding is half a billion times larger, and each step builds on the one before.
#
# So over 100,000 steps in single precision, runs with one and with eight processes take two of many equally good ways. That is no fault of the sharing: another number of threads, or another kind of GPU, does the same. What stays exactly equal is the plan: the same batches in the same order, the same rates, the same count of tokens.
#
# Two runs with the *same* number of processes are equal to the last bit on a CPU. With dropout too, since all chance follows from seed, step, rank and world size. We will see it in a moment, without dropout, when one of them is killed. (With three and more, the wrapper arranges its buckets anew after the first step of each start, and with them the order of sums. So there a restart may change last bits, and nothing else.)
#
# ## A process dies
#
# With eight processes, eight times as many things can go wrong: a GPU falls off its bus, a machine is rebooted, somebody's program eats the memory. What do the others see? They are in an all-reduce, and its partner is gone. With gloo the connection breaks, which is an error at once. With NCCL they wait until the timeout.
#
# They need not wait, because `torchrun` watches. It started the processes, and the system tells it when one is gone. It then ends the others too: first SIGTERM, and after 30 seconds the signal that cannot be caught. With `--max-restarts=3` it starts all anew, up to three times. The script begins at its top, `train` finds the folder, and all read the last checkpoint. There is no code for this case. It is the same as going on the next morning.
#
# Why all, and not only the dead one? Because the living are somewhere in the middle of a step, with half of a gradient exchanged. There is no way to put a new process into that. The last checkpoint is the one place that all can go back to.
#
# We kill the worst one to lose: the first, which holds the lock and writes the files, in the middle of the work at step 50. The last checkpoint is that of step 40.

# %% tags=["nbval-ignore-output"]
KILLED = """
import os, signal, sys

from train import main, tell


def fall(line):
    tell(line)
    if line["step"] == 50 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


main(sys.argv[1], fall)
"""
Path(home.name, "killed.py").write_text(KILLED)
print("$ torchrun --standalone --nproc-per-node=2 --max-restarts=3 killed.py run-killed")
out, err = launch("killed.py", 2, "run-killed", restarts=3)
print(out)
assert out.count("process 0 of 2 is there") == 2 and distance("run-2", "run-killed") == 0
assert losses("run-killed") == losses("run-2")

# %%
print("killed once:", "Signal 9 (SIGKILL)" in err or "exitcode: -9" in err)
print("weights equal to the last bit:", distance("run-2", "run-killed") == 0)
print("the same losses in the log:", losses("run-killed") == losses("run-2"))

# %% [markdown]
# Step 50 was reported twice, since it was made twice. All processes came to life again, the run went on from step 40, and what it left is equal, to the last bit, to the run that nobody touched. The log on disk has step 50 once.
#
# | what happens | what `torchrun` does | what is lost |
# |---|---|---|
# | a process is killed, or has an error | ends the others; starts all anew, if restarts are left | the steps since the last checkpoint |
# | one process gets SIGTERM | all leave a checkpoint and end, which counts as a failure | nothing |
# | `torchrun` gets SIGTERM | passes it on; all leave a checkpoint; no restart | nothing, if the checkpoint is written in 30 seconds |
# | `torchrun` gets SIGTERM | passes it on; all leave a checkpoint; no restart | nothing, if the checkpoint is written in 30 seconds |
# | the machine is gone | with several machines, the others wait for it to come back, and then give up | the steps since the last checkpoint |
#
# After the last restart `torchrun` gives up, and prints a table in which the first error is marked as *root cause*. Look there first. The other errors are mostly those of processes that lost their partner.
#
# ## Several machines
#
# Everything is the same with two machines, but for one question: how do they find each other? This is called the **rendezvous**. Each machine runs one `torchrun`, and all name the same meeting place. The first machine opens a port there. When as many have come as were announced, ranks are given out, and each `torchrun` starts its processes. By hand, with two machines of eight GPUs each, one types this on both, within a few minutes of each other:
#
# ```bash
# export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 \
#     --rdzv-backend=c10d --rdzv-id=my-run --rdzv-endpoint=first-machine:29500 \
#     train.py runs/base
# ```
#
# Here `first-machine` is the name of one of the two, as the other sees it, and 29500 a port that nothing else uses. The same script on both, the same release of PyTorch, the same corpus at the same place.
#
# On a cluster with Slurm, the names are known only when the job starts. This is a whole script for it:
#
#  ```bash
#  #!/bin/bash
#  #SBATCH --job-name=transformer-base
#  #SBATCH --nodes=2
#  #SBATCH --ntasks-per-node=1        # one torchrun a machine; it starts the processes
#  #SBATCH --gpus-per-node=8
#  #SBATCH --cpus-per-task=32
#  #SBATCH --time=04:00:00
#  #SBATCH --signal=TERM@120          # two minutes before the end: time to leave a checkpoint
#  #SBATCH --dependency=singleton     # several jobs of this name run one after the other
#  #SBATCH --output=%x-%j.log
#
#  set -euo pipefail
#  export OMP_NUM_THREADS=1
#  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1   # a new store for each restart
#  # export NCCL_SOCKET_IFNAME=eth0   # if the wrong network is taken, see below
#  first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
#
#  srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 --max-restarts=3 \
#      --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" \
#      train.py /shared/runs/base
#  ```
#
#
# The folder of the run must be on a disk that all machines see. Only the first process writes into it, but all read the checkpoint, and after a restart, or in the next job, the first process may be on another machine.
#
# ### What fails, and how does it show?
#
# We had one machine without a GPU. So the two scripts above were not run, and this table was put together from what PyTorch and its libraries say and from the code of this chapter.
#
# | one sees | the cause | what to do |
# |---|---|---|
# | nothing at all, then a timeout of the rendezvous | the machines do not reach the meeting place: a firewall, or a name that means another address there | from the other machine: `nc -vz first-machine 29500`; take an open port, or the internal name |
# | each machine waits for the other, though the port is open | no `torchrun` knows itself to be the first, because the name is not the one that the machine has for itself | take what `hostname` prints there, or add `--rdzv-conf is_host=1` on the first and `is_host=0` on the others |
# | `Address already in use` | another job on this machine uses the port | another port; on a single machine `--standalone` finds a free one |
# | all ranks are given out, and the first all-reduce hangs | the library has taken the wrong network, such as that of a container | `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME`, with a name from `ip addr`; `NCCL_DEBUG=INFO` tells which one is in use |
# | "another training is at work" in all but one | processes were started without `torchrun`: each believes itself alone | start with `torchrun`, also below `srun` |
# | after a restart: `failed to connect`, connection refused | an old address in the store of `torchrun` | `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, as above |
# | `invalid device ordinal` | more processes than GPUs on a machine | `--nproc-per-node=gpu` takes as many as there are |
# | one process out of memory, the others with a broken connection | only one of these is a cause; often another program on that GPU | look for the root cause; `nvidia-smi`; halve `max_tokens`, double `grad_accum_steps` |
# | a process ends with signal 9 and no message | the machine's main memory is full: each process has a copy of the corpus | the corpus [on disk](D_large_corpora.ipynb), which all processes of a machine share |
# | all stand still, GPUs at 100 percent, an error after 20 minutes | a process is somewhere else: a slow disk, or a decision that was not taken together | `py-spy dump --pid` on each machine shows where |
# | an error about sizes, or a loss that is slightly wrong | other code or another corpus on one machine | one container, one shared folder |
# | it runs, and no faster than with one machine | the network carries 441 MB a step | the arithmetic above; larger batches, below |
# | the clocks of the machines disagree | nothing here depends on the time of day | nothing |
#
# The last but two is the nastiest. Each process makes the plan from its own copy of the corpus. If the copies differ, so may the plans, and nobody compares them. The settings, with the hash of the pairs, are checked by the first process only.
#
# ## How fast can it be?
#
# Twice the GPUs and half the time: that is what one hopes for. Two questions are hidden in it, and they have different answers. **Strong scaling**: the same batch, on more GPUs. **Weak scaling**: as much work for each GPU as before, so a batch that grows with their number.
#
# The second is easy, as long as the exchange is shorter than a step. The first ends somewhere. With 8 GPUs the paper's batch of 25,000 tokens is 3,125 tokens a GPU, and the arithmetic above says 4 ms a step. But a GPU does not begin to work by itself. Each operation is handed to it by the processor, which takes about 5 to 10 microseconds in Python, however small the tensors are. How many operations has a step?


# %% tags=["nbval-ignore-output"]
class Counter(TorchDispatchMode):
    """Counts the operations that compute something; another view of the same numbers is free."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).split(".")[1]
        self.number += name not in ("t", "view", "_unsafe_view", "transpose", "detach")
        return function(*args, **(kwargs or {}))


loss = SmoothedLoss(Transformer(preset("base", vocabulary_size=400, d_model=32, d_ff=64)))
optimizer, batch = Adam(loss.parameters(), fused=True), collate(examples[:4])
training_step(loss, [batch], optimizer)  # makes the moments
with Counter() as counter:
    training_step(loss, [batch], optimizer)
print(counter.number, "operations in a step of a model with 6 layers a side")
assert 500 < counter.number < 2000

# %% [markdown]
# The model was a narrow one, so that the count takes no time. A wide one has as many operations, each on larger tensors. At 8 microseconds each, some 800 of them take between 6 and 7 ms. So with 8 GPUs the 4 ms of work are handed out in more than 6. The GPUs wait for their processor. One calls this **launch-bound**, and at this point more GPUs do not help at all.
#
# [The chapter on speed](25_speed.ipynb) shows what does: a compiler that makes few large operations out of many small ones. The other remedy is more work for each operation, that is a larger batch.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scaling", "caption": "Does twice the number of GPUs halve the time? Computed, not measured: the base model, GPUs that do 300e12 operations a second, 800 launches of 8 microseconds a step, and a link of 100 GB a second whose exchange is hidden as far as there is computation. A step takes the longest of computation, launches and exchange."}, "image": {"alt": "Speed over the number of GPUs for three sizes of batch. With 25,000 tokens the line bends at 5 GPUs and stays flat; with 100,000 it bends at about 20; with 400,000 it follows the ideal diagonal up to 64."}}
style()


def seconds(tokens, gpus):
    """Return the computed length of a step."""
    work = tokens / 25_000 * a_step / 300e12 / gpus
    exchange = 2 * (gpus - 1) / gpus * gradient / 100e9
    return max(work, 800 * 8e-6, exchange)


figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
counts = [1, 2, 4, 5, 8, 16, 20, 32, 64]
for tokens, marker, color in ((400_000, "s", VALUE), (100_000, "^", KEY), (25_000, "o", QUERY)):
    gains = [seconds(tokens, 1) / seconds(tokens, gpus) for gpus in counts]
    axis.plot(counts, gains, marker + "-", color=color)
    axis.text(68, gains[-1], f"{tokens:,} tokens", va="center", color=color)
axis.plot([1, 64], [1, 64], "--", color=INK, lw=0.8)
axis.set(
    xscale="log", yscale="log", xlabel="GPUs", ylabel="times the speed of one", xlim=(0.9, 190)
)
axis.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
axis.set_yticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
axis.minorticks_off()
plt.show()
print([round(seconds(tokens, 1) / seconds(tokens, 64), 1) for tokens in (25_000, 100_000, 400_000)])

# %% [markdown]
# This is Amdahl's law in another dress. What does not shrink with the number of GPUs decides in the end. If a step has 6.4 ms that stay and one GPU needs 32, then no number of GPUs makes it more than five times faster.
#
# ### Do I have to scale the learning rate?
#
# Not for more GPUs. The update is the same, so its rate is too. You have to think about it when you make the *batch* larger, which is a decision of its own.
#
# A batch of 400,000 tokens has a gradient with less noise, which can be trusted for a longer step. But there are also fewer steps for the same corpus. Ott and colleagues (*Scaling Neural Machine Translation*, 2018) trained the big model with batches of 400,000 tokens and a peak rate of 0.001, on 128 GPUs in 85 minutes. Their score was no worse than the paper's. So they took sixteen times the batch and not sixteen times the rate. How large must our `lr_scale` be for this rate?

# %%
for name, width in (("base", 512), ("big", 1024)):
    peak = learning_rate(4000, width, 4000)
    print(f"{name}: peak {peak:.5f}; for 0.001 take lr_scale {0.001 / peak:.2f}")

# %% [markdown]
# For `max_tokens` this means: as much as fits into one GPU, times the number of GPUs, since it counts the tokens of all. The rest of 400,000 comes from `grad_accum_steps`. With 8 GPUs of 12,500 tokens each, `max_tokens=100_000` and `grad_accum_steps=4`. The exchange then comes once in four batches, and a slower network will do.
#
# ## What speed adds
#
# [The faster loss](25_speed.ipynb) is a module like the plain one. The wrapper takes it in the same way, since it only sees parameters and their gradients. Compiled layers take all sizes, so shares of any size too. And batches that are made ahead, while the GPU works, are made by each process for itself, from its own share of the plan. Neither needs a word between processes.
#
# ## Questions that come up
#
# **Must each process have the data?** Each makes its own batches, so each reads the corpus, or its share of it. Files on disk that are mapped into memory are held once a machine, however many processes read them.
#
# **Why not send the batches from the first process?** It would have to make eight times as many in the same time, and it is busy.
#
# **Must I set a seed?** For the start of the weights that of the first process counts. All other chance comes from the settings.
#
# **Do the weights drift apart?** They begin equal, get equal gradients from the exchange, and the same arithmetic follows on the same kind of GPU. If machines have *different* kinds of GPU, last bits may differ, and nothing brings them together again until the next start. Do not mix.
#
# **Two GPUs of different speed?** The faster one waits for the slower in each step. Rows are dealt equally, but for one.
#
# **May I go on with another number of processes?** Yes. The folder knows nothing of processes. With dropout other numbers are drawn from there on.
#
# **Is the score computed by all?** `score` is called in every process, and all must come to the same number, or they decide differently about the best model and about stopping. The [command line](G_cli.ipynb) lets each translate its share, with `gather_texts`.
#
# **It is slow and all cores are busy.** Too many threads: set `OMP_NUM_THREADS` to the cores of the machine divided by its processes. `torchrun` takes 1 if you say nothing.
#
# **Can I see it stop?** Press Ctrl-C, or send SIGTERM to `torchrun`. All processes finish their step, the first writes a checkpoint, and the same command goes on from there.
#
# ## What to remember
#
# - One process a GPU, each with the whole model and a share of every batch. They exchange one gradient an update.
# - Sums are added over all processes and divided by the tokens of all. The wrapper divides by the number of processes, so the loss is multiplied by it.
# - All processes make the same plan and take their shares of the same batches. Whatever one decides alone ends in waiting.
# - The first writes, all read. Whoever is asked to stop asks for all.
# - More GPUs need no other learning rate, but a larger batch does. Without a larger batch, the gain ends where launches take longer than work.

# %% [markdown]
# ## Exercises
#
# 1. By hand: the big model has 214 million weights. How many megabytes does each of 4 processes send a step, and how long does that take at 10 Gbit a second? How long with `grad_accum_steps=8`, a batch?
# 2. What breaks if the loss is not multiplied by the number of processes? Try it: let 4 processes leave a quarter of the gradient, with plain gradient descent and with Adam.
# 3. What breaks if the processes shuffle with different seeds? Let two processes take their shares of two plans, and count the sentences that an epoch never shows.
# 4. What happens if one process gets one batch more? Two threads and a barrier can play two processes and an all-reduce.
# 5. By hand: a batch has 10 rows and there are 16 processes. Which processes have no sentence, and what do they compute?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. Twice three quarters of 857 MB; the exchange comes once in eight batches
sent = 2 * 3 / 4 * 4 * 214.2e6
print(f"{sent / 1e6:,.0f} MB, {sent / 1.25e9:.1f} s a step, {sent / 1.25e9 / 8:.2f} s a batch")


# 2. Plain descent makes a quarter of the step; Adam divides by the gradient's size and hides it
def length_of_step(optimizer_of, share):
    model = fresh()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = optimizer_of(model.parameters(), lr=0.001)
    (SmoothedLoss(model)(*whole) * share / labels(whole)).backward()
    optimizer.step()
    moved = [(p.detach() - old).flatten() for p, old in zip(model.parameters(), before)]
    return float(torch.cat(moved).norm())


for kind in (torch.optim.SGD, torch.optim.Adam):
    ratio = length_of_step(kind, 1 / 4) / length_of_step(kind, 1)
    print(f"{kind.__name__}: {ratio:.2f} of the step")
# So with Adam nobody notices, until the norm is logged a quarter as large and clip never acts

# 3. Each sentence is missed by either with chance 1/2, if the plans have nothing in common
plans = [plan_batches(corpus.lengths, 160, seed=seed, epoch=0) for seed in (0, 1)]
seen = {int(i) for rank in (0, 1) for batch in plans[rank] for i in batch[rank::2]}
print(f"never seen: {1 - len(seen) / len(corpus):.0%} of the sentences")
assert 0.15 < 1 - len(seen) / len(corpus) < 0.35


# 4. The one with more waits for a partner that is gone
all_reduce, ends = threading.Barrier(2), {}


def work(rank, count):
    with suppress(threading.BrokenBarrierError):
        for number in range(1, count + 1):
            ends[rank] = f"process {rank} waits in batch {number}"
            all_reduce.wait(timeout=1 if number == 3 else None)
        ends[rank] = f"process {rank} is done with {count}"


threads = [threading.Thread(target=work, args=arguments) for arguments in ((0, 3), (1, 2))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(ends[0], "|", ends[1])


# 5. One row each for ten of them; an empty sentence each for the last six
print([rank for rank in range(16) if labels(share_of(rank, 16)) == 0])
home.cleanup()
