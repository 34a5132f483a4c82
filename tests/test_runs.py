"""What a run adds to the loop: batches that go on anywhere, shares of processes, settings."""

import os
import signal
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.batching import (
    Batch,
    EncodedCorpus,
    batches,
    encode_pairs,
    plan_batches,
)
from annotated_transformer.data import Pair
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import runs
from annotated_transformer.toolkit.runs import (
    collate_share,
    content_hash,
    load_batches,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar

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
