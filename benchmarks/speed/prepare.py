"""How fast, and in how much memory, does `prepare` deal with a large corpus?

    python -m benchmarks.speed.prepare --pairs 2000000 --data wmt.en wmt.de --data deu-eng.tsv

Builds Parquet files laid out as those of WMT14 on the hub, from the given texts (two text files, or
one TSV) by turns, repeated with another number in each line. Prepares them in a process of its own,
opens the folder, plans an epoch and reads examples in another. Prints and logs time, processor time
and memory. Linux only. Writes `results/prepare.jsonl`.
"""

import json
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tyro
from pooch import file_hash

from annotated_transformer import Pair, Tokenizer, batching, read_pairs
from annotated_transformer.toolkit import large_corpora
from benchmarks import common

WMT14_PAIRS = 4_508_785  # what the last line of the log tells
WMT14_CORES = 8
ROWS_AT_ONCE = 50_000

# --- A corpus like WMT14 ---


def numbered(texts: list[list[Pair]]) -> Iterator[dict[str, str]]:
    """Yield pairs of all texts by turns, without end, each time with another number."""
    number = 0
    for pairs in zip(*map(cycle, texts)):
        for pair in pairs:
            yield {"en": f"{pair.source} {number}", "de": f"{pair.target} {number}"}
            number += 1


