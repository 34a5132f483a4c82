"""Ways to compute a training step that the package leaves out; `step_speed` and `gpu` measure them.

Nothing of the package is replaced: each lever is a model that shares the weights of another, or a
loss of its own.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_upper_left

from annotated_transformer import SmoothedLoss, Transformer
from annotated_transformer.attention import attention
from annotated_transformer.masks import PAD, padding_mask, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.regularization import label_smoothed_loss

# --- Attention ---


class FusedAttention(MultiHeadAttention):
    """Attention with the weights of another module, by PyTorch's kernel, and with any mask."""

    def __init__(self, original: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.query = original.query
        self.key = original.key
        self.value = original.value
        self.output = original.output
        self.heads = original.heads

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D) to (B, T, D)."""
        queries = split_heads(self.query(query), self.heads)
        keys = split_heads(self.key(key), self.heads)
        values = split_heads(self.value(value), self.heads)
        return self.output(merge_heads(self.mix(queries, keys, values, mask)))

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Any) -> Tensor:
        """Attend with each head: (B, H, T, d_k) and (B, H, S, d_v) to (B, H, T, d_v)."""
        return F.scaled_dot_product_attention(queries, keys, values, mask)


class ReadableAttention(FusedAttention):
    """The attention of chapter 3, which makes all weights."""

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Any) -> Tensor:
        """Attend with each head: (B, H, T, d_k) and (B, H, S, d_v) to (B, H, T, d_v)."""
        output, _ = attention(queries, keys, values, mask)
        return output


class OneProduct(MultiHeadAttention):
    """Self-attention whose query, key and value come from one matrix product."""

    def __init__(self, original: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        parts = original.query.weight, original.key.weight, original.value.weight
        self.widths = [len(part) for part in parts]
        self.joint = nn.Parameter(torch.cat(parts).detach())
        self.output = original.output
        self.heads = original.heads

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None
    ) -> Tensor:
        """Map query, which is key and value, too, (B, T, D) to (B, T, D)."""
        parts = F.linear(query, self.joint).split(self.widths, dim=-1)
        heads = [split_heads(part, self.heads) for part in parts]
        return self.output(merge_heads(F.scaled_dot_product_attention(*heads, mask)))


def with_attention(
    model: Transformer, make: Callable[[MultiHeadAttention], nn.Module]
) -> Transformer:
    """Return a model with the same weights whose attention is what `make` makes of it."""
    weights = {id(weight): weight for weight in model.parameters()}
    variant = copy.deepcopy(model, weights)  # all but the weights is copied
    for layer in [*variant.encoder.layers, *variant.decoder.layers]:
        layer.self_attention = make(layer.self_attention)
        if hasattr(layer, "cross_attention"):
            layer.cross_attention = make(layer.cross_attention)
    return variant


def with_one_product(model: Transformer) -> Transformer:
    """Copy a model, with one product for query, key and value in each self-attention."""
    variant = copy.deepcopy(model)
    for layer in [*variant.encoder.layers, *variant.decoder.layers]:
        layer.self_attention = OneProduct(layer.self_attention)
    return variant


# --- Losses ---


class ReadableLoss(SmoothedLoss):
    """The loss with the attention of chapter 3."""

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__(with_attention(model, ReadableAttention), label_smoothing)


class CausalKernel(SmoothedLoss):
    """The loss with the decoder's attention by the causal kernel; it needs no mask there."""

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__(with_attention(model, FusedAttention), label_smoothing)

    def masks(self, source: Tensor, inputs: Tensor) -> tuple[Any, Any]:
        """Return the masks over source (B, S) and over the past of inputs (B, T)."""
        length = inputs.size(1)
        return padding_mask(source), causal_upper_left(length, length)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        model, inputs, labels = self.model, target[:, :-1], target[:, 1:]
        source_mask, past_mask = self.masks(source, inputs)
        memory = model.encoder(model.embed(source), source_mask)
        states = model.decoder(model.embed(inputs), memory, past_mask, source_mask)
        real = labels != PAD
        logits = model.embedding.logits(states[real])
        return label_smoothed_loss(logits, labels[real], self.label_smoothing)


class AddedMasks(CausalKernel):
    """The loss with masks that are added: 0 where a key may be seen, elsewhere minus infinity."""

    def masks(self, source: Tensor, inputs: Tensor) -> tuple[Any, Any]:
        """Return the masks over source (B, S) and over the past of inputs (B, T)."""
        return padding_mask(source).float().log(), target_mask(inputs).float().log()
