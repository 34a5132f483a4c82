"""The benchmarks run from end to end at toy size, also where transformers is not installed."""

import ast
import functools
import importlib
import importlib.util
import itertools
import json
import math
import re
import shlex
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tyro

from annotated_transformer.data import MissingData, multi30k
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.model_io import save_model
from annotated_transformer.schedule import learning_rate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, preset
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


def documented() -> list[str]:
    """What the book, its chapters and the benchmarks' own page print, for all that tyro reads."""
    pages = [*ROOT.glob("notebooks/*.py"), *ROOT.glob("book/*.md"), ROOT / "benchmarks/README.md"]
    form = re.compile(r"python benchmarks/(\w+\.py[^`#\n]*)")
    found = {match.strip() for page in pages for match in form.findall(page.read_text("utf-8"))}
    return sorted(found - {c for c in found if c.startswith(("captions.py", "prepare.py"))})


@pytest.mark.parametrize("command", documented())
def test_documented_commands_are_understood(command: str) -> None:
    script, *options = shlex.split(command)
    main = importlib.import_module(script.removesuffix(".py")).main
    given = []
    tyro.cli(functools.wraps(main)(lambda *a, **k: given.append((a, k))), args=options)
    assert len(given) == 1


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


def test_symptoms_differ_from_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each illness changes what is seen, and each wrong way to ask changes what is written."""
    symptoms = importlib.import_module("symptoms")
    monkeypatch.setattr(symptoms, "multi30k", lambda split: grammar(60, len(split)))
    settings, records = run("symptoms", tmp_path, steps=8, heart_steps=3, sentences=4, captions=2)
    assert settings["sentences"] == 4 and records[0]["last_loss"] < records[0]["first_loss"]
    ill = [r for r in records if "loss" in r and r["what"] != "healthy"]
    assert len(ill) == 5 and len({(r["loss"], r["validation_loss"]) for r in ill}) == 5
    asked = [r for r in records if "different" in r and "loss" not in r]
    assert len(asked) == 8 and len({r["said"] for r in asked}) > 3
    whole, *broken = [r for r in records if r["what"].startswith("resumed")]
    assert len(broken) == 2 and all(r["before"] == whole["before"] for r in broken)
    assert len({(r["after_1"], r["end"]) for r in (whole, *broken)}) > 1


def test_the_table_of_starts_is_the_logs() -> None:
    """Each row of the page is the mean over the seeds that the log has."""
    log = (ROOT / "benchmarks/results/start.jsonl").read_text("utf-8").splitlines()
    scores: dict[str, list[tuple[float, float]]] = {}
    for record in map(json.loads, log[1:]):
        both = record["everyday"]["bleu"], record["captions"]["bleu"]
        scores.setdefault(record["model"], []).append(both)
    page = (ROOT / "book/own_pair.md").read_text("utf-8").partition("| training, 3,000")[2]
    rows = [line.split("|")[2:4] for line in page.splitlines()[2:6]]
    means = [[f"{np.mean(column):.1f}" for column in zip(*found)] for found in scores.values()]
    assert [[cell.strip() for cell in row] for row in rows] == means


def test_a_start_is_scored_before_and_after(tmp_path: Path) -> None:
    try:
        multi30k("test_2016_flickr")
    except MissingData as error:
        pytest.skip(str(error))
    rows = [f"{pair.target}\t{pair.source}\n" for pair in grammar(400, seed=1)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    few = {"table": tmp_path / "pairs.tsv", "pairs": 300, "steps": 8, "tests": 3, "seeds": (0,)}
    settings, records = run("start", tmp_path / "log", **few)
    assert settings["pairs"] == 300 and len(records) == 4
    captions = {r["model"]: r["captions"]["bleu"] for r in records}
    assert len(captions) == 4 and captions["captions-de-en"] > captions["from nothing"]
    assert captions["begun"] > captions["from nothing"], "it began with other weights"
    assert run("start", tmp_path / "log", **few)[1] == records, "no run is made again"


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


def test_each_variant_of_a_part_changes_the_model() -> None:
    """What it changes can be counted in the parameters, or seen in the logits."""
    parts = importlib.import_module("parts")
    source, target = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9], [1, 3]])

    def made(part: str, **changed: Any) -> tuple[torch.Tensor, int]:
        torch.manual_seed(0)
        model = parts.make(20, parts.PARTS.index(part) + 1, **changed)
        return model(source, target), sum(p.numel() for p in model.parameters())

    for part, changed in parts.VARIANTS.values():
        assert not torch.equal(made(part, **changed)[0], made(part)[0])
    square = parts.D_MODEL**2
    assert made("means", values=True)[1] == made("means")[1] + 2 * square
    assert made("embeddings", tables=3)[1] == made("embeddings")[1] + 2 * 20 * parts.D_MODEL


def test_changes_since_2017_leave_the_size_alone(tmp_path: Path) -> None:
    """Each row has one run a seed, about as many parameters, and a loss of its own."""
    since = importlib.import_module("since")
    settings, runs = run("since", tmp_path, seeds=(0,), steps=1, corpus="grammar")
    assert settings["layers"] == 2 and len(runs) == len(since.CHANGES)
    assert len({one["validation_loss"] for one in runs}) == len(runs)
    sizes = [one["parameters"] for one in runs]
    assert max(sizes) / min(sizes) < 1.01


def test_one_stack_reads_source_and_target_as_one_text() -> None:
    """With its source whole, a word of the source sees the next one; no word sees the target's."""
    since = importlib.import_module("since")
    config = TransformerConfig(20, d_model=16, d_ff=32, heads=2)
    for whole in (False, True):
        model = since.DecoderOnly(config, layers=2, whole=whole).double().eval()
        source, target = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9], [1, 9]])
        states = model(source, target)
        torch.testing.assert_close(model(source[1:, :2], target[1:]), states[1:])
        later = model(source, torch.tensor([[1, 4], [1, 4]]))
        torch.testing.assert_close(later[:, 0], states[:, 0])
        assert not torch.allclose(later[:, 1], states[:, 1])


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
    brief = {"beams": (1, 2), "sentences": 4, "bf16": True}
    folder = tmp_path / "log"
    settings, lines = run("serving", folder, model=tmp_path / "model", **TOY, **brief)
    turns = [line for line in lines if "round" in line]
    assert settings["sentences"] == 4 and settings["command"].endswith("--bf16")
    assert len(turns) == 2 * 2 * (4 if settings["threads"] == 1 else 6)
    measured = [line for line in lines if "times_ours" in line]
    assert [line["same_as_ours"] for line in measured if line["system"] == "ours"] == [4, 4]
    assert len(measured) == len(turns) / 2
    assert all(line["sentences_per_second"] > 0 for line in measured)
    assert {"ours", "ours bf16"} < {line["system"] for line in measured}
    assert "patience" in capsys.readouterr().out


