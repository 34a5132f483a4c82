"""Measure on a GPU what chapter 25 says about GPUs: one command for all of it.

    python -m benchmarks.speed.gpu --peak 989e12                  # an H200: dense bf16
    python -m benchmarks.speed.gpu --parts throughput decoding    # two parts of nine
    python -m benchmarks.speed.gpu --device cpu --tiny            # a rehearsal, in a minute

Do fewer launches pay, and how fast are others? At most ten minutes of an H100 or H200:

    timeout 600 python -m benchmarks.speed.gpu --peak 989e12 --parts rivals launches

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
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import tyro
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from annotated_transformer import (
    EncodedCorpus,
    SmoothedLoss,
    TrainingConfig,
    Transformer,
    preset,
    speed,
    train,
)
from annotated_transformer.batching import (
    Batch,
    Example,
    collate,
    pad,
    plan_batches,
)
from annotated_transformer.decoding import beam_search
from annotated_transformer.distributed import DataParallelLoss, all_reduce_mean
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.toolkit.graphs import GraphedLoss, Shapes, Step
from annotated_transformer.toolkit.planning import (
    best_precision,
    estimate,
    measured_peak,
)
from annotated_transformer.toolkit.runs import load_batches, move, shared_groups
from annotated_transformer.toolkit.translation import length_batches
from annotated_transformer.training import group_batches, training_step
from benchmarks import common
from benchmarks.speed import training_speed
from benchmarks.speed.levers import (
    AddedMasks,
    CausalKernel,
    ReadableLoss,
    with_one_product,
)

Record = common.Record
Action = Callable[[], Record]
Part = Literal[
    "throughput",
    "levers",
    "loss",
    "decoding",
    "steps",
    "compiled",
    "processes",
    "rivals",
    "launches",
]
# Lets two processes share a GPU, where NCCL can do it
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}

# --- How much is measured, on what ---


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
    ("tiny",),
    vocabulary=300,
    pairs=200,
    max_tokens=400,
    other_batches=(200,),
    updates=2,
    rounds=1,
    steps=100,
    step_tokens=200,
    sentences=4,
    product=64,
    backend="eager",
)


@dataclass(frozen=True)
class Bench:
    """What all measurements share."""

    device: torch.device
    scale: Scale
    corpus: EncodedCorpus
    peak: float  # operations a second, of bf16 if there is such

    @property
    def on_gpu(self) -> bool:
        """Tell whether the device is a GPU."""
        return self.device.type == "cuda"

    def model(self, name: str, vocabulary: int | None = None) -> Transformer:
        """Make a model, the same each time."""
        torch.manual_seed(0)
        config = preset(name, vocabulary_size=vocabulary or self.scale.vocabulary)
        with self.device:
            return Transformer(config).to(self.device)

    def first_model(self) -> Transformer:
        """Make the model of the first preset."""
        return self.model(self.scale.presets[0])


def shaped(pairs: int, vocabulary: int) -> EncodedCorpus:
    """Make up a corpus that has a WMT14 corpus's lengths, and words as rare as real ones.

    The middle source of 10,000 WMT pairs has 27 tokens; logarithms of lengths scatter by 0.5, of
    their ratio by 0.25. The target says the source word by word, in the words of a dictionary.
    """
    rng = np.random.default_rng(0)
    dictionary = rng.permutation(np.arange(4, vocabulary))
    source = 27 * np.exp(0.5 * rng.standard_normal(pairs))
    target = source * np.exp(0.25 * rng.standard_normal(pairs))
    lengths = np.stack([source, target], axis=1).round().clip(2, 120).astype(np.int64)
    rows = list[np.ndarray]()
    for source_words, target_words in lengths - 1:  # without </s>
        # Zipf: the word of a rank has a share of 1 / rank
        ranks = (vocabulary - 4) ** rng.random(source_words) - 1
        words = ranks.astype(int)
        said = words[np.arange(target_words) * source_words // target_words]
        rows += [words + 4, np.array([EOS, BOS]), dictionary[said], np.array([EOS])]
    return EncodedCorpus(np.concatenate(rows).astype(np.int32), lengths)


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
Kernels = dict[str, list[float]]  # seconds of each launch, by the kernel's name


CALLS = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync")  # of CUDA


def kernel_times(turn: Callable[[], Any], on_gpu: bool) -> tuple[Kernels, int]:
    """Return how many seconds each kernel of a turn takes, by name; on a CPU, each operation.

    The second number says how often the program handed something to the GPU: a kernel by itself, or
    a graph of many.
    """
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        turn()
    device = DeviceType.CUDA if on_gpu else DeviceType.CPU
    kernels: Kernels = {}
    handed_over = 0
    for event in profiler.events():
        on_host = event.device_type == DeviceType.CPU
        if on_host and event.name.startswith("cu"):
            handed_over += any(call in event.name for call in CALLS)
        # An annotation is a span that a program has named
        if event.device_type == device and not event.is_user_annotation:
            microseconds = event.self_cpu_time_total or event.time_range.elapsed_us()
            kernels.setdefault(event.name, []).append(microseconds / 1e6)
    return kernels, handed_over


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel."""
    for kind, words in KINDS.items():
        if any(word in kernel for word in words):
            return kind
    return "other"


