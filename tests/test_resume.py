"""A training survives what happens to trainings: killed, stopped, a full disk, a damaged file."""

import errno
import json
import math
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

import pytest
import torch

from annotated_transformer.batching import encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import runs
from annotated_transformer.toolkit.model_io import DiskFull, folder_lock, load_model
from annotated_transformer.toolkit.run_folder import (
    average_checkpoints,
    checkpoints,
    last_checkpoint,
    write_log,
)
from annotated_transformer.toolkit.runs import (
    OutOfMemory,
    Stopped,
    TrainingConfig,
    stop_signal,
    train,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(120, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS[:100])
HELD_OUT = encode_pairs(TOKENIZER, PAIRS[100:])
SHAPE = TransformerConfig(
    len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.1
)
# 28 batches an epoch, two for an update: step 14 ends in the middle of nothing, 20 in an epoch
CONFIG = TrainingConfig(
    steps=25,
    max_tokens=150,
    save_every=10,
    keep_checkpoints=2,
    grad_accum_steps=2,
    warmup=10,
)
Line = dict[str, Any]


def make(shape: TransformerConfig = SHAPE) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape)


def go(
    folder: Path | None, config: TrainingConfig = CONFIG, **options: Any
) -> Transformer:
    model, corpus = options.pop("model", None) or make(), options.pop("corpus", CORPUS)
    return train(
        model,
        options.pop("tokenizer", TOKENIZER),
        corpus,
        config,
        folder=folder,
        **options,
    )


def go_with_losses(
    folder: Path,
    losses: dict[int, float],
    config: TrainingConfig = CONFIG,
    **options: Any,
) -> Transformer:
    """Train where the validations find these losses, by step."""

    def loss_of(run: runs.Run) -> float:
        return losses[run.progress.step]

    with patch.object(runs, "shared_validation_loss", loss_of):
        return go(folder, config, validation=HELD_OUT, **options)


@cache
def straight(config: TrainingConfig = CONFIG) -> Transformer:
    """The same training, never stopped."""
    return go(None, config)


def same(one: Transformer, other: Transformer) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def saved(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "checkpoints").iterdir())


def log_of(folder: Path) -> list[Line]:
    """The reports of a log, without what depends on the clock."""
    lines = [
        json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()
    ]
    clock = ("time", "tokens_per_second")
    return [
        {k: v for k, v in x.items() if k not in clock} for x in lines if "loss" in x
    ]


class AxeError(Exception):
    """Stands for whatever ends a process."""


def at(step: int, what: Callable[[], None]) -> Callable[[Line], None]:
    """Return a report that does something at a step."""
    return lambda line: what() if line["step"] == step else None


def fall() -> None:
    raise AxeError


def terminate(kind: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), kind)


def after(steps: int, what: Callable[[], None]) -> Transformer:
    """Return a model that does something in the backward pass of a step, at no report."""
    model, calls = make(), count(1)
    parts = CONFIG.grad_accum_steps
    model.embedding.weight.register_hook(
        lambda gradient: what() if next(calls) == steps * parts else None
    )
    return model


# --- Killed, and continued ---


@pytest.mark.parametrize("step", [10, 20, 25])
def test_continued_equals_never_stopped(tmp_path: Path, step: int) -> None:
    with pytest.raises(AxeError):
        go(tmp_path / "broken", report=at(step, fall))
    assert same(go(tmp_path / "broken"), straight())
    go(tmp_path / "straight")
    assert log_of(tmp_path / "broken") == log_of(tmp_path / "straight")
    assert [line["step"] for line in log_of(tmp_path / "broken")] == [10, 20, 25]
    assert saved(tmp_path / "broken") == saved(tmp_path / "straight")


def test_a_compiled_model_is_trained_like_any_other(tmp_path: Path) -> None:
    for config in (CONFIG, replace(CONFIG, steps=CONFIG.steps + 10)):
        model: Any = torch.compile(make(), backend="eager")
        train(model, TOKENIZER, CORPUS, config, folder=tmp_path)
        assert same(model._orig_mod, straight(config))
    assert same(load_model(tmp_path)[0], average_checkpoints(tmp_path, last=1)[0])


