"""What a run adds to the loop: batches that go on anywhere, shares of processes, settings."""

import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
    monkeypatch.setattr(Batch, "to", lambda batch, device: batch)
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
    estimate = Estimate(parameters=1, flops=1e12, memory_bytes=1.0)
    with pytest.raises(ValueError, match=f"{name} must be a number above 0, not "):
        estimate.hours(**{"peak": 1e12, **wrong})  # type: ignore[arg-type]


def test_a_table_of_positions_has_a_limit_before_a_run_begins() -> None:
    """As what is trained has to be loaded again; a learned table is in the file itself."""
    fields = {"vocabulary_size": 300, "d_model": 512, "max_length": 65_537}
    with pytest.raises(ValueError, match="max_length=65537 must be 65536 or less"):
        make_config(fields)
    check_config(make_config(fields | {"max_length": 65_536}).__dict__)
    make_config(fields | {"positions": "learned"})