def by_kind(kernels: Kernels, updates: int) -> dict[str, float]:
    """Return the milliseconds of an update by kind of kernel, from the kernels' names."""
    milliseconds = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, seconds in kernels.items():
        milliseconds[kind_of(name)] += 1e3 * sum(seconds) / updates
    return {kind: round(ms, 3) for kind, ms in milliseconds.items()}


def slowest(kernels: Kernels, updates: int) -> list[list[Any]]:
    """Return the 20 kernels that take most: milliseconds and launches of an update, and name."""
    names = sorted(kernels, key=lambda name: sum(kernels[name]), reverse=True)
    rows = []
    for name in names[:20]:
        milliseconds = round(1e3 * sum(kernels[name]) / updates, 3)
        rows.append([milliseconds, len(kernels[name]) // updates, name[:120]])
    return rows


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
    multiple: int = 1  # to which lengths are padded
    recorded: bool = False  # each shape of batch as a CUDA graph

    @property
    def loss_precision(self) -> speed.Precision:
        """Return the precision of the package's losses; TF32 is a form of fp32."""
        return "bf16" if self.precision == "bf16" else "fp32"


class CudnnLoss(speed.FastLoss):
    """The package's loss, whose attention cuDNN may compute."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        model = self.model
        bf16 = self.precision == "bf16"
        with torch.autocast(source.device.type, torch.bfloat16, bf16):
            states = model.decode(target[:, :-1], model.encode(source), source)
            return speed.chunked_loss(
                states.flatten(0, 1),
                model.embedding.weight,
                target[:, 1:].flatten(),
                self.label_smoothing,
                self.chunk,
            )


class Narrow(SmoothedLoss):
    """A loss that has all logits, in 16 bits."""

    def __init__(self, inner: SmoothedLoss) -> None:
        super().__init__(inner.model, inner.label_smoothing)
        self.inner = inner

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        with torch.autocast(source.device.type, torch.bfloat16):
            return self.inner(source, target)


LOSSES: dict[str, type[SmoothedLoss]] = {
    "all logits": SmoothedLoss,
    "causal kernel": CausalKernel,
    "additive masks": AddedMasks,
    "kept weights": ReadableLoss,
}


def make_loss(model: Transformer, setup: Setup) -> SmoothedLoss:
    """Make the loss of a setup; as long as nothing in it is changed, the package's own."""
    if setup.loss != "chunked":
        return Narrow(LOSSES[setup.loss](model))
    kind = CudnnLoss if setup.cudnn else speed.FastLoss
    loss = kind(model, precision=setup.loss_precision)
    loss.chunk = setup.chunk
    if not setup.recorded:
        return loss
    on_gpu = model.embedding.weight.is_cuda
    return GraphedLoss(loss, None if on_gpu else make_again)


def make_again(step: Step, batch: Batch) -> Step:
    """Stand in, on a CPU, for what records a step: make it again."""
    return step


def shapes_of(bench: Bench, setup: Setup) -> Shapes:
    """Return the shapes of a setup's batches."""
    return Shapes(setup.multiple, setup.max_tokens, longest=1024)


def plan_of(bench: Bench, setup: Setup) -> list[np.ndarray]:
    """Plan the batches of all rounds, the first timed one twice: the second time for the profiler.

    Unsorted, each batch must have room for the widest sentence.
    """
    lengths, scale = bench.corpus.lengths, bench.scale
    if setup.sorted:
        lengths = shapes_of(bench, setup).padded(lengths)
        plan = plan_batches(lengths, setup.max_tokens, seed=0, epoch=0)
    else:
        rows = np.random.default_rng(0).permutation(len(lengths))
        size = setup.max_tokens // int(lengths.max())
        plan = [rows[start : start + size] for start in range(0, len(rows), size)]
    count = scale.updates * (scale.rounds + 1)
    plan = (plan * math.ceil(count / len(plan)))[:count]
    return plan + plan[scale.updates : 2 * scale.updates]


class Trainer:
    """Trains a model as a setup says, a round at a time."""

    def __init__(self, bench: Bench, setup: Setup) -> None:
        self.bench = bench
        self.setup = setup
        self.plan = plan_of(bench, setup)
        model = bench.model(setup.preset, setup.vocabulary).train()
        self.model = with_one_product(model) if setup.joint else model
        if setup.compile:
            speed.compile_layers(self.model, bench.scale.backend)
        self.loss = make_loss(self.model, setup)
        if setup.fused:
            self.adam = common.make_adam(self.model)
        else:
            self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.chunk_loss: Callable[..., Tensor] = label_smoothed_loss
        if setup.compiled_loss:
            self.chunk_loss = torch.compile(
                label_smoothed_loss, dynamic=True, backend=bench.scale.backend
            )
        # As `batches` of the package, but with a plan of our own
        ahead = setup.pinned and bench.on_gpu
        self.stream = iter(
            DataLoader(
                bench.corpus,
                batch_sampler=self.plan,
                collate_fn=self.make_batch,
                num_workers=int(ahead),
                pin_memory=ahead,
            )
        )

    def make_batch(self, examples: list[Example]) -> Batch:
        """Return the batch of some examples, of one of the setup's shapes."""
        batch = collate(examples)
        if self.setup.multiple > 1:
            batch = shapes_of(self.bench, self.setup).fill_up(batch)
        return batch

    def record(self) -> float:
        """Record each shape of batch that is to come; return the seconds that this takes."""
        start = time.perf_counter()
        if isinstance(self.loss, GraphedLoss):
            for rows in self.plan:
                batch = self.make_batch([self.bench.corpus[row] for row in rows])
                self.loss(*move(batch, self.bench.device))
        return round(time.perf_counter() - start, 2)

    def turn(self) -> int:
        """Make the updates of a round; return the target tokens."""
        tokens = []
        with (
            common.cudnn_attention(self.setup.cudnn),
            # `chunked_loss` looks this function up for each chunk
            patch.object(speed, "label_smoothed_loss", self.chunk_loss),
        ):
            for batch in islice(self.stream, self.bench.scale.updates):
                batch = move(batch, self.bench.device)
                update = common.update(self.loss, batch, self.adam)
                tokens.append(update.tokens)
        return int(torch.stack(tokens).sum())  # waits for the GPU


def operations_of(model: Transformer, lengths: np.ndarray) -> float:
    """Return the useful operations of training on sentences of these lengths (N, 2)."""
    return sum(speed.flops(model.config, *lengths.T).values())


def sizes_of(trainer: Trainer) -> list[tuple[int, int, int]]:
    """Return the rows, source and target positions of each batch of a plan."""
    sizes = []
    for rows in trainer.plan:
        batch = trainer.make_batch([trainer.bench.corpus[row] for row in rows])
        sizes.append((*batch.source.shape, batch.target.size(1) - 1))
    return sizes


def measure(bench: Bench, setup: Setup) -> Record:
    """Train for some rounds; the first one warms up, and the second is profiled afterwards."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    if setup.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    trainer = Trainer(bench, setup)
    compiled_before = counters["stats"]["unique_graphs"]
    record_seconds = trainer.record()
    tokens, seconds, programs = list[int](), list[float](), list[int]()
    for _ in range(bench.scale.rounds + 1):
        start = time.perf_counter()
        tokens.append(trainer.turn())
        seconds.append(round(time.perf_counter() - start, 4))
        programs.append(counters["stats"]["unique_graphs"] - compiled_before)
    first_seconds, *seconds = seconds
    tokens = tokens[1:]
    rate = median(count / took for count, took in zip(tokens, seconds))

    model, plan, lengths = trainer.model, trainer.plan, bench.corpus.lengths
    config = TrainingConfig(steps=1, max_tokens=setup.max_tokens)
    planned = estimate(model.config, config, lengths, setup.loss_precision)
    all_lengths = lengths[np.concatenate(plan)]
    operations = operations_of(model, all_lengths) / int(all_lengths[:, 1].sum())
    updates = bench.scale.updates
    profiled = operations_of(model, lengths[np.concatenate(plan[-updates:])])
    sizes = sizes_of(trainer)
    positions = sum(rows * (source + target) for rows, source, target in sizes)
    kernels, handed_over = kernel_times(trainer.turn, bench.on_gpu)
    busy = sum(map(sum, kernels.values()))
    return {
        **asdict(setup),
        "tokens": tokens,
        "seconds": seconds,
        "first_seconds": first_seconds,
        "tokens_per_second": round(rate),
        "mfu": round(rate * operations / bench.peak, 4),
        "useful": round(int(all_lengths.sum()) / positions, 4),
        "shapes": len(set(sizes)),
        "record_seconds": record_seconds,
        "programs": programs,
        "planned_gigabytes": round(float(planned.memory_bytes) / 1e9, 2),
        "launches": sum(map(len, kernels.values())) // updates,  # of kernels
        "handed_over": handed_over // updates,  # by the program; a graph is one
        "kernels": by_kind(kernels, updates),
        "kernel_share": round(busy / seconds[0], 3),
        "kernel_operations": float(profiled) / updates,
        "slowest": slowest(kernels, updates),
    }


# --- The loss, 5,000 steps, decoding, two processes ---


def time_loss(bench: Bench, loss: Callable[..., Tensor]) -> Record:
    """Time a loss of (states, matrix, labels), forward and backward, in bf16."""
    scale = bench.scale
    width = preset(scale.presets[0]).d_model
    torch.manual_seed(0)
    states, matrix = (
        torch.randn(rows, width, device=bench.device) / math.sqrt(width)
        for rows in (scale.max_tokens, scale.vocabulary)
    )
    labels = torch.randint(
        4, scale.vocabulary, (scale.max_tokens,), device=bench.device
    )
    states.requires_grad_()
    matrix.requires_grad_()
    seconds = list[float]()
    for _ in range(scale.rounds + 1):
        states.grad = matrix.grad = None
        float(labels.sum())  # waits for the GPU
        start = time.perf_counter()
        with torch.autocast(bench.device.type, torch.bfloat16):
            value = loss(states, matrix, labels)
        value.backward()
        float(matrix.grad[0, 0])
        seconds.append(round(time.perf_counter() - start, 5))
    seconds = seconds[1:]  # the first turn warms up
    return {
        "milliseconds": round(1e3 * median(seconds), 2),
        "seconds": seconds,
        "loss": round(value.item() / len(labels), 4),
    }


def all_logits(rate: float, states: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Return the loss as chapter 17 computes it."""
    return label_smoothed_loss(F.linear(states, matrix), labels, rate)


class TimeIsUp(Exception):
    """A training has taken all the time it may."""


def some_steps(bench: Bench) -> Record:
    """Train like the paper, shorter and on smaller batches; keep all that the training reports."""
    scale = bench.scale
    model = bench.first_model()
    config = TrainingConfig(scale.steps, scale.step_tokens, warmup=4000, lr_scale=1.0)
    loss = speed.FastLoss(model, precision=best_precision(bench.device))
    no_tokenizer: Any = ()  # without a folder, only its length is asked for
    lines = list[Record]()
    start = time.perf_counter()

    def report(line: Record) -> None:
        lines.append(line)
        if time.perf_counter() - start > scale.step_seconds:
            raise TimeIsUp

    with suppress(TimeIsUp):
        train(model, no_tokenizer, bench.corpus, config, report=report, loss=loss)
    return {
        "took_seconds": round(time.perf_counter() - start, 1),
        "progress": lines,
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "largest_gradient": max(line["gradient_norm"] for line in lines),
    }


def decode(bench: Bench, beam: int, dtype: torch.dtype) -> Record:
    """Translate with random weights, which seldom end a sentence before its source's length."""
    model = bench.first_model().to(dtype)
    sources = []
    for number in range(bench.scale.sentences):
        sources.append(bench.corpus[number % len(bench.corpus)].source)
    lengths = [len(source) for source in sources]
    groups = [*length_batches(lengths, bench.scale.max_tokens)]

    def search(groups: list[list[int]]) -> float:
        start = time.perf_counter()
        for numbers in groups:
            source = pad([sources[number] for number in numbers]).to(bench.device)
            beam_search(model, source, beam, max_extra_tokens=0)
        return round(time.perf_counter() - start, 3)

    with common.cudnn_attention(False):
        search(groups[:1])  # warms up
        took = search(groups)
    return {
        "took_seconds": took,
        "sentences": len(sources),
        "tokens": sum(lengths),
    }


def three_updates(bench: Bench, world_size: int = 1) -> Record:
    """Make three updates without dropout, with this process's share of the batches."""
    loss: SmoothedLoss = speed.FastLoss(bench.first_model().eval())
    adam = common.make_adam(loss)
    if world_size > 1:
        loss = DataParallelLoss(loss)
    plan = plan_batches(bench.corpus.lengths, bench.scale.max_tokens, seed=0, epoch=0)
    stream = load_batches(bench.corpus, plan[:3], bench.device)
    updates = list[list[float]]()
    start = time.perf_counter()
    for group in shared_groups(group_batches(stream, 1)):
        update = training_step(loss, group, adam)
        total = world_size * float(all_reduce_mean(update.loss))
        tokens = world_size * float(update.tokens)
        updates.append([total, tokens, float(update.gradient_norm)])
    took = round(time.perf_counter() - start, 3)
    total, tokens, _ = updates[-1]
    return {
        "took_seconds": took,
        "last_loss": round(total / tokens, 5),
        "updates": updates,
    }


def one_of_two(rank: int, folder: str, bench: Bench, backend: str) -> None:
    """Train as one of two processes on the same device."""
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=2),
    )
    record = three_updates(bench, world_size=2)
    if rank == 0:
        Path(folder, "record").write_text(json.dumps(record))
    dist.destroy_process_group()


