# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
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
# The paper's base model learned for twelve hours on eight GPUs, the big one for three and a half days. On one of those GPUs that's four days and four weeks. The usual way to share the work is easily said: each process has the whole model and computes the gradient of its share of every batch; the gradients are added up; all make the same update.

# %% tags=["hide-input"]
import tempfile
from unittest.mock import patch

import matplotlib.pyplot as plt
from torch.multiprocessing import start_processes
from torch.optim import Adam

from annotated_transformer.batching import encode_pairs, plan_batches
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, parameter_count, preset
from book.figures import AMBER, INK, PAPER, PLUM, RESIDUAL, SKY
from book.figures import arrow, box, show_drawing, show_plot, style, words_at

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that uses a GPU can't be copied

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
# This is **data parallel** training. Process $r$ of $N$ has $n_r$ target tokens and a summed loss $\ell_r$:
#
# $$ \text{gradient} = \frac{1}{n} \sum_{r=0}^{N-1} \nabla \ell_r, \qquad n = \sum_{r=0}^{N-1} n_r $$ (eq-shared-gradient)
#
# ## By hand
#
# Here is the loop of a single process. A plan is a list of batches, each a list of numbers of sentence pairs:


# %%
def alone(model, corpus, plan):
    """Make one update from each batch of a plan."""
    loss, optimizer = SmoothedLoss(model), Adam(model.parameters(), lr=0.001)
    for batch in plan:
        optimizer.zero_grad()
        share = collate([corpus[number] for number in batch])
        tokens = (share.target[:, 1:] != PAD).sum()
        (loss(*share) / tokens).backward()
        optimizer.step()


# %% [markdown]
# **Exercise 1. Write it first** (★★, 15 min). Make this the loop of process `rank` of `world_size`, so that all make the updates of `alone`, whatever weights they start from. PyTorch's `torch.distributed`, imported as `dist`, has two functions that all processes call together: `dist.broadcast(tensor, src=0)` gives all of them the tensor of process 0, and `dist.all_reduce(tensor)` leaves the sum of all tensors in each.


# %%
def by_hand(model, corpus, plan, rank, world_size):
    """Make one update from each batch of a plan, together with the other processes."""
    loss, optimizer = SmoothedLoss(model), Adam(model.parameters(), lr=0.001)
    for weight in model.parameters():
        dist.broadcast(weight.data, src=0)  # Start from the weights of process 0
    for batch in plan:
        optimizer.zero_grad()
        share = collate([corpus[number] for number in batch[rank::world_size]])
        tokens = (share.target[:, 1:] != PAD).sum()
        dist.all_reduce(tokens)  # Count the tokens of all
        (loss(*share) / tokens).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)  # Add up the gradients of all
        optimizer.step()


# %% [markdown]
# Which of the new lines could you leave out? [Exercise 2](#exercises) tries it.
#
# ### Why add, and not take the mean?
#
# If each process computed a mean over its own tokens, and the gradients were averaged, a word in a share with fewer tokens would count for more: the [mean of means](18_training.ipynb#the-mean-over-all-tokens) that also spoils accumulation.
#
# ## Two processes
#
# A **process** is a running program with memory that no other can see. Here are two on one CPU. They meet at a file, and each starts from weights of its own, so a missing broadcast would show.
#
# :::{margin}
# Why not threads? They share memory, but in Python they take turns, and their GPUs would wait.
# :::

# %%
pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)
plan = plan_batches(corpus.lengths, max_tokens=160, seed=0, epoch=0)[:3]


def new_model(seed):
    torch.manual_seed(seed)
    sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0}
    return Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes)).double()


def weights_of(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


# %%
def one_process(rank, world_size, folder):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=world_size)
    model = new_model(seed=rank)
    by_hand(model, corpus, plan, rank, world_size)
    torch.save(weights_of(model), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run(world_size):
    """Train in so many processes; return the weights with which each ends."""
    with tempfile.TemporaryDirectory() as folder:
        # A fork is a copy of this process. Windows has none
        arguments = world_size, folder
        start_processes(one_process, arguments, world_size, start_method="fork")
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(world_size)]


# %% tags=["nbval-ignore-output"]
model = new_model(seed=0)
alone(model, corpus, plan)
right = weights_of(model)
zero, one = run(2)
print(f"processes 0 and 1 differ by {(zero - one).abs().max():.0e}")
print(f"two processes and one alone, by {(zero - right).abs().max():.0e}")

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(zero, one) and torch.allclose(zero, right, 0, 1e-12)

