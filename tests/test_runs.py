"""What a run adds to the loop: batches that go on anywhere, shares of processes, settings."""

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    batches,
    encode_pairs,
    plan_batches,
)
from annotated_transformer.data import Pair
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.speed import CHUNK, FastLoss, chunked_loss
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import runs
from annotated_transformer.toolkit.planning import Estimate
from annotated_transformer.toolkit.presets import check_config, make_config
from annotated_transformer.toolkit.runs import (
    TrainingConfig,
    collate_share,
    content_hash,
    load_batches,
    signs_of_death,
    train,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS)
CPU = torch.device("cpu")


@dataclass
class Gpu:
    """A device that calls itself a GPU, where a batch stays where it is."""

    type: str = "cuda"


def plan(epoch: int = 0) -> list[np.ndarray]:
    return plan_batches(CORPUS.lengths, 200, seed=0, epoch=epoch)


def assert_same(loaded: list[Batch], expected: list[Batch]) -> None:
    for batch, other in zip(loaded, expected, strict=True):
        assert all(map(torch.equal, batch, other))


# Batches


def test_loaded_batches_are_those_of_the_lesson_and_a_start_skips_some() -> None:
    expected = [*batches(CORPUS, 200)]
    assert_same([*load_batches(CORPUS, plan(), CPU)], expected)
    assert_same([*load_batches(CORPUS, plan()[5:], CPU)], expected[5:])


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The sentence pairs of a batch without padding; an empty one is left out."""
    source, target = (
        [[token for token in row if token] for row in side.tolist()] for side in batch
    )
    return sorted(row for row in zip(source, target) if row[1] != [BOS])


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), st.integers(0, 3))
def test_the_shares_of_all_processes_are_the_batch(world_size: int, epoch: int) -> None:
    """Also where a batch has fewer rows than there are processes."""
    shares = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(world_size):
            patch.setattr(
                runs, "rank_and_world_size", lambda rank=rank: (rank, world_size)
            )
            shares.append([*load_batches(CORPUS, plan(epoch), CPU)])
    for whole, *parts in zip(batches(CORPUS, 200, epoch=epoch), *shares, strict=True):
        rows = [row for part in parts for row in rows_of(part)]
        assert sorted(rows) == rows_of(whole)


def test_a_share_of_nothing_has_a_source_and_no_label() -> None:
    batch = collate_share([])
    assert batch.source.tolist() == [[EOS]] and batch.target[0, 0] == BOS
    assert batch.target.shape == (1, 2) and not batch.target[:, 1:].any()


def test_reading_batches_draws_no_number_of_others() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    list(load_batches(CORPUS, plan(), CPU))
    assert torch.equal(torch.rand(2), expected)


def test_a_signal_to_all_processes_leaves_the_reader_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for a GPU; without a GPU the loader warns that it cannot pin memory."""
    monkeypatch.setattr(runs, "move", lambda batch, device: batch)
    expected = [*batches(CORPUS, 200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream = load_batches(CORPUS, plan(), Gpu())  # type: ignore[arg-type]
        loaded = [next(stream)]
        children = torch.multiprocessing.active_children()
        assert children
        for kind in (signal.SIGTERM, signal.SIGINT):
            for child in children:
                assert child.pid
                os.kill(child.pid, kind)
        loaded += stream
    assert_same(loaded, expected)


# The name of a corpus


def test_the_hash_names_the_content() -> None:
    """Another order, or sides exchanged, are another corpus; a hash that is known stays."""
    turned = [Pair(pair.target, pair.source) for pair in PAIRS]
    hashes = [
        content_hash(encode_pairs(TOKENIZER, pairs))
        for pairs in (PAIRS, PAIRS[::-1], turned)
    ]
    assert hashes[0] == content_hash(CORPUS) and len({*hashes}) == 3
    assert (
        content_hash(EncodedCorpus(CORPUS.tokens, CORPUS.lengths, "known")) == "known"
    )


# What a run takes


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


def test_a_validation_takes_no_more_memory_than_a_step() -> None:
    """The largest tensor of both is a chunk of logits, not the logits of a batch."""
    vocabulary = 3000
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary, 1, 8, 16, 2, dropout=0.0))
    config = TrainingConfig(steps=1, max_tokens=3 * CHUNK)
    largest = []
    for validation in ((), grammar(600, seed=1)):
        with Largest() as watch:
            train(
                model,
                TOKENIZER,
                grammar(600, seed=0),
                config,
                validation=validation,
                loss=FastLoss(model),
            )
        largest.append(watch.numbers)
    assert largest == [CHUNK * vocabulary] * 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_chunked_loss_keeps_no_graph(
    mode: Callable[[], Any],
) -> None:
    states = torch.randn(23, 6, requires_grad=True)
    weight = torch.randn(11, 6, requires_grad=True)
    labels = torch.randint(0, 11, (23,))
    loss = chunked_loss(states, weight, labels, 0.1, chunk=5)
    with mode():
        measured = chunked_loss(states, weight, labels, 0.1, chunk=5)
    assert loss.requires_grad and not measured.requires_grad
    assert measured.grad_fn is None and weight.grad is None
    torch.testing.assert_close(measured, loss.detach())


