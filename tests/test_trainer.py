"""The trainer makes the paper's updates, keeps the best weights and guards its folder."""

import json
import math
import os
import shutil
import signal
import threading
import warnings
from dataclasses import replace
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer import trainer
from annotated_transformer.batching import batches, encode_pairs, plan_batches
from annotated_transformer.data import Pair
from annotated_transformer.files import load_model
from annotated_transformer.masks import PAD
from annotated_transformer.speed import CHUNK
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.trainer import (
    average_checkpoints,
    checkpoints,
    is_stuck,
    load_batches,
    read_checkpoint,
    train,
)
from annotated_transformer.training import TrainingConfig, validation_loss
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(120, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS[:100])
HELD_OUT = PAIRS[100:]
SHAPE = TransformerConfig(
    len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.1
)
CONFIG = TrainingConfig(steps=12, max_tokens=150, save_every=4, warmup=4)
Line = dict[str, Any]


def make(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SHAPE, **changes))


def go(
    folder: Path | None = None, config: TrainingConfig = CONFIG, **options: Any
) -> Transformer:
    model = options.pop("model", None) or make()
    pairs = options.pop("pairs", CORPUS)
    return train(model, TOKENIZER, pairs, config, folder=folder, **options)


@cache
def straight(steps: int) -> Transformer:
    return go(None, replace(CONFIG, steps=steps))


def same(one: Transformer, other: Transformer) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def log_of(folder: Path) -> list[Line]:
    """The lines of a log that tell of updates."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


# --- The updates ---


def train_plainly(model: Transformer, config: TrainingConfig) -> None:
    """Section 5 in a dozen lines, with PyTorch's own loss of all logits at once."""
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    stream = (
        batch
        for epoch in count()
        for batch in batches(CORPUS, config.max_tokens, config.seed, epoch)
    )
    for step in range(1, config.steps + 1):
        rise, fall = step / config.warmup, math.sqrt(config.warmup / step)
        adam.param_groups[0]["lr"] = 0.00125 * min(rise, fall)
        logits = []
        labels = []
        for source, target in islice(stream, config.grad_accum_steps):
            logits.append(model(source, target[:, :-1]).flatten(0, 1))
            labels.append(target[:, 1:].flatten())
        adam.zero_grad()
        F.cross_entropy(
            torch.cat(logits), torch.cat(labels), ignore_index=PAD, label_smoothing=0.1
        ).backward()
        if config.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        adam.step()


@pytest.mark.parametrize(("grad_accum_steps", "grad_clip"), [(1, None), (3, 0.5)])
def test_updates_are_those_of_a_plain_loop(
    grad_accum_steps: int, grad_clip: float | None
) -> None:
    """Also over the end of an epoch, in the middle of an update."""
    config = replace(
        CONFIG, steps=14, grad_accum_steps=grad_accum_steps, grad_clip=grad_clip, seed=3
    )
    plain = make(dropout=0.0).double()
    train_plainly(plain, config)
    model = go(None, config, model=make(dropout=0.0).double())
    for weights, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


def test_the_seed_decides_and_others_keep_their_random_numbers(tmp_path: Path) -> None:
    """Whatever a score does to mode and chance."""

    def careless(model: Transformer) -> float:
        model.eval()
        torch.manual_seed(99)
        return 0.0

    model = make()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    go(tmp_path, model=model, validation=HELD_OUT)
    assert torch.equal(torch.rand(3), expected)
    assert same(straight(12), go(score=careless))
    assert not same(straight(12), go(config=replace(CONFIG, seed=1)))


