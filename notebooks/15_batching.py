# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Batching
#
# This chapter puts sentences of different lengths into one tensor in such a way that almost no work is wasted on filling up the rows (section 5.1 of the paper).

# %% tags=["export", "hide-input"]
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from annotated_transformer.data import Pair, as_pair
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer

# %% [markdown]
# A model should learn from many sentences at once. We cut two into tokens, with a vocabulary as in [the previous chapter](14_tokenization.ipynb#what-goes-in-comes-out), and lay them side by side:

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
# A tensor is a rectangle, and sentences aren't. The second row has to be filled up with five tokens that mean nothing, **padding**, and the machine multiplies padding as carefully as words. How much of that there is depends on the lengths alone, so here they are, one row per pair, with one position more for the token that ends a sentence:

# %%
lengths = np.array(
    [[len(tokenizer.encode(text)) + 1 for text in pair[:2]] for pair in pairs]
)

# %% [markdown]
# Take the 29,000 captions of Multi30k as they come, 32 to a batch, and fill each batch up to its own longest sentence. What share of the positions holds a token? Make a guess before you look at the figure.

# %% tags=["remove-cell"]
import matplotlib.pyplot as plt
from torch.nn.utils.rnn import pad_sequence

from book.figures import PAPER, SKY, RESIDUAL, show_plot, style

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-padding", "caption": "How much of a batch is words? The German side of 32 captions, one per row: filled where there is a token, hatched where there is padding. Above, a typical batch, all rows filled up to 72 positions. In the middle, the same rows, only as wide as the longest of them. Below, 32 captions of nearly equal length. The percentage is the share of tokens."}}
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
panels["captions of nearly equal length"] = (neighbors, neighbors.max())
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
# We measure it over all 29,000 captions, for three ways to fill batches of 32. The first pads every sentence to 72, as the code of Harvard's Annotated Transformer does {cite:p}`rush2018annotated`.


# %%
def useful_share(groups):
    """Useful positions over all positions, for groups of lengths (B, 2) that share a batch."""
    all_positions = sum(len(group) * group.max(axis=0).sum() for group in groups)
    return float(sum(group.sum() for group in groups) / all_positions)


def by_32(order):
    """The lengths in some order, cut into batches of 32."""
    return np.split(lengths[order], range(32, len(lengths), 32))


as_given = np.arange(len(lengths))
by_target = lengths[:, 1].argsort(kind="stable")
shares = {
    "all to 72": float(lengths.sum() / (len(lengths) * 144)),
    "longest of the batch": useful_share(by_32(as_given)),
    "sorted by target length": useful_share(by_32(by_target)),
}
print("S and T on average:", lengths.mean(axis=0).round(2).tolist())
for name, share in shares.items():
    print(f"{name:24} {share:6.1%} useful")

# %% tags=["remove-cell"]
if CHECKING:
    assert lengths.mean(axis=0).round(2).tolist() == [17.01, 16.15]
    assert round(shares["all to 72"], 2) == 0.23
    assert 0.5 < shares["longest of the batch"] < 0.55
    assert shares["sorted by target length"] > 0.8

# %% [markdown]
# You can check the first line by hand: $17.01 + 16.15 = 33.16$ of 144 positions is 23%. Three quarters of the work is spent on nothing, and this count is kind to padding, since the scores of [attention](12_why_self_attention.ipynb) grow with the square of the length: $72^2 = 5{,}184$ for a padded sentence, $17^2 = 289$ for an average one.
#
# Padding each batch to its own longest sentence brings the useful share to one half. It can't do better, because among 32 captions drawn at random one is nearly always long. Sorting is the step that counts: put sentences of about equal length together.
#
# ## Tokens, not sentences
#
# Sorting brings a new problem. How much more work are the 32 longest sentences than the 32 shortest? (The last batch isn't full, so we take the one before.)

# %%
groups = by_32(by_target)
for name, group in (("shortest", groups[0]), ("longest", groups[-2])):
    positions = int(len(group) * group.max(axis=0).sum())
    print(f"{name}: {positions:,} positions, {group[:, 1].sum():,} target tokens")

# %% tags=["remove-cell"]
if CHECKING:
    assert positions > 5 * len(groups[0]) * groups[0].max(axis=0).sum()

