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
# # Training
#
# This chapter trains the model: first to copy, then to translate real captions from German, in a loop that can be killed at any moment and goes on as if nothing had happened (sections 5.1 to 5.4 of the paper).
#
# We have a model that knows nothing, and all the parts that can teach it: [pairs](13_data.ipynb), [numbers](14_tokenization.ipynb), [batches](15_batching.ipynb), [a rate](16_schedule.ipynb) and [a loss](17_regularization.ipynb). What is missing is the loop that joins them. Its core is six lines long:
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
# | input and labels are not one position apart | a loss too good to be true, and nonsense in use | Teacher forcing |
# | the loss is a mean of means | nothing: some words count more than others | The mean over what? |
# | one gradient is `nan` | a loss of `nan` from then on | A gradient that is no number |
# | order and dropout come from somewhere | a run that nobody can repeat | Chance that can be repeated |
# | only the training loss is watched | it falls, and the model gets worse | Is it getting better? |
# | the process is killed | hours are lost | Killed, and continued |
#
# The first half of the chapter is the loop, from `train` down to one update. Each part gets a check that takes a second, before we trust it with an hour of work. The second half uses the loop: on a task that cannot fail, then on 29,000 captions.
# If you only want to train, call `train(model, tokenizer, pairs)` and come back when a question comes up.

# %% tags=["export"]
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import Adam
from tqdm import tqdm

from annotated_transformer import model_io, run_folder
from annotated_transformer.batching import Batch, EncodedCorpus, batches, check_fits, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, evaluating

# %%
import copy
import json
import random
import tempfile
from importlib.resources import files
from itertools import islice

import matplotlib.pyplot as plt
import torch.nn.functional as F

from annotated_transformer.batching import Example, collate, pad
from annotated_transformer.data import multi30k
from annotated_transformer.masks import EOS
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.transformer import greedy_decode, preset
from book.figures import INK, KEY, QUERY, VALUE, style

# %% [markdown]
# ## Teacher forcing
#
# The decoder learns all positions of a sentence at once. At each one it reads the *true* words so far, whatever it would have said
# itself, and is asked for the next. This is **teacher forcing**. So the target serves twice, one position apart: without its last
# token it is what the decoder reads, without its first it is what the decoder must say.
#
# | column | 0 | 1 | 2 | 3 | 4 |
# |---|---|---|---|---|---|
# | the decoder reads | `<s>` | A | dog | runs | . |
# | it must say | A | dog | runs | . | `</s>` |
#
# Each column is a question of its own: the source is known, and so is the upper row up to here; what comes next? A target of six tokens asks five questions. The first one starts from `<s>`, so the model learns how sentences begin. The last one has the answer `</s>`, and from it the model learns when to stop.
#
# [`SmoothedLoss`](17_regularization.ipynb) does this: it hands `target[:, :-1]` to the decoder and compares with `target[:, 1:]`.
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
# What an update is made of is a matter of a few numbers. They live in one place. The class is frozen, so nobody changes a number in the middle of a run, and a run can be described by printing one object. The defaults suit small models; the comment beside each field says what it is.


# %% tags=["export"]
@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults suit the `tiny` model and the grammar. Checked when made."""

    steps: int = 1300  # updates of the weights
    max_tokens: int = 384  # positions of a batch on either side, padding included
    grad_accum_steps: int = 1  # batches per update: more time, no more memory
    warmup: int = 200  # steps until the learning rate is at its peak
    lr_scale: float = 0.2  # times the paper's learning rate
    label_smoothing: float = 0.1  # probability given to all tokens alike, below 1
    grad_clip: float | None = None  # longest gradient; a longer one is shortened to it
    seed: int = 0  # decides the order of the batches and what dropout drops
    save_every: int = 500  # steps between two checkpoints, and between two validations
    save_minutes: float = 10  # minutes after which the state is saved in any case
    keep_checkpoints: int = 5  # regular ones, the last
    patience: int | None = None  # stop after so many validations without a better score

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            zero, most = name in ("label_smoothing", "seed"), 1 if "smoothing" in name else math.inf
            if value is not None and not (0 < value < most or (zero and value == 0)):
                raise ValueError(f"{name} must lie between 0 and {most}, not be {value}")


# %% [markdown]
# Training is measured in steps, that is in updates, and not in epochs. The learning rate counts steps, so the same `steps` mean the same schedule on a small corpus and on a large one.
#
# An update sees up to `max_tokens` times `grad_accum_steps` tokens a side. The default is 384 · 1; the paper has about 25,000. The product is what counts for learning. The first factor alone decides how much memory it takes.
#
# The rate has its peak at step `warmup`, at the height $\text{lr scale} / \sqrt{d_\text{model} \cdot \text{warmup}}$ ([schedule](16_schedule.ipynb)). With the defaults and a width of 128 that is $0.2 / \sqrt{128 \cdot 200} = 0.00125$. The paper's base model has 0.0007, with a scale of 1, since it is wider and warms up for longer.
#
# Wrong numbers are refused when the object is made, before a corpus is read:

# %%
for wrong in ({"warmup": 0}, {"lr_scale": float("nan")}, {"label_smoothing": 1.0}):
    try:
        TrainingConfig(**wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# The comparison is written as `not 0 < value < most` for the sake of the second case. Every comparison with `nan` is false, so `value <= 0` would let it pass. Zero is a good value for two fields only, and `None` turns an option off.
#
# ## One process, or several
#
# [Several processes](26_distributed.ipynb), each with a GPU, can share the batches of an update. They need to know who they are and to add up numbers; for one process alone that is nothing at all. The chapter on many GPUs explains the lines below where `rank`, `world_size`, `all_reduce_sum` and `DDP` stand. Until then, read them as process 0 of 1.


# %% tags=["export"]
def rank_and_world_size() -> tuple[int, int]:
    """Return the number of this process and of all that train together: (0, 1) for one alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def all_reduce_sum(number: Tensor) -> Tensor:
    """Return the sum of a number over all processes."""
    if dist.is_initialized():
        dist.all_reduce(number)
    return number


