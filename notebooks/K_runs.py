# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Training runs
#
# This appendix turns the updates of the training chapter into a run that can be trusted with days of work: it validates, keeps the best model, can be killed at any moment, and goes on as if nothing had happened (section 5 of the paper).
#
# [Training](18_training.ipynb#the-loop) ends with `updates`, a generator that makes one update of the weights after another. The run below takes from it, update by update, and adds what the lesson has no need of. Nothing of the loop is written twice.

# %% tags=["export"]
import errno
import hashlib
import json
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.optim import Adam
from torch.utils.data import DataLoader
from tqdm import tqdm

from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    Example,
    check_fits,
    collate,
    encode_pairs,
    plan_batches,
)
from annotated_transformer.data import Pair
from annotated_transformer.distributed import (
    DataParallelLoss,
    all_reduce_mean,
    rank_and_world_size,
)
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.speed import FastLoss, Precision
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import model_io, planning, run_folder
from annotated_transformer.toolkit.graphs import Shapes
from annotated_transformer.toolkit.presets import make_config
from annotated_transformer.toolkit.processes import gather_texts
from annotated_transformer.training import (
    Group,
    Hyperparameters,
    Update,
    group_batches,
    loss_and_tokens,
    make_adam,
    updates,
)
from annotated_transformer.transformer import Transformer

# %% [markdown]
# ## Settings
#
# To the [hyperparameters](18_training.ipynb#the-settings), which shape every update, a run adds when it saves and when it stops. A wrong number is refused when it is given.


# %% tags=["export"]
MOST = 10**9
WHOLE_NUMBERS = {  # the lowest and the highest that are allowed
    "steps": (1, 99_999_999),  # a checkpoint's name has eight digits
    "max_tokens": (1, MOST),
    "grad_accum_steps": (1, MOST),
    "warmup": (1, MOST),
    "seed": (0, 2**63 - 1),
    "pad_to_multiple_of": (1, 1024),
    "save_every": (1, MOST),
    "keep_checkpoints": (1, MOST),
    "patience": (1, MOST),
}
OPTIONAL = ("grad_clip", "patience")  # may be None


@dataclass(frozen=True)
class TrainingConfig(Hyperparameters):
    """How to train; the defaults suit the `tiny` model and the grammar. Checked when made.

    Raises ValueError for a value that no run can have.
    """

    pad_to_multiple_of: int = 1  # of lengths; 8 makes few shapes, for --compile
    save_every: int = 500  # steps between two checkpoints, and between two validations
    save_minutes: float = 10  # minutes after which the state is saved in any case
    keep_checkpoints: int = 5  # regular ones, the last
    patience: int | None = None  # stop after so many validations without a lower loss

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None or name not in OPTIONAL:
                check_setting(name, value)


def check_setting(name: str, value: Any) -> None:
    """Raise ValueError for a setting of the wrong type or out of its range."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    is_number = is_whole or isinstance(value, float)
    if name in WHOLE_NUMBERS:
        lowest, highest = WHOLE_NUMBERS[name]
        valid = is_whole and lowest <= value <= highest
        wanted = f"a whole number from {lowest:,} to {highest:,}"
    elif name == "label_smoothing":
        valid = is_number and 0 <= value < 1
        wanted = "a number from 0 to below 1"
    else:
        valid = is_number and 0 < value < math.inf
        wanted = "a number above 0"
    if not valid:
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


# %%
for wrong in ({"warmup": 0}, {"steps": 2.5}, {"label_smoothing": 1.0}):
    try:
        TrainingConfig(**wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## What takes part, and where it stands
#
# Two records: a `Run` holds what takes part in the training and doesn't change, `Progress` where it stands. The second is in every checkpoint.


# %% tags=["export"]
@dataclass
class Progress:
    """Where a run stands. With the seed, it decides all randomness of the next update."""

    step: int = 0  # updates made
    epoch: int = 0
    batch: int = 0  # the next one of the epoch
    lowest_loss: float = math.inf  # of all validations
    waited: int = 0  # validations since then, after the warm-up


@dataclass
class Run:
    """What takes part in a training run; `train` makes it."""

    model: Transformer
    tokenizer: Tokenizer
    loss: SmoothedLoss
    optimizer: Adam
    config: TrainingConfig
    corpus: EncodedCorpus
    validation: EncodedCorpus
    score: Callable[[Transformer], float] | None
    report: Callable[[dict[str, Any]], None]
    folder: Path | None
    progress: Progress = field(default_factory=Progress)
    batches_per_epoch: int = 1  # of the present epoch
    reported: list[dict[str, Any]] = field(default_factory=list)  # lines of the log
    awaiting_validation: dict[str, Any] | None = None  # the line of the log for it

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    @property
    def shapes(self) -> Shapes:
        """The shapes that batches may have; any, if lengths are padded to multiples of 1."""
        return Shapes(
            self.config.pad_to_multiple_of,
            self.config.max_tokens,
            self.model.config.max_length,
            rank_and_world_size()[1],
        )

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Plan the batches of an epoch."""
        lengths = self.shapes.padded(self.corpus.lengths)
        return plan_batches(lengths, self.config.max_tokens, self.config.seed, epoch)


