"""The checker of readers' code: it knows each mistake, what to say of one it does not know, and
blames nobody who is right.
"""

import ast
import functools
import inspect
import itertools
import json
import math
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from annotated_transformer.toolkit import checker
from annotated_transformer.toolkit.checker import EXERCISES, check, outcome

MISTAKES = [
    (part, description)
    for part, make in EXERCISES.items()
    for description in make().mistakes
]

# --- Slips that are no known mistakes, and coincidences of sizes and values that once hid some

SLIPS = {part: {} for part in EXERCISES}


def slip(part, name=""):
    """Return a decorator that adds a function to the slips of a part."""

    def add(code):
        SLIPS[part][name or code.__name__] = code
        return code

    return add


def wrong_arguments(part, right):
    """Return a decorator that adds right code on changed arguments to the slips of a part.

    The function below it gets all arguments by name and returns those to replace.
    """
    names = list(inspect.signature(right).parameters)

    def add(change):
        @functools.wraps(change)
        def code(*arguments):
            named = dict(zip(names, arguments))
            return right(**(named | change(**named)))

        return slip(part)(code)

    return add


# Attention

slip_of_attention = wrong_arguments("attention", checker.attend)


def plain_scores(query, key):
    return query @ key.mT / math.sqrt(query.size(-1))


for number in (2, 3, 4, 8):
    name = f"the scores are divided by {number}"
    SLIPS["attention"][name] = partial(checker.attend, divisor=lambda d_k, n=number: n)

for score in (-1.0, -20.0, -100.0, -200.0, -1000.0, 1e9):
    name = f"a hidden score is {score}"
    SLIPS["attention"][name] = partial(checker.attend, hidden_score=score)


@slip_of_attention
def divided_by_the_batch_size(query, **others):
    return {"divisor": lambda d_k: len(query)}


@slip_of_attention
def divided_by_the_number_of_queries(query, **others):
    return {"divisor": lambda d_k: query.size(1)}


@slip_of_attention
def divided_by_one_more_than_the_queries(query, **others):
    return {"divisor": lambda d_k: query.size(1) + 1}


@slip_of_attention
def divided_by_the_number_of_keys(key, **others):
    return {"divisor": lambda d_k: key.size(1)}


@slip_of_attention
def divided_by_the_root_of_the_values_width(value, **others):
    return {"divisor": lambda d_k: math.sqrt(value.size(2))}


@slip_of_attention
def divided_by_the_root_of_the_number_of_queries(query, **others):
    return {"divisor": lambda d_k: math.sqrt(query.size(1))}


@slip_of_attention
def multiplied_by_the_root(**others):
    return {"divisor": lambda d_k: 1 / math.sqrt(d_k)}


@slip_of_attention
def values_in_reverse(value, **others):
    return {"value": value.flip(1)}


@slip_of_attention
def keys_of_the_mask_in_reverse(mask, **others):
    return {"mask": None if mask is None else mask.flip(1)}


@slip_of_attention
def queries_of_the_mask_in_reverse(mask, **others):
    return {"mask": None if mask is None else mask.flip(0)}


@slip_of_attention
def always_causal(query, key, **others):
    allowed = torch.ones(query.size(1), key.size(1), dtype=torch.bool)
    return {"mask": allowed.tril()}


@slip("attention")
def a_little_more_with_a_mask(query, key, value, mask):
    output = checker.attend(query, key, value, mask)
    return output if mask is None else output + 0.01


for score in (-1.0, -30.0, -100.0):  # too little for large scores

    @slip("attention", f"{score} is added")
    def added_score(query, key, value, mask, added=score):
        scores = plain_scores(query, key)
        if mask is not None:
            scores = scores + ~mask * added
        return scores.softmax(-1) @ value


@slip("attention")
def softmax_over_the_batch(query, key, value, mask):
    return plain_scores(query, key).softmax(0) @ value


