"""Table 3 in miniature: each row with half its layers, a quarter as wide; then norms and depth.

    python benchmarks/variations.py --jobs 2
    python benchmarks/variations.py --rows base C-N2 --seeds 0

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
from typing import Any
from unittest.mock import patch

import common
import torch
import tyro

from annotated_transformer import training
from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train, validation_loss
from annotated_transformer.transformer import (
    PRESETS,
    Transformer,
    TransformerConfig,
    parameter_count,
    preset,
)

ROWS = (*list(PRESETS)[list(PRESETS).index("base") :],)  # base, A-h1, ..., big
NORMS = [f"{form}-{layers}-{rise}" for layers in (2, 6, 12) for form in ("post", "pre")
         for rise in ("warm", "cold")]  # fmt: skip
SHALLOWER, NARROWER, VOCABULARY = 2, 4, 4000
TRAINING = TrainingConfig(steps=600, max_tokens=1024, warmup=200, lr_scale=0.5)
BRIEF = replace(TRAINING, steps=300, warmup=100, lr_scale=0.2)  # for the norms


def shape(name: str, vocabulary_size: int) -> TransformerConfig:
    """Return the model of a row: the paper's, with half its layers and a quarter of each width."""
    if name in NORMS:
        form, layers, _ = name.split("-")
        return replace(shape("base", vocabulary_size), layers=int(layers), pre_norm=form == "pre")
    paper = preset(name, vocabulary_size=vocabulary_size)
    widths = {key: getattr(paper, key) for key in ("d_model", "d_ff", "d_k", "d_v")}
    narrow = {key: width // NARROWER for key, width in widths.items() if width}
    return replace(paper, layers=paper.layers // SHALLOWER, **narrow)


def recipe(name: str, seed: int) -> TrainingConfig:
    """Return how a row is trained."""
    smoothing = float(name.removeprefix("D-smoothing")) if "smoothing" in name else 0.1
    return replace(BRIEF if name in NORMS else TRAINING, label_smoothing=smoothing, seed=seed)


def no_warm_up(step: int, d_model: int, warmup: int, lr_scale: float) -> float:
    """Return the rate of a step, at its peak from the first: from `warmup` on as ever."""
    return learning_rate(max(step, warmup), d_model, warmup, lr_scale)


@cache
def data(corpus: common.Corpus) -> tuple[Tokenizer, EncodedCorpus]:
    """Learn the subwords, and encode the training pairs."""
    pairs = common.read(corpus, "train")
    tokenizer = Tokenizer.train(pairs, vocabulary_size=VOCABULARY)
    return tokenizer, encode_pairs(tokenizer, pairs)


def measure(
    row: str, seed: int, steps: int | None, sentences: int, corpus: common.Corpus, device: str,
    threads: int,
) -> dict[str, Any]:  # fmt: skip
    """Train and score one row; return a line of the log."""
    torch.set_num_threads(threads)
    tokenizer, examples = data(corpus)
    held_out, config = common.read(corpus, "val"), recipe(row, seed)
    config = replace(config, steps=steps or config.steps)
    torch.manual_seed(seed)
    model = Transformer(shape(row, len(tokenizer))).to(device)
    begin, curve = time.perf_counter(), list[float]()
    rate = no_warm_up if row.endswith("cold") else learning_rate
    with patch.object(training, "learning_rate", rate):
        train(model, tokenizer, examples, config,
              report=lambda line: curve.append(round(line["loss"], 3)))  # fmt: skip
    trained = time.perf_counter()
    loss = validation_loss(model, encode_pairs(tokenizer, held_out), config.max_tokens)
    record = {"steps": config.steps, "validation_loss": round(loss, 4), "curve": curve}
    record |= {"perplexity": round(math.exp(loss), 2), "parameters": parameter_count(model)}
    if row in ROWS:
        some = held_out[:sentences]
        translations = translate(model, tokenizer, [pair.source for pair in some])
        found = score(translations, [pair.target for pair in some])
        record |= {"bleu": round(found.bleu, 2), "signature": found.bleu_signature}
    record |= {"device": device, "trained": round(trained - begin, 1)}
    return record | {"seconds": round(time.perf_counter() - begin, 1)}


def main(
    rows: tuple[str, ...] = (*ROWS, *NORMS), seeds: tuple[int, ...] = (0, 1, 2),
    steps: int | None = None, sentences: int = 1014, corpus: common.Corpus = "multi30k",
    jobs: int = 1, device: str = "cuda" if common.GPU else "cpu", threads: int = 1,
    results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Make the runs that the log doesn't have yet, some of them side by side."""
    if unknown := sorted({*rows} - {*ROWS, *NORMS}):
        raise SystemExit(f"no row {', '.join(unknown)}: take some of {', '.join((*ROWS, *NORMS))}")
    settings = {"benchmark": "variations", "shallower": SHALLOWER}
    settings |= {"narrower": NARROWER, "vocabulary": VOCABULARY}
    for kind, config in (("", TRAINING), ("norms_", BRIEF)):
        settings |= {f"{kind}{key}": getattr(config, key) for key in ("warmup", "lr_scale")}
        settings[f"{kind}steps"] = steps or config.steps
    settings |= {"max_tokens": TRAINING.max_tokens, "sentences": sentences}
    settings |= {"corpus": corpus, "threads": threads}
    fixed = {"steps": steps, "sentences": sentences, "corpus": corpus, "device": device}
    tasks = [{"row": row, "seed": seed} for seed in seeds for row in rows]
    path = results / f"variations{'' if steps is None else f'-{steps}'}.jsonl"
    common.make_runs(path, settings, tasks, partial(measure, **fixed, threads=threads), jobs)


if __name__ == "__main__":
    tyro.cli(main)
