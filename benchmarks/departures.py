"""Measure what this book's options do to a short training: one change at a time, several seeds.

    python benchmarks/departures.py --seeds 0 1 2 --threads 2

Trains a small model on Multi30k for each row of the table, with everything else alike, and takes
the loss on the validation captions. Two runs of one seed share their batches, so rows are compared
seed by seed with the first one, which is the paper's form.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import common
import torch
import tyro
from torch import nn

from annotated_transformer.batching import encode_pairs
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train, validation_loss
from annotated_transformer.transformer import Transformer, TransformerConfig

SHAPE: dict[str, Any] = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.1}
TRAINING = TrainingConfig(steps=600, max_tokens=1024, warmup=200, lr_scale=1.0)
PLAIN = "the paper's form"


def glorot(model: Transformer) -> None:
    """Start the shared table as a linear map is started."""
    nn.init.xavier_uniform_(model.embedding.weight)


# What is changed -> of the model, of the training, of the first weights
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Transformer], None] | None]] = {
    PLAIN: ({}, {}, None),
    "pre_norm": ({"pre_norm": True}, {}, None),
    "attention_dropout 0.1": ({"attention_dropout": 0.1}, {}, None),
    "relu_dropout 0.1": ({"relu_dropout": 0.1}, {}, None),
    "attention_bias": ({"attention_bias": True}, {}, None),
    "learned positions": ({"positions": "learned"}, {}, None),
    "no dropout": ({"dropout": 0.0}, {}, None),
    "table by Glorot's rule": ({}, {}, glorot),
    "grad_clip 1.0": ({}, {"grad_clip": 1.0}, None),
    "lr_scale 2, warmup 400": ({}, {"lr_scale": 2.0, "warmup": 400}, None),
}


def row(name: str, losses: list[float], plain: list[float]) -> list[str]:
    """Return the mean loss, the mean difference from the first row, and its standard error."""
    gains = [loss - base for loss, base in zip(losses, plain)]
    difference = "" if name == PLAIN else f"{statistics.mean(gains):+.3f}"
    if difference and len(gains) > 1:
        difference += f" ± {statistics.stdev(gains) / math.sqrt(len(gains)):.3f}"
    return [name, f"{statistics.mean(losses):.3f}", difference]


def main(
    seeds: tuple[int, ...] = (0, 1, 2), steps: int = TRAINING.steps,
    corpus: common.Corpus = "multi30k", threads: int = 1, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Measure what this book's options do to a short training."""
    torch.set_num_threads(threads)
    pairs = common.read(corpus, "train")
    tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
    examples, held_out = (encode_pairs(tokenizer, p) for p in (pairs, common.read(corpus, "val")))
    losses: dict[str, list[float]] = {}
    for name, (shape, changes, start) in CHANGES.items():
        losses[name] = []
        for seed in seeds:
            torch.manual_seed(seed)
            model = Transformer(TransformerConfig(len(tokenizer), **{**SHAPE, **shape}))
            if start is not None:
                start(model)
            config = replace(TRAINING, steps=steps, seed=seed, **changes)
            train(model, tokenizer, examples, config)
            losses[name].append(validation_loss(model, held_out, TRAINING.max_tokens))
        print(*row(name, losses[name], losses[PLAIN]), sep="  ", flush=True)
    rows = [row(name, found, losses[PLAIN]) for name, found in losses.items()]
    print(common.table(["change", "validation loss", "against the first row"], rows))
    records = [
        {"change": name, "seed": seed, "validation_loss": round(loss, 4)}
        for name, found in losses.items()
        for seed, loss in zip(seeds, found)
    ]
    settings = {"benchmark": "departures", **SHAPE, **asdict(TRAINING), "steps": steps}
    settings |= {"corpus": corpus, "threads": threads}
    common.write_log(results, "departures", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