# %% [markdown]
# ## From the top
#
# This is how the parts will call each other:
#
# ```text
# train                 what cannot work is refused; a record is made
# └─ run_in_folder      continue from the last checkpoint; at the end the best model
#    └─ run             the loop: update, report, save
#       └─ next_update  rate, random numbers, batches
#          └─ training_step   gradient, norm, Adam
#             └─ loss         teacher forcing, smoothed labels
# ```
#
# All that a training needs is in one record. The first ten fields are fixed from start to end. The others say where it stands, and five of them go into a checkpoint.


# %% tags=["export"]
NUMBERS = ("step", "epoch", "batch", "best_score", "waited")  # where a training stands


@dataclass
class Training:
    """What a training is made of, and where it stands; `train` makes it."""

    model: Transformer
    tokenizer: Tokenizer
    loss: SmoothedLoss
    optimizer: Adam
    config: TrainingConfig
    corpus: EncodedCorpus
    held_out: EncodedCorpus
    score: Callable[[Transformer], float] | None
    report: Callable[[dict[str, Any]], None]
    folder: Path | None
    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next one of the epoch
    batches_per_epoch: int = 1  # of this epoch
    best_score: float = -math.inf
    waited: int = 0  # validations since the best score


# %% [markdown]
# `train` makes the record. Pairs may come as text or, from a [corpus on disk](D_large_corpora.ipynb), as ids already. Adam gets the paper's numbers. Its rate is zero, because the loop sets it before each step. A loop that forgot to do so would learn nothing at all, which is noticed at once. With some sensible default it would learn a little worse, and that is not. `fused=True` updates all weights in one pass over memory.


# %% tags=["export"]
def train(
    model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair] | EncodedCorpus,
    config: TrainingConfig = TrainingConfig(), *, validation: Sequence[Pair] | EncodedCorpus = (),
    score: Callable[[Transformer], float] | None = None, folder: str | Path | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None, loss: SmoothedLoss | None = None,
) -> Transformer:  # fmt: skip
    """Train a model on pairs and return it, in evaluation mode (section 5).

    Calls `report` every 50 steps, and every `save_every` steps measures the loss on `validation`
    and `score`, where higher is better. A folder gets a log, checkpoints, and the weights with the
    best score, which are also returned; a training that it holds already is continued, to the bit.
    Raises ValueError for pairs, tokenizer or folder that do not fit, and what the loop raises.
    """
    model_io.check_vocabulary(model, tokenizer)
    corpus, held_out = (
        given if isinstance(given, EncodedCorpus) else encode_pairs(tokenizer, given)
        for given in (pairs, validation)
    )
    training = Training(
        model, tokenizer, loss or SmoothedLoss(model, config.label_smoothing),
        Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True),
        config, corpus, held_out, score, report, Path(folder) if folder else None,
    )  # fmt: skip
    check_training(training)
    run_in_folder(training, training.folder) if training.folder else run(training)
    return model.eval()


# %% [markdown]
# Model, tokenizer and pairs are all that it takes. The model is trained in place and returned in evaluation mode. Without a folder, the weights are those of the last step. With one, they are the best.
#
# ### In a folder
#
# [An appendix](I_run_folder.ipynb) keeps the folder: a lock, so that two trainings cannot share it; the settings, so that none is continued with others; checkpoints and a log. Here it is used. A training that was finished goes through the same lines: it continues at its last step, makes none, and hands out its best model again.


# %% tags=["export"]
def run_in_folder(training: Training, folder: Path) -> None:
    """Begin or continue a training in a folder; the best model is left there, and loaded."""
    rank, world_size = rank_and_world_size()
    with model_io.folder_lock(folder) if rank == 0 else nullcontext():
        if rank == 0:
            run_folder.begin_in_folder(folder, settings_of(training))
        if path := run_folder.last_checkpoint(folder):
            load_checkpoint(training, path)
        steps = all_reduce_sum(torch.tensor(training.step))  # all wait for the first process
        if steps != training.step * world_size or not (folder / run_folder.SETTINGS).exists():
            raise ValueError(f"{folder} is not the same for all processes: put it on a shared disk")
        if rank == 0:
            run_folder.begin_log(folder, training.step, world_size)
        run(training)
        best = folder / model_io.WEIGHTS
        if rank == 0 and (training.best_score == -math.inf or not best.exists()):
            model_io.save_model(training.model, training.tokenizer, folder)
        all_reduce_sum(torch.zeros(1))  # all wait for the first process
        training.model.load_state_dict(model_io.read_tensors(best)[0])


# %% [markdown]
# ### The loop
#
# Each turn makes one update. Then it asks three questions. Is a checkpoint due? Is it late, that is, are so many minutes over since the last? Was anybody asked to stop?


