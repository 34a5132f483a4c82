"""The checker of readers' code: it names each mistake that it knows, says in words what else is
wrong, and blames nobody who is right.
"""

import inspect
import itertools
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer import checker
from annotated_transformer.attention import attention
from annotated_transformer.checker import EXERCISES, check
from annotated_transformer.decoding import length_penalty
from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Residual, layer_norm
from annotated_transformer.masks import causal_mask, padding_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate

# --- What is right: the book's own code, PyTorch's, and formulas by hand


@torch.no_grad()
def filled(module, *tensors):
    """The module with these parameters, in order."""
    for parameter, tensor in zip(module.parameters(), tensors, strict=True):
        parameter.copy_(tensor.mT if tensor.ndim == 2 else tensor)
    return module


def our_residual(x, sublayer, norm):
    residual = Residual(x.size(-1), dropout=0.0)
    residual.norm.forward = norm
    return residual(x, sublayer)


def torch_heads(query, key, value, w_q, w_k, w_v, w_o, heads):
    module = nn.MultiheadAttention(query.size(-1), heads, bias=False, batch_first=True)
    joined = torch.cat([w_q, w_k, w_v], dim=1)
    return filled(module, joined, w_o)(query, key, value)


def einsum_heads(query, key, value, w_q, w_k, w_v, w_o, heads):
    split = [matrix.unflatten(1, (heads, -1)) for matrix in (w_q, w_k, w_v)]
    q, k, v = [
        torch.einsum("btd,dhk->bhtk", x, w)
        for x, w in zip((query, key, value), split, strict=True)
    ]
    weights = (torch.einsum("bhtk,bhsk->bhts", q, k) / q.size(-1) ** 0.5).softmax(-1)
    return torch.einsum("bhts,bhsk,hkd->btd", weights, v, w_o.unflatten(0, (heads, -1)))


def einsum_attention(query, key, value, mask):
    scores = torch.einsum("btd,bsd->bts", query, key) * query.size(-1) ** -0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
    return torch.einsum("bts,bsv->btv", scores.softmax(-1), value)


def einsum_norm(x, gain, bias, eps):
    centered = x - torch.einsum("btd->bt", x)[..., None] / x.size(-1)
    variance = torch.einsum("btd,btd->bt", centered, centered)[..., None] / x.size(-1)
    return torch.einsum("d,btd->btd", gain, centered / (variance + eps).sqrt()) + bias


