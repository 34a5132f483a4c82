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
# # Training
#
# This chapter trains the model: first to copy, then to translate real captions from German, in a loop that can be killed at any
# moment and goes on as if nothing had happened (sections 5.1 to 5.4 of the paper).
#
# We have a model that knows nothing, and all the parts that can teach it: [pairs](13_data.ipynb), [numbers](14_tokenization.ipynb),
# [batches](15_batching.ipynb), [a rate](16_schedule.ipynb) and [a loss](17_regularization.ipynb). What is missing is the loop that
# joins them. Its core is six lines long:
#
# ```python
# for batch in batches:
#     logits = model(batch.source, batch.target[:, :-1])
#     loss = cross_entropy(logits, batch.target[:, 1:])
#     optimizer.zero_grad()
#     loss.backward()
#     optimizer.step()
# ```
#
# Most of what can go wrong in them makes no noise. The shapes fit, the loss falls, and the model learns all the same, only worse. Or all goes well until the machine stops.
#
# | what goes wrong | what one sees | the section about it |
# |---|---|---|
# | input and labels are not one place apart | a loss too good to be true, and nonsense in use | The loss of a batch |
# | the loss is a mean of means | nothing: some words count more than others | The mean over what? |
# | one gradient is `nan` | a loss of `nan` from then on | A gradient that is no number |
# | order and dropout come from somewhere | a run that nobody can repeat | Chance that can be repeated |
# | the process is killed | hours are lost, or half a file is left | A checkpoint that is whole |
# | a run goes on with other settings | a result that no command describes | Going on with the same settings |
# | only the training loss is watched | it falls, and the model gets worse | Is it getting better? |
#
# The first half of the chapter builds the loop from parts. Each part gets a check that takes a second, before we trust it with an hour of work. The second half uses the loop: on a task that cannot fail, then on 29,000 captions.
# If you only want to train, call `train(model, tokenizer, pairs)` and come back when a question comes up.

# %% tags=["export"]
import hashlib
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from importlib.resources import as_file, files
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adam
from tqdm import tqdm

# %% tags=["export"]
from annotated_transformer.batching import Batch, BatchPlan, Example, batches, encode_pairs, plan_batches, shapes_of
from annotated_transformer.data import Pair
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

# %%
import copy
import pickle
import random
import tempfile
from itertools import islice

import matplotlib.pyplot as plt
import sacrebleu
import torch.nn.functional as F

from annotated_transformer.batching import collate, encode_source, pad
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.data import multi30k
from book.figures import INK, KEY, QUERY, VALUE, style
from annotated_transformer.transformer import greedy_decode, preset

# %% [markdown]
# ## The loss of a batch
#
# The decoder learns all positions of a sentence at once. At each one it reads the *true* words so far, whatever it would have said
# itself, and is asked for the next. This is **teacher forcing**. So the target serves twice, one place apart: without its last
# token it is what the decoder reads, without its first it is what the decoder must say.
#
# | column | 0 | 1 | 2 | 3 | 4 |
# |---|---|---|---|---|---|
# | the decoder reads | `<s>` | A | dog | runs | . |
# | it must say | A | dog | runs | . | `</s>` |
#
# Each column is a question of its own: the source is known, and so is the upper row up to here; what comes next? A target of six tokens asks five questions. The first one starts from `<s>`, so the model learns how sentences begin. The last one has the answer `</s>`, and from it the model learns when to stop.


# %% tags=["export"]
def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss summed over the real target tokens of a batch, and how many those are.

    The decoder reads targets (B, T + 1) without the last token and must say them without the
    first.
    """
    logits = model(batch.source, batch.target[:, :-1])
    return label_smoothed_loss(logits, batch.target[:, 1:], smoothing)


# %% [markdown]
# The function returns a sum and a count. It does not divide; the next section says why.
#
# The training loop will want the loss in another form: as a module that takes two tensors and knows model and smoothing already. Compilers and the tools for many GPUs take modules and nothing else. So here is the same function once more, dressed as one. [The chapter on speed](25_speed.ipynb) will put a faster one in its place, and the loop will not notice.


# %% tags=["export"]
class Objective(nn.Module):
    """The loss of a batch under training, summed: batch_loss as a module."""

    def __init__(self, model: Transformer, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss summed over real target tokens."""
        return batch_loss(self.model, Batch(source, target), self.smoothing)[0]


# %% [markdown]
#
# ### Is the answer not in the input?
#
# Readers ask this first. *Dog* is the answer in column 1, and it stands in the upper row, in column 2. What hides it is the [causal mask](04_masks.ipynb): column 1 attends to columns 0 and 1 and to nothing on their right. Shift and mask need each other. Without the shift, column 1 would read the word that it must say. Without the mask, it would fetch the word from column 2. Either way the model learns to copy the answer, and the loss falls as far as it can.
#
# So there is something to check. We change one target word and look where the loss changes.

# %%
torch.manual_seed(0)
toy = Transformer(preset("tiny", vocabulary_size=20)).double().eval()


def losses(target):
    logits = toy(torch.tensor([[4, 5, 2]]), target[:, :-1])
    return F.cross_entropy(logits[0], target[0, 1:], reduction="none")


one, other = torch.tensor([[1, 7, 8, 9, 2]]), torch.tensor([[1, 7, 11, 9, 2]])
print([bool(a != b) for a, b in zip(losses(one), losses(other))])

# %% [markdown]
# The word changed from 8 to 11 is the second answer. Its own loss changes, since another word is asked for. The losses after it change, since they have it as context. The one before it does not.
#
# ### Why is a sentence not written word by word?
#
# In use the model writes a word, reads it, and writes the next. In training it need not wait, because all the words that it would wait for are in the corpus. So a target of 20 tokens takes one pass in training and 20 in use. A recurrent network can be taught like this too, but it must still take the words in order. Here all positions are rows of the same matrix products.
#
# Suppose it did read its own words. In the beginning they are noise, and the question would be what comes after that noise. No corpus has the answer.
#
# Teacher forcing has a price, the **exposure bias**. In use the model reads its own words, mistakes included, and it has never learned from a text with its own mistakes in it. So a low loss does not promise good translations. Further down we let the model translate while it trains, and score what it wrote.
#
# ### And the shorter sentences of a batch?
#
# They are filled up with padding. So the last column, which `[:, :-1]` cuts off, does not hold the `</s>` of every row. Here are two targets, of two words and of one; `</s>` is 2 and padding is 0.

# %%
uneven = collate([Example([5, 2], [1, 7, 8, 2]), Example([6, 2], [1, 9, 2])]).target
print("reads:   ", uneven[:, :-1].tolist())
print("must say:", uneven[:, 1:].tolist())

# %% [markdown]
# In the second row the decoder reads `</s>` and is asked for padding. That looks like a mistake, and it does no harm. Where the label is padding, neither the loss nor the count changes, as [the loss](17_regularization.ipynb) has shown. No row needs special treatment.
#
# ## The mean over what?
#
# We have a sum of losses. What is it to be divided by? The loss of an update is the mean over all real tokens it has seen:
#
# $$ \text{loss} = \frac{\sum_b \sum_t \text{loss}_{bt}}{\sum_b \text{length}_b} $$ (eq-token-mean)
#
# Take two sentences. One has 5 tokens and a loss of 10 in all, the other 20 tokens and a loss of 60. The mean over tokens is $(10 + 60) / 25 = 2.8$. The mean over sentences is $(10/5 + 60/20) / 2 = 2.5$, which is something else. In the second, a token of the short sentence has the weight $1/10$ and one of the long sentence $1/40$. There is no reason for that. So sums and counts are kept apart, and divided at the last moment.
#
# ### One update from several batches
#
# It matters most where an update is made of several batches. The paper's 25,000 tokens fit on a large GPU and not on a small one. **Accumulation** is the way out: run the batches one after the other, add up their gradients, and update once. The gradient of a sum is the sum of the gradients. So the result must be that of the one large batch, to rounding, if each sum is divided by the tokens of *all* batches. These are counted first.
#
# In PyTorch, adding up takes no code. `backward` adds to what is in `.grad` already, and `zero_grad` empties it. (So without `zero_grad` we would accumulate from the first step to the last, and get no error.) Nor does it take memory: `backward` frees what the forward pass of its batch has kept, so ten batches need the room of one.
#
# The slip is to divide each batch by its own count, and the sum by the number of batches. It makes no noise either. Several well-known training libraries had it until [October 2024](https://github.com/huggingface/blog/pull/2414), when somebody compared the losses with and without accumulation.
#
# ## The settings
#
# What an update is made of is a matter of a few numbers. They live in one place. The class is frozen, so nobody changes a number in the middle of a run, and a run can be described by printing one object. The text below each field is also the help of [the command line](G_cli.ipynb).


# %% tags=["export"]
@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults suit the `tiny` model and the grammar."""

    steps: int = 1300
    """Updates of the weights."""
    max_tokens: int = 384
    """Tokens of a batch, on either side, with padding."""
    accumulate: int = 1
    """Batches of an update; more of them need more time and no more memory."""
    warmup: int = 200
    """Steps until the learning rate is at its peak."""
    factor: float = 0.2
    """Times the paper's learning rate."""
    smoothing: float = 0.1
    """Label smoothing."""
    clip: float | None = None
    """Longest gradient; a longer one is shortened to it. The paper has none."""
    seed: int = 0
    """Decides the order of the batches and what is dropped; on the command line, also the start."""
    save_every: int = 500
    """Steps between two checkpoints, and between two validations."""
    save_minutes: float = 10
    """Minutes after which there is a checkpoint in any case."""
    keep: int = 5
    """Checkpoints to keep, beside the best."""
    patience: int | None = None
    """Stop after so many validations without a better score."""

    def __post_init__(self) -> None:
        check_training(self)


# %% [markdown]
# Training is measured in steps, that is in updates, and not in epochs. The learning rate counts steps, so the same `steps` mean the same schedule on a small corpus and on a large one.
#
# An update sees up to `max_tokens` times `accumulate` tokens a side. The default is 384 · 1; the paper has about 25,000. The product is what counts for learning. The first factor alone decides how much memory it takes.
#
# The rate has its peak at step `warmup`, at the height $\text{factor} / \sqrt{d_\text{model} \cdot \text{warmup}}$ ([schedule](16_schedule.ipynb)). With the defaults and a width of 128 that is $0.2 / \sqrt{128 \cdot 200} = 0.00125$. The paper's base model has 0.0007, with a factor of 1, since it is wider and warms up for longer.
#
# Wrong numbers are refused when the object is made, before a corpus is read:


# %% tags=["export"]
def check_training(config: TrainingConfig) -> None:
    """Raise ValueError for a number that no training can have."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in ("smoothing", "seed") and value is not None and not 0 < value < inf:
            raise ValueError(f"{field.name} must be above 0, not {value}")
    if not 0 <= config.smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, not {config.smoothing}")


# %%
for wrong in ({"warmup": 0}, {"factor": float("nan")}, {"smoothing": 1.0}):
    try:
        TrainingConfig(**wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# The comparison is written as `not 0 < value < inf` for the sake of the second case. Every comparison with `nan` is false, so `value <= 0` would let it pass. Zero is a good value for two fields only, the smoothing and the seed, and `None` turns an option off.
#
# ## One update
#
# An update reports what it saw. These are tensors and not numbers: on a GPU, turning a tensor into a number makes the processor wait until all work is done. We read them later, many at once.


# %% tags=["export"]
class Step(NamedTuple):
    """What one update saw: the loss summed over tokens, their number, the gradient's norm."""

    loss: Tensor
    tokens: Tensor
    norm: Tensor


