# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Batching
#
# This chapter puts sentences of different lengths into one tensor and wastes almost no work on filling up the rows (section 5.1 of the paper).

# %% tags=["export", "hide-input"]
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from annotated_transformer.data import Pair, as_pair
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer

# %% [markdown]
# A model should learn from many sentences at once. We cut two into [tokens](14_tokenization.ipynb#what-goes-in-comes-out) and lay them side by side:

# %%
from annotated_transformer.own_data import multi30k

pairs = multi30k("train")
tokenizer = Tokenizer.train(pairs, vocabulary_size=5000)
rows = [tokenizer.encode(text) for text in ("The black cat likes fish.", "A dog.")]
try:
    torch.tensor(rows)
except ValueError as error:
    print(error)

# %% [markdown]
# A tensor is a rectangle, and sentences aren't. The second row has to be filled up with tokens that mean nothing, **padding**, and the machine multiplies padding as carefully as words. How much padding there is depends on the lengths alone. Here are the means, with one position more for the token that ends a sentence:

# %%
lengths = np.array(
    [[len(tokenizer.encode(text)) + 1 for text in pair[:2]] for pair in pairs]
)
print("mean length of each side:", lengths.mean(axis=0).round(2).tolist())

# %% [markdown]
# Take these 29,000 pairs as they come, 32 to a batch, and fill each batch up to its own longest sentence. What share of the positions holds a token? Make a guess before you look at the figure.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

from book.figures import PAPER, RESIDUAL, SKY, show_plot, style

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-padding", "caption": "How much of a batch is words? The German side of 32 sentences, one per row: filled where there is a token, hatched where there is padding. The first two batches hold the same sentences. The percentage is the share of tokens."}}
style()
by_width = lengths[lengths.max(axis=1).argsort(kind="stable"), 0]
middle = len(by_width) // 2
neighbors = by_width[middle : middle + 32]
batches_of_32 = np.split(lengths[:, 0], range(32, len(lengths), 32))[:-1]
typical = sorted(batches_of_32, key=lambda rows: rows.mean() / rows.max())[
    len(batches_of_32) // 2
]
panels = {"all filled up to 72": (typical, 72)}
panels["up to the longest of the batch"] = (typical, typical.max())
panels["sentences of nearly equal length"] = (neighbors, neighbors.max())
figure, axes = plt.subplots(3, 1, figsize=(3.2, 5), layout="constrained")
for ax, (name, (row_lengths, width)) in zip(axes, panels.items()):
    ax.barh(range(32), width, height=1, fc="none", ec=RESIDUAL, hatch="////", lw=0)
    ax.barh(range(32), row_lengths, height=1, fc=SKY, ec=PAPER, lw=0.4)
    ax.set(xlim=(0, 72), ylim=(32, 0), yticks=[], xticks=[0, width])
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    useful = row_lengths.sum() / (32 * width)
    ax.set_title(f"{name}: {useful:.0%}", fontsize=9)
show_plot(
    alt="Three batches of 32 rows. Padded to 72, more than three quarters are padding; padded to the longest row, about half; with neighbors of nearly equal length, almost nothing.",
)

# %% [markdown]
# ## The cost of padding
#
# With $S$ positions in the encoder and $T$ in the decoder, the share of positions in a batch that hold a token is
#
# $$ \text{useful share} = \frac{\sum_b (S_b + T_b)}{B \, (\max_b S_b + \max_b T_b)}. $$ (eq-useful)
#
# We measure it over all pairs, for three ways to fill batches of 32. The first pads every sentence to 72, as the code of Harvard's Annotated Transformer does {cite:p}`rush2018annotated`.


# %%
def useful_share(groups):
    """Useful positions over all positions, for groups of lengths (B, 2) that share a batch."""
    useful = sum(group.sum() for group in groups)
    return float(useful / sum(len(group) * group.max(axis=0).sum() for group in groups))


def by_32(order):
    """The lengths in some order, cut into batches of 32."""
    return np.split(lengths[order], range(32, len(lengths), 32))


as_given = by_32(np.arange(len(lengths)))
by_target = by_32(lengths[:, 1].argsort(kind="stable"))
print(f"all to 72               {lengths.sum() / (len(lengths) * 144):.1%} useful")
print(f"longest of the batch    {useful_share(as_given):.1%} useful")
print(f"sorted by target length {useful_share(by_target):.1%} useful")

