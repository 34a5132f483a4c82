"""How fast, and in how much memory, does `prepare` deal with a large corpus?

    python -m benchmarks.speed.prepare deu-eng.tsv --pairs 2000000

Repeats the pairs of a table, with another number in each line, prepares them in a process of its
own, and logs time, the time of all cores together, and memory. Linux only. Writes
`results/prepare.jsonl`, from which the chapter on WMT14 takes the hours to expect.
"""

import multiprocessing
import os
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from annotated_transformer import read_pairs
from annotated_transformer.corpus import prepare, read_summary
from benchmarks import common


def write_table(path: Path, table: Path, pairs: int) -> None:
    """Write so many pairs, all different."""
    repeated = islice(cycle(read_pairs(table)), pairs)
    with path.open("w", encoding="utf-8") as file:
        for number, pair in enumerate(repeated):
            file.write(f"{pair.source} {number}\t{pair.target} {number}\n")


def measure(table: Path, folder: Path, vocabulary_size: int) -> common.Record:
    """Prepare a corpus in this process, and return what it takes."""
    start, cpu_start = time.perf_counter(), time.process_time()
    prepare([str(table)], output=folder, vocabulary_size=vocabulary_size)
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    return {
        "what": "measure_prepare",
        "pairs": read_summary(folder)["pairs"],
        "stages": {
            "all": {
                "seconds": round(seconds, 1),
                "cpu_seconds": round(cpu_seconds, 1),
            }
        },
        "peak_megabytes": common.peak_memory() // 10**6,
    }


def main(
    table: Path,
    pairs: int = 2_000_000,
    vocabulary_size: int = 37_000,
    results: Path = common.RESULTS,
) -> None:
    """Prepare a corpus of so many pairs."""
    with TemporaryDirectory() as home:
        large, folder = Path(home, "large.tsv"), Path(home, "prepared")
        write_table(large, table, pairs)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            record = pool.apply(measure, (large, folder, vocabulary_size))
    print(record)
    settings = {"cores": os.cpu_count(), "rows": pairs, "table": table.name}
    common.write_log(results, "prepare", settings, [record])


if __name__ == "__main__":
    common.command(main)
