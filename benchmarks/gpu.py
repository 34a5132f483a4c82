"""Measure on a GPU what chapter 25 says about GPUs: one command for all of it.

    python benchmarks/gpu.py --peak 989e12                  # an H200: dense bf16, by its data sheet
    python benchmarks/gpu.py --parts throughput decoding    # two parts of seven
    python benchmarks/gpu.py --device cpu --tiny            # a rehearsal of everything, in a minute

Each measurement is a line of results/gpu-DEVICE.jsonl as soon as it is made, so a run that was
stopped goes on with what is missing; with --again the chosen parts are measured anew. The text is
made up, with lengths and frequencies like those of WMT14.
"""

import gc
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args
from unittest.mock import patch

import common
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import tyro
from speed import AddedMasks, KeptWeights, OtherMasks, with_one_product
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile

from annotated_transformer import batching, decoding, speed
from annotated_transformer.batching import EncodedCorpus, batches, pad, plan_batches
from annotated_transformer.decoding import beam_search, length_batches
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.training import Stopped, Training, TrainingConfig, run, training_step
from annotated_transformer.transformer import Transformer, preset

Record = dict[str, Any]
KINDS = {  # words in the names of kernels; the first kind that fits ("Gamma" has an "mm")
    "normalization": ("layer_norm", "LayerNorm", "GammaBeta"),
    "attention": ("fmha", "flash", "attention"),
    "products": ("gemm", "nvjet", "cutlass", "splitKreduce", "mm", "linear"),
    "loss": ("SoftMax", "nll_loss", "log_softmax"),
    "compiled": ("triton",),
    "dropout": ("dropout",),
    "Adam": ("FusedOptimizer", "multi_tensor_apply"),
    "copies and numbers of 16 bits": ("copy", "Memcpy", "CatArray"),
}
Part = Literal["throughput", "levers", "loss", "decoding", "steps", "compiled", "processes"]
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # lets two processes share a GPU, where NCCL can do it


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    presets: tuple[str, ...] = ("base", "big")
    vocabulary: int = 37_000
    pairs: int = 200_000
    max_tokens: int = 25_000  # of a batch, on either side
    other_batches: tuple[int, ...] = (3_125, 12_500, 50_000, 100_000)
    updates: int = 5  # in a round
    rounds: int = 5
    steps: int = 5000
    step_tokens: int = 6_250  # of a batch of these
    step_seconds: float = 7200  # at most
    sentences: int = 3003
    product: int = 8192  # the width of the matrices that show the peak
    backend: str = "inductor"  # that compiles


