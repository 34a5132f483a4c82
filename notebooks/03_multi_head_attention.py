# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Multi-head attention
#
# This chapter builds attention with several heads, the form in which the model uses it (section
# 3.2.2 of the paper).
#
# One attention gives each word one weighted average. But a word often needs two things at once:
# a verb wants its subject and its object, and wants to know which is which. An average of the
# two vectors tells neither apart. So we let several small attentions, called **heads**, look at
# the same sentence in parallel, each through projections of its own.

# %% tags=["export"]
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.attention import attention

# %%
import matplotlib.pyplot as plt
import torch

from annotated_transformer.figures import QUERY, VALUE, style
from annotated_transformer.masks import causal_mask

# %% [markdown]
# ## What one head cannot do
#
# Let three words have the values $(1, 0)$, $(0, 1)$ and $(0.5, 0.5)$. A query that looks at the
# first two equally gets the same answer as a query that looks only at the third:

# %%
values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
both = torch.tensor([0.5, 0.5, 0.0]) @ values
third = torch.tensor([0.0, 0.0, 1.0]) @ values
print(both.tolist(), third.tolist())

# %% [markdown]
# Two heads would have kept the two words apart: one returns $(1, 0)$, the other $(0, 1)$, side by
# side. That is the whole idea. The rest is bookkeeping, and the price is nothing, as we will see.
#
# ## The formula
#
# Each of the $h$ heads projects queries, keys and values with matrices of its own, then attends.
# The results are put side by side and projected once more:
#
# $$
# \begin{aligned}
# \text{head}_i &= \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V) \\
# \text{multi-head}(Q, K, V) &= [\text{head}_1; \dots; \text{head}_h]\, W^O
# \end{aligned}
# $$ (eq-multi-head)
#
# Every input vector has $d_\text{model}$ numbers. The sizes of the matrices are then forced:
#
# | matrix | rows | columns | in the base model |
# |---|---|---|---|
# | $W_i^Q$, $W_i^K$ | $d_\text{model}$ | $d_k$ | 512 × 64 |
# | $W_i^V$ | $d_\text{model}$ | $d_v$ | 512 × 64 |
# | $W^O$ | $h\, d_v$ | $d_\text{model}$ | 512 × 512 |
#
# ## All heads in one multiplication
#
# A loop over heads would be slow. The $h$ matrices $W_i^Q$ stand side by side in one matrix of
# $h\, d_k$ columns, so one multiplication projects for all heads. What remains is to cut the result
# into heads and move the head axis in front, where attention treats it as one more batch axis.


# %% tags=["export"]
def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the last axis into heads: (B, T, H * K) becomes (B, H, T, K)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, K) becomes (B, T, H * K)."""
    return x.transpose(-3, -2).flatten(-2)


# %% [markdown]
# Why not reshape straight to (B, H, T, K)? The shape would be right and the content wrong. We
# number the cells of one sentence with $T = 4$ words and $h\, d_k = 6$ and look.

# %%
numbers = torch.arange(24).reshape(1, 4, 6)
right = split_heads(numbers, heads=2)
wrong = numbers.reshape(1, 2, 4, 3)
print("same shape:", right.shape == wrong.shape, " same content:", torch.equal(right, wrong))
assert torch.equal(merge_heads(right), numbers)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-split-heads", "caption": "Which cells does each head get? Every row is a word. Right: a head gets a slice of every word (plain cells for head 1, hatched for head 2). Wrong: a plain reshape gives head 1 the whole first half of the sentence."}, "image": {"alt": "Two grids of 4 words by 6 numbers. In the left one, columns 0 to 2 belong to head 1 and 3 to 5 to head 2; in the right one, rows 0 and 1 belong to head 1 and rows 2 and 3 to head 2."}}
style()
fig, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
titles = ["split_heads: a slice of every word", "reshape: half of the words"]
for axis, heads, title in zip(axes, [right, wrong], titles):
    for t in range(4):
        for d in range(6):
            number = int(numbers[0, t, d])
            first = number in heads[0, 0]
            color, hatch = (QUERY, "") if first else (VALUE, "////")
            axis.add_patch(plt.Rectangle((d, t), 1, 1, fc="white", ec=color, hatch=hatch, lw=1.2))
            box = {"fc": "white", "ec": "none", "pad": 1.5}
            axis.text(d + 0.5, t + 0.5, number, ha="center", va="center", color=color, bbox=box)
    axis.set(xlim=(-0.05, 6.05), ylim=(4.05, -0.05), aspect="equal", title=title)
    axis.set_xticks([d + 0.5 for d in range(6)], range(6))
    axis.set_yticks([t + 0.5 for t in range(4)], [f"word {t}" for t in range(4)])
    axis.tick_params(length=0)
    axis.grid(False)
plt.show()

# %% [markdown]
# ## How wide is a head?
#
# The paper takes $d_k = d_v = d_\text{model} / h$, so 64 numbers for each of 8 heads. The division must
# come out even. If it does not, we say at once which numbers would do.


# %% tags=["export"]
def head_width(d_model: int, heads: int) -> int:
    """Return the width of one head, d_model / heads.

    Raises:
        ValueError: heads does not divide d_model; the message names values that do.
    """
    if d_model % heads:
        fitting = ", ".join(str(h) for h in range(1, min(d_model, 64) + 1) if d_model % h == 0)
        nearest = heads * max(1, round(d_model / heads))
        raise ValueError(
            f"d_model={d_model} cannot be shared out evenly among heads={heads}: "
            f"take heads from {fitting}; or d_model={nearest}; or give both d_k and d_v"
        )
    return d_model // heads


# %%
try:
    head_width(512, heads=7)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Two ways to attend
#
# Inside the module we want two things that exclude each other. Training wants speed: PyTorch's
# fused attention never stores the (T, S) matrix of weights. We want to look at just that matrix.
# So there are two paths, and `record` chooses.


# %% tags=["export"]
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: nn.Dropout,
    record: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return attention's output and, only if record is set, its weights (B, H, T, S).

    Without record the fused kernel does the work; both paths give the same output.
    """
    if record:
        return attention(query, key, value, mask, dropout)
    rate = dropout.p if dropout.training else 0.0
    return F.scaled_dot_product_attention(query, key, value, mask, rate), None