# %% [markdown]
# More than five times as much. The GPU's memory has to hold the largest batch, so in most steps most of that memory is unused. And one gradient is a mean over 200 target tokens, the next over 1,400.
#
# The paper therefore fixes the number of *tokens*, about 25,000 on each side, and lets the number of sentences follow: each batch has a token budget. A batch whose longest source has $S$ positions and whose longest target has $T$ gets
#
# $$ B = \left\lfloor \frac{\text{max tokens}}{\max(S, T)} \right\rfloor \text{ rows.} $$ (eq-rows)
#
# With 1,024 tokens, enough for this small corpus, these are 128 captions of length 8, and 16 of the longest, with $S = 61$ and $T = 50$. What the encoder keeps in memory grows with $B \, S$ and what the decoder keeps with $B \, T$. Because the formula divides by the longer side, neither goes over the limit.
#
# So a good batch has two properties: its sentences are about equally long, and it holds about as many tokens as every other. The rest of this chapter makes such batches, first the tensors, then the choice of what goes into them.
#
# ## From pairs to arrays
#
# To the model a pair is two lists of ids. The encoder reads one, and the decoder reads the other, one token behind what it should say ([the shift](10_transformer.ipynb#the-target-shifted-by-one)). We store the target once, from `<s>` to `</s>`; the decoder's input and its labels are two slices of it.

# %%
likes = Pair("Die schwarze Katze mag Fisch.", "The black cat likes fish.")
source = [*tokenizer.encode(likes.source), EOS]
target = [BOS, *tokenizer.encode(likes.target), EOS]
print("encoder reads ", source)
print("decoder reads ", target[:-1])
print("it should say ", target[1:])

# %% [markdown]
# The 1 is `<s>`, the 2 is `</s>`, and 17 is the full stop of both languages. *Likes* takes three tokens, so the sentence has $S = 7$ and $T = 9$. The source gets an `</s>` but no `<s>`, since nothing has to be started there.
#
# `encode_pairs`, folded here, does this to every pair and returns an `EncodedCorpus`: the ids of all examples, and `lengths`, their $S$ and $T$. An `Example` is one pair of it, its `source` and its `target`.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show Example and EncodedCorpus", "code_prompt_hide": "Hide Example and EncodedCorpus"}
class Example(NamedTuple):
    """A pair in token ids: source (S,) ends with EOS, target (T + 1,) goes from BOS to EOS."""

    source: np.ndarray
    target: np.ndarray


