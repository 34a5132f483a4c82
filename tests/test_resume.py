"""A training survives what happens to trainings: killed, stopped, a full disk, a damaged file."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annotated_transformer.data import Pair
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import Progress, Stopped, TrainingConfig, average_checkpoints, checkpoints, occupied, train
from annotated_transformer.model_io import load_model
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(400, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=400)
SHAPE = TransformerConfig(
    vocabulary_size=len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.1
)
CONFIG = TrainingConfig(steps=45, max_tokens=150, save_every=10, keep_checkpoints=2, grad_accum_steps=2)


def make(shape: TransformerConfig = SHAPE) -> Transformer:
    torch.manual_seed(0)
    return Transformer(shape)


def go(folder: Path | None, config: TrainingConfig = CONFIG, **options: object) -> Transformer:
    return train(make(), TOKENIZER, PAIRS, config, folder=folder, **options)  # type: ignore[arg-type]


def same(one: Transformer, other: Transformer) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values())
    return all(torch.equal(a, b) for a, b in pairs)


def steps_of(folder: Path) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in checkpoints(folder / "checkpoints")]


class Axe(Exception):
    pass


@pytest.mark.parametrize("at", [10, 20, 40, 45])
def test_continued_equals_never_stopped(tmp_path: Path, at: int) -> None:
    def fall(progress: Progress) -> None:
        if progress.step == at:
            raise Axe

    with pytest.raises(Axe):
        go(tmp_path / "broken", report=fall)
    broken, straight = go(tmp_path / "broken"), go(tmp_path / "straight")
    assert same(broken, straight) and same(straight, go(None))
    logs = [
        [record for record in map(json.loads, text.splitlines()) if "loss" in record]
        for text in ((tmp_path / name / "log.jsonl").read_text() for name in ("broken", "straight"))
    ]
    for log in logs:
        assert [record["step"] for record in log] == [10, 20, 30, 40, 45]
        for record in log:
            del record["tokens_per_second"], record["time"]
    assert logs[0] == logs[1]


def test_a_finished_run_is_not_repeated_and_can_be_prolonged(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, steps=20))
    seen: list[Progress] = []
    go(tmp_path, replace(CONFIG, steps=20), report=seen.append)
    assert not seen
    assert same(go(tmp_path), go(None))


def test_checkpoints_that_are_kept(tmp_path: Path) -> None:
    """The last two, and the best, which is not among them; and the best is what is returned."""
    scores = iter([1.0, 9.0, 3.0, 2.0, 1.5])
    best = []

    def score(model: Transformer) -> float:
        value = next(scores)
        if value == 9.0:
            best.append({name: weights.clone() for name, weights in model.state_dict().items()})
        return value

    model = go(tmp_path, score=score)
    assert steps_of(tmp_path) == [20, 40, 45]
    assert all(torch.equal(best[0][name], w) for name, w in model.state_dict().items())
    loaded, _ = load_model(tmp_path)
    assert same(loaded, model)


def test_patience(tmp_path: Path) -> None:
    scores = iter([1.0, 5.0, 4.0, 4.5, 99.0])
    seen: list[Progress] = []
    config = replace(CONFIG, patience=2)
    go(tmp_path, config, score=lambda model: next(scores), report=seen.append)
    assert [progress.score for progress in seen] == [1.0, 5.0, 4.0, 4.5]


def test_validation_loss_is_reported_and_chosen_by(tmp_path: Path) -> None:
    seen: list[Progress] = []
    go(tmp_path, validation=PAIRS[:30], report=seen.append)
    losses = [progress.validation_loss for progress in seen]
    assert losses[0] > losses[-1] > 0  # type: ignore[operator]


# --- Processes ---

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_resume import CONFIG, go
from dataclasses import replace
import torch
torch.set_num_threads({threads})
print("ready", flush=True)
go(Path({folder!r}), replace(CONFIG, steps={steps}), report=lambda p: print(p.step, flush=True))
"""


def script_for(folder: Path, steps: int) -> str:
    """Return what trains in a process of its own, with as many threads as here."""
    return SCRIPT.format(
        tests=str(Path(__file__).parent),
        folder=str(folder),
        steps=steps,
        threads=torch.get_num_threads(),
    )


def start(folder: Path, steps: int = 5000) -> subprocess.Popen[str]:
    """Train in a process of its own, and return once step 20 is reported."""
    script = script_for(folder, steps)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() not in ("20\n", ""):
        pass
    return process


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """kill -9 three times, at moments that nobody chose; then the same weights as without."""
    for pause in (0.0, 0.013, 0.031):
        process = start(tmp_path / "run") if not steps_of(tmp_path / "run") else resume(tmp_path)
        time.sleep(pause)
        process.kill()
        process.wait()
        assert steps_of(tmp_path / "run")
    last = steps_of(tmp_path / "run")[-1] + 15
    config = replace(CONFIG, steps=last)
    assert same(go(tmp_path / "run", config), go(None, config))
    assert not list(tmp_path.rglob("*.part"))


