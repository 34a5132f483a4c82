# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # The trainer
#
# This chapter puts the parts together into the program that trains: one process or many, with validation, a log and checkpoints, so that it can be killed at any moment and goes on as if nothing had happened (section 5 of the paper).
#
# ## A run that is killed
#
# A training of days seldom ends in one piece: a machine is rented by the hour, a job on a cluster has an end, somebody presses Ctrl-C. So a run writes down its state now and then, and goes on from there. But what is its state? Here is a small run of 30 steps. After step 20 it saves five things that come to mind:

# %% tags=["export", "hide-input"]
import hashlib
import io
import json
import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from safetensors.torch import load_file
from torch.optim import Adam
from torch.utils.data import DataLoader
from tqdm import tqdm

from annotated_transformer import evaluation
from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    check_fits,
    encode_pairs,
    plan_batches,
)
from annotated_transformer.corpus import write_pairs
from annotated_transformer.data import Pair
from annotated_transformer.decoding import use_fused
from annotated_transformer.distributed import (
    DataParallelLoss,
    all_reduce_mean,
    collate_share,
    gather_texts,
    rank_and_world_size,
)
from annotated_transformer.files import (
    WEIGHTS,
    atomic_write,
    check_vocabulary,
    only_one,
    save_model,
    sha256,
)
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.speed import FastLoss, best_precision, compile_layers
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import (
    TrainingConfig,
    Update,
    group_batches,
    loss_and_tokens,
    make_adam,
    training_step,
)
from annotated_transformer.transformer import Transformer, TransformerConfig
from annotated_transformer.translation import translate

# %% tags=["hide-input"]
from itertools import islice
from tempfile import mkdtemp

from annotated_transformer.batching import batches
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.transformer import preset

# %%
pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
corpus = encode_pairs(tokenizer, pairs)
shape = preset("tiny", layers=1, vocabulary_size=len(tokenizer))
home = Path(mkdtemp())


def run_naively(state):
    """Train to step 30 from what is in `state`, which may be nothing."""
    torch.manual_seed(0)
    model = Transformer(shape)
    model.load_state_dict(state.get("weights", model.state_dict()))
    adam = make_adam(model)
    adam.load_state_dict(state.get("averages of Adam", adam.state_dict()))
    torch.set_rng_state(state.get("random numbers", torch.get_rng_state()))
    first = state.get("step", 0)
    place = state.get("place in the epoch", 0)
    to_do = 10 if state else 30
    groups = group_batches(batches(corpus, 300), 1)
    for step, group in enumerate(islice(groups, place, place + to_do), first + 1):
        adam.param_groups[0]["lr"] = learning_rate(step, 128, warmup=10, peak_lr=0.001)
        training_step(SmoothedLoss(model, 0.1), group, adam)
        if step == 20 and not state:
            saved = {
                "weights": model.state_dict(),
                "averages of Adam": adam.state_dict(),
                "random numbers": torch.get_rng_state(),
                "step": 20,
                "place in the epoch": 20,
            }
            torch.save(saved, home / "state.pt")
    return model


def apart(one, other):
    both = zip(one.parameters(), other.parameters())
    return max((a - b).abs().max().item() for a, b in both)


# %% [markdown]
# Now we go on from the file, and want to arrive at the same weights, to the last bit, as the run that never stopped. Which of the five does that take? The weights, certainly; and then? Decide before you read on. We leave out one at a time:

# %% tags=["nbval-ignore-output"]
straight = run_naively({})
saved = torch.load(home / "state.pt", weights_only=True)
for missing in (*saved, "nothing"):
    saved = torch.load(home / "state.pt", weights_only=True)
    model = run_naively({name: saved[name] for name in saved if name != missing})
    print(f"left out: {missing:18} {apart(straight, model):.4f} apart")

# %% tags=["remove-cell"]
if CHECKING:
    rates = [learning_rate(step, 128, 10, 0.001) for step in range(21, 31)]
    assert apart(straight, model) == 0 and round(sum(rates), 3) == 0.006