def test_the_table_of_training_is_its_logs() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for size, precision in itertools.product(("mini", "small", "base"), ("fp32", "bf16")):
        ending = "-bf16" if precision == "bf16" else ""
        path = ROOT / "benchmarks" / "results" / f"training-{size}-2{ending}.jsonl"
        rates: dict[str, list[float]] = {}
        for line in path.read_text("utf-8").splitlines():
            if (turn := json.loads(line)).get("round"):
                rates.setdefault(turn["system"], []).append(turn["tokens"] / turn["seconds"])
        ours = rates.pop("ours")
        row = f"| `--size {size}`, {precision} | {statistics.median(ours):,.0f} |"
        for system in ("torch.nn.Transformer", "MarianMTModel"):
            lead = statistics.median(mine / its for mine, its in zip(ours, rates[system]))
            row += f" {statistics.median(rates[system]):,.0f} ({lead:.2f} times) |"
        assert row in text


def lead(took: dict[tuple[str, str, int], float], mine: str, theirs: str, search: str) -> float:
    """Return how many times as fast `mine` is: the median of its turns."""
    rounds = range(1, 1 + max(n for _, _, n in took))
    return statistics.median(took[theirs, search, n] / took[mine, search, n] for n in rounds)


def test_the_table_of_serving_is_its_logs() -> None:
    """Speeds and ratios of the README, and the ranges that its text draws from them."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    names = {"ours": "ours", "ours bf16": "ours, in bf16"}
    for kind, spelled in (("float32", "in single precision"), ("int8", "in 8 bits")):
        names[f"CTranslate2 {kind}"] = f"CTranslate2 {spelled}"
        names[f"CTranslate2 {kind} workers"] = f"CTranslate2 {spelled}, workers"
    ahead: dict[tuple[str, int, str], list[float]] = {}
    speeds, bf16 = {}, list[float]()
    for label, model, threads in (
        ("captions", "captions-de-en", 1),
        ("captions", "captions-de-en", 2),
        ("everyday model", "everyday-de-en", 2),
    ):
        path = ROOT / "benchmarks" / "results" / f"serving-{model}-{threads}.jsonl"
        found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        scored = {(r["system"], r["search"]): r for r in found if "bleu" in r}
        took = {(r["system"], r["search"], r["round"]): r["seconds"] for r in found if "round" in r}
        for system, name in names.items():
            if "workers" in system and threads == 1:
                continue
            cells = []
            for search in ("greedy", "beam 4"):
                result = scored[system, search]
                times = "" if system == "ours" else f" ({result['times_ours']:.2f} times)"
                cells.append(f"{result['sentences_per_second']:,.0f}{times}")
                speeds[model, threads, system, search] = result["sentences_per_second"]
                if system == "ours bf16":
                    bf16.append(result["times_ours"])
                if "ours" not in system and "float32" in system:
                    for mine in ("ours", "ours bf16"):
                        ahead.setdefault((mine, threads, system), []).append(
                            lead(took, mine, system, search)
                        )
            assert f"| {label}, {name} | {threads} | {' | '.join(cells)} |" in text
    for model in ("captions-de-en", "everyday-de-en"):  # the larger batches
        path = ROOT / "benchmarks" / "results" / f"serving-{model}-2-8192.jsonl"
        found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        took = {(r["system"], r["search"], r["round"]): r["seconds"] for r in found if "round" in r}
        for mine, search in itertools.product(("ours", "ours bf16"), ("greedy", "beam 4")):
            ahead.setdefault((mine, 8192, "CTranslate2 float32"), []).append(
                lead(took, mine, "CTranslate2 float32", search)
            )
    for (mine, threads, system), ratios in ahead.items():
        told = " to ".join(sorted({f"{min(ratios):.2f}", f"{max(ratios):.2f}"}))
        assert told in text, (mine, threads, system)
    asked = (ROOT / "book" / "questions.md").read_text(encoding="utf-8")
    assert f"was {100 * min(bf16) - 100:.0f} to {100 * max(bf16) - 100:.0f}% faster" in asked
    gains = [
        speeds["captions-de-en", 2, "ours", search] / speeds["captions-de-en", 1, "ours", search]
        for search in ("greedy", "beam 4")
    ]
    chapter = (ROOT / "notebooks" / "19_decoding.py").read_text(encoding="utf-8")
    assert f"{min(gains):.1f} to {max(gains):.1f} times as fast with two threads as" in chapter


def test_three_kernels_take_longer_than_the_goal() -> None:
    """What the README says of the seconds that a lead over CTranslate2 would leave."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    logs = (ROOT / "benchmarks" / "results" / f"{name}.jsonl" for name in (
        "shares-captions-de-en", "serving-captions-de-en-1"
    ))  # fmt: skip
    shares, served = ([json.loads(line) for line in log.read_text().splitlines()] for log in logs)
    spent, allowed = {}, {}
    for line in shares:
        if line.get("products") == "oneDNN":
            kernels = ("matrix products", "attention", "search")
            spent[line["beam"]] = line["seconds"] * sum(line[name] for name in kernels)
    for beam, search in ((1, "greedy"), (4, "beam 4")):
        (rate,) = (
            r["sentences_per_second"]
            for r in served
            if r.get("system") == "CTranslate2 float32" and "bleu" in r and r["search"] == search
        )
        allowed[beam] = 400 / rate / 1.1
        assert spent[beam] > allowed[beam]
    assert f"do with {allowed[4]:.2f} seconds" in text and f"take {spent[4]:.2f} by" in text
    assert f"(greedily {spent[1]:.2f}, where {allowed[1]:.2f} would be needed)" in text


