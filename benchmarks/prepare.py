"""How fast, and in how much memory, does `prepare` deal with a large corpus?

    python benchmarks/prepare.py --pairs 2000000 --data wmt.en wmt.de --data deu-eng.zip

Builds archives laid out as those of WMT14 from the given texts (two text files, or one TSV, which
may be a .zip), repeated with a number on each line so that no two lines are the same; the pieces
take the texts by turns. Serves them on 127.0.0.1, prepares them in a process of its own, opens
the shards and plans an epoch in another, and writes a log. EncodedCorpus can be linked many times over
before they are opened, to as many pairs as --open asks for.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from common import RESULTS, write_log

from annotated_transformer.data import Pair
from annotated_transformer.own_data import read_pairs
from annotated_transformer.large_corpora import CATALOG, Piece, EncodedCorpus, file_hash, load_catalog, prepare, read_manifest

SHARES = {"News Commentary v9": 0.045, "Europarl v7": 0.425, "Common Crawl": 0.53}  # of WMT14


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


# --- Archives ---


def numbered(pairs: list[Pair], count: int) -> Iterator[tuple[str, str]]:
    """Repeat pairs, each time with another number."""
    for number, pair in enumerate(islice(cycle(pairs), count)):
        yield f"{pair.source} {number}", f"{pair.target} {number}"


def write_members(folder: Path, piece: Piece, pairs: Iterator[tuple[str, str]]) -> None:
    """Write the two texts of a piece, plain or as SGML."""
    paths = [folder / member for member in piece.members]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    with paths[0].open("w", encoding="utf-8") as one, paths[1].open("w", encoding="utf-8") as other:
        for number, pair in enumerate(pairs, start=1):
            for file, text in zip((one, other), pair):
                in_sgml = f'<seg id="{number}">{escape(text)}</seg>'
                file.write((in_sgml if paths[0].suffix == ".sgm" else text) + "\n")


def write_archive(folder: Path, piece: Piece, pairs: Iterator[tuple[str, str]]) -> Path:
    """Write the archive of a piece; the plain texts are removed again."""
    write_members(folder, piece, pairs)
    path = folder / piece.sources[0].file
    with tarfile.open(path, "w:gz", compresslevel=6) as tar:
        for member in piece.members:
            tar.add(folder / member, member)
            (folder / member).unlink()
    return path


def write_catalog(folder: Path, texts: list[list[Pair]], pairs: int, address: str) -> Path:
    """Write all archives of a corpus like WMT14 and the catalog that describes them."""
    content: dict[str, Any] = {"name": "benchmark", "pieces": {}}
    for split, pieces in CATALOG["wmt14-en-de"].pieces.items():
        content["pieces"][split] = []
        for number, piece in enumerate(pieces):
            count = round(SHARES[piece.name] * pairs) if split == "train" else 3000
            path = write_archive(folder, piece, numbered(texts[number % len(texts)], count))
            source = {"address": f"{address}/{path.name}", "hash": file_hash(path)}
            entry = {"name": piece.name, "members": piece.members, "sources": [source]}
            content["pieces"][split].append(entry)
    (folder / "catalog.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "catalog.json"


# --- What the processes do ---


def peak_megabytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure_prepare(catalog: str, output: str, limit: str) -> dict[str, Any]:
    """Prepare a corpus, and return the seconds of its stages and its memory."""
    begin = time.perf_counter()
    marks: list[tuple[float, float]] = []

    def mark(line: str) -> None:
        marks.append((time.perf_counter() - begin, time.process_time()))
        print(f"{marks[-1][0]:7.1f} s  {line}", file=sys.stderr, flush=True)

    mark("begun")
    manifest = prepare(load_catalog(catalog), output, limit=int(limit) or None, report=mark)
    names = ("fetch and count", "vocabulary", "encode")
    stages = {
        name: {"seconds": round(b[0] - a[0], 1), "cpu_seconds": round(b[1] - a[1], 1)}
        for name, a, b in zip(names, marks, marks[1:])
    }
    read = sum(piece["pairs"] for piece in manifest.pieces.values())
    return {
        "what": "prepare",
        "pairs": read,
        "kept": manifest.pairs,
        "seconds": round(marks[-1][0], 1),
        "stages": stages,
        "pairs_per_cpu_second_encode": round(read / stages["encode"]["cpu_seconds"]),
        "pairs_per_cpu_second": round(read / sum(s["cpu_seconds"] for s in stages.values())),
        "peak_megabytes": peak_megabytes(),
        "pieces": manifest.pieces,
        "bytes_of_shards": sum(
            known["bytes"] for name, known in manifest.files.items() if name.endswith(".npy")
        ),
    }


def measure_open(folder: str, max_tokens: str) -> dict[str, Any]:
    """Open shards and plan an epoch, and return the seconds and the memory."""
    from annotated_transformer.batching import plan_batches

    def marked() -> tuple[float, float, int]:
        return time.perf_counter(), time.process_time(), peak_megabytes()

    marks = [marked()]
    EncodedCorpus(folder, check=False)
    marks.append(marked())
    shards = EncodedCorpus(folder)
    marks.append(marked())
    plan = plan_batches(shards.shapes, int(max_tokens), seed=0, epoch=0)
    marks.append(marked())
    names = ("open", "open and check", "plan")
    return {
        "what": "open and plan",
        "pairs": len(shards),
        "batches": len(plan),
        "useful": round(
            float(shards.shapes.long().sum())
            / sum(len(batch.indices) * sum(batch.shape) for batch in plan),
            4,
        ),
        "tokens": int(shards.shapes.long().sum()),
        "stages": {
            name: {"seconds": round(b[0] - a[0], 2), "cpu_seconds": round(b[1] - a[1], 2)}
            for name, a, b in zip(names, marks, marks[1:])
        },
        "megabytes_of_imports": marks[0][2],
        "megabytes_opened": marks[2][2],
        "peak_megabytes": marks[3][2],
    }


def in_process(name: str, *arguments: object) -> dict[str, Any]:
    """Call a function of this file in a process of its own."""
    command = [sys.executable, __file__, "--only", name, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    record = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(record, indent=2), flush=True)
    return dict(record)


# --- Many shards out of some ---


def link_shards(folder: Path, place: Path, pairs: int) -> Path:
    """Make a folder in which shards stand many times over, until there are so many pairs."""
    manifest = read_manifest(folder)
    content = json.loads((folder / "manifest.json").read_text())
    place.mkdir()
    os.link(folder / "tokenizer.json", place / "tokenizer.json")
    counts = {
        name: json.loads((folder / f"{name}.json").read_text())["counts"]["kept"]
        for name in manifest.shards
    }
    content["shards"], content["pairs"] = [], 0
    for number, name in enumerate(cycle(manifest.shards)):
        if content["pairs"] >= pairs:
            break
        for kind in ("tokens", "lengths"):
            new, old = f"linked-{number:04}.{kind}.npy", f"{name}.{kind}.npy"
            os.link(folder / old, place / new)
            content["files"][new] = content["files"][old]
        content["shards"].append(f"linked-{number:04}")
        content["pairs"] += counts[name]
    (place / "manifest.json").write_text(json.dumps(content))
    return place


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", action="append", required=True)
    parser.add_argument("--pairs", type=int, default=2_000_000, help="to prepare")
    parser.add_argument("--open", type=int, default=4_500_000, help="pairs to open")
    parser.add_argument("--limit", type=int, default=0, help="of prepare; 0 for none")
    parser.add_argument("--max-tokens", type=int, default=25_000, help="of a batch")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="that encode")
    parser.add_argument("--append", action="store_true", help="to the log, in place of a new one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "archives").mkdir()
        server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(Quiet, directory=str(folder / "archives"))
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        texts = [read_pairs(*paths) for paths in options.data]
        catalog = write_catalog(folder / "archives", texts, options.pairs, address)
        size = sum(path.stat().st_size for path in (folder / "archives").glob("*.tgz"))
        print(f"{size:,} bytes of archives", flush=True)
        os.environ["ANNOTATED_TRANSFORMER_CACHE"] = str(folder / "cache")
        records = [in_process("measure_prepare", catalog, folder / "out", options.limit)]
        server.shutdown()
        place = folder / "out"
        if options.open > records[0]["kept"]:
            place = link_shards(folder / "out", folder / "linked", options.open)
        records.append(in_process("measure_open", place, options.max_tokens))
    settings = {
        "benchmark": "prepare",
        "command": "python benchmarks/prepare.py "
        + " ".join(f"--data {' '.join(path.name for path in paths)}" for paths in options.data)
        + f" --pairs {options.pairs} --open {options.open}",
        "cores": os.cpu_count(),
        "threads": options.threads,
        "bytes_of_archives": size,
    }
    path = options.results / "prepare.jsonl"
    before = path.read_text(encoding="utf-8") if options.append and path.exists() else ""
    write_log(options.results, "prepare", settings, records)
    path.write_text(before + path.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        print(json.dumps(globals()[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