def two_processes(bench: Bench, backend: str) -> Record:
    """Let two processes share the device; their updates should be those of one."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, NCCL):
        mp.spawn(one_of_two, (folder, bench, backend), nprocs=2)
        return json.loads(Path(folder, "record").read_text())


# --- All measurements, by part and name ---


def throughput(bench: Bench) -> dict[str, Action]:
    """Each model with this book's step."""
    most = bench.scale.max_tokens
    return {
        name: partial(measure, bench, Setup(name, most)) for name in bench.scale.presets
    }


def compiled(bench: Bench) -> dict[str, Action]:
    """Each model with compiled layers, and with the loss compiled as well."""
    actions: dict[str, Action] = {}
    for name in bench.scale.presets:
        layers = Setup(name, bench.scale.max_tokens, compile=True)
        actions[f"{name}, compiled"] = partial(measure, bench, layers)
    for name in bench.scale.presets:
        layers = Setup(name, bench.scale.max_tokens, compile=True)
        whole = replace(layers, compiled_loss=True, chunk=4096)
        actions[f"{name}, all compiled, chunks of 4,096"] = partial(
            measure, bench, whole
        )
    return actions


def levers(bench: Bench) -> dict[str, Action]:
    """The first model, with one thing changed."""
    plain = Setup(bench.scale.presets[0], bench.scale.max_tokens)
    padded = math.ceil(bench.scale.vocabulary / 64) * 64
    setups = {
        "fp32": replace(plain, precision="fp32"),
        "TF32": replace(plain, precision="tf32"),
        "cuDNN's attention": replace(plain, cudnn=True),
        "without fused Adam": replace(plain, fused=False),
        "without reading ahead": replace(plain, pinned=False),
        "without sorted lengths": replace(plain, sorted=False),
        **{name: replace(plain, loss=name) for name in LOSSES},
        "chunks of 4,096": replace(plain, chunk=4096),
        "compiled loss": replace(plain, compiled_loss=True),
        "Q, K, V in one product": replace(plain, joint=True),
        "vocabulary of 64 n": replace(plain, vocabulary=padded),
    }
    for size in bench.scale.other_batches:
        setups[f"{size:,} tokens"] = replace(plain, max_tokens=size)
    return {name: partial(measure, bench, setup) for name, setup in setups.items()}