# %% tags=["remove-cell"]
if CHECKING:
    assert lengths.mean(axis=0).round(2).tolist() == [17.01, 16.15]
    assert round(lengths.sum() / (len(lengths) * 144), 2) == 0.23
    assert 0.5 < useful_share(as_given) < 0.55
    assert useful_share(by_target) > 0.8

# %% [markdown]
# You can check the first line by hand: a pair has $17.01 + 16.15 = 33.16$ tokens on average, which is 23% of the $2 \cdot 72 = 144$ positions. Three quarters of the work is spent on nothing, and this count is kind to padding, because the scores of [attention](12_why_self_attention.ipynb) grow with the square of the length: $72^2 = 5{,}184$ for a padded sentence, $17^2 = 289$ for an average one.
#
# Padding each batch to its own longest sentence can't do much better than one half, because among 32 sentences drawn at random one is nearly always long. Sorting helps most, but less than in the figure, which shows the German side only. Here we sorted by the target, and sentences whose targets are equally long can have sources of very different lengths.
#
# ## Tokens, not sentences
#
# But sorting brings a new problem. How much more work are the 32 longest sentences than the 32 shortest? (The last batch isn't full; we take the one before.)

# %%
for name, group in (("shortest", by_target[0]), ("longest", by_target[-2])):
    positions = int(len(group) * group.max(axis=0).sum())
    print(f"{name}: {positions:,} positions, {group[:, 1].sum():,} target tokens")

# %% tags=["remove-cell"]
if CHECKING:
    assert positions > 5 * len(by_target[0]) * by_target[0].max(axis=0).sum()

# %% [markdown]
# More than five times as much. The GPU's memory has to hold the largest batch, so in most steps most of it is unused. And one gradient is a mean over 200 target tokens, another over 1,400, so the one is far less reliable than the other.
#
# The paper therefore gives each batch a token budget, about 25,000 on each side, and lets the number of sentences follow. A batch whose longest source has $S$ positions and whose longest target has $T$ gets
#
# $$ B = \left\lfloor \frac{\text{max tokens}}{\max(S, T)} \right\rfloor \text{ rows.} $$ (eq-rows)
#
# With 1,024 tokens, enough for this small corpus, these are 128 captions of length 8, and 16 of the longest, with $S = 61$ and $T = 50$. What the encoder keeps in memory grows with $B \, S$ and what the decoder keeps with $B \, T$. Because the formula divides by the longer side, neither goes over the limit.
#
# ## From pairs to arrays
#
# To the model a pair is two lists of ids. The encoder reads one, and the decoder reads the other, [one token behind](10_transformer.ipynb#the-target-shifted-by-one) what it should say. We store the target once, from `<s>` to `</s>`; the decoder's input and its labels are two slices of it. The source gets an `</s>` but no `<s>`, since nothing has to be started there.


# %% tags=["export"]
class Example(NamedTuple):
    """A pair in token ids: source (S,) ends with EOS, target (T + 1,) goes from BOS to EOS."""

    source: np.ndarray
    target: np.ndarray


# %% [markdown]
# A corpus may have millions of pairs, so we keep all ids in one long array, and in a second one the lengths $S$ and $T$ of each example. An example takes $S + T + 1$ ids, and where each begins is a running sum. Its two slices are views, so nothing is copied, and the arrays may as well lie [on disk](28_corpus.ipynb#the-folder).


