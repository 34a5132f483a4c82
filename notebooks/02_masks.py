# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Masks
#
# This chapter builds the masks that decide which keys each query may see (sections 3.1 and 3.2.3
# of the paper).
#
# [Attention](01_attention.ipynb) lets every query look at every key. Twice in a Transformer that
# is wrong. A batch holds sentences of different lengths, so short ones are filled up with
# **padding**, and nobody should attend to filling. And a decoder that learns to predict the next
# word must not read that word. Both cures are the same: a table of yes and no.

# %% tags=["export"]
import torch
from torch import Tensor

# %%
import matplotlib.pyplot as plt
import torch.nn.functional as F

from annotated_transformer.attention import attention
from annotated_transformer.figures import KEY, QUERY, style

# %% [markdown]
# ## What goes wrong without a mask
#
# Take a sentence of three words, each a vector of four numbers. Attend within it. Then append
# two zero vectors, as a batch with a longer neighbor would, and attend again.

# %%
words = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
padded = torch.cat([words, torch.zeros(1, 2, 4)], dim=1)

alone, _ = attention(words, words, words)
in_batch, _ = attention(padded, padded, padded)
print("same answer for the three words:", torch.allclose(alone, in_batch[:, :3]))

# %% [markdown]
# The same sentence gives two answers; which one we get depends on its neighbors in the batch. A
# zero key is not invisible. Its score is $q \cdot 0 = 0$, and $e^0 = 1$ is a perfectly good
# weight. Only a score of $-\infty$ has weight zero.
#
# A **mask** marks the scores to keep. It is a boolean matrix with a row for each query and a
# column for each key. In this book, and in PyTorch's fused attention, True means *may attend*:
#
# $$
# \text{score}_{ts} \leftarrow
# \begin{cases}
# \text{score}_{ts} & \text{if } M_{ts} \\
# -\infty & \text{otherwise}
# \end{cases}
# $$ (eq-mask)
#
# :::{note}
# The convention is not universal. The mask arguments of `nn.Transformer` mean the opposite: there
# True hides. Many a silent bug is a mask that has crossed this border without a `~`.
# :::
#
# ## The padding mask
#
# Words reach the model as integers, called tokens. Four of them are reserved. We give padding the
# number 0, the start of a sentence 1, its end 2, and anything unknown 3.

# %% tags=["export"]
PAD, BOS, EOS, UNK = 0, 1, 2, 3  # <pad>, <s>, </s>, <unk>

# %% [markdown]
# Whether position $s$ holds a word does not depend on who asks. So every row of the mask is the
# same, and one row is enough:
#
# $$ M_{ts} = [\,\text{token}_s \neq \text{PAD}\,] $$ (eq-padding-mask)
#
# The two axes of length 1 in the result stand for the heads of the [next
# chapter](03_multi_head_attention.ipynb) and for the queries. Broadcasting repeats the row for all of them.


# %% tags=["export"]
def padding_mask(tokens: Tensor) -> Tensor:
    """Let every query attend to the keys that are words, in each sentence of a batch.

    Takes token ids (B, S); returns booleans (B, 1, 1, S), True where a key may be attended to.
    The paper leaves this mask unsaid.
    """
    return (tokens != PAD)[:, None, None, :]


# %%
tokens = torch.tensor([[5, 6, 7, PAD, PAD], [8, 9, 5, 6, 7]])
mask = padding_mask(tokens)
print(mask.shape)
print(mask.int().squeeze())

# %% [markdown]
# The check needs no second mask implementation. Cutting the padding off is the honest reference:
# with the mask, a padded sentence must give what the bare sentence gives. One sentence proves
# little, so we draw a hundred.

# %%
random = torch.Generator().manual_seed(1)
for _ in range(100):
    length = int(torch.randint(1, 9, (), generator=random))
    padding = int(torch.randint(0, 9, (), generator=random))
    x = torch.randn(1, length + padding, 4, generator=random, dtype=torch.float64)
    real = torch.arange(length + padding)[None] < length
    masked, _ = attention(x, x, x, padding_mask(real.long())[:, 0])
    alone, _ = attention(x[:, :length], x[:, :length], x[:, :length])
    assert torch.allclose(masked[:, :length], alone)
print("padding never changed a word")

# %% [markdown]
# ## Columns, not rows
#
# Should padded *queries* be masked as well? It sounds tidy. Let us try both on the padded
# sentence: hide the padded columns, or hide the padded rows.

# %%
is_word = torch.tensor([[True, True, True, False, False]])
columns, _ = attention(padded, padded, padded, is_word[:, None, :])
rows, _ = attention(padded, padded, padded, is_word[:, :, None].expand(-1, -1, 5))
alone, _ = attention(words, words, words)
print("columns hidden, words are right:", torch.allclose(columns[:, :3], alone))
print("rows hidden, words are right:   ", torch.allclose(rows[:, :3], alone))

# %% [markdown]
# Hiding columns is what counts. Hiding rows leaves every word looking at padding, and changes
# only the padded positions' own output, which nobody reads. Worse, such a row has no key left.
# Softmax then divides zero by zero. So the rule is: **mask keys**. A padded query may compute
# what it likes; it wastes a little work and harms no one.
#
# ## The causal mask
#
# The second mask is about time. A decoder writes a sentence from left to right, each word from
# the words before it. In training the whole sentence is known, and we want the predictions at
# all positions in one pass. So position $t$ may look at itself and to its left, never to its right:
#
# $$ M_{ts} = [\,s \leq t\,] $$ (eq-causal-mask)


