# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(
        [
            "git",
            "clone",
            "-q",
            "--depth",
            "1",
            "https://github.com/annotated-transformer/annotated-transformer",
            "/content/book",
        ],
        check=True,
    )
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown] needs=["multi30k"]
# # Batching
#
# This chapter packs sentences of different lengths into tensors and wastes almost none of the work (section 5.1 of the paper).
#
# A tensor is a rectangle and sentences are not. Short ones are filled up with padding, and the machine multiplies padding as carefully as words. A popular tutorial pads every sentence to 72 positions. Our first question is what that costs.
#
# The answer is: three quarters of the training. So we go towards less waste, one step at a time. First, sentences of about equal length come together. Then we count tokens in place of sentences, so that all batches are about the same amount of work. Last, a little chance changes the company of a sentence from epoch to epoch, in a plan that two numbers can bring back. Each step is one short function, and each is worked by hand on nine tiny examples before it meets 29,000 real ones.

# %% tags=["export"]
import hashlib
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from annotated_transformer.data import Pair
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer

# %%
import matplotlib.pyplot as plt
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer.data import multi30k
from book.figures import INK, QUERY, RESIDUAL, VALUE, style

# %% [markdown]
# ## An example
#
# To the model a pair is two lists of numbers. Take *Ein Hund.* and *A dog.* The encoder reads one list. The decoder reads the other and should say it at the same time, one token ahead:
#
# | | tokens | positions |
# |---|---|---|
# | the encoder reads | `Ein` `Hund` `.` `</s>` | $S = 4$ |
# | the decoder reads | `<s>` `A` `dog` `.` | $T = 4$ |
# | the decoder should say | `A` `dog` `.` `</s>` | the same 4 |
#
# The last two rows are one list, seen without its last token and without its first. So we store it once, with $T + 1 = 5$ tokens, and the model's input and its labels are two slices of it.
#
# Each of the special tokens has its job. Without `<s>` the decoder would have nothing to read where it must say *A*. Without `</s>` among the labels it would never learn to stop. The source needs no `<s>`, since nothing has to be started there. It has an `</s>` so that even an empty sentence has a token to attend to: a softmax over no keys at all has no answer.


# %% tags=["export"]
class Example(NamedTuple):
    """A pair in token ids: source (S,) ends with EOS, target (T + 1,) goes from BOS to EOS."""

    source: np.ndarray
    target: np.ndarray


# %% [markdown]
# What counts from now on are the **lengths** of an example: the $S$ positions that the encoder reads and the $T$ positions that the decoder reads. The decoder never reads the last token of the target, so $T$ is one less than the target's length.
#
# ## A corpus is two arrays
#
# A corpus has millions of examples. As Python objects, each of their numbers would take some thirty bytes and a place of its own in memory. So all ids stand in one array, sentence after sentence, and a second array holds the lengths. Where an example begins is a running sum of the lengths before it. An example is then two slices, which are views and no copies.
#
# Such arrays can also lie in files that are mapped into memory. [Large corpora](D_large_corpora.ipynb) are read that way, by the same class. They know their hash already; for others it is computed. A training keeps it, to notice when somebody continues with other sentences.