OPERATIONS = {
    Path: ("replace", "unlink", "mkdir", "open", "write_bytes", "write_text"),
    os: ("fsync",),
    torch: ("save",),
}


@contextmanager
def falling(number: int, what: Callable[[], None]) -> Iterator[list[int]]:
    """Do something before file operation `number`, counted from 0; give a count of all."""
    made = [0]

    def wrapped(operation: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            made[0] += 1
            if made[0] == number + 1:
                what()
            return operation(*arguments, **options)

        return watched

    with pytest.MonkeyPatch.context() as patch:
        for home, names in OPERATIONS.items():
            for name in names:
                patch.setattr(home, name, wrapped(getattr(home, name)))
        yield made


def killed_within(number: int, train_once: Callable[[], object]) -> None:
    """Run something in a process of its own, which is killed at a file operation."""
    if (child := os.fork()) == 0:
        try:
            with falling(number, lambda: terminate(signal.SIGKILL)):
                train_once()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def fallen_within(number: int, train_once: Callable[[], object]) -> None:
    with pytest.raises(AxeError), falling(number, fall):
        train_once()


SMALL = replace(
    CONFIG, steps=4, save_every=2, max_tokens=300, patience=2, keep_checkpoints=1
)


def small(folder: Path) -> Transformer:
    """Make a short training that writes all there is to write; its best step is not the last."""
    return go_with_losses(folder, {2: 5.0, 4: 5.5}, SMALL, score=distance)


def files_in(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="a process with a GPU cannot be forked"
)
@pytest.mark.parametrize(
    ("way", "first", "step"),
    [
        (killed_within, 0, 6),  # every sixth operation,
        (fallen_within, 3, 6),  # and those halfway between
        pytest.param(killed_within, 0, 1, marks=pytest.mark.slow),
        pytest.param(fallen_within, 0, 1, marks=pytest.mark.slow),
    ],
)
def test_it_may_fall_at_every_file_operation(
    tmp_path: Path,
    way: Callable[[int, Callable[[], object]], None],
    first: int,
    step: int,
) -> None:
    """It continues to the same weights, log and files, with nothing half-written left."""
    small(
        tmp_path / "first"
    )  # what is opened once in a process is no operation of the others
    whole = tmp_path / "whole"
    with falling(-1, fall) as made:
        expected = small(whole)
    assert made[0] > 40 and not same(expected, average_checkpoints(whole, 1)[0])
    for number in range(first, made[0], step):
        folder = tmp_path / str(number)
        way(number, lambda folder=folder: small(folder))  # type: ignore[misc]
        assert same(small(folder), expected)
        assert log_of(folder) == log_of(whole)
        assert files_in(folder) == files_in(whole)


# --- A validation that fails ---


def distance(model: Transformer) -> float:
    """A score that is known to the bit."""
    return -float((model.embedding.weight - make().embedding.weight).detach().norm())


@pytest.mark.parametrize("failing", [10, 20, 25])
def test_a_validation_that_fails_costs_no_step(tmp_path: Path, failing: int) -> None:
    """The state was saved before; the next start validates, and goes on as if nothing was."""
    go(tmp_path / "straight", validation=HELD_OUT, score=distance)
    reports: list[Line] = []
    folder = tmp_path / "broken"

    def score_and_fail(model: Transformer) -> float:
        if run_step(folder) == failing:
            raise AxeError
        return distance(model)

    for _ in range(2):
        with pytest.raises(AxeError):
            go(folder, validation=HELD_OUT, score=score_and_fail, report=reports.append)
        assert saved(folder)[-1] == f"stop-{failing:08}"
    after_failure = len(reports)
    model = go(folder, validation=HELD_OUT, score=distance, report=reports.append)
    assert same(model, go(tmp_path / "straight", validation=HELD_OUT, score=distance))
    assert log_of(folder) == log_of(tmp_path / "straight")
    assert saved(folder) == saved(tmp_path / "straight")
    assert [line["step"] for line in reports] == [10, 20, 25]
    assert reports[after_failure]["step"] == failing


def run_step(folder: Path) -> int:
    """The step of the last checkpoint, which is written before each validation."""
    last = last_checkpoint(folder)
    return int(last.stem[5:]) if last else 0


# --- Out of memory ---

CPU_ERROR = (
    "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
)
LACKS_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError(CPU_ERROR),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


LONGEST = int(CORPUS.lengths.max())  # more than half of max_tokens


@pytest.mark.parametrize("error", LACKS_OF_MEMORY)
@pytest.mark.parametrize("step", [3, 13])
def test_out_of_memory_is_one_sentence_that_says_what_takes_less(
    tmp_path: Path, error: Exception, step: int
) -> None:
    def fail() -> None:
        raise error

    for folder in (None, tmp_path):
        with pytest.raises(OutOfMemory) as raised:
            go(folder, model=after(step, fail))
        message = str(raised.value)
        assert message.startswith(
            f"out of memory at step {step}: with max_tokens=150, "
        )
        assert "GiB a device were expected. Take smaller batches" in message
        assert f"such as max_tokens={LONGEST} and grad_accum_steps=4" in message
        assert message.endswith("another folder") == (folder is not None and step > 10)
        assert isinstance(raised.value, MemoryError) and "\n" not in message


def test_the_advice_on_memory_can_be_followed(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, max_tokens=LONGEST, grad_accum_steps=4))