# %% [markdown]
# Adam gets the paper's numbers. Its rate is zero here, because the loop sets it before each step. A loop that forgot to do so would learn nothing at all, which is noticed at once. With some sensible default it would learn a little worse, and that is not.


# %% tags=["export"]
def make_optimizer(model: Transformer) -> Adam:
    """Return Adam with the paper's numbers (section 5.3); the loop sets the learning rate."""
    return Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


# %% [markdown]
# `fused=True` updates all weights in one pass over memory, where the plain form makes several passes for each. It has a second use, which we come to in a moment.
#
# The update needs one more number, the **norm** of the gradient: the root of the sum of all squared gradients, that is the length of the gradient as one long vector. It tells whether a step can be trusted. Two things are done with it:
#
# - **Clipping**, by option: a gradient longer than `clip` is shortened to that length and keeps its direction. The paper has none, and the warm-up makes it unnecessary here. Adam divides gradients by their usual size anyway, so clipping *all* of them would change nothing. It is for the single one that is far too long, and that would otherwise dominate Adam's average for about $1 / (1 - 0.9) = 10$ steps.
# - A gradient that is not finite must not touch the weights at all.
#
# ### Alone, or in a team
#
# All trainings of this book up to here run in one process. [Several processes](26_distributed.ipynb), each with a GPU, can share the batches of an update, if they talk to each other at a few moments. We do not want to write the loop twice. So wherever they would talk, the loop asks a `Team`, and a team of one has nothing to say.
#
# | the loop asks | a team of one answers | in a larger team |
# |---|---|---|
# | which rows of each batch are mine? | all of them | each process takes its share |
# | what is the sum of this over all? | the number itself | it is added up |
# | shall gradients be exchanged now? | there is nobody to exchange with | with the last batch of an update |
# | was anybody asked to stop? | was I? | one is enough |
#
# The other methods bring batches to where the model is, and make a run and an objective known to the others. You can read on as if they were not there.


# %% tags=["export"]
class Team:
    """The processes that train a model together; here a single one (many_gpus has more)."""

    rank, size = 0, 1  # the number of this process, and of all

    def arrange(self, plan: list[BatchPlan]) -> list[BatchPlan]:
        """Return this process's share of each batch of a plan."""
        return plan

    def feed(self, stream: Iterator[Batch], model: Transformer) -> Iterator[Batch]:
        """Bring batches to where the model is."""
        return (to_device(batch, model) for batch in stream)

    def share(self, run: "Run") -> None:
        """Give all processes the run of the first."""

    def join(self, objective: nn.Module) -> nn.Module:
        """Return the objective to train with, whose gradients can be exchanged."""
        return objective

    def exchange(self, objective: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Within the block of the last batch of an update, gradients become those of all."""
        return nullcontext()

    def total(self, number: Tensor) -> Tensor:
        """Return the sum of a number over all processes."""
        return number

    def asked(self, stop: bool, step: int) -> bool:
        """Return whether any process was asked to stop; all get the same answer."""
        return stop


ALONE = Team()


# %% tags=["export"]
def accumulate_gradient(
    objective: nn.Module, group: Sequence[Batch], team: Team
) -> tuple[Tensor, Tensor]:
    """Add up the mean gradient over all real tokens of some batches; return loss and tokens.

    In a team each process has its part of the batches, and gets the gradient of all.
    """
    tokens = team.total(torch.stack([(batch.target[:, 1:] != PAD).sum() for batch in group]).sum())
    total = torch.zeros((), device=tokens.device)
    for number, batch in enumerate(group, start=1):
        with team.exchange(objective, number == len(group)):
            loss = objective(batch.source, batch.target)
            (loss * team.size / tokens).backward()
        total += loss.detach()
    return team.total(total), tokens


# %% [markdown]
# Line by line:
#
# 1. Count the real tokens of all batches, before the first is run. The labels tell, so no model is needed.
# 2. Each batch adds its gradient, divided by the count of all. `team.size` is 1 here, and `exchange` does nothing.
# 3. `total` adds up losses for the report. Without `detach` it would hold on to the graph of every batch, and the memory that accumulation saves would be gone.
#
# What is left of the update: empty the gradients before, take the norm after, shorten the gradient if that was asked for. Then `found_inf` is set to 1 if the norm is not finite, and Adam makes its step, or none.


# %% tags=["export"]
def training_step(
    objective: nn.Module,
    group: Sequence[Batch],
    optimizer: Adam,
    clip: float | None = None,
    team: Team = ALONE,
) -> Step:
    """Update the weights once, with the mean gradient over all real tokens of some batches.

    A gradient that is not finite changes nothing; the norm returned tells.
    """
    optimizer.zero_grad()
    loss, tokens = accumulate_gradient(objective, group, team)
    gradients = [p.grad for p in objective.parameters() if p.grad is not None]
    norm = get_total_norm(gradients)
    if clip is not None:
        clip_grads_with_norm_(objective.parameters(), clip, norm)
    # Where this is 1, Adam leaves everything as it is (the attribute is not in its annotations)
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
    optimizer.step()
    return Step(loss, tokens, norm)


# %% [markdown]
# Now the law of accumulation, in double precision: three small batches against one large one with the same twelve pairs, from the same start. Plain gradient descent at rate 1 stands in for Adam. So what is compared is the gradient itself.

# %%
pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
examples = encode_pairs(tokenizer, pairs)


def fresh(seed=3, **changes):
    """Return a very small model, always with the same start."""
    torch.manual_seed(seed)
    sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, **changes}
    return Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes))


# %%
def weights_after(group):
    """Return all weights after one step of plain gradient descent on a group of batches."""
    model = fresh(dropout=0.0).double()
    plain = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    training_step(Objective(model, 0.1), group, plain)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


some = examples[:12]
large = weights_after([collate(some)])
small = weights_after([collate(some[:2]), collate(some[2:7]), collate(some[7:])])
print("equal:", torch.allclose(large, small, rtol=0, atol=1e-14))

# %% [markdown]
# What would the mean of the three batches' means have given? The first batch has 2 of 12 sentences and would count for a third:

# %%
start = torch.cat([p.detach().flatten() for p in fresh(dropout=0.0).double().parameters()])
parts = [weights_after([collate(part)]) - start for part in (some[:2], some[2:7], some[7:])]
wrong = torch.stack(parts).mean(dim=0)
right = large - start
print(f"off by {float((wrong - right).norm() / right.norm()):.0%} of the update's length")

# %% [markdown]
# About a quarter of the update, and no error message. That is why this check comes before the first hour of training and not after it.
#
# ## A gradient that is no number
#
# An overflow somewhere, and one number of a gradient is `nan`. How much harm can one do? We put it into a single weight's gradient, with an optimizer that does not look, and count the weights that are lost.

# %%
model, batch = fresh(), collate(examples[:8])
careless = torch.optim.Adam(model.parameters(), lr=0.01)
for step in (1, 2):
    careless.zero_grad()
    batch_loss(model, batch, label_smoothing=0.1)[0].backward()
    if step == 1:
        model.decoder.layers[0].feed_forward.linear1.weight.grad[0, 0] = torch.nan
    careless.step()
    lost = sum(int(p.isnan().sum()) for p in model.parameters())
    print(f"lost after step {step}:", lost if step == 1 else "nearly all", f"of {start.numel():,}")
assert lost > 0.99 * start.numel()

# %% [markdown]
# In the first step one weight is lost. In the second it reaches every logit, the logits reach the loss, and the gradient of the loss reaches nearly all weights. From here on there is nothing to save. So the check must come *before* the weights change.
#
# The obvious check is `if norm.isfinite(): optimizer.step()`. On a GPU this `if` costs a wait in each step, since the processor must know the number to go on. Adam's fused form offers a way without. It was made for training with numbers of 16 bits, where overflows are routine: a tensor `found_inf` tells it, on the device, to leave weights, moments and its own count of steps as they are. We use the same switch.
#
# The check on the check: a `nan` on its way to the embedding, and all weights compared.

# %%
model = fresh()
optimizer, group = make_optimizer(model), [collate(examples[:8])]
optimizer.param_groups[0]["lr"] = 0.01
training_step(Objective(model, 0.1), group, optimizer)
before = [p.detach().clone() for p in model.parameters()]
hook = model.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
step = training_step(Objective(model, 0.1), group, optimizer)
hook.remove()
unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
print("norm:", float(step.norm), " weights unchanged:", unchanged)

# %% [markdown]
# Why not simply go on after that? A single bad batch would be no loss. But it is seldom a single one. If the rate is too high, the next hundred are bad too, and a loop that skips them in silence looks busy and learns nothing. So the update is left out, and then the run stops and says in which step it happened. The meter, further down, does that.
#
# ## Chance that can be repeated
#
# Two things in training are left to chance: the order of the batches and what dropout drops. The order follows from (seed, epoch), as [the chapter on batches](15_batching.ipynb) made it. We do the same for dropout: all random numbers of a step follow from (seed, step). So a run that goes on at step 500 draws what it would have drawn.


# %% tags=["export"]
@contextmanager
def randomness(seed: int, step: int) -> Iterator[None]:
    """Draw all random numbers inside the block from (seed, step); afterwards all is as before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(Random(f"{seed} {step}").getrandbits(63))
        yield


# %% [markdown]
# `fork_rng` puts the generators of the process back afterwards, that of the processor and that of the GPU in use. Whoever calls us keeps their own chance.
#
# ### Why not save the state of the generator?
#
# It is the usual way, and it has many places to forget something. There is a generator in PyTorch for the processor, one for each GPU, one in Python, and one in each process that loads data. All must be written and put back, at the right moment. What follows from two numbers that we know anyway needs no saving.
#
# ### Why not seed + step?
#
# Because step 7 of seed 0 would be step 6 of seed 1. Two runs that are meant to differ by chance would draw the same numbers, one step apart. A text such as `"0 7"` keeps the two apart. Python's `Random` makes its seed from all of the text, in the same way on each machine. (The function `hash` does not: it gives a text another number in each process.)

# %%
with randomness(seed=0, step=7):
    first = torch.rand(3)
torch.rand(100)
with randomness(seed=0, step=7):
    again = torch.rand(3)
print("the same numbers:", torch.equal(first, again))

# %% [markdown]
# ### Where are the epochs?
#
# The loop does not need them. It reads from a stream of batches that never ends, epoch after epoch in another order. To go on in the middle, we must find batch number `start` of this stream without making those before it. The number of batches is the same in each epoch, so a division gives the epoch and the place in it.


# %% tags=["export"]
def endless_batches(
    examples: Sequence[Example],
    max_tokens: int,
    seed: int,
    start: int = 0,
    arrange: Callable[[list[BatchPlan]], list[BatchPlan]] = list,
) -> Iterator[Batch]:
    """Yield epoch after epoch of batches, from batch number `start` of all epochs on."""
    epochs, first = divmod(start, batches_per_epoch(examples, max_tokens))
    for epoch in count(epochs):
        yield from batches(examples, max_tokens, seed, epoch, first, arrange)
        first = 0


def batches_per_epoch(examples: Sequence[Example], max_tokens: int) -> int:
    """Return the number of batches of an epoch, which is the same for all."""
    return len(plan_batches(shapes_of(examples), max_tokens, seed=0, epoch=0))


# %%
whole = list(islice(endless_batches(examples, 200, seed=0), 150))
rest = next(endless_batches(examples, 200, seed=0, start=149))
assert torch.equal(rest.source, whole[149].source)
size = batches_per_epoch(examples, 200)
print(f"{size} batches an epoch; number 149 is epoch {149 // size}, batch {149 % size}")

# %% [markdown]
# Batch 149 of the stream, made directly, is the one that 149 others come before. A run that goes on needs no replay of what it has seen.

# %% [markdown]
# ## A checkpoint that is whole
#
# A power cut, a full disk, an impatient administrator: a training that takes days will be stopped. A **checkpoint** is a file with all that decides how it goes on. What is that? The step number decides the rate, the batches and the dropout, as we have just arranged. What is left are the weights and what the optimizer remembers: [both moments](16_schedule.ipynb) of each weight. So a checkpoint is three times as large as the model.


# %% tags=["export"]
@dataclass
class Run:
    """A training on its way: all that a checkpoint holds."""

    model: Transformer
    optimizer: Adam
    step: int = 0
    best_step: int = 0
    best_score: float = -inf

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, first and second moments by name; they share memory with the run."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[parameter]
            found[f"first.{name}"] = state["exp_avg"]
            found[f"second.{name}"] = state["exp_avg_sq"]
        return found


# %% [markdown]
# The tensors are the run's own and no copies. So the same function serves for writing a checkpoint and for reading one: reading fills the tensors that it names.
#
# We make a run for the examples of this section, of 60 steps at a constant rate.

# %%
model = fresh()
run = Run(model, make_optimizer(model))
run.optimizer.param_groups[0]["lr"] = 0.001
for batch in islice(endless_batches(examples, 384, seed=0), 60):
    training_step(Objective(run.model, 0.1), [batch], run.optimizer)
print(sum(t.numel() for t in run.tensors().values()) / start.numel(), "times the weights")

# %% [markdown]
# ### Why are the weights not enough?
#
# Many people save the weights alone, go on from there, and find that the loss has jumped. Adam begins again with empty moments. In its first step, as [the schedule](16_schedule.ipynb) has shown, it moves *every* weight by the full rate, on the word of a single batch. At the start of a run the warm-up keeps that rate tiny. In the middle nothing does.
#
# We let our run make its next step twice, with its moments and without. The length is measured in units of the longest possible step, in which every weight moves by the rate.


# %%
def length_of_next_step(run):
    before = [p.detach().clone() for p in run.model.parameters()]
    training_step(Objective(run.model, 0.1), [collate(examples[:30])], run.optimizer)
    moved = [(p.detach() - old).flatten() for p, old in zip(run.model.parameters(), before)]
    return float(torch.cat(moved).norm() / (0.001 * start.numel() ** 0.5))


kept, lost = copy.deepcopy(run), copy.deepcopy(run)
lost.optimizer = make_optimizer(lost.model)
lost.optimizer.param_groups[0]["lr"] = 0.001
print(f"with moments {length_of_next_step(kept):.1f}, without {length_of_next_step(lost):.1f}")

# %% [markdown]
# More than twice the length, and without the direction that 60 batches had agreed on.
#
# ### Half a file is worse than none
#
# The plain way to replace a file is to open it for writing. That empties it first. If the machine stops now, the new file is half there and the old one is gone. And half a file looks like a file: it has the right name.
#
# Three steps prevent this. Write beside the place, under another name. Wait until the disk has the bytes (`fsync`; a system otherwise keeps them in memory for a while). Then rename. Renaming is **atomic**: it happens whole or not at all, so under the name stands the old file or the new one.
#
# | how | killed while writing | power cut just after it |
# |---|---|---|
# | write in place | half a file | half a file, or an empty one |
# | write aside, rename | the old file | maybe the new name with nothing behind it |
# | write aside, `fsync`, rename | the old file | the old file or the new one, whole |


# %% tags=["export"]
@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write to; at the end the file stands under its name, whole, or not at all."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield aside
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


# %% [markdown]
# The caller writes to the path that it is given, and closes it. We open it once more only to ask for the `fsync`, which concerns the file and not who wrote it. `finally` removes the file aside if anything went wrong. Only a process that is killed leaves one behind, with its process number in the name; it is swept up further down.
#
# Here the disk is full after two letters:

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "weights")
    path.write_text("old")
    try:
        with atomic_write(path) as aside:
            aside.write_text("ne")
            raise OSError("no space left on device")
    except OSError as error:
        print(f"{error}; {[path.name for path in Path(folder).iterdir()]}: {path.read_text()}")

