"""The smoothed loss is what the chapter derives: two parts, slope p - q, nothing at padding."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from annotated_transformer.batching import Batch, collate, encode_pairs
from annotated_transformer.distributed import collate_share
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(60, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
EXAMPLES = [*encode_pairs(TOKENIZER, PAIRS)]


def random_logits(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def small_model() -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(len(TOKENIZER), 1, 16, 32, 2, dropout=0.0)
    return Transformer(config).double()


# --- The loss of logits ---


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=9),
    smoothing=st.floats(0, 0.99),
    scale=st.floats(-10, 10),
)
def test_loss_and_gradient_are_those_of_the_chapter(
    seed: int, labels: list[int], smoothing: float, scale: float
) -> None:
    """The cross-entropy with q, and p - q; with any share of padding, all of it included."""
    target = torch.tensor(labels)
    real = target != PAD
    logits = random_logits(seed, len(labels), 7).requires_grad_()
    log_p = logits.detach().log_softmax(dim=-1)
    q = (1 - smoothing) * F.one_hot(target, 7).double() + smoothing / 7

    loss = label_smoothed_loss(logits, target, smoothing)
    expected = -(q * log_p).sum(dim=-1)[real].sum()
    torch.testing.assert_close(loss.detach(), expected)

    (gradient,) = torch.autograd.grad(scale * loss, logits)
    slope = (log_p.exp() - q) * real[:, None]
    torch.testing.assert_close(gradient, scale * slope)


def test_any_leading_axes_give_the_same() -> None:
    logits = random_logits(0, 12, 7)
    labels = torch.arange(12) % 7
    deep = label_smoothed_loss(logits.view(2, 3, 2, 7), labels.view(2, 3, 2))
    torch.testing.assert_close(label_smoothed_loss(logits, labels), deep)


@pytest.mark.parametrize("noise", [1e6, math.inf, math.nan])
def test_what_stands_at_padding_changes_nothing(noise: float) -> None:
    labels = torch.tensor([3, PAD, 5])
    logits = random_logits(1, 3, 7)
    noisy = logits.clone()
    noisy[1] = noise
    loss = label_smoothed_loss(logits, labels)
    assert label_smoothed_loss(noisy, labels) == loss


@pytest.mark.parametrize(
    ("dtype", "large"), [(torch.float32, 3e38), (torch.float16, 6e4)]
)
def test_without_smoothing_a_word_that_is_impossible_costs_nothing(
    dtype: torch.dtype, large: float
) -> None:
    """Its log-probability is minus infinity, and zero times that must not be formed."""
    logits = torch.tensor([[large, -large, 0.0, 0.0]], dtype=dtype)
    assert label_smoothed_loss(logits.roll(1), torch.tensor([1]), 0.0) == 0


def test_half_precision_is_close() -> None:
    """bfloat16 logits, as under autocast, give a gradient of their type."""
    labels = torch.tensor([4, 5, 6, PAD, 8, 9])
    logits = random_logits(0, 6, 50).bfloat16().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    label_smoothed_loss(logits, labels).backward()
    label_smoothed_loss(exact, labels).backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=0.02, rtol=0.02)


# --- The loss of a batch ---


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, len(EXAMPLES) - 1), min_size=1, max_size=7))
def test_the_loss_of_a_batch_is_the_sum_of_its_sentences(numbers: list[int]) -> None:
    """Whatever the padding; and it is the loss of the model's logits."""
    model = small_model()
    loss = SmoothedLoss(model)
    examples = [EXAMPLES[number] for number in numbers]
    batch = collate(examples)
    value = loss(*batch)

    alone = [loss(*collate([example])) for example in examples]
    torch.testing.assert_close(value, torch.stack(alone).sum())

    logits = model(batch.source, batch.target[:, :-1])
    expected = label_smoothed_loss(logits, batch.target[:, 1:])
    torch.testing.assert_close(value, expected)


def test_a_batch_of_nothing_adds_no_loss_and_a_gradient_of_zero() -> None:
    """Each parameter gets one, as processes that share a batch must exchange all of them."""
    loss = SmoothedLoss(small_model())
    value = loss(*collate_share([]))
    value.backward()
    assert value == 0
    for parameter in loss.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_the_model_does_not_see_the_answer() -> None:
    """Changing target word t changes the loss of no word before it."""
    loss = SmoothedLoss(small_model())
    source = torch.tensor([[5, 6, 2]])
    target = torch.tensor([[1, 7, 8, 9, 2]])
    for t in range(1, 5):
        changed = target.clone()
        changed[0, t] = 11
        assert loss(*Batch(source, target)) != loss(*Batch(source, changed))
        for length in range(2, t + 1):
            before = loss(source, target[:, :length])
            assert loss(source, changed[:, :length]) == before
