"""From nothing to a score in four commands, as the last chapter does it with WMT14: archives of the
same layout are served on 127.0.0.1, fetched, prepared, trained on by two processes, and scored.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wmt_archives import build, catalog, serve

from annotated_transformer.data import Pair, cache_folder
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.own_data import read_pairs
from annotated_transformer.model_io import load_model

MAIN = [sys.executable, "-m", "annotated_transformer"]
TOGETHER = [
    *[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    *["-m", "annotated_transformer"],
]
SHORT = [
    *["--preset", "tiny", "--steps", "60", "--save-every", "20", "--max-tokens", "2000"],
    *["--warmup", "60", "--factor", "0.3", "--clip", "1", "--keep", "3"],
]


def real_pairs() -> list[Pair]:
    """Real English-German lines of WMT where they are at hand, else the grammar's."""
    folder = cache_folder() / "wmt-sample"
    if (folder / "train.en").is_file():
        return read_pairs(folder / "train.en", folder / "train.de")[:3000]
    return [Pair(pair.target, pair.source) for pair in grammar(3000, seed=0)]


def run(home: Path, *arguments: object, front: list[str] = MAIN) -> str:
    environment = {**os.environ, "ANNOTATED_TRANSFORMER_CACHE": str(home / "cache")}
    done = subprocess.run(
        [*front, *map(str, arguments)], cwd=home, env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    (archives := home / "archives").mkdir()
    pairs = real_pairs()
    template = build(archives, pairs[200:], validation=pairs[:60], test=pairs[60:200])
    with serve(archives) as address:
        run(home, "prepare", catalog(template, address), "--output", "corpus")
    yield home


def test_four_commands_from_nothing_to_a_score(home: Path) -> None:
    options = ["--prepared", "corpus", "--output", "run", *SHORT]
    run(home, "train", *options, "--tensorboard", front=TOGETHER)
    records = list(map(json.loads, (home / "run" / "log.jsonl").read_text().splitlines()))
    scored = [record for record in records if "score" in record]
    assert [record["step"] for record in scored] == [20, 40, 60]
    assert scored[-1]["validation_loss"] < scored[0]["validation_loss"]
    assert list((home / "run" / "tensorboard").iterdir())

    run(home, "average", "--run", "run", "--last", "3", "--output", "model")
    evaluate = ["evaluate", "--model", "model", "--prepared", "corpus", "--limit", "40", "--json"]
    shown = run(home, *evaluate, "--output", "two.txt", front=TOGETHER)
    together = json.loads(shown.splitlines()[-1])  # some releases of gloo print a line before
    alone = json.loads(run(home, *evaluate, "--output", "one.txt"))
    for name in ("bleu", "chrf", "filtered_bleu", "paper_style"):
        assert together[name] == pytest.approx(alone[name])
    assert (home / "two.txt").read_text() == (home / "one.txt").read_text()
    assert together["sentences"] == 40 and "tok:13a" in together["bleu_signature"]
    assert "not comparable" in run(home, *evaluate[:-1])

    model, tokenizer = load_model(home / "model")
    assert model.config.vocabulary_size == len(tokenizer) == 400


def test_one_process_goes_on_where_two_were(home: Path) -> None:
    options = ["--prepared", "corpus", "--output", "other", *SHORT, "--dropout", "0"]
    run(home, "train", *options, "--steps", "20", front=TOGETHER)
    run(home, "train", *options, "--steps", "40")
    run(home, "train", *options[:3], "straight", *SHORT, "--dropout", "0", "--steps", "40")
    ends = [
        [json.loads(line) for line in (home / name / "log.jsonl").read_text().splitlines()][-1]
        for name in ("other", "straight")
    ]
    assert ends[0]["step"] == ends[1]["step"] == 40
    # rounding differs, and Adam makes much of it in its first steps
    assert ends[0]["loss"] == pytest.approx(ends[1]["loss"], abs=5e-3)


def test_a_plan_without_training(home: Path) -> None:
    options = ["--prepared", "corpus", "--output", "none", "--preset", "base", "--dry-run"]
    shown = run(home, "train", *options, "--gpu", "H100", "--gpus", "8")
    assert "100,000 of 1 x 25,000 tokens a side" in shown
    assert "on each of 8 x H100, bf16" in shown and "hours" in shown
    assert not (home / "none").exists()
    assert "this processor" in run(home, "train", *options)


def test_a_damaged_corpus_is_refused(home: Path) -> None:
    shard = sorted((home / "corpus").glob("train-*.tokens.npy"))[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-7])
    try:
        done = subprocess.run(
            [*MAIN, "train", "--prepared", "corpus", "--output", "x"],
            cwd=home, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    finally:
        shard.write_bytes(whole)
    assert done.returncode == 2 and "run prepare again" in done.stderr
    assert "Traceback" not in done.stderr and not (home / "x").exists()