# %% [markdown]
# ## Batches without end
#
# The order of an epoch follows from (seed, epoch), as [batching](15_batching.ipynb#a-plan-for-an-epoch) made it, so a stream of batches can begin anywhere: to enter a plan in the middle, we leave out its beginning. For a GPU, a second process makes the next batches while the model works on this one, in memory that the GPU can copy from without waiting (`pin_memory`). When [several processes](26_distributed.ipynb#one-plan-for-all) train together, each takes every `world_size`-th row of each batch; one that is left without a sentence gets a batch that adds nothing to the loss. With `pad_to_multiple_of`, batches have [few shapes](Q_graphs.ipynb#few-shapes).
#
# Two of the arguments of `DataLoader` look odd. A cluster that ends a job sends its signal to all of its processes, and the worker ignores it, so that it doesn't die before the run has saved its state. And a `DataLoader` draws a random number when it starts, which without a generator of its own it would take from the global one.


# %% tags=["export"]
EMPTY_EXAMPLE = Example(np.array([EOS]), np.array([BOS, PAD]))  # without any label


def collate_share(examples: Sequence[Example]) -> Batch:
    """Return the batch of some examples; of none, a batch that adds nothing to the loss."""
    return collate(examples or [EMPTY_EXAMPLE])


def stop_signals() -> set[signal.Signals]:
    """Return the signals that ask a run to stop."""
    kinds = {signal.SIGTERM, signal.SIGINT}
    # A terminal was closed: nohup has that ignored, and Windows has no such signal
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        kinds.add(signal.SIGHUP)
    return kinds


def ignore_signals(worker: int) -> None:
    """Leave signals to stop to the process that trains, which ends its worker itself."""
    for kind in stop_signals():
        signal.signal(kind, signal.SIG_IGN)


def collate_shape(examples: Sequence[Example], shapes: Shapes) -> Batch:
    """Return the batch of some examples, filled up to one of a few shapes."""
    return shapes.fill_up(collate_share(examples))