# %% tags=["export"]
@dataclass(eq=False)
class EncodedCorpus(Dataset[Example]):
    """Examples in two flat arrays, which may lie in memory or in a mapped file.

    `tokens` holds all ids, example after example, source before target. `lengths` (N, 2) holds S
    and T of each example, the positions that it takes in encoder and decoder. `sha256` names the
    content; without it, it is computed.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    sha256: str = ""

    def __post_init__(self) -> None:
        sizes = self.lengths.sum(axis=1, dtype=np.int64) + 1
        self.starts = np.cumsum(sizes) - sizes
        if not self.sha256:
            content = self.tokens.tobytes() + self.lengths.tobytes()
            self.sha256 = hashlib.sha256(content).hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:
        start, (source, target) = self.starts[index], self.lengths[index]
        middle = start + source
        return Example(self.tokens[start:middle], self.tokens[middle : middle + target + 1])


# %% [markdown]
# The `+ 1` is the token that makes a target one longer than $T$. The sums are of 64 bits whatever the lengths are stored as, since the ids of a large corpus outnumber what 32 bits can count.
#
# Text becomes such a corpus in one pass: encode both sides, put the special tokens where they belong, and join all rows.


# %% tags=["export"]
def encode_pairs(tokenizer: Tokenizer, pairs: Iterable[Pair]) -> EncodedCorpus:
    """Encode sentence pairs, in order."""
    rows = list[list[int]]()
    for source, target, *_ in pairs:
        rows += [*tokenizer.encode(source), EOS], [BOS, *tokenizer.encode(target), EOS]
    lengths = np.array([*map(len, rows)], np.int64).reshape(-1, 2) - [0, 1]
    return EncodedCorpus(np.array([*chain(*rows)], np.int32), lengths)


# %% [markdown]
# The captions of Multi30k are our corpus, with a vocabulary of 5,000 entries.

# %%
pairs = multi30k("train")
tokenizer = Tokenizer.train(pairs, vocabulary_size=5000)
corpus = encode_pairs(tokenizer, pairs)
lengths = corpus.lengths
print(f"{len(corpus):,} examples in {len(corpus.tokens):,} ids;")
print(f"S from {lengths[:, 0].min()} to {lengths[:, 0].max()},", end=" ")
print(f"T from {lengths[:, 1].min()} to {lengths[:, 1].max()},", end=" ")
print("on average", lengths.mean(axis=0).round(2).tolist())

# %%
dog = encode_pairs(tokenizer, [Pair("Ein Hund.", "A dog.")])
print("source", dog[0].source, "target", dog[0].target)
print("S and T:", dog.lengths.tolist())

# %% [markdown]
# Both words are frequent enough to be one token each. The 1 is `<s>`, the 2 is `</s>`, and 17 is the full stop on either side, as the two languages share one vocabulary.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-lengths", "caption": "How long are captions? Each dot is as large as there are captions with S positions in the encoder and T in the decoder. Most lie near the diagonal: a long sentence has a long translation."}, "image": {"alt": "A cloud along the diagonal, densest near 14 positions on either side, thinning out above 30."}}
style()
cells, counts = np.unique(lengths, axis=0, return_counts=True)
figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.scatter(cells[:, 0], cells[:, 1], s=counts / 4, color=INK, alpha=0.6, linewidths=0)
axes.axline((0, 0), slope=1, color=RESIDUAL, lw=0.8, ls="--")
axes.set(xlim=(0, 62), ylim=(0, 62), aspect="equal", xlabel="S: source", ylabel="T: target")
plt.show()

# %% [markdown]
# ## From rows to a tensor
#
# Two sentences side by side make no tensor, unless they happen to be equally long. PyTorch says so at once:

# %%
rows = [[7, 8, EOS], [9, EOS]]
try:
    torch.tensor(rows)
except ValueError as error:
    print("refused:", type(error).__name__)

# %% [markdown]
# So the shorter row is filled up with the token for padding, which is 0. A **batch** is two such tensors, one a side, each as wide as its longest sentence.
#
# A batch of no sentences at all may come up where [several processes](26_distributed.ipynb) share a small one. It gets an empty sentence: `</s>` on one side, `<s>` on the other, and no label. The encoder has a token to attend to, and the loss has nothing to count.


# %% tags=["export"]
class Batch(NamedTuple):
    """Sentences side by side: source (B, S) and target (B, T + 1), padded on the right with PAD."""

    source: Tensor
    target: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Copy both sides to a device, without waiting."""
        return Batch(*(side.to(device, non_blocking=True) for side in self))


def pad(rows: Sequence[Sequence[int] | np.ndarray]) -> Tensor:
    """Return rows of ids as one tensor (B, longest), filled up with PAD on the right."""
    table = np.full((len(rows), max(map(len, rows))), PAD, np.int64)
    for line, row in zip(table, rows):
        line[: len(row)] = row
    return torch.from_numpy(table)


EMPTY = Example(np.array([EOS]), np.array([BOS, PAD]))  # has no label, so it adds no loss


def collate(examples: Sequence[Example]) -> Batch:
    """Return the batch of some examples; of none, a batch that adds nothing to the loss."""
    sources, targets = zip(*(examples or [EMPTY]))
    return Batch(pad(sources), pad(targets))


# %%
toy_batch = [Example(*map(np.array, ([7, 8, EOS], [BOS, 5, EOS])))]
toy_batch += [Example(*map(np.array, ([9, EOS], [BOS, 5, 6, 7, EOS])))]
print(collate(toy_batch).source)
print(collate(toy_batch).target)

