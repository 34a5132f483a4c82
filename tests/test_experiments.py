"""The experiments that chapters draw run from end to end at toy size, and measure what they say."""

import ast
import json
import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_runs import load, run
from torch import Tensor

from annotated_transformer import (
    Pair,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    grammar,
    multi30k,
    preset,
)
from annotated_transformer.schedule import learning_rate
from annotated_transformer.toolkit.downloads import MissingData
from benchmarks.experiments import (
    ladder,
    parsing,
    recall,
    risk,
    since,
    symptoms,
    table1,
    variations,
    widths,
)
from benchmarks.treebank import leaves, restore, split_treebank
from tools.chapters import ROOT


def test_smoothing_trains_a_pair_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its rows are those of chapter 17's table; the same seed gives the same numbers."""
    brief = {"steps": 2, "sentences": 2, "pairs": 100}
    settings, runs = run("experiments.smoothing", tmp_path, seeds=(1, 2, 1), **brief)
    assert settings["steps"] == 2
    assert [(run["seed"], run["smoothing"]) for run in runs] == [
        (seed, smoothing) for seed in (1, 2, 1) for smoothing in (0.0, 0.1)
    ]
    assert runs[:2] == runs[4:] and runs[0]["perplexity"] != runs[2]["perplexity"]
    output = capsys.readouterr().out
    rows = [line.split("|") for line in output.splitlines() if line.startswith("|")]
    assert [row[1].strip() for row in rows] == ["1", "2", "1"] and len(rows[0]) == 7
    assert "standard error" in output


@pytest.mark.slow
def test_symptoms_differ_from_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each illness changes what is seen, and each wrong way to ask changes what is written."""
    monkeypatch.setattr(symptoms, "multi30k", lambda split: grammar(60, len(split)))
    settings, records = run(
        "experiments.symptoms",
        tmp_path,
        steps=8,
        heart_steps=3,
        sentences=4,
        captions=2,
        pairs=56,
    )
    assert (
        settings["sentences"] == 4
        and records[0]["last_loss"] < records[0]["first_loss"]
    )
    ill = [r for r in records if "loss" in r and r["what"] != "healthy"]
    assert len(ill) == 5 and len({(r["loss"], r["validation_loss"]) for r in ill}) == 5
    asked = [r for r in records if "different" in r and "loss" not in r]
    assert len(asked) == 8 and len({r["said"] for r in asked}) > 3
    whole, *broken = [r for r in records if r["what"].startswith("resumed")]
    assert len(broken) == 2 and all(r["before"] == whole["before"] for r in broken)
    assert len({(r["after_1"], r["end"]) for r in (whole, *broken)}) > 1


@pytest.mark.slow
def test_a_start_is_scored_before_and_after(tmp_path: Path) -> None:
    try:
        multi30k("test_2016_flickr")
    except MissingData as error:
        pytest.skip(str(error))
    rows = [f"{pair.target}\t{pair.source}\n" for pair in grammar(400, seed=1)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    few = {
        "table": tmp_path / "pairs.tsv",
        "pairs": 300,
        "steps": 8,
        "tests": 3,
        "seeds": (0,),
    }
    settings, records = run("experiments.start", tmp_path / "log", **few)
    assert settings["pairs"] == 300 and len(records) == 4
    captions = {r["model"]: r["captions"]["bleu"] for r in records}
    assert len(captions) == 4 and captions["captions-de-en"] > captions["from nothing"]
    assert captions["begun"] > captions["from nothing"], "it began with other weights"
    assert run("experiments.start", tmp_path / "log", **few)[1] == records, (
        "no run is made again"
    )


def test_settings_are_trained_by_the_command_line_and_scored(tmp_path: Path) -> None:
    """A run that the log has is not made again; each of the real ones is a valid training."""
    rows = [f"{pair.target}\t{pair.source}\n" for pair in grammar(500, seed=1)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    brief = {"table": tmp_path / "pairs.tsv", "tiny": True, "threads": 1}
    described, lines = run("experiments.settings", tmp_path / "log", **brief)
    assert described["table"] == "pairs.tsv" and described["found"] > 400
    (line,) = lines
    assert line["pairs"] == 100 and line["preset"] == "tiny" and line["sentences"] > 0
    assert line["best_step"] in (2, 4) and line["hours"] >= 0 and line["bleu"] >= 0
    assert run("experiments.settings", tmp_path / "log", **brief)[1] == lines
    module = load("experiments.settings")
    for training in (*module.TRAININGS, *module.ON_GPU):
        names = {field.name for field in fields(TrainingConfig)}
        own = {name: value for name, value in asdict(training).items() if name in names}
        assert TrainingConfig(**own) and preset(training.preset)


def test_departures_change_one_thing_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each option has one run a seed; rows and seeds differ."""
    settings, runs = run(
        "experiments.departures", tmp_path, seeds=(0, 1), steps=1, corpus="grammar"
    )
    assert settings["steps"] == 1
    by_change = {(run["change"], run["seed"]): run["validation_loss"] for run in runs}
    assert len(by_change) == len(runs) == 20
    plain, pre_norm = (by_change[name, 0] for name in ("the paper's form", "pre_norm"))
    assert plain != pre_norm and plain != by_change["the paper's form", 1]
    output = capsys.readouterr().out
    assert "against the first row" in output and "±" in output


