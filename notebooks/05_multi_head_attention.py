# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Multi-head attention
#
# **Multi-head attention** lets several small attentions, called heads, look at the same sentence side by side, each with questions of its own, and adds up what they find (section 3.2.2 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("multi_head_attention")

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.attention import Mask

# %% [markdown]
# ## Why several heads?
#
# In [chapter 3](03_attention.ipynb#from-scores-to-weights), *cat* had two questions: which verb belongs to me, and which adjective? With one softmax it had to divide its weight between the answers, 0.54 for *likes* and 0.20 for *black*, and so it heard only faintly that it is black. No choice of numbers can give both answers their full weight: the two together never get more than 1.
#
# What if *cat* could ask twice? Cut the matrices of chapter 3 into two **heads**. The first gets the columns for nouns and verbs and hands over *living* and *edible*; the second gets the columns for adjectives and articles and hands over *dark*. How much weight do you expect *likes* and *black* to get now?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-two-heads", "caption": "What can two heads do that one cannot? Left: the single head of chapter 3. Middle and right: its matrices, cut into two heads. Head 1 links nouns and verbs, head 2 finds the adjective. *Cat* now looks hard at *likes* and at *black*. *Black* and *likes* have nothing to ask head 2, so it gives them the plain average."}}
import altair as alt

from annotated_transformer import check, load_pretrained
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.masks import BOS, EOS, causal_mask
from book.figures import SKY, heatmap, show

from annotated_transformer.attention import attention
from book.example import W_K, W_O, W_Q, W_V, WORDS, X

