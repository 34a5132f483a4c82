"""An update is the mean over real tokens, however cut; bad gradients and settings are refused."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.batching import Batch, batches, collate, encode_pairs
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import (
    Group,
    TrainingConfig,
    group_batches,
    make_adam,
    training_step,
    validation_loss,
)
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    evaluating,
)

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS)
SHAPE = TransformerConfig(
    len(TOKENIZER), layers=1, d_model=16, d_ff=32, heads=2, dropout=0.0
)


def make(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SHAPE, **changes))


def group_of(*batches: Batch) -> Group:
    """One update's worth of batches."""
    (group,) = group_batches(batches, len(batches))
    return group


def flat(model: Transformer) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


# --- Batches of an update ---


@given(st.integers(0, 9), st.integers(1, 4))
def test_groups_hold_all_batches_in_order_and_count_real_tokens(
    count: int, size: int
) -> None:
    stream = [*batches(CORPUS, 150)][:count]
    groups = [*group_batches(iter(stream), size)]
    grouped = [batch for group in groups for batch in group.batches]
    assert all(one is other for one, other in zip(grouped, stream, strict=True))
    assert all(len(group.batches) == size for group in groups[:-1])
    for group in groups:
        labels = [batch.target[:, 1:] for batch in group.batches]
        assert group.tokens == sum(int((part != PAD).sum()) for part in labels)


# --- One update ---


@given(st.lists(st.integers(1, 11), max_size=4, unique=True))
def test_accumulated_batches_equal_the_large_one(cuts: list[int]) -> None:
    """Twelve sentences, cut anywhere, make the step of PyTorch's mean over all their tokens."""
    examples = [*CORPUS][:12]
    batch = collate(examples)
    labels = batch.target[:, 1:]
    plain = make().double()
    logits = plain(batch.source, batch.target[:, :-1])
    mean = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    mean.backward()
    gradients = [weight.grad.flatten() for weight in plain.parameters()]

    model = make().double()
    parts = [examples[a:b] for a, b in pairwise([0, *sorted(cuts), 12])]
    group = group_of(*(collate(part) for part in parts))
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    loss, tokens, norm = training_step(SmoothedLoss(model), group, sgd)

    expected = flat(plain) - torch.cat(gradients)
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(loss / tokens, mean.detach())
    torch.testing.assert_close(norm, torch.cat(gradients).norm())
    assert tokens == (labels != PAD).sum()


def test_gradients_of_before_do_not_count() -> None:
    after = []
    for stale in (0.0, 7.0):
        model = make()
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, stale)
        group = group_of(collate([*CORPUS][:8]))
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        training_step(SmoothedLoss(model), group, sgd)
        after.append(flat(model))
    assert torch.equal(*after)


def test_clipping_shortens_long_gradients_only() -> None:
    moved = {}
    for clip in (None, 0.01, 1e6):
        model = make().double()
        group = group_of(collate([*CORPUS][:8]))
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        update = training_step(SmoothedLoss(model), group, sgd, clip)
        moved[clip] = flat(model) - flat(make().double())
        assert float(update.gradient_norm) == pytest.approx(float(moved[None].norm()))
    assert torch.equal(moved[None], moved[1e6])
    shortened = 0.01 * moved[None] / moved[None].norm()
    torch.testing.assert_close(moved[0.01], shortened, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    """Neither weights nor Adam's averages nor its count of steps."""
    model = make()
    adam = make_adam(model)
    adam.param_groups[0]["lr"] = 0.01
    loss = SmoothedLoss(model)
    group = group_of(collate([*CORPUS][:8]))

    def state() -> list[torch.Tensor]:
        averages = [x.clone() for each in adam.state.values() for x in each.values()]
        return [flat(model), *averages]

    training_step(loss, group, adam)
    before = state()
    model.embedding.weight.register_hook(lambda gradient: gradient * bad)
    with pytest.raises(FloatingPointError, match="not finite"):
        training_step(loss, group, adam, grad_clip=1.0)
    assert all(map(torch.equal, before, state()))


# --- Whether it gets better ---


def test_the_validation_loss_is_the_plain_one() -> None:
    """Hard labels, no dropout, a mean over all tokens, whatever the batches."""
    model = make(dropout=0.5)
    losses = 0.0
    tokens = 0
    with evaluating(model):
        for example in CORPUS:
            source, target = (torch.from_numpy(side).long()[None] for side in example)
            logits = model(source, target[:, :-1])[0].double()
            losses += F.cross_entropy(logits, target[0, 1:], reduction="sum").item()
            tokens += len(target[0]) - 1
    for max_tokens in (150, 1000):
        found = validation_loss(model, CORPUS, max_tokens)
        assert found == pytest.approx(losses / tokens, rel=1e-6)
    assert model.training


# --- The settings ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"patience": 0},
        {"peak_lr": torch.nan},
        {"label_smoothing": 1.0},
        {"seed": -1},
    ],
)
def test_settings_that_no_run_can_have_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        TrainingConfig(**wrong)
