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
# # Attention
#
# This chapter builds scaled dot-product attention, the one operation that every layer of the Transformer is made of (section 3.2.1 of the paper). It is ten lines of code. Most of the chapter is about why they are these ten.
#
# Read *The black cat likes fish* and stop at *likes*. To say what the sentence means, we need to know who likes and what is liked. The verb has to fetch something from *cat* and from *fish*, and little from *the*. Which words matter changes with every sentence, so no fixed wiring will do. A network that handles language needs a way to look things up in the words around it.
#
# Before the Transformer, a recurrent network carried the sentence along in one vector, word by word. By the time it reached *likes*, the cat had been squeezed into that vector together with everything else. In a long sentence the squeezing loses things. **Attention** leaves every word where it is and lets each word fetch what it needs, directly.
#
# The plan is short. We start from a lookup that every programmer knows, and see why it cannot be trained. We soften it until it can. Then we exchange numbers for vectors, and one word for all words at once, and have the formula of the paper. The second half asks why the formula looks as it does, and what goes wrong when a piece of it is missing.

# %% tags=["export"]
import math

import torch
import torch.nn.functional as F
from torch import Tensor

# %%
import altair as alt

from book.figures import (
    KEY,
    QUERY,
    RESIDUAL,
    VALUE,
    curves,
    heatmap,
    show,
    show_steps,
)

# %% [markdown]
# ## A lookup that must be exact
#
# Python has a lookup. A dictionary holds keys and values; we hand it a query and get the value whose key is equal.

# %%
legs = {"cat": 4, "fish": 0, "bird": 2}
print(legs["cat"], "cats" in legs)

# %% [markdown]
# Equal is a high bar. *Cats* is not *cat*, so the dictionary knows nothing about it. What we want is the value of the key that fits best. Let queries and keys be numbers, say the size of an animal in centimeters, and take the nearest.

# %%
keys = torch.tensor([5.0, 30.0, 60.0], dtype=torch.float64)  # a small fish, a cat, a dog
values = torch.tensor([0.0, 4.0, 4.0], dtype=torch.float64)  # their legs
query = torch.tensor(12.0, dtype=torch.float64, requires_grad=True)

nearest = (query - keys).abs().argmin()
print("legs:", values[nearest].item(), " depends on the query:", values[nearest].requires_grad)

# %% [markdown]
# This works for any query, and it cannot be trained. The answer stays the same until the query crosses the middle between two keys, and then it jumps. The slope is zero everywhere, so gradient descent learns nothing about the query: `requires_grad` is false, PyTorch has lost the thread.
#
# ## A lookup that is soft
#
# The way out is to take a little of everything. Score each key by how well it fits, turn the scores into shares that sum to 1, and mix the values by these shares. To get shares, we might divide each score by the sum of all. With a negative score among them, that fails:

# %%
s = torch.tensor([2.0, 0.5, -1.0], dtype=torch.float64)
print([round(share, 2) for share in (s / s.sum()).tolist()])

# %% [markdown]
# The shares sum to 1, but one is negative and another is above 1. So we first make every score positive, with a function that keeps the order: the exponential. Dividing after that gives the **softmax** of the scores $s_1, \dots, s_S$:
#
# $$
# \operatorname{softmax}(s)_j = \frac{e^{s_j}}{\sum_{i=1}^{S} e^{s_i}}
# $$ (eq-softmax)
#
# Each share is positive, since an exponential is. They sum to 1, since each is divided by the sum. And the ratio of two shares, $e^{s_i - s_j}$, depends on the difference of their scores only.


# %%
def softmax(scores):
    exponentials = (scores - scores.max()).exp()  # same shares, no overflow
    return exponentials / exponentials.sum()


torch.testing.assert_close(softmax(s), s.softmax(dim=-1))
torch.testing.assert_close(softmax(s), softmax(s + 1000))
print([round(share, 2) for share in softmax(s).tolist()])

# %% [markdown]
# The second check is why we may subtract the largest score first. The shares do not change, and $e^{1000}$, which is too large for any float, never comes up.
#
# Now the lookup. The score of a key is minus its distance to the query, divided by a temperature that says how picky we are.


# %%
def soft_lookup(query, temperature):
    shares = softmax(-(query - keys).abs() / temperature)
    return (shares * values).sum()


found = soft_lookup(query, temperature=5.0)
found.backward()
print(f"legs: {found.item():.2f}  slope: {query.grad.item():.2f}")

