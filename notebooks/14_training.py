# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown] needs=["multi30k"]
# # Training
#
# This chapter trains the model: first to copy, then to translate real captions from German, in a loop that can be killed at any
# moment and goes on as if nothing had happened (sections 5.1 to 5.4 of the paper).
#
# We have a model that knows nothing, and all the parts that can teach it: [pairs](09_corpus.ipynb), [numbers](10_tokenization.ipynb),
# [batches](11_batching.ipynb), [a rate](12_schedule.ipynb) and [a loss](13_regularization.ipynb). What is missing is the loop that
# joins them. Its core is six lines long. Most of what can go wrong in them makes no noise: the model learns all the same, only worse.
# So each line gets a check before we trust it with an hour of work.

# %% tags=["export"]
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.resources import as_file, files
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adam
from tqdm import tqdm

from annotated_transformer.batching import (
    Batch,
    Example,
    batches,
    encode_pairs,
    plan_batches,
    shapes_of,
)
from annotated_transformer.corpus import Pair
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

# %%
import random
import tempfile
from itertools import islice

import matplotlib.pyplot as plt
import sacrebleu
import torch.nn.functional as F

from annotated_transformer.batching import collate, encode_source, pad
from annotated_transformer.corpus import grammar, multi30k
from annotated_transformer.figures import INK, KEY, QUERY, VALUE, style
from annotated_transformer.transformer import greedy_decode, preset

# %% [markdown]
# ## The loss of a batch
#
# The decoder learns all positions of a sentence at once. At each one it reads the *true* words so far, whatever it would have said
# itself, and is asked for the next. This is **teacher forcing**. So the target serves twice, one place apart: without its last
# token it is what the decoder reads, without its first it is what the decoder must say.


# %% tags=["export"]
def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss summed over the real target tokens of a batch, and how many those are.

    The decoder reads targets (B, T + 1) without the last token and must say them without the
    first.
    """
    logits = model(batch.source, batch.target[:, :-1])
    return label_smoothed_loss(logits, batch.target[:, 1:], smoothing)


# %% [markdown]
# Is the shift right? An honest model must not see the word that it is asked for. We change one target word and look where the loss
# changes: at that word, as the answer, and after it, as context, never before.

# %%
torch.manual_seed(0)
toy = Transformer(preset("tiny", vocabulary_size=20)).double().eval()


def losses(target):
    logits = toy(torch.tensor([[4, 5, 2]]), target[:, :-1])
    return F.cross_entropy(logits[0], target[0, 1:], reduction="none")


one, other = torch.tensor([[1, 7, 8, 9, 2]]), torch.tensor([[1, 7, 11, 9, 2]])
print([bool(a != b) for a, b in zip(losses(one), losses(other))])

# %% [markdown]
# ## The mean over what?
#
# The loss of an update is the mean over all real tokens it has seen:
#
# $$ \text{loss} = \frac{\sum_b \sum_t \text{loss}_{bt}}{\sum_b \text{length}_b} $$ (eq-token-mean)
#
# It is not the mean over sentences, nor over batches. There, a word in a short sentence would count more than one in a long sentence. That is why our loss returns a sum and a count,
# and divides at the last moment.
#
# It matters most where an update is made of several batches. The paper's 25,000 tokens fit on a large GPU and not on a small one. **Accumulation** is the way out: run the batches one after the other, add
# up their gradients, and update once. The gradient of a sum is the sum of the gradients, so the result must be that of the one large batch, to rounding. It is, if each sum is divided by the tokens of *all* batches. So these are counted first.
#
# The norm of the gradient tells whether a step can be trusted. Two things are done with it:
#
# - **Clipping**, by option: a gradient longer than `clip` is shortened to that length. The paper has none, and the warm-up makes it unnecessary here.
# - A gradient that is not finite must not touch the weights: one `nan` in an update is a `nan` in every weight. Adam's fused form can be told, on the device, to leave everything alone.


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
    keep: int = 5
    """Checkpoints to keep, beside the best."""
    patience: int | None = None
    """Stop after so many validations without a better score."""

    def __post_init__(self) -> None:
        check_training(self)


def check_training(config: TrainingConfig) -> None:
    """Raise ValueError for a number that no training can have."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in ("smoothing", "seed") and value is not None and not 0 < value < inf:
            raise ValueError(f"{field.name} must be above 0, not {value}")
    if not 0 <= config.smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, not {config.smoothing}")


