"""Several processes make the updates of one, and survive what happens to processes.

Real processes, launched by torchrun, exchange gradients by gloo on the CPU. One launch goes through
all that processes can do together; signals are sent from inside, at a step.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer import trainer
from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    batches,
    encode_pairs,
    plan_batches,
)
from annotated_transformer.distributed import (
    all_reduce_mean,
    gather_texts,
    process_group,
    rank_and_world_size,
)
from annotated_transformer.files import load_model
from annotated_transformer.masks import BOS
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.trainer import last_checkpoint, read_checkpoint, train
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import Transformer, TransformerConfig
from annotated_transformer.translation import translate

# --- What the processes do: they run this file ---

STEPS = 30
PAIRS = grammar(120, seed=0)
SOURCES = [pair.source for pair in PAIRS[:7]]
CPU = torch.device("cpu")


def learn(
    folder: Path,
    dropout: float = 0.0,
    steps: int = STEPS,
    score: Callable[[Transformer], float] | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
    poisoned: bool = False,
    max_tokens: int = 150,  # some batches have fewer rows than there are processes
) -> None:
    """Train a very small model in double precision, with all that several processes must share."""
    tokenizer = Tokenizer.train(PAIRS, vocabulary_size=300)
    torch.manual_seed(rank_and_world_size()[0])  # the first one's weights must win
    shape = TransformerConfig(len(tokenizer), 1, 16, 32, 2, dropout=dropout)
    model = Transformer(shape).double()
    if poisoned:
        model.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
    config = TrainingConfig(
        steps=steps,
        max_tokens=max_tokens,
        grad_accum_steps=2,
        warmup=20,
        grad_clip=0.5,
        save_every=10,
    )
    train(
        model,
        tokenizer,
        PAIRS[10:],
        config,
        validation=PAIRS[:10],
        folder=folder,
        score=score,
        report=report,
    )


def error_of(call: Callable[[], None]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def save_slowly(*arguments: Any, **options: Any) -> None:
    time.sleep(0.5)
    SAVE(*arguments, **options)


SAVE = trainer.save_checkpoint


def together(home: Path) -> None:
    """What each process does; a second life, after one was killed, starts at the top again."""
    with process_group("cpu"):
        rank, world_size = rank_and_world_size()
        first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        learn(home / "same")
        learn(home / "straight", dropout=0.2)
        calls = count(1)

        def die(model: Transformer) -> float:
            if first_life and rank == 1 and next(calls) == 2:  # at step 20
                os.kill(os.getpid(), signal.SIGKILL)
            return 0.0

        learn(home / "killed", dropout=0.2, score=die)

        def stop_the_last(model: Transformer) -> float:
            if rank == world_size - 1:  # at step 10
                os.kill(os.getpid(), signal.SIGTERM)
            return 0.0

        with patch.object(trainer, "save_checkpoint", save_slowly):
            stopped = error_of(lambda: learn(home / "stopped", score=stop_the_last))
        found = {
            "second life": not first_life,
            "stopped": stopped,
            "left": (last_checkpoint(home / "stopped") or home).name,
            "nan": error_of(lambda: learn(home / "nan", poisoned=rank == 1)),
            "other": error_of(lambda: learn(home / "other", max_tokens=150 + rank)),
            "mean": float(all_reduce_mean(torch.tensor(rank))),
            "texts": gather_texts([f"{rank}", "x"][: 1 + rank]),
            "translations": trainer.translate_together(
                *load_model(home / "same"), SOURCES
            ),
        }
        (home / f"{rank}.json").write_text(json.dumps(found))


def until_told(folder: Path) -> None:
    """Train until torchrun is told to stop, which the first process does at step 50."""

    def report(line: dict[str, Any]) -> None:
        if line["step"] == 50:
            os.kill(os.getppid(), signal.SIGTERM)

    with process_group("cpu"):
        learn(folder, steps=100_000, report=report)


# --- Launched ---


def launch(what: str, folder: Path, processes: int, restarts: int = 0) -> int:
    """Let several processes do something; return the exit status of all."""
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    numbers = [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    done = subprocess.run(
        [sys.executable, *torchrun, *numbers, __file__, what, str(folder)],
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    return done.returncode


def final(folder: Path) -> dict[str, torch.Tensor]:
    """The weights after the last step."""
    weights: dict[str, torch.Tensor] = read_checkpoint(
        folder / f"checkpoints/step-{STEPS:08}.pt"
    )["model"]
    return weights


def numbers_of(folder: Path) -> list[tuple[int, float, float]]:
    """Step, loss and validation loss of each line of a log."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    names = ("step", "loss", "validation_loss")
    return [tuple(line[name] for name in names) for line in lines if "loss" in line]


