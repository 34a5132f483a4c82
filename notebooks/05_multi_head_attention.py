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

# %% [markdown]
# # Multi-head attention
#
# This chapter builds attention with several heads, the form in which the model uses it (section 3.2.2 of the paper).
#
# One attention gives each word one weighted average. But a word often needs two things at once: a verb wants its subject and its object, and wants to know which is which. An average of the two vectors tells neither apart. So we let several small attentions, called **heads**, look at the same sentence in parallel, each through projections of its own.
#
# The idea takes a page. What takes care is to compute all heads at once, and there the most common bug of this chapter waits: code with the right shapes that mixes up the words. We write the slow version first, straight from the formula, and hold the fast one against it.

# %% tags=["export"]
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.attention import Mask, attention

# %%
import altair as alt

from annotated_transformer import load_pretrained
from book.figures import QUERY, heatmap, show, show_steps
from annotated_transformer.masks import BOS, EOS, PAD, causal_mask, padding_mask, target_mask

# %% [markdown]
# ## Why several heads?
#
# Take two sentences, *cats like fish* and *fish like cats*. In both, the verb looks for who acts and what is acted on. Let *cat* have the value $(1, 0)$ and *fish* $(0, 1)$. With one head, *like* must share its weight between the two. With two heads, one can look for the subject and the other for the object, and what they find is put side by side.

# %%
cat, fish = [1.0, 0.0], [0.0, 1.0]
for subject, object in [(cat, fish), (fish, cat)]:
    one_head = [0.5 * a + 0.5 * b for a, b in zip(subject, object)]
    print("one head:", one_head, " two heads:", [*subject, *object])

# %% [markdown]
# One head returns $(0.5, 0.5)$ for both sentences: who eats whom is lost. Unequal weights would not save it. The mix $(0.7, 0.3)$ may be 0.7 of a cat and 0.3 of a fish, or a single animal that is a little of each. The softmax allows one distribution for each query, so one head asks one question.
#
# Two heads give four numbers where one gave two. If the output may have two only, each head gets one. That is the bargain of this chapter: more questions, with a narrower answer to each.
#
# ## The formula
#
# Each of the $h$ heads projects queries, keys and values with matrices of its own, then attends. The results are put side by side and projected once more:
#
# $$
# \begin{aligned}
# \text{head}_i &= \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V) \\
# \text{multi-head}(Q, K, V) &= [\text{head}_1; \dots; \text{head}_h]\, W^O
# \end{aligned}
# $$ (eq-multi-head)
#
# Here $Q$, $K$ and $V$ are no longer projections of the words, as in the first chapter. They are the words' own vectors, or *states*, with $d_\text{model}$ numbers each; the projections are now part of the formula. In self-attention all three are the same matrix. The sizes of the others are then forced:
#
# | matrix | rows | columns | in the base model |
# |---|---|---|---|
# | $W_i^Q$, $W_i^K$ | $d_\text{model}$ | $d_k$ | 512 × 64 |
# | $W_i^V$ | $d_\text{model}$ | $d_v$ | 512 × 64 |
# | $W^O$ | $h\, d_v$ | $d_\text{model}$ | 512 × 512 |
#
# The formula is a loop over heads, and so is the slow version. `W_Q` holds the $h$ matrices $W_i^Q$ along its first axis.


# %%
def head_by_head(query, key, value, W_Q, W_K, W_V, W_O):
    heads = [attention(query @ q, key @ k, value @ v)[0] for q, k, v in zip(W_Q, W_K, W_V)]
    return torch.cat(heads, dim=-1) @ W_O


# %% [markdown]
# We try it with a different size on each axis: 2 sentences, 3 queries, 5 keys, 24 numbers a word, and 4 heads. Keys are 5 wide and values 7, which nothing forbids.

# %%
random = torch.Generator().manual_seed(0)
query, memory, *W = (
    torch.randn(shape, generator=random, dtype=torch.float64) / 5
    for shape in [(2, 3, 24), (2, 5, 24), (4, 24, 5), (4, 24, 5), (4, 24, 7), (28, 24)]
)
slow = head_by_head(query, memory, memory, *W)
print("one head reads", W[0][0].shape[0], "numbers; the output is", tuple(slow.shape))

