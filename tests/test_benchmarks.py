"""Each measurement runs in miniature, and its log has what a page reads."""

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from annotated_transformer import Pair, TransformerConfig, grammar
from benchmarks import common, treebank
from tools.chapters import ROOT

README = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
TREE = "( (S (NP (DT the) (NN cat)) (VP (VBZ likes) (NP (NN fish))) (. .)) )"
TABLE = ["experiments.settings", "experiments.start", "speed.prepare"]  # need one
MINIATURES: dict[str, dict[str, Any]] = {
    "experiments.beyond": {"sentences": 2},
    "experiments.captions": {"steps": 2},
    "experiments.growth": {
        "preset": "tiny",
        "steps": 1,
        "tokens": 16,
        "lengths": (8,),
        "batches": (2,),
    },
    "experiments.ladder": {"rungs": ("means", "layers"), "updates": 3, "asked": 2},
    "experiments.parsing": {"shares": (1,), "seeds": (0,), "steps": 1},
    "experiments.recall": {"seeds": (0,), "distances": (1,), "steps": 2},
    "experiments.settings": {"sizes": (40,), "threads": 1},
    "experiments.changes": {"seeds": (0,), "steps": 1},
    "experiments.smoothing": {"seeds": (0,), "steps": 2, "sentences": 4},
    "experiments.start": {"pairs": 20, "steps": 8, "seeds": (0,), "sentences": 2},
    "experiments.symptoms": {"steps": 4, "sentences": 4, "captions": 2, "pairs": 60},
    "experiments.table1": {"lengths": (4,), "widths": (6,), "width": 8, "brief": 1e-4},
    "experiments.table3": {
        "rows": ("post-2-cold", "C-N2"),
        "seeds": (0,),
        "steps": 2,
        "sentences": 2,
    },
    "experiments.widths": {"widths": (1, 2), "sentences": 2},
    "speed.prepare": {"pairs": 200, "vocabulary_size": 300},
    "speed.serving": {"sentences": 3, "rounds": 1, "beams": (4,), "threads": 1},
    "speed.step_speed": {
        "presets": ("tiny",),
        "vocabulary": 300,
        "max_tokens": 1000,
        "pairs": 200,
        "updates": 1,
        "rounds": 1,
    },
    "speed.training_speed": {"size": "toy", "rounds": 1, "max_tokens": 200},
}
FIELDS = {  # of the last line, as pages read them; settings come first
    "beyond": "first loss",
    "captions": "bleu translations averages signature",
    "growth": "series sentences length seconds bytes",
    "ladder": "rung loss right writes parameters",
    "parsing": "trees share words_written f1_free well_formed_constrained curve seconds",
    "recall": "kind distance steps accuracy",
    "settings": "pairs preset best_step best_epoch processor_hours sentences bleu",
    "changes": "change seed validation_loss",
    "smoothing": "smoothing perplexity bleu says is_right",
    "start": "model everyday captions",
    "symptoms": "what bleu loops german endless said",
    "table1": "layer n d seconds kept_bytes",
    "table3": "row seed validation_loss perplexity curve bleu signature seconds",
    "widths": "captions beam alpha BLEU ahead low high length",
    "prepare": "what pairs stages",
    "serving": "search system times_ours bleu same_as_ours",
    "step_speed": "name milliseconds gigabytes",
    "training_speed": "system round tokens seconds",
}


def short_pairs(split: str) -> list[Pair]:
    """Stand in for a split of Multi30k."""
    return grammar(60, seed=len(split))


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a measurement, with little data and small sizes."""

    def load(name: str) -> Any:
        if name == "speed.serving":
            pytest.importorskip("ctranslate2")
        module = importlib.import_module(f"benchmarks.{name}")
        small = {
            "multi30k": short_pairs,
            "LEARNED": 200,  # pairs of the ladder
            "TEST_PAIRS": 40,
            "WARMUP": 1,
            "PAIRS": 60,
            "AFTER_BREAK": 2,
            "BY_HEART": 2,
            "split_treebank": lambda: (treebank.read_trees(TREE),) * 3,
        }
        for constant, value in small.items():
            if hasattr(module, constant):
                monkeypatch.setattr(module, constant, value)
        if name == "experiments.settings":
            brief = replace(module.TRAININGS[0], pairs=40, steps=2, save_every=1)
            monkeypatch.setattr(module, "TRAININGS", (brief,))
        if name == "speed.step_speed":  # compiling takes a minute
            monkeypatch.setattr(module.speed, "compile_layers", lambda model: None)
        return module

    monkeypatch.setattr(common, "multi30k", short_pairs)
    common.captions.cache_clear()
    threads = torch.get_num_threads()
    yield load
    torch.set_num_threads(threads)
    common.captions.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", MINIATURES)
def test_a_measurement_writes_what_its_page_reads(
    name: str, miniature: Any, tmp_path: Path
) -> None:
    options = MINIATURES[name]
    if name in TABLE:
        table = tmp_path / "table.tsv"
        pairs = grammar(400, seed=3)
        table.write_text("".join(f"{p.target}\t{p.source}\n" for p in pairs))
        options = {"table": table, **options}
    miniature(name).main(results=tmp_path, **options)
    (log,) = tmp_path.glob("*.jsonl")
    settings, *lines = common.read_log(log.stem, tmp_path)
    assert settings["torch"] and lines
    assert {*FIELDS[name.partition(".")[2]].split()} <= lines[-1].keys()
    assert not [line for line in lines if "error" in line]


def test_a_run_that_the_log_has_is_not_made_again(tmp_path: Path) -> None:
    made = []

    def measure(seed: int) -> common.Record:
        made.append(seed)
        return {"loss": 1.0}

    for seeds in ((0, 1), (0, 1, 2)):
        tasks = [{"seed": seed} for seed in seeds]
        runs = common.make_runs(tmp_path, "trial", {"steps": 1}, tasks, measure)
    assert made == [0, 1, 2] == [run["seed"] for run in runs]
    with pytest.raises(ValueError, match="another steps"):
        common.make_runs(tmp_path, "trial", {"steps": 2}, tasks, measure)


@pytest.mark.parametrize("whole", [False, True])
def test_one_stack_reads_source_and_target_as_one_text(whole: bool) -> None:
    """No word sees the target's next one, and what padding stands before it changes nothing."""
    changes = importlib.import_module("benchmarks.experiments.changes")
    config = TransformerConfig(20, d_model=16, d_ff=32, heads=2)
    model = changes.DecoderOnly(config, layers=2, whole=whole).double().eval()
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    states = model(source, torch.tensor([[1, 9], [1, 9]]))
    alone = model(source[1:, :2], torch.tensor([[1, 9]]))
    torch.testing.assert_close(alone, states[1:])
    later = model(source, torch.tensor([[1, 4], [1, 4]]))
    torch.testing.assert_close(later[:, 0], states[:, 0])
    assert not torch.allclose(later[:, 1], states[:, 1])


def test_the_page_lists_every_command_and_every_log() -> None:
    rooms = ("experiments", "speed")
    paths = [p for room in rooms for p in (ROOT / "benchmarks" / room).glob("*.py")]
    commands = {p.stem for p in paths if "common.command(main)" in p.read_text("utf-8")}
    assert set(re.findall(r"^\| `(\w+)`", README, flags=re.MULTILINE)) == commands
    logs = {path.name for path in common.RESULTS.glob("*.jsonl")}
    assert set(re.findall(r"results/([\w.-]+\.jsonl)", README)) == logs
