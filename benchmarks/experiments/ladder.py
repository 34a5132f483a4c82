"""What does each part of the model pay? One task, and one more part on each rung.

    python -m benchmarks.experiments.ladder

The task is the grammar. The first rung knows the newest word, the mean of the words before it, and
the mean of the source; each rung after it has one more part, in the order of the book's chapters.
All see the same batches at the same rates, which fall to zero by the last update. A few rungs more
change one thing, to see which half of a chapter's part pays, and two are trained twice as long, to
see what more training would bring. The log has, of each rung and seed, the loss on the test pairs
in nats per token, how many of the first of these it translates word for word, and what it writes
of two sentences that none was trained on. Writes `results/ladder.jsonl`, which chapter 10 draws.
"""

from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

from annotated_transformer import (
    EncodedCorpus,
    Pair,
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
from annotated_transformer.masks import BOS, EOS, PAD, causal_mask, padding_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.transformer import evaluating
from benchmarks import common

D_MODEL = 64
HEADS = 4
D_FF = 256
VOCABULARY = 600
TEST_PAIRS = 1000
LEARNED = 40_000  # pairs
MAX_TOKENS = 1024
UPDATES = 3000
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
    """Make the model that has PARTS up to `part`, with changes to one of them."""
    if part == "layers" or part == "transformer":
        layers = 1 if part == "layers" else 2
        shape = {"d_model": D_MODEL, "d_ff": D_FF, "heads": HEADS, "dropout": 0.0}
        return Transformer(TransformerConfig(vocabulary_size, layers=layers, **shape))
    return Partial(vocabulary_size, PARTS.index(part) + 1, **changes)


# --- The task ---


@cache
def task() -> tuple[Tokenizer, EncodedCorpus, list[Pair]]:
    """Return the tokenizer, the pairs that are learned, and the test pairs."""
    pairs = grammar(TEST_PAIRS + LEARNED)
    test, learned = pairs[:TEST_PAIRS], pairs[TEST_PAIRS:]
    kept_out = {pair.source for pair in SENTENCES}
    learned = [pair for pair in learned if pair.source not in kept_out]
    tokenizer = Tokenizer.train(learned, VOCABULARY)
    return tokenizer, encode_pairs(tokenizer, learned), test


# --- Training ---


def rate(step: int, updates: int) -> float:
    """Return the learning rate: up in a straight line, then down to zero in another."""
    rise = step / WARMUP
    fall = (updates - step) / (updates - WARMUP)
    return PEAK_RATE * min(rise, fall)


def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss in nats per real token."""
    logits = model(source, target[:, :-1]).flatten(0, 1)
    labels = target[:, 1:].flatten()
    return nn.functional.cross_entropy(logits, labels, ignore_index=PAD)


def train(model: nn.Module, learned: EncodedCorpus, seed: int, updates: int) -> None:
    """Train a model; a seed gives all rungs the same batches."""
    adam = common.make_adam(model)
    stream = common.endless_batches(learned, MAX_TOKENS, seed)
    for step, batch in enumerate(islice(stream, updates), start=1):
        adam.param_groups[0]["lr"] = rate(step, updates)
        adam.zero_grad()
        loss_of(model, *batch).backward()
        adam.step()


def mean_loss(model: nn.Module, corpus: EncodedCorpus) -> float:
    """Return a model's loss in nats per token."""
    total = tokens = 0.0
    with evaluating(model):
        for batch in batches(corpus, MAX_TOKENS):
            real = common.count(batch.target[:, 1:])
            total += real * float(loss_of(model, *batch))
            tokens += real
    return total / tokens


# --- What a model writes ---


def write(model: nn.Module, sources: list[list[int]]) -> list[list[int]]:
    """Write the likeliest next token until `</s>`, for each source; ids without it."""
    written = []
    with evaluating(model):
        for ids in sources:
            source = torch.tensor([ids])
            target = torch.tensor([[BOS]])
            while target[0, -1] != EOS and target.size(1) <= LONGEST:
                logits = model(source, target)[:, -1]
                target = torch.cat([target, logits.argmax(-1, keepdim=True)], dim=1)
            written.append([token for token in target[0, 1:].tolist() if token != EOS])
    return written


def translations(
    model: nn.Module, tokenizer: Tokenizer, pairs: list[Pair]
) -> list[str]:
    """Return what a model writes of the sources of some pairs."""
    sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    return [tokenizer.decode(ids) for ids in write(model, sources)]


# --- The runs ---


def measure(
    rung: str, seed: int, updates: int, asked: int, threads: int
) -> common.Record:
    """Train one rung from one seed; return a line of the log."""
    torch.set_num_threads(threads)
    tokenizer, learned, test = task()
    chosen = RUNGS[rung]
    torch.manual_seed(seed)
    model = make(len(tokenizer), chosen.part, **chosen.changes)
    train(model, learned, seed, chosen.times * updates)
    outputs = translations(model, tokenizer, test[:asked])
    right = sum(output == pair.target for output, pair in zip(outputs, test))
    return {
        "loss": round(mean_loss(model, encode_pairs(tokenizer, test)), 4),
        "right": right,
        "updates": chosen.times * updates,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "writes": translations(model, tokenizer, SENTENCES),
    }


def main(
    rungs: tuple[str, ...] = tuple(RUNGS),
    seeds: tuple[int, ...] = (0, 1, 2),
    updates: int = UPDATES,
    asked: int = 300,
    jobs: int = 1,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet.

    Each has so many `updates`, and is asked for `asked` translations of the test pairs.
    """
    unknown = sorted(set(rungs) - set(RUNGS))
    if unknown:
        names = ", ".join(RUNGS)
        raise SystemExit(f"no rung {', '.join(unknown)}: take some of {names}")
    settings = {
        "benchmark": "ladder",
        "d_model": D_MODEL,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "peak_rate": PEAK_RATE,
        "learned": LEARNED,
        "updates": updates,
        "asked": asked,
        "sentences": [pair.source for pair in SENTENCES],
        "threads": threads,
    }
    run = partial(measure, updates=updates, asked=asked, threads=threads)
    tasks = [{"rung": rung, "seed": seed} for seed in seeds for rung in rungs]
    common.make_runs(results / "ladder.jsonl", settings, tasks, run, jobs)


if __name__ == "__main__":
    tyro.cli(main)
