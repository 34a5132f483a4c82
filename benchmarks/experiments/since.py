"""What did the years since 2017 change, and what does it buy in a short training?

    python -m benchmarks.experiments.since --seeds 0 1 2 --threads 2

One change at a time, with the training of `departures`: the same small model, captions, updates and
batches, and about as many parameters in each row; several seeds, compared seed by seed with the
first row, which is the paper's form. Chapter 24 shows the parts and draws `results/since.jsonl`.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from annotated_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    encode_pairs,
    train,
)
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
from annotated_transformer.toolkit.presets import parameter_count
from annotated_transformer.training import validation_loss
from annotated_transformer.transformer import initialize, make_encoder
from benchmarks import common
from benchmarks.experiments.departures import PLAIN, SHAPE, TRAINING, VOCABULARY, row

# --- The parts, as chapter 24 shows them ---


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
        self.encoder = nn.Identity()
        # A stack of encoder layers: they have no cross-attention
        self.decoder = make_encoder(replace(config, layers=layers))
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


def swap(model: nn.Module, old: type, make: Callable[[nn.Module], nn.Module]) -> None:
    """Put make(part) where the model has a part of the old kind."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is old:
                setattr(parent, name, make(part))


def rms_norm(model: Transformer) -> None:
    """Replace every layer normalization."""
    swap(model, LayerNorm, lambda part: RMSNorm(len(part.gain)))


def no_positions(model: Transformer) -> None:
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


def all_five(model: Transformer) -> None:
    """Change norms, positions, networks and biases; pre-norm is a setting."""
    rms_norm(model)
    rotary(model)
    gated(model)
    no_biases(model)


@dataclass(frozen=True)
class Change:
    """What is changed: settings, parts of the model, whether one stack reads both sides."""

    shape: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[Transformer], None] | None = None
    decoder_only: bool = False
    source_whole: bool = False


PRE_NORM = {"pre_norm": True}
# One stack of 4 layers with networks of 320 has as many weights as 2 and 2 layers with 256
ONE_STACK = {"d_ff": 320}
ONE_STACK_LAYERS = 4
CHANGES = {
    PLAIN: Change(),
    "pre-norm": Change(PRE_NORM),
    "RMSNorm": Change(parts=rms_norm),
    "no positions": Change(parts=no_positions),
    "rotary positions": Change(parts=rotary),
    "SwiGLU": Change(parts=gated),
    "two heads of keys": Change(parts=grouped(2)),
    "one head of keys": Change(parts=grouped(1)),
    "no biases": Change(parts=no_biases),
    "all five": Change(PRE_NORM, all_five),
    "decoder-only": Change(ONE_STACK, decoder_only=True),
    "decoder-only, source whole": Change(
        ONE_STACK, decoder_only=True, source_whole=True
    ),
    "decoder-only, all five": Change(ONE_STACK | PRE_NORM, all_five, decoder_only=True),
}


def make(change: Change, vocabulary_size: int, seed: int) -> Transformer:
    """Make the model of a row."""
    torch.manual_seed(seed)
    config = TransformerConfig(vocabulary_size, **(SHAPE | change.shape))
    if change.decoder_only:
        model: Transformer = DecoderOnly(config, ONE_STACK_LAYERS, change.source_whole)
    else:
        model = Transformer(config)
    if change.parts is not None:
        change.parts(model)
        initialize(model)
    return model


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = TRAINING.steps,
    corpus: common.Corpus = "multi30k",
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Measure what the changes since 2017 do to a short training."""
    torch.set_num_threads(threads)
    pairs = common.read(corpus, "train")
    tokenizer = Tokenizer.train(pairs, VOCABULARY)
    examples = encode_pairs(tokenizer, pairs)
    held_out = encode_pairs(tokenizer, common.read(corpus, "val"))
    losses: dict[str, list[float]] = {}
    rows = []
    records = []
    for name, change in CHANGES.items():
        losses[name] = []
        for seed in seeds:
            model = make(change, len(tokenizer), seed)
            config = replace(TRAINING, steps=steps, seed=seed)
            train(model, tokenizer, examples, config)
            loss = validation_loss(model, held_out, TRAINING.max_tokens)
            losses[name].append(loss)
            records.append(
                {
                    "change": name,
                    "seed": seed,
                    "validation_loss": round(loss, 4),
                    "parameters": parameter_count(model),
                }
            )
        size = f"{parameter_count(model):,}"
        rows.append([*row(name, losses[name], losses[PLAIN]), size])
        print(*rows[-1], sep="  ", flush=True)
    header = ["change", "validation loss", "against the first row", "parameters"]
    print(common.table(header, rows))
    best = min(losses, key=lambda name: statistics.mean(losses[name]))
    print(f"lowest: {best}")
    settings = {
        "benchmark": "since",
        **SHAPE,
        **asdict(TRAINING),
        "steps": steps,
        "corpus": corpus,
        "threads": threads,
    }
    common.write_log(results, "since", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