def test_where_no_smaller_batch_can_be_nothing_smaller_is_advised() -> None:
    def fail() -> None:
        raise MemoryError

    config = replace(CONFIG, max_tokens=LONGEST)
    with pytest.raises(
        OutOfMemory, match="A pair fills a batch: drop the longest pairs"
    ):
        go(None, config, model=after(3, fail))


def test_an_error_of_another_kind_is_not_taken_for_it() -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        go(None, model=after(3, fail))


# --- Stopped by a signal ---


@pytest.mark.parametrize("step", [7, 14, 20])
def test_a_signal_costs_no_step(tmp_path: Path, step: int) -> None:
    """It may come within any step; the log has one line more, and its next is the mean since."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        Stopped, match=f"stopped at step {step}: the same command continues"
    ):
        go(tmp_path / "stopped", model=after(step, terminate))
    assert signal.getsignal(signal.SIGTERM) == handler
    assert saved(tmp_path / "stopped")[-1].endswith(f"{step:08}")
    assert same(go(tmp_path / "stopped"), straight())
    go(tmp_path / "straight")
    lines, whole = log_of(tmp_path / "stopped"), log_of(tmp_path / "straight")
    assert saved(tmp_path / "stopped") == saved(tmp_path / "straight")
    if step == 20:
        assert lines == whole
        return
    extra = [line for line in lines if line["step"] == step]
    following = lines[lines.index(extra[0]) + 1]
    changed = next(line for line in whole if line["step"] == following["step"])
    assert [x for x in lines if x not in (*extra, following)] == [
        x for x in whole if x != changed
    ]
    steps = changed["step"] - step
    before = whole[whole.index(changed) - 1]["step"] if changed["step"] > 10 else 0
    total = (
        extra[0]["gradient_norm"] * (step - before) + following["gradient_norm"] * steps
    )
    assert total == pytest.approx(changed["gradient_norm"] * (changed["step"] - before))
    for name in ("step", "epoch", "learning_rate"):
        assert following[name] == changed[name]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_reports_stops_it_one_step_later(
    tmp_path: Path, kind: int
) -> None:
    before = signal.signal(kind, signal.SIG_DFL)  # nohup would have one ignored
    try:
        with pytest.raises(Stopped, match="stopped at step 11"):
            go(tmp_path, report=at(10, lambda: terminate(kind)))
    finally:
        signal.signal(kind, before)
    assert same(go(tmp_path), straight())


@pytest.mark.timeout(60)
def test_a_second_signal_while_the_first_is_received_waits_for_nothing() -> None:
    """A lock that the first one holds would be waited for by the second one, for ever."""
    sent = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        place = frame.f_code, frame.f_lineno
        if event == "line" and place not in sent:
            sent.add(place)
            terminate()  # between any two lines
        return trace

    with stop_signal(listen=True) as stop:
        sys.settrace(trace)
        terminate()
        sys.settrace(None)
        assert stop.is_set() and stop.signal == signal.SIGTERM and len(sent) > 2


def test_under_nohup_a_closed_terminal_stops_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        model = go(tmp_path, report=at(10, lambda: terminate(signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert same(model, straight())


def test_a_second_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    """But not the same one twice, as torchrun passes it on."""
    now = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(kinds: list[int], seconds: float) -> Callable[[], None]:
        def send() -> None:
            with pytest.MonkeyPatch.context() as patch:
                for kind in kinds:
                    terminate(kind)
                    time.sleep(0)  # so that the signal is looked at
                    patch.setattr(time, "monotonic", lambda: now + 10**6 + seconds)

        return send

    try:
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, model=after(13, interrupt([signal.SIGINT] * 2, 0)))
        assert saved(tmp_path) == ["step-00000010"]
        with pytest.raises(Stopped, match="stopped at step 13"):
            go(
                tmp_path,
                model=after(3, lambda: [terminate(signal.SIGINT)] * 2 and None),
            )
        with pytest.raises(Stopped, match="stopped at step 14"):
            go(tmp_path, model=after(1, interrupt([signal.SIGTERM] * 2, 0)))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert same(go(tmp_path), straight())


def test_a_signal_in_the_last_report_stops_nothing(tmp_path: Path) -> None:
    assert same(go(tmp_path, report=at(25, terminate)), straight())


def test_without_a_folder_a_signal_does_what_it_did_before() -> None:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell may have ignored it
    try:
        with pytest.raises(KeyboardInterrupt):
            go(None, model=after(3, lambda: terminate(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before)


def test_minutes_after_which_the_state_is_saved(tmp_path: Path) -> None:
    """Each step ends with a checkpoint here; only the regular ones stay."""
    config = replace(CONFIG, save_minutes=1e-9)
    with pytest.raises(AxeError):
        go(tmp_path, config, report=at(14, fall))
    assert saved(tmp_path) == ["step-00000010", "stop-00000014"]
    assert same(go(tmp_path, config), straight())
    assert saved(tmp_path) == ["step-00000020", "step-00000025"]


# --- Continued with what may change ---


def test_a_finished_training_is_not_repeated_and_can_be_prolonged(
    tmp_path: Path,
) -> None:
    """Also from a step that is no multiple of save_every."""
    reports: list[Line] = []
    for steps in (5, 5, 15, 15, 25):
        model = go(tmp_path, replace(CONFIG, steps=steps), report=reports.append)
    assert [line["step"] for line in reports] == [5, 10, 15, 20, 25]
    assert same(model, straight())


def test_a_best_step_off_the_grid_is_kept_and_nothing_is_repeated(
    tmp_path: Path,
) -> None:
    losses = {10: 5.0, 15: 2.0, 20: 4.0, 25: 3.0}
    reports: list[Line] = []
    for steps in (15, 25, 25):
        config = replace(CONFIG, steps=steps, patience=2)
        model = go_with_losses(tmp_path, losses, config, report=reports.append)
    assert [line["step"] for line in reports] == [10, 15, 20, 25]
    assert same(model, straight(replace(CONFIG, steps=15)))


def test_other_steps_between_checkpoints_leave_the_earlier_ones(tmp_path: Path) -> None:
    config = replace(CONFIG, keep_checkpoints=5)
    go(tmp_path, replace(config, steps=20))
    assert same(go(tmp_path, replace(config, save_every=7)), straight())
    assert saved(tmp_path) == [f"step-{step:08}" for step in (10, 20, 21, 25)]
    average_checkpoints(tmp_path, 4)


def test_patience_ends_a_training_and_more_of_it_continues(tmp_path: Path) -> None:
    """The validations without a lower loss are counted across a stop."""
    losses = {5: 5.0, 10: 2.0, 15: 3.0, 20: 2.5, 25: 4.0}

    def learn(patience: int | None, **options: Any) -> None:
        config = replace(CONFIG, save_every=5, patience=patience)
        model = go_with_losses(tmp_path, losses, config, **options)
        assert same(model, straight(replace(CONFIG, steps=10)))

    with pytest.raises(AxeError):
        learn(2, report=at(20, fall))
    learn(2)
    assert [line["step"] for line in log_of(tmp_path)] == [5, 10, 15, 20]
    learn(2)
    assert len(log_of(tmp_path)) == 4
    learn(None)
    assert [line["step"] for line in log_of(tmp_path)] == [5, 10, 15, 20, 25]


def test_patience_does_not_count_in_the_warm_up(tmp_path: Path) -> None:
    """A rate that rises may raise the loss for a while."""
    config = replace(CONFIG, save_every=2, warmup=10, patience=2)
    go_with_losses(tmp_path, {step: step for step in range(2, 16, 2)}, config)
    assert [line["step"] for line in log_of(tmp_path)][-1] == 14


# --- The best model ---


def test_the_best_weights_are_returned_and_left_in_the_folder(tmp_path: Path) -> None:
    model = go_with_losses(tmp_path, {10: 2.0, 20: 3.0, 25: 4.0})
    assert same(model, straight(replace(CONFIG, steps=10)))
    assert same(load_model(tmp_path)[0], model) and not model.training


@pytest.mark.parametrize("scores", [{}, {10: 9.0, 20: 3.0, 25: 2.0}])
def test_the_validation_loss_decides_whatever_the_score(
    tmp_path: Path, scores: dict[int, float]
) -> None:
    """BLEU can be 0 everywhere, and rise by a wrong output."""
    reports: list[Line] = []

    def score(model: Transformer) -> float:
        return scores.get(run_step(tmp_path), 0.0)

    model = go(tmp_path, validation=HELD_OUT, score=score, report=reports.append)
    losses = {line["step"]: line["validation_loss"] for line in reports}
    best = min(losses, key=lambda step: losses[step])
    assert len(losses) == 3 and same(model, straight(replace(CONFIG, steps=best)))
    assert [line["score"] for line in reports] == [
        scores.get(step, 0.0) for step in losses
    ]


def test_a_model_of_double_precision_keeps_it(tmp_path: Path) -> None:
    model = go(tmp_path, model=make().double(), validation=HELD_OUT)
    assert same(model, go(None, model=make().double()))


@pytest.mark.parametrize("steps", [20, 25])
def test_best_weights_that_were_removed_by_hand_cost_no_training(
    tmp_path: Path, steps: int
) -> None:
    """What is left are the last weights."""
    losses = {10: 4.0, 20: 2.0, 25: 3.0}
    go_with_losses(tmp_path, losses, replace(CONFIG, steps=steps))
    (tmp_path / "model.safetensors").unlink()
    assert same(go_with_losses(tmp_path, losses), straight())
    assert same(load_model(tmp_path)[0], straight())


# --- One folder, one training ---


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path),
        pytest.raises(BlockingIOError, match="another process is working"),
    ):
        go(tmp_path)
    assert same(go(tmp_path), straight())


OTHER = Tokenizer.train(grammar(120, seed=1), vocabulary_size=300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"config": {"lr_scale": 0.3}},
            "training.lr_scale=0.2, not 0.3: repeat its settings",
        ),
        ({"config": {"grad_accum_steps": 1}}, "training.grad_accum_steps=2, not 1"),
        ({"config": {"seed": 1}}, "training.seed=0, not 1"),
        ({"model": make(replace(SHAPE, d_ff=64))}, r"model\.d_ff=32, not 64"),
        ({"corpus": encode_pairs(TOKENIZER, PAIRS[1:])}, r"pairs=\w+, not"),
        (
            {"corpus": [Pair(p.target, p.source) for p in PAIRS[:100]]},
            r"pairs=\w+, not \w+",
        ),
        ({"tokenizer": OTHER}, "tokenizer="),
        ({"validation": HELD_OUT}, "validation="),
    ],
)
def test_other_settings_are_refused_once_something_is_saved(
    twenty_steps: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Before that they may change: the advice of an error can be followed in the same folder."""
    config = replace(CONFIG, steps=10, **change.pop("config", {}))
    options = {"config": config, **change}
    with pytest.raises(AxeError):
        go(tmp_path / "early", model=after(5, fall))
    go(tmp_path / "early", **options)
    shutil.copytree(twenty_steps, tmp_path / "late")
    before = {
        path: path.read_bytes() for path in tmp_path.glob("late/**/*") if path.is_file()
    }
    with pytest.raises(ValueError, match=message):
        go(tmp_path / "late", **options)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_another_precision_is_another_training(tmp_path: Path) -> None:
    from annotated_transformer.regularization import SmoothedLoss

    go(tmp_path, replace(CONFIG, steps=10))
    model = make()
    loss = SmoothedLoss(model)
    loss.precision = "bf16"
    with pytest.raises(ValueError, match="precision=fp32, not bf16"):
        go(tmp_path, model=model, loss=loss)


