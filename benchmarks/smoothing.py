"""Repeat chapter 17's pair of runs, without and with label smoothing, from several seeds.

    python benchmarks/smoothing.py --seeds 0 1 2 3 4 5

The seed draws the first weights and the order of the batches; seed 0 is the pair of the chapter.
Prints the rows of the chapter's table, and the mean difference of BLEU with its standard error.
"""

import math
import statistics
from itertools import chain, islice
from pathlib import Path
from typing import Any

import common
import torch
import tyro

from annotated_transformer.batching import Batch, EncodedCorpus, batches, collate, encode_pairs
from annotated_transformer.evaluation import score
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    evaluating,
    greedy_decode,
)

SHAPE: dict[str, Any] = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.0}
MAX_TOKENS, WARMUP, LR_SCALE = 384, 100, 0.5


def train(
    corpus: EncodedCorpus, vocabulary_size: int, smoothing: float, seed: int, steps: int
) -> Transformer:
    """Train a model as the chapter does."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocabulary_size, **SHAPE))
    adam = common.make_adam(model)
    epochs = (batches(corpus, MAX_TOKENS, seed, epoch) for epoch in range(400))
    for step, batch in enumerate(islice(chain.from_iterable(epochs), steps), start=1):
        adam.param_groups[0]["lr"] = learning_rate(step, SHAPE["d_model"], WARMUP, LR_SCALE)
        labels = batch.target[:, 1:]
        loss = label_smoothed_loss(model(batch.source, batch.target[:, :-1]), labels, smoothing)
        adam.zero_grad()
        (loss / common.count(labels)).backward()
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
    confidence, word = logits.softmax(-1).max(-1)
    written = [tokenizer.decode(row) for row in greedy_decode(model, held_out.source)]
    return {
        "perplexity": round(math.exp(loss), 4),
        "bleu": round(score(written, references).bleu, 2),
        "says": round(confidence[real].mean().item(), 4),
        "is_right": round((word == labels)[real].double().mean().item(), 4),
    }


def main(
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5), smoothing: float = 0.1, steps: int = 400,
    sentences: int = 200, pairs: int = 18_000, threads: int = 1, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Repeat chapter 17's pair of runs from several seeds."""
    torch.set_num_threads(threads)
    made = grammar(pairs + sentences, seed=1)
    tokenizer = Tokenizer.train(made[:pairs], vocabulary_size=600)
    corpus, held_out = (encode_pairs(tokenizer, part) for part in (made[:pairs], made[pairs:]))
    references = [pair.target for pair in made[pairs:]]
    records, gains = [], []
    for seed in seeds:
        found = []
        for epsilon in (0.0, smoothing):
            model = train(corpus, len(tokenizer), epsilon, seed, steps)
            found.append(measure(model, tokenizer, collate([*held_out]), references))
            records.append({"seed": seed, "smoothing": epsilon, **found[-1]})
        gains.append(found[1]["bleu"] - found[0]["bleu"])
        cells = [f"{run['perplexity']:.2f}" for run in found]
        cells += [f"{run['bleu']:.1f}" for run in found]
        print("|", " | ".join([str(seed), *cells]), "|", flush=True)
    if len(gains) > 1:
        gain, error = statistics.mean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
        print(f"BLEU, smoothed minus hard: {gain:.1f}, standard error {error:.1f}")
    settings = {"benchmark": "smoothing", **SHAPE, "max_tokens": MAX_TOKENS, "warmup": WARMUP}
    settings |= {"lr_scale": LR_SCALE, "steps": steps, "threads": threads, "sentences": sentences}
    common.write_log(results, "smoothing", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