def losses(bench: Bench) -> dict[str, Action]:
    """The loss alone: in chunks, with all logits, and PyTorch's own."""
    functions: dict[str, Callable[..., Tensor]] = {}
    for rate in (0.1, 0.0):
        functions[f"chunked_loss, smoothing {rate}"] = partial(
            speed.chunked_loss, label_smoothing=rate
        )
        functions[f"all logits, smoothing {rate}"] = partial(all_logits, rate)
    if hasattr(F, "linear_cross_entropy"):  # its form in chunks cannot smooth
        functions["linear_cross_entropy, smoothing 0.0"] = partial(
            F.linear_cross_entropy,
            reduction="sum",
            ignore_index=PAD,
            options=torch.nn.LinearCrossEntropyOptions(),
        )
    return {
        name: partial(time_loss, bench, function)
        for name, function in functions.items()
    }


def searches(bench: Bench) -> dict[str, Action]:
    """Greedy search and a beam of 4, in each precision."""
    actions = {}
    for beam, search in ((1, "greedy"), (4, "beam 4")):
        for precision, dtype in speed.DTYPES.items():
            actions[f"{search}, {precision}"] = partial(decode, bench, beam, dtype)
    return actions


def steps(bench: Bench) -> dict[str, Action]:
    """The beginning of a training like the paper's."""
    name = f"{bench.scale.steps:,} steps of {bench.scale.presets[0]}"
    return {name: partial(some_steps, bench)}