# %% [markdown]
# ### Why not `torch.save`?
#
# PyTorch's usual format for weights is a pickle, and a pickle is a program: whoever loads one runs it.


# %%
class Surprise:
    def __reduce__(self):
        return print, ("this ran while the file was read",)


pickle.loads(pickle.dumps(Surprise()))

# %% [markdown]
# It could have deleted files as well. Newer releases of PyTorch refuse most of this unless told otherwise (`weights_only`). **safetensors** goes further. Its files hold a list of names, types and shapes, then the numbers, and a few notes as text. There is nothing in them that could run.


# %% tags=["export"]
def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all; raises OSError if there is no room for it."""
    with atomic_write(path) as aside:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside, notes)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error
        aside.chmod(0o644)  # as other files are; the library lets only its owner read


# %% [markdown]
# `contiguous` is there because the format wants each tensor in one piece, in order. A full disk shows up as the library's own error; we turn it into the `OSError` that it is, with the file's name.
#
# ### Which checkpoints stay?
#
# Each gets its step as a name, filled up with zeros. Then the order of the alphabet is the order of the steps, and the last one is the newest.


# %% tags=["export"]
def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step stands."""
    return folder / f"step-{step:08}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


# %% [markdown]
# They cannot all stay. For a model of 63 million weights, one is $3 \cdot 4 \cdot 63$ M bytes, 0.76 GB, and the paper's 100,000 steps would leave 200 of them. We keep the last `keep`, for averaging (below), and the best one.


# %% tags=["export"]
def save_checkpoint(run: Run, folder: Path, config: TrainingConfig) -> None:
    """Write a checkpoint, then remove what is neither the best nor among the last `keep`.

    One between two regular steps, left by a signal, goes too: so a run that was stopped leaves
    the same checkpoints as one that was not.
    """
    folder.mkdir(exist_ok=True)
    state = {name: getattr(run, name) for name in ("step", "best_step", "best_score")}
    write_tensors(checkpoint_path(folder, run.step), run.tensors(), {"run": json.dumps(state)})
    steps = [int(path.stem.removeprefix("step-")) for path in checkpoints(folder)]
    regular = [step for step in steps if step % config.save_every == 0 or step == run.step]
    for step in set(steps) - {*regular[-config.keep :], run.best_step}:
        checkpoint_path(folder, step).unlink()


# %% [markdown]
# An example: `save_every=500` and `keep_checkpoints=2`, the best score so far at step 1,500. The folder holds 1,500, 2,000 and 2,500. At step 2,720 a signal stops the run. The new checkpoint counts as one of the last two, so 2,000 goes. The run is continued, and step 3,000 is written. Now 2,720 is no regular step any more and goes, and 1,500, 2,500 and 3,000 are left, as in a run that was never stopped.
#
# The order matters here too. Old files go *after* the new one stands. The other way round, a full disk would leave us with fewer checkpoints each time we try.
#
# ### Reading trusts nothing
#
# The file may be cut off, or no checkpoint at all, or that of another model. All of this is found before a single weight is touched.


# %% tags=["export"]
def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the notes of a safetensors file; raises ValueError if it is not one."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); other formats, such as pickles, "
            "are refused because they can run code"
        ) from error


# %% [markdown]
# A file that is too short is noticed, since the list at its beginning says how long it must be. A single changed bit among the numbers is not: the format has no checksum.


# %% tags=["export"]
def begin_moments(optimizer: Adam) -> None:
    """Give Adam the moments of its beginning, zeros, to be filled from a checkpoint."""
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {
            "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter),
            "step": torch.zeros((), device=parameter.device),
        }  # fmt: skip


# %% tags=["export"]
def load_checkpoint(run: Run, path: Path) -> None:
    """Put a run back to where it was at a checkpoint.

    Raises ValueError if the file is damaged, or is the checkpoint of another model.
    """
    tensors, notes = read_tensors(path)
    begin_moments(run.optimizer)
    mine = run.tensors()
    if "run" not in notes or {n: t.shape for n, t in tensors.items()} != {
        n: t.shape for n, t in mine.items()
    }:
        raise ValueError(f"{path} is not a checkpoint of this model: move it away, or go elsewhere")
    for name, value in json.loads(notes["run"]).items():
        setattr(run, name, value)
    for name, tensor in mine.items():
        tensor.copy_(tensors[name])
    for state in run.optimizer.state.values():
        state["step"].fill_(run.step)


# %% [markdown]
# Adam makes its moments in its first step, so a fresh optimizer has none that could be filled. We give it zeros of the right shapes. Then names and shapes of the file must be those of the run, all of them. If the model has one layer more than the file, nothing is loaded; a half-loaded model would be the worst of all.
#
# The numbers are copied *into* the tensors of the run. Putting new tensors in their place would part the model from its optimizer, which still held the old ones.
#
# The last lines put back Adam's own count of steps, from which the bias correction follows. It is easily forgotten, and an exercise below asks what happens then.
#
# ## A folder for a run
#
# A run that can be continued lives in a folder:
#
# | file | what it holds | when it is written |
# |---|---|---|
# | `training.json` | the settings | at each start |
# | `config.json`, `tokenizer.json` | the shape of the model, the vocabulary | at each start |
# | `checkpoints/step-00000500.safetensors` | weights, moments, step, best score | every `save_every` steps |
# | `log.jsonl` | loss, rate, speed, scores | every 50 steps, and with each checkpoint |
# | `model.safetensors` | the best weights | at the end |
# | `.lock` | nothing | see below |


# %% tags=["export"]
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
TRAINING, LOG, CHECKPOINTS = "training.json", "log.jsonl", "checkpoints"
MAY_CHANGE = ("steps", "save_every", "save_minutes", "keep", "patience")  # on resuming


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8")


