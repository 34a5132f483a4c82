"""Where does `translate` spend its time, and how fast can a matrix product be on this processor?

    python benchmarks/shares.py

Profiles `translate` on Multi30k's test captions, on one thread, and prints the share of the
processor's time by kind of kernel, once with products from MKL, as PyTorch has them on x86, and
once with those from oneDNN, which the package takes on AMD's processors with AVX-512. Then times
products one by one. Writes `results/shares-MODEL.jsonl`.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import common
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from annotated_transformer import decoding
from annotated_transformer.model_io import load_pretrained

# What a kernel's name holds -> its kind
KINDS = {"mm": "matrix products", "linear": "matrix products", "attention": "attention"}
KINDS |= {"softmax": "search", "topk": "search", "index_select": "cache", "cat": "cache"}
KINDS |= {"norm": "normalization"}


def kind(name: str) -> str:
    """Return the kind of a kernel."""
    return next((what for part, what in KINDS.items() if part in name), "other")


def onednn(x: Tensor, weight: Tensor) -> Any:
    """Return what F.linear does, by oneDNN, as the package calls it."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def rate(product: Callable[[], Any], operations: int) -> float:
    """Return the GFLOP/s of a product: the best of 20 turns, in the processor's time."""
    best = math.inf
    for _ in range(20):
        begin = time.process_time()
        for _ in range(10):
            product()
        best = min(best, (time.process_time() - begin) / 10)
    return round(operations / best / 1e9, 1)


@torch.no_grad()
def main(
    model: str = "captions-de-en", sentences: int = 400, beams: tuple[int, ...] = (1, 4),
    corpus: common.Corpus = "multi30k", results: Path = common.RESULTS, threads: int = 1,
) -> None:  # fmt: skip
    """Profile the translation of test captions, and time its products."""
    torch.set_num_threads(threads)  # of more than one, the profile sees a part only
    ours, tokenizer = load_pretrained(model)
    lines = [pair.source for pair in common.read(corpus, "test_2016_flickr")[:sentences]]
    ways: dict[str, Callable[..., Tensor]] = {"MKL": F.linear, "oneDNN": onednn}
    records = list[dict[str, Any]]()
    for beam in beams:
        for name in ways:
            with patch.object(decoding, "mkl_is_slow", lambda name=name: name == "oneDNN"):
                decoding.translate(ours, tokenizer, lines[:50], beam)  # to warm up
                begin = time.process_time()
                decoding.translate(ours, tokenizer, lines, beam)
                seconds = round(time.process_time() - begin, 3)
                with profile(activities=[ProfilerActivity.CPU]) as watched:
                    decoding.translate(ours, tokenizer, lines, beam)
            spent = Counter[str]()
            for kernel in watched.key_averages():
                spent[kind(kernel.key)] += kernel.self_cpu_time_total
            shares = {what: round(time / spent.total(), 3) for what, time in spent.most_common()}
            about = {"beam": beam, "products": name, "sentences": len(lines), "seconds": seconds}
            records.append(about | shares)
            told = (f"{k} {v:.0%}" for k, v in shares.items())
            print(f"beam {beam}, {name}: {seconds} seconds", *told, sep=", ")
    c = ours.config
    shapes = [(c.d_model, c.vocabulary_size), (c.d_model, c.d_model), (c.d_model, c.d_ff)]
    for rows in (20, 130, 520):  # hypotheses in a batch
        for wide, out in shapes:
            x, weight = torch.randn(rows, wide), torch.randn(out, wide)
            record = {"rows": rows, "in": wide, "out": out}
            rates = {
                n: rate(partial(way, x, weight), 2 * x.numel() * out) for n, way in ways.items()
            }
            records.append(record | {"GFLOP/s": rates})
            print(*record.values(), rates)
    settings = {"benchmark": "shares", "model": model, "corpus": corpus, "threads": threads}
    common.write_log(results, f"shares-{model}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
