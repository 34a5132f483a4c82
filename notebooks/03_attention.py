# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Attention
#
# **Attention** lets each word of a sentence ask all the others, and hands it a blend of what they hold, weighted by how well each one fits (section 3.2.1 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("attention")

# %% tags=["export", "hide-input"]
import math

import torch
from torch import Tensor, nn

# %% [markdown]
# Read *the black cat likes fish* and stop at `likes`. You need to know who likes and what is liked, so the verb has to fetch something from `cat` and from `fish`, and hardly anything from `the`. In the next sentence it will be other words, so fixed wiring can't do it.
#
# Before you look at the figure: if `likes` had a total of 1 to spend on the five words, itself included, how would you divide it?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-attention", "caption": "What does `likes` fetch, and from whom? Its query (blue) asks for nouns. Each word can be found by its key (orange); the better the key fits, the larger the weight on the arc. What comes back is the sum of the values (green), each times its weight. Words and matrices are made up; this chapter computes all the rest."}}
import altair as alt

from book import example
from book.figures import (
    AMBER,
    INK,
    KEY,
    QUERY,
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
# `likes` looks for nouns. `cat` is one and `fish` mostly is, so `likes` takes 0.62 of what `cat` hands over and 0.29 of what `fish` does. It ends up knowing that something living is involved, and something edible. But why a blend, instead of the one word that fits best? And who decides what a word asks for?
#
# ## A lookup that is soft
#
# You know a lookup that works with keys and values: Python's dictionary. It demands a key that is *equal*, and we want the one that fits *best*. Suppose that the keys are the sizes of animals in centimeters, their values are numbers of legs, and a query gets the value of the nearest key. This can't be trained, because the answer stays the same until the query passes the middle between two keys, and there it jumps. Everywhere else the gradient is zero, so nothing can learn to ask a better question.
#
# Take a little of everything instead: score each key by how well it fits, turn the scores into shares that sum to 1, and mix the values by these shares. Dividing the scores by their sum won't do, because a negative score would get a negative share. So we first make every score positive with a function that keeps their order, the exponential, and then divide. The result is the **softmax** of the $S$ scores:
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


# %% tags=["remove-cell"]
if CHECKING:
    s = torch.tensor([2.0, 0.5, -1.0], dtype=torch.float64)
    torch.testing.assert_close(softmax(s), s.softmax(dim=-1))  # PyTorch's own
    torch.testing.assert_close(softmax(s), softmax(s + 1000))

# %% [markdown]
# For the animals, let the score of a key be minus its distance to the query, divided by 5. What does an animal of 12 cm get, from a fish of 5 cm, a cat of 30 cm and a dog of 60 cm?

# %%
sizes = torch.tensor([5.0, 30.0, 60.0], dtype=torch.float64)  # a fish, a cat, a dog
legs = torch.tensor([0.0, 4.0, 4.0], dtype=torch.float64)
size = torch.tensor(12.0, dtype=torch.float64, requires_grad=True)

found = (softmax(-(size - sizes).abs() / 5) * legs).sum()
found.backward()
print(f"legs: {found.item():.2f}  gradient: {size.grad.item():.2f}")

# %% [markdown]
# The answer is 0.40 legs, which no animal has. But it has a slope, 0.14 legs per centimeter, and a slope is all that learning needs.
#
# ## Queries, keys and values
#
# One number can't say what a word is, so from here on a word is a vector. A trained model learns these vectors. We make them up, so that you can check each number by hand, and keep them until the model is complete.

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
# - The <span style="color:#D55E00">**key**</span> says what the word can be found by. `cat` is a noun.
# - The <span style="color:#009E73">**value**</span> says what the word hands over when it is found: something living.
#
# Each is a product of $x$ with a matrix:
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
# `likes` is a verb with a 2, so its query asks for nouns with $2 \cdot 1.5 = 3$. Keys are simpler: a word is found by its first four features. It hands over whether it is living, whether it is dark (as the adjective `black` is), and whether you can eat it.

# %%
W_K = torch.eye(6, 4, dtype=torch.float64)
W_V = torch.zeros(6, 3, dtype=torch.float64)
W_V[4, 0] = 1.0  # living to living
W_V[2, 1] = 0.5  # adjective to dark
W_V[5, 2] = 1.0  # edible to edible
Q, K, V = X @ W_Q, X @ W_K, X @ W_V

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-projections", "caption": "What does each word ask, what is it found by, and what does it hand over? The words $X$ and their queries, keys and values. `fish`, mostly a noun and a little a verb, asks for both, and both kinds of query find it."}}
look = {"titles": ("", ""), "limit": 3, "cell": 24}
maps = [
    heatmap(m, words, names, color=color, **look).properties(title=title)
    for m, names, color, title in [
        (X, features, INK, "words X"),
        (Q, features[:4], QUERY, "queries Q"),
        (K, features[:4], KEY, "keys K"),
        (V, ["living", "dark", "edible"], VALUE, "values V"),
    ]
]
show(
    *maps,
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
# Key and value differ because what makes a thing easy to find is not what you want from it. A library finds a book by its call number, but nobody borrows it to read that. Query and key differ because what a word looks for is not what it can be found by: `likes` looks for nouns and is itself a verb. If one vector did both jobs, the scores would be symmetric, since $q_i \cdot q_j = q_j \cdot q_i$. So `the` could not look for `cat` unless `cat` looked for `the` with the same score.
#
# ## The dot product as a measure of fit
#
# Instead of a distance we now take a product. The **dot product** $q \cdot k = q_1 k_1 + \dots + q_{d_k} k_{d_k}$ grows with each column where both are large, and a column where either one is zero doesn't count. `likes` asks for nouns with a 3 and `cat` is a noun with a 2, so their score is 6. A matrix product gives all 25 scores at once: the entry in row $i$ and column $j$ of $QK^\top$ is the dot product of query $i$ and key $j$.

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
# Rows are queries and columns are keys, as in every matrix of scores or weights in this book. No score waits for another: for 500 words, one matrix product gives all 250,000.
#
# ## Why divide by the square root of $d_k$?
#
# Before the scores go into the softmax, they have to be made smaller. Suppose the components of $q$ and $k$ are independent, with mean 0 and variance 1, as they roughly are before training. Each product $q_i k_i$ then has mean 0 and variance 1, too, and the dot product is a sum of $d_k$ of them. Variances add up:
#
# $$
# \operatorname{Var}(q \cdot k) = \sum_{i=1}^{d_k} \operatorname{Var}(q_i k_i) = d_k,
# \qquad \text{so the scores spread like } \sqrt{d_k}.
# $$ (eq-variance)

# %%
random = torch.Generator().manual_seed(0)
for d_k in (4, 64, 512):
    q, k = torch.randn(2, 20_000, d_k, generator=random, dtype=torch.float64)
    spread = (q * k).sum(dim=-1).std().item()
    print(f"d_k {d_k:3}   spread {spread:5.1f}   root of d_k {math.sqrt(d_k):5.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(spread / math.sqrt(512) - 1) < 0.02

# %% [markdown]
# At $d_k = 64$, the paper's choice, scores of $\pm 8$ are normal. Softmax sees differences through an exponential: a lead of 1 means 2.7 times the weight, a lead of 8 means 2,981 times. So one key takes most of the weight ({numref}`fig-scale`) before anything has been learned. That decision is an accident, and it is hard to undo: once one weight is nearly 1, a change of the scores hardly changes the weights, and the hard lookup is back. Dividing by $\sqrt{d_k}$ brings the spread back to 1 at every width.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scale", "caption": "How does a query divide its weight over eight random keys? Mean weights, largest first, at the width that you choose. At 64, the first key gets 0.36 if the scores are divided by the root (solid), and 0.88 if they stay as they are (dashed)."}}


def random_scores(d_k, pairs):
    random = torch.Generator().manual_seed(d_k)
    q, k = torch.randn(2, pairs, d_k, generator=random, dtype=torch.float64)
    return (q * k).sum(-1)


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
        ranked = sorted_weights(d_k, name.startswith("divided")).tolist()
        first[d_k, name] = round(ranked[0], 2)
        for rank, w in enumerate(ranked, 1):
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
# ## From scores to weights
#
# The scores are divided by $\sqrt{d_k}$, here $\sqrt 4 = 2$, a softmax turns each row of them into weights, and a second matrix product mixes the values. That is **scaled dot-product attention**, the paper's equation 1:
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
# For `likes`, the exponentials of the halved scores, 1, 1, 20.1, 1 and 9.5, sum to 32.6, so `cat` gets $20.1 / 32.6 = 0.62$.

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
# ## Nobody has to write these
#
# We made up $W^Q$, $W^K$ and $W^V$. Can they be learned? Take sentences such as *the black cat likes fish*, in which each noun has to name the adjective. Every word gets a random vector, and the three matrices start as noise. Nothing says what a noun is, or where to look.

# %%
articles = ["the", "a", "this"]
adjectives = ["black", "white", "old", "small"]
nouns = ["cat", "dog", "bird", "fish"]
verbs = ["likes", "sees", "hears"]
kinds = [articles, adjectives, nouns, verbs, nouns]
lexicon = sorted({word for kind in kinds for word in kind})  # 14 words


def numbers(some_words):
    return torch.tensor([lexicon.index(word) for word in some_words])


def draw_sentences(count):
    columns = []
    for kind in kinds:
        drawn = torch.randint(len(kind), (count,), generator=random)
        columns.append(numbers(kind)[drawn])
    return torch.stack(columns, dim=1)


vectors = torch.randn(len(lexicon), 16, generator=random)
learned = 0.1 * torch.randn(3, 16, 16, generator=random)  # W_Q, W_K, W_V
learned.requires_grad = True

# %% [markdown]
# What comes back at the two nouns (positions 2 and 4, counted from 0) is compared with the vectors of all 14 words, and the adjective's, from position 1, should fit best. Three times on the way we keep the weights of our own sentence.

# %% tags=["nbval-ignore-output"]
adam = torch.optim.Adam([learned], lr=0.01)
maps = {}
for step in range(201):
    tokens = draw_sentences(64)
    q, k, v = (vectors[tokens] @ W for W in learned)
    fits = attend(q, k, v)[0][:, [2, 4]] @ vectors.T
    # Classes on axis 1; both nouns name word 1
    loss = nn.functional.cross_entropy(fits.mT, tokens[:, [1, 1]])
    if step in (0, 10, 200):
        q, k, v = (vectors[numbers(words)] @ W for W in learned)
        maps[step] = attend(q, k, v)[1].detach()
        print(f"step {step:3}: loss {loss.item():.2f}")
    adam.zero_grad()
    loss.backward()
    adam.step()

# %% tags=["remove-cell"]
if CHECKING:
    assert maps[0][2, 1] < 0.3 and maps[200][2, 1] > 0.9 and maps[200][4, 1] > 0.9

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-learned", "caption": "Can attention learn where to look? Weights of our five words at the start, after 10 updates and after 200. The rows of `cat` and `fish`, which have to name the adjective, move their weight onto `black`. The loss doesn't look at the other three words, so their rows may be anything."}}
show_steps(
    {
        f"{step}": (
            heatmap(learned_map, words, words),
            f"After {step} updates, cat looks at black with {learned_map[2, 1]:.2f} "
            f"and fish with {learned_map[4, 1]:.2f}.",
        )
        for step, learned_map in maps.items()
    },
    "Updates",
    start=len(maps) - 1,
)

# %% [markdown]
# After two hundred updates `cat` asks for adjectives, `black` can be found as one, and what comes back is the right word. The gradient reached the query because the lookup is soft. Everything that a trained Transformer knows about where to look came about in this way, out of nothing but the loss.
#
# `fish` looks at `black`, too, because we trained it to. But the fish isn't black. With two adjectives in a sentence, neither noun could tell which one is its own, because attention sees what the words are and not where they stand. That is the job of [positions](08_positional_encoding.ipynb).
#
# ## What is self-attention, and what is cross-attention?
#
# In **self-attention**, queries, keys and values all come from the same words, as with our five. In **cross-attention**, the queries come from the sentence that is being written, and keys and values from the one that is being translated. The formula is the same: $T$ queries meet $S$ keys, and the weights are a matrix of $T \times S$.
#
# ## The code
#
# Before `attend` can serve in a model, it has to hide some keys: those of tokens that only fill up a short sentence, and in a decoder those of words that it has yet to write. A boolean **mask** says which keys are open to which query. A hidden key must get the weight 0 while the others still sum to 1, so its score becomes minus infinity *before* the softmax, because $e^{-\infty} = 0$. The [next chapter](04_masks.ipynb) makes such masks.
#
# **Exercise 1. Write it first** (★, 10 min). Extend `attend` by a fourth argument: a boolean mask that broadcasts to the scores, True where a query may attend, or None. Then `check("attention", yours)`, from `annotated_transformer`, tells you whether it is right, and if not, which of seven common mistakes it makes.
#
# Here is ours:

# %% tags=["export"]
# Boolean, True where a query may attend to a key; None hides nothing
Mask = Tensor | None


# %% tags=["export"]
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask = None,
    dropout: nn.Module = nn.Identity(),
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, equation 1 of the paper (section 3.2.1).

    Args:
        query: (..., T, d_k), what each position looks for.
        key: (..., S, d_k), what each position is found by.
        value: (..., S, d_v), what each position hands over.
        mask: broadcastable to (..., T, S).
        dropout: is applied to the weights that mix the values.

    Returns the output (..., T, d_v) and the weights (..., T, S) before dropout; rows sum to 1, but
    for a query that may attend to no key: it gets zeros.
    """
    scores = query @ key.mT / math.sqrt(key.size(-1))
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = torch.where(mask, weights, 0)  # also where no key is open
    return dropout(weights) @ value, weights


# %% [markdown]
# The second `where` is for a query whose keys are all hidden: there the softmax divides zero by zero and returns NaN. The function has no parameters, because all that is learned is in the matrices that made its arguments.
#
# :::{margin}
# `dropout` does nothing unless a module for it is passed; [regularization](17_regularization.ipynb#what-dropout-does) explains it.
# :::
#
# The reference is PyTorch's own version:

# %%
query = torch.randn(2, 3, 5, 4, generator=random)  # (2, 3) are axes in front
key = torch.randn(2, 3, 7, 4, generator=random)
value = torch.randn(2, 3, 7, 6, generator=random)
mask = torch.rand(2, 1, 5, 7, generator=random) > 0.3
ours, ours_weights = attention(query, key, value, mask)
reference = nn.functional.scaled_dot_product_attention(query, key, value, mask)
print("output", tuple(ours.shape), " weights", tuple(ours_weights.shape))
print(f"largest difference to PyTorch's output: {(ours - reference).abs().max():.5f}")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ours, reference)
    assert (ours - reference).abs().max() < 2e-6
    assert not ours_weights.masked_select(~mask).any()
    torch.testing.assert_close(attention(Q, K, V)[0], attend(Q, K, V)[0])

# %% [markdown]
# ## What attention can and cannot return
#
# The output is a weighted average of the values, so it never lies outside their range. Attention can make a word's value count for more or less in this average, but it can't change what the value says. New facts are left to the [feed-forward network](06_feed_forward.ipynb).
#
# Nor can a query look at nothing, unless a mask hides every key from it. A word that needs nothing still has its whole weight to spend, and trained models park it where it does little harm, often on [a token that is always there](21_attention_maps.ipynb#why-does-everyone-look-at-s-attention-sinks).
#
# ## What to remember
#
# - Attention is a soft lookup: score each key, turn the scores into weights that sum to 1, mix the values.
# - The query says what a word looks for, the key what it can be found by, the value what it hands over.
# - The three matrices are learned. Gradients reach them because the lookup is soft.
# - Dot products spread like $\sqrt{d_k}$, and are divided by it so that no query decides by accident.
#
# ## Exercises
#
# **1. Write it first** is [above](#the-code); the code below it is the solution.
#
# **2. By hand** (★, 5 min). A query $(1, 1)$ meets the keys $(2, 0)$ and $(0, 0)$ with the values 10 and 20. What does attention return, with two decimals? ($e^{\sqrt 2} = 4.11$.) And if you divide by $d_k$ instead of its root ($e^1 = 2.72$)?
#
# :::{admonition} Solution 2
# :class: dropdown
# The scores are 2 and 0. Divided by $\sqrt 2$ they are 1.41 and 0, so the weights are $4.11 / 5.11$ and $1 / 5.11$, and the result is $(4.11 \cdot 10 + 1 \cdot 20) / 5.11 = 11.96$. Divided by 2 they are 1 and 0, and the result is $(27.2 + 20) / 3.72 = 12.69$. The weights are flatter, so it lies nearer to 15, the plain mean.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    two_keys = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    two_values = torch.tensor([[10.0], [20.0]])
    blend = attend(torch.tensor([[1.0, 1.0]]), two_keys, two_values)[0].item()
    flatter = (torch.tensor([2.0, 0.0]) / 2).softmax(-1) @ two_values
    assert round(blend, 2) == 11.96 and round(flatter.item(), 2) == 12.69

# %% [markdown]
# **3. Ask more loudly** (★★, 10 min). `cat` looks at `black` with 0.20 ({numref}`fig-attention-steps`). Which number of `W_Q` makes it ask for adjectives, and what would that number have to be for `black` to get half of the weight? What is left for `likes`? ($e^{0.5} = 1.65$, $e^2 = 7.39$, $\ln 11.04 = 2.40$.)
#
# :::{admonition} Solution 3
# :class: dropdown
# It is the 0.5 in the first row; call it $a$. `cat` is a noun with a 2, so it asks for adjectives with $2a$, and `black`, whose key is 2, scores $4a$; halved, $2a$. The exponentials of the other four words stay as they are: 1 for `the`, 1 for `cat`, 7.39 for `likes` and 1.65 for `fish`, together 11.04. Half of the weight means $e^{2a} = 11.04$, so $a = 1.20$. Then `likes` gets $7.39 / 22.08 = 0.33$ where it had 0.54, because one softmax has to pay for both questions.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    louder = W_Q.clone()
    louder[0, 2] = math.log(11.04) / 2
    row = attend(X @ louder, K, V)[1][2]
    assert abs(row[1] - 0.5) < 0.001 and round(row[3].item(), 2) == 0.33
    assert [round(w, 2) for w in weights[2, [1, 3]].tolist()] == [0.20, 0.54]

# %% [markdown]
# ## Further
#
# ### An early decision is a problem
#
# The derivative of a weight with respect to a score is
#
# $$
# \frac{\partial w_i}{\partial s_j} = w_i\,(\delta_{ij} - w_j),
# $$ (eq-softmax-slope)
#
# where $\delta_{ij}$ is 1 if $i = j$ and else 0. When one weight is 1 and the others are 0, all of these are zero, and nothing flows back to the scores.
#
# The paper suspects that large products push the softmax to such places. On 4,000 random queries with eight keys each we measured how many receive less than a tenth of the average gradient. Without the division it is four in ten at width 64, and seven in ten at width 512. With it, fewer than one in a hundred. The average itself is *larger* without the division, about three times at width 64, because other queries get far too much.
#
# A model could learn smaller queries instead. T5 has no division, and starts with query weights that are smaller by $\sqrt{d_k}$. So the scale changes where training starts, not what attention can compute.

# %% tags=["remove-cell"]
if CHECKING:

    def jacobian(scores):
        w = softmax(scores)
        return torch.diag(w) - torch.outer(w, w)

    slope = torch.func.jacrev(lambda x: x.softmax(-1))(s)
    torch.testing.assert_close(jacobian(s), slope)

    def query_gradients(d_k, divisor, queries=4000, keys=8):
        random = torch.Generator().manual_seed(d_k)
        q, up = (torch.randn(queries, 1, n, generator=random) for n in (d_k, keys))
        k = torch.randn(queries, keys, d_k, generator=random)
        scores = q.requires_grad_() @ k.mT / divisor
        (scores.softmax(-1) * up).sum().backward()
        return q.grad.norm(dim=-1).flatten()

    def starved(sizes):
        return (sizes < 0.1 * sizes.mean()).float().mean()

    plain, divided = query_gradients(64, 1), query_gradients(64, 8)
    assert abs(starved(plain) - 0.4) < 0.03 and starved(divided) < 0.01
    assert abs(starved(query_gradients(512, 1)) - 0.7) < 0.03
    assert starved(query_gradients(512, math.sqrt(512))) < 0.01
    assert 2.5 < plain.mean() / divided.mean() < 3.5

# %% [markdown]
# ### The axis of the softmax
#
# The softmax takes the last axis: each *query* shares out a total of 1. With `dim=-2`, each *key* would hand out a total of 1, however many ask for it. All shapes stay the same, so check that each row of weights sums to 1.
#
# In a decoder the wrong axis does more harm. Each column is divided by a sum over all queries, later ones included, so the future changes the past although the mask is right.

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(weights.sum(-1), torch.ones(5).double())
    assert round(weights[:, 2].sum().item(), 2) == 1.80
    past = torch.ones(5, 5).bool().tril()
    changed = X.clone()
    changed[4] *= 2  # fish asks more loudly
    for axis, moves in ((-1, False), (-2, True)):
        shared = [
            (x @ W_Q @ (x @ W_K).T / 2).masked_fill(~past, -math.inf).softmax(axis)
            for x in (X, changed)
        ]
        assert ((shared[0] - shared[1])[2].abs().max() > 0.01) == moves

# %% [markdown]
# ## Sources
#
# Equation 1 and the reason for the scale are from section 3.2.1 of {cite:t}`vaswani2017attention`. {cite:t}`luong2015effective` already scored with dot products in translation.
