"""What does each part of the model pay? One task, and one more part on each rung.

    python -m benchmarks.experiments.ladder

The task is the grammar. The first rung knows the newest word, the mean of the words before it, and
the mean of the source; each rung after it has one more part, in the order of the book's chapters.
All see the same batches at the same rates, which fall to zero by the last update. A few rungs more
change one thing, to see which half of a chapter's part pays, and two are trained twice as long. The
log has, of each rung and seed, the loss on the test pairs in nats per token, how many of the first
of these it translates word for word, and what it writes of two sentences that none was trained on.
Writes `results/ladder.jsonl`, which chapter 10 draws.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from annotated_transformer import (
    Pair,
    Tokenizer,
    Transformer,
    TransformerConfig,
    grammar,
)
from annotated_transformer.attention import Mask, attention
from annotated_transformer.batching import EncodedCorpus, batches, encode_pairs
from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.masks import BOS, EOS, causal_mask, padding_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.training import loss_and_tokens, make_adam
from annotated_transformer.transformer import evaluating
from benchmarks import common

D_MODEL = 64
HEADS = 4
D_FF = 256
VOCABULARY = 600
TEST_PAIRS = 1000
LEARNED = 40_000  # pairs
MAX_TOKENS = 1024
WARMUP = 100
PEAK_RATE = 0.004
LONGEST = 50  # tokens that a model may write
SENTENCES = [
    Pair("Den Hund jagt die Katze.", "The cat chases the dog."),
    Pair(
        "Der Lehrer ruft am Abend die Königin an.",
        "The teacher calls the queen in the evening.",
    ),
]
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
class Rung:
    """A model that has PARTS up to one, what is changed in it, how many times as long it trains."""

    part: str
    changes: dict[str, Any] = field(default_factory=dict)
    times: int = 1


RUNGS = {part: Rung(part) for part in PARTS} | {
    "means with value matrices": Rung("means", {"values": True}),
    "one head with an output matrix": Rung("attention", {"output": True}),
    "feed_forward without ReLU": Rung("feed_forward", {"relu": False}),
    "three scaled tables": Rung("embeddings", {"tables": 3}),
    "layers, twice as long": Rung("layers", times=2),
    "transformer, twice as long": Rung("transformer", times=2),
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

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D) to (B, T, D)."""
        mix, _ = attention(self.query(query), self.key(key), self.value(value), mask)
        return self.output(mix)


class Mean(nn.Module):
    """Before chapter 3: all that may be seen counts alike."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.value = matrix() if values else nn.Identity()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None
    ) -> Tensor:
        """Return the mean of value (B, S, D) for each position of query (B, T, D)."""
        if mask is None:
            mask = torch.ones(query.size(1), key.size(1))
        visible = mask.to(query.dtype)
        return visible @ self.value(value) / visible.sum(dim=-1, keepdim=True)


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
    ) -> None:
        super().__init__()
        has = set(PARTS[:parts])
        self.masked = "masks" in has
        self.heads = "multi_head_attention" in has
        self.positions: nn.Module = nn.Identity()
        if "positional_encoding" in has:
            self.positions = SinusoidalPositions(D_MODEL, 256)
        self.source: nn.Module
        self.target: nn.Module
        if "embeddings" in has:
            last = self.source = self.target = Embedding(vocabulary_size, D_MODEL)
            if tables == 3:
                self.target = Embedding(vocabulary_size, D_MODEL)
                last = self.last = Embedding(vocabulary_size, D_MODEL)
            self.logits: Callable[[Tensor], Tensor] = last.logits
        else:
            self.source = nn.Embedding(vocabulary_size, D_MODEL)
            self.target = nn.Embedding(vocabulary_size, D_MODEL)
            self.logits = nn.Linear(D_MODEL, vocabulary_size)
        attentions: list[nn.Module]
        if self.heads:
            attentions = [MultiHeadAttention(D_MODEL, HEADS) for _ in range(2)]
        elif "attention" in has:
            attentions = [OneHead(output), OneHead(output)]
        else:
            attentions = [Mean(values), Mean(values)]
        self.past, self.cross = attentions
        self.network: nn.Module | None = None
        if "feed_forward" in has:
            self.network = FeedForward(D_MODEL, D_FF)
        if not relu:
            inner, outer = nn.Linear(D_MODEL, D_FF), nn.Linear(D_FF, D_MODEL)
            self.network = nn.Sequential(inner, outer)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, |V|) from source (B, S) and target (B, T)."""
        memory = self.positions(self.source(source))
        x = self.positions(self.target(target))
        mask = None
        if self.masked:
            mask = padding_mask(source)  # (B, 1, 1, S)
            mask = mask if self.heads else mask[:, 0]
        past = self.past(x, x, x, causal_mask(x.size(1)))
        x = x + past + self.cross(x, memory, memory, mask)
        if self.network is not None:
            x = x + self.network(x)
        return self.logits(x)