def describe(model: Transformer, tokenizer: Tokenizer, folder: Path) -> None:
    """Write all of a model but its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TOKENIZER, tokenizer.to_json())
    write_text(folder / CONFIG, json.dumps(asdict(model.config), indent=2))


# %% [markdown]
# Shape and vocabulary are written before the first step, and not with the model at the end. So a run that is still going, or was killed, can be averaged and tried out: its checkpoints have all that they need beside them.
#
# ### One run at a time
#
# Two processes in one folder would overwrite each other's checkpoints. This happens easily: one forgets that a training runs already, or a cluster starts the new one before the old one is gone. So the first process takes a **lock** on the folder, and the second is turned away.


# %% tags=["export"]
@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep a folder for one training; the lock goes when the process does, however it ends.

    Raises BlockingIOError if another training is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            for part in [*folder.glob("*.part"), *folder.glob(f"{CHECKPOINTS}/*.part")]:
                part.unlink()  # left by a process that was killed while it wrote
            yield
    except Timeout:
        raise BlockingIOError(
            f"another training is at work in {folder}: wait for it, or take another folder"
        ) from None


# %% [markdown]
# Why not a file that says "busy", removed at the end? Because a process that is killed removes nothing, and the folder would stay busy for ever. A lock of the operating system belongs to the process and goes when it goes, however it ends. The file `.lock` stays where it is and means nothing by itself.
#
# Whoever has the lock knows that nobody else is writing. So what lies aside, half written, was left by a process that is dead, and can be swept up.
#
# ## Going on with the same settings
#
# What if the folder holds a run with another learning rate? To go on with it would give a model that no command describes: half of it learned one way, half of it the other. So the settings are kept beside the checkpoints, and compared.


# %% tags=["export"]
def sha256_of_examples(examples: Sequence[Example]) -> str:
    """Return the SHA-256 of all token ids."""
    return hashlib.sha256(repr([tuple(pair) for pair in examples]).encode()).hexdigest()


# %% tags=["export"]
def settings_of(
    model: Transformer, tokenizer: Tokenizer, examples: Sequence[Example], config: TrainingConfig
) -> dict[str, Any]:
    """Return all that decides how a run goes, as JSON can hold it."""
    return {
        **{f"training.{name}": value for name, value in asdict(config).items()},
        **{f"model.{name}": value for name, value in asdict(model.config).items()},
        "tokenizer": tokenizer.sha256,
        "examples": len(examples),
        "pairs": getattr(examples, "sha256", None) or sha256_of_examples(examples),
    }


# %% [markdown]
# The tokenizer is represented by its hash, and so are the pairs: their ids, all in one string, which takes half a second for Multi30k. The number of pairs would find a corpus with a pair more or less. It would not find the same pairs in another order, or with source and target exchanged.


# %% tags=["export"]
def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a folder holds a run of other settings; write them if it holds none."""
    before = json.loads(path.read_text()) if path.exists() else settings
    for name in {**before, **settings}:
        if name.removeprefix("training.") in MAY_CHANGE or before.get(name) == settings.get(name):
            continue
        raise ValueError(
            f"{path.parent} holds a training with {name}={before.get(name)}, not "
            f"{settings.get(name)}: repeat its settings to go on with it, or take another folder"
        )
    write_text(path, json.dumps(dict(settings), indent=2))


# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, TRAINING)
    check_settings(path, {"training.factor": 0.2, "training.steps": 1000})
    check_settings(path, {"training.factor": 0.2, "training.steps": 5000})
    try:
        check_settings(path, {"training.factor": 0.3, "training.steps": 5000})
    except ValueError as error:
        print(str(error).split("training with ")[1])

# %% [markdown]
# Four settings may change: how long to train, how often to save, how many to keep, how patient to be. None of them has a part in an update. That a run can simply be made longer is a gift of the paper's schedule. Its rate depends on the step and not on the length of the run. A schedule that falls to zero at the last step must know that step from the beginning.
#
# ### Back to a checkpoint
#
# At the start of a call we go back to the last checkpoint, and at its end to the best.


# %% tags=["export"]
def resume(run: Run, folder: Path) -> None:
    """Put a run back to the last checkpoint of a folder, if there is one."""
    if found := checkpoints(folder / CHECKPOINTS):
        load_checkpoint(run, found[-1])


def take_best(run: Run, folder: Path) -> None:
    """Put back the weights with the best score, if the run was validated."""
    if run.best_step:
        load_checkpoint(run, checkpoint_path(folder / CHECKPOINTS, run.best_step))


# %% [markdown]
# If the last checkpoint is damaged, `resume` does not quietly take the one before. It names the file and stops. Whoever then removes it goes on from the one before, and knows it.
#
# ## Keeping a model
#
# Moments are for training. A trained model is a folder of three files: the weights, the configuration and the tokenizer. None of them is worth anything alone. Without the configuration, nobody knows the number of heads, which no shape of a weight gives away. Without the tokenizer, nobody knows what token 317 is.


# %% tags=["export"]
def check_vocabulary(model: Transformer, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has ids for which the model has no embedding."""
    if len(tokenizer) > model.config.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} entries, the model "
            f"{model.config.vocabulary_size}: make it with vocabulary_size=len(tokenizer)"
        )


# %% [markdown]
# A vocabulary *larger* than the embedding table is an error. A smaller one is allowed: some rows of the table are then never used.
#
# With *another* tokenizer of the same size there is no error at all. The model reads wrong words and writes wrong words. So the weights carry the hash of theirs, as a note in the file.


# %% tags=["export"]
def save_model(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, half: bool = False
) -> None:
    """Write a model into a folder: configuration, tokenizer, weights (half precision if asked)."""
    folder = Path(folder)
    describe(model, tokenizer, folder)
    weights = {n: t.half() if half else t for n, t in model.state_dict().items()}
    write_tensors(folder / WEIGHTS, weights, {"tokenizer": tokenizer.sha256})


# %% [markdown]
# Loading is the mirror image, with a check for everything that can be missing, damaged, or from somewhere else.
#
# | what is wrong | how it is noticed | error |
# |---|---|---|
# | a file is missing | before anything is read | `FileNotFoundError` |
# | `config.json` is no JSON, or `heads=5` does not divide the width | the configuration checks itself | `ValueError` |
# | a field that a newer version has | the dataclass does not know it | `ValueError` |
# | the weights are a pickle, or cut off | the list at the beginning of the file | `ValueError` |
# | a tokenizer of another model | its hash is not the one in the note | `ValueError` |
# | weights of another shape | PyTorch compares names and shapes | `ValueError` |
#
# Each message names the file. There are two kinds of error and no more, so that a caller, such as the command line, can turn each into one line.


# %% tags=["export"]
def load_config(path: Path) -> TransformerConfig:
    """Read a configuration; raises ValueError if the file is not one."""
    try:
        return TransformerConfig(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a model's configuration: {error}") from error


# %% tags=["export"]
def load_model(folder: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read what `save_model` wrote; the model is in evaluation mode.

    Raises FileNotFoundError if a file is missing, ValueError if one is damaged or they do not
    belong together.
    """
    folder = Path(folder)
    missing = [name for name in (WEIGHTS, CONFIG, TOKENIZER) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} holds no model: {', '.join(missing)} missing")
    model, tokenizer = Transformer(load_config(folder / CONFIG)), Tokenizer.load(folder / TOKENIZER)
    check_vocabulary(model, tokenizer)
    weights, notes = read_tensors(folder / WEIGHTS)
    if notes.get("tokenizer", tokenizer.sha256) != tokenizer.sha256:
        raise ValueError(
            f"{folder / TOKENIZER} is not the tokenizer that the model was trained with"
        )
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{folder / WEIGHTS} holds the weights of another configuration: {error}"
        ) from error
    return model.eval(), tokenizer


# %% [markdown]
# The model comes back in evaluation mode. Whoever loads one mostly wants to use it, and forgetting `eval()` is [a common mistake](10_transformer.ipynb).
#
# What went in comes out, to the last bit, and a pickle does not get in.

# %%
with tempfile.TemporaryDirectory() as folder:
    model = fresh()
    save_model(model, tokenizer, folder)
    print(sorted(path.name for path in Path(folder).iterdir()))
    again, _ = load_model(folder)
    same = zip(model.state_dict().values(), again.state_dict().values())
    assert all(torch.equal(one, other) for one, other in same)
    torch.save(model.state_dict(), Path(folder, WEIGHTS))
    try:
        load_model(folder)
    except ValueError as error:
        print(str(error).rpartition("; ")[2])

# %% [markdown]
# ### How many digits does a weight need?
#
# To train, many. Steps are small against weights, and the usual 32 bits keep about seven digits. To use a model, few. **Half precision** has 16 bits for a number, so the file is half as large. What is lost?

# %%
with tempfile.TemporaryDirectory() as folder:
    save_model(model, tokenizer, folder, half=True)
    halved, _ = load_model(folder)
worst = max(
    float(((a - b).abs() / a.abs().clamp(min=0.001)).max())
    for a, b in zip(model.state_dict().values(), halved.state_dict().values())
)
print(f"changed by at most {worst:.2%}; 1 + 0.0003 is", float(torch.ones(1).half() + 0.0003))

# %% [markdown]
# Half precision has 11 binary digits, so rounding changes a number by at most $2^{-11}$, a twentieth of a percent. (Numbers below 0.00006 lose more; the cell measures the smallest ones against 0.001.) The model that comes with this book is stored like that. But the last number shows why one cannot simply train that way: next to 1, the smallest step is $2^{-10}$, about 0.001, and an update of less than half of that is rounded away.
#
# On loading, the weights become 32 bits again. Half precision here is a way to store a model and not a way to compute.
#
# ### The model that comes with the package
#
# One such folder is part of the package, so `load_pretrained()` needs no network. `importlib.resources` finds it, wherever the package is installed.


# %% tags=["export"]
def load_pretrained(name: str = "multi30k-de-en") -> tuple[Transformer, Tokenizer]:
    """Read a trained model that comes with the package, in evaluation mode.

    Raises ValueError if there is none of that name.
    """
    home = files("annotated_transformer") / "pretrained"
    names = sorted(entry.name for entry in home.iterdir() if entry.is_dir())
    if name not in names:
        raise ValueError(f'there is no pretrained model "{name}": take one of {", ".join(names)}')
    with as_file(home / name) as folder:
        return load_model(folder)


# %% [markdown]
# ## A log that agrees with the weights
#
# What is not written down has not been measured. Every 50 steps, and with each checkpoint, the loop makes a record:


# %% tags=["export"]
class Progress(NamedTuple):
    """What training tells on its way; means are over the steps since the last report."""

    step: int
    epoch: float
    loss: float
    """A target token, with label smoothing, in nats."""
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    """Target tokens without padding."""
    validation_loss: float | None = None
    """A target token, without label smoothing, in nats."""
    score: float | None = None


# %% [markdown]
# The last two are measured every `save_every` steps and at the end. The loss is in nats, since the logarithm is the natural one. Tokens are counted without padding, as useful work should be. The norm of the gradient is there to look back at when a run has gone wrong.
#
# Numbers of a run also depend on where it ran. So each start writes a record of its own, with the time and the machine.


# %% tags=["export"]
def machine() -> dict[str, Any]:
    """Return what a run's numbers depend on beside its settings."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def now() -> str:
    """Return the time of day with date and zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S%z")