@slip("attention")
def softmax_that_fails_where_numbers_are_large(query, key, value, mask):
    exponentials = plain_scores(query, key).exp()
    if mask is not None:
        exponentials = exponentials * mask
    return exponentials / exponentials.sum(-1, keepdim=True) @ value


@slip("attention")
def sigmoid_for_softmax(query, key, value, mask):
    return plain_scores(query, key).sigmoid() @ value


# Masks


@slip("padding_mask")
def the_smallest_id_is_padding(tokens):
    return (tokens != tokens.min())[:, None, None]


@slip("padding_mask")
def the_last_id_is_padding(tokens):
    return (tokens != tokens[0, -1])[:, None, None]


@slip("padding_mask")
def the_start_is_padding(tokens):
    return (tokens != 1)[:, None, None]


@slip("padding_mask")
def all_special_tokens_are_padding(tokens):
    return (tokens > 2)[:, None, None]


@slip("padding_mask")
def the_end_is_hidden_too(tokens):
    return ((tokens != 2) & (tokens != 0))[:, None, None]


@slip("padding_mask")
def padding_is_always_on_the_right(tokens):
    lengths = (tokens != 0).sum(1, keepdim=True)
    return (torch.arange(tokens.size(1)) < lengths)[:, None, None]


@slip("padding_mask")
def all_sentences_are_like_the_first(tokens):
    mask = (tokens != 0)[:1, None, None]
    return mask.expand(len(tokens), 1, 1, -1)


@slip("padding_mask")
def a_row_for_each_query(tokens):
    mask = (tokens != 0)[:, None, None]
    return mask.expand(-1, 1, tokens.size(1), -1)


for band in (2, 5, 8, 64, 256):

    @slip("causal_mask", f"only the last {band} words")
    def only_the_last_words(length, band=band):
        return torch.ones(length, length).tril().triu(1 - band).bool()


@slip("causal_mask")
def all_may_attend(length):
    return torch.ones(length, length).bool()


@slip("causal_mask")
def only_itself(length):
    return torch.eye(length).bool()


@slip("causal_mask")
def rows_in_reverse(length):
    return torch.ones(length, length).tril().flip(0).bool()


@slip("causal_mask")
def two_more_axes(length):
    return torch.ones(length, length).tril().bool()[None, None]


@slip("causal_mask")
def one_position_more(length):
    return torch.ones(length + 1, length + 1).tril().bool()


# Several heads

slip_of_heads = wrong_arguments("multi_head_attention", checker.all_heads)


@slip_of_heads
def w_q_and_w_k_are_exchanged(w_q, w_k, **others):
    return {"w_q": w_k, "w_k": w_q}


@slip_of_heads
def w_k_and_w_v_are_exchanged(w_k, w_v, **others):
    return {"w_k": w_v, "w_v": w_k}


@slip_of_heads
def w_v_and_w_o_are_exchanged(w_v, w_o, **others):
    return {"w_v": w_o, "w_o": w_v}


@slip_of_heads
def keys_are_values(key, **others):
    return {"value": key}


@slip_of_heads
def values_are_keys(value, **others):
    return {"key": value}


@slip_of_heads
def values_of_the_heads_in_reverse(value, **others):
    return {"value": value.flip(1)}


@slip_of_heads
def w_o_is_transposed(w_o, **others):
    return {"w_o": w_o.T}


@slip_of_heads
def w_q_is_transposed(w_q, **others):
    return {"w_q": w_q.T}


