# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Attention
#
# Attention lets each word of a sentence ask all the others, and hands it a blend of what they hold, weighted by how well each one fits (section 3.2.1 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("attention")

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
import math

import torch
import torch.nn.functional as F
from torch import Tensor

# %% [markdown]
# Read *the black cat likes fish* and stop at *likes*. You need to know who likes and what is liked, so the verb has to fetch something from *cat* and from *fish*, and hardly anything from *the*. In the next sentence it will be other words, so fixed wiring can't do it.
#
# **Attention** leaves every word where it is and lets each one fetch what it needs, directly.
#
# Before you look at the figure: if *likes* had a total of 1 to spend on the five words, itself included, how would you divide it?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-attention", "caption": "What does *likes* fetch, and from whom? Its query (blue) asks for nouns. Each word can be found by its key (orange); the better the key fits, the larger the weight on the arc. What comes back is the sum of the values (green), each times its weight. Words and matrices are made up; this chapter computes all the rest."}}
import altair as alt

from book import example
from book.figures import (
    AMBER,
    INK,
    KEY,
    PLUM,
    QUERY,
    RESIDUAL,
    SKY,
    VALUE,
    curves,
    heatmap,
    show,
    show_drawing,
    show_steps,
    words_at,
)

Q, K, V = (example.X @ W for W in (example.W_Q, example.W_K, example.W_V))
shares = (Q[3] @ K.T / 2).softmax(-1)
fetched = shares @ V


def named(vector, names):
    held = [f"{name} {x:.2g}" for name, x in zip(names, vector.tolist()) if x]
    return held or ["nothing"]


def lines_at(x, y, lines, color):
    return [words_at(x, y + 13 * i, line, 11, color) for i, line in enumerate(lines)]


places, base = [108, 190, 268, 340, 408], 130
parts = [
    words_at(6, base + y, label, 12, color, "start")
    for y, label, color in [
        (54, "looks for", QUERY),
        (80, "is found by", KEY),
        (119, "hands over", VALUE),
    ]
]
for x, word, key, value, share in zip(places, example.WORDS, K, V, shares.tolist()):
    parts.append(words_at(x, base + 22, word, 16))
    parts += lines_at(x, base + 80, named(key, example.SOUGHT), KEY)
    parts += lines_at(x, base + 119, named(value, example.OFFERED), VALUE)
    far = abs(x - 340)
    start, sweep = (348, 1) if x > 340 else (332, 0)
    height = 0.45 * far
    curve = f"M{start},{base} A{abs(x - start) / 2},{height} 0 0 {sweep} {x},{base}"
    curve = curve if far else f"M336,{base} C326,{base - 60} 354,{base - 60} 344,{base}"
    thick = f'stroke-width="{1 + 14 * share:.1f}"'
    parts.append(f'<path d="{curve}" fill="none" stroke="{INK}" {thick}/>')
    top = base - height - 7 * share if far else base - 46
    middle = 0.7 * x + 0.3 * start if 0 < far < 80 else (x + start) / 2
    parts.append(words_at(middle, top - 6, f"{share:.2f}", 12))
parts += lines_at(340, base + 54, named(Q[3], example.SOUGHT), QUERY)
parts.append(words_at(6, base + 160, "and so likes fetches", 13, INK, "start"))
total = ", ".join(
    f"{name} {x:.2f}" for name, x in zip(example.OFFERED, fetched.tolist())
)
parts.append(words_at(138, base + 160, total, 14, VALUE, "start"))
show_drawing(
    parts,
    436,
    300,
    alt="Arcs from likes to the five words: 0.62 to cat, 0.29 to fish, 0.03 to each of the others. It fetches living 0.76, dark 0.03, edible 0.29.",
)

# %% [markdown]
# *Likes* looks for nouns. *Cat* is one and *fish* mostly is, so *likes* takes 0.62 of what *cat* hands over and 0.29 of what *fish* does. It ends up knowing that something living is involved, and something edible. Two questions are open. Why a blend, instead of the one word that fits best? And who decides what a word asks for?
#
# ## A lookup that must be exact
#
# Python's lookup is the dictionary. It holds keys and values; you hand it a query, and it returns the value whose key is equal.

# %%
legs = {"cat": 4, "fish": 0, "bird": 2}
print(legs["cat"], "cats" in legs)

# %% [markdown]
# Equal is a high bar: *cats* is not *cat*. We'd rather have the value of the key that fits *best*. Let queries and keys be numbers, say the sizes of animals in centimeters, and take the nearest.

# %%
# A small fish, a cat, a dog
keys = torch.tensor([5.0, 30.0, 60.0], dtype=torch.float64)
values = torch.tensor([0.0, 4.0, 4.0], dtype=torch.float64)  # their legs
query = torch.tensor(12.0, dtype=torch.float64, requires_grad=True)

nearest = (query - keys).abs().argmin()
answer = values[nearest]
print("legs:", answer.item(), " depends on the query:", answer.requires_grad)

