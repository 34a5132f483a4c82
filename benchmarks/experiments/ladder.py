"""What does each part of the model pay? One task, a part more on each rung, trained to the end.

    python -m benchmarks.experiments.ladder

The task is the grammar. The first rung knows the newest word, the mean of the words before it, and
the mean of the source; each rung after it has one part more, in the order of the book's chapters.
All see the same batches and the same rates. Each is trained until its loss on the validation pairs
has not fallen for a while, and its best weights are kept. The log has, of each rung and seed, the
loss on the test pairs in nats per token, how many of these it translates word for word, and what
it writes of a few sentences. The rungs of VARIANTS change one thing, to see which half of a
chapter's part pays. Writes `results/ladder.jsonl`, which chapter 10 draws.
"""

import copy
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
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import evaluating
from benchmarks import common

D_MODEL = 64
HEADS = 4
D_FF = 256
MAX_TOKENS = 1024
WARMUP = 100
LR_SCALE = 0.3
VOCABULARY = 600
HELD_OUT = 1000  # pairs to stop by, and as many to measure on
LEARNED = 40_000  # pairs
CHECKED = 250  # updates between two looks at the validation loss
PATIENCE = 4  # looks without progress, after which training ends
PROGRESS = 0.005  # nats per token
MOST = 8000  # updates
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
    """A model that has all PARTS up to one, and what is changed in it."""

    part: str
    changes: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    "means with value matrices": Rung("means", {"values": True}),
    "feed_forward without ReLU": Rung("feed_forward", {"relu": False}),
    "three scaled tables": Rung("embeddings", {"tables": 3}),
}
RUNGS = {part: Rung(part) for part in PARTS} | VARIANTS

# --- The models ---


def matrix() -> nn.Linear:
    """Make a square matrix of weights."""
    return nn.Linear(D_MODEL, D_MODEL, bias=False)


class OneHead(nn.Module):
    """Chapter 3: queries, keys and values are learned projections."""

    def __init__(self) -> None:
        super().__init__()
        self.query = matrix()
        self.key = matrix()
        self.value = matrix()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from x (B, T, D) to memory (B, S, D)."""
        mix, _ = attention(self.query(x), self.key(memory), self.value(memory), mask)
        return mix


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
        relu: bool = True,
        tables: int = 1,
    ) -> None:
        super().__init__()
        has = set(PARTS[:parts])
        self.masked = "masks" in has
        self.heads = "multi_head_attention" in has
        self.placed = "positional_encoding" in has
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
            self.past = OneHead()
            self.cross = OneHead()
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
        return self.positions(x) if self.placed else x

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


# --- The task ---


@cache
def task() -> tuple[Tokenizer, EncodedCorpus, list[Pair], list[Pair]]:
    """Return the tokenizer, what is learned, and the pairs for validation and test."""
    pairs = grammar(2 * HELD_OUT + LEARNED)
    validation = pairs[:HELD_OUT]
    test = pairs[HELD_OUT : 2 * HELD_OUT]
    asked = {pair.source for pair in SENTENCES}
    learned = [pair for pair in pairs[2 * HELD_OUT :] if pair.source not in asked]
    tokenizer = Tokenizer.train(learned, VOCABULARY)
    return tokenizer, encode_pairs(tokenizer, learned), validation, test


# --- Training ---


def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss in nats per real token."""
    logits = model(source, target[:, :-1]).flatten(0, 1)
    labels = target[:, 1:].flatten()
    return nn.functional.cross_entropy(logits, labels, ignore_index=PAD)


def mean_loss(model: nn.Module, corpus: EncodedCorpus) -> float:
    """Return a model's loss on held-out pairs, in nats per token."""
    total = tokens = 0.0
    with evaluating(model):
        for batch in batches(corpus, MAX_TOKENS):
            real = common.count(batch.target[:, 1:])
            total += real * float(loss_of(model, *batch))
            tokens += real
    return total / tokens


def train(
    model: nn.Module,
    learned: EncodedCorpus,
    validation: EncodedCorpus,
    seed: int,
    most: int,
) -> list[float]:
    """Train a model until it stops improving, and leave it with its best weights.

    Returns the validation losses, one for every CHECKED updates.
    """
    adam = common.make_adam(model)
    stream = common.endless_batches(learned, MAX_TOKENS, seed)
    curve: list[float] = []
    best_weights = copy.deepcopy(model.state_dict())
    for step, batch in enumerate(islice(stream, most), start=1):
        adam.param_groups[0]["lr"] = learning_rate(step, D_MODEL, WARMUP, LR_SCALE)
        adam.zero_grad()
        loss_of(model, *batch).backward()
        adam.step()
        if step % CHECKED and step < most:
            continue
        curve.append(mean_loss(model, validation))
        if curve[-1] == min(curve):
            best_weights = copy.deepcopy(model.state_dict())
        if has_stopped(curve):
            break
    model.load_state_dict(best_weights)
    return curve


def has_stopped(curve: list[float]) -> bool:
    """Return True if the last PATIENCE losses are no progress over those before them."""
    before, recent = curve[:-PATIENCE], curve[-PATIENCE:]
    return bool(before) and min(recent) > min(before) - PROGRESS


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


def measure(rung: str, seed: int, most: int, asked: int, threads: int) -> common.Record:
    """Train one rung from one seed; return a line of the log."""
    torch.set_num_threads(threads)
    tokenizer, learned, validation, test = task()
    torch.manual_seed(seed)
    model = make(len(tokenizer), RUNGS[rung].part, **RUNGS[rung].changes)
    held_out = encode_pairs(tokenizer, validation)
    curve = train(model, learned, held_out, seed, most)
    outputs = translations(model, tokenizer, test[:asked])
    right = sum(output == pair.target for output, pair in zip(outputs, test[:asked]))
    return {
        "loss": round(mean_loss(model, encode_pairs(tokenizer, test)), 4),
        "right": right,
        "updates": min(most, CHECKED * len(curve)),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "curve": [round(loss, 3) for loss in curve],
        "writes": translations(model, tokenizer, SENTENCES),
    }


def main(
    rungs: tuple[str, ...] = tuple(RUNGS),
    seeds: tuple[int, ...] = (0, 1, 2),
    most: int = MOST,
    asked: int = 500,
    jobs: int = 1,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet.

    Each has at most `most` updates and is asked for `asked` translations of the test pairs.
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
        "lr_scale": LR_SCALE,
        "learned": LEARNED,
        "most": most,
        "asked": asked,
        "sentences": [pair.source for pair in SENTENCES],
        "threads": threads,
    }
    run = partial(measure, most=most, asked=asked, threads=threads)
    tasks = [{"rung": rung, "seed": seed} for seed in seeds for rung in rungs]
    common.make_runs(results / "ladder.jsonl", settings, tasks, run, jobs)


if __name__ == "__main__":
    tyro.cli(main)
