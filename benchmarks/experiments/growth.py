"""How do the time and the memory of a training step grow with length and with batch?

    python -m benchmarks.experiments.growth --preset small

Each point is a process of its own: a few steps over random tokens, the median of their times, and
how far the process's memory rose above what it held before the first step (weights and program).
One series makes the sentences longer and fewer, so that the number of tokens stays; the other adds
sentences of a fixed length. Linux only. Writes `results/growth-PRESET.jsonl`, which chapter 26
draws.
"""

import multiprocessing
import statistics
import time
from pathlib import Path

import torch

from annotated_transformer import Transformer
from annotated_transformer import preset as preset_named
from annotated_transformer.batching import Batch
from annotated_transformer.decoding import use_fused
from annotated_transformer.speed import FastLoss
from annotated_transformer.training import make_adam
from benchmarks import common

VOCABULARY = 8000
LENGTH = 32  # in the series that adds sentences


def measure(preset: str, sentences: int, length: int, steps: int) -> common.Record:
    """Train for a few steps, in a fresh process; return the time of a step and its memory."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = preset_named(
        preset, vocabulary_size=VOCABULARY, max_length=max(length, 16)
    )
    model = Transformer(config)
    use_fused(model)
    loss = FastLoss(model)
    adam = make_adam(loss)

    def seconds(sentences: int, length: int) -> float:
        tokens = torch.randint(4, VOCABULARY, (sentences, length))
        start = time.process_time()
        for _ in common.updates(loss, adam, [Batch(tokens, tokens)], lambda step: 1e-4):
            pass
        return time.process_time() - start

    seconds(1, 8)  # moments and gradients are there from now on
    before = common.peak_memory()
    taken = statistics.median(seconds(sentences, length) for _ in range(steps))
    return {"seconds": round(taken, 4), "bytes": common.peak_memory() - before}


def main(
    preset: str = "small",
    steps: int = 3,
    tokens: int = 4096,
    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256),
    results: Path = common.RESULTS,
) -> None:
    """Measure batches of so many tokens, and so many sentences of 32 tokens."""
    points = [("length", tokens // length, length) for length in lengths]
    points += [("batch", sentences, LENGTH) for sentences in batches]
    spawn = multiprocessing.get_context("spawn")
    records = []
    for series, sentences, length in points:
        with spawn.Pool(1) as pool:
            costs = pool.apply(measure, (preset, sentences, length, steps))
        point = {"series": series, "sentences": sentences, "length": length}
        records.append(point | costs)
        print(records[-1], flush=True)
    settings = {"preset": preset, "steps": steps, "vocabulary": VOCABULARY}
    common.write_log(results, f"growth-{preset}", settings, records)


if __name__ == "__main__":
    common.command(main)
