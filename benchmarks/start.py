"""Begin a training with a model that is there: what it gains, and what it forgets.

    python benchmarks/start.py deu.txt

Five thousand everyday sentences of Tatoeba are all that there is to learn from. Three models learn
from them by the command line: one from nothing; one that begins with captions-de-en, which knows
captions only; and one that begins with it and sees five thousand captions as well. Each is the mean
of its last four checkpoints, and is scored on Tatoeba's held-out sentences and on captions, as is
captions-de-en itself. The scores go to `results/start.jsonl`.
"""

import io
import json
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
import tyro
from common import RESULTS, write_log

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
    table: Path, pairs: int = 5000, steps: int = 1000, tests: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32", threads: int = 1, results: Path = RESULTS,
) -> None:  # fmt: skip
    """Train in three ways and score. `table` has English first; `tests` shortens the test sets."""
    torch.set_num_threads(threads)
    parts = split_pairs(read_pairs(table, columns=(1, 0)), 0.01, 0.01)
    own = Random(0).sample(parts.train, pairs)
    captions = Random(0).sample(multi30k("train"), pairs)
    records = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        test = write_pairs(home / "test.tsv", parts.test[:tests])
        limit: list[Any] = ["--limit", tests] if tests else []
        sets = {"everyday": ["--data", test], "captions": ["--corpus", "multi30k", *limit]}

        def add(way: str, model: str | Path) -> None:
            for found, corpus in sets.items():
                records.append({"model": way, "set": found, **evaluate(model, *corpus)})
                print(way, found, records[-1]["bleu"], flush=True)

        add(START, START)
        for number, (way, options) in enumerate(WAYS.items()):
            learned = own + captions * ("kept" in way)
            data = write_pairs(home / f"{number}.tsv", learned)
            run, model = home / f"run-{number}", home / f"model-{number}"
            arguments = ["--data", data, "--preset", "captions", "--steps", steps]
            arguments += ["--save-every", steps // 8, "--precision", precision]
            cli.main(["train", "--output", str(run), *map(str, arguments), *options])
            cli.main(["average", "--run", str(run), "--last", "4", "--output", str(model)])
            add(way, model)
    settings = {"benchmark": "start", "threads": threads, "pairs": pairs, "steps": steps}
    write_log(results, "start", settings | {"precision": precision}, records)


if __name__ == "__main__":
    tyro.cli(main)
