"""Which settings suit a corpus of which size? Trainings on 3,000 to 200,000 pairs of Tatoeba.

    python -m benchmarks.experiments.settings deu.txt                 # all: a night and more
    python -m benchmarks.experiments.settings deu.txt --sizes 3000    # those of one size
    python -m benchmarks.experiments.settings deu.txt --gpu           # those for a GPU

Each training is one of the command line, with the options that its line of the log names, and
keeps the weights with the lowest loss on 500 validation pairs. (The trainings of the committed log
kept those with the best BLEU.) The log has its hours by the clock and of the processor, how many
updates and epochs it made until these weights, and BLEU with a beam of 4 on all held-out pairs. A
table with fewer pairs than asked for is taken whole: Tatoeba has
166,000 for its 200,000. Writes each run into `results/settings.jsonl` when it ends, and makes none
that is there already; runs on a GPU, into `results/settings-DEVICE.jsonl`.
"""

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
import tyro

from annotated_transformer import read_pairs, split_pairs
from annotated_transformer.toolkit import cli, run_folder
from benchmarks import common
from benchmarks.experiments.start import evaluate, write_pairs


@dataclass(frozen=True)
class Training:
    """A size of corpus, and the options of a training on so many pairs."""

    pairs: int
    preset: str
    vocabulary_size: int
    max_tokens: int
    lr_scale: float
    warmup: int
    steps: int
    save_every: int
    dropout: float = 0.1
    patience: int = 5


TRAININGS = (
    Training(3_000, "tiny", 2000, 1024, 0.5, 300, 1500, 100),
    Training(3_000, "tiny", 2000, 1024, 0.5, 300, 1500, 100, dropout=0.3),
    Training(3_000, "captions", 2000, 1024, 0.5, 300, 1500, 100, dropout=0.3),
    Training(30_000, "tiny", 4000, 1024, 1.0, 1000, 5000, 500),
    Training(30_000, "captions", 4000, 2048, 1.0, 1000, 8000, 500, dropout=0.3),
    Training(30_000, "everyday", 4000, 2048, 1.0, 1000, 8000, 500),
    Training(200_000, "tiny", 6000, 1024, 1.0, 1000, 5000, 1000),
    Training(200_000, "everyday", 6000, 2048, 1.0, 1000, 6000, 1000),
    Training(200_000, "small", 6000, 2048, 1.0, 1000, 12_000, 1000),
)
# On a GPU, where small batches leave most of it idle (chapter 25)
ON_GPU = (
    Training(200_000, "everyday", 6000, 2048, 1.0, 1000, 6000, 1000),
    Training(200_000, "small", 6000, 4096, 1.0, 1000, 10_000, 1000),
    Training(200_000, "base", 6000, 4096, 1.0, 4000, 12_000, 1000, dropout=0.3),
)
RECORDED = ["--compile", "--pad-to-multiple-of", "8"]  # steps as CUDA graphs
BRIEF = (Training(100, "tiny", 300, 400, 0.5, 2, 4, 2, patience=1),)  # a rehearsal


def options_of(training: dict[str, object]) -> list[str]:
    """Return a training as the command line takes it."""
    options = []
    for name, value in training.items():
        options += [f"--{name.replace('_', '-')}", str(value)]
    return options


def best_line(log: Path) -> common.Record:
    """Return the line of a training's log that has its lowest validation loss."""
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    validated = (line for line in lines if "validation_loss" in line)
    return min(validated, key=lambda line: line["validation_loss"])


def measure(
    home: Path, more: list[str], seed: int, pairs: int, **training: object
) -> common.Record:
    """Train on the first pairs in `home`, and score the best weights on those held out."""
    options = [*options_of(training), *more, "--seed", str(seed), "--limit", str(pairs)]
    files = ["--data", str(home / "learned.tsv")]
    for part in ("validation", "test"):
        files += [f"--{part}", str(home / f"{part}.tsv")]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        processor_start = time.process_time()
        start = time.monotonic()
        cli.main(["train", *files, *options, "--output", str(run)])
        processor_hours = (time.process_time() - processor_start) / 3600
        hours = (time.monotonic() - start) / 3600
        best = best_line(run / run_folder.LOG)
        scores = evaluate(run, ["--data", str(home / "test.tsv")])
    return {
        "hours": round(hours, 3),
        "processor_hours": round(processor_hours, 3),  # of all threads together
        "best_step": best["step"],
        "best_epoch": best["epoch"],
        "validation_bleu": round(best["score"], 2),
        "sentences": scores["sentences"],
        "bleu": scores["bleu"],
        "bleu_signature": scores["bleu_signature"],
    }


def main(
    table: tyro.conf.Positional[Path],
    sizes: tuple[int, ...] = (3_000, 30_000, 200_000),
    seeds: tuple[int, ...] = (0,),
    threads: int = 2,
    gpu: bool = False,
    tiny: bool = False,
    results: Path = common.RESULTS,
) -> None:
    """Train on each size of corpus and score. `table` has English first; `tiny` rehearses."""
    torch.set_num_threads(threads)
    parts = split_pairs(read_pairs(table, columns=(1, 0)), 0.01, 0.01)
    settings: common.Record = {
        "benchmark": "settings",
        "table": table.name,
        "threads": threads,
        "found": len(parts.train),
    }
    trainings, more, name = TRAININGS, list[str](), "settings"
    if gpu:
        device = common.device_name(torch.device("cuda"))
        trainings, more = ON_GPU, RECORDED
        name = f"settings-{device.replace(' ', '-')}"
        settings |= {"device": device, "options": more}
    chosen = BRIEF if tiny else [t for t in trainings if t.pairs in sizes]
    tasks = [{"seed": seed, **asdict(t)} for t in chosen for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        learned = Random(0).sample(parts.train, len(parts.train))
        write_pairs(home / "learned.tsv", learned)
        write_pairs(home / "validation.tsv", parts.validation[:500])
        write_pairs(home / "test.tsv", parts.test)
        run = partial(measure, home, more)
        common.make_runs(results / f"{name}.jsonl", settings, tasks, run)


if __name__ == "__main__":
    tyro.cli(main)
