"""Several processes make the updates of one, and survive what happens to processes.

Each test launches real processes with torchrun; they exchange gradients by gloo on the CPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from annotated_transformer.batching import BatchPlan
from annotated_transformer.distributed import deal

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path

import torch

from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.distributed import Processes, processes
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train
from annotated_transformer.transformer import Transformer, TransformerConfig

torch.set_num_threads(1)
folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
pairs = grammar(300, seed=0)
tokenizer = Tokenizer.train(pairs, vocabulary_size=400)
config = TrainingConfig(max_tokens=150, grad_accum_steps=2, save_every=10, warmup=20, **options["training"])
shape = TransformerConfig(len(tokenizer), 1, 16, 32, 2, dropout=options.get("dropout", 0.0))


class Fragile(Processes):
    def asked(self, stop, step):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if self.rank == 1 and first and step == options.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().asked(stop, step)


if options.get("die") and os.environ["RANK"] == os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    time.sleep(3)  # after a restart one comes late, and must not be looked for where it was

with processes("cpu") as joined:
    team = Fragile(joined.device)
    torch.manual_seed(team.rank)  # the first one's weights must win
    model = Transformer(shape)
    if options.get("poison") and team.rank == 1:
        model.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
    train(
        model, tokenizer, pairs, config, validation=pairs[:20], folder=folder, team=team,
        report=lambda progress: print("step", progress.step, flush=True),
    )
    total = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    Path(f"{folder}-{team.rank}.txt").write_text(repr(total))
"""  # noqa: E501


def command(folder: Path, size: int, options: dict[str, object], restarts: int = 0) -> list[str]:
    script = folder.with_suffix(".py")
    script.write_text(SCRIPT)
    given = [str(script), str(folder), json.dumps({"training": {"steps": 40}, **options})]
    if size == 1:
        return [sys.executable, *given]
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    return [sys.executable, *run, f"--max-restarts={restarts}", *given]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(folder: Path, size: int, restarts: int = 0, **options: object) -> str:
    done = subprocess.run(
        command(folder, size, options, restarts),
        capture_output=True, text=True, timeout=300, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list[tuple[int, float]]:
    records = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [(record["step"], record["loss"]) for record in records if "loss" in record]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    launch(folder, 1)
    return folder


@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_processes_makes_the_same_updates(
    one: Path, tmp_path: Path, size: int
) -> None:
    launch(tmp_path / "run", size)
    for name, tensor in weights(tmp_path / "run").items():
        torch.testing.assert_close(tensor, weights(one)[name], rtol=0, atol=1e-5)
    for (step, loss), (same, expected) in zip(losses(tmp_path / "run"), losses(one), strict=True):
        assert step == same and loss == pytest.approx(expected, abs=1e-5)
    ends = {(tmp_path / f"run-{rank}.txt").read_text() for rank in range(size)}
    assert len(ends) == 1, "all processes end with the same weights"


def test_a_run_goes_on_with_another_number_of_processes(one: Path, tmp_path: Path) -> None:
    launch(tmp_path / "run", 2, training={"steps": 20})
    launch(tmp_path / "run", 1)
    for name, tensor in weights(tmp_path / "run").items():
        torch.testing.assert_close(tensor, weights(one)[name], rtol=0, atol=1e-5)


def test_a_killed_worker_is_restarted_and_nothing_changes(tmp_path: Path) -> None:
    """With dropout too: what is drawn follows from seed, step and process."""
    launch(tmp_path / "straight", 2, dropout=0.2)
    out = launch(tmp_path / "killed", 2, restarts=2, dropout=0.2, die=25)
    told = [line.split()[-1] for line in out.splitlines() if line.startswith("step")]
    assert told == ["10", "20", "30", "40"]
    straight, killed = weights(tmp_path / "straight"), weights(tmp_path / "killed")
    assert all(torch.equal(straight[name], killed[name]) for name in straight)
    assert losses(tmp_path / "straight") == losses(tmp_path / "killed")


def test_told_to_stop_all_leave_a_checkpoint_and_go_on(one: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = {"training": {"steps": 4000}}
    process = subprocess.Popen(
        command(folder, 2, options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stdout is not None
    while "step 20" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert not list(folder.glob("**/*.part"))
    last = max(int(p.stem.removeprefix("step-")) for p in (folder / "checkpoints").iterdir())
    assert last >= 20
    start = time.perf_counter()
    launch(folder, 2, training={"steps": last + 10})
    assert losses(folder)[-1][0] == last + 10
    assert time.perf_counter() - start < 120


def test_one_bad_gradient_stops_all_before_it_is_used(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "run", 2, {"poison": True}),
        capture_output=True, text=True, timeout=300, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("the gradient of step 1 is not finite") >= 2
    assert not list((tmp_path / "run").glob("checkpoints/*"))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 50))
def test_dealing_loses_no_sentence_and_all_get_as_many_rows(
    count: int, size: int, rows: int
) -> None:
    batch = BatchPlan(list(range(count)), (3, 4), rows)
    shares = [deal(batch, rank, size) for rank in range(size)]
    assert sorted(index for share in shares for index in share.indices) == batch.indices
    assert len({share.rows for share in shares}) == 1
    assert shares[0].rows * size >= max(rows, count) > (shares[0].rows - 1) * size
    assert all(len(share.indices) <= share.rows for share in shares)