# %% [markdown]
# This works for any query, but it can't be trained. Change the query a little and the answer stays the same, until it crosses the midpoint between two keys and the answer jumps. Wherever the gradient exists it is zero, so nothing could learn to ask a better question. PyTorch doesn't even look for one, hence the False: `argmin` returns a whole number.
#
# ## A lookup that is soft
#
# Take a little of everything instead: score each key by how well it fits, turn the scores into shares that sum to 1, and mix the values by these shares. Dividing the scores by their sum won't do, because a negative score would get a negative share. We first make every score positive with a function that keeps their order, the exponential, and then divide. The result is the **softmax** of the $S$ scores:
#
# $$
# \operatorname{softmax}(s)_j = \frac{e^{s_j}}{\sum_{i=1}^{S} e^{s_i}}
# $$ (eq-softmax)
#
# The ratio of two shares, $e^{s_i - s_j}$, depends only on the difference of their scores. Adding one number to all scores therefore changes nothing, and the code subtracts the largest, because no float can hold an $e^{1000}$.


# %%
def softmax(scores):
    exponentials = (scores - scores.max()).exp()
    return exponentials / exponentials.sum()


s = torch.tensor([2.0, 0.5, -1.0], dtype=torch.float64)
print([round(share, 2) for share in softmax(s).tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(softmax(s), s.softmax(dim=-1))  # PyTorch's own
    torch.testing.assert_close(softmax(s), softmax(s + 1000))

# %% [markdown]
# For the animals, the score of a key is minus its distance to the query, divided by a temperature. The lower the temperature, the more of the answer comes from the nearest key.


# %%
def soft_lookup(query, temperature):
    shares = softmax(-(query - keys).abs() / temperature)
    return (shares * values).sum()


found = soft_lookup(query, temperature=5.0)
found.backward()
print(f"legs: {found.item():.2f}  gradient: {query.grad.item():.2f}")

# %% [markdown]
# At 12 centimeters the answer is 0.40 legs, which no animal has. But it has a slope, 0.14 legs per centimeter, and a slope is all that learning needs.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-soft-lookup", "caption": "What does a soft lookup return? The hard lookup (gray, dashed) is flat except for one jump, from the fish to the cat. The soft ones rise gradually, and come closer to it as the temperature falls. Three keys, at 5, 30 and 60 cm."}}
looks = {
    "hard": (RESIDUAL, [4, 3]),
    "soft, temperature 1": (SKY, [1, 0]),
    "soft, temperature 5": (AMBER, [8, 2]),
    "soft, temperature 15": (PLUM, [2, 2]),
}


def look_up(query, name):
    if name == "hard":
        return values[(query - keys).abs().argmin()]
    return soft_lookup(query, temperature=float(name.split()[-1]))


sizes = range(int(keys.max()) + 11)
records = [
    {"query": q, "found": round(y.item(), 3), "lookup": name}
    for name in looks
    for q in sizes
    for y in [look_up(torch.tensor(float(q)), name)]
]
x = alt.X(
    "query:Q",
    title="query: size in cm",
    axis=alt.Axis(values=[0, 5, *range(10, len(sizes), 10)]),
)
chart = curves(records, x, alt.Y("found:Q", title="value found: legs"), "lookup", looks)
show(
    chart,
    alt="The hard lookup jumps from 0 to 4 legs at 17.5 cm. The soft ones rise gradually around that place, the more steeply the lower the temperature.",
)

# %% [markdown]
# ## Queries, keys and values
#
# One number can't say what a word is, so from here on a word is a vector. A trained model learns these vectors. We make them up, to check each number by hand, and these five words and their numbers will be with us until the model is complete.

# %%
words = ["the", "black", "cat", "likes", "fish"]
features = ["noun", "verb", "adjective", "article", "living", "edible"]
X = torch.tensor(
    [
        [0.0, 0.0, 0.0, 2.0, 0.0, 0.0],  # the
        [0.0, 0.0, 2.0, 0.0, 0.0, 0.0],  # black
        [2.0, 0.0, 0.0, 0.0, 1.0, 0.0],  # cat
        [0.0, 2.0, 0.0, 0.0, 0.0, 0.0],  # likes
        [1.5, 0.5, 0.0, 0.0, 0.5, 1.0],  # fish: mostly a noun, but one may also fish
    ],
    dtype=torch.float64,
)

# %% [markdown]
# From its vector $x$ each word makes three others. Their colors mean the same wherever this book draws attention.
#
# - The <span style="color:#0072B2">**query**</span> says what the word looks for. A verb looks for a noun.
# - The <span style="color:#D55E00">**key**</span> says what the word can be found by. *Cat* is a noun.
# - The <span style="color:#009E73">**value**</span> says what the word hands over when it is found: something living.
#
# The map from $x$ to each of them is the simplest there is, a product with a matrix:
#
# $$
# q = x\,W^Q, \qquad k = x\,W^K, \qquad v = x\,W^V
# $$ (eq-projections)
#
# Queries and keys have the same width, $d_k$, since they will be compared; values may have another, $d_v$. Ours are 4 (noun, verb, adjective, article) and 3 (living, dark, edible).

# %%
W_Q = torch.tensor(
    [
        [0.0, 1.0, 0.5, 0.0],  # a noun looks for its verb, less for an adjective
        [1.5, 0.0, 0.0, 0.0],  # a verb for its nouns
        [1.0, 0.0, 0.0, 0.0],  # an adjective for its noun
        [1.0, 0.0, 0.5, 0.0],  # an article for its noun, and an adjective before it
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
    ],
    dtype=torch.float64,
)

# %% [markdown]
# *Likes* is a verb with a 2, so its query asks for nouns with $2 \cdot 1.5 = 3$. Keys are simpler: a word is found by its first four features. It hands over whether it is living, whether it is dark (as the adjective *black* is), and whether you can eat it.

# %%
W_K = torch.eye(6, 4, dtype=torch.float64)
W_V = torch.zeros(6, 3, dtype=torch.float64)
W_V[4, 0] = 1.0  # living to living
W_V[2, 1] = 0.5  # adjective to dark
W_V[5, 2] = 1.0  # edible to edible
Q, K, V = X @ W_Q, X @ W_K, X @ W_V

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-projections", "caption": "What does each word ask, what is it found by, and what does it hand over? The words (left) and their queries, keys and values. *Fish*, mostly a noun and a little a verb, asks for both, and both kinds of query find it."}}
maps = [
    heatmap(
        m,
        words if color == INK else [""] * len(words),
        names,
        titles=("", ""),
        limit=3,
        color=color,
        cell=26,
    ).properties(title=title)
    for m, names, color, title in [
        (X, features, INK, "words X"),
        (Q, features[:4], QUERY, "queries Q"),
        (K, features[:4], KEY, "keys K"),
        (V, ["living", "dark", "edible"], VALUE, "values V"),
    ]
]
show(
    alt.hconcat(*maps, spacing=10),
    alt="Four tables of five rows. The query of likes is noun 3, the key of cat noun 2, the value of cat living 1.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert (words, features) == (example.WORDS, example.FEATURES)
    assert torch.equal(X, example.X) and torch.equal(W_Q, example.W_Q)
    assert torch.equal(W_K, example.W_K) and torch.equal(W_V, example.W_V)

# %% [markdown]
# ### Why three vectors instead of one?
#
# Key and value differ because what makes a thing easy to find is not what you want from it. A library finds a book by its call number, but nobody borrows it to read that. Query and key differ because looking is not being looked at: *likes* looks for nouns and is itself a verb. If one vector did both jobs, the scores would be symmetric, since $q_i \cdot q_j = q_j \cdot q_i$. *The* could not look for *cat* unless *cat* looked for *the* with the same score.
#
# ## The dot product as a measure of fit
#
# Instead of a distance we now take a product. The **dot product** $q \cdot k = q_1 k_1 + \dots + q_{d_k} k_{d_k}$ grows with each column where both are large, and a column where either one is zero doesn't count.

# %%
for word, key in zip(words, K):
    print(f"likes · {word:6} = {(Q[3] * key).sum().item()}")

# %% [markdown]
# One such loop for each word gives 25 scores, and the loops together are a matrix product: the entry in row $i$ and column $j$ of $QK^\top$ is the dot product of query $i$ and key $j$.

# %%
scores = Q @ K.T
print(scores)

# %% tags=["remove-cell"]
if CHECKING:
    assert all(scores[i, j] == Q[i].dot(K[j]) for i in range(5) for j in range(5))
    assert (K @ K.T)[4, [4, 2]].tolist() == [
        2.5,
        3.0,
    ]  # fish, if its key were its query

# %% [markdown]
# Rows are queries and columns are keys, as in every matrix of this book. No score waits for another: for 500 words, one matrix product gives all 250,000.
#
# ## From scores to weights
#
# Two steps are left. A softmax turns each row of scores into weights, after all scores have been divided by $\sqrt{d_k}$, here $\sqrt 4 = 2$ ([why](#why-divide-by-the-square-root-of-) comes below). Then a second matrix product mixes the values. That is **scaled dot-product attention**, the paper's equation 1:
#
# $$
# \operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V
# $$ (eq-attention)


# %%
def attend(Q, K, V):
    scores = Q @ K.mT / math.sqrt(K.size(-1))  # .mT swaps the last two axes
    weights = scores.softmax(dim=-1)
    return weights @ V, weights


output, weights = attend(Q, K, V)
print("weights of likes", [round(w, 2) for w in weights[3].tolist()])
print("likes fetches   ", [round(x, 2) for x in output[3].tolist()])

# %% [markdown]
# By hand: the scores of *likes* are 0, 0, 6, 0 and 4.5; halved, 0, 0, 3, 0 and 2.25. The exponentials are 1, 1, 20.1, 1 and 9.5, and they sum to 32.6. *Cat* gets $20.1 / 32.6 = 0.62$, *fish* gets $9.5 / 32.6 = 0.29$, and each of the others 0.03. *Cat* hands over 0.617 of something living; *fish* is half as living, and adds 0.146. Together that is 0.76, as printed.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-attention-steps", "caption": "How is one output vector made? Choose the word that asks. Its query multiplies the rows of the keys (orange), and each column adds up to a score. Divided by 2, the scores go through softmax and become weights (gray). Each value is multiplied by its weight (green); the last column is the sum, the output."}}


def computation(i):
    mixed = weights[i] * V.T  # one column a word, one row a column of V
    mixed = torch.cat([mixed, mixed.sum(1, keepdim=True)], 1)
    asked = [f"{q:g} × {name}" for q, name in zip(Q[i], features)]
    rows = ["× living", "× dark", "× edible"]
    blank = [""] * len(words)
    stages = [
        heatmap(K.T, asked, words, titles=("query × key", ""), limit=3, color=KEY),
        heatmap([scores[i]], ["score"], blank, titles=("", ""), limit=9, color=KEY),
        heatmap(
            [scores[i] / K.size(-1) ** 0.5],
            ["÷ √d_k"],
            blank,
            titles=("", ""),
            limit=9,
            color=KEY,
        ),
        heatmap([weights[i]], ["weight"], blank, titles=("", "")),
        heatmap(
            mixed, rows, [*blank, "sum"], titles=("weight × value", ""), color=VALUE
        ),
    ]
    best = words[weights[i].argmax()]
    label = f"The query {words[i]} puts most weight, {weights[i].max():.2f}, on {best}."
    drawn = alt.vconcat(*stages, spacing=4)
    return drawn.resolve_scale(
        fillOpacity="independent", x="independent", y="independent"
    ), label


show_steps(
    {word: computation(i) for i, word in enumerate(words)}, "Which word asks?", start=3
)

# %% [markdown]
# *The* and *black* look for their noun, and both find *cat* first. *Cat* looks for a verb and, less urgently, an adjective; with one softmax it has to divide its weight between them, 0.54 for *likes* and 0.20 for *black*. [Multi-head attention](05_multi_head_attention.ipynb#why-several-heads) will let it ask the two questions separately.
#
# Real vectors are dense, and their columns have no names. Similar words have similar vectors and so make similar queries, which is how a model that has seen *cats like fish* can handle *dogs like meat*.
#
# ## Nobody has to write these
#
# We made up $W^Q$, $W^K$ and $W^V$. Can they be learned? Here is the smallest task that needs them: in sentences such as *the black cat likes fish*, each noun has to name the adjective. Every word gets a random vector, and the three matrices start as noise. Nothing says what a noun is, or where to look. (Two functions are folded below: `draw_sentences` draws such sentences from 14 words, and `watch` prints the loss and how much *cat* looks at *black*.)

# %%
random = torch.Generator().manual_seed(0)
vectors = torch.randn(14, 16, generator=random)  # of the words of the lexicon
learned = 0.1 * torch.randn(3, 16, 16, generator=random)  # W_Q, W_K, W_V
learned.requires_grad = True

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the lexicon, how sentences are drawn, and what is watched", "code_prompt_hide": "Hide the lexicon, how sentences are drawn, and what is watched"}
articles = ["the", "a", "this"]
adjectives = ["black", "white", "old", "small"]
nouns = ["cat", "dog", "bird", "fish"]
verbs = ["likes", "sees", "hears"]
kinds = [articles, adjectives, nouns, verbs, nouns]
lexicon = sorted({word for kind in kinds for word in kind})


def draw_sentences(count):
    columns = []
    for kind in kinds:
        drawn = torch.randint(len(kind), (count,), generator=random)
        columns.append(torch.tensor([lexicon.index(word) for word in kind])[drawn])
    return torch.stack(columns, dim=1)


watched = ["the", "black", "cat", "likes", "fish"]
ours = torch.tensor([[lexicon.index(word) for word in watched]])
maps = {}


def watch(step, loss):
    maps[step] = attend(*(vectors[ours] @ W for W in learned))[1][0].detach()
    print(f"step {step:3}: loss {loss.item():.2f}", end=", ")
    print(f"cat looks at black: {maps[step][2, 1]:.2f}")


# %% [markdown]
# Training is the usual loop. What comes back at the two nouns (positions 2 and 4, counted from 0) is compared with the vectors of all 14 words, and the adjective's, from position 1, should fit best:

# %% tags=["nbval-ignore-output"]
adam = torch.optim.Adam([learned], lr=0.01)
for step in range(201):
    tokens = draw_sentences(64)
    q, k, v = (vectors[tokens] @ W for W in learned)
    fits = attend(q, k, v)[0][:, [2, 4]] @ vectors.T
    adjective = tokens[:, 1:2].expand(-1, 2)
    loss = F.cross_entropy(fits.flatten(0, 1), adjective.flatten())
    if step in (0, 10, 200):
        watch(step, loss)
    adam.zero_grad()
    loss.backward()
    adam.step()

# %% tags=["remove-cell"]
if CHECKING:
    assert maps[0][2, 1] < 0.3 and maps[200][2, 1] > 0.9 and maps[200][4, 1] > 0.9

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-learned", "caption": "Can attention learn where to look? Weights of our five words at the start, after 10 updates and after 200. The rows of *cat* and *fish*, which have to name the adjective, move their weight onto *black*. The loss doesn't look at the other three words, so their rows may do as they like."}}
show_steps(
    {
        f"{step}": (
            heatmap(learned_map, watched, watched),
            f"After {step} updates, cat looks at black with {learned_map[2, 1]:.2f} "
            f"and fish with {learned_map[4, 1]:.2f}.",
        )
        for step, learned_map in maps.items()
    },
    "Updates",
    start=len(maps) - 1,
)

# %% [markdown]
# Two hundred updates, a few seconds, and *cat* asks for adjectives, *black* can be found as one, and what comes back is the right word. The gradient reached the query because the lookup is soft. Everything that a trained Transformer knows about where to look came about in this way, out of nothing but the loss.
#
# *Fish* looks at *black*, too, because we trained it to. But the fish isn't black. With two adjectives in a sentence, neither noun could tell which one is its own, because attention sees what the words are and not where they stand. [Chapter 8](08_positional_encoding.ipynb) tells it where each word stands.
#
# ## The code
#
# Not every key may be seen: some positions only fill up a short sentence, others hold words that the model has yet to write. A hidden key must get the weight zero while the others still sum to 1, so its score becomes minus infinity *before* the softmax. [Chapter 4](04_masks.ipynb#how-to-hide-a-key) has the details.
#
# **Exercise 1. Write it first** (★, 10 min). Extend `attend` by a fourth argument: a boolean mask that broadcasts to the scores, True where a query may attend, or None. The book has a [checker](E_checker.ipynb#the-parts-it-knows) that runs your function beside seven common mistakes, and says which one yours is:

# %%
from annotated_transformer import check

print(check("attention", lambda query, key, value, mask: attend(query, key, value)[0]))

# %% [markdown]
# Here is ours. Query, key and value may have any axes in front of the last two, such as one for the sentences of a batch. $T$ is the number of queries, $S$ the number of keys.

# %% tags=["export"]
# Boolean, True where a query may attend to a key; None hides nothing
Mask = Tensor | None


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
        dropout: rate at which the weights that mix the values are dropped.

    Returns the output (..., T, d_v) and the weights (..., T, S) before dropout; rows sum to 1. A
    query that may attend to no key gets NaN.
    """
    scores = query @ key.mT / math.sqrt(key.size(-1))
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ value, weights


# %% [markdown]
# The function has no parameters: all that is learned is in the matrices that made its arguments. PyTorch's own version, written for speed, agrees with it to six decimals.
#
# :::{margin}
# `dropout` is 0 unless asked for; [chapter 17](17_regularization.ipynb#what-dropout-does) explains it.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the comparison with PyTorch", "code_prompt_hide": "Hide the comparison with PyTorch"}
random = torch.Generator().manual_seed(1)
query, key, value = (
    torch.randn(2, 3, *shape, generator=random) for shape in [(5, 4), (7, 4), (7, 6)]
)
mask = torch.rand(2, 1, 5, 7, generator=random) > 0.3
mask[..., 0] = True  # every query may see at least one key
ours, ours_weights = attention(query, key, value, mask)
reference = F.scaled_dot_product_attention(query, key, value, mask)
print("output", tuple(ours.shape), " weights", tuple(ours_weights.shape))
print(f"largest difference to PyTorch's output: {(ours - reference).abs().max():.5f}")
print("largest weight on a hidden key:", ours_weights.masked_select(~mask).max().item())

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ours, reference)
    assert (ours - reference).abs().max() < 5e-7
    torch.testing.assert_close(attention(Q, K, V)[0], attend(Q, K, V)[0])

# %% [markdown]
# ### What is self-attention, and what is cross-attention?
#
# In **self-attention**, queries, keys and values all come from the same words, as with our five. In **cross-attention**, the queries come from the sentence that is being written, and keys and values from the one that is being translated. The function is the same.
#
# ## What attention can and cannot return
#
# The output is a weighted average of the values, and two things follow. First, no output lies outside the range of the values: attention can select and blend, but it can't invent. Anything new must come from the [feed-forward network](06_feed_forward.ipynb#what-attention-alone-cannot-do) that follows.
#
# Second, a query can't look at nothing. A word that needs nothing still has its whole weight to spend, and trained models learn to park it on a token whose value does no harm, often the period or the end of the sentence ([chapter 21](21_attention_maps.ipynb#why-does-everyone-look-at-s-attention-sinks) has more on such *attention sinks*).
#
# ## Why divide by the square root of $d_k$?
#
# Suppose the components of $q$ and $k$ are independent, with mean 0 and variance 1, as they roughly are before training. Each product $q_i k_i$ then has mean 0 and variance 1, too, and the dot product is a sum of $d_k$ of them. Variances add up:
#
# $$
# \operatorname{Var}(q \cdot k) = \sum_{i=1}^{d_k} \operatorname{Var}(q_i k_i) = d_k,
# \qquad \text{so the scores spread like } \sqrt{d_k}.
# $$ (eq-variance)


# %% tags=["hide-input"]
def random_scores(d_k, pairs=20_000):
    random = torch.Generator().manual_seed(d_k)
    q, k = torch.randn(2, pairs, d_k, generator=random, dtype=torch.float64)
    return (q * k).sum(-1)


for d_k in (4, 64, 512):
    spread = random_scores(d_k).std().item()
    print(
        f"d_k {d_k:3}   spread {spread:5.1f}   square root of d_k {math.sqrt(d_k):5.1f}"
    )

# %% tags=["remove-cell"]
if CHECKING:
    for d_k in (4, 64, 512):
        assert abs(random_scores(d_k).std().item() / math.sqrt(d_k) - 1) < 0.02

# %% [markdown]
# At $d_k = 64$, the paper's choice, scores of $\pm 8$ are normal. Softmax sees differences through an exponential: a lead of 1 means 2.7 times the weight, a lead of 8 means 2,981 times. So one key takes nearly everything. Dividing by $\sqrt{d_k}$ brings the spread back to 1 at every width.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scale", "caption": "How does a query divide its weight over eight random keys? Mean weights, largest first, at the width that you choose. At 64, the first key gets 0.36 if the scores are divided by the root (solid), and 0.88 if they stay as they are (dashed)."}}


def sorted_weights(d_k, scaled, rows=2000, keys=8):
    s = random_scores(d_k, rows * keys).view(rows, keys)
    w = (s / math.sqrt(d_k) if scaled else s).softmax(-1)
    return w.sort(-1, descending=True).values.mean(0)


looks = {"divided by √d_k": (SKY, [1, 0]), "as they are": (AMBER, [5, 3])}
x = alt.X("rank:O", title="key, by rank", axis=alt.Axis(labelAngle=0))
y = alt.Y("weight:Q", title="mean weight", scale=alt.Scale(domain=[0, 1]))
first, steps = {}, {}
for d_k in (1, 4, 16, 64, 256, 1024):
    records = []
    for name in looks:
        weights = sorted_weights(d_k, name.startswith("divided")).tolist()
        first[d_k, name] = round(weights[0], 2)
        for rank, w in enumerate(weights, 1):
            records.append({"rank": rank, "weight": round(w, 3), "scores": name})
    divided, plain = (first[d_k, name] for name in looks)
    steps[f"{d_k:,}"] = (
        curves(records, x, y, "scores", looks).properties(width=360),
        f"At width {d_k} the undivided scores give the first key {plain} of the weight, and the divided ones {divided}.",
    )
show_steps(steps, "Width of queries and keys:", start=3)

# %% tags=["remove-cell"]
if CHECKING:
    assert [first[64, name] for name in looks] == [0.36, 0.88]

# %% [markdown]
# ### An early decision is a problem
#
# A decision made before anything is learned is an accident, and hard to undo. Where one weight is nearly 1, the softmax is nearly flat: the hard lookup is back, and hardly any gradient reaches the query. At width 64 and without the division, four queries in ten receive less than a tenth of the average gradient, and at 512 seven in ten. [The last section](#second-reading-what-the-division-does-to-gradients) measures it.
#
# ## What it costs
#
# Each of $n$ positions looks at all $n$, so attention computes $n^2$ weights, and a sentence twice as long costs four times as much. For 25 words that is nothing, 625 numbers; for the 100,000 words of a novel it decides everything, and [chapter 12](12_why_self_attention.ipynb) weighs it against what other networks pay.

# %% [markdown]
# ## What to remember
#
# - Attention is a soft lookup: score each key, turn the scores into weights that sum to 1, mix the values.
# - The query says what a word looks for, the key what it can be found by, the value what it hands over. In a matrix of weights, each row is a query and each column a key.
# - The three matrices are learned. Gradients reach them because the lookup is soft.
# - Dot products spread like $\sqrt{d_k}$, and are divided by it so that no query decides by accident.
# - A hidden key gets the score minus infinity, before the softmax.
#
# Nothing so far keeps a word from looking at padding, or at its own answer. Both mistakes are easy to make, and hard to see.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** is [above](#the-code); this is its solution.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three lines more than `attend`. The order matters: scale, hide, softmax, mix.


def my_attention(query, key, value, mask):
    scores = query @ key.mT / query.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ value


print(check("attention", my_attention))

# %% [markdown]
# **2. By hand** (★, 5 min). A query $(1, 1)$ meets the keys $(2, 0)$ and $(0, 0)$ with the values 10 and 20. What does attention return, with two decimals? ($e^{\sqrt 2} = 4.11$.) And if you divide by $d_k$ instead of its root ($e^1 = 2.72$)?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The scores are 2 and 0. Divided by the root of 2 they are 1.41 and 0, so the weights are 4.11 / 5.11 and
# 1 / 5.11, and the result is (4.11 · 10 + 1 · 20) / 5.11 = 11.96. Divided by 2 they are 1 and 0, and the
# result is (27.2 + 20) / 3.72 = 12.69: flatter weights, nearer to the plain mean of 15.
two_keys, two_values = (
    torch.tensor([[2.0, 0.0], [0.0, 0.0]]),
    torch.tensor([[10.0], [20.0]]),
)
answer = attend(torch.tensor([[1.0, 1.0]]), two_keys, two_values)[0].item()
flatter = (torch.tensor([2.0, 0.0]) / 2).softmax(-1) @ two_values
print(f"{answer:.2f} {flatter.item():.2f}")

# %% [markdown]
# **3. Another order** (★, 5 min). What happens to the outputs if the five words come in another order? Shuffle the rows of $X$ and compare. What does attention know about word order?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The outputs come out shuffled in the same way, and are otherwise unchanged. Attention knows nothing of
# word order, so "the fish likes black cat" would mean the same; positional encoding (chapter 8) adds it.
order = torch.tensor([3, 1, 4, 0, 2])
shuffled = attend(X[order] @ W_Q, X[order] @ W_K, X[order] @ W_V)[0]
print("likes, now first:", [round(x, 2) for x in shuffled[0].tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(shuffled, output[order])

# %% [markdown]
# **4. The wrong axis in a decoder** (★★, 15 min). Hide the future with the mask `torch.ones(5, 5).bool().tril()`, but take the softmax along `dim=-2`. Change the last word only. Does what *cat* fetches change? It shouldn't.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It does. Each column is divided by a sum over all queries that may see the key, and later words are
# among them: when *fish* asks more loudly for an adjective, less of *black* is left for *cat*. The past changes
# with the future although the mask is right.
past = torch.ones(len(X), len(X)).bool().tril()
for last in (X[-1], 2 * X[-1]):
    q, k = (torch.cat([X[:-1], last[None]]) @ W for W in (W_Q, W_K))
    wrong = (q @ k.T / 2).masked_fill(~past, -math.inf).softmax(dim=-2)
    right = (q @ k.T / 2).masked_fill(~past, -math.inf).softmax(dim=-1)
    print(
        f"cat looks at black: wrong axis {wrong[2, 1]:.2f}, right axis {right[2, 1]:.2f}"
    )

# %% [markdown]
# **5. The older score** (★★, 30 min). **Additive attention** scores a key with a small network, $\tanh(q\,W_1 + k\,W_2)\,u^\top$ with a vector $u$. Write it for all pairs at once. Then draw everything at random, $u$ with variance 1 and the matrices with $1/d$, and measure the spread of the scores at $d = 4$, 64 and 512. Does the $\tanh$ keep it from growing?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It doesn't. Each of the d terms is bounded, but their sum still spreads like the root of d. What keeps the
# score in range is the size of u, which is learned. The cost is a tensor (T, S, d) with one tanh for each
# number in it, where the dot product needs one matrix product.


def additive_scores(query, key, W_1, W_2, u):
    return torch.tanh((query @ W_1).unsqueeze(-2) + (key @ W_2).unsqueeze(-3)) @ u


spreads = {}
for d in (4, 64, 512):
    random = torch.Generator().manual_seed(d)
    q, k = torch.randn(2, 100, d, generator=random)
    W_1, W_2 = torch.randn(2, d, d, generator=random) / math.sqrt(d)
    us = torch.randn(20, d, generator=random)
    scores_of_all = torch.stack([additive_scores(q, k, W_1, W_2, u) for u in us])
    spreads[d] = spread = scores_of_all.std().item()
    print(
        f"d {d:3}   spread {spread:5.1f}   over the root of d {spread / math.sqrt(d):.2f}"
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert all(0.5 < spreads[d] / math.sqrt(d) < 0.9 for d in spreads)

# %% [markdown]
# **6. The gradient by hand** (★★★, an hour; open). Let $G$ be the gradient of a loss with respect to the output. Derive the gradients with respect to $V$, the weights, the scores and $Q$, each in one line with matrices, and check them against `torch.autograd.grad`. Where do your lines show that a query with one weight near 1 gets hardly any gradient?

# %% [markdown]
# ## Second reading: what the division does to gradients
#
# :::{admonition} The derivative of softmax, and why a decided one learns nothing
# :class: dropdown
# The derivative of each weight with respect to each score, the *Jacobian* of softmax, is
#
# $$
# \frac{\partial w_i}{\partial s_j} = w_i\,(\delta_{ij} - w_j),
# $$ (eq-softmax-slope)
#
# where $\delta_{ij}$ is 1 if $i = j$ and else 0. When one weight is 1 and the others are 0, every entry of this matrix is zero. Nothing flows back to the scores. With the scores 2, 0.5 and $-1$, the largest entry is 0.17; with four times these scores it is 0.0025. The cell below prints it.
# :::


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the derivative in code", "code_prompt_hide": "Hide the derivative in code"}
def jacobian(scores):
    w = softmax(scores)
    return torch.diag(w) - torch.outer(w, w)


for factor in (1, 4, 16):
    print(
        f"scores times {factor:2}: largest derivative {jacobian(factor * s).max().item():.4f}"
    )

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(
        jacobian(s), torch.func.jacrev(lambda x: x.softmax(-1))(s)
    )

# %% [markdown]
# :::{admonition} How much gradient reaches a query, measured
# :class: dropdown
# The paper suspects that large products push the softmax to where its gradients are extremely small. To measure it, we draw 4,000 queries with eight keys each, send a random gradient into the weights, and see how much arrives at each query.
#
# The division also multiplies every gradient that passes back through it, by $1/8$ at width 64. Remove it, and the average gradient at the query is three times *larger*. The trouble is the spread: four queries in ten get almost nothing, because their softmax has already decided, while others get far too much.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show the measurement", "code_prompt_hide": "Hide the measurement", "figure": {"name": "fig-query-gradient", "caption": "How much gradient reaches a query? Median (line) and the middle 80% (band, from the 10th to the 90th percentile) of 4,000 random queries over eight keys. Divided by the root, median and band are level from width 16 on. As they are, the band opens: from width 64 on, one query in ten gets more than 3, ten times the median on the left, and from 256 on the median query gets next to nothing."}}


def query_gradients(d_k, scaled, queries=4000, keys=8):
    random = torch.Generator().manual_seed(d_k)
    q, up = (torch.randn(queries, 1, n, generator=random) for n in (d_k, keys))
    k = torch.randn(queries, keys, d_k, generator=random)
    scores = q.requires_grad_() @ k.mT / (math.sqrt(d_k) if scaled else 1)
    (scores.softmax(-1) * up).sum().backward()
    return q.grad.norm(dim=-1).flatten()


records, starved, average = [], {}, {}
for name in looks:
    for d_k in (1, 4, 16, 64, 256, 512):
        sizes = query_gradients(d_k, name.startswith("divided"))
        low, middle, high = sizes.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
        starved[d_k, name] = (sizes < 0.1 * sizes.mean()).float().mean().item()
        average[d_k, name] = sizes.mean().item()
        records.append(
            {"d_k": d_k, "low": low, "size": middle, "high": high, "scores": name}
        )
panels = []
for name in looks:
    own = [
        {**r, **{k: round(r[k], 3) for k in ("low", "size", "high")}} for r in records
    ]
    base = alt.Chart(alt.Data(values=[r for r in own if r["scores"] == name])).encode(
        x=alt.X(
            "d_k:Q",
            title="width d_k",
            scale=alt.Scale(type="log", base=2, domain=[1, 512]),
            axis=alt.Axis(values=[1, 4, 16, 64, 512]),
        )
    )
    y = {"title": "gradient at the query", "scale": alt.Scale(domain=[0, 4])}
    color, _ = looks[name]
    band = base.mark_area(color=color, opacity=0.25).encode(
        y=alt.Y("low:Q", **y), y2="high:Q"
    )
    line = base.mark_line(color=color).encode(y=alt.Y("size:Q", **y))
    panels.append((band + line).properties(title=name, width=160, height=180))
for (d_k, name), share in starved.items():
    if d_k in (64, 512):
        print(
            f"width {d_k:3}, {name:15}: mean {average[d_k, name]:.2f}, starved {share:.0%}"
        )
show(
    alt.hconcat(*panels, spacing=16),
    alt="With the division, median and band are level from width 16. Without it, the median falls to zero beyond width 64 while the upper edge of the band rises above 3.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        abs(starved[64, "as they are"] - 0.4) < 0.03
        and starved[64, "divided by √d_k"] < 0.01
    )
    assert abs(starved[512, "as they are"] - 0.7) < 0.03
    assert 2.5 < average[64, "as they are"] / average[64, "divided by √d_k"] < 3.5

# %% [markdown]
# :::{admonition} Is the division needed?
# :class: dropdown
# Not strictly, since a model could learn smaller queries. T5 has no division, and starts with query weights smaller by $\sqrt{d_k}$. The scale changes where training starts, not what attention can compute.
# :::
#
# ### The axis of the softmax
#
# :::{admonition} Rows sum to 1, columns don't
# :class: dropdown
# The softmax takes the last axis: each *query* shares out a total of 1. With `dim=-2`, each *key* would hand out a total of 1, however many ask for it. All shapes stay the same, so only the numbers can tell you, and the check takes one line: each row of weights sums to 1. The columns don't: as a key, *cat* collects 1.80 in our example, because four of the five words ask for a noun. In a decoder the wrong axis does more harm (exercise 4). Where a text writes $V \operatorname{softmax}(K^\top Q / \sqrt{d_k})$, words are columns, and the [formula is transposed](../book/notation.md#conventions).
# :::
#
# ### The dot product as a drawing
#
# :::{admonition} A query, and four keys around it
# :class: dropdown
# In geometry, the dot product is the query's length, times the key's, times the cosine of the angle between them, so a key scores high by pointing where the query points or by being long. In {numref}`fig-dot-product`, *c* points as *a* does and is four times as long, so it wins.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the drawing", "code_prompt_hide": "Hide the drawing", "figure": {"name": "fig-dot-product", "caption": "Which keys fit a query? The query (blue, from the origin) and four keys (orange) of width 2. Keys on the same gray line have the same score, printed at its end. *b* is as long as *a* but points elsewhere, so it scores less. *c* points as *a* does and is four times as long, so it wins. *d* points away."}}
q = (1.5, 1.0)
key_points = {"a": (0.6, 0.4), "b": (0.6, -0.4), "c": (2.4, 1.6), "d": (-1.2, 0.0)}
fits = {name: round(q[0] * x + q[1] * y, 2) for name, (x, y) in key_points.items()}
ends = [
    {"x": (s - q[1] * y) / q[0], "y": y, "score": s}
    for s in range(-2, 8, 2)
    for y in (-2, 2.4)
]
points = [
    {"x": x, "y": y, "name": f"{n}: {fits[n]:g}".replace("-", "−")}
    for n, (x, y) in key_points.items()
]
arrow = [{"x": 0, "y": 0}, {"x": q[0], "y": q[1]}]


def layer(records, **encoding):
    no_ticks = alt.Axis(values=[], domain=False)
    x = alt.X(
        "x:Q", title="first component", scale=alt.Scale(domain=[-3, 4]), axis=no_ticks
    )
    y = alt.Y(
        "y:Q",
        title="second component",
        scale=alt.Scale(domain=[-2, 2.6]),
        axis=no_ticks,
    )
    return alt.Chart(alt.Data(values=records)).encode(x=x, y=y, **encoding)


tilt = 360 - math.degrees(math.atan2(q[1], q[0]))
head = {
    "shape": "triangle-right",
    "angle": tilt,
    "filled": True,
    "opacity": 1,
    "size": 160,
}
chart = alt.layer(
    layer(ends, detail="score:Q").mark_line(
        strokeWidth=1, opacity=0.5, clip=True, color=RESIDUAL
    ),
    layer(ends[1::2], text="score:Q").mark_text(dy=-7, color=RESIDUAL),
    layer(arrow).mark_line(color=QUERY, strokeWidth=3),
    layer(arrow[1:]).mark_point(color=QUERY, **head),
    layer(arrow[1:]).mark_text(text="query", color=QUERY, dx=24, dy=10, fontSize=13),
    layer(points).mark_point(color=KEY, filled=True, opacity=1, size=90),
    layer(points, text="name:N").mark_text(
        color=KEY, align="right", dx=-9, dy=-11, fontSize=13
    ),
)
show(
    chart.properties(width=400, height=276),
    alt="A query arrow and four keys. Key c, in the direction of the query and far out, has the highest score.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert fits["c"] == 4 * fits["a"] and fits["a"] > fits["b"] > 0 > fits["d"]

# %% [markdown]
# ## Sources
#
# Equation 1 and the reason for the scale are from section 3.2.1 of {cite:t}`vaswani2017attention`. Attention in translation, with the additive score, is from {cite:t}`bahdanau2015neural`; {cite:t}`luong2015effective` score with dot products.
