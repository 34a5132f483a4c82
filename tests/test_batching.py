"""Every sentence exactly once an epoch, within the budget; seed and epoch decide the order."""

import time
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.batching import BatchPlan, Example, Window, batches, collate, encode_pairs, join_windows, like_joined, plan_batches, shapes_of
from annotated_transformer.data import MissingData, Pair, multi30k
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer

LENGTH = st.integers(1, 50)
LENGTHS = st.lists(st.tuples(LENGTH, LENGTH), max_size=80)


@settings(deadline=None)
@given(LENGTHS, st.integers(50, 400), st.integers(), st.integers(0, 5), st.integers(1, 80))
def test_each_example_once_and_within_the_budget(
    lengths: list[tuple[int, int]], max_tokens: int, seed: int, epoch: int, shapes: int
) -> None:
    tensor = torch.tensor(lengths).reshape(-1, 2)
    plan = plan_batches(tensor, max_tokens, seed, epoch, shapes)
    assert sorted(index for batch in plan for index in batch.indices) == list(range(len(lengths)))
    for indices, shape, _ in plan:
        assert indices and len(indices) * max(shape) <= max_tokens
        for side in (0, 1):
            assert max(lengths[index][side] for index in indices) <= shape[side]
    assert plan == plan_batches(tensor, max_tokens, seed, epoch, shapes)


