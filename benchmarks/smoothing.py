"""Repeat chapter 17's pair of runs, without and with label smoothing, from several seeds.

    python benchmarks/smoothing.py --seeds 0 1 2 3 4 5

The seed draws the first weights and the order of the batches; seed 0 is the pair of the chapter.
Prints the rows of the chapter's table, and the mean difference of BLEU with its standard error.
"""

import argparse
import math
import statistics
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, write_log

from annotated_transformer.batching import Batch, Example, batches, collate, encode_pairs
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.evaluation import score
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating, greedy_decode

SHAPE: dict[str, Any] = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.0}
MAX_TOKENS, WARMUP, FACTOR = 384, 100, 0.5


def endless(examples: list[Example], seed: int) -> Iterator[Batch]:
    """Yield the batches of one epoch after the other."""
    return chain.from_iterable(batches(examples, MAX_TOKENS, seed, epoch) for epoch in range(400))


def train(
    examples: list[Example], vocabulary_size: int, smoothing: float, seed: int, steps: int
) -> Transformer:
    """Train a model as the chapter does."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocabulary_size, **SHAPE))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    for step, batch in zip(range(1, steps + 1), endless(examples, seed)):
        adam.param_groups[0]["lr"] = learning_rate(step, SHAPE["d_model"], WARMUP, FACTOR)
        logits = model(batch.source, batch.target[:, :-1])
        total, count = label_smoothed_loss(logits, batch.target[:, 1:], smoothing)
        adam.zero_grad()
        (total / count).backward()
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
        total, count = label_smoothed_loss(logits, labels, 0.0)
    confidence, word = logits.softmax(-1).max(-1)
    written = [tokenizer.decode(row) for row in greedy_decode(model, held_out.source)]
    return {
        "perplexity": round(math.exp(total / count), 4),
        "bleu": round(score(written, references).bleu, 2),
        "says": round(confidence[real].mean().item(), 4),
        "is_right": round((word == labels)[real].double().mean().item(), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--smoothing", type=float, default=0.1, help="of the second run of a pair")
    parser.add_argument("--steps", type=int, default=400, help="of a run")
    parser.add_argument("--sentences", type=int, default=200, help="held out, to measure with")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    pairs = grammar(18_200, seed=1)
    tokenizer = Tokenizer.train(pairs[:18_000], vocabulary_size=600)
    examples = encode_pairs(tokenizer, pairs)
    last = 18_000 + options.sentences
    held_out = collate(examples[18_000:last])
    references = [pair.target for pair in pairs[18_000:last]]

    records, gains = [], []
    for seed in options.seeds:
        found = {}
        for smoothing in (0.0, options.smoothing):
            model = train(examples[:18_000], len(tokenizer), smoothing, seed, options.steps)
            found[smoothing] = measure(model, tokenizer, held_out, references)
            records.append({"seed": seed, "smoothing": smoothing, **found[smoothing]})
        hard, smooth = found[0.0], found[options.smoothing]
        gains.append(smooth["bleu"] - hard["bleu"])
        cells = [f"{run['perplexity']:.2f}" for run in (hard, smooth)]
        cells += [f"{run['bleu']:.1f}" for run in (hard, smooth)]
        print("|", " | ".join([str(seed), *cells]), "|", flush=True)
    if len(gains) > 1:
        gain, error = statistics.mean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
        print(f"BLEU, smoothed minus hard: {gain:.1f}, standard error {error:.1f}")
    settings = {"benchmark": "smoothing", **SHAPE, "max_tokens": MAX_TOKENS, "warmup": WARMUP}
    settings |= {"factor": FACTOR, "steps": options.steps, "threads": options.threads}
    settings["sentences"] = len(references)
    write_log(options.results, "smoothing", settings, records)


if __name__ == "__main__":
    main()
