"""Measure what this book's options do to a short training: one change at a time, several seeds.

    python -m benchmarks.experiments.departures --seeds 0 1 2

Trains a small model on Multi30k for each row of the table, with everything else alike, and takes
the loss on the validation captions. Two runs of one seed share their batches, so rows are compared
seed by seed with the first one, which is the paper's form. The log is `results/departures.jsonl`;
the page on departures quotes it.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from annotated_transformer import TrainingConfig, Transformer, TransformerConfig, train
from annotated_transformer.batching import encode_pairs
from annotated_transformer.own_data import multi30k
from annotated_transformer.training import validation_loss
from annotated_transformer.transformer import parameter_count
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
    """What is changed: in the model's shape and its kind, in the training, in a model just made."""

    shape: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    kind: Callable[[TransformerConfig], Transformer] = Transformer
    start: Callable[[Transformer], None] = lambda model: None


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


def make(change: Change, vocabulary_size: int) -> Transformer:
    """Make the model of a row."""
    config = TransformerConfig(vocabulary_size, **(SHAPE | change.shape))
    model = change.kind(config)
    change.start(model)
    return model


def measure(
    change: str, seed: int, changes: dict[str, Change], steps: int
) -> common.Record:
    """Train a model with one change from one seed, and take its loss on the validation pairs."""
    torch.set_num_threads(1)
    tokenizer, examples = common.captions(VOCABULARY)
    held_out = encode_pairs(tokenizer, multi30k("val"))
    torch.manual_seed(seed)
    model = make(changes[change], len(tokenizer))
    own = changes[change].training
    train(model, tokenizer, examples, replace(TRAINING, steps=steps, seed=seed, **own))
    loss = validation_loss(model, held_out, TRAINING.max_tokens)
    return {"validation_loss": round(loss, 4), "parameters": parameter_count(model)}


def make_all(
    name: str,
    changes: dict[str, Change],
    seeds: tuple[int, ...],
    steps: int,
    results: Path,
) -> None:
    """Measure each change from each seed, and print how far it is from the paper's form."""
    settings = {
        **SHAPE,
        "steps": steps,
        "max_tokens": TRAINING.max_tokens,
        "warmup": TRAINING.warmup,
        "lr_scale": TRAINING.lr_scale,
    }
    tasks = [{"change": change, "seed": seed} for change in changes for seed in seeds]
    run = partial(measure, changes=changes, steps=steps)
    print(differences(common.make_runs(results, name, settings, tasks, run)))


def differences(runs: Sequence[common.Record]) -> str:
    """Lay out the loss of each change, and its mean difference from the paper's form's.

    Compares seed by seed, and gives the standard error of the mean.
    """
    losses: dict[str, dict[int, float]] = {}
    for run in runs:
        losses.setdefault(run["change"], {})[run["seed"]] = run["validation_loss"]
    rows = []
    for change, by_seed in losses.items():
        gains = [by_seed[seed] - losses[PLAIN][seed] for seed in by_seed]
        difference = f"{statistics.mean(gains):+.3f}"
        if len(gains) > 1:
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            difference += f" ± {error:.3f}"
        rows.append([change, f"{statistics.mean(by_seed.values()):.3f}", difference])
    return common.table(["change", "validation loss", "against the paper's"], rows)


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = TRAINING.steps,
    results: Path = common.RESULTS,
) -> None:
    """Measure what this book's options do to a short training."""
    make_all("departures", CHANGES, seeds, steps, results)


if __name__ == "__main__":
    common.command(main)
