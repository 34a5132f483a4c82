"""Measure a training step: each lever of chapter 26 by itself, and where the time goes.

    python -m benchmarks.speed.step_speed                     # on a CPU: the small model
    python -m benchmarks.speed.step_speed --peak 989e12       # an H200: base and big

The peak of a GPU is in its data sheet (dense bf16); without it, a large product shows it. Each
measurement is a line of `results/gpu-DEVICE.jsonl`, or `results/cpu.jsonl`, as soon as it is made,
so a run that was stopped goes on with what is missing. What fails, for lack of memory for example,
is a line with the error. The text is made up, with lengths and frequencies like those of WMT14.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.profiler import ProfilerActivity, profile

from annotated_transformer import TrainingConfig, Transformer, preset, speed
from annotated_transformer.batching import EncodedCorpus, plan_batches
from annotated_transformer.decoding import use_fused
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.trainer import load_batches
from annotated_transformer.training import make_adam
from benchmarks import common
from benchmarks.speed import made_up

GPU = torch.cuda.is_available()
ALL_KERNELS = [*speed.FUSED, SDPBackend.CUDNN_ATTENTION]


@dataclass(frozen=True)
class Bench:
    """What all measurements share."""

    device: torch.device
    corpus: EncodedCorpus
    vocabulary: int
    peak: float  # operations per second, of bf16 if there is such
    updates: int  # in a round
    rounds: int


@dataclass(frozen=True)
class Setup:
    """How a model is trained; the defaults are this book's step."""

    preset: str
    max_tokens: int
    precision: speed.Precision = "fp32"
    tf32: bool = False
    compile: bool = False
    cudnn: bool = False  # may compute attention
    sorted: bool = True  # batches of like lengths
    loss: str = "chunked"
    chunk: int = speed.CHUNK


def setups(presets: tuple[str, ...], max_tokens: int, on_gpu: bool) -> dict[str, Setup]:
    """Return each model with this book's step, and the first model with one thing changed."""
    precision = speed.best_precision(torch.device("cuda" if on_gpu else "cpu"))
    named = {}
    for name in presets:
        named[name] = Setup(name, max_tokens, precision)
        named[f"{name}, compiled"] = replace(named[name], compile=True)
    plain = named[presets[0]]
    named["fp32"] = replace(plain, precision="fp32")
    named["without sorted lengths"] = replace(plain, sorted=False)
    if on_gpu:
        named["TF32"] = replace(plain, precision="fp32", tf32=True)
        named["cuDNN's attention"] = replace(plain, cudnn=True)
    for size in (max_tokens // 8, max_tokens // 2, 2 * max_tokens, 4 * max_tokens):
        named[f"{size:,} tokens"] = replace(plain, max_tokens=size)
    return named


# --- What a profile tells ---

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


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel."""
    for kind, words in KINDS.items():
        if any(word in kernel for word in words):
            return kind
    return "other"


def profiled(turn: Callable[[], Any], updates: int, on_gpu: bool) -> common.Record:
    """Return milliseconds of an update by kind of kernel, and the 20 kernels that take most.

    On a CPU, operations stand in for kernels.
    """
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        turn()
    launches = 0
    by_kind = dict.fromkeys([*KINDS, "other"], 0.0)
    kernels = []
    for kernel in profiler.key_averages():
        # An annotation is a span that a program has named
        on_device = kernel.device_type.name == ("CUDA" if on_gpu else "CPU")
        if not on_device or kernel.is_user_annotation:
            continue
        taken = kernel.self_device_time_total if on_gpu else kernel.self_cpu_time_total
        milliseconds = taken / 1000 / updates
        launches += kernel.count
        by_kind[kind_of(kernel.key)] += milliseconds
        count = kernel.count // updates
        kernels.append([round(milliseconds, 3), count, kernel.key[:120]])
    return {
        "launches": launches // updates,
        "kernels": {kind: round(ms, 3) for kind, ms in by_kind.items()},
        "slowest": sorted(kernels, reverse=True)[:20],
    }


# --- A training step ---


def plan_of(bench: Bench, setup: Setup) -> list[np.ndarray]:
    """Plan the batches of all rounds, the first timed one twice: the second time for the profiler.

    Unsorted, each batch must have room for the widest sentence.
    """
    lengths = bench.corpus.lengths
    if setup.sorted:
        plan = plan_batches(lengths, setup.max_tokens, seed=0, epoch=0)
    else:
        rows = np.random.default_rng(0).permutation(len(lengths))
        size = setup.max_tokens // int(lengths.max())
        plan = [rows[start : start + size] for start in range(0, len(rows), size)]
    count = bench.updates * (bench.rounds + 1)
    plan = (plan * math.ceil(count / len(plan)))[:count]
    return plan + plan[bench.updates : 2 * bench.updates]


def measure_step(bench: Bench, setup: Setup) -> common.Record:
    """Train for some rounds; the first one warms up, and the second is profiled afterwards."""
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("high" if setup.tf32 else "highest")
    torch.manual_seed(0)
    config = preset(setup.preset, vocabulary_size=bench.vocabulary)
    model = Transformer(config).to(bench.device)
    use_fused(model)
    if setup.compile:
        speed.compile_layers(model)
    loss = speed.FastLoss(model, precision=setup.precision)
    adam = make_adam(loss)
    plan = plan_of(bench, setup)
    stream = iter(load_batches(bench.corpus, plan, bench.device))

    def turn() -> int:
        kernels = ALL_KERNELS if setup.cudnn else speed.FUSED
        with patch.object(speed, "FUSED", kernels):
            batches = islice(stream, bench.updates)
            made = [*common.updates(loss, adam, batches, lambda step: 1e-4)]
        return int(sum(update.tokens for update in made))  # waits for a GPU

    tokens, seconds = [], []
    for _ in range(bench.rounds + 1):
        start = time.perf_counter()
        tokens.append(turn())
        seconds.append(round(time.perf_counter() - start, 4))

    lengths = bench.corpus.lengths
    real = lengths[np.concatenate(plan)]
    positions = sum(len(r) * int(lengths[r].max(axis=0).sum()) for r in plan)
    operations = sum(speed.flops(config, *real.T).values()) / int(real[:, 1].sum())
    profiled_lengths = lengths[np.concatenate(plan[-bench.updates :])]
    profiled_operations = sum(speed.flops(config, *profiled_lengths.T).values())
    rate = median(count / took for count, took in zip(tokens[1:], seconds[1:]))
    training = TrainingConfig(steps=1, max_tokens=setup.max_tokens)
    planned = speed.estimate(config, training, lengths, setup.precision)
    return {
        **asdict(setup),
        "tokens": tokens[1:],
        "seconds": seconds[1:],
        "first_seconds": seconds[0],
        "tokens_per_second": round(rate),
        "mfu": round(rate * operations / bench.peak, 4),
        "useful": round(int(real.sum()) / positions, 4),
        "planned_gigabytes": round(float(planned.memory_bytes) / 1e9, 2),
        "kernel_operations": float(profiled_operations) / bench.updates,
        **profiled(turn, bench.updates, bench.device.type == "cuda"),
    }


# --- The loss alone ---


def all_logits(states: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Return the loss as chapter 17 computes it."""
    return label_smoothed_loss(states @ matrix.T, labels)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "chunked_loss, smoothing 0.1": speed.chunked_loss,
    "all logits, smoothing 0.1": all_logits,
}


