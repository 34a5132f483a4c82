"""Measure the levers of chapter 25 one at a time, and all together.

    python benchmarks/speed.py

Every system trains on the same sentences and takes its turn in each round, so noise hits all of
them alike. On a GPU it measures bf16, TF32 and a padded vocabulary as well, with --compile compiled
layers. The peak of a GPU is in its data sheet (dense bf16): give it with --peak.
"""

import copy
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import common
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.nn.attention.bias import causal_upper_left

from annotated_transformer import multi_head_attention
from annotated_transformer.batching import Batch, EncodedCorpus, collate, plan_batches
from annotated_transformer.masks import PAD, padding_mask, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.speed import (
    FastLoss,
    best_precision,
    compile_layers,
    flops,
    measured_peak,
)
from annotated_transformer.transformer import Transformer
from annotated_transformer.transformer import preset as make_config

REFERENCE, ALL, EXACT = "this book's step", "all together", "compiled for each shape"
Part = list[np.ndarray]  # the rows of some batches
Turn = Callable[[int], int]

# --- Levers that the package leaves out ---


class OneProduct(MultiHeadAttention):
    """Self-attention whose query, key and value come from one matrix product."""

    def __init__(self, old: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        parts = old.query.weight, old.key.weight, old.value.weight
        self.widths = [len(part) for part in parts]
        self.joint, self.output = nn.Parameter(torch.cat(parts).detach()), old.output
        self.heads = old.heads

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        parts = F.linear(query, self.joint).split(self.widths, dim=-1)
        heads = (split_heads(part, self.heads) for part in parts)
        return self.output(merge_heads(F.scaled_dot_product_attention(*heads, mask)))


def with_one_product(model: Transformer) -> Transformer:
    """Copy a model, with one product for query, key and value in each self-attention."""
    model = copy.deepcopy(model)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.self_attention = OneProduct(layer.self_attention)
    return model


def any_mask(query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float, _: bool) -> Any:
    """The fused kernel with a mask that need not be boolean."""
    return F.scaled_dot_product_attention(query, key, value, mask, dropout), None


class OtherMasks(SmoothedLoss):
    """The loss with masks that are added or, for the decoder, the causal kernel."""

    additive = False

    def form(self, mask: Tensor) -> Tensor:
        return mask.float().log() if self.additive else mask  # 0 and minus infinity

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        model, words, mask = self.model, target[:, :-1], self.form(padding_mask(source))
        causal = causal_upper_left(words.size(1), words.size(1))
        past = self.form(target_mask(words)) if self.additive else causal
        with patch.object(multi_head_attention, "run_attention", any_mask, create=True):
            memory = model.encoder(model.embed(source), mask)
            states = model.decoder(model.embed(words), memory, past, mask)
        logits = model.embedding.logits(states)
        return label_smoothed_loss(logits, target[:, 1:], self.label_smoothing)


class AddedMasks(OtherMasks):
    """The loss with masks that are added."""

    additive = True


class KeptWeights(SmoothedLoss):
    """The loss with the attention of chapter 3, which keeps all weights."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        attentions = [m for m in self.model.modules() if isinstance(m, MultiHeadAttention)]
        for attention in attentions:
            attention.keep_weights = True
        loss = super().forward(source, target)
        for attention in attentions:
            attention.keep_weights, attention.weights = False, None
        return loss


# --- Systems ---


def mixed(part: Part) -> Part:
    """The same sentences in no order, 32 a batch, padded to the longest of the batch."""
    rows = np.random.default_rng(0).permutation(np.concatenate(part))
    return [rows[start : start + 32] for start in range(0, len(rows), 32)]


def warm_up(loss: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Pass batches forward and back; return how many programs that compiles, in what time."""
    from torch._dynamo.utils import counters

    before, start = counters["stats"]["unique_graphs"], time.perf_counter()
    for batch in batches:
        loss(*batch).backward()
    loss.zero_grad()
    seconds = round(time.perf_counter() - start, 1)
    return {"programs": counters["stats"]["unique_graphs"] - before, "seconds": seconds}


def build(
    model: Transformer, corpus: EncodedCorpus, rounds: list[Part], compile: bool
) -> tuple[dict[str, Turn], dict[str, Any]]:
    """Return all systems by name, and what there is to say about them."""
    device, notes = model.embedding.weight.device, dict[str, Any]()
    fused, best = common.make_adam(model), best_precision(device)

    def load(part: Part) -> Iterable[Batch]:
        return (collate([corpus[row] for row in rows]).to(device) for rows in part)

    def system(
        loss: SmoothedLoss, adam: Any = None, order: Callable[[Part], Part] = list,
        products: str = "highest",
    ) -> Turn:  # fmt: skip
        adam = adam or (fused if loss.model is model else common.make_adam(loss.model))

        def turn(number: int) -> int:
            torch.set_float32_matmul_precision(products)
            for batch in load(order(rounds[number])):
                adam.zero_grad()
                (loss(*batch) / (batch.target[:, 1:] != PAD).sum()).backward()  # no waiting
                adam.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            torch.set_float32_matmul_precision("highest")
            return sum(int(corpus.lengths[rows, 1].sum()) for rows in rounds[number])

        return turn

    plain, fast = SmoothedLoss(model), FastLoss(model, precision=best)
    single = common.make_adam(model, fused=False, foreach=False)
    systems = {
        REFERENCE: system(plain),
        "without: sorted lengths": system(plain, order=mixed),
        "without: fused Adam": system(plain, single),
        "without: fused attention": system(KeptWeights(model)),
        "Q, K, V in one product": system(SmoothedLoss(with_one_product(model))),
        "causal kernel": system(OtherMasks(model)),
        "additive masks": system(AddedMasks(model)),
        "loss in chunks": system(FastLoss(model)),
    }
    if device.type == "cuda":
        size = math.ceil(model.config.vocabulary_size / 64) * 64
        wide = Transformer(replace(model.config, vocabulary_size=size)).to(device)
        systems["vocabulary of 64 n"] = system(SmoothedLoss(wide))
        systems["TF32"] = system(plain, products="high")
    if best == "bf16":
        systems["bf16"] = system(fast)
    if compile:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # an earlier run must not help
        symbols, exact = (FastLoss(copy.deepcopy(model), precision=best) for _ in range(2))
        compile_layers(symbols.model)
        torch._dynamo.config.cache_size_limit = 10_000
        for layer in [*exact.model.encoder.layers, *exact.model.decoder.layers]:
            layer.compile(dynamic=False)
        shapes = {
            (len(rows), *corpus.lengths[rows].max(axis=0)): rows for part in rounds for rows in part
        }
        notes["shapes"] = len(shapes)
        notes["compiled"] = {
            name: warm_up(loss, load([*shapes.values()]))
            for name, loss in (("compiled", symbols), (EXACT, exact))
        }
        systems |= {"compiled": system(symbols), EXACT: system(exact)}
    systems[ALL] = system(symbols if compile else fast)
    return systems, notes


def gigabytes(turn: Turn, device: torch.device) -> float:
    """Return the most memory of a GPU that a turn takes, with all that all systems keep."""
    torch.cuda.reset_peak_memory_stats(device)
    turn(0)
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)


