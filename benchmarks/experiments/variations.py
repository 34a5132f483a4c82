"""Table 3 in miniature: each row with half its layers, a quarter as wide; then norms and depth.

    python -m benchmarks.experiments.variations --jobs 2
    python -m benchmarks.experiments.variations --rows base C-N2 --seeds 0

Trains each row of the paper's Table 3 on Multi30k, German to English, for the same number of
updates, and takes loss and BLEU on the validation captions, as the paper took them on newstest2013.
Then post-norm and pre-norm with 2, 6 and 12 layers, with and without warm-up, for fewer updates:
`--rows post-6-warm` is one of them. `results/variations.jsonl`, with `--steps 2400`
`variations-2400.jsonl`, has the settings first and then a line a run; a run that it has already is
not repeated. Chapter 22 draws it.
"""

import math
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import torch
import tyro

from annotated_transformer import (
    EncodedCorpus,
    Pair,
    Tokenizer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    encode_pairs,
    preset,
    score,
    train,
    training,
    translate,
)
from annotated_transformer.schedule import learning_rate
from annotated_transformer.toolkit.presets import TABLE_3, parameter_count
from annotated_transformer.training import validation_loss
from benchmarks import common

ROWS = ("base", *TABLE_3, "big")
NORMS = [
    f"{form}-{layers}-{rise}"
    for layers in (2, 6, 12)
    for form in ("post", "pre")
    for rise in ("warm", "cold")
]
SHALLOWER = 2
NARROWER = 4
VOCABULARY = 4000
TRAINING = TrainingConfig(steps=600, max_tokens=1024, warmup=200, lr_scale=0.5)
BRIEF = replace(TRAINING, steps=300, warmup=100, lr_scale=0.2)  # for the norms

# --- The rows ---


def shape(name: str, vocabulary_size: int) -> TransformerConfig:
    """Return the model of a row: the paper's, with half its layers and a quarter of each width."""
    if name in NORMS:
        form, layers, _ = name.split("-")
        base = shape("base", vocabulary_size)
        return replace(base, layers=int(layers), pre_norm=form == "pre")
    paper = preset(name, vocabulary_size=vocabulary_size)
    narrow = {}
    for width in ("d_model", "d_ff", "d_k", "d_v"):
        size = getattr(paper, width)
        if size is not None:
            narrow[width] = size // NARROWER
    return replace(paper, layers=paper.layers // SHALLOWER, **narrow)


def recipe(name: str, seed: int) -> TrainingConfig:
    """Return how a row is trained."""
    config = BRIEF if name in NORMS else TRAINING
    smoothing = 0.1
    if name.startswith("D-smoothing"):
        smoothing = float(name.removeprefix("D-smoothing"))
    return replace(config, label_smoothing=smoothing, seed=seed)


def no_warm_up(step: int, d_model: int, warmup: int, lr_scale: float) -> float:
    """Return the rate of a step, at its peak from the first: from `warmup` on as ever."""
    return learning_rate(max(step, warmup), d_model, warmup, lr_scale)


# --- One run ---


@cache
def data(corpus: common.Corpus) -> tuple[Tokenizer, EncodedCorpus]:
    """Learn the subwords, and encode the training pairs."""
    pairs = common.read(corpus, "train")
    tokenizer = Tokenizer.train(pairs, VOCABULARY)
    return tokenizer, encode_pairs(tokenizer, pairs)


def bleu(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]) -> common.Record:
    """Translate with a beam of 4, and score."""
    translations = translate(model, tokenizer, [pair.source for pair in pairs])
    scores = score(translations, [pair.target for pair in pairs])
    return {"bleu": round(scores.bleu, 2), "signature": scores.bleu_signature}


def measure(
    row: str,
    seed: int,
    steps: int | None,
    sentences: int,
    corpus: common.Corpus,
    device: str,
    threads: int,
) -> common.Record:
    """Train and score one row; return a line of the log."""
    torch.set_num_threads(threads)
    tokenizer, examples = data(corpus)
    held_out = common.read(corpus, "val")
    config = recipe(row, seed)
    if steps is not None:
        config = replace(config, steps=steps)
    torch.manual_seed(seed)
    model = Transformer(shape(row, len(tokenizer))).to(device)
    curve = list[float]()

    def report(line: common.Record) -> None:
        curve.append(round(line["loss"], 3))

    start = time.perf_counter()
    rate = no_warm_up if row.endswith("cold") else learning_rate
    with patch.object(training, "learning_rate", rate):
        train(model, tokenizer, examples, config, report=report)
    trained = round(time.perf_counter() - start, 1)
    loss = validation_loss(model, encode_pairs(tokenizer, held_out), config.max_tokens)
    record = {
        "steps": config.steps,
        "validation_loss": round(loss, 4),
        "curve": curve,
        "perplexity": round(math.exp(loss), 2),
        "parameters": parameter_count(model),
    }
    if row in ROWS:
        record |= bleu(model, tokenizer, held_out[:sentences])
    seconds = round(time.perf_counter() - start, 1)
    return record | {"device": device, "trained": trained, "seconds": seconds}


def settings_of(
    steps: int | None, sentences: int, corpus: common.Corpus, threads: int
) -> common.Record:
    """Return the first line of the log."""
    return {
        "benchmark": "variations",
        "shallower": SHALLOWER,
        "narrower": NARROWER,
        "vocabulary": VOCABULARY,
        "warmup": TRAINING.warmup,
        "lr_scale": TRAINING.lr_scale,
        "steps": steps or TRAINING.steps,
        "norms_warmup": BRIEF.warmup,
        "norms_lr_scale": BRIEF.lr_scale,
        "norms_steps": steps or BRIEF.steps,
        "max_tokens": TRAINING.max_tokens,
        "sentences": sentences,
        "corpus": corpus,
        "threads": threads,
    }


def main(
    rows: tuple[str, ...] = (*ROWS, *NORMS),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int | None = None,
    sentences: int = 1014,
    corpus: common.Corpus = "multi30k",
    jobs: int = 1,
    device: str = "cuda" if common.GPU else "cpu",
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet, some of them side by side."""
    unknown = sorted(set(rows) - {*ROWS, *NORMS})
    if unknown:
        names = ", ".join((*ROWS, *NORMS))
        raise SystemExit(f"no row {', '.join(unknown)}: take some of {names}")
    run = partial(
        measure,
        steps=steps,
        sentences=sentences,
        corpus=corpus,
        device=device,
        threads=threads,
    )
    tasks = [{"row": row, "seed": seed} for seed in seeds for row in rows]
    name = "variations" if steps is None else f"variations-{steps}"
    settings = settings_of(steps, sentences, corpus, threads)
    common.make_runs(results / f"{name}.jsonl", settings, tasks, run, jobs)


if __name__ == "__main__":
    tyro.cli(main)