@pytest.mark.slow
def test_the_gpu_list_is_rehearsed_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Every part measures something, once; what it leaves alone is what it says it measures."""
    options: dict[str, Any] = {"device": "cpu", "tiny": True}
    parts = ("throughput", "levers", "loss", "decoding", "steps", "compiled", "processes")
    first = run("gpu", tmp_path, **options, parts=parts[:1])[1]
    settings, lines = run("gpu", tmp_path, **options)
    assert settings["scale"]["vocabulary"] == 300 and settings["peak"] > 0
    assert not [line["error"] for line in lines if "error" in line]
    assert {line["part"] for line in lines} == {*parts} and lines[: len(first)] == first
    found = {line["name"]: line for line in lines}
    assert found["tiny, compiled"]["programs"][0] > 0 == found["tiny"]["programs"][-1]
    random, usual = found["without sorted lengths"], found["tiny"]
    assert random["useful"] < usual["useful"] <= 1 and random["sorted"] < usual["sorted"]
    assert all(0 < line["mfu"] < 2 and line["launches"] > 100 for line in lines if "mfu" in line)
    whole, chunks = (found[f"{name}, smoothing 0.1"] for name in ("all logits", "chunked_loss"))
    assert whole["loss"] == pytest.approx(chunks["loss"], rel=1e-3)
    assert found["100 steps of tiny"]["last_loss"] < found["100 steps of tiny"]["first_loss"]
    one, two = found["one"]["updates"], found["two on one device, gloo"]["updates"]
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=1e-4, atol=1e-4)
    assert run("gpu", tmp_path, **options)[1] == lines  # nothing is measured twice


def gpu_log(ending: str = "") -> dict[str, dict[str, Any]]:
    """Return the lines of a log of an H200, by name."""
    log = ROOT / "benchmarks" / "results" / f"gpu-NVIDIA-H200{ending}.jsonl"
    return {line["name"]: line for line in map(json.loads, log.read_text().splitlines()[1:])}


def test_the_chapter_quotes_what_the_gpu_did() -> None:
    """Each number of the section on a GPU is in the logs."""
    text = (ROOT / "notebooks" / "25_speed.py").read_text("utf-8")
    gpu, first = gpu_log(), gpu_log("-first")
    base, big, small = gpu["base"], gpu["big"], gpu["3,125 tokens"]
    rate = {name: f"{line['tokens_per_second']:,}" for name, line in gpu.items() if "mfu" in line}
    step, cudnn = 1000 * statistics.median(small["seconds"]) / 5, "cuDNN's attention"
    all_logits, chunks = (gpu[f"{name}, smoothing 0.1"] for name in ("all logits", "chunked_loss"))
    for said in (
        f"`base` has {100 * base['mfu']:.0f} and `big` {100 * big['mfu']:.0f}.",
        f"{100 * base['mfu']:.0f}% with `base`, {100 * big['mfu']:.0f}% with `big`.",
        f"of {rate['base']} tokens a second, {rate['without sorted lengths']} are left without",
        f"{rate[cudnn]} with {cudnn} (in the first 30 steps)",
        f"{rate['fp32']} in fp32",
        f"{step:.0f} ms for the {small['launches']:,} kernels of the smallest step",
        f"{chunks['milliseconds']:.1f} against {all_logits['milliseconds']:.1f} for the loss",
        f"save {all_logits['gigabytes'] - chunks['gigabytes']:.0f} GB and cost "
        f"{chunks['milliseconds'] - all_logits['milliseconds']:.0f} ms",
        f"take {gpu['greedy, fp32']['took_seconds']:.1f} s greedily and "
        f"{gpu['beam 4, fp32']['took_seconds']:.1f} s with a beam of 4",
        f"stable for {gpu['5,000 steps of base']['progress'][-1]['step']:,} steps",
    ):
        assert said in text, said
    flash, rest, whole = (
        sum(ms for ms, _, kernel in gpu[name]["slowest"] if word in kernel)
        for name, word in (("causal kernel", "flash"), ("causal kernel", "fmha"), ("base", "fmha"))
    )
    assert f"took {flash:.1f} ms of a step and this one {whole - rest:.1f}." in text
    answers = (ROOT / "book" / "questions.md").read_text("utf-8")
    took, other = base["gigabytes"], gpu["fp32"]
    for said in (
        f"{rate[cudnn]} target tokens a second instead of {rate['base']}",
        f"took {took:.1f} GB for base and {big['gigabytes']:.1f} for big",
        f"base with 12,500 tokens took {gpu['12,500 tokens']['gigabytes']:.1f},",
        f"base took {other['gigabytes']:.1f} GB there, and "
        f"{base['tokens_per_second'] / other['tokens_per_second']:.1f} times as long",
    ):
        assert said in answers, said
    busy = {name: sum(line["kernels"].values()) for name, line in gpu.items() if "mfu" in line}
    assert 0.24 < base["kernels"]["products"] / busy["base"] < 0.26
    assert 0.35 < big["kernels"]["products"] / busy["big"] < 0.38
    assert 0.15 < busy["3,125 tokens"] / step < 0.18 and 35 < 1000 * step / small["launches"] < 46
    late = gpu["without reading ahead"]
    assert 1.25 < base["tokens_per_second"] / late["tokens_per_second"] < 1.4
    above = [
        line["gigabytes"] / line["planned_gigabytes"] - 1 for name, line in gpu.items()
        if name in ("base", "big") or name.endswith("00 tokens")
    ]  # fmt: skip
    assert -0.01 < min(above) < max(above) < 0.115
    assert abs(gpu["fp32"]["gigabytes"] / gpu["fp32"]["planned_gigabytes"] - 0.93) < 0.005
    torch.testing.assert_close(
        first["two on one device, gloo"]["updates"], first["one"]["updates"], rtol=1e-5, atol=0
    )
    assert "Duplicate GPU detected" in first["two on one device, nccl"]["error"]
    for name in ("base", "big"):
        plain, compiled = (first[n]["kernels"].values() for n in (name, f"{name}, compiled"))
        assert 0.88 < sum(compiled) / sum(plain) < 0.91
        rounds = first[f"{name}, compiled"]
        assert 45 < rounds["first_seconds"] + rounds["seconds"][0] + rounds["seconds"][4] < 60


def test_why_the_gpu_falls_short_follows_from_the_logs() -> None:
    """The four kinds of kernels that each step needs, in the profiled and the timed batches."""
    gpu, logs, first = importlib.import_module("gpu"), gpu_log(), gpu_log("-first")
    lengths = gpu.shaped(200_000, 37_000).lengths
    plan = gpu.plan_batches(lengths, 25_000, seed=0, epoch=0)[5:32]
    shapes = np.array([[len(rows), *lengths[rows].max(axis=0) - (0, 1)] for rows in plan]).T
    rows, (source, target) = shapes[0], -(-shapes[1:] // 64)
    tiles = rows * (source**2 + target**2 + source * target)  # of attention
    timed, profiled = slice(25), slice(25, 27)

    def ratio(work: np.ndarray) -> float:
        return work[timed].mean() / work[profiled].mean()

    found = list[str]()
    for name in ("base", "big"):
        config, line = gpu.preset(name, vocabulary_size=37_000), logs[name]
        work = np.array([sum(gpu.speed.flops(config, *lengths[r].T).values()) for r in plan], float)
        assert line["kernel_operations"] == pytest.approx(work[profiled].mean())
        kernels, scale = line["kernels"], work[profiled].mean() / 989e9
        four = [kernels[kind] for kind in ("products", "attention", "loss", "Adam")]
        there = np.dot(four, [ratio(work), ratio(tiles), ratio(rows * shapes[2]), 1])
        plain, compiled = (
            sum(first[f"{name}{ending}"]["kernels"].values())
            for ending in ("", ", compiled with the loss")
        )
        less = sum(kernels.values()) - plain + compiled
        found += [f"{sum(four):.1f}", f"{plain - compiled:.1f}", f"{scale / sum(four):.0%}"]
        found += [f"{scale * ratio(work) / there:.0%}", f"{scale / less:.0%}"]
    ms, saved, most, timed_most, with_savings = zip(found[:5], found[5:])
    readme = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    chapter = (ROOT / "notebooks" / "25_speed.py").read_text("utf-8")
    for said, text in (
        ("{} ms for base and {} for big".format(*ms), readme),
        ("{} and {} of the peak, if no other kernel ran".format(*most), readme),
        ("would come to some {} and {}".format(*timed_most), readme),
        ("would come to some {} and {};".format(*timed_most), chapter),
        ("{} ms shorter in base and {} in big".format(*saved), readme),
        ("would be at {} and {}.".format(*with_savings), readme),
        ("the profiled kernels would come to {} and {}.".format(*with_savings), chapter),
    ):
        assert said in text, said


def test_made_up_text_has_the_shape_of_wmt14() -> None:
    """Lengths scatter as measured; the target is the source in other words."""
    gpu = importlib.import_module("gpu")
    corpus = gpu.shaped(2000, 37_000)
    logs = np.log(corpus.lengths)
    assert abs(np.median(corpus.lengths[:, 0]) - 27) < 2 and abs(logs[:, 0].std() - 0.5) < 0.05
    assert abs((logs[:, 1] - logs[:, 0]).std() - 0.25) < 0.03
    known: dict[int, int] = {}
    for source, target in corpus:
        assert source[-1] == EOS == target[-1] and target[0] == BOS
        assert min(source[:-1].min(), target[1:-1].min()) > EOS
        if len(target) == len(source) + 1:
            for word, said in zip(source[:-1].tolist(), target[1:-1].tolist()):
                assert known.setdefault(word, said) == said
    assert len(known) > 1000


def test_table1_measures_what_each_layer_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Every layer at every size; only full attention keeps its n by n weights."""
    brief = {"lengths": (4, 8), "widths": (6, 8), "length": 4, "width": 8, "brief": 1e-4}
    settings, records = run("table1", tmp_path, rounds=1, cpu_time=True, **brief)
    assert settings["width"] == 8 and settings["cpu_time"]
    assert {(r["n"], r["d"]) for r in records} == {(4, 8), (8, 8), (4, 6)}
    assert len(records) == 3 * 7 and all(r["seconds"] > 0 for r in records)
    kept = {(r["layer"], r["n"]): r["kept_bytes"] for r in records if r["d"] == 8}
    assert [kept["self-attention", n] for n in (4, 8)] == [4 * (n * 8 + n * n) for n in (4, 8)]
    assert kept["recurrent", 8] < 2.1 * kept["recurrent", 4]
    assert "MB kept" in capsys.readouterr().out


