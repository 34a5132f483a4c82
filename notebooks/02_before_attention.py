# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Before attention
#
# Before 2017, networks for translation carried information from word to word, through a chain of states or through layers that each see a few neighboring words. This chapter shows what that cost, and how attention first came in as a helper (sections 1 and 2 of the paper).
#
# Suppose you had to read a sentence of fifty words once, through a slit that shows one word at a time, and then translate it from memory, with a memory of fixed size. Which words would you get wrong? The first neural translators worked like that (top of the figure), and attention was invented as the remedy.

# %% tags=["hide-input"]
import math
from statistics import mean

import altair as alt
import torch
from torch import nn

from benchmarks.common import read_log
from book.example import WORDS
from book.figures import AMBER, INK, PLUM, SKY, arrow, box, curves, show, show_drawing
from book.figures import words_at

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-before", "caption": "How does what one word knows reach another? Top: a recurrent encoder hands over its last state and nothing else. Middle: with attention, all states are open to the decoder, but they are still made one after another. Bottom: in the Transformer every word looks at every word directly and at the same time; the arrows show what `likes` looks at."}}
places = [34, 102, 170, 238, 306]
drawing = []
for y, title in (
    (60, "one vector"),
    (200, "attention on top"),
    (340, "attention alone"),
):
    drawing.append(words_at(8, y - 46, title, 14, INK, "start"))
    for x, word, number in zip(places, WORDS, "12345"):
        drawing += [words_at(x, y + 42, word, 14), box(x - 22, y - 15, 44, 30, "")]
        letter = "h" if y < 340 else "x"
        drawing += [
            words_at(x - 3, y + 5, letter, 14),
            words_at(x + 4, y + 9, number, 11),
        ]
    if y < 340:  # the chain
        drawing += [arrow([(x + 22, y), (x + 46, y)], PLUM) for x in places[:-1]]
        drawing.append(box(362, y - 19, 70, 38, "decoder"))
drawing += [arrow([(328, 60), (362, 60)]), words_at(344, 50, "c", 14)]
drawing += [words_at(350, 164, "c", 14), words_at(355, 168, "i", 11)]
for x in places:
    drawing.append(arrow([(x, 185), (x, 172), (397, 172), (397, 181)], SKY))
    if x != 238:
        side = 8 if x > 238 else -8
        drawing.append(
            arrow([(x, 325), (x, 312), (238 + side, 312), (238 + side, 325)], SKY)
        )
show_drawing(
    drawing,
    436,
    390,
    alt="Three rows of five words. In the first, one arrow leads from the last word to the decoder; in the second, arrows from all five; in the third there is no chain, and arrows lead from the other four words to likes.",
)

# %% [markdown]
# ## One vector for everything
#
# A **recurrent network** reads one word after the other. Each time, it mixes its **hidden state** $h$ with the next word, and the last state has to stand for the whole sentence:
#
# $$
# h_t = f(h_{t-1},\, x_t), \qquad c = h_n
# $$ (eq-recurrent)
#
# {cite:t}`sutskever2014sequence` translated with two recurrent networks: an encoder that reads, and a decoder that starts from the encoder's last state and writes. {cite:t}`cho2014learning` had built the same pair to score phrases for an older kind of translator, and with it the **GRU**, a recurrent network whose gates decide how much of the old state to keep. Here is one, untrained, that reads the book's running example, *the black cat likes fish*, first as it is and then ten times over. Each word is a row of six numbers in `X`; here any numbers would do.

# %%
from book.example import X

torch.manual_seed(0)
encoder = nn.GRU(input_size=6, hidden_size=8, batch_first=True).double()
for sentence in (X, X.repeat(10, 1)):
    states, last = encoder(sentence[None])
    shapes = tuple(states[0].shape), tuple(last[0, 0].shape)
    print(f"{len(sentence):2} words: states {shapes[0]}, handed over {shapes[1]}")

# %% [markdown]
# Five words or fifty, the decoder gets eight numbers, and in the long text they were updated fifty times. Change its first word, and see how much of the change is left later:

