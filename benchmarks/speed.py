"""Measure the levers of chapter 25 one at a time, and all together.

    python benchmarks/speed.py

Every system trains on the same sentences and takes its turn in each round, so noise hits all of
them alike. A run adds its lines to results/speed.jsonl, in place of those of an earlier run with
the same preset, device, threads and compilation. On a GPU it measures bf16 and TF32 as well.
"""

import argparse
import copy
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, encoded, machine, programs, table, take_turns
from torch import Tensor, nn
from torch.nn.attention.bias import causal_upper_left
from torch.optim import Adam

from annotated_transformer.batching import (
    Batch,
    BatchPlan,
    Example,
    collate,
    plan_batches,
    shapes_of,
)
from annotated_transformer.masks import PAD, padding_mask, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    attend,
    merge_heads,
    split_heads,
)
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.speed import (
    FastObjective,
    Shape,
    allow_graphs,
    best_precision,
    call_layer,
    compiled,
    known_peak,
    made_up,
    measured_peak,
    mfu,
    prefetch,
    wait_for,
    warm_up,
)
from annotated_transformer.transformer import PRESETS, Transformer, preset

REFERENCE, ALL, EXACT = "this book's step", "all together", "compiled for each shape"
Objective = Callable[[Tensor, Tensor], Tensor]
Feed = Callable[[list[BatchPlan]], Iterator[Batch]]


# --- Levers that the package leaves out ---


class OneProduct(MultiHeadAttention):
    """Self-attention whose query, key and value come from one matrix product."""

    def __init__(self, old: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        parts = old.query.weight, old.key.weight, old.value.weight
        self.widths = [len(part) for part in parts]
        self.joint, self.output = nn.Parameter(torch.cat(parts).detach()), old.output
        self.heads, self.dropout, self.keep_weights = old.heads, old.dropout, False

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        parts = nn.functional.linear(query, self.joint).split(self.widths, dim=-1)
        heads = (split_heads(part, self.heads) for part in parts)
        return self.output(merge_heads(attend(*heads, mask, self.dropout, False)[0]))


def with_one_product(model: Transformer) -> Transformer:
    """Copy a model, with one product for query, key and value in each self-attention."""
    model = copy.deepcopy(model)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.self_attention = OneProduct(layer.self_attention)
    return model


def readable(model: Transformer) -> Objective:
    """The loss from all logits at once, as in chapters 13 and 14."""

    def loss(source: Tensor, target: Tensor) -> Tensor:
        return label_smoothed_loss(model(source, target[:, :-1]), target[:, 1:], 0.1)[0]

    return loss


def masked(model: Transformer, additive: bool, causal: bool) -> Objective:
    """The same with other masks: numbers that are added, or in the decoder's self-attention the
    kernel that knows the causal mask by itself.
    """

    def form(mask: Tensor) -> Tensor:
        zeros = torch.zeros(mask.shape, device=mask.device)
        return zeros.masked_fill(~mask, -math.inf) if additive else mask

    def loss(source: Tensor, target: Tensor) -> Tensor:
        mask, words = form(padding_mask(source)), target[:, :-1]
        past = causal_upper_left(*words.shape[1:] * 2) if causal else form(target_mask(words))
        memory = model.encoder(model.embed(source), mask)
        logits = model.embedding.logits(model.decoder(model.embed(words), memory, past, mask))
        return label_smoothed_loss(logits, target[:, 1:], 0.1)[0]

    return loss


def keeping_weights(model: Transformer) -> Objective:
    """The same with the attention of chapter 3, which keeps all weights."""
    loss = readable(model)
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]

    def slow(source: Tensor, target: Tensor) -> Tensor:
        for attention in attentions:
            attention.keep_weights = True
        value = loss(source, target)
        for attention in attentions:
            attention.keep_weights, attention.weights = False, None
        return value

    return slow


def with_tf32(objective: Objective) -> Objective:
    """The same with TF32 in matrix products."""

    def loss(source: Tensor, target: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("high")
        return objective(source, target)

    return loss


# --- Batches ---


def feeds(examples: Sequence[Example], device: torch.device) -> dict[str, Feed]:
    """Return ways to make batches of a part of a plan: plain, ahead of time, in disorder."""

    def made(part: list[BatchPlan]) -> Iterator[Batch]:
        for indices, shape, _ in part:
            yield collate([examples[index] for index in indices], *shape)

    def plain(part: list[BatchPlan]) -> Iterator[Batch]:
        return (Batch(*(side.to(device) for side in batch)) for batch in made(part))

    def mixed(part: list[BatchPlan]) -> Iterator[Batch]:
        """The same sentences in no order, 32 a batch, padded to the longest of the batch."""
        numbers = [index for batch in part for index in batch.indices]
        random.Random(0).shuffle(numbers)
        groups = [numbers[start : start + 32] for start in range(0, len(numbers), 32)]
        return plain([BatchPlan(group, (0, 0)) for group in groups])

    return {
        "plain": plain,
        "ahead": lambda part: prefetch(made(part), device),
        "mixed": mixed,
    }


# --- Systems ---


def optimizer(model: nn.Module, **form: bool) -> Adam:
    """Make the paper's Adam; fused unless told otherwise."""
    form = form or {"fused": True}
    return Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, **form)


