"""How fast, and in how much memory, does `prepare` deal with a large corpus?

    python benchmarks/prepare.py --pairs 2000000 --data wmt.en wmt.de --data deu-eng.tsv

Builds Parquet files laid out as those of WMT14 on the hub, from the given texts (two text files, or
one TSV) by turns, repeated with another number in each line. Prepares them in a process of its own,
opens the folder, plans an epoch and reads examples in another. Prints and logs time, processor time
and memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from common import RESULTS, write_log

from annotated_transformer import batching, large_corpora
from annotated_transformer.data import Pair
from annotated_transformer.own_data import read_pairs
from annotated_transformer.tokenization import Tokenizer

WMT14, CORES = 4_508_785, 8  # what the last line tells: pairs, and cores that encode


# --- A corpus like WMT14 ---


def numbered(texts: list[list[Pair]]) -> Iterator[dict[str, str]]:
    """Yield pairs of all texts by turns, without end, each time with another number."""
    for number, pairs in enumerate(zip(*map(cycle, texts))):
        for part, pair in enumerate(pairs):
            mark = f" {number * len(texts) + part}"
            yield {"en": pair.source + mark, "de": pair.target + mark}


def write_parquet(path: Path, texts: list[list[Pair]], pairs: int) -> None:
    """Write so many rows {"translation": {"en": ..., "de": ...}}."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    translation = pa.struct([("de", pa.string()), ("en", pa.string())])
    rows = islice(numbered(texts), pairs)
    with ParquetWriter(path, pa.schema([("translation", translation)])) as writer:
        while block := list(islice(rows, 50_000)):
            writer.write_table(pa.table({"translation": pa.array(block, translation)}))


def repeat(folder: Path, times: int) -> None:
    """Let a prepared folder hold its training examples several times over."""
    import numpy as np

    tokens, lengths = folder / large_corpora.TOKENS, folder / large_corpora.LENGTHS
    once = tokens.read_bytes()
    with tokens.open("ab") as file:
        for _ in range(times - 1):
            file.write(once)
    np.save(lengths, np.tile(np.load(lengths), (times, 1)))


# --- What the processes do ---


def cpu_seconds() -> float:
    """Return the processor time of this process and those it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def clocked(stages: dict[str, Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function note how long it takes."""

    def call(*arguments: Any, **options: Any) -> Any:
        begin, cpu = time.perf_counter(), cpu_seconds()
        result = function(*arguments, **options)
        seconds = {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu_seconds() - cpu}
        stages[name] = {kind: round(value, 1) for kind, value in seconds.items()}
        return result

    return call


def measure_prepare(parquet: str, folder: str, workers: str) -> dict[str, Any]:
    """Prepare a corpus, and return what its stages take; what is left over is encoding."""
    stages: dict[str, Any] = {}
    large_corpora.read_rows = clocked(stages, "read", large_corpora.read_rows)
    Tokenizer.train = clocked(stages, "vocabulary", Tokenizer.train)
    columns = ("translation.en", "translation.de")
    options = {"columns": columns, "vocabulary_size": 37_000, "workers": int(workers)}
    summary = clocked(stages, "all", large_corpora.prepare)([parquet], Path(folder), **options)
    stages["encode and write"] = {
        kind: round(stages["all"][kind] - stages["read"][kind] - stages["vocabulary"][kind], 1)
        for kind in ("seconds", "cpu_seconds")
    }
    return {
        "workers": int(workers), "pairs": summary["pairs"], "tokens": summary["tokens"],
        "stages": stages,
    }  # fmt: skip


