"""What does each part of the model pay? One task, 300 updates, a part more in each row.

    python -m benchmarks.experiments.parts --seeds 0 1 2

The task is the grammar; the loss is that on 1,000 held-out pairs, in nats a token. The first row
knows the newest word, the mean of the words before it, and the mean of the source; each row after
it has one part more, in the order of the book's chapters. All rows see the same batches and the
same rates. The last rows change one thing in one of these, to see which half of a chapter's part
pays. Writes `results/parts.jsonl`, which the chapters draw.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

from annotated_transformer import (
    EncodedCorpus,
    Tokenizer,
    Transformer,
    TransformerConfig,
    encode_pairs,
    grammar,
)
from annotated_transformer.attention import attention
from annotated_transformer.batching import batches
from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.masks import PAD, causal_mask, padding_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import evaluating
from benchmarks import common

D_MODEL = 64
HEADS = 4
D_FF = 256
MAX_TOKENS = 1024
WARMUP = 100
LR_SCALE = 0.3
HELD_OUT = 1000  # pairs
LONGER = 1300  # updates of the last two rows, once more
PARTS = [
    "means",
    "attention",
    "masks",
    "multi_head_attention",
    "feed_forward",
    "embeddings",
    "positional_encoding",
    "layers",
    "transformer",
]


@dataclass(frozen=True)
class Row:
    """A model that has all PARTS up to one, what is changed in it, and how long it is trained."""

    part: str
    changes: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None


VARIANTS = {
    "means with value matrices": Row("means", {"values": True}),
    "one head with an output matrix": Row("attention", {"output": True}),
    "feed_forward without ReLU": Row("feed_forward", {"relu": False}),
    "three scaled tables": Row("embeddings", {"tables": 3}),
    "positions in the source": Row("positional_encoding", {"places": ("source",)}),
    "positions in the target": Row("positional_encoding", {"places": ("target",)}),
}

# --- The models ---


def matrix() -> nn.Linear:
    """Make a square matrix of weights."""
    return nn.Linear(D_MODEL, D_MODEL, bias=False)


class OneHead(nn.Module):
    """Chapter 3: queries, keys and values are learned projections."""

    def __init__(self, output: bool) -> None:
        super().__init__()
        self.query = matrix()
        self.key = matrix()
        self.value = matrix()
        self.output = matrix() if output else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to memory (B, S, D)."""
        mix, _ = attention(self.query(x), self.key(memory), self.value(memory), mask)
        return self.output(mix)


class Mean(nn.Module):
    """Before chapter 3: all that may be seen counts alike."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.value = matrix() if values else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean of memory (B, S, D) for each position of x (B, T, D)."""
        if mask is None:
            mask = torch.ones(x.size(1), memory.size(1))
        visible = mask.to(x.dtype)
        return visible @ self.value(memory) / visible.sum(dim=-1, keepdim=True)


class Heads(MultiHeadAttention):
    """Chapter 5."""

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to memory (B, S, D)."""
        return super().forward(x, memory, memory, mask)


class Partial(nn.Module):
    """A translator that has the first `parts` of PARTS, none of them in a layer yet."""

    def __init__(
        self,
        vocabulary_size: int,
        parts: int,
        values: bool = False,
        output: bool = False,
        relu: bool = True,
        tables: int = 1,
        places: tuple[str, ...] = ("source", "target"),
    ) -> None:
        super().__init__()
        has = set(PARTS[:parts])
        self.masked = "masks" in has
        self.heads = "multi_head_attention" in has
        self.places = places if "positional_encoding" in has else ()
        if "embeddings" not in has:
            self.source = nn.Embedding(vocabulary_size, D_MODEL)
            self.target = nn.Embedding(vocabulary_size, D_MODEL)
            self.logits = nn.Linear(D_MODEL, vocabulary_size)
        else:
            self.source = self.target = self.last = Embedding(vocabulary_size, D_MODEL)
            if tables == 3:
                self.target = Embedding(vocabulary_size, D_MODEL)
                self.last = Embedding(vocabulary_size, D_MODEL)
            self.logits = self.last.logits
        if self.heads:
            self.past = Heads(D_MODEL, HEADS)
            self.cross = Heads(D_MODEL, HEADS)
        elif "attention" in has:
            self.past = OneHead(output)
            self.cross = OneHead(output)
        else:
            self.past = Mean(values)
            self.cross = Mean(values)
        self.network = None
        if "feed_forward" in has:
            self.network = FeedForward(D_MODEL, D_FF)
        if not relu:
            inner, outer = nn.Linear(D_MODEL, D_FF), nn.Linear(D_FF, D_MODEL)
            self.network = nn.Sequential(inner, outer)
        self.positions = SinusoidalPositions(D_MODEL, 256)

    def read(self, side: str, tokens: Tensor) -> Tensor:
        """Look up tokens (B, T) of a side, with positions where it has them: (B, T, D)."""
        table = self.source if side == "source" else self.target
        x = table(tokens)
        return self.positions(x) if side in self.places else x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, |V|) from source (B, S) and target (B, T)."""
        memory = self.read("source", source)
        x = self.read("target", target)
        mask = None
        if self.masked:
            mask = padding_mask(source)  # (B, 1, 1, S)
            if not self.heads:
                mask = mask[:, 0]
        x = x + self.past(x, x, causal_mask(x.size(1))) + self.cross(x, memory, mask)
        if self.network is not None:
            x = x + self.network(x)
        return self.logits(x)


