import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
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

# --- The settings ---


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults suit the `tiny` model and the grammar. Checked when made."""

    steps: int = 1300  # updates of the weights
    max_tokens: int = 384  # positions of a batch on either side, padding included
    grad_accum_steps: int = 1  # batches per update: more time, no more memory
    warmup: int = 200  # steps until the learning rate is at its peak
    lr_scale: float = 0.2  # times the paper's learning rate
    label_smoothing: float = 0.1  # probability given to all tokens alike
    grad_clip: float | None = None  # longest gradient; a longer one is shortened to it
    seed: int = 0  # decides the order of the batches and what dropout drops
    save_every: int = 500  # steps between two checkpoints, and between two validations
    save_minutes: float = 10  # minutes after which the state is saved in any case
    keep_checkpoints: int = 5  # regular ones, the last
    patience: int | None = None  # stop after so many validations without a better score

    def __post_init__(self) -> None:
        for field in fields(self):
            value, zero = getattr(self, field.name), field.name in ("label_smoothing", "seed")
            if value is not None and not (0 < value < math.inf or (zero and value == 0)):
                raise ValueError(f"{field.name} must be above 0, not {value}")


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
    parallel = loss if isinstance(loss, DistributedDataParallel) else None
    tokens = all_reduce_sum(torch.stack([(b.target[:, 1:] != PAD).sum() for b in group]).sum())
    total = torch.zeros((), device=tokens.device)
    for number, batch in enumerate(group, start=1):
        # The processes average their gradients once, in the last batch
        with parallel.no_sync() if parallel and number < len(group) else nullcontext():
            summed = loss(*batch)
            (summed * rank_and_world_size()[1] / tokens).backward()
        total += summed.detach()
    parameters = list(loss.parameters())
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
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


# --- A training on its way ---


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
    best_score: float = -math.inf
    waited: int = 0  # validations since the best score
    batches_per_epoch: int = 1  # of this epoch

    def to_checkpoint(self) -> dict[str, Any]:
        """Return all that is needed to continue, as tensors, numbers and text."""
        weights = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        made_of = {"config": asdict(self.model.config), "tokenizer": self.tokenizer.to_json()}
        return {name: getattr(self, name) for name in NUMBERS} | weights | made_of

    def load(self, path: Path) -> None:
        """Go back to a checkpoint; raises ValueError if it is damaged or another model's."""
        content = run_folder.read_checkpoint(path)
        try:
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
            self.__dict__ |= {name: content[name] for name in NUMBERS}
        except (RuntimeError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is not a checkpoint of this model: {error}") from error

    def settings(self) -> dict[str, Any]:
        """Return all that decides how the training goes, as JSON can hold it."""
        return {
            **{f"training.{name}": value for name, value in asdict(self.config).items()},
            **{f"model.{name}": value for name, value in asdict(self.model.config).items()},
            "tokenizer": self.tokenizer.sha256, "pairs": self.corpus.sha256,
            "validation": self.held_out.sha256, "scored": self.score is not None,
            "precision": self.loss.precision,
        }  # fmt: skip


NUMBERS = ("step", "epoch", "batch", "best_score", "waited")


# --- Told to stop ---


class Stopped(Exception):
    """A training was asked to stop, and has saved its state."""


@contextmanager
def stop_signal(listen: bool) -> Iterator[threading.Event]:
    """Give an event that SIGTERM or SIGINT sets; afterwards signals do what they did before."""
    stop, main = threading.Event(), threading.current_thread() is threading.main_thread()
    kinds = (signal.SIGTERM, signal.SIGINT) if listen and main else ()
    before = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in kinds}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


# --- What a training reports ---

REPORT_EVERY = 50  # steps


def summarize(training: Training, updates: list[Tensor], seconds: float) -> dict[str, Any]:
    """Return means over the last updates: a line of the log; losses are in nats a target token.

    Raises FloatingPointError for a gradient that was not finite.
    """
    loss, tokens, norm = torch.stack(updates).double().cpu().T
    if not norm.isfinite().all():
        first = training.step - len(norm) + 1 + int((~norm.isfinite()).double().argmax())
        raise FloatingPointError(
            f"the gradient of step {first} is not finite; it was not used. Try a smaller lr_scale, "
            "a longer warmup, or grad_clip=1.0, in another folder"
        )
    return {
        "step": training.step,
        "epoch": round(training.epoch + training.batch / training.batches_per_epoch, 3),
        "loss": float(loss.sum() / tokens.sum()),
        "learning_rate": training.optimizer.param_groups[0]["lr"],
        "gradient_norm": float(norm.mean()),
        "tokens_per_second": round(float(tokens.sum()) / seconds),
    }


def validation_loss(model: Transformer, corpus: EncodedCorpus, max_tokens: int) -> float:
    """Return the mean loss in nats a target token, without label smoothing and dropout."""
    loss, (rank, world_size) = SmoothedLoss(model, label_smoothing=0), rank_and_world_size()
    device, total = model.embedding.weight.device, torch.zeros(2, dtype=torch.float64)
    with evaluating(model):
        for batch in batches(corpus, max_tokens, rank=rank, world_size=world_size):
            tokens = (batch.target[:, 1:] != PAD).sum()
            total += torch.stack([loss(*batch.to(device)).double().cpu(), tokens])
    summed, tokens = all_reduce_sum(total)
    return float(summed / tokens)


