"""Where does `translate` spend its time, and how fast can a matrix product be on this processor?

    python -m benchmarks.speed.shares

Profiles `translate` on Multi30k's test captions, on one thread, and prints the share of the
processor's time by kind of kernel. Then times the products of a step one by one. Writes
`results/shares-MODEL.jsonl`.
"""

import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
import tyro
from torch.profiler import ProfilerActivity, profile

from annotated_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    load_pretrained,
    translate,
)
from benchmarks import common

# What a kernel's name holds -> its kind
KINDS = {
    "mm": "matrix products",
    "linear": "matrix products",
    "attention": "attention",
    "softmax": "search",
    "topk": "search",
    "index_select": "cache",
    "cat": "cache",
    "norm": "normalization",
}
HYPOTHESES = (20, 130, 520)  # rows of a product


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel."""
    for part, kind in KINDS.items():
        if part in kernel:
            return kind
    return "other"


def profile_search(
    model: Transformer, tokenizer: Tokenizer, lines: list[str], beam: int
) -> common.Record:
    """Return the seconds that translating takes, and the share of each kind of kernel."""
    translate(model, tokenizer, lines[:50], beam)  # to warm up
    start = time.process_time()
    translate(model, tokenizer, lines, beam)
    seconds = round(time.process_time() - start, 3)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        translate(model, tokenizer, lines, beam)
    spent = Counter[str]()
    for kernel in profiler.key_averages():
        spent[kind_of(kernel.key)] += kernel.self_cpu_time_total
    record = {"beam": beam, "sentences": len(lines), "seconds": seconds}
    for kind, took in spent.most_common():
        record[kind] = round(took / spent.total(), 3)
    return record


def product_rate(rows: int, inputs: int, outputs: int) -> float:
    """Return the GFLOP/s of a product: the best of 20 turns, in the processor's time."""
    x = torch.randn(rows, inputs)
    weight = torch.randn(outputs, inputs)
    seconds = []
    for _ in range(20):
        start = time.process_time()
        for _ in range(10):
            F.linear(x, weight)
        seconds.append((time.process_time() - start) / 10)
    return round(2 * rows * inputs * outputs / min(seconds) / 1e9, 1)


def time_products(config: TransformerConfig) -> list[common.Record]:
    """Time the products of a step: the output projection, one of attention, one of a network."""
    records = []
    for rows in HYPOTHESES:
        for outputs in (config.vocabulary_size, config.d_model, config.d_ff):
            rate = product_rate(rows, config.d_model, outputs)
            shape = {"rows": rows, "in": config.d_model, "out": outputs}
            records.append({**shape, "GFLOP/s": rate})
    return records


@torch.no_grad()
def main(
    model: str = "captions-de-en",
    sentences: int = 400,
    beams: tuple[int, ...] = (1, 4),
    corpus: common.Corpus = "multi30k",
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Profile the translation of test captions, and time its products."""
    torch.set_num_threads(threads)  # of more than one, the profile sees a part only
    translator, tokenizer = load_pretrained(model)
    pairs = common.read(corpus, "test_2016_flickr")[:sentences]
    lines = [pair.source for pair in pairs]
    records = [profile_search(translator, tokenizer, lines, beam) for beam in beams]
    records += time_products(translator.config)
    for record in records:
        print(record)
    settings = {
        "benchmark": "shares",
        "model": model,
        "corpus": corpus,
        "threads": threads,
    }
    common.write_log(results, f"shares-{model}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
