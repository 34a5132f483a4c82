"""Several processes make the updates of one, and survive what happens to processes.

Real processes, launched by torchrun, exchange gradients by gloo on the CPU. One launch of three
goes through everything that processes can do together; signals are sent from inside, at a step.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel as DDP

from annotated_transformer.distributed import rank_and_world_size
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import runs
from annotated_transformer.toolkit.processes import (
    find_device,
    gather_texts,
    process_group,
)
from annotated_transformer.toolkit.run_folder import last_checkpoint, read_checkpoint
from annotated_transformer.toolkit.runs import TrainingConfig, train
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig

# --- The training that all of these make; workers run this file ---

STEPS, SAVE_EVERY = 30, 10


def learn(
    folder: Path | None,
    dropout: float = 0.0,
    steps: int = STEPS,
    score: Any = None,
    report: Any = None,
    poisoned: bool = False,
    max_tokens: int = 150,
) -> None:
    """Train a very small model in double precision, with all that several processes must share."""
    pairs = grammar(120, seed=0)
    tokenizer = Tokenizer.train(pairs, vocabulary_size=300)
    torch.manual_seed(rank_and_world_size()[0])  # the first one's weights must win
    model = Transformer(
        TransformerConfig(len(tokenizer), 1, 16, 32, 2, dropout=dropout)
    ).double()
    if poisoned:
        model.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
    # 150 positions: some batches have fewer rows than there are processes
    config = TrainingConfig(
        steps=steps,
        max_tokens=max_tokens,
        grad_accum_steps=2,
        save_every=SAVE_EVERY,
        warmup=20,
        grad_clip=0.5,
    )
    train(
        model,
        tokenizer,
        pairs[10:],
        config,
        validation=pairs[:10],
        folder=folder,
        score=score,
        report=report or (lambda line: None),
    )


def fast_clock() -> Any:
    """Let so much time pass in a step that it is time for a checkpoint."""
    return patch.object(
        runs, "time", SimpleNamespace(monotonic=lambda: 1e9 * time.monotonic())
    )


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def together(home: Path) -> None:
    """What each of the three does; a second life after one was killed starts at the top again."""
    with process_group("cpu"):
        rank, world_size = rank_and_world_size()
        first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        learn(home / "same")
        with fast_clock() if rank == 0 else nullcontext():
            learn(home / "late")
        learn(home / "straight", dropout=0.2)

        calls = count(1)

        def die(model: Transformer) -> float:
            if next(calls) == 2 and first_life and rank == 1:  # at step 20
                os.kill(os.getpid(), signal.SIGKILL)
            return 0.0

        learn(home / "killed", dropout=0.2, score=die)

        def terminate(model: Transformer) -> float:
            if rank == world_size - 1:  # at step 10, in the last process only
                os.kill(os.getpid(), signal.SIGTERM)
            return 0.0

        found = {
            "lives": 1 if first_life else 2,
            "texts": gather_texts([f"{rank}", "x"][: 1 + rank]),
            "stopped": error_of(lambda: learn(home / "stopped", score=terminate)),
            "apart": error_of(
                lambda: learn(home / ("same" if rank == 0 else f"own-{rank}"))
            ),
            "nan": error_of(lambda: learn(home / "nan", poisoned=rank == 1)),
            "max_tokens": error_of(
                lambda: learn(home / "settings", max_tokens=150 + rank)
            ),
            "folder": error_of(lambda: learn(home / "x" if rank == 0 else None)),
        }
        (home / f"{rank}.json").write_text(json.dumps(found))


def until_told(folder: Path) -> None:
    """Train until torchrun is told to stop, which the first process does at step 50."""

    def report(line: dict[str, Any]) -> None:
        if line["step"] == 50:
            os.kill(os.getppid(), signal.SIGTERM)

    with process_group("cpu"):
        learn(folder, steps=100_000, report=report)


def leave(home: Path) -> None:
    """Sum a tensor that nobody keeps, and free the group at once: a thread of it may still wait."""
    import torch.distributed.nn  # imported later, default arguments there would hold the group

    with process_group("cpu"):
        model = DDP(torch.nn.Linear(50, 50))
        model(torch.randn(3, 50)).sum().backward()
        torch.distributed.all_reduce(torch.ones(100_000))


# --- The tests ---


def launch(
    what: str, folder: Path, processes: int, restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    run = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    return subprocess.run(
        [
            sys.executable,
            *run,
            f"--max-restarts={restarts}",
            __file__,
            what,
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def final(folder: Path) -> dict[str, Any]:
    """The state of a training after its last step."""
    path = last_checkpoint(folder)
    assert path is not None and path.name == f"step-{STEPS:08}.pt"
    return read_checkpoint(path)


def losses(folder: Path) -> list[tuple[int, float, float]]:
    records = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [
        (r["step"], r["loss"], r["validation_loss"]) for r in records if "loss" in r
    ]


def assert_same_updates(folder: Path, expected: Path) -> None:
    for name, tensor in final(folder)["model"].items():
        torch.testing.assert_close(
            tensor, final(expected)["model"][name], rtol=0, atol=1e-12
        )
    for name, tensor in load_file(folder / "model.safetensors").items():
        other = load_file(expected / "model.safetensors")[name]
        torch.testing.assert_close(tensor, other, rtol=0, atol=1e-12)
    for found, right in zip(losses(folder), losses(expected), strict=True):
        assert found == pytest.approx(right, abs=1e-6)  # summed in single precision
    assert [step for step, *_ in losses(folder)] == [10, 20, 30]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training in this process alone."""
    learn(folder := tmp_path_factory.mktemp("one") / "run")
    return folder


