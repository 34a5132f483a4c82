# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Multi-head attention
#
# **Multi-head attention** lets several small attentions, called heads, look at the same sentence side by side, each with a question of its own, and adds up what they find (section 3.2.2 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("multi_head_attention")

# %% tags=["export", "hide-input"]
from collections.abc import Callable

from torch import Tensor, nn

from annotated_transformer.attention import Mask, attention

# %% [markdown]
# ## Why several heads?
#
# In [attention](03_attention.ipynb#from-scores-to-weights), `cat` had two questions: which verb belongs to me, and which adjective? With one softmax it had to divide its weight between the answers, 0.54 for `likes` and 0.20 for `black`, and so it heard only faintly that it is black. No choice of numbers can give both answers their full weight, because together they never get more than 1.
#
# What if `cat` could ask twice? Cut the matrices into two **heads**. The first gets the columns for nouns and verbs and hands over *living* and *edible*; the second gets the columns for adjectives and articles and hands over *dark*. How much weight do you expect `likes` and `black` to get now?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-two-heads", "caption": "What can two heads do that one cannot? The single head of chapter 3, and its matrices cut into two heads. The fuller a cell, the larger the weight; framed is what `cat` gives to `black` and to `likes`. One head divides its weight between them; of two heads, each has one to look hard at. The words `black` and `likes` have nothing to ask head 2, so it gives them the plain average: an even row."}}
import altair as alt
import torch

from annotated_transformer import check, load_pretrained
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.masks import BOS, EOS, causal_mask
from book.example import FEATURES, W_K, W_Q, W_V, WORDS, X
from book.figures import SKY, heatmap, show