def validate(training: Training) -> dict[str, float]:
    """Return loss and score on the held-out pairs; the best weights are saved as the model."""
    model, held_out, found = training.model, training.held_out, dict[str, float]()
    if len(held_out):
        found["validation_loss"] = validation_loss(model, held_out, training.config.max_tokens)
    if training.score is not None:
        found["score"] = training.score(model)
    value = found.get("score", -found.get("validation_loss", math.inf))
    training.waited += 1
    if value > training.best_score:
        training.best_score, training.waited = value, 0
        if training.folder is not None and rank_and_world_size()[0] == 0:
            model_io.save_model(model, training.tokenizer, training.folder)
    return found


# --- The loop ---


def batch_stream(training: Training) -> Iterator[Batch]:
    """Yield this process's share of batch after batch, without end, from where training stands."""
    config, device = training.config, training.model.embedding.weight.device
    while True:
        loader = batches(
            training.corpus, config.max_tokens, config.seed, training.epoch, training.batch,
            *rank_and_world_size(), device.type == "cuda",
        )  # fmt: skip
        training.batches_per_epoch = training.batch + len(loader)
        for batch in loader:
            training.batch += 1
            yield batch.to(device)
        training.epoch, training.batch = training.epoch + 1, 0


def run(training: Training) -> None:
    """Train until the last step, or until patience runs out.

    Raises Stopped after a signal, FloatingPointError after a gradient that is not finite.
    """
    config, (rank, world_size) = training.config, rank_and_world_size()
    loss: nn.Module = training.loss
    if world_size > 1:
        loss = DistributedDataParallel(loss, broadcast_buffers=False)
    stream, updates = batch_stream(training), list[Tensor]()
    start = saved = time.monotonic()
    bar = tqdm(total=config.steps, initial=training.step, unit="step", disable=rank > 0 or None)
    training.model.train()
    with bar, stop_signal(training.folder is not None) as stop:
        while training.step < config.steps and training.waited < (config.patience or math.inf):
            updates.append(next_update(training, loss, stream))
            bar.update()
            due = training.step % config.save_every == 0 or training.step == config.steps
            late = rank == 0 and time.monotonic() - saved > 60 * config.save_minutes
            stopping = bool(all_reduce_sum(torch.tensor(float(stop.is_set()))))
            if due or late or stopping or training.step % REPORT_EVERY == 0:
                progress = summarize(training, updates, time.monotonic() - start)
                tell(training, progress | (validate(training) if due else {}))
                bar.set_postfix(loss=f"{progress['loss']:.3f}")
                updates, start = [], time.monotonic()
            if (due or late or stopping) and training.folder and rank == 0:
                content, keep = training.to_checkpoint(), config.keep_checkpoints
                run_folder.save_checkpoint(training.folder, content, due, keep)
                saved = time.monotonic()
            if stopping:
                raise Stopped(f"stopped at step {training.step}: the same command continues there")


def next_update(training: Training, loss: nn.Module, stream: Iterator[Batch]) -> Tensor:
    """Make the next step: rate, random numbers and batches follow from its number."""
    config, d_model = training.config, training.model.config.d_model
    group = [next(stream) for _ in range(config.grad_accum_steps)]
    lr = learning_rate(training.step + 1, d_model, config.warmup, config.lr_scale)
    training.optimizer.param_groups[0]["lr"] = lr
    with seeded(config.seed, training.step, rank_and_world_size()[0]):
        update = training_step(loss, group, training.optimizer, config.grad_clip)
    training.step += 1
    return update


def tell(training: Training, progress: dict[str, Any]) -> None:
    """Write the log and report, in the first process."""
    if rank_and_world_size()[0] == 0:
        if training.folder is not None:
            run_folder.write_log(training.folder, progress)
        training.report(progress)


# --- The function that you call ---


def train(
    model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair] | EncodedCorpus,
    config: TrainingConfig = TrainingConfig(), *,
    validation: Sequence[Pair] | EncodedCorpus = (),
    score: Callable[[Transformer], float] | None = None, folder: str | Path | None = None,
    report: Callable[[dict[str, Any]], None] = lambda progress: None,
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
    model_io.check_vocabulary(model, tokenizer)
    if not len(corpus):
        raise ValueError("there are no sentence pairs to train on")
    if config.patience and score is None and not len(held_out):
        raise ValueError("patience needs something to watch: give validation pairs, or a score")
    for part, name in ((corpus, "training"), (held_out, "validation")):
        check_fits(part.lengths, model.config.max_length, name, "the model has positions for")
        check_fits(part.lengths, config.max_tokens, name, "a batch holds")
    parameters = [p for p in model.parameters() if p.requires_grad]
    training = Training(
        model, tokenizer, loss or SmoothedLoss(model, config.label_smoothing),
        Adam(parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True),
        config, corpus, held_out, score, report, None if folder is None else Path(folder),
    )  # fmt: skip
    if training.folder is None:
        run(training)
    else:
        run_in_folder(training, training.folder)
    return model.eval()


def run_in_folder(training: Training, folder: Path) -> None:
    """Begin or continue a training in a folder; the best model is left there."""
    rank, world_size = rank_and_world_size()
    with model_io.folder_lock(folder) if rank == 0 else nullcontext():
        if rank == 0:
            run_folder.begin_in_folder(folder, training.settings())
        if path := run_folder.last_checkpoint(folder):
            training.load(path)
        if all_reduce_sum(torch.tensor(float(training.step))) != training.step * world_size:
            raise ValueError(f"{folder} is not the same for all processes: put it on a shared disk")
        if rank == 0:
            run_folder.begin_log(folder, training.step, world_size)
        run(training)
        if rank == 0 and not (
            training.best_score > -math.inf and (folder / model_io.WEIGHTS).exists()
        ):
            model_io.save_model(training.model, training.tokenizer, folder)
        all_reduce_sum(torch.zeros(1))  # wait for the first process, which writes
        training.model.load_state_dict(model_io.load_model(folder)[0].state_dict())