# %% [markdown]
# The log is a text file with one JSON object a line. Such a file can be written by appending, read with one line of Python, and searched with `grep`.
#
# Appending has a catch. A run with a checkpoint at step 500 is killed at step 560. Its log holds a record of step 550. When the run goes on from step 500, it makes step 550 again, and the log would hold it twice. No weight remembers the first of the two. So what came after the checkpoint is forgotten before the run goes on.


# %% tags=["export"]
class Log:
    """The log of a run, one JSON object a line; without a folder, nowhere."""

    def __init__(self, folder: Path | None, step: int, processes: int = 1) -> None:
        self.path = folder / LOG if folder else None
        if self.path is not None:  # forget what came after the checkpoint that we go on from
            lines = self.path.read_text().splitlines() if self.path.exists() else []
            whole = [line for line in lines if line.endswith("}")]
            kept = [line for line in whole if json.loads(line)["step"] <= step]
            begin = {"step": step, **machine(), "processes": processes, "time": now()}
            kept.append(json.dumps(begin))
            write_text(self.path, "".join(f"{line}\n" for line in kept))

    def write(self, progress: Progress) -> None:
        """Append a line."""
        if self.path is not None:
            record = {k: v for k, v in progress._asdict().items() if v is not None}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**record, "time": now()}) + "\n")


# %% [markdown]
# The last line may be half written, so a line that does not end in `}` is dropped. A log with three records and such a line, and a run that goes on from step 500:

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, LOG)
    records = [json.dumps({"step": step}) for step in (450, 500, 550)]
    path.write_text("\n".join([*records, '{"step": 6']))
    Log(Path(folder), step=500)
    print([json.loads(line)["step"] for line in path.read_text().splitlines()])

# %% [markdown]
# 450 and 500 stand, 550 is gone, and the second 500 is the record of the new start.
#
# ## Reading numbers late
#
# The meter collects what the steps report. It reads the tensors of 50 steps at once, so that a GPU has to wait once and not 50 times.


# %% tags=["export"]
REPORT_EVERY = 50  # steps


class Meter:
    """Collects what steps saw, and reads it only when asked: reading makes a GPU wait."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all, and start the clock."""
        self.steps: list[Step] = []
        self.start = time.perf_counter()

    def read(self, step: int, epoch: float, rate: float) -> Progress:
        """Return the means since the last reset; raises FloatingPointError for a bad step."""
        loss, tokens, norm = (torch.stack(column).double().cpu() for column in zip(*self.steps))
        bad = (~norm.isfinite()).nonzero()
        if len(bad):
            raise FloatingPointError(
                f"the gradient of step {step - len(norm) + 1 + int(bad[0])} is not finite; it was "
                "not used. Try a smaller factor, a longer warmup, or grad_clip=1.0, in another folder"
            )
        speed = float(tokens.sum()) / (time.perf_counter() - self.start)
        mean = float(loss.sum() / tokens.sum())
        return Progress(step, round(epoch, 3), mean, rate, float(norm.mean()), round(speed))


# %% [markdown]
# Sums of losses are divided by sums of tokens here as well. The mean of 50 means would be the same slip as above.
#
# A gradient that was not finite is noticed here, up to 49 steps late. No harm was done in between: its update was left out, and so were those of the steps after it, if they were bad too. The error names the first bad step and says what to try. These are other settings, so they are for another run, in another folder. The same command would come to the same step and to the same `nan`.
#
# ## Is it getting better?
#
# The loss on the training pairs falls even when a model learns them by heart. So every `save_every` steps we measure on pairs that it does not learn from. The **validation loss** is measured as the model will be used: without dropout and without smoothing. Its exponential is the perplexity: with a loss of 2.2, the model is as unsure as if it had to choose among $e^{2.2} = 9$ words each time.
#
# Batches are made on the processor. They must go to where the model is.


# %% tags=["export"]
def to_device(batch: Batch, model: Transformer) -> Batch:
    """Bring a batch to where the model is."""
    device = next(model.parameters()).device
    return Batch(batch.source.to(device), batch.target.to(device))


# %% tags=["export"]
def validation_loss(
    model: Transformer, examples: Sequence[Example], max_tokens: int, team: Team = ALONE
) -> float:
    """Return the mean loss a target token, without smoothing and without dropout, in nats."""
    mine = batches(examples, max_tokens, seed=0, epoch=0, arrange=team.arrange)
    with evaluating(model):
        sums = [torch.stack(batch_loss(model, to_device(b, model), label_smoothing=0)) for b in mine]
    loss, tokens = team.total(torch.stack(sums).double().sum(dim=0)).tolist()
    return float(loss / tokens)


# %% [markdown]
# `evaluating` turns dropout off, and back on at the end. To forget the second half is a mistake that shows late: from the first validation on, the model would train without dropout. The order of the batches does not matter here, so seed and epoch are fixed. The sum over some hundred thousand tokens is added up in double precision.
#
# ### A score, and when to stop
#
# We also want to know how well it translates. That takes decoding and a score, which later chapters build. The loop need not know them: it takes a function from a model to a number, where higher is better. Without one, minus the validation loss is the score.
#
# If `patience` validations in a row bring no better score, training ends; this is **early stopping**. With `save_every=500` and `patience=2` it may go like this (the scores are made up):
#
# | step | 500 | 1,000 | 1,500 | 2,000 |
# |---|---|---|---|---|
# | score | 10.1 | 12.4 | 11.9 | 12.2 |
# | best so far | 500 | 1,000 | 1,000 | 1,000 |
# | without a better one | 0 | 0 | 1 | 2: stop |
#
# Step 2,000 is better than 1,500 and counts as a failure all the same: it is not better than the best. At the end the weights of step 1,000 come back. They still exist, because the best checkpoint so far always stays.
#
# Is the score of the best step a fair measure of the model? It is a little too high. Of many noisy numbers we took the largest. That is why a test set is needed that had no say in any choice.
#
# ## Told to stop
#
# A cluster sends the signal SIGTERM some seconds before it kills. A person presses Ctrl-C, which is SIGINT. Neither should cost a step: we finish the one at hand, write a checkpoint, and leave.
#
# A signal can arrive at any moment, also in the middle of writing a file. So its handler does next to nothing: it sets an event, and the loop looks at the event once a step.


# %% tags=["export"]
class Stopped(Exception):
    """A training was asked to stop, and has left a checkpoint."""