def launches(bench: Bench) -> dict[str, Action]:
    """Each model with fewer launches: a loss in one chunk, compiled layers, recorded steps.

    The first model also on fewer tokens, where launches are most of a step.
    """
    actions: dict[str, Action] = {}
    scale = bench.scale
    for name in scale.presets:
        for form, setup in with_fewer_launches(Setup(name, scale.max_tokens)).items():
            actions[f"{name}, {form}"] = partial(measure, bench, setup)
    for size in scale.other_batches:
        if size < scale.max_tokens:
            forms = with_fewer_launches(Setup(scale.presets[0], size))
            for form in ("plain", "padded, recorded", "compiled, padded, recorded"):
                name = f"{size:,} tokens, {form}"
                actions[name] = partial(measure, bench, forms[form])
    return actions


def with_fewer_launches(plain: Setup) -> dict[str, Setup]:
    """Return what lowers the launches of a setup, one thing by itself and all together."""
    one_chunk = replace(plain, chunk=plain.max_tokens)
    padded = replace(one_chunk, multiple=8)
    return {
        "plain": plain,
        "one chunk": one_chunk,
        "padded": padded,
        "padded, recorded": replace(padded, recorded=True),
        "compiled": replace(plain, compile=True),
        "compiled, one chunk": replace(one_chunk, compile=True),
        "compiled, padded, recorded": replace(padded, compile=True, recorded=True),
    }