@slip_of_heads
def heads_are_joined_in_another_order(w_o, heads, **others):
    return {"w_o": w_o.roll(30 // heads, 0)}


@slip_of_heads
def always_two_heads(**others):
    return {"heads": 2}


@slip_of_heads
def scores_grow_with_the_heads(query, heads, **others):
    return {"query": query * math.sqrt(heads)}


@slip("multi_head_attention")
def the_query_is_added(query, *others):
    return checker.all_heads(query, *others) + query


# Feed-forward, embedding, positions


@slip("feed_forward")
def clipped_at_6(x, w_1, b_1, w_2, b_2):
    return F.relu6(x @ w_1 + b_1) @ w_2 + b_2


@slip("feed_forward")
def clipped_at_8(x, w_1, b_1, w_2, b_2):
    return (x @ w_1 + b_1).clamp(0, 8) @ w_2 + b_2


@slip("feed_forward")
def without_the_second_bias(x, w_1, b_1, w_2, b_2):
    return (x @ w_1 + b_1).relu() @ w_2


@slip("feed_forward")
def without_the_first_bias(x, w_1, b_1, w_2, b_2):
    return (x @ w_1).relu() @ w_2 + b_2


@slip("feed_forward")
def the_first_bias_after_the_relu(x, w_1, b_1, w_2, b_2):
    return ((x @ w_1).relu() + b_1) @ w_2 + b_2


@slip("feed_forward")
def gelu(x, w_1, b_1, w_2, b_2):
    return F.gelu(x @ w_1 + b_1) @ w_2 + b_2


@slip("feed_forward")
def leaky_relu(x, w_1, b_1, w_2, b_2):
    return F.leaky_relu(x @ w_1 + b_1) @ w_2 + b_2


@slip("feed_forward")
def absolute_values(x, w_1, b_1, w_2, b_2):
    return (x @ w_1 + b_1).abs() @ w_2 + b_2


@slip("feed_forward")
def the_relu_at_the_end(x, w_1, b_1, w_2, b_2):
    return ((x @ w_1 + b_1) @ w_2 + b_2).relu()


@slip("feed_forward")
def the_mean_of_the_batch(x, w_1, b_1, w_2, b_2):
    mean = (x @ w_1 + b_1).relu().mean(0, keepdim=True)
    return (mean @ w_2 + b_2).expand_as(x)


slip_of_embedding = slip("embedding")


@slip_of_embedding
def as_many_rows_as_the_largest_id(tokens, table):
    return F.one_hot(tokens).double() @ table * math.sqrt(table.size(1))


@slip_of_embedding
def times_the_length(tokens, table):
    return table[tokens] * tokens.size(1)


@slip_of_embedding
def times_the_batch_size(tokens, table):
    return table[tokens] * len(tokens)


@slip_of_embedding
def times_a_third_of_the_width(tokens, table):
    return table[tokens] * table.size(1) / 3


@slip_of_embedding
def times_3(tokens, table):
    return table[tokens] * 3


@slip_of_embedding
def times_the_root_of_the_number_of_tokens(tokens, table):
    return table[tokens] * math.sqrt(tokens.numel())


@slip_of_embedding
def padding_is_0(tokens, table):
    embedded = table[tokens] * math.sqrt(table.size(1))
    return embedded * (tokens != 0)[..., None]


@slip_of_embedding
def tokens_in_reverse(tokens, table):
    return table[tokens.flip(1)] * math.sqrt(table.size(1))


@slip_of_embedding
def the_root_is_added(tokens, table):
    return table[tokens] + math.sqrt(table.size(1))


def table_of_waves(positions, d_model, base=10_000):
    """The right table for positions 0, 1, 2, ..., but of any base."""
    exponent = torch.arange(0, d_model, 2) / d_model
    angle = positions[:, None].double() / base**exponent
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


slip_of_positions = wrong_arguments("positions", checker.waves)


for dtype in (torch.bfloat16, torch.uint8):

    @slip("positions", f"positions in {dtype}")
    def positions_in_a_short_type(length, d_model, dtype=dtype):
        return table_of_waves(torch.arange(length).to(dtype), d_model)


for base in (1_000, 9_000, 100_000):

    @slip("positions", f"base {base}")
    def another_base(length, d_model, base=base):
        return table_of_waves(torch.arange(length), d_model, base)


@slip_of_positions
def the_last_exponent_is_1(d_model, **others):
    widest = d_model / (d_model - 1)
    return {"exponent": lambda column: 2 * (column // 2) * widest}


@slip_of_positions
def exponents_start_at_1(**others):
    return {"exponent": lambda column: 2 * (column // 2) + 1}


@slip_of_positions
def exponents_start_at_2(**others):
    return {"exponent": lambda column: 2 * (column // 2) + 2}


@slip_of_positions
def the_first_position_is_minus_1(**others):
    return {"first": -1}


@slip("positions")
def columns_for_rows(length, d_model):
    return checker.waves(d_model, length).mT.contiguous()


@slip("positions")
def divided_by_the_length(length, d_model):
    return checker.waves(length, d_model) / length


@slip("positions")
def the_sine_of_the_table(length, d_model):
    return checker.waves(length, d_model).sin()


# Norm and residual

slip_of_norm = wrong_arguments("layer_norm", checker.normalize)


@slip_of_norm
def without_bias(bias, **others):
    return {"bias": torch.zeros_like(bias)}


@slip_of_norm
def without_gain(gain, **others):
    return {"gain": torch.ones_like(gain)}


@slip_of_norm
def the_gain_is_1_more(gain, **others):
    return {"gain": gain + 1}


@slip_of_norm
def pytorchs_usual_epsilon(**others):
    return {"eps": 1e-5}


@slip_of_norm
def without_epsilon(**others):
    return {"eps": 0.0}


@slip_of_norm
def epsilon_squared(eps, **others):
    return {"eps": eps**2}


@slip_of_norm
def gain_and_bias_are_exchanged(gain, bias, **others):
    return {"gain": bias, "bias": gain}


@slip("layer_norm")
def rms_norm(x, gain, bias, eps):
    return gain * F.rms_norm(x, gain.shape, eps=eps) + bias


@slip("layer_norm")
def the_gain_multiplies_the_bias(x, gain, bias, eps):
    return gain * (F.layer_norm(x, gain.shape, eps=eps) + bias)


slip_of_residual = slip("residual")


@slip_of_residual
def normed_twice(x, sublayer, norm):
    return norm(norm(x + sublayer(x)))


@slip_of_residual
def twice_the_sum(x, sublayer, norm):
    return norm(2 * (x + sublayer(x)))


@slip_of_residual
def the_sublayer_twice(x, sublayer, norm):
    return norm(x + sublayer(sublayer(x)))


@slip_of_residual
def norms_before_and_after(x, sublayer, norm):
    return norm(x + sublayer(norm(x)))


@slip_of_residual
def the_input_added_again(x, sublayer, norm):
    return x + norm(x + sublayer(x))


@slip_of_residual
def the_sum_begins_with_a_norm(x, sublayer, norm):
    return norm(norm(x) + sublayer(x))


@slip_of_residual
def only_the_input_is_normed(x, sublayer, norm):
    return norm(x) + sublayer(x)


@slip_of_residual
def without_the_sublayer(x, sublayer, norm):
    return norm(x + x)


@slip_of_residual
def subtracted(x, sublayer, norm):
    return norm(x - sublayer(x))


# Training and decoding

slip_of_shift = slip("shift")


@slip_of_shift
def as_floats(target):
    return target[:, :-1].float(), target[:, 1:].float()


@slip_of_shift
def sentences_are_shifted(target):
    return target[:-1], target[1:]


@slip_of_shift
def shifted_by_two(target):
    return target[:, :-2], target[:, 2:]


@slip_of_shift
def rolled(target):
    return target.roll(1, 1)[:, 1:], target.roll(1, 0)[:, 1:]


@slip_of_shift
def labels_of_other_sentences(target):
    return target[:, :-1], target[:, 1:].flip(0)


def rate(step, d_model, warmup):
    fall = step**-0.5
    rise = step * warmup**-1.5
    return d_model**-0.5 * min(fall, rise)


slip_of_rate = wrong_arguments("learning_rate", rate)


@slip("learning_rate")
def half_the_width_negative(step, d_model, warmup):
    return -0.5 * d_model * min(step**-0.5, step * warmup**-1.5)


@slip("learning_rate")
def the_power_of_the_warmup_is_minus_1(step, d_model, warmup):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1)


@slip("learning_rate")
def times_the_root_of_the_width(step, d_model, warmup):
    return d_model * rate(step, d_model, warmup)


@slip("learning_rate")
def it_never_falls(step, d_model, warmup):
    return d_model**-0.5 * step * warmup**-1.5


@slip_of_rate
def one_step_ahead(step, **others):
    return {"step": step + 1}


@slip_of_rate
def one_step_behind(step, **others):
    return {"step": max(step - 1, 1)}


@slip_of_rate
def always_the_same_warmup(**others):
    return {"warmup": 400}


@slip_of_rate
def always_the_same_width(**others):
    return {"d_model": 512}


slip_of_loss = wrong_arguments("smoothed_loss", checker.smoothed)


@slip("smoothed_loss")
def logarithm_of_a_softmax_that_may_be_0(logits, labels, smoothing):
    log_probabilities = (logits.softmax(-1) + 1e-9).log()
    of_labels = F.nll_loss(log_probabilities, labels, ignore_index=0)
    of_all = -log_probabilities.mean(-1)[labels > 0].mean()
    return (1 - smoothing) * of_labels + smoothing * of_all


@slip_of_loss
def the_first_four_labels(logits, labels, **others):
    return {"logits": logits[:4], "labels": labels[:4]}


@slip_of_loss
def the_last_label_is_missing(logits, labels, **others):
    return {"logits": logits[:-1], "labels": labels[:-1]}


@slip_of_loss
def always_the_papers_smoothing(**others):
    return {"smoothing": 0.1}


@slip_of_loss
def one_minus_the_smoothing(smoothing, **others):
    return {"smoothing": 1 - smoothing}


@slip_of_loss
def the_start_is_ignored_instead(**others):
    return {"padding": 1}


@slip_of_loss
def the_start_is_ignored_too(logits, labels, **others):
    real = (labels != 0) & (labels != 1)
    return {"logits": logits[real], "labels": labels[real]}


@slip_of_loss
def as_many_as_are_real_from_the_start(logits, labels, **others):
    real = torch.arange(len(labels)) < (labels != 0).sum()
    changed = {"logits": logits[real], "labels": labels[real]}
    return changed | {"padding": -100}


@slip_of_loss
def padding_is_no_word(logits, labels, **others):
    real = labels != 0
    changed = {"logits": logits[real, 1:], "labels": labels[real] - 1}
    return changed | {"padding": -100}


@slip("smoothed_loss")
def only_the_labels_share(logits, labels, smoothing):
    return (1 - smoothing) * F.cross_entropy(logits, labels, ignore_index=0)


@slip("smoothed_loss")
def probabilities_for_logits(logits, labels, smoothing):
    probabilities = logits.log_softmax(-1).exp()
    return F.cross_entropy(probabilities, labels, ignore_index=0)


slip_of_penalty = slip("length_penalty")


@slip_of_penalty
def divided_by_5(length, alpha):
    return ((5 + length) / 5) ** alpha


@slip_of_penalty
def the_length_and_6(length, alpha):
    return ((6 + length) / 6) ** alpha


@slip_of_penalty
def always_the_papers_alpha(length, alpha):
    return ((5 + length) / (5 + 1)) ** 0.6


@slip_of_penalty
def the_papers_alpha_below(length, alpha):
    return (5 + length) ** alpha / 6**0.6


@slip_of_penalty
def the_logarithm(length, alpha):
    return math.log((5 + length) / 6) * alpha


@slip_of_penalty
def without_alpha(length, alpha):
    return (5 + length) / 6


@pytest.mark.parametrize("part", EXERCISES)
def test_common_slips_are_not_praised(part):
    praised = [
        name
        for name, code in SLIPS[part].items()
        if check(part, code).endswith("right")
    ]
    assert SLIPS[part] and praised == []


# --- What the checker knows


@pytest.mark.parametrize("part", EXERCISES)
def test_what_is_right_is_right(part):
    assert check(part, EXERCISES[part]().right) == f"{part}: right"


@pytest.mark.parametrize(("part", "mistake"), MISTAKES)
def test_each_mistake_is_found_as_itself(part, mistake):
    verdict = check(part, EXERCISES[part]().mistakes[mistake])
    assert verdict == f"{part}: wrong. You get these numbers when {mistake}."


# --- The inputs


def tensors_of(part):
    """All tensors among the inputs of a part's exercise."""
    arguments = itertools.chain(*EXERCISES[part]().inputs.values())
    return [argument for argument in arguments if torch.is_tensor(argument)]


@pytest.mark.parametrize("part", EXERCISES)
def test_no_two_axes_of_a_tensor_have_the_same_size(part):
    assert len(EXERCISES[part]().inputs) > 1
    for tensor in tensors_of(part):
        square = part == "multi_head_attention" and tensor.shape == (30, 30)
        assert square or len(set(tensor.shape)) == tensor.dim()


@pytest.mark.parametrize(
    "part",
    [
        part for part in EXERCISES if part != "attention"
    ],  # its far query is made of another
)
def test_no_tensor_is_another_one_in_a_different_order(part):
    unique = {id(tensor): tensor for tensor in tensors_of(part)}
    numbers = [tensor for tensor in unique.values() if tensor.is_floating_point()]
    for first, second in itertools.combinations(numbers, 2):
        if first.numel() == second.numel():
            ordered = [tensor.flatten().sort().values for tensor in (first, second)]
            assert not torch.isclose(*ordered).all()


def numbers_like(size):
    """What code may take by accident where it has a size at hand."""
    return {size, size - 1, size + 1, size / 2, size / 3, math.sqrt(size)}


@pytest.mark.parametrize(
    ("part", "argument", "axis"),
    [("attention", 0, -1), ("embedding", 1, -1), ("multi_head_attention", 3, -1)],
)
def test_the_root_of_no_width_is_another_number_of_its_exercise(part, argument, axis):
    for arguments in EXERCISES[part]().inputs.values():
        width = arguments[argument].size(axis)
        if part == "multi_head_attention":
            width //= arguments[-1]  # of one head
        sizes = {number for number in arguments if isinstance(number, int)}
        for tensor in filter(torch.is_tensor, arguments):
            sizes |= set(tensor.shape)
        others = {width / 2, width / 3}
        for size in sizes - {width}:
            others |= numbers_like(size)
        assert all(abs(math.sqrt(width) - number) > 0.05 for number in others)


# --- What is right, in any dress


def right_attention(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, mask)


@pytest.mark.parametrize(
    "dress",
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
def test_what_is_right_is_right_in_any_dress(dress):
    def attention(*arguments):
        return dress(right_attention(*arguments))

    assert check("attention", attention) == "attention: right"


def single(argument):
    """A tensor of doubles in single precision; anything else as it is."""
    is_double = torch.is_tensor(argument) and argument.is_floating_point()
    return argument.float() if is_double else argument


@pytest.mark.parametrize(
    "part",
    ["attention", "multi_head_attention", "feed_forward", "layer_norm", "embedding"],
)
def test_single_precision_is_right(part):
    right = EXERCISES[part]().right

    def in_single_precision(*arguments):
        return right(*map(single, arguments))

    assert check(part, in_single_precision) == f"{part}: right"


def test_a_tensor_that_it_makes_itself_may_be_in_single_precision():
    def embed(tokens, table):
        return F.one_hot(tokens, len(table)).float() @ table * table.shape[1] ** 0.5

    assert check("embedding", embed) == "embedding: right"
    verdict = check("embedding", lambda tokens, table: embed(tokens, 2 * table))
    assert not verdict.passed


def hide(scores, mask, hidden_score):
    return scores if mask is None else scores.masked_fill(~mask, hidden_score)


@pytest.mark.parametrize(
    "score",
    [
        lambda q, k: q @ k.mT / math.sqrt(q.size(-1)),
        lambda q, k: q @ k.mT * q.size(-1) ** -0.5,
        lambda q, k: torch.einsum("btd,bsd->bts", q, k) / q.size(-1) ** 0.5,
    ],
)
def test_the_formula_of_the_paper_is_right_in_single_precision(score):
    def attention(query, key, value, mask):
        scores = hide(score(query.float(), key.float()), mask, -1e9)
        return scores.softmax(dim=-1) @ value.float()

    assert check("attention", attention) == "attention: right"


@pytest.mark.parametrize("axes", [(0, 1, 2), (-2, -1), -1])
def test_the_largest_score_belongs_to_a_row(axes):
    def attention(query, key, value, mask):
        scores = hide(plain_scores(query, key), mask, -1e9)
        exponentials = (scores - scores.amax(axes, keepdim=True)).exp()
        return exponentials / exponentials.sum(-1, keepdim=True) @ value

    verdict = check("attention", attention)
    assert verdict == "attention: right" if axes == -1 else "NaN" in verdict


SMALLEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("hidden_score", [-math.inf, -1e4, -1e9, -1e30, SMALLEST])
def test_an_inverted_mask_is_named_however_it_hides(hidden_score):
    def attention(query, key, value, mask):
        inverted = None if mask is None else ~mask
        scores = hide(plain_scores(query, key), inverted, hidden_score)
        return scores.softmax(dim=-1) @ value

    assert "the mask is inverted" in check("attention", attention)


def test_an_inverted_mask_is_named_of_pytorchs_attention():
    def attention(query, key, value, mask):
        return right_attention(query, key, value, None if mask is None else ~mask)

    assert "the mask is inverted" in check("attention", attention)


@pytest.mark.parametrize(
    "dress",
    [
        list,
        lambda pair: (*pair, None),
        lambda pair: [*pair, 3],
        lambda pair: [tensor.tolist() for tensor in pair],
        iter,
    ],
)
def test_a_pair_may_be_a_list_and_have_company(dress):
    def shift(target):
        return dress((target[:, :-1], target[:, 1:]))

    assert check("shift", shift) == "shift: right"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("part", ["learning_rate", "smoothed_loss", "length_penalty"])
def test_a_number_may_come_as_a_tensor_of_one_number(part, shape):
    right = EXERCISES[part]().right

    def as_a_tensor(*arguments):
        return torch.as_tensor(right(*arguments)).reshape(shape)

    assert check(part, as_a_tensor) == f"{part}: right"


# --- What it says of a mistake that it does not know


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (lambda *a: None, "it returns None, as if a `return` were missing"),
        (lambda *a: (None, a[0]), "it returns None, as if a `return` were missing"),
        (lambda *a: 1 / 0, "it raises ZeroDivisionError (division by zero)"),
        (lambda *a: sys.exit("done"), "it raises SystemExit (done)"),
        (lambda q, k, v: q, "it raises TypeError"),
        (lambda *a: "a string", "no tensor that can be compared"),
        (lambda *a: {"output": a[0]}, "no tensor that can be compared"),
        (lambda *a: (yield a[0]), "no tensor that can be compared"),
        (lambda *a: (), "it returns 0 tensor, not 1"),
    ],
)
def test_what_is_no_attention_is_said(code, said):
    check_unknown(code, said)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda output: output.to("meta"), "no tensor that can be compared"),
        (lambda output: output.to(torch.complex64), "the type is torch.complex64"),
        (lambda output: output > 0, "the type is torch.bool, not torch.float64"),
        (lambda output: output * torch.nan, "36 of 36 numbers are NaN"),
        (lambda output: output * torch.inf, "36 of 36 numbers differ"),
        (lambda output: output[0], "the shape is (3, 6), not (2, 3, 6)"),
    ],
)
def test_what_is_wrong_of_a_spoilt_attention_is_said(spoil, said):
    check_unknown(lambda *arguments: spoil(right_attention(*arguments)), said)


def check_unknown(code, said):
    verdict = check("attention", code)
    assert verdict.startswith("attention: wrong without a mask: ")
    assert said in verdict
    assert verdict.endswith(". None of the mistakes known here gives this.")


def test_the_input_on_which_it_is_wrong_is_named():
    def fails_with_a_mask(query, key, value, mask):
        return right_attention(query, key, value, None) if mask is None else 1 / 0

    verdict = check("attention", fails_with_a_mask)
    assert "wrong with a mask: it raises ZeroDivisionError" in verdict


def test_one_tensor_for_two():
    verdict = check("shift", lambda target: target[:, 1:])
    assert "it returns 1 tensor, not 2" in verdict


def test_a_row_for_a_matrix():
    verdict = check("causal_mask", torch.ones)
    assert "the shape is (6,), not (6, 6)" in verdict


def test_unknown_part():
    message = 'no exercise "atention": take one of attention, '
    with pytest.raises(ValueError, match=message):
        check("atention", len)


# --- It harms nobody


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
        verdicts = [check(part, make().right) for part, make in EXERCISES.items()]
    assert verdicts == [f"{part}: right" for part in EXERCISES]
    assert torch.equal(torch.get_rng_state(), before)


def test_outcome_of_a_number():
    assert outcome(lambda: 2.5, ())[0] == 2.5


def test_the_checker_needs_nothing_of_the_package():
    tree = ast.parse(inspect.getsource(checker))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.module.startswith("annotated_transformer")


def test_a_known_mistake_is_named_though_it_fails_on_another_input():
    """`~mask` fails without a mask; with one, its numbers tell what is wrong."""

    def inverted(query, key, value, mask):
        return checker.attend(query, key, value, ~mask)

    verdict = check("attention", inverted)
    assert verdict.startswith(
        "attention: wrong. You get these numbers when the mask is"
    )
    assert verdict.endswith(
        "Besides, without a mask: it raises TypeError "
        "(bad operand type for unary ~: 'NoneType')."
    )
    assert not verdict and list(verdict.failures) == ["without a mask"]


def test_code_that_fails_everywhere_is_no_known_mistake():
    verdict = check("attention", lambda query, key, value, mask: query @ value.no)
    assert "it raises AttributeError" in verdict and verdict.mistake is None
    assert len(verdict.failures) == 3


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_gelu_is_known(approximate):
    def gelu(x, w_1, b_1, w_2, b_2):
        return F.gelu(x @ w_1 + b_1, approximate=approximate) @ w_2 + b_2

    assert check("feed_forward", gelu).mistake.startswith("it is a GELU")


def test_a_softmax_of_numpy_without_an_axis_is_known():
    def mine(query, key, value, mask):
        scores = query.numpy() @ key.mT.numpy() / math.sqrt(query.size(-1))
        if mask is not None:
            scores[:, ~mask.numpy()] = -np.inf
        powers = np.exp(scores - scores.max())
        return powers / powers.sum() @ value.numpy()

    assert check("attention", mine).mistake.startswith("the softmax runs over all")


def test_wrong_numbers_are_shown():
    verdict = check("length_penalty", lambda length, alpha: 2.5)
    assert "1 of 1 numbers differ, the furthest: 2.5, not 1.73286" in verdict
    verdict = check("causal_mask", lambda length: torch.ones(length, length).bool())
    assert "15 of 36 numbers differ, the furthest at [0, 1]: 1, not 0" in verdict


def test_a_program_can_read_what_is_said():
    right = check("causal_mask", lambda length: torch.ones(length, length).tril() > 0)
    assert isinstance(right, str) and right == "causal_mask: right" and right
    wrong = check("causal_mask", lambda length: torch.ones(length, length).triu() > 0)
    assert json.loads(json.dumps(wrong.as_dict())) == {
        "part": "causal_mask",
        "passed": False,
        "mistake": "it is transposed: a query sees the future",
        "failures": {},
        "text": str(wrong),
    }