# %% tags=["export"]
def run(training: Training) -> None:
    """Train until the last step or the end of patience; raises Stopped after a signal."""
    config, (rank, world_size) = training.config, rank_and_world_size()
    folder = training.folder if rank == 0 else None  # the first process writes for all
    loss = DDP(training.loss) if world_size > 1 else training.loss
    stream, updates = batch_stream(training), list[Tensor]()
    start = saved = time.monotonic()
    bar = tqdm(total=config.steps, initial=training.step, unit="step", disable=rank > 0 or None)
    with bar, stop_signal(training.folder is not None) as stop:
        while training.step < config.steps and training.waited < (config.patience or math.inf):
            training.model.train()
            updates.append(next_update(training, loss, stream))
            bar.update()
            due = training.step % config.save_every == 0 or training.step == config.steps
            late = folder is not None and time.monotonic() - saved > 60 * config.save_minutes
            stopping = bool(all_reduce_sum(torch.tensor(float(stop.is_set()))))
            if due or late or stopping or training.step % REPORT_EVERY == 0:
                progress = summarize(training, updates, time.monotonic() - start)
                progress |= validate(training) if due else {}
                bar.set_postfix(loss=f"{progress['loss']:.3f}")
                if folder:
                    run_folder.write_log(folder, progress)
                if rank == 0:
                    training.report(progress)
                updates, start = [], time.monotonic()
            if folder and (due or late or stopping):
                run_folder.save_checkpoint(folder, state_of(training), due, config.keep_checkpoints)
                saved = time.monotonic()
            if stopping:
                raise Stopped(f"stopped at step {training.step}: the same command continues there")


# %% [markdown]
# The order at the end of a step is deliberate.
#
# 1. **Summarize.** If a gradient was not finite, this raises. So no checkpoint is ever written after a bad gradient.
# 2. **Validate.** The best weights are saved as the model, and the checkpoint knows their score.
# 3. **Write the line of the log, then the checkpoint.** A kill between the two leaves a line without a checkpoint. The next start forgets it and makes it again. The other way round, the line would be missing for ever.
# 4. **Leave**, if a signal has come. By now there is nothing left to lose.
#
# `train()` in the loop turns dropout on: whoever computed a score may have turned it off. The progress bar is drawn on a terminal and nowhere else (`disable=None`). In the log file of a cluster it would be a thousand lines of the same.
#
# ### One step of it
#
# A step is counted in one place. The rate, the dropout and the checkpoint's name all follow from this count. There is no scheduler object with a count of its own, so none can be moved once a batch where once an update was meant.


# %% tags=["export"]
def next_update(training: Training, loss: nn.Module, stream: Iterator[Batch]) -> Tensor:
    """Make the next step: rate, random numbers and batches follow from its number."""
    config, d_model = training.config, training.model.config.d_model
    group = [next(stream) for _ in range(config.grad_accum_steps)]
    lr = learning_rate(training.step + 1, d_model, config.warmup, config.lr_scale)
    training.optimizer.param_groups[0]["lr"] = lr
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):  # afterwards, the generators are as before
        numbers = (config.seed, training.step, *rank_and_world_size())
        torch.manual_seed(Random(str(numbers)).getrandbits(63))
        update = training_step(loss, group, training.optimizer, config.grad_clip)
    training.step += 1
    return update


# %% [markdown]
# Two things in training are left to chance: the order of the batches and what dropout drops. The order follows from (seed, epoch), as [the chapter on batches](15_batching.ipynb) made it. The middle lines do the same for dropout; a section below is about them.
#
# ## One update
#
# An update reports what it saw as tensors and not as numbers: on a GPU, turning a tensor into a number makes the processor wait until all work is done. We read them later, many at once.
#
# It needs one more number, the **norm** of the gradient: the root of the sum of all squared gradients, that is the length of the gradient as one long vector. It tells whether a step can be trusted. Two things are done with it:
#
# - **Clipping**, by option: a gradient longer than `grad_clip` is shortened to that length and keeps its direction. The paper has none, and the warm-up makes it unnecessary here. Adam divides gradients by their usual size anyway, so clipping *all* of them would change nothing. It is for the single one that is far too long, and that would otherwise dominate Adam's average for about $1 / (1 - 0.9) = 10$ steps.
# - A gradient that is not finite must not touch the weights at all.


# %% tags=["export"]
def training_step(
    loss: nn.Module, group: Sequence[Batch], optimizer: Adam, grad_clip: float | None = None
) -> Tensor:
    """Update the weights once, with the mean gradient over all real target tokens of a group.

    Returns loss (summed), tokens and gradient norm, (3,). A gradient that is not finite changes
    nothing; its norm tells. Several processes each give their share of the group.
    """
    parallel = loss if isinstance(loss, DDP) else None
    tokens = all_reduce_sum(torch.stack([(b.target[:, 1:] != PAD).sum() for b in group]).sum())
    losses = list[Tensor]()
    optimizer.zero_grad()
    for number, batch in enumerate(group, start=1):
        # The processes average their gradients once, in the last batch
        with parallel.no_sync() if parallel and number < len(group) else nullcontext():
            losses.append(loss(*batch))
            (losses[-1] * rank_and_world_size()[1] / tokens).backward()
    norm = nn.utils.get_total_norm([p.grad for p in loss.parameters() if p.grad is not None])
    if grad_clip is not None:
        nn.utils.clip_grads_with_norm_(loss.parameters(), grad_clip, norm)
    # Where this is 1, Adam leaves everything as it is
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined] # not annotated
    optimizer.step()
    return torch.stack([all_reduce_sum(torch.stack(losses).detach().sum()), tokens, norm])


# %% [markdown]
# Line by line:
#
# 1. Count the real tokens of all batches, before the first is run. The labels tell, so no model is needed.
# 2. Empty the gradients. Then each batch adds its own, divided by the count of all. (With several processes, each one's loss is multiplied by their number, because they will take the mean of their gradients, and they do so once, with the last batch.)
# 3. The norm, and what is done with it.
# 4. `found_inf` is set to 1 if the norm is not finite, and Adam makes its step, or none.
#
# Now the law of accumulation, in double precision: three small batches against one large one with the same twelve pairs, from the same start. Plain gradient descent at rate 1 stands in for Adam. So what is compared is the gradient itself.
# %%
pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)


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
    training_step(SmoothedLoss(model), group, plain)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