def system(
    objective: Objective, adam: Adam, feed: Feed, rounds: list[list[BatchPlan]], tokens: list[int]
) -> Callable[[int], int]:
    """Return what trains on the batches of one round and returns how many target tokens it had."""
    device = adam.param_groups[0]["params"][0].device

    def turn(number: int) -> int:
        precision = torch.get_float32_matmul_precision()
        for source, target in feed(rounds[number]):
            loss = objective(source, target)
            adam.zero_grad()
            (loss / (target[:, 1:] != PAD).sum()).backward()
            adam.step()
        wait_for(device)
        torch.set_float32_matmul_precision(precision)
        return tokens[number]

    return turn


def build(
    options: argparse.Namespace,
    model: Transformer,
    ways: dict[str, Feed],
    rounds: list[list[BatchPlan]],
    tokens: list[int],
) -> tuple[dict[str, Callable[[int], int]], dict[str, Any]]:
    """Return all systems by name, and what there is to say about them."""
    device, fused, notes = model.embedding.weight.device, optimizer(model), {}
    plain, best = readable(model), best_precision(model.embedding.weight.device)

    def run(objective: Objective, feed: str = "plain", adam: Adam = fused) -> Callable[[int], int]:
        return system(objective, adam, ways[feed], rounds, tokens)

    joint = with_one_product(model)
    systems = {
        REFERENCE: run(plain),
        "without: sorted lengths": run(plain, "mixed"),
        "without: fused Adam": run(plain, adam=optimizer(model, foreach=False, fused=False)),
        "without: fused attention": run(keeping_weights(model)),
        "Q, K, V in one product": run(readable(joint), adam=optimizer(joint)),
        "causal kernel": run(masked(model, additive=False, causal=True)),
        "additive masks": run(masked(model, additive=True, causal=False)),
        "batches made ahead": run(plain, "ahead"),
        "loss in chunks": run(FastObjective(model, 0.1)),
    }
    if (odd := model.config.vocabulary_size % 64) and device.type == "cuda":
        size = model.config.vocabulary_size + 64 - odd
        wide = Transformer(preset(options.preset, vocabulary_size=size)).to(device)
        systems["vocabulary of 64 n"] = run(readable(wide), adam=optimizer(wide))
    if device.type == "cuda":
        systems["TF32"] = run(with_tf32(plain))
    if best == "bf16":
        systems["bf16"] = run(FastObjective(model, 0.1, best))
    fast = FastObjective(model, 0.1, best)
    if options.compile:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # an earlier run must not help
        exact = FastObjective(model, 0.1, best)
        exact.call_layer = torch.compile(lambda *inputs: call_layer(*inputs), dynamic=False)
        shapes = sorted({batch_shape(batch) for part in rounds for batch in ways["plain"](part)})
        notes["shapes"] = len(shapes)
        fast = compiled(fast)
        allow_graphs(4 * len(shapes))
        notes["compiled"] = {
            "compiled": made_programs(lambda: warm_up(fast, shapes)),
            EXACT: made_programs(lambda: [exact(*made_up(s, device)).backward() for s in shapes]),
        }
        systems |= {"compiled": run(fast), EXACT: run(exact)}
    systems[ALL] = run(fast, "ahead")
    return systems, notes


def batch_shape(batch: Batch) -> Shape:
    """Return the shape of a batch."""
    return Shape(*batch.source.shape, batch.target.size(1) - 1)


def made_programs(action: Callable[[], Any]) -> dict[str, float]:
    """Return how many programs an action compiles, and in how many seconds."""
    before, start = programs(), time.perf_counter()
    action()
    return {"programs": programs() - before, "seconds": round(time.perf_counter() - start, 1)}


# --- Reporting ---


def peak_of(device: torch.device, cpu_time: bool) -> float:
    """Return the peak to compare with: of the data sheet, else measured, by the same clock."""
    if device.type == "cuda":
        half = best_precision(device) == "bf16"
        known = known_peak(torch.cuda.get_device_name(device))
        return known or measured_peak(device, torch.bfloat16 if half else torch.float32, 8192)
    clock = time.process_time if cpu_time else time.perf_counter
    return measured_peak(device, size=1536, rounds=12, clock=clock)


