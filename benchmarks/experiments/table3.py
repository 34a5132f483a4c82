"""Table 3 in miniature: each row with half its layers, a quarter as wide; then norms and depth.

    python -m benchmarks.experiments.table3 --jobs 2
    python -m benchmarks.experiments.table3 --rows base C-N2 --seeds 0

Trains each row of the paper's Table 3 on Multi30k, German to English, for the same number of
updates, and takes loss and BLEU on the validation captions, as the paper took them on newstest2013.
Then post-norm and pre-norm with 2, 6 and 12 layers, with and without warm-up, for 300 updates:
`--rows post-6-warm` is one of them. Writes `results/table3.jsonl`, which chapter 22 draws.
"""

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from annotated_transformer import (
    TrainingConfig,
    Transformer,
    TransformerConfig,
    preset,
    score,
    train,
    trainer,
    translate,
)
from annotated_transformer.batching import encode_pairs
from annotated_transformer.own_data import multi30k
from annotated_transformer.schedule import learning_rate
from annotated_transformer.training import validation_loss
from annotated_transformer.transformer import parameter_count
from benchmarks import common

TABLE_3: dict[str, dict[str, Any]] = {
    "A-h1": {"heads": 1},
    "A-h4": {"heads": 4},
    "A-h16": {"heads": 16},
    "A-h32": {"heads": 32},
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-N2": {"layers": 2},
    "C-N4": {"layers": 4},
    "C-N8": {"layers": 8},
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-dropout0.0": {"dropout": 0.0},
    "D-dropout0.2": {"dropout": 0.2},
    "E-learned": {"positions": "learned"},
}
SMOOTHING = {"D-smoothing0.0": 0.0, "D-smoothing0.2": 0.2}  # rows of the base model
ROWS = ("base", *sorted([*TABLE_3, *SMOOTHING], key=lambda row: row[0]), "big")
NORMS = [
    f"{form}-{layers}-{rise}"
    for layers in (2, 6, 12)
    for form in ("post", "pre")
    for rise in ("warm", "cold")
]
SHALLOWER = 2
NARROWER = 4
VOCABULARY = 4000
STEPS = 2400
TRAINING = TrainingConfig(max_tokens=1024, warmup=800, peak_lr=None)
BRIEF = replace(TRAINING, steps=300, warmup=100, peak_lr=0.00177)  # for the norms

data = partial(common.captions, VOCABULARY)


def shape(name: str, vocabulary_size: int) -> TransformerConfig:
    """Return the model of a row: the paper's, with half its layers and a quarter of each width."""
    if name in NORMS:
        form, layers, _ = name.split("-")
        base = shape("base", vocabulary_size)
        return replace(base, layers=int(layers), pre_norm=form == "pre")
    size = "big" if name == "big" else "base"
    changes = TABLE_3.get(name, {})
    paper = preset(size, vocabulary_size=vocabulary_size, **changes)
    narrow = {}
    for width in ("d_model", "d_ff", "d_k", "d_v"):
        size = getattr(paper, width)
        if size is not None:
            narrow[width] = size // NARROWER
    return replace(paper, layers=paper.layers // SHALLOWER, **narrow)


def recipe(name: str, seed: int, steps: int) -> TrainingConfig:
    """Return how a row is trained."""
    if name in NORMS:
        return replace(BRIEF, steps=min(steps, BRIEF.steps), seed=seed)
    smoothing = SMOOTHING.get(name, TRAINING.label_smoothing)
    return replace(TRAINING, steps=steps, seed=seed, label_smoothing=smoothing)


def no_warm_up(step: int, d_model: int, warmup: int, peak_lr: float) -> float:
    """Return the rate of a step, at its peak from the first: from `warmup` on as ever."""
    return learning_rate(max(step, warmup), d_model, warmup, peak_lr)


def measure(row: str, seed: int, steps: int, sentences: int) -> common.Record:
    """Train and score one row."""
    torch.set_num_threads(1)
    tokenizer, examples = data()
    held_out = multi30k("val")
    config = recipe(row, seed, steps)
    torch.manual_seed(seed)
    model = Transformer(shape(row, len(tokenizer)))
    start = time.process_time()
    curve: list[float] = []
    rate = no_warm_up if row.endswith("cold") else learning_rate
    with patch.object(trainer, "learning_rate", rate):
        train(
            model,
            tokenizer,
            examples,
            config,
            report=lambda line: curve.append(round(line["loss"], 3)),
        )
    loss = validation_loss(model, encode_pairs(tokenizer, held_out), config.max_tokens)
    record: common.Record = {
        "steps": config.steps,
        "validation_loss": round(loss, 4),
        "curve": curve,
        "perplexity": round(math.exp(loss), 2),
        "parameters": parameter_count(model),
    }
    if row in ROWS:
        asked = held_out[:sentences]
        translations = translate(model, tokenizer, [pair.source for pair in asked])
        scores = score(translations, [pair.target for pair in asked])
        record["bleu"] = round(scores.bleu, 2)
        record["signature"] = scores.bleu_signature
    return record | {"seconds": round(time.process_time() - start, 1)}


def main(
    rows: tuple[str, ...] = (*ROWS, *NORMS),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = STEPS,
    sentences: int = 1014,
    jobs: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet, some of them side by side."""
    settings = {
        "shallower": SHALLOWER,
        "narrower": NARROWER,
        "vocabulary": VOCABULARY,
        "warmup": TRAINING.warmup,
        "steps": steps,
        "norms_warmup": BRIEF.warmup,
        "norms_steps": BRIEF.steps,
        "norms_peak_lr": BRIEF.peak_lr,
        "max_tokens": TRAINING.max_tokens,
        "sentences": sentences,
    }
    run = partial(measure, steps=steps, sentences=sentences)
    tasks = [{"row": row, "seed": seed} for seed in seeds for row in rows]
    common.make_runs(results, "table3", settings, tasks, run, jobs)


if __name__ == "__main__":
    common.command(main)