def measure_open(folder: str, max_tokens: str) -> dict[str, Any]:
    """Open a prepared corpus, plan an epoch, and read examples one by one and as batches."""
    import numpy as np

    stages: dict[str, Any] = {}
    corpus = clocked(stages, "open", large_corpora.open_corpus)(folder).corpus
    plan = clocked(stages, "plan", batching.plan_batches)(corpus.lengths, int(max_tokens), 0, 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    order = np.random.default_rng(0).permutation(len(corpus))[:200_000]
    begin = time.process_time()
    for index in order:
        corpus[index]
    single = len(order) / (time.process_time() - begin)
    begin, read = time.process_time(), 0
    for batch in islice(batching.batches(corpus, int(max_tokens)), 400):
        read += len(batch.source)
    useful = sum(int(corpus.lengths[rows].sum()) for rows in plan)
    places = sum(int(corpus.lengths[rows].max(0).sum()) * len(rows) for rows in plan)
    return {
        "examples": len(corpus), "batches": len(plan), "useful": round(useful / places, 4),
        "stages": stages, "peak_megabytes": peak, "examples_a_second": round(single),
        "examples_a_second_in_batches": round(read / (time.process_time() - begin)),
    }  # fmt: skip


# --- Memory of all processes ---


def family(process: int) -> list[int]:
    """Return a process and all that descend from it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(one for child in children for one in family(int(child)))]


def memory(process: int) -> dict[str, int]:
    """Return the megabytes that a process and its descendants have among them, shared pages once:
    all, and without those of files, which the system takes back when it needs them.
    """
    sums = {"Pss": 0, "Pss_Anon": 0}
    for number in family(process):
        for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()[1:]:
            name, size = line.split()[:2]
            if (name := name.rstrip(":")) in sums:
                sums[name] += int(size)
    return {name: size // 1024 for name, size in sums.items()}


def in_process(name: str, *arguments: object) -> dict[str, Any]:
    """Call a function of this file in a process of its own, and watch its memory."""
    command = [sys.executable, __file__, "--only", name, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = {"Pss": 0, "Pss_Anon": 0}

    def watch() -> None:
        while process.poll() is None:
            with suppress(OSError):  # a process has ended meanwhile
                peak.update({kind: max(peak[kind], n) for kind, n in memory(process.pid).items()})
            time.sleep(0.3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    told, _ = process.communicate()
    watcher.join()
    if process.returncode:
        sys.exit(f"{name} failed")
    record = {"what": name, **json.loads(told.splitlines()[-1])}
    record["peak_megabytes_of_all_processes"] = peak["Pss"]
    record["without_pages_of_files"] = peak["Pss_Anon"]
    print(json.dumps(record, indent=2), flush=True)
    return record


def extrapolated(record: dict[str, Any]) -> dict[str, Any]:
    """Return the minutes for all of WMT14, en-de, on CORES cores, from processor time: reading and
    encoding grow with the corpus, encoding is shared, the vocabulary has its fixed sample.
    """
    seconds = {name: stage["cpu_seconds"] for name, stage in record["stages"].items()}
    factor = WMT14 / sum(record["pairs"].values())
    whole = seconds["vocabulary"] + factor * (seconds["read"] + seconds["encode and write"] / CORES)
    return {"what": "extrapolated", "pairs": WMT14, "cores": CORES, "minutes": round(whole / 60, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", action="append", required=True)
    parser.add_argument("--pairs", type=int, default=2_000_000, help="to prepare")
    parser.add_argument("--open", type=int, default=4_500_000, help="examples to open, at least")
    parser.add_argument("--workers", type=int, default=1, help="processes that encode")
    parser.add_argument("--max-tokens", type=int, default=25_000, help="of a batch")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        parquet, folder = Path(name, "train.parquet"), Path(name, "prepared")
        write_parquet(parquet, [read_pairs(*paths) for paths in options.data], options.pairs)
        records = [in_process("measure_prepare", parquet, folder, options.workers)]
        repeat(folder, -(-options.open // records[0]["pairs"]["train"]))
        records.append(in_process("measure_open", folder, options.max_tokens))
        records.append(extrapolated(records[0]))
        print(json.dumps(records[-1]))
        size = parquet.stat().st_size
    data = " ".join("--data " + " ".join(path.name for path in paths) for paths in options.data)
    settings = {
        "benchmark": "prepare", "cores": os.cpu_count(), "bytes_of_parquet": size,
        "command": f"python benchmarks/prepare.py --pairs {options.pairs} --open {options.open} "
        f"--workers {options.workers} --max-tokens {options.max_tokens} {data}",
    }  # fmt: skip
    write_log(options.results, "prepare", settings, records)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        print(json.dumps(globals()[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