# %% [markdown]
# Two sentences, at most three positions in the source and at most four in the target: the tensors are (2, 3) and (2, 5). The second has one column more than $T$, because it holds both what the decoder reads and what it should say.
#
# PyTorch has a function of this kind, and it is our reference. It takes tensors; ours takes any rows of numbers, an array full of padding with each row written over the beginning of a line.

# %%
assert torch.equal(pad(rows), pad_sequence([torch.tensor(row) for row in rows], batch_first=True))
print("the same")

# %% [markdown]
# ### Why on the right and not on the left?
#
# Because position 0 is where a sentence begins. The [positional encoding](08_positional_encoding.ipynb) is added by column. With padding on the left, the first word would stand in column 0 in one batch and in column 9 in another, depending on its neighbors. Language models without an encoder are often padded on the left when they write: each must go on from the end of its text, and these ends should share a column. Our decoder always begins anew, at `<s>`.
#
# ### Where is the attention mask?
#
# Other libraries hand one along with the tokens. We do not need to, since padding has a token of its own: [`padding_mask`](04_masks.ipynb) finds it by comparing with 0. So there is no second tensor that could disagree with the first.
#
# ## What padding costs
#
# The share of positions in a batch that hold a word is
#
# $$ \text{useful share} = \frac{\sum_b (S_b + T_b)}{B \, (\max_b S_b + \max_b T_b)}. $$ (eq-useful)
#
# In the batch above the sentences need $(3 + 2) + (2 + 4) = 11$ positions. The batch has $2 \cdot (3 + 4) = 14$, so 79 % are useful.
#
# We measure it over the whole corpus, for four ways to fill batches of 32. Pad all to 72. Pad all to the longest of the corpus. Pad each batch to its own longest. Or sort by length first, and then pad.


# %%
def useful_share(groups):
    """Return useful positions over all positions, for groups of lengths (B, 2) that share a batch."""
    all_positions = sum(len(group) * group.max(axis=0).sum() for group in groups)
    return float(sum(group.sum() for group in groups) / all_positions)


def by_32(order):
    """Cut the lengths, taken in some order, into batches of 32."""
    return np.split(lengths[order], range(32, len(lengths), 32))


as_given = np.arange(len(lengths))
by_target = lengths[:, 1].argsort(kind="stable")
shares = {
    "all to 72": float(lengths.sum() / (len(lengths) * 144)),
    "longest of the corpus": useful_share([lengths]),
    "longest of the batch": useful_share(by_32(as_given)),
    "sorted by target length": useful_share(by_32(by_target)),
}
for name, share in shares.items():
    print(f"{name:24} {share:6.1%} useful")

# %% [markdown]
# The first line can be checked by hand. A caption has 17.01 positions in the source on average and 16.15 in the target, together 33.16, and $33.16 / 144$ is 23 %. Three quarters of the work are spent on nothing. And this count is kind to padding. The scores of [attention](03_attention.ipynb) grow with the square of the length: $72^2 = 5{,}184$ for a padded sentence, $17^2 = 289$ for an average one, 18 times as many.
#
# Padding each batch to its own longest is not enough, because among 32 random captions one is nearly always long. Sorting is the step that counts.
#
# ### Does padding change the result?
#
# Not if three things are right. No word attends to padding: [masks](04_masks.ipynb) proves it. The loss leaves padding out, and divides by the number of real tokens: [regularization](17_regularization.ipynb) shows what happens otherwise. And words keep their positions, which padding on the right sees to. Then padding costs time and nothing else.
#
# ## Tokens, not sentences
#
# Sorting helps, and it brings a new problem. How much work are 32 short sentences, and how much are 32 long ones?

# %%
groups = by_32(by_target)
for name, group in (("shortest", groups[0]), ("longest", groups[-2])):
    print(f"{name}: {int(len(group) * group.max(axis=0).sum()):,} positions")

