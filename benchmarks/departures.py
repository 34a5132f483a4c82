"""Measure what this book's options do to a short training: one change at a time, several seeds.

    python benchmarks/departures.py --seeds 0 1 2 --threads 2

Trains a small model on Multi30k for each row of the table, with everything else alike, and takes
the loss on the validation captions. Two runs of one seed share their batches, so rows are compared
seed by seed with the first one, which is the paper's form.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, read, table, write_log
from torch import nn

from annotated_transformer.batching import Example, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train, validation_loss
from annotated_transformer.transformer import Transformer, TransformerConfig

SHAPE: dict[str, Any] = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.1}
TRAINING = TrainingConfig(steps=600, max_tokens=1024, warmup=200, lr_scale=1.0)


def glorot(model: Transformer) -> None:
    """Start the shared table as a linear map is started."""
    nn.init.xavier_uniform_(model.embedding.weight)


# What is changed -> of the model, of the training, of the first weights
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Transformer], None] | None]] = {
    "the paper's form": ({}, {}, None),
    "pre_norm": ({"pre_norm": True}, {}, None),
    "attention_dropout 0.1": ({"attention_dropout": 0.1}, {}, None),
    "relu_dropout 0.1": ({"relu_dropout": 0.1}, {}, None),
    "attention_bias": ({"attention_bias": True}, {}, None),
    "learned positions": ({"positions": "learned"}, {}, None),
    "no dropout": ({"dropout": 0.0}, {}, None),
    "table by Glorot's rule": ({}, {}, glorot),
    "clip 1.0": ({}, {"clip": 1.0}, None),
    "factor 2, warm-up 400": ({}, {"factor": 2.0, "warmup": 400}, None),
}


def measure(
    name: str,
    seed: int,
    steps: int,
    pairs: list[Pair],
    tokenizer: Tokenizer,
    watched: list[Example],
) -> float:
    """Train with one change and return the validation loss, in nats a token."""
    shape, training, start = CHANGES[name]
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(len(tokenizer), **{**SHAPE, **shape}))
    if start is not None:
        start(model)
    settings = {**vars(TRAINING), "steps": steps, "seed": seed, **training}
    train(model, tokenizer, pairs, TrainingConfig(**settings))
    return validation_loss(model, watched, TRAINING.max_tokens)


def row(name: str, losses: list[float], plain: list[float]) -> list[str]:
    """Return the mean loss, the mean difference from the first row, and its standard error."""
    gains = [loss - base for loss, base in zip(losses, plain)]
    difference = "" if losses is plain else f"{statistics.mean(gains):+.3f}"
    if difference and len(gains) > 1:
        difference += f" ± {statistics.stdev(gains) / math.sqrt(len(gains)):.3f}"
    return [name, f"{statistics.mean(losses):.3f}", difference]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=TRAINING.steps, help="of a run")
    parser.add_argument("--corpus", choices=["multi30k", "grammar"], default="multi30k")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    pairs = read(options.corpus, "train")
    tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
    watched = encode_pairs(tokenizer, read(options.corpus, "val"))
    records, losses = [], {}
    for name in CHANGES:
        losses[name] = [
            measure(name, seed, options.steps, pairs, tokenizer, watched) for seed in options.seeds
        ]
        for seed, loss in zip(options.seeds, losses[name]):
            records.append({"change": name, "seed": seed, "validation_loss": round(loss, 4)})
        print(*row(name, losses[name], losses["the paper's form"]), sep="  ", flush=True)
    plain = losses["the paper's form"]
    rows = [row(name, found, plain) for name, found in losses.items()]
    print(table(["change", "validation loss", "against the first row"], rows))
    settings = {"benchmark": "departures", **SHAPE, **vars(TRAINING), "steps": options.steps}
    settings |= {"corpus": options.corpus, "threads": options.threads}
    write_log(options.results, "departures", settings, records)


if __name__ == "__main__":
    main()