# %%
text = X.repeat(10, 1)
other = text.clone()
other[0] = X[2]  # "cat" instead of the first "the"

difference = encoder(text[None])[0] - encoder(other[None])[0]
moved = difference[0].norm(dim=-1)
for n in (1, 2, 5, 10):
    print(f"after word {n:2}: {moved[n - 1] / moved.max():.1%} of the change")

# %% tags=["remove-cell"]
if CHECKING:
    assert moved[9] < 0.01 * moved[0]

# %% [markdown]
# Training teaches the gates to hold on for longer, but what they keep takes up room that later words need. In {cite:t}`bahdanau2015neural`, the translations by the model with one vector get worse as sentences get longer. Sutskever and his colleagues saw no such fall in a larger model, but it helped them to feed the source in backwards. That brings the first words of both sentences close together, which is one more hint that distance was the problem.
#
# Forgetting is one cost of the chain. The other is time. State 20 can't be computed before state 19, whatever your hardware, so a machine that could work on a thousand positions at once works on one.
#
# ## Bahdanau's attention
#
# Dzmitry Bahdanau, Kyunghyun Cho and Yoshua Bengio kept all states of the encoder, which in their model reads in both directions. Before the decoder writes word $i$, a small network compares its state $s_{i-1}$ with each state $h_j$ of the $n$ source words. Its weights are the matrices $W$ and $U$ and the vector $a$. It returns one score $e_{ij}$ for each pair, and a softmax turns the scores for word $i$ into shares that sum to 1:
#
# $$
# e_{ij} = a^\top \tanh(W s_{i-1} + U h_j), \qquad \alpha_{ij} = \operatorname{softmax}(e_i)_j = \frac{e^{e_{ij}}}{\sum_{m=1}^{n} e^{e_{im}}}
# $$ (eq-additive)
#
# The shares mix the states into a new vector for each word that is written:
#
# $$
# c_i = \sum_{j=1}^{n} \alpha_{ij}\, h_j
# $$ (eq-context)
#
# **Exercise 1. Write it first** (★, 10 min). Given a state `s` of 8 numbers, the states `H` of five words, $5 \times 8$, and weights `W`, `U` ($8 \times 8$) and `a` (8 numbers), write three lines that compute the scores of all five words at once, the shares, and $c$. Here are ours:

# %%
H = encoder(X[None])[0][0].detach()  # the states of our five words
width = H.size(1)
s, a = torch.randn(2, width).double()  # s is a decoder's; nothing here is trained
W, U = torch.randn(2, width, width).double()

scores = torch.tanh(s @ W + H @ U) @ a
shares = scores.softmax(dim=0)
c = shares @ H
print(
    f"scores {tuple(scores.shape)}, shares sum to {shares.sum():.2f}, c {tuple(c.shape)}"
)

# %% tags=["remove-cell"]
if CHECKING:
    for j in range(len(H)):
        one = (a * torch.tanh(W.T @ s + U.T @ H[j])).sum()
        torch.testing.assert_close(one, scores[j])
    by_loop = sum(share * h for share, h in zip(scores.exp() / scores.exp().sum(), H))
    torch.testing.assert_close(by_loop, c)