def make(vocabulary_size: int, part: str, **changes: Any) -> nn.Module:
    """Make the model that has PARTS up to `part`, with what one of VARIANTS changes."""
    if part == "layers" or part == "transformer":
        layers = 1 if part == "layers" else 2
        shape = {"d_model": D_MODEL, "d_ff": D_FF, "heads": HEADS, "dropout": 0.0}
        return Transformer(TransformerConfig(vocabulary_size, layers=layers, **shape))
    return Partial(vocabulary_size, PARTS.index(part) + 1, **changes)


# --- Training ---


def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss in nats a real token."""
    logits = model(source, target[:, :-1]).flatten(0, 1)
    labels = target[:, 1:].flatten()
    return nn.functional.cross_entropy(logits, labels, ignore_index=PAD)


def train(
    make_model: Callable[[], nn.Module], corpus: EncodedCorpus, seed: int, steps: int
) -> nn.Module:
    """Make and train a model."""
    torch.manual_seed(seed)
    model = make_model()
    adam = common.make_adam(model)
    stream = common.endless_batches(corpus, MAX_TOKENS, seed)
    for step, batch in enumerate(islice(stream, steps), start=1):
        adam.param_groups[0]["lr"] = learning_rate(step, D_MODEL, WARMUP, LR_SCALE)
        adam.zero_grad()
        loss_of(model, *batch).backward()
        adam.step()
    return model


def mean_loss(model: nn.Module, corpus: EncodedCorpus) -> float:
    """Return a model's loss on held-out pairs."""
    total = tokens = 0.0
    with evaluating(model):
        for batch in batches(corpus, MAX_TOKENS):
            real = common.count(batch.target[:, 1:])
            total += real * float(loss_of(model, *batch))
            tokens += real
    return total / tokens


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 300,
    results: Path = common.RESULTS,
) -> None:
    """Measure each row from several seeds, the last two with more updates, too, and VARIANTS."""
    pairs = grammar(HELD_OUT + 10_000)
    tokenizer = Tokenizer.train(pairs[HELD_OUT:], 600)
    corpus = encode_pairs(tokenizer, pairs[HELD_OUT:])
    held_out = encode_pairs(tokenizer, pairs[:HELD_OUT])
    rows = {part: Row(part) for part in PARTS}
    for part in PARTS[-2:]:
        rows[f"{part}, longer"] = Row(part, steps=LONGER)
    records = []
    for name, row in (rows | VARIANTS).items():
        start = time.perf_counter()
        updates = row.steps or steps
        make_model = partial(make, len(tokenizer), row.part, **row.changes)
        losses = []
        for seed in seeds:
            model = train(make_model, corpus, seed, updates)
            losses.append(mean_loss(model, held_out))
        spread = statistics.stdev(losses) if len(losses) > 1 else math.nan
        record = {
            "part": name,
            "steps": updates,
            "loss": round(statistics.mean(losses), 3),
            "spread": round(spread, 3),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "seconds": round((time.perf_counter() - start) / len(seeds), 1),
        }
        print(record, flush=True)
        records.append(record)
    settings = {"benchmark": "parts", "seeds": list(seeds), "steps": steps}
    common.write_log(results, "parts", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