@contextmanager
def asked_to_stop(listen: bool) -> Iterator[threading.Event]:
    """Give an event that SIGTERM or SIGINT sets; afterwards signals do what they did before."""
    stop, before = threading.Event(), {}
    if listen and threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGTERM, signal.SIGINT):
            before[kind] = signal.signal(kind, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


# %% [markdown]
# Only the main thread of a Python process may listen for signals, so in any other we do not. And without a folder there is nothing to save: then `listen` is false, and Ctrl-C ends the run at once, as everywhere in Python. Afterwards the handlers of before are put back. A second Ctrl-C changes nothing: the step, and the validation if there is one, is finished first.

# %%
with asked_to_stop(listen=True) as stop:
    print("asked to stop:", stop.is_set())
    signal.raise_signal(signal.SIGTERM)
    print("asked to stop:", stop.is_set())

# %% [markdown]
# Without our handler, this cell would have ended the notebook's kernel.
#
# ## The loop
#
# All parts are there. This is how they will call each other:
#
# ```text
# train                     what cannot work is refused; a run is made
# └─ run_in_folder          lock, settings, last checkpoint; at the end the best model
#    └─ run_to_end          the loop
#       ├─ update           rate, dropout, count of steps
#       │  └─ training_step    gradients, norm, Adam
#       │     └─ batch_loss    teacher forcing
#       ├─ keep_record      validation, one line in the log
#       └─ save_checkpoint  one file, whole
# ```
#
# Everything that a run needs is in one place. What changes from step to step is in `run`, the part that a checkpoint holds. The rest is fixed from start to end.
#
# | part | what it is |
# |---|---|
# | `run` | model, optimizer, step, best step and its score |
# | `config` | the settings |
# | `examples`, `validation` | pairs as numbers: to learn from, and to watch |
# | `score` | the function that scores the model, if there is one |
# | `report` | a function that gets each record: to print it, or to draw it |
# | `folder` | where the run lives, if it is to outlive the process |
# | `objective` | what gives the loss of a batch |
# | `team` | who takes part |


# %% tags=["export"]
@dataclass
class Trainer:
    """A run and all that it needs; `train` makes it."""

    run: Run
    config: TrainingConfig
    examples: Sequence[Example]
    validation: Sequence[Example]
    score: Callable[[Transformer], float] | None
    report: Callable[[Progress], None]
    folder: Path | None
    objective: nn.Module
    team: Team

    def due(self) -> bool:
        """Return whether this step ends with a checkpoint and a validation."""
        return self.run.step % self.config.save_every == 0 or self.run.step == self.config.steps

    def finished(self) -> bool:
        """Return whether all steps are done, or patience is at its end."""
        waited, patience = self.run.step - self.run.best_step, self.config.patience
        bored = bool(
            self.run.best_step and patience and waited >= patience * self.config.save_every
        )
        return bored or self.run.step >= self.config.steps


# %% [markdown]
# Is a checkpoint due, and is the run finished? Both are answered from the step and the best step, which the checkpoint holds. A counter of failed validations would be one thing more to save.
#
# ### One step
#
# A step is counted in one place. The rate, the dropout and the checkpoint's name all follow from this count. There is no scheduler object with a count of its own, so none can be moved once a batch where once an update was meant.
#
# In a team, each process must drop other numbers than the rest: twice the same dice on different sentences would be half a dice. So the number that chance follows from counts processes too. For a team of one it is the number of the step.


# %% tags=["export"]
def update(trainer: Trainer, group: Sequence[Batch]) -> tuple[Step, float]:
    """Make the next step of a run; return what it saw, and its learning rate."""
    run, config = trainer.run, trainer.config
    rate = learning_rate(run.step + 1, run.model.config.d_model, config.warmup, config.factor)
    run.optimizer.param_groups[0]["lr"] = rate
    with randomness(config.seed, (run.step + 1) * trainer.team.size + trainer.team.rank):
        step = training_step(trainer.objective, group, run.optimizer, config.clip, trainer.team)
    run.step += 1
    return step, rate


# %% tags=["export"]
def validate(trainer: Trainer, progress: Progress) -> Progress:
    """Add loss and score on the validation pairs, and remember the best step."""
    run, loss, score = trainer.run, None, None
    if trainer.validation:
        most = trainer.config.max_tokens
        loss = validation_loss(run.model, trainer.validation, most, trainer.team)
    if trainer.score is not None:
        score = trainer.score(run.model)
    value = score if score is not None else -loss if loss is not None else None
    if value is not None and value > run.best_score:
        run.best_step, run.best_score = run.step, value
    return progress._replace(validation_loss=loss, score=score)


# %% [markdown]
# A score counts as better only if it is higher. Of two equal ones the earlier stays, and `nan` is never the best, since it compares as false.
#
# ### From the first step to the last
#
# The loop begins wherever the run is: at step 0, or at the step of the checkpoint. Each step has taken `accumulate` batches from the stream, so the product says where in the stream to go on.


# %% tags=["export"]
def stream_of(trainer: Trainer) -> Iterator[list[Batch]]:
    """Yield the batches of each update, from the run's step on: this process's share of them."""
    run, config, team = trainer.run, trainer.config, trainer.team
    start = run.step * config.accumulate
    stream = team.feed(
        endless_batches(trainer.examples, config.max_tokens, config.seed, start, team.arrange),
        run.model,
    )
    while True:
        yield [next(stream) for _ in range(config.accumulate)]


# %% [markdown]
# A record and a checkpoint belong to the end of some steps only. In a team, all processes take part in a validation, and only the first one writes.


# %% tags=["export"]
def keep_record(trainer: Trainer, log: Log, meter: Meter, epoch: float, rate: float) -> float:
    """Validate if it is time; write and report what there is to know of the last steps.

    Returns their loss.
    """
    progress = meter.read(trainer.run.step, epoch, rate)
    progress = validate(trainer, progress) if trainer.due() else progress
    if trainer.team.rank == 0:
        log.write(progress)
        trainer.report(progress)
    meter.reset()
    return progress.loss


# %% tags=["export"]
def run_to_end(trainer: Trainer) -> None:
    """Make steps until the run is finished; write log and checkpoints on the way.

    Raises Stopped after a signal, FloatingPointError after a gradient that is not finite.
    """
    run, config, team, meter = trainer.run, trainer.config, trainer.team, Meter()
    folder = trainer.folder if team.rank == 0 else None  # the first process writes for all
    trainer.objective = team.join(trainer.objective)
    per_epoch = batches_per_epoch(trainer.examples, config.max_tokens) / config.accumulate
    log, stream, saved = Log(folder, run.step, team.size), stream_of(trainer), time.monotonic()
    bar = tqdm(total=config.steps, initial=run.step, unit="step", disable=team.rank > 0 or None)
    with bar, asked_to_stop(trainer.folder is not None) as event:
        while not trainer.finished():
            step, rate = update(trainer, next(stream))
            meter.steps.append(step)
            bar.update()
            late = folder is not None and time.monotonic() - saved > 60 * config.save_minutes
            if trainer.due() or run.step % REPORT_EVERY == 0 or late:
                loss = keep_record(trainer, log, meter, run.step / per_epoch, rate)
                bar.set_postfix(loss=f"{loss:.3f}")
            if (stop := team.asked(event.is_set(), run.step)) and meter.steps:
                keep_record(trainer, log, meter, run.step / per_epoch, rate)
            if folder and (trainer.due() or stop or late):
                save_checkpoint(run, folder / CHECKPOINTS, config)
                saved = time.monotonic()
            if stop:
                raise Stopped(f"stopped at step {run.step}: the same command goes on from there")


# %% [markdown]
# The order at the end of a step is deliberate.
#
# 1. **Read the meter.** If a gradient was not finite, this raises. So no checkpoint is ever written after a bad gradient.
# 2. **Validate.** The checkpoint then knows whether it is the best, and is not removed as an old one.
# 3. **Write the record, then the checkpoint.** A kill between the two leaves a record without a checkpoint. The next start forgets it and makes it again. The other way round, the record would be missing for ever.
# 4. **Leave**, if a signal has come. By now there is nothing left to lose.
#
# The progress bar is drawn on a terminal and nowhere else (`disable=None`). In the log file of a cluster it would be a thousand lines of the same.
#
# ### In a folder
#
# With a folder, the loop stands between taking up what is there and leaving a model behind.


# %% tags=["export"]
def begin_in_folder(trainer: Trainer, tokenizer: Tokenizer, folder: Path) -> None:
    """Begin or continue a run in a folder; raises ValueError if it holds another run."""
    run = trainer.run
    settings = settings_of(run.model, tokenizer, trainer.examples, trainer.config)
    check_settings(folder / TRAINING, settings)
    describe(run.model, tokenizer, folder)
    resume(run, folder)


# %% tags=["export"]
def run_in_folder(trainer: Trainer, tokenizer: Tokenizer, folder: Path) -> None:
    """Begin or continue a run in a folder, and leave the best model there.

    Raises BlockingIOError if another is at work in it, ValueError if it holds another run.
    """
    run, team = trainer.run, trainer.team
    with folder_lock(folder) if team.rank == 0 else nullcontext():
        if team.rank == 0:
            begin_in_folder(trainer, tokenizer, folder)
        team.share(run)
        run_to_end(trainer)
        if team.rank == 0:
            take_best(run, folder)
            save_model(run.model, tokenizer, folder)
        team.share(run)


# %% [markdown]
# First the lock: two runs that start together would otherwise both find the folder empty. The settings come before all other files, so a run with other ones changes nothing. A run that was finished goes through the same lines: it resumes at its last step, makes none, and hands out its best model again.
#
# In a team only the first process reads and writes the folder, so the others need not even see the disk it is on. `share` brings them to the same step with the same weights, before the loop and once more at the end.
#
# ### The function that a user calls
#
# What cannot work is found before the first step. A pair that is too long for the model would otherwise stop the run when its batch comes up, perhaps after hours.


# %% tags=["export"]
def check_positions(model: Transformer, examples: Sequence[Example], part: str) -> None:
    """Raise ValueError for the first example that is longer than the model's positions."""
    most, lengths = model.config.max_length, shapes_of(examples).amax(dim=1)
    for index in (lengths > most).nonzero()[:1].flatten().tolist():
        raise ValueError(
            f"{part} pair {index + 1} has {int(lengths[index])} tokens, the model has {most} "
            "positions: drop or split the pair, or build the model with a larger max_length"
        )


# %% [markdown]
# Pairs may come as text or, from a [corpus on disk](D_large_corpora.ipynb), as token ids already.


# %% tags=["export"]
def as_examples(
    tokenizer: Tokenizer, pairs: Sequence[Pair] | Sequence[Example]
) -> Sequence[Example]:
    """Return the examples of pairs; what is encoded already stays as it is."""
    if len(pairs) and isinstance(pairs[0], Example):
        return cast("Sequence[Example]", pairs)
    return encode_pairs(tokenizer, cast("Sequence[Pair]", pairs))


# %% tags=["export"]
def train(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair] | Sequence[Example],
    config: TrainingConfig = TrainingConfig(),
    *,
    validation: Sequence[Pair] | Sequence[Example] = (),
    score: Callable[[Transformer], float] | None = None,
    folder: str | Path | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    objective: nn.Module | None = None,
    team: Team = ALONE,
) -> Transformer:
    """Train a model on pairs and return it, in evaluation mode.

    Calls `report` every 50 steps, and every `save_every` steps measures the loss on `validation`
    and `score`, where higher is better. A folder gets checkpoints and a log; a run that it holds
    already goes on, to the bit; and the weights with the best score are returned and saved.
    Another objective of the same model may compute the loss, and a team share the work. Raises
    ValueError for pairs, tokenizer or folder that do not fit, and what the loop raises.
    """
    if not len(pairs):
        raise ValueError("there are no sentence pairs to train on")
    check_vocabulary(model, tokenizer)
    examples, watched = (as_examples(tokenizer, some) for some in (pairs, validation))
    check_positions(model, examples, "training")
    check_positions(model, watched, "validation")
    run, place = Run(model, make_optimizer(model)), None if folder is None else Path(folder)
    objective = objective or Objective(model, config.smoothing)
    trainer = Trainer(run, config, examples, watched, score, report, place, objective, team)
    model.train()
    run_to_end(trainer) if place is None else run_in_folder(trainer, tokenizer, place)
    return model.eval()


# %% [markdown]
# Model, tokenizer and pairs are all that it takes. The model is trained in place and returned in evaluation mode. Without a folder, the weights are those of the last step. With one, they are the best.
#
# ## Killed, and continued
#
# The proof: a run of 60 steps, and the same run broken off at step 50, in the middle of an epoch, ten steps after its last checkpoint. An exception stands for the axe here; the tests of this project use a real `kill -9`.


# %%
class Axe(Exception):
    pass


def fall(progress):
    if progress.step == 50:
        raise Axe


config = TrainingConfig(steps=60, max_tokens=200, grad_accum_steps=2, save_every=20)
with tempfile.TemporaryDirectory() as folder:
    straight = train(fresh(), tokenizer, pairs, config, folder=f"{folder}/straight")
    try:
        train(fresh(), tokenizer, pairs, config, folder=f"{folder}/broken", report=fall)
    except Axe:
        kept = [path.name for path in checkpoints(Path(folder, "broken", CHECKPOINTS))]
    broken = train(fresh(), tokenizer, pairs, config, folder=f"{folder}/broken")
    lines = Path(folder, "broken", LOG).read_text().splitlines()

# %%
print("found after the axe:", kept)
print("steps in the log:", [json.loads(line)["step"] for line in lines if "epoch" in line])
same = zip(straight.state_dict().values(), broken.state_dict().values())
assert all(torch.equal(one, other) for one, other in same)
print("every weight equal to the last bit")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-killed", "caption": "What does a kill cost? The run that was left alone, and the one that was broken off at step 50. Squares are checkpoints. The steps from 40 to 50 are made twice; nothing else is lost, and both end with the same weights."}, "image": {"alt": "Three lines over steps 0 to 60. The broken run ends in a cross at 50, and its continuation begins at the checkpoint of step 40."}}
style()
figure, axis = plt.subplots(figsize=(8, 1.8), layout="constrained")
rows = {"left alone": (0, 60, INK), "broken off": (0, 50, KEY), "continued": (40, 60, QUERY)}
for y, (first, last, color) in enumerate(rows.values()):
    saved = [step for step in (20, 40, 60) if first <= step <= last]
    axis.plot([first, last], [y, y], color=color)
    axis.plot(saved, [y] * len(saved), "s", color=color)
axis.plot([50], [1], "x", ms=11, mew=2, color=KEY)
axis.set(xlabel="step", yticks=range(3), yticklabels=rows, ylim=(2.5, -0.5), xlim=(0, 61))
plt.show()

# %% [markdown]
# The log shows the steps from 40 to 50 once, as if they had been made once.
#
# ### Killed where?
#
# A process can be killed at any point of the loop. Each has an answer:
#
# | killed while | what the next start finds, and does |
# |---|---|
# | a step is computed | the last checkpoint; the steps since then are made again |
# | it validates | the same |
# | a record is written | half a line, which is dropped |
# | between record and checkpoint | a record beyond the last checkpoint, which is dropped |
# | a checkpoint is written | a file with `.part` in its name, which is removed; the checkpoint before it stands |
# | old checkpoints are removed | one too many, which goes with the next |
# | the model is written at the end | the checkpoint of the last step; no step is made, and the model is written again |
#
# ### To the last bit, always?
#
# On one machine, with the same number of threads and the same release of PyTorch. Another number of threads adds up in another order, which changes the last bits, since rounding depends on the order. A long run then takes another of many equally good ways. It is still the same run in every other respect: the same batches in the same order, the same rates.
#
# The log has one difference. A run that was stopped by a signal has a record of the step at which it left, and its next record is a mean over fewer than 50 steps.
#
# ## To copy is to attend
#
# Before we spend minutes, we spend seconds. A row of random digits must come out as it went in. There is no meaning to learn, so if that fails, the
# code is wrong. A model that cannot find *where* to look cannot do it at all: each digit is as likely as any other.
#
# While it trains, we look at its cross-attention on one row, the mean of its heads, in evaluation mode.


