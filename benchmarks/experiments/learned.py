"""How many pairs did the models that come with the package learn from?

    python -m benchmarks.experiments.learned deu-eng.zip

Makes their tables again from Tatoeba's archive and the captions, divides them as the command line
does, and plans an epoch with each model's own vocabulary. As many updates to an epoch as its
training has logged, or this stops. Writes `results/learned.jsonl`.
"""

import json
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import tyro

from annotated_transformer import Pair, encode_pairs, load_pretrained
from annotated_transformer.batching import plan_batches
from annotated_transformer.toolkit import cli
from benchmarks import common
from tools import everyday

PRETRAINED = Path(str(files("annotated_transformer") / "pretrained"))


def pairs_of(name: str, archive: Path) -> list[Pair]:
    """Return the pairs that a model's first training took, without those held out."""
    kind, _, direction = name.partition("-")
    if kind == "captions":
        return cli.read_splits(cli.Data(corpus="multi30k"), seed=0).train
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "everyday.tsv")
        everyday.write_table(everyday.everyday_pairs(archive, direction), table)
        return cli.read_splits(cli.Data(data=[table]), seed=0).train


def logged_updates(name: str) -> float:
    """Return the updates to an epoch by the last line of a first training's log."""
    lines = (PRETRAINED / name / "start.jsonl").read_text(encoding="utf-8").splitlines()
    last = [line for line in map(json.loads, lines) if "epoch" in line][-1]
    return float(last["step"] / last["epoch"])


def count(name: str, archive: Path) -> common.Record:
    """Count a model's pairs; raises ValueError if its log tells of other ones."""
    pairs = pairs_of(name, archive)
    _, tokenizer = load_pretrained(name)
    settings = json.loads((PRETRAINED / name / "start.json").read_text("utf-8"))
    lengths = encode_pairs(tokenizer, pairs).lengths
    seed, most = settings["training.seed"], settings["training.max_tokens"]
    updates = len(plan_batches(lengths, most, seed, epoch=0))
    logged = logged_updates(name)
    if abs(updates - logged) > 1:
        raise ValueError(f"{name}: {updates} updates to an epoch, its log has {logged}")
    return {"model": name, "pairs": len(pairs), "updates": updates, "logged": logged}


def main(
    archive: tyro.conf.Positional[Path],
    models: Sequence[str] = ("captions-de-en", "everyday-de-en", "everyday-en-de"),
    results: Path = common.RESULTS,
) -> None:
    """Count the pairs of each model; `archive` is Tatoeba's deu-eng.zip."""
    found = [count(name, archive) for name in models]
    rows = [[line["model"], f"{line['pairs']:,}"] for line in found]
    print(common.table(["model", "pairs"], rows))
    common.write_log(results, "learned", {"benchmark": "learned"}, found)


if __name__ == "__main__":
    tyro.cli(main)
