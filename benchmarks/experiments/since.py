"""What did the years since 2017 change, and what does it buy in a short training?

    python -m benchmarks.experiments.since --seeds 0 1 2

One change at a time, with the training of `departures`: the same small model, captions, updates and
batches, and about as many parameters in each row; several seeds, compared seed by seed with the
first row, which is the paper's form. Chapter 25 shows the parts and draws `results/since.jsonl`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer import Transformer, TransformerConfig
from annotated_transformer.attention import Mask
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import LayerNorm
from annotated_transformer.masks import PAD, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.transformer import initialize, make_encoder
from benchmarks import common
from benchmarks.experiments.departures import PLAIN, TRAINING, Change, make_all

# --- The parts, as chapter 25 shows them ---


class RMSNorm(nn.Module):
    """Divide each vector by its root mean square: no mean, no bias."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each vector of x (..., D)."""
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)


def rotate(x: Tensor) -> Tensor:
    """Turn each pair of x (..., T, d_k) by its clock's angle at its position (chapter 8)."""
    table = sinusoid(x.size(-2), x.size(-1)).to(x)
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class RotaryAttention(MultiHeadAttention):
    """Self-attention whose queries and keys are turned by their positions."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D) to (B, T, D)."""
        query = rotate(split_heads(self.query(query), self.heads))
        key = rotate(split_heads(self.key(key), self.heads))
        value = split_heads(self.value(value), self.heads)
        heads = F.scaled_dot_product_attention(query, key, value, mask)
        return self.output(merge_heads(heads))


class SwiGLU(nn.Module):
    """Two patterns a unit, of which one gates the other; two thirds of the width."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, 2 * d_ff // 3)
        self.linear1 = nn.Linear(d_model, 2 * d_ff // 3)
        self.linear2 = nn.Linear(2 * d_ff // 3, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D), each position by itself."""
        return self.linear2(F.silu(self.gate(x)) * self.linear1(x))


class GroupedAttention(MultiHeadAttention):
    """Several heads of queries share one head of keys and values."""

    def __init__(self, d_model: int, heads: int, groups: int) -> None:
        super().__init__(d_model, heads)
        self.groups = groups
        width = groups * (d_model // heads)
        self.key = nn.Linear(d_model, width, bias=False)
        self.value = nn.Linear(d_model, width, bias=False)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D) to (B, T, D)."""
        query = split_heads(self.query(query), self.heads)
        key = split_heads(self.key(key), self.groups)
        value = split_heads(self.value(value), self.groups)
        share = self.heads // self.groups  # heads that ask the same keys
        key = key.repeat_interleave(share, dim=1)
        value = value.repeat_interleave(share, dim=1)
        heads = F.scaled_dot_product_attention(query, key, value, mask)
        return self.output(merge_heads(heads))


class DecoderOnly(Transformer):
    """One stack reads source and target as one text, `source </s> <s> target`."""

    def __init__(
        self, config: TransformerConfig, layers: int, whole: bool = False
    ) -> None:
        super().__init__(config)
        self.whole = whole  # within the source, every word sees every other
        self.encoder: Any = nn.Identity()
        # A stack of encoder layers: they have no cross-attention
        self.decoder: Any = make_encoder(replace(config, layers=layers))
        initialize(self)

    def encode(self, source: Tensor) -> Tensor:
        """Leave the reading to decode."""
        return source

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Read both as one text; return the states of the target (B, T, D)."""
        text = torch.cat([source, target], dim=1)
        padding_last = (text == PAD).int().argsort(dim=1, stable=True)
        text = text.gather(1, padding_last)
        length = (source != PAD).sum(dim=1, keepdim=True)
        mask = target_mask(text)
        if self.whole:
            early = torch.arange(text.size(1), device=text.device) < length
            mask = mask | (early[:, None, :, None] & early[:, None, None, :])
        states = self.decoder(self.embed(text), mask)
        positions = length + torch.arange(target.size(1), device=text.device)
        return states.gather(1, positions[..., None].expand(-1, -1, states.size(2)))