# %% [markdown]
# More than five times as much. A GPU's memory has to hold the largest batch, so the longest sentences decide how many rows we can afford, and in all other steps most of the machine is idle. The gradients are uneven as well: one is the mean over a few hundred words, the next over a few thousand.
#
# So the paper fixes the number of *tokens* and lets the number of sentences follow: about 25,000 on each side. A shape $(S, T)$ then has room for
#
# $$ B = \left\lfloor \frac{\text{max tokens}}{\max(S, T)} \right\rfloor \text{ rows.} $$ (eq-rows)
#
# We will use 1,024 tokens in this chapter. For captions with $S = T = 8$ that makes $1{,}024 / 8 = 128$ rows. For the longest ones, with $S = 61$ and $T = 52$, it makes 16: the source side has $16 \cdot 61 = 976$ positions, and a 17th row would make it 1,037.
#
# ### Why the longer side, and not the sum of both?
#
# The paper has one limit for each side. What the encoder keeps in memory grows with $B \, S$, and what the decoder keeps grows with $B \, T$. With the longer side in {eq}`eq-rows`, neither goes over the limit.
#
# ### Why does padding count?
#
# Because a position takes up memory whether a word is in it or not. Suppose we counted words alone. One sentence of 60 and 120 sentences of 8 have $60 + 960 = 1{,}020$ words, which seems to fit. But the batch is 121 rows of 60, that is 7,260 positions: seven times the budget, and perhaps the end of the training. A limit on positions can be relied on, a limit on words cannot.
#
# ### How many tokens should a batch have?
#
# Enough for a gradient that is not all noise, and few enough for the memory. The largest tensor is usually that of the logits, with one number for each position in the target and each entry of the vocabulary. With the paper's numbers these are $25{,}000 \cdot 37{,}000$ numbers of 4 bytes, 3.7 GB, and their gradient is as large. With 1,024 tokens and 5,000 entries it is 20 MB. If memory is short, [training](18_training.ipynb) adds up the gradients of several small batches, which gives the same update.
#
# ## Which sentences are neighbors?
#
# Sorting by the target alone leaves the sources of a batch ragged. Many toolkits sort by source and, among equal sources, by target. Then the targets grow from short to long within one source length and fall back to short at the next. A batch that reaches across such a jump is as ragged as before. We need an order in which *both* lengths change slowly.
#
# What matters first, says {eq}`eq-rows`, is the longer of the two sides. Among examples with the same longer side we go from those with a longer source to those with a longer target. In the next width we come back the other way, as one plows a field. So no step of the way is a jump.
#
# Any order can be had from a sort, if each example gets the right number as its key. With $w = \max(S, T)$ and $W$ the widest of all, our key is $(2W + 1) \, w \pm (T - S)$, with plus where $w$ is even and minus where it is odd. The difference lies between $-(w - 1)$ and $w - 1$, and the keys of the next width are $2W + 1$ away, so no two widths can mix. Here are nine examples with all lengths from 1 to 3, where $2W + 1 = 7$, in the order of their keys:
#
# | $(S, T)$ | $w$ | $T - S$ | key |
# |---|---|---|---|
# | (1, 1) | 1 | 0 | 7 − 0 = 7 |
# | (2, 1) | 2 | −1 | 14 − 1 = 13 |
# | (2, 2) | 2 | 0 | 14 + 0 = 14 |
# | (1, 2) | 2 | 1 | 14 + 1 = 15 |
# | (1, 3) | 3 | 2 | 21 − 2 = 19 |
# | (2, 3) | 3 | 1 | 21 − 1 = 20 |
# | (3, 3) | 3 | 0 | 21 − 0 = 21 |
# | (3, 2) | 3 | −1 | 21 + 1 = 22 |
# | (3, 1) | 3 | −2 | 21 + 2 = 23 |
#
# From each row to the next, a length changes by one at most. Without the change of sign, (1, 2) would be followed by (3, 1).


# %% tags=["export"]
def snake_key(lengths: np.ndarray) -> np.ndarray:
    """Return numbers (N,) by which to sort lengths (N, 2) so that both sides change slowly.

    The longer side grows; in each of its widths the other side goes up or down by turns.
    """
    widest = lengths.max(axis=1).astype(np.int64)
    lean = lengths[:, 1] - lengths[:, 0].astype(np.int64)
    return (2 * widest.max(initial=0) + 1) * widest + np.where(widest % 2 == 0, lean, -lean)


# %%
toy = np.array([(s, t) for s in (1, 2, 3) for t in (1, 2, 3)])
print(np.sort(snake_key(toy)).tolist())
print(" ".join(str(tuple(pair)) for pair in toy[snake_key(toy).argsort()].tolist()))