cut_Q, cut_K = (W_Q[:, :2], W_Q[:, 2:]), (W_K[:, :2], W_K[:, 2:])
pairs = [(W_Q, W_K), *zip(cut_Q, cut_K)]
single, first, second = (attention(X @ q, X @ k, X)[1] for q, k in pairs)
titles = ("", "")
maps = [
    heatmap(w, rows, WORDS, titles=titles, cell=24).properties(title=title)
    for title, w, rows in [
        ("one head", single, WORDS),
        ("head 1 of 2", first, [""] * 5),
        ("head 2 of 2", second, [""] * 5),
    ]
]
show(
    alt.hconcat(*maps, spacing=12),
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
# With two heads, *cat* gives 0.77 to *likes* in one and 0.51 to *black* in the other. (Part of that is the smaller divisor: a head of width 2 divides its scores by $\sqrt 2$, where the single head divided by 2. With the same divisor it would be 0.61 and 0.40.) Each head has a total of 1 of its own to give, so one answer no longer costs the other.
#
# The figure also shows what a head does when it has no question. *Likes* has nothing to ask about adjectives, so its query in head 2 is zero, all scores are equal, and it fetches a little of everything.
#
# ## The formula
#
# Each head $i$ has three matrices of its own. The brackets put the results of all $h$ heads side by side, and one more matrix, $W^O$, mixes them:
#
# $$
# \begin{aligned}
# \text{head}_i &= \text{attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V) \\
# \text{multi-head}(Q, K, V) &= [\text{head}_1; \dots; \text{head}_h]\, W^O
# \end{aligned}
# $$ (eq-multi-head)
#
# In chapter 3, $Q$, $K$ and $V$ were the projections. Here they are the words' own vectors, and in self-attention all three are $X$. In code it is a loop:

# %%
from annotated_transformer.attention import attention
from book.example import W_K, W_O, W_Q, W_V, X


def head_by_head(query, key, value, W_Q, W_K, W_V, W_O):
    heads = [
        attention(query @ q, key @ k, value @ v)[0] for q, k, v in zip(W_Q, W_K, W_V)
    ]
    return torch.cat(heads, dim=-1) @ W_O


cut_Q, cut_K = (W_Q[:, :2], W_Q[:, 2:]), (W_K[:, :2], W_K[:, 2:])
cut_V = W_V[:, [0, 2]], W_V[:, [1]]  # living and edible, dark
one = head_by_head(X, X, X, [W_Q], [W_K], [W_V], W_O)
rows = W_O[[0, 2, 1]]  # in the order of the joined heads: living, edible, dark
two = head_by_head(X, X, X, cut_Q, cut_K, cut_V, rows)
print(f"adjective that cat gets: one head {one[2, 2]:.2f}, two heads {two[2, 2]:.2f}")

# %% [markdown]
# The matrix `W_O` of our example writes living and edible back into their own columns, and dark into the column *adjective*, times 2, because `W_V` had halved it. So *cat* receives twice its weight on *black*: $2 \cdot 0.20 = 0.40$ with one head and $2 \cdot 0.51 = 1.01$ with two, but for rounding. The price is that each head is narrower, two features instead of four. That is the bargain of this chapter: more questions, with a narrower comparison for each.
#
# ## Each head sees the whole word
#
# Many drawings look as if each head got a slice of the word. They mislead. Let $d_\text{model}$ be the width of a word's vector, 512 in the paper's base model. Each $W_i^Q$ has $d_\text{model}$ rows, so a head reads *all* numbers of a word and returns $d_k$ new ones.
#
# | matrix | rows | columns | in the base model |
# |---|---|---|---|
# | $W_i^Q$, $W_i^K$ | $d_\text{model}$ | $d_k$ | 512 × 64 |
# | $W_i^V$ | $d_\text{model}$ | $d_v$ | 512 × 64 |
# | $W^O$ | $h\, d_v$ | $d_\text{model}$ | 512 × 512 |
#
# You can tell the two designs apart by counting. The three matrices of one such head have $3 \cdot 512 \cdot 64 = 98{,}304$ numbers. If a head were given 64 of the 512 numbers of each word, they would have $3 \cdot 64 \cdot 64 = 12{,}288$. Such a head could never compare something in the first part of one word with something in the last part of another.
#
# ## All heads in one multiplication
#
# A loop of $h$ small products is slow, and it isn't needed. Each column of a product depends on only one column of the right-hand matrix, so the matrices of all heads can be put side by side (concatenated) and multiplied at once. Our two heads came from cutting $W^Q$; putting them together is $W^Q$ again:

# %%
one_by_one = torch.cat([X @ q for q in cut_Q], dim=-1)
print("queries of cat, head 1 then head 2:", one_by_one[2].tolist())

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(X @ torch.cat(cut_Q, dim=1), one_by_one)

# %% [markdown]
# So a layer with a single matrix of 512 × 512 does hold a matrix for each head: 64 of its columns.
#
# **Exercise 1. Write it first** (★★, 20 min). Write `multi_head_attention(query, key, value, W_Q, W_K, W_V, W_O, heads)` on batches $(B, T, D)$, without a loop over heads. The [checker](E_checker.ipynb#the-parts-it-knows) knows five ways to get it wrong, and the most common first idea is one of them:


# %%
def first_idea(query, key, value, W_Q, W_K, W_V, W_O, heads):
    def split(x):
        return x.reshape(len(x), heads, x.size(1), -1)

    heads_out = attention(split(query @ W_Q), split(key @ W_K), split(value @ W_V))[0]
    return heads_out.reshape(query.shape) @ W_O


print(check("multi_head_attention", first_idea))

# %% [markdown]
# ## Split
#
# Attention treats every axis in front of the last two as one more batch. So we want the heads as an axis of their own, in front of the positions. That takes two steps: cut the last axis in two, then swap.


# %% tags=["export"]
def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the last axis into heads: (B, T, H * d_k) becomes (B, H, T, d_k)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


# %% [markdown]
# `unflatten` turns $(B, T, H \cdot d_k)$ into $(B, T, H, d_k)$, and `transpose` swaps the two middle axes. To see what the first idea does instead, we number the cells of four words with six numbers each.

# %%
numbers = torch.arange(24).reshape(1, 4, 6)
right = split_heads(numbers, heads=2)
wrong = numbers.reshape(1, 2, 4, 3)
print("same shape:", tuple(right.shape), tuple(wrong.shape))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-split-heads", "caption": "Which numbers does each head get? Left: four words with six numbers each, counted from 0. Middle: `split_heads` gives each head three numbers of every word. Right: a plain reshape gives head 1 all numbers of *the* and *black*, in four pieces that it takes for words."}}
pieces = [f"piece {t}" for t in range(4)]
parts = [(numbers[0], WORDS[:4], "projected")]
for way, names, cut in (("split", WORDS[:4], right), ("reshape", pieces, wrong)):
    parts.append((cut[0, 0], names, f"{way}: head 1"))
    parts += [(m, [""] * 4, f"head {i}") for i, m in enumerate(cut[0, 1:], 2)]
look = {"limit": 40, "color": SKY, "titles": ("", ""), "cell": 24}
maps = [
    heatmap(m, names, list("01234567")[: m.size(1)], **look).properties(title=title)
    for m, names, title in parts
]
show(
    alt.hconcat(*maps, spacing=12),
    alt="Rightly split, head 1 has columns 0 to 2 of all four words. Wrongly split, it has the numbers 0 to 11, which are the first two words.",
)

# %% [markdown]
# ### What breaks without the transpose
#
# A reshape moves no numbers but only regroups them, so head 1 gets the first half of the sentence and head 2 the second. We let the numbers flow through one attention and ask which words the output of word 0 depends on.


# %%
def reached(split, join):
    x = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True)
    heads = split(x)
    join(attention(heads, heads, heads)[0])[0, 0].sum().backward()
    return x.grad[0].abs().sum(dim=-1).nonzero().flatten().tolist()


