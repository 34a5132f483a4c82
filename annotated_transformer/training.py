import itertools
import json
import math
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adam
from tqdm import tqdm

from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    PlannedBatches,
    check_fits,
    encode_pairs,
    load_batches,
    plan_batches,
)
from annotated_transformer.data import Pair
from annotated_transformer.masks import PAD
from annotated_transformer.model_io import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    atomic_write,
    check_vocabulary,
    folder_lock,
    load_model,
    save_model,
)
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

# --- The loss as a module ---


class SmoothedLoss(nn.Module):
    """The label-smoothed loss of a batch in nats, summed over real target tokens (section 5.4)."""

    precision = "fp32"

    def __init__(self, model: Transformer, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        states = self.model.decode(target[:, :-1], self.model.encode(source), source)
        labels = target[:, 1:]
        real = labels != PAD
        logits = self.model.embedding.logits(states[real])
        return label_smoothed_loss(logits, labels[real], self.label_smoothing)


# --- The settings ---


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults suit the `tiny` model and the grammar. Checked when made."""

    steps: int = 1300
    """Updates of the weights."""
    max_tokens: int = 384
    """Positions of a batch, on either side, padding included."""
    grad_accum_steps: int = 1
    """Batches per update; more of them take more time and no more memory."""
    warmup: int = 200
    """Steps until the learning rate is at its peak."""
    lr_scale: float = 0.2
    """Times the paper's learning rate."""
    label_smoothing: float = 0.1
    """Probability given to all tokens alike."""
    grad_clip: float | None = None
    """Longest gradient; a longer one is shortened to it. The paper has none."""
    seed: int = 0
    """Decides the order of the batches and what dropout drops."""
    save_every: int = 500
    """Steps between two checkpoints, and between two validations."""
    save_minutes: float = 10
    """Minutes after which the state is saved in any case."""
    keep_checkpoints: int = 5
    """Regular checkpoints to keep."""
    patience: int | None = None
    """Stop after so many validations without a better score."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            rate = field.name in ("label_smoothing", "seed")
            if value is not None and not (0 <= value if rate else 0 < value) or value == math.inf:
                raise ValueError(f"{field.name} must be above 0, not {value}")
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing must be below 1, not {self.label_smoothing}")


# --- One process, or several ---


def rank_and_world_size() -> tuple[int, int]:
    """Return the number of this process and of all that train together: (0, 1) for one alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def all_reduce_sum(number: Tensor) -> Tensor:
    """Return the sum of a number over all processes."""
    if dist.is_initialized():
        dist.all_reduce(number)
    return number


# --- One update ---


def training_step(
    loss: nn.Module, group: Sequence[Batch], optimizer: Adam, grad_clip: float | None = None
) -> Tensor:
    """Update the weights once, with the mean gradient over all real target tokens of a group.

    Returns loss (summed), tokens and gradient norm, (3,). A gradient that is not finite changes
    nothing; its norm tells. Several processes each give their share of the group.
    """
    (_, world_size), parallel = rank_and_world_size(), isinstance(loss, DistributedDataParallel)
    tokens = all_reduce_sum(torch.stack([(b.target[:, 1:] != PAD).sum() for b in group]).sum())
    total = torch.zeros((), device=tokens.device)
    for number, batch in enumerate(group, start=1):
        # DDP averages the gradients over the processes, in the last batch only
        with loss.no_sync() if parallel and number < len(group) else nullcontext():
            summed = loss(*batch)
            (summed * world_size / tokens).backward()
        total += summed.detach()
    parameters = [p for p in loss.parameters() if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters])
    if grad_clip is not None:
        clip_grads_with_norm_(parameters, grad_clip, norm)
    # Where this is 1, Adam leaves everything as it is
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined] # not annotated
    optimizer.step()
    optimizer.zero_grad()
    return torch.stack([all_reduce_sum(total), tokens, norm])


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Draw all random numbers inside the block from these; afterwards all is as before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(Random(str(numbers)).getrandbits(63))
        yield


# --- The state of a training ---

TRAINING, LOG, CHECKPOINTS = "training.json", "log.jsonl", "checkpoints"
MAY_CHANGE = ("steps", "save_every", "save_minutes", "keep_checkpoints", "patience")
REPORT_EVERY = 50  # steps