# %% [markdown]
# After three updates both have the same weights, which differ from those of the single loop only in the last bits, because the sums are made in another order.
#
# :::{margin}
# In single precision rounding is half a billion times larger, and over 100,000 steps a run on one GPU and a run on eight drift apart into two equally good models.
# :::
#
# For a training, PyTorch's `torchrun` takes the place of `run`. It starts a script several times, and tells each copy through its environment which one it is:
#
# | variable | what it says | two machines with four GPUs each |
# |---|---|---|
# | `RANK` | the number of this process among all, its **rank** | 0 to 3 on the first, 4 to 7 on the second |
# | `LOCAL_RANK` | its number on its own machine, and so the number of its GPU | 0 to 3 on both |
# | `WORLD_SIZE` | how many processes there are, the **world size** | 8 |
# | `MASTER_ADDR`, `MASTER_PORT` | where they meet | the first machine, a free port |
#
# The library underneath is gloo between CPUs and NCCL between GPUs. We never had several GPUs. What ran is this page, the [trainer](29_trainer.ipynb) in two and three processes on one CPU, where some were killed and restarted, and `torchrun` with one process on an H100. What this page says about several GPUs or machines is computed, not measured.
#
# ## The cost of an all-reduce
#
# If one process collected all gradients of $G$ bytes and sent the sum back, it would receive and send $(N - 1) G$ bytes, while the other cables would be idle. A **ring** does better. Each process cuts its gradient into $N$ chunks, and in each round sends *one* chunk to its right neighbor. For $N - 1$ rounds the receiver adds what comes; then each process has one complete chunk. In $N - 1$ further rounds the complete chunks travel once around.


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


# %% tags=["remove-cell"]
if CHECKING:
    numbers = torch.arange(16).reshape(4, 4)
    assert torch.equal(ring(numbers)[-1], numbers.sum(dim=0).expand(4, 4))

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
# which is never more than $2 G$, however many processes there are. For the base model $G$ is 63 million numbers of 4 bytes, 252 MB. Here are the times over the cable of an office, of a machine room, of a good cluster, and over the links between the GPUs of one machine:

# %%
gradient = 4 * parameter_count(preset("base"))  # bytes
speeds = {"1 Gbit": 0.125e9, "10 Gbit": 1.25e9, "100 Gbit": 12.5e9, "300 GB": 300e9}
print(f"{'milliseconds with':18}{2:9}{8:9}{64:9} processes")
for name, speed in speeds.items():
    times = [2 * (n - 1) / n * gradient / speed * 1000 for n in (2, 8, 64)]
    print(f"{name} per second".ljust(18), *(f"{ms:8,.1f}" for ms in times))

# %% tags=["remove-cell"]
if CHECKING:
    sent = 1.75 * gradient
    assert 5 < 1e3 * sent / 1.25e9 / 65 < 5.5
    assert round(1e3 * sent / 1.25e9) == 353 and round(1e3 * sent / 300e9, 1) == 1.5

# %% [markdown]
# A step of base took [65 ms on an H200](26_speed.ipynb#when-a-gpu-waits-for-the-program). So within one machine the exchange hardly counts, but eight machines of one GPU each, joined by 10 Gbit, would take more than five times as long for a step as one GPU alone.
#
# ## Exchange while computing
#
# `by_hand` computes its whole gradient and then exchanges it, so first the network is idle and then the GPU. But the backward pass finishes the last layer's gradients first, and those could already travel.
#
# PyTorch's wrapper `DistributedDataParallel`, **DDP** {cite:p}`li2020pytorch`, does that. When it is made, it sends the weights of process 0 to all. In the backward pass, a hook on each parameter collects gradients in **buckets** of 25 MB, and a full bucket leaves at once, while the computation goes on.

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
# In our model the last bucket is large: the embedding matrix has 76 of the 252 MB, and since it is [used at both ends](07_embeddings.ipynb#one-table-three-uses), its gradient is complete only when all else is. So thirty percent of the exchange can't be hidden.
#
# ### The lines of the training loop
#
# Three things make [the loop](18_training.ipynb#the-loop) a shared one: every process reads its share of each batch, the tokens are counted over all, and the loss goes through DDP. In a loop of your own the last two look like this:
#
# ```python
# parallel = DistributedDataParallel(loss)  # sends the weights of process 0 to all
# mean_tokens = all_reduce_mean(tokens)  # tokens of all, over the number of processes
# (parallel(source, target) / mean_tokens).backward()  # exchanges the gradients
# ```
#
# Why the *mean* number of tokens, $n / N$? Because DDP leaves the mean of the gradients, where {eq}`eq-shared-gradient` has their sum. Divided by $n$, the gradient would be $N$ times too small; the two means cancel:
#
# $$ \frac{1}{N} \sum_{r} \nabla \frac{\ell_r}{n / N} = \frac{1}{n} \sum_{r} \nabla \ell_r $$ (eq-times-size)


