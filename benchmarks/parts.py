"""What does each part of the model pay? One task, 300 updates, a part more in each row.

    python benchmarks/parts.py --seeds 0 1 2

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
from functools import partial
from itertools import chain, islice
from typing import Any

import common
import torch
import tyro
from torch import Tensor, nn

from annotated_transformer.attention import attention
from annotated_transformer.batching import EncodedCorpus, batches, encode_pairs
from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.masks import PAD, causal_mask, padding_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.schedule import learning_rate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

D_MODEL, HEADS, D_FF, MAX_TOKENS, WARMUP, LR_SCALE = 64, 4, 256, 1024, 100, 0.3
LONGER = 1300  # updates
PARTS = [
    "means", "attention", "masks", "multi_head_attention", "feed_forward", "embeddings",
    "positional_encoding", "layers", "transformer",
]  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # the row it is made from, and what is changed
    "means with value matrices": ("means", {"values": True}),
    "one head with an output matrix": ("attention", {"output": True}),
    "feed_forward without ReLU": ("feed_forward", {"relu": False}),
    "three scaled tables": ("embeddings", {"tables": 3}),
    "positions in the source": ("positional_encoding", {"places": ("source",)}),
    "positions in the target": ("positional_encoding", {"places": ("target",)}),
}


class OneHead(nn.Module):
    """Chapter 3: queries, keys and values are learned projections."""

    def __init__(self, output: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(D_MODEL, D_MODEL, bias=False) for _ in range(3)
        )
        self.output = nn.Linear(D_MODEL, D_MODEL, bias=False) if output else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to memory (B, S, D)."""
        read, _ = attention(self.query(x), self.key(memory), self.value(memory), mask)
        return self.output(read)


class Mean(nn.Module):
    """Before chapter 3: all that may be seen counts alike."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.value = nn.Linear(D_MODEL, D_MODEL, bias=False) if values else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean of memory (B, S, D) for each position of x (B, T, D)."""
        seen = torch.ones(x.size(1), memory.size(1)) if mask is None else mask.to(x.dtype)
        return seen @ self.value(memory) / seen.sum(dim=-1, keepdim=True)


class Heads(MultiHeadAttention):
    """Chapter 5."""

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to memory (B, S, D)."""
        return super().forward(x, memory, memory, mask)


class Partial(nn.Module):
    """A translator that has the first `parts` of PARTS, none of them in a layer yet."""

    def __init__(
        self, vocabulary_size: int, parts: int, values: bool = False, output: bool = False,
        relu: bool = True, tables: int = 1, places: tuple[str, ...] = ("source", "target"),
    ) -> None:  # fmt: skip
        super().__init__()
        has = set(PARTS[:parts])
        self.masked = "masks" in has
        if "embeddings" in has:
            made = nn.ModuleList(Embedding(vocabulary_size, D_MODEL) for _ in range(tables))
            self.source, self.target, self.last = [*made] * (3 // tables)
            self.logits = self.last.logits
        else:
            self.source, self.target = (nn.Embedding(vocabulary_size, D_MODEL) for _ in range(2))
            self.logits = nn.Linear(D_MODEL, vocabulary_size)
        if "multi_head_attention" in has:
            self.past, self.cross = Heads(D_MODEL, HEADS), Heads(D_MODEL, HEADS)
        elif "attention" in has:
            self.past, self.cross = (OneHead(output) for _ in range(2))
        else:
            self.past, self.cross = (Mean(values) for _ in range(2))
        self.network = FeedForward(D_MODEL, D_FF) if "feed_forward" in has else None
        if not relu:
            self.network = nn.Sequential(nn.Linear(D_MODEL, D_FF), nn.Linear(D_FF, D_MODEL))
        self.places = places if "positional_encoding" in has else ()
        self.positions = SinusoidalPositions(D_MODEL, 256)

    def read(self, side: str, tokens: Tensor) -> Tensor:
        """Look up tokens (B, T) of a side, with positions where it has them: (B, T, D)."""
        x = getattr(self, side)(tokens)
        return self.positions(x) if side in self.places else x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, |V|) from source (B, S) and target (B, T)."""
        memory, x = self.read("source", source), self.read("target", target)
        mask = padding_mask(source)[:, 0] if self.masked else None  # for every row the same keys
        if mask is not None and isinstance(self.cross, Heads):
            mask = mask[:, None]
        x = x + self.past(x, x, causal_mask(x.size(1))) + self.cross(x, memory, mask)
        if self.network is not None:
            x = x + self.network(x)
        return self.logits(x)


def make(vocabulary_size: int, parts: int, **changed: Any) -> nn.Module:
    """Make the model that has the first `parts` of PARTS, with what one of VARIANTS changes."""
    if parts <= PARTS.index("positional_encoding") + 1:
        return Partial(vocabulary_size, parts, **changed)
    layers = 1 if parts == PARTS.index("layers") + 1 else 2
    shape = {"d_model": D_MODEL, "d_ff": D_FF, "heads": HEADS, "dropout": 0.0}
    return Transformer(TransformerConfig(vocabulary_size, layers=layers, **shape))


def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss in nats a real token."""
    logits, labels = model(source, target[:, :-1]), target[:, 1:]
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)


def measure(
    train: EncodedCorpus,
    held_out: EncodedCorpus,
    new: Callable[[], nn.Module],
    seed: int,
    steps: int,
) -> float:
    """Train a model and return its loss on the held-out pairs."""
    torch.manual_seed(seed)
    model = new()
    adam = common.make_adam(model)
    epochs = (batches(train, MAX_TOKENS, seed, epoch) for epoch in range(100))
    for step, batch in enumerate(islice(chain.from_iterable(epochs), steps), start=1):
        adam.param_groups[0]["lr"] = learning_rate(step, D_MODEL, WARMUP, LR_SCALE)
        adam.zero_grad()
        loss_of(model, *batch).backward()
        adam.step()
    total = tokens = 0
    with evaluating(model):
        for batch in batches(held_out, MAX_TOKENS):
            real = common.count(batch.target[:, 1:])
            total, tokens = total + real * float(loss_of(model, *batch)), tokens + real
    return total / tokens


def main(seeds: tuple[int, ...] = (0, 1, 2), steps: int = 300) -> None:
    """Measure each row from several seeds, the last two with more updates, too, and VARIANTS."""
    pairs = grammar(11_000)
    tokenizer = Tokenizer.train(pairs[1000:], 600)
    train, held_out = encode_pairs(tokenizer, pairs[1000:]), encode_pairs(tokenizer, pairs[:1000])
    records = []
    rows: list[tuple[str, str, dict[str, Any], int]] = [(part, part, {}, steps) for part in PARTS]
    rows += [(f"{part}, longer", part, {}, LONGER) for part in PARTS[-2:]]
    rows += [(name, part, changed, steps) for name, (part, changed) in VARIANTS.items()]
    for name, part, changed, updates in rows:
        begin = time.perf_counter()
        new = partial(make, len(tokenizer), PARTS.index(part) + 1, **changed)
        losses = [measure(train, held_out, new, seed, updates) for seed in seeds]
        spread = statistics.stdev(losses) if len(losses) > 1 else math.nan
        record = {
            "part": name, "steps": updates,
            "loss": round(statistics.mean(losses), 3), "spread": round(spread, 3),
            "parameters": sum(p.numel() for p in new().parameters()),
            "seconds": round((time.perf_counter() - begin) / len(seeds), 1),
        }  # fmt: skip
        print(record, flush=True)
        records.append(record)
    settings = {"benchmark": "parts", "seeds": list(seeds), "steps": steps}
    common.write_log(common.RESULTS, "parts", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
