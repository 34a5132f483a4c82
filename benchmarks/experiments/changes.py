"""What does a change buy in a short training: one of this book's options, one of the years since?

    python -m benchmarks.experiments.changes --seeds 0 1 2

Trains a small model on Multi30k for each row, with one thing changed and everything else alike, and
takes the loss on the validation captions. Two runs of one seed share their batches, so rows are
compared seed by seed with the first one, which is the paper's form. The log is
`results/changes.jsonl`, which chapter 25 draws and the page on departures quotes.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer import TrainingConfig, Transformer, TransformerConfig, train
from annotated_transformer.attention import Mask
from annotated_transformer.batching import encode_pairs
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import LayerNorm
from annotated_transformer.masks import PAD, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.own_data import multi30k
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.training import validation_loss
from annotated_transformer.transformer import initialize, make_encoder, parameter_count
from benchmarks import common

# --- What is trained ---

SHAPE: dict[str, Any] = {
    "layers": 2,
    "d_model": 64,
    "d_ff": 256,
    "heads": 4,
    "dropout": 0.1,
}
VOCABULARY = 2000
TRAINING = TrainingConfig(steps=600, max_tokens=1024, warmup=200, peak_lr=None)
PLAIN = "the paper's form"


@dataclass(frozen=True)
class Change:
    """What is changed: in the model's shape and its kind, in the training, in a model just made."""

    shape: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    kind: Callable[[TransformerConfig], Transformer] = Transformer
    start: Callable[[Transformer], None] = lambda model: None


def glorot(model: Transformer) -> None:
    """Start the shared table as a linear map is started."""
    nn.init.xavier_uniform_(model.embedding.weight)


# --- What came since 2017, in this book's model ---


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
OPTIONS = {  # of this book
    PLAIN: Change(),
    "pre-norm": Change(PRE_NORM),
    "attention_dropout 0.1": Change({"attention_dropout": 0.1}),
    "relu_dropout 0.1": Change({"relu_dropout": 0.1}),
    "attention_bias": Change({"attention_bias": True}),
    "learned positions": Change({"positions": "learned"}),
    "no dropout": Change({"dropout": 0.0}),
    "table by Glorot's rule": Change(start=glorot),
    "grad_clip 1.0": Change(training={"grad_clip": 1.0}),
    "rate and warm-up doubled": Change(training={"peak_lr": 0.0125, "warmup": 400}),
}
SINCE = {
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
CHANGES = OPTIONS | SINCE


# --- Training each ---


def make(change: Change, vocabulary_size: int) -> Transformer:
    """Make the model of a row."""
    config = TransformerConfig(vocabulary_size, **(SHAPE | change.shape))
    model = change.kind(config)
    change.start(model)
    return model


def measure(change: str, seed: int, steps: int) -> common.Record:
    """Train a model with one change from one seed, and take its loss on the validation pairs."""
    torch.set_num_threads(1)
    tokenizer, examples = common.captions(VOCABULARY)
    held_out = encode_pairs(tokenizer, multi30k("val"))
    torch.manual_seed(seed)
    model = make(CHANGES[change], len(tokenizer))
    own = CHANGES[change].training
    train(model, tokenizer, examples, replace(TRAINING, steps=steps, seed=seed, **own))
    loss = validation_loss(model, held_out, TRAINING.max_tokens)
    return {"validation_loss": round(loss, 4), "parameters": parameter_count(model)}


def differences(runs: Sequence[common.Record]) -> str:
    """Lay out the loss of each change, and its mean difference from the paper's form's.

    Compares seed by seed; from three seeds with the 95% interval of chapter 22.
    """
    losses: dict[str, dict[int, float]] = {}
    for run in runs:
        losses.setdefault(run["change"], {})[run["seed"]] = run["validation_loss"]
    rows = []
    for change, by_seed in losses.items():
        gains = [by_seed[seed] - losses[PLAIN][seed] for seed in by_seed]
        difference = f"{statistics.mean(gains):+.3f}"
        if len(gains) == 3:
            difference += f" ± {4.30 * statistics.stdev(gains) / math.sqrt(3):.3f}"
        rows.append([change, f"{statistics.mean(by_seed.values()):.3f}", difference])
    return common.table(["change", "validation loss", "against the paper's"], rows)


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = TRAINING.steps,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet, and print how far each is from the paper's."""
    settings = {
        **SHAPE,
        "steps": steps,
        "max_tokens": TRAINING.max_tokens,
        "warmup": TRAINING.warmup,
    }
    tasks = [{"change": change, "seed": seed} for seed in seeds for change in CHANGES]
    run = partial(measure, steps=steps)
    print(differences(common.make_runs(results, "changes", settings, tasks, run)))


if __name__ == "__main__":
    common.command(main)
