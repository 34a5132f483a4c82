"""The measurements of speed run from end to end at toy size, also without transformers."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_runs import run

from annotated_transformer import (
    SmoothedLoss,
    Tokenizer,
    Transformer,
    TransformerConfig,
    grammar,
    save_model,
)
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.speed import FastLoss
from benchmarks.common import RESULTS
from benchmarks.speed import gpu, levers

has_transformers = importlib.util.find_spec("transformers") is not None
TOY: dict[str, Any] = {"corpus": "grammar", "rounds": 2}
TRAINING: dict[str, Any] = {"size": "toy", "batches_each": 1, "max_tokens": 200}
DECODING: dict[str, Any] = {"size": "toy", "sentences": 8, "extra": 2, "beams": (1, 2)}
BRIEF = {"speed.training_speed": TRAINING, "speed.decoding_speed": DECODING}

# --- Training and decoding beside other libraries ---


@pytest.mark.parametrize("name", [*BRIEF])
def test_it_runs_without_transformers_and_says_so(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    find = importlib.util.find_spec

    def without_transformers(name: str) -> Any:
        return None if name == "transformers" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_transformers)
    settings, turns = run(name, tmp_path, **TOY, **BRIEF[name])
    output = capsys.readouterr().out
    assert "transformers is not installed" in output and "transformers" not in settings
    systems = {turn["system"] for turn in turns}
    assert systems == (
        {"ours", "torch.nn.Transformer"} if "training" in name else {"ours"}
    )
    assert all(turn["tokens"] > 0 and turn["seconds"] > 0 for turn in turns)
    assert all(system in output for system in systems)


@pytest.mark.skipif(not has_transformers, reason="transformers is not installed")
@pytest.mark.parametrize("name", [*BRIEF])
def test_it_measures_hugging_face(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Every system deals with the same tokens; greedy translations are the same."""
    _, turns = run(name, tmp_path, **TOY, **BRIEF[name])
    rival = "MarianMTModel" if "training" in name else "generate"
    assert rival in {turn["system"] for turn in turns}
    if "training" in name:
        for number in (1, 2):
            assert (
                len({turn["tokens"] for turn in turns if turn["round"] == number}) == 1
            )
    else:
        lines = capsys.readouterr().out.splitlines()
        (greedy,) = [line for line in lines if line.startswith("greedy, generate")]
        assert greedy.endswith("100.0%")


@pytest.mark.slow
def test_serving_compares_with_ctranslate2(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each system has its turns, and a result with what the appendix reads."""
    pytest.importorskip("ctranslate2")
    tokenizer = Tokenizer.train(grammar(120, seed=1), vocabulary_size=300)
    torch.manual_seed(0)
    save_model(
        Transformer(TransformerConfig(300, 1, 16, 32, 2)), tokenizer, tmp_path / "model"
    )
    brief = {"beams": (1, 2), "sentences": 4, "bf16": True}
    folder = tmp_path / "log"
    settings, lines = run(
        "speed.serving", folder, model=tmp_path / "model", threads=1, **TOY, **brief
    )
    turns = [line for line in lines if "round" in line]
    assert settings["sentences"] == 4 and settings["command"].endswith("--bf16")
    assert len(turns) == 2 * 2 * 4
    measured = [line for line in lines if "times_ours" in line]
    assert [line["same_as_ours"] for line in measured if line["system"] == "ours"] == [
        4,
        4,
    ]
    assert len(measured) == len(turns) / 2
    assert all(line["sentences_per_second"] > 0 for line in measured)
    assert {"ours", "ours bf16"} < {line["system"] for line in measured}
    assert "patience" in capsys.readouterr().out


@pytest.mark.slow
def test_shares_of_a_translation_add_up(tmp_path: Path) -> None:
    """Each kernel has one kind; products have a rate."""
    brief = {"sentences": 4, "beams": (2,), "corpus": "grammar"}
    lines = run("speed.shares", tmp_path, **brief)[1]
    searches, products = lines[:1], lines[1:]
    kinds = {
        "matrix products",
        "attention",
        "search",
        "cache",
        "normalization",
        "other",
    }
    for search in searches:
        assert sum(search.get(k, 0) for k in kinds) == pytest.approx(1, abs=0.01)
        assert kinds <= search.keys() and search["seconds"] > 0
    assert len(products) == 9 and all(p["GFLOP/s"] > 0 for p in products)


# --- Levers of a training step ---


@pytest.mark.slow
def test_levers_of_speed_train_on_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = {"preset": "tiny", "vocabulary": 300, "batches": 1, "max_tokens": 200}
    settings, turns = run("speed.step_speed", tmp_path, **TOY, **options, device="cpu")
    assert settings["preset"] == "tiny" and 0.5 < settings["useful"] <= 1
    systems = {turn["system"] for turn in turns}
    assert {"this book's step", "loss in chunks", "all together"} <= systems
    for number in (1, 2):
        assert len({turn["tokens"] for turn in turns if turn["round"] == number}) == 1
    output = capsys.readouterr().out
    assert all(word in output for word in ("tokens/s", "MFU", *systems))


@pytest.mark.parametrize(
    "make_loss", [levers.CausalKernel, levers.AddedMasks, levers.ReadableLoss]
)
def test_levers_compute_the_same_loss_with_the_same_weights(make_loss: Any) -> None:
    """The gradients arrive in the model that lends its weights, which is left as it was."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, 2, 16, 24, 2)).eval()
    source, target = torch.randint(4, 50, (3, 5)), torch.randint(4, 50, (3, 6))
    source[1, 3:] = target[1, 4:] = 0
    plain = SmoothedLoss(model)(source, target)
    plain.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    loss = make_loss(model)(source, target)
    torch.testing.assert_close(loss, plain)
    loss.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name])