def test_each_change_of_a_rung_changes_the_model() -> None:
    """What it changes can be counted in the parameters, or seen in the logits."""
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    target = torch.tensor([[1, 9], [1, 3]])

    def make(part: str, **changes: Any) -> tuple[Tensor, int]:
        torch.manual_seed(0)
        model = ladder.make(20, part, **changes)
        return model(source, target), sum(p.numel() for p in model.parameters())

    for rung in ladder.RUNGS.values():
        if rung.changes:
            changed, _ = make(rung.part, **rung.changes)
            assert not torch.equal(changed, make(rung.part)[0])
    square = ladder.D_MODEL**2
    assert make("means", values=True)[1] == make("means")[1] + 2 * square
    assert make("attention", output=True)[1] == make("attention")[1] + 2 * square
    tables = 2 * 20 * ladder.D_MODEL
    assert make("embeddings", tables=3)[1] == make("embeddings")[1] + tables


def test_the_rungs_of_the_ladder_grow() -> None:
    """Each has more parameters than the one below; masks and positions have none."""
    sizes = {}
    for part in ladder.PARTS:
        model = ladder.make(20, part)
        sizes[part] = sum(weight.numel() for weight in model.parameters())
    assert sizes["masks"] == sizes["attention"] > sizes["means"]
    assert sizes["feed_forward"] > sizes["multi_head_attention"] > sizes["masks"]
    assert sizes["positional_encoding"] == sizes["embeddings"] < sizes["feed_forward"]
    assert sizes["transformer"] > sizes["layers"] > sizes["positional_encoding"]


def test_the_rungs_of_the_ladder_are_trained_and_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A run that the log has is not made again."""
    monkeypatch.setattr(ladder, "LEARNED", 200)
    monkeypatch.setattr(ladder, "TEST_PAIRS", 40)
    monkeypatch.setattr(ladder, "WARMUP", 1)
    ladder.task.cache_clear()
    rungs = ("means", "transformer, twice as long")
    brief = {"rungs": rungs, "seeds": (0,), "updates": 3, "asked": 2}
    settings, runs = run("experiments.ladder", tmp_path, **brief)
    assert settings["sentences"][0] == "Den Hund jagt die Katze."
    assert [line["updates"] for line in runs] == [3, 6]
    assert runs[0]["parameters"] < runs[1]["parameters"]
    assert all(len(line["writes"]) == len(ladder.SENTENCES) for line in runs)
    capsys.readouterr()
    assert run("experiments.ladder", tmp_path, **brief)[1] == runs
    assert "2 runs found, 0 to make" in capsys.readouterr().out
    ladder.task.cache_clear()


def test_rates_on_the_ladder_rise_and_end_at_zero() -> None:
    rates = [ladder.rate(step, 1000) for step in range(1, 1001)]
    assert max(rates) == rates[ladder.WARMUP - 1] == pytest.approx(ladder.PEAK_RATE)
    assert rates[-1] == 0 and rates[0] == pytest.approx(rates[98] / 99)


def test_changes_since_2017_leave_the_size_alone(tmp_path: Path) -> None:
    """Each row has one run a seed, about as many parameters, and a loss of its own."""
    settings, runs = run(
        "experiments.since", tmp_path, seeds=(0,), steps=1, corpus="grammar"
    )
    assert settings["layers"] == 2 and len(runs) == len(since.CHANGES)
    assert len({row["validation_loss"] for row in runs}) == len(runs)
    sizes = [row["parameters"] for row in runs]
    assert max(sizes) / min(sizes) < 1.01


def test_one_stack_reads_source_and_target_as_one_text() -> None:
    """With its source whole, a word of the source sees the next one; no word sees the target's."""
    config = TransformerConfig(20, d_model=16, d_ff=32, heads=2)
    for whole in (False, True):
        model = since.DecoderOnly(config, layers=2, whole=whole).double().eval()
        source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
        target = torch.tensor([[1, 9], [1, 9]])
        states = model(source, target)
        torch.testing.assert_close(model(source[1:, :2], target[1:]), states[1:])
        later = model(source, torch.tensor([[1, 4], [1, 4]]))
        torch.testing.assert_close(later[:, 0], states[:, 0])
        assert not torch.allclose(later[:, 1], states[:, 1])