# %% [markdown]
# (Our states are rows, so the code has `s @ W` where the formula has $W s$: our `W` is its $W$ transposed.) This is attention. The [next chapter](03_attention.ipynb) has other letters for it:
#
# | Bahdanau, Cho and Bengio | this book | role |
# |---|---|---|
# | $s_{i-1}$, state of the decoder | query $q$ | what is looked for |
# | $h_j$, inside the score | key $k_j$ | what a word is found by |
# | $h_j$, inside the sum | value $v_j$ | what it hands over |
# | $e_{ij}$, energy | score | how well they fit |
# | $\alpha_{ij}$ | weight | the share; the shares of a row sum to 1 |
# | $c_i$, context | output | the blend |
#
# Here $h_j$ is key and value at once. The Transformer separates them, so that a word can be found by one thing and hand over another, and it replaces the small network by a dot product.
#
# The states still came from recurrence: in 2016 the state of the art was a recurrent network with attention on top, as in Google's own translator {cite:p}`wu2016google`.
#
# ## The distance between two words
#
# One way to avoid waiting is a convolution. At each position it reads a window of words, and all positions are computed at the same time. To connect words further apart you stack windows, and section 2 of the paper sorts its predecessors by how high the stack must be. Take windows of three words, one and the two before it, and two words that are 256 apart.
#
# - ConvS2S {cite:p}`gehring2017convolutional` stacks plain windows. Each layer reaches two words further, so it takes $256 / 2 = 128$ layers: their number grows in proportion to the distance.
# - ByteNet {cite:p}`kalchbrenner2016neural` has *dilated* windows, whose words are twice as far apart in each layer as in the one below. Eight layers reach $2 + 4 + \dots + 256 = 510$ words, and seven only 254, so it takes eight: their number grows like the logarithm of the distance.
# - Self-attention connects any two words in one step. {cite:t}`cheng2016long` had it inside a recurrent network, and {cite:t}`parikh2016decomposable` compared pairs of sentences with little else. The paper claims the first model that turns one sequence into another by self-attention alone.
#
# A gradient has to come back through each of those steps, and at every one it can shrink.
#
# ## Recalling a word
#
# A layer reads random words, each one of sixteen, and at each position has to name the word that came $k$ positions earlier. Three layers compete: a GRU, a convolution with a window of six, and one attention layer. They read the same words, with the same numbers added that say [where each one stands](08_positional_encoding.ipynb), are trained alike, from scratch for each $k$, and have the same number of weights, 6,144. For {numref}`fig-recall`, each got 1,000 updates at eight distances, from three seeds. Before you look, sketch the three curves.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-recall", "caption": "Which layer can name the word k steps back? Share of right answers after 1,000 updates, the mean of three seeds; the horizontal axis is logarithmic. Attention (solid) is right at every distance, the GRU (dashed) loses its hold from four words on and is down to 18% at 32, and the convolution (dotted) sees five words back and no further. Guessing is right in 1 of 16 cases (thin line). Measured by `benchmarks/experiments/recall.py`."}}
settings, *log = read_log("recall")
kinds = {
    "attention": (SKY, [1, 0]),
    "GRU": (PLUM, [6, 3]),
    "convolution": (AMBER, [2, 2]),
}
runs = [r for r in log if r.get("steps") == 1000]
distances = sorted({r["distance"] for r in runs})
recalled = {
    (kind, k): mean(
        r["accuracy"] for r in runs if (r["kind"], r["distance"]) == (kind, k)
    )
    for kind in kinds
    for k in distances
}
records = [
    {"layer": kind, "k": k, "right": round(a, 3)} for (kind, k), a in recalled.items()
]
x = alt.X(
    "k:Q",
    title="k: how many words ago",
    scale=alt.Scale(type="log", base=2, domain=[1, 32]),
    axis=alt.Axis(values=[1, 2, 4, 8, 16, 32]),
)
padding = {"left": 5, "right": 20, "top": 5, "bottom": 5}
y = alt.Y(
    "right:Q",
    title="right answers",
    axis=alt.Axis(format="%"),
    scale=alt.Scale(domain=[0, 1]),
)
guess = (
    alt.Chart(alt.Data(values=[{"right": 1 / 16}]))
    .mark_rule(strokeWidth=0.7)
    .encode(y=y)
)
show(
    (guess + curves(records, x, y, "layer", kinds)).properties(padding=padding),
    alt=", ".join(f"{kind} at 32 words: {recalled[kind, 32]:.0%}" for kind in kinds)
    + ".",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert {settings[f"weights of {kind}"] for kind in kinds} == {6144}
    longer = mean(r["accuracy"] for r in log if r.get("steps") == 5000)
    assert f"{recalled['GRU', 8]:.0%}, {longer:.0%}" == "43%, 51%"
    assert round(recalled["GRU", 32], 2) == 0.18
    assert recalled["convolution", 5] > 0.99 and recalled["convolution", 6] < 0.08
    assert min(recalled["attention", k] for k in distances) > 0.99
    assert recalled["GRU", 2] > 0.99 > 0.96 > recalled["GRU", 4] > recalled["GRU", 32]

# %% [markdown]
# The convolution's curve is a cliff, and no training will move it: the sixth word back isn't in the window. The GRU's limit is of another kind. Its state is 32 numbers, and to name the word $k$ steps back *at every step*, it has to carry the last $k$ words in them, in order, and push all of them along by one place each time. Each word is one of sixteen, or 4 bits of information, so at $k = 32$ the state has to hold 128 bits, which is possible in principle but hard to learn. Five times the training takes it from 43% to 51% at $k = 8$.
#
# For attention no $k$ is harder than another, because all it needs is a query that fits the position $k$ places back.
#
# ## What to remember
#
# - A recurrent encoder hands over one vector of fixed size, and makes its states one after the other.
# - Attention was added so that the decoder need not depend on that one vector. In Bahdanau's letters $s_{i-1}$ is the query, and $h_j$ is both key and value.
# - A convolution runs in parallel but sees only a window, so it takes a stack of them to reach far.
# - Attention reaches every word in one step. Its price is a comparison of every word with every other ([Why self-attention?](12_why_self_attention.ipynb)).
#
# ## Exercises
#
# **1. Write it first** is [above](#bahdanaus-attention); the code below it is the solution. In it, `s @ W` is one row, which is added to each of the five rows of `H @ U`.
#
# **2. By hand** (★, 5 min). Two source words have the scores $e = (\ln 3, 0)$ and the states $h_1 = (4, 0)$ and $h_2 = (0, 8)$. What are the shares, and what is $c$?
#
# :::{admonition} Solution 2
# :class: dropdown
# The exponentials are 3 and 1, the shares 0.75 and 0.25, and $c = 0.75 \cdot (4, 0) + 0.25 \cdot (0, 8) = (3, 2)$.
# :::
#
# **3. Backwards** (★★, 15 min). Number the words of a source and a target of $n$ words each, and suppose that word $i$ translates word $i$. How many steps lie between them in a recurrent encoder-decoder if the source is read forwards? And backwards? Compare the means and the smallest values.
#
# :::{admonition} Solution 3
# :class: dropdown
# Forwards, word $i$ of the source is $n - i$ steps from the end, and word $i$ of the target $i$ steps from the start. Together that is always $n$. Backwards, the source word is $i - 1$ steps from the end, so the sum is $2i - 1$: from 1 to $2n - 1$, and on average $n$ again. The mean doesn't move, but the first words become neighbors, so training can begin with them.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    e, h = torch.tensor([math.log(3), 0.0]), torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    torch.testing.assert_close(e.softmax(0) @ h, torch.tensor([3.0, 2.0]))
    forwards = [(20 - i) + i for i in range(1, 21)]
    backwards = [(i - 1) + i for i in range(1, 21)]
    assert mean(forwards) == mean(backwards) == 20
    assert (min(backwards), max(backwards)) == (1, 39) and set(forwards) == {20}

# %% [markdown]
# ## Further
#
# ### Attention as kernel regression
#
# The idea is older than neural translation. In 1964, {cite:t}`nadaraya1964estimating` and {cite:t}`watson1964smooth` independently estimated a curve from noisy points: at a place $q$, take the mean of all values, weighted by how close each point is. That is **kernel regression**, or attention by distance instead of a dot product. What is new since then is that queries, keys and values are *learned*. (*Dive into Deep Learning* by Zhang, Lipton, Li and Smola introduces attention in this way.)
#
# ### What does one look not do?
#
# To recall the word $k$ steps back takes one look, at a known place. It takes two to find the last earlier place where the *present* word occurred, and to name the word that followed it there. {cite:t}`olsson2022context` find heads that do this, **induction heads**, in models of two layers and more, but not of one.