some = [*corpus][:12]
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
assert (wrong - right).norm() > right.norm() / 3

# %% [markdown]
# More than a third of the update, and no error message. That is why this check comes before the first hour of training and not after it.
#
# ## A gradient that is no number
#
# An overflow somewhere, and one number of a gradient is `nan`. How much harm can one do? We put it into a single weight's gradient, with an optimizer that does not look, and count the weights that are lost.

# %%
model, batch = fresh(), collate([*corpus][:8])
careless = torch.optim.Adam(model.parameters(), lr=0.01)
for step in (1, 2):
    careless.zero_grad()
    SmoothedLoss(model)(*batch).backward()
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
model, group = fresh(), [collate([*corpus][:8])]
optimizer = Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=True)
training_step(SmoothedLoss(model), group, optimizer)
before = [p.detach().clone() for p in model.parameters()]
hook = model.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
_, _, norm = training_step(SmoothedLoss(model), group, optimizer)
hook.remove()
unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
print("norm:", float(norm), " weights unchanged:", unchanged)

# %% [markdown]
# Why not simply go on after that? A single bad batch would be no loss. But it is seldom a single one. If the rate is too high, the next hundred are bad too, and a loop that skips them in silence looks busy and learns nothing. So the update is left out, and then the run stops and says in which step it happened. `summarize`, further down, does that.
#
# ## Chance that can be repeated
#
# All random numbers of a step follow from (seed, step). So a run that continues at step 500 draws what it would have drawn. `fork_rng` puts the generators of the process back afterwards, that of the processor and that of the GPU in use. Whoever calls us keeps their own chance. And each of several processes drops other numbers than the rest: twice the same dice on different sentences would be half a dice. So its number is among those that chance follows from.
#
# ### Why not save the state of the generator?
#
# It is the usual way, and it has many places to forget something. There is a generator in PyTorch for the processor, one for each GPU, one in Python, and one in each process that loads data. All must be written and put back, at the right moment. What follows from numbers that we know anyway needs no saving.
#
# ### Why not seed + step?
#
# Because step 7 of seed 0 would be step 6 of seed 1. Two runs that are meant to differ by chance would draw the same numbers, one step apart. A text such as `"(0, 7)"` keeps the two apart. Python's `Random` makes its seed from all of the text, in the same way on each machine. (The function `hash` does not: it gives a text another number in each process.)
#
# ### Where are the epochs?
#
# `run` does not need them. It reads from a stream of batches that never ends, epoch after epoch in another order. The record says where in the stream it stands, as an epoch and a batch, so a stream that begins there makes none of the batches before.


# %% tags=["export"]
def batch_stream(training: Training) -> Iterator[Batch]:
    """Yield this process's share of batch after batch, without end, from where training stands."""
    config, device = training.config, training.model.embedding.weight.device
    while True:
        place = (training.epoch, training.batch, *rank_and_world_size(), device.type == "cuda")
        loader = batches(training.corpus, config.max_tokens, config.seed, *place)
        training.batches_per_epoch = training.batch + len(loader)
        for batch in loader:
            training.batch += 1
            yield batch.to(device)
        training.epoch, training.batch = training.epoch + 1, 0


# %%
def stream_from(epoch, batch):
    """The stream of batches of a training that stands there."""
    place = {"epoch": epoch, "batch": batch}
    config = TrainingConfig(max_tokens=200)
    rest = dict.fromkeys(
        ["tokenizer", "loss", "optimizer", "held_out", "score", "report", "folder"]
    )
    return batch_stream(Training(fresh(), config=config, corpus=corpus, **rest, **place))


whole = list(islice(stream_from(0, 0), 150))
size = len(batches(corpus, 200, 0, 0))
one = next(stream_from(0, 31))
other = next(stream_from(1, 150 - size - 1))
assert torch.equal(one.source, whole[31].source) and torch.equal(other.source, whole[149].source)
print(
    f"batch 31 of the first epoch and batch {150 - size - 1} of the second, made directly: the same"
)

# %% [markdown]
# A run that continues needs no replay of what it has seen.
#
# ## Reading numbers late
#
# `summarize` reads the tensors of 50 steps at once, so that a GPU has to wait once and not 50 times. Sums of losses are divided by sums of tokens here as well. The mean of 50 means would be the slip of a section before.


# %% tags=["export"]
REPORT_EVERY = 50  # steps


def summarize(training: Training, updates: list[Tensor], seconds: float) -> dict[str, Any]:
    """Return means over the last updates: a line of the log; losses are in nats a target token.

    Raises FloatingPointError for a gradient that was not finite.
    """
    loss, tokens, norm = torch.stack(updates).double().T.tolist()
    for step, length in enumerate(norm, start=training.step - len(norm) + 1):
        if not math.isfinite(length):
            fault = f"the gradient of step {step} is not finite; it was not used. Try a smaller"
            raise FloatingPointError(f"{fault} lr_scale, or grad_clip=1.0, in another folder")
    return {
        "step": training.step,
        "epoch": round(training.epoch + training.batch / training.batches_per_epoch, 3),
        "loss": sum(loss) / sum(tokens), "learning_rate": training.optimizer.param_groups[0]["lr"],
        "gradient_norm": sum(norm) / len(norm), "tokens_per_second": round(sum(tokens) / seconds),
    }  # fmt: skip