def main(
    preset: str = "base" if common.GPU else "small", device: str = "cuda" if common.GPU else "cpu",
    vocabulary: int | None = None, max_tokens: int = 25_000 if common.GPU else 2048,
    batches: int = 20 if common.GPU else 2, rounds: int = 7, threads: int = 1,
    compile: bool = False, peak: float | None = None, corpus: common.Corpus = "multi30k",
    cpu_time: bool = False, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Measure the levers of chapter 25."""
    torch.set_num_threads(threads)
    place, size = (
        torch.device(device),
        vocabulary or (37_000 if preset in ("base", "big") else 8000),
    )
    examples = common.encoded(corpus, "train", size)
    plan = plan_batches(examples.lengths, max_tokens, seed=0, epoch=0)
    plan *= math.ceil((rounds + 1) * batches / len(plan))
    parts = [plan[start * batches : (start + 1) * batches] for start in range(rounds + 1)]
    torch.manual_seed(0)
    made = Transformer(make_config(preset, vocabulary_size=size)).to(place).train()
    systems, notes = build(made, examples, parts, compile)
    gpu = place.type == "cuda"
    peak = peak or measured_peak(place, best_precision(place), 8192 if gpu else 1536)
    records = common.take_turns(systems, rounds, cpu_time)
    if gpu:
        notes["gigabytes"] = {name: gigabytes(turn, place) for name, turn in systems.items()}

    used = [rows for part in parts[1:] for rows in part]
    source, target = examples.lengths[np.concatenate(used)].T
    places = sum(len(rows) * int(examples.lengths[rows].max(axis=0).sum()) for rows in used)
    each = sum(flops(made.config, source, target).values()) / int(target.sum())
    rows = []
    for name in systems:
        rate = statistics.median(common.column(records, name))
        gain = common.times(records, name, REFERENCE)
        rows.append([name, f"{rate:,.0f}", f"{gain:.2f}", f"{each * rate / peak:.1%}"])
    print(common.table(["training", "tokens/s", "gain", "MFU"], rows))
    kind = torch.cuda.get_device_name(place).replace(" ", "-") if gpu else "cpu"
    settings = {"benchmark": "speed", "corpus": corpus, "preset": preset, "device": kind}
    settings |= {"threads": threads, "compile": compile, "vocabulary_size": size}
    settings |= {
        "max_tokens": max_tokens,
        "useful": round(int((source + target).sum()) / places, 4),
    }
    settings |= {"peak": round(peak), "operations_per_token": round(each), **notes}
    settings |= {"clock": "processor" if cpu_time else "wall"}
    name = f"speed-{preset}-{kind}-{threads}" + "-compile" * compile
    common.write_log(results, name, settings, records)


if __name__ == "__main__":
    tyro.cli(main)