# %% tags=["export"]
@dataclass(eq=False)
class EncodedCorpus:
    """Examples in two flat arrays, which may lie in memory or in a mapped file.

    `tokens` holds all ids, example after example, source before target. `lengths` (N, 2) holds S
    and T of each example, the positions that it takes in encoder and decoder.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    def __post_init__(self) -> None:
        sizes = self.lengths.sum(axis=1, dtype=np.int64) + 1
        self.starts = np.cumsum(sizes) - sizes

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:
        source_length, target_length = self.lengths[index]
        start = self.starts[index]
        middle = start + source_length
        end = middle + target_length + 1
        return Example(self.tokens[start:middle], self.tokens[middle:end])


# %% tags=["export"]
def encode_pairs(tokenizer: Tokenizer, pairs: Iterable[Pair]) -> EncodedCorpus:
    """Encode sentence pairs, in order; a pair may be a plain tuple of two texts."""
    tokens: list[int] = []
    lengths: list[tuple[int, int]] = []
    for pair in map(as_pair, pairs):
        source = [*tokenizer.encode(pair.source), EOS]
        target = [BOS, *tokenizer.encode(pair.target), EOS]
        tokens += source + target
        lengths.append((len(source), len(target) - 1))
    return EncodedCorpus(
        np.array(tokens, np.int32), np.array(lengths, np.int64).reshape(-1, 2)
    )


# %%
corpus = encode_pairs(tokenizer, pairs)
likes = Pair("Die schwarze Katze mag Fisch.", "The black cat likes fish.")
two = encode_pairs(tokenizer, [likes, Pair("Ein Hund.", "A dog.")])
print(len(corpus), "examples,", len(corpus.tokens), "ids")
print("S and T of the two:", two.lengths.tolist())

# %% tags=["remove-cell"]
if CHECKING:
    assert np.array_equal(corpus.lengths, lengths)
    assert two.lengths[0].tolist() == [7, 9]
    assert two[0].source.tolist() == [*tokenizer.encode(likes.source), EOS]
    assert two[0].target.tolist() == [BOS, *tokenizer.encode(likes.target), EOS]

# %% [markdown]
# A **batch** is two tensors, one per side, each as wide as its longest row.
#
# **Exercise 1. Write it first** (★, 5 min). Write `pad(rows)`: from lists of ids to one tensor, with 0 on the right where a row is too short. `torch.nn.utils.rnn.pad_sequence` does the same for rows that are tensors; compare with it.


# %% tags=["export"]
class Batch(NamedTuple):
    """Sentences side by side: source (B, S) and target (B, T + 1), padded on the right with PAD."""

    source: Tensor
    target: Tensor


def pad(rows: Sequence[Sequence[int] | np.ndarray]) -> Tensor:
    """Return rows of ids as one tensor (B, longest), filled up with PAD on the right."""
    longest = max(len(row) for row in rows)
    table = np.full((len(rows), longest), PAD, np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return torch.from_numpy(table)


def collate(examples: Sequence[Example]) -> Batch:
    """Return the batch of some examples."""
    sources = [example.source for example in examples]
    targets = [example.target for example in examples]
    return Batch(pad(sources), pad(targets))


# %%
batch = collate([two[0], two[1]])
print(batch.source)

# %% tags=["remove-cell"]
if CHECKING:
    by_torch = [torch.from_numpy(example.source) for example in two]
    by_torch = torch.nn.utils.rnn.pad_sequence(by_torch, batch_first=True)
    assert torch.equal(batch.source, by_torch.long())

# %% [markdown]
# Padding costs time and memory. What the model computes for the two sentences stays the same, as long as no word attends to padding ([the mask](04_masks.ipynb#the-padding-mask) compares with 0) and the loss [leaves it out](17_regularization.ipynb#padding-doesnt-count).
#
# ## Neighbors along a line
#
# Which sentences should share a batch? Each example is a point $(S, T)$ in a plane, and we need one line through all points on which neighbors have nearly the same $S$ and nearly the same $T$. We sort by the longer side first, the *width* $w = \max(S, T)$, because {eq}`eq-rows` divides by it. Among examples of one width we sort by the difference $T - S$: upwards in one width, downwards in the next, so that the line goes back and forth like a snake.
#
# All of this is a sort by one number for each example. With $W$ for the widest of all, it is
#
# $$ \text{key} = (2W + 1) \, w \pm (T - S), $$ (eq-snake)
#
# plus where $w$ is even and minus where it is odd. The difference $T - S$ is always smaller than $w$, so widths don't mix.


# %% tags=["export"]
def snake_key(lengths: np.ndarray) -> np.ndarray:
    """Return numbers (N,) by which to sort lengths (N, 2) so that both sides change slowly.

    The longer side grows; in each of its widths T - S goes up or down by turns.
    """
    width = lengths.max(axis=1).astype(np.int64)
    difference = lengths[:, 1].astype(np.int64) - lengths[:, 0]
    signed = np.where(width % 2 == 0, difference, -difference)
    return (2 * width.max(initial=0) + 1) * width + signed


# %% [markdown]
# What is the second half of the key worth? We compare the width alone, the width and then $T - S$ upwards each time, and the snake. In every epoch we want other batches, so a random number is added to each key, too small to mix two widths.

# %%
chance = np.random.default_rng(0).random(len(lengths))  # from 0 to 1
width = lengths.max(axis=1)
keys = {
    "width alone": width + chance,
    "width, then T - S": 200 * width + (lengths[:, 1] - lengths[:, 0]) + 3 * chance,
    "snake": snake_key(lengths) + 3 * chance,
}
for name, key in keys.items():
    print(f"{name:18} {useful_share(by_32(key.argsort(kind='stable'))):.1%} useful")

# %% tags=["remove-cell"]
if CHECKING:
    gained = [useful_share(by_32(key.argsort(kind="stable"))) for key in keys.values()]
    assert gained[1] - gained[0] > 0.025 and 0 < gained[2] - gained[1] < 0.01

# %% [markdown]
# With the width alone, chance decides the other side, and 6.5% of the work is padding. Sorting by the difference as well halves that. The turn of the snake adds a little: without it, the shorter side jumps from one end to the other wherever the width grows.
#
# ## A plan for an epoch
#
# We walk along the line and fill a batch until {eq}`eq-rows` allows no more. Widths only grow along the line, so $n$ rows take $n$ times the width of the last one. A sentence that is longer than the whole budget fits into no batch, and must not be dropped without a word:


# %% tags=["export"]
def check_fits(lengths: np.ndarray, most: int, part: str, holder: str) -> None:
    """Raise ValueError for the first example of lengths (N, 2) that is longer than `most`."""
    widths = lengths.max(axis=1)
    too_long = np.flatnonzero(widths > most)
    if len(too_long):
        first = int(too_long[0])
        raise ValueError(
            f"{part} pair {first + 1} has {widths[first]} tokens, {holder} allows {most}: "
            f"drop or split the pair, or raise {holder}"
        )


# %% [markdown]
# Chance enters the plan in two places. The random number that is added to each key, the **jitter**, shuffles examples of equal lengths and swaps nearly equal ones. It never mixes two widths, whose keys are at least 4 apart. And once the batches are cut, they are shuffled, or the model would see all short sentences first.


# %% tags=["export"]
JITTER = 3.0  # how far chance moves an example along the line; below 4, it mixes no two widths


def plan_batches(
    lengths: np.ndarray, max_tokens: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Plan an epoch: each example of lengths (N, 2) once, as numbers of a batch, batches shuffled.

    No side of a batch has more than max_tokens positions, padding included. (seed, epoch) decide
    everything. Raises ValueError for an example that is longer than that.
    """
    check_fits(lengths, max_tokens, "training", "max_tokens")
    widths = lengths.max(axis=1)
    chance = np.random.default_rng((seed, epoch))
    key = snake_key(lengths) + JITTER * chance.random(len(lengths))
    order = np.argsort(key, kind="stable")
    batches = []
    start = 0
    for end, width in enumerate(widths[order].tolist()):
        if (end + 1 - start) * width > max_tokens:
            batches.append(order[start:end])
            start = end
    if len(order):
        batches.append(order[start:])
    return [batches[number] for number in chance.permutation(len(batches))]