# %% tags=["export"]
class Step(NamedTuple):
    """What one update saw: the loss summed over tokens, their number, the gradient's norm."""

    loss: Tensor
    tokens: Tensor
    norm: Tensor


def make_optimizer(model: Transformer) -> Adam:
    """Return Adam with the paper's numbers (section 5.3); the loop sets the learning rate."""
    return Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


def training_step(
    model: Transformer, group: Sequence[Batch], optimizer: Adam, config: TrainingConfig
) -> Step:
    """Update the weights once, with the mean gradient over all real tokens of some batches.

    A gradient that is not finite changes nothing; the norm returned tells.
    """
    tokens = torch.stack([(batch.target[:, 1:] != PAD).sum() for batch in group]).sum()
    total = torch.zeros((), device=tokens.device)
    optimizer.zero_grad()
    for batch in group:
        loss, _ = batch_loss(model, batch, config.smoothing)
        (loss / tokens).backward()
        total += loss.detach()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = get_total_norm(gradients)
    if config.clip is not None:
        clip_grads_with_norm_(model.parameters(), config.clip, norm)
    # Where this is 1, Adam leaves everything as it is (the attribute is not in its annotations)
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
    optimizer.step()
    return Step(total, tokens, norm)


# %% [markdown]
# Now the law of accumulation, in double precision: three small batches against one large one with the same twelve pairs, from the same start.

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
def weights_after(group, config=TrainingConfig()):
    """Return all weights after one step of plain gradient descent on a group of batches."""
    model = fresh(dropout=0.0).double()
    plain = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    training_step(model, group, plain, config)
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
# And a gradient that is not finite: we put a `nan` into one weight's gradient on its way, and look at the others.

# %%
model = fresh()
optimizer, group = make_optimizer(model), [collate(examples[:8])]
optimizer.param_groups[0]["lr"] = 0.01
training_step(model, group, optimizer, TrainingConfig())
before = [p.detach().clone() for p in model.parameters()]
hook = model.embedding.table.register_hook(lambda gradient: gradient * torch.nan)
step = training_step(model, group, optimizer, TrainingConfig())
hook.remove()
unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
print("norm:", float(step.norm), " weights unchanged:", unchanged)

# %% [markdown]
# ## Chance that can be repeated
#
# Two things in training are left to chance: the order of the batches and what dropout drops. The order follows from (seed, epoch), as [the chapter on batches](11_batching.ipynb) made it. We
# do the same for dropout: all random numbers of a step follow from (seed, step). So there is no state of a random number generator to save, and a run that goes on at step 500 draws what it would have drawn.
#
# The generator of the process is put back afterwards. Whoever calls us keeps their own chance.


# %% tags=["export"]
@contextmanager
def randomness(seed: int, step: int) -> Iterator[None]:
    """Draw all random numbers inside the block from (seed, step); afterwards all is as before."""
    with torch.random.fork_rng():
        torch.manual_seed(Random(f"{seed} {step}").getrandbits(63))
        yield


def endless_batches(
    examples: Sequence[Example], max_tokens: int, seed: int, start: int = 0
) -> Iterator[Batch]:
    """Yield epoch after epoch of batches, from batch number `start` of all epochs on."""
    epochs, first = divmod(start, batches_per_epoch(examples, max_tokens))
    for epoch in count(epochs):
        yield from batches(examples, max_tokens, seed, epoch, first)
        first = 0


def batches_per_epoch(examples: Sequence[Example], max_tokens: int) -> int:
    """Return the number of batches of an epoch, which is the same for all."""
    return len(plan_batches(shapes_of(examples), max_tokens, seed=0, epoch=0))


# %%
with randomness(seed=0, step=7):
    first = torch.rand(3)
torch.rand(100)
with randomness(seed=0, step=7):
    again = torch.rand(3)