TINY = Scale(
    ("tiny",), vocabulary=300, pairs=200, max_tokens=400, other_batches=(200,), updates=2, rounds=1,
    steps=100, step_tokens=200, sentences=4, product=64, backend="eager",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """What all measurements share."""

    device: torch.device
    scale: Scale
    corpus: EncodedCorpus
    peak: float  # operations a second, of bf16 if there is such

    def model(self, name: str, vocabulary: int | None = None) -> Transformer:
        """Make a model, the same each time."""
        torch.manual_seed(0)
        config = preset(name, vocabulary_size=vocabulary or self.scale.vocabulary)
        with self.device:
            return Transformer(config).to(self.device)


def shaped(pairs: int, vocabulary: int) -> EncodedCorpus:
    """Make up a corpus that has a WMT14 corpus's lengths, and words as rare as real ones.

    The middle source of 10,000 WMT pairs has 27 tokens; logarithms of lengths scatter by 0.5, of
    their ratio by 0.25. The target says the source word by word, in the words of a dictionary.
    """
    rng = np.random.default_rng(0)
    dictionary, rows = rng.permutation(np.arange(4, vocabulary)), list[np.ndarray]()
    source = 27 * np.exp(0.5 * rng.standard_normal(pairs))
    target = source * np.exp(0.25 * rng.standard_normal(pairs))
    lengths = np.stack([source, target], axis=1).round().clip(2, 120).astype(np.int64)
    for s, t in lengths - 1:  # without </s>
        ranks = (vocabulary - 4) ** rng.random(s) - 1  # Zipf: a share of 1 / rank
        words = dictionary[(ranks.astype(int)[np.arange(t) * s // t])]
        rows += [ranks.astype(int) + 4, np.array([EOS, BOS]), words, np.array([EOS])]
    return EncodedCorpus(np.concatenate(rows).astype(np.int32), lengths)


# --- Training: throughput and levers ---


@dataclass(frozen=True)
class Setup:
    """How a model is trained; the defaults are this book's step on a GPU."""

    preset: str
    max_tokens: int
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    compile: bool = False
    fused: bool = True  # Adam in one kernel
    loss: str = "chunked"
    chunk: int = speed.CHUNK  # positions
    compiled_loss: bool = False
    cudnn: bool = False  # may compute attention
    joint: bool = False  # one product for queries, keys and values
    vocabulary: int | None = None
    pinned: bool = True  # a worker reads ahead, into pinned memory
    sorted: bool = True  # batches of like lengths


class PlainAdam(torch.optim.Adam):
    """Adam in many kernels, which knows no gradients to skip."""

    found_inf = property(lambda self: None, lambda self, value: None)


class Narrow(SmoothedLoss):
    """A loss that has all logits, in 16 bits."""

    def __init__(self, inner: SmoothedLoss) -> None:
        super().__init__(inner.model, inner.label_smoothing)
        self.inner = inner

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(source.device.type, torch.bfloat16), decoding.fast_kernels():
            return self.inner(source, target)


LOSSES: dict[str, type[SmoothedLoss]] = {
    "all logits": SmoothedLoss, "causal kernel": OtherMasks, "additive masks": AddedMasks,
    "kept weights": KeptWeights,
}  # fmt: skip


def kernel_times(turn: Callable[[], Any], gpu: bool) -> dict[str, list[float]]:
    """Return how many seconds each kernel of a turn takes, by name; on a CPU, each operation."""
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu]
    with profile(activities=kinds) as watched:
        turn()
    place, found = DeviceType.CUDA if gpu else DeviceType.CPU, dict[str, list[float]]()
    for e in watched.events():
        if e.device_type == place and not e.is_user_annotation:  # no spans that programs have named
            took = (e.self_cpu_time_total or e.time_range.elapsed_us()) / 1e6
            found.setdefault(e.name, []).append(took)
    return found


def by_kind(kernels: dict[str, list[float]], updates: int) -> dict[str, float]:
    """Return the milliseconds of an update by kind of kernel, from the kernels' names."""
    found = dict.fromkeys(KINDS, 0.0) | {"other": 0.0}
    for name, took in kernels.items():
        kinds = (kind for kind, words in KINDS.items() if any(word in name for word in words))
        found[next(kinds, "other")] += 1e3 * sum(took) / updates
    return {kind: round(ms, 3) for kind, ms in found.items()}


def plan_of(place: Place, setup: Setup) -> list[np.ndarray]:
    """Plan the batches of all rounds, the first timed one twice: the second time for the profiler.

    Unsorted, each batch must have room for the widest sentence.
    """
    lengths, scale = place.corpus.lengths, place.scale
    plan = plan_batches(lengths, setup.max_tokens, seed=0, epoch=0)
    if not setup.sorted:
        rows = np.random.default_rng(0).permutation(len(lengths))
        size = setup.max_tokens // int(lengths.max())
        plan = [rows[start : start + size] for start in range(0, len(rows), size)]
    wanted = scale.updates * (scale.rounds + 1)
    plan = (plan * math.ceil(wanted / len(plan)))[:wanted]
    return plan + plan[scale.updates : 2 * scale.updates]


def measure(place: Place, setup: Setup) -> Record:
    """Train for some rounds; the first one warms up, and the second is profiled afterwards."""
    from torch._dynamo.utils import counters

    scale, device, gpu = place.scale, place.device, place.device.type == "cuda"
    torch._dynamo.reset()
    if setup.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    model = place.model(setup.preset, setup.vocabulary).train()
    if setup.joint:
        model = with_one_product(model)
    if setup.compile:
        speed.compile_layers(model, scale.backend)
    precision = "bf16" if setup.precision == "bf16" else "fp32"
    loss: SmoothedLoss = speed.FastLoss(model, precision=precision)
    if setup.loss != "chunked":
        loss = Narrow(LOSSES[setup.loss](model))
    adam = common.make_adam(model) if setup.fused else PlainAdam(model.parameters(), lr=1e-4)
    plan, before = plan_of(place, setup), counters["stats"]["unique_graphs"]
    with patch.object(batching, "plan_batches", return_value=plan):
        stream = iter(batches(place.corpus, setup.max_tokens, gpu=setup.pinned and gpu))

    untouched = patch.object(torch.backends.cuda, "enable_cudnn_sdp")
    chunked, one_chunk = partial(speed.chunked_loss, chunk=setup.chunk), label_smoothed_loss
    if setup.compiled_loss:
        one_chunk = torch.compile(one_chunk, dynamic=True, backend=scale.backend)

    def turn() -> int:
        changed = patch.multiple(speed, label_smoothed_loss=one_chunk, chunked_loss=chunked)
        with changed, untouched if setup.cudnn else nullcontext():
            some = islice(stream, scale.updates)
            made = [training_step(loss, [batch.to(device)], adam) for batch in some]
            return int(torch.stack(made)[:, 1].sum())  # waits for the GPU

    tokens, seconds, programs = list[int](), list[float](), list[int]()
    for _ in range(scale.rounds + 1):
        start = time.perf_counter()
        tokens.append(turn())
        seconds.append(round(time.perf_counter() - start, 4))
        programs.append(counters["stats"]["unique_graphs"] - before)
    config, lengths = model.config, place.corpus.lengths
    training = TrainingConfig(steps=1, max_tokens=setup.max_tokens)
    planned = speed.estimate(config, training, lengths, precision).memory_bytes
    kernels, n = kernel_times(turn, gpu), scale.updates
    busy, launches = (sum(map(of, kernels.values())) / n for of in (sum, len))
    places = sum(len(rows) * int(lengths[rows].max(axis=0).sum()) for rows in plan)
    profiled, lengths = lengths[np.concatenate(plan[-n:])], lengths[np.concatenate(plan)]
    operations = sum(speed.flops(config, *lengths.T).values()) / int(lengths[:, 1].sum())
    rate = median(t / s for t, s in zip(tokens[1:], seconds[1:]))
    return {
        **asdict(setup), "tokens": tokens[1:], "seconds": seconds[1:], "first_seconds": seconds[0],
        "tokens_per_second": round(rate), "mfu": round(rate * operations / place.peak, 4),
        "useful": round(int(lengths.sum()) / places, 4), "programs": programs,
        "planned_gigabytes": round(float(planned) / 1e9, 2),
        "launches": int(launches), "kernels": by_kind(kernels, n),
        "kernel_share": round(busy * n / seconds[1], 3),
        "kernel_operations": float(sum(speed.flops(config, *profiled.T).values())) / n,
        "slowest": [
            [round(1e3 * sum(kernels[name]) / n, 3), len(kernels[name]) // n, name[:120]]
            for name in sorted(kernels, key=lambda name: -sum(kernels[name]))[:20]
        ],
    }  # fmt: skip


# --- The loss, 5,000 steps, decoding, two processes ---


def time_loss(place: Place, loss: Callable[..., Tensor]) -> Record:
    """Time a loss of (states, matrix, labels), forward and backward, in bf16."""
    torch.manual_seed(0)
    scale, width = place.scale, preset(place.scale.presets[0]).d_model
    sizes = scale.max_tokens, scale.vocabulary
    drawn: list[Any] = [torch.randn(n, width, device=place.device) / width**0.5 for n in sizes]
    labels = torch.randint(4, scale.vocabulary, sizes[:1], device=place.device)
    seconds, value = list[float](), torch.zeros(())
    for _ in range(scale.rounds + 1):
        inputs = [tensor.detach().requires_grad_() for tensor in drawn]
        float(labels.sum())  # waits for the GPU
        start = time.perf_counter()
        with torch.autocast(place.device.type, torch.bfloat16):
            value = loss(*inputs, labels)
        value.backward()
        float(inputs[1].grad[0, 0])
        seconds.append(round(time.perf_counter() - start, 5))
    found = {"milliseconds": round(1e3 * median(seconds[1:]), 2), "seconds": seconds[1:]}
    return found | {"loss": round(value.item() / len(labels), 4)}


def all_logits(rate: float, states: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Return the loss as chapter 17 computes it."""
    return label_smoothed_loss(F.linear(states, matrix), labels, rate)


def some_steps(place: Place) -> Record:
    """Train like the paper, shorter and on smaller batches; keep all that the training reports."""
    model, scale = place.model(place.scale.presets[0]), place.scale
    config = TrainingConfig(scale.steps, scale.step_tokens, warmup=4000, lr_scale=1.0)
    lines, nothing = list[Record](), EncodedCorpus(np.empty(0, np.int32), np.empty((0, 2), int))
    loss = speed.FastLoss(model, precision=speed.best_precision(place.device))
    tokenizer: Any = None  # needed only to save
    start = time.perf_counter()

    def report(line: Record) -> None:
        lines.append(line)
        if time.perf_counter() - start > scale.step_seconds:
            raise Stopped

    with suppress(Stopped):
        run(Training(
            model, tokenizer, loss, common.make_adam(model), config, place.corpus, nothing,
            None, report, None,
        ))  # fmt: skip
    norm = max(line["gradient_norm"] for line in lines)
    return {
        "took_seconds": round(time.perf_counter() - start, 1), "progress": lines,
        "first_loss": lines[0]["loss"], "last_loss": lines[-1]["loss"], "largest_gradient": norm,
    }  # fmt: skip


def decode(place: Place, beam: int, dtype: torch.dtype) -> Record:
    """Translate with random weights, which seldom end a sentence before its source's length."""
    model, sources = place.model(place.scale.presets[0]).to(dtype), list[np.ndarray]()
    for number in range(place.scale.sentences):
        sources.append(place.corpus[number % len(place.corpus)].source)
    took, parts = 0.0, [*length_batches([*map(len, sources)], place.scale.max_tokens)]
    for some in (parts[:1], parts):  # the first batch warms up
        start = time.perf_counter()
        for numbers in some:
            source = pad([sources[number] for number in numbers]).to(place.device)
            with decoding.fast_kernels():
                beam_search(model, source, beam, max_extra_tokens=0)
        took = round(time.perf_counter() - start, 3)
    return {"took_seconds": took, "sentences": len(sources), "tokens": sum(map(len, sources))}


def updates_of(place: Place, rank: int = 0, world_size: int = 1) -> Record:
    """Make three updates without dropout, with this process's share of the batches."""
    model = place.model(place.scale.presets[0]).eval()
    loss: Any = speed.FastLoss(model)
    loss, adam = DDP(loss) if world_size > 1 else loss, common.make_adam(model)
    stream = batches(place.corpus, place.scale.max_tokens, rank=rank, world_size=world_size)
    start, updates = time.perf_counter(), list[list[float]]()
    for batch in islice(stream, 3):
        updates.append(training_step(loss, [batch.to(place.device)], adam).tolist())
    took, (loss, tokens, _) = round(time.perf_counter() - start, 3), updates[-1]
    return {"took_seconds": took, "last_loss": round(loss / tokens, 5), "updates": updates}


def one_of_two(rank: int, folder: str, place: Place, backend: str) -> None:
    """Train as one of two processes on the same device."""
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store", rank=rank, world_size=2,
        timeout=timedelta(minutes=2),
    )  # fmt: skip
    found = updates_of(place, rank, 2)
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found))
    dist.destroy_process_group()


def two_processes(place: Place, backend: str) -> Record:
    """Let two processes share the device; their updates should be those of one."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, NCCL):
        mp.spawn(one_of_two, (folder, place, backend), nprocs=2)
        return json.loads(Path(folder, "found").read_text())


# --- All measurements ---


def measurements(place: Place) -> dict[Part, dict[str, Callable[[], Record]]]:
    """Return what there is to measure, by part and name."""
    scale = place.scale
    base, most = scale.presets[0], scale.max_tokens
    changes: dict[str, Record] = {
        "fp32": {"precision": "fp32"}, "TF32": {"precision": "tf32"},
        "cuDNN's attention": {"cudnn": True}, "without fused Adam": {"fused": False},
        "without reading ahead": {"pinned": False}, "without sorted lengths": {"sorted": False},
        **{name: {"loss": name} for name in LOSSES}, "chunks of 4,096": {"chunk": 4096},
        "compiled loss": {"compiled_loss": True}, "Q, K, V in one product": {"joint": True},
        "vocabulary of 64 n": {"vocabulary": math.ceil(scale.vocabulary / 64) * 64},
        **{f"{n:,} tokens": {"max_tokens": n} for n in scale.other_batches},
    }  # fmt: skip
    losses: dict[str, Callable[..., Tensor]] = {}
    for rate in (0.1, 0.0):
        losses[f"chunked_loss, smoothing {rate}"] = partial(
            speed.chunked_loss, label_smoothing=rate
        )
        losses[f"all logits, smoothing {rate}"] = partial(all_logits, rate)
    if hasattr(F, "linear_cross_entropy"):  # its form in chunks cannot smooth
        chunks: Any = torch.nn.LinearCrossEntropyOptions()
        theirs = partial(F.linear_cross_entropy, reduction="sum", ignore_index=PAD, options=chunks)
        losses["linear_cross_entropy, smoothing 0.0"] = theirs
    return {
        "throughput": {name: partial(measure, place, Setup(name, most)) for name in scale.presets},
        "compiled": {
            name + addition: partial(measure, place, Setup(name, most, compile=True, **change))
            for addition, change in (
                (", compiled", {}),
                (", all compiled, chunks of 4,096", {"compiled_loss": True, "chunk": 4096}),
            ) for name in scale.presets
        },
        "levers": {
            name: partial(measure, place, replace(Setup(base, most), **change))
            for name, change in changes.items()
        },
        "loss": {name: partial(time_loss, place, loss) for name, loss in losses.items()},
        "decoding": {
            f"{search}, {precision}": partial(decode, place, beam, dtype)
            for beam, search in ((1, "greedy"), (4, "beam 4"))
            for precision, dtype in speed.DTYPES.items()
        },
        "steps": {f"{scale.steps:,} steps of {base}": partial(some_steps, place)},
        "processes": {
            "one": partial(updates_of, place),
            **{
                f"two on one device, {name}": partial(two_processes, place, backend)
                for name, backend in (("gloo", "gloo"), ("NCCL", "cpu:gloo,cuda:nccl"))
                if name == "gloo" or place.device.type == "cuda"
            },
        },
    }  # fmt: skip


def main(
    parts: tuple[Part, ...] = get_args(Part), device: str = "cuda" if common.GPU else "cpu",
    tiny: bool = False, again: bool = False, seconds: float = 7200, peak: float | None = None,
    threads: int = 1, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Measure the parts that are chosen, and write each measurement into the log."""
    torch.set_num_threads(threads)
    where, scale = torch.device(device), TINY if tiny else Scale(step_seconds=seconds)
    gpu = where.type == "cuda"
    kind = torch.cuda.get_device_name(where).replace(" ", "-") if gpu else "cpu"
    path = results / f"gpu-{kind}{'-tiny' * tiny}.jsonl"
    lines = [*map(json.loads, path.read_text().splitlines())] if path.exists() else []
    lines = [line for line in lines if not (again and line.get("part") in parts)]
    if not lines:
        measured = round(speed.measured_peak(where, speed.best_precision(where), scale.product))
        found = {"benchmark": "gpu", "device": kind, "threads": threads, **common.machine()}
        found |= {"peak": peak or measured, "measured_peak": measured, "cuda": torch.version.cuda}
        lines = [found | {"scale": asdict(scale)}]
    results.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = {(line.get("part"), line.get("name")) for line in lines}
    place = Place(where, scale, shaped(scale.pairs, scale.vocabulary), lines[0]["peak"])
    everything = measurements(place)
    for part in parts:
        for name, action in everything[part].items():
            if (part, name) in known:
                continue
            line: Record = {"part": part, "name": name}
            torch.set_float32_matmul_precision("highest")
            if gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            try:
                line |= action()
            except Exception as error:  # out of memory, no compiler, no such NCCL: say so
                line["error"] = str(error).strip()[-500:]
            line["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2) if gpu else None
            gc.collect()
            with path.open("a") as log:
                log.write(json.dumps(line) + "\n")
            print({key: value for key, value in line.items() if not isinstance(value, list)})
    print(f"log: {path.name}")


if __name__ == "__main__":
    tyro.cli(main)