def make(vocabulary_size: int, part: str, **changes: Any) -> nn.Module:
    """Make the model that has PARTS up to `part`, with changes to one of them."""
    if part == "layers" or part == "transformer":
        layers = 1 if part == "layers" else 2
        sizes = (vocabulary_size, layers, D_MODEL, D_FF, HEADS)
        return Transformer(TransformerConfig(*sizes, dropout=0.0))
    return Partial(vocabulary_size, PARTS.index(part) + 1, **changes)


# --- One run ---


@cache
def task() -> tuple[Tokenizer, EncodedCorpus, list[Pair]]:
    """Return the tokenizer, the pairs that are learned, and the test pairs."""
    pairs = grammar(TEST_PAIRS + LEARNED)
    test, learned = pairs[:TEST_PAIRS], pairs[TEST_PAIRS:]
    kept_out = {pair.source for pair in SENTENCES}
    learned = [pair for pair in learned if pair.source not in kept_out]
    tokenizer = Tokenizer.train(learned, VOCABULARY)
    return tokenizer, encode_pairs(tokenizer, learned), test


def rate(step: int, updates: int) -> float:
    """Return the learning rate: up in a straight line, then down to zero in another."""
    rise = step / WARMUP
    fall = (updates - step) / (updates - WARMUP)
    return PEAK_RATE * min(rise, fall)


def translations(
    model: nn.Module, tokenizer: Tokenizer, pairs: list[Pair]
) -> list[str]:
    """Write the likeliest next token until `</s>`, for each source."""
    texts = []
    with evaluating(model):
        for pair in pairs:
            source = torch.tensor([[*tokenizer.encode(pair.source), EOS]])
            target = torch.tensor([[BOS]])
            while target[0, -1] != EOS and target.size(1) <= LONGEST:
                logits = model(source, target)[:, -1]
                target = torch.cat([target, logits.argmax(-1, keepdim=True)], dim=1)
            words = [token for token in target[0, 1:].tolist() if token != EOS]
            texts.append(tokenizer.decode(words))
    return texts


def measure(rung: str, seed: int, updates: int, asked: int) -> common.Record:
    """Train one rung from one seed; the seed gives all rungs the same batches."""
    torch.set_num_threads(1)
    tokenizer, learned, test = task()
    chosen = RUNGS[rung]
    torch.manual_seed(seed)
    model = make(len(tokenizer), chosen.part, **chosen.changes)
    loss = common.WholeLoss(model)
    steps = chosen.times * updates
    stream = islice(common.endless_batches(learned, MAX_TOKENS, seed), steps)
    rates = partial(rate, updates=steps)
    for _ in common.updates(loss, make_adam(loss), stream, rates):
        pass
    held_out = batches(encode_pairs(tokenizer, test), MAX_TOKENS)
    total, tokens = loss_and_tokens(loss, held_out)
    outputs = translations(model, tokenizer, test[:asked])
    return {
        "loss": round(float(total / tokens), 4),
        "right": sum(output == pair.target for output, pair in zip(outputs, test)),
        "updates": steps,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "writes": translations(model, tokenizer, SENTENCES),
    }


def main(
    rungs: tuple[str, ...] = tuple(RUNGS),
    seeds: tuple[int, ...] = (0, 1, 2),
    updates: int = 3000,
    asked: int = 300,
    jobs: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet, each asked for some translations."""
    settings = {
        "d_model": D_MODEL,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "peak_rate": PEAK_RATE,
        "learned": LEARNED,
        "updates": updates,
        "asked": asked,
        "sentences": [pair.source for pair in SENTENCES],
    }
    run = partial(measure, updates=updates, asked=asked)
    tasks = [{"rung": rung, "seed": seed} for seed in seeds for rung in rungs]
    common.make_runs(results, "ladder", settings, tasks, run, jobs)


if __name__ == "__main__":
    common.command(main)
