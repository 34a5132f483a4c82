"""How do the time and the memory of a training step grow with length and with batch?

    python -m benchmarks.experiments.growth --preset small

Each point is a process of its own: a few steps over random tokens, the median of their times, and
how far the process's memory rose above what it held before the first step (weights and program).
One series makes the sentences longer and fewer, so that the number of tokens stays; the other adds
sentences of a fixed length. Linux only. Writes `results/growth-PRESET.jsonl`, which chapter 25
draws.
"""

import multiprocessing
import statistics
import time
from pathlib import Path

import torch
import tyro

from annotated_transformer import Transformer
from annotated_transformer import preset as make_config
from annotated_transformer.batching import Batch
from annotated_transformer.speed import FastLoss
from benchmarks import common

VOCABULARY = 8000
TOKENS = 4096  # of a batch, in the series that makes sentences longer
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
LENGTH = 32  # in the series that adds sentences
BATCHES = (8, 16, 32, 64, 128, 256)


def peak_memory() -> int:
    """Return the most bytes that this process has held, its parent not counted (Linux)."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024


def measure(
    preset: str, sentences: int, length: int, steps: int, threads: int, size: int
) -> common.Record:
    """Train for a few steps, in a fresh process; return the time of a step and its memory."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = make_config(preset, vocabulary_size=size, max_length=max(length, 16))
    loss = FastLoss(Transformer(config).train(), label_smoothing=0.1)
    adam = common.make_adam(loss.model)

    def step(sentences: int, length: int) -> float:
        tokens = torch.randint(4, size, (sentences, length))
        start = time.process_time()
        common.update(loss, Batch(tokens, tokens), adam)
        return time.process_time() - start

    step(1, 8)  # moments and gradients are there from now on
    before = peak_memory()
    seconds = statistics.median(step(sentences, length) for _ in range(steps))
    return {"seconds": round(seconds, 4), "bytes": peak_memory() - before}


def main(
    preset: str = "small",
    steps: int = 3,
    threads: int = 1,
    tokens: int = TOKENS,
    lengths: tuple[int, ...] = LENGTHS,
    batches: tuple[int, ...] = BATCHES,
    size: int = VOCABULARY,
    results: Path = common.RESULTS,
) -> None:
    """Measure both series and write the log."""
    points = [("length", tokens // length, length) for length in lengths]
    points += [("batch", sentences, LENGTH) for sentences in batches]
    spawn = multiprocessing.get_context("spawn")
    records = []
    for series, sentences, length in points:
        arguments = (preset, sentences, length, steps, threads, size)
        with spawn.Pool(1) as pool:
            costs = pool.apply(measure, arguments)
        point = {"series": series, "sentences": sentences, "length": length}
        records.append(point | costs)
        print(records[-1], flush=True)
    settings = {
        "benchmark": "growth",
        "preset": preset,
        "steps": steps,
        "threads": threads,
        "vocabulary": size,
    }
    common.write_log(results, f"growth-{preset}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