# %% [markdown]
# $W^O$ has $h\,d_v = 4 \cdot 7 = 28$ rows, one for each number that the heads return, and $d_\text{model} = 24$ columns. Some texts give it $d_k$ columns. Then the output would be 5 wide, and could not be added to the states, which the [next layers](09_layers.ipynb) do.
#
# ## Does each head see only a part of the word?
#
# No, though many drawings look like it. A head's matrix $W_i^Q$ has $d_\text{model}$ rows: it reads *all* numbers of a word and returns $d_k$ new ones. What gets cut into heads is the result of a projection, never the word itself.
#
# The number of parameters tells the two designs apart. In the base model a head's three matrices have $3 \cdot 512 \cdot 64 = 98{,}304$ numbers. A head that was given 64 of the 512 numbers of each word would have $3 \cdot 64 \cdot 64 = 12{,}288$, an eighth. It could never compare something in the first part of one word with something in the last part of another.
#
# ## All heads in one multiplication
#
# A loop of $h$ small products is slow. A GPU likes one large product better. The $h$ matrices have the same number of rows, so they can stand side by side in one matrix of $h\, d_k$ columns. Each column of a product depends on one column of the right-hand matrix only, so the numbers stay what they were:

# %%
side_by_side = torch.cat(list(W[0]), dim=1)  # four matrices (24, 5) become one (24, 20)
together = query @ side_by_side
one_by_one = torch.cat([query @ q for q in W[0]], dim=-1)
torch.testing.assert_close(together, one_by_one)
print("one matrix", tuple(side_by_side.shape), " queries of all heads", tuple(together.shape))

# %% [markdown]
# This answers a question that comes up with each implementation: where are the heads' own matrices, if the layer has a single one of 512 × 512? They are its columns, 64 for each head.
#
# ## Split
#
# The product has the queries of all heads in one row, $h\, d_k$ numbers long. Attention treats every axis in front of the last two as one more batch. So we want the heads as an axis of their own, in front of the positions. That takes two steps: cut the last axis in two, then swap.


# %% tags=["export"]
def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the last axis into heads: (B, T, H * d_k) becomes (B, H, T, d_k)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


# %% [markdown]
# `unflatten` turns $(B, T, H \cdot K)$ into $(B, T, H, K)$, and $-1$ lets PyTorch work out $K$. `transpose` swaps the two middle axes. We count the axes from the right, so any axes may stand in front. We number the cells of one sentence with 4 words and $h\, d_k = 6$, and look.

# %%
numbers = torch.arange(24).reshape(1, 4, 6)
right = split_heads(numbers, heads=2)
wrong = numbers.reshape(1, 2, 4, 3)
print("same shape:", right.shape == wrong.shape, " same content:", torch.equal(right, wrong))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-split-heads", "caption": "Which numbers does each head get? Left: four words with six numbers each, counted from 0. Middle: `split_heads` gives each head three numbers of every word. Right: a plain reshape to the same shape gives head 1 all numbers of words 0 and 1, cut into four pieces that it takes for words."}}

word_names, piece_names = ([f"{kind} {t}" for t in range(4)] for kind in ("word", "piece"))
parts = [
    (numbers[0], word_names, "projected"),
    (right[0, 0], word_names, "split: head 1"),
    (right[0, 1], [""] * 4, "head 2"),
    (wrong[0, 0], piece_names, "wrong: head 1"),
    (wrong[0, 1], [""] * 4, "head 2"),
]
look = {"limit": 40, "color": QUERY, "titles": ("", ""), "cell": 26}
maps = [
    heatmap(m, names, list("012345")[: m.size(1)], **look).properties(title=title)
    for m, names, title in parts
]
show(
    alt.hconcat(*maps, spacing=12),
    alt="Rightly split, head 1 has columns 0 to 2 of all four words. Wrongly split, it has the numbers 0 to 11, which are the first two words.",
)

# %% [markdown]
# ## What breaks without the transpose?
#
# Why not reshape straight to $(B, H, T, K)$? The shape is right, no error is raised, and the loss even falls. The figure shows why it is wrong: a reshape never moves a number, it only counts them anew. Head 1 gets the first half of the sentence, head 2 the second. We let the numbers flow through one attention and ask which words the output of word 0 depends on.


# %%
def reached(split, join):
    x = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True)
    heads = split(x)
    join(attention(heads, heads, heads)[0])[0, 0].sum().backward()
    return x.grad[0].abs().sum(dim=-1).nonzero().flatten().tolist()


