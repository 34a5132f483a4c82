# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown] needs=["multi30k"]
# # Batching
#
# This chapter packs sentences of different lengths into tensors of a few fixed shapes and wastes almost none of the work
# (section 5.1 of the paper).
#
# A tensor is a rectangle and sentences are not. Short ones are filled up with padding, and the machine multiplies padding as
# carefully as words. A popular tutorial pads every sentence to 72 places. Our first question is what that costs.

# %% tags=["export"]
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from annotated_transformer.corpus import Pair
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer

# %%
import matplotlib.pyplot as plt

from annotated_transformer.corpus import multi30k
from annotated_transformer.figures import INK, QUERY, RESIDUAL, VALUE, style

# %% [markdown]
# ## An example
#
# To the model a pair is two lists of numbers. The source ends with `</s>`, so even an empty sentence has a token to attend to.
# The target begins with `<s>` and ends with `</s>`. The first starts the decoder; with the second it says that it is done.


# %% tags=["export"]
class Example(NamedTuple):
    """A pair in token ids: the source ends with EOS, the target goes from BOS to EOS."""

    source: list[int]
    target: list[int]


def encode_source(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a source sentence and EOS."""
    return [*tokenizer.encode(text), EOS]


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[Example]:
    """Return the examples of sentence pairs, in order."""
    return [
        Example(encode_source(tokenizer, pair.source), [BOS, *tokenizer.encode(pair.target), EOS])
        for pair in pairs
    ]


# %% [markdown]
# The captions of Multi30k will be our corpus. What counts is the **shape** of an example: the $S$ places that the encoder reads and the
# $T$ places that the decoder reads. The decoder never reads the last token of the target, as
# [the model's chapter](08_transformer.ipynb) has shown, so $T$ is one less than the target's length.


# %% tags=["export"]
def shapes_of(examples: Sequence[Example]) -> Tensor:
    """Return how many places each example needs in encoder and decoder: (examples, 2), S and T."""
    return torch.tensor([(len(e.source), len(e.target) - 1) for e in examples]).reshape(-1, 2)


# %%
pairs = multi30k("train")
tokenizer = Tokenizer.train(pairs, vocabulary_size=5000)
examples = encode_pairs(tokenizer, pairs)
lengths = shapes_of(examples)
print(f"{len(examples):,} examples; S from {lengths[:, 0].min()} to {lengths[:, 0].max()},")
print(f"T from {lengths[:, 1].min()} to {lengths[:, 1].max()}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-lengths", "caption": "How long are captions? Each dot is as large as there are captions with S places in the encoder and T in the decoder. Most lie near the diagonal: a long sentence has a long translation."}, "image": {"alt": "A cloud along the diagonal, densest near 14 places on either side, thinning out above 30."}}
style()
cells, counts = lengths.unique(dim=0, return_counts=True)
figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.scatter(cells[:, 0], cells[:, 1], s=counts / 4, color=INK, alpha=0.6, linewidths=0)
axes.axline((0, 0), slope=1, color=RESIDUAL, lw=0.8, ls="--")
axes.set(xlim=(0, 62), ylim=(0, 62), aspect="equal", xlabel="S: source", ylabel="T: target")
plt.show()

# %% [markdown]
# ## From lists to a tensor
#
# A **batch** is two tensors, one a side, filled up on the right. Its shape is that of its longest sentences, or a larger one that we ask for.


# %% tags=["export"]
class Batch(NamedTuple):
    """Sentences side by side: source (B, S) and target (B, T + 1), padded on the right with PAD."""

    source: Tensor
    target: Tensor


def pad(rows: Sequence[Sequence[int]], width: int = 0) -> Tensor:
    """Return rows of ids as one tensor (B, longest), or wider, filled up with PAD."""
    width = max(width, *map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


def collate(examples: Sequence[Example], source_width: int = 0, target_width: int = 0) -> Batch:
    """Return the batch of some examples, with room for at least as many places as asked for."""
    return Batch(
        pad([example.source for example in examples], source_width),
        pad([example.target for example in examples], target_width + 1),
    )


# %%
batch = collate([Example([7, 8, EOS], [BOS, 5, EOS]), Example([9, EOS], [BOS, 5, 6, 7, EOS])])
print(batch.source)
print(batch.target)

# %% [markdown]
# ## What padding costs
#
# The share of places in a batch that hold a word is
#
# $$ \text{useful share} = \frac{\sum_b (S_b + T_b)}{B \, (\max_b S_b + \max_b T_b)}. $$ (eq-useful)
#
# We measure it over the whole corpus for four ways to fill batches of 32: pad all to 72, pad all to the longest of the corpus, pad each batch
# to its own longest, or sort by length first and then pad.


# %%
def useful_share(groups):
    """Return useful places over all places, for groups of shapes (B, 2) that share a batch."""
    all_places = sum(len(group) * group.amax(dim=0).sum() for group in groups)
    return float(sum(group.sum() for group in groups) / all_places)


by_length = lengths[lengths[:, 1].argsort(stable=True)]
shares = {
    "all to 72": float(lengths.sum() / (len(lengths) * 144)),
    "longest of the corpus": useful_share([lengths]),
    "longest of the batch": useful_share(lengths.split(32)),
    "sorted by target length": useful_share(by_length.split(32)),
}
for name, share in shares.items():
    print(f"{name:24} {share:6.1%} useful")

# %% [markdown]
# Three quarters of the work, and more, were spent on nothing. Is padding at least harmless to the result? It is, if every mask is right:
# [masks](02_masks.ipynb) proves it. It only costs time.
#
# ## Tokens, not sentences
#
# Sorting helps, and it brings a new problem. Thirty-two long sentences are ten times the work of 32 short ones, and their mean
# gradient comes from ten times as many words. So the paper fixes the number of *tokens* and lets the number of sentences follow: about 25,000 on
# each side. A shape $(S, T)$ then has room for
#
# $$ B = \left\lfloor \frac{\text{max tokens}}{\max(S, T)} \right\rfloor \text{ rows.} $$ (eq-rows)
#
# ## Which sentences are neighbors?
#
# Sorting by the target alone leaves the sources of a batch ragged. We need an order in which *both* lengths change slowly.
# What matters first, says {eq}`eq-rows`, is the longer of the two sides. Among examples with the same longer side we go from those with a longer source
# to those with a longer target. In the next width we come back the other way, as one plows a field. So no step of the way is a jump.


# %% tags=["export"]
def furrow_order(lengths: Tensor) -> Tensor:
    """Return an order (examples,) in which both lengths (examples, 2) change slowly.

    The longer side grows; in each of its widths the other side goes up or down by turns.
    """
    if not len(lengths):
        return torch.arange(0)
    widest = lengths.amax(dim=1)
    lean = lengths[:, 1] - lengths[:, 0]
    turn = torch.where(widest % 2 == 0, lean, -lean)
    return (widest * (2 * widest.max() + 1) + turn).argsort(stable=True)


# %%
toy = torch.tensor([(s, t) for s in (1, 2, 3) for t in (1, 2, 3)])
print([tuple(shape) for shape in toy[furrow_order(toy)].tolist()])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-furrows", "caption": "In which order do we pick examples up? The line passes every pair of lengths up to 12 places once, and hardly ever changes a length by more than one. Cutting it into pieces gives batches of nearly equal sentences."}, "image": {"alt": "A line that goes back and forth in L-shaped furrows around the corner, growing outward."}}
field = torch.tensor([(s, t) for s in range(1, 13) for t in range(1, 13)])
path = field[furrow_order(field)]
figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
axes.plot(path[:, 0], path[:, 1], color=QUERY, lw=1.3, marker="o", ms=3)
axes.set(aspect="equal", xlabel="S: source", ylabel="T: target")
plt.show()

# %%
share = useful_share(lengths[furrow_order(lengths)].split(32))
shares["in furrows"] = share
print(f"in furrows, batches of 32: {share:.1%} useful")
assert share > max(list(shares.values())[:-1])

# %% [markdown]
# ## A few shapes, the same in every epoch
#
# First we cut the line into batches: each as long as {eq}`eq-rows` allows for its widest example. Widths only grow along the line, so the end of a batch
# can be found by bisection.


# %% tags=["export"]
class Window(NamedTuple):
    """A piece of the sorted examples that shares one shape."""

    rows: int
    source: int
    target: int

    @property
    def places(self) -> int:
        """Places of both sides, with padding."""
        return self.rows * (self.source + self.target)


def cut_batches(lengths: Tensor, max_tokens: int) -> list[Window]:
    """Cut examples whose longer sides ascend, lengths (examples, 2), into full batches."""
    widths, windows, start = lengths.amax(dim=1).tolist(), [], 0
    while start < len(widths):

        def too_many(stop: int, start: int = start) -> bool:
            return (stop - start) * widths[stop - 1] > max_tokens

        stop = start + bisect_left(range(start + 1, len(widths) + 1), True, key=too_many)
        windows.append(Window(stop - start, *lengths[start:stop].amax(dim=0).tolist()))
        start = stop
    return windows


# %%
ordered = lengths[furrow_order(lengths)]
windows = cut_batches(ordered, max_tokens=1024)
print(len(windows), "batches of", len({window[1:] for window in windows}), "shapes")

# %% [markdown]
# A GPU likes to see the same shape again: code compiled for one does not fit another. So hundreds of shapes are too many. We make **windows** of several batches that
# share one shape. Whenever there are too many windows, we join the two neighbors that cost the least new padding.


# %% tags=["export"]
def joined(one: Window, other: Window) -> Window:
    """Return the window of both, as wide as the wider on either side."""
    source, target = max(one.source, other.source), max(one.target, other.target)
    return Window(one.rows + other.rows, source, target)


def join_windows(windows: list[Window], count: int) -> list[Window]:
    """Join neighbors, those that cost the least padding first, until `count` windows are left."""

    def cost(index: int) -> int:
        one, other = windows[index], windows[index + 1]
        return joined(one, other).places - one.places - other.places

    windows = list(windows)
    costs = [cost(index) for index in range(len(windows) - 1)]
    while len(windows) > count:
        index = costs.index(min(costs))
        windows[index : index + 2] = [joined(windows[index], windows[index + 1])]
        del costs[index]
        for changed in {max(index - 1, 0), min(index, len(costs) - 1)} if costs else ():
            costs[changed] = cost(changed)
    return windows


# %%
fewer = join_windows(windows, 64)
assert sum(window.rows for window in fewer) == len(examples)
before, after = (sum(w.places for w in some) for some in (windows, fewer))
print(
    f"{len(fewer)} windows; {lengths.sum() / before:.1%} useful before, {lengths.sum() / after:.1%} after"
)

# %% [markdown]
# All this depends on the lengths alone. So the shapes are the same in every epoch, and so is the number of batches. Chance enters where it does no harm: among
# sentences of equal lengths, within a window, so that a sentence meets other neighbors in each epoch, and in the order of the batches, so that the model does not see all the short ones first.
# It follows from (seed, epoch). A training that was interrupted need not remember it.


# %% tags=["export"]
class BatchPlan(NamedTuple):
    """Which examples go together, and the shape (S, T) of the window they come from."""

    indices: list[int]
    shape: tuple[int, int]


def check_fits(lengths: Tensor, max_tokens: int) -> None:
    """Raise ValueError for the first example that does not fit into a batch by itself."""
    too_long = (lengths.amax(dim=1) > max_tokens).nonzero()
    if len(too_long):
        index = int(too_long[0])
        raise ValueError(
            f"example {index} has {int(lengths[index].max())} tokens, a batch only {max_tokens}: "
            "drop or split it, or allow more tokens a batch"
        )


# %% tags=["export"]
def plan_batches(
    lengths: Tensor, max_tokens: int, seed: int, epoch: int, shapes: int = 64
) -> list[BatchPlan]:
    """Plan an epoch: each example of lengths (examples, 2) exactly once, in the order of training.

    No side of a batch has more than max_tokens places. The batches have at most `shapes` shapes
    (S, T), the same in each epoch. Raises ValueError for an example that does not fit by itself.
    """
    check_fits(lengths, max_tokens)
    chance = torch.Generator().manual_seed(Random(f"{seed} {epoch}").getrandbits(63))
    order = torch.randperm(len(lengths), generator=chance)  # decides among equal lengths
    order = order[furrow_order(lengths[order])]
    windows = join_windows(cut_batches(lengths[order], max_tokens), shapes)
    plan = []
    for part, (rows, source, target) in zip(order.split([w.rows for w in windows]), windows):
        part = part[torch.randperm(rows, generator=chance)]
        parts = part.tensor_split(-(-rows // (max_tokens // max(source, target))))
        plan += [BatchPlan(indices.tolist(), (source, target)) for indices in parts]
    return [plan[index] for index in torch.randperm(len(plan), generator=chance).tolist()]


# %% [markdown]
# A window is dealt out evenly, so its batches differ by one row at most. What a training loop reads are batches, from wherever it left off:


# %% tags=["export"]
def batches(
    examples: Sequence[Example], max_tokens: int, seed: int, epoch: int, start: int = 0
) -> Iterator[Batch]:
    """Yield the batches of an epoch, from number `start` on; see plan_batches."""
    for indices, shape in plan_batches(shapes_of(examples), max_tokens, seed, epoch)[start:]:
        yield collate([examples[index] for index in indices], *shape)


# %% [markdown]
# ## What the plan promises
#
# Every sentence exactly once an epoch. No side over the budget. The same plan for the same seed and epoch, another company in another epoch, and the
# same shapes in all of them:

# %%
plans = [plan_batches(lengths, max_tokens=1024, seed=0, epoch=epoch) for epoch in (0, 1, 2)]
for plan in plans:
    assert sorted(i for indices, _ in plan for i in indices) == list(range(len(examples)))
    assert all(len(indices) * max(shape) <= 1024 for indices, shape in plan)
assert plans[0] == plan_batches(lengths, max_tokens=1024, seed=0, epoch=0) != plans[1]
shapes = [{(len(indices), *shape) for indices, shape in plan} for plan in plans]
print(len(plans[0]), "batches of", len(shapes[0]), "shapes")
assert shapes[0] == shapes[1] == shapes[2]

# %% [markdown]
# And hardly any padding, now with the shapes that the batches really have:

# %%
for budget in (1024, 1536, 2500, 4096):
    plan = plan_batches(lengths, budget, seed=0, epoch=0)
    share = int(lengths.sum()) / sum(len(indices) * sum(shape) for indices, shape in plan)
    shapes = len({shape for _, shape in plan})
    print(f"{budget:5,} tokens: {len(plan):3} batches, {shapes} shapes, {share:.1%} useful")
    shares[f"{budget:,} tokens"] = share
    assert share > 0.95

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-useful", "caption": "Which share of the places that a machine multiplies holds a word? Both sides of Multi30k. The hatched bars are batches with a fixed set of at most 64 shapes; the others are batches of 32."}, "image": {"alt": "Padding all sentences to 72 leaves under a quarter useful. Every step helps; with the plan of this chapter more than 95 percent is useful at any budget."}}
figure, axes = plt.subplots(figsize=(6.8, 3.4), layout="constrained")
fixed = ["tokens" in name for name in shares]
bars = axes.barh(
    list(shares), [100 * share for share in shares.values()], fc="none",
    ec=[VALUE if few else INK for few in fixed], hatch=["////" if few else "" for few in fixed],
)  # fmt: skip
axes.bar_label(bars, fmt="%.0f %%", padding=3)
axes.set(xlim=(0, 112), xlabel="useful places in %")
axes.invert_yaxis()
axes.grid(False)
plt.show()

# %% [markdown]
# ## What we have not done
#
# Fixed shapes leave one thing to chance that is not quite fair: a sentence always meets neighbors of about its own length. The mean gradient of a
# batch then leans to short or to long sentences. A long training evens it out, since batches of all windows alternate, and every toolkit we know of lives with it.
#
# ## What to remember
#
# - Padding is work. One length for all wastes most of a training; good neighbors waste almost nothing.
# - A budget counts tokens, not sentences, so each step is about the same amount of work.
# - Windows joined by length alone give a fixed, small set of shapes.
# - The plan of an epoch follows from (seed, epoch), and each sentence is in it exactly once.

# %% [markdown]
# ## Exercises
#
# 1. By hand: three examples have shapes (4, 5), (6, 3) and (5, 5). What is their useful share in one batch?
# 2. How many rows fit in a batch of shape (20, 25) with the paper's 25,000 tokens?
# 3. What breaks if the line is cut after shuffling in place of before?
# 4. How much would be useful with only 8 shapes?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. 28 words in 3 x (6 + 5) = 33 places
assert useful_share([torch.tensor([(4, 5), (6, 3), (5, 5)])]) == torch.tensor(28 / 33)
# 2. 25,000 / 25 = 1,000
assert 25_000 // max(20, 25) == 1000
# 3. Windows hold short beside long sentences, and most places are padding
shuffled = lengths[torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))]
print(f"cut after shuffling: {useful_share(shuffled.split(8 * 64)):.0%}")
# 4. Still far more than with one length for all
plan = plan_batches(lengths, 1024, seed=0, epoch=0, shapes=8)
places = sum(len(indices) * sum(shape) for indices, shape in plan)
print(f"with 8 shapes: {lengths.sum() / places:.0%}")