@dataclass
class TrainingState:
    """A training on its way: all that a checkpoint holds."""

    model: Transformer
    tokenizer: Tokenizer
    optimizer: Adam
    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next one of the epoch
    best_score: float = -math.inf
    waited: int = 0  # validations since the best score

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        content = {name: getattr(self, name) for name in NUMBERS}
        content |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        content |= {"config": asdict(self.model.config), "tokenizer": self.tokenizer.to_json()}
        with atomic_write(path) as aside:
            torch.save(content, aside)

    def load(self, path: Path) -> None:
        """Go back to a saved state; raises ValueError if it is damaged or another model's."""
        content = read_checkpoint(path)
        try:
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{path} is a checkpoint of another model: {error}") from error
        for name in NUMBERS:
            setattr(self, name, content[name])


NUMBERS = ("step", "epoch", "batch", "best_score", "waited")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, which cannot run code; raises ValueError if the file is not one."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if content["step"] != int(path.stem[-8:]) or not {*NUMBERS, "model"} <= {*content}:
            raise ValueError("it was renamed, or is something else")
        return content
    except Exception as error:  # torch.load raises many kinds
        raise ValueError(f"{path} is not a whole checkpoint ({error}): move it away") from error


def checkpoints(folder: Path, kind: str = "step") -> list[Path]:
    """Return the checkpoints of a training, oldest first; kind is step (regular) or stop."""
    return sorted((folder / CHECKPOINTS).glob(f"{kind}-{'[0-9]' * 8}.pt"))


def save_checkpoint(state: TrainingState, folder: Path, regular: bool, keep: int) -> None:
    """Save the state; keep the last regular checkpoints, and one between them only if it is last."""
    kind = "step" if regular else "stop"
    state.save(folder / CHECKPOINTS / f"{kind}-{state.step:08}.pt")
    for path in [*checkpoints(folder)[:-keep], *checkpoints(folder, "stop")]:
        if path.stem != f"{kind}-{state.step:08}":
            path.unlink()


# --- A folder for a training ---


def settings_of(
    state: TrainingState, config: TrainingConfig, corpus: EncodedCorpus, held_out: EncodedCorpus,
    scored: bool, precision: str,
) -> dict[str, Any]:  # fmt: skip
    """Return all that decides how a training goes, as JSON can hold it."""
    return {
        **{f"training.{name}": value for name, value in asdict(config).items()},
        **{f"model.{name}": value for name, value in asdict(state.model.config).items()},
        "tokenizer": state.tokenizer.sha256, "pairs": corpus.sha256,
        "validation": held_out.sha256, "scored": scored, "precision": precision,
    }  # fmt: skip


def begin_in_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings in a new folder, or check that they are those of the training there.

    Raises FileExistsError if the folder belongs to something else, ValueError for other settings.
    """
    path, begun = folder / TRAINING, bool(checkpoints(folder) or (folder / WEIGHTS).exists())
    foreign = [n for n in (CONFIG, TOKENIZER, WEIGHTS, LOG, CHECKPOINTS) if (folder / n).exists()]
    if foreign and not path.exists():
        remedy = "take another folder"
        raise FileExistsError(f"{folder} holds {', '.join(foreign)} and no {TRAINING}: {remedy}")
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else settings
        _ = before["training.steps"], before["tokenizer"]
    except (ValueError, KeyError, TypeError) as error:
        remedy = "take another folder"
        raise ValueError(f"{path} does not hold the settings of a training: {remedy}") from error
    for name in {**before, **settings} if begun or checkpoints(folder, "stop") else ():
        if name.removeprefix("training.") in MAY_CHANGE or before.get(name) == settings.get(name):
            continue
        raise ValueError(
            f"{folder} holds a training with {name}={before.get(name)}, not {settings.get(name)}: "
            "repeat its settings to continue it, or take another folder"
        )
    with atomic_write(path) as aside:
        aside.write_text(json.dumps(settings, indent=2), encoding="utf-8")


class Stopped(Exception):
    """A training was asked to stop, and has saved its state."""


@contextmanager
def stop_signal(listen: bool) -> Iterator[threading.Event]:
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


# --- What a training reports ---


class Progress(NamedTuple):
    """A line of the log; means are over the steps since the last one."""

    step: int
    epoch: float
    loss: float  # nats a target token, with label smoothing
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float  # target tokens without padding
    validation_loss: float | None = None  # nats a target token, without label smoothing
    score: float | None = None


def summarize(
    updates: list[Tensor], seconds: float, step: int, epoch: float, lr: float
) -> Progress:
    """Sum up what some steps returned; raises FloatingPointError for a bad gradient."""
    loss, tokens, norm = torch.stack(updates).double().cpu().T
    if not norm.isfinite().all():
        first = step - len(norm) + 1 + int((~norm.isfinite()).double().argmax())
        raise FloatingPointError(
            f"the gradient of step {first} is not finite; it was not used. Try a smaller lr_scale, "
            "a longer warmup, or grad_clip=1.0, in another folder"
        )
    mean, speed = float(loss.sum() / tokens.sum()), float(tokens.sum()) / seconds
    return Progress(step, round(epoch, 3), mean, lr, float(norm.mean()), round(speed))


class Log:
    """The log of a training, one JSON object a line; `path` None keeps none."""

    def __init__(self, path: Path | None, step: int) -> None:
        self.path = path
        if path is not None:  # forget what came after the checkpoint that we continue from
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            kept = [
                line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step
            ]
            with atomic_write(path) as aside:
                aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            self.write({"step": step, **environment()})

    def write(self, record: dict[str, Any]) -> None:
        """Append a line with the time of day; values that are None are left out."""
        if self.path is not None:
            record = {**record, "time": time.strftime("%Y-%m-%d %H:%M:%S%z")}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({k: v for k, v in record.items() if v is not None}) + "\n")


def environment() -> dict[str, Any]:
    """Return what a training's numbers depend on beside its settings."""
    return {
        "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "threads": torch.get_num_threads(),
        "processes": rank_and_world_size()[1],
    }  # fmt: skip


