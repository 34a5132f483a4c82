"""Begin a training run with a model that is there: what it gains, and what it forgets.

    python benchmarks/start.py deu.txt

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
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
import tyro
from common import RESULTS, make_runs

from annotated_transformer import cli
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.own_data import read_pairs, split_pairs

START = "captions-de-en"
WAYS: dict[str, list[str]] = {
    "from nothing": ["--vocabulary-size", "4000"],
    "begun": ["--start", START, "--lr-scale", "0.3"],
    "begun, captions kept": ["--start", START, "--lr-scale", "0.3"],
}


def write_pairs(path: Path, pairs: list[Pair]) -> Path:
    """Write a table with two columns."""
    rows = ("\t".join(" ".join(text.split()) for text in pair[:2]) for pair in pairs)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def evaluate(model: str | Path, *corpus: object) -> dict[str, Any]:
    """Score a model as the command line does."""
    with redirect_stdout(io.StringIO()) as printed:
        cli.main(["evaluate", "--model", str(model), *map(str, corpus), "--json"])
    return dict(json.loads(printed.getvalue()))


def main(
    table: tyro.conf.Positional[Path], pairs: int = 5000, steps: int = 3000, max_tokens: int = 1024,
    seeds: tuple[int, ...] = (0, 1, 2), tests: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32", threads: int = 1, results: Path = RESULTS,
) -> None:  # fmt: skip
    """Train in three ways and score. `table` has English first; `tests` shortens the test sets.

    A run that the log has is not made again.
    """
    torch.set_num_threads(threads)
    parts = split_pairs(read_pairs(table, columns=(1, 0)), 0.01, 0.01)
    own = Random(0).sample(parts.train, pairs)
    captions = Random(0).sample(multi30k("train"), pairs)
    settings = {"benchmark": "start", "threads": threads, "pairs": pairs, "steps": steps}
    settings |= {"max_tokens": max_tokens, "precision": precision}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        test = write_pairs(home / "test.tsv", parts.test[:tests])
        limit: list[Any] = ["--limit", tests] if tests else []
        sets = {"everyday": ["--data", test], "captions": ["--corpus", "multi30k", *limit]}

        def measure(model: str, seed: int | None) -> dict[str, Any]:
            made: str | Path = model
            if seed is not None:
                data = write_pairs(home / "data.tsv", own + captions * ("kept" in model))
                run, made = home / f"run {model} {seed}", home / f"{model} {seed}"
                arguments = ["--data", data, "--preset", "captions", "--max-tokens", max_tokens]
                arguments += ["--steps", steps, "--save-every", steps // 8, "--seed", seed]
                arguments += ["--precision", precision, "--output", run, *WAYS[model]]
                cli.main(["train", *map(str, arguments)])
                cli.main(["average", "--run", str(run), "--last", "4", "--output", str(made)])
            return {name: evaluate(made, *corpus) for name, corpus in sets.items()}

        tasks: list[dict[str, Any]] = [{"model": START, "seed": None}]
        tasks += [{"model": way, "seed": seed} for seed, way in product(seeds, WAYS)]
        make_runs(results / "start.jsonl", settings, tasks, measure)


if __name__ == "__main__":
    tyro.cli(main)