# %% [markdown]
# A gradient that was not finite is noticed here, up to 49 steps late. No harm was done in between: its update was left out, and so were those of the steps after it, if they were bad too. The error names the first bad step and says what to try. These are other settings, so they are for another run, in another folder. The same command would come to the same step and to the same `nan`.
#
# The loss is in nats, since the logarithm is the natural one. Tokens are counted without padding, as useful work should be.
#
# ## Is it getting better?
#
# The loss on the training pairs falls even when a model learns them by heart. So every `save_every` steps we measure on pairs that it does not learn from. The **validation loss** is measured as the model will be used: without dropout and without smoothing. Its exponential is the perplexity: with a loss of 2.2, the model is as unsure as if it had to choose among $e^{2.2} = 9$ words each time.


# %% tags=["export"]
def validation_loss(model: Transformer, corpus: EncodedCorpus, max_tokens: int) -> float:
    """Return the mean loss in nats a target token, without label smoothing and dropout."""
    loss, (rank, world_size) = SmoothedLoss(model, label_smoothing=0), rank_and_world_size()
    device, total = model.embedding.weight.device, torch.zeros(2, dtype=torch.float64)
    with evaluating(model):
        for batch in batches(corpus, max_tokens, rank=rank, world_size=world_size):
            tokens = (batch.target[:, 1:] != PAD).sum()
            total += torch.stack([loss(*batch.to(device)).double().cpu(), tokens])
    return float(torch.div(*all_reduce_sum(total)))


# %% [markdown]
# `evaluating` turns dropout off, and back on at the end. The order of the batches does not matter here. The sum over some hundred thousand tokens is added up in double precision.
#
# ### A score, and when to stop
#
# We also want to know how well it translates. That takes decoding and a score, which later chapters build. The loop need not know them: it takes a function from a model to a number, where higher is better. Without one, minus the validation loss is the score.


# %% tags=["export"]
def validate(training: Training) -> dict[str, float]:
    """Return loss and score on the held-out pairs; the best weights are saved as the model.

    Raises FloatingPointError for a score that is not a number.
    """
    model, held_out, found = training.model, training.held_out, dict[str, float]()
    if len(held_out):
        found["validation_loss"] = validation_loss(model, held_out, training.config.max_tokens)
    if training.score is not None:
        found["score"] = float(training.score(model))
    value = found.get("score", -found.get("validation_loss", math.inf))
    if math.isnan(value):
        raise FloatingPointError(f"the score at step {training.step} is not a number: {found}")
    training.waited += 1
    if value > training.best_score:
        training.best_score, training.waited = value, 0
        if training.folder is not None and rank_and_world_size()[0] == 0:
            model_io.save_model(model, training.tokenizer, training.folder)
    return found


# %% [markdown]
# A score counts as better only if it is higher; of two equal ones the earlier stays. One that is `nan` compares as false with everything. It would never be the best, and nobody would hear of it, so it is an error.
#
# If `patience` validations in a row bring no better score, training ends; this is **early stopping**. With `save_every=500` and `patience=2` it may go like this (the scores are made up):
#
# | step | 500 | 1,000 | 1,500 | 2,000 |
# |---|---|---|---|---|
# | score | 10.1 | 12.4 | 11.9 | 12.2 |
# | best so far | 500 | 1,000 | 1,000 | 1,000 |
# | `waited` | 0 | 0 | 1 | 2: stop |
#
# Step 2,000 is better than 1,500 and counts as a failure all the same: it is not better than the best. At the end the weights of step 1,000 come back, from the folder.
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
    """A training was asked to stop, and has saved its state."""


@contextmanager
def stop_signal(listen: bool) -> Iterator[threading.Event]:
    """Give an event that SIGTERM or SIGINT sets; afterwards signals do what they did before."""
    stop = threading.Event()
    with ExitStack() as before:
        if listen and threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGTERM, signal.SIGINT):
                before.callback(signal.signal, kind, signal.signal(kind, lambda *_: stop.set()))
        yield stop


# %% [markdown]
# Only the main thread of a Python process may listen for signals, so in any other we do not. And without a folder there is nothing to save: then `listen` is false, and Ctrl-C ends the run at once, as everywhere in Python. Afterwards the handlers of before are put back.

# %%
with stop_signal(listen=True) as stop:
    print("asked to stop:", stop.is_set())
    signal.raise_signal(signal.SIGTERM)
    print("asked to stop:", stop.is_set())

# %% [markdown]
# Without our handler, this cell would have ended the notebook's kernel.
#
# ## What a checkpoint holds
#
# A power cut, a full disk, an impatient administrator: a training that takes days will be stopped. A **checkpoint** is a file with all that decides how it goes on. What is that? The step decides the rate and the dropout, epoch and batch the next batch, as we have just arranged. What is left are the weights and what the optimizer remembers: [both moments](16_schedule.ipynb) of each weight. So a checkpoint is three times as large as the model. Configuration and tokenizer come along, so that a run that is still going can be averaged and tried out.


# %% tags=["export"]
def state_of(training: Training) -> dict[str, Any]:
    """Return all that is needed to continue, as tensors, numbers and text."""
    return {
        **{name: getattr(training, name) for name in NUMBERS},
        "model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(),
        "config": asdict(training.model.config), "tokenizer": training.tokenizer.text,
    }  # fmt: skip


def load_checkpoint(training: Training, path: Path) -> None:
    """Go back to a checkpoint; raises ValueError if it is damaged or another model's."""
    content = run_folder.read_checkpoint(path)
    if content["config"] != asdict(training.model.config):
        raise ValueError(f"{path} is the checkpoint of another model: move it away")
    training.model.load_state_dict(content["model"])
    training.optimizer.load_state_dict(content["optimizer"])
    vars(training).update({name: content[name] for name in NUMBERS})


