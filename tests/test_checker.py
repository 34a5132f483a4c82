"""The checker of readers' code: it knows each mistake, what to say of one it does not know, and
blames nobody who is right.
"""

import ast
import inspect
import itertools
import math
import sys

import pytest
import torch
import torch.nn.functional as F

from annotated_transformer import checker
from annotated_transformer.checker import EXERCISES, check, outcome

MISTAKES = [(part, name) for part, make in EXERCISES.items() for name in make().mistakes]
sdpa = F.scaled_dot_product_attention


def scaled(by):
    """Return attention whose scores are divided by a function of query, key and value."""
    return lambda q, k, v, m: sdpa(q, k, v, m, scale=1 / by(q, k, v))


def heads(wrong):
    """Return the right heads on arguments that another function has changed first."""
    return lambda *a: EXERCISES["multi_head_attention"]().right(*wrong(*a))


def padded_loss(logits, labels, smoothing, real):
    return F.cross_entropy(logits[real], labels[real], label_smoothing=smoothing)


def rate(step, d_model, warmup):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


# Slips that are no known mistakes, and coincidences of sizes and values that once hid some
def unshifted(scores, mask):
    """The softmax by its formula, which fails where numbers are large."""
    e = scores.exp() * (1 if mask is None else mask)
    return e / e.sum(-1, keepdim=True)


def rounded_waves(positions, d_model):
    """Sines and cosines of positions in a type too short for them."""
    angle = positions[:, None].double() / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


