"""The smoothed loss is PyTorch's, for any numbers and padding, with the gradient p - q."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from annotated_transformer.masks import PAD
from annotated_transformer.regularization import label_smoothed_loss


def drawn(seed: int, rows: int, vocabulary: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, vocabulary, generator=generator, dtype=dtype)


def reference(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(
        logits, labels, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


def slope(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=9),
    smoothing=st.floats(0, 0.99),
    factor=st.floats(-10, 10),
)
def test_loss_and_gradient_are_those_of_pytorch(
    seed: int, labels: list[int], smoothing: float, factor: float
) -> None:
    """With any share of padding, all of it included, and after any linear map."""
    target = torch.tensor(labels)
    ours, theirs = (drawn(seed, len(labels), 7).requires_grad_() for _ in range(2))
    loss, count = label_smoothed_loss(ours, target, smoothing)
    expected = reference(theirs, target, smoothing)
    torch.testing.assert_close(loss, expected)
    assert count == sum(label != PAD for label in labels)
    torch.testing.assert_close(slope(factor * loss, ours), slope(factor * expected, theirs))


def test_shapes_with_any_leading_axes_give_the_same() -> None:
    logits, labels = drawn(0, 12, 7), torch.arange(12) % 7
    flat, count = label_smoothed_loss(logits, labels)
    deep, again = label_smoothed_loss(logits.view(2, 3, 2, 7), labels.view(2, 3, 2))
    torch.testing.assert_close(flat, deep)
    assert count == again


def test_the_gradient_vanishes_where_the_model_says_what_it_should() -> None:
    labels = torch.tensor([3, 5])
    q = 0.9 * F.one_hot(labels, 7).double() + 0.1 / 7
    logits = q.log().requires_grad_()
    loss, _ = label_smoothed_loss(logits, labels, 0.1)
    torch.testing.assert_close(slope(loss, logits), torch.zeros(2, 7, dtype=torch.float64))


@pytest.mark.parametrize("noise", [1e6, math.inf, math.nan])
def test_what_stands_at_padding_changes_nothing(noise: float) -> None:
    labels = torch.tensor([3, PAD, 5])
    clean, dirty = (drawn(1, 3, 7) for _ in range(2))
    dirty[1] = noise
    results = []
    for logits in (clean.requires_grad_(), dirty.requires_grad_()):
        loss, _ = label_smoothed_loss(logits, labels)
        results.append((loss, slope(loss, logits)))
    torch.testing.assert_close(*results)
    assert not results[1][1][1].any()


def test_a_second_pass_back_is_refused_not_wrong() -> None:
    logits = drawn(0, 3, 7).requires_grad_()
    loss, _ = label_smoothed_loss(logits, torch.tensor([3, 4, 5]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_the_logits_themselves_are_left_alone() -> None:
    logits = drawn(0, 3, 7).requires_grad_()
    before = logits.detach().clone()
    label_smoothed_loss(logits, torch.tensor([3, 4, 5]))[0].backward()
    assert torch.equal(logits.detach(), before)


def test_half_precision_is_summed_in_its_own_type() -> None:
    """bfloat16 logits, as under autocast, give a gradient of their type that is close."""
    logits = drawn(0, 6, 50, torch.float32).bfloat16().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    labels = torch.tensor([4, 5, 6, PAD, 8, 9])
    slopes = [slope(label_smoothed_loss(z, labels)[0], z) for z in (logits, exact)]
    assert slopes[0].dtype == torch.bfloat16
    torch.testing.assert_close(slopes[0].double(), slopes[1], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2.0])
def test_smoothing_must_be_a_share(smoothing: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        label_smoothed_loss(torch.zeros(1, 4), torch.tensor([1]), smoothing)