# %% [markdown]
# At 12 centimeters the answer is 0.40 legs, which no animal has. But it has a slope: an animal one centimeter longer would have about 0.14 more. That slope is all that learning needs.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-soft-lookup", "caption": "What does a soft lookup return? The hard lookup (grey) is a staircase with slope zero nearly everywhere. A soft one (green) is close to it at a low temperature and has a slope that can be followed. Three keys, at 5, 30 and 60 cm."}}
looks = {
    "hard": (RESIDUAL, [4, 3]),
    "soft, temperature 1": (VALUE, [1, 0]),
    "soft, temperature 5": (VALUE, [8, 2]),
    "soft, temperature 15": (VALUE, [2, 2]),
}


def look_up(query, name):
    if name == "hard":
        return values[(query - keys).abs().argmin()]
    return soft_lookup(query, temperature=float(name.split()[-1]))


records = [
    {"query": q, "found": round(y.item(), 3), "lookup": name}
    for name in looks
    for q in range(71)
    for y in [look_up(torch.tensor(float(q)), name)]
]
x = alt.X(
    "query:Q", title="query: size in cm", axis=alt.Axis(values=[0, 5, 10, 20, 30, 40, 50, 60, 70])
)
chart = curves(records, x, alt.Y("found:Q", title="value found: legs"), "lookup", looks)
show(
    chart,
    alt="The hard lookup is a staircase. The soft ones are smooth curves that come closer to it as the temperature falls.",
)

# %% [markdown]
# ## Queries, keys and values
#
# One number cannot say what a word is. In the Transformer each word hands out three vectors, and the three colors below keep their meaning for the whole book:
#
# - its <span style="color:#0072B2">**query**</span> says what the word looks for: a verb looks for someone who acts;
# - its <span style="color:#D55E00">**key**</span> says what the word can be found by: *cat* is a noun;
# - its <span style="color:#009E73">**value**</span> says what it hands over when it is found: a living thing.
#
# Key and value differ for a good reason. What makes a book easy to find in a library, its signature, is not what we want to read in it. Query and key differ as well, since looking is not being looked at: *likes* seeks a noun and is itself a verb. With one vector for both roles, every word would fit itself best.
#
# Later the three are learned. Here we make them up, so that each number can be checked by hand. Our five words get keys and queries of width $d_k = 4$, whose columns mean noun, verb, adjective and article. The values have width $d_v = 3$: living, dark, edible. Note *fish*. It is mostly a noun, but one may also fish, so its key leans towards the verbs.

# %%
words = ["the", "black", "cat", "likes", "fish"]
Q = torch.tensor([[2, 0, 1, 0], [2, 0, 0, 0], [0, 2, 1, 0], [3, 0, 0, 0], [0, 2, 0, 0]]).double()
K = torch.tensor(
    [[0, 0, 0, 2], [0, 0, 2, 0], [2, 0, 0, 0], [0, 2, 0, 0], [1.5, 0.5, 0, 0]]
).double()
V = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0], [0.5, 0, 1]]).double()
print("queries", tuple(Q.shape), " keys", tuple(K.shape), " values", tuple(V.shape))

# %% [markdown]
# The paper's letters for these three matrices are $Q$, $K$ and $V$. Row $i$ belongs to word $i$.
#
# ## How well does a key fit?
#
# A nearest key needs a distance. For vectors, a product is simpler. The **dot product** $q \cdot k = q_1 k_1 + \dots + q_{d_k} k_{d_k}$ grows with every column where both are large, and a column that either one leaves at zero does not count. The query of *likes* is $(3, 0, 0, 0)$: any noun will do.

# %%
likes = Q[3]
for word, key in zip(words, K):
    print(f"likes · {word:6} = {(likes * key).sum().item()}")

# %% [markdown]
# *Cat* scores 6, *fish* 4.5, everything else nothing.
#
# There is a picture for this. The dot product is the length of the query, times the length of the key, times the cosine of the angle between them. So a key scores high by pointing where the query points, or by being long. All keys on a line at a right angle to the query get the same score.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-dot-product", "caption": "Which keys fit a query? The query (blue, from the origin) and four keys (orange) of width 2. Keys on the same grey line have the same score, printed at its end. *b* is as long as *a* but points elsewhere, so it scores less. *c* points as *a* does and is four times as long, so it wins. *d* points away."}}
q = (1.5, 1.0)
key_points = {"a": (0.6, 0.4), "b": (0.6, -0.4), "c": (2.4, 1.6), "d": (-1.2, 0.0)}
fits = {name: round(q[0] * x + q[1] * y, 2) for name, (x, y) in key_points.items()}
assert fits["c"] == 4 * fits["a"] and fits["a"] > fits["b"] > 0 > fits["d"]
ends = [
    {"x": (s - q[1] * y) / q[0], "y": y, "score": s} for s in range(-4, 8, 2) for y in (-2, 2.4)
]
points = [{"x": x, "y": y, "name": f"{n}: {fits[n]:g}"} for n, (x, y) in key_points.items()]
arrow = [{"x": 0, "y": 0}, {"x": q[0], "y": q[1]}]