# %% [markdown]
# That is the table. The keys are of 64 bits, whatever the lengths are stored as: $(2W + 1)\, w$ grows with the square of the longest sentence.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-snake", "caption": "In which order do we pick examples up? The line passes every pair of lengths up to 12 positions once, and hardly ever changes a length by more than one. Cutting it into pieces gives batches of nearly equal sentences."}, "image": {"alt": "A line that goes back and forth in L-shaped turns around the corner, growing outward."}}
field = np.array([(s, t) for s in range(1, 13) for t in range(1, 13)])
path = field[snake_key(field).argsort()]
figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
axes.plot(path[:, 0], path[:, 1], color=QUERY, lw=1.3, marker="o", ms=3)
axes.set(aspect="equal", xlabel="S: source", ylabel="T: target")
plt.show()

# %%
orders = {
    "by source, then target": (100 * lengths[:, 0] + lengths[:, 1]).argsort(kind="stable"),
    "snake order": snake_key(lengths).argsort(kind="stable"),
}
for name, order in orders.items():
    shares[name] = useful_share(by_32(order))
    print(f"{name:24} {shares[name]:6.1%} useful")
assert shares["snake order"] == max(shares.values())

# %% [markdown]
# ## Cutting the line into batches
#
# We walk along the line and fill a batch until {eq}`eq-rows` allows no more. For the nine examples, let the budget be 6 tokens. The first is (1, 1), and 1 row of width 1 makes 1 position on the longer side. Two rows make $2 \cdot 2 = 4$, three make $3 \cdot 2 = 6$, four would make $4 \cdot 2 = 8$. So the first batch has three rows, and its lengths are the widest on each side: (2, 2).
#
# Where does a batch end? Widths only grow along the line, so $n$ rows are $n$ times as many positions as the width of the last of them. These products grow as well. Once one is too many, all later ones are, and NumPy's `searchsorted` finds the border by bisection, as one finds a name in a telephone book.
#
# One thing must be checked before. An example that is longer than the budget fits into no batch, not even alone. The walk would find that zero rows fit, and never move on. To drop such an example in silence is no better: a reader would wonder later where a part of the corpus went. So there is an error that says which one it is and what can be done. [Training](18_training.ipynb) asks the same of the model's positions, so the limit and its name are arguments.


# %% tags=["export"]
def check_fits(lengths: np.ndarray, most: int, part: str, holder: str) -> None:
    """Raise ValueError for the first example of lengths (N, 2) that is longer than `most`."""
    widths = lengths.max(axis=1)
    if (too_long := widths > most).any():
        index = int(too_long.argmax())
        what = f"{part} pair {index + 1} has {widths[index]} tokens, {holder} only {most}"
        raise ValueError(f"{what}: drop or split the pair, or raise the limit")


# %%
try:
    check_fits(np.array([(3, 3), (60, 2)]), 50, "training", "a batch holds")
except ValueError as error:
    print(error)

# %% [markdown]
# ## Chance, and where it belongs
#
# With the same batches in the same order each time, a sentence would always be seen with the same others, and the model would see all short sentences first. So chance enters in two places:
#
# 1. **Along the line.** Each key is raised by a random number from 0 to 3, the **jitter**. Examples of equal lengths are shuffled by it, and examples of nearly equal lengths change places. It never mixes two widths, since between their keys are at least 4. ($2W + 1$ is the distance of two neighboring widths $w$ and $w + 1$, the differences take $w - 1$ from one side and $w$ from the other, and $2W + 2 - 2w$ is 4 or more.) So widths still only grow along the line.
# 2. **In the order of the batches**, which are shuffled.
#
# All of it follows from (seed, epoch). A training that was interrupted need not remember any of it.


# %% tags=["export"]
JITTER = 3.0  # how far chance moves an example along the line; below 4, it mixes no two widths