cut_Q, cut_K = (W_Q[:, :2], W_Q[:, 2:]), (W_K[:, :2], W_K[:, 2:])
pairs = [(W_Q, W_K), *zip(cut_Q, cut_K)]
single, first, second = (attention(X @ q, X @ k, X)[1] for q, k in pairs)
look = {"titles": ("", ""), "cell": 24, "marked": [(2, 1), (2, 3)]}
titles = {"one head": single, "head 1 of 2": first, "head 2 of 2": second}
show(
    *[heatmap(w, WORDS, WORDS, **look).properties(title=t) for t, w in titles.items()],
    alt="Cat gives likes 0.54 and black 0.20 with one head. With two, it gives likes 0.77 in head 1 and black 0.51 in head 2.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(w, 2) for w in single[2].tolist()] == [0.07, 0.2, 0.07, 0.54, 0.12]
    assert (
        round(first[2, 3].item(), 2) == 0.77 and round(second[2, 1].item(), 2) == 0.51
    )
    same_divisor = [attention(X @ q / 2**0.5, X @ k, X)[1] for q, k in pairs[1:]]
    assert round(same_divisor[0][2, 3].item(), 2) == 0.61
    assert round(same_divisor[1][2, 1].item(), 2) == 0.40

# %% [markdown]
# With two heads, `cat` gives 0.77 to `likes` in one and 0.51 to `black` in the other. One answer no longer costs the other, because each head has a total of 1 of its own to give.
#
# :::{margin}
# Part of that is the smaller divisor: a head of width 2 divides its scores by $\sqrt 2$, where the single head divided by 2. With the same divisor it would be 0.61 and 0.40.
# :::
#
# ## The formula
#
# Each head $i$ has three matrices of its own, which make its queries, keys and values from the words' vectors $X$. The brackets put the results of all $h$ heads side by side, and one more matrix, $W^O$, mixes them:
#
# $$
# \begin{aligned}
# Q_i = X W_i^Q, \quad K_i &= X W_i^K, \quad V_i = X W_i^V \\
# \text{head}_i &= \text{attention}(Q_i,\, K_i,\, V_i) \\
# \text{multi-head}(X) &= [\text{head}_1; \dots; \text{head}_h]\, W^O
# \end{aligned}
# $$ (eq-multi-head)
#
# In code it is a loop. Our $W^O$ has one row for each number that the heads hand over: *living* and *edible* go back to the columns that they came from, and *dark* goes to the column *adjective*, doubled, because the values had halved it.

# %%
import torch

from book.example import FEATURES, W_K, W_Q, W_V, X


def head_by_head(X, W_Q, W_K, W_V, W_O):
    heads = [attention(X @ q, X @ k, X @ v)[0] for q, k, v in zip(W_Q, W_K, W_V)]
    return torch.cat(heads, dim=-1) @ W_O


cut_Q = W_Q[:, :2], W_Q[:, 2:]  # noun and verb; adjective and article
cut_K = W_K[:, :2], W_K[:, 2:]
cut_V = W_V[:, [0, 2]], W_V[:, [1]]  # living and edible; dark
W_O = torch.zeros(3, 6).double()
W_O[0, 4], W_O[1, 5], W_O[2, 2] = 1, 1, 2
two = head_by_head(X, cut_Q, cut_K, cut_V, W_O)
print({name: round(v, 2) for name, v in zip(FEATURES, two[2].tolist())})

# %% tags=["remove-cell"]
if CHECKING:
    from book.example import W_O as W_O_of_one_head

    one = head_by_head(X, [W_Q], [W_K], [W_V], W_O_of_one_head)
    assert round(one[2, 2].item(), 2) == 0.40 and round(two[2, 2].item(), 2) == 1.01

# %% [markdown]
# That is what `cat` receives. In the column *adjective* it is twice its weight on `black`, 1.01, where the single head brings $2 \cdot 0.20 = 0.40$. The price is that each head compares only two features instead of four. That is the bargain of this chapter: more questions, with a narrower comparison for each.
#
# ## Each head sees the whole word
#
# In many drawings each head seems to get a slice of the word. They mislead. Let $d_\text{model}$ be the width of a word's vector, 512 in the paper's base model. Each $W_i^Q$ has $d_\text{model}$ rows, so a head reads *all* numbers of a word and returns $d_k$ new ones.
#
# | matrix | rows | columns | in the base model |
# |---|---|---|---|
# | $W_i^Q$, $W_i^K$ | $d_\text{model}$ | $d_k$ | 512 × 64 |
# | $W_i^V$ | $d_\text{model}$ | $d_v$ | 512 × 64 |
# | $W^O$ | $h\, d_v$ | $d_\text{model}$ | 512 × 512 |
#
# A head that got only 64 of the 512 numbers of each word could never compare something in the first part of one word with something in the last part of another.
#
# ## All heads in one multiplication
#
# A loop of $h$ small products is slow, and it isn't needed. In $XW$, each column of the result needs only one column of $W$. So we put the matrices of all heads side by side and multiply once. A layer with a single matrix of 512 × 512 therefore holds a matrix for each head: 64 of its columns.
#
# **Exercise 1. Write it first** (★★, 20 min). Before you read on, write `multi_head_attention(query, key, value, W_Q, W_K, W_V, W_O, heads)`. `query` holds the vectors of the words that ask, $(B, T, D)$; `key` and `value` hold those of the words that answer, $(B, S, D)$. Here $B$ counts sentences, and $D$ is short for $d_\text{model}$. (In self-attention all three are $X$.) The matrices are $(D, D)$, and you may not loop over the heads. `check("multi_head_attention", multi_head_attention)` from `annotated_transformer` says whether it is right.
#
# ## Split
#
# Attention treats every axis in front of the last two as one more batch. So we want the heads as an axis of their own, in front of the positions: cut the last axis into two, then swap.


# %% tags=["export"]
def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the last axis into heads: (B, T, H * d_k) becomes (B, H, T, d_k)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


# %% [markdown]
# An obvious idea is shorter, a single `reshape` into the shape that is wanted. To see the difference, we number the cells of four words with six numbers each.

# %%
numbers = torch.arange(24).reshape(1, 4, 6)
right = split_heads(numbers, heads=2)
wrong = numbers.reshape(1, 2, 4, 3)
print("same shape:", tuple(right.shape), tuple(wrong.shape))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-split-heads", "caption": "Which numbers does each head get? First four words with six numbers each, counted from 0. Rightly split, each head has three numbers of every word. After a plain reshape, head 1 has all numbers of `the` and `black`, in four pieces that it takes for words."}}
look = {"limit": 40, "color": SKY, "titles": ("", ""), "cell": 24}


def numbered(matrix, rows, title):
    columns = [str(i) for i in range(matrix.size(1))]
    return heatmap(matrix, rows, columns, **look).properties(title=title)


pieces = [f"piece {t}" for t in range(4)]
panels = [numbered(numbers[0], WORDS[:4], "projected")]
for way, rows, heads in (("split", WORDS[:4], right[0]), ("reshape", pieces, wrong[0])):
    first_head = numbered(heads[0], rows, f"{way}: head 1")
    panels.append(alt.hconcat(first_head, numbered(heads[1], [""] * 4, "head 2")))
show(
    *panels,
    alt="Rightly split, head 1 has columns 0 to 2 of all four words. Wrongly split, it has the numbers 0 to 11, which are the first two words.",
)

# %% [markdown]
# ## Join
#
# After attention both steps are undone:


# %% tags=["export"]
def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, d_v) becomes (B, T, H * d_v)."""
    return x.transpose(-3, -2).flatten(-2)


# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(merge_heads(right), numbers)

# %% [markdown]
# ### What breaks without the transpose
#
# Leave the transpose out of both functions, and `the` and `black` never hear of `cat` and `likes`, in any layer of the encoder.

# %% tags=["remove-cell"]
if CHECKING:

    def reached(split, join):
        x = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True)
        heads = split(x)
        output = join(attention(heads, heads, heads)[0])
        output[0, 0].sum().backward()
        return x.grad[0].abs().sum(dim=-1).nonzero().flatten().tolist()

    reshaped = lambda x: x.reshape(1, 2, 4, 3), lambda x: x.reshape(1, 4, 6)
    assert reached(*reshaped) == [0, 1]
    assert reached(lambda x: split_heads(x, 2), merge_heads) == [0, 1, 2, 3]

# %% [markdown]
# ## Why one more matrix at the end?
#
# Without $W^O$, head 1 could write into the first numbers of the output only, head 2 into the next, and so on. With it, each head can write into every column. Let $W_i^O$ be the $d_v$ rows of $W^O$ that meet head $i$; then the product is a sum:
#
# $$
# [\text{head}_1; \dots; \text{head}_h]\, W^O = \sum_{i=1}^{h} \text{head}_i\, W_i^O
# $$ (eq-sum-of-heads)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sum-of-heads", "caption": "What do the heads do to `cat`? Each adds its own row to the vector of the word. Head 2 writes into the column \u201cadjective\u201d: the cat is black. Head 1 adds next to nothing, since `likes`, where it looks, has nothing to hand over."}}
own_rows = W_O.split([v.size(1) for v in cut_V])
adds = [
    attention(X @ q, X @ k, X @ v)[0] @ rows
    for q, k, v, rows in zip(cut_Q, cut_K, cut_V, own_rows)
]
rows = torch.stack([X[2], *[added[2] for added in adds], X[2] + sum(adds)[2]])
names = ["cat", *[f"+ head {i}" for i in range(1, len(adds) + 1)], "= sum"]
show(
    heatmap(rows, names, FEATURES, titles=("", ""), limit=2),
    alt="Head 2 raises the column adjective of cat from 0 to 1.01. Head 1 adds 0.09 to living and to edible.",
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(sum(adds), two)
    assert round(rows[3, 2].item(), 2) == 1.01

# %% [markdown]
# Joining and projecting is only the fast way to compute this sum. So heads don't disturb each other within a layer, their order means nothing, and you remove a head by dropping its term.
#
# ## The width of a head
#
# The paper takes $d_k = d_v = d_\text{model} / h$, so 64 numbers for each of 8 heads. Other widths are possible, as long as queries and keys have the same one.


# %% tags=["export"]
def head_width(d_model: int, heads: int) -> int:
    """Return the width of one head, d_model / heads; raises ValueError if it is no whole number."""
    if d_model % heads:
        raise ValueError(
            f"heads={heads} does not divide d_model={d_model}: "
            "take heads that do, or give both d_k and d_v"
        )
    return d_model // heads


# %% [markdown]
# ## The module
#
# Now the loop becomes four linear maps with one attention between them. The module takes three inputs, because later the $T$ words that ask will come from one sentence and the $S$ words that answer from another. The last column has the shapes in the base model for 2 sentences, 3 queries and 5 keys:
#
# | step | result | shape | here |
# |---|---|---|---|
# | input | `query` | $(B, T, D)$ | 2×3×512 |
# | input | `key`, `value` | $(B, S, D)$ | 2×5×512 |
# | project, `split_heads` | queries by head | $(B, H, T, d_k)$ | 2×8×3×64 |
# | project, `split_heads` | keys, values by head | $(B, H, S, d_k)$ | 2×8×5×64 |
# | softmax of the scores | weights | $(B, H, T, S)$ | 2×8×3×5 |
# | weights times values | what heads return | $(B, H, T, d_v)$ | 2×8×3×64 |
# | `merge_heads` | joined | $(B, T, H \cdot d_v)$ | 2×3×512 |
# | `self.output` | output | $(B, T, D)$ | 2×3×512 |
#
# :::{margin}
# Dropout on the weights is 0 unless you ask for it; [departures](../book/departures.md#the-model) has its effect.
# :::


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
        d_k = d_k or head_width(d_model, heads)
        d_v = d_v or head_width(d_model, heads)
        self.heads = heads
        self.query = nn.Linear(d_model, heads * d_k, bias)
        self.key = nn.Linear(d_model, heads * d_k, bias)
        self.value = nn.Linear(d_model, heads * d_v, bias)
        self.output = nn.Linear(heads * d_v, d_model, bias)
        self.dropout = nn.Dropout(dropout)
        self.attend: Callable[..., tuple[Tensor, Tensor | None]] = attention

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D), mask (B, 1, T, S) to (B, T, D)."""
        query = split_heads(self.query(query), self.heads)
        key = split_heads(self.key(key), self.heads)
        value = split_heads(self.value(value), self.heads)
        by_head, _ = self.attend(query, key, value, mask, self.dropout)
        return self.output(merge_heads(by_head))


