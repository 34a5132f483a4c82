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


def rank_and_world_size() -> tuple[int, int]:
    """Return the number of this process and of all that train together: (0, 1) for one alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def all_reduce_sum(number: Tensor) -> Tensor:
    """Return the sum of a number over all processes."""
    if dist.is_initialized():
        dist.all_reduce(number)
    return number


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


def run(training: Training) -> None:
    """Train until the last step or the end of patience; raises Stopped after a signal."""
    config, (rank, world_size) = training.config, rank_and_world_size()
    folder = training.folder if rank == 0 else None  # the first process writes for all
    loss = DDP(training.loss, broadcast_buffers=False) if world_size > 1 else training.loss
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


def validation_loss(model: Transformer, corpus: EncodedCorpus, max_tokens: int) -> float:
    """Return the mean loss in nats a target token, without label smoothing and dropout."""
    loss, (rank, world_size) = SmoothedLoss(model, label_smoothing=0), rank_and_world_size()
    device, total = model.embedding.weight.device, torch.zeros(2, dtype=torch.float64)
    with evaluating(model):
        for batch in batches(corpus, max_tokens, rank=rank, world_size=world_size):
            tokens = (batch.target[:, 1:] != PAD).sum()
            total += torch.stack([loss(*batch.to(device)).double().cpu(), tokens])
    return float(torch.div(*all_reduce_sum(total)))


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


def state_of(training: Training) -> dict[str, Any]:
    """Return all that is needed to continue, as tensors, numbers and text."""
    return {
        **{name: getattr(training, name) for name in NUMBERS},
        "model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(),
        "config": asdict(training.model.config), "tokenizer": training.tokenizer.to_json(),
    }  # fmt: skip


def load_checkpoint(training: Training, path: Path) -> None:
    """Go back to a checkpoint; raises ValueError if it is damaged or another model's."""
    content = run_folder.read_checkpoint(path)
    if content["config"] != asdict(training.model.config):
        raise ValueError(f"{path} is the checkpoint of another model: move it away")
    training.model.load_state_dict(content["model"])
    training.optimizer.load_state_dict(content["optimizer"])
    vars(training).update({name: content[name] for name in NUMBERS})


def settings_of(training: Training) -> dict[str, Any]:
    """Return all that decides how a training goes, as JSON can hold it."""
    return {
        **{f"training.{name}": value for name, value in asdict(training.config).items()},
        **{f"model.{name}": value for name, value in asdict(training.model.config).items()},
        "tokenizer": training.tokenizer.sha256, "pairs": training.corpus.sha256,
        "validation": training.held_out.sha256, "scored": training.score is not None,
        "precision": training.loss.precision,
    }  # fmt: skip


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