print(
    "wrong: word 0 sees",
    reached(lambda x: x.reshape(1, 2, 4, 3), lambda x: x.reshape(1, 4, 6)),
)

# %% [markdown]
# Here *the* and *black* never hear of *cat* and *likes*, in any layer of the encoder. The model still learns something from such pieces, so in training only a low score gives the mistake away.
#
# ## Join
#
# After attention the same steps are undone: swap the axes, then flatten the last two into one.


# %% tags=["export"]
def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, d_v) becomes (B, T, H * d_v)."""
    return x.transpose(-3, -2).flatten(-2)


# %%
print("right: word 0 sees", reached(lambda x: split_heads(x, 2), merge_heads))

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(merge_heads(right), numbers)

# %% [markdown]
# ## Why one more matrix at the end?
#
# Without $W^O$, head 1 could write into the first numbers of the output only, head 2 into the next, and so on. The matrix lets each head write where it likes. Cut $W^O$ into the $d_v$ rows $W_i^O$ that belong to each head, and the product becomes a sum:
#
# $$
# [\text{head}_1; \dots; \text{head}_h]\, W^O = \sum_{i=1}^{h} \text{head}_i\, W_i^O
# $$ (eq-sum-of-heads)

# %%
head_outputs = [
    attention(X @ q, X @ k, X @ v)[0] for q, k, v in zip(cut_Q, cut_K, cut_V)
]
own = W_O[[0, 2]], W_O[[1]]  # living and edible, dark
adds = [head @ rows for head, rows in zip(head_outputs, own)]
print("head 1 adds to cat", [round(x, 2) for x in adds[0][2].tolist()])
print("head 2 adds to cat", [round(x, 2) for x in adds[1][2].tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(sum(adds), two)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-sum-of-heads", "caption": "What do the heads do to *cat*? Each adds its own row to the vector of the word. Head 2 writes into the column *adjective*: the cat is black. Head 1 adds next to nothing, since *likes*, where it looks, has nothing to hand over."}}
rows = torch.stack([X[2], *[added[2] for added in adds], X[2] + sum(adds)[2]])
names = ["cat", *[f"+ head {i}" for i in range(1, len(adds) + 1)], "= sum"]
features = ["noun", "verb", "adjective", "article", "living", "edible"]
show(
    heatmap(rows, names, features, titles=("", ""), limit=2),
    alt="Head 2 raises the column adjective of cat from 0 to 1.01. Head 1 adds 0.09 to living and to edible.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert round(rows[3, 2].item(), 2) == 1.01

# %% [markdown]
# Joining and projecting is only the fast way to compute this sum, which [chapter 11](11_by_hand.ipynb#the-second-head-and-) does by hand. It follows that heads don't disturb each other within a layer, that their order means nothing, and that you remove a head by dropping its term, as [chapter 21](21_attention_maps.ipynb#take-a-head-away) does in a trained model.
#
# ## The width of a head
#
# The paper takes $d_k = d_v = d_\text{model} / h$, so 64 numbers for each of 8 heads; `head_width`, folded here, does the division. Other widths are possible, as long as queries and keys have the same one.


# %% tags=["export", "hide-input"]
def head_width(d_model: int, heads: int) -> int:
    """Return the width of one head, d_model / heads.

    Raises:
        ValueError: heads does not divide d_model; the message names values that do.
    """
    if d_model % heads:
        divisors = [h for h in range(1, 65) if d_model % h == 0]
        raise ValueError(
            f"heads={heads} does not divide d_model={d_model}: "
            f"take heads from {divisors}, or give both d_k and d_v"
        )
    return d_model // heads


def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, dropout: nn.Dropout
) -> Tensor:
    """Call PyTorch's attention: query (B, H, T, d_k), key and value (B, H, S, d_k or d_v).

    Raises TypeError for a mask that is not boolean: PyTorch would add its numbers to the scores.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"the mask is {mask.dtype}: make it boolean")
    # PyTorch's function doesn't know whether the model is training
    rate = dropout.p if dropout.training else 0.0
    return F.scaled_dot_product_attention(query, key, value, mask, rate)


