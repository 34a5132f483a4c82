"""The checker of readers' code: it names each mistake that it knows, says in words what else is
wrong, and blames nobody who is right.
"""

import inspect
import itertools
import json
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.checker import EXERCISES, check, check_file
from annotated_transformer.decoding import length_penalty
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Residual, layer_norm
from annotated_transformer.masks import padding_mask
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import Transformer
from tools.editions import CHECKER

# --- What is right: PyTorch's own code, and formulas by hand


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


# (The book's own parts are checked with the workbook that has them.)
RIGHT = [
    ("attention", F.scaled_dot_product_attention),
    ("attention", einsum_attention),
    ("multi_head_attention", torch_heads),
    ("multi_head_attention", einsum_heads),
    ("feed_forward", lambda x, w, b, v, c: F.relu(x @ w + b) @ v + c),
    ("embedding", look_up),
    ("positions", positions_by_loops),
    ("layer_norm", lambda x, g, b, e: filled(nn.LayerNorm(len(g), eps=e), g, b)(x)),
    ("layer_norm", nn.LayerNorm),
    ("residual", our_residual),
    ("shift", lambda target: [target[:, :-1], target[:, 1:]]),
    ("smoothed_loss", loss_by_hand),
    pytest.param("transformer", Transformer, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("part", "code"), RIGHT)
def test_what_is_right_is_right(part, code):
    assert check(part, code), check(part, code)


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


@pytest.mark.parametrize("hidden_score", [-math.inf, -1e9])
def test_an_inverted_mask_is_named_however_it_hides(hidden_score):
    """Also where `mask` alone fails on None, which is said besides."""

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
    (lambda *row: sys.exit("done"), "SystemExit"),
    (lambda *row: row[0][0], "shape"),
    (lambda *row: einsum_attention(*row) * math.nan, "nan"),
    (lambda *row: itertools.count(), "count"),
]


@pytest.mark.parametrize(("code", "word"), FAULTS)
def test_what_is_no_answer_is_said_in_words(code, word):
    verdict = check("attention", code)
    assert not verdict and word in verdict


def test_random_numbers_are_called_random():
    def dropped(*row):
        return F.dropout(F.scaled_dot_product_attention(*row), 0.5)

    for part, code in (("attention", dropped), ("positions", torch.rand)):
        verdict = check(part, code)
        assert not verdict and "random" in verdict and "You get" not in verdict


class WithoutRelu(FeedForward):
    def forward(self, x):
        return self.linear2(self.linear1(x))


def test_what_is_wrong_with_a_class():
    assert "the ReLU is missing" in check("feed_forward", WithoutRelu)
    assert "sqrt(d_model) is missing" in check("embedding", nn.Embedding)
    assert "2 parameters, not 4" in check("feed_forward", nn.Linear)


class WithoutCausalMask(Transformer):
    def decode(self, target, memory, source):
        masks = padding_mask(target), padding_mask(source)
        return self.decoder(self.embed(target), memory, *masks)


class OfOtherShape(WithoutCausalMask):
    """It can't have our weights, and doesn't copy: in training it has seen the answers."""

    def __init__(self, config):
        super().__init__(config)
        self.bias = nn.Parameter(torch.zeros(1))


@pytest.mark.slow
def test_a_model_is_compared_and_must_copy():
    verdict = check("transformer", WithoutCausalMask)
    assert not verdict and "with the weights of a model of ours" in verdict
    verdict = check("transformer", OfOtherShape)
    assert not verdict and "when it learns to copy: after 200 updates" in verdict


# --- A file of a student


def parts(*names):
    """The source of functions of the package, under their own names."""
    return "".join(f"{inspect.getsource(name)}\n" for name in names)


IMPORTS = """
import os, sys, torch
from torch import Tensor
import torch.nn.functional as F
from annotated_transformer.masks import causal_mask
from torch.nn import Embedding
Mask = Tensor | None
"""

MISTAKEN = """
print("The file may print.")
def attention(query, key, value, mask):
    while True:
        print("not yet")
def padding_mask(tokens): os._exit(0)
def causal_mask(length): sys.exit(0)
def feed_forward(x, w_1, b_1, w_2, b_2): return (x @ w_1 + b_1) @ w_2 + b_2
def positions(length, d_model): return torch.rand(length, d_model)
def layer_norm(x, gain, bias, eps): raise KeyError("a\\nb")
def shift(target): return input()
def length_penalty(length, alpha): return length**alpha
def smoothed_loss(logits, labels, smoothing): return 0
def learning_rate(step, d_model, warmup): pass
def train_simply(model, stream, steps, report): pass
"""