def test_one_product_computes_the_same_loss() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, 2, 16, 24, 2)).eval()
    source, target = torch.randint(4, 50, (3, 5)), torch.randint(4, 50, (3, 6))
    joint = SmoothedLoss(levers.with_one_product(model))
    torch.testing.assert_close(
        joint(source, target), SmoothedLoss(model)(source, target)
    )


def test_the_chunked_loss_of_the_gpu_is_the_package_s() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, 2, 16, 24, 2)).eval()
    source, target = torch.randint(4, 50, (3, 5)), torch.randint(4, 50, (3, 6))
    setup = gpu.Setup("tiny", 100, precision="fp32", chunk=4)
    loss = gpu.make_loss(model, setup)
    assert isinstance(loss, FastLoss) and loss.chunk == 4
    torch.testing.assert_close(loss(source, target), FastLoss(model)(source, target))


# --- On a GPU ---


@pytest.mark.slow
def test_the_gpu_list_is_rehearsed_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Every part measures something, once; what it leaves alone is what it says it measures."""
    options: dict[str, Any] = {"device": "cpu", "tiny": True}
    parts = (
        "throughput",
        "levers",
        "loss",
        "decoding",
        "steps",
        "compiled",
        "processes",
        "rivals",
        "launches",
    )
    first = run("speed.gpu", tmp_path, **options, parts=parts[:1])[1]
    settings, lines = run("speed.gpu", tmp_path, **options)
    assert settings["scale"]["vocabulary"] == 300 and settings["peak"] > 0
    assert not [line["error"] for line in lines if "error" in line]
    assert {line["part"] for line in lines} == {*parts} and lines[: len(first)] == first
    by_name = {line["name"]: line for line in lines}
    assert (
        by_name["tiny, compiled"]["programs"][0] > 0 == by_name["tiny"]["programs"][-1]
    )
    random, usual = by_name["without sorted lengths"], by_name["tiny"]
    assert (
        random["useful"] < usual["useful"] <= 1 and random["sorted"] < usual["sorted"]
    )
    assert all(
        0 < line["mfu"] < 2 and line["launches"] > 100
        for line in lines
        if "mfu" in line
    )
    whole, chunks = (
        by_name[f"{name}, smoothing 0.1"] for name in ("all logits", "chunked_loss")
    )
    assert whole["loss"] == pytest.approx(chunks["loss"], rel=1e-3)
    assert (
        by_name["100 steps of tiny"]["last_loss"]
        < by_name["100 steps of tiny"]["first_loss"]
    )
    for name in ("without cuDNN's attention", "with cuDNN's attention"):
        assert by_name[name]["times_as_fast"].keys() >= {"ours", "torch.nn.Transformer"}
    recorded = by_name["tiny, padded, recorded"]
    assert recorded["recorded"] and recorded["multiple"] == 8
    assert recorded["shapes"] <= by_name["tiny, one chunk"]["shapes"]
    one, two = by_name["one"]["updates"], by_name["two on one device, gloo"]["updates"]
    torch.testing.assert_close(
        torch.tensor(two), torch.tensor(one), rtol=1e-4, atol=1e-4
    )
    assert (
        run("speed.gpu", tmp_path, **options)[1] == lines
    )  # nothing is measured twice


def gpu_log(ending: str = "") -> dict[str, dict[str, Any]]:
    """Return the lines of a log of an H200, by name."""
    log = RESULTS / f"gpu-NVIDIA-H200{ending}.jsonl"
    lines = map(json.loads, log.read_text().splitlines()[1:])
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", ["base", "big"])
def test_what_compiling_saved_on_the_gpu(name: str) -> None:
    """Compiled layers made all kernels of an update a tenth shorter."""
    first = gpu_log("-first")
    plain = sum(first[name]["kernels"].values())
    compiled = sum(first[f"{name}, compiled"]["kernels"].values())
    assert 0.88 < compiled / plain < 0.91


def test_two_processes_on_the_gpu_made_the_updates_of_one() -> None:
    first = gpu_log("-first")
    torch.testing.assert_close(
        first["two on one device, gloo"]["updates"],
        first["one"]["updates"],
        rtol=1e-5,
        atol=0,
    )
    assert "Duplicate GPU detected" in first["two on one device, nccl"]["error"]


def test_made_up_text_has_the_shape_of_wmt14() -> None:
    """Lengths scatter as measured; the target is the source in other words."""
    corpus = gpu.shaped(2000, 37_000)
    logs = np.log(corpus.lengths)
    assert (
        abs(np.median(corpus.lengths[:, 0]) - 27) < 2
        and abs(logs[:, 0].std() - 0.5) < 0.05
    )
    assert abs((logs[:, 1] - logs[:, 0]).std() - 0.25) < 0.03
    dictionary: dict[int, int] = {}
    for source, target in corpus:
        assert source[-1] == EOS == target[-1] and target[0] == BOS
        assert min(source[:-1].min(), target[1:-1].min()) > EOS
        if len(target) == len(source) + 1:
            for word, said in zip(source[:-1].tolist(), target[1:-1].tolist()):
                assert dictionary.setdefault(word, said) == said
    assert len(dictionary) > 1000
