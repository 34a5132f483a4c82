"""What did the years since 2017 change, and what does it buy in a short training?

    python benchmarks/since.py --seeds 0 1 2 --threads 2

One change at a time, on the harness of `departures.py`: the same small model, captions, updates and
batches, and about as many parameters in each row; several seeds, compared seed by seed with the
first row, which is the paper's form. Chapter 24 shows the parts. Writes `results/since.jsonl`.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import common
import torch
import torch.nn.functional as F
import tyro
from departures import PLAIN, SHAPE, TRAINING, row
from torch import Tensor, nn

from annotated_transformer.attention import Mask
from annotated_transformer.batching import encode_pairs
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import LayerNorm
from annotated_transformer.masks import PAD, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    run_attention,
    split_heads,
)
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import train, validation_loss
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    build_stacks,
    initialize,
    parameter_count,
)

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
    table = sinusoid(x.size(-2), x.size(-1), x.dtype).to(x.device)
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class RotaryAttention(MultiHeadAttention):
    """Self-attention whose queries and keys are turned by their positions."""

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project key and value (B, S, D) to heads, and turn the keys."""
        keys, values = super().project(key, value)
        return rotate(keys), values

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Mask = None) -> Tensor:
        """Map query (B, T, D) and projected keys and values (B, H, S, ...) to (B, T, D)."""
        query = rotate(split_heads(self.query(query), self.heads))
        output, _ = run_attention(query, keys, values, mask, 0.0, False)
        return self.output(merge_heads(output))


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
        self.groups, width = groups, groups * (d_model // heads)
        self.key = nn.Linear(d_model, width, bias=False)
        self.value = nn.Linear(d_model, width, bias=False)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project key and value (B, S, D) to their few heads, (B, groups, S, d_k)."""
        return split_heads(self.key(key), self.groups), split_heads(self.value(value), self.groups)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Mask = None) -> Tensor:
        """Give each group of queries its keys and values, and attend."""
        keys, values = (x.repeat_interleave(self.heads // self.groups, 1) for x in (keys, values))
        return super().attend(query, keys, values, mask)


class DecoderOnly(Transformer):
    """One stack reads source and target as one text, `source </s> <s> target`."""

    def __init__(self, config: TransformerConfig, layers: int, whole: bool = False) -> None:
        super().__init__(config)
        self.whole = whole  # within the source, every word sees every other
        self.encoder = nn.Identity()
        self.decoder = build_stacks(replace(config, layers=layers))[0]  # no cross-attention
        initialize(self)

    def encode(self, source: Tensor) -> Tensor:
        """Leave the reading to decode."""
        return source

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Read both as one text; return the states of the target (B, T, D)."""
        text = torch.cat([source, target], dim=1)
        text = text.gather(1, (text == PAD).int().argsort(dim=1, stable=True))  # padding last
        length = (source != PAD).sum(dim=1, keepdim=True)
        mask = target_mask(text)
        if self.whole:
            early = torch.arange(text.size(1), device=text.device) < length
            mask = mask | (early[:, None, :, None] & early[:, None, None, :])
        states = self.decoder(self.embed(text), mask)
        place = length + torch.arange(target.size(1), device=text.device)
        return states.gather(1, place[..., None].expand(-1, -1, states.size(2)))


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
    c = model.config
    for layer in [*model.encoder.modules(), *model.decoder.modules()]:
        if hasattr(layer, "self_attention"):
            layer.self_attention = RotaryAttention(c.d_model, c.heads)


class NoPositions(nn.Module):
    """Pass the words on as they are."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Return x (B, T, D)."""
        return x


def gated(model: Transformer) -> None:
    """Replace every feed-forward network."""
    swap(model, FeedForward, lambda part: SwiGLU(model.config.d_model, part.linear1.out_features))


def grouped(groups: int) -> Callable[[Transformer], None]:
    """Let heads share keys and values; the networks get what that saves."""

    def change(model: Transformer) -> None:
        c = model.config
        swap(model, MultiHeadAttention, lambda part: GroupedAttention(c.d_model, c.heads, groups))
        saved = c.d_model * (c.heads - groups) // c.heads  # units, for each attention
        for layers, attentions in ((model.encoder.layers, 1), (model.decoder.layers, 2)):
            for layer in layers:
                layer.feed_forward = FeedForward(c.d_model, c.d_ff + attentions * saved)

    return change


def no_biases(model: Transformer) -> None:
    """Take the biases out of the networks and the norms; attention has none."""
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            module.register_parameter("bias", None)


def all_five(model: Transformer) -> None:
    """Change norms, positions, networks and biases; pre-norm is a setting."""
    for change in (rms_norm, rotary, gated, no_biases):
        change(model)


PRE = {"pre_norm": True}
Change = Callable[[Transformer], None] | None
# What is changed -> settings, layers of a decoder-only stack, its source seen whole, parts
CHANGES: dict[str, tuple[dict, int, bool, Change]] = {
    PLAIN: ({}, 0, False, None),
    "pre-norm": (PRE, 0, False, None),
    "RMSNorm": ({}, 0, False, rms_norm),
    "no positions": ({}, 0, False, no_positions),
    "rotary positions": ({}, 0, False, rotary),
    "SwiGLU": ({}, 0, False, gated),
    "two heads of keys": ({}, 0, False, grouped(2)),
    "one head of keys": ({}, 0, False, grouped(1)),
    "no biases": ({}, 0, False, no_biases),
    "all five": (PRE, 0, False, all_five),
    # 4 layers of attention and a network of 320 have as many weights as 2 and 2 with 256
    "decoder-only": ({"d_ff": 320}, 4, False, None),
    "decoder-only, source whole": ({"d_ff": 320}, 4, True, None),
    "decoder-only, all five": ({"d_ff": 320, **PRE}, 4, False, all_five),
}


def make(name: str, vocabulary_size: int, seed: int) -> Transformer:
    """Make the model of a row."""
    shape, layers, whole, change = CHANGES[name]
    torch.manual_seed(seed)
    config = TransformerConfig(vocabulary_size, **{**SHAPE, **shape})
    model = DecoderOnly(config, layers, whole) if layers else Transformer(config)
    if change is not None:
        change(model)
        initialize(model)
    return model


def main(
    seeds: tuple[int, ...] = (0, 1, 2), steps: int = TRAINING.steps,
    corpus: common.Corpus = "multi30k", threads: int = 1, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Measure what the changes since 2017 do to a short training."""
    torch.set_num_threads(threads)
    pairs = common.read(corpus, "train")
    tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
    examples, held_out = (encode_pairs(tokenizer, p) for p in (pairs, common.read(corpus, "val")))
    losses, sizes = dict[str, list[float]](), dict[str, int]()
    for name in CHANGES:
        losses[name] = []
        for seed in seeds:
            model = make(name, len(tokenizer), seed)
            sizes[name] = parameter_count(model)
            train(model, tokenizer, examples, replace(TRAINING, steps=steps, seed=seed))
            losses[name].append(validation_loss(model, held_out, TRAINING.max_tokens))
        print(*row(name, losses[name], losses[PLAIN]), f"{sizes[name]:,}", sep="  ", flush=True)
    rows = [
        [*row(name, found, losses[PLAIN]), f"{sizes[name]:,}"] for name, found in losses.items()
    ]
    header = ["change", "validation loss", "against the first row", "parameters"]
    print(common.table(header, rows))
    best = min(losses, key=lambda name: statistics.mean(losses[name]))
    print(f"lowest: {best}")
    records = [
        {"change": name, "seed": s, "validation_loss": round(loss, 4), "parameters": sizes[name]}
        for name, found in losses.items()
        for s, loss in zip(seeds, found)
    ]
    settings = {"benchmark": "since", **SHAPE, **asdict(TRAINING), "steps": steps}
    settings |= {"corpus": corpus, "threads": threads}
    common.write_log(results, "since", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