def assert_close(
    found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]
) -> None:
    assert found.keys() == right.keys()
    for name, weights in found.items():
        torch.testing.assert_close(weights, right[name], rtol=0, atol=1e-12)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Where so many processes have worked; and one alone, in `one`."""
    folder = tmp_path_factory.mktemp(f"{request.param}")
    assert launch("together", folder, request.param, restarts=1) == 0
    learn(folder / "one")
    return folder


def said_in(home: Path) -> list[dict[str, Any]]:
    """What each process has found."""
    return [json.loads(path.read_text()) for path in sorted(home.glob("?.json"))]


def test_several_processes_make_the_updates_of_one(home: Path) -> None:
    assert_close(final(home / "same"), final(home / "one"))
    models = [load_model(home / name)[0].state_dict() for name in ("same", "one")]
    assert_close(*models)
    for found, right in zip(
        numbers_of(home / "same"), numbers_of(home / "one"), strict=True
    ):
        assert found == pytest.approx(right, abs=1e-6)  # summed in single precision
    assert [step for step, *_ in numbers_of(home / "one")] == [10, 20, 30]


def test_a_killed_process_is_restarted_and_nothing_changes(home: Path) -> None:
    """With dropout, too: what is drawn follows from seed, step and rank."""
    said = said_in(home)
    assert all(each["second life"] for each in said)
    straight, killed = (final(home / name) for name in ("straight", "killed"))
    if len(said) == 2:
        assert all(torch.equal(weights, killed[n]) for n, weights in straight.items())
        assert numbers_of(home / "straight") == numbers_of(home / "killed")
    # Of three, PyTorch adds up in another order in the first step after each start
    assert_close(straight, killed)
    dropped = straight["embedding.weight"] - final(home / "same")["embedding.weight"]
    assert dropped.abs().max() > 1e-3


def test_one_that_is_told_to_stop_stops_all_with_a_checkpoint(home: Path) -> None:
    """Which is whole before the first of them ends; and one alone goes on from there."""
    for each in said_in(home):
        assert each["stopped"].startswith("Stopped") and "step 11" in each["stopped"]
        assert each["left"] == "stop-00000011.pt"
    learn(home / "stopped")
    assert_close(final(home / "stopped"), final(home / "one"))


def test_a_bad_gradient_of_one_ends_all_before_it_is_used(home: Path) -> None:
    assert all("FloatingPointError: step 1" in each["nan"] for each in said_in(home))
    assert not list((home / "nan").glob("checkpoints/*"))


def test_other_settings_of_one_are_refused_by_all(home: Path) -> None:
    assert all(each["other"].startswith("ValueError") for each in said_in(home))
    assert not (home / "other").exists()


def test_numbers_texts_and_translations_come_together(home: Path) -> None:
    said = said_in(home)
    translations = translate(*load_model(home / "same"), SOURCES, beam=1)
    assert len({*translations}) > 1
    for each in said:
        assert each["mean"] == (len(said) - 1) / 2
        assert each["texts"] == [["0"], ["1", "x"], ["2", "x"]][: len(said)]
        assert each["translations"] == translations


@pytest.mark.slow
def test_torchrun_told_to_stop_leaves_a_checkpoint(tmp_path: Path) -> None:
    assert launch("until_told", tmp_path, 2) != 0
    path = last_checkpoint(tmp_path)
    assert path is not None and read_checkpoint(path)["progress"]["step"] >= 50
    assert not list(tmp_path.glob("**/*.unfinished"))


# --- Without launch ---


def test_without_torchrun_there_is_one_process() -> None:
    with process_group("cpu") as device:
        assert device == CPU and rank_and_world_size() == (0, 1)
        assert gather_texts(["alone"]) == [["alone"]]
        assert all_reduce_mean(torch.tensor(3)) == 3


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The sentence pairs of a batch without padding; an empty one is left out."""
    source, target = (
        [[token for token in row if token] for row in side.tolist()] for side in batch
    )
    return sorted(row for row in zip(source, target) if row[1] != [BOS])


@given(st.integers(1, 12), st.integers(0, 3))
def test_the_shares_of_all_processes_are_the_batch(world_size: int, epoch: int) -> None:
    """Also where a batch has fewer rows than there are processes."""
    plan = plan_batches(CORPUS.lengths, 200, seed=0, epoch=epoch)
    shares = []
    for rank in range(world_size):
        with patch.object(trainer, "rank_and_world_size", lambda: (rank, world_size)):  # noqa: B023
            shares.append([*trainer.load_batches(CORPUS, plan, CPU)])
    for whole, *parts in zip(batches(CORPUS, 200, epoch=epoch), *shares, strict=True):
        rows = [row for part in parts for row in rows_of(part)]
        assert sorted(rows) == rows_of(whole)


CORPUS: EncodedCorpus = encode_pairs(Tokenizer.train(PAIRS, 300), PAIRS)

if __name__ == "__main__":
    torch.set_num_threads(1)
    work = {"together": together, "until_told": until_told}[sys.argv[1]]
    work(Path(sys.argv[2]))