@given(LENGTHS, st.integers(50, 400))
def test_shapes_are_the_same_in_every_epoch(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    tensor = torch.tensor(lengths).reshape(-1, 2)
    plans = [plan_batches(tensor, max_tokens, 7, epoch) for epoch in range(3)]
    shapes = [sorted((len(batch.indices), *batch.shape) for batch in plan) for plan in plans]
    assert shapes[0] == shapes[1] == shapes[2]


def test_seed_and_epoch_change_the_order_and_the_company() -> None:
    lengths = torch.tensor([(5 + index % 3, 6) for index in range(200)])
    plans = [plan_batches(lengths, 100, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    companies = {frozenset(frozenset(batch.indices) for batch in plan) for plan in plans}
    assert len(companies) == 4


def test_few_shapes_for_many_batches() -> None:
    lengths = torch.randint(5, 60, (20_000, 2), generator=torch.Generator().manual_seed(0))
    for shapes in (8, 32, 72):
        plan = plan_batches(lengths, 1000, 0, 0, shapes)
        assert len({batch.shape for batch in plan}) <= shapes < len(plan)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="example 1 has 60 tokens, a batch only 50"):
        plan_batches(torch.tensor([(3, 3), (60, 2)]), 50, 0, 0)


def test_a_start_skips_batches() -> None:
    pairs = grammar(200, seed=0)
    examples = encode_pairs(Tokenizer.train(pairs, vocabulary_size=500), pairs)
    whole = list(batches(examples, 200, seed=0, epoch=3))
    rest = list(batches(examples, 200, seed=0, epoch=3, start=5))
    assert len(rest) == len(whole) - 5
    assert all(torch.equal(a, b) for one, two in zip(whole[5:], rest) for a, b in zip(one, two))


def test_collate_pads_on_the_right() -> None:
    batch = collate([Example([5, EOS], [BOS, 6, EOS]), Example([EOS], [BOS, EOS])])
    assert batch.source.tolist() == [[5, EOS], [EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 6, EOS], [BOS, EOS, PAD]]
    assert batch.source.dtype == torch.long


def test_empty_rows_fill_a_batch_and_have_no_label() -> None:
    batch = collate([Example([5, EOS], [BOS, 6, EOS])], 3, 4, rows=3)
    assert batch.source.tolist() == [[5, EOS, PAD], [EOS, PAD, PAD], [EOS, PAD, PAD]]
    assert batch.target.shape == (3, 5)
    assert not batch.target[1:, 1:].any()


def test_a_plan_may_be_arranged() -> None:
    """Half of each batch, as one of two processes takes it."""
    pairs = grammar(200, seed=0)
    examples = encode_pairs(Tokenizer.train(pairs, vocabulary_size=500), pairs)

    def half(plan: list[BatchPlan]) -> list[BatchPlan]:
        return [BatchPlan(b.indices[::2], b.shape, -(-len(b.indices) // 2)) for b in plan]

    whole = batches(examples, 200, seed=0, epoch=3)
    part = batches(examples, 200, seed=0, epoch=3, arrange=half)
    assert all(torch.equal(one.source[::2], two.source) for one, two in zip(whole, part))


@given(st.lists(st.builds(Window, *[st.integers(1, 4)] * 3), min_size=1, max_size=12))
def test_joining_windows_of_one_shape_first_changes_nothing(windows: list[Window]) -> None:
    few = max(1, len(like_joined(windows)) // 2)
    assert join_windows(windows, few) == join_windows(like_joined(windows), few)
    assert sum(w.places for w in like_joined(windows)) == sum(w.places for w in windows)


def test_a_million_pairs_are_planned_in_seconds() -> None:
    """With small integers too, whose products must not overflow."""
    chance = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 250, (1_000_000, 1), generator=chance)
    lengths = torch.cat([lengths, lengths], dim=1).short()
    start = time.process_time()
    plan = plan_batches(lengths, 25_000, 0, 0)
    assert time.process_time() - start < 15
    places = sum(len(b.indices) * sum(b.shape) for b in plan)
    assert int(lengths.sum()) / places > 0.95


def test_batches_hold_what_was_encoded() -> None:
    pairs = [*grammar(300, seed=1), Pair("", "")]
    tokenizer = Tokenizer.train(pairs, vocabulary_size=500)
    texts = []
    for batch in batches(encode_pairs(tokenizer, pairs), max_tokens=400, seed=0, epoch=0):
        for source, target in zip(batch.source.tolist(), batch.target.tolist()):
            assert target[0] == BOS and source.count(EOS) == target.count(EOS) == 1
            texts.append((tokenizer.decode(source), tokenizer.decode(target)))
    assert sorted(texts) == sorted((pair.source, pair.target) for pair in pairs)


@cache
def captions() -> list[Example]:
    try:
        pairs = multi30k("train")
    except MissingData as error:
        pytest.skip(str(error))
    return encode_pairs(Tokenizer.train(pairs, vocabulary_size=4000), pairs)


def test_hardly_any_padding_on_a_large_corpus() -> None:
    """Lengths as those of WMT14: also there at least 95 % useful, in windows of a dozen batches."""
    chance = torch.Generator().manual_seed(0)
    words = torch.randn(400_000, 1, generator=chance).mul(0.75).add(3.1).exp()
    lengths = words * torch.randn(400_000, 2, generator=chance).mul(0.15).exp()
    lengths = lengths.round().clamp(1, 250).int()
    plan = plan_batches(lengths, max_tokens=2500, seed=0, epoch=0)
    shapes = {batch.shape for batch in plan}
    assert 64 < len(shapes) <= len(plan) // 11
    places = sum(len(indices) * sum(shape) for indices, shape, _ in plan)
    few = plan_batches(lengths, max_tokens=2500, seed=0, epoch=0, shapes=64)
    assert int(lengths.sum()) / places > 0.95
    assert int(lengths.sum()) / sum(len(b.indices) * sum(b.shape) for b in few) < 0.95


@pytest.mark.parametrize("max_tokens", [1024, 1536, 2500, 4096])
def test_hardly_any_padding_on_multi30k(max_tokens: int) -> None:
    """Both sides together at least 95 % useful, with at most 64 shapes."""
    examples = captions()
    lengths = shapes_of(examples)
    plan = plan_batches(lengths, max_tokens, seed=0, epoch=0)
    places = sum(len(indices) * sum(shape) for indices, shape, _ in plan)
    assert int(lengths.sum()) / places > 0.95
    assert len({batch.shape for batch in plan}) <= 64
    batch = next(batches(examples, max_tokens, seed=0, epoch=0))
    assert (batch.source.shape[1], batch.target.shape[1] - 1) == plan[0].shape