@pytest.fixture(scope="module")
def three(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[dict[str, Any]]]:
    """Folder of the launch of three processes, and what each of them says."""
    home = tmp_path_factory.mktemp("three")
    done = launch("together", home, 3, restarts=1)
    assert done.returncode == 0, done.stderr
    return home, [json.loads((home / f"{rank}.json").read_text()) for rank in range(3)]


Three = tuple[Path, list[dict[str, Any]]]


@pytest.mark.slow
def test_three_processes_make_the_updates_of_one(one: Path, three: Three) -> None:
    assert_same_updates(three[0] / "same", one)


@pytest.mark.slow
def test_a_checkpoint_is_written_when_the_clock_of_one_says_so(three: Three) -> None:
    """And all go on together: the same updates, each of them in the log."""
    home, _ = three
    late, same = (final(home / name)["model"] for name in ("late", "same"))
    assert all(torch.equal(tensor, late[name]) for name, tensor in same.items())
    records = map(json.loads, (home / "late" / "log.jsonl").read_text().splitlines())
    assert [r["step"] for r in records if "loss" in r] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_a_killed_worker_is_restarted_and_nothing_changes(three: Three) -> None:
    """With dropout, too: what is drawn follows from seed, step and rank."""
    home, found = three
    assert [each["lives"] for each in found] == [2, 2, 2]
    straight, killed, same = (
        final(home / n)["model"] for n in ("straight", "killed", "same")
    )
    for name, tensor in straight.items():
        # Of three or more, DDP adds up in another order in the first step after each start
        torch.testing.assert_close(tensor, killed[name], rtol=0, atol=1e-12)
    assert not torch.equal(straight["embedding.weight"], same["embedding.weight"])


@pytest.mark.slow
def test_one_that_is_told_to_stop_stops_all_with_a_checkpoint(
    one: Path, three: Three
) -> None:
    home, found = three
    assert len({each["stopped"] for each in found}) == 1
    assert found[0]["stopped"].startswith("Stopped: stopped at step 11")
    path = last_checkpoint(home / "stopped")
    assert path is not None and read_checkpoint(path)["step"] == 11
    learn(
        home / "stopped", score=lambda model: 0.0
    )  # one process goes on where three were
    for name, tensor in final(home / "stopped")["model"].items():
        torch.testing.assert_close(
            tensor, final(one)["model"][name], rtol=0, atol=1e-12
        )


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_refused_by_all(three: Three) -> None:
    assert all("not the same for all processes" in each["apart"] for each in three[1])
    assert not list(three[0].glob("own-*"))


@pytest.mark.slow
def test_other_settings_of_one_are_refused_by_all(three: Three) -> None:
    for each in three[1]:
        for name in ("training.max_tokens", "folder"):
            expected = f"ValueError: .* not all given the same {name}: start all"
            assert re.match(expected, each[name.removeprefix("training.")])
    assert not {path.name for path in three[0].iterdir()} & {"settings", "x"}


@pytest.mark.slow
def test_a_bad_gradient_of_one_ends_all_before_it_is_used(three: Three) -> None:
    home, found = three
    message = "FloatingPointError: the gradient of step 1 is not finite"
    assert all(each["nan"].startswith(message) for each in found)
    assert not list((home / "nan").glob("checkpoints/*"))


@pytest.mark.slow
def test_texts_come_together_in_order_of_ranks(three: Three) -> None:
    for each in three[1]:
        assert each["texts"] == [["0"], ["1", "x"], ["2", "x"]]
    assert gather_texts(["alone"]) == [["alone"]]


@pytest.mark.parametrize("name", ["mps", "xpu", "meta", "gpu", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no device {name!r} here: take one of .*cpu"):
        find_device(name)


def test_without_torchrun_there_is_one_process() -> None:
    with process_group("cpu") as device:
        assert device.type == "cpu" and rank_and_world_size() == (0, 1)
    assert find_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.slow
def test_processes_leave_while_a_thread_still_has_a_tensor(tmp_path: Path) -> None:
    """A thread of gloo needs Python to free it: this hung, or aborted at the exit."""
    done = launch("leave", tmp_path, 4)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_torchrun_told_to_stop_leaves_a_checkpoint(tmp_path: Path) -> None:
    done = launch("until_told", tmp_path / "run", 2)
    assert done.returncode != 0
    path = last_checkpoint(tmp_path / "run")
    assert path is not None and read_checkpoint(path)["step"] >= 50
    assert not list(tmp_path.glob("**/*.unfinished"))


@pytest.mark.slow
def test_two_processes_make_the_updates_of_one_and_a_restart_changes_no_bit(
    one: Path, tmp_path: Path
) -> None:
    done = launch("together", tmp_path, 2, restarts=1)
    assert done.returncode == 0, done.stderr
    assert_same_updates(tmp_path / "same", one)
    straight, killed = (
        final(tmp_path / name)["model"] for name in ("straight", "killed")
    )
    assert all(torch.equal(tensor, killed[name]) for name, tensor in straight.items())
    assert losses(tmp_path / "straight") == losses(tmp_path / "killed")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"together": together, "until_told": until_told, "leave": leave}[sys.argv[1]](
        Path(sys.argv[2])
    )
