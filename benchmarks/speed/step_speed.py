"""Measure the levers of chapter 25 one at a time, and all together.

    python -m benchmarks.speed.step_speed --preset small

Every system trains on the same sentences and takes its turn in each round, so noise hits all of
them alike. On a GPU it measures bf16, TF32 and a padded vocabulary as well, with --compile compiled
layers. The peak of a GPU is in its data sheet (dense bf16): give it with --peak. Writes
`results/speed-PRESET-DEVICE-THREADS.jsonl`, with --compile `...-compile.jsonl`.
"""

import copy
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import nn

from annotated_transformer import EncodedCorpus, SmoothedLoss, Transformer
from annotated_transformer import preset as make_config
from annotated_transformer.batching import Batch, collate, plan_batches
from annotated_transformer.masks import PAD
from annotated_transformer.speed import FastLoss, compile_layers, flops
from annotated_transformer.toolkit.planning import best_precision, measured_peak
from annotated_transformer.toolkit.runs import move
from benchmarks import common
from benchmarks.speed.levers import (
    AddedMasks,
    CausalKernel,
    ReadableLoss,
    with_one_product,
)

REFERENCE = "this book's step"
ALL = "all together"
COMPILED = "compiled"
EXACT = "compiled for each shape"
Part = list[np.ndarray]  # the rows of some batches

# --- Systems ---


@dataclass
class Data:
    """The batches of each round, and where they are computed."""

    corpus: EncodedCorpus
    rounds: list[Part]
    device: torch.device

    def load(self, part: Part) -> Iterator[Batch]:
        """Read the batches of a part."""
        for rows in part:
            batch = collate([self.corpus[row] for row in rows])
            yield move(batch, self.device)

    def target_tokens(self, part: Part) -> int:
        """Count the target tokens of a part."""
        return sum(int(self.corpus.lengths[rows, 1].sum()) for rows in part)

    def shapes(self) -> dict[tuple[int, ...], np.ndarray]:
        """Return each shape that a batch has, with the rows of one such batch."""
        shapes = {}
        for part in self.rounds:
            for rows in part:
                widths = self.corpus.lengths[rows].max(axis=0)
                shapes[(len(rows), *widths.tolist())] = rows
        return shapes


def mixed(part: Part) -> Part:
    """The same sentences in no order, 32 a batch, padded to the longest of the batch."""
    rows = np.random.default_rng(0).permutation(np.concatenate(part))
    return [rows[start : start + 32] for start in range(0, len(rows), 32)]


@dataclass
class System:
    """A way to train: a loss, an optimizer, an order of the sentences, a form of products."""

    data: Data
    loss: SmoothedLoss
    adam: torch.optim.Adam
    order: Callable[[Part], Part] = list
    products: str = "highest"

    def turn(self, number: int) -> int:
        """Train on a round; return its target tokens."""
        part = self.data.rounds[number]
        torch.set_float32_matmul_precision(self.products)
        for batch in self.data.load(self.order(part)):
            tokens = (batch.target[:, 1:] != PAD).sum()  # no waiting for a GPU
            self.adam.zero_grad()
            (self.loss(*batch) / tokens).backward()
            self.adam.step()
        if self.data.device.type == "cuda":
            torch.cuda.synchronize(self.data.device)
        torch.set_float32_matmul_precision("highest")
        return self.data.target_tokens(part)


def make_systems(model: Transformer, data: Data) -> dict[str, System]:
    """Return all systems by name, but for those that compile."""
    fused = common.make_adam(model)
    single = common.make_adam(model, fused=False, foreach=False)
    plain = SmoothedLoss(model)
    one_product = with_one_product(model)
    systems = {
        REFERENCE: System(data, plain, fused),
        "without: sorted lengths": System(data, plain, fused, order=mixed),
        "without: fused Adam": System(data, plain, single),
        "without: fused attention": System(data, ReadableLoss(model), fused),
        "Q, K, V in one product": System(
            data, SmoothedLoss(one_product), common.make_adam(one_product)
        ),
        "causal kernel": System(data, CausalKernel(model), fused),
        "additive masks": System(data, AddedMasks(model), fused),
        "loss in chunks": System(data, FastLoss(model), fused),
    }
    precision = best_precision(data.device)
    fast = System(data, FastLoss(model, precision=precision), fused)
    if data.device.type == "cuda":
        size = math.ceil(model.config.vocabulary_size / 64) * 64
        wide = Transformer(replace(model.config, vocabulary_size=size)).to(data.device)
        systems["vocabulary of 64 n"] = System(
            data, SmoothedLoss(wide), common.make_adam(wide)
        )
        systems["TF32"] = System(data, plain, fused, products="high")
    if precision == "bf16":
        systems["bf16"] = fast
    systems[ALL] = fast
    return systems