def test_table1_measures_the_layers_of_the_chapter() -> None:
    """The functions of chapter 12 and of the benchmark return the same."""
    script = (ROOT / "notebooks" / "12_why_self_attention.py").read_text(encoding="utf-8")
    names = ("attend", "recurrent", "windows", "convolve", "separable", "restricted")
    shown = [f for f in ast.parse(script).body if getattr(f, "name", "") in names]
    chapter: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    exec(compile(ast.Module(shown, []), "12_why_self_attention.py", "exec"), chapter)
    torch.manual_seed(0)
    x, W, U, taps, kernel = (torch.randn(*s) for s in ((7, 4), (4, 4), (4, 4), (3, 4), (3, 4, 4)))
    inputs = {
        "attend": (x, x @ W, x @ U),
        "recurrent": (x, W, U),
        "convolve": (x, kernel, 2),
        "separable": (x, taps, W),
        "restricted": (x, x @ W, x @ U, 3),
    }
    table1 = importlib.import_module("table1")
    for name, given in inputs.items():
        torch.testing.assert_close(getattr(table1, name)(*given), chapter[name](*given))


def test_systems_take_turns() -> None:
    common = importlib.import_module("common")
    order: list[str] = []
    systems = {name: lambda number, name=name: order.append(name) or number + 1 for name in "ABC"}
    turns = common.take_turns(systems, rounds=3)
    assert "".join(order) == "ABCBCACABABC"
    assert [turn["round"] for turn in turns] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [turn["tokens"] for turn in turns if turn["system"] == "A"] == [2, 3, 4]