def by_turns(bench: Bench, cudnn: bool) -> Record:
    """Train the first model and those of other libraries by turns, on the same batches."""
    scale = bench.scale
    ours = bench.first_model()
    plan = plan_batches(bench.corpus.lengths, scale.max_tokens, seed=0, epoch=0)
    count = scale.updates * (scale.rounds + 1)
    stream = load_batches(bench.corpus, (plan * count)[:count], bench.device)
    rounds = [[*islice(stream, scale.updates)] for _ in range(scale.rounds + 1)]
    precision = best_precision(bench.device)
    loss = speed.FastLoss(ours, precision=precision)  # never lets cuDNN
    trainers = {"ours": training_speed.trainer(ours, loss, rounds)}
    for name, (model, rival) in training_speed.rivals_of(ours, precision).items():
        trainers[name] = training_speed.trainer(model, rival, rounds, cudnn)
    turns = common.take_turns(trainers, scale.rounds)
    return {
        "cudnn": cudnn,
        "tokens_per_second": {
            n: round(median(common.rates(turns, n))) for n in trainers
        },
        "times_as_fast": {
            n: round(common.median_ratio(turns, "ours", n), 2) for n in trainers
        },
        "turns": turns,
    }


def rivals(bench: Bench) -> dict[str, Action]:
    """The first model beside other libraries, which leave attention to cuDNN or not."""
    return {
        "without cuDNN's attention": partial(by_turns, bench, cudnn=False),
        "with cuDNN's attention": partial(by_turns, bench, cudnn=True),
    }


