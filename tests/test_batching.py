"""Every sentence exactly once an epoch, within the budget; seed and epoch decide the order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.batching import Example, batches, collate, encode_pairs, plan_batches
from annotated_transformer.corpus import MissingData, Pair, grammar, multi30k
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer

LENGTH = st.integers(1, 50)
LENGTHS = st.lists(st.tuples(LENGTH, LENGTH), max_size=80)


@settings(deadline=None)
@given(LENGTHS, st.integers(50, 400), st.integers(), st.integers(0, 5))
def test_each_example_once_and_within_the_budget(
    lengths: list[tuple[int, int]], max_tokens: int, seed: int, epoch: int
) -> None:
    plan = plan_batches(lengths, max_tokens, seed, epoch)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        assert batch
        for side in (0, 1):
            assert len(batch) * max(lengths[index][side] for index in batch) <= max_tokens
    assert plan == plan_batches(lengths, max_tokens, seed, epoch)


def test_seed_and_epoch_change_the_order_and_the_company() -> None:
    lengths = [(5 + index % 3, 6) for index in range(200)]
    plans = [plan_batches(lengths, 100, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    companies = {frozenset(map(frozenset, plan)) for plan in plans}
    assert len(companies) == 4


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="example 1 has 60 tokens, a batch only 50"):
        plan_batches([(3, 3), (60, 2)], 50, 0, 0)


def test_collate_pads_on_the_right() -> None:
    batch = collate([Example([5, EOS], [BOS, 6, EOS]), Example([EOS], [BOS, EOS])])
    assert batch.source.tolist() == [[5, EOS], [EOS, PAD]]
    assert batch.target.tolist() == [[BOS, 6, EOS], [BOS, EOS, PAD]]
    assert batch.source.dtype == torch.long


def test_batches_hold_what_was_encoded() -> None:
    pairs = [*grammar(300, seed=1), Pair("", "")]
    tokenizer = Tokenizer.train(pairs, vocabulary_size=500)
    texts = []
    for batch in batches(encode_pairs(tokenizer, pairs), max_tokens=400, seed=0, epoch=0):
        for source, target in zip(batch.source.tolist(), batch.target.tolist()):
            assert target[0] == BOS and source.count(EOS) == target.count(EOS) == 1
            texts.append((tokenizer.decode(source), tokenizer.decode(target)))
    assert sorted(texts) == sorted((pair.source, pair.target) for pair in pairs)


def useful_share(examples: list[Example], max_tokens: int) -> float:
    epoch = list(batches(examples, max_tokens, seed=0, epoch=0))
    real = sum(int((side != PAD).sum()) for batch in epoch for side in batch)
    return real / sum(side.numel() for batch in epoch for side in batch)


def test_hardly_any_padding_on_multi30k() -> None:
    """Both sides together at least 90 % useful; the target alone is near 98 %."""
    try:
        pairs = multi30k("train")
    except MissingData as error:
        pytest.skip(str(error))
    examples = encode_pairs(Tokenizer.train(pairs, vocabulary_size=4000), pairs)
    assert useful_share(examples, max_tokens=2000) > 0.9