def layer(records, **encoding):
    no_ticks = alt.Axis(values=[], domain=False)
    x = alt.X("x:Q", title="first component", scale=alt.Scale(domain=[-3, 4]), axis=no_ticks)
    y = alt.Y("y:Q", title="second component", scale=alt.Scale(domain=[-2, 2.6]), axis=no_ticks)
    return alt.Chart(alt.Data(values=records)).encode(x=x, y=y, **encoding)


tilt = 360 - math.degrees(math.atan2(q[1], q[0]))
head = {"shape": "triangle-right", "angle": tilt, "filled": True, "opacity": 1, "size": 160}
chart = alt.layer(
    layer(ends, detail="score:Q").mark_line(strokeWidth=1, opacity=0.5, clip=True, color=RESIDUAL),
    layer(ends[3::2], text="score:Q").mark_text(dy=-7, color=RESIDUAL),
    layer(arrow).mark_line(color=QUERY, strokeWidth=3),
    layer(arrow[1:]).mark_point(color=QUERY, **head),
    layer(arrow[1:]).mark_text(text="query", color=QUERY, dx=24, dy=10, fontSize=13),
    layer(points).mark_point(color=KEY, filled=True, opacity=1, size=90),
    layer(points, text="name:N").mark_text(color=KEY, dx=-12, dy=-9, fontSize=13),
)
show(
    chart.properties(width=420, height=276),
    alt="A query arrow and four keys. Key c, in the direction of the query and far out, has the highest score.",
)

# %% [markdown]
# One such loop for each word gives a table of 25 scores, and that table is a matrix product. The entry in row $i$ and column $j$ of $QK^\top$ is the dot product of query $i$ and key $j$.

# %%
scores = Q @ K.T
assert all(scores[i, j] == Q[i].dot(K[j]) for i in range(5) for j in range(5))
print(scores)

# %% [markdown]
# Rows are queries and columns are keys, as in each matrix of this book. Row four, *likes*, repeats the loop above.
#
# This is why dot products won: a matrix product is what processors do best. There is no loop over words and no order in which they must come. All 25 scores are there at once, and for 500 words all 250,000.
#
# ## The formula
#
# Softmax over each row turns scores into weights, and a second matrix product mixes the values. One detail is new, the division by $\sqrt{d_k}$, here $\sqrt 4 = 2$. It gets its own section below.
#
# $$
# \operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V
# $$ (eq-attention)

# %%
weights = (Q @ K.T / math.sqrt(4)).softmax(dim=-1)
output = weights @ V
print("weights", tuple(weights.shape), " output", tuple(output.shape))
print("likes fetches", [round(x, 2) for x in output[3].tolist()])

# %% [markdown]
# We check *likes* by hand. Its scores are 0, 0, 6, 0 and 4.5; halved, 0, 0, 3, 0 and 2.25. The exponentials are 1, 1, 20.1, 1 and 9.5, and they sum to 32.6. So *cat* gets $20.1 / 32.6 = 0.62$, *fish* gets $9.5 / 32.6 = 0.29$, and each of the others $0.03$. *Cat* hands over 0.62 of something living. *Fish* is half as living in our table, so it adds 0.15: together 0.76, as printed.
#
# *Likes* now carries 0.76 of something living and 0.29 of something edible. It knows who is involved, and it found out by looking. The next figure follows the computation for each of the five words.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-attention-steps", "caption": "How is one output vector made? Choose the word that asks. Its query multiplies the rows of the keys (orange), and each column adds up to a score. Divided by 2, the scores go through softmax and become weights (grey). Each value is multiplied by its weight (green); the last column adds up, and that is the output. Queries, keys and values are made up."}}


def computation(i):
    mixed = weights[i] * V.T  # one column a word, one row a column of V
    mixed = torch.cat([mixed, mixed.sum(1, keepdim=True)], 1)
    features = [
        f"{q:g} × {name}" for q, name in zip(Q[i], ["noun", "verb", "adjective", "article"])
    ]
    rows = ["× living", "× dark", "× edible"]
    stages = [
        heatmap(K.T, features, words, titles=("query × key", ""), limit=3, color=KEY),
        heatmap([scores[i]], ["score"], [""] * 5, titles=("", ""), limit=9, color=KEY),
        heatmap([scores[i] / 2], ["÷ √d_k"], [""] * 5, titles=("", ""), limit=9, color=KEY),
        heatmap([weights[i]], ["weight"], [""] * 5, titles=("", "")),
        heatmap(mixed, rows, [*[""] * 5, "sum"], titles=("weight × value", ""), color=VALUE),
    ]
    best = words[weights[i].argmax()]
    label = f"The query {words[i]} puts most weight, {weights[i].max():.2f}, on {best}."
    drawn = alt.vconcat(*stages, spacing=4)
    return drawn.resolve_scale(fillOpacity="independent", x="independent", y="independent"), label


