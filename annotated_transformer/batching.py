import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from annotated_transformer.data import Pair
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer


class Example(NamedTuple):
    """A pair in token ids: source (S,) ends with EOS, target (T + 1,) goes from BOS to EOS."""

    source: np.ndarray
    target: np.ndarray


class EncodedCorpus:
    """Examples in two flat arrays, which may lie in memory or in a mapped file.

    `tokens` holds all ids, example after example, source before target. `lengths` (N, 2) holds S
    and T of each example, the positions that it takes in encoder and decoder. `sha256` names the
    content; without it, it is computed when asked for.
    """

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, sha256: str = "") -> None:
        self.tokens, self.lengths, self.given = tokens, lengths, sha256
        sizes = lengths.sum(axis=1, dtype=np.int64) + 1
        self.starts = np.cumsum(sizes) - sizes

    @cached_property
    def sha256(self) -> str:
        """Return the SHA-256 of all ids and lengths."""
        content = self.tokens.tobytes() + self.lengths.tobytes()
        return self.given or hashlib.sha256(content).hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:
        start, (source, target) = self.starts[index], self.lengths[index]
        middle = start + source
        return Example(self.tokens[start:middle], self.tokens[middle : middle + target + 1])


def encode_pairs(tokenizer: Tokenizer, pairs: Iterable[Pair]) -> EncodedCorpus:
    """Encode sentence pairs, in order."""
    rows = [
        ([*tokenizer.encode(pair.source), EOS], [BOS, *tokenizer.encode(pair.target), EOS])
        for pair in pairs
    ]
    lengths = np.array([(len(s), len(t) - 1) for s, t in rows], np.int32).reshape(-1, 2)
    return EncodedCorpus(np.array([*chain(*chain(*rows))], np.int32), lengths)


class Batch(NamedTuple):
    """Sentences side by side: source (B, S) and target (B, T + 1), padded on the right with PAD."""

    source: Tensor
    target: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Copy both sides to a device, without waiting."""
        return Batch(*(side.to(device, non_blocking=True) for side in self))


def pad(rows: Sequence[Sequence[int] | np.ndarray]) -> Tensor:
    """Return rows of ids as one tensor (B, longest), filled up with PAD on the right."""
    table = np.full((len(rows), max(map(len, rows))), PAD)
    for line, row in zip(table, rows):
        line[: len(row)] = row
    return torch.from_numpy(table)


EMPTY = Example(np.array([EOS]), np.array([BOS, PAD]))  # has no label, so it adds no loss


def collate(examples: Sequence[Example]) -> Batch:
    """Return the batch of some examples; of none, a batch that adds nothing to the loss."""
    sources, targets = zip(*(examples or [EMPTY]))
    return Batch(pad(sources), pad(targets))


def snake_key(lengths: np.ndarray) -> np.ndarray:
    """Return numbers (N,) by which to sort lengths (N, 2) so that both sides change slowly.

    The longer side grows; in each of its widths the other side goes up or down by turns.
    """
    widest = lengths.max(axis=1).astype(np.int64)
    lean = lengths[:, 1] - lengths[:, 0].astype(np.int64)
    return (2 * widest.max(initial=0) + 1) * widest + np.where(widest % 2 == 0, lean, -lean)


def check_fits(lengths: np.ndarray, most: int, part: str, holder: str) -> None:
    """Raise ValueError for the first example of lengths (N, 2) that is longer than `most`."""
    widths = lengths.max(axis=1)
    if (too_long := widths > most).any():
        index = int(too_long.argmax())
        raise ValueError(
            f"{part} pair {index + 1} has {widths[index]} tokens, {holder} only {most}: drop or "
            "split the pair, or raise the limit"
        )


JITTER = 3.0  # tokens by which chance moves an example along the sorted line


def plan_batches(lengths: np.ndarray, max_tokens: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Plan an epoch: each example of lengths (N, 2) once, as numbers of a batch, batches shuffled.

    No side of a batch has more than max_tokens positions, padding included. (seed, epoch) decide
    everything. Raises ValueError for an example that does not fit into a batch by itself.
    """
    check_fits(lengths, max_tokens, "training", "a batch holds")
    rng = np.random.default_rng((seed, epoch))
    order = np.argsort(snake_key(lengths) + JITTER * rng.random(len(lengths)))
    widths, plan, start = lengths.max(axis=1).astype(np.int64)[order], list[np.ndarray](), 0
    while start < len(order):
        # A batch of n rows has n times the largest width so far
        wide = np.maximum.accumulate(widths[start : start + max_tokens // widths[start]])
        rows = np.searchsorted(wide * np.arange(1, len(wide) + 1), max_tokens, side="right")
        plan.append(order[start : start + rows])
        start += int(rows)
    return [plan[number] for number in rng.permutation(len(plan))]


class PlannedBatches(Dataset[Batch]):
    """The batches of a plan by number; each of world_size processes gets a share of the rows."""

    def __init__(
        self, corpus: EncodedCorpus, plan: list[np.ndarray], rank: int = 0, world_size: int = 1
    ) -> None:
        self.corpus, self.plan, self.rank, self.world_size = corpus, plan, rank, world_size

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, number: int) -> Batch:
        share = self.plan[number][self.rank :: self.world_size]
        return collate([self.corpus[index] for index in share])


def batches(
    corpus: EncodedCorpus, max_tokens: int, seed: int = 0, epoch: int = 0, start: int = 0,
    rank: int = 0, world_size: int = 1, gpu: bool = False,
) -> DataLoader[Batch]:  # fmt: skip
    """Return the batches of an epoch from number `start` on; see plan_batches.

    Each of `world_size` processes gets its share of every batch. For a GPU, a worker reads ahead.
    """
    plan = plan_batches(corpus.lengths, max_tokens, seed, epoch)
    return DataLoader(
        PlannedBatches(corpus, plan, rank, world_size), batch_size=None,
        sampler=range(start, len(plan)), num_workers=int(gpu), pin_memory=gpu,
        generator=torch.Generator(),
    )  # fmt: skip