# %% tags=["export"]
def rank_and_world_size() -> tuple[int, int]:
    """Return the number of this process and of all that train together: (0, 1) for one alone."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def all_reduce_mean(numbers: Tensor) -> Tensor:
    """Return the mean of numbers over all processes, in double precision."""
    total = numbers.to(torch.float64, copy=True)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total / rank_and_world_size()[1]


# %% [markdown]
# ### Gradient accumulation with DDP
#
# Where several batches make one update, one exchange is enough. Within DDP's `no_sync` gradients stay at home and add up, and the first backward pass outside exchanges their sum. The *forward* pass must be inside, too, since there the wrapper decides what its hooks will do.


# %% tags=["export"]
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
# DDP wraps the *loss*, which contains the model. Only what is called through the wrapper takes part in the exchange: if you wrap the model and compute the loss along another path, each process trains a model of its own.
#
# ## One plan for all
#
# If each process shuffled the corpus with its own seed, some sentences would come several times in an epoch and others never. If the corpus were cut into parts, one part might have a batch more than the others, and its process would [wait forever for them](#why-does-training-hang-at-the-end-of-an-epoch). So all make the same plan, and each takes its share of every batch. [The plan](15_batching.ipynb#a-plan-for-an-epoch) follows from lengths, seed and epoch, so nobody has to send it, and `[rank::world_size]` deals each batch like cards. A process without a sentence gets an empty one without a label, whose loss and count are zero:

# %% tags=["export"]
EMPTY_EXAMPLE = Example(np.array([EOS]), np.array([BOS, PAD]))  # without any label


def collate_share(examples: Sequence[Example]) -> Batch:
    """Return the batch of some examples; of none, a batch that adds nothing to the loss."""
    return collate(examples or [EMPTY_EXAMPLE])


# %% [markdown]
# `max_tokens` counts the positions of the *whole* batch. So the same settings make the same updates on any number of GPUs, and a run that began on one can go on with eight.
#
# :::{margin}
# In many other tools such a number counts for each process.
# :::
#
# ## Starting and stopping processes
#
# One function joins the processes that `torchrun` has started, and gives each its GPU. After an error it doesn't leave the group in good order, because the others hang in an all-reduce and would never answer. The process simply ends, `torchrun` ends the rest, and with `--max-restarts=3` starts all anew, from [the last checkpoint](29_trainer.ipynb#killed-and-continued).


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


# %% [markdown]
# A script of your own has three lines, and `torchrun --standalone --nproc-per-node=8 script.py` starts it:
#
# ```python
# with process_group() as device:
#     model = Transformer(config).to(device)
#     train(model, tokenizer, pairs, settings, validation=validation, folder="run")
# ```
#
# When [`train`](29_trainer.ipynb#the-trainer) validates, each process translates a share of the sentences, and this function gives all translations to all:


# %% tags=["export"]
def gather_texts(texts: list[str]) -> list[list[str]]:
    """Return the texts of all processes, in the order of their ranks; alone, one's own."""
    if not dist.is_initialized():
        return [texts]
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, texts)
    return gathered


# %% [markdown]
# ## How fast it can be
#
# Do twice as many GPUs train on twice as many tokens per second? If the batch grows with their number (**weak scaling**), nearly. If the batch stays the same (**strong scaling**), there is a limit. Of the paper's 25,000 positions, each of eight GPUs gets 3,125. One H200 needs [62 ms for a step of base of that size, and 65 for the whole batch](26_speed.ipynb#when-a-gpu-waits-for-the-program), so more H200s would gain next to *nothing*. (On an H100 so small a batch wasn't measured.) What helps is a batch that keeps each of them busy. With 50,000 positions on each of eight H200s a step takes 105 ms, where one would need four times 190 for the 400,000: about seven times the speed, if the exchange cost nothing.

# %% tags=["remove-cell"]
if CHECKING:
    from statistics import median

    from benchmarks.common import read_log

    gpu = {line["name"]: line for line in read_log("gpu-NVIDIA-H200")[1:]}
    names = "3,125 tokens", "base", "50,000 tokens", "100,000 tokens"
    step_ms = [200 * median(gpu[name]["seconds"]) for name in names]  # of five steps
    assert [round(ms) for ms in step_ms] == [62, 65, 105, 190]
    # One GPU takes 400,000 positions in four steps, and eight take 50,000 each
    assert 7 < 4 * step_ms[3] / step_ms[2] < 7.5