def test_pairs_may_come_as_text_and_it_may_run_in_a_thread(tmp_path: Path) -> None:
    """Where no signal can be listened to."""
    models = []

    def work() -> None:
        models.append(go(tmp_path, pairs=PAIRS[:100]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert same(models[0], straight(12)) and not models[0].training


def test_products_in_16_bits_are_close_and_are_used() -> None:
    lines: dict[str, Line] = {}
    for precision in ("fp32", "bf16"):
        config = replace(CONFIG, precision=precision)
        go(None, config, report=partial(lines.__setitem__, precision))
    assert lines["bf16"]["loss"] == pytest.approx(lines["fp32"]["loss"], abs=0.01)
    assert lines["bf16"]["loss"] != lines["fp32"]["loss"]


def test_without_a_precision_a_run_takes_the_best_of_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for best in ("fp32", "bf16"):
        monkeypatch.setattr(trainer, "best_precision", lambda device, best=best: best)
        go(tmp_path / best, replace(CONFIG, steps=4))
        settings = json.loads((tmp_path / best / "training.json").read_text())
        assert settings["precision"] == best


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
def test_compiled_layers_are_close_and_are_used(tmp_path: Path) -> None:
    model = make(dropout=0.0)
    go(tmp_path, replace(CONFIG, steps=4, compile=True), model=model)
    assert model.encoder.layers[0]._compiled_call_impl is not None
    plain = go(None, replace(CONFIG, steps=4), model=make(dropout=0.0))
    for weights, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weights, other, rtol=0, atol=1e-3)
    assert same(load_model(tmp_path)[0], model)


# --- Batches ---


def test_a_signal_to_all_processes_leaves_the_reader_of_a_gpu_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C reaches it, too. (Without a GPU, a batch stays where it is.)"""
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self)
    plan = plan_batches(CORPUS.lengths, 150, seed=0, epoch=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no memory to pin
        stream = load_batches(CORPUS, plan, torch.device("cuda"))
        loaded = [next(stream)]
        (reader,) = torch.multiprocessing.active_children()
        for kind in (signal.SIGINT, signal.SIGTERM):
            os.kill(reader.pid or 0, kind)
        loaded += stream
    for batch, other in zip(loaded, batches(CORPUS, 150), strict=True):
        assert all(map(torch.equal, batch, other))


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_a_translation_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the lines of a file would no longer be those of its source."""
    monkeypatch.setattr(trainer, "translate", lambda *_, **__: ["one\u2028two\nthree"])
    found = trainer.translate_together(make(), TOKENIZER, ["eins zwei drei"])
    assert found == ["one two three"]


def test_neither_a_step_nor_a_validation_holds_all_logits() -> None:
    """The largest tensor of both is a chunk of them."""
    model = make(vocabulary_size=3000)
    pairs = grammar(600, seed=0)
    config = TrainingConfig(steps=1, max_tokens=3 * CHUNK)
    with Largest() as watch:
        go(None, config, model=model, pairs=pairs, validation=pairs)
    assert watch.numbers == CHUNK * 3000


# --- What is reported ---


def test_a_report_has_means_over_the_tokens_since_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[list[Line]] = []
    config = replace(CONFIG, steps=8, save_every=100)
    for every in (1, 4):
        monkeypatch.setattr(trainer, "REPORT_EVERY", every)
        reports.append([])
        model = go(None, config, report=reports[-1].append, validation=HELD_OUT)
    each, mean = reports
    assert [line["step"] for line in mean] == [4, 8]
    epoch = [*batches(CORPUS, CONFIG.max_tokens)]
    tokens = [int((batch.target[:, 1:] != PAD).sum()) for batch in epoch]
    total = sum(line["loss"] * count for line, count in zip(each[:4], tokens))
    assert mean[0]["loss"] == pytest.approx(total / sum(tokens[:4]))
    norms = [line["gradient_norm"] for line in each[:4]]
    assert mean[0]["gradient_norm"] == pytest.approx(sum(norms) / 4)
    assert mean[1]["epoch"] == round(8 / len(epoch), 3)
    held_out = encode_pairs(TOKENIZER, HELD_OUT)
    expected = validation_loss(model, held_out, CONFIG.max_tokens)
    assert mean[1]["validation_loss"] == pytest.approx(expected, rel=1e-5)


# --- What cannot work ---

LONG = Pair("Hund " * 2000, "dog")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pairs": []}, "no sentence pairs"),
        ({"model": make(vocabulary_size=290)}, "vocabulary_size"),
        ({"pairs": [*PAIRS[:3], LONG]}, "training pair 4"),
        ({"validation": [*PAIRS[:2], LONG]}, "validation pair 3"),
        ({"config": replace(CONFIG, max_tokens=10)}, "max_tokens"),
        ({"config": replace(CONFIG, patience=1)}, "patience"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        go(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_gradient_that_is_not_finite_is_said_with_its_step_and_never_saved(
    tmp_path: Path,
) -> None:
    model = make()
    calls = count(1)
    model.embedding.weight.register_hook(
        lambda gradient: gradient * torch.nan if next(calls) == 11 else gradient
    )
    with pytest.raises(FloatingPointError, match=r"\b11\b"):
        go(tmp_path, model=model)
    assert [path.stem for path in checkpoints(tmp_path)] == [
        "step-00000004",
        "step-00000008",
    ]
    assert all(weight.isfinite().all() for weight in model.parameters())
    assert [line["step"] for line in log_of(tmp_path)] == [4, 8]


# --- The best weights ---


def go_with_losses(
    losses: list[float], folder: Path, config: TrainingConfig = CONFIG, **options: Any
) -> Transformer:
    """Train where the validations find these losses, one after the other."""
    values = iter(losses)
    with patch.object(trainer, "shared_validation_loss", lambda *_: next(values)):
        return go(folder, config, validation=HELD_OUT, **options)


def test_the_weights_with_the_lowest_validation_loss_are_kept_whatever_the_score(
    tmp_path: Path,
) -> None:
    """Also when a later start finds only higher ones."""
    scores = iter([9.0, 0.0, 7.0, 30.0])
    options: dict[str, Any] = {"score": lambda model: next(scores)}
    go_with_losses([3.0, 2.0, 4.0], tmp_path, **options)
    model = go_with_losses([2.5], tmp_path, replace(CONFIG, steps=16), **options)
    assert same(model, straight(8)) and not model.training
    assert same(load_model(tmp_path)[0], model)
    lines = log_of(tmp_path)
    assert [line["validation_loss"] for line in lines] == [3.0, 2.0, 4.0, 2.5]
    assert [line["score"] for line in lines] == [9.0, 0.0, 7.0, 30.0]


@pytest.mark.parametrize("losses", [None, [torch.nan] * 3])
def test_without_a_lowest_loss_the_last_weights_are_kept(
    tmp_path: Path, losses: list[float] | None
) -> None:
    model = go_with_losses(losses, tmp_path) if losses else go(tmp_path)
    assert same(model, straight(12)) and same(load_model(tmp_path)[0], model)


def test_patience_counts_validations_after_the_warm_up(tmp_path: Path) -> None:
    """A rate that rises may raise the loss for a while. More patience goes on."""
    config = replace(CONFIG, steps=20, save_every=2, warmup=10, patience=2)
    rising = [float(step) for step in range(2, 22, 2)]
    go_with_losses(rising, tmp_path, config)
    assert log_of(tmp_path)[-1]["step"] == 14
    go_with_losses([], tmp_path, config)
    go_with_losses(rising, tmp_path, replace(config, patience=3))
    assert log_of(tmp_path)[-1]["step"] == 16


# --- A folder for each run ---


FOREIGN = {
    "letters": {"letter.tex": "Dear"},
    "a prepared corpus": dict.fromkeys(("tokens.bin", "summary.json", "test.tsv"), "1"),
    "another program": {"training.json": '{"tokenizer": "x", "epochs": 3}'},
    "an average, with the settings of its run": {"checkpoints": None},
    "a run without its settings": {"training.json": None},
}


def contents(folder: Path) -> dict[Path, bytes | None]:
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, files: dict[str, str | None]
) -> None:
    if None in files.values():
        go(tmp_path)
    for name, content in files.items():
        if content is None:
            (tmp_path / name).rename(tmp_path.with_suffix(".away"))
        else:
            (tmp_path / name).write_text(content)
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match=str(tmp_path)):
        go(tmp_path, keep={"validation": HELD_OUT})
    assert contents(tmp_path) == before


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    def begin_another(line: Line) -> None:
        with pytest.raises(BlockingIOError, match=str(tmp_path)):
            go(tmp_path)

    assert same(go(tmp_path, report=begin_another), straight(12))


def test_the_last_checkpoints_are_kept_and_averaged(tmp_path: Path) -> None:
    model = go(tmp_path, replace(CONFIG, steps=18, keep_checkpoints=3))
    paths = checkpoints(tmp_path)
    assert [int(path.stem[5:]) for path in paths] == [12, 16, 18]
    states = [read_checkpoint(path)["model"] for path in paths]
    for last in (1, 2, 3):
        mean, tokenizer = average_checkpoints(tmp_path, last)
        assert tokenizer.text == TOKENIZER.text and not mean.training
        for name, weights in mean.state_dict().items():
            some = torch.stack([state[name].double() for state in states[-last:]])
            assert torch.equal(weights, some.mean(dim=0).float())
    assert same(average_checkpoints(tmp_path, 1)[0], model)
    for last in (0, 4):
        with pytest.raises(ValueError, match="3 checkpoints"):
            average_checkpoints(tmp_path, last)


# --- A run that dies ---

ROOT = Path(__file__).parents[1]
LOGS = [
    *ROOT.glob("benchmarks/results/*.jsonl"),
    *ROOT.glob("annotated_transformer/pretrained/*/*.jsonl"),
]


def updates_in(path: Path) -> list[Line]:
    """The lines of a training, if the file is a log of one."""
    lines = map(json.loads, path.read_text().splitlines())
    return [line for line in lines if {"step", "loss", "learning_rate"} <= line.keys()]


def stuck_at(lines: list[Line], warmup: int) -> list[int]:
    """The steps at which the growing log of a run looks stuck."""
    logs = [lines[:end] for end in range(1, len(lines) + 1)]
    return [log[-1]["step"] for log in logs if is_stuck(log, warmup, 4000)]


def test_no_healthy_training_of_this_project_gets_a_warning() -> None:
    logs = {path: updates_in(path) for path in LOGS if "H100" not in path.name}
    assert sum(len(lines) > 20 for lines in logs.values()) > 5
    for path, lines in logs.items():
        assert stuck_at(lines, warmup=300) == [], path


def test_a_training_that_died_gets_one() -> None:
    """Of base on an H100, with too high a rate."""
    (died,) = ROOT.glob("benchmarks/results/*H100*warmup400.jsonl")
    assert stuck_at(updates_in(died), warmup=400)


def test_a_run_that_dies_says_so_once_in_its_log_and_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes on in between; it trains on all the same."""
    monkeypatch.setattr(trainer, "STALL", 100)
    config = TrainingConfig(max_tokens=150, warmup=20, peak_lr=0.4)
    shown = ""
    for steps in (250, 350):
        go(tmp_path, replace(config, steps=steps), pairs=PAIRS[:60])
        shown += capsys.readouterr().err
    lines = log_of(tmp_path)
    (warned,) = [line for line in lines if "warning" in line]
    assert warned["step"] <= 250 and lines[-1]["step"] == 350
    (told,) = [line for line in shown.splitlines() if warned["warning"] in line]
    assert str(warned["step"]) in told
    for cause in ("learning rate", "warm-up", "troubleshooting"):
        assert cause in told
