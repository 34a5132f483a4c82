"""What all measurements share: commands, data, training, logs, and taking turns."""

import argparse
import importlib.util
import inspect
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from annotated_transformer import Pair, Tokenizer
from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    batches,
    collate,
    encode_pairs,
)
from annotated_transformer.own_data import multi30k
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.training import Update, group_batches, training_step

RESULTS = Path(__file__).parent / "results"

Record = dict[str, Any]  # a line of a log
Turn = Callable[
    [int], int
]  # takes the number of a round, returns the tokens it dealt with

# --- Commands ---


def command(main: Callable[..., None]) -> None:
    """Call main with what the command line says: `--seeds 0 1` for a parameter seeds=(0,).

    The default of a parameter gives its type; one without a default is the path of a file.
    """
    parser = argparse.ArgumentParser(
        description=inspect.getdoc(inspect.getmodule(main)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, parameter in inspect.signature(main).parameters.items():
        default = parameter.default
        option = "--" + name.replace("_", "-")
        about: dict[str, Any] = {"default": default, "help": f"default: {default}"}
        if default is inspect.Parameter.empty:
            parser.add_argument(name, type=Path)
        elif default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(option, type=type(default[0]), nargs="+", **about)
        else:
            parser.add_argument(option, type=type(default), **about)
    main(**vars(parser.parse_args()))


# --- Data ---


@cache
def captions(vocabulary_size: int) -> tuple[Tokenizer, EncodedCorpus]:
    """Return a tokenizer that is learned from Multi30k's training pairs, and these encoded."""
    pairs = multi30k("train")
    tokenizer = Tokenizer.train(pairs, vocabulary_size)
    return tokenizer, encode_pairs(tokenizer, pairs)


def as_batch(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> Batch:
    """Return some pairs as one batch."""
    corpus = encode_pairs(tokenizer, pairs)
    return collate([corpus[number] for number in range(len(corpus))])


# --- Training ---


class WholeLoss(SmoothedLoss):
    """The smoothed loss of any model that maps source and target to logits, summed over tokens."""

    def __init__(self, model: Any, label_smoothing: float = 0.0) -> None:
        super().__init__(model, label_smoothing)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        logits = self.model(source, target[:, :-1])
        return label_smoothed_loss(logits, target[:, 1:], self.label_smoothing)


def endless_batches(
    corpus: EncodedCorpus, max_tokens: int, seed: int = 0
) -> Iterator[Batch]:
    """Yield the batches of epoch after epoch."""
    epoch = 0
    while True:
        yield from batches(corpus, max_tokens, seed, epoch)
        epoch += 1


def updates(
    loss: nn.Module,
    adam: Optimizer,
    stream: Iterable[Batch],
    rate: Callable[[int], float],
) -> Iterator[Update]:
    """Train on a stream, a batch per update, and yield each update; `rate` takes its number."""
    for step, group in enumerate(group_batches(stream, 1), start=1):
        adam.param_groups[0]["lr"] = rate(step)
        yield training_step(loss, group, adam)


# --- Logs ---


def machine() -> Record:
    """Describe where and with what a measurement was made."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.split(":")[1].strip()
    description = {
        "processor": processor,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for library in ("transformers", "ctranslate2"):
        if importlib.util.find_spec(library):
            description[library] = version(library)
    return description


def device_name(device: torch.device | str) -> str:
    """Return the name of a GPU as a part of a file's name, or "cpu"."""
    device = torch.device(device)
    if device.type == "cpu":
        return "cpu"
    return torch.cuda.get_device_name(device).replace(" ", "-")


def as_lines(records: Sequence[Record]) -> str:
    """Write records as JSON, one a line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def write_log(
    folder: Path, name: str, settings: Record, records: Sequence[Record]
) -> None:
    """Write the settings, with the machine, and then one line a record."""
    folder.mkdir(parents=True, exist_ok=True)
    text = as_lines([{"benchmark": name, **settings, **machine()}, *records])
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"log: {name}.jsonl")


def read_log(name: str, folder: Path = RESULTS) -> list[Record]:
    """Return a committed log: its settings, then its records."""
    text = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def make_runs(
    folder: Path,
    name: str,
    settings: Record,
    tasks: Sequence[Record],
    measure: Callable[..., Record],
    jobs: int = 1,
) -> list[Record]:
    """Make the runs that a log doesn't have yet, `jobs` of them side by side; return all runs.

    A run is its task, what `measure(**task)` returns, and the machine; it is written when it ends,
    so a command may be stopped and given again. Raises ValueError for the log of other settings.
    """
    path = folder / f"{name}.jsonl"
    if not path.exists():
        write_log(folder, name, settings, [])
    found, *runs = read_log(name, folder)
    for setting, value in settings.items():
        if found.get(setting) != value:
            raise ValueError(f"{path} was made with another {setting}: move it away")
    made = [{key: run.get(key) for key in tasks[0]} for run in runs]
    missing = [task for task in tasks if task not in made]
    print(f"{len(tasks) - len(missing)} runs found, {len(missing)} to make", flush=True)

    def save(run: Record) -> None:
        with path.open("a", encoding="utf-8") as log:
            log.write(as_lines([run]))
        short = {key: run[key] for key in run if not isinstance(run[key], list)}
        print(short, flush=True)
        runs.append(run)

    one_run = partial(run_of, measure)
    if jobs == 1:
        for task in missing:
            save(one_run(task))
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for run in pool.imap_unordered(one_run, missing):
                save(run)
    return runs


def run_of(measure: Callable[..., Record], task: Record) -> Record:
    """Return a run: its task, what was measured, and the machine."""
    return {**task, **measure(**task), **machine()}


# --- Tables ---


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns: the first flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:]):
            cells.append(cell.rjust(width))
        lines.append("  ".join(cells))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


# --- Taking turns ---


def take_turns(systems: Mapping[str, Turn], rounds: int) -> list[Record]:
    """Run each system once a round, A B C, B C A, ..., so that any disturbance hits all alike.

    Round 0 warms up and does not count. Returns a record for each turn.
    """
    names = list(systems)
    records = []
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            tokens = systems[name](number)
            seconds = round(time.perf_counter() - start, 4)
            turn = {"round": number, "system": name}
            if number > 0:
                records.append({**turn, "tokens": tokens, "seconds": seconds})
    return records


def rates(turns: Sequence[Record], system: str) -> list[float]:
    """Return the tokens per second of a system, round by round."""
    return [
        turn["tokens"] / turn["seconds"] for turn in turns if turn["system"] == system
    ]


def times_as_fast(turns: Sequence[Record], system: str, rival: str) -> float:
    """Return how many times as fast a system is as its rival: the median over the rounds."""
    pairs = zip(rates(turns, system), rates(turns, rival))
    return statistics.median(own / rivals for own, rivals in pairs)


def peak_memory() -> int:
    """Return the most bytes that this process has held, its parent not counted (Linux)."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024