show_steps({word: computation(i) for i, word in enumerate(words)}, "Which word asks?", start=3)

# %% [markdown]
# Three things to notice. *The* and *black* ask for their noun and both find *cat* first. *Cat* asks for a verb, or less urgently for an adjective, and spends over half on *likes*. And *fish*, as a key, collects a little from everyone who asks for a verb: a word with two readings is found by both.
#
# ## The code
#
# Here is the function that the package exports. The leading axes of its arguments may be anything, such as sentences and heads. Axis letters are those of the [notation page](../book/notation.md): $T$ positions that ask, $S$ positions that answer. `Mask` is short for a mask or none.

# %% tags=["export"]
Mask = Tensor | None  # boolean, True where a query may attend to a key; None hides nothing


# %% tags=["export"]
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, equation 1 of the paper (section 3.2.1).

    Args:
        query: (..., T, d_k), what each position looks for.
        key: (..., S, d_k), what each position is found by.
        value: (..., S, d_v), what each position hands over.
        mask: broadcastable to (..., T, S).
        dropout: rate at which the weights that mix the values are dropped; 0 in the paper.

    Returns the output (..., T, d_v) and the weights (..., T, S) before dropout; rows sum to 1. A
    query that may attend to no key gets NaN. A mask that is not boolean raises RuntimeError.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ value, weights


# %% [markdown]
# `torch.where` takes the score where the mask is True and minus infinity elsewhere. It wants a boolean mask: one of zeros and ones is refused.
#
# PyTorch has the same operation built in, written for speed. It serves as our independent reference, on random inputs with a different size on each axis: 2 sentences, 3 heads, 5 queries, 7 keys, width 4 for keys and 6 for values.

# %%
random = torch.Generator().manual_seed(1)
query, key, value = (
    torch.randn(2, 3, *shape, generator=random) for shape in [(5, 4), (7, 4), (7, 6)]
)
mask = torch.rand(2, 1, 5, 7, generator=random) > 0.3
mask[..., 0] = True  # every query may see at least one key

ours, weights_ours = attention(query, key, value, mask)
torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, mask))
torch.testing.assert_close(weights_ours.sum(-1), torch.ones(2, 3, 5))
assert (weights_ours.masked_select(~mask) == 0).all()
print("output", tuple(ours.shape), " weights", tuple(weights_ours.shape))

# %% [markdown]
# The order of the five steps is all there is to remember. Two of them are matrix products. Between those come a division, a mask, and a softmax along the last axis, the keys.
#
# ## Where queries, keys and values come from
#
# We made up three tables. The model learns them, in the simplest way there is. A word comes in as a vector $x$ of width $d_\text{model}$, and three matrices turn it into what it looks for, what it is found by and what it hands over:
#
# $$
# q = x\,W^Q, \qquad k = x\,W^K, \qquad v = x\,W^V
# $$ (eq-projections)
#
# Suppose that the vector of word $i$ has a 1 at place $i$ and zeros elsewhere. Then $x\,W^Q$ picks row $i$ of $W^Q$, so the matrix *is* our table.

# %%
X = torch.eye(5, dtype=torch.float64)
W_Q, W_K, W_V = Q, K, V
torch.testing.assert_close(attention(X @ W_Q, X @ W_K, X @ W_V), attention(Q, K, V))
print("words", tuple(X.shape), " W_Q", tuple(W_Q.shape), " queries", tuple((X @ W_Q).shape))

# %% [markdown]
# Real word vectors are dense and shorter than the vocabulary. Similar words have similar vectors, and so get similar queries without being told. That is how a model that has seen *cats like fish* can handle *dogs like meat*.
#
# Where all three come from the same words, as here, we speak of **self-attention**. Queries may also come from one sentence, and keys and values from another. Then a word being written looks at the sentence being translated, and it is called **cross-attention**. The function is the same; only its arguments differ. Chapter [Multi-head attention](05_multi_head_attention.ipynb) builds both, and gives each position several queries at once.
#
# ## What attention can and cannot return
#
# The output is an average of the values, weighted by who fits. Two facts follow, and both matter later. First, no output lies outside of the range of the values: attention can select and blend, and it cannot invent.

