"""The benchmarks run from end to end, also where transformers is not installed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.chapters import ROOT

BENCHMARKS = ROOT / "benchmarks"
WITHOUT = "import sys; sys.modules['transformers'] = None"
RUN = """
import runpy, sys
sys.path.insert(0, {folder!r})
runpy.run_path({path!r}, run_name="__main__")
"""
SMALL = ["--size", "toy", "--corpus", "grammar", "--rounds", "2", "--threads", "1"]
has_transformers = importlib.util.find_spec("transformers") is not None


def run(name: str, results: Path, *options: str, without: bool = False) -> str:
    code = RUN.format(folder=str(BENCHMARKS), path=str(BENCHMARKS / f"{name}.py"))
    arguments = [*SMALL, "--results", str(results), *options]
    command = [sys.executable, "-c", (WITHOUT if without else "") + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(folder: Path) -> tuple[dict, list[dict]]:
    (path,) = folder.glob("*.jsonl")
    settings, *turns = map(json.loads, path.read_text().splitlines())
    return settings, turns


@pytest.mark.parametrize("name", ["training", "decoding"])
def test_it_runs_without_transformers_and_says_so(name: str, tmp_path: Path) -> None:
    brief = ["--batches", "1"] if name == "training" else ["--sentences", "8", "--extra", "2"]
    output = run(name, tmp_path, *brief, without=True)
    assert "transformers is not installed" in output
    settings, turns = records(tmp_path)
    assert settings["benchmark"] == name and settings["threads"] == 1
    assert "transformers" not in settings
    systems = {turn["system"] for turn in turns}
    assert systems == ({"ours", "torch.nn.Transformer"} if name == "training" else {"ours"})
    assert all(turn["tokens"] > 0 and turn["seconds"] > 0 for turn in turns)
    for system in systems:
        assert system in output


@pytest.mark.skipif(not has_transformers, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["training", "decoding"])
def test_it_measures_hugging_face(name: str, tmp_path: Path) -> None:
    """Every system deals with the same tokens; greedy translations are the same."""
    brief = ["--batches", "1"] if name == "training" else ["--sentences", "8", "--extra", "2"]
    output = run(name, tmp_path, *brief)
    _, turns = records(tmp_path)
    rival = "MarianMTModel" if name == "training" else "generate"
    assert rival in {turn["system"] for turn in turns}
    if name == "training":
        for number in (1, 2):
            assert len({turn["tokens"] for turn in turns if turn["round"] == number}) == 1
    else:
        (greedy,) = [line for line in output.splitlines() if line.startswith("greedy, generate")]
        assert greedy.endswith("100.0%")


def test_smoothing_trains_a_pair_for_each_seed(tmp_path: Path) -> None:
    """Its rows are those of chapter 17's table; the same seed gives the same numbers."""
    command = [sys.executable, str(BENCHMARKS / "smoothing.py"), "--seeds", "1", "2", "1"]
    brief = ["--steps", "2", "--sentences", "4", "--threads", "1", "--results", str(tmp_path)]
    done = subprocess.run([*command, *brief], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    settings, runs = records(tmp_path)
    assert settings["benchmark"] == "smoothing" and settings["steps"] == 2
    assert [(run["seed"], run["smoothing"]) for run in runs] == [
        (seed, smoothing) for seed in (1, 2, 1) for smoothing in (0.0, 0.1)
    ]
    assert runs[:2] == runs[4:] and runs[0]["perplexity"] != runs[2]["perplexity"]
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows] == ["1", "2", "1"] and len(rows[0]) == 7
    assert "standard error" in done.stdout


def test_departures_change_one_thing_at_a_time(tmp_path: Path) -> None:
    """Each option has one run a seed; what changes nothing in a few steps gives the same loss."""
    command = [sys.executable, str(BENCHMARKS / "departures.py"), "--seeds", "0", "1"]
    brief = ["--steps", "2", "--corpus", "grammar", "--threads", "1", "--results", str(tmp_path)]
    done = subprocess.run([*command, *brief], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    settings, runs = records(tmp_path)
    assert settings["benchmark"] == "departures" and settings["steps"] == 2
    by_change = {(run["change"], run["seed"]): run["validation_loss"] for run in runs}
    assert len(by_change) == len(runs) == 20
    plain, pre_norm = (by_change[name, 0] for name in ("the paper's form", "pre_norm"))
    assert plain != pre_norm and plain != by_change["the paper's form", 1]
    assert "against the first row" in done.stdout and "±" in done.stdout


def test_systems_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from common import take_turns

    order: list[str] = []
    systems = {name: lambda number, name=name: order.append(name) or number + 1 for name in "ABC"}
    rates, turns = take_turns(systems, rounds=3)
    assert "".join(order) == "ABCBCACABABC"
    assert [turn["round"] for turn in turns] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {name: len(values) for name, values in rates.items()} == {"A": 3, "B": 3, "C": 3}
