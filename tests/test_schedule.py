"""The learning rate is equation 3, whatever the numbers; its peak is where the chapter says."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.schedule import learning_rate

STEPS = st.integers(1, 10**7)
WIDTHS = st.integers(1, 10_000)
PEAKS = st.floats(1e-9, 1.0)


@given(STEPS, WIDTHS, STEPS)
def test_it_is_equation_3(step: int, d_model: int, warmup: int) -> None:
    expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert math.isclose(learning_rate(step, d_model, warmup), expected, rel_tol=1e-9)


@given(STEPS, WIDTHS, STEPS, PEAKS)
def test_a_peak_of_ones_own_scales_it(
    step: int, d_model: int, warmup: int, peak_lr: float
) -> None:
    rate = learning_rate(step, d_model, warmup, peak_lr)
    share = learning_rate(step, d_model, warmup) * math.sqrt(d_model * warmup)
    assert math.isclose(rate, peak_lr * share, rel_tol=1e-9)


@given(STEPS, WIDTHS, STEPS)
def test_no_step_is_above_the_peak(step: int, d_model: int, warmup: int) -> None:
    peak = learning_rate(warmup, d_model, warmup)
    assert math.isclose(peak, 1 / math.sqrt(d_model * warmup))
    assert learning_rate(step, d_model, warmup) <= peak * (1 + 1e-12)


@given(WIDTHS, st.integers(2, 10**5))
def test_it_climbs_in_a_line_and_falls_as_one_over_the_root(
    d_model: int, warmup: int
) -> None:
    peak = learning_rate(warmup, d_model, warmup)
    first = learning_rate(1, d_model, warmup)
    late = learning_rate(4 * warmup, d_model, warmup)
    assert math.isclose(first, peak / warmup)
    assert math.isclose(late, peak / 2)


def test_the_papers_base_model() -> None:
    assert learning_rate(4000, 512, 4000) == pytest.approx(0.000699, abs=5e-7)


def test_it_drives_an_optimizer_like_a_scheduler_of_pytorch() -> None:
    """LambdaLR counts from 0: one ahead of it is the step that we mean."""
    parameter = torch.zeros(1, requires_grad=True)
    adam = torch.optim.Adam([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda count: learning_rate(count + 1, 64, 10)
    )
    for step in range(1, 30):
        expected = learning_rate(step, 64, 10)
        assert adam.param_groups[0]["lr"] == pytest.approx(expected)
        adam.step()
        schedule.step()


@pytest.mark.parametrize(("step", "warmup"), [(0, 10), (-1, 10), (1, 0)])
def test_steps_count_from_one(step: int, warmup: int) -> None:
    """The formula has no value before the first step, and neither has the code."""
    with pytest.raises((ZeroDivisionError, ValueError)):
        learning_rate(step, 512, warmup)
