"""The benchmarks run from end to end at toy size, also where transformers is not installed."""

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated_transformer.model_io import save_model
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.chapters import ROOT

has_transformers = importlib.util.find_spec("transformers") is not None
TOY: dict[str, Any] = {"corpus": "grammar", "rounds": 2}


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder is on the path; the grammar is short; the number of threads is put back."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    common = importlib.import_module("common")
    monkeypatch.setattr(common, "grammar", lambda count, seed: grammar(60, seed))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(name: str, folder: Path, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a command in this process; return the settings and the turns of its log."""
    importlib.import_module(name).main(threads=1, results=folder, **options)
    (path,) = folder.glob("*.jsonl")
    settings, *turns = map(json.loads, path.read_text().splitlines())
    assert settings["benchmark"] == name and settings["threads"] == 1 and settings["torch"]
    return settings, turns


BRIEF: dict[str, dict[str, Any]] = {
    "training": {"size": "toy", "batches_each": 1, "max_tokens": 200},
    "decoding": {"size": "toy", "sentences": 8, "extra": 2, "beams": (1, 2)},
}


@pytest.mark.parametrize("name", [*BRIEF])
def test_it_runs_without_transformers_and_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    find = importlib.util.find_spec
    without = lambda name: None if name == "transformers" else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    settings, turns = run(name, tmp_path, **TOY, **BRIEF[name])
    output = capsys.readouterr().out
    assert "transformers is not installed" in output and "transformers" not in settings
    systems = {turn["system"] for turn in turns}
    assert systems == ({"ours", "torch.nn.Transformer"} if name == "training" else {"ours"})
    assert all(turn["tokens"] > 0 and turn["seconds"] > 0 for turn in turns)
    assert all(system in output for system in systems)


@pytest.mark.skipif(not has_transformers, reason="transformers is not installed")
@pytest.mark.parametrize("name", [*BRIEF])
def test_it_measures_hugging_face(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Every system deals with the same tokens; greedy translations are the same."""
    _, turns = run(name, tmp_path, **TOY, **BRIEF[name])
    rival = "MarianMTModel" if name == "training" else "generate"
    assert rival in {turn["system"] for turn in turns}
    if name == "training":
        for number in (1, 2):
            assert len({turn["tokens"] for turn in turns if turn["round"] == number}) == 1
    else:
        lines = capsys.readouterr().out.splitlines()
        (greedy,) = [line for line in lines if line.startswith("greedy, generate")]
        assert greedy.endswith("100.0%")


def test_levers_of_speed_train_on_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = {"preset": "tiny", "vocabulary": 300, "batches": 1, "max_tokens": 200}
    settings, turns = run("speed", tmp_path, **TOY, **options, device="cpu")
    assert settings["preset"] == "tiny" and 0.5 < settings["useful"] <= 1
    systems = {turn["system"] for turn in turns}
    assert {"this book's step", "loss in chunks", "all together"} <= systems
    for number in (1, 2):
        assert len({turn["tokens"] for turn in turns if turn["round"] == number}) == 1
    output = capsys.readouterr().out
    assert all(word in output for word in ("tokens/s", "MFU", *systems))


def test_levers_that_the_package_leaves_out_change_nothing(tmp_path: Path) -> None:
    """Other masks, one product, kept weights: the same loss as the plain one."""
    speed = importlib.import_module("speed")
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, 2, 16, 24, 2)).eval()
    source, target = torch.randint(4, 50, (3, 5)), torch.randint(4, 50, (3, 6))
    source[1, 3:] = target[1, 4:] = 0
    plain = speed.SmoothedLoss(model)(source, target)
    joint = speed.SmoothedLoss(speed.with_one_product(model))
    others = [speed.OtherMasks(model), speed.AddedMasks(model), speed.KeptWeights(model), joint]
    for loss in others:
        torch.testing.assert_close(loss(source, target), plain)