print("the same numbers:", torch.equal(first, again))

whole = list(islice(endless_batches(examples, 200, seed=0), 150))
rest = next(endless_batches(examples, 200, seed=0, start=149))
assert torch.equal(rest.source, whole[149].source)
print(batches_per_epoch(examples, 200), "batches an epoch; number 149 found without the others")

# %% [markdown]
# ## A checkpoint that is whole
#
# A power cut, a full disk, an impatient administrator: a training that takes days will be stopped. A **checkpoint** must hold all that decides how it goes on. For Adam that is three times the weights: the weights themselves, and both moments
# [of each](12_schedule.ipynb). The step number decides the rest: the rate, the batches and the dropout.


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
# A file that is half written when the machine stops is worse than none, since it looks like one. So we write beside the place, make sure that the disk has it, and rename. Renaming is all or nothing: under the name stands the old file or the new one.
#
# PyTorch's usual format for weights is a pickle, and a pickle is a program: whoever loads one runs it. **safetensors** holds numbers and their names, and a few notes. Nothing in it can run.


# %% tags=["export"]
@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; at the end the file stands under its name, whole, or not at all."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield aside
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all; raises OSError if there is no room for it."""
    with whole_file(path) as aside:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside, notes)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error
        aside.chmod(0o644)  # as other files are; the library lets only its owner read


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


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step stands."""
    return folder / f"step-{step:08}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


# %% [markdown]
# Reading trusts nothing. The file may be damaged, or the checkpoint of another model. Both are found before a single weight is touched.


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


def load_checkpoint(run: Run, path: Path) -> None:
    """Put a run back to where it was at a checkpoint.

    Raises ValueError if the file is damaged, or is the checkpoint of another model.
    """
    tensors, notes = read_tensors(path)
    for parameter in run.model.parameters():
        run.optimizer.state[parameter] = {
            "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter),
            "step": torch.zeros((), device=parameter.device),
        }  # fmt: skip
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
# ## A folder for a run
#
# A run that can be continued lives in a folder. Two processes in one folder would overwrite each other's checkpoints, so the first one locks it. The lock belongs to the process, and the system takes it back however the process ends.


# %% tags=["export"]
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
TRAINING, LOG, CHECKPOINTS = "training.json", "log.jsonl", "checkpoints"
MAY_CHANGE = ("steps", "save_every", "keep", "patience")  # on resuming


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def describe(model: Transformer, tokenizer: Tokenizer, folder: Path) -> None:
    """Write all of a model but its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TOKENIZER, tokenizer.to_json())
    write_text(folder / CONFIG, json.dumps(asdict(model.config), indent=2))


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
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
# What if the folder holds a run with another learning rate? To go on with it would give a run that no command describes. So the settings are kept beside the checkpoints and compared. A few may change: how long to train, and how often to save.


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
        "tokens": int(shapes_of(examples).sum()),
    }


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
# ## Keeping a model
#
# A trained model is a folder of three files: the weights, the configuration and the tokenizer. A model without its tokenizer is worthless, and with another one it talks nonsense without any error. So the weights carry the hash of theirs.


# %% tags=["export"]
def check_vocabulary(model: Transformer, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has ids for which the model has no embedding."""
    if len(tokenizer) > model.config.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} entries, the model "
            f"{model.config.vocabulary_size}: make it with vocabulary_size=len(tokenizer)"
        )


# %% tags=["export"]
def save_model(
    model: Transformer, tokenizer: Tokenizer, folder: str | Path, half: bool = False
) -> None:
    """Write a model into a folder: configuration, tokenizer, weights (half precision if asked)."""
    folder = Path(folder)
    describe(model, tokenizer, folder)
    weights = {n: t.half() if half else t for n, t in model.state_dict().items()}
    write_tensors(folder / WEIGHTS, weights, {"tokenizer": tokenizer.sha256})


