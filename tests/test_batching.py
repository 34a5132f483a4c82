"""Every sentence exactly once an epoch, within the budget; seed and epoch decide the order."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
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
    lambda lengths: np.array(lengths).reshape(-1, 2)
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
    lengths = [[len(source), len(target) - 1] for source, target in CORPUS]
    assert CORPUS.lengths.tolist() == lengths
    assert not len(encode_pairs(TOKENIZER, []))


def test_small_integers_and_mapped_files_are_the_same_corpus(tmp_path: Path) -> None:
    file = tmp_path / "tokens.bin"
    tokens = np.memmap(file, np.uint16, "w+", shape=CORPUS.tokens.shape)
    tokens[:] = CORPUS.tokens
    mapped = EncodedCorpus(tokens, CORPUS.lengths.astype(np.uint8))
    for one, other in zip(batches(CORPUS, 200), batches(mapped, 200), strict=True):
        assert all(map(torch.equal, one, other))


def test_plain_tuples_are_encoded_and_what_is_no_pair_is_refused() -> None:
    tuples = [pair[:2] for pair in PAIRS]
    assert np.array_equal(encode_pairs(TOKENIZER, tuples).tokens, CORPUS.tokens)
    for wrong in ({"de": "Ja.", "en": "Yes."}, "Ja.", ("Ja.",), ("Ja.", None)):
        with pytest.raises(ValueError, match="no pair"):
            encode_pairs(TOKENIZER, [*tuples, wrong])


def test_batches_are_padded_on_the_right_and_those_of_the_plan() -> None:
    rows = [([5, EOS], [BOS, 6, EOS]), ([EOS], [BOS, EOS])]
    batch = collate([Example(*map(np.array, row)) for row in rows])
    assert batch.source.tolist() == [[5, EOS], [EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 6, EOS], [BOS, EOS, PAD]]
    assert batch.source.dtype == torch.long
    plan = plan_batches(CORPUS.lengths, 200, seed=1, epoch=3)
    made = batches(CORPUS, 200, seed=1, epoch=3)
    for batch, numbers in zip(made, plan, strict=True):
        expected = collate([CORPUS[number] for number in numbers])
        assert all(map(torch.equal, batch, expected))


# --- A plan ---


@given(LENGTHS, st.integers(50, 400), st.integers(0), st.integers(0, 5))
def test_each_example_comes_once_within_the_budget_and_batches_are_full(
    lengths: np.ndarray, max_tokens: int, seed: int, epoch: int
) -> None:
    """Sorted by width, no batch could take the first example of the next one."""
    plan = plan_batches(lengths, max_tokens, seed, epoch)
    again = plan_batches(lengths, max_tokens, seed, epoch)
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]
    assert sorted(n for batch in plan for n in batch) == [*range(len(lengths))]
    widths = lengths.max(axis=1)
    plan.sort(key=lambda batch: (widths[batch].min(), widths[batch].max(), -len(batch)))
    for batch in plan:
        assert len(batch) and len(batch) * widths[batch].max() <= max_tokens
    for batch, following in pairwise(plan):
        assert widths[batch].max() <= widths[following].min()
        assert (len(batch) + 1) * widths[following].min() > max_tokens


def test_seed_and_epoch_change_the_order_and_the_company() -> None:
    lengths = np.array([(5 + index % 3, 6) for index in range(200)])
    companies = set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        plan = plan_batches(lengths, 100, seed, epoch)
        companies.add(frozenset(frozenset(batch.tolist()) for batch in plan))
    assert len(companies) == 4


@given(st.integers(1, 12))
def test_along_the_line_a_length_changes_by_one_at_most(widest: int) -> None:
    """Whatever integers lengths are stored as; keys of two widths are at least 4 apart."""
    field = [(s, t) for s in range(1, widest + 1) for t in range(1, widest + 1)]
    lengths = np.array(field, np.uint8)
    line = lengths[snake_key(lengths).argsort()].astype(int)
    assert (np.abs(np.diff(line, axis=0)) <= 1).all()
    keys, widths = np.sort(snake_key(lengths)), line.max(axis=1)
    assert (np.diff(keys)[np.diff(widths) > 0] >= 4).all()


def test_what_does_not_fit_is_named() -> None:
    lengths = np.array([(3, 3), (60, 2)])
    with pytest.raises(ValueError, match=r"training pair 2 has 60 .* 50"):
        plan_batches(lengths, 50, 0, 0)
    check_fits(lengths, 60, "training", "max_tokens")


# --- Hardly any padding ---


@pytest.mark.parametrize(
    "kind, longest, max_tokens, share",
    [("uint8", 250, 2500, 0.95), ("int32", 70_000, 400_000, 0.9)],
)
def test_hardly_any_padding_on_a_large_corpus(
    kind: str, longest: int, max_tokens: int, share: float
) -> None:
    """Lengths as those of WMT14, in integers whose products must not overflow."""
    rng = np.random.default_rng(0)
    words = longest / 12 * np.exp(0.75 * rng.standard_normal((100_000, 1)))
    lengths = words * np.exp(0.15 * rng.standard_normal((100_000, 2)))
    lengths = lengths.round().clip(1, longest).astype(kind)
    assert useful(lengths, plan_batches(lengths, max_tokens, seed=0, epoch=0)) > share


def test_company_changes_from_epoch_to_epoch() -> None:
    """Of the pairs of captions that share a batch, few share one again."""
    try:
        pairs = multi30k("train")
    except MissingData as error:
        pytest.skip(str(error))
    tokenizer = Tokenizer.train(pairs[:3000], vocabulary_size=2000)
    lengths = encode_pairs(tokenizer, pairs).lengths
    shared = []
    for epoch in (0, 1):
        together = []
        for batch in plan_batches(lengths, 1024, 0, epoch):
            one, other = np.triu_indices(len(batch), 1)
            numbers = np.sort(batch)
            together.append(numbers[one] * len(lengths) + numbers[other])
        shared.append(np.concatenate(together))
    assert len(np.intersect1d(*shared, assume_unique=True)) < 0.2 * len(shared[0])