def correct_peak(path: Path, kind: dict[str, Any], peak: float) -> None:
    """Write a peak into the runs of a log that have this device, number of threads and clock."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "benchmark" in line and kind.items() <= line.items():
            line["peak"] = max(line["peak"], round(peak))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"peak {peak / 1e9:,.0f} GFLOP/s")


def gigabytes(turn: Callable[[int], int], device: torch.device) -> float:
    """Return the most memory of a GPU that a turn takes, with all that all systems keep."""
    torch.cuda.reset_peak_memory_stats(device)
    turn(0)
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)


def report(rates: dict[str, list[float]], a_token: float, peak: float) -> list[list[str]]:
    """Give each system a row: tokens a second, gain over the reference in the same round, MFU."""
    rows = []
    for name, values in rates.items():
        gain = statistics.median(a / b for a, b in zip(values, rates[REFERENCE]))
        speed = statistics.median(values)
        rows.append([name, f"{speed:,.0f}", f"{gain:.2f}", f"{mfu(a_token * speed, 1, peak):.1%}"])
    return rows


def write(path: Path, settings: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Add a run to the log, in place of an earlier one of the same kind."""
    key = {k: settings[k] for k in ("preset", "device", "threads", "compile")}
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    kept = [line for line in old if {k: line.get(k) for k in key} != key]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*kept, settings, *({**key, **record} for record in records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"log: {path.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, gpu = parser.add_argument, torch.cuda.is_available()
    add("--device", default="cuda" if gpu else "cpu")
    add("--preset", choices=PRESETS, default="base" if gpu else "small")
    add("--vocabulary", type=int, help="entries; default 37,000 for base and big, else 8,000")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--rounds", type=int, default=7, help="turns that each system gets")
    add("--batches", type=int, default=20 if gpu else 2, help="that a turn takes")
    add("--max-tokens", type=int, default=25_000 if gpu else 2048, help="a batch, on either side")
    add("--shapes", type=int, help="at most, of all batches, if not as many as suit them")
    add("--compile", action="store_true", help="measure torch.compile too; takes long")
    add("--corpus", choices=["multi30k", "grammar"], default="multi30k")
    add("--cpu-time", action="store_true", help="time of the processor, for a busy machine")
    add("--peak", action="store_true", help="only measure the peak again, for runs in the log")
    add("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    if options.peak:
        kind = {"device": name, "threads": options.threads}
        kind["clock"] = "processor" if options.cpu_time else "wall"
        correct_peak(options.results / "speed.jsonl", kind, peak_of(device, options.cpu_time))
        return
    size = options.vocabulary or (37_000 if options.preset in ("base", "big") else 8000)

    examples = encoded(options.corpus, "train", size)
    plan = plan_batches(shapes_of(examples), options.max_tokens, 0, 0, options.shapes)
    while len(plan) < (options.rounds + 1) * options.batches:
        plan = plan * 2
    starts = range(0, (options.rounds + 1) * options.batches, options.batches)
    rounds = [plan[start : start + options.batches] for start in starts]
    lengths = [shapes_of(examples)[[i for b in part for i in b.indices]] for part in rounds]
    tokens = [int(part[:, 1].sum()) for part in lengths]
    torch.manual_seed(0)
    model = Transformer(preset(options.preset, vocabulary_size=size)).to(device).train()
    systems, notes = build(options, model, feeds(examples, device), rounds, tokens)

    peak = peak_of(device, options.cpu_time)
    rates, records = take_turns(systems, options.rounds, options.cpu_time)
    if device.type == "cuda":
        notes["gigabytes"] = {name: gigabytes(turn, device) for name, turn in systems.items()}
    if options.compile:
        later = programs() - sum(note["programs"] for note in notes["compiled"].values())
        for note in notes["compiled"].values():
            note["at_the_end"] = note["programs"] + later
    done = [sum(flops(model.config, *part.T).values()) for part in lengths]
    used = [batch for part in rounds[1:] for batch in part]
    useful = sum(int(part.sum()) for part in lengths[1:])
    shown = {
        "preset": options.preset,
        "device": name,
        "threads": options.threads,
        "compile": options.compile,
        "vocabulary_size": size,
        "max_tokens": options.max_tokens,
        "useful": round(useful / sum(len(b.indices) * sum(b.shape) for b in used), 4),
        "peak": round(peak),
        "operations_per_token": round(sum(done[1:]) / sum(tokens[1:])),
        **notes,
    }
    print(", ".join(f"{key} {value}" for key, value in shown.items()))
    print(
        table(
            ["training", "tokens/s", "gain", "MFU"],
            report(rates, sum(done[1:]) / sum(tokens[1:]), peak),
        )
    )
    settings = {"benchmark": "speed", "corpus": options.corpus, **shown, **machine()}
    settings["clock"] = "processor" if options.cpu_time else "wall"
    write(options.results / "speed.jsonl", settings, records)


if __name__ == "__main__":
    main()