def load_config(path: Path) -> TransformerConfig:
    """Read a configuration; raises ValueError if the file is not one."""
    try:
        return TransformerConfig(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a model's configuration: {error}") from error


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
# ## A log that agrees with the weights
#
# What is not written down has not been measured. The log gets one line of JSON for every 50 steps. When a run goes on from step 500, the lines of its steps 501 to 540, which are lost, must not stay in the log.


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


class Log:
    """The log of a run, one JSON object a line; without a folder, nowhere."""

    def __init__(self, folder: Path | None, step: int) -> None:
        self.path = folder / LOG if folder else None
        if self.path is not None:  # forget what came after the checkpoint that we go on from
            lines = self.path.read_text().splitlines() if self.path.exists() else []
            whole = [line for line in lines if line.endswith("}")]
            kept = [line for line in whole if json.loads(line)["step"] <= step]
            kept.append(json.dumps({"step": step, **machine(), "time": now()}))
            write_text(self.path, "".join(f"{line}\n" for line in kept))

    def write(self, progress: Progress) -> None:
        """Append a line."""
        if self.path is not None:
            record = {k: v for k, v in progress._asdict().items() if v is not None}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**record, "time": now()}) + "\n")


# %% [markdown]
# Reading a number from a GPU makes the processor wait until all work is done. So the sums of 50 steps are read at once. Only then is a gradient that was not finite noticed, and reported with its step. No harm was done in between: its update was left out.


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
                "not used. Try a smaller factor, a longer warmup, or clip=1.0"
            )
        speed = float(tokens.sum()) / (time.perf_counter() - self.start)
        mean = float(loss.sum() / tokens.sum())
        return Progress(step, round(epoch, 3), mean, rate, float(norm.mean()), round(speed))


# %% [markdown]
# ## Is it getting better?
#
# The loss on the training pairs falls even when a model learns them by heart. So every `save_every` steps we measure on pairs that it does not learn from. The **validation loss** is measured as the model will be used: without dropout and without smoothing. Its exponential is the perplexity.
#
# We also want to know how well it translates. That takes decoding and a score, which later chapters build. The loop need not know them: it takes a function from a model to a number, where higher is better. If `patience` validations in a row bring no better score, training ends; this is **early stopping**.


# %% tags=["export"]
def to_device(batch: Batch, model: Transformer) -> Batch:
    """Bring a batch to where the model is."""
    device = next(model.parameters()).device
    return Batch(batch.source.to(device), batch.target.to(device))


def validation_loss(model: Transformer, examples: Sequence[Example], max_tokens: int) -> float:
    """Return the mean loss a target token, without smoothing and without dropout, in nats."""
    with evaluating(model):
        sums = [
            torch.stack(batch_loss(model, to_device(batch, model), smoothing=0))
            for batch in batches(examples, max_tokens, seed=0, epoch=0)
        ]
    loss, tokens = torch.stack(sums).double().sum(dim=0).tolist()
    return loss / tokens


# %% [markdown]
# ## Told to stop
#
# A cluster sends the signal SIGTERM some seconds before it kills. A person presses Ctrl-C. Neither should cost a step: we finish the one at hand, write a checkpoint, and leave.


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
# ## The loop
#
# Everything that a run needs is in one place:


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


# %% tags=["export"]
def update(trainer: Trainer, group: Sequence[Batch]) -> tuple[Step, float]:
    """Make the next step of a run; return what it saw, and its learning rate."""
    run, config = trainer.run, trainer.config
    rate = learning_rate(run.step + 1, run.model.config.d_model, config.warmup, config.factor)
    run.optimizer.param_groups[0]["lr"] = rate
    with randomness(config.seed, run.step + 1):
        step = training_step(run.model, group, run.optimizer, config)
    run.step += 1
    return step, rate


def validate(trainer: Trainer, progress: Progress) -> Progress:
    """Add loss and score on the validation pairs, and remember the best step."""
    run, loss, score = trainer.run, None, None
    if trainer.validation:
        loss = validation_loss(run.model, trainer.validation, trainer.config.max_tokens)
    if trainer.score is not None:
        score = trainer.score(run.model)
    value = score if score is not None else -loss if loss is not None else None
    if value is not None and value > run.best_score:
        run.best_step, run.best_score = run.step, value
    return progress._replace(validation_loss=loss, score=score)