# %% tags=["export"]
def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Let each position attend to itself and to those before it (section 3.2.3).

    Returns booleans (length, length): row t is True up to and including column t.
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


# %%
print(causal_mask(4).int())

# %% [markdown]
# PyTorch's fused attention can apply this mask by itself, which makes it our reference. A second
# check asks what we really want to know: does changing the future change the past?

# %%
x = torch.randn(1, 6, 4, generator=random, dtype=torch.float64)
ours, _ = attention(x, x, x, causal_mask(6))
assert torch.allclose(ours, F.scaled_dot_product_attention(x, x, x, is_causal=True))

for t in range(5):
    other = x.clone()
    other[:, t + 1 :] = torch.randn(1, 5 - t, 4, generator=random, dtype=torch.float64)
    changed, _ = attention(other, other, other, causal_mask(6))
    assert torch.allclose(changed[:, : t + 1], ours[:, : t + 1])
    assert not torch.allclose(changed[:, t + 1 :], ours[:, t + 1 :])
print("the past never depends on the future")

# %% [markdown]
# Some call this mask a kind of orderly dropout. It is not: nothing about it is random, and it is
# on when the model is in use as well as when it learns.
#
# ## Both at once
#
# The target side of a batch is padded too. Its mask is the *and* of the two.


# %% tags=["export"]
def target_mask(tokens: Tensor) -> Tensor:
    """Let each target position attend to the words up to and including itself.

    Takes token ids (B, T); returns booleans (B, 1, T, T): padding and causal mask in one.
    """
    return padding_mask(tokens) & causal_mask(tokens.size(1), tokens.device)


# %%
target = torch.tensor([[BOS, 5, 6, PAD, PAD]])
print(target_mask(target).int()[0, 0])

# %% [markdown]
# The first column is True in every row, since each target begins with `<s>`. So no row is empty,
# and softmax never meets a row of nothing but $-\infty$.
#
# The figure shows the three uses. The encoder's self-attention and the decoder's look
# at the source take the padding mask; the decoder's self-attention takes the target mask.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-masks", "caption": "Which keys may each query see? White cells are open, hatched cells are masked. The source has three words and two paddings; the target has four words and one padding. A padded query keeps its row: only columns are hidden for padding."}, "image": {"alt": "Three grids of queries against keys. In the first and third the two padded source columns are hatched in every row; in the second everything right of the diagonal is hatched."}}
style()
source_words = ["die", "Katze", "schläft", "<pad>", "<pad>"]
target_words = ["<s>", "the", "cat", "sleeps", "<pad>"]
source = torch.tensor([[5, 6, 7, PAD, PAD]])
target = torch.tensor([[BOS, 8, 9, 10, PAD]])
panels = [
    ("encoder: source to source", source_words, source_words, padding_mask(source)),
    ("decoder: target to target", target_words, target_words, target_mask(target)),
    ("decoder: target to source", target_words, source_words, padding_mask(source)),
]
fig, axes = plt.subplots(1, 3, figsize=(9.5, 3.6), layout="constrained")
for axis, (title, rows, columns, mask) in zip(axes, panels):
    for t, row in enumerate(mask[0, 0].expand(5, 5).tolist()):
        for s, may in enumerate(row):
            hatch = "" if may else "/////"
            axis.add_patch(plt.Rectangle((s, t), 1, 1, fc="white", ec="#777777", hatch=hatch))
    axis.set(xlim=(0, 5), ylim=(5, 0), aspect="equal", title=title, xlabel="key: attended to")
    axis.set_xticks([s + 0.5 for s in range(5)], columns, rotation=60, color=KEY)
    axis.set_yticks([t + 0.5 for t in range(5)], rows, color=QUERY)
    axis.tick_params(length=0)
    axis.grid(False)
axes[0].set_ylabel("query: attends from")
plt.show()

# %% [markdown]
# ## What to remember
#
# - A mask is boolean, queries are rows, keys are columns, and True means *may attend*.
# - Padding is hidden by columns. Zero vectors are not invisible; only a weight of zero is.
# - The causal mask lets a decoder learn all positions at once without reading the answer.
# - A row must keep at least one open column, or softmax has nothing to share out.

# %% [markdown]
# ## Exercises
#
# 1. By hand: how many cells of `target_mask` are True for a target of 6 tokens, the last 2 of
#    them padding?
# 2. Targets are padded on the right. Show that the padding part of `target_mask` then never
#    changes the row of a real word. Why do we keep it?
# 3. What breaks if the causal mask is `tril(-1)`, so that a position may not see itself?
#
# :::{admonition} Solution
# :class: dropdown
# 1. Row $t$ (from 0) has $\min(t + 1, 4)$ open cells: $1 + 2 + 3 + 4 + 4 + 4 = 18$.
# 2. A real word at $t$ sees columns $0..t$, all of them real words, since padding lies to the right
#    of every word. The cell below checks it. We keep the padding part because a batch may one day
#    be padded on the left, and because a mask that is right by itself needs no such argument.
# 3. Row 0 has no open column: softmax over nothing. And each position would have to predict the
#    next word without seeing the current one.
# :::

# %% tags=["hide-input"]
target = torch.tensor([[BOS, 5, 6, 7, PAD, PAD]])
assert target_mask(target).sum() == 18
assert torch.equal(target_mask(target)[0, 0, :4], causal_mask(6)[:4])
assert not causal_mask(6).tril(-1)[0].any()