def resume(tmp_path: Path) -> subprocess.Popen[str]:
    """Go on in a process of its own until two more checkpoints stand."""
    before = steps_of(tmp_path / "run")[-1]
    script = script_for(tmp_path / "run", 5000)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    while steps_of(tmp_path / "run")[-1] < before + 20 and process.poll() is None:
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_costs_no_step(tmp_path: Path, kind: signal.Signals) -> None:
    process = start(tmp_path)
    process.send_signal(kind)
    assert process.wait(timeout=60) != 0
    last = steps_of(tmp_path)[-1]
    assert last >= 20
    config = replace(CONFIG, steps=last + 5)
    assert same(go(tmp_path, config), go(None, config))


def test_stopping_says_where_it_stands(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 20:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped at step 20: the same command goes on from there"):
        go(tmp_path, report=stop)
    assert steps_of(tmp_path)[-1] == 20
    assert same(go(tmp_path), go(None))


def test_a_stop_leaves_no_trace_in_the_checkpoints(tmp_path: Path) -> None:
    """What a signal leaves between two regular steps goes when the next regular one stands."""

    def stop(progress: Progress) -> None:
        if progress.step == 50:
            os.kill(os.getpid(), signal.SIGTERM)

    config = replace(CONFIG, steps=80, save_every=40)
    with pytest.raises(Stopped):
        go(tmp_path, config, report=stop)
    assert steps_of(tmp_path) == [40, 50]
    go(tmp_path, config)
    assert steps_of(tmp_path) == [40, 80]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(BlockingIOError, match="another training is at work"):
        go(tmp_path)
    go(tmp_path)  # free again


# --- Disks ---


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
"""


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """No file may grow to what a checkpoint needs: writing fails, what was there stands."""
    go(tmp_path, replace(CONFIG, steps=20))
    size = checkpoints(tmp_path / "checkpoints")[-1].stat().st_size // 2
    script = LIMITED.format(size=size) + script_for(tmp_path, CONFIG.steps)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 1
    assert "step-00000030.safetensors could not be written" in result.stderr
    assert steps_of(tmp_path) == [10, 20]
    assert same(go(tmp_path), go(None))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, steps=20))
    last = checkpoints(tmp_path / "checkpoints")[-1]
    last.write_bytes(last.read_bytes()[:-50])
    with pytest.raises(ValueError, match=f"{last.name} is not a whole safetensors file"):
        go(tmp_path)
    last.unlink()  # what the user would do: the one before is still there
    assert same(go(tmp_path), go(None))


def test_a_half_written_log_line_is_dropped(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, steps=20))
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 20, "lo')
    go(tmp_path)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").open()]
    assert steps == [0, 10, 20, 20, 30, 40, 45]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 0.3}, "training.lr_scale=0.2, not 0.3: repeat its settings"),
        ({"accumulate": 1}, "training.grad_accum_steps=2, not 1"),
        ({"seed": 1}, "training.seed=0, not 1"),
    ],
)
def test_a_run_of_other_settings(tmp_path: Path, change: dict[str, float], message: str) -> None:
    go(tmp_path, replace(CONFIG, steps=10))
    with pytest.raises(ValueError, match=message):
        go(tmp_path, replace(CONFIG, **change))  # type: ignore[arg-type]


def test_a_run_of_another_model_corpus_or_tokenizer(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, steps=10))
    with pytest.raises(ValueError, match=r"model\.d_ff=32, not 64"):
        train(make(replace(SHAPE, d_ff=64)), TOKENIZER, PAIRS, CONFIG, folder=tmp_path)
    with pytest.raises(ValueError, match=r"examples=400, not 399"):
        train(make(), TOKENIZER, PAIRS[1:], CONFIG, folder=tmp_path)
    with pytest.raises(ValueError, match=r"pairs=\w+, not \w+"):
        turned = [Pair(pair.target, pair.source) for pair in PAIRS]
        train(make(), TOKENIZER, turned, CONFIG, folder=tmp_path)
    other = Tokenizer.train(grammar(400, seed=1), vocabulary_size=400)
    with pytest.raises(ValueError, match=r"tokenizer="):
        train(make(), other, PAIRS, CONFIG, folder=tmp_path)


# --- Averages ---


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, keep_checkpoints=4))
    one, two = (average_checkpoints(tmp_path, last)[0] for last in (1, 4))
    assert same(one, go(None))
    parts = []
    for path in checkpoints(tmp_path / "checkpoints"):
        folder = tmp_path / "alone"
        (folder / "checkpoints").mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (folder / name).write_bytes((tmp_path / name).read_bytes())
        (folder / "checkpoints" / path.name).write_bytes(path.read_bytes())
        parts.append(average_checkpoints(folder, 1)[0].embedding.weight)
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        folder.rmdir()
    torch.testing.assert_close(two.embedding.weight, torch.stack(parts).mean(dim=0))


def test_more_checkpoints_than_there_are(tmp_path: Path) -> None:
    go(tmp_path, replace(CONFIG, steps=10))
    with pytest.raises(FileNotFoundError, match="has 1 checkpoints, 5 were asked for"):
        average_checkpoints(tmp_path)