@dataclass(eq=False)
class EncodedCorpus:
    """Examples in two flat arrays, which may lie in memory or in a mapped file.

    `tokens` holds all ids, example after example, source before target. `lengths` (N, 2) holds S
    and T of each example, the positions that it takes in encoder and decoder.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    sha256: str = ""  # of the content, where somebody has computed it

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


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show encode_pairs", "code_prompt_hide": "Hide encode_pairs"}
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
two = encode_pairs(tokenizer, [likes, Pair("Ein Hund.", "A dog.")])

# %% tags=["remove-cell"]
if CHECKING:
    assert np.array_equal(corpus.lengths, lengths)
    assert len(tokenizer.encode(" likes")) == 3
    assert two.lengths[0].tolist() == [7, 9]
    assert two[0].source.tolist() == source and two[0].target.tolist() == target

# %% [markdown]
# A **batch** is two tensors, one per side, each as wide as its longest row.
#
# **Exercise 7. Write it first** (★, 5 min). Write `pad(rows)`: from lists of ids to one tensor, with 0 on the right where a row is too short. `torch.nn.utils.rnn.pad_sequence` does the same for rows that are tensors; compare with it.


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
print(collate(two).source)

# %% tags=["remove-cell"]
if CHECKING:
    rows = [torch.from_numpy(example.source) for example in two]
    assert torch.equal(collate(two).source, pad_sequence(rows, batch_first=True))

# %% [markdown]
# The two sentences lie side by side. Padding doesn't change what the model computes for them, as long as no word attends to padding ([the mask](04_masks.ipynb#the-padding-mask) compares with 0) and the loss [leaves it out](17_regularization.ipynb#padding-doesnt-count). It costs time and memory, and nothing else.
#
# ## Neighbors along a line
#
# Which sentences share a batch? An example has two lengths. We sort by the longer side, its *width*, which is what {eq}`eq-rows` divides by. Within one width we sort by the difference $T - S$, so that the other length changes slowly, too. Drawn, [the line](#the-snake-as-a-line) goes back and forth like a snake. `snake_key`, folded here, gives each example the number by which to sort; the numbers of two different widths are at least 4 apart.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show snake_key", "code_prompt_hide": "Hide snake_key"}
def snake_key(lengths: np.ndarray) -> np.ndarray:
    """Return numbers (N,) by which to sort lengths (N, 2) so that both sides change slowly.

    The longer side grows; in each of its widths T - S goes up or down by turns.
    """
    width = lengths.max(axis=1).astype(np.int64)
    lean = lengths[:, 1].astype(np.int64) - lengths[:, 0]
    turned = np.where(width % 2 == 0, lean, -lean)
    return (2 * width.max(initial=0) + 1) * width + turned


# %% [markdown]
# Compared with sorting by source and then by target, on the captions, in batches of 32:

# %% tags=["hide-input"]
by_source = (100 * lengths[:, 0] + lengths[:, 1]).argsort(kind="stable")
shares["by source, then target"] = useful_share(by_32(by_source))
shares["snake order"] = useful_share(by_32(snake_key(lengths).argsort(kind="stable")))
for name in ("by source, then target", "snake order"):
    print(f"{name:24} {shares[name]:6.1%} useful")

# %% tags=["remove-cell"]
if CHECKING:
    assert shares["snake order"] > 0.985 > shares["by source, then target"]

# %% [markdown]
# ## A plan for an epoch
#
# We walk along the line and fill a batch until {eq}`eq-rows` allows no more. Widths only grow along the line, so $n$ rows take $n$ times the width of the last one.
#
# With the same batches in the same order each time, a sentence would always meet the same others, and the model would see all short sentences first. Chance therefore enters in two places. Along the line, a random number from 0 to 3, the **jitter**, is added to each key: it shuffles examples of equal lengths and swaps nearly equal ones. It never mixes two widths, because it is smaller than 4. And the batches, once cut, are shuffled. Seed and epoch decide all of it, so a run that was interrupted can make the same plan again. `fitting_widths`, folded here, gives the width of each example, and refuses one that is longer than the budget.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show fitting_widths", "code_prompt_hide": "Hide fitting_widths"}
def check_fits(
    lengths: np.ndarray,
    most: int,
    part: str,
    holder: str,
    first_words: Callable[[int], str] | None = None,
) -> None:
    """Raise ValueError for the first example of lengths (N, 2) that is longer than `most`.

    The error quotes its `first_words`, which are looked up by its number.
    """
    widths = lengths.max(axis=1)
    too_long = np.flatnonzero(widths > most)
    if len(too_long):
        first = int(too_long[0])
        quoted = f'; it begins "{first_words(first)}"' if first_words else ""
        raise ValueError(
            f"{part} pair {first + 1} has {widths[first]} tokens, {holder} allows {most}: "
            f"drop or split the pair, or raise {holder}{quoted}"
        )


def fitting_widths(lengths: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return the longer side of each example of lengths (N, 2).

    Raises ValueError for an example that does not fit into a batch by itself.
    """
    check_fits(lengths, max_tokens, "training", "max_tokens")
    return lengths.max(axis=1)


# %% tags=["export"]
JITTER = 3.0  # how far chance moves an example along the line; below 4, it mixes no two widths