@pytest.mark.slow
def test_growth_has_a_process_for_each_point(tmp_path: Path) -> None:
    """More tokens take more time and more memory."""
    brief = {"preset": "tiny", "tokens": 256, "lengths": (8, 64), "batches": (4, 256), "size": 300}
    settings, points = run("growth", tmp_path, **brief)
    assert settings["preset"] == "tiny"
    assert [(p["sentences"], p["length"]) for p in points] == [(32, 8), (4, 64), (4, 32), (256, 32)]
    assert points[3]["seconds"] > points[2]["seconds"] and points[3]["bytes"] > points[2]["bytes"]


def test_parsing_makes_a_run(tmp_path: Path) -> None:
    """Held to trees, even an untrained model writes them, and repeats the words."""
    parsing = importlib.import_module("parsing")
    try:
        train, _, test = parsing.split()
    except MissingData as error:
        pytest.skip(str(error))
    brief = {"shares": (8,), "seeds": (0,), "steps": 1, "sentences": 1}
    settings, (only,) = run("parsing", tmp_path, **brief)
    assert settings["beam"] == 21 and only["trees"] == 425
    assert only["well_formed_constrained"] == 1
    with pytest.raises(ValueError, match="another steps"):
        run("parsing", tmp_path, **{**brief, "steps": 2})
    for written in (True, False):
        code = parsing.Code(train[:50], written=written)
        shape = TransformerConfig(len(code.entries), layers=1, d_model=16, d_ff=16, heads=2)
        words = [word for _, word in parsing.leaves(test[0])]
        (symbols,) = parsing.parse(Transformer(shape).eval(), code, [words], constrained=True)
        assert parsing.restore(symbols, words)
        repeated = [symbol for symbol in symbols if symbol[0] not in parsing.KINDS]
        assert repeated == (code.read(code.source(words)[:-1]) if written else [])