# %% [markdown]
# ## What to remember
#
# - One process per GPU, each with the whole model and a share of every batch, and one exchange of gradients per update.
# - Add the gradients and divide by the number of tokens in all processes. With DDP, which takes the mean, divide by the mean number of tokens.
# - All processes make the same plan, so none waits forever for the others.
# - With the same batch, more GPUs stop helping once a step takes no longer than its launches. For base at the paper's batch, one H200 is there already.
#
# ## Exercises
#
# **1. Write it first** is [above](#by-hand); the code below it is the solution.
#
# **2. One line less** (★★, 15 min). In `by_hand`, leave out the broadcast, the count, the last exchange and the slice, one at a time. When do the processes end with different weights, when with equal ones that are wrong? And what happens without the slice?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Without the broadcast they stay as far apart as they started, and without the last exchange each
# trains a model of its own. Without the count, both make the same wrong update: each word of the
# smaller share counts for more. Without the slice the weights are right (with dropout they would
# only be as good), but both do all the work.
all_reduce = dist.all_reduce
left_out = {
    "broadcast": patch.object(dist, "broadcast", lambda weight, src: None),
    "count": patch.object(
        dist, "all_reduce", lambda x: all_reduce(x) if x.is_floating_point() else None
    ),
    "last exchange": patch.object(
        dist, "all_reduce", lambda x: None if x.is_floating_point() else all_reduce(x)
    ),
}
apart = {}
for line, without in left_out.items():
    with without:
        zero, one = run(2)
    apart[line] = float((zero - one).abs().max()), float((zero - right).abs().max())
    print(f"without the {line}: {apart[line][0]:.0e} apart, {apart[line][1]:.0e} off")

# %% tags=["remove-cell"]
if CHECKING:
    assert apart["broadcast"][0] > 0.01 and apart["last exchange"][0] > 1e-4
    assert apart["count"][0] == 0 and apart["count"][1] > 1e-5

# %% [markdown]
# **3. By hand** (★, 5 min). The big model has 214 million weights. How many megabytes does each of 4 processes send per step, and how long does that take at 10 Gbit per second? And for each batch, if eight make one update?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Twice three quarters of 857 MB; with accumulation the exchange comes once in eight batches.
sent = 2 * 3 / 4 * 4 * 214.2e6
print(f"{sent / 1e6:,.0f} MB, {sent / 1.25e9:.1f} s per step")
print(f"{sent / 1.25e9 / 8:.2f} s per batch")

# %% [markdown]
# ## Further
#
# ### Why does training hang at the end of an epoch?
#
# Usually because one process has a batch more, and waits in its all-reduce for partners that have left the loop. Its GPU even shows 100 percent load, because on a GPU waiting is a busy loop, and the message after the timeout, 20 minutes here, doesn't mention batches. The same happens whenever processes disagree about what comes next. So each decision must follow from what all of them know, or be taken together. For other errors of several processes, see [When training does not work](../book/troubleshooting.md#it-is-slower-on-more-gpus).
#
# ### Random numbers of each process
#
# For the plan the seed must be the same in all processes; for dropout it must not. If all drew the same numbers, row 0 of each share would lose the same units, and an update would have the noise of a smaller batch. So [the trainer](29_trainer.ipynb#where-a-run-stands) makes the random numbers depend on the rank, too. That is why, with dropout, runs with one and with two processes are equally good, but not equal.
#
# ### A model that doesn't fit on one GPU
#
# **ZeRO** {cite:p}`rajbhandari2020zero` and PyTorch's **FSDP** {cite:p}`zhao2023fsdp` let each process keep only a part of moments, gradients and weights and fetch the others just before they are needed, for up to half as much traffic again. Or each process has some layers (pipeline parallel) or some columns of each matrix (tensor parallel). The paper's models need none of it: without activations, training in bf16 takes 1.1 GB for base and 3.9 GB for big.

# %% tags=["remove-cell"]
if CHECKING:
    states = [18 * parameter_count(preset(name)) / 1e9 for name in ("base", "big")]
    assert [round(state, 1) for state in states] == [1.1, 3.9]

# %% [markdown]
# ### Several machines
#
# Each machine runs one `torchrun`, and all name the same meeting place, the **rendezvous**. (The first line makes a new store for each restart.) The folder of the run must be on a disk that all machines see.
#
# ```bash
# export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 \
#     --rdzv-backend=c10d --rdzv-id=my-run --rdzv-endpoint=first-machine:29500 script.py
# ```
#
# ## Sources
#
# That a ring sends as few bytes as possible was shown by {cite:t}`patarasuk2009bandwidth`.