# %%
def cross_attention(model, source, target):
    """Return the last layer's cross-attention (T, S), averaged over heads, without dropout."""
    attention = model.decoder.layers[-1].cross_attention
    attention.keep_weights = True
    with evaluating(model):
        model(source, target)
    attention.keep_weights = False
    assert torch.allclose(attention.weights.sum(dim=-1), torch.ones(()), atol=1e-5)
    return attention.weights[0].mean(dim=0)


# %% tags=["nbval-ignore-output"]
rng = random.Random(0)
digits = [" ".join(rng.choices("0123456789", k=rng.randint(3, 8))) for _ in range(4000)]
copies = [Pair(text, text) for text in digits]
tokenizer = Tokenizer.train(copies, vocabulary_size=300)
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), layers=1, dropout=0.0))
assert len(tokenizer) == 270

row = collate(encode_pairs(tokenizer, [Pair("3 1 4 1 5 9 2 6", "3 1 4 1 5 9 2 6")]))
frames = {0: cross_attention(model, row.source, row.target[:, :-1])}


def watch(progress):
    frames[progress.step] = cross_attention(model, row.source, row.target[:, :-1])
    print(f"step {progress.step}: loss {progress.loss:.2f}")


model = train(model, tokenizer, copies[:-100], TrainingConfig(steps=400), report=watch)

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-copy", "caption": "How does a model find out where to look? Cross-attention on one row of digits while the model learns to copy. Rows are labeled with the digit that is to be written, columns with the digit that is read; gray is the weight, from 0 (paper) to 1 (ink). Gray everywhere turns into a diagonal: to write a digit, look at it."}, "image": {"alt": "Six attention maps. At step 0 all weights are about equal; by step 400 nearly all weight lies on the diagonal."}}
figure, axes = plt.subplots(1, 6, figsize=(10, 2.4), layout="constrained", sharey=True)
shown = [0, 100, 150, 200, 300, 400]
labels = [*"31415926", "</s>"]
for axis, step in zip(axes, shown):
    axis.imshow(frames[step], cmap="Greys", vmin=0, vmax=1)
    axis.set(title=f"step {step}", xlabel="key: source")
    axis.set_xticks(range(9), labels, fontsize=7)
    axis.set_yticks(range(9), labels, fontsize=7)
    axis.grid(False)
axes[0].set_ylabel("query: writes this")
plt.show()

# %% [markdown]
# Nobody told it about the diagonal. It is what the gradient found, through one layer of queries and keys, and the positional encoding is all that they have to go by: the two 1s of the row are told apart by their places.
#
# ### Which loss is good?
#
# The vocabulary has 270 entries: 4 reserved, 256 bytes, and the ten digits with a space in front. Labels are smoothed, so the best possible answer gives the right digit 0.9 and shares 0.1 among all 270. Two losses can be told in advance:
#
# - A model that does not look can only guess among ten digits. That costs $0.9 \ln (10 / 0.9) + 0.1 \ln (270 / 0.1) = 2.17 + 0.79 = 2.96$ a digit.
# - A model that copies perfectly pays the [entropy of the labels](17_regularization.ipynb): $0.9 \ln (1 / 0.9) + 0.1 \ln (270 / 0.1) = 0.09 + 0.79 = 0.88$.
#
# So around 3 it has learned that there are digits, below that it looks, and at 0.9 it is done. If we did not know the floor, we would wait for a zero that cannot come.
#
# ### Has it learned to copy, or only these rows?
#
# A hundred rows were held back. Some of them occur among the others by chance, since there are only 1,000 rows of three digits; those do not count. `greedy_decode` of
# [the model's chapter](10_transformer.ipynb) writes each row, one most likely token at a time. Rows of similar length share a batch.


# %%
def write(model, tokenizer, texts):
    """Translate texts in batches of similar length, and return them in the order given."""
    sources = [encode_source(tokenizer, text) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: len(sources[index]))
    written = {}
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        rows = greedy_decode(model, pad([sources[index] for index in chosen]))
        written |= zip(chosen, map(tokenizer.decode, rows))
    return [written[index] for index in range(len(texts))]


# %% tags=["nbval-ignore-output"]
unseen = sorted(set(digits[-100:]) - set(digits[:-100]))
right = sum(one == other for one, other in zip(write(model, tokenizer, unseen), unseen))
print(f"{right} of {len(unseen)} unseen rows copied without an error")
assert right > 0.8 * len(unseen)

# %% [markdown]
# ## From German to English
#
# Now the real thing: the 29,000 captions of Multi30k, one vocabulary for both languages, and a model of 1.4 million parameters. The base model of the paper has 63.1 million, 44 times as many. It trains for some minutes on two cores.

# %%
pairs, val, test = (multi30k(name) for name in ("train", "val", "test_2016_flickr"))
tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
print(f"{len(pairs):,} to learn from, {len(val):,} to choose by, {len(test):,} to test on")
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# We give it no dropout. It sees each caption about three times, which is too little to learn them by heart.
#
# While it trains, we watch it in four ways: by BLEU on 100 validation captions (a score that is explained below), by its translations of three captions, by its cross-attention on one of them, and by a trick. The trick asks whether it reads the German at all. We take 100 captions, and the same 100 with the German of their neighbor. A model that only knows English gives both about the same loss.

# %%
watched = val[:100]
neighbors = [*watched[1:], watched[0]]
strangers = [Pair(other.source, one.target) for one, other in zip(watched, neighbors)]
example = collate(encode_pairs(tokenizer, [val[1]]))
history, maps, said, reads = [], {}, {}, {}


def bleu(model, pairs):
    hypotheses = write(model, tokenizer, [pair.source for pair in pairs])
    return sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score


def loss_on(model, pairs):
    return round(validation_loss(model, encode_pairs(tokenizer, pairs), 768), 2)


def watch(progress):
    history.append(progress._asdict())
    if progress.score is not None:
        maps[progress.step] = cross_attention(model, example.source, example.target[:, :-1])
        said[progress.step] = write(model, tokenizer, [pair.source for pair in val[1:4]])
        reads[progress.step] = loss_on(model, watched), loss_on(model, strangers)


# %% tags=["nbval-ignore-output"]
config = TrainingConfig(steps=2000, max_tokens=768, warmup=300, lr_scale=0.6, save_every=250, keep_checkpoints=8)
home = tempfile.TemporaryDirectory()
start = time.perf_counter()
model = train(
    model, tokenizer, pairs, config, validation=val, folder=home.name,
    score=lambda model: bleu(model, watched), report=watch,
)  # fmt: skip
print(f"{config.steps} steps in {time.perf_counter() - start:.0f} s")
assert history[-1]["loss"] < history[0]["loss"] / 1.5


# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-loss", "caption": "What does learning look like? Left: the loss on training captions, averaged over 50 steps and with label smoothing, and on validation captions without it. Right: BLEU of greedy translations of 100 validation captions."}, "image": {"alt": "Both losses fall steeply at first, then more and more slowly. BLEU still climbs where they have become flat."}}
def learning_curves(records, x):
    """Draw the losses of a log on the left and its scores on the right."""
    checks = [record for record in records if record.get("score") is not None]
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, name, shown, line, color in [
        (left, "loss", records, "-", INK),
        (left, "validation_loss", checks, "o--", KEY),
        (right, "score", checks, "s-", VALUE),
    ]:
        axis.plot([r[x] for r in shown], [r[name] for r in shown], line, color=color, lw=1.5)
        axis.set(xlabel=x, ylim=(0, None), xlim=(0, None))
    left.text(0.35, 0.6, "training, smoothed labels", color=INK, transform=left.transAxes)
    left.text(0.35, 0.1, "validation", color=KEY, transform=left.transAxes)
    left.set_ylabel("loss a target token, nats")
    right.set_ylabel("BLEU, validation captions")
    plt.show()


learning_curves(history, "step")

# %% [markdown]
# The loss falls fast while the model learns which words exist, then slowly while it learns which of them follow from the source. BLEU still climbs where the loss has become nearly flat.
#
# ### Why is the training loss above the validation loss?
#
# One expects the opposite. But the two curves measure different things. The training loss has smoothed labels and cannot get below their entropy, here $0.9 \ln (1 / 0.9) + 0.1 \ln (4000 / 0.1) = 0.09 + 1.06 = 1.15$. The validation loss has hard labels and no such floor. And the training loss is a mean over the last 50 steps, that is over models that knew a little less. With dropout it would be higher still.
#
# ### Does it read the German?
#
# Here is the trick: the loss on 100 captions, and the loss with the German of the neighbors.

# %% tags=["nbval-ignore-output"]
for step, (own, stranger) in reads.items():
    print(f"step {step:4}: {own:.2f} with its own German, {stranger:.2f} with a neighbor's")
gaps = [stranger - own for own, stranger in reads.values()]
assert gaps[-1] > 0.5 and gaps[-1] > gaps[0]

# %% [markdown]
# The gap is what the model takes from the source, in nats a token. It grows while the model learns. What it knows without the source is English: which words there are, and what follows what.
#
# Keep this test for models of your own. If the gap stays at zero, the decoder has learned English, and no German reaches it. Then the pairs do not belong together, or a mask hides the source, or the rate was too high and attention never recovered, as in [the schedule](16_schedule.ipynb).
#
# The three captions show the same thing word by word:

# %% tags=["nbval-ignore-output"]
for number, pair in enumerate(val[1:4]):
    print("German:   ", pair.source)
    for step in (250, 500, 1000, 2000):
        print(f"step {step:4}:", said[step][number])
    print("reference:", pair.target, end="\n\n")

# %% [markdown]
# First the model says what all captions say. It has learned English, of a sort, and takes little from the German. Then single words come right, then the frame of the sentence. The attention maps tell the same story from inside. A row asks: to write this English word, where did the model look? A dark cell links a word to its translation. Where the two languages put it at different places, the dark cells leave the diagonal.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-forming", "caption": "When does attention become useful? Cross-attention of the last layer on one validation caption, mean of its heads, at eight points of the training. Gray is the weight, from 0 (paper) to 0.6 (ink). Each row is labeled with the word that is to be written there."}, "image": {"alt": "Eight attention maps of one sentence. The first are nearly uniform; later ones show dark cells near the diagonal, where a word looks at its translation."}}
sources = [tokenizer.decode([token]).strip() or "·" for token in example.source[0, :-1].tolist()]
targets = [tokenizer.decode([token]).strip() or "·" for token in example.target[0, 1:-1].tolist()]
figure, axes = plt.subplots(2, 4, figsize=(10, 6), layout="constrained", sharex=True, sharey=True)
for axis, (step, weights) in zip(axes.flat, maps.items()):
    axis.imshow(weights, cmap="Greys", vmin=0, vmax=0.6)
    axis.set_title(f"step {step}")
    axis.set_xticks(range(len(sources) + 1), [*sources, "</s>"], rotation=90, fontsize=6)
    axis.set_yticks(range(len(targets) + 1), [*targets, "</s>"], fontsize=6)
    axis.grid(False)