def test_the_rows_of_table_3_keep_the_paper_s_proportions() -> None:
    """Half the layers, a quarter of each width, so all ratios to the base model are as there."""
    variations = importlib.import_module("variations")
    base, small = preset("base"), variations.shape("base", 37_000)
    assert (small.layers, small.d_model, small.d_ff, small.heads) == (3, 128, 512, 8)
    for name in variations.ROWS:
        paper, ours = preset(name), variations.shape(name, 37_000)
        for field in ("layers", "d_model", "d_ff", "heads", "dropout"):
            assert getattr(ours, field) / getattr(small, field) == pytest.approx(
                getattr(paper, field) / getattr(base, field)
            )
        assert ours.positions == paper.positions
        attention = Transformer(replace(ours, vocabulary_size=9)).encoder.layers[0].self_attention
        width = (paper.d_k or paper.d_model // paper.heads) * paper.heads // 4
        assert len(attention.key.weight) == width
    smoothed = {name: variations.recipe(name, 0).label_smoothing for name in variations.ROWS}
    assert {name: share for name, share in smoothed.items() if share != 0.1} == {
        "D-smoothing0.0": 0.0, "D-smoothing0.2": 0.2
    }  # fmt: skip


def test_without_warm_up_the_rate_starts_at_its_peak() -> None:
    variations = importlib.import_module("variations")
    cold, warm = (
        [rate(step, 128, 100, 0.2) for step in range(1, 301)]
        for rate in (variations.no_warm_up, learning_rate)
    )
    assert cold[:100] == [max(warm)] * 100 and cold[99:] == warm[99:]


def test_variations_are_trained_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A norm's row differs with warm-up and place; a run in the log is not made again."""
    rows = ("C-N2", "E-learned", "post-2-warm", "post-2-cold", "pre-2-warm")
    brief = {"seeds": (0,), "steps": 2, "sentences": 2, "corpus": "grammar"}
    settings, runs = run("variations", tmp_path, rows=rows[1:], **brief)
    assert settings["steps"] == settings["norms_steps"] == 2 and settings["narrower"] == 4
    assert len({one["validation_loss"] for one in runs}) == len(runs) == 4
    assert ["bleu" in one for one in runs] == [True, False, False, False]
    capsys.readouterr()
    _, more = run("variations", tmp_path, rows=rows, **brief)
    assert more[:4] == runs and more[4]["row"] == "C-N2"
    assert "4 runs found, 1 to make" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no row base2: take some of base, A-h1"):
        run("variations", tmp_path, rows=("base2",), **brief)
    with pytest.raises(ValueError, match="another sentences: move it"):
        run("variations", tmp_path, rows=rows, **{**brief, "sentences": 3})


def test_shares_of_a_translation_add_up(tmp_path: Path) -> None:
    """Each kernel has one kind; products have a rate in each library."""
    brief = {"sentences": 4, "beams": (2,), "corpus": "grammar"}
    lines = run("shares", tmp_path, **brief)[1]
    searches, products = lines[:2], lines[2:]
    kinds = {"matrix products", "attention", "search", "cache", "normalization", "other"}
    assert [search["products"] for search in searches] == ["MKL", "oneDNN"]
    for search in searches:
        assert sum(search.get(k, 0) for k in kinds) == pytest.approx(1, abs=0.01)
        assert kinds <= search.keys() and search["seconds"] > 0
    assert len(products) == 9 and all(min(p["GFLOP/s"].values()) > 0 for p in products)