# %% [markdown]
# `nn.Linear` stores its matrix transposed, so `self.query.weight.T` holds all $W_i^Q$ side by side. `self.attend` holds our own [`attention`](03_attention.ipynb#the-code); [later](19_decoding.ipynb#the-same-in-one-call) a faster function with the same result takes its place. All heads share one mask, because what is padding for one is padding for all.
#
# To check the module, we cut its matrices into four heads and hand them to the loop. Then we give the same matrices to PyTorch's own `nn.MultiheadAttention`.

# %%
torch.manual_seed(0)
x = torch.randn(2, 5, 24, dtype=torch.float64)
heads = 4
module = MultiHeadAttention(24, heads).double()
matrices = [part.weight for part in (module.query, module.key, module.value)]
by_head = [matrix.T.chunk(heads, dim=1) for matrix in matrices]
by_loop = head_by_head(x, *by_head, module.output.weight.T)

theirs = nn.MultiheadAttention(24, heads, bias=False, batch_first=True).double()
theirs.in_proj_weight.data = torch.cat(matrices)
theirs.out_proj.weight = module.output.weight
by_pytorch, _ = theirs(x, x, x)
for name, output in (("the loop", by_loop), ("PyTorch", by_pytorch)):
    print(f"largest difference to {name}: {(module(x, x, x) - output).abs().max():.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(module(x, x, x), by_loop, atol=1e-12, rtol=0)
    torch.testing.assert_close(module(x, x, x), by_pytorch, atol=1e-12, rtol=0)
    memory = torch.randn(2, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(
        module(x[:, :3], memory, memory), theirs(x[:, :3], memory, memory)[0]
    )
    hidden = theirs(x, x, x, attn_mask=~causal_mask(5))[0]
    torch.testing.assert_close(module(x, x, x, causal_mask(5)), hidden)
    # heads of other widths
    W = [
        torch.randn(shape, dtype=torch.float64)
        for shape in [(4, 24, 5), (4, 24, 5), (4, 24, 7), (28, 24)]
    ]
    uneven = MultiHeadAttention(d_model=24, heads=4, d_k=5, d_v=7).double()
    with torch.no_grad():
        for layer, separate in zip([uneven.query, uneven.key, uneven.value], W):
            layer.weight.copy_(torch.cat(list(separate), dim=1).T)
        uneven.output.weight.copy_(W[3].T)
    torch.testing.assert_close(uneven(x, x, x), head_by_head(x, *W))

# %% [markdown]
# ## What heads cost
#
# More heads cost no parameters. With $d_k = d_v = d_\text{model} / h$, each of the four matrices has $d_\text{model}^2$ numbers, however many heads they are cut into: $4 \cdot 512^2 = 1{,}048{,}576$ in the base model.

# %% tags=["remove-cell"]
if CHECKING:
    for heads in (1, 8, 32):
        layer = MultiHeadAttention(512, heads)
        assert sum(p.numel() for p in layer.parameters()) == 4 * 512**2 == 1_048_576

# %% [markdown]
# They cost no multiplications, either. One score takes $d_k = d_\text{model} / h$ of them, and each pair of words has $h$ scores, so a pair takes $d_\text{model}$ multiplications for any $h$. What grows is the number of weights, each of which needs an exponential.
#
# ## How many heads to take
#
# The paper tries five numbers of heads at the same cost (rows A of its Table 3; BLEU on its validation set):
#
# | heads | 1 | 4 | 8 | 16 | 32 |
# |---|:---:|:---:|:---:|:---:|:---:|
# | width | 512 | 128 | 64 | 32 | 16 |
# | BLEU | 24.9 | 25.5 | 25.8 | 25.8 | 25.4 |
#
# One head is worst, and 32 are too many again, perhaps because a narrow head compares two words by few features: [in miniature](22_variations.ipynb#heads-and-their-width-rows-a-and-b), eight heads with keys as narrow lose about as much as 32.
#
# ## How heads differ
#
# Nothing in the loss asks heads to differ. They start from different random matrices, so each gets a different gradient. To see where that leads, we look ahead to `captions-de-en`, a trained model that comes with this book and translates German captions of photographs.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-heads", "caption": "Do heads look at the same words? The four heads of the second decoder layer of the trained model, from an English sentence (rows: the word about to be written) to the German one (columns). An empty cell is a weight of 0, a full one 1."}}
model, tokenizer = load_pretrained("captions-de-en")
german = [*tokenizer.encode("Ein kleines Mädchen spielt mit einem roten Ball."), EOS]
english = [BOS, *tokenizer.encode("A little girl plays with a red ball.")]
trained = attention_maps(model, torch.tensor([german]), torch.tensor([english])).cross[
    1
]
written = [tokenizer.decode([i]).strip() for i in english[1:]] + ["</s>"]
read = [tokenizer.decode([i]).strip() or "</s>" for i in german]
maps = [
    heatmap(w, written, read, cell=26, titles=("", "")).properties(title=f"head {i}")
    for i, w in enumerate(trained, 1)
]
show(
    *maps,
    alt="Head 3 is full along the diagonal. Head 2 is full in the columns of the nouns, head 1 in that of Ball only, head 4 in single cells; the last rows are gray in the last two columns.",
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(trained.sum(dim=-1), torch.ones(trained.shape[:2]))
    best = trained.argmax(dim=-1).tolist()
    # head 3: the next word
    assert [best[2][r] for r in (1, 3, 4, 5, 6, 7)] == [1, 3, 4, 5, 6, 7]
    assert best[1][:3] == [2, 2, 2] and best[1][6:8] == [7, 7]  # head 2: the noun ahead
    cells = [(2, 3, 3), (2, 6, 6), (1, 0, 2), (1, 6, 7), (3, 5, 2)]
    weights_quoted = [round(trained[cell].item(), 2) for cell in cells]
    assert weights_quoted == [0.99, 0.99, 0.99, 0.84, 0.76]
    distances = (trained[:, None] - trained).abs().sum(dim=-1).mean(dim=-1) / 2
    assert (distances + torch.eye(4)).min() > 0.35

# %% [markdown]
# Head 3 mostly looks at the German word that is being translated: `plays` at `spielt` and `red` at `roten`, with 0.99 each. Head 2 looks ahead to the noun: at `Mädchen` with 0.99 from the very first `A`, and at `Ball` with 0.84 when `red` is due. Head 4 looks back to `Mädchen` where `a` is due (0.76).
#
# That is one sentence, and an attention chosen because its heads differ; in other layers some heads do nearly the same. Whether a pattern holds over many sentences, and whether a head matters, has to be [counted](21_attention_maps.ipynb#take-a-head-away).

# %% [markdown]
# ## What to remember
#
# - A head is a small attention with projections of its own. It reads the whole word and asks one question.
# - One matrix multiplication projects for all heads. Then split: cut the last axis, and move the head axis to the front. A reshape alone gives the right shape and the wrong content.
# - The output is a sum over heads.
# - $h$ heads of width $d_\text{model} / h$ have as many parameters as one: $4\, d_\text{model}^2$.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** is [above](#all-heads-in-one-multiplication).
#
# :::{admonition} Solution 1
# :class: dropdown
# Project, cut the last axis, swap, attend, swap back, flatten, mix:
#
# ```python
# def multi_head_attention(query, key, value, W_Q, W_K, W_V, W_O, heads):
#     def split(x):
#         return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
#
#     q, k, v = split(query @ W_Q), split(key @ W_K), split(value @ W_V)
#     weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1)
#     return (weights @ v).transpose(1, 2).reshape(query.shape) @ W_O
# ```
# :::

# %% tags=["remove-cell"]
if CHECKING:

    def my_heads(query, key, value, W_Q, W_K, W_V, W_O, heads):
        def split(x):
            return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

        q, k, v = split(query @ W_Q), split(key @ W_K), split(value @ W_V)
        weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).reshape(query.shape) @ W_O

    assert check("multi_head_attention", my_heads)

# %% [markdown]
# **2. By hand** (★, 5 min). In rows B of its Table 3 the paper makes only queries and keys narrower: $d_k = 16$, while $d_v = 64$, $h = 8$ and $d_\text{model} = 512$. How many parameters does such an attention have?
#
# :::{admonition} Solution 2
# :class: dropdown
# Queries and keys have $8 \cdot 16 = 128$ columns each, so $2 \cdot 512 \cdot 128 = 131{,}072$ numbers. Values and output have $2 \cdot 512 \cdot 512 = 524{,}288$. Together that is 655,360, where the base model has 1,048,576. (It costs the paper 0.7 BLEU, so it is the comparison that suffers.)
# :::

# %% tags=["remove-cell"]
if CHECKING:
    narrow = MultiHeadAttention(512, heads=8, d_k=16, d_v=64)
    assert sum(p.numel() for p in narrow.parameters()) == 655_360

# %% [markdown]
# **3. Equal heads** (★★, 15 min). What happens in training if all heads start with the same weights? Copy head 1 to the others and look at the gradients.
#
# :::{admonition} Solution 3
# :class: dropdown
# They stay equal. By {eq}`eq-sum-of-heads` the output is a sum in which all heads appear alike. If $W_i^Q$, $W_i^K$, $W_i^V$ and $W_i^O$ are the same for all $i$, then so are the gradients of the loss with respect to them, and after the step the heads are equal again: four heads that do the work of one. Only dropout on the weights, which draws for each head anew, would set them apart.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    alike = MultiHeadAttention(d_model=24, heads=4).double()
    with torch.no_grad():
        for part in (alike.query, alike.key, alike.value):
            part.weight.copy_(part.weight[:6].repeat(4, 1))
        alike.output.weight.copy_(alike.output.weight[:, :6].repeat(1, 4))
    alike(x, x, x).square().sum().backward()
    gradients = alike.query.weight.grad.unflatten(0, (4, 6))
    torch.testing.assert_close(gradients, gradients[:1].expand(4, 6, 24))

# %% [markdown]
# ## Further
#
# ### Why does `view` fail after the transpose?
#
# A tensor is one long row of numbers in memory, with a *stride* for each axis that says how far to jump for the next entry. `transpose` moves no numbers; it swaps two strides. In a transposed head, the next number is 1 further on and the next word 6, so the 12 numbers of head 1 would be 0, 1, 2, 6, 7, 8 and so on. `view` needs steps of one size. `flatten` and `reshape` copy the numbers if they must, as the `.contiguous()` of older code does.
#
# ### Maps without a bias
#
# The formula has no bias. One on the keys, $b$, would do nothing at all, because it adds the same number, $q \cdot b$, to all scores of a query, and softmax sees only differences. Set `bias=True` to load weights that were trained with biases; all four maps then have one.
#
# ## Sources
#
# Multi-head attention is section 3.2.2 of {cite:t}`vaswani2017attention`. How many heads of a trained model can be removed is measured by {cite:t}`michel2019sixteen` and {cite:t}`voita2019analyzing`.