# %% [markdown]
# And here is the loop. The schedule is stepped once an update, and not once a batch: the step is counted in `update`, in one place, for rate, dropout and checkpoint alike.


# %% tags=["export"]
def run_to_end(trainer: Trainer) -> None:
    """Make steps until the run is finished; write log and checkpoints on the way.

    Raises Stopped after a signal, FloatingPointError after a gradient that is not finite.
    """
    run, config, meter = trainer.run, trainer.config, Meter()
    stream = endless_batches(
        trainer.examples, config.max_tokens, config.seed, run.step * config.accumulate
    )
    per_epoch = batches_per_epoch(trainer.examples, config.max_tokens) / config.accumulate
    log = Log(trainer.folder, run.step)
    bar = tqdm(total=config.steps, initial=run.step, desc="training", unit="step", disable=None)
    with bar, asked_to_stop(trainer.folder is not None) as stop:
        while not trainer.finished():
            group = [to_device(next(stream), run.model) for _ in range(config.accumulate)]
            step, rate = update(trainer, group)
            meter.steps.append(step)
            bar.update()
            if trainer.due() or run.step % REPORT_EVERY == 0 or stop.is_set():
                progress = meter.read(run.step, run.step / per_epoch, rate)
                progress = validate(trainer, progress) if trainer.due() else progress
                log.write(progress)
                trainer.report(progress)
                bar.set_postfix(loss=f"{progress.loss:.3f}")
                meter.reset()
            if trainer.folder and (trainer.due() or stop.is_set()):
                save_checkpoint(run, trainer.folder / CHECKPOINTS, config)
            if stop.is_set():
                raise Stopped(f"stopped at step {run.step}: the same command goes on from there")


# %% [markdown]
# With a folder, the loop stands between taking up what is there and leaving a model behind.


# %% tags=["export"]
def run_in_folder(trainer: Trainer, tokenizer: Tokenizer, folder: Path) -> None:
    """Begin or continue a run in a folder, and leave the best model there.

    Raises BlockingIOError if another is at work in it, ValueError if it holds another run.
    """
    run = trainer.run
    with occupied(folder):
        settings = settings_of(run.model, tokenizer, trainer.examples, trainer.config)
        check_settings(folder / TRAINING, settings)
        describe(run.model, tokenizer, folder)
        resume(run, folder)
        run_to_end(trainer)
        take_best(run, folder)
        save_model(run.model, tokenizer, folder)


# %% [markdown]
# Last, the function that a user calls. What cannot work is found before the first step.


# %% tags=["export"]
def check_positions(model: Transformer, examples: Sequence[Example]) -> None:
    """Raise ValueError for the first example that is longer than the model's positions."""
    most = model.config.max_length
    for number, length in enumerate(shapes_of(examples).amax(dim=1).tolist(), start=1):
        if length > most:
            raise ValueError(
                f"pair {number} has {length} tokens, the model has {most} positions: drop or "
                "split the pair, or build the model with a larger max_length"
            )