# %%
mixed = attention(Q, K, V)[0]
assert (mixed <= V.max(dim=0).values).all() and (mixed >= V.min(dim=0).values).all()
print("smallest", mixed.min().item() >= 0, " largest", mixed.max().item() <= 1)

# %% [markdown]
# Anything new must be computed elsewhere, and the Transformer follows each attention with a small network that does so ([Feed-forward](06_feed_forward.ipynb)).
#
# Second, the weights sum to 1, so a query cannot look at nothing. A word that has nothing to fetch still spends its whole weight. Trained models learn a way out: they send the spare weight to some token whose value does no harm, often the end of the sentence. When you see such a column in a trained model's weights, it may mean "nothing here for me".
#
# ## Why divide by the square root of $d_k$?
#
# The paper gives the reason in a footnote; it deserves a picture. Suppose the components of $q$ and $k$ are independent, with mean 0 and variance 1, as they roughly are before training. Each product $q_i k_i$ then also has mean 0 and variance 1. The dot product is a sum of $d_k$ of them, and variances add up:
#
# $$
# \operatorname{Var}(q \cdot k) = \sum_{i=1}^{d_k} \operatorname{Var}(q_i k_i) = d_k,
# \qquad \text{so the scores spread like } \sqrt{d_k}.
# $$ (eq-variance)
#
# With $d_k = 64$, the paper's choice, scores of $\pm 8$ are normal. We draw 20,000 pairs for each width and measure.


# %%
def random_scores(d_k, pairs=20_000):
    random = torch.Generator().manual_seed(d_k)
    q, k = torch.randn(2, pairs, d_k, generator=random, dtype=torch.float64)
    return (q * k).sum(-1)


for d_k in (4, 64, 512):
    spread = random_scores(d_k).std().item()
    print(f"d_k {d_k:3}   spread {spread:5.1f}   square root of d_k {math.sqrt(d_k):5.1f}")
    assert abs(spread / math.sqrt(d_k) - 1) < 0.02

# %% [markdown]
# Softmax sees differences only, and it sees them through an exponential. A lead of 1 means 2.7 times the weight; a lead of 8 means 2,981 times. Wide scores therefore leave one key with everything. Dividing by $\sqrt{d_k}$ brings the spread back to 1, whatever the width. It plays the part of the temperature in our lookup of legs: it says how picky to be.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scale", "caption": "What breaks without the scale? Weights of one query over eight random keys, largest first, for three widths (choose another with the slider on the website). With the division (blue) they look alike at every width. Without it (orange, outlined) one key takes it all."}}


def sorted_weights(d_k, scaled, rows=2000, keys=8):
    s = random_scores(d_k, rows * keys).view(rows, keys)
    w = (s / math.sqrt(d_k) if scaled else s).softmax(-1)
    return w.sort(-1, descending=True).values.mean(0)


records = [
    {"d_k": d_k, "rank": rank, "weight": round(w, 3), "scores": name}
    for d_k in (1, 4, 16, 64, 256, 1024)
    for name in ("divided by √d_k", "as they are")
    for rank, w in enumerate(sorted_weights(d_k, name.startswith("divided")).tolist(), 1)
]
looks = {"divided by √d_k": (QUERY, [1, 0]), "as they are": (KEY, [5, 3])}
slider = alt.param(
    "power", value=3, bind=alt.binding_range(min=0, max=5, step=1, name="d_k = 4 to the power of ")
)
x = alt.X("rank:O", title="key, by rank", axis=alt.Axis(labelAngle=0))
y = alt.Y("weight:Q", title="mean weight", scale=alt.Scale(domain=[0, 1]))
chart = curves(records, x, y, "scores", looks).transform_filter("datum.d_k == pow(4, power)")
chart = chart.add_params(slider).properties(width=420)
show(
    chart,
    alt="At d_k 64 the unscaled softmax gives its first key over 0.8 of the weight; with the scale the first key gets about 0.4.",
)

# %% [markdown]
# ## Why a sure softmax cannot learn
#
# One key with all the weight sounds like a decision, and decisions are fine once they are learned. At the start of training they are harmful. The slope of softmax is
#
# $$
# \frac{\partial w_i}{\partial s_j} = w_i\,(\delta_{ij} - w_j),
# $$ (eq-softmax-slope)
#
# where $\delta_{ij}$ is 1 if $i = j$ and else 0. When one weight is 1 and the others are 0, every entry of this table is zero. Nothing flows back to the scores, so the queries and keys that made the bad choice never hear of it. We are back at the hard lookup.


