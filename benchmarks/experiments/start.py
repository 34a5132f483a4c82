"""Begin a training run with a model that is there: what it gains, and what it forgets.

    python -m benchmarks.experiments.start deu.txt

Five thousand everyday sentences of Tatoeba are all that there is to learn from. Three models learn
from them by the command line: one from nothing; one that begins with captions-de-en, which knows
captions only; and one that begins with it and sees five thousand captions as well. Each is the mean
of its last four checkpoints, and is scored on Tatoeba's held-out sentences and on captions, as is
captions-de-en itself; with other seeds, too. The scores go to `results/start.jsonl`.
"""

import io
import json
import tempfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import torch
import tyro

from annotated_transformer import Pair, multi30k, read_pairs, split_pairs
from annotated_transformer.toolkit import cli
from benchmarks import common

START = "captions-de-en"
KEPT = "begun, captions kept"
BEGUN = ["--start", START, "--lr-scale", "0.3"]
WAYS: dict[str, list[str]] = {
    "from nothing": ["--vocabulary-size", "4000"],
    "begun": BEGUN,
    KEPT: BEGUN,
}


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write a table with two columns."""
    lines = []
    for pair in pairs:
        source, target = " ".join(pair.source.split()), " ".join(pair.target.split())
        lines.append(f"{source}\t{target}\n")
    path.write_text("".join(lines), encoding="utf-8")


def evaluate(model: str | Path, corpus: list[str]) -> common.Record:
    """Score a model as the command line does."""
    with redirect_stdout(io.StringIO()) as printed:
        cli.main(["evaluate", "--model", str(model), *corpus, "--json"])
    return dict(json.loads(printed.getvalue()))


def train(way: str, seed: int, home: Path, options: list[str]) -> Path:
    """Train on the pairs in `home`, in one of WAYS; return the folder of the mean model."""
    data = home / ("with-captions.tsv" if way == KEPT else "own.tsv")
    run = home / f"run {way} {seed}"
    model = home / f"{way} {seed}"
    arguments = ["--data", str(data), "--seed", str(seed), "--output", str(run)]
    cli.main(["train", *arguments, *options, *WAYS[way]])
    cli.main(["average", "--run", str(run), "--last", "4", "--output", str(model)])
    return model


def measure(
    model: str,
    seed: int | None,
    home: Path,
    options: list[str],
    sets: dict[str, list[str]],
) -> common.Record:
    """Score captions-de-en or, with a seed, a model that is trained in one of WAYS."""
    trained = model if seed is None else train(model, seed, home, options)
    return {name: evaluate(trained, corpus) for name, corpus in sets.items()}


def main(
    table: tyro.conf.Positional[Path],
    pairs: int = 5000,
    steps: int = 3000,
    max_tokens: int = 1024,
    seeds: tuple[int, ...] = (0, 1, 2),
    tests: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Train in three ways and score. `table` has English first; `tests` shortens the test sets.

    A run that the log has is not made again.
    """
    torch.set_num_threads(threads)
    parts = split_pairs(read_pairs(table, columns=(1, 0)), 0.01, 0.01)
    own = Random(0).sample(parts.train, pairs)
    captions = Random(0).sample(multi30k("train"), pairs)
    settings = {
        "benchmark": "start",
        "threads": threads,
        "pairs": pairs,
        "steps": steps,
        "max_tokens": max_tokens,
        "precision": precision,
    }
    options = ["--preset", "captions", "--max-tokens", str(max_tokens)]
    options += ["--steps", str(steps), "--save-every", str(steps // 8)]
    options += ["--precision", precision]
    tasks: list[common.Record] = [{"model": START, "seed": None}]
    for seed in seeds:
        for way in WAYS:
            tasks.append({"model": way, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_pairs(home / "own.tsv", own)
        write_pairs(home / "with-captions.tsv", own + captions)
        write_pairs(home / "test.tsv", parts.test[:tests])
        limit = ["--limit", str(tests)] if tests else []
        sets = {
            "everyday": ["--data", str(home / "test.tsv")],
            "captions": ["--corpus", "multi30k", *limit],
        }
        run = partial(measure, home=home, options=options, sets=sets)
        common.make_runs(results / "start.jsonl", settings, tasks, run)


if __name__ == "__main__":
    tyro.cli(main)