# %% tags=["export"]
def train(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    config: TrainingConfig = TrainingConfig(),
    *,
    validation: Sequence[Pair] = (),
    score: Callable[[Transformer], float] | None = None,
    folder: str | Path | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Transformer:
    """Train a model on pairs and return it, in evaluation mode.

    Calls `report` every 50 steps, and every `save_every` steps measures the loss on `validation`
    and `score`, where higher is better. A folder gets checkpoints and a log; a run that it holds
    already goes on, to the bit; and the weights with the best score are returned and saved.
    Raises ValueError for pairs, tokenizer or folder that do not fit, and what the loop raises.
    """
    if not pairs:
        raise ValueError("there are no sentence pairs to train on")
    check_vocabulary(model, tokenizer)
    examples, watched = (encode_pairs(tokenizer, some) for some in (pairs, validation))
    check_positions(model, [*examples, *watched])
    run, place = Run(model, make_optimizer(model)), None if folder is None else Path(folder)
    trainer = Trainer(run, config, examples, watched, score, report, place)
    model.train()
    run_to_end(trainer) if place is None else run_in_folder(trainer, tokenizer, place)
    return model.eval()


# %% [markdown]
# ## Killed, and continued
#
# The proof: a run of 60 steps, and the same run broken off at step 50, in the middle of an epoch, ten steps after its last checkpoint. An exception stands for the axe here; the tests of this project use a real `kill -9`.


# %%
class Axe(Exception):
    pass


def fall(progress):
    if progress.step == 50:
        raise Axe


config = TrainingConfig(steps=60, max_tokens=200, accumulate=2, save_every=20)
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

# %% [markdown]
# To the last bit holds on one machine with the same number of threads. Another number adds up in another order, which changes the last bits, and a long run then takes another of many equally good ways.
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
    attention.record = True
    with evaluating(model):
        model(source, target)
    attention.record = False
    assert torch.allclose(attention.weights.sum(dim=-1), torch.ones(()), atol=1e-5)
    return attention.weights[0].mean(dim=0)


# %% tags=["nbval-ignore-output"]
rng = random.Random(0)
digits = [" ".join(rng.choices("0123456789", k=rng.randint(3, 8))) for _ in range(4000)]
copies = [Pair(text, text) for text in digits]
tokenizer = Tokenizer.train(copies, vocabulary_size=300)
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), layers=1, dropout=0.0))

row = collate(encode_pairs(tokenizer, [Pair("3 1 4 1 5 9 2 6", "3 1 4 1 5 9 2 6")]))
frames = {0: cross_attention(model, row.source, row.target[:, :-1])}


def watch(progress):
    frames[progress.step] = cross_attention(model, row.source, row.target[:, :-1])
    print(f"step {progress.step}: loss {progress.loss:.2f}")


model = train(model, tokenizer, copies[:-100], TrainingConfig(steps=400), report=watch)

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-copy", "caption": "How does a model find out where to look? Cross-attention on one row of digits while the model learns to copy. Rows are labeled with the digit that is to be written, columns with the digit that is read; gray is the weight, from 0 (paper) to 1 (ink). Gray everywhere turns into a diagonal: to write a digit, look at it."}, "image": {"alt": "Six attention maps. At step 0 all weights are about equal; by step 400 nearly all weight lies on the diagonal."}}
style()
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
# Has it learned to copy, or only these rows? A hundred rows were held back. `greedy_decode` of
# [the model's chapter](08_transformer.ipynb) writes each of them, one most likely token at a time.


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
unseen = digits[-100:]
right = sum(one == other for one, other in zip(write(model, tokenizer, unseen), unseen))
print(f"{right} of 100 unseen rows copied without an error")
assert right > 80

# %% [markdown]
# ## From German to English
#
# Now the real thing: the 29,000 captions of Multi30k, one vocabulary for both languages, and a model about a fiftieth of the paper's. It trains for three minutes on two cores. While it does, it is asked for three captions that it has not seen, and we keep its cross-attention on one of them.

# %%
pairs, val, test = (multi30k(name) for name in ("train", "val", "test_2016_flickr"))
tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
print(f"{len(pairs):,} to learn from, {len(val):,} to choose by, {len(test):,} to test on")
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %%
watched = val[:100]
example = collate(encode_pairs(tokenizer, [val[1]]))
history, maps, said = [], {}, {}


def bleu(model, pairs):
    hypotheses = write(model, tokenizer, [pair.source for pair in pairs])
    return sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score


def watch(progress):
    history.append(progress)
    if progress.score is not None:
        maps[progress.step] = cross_attention(model, example.source, example.target[:, :-1])
        said[progress.step] = write(model, tokenizer, [pair.source for pair in val[1:4]])