# %% [markdown]
# ### Why are the weights not enough?
#
# Many people save the weights alone, go on from there, and find that the loss has jumped. Adam begins again with empty moments. In its first step, as [the schedule](16_schedule.ipynb) has shown, it moves *every* weight by the full rate, on the word of a single batch. At the start of a run the warm-up keeps that rate tiny. In the middle nothing does.
#
# We let a run of 60 steps at a constant rate make its next step twice, with its moments and without. The length is measured in units of the longest possible step, in which every weight moves by the rate.


# %%
def adam_for(model):
    return Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98), eps=1e-9, fused=True)


def length_of_next_step(model, optimizer):
    before = [p.detach().clone() for p in model.parameters()]
    training_step(SmoothedLoss(model), [collate([*corpus][:30])], optimizer)
    moved = [(p.detach() - old).flatten() for p, old in zip(model.parameters(), before)]
    return float(torch.cat(moved).norm() / (0.001 * start.numel() ** 0.5))


model = fresh()
optimizer = adam_for(model)
for batch in islice(stream_from(0, 0), 60):
    training_step(SmoothedLoss(model), [batch], optimizer)
lost = copy.deepcopy(model)
print(f"with moments {length_of_next_step(model, optimizer):.1f}, without", end=" ")
print(f"{length_of_next_step(lost, adam_for(lost)):.1f}")

# %% [markdown]
# More than twice the length, and without the direction that 60 batches had agreed on.
#
# ### The same settings
#
# What if the folder holds a training with another learning rate? To continue it would give a model that no command describes: half of it learned one way, half of it the other. So all that decides how a training goes is kept beside the checkpoints, and compared. Tokenizer and pairs are represented by their hashes. The number of pairs would find a corpus with a pair more or less. It would not find the same pairs in another order, or with source and target exchanged.


# %% tags=["export"]
def settings_of(training: Training) -> dict[str, Any]:
    """Return all that decides how a training goes, as JSON can hold it."""
    return {
        **{f"training.{name}": value for name, value in asdict(training.config).items()},
        **{f"model.{name}": value for name, value in asdict(training.model.config).items()},
        "tokenizer": training.tokenizer.sha256, "pairs": training.corpus.sha256,
        "validation": training.held_out.sha256, "scored": training.score is not None,
        "precision": training.loss.precision,
    }  # fmt: skip


# %% [markdown]
# A few of them may change, since they have no part in an update: how long to train, how often to save, how patient to be. That a run can simply be made longer is a gift of the paper's schedule. Its rate depends on the step and not on the length of the run. A schedule that falls to zero at the last step must know that step from the beginning.
#
# ## What cannot work
#
# What cannot work is found before the first step. A pair that is too long for the model would otherwise stop the run when its batch comes up, perhaps after hours. One among the validation pairs would do so at the first validation, each time anew.


# %% tags=["export"]
def check_training(training: Training) -> None:
    """Raise ValueError for what cannot work, before any work is lost."""
    config, loss, most = training.config, training.loss, training.model.config.max_length
    if not len(training.corpus):
        raise ValueError("there are no sentence pairs to train on")
    if config.patience and training.score is None and not len(training.held_out):
        raise ValueError("patience needs something to watch: give validation pairs, or a score")
    if loss.model is not training.model or loss.label_smoothing != config.label_smoothing:
        raise ValueError("the loss must be made with this model and the label_smoothing of config")
    for part, corpus in (("training", training.corpus), ("validation", training.held_out)):
        check_fits(corpus.lengths, most, part, "the model has positions for")
        check_fits(corpus.lengths, config.max_tokens, part, "a batch holds")


# %% [markdown]
# ## Killed, and continued
#
# The proof: a run of 60 steps, and the same run broken off at step 50, in the middle of an epoch, ten steps after its last checkpoint. An exception stands for the axe here; the tests of this project kill real processes, at every one of their file operations.


# %%
class Axe(Exception):
    pass


def fall(line):
    if line["step"] == 50:
        raise Axe


config = TrainingConfig(steps=60, max_tokens=200, grad_accum_steps=2, save_every=20)
with tempfile.TemporaryDirectory() as folder:
    straight = train(fresh(), tokenizer, pairs, config, folder=f"{folder}/straight")
    try:
        train(fresh(), tokenizer, pairs, config, folder=f"{folder}/broken", report=fall)
    except Axe:
        kept = [path.name for path in run_folder.checkpoints(Path(folder, "broken"))]
    broken = train(fresh(), tokenizer, pairs, config, folder=f"{folder}/broken")
    lines = Path(folder, "broken", run_folder.LOG).read_text().splitlines()

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
# | a line of the log is written | half a line, which is dropped |
# | between line and checkpoint | a line beyond the last checkpoint, which is dropped |
# | a checkpoint is written | a file with `.part` in its name, which is removed; the checkpoint before it stands |
# | old checkpoints are removed | one too many, which is removed |
# | the best model is written | the checkpoint before; the steps since then are made again, and the model is written again |
#
# ### To the last bit, always?
#
# On one machine, with the same number of threads and the same release of PyTorch. Another number of threads adds up in another order, which changes the last bits, since rounding depends on the order. A long run then takes another of many equally good ways. It is still the same run in every other respect: the same batches in the same order, the same rates.
#
# The log has one difference. A run that was stopped by a signal has a line of the step at which it left, and its next line is a mean over fewer than 50 steps.
#
# %% [markdown]
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

row = collate([*encode_pairs(tokenizer, [Pair("3 1 4 1 5 9 2 6", "3 1 4 1 5 9 2 6")])])
frames = {0: cross_attention(model, row.source, row.target[:, :-1])}