@pytest.mark.parametrize(
    "wrong",
    [{"peak": 0.0}, {"peak": np.nan}, {"peak": np.inf}, {"gpus": 0}, {"mfu": -0.2}],
)
def test_hours_need_a_peak(wrong: dict[str, float]) -> None:
    (name,) = wrong
    estimate = Estimate(1, flops=1e12, memory_bytes=1.0, usual_mfu=0.5)
    with pytest.raises(ValueError, match=f"{name} must be a number above 0, not "):
        estimate.hours(**{"peak": 1e12, **wrong})  # type: ignore[arg-type]


def test_a_table_of_positions_has_a_limit_before_a_run_begins() -> None:
    """As what is trained has to be loaded again; a learned table is in the file itself."""
    fields = {"vocabulary_size": 300, "d_model": 512, "max_length": 65_537}
    with pytest.raises(ValueError, match="max_length=65537 must be 65536 or less"):
        make_config(fields)
    check_config(make_config(fields | {"max_length": 65_536}).__dict__)
    make_config(fields | {"positions": "learned"})


# A run that dies


ROOT = Path(__file__).parents[1]
H100 = [
    log
    for folder in ROOT.parents
    for log in folder.glob("shared/gpu-h100/base-*.jsonl")
]
MODELS = ROOT / "annotated_transformer" / "pretrained"
RESULTS = ROOT / "benchmarks" / "results"