def processes(bench: Bench) -> dict[str, Action]:
    """The same updates by one process and by two."""
    actions: dict[str, Action] = {"one": partial(three_updates, bench)}
    actions["two on one device, gloo"] = partial(two_processes, bench, "gloo")
    if bench.on_gpu:
        nccl = partial(two_processes, bench, "cpu:gloo,cuda:nccl")
        actions["two on one device, NCCL"] = nccl
    return actions


PARTS: dict[Part, Callable[[Bench], dict[str, Action]]] = {
    "throughput": throughput,
    "levers": levers,
    "loss": losses,
    "decoding": searches,
    "steps": steps,
    "compiled": compiled,
    "processes": processes,
    "rivals": rivals,
    "launches": launches,
}

# --- The log ---


def begin_log(
    path: Path, scale: Scale, device: torch.device, peak: float | None, threads: int
) -> Record:
    """Write the first line of a log: the device, its peak, and how much is measured."""
    precision = best_precision(device)
    own_peak = round(measured_peak(device, precision, scale.product))
    settings = {
        "benchmark": "gpu",
        "device": common.device_name(device).replace(" ", "-"),
        "threads": threads,
        **common.machine(),
        "peak": peak or own_peak,
        "measured_peak": own_peak,
        "cuda": torch.version.cuda,
        "scale": asdict(scale),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(common.as_lines([settings]))
    return settings


def measured(action: Action, on_gpu: bool) -> Record:
    """Make a measurement; what fails gives a record with the error."""
    torch.set_float32_matmul_precision("highest")
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        record = action()
    except Exception as error:  # out of memory, no compiler, no such NCCL: say so
        record = {"error": str(error).strip()[-500:]}
    record["gigabytes"] = None
    if on_gpu:
        record["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    gc.collect()
    return record


def main(
    parts: tuple[Part, ...] = get_args(Part),
    device: str = "cuda" if common.GPU else "cpu",
    tiny: bool = False,
    again: bool = False,
    seconds: float = 7200,
    peak: float | None = None,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Measure the parts that are chosen, and write each measurement into the log."""
    torch.set_num_threads(threads)
    torch_device = torch.device(device)
    scale = TINY if tiny else Scale(step_seconds=seconds)
    name = common.device_name(torch_device).replace(" ", "-")
    path = results / f"gpu-{name}{'-tiny' if tiny else ''}.jsonl"
    if path.exists():
        settings, *lines = map(json.loads, path.read_text().splitlines())
    else:
        settings = begin_log(path, scale, torch_device, peak, threads)
        lines = []
    if again:
        lines = [line for line in lines if line["part"] not in parts]
        path.write_text(common.as_lines([settings, *lines]))
    done = {(line["part"], line["name"]) for line in lines}
    corpus = shaped(scale.pairs, scale.vocabulary)
    bench = Bench(torch_device, scale, corpus, settings["peak"])
    for part in parts:
        for name, action in PARTS[part](bench).items():
            if (part, name) in done:
                continue
            record = {"part": part, "name": name, **measured(action, bench.on_gpu)}
            with path.open("a") as log:
                log.write(common.as_lines([record]))
            print(common.short(record))
    print(f"log: {path.name}")


if __name__ == "__main__":
    tyro.cli(main)
