"""Every sentence exactly once an epoch, within the budget; seed and epoch decide the order."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.batching import (
    EncodedCorpus,
    Example,
    batches,
    check_fits,
    collate,
    encode_pairs,
    plan_batches,
    snake_key,
)
from annotated_transformer.data import Pair
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.own_data import MissingData, multi30k
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer

LENGTH = st.integers(1, 50)
LENGTHS = st.lists(st.tuples(LENGTH, LENGTH), max_size=80).map(
    lambda x: np.array(x).reshape(-1, 2)
)
PAIRS = [*grammar(200, seed=0), Pair("", "")]
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=400)
CORPUS = encode_pairs(TOKENIZER, PAIRS)


def useful(lengths: np.ndarray, plan: list[np.ndarray]) -> float:
    """Return the share of positions that are no padding, both sides together."""
    places = sum(len(batch) * int(lengths[batch].max(axis=0).sum()) for batch in plan)
    return float(lengths.sum(dtype=np.int64) / places)


# --- A corpus in two arrays ---


def test_a_corpus_gives_back_what_was_encoded() -> None:
    assert len(CORPUS) == len(PAIRS)
    for pair, (source, target) in zip(PAIRS, CORPUS):
        assert source[-1] == target[-1] == EOS and target[0] == BOS
        assert (TOKENIZER.decode(source), TOKENIZER.decode(target)) == pair[:2]
    assert CORPUS.lengths.tolist() == [
        [len(s), len(t) - 1] for s, t in map(tuple, CORPUS)
    ]
    assert not len(encode_pairs(TOKENIZER, []))


def test_small_integers_and_mapped_files_are_the_same_corpus(tmp_path: object) -> None:
    tokens = np.memmap(
        f"{tmp_path}/tokens.bin", np.uint16, "w+", shape=CORPUS.tokens.shape
    )
    tokens[:] = CORPUS.tokens
    mapped = EncodedCorpus(tokens, CORPUS.lengths.astype(np.uint8))
    for one, other in zip(batches(CORPUS, 200), batches(mapped, 200)):
        assert all(map(torch.equal, one, other))


def test_plain_tuples_are_encoded_and_what_is_no_pair_is_refused() -> None:
    tuples = [pair[:2] for pair in PAIRS]
    assert np.array_equal(encode_pairs(TOKENIZER, tuples).tokens, CORPUS.tokens)
    for wrong in ({"de": "Ja.", "en": "Yes."}, "Ja.", ("Ja.",), ("Ja.", None)):
        with pytest.raises(ValueError, match="is no pair: give two texts"):
            encode_pairs(TOKENIZER, [*tuples, wrong])


# --- A batch ---


def test_collate_pads_on_the_right() -> None:
    rows = [([5, EOS], [BOS, 6, EOS]), ([EOS], [BOS, EOS])]
    batch = collate([Example(*map(np.array, row)) for row in rows])
    assert batch.source.tolist() == [[5, EOS], [EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 6, EOS], [BOS, EOS, PAD]]
    assert batch.source.dtype == torch.long


# --- A plan ---


@settings(deadline=None)
@given(LENGTHS, st.integers(50, 400), st.integers(0), st.integers(0, 5))
def test_each_example_once_and_within_the_budget(
    lengths: np.ndarray, max_tokens: int, seed: int, epoch: int
) -> None:
    plan = plan_batches(lengths, max_tokens, seed, epoch)
    assert sorted(index for batch in plan for index in batch) == list(
        range(len(lengths))
    )
    assert all(
        len(batch) and len(batch) * lengths[batch].max() <= max_tokens for batch in plan
    )
    again = plan_batches(lengths, max_tokens, seed, epoch)
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]


@settings(deadline=None)
@given(LENGTHS.filter(len), st.integers(50, 400))
def test_no_batch_could_take_the_next_example_of_the_line(
    lengths: np.ndarray, max_tokens: int
) -> None:
    """Sorted by width, each batch but the last is full."""
    plan, widths = plan_batches(lengths, max_tokens, 0, 0), lengths.max(axis=1)
    plan.sort(key=lambda batch: (widths[batch].min(), widths[batch].max(), -len(batch)))
    for batch, following in pairwise(plan):
        assert widths[batch].max() <= widths[following].min()
        assert (len(batch) + 1) * widths[following].min() > max_tokens


def test_seed_and_epoch_change_the_order_and_the_company() -> None:
    lengths = np.array([(5 + index % 3, 6) for index in range(200)])
    plans = [
        plan_batches(lengths, 100, seed, epoch) for seed in (0, 1) for epoch in (0, 1)
    ]
    companies = {
        frozenset(frozenset(batch.tolist()) for batch in plan) for plan in plans
    }
    assert len(companies) == 4


@given(st.integers(1, 12))
def test_along_the_line_a_length_changes_by_one_at_most(widest: int) -> None:
    """Whatever integers lengths are stored as; and keys of two widths are at least 4 apart."""
    field = np.array(
        [(s, t) for s in range(1, widest + 1) for t in range(1, widest + 1)], np.uint8
    )
    line = field[snake_key(field).argsort()].astype(int)
    assert (np.abs(np.diff(line, axis=0)) <= 1).all()
    keys, widths = np.sort(snake_key(field)), line.max(axis=1)
    assert (np.diff(keys)[np.diff(widths) > 0] >= 4).all()


def test_lengths_above_a_small_integer() -> None:
    """Keys grow with the square of a length: 32-bit lengths above 32,768 still sort."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(30_000, 70_000, (300, 1)).repeat(2, axis=1).astype(np.int32)
    assert useful(lengths, plan_batches(lengths, 400_000, 0, 0)) > 0.95


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(
        ValueError, match="training pair 2 has 60 tokens, max_tokens allows 50: "
    ):
        plan_batches(np.array([(3, 3), (60, 2)]), 50, 0, 0)
    with pytest.raises(
        ValueError, match=r'pair 2 has 60 tokens.*it begins "Der Hund"$'
    ):
        check_fits(
            np.array([(3, 3), (60, 2)]),
            50,
            "training",
            "max_tokens",
            first_words=["Die Katze", "Der Hund"].__getitem__,
        )
    check_fits(np.array([(3, 3), (60, 2)]), 60, "training", "max_tokens")
    assert len(plan_batches(np.zeros((3, 2), int), 10, 0, 0)) == 1
    check_fits(np.zeros((0, 2), int), 1, "training", "max_tokens")


