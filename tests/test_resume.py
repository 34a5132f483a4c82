"""A training survives what happens to trainings: killed, stopped, a full disk, a damaged file.

Whatever happens, the same command goes on, to the same weights to the last bit.
"""

import json
import os
import pickle
import resource
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

from annotated_transformer import trainer
from annotated_transformer.batching import encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.files import load_model
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.trainer import (
    Stopped,
    average_checkpoints,
    checkpoints,
    last_checkpoint,
    read_checkpoint,
    train,
)
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(120, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS[:100])
HELD_OUT = encode_pairs(TOKENIZER, PAIRS[100:])
SHAPE = TransformerConfig(
    len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.1
)
# 28 batches an epoch, two for an update: step 14 is its end, 20 lies in the middle of one
CONFIG = TrainingConfig(
    steps=25,
    max_tokens=150,
    grad_accum_steps=2,
    warmup=10,
    save_every=10,
    keep_checkpoints=2,
)
Line = dict[str, Any]


def make(shape: TransformerConfig = SHAPE) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape)


def go(
    folder: Path | None, config: TrainingConfig = CONFIG, **options: Any
) -> Transformer:
    model = options.pop("model", None) or make()
    tokenizer = options.pop("tokenizer", TOKENIZER)
    pairs = options.pop("pairs", CORPUS)
    return train(model, tokenizer, pairs, config, folder=folder, **options)


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
    """The updates in a log, without what depends on the clock."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    clock = {"time", "tokens_per_second"}
    return [
        {name: line[name] for name in line.keys() - clock}
        for line in lines
        if "loss" in line
    ]


class AxeError(Exception):
    """Stands for whatever ends a process."""


def fall() -> None:
    raise AxeError


def terminate(kind: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), kind)


def within(step: int, what: Callable[[], None]) -> Transformer:
    """Return a model that does something in the backward pass of a step."""
    model = make()
    calls = count(1)
    model.embedding.weight.register_hook(
        lambda gradient: what() if next(calls) == 2 * step else None
    )
    return model


# --- Killed at any moment ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nothing has happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    go(folder, validation=HELD_OUT)
    return folder


@pytest.mark.parametrize("step", [7, 14, 23])
def test_continued_equals_never_stopped(tmp_path: Path, whole: Path, step: int) -> None:
    """At the end of an epoch and in its middle; the log tells of each step once."""
    with pytest.raises(AxeError):
        go(tmp_path, model=within(step, fall), validation=HELD_OUT)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 9, "lo')  # what a full disk leaves
    assert same(go(tmp_path, validation=HELD_OUT), straight())
    assert log_of(tmp_path) == log_of(whole)
    assert [line["step"] for line in log_of(tmp_path)] == [10, 20, 25]
    assert saved(tmp_path) == ["step-00000020", "step-00000025"]


@pytest.mark.parametrize(
    ("part", "call"), [("save_model", 2), ("write_log", 3), ("save_checkpoint", 2)]
)
def test_it_may_fall_between_best_weights_log_and_checkpoint(
    tmp_path: Path, whole: Path, part: str, call: int
) -> None:
    """Of step 20, whose weights are the best and the last."""
    save = getattr(trainer, part)
    calls = count(1)

    def fall_at_20(*arguments: Any, **options: Any) -> None:
        if next(calls) == call:
            raise AxeError
        save(*arguments, **options)

    config = replace(CONFIG, steps=20)
    with patch.object(trainer, part, fall_at_20), pytest.raises(AxeError):
        go(tmp_path, config, validation=HELD_OUT)
    assert same(go(tmp_path, config, validation=HELD_OUT), straight(config))
    assert same(load_model(tmp_path)[0], straight(config))
    assert log_of(tmp_path) == log_of(whole)[:2]


OPERATIONS = {
    Path: ("replace", "unlink", "mkdir", "open", "write_bytes", "write_text"),
    os: ("fsync",),
}


@contextmanager
def operations(number: int) -> Iterator[list[int]]:
    """Kill this process before its file operation `number`, from 1 on; give a count of all."""
    made = [0]

    def watched(operation: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*arguments: Any, **options: Any) -> Any:
            made[0] += 1
            if made[0] == number:
                terminate(signal.SIGKILL)
            return operation(*arguments, **options)

        return watch

    with pytest.MonkeyPatch.context() as monkeypatch:
        for home, names in OPERATIONS.items():
            for name in names:
                monkeypatch.setattr(home, name, watched(getattr(home, name)))
        yield made


def go_small(folder: Path) -> Transformer:
    """Make a short training that writes all there is to write, its best weights last."""
    config = replace(CONFIG, steps=4, save_every=2, keep_checkpoints=1)
    return go(folder, config, validation=HELD_OUT, keep={"test": PAIRS[:2]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU cannot be forked")
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_it_may_be_killed_at_every_file_operation(
    tmp_path: Path, stride: int, threads: Callable[[int], None]
) -> None:
    """Thus between best weights, log and checkpoint; each file is whole or not there."""
    threads(1)  # for others a fork would wait forever
    whole = tmp_path / "whole"
    with operations(0) as made:
        expected = go_small(whole)
    assert made[0] > 50
    for number in range(1, made[0], stride):
        folder = tmp_path / str(number)
        child = os.fork()
        if child == 0:
            with operations(number):
                go_small(folder)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        for path in folder.glob("checkpoints/*.pt"):
            read_checkpoint(path)
        if (folder / "model.safetensors").exists():
            load_model(folder)
        assert same(go_small(folder), expected)
        assert log_of(folder) == log_of(whole)
        files = [
            {str(path.relative_to(home)) for path in home.rglob("*")}
            for home in (folder, whole)
        ]
        old = "checkpoints/step-00000002.pt"  # stays if the last save was interrupted
        assert files[0] - {old} == files[1]


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_resume import *
torch.set_num_threads(1)
config = replace(CONFIG, steps=5000)
go(Path({folder!r}), config, report=lambda line: print(line["step"], flush=True))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """Train in a process of its own, and return once it has made two checkpoints."""
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("kind", "pauses"),
    [
        (signal.SIGKILL, [0.0]),
        (signal.SIGTERM, [0.0]),
        *(
            pytest.param(kind, [0.0, 0.013, 0.031, 0.1], marks=pytest.mark.slow)
            for kind in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_a_process_may_be_ended_at_moments_that_nobody_chose(
    tmp_path: Path,
    kind: int,
    pauses: list[float],
    threads: Callable[[int], None],
) -> None:
    threads(1)  # as in the process, where other tests have not changed them
    for pause in pauses:
        process = start(tmp_path)
        time.sleep(pause)
        process.send_signal(kind)
        assert process.wait(timeout=60)
    last = last_checkpoint(tmp_path)
    assert last is not None
    config = replace(CONFIG, steps=int(last.stem[5:]) + 15)
    assert same(go(tmp_path, config), straight(config))
    steps = [line["step"] for line in log_of(tmp_path)]
    assert steps == sorted({*steps}) and steps[-1] == config.steps


@pytest.mark.slow
def test_the_command_line_may_be_killed_and_told_to_stop(tmp_path: Path) -> None:
    def begin(folder: str) -> subprocess.Popen[bytes]:
        command = f"-m annotated_transformer train --output {tmp_path / folder}"
        options = "--corpus grammar --limit 2000 --steps 60 --save-every 20"
        arguments = [*command.split(), *options.split(), "--device", "cpu"]
        return subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)

    assert begin("straight").wait() == 0
    for kind, code, steps in ((signal.SIGKILL, -9, 20), (signal.SIGTERM, 143, 40)):
        process = begin("broken")
        while not (tmp_path / f"broken/checkpoints/step-{steps:08}.pt").exists():
            time.sleep(0.01)
        process.send_signal(kind)
        assert process.wait() == code
    assert begin("broken").wait() == 0
    models = [load_model(tmp_path / name)[0] for name in ("broken", "straight")]
    assert same(*models)


# --- Asked to stop ---


@pytest.mark.parametrize(
    ("step", "kind"), [(7, signal.SIGTERM), (14, signal.SIGINT), (20, signal.SIGTERM)]
)
def test_a_signal_costs_no_step(tmp_path: Path, step: int, kind: int) -> None:
    """It may come within any step, of which the log has a line more."""
    handler = signal.getsignal(kind)
    with pytest.raises(Stopped, match=f"step {step}\\b") as stopped:
        go(tmp_path, model=within(step, lambda: terminate(kind)))
    assert stopped.value.signal == kind and signal.getsignal(kind) == handler
    assert saved(tmp_path)[-1][5:] == f"{step:08}"
    assert same(go(tmp_path), straight())
    assert saved(tmp_path) == ["step-00000020", "step-00000025"]
    assert [line["step"] for line in log_of(tmp_path)] == sorted({step, 10, 20, 25})


def test_without_a_folder_a_signal_does_what_it_did_before() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            go(None, model=within(3, lambda: terminate(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before)


# --- Another command ---


def test_a_finished_training_is_not_repeated_and_what_may_change_may(
    tmp_path: Path,
) -> None:
    reports: list[Line] = []
    for steps, save_every, keep in ((5, 10, 5), (5, 10, 5), (15, 4, 5), (25, 7, 4)):
        config = replace(
            CONFIG, steps=steps, save_every=save_every, keep_checkpoints=keep
        )
        model = go(tmp_path, config, report=reports.append)
    assert [line["step"] for line in reports] == [5, 8, 12, 15, 21, 25]
    assert same(model, straight())
    assert saved(tmp_path) == [f"step-{step:08}" for step in (12, 15, 21, 25)]


OTHER = Tokenizer.train(grammar(120, seed=1), vocabulary_size=300)
TURNED = [Pair(pair.target, pair.source) for pair in PAIRS[:100]]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"config": replace(CONFIG, peak_lr=0.003)}, "peak_lr"),
        ({"config": replace(CONFIG, grad_accum_steps=1)}, "grad_accum_steps"),
        ({"config": replace(CONFIG, seed=1)}, "seed"),
        ({"model": make(replace(SHAPE, dropout=0.2))}, "model"),
        ({"pairs": TURNED}, "pairs"),
        ({"tokenizer": OTHER}, "tokenizer"),
        ({"validation": CORPUS}, "validation"),
        ({"start": "captions-de-en"}, "start"),
    ],
)
def test_a_run_goes_on_only_with_its_own_settings(
    whole: Path, change: dict[str, Any], name: str
) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"another ({name}|.*, {name})\b"):
        go(whole, **{"validation": HELD_OUT, **change})
    assert all(path.read_bytes() == content for path, content in before.items())


def test_until_something_is_saved_all_may_change(tmp_path: Path) -> None:
    """So the advice of an error can be followed in the same folder."""
    with pytest.raises(AxeError):
        go(tmp_path, model=within(5, fall))
    config = replace(CONFIG, grad_accum_steps=1)
    assert same(go(tmp_path, config), straight(config))


# --- A full disk ---


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("validation", [(), HELD_OUT])
def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, validation: Any
) -> None:
    """Writing fails, of the checkpoint or of the best weights, and what was there stands."""
    go(tmp_path, replace(CONFIG, steps=20), validation=validation)
    name = "model.safetensors" if validation else "checkpoints/step-00000020.pt"
    size = (tmp_path / name).stat().st_size // 2
    with no_file_larger_than(size), pytest.raises(OSError, match="large"):
        go(tmp_path, validation=validation)
    assert saved(tmp_path) == ["step-00000010", "step-00000020"]
    assert same(go(tmp_path, validation=validation), straight())
    assert [line["step"] for line in log_of(tmp_path)] == [10, 20, 25]
    assert not list(tmp_path.rglob("*.unfinished"))


# --- Checkpoints that are none ---


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_bit_other(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    content[largest.header_offset + largest.file_size // 2] ^= 0x40
    path.write_bytes(content)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Trap(path.parent / "it-ran")))


def saved_by_torch(path: Path) -> None:
    torch.save({"model": Trap(path.parent / "it-ran")}, path)


@pytest.mark.parametrize("damage", [cut, emptied, one_bit_other, pickled])
def test_a_damaged_checkpoint_is_named_and_the_one_before_still_there(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    go(tmp_path, replace(CONFIG, steps=20))
    last = checkpoints(tmp_path)[-1]
    damage(last)
    with pytest.raises(ValueError, match=last.name):
        go(tmp_path)
    with pytest.raises(ValueError, match=last.name):
        average_checkpoints(tmp_path, 2)
    assert not list(tmp_path.rglob("it-ran"))
    last.unlink()  # what the message says, nearly
    assert same(go(tmp_path), straight())


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, steps=20))
    last = checkpoints(tmp_path)[-1]
    saved_by_torch(last)
    with pytest.raises(pickle.UnpicklingError):
        go(tmp_path)
    assert not list(tmp_path.rglob("it-ran"))
    torch.load(last, weights_only=False)  # what it would have done
    assert list(tmp_path.rglob("it-ran"))
