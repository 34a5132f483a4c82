"""How do the time and the memory of a training step grow with length and with batch?

    python benchmarks/growth.py --preset small

Each point is a process of its own: a few steps over random tokens, the median of their times, and
how far the process's memory rose above what it held before the first step (weights and program).
One series makes the sentences longer and fewer, so that the number of tokens stays; the other adds
sentences of a fixed length. Writes `results/growth-PRESET.jsonl`.
"""

import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import common
import torch
import tyro
from torch import Tensor

from annotated_transformer.batching import Batch
from annotated_transformer.speed import FastLoss
from annotated_transformer.training import training_step
from annotated_transformer.transformer import Transformer, preset

VOCABULARY, TOKENS, LENGTH = 8000, 4096, 32
LENGTHS, BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048), (8, 16, 32, 64, 128, 256)


def peak() -> int:
    """Return the most bytes that this process has held, its parent not counted (Linux)."""
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024


def measure(name: str, sentences: int, length: int, steps: int, threads: int, size: int) -> Any:
    """Train for a few steps, in a fresh process; return the time of a step and its memory."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = preset(name, vocabulary_size=size, max_length=max(length, 16))
    model = Transformer(config).train()
    loss, adam = FastLoss(model, label_smoothing=0.1), common.make_adam(model)

    def step(batch: Tensor) -> float:
        start = time.process_time()
        training_step(loss, [Batch(batch, batch)], adam)
        return time.process_time() - start

    step(torch.randint(4, size, (1, 8)))  # moments and gradients are there from now on
    before = peak()
    times = [step(torch.randint(4, size, (sentences, length))) for _ in range(steps)]
    return {"seconds": round(statistics.median(times), 4), "bytes": peak() - before}


def main(
    preset: str = "small", steps: int = 3, threads: int = 1, tokens: int = TOKENS,
    lengths: tuple[int, ...] = LENGTHS, batches: tuple[int, ...] = BATCHES, size: int = VOCABULARY,
    results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Measure both series and write the log."""
    points = [("length", tokens // length, length) for length in lengths]
    points += [("batch", sentences, LENGTH) for sentences in batches]
    spawn, records = multiprocessing.get_context("spawn"), []
    for series, sentences, length in points:
        with spawn.Pool(1) as pool:
            found = pool.apply(measure, (preset, sentences, length, steps, threads, size))
        records.append({"series": series, "sentences": sentences, "length": length, **found})
        print(records[-1], flush=True)
    settings = {"benchmark": "growth", "preset": preset, "steps": steps, "threads": threads}
    common.write_log(results, f"growth-{preset}", settings | {"vocabulary": size}, records)


if __name__ == "__main__":
    tyro.cli(main)