# --- Changes to a model of 2017 ---


def swap(model: nn.Module, old: type, make: Callable[[Any], nn.Module]) -> None:
    """Put make(part) where the model has a part of the old kind."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is old:
                setattr(parent, name, make(part))


def rms_norm(model: Transformer) -> None:
    """Replace every layer normalization."""
    swap(model, LayerNorm, lambda part: RMSNorm(len(part.gain)))


def no_positions(model: Any) -> None:
    """Leave the order to the causal mask."""
    model.positions = NoPositions()


def rotary(model: Transformer) -> None:
    """Turn queries and keys in self-attention, and add no positions to the words."""
    no_positions(model)
    d_model, heads = model.config.d_model, model.config.heads
    for layer in [*model.encoder.modules(), *model.decoder.modules()]:
        if hasattr(layer, "self_attention"):
            layer.self_attention = RotaryAttention(d_model, heads)


class NoPositions(nn.Module):
    """Pass the words on as they are."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Return x (B, T, D)."""
        return x


def gated(model: Transformer) -> None:
    """Replace every feed-forward network."""
    d_model = model.config.d_model
    swap(model, FeedForward, lambda part: SwiGLU(d_model, part.linear1.out_features))


def grouped(groups: int) -> Callable[[Transformer], None]:
    """Let heads share keys and values; the networks get what that saves."""

    def change(model: Transformer) -> None:
        c = model.config
        swap(
            model,
            MultiHeadAttention,
            lambda part: GroupedAttention(c.d_model, c.heads, groups),
        )
        saved = c.d_model * (c.heads - groups) // c.heads  # units, for each attention
        for layer in model.encoder.layers:
            layer.feed_forward = FeedForward(c.d_model, c.d_ff + saved)
        for layer in model.decoder.layers:
            layer.feed_forward = FeedForward(c.d_model, c.d_ff + 2 * saved)

    return change


def no_biases(model: Transformer) -> None:
    """Take the biases out of the networks and the norms; attention has none."""
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            module.register_parameter("bias", None)


def rebuilt(*changes: Callable[[Transformer], None]) -> Callable[[Transformer], None]:
    """Return what makes all these changes and starts the weights anew."""

    def change(model: Transformer) -> None:
        for part in changes:
            part(model)
        initialize(model)

    return change


PRE_NORM = {"pre_norm": True}
ALL_FIVE = rebuilt(rms_norm, rotary, gated, no_biases)  # pre-norm is a setting
# One stack of 4 layers with networks of 320 has as many weights as 2 and 2 layers with 256
ONE_STACK = {"d_ff": 320}
DECODER_ONLY = partial(DecoderOnly, layers=4)
CHANGES = {
    PLAIN: Change(),
    "pre-norm": Change(PRE_NORM),
    "RMSNorm": Change(start=rebuilt(rms_norm)),
    "no positions": Change(start=rebuilt(no_positions)),
    "rotary positions": Change(start=rebuilt(rotary)),
    "SwiGLU": Change(start=rebuilt(gated)),
    "two heads of keys": Change(start=rebuilt(grouped(2))),
    "one head of keys": Change(start=rebuilt(grouped(1))),
    "no biases": Change(start=rebuilt(no_biases)),
    "all five": Change(PRE_NORM, start=ALL_FIVE),
    "decoder-only": Change(ONE_STACK, kind=DECODER_ONLY),
    "decoder-only, source whole": Change(
        ONE_STACK, kind=partial(DECODER_ONLY, whole=True)
    ),
    "decoder-only, all five": Change(
        ONE_STACK | PRE_NORM, kind=DECODER_ONLY, start=ALL_FIVE
    ),
}


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = TRAINING.steps,
    results: Path = common.RESULTS,
) -> None:
    """Measure what the changes since 2017 do to a short training."""
    make_all("since", CHANGES, seeds, steps, results)


if __name__ == "__main__":
    common.command(main)