# --- Checkpoints that are none ---


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Trap(path.parent / "it-ran")))


def saved_by_torch(path: Path) -> None:
    torch.save({"step": 20, "model": Trap(path.parent / "it-ran")}, path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_bit_other(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    content[largest.header_offset + largest.file_size // 2] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [cut, pickled, saved_by_torch, emptied, one_bit_other]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_still_there(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    go(tmp_path, replace(CONFIG, steps=20))
    last = last_checkpoint(tmp_path)
    assert last is not None
    damage(last)
    with pytest.raises(
        ValueError, match=f"{last.name} is not a whole checkpoint"
    ) as raised:
        go(tmp_path, replace(CONFIG, keep_checkpoints=1))
    assert len(checkpoints(tmp_path)) == 2  # the one before is needed now
    assert str(raised.value).endswith(
        "move it away"
    )  # and no word of how to run what is in it
    with pytest.raises(ValueError, match=f"{last.name} is not a whole checkpoint"):
        average_checkpoints(tmp_path, 2)
    assert not list(tmp_path.rglob("it-ran"))
    last.unlink()  # what the user would do
    assert same(go(tmp_path), straight())


def test_a_renamed_checkpoint_and_that_of_another_model_are_refused(
    tmp_path: Path,
) -> None:
    go(tmp_path / "one", replace(CONFIG, steps=20))
    last = checkpoints(tmp_path / "one")[-1]
    renamed = last.rename(last.with_stem("step-00000099"))
    with pytest.raises(
        ValueError, match=r"step-00000099\.pt is not a whole checkpoint of its step"
    ):
        go(tmp_path / "one")
    renamed.rename(last)
    go(
        tmp_path / "other",
        replace(CONFIG, steps=20),
        model=make(replace(SHAPE, d_ff=64)),
    )
    last.write_bytes(checkpoints(tmp_path / "other")[-1].read_bytes())
    with pytest.raises(
        ValueError,
        match=r"step-00000020\.pt is no checkpoint of this run \(its model has another",
    ):
        go(tmp_path / "one")


def shorter_averages(content: dict[str, Any]) -> None:
    for state in content["optimizer"]["state"].values():
        state["exp_avg"] = torch.zeros(3)


def expanded_averages(content: dict[str, Any]) -> None:
    for state in content["optimizer"]["state"].values():
        state["exp_avg"] = torch.zeros(1).expand(state["exp_avg_sq"].shape)


def without_weights(content: dict[str, Any]) -> None:
    content["model"].clear()


def one_average_for_all(content: dict[str, Any]) -> None:
    """Which would be copied to all weights."""
    for state in content["optimizer"]["state"].values():
        state["exp_avg_sq"] = torch.zeros(1)


def other_weights(content: dict[str, Any]) -> None:
    content["model"]["embedding.weight"] = torch.zeros(1, 16)


def another_weight(content: dict[str, Any]) -> None:
    content["model"]["junk"] = torch.zeros(1)


def no_averages(content: dict[str, Any]) -> None:
    content["optimizer"]["state"].clear()


def averages_of_one_missing(content: dict[str, Any]) -> None:
    del content["optimizer"]["state"][3]


def averages_of_nothing(content: dict[str, Any]) -> None:
    content["optimizer"]["state"][99] = content["optimizer"]["state"][0]


def other_betas(content: dict[str, Any]) -> None:
    content["optimizer"]["param_groups"][0]["betas"] = (0.9, 0.999)


def other_groups(content: dict[str, Any]) -> None:
    content["optimizer"]["param_groups"].append({"lr": 1.0, "params": []})


def other_weights_in_the_group(content: dict[str, Any]) -> None:
    content["optimizer"]["param_groups"][0]["params"].pop()


def other_tokenizer(content: dict[str, Any]) -> None:
    content["tokenizer"] += " "


def validation_of_another_step(content: dict[str, Any]) -> None:
    content["awaiting_validation"] = {"step": 10, "loss": 3.0}


def validation_without_a_loss(content: dict[str, Any]) -> None:
    content["awaiting_validation"] = {"step": content["step"]}


@pytest.fixture(scope="module")
def twenty_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has made twenty steps; to be copied."""
    folder = tmp_path_factory.mktemp("twenty") / "run"
    go(folder, replace(CONFIG, steps=20))
    return folder


def progress(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({name: value})


@pytest.mark.parametrize(
    "edit",
    [
        shorter_averages,
        expanded_averages,
        one_average_for_all,
        without_weights,
        other_weights,
        another_weight,
        no_averages,
        averages_of_one_missing,
        averages_of_nothing,
        other_betas,
        other_groups,
        other_weights_in_the_group,
        other_tokenizer,
        validation_of_another_step,
        validation_without_a_loss,
        progress("batch", 10**6),
        progress("batch", -1),
        progress("epoch", -1),
        progress("epoch", 1.0),
        progress("waited", "two"),
        progress("waited", True),
        progress("lowest_loss", math.nan),
        progress("lowest_loss", None),
        progress("model", None),
        progress("optimizer", {"state": 3, "param_groups": 3}),
        progress("optimizer", []),
        progress("config", [1]),
        dict.clear,
    ],
)
def test_a_checkpoint_of_other_sizes_touches_no_memory_but_its_own(
    twenty_steps: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    """The fused Adam trusts the sizes of its averages; a crash would end this process.

    What no run can have written is refused, and the one before is there to go on from.
    """
    folder = shutil.copytree(twenty_steps, tmp_path / "run")
    path = checkpoints(folder)[-1]
    content = torch.load(path, weights_only=True)
    edit(content)
    torch.save(content, path)
    if edit is expanded_averages:  # of the right shape, on the memory of one number
        go(folder)
        return
    model = make()
    with pytest.raises(ValueError, match=r"step-00000020\.pt is .*: move it away"):
        go(folder, model=model)
    assert same(model, make())
    path.unlink()
    assert run_step(folder) == 10
    if edit is other_weights:
        assert same(go(folder), straight())


def test_a_full_disk_of_a_log_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full is a file for which there is never room."""
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=r"no space left to write .*log\.jsonl$"):
        write_log(tmp_path, {"step": 1})


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """No file may grow to what a checkpoint needs: writing fails, what was there stands."""
    go(tmp_path, replace(CONFIG, steps=20))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = checkpoints(tmp_path)[-1].stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        with pytest.raises(
            DiskFull,
            match=r"no space left to write .*step-00000025\.pt: make room, and the same "
            r"command goes on from step 20$",
        ):
            go(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, handler)
    assert saved(tmp_path) == ["step-00000010", "step-00000020"]
    assert same(go(tmp_path), straight())


# --- Real processes ---

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_resume import *
torch.set_num_threads(1)
go(Path({folder!r}), replace(CONFIG, steps=5000), report=lambda x: print(x["step"], flush=True))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """Train in a process of its own, and return once it has made two checkpoints."""
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline()
    return process


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_may_be_ended_at_moments_that_nobody_chose(
    tmp_path: Path, kind: int
) -> None:
    for pause in (0.0, 0.013, 0.031):
        process = start(tmp_path)
        time.sleep(pause)
        process.send_signal(kind)
        assert process.wait(timeout=60)
    last = last_checkpoint(tmp_path)
    assert last is not None
    config = replace(CONFIG, steps=int(last.stem[5:]) + 15)
    assert same(go(tmp_path, config), straight(config))
    assert not list(tmp_path.rglob("*.unfinished"))


def test_a_checkpoint_that_is_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-00000010.pt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"step-00000010\.pt"):
        average_checkpoints(tmp_path, 1)