def test_a_file_with_ten_mistakes(tmp_path):
    file = tmp_path / "berta.py"
    file.write_text(IMPORTS + MISTAKEN)
    said = dict(check_file(file, seconds=20))
    assert [*said] == [*EXERCISES]
    expected = {
        "attention": "more than 20 seconds",
        "padding_mask": "ended",
        "causal_mask": "SystemExit",
        "feed_forward": "ReLU",
        "positions": "random",
        "layer_norm": "KeyError",
        "shift": "EOFError",
        "length_penalty": "power of alpha",
        "smoothed_loss": "numbers differ",
        "learning_rate": "None",
        "train_simply": "after 300 steps",
    }
    for part, text in said.items():
        if part in expected:
            assert text.startswith("wrong") and expected[part] in text
        else:
            assert text == "missing"


@pytest.mark.slow
def test_a_file_with_what_is_right(tmp_path):
    """As a notebook; and what a file imports is not its own."""
    own = parts(padding_mask, layer_norm, length_penalty, FeedForward)
    loop = """
from annotated_transformer.regularization import SmoothedLoss
from torch import nn
PAD = 0
def train_simply(model, stream, steps, report):
    loss = SmoothedLoss(model)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, batch in zip(range(1, steps + 1), stream):
        total = loss(*batch)
        tokens = (batch.target[:, 1:] != 0).sum()
        adam.zero_grad()
        (total / tokens).backward()
        adam.step()
        report(step, total.item(), tokens.item())
"""
    sources = [IMPORTS, loop + own]
    cells = [
        {"cell_type": "code", "source": text.splitlines(keepends=True)}
        for text in sources
    ]
    cells.append({"cell_type": "markdown", "source": ["no code"]})
    file = tmp_path / "anna.ipynb"
    file.write_text(json.dumps({"cells": cells}))
    said = dict(check_file(file, seconds=180))
    right = {"padding_mask", "layer_norm", "length_penalty", "feed_forward"}
    assert {part for part in said if said[part] == "right"} == right | {"train_simply"}
    assert {said[part] for part in EXERCISES if part not in right} == {
        "missing",
        "right",
    }


def test_of_a_workbook_counts_what_the_student_wrote(tmp_path):
    """Not what the book has put in the place of a wrong part, nor what else is in it."""
    book = "from annotated_transformer.layers import layer_norm as ours\n"
    own = "layer_norm = checked('layer_norm', lambda x, gain, bias, eps: x, ours)\n"
    file = tmp_path / "dora.py"
    own += "def shift(target):\n    raise NotImplementedError\n"
    own += "shift = checked('shift', shift, ours)\n"
    file.write_text(IMPORTS + CHECKER + book + own + parts(padding_mask))
    said = dict(check_file(file, seconds=20))
    assert said.pop("layer_norm").startswith("wrong")
    assert {*said.values()} == {"missing"}


def test_an_operation_that_pytorch_lacks_is_a_mistake_and_no_blank(tmp_path):
    """PyTorch raises NotImplementedError, too, for instance for a softmax of integers."""
    file = tmp_path / "fritz.py"
    file.write_text(
        "def attention(q, k, v, m):\n    return (q @ k.mT).long().softmax(-1)\n"
    )
    said = dict(check_file(file, seconds=20))["attention"]
    assert said.startswith("wrong") and "not implemented for" in said


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def shift(", "SyntaxError"),
        ("import os; os._exit(0)", "ended"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(tmp_path, text, word):
    file = tmp_path / "carl.py"
    file.write_text(text)
    ((part, said),) = check_file(file, seconds=20)
    assert part == "file" and said.startswith("wrong") and word in said


# --- The inputs, and whom the checker harms


def test_code_that_changes_its_arguments_harms_nobody():
    def attend(query, key, value, mask):
        return einsum_attention(query, key, value.zero_(), mask)

    assert not check("attention", attend)
    assert check("attention", einsum_attention)


def test_the_default_device_and_the_random_state_of_the_reader_do_not_matter():
    before = torch.get_rng_state()
    with torch.device("meta"):
        for part, table in EXERCISES.items():
            assert not table.mistakes or check(part, table.right)
    assert torch.equal(torch.get_rng_state(), before)
