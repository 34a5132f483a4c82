# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Many GPUs
#
# Several processes, each with its own GPU, share one training run: how they find each other, and why every update stays what a single process would make (section 5.2 of the paper).

# %% tags=["export", "hide-input"]
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from time import sleep

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from annotated_transformer.batching import Batch, Example, collate
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.regularization import SmoothedLoss

# %% [markdown]
# The paper's base model learned for twelve hours on eight GPUs, the big one for three and a half days. On one of those GPUs that's four days and four weeks. Sharing the work gives the time back, and its usual form is easily said: each process has the whole model and computes the gradient of its share of every batch; the gradients are added up; all make the same update.
#
# $$ \text{gradient} = \frac{1}{n} \sum_{r=0}^{N-1} \nabla \ell_r, \qquad n = \sum_{r=0}^{N-1} n_r $$ (eq-shared-gradient)
#
# Process $r$ of $N$ has $n_r$ target tokens and a summed loss $\ell_r$. This is **data parallel** training, and by hand it takes fifteen lines. One process alone wouldn't need the three lines with `dist`, nor the slice `[rank::world_size]`.

# %% tags=["hide-cell"]
import inspect
import json
import re
import runpy
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
from safetensors.torch import load_file
from torch.nn.utils import get_total_norm
from torch.optim import Adam

from annotated_transformer import Tokenizer, Transformer, grammar, preset
from annotated_transformer.batching import encode_pairs, plan_batches
from annotated_transformer.schedule import learning_rate
from benchmarks.common import read_log
from book.figures import AMBER, INK, PAPER, PLUM, RESIDUAL, SKY
from book.figures import arrow, box, show_drawing, show_plot, style, words_at


# %%
def by_hand(model, corpus, plan, rank, world_size):
    """Make one update from each batch of a plan, together with the other processes."""
    loss, optimizer = SmoothedLoss(model), Adam(model.parameters(), lr=0.001)
    for weight in model.parameters():
        dist.broadcast(weight.data, src=0)  # Start from the weights of process 0
    for batch in plan:
        optimizer.zero_grad()
        share = collate([corpus[index] for index in batch[rank::world_size]])
        tokens = (share.target[:, 1:] != PAD).sum()
        dist.all_reduce(tokens)  # Count the tokens of all
        (loss(*share) / tokens).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)  # Add up the gradients of all
        optimizer.step()
        yield [weight.grad for weight in model.parameters()]


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-data-parallel", "caption": "What do the processes share, and what does each have for itself? One update by four processes. A batch of ten sentences is dealt like cards; each process runs its share through its own copy of the model. One exchange makes the gradients equal, and so the copies stay equal."}}
hues = (SKY, AMBER, PLUM, RESIDUAL)
parts = [
    words_at(220, 20, "one batch of ten sentences, the same plan in all processes")
]
for row in range(10):
    x, hue = 43 + 36 * row, hues[row % 4]
    parts.append(
        f'<rect x="{x}" y="32" width="30" height="26" fill="{PAPER}" stroke="{hue}"/>'
    )
    parts.append(words_at(x + 15, 50, str(row % 4), color=hue))
for rank, hue in enumerate(hues):
    x = 4 + 109 * rank
    parts.append(arrow([(58 + 36 * rank, 58), (x + 51, 98)], hue))
    count = f"model, {len(range(rank, 10, 4))} sentences"
    parts.append(box(x, 98, 102, 48, f"process {rank}", count))
    parts.append(arrow([(x + 51, 146), (x + 51, 178)], hue))
    parts.append(arrow([(x + 51, 216), (x + 51, 248)]))
    parts.append(box(x, 248, 102, 38, "same update"))
parts.append(box(4, 178, 429, 38, "all-reduce: add up token counts and gradients"))
show_drawing(
    parts,
    436,
    300,
    "Ten sentences are dealt to four processes, three to each of the first two and two to each of the others. All-reduce joins their gradients, and all four make the same update.",
)

# %% [markdown]
# Which of the four lines, the three with `dist` and the slice, could you leave out? Without the broadcast the copies drift apart. Without the count some words weigh more than others, without the last exchange each process trains a model of its own, and without the slice every one does all the work.
#
# We never had several GPUs. What is *measured* here ran in several processes on one CPU, which exchange gradients in the same way through another library, or on a single GPU. What is said about several is *computed*.
#
# (One could also cut [the optimizer's state, or the model](#three-things-to-cut). But without activations, training in bf16 takes 1.1 GB for base and 3.9 GB for big, and the activations shrink with the share of the batch, so cutting the batch is enough.)
#
# ## Why add, and not take the mean?
#
# The obvious way to join processes is that each computes its usual loss, a mean over its own tokens, and the gradients are averaged. We try it with the two halves of one batch, in double precision. `gradient_of` returns the gradient of a share's summed loss, divided by a number of tokens:

# %% tags=["hide-input"]
pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)
plan = plan_batches(corpus.lengths, max_tokens=160, seed=0, epoch=0)


def fresh():
    """Return a very small model, always with the same start."""
    torch.manual_seed(3)
    sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0}
    return Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes)).double()


def share_of(batch, rank=0, world_size=1):
    """Return what one of several processes gets of a batch."""
    return collate([corpus[index] for index in batch[rank::world_size]])


def labels(share):
    return int((share.target[:, 1:] != PAD).sum())