# --- From the plan to the batches ---


def test_batches_are_those_of_the_plan() -> None:
    plan = plan_batches(CORPUS.lengths, 200, seed=1, epoch=3)
    expected = [collate([CORPUS[index] for index in numbers]) for numbers in plan]
    for batch, other in zip(
        batches(CORPUS, 200, seed=1, epoch=3), expected, strict=True
    ):
        assert all(map(torch.equal, batch, other))


# --- Hardly any padding ---


def test_hardly_any_padding_on_a_large_corpus() -> None:
    """Lengths as those of WMT14, in small integers whose products must not overflow."""
    rng = np.random.default_rng(0)
    words = np.exp(0.75 * rng.standard_normal((400_000, 1)) + 3.1)
    lengths = words * np.exp(0.15 * rng.standard_normal((400_000, 2)))
    lengths = lengths.round().clip(1, 250).astype(np.uint8)
    assert (
        useful(lengths, plan_batches(lengths, max_tokens=2500, seed=0, epoch=0)) > 0.96
    )


@cache
def caption_lengths() -> np.ndarray:
    try:
        pairs = multi30k("train")
    except MissingData as error:
        pytest.skip(str(error))
    return encode_pairs(
        Tokenizer.train(pairs[:3000], vocabulary_size=2000), pairs
    ).lengths


@pytest.mark.parametrize(
    ("max_tokens", "share"), [(1024, 0.96), (2500, 0.95), (4096, 0.95)]
)
def test_hardly_any_padding_on_multi30k(max_tokens: int, share: float) -> None:
    lengths = caption_lengths()
    assert useful(lengths, plan_batches(lengths, max_tokens, seed=0, epoch=0)) > share


def test_company_changes_from_epoch_to_epoch() -> None:
    """Of the pairs of captions that share a batch, few share one again."""
    lengths = caption_lengths()
    shared = []
    for epoch in (0, 1):
        plan = plan_batches(lengths, 1024, 0, epoch)
        pairs = [
            np.sort(batch)[np.array(np.triu_indices(len(batch), 1))] for batch in plan
        ]
        shared.append(np.concatenate([a * len(lengths) + b for a, b in pairs]))
    assert len(np.intersect1d(*shared, assume_unique=True)) < 0.2 * len(shared[0])