# %% [markdown]
# How far is that? The rates of the ten steps add up to 0.006, which is about [as far as a weight goes](16_schedule.ipynb#a-step-as-long-as-the-rate) if all batches agree. So whichever part is left out, some weight is off by about half of its way or more.
#
# ## Why are the weights not enough?
#
# Each missing part does its own damage. Without the step, the rate begins its warm-up again. Without the place, the run sees the beginning of the epoch twice and the end never. Without the random numbers, dropout drops other units. That does no harm, but such a run can't be repeated.
#
# Most easily forgotten are Adam's averages. Adam begins again with empty ones, and in its first step it moves *every* weight by [the full rate](16_schedule.ipynb#why-are-the-first-steps-the-worst), on the word of a single batch. At the start of a run the warm-up keeps that rate tiny; in the middle nothing does. In [one test](../book/troubleshooting.md#it-is-worse-after-resuming) the loss jumped from 1.92 to 2.03.
#
# More has to be decided: how a file is written by a process that can die meanwhile, what becomes of the log, what ten processes do when one of them is told to stop. The trainer of this chapter decides all of this, and [a run that it continues](#killed-and-continued) is 0.0000 apart, too.
#
# ## Where a run stands
#
# The next batch follows from epoch and place, because the [plan](15_batching.ipynb#a-plan-for-an-epoch) of an epoch follows from its number. The random numbers could be saved as above, one state for each generator: Python's, PyTorch's, one for each GPU. Instead, we let them follow from numbers that we know anyway: the seed, the step, and the process. So the state of a run is weights, averages, and five numbers. (The class below has a sixth, `batches`, which only tells the log how much of an epoch is done.)
#
# :::{margin}
# Why not simply seed + step? Because step 7 of seed 0 would draw the numbers of step 6 of seed 1, and two runs that are meant to differ by chance would share theirs, one step apart.
# :::


# %% tags=["export"]
@dataclass
class Progress:
    """Where a run stands. With the seed, it decides the batches and the noise of what follows."""

    step: int = 0  # updates made
    epoch: int = 0
    batch: int = 0  # the next one of the epoch
    batches: int = 1  # of the epoch, for the log
    lowest_loss: float = math.inf  # of all validations
    waited: int = 0  # validations since then, after the warm-up


@contextmanager
def random_numbers_of(seed: int, step: int) -> Iterator[None]:
    """Let random numbers follow from seed, step and process; afterwards all is as before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        numbers = (seed, step, *rank_and_world_size())
        torch.manual_seed(Random(str(numbers)).getrandbits(63))
        yield


# %% [markdown]
# ## Batches without end
#
# **Exercise 1. Write it first** (★★, 15 min). Write a generator `stream(corpus, max_tokens, epoch, batch)` that yields batch after batch without end, from a given place on. `plan_batches(corpus.lengths, max_tokens, seed, epoch)` gives the numbers of the examples of each batch, and `collate([corpus[number] for number in numbers])` makes one. How does the caller know, at any moment, what to write into the file?
#
# To enter an epoch in the middle, we leave out the beginning of its plan. The caller holds `progress`, too, which says where the *next* batch comes from:


# %% tags=["export"]
def batch_stream(
    corpus: EncodedCorpus,
    config: TrainingConfig,
    progress: Progress,
    device: torch.device,
) -> Iterator[Batch]:
    """Yield batch after batch without end, from where a run stands, and count them there."""
    while True:
        plan = plan_batches(
            corpus.lengths, config.max_tokens, config.seed, progress.epoch
        )
        progress.batches = len(plan)
        for batch in load_batches(corpus, plan[progress.batch :], device):
            progress.batch += 1
            yield batch
        progress.epoch += 1
        progress.batch = 0


# %% [markdown]
# For a GPU, a second process makes the next batches while the model works on this one, in memory from which the GPU can copy without waiting. Two arguments of the `DataLoader` look odd. It draws a random number when it starts, so it gets a generator of its own, or the number would come out of ours. And Ctrl-C reaches all processes of a terminal, but the worker must ignore it, or it would be gone before the run has saved its state.


# %% tags=["export"]
def load_batches(
    corpus: EncodedCorpus, plan: Sequence[np.ndarray], device: torch.device
) -> Iterator[Batch]:
    """Yield this process's share of each batch of a plan, on the device."""
    rank, world_size = rank_and_world_size()
    shares: list[Any] = [numbers[rank::world_size] for numbers in plan]
    on_gpu = device.type == "cuda"
    loader: DataLoader[Any] = DataLoader(
        corpus,  # type: ignore[arg-type] # it has a length and items, which is enough
        batch_sampler=shares,
        collate_fn=collate_share,
        num_workers=1 if on_gpu else 0,
        multiprocessing_context="fork" if on_gpu and os.name == "posix" else None,
        pin_memory=on_gpu,
        worker_init_fn=ignore_signals,
        generator=torch.Generator(),
    )
    for batch in loader:
        yield Batch(*(side.to(device, non_blocking=True) for side in batch))