# %%
def slope(scores):
    w = scores.softmax(-1)
    return torch.diag(w) - torch.outer(w, w)


torch.testing.assert_close(slope(s), torch.func.jacrev(lambda x: x.softmax(-1))(s))
for factor in (1, 4, 16):
    print(f"scores times {factor:2}: largest slope {slope(factor * s).max().item():.4f}")

# %% [markdown]
# The formula agrees with PyTorch's own differentiation, and the slope dies out as the scores grow. The next figure repeats this for random scores at each width. At width 64, which the paper uses, less than half of the gradient comes through without the division. At 512 it is less than a fifth.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-slope", "caption": "How much of the gradient comes through the softmax? Mean size of its slope (Frobenius norm of {eq}`eq-softmax-slope`) over 500 random queries and eight keys. Divided (solid blue), it is the same at all widths; undivided (dashed orange), it falls from width to width."}}


def mean_slope(d_k, scaled, rows=500, keys=8):
    drawn = random_scores(d_k)[: rows * keys].view(rows, keys)
    return torch.stack(
        [slope(row).norm() for row in (drawn / math.sqrt(d_k) if scaled else drawn)]
    ).mean()


records = [
    {
        "d_k": d_k,
        "slope": round(mean_slope(d_k, name.startswith("divided")).item(), 3),
        "scores": name,
    }
    for d_k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    for name in looks
]
by_width = {(r["d_k"], r["scores"]): r["slope"] for r in records}
assert by_width[64, "as they are"] < 0.5 * by_width[64, "divided by √d_k"]
assert by_width[512, "as they are"] < 0.2 * by_width[512, "divided by √d_k"]
x = alt.X("d_k:Q", title="width d_k", scale=alt.Scale(type="log", base=2, domain=[1, 512]))
chart = curves(records, x, alt.Y("slope:Q", title="mean slope"), "scores", looks)
show(
    chart, alt="The slope stays level with the scale and falls steadily with the width without it."
)

# %% [markdown]
# Is the division needed, strictly? A model could learn smaller queries by itself and get the same scores. So the scale does not change what attention can compute. It changes where training starts, and with which slope. After training, queries and keys are neither independent nor of variance 1, and nobody minds.
#
# ## The other way to score: additive attention
#
# Attention is older than the Transformer. The first version, made for recurrent translation models, scored a key with a small network in place of a dot product:
#
# $$
# s(q, k) = v^\top \tanh(W_q\, q + W_k\, k)
# $$ (eq-additive)
#
# It has no trouble with wide vectors, because $\tanh$ bounds each term. But the network must run once for each pair of positions, on a tensor with $T \times S \times d$ entries.


# %%
def additive_scores(query, key, W_q, W_k, v):
    return torch.tanh((query @ W_q).unsqueeze(-2) + (key @ W_k).unsqueeze(-3)) @ v


random = torch.Generator().manual_seed(2)
W_q, W_k = torch.randn(2, 4, 4, generator=random, dtype=torch.float64)
v = torch.randn(4, generator=random, dtype=torch.float64)
by_hand = sum(v[c] * torch.tanh(Q[3] @ W_q[:, c] + K[2] @ W_k[:, c]) for c in range(4))
torch.testing.assert_close(additive_scores(Q, K, W_q, W_k, v)[3, 2], by_hand)
print("scores", tuple(additive_scores(Q, K, W_q, W_k, v).shape))

# %% [markdown]
# Counted in multiplications the two are close relatives. On a real machine they are not, since one is a matrix product and the other walks through a large table in memory. We time both at width 64.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-additive", "caption": "What does a score cost? Time for the table of all scores at width 64, by length, on the machine that ran this notebook (one CPU thread). The additive score (dashed) takes many times longer at each length; both axes are logarithmic."}}
from torch.utils.benchmark import Timer

measured = []
for length in (64, 128, 256, 512):
    x, W, u = torch.randn(length, 64), torch.randn(64, 64), torch.randn(64)
    for name, run in {
        "dot product": lambda: x @ W @ (x @ W).T,
        "additive": lambda: additive_scores(x, x, W, W, u),
    }.items():
        timer = Timer("run()", globals={"run": run}, num_threads=1)
        seconds = timer.blocked_autorange(min_run_time=0.1).median
        measured.append({"length": length, "ms": round(1000 * seconds, 3), "score": name})