print("wrong: word 0 sees", reached(lambda x: x.reshape(1, 2, 4, 3), lambda x: x.reshape(1, 4, 6)))

# %% [markdown]
# Words 0 and 1 never hear of words 2 and 3, in any layer of the encoder. With 8 heads it would be eighths of the sentence. The model still learns, from what such a piece tells. This mistake stands in published code. Nothing gives it away but a score that stays too low.
#
# ## Join
#
# After attention the way back is the same, in reverse: swap the axes, then flatten the last two into one.


# %% tags=["export"]
def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, d_v) becomes (B, T, H * d_v)."""
    return x.transpose(-3, -2).flatten(-2)


# %%
assert torch.equal(merge_heads(right), numbers)
print("right: word 0 sees", reached(lambda x: split_heads(x, 2), merge_heads))

# %% [markdown]
# ### Why does `view` fail here?
#
# Many write `view` where we write `flatten`, and meet an error. PyTorch keeps a tensor as one long row of numbers in memory, with a *stride* for each axis: how far to jump for the next entry. `transpose` moves nothing; it swaps two strides.

# %%
print("strides", numbers.unflatten(-1, (2, 3)).stride(), "after transpose", right.stride())
try:
    right.view(1, 2, 12)
except RuntimeError as error:
    print(
        "view:",
        "not compatible" in str(error),
        " reshape:",
        right.reshape(1, 2, 12)[0, 0, :4].tolist(),
    )

# %% [markdown]
# Inside a head, the next number is 1 further on and the next word 6. So the 12 numbers of head 1 in one row would be 0, 1, 2, 6, 7, 8 and so on: steps of 1, then one of 4. A view needs steps of one size, and there is none. `reshape` and `flatten` copy the numbers into a new order if they must. So does `.contiguous().view(...)`, which you will see in older code.
#
# ## Attend and mix
#
# Now the four steps stand in a row: split, attend, join, mix. The next figure has a sentence of three words with $d_\text{model} = 4$, and lets you choose $h$. The four matrices have 16 random numbers each, and they are the same for each $h$. All that changes is how their results are cut.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-four-steps", "caption": "Are more heads more parameters? Choose the number of heads. The four matrices stay the same, 64 numbers in all. The same queries are cut into one, two or four heads. Each head attends by itself; rows of weights sum to 1. The results are joined, and the output matrix mixes them. Words and matrices are random numbers."}}
sentence = ["cats", "like", "fish"]
generator = torch.Generator().manual_seed(5)
x, *matrices = torch.randn(5, 4, 4, generator=generator, dtype=torch.float64)
x = x[None, :3]  # one sentence of three words


def panel(matrix, columns, title, **how):
    named = sentence if title[0] in "134" or title.endswith("head 1") else [""] * 3
    drawn = heatmap(matrix, named, columns, titles=("", ""), cell=36, **how)
    return drawn.properties(title=title)


def four_steps(h):
    q, k, v = (split_heads(x @ matrix, h) for matrix in matrices[:3])
    mixed, weights = attention(q, k, v)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, h, 3, dtype=torch.float64))
    signed, owner = {"limit": 2.5, "signed": True}, [f"h{i * h // 4 + 1}" for i in range(4)]
    joined = merge_heads(mixed)
    split = panel(merge_heads(q)[0], owner, "1 split: queries", **signed)
    maps = [panel(w, sentence, f"2 attend: head {i}") for i, w in enumerate(weights[0], 1)]
    join = panel(joined[0], owner, "3 join", **signed)
    mix = panel((joined @ matrices[3])[0], list("1234"), "4 mix: output", **signed)
    label = f"Heads: {h}, each of width {4 // h}. Maps of weights: {h}. Parameters: 64, as always."
    return alt.vconcat(alt.hconcat(split, *maps), alt.hconcat(join, mix)), label


show_steps({f"{h}": four_steps(h) for h in (1, 2, 4)}, "How many heads?", start=1)

# %% [markdown]
# With one head there is one map, and it answers for all four numbers of a word. With two, *like* finds most at *fish* with its first head and most at *cats* with its second, and the two halves of its row come from different places. With four, each number has a map of its own, made from queries and keys of width 1. That is too narrow to say much, which is the other end of the bargain.
#
# ## Why one more matrix at the end?
#
# A query that is cut into heads gives results that are cut into heads. Without $W^O$, head 1 could write into the first numbers of the output only, head 2 into the next, and so on. The matrix lets each head write where it likes. To see how, cut $W^O$ into the rows that belong to each head, $W_i^O$ with $d_v$ rows each. A row of joined heads times a matrix is then a sum:
#
# $$
# [\text{head}_1; \dots; \text{head}_h]\, W^O = \sum_{i=1}^{h} \text{head}_i\, W_i^O
# $$ (eq-sum-of-heads)

# %%
heads = [attention(query @ q, memory @ k, memory @ v)[0] for q, k, v in zip(*W[:3])]
own = W[3].split(7)  # seven rows of W_O for each head
torch.testing.assert_close(sum(head @ rows for head, rows in zip(heads, own)), slow)
print("a sum of", len(heads), "products", tuple(heads[0].shape), "@", tuple(own[0].shape))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sum-of-heads", "caption": "What does the last matrix do? The word *like* of the figure above, with two heads. Left: joined, each head fills its own half of the output. Right: multiplied by its own rows of the output matrix, each head adds to all four numbers. The last row is the sum."}}
q, k, v = (split_heads(x @ matrix, 2) for matrix in matrices[:3])
mixed, weights = attention(q, k, v)
assert weights[0, :, 1].argmax(dim=-1).tolist() == [2, 0]  # "like" at "fish" and at "cats"
found = mixed[0, :, 1]  # what the two heads return for "like"
halves = torch.block_diag(*found[:, None])
written = torch.stack([a @ rows for a, rows in zip(found, matrices[3].split(2))])
maps = []
for title, both in {"joined": halves, "mixed": written}.items():
    rows = torch.cat([both, both.sum(dim=0, keepdim=True)])
    names = ["head 1", "head 2", "sum"] if title == "joined" else [""] * 3
    drawn = heatmap(rows, names, list("1234"), titles=("", ""), limit=2.5, signed=True)
    maps.append(drawn.properties(title=title))
show(
    alt.hconcat(*maps, spacing=30),
    alt="On the left each head has two numbers and two zeros. On the right each has four numbers.",
)

# %% [markdown]
# So "joined and projected" and "each projected by itself, then added" are the same thing. The joining is a way to compute it fast. It follows that heads do not disturb each other, that their order means nothing, and that one can be taken out by leaving away its term. [Reading attention](21_attention_maps.ipynb) does that to a trained model, head by head.
#
# ## How wide is a head?
#
# The paper takes $d_k = d_v = d_\text{model} / h$, so 64 numbers for each of 8 heads. The division must come out even. If it does not, we say at once which numbers would do.


# %% tags=["export"]
def head_width(d_model: int, heads: int) -> int:
    """Return the width of one head, d_model / heads.

    Raises:
        ValueError: heads does not divide d_model; the message names values that do.
    """
    if d_model % heads:
        fitting = [h for h in range(1, 65) if d_model % h == 0]
        what = f"heads={heads} does not divide d_model={d_model}"
        raise ValueError(f"{what}: take heads from {fitting}, or give both d_k and d_v")
    return d_model // heads


# %%
try:
    head_width(512, heads=7)
except ValueError as error:
    print(error)

# %% [markdown]
# ### Must the widths be $d_\text{model} / h$?
#
# No. Two conditions are all that the formula sets. Queries and keys have the same width, since they are multiplied. And $W^O$ has as many rows as the joined heads have numbers. Both $d_k$ and $d_v$ are free otherwise, as the 5 and 7 above were. The usual choice has one virtue: the cost does not depend on $h$, as we will count below.
#
# ## Two ways to attend
#
# Inside the module we want two things that exclude each other. Training wants speed: PyTorch's fused attention never stores the $(T, S)$ table of weights. We want to look at just that table. So there are two paths, and `keep_weights` chooses.


# %% tags=["export"]
def run_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: float, keep_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return attention's output and, only with keep_weights, its weights, without gradients.

    Without keep_weights PyTorch's fused kernel does the work. The outputs are the same, but for a
    query that may attend to no key: the fused kernel gives zeros, the readable attention NaN.

    Raises:
        TypeError: the mask is not boolean.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"the mask is {mask.dtype}: make it boolean, True where to attend")
    if keep_weights:
        output, weights = attention(query, key, value, mask, dropout)
        return output, weights.detach()
    return F.scaled_dot_product_attention(query, key, value, mask, dropout), None


# %% [markdown]
# How much does the table weigh? For 64 sentences of 30 words and 8 heads it has $64 \cdot 8 \cdot 30 \cdot 30 = 460{,}800$ numbers, 1.8 MB in 32-bit floats. That is little. For texts of 512 words it has 134 million, 512 MiB, in each of the model's 18 attentions. Training would have to keep all of them for the way back.
#
# Three details. The fused function knows nothing of training and evaluation, so we hand it the rate 0 in evaluation. And the two paths differ in one case, a row without any key: ours gives NaN there and the fused kernel zeros. [Masks](04_masks.ipynb) shows why no row should be empty. Weights are kept detached from the gradients, to be looked at and no more.
#
# ## The module
#
# Now the formula is four linear maps with attention between them. `nn.Linear` stores its matrix transposed, so `self.query.weight.T` has all $W_i^Q$ side by side. The paper writes no bias, so the maps have none unless asked. It mentions no dropout on the weights either. A later version of the authors' code has it, so the option is there, at rate 0.
#
# One line needs a second look, the one that sets `d_k` and `d_v`. A width that was given counts. One that was not is `None`, and `head_width` steps in; only then must the division come out even. The first weights are those of `nn.Linear`; [the Transformer](10_transformer.ipynb) sets its own when it puts the parts together.
#
# `forward` has two halves: `project` makes keys and values, `attend` lets queries at them. Training always calls both. A decoder that writes word by word meets the same keys again and again, and [decoding](19_decoding.ipynb) will keep what `project` returned and call only `attend`.


# %% tags=["export"]
class MultiHeadAttention(nn.Module):
    """Attend with several heads at once, [head_1; ...; head_H] W_O (section 3.2.2)."""

    def __init__(
        self, d_model: int, heads: int, d_k: int | None = None, d_v: int | None = None,
        bias: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        d_k, d_v = (width or head_width(d_model, heads) for width in (d_k, d_v))
        self.query = nn.Linear(d_model, heads * d_k, bias)
        self.key = nn.Linear(d_model, heads * d_k, bias)
        self.value = nn.Linear(d_model, heads * d_v, bias)
        self.output = nn.Linear(heads * d_v, d_model, bias)
        self.heads, self.dropout, self.keep_weights = heads, nn.Dropout(dropout), False
        self.weights: Tensor | None = None  # (B, H, T, S) of the last call with keep_weights

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D), mask (B, 1, T, S) to (B, T, D)."""
        return self.attend(query, *self.project(key, value), mask)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project key and value (B, S, D) to heads, (B, H, S, d_k) and (B, H, S, d_v)."""
        return split_heads(self.key(key), self.heads), split_heads(self.value(value), self.heads)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Mask = None) -> Tensor:
        """Map query (B, T, D) and projected keys and values (B, H, S, ...) to (B, T, D)."""
        query = split_heads(self.query(query), self.heads)
        rate = self.dropout.p if self.dropout.training else 0.0
        output, self.weights = run_attention(query, keys, values, mask, rate, self.keep_weights)
        return self.output(merge_heads(output))


# %% [markdown]
# Why is `keep_weights` an attribute and not an argument? The base model has 18 of these modules: one in each of 6 encoder layers, two in each of 6 decoder layers. An argument would have to pass through model, stack and layer to reach them. An attribute can be set from outside on those that we want to see.
#
# ### Every shape on the way
#
# The base model, 2 sentences, 3 queries, 5 keys:
#
# | step | result | shape | here |
# |---|---|---|---|
# | come in | `query` | $(B, T, D)$ | 2 × 3 × 512 |
# | come in | `key`, `value` | $(B, S, D)$ | 2 × 5 × 512 |
# | `self.query(query)` | queries of all heads | $(B, T, H \cdot K)$ | 2 × 3 × 512 |
# | `split_heads` | queries by head | $(B, H, T, K)$ | 2 × 8 × 3 × 64 |
# | `project(key, value)` | keys, values by head | $(B, H, S, K)$ | 2 × 8 × 5 × 64 |
# | softmax of the scores | weights | $(B, H, T, S)$ | 2 × 8 × 3 × 5 |
# | weights times values | what heads return | $(B, H, T, K)$ | 2 × 8 × 3 × 64 |
# | `merge_heads` | joined | $(B, T, H \cdot K)$ | 2 × 3 × 512 |
# | `self.output` | output | $(B, T, D)$ | 2 × 3 × 512 |
#
# The output has the shape of the query: one vector for each position that asks, however many answer.
#
# ## Is it the formula?
#
# We copy the matrices of the slow version into a module of the same widths. The result must be the same.

# %%
uneven = MultiHeadAttention(d_model=24, heads=4, d_k=5, d_v=7).double()
with torch.no_grad():
    for layer, separate in zip([uneven.query, uneven.key, uneven.value], W):
        layer.weight.copy_(torch.cat(list(separate), dim=1).T)
    uneven.output.weight.copy_(W[3].T)
torch.testing.assert_close(uneven(query, memory, memory), slow)
print("equal to the loop; W_O is", tuple(uneven.output.weight.T.shape), "= (h d_v, d_model)")

# %% [markdown]
# An independent reference is `nn.MultiheadAttention`. It keeps the three input projections in one matrix, on top of each other. We copy our weights and compare, with a mask. Its boolean mask means the opposite of ours, hence the `~`.

# %%
torch.manual_seed(0)
module = MultiHeadAttention(d_model=24, heads=4).double()
module.keep_weights = True
theirs = torch.nn.MultiheadAttention(24, 4, bias=False, batch_first=True).double()
inputs = [module.query.weight, module.key.weight, module.value.weight]
theirs.in_proj_weight.data, theirs.out_proj.weight = torch.cat(inputs), module.output.weight
mask = causal_mask(3)
expected, weights = theirs(query, query, query, attn_mask=~mask, average_attn_weights=False)
torch.testing.assert_close(module(query, query, query, mask), expected)
torch.testing.assert_close(module.weights, weights)
print("equal to nn.MultiheadAttention, weights", tuple(module.weights.shape))

# %% [markdown]
# And the two paths must agree with each other:

# %%
readable = module(query, memory, memory)
module.keep_weights = False
torch.testing.assert_close(module(query, memory, memory), readable)
print("without keep_weights the weights are", module.weights)

# %% [markdown]
# ## The three uses
#
# The model attends in three places (section 3.2.3). One class serves all of them; what differs is who asks, who answers, and the mask.
#
# | where | query | key and value | what it is for |
# |---|---|---|---|
# | encoder, to itself | source | source | each source word looks at the whole sentence |
# | decoder, to itself | target | target, up to the query | each target word looks at what is written |
# | decoder, to the source | target | the encoder's output | each target word looks for what to translate |
#
# The first two are self-attention, the third is cross-attention. Keys and values always come from the same place, since a weight that a key has earned is spent on its value. With 5 source and 3 target positions:

# %%
module.keep_weights = True
source = torch.tensor([[5, 6, 7, 8, EOS], [9, 5, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 5, 6], [BOS, 7, PAD]])
for place, asking, answering, mask in [
    ("encoder, to itself    ", memory, memory, padding_mask(source)),
    ("decoder, to itself    ", query, query, target_mask(target)),
    ("decoder, to the source", query, memory, padding_mask(source)),
]:
    output, shape = module(asking, answering, answering, mask), tuple(module.weights.shape)
    print(f"{place} mask {tuple(mask.shape)}  weights {shape}  output {tuple(output.shape)}")

# %% [markdown]
# The mask has one axis of length 1 where the weights have 4 heads. All heads of a module share one mask: what is padding for one is padding for all.
#
# ## What do heads cost?
#
# No parameters. "Multi-head attention has more parameters" is a common belief. With $d_k = d_v = d_\text{model} / h$, each of the four matrices has $d_\text{model}^2$ numbers, however many heads they are cut into.

# %%
for h in [1, 4, 8, 16, 32]:
    count = sum(p.numel() for p in MultiHeadAttention(512, h).parameters())
    print(f"{h:2} heads of width {512 // h:3}: {count:,} parameters, {h * 30 * 30:6,} weights")
assert count == 4 * 512**2

# %% [markdown]
# No multiplications, either. A score between two words takes $d_k$ of them, and there are $h$ scores: $h \cdot d_\text{model} / h = d_\text{model}$ for each pair, at any $h$.
#
# The last column is what does grow: each head has a table of weights. For a sentence of 30 words, one head has $30 \cdot 30 = 900$ weights and 32 heads have 28,800. Each needs an exponential. The fused kernel does not store them, but it has to compute them.
#
# ## How many heads?
#
# The paper tries five numbers of heads, all at the same cost (rows A of its Table 3; BLEU on its validation set):
#
# | heads | width | BLEU | against 8 heads |
# |:---:|:---:|:---:|:---:|
# | 1 | 512 | 24.9 | −0.9 |
# | 4 | 128 | 25.5 | −0.3 |
# | 8 | 64 | 25.8 | |
# | 16 | 32 | 25.8 | 0.0 |
# | 32 | 16 | 25.4 | −0.4 |
#
# One head is worst, and 32 are too many. What does a head lose when it gets narrower? Write out the score of two words $x$ and $y$ for head $i$: it is $x\, W_i^Q\, (y\, W_i^K)^\top = x\, (W_i^Q {W_i^K}^\top)\, y^\top$. The matrix in the middle is $d_\text{model} \times d_\text{model}$, but it is a product of two thin ones. Its rank is at most $d_k$: the head compares two words along that many independent directions, and is blind to the rest.

# %%
wide = module.query.weight[:6].T @ module.key.weight[:6]  # the first of four heads of width 6
print("shape", tuple(wide.shape), " rank", torch.linalg.matrix_rank(wide).item())

# %% [markdown]
# This head uses 6 of 24 directions. With a width of 16 in place of 64, a head of the base model compares two words by 16 features of 512. Rows B of the same table shrink $d_k$ alone and leave $d_v$ at 64. BLEU falls from 25.8 to 25.4 at $d_k = 32$ and to 25.1 at 16. So it is the comparison that suffers. Our module takes these widths as well:

# %%
narrow = MultiHeadAttention(512, heads=8, d_k=16, d_v=64)
print("W_Q", tuple(narrow.query.weight.T.shape), " W_V", tuple(narrow.value.weight.T.shape))

# %% [markdown]
# ## Do heads differ?
#
# Nothing in the loss asks them to. They start from different random matrices, so they look at different words from the first step on, and each is moved by its own errors. We look ahead to the model that comes with this book, which translates German captions of photographs.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-heads", "caption": "Do heads look at the same words? All heads of the last encoder layer of the trained model, on one sentence: *a brown dog runs through the snow*. Grey is the weight, from 0 (paper) to 1 (ink); rows sum to 1."}}
model, tokenizer = load_pretrained()
ids = [*tokenizer.encode("Ein brauner Hund läuft durch den Schnee."), EOS]
last_layer = model.encoder.layers[-1].self_attention
last_layer.keep_weights = True
with torch.no_grad():
    model.encode(torch.tensor([ids]))
trained = last_layer.weights[0]
torch.testing.assert_close(trained.sum(dim=-1), torch.ones(trained.shape[:2]))
names = [tokenizer.decode([i]).strip() or "</s>" for i in ids]
maps = [
    heatmap(w, names, names, cell=20).properties(title=f"head {i}")
    for i, w in enumerate(trained, 1)
]
show(alt.concat(*maps, columns=2), alt="Maps of weights, one for each head. Their patterns differ.")

# %% [markdown]
# The maps are of one sentence, and nobody told a head what to look for. Whether a pattern holds over many sentences, and whether a head matters, has to be counted. [Reading attention](21_attention_maps.ipynb) does so. Expect less order than the well-known pictures promise: some heads do nearly the same, and some do little.
#
# ## Questions that come up
#
# **Do heads talk to each other?** Not within one layer. Each has its own softmax, and their results are added. In the next layer, each head reads the sum of all.
#
# **Is head 3 of one layer related to head 3 of the next?** No. The number is only a place in a matrix.
#
# **Must values be projected, too?** It would work without. But a word's value would then be the word's whole vector, as wide as the model, and all heads would hand over the same. The projection lets a head hand over just what its question was about.
#
# **Why no bias?** The formula has none. A bias on the keys would do nothing at all: it adds the same number to all scores of a query, and softmax does not see that (exercise 4 of [the first chapter](03_attention.ipynb)). `bias=True` adds all four, for those who load such weights.
#
# **Why split the projected vector, when separate matrices would be clearer?** They are the same, as the first check showed. One large product is faster than eight small ones.
#
# **Is `d_model` the width of the heads together?** In the usual setting, yes: $h\, d_v = d_\text{model}$. With free widths, no, and $W^O$ brings the output back to $d_\text{model}$.
#
# ## What to remember
#
# - A head is a small attention with projections of its own. It reads the whole word and asks one question.
# - One matrix multiplication projects for all heads. Then split: cut the last axis, and move the head axis to the front.
# - Reshaping without the transpose gives the right shape and the wrong content.
# - $W^O$ has $h\, d_v$ rows and $d_\text{model}$ columns. The output is a sum over heads.
# - $h$ heads have as many parameters as one: $4\, d_\text{model}^2$. They trade width for number.
#
# ## Exercises
#
# **1. By hand.** How many parameters has the attention of row B with $d_k = 16$, $d_v = 64$, $h = 8$ and $d_\text{model} = 512$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Queries and keys: 2 · 512 · 128. Values and output: 2 · 512 · 512. Together 655,360.
print(f"{sum(p.numel() for p in narrow.parameters()):,}")
assert 2 * 512 * 128 + 2 * 512 * 512 == 655_360 == sum(p.numel() for p in narrow.parameters())

# %% [markdown]
# **2. By hand.** Let $W_i^Q = 0$ for all heads. What does every query fetch?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All scores are 0, so all weights are equal: every query gets the mean of the values, mixed by W_O.
with torch.no_grad():
    uneven.query.weight.zero_()
mean = uneven.output(uneven.value(memory)).mean(dim=1, keepdim=True)
torch.testing.assert_close(uneven(query, memory, memory), mean.expand(-1, 3, -1))
print("every query gets the mean")

# %% [markdown]
# **3. What breaks if** the heads are joined without transposing back, by a plain reshape? Which words' numbers end up in the output of word 0?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The shape is right. The first six numbers are those of head 1 for words 0 and 1.
print(right.reshape(1, 4, 6)[0, 0].tolist())
assert right.reshape(1, 4, 6)[0, 0].tolist() == [*range(3), *range(6, 9)]

# %% [markdown]
# **4. What breaks if** all heads start with the same weights? Copy head 1 to the others and look at the gradients.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Equal heads get equal gradients, so they stay equal for ever: four heads that do the work of one.
with torch.no_grad():
    for matrix in inputs:
        matrix.copy_(matrix[:6].repeat(4, 1))
    module.output.weight.copy_(module.output.weight[:, :6].repeat(1, 4))
module(query, memory, memory).square().sum().backward()
gradients = module.query.weight.grad.unflatten(0, (4, 6))
torch.testing.assert_close(gradients, gradients[:1].expand(4, 6, 24))
print("all heads have the same gradient:", gradients.abs().sum().item() > 0)

# %% [markdown]
# **5. What breaks if** each head divides its scores by $\sqrt{d_\text{model}}$ in place of $\sqrt{d_k}$? Take 8 heads of width 64.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Scores of random vectors spread like the root of 64 = 8; divided by the root of 512 = 22.6 they spread
# by 0.35 only. The weights come out flatter than they should, as with too high a temperature.
q, k = torch.randn(2, 1000, 64, generator=random, dtype=torch.float64)
spread = [((q * k).sum(-1) / width**0.5).std().item() for width in (64, 512)]
print([round(s, 1) for s in spread])
assert abs(spread[1] - 0.35) < 0.03

# %% [markdown]
# **6. Write it yourself.** Write multi-head attention as one function of tensors, without a loop over heads and without this chapter's functions. The four matrices are $d_\text{model} \times d_\text{model}$, and words are rows. Then ask the [checker](E_checker.ipynb).


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
def my_heads(query, key, value, W_Q, W_K, W_V, W_O, heads):
    split = lambda x: x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
    q, k, v = split(query @ W_Q), split(key @ W_K), split(value @ W_V)
    weights = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).reshape(query.shape) @ W_O


fresh = MultiHeadAttention(d_model=24, heads=4).double()
matrices = [layer.weight.T for layer in (fresh.query, fresh.key, fresh.value, fresh.output)]
mine = my_heads(query, memory, memory, *matrices, heads=4)
torch.testing.assert_close(mine, fresh(query, memory, memory))
print("equal to the module")

from annotated_transformer import check

print(check("multi_head_attention", my_heads))

# %% [markdown]
# ## Sources
#
# Multi-head attention is section 3.2.2 of {cite:t}`vaswani2017attention`, its three uses are section 3.2.3. How many heads of a trained model can be taken out is measured by {cite:t}`michel2019sixteen` and {cite:t}`voita2019analyzing`.