# %% [markdown]
# ## The module
#
# Now the formula is four linear maps with attention between them. `nn.Linear` stores its matrix transposed, so `self.query.weight.T` holds all $W_i^Q$ side by side.
#
# :::{margin}
# The paper mentions no dropout on the weights for translation, though its section 6.3 tunes one for parsing. Here it is 0 unless you ask; the page of [departures](../book/departures.md#the-model) has the effect.
# :::
#
# One line differs from [chapter 3](03_attention.ipynb#the-code): `fast_attention` takes the place of our `attention`. It is folded above, too, and calls PyTorch's `F.scaled_dot_product_attention`, which computes the same numbers and [never stores the weights](25_speed.ipynb#attention-without-the-matrix).


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

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask = None
    ) -> Tensor:
        """Map query (B, T, D), key and value (B, S, D), mask (B, 1, T, S) to (B, T, D)."""
        query = split_heads(self.query(query), self.heads)
        key = split_heads(self.key(key), self.heads)
        value = split_heads(self.value(value), self.heads)
        heads = fast_attention(query, key, value, mask, self.dropout)
        return self.output(merge_heads(heads))


# %% [markdown]
# In the base model, with 2 sentences, 3 queries and 5 keys:
#
# | step | result | shape | here |
# |---|---|---|---|
# | input | `query` | $(B, T, D)$ | 2 × 3 × 512 |
# | input | `key`, `value` | $(B, S, D)$ | 2 × 5 × 512 |
# | project, `split_heads` | queries by head | $(B, H, T, d_k)$ | 2 × 8 × 3 × 64 |
# | project, `split_heads` | keys, values by head | $(B, H, S, d_k)$ | 2 × 8 × 5 × 64 |
# | softmax of the scores | weights | $(B, H, T, S)$ | 2 × 8 × 3 × 5 |
# | weights times values | what heads return | $(B, H, T, d_v)$ | 2 × 8 × 3 × 64 |
# | `merge_heads` | joined | $(B, T, H \cdot d_v)$ | 2 × 3 × 512 |
# | `self.output` | output | $(B, T, D)$ | 2 × 3 × 512 |
#
# ## The code against the formula
#
# With the same random matrices and a different size on each axis, the module and the loop agree to twelve decimals. So do the module and `nn.MultiheadAttention`, PyTorch's own, whose boolean mask means the opposite of ours.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show both comparisons", "code_prompt_hide": "Hide both comparisons"}
random = torch.Generator().manual_seed(0)
query, memory, *W = (
    torch.randn(shape, generator=random, dtype=torch.float64) / 5
    for shape in [(2, 3, 24), (2, 5, 24), (4, 24, 5), (4, 24, 5), (4, 24, 7), (28, 24)]
)
uneven = MultiHeadAttention(d_model=24, heads=4, d_k=5, d_v=7).double()
with torch.no_grad():
    for layer, separate in zip([uneven.query, uneven.key, uneven.value], W):
        layer.weight.copy_(torch.cat(list(separate), dim=1).T)
    uneven.output.weight.copy_(W[3].T)