# %% tags=["nbval-ignore-output"]
config = TrainingConfig(steps=2000, max_tokens=768, warmup=300, factor=0.6, save_every=250, keep=8)
home = tempfile.TemporaryDirectory()
start = time.perf_counter()
model = train(
    model, tokenizer, pairs, config, validation=val, folder=home.name,
    score=lambda model: bleu(model, watched), report=watch,
)  # fmt: skip
print(f"{config.steps} steps in {time.perf_counter() - start:.0f} s")
assert history[-1].loss < history[0].loss / 1.5

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-loss", "caption": "What does learning look like? Left: the loss on training captions, averaged over 50 steps and with label smoothing, and on validation captions without it. Right: BLEU of greedy translations of 100 validation captions."}, "image": {"alt": "The loss falls steeply at first, then more and more slowly; BLEU stays near zero for the first steps and then climbs."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
checks = [p for p in history if p.score is not None]
left.plot([p.step for p in history], [p.loss for p in history], color=INK)
left.plot([p.step for p in checks], [p.validation_loss for p in checks], "o--", color=KEY)
left.annotate(
    "training, smoothed labels", (900, history[17].loss), (0, 14), textcoords="offset points"
)
left.annotate(
    "validation",
    (checks[1].step, checks[1].validation_loss),
    (8, -22),
    textcoords="offset points",
    color=KEY,
)
left.set(xlabel="step", ylabel="loss a target token, nats", ylim=(0, None), xlim=(0, config.steps))
right.plot([p.step for p in checks], [p.score for p in checks], "s-", color=VALUE)
right.set(
    xlabel="step", ylabel="BLEU, 100 validation captions", ylim=(0, None), xlim=(0, config.steps)
)
plt.show()

# %% [markdown]
# The loss falls fast while the model learns which words exist, then slowly while it learns which of them follow from the source. BLEU begins to rise only then. The three captions show it word by word:

# %% tags=["nbval-ignore-output"]
for number, pair in enumerate(val[1:4]):
    print("German:   ", pair.source)
    for step in (250, 500, 1000, 2000):
        print(f"step {step:4}:", said[step][number])
    print("reference:", pair.target, end="\n\n")

# %% [markdown]
# First the model says what all captions say. It has learned English, of a sort, and hardly looks at the German. Then single words come right, then the frame of the sentence. The attention maps tell the same story from inside:

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
# **BLEU** {cite:p}`papineni2002bleu` counts the runs of one to four words that a translation shares with a human's, from 0 to 100; [a chapter](16_evaluation.ipynb) is about it. We use sacreBLEU {cite:p}`post2018call`, which
# takes plain text and prints a signature, so that others can compute the same number. A score without one means little: the way of
# cutting text into words alone can move it by more than a point.

# %% tags=["nbval-ignore-output"]
metric = sacrebleu.BLEU()
score = metric.corpus_score(translations, [[pair.target for pair in test]])
print(f"BLEU on test_2016_flickr, greedy: {score.score:.1f}")
print(metric.get_signature())
assert score.score > 10

# %% [markdown]
# That is what three minutes on two cores buy. Read the ten captions above against the number. The frame of a sentence is right most of the time. Rare words are not: the model has seen
# each of them a few times only, and spells what it does not know from pieces.
#
# ## Averaging
#
# The last checkpoints of a run differ by noise: each is where the last few batches have pushed it. The paper does not take the last one. It takes their **average**, the mean of the last five, weight by weight, written ten minutes apart (section 6.1). The noise goes, what they have in common stays, and it costs nothing but disk.


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
# Is it a mean? We check one weight by hand, then look what averaging does to BLEU on 200 validation captions.

# %% tags=["nbval-ignore-output"]
found = checkpoints(Path(home.name, CHECKPOINTS))
by_hand = torch.stack([read_tensors(path)[0]["model.embedding.table"] for path in found[-3:]])
averaged, _ = average_checkpoints(home.name, last=3)
assert torch.allclose(averaged.embedding.table, by_hand.mean(dim=0))

averages = {last: bleu(average_checkpoints(home.name, last)[0], val[:200]) for last in (1, 2, 3, 5)}
print({last: round(score, 1) for last, score in averages.items()})

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-averaging", "caption": "Is averaging a free gain? BLEU of the mean of the last checkpoints of the short run above, greedy, on 200 validation captions. A run this young still moves, so old checkpoints can also hold it back."}, "image": {"alt": "BLEU against the number of averaged checkpoints."}}
figure, axis = plt.subplots(figsize=(5, 2.8), layout="constrained")
axis.plot(list(averages), list(averages.values()), "o-", color=QUERY)
axis.set(
    xlabel="checkpoints averaged, 250 steps apart",
    ylabel="BLEU, 200 captions",
    xticks=list(averages),
)
plt.show()