# %% [markdown]
# ## The module
#
# Now the formula is four linear maps with attention between them. The paper writes no bias, so the
# maps have none unless asked. It also needs no dropout on the weights; a later version of the
# authors' code has it, so the option is there, at rate 0.
#
# `forward` has two halves: `project` makes keys and values, `attend` lets queries at them. Training always
# calls both. A decoder that writes word by word meets the same keys again and again, and
# [decoding](15_decoding.ipynb) will keep what `project` returned and call only `attend`.


# %% tags=["export"]
class MultiHeadAttention(nn.Module):
    """Attend with several heads at once, [head_1; ...; head_H] W_O (section 3.2.2)."""

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        d_k, d_v = (width or head_width(d_model, heads) for width in (d_k, d_v))
        self.query = nn.Linear(d_model, heads * d_k, bias)
        self.key = nn.Linear(d_model, heads * d_k, bias)
        self.value = nn.Linear(d_model, heads * d_v, bias)
        self.output = nn.Linear(heads * d_v, d_model, bias)
        self.heads, self.dropout, self.record = heads, nn.Dropout(dropout), False
        self.weights: Tensor | None = None  # of the last call, where record is set

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D), mask (B, 1, T, S) to (B, T, D)."""
        return self.attend(query, *self.project(key, value), mask)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project key and value (B, S, D) to heads, (B, H, S, K) each; widths may differ."""
        return split_heads(self.key(key), self.heads), split_heads(self.value(value), self.heads)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Map query (B, T, D) and projected keys and values (B, H, S, K) to (B, T, D)."""
        query = split_heads(self.query(query), self.heads)
        output, self.weights = attend(query, keys, values, mask, self.dropout, self.record)
        return self.output(merge_heads(output))


# %% [markdown]
# A toy call with a different size on each axis: 2 sentences, 3 queries, 5 keys, 24
# numbers, 4 heads of width 6.

# %%
torch.manual_seed(0)
module = MultiHeadAttention(d_model=24, heads=4).double()
query = torch.randn(2, 3, 24, dtype=torch.float64)
memory = torch.randn(2, 5, 24, dtype=torch.float64)
fast = module(query, memory, memory)
module.record = True
readable = module(query, memory, memory)
print("output:", tuple(readable.shape), " weights:", tuple(module.weights.shape))
print("the two paths agree:", torch.allclose(fast, readable))

# %% [markdown]
# ## Is it the formula?
#
# The formula has a loop over heads and one small matrix for each. Here it is, word for word.
# `nn.Linear` stores its matrix transposed, so a head's slice is one of columns of `.weight.T`. To tell
# all sizes apart we take $d_k = 5$ and $d_v = 7$.

# %%
uneven = MultiHeadAttention(d_model=24, heads=4, d_k=5, d_v=7).double()
heads = []
for i in range(4):
    keys, values = slice(5 * i, 5 * i + 5), slice(7 * i, 7 * i + 7)
    Wq, Wk = uneven.query.weight.T[:, keys], uneven.key.weight.T[:, keys]
    Wv = uneven.value.weight.T[:, values]
    heads.append(attention(query @ Wq, memory @ Wk, memory @ Wv)[0])
by_formula = torch.cat(heads, dim=-1) @ uneven.output.weight.T
assert torch.allclose(by_formula, uneven(query, memory, memory))
print("W_O is", tuple(uneven.output.weight.T.shape), "that is (h d_v, d_model)")

# %% [markdown]
# An independent reference is `nn.MultiheadAttention`. It keeps the three input projections in one
# matrix, on top of each other. We copy our weights and compare, with a mask. Its boolean mask
# means the opposite of ours, hence the `~`.

# %%
reference = torch.nn.MultiheadAttention(24, 4, bias=False, batch_first=True).double()
projections = [module.query.weight, module.key.weight, module.value.weight]
reference.in_proj_weight.data = torch.cat(projections).detach()
reference.out_proj.weight.data = module.output.weight.detach()

mask = causal_mask(3)
expected, weights = reference(query, query, query, attn_mask=~mask, average_attn_weights=False)
assert torch.allclose(module(query, query, query, mask), expected)
assert torch.allclose(module.weights, weights)
print("equal to nn.MultiheadAttention")

# %% [markdown]
# ## What do heads cost?
#
# Nothing. With $d_k = d_v = d_\text{model} / h$, each of the four matrices has $d_\text{model}^2$ numbers,
# however many heads they are cut into. More heads are not more parameters; they are narrower.

# %%
for h in [1, 4, 8, 16, 32]:
    count = sum(p.numel() for p in MultiHeadAttention(512, h).parameters())
    print(f"{h:2} heads of width {512 // h:3}: {count:,} parameters")
assert count == 4 * 512**2

# %% [markdown]
# Rows A of the paper's Table 3 try these five. One head loses 0.9 BLEU against eight, and 32 heads
# lose 0.4: a head of 16 numbers may be too narrow to tell words apart. Rows B shrink $d_k$ alone, with
# $d_v$ left at 64, which our module also allows:

# %%
narrow = MultiHeadAttention(512, heads=8, d_k=16, d_v=64)
print(narrow.query.weight.shape, narrow.value.weight.shape)

# %% [markdown]
# ## Do heads differ?
#
# They start from different random matrices, so they look at different words from the first step on.
# Nothing forces them to stay apart. In a trained model many do;
# a later chapter reads them. Here are four untrained heads on one random sentence.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-heads", "caption": "Do heads look at the same words? Four untrained heads on the same six random vectors. Gray is the weight, from 0 (paper) to 1 (ink); rows sum to 1."}, "image": {"alt": "Four gray maps of six queries by six keys. Each head spreads its weight in a pattern of its own."}}
x = torch.randn(1, 6, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
module(2 * x, 2 * x, 2 * x)
assert torch.allclose(module.weights.sum(dim=-1), torch.ones((), dtype=torch.float64))
fig, axes = plt.subplots(1, 4, figsize=(9, 2.7), layout="constrained", sharey=True)
for i, axis in enumerate(axes):
    picture = axis.imshow(module.weights[0, i].detach(), cmap="Greys", vmin=0, vmax=1)
    axis.set(title=f"head {i + 1}", xlabel="key: attended to")
    axis.set(xticks=range(6), yticks=range(6))
    axis.grid(False)
axes[0].set_ylabel("query: attends from")
fig.colorbar(picture, ax=axes, label="weight", shrink=0.8)
plt.show()

# %% [markdown]
# ## What to remember
#
# - A head is a small attention with projections of its own; heads look at different things at once.
# - One matrix multiplication projects for all heads; then the head axis moves to the front.
# - Reshaping without the transpose gives the right shape and the wrong content.
# - $h$ heads have as many parameters as one: $4\, d_\text{model}^2$. They trade width for number.

# %% [markdown]
# ## Exercises
#
# 1. By hand: how many parameters has the attention of row B with $d_k = 16$, $d_v = 64$, $h = 8$ and
#    $d_\text{model} = 512$?
# 2. Let $W_i^Q = 0$ for all heads. What does every query attend to?
# 3. What breaks if `merge_heads` forgets to transpose?
#
# :::{admonition} Solution
# :class: dropdown
# 1. Queries and keys: $2 \cdot 512 \cdot 128$; values and output: $2 \cdot 512 \cdot 512$. Together 655,360.
# 2. All scores are 0, so all weights are equal: every query gets the mean of the values.
# 3. The result has the right shape, and the numbers of different words are mixed up. Nothing
#    fails; the model only learns badly.
# :::

# %% tags=["hide-input"]
assert sum(p.numel() for p in narrow.parameters()) == 655_360
with torch.no_grad():
    module.query.weight.zero_()
mean = module.output(module.value(memory)).mean(dim=1, keepdim=True)
assert torch.allclose(module(query, memory, memory), mean.expand(-1, 3, -1))