apart = uneven(query, memory, memory) - head_by_head(query, memory, memory, *W)
print(f"loop and module differ by {apart.abs().max().item():.2f} at most")

# %% tags=["remove-cell"]
if CHECKING:
    assert apart.abs().max() < 1e-12

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the comparison with PyTorch", "code_prompt_hide": "Hide the comparison with PyTorch"}
torch.manual_seed(0)
module = MultiHeadAttention(d_model=24, heads=4).double()
theirs = torch.nn.MultiheadAttention(24, 4, bias=False, batch_first=True).double()
inputs = [module.query.weight, module.key.weight, module.value.weight]
theirs.in_proj_weight.data = torch.cat(inputs)
theirs.out_proj.weight = module.output.weight
mask = causal_mask(3)
expected, _ = theirs(query, query, query, attn_mask=~mask)
difference = module(query, query, query, mask) - expected
print(f"ours and PyTorch's differ by {difference.abs().max().item():.2f} at most")

# %% tags=["remove-cell"]
if CHECKING:
    assert difference.abs().max() < 1e-12

# %% [markdown]
# One class serves all three attentions of the model; who asks, who answers and which mask applies is a [table in chapter 9](09_layers.ipynb#the-decoder-layer). All heads share one mask: what is padding for one is padding for all.
#
# ## What heads cost
#
# More heads cost no parameters, although "multi-head attention has more parameters" is a common belief. With $d_k = d_v = d_\text{model} / h$, each of the four matrices has $d_\text{model}^2$ numbers, however many heads they are cut into.

# %%
for h in [1, 4, 8, 16, 32]:
    count = sum(p.numel() for p in MultiHeadAttention(512, h).parameters())
    print(
        f"{h:2} heads of width {512 // h:3}: {count:,} parameters, {h * 30 * 30:6,} weights"
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert count == 4 * 512**2

# %% [markdown]
# They cost no multiplications, either. One score takes $d_k = d_\text{model} / h$ of them, and each pair of words has $h$ scores, so a pair takes $d_\text{model}$ multiplications for any $h$. What grows is the number of weights, the last column (for 30 words), and each weight needs an exponential.
#
# ## How many heads to take
#
# The paper tries five numbers of heads at the same cost (rows A of its Table 3; BLEU on its validation set):
#
# | heads | width | BLEU | against 8 heads |
# |:---:|:---:|:---:|:---:|
# | 1 | 512 | 24.9 | −0.9 |
# | 4 | 128 | 25.5 | −0.3 |
# | 8 | 64 | 25.8 | |
# | 16 | 32 | 25.8 | 0.0 |
# | 32 | 16 | 25.4 | −0.4 |
#
# One head is worst, and 32 are too many. (With [three seeds in miniature](22_variations.ipynb#heads-and-their-width-rows-a-and-b), one head is worst too, and 32 do no harm.) A narrow head compares two words by fewer features: 16 of 512, if there are 32 heads. Rows B of the same table shrink $d_k$ alone and leave $d_v$ at 64. BLEU falls from 25.8 to 25.4 at $d_k = 32$ and to 25.1 at 16, so it is the comparison that suffers.
#
# ## How heads differ
#
# Nothing in the loss asks heads to differ. They start from different random matrices, so each gets a different gradient. We look ahead to a trained model that comes with this book: `captions-de-en`, which translates German captions of photographs. In its second decoder layer, the attention from the English sentence, as it is written, to the German one has four heads with very different habits. Each row is the word that is about to be written.

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
    heatmap(w, written, read, cell=22, titles=("", "")).properties(title=f"head {i}")
    for i, w in enumerate(trained, 1)
]
show(
    alt.concat(*maps, columns=2),
    alt="Head 3 is full along the diagonal. Head 2 is full in the columns of the nouns, head 1 in that of Ball only, head 4 in single cells; the last rows are gray in the last two columns.",
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(trained.sum(dim=-1), torch.ones(trained.shape[:2]))
    best = trained.argmax(dim=-1).tolist()
    assert [best[2][r] for r in (1, 3, 4, 5, 6, 7)] == [
        1,
        3,
        4,
        5,
        6,
        7,
    ]  # head 3: the next word
    assert best[1][:3] == [2, 2, 2] and best[1][6:8] == [7, 7]  # head 2: the noun ahead
    assert trained[:, 9, 8:].sum(dim=-1).min() > 0.4
    cells = [(2, 3, 3), (2, 6, 6), (1, 0, 2), (1, 4, 7), (1, 6, 7), (3, 5, 2)]
    weights_quoted = [round(trained[cell].item(), 2) for cell in cells]
    assert weights_quoted == [0.99, 0.99, 0.99, 0.43, 0.84, 0.76]
    distances = (trained[:, None] - trained).abs().sum(dim=-1).mean(dim=-1) / 2
    assert (distances + torch.eye(4)).min() > 0.35

# %% [markdown]
# Head 3 mostly looks at the German word that is being translated: *plays* at *spielt* and *red* at *roten*, with 0.99 each. Head 2 looks ahead to the noun: at *Mädchen* with 0.99 from the very first *A*, and at *Ball* when *with* (0.43) and *red* (0.84) are due. Head 4 looks back to *Mädchen* where *a* is due (0.76). In the last row, where nothing is left to translate, all four spend much of their weight on the period and on `</s>`, perhaps because they have no question there.
#
# That is one sentence, and an attention chosen because its heads differ; in other layers some heads do nearly the same. Whether a pattern holds over many sentences, and whether a head matters, has to be counted, in [chapter 21](21_attention_maps.ipynb#what-single-heads-do). What several heads are worth to a translator is part of [the ladder in chapter 10](10_transformer.ipynb#what-each-part-is-worth).

# %% [markdown]
# ## What to remember
#
# - A head is a small attention with its own projections. It reads the whole word and asks one question.
# - One matrix multiplication projects for all heads. Then split: cut the last axis, and move the head axis to the front.
# - Reshaping without the transpose gives the right shape and the wrong content.
# - $W^O$ has $h\, d_v$ rows and $d_\text{model}$ columns. The output is a sum over heads.
# - $h$ heads of width $d_\text{model} / h$ have as many parameters as one: $4\, d_\text{model}^2$. They trade width for number.
#
# Whatever the heads fetch is a blend of what was there before. Drawing a conclusion from it takes another part, the largest of the model.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** is [above](#all-heads-in-one-multiplication); this is its solution.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Project, cut the last axis, swap, attend, swap back, flatten, mix.
def my_heads(query, key, value, W_Q, W_K, W_V, W_O, heads):
    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

    q, k, v = split(query @ W_Q), split(key @ W_K), split(value @ W_V)
    weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).reshape(query.shape) @ W_O


