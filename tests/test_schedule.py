"""The learning rate is equation 3, whatever the numbers; its peak is where the chapter says."""

import math

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