def warm_up(loss: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Pass batches forward and back; return how many programs that compiles, in what time."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    start = time.perf_counter()
    for batch in batches:
        loss(*batch).backward()
    loss.zero_grad()
    return {
        "programs": counters["stats"]["unique_graphs"] - before,
        "seconds": round(time.perf_counter() - start, 1),
    }


def compiled_systems(
    model: Transformer, data: Data
) -> tuple[dict[str, System], common.Record]:
    """Return the systems with compiled layers, and what there is to say about them."""
    # What an earlier run has compiled must not help
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    precision = best_precision(data.device)
    any_size, each_shape = copy.deepcopy(model), copy.deepcopy(model)
    compile_layers(any_size)
    torch._dynamo.config.cache_size_limit = 10_000
    for layer in [*each_shape.encoder.layers, *each_shape.decoder.layers]:
        layer.compile(dynamic=False)
    shapes = data.shapes()
    notes: common.Record = {"shapes": len(shapes), "compiled": {}}
    systems = {}
    for name, variant in ((COMPILED, any_size), (EXACT, each_shape)):
        loss = FastLoss(variant, precision=precision)
        notes["compiled"][name] = warm_up(loss, data.load([*shapes.values()]))
        systems[name] = System(data, loss, common.make_adam(variant))
    return systems, notes


# --- The measurement ---


def gigabytes(system: System, device: torch.device) -> float:
    """Return the most memory of a GPU that a turn takes, with all that all systems keep."""
    torch.cuda.reset_peak_memory_stats(device)
    system.turn(0)
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)


def plan_rounds(
    corpus: EncodedCorpus, max_tokens: int, batches: int, rounds: int
) -> list[Part]:
    """Plan so many batches for each round, and for one that warms up."""
    plan = plan_batches(corpus.lengths, max_tokens, seed=0, epoch=0)
    plan *= math.ceil((rounds + 1) * batches / len(plan))
    starts = [number * batches for number in range(rounds + 1)]
    return [plan[start : start + batches] for start in starts]


def useful_share(corpus: EncodedCorpus, plan: Part) -> float:
    """Return the share of a plan's positions that are no padding."""
    useful = positions = 0
    for rows in plan:
        lengths = corpus.lengths[rows]
        useful += int(lengths.sum())
        positions += len(rows) * int(lengths.max(axis=0).sum())
    return round(useful / positions, 4)


def main(
    preset: str = "base" if common.GPU else "small",
    device: str = "cuda" if common.GPU else "cpu",
    vocabulary: int | None = None,
    max_tokens: int = 25_000 if common.GPU else 2048,
    batches: int = 20 if common.GPU else 2,
    rounds: int = 7,
    threads: int = 1,
    compile: bool = False,
    peak: float | None = None,
    corpus: common.Corpus = "multi30k",
    cpu_time: bool = False,
    results: Path = common.RESULTS,
) -> None:
    """Measure the levers of chapter 25."""
    torch.set_num_threads(threads)
    torch_device = torch.device(device)
    on_gpu = torch_device.type == "cuda"
    size = vocabulary or (37_000 if preset in ("base", "big") else 8000)
    examples = common.encoded(corpus, "train", size)
    data = Data(
        examples, plan_rounds(examples, max_tokens, batches, rounds), torch_device
    )
    torch.manual_seed(0)
    model = (
        Transformer(make_config(preset, vocabulary_size=size)).to(torch_device).train()
    )
    systems = make_systems(model, data)
    notes: dict[str, Any] = {}
    if compile:
        compiled, notes = compiled_systems(model, data)
        systems = {**systems, **compiled, ALL: compiled[COMPILED]}
    if peak is None:
        peak = measured_peak(
            torch_device, best_precision(torch_device), 8192 if on_gpu else 1536
        )
    turns = {name: system.turn for name, system in systems.items()}
    records = common.take_turns(turns, rounds, cpu_time)
    if on_gpu:
        notes["gigabytes"] = {
            name: gigabytes(system, torch_device) for name, system in systems.items()
        }

    plan = [rows for part in data.rounds[1:] for rows in part]
    source, target = examples.lengths[np.concatenate(plan)].T
    operations = sum(flops(model.config, source, target).values()) / int(target.sum())
    rows = []
    for name in systems:
        rate = statistics.median(common.rates(records, name))
        gain = common.median_ratio(records, name, REFERENCE)
        mfu = operations * rate / peak
        rows.append([name, f"{rate:,.0f}", f"{gain:.2f}", f"{mfu:.1%}"])
    print(common.table(["training", "tokens/s", "gain", "MFU"], rows))
    kind = common.device_name(torch_device).replace(" ", "-")
    settings = {
        "benchmark": "speed",
        "corpus": corpus,
        "preset": preset,
        "device": kind,
        "threads": threads,
        "compile": compile,
        "vocabulary_size": size,
        "max_tokens": max_tokens,
        "useful": useful_share(examples, plan),
        "peak": round(peak),
        "operations_per_token": round(operations),
        **notes,
        "clock": "processor" if cpu_time else "wall",
    }
    ending = "-compile" if compile else ""
    name = f"speed-{preset}-{kind}-{threads}{ending}"
    common.write_log(results, name, settings, records)


if __name__ == "__main__":
    tyro.cli(main)