def watch(line):
    frames[line["step"]] = cross_attention(model, row.source, row.target[:, :-1])
    print(f"step {line['step']}: loss {line['loss']:.2f}")


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
# Nobody told it about the diagonal. It is what the gradient found, through one layer of queries and keys, and the positional encoding is all that they have to go by: the two 1s of the row are told apart by their positions.
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
    sources = [[*tokenizer.encode(text), EOS] for text in texts]
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
# Now the real thing: the 29,000 captions of Multi30k, one vocabulary for both languages, and a model of 1.4 million parameters. The base model of the paper has 63.1 million, 44 times as many.

# %%
pairs, val, test = (multi30k(name) for name in ("train", "val", "test_2016_flickr"))
tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
print(f"{len(pairs):,} to learn from, {len(val):,} to choose by, {len(test):,} to test on")
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# We give it no dropout. In 2,000 updates it sees each caption about three times, which is too little to learn them by heart. They take some minutes. So they were made once, by `python benchmarks/captions.py`, and its log `benchmarks/results/captions.jsonl` has all that the figures below show. This page makes the first 200 of them, with the same settings and seeds, and checks that their losses lie on that log: each mean of 50 steps must be within 0.02 nats. They need not be equal to the last digit, since another processor adds up in another order.

# %% tags=["nbval-ignore-output"]
records = [
    json.loads(line)
    for line in Path("../benchmarks/results/captions.jsonl").read_text().splitlines()
]
settings, *history, found = records
config = TrainingConfig(**{name: settings[name] for name in vars(TrainingConfig())})
logged = {line["step"]: line["loss"] for line in history}
live = {}


def watch(line):
    live[line["step"]] = line["loss"]
    print(f"step {line['step']:3}: loss {line['loss']:.3f}, in the log {logged[line['step']]:.3f}")


start = time.perf_counter()
first_steps = TrainingConfig(**{**vars(config), "steps": 200})
model = train(model, tokenizer, pairs, first_steps, report=watch)
print(f"200 of {config.steps:,} steps in {time.perf_counter() - start:.0f} s")
assert [*live] == [50, 100, 150, 200]
assert all(abs(loss - logged[step]) < 0.02 for step, loss in live.items())

# %% [markdown]
# The long run was watched in four ways: by BLEU on 100 validation captions (a score that is explained below), by its translations of three captions, by its cross-attention on one of them, and by a trick. The trick asks whether it reads the German at all. We take 100 captions, and the same 100 with the German of their neighbor. A model that only knows English gives both about the same loss.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-loss", "caption": "What does learning look like? Left: the loss on training captions, averaged over 50 steps and with label smoothing, and on validation captions without it. Right: BLEU of greedy translations of 100 validation captions."}, "image": {"alt": "Both losses fall steeply at first, then more and more slowly. BLEU still climbs where they have become flat."}}
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

# %%
checks = [line for line in history if "score" in line]
for line in checks:
    print(f"step {line['step']:4}: {line['own']:.2f} with its own German,", end=" ")
    print(f"{line['strangers']:.2f} with a neighbor's")
gaps = [line["strangers"] - line["own"] for line in checks]
assert gaps[-1] > 0.5 and gaps[-1] > gaps[0]

# %% [markdown]
# The gap is what the model takes from the source, in nats a token. It grows while the model learns. What it knows without the source is English: which words there are, and what follows what.
#
# Keep this test for models of your own. If the gap stays at zero, the decoder has learned English, and no German reaches it. Then the pairs do not belong together, or a mask hides the source, or the rate was too high and attention never recovered, as in [the schedule](16_schedule.ipynb).
#
# The three captions show the same thing word by word:

# %%
said = {line["step"]: line["said"] for line in checks}
for number, pair in enumerate(val[1:4]):
    print("German:   ", pair.source)
    for step in (250, 500, 1000, 2000):
        print(f"step {step:4}:", said[step][number])
    print("reference:", pair.target, end="\n\n")

# %% [markdown]
# First the model says what all captions say. It has learned English, of a sort, and takes little from the German. Then single words come right, then the frame of the sentence. The attention maps tell the same story from inside. A row asks: to write this English word, where did the model look? A dark cell links a word to its translation. Where the two languages put it at different places, the dark cells leave the diagonal.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-forming", "caption": "When does attention become useful? Cross-attention of the last layer on one validation caption, mean of its heads, at eight points of the training. Gray is the weight, from 0 (paper) to 0.6 (ink). Each row is labeled with the word that is to be written there."}, "image": {"alt": "Eight attention maps of one sentence. The first are nearly uniform; later ones show dark cells near the diagonal, where a word looks at its translation."}}
example = collate([*encode_pairs(tokenizer, [val[1]])])
sources = [tokenizer.decode([token]).strip() or "·" for token in example.source[0, :-1].tolist()]
targets = [tokenizer.decode([token]).strip() or "·" for token in example.target[0, 1:-1].tolist()]
figure, axes = plt.subplots(2, 4, figsize=(10, 6), layout="constrained", sharex=True, sharey=True)
for axis, line in zip(axes.flat, checks):
    axis.imshow(line["attention"], cmap="Greys", vmin=0, vmax=0.6)
    axis.set_title(f"step {line['step']}")
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

# %%
for pair, ours in zip(test[::100], found["translations"]):
    print("German:   ", pair.source)
    print("ours:     ", ours)
    print("reference:", pair.target, end="\n\n")

