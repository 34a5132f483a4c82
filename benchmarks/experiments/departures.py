"""Measure what this book's options do to a short training: one change at a time, several seeds.

    python -m benchmarks.experiments.departures --seeds 0 1 2 --threads 2

Trains a small model on Multi30k for each row of the table, with everything else alike, and takes
the loss on the validation captions. Two runs of one seed share their batches, so rows are compared
seed by seed with the first one, which is the paper's form. The log is `results/departures.jsonl`;
the page on departures quotes it.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import nn

from annotated_transformer import (
    Tokenizer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    encode_pairs,
    train,
)
from annotated_transformer.training import validation_loss
from benchmarks import common

SHAPE: dict[str, Any] = {
    "layers": 2,
    "d_model": 64,
    "d_ff": 256,
    "heads": 4,
    "dropout": 0.1,
}
VOCABULARY = 2000
TRAINING = TrainingConfig(steps=600, max_tokens=1024, warmup=200, lr_scale=1.0)
PLAIN = "the paper's form"


@dataclass(frozen=True)
class Change:
    """What is changed in the model, in the training, and in the first weights."""

    shape: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    start: Callable[[Transformer], Any] | None = None


def glorot(model: Transformer) -> None:
    """Start the shared table as a linear map is started."""
    nn.init.xavier_uniform_(model.embedding.weight)


CHANGES = {
    PLAIN: Change(),
    "pre_norm": Change({"pre_norm": True}),
    "attention_dropout 0.1": Change({"attention_dropout": 0.1}),
    "relu_dropout 0.1": Change({"relu_dropout": 0.1}),
    "attention_bias": Change({"attention_bias": True}),
    "learned positions": Change({"positions": "learned"}),
    "no dropout": Change({"dropout": 0.0}),
    "table by Glorot's rule": Change(start=glorot),
    "grad_clip 1.0": Change(training={"grad_clip": 1.0}),
    "lr_scale 2, warmup 400": Change(training={"lr_scale": 2.0, "warmup": 400}),
}


def row(name: str, losses: list[float], plain: list[float]) -> list[str]:
    """Return the mean loss, the mean difference from the first row, and its standard error."""
    cells = [name, f"{statistics.mean(losses):.3f}"]
    if name == PLAIN:
        return [*cells, ""]
    gains = [loss - base for loss, base in zip(losses, plain)]
    difference = f"{statistics.mean(gains):+.3f}"
    if len(gains) > 1:
        difference += f" ± {statistics.stdev(gains) / math.sqrt(len(gains)):.3f}"
    return [*cells, difference]


def make(change: Change, vocabulary_size: int, seed: int) -> Transformer:
    """Make the model of a row."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocabulary_size, **(SHAPE | change.shape)))
    if change.start is not None:
        change.start(model)
    return model


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = TRAINING.steps,
    corpus: common.Corpus = "multi30k",
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Measure what this book's options do to a short training."""
    torch.set_num_threads(threads)
    pairs = common.read(corpus, "train")
    tokenizer = Tokenizer.train(pairs, VOCABULARY)
    examples = encode_pairs(tokenizer, pairs)
    held_out = encode_pairs(tokenizer, common.read(corpus, "val"))
    losses: dict[str, list[float]] = {}
    records = []
    for name, change in CHANGES.items():
        losses[name] = []
        for seed in seeds:
            model = make(change, len(tokenizer), seed)
            config = replace(TRAINING, steps=steps, seed=seed, **change.training)
            train(model, tokenizer, examples, config)
            loss = validation_loss(model, held_out, TRAINING.max_tokens)
            losses[name].append(loss)
            records.append(
                {"change": name, "seed": seed, "validation_loss": round(loss, 4)}
            )
        print(*row(name, losses[name], losses[PLAIN]), sep="  ", flush=True)
    rows = [row(name, column, losses[PLAIN]) for name, column in losses.items()]
    print(common.table(["change", "validation loss", "against the first row"], rows))
    settings = {
        "benchmark": "departures",
        **SHAPE,
        **asdict(TRAINING),
        "steps": steps,
        "corpus": corpus,
        "threads": threads,
    }
    common.write_log(results, "departures", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