def positions_by_loops(length, d_model):
    table = torch.zeros(length, d_model)
    for position, column in itertools.product(range(length), range(d_model)):
        angle = position / 10_000 ** (column // 2 * 2 / d_model)
        table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def loss_by_hand(logits, labels, smoothing):
    target = F.one_hot(labels, logits.size(1)) * (1 - smoothing)
    target += smoothing / logits.size(1)
    losses = -(target * logits.log_softmax(-1)).sum(-1)
    return losses[labels != 0].mean()


def look_up(tokens, table):
    return F.one_hot(tokens, len(table)).float() @ table * math.sqrt(table.size(1))


RIGHT = [
    ("attention", attention),
    ("attention", F.scaled_dot_product_attention),
    ("attention", einsum_attention),
    ("padding_mask", padding_mask),
    ("causal_mask", causal_mask),
    (
        "multi_head_attention",
        lambda q, k, v, *matrices: filled(
            MultiHeadAttention(q.size(-1), matrices[-1]), *matrices[:-1]
        )(q, k, v),
    ),
    ("multi_head_attention", torch_heads),
    ("multi_head_attention", einsum_heads),
    ("feed_forward", lambda x, *w: filled(FeedForward(*w[0].shape), *w)(x)),
    ("embedding", lambda ids, table: filled(Embedding(*table.shape), table.T)(ids)),
    ("embedding", look_up),
    ("positions", sinusoid),
    ("positions", positions_by_loops),
    ("layer_norm", layer_norm),
    ("layer_norm", lambda x, g, b, e: filled(nn.LayerNorm(len(g), eps=e), g, b)(x)),
    ("layer_norm", einsum_norm),
    ("residual", our_residual),
    ("shift", lambda target: [target[:, :-1], target[:, 1:]]),
    ("learning_rate", learning_rate),
    (
        "smoothed_loss",
        lambda x, y, s: label_smoothed_loss(x, y, s) / (y != 0).sum(),
    ),
    ("smoothed_loss", loss_by_hand),
    ("length_penalty", length_penalty),
]


@pytest.mark.parametrize(("part", "code"), RIGHT)
def test_what_is_right_is_right(part, code):
    assert check(part, code), check(part, code)


def test_the_right_answers_owe_nothing_to_the_book():
    assert {part for part, _ in RIGHT} == set(EXERCISES)
    assert "annotated_transformer" not in inspect.getsource(checker)


DRESSES = [
    lambda output: (output, "its weights"),
    lambda output: output.numpy(),
    lambda output: output.double(),
    lambda output: output.tolist(),
    lambda output: nn.Parameter(output),
]


@pytest.mark.parametrize("dress", DRESSES)
def test_what_is_right_is_right_in_any_dress(dress):
    def dressed(*arguments):
        return dress(F.scaled_dot_product_attention(*arguments))

    assert check("attention", dressed)


@pytest.mark.parametrize("part", ["learning_rate", "smoothed_loss", "length_penalty"])
def test_a_number_may_come_as_a_tensor(part):
    right = EXERCISES[part].right
    assert check(part, lambda *row: torch.as_tensor(right(*row)).reshape(1, 1))


# --- What is wrong


@pytest.mark.parametrize("part", EXERCISES)
def test_each_mistake_is_named(part):
    for mistake, code in EXERCISES[part].mistakes.items():
        verdict = check(part, code)
        assert not verdict and mistake in verdict


@pytest.mark.parametrize("hidden_score", [-math.inf, -1e4, -1e9])
def test_an_inverted_mask_is_named_however_it_hides(hidden_score):
    """Also where `~mask` or `mask` alone fails on None, which is said besides."""

    def inverted(query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.size(-1))
        return scores.masked_fill(mask, hidden_score).softmax(-1) @ value

    verdict = check("attention", inverted)
    assert "inverted" in verdict and "TypeError" in verdict


SLIPS = [
    ("attention", lambda q, k, v, m: einsum_attention(q, k, v.flip(1), m)),
    ("padding_mask", lambda ids: (ids != ids[0, -1])[:, None, None]),
    ("causal_mask", lambda n: torch.ones(n, n).tril().triu(-4).bool()),
    ("multi_head_attention", lambda q, *rest: einsum_heads(q, *rest) + q),
    ("feed_forward", lambda x, w, b, v, c: F.leaky_relu(x @ w + b) @ v + c),
    ("embedding", lambda ids, table: table[ids] * 3),
    ("positions", lambda *sizes: positions_by_loops(*sizes).sin()),
    ("layer_norm", lambda x, g, b, e: g * F.rms_norm(x, g.shape, eps=e) + b),
    ("residual", lambda x, sublayer, norm: norm(x + sublayer(norm(x)))),
    ("shift", lambda ids: (ids[:, :-1].float(), ids[:, 1:].float())),
    ("learning_rate", lambda n, d, warmup: learning_rate(n, d, 4000)),
    ("smoothed_loss", lambda x, y, s: F.nll_loss((x.softmax(-1) + 1e-9).log(), y)),
    ("length_penalty", lambda n, alpha: ((5 + n) / 6) ** 0.6),
]


@pytest.mark.parametrize(("part", "code"), SLIPS)
def test_a_slip_that_it_does_not_know_is_described(part, code):
    verdict = check(part, code)
    assert not verdict and "You get these numbers" not in verdict
    assert any(name in verdict for name in EXERCISES[part].inputs)


FAULTS = [
    (lambda *row: None, "None"),
    (lambda *row: 1 / 0, "ZeroDivisionError"),
    (lambda *row: sys.exit("done"), "SystemExit"),
    (lambda *row: row[0][0], "shape"),
    (lambda *row: einsum_attention(*row) > 0, "torch.bool"),
    (lambda *row: einsum_attention(*row) * math.nan, "nan"),
    (lambda *row: {"output": row[0]}, "dict"),
    (lambda *row: itertools.count(), "count"),
    (lambda *row: (), "0 tensor"),
]


@pytest.mark.parametrize(("code", "word"), FAULTS)
def test_what_is_no_answer_is_said_in_words(code, word):
    verdict = check("attention", code)
    assert not verdict and word in verdict


def test_one_result_where_two_are_asked_for():
    assert "1 tensor" in check("shift", lambda target: target[:, 1:])
    assert "count" in check("shift", lambda target: itertools.count())


def test_an_unknown_part():
    with pytest.raises(ValueError, match="padding_mask"):
        check("atention", len)


# --- The inputs, and whom the checker harms


@pytest.mark.parametrize("part", EXERCISES)
def test_no_two_axes_of_an_input_have_the_same_size(part):
    assert len(EXERCISES[part].inputs) > 1
    for row in EXERCISES[part].inputs.values():
        for value in row:
            if isinstance(value, tuple) and value != (12, 12):
                assert len(set(value)) == len(value)


def test_code_that_changes_its_arguments_harms_nobody():
    def attend(query, key, value, mask):
        return einsum_attention(query, key, value.zero_(), mask)

    assert not check("attention", attend)
    assert check("attention", einsum_attention)


def test_the_default_device_and_the_random_state_of_the_reader_do_not_matter():
    before = torch.get_rng_state()
    with torch.device("meta"):
        assert all(check(part, table.right) for part, table in EXERCISES.items())
    assert torch.equal(torch.get_rng_state(), before)
