"""Train without and with label smoothing, in pairs, from several seeds.

    python -m benchmarks.experiments.smoothing --seeds 0 1 2 3 4 5

The seed draws the first weights and the order of the batches. Writes `results/smoothing.jsonl`,
from which chapter 17 prints.
"""

import math
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from annotated_transformer import (
    Pair,
    Tokenizer,
    Transformer,
    TransformerConfig,
    grammar,
    score,
    translate,
)
from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.training import make_adam, validation_loss
from annotated_transformer.transformer import evaluating
from benchmarks import common

SHAPE: dict[str, Any] = {
    "layers": 1,
    "d_model": 64,
    "d_ff": 256,
    "heads": 4,
    "dropout": 0.0,
}
PAIRS = 5000
MAX_TOKENS = 384
WARMUP = 100
PEAK = 0.0063


@cache
def task(sentences: int) -> tuple[Tokenizer, EncodedCorpus, list[Pair]]:
    """Return the tokenizer, the pairs that are learned, and those held out."""
    drawn = grammar(PAIRS + sentences, seed=1)
    learned, held_out = drawn[:-sentences], drawn[-sentences:]
    tokenizer = Tokenizer.train(learned, vocabulary_size=600)
    return tokenizer, encode_pairs(tokenizer, learned), held_out


def rate(step: int) -> float:
    """Return the learning rate of a step."""
    return learning_rate(step, SHAPE["d_model"], WARMUP, PEAK)


def measure(seed: int, smoothing: float, steps: int, sentences: int) -> common.Record:
    """Train as the chapter does; measure perplexity with hard labels, confidence and BLEU."""
    torch.set_num_threads(1)
    tokenizer, learned, held_out = task(sentences)
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(len(tokenizer), **SHAPE))
    loss = SmoothedLoss(model, smoothing)
    stream = islice(common.endless_batches(learned, MAX_TOKENS, seed), steps)
    for _ in common.updates(loss, make_adam(loss), stream, rate):
        pass
    encoded = encode_pairs(tokenizer, held_out)
    batch = common.as_batch(tokenizer, held_out)
    labels = batch.target[:, 1:]
    real = labels != PAD
    with evaluating(model):
        logits = model(batch.source, batch.target[:, :-1])
    confidence, words = logits.softmax(-1).max(-1)
    sources = [pair.source for pair in held_out]
    translations = translate(model, tokenizer, sources, beam=1)
    references = [pair.target for pair in held_out]
    return {
        "perplexity": round(math.exp(validation_loss(model, encoded, MAX_TOKENS)), 4),
        "bleu": round(score(translations, references).bleu, 2),
        "says": round(confidence[real].mean().item(), 4),
        "is_right": round((words == labels)[real].double().mean().item(), 4),
    }


def main(
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5),
    steps: int = 300,
    sentences: int = 200,
    results: Path = common.RESULTS,
) -> None:
    """Repeat chapter 17's pair of runs from several seeds."""
    settings = {
        **SHAPE,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "peak_lr": PEAK,
        "steps": steps,
        "sentences": sentences,
    }
    run = partial(measure, steps=steps, sentences=sentences)
    tasks = [{"seed": s, "smoothing": share} for s in seeds for share in (0.0, 0.1)]
    common.make_runs(results, "smoothing", settings, tasks, run)


if __name__ == "__main__":
    common.command(main)