def validation_loss(model: Transformer, corpus: EncodedCorpus, max_tokens: int) -> float:
    """Return the mean loss in nats a target token, without label smoothing and dropout."""
    device, total = next(model.parameters()).device, torch.zeros(2, dtype=torch.float64)
    plan = plan_batches(corpus.lengths, max_tokens, seed=0, epoch=0)
    loss = SmoothedLoss(model, label_smoothing=0)
    with evaluating(model):
        for batch in load_batches(PlannedBatches(corpus, plan, *rank_and_world_size())):
            summed = loss(*batch.to(device))
            total += torch.stack([summed.double().cpu(), (batch.target[:, 1:] != PAD).sum()])
    summed, tokens = all_reduce_sum(total).tolist()
    return float(summed / tokens)


# --- The loop ---


def batch_stream(
    corpus: EncodedCorpus, config: TrainingConfig, epoch: int, start: int, gpu: bool
) -> Iterator[tuple[int, int, float, Batch]]:
    """Yield this process's share of batch after batch, from number `start` of an epoch on.

    With each comes its epoch, the number of the next one, and the share of the epoch that is done.
    """
    for number in itertools.count(epoch):
        plan = plan_batches(corpus.lengths, config.max_tokens, config.seed, number)
        batches = PlannedBatches(corpus, plan, *rank_and_world_size())
        for after, batch in enumerate(load_batches(batches, start, gpu), start=start + 1):
            yield number, after, after / len(plan), batch
        start = 0


def validate(
    state: TrainingState, progress: Progress, held_out: EncodedCorpus,
    score: Callable[[Transformer], float] | None, max_tokens: int, folder: Path | None,
) -> Progress:  # fmt: skip
    """Add loss and score on the held-out pairs; the best weights so far are saved as the model."""
    loss = validation_loss(state.model, held_out, max_tokens) if len(held_out) else None
    points = score(state.model) if score is not None else None
    value = points if points is not None else -loss if loss is not None else -math.inf
    state.waited = 0 if value > state.best_score else state.waited + 1
    if value > state.best_score:
        state.best_score = value
        if folder is not None:
            save_model(state.model, state.tokenizer, folder)
    return progress._replace(validation_loss=loss, score=points)


def run(
    state: TrainingState, loss: SmoothedLoss, config: TrainingConfig, corpus: EncodedCorpus,
    held_out: EncodedCorpus, score: Callable[[Transformer], float] | None,
    report: Callable[[Progress], None], folder: Path | None,
) -> None:  # fmt: skip
    """Train until the last step, or until patience runs out.

    Raises Stopped after a signal, FloatingPointError after a gradient that is not finite.
    """
    model, (rank, world_size) = state.model, rank_and_world_size()
    device, listen = next(model.parameters()).device, folder is not None
    folder = folder if rank == 0 else None  # the first process writes for all
    parallel: nn.Module = loss
    if world_size > 1:
        parallel = DistributedDataParallel(loss, broadcast_buffers=False)
    log = Log(folder and folder / LOG, state.step)
    stream = batch_stream(corpus, config, state.epoch, state.batch, device.type == "cuda")
    updates: list[Tensor] = []
    saved = started = time.monotonic()
    bar = tqdm(total=config.steps, initial=state.step, unit="step", disable=rank > 0 or None)
    model.train()
    with bar, stop_signal(listen) as stop:
        while state.step < config.steps and state.waited < (config.patience or math.inf):
            # One update
            taken = [next(stream) for _ in range(config.grad_accum_steps)]
            state.epoch, state.batch, share, _ = taken[-1]
            group = [batch.to(device) for *_, batch in taken]
            lr = learning_rate(state.step + 1, model.config.d_model, config.warmup, config.lr_scale)
            state.optimizer.param_groups[0]["lr"] = lr
            with seeded(config.seed, state.step, rank):
                updates.append(training_step(parallel, group, state.optimizer, config.grad_clip))
            state.step += 1
            bar.update()
            # What is due after it?
            due = state.step % config.save_every == 0 or state.step == config.steps
            late = folder is not None and time.monotonic() - saved > 60 * config.save_minutes
            stopping = bool(all_reduce_sum(torch.tensor(float(stop.is_set()))))
            if due or late or stopping or state.step % REPORT_EVERY == 0:
                seconds = time.monotonic() - started
                progress = summarize(updates, seconds, state.step, state.epoch + share, lr)
                if due:
                    progress = validate(state, progress, held_out, score, config.max_tokens, folder)
                if rank == 0:
                    log.write(progress._asdict())
                    report(progress)
                bar.set_postfix(loss=f"{progress.loss:.3f}")
                updates, started = [], time.monotonic()
            if folder and (due or late or stopping):
                save_checkpoint(state, folder, due, config.keep_checkpoints)
                saved = time.monotonic()
            if stopping:
                raise Stopped(
                    f"stopped at step {state.step}: the same command continues from there"
                )