# %% [markdown]
# ## The model that comes with this book
#
# Three minutes are not enough for a good translation. The model that the next chapters decode, score and take apart was trained longer, by the same loop, with the command in its [card](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/multi30k-de-en/README.md). It comes with the package, and so does its log:

# %% tags=["nbval-ignore-output"]
home = files("annotated_transformer") / "pretrained" / "multi30k-de-en"
records = [json.loads(line) for line in (home / LOG).read_text().splitlines()]
checks = [record for record in records if "score" in record]
print(f"{checks[-1]['step']:,} steps, {checks[-1]['epoch']:.0f} epochs")
print(
    f"validation loss {checks[-1]['validation_loss']:.2f}, BLEU {checks[-1]['score']:.1f} with a beam of 4"
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-long", "caption": "How long does it pay to train? The log of the model that comes with this book: loss and BLEU on the validation captions, translated with a beam of 4."}, "image": {"alt": "Training and validation loss fall together and then part; BLEU rises steeply for some epochs and then ever more slowly."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
losses = [record for record in records if "loss" in record]
left.plot([r["epoch"] for r in losses], [r["loss"] for r in losses], color=INK, lw=0.8)
left.plot([r["epoch"] for r in checks], [r["validation_loss"] for r in checks], "o--", color=KEY)
left.annotate("training,\nsmoothed labels, dropout", (8, 3.6), color=INK)
left.annotate(
    "validation",
    (checks[-1]["epoch"], checks[-1]["validation_loss"]),
    (-50, -16),
    textcoords="offset points",
    color=KEY,
)
left.set(xlabel="epoch", ylabel="loss a target token, nats", ylim=(0, 6), xlim=(0, None))
right.plot([r["epoch"] for r in checks], [r["score"] for r in checks], "s-", color=VALUE)
right.set(xlabel="epoch", ylabel="BLEU, validation captions", ylim=(0, None), xlim=(0, None))
plt.show()

# %% [markdown]
# ## What to remember
#
# - The decoder reads the true words and says the next: input and answer are the same sentence, one place apart.
# - The loss is a mean over all tokens of an update, so sums and counts are kept apart until the end. Accumulated batches then equal the large one.
# - All chance follows from (seed, epoch) and (seed, step). So a run can be continued to the bit.
# - A file appears under its name only when it is whole. Weights are numbers, never a pickle.
# - First a task that cannot fail, in seconds. Then the real one.

# %% [markdown]
# ## Exercises
#
# 1. By hand: two batches have losses summing to 30 over 10 tokens and 10 over 5 tokens. What is the loss of the update, and what would the mean of the means be?
# 2. How many numbers does a checkpoint of the base model hold? How many gigabytes is that?
# 3. What breaks if the schedule is stepped once a batch, with `accumulate=10`? At which update is the peak then?
# 4. Why must the folder be locked, when every file in it is written whole?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. (30 + 10) / (10 + 5), against the mean of 3 and 2
assert round(40 / 15, 2) == 2.67 and (30 / 10 + 10 / 5) / 2 == 2.5

# 2. Three for each of 63 million parameters, four bytes each
with torch.device("meta"):
    base = Transformer(preset("base"))
numbers = 3 * sum(p.numel() for p in base.parameters())
print(f"{numbers:,} numbers, {4 * numbers / 1e9:.2f} GB")

# 3. After a tenth of the updates: the warm-up is over before Adam's moments have settled
rates = [learning_rate(10 * update, 512, 4000) for update in range(1, 1001)]
print("peak at update", 1 + rates.index(max(rates)), "in place of 4,000")

# 4. Each file would be whole, but log and checkpoints would come from two runs by turns
with tempfile.TemporaryDirectory() as folder, occupied(Path(folder)):
    try:
        with occupied(Path(folder)):
            pass
    except BlockingIOError as error:
        print(str(error).split(" in ")[0])