# %% [markdown]
# ## The score
#
# **BLEU** {cite:p}`papineni2002bleu` counts the runs of one to four words that a translation shares with a human's, from 0 to 100; [a chapter](20_evaluation.ipynb) is about it. We use sacreBLEU {cite:p}`post2018call`, which
# takes plain text and prints a signature, so that others can compute the same number. A score without one means little: the way of
# cutting text into words alone can move it by more than a point. On 100 captions, as in the figure above, it is a rough number, good enough to see whether it rises. Here are all 1,000 test captions.

# %%
print(f"BLEU on test_2016_flickr, greedy: {found['bleu']:.1f}")
print(found["signature"])
assert found["bleu"] > 10

# %% [markdown]
# That is what a few minutes on one core buy. Read the ten captions above against the number. The frame of a sentence is right most of the time. Rare words are not: the model has seen
# each of them a few times only, and spells what it does not know from pieces.
#
# ## Averaging
#
# The last checkpoints of a run differ by noise: each is where the last few batches have pushed it. The paper does not take the last one. It takes their **average**, the mean of the last five, weight by weight, written ten minutes apart (section 6.1). The noise goes, what they have in common stays, and it costs nothing but disk.
#
# How much noise goes? If five checkpoints differ by independent noise, their mean has $1 / \sqrt 5 = 0.45$ of it. There is much to gain here, since the paper's rate is [still a fifth of its peak](16_schedule.ipynb) when training ends. The weights swing about a good place until the last step. A schedule that ends near zero would calm them; the mean does it afterwards.
#
# [`average_checkpoints`](I_run_folder.ipynb) takes the mean, in double precision, of the last regular checkpoints of a run. Moments are left out: an average is a model to use, and not one to go on training. Five checkpoints must still be there, so `keep_checkpoints` has to be 5 or more. We look what averaging did to BLEU on 200 validation captions, at the end of the long run.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-averaging", "caption": "Is averaging a free gain? BLEU of the mean of the last checkpoints of the long run above, greedy, on 200 validation captions. A run this young still moves, so old checkpoints can also hold it back."}, "image": {"alt": "BLEU against the number of averaged checkpoints."}}
averages = {int(last): score for last, score in found["averages"].items()}
figure, axis = plt.subplots(figsize=(5, 2.8), layout="constrained")
axis.plot(list(averages), list(averages.values()), "o-", color=QUERY)
axis.set(xlabel="checkpoints averaged, 250 steps apart", ylabel="BLEU, 200 captions")
axis.set_xticks(list(averages))
plt.show()

# %% [markdown]
# ### May one average any two models?
#
# No. These checkpoints are points on one path. They agree about which hidden unit does what. Two models from different starts do not, even if they translate equally well. We make such a pair: our model of 200 steps, and a twin whose hidden units stand in another order. A unit's input weights and output weights move together, so the twin computes the same function. Then we take the mean of the two.

# %% tags=["nbval-ignore-output"]
twin, mean = copy.deepcopy(model), copy.deepcopy(model)
for layer in [*twin.encoder.layers, *twin.decoder.layers]:
    inner, outer = layer.feed_forward.linear1, layer.feed_forward.linear2
    order = torch.arange(inner.out_features).flip(0)
    inner.weight.data, inner.bias.data = inner.weight.data[order], inner.bias.data[order]
    outer.weight.data = outer.weight.data[:, order]
for weights, other in zip(mean.parameters(), twin.parameters()):
    weights.data.lerp_(other.data, 0.5)
watched = encode_pairs(tokenizer, val[:100])
losses = [validation_loss(each, watched, 768) for each in (model, twin, mean)]
print("model, twin, mean:", [round(loss, 2) for loss in losses])
assert abs(losses[0] - losses[1]) < 0.001 and losses[2] > losses[1] + 0.1

# %% [markdown]
# Model and twin have the same loss, and their mean is far worse. So average checkpoints of one run, and not too far apart. The long way between an early and a late one takes them apart as well.
#
# %% [markdown]
# ## The model that comes with this book
#
# A few minutes are not enough for a good translation. The model that the next chapters decode, score and take apart was trained longer, by the same loop, with the command in its [card](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/multi30k-de-en/README.md). Its weights are the mean of its last checkpoints. It comes with the package, and so does its log:

# %% tags=["nbval-ignore-output"]
home = files("annotated_transformer") / "pretrained" / "multi30k-de-en"
records = [json.loads(line) for line in (home / run_folder.LOG).read_text().splitlines()]
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
# **Memory runs out.** Halve `max_tokens` and double `grad_accum_steps`.
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
# - The decoder reads the true words and says the next: input and answer are the same sentence, one position apart.
# - The loss is a mean over all tokens of an update, so sums and counts are kept apart until the end. Accumulated batches then equal the large one.
# - A gradient that is not finite is caught before the weights change.
# - All chance follows from (seed, epoch) and (seed, step). With weights, moments and the place in the corpus, a run can be continued to the bit.
# - First a task that cannot fail, in seconds. Then the real one.

# %% [markdown]
# ## Exercises
#
# 1. By hand: two batches have losses summing to 30 over 10 tokens and 10 over 5 tokens. What is the loss of the update, and what would the mean of the means be?
# 2. How many numbers does a checkpoint of the big model hold? How many gigabytes is that?
# 3. What breaks if the schedule is stepped once a batch, with `grad_accum_steps=10`? At which update is the peak then?
# 4. What breaks if a run goes on with its moments at step 1,000, and Adam's own count begins at zero? How many times too long is the first step?

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

# 4. The bias correction divides full moments as if they had seen one gradient: m by 0.1, v by 0.02
print(f"{(1 / (1 - 0.9)) / (1 / (1 - 0.98)) ** 0.5:.2f} times")