def write_parquet(path: Path, texts: list[list[Pair]], pairs: int) -> None:
    """Write so many rows {"translation": {"en": ..., "de": ...}}."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    translation = pa.struct([("de", pa.string()), ("en", pa.string())])
    rows = islice(numbered(texts), pairs)
    with ParquetWriter(path, pa.schema([("translation", translation)])) as writer:
        while block := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(pa.table({"translation": pa.array(block, translation)}))


def repeat(folder: Path, times: int) -> None:
    """Let a prepared folder hold its training examples several times over."""
    tokens = folder / large_corpora.TOKENS
    once = tokens.read_bytes()
    with tokens.open("ab") as file:
        for _ in range(times - 1):
            file.write(once)
    lengths = folder / large_corpora.LENGTHS
    np.save(lengths, np.tile(np.load(lengths), (times, 1)))
    summary = folder / large_corpora.SUMMARY
    content = json.loads(summary.read_bytes())
    summary.write_text(json.dumps({**content, "sha256": file_hash(tokens)}))


# --- What the processes do ---


def cpu_seconds() -> float:
    """Return the processor time of this process and those it has waited for."""
    total = 0.0
    for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(kind)
        total += usage.ru_utime + usage.ru_stime
    return total


class Stopwatch:
    """Notes how long functions take, in seconds of the clock and of the processor."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}

    def clocked(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which then also notes its time as that of a stage."""

        def call(*arguments: Any, **options: Any) -> Any:
            start, cpu_start = time.perf_counter(), cpu_seconds()
            result = function(*arguments, **options)
            self.stages[stage] = {
                "seconds": round(time.perf_counter() - start, 1),
                "cpu_seconds": round(cpu_seconds() - cpu_start, 1),
            }
            return result

        return call


def measure_prepare(parquet: Path, folder: Path, workers: int) -> common.Record:
    """Prepare a corpus, and return what its stages take; what is left over is encoding."""
    watch = Stopwatch()
    prepare = watch.clocked("all", large_corpora.prepare)
    read_rows = watch.clocked("read", large_corpora.read_rows)
    learn = watch.clocked("vocabulary", Tokenizer.train)
    # Two functions that `prepare` calls note their own time
    with (
        patch.object(large_corpora, "read_rows", read_rows),
        patch.object(Tokenizer, "train", learn),
    ):
        summary = prepare(
            [str(parquet)],
            folder,
            columns=("translation.en", "translation.de"),
            vocabulary_size=37_000,
            workers=workers,
        )
    stages = watch.stages
    stages["encode and write"] = {
        unit: round(total - stages["read"][unit] - stages["vocabulary"][unit], 1)
        for unit, total in stages["all"].items()
    }
    return {
        "workers": workers,
        "pairs": summary["pairs"],
        "tokens": summary["tokens"],
        "stages": stages,
    }


def measure_open(folder: Path, max_tokens: int) -> common.Record:
    """Open a prepared corpus, plan an epoch, and read examples one by one and as batches."""
    watch = Stopwatch()
    corpus = watch.clocked("open", large_corpora.open_corpus)(folder)[0]
    plan = watch.clocked("plan", batching.plan_batches)(
        corpus.lengths, max_tokens, seed=0, epoch=0
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    order = np.random.default_rng(0).permutation(len(corpus))[:200_000]
    start = time.process_time()
    for index in order:
        corpus[index]
    single_rate = len(order) / (time.process_time() - start)
    start = time.process_time()
    examples = 0
    for batch in islice(batching.batches(corpus, max_tokens), 400):
        examples += len(batch.source)
    batch_rate = examples / (time.process_time() - start)
    useful = positions = 0
    for rows in plan:
        lengths = corpus.lengths[rows]
        useful += int(lengths.sum())
        positions += len(rows) * int(lengths.max(0).sum())
    return {
        "examples": len(corpus),
        "batches": len(plan),
        "useful": round(useful / positions, 4),
        "stages": watch.stages,
        "peak_megabytes": peak,
        "examples_a_second": round(single_rate),
        "examples_a_second_in_batches": round(batch_rate),
    }


# --- Memory of all processes ---


def family(process: int) -> list[int]:
    """Return a process and all that descend from it."""
    members = [process]
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for child in children:
        members += family(int(child))
    return members


def memory(process: int) -> dict[str, int]:
    """Return the megabytes that a process and its descendants have among them, shared pages once:
    all, and without those of files, which the system takes back when it needs them.
    """
    kilobytes = {"Pss": 0, "Pss_Anon": 0}
    for member in family(process):
        for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()[1:]:
            name, size = line.split()[:2]
            name = name.rstrip(":")
            if name in kilobytes:
                kilobytes[name] += int(size)
    return {name: size // 1024 for name, size in kilobytes.items()}


def send_result(
    sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Call a function, and send what it returns."""
    sender.send(function(*arguments))


def in_process(
    function: Callable[..., common.Record], *arguments: Any
) -> common.Record:
    """Call a function in a process of its own, and watch its memory."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=send_result, args=(sender, function, arguments))
    process.start()
    sender.close()  # the other process has its own
    peak = {"Pss": 0, "Pss_Anon": 0}
    while not receiver.poll(0.3):
        with suppress(OSError):  # a process has ended meanwhile
            for name, size in memory(process.pid).items():
                peak[name] = max(peak[name], size)
    try:
        result = receiver.recv()
    except EOFError as error:
        raise SystemExit(f"{function.__name__} failed") from error
    process.join()
    record = {
        "what": function.__name__,
        **result,
        "peak_megabytes_of_all_processes": peak["Pss"],
        "without_pages_of_files": peak["Pss_Anon"],
    }
    print(json.dumps(record, indent=2), flush=True)
    return record


def extrapolated(record: common.Record) -> common.Record:
    """Return the minutes for all of WMT14, en-de, on some cores, from processor time: reading and
    encoding grow with the corpus, encoding is shared, the vocabulary has its fixed sample.
    """
    seconds = {name: stage["cpu_seconds"] for name, stage in record["stages"].items()}
    factor = WMT14_PAIRS / sum(record["pairs"].values())
    growing = seconds["read"] + seconds["encode and write"] / WMT14_CORES
    minutes = (seconds["vocabulary"] + factor * growing) / 60
    return {
        "what": "extrapolated",
        "pairs": WMT14_PAIRS,
        "cores": WMT14_CORES,
        "minutes": round(minutes, 1),
    }


def main(
    data: tyro.conf.UseAppendAction[tuple[tuple[Path, ...], ...]],
    pairs: int = 2_000_000,
    open: int = 4_500_000,
    workers: int = 1,
    max_tokens: int = 25_000,
    results: Path = common.RESULTS,
) -> None:
    """Prepare a corpus of so many `pairs`, and open one of at least `open` examples."""
    with tempfile.TemporaryDirectory() as home:
        parquet, folder = Path(home, "train.parquet"), Path(home, "prepared")
        write_parquet(parquet, [read_pairs(*paths) for paths in data], pairs)
        size = parquet.stat().st_size
        prepared = in_process(measure_prepare, parquet, folder, workers)
        repeat(folder, math.ceil(open / prepared["pairs"]["train"]))
        opened = in_process(measure_open, folder, max_tokens)
    whole = extrapolated(prepared)
    print(json.dumps(whole))
    texts = [" ".join(path.name for path in paths) for paths in data]
    command = ["python -m benchmarks.speed.prepare", f"--pairs {pairs}"]
    command += [f"--open {open}", f"--workers {workers}", f"--max-tokens {max_tokens}"]
    command += [f"--data {text}" for text in texts]
    settings = {
        "benchmark": "prepare",
        "cores": os.cpu_count(),
        "bytes_of_parquet": size,
        "command": " ".join(command),
    }
    common.write_log(results, "prepare", settings, [prepared, opened, whole])


if __name__ == "__main__":
    tyro.cli(main)