def ignore_signals(worker: int) -> None:
    """Leave it to the process that trains to stop, and to end its worker."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)


# %% tags=["remove-cell"]
if CHECKING:
    cpu, config = torch.device("cpu"), TrainingConfig(max_tokens=300)
    from_start = batch_stream(corpus, config, Progress(), cpu)
    from_place = batch_stream(corpus, config, Progress(batch=20), cpu)
    first, same = next(islice(from_start, 20, None)), next(from_place)
    assert torch.equal(first.source, same.source)

# %% [markdown]
# ## The trainer
#
# Here is the whole. After its preparations `train` is [the loop of *Training*](18_training.ipynb#the-loop), with the questions of this chapter after each update: is it time for a line in the log, a validation or a checkpoint? Has anybody asked it to stop? What it calls for that is built below, a section for each.
#
# The order matters. A gradient that is not finite raises before it changes a weight, so no checkpoint is written after a bad one. The line of the log comes before the checkpoint: after a kill between the two, the next start drops the extra line, and a line not yet written would be lost for good. A kill between a validation and its checkpoint costs nothing: the run makes these steps again and finds the same best weights.


# %% tags=["export"]
REPORT_EVERY = 50  # steps


def train(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair] | EncodedCorpus,
    config: TrainingConfig | None = None,
    *,
    validation: Sequence[Pair] | EncodedCorpus = (),
    score: Callable[[Transformer], float] | None = None,
    folder: str | Path | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
    start: str = "",
    keep: Mapping[str, Sequence[Pair]] | None = None,
) -> Transformer:
    """Train a model on pairs and return it, in evaluation mode (section 5).

    Calls `report` every 50 steps, and every `save_every` steps measures the loss on `validation`
    and what `score` returns. A folder gets a log, checkpoints, the pairs to `keep` as tables, and
    the weights with the lowest loss, or without `validation` the last, which are also returned; a
    run that it holds already goes on, to the bit (up to rounding with three processes or more).

    Raises ValueError if pairs, tokenizer or folder do not fit, FloatingPointError for a gradient
    that is not finite, and Stopped if a run in a folder was asked to stop, and has saved its state.
    """
    config = config or recipe_for(model.config)
    device = model.embedding.weight.device
    precision = config.precision or best_precision(device)
    config = replace(config, precision=precision)
    corpus = as_corpus(tokenizer, pairs)
    watched = as_corpus(tokenizer, validation)
    settings = checked_settings(model, tokenizer, config, corpus, watched, start)
    rank, world_size = rank_and_world_size()
    home = None if folder is None else Path(folder)
    written = home if rank == 0 else None  # the first process writes for all

    use_fused(model)
    if config.compile:
        compile_layers(model)
    loss: SmoothedLoss = FastLoss(model, config.label_smoothing, precision)
    optimizer = make_adam(model)
    patience = config.patience or math.inf

    with run_folder(written), noted_signals(listen=home is not None) as noted:
        progress, log = go_on(home, settings, model, optimizer)
        if written:
            for name, some in (keep or {}).items():
                write_pairs(written / f"{name}.tsv", some)
        if world_size > 1:
            loss = DataParallelLoss(loss, config.grad_accum_steps)
        stream = batch_stream(corpus, config, progress, device)
        groups = group_batches(stream, config.grad_accum_steps)
        recent: list[Update] = []
        since = time.monotonic()
        bar = tqdm(
            total=config.steps,
            initial=progress.step,
            unit="step",
            disable=True if rank > 0 else None,  # None: only in a terminal
        )
        while progress.step < config.steps and progress.waited < patience:
            # Make an update
            group = next(groups)
            if world_size > 1:  # DDP takes the mean of the gradients
                group = group._replace(tokens=all_reduce_mean(group.tokens))
            rate = learning_rate(
                progress.step + 1, model.config.d_model, config.warmup, config.peak_lr
            )
            optimizer.param_groups[0]["lr"] = rate
            loss.train()
            try:
                with random_numbers_of(config.seed, progress.step):
                    update = training_step(loss, group, optimizer, config.grad_clip)
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"step {progress.step + 1}: {error}; begin another run, with a smaller "
                    "peak_lr or grad_clip=1"
                ) from error
            progress.step += 1
            recent.append(update)
            bar.update()

            # Is there more to do?
            last = progress.step == config.steps
            due = last or progress.step % config.save_every == 0
            stopping = bool(all_reduce_mean(torch.tensor(len(noted) > 0)))
            if not (due or stopping or progress.step % REPORT_EVERY == 0):
                continue
            line = {
                "step": progress.step,
                "epoch": round(progress.epoch + progress.batch / progress.batches, 3),
                "learning_rate": rate,
                **mean_line(recent, time.monotonic() - since),
            }
            bar.set_postfix(loss=f"{line['loss']:.3f}")

            # Measure, and keep the best weights
            if due and len(watched):
                found = shared_validation_loss(model, watched, config.max_tokens)
                line["validation_loss"] = found
                if progress.step > config.warmup:
                    progress.waited += 1
                if found < progress.lowest_loss:
                    progress.lowest_loss = found
                    progress.waited = 0
                    if written:
                        save_model(model, tokenizer, written)
            if due and score is not None:
                line["score"] = score(model)

            # Write it down
            if rank == 0:
                log.append(line)
                warned = any("warning" in earlier for earlier in log)
                vocabulary_size = model.config.vocabulary_size
                if not warned and is_stuck(log, config.warmup, vocabulary_size):
                    line["warning"] = ADVICE
                    tqdm.write(f"step {progress.step}: {ADVICE}", file=sys.stderr)
                if written:
                    write_log(written, line)
                if written and (due or stopping):
                    kept = config.keep_checkpoints
                    save_checkpoint(
                        written, model, tokenizer, optimizer, progress, due, kept
                    )
                report(line)
            if stopping:
                all_reduce_mean(torch.zeros(1))  # the checkpoint is whole: all may end
                raise Stopped(progress.step, noted[0] if noted else signal.SIGTERM)
            recent = []
            since = time.monotonic()

        bar.close()
        if home:
            # Keep the last weights if no validation had a finite loss
            if written and progress.lowest_loss == math.inf:
                save_model(model, tokenizer, written)
            all_reduce_mean(torch.zeros(1))  # all wait for the first process
            model.load_state_dict(load_file(home / WEIGHTS))
    return model.eval()


# %% [markdown]
# Pairs are encoded, if they aren't yet, and the log gets means over the updates since its last line, and over all processes:


# %% tags=["export"]
def as_corpus(
    tokenizer: Tokenizer, pairs: Sequence[Pair] | EncodedCorpus
) -> EncodedCorpus:
    """Return pairs encoded, if they are not yet."""
    if isinstance(pairs, EncodedCorpus):
        return pairs
    return encode_pairs(tokenizer, pairs)


def mean_line(recent: Sequence[Update], seconds: float) -> dict[str, Any]:
    """Return means over the last updates; the loss in nats per target token of all processes."""
    losses = torch.stack([update.loss.double() for update in recent])
    tokens = float(sum(update.tokens for update in recent))
    norm = float(sum(update.gradient_norm for update in recent))
    return {
        "loss": float(all_reduce_mean(losses.sum())) / tokens,
        "gradient_norm": norm / len(recent),
        "tokens_per_second": round(tokens * rank_and_world_size()[1] / seconds),
    }


# %% [markdown]
# ## Checkpoints
#
# A **checkpoint** is one file with the weights, Adam's averages and the progress. Regular ones are called `step-`, those that a signal has caused `stop-`.


# %% tags=["export"]
CHECKPOINTS = "checkpoints"


def checkpoints(folder: str | Path) -> list[Path]:
    """Return the regular checkpoints of a run, oldest first."""
    return sorted(Path(folder, CHECKPOINTS).glob("step-*.pt"))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint to go on from, if there is one."""
    paths = (folder / CHECKPOINTS).glob("*.pt")
    return max(paths, key=lambda path: path.stem[5:], default=None)