log = alt.Scale(type="log", nice=False)
at_512 = {m["score"]: m["ms"] for m in measured if m["length"] == 512}
assert at_512["additive"] > 3 * at_512["dot product"]
x = alt.X("length:Q", title="length", scale=log, axis=alt.Axis(values=[64, 128, 256, 512]))
y = alt.Y("ms:Q", title="milliseconds", scale=log, axis=alt.Axis(values=[0.01, 0.1, 1, 10, 100]))
looks = {"dot product": (QUERY, [1, 0]), "additive": (KEY, [5, 3])}
chart = curves(measured, x, y, "score", looks)
show(
    chart,
    alt="Additive scores take many times longer than dot products at every length from 64 to 512.",
)

# %% [markdown]
# ## Hiding a key
#
# Not every key may be looked at. Some positions are padding, and while the model learns to write, the next word must stay hidden. Chapter [Masks](04_masks.ipynb) builds the masks; here we ask what to do with one. The weight must be zero, and the others must still sum to 1. So the score has to change before the softmax, and it must become **minus infinity**, since $e^{-\infty} = 0$.

# %%
hide_fish = torch.tensor([True, True, True, True, False])
_, seen = attention(Q, K, V, hide_fish)
print("likes, without fish:", [round(w, 2) for w in seen[3].tolist()])
assert seen[3, 4] == 0

# %% [markdown]
# Often $-10^9$ is written in place of minus infinity. It nearly works, which is the trouble. Numbers in half precision end at 65,504, so PyTorch refuses to write it there:

# %%
try:
    torch.zeros(3, dtype=torch.float16).masked_fill(torch.tensor([True, False, False]), -1e9)
except RuntimeError as error:
    print("refused:", "without overflow" in str(error))

# %% [markdown]
# The two also differ where every key of a row is hidden. Then there is no right answer, and they fail in opposite ways.

# %%
nothing = torch.zeros(5, dtype=torch.bool)
big = (Q[3] @ K.T).masked_fill(~nothing, -1e9).softmax(-1)
print("-1e9:     ", [round(w, 2) for w in big.tolist()])
print("-infinity:", attention(Q[3:4], K, V, nothing)[1][0].tolist())

# %% [markdown]
# With $-10^9$, the query looks at all the keys that it must not see, and no one notices. With minus infinity the row is not a number, and the mistake comes to light at the next loss. We prefer the second. In this book no such row occurs: each sentence ends with the token `</s>`, which may always be seen.
#
# ## Rows or columns?
#
# Some texts write attention as $V \operatorname{softmax}(K^\top Q / \sqrt{d_k})$, and readers wonder who is wrong. Nobody: there, each word is a column. Transpose everything, and {eq}`eq-attention` comes out, with the softmax running down the columns.

# %%
Qc, Kc, Vc = Q.T, K.T, V.T  # one column a word
columns = Vc @ (Kc.T @ Qc / math.sqrt(4)).softmax(dim=0)
torch.testing.assert_close(columns.T, attention(Q, K, V)[0])
print("columns", tuple(columns.shape), " rows", tuple(columns.T.shape))

# %% [markdown]
# We write words as rows, like the paper and like PyTorch. Take the softmax along the wrong axis, and each *key* hands out a total of 1, however many ask for it. The shapes are the same and no error is raised. It is the most common mistake in attention written by hand, and a check catches it: **each row of weights sums to 1**.

# %% mystnb={"figure": {"name": "fig-attention-weights", "caption": "Who looks at whom? All weights of our five words. Each row sums to 1, the columns do not: *cat* as a key gets 1.71 in total, since three words ask for a noun. Queries and keys are made up."}}
rows = attention(Q, K, V)[1]
torch.testing.assert_close(rows.sum(dim=-1), torch.ones(5, dtype=torch.float64))
print("column sums:", [round(total, 2) for total in rows.sum(dim=0).tolist()])
show(
    heatmap(rows, words, words),
    alt="Weights of five words. The, black and likes look at cat most; cat and fish look at likes.",
)

# %% [markdown]
# ## What it costs
#
# Every position looks at every other. For $n$ positions the table of weights has $n^2$ entries, and so the work is about $n^2 d$ multiplications, twice. Double the length, and the cost is four times as high.

# %%
for n in (25, 500, 8000):
    print(f"n = {n:4}: {n * n:10,} weights, {4 * n * n / 2**20:7.2f} MiB in float32")