def plan_batches(
    lengths: np.ndarray, max_tokens: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Plan an epoch: each example of lengths (N, 2) once, as numbers of a batch, batches shuffled.

    No side of a batch has more than max_tokens positions, padding included. (seed, epoch) decide
    everything. Raises ValueError for an example that is longer than that.
    """
    widths = fitting_widths(lengths, max_tokens)
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


# %%
toy = np.array([(s, t) for s in (1, 2, 3) for t in (1, 2, 3)])
for epoch in (0, 1):
    plan = plan_batches(toy, max_tokens=6, seed=0, epoch=epoch)
    print([sorted(map(tuple, toy[batch].tolist())) for batch in plan])

# %% [markdown]
# Nine examples, with all lengths from 1 to 3, in batches of at most 6 tokens per side, in two epochs. On the captions we measure what the plan promises: no side over the budget, other company in another epoch, and almost no padding.

# %% tags=["hide-input"]
plans = [
    plan_batches(lengths, max_tokens=1024, seed=0, epoch=epoch) for epoch in (0, 1)
]


def company(plan):
    """The pairs of examples that share a batch, as one number each."""
    pairs = [np.sort(batch)[np.array(np.triu_indices(len(batch), 1))] for batch in plan]
    return np.concatenate([first * len(corpus) + second for first, second in pairs])


first, second = (company(plan) for plan in plans)
again = len(np.intersect1d(first, second, assume_unique=True)) / len(first)
largest = max(len(batch) * lengths[batch].max() for plan in plans for batch in plan)
print(
    f"{len(plans[0])} and {len(plans[1])} batches, no side over {largest:,} positions"
)
print(f"of the pairs that share a batch, {again:.0%} share one again in the next epoch")
for budget in (1024, 4096):
    plan = plan_batches(lengths, budget, seed=0, epoch=0)
    shares[f"plan, {budget:,} tokens"] = useful_share(
        [lengths[batch] for batch in plan]
    )
    print(f"{budget:5,} tokens: {shares[f'plan, {budget:,} tokens']:.1%} useful")

# %% tags=["remove-cell"]
if CHECKING:
    for plan in plans:
        assert np.array_equal(np.sort(np.concatenate(plan)), np.arange(len(corpus)))
    assert largest <= 1024
    longest = lengths[lengths.max(axis=1).argmax()].tolist()
    assert longest == [61, 50] and (1024 // 8, 1024 // 61) == (128, 16)
    assert shares["plan, 1,024 tokens"] > 0.965 and shares["plan, 4,096 tokens"] > 0.95

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-useful", "caption": "How much of the arithmetic is spent on tokens? Both sides of Multi30k. The hatched bars are the plans of this chapter, cut by tokens and with chance; the others are batches of 32."}}
figure, axes = plt.subplots(figsize=(3.1, 3), layout="constrained")
planned = ["plan" in name for name in shares]
colors = [SKY if plan else RESIDUAL for plan in planned]
bars = axes.barh(
    list(shares),
    [100 * share for share in shares.values()],
    fc=[(color, 0.25) for color in colors],
    ec=colors,
    hatch=["////" if plan else "" for plan in planned],
)
axes.bar_label(bars, fmt="%.0f %%", padding=3)
axes.set(xlim=(0, 130), xticks=[0, 50, 100], xlabel="useful positions in %")
axes.invert_yaxis()
axes.grid(False)
show_plot(
    alt="Padding all sentences to 72 leaves under a quarter useful. Every step helps up to snake order with 99 percent; the plans of this chapter, with chance added, have 95 to 97 percent.",
)

# %% [markdown]
# Chance costs two points, from 99% down to 97%. A larger budget spans more lengths, hence 95% for 4,096; a larger corpus fills it better.
#
# ## From the plan to the batches
#
# The plan says which examples make a batch, and `collate` makes the batch when its turn comes. Together they make the stream of batches that a training loop reads:


# %% tags=["export"]
def batches(
    corpus: EncodedCorpus, max_tokens: int, seed: int = 0, epoch: int = 0
) -> Iterator[Batch]:
    """Yield the batches of an epoch, each example once; see plan_batches."""
    for numbers in plan_batches(corpus.lengths, max_tokens, seed, epoch):
        yield collate([corpus[number] for number in numbers])


# %%
stream = batches(corpus, max_tokens=1024)
for _ in range(3):
    source, target = next(stream)
    padded = (source == PAD).sum() + (target == PAD).sum()
    share = padded / (source.numel() + target.numel())
    print(f"source {[*source.shape]}, target {[*target.shape]}: {share:.0%} padding")

# %% [markdown]
# ## What to remember
#
# - Padding is work. One length for all wastes three quarters of it; sentences of equal length together waste almost none.
# - A budget counts tokens, so that each step is about the same amount of work.
# - Sort so that both lengths change slowly, let chance move examples a little, cut by tokens, shuffle the batches.
# - The plan of an epoch follows from (seed, epoch), and each sentence is in it exactly once.
#
# Everything is ready for the first update. How long should its step be? If it is too long, the model may never recover, as the [next chapter](16_schedule.ipynb) shows.
#
# ## Exercises
#
# **1. By hand** (★, 5 min). Three examples have lengths (4, 5), (6, 3) and (5, 5). What is their useful share in one batch? And how many rows of lengths (20, 25) fit into the paper's 25,000 tokens?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 28 tokens in 3 x (6 + 5) = 33 positions, which is 85%; and 25,000 / 25 = 1,000 rows
print(f"{28 / 33:.0%};", 25_000 // max(20, 25), "rows")

# %% tags=["remove-cell"]
if CHECKING:
    assert useful_share([np.array([(4, 5), (6, 3), (5, 5)])]) == 28 / 33

# %% [markdown]
# **2. Shuffled** (★, 5 min). What is lost if the line is shuffled instead of sorted, before it is cut?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A batch then holds short beside long sentences, and nearly half of it is padding
shuffled = np.random.default_rng(0).permutation(len(lengths))
print(f"cut after shuffling: {useful_share(by_32(shuffled)):.0%}")

# %% [markdown]
# **3. The price of chance** (★★, 10 min). Cut batches of 32 without jitter, with 3, and with 300. Why is the last so much worse?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Two points for 3. With 300 the jitter is larger than the distance of two widths and mixes them.
noise = np.random.default_rng(0).random(len(lengths))
for jitter in (0, 3, 300):
    order = (snake_key(lengths) + jitter * noise).argsort(kind="stable")
    print(f"jitter {jitter:3}: {useful_share(by_32(order)):.1%} useful")

# %% [markdown]
# **4. At least 4 apart** (★★, 10 min). Show that the keys of two neighboring widths $w$ and $w + 1$ differ by 4 or more, so that a jitter below 4 can't mix them.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The centers are 2W + 1 apart. T - S takes at most w - 1 from one side and w from the other, so
# 2W + 1 - (w - 1) - w = 2W + 2 - 2w are left, and w + 1 is at most W: that makes 4 or more.
field = np.array([(s, t) for s in range(1, 13) for t in range(1, 13)])
keys, widths = snake_key(field), field.max(axis=1)
gaps = [keys[widths == w + 1].min() - keys[widths == w].max() for w in range(1, 12)]
print("gaps:", [int(gap) for gap in gaps])

# %% tags=["remove-cell"]
if CHECKING:
    assert min(gaps) >= 4

# %% [markdown]
# **5. Does the snake pay?** (★★, 15 min). Plan 1,024 tokens with widths alone as keys (times 4, so that the jitter shuffles each width and mixes none). What is the useful share now?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Chance is what makes the difference. Shuffled within a width, the shorter side can be anything;
# along the snake, only the jitter changes it.
snake, snake_key = snake_key, lambda lengths: 4 * lengths.max(axis=1)
plain = plan_batches(lengths, 1024, seed=0, epoch=0)
snake_key = snake
share = useful_share([lengths[batch] for batch in plain])
print(f"widths alone {share:.1%}, snake {shares['plan, 1,024 tokens']:.1%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert share < shares["plan, 1,024 tokens"] - 0.02

# %% [markdown]
# **6. Does sorting hurt?** (★★★, an evening, open). Train the tiny model of [chapter 13](13_data.ipynb#listening-to-a-model-that-learns) on plans of this chapter, and on batches that are cut after shuffling, with the same number of real tokens per step. Compare loss and minutes.
#
# **7. Write it first** is [above](#from-pairs-to-arrays); the code below it is the solution.

# %% [markdown]
# ## Second reading
#
# ### The snake as a line
#
# :::{admonition} The key: a number for the width, plus or minus a difference
# :class: dropdown
#
# With $w = \max(S, T)$ and $W$ the widest of all, the key is $(2W + 1) \, w \pm (T - S)$, plus where $w$ is even and minus where it is odd. The difference is smaller than $w$, so widths can't mix.
# :::


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-snake", "caption": "In which order do we pick examples up? The line passes every pair of lengths up to 12 positions once and never changes a length by more than one. Cutting it into pieces gives batches of nearly equal sentences."}}
def snake_path(widest):
    """All pairs of lengths up to the widest, from corner to corner."""
    path = []
    for w in range(1, widest + 1):
        turn = [(w, t) for t in range(1, w)] + [(s, w) for s in range(w, 0, -1)]
        path += turn if w % 2 == 0 else turn[::-1]
    return np.array(path)


path = snake_path(12)
figure, axes = plt.subplots(figsize=(3.2, 3.2), layout="constrained")
axes.plot(path[:, 0], path[:, 1], color=SKY, lw=1.3, marker="o", ms=3)
ticks = range(2, 13, 2)
axes.set(aspect="equal", xlabel="S: source", ylabel="T: target")
axes.set(xticks=ticks, yticks=ticks)
show_plot(
    alt="A line that goes back and forth in L-shaped turns around the corner, growing outward.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert np.array_equal(field[snake_key(field).argsort()], path)

# %% [markdown]
# ### A corpus in two arrays
#
# :::{admonition} Where an example begins, and what the arrays may lie in
# :class: dropdown
#
# The code of `EncodedCorpus` is folded [above](#from-pairs-to-arrays). One array holds all ids, a second one the lengths. An example takes $S + T + 1$ ids (its target has $T + 1$, of which the decoder never reads the last), so where each begins is a running sum over the lengths. Its two slices are views of the long array, so nothing is copied. Since NumPy can map a file into memory as if it were an array, the ids may also stay [on disk](28_corpus.ipynb#the-folder).
# :::
#
# ### Why pad on the right?
#
# :::{admonition} Because position 0 is where a sentence begins
# :class: dropdown
#
# [Positions](08_positional_encoding.ipynb#adding-positions-in-code) are added by column. With padding on the left, the first word would be in column 0 in one batch and in column 9 in another. Language models without an encoder are padded on the left when they write, so that all texts end in the same column. Our decoder always begins anew, at `<s>`.
#
# Other libraries hand an *attention mask* along with the tokens. Ours is made from the tokens: padding has its own number, and [`padding_mask`](04_masks.ipynb#the-padding-mask) compares with it.
# :::
#
# ### Seed and epoch, kept apart
#
# :::{admonition} Three seeds that would have been almost one
# :class: dropdown
#
# A plan made from seed + epoch would not do, because seed 0 in epoch 1 would be seed 1 in epoch 0. If you train with three seeds to see how far results scatter, you get three runs with almost the same plans, one epoch apart. NumPy's generator takes a pair of numbers and keeps them apart.
# :::
#
# ### Drawing batches at random
#
# :::{admonition} With replacement, an "epoch" leaves out a third of the corpus
# :class: dropdown
#
# *Exactly once* is worth an assertion. A loop that draws its sentences at random, with replacement, misses a given one in $N$ draws with the chance $(1 - 1/N)^N \approx 1/e = 37\,\%$.
# :::
#
# ### Why not pack several sentences into one row?
#
# :::{admonition} Three percent to gain here, and much more for language models
# :class: dropdown
#
# Then no padding is needed at all, but each sentence needs masks that keep it from its neighbors in the row, in all three attentions, and positions that begin anew. With 97% useful, packing could make training at most $1 / 0.97 = 1.03$ times as fast. For language models, which read documents of very different lengths, there is more to gain, and packing is the rule.
#
# One price of sorting remains: a sentence always meets neighbors of its own length, so each gradient comes from short sentences or from long ones. Since the batches are shuffled, this evens out over many steps.
# :::

# %% [markdown]
# ## Sources
#
# Batches of about 25,000 tokens per side are from section 5.1 of {cite:t}`vaswani2017attention`. The authors' code sorts sentences into buckets by their longer side and divides the budget by the bucket's width: [`data_reader.py`](https://github.com/tensorflow/tensor2tensor/blob/014f222ffecb566ec013fcc2a215ae5a4b910ccf/tensor2tensor/utils/data_reader.py) of tensor2tensor. The padding to 72 is in the code of {cite:t}`rush2018annotated`, in its version of 2022.