# %% [markdown]
# A process can die while it writes, and a disk can be full. So the file gets its name only when it is [whole](A_files.ipynb#whole-or-not-at-all), and old ones go after the new one is there. The other way round, each attempt on a full disk would leave one checkpoint fewer.
#
# :::{margin}
# The content is made in memory first, so that it is Python that writes the file: for Python a full disk is an ordinary error.
# :::


# %% tags=["export"]
def save_checkpoint(
    folder: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    optimizer: Adam,
    progress: Progress,
    regular: bool,
    keep: int,
) -> None:
    """Write a checkpoint; the last `keep` regular ones stay."""
    state = {
        "model": model.state_dict(),
        "config": asdict(model.config),
        "tokenizer": tokenizer.text,
        "optimizer": optimizer.state_dict(),
        "progress": asdict(progress),
    }
    content = io.BytesIO()
    torch.save(state, content)
    kind = "step" if regular else "stop"
    path = folder / CHECKPOINTS / f"{kind}-{progress.step:08}.pt"
    with atomic_write(path) as aside:
        aside.write_bytes(content.getbuffer())
    stops = {*path.parent.glob("stop-*.pt")} - {path}
    for old in [*checkpoints(folder)[:-keep], *stops]:
        old.unlink()


# %% [markdown]
# `torch.save` writes a pickle, and a pickle can contain any program. `weights_only=True` reads tensors, numbers, text and containers of these and refuses everything else. PyTorch doesn't compare the checksums in the file with its content, so we do.