def test_layers_that_recall_see_the_past_only() -> None:
    """They are of equal size. A changed word reaches six positions of the convolution, and all
    later ones of the others.
    """
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
    monkeypatch.setattr(recall, "DISTANCES", (1,))
    settings, runs = run("experiments.recall", tmp_path, seeds=(0, 1), steps=2)
    assert settings["weights of GRU"] == settings["weights of attention"]
    assert [(r["kind"], r["distance"], r["steps"]) for r in runs[::2]] == [
        *((kind, 1, 2) for kind in recall.KINDS),
        ("GRU", 8, 10),
    ]
    assert recall.accuracy("convolution", 1, steps=120) > 0.9
    assert "attention" in capsys.readouterr().out


def test_table1_measures_what_each_layer_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Every layer at every size; only full attention keeps its n by n weights."""
    brief = {
        "lengths": (4, 8),
        "widths": (6, 8),
        "length": 4,
        "width": 8,
        "brief": 1e-4,
    }
    settings, records = run(
        "experiments.table1", tmp_path, rounds=1, cpu_time=True, **brief
    )
    assert settings["width"] == 8 and settings["cpu_time"]
    assert {(r["n"], r["d"]) for r in records} == {(4, 8), (8, 8), (4, 6)}
    assert len(records) == 3 * 7 and all(r["seconds"] > 0 for r in records)
    kept = {(r["layer"], r["n"]): r["kept_bytes"] for r in records if r["d"] == 8}
    assert [kept["self-attention", n] for n in (4, 8)] == [
        4 * (n * 8 + n * n) for n in (4, 8)
    ]
    assert kept["recurrent", 8] < 2.1 * kept["recurrent", 4]
    assert "MB kept" in capsys.readouterr().out


def test_table1_measures_the_layers_of_the_chapter() -> None:
    """The functions of chapter 12 and of the benchmark return the same."""
    script = (ROOT / "notebooks" / "12_why_self_attention.py").read_text(
        encoding="utf-8"
    )
    names = ("attend", "recurrent", "windows", "convolve", "separable", "restricted")
    shown = [f for f in ast.parse(script).body if getattr(f, "name", "") in names]
    chapter: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    exec(compile(ast.Module(shown, []), "12_why_self_attention.py", "exec"), chapter)
    torch.manual_seed(0)
    x, W, U, taps, kernel = (
        torch.randn(*s) for s in ((7, 4), (4, 4), (4, 4), (3, 4), (3, 4, 4))
    )
    inputs = {
        "attend": (x, x @ W, x @ U),
        "recurrent": (x, W, U),
        "convolve": (x, kernel, 2),
        "separable": (x, taps, W),
        "restricted": (x, x @ W, x @ U, 3),
    }
    for name, tensors in inputs.items():
        torch.testing.assert_close(
            getattr(table1, name)(*tensors), chapter[name](*tensors)
        )


@pytest.mark.slow
def test_growth_has_a_process_for_each_point(tmp_path: Path) -> None:
    """More tokens take more time and more memory."""
    brief = {
        "preset": "tiny",
        "tokens": 256,
        "lengths": (8, 64),
        "batches": (4, 256),
        "size": 300,
    }
    settings, points = run("experiments.growth", tmp_path, **brief)
    assert settings["preset"] == "tiny"
    assert [(point["sentences"], point["length"]) for point in points] == [
        (32, 8),
        (4, 64),
        (4, 32),
        (256, 32),
    ]
    assert (
        points[3]["seconds"] > points[2]["seconds"]
        and points[3]["bytes"] > points[2]["bytes"]
    )


@pytest.mark.slow
def test_parsing_makes_a_run(tmp_path: Path) -> None:
    """Held to trees, even an untrained model writes them, and repeats the words."""
    try:
        train, _, test = split_treebank()
    except MissingData as error:
        pytest.skip(str(error))
    brief = {"shares": (8,), "seeds": (0,), "steps": 1, "sentences": 1}
    settings, (line,) = run("experiments.parsing", tmp_path, **brief)
    assert settings["beam"] == 21 and line["trees"] == 425
    assert line["well_formed_constrained"] == 1
    with pytest.raises(ValueError, match="another steps"):
        run("experiments.parsing", tmp_path, **{**brief, "steps": 2})
    for written in (True, False):
        code = parsing.Code(train[:50], written=written)
        shape = TransformerConfig(
            len(code.entries), layers=1, d_model=16, d_ff=16, heads=2
        )
        words = [word for _, word in leaves(test[0])]
        (symbols,) = parsing.parse(
            Transformer(shape).eval(), code, [words], constrained=True
        )
        assert restore(symbols, words)
        repeated = [symbol for symbol in symbols if symbol[0] not in parsing.KINDS]
        assert repeated == (code.read(code.source(words)[:-1]) if written else [])


def test_the_rows_of_table_3_keep_the_paper_s_proportions() -> None:
    """Half the layers, a quarter of each width, so all ratios to the base model are as there."""
    base, small = preset("base"), variations.shape("base", 37_000)
    assert (small.layers, small.d_model, small.d_ff, small.heads) == (3, 128, 512, 8)
    for name in variations.ROWS:
        paper, ours = preset(name), variations.shape(name, 37_000)
        for field in ("layers", "d_model", "d_ff", "heads", "dropout"):
            assert getattr(ours, field) / getattr(small, field) == pytest.approx(
                getattr(paper, field) / getattr(base, field)
            )
        assert ours.positions == paper.positions
        attention = (
            Transformer(replace(ours, vocabulary_size=9))
            .encoder.layers[0]
            .self_attention
        )
        width = (paper.d_k or paper.d_model // paper.heads) * paper.heads // 4
        assert len(attention.key.weight) == width
    smoothed = {
        name: variations.recipe(name, 0).label_smoothing for name in variations.ROWS
    }
    assert {name: share for name, share in smoothed.items() if share != 0.1} == {
        "D-smoothing0.0": 0.0,
        "D-smoothing0.2": 0.2,
    }


def test_without_warm_up_the_rate_starts_at_its_peak() -> None:
    cold, warm = (
        [rate(step, 128, 100, 0.2) for step in range(1, 301)]
        for rate in (variations.no_warm_up, learning_rate)
    )
    assert cold[:100] == [max(warm)] * 100 and cold[99:] == warm[99:]


def test_variations_are_trained_once(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A norm's row differs with warm-up and place; a run in the log is not made again."""
    rows = ("C-N2", "E-learned", "post-2-warm", "post-2-cold", "pre-2-warm")
    brief = {"seeds": (0,), "steps": 2, "sentences": 2, "corpus": "grammar"}
    settings, runs = run("experiments.variations", tmp_path, rows=rows[1:], **brief)
    assert (
        settings["steps"] == settings["norms_steps"] == 2 and settings["narrower"] == 4
    )
    assert len({line["validation_loss"] for line in runs}) == len(runs) == 4
    assert ["bleu" in line for line in runs] == [True, False, False, False]
    capsys.readouterr()
    _, more = run("experiments.variations", tmp_path, rows=rows, **brief)
    assert more[:4] == runs and more[4]["row"] == "C-N2"
    assert "4 runs found, 1 to make" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no row base2: take some of base, A-h1"):
        run("experiments.variations", tmp_path, rows=("base2",), **brief)
    with pytest.raises(ValueError, match="another sentences: move it"):
        run("experiments.variations", tmp_path, rows=rows, **{**brief, "sentences": 3})