figure.supxlabel("key: the German source", fontsize=9)
figure.supylabel("query: the English word to write", fontsize=9)
plt.show()

# %% [markdown]
# ## Ten captions it has never seen
#
# We take every hundredth of the test captions, and so choose neither the good ones nor the bad ones.

# %% tags=["nbval-ignore-output"]
translations = write(model, tokenizer, [pair.source for pair in test])
for pair, ours in list(zip(test, translations))[::100]:
    print("German:   ", pair.source)
    print("ours:     ", ours)
    print("reference:", pair.target, end="\n\n")

# %% [markdown]
# ## The score
#
# **BLEU** {cite:p}`papineni2002bleu` counts the runs of one to four words that a translation shares with a human's, from 0 to 100; [a chapter](20_evaluation.ipynb) is about it. We use sacreBLEU {cite:p}`post2018call`, which
# takes plain text and prints a signature, so that others can compute the same number. A score without one means little: the way of
# cutting text into words alone can move it by more than a point. On 100 captions, as in the figure above, it is a rough number, good enough to see whether it rises. Here are all 1,000 test captions.

# %% tags=["nbval-ignore-output"]
metric = sacrebleu.BLEU()
score = metric.corpus_score(translations, [[pair.target for pair in test]])
print(f"BLEU on test_2016_flickr, greedy: {score.score:.1f}")
print(metric.get_signature())
assert score.score > 10

# %% [markdown]
# That is what a few minutes on two cores buy. Read the ten captions above against the number. The frame of a sentence is right most of the time. Rare words are not: the model has seen
# each of them a few times only, and spells what it does not know from pieces.
#
# ## Averaging
#
# The last checkpoints of a run differ by noise: each is where the last few batches have pushed it. The paper does not take the last one. It takes their **average**, the mean of the last five, weight by weight, written ten minutes apart (section 6.1). The noise goes, what they have in common stays, and it costs nothing but disk.
#
# How much noise goes? If five checkpoints differ by independent noise, their mean has $1 / \sqrt 5 = 0.45$ of it. There is much to gain here, since the paper's rate is [still a fifth of its peak](16_schedule.ipynb) when training ends. The weights swing about a good place until the last step. A schedule that ends near zero would calm them; the mean does it afterwards.


# %% tags=["export"]
def average_checkpoints(folder: str | Path, last: int = 5) -> tuple[Transformer, Tokenizer]:
    """Return the model whose weights are the mean of the last checkpoints of a run (section 6.1).

    Raises FileNotFoundError if the folder has fewer.
    """
    folder = Path(folder)
    found = checkpoints(folder / CHECKPOINTS)
    if not 0 < last <= len(found):
        raise FileNotFoundError(f"{folder} has {len(found)} checkpoints, {last} were asked for")
    model, tokenizer = Transformer(load_config(folder / CONFIG)), Tokenizer.load(folder / TOKENIZER)
    sums = {
        name: torch.zeros_like(t, dtype=torch.float64) for name, t in model.state_dict().items()
    }
    for path in found[-last:]:
        tensors, _ = read_tensors(path)
        for name, total in sums.items():
            total += tensors[f"model.{name}"]
    model.load_state_dict({name: total / last for name, total in sums.items()})
    return model.eval(), tokenizer


# %% [markdown]
# The sums are in double precision, so that the mean of five equal numbers is that number. Moments are left out: an average is a model to use, and not one to go on training. Five checkpoints must still be there, so `keep` has to be 5 or more.
#
# Is it a mean? We check one weight by hand, then look what averaging does to BLEU on 200 validation captions.

# %% tags=["nbval-ignore-output"]
found = checkpoints(Path(home.name, CHECKPOINTS))
by_hand = torch.stack([read_tensors(path)[0]["model.embedding.weight"] for path in found[-3:]])
averaged, _ = average_checkpoints(home.name, last=3)
assert torch.allclose(averaged.embedding.weight, by_hand.mean(dim=0))

averages = {last: bleu(average_checkpoints(home.name, last)[0], val[:200]) for last in (1, 2, 3, 5)}
print({last: round(score, 1) for last, score in averages.items()})

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-averaging", "caption": "Is averaging a free gain? BLEU of the mean of the last checkpoints of the short run above, greedy, on 200 validation captions. A run this young still moves, so old checkpoints can also hold it back."}, "image": {"alt": "BLEU against the number of averaged checkpoints."}}
figure, axis = plt.subplots(figsize=(5, 2.8), layout="constrained")
axis.plot(list(averages), list(averages.values()), "o-", color=QUERY)
axis.set(xlabel="checkpoints averaged, 250 steps apart", ylabel="BLEU, 200 captions")
axis.set_xticks(list(averages))
plt.show()

# %% [markdown]
# ### May one average any two models?
#
# No. These checkpoints are points on one path. They agree about which hidden unit does what. Two models from different starts do not, even if they translate equally well. We make such a pair: our model, and a twin whose hidden units stand in another order. A unit's input weights and output weights move together, so the twin computes the same function. Then we take the mean of the two.

# %% tags=["nbval-ignore-output"]
twin, mean = copy.deepcopy(model), copy.deepcopy(model)
for layer in [*twin.encoder.layers, *twin.decoder.layers]:
    inner, outer = layer.feed_forward.linear1, layer.feed_forward.linear2
    order = torch.arange(inner.out_features).flip(0)
    inner.weight.data, inner.bias.data = inner.weight.data[order], inner.bias.data[order]
    outer.weight.data = outer.weight.data[:, order]
for weights, other in zip(mean.parameters(), twin.parameters()):
    weights.data.lerp_(other.data, 0.5)
print("model, twin, mean:", [loss_on(each, watched) for each in (model, twin, mean)])
assert loss_on(twin, watched) < loss_on(mean, watched) - 0.2

# %% [markdown]
# Model and twin have the same loss, and their mean is far worse. So average checkpoints of one run, and not too far apart. The long way between an early and a late one takes them apart as well.
#
# ## The model that comes with this book
#
# A few minutes are not enough for a good translation. The model that the next chapters decode, score and take apart was trained longer, by the same loop, with the command in its [card](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/multi30k-de-en/README.md). Its weights are the mean of its last checkpoints. It comes with the package, and so does its log:

# %% tags=["nbval-ignore-output"]
home = files("annotated_transformer") / "pretrained" / "multi30k-de-en"
records = [json.loads(line) for line in (home / LOG).read_text().splitlines()]
records = [record for record in records if "loss" in record]
last = [record for record in records if "score" in record][-1]
print(f"{last['step']:,} steps, {last['epoch']:.0f} epochs")
print(f"validation loss {last['validation_loss']:.2f}, BLEU {last['score']:.1f}")
for name in ("loss", "learning_rate", "gradient_norm"):
    print(f"{name:14} {records[0][name]:10.4g} {last[name]:10.4g}")

# %% [markdown]
# The two columns are its first record and its last. The mean loss of the first 50 steps is still close to $\ln V$, the loss of a model that knows nothing.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-long", "caption": "How long does it pay to train? The log of the model that comes with this book: loss, and BLEU with a beam of 4, on validation captions. This run has dropout and label smoothing, which raise the training loss."}, "image": {"alt": "Both losses fall steeply for a few epochs and then ever more slowly. BLEU rises steeply and then ever more slowly."}}
learning_curves(records, "epoch")

# %% [markdown]
# ## Questions that come up
#
# **It says the same sentence whatever the source is.** In the first few hundred steps that is normal, as above. If it stays so, try the trick with the neighbor's German.
#
# **The loss begins at 8, is that right?** A model that knows nothing gives each of $V$ words about the same chance. For 4,000 words that is a loss of $\ln 4000 = 8.3$, and half a unit more with our start; [the model's chapter](10_transformer.ipynb) has the reason. A first loss far from this points to a mistake in the code.
#
# **It stands still at a loss of 5 or so.** About there lies a model that knows how frequent each token is, and nothing else. If it stays there for hundreds of steps, the rate may have risen too fast or too high; [the schedule](16_schedule.ipynb) shows such runs.
#
# **Memory runs out.** Halve `max_tokens` and double `accumulate`. The batches have a few shapes, the same in each epoch. So if the first epoch fits, the others do.
#
# **May I change the rate in the middle?** Not within a run: that is what the comparison of settings is for. Load the model that it left, and train it in another folder. Moments and warm-up then begin anew, which is what a new rate needs.
#
# **May I train on, with other pairs?** In the same way. The tokenizer must stay the old one, even if it cuts the new text into more pieces.
#
# **My cluster stops every job after four hours.** Submit the same command again, as often as needed. At the end of its time a job gets SIGTERM and leaves a checkpoint; the next job goes on from there. When all steps are made, one job more does nothing and does no harm.
#
# **How often should I save?** A kill costs half of `save_every` steps on average. A validation takes time as well, and the score more of it. Choose it so that both together take a small share of the time between, say a tenth.
#
# ## What to remember
#
# - The decoder reads the true words and says the next: input and answer are the same sentence, one place apart.
# - The loss is a mean over all tokens of an update, so sums and counts are kept apart until the end. Accumulated batches then equal the large one.
# - A gradient that is not finite is caught before the weights change.
# - All chance follows from (seed, epoch) and (seed, step). With weights, moments and the step, a run can be continued to the bit.
# - A file appears under its name only when it is whole. Weights are numbers, never a pickle.
# - First a task that cannot fail, in seconds. Then the real one.

# %% [markdown]
# ## Exercises
#
# 1. By hand: two batches have losses summing to 30 over 10 tokens and 10 over 5 tokens. What is the loss of the update, and what would the mean of the means be?
# 2. How many numbers does a checkpoint of the big model hold? How many gigabytes is that?
# 3. What breaks if the schedule is stepped once a batch, with `grad_accum_steps=10`? At which update is the peak then?
# 4. Why must the folder be locked, when every file in it is written whole?
# 5. What breaks if a run goes on with its moments at step 1,000, and Adam's own count begins at zero? How many times too long is the first step?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. (30 + 10) / (10 + 5), against the mean of 3 and 2
assert round(40 / 15, 2) == 2.67 and (30 / 10 + 10 / 5) / 2 == 2.5

# 2. Three for each parameter, four bytes each
with torch.device("meta"):
    big = Transformer(preset("big"))
numbers = 3 * sum(p.numel() for p in big.parameters())
print(f"{numbers:,} numbers, {4 * numbers / 1e9:.2f} GB")

# 3. After a tenth of the updates: the warm-up is over before Adam's moments have settled
rates = [learning_rate(10 * update, 512, 4000) for update in range(1, 1001)]
print("peak at update", 1 + rates.index(max(rates)), "in place of 4,000")

# 4. Each file would be whole, but log and checkpoints would come from two runs by turns
with tempfile.TemporaryDirectory() as folder, folder_lock(Path(folder)):
    try:
        with folder_lock(Path(folder)):
            pass
    except BlockingIOError as error:
        print(str(error).split(" in ")[0])

# 5. The bias correction divides full moments as if they had seen one gradient: m by 0.1, v by 0.02
print(f"{(1 / (1 - 0.9)) / (1 / (1 - 0.98)) ** 0.5:.2f} times")