def gradient_of(share, tokens):
    """Return the gradient of a share's summed loss, divided by a number of tokens."""
    model = fresh()
    (SmoothedLoss(model)(*share) / tokens).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %% tags=["hide-input"]
whole, halves = share_of(plan[0]), [share_of(plan[0], rank, 2) for rank in (0, 1)]
tokens = [labels(half) for half in halves]

# %% tags=["nbval-ignore-output"]
right = gradient_of(whole, sum(tokens))
added = sum(gradient_of(half, sum(tokens)) for half in halves)
of_means = sum(gradient_of(half, count) for half, count in zip(halves, tokens)) / 2
off = [float((wrong - right).norm() / right.norm()) for wrong in (added, of_means)]
print(f"tokens {tokens}: added up, off by {off[0]:.0e}; mean of means, by {off[1]:.1%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert off[0] < 1e-14 and off[1] > 0.001

# %% [markdown]
# The first number is rounding. The second is the [mean of means](18_training.ipynb#the-mean-over-all-tokens) that also spoils accumulation: a word of the half with fewer tokens counts for more. The cure is the same: count the tokens of *all*, divide by that number, then add.
#
# ## Two processes
#
# A **process** is a running program with memory that no other can see. Threads would share memory, but in Python they take turns, and their GPUs would wait. Hence one process per GPU.
#
# `torchrun`, which comes with PyTorch, starts a script several times and tells each copy through its environment which one it is:
#
# | variable | what it says | two machines with four GPUs each |
# |---|---|---|
# | `RANK` | the number of this process among all, its **rank** | 0 to 3 on the first, 4 to 7 on the second |
# | `LOCAL_RANK` | its number on its own machine, and so the number of its GPU | 0 to 3 on both |
# | `WORLD_SIZE` | how many processes there are, the **world size** | 8 |
# | `MASTER_ADDR`, `MASTER_PORT` | where they meet | the first machine, a free port |
#
# `dist.init_process_group` reads these and waits until all are there. From then on there are *collective* operations, which all processes call in the same order, and which return when all have called. **All-reduce** takes a tensor from each, adds them up, and leaves the sum with all. `broadcast` gives all what one has. The library underneath is NCCL between GPUs and gloo between CPUs, as on this page.
#
# We put `by_hand` into a script and start it twice. Each process starts from different weights, so a missing broadcast would show.

# %% tags=["hide-input"]
home = tempfile.TemporaryDirectory()
SCRIPT = f"""
import sys

import torch
import torch.distributed as dist
from torch.nn.utils import get_total_norm
from torch.optim import Adam

from annotated_transformer import Tokenizer, Transformer, grammar, preset
from annotated_transformer.batching import collate, encode_pairs, plan_batches
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss

{inspect.getsource(by_hand)}

pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)
plan = plan_batches(corpus.lengths, max_tokens=160, seed=0, epoch=0)[:3]

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3 + rank)
sizes = dict(layers=1, d_model=32, d_ff=64, heads=2, dropout=0.0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes)).double()
for step, gradients in enumerate(by_hand(model, corpus, plan, rank, world_size), start=1):
    rows = len(plan[step - 1][rank::world_size])
    told = f"step {{step}}, process {{rank}}: {{rows}} sentences, norm {{get_total_norm(gradients):.4f}}"
    sys.stdout.write(told + "\\n")  # in one piece, or the lines of two processes mix
dist.destroy_process_group()
"""
_ = Path(home.name, "by_hand.py").write_text(SCRIPT)

# %% tags=["hide-input"]
ALONE_ON_THE_CPU = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def launch(script, size, *arguments, restarts=0):
    """Run a script in `size` processes; return what they print, and what torchrun says."""
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command = [sys.executable, *run, f"--max-restarts={restarts}", script, *arguments]
    done = subprocess.run(
        command, cwd=home.name, capture_output=True, text=True, env=ALONE_ON_THE_CPU
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    # Some releases of gloo report their connections
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    return "\n".join(lines), done.stderr


print("$ torchrun --standalone --nproc-per-node=2 by_hand.py")
out, _ = launch("by_hand.py", 2)
print(*sorted(out.splitlines()), sep="\n")

# %% [markdown]
# Both hold the same gradient after each exchange. Are these the updates of a single process? The plain loop, without `dist` and without sharing, says:

# %% tags=["hide-input"]
model = fresh()
loss, optimizer = SmoothedLoss(model), Adam(model.parameters(), lr=0.001)
norms = {}
for step, batch in enumerate(plan[:3], start=1):
    optimizer.zero_grad()
    alone = share_of(batch)
    (loss(*alone) / labels(alone)).backward()
    optimizer.step()
    norm = get_total_norm([p.grad for p in model.parameters()])
    norms[step] = norm
    print(f"step {step}: {len(batch)} sentences, norm {norm:.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    for step, norm in norms.items():
        assert len(re.findall(f"step {step}, .* norm {norm:.4f}", out)) == 2

# %% [markdown]
# ### The cost of an all-reduce
#
# If one process collected all gradients of $G$ bytes and sent the sum back, it would receive and send $(N - 1) G$ bytes, while the cables of the others would be idle. A **ring** does better. Each process cuts its gradient into $N$ chunks, and in each round sends *one* chunk to its right neighbor. For $N - 1$ rounds the receiver adds what comes; then each process has one complete chunk. In $N - 1$ further rounds the complete chunks travel once around.


# %% tags=["hide-input"]
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

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(states[-1], numbers.sum(dim=0).expand(4, 4))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ring", "caption": "How does a sum get everywhere when each process talks to its neighbor only? Four processes (rows) with four chunks each (columns), after each of six rounds. The number says how many processes' gradients a chunk has summed up, the more, the fuller the cell. A frame marks what has just arrived. After round 3 each process has one complete chunk; after round 6 all have all."}}
style()
figure, axes = plt.subplots(2, 4, figsize=(4.6, 3.2), layout="constrained")
axes = axes.flatten()
axes[-1].set_axis_off()
counted = ring(torch.ones(4, 4, dtype=torch.long))
for turn, (axis, state) in enumerate(zip(axes, counted)):
    axis.set(xlim=(-0.5, 3.5), ylim=(3.5, -0.5), aspect="equal")
    for row in range(4):
        for column in range(4):
            amount = int(state[row, column])
            corner = (column - 0.5, row - 0.5)
            share = (amount - 1) / 4
            axis.add_patch(plt.Rectangle(corner, 1, 1, fc=SKY, alpha=share, lw=0))
            axis.text(column, row, amount, ha="center", va="center")
            if turn and amount != int(counted[turn - 1][row, column]):
                frame = (column - 0.46, row - 0.46)
                axis.add_patch(
                    plt.Rectangle(frame, 0.92, 0.92, fill=False, ec=AMBER, lw=2)
                )
    axis.set(
        title="start" if turn == 0 else f"round {turn}",
        xticks=range(4),
        yticks=range(4),
    )
    axis.set_xlabel("chunk", labelpad=0)
for axis in axes[::4]:
    axis.set_ylabel("process")
show_plot(
    alt="Seven grids of four by four. At the start all cells say 1; the sums grow along diagonals until each row has one 4 after round 3, and all cells say 4 after round 6.",
)

# %% [markdown]
# Each process sends $G / N$ bytes in each of $2 (N - 1)$ rounds, together
#
# $$ \frac{2 (N - 1)}{N} \, G, $$ (eq-ring)
#
# which is never more than $2 G$, however many processes there are. For the base model $G$ is 63 million numbers of 4 bytes. Computed for the cable of an office, of a machine room, of a good cluster, and for the links between the GPUs of one machine:

# %% tags=["hide-input"]
with torch.device("meta"):
    base = Transformer(preset("base"))
gradient = 4 * sum(p.numel() for p in base.parameters())
print(
    f"gradient {gradient / 1e6:.0f} MB; of 8 processes each sends {1.75 * gradient / 1e6:.0f} MB"
)
links = {
    "1 Gbit per second": 0.125e9,
    "10 Gbit": 1.25e9,
    "100 Gbit": 12.5e9,
    "300 GB per second": 300e9,
}
for name, speed in links.items():
    times = [f"{2 * (n - 1) / n * gradient / speed * 1000:9,.1f}" for n in (2, 8, 64)]
    print(f"{name:17} {' '.join(times)}  ms with 2, 8 and 64 processes")

# %% tags=["remove-cell"]
if CHECKING:
    sent = 1.75 * gradient
    assert 5 < 1e3 * sent / 1.25e9 / 65 < 5.5
    assert round(1e3 * sent / 1.25e9) == 353 and round(1e3 * sent / 300e9, 1) == 1.5

# %% [markdown]
# Compare this with a step, which took [65 ms on an H200](26_speed.ipynb#when-a-gpu-waits-for-the-program). Within one machine, eight processes exchange in 1.5 ms. Over 10 Gbit it takes 353 ms, and a step of eight machines with one GPU each would take more than five times as long as on one GPU.
#
# ## Exchange while computing
#
# `by_hand` computes its whole gradient and then exchanges it, so first the network is idle and then the GPU. But the backward pass finishes the last layer's gradients first, and those could already travel.
#
# PyTorch's wrapper `DistributedDataParallel`, **DDP** {cite:p}`li2020pytorch`, does that. When it is made, it sends the weights of process 0 to all. In the backward pass, a hook on each parameter collects gradients in **buckets** of 25 MB, about in the order in which they become ready, and a full bucket leaves at once, beside the computation. When `backward` returns, `.grad` holds the gradient joined from all processes.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-overlap", "caption": "What does it save to exchange early? One step, first with the exchange after the backward pass, then with four buckets that leave as they become full. The lengths are made up: forward 1, backward 2, exchange 1.6, Adam 0.3. Only the last bucket is still waited for."}}
style()
figure, axes = plt.subplots(2, 1, figsize=(4.8, 3.2), layout="constrained", sharex=True)
for axis, early in zip(axes, (False, True)):
    blocks, free = [("GPU", 0.0, 1.0, SKY, "forward")], 0.0
    for bucket in range(4):
        ready = 1.5 + 0.5 * bucket
        blocks.append(("GPU", ready - 0.5, 0.5, PLUM, f"back\n{4 - bucket}"))
        free = max(free, ready if early else 3.0)
        blocks.append(("network", free, 0.4, AMBER, f"{bucket + 1}"))
        free += 0.4
    blocks.append(("GPU", free, 0.3, RESIDUAL, "Adam"))
    for place, start, length, color, label in blocks:
        row = 0 if place == "GPU" else 1
        axis.barh(row, length - 0.02, left=start, fc=(color, 0.2), ec=color, lw=1.5)
        height = -0.6 if label == "Adam" else row  # above a box that is too narrow
        axis.text(start + length / 2, height, label, ha="center", va="center")
    axis.axvline(free + 0.3, color=INK, lw=0.8, ls="--")
    axis.text(free + 0.34, 0.5, f"{free + 0.3:.1f}", va="center", fontsize=9)
    axis.set(
        yticks=(0, 1),
        yticklabels=("GPU", "network:\nbucket"),
        ylim=(1.6, -0.85),
        xlim=(0, 5.4),
    )
    axis.set_title(
        "buckets leave early" if early else "exchange at the end", fontsize=10
    )
axes[1].set_xlabel("time")
show_plot(
    alt="Two timelines. Without overlap the step ends at 4.9; with overlap three of four exchanges lie beside the backward pass and the step ends at 3.7.",
)

# %% [markdown]
# In the figure 1.2 of 1.6 units are hidden. In our model the last bucket is large: the embedding matrix has 76 of the 252 MB, and since it is [used at both ends](07_embeddings.ipynb#one-table-three-uses), its gradient is complete only when all else is. Thirty percent of the exchange can't be hidden.
#
# ### The lines of the training loop
#
# [The loop](18_training.ipynb#the-loop) need not know how many processes there are. Three things make it a shared one: every process reads its share of each batch, the loss goes through DDP, and the tokens, by whose number each loss is divided, are counted over all of them. In a loop of your own the last two look like this:
#
# ```python
# parallel = DistributedDataParallel(loss)  # sends the weights of process 0 to all
# mean_tokens = all_reduce_mean(tokens)  # n / N: tokens of all, over the number of processes
# (parallel(source, target) / mean_tokens).backward()  # exchanges the gradients
# ```
#
# Here `tokens` is the number of target tokens in this process's share of the batch. What the package uses is this:


# %% tags=["export"]
def rank_and_world_size() -> tuple[int, int]:
    """Return the number of this process and of all that train together: (0, 1) for one alone."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def all_reduce_mean(numbers: Tensor) -> Tensor:
    """Return the mean of numbers over all processes, in double precision."""
    total = numbers.double()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total / rank_and_world_size()[1]


class DataParallelLoss(SmoothedLoss):
    """A loss whose gradients are averaged over all processes, once per update.

    `batches_per_update` is the number of its calls, each with a backward pass, in an update.
    """

    def __init__(self, loss: SmoothedLoss, batches_per_update: int = 1) -> None:
        super().__init__(loss.model, loss.label_smoothing)
        self.parallel = DistributedDataParallel(loss)
        self.batches_per_update = batches_per_update
        self.calls = 0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of this process's sentences."""
        self.calls += 1
        last = self.calls % self.batches_per_update == 0
        with nullcontext() if last else self.parallel.no_sync():
            loss: Tensor = self.parallel(source, target)
        return loss


# %% [markdown]
# DDP takes the *mean* of the processes' gradients where we want their sum, so the result is $N$ times too small. If each process divides its loss by the mean number of tokens, $n / N$, instead of $n$, that [makes up for it](#why-is-the-loss-divided-by-the-mean-number-of-tokens).
#
# DDP wraps the *loss*, which contains the model. Only what is called through the wrapper takes part in the exchange: if you wrap the model and compute the loss along another path, each process trains a model of its own.
#
# ## One plan for all
#
# There are three ways to hand out sentences.
#
# | way | what happens |
# |---|---|
# | each process shuffles the corpus with its own seed | in an epoch some sentences come several times, others never |
# | the corpus is cut once, each process keeps its part | each comes once, but parts may have unequal numbers of batches |
# | all make the same plan, and each takes its share of every batch | the batches are those of a single process |
#
# In the second way, a process that has one batch more than the others [waits forever for them](#why-does-training-hang-at-the-end-of-an-epoch) at the end of the epoch. We take the third. [The plan](15_batching.ipynb#a-plan-for-an-epoch) follows from lengths, seed and epoch, so all processes make the same one by themselves, and `[rank::world_size]` deals each batch like cards. A process without a sentence gets an empty one without a label, whose loss and count are zero:

# %% tags=["export"]
EMPTY_EXAMPLE = Example(np.array([EOS]), np.array([BOS, PAD]))  # without any label


def collate_share(examples: Sequence[Example]) -> Batch:
    """Return the batch of some examples; of none, a batch that adds nothing to the loss."""
    return collate(examples or [EMPTY_EXAMPLE])


# %% [markdown]
# `max_tokens` counts the positions of the *whole* batch. The same settings therefore make the same updates on any number of GPUs, at the same learning rate ([a larger batch](#do-i-have-to-scale-the-learning-rate) would want another), and a run that began on one can go on with eight. In many tools the number is meant for each process, and more GPUs mean a larger batch.
#
# ## The same result as on one GPU
#
# One function connects the processes that `torchrun` has started, and gives each its GPU. Without `torchrun` it gives a device, and that is all. After an error it says no good-bye, because the others hang in an all-reduce: the process ends at once, and `torchrun` ends the rest.


# %% tags=["export"]
@contextmanager
def process_group(device: str | None = None) -> Iterator[torch.device]:
    """Join the processes that torchrun has started, if it has; give the device of this one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    own_device = torch.device(device)
    if not dist.is_torchelastic_launched():
        yield own_device
        return
    if own_device.type == "cuda":
        own_device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own_device)
    store, rank, world_size = next(rendezvous("env://"))
    if os.environ["GROUP_WORLD_SIZE"] == "1":  # one machine
        # After a restart, the store still holds the addresses of processes that are dead
        restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
        store = dist.PrefixStore(f"restart {restart}", store)  # type: ignore[attr-defined] # untyped
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if own_device.type == "cuda" else "gloo",
        timeout=timedelta(minutes=20),  # the first may have a large checkpoint to write
        store=store,
        rank=rank,
        world_size=world_size,
    )
    yield own_device
    sleep(0.1)  # a thread of gloo that still frees a tensor could abort Python's exit
    dist.destroy_process_group()


def gather_texts(texts: list[str]) -> list[list[str]]:
    """Return the texts of all processes, in the order of their ranks; alone, one's own."""
    if not dist.is_initialized():
        return [texts]
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, texts)
    return gathered


# %% [markdown]
# A script of your own needs three lines:
#
# ```python
# with process_group() as device:
#     model = Transformer(config).to(device)
#     train(model, tokenizer, pairs, settings, validation=validation, folder="run")
# ```
#
# We run it with one process, without `torchrun`, and then with two, in double precision and without dropout, [which each process draws for itself](#random-numbers-of-each-process).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the script", "code_prompt_hide": "Hide the script"}
TRAIN = '''
import sys

import torch

from annotated_transformer import Tokenizer, TrainingConfig, Transformer
from annotated_transformer import grammar, preset, train
from annotated_transformer.distributed import process_group, rank_and_world_size


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
        torch.manual_seed(rank)
        sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0}
        model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes))
        train(model.double().to(device), tokenizer, pairs[20:], config, validation=pairs[:20],
              folder=folder, report=report)


if __name__ == "__main__":
    main(sys.argv[1])
'''
_ = Path(home.name, "train.py").write_text(TRAIN.lstrip())

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show both runs", "code_prompt_hide": "Hide both runs"}
print("$ python train.py run-1")
main = runpy.run_path(str(Path(home.name, "train.py")))["main"]
main(Path(home.name, "run-1"))
print("\n$ torchrun --standalone --nproc-per-node=2 train.py run-2")
out, _ = launch("train.py", 2, "run-2")
print(out)

# %% tags=["remove-cell"]
if CHECKING:
    assert "process 1 of 2 is there" in out and "step  60" in out


# %% tags=["hide-input", "nbval-ignore-output"]
def distance(one, other):
    """Return the largest difference between the weights that two runs have left."""
    first, second = (
        load_file(Path(home.name, run, "model.safetensors")) for run in (one, other)
    )
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def losses(run):
    """Return step and loss of each record of a run's log."""
    lines = Path(home.name, run, "log.jsonl").read_text().splitlines()
    return {r["step"]: r["loss"] for r in map(json.loads, lines) if "loss" in r}


apart = max(abs(loss - losses("run-1")[step]) for step, loss in losses("run-2").items())
print(f"losses differ by {apart:.0e}, weights by {distance('run-1', 'run-2'):.0e}")

# %% tags=["remove-cell"]
if CHECKING:
    assert apart < 1e-5 and distance("run-1", "run-2") < 1e-12

# %% [markdown]
# Only the last bits differ, because sums are made in another order. In single precision rounding is half a billion times larger, and over 100,000 steps a run on one GPU and a run on eight drift apart into two equally good models.
#
# And if a process dies? The others wait for it in an all-reduce, but `torchrun` watches: with `--max-restarts=3` it ends them and starts all again, and they go on from the last checkpoint. [We killed one](#when-a-process-dies) to try it, and the weights were those of the undisturbed run, to the last bit. With [several machines](#several-machines), each runs one `torchrun`, and all name the same meeting place.
#
# ## How fast it can be
#
# Do twice as many GPUs train on twice as many tokens per second? If the batch grows with their number (**weak scaling**), nearly. If the batch stays the same (**strong scaling**), there is a limit. Of the paper's 25,000 positions each of eight GPUs gets 3,125, and for so small a step one H200 needed [62 ms, where the whole batch took 65](26_speed.ipynb#when-a-gpu-waits-for-the-program). At the paper's batch, more GPUs of this kind would gain next to *nothing* for the base model. What would help is a batch that keeps each of them busy:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scaling", "caption": "Does twice the number of GPUs halve the time? The base model, for batches of 25,000, 100,000 and 400,000 positions. Marks: the measured step of one H200 with the whole batch, divided by the measured step with its share, as if the exchange cost nothing (a batch or a share above 100,000 counts as several steps of 100,000). Lines: a model, in which a step takes the longer of its work and a floor of 62 ms. No run had several GPUs."}}
gpu = {line["name"]: line for line in read_log("gpu-NVIDIA-H200")[1:]}
sizes = {line["max_tokens"]: name for name, line in gpu.items() if "max_tokens" in line}
sizes[25_000] = "base"


def milliseconds(name):
    """Return how long a step took on the H200, in the middle of five rounds of five steps."""
    return 1e3 * median(gpu[name]["seconds"]) / 5


step_ms = {tokens: milliseconds(name) for tokens, name in sorted(sizes.items())}
style()
WORK = sum(gpu["100,000 tokens"]["kernels"].values()) / 100_000  # ms per position
FLOOR = step_ms[3_125]


def step_of(tokens, gpus):
    """The measured step of one GPU with its share of a batch, in parts where that is larger."""
    share = tokens // gpus
    parts = max(1, share // 100_000)
    return parts * step_ms[share // parts]


figure, axis = plt.subplots(figsize=(4.4, 3.8), layout="constrained")
for tokens, marker, color, counts in (
    (400_000, "s", SKY, (1, 2, 4, 8, 16, 32)),
    (100_000, "^", AMBER, (1, 2, 4, 8, 32)),
    (25_000, "o", PLUM, (1, 2, 8)),
):
    gains = [step_of(tokens, 1) / step_of(tokens, gpus) for gpus in counts]
    axis.plot(counts, gains, marker, color=color)
    more = [2 ** (k / 4) for k in range(25)]
    model = [max(tokens * WORK, FLOOR) / max(tokens * WORK / n, FLOOR) for n in more]
    axis.plot(more, model, "-", color=color, lw=1)
    axis.text(70, model[-1], f"{tokens:,}", va="center", color=color)
axis.plot([1, 64], [1, 64], "--", color=INK, lw=0.8)
axis.text(20, 30, "ideal", ha="right")
axis.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="times the speed of one")
axis.set(xlim=(0.9, 210), ylim=(0.8, 70))
axis.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
axis.set_yticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
axis.minorticks_off()
axis.grid(False)
show_plot(
    alt="With 25,000 positions the speed stays at one for any number of GPUs; with 100,000 it stops at three, with 400,000 near twelve. Only up to there do the marks follow the dashed ideal.",
)

# %% tags=["remove-cell"]
if CHECKING:
    launches = [gpu[sizes[tokens]]["launches"] for tokens in (3_125, 25_000)]
    assert 1380 < launches[0] < 1400 and 1950 < launches[1] < 2050
    assert [round(ms) for ms in step_ms.values()] == [62, 67, 65, 105, 190]
    assert 1.0 < step_ms[25_000] / step_ms[3_125] < 1.06
    assert 2.8 < step_ms[100_000] / step_ms[12_500] < 2.9
    assert round(milliseconds("big")) == 107
    assert round(milliseconds("big") / step_ms[3_125], 1) == 1.7
    assert 11 < step_of(400_000, 1) / step_of(400_000, 32) < 12
    assert step_of(400_000, 1) / step_of(400_000, 8) > 7

# %% [markdown]
# As in Amdahl's law, what doesn't shrink with the number of GPUs decides in the end. With 400,000 positions, eight GPUs are seven times as fast as one; with 100,000, three times. The big model took 107 ms for the paper's batch, so if its floor is the same, any number of GPUs would be at most 1.7 times as fast as one. Fewer launches would lower the floor itself.
#
# ## What to remember
#
# - One process per GPU, each with the whole model and a share of every batch, and one exchange of gradients per update.
# - Add the gradients and divide by the number of tokens in all processes. DDP takes the mean of the gradients, so each process divides its loss by the mean number of tokens of a process.
# - All processes make the same plan. A process with one batch more than the others would wait for them forever.
# - More GPUs don't call for another learning rate, but a larger batch does.
# - With the same batch, the gain ends where a step takes no longer than its launches. For base, one GPU of today is there already.
#
# Everything has been tried at a small size. What remains is the paper's own training: the commands, the hours, and the score to expect.

# %% [markdown]
# ## Exercises
#
# **1. By hand** (★, 5 min). The big model has 214 million weights. How many megabytes does each of 4 processes send per step, and how long does that take at 10 Gbit per second? And for each batch with `grad_accum_steps=8`?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Twice three quarters of 857 MB; with accumulation the exchange comes once in eight batches.
sent = 2 * 3 / 4 * 4 * 214.2e6
print(
    f"{sent / 1e6:,.0f} MB, {sent / 1.25e9:.1f} s per step, {sent / 1.25e9 / 8:.2f} s per batch"
)

# %% [markdown]
# **2. The forgotten factor** (★★, 10 min). What breaks if each process divides its loss by the tokens of all? Leave a quarter of the gradient, as 4 processes would, and compare the length of a step with plain gradient descent and with Adam.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Plain descent makes a quarter of the step. Adam divides by the gradient's usual size and hides it:
# you would notice by the logged norm, or by a grad_clip that never acts.
def length_of_step(optimizer_of, share):
    model = fresh()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = optimizer_of(model.parameters(), lr=0.001)
    (SmoothedLoss(model)(*whole) * share / labels(whole)).backward()
    optimizer.step()
    return get_total_norm(
        [p.detach() - old for p, old in zip(model.parameters(), before)]
    )


for kind in (torch.optim.SGD, torch.optim.Adam):
    ratio = length_of_step(kind, 1 / 4) / length_of_step(kind, 1)
    print(f"{kind.__name__}: {ratio:.2f} of the step")

# %% [markdown]
# **3. Two seeds** (★★, 10 min). What breaks if two processes shuffle with different seeds? Let them take their shares of two plans, and count the sentences that an epoch never shows.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# If the plans had nothing in common, either would miss a sentence with chance 1/2, both with 1/4.
plans = [plan_batches(corpus.lengths, 160, seed=seed, epoch=0) for seed in (0, 1)]
seen = {int(i) for rank in (0, 1) for batch in plans[rank] for i in batch[rank::2]}
print(f"never seen: {1 - len(seen) / len(corpus):.0%} of the sentences")

# %% tags=["remove-cell"]
if CHECKING:
    assert 0.15 < 1 - len(seen) / len(corpus) < 0.35

# %% [markdown]
# **4. A batch more** (★★, 15 min). Make a training run hang without any GPU: two threads and a `threading.Barrier` play two processes and an all-reduce, and one of them has three batches, the other two.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The one with more waits for a partner that is gone. Here a timeout of a second ends it.
all_reduce, ends = threading.Barrier(2), {}


def work(rank, count):
    with suppress(threading.BrokenBarrierError):
        for number in range(1, count + 1):
            ends[rank] = f"process {rank} waits in batch {number}"
            all_reduce.wait(timeout=1 if number == 3 else None)
        ends[rank] = f"process {rank} is done with {count}"


threads = [
    threading.Thread(target=work, args=arguments) for arguments in ((0, 3), (1, 2))
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(ends[0], "|", ends[1])

# %% [markdown]
# **5. Reduce-scatter** (★★★, 60 min, open). ZeRO needs each process to have only *its* chunk of the summed gradient, and afterwards all weights. Which rounds of `ring` are the first, which the second? Write an Adam update in which each process keeps the moments of its chunk alone, check it against `by_hand`, and count the bytes sent.
#
# **6. One plan, checked** (★★, 20 min, open). Let all processes compare their plans at the start of an epoch with a single all-reduce. What do you add up so that equal sums mean equal plans?
#
# ## Second reading
#
# ### Three things to cut
#
# :::{admonition} What else is cut when a model doesn't fit on one GPU
# :class: dropdown
# | what is cut | each process holds | they exchange | needed when |
# |---|---|---|---|
# | the batch | the whole model, some of the sentences | one gradient per step | a step takes too long |
# | the optimizer's state | all weights, some of the moments | gradients and weights, each step | the moments don't fit on one GPU |
# | the model | some layers (pipeline parallel), or some columns of each matrix (tensor parallel) | what the layers compute, in each layer | the weights don't fit on one GPU |
#
# For models of many billion weights, **ZeRO** {cite:p}`rajbhandari2020zero` and PyTorch's **FSDP** (fully sharded data parallel) {cite:p}`zhao2023fsdp` let each process keep only its part of moments, gradients and weights, and fetch the others just before they are needed. That is still data parallel training. The network carries up to half as much again.
# :::
#
# ### Why is the loss divided by the mean number of tokens?
#
# :::{admonition} Two means that cancel
# :class: dropdown
# Because DDP leaves the *mean* of the gradients, and we want their sum over all tokens, {eq}`eq-shared-gradient`. If each process divides its loss by the mean number of tokens, $n / N$, the two means cancel:
#
# $$ \frac{1}{N} \sum_{r} \nabla \frac{\ell_r}{n / N} = \frac{1}{n} \sum_{r} \nabla \ell_r $$ (eq-times-size)
#
# Divided by the tokens of all, the gradient would be $N$ times too small; exercise 2 asks who would notice.
# :::
#
# ### Gradient accumulation with DDP
#
# :::{admonition} One exchange for several batches
# :class: dropdown
# Each backward pass would end with an exchange: four times 441 MB for `grad_accum_steps=4`, where one exchange of the sum will do. Within `no_sync` gradients stay at home and add up, and the first backward pass outside exchanges them all. It is the forward pass that must be inside, since there the wrapper decides what its hooks will do.
# :::
#
# ### Why does training hang at the end of an epoch?
#
# :::{admonition} One process has a batch more
# :class: dropdown
# Usually because one process has a batch more. Let process 0 have 101 batches and process 1 have 100. After step 100 process 1 leaves its loop; process 0 reaches the all-reduce of step 101 and waits for a partner that will never call. Its GPU even shows 100 percent load, because on a GPU waiting is a busy loop. The message after the timeout, 20 minutes here, doesn't mention batches at all.
#
# The same happens whenever processes disagree about what is next: one skips a bad batch, say, or obeys a signal a step before the others. Each such decision must follow from what all know, plan and step, or be taken together: our processes add up in each step the answers to "was I asked to stop?", and one yes is enough. Whether patience is at an end, they decide by the validation loss, which is a mean over all processes.
# :::
#
# ### When a process dies
#
# :::{admonition} Process 0 is killed at step 50
# :class: dropdown
# The others are in an all-reduce whose partner is gone, and would wait until the timeout. But `torchrun` watches. It ends them, and with `--max-restarts=3` starts all anew, up to three times. The script begins at its top, `train` finds the folder, and all [go on from the last checkpoint](29_trainer.ipynb#killed-and-continued).
#
# We kill process 0, the only one that writes checkpoints, at step 50. The last checkpoint is from step 40.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the run that is killed", "code_prompt_hide": "Hide the run that is killed"}
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
print(
    "$ torchrun --standalone --nproc-per-node=2 --max-restarts=3 killed.py run-killed"
)
out, err = launch("killed.py", 2, "run-killed", restarts=3)
print(out)

# %% tags=["remove-cell"]
if CHECKING:
    assert out.count("process 0 of 2 is there") == 2
    assert "Signal 9 (SIGKILL)" in err or "exitcode: -9" in err

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show what it left", "code_prompt_hide": "Hide what it left"}
print(f"weights differ by {distance('run-2', 'run-killed'):.0e}")
print("steps in the log:", *losses("run-killed"))

# %% tags=["remove-cell"]
if CHECKING:
    assert distance("run-2", "run-killed") == 0 and losses("run-killed") == losses(
        "run-2"
    )
    home.cleanup()

# %% [markdown]
# :::{admonition} The same weights, to the last bit
# :class: dropdown
# Steps 41 to 50 ran twice, and step 50 is in the log once, and the weights are those of the undisturbed run, to the last bit. A SIGTERM to `torchrun` is passed on to all; they leave a checkpoint and end, within the 30 seconds that `torchrun` grants.
# :::
#
# ### Several machines
#
# :::{admonition} How they find each other
# :class: dropdown
# What is new with two machines is how they find each other. Each runs one `torchrun`, and all name the same meeting place, the **rendezvous**. (The first line makes a new store for each restart.)
#
# ```bash
# export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 \
#     --rdzv-backend=c10d --rdzv-id=my-run --rdzv-endpoint=first-machine:29500 train.py run
# ```
#
# The folder of the run must be on a disk that all machines see, because after a restart the first process may be on another one. The last chapter has [a script for Slurm](30_wmt14.ipynb#a-cluster-with-slurm). We had one machine, so neither was run.
# :::
#
# ### What fails, and how it shows
#
# :::{admonition} Eight failures, their causes, and what to do
# :class: dropdown
# | you see | the cause | what to do |
# |---|---|---|
# | waiting at the start, then a timeout | the machines don't reach each other, or the library took the wrong network | `nc -vz first-machine 29500`; set `NCCL_SOCKET_IFNAME` to a name from `ip addr` |
# | all wait, GPUs at 100 percent, an error after 20 minutes | one process is somewhere else: a batch more, a slow disk, a decision taken alone | `py-spy dump --pid` on each machine shows where |
# | "another process is working in" the folder, from all but one | started without `torchrun`: each believes itself alone | start with `torchrun`, also below `srun` |
# | `invalid device ordinal` | more processes than GPUs | `--nproc-per-node=gpu` takes as many as there are |
# | one process out of memory, broken connections in the others | only the first is a cause | look for *root cause* in what `torchrun` prints; halve `max_tokens`, double `grad_accum_steps` |
# | *Expected to have finished reduction in the prior iteration* | a weight took no part in the loss: a layer that nobody calls, a second embedding table | after a backward pass of one process, `[n for n, p in model.named_parameters() if p.grad is None]` names it |
# | "the processes of this run were not all given the same" settings, which it names | another option or another corpus on one machine | one command for all, one shared folder |
# | an error about sizes, or a slightly wrong loss | other code on one machine | one container |
#
# The last is the nastiest: when a run starts, `train` compares the settings and the corpora of all processes, and can't compare their code. The table comes from what PyTorch and its libraries say and from the code of this chapter, not from experience with a cluster.
# :::
#
# ### Random numbers of each process
#
# :::{admonition} The plan draws alike, dropout doesn't
# :class: dropdown
# For the plan the seed must be the same in all; for dropout it must not. If all processes drew the same numbers, row 0 of each share would lose the same units, and an update would have the noise of a smaller batch. The loop draws dropout from seed, step, rank and world size. With dropout, runs with one and with two processes are therefore equally good, but not equal.
# :::
#
# ### Who writes, and who scores?
#
# :::{admonition} The first one writes, and all score
# :class: dropdown
# Process 0 alone takes the lock, writes [settings, log and checkpoints](29_trainer.ipynb), and draws the progress bar. All read the last checkpoint when a run continues, and add up the steps they found: if one machine had a folder of its own, the sum would be wrong, and all end with an error. The gradient's norm is computed by each after the exchange, so a `nan` in one process is a `nan` in all, and all stop with the same message. The loop calls `score` in every process, and all need the same number, since it decides about the best model. The score of the [command line](G_cli.ipynb#scoring) lets each translate a share of the sentences and gives all translations to all.
# :::
#
# ### Do I have to scale the learning rate?
#
# :::{admonition} Sixteen times the batch, twice the rate
# :class: dropdown
# Not for more GPUs: the update is the same, so its rate is too. A larger *batch* is another matter. Its gradient has less noise and can be trusted for a longer step. {cite:t}`ott2018scaling` trained the big model with about 400,000 tokens per update and a peak rate of 0.001, on 128 GPUs in 85 minutes, and got 29.3 BLEU where the paper has 28.4 (on WMT16's training data). That is sixteen times the batch, and twice the rate. What this is in our settings is printed below.
#
# `max_tokens` should be what fits into one GPU times the number of GPUs, and `grad_accum_steps` makes up the rest: with eight GPUs of 12,500 tokens each, 100,000 and 4. [The last chapter](30_wmt14.ipynb#two-recipes) has a recipe for either model.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the settings", "code_prompt_hide": "Hide the settings"}
for name, width in (("base", 512), ("big", 1024)):
    peak = learning_rate(4000, width, 4000)
    print(f"{name}: peak {peak:.5f}; for 0.001 take lr_scale {0.001 / peak:.2f}")

# %% [markdown]
# ## Sources
#
# Hardware and hours are from section 5.2 of {cite:t}`vaswani2017attention`. DDP, its buckets and its hooks are described by {cite:t}`li2020pytorch`, sharded states by {cite:t}`rajbhandari2020zero` and {cite:t}`zhao2023fsdp`, the ring by {cite:t}`patarasuk2009bandwidth`, large batches for this model by {cite:t}`ott2018scaling`.