@pytest.mark.slow
def test_a_row_of_variations_comes_out_as_in_its_log() -> None:
    """Up to what another processor's rounding does to 600 updates."""
    log = ROOT / "benchmarks" / "results" / "variations.jsonl"
    settings, *runs = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    options = {"steps": None, "sentences": 2, "device": "cpu", "threads": 1}
    try:
        made_now = variations.measure(
            "C-N2", seed=0, corpus=settings["corpus"], **options
        )
    except MissingData as error:
        pytest.skip(str(error))
    logged = next(run for run in runs if (run["row"], run["seed"]) == ("C-N2", 0))
    assert abs(made_now["validation_loss"] - logged["validation_loss"]) < 0.15


def test_the_sweep_and_the_risk_compare_with_the_search_of_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system is never ahead of itself; a beam of 2 is searched once for all exponents."""
    captions = [
        Pair("Ein Mann liest.", "A man is reading."),
        Pair("Zwei Hunde laufen.", "Two dogs are running."),
        Pair("Eine Frau lacht.", "A woman is laughing."),
    ]
    for module in (widths, risk):
        monkeypatch.setattr(module, "multi30k", lambda split: captions)
    settings, swept = run("experiments.widths", tmp_path, widths=(1, 2), sentences=2)
    assert settings["captions"] == {"val": 2, "test_2016_flickr": 2}
    assert len(swept) == 2 * len(widths.ALPHAS) * 3
    assert {r["ahead"] for r in swept if r["beam"] == 1} == {0}
    assert all(r["low"] <= r["high"] and r["log p"] < 0 for r in swept)
    _, systems = run(
        "experiments.risk", tmp_path / "risk", samples=3, temperatures=(0.5,)
    )
    assert [r["system"] for r in systems] == [
        "beam of 4",
        "one sample, 0.5",
        "least risk, 0.5",
    ]
    assert systems[0]["ahead"] == 0 == systems[0]["chrF ahead"]
    assert risk.least_risk(["a cat", "a cap", "no dog"]) in ("a cat", "a cap")