# --- The function that you call ---


def train(
    model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair] | EncodedCorpus,
    config: TrainingConfig = TrainingConfig(), *,
    validation: Sequence[Pair] | EncodedCorpus = (),
    score: Callable[[Transformer], float] | None = None,
    folder: str | Path | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
    loss: SmoothedLoss | None = None,
) -> Transformer:  # fmt: skip
    """Train a model on pairs and return it, in evaluation mode (section 5).

    Calls `report` every 50 steps, and every `save_every` steps measures the loss on `validation`
    and `score`, where higher is better. A folder gets a log, checkpoints, and the weights with the
    best score, which are also returned; a training that it holds already is continued, to the bit.
    Raises ValueError for pairs, tokenizer or folder that do not fit, and what the loop raises.
    """
    corpus, held_out = (
        given if isinstance(given, EncodedCorpus) else encode_pairs(tokenizer, given)
        for given in (pairs, validation)
    )
    check_vocabulary(model, tokenizer)
    if not len(corpus):
        raise ValueError("there are no sentence pairs to train on")
    if config.patience and score is None and not len(held_out):
        raise ValueError("patience needs something to watch: give validation pairs, or a score")
    for part, name in ((corpus, "training"), (held_out, "validation")):
        check_fits(part.lengths, model.config.max_length, name, "the model has positions for")
        check_fits(part.lengths, config.max_tokens, name, "a batch holds")
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = Adam(parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    state, place = TrainingState(model, tokenizer, optimizer), Path(folder) if folder else None
    loss = loss or SmoothedLoss(model, config.label_smoothing)
    first = rank_and_world_size()[0] == 0
    with folder_lock(place) if place and first else nullcontext():
        if place and first:
            scored = score is not None
            settings = settings_of(state, config, corpus, held_out, scored, loss.precision)
            begin_in_folder(place, settings)
        if place and (found := [*checkpoints(place), *checkpoints(place, "stop")]):
            state.load(max(found, key=lambda path: path.stem[-8:]))
        run(state, loss, config, corpus, held_out, score, report, place)
        all_reduce_sum(torch.zeros(1))  # wait for the first process, which writes
        if place and state.best_score > -math.inf and (place / WEIGHTS).exists():
            model.load_state_dict(load_model(place)[0].state_dict())
        elif place and first:
            save_model(model, tokenizer, place)
    return model.eval()


# --- Averaging ---


def average_checkpoints(folder: str | Path, last: int = 5) -> tuple[Transformer, Tokenizer]:
    """Return the model whose weights are the mean of the last checkpoints (section 6.1).

    Raises FileNotFoundError if the folder of the training has fewer.
    """
    found = checkpoints(Path(folder))
    if not 0 < last <= len(found):
        raise FileNotFoundError(f"{folder} has {len(found)} checkpoints, {last} were asked for")
    content = read_checkpoint(found[-1])
    model = Transformer(TransformerConfig(**content["config"]))
    total = {
        name: torch.zeros_like(t, dtype=torch.float64) for name, t in model.state_dict().items()
    }
    for path in found[-last:]:
        for name, weights in read_checkpoint(path)["model"].items():
            total[name] += weights
    model.load_state_dict({name: weights / last for name, weights in total.items()})
    return model.eval(), Tokenizer.from_json(content["tokenizer"])