def test_smoothing_trains_a_pair_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its rows are those of chapter 17's table; the same seed gives the same numbers."""
    brief = {"steps": 2, "sentences": 2, "pairs": 100}
    settings, runs = run("smoothing", tmp_path, seeds=(1, 2, 1), **brief)
    assert settings["steps"] == 2
    assert [(run["seed"], run["smoothing"]) for run in runs] == [
        (seed, smoothing) for seed in (1, 2, 1) for smoothing in (0.0, 0.1)
    ]
    assert runs[:2] == runs[4:] and runs[0]["perplexity"] != runs[2]["perplexity"]
    output = capsys.readouterr().out
    rows = [line.split("|") for line in output.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows] == ["1", "2", "1"] and len(rows[0]) == 7
    assert "standard error" in output


def test_departures_change_one_thing_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each option has one run a seed; rows and seeds differ."""
    settings, runs = run("departures", tmp_path, seeds=(0, 1), steps=1, corpus="grammar")
    assert settings["steps"] == 1
    by_change = {(run["change"], run["seed"]): run["validation_loss"] for run in runs}
    assert len(by_change) == len(runs) == 20
    plain, pre_norm = (by_change[name, 0] for name in ("the paper's form", "pre_norm"))
    assert plain != pre_norm and plain != by_change["the paper's form", 1]
    output = capsys.readouterr().out
    assert "against the first row" in output and "±" in output


def test_layers_that_recall_see_the_past_only() -> None:
    """They are of equal size. A changed word reaches six positions of the convolution, and all
    later ones of the others.
    """
    recall = importlib.import_module("recall")
    words = torch.randint(recall.WORDS, (1, 12))
    other = words.clone()
    other[0, 3] = (words[0, 3] + 1) % recall.WORDS
    for kind, end in [("GRU", 12), ("convolution", 9), ("attention", 12)]:
        model = recall.Recall(kind).double()
        changed = (model(words) - model(other))[0].abs().amax(dim=-1) > 1e-12
        assert changed.nonzero().flatten().tolist() == list(range(3, end))
        assert recall.weights(kind) == recall.weights("GRU")


def test_recall_trains_each_layer_on_each_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A convolution learns the word before; the log has what chapter 2 draws."""
    recall = importlib.import_module("recall")
    monkeypatch.setattr(recall, "DISTANCES", (1,))
    monkeypatch.setattr(recall, "LENGTHS", (64, 128))
    settings, turns = run("recall", tmp_path, seeds=(0, 1), steps=2, rounds=1)
    assert settings["weights of GRU"] == settings["weights of attention"]
    runs = [turn for turn in turns if "accuracy" in turn]
    assert [(r["kind"], r["distance"], r["steps"]) for r in runs[::2]] == [
        *((kind, 1, 2) for kind in recall.KINDS), ("GRU", 8, 10)
    ]  # fmt: skip
    timed = {(t["kind"], t["length"]): t["milliseconds"] for t in turns if "length" in t}
    assert len(timed) == 6 and all(took > 0 for took in timed.values())
    assert recall.accuracy("convolution", 1, steps=120) > 0.9
    assert "attention" in capsys.readouterr().out


def test_serving_compares_with_ctranslate2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Each system has its turns, and a result with what the appendix reads."""
    pytest.importorskip("ctranslate2")
    tokenizer = Tokenizer.train(grammar(120, seed=1), vocabulary_size=300)
    torch.manual_seed(0)
    save_model(Transformer(TransformerConfig(300, 1, 16, 32, 2)), tokenizer, tmp_path / "model")
    brief = {"beams": (1, 2), "sentences": 4}
    folder = tmp_path / "log"
    settings, lines = run("serving", folder, model=tmp_path / "model", **TOY, **brief)
    turns = [line for line in lines if "round" in line]
    assert settings["sentences"] == 4 and len(turns) == 2 * 2 * 3
    measured = [line for line in lines if "times_ours" in line]
    assert [line["same_as_ours"] for line in measured if line["system"] == "ours"] == [4, 4]
    assert len(measured) == 6 and all(line["sentences_per_second"] > 0 for line in measured)
    assert "patience" in capsys.readouterr().out


def test_systems_take_turns() -> None:
    common = importlib.import_module("common")
    order: list[str] = []
    systems = {name: lambda number, name=name: order.append(name) or number + 1 for name in "ABC"}
    turns = common.take_turns(systems, rounds=3)
    assert "".join(order) == "ABCBCACABABC"
    assert [turn["round"] for turn in turns] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [turn["tokens"] for turn in turns if turn["system"] == "A"] == [2, 3, 4]