SLIPS = {
    "attention": [
        *(scaled(lambda q, k, v, n=n: n) for n in (2, 3, 4, 8)),
        scaled(lambda q, k, v: q.size(0)),  # the batch, the queries, the keys, the values' width
        scaled(lambda q, k, v: q.size(1)),
        scaled(lambda q, k, v: q.size(1) + 1),
        scaled(lambda q, k, v: k.size(1)),
        scaled(lambda q, k, v: v.size(2) ** 0.5),
        scaled(lambda q, k, v: q.size(1) ** 0.5),
        scaled(lambda q, k, v: q.size(-1) ** -0.5),
        lambda q, k, v, m: sdpa(q, k, v, m) + (0 if m is None else 0.01),
        lambda q, k, v, m: sdpa(q, k, v.flip(1), m),
        lambda q, k, v, m: sdpa(q, k, v, None if m is None else m.flip(1)),
        lambda q, k, v, m: sdpa(q, k, v, None if m is None else m.flip(0)),
        lambda q, k, v, m: sdpa(q, k, v, torch.ones(q.size(1), k.size(1)).tril().bool()),
        *(
            lambda q, k, v, m, hidden=hidden: (
                (q @ k.mT / q.size(-1) ** 0.5)
                .masked_fill(torch.tensor(False) if m is None else ~m, hidden)
                .softmax(-1)
                @ v
            )
            for hidden in (-1.0, -20.0, -100.0, -200.0, -1000.0, 1e9)
        ),
        *(
            lambda q, k, v, m, hidden=hidden: (
                (q @ k.mT / q.size(-1) ** 0.5 + (0 if m is None else ~m * hidden)).softmax(-1) @ v
            )
            for hidden in (-1.0, -30.0, -100.0)  # added, too little for large scores
        ),
        lambda q, k, v, m: (q @ k.mT / q.size(-1) ** 0.5).softmax(0) @ v,
        lambda q, k, v, m: unshifted(q @ k.mT / q.size(-1) ** 0.5, m) @ v,
        lambda q, k, v, m: (q @ k.mT / q.size(-1) ** 0.5).sigmoid() @ v,
    ],
    "padding_mask": [
        lambda t: (t != t.min())[:, None, None],
        lambda t: (t != t[0, -1])[:, None, None],
        lambda t: (t != 1)[:, None, None],
        lambda t: (t > 2)[:, None, None],
        lambda t: (t != 2)[:, None, None] & (t != 0)[:, None, None],
        lambda t: (torch.arange(t.size(1)) < (t != 0).sum(1, keepdim=True))[:, None, None],
        lambda t: (t != 0)[:1, None, None].expand(len(t), 1, 1, -1),
        lambda t: (t != 0)[:, None, None].expand(-1, 1, t.size(1), -1),
    ],
    "causal_mask": [
        *(
            lambda n, band=band: torch.ones(n, n).tril().triu(1 - band).bool()
            for band in (2, 5, 8, 64, 256)
        ),
        lambda n: torch.ones(n, n).bool(),
        lambda n: torch.eye(n).bool(),
        lambda n: torch.ones(n, n).tril().flip(0).bool(),
        lambda n: torch.ones(n, n).tril().bool()[None, None],
        lambda n: torch.ones(n + 1, n + 1).tril().bool(),
    ],
    "multi_head_attention": [
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, b, a, c, d, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, a, c, b, d, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, a, b, d, c, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, k, a, b, c, d, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, v, v, a, b, c, d, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v.flip(1), a, b, c, d, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, a, b, c, d.T, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, a.T, b, c, d, h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, a, b, c, d.roll(30 // h, 0), h)),
        heads(lambda q, k, v, a, b, c, d, h: (q, k, v, a, b, c, d, 2)),
        heads(lambda q, k, v, a, b, c, d, h: (q * h**0.5, k, v, a, b, c, d, h)),
        lambda *a: heads(lambda *b: b)(*a) + a[0],
    ],
    "feed_forward": [
        lambda x, w, b, v, c: F.relu6(x @ w + b) @ v + c,
        lambda x, w, b, v, c: (x @ w + b).clamp(0, 8) @ v + c,
        lambda x, w, b, v, c: (x @ w + b).relu() @ v,
        lambda x, w, b, v, c: (x @ w).relu() @ v + c,
        lambda x, w, b, v, c: (x @ w).relu() @ v + b @ v + c,
        lambda x, w, b, v, c: F.gelu(x @ w + b) @ v + c,
        lambda x, w, b, v, c: F.leaky_relu(x @ w + b) @ v + c,
        lambda x, w, b, v, c: (x @ w + b).abs() @ v + c,
        lambda x, w, b, v, c: ((x @ w + b) @ v + c).relu(),
        lambda x, w, b, v, c: (x @ w + b).relu().mean(0, True) @ v + c + 0 * x,
    ],
    "embedding": [
        lambda t, table: F.one_hot(t).double() @ table * table.size(1) ** 0.5,
        lambda t, table: table[t] * t.size(1),
        lambda t, table: table[t] * len(t),
        lambda t, table: table[t] * table.size(1) / 3,
        lambda t, table: table[t] * 3,
        lambda t, table: table[t] * t.numel() ** 0.5,
        lambda t, table: table[t] * table.size(1) ** 0.5 * (t != 0)[..., None],
        lambda t, table: table[t.flip(1)] * table.size(1) ** 0.5,
        lambda t, table: table[t] + table.size(1) ** 0.5,
    ],
    "positions": [
        lambda n, d: rounded_waves(torch.arange(n).bfloat16(), d),
        lambda n, d: rounded_waves(torch.arange(n).to(torch.uint8), d),
        *(lambda n, d, base=base: checker.waves(n, d, base) for base in (1_000, 9_000, 100_000)),
        lambda n, d: checker.waves(n, d, rate=lambda i: 2 * (i // 2) * d / (d - 1)),
        lambda n, d: checker.waves(n, d, rate=lambda i: 2 * (i // 2) + 1),
        lambda n, d: checker.waves(n, d, rate=lambda i: 2 * (i // 2) + 2),
        lambda n, d: checker.waves(n, d, first=-1),
        lambda n, d: checker.waves(d, n).mT.contiguous(),
        lambda n, d: checker.waves(n, d) / n,
        lambda n, d: checker.waves(n, d).sin(),
    ],
    "layer_norm": [
        lambda x, g, b, eps: F.layer_norm(x, g.shape, g, None, eps),
        lambda x, g, b, eps: F.layer_norm(x, g.shape, None, b, eps),
        lambda x, g, b, eps: F.layer_norm(x, g.shape, g + 1, b, eps),
        lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, 1e-5),
        lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, 0.0),
        lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, eps**2),
        lambda x, g, b, eps: F.layer_norm(x, g.shape, b, g, eps),
        lambda x, g, b, eps: g * F.rms_norm(x, g.shape, eps=eps) + b,
        lambda x, g, b, eps: g * (F.layer_norm(x, g.shape, eps=eps) + b),
    ],
    "residual": [
        lambda x, f, norm: norm(norm(x + f(x))),
        lambda x, f, norm: norm(2 * (x + f(x))),
        lambda x, f, norm: norm(x + f(f(x))),
        lambda x, f, norm: norm(x + f(norm(x))),
        lambda x, f, norm: x + norm(x + f(x)),
        lambda x, f, norm: norm(norm(x) + f(x)),
        lambda x, f, norm: norm(x) + f(x),
        lambda x, f, norm: norm(x + x),
        lambda x, f, norm: norm(x - f(x)),
    ],
    "shift": [
        lambda t: (t[:, :-1].float(), t[:, 1:].float()),
        lambda t: (t[:, 1:], t[:, :-1]),
        lambda t: (t[:, :-1], t[:, :-1]),
        lambda t: (t[:-1], t[1:]),
        lambda t: (t[:, :-2], t[:, 2:]),
        lambda t: (t.roll(1, 1)[:, 1:], t.roll(1, 0)[:, 1:]),
        lambda t: (t[:, :-1], t[:, 1:].flip(0)),
    ],
    "learning_rate": [
        lambda n, d, w: -0.5 * d * min(n**-0.5, n * w**-1.5),
        lambda n, d, w: d**-1 / 2 * min(n**-0.5, n * w**-1.5),
        lambda n, d, w: d**-0.5 * min(n**-0.5, n * w**-1),
        lambda n, d, w: d**0.5 * min(n**-0.5, n * w**-1.5),
        lambda n, d, w: rate(n + 1, d, w),
        lambda n, d, w: rate(max(n - 1, 1), d, w),
        lambda n, d, w: rate(n, d, 400),
        lambda n, d, w: rate(n, 512, w),
        lambda n, d, w: d**-0.5 * n * w**-1.5,
    ],
    "smoothed_loss": [
        lambda x, y, s: F.nll_loss((x.softmax(-1) + 1e-9).log(), y, ignore_index=0) * (1 - s)
        - s * (x.softmax(-1) + 1e-9).log().mean(-1)[y > 0].mean(),
        lambda x, y, s: F.cross_entropy(x[:4], y[:4], ignore_index=0, label_smoothing=s),
        lambda x, y, s: F.cross_entropy(x[:-1], y[:-1], ignore_index=0, label_smoothing=s),
        lambda x, y, s: F.cross_entropy(x, y, ignore_index=0, label_smoothing=0.1),
        lambda x, y, s: F.cross_entropy(x, y, ignore_index=0, label_smoothing=1 - s),
        lambda x, y, s: F.cross_entropy(x, y, ignore_index=1, label_smoothing=s),
        lambda x, y, s: padded_loss(x, y, s, (y != 0) & (y != 1)),
        lambda x, y, s: padded_loss(x, y, s, torch.arange(len(y)) < (y != 0).sum()),
        lambda x, y, s: padded_loss(x[:, 1:], y - 1, s, y != 0),
        lambda x, y, s: (1 - s) * F.cross_entropy(x, y, ignore_index=0),
        lambda x, y, s: F.cross_entropy(x.log_softmax(-1).exp(), y, ignore_index=0),
    ],
    "length_penalty": [
        lambda n, alpha: ((5 + n) / 5) ** alpha,
        lambda n, alpha: ((6 + n) / 6) ** alpha,
        lambda n, alpha: ((5 + n) / (5 + 1)) ** 0.6,
        lambda n, alpha: (5 + n) ** alpha / 6**0.6,
        lambda n, alpha: math.log((5 + n) / 6) * alpha,
        lambda n, alpha: (5 + n) / 6,
    ],
}  # fmt: skip


@pytest.mark.parametrize("part", EXERCISES)
def test_what_is_right_is_right(part):
    assert check(part, EXERCISES[part]().right) == f"{part}: right"


@pytest.mark.parametrize(("part", "mistake"), MISTAKES)
def test_each_mistake_is_found_as_itself(part, mistake):
    found = check(part, EXERCISES[part]().mistakes[mistake])
    assert found == f"{part}: wrong. You get these numbers when {mistake}."


@pytest.mark.parametrize("part", EXERCISES)
def test_common_slips_are_not_praised(part):
    praised = [
        inspect.getsource(code) for code in SLIPS[part] if check(part, code).endswith("right")
    ]
    assert praised == []


@pytest.mark.parametrize("part", EXERCISES)
def test_inputs_are_no_coincidence(part):
    """Axes of a tensor differ in size, and no tensor is another one in a different order."""
    inputs = EXERCISES[part]().inputs
    assert len(inputs) > 1
    everything = [a for arguments in inputs.values() for a in arguments if torch.is_tensor(a)]
    for tensor in everything:
        square = part == "multi_head_attention" and tensor.shape == (30, 30)
        assert square or len(set(tensor.shape)) == tensor.dim()
    numbers = {id(a): a for a in everything if a.is_floating_point()}.values()
    for one, other in itertools.combinations(numbers, 2):
        if part != "attention" and one.numel() == other.numel():  # there, far is made of q
            assert not torch.isclose(one.flatten().sort()[0], other.flatten().sort()[0]).all()


def test_the_root_of_no_width_is_another_number_of_its_exercise():
    widths = {"attention": (0, -1), "embedding": (1, -1), "multi_head_attention": (3, -1)}
    for part, (argument, axis) in widths.items():
        for arguments in EXERCISES[part]().inputs.values():
            width = arguments[argument].size(axis)
            width //= arguments[-1] if part == "multi_head_attention" else 1
            sizes = {n for a in arguments if torch.is_tensor(a) for n in a.shape}
            sizes |= {n for n in arguments if isinstance(n, int)}
            others = {x for n in sizes - {width} for x in (n, n - 1, n + 1, n / 2, n / 3, n**0.5)}
            assert all(abs(width**0.5 - x) > 0.05 for x in {*others, width / 2, width / 3})


def right_attention(query, key, value, mask):
    return sdpa(query, key, value, mask)


@pytest.mark.parametrize(
    "dressed",
    [
        lambda output: (output, None),
        lambda output: (output, "its weights"),
        lambda output: [output],
        lambda output: [output, None],
        lambda output: output.tolist(),
        lambda output: output.float(),
        lambda output: output.numpy(),
        lambda output: output.clone().requires_grad_(),
        lambda output: output.to_sparse(),
        lambda output: torch.nn.Parameter(output),
    ],
)
def test_what_is_right_is_right_in_any_dress(dressed):
    assert check("attention", lambda *a: dressed(right_attention(*a))) == "attention: right"


def test_single_precision_is_right():
    for part in ("attention", "multi_head_attention", "feed_forward", "layer_norm", "embedding"):
        right = EXERCISES[part]().right

        def single(*arguments, right=right):
            double = [torch.is_tensor(a) and a.is_floating_point() for a in arguments]
            return right(*(a.float() if d else a for a, d in zip(arguments, double)))

        assert check(part, single) == f"{part}: right"


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: q @ k.mT / math.sqrt(q.size(-1)),
        lambda q, k: q @ k.mT * q.size(-1) ** -0.5,
        lambda q, k: torch.einsum("btd,bsd->bts", q, k) / q.size(-1) ** 0.5,
    ],
)
def test_the_formula_of_the_paper_is_right_in_single_precision(scores):
    def attention(q, k, v, mask):
        found = scores(q.float(), k.float())
        found = found if mask is None else found.masked_fill(~mask, -1e9)
        return found.softmax(dim=-1) @ v.float()

    assert check("attention", attention) == "attention: right"


@pytest.mark.parametrize("axes", [None, (-2, -1), -1])
def test_the_largest_score_belongs_to_a_row(axes: tuple[int, int] | int | None):
    def attention(q, k, v, mask):
        scores = q @ k.mT / q.size(-1) ** 0.5
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        most = scores.max() if axes is None else scores.amax(axes, keepdim=True)
        share = (scores - most).exp()
        return share / share.sum(-1, keepdim=True) @ v

    said = check("attention", attention)
    assert said == "attention: right" if axes == -1 else "NaN" in said


@pytest.mark.parametrize("hidden", [-math.inf, -1e4, -1e9, -1e30, torch.finfo(torch.float32).min])
def test_an_inverted_mask_is_named_however_it_hides(hidden):
    def attention(q, k, v, mask):
        scores = q @ k.mT / q.size(-1) ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask, hidden)
        return scores.softmax(dim=-1) @ v

    def fused(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, None if mask is None else ~mask)

    for wrong in (attention, fused):
        assert "the mask is inverted" in check("attention", wrong)


@pytest.mark.parametrize("dressed", [list, lambda pair: (*pair, None), lambda pair: [*pair, 3]])
def test_a_pair_may_be_a_list_and_have_company(dressed):
    assert check("shift", lambda t: dressed((t[:, :-1], t[:, 1:]))) == "shift: right"
    assert check("shift", lambda t: [t[:, :-1].tolist(), t[:, 1:].tolist()]) == "shift: right"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("part", ["learning_rate", "smoothed_loss", "length_penalty"])
def test_a_number_may_come_as_a_tensor_of_one_number(part, shape):
    right = EXERCISES[part]().right
    assert check(part, lambda *a: torch.as_tensor(right(*a)).reshape(shape)) == f"{part}: right"


@pytest.mark.parametrize(
    "code, says",
    [
        (lambda *a: None, "it returns None, as if a `return` were missing"),
        (lambda *a: (None, a[0]), "it returns None, as if a `return` were missing"),
        (lambda *a: 1 / 0, "it raises ZeroDivisionError (division by zero)"),
        (lambda *a: sys.exit("done"), "it raises SystemExit (done)"),
        (lambda *a: right_attention(*a).to("meta"), "no tensor that can be compared"),
        (lambda *a: "a string", "no tensor that can be compared"),
        (lambda *a: {"output": a[0]}, "no tensor that can be compared"),
        (lambda *a: (yield a[0]), "no tensor that can be compared"),
        (lambda *a: (), "it returns 0 tensor, not 1"),
        (lambda *a: right_attention(*a).to(torch.complex64), "the type is torch.complex64"),
        (lambda *a: right_attention(*a) > 0, "the type is torch.bool, not torch.float64"),
        (lambda *a: right_attention(*a) * torch.nan, "36 of 36 numbers are NaN"),
        (lambda *a: right_attention(*a) * torch.inf, "36 of 36 numbers differ"),
        (lambda *a: right_attention(*a)[0], "the shape is (3, 6), not (2, 3, 6)"),
        (lambda q, k, v: q, "it raises TypeError"),
    ],
)
def test_what_is_wrong_is_said(code, says):
    found = check("attention", code)
    assert found.startswith("attention: wrong without a mask: ")
    assert says in found
    assert found.endswith(". None of the mistakes known here gives this.")


def test_the_input_on_which_it_is_wrong_is_named():
    def fails_with_a_mask(q, k, v, mask):
        return right_attention(q, k, v, None) if mask is None else 1 / 0

    assert "wrong with a mask: it raises ZeroDivisionError" in check("attention", fails_with_a_mask)
    assert "it returns 1 tensor, not 2" in check("shift", lambda target: target[:, 1:])
    assert "the shape is (6,), not (6, 6)" in check("causal_mask", lambda n: torch.ones(n))


def test_an_interrupt_goes_through():
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("attention", interrupted)


def test_code_that_changes_its_arguments_harms_nobody():
    def attention(query, key, value, mask):
        return right_attention(query.mul_(1), key, value.zero_(), mask)

    assert "None of the" in check("attention", attention)
    assert check("attention", right_attention) == "attention: right"


def test_the_default_device_and_the_random_state_of_the_reader_do_not_matter():
    before = torch.get_rng_state()
    with torch.device("meta"):
        found = [check(part, make().right) for part, make in EXERCISES.items()]
    assert found == [f"{part}: right" for part in EXERCISES]
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_part():
    with pytest.raises(ValueError, match='no exercise "atention": take one of attention, '):
        check("atention", len)


def test_outcome_of_a_number():
    assert outcome(lambda: 2.5, ())[0] == 2.5


def test_the_checker_needs_nothing_of_the_package():
    tree = ast.parse(inspect.getsource(checker))
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert not any(name.startswith("annotated_transformer") for name in names)
