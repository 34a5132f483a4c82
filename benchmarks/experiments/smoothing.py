"""Repeat chapter 17's pair of runs, without and with label smoothing, from several seeds.

    python -m benchmarks.experiments.smoothing --seeds 0 1 2 3 4 5

The seed draws the first weights and the order of the batches; seed 0 is the pair of the chapter.
Prints the rows of the chapter's table, and the mean difference of BLEU with its standard error.
Writes `results/smoothing.jsonl`.
"""

import math
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import tyro

from annotated_transformer import (
    EncodedCorpus,
    Tokenizer,
    Transformer,
    TransformerConfig,
    encode_pairs,
    grammar,
    score,
)
from annotated_transformer.batching import Batch, collate
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import evaluating, greedy_decode
from benchmarks import common

SHAPE: dict[str, Any] = {
    "layers": 1,
    "d_model": 64,
    "d_ff": 256,
    "heads": 4,
    "dropout": 0.0,
}
MAX_TOKENS = 384
WARMUP = 100
LR_SCALE = 0.5


def train(
    corpus: EncodedCorpus, vocabulary_size: int, smoothing: float, seed: int, steps: int
) -> Transformer:
    """Train a model as the chapter does."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocabulary_size, **SHAPE))
    adam = common.make_adam(model)
    stream = common.endless_batches(corpus, MAX_TOKENS, seed)
    for step, batch in enumerate(islice(stream, steps), start=1):
        lr = learning_rate(step, SHAPE["d_model"], WARMUP, LR_SCALE)
        adam.param_groups[0]["lr"] = lr
        logits = model(batch.source, batch.target[:, :-1])
        labels = batch.target[:, 1:]
        loss = label_smoothed_loss(logits, labels, smoothing) / common.count(labels)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model


def measure(
    model: Transformer, tokenizer: Tokenizer, held_out: Batch, references: list[str]
) -> dict[str, float]:
    """Measure what the chapter asks: perplexity with hard labels, confidence, and BLEU."""
    labels = held_out.target[:, 1:]
    real = labels != PAD
    with evaluating(model):
        logits = model(held_out.source, held_out.target[:, :-1])
    loss = label_smoothed_loss(logits, labels, 0.0) / common.count(labels)
    confidence, words = logits.softmax(-1).max(-1)
    rows = greedy_decode(model, held_out.source)
    translations = [tokenizer.decode(row) for row in rows]
    return {
        "perplexity": round(math.exp(loss), 4),
        "bleu": round(score(translations, references).bleu, 2),
        "says": round(confidence[real].mean().item(), 4),
        "is_right": round((words == labels)[real].double().mean().item(), 4),
    }


def main(
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5),
    smoothing: float = 0.1,
    steps: int = 300,
    sentences: int = 200,
    pairs: int = 5_000,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Repeat chapter 17's pair of runs from several seeds."""
    torch.set_num_threads(threads)
    drawn = grammar(pairs + sentences, seed=1)
    tokenizer = Tokenizer.train(drawn[:pairs], vocabulary_size=600)
    corpus = encode_pairs(tokenizer, drawn[:pairs])
    held_out = collate([*encode_pairs(tokenizer, drawn[pairs:])])
    references = [pair.target for pair in drawn[pairs:]]
    records = []
    gains = []
    for seed in seeds:
        runs = []
        for epsilon in (0.0, smoothing):
            model = train(corpus, len(tokenizer), epsilon, seed, steps)
            run = measure(model, tokenizer, held_out, references)
            records.append({"seed": seed, "smoothing": epsilon, **run})
            runs.append(run)
        hard, smoothed = runs
        gains.append(smoothed["bleu"] - hard["bleu"])
        perplexities = f"{hard['perplexity']:.2f} | {smoothed['perplexity']:.2f}"
        scores = f"{hard['bleu']:.1f} | {smoothed['bleu']:.1f}"
        print(f"| {seed} | {perplexities} | {scores} |", flush=True)
    if len(gains) > 1:
        gain = statistics.mean(gains)
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        print(f"BLEU, smoothed minus hard: {gain:.1f}, standard error {error:.1f}")
    settings = {
        "benchmark": "smoothing",
        **SHAPE,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "lr_scale": LR_SCALE,
        "steps": steps,
        "threads": threads,
        "sentences": sentences,
    }
    common.write_log(results, "smoothing", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