def plan_batches(lengths: np.ndarray, max_tokens: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Plan an epoch: each example of lengths (N, 2) once, as numbers of a batch, batches shuffled.

    No side of a batch has more than max_tokens positions, padding included. (seed, epoch) decide
    everything. Raises ValueError for an example that does not fit into a batch by itself.
    """
    check_fits(lengths, max_tokens, "training", "a batch holds")
    rng = np.random.default_rng((seed, epoch))
    order = np.argsort(snake_key(lengths) + JITTER * rng.random(len(lengths)), kind="stable")
    widths, plan, start = lengths.max(axis=1).astype(np.int64)[order], list[np.ndarray](), 0
    while start < len(order):
        wide = widths[start : start + max_tokens // widths[start]]
        rows = np.searchsorted(wide * np.arange(1, len(wide) + 1), max_tokens, side="right")
        plan.append(order[start : start + rows])
        start += int(rows)
    return [plan[number] for number in rng.permutation(len(plan))]


# %% [markdown]
# A batch of the plan is an array with the numbers of its examples. In the toy, with 6 tokens:

# %%
for epoch in (0, 1):
    plan = plan_batches(toy, max_tokens=6, seed=0, epoch=epoch)
    print([sorted(map(tuple, toy[batch].tolist())) for batch in plan])

# %% [markdown]
# ### Why not simply seed + epoch?
#
# Because seed 0 in epoch 1 would then be seed 1 in epoch 0. Whoever trains with three seeds, to see how far results scatter, would get three runs that read almost the same plans, one epoch apart. NumPy's generator takes a pair of numbers and keeps the two apart.
#
# ## From the plan to the batches
#
# PyTorch's `DataLoader` does the rest. It takes a data set, which our corpus is: something with a length and with elements by number. Its `batch_sampler` says which elements make a batch, one batch after the other, and that is just what a plan is. `collate` makes a batch of them when its turn comes. To enter a plan in the middle, we leave out its beginning, and no batch before `start` is ever made.
#
# For a GPU, a second process makes the next batches while the model works on this one, in memory that the GPU can copy from without waiting (`pin_memory`). On a CPU both would only fight for the same cores.
#
# When [several processes](26_distributed.ipynb) train together, each one takes every `world_size`-th row of a batch, and makes no rows that another one computes.


# %% tags=["export"]
def ignore_signals(worker: int) -> None:
    """Leave SIGTERM and SIGINT to the process that trains, which ends its worker itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def batches(
    corpus: EncodedCorpus, max_tokens: int, seed: int = 0, epoch: int = 0, start: int = 0,
    rank: int = 0, world_size: int = 1, gpu: bool = False,
) -> DataLoader[Example]:  # fmt: skip
    """Return the batches of an epoch from number `start` on; see plan_batches.

    Each of `world_size` processes gets its share of every batch. For a GPU, a worker reads ahead.
    """
    plan: list[Any] = plan_batches(corpus.lengths, max_tokens, seed, epoch)[start:]
    return DataLoader(
        corpus, batch_sampler=[batch[rank::world_size] for batch in plan], collate_fn=collate,
        num_workers=int(gpu), pin_memory=gpu, worker_init_fn=ignore_signals,
        generator=torch.Generator(),
    )  # fmt: skip


# %% [markdown]
# Two arguments are there for the peace of others. A cluster that ends a job sends its signal to all processes of it; the worker should not die of it before [the training](18_training.ipynb) has saved its state. And a `DataLoader` draws a number when it starts, which without a generator of its own would come from the global one.
#
# ## What the plan promises
#
# Every sentence exactly once an epoch. No side over the budget. The same plan for the same seed and epoch, and another company in another epoch. The cell checks each promise on the whole corpus, and a test in the package does so for random lengths.

# %%
plans = [plan_batches(lengths, max_tokens=1024, seed=0, epoch=epoch) for epoch in (0, 1)]
for plan in plans:
    assert np.array_equal(np.sort(np.concatenate(plan)), np.arange(len(corpus)))
    assert all(len(batch) * lengths[batch].max() <= 1024 for batch in plan)
again = plan_batches(lengths, max_tokens=1024, seed=0, epoch=0)
assert all(map(np.array_equal, plans[0], again)) and not np.array_equal(plans[0][0], plans[1][0])


def company(plan):
    """The pairs of examples that share a batch, as one number each."""
    pairs = [np.sort(batch)[np.array(np.triu_indices(len(batch), 1))] for batch in plan]
    return np.concatenate([first * len(corpus) + second for first, second in pairs])


first, second = (company(plan) for plan in plans)
kept = len(np.intersect1d(first, second, assume_unique=True)) / len(first)
print(len(plans[0]), "batches, then", len(plans[1]))
print(f"of the pairs that share a batch, {kept:.0%} share one again in the next epoch")
assert kept < 0.15

# %% [markdown]
# That each sentence comes up exactly once is worth an assertion. Loops that draw batches at random with repetition leave out more than a third of the corpus in each "epoch": the chance that a sentence is not drawn in $N$ draws is $(1 - 1/N)^N \approx 1/e = 37$ %.
#
# And hardly any padding:

# %%
for budget in (1024, 1536, 2500, 4096):
    plan = plan_batches(lengths, budget, seed=0, epoch=0)
    share = useful_share([lengths[batch] for batch in plan])
    print(f"{budget:5,} tokens: {len(plan):3} batches, {share:.1%} useful")
    shares[f"{budget:,} tokens"] = share
    assert share > (0.96 if budget == 1024 else 0.95)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-useful", "caption": "Which share of the positions that a machine multiplies holds a word? Both sides of Multi30k. The hatched bars are the batches of this chapter, which are cut by tokens; the others are batches of 32."}, "image": {"alt": "Padding all sentences to 72 leaves under a quarter useful. Every step helps; with the plan of this chapter more than 95 percent is useful at any budget."}}
figure, axes = plt.subplots(figsize=(6.8, 3.8), layout="constrained")
planned = ["tokens" in name for name in shares]
bars = axes.barh(
    list(shares), [100 * share for share in shares.values()], fc="none",
    ec=[VALUE if ours else INK for ours in planned], hatch=["////" if ours else "" for ours in planned],
)  # fmt: skip
axes.bar_label(bars, fmt="%.0f %%", padding=3)
axes.set(xlim=(0, 112), xlabel="useful positions in %")
axes.invert_yaxis()
axes.grid(False)
plt.show()

# %% [markdown]
# ## What we have not done
#
# **Mixed lengths.** A sentence always meets neighbors of about its own length. The mean gradient of a batch then leans to short or to long sentences. A long training evens it out, since batches of all lengths alternate, and every toolkit we know of lives with it.
#
# **Few shapes.** A batch may have any width, so an epoch has hundreds of shapes. A library that prepares its work for each shape would like fewer; ours compiles once for [all sizes](25_speed.ipynb).
#
# **Packing.** One could put several sentences into one row, one behind the other, and need no padding at all. Then each sentence needs masks that keep it from its neighbors in the row, in all three attentions, and positions that begin anew. With 96 % useful, at most 1 / 0.96 = 1.04 times the speed is to be had. For language models that read long documents of very different lengths the sum comes out otherwise, and there packing is the rule.
#
# ## What to remember
#
# - Padding is work. One length for all wastes most of a training; good neighbors waste almost nothing.
# - A budget counts tokens, not sentences, so each step is about the same amount of work.
# - Sort so that both lengths change slowly, let chance move examples a little, cut by tokens, shuffle the batches.
# - The plan of an epoch follows from (seed, epoch), and each sentence is in it exactly once.

# %% [markdown]
# ## Exercises
#
# 1. By hand: three examples have lengths (4, 5), (6, 3) and (5, 5). What is their useful share in one batch?
# 2. How many rows fit in a batch of lengths (20, 25) with the paper's 25,000 tokens?
# 3. What breaks if the line is shuffled instead of sorted, before it is cut?
# 4. What does the jitter cost? Cut batches of 32 without it, with 3, and with 300.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. 28 words in 3 x (6 + 5) = 33 positions
assert useful_share([np.array([(4, 5), (6, 3), (5, 5)])]) == 28 / 33
# 2. 25,000 / 25 = 1,000
assert 25_000 // max(20, 25) == 1000
# 3. A batch holds short beside long sentences, and much of it is padding
shuffled = np.random.default_rng(0).permutation(len(lengths))
print(f"cut after shuffling: {useful_share(by_32(shuffled)):.0%}")
# 4. Two points for batches of 32; where the jitter mixes widths, it costs much more
noise = np.random.default_rng(0).random(len(lengths))
for jitter in (0, 3, 300):
    order = (snake_key(lengths) + jitter * noise).argsort(kind="stable")
    print(f"jitter {jitter:3}: {useful_share(by_32(order)):.1%} useful")