# %% tags=["export"]
def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, which cannot run code; raises ValueError if it is damaged."""
    try:
        with ZipFile(path) as archive:
            damaged = archive.testzip()
    except BadZipFile as error:
        damaged = str(error)
    if damaged:
        raise ValueError(f"{path} is damaged ({damaged}): move it away")
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


# %% [markdown]
# ### The mean of checkpoints
#
# The paper translates with the mean of the last checkpoints; [Training](18_training.ipynb#what-averaging-checkpoints-brings) measures what that gains.


# %% tags=["export"]
def average_checkpoints(
    folder: str | Path, last: int = 5
) -> tuple[Transformer, Tokenizer]:
    """Return the model whose weights are the mean of the last checkpoints (section 6.1)."""
    paths = checkpoints(folder)
    if not 1 <= last <= len(paths):
        raise ValueError(f"{folder} has {len(paths)} checkpoints, not {last}")
    totals: dict[str, torch.Tensor] = {}
    for path in paths[-last:]:
        content = read_checkpoint(path)
        for name, weights in content["model"].items():
            totals[name] = totals.get(name, 0) + weights.double()
    model = Transformer(TransformerConfig(**content["config"]))
    model.load_state_dict({name: total / last for name, total in totals.items()})
    return model.eval(), Tokenizer(content["tokenizer"])


# %% [markdown]
# ## A folder for each run
#
# | file | what it holds | when it is written |
# |---|---|---|
# | `training.json` | the settings | at each start |
# | `log.jsonl` | loss, rate, speed, scores | every 50 steps, and with each checkpoint |
# | `checkpoints/` | the last few checkpoints | every `save_every` steps, and after a signal |
# | `config.json`, `tokenizer.json`, `model.safetensors` | the best [model](A_files.ipynb#saving-and-loading) so far | after a lower validation loss; without validation, at the end |
#
# A folder that holds anything else is left alone, since it may be all that is left of another run.


# %% tags=["export"]
SETTINGS = "training.json"
LOG = "log.jsonl"


def check_folder(folder: Path) -> None:
    """Raise FileExistsError for a folder that holds anything but a run."""
    held = {path.name for path in folder.glob("*") if path.suffix != ".unfinished"}
    held -= {".lock"}
    # Settings and weights without checkpoints are an average
    is_run = SETTINGS in held and (CHECKPOINTS in held or WEIGHTS not in held)
    if held and not is_run:
        raise FileExistsError(
            f"{folder} holds {min(held)}, and is no run: take another"
        )


# %% [markdown]
# The settings are all that decides what a run learns: those of the training and of the model, and hashes of the tokenizer and of the pairs' ids:


# %% tags=["export"]
def content_hash(corpus: EncodedCorpus) -> str:
    """Return a hash that tells the examples of a corpus from any others."""
    end = int(corpus.lengths.sum(dtype=np.int64)) + len(corpus)
    digest = hashlib.sha256(corpus.tokens[:end].data)
    digest.update(corpus.lengths.data)
    return digest.hexdigest()


# %% [markdown]
# What can't work is refused before the first step, and so is a run whose processes were started with different commands:


# %% tags=["export"]
def checked_settings(
    model: Transformer,
    tokenizer: Tokenizer,
    config: TrainingConfig,
    corpus: EncodedCorpus,
    watched: EncodedCorpus,
    start: str,
) -> dict[str, Any]:
    """Return what decides a run; raises ValueError if it cannot work or processes disagree."""
    check_vocabulary(model, tokenizer)
    if not len(corpus):
        raise ValueError("there are no sentence pairs to train on")
    if config.patience and not len(watched):
        raise ValueError("patience needs a loss to watch: give validation pairs")
    longest = model.config.max_length
    for part, some in (("training", corpus), ("validation", watched)):
        check_fits(some.lengths, longest, part, "the model's max_length")
        check_fits(some.lengths, config.max_tokens, part, "max_tokens")
    settings = {
        **asdict(config),
        "model": asdict(model.config),
        "tokenizer": sha256(tokenizer.text),
        "pairs": content_hash(corpus),
        "validation": content_hash(watched),
        "start": start,
    }
    if len({text for [text] in gather_texts([json.dumps(settings)])}) > 1:
        raise ValueError("the processes of this run were not all given the same")
    return settings


# %% [markdown]
# A run goes on only with its own settings and its own pairs: half a run with one rate and half with another would be a model that no command describes. Settings that have no part in an update may change, such as how long to train. Until the first checkpoint, any setting may change.


# %% tags=["export"]
MAY_CHANGE = ("steps", "save_every", "keep_checkpoints", "patience")


def begin_run(folder: Path, settings: Mapping[str, Any]) -> None:
    """Begin a run in a folder, or make sure that the one there has the same settings."""
    path = folder / SETTINGS
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else settings
    if before.keys() != settings.keys():
        raise FileExistsError(f"{path} is of another program: take another folder")
    different = [name for name in settings if before[name] != settings[name]]
    refused = [name for name in different if name not in MAY_CHANGE]
    if refused and last_checkpoint(folder):
        raise ValueError(
            f"the run in {folder} has another {', '.join(refused)}: repeat its "
            f"settings ({path}) to go on with it, or take another folder"
        )
    with atomic_write(path) as aside:
        aside.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    (folder / CHECKPOINTS).mkdir(exist_ok=True)


# %% [markdown]
# The log has one JSON object a line. Lines are appended, and that has a catch: a run with a checkpoint at step 500 and a line for step 550 is killed, goes on, and makes step 550 again. So each start drops the lines of later steps, and half a line at the end, and adds one that says what else the numbers depend on.


# %% tags=["export"]
def begin_log(folder: Path, step: int) -> list[dict[str, Any]]:
    """Forget what the log holds of later steps, note a start, and return the lines that remain."""
    path = folder / LOG
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    lines = [line for line in lines if line["step"] <= step]
    with atomic_write(path) as aside:
        aside.write_text("".join(json.dumps(line) + "\n" for line in lines))
    start = {
        "step": step,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processes": rank_and_world_size()[1],
        "threads": torch.get_num_threads(),
    }
    write_log(folder, start)
    return [line for line in lines if "loss" in line]


def write_log(folder: Path, line: Mapping[str, Any]) -> None:
    """Append a line with the time of day to the log."""
    timed = {**line, "time": time.strftime("%Y-%m-%d %H:%M:%S%z")}
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(timed) + "\n")


# %% [markdown]
# Of several processes, the first does all this. It also locks the folder, so that two commands can't write into one:


# %% tags=["export"]
@contextmanager
def run_folder(folder: Path | None) -> Iterator[None]:
    """Keep the folder of a run, if there is one, for this process."""
    if folder is None:
        yield
        return
    check_folder(folder)
    with only_one(folder / ".lock", f"is working in {folder}"):
        yield


# %% [markdown]
# The others wait until it tells them which checkpoint it has found, and read the same one:


# %% tags=["export"]
def go_on(
    folder: Path | None,
    settings: Mapping[str, Any],
    model: Transformer,
    optimizer: Adam,
) -> tuple[Progress, list[dict[str, Any]]]:
    """Go back to the last checkpoint of the run in a folder; return its progress and its log."""
    if folder is None:
        return Progress(), []
    rank, _ = rank_and_world_size()
    if rank == 0:
        begin_run(folder, settings)
    newest = gather_texts([str(last_checkpoint(folder) or "")])[0][0]
    progress = Progress()
    if newest:
        content = read_checkpoint(Path(newest))
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        progress = Progress(**content["progress"])
    log = begin_log(folder, progress.step) if rank == 0 else []
    return progress, log


# %% [markdown]
# ## A run that dies says so
#
# A training can go wrong without an error: the loss falls to where the model knows [how frequent each token is](16_schedule.ipynb#the-height-of-a-loss-that-is-stuck), and stays there for days. Then a warning appears once, in the log and on the screen, and the run goes on, since it may be a false alarm. It comes only if the last 400 steps lie after the warm-up and the loss is still above half of $\ln |V|$, the loss of guessing.


# %% tags=["export"]
STALL = 400  # steps, compared with as many before them
FALL = 0.1  # nats per token by which the loss should fall meanwhile
ADVICE = (
    f"the loss has hardly fallen for {STALL} steps: likely a learning rate that is too high "
    "or a warm-up that is too short; see "
    "https://annotated-transformer.github.io/annotated-transformer/book/troubleshooting.html"
)


def is_stuck(
    log: Sequence[Mapping[str, Any]], warmup: int, vocabulary_size: int
) -> bool:
    """Return whether the loss, still high after the warm-up, has hardly fallen."""
    now = log[-1]["step"]
    recent = [line["loss"] for line in log if line["step"] > now - STALL]
    before = [line["loss"] for line in log if 0 <= now - STALL - line["step"] < STALL]
    if not before or now - STALL < warmup:
        return False
    loss = np.median(recent)
    high = loss > math.log(vocabulary_size) / 2
    return bool(high and loss > np.median(before) - FALL)


# %% [markdown]
# ## Is it getting better?
#
# Every `save_every` steps the run measures the [validation loss](18_training.ipynb#whether-it-gets-better), each process on its share. The weights with the lowest *loss* are kept.


# %% tags=["export"]
def shared_validation_loss(
    model: Transformer, corpus: EncodedCorpus, max_tokens: int
) -> float:
    """Return the mean loss in nats per target token, each process taking its share."""
    plan = plan_batches(corpus.lengths, max_tokens, seed=0, epoch=0)
    stream = load_batches(corpus, plan, model.embedding.weight.device)
    totals = loss_and_tokens(FastLoss(model, label_smoothing=0), stream)
    loss, tokens = all_reduce_mean(totals)
    return float(loss / tokens)


# %% [markdown]
# Beside the loss, the log gets the result of a function `score`, usually BLEU. That result doesn't decide what is kept, because early in a run it can be 0 at every validation, and then all weights look alike. To translate, the processes share the sentences, too:


# %% tags=["export"]
MOST_SCORED = 2000  # validation pairs that are translated


def translate_together(
    model: Transformer,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    beam: int = 1,
    alpha: float = 0.6,
) -> list[str]:
    """Translate sentences, each process its share; all processes get all translations."""
    rank, world_size = rank_and_world_size()
    max_tokens = 16_384 if model.embedding.weight.is_cuda else 2048
    own = lines[rank::world_size]
    share = translate(model, tokenizer, own, beam, alpha, max_tokens=max_tokens)
    translations = [""] * len(lines)
    for number, texts in enumerate(gather_texts(share)):
        translations[number::world_size] = [" ".join(t.splitlines()) for t in texts]
    return translations


# %% [markdown]
# This function makes such a `score`, which `train` calls with the model:


# %% tags=["export"]
def bleu_on(
    tokenizer: Tokenizer, pairs: Sequence[Pair]
) -> Callable[[Transformer], float]:
    """Return a function that scores a model's greedy translations of some pairs."""
    some = pairs[:: 1 + len(pairs) // MOST_SCORED]

    def bleu(model: Transformer) -> float:
        sources = [pair.source for pair in some]
        translations = translate_together(model, tokenizer, sources)
        references = [pair.target for pair in some]
        return evaluation.score(translations, references).bleu

    return bleu


# %% [markdown]
# ## Asked to stop
#
# A cluster sends the signal SIGTERM some seconds before it kills, and Ctrl-C is SIGINT. A signal may come at any moment, even in the middle of an update, so it is only noted, and the run looks after each update. With several processes one yes is enough for all, or they would [wait for each other in vain](27_distributed.ipynb#why-does-training-hang-at-the-end-of-an-epoch).


# %% tags=["export"]
class Stopped(Exception):
    """A run was asked to stop by a signal, and has saved its state."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}: the same command goes on from there")
        self.signal = number


@contextmanager
def noted_signals(listen: bool) -> Iterator[list[int]]:
    """Collect the signals that ask to stop; afterwards they do what they did before."""
    noted: list[int] = []
    before = {}
    if listen and threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGTERM, signal.SIGINT):
            before[kind] = signal.signal(kind, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


# %% [markdown]
# ## The settings that go with a model
#
# Without settings, `train` goes by the model's width (`recipe_for`). The paper writes a checkpoint every ten minutes. Its base model makes a step in 0.4 seconds (section 5.2), so that is one in 1,500 steps; big takes 1.0 seconds, which makes 600.


# %% tags=["export"]
PAPER = TrainingConfig(
    steps=100_000, max_tokens=25_000, warmup=4000, peak_lr=None, save_every=1500
)
MEDIUM = TrainingConfig(
    steps=12_000, max_tokens=2048, warmup=1000, peak_lr=None, keep_checkpoints=12
)
RECIPES = {
    "tiny": TrainingConfig(),
    "small": TrainingConfig(peak_lr=0.0009),
    "captions": MEDIUM,
    "everyday": MEDIUM,
    "base": PAPER,
    "big": replace(PAPER, steps=300_000, save_every=600, keep_checkpoints=20),
}


def recipe(preset: str) -> TrainingConfig:
    """Return the settings that go with a preset."""
    return RECIPES.get(preset, PAPER)


def recipe_for(config: TransformerConfig) -> TrainingConfig:
    """Return the settings of big or base for a model at least as wide, of tiny for any other."""
    if config.d_model < 512:
        return recipe("tiny")
    return recipe("base" if config.d_model < 1024 else "big")


# %% [markdown]
# ## Killed, and continued
#
# Is nothing forgotten? Here is a run of 60 steps, and the same run broken off at step 50, ten steps after its last checkpoint. An exception stands in for the kill. (The project's tests kill real processes, before each of their file operations, and one of several.)

# %%
settings = TrainingConfig(steps=60, max_tokens=300, warmup=20, save_every=20)


def run(name, report=lambda line: None):
    torch.manual_seed(0)
    folder = home / name
    return train(
        Transformer(shape), tokenizer, corpus, settings, folder=folder, report=report
    )


def dies(line):
    if line["step"] == 50:
        raise MemoryError("killed")


straight = run("straight")
try:
    run("killed", dies)
except MemoryError:
    print("killed; last checkpoint", last_checkpoint(home / "killed").name)

# %% [markdown]
# The same call again, in the same folder:

# %%
continued = run("killed")
print(f"{apart(straight, continued):.4f} apart")
lines = (home / "killed" / LOG).read_text().splitlines()
print("steps in the log:", *(json.loads(line)["step"] for line in lines))

# %% tags=["remove-cell"]
if CHECKING:
    both = zip(straight.parameters(), continued.parameters())
    assert all(torch.equal(a, b) for a, b in both)
    assert [json.loads(line)["step"] for line in lines] == [0, 20, 40, 40, 50, 60]

# %% [markdown]
# The steps from 40 to 50 were made twice, and the log shows them once. (Step 0 and the second 40 are starts.) A signal costs no step at all, because the run has time to save. We send ourselves the one that a cluster sends. (A run looks for signals before it reports, so it notices this one a step later.)


# %%
def asks_to_stop(line):
    if line["step"] == 20:
        signal.raise_signal(signal.SIGTERM)


try:
    run("stopped", asks_to_stop)
except Stopped as stopped:
    print(stopped)
continued = run("stopped")
print(f"{apart(straight, continued):.4f} apart")

# %% tags=["remove-cell"]
if CHECKING:
    from shutil import rmtree

    both = zip(straight.parameters(), continued.parameters())
    assert all(torch.equal(a, b) for a, b in both)
    rmtree(home)

# %% [markdown]
# ## What to remember
#
# - Weights, Adam's averages, step, epoch and batch: with these and the seed, a run goes on to the bit. With the weights alone it doesn't.
# - Write aside, then rename. First the new checkpoint, then the old ones go.
# - The best weights are those with the lowest validation loss; BLEU is printed beside it.
# - Everything that several processes decide, they decide together.
#
# ## Exercises
#
# **1. Write it first** is [above](#batches-without-end).
#
# :::{admonition} Solution 1
# :class: dropdown
# Two nested loops, as in `batch_stream`. The catch is the last question: a generator that counts for itself knows its place, and the caller doesn't. Ours counts in an object that both hold, and counts *before* it yields, so while the caller works on a batch, `progress` names the next one. Counted after the `yield`, a run that is saved after its step would make its last batch twice.
# :::
#
# **2. Seconds or steps?** (★, 5 min). A checkpoint of base has 0.76 GB, and the disk takes 200 MB per second. A step takes 65 ms. What share of the time goes into checkpoints if you write one every 1,500 steps? And every 50?
#
# :::{admonition} Solution 2
# :class: dropdown
# Writing takes $0.76 / 0.2 = 3.8$ seconds. Every 1,500 steps of 65 ms, which are 97.5 seconds, that is $3.8 / 101.3 = 4$ %. Every 50 steps, or 3.25 seconds, it is $3.8 / 7.05 = 54$ %.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    for steps, share in ((1500, 0.04), (50, 0.54)):
        assert round(3.8 / (3.8 + steps * 0.065), 2) == share

# %% [markdown]
# **3. A new seed** (★★, 10 min). A run was stopped after half of its first epoch, and you give another `seed` to go on with. Why is it refused? What would the second half learn from?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The seed decides the plan of an epoch. In the middle of one, another plan would show some pairs
# twice and others not at all, and no command would describe the model.
plans = [plan_batches(corpus.lengths, 300, seed, epoch=0) for seed in (0, 1)]
middle = len(plans[0]) // 2
seen = np.concatenate(plans[0][:middle])
to_come = np.concatenate(plans[1][middle:])
print(f"{np.isin(seen, to_come).mean():.0%} of the first half would come again")

# %% [markdown]
# ## Further
#
# ### How far "to the bit" goes
#
# On one machine, with the same number of threads and the same release of PyTorch, a run of one process or two goes on to the last bit. A sum of floats depends on its order, so other threads, another processor or GPU, or three processes and more, whose sums PyTorch orders anew at each start, change the last digits. What never changes is which pairs a step sees.
#
# ## Sources
#
# The ten minutes between two checkpoints are from section 6.1 of {cite:t}`vaswani2017attention`.
