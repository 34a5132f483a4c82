# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Batching
#
# This chapter packs sentences of different lengths into tensors and wastes almost none of the work (section 5.1 of the paper).
#
# A tensor is a rectangle and sentences are not. Short ones are filled up with padding, and the machine multiplies padding as
# carefully as words. A popular tutorial pads every sentence to 72. Our first question is what that costs.

# %% tags=["export"]
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

from annotated_transformer.corpus import grammar
from annotated_transformer.figures import INK, RESIDUAL, style

# %% [markdown]
# ## An example
#
# To the model a pair is two lists of numbers. The source ends with `</s>`, so even an empty sentence has a token to attend to.
# The target begins with `<s>` and ends with `</s>`: the first starts the decoder, the second is how it says that it is done.


# %% tags=["export"]
class Example(NamedTuple):
    """A pair in token ids: the source ends with EOS, the target begins with BOS and ends with
    EOS.
    """

    source: list[int]
    target: list[int]


def encode_source(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a source sentence and EOS."""
    return [*tokenizer.encode(text), EOS]


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[Example]:
    """The examples of sentence pairs, in order."""
    return [
        Example(encode_source(tokenizer, pair.source), [BOS, *tokenizer.encode(pair.target), EOS])
        for pair in pairs
    ]


# %%
pairs = grammar(5000, seed=0)
tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
examples = encode_pairs(tokenizer, pairs)
lengths = [(len(source), len(target)) for source, target in examples]
print("shortest", min(lengths), "longest", max(lengths))

# %% [markdown]
# ## From lists to a tensor
#
# A **batch** is two tensors, one a side, filled up on the right.


# %% tags=["export"]
class Batch(NamedTuple):
    """Sentences side by side: source (B, S) and target (B, T), padded on the right with PAD."""

    source: Tensor
    target: Tensor


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor (B, longest), filled up with PAD."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])


def collate(examples: Sequence[Example]) -> Batch:
    """The batch of some examples."""
    return Batch(
        pad([example.source for example in examples]), pad([example.target for example in examples])
    )


# %%
batch = collate([Example([7, 8, EOS], [BOS, 5, EOS]), Example([9, EOS], [BOS, 5, 6, 7, EOS])])
print(batch.source)
print(batch.target)

# %% [markdown]
# ## What padding costs
#
# The share of tokens in a batch that are no padding is
#
# $$ \text{useful share} = \frac{\sum_b \text{length}_b}{B \cdot \max_b \text{length}_b}. $$ (eq-useful)
#
# We measure it on the target side for three ways to fill batches of 32: pad all to the longest of the corpus, pad each batch
# to its own longest, or sort by length first.


# %%
def useful_share(batches):
    real = sum(int((batch.target != PAD).sum()) for batch in batches)
    return real / sum(batch.target.numel() for batch in batches)


def in_thirty_twos(examples):
    return [collate(examples[start : start + 32]) for start in range(0, len(examples), 32)]


longest = max(target for _, target in lengths)
shares = {
    "one length for all": sum(target for _, target in lengths) / (len(lengths) * longest),
    "longest of the batch": useful_share(in_thirty_twos(examples)),
    "sorted by length": useful_share(in_thirty_twos(sorted(examples, key=lambda e: len(e.target)))),
}
for name, share in shares.items():
    print(f"{name:21} {share:6.1%} useful")

# %% [markdown]
# ## A budget of tokens
#
# Sorting wins, and it brings a new problem: 32 long sentences are five times the work of 32 short ones, and
# count for as many words more in the average. So the paper fixes the number of *tokens* and lets the number of sentences follow:
# about 25,000 on each side.
#
# We cut the sorted list greedily. A batch is full when one more sentence would make either rectangle larger than the budget. Two shuffles
# keep the training random: before sorting, so that sentences of equal length meet different neighbors in each epoch, and after cutting, so that
# the model does not see all short sentences first. Both take their randomness from (seed, epoch) alone, so a training that was
# interrupted can be told where it was.


# %% tags=["export"]
def plan_batches(
    lengths: Sequence[tuple[int, int]], max_tokens: int, seed: int, epoch: int
) -> list[list[int]]:
    """Which examples go together: lists of indices, each index exactly once, in the order of
    training.

    `lengths` are (S, T) of each example. With padding, neither side of a batch has more than
    `max_tokens` tokens. Raises
    ValueError for an example that does not fit by itself.
    """
    for index, length in enumerate(lengths):
        if max(length) > max_tokens:
            raise ValueError(f"example {index} has {max(length)} tokens, a batch only {max_tokens}")
    rng = Random(f"{seed} {epoch}")
    order = rng.sample(range(len(lengths)), len(lengths))
    order.sort(key=lambda index: (lengths[index][1], lengths[index][0]))
    plan: list[list[int]] = [[]]
    widest = 0
    for index in order:
        widest = max(widest, *lengths[index])
        if widest * (len(plan[-1]) + 1) > max_tokens:
            plan.append([])
            widest = max(lengths[index])
        plan[-1].append(index)
    rng.shuffle(plan)
    return [batch for batch in plan if batch]


def batches(examples: Sequence[Example], max_tokens: int, seed: int, epoch: int) -> Iterator[Batch]:
    """The batches of one epoch."""
    lengths = [(len(example.source), len(example.target)) for example in examples]
    for indices in plan_batches(lengths, max_tokens, seed, epoch):
        yield collate([examples[index] for index in indices])


# %% [markdown]
# The law of an epoch: every sentence exactly once. And the promises of this section: no rectangle over the budget, another order in another epoch, the
# same order for the same epoch, and hardly any padding.

# %%
plan = plan_batches(lengths, max_tokens=2000, seed=0, epoch=0)
assert sorted(index for batch in plan for index in batch) == list(range(len(examples)))
assert plan == plan_batches(lengths, max_tokens=2000, seed=0, epoch=0)
assert plan != plan_batches(lengths, max_tokens=2000, seed=0, epoch=1)

epoch = list(batches(examples, max_tokens=2000, seed=0, epoch=0))
assert all(max(batch.source.numel(), batch.target.numel()) <= 2000 for batch in epoch)
shares["token budget"] = useful_share(epoch)
print(f"{len(epoch)} batches, {shares['token budget']:.1%} useful")
assert shares["token budget"] > 0.95

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-useful", "caption": "Which share of the tokens that a machine multiplies is no padding? Target side, 5,000 pairs of the grammar."}, "image": {"alt": "Four bars. One length for all is the shortest by far; sorting and the token budget reach nearly the full width."}}
style()
figure, axes = plt.subplots(figsize=(6.5, 2.2), layout="constrained")
bars = axes.barh(
    list(shares), [100 * share for share in shares.values()], color=[RESIDUAL] * 3 + [INK]
)
axes.bar_label(bars, fmt="%.0f %%", padding=3)
axes.set(xlim=(0, 112), xlabel="useful tokens in %")
axes.invert_yaxis()
plt.show()

# %% [markdown]
# ## What to remember
#
# - Padding is work. One length for all wastes most of a training; sorting by length wastes almost nothing.
# - A budget counts tokens, not sentences, so each step is the same amount of work.
# - The plan of an epoch follows from (seed, epoch), and each sentence is in it exactly once.
