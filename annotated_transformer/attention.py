# Generated from notebooks/01_attention.py: change it there, then run "make execute" and "make export".
"""Attention.

This chapter builds scaled dot-product attention, the one operation that every layer of the
Transformer is made of (section 3.2.1 of the paper).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["attention", "boolean"]

# --- The code ---


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, equation 1 of the paper (section 3.2.1).

    Args:
        query: (..., T, K), what each position looks for.
        key: (..., S, K), what each position is found by.
        value: (..., S, V), what each position hands over; V may differ from K.
        mask: boolean, broadcastable to (..., T, S); True where a query may attend.
        dropout: applied to the weights that mix the values; the paper uses none here.

    Returns the output (..., T, V) and the weights (..., T, S) before dropout; rows sum to 1.
    Raises TypeError if the mask is not boolean.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~boolean(mask), -math.inf)
    weights = scores.softmax(dim=-1)
    return (weights if dropout is None else dropout(weights)) @ value, weights


def boolean(mask: Tensor) -> Tensor:
    """Return the mask if it is boolean; with integers, `~` would do something else.

    Raises:
        TypeError: any other type.
    """
    if mask.dtype != torch.bool:
        remedy = "give a boolean mask, True where a query may attend"
        raise TypeError(f"the attention mask has type {mask.dtype}: {remedy}")
    return mask