# %% [markdown]
# The generator gets seed and epoch as a pair and decides everything, so a run that was interrupted can make the same plan again.
#
# :::{margin}
# With their sum, seed 0 in epoch 1 would be seed 1 in epoch 0.
# :::
#
# Does the plan keep its promises?

# %%
for budget in (1024, 4096):
    plan = plan_batches(lengths, budget, seed=0, epoch=0)
    groups = [lengths[batch] for batch in plan]
    largest = max(len(group) * group.max() for group in groups)
    print(f"{len(plan)} batches, none over {largest:,} positions per side")
    print(f"    {useful_share(groups):.1%} useful")

# %% tags=["remove-cell"]
if CHECKING:
    plans = [plan_batches(lengths, 1024, seed=0, epoch=epoch) for epoch in (0, 1)]
    company = []
    for plan in plans:
        assert np.array_equal(np.sort(np.concatenate(plan)), np.arange(len(corpus)))
        pairs_of = [np.sort(b)[np.array(np.triu_indices(len(b), 1))] for b in plan]
        company.append(np.concatenate([i * len(corpus) + j for i, j in pairs_of]))
    again = len(np.intersect1d(*company, assume_unique=True)) / len(company[0])
    assert round(again, 2) == 0.13
    assert max(len(b) * lengths[b].max() for plan in plans for b in plan) <= 1024
    longest = lengths[lengths.max(axis=1).argmax()].tolist()
    assert longest == [61, 50] and (1024 // 8, 1024 // 61) == (128, 16)
    assert 0.965 < useful_share([lengths[b] for b in plans[0]]) < 0.975
    assert 0.95 < useful_share(groups) < 0.96

# %% [markdown]
# 97% of the work is done on tokens, where padding to 72 had 23%. Of the pairs of captions that share a batch, only 13% share one again in the next epoch. A larger batch spans more lengths, so 4,096 reaches only 95%; a larger corpus has more sentences of each length.
#
# ## From the plan to the batches
#
# A training loop reads a stream, in which each batch is made when its turn comes:


# %% tags=["export"]
def batches(
    corpus: EncodedCorpus, max_tokens: int, seed: int = 0, epoch: int = 0
) -> Iterator[Batch]:
    """Yield the batches of an epoch, each example once; see plan_batches."""
    for numbers in plan_batches(corpus.lengths, max_tokens, seed, epoch):
        yield collate([corpus[number] for number in numbers])


# %% [markdown]
# ## What to remember
#
# - Padding is work. One length for all wastes three quarters of it; sentences of equal length together waste almost none.
# - A budget counts tokens, so that each step is about the same amount of work.
# - Sort so that both lengths change slowly, let chance move examples a little, cut by tokens, shuffle the batches.
# - The plan of an epoch follows from (seed, epoch), and each sentence is in it exactly once.
#
# ## Exercises
#
# **1. Write it first** is [above](#from-pairs-to-arrays).
#
# :::{admonition} Solution 1
# :class: dropdown
# Make a table of zeros first, `torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)`, and write each row into its left end. The type has to be an integer, or the embedding refuses the ids. Without tensors it is one line: `torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])`.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    ids = [e.source.tolist() for e in two]
    wide = max(map(len, ids))
    filled = torch.tensor([[*row, *[0] * (wide - len(row))] for row in ids])
    assert torch.equal(pad(ids), filled)

# %% [markdown]
# **2. By hand** (★, 5 min). Three examples have lengths (4, 5), (6, 3) and (5, 5). What is their useful share in one batch? And how many rows of lengths (20, 25) fit into the paper's 25,000 tokens?
#
# :::{admonition} Solution 2
# :class: dropdown
# They have $9 + 9 + 10 = 28$ tokens. The batch is as wide as the longest on each side, so it has $3 \cdot (6 + 5) = 33$ positions, and $28 / 33 = 85\,\%$. The longer side of (20, 25) is 25, so $25{,}000 / 25 = 1{,}000$ rows fit.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert useful_share([np.array([(4, 5), (6, 3), (5, 5)])]) == 28 / 33

# %% [markdown]
# **3. How much chance?** (★, 10 min). Sort by the snake's key and cut batches of 32 without jitter, with 3, and with 300. What does each cost, and why is the last so much worse?
#
# :::{admonition} Solution 3
# :class: dropdown
# Without jitter 99.1% are useful, but every epoch has the same batches. A jitter of 3 costs two points: 97.1%. With 300 the useful share falls to 89.6%. In {eq}`eq-snake`, $2W + 1 = 123$, so the jitter reaches across two widths and mixes them.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert 2 * lengths.max() + 1 == 123
    for jitter, useful in {0: 0.991, 3: 0.971, 300: 0.896}.items():
        order = (snake_key(lengths) + jitter * chance).argsort(kind="stable")
        assert round(useful_share(by_32(order)), 3) == useful

# %% [markdown]
# ## Further
#
# ### Why pad on the right?
#
# [Positions](08_positional_encoding.ipynb#adding-positions-in-code) are added by column. With padding on the left, the first word would be in column 0 in one batch and in column 9 in another.
#
# ### Why not pack several sentences into one row?
#
# Then no padding is needed at all, but each sentence needs masks that keep it from its neighbors in the row, in all three attentions, and positions that begin anew. With 97% useful, packing could make training at most $1 / 0.97 = 1.03$ times as fast. For language models, which read documents of very different lengths, there is more to gain, and packing is the rule.
#
# ### What does the paper say?
#
# Section 5.1 of {cite:t}`vaswani2017attention` says that pairs of about the same length were batched together, with some 25,000 tokens per side. The authors' code sorts sentences into buckets by their longer side and divides the budget by the bucket's width: [`data_reader.py`](https://github.com/tensorflow/tensor2tensor/blob/014f222ffecb566ec013fcc2a215ae5a4b910ccf/tensor2tensor/utils/data_reader.py) of tensor2tensor. Its buckets look at the width alone, like the first of our three keys.