def reported_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that tell of updates."""
    lines = map(json.loads, path.read_text().splitlines())
    return [line for line in lines if "loss" in line and "learning_rate" in line]


def signs_in(
    lines: list[dict[str, Any]], warmup: int, vocabulary_size: int
) -> dict[str, int]:
    """The step at which each sign is first seen, as the log grows."""
    seen: dict[str, int] = {}
    for count in range(1, len(lines) + 1):
        for sign in signs_of_death(lines[:count], warmup, vocabulary_size):
            seen.setdefault(sign, lines[count - 1]["step"])
    return seen


def committed_logs() -> Iterator[tuple[str, list[dict[str, Any]], int, int]]:
    """Each training log of the project: its name, lines, warm-up and vocabulary."""
    for log in [*MODELS.glob("*/log.jsonl"), *MODELS.glob("*/start*.jsonl")]:
        name = "averaged.json" if log.name == "log.jsonl" else f"{log.stem}.json"
        settings = json.loads((log.parent / name).read_text())
        sizes = settings["training.warmup"], settings["model.vocabulary_size"]
        yield f"{log.parent.name}/{log.name}", reported_lines(log), *sizes
    own = {
        "captions": (300, 4000),
        "captions-seed-1": (1000, 6000),
        "captions-2-seed-1": (1000, 6000),
        "tatoeba-deu-eng": (1000, 6000),
    }
    for name, sizes in own.items():
        yield name, reported_lines(RESULTS / f"{name}.jsonl"), *sizes
    for line in (RESULTS / "gpu-NVIDIA-H200.jsonl").read_text().splitlines():
        progress = json.loads(line).get("progress")
        if progress:
            yield "gpu-NVIDIA-H200", progress, 4000, 37_000
    curves = (RESULTS / "variations.jsonl").read_text().splitlines()[1:]
    for run in map(json.loads, curves):
        lines = []
        for number, loss in enumerate(run["curve"], start=1):
            lines.append({"step": 50 * number, "loss": loss, "gradient_norm": 1.0})
        yield f"variations, {run['row']}", lines, 200, 4000


def test_no_training_of_this_project_gets_a_warning() -> None:
    logs = [*committed_logs()]
    assert len(logs) > 100 and all(lines for _, lines, _, _ in logs)
    for name, *log in logs:
        assert not signs_in(*log), name


@pytest.mark.skipif(not H100, reason="the logs of an H100 are not here")
@pytest.mark.parametrize("vocabulary_size", [6000, 37_000])
def test_both_runs_that_died_on_a_gpu_would_have_been_told(
    vocabulary_size: int,
) -> None:
    """The vocabulary is not in their logs; the first loss lies between these two."""
    high, later = sorted(H100)  # with a warm-up of 400 and of 800
    first = signs_in(reported_lines(high), 400, vocabulary_size)
    assert first == {"validation": 400, "loss": 1050}
    second = signs_in(reported_lines(later), 800, vocabulary_size)
    assert second["gradient"] == 1200


def test_a_validation_loss_that_rises_with_a_score_is_no_death() -> None:
    """The model learns by heart; without a score, nothing is known."""
    line = {"step": 100, "loss": 3.0, "gradient_norm": 1.0}
    log = [line | {"validation_loss": 3.0, "score": 0.0}]
    risen = line | {"step": 200, "validation_loss": 3.5}
    assert signs_of_death([*log, risen | {"score": 0.0}], 10, 300).keys() == {
        "validation"
    }
    assert not signs_of_death([*log, risen | {"score": 5.0}], 10, 300)
    assert not signs_of_death([*log, risen], 10, 300)


DEADLY = TrainingConfig(steps=620, max_tokens=150, warmup=20, lr_scale=8.0)


def dying(folder: Path | None, config: TrainingConfig = DEADLY) -> list[dict[str, Any]]:
    """Train a small model; return what it reported."""
    torch.manual_seed(0)
    shape = TransformerConfig(len(TOKENIZER), layers=1, d_model=16, d_ff=16, heads=1)
    lines: list[dict[str, Any]] = []
    pairs = encode_pairs(TOKENIZER, PAIRS[:60])
    model = Transformer(shape)
    train(model, TOKENIZER, pairs, config, folder=folder, report=lines.append)
    return lines


def test_a_run_that_dies_says_so_once_in_its_log_and_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when it is continued in between, as the log remembers; it trains on all the same."""
    dying(tmp_path, replace(DEADLY, steps=560))
    shown = capsys.readouterr().err
    dying(tmp_path)
    shown += capsys.readouterr().err
    lines = reported_lines(tmp_path / "log.jsonl")
    assert lines[-1]["step"] == 620
    warned = [line for line in lines if "loss" in line.get("warnings", {})]
    assert len(warned) == 1 and "hardly fallen" in warned[0]["warnings"]["loss"]
    told = [line for line in shown.splitlines() if "hardly fallen" in line]
    assert len(told) == 1 and told[0].startswith(f"step {warned[0]['step']}: ")
    for cause in ("learning rate", "warm-up", "batch", "/troubleshooting.html"):
        assert cause in told[0]


@pytest.mark.slow
def test_a_run_that_learns_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dying(None, TrainingConfig(steps=620, max_tokens=150, warmup=100))
    assert len(lines) == 13 and not any("warnings" in line for line in lines)
    assert "Likely causes" not in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 1])
def test_a_setting_that_only_one_process_has_is_refused_by_both(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(texts: list[str]) -> list[list[str]]:
        settings = json.loads(texts[0])
        other = json.dumps(settings | {"training.pad_to_multiple_of": 8})
        return [texts, [other]] if rank == 0 else [[other], texts]

    monkeypatch.setattr(runs, "rank_and_world_size", lambda: (rank, 2))
    monkeypatch.setattr(runs, "gather_texts", gather)
    with pytest.raises(ValueError, match=r"the same training\.pad_to_multiple_of: "):
        dying(None, DEADLY)
