"""The checker of readers' code: it knows each mistake, and what to say of one it does not know."""

import pytest
import torch
import torch.nn.functional as F

from annotated_transformer import check
from annotated_transformer.checker import EXERCISES, outcome

MISTAKES = [(part, name) for part, make in EXERCISES.items() for name in make().mistakes]


@pytest.mark.parametrize("part", EXERCISES)
def test_what_is_right_is_right(part):
    assert check(part, EXERCISES[part]().right) == f"{part}: right"


@pytest.mark.parametrize(("part", "mistake"), MISTAKES)
def test_each_mistake_is_found_as_itself(part, mistake):
    found = check(part, EXERCISES[part]().mistakes[mistake])
    assert found == f"{part}: wrong. It gives what comes out when {mistake}."


def test_single_precision_is_right():
    def attention(query, key, value, mask):
        query, key, value = query.float(), key.float(), value.float()
        return F.scaled_dot_product_attention(query, key, value, mask), "its weights"

    assert "raises" in check("attention", attention), "a string is no tensor"
    assert check("attention", lambda *a: attention(*a)[0]) == "attention: right"


def test_code_that_changes_its_arguments_harms_nobody():
    def attention(query, key, value, mask):
        return F.scaled_dot_product_attention(query.mul_(1), key, value.zero_(), mask)

    assert "none of the" in check("attention", attention)
    assert check("attention", F.scaled_dot_product_attention) == "attention: right"


def test_what_differs_is_said():
    assert "it raises ZeroDivisionError" in check("shift", lambda target: 1 / 0)
    assert "it returns 1 tensor, not 2" in check("shift", lambda target: target[:, 1:])
    assert "the shape is (4,), not (4, 4)" in check("causal_mask", lambda n: torch.ones(n))
    nan = check("feed_forward", lambda x, *rest: x * torch.nan)
    assert "24 of 24 numbers are NaN" in nan


def test_unknown_part():
    with pytest.raises(ValueError, match='no exercise "atention": take one of attention, '):
        check("atention", len)


def test_outcome_of_a_number():
    assert outcome(lambda: 2.5, ())[0] == 2.5