def move(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device, without waiting."""
    source, target = (side.to(device, non_blocking=True) for side in batch)
    return Batch(source, target)


def load_batches(
    corpus: EncodedCorpus,
    plan: Sequence[np.ndarray],
    device: torch.device,
    make_batch: Callable[[Sequence[Example]], Batch] = collate_share,
) -> Iterator[Batch]:
    """Yield this process's share of each batch of a plan, on the device."""
    rank, world_size = rank_and_world_size()
    on_gpu = device.type == "cuda"
    shares: list[Any] = [numbers[rank::world_size] for numbers in plan]
    loader: DataLoader[Any] = DataLoader(
        corpus,  # type: ignore[arg-type] # it has a length and items, which is enough
        batch_sampler=shares,
        collate_fn=make_batch,
        num_workers=1 if on_gpu else 0,
        pin_memory=on_gpu,
        worker_init_fn=ignore_signals,
        generator=torch.Generator(),
    )
    for batch in loader:
        yield move(batch, device)


def batch_stream(run: Run) -> Iterator[Batch]:
    """Yield this process's share of batch after batch, without end, from where the run stands."""
    progress = run.progress
    make_batch: Callable[[Sequence[Example]], Batch] = collate_share
    if run.config.pad_to_multiple_of > 1:
        make_batch = partial(collate_shape, shapes=run.shapes)
    while True:
        plan = run.plan(progress.epoch)
        run.batches_per_epoch = len(plan)
        rest = plan[progress.batch :]
        for batch in load_batches(run.corpus, rest, run.device, make_batch):
            progress.batch += 1
            yield batch
        progress.epoch += 1
        progress.batch = 0


# %% [markdown]
# ## Updates that can be repeated
#
# If a run is to continue as if it had never stopped, the order of its batches and what dropout drops must be the same in the second half. One could save the state of every random generator: Python's, PyTorch's, one for each GPU. Instead, all randomness follows from numbers that we know anyway. What dropout drops follows from (seed, step), and from the number of the process: each must draw its own dropout mask, because if all drew the same one, their noise would not average out. `fork_rng` puts the generators back afterwards, so your own random numbers are left alone.
#
# Why not simply seed + step? Because step 7 of seed 0 would draw the numbers of step 6 of seed 1, and two runs that are meant to differ by chance would share theirs, one step apart. Python's `Random` makes its seed from the whole text `"(0, 7, 0, 1)"`.


# %% tags=["export"]
@contextmanager
def random_numbers_of(seed: int, step: int) -> Iterator[None]:
    """Let random numbers follow from seed, step and process; afterwards all is as before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        numbers = (seed, step, *rank_and_world_size())
        torch.manual_seed(Random(str(numbers)).getrandbits(63))
        yield


def shared_groups(groups: Iterator[Group]) -> Iterator[Group]:
    """Give each group the mean number of tokens of all processes: DDP averages the gradients."""
    for group in groups:
        yield group._replace(tokens=all_reduce_mean(group.tokens))


def remaining_updates(run: Run) -> Iterator[Update]:
    """Make and yield the updates that the run still needs, and count them."""
    config, progress = run.config, run.progress
    patience = math.inf if config.patience is None else config.patience
    loss = run.loss
    groups = group_batches(batch_stream(run), config.grad_accum_steps)
    if rank_and_world_size()[1] > 1:
        loss = DataParallelLoss(run.loss, config.grad_accum_steps)
        groups = shared_groups(groups)
    making = updates(loss, groups, run.optimizer, config, progress.step)
    while progress.step < config.steps and progress.waited < patience:
        try:
            with random_numbers_of(config.seed, progress.step):
                update = next(making)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"the gradient of step {progress.step + 1} is not finite; it was not used. "
                "Try a smaller lr_scale, or grad_clip=1.0, in another folder"
            ) from error
        progress.step += 1
        yield update


# %% [markdown]
# ## Whether it gets better
#
# Every 50 steps, and with each checkpoint, the run writes a line with the mean loss over all tokens since the last. Every `save_every` steps it measures the [validation loss](18_training.ipynb#whether-it-gets-better), and logs beside it what a function `score` of yours says, such as BLEU. The weights with the lowest loss are kept. A score has no say: BLEU can be 0 at every validation, for a list of terms too short for its 4-grams or for a model that doesn't write anything yet, and then tells no weights from others. If `patience` validations in a row bring no lower loss, training ends, which is **early stopping**; those in the warm-up don't count, since a rate that rises can raise the loss for a while. With a patience of 2 and made-up losses of 3.1, 2.4, 2.6 and 2.5, it stops after the fourth: 2.5 is lower than 2.6, but not than 2.4. The loss of the weights that come back, the lowest of several noisy numbers, flatters; so a test set must have no say in any choice.


# %% tags=["export"]
REPORT_EVERY = 50  # steps


def summarize(run: Run, recent: Sequence[Update], seconds: float) -> dict[str, Any]:
    """Return means over the last updates: a line of the log; the loss in nats per target token."""
    progress = run.progress
    losses = torch.stack([update.loss.double() for update in recent])
    loss = float(all_reduce_mean(losses.sum()))
    tokens = float(sum(update.tokens for update in recent))
    norm = float(sum(update.gradient_norm for update in recent))
    _, world_size = rank_and_world_size()
    return {
        "step": progress.step,
        "epoch": round(progress.epoch + progress.batch / run.batches_per_epoch, 3),
        "loss": loss / tokens,
        "learning_rate": run.optimizer.param_groups[0]["lr"],
        "gradient_norm": norm / len(recent),
        "tokens_per_second": round(tokens * world_size / seconds),
    }


def shared_validation_loss(run: Run) -> float:
    """Return the mean validation loss in nats per target token, each process taking its share."""
    corpus = run.validation
    plan = plan_batches(corpus.lengths, run.config.max_tokens, seed=0, epoch=0)
    stream = load_batches(corpus, plan, run.device)
    # In chunks, so that it takes no more memory than training
    totals = loss_and_tokens(FastLoss(run.model, label_smoothing=0), stream)
    loss, tokens = all_reduce_mean(totals)
    return float(loss / tokens)


def validate(run: Run) -> dict[str, float]:
    """Return loss and score on the held-out pairs; weights with the lowest loss are saved."""
    progress = run.progress
    measured: dict[str, float] = {}
    loss = math.inf
    if len(run.validation):
        measured["validation_loss"] = loss = shared_validation_loss(run)
    if run.score is not None:
        measured["score"] = float(run.score(run.model))
    if progress.step > run.config.warmup:
        progress.waited += 1
    if loss < progress.lowest_loss:
        progress.lowest_loss = loss
        progress.waited = 0
        if run.folder is not None and rank_and_world_size()[0] == 0:
            model_io.save_model(run.model, run.tokenizer, run.folder)
    return measured


# %% [markdown]
# ## A run that dies says so
#
# A training can go wrong without an error. The loss falls for a while, to where the model knows how frequent each token is, and stays there for days. So after each line of its log the run looks for three signs, and names the likely causes once for each: in the log, under `warnings`, and on the screen. It goes on all the same, since it can't know.
#
# The limits have a wide margin. The loss may stand still once it is below half of $\ln |V|$, the loss of guessing, and in the warm-up. A healthy run whose lines cover 50 updates seldom has a gradient twice as long as usual. And where the validation loss rises though something is translated, the model [learns by heart](17_regularization.ipynb#learning-by-heart), which is another matter. No training log of this project gets a warning, and a test keeps it so.


# %% tags=["export"]
STALL = 400  # steps, compared with as many before them
FALL = 0.1  # nats per token by which the loss should fall meanwhile
LEAP = 4  # times the usual length of a gradient
CAUSES = (
    "Likely causes: a learning rate that is too high (try half the lr_scale), a warm-up "
    "that is too short, a batch too large for the corpus (max_tokens); see "
    "https://annotated-transformer.github.io/annotated-transformer/book/troubleshooting.html"
)


def loss_has_stalled(
    log: Sequence[dict[str, Any]], warmup: int, vocabulary_size: int
) -> bool:
    """Return whether the loss has stayed high since STALL steps, all of them after the warm-up."""
    step = log[-1]["step"]
    recent = [line["loss"] for line in log if line["step"] > step - STALL]
    before = []
    for line in log:
        if step - 2 * STALL < line["step"] <= step - STALL:
            before.append(line["loss"])
    if step - STALL < warmup or not before:
        return False
    is_high = median(recent) > math.log(vocabulary_size) / 2
    return is_high and median(recent) > median(before) - FALL


def gradient_leaps(log: Sequence[dict[str, Any]]) -> bool:
    """Return whether the last gradient is many times as long as those of the lines before it."""
    *before, last = [line["gradient_norm"] for line in log[-21:]]
    return len(before) >= 8 and last > LEAP * median(before)


def validation_worsens(log: Sequence[dict[str, Any]]) -> bool:
    """Return whether the validation loss rises while the score is 0, as BLEU prints it."""
    validated = [line for line in log if {"validation_loss", "score"} <= line.keys()]
    if len(validated) < 2 or validated[-1] is not log[-1]:
        return False
    *before, last = validated
    lowest = min(line["validation_loss"] for line in before)
    return last["validation_loss"] > lowest + FALL and 0 <= last["score"] < 0.05


def signs_of_death(
    log: Sequence[dict[str, Any]], warmup: int, vocabulary_size: int
) -> dict[str, str]:
    """Return what the newest line of a log says of a training that dies, by the kind of sign."""
    last = log[-1]
    signs = {}
    if loss_has_stalled(log, warmup, vocabulary_size):
        signs["loss"] = (
            f"the loss has hardly fallen for {STALL} steps and is still "
            f"{last['loss']:.1f} nats per token (guessing: {math.log(vocabulary_size):.1f})"
        )
    if gradient_leaps(log):
        signs["gradient"] = (
            f"the gradient, {last['gradient_norm']:.1f}, is more than {LEAP} times as long "
            "as usual"
        )
    if validation_worsens(log):
        signs["validation"] = (
            f"the validation loss has risen to {last['validation_loss']:.1f} nats per "
            "token, and the score is 0"
        )
    return signs


def with_warnings(run: Run, line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the log with its warnings, which are shown; each kind comes once a run."""
    log = [*run.reported, line]
    signs = signs_of_death(log, run.config.warmup, run.model.config.vocabulary_size)
    for earlier in run.reported:
        for kind in earlier.get("warnings", ()):
            signs.pop(kind, None)
    for text in signs.values():
        message = f"step {line['step']}: {text}. {CAUSES}"
        with suppress(OSError):  # of a terminal that was closed
            tqdm.write(message, file=sys.stderr)  # beside the progress bar
    if signs:
        line = line | {"warnings": signs}
    run.reported.append(line)
    return line


# %% [markdown]
# Here is the log of a run in miniature: its loss falls for 400 steps, and then no more.

# %%
log = [{"step": 50, "loss": 8.5, "gradient_norm": 2.0}]
for step in range(100, 1250, 50):
    loss = max(8.5 - step / 200, 6.5)
    log.append({"step": step, "loss": loss, "gradient_norm": 1.0})
    signs = signs_of_death(log, warmup=200, vocabulary_size=8000)
    if signs:
        print(f"step {step}: {signs['loss']}")
        break


# %% [markdown]
# ## The run
#
# After each update the run asks three questions: is a checkpoint due, has it been long since the last, was the process asked to stop? Where there are several processes, one yes is enough for all. A cluster sends the signal SIGTERM some seconds before it kills, Ctrl-C is SIGINT, and a terminal that is closed sends SIGHUP. `stop_signal` notes each, and the run looks once per step, except for SIGHUP under `nohup`, which is there to ignore it. Whoever can't wait for that presses Ctrl-C again. (A second SIGINT counts only after a second: `torchrun` passes on to its processes what the terminal has sent them already.)


# %% tags=["export"]
class Stopped(Exception):
    """A run was asked to stop by a signal, and has saved its state."""

    def __init__(self, message: str, number: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.signal = number


class StopRequest:
    """Whether a signal has asked the run to stop, and which one.

    It takes no lock, as an event would: a second signal may come while the first is received.
    """

    def __init__(self) -> None:
        self.signal: int = signal.SIGTERM
        self.before: dict[int, Any] = {}  # what the signals did before
        self.asked_at = math.inf

    def receive(self, number: int, frame: object) -> None:
        """Ask the run to stop; another SIGINT, a second later or more, does what it did before."""
        now = time.monotonic()
        if number == signal.SIGINT and now - self.asked_at > 1:
            signal.signal(number, self.before[number])
            signal.raise_signal(number)
        self.signal = number
        self.asked_at = min(self.asked_at, now)

    def is_set(self) -> bool:
        """Return True once a signal has come."""
        return self.asked_at < math.inf


@contextmanager
def stop_signal(listen: bool) -> Iterator[StopRequest]:
    """Listen for signals to stop; afterwards signals do what they did before."""
    stop = StopRequest()
    try:
        if listen and threading.current_thread() is threading.main_thread():
            for kind in stop_signals():
                stop.before[kind] = signal.signal(kind, stop.receive)
        yield stop
    finally:
        for heard, handler in stop.before.items():
            signal.signal(heard, handler)


# %% tags=["export"]
def record(run: Run, line: dict[str, Any], save: bool, regular: bool) -> None:
    """Write a line of the log, a checkpoint if it is time to save, and report the line."""
    rank, _ = rank_and_world_size()
    if rank > 0:
        return  # the first process writes for all
    line = with_warnings(run, line)
    if run.folder is not None:
        run_folder.write_log(run.folder, line)
        if save:
            save_state(run, run.folder, regular)
    run.report(line)


def save_before_validation(run: Run, line: dict[str, Any]) -> None:
    """Write a checkpoint that knows that it was not validated yet, and the line to be logged."""
    rank, _ = rank_and_world_size()
    is_validated = len(run.validation) > 0 or run.score is not None
    if run.folder is not None and rank == 0 and is_validated:
        save_state(run, run.folder, regular=False, awaiting_validation=line)


def run_updates(run: Run) -> None:
    """Train until the last step or the end of patience; raises Stopped after a signal."""
    config, progress = run.config, run.progress
    rank, _ = rank_and_world_size()
    recent: list[Update] = []
    reported = saved = time.monotonic()
    bar = tqdm(
        total=config.steps,
        initial=progress.step,
        unit="step",
        disable=True if rank > 0 else None,  # None: only in a terminal
    )
    with bar, stop_signal(run.folder is not None) as stop:
        if run.awaiting_validation is not None:
            line = run.awaiting_validation | validate(run)
            record(run, line, save=True, regular=True)
        for update in remaining_updates(run):
            recent.append(update)
            bar.update()
            due = (
                progress.step % config.save_every == 0 or progress.step == config.steps
            )
            minutes = (time.monotonic() - saved) / 60
            late = run.folder is not None and minutes > config.save_minutes
            # What one process wants, all must do, or they wait for each other in vain
            wanted = torch.tensor([float(late), float(stop.is_set())])
            late, stopping = (all_reduce_mean(wanted) > 0).tolist()
            if not (due or late or stopping or progress.step % REPORT_EVERY == 0):
                continue
            line = summarize(run, recent, time.monotonic() - reported)
            if due:
                save_before_validation(run, line)
                line |= validate(run)
            save = due or late or stopping
            record(run, line, save, regular=due)
            if save:
                saved = time.monotonic()
            recent, reported = [], time.monotonic()
            bar.set_postfix(loss=f"{line['loss']:.3f}")
            if stopping:
                raise Stopped(
                    f"stopped at step {progress.step}: the same command continues there",
                    stop.signal,
                )


# %% [markdown]
# The order is deliberate. An update whose gradient is not finite raises before it changes a weight, so no checkpoint is ever written after a bad one. A validation can fail, too: it may run out of memory, or a `score` of yours may raise. So the state is saved first, in a checkpoint that a start goes on from by validating, and a failure costs no step. The line of the log comes before the checkpoint that knows the new lowest loss: after a kill between log and checkpoint, the next start drops the extra line, while a line not yet written would be lost for good.
#
# ## What a checkpoint holds
#
# A **checkpoint** is a file with all that decides how a run goes on. The step decides the rate and the dropout, epoch and batch the next batch. What remains is the weights and the optimizer's [two averages](16_schedule.ipynb#what-adam-does-with-the-rate) of each weight, so a checkpoint is three times as large as the model.
#
# All that is read from one is checked before anything of the run is changed.


# %% tags=["export"]
def save_state(
    run: Run,
    folder: Path,
    regular: bool,
    awaiting_validation: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint of a run, with the line of the log that awaits a validation, if any."""
    content = {
        **asdict(run.progress),
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "config": asdict(run.model.config),
        "tokenizer": run.tokenizer.text,
        "awaiting_validation": awaiting_validation,
    }
    run_folder.save_checkpoint(folder, content, regular, run.config.keep_checkpoints)


def load_state(run: Run, path: Path) -> None:
    """Go back to a checkpoint; raises ValueError, and changes nothing, if it is not of this run."""
    content = run_folder.read_checkpoint(path)
    try:
        check_model(run, content)
        check_progress(run, content)
        check_optimizer(run, content["optimizer"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"{path} is no checkpoint of this run ({reason}): move it away"
        ) from error
    run.model.load_state_dict(content["model"])
    run.optimizer.load_state_dict(content["optimizer"])
    own_averages(run.optimizer)
    for name in asdict(run.progress):
        setattr(run.progress, name, content[name])
    run.awaiting_validation = content["awaiting_validation"]


def check_model(run: Run, content: dict[str, Any]) -> None:
    """Raise ValueError if a checkpoint holds another model than that of a run."""
    if content["config"] != asdict(run.model.config):
        raise ValueError("its model has another configuration")
    if content["tokenizer"] != run.tokenizer.text:
        raise ValueError("it has another tokenizer")
    model_io.check_weights(run.model.config, content["model"])


def check_progress(run: Run, content: dict[str, Any]) -> None:
    """Raise ValueError if a run can never stand where a checkpoint claims to stand."""
    for name in ("step", "epoch", "batch", "waited"):
        value = content[name]
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r}")
    lowest_loss = content["lowest_loss"]
    if not isinstance(lowest_loss, float) or math.isnan(lowest_loss):
        raise ValueError(f"lowest_loss is {lowest_loss!r}")
    line = content["awaiting_validation"]
    if line is not None and (line.get("step") != content["step"] or "loss" not in line):
        raise ValueError(f"the validation that is to come is {line!r}")
    plan = run.plan(content["epoch"])
    if content["batch"] > len(plan):
        raise ValueError(f"batch is {content['batch']} of an epoch of {len(plan)}")


def check_optimizer(run: Run, saved: dict[str, Any]) -> None:
    """Raise ValueError if the saved state of an optimizer does not fit that of a run.

    The fused Adam trusts the sizes of its averages. The rate is set before each update, so it does
    not matter; fields that a version of PyTorch does not have are left to it.
    """
    own_groups = run.optimizer.state_dict()["param_groups"]
    if len(saved["param_groups"]) != len(own_groups):
        raise ValueError("its optimizer has other groups of weights")
    for own, group in zip(own_groups, saved["param_groups"]):
        for name in (own.keys() & group.keys()) - {"lr"}:
            if own[name] != group[name]:
                raise ValueError(f"its optimizer has {name}={group[name]}")
    named_weights = [*run.model.named_parameters()]
    if not saved["state"].keys() <= {*range(len(named_weights))}:
        raise ValueError("its optimizer has averages of other weights")
    for number, (name, weight) in enumerate(named_weights):
        averages = saved["state"].get(number)
        if averages is None and weight.requires_grad:
            raise ValueError(f"its optimizer has no averages of {name}")
        if averages is not None:
            shapes = [averages[key].shape for key in ("exp_avg", "exp_avg_sq")]
            if shapes != [weight.shape, weight.shape] or averages["step"].numel() != 1:
                raise ValueError(f"its optimizer has averages of other sizes of {name}")


def own_averages(optimizer: Adam) -> None:
    """Copy Adam's averages into tensors like its weights: the fused Adam trusts their memory."""
    for weight, state in optimizer.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.empty_like(weight).copy_(state[name])


# %% [markdown]
# ## One call
#
# `train` puts it together. What can't work, such as a pair that is too long, is refused before the first step. In a [folder](I_run_folder.ipynb), the settings are kept beside the checkpoints, and those that shape an update may not change: half a run with one rate and half with another would be a model that no command describes. Tokenizer and pairs are represented by their hashes.


# %% tags=["export"]
def content_hash(corpus: EncodedCorpus) -> str:
    """Return the SHA-256 that a corpus comes with, or that of its arrays."""
    if corpus.sha256:
        return corpus.sha256
    content = corpus.tokens.tobytes() + corpus.lengths.tobytes()
    return hashlib.sha256(content).hexdigest()


def settings_of(run: Run) -> dict[str, Any]:
    """Return all that decides how a run goes, as JSON can hold it."""
    settings: dict[str, Any] = {}
    for name, value in asdict(run.config).items():
        settings[f"training.{name}"] = value
    for name, value in asdict(run.model.config).items():
        settings[f"model.{name}"] = value
    return settings | {
        "tokenizer": model_io.tokenizer_hash(run.tokenizer),
        "pairs": content_hash(run.corpus),
        "validation": content_hash(run.validation),
        "precision": getattr(run.loss, "precision", "fp32"),
    }


def first_words_of(corpus: EncodedCorpus, tokenizer: Tokenizer, number: int) -> str:
    """Return how the source of an example begins."""
    return tokenizer.decode(corpus[number].source[:15].tolist())


def check_run(run: Run) -> None:
    """Raise ValueError for what cannot work, before any work is lost."""
    config, loss = run.config, run.loss
    make_config(asdict(run.model.config))
    model_io.check_vocabulary(run.model, run.tokenizer)
    if not len(run.corpus):
        raise ValueError("there are no sentence pairs to train on")
    if config.patience and not len(run.validation):
        raise ValueError("patience needs a loss to watch: give validation pairs")
    same_model = loss.model.decoder is run.model.decoder
    if not same_model or loss.label_smoothing != config.label_smoothing:
        raise ValueError(
            "the loss must be made with this model and the label_smoothing of config"
        )
    longest = run.model.config.max_length
    for part, corpus in (("training", run.corpus), ("validation", run.validation)):
        first_words = partial(first_words_of, corpus, run.tokenizer)
        check_fits(corpus.lengths, longest, part, "the model's max_length", first_words)
        check_fits(corpus.lengths, config.max_tokens, part, "max_tokens", first_words)


# %% tags=["export"]
def check_others(run: Run) -> None:
    """Raise ValueError, in all processes, if they were not all given the same."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return
    own = {"folder": run.folder is not None, **settings_of(run)}
    all_settings = [json.loads(text) for [text] in gather_texts([json.dumps(own)])]
    first, *others = all_settings
    different = set[str]()
    for other in others:
        names = {*first, *other}
        different |= {name for name in names if first.get(name) != other.get(name)}
    if different:
        raise ValueError(
            "the processes of this run were not all given the same "
            f"{', '.join(sorted(different))}: start all with the same command"
        )


# %% tags=["export"]
def enter_folder(run: Run, folder: Path) -> None:
    """Begin a run in a folder, or go to where the one there stands.

    Raises ValueError if the processes do not all see the same folder.
    """
    rank, world_size = rank_and_world_size()
    if rank == 0:
        run_folder.begin_in_folder(folder, settings_of(run))
    newest = run_folder.last_checkpoint(folder)
    if newest is not None:
        load_state(run, newest)
    mean_step = all_reduce_mean(torch.tensor(run.progress.step))  # all wait for all
    has_settings = (folder / run_folder.SETTINGS).exists()
    if mean_step != run.progress.step or not has_settings:
        raise ValueError(
            f"{folder} is not the same for all processes: put it on a shared disk"
        )
    if rank == 0:
        run_folder.remove_old_checkpoints(folder, run.config.keep_checkpoints)
        logged = run.progress.step
        if run.awaiting_validation is not None:
            logged -= 1  # its line is written after the validation
        run_folder.begin_log(folder, logged, world_size)
        run.reported = run_folder.read_log(folder)


def run_in_folder(run: Run, folder: Path) -> None:
    """Begin or continue a run in a folder; the best model is left there, and loaded."""
    rank, _ = rank_and_world_size()
    with model_io.folder_lock(folder) if rank == 0 else nullcontext():
        enter_folder(run, folder)
        run_updates(run)
        weights = folder / model_io.WEIGHTS
        never_validated = run.progress.lowest_loss == math.inf
        if rank == 0 and (never_validated or not weights.exists()):
            model_io.save_model(run.model, run.tokenizer, folder)
        all_reduce_mean(torch.zeros(1))  # all wait for the first process
        tensors, _ = model_io.read_tensors(weights)
        run.model.load_state_dict(tensors)


# %% [markdown]
# Two ends can't be avoided, but explained: memory or disk may turn out too small. Less memory is taken by smaller batches, more of them per update. (A system that runs out of memory may also kill the process without a word. If a run on a CPU just ends, compare the memory of the machine with the estimate of `train --dry-run`.)


# %% tags=["export"]
class OutOfMemory(MemoryError):
    """A run needs more memory than there is; the message says how it takes less."""


MEMORY = re.compile(r"out of memory|not enough memory|allocate memory|ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or PyTorch, on CPU or GPU, means lack of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    by_torch = isinstance(error, (RuntimeError, OSError))
    return by_torch and MEMORY.search(str(error)) is not None


def how_to_take_less_memory(run: Run) -> str:
    """Return a sentence for a run that is out of memory: what was expected, and what to change."""
    config = run.config
    _, world_size = rank_and_world_size()
    precision: Precision = getattr(run.loss, "precision", "fp32")
    lengths = run.corpus.lengths
    plan = planning.estimate(run.model.config, config, lengths, precision, world_size)
    longest = int(lengths.max())
    if longest == config.max_tokens:
        advice = "A pair fills a batch: drop the longest pairs, or take a smaller model"
    else:
        advice = (
            "Take smaller batches and more of them per update, such as "
            f"max_tokens={max(config.max_tokens // 2, longest)} and "
            f"grad_accum_steps={2 * config.grad_accum_steps}"
        )
    if run.folder is not None and run_folder.steps_made(run.folder) > 0:
        advice += ", in another folder"
    return (
        f"out of memory at step {run.progress.step + 1}: with max_tokens="
        f"{config.max_tokens}, {plan.memory_bytes / 2**30:.1f} GiB a device were "
        f"expected. {advice}"
    )


@contextmanager
def explained_ends(run: Run) -> Iterator[None]:
    """Say what to do where memory or disk are full: raise OutOfMemory or DiskFull."""
    try:
        yield
    except model_io.DiskFull as error:
        if run.folder is None:
            raise
        step = run_folder.steps_made(run.folder)
        raise model_io.DiskFull(
            f"{error}: make room, and the same command goes on from step {step}"
        ) from error
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(how_to_take_less_memory(run)) from error


# %% tags=["export"]
def as_corpus(
    tokenizer: Tokenizer, pairs: Sequence[Pair] | EncodedCorpus
) -> EncodedCorpus:
    """Return pairs encoded, if they are not yet."""
    if isinstance(pairs, EncodedCorpus):
        return pairs
    return encode_pairs(tokenizer, pairs)


# %% tags=["export"]
def train(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair] | EncodedCorpus,
    config: TrainingConfig = TrainingConfig(),
    *,
    validation: Sequence[Pair] | EncodedCorpus = (),
    score: Callable[[Transformer], float] | None = None,
    folder: str | Path | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
    loss: SmoothedLoss | None = None,
) -> Transformer:
    """Train a model on pairs and return it, in evaluation mode (section 5).

    Calls `report` every 50 steps, and every `save_every` steps measures the loss on `validation`
    and logs it with what `score` returns. A folder gets a log, checkpoints, and the weights with
    the lowest loss, or without `validation` the last, which are also returned; a run that it holds
    already is continued, to the bit (up to rounding with three processes or more, whose sums may
    change their order).

    Raises:
        ValueError: pairs, tokenizer or folder do not fit.
        FloatingPointError: a gradient is not finite.
        OutOfMemory: there is too little memory; says which settings take less.
        DiskFull: there is no space for a file of the folder; what was saved before stays.
        Stopped: a run in a folder was asked to stop, and has saved its state.
    """
    plain_model = getattr(model, "_orig_mod", model)  # what torch.compile was given
    run = Run(
        model=plain_model,
        tokenizer=tokenizer,
        loss=loss or SmoothedLoss(model, config.label_smoothing),
        optimizer=make_adam(model),
        config=config,
        corpus=as_corpus(tokenizer, pairs),
        validation=as_corpus(tokenizer, validation),
        score=score,
        report=report,
        folder=None if folder is None else Path(folder),
    )
    check_run(run)
    check_others(run)
    with explained_ends(run):
        if run.folder is not None:
            run_in_folder(run, run.folder)
        else:
            run_updates(run)
    return model.eval()


# %% [markdown]
# ## Killed, and continued
#
# Is nothing forgotten? A run of 60 steps, and the same run broken off at step 50, ten steps after its last checkpoint. (An exception stands in for the kill; the project's tests kill real processes, at every one of their file operations.)

# %% tags=["hide-input"]
import copy
import tempfile
from itertools import islice

from annotated_transformer import grammar, preset
from annotated_transformer.batching import batches
from annotated_transformer.training import training_step

pairs = grammar(600, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)


def fresh():
    """Return a very small model, always with the same start."""
    torch.manual_seed(3)
    sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2}
    return Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes))


# %%
class Killed(Exception):
    pass


def kill(line):
    if line["step"] == 50:
        raise Killed


config = TrainingConfig(steps=60, max_tokens=200, grad_accum_steps=2, save_every=20)
with tempfile.TemporaryDirectory() as folder:
    straight = train(fresh(), tokenizer, pairs, config, folder=f"{folder}/straight")
    broken_off = Path(folder, "broken")
    try:
        train(fresh(), tokenizer, pairs, config, folder=broken_off, report=kill)
    except Killed:
        print("left:", [path.name for path in run_folder.checkpoints(broken_off)])
    broken = train(fresh(), tokenizer, pairs, config, folder=broken_off)
    lines = map(json.loads, Path(broken_off, run_folder.LOG).read_text().splitlines())
    print("steps in the log:", [line["step"] for line in lines if "epoch" in line])
different = 0
for name, weights in straight.state_dict().items():
    different += int((weights != broken.state_dict()[name]).sum())
print("numbers that differ:", different)

# %% [markdown]
# The steps from 40 to 50 were made twice, and the log shows them once. On one machine, with the same number of threads and the same release of PyTorch, the weights are equal to the last bit.
#
# ### Why are the weights not enough?
#
# If you go on from the weights and the step alone, the loss jumps, in [one test](../book/troubleshooting.md#it-is-worse-after-resuming) from 1.92 to 2.03. Adam begins again with empty averages, and in its first step it moves *every* weight by [the full rate](16_schedule.ipynb#why-are-the-first-steps-the-worst), on the word of a single batch. At the start of a run the warm-up keeps that rate tiny; in the middle nothing does. We let a run of 60 steps make its next step twice, with its averages and without. How far does a weight of the layers move, as a root of the mean square and in units of the rate?


# %% tags=["nbval-ignore-output"]
RATE = 0.001
corpus = encode_pairs(tokenizer, pairs)


def adam_for(model):
    adam = make_adam(model)
    adam.param_groups[0]["lr"] = RATE
    return adam


def length_of_next_step(model, optimizer, group):
    weights = [*model.encoder.parameters(), *model.decoder.parameters()]
    before = torch.cat([p.detach().flatten() for p in weights])
    training_step(SmoothedLoss(model), group, optimizer)
    step = torch.cat([p.detach().flatten() for p in weights]) - before
    return (step.square().mean().sqrt() / RATE).item()


trained = fresh()
optimizer = adam_for(trained)
*groups, following = islice(group_batches(batches(corpus, 200), 1), 61)
for group in groups:
    training_step(SmoothedLoss(trained), group, optimizer)
forgetful = copy.deepcopy(trained)
with_averages = length_of_next_step(trained, optimizer, following)
without = length_of_next_step(forgetful, adam_for(forgetful), following)
print(f"with its averages {with_averages:.2f}, without {without:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 2 * with_averages < without

# %% [markdown]
# Several times the length, and without the direction that 60 batches had agreed on.