def measure_loss(
    bench: Bench, loss: Callable[..., Tensor], d_model: int, positions: int
) -> common.Record:
    """Time a loss of (states, matrix, labels), forward and backward, in bf16."""
    torch.manual_seed(0)
    states = torch.randn(positions, d_model, device=bench.device) / math.sqrt(d_model)
    matrix = torch.randn(bench.vocabulary, d_model, device=bench.device)
    matrix = matrix / math.sqrt(d_model)
    labels = torch.randint(4, bench.vocabulary, (positions,), device=bench.device)
    states.requires_grad_()
    matrix.requires_grad_()
    seconds = []
    for _ in range(bench.rounds + 1):
        states.grad = matrix.grad = None
        float(labels.sum())  # waits for a GPU
        start = time.perf_counter()
        with torch.autocast(bench.device.type, torch.bfloat16):
            value = loss(states, matrix, labels)
        value.backward()
        value.item()
        seconds.append(round(time.perf_counter() - start, 5))
    return {
        "milliseconds": round(1e3 * median(seconds[1:]), 2),
        "loss": round(value.item() / len(labels), 4),
    }


# --- All measurements ---


def measure(
    name: str, actions: dict[str, Callable[[], common.Record]]
) -> common.Record:
    """Make a measurement; what fails gives a record with the error."""
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        record = actions[name]()
    except (OSError, torch.OutOfMemoryError) as error:  # OSError: no compiler
        record = {"error": str(error).strip()[-500:]}
    most = torch.cuda.max_memory_allocated() if GPU else 0
    return {**record, "gigabytes": round(most / 1e9, 2)}


def main(
    presets: tuple[str, ...] = ("base", "big") if GPU else ("small",),
    vocabulary: int = 37_000 if GPU else 8000,
    max_tokens: int = 25_000 if GPU else 2048,
    pairs: int = 200_000 if GPU else 20_000,
    updates: int = 5 if GPU else 2,
    rounds: int = 5,
    peak: float = 0.0,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Measure each model, each lever and the loss, and write each measurement into the log."""
    torch.set_num_threads(threads)
    device = torch.device("cuda" if GPU else "cpu")
    if not peak:
        precision = speed.best_precision(device)
        peak = float(f"{speed.measured_peak(device, precision):.2g}")
    corpus = made_up.corpus(pairs, vocabulary)
    bench = Bench(device, corpus, vocabulary, peak, updates, rounds)
    actions: dict[str, Callable[[], common.Record]] = {}
    for name, setup in setups(presets, max_tokens, GPU).items():
        actions[name] = partial(measure_step, bench, setup)
    width = preset(presets[0]).d_model
    for name, loss in LOSSES.items():
        actions[name] = partial(measure_loss, bench, loss, width, max_tokens)
    settings = {"threads": threads, "vocabulary": vocabulary, "max_tokens": max_tokens}
    where = common.device_name(device)
    runs = common.make_runs(
        results,
        f"gpu-{where}" if GPU else where,
        settings,
        [{"name": name} for name in actions],
        partial(measure, actions=actions),
    )
    rows = []
    for run in runs:
        if "tokens" in run:
            rates = [count / took for count, took in zip(run["tokens"], run["seconds"])]
            speeds = (run["tokens_per_second"], min(rates), max(rates))
            row = [run["name"], *(f"{rate:,.0f}" for rate in speeds)]
            rows.append([*row, f"{run['mfu']:.1%}"])
    header = ["training", "target tokens/s", "slowest", "fastest", "MFU"]
    print(common.table(header, rows))


if __name__ == "__main__":
    common.command(main)