# %% [markdown]
# At the length of a sentence this is nothing. At the length of a book it decides everything, and many later designs exist to get around it. In return, any two positions are one step apart: what *likes* needs from a word 30 positions back arrives in a single layer, along a path through which gradients flow well. A recurrent network needs 30 steps. Section 4 of the paper makes this trade its main argument.
#
# ## Questions that come up
#
# **Is attention a layer with weights to learn?** Not by itself. The function above has no parameters. All that is learned sits in the matrices of {eq}`eq-projections`.
#
# **Why the same key for all queries?** Because then one product serves them all. Additive attention gives each pair its own little network and pays for it.
#
# **Does a high weight explain the output?** It says what was fetched, not what was done with it. A value may be close to zero, and later layers may ignore it. Weights are a good place to start asking and a poor place to stop.
#
# **Why not take the top key only, when the model is trained?** One could, and it saves little: the scores have to be computed anyway. And trained models do use blends, as *likes* does here with its two nouns.
#
# ## What to remember
#
# - Attention is a soft lookup: score each key, turn scores into weights that sum to 1, mix the values.
# - A query looks for, a key is found by, a value is handed over. Rows ask, columns answer.
# - The dot product of two random vectors spreads like $\sqrt{d_k}$. Undivided, it makes softmax so sure that no gradient comes back.
# - A hidden key gets the score minus infinity, before the softmax.
# - It is two matrix products and one softmax, with no order in time, at a cost of $n^2 d$.
#
# ## Exercises
#
# **1. By hand.** A query $(1, 1)$ meets the keys $(2, 0)$ and $(0, 0)$ with the values 10 and 20. What does attention return? Give two decimals. ($e^{1.41} = 4.11$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Scores 2 and 0, divided by the root of 2: 1.41 and 0. Weights 4.11 / 5.11 and 1 / 5.11.
q, k = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 0.0]])
answer, _ = attention(q, k, torch.tensor([[10.0], [20.0]]))
print(f"{answer.item():.2f}")
assert abs(answer.item() - (4.11 * 10 + 1 * 20) / 5.11) < 0.01

# %% [markdown]
# **2. What breaks if** someone divides by $d_k$ in place of $\sqrt{d_k}$? Predict the weights of a random query over eight keys at $d_k = 512$, then run it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The scores now spread like 1 / sqrt(512), nearly zero: all keys get about 1/8 and the query hardly matters.
flat = (random_scores(512).view(-1, 8) / 512).softmax(-1)
print("mean of the largest weight:", round(flat.max(-1).values.mean().item(), 2))
assert flat.max() < 0.2

# %% [markdown]
# **3. Loops.** Write attention with loops over queries and keys, without matrix products. Which loop may run in any order?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All of them: no step needs the result of another query. That is what makes attention fast to train.


def attention_in_loops(Q, K, V):
    output = torch.zeros(len(Q), V.shape[1], dtype=V.dtype)
    for i, q in enumerate(Q):
        shares = torch.stack([(q * k).sum() / math.sqrt(len(k)) for k in K]).exp()
        for share, value in zip(shares / shares.sum(), V):
            output[i] += share * value
    return output


torch.testing.assert_close(attention_in_loops(Q, K, V), attention(Q, K, V)[0])
print("equal")

# %% [markdown]
# **4. A proof in one line.** Show that a number added to all scores of one query changes nothing. Does the same hold for a number added to all scores of one *key*?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# e^(s + c) = e^c e^s: the factor stands above and below the bar and cancels, but only if all of a row have it.
shifted_row, shifted_column = scores.clone(), scores.clone()
shifted_row[3] += 7
shifted_column[:, 2] += 7
torch.testing.assert_close(shifted_row.softmax(-1), scores.softmax(-1))
print(
    "one key shifted, same weights:", torch.allclose(shifted_column.softmax(-1), scores.softmax(-1))
)

# %% [markdown]
# **5. What breaks if** the five words come in another order? Shuffle the rows of $Q$, $K$ and $V$ together and compare the outputs.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing: the outputs are shuffled the same way. Attention does not know the order of words, so chapter 8 adds it.
order = torch.tensor([3, 1, 4, 0, 2])
torch.testing.assert_close(attention(Q[order], K[order], V[order])[0], attention(Q, K, V)[0][order])
print("the same outputs, in the new order")

# %% [markdown]
# **6. Write it yourself.** Scroll away from this page and write `attention(query, key, value, mask)`. Then hand it to the book's checker. [Check your own](E_checker.ipynb) knows eleven ways to get attention wrong, and tells which one yours is.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
from annotated_transformer import check


def mine(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ value


print(check("attention", mine))
print(check("attention", lambda query, key, value, mask: mine(query, key, value, None)))

# %% [markdown]
# ## Sources
#
# Equation 1 and the argument for the scale are from section 3.2.1 of {cite:t}`vaswani2017attention`. Additive attention is from {cite:t}`bahdanau2015neural`, dot products in translation from {cite:t}`luong2015effective`.
