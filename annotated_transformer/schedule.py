from math import sqrt


def learning_rate(step: int, d_model: int, warmup: int, lr_scale: float = 1.0) -> float:
    """Return the learning rate of a step, counted from 1 (equation 3, times lr_scale).

    Raises ValueError for a step or warm-up below 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step and warmup count from 1, not from {min(step, warmup)}")
    return lr_scale / sqrt(d_model) * min(1 / sqrt(step), step / (warmup * sqrt(warmup)))