print(check("multi_head_attention", my_heads))

# %% [markdown]
# **2. By hand** (★, 5 min). Count the parameters of one attention of row B with $d_k = 16$, $d_v = 64$, $h = 8$ and $d_\text{model} = 512$.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Queries and keys: 2 · 512 · 128. Values and output: 2 · 512 · 512. Together 655,360.
narrow = MultiHeadAttention(512, heads=8, d_k=16, d_v=64)
print(f"{sum(p.numel() for p in narrow.parameters()):,}")

# %% [markdown]
# **3. No question** (★, 5 min). Let $W_i^Q = 0$ for all heads. What does every query fetch?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All scores are 0, so all weights are equal: every query gets the mean of the values, mixed by W_O.
with torch.no_grad():
    uneven.query.weight.zero_()
mean = uneven.output(uneven.value(memory)).mean(dim=1, keepdim=True)
print(
    "distance from the mean:",
    round((uneven(query, memory, memory) - mean).norm().item(), 2),
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(uneven(query, memory, memory), mean.expand(-1, 3, -1))

# %% [markdown]
# **4. Equal heads** (★★, 15 min). What happens in training if all heads start with the same weights? Copy head 1 to the others and look at the gradients.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Equal heads get equal gradients, so they stay equal: four heads that do the work of one.
with torch.no_grad():
    for matrix in inputs:
        matrix.copy_(matrix[:6].repeat(4, 1))
    module.output.weight.copy_(module.output.weight[:, :6].repeat(1, 4))
module(query, memory, memory).square().sum().backward()
gradients = module.query.weight.grad.unflatten(0, (4, 6))
print(
    "distances of the four gradients from the first:",
    (gradients - gradients[0]).norm(dim=(1, 2)).round(decimals=2).tolist(),
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(gradients, gradients[:1].expand(4, 6, 24))

# %% [markdown]
# **5. Why one head is not enough** (★★★, 45 min; open). Many keys are orthogonal, and you want $\tfrac12 (v_a + v_b)$ of two of them. Give a query that does it with one head. Now let the length of $k_a$ vary by a tenth from sentence to sentence: how far off is the output? Show that two heads, one for each key, hardly notice.

# %% [markdown]
# ## Second reading: variants and details
#
# :::{admonition} Grouped queries: several heads share keys and values
# :class: dropdown
# In **grouped-query attention** {cite:p}`ainslie2023gqa` there are $h$ heads for the queries and only $g$ for keys and values, and each of the $g$ serves $h/g$ heads of queries. While a sentence is written, keys and values of all its words have to be kept in memory ([chapter 19](19_decoding.ipynb) does so), and with 8 heads in 2 groups that is a quarter of the numbers. With $g = 1$ it is *multi-query* attention {cite:p}`shazeer2019fast`.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show grouped queries in code", "code_prompt_hide": "Hide grouped queries in code"}
random = torch.Generator().manual_seed(0)
queries = torch.randn(2, 8, 5, 16, generator=random)  # 8 heads
few_keys, few_values = torch.randn(2, 2, 2, 5, 16, generator=random)  # 2 groups
shared_keys = few_keys.repeat_interleave(4, dim=1)  # each serves 4 heads
shared_values = few_values.repeat_interleave(4, dim=1)
grouped = attention(queries, shared_keys, shared_values)[0]
print("out of 8 heads:", tuple(grouped.shape), " kept:", tuple(few_keys.shape))

# %% tags=["remove-cell"]
if CHECKING:
    by_pytorch = F.scaled_dot_product_attention(
        queries, few_keys, few_values, enable_gqa=True
    )
    torch.testing.assert_close(grouped, by_pytorch)

# %% [markdown]
# :::{admonition} Why does `view` fail after the transpose?
# :class: dropdown
# A tensor is one long row of numbers in memory, with a *stride* for each axis that says how far to jump for the next entry. `transpose` moves nothing; it swaps two strides. In a transposed head, the next number is 1 further on and the next word 6, so the 12 numbers of head 1 would be 0, 1, 2, 6, 7, 8 and so on. `view` needs steps of one size. `flatten` and `reshape` copy the numbers if they must, and so does the `.contiguous().view(...)` of older code.
# :::
#
# :::{admonition} Values are projected, too: could they be left as they are?
# :class: dropdown
# Attention would work without that projection, since $W_i^O$ follows at once: the two act as one matrix, $W_i^V W_i^O$, which picks what the head hands over, as our second head does with *dark*. But each head would carry 512 numbers instead of 64, and $W^O$ would have eight times as many rows.
# :::
#
# :::{admonition} Maps without a bias
# :class: dropdown
# The formula has no bias. One on the keys, $b$, would do nothing at all: it adds the same number, $q \cdot b$, to all scores of a query, and softmax sees only differences. Set `bias=True` to load weights that were trained with biases; all four maps then have one.
# :::
#
# :::{admonition} A narrow head is a matrix of low rank
# :class: dropdown
# The score of two words $x$ and $y$ in head $i$ is $x\, (W_i^Q {W_i^K}^\top)\, y^\top$. The matrix in the middle is $d_\text{model} \times d_\text{model}$, but it is a product of two thin ones, so its *rank*, the number of independent directions that it can see, is at most $d_k$: the head compares two words along that many directions, and is blind to the rest.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the rank of a head", "code_prompt_hide": "Hide the rank of a head"}
# The first of four heads of width 6
wide = module.query.weight[:6].T @ module.key.weight[:6]
print("shape", tuple(wide.shape), " rank", torch.linalg.matrix_rank(wide).item())

# %% [markdown]
# ## Sources
#
# Multi-head attention is section 3.2.2 of {cite:t}`vaswani2017attention`. How many heads of a trained model can be removed is measured by {cite:t}`michel2019sixteen` and {cite:t}`voita2019analyzing`.
