"""Which settings suit a corpus of which size? Trainings on 3,000 to 200,000 pairs of Tatoeba.

    python -m benchmarks.experiments.settings deu.txt                 # all: a night and more
    python -m benchmarks.experiments.settings deu.txt --sizes 3000    # those of one size

Each training keeps the weights with the lowest loss on 500 validation pairs. The log has its hours
by the clock and of the processor, how many updates and epochs it made until these weights, and BLEU
with a beam of 4 on all held-out pairs. A table with fewer pairs than asked for is taken whole:
Tatoeba has 166,000 for its 200,000. Writes each run into `results/settings.jsonl` when it ends, and
makes none that is there already. The page on your own pair shows it.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from annotated_transformer import (
    Pair,
    Tokenizer,
    TrainingConfig,
    Transformer,
    load_model,
    preset,
    read_pairs,
    score,
    train,
    translate,
)
from annotated_transformer.own_data import Splits, split_pairs
from benchmarks import common


@dataclass(frozen=True)
class Training:
    """A size of corpus, and the settings of a training on so many pairs."""

    pairs: int
    preset: str
    vocabulary_size: int
    max_tokens: int
    peak_lr: float
    warmup: int
    steps: int
    save_every: int
    dropout: float = 0.1
    patience: int = 5


TRAININGS = (
    Training(3_000, "tiny", 2000, 1024, 0.0026, 300, 1500, 100),
    Training(3_000, "tiny", 2000, 1024, 0.0026, 300, 1500, 100, dropout=0.3),
    Training(3_000, "captions", 2000, 1024, 0.0021, 300, 1500, 100, dropout=0.3),
    Training(30_000, "tiny", 4000, 1024, 0.0028, 1000, 5000, 500),
    Training(30_000, "captions", 4000, 2048, 0.0023, 1000, 8000, 500, dropout=0.3),
    Training(30_000, "everyday", 4000, 2048, 0.002, 1000, 8000, 500),
    Training(200_000, "tiny", 6000, 1024, 0.0028, 1000, 5000, 1000),
    Training(200_000, "everyday", 6000, 2048, 0.002, 1000, 6000, 1000),
    Training(200_000, "small", 6000, 2048, 0.002, 1000, 12_000, 1000),
)


def scores_of(
    model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]
) -> common.Record:
    """Translate with a beam of 4, and score."""
    translations = translate(model, tokenizer, [pair.source for pair in pairs])
    scores = score(translations, [pair.target for pair in pairs])
    return {"sentences": len(pairs), **scores._asdict()}


def measure(parts: Splits, seed: int, pairs: int, **settings: Any) -> common.Record:
    """Train on so many pairs, and score the best weights on those held out."""
    chosen = parts.train[:pairs]
    tokenizer = Tokenizer.train(chosen, settings.pop("vocabulary_size"))
    shape = preset(
        settings.pop("preset"),
        vocabulary_size=len(tokenizer),
        dropout=settings.pop("dropout"),
    )
    torch.manual_seed(seed)
    model = Transformer(shape)
    config = TrainingConfig(seed=seed, **settings)
    lines: list[common.Record] = []
    with TemporaryDirectory() as folder:
        start, processor_start = time.monotonic(), time.process_time()
        train(
            model,
            tokenizer,
            chosen,
            config,
            validation=parts.validation[:500],
            folder=folder,
            report=lines.append,
        )
        seconds = time.monotonic() - start
        processor_seconds = time.process_time() - processor_start
        model, _ = load_model(folder)  # with the best weights
    validated = [line for line in lines if "validation_loss" in line]
    best = min(validated, key=lambda line: line["validation_loss"])
    return {
        "hours": round(seconds / 3600, 3),
        "processor_hours": round(processor_seconds / 3600, 3),  # of all threads
        "best_step": best["step"],
        "best_epoch": best["epoch"],
        **scores_of(model, tokenizer, parts.test),
    }


def main(
    table: Path,
    sizes: tuple[int, ...] = (3_000, 30_000, 200_000),
    seeds: tuple[int, ...] = (0,),
    threads: int = 2,
    results: Path = common.RESULTS,
) -> None:
    """Train on each size of corpus and score. `table` has English first."""
    torch.set_num_threads(threads)
    parts = split_pairs(read_pairs(table, columns=(1, 0)), 0.01, 0.01, seed=0)
    learned = Random(0).sample(parts.train, len(parts.train))
    parts = parts._replace(train=learned)
    chosen = [training for training in TRAININGS if training.pairs in sizes]
    tasks = [{"seed": seed, **asdict(t)} for t in chosen for seed in seeds]
    settings = {"table": table.name, "found": len(learned)}
    common.make_runs(results, "settings", settings, tasks, partial(measure, parts))


if __name__ == "__main__":
    common.command(main)
