"""Can a layer recall the word seen k steps ago? A GRU, a convolution and attention, of equal size.

    python -m benchmarks.experiments.recall --seeds 0 1 2

The task: random words go by, and at each position the layer has to name the one that came
`distance` positions before. Words and positions get the same 32 numbers in front of each layer, and
the same kind of linear map reads its output; between them every layer has 6,144 weights. Each is
trained anew for each distance, on fresh words in each update. The GRU gets a second chance at eight
words, with five times the updates. Writes `results/recall.jsonl`, which chapter 2 draws.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.masks import causal_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import SinusoidalPositions
from benchmarks import common

WORDS = 16
D_MODEL = 32
ANSWERS = 32  # words that are asked for in a text
BATCH = 32
RATE = 5e-3
STEPS = 1000
DISTANCES = (1, 2, 4, 5, 6, 8, 16, 32)
LONGEST = 128  # words of a text

# --- Three layers ---


class Recurrent(nn.Module):
    """One vector, carried from word to word."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(D_MODEL, D_MODEL, bias=False, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.gru(x)[0]


class Convolution(nn.Module):
    """A window of six positions, the newest one included."""

    def __init__(self) -> None:
        super().__init__()
        self.window = nn.Conv1d(D_MODEL, D_MODEL, kernel_size=6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D); five zeros before the text keep the future out."""
        return self.window(F.pad(x.mT, (5, 0))).mT


class Attention(nn.Module):
    """One head, half again as wide as the words, that looks back."""

    def __init__(self) -> None:
        super().__init__()
        width = D_MODEL * 3 // 2
        self.head = MultiHeadAttention(D_MODEL, heads=1, d_k=width, d_v=width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.head(x, x, x, causal_mask(x.size(1), x.device))


KINDS = {"GRU": Recurrent, "convolution": Convolution, "attention": Attention}


class Recall(nn.Module):
    """Words and positions, one layer, and a score for each word."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, D_MODEL)
        self.positions = SinusoidalPositions(D_MODEL, LONGEST)
        self.layer = KINDS[kind]()
        self.output = nn.Linear(D_MODEL, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Score each word at each position: (B, T) to (B, T, WORDS)."""
        return self.output(self.layer(self.positions(self.words(words))))


# --- What they recall ---


def weights(kind: str) -> int:
    """Count the weights of a layer alone."""
    return sum(weight.numel() for weight in Recall(kind).layer.parameters())


def rate_of(step: int, steps: int) -> float:
    """Return the learning rate of a step: 100 steps of warm-up, the last fifth goes down to 0."""
    rising = (step + 1) / 100
    falling = 5 * (1 - step / steps)
    return RATE * min(1, rising, falling)


def accuracy(kind: str, distance: int, seed: int = 0, steps: int = STEPS) -> float:
    """Train a layer on one distance; return the share of right answers on fresh words."""
    torch.manual_seed(seed)
    model = Recall(kind)
    adam = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    for step in range(steps):
        words = torch.randint(WORDS, (BATCH, distance + ANSWERS))
        logits = model(words)[:, distance:]
        labels = words[:, :-distance]
        adam.param_groups[0]["lr"] = rate_of(step, steps)
        adam.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        adam.step()
    words = torch.randint(WORDS, (1000, distance + ANSWERS))
    with torch.no_grad():
        answers = model(words)[:, distance:].argmax(dim=-1)
    right = answers == words[:, :-distance]
    return round(right.float().mean().item(), 4)


def measure(kind: str, distance: int, seed: int, steps: int) -> common.Record:
    """Return what one layer recalls."""
    torch.set_num_threads(1)
    return {"accuracy": accuracy(kind, distance, seed, steps)}


def main(
    seeds: tuple[int, ...] = (0, 1, 2),
    distances: tuple[int, ...] = DISTANCES,
    steps: int = STEPS,
    results: Path = common.RESULTS,
) -> None:
    """Measure what three layers of equal size recall."""
    settings = {
        "words": WORDS,
        "d_model": D_MODEL,
        "batch": BATCH,
        "answers": ANSWERS,
        "rate": RATE,
        **{f"weights of {kind}": weights(kind) for kind in KINDS},
    }
    runs = [(kind, distance, steps) for distance in distances for kind in KINDS]
    runs.append(("GRU", 8, 5 * steps))
    tasks = []
    for kind, distance, updates in runs:
        for seed in seeds:
            run = {"kind": kind, "distance": distance, "steps": updates}
            tasks.append({**run, "seed": seed})
    common.make_runs(results, "recall", settings, tasks, measure)


if __name__ == "__main__":
    common.command(main)
