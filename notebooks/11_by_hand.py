# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # By hand
#
# This page takes one German sentence through a whole Transformer, to the probability of the next English word, its loss, a gradient and an update, and you can check each number on a pocket calculator.
#
# The sentence is *Den Fisch mag die schwarze Katze*. It begins with its object and means *the black cat likes the fish*: `den` marks the fish as the one that is liked; if the fish did the liking, the article would be `der`.
#
# Our Transformer has one layer on either side. It has written *the black cat likes the* and must now say `fish`. Where should it look? Its decoder stands at position 5, counted from 0, and at position 5 of the source stands `Katze`. A model that looks at the same place says `cat`. Only `den`, at the very beginning, tells that this is wrong, and the encoder has to find that out. These are all the steps:
#
# $$
# \begin{aligned}
# \text{encoder:} \quad a &= \text{norm}(x + \text{self}(x)) \\
# m &= \text{norm}(a + \text{FFN}(a)) \\
# \text{decoder:} \quad b &= \text{norm}(t + \text{self}(t)) \\
# c &= \text{norm}(b + \text{cross}(b, m)) \\
# s &= \text{norm}(c + \text{FFN}(c)) \\
# \text{output:} \quad p &= \text{softmax}(s E^\top) \\
# L &= -\ln p_\text{right}
# \end{aligned}
# $$ (eq-by-hand)
#
# Here $x$ holds the source words with their positions added, $t$ the words written so far with theirs, and $E$ is the table of word vectors. A real model has more layers and wider ones, but no other kind of step. Which word will be the runner-up to `fish`? And what will the model say if we take away the self-attention of its encoder?
#
# **The rule of the page.** Round every number that you write down to two decimals (0.005 becomes 0.01, and −0.005 becomes −0.01), and go on from the rounded one.
#
# To work on paper, print this page, or its <a href="#blank">blank sheets</a> with every result left empty. The same steps in a trained model, in any sentence, are on the page [Look inside](../book/inside.md).

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-by-hand", "caption": "Where does this page go? Read upwards. Below, the vector of `Fisch` on its way through the encoder layer; above, the decoder's `the` at position 5, which has to become a prediction of what follows. A row that begins with a plus is a sum. In the memory, the largest number of `Fisch` is in the column \u201cobject\u201d; in the state, the largest is \u201cedible\u201d. Purple is positive, orange negative."}}
import altair as alt
import torch
import torch.nn.functional as F
from IPython.display import display

from book import by_hand
from book.figures import INK, QUERY, RESIDUAL, VALUE, heatmap, page_colors, show

STREAM = f"var(--book-residual, {RESIDUAL})"  # lighter on a dark page
SHORT, WORDS, GERMAN = by_hand.COLUMNS, by_hand.WORDS, by_hand.GERMAN
word = by_hand.FEATURES
two = by_hand.two
E, x, t = by_hand.E, by_hand.x, by_hand.t
run = by_hand.steps(x, t)
a, m, b, c, s, p = run.a, run.m, run.b, run.c, run.s, run.p
one, second = run.heads


def tables(*parts):
    """Show small tables: (title, matrix, names of the rows, names of the columns, color).

    A title that begins with "given" keeps its numbers on the blank sheets.
    """
    page = plain = ""
    for title, numbers, rows, columns, color in parts:
        given = title.startswith("given ")
        title = title.removeprefix("given ")
        style = "g" if given else ".2f"
        lines = [
            [f"{v + 0.0:{style}}".replace("-", "\u2212") for v in line]
            for line in numbers
        ]
        head = "".join(f'<th scope="col">{name}</th>' for name in columns)
        body = f"<tr><td></td>{head}</tr>"
        kind = "" if given else ' class="result"'
        for name, line in zip(rows, lines):
            bold = ' style="font-weight:700"' if name == "Fisch" else ""
            cells = "".join(f"<td{kind}>{number}</td>" for number in line)
            body += f'<tr{bold}><th scope="row">{name}</th>{cells}</tr>'
        head = f'<caption style="color:{color}">{title}</caption>'
        page += f'<table style="border:1.5px solid {color}">{head}{body}</table>'
        shown = zip(["", *rows], [columns, *lines])
        plain += f"{title}\n" + "".join(
            f"{name} {' '.join(line)}\n" for name, line in shown
        )
    look = "display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start"
    page = f'<div class="book-tables" style="{look}">{page_colors(page)}</div>'
    display({"text/html": page, "text/plain": plain}, raw=True)


def statement(rows, names, title):
    """Chart rows, the first one at the bottom."""
    chart = heatmap(
        rows.flip(0),
        names[::-1],
        SHORT,
        signed=True,
        limit=3.5,
        titles=("", ""),
        cell=29,
    )
    return chart.properties(title=title, height=17 * len(names))


fish = [r[1] for r in (by_hand.german(GERMAN), x, run.a_sum, a, run.m_sum, m)]
decoder = [t[-1:], run.b_sum, b, run.c_sum, c, run.s_sum, s]
names = ["Fisch", "+ position", "+ self-attention", "norm", "+ network", "norm: memory"]
later = ["the at 5", *names[2:4], "+ cross-attention", *names[3:5], "norm: state"]
show(
    alt.vconcat(
        statement(torch.cat(decoder), later, "decoder"),
        statement(torch.stack(fish), names, "encoder"),
        spacing=14,
        padding={"left": 4, "top": 4, "right": 4, "bottom": 4},
    ),
    alt="Fisch gets a large number in the column object, from 0 to 1.97. At the end of the decoder the largest number is 1.27, in the column edible.",
)

# %% tags=["remove-cell"]
if CHECKING:

    def says(tensor, *numbers):
        """Check a line of the text against what was computed."""
        found = [round(v, 2) + 0.0 for v in tensor.flatten().tolist()]
        assert found == [*numbers], found

    assert m[1].argmax() == 7 and s[0].argmax() == 6

# %% [markdown]
# <p id="blank" hidden><a href="#by-hand">Fill in the results again</a></p>
#
# ## Words and positions
#
# The English words are [chapter 3's](03_attention.ipynb#queries-keys-and-values), with a column "object" in the place of "living". To save paper, a German word has the vector of its translation. Only `den` differs from `die`, because it has a 1 in "object".
#
# In front stand two columns for the [position](08_positional_encoding.ipynb#why-sine-and-cosine): one clock, doubled, so that its numbers are as large as those of the words. `Fisch` stands at 1, and the clock shows $2 \sin 1 = 1.68$ and $2 \cos 1 = 1.08$ (set the calculator to radians). We leave out the slower clocks and the factor $\sqrt{d_\text{model}}$.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-input", "caption": "What goes in? The table $E$ of the English words, and the six German words, each with its position, which are the input $x$ of the encoder. The row in bold is the one that the text computes."}}
tables(
    ("given <i>E</i>", E[:, 2:], WORDS, word, STREAM),
    ("<i>x</i>", x, GERMAN, SHORT, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(x[1], 1.68, 1.08, 1.5, 0.5, 0.0, 0.0, 1.0, 0.0)
    assert x[:, 7].tolist() == [1, 0, 0, 0, 0, 0]
    assert torch.equal(E[:, 2:6], by_hand.example.X[:, :4])

# %% [markdown]
# ## The first head looks one word back
#
# An article stands before its noun, so head 1 asks with the clock of *the word before*, twice as large. A clock that is turned back by 1 is made of [its own two numbers](08_positional_encoding.ipynb#why-sine-and-cosine):
#
# $$
# \begin{aligned}
# \sin(p - 1) &= 0.54 \sin p - 0.84 \cos p \\
# \cos(p - 1) &= 0.54 \cos p + 0.84 \sin p
# \end{aligned}
# $$
#
# Twice these numbers, 1.08 and 1.68, are the weights in $W^Q$. The <span style="color:#0072B2">**query**</span> of `Fisch` is
#
# $$
# \begin{aligned}
# q = (& 1.08 \cdot 1.68 - 1.68 \cdot 1.08,\\
# & 1.68 \cdot 1.68 + 1.08 \cdot 1.08) = (0,\; 3.99).
# \end{aligned}
# $$
#
# A <span style="color:#D55E00">**key**</span> is the clock of a word, and a score is the product of the two over $\sqrt{d_k} = \sqrt 2 = 1.41$. `den`, with the clock $(0, 2)$, gets $3.99 \cdot 2 / 1.41 = 5.66$; `Fisch` itself gets $3.99 \cdot 1.08 / 1.41 = 3.06$. For the softmax, raise $e$ to each of the six scores: 287.15, 21.33, 0.10, 0.00, 0.02 and 5.00, together 313.60. So `den` has the weight $287.15 / 313.60 = 0.92$.
#
# The <span style="color:#009E73">**value**</span> is the mark in the column "object", which only `den` has, so `Fisch` fetches 0.92 of it, and `Katze` nothing.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-head-1", "caption": "Who looks at whom in head 1? Each word finds the one before it. `den`, which has none, finds `Katze`, because six places are nearly one round of the clock."}}
tables(
    (
        "given <i>W<sup>Q</sup></i>",
        by_hand.Q_1[:2],
        by_hand.BEFORE,
        by_hand.BEFORE,
        QUERY,
    ),
    ("<i>Q</i>", one.Q, GERMAN, by_hand.BEFORE, QUERY),
    ("weights", one.weights, GERMAN, GERMAN, INK),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(2 * torch.tensor([0.54, 0.84]), 1.08, 1.68)
    says(two(torch.tensor([1.0, 1.0]).double().sin()), 0.84, 0.84)
    says(one.Q[1], 0.0, 3.99)
    says(one.scores[1, :2], 5.66, 3.06)
    says(two(one.scores[1].exp()), 287.15, 21.33, 0.10, 0.0, 0.02, 5.0)
    says(two(one.scores[1].exp()).sum(), 313.60)
    says(one.out[[1, 5]], 0.92, 0.0)
    assert one.weights.argmax(-1).tolist() == [5, 0, 1, 2, 3, 4]

# %% [markdown]
# ## The second head, and $W^O$
#
# Head 2 asks like [chapter 5's first](05_multi_head_attention.ipynb#why-several-heads): nouns look for a verb with strength 1, adjectives for a noun with 1, verbs for a noun with 1.5. Two things are new: articles look for a verb, with 1, and the value is how much of a verb a word is. `Fisch` is mostly a noun, 1.5, and a little verb, 0.5, so its query is $(1.5 \cdot 0.5,\; 1 \cdot 1.5) = (0.75, 1.50).$ A key is the "noun" and the "verb" of a word: `mag` gets the score $1.5 \cdot 2 / 1.41 = 2.13,$ `Fisch` itself 1.33 and `Katze` 1.06. The powers of $e$ are 8.41, 3.78, 2.89 and three times 1, together 18.08, so `mag` gets the weight $8.41 / 18.08 = 0.47.$ `Fisch` fetches $0.47 \cdot 2 + 0.21 \cdot 0.5 = 1.05.$

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-head-2", "caption": "What does head 2 find? Nouns and articles find the verb, the verb and the adjective find the nouns. A row may miss 1.00 by a few hundredths, since its shares are rounded one by one. $W^O$ has one row for each number that the heads hand over."}}
tables(
    (
        "given <i>W<sup>Q</sup></i>",
        by_hand.Q_2[2:6],
        word[:4],
        by_hand.GROUPS,
        QUERY,
    ),
    ("<i>Q</i>", second.Q, GERMAN, by_hand.GROUPS, QUERY),
    ("weights", second.weights, GERMAN, GERMAN, INK),
    ("fetched", run.found, GERMAN, ["mark", "verb"], VALUE),
    ("given <i>W<sup>O</sup></i>", by_hand.W_O[:, 2:], ["mark", "verb"], word, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(second.Q[1], 0.75, 1.5)
    says(second.scores[1], 0.0, 1.33, 2.13, 0.0, 0.0, 1.06)
    says(two(second.scores[1].exp()), 1.0, 3.78, 8.41, 1.0, 1.0, 2.89)
    says(two(second.scores[1].exp()).sum(), 18.08)
    says(second.weights[1, 1:3], 0.21, 0.47)
    says(second.out[1], 1.05)

# %% [markdown]
# $W^O$ puts three times the mark into "object", and the verb into "verb". `Fisch` gets $3 \cdot 0.92 = 2.76$ and 1.05.
#
# ## Add and norm
#
# The sum of `Fisch` is $(1.68, 1.08, 1.50, 1.55, 0, 0, 1, 2.76).$ Its mean is $9.57 / 8 = 1.20.$ The squared distances from the mean average 0.73, and the root of that is the deviation, 0.85. With gain 1 and bias 0, the [norm](09_layers.ipynb#layer-normalization) is
#
# $$
# \begin{aligned}
# a_\text{Fisch} = (& 0.48,\; -0.12,\; 0.30,\; 0.35, \\
# & -1.20,\; -1.20,\; -0.20,\; 1.56) / 0.85 \\
# = (& 0.56,\; -0.14,\; 0.35,\; 0.41, \\
# & -1.41,\; -1.41,\; -0.24,\; 1.84).
# \end{aligned}
# $$
#
# ## The network
#
# Its two [units](06_feed_forward.ipynb#a-network-is-a-sum-of-units) decide who does what. "Object" fires at a noun with a verb and a mark: at `Fisch` it computes $0.35 + 0.41 + 1.84 - 2.5 = 0.10$ and adds three times that to the column "object". "Subject" fires at a noun with a verb and *without* a mark: at `Katze` it computes $1.57 + 1.15 + 0.25 - 2 = 0.97$ and takes three times that away. Everywhere else both are silent. After one more norm, "object" is 1.97 at `Fisch` and −1.92 at `Katze`: the encoder has found it out.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-units", "caption": "What are the units? What each looks for, with its bias, and what it writes into the stream where it fires. \u201cFood\u201d belongs to the decoder."}}
units = [*by_hand.UNITS, *by_hand.LAST]
sought = torch.cat([by_hand.W_1, by_hand.U_1], 1).T
biases = torch.cat([by_hand.b_1, by_hand.c_1])[:, None]
seek = torch.cat([sought, biases], 1)
writes = torch.cat([by_hand.W_2, by_hand.U_2])
tables(
    ("given looks for", seek[:, 2:], units, [*word, "bias"], INK),
    ("given writes", writes[:, 2:], units, word, STREAM),
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-memory", "caption": "What leaves the encoder? After the first norm, $a$; after the second, the memory $m$."}}
tables(
    ("norm: <i>a</i>", a, GERMAN, SHORT, STREAM),
    ("memory: <i>m</i>", m, GERMAN, SHORT, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(run.a_sum[1], 1.68, 1.08, 1.5, 1.55, 0.0, 0.0, 1.0, 2.76)
    says(run.a_sum[1].sum(), 9.57)
    says(torch.stack(by_hand.mean_and_deviation(run.a_sum[1])), 1.2, 0.85)
    says(two(((run.a_sum[1] - 1.2) ** 2).mean()), 0.73)
    says(run.a_sum[1] - 1.2, 0.48, -0.12, 0.3, 0.35, -1.2, -1.2, -0.2, 1.56)
    says(a[1], 0.56, -0.14, 0.35, 0.41, -1.41, -1.41, -0.24, 1.84)
    says(a[5, [2, 3, 7]], 1.57, 1.15, -0.25)
    says(run.fired[[1, 5]], 0.1, 0.0, 0.0, 0.97)
    assert run.fired.nonzero().tolist() == [[1, 0], [5, 1]]
    says(m[[1, 5], 7], 1.97, -1.92)

# %% [markdown]
# ## One step of the decoder
#
# The decoder's input begins with an empty row, as in the authors' code (our package puts the vector of `<s>` there), so the last `the` is at 5: $t_5 = (-1.92, 0.57, 0, 0, 0, 2, 0, 0).$ With one layer we need only this row, and the causal mask hides nothing from it.
#
# **Self-attention.** To save paper, the decoder has the encoder's matrices; a trained one has its own. In head 1 `the` looks one word back and finds no mark. In head 2 it looks for a verb: `likes` gets the score $2 \cdot 2 / 1.41 = 2.84,$ the weight 0.77, and hands over 1.54. Now `the` knows that the verb has been said. The sum has mean 0.27 and deviation 1.10, and the norm is
#
# $$
# b = (-1.99, 0.27, -0.25, 1.15, -0.25, 1.57, -0.25, -0.25).
# $$

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-decoder", "caption": "What does the decoder see of itself? The weights of its last row in either head."}}
before = ["(empty)", *by_hand.WRITTEN]
tables(
    (
        "weights of the last row",
        torch.cat([h.weights for h in run.own]),
        ["head 1", "head 2"],
        before,
        INK,
    ),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(t[5], -1.92, 0.57, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0)
    says(run.own[1].scores, 0.0, 0.0, 0.0, 0.0, 2.84, 0.0)
    says(run.own[1].weights, 0.05, 0.05, 0.05, 0.05, 0.77, 0.05)
    says(run.recalled, 0.0, 1.54)
    says(torch.cat(by_hand.mean_and_deviation(run.b_sum), -1), 0.27, 1.1)
    says(b, -1.99, 0.27, -0.25, 1.15, -0.25, 1.57, -0.25, -0.25)

# %% [markdown]
# **Cross-attention** has one head, which asks three questions at once. *The same place*: its query begins with the clock of $b.$ *A noun*, because an article looks for one: twice the "article", $2 \cdot 1.57 = 3.14.$ *An object*, because the verb has been said: three times the "verb", $3 \cdot 1.15 = 3.45.$ The key of a word is its clock, its "noun" and its "object", and $\sqrt{d_k} = 2$:
#
# $$
# \begin{aligned}
# \text{Fisch:} \;\; (& -1.99 \cdot 0.50 - 0.27 \cdot 0.16 \\
# & + 3.14 \cdot 0.30 + 3.45 \cdot 1.97) / 2 = 3.35 \\
# \text{Katze:} \;\; (& 1.99 \cdot 1.12 + 0.27 \cdot 0.43 \\
# & + 3.14 \cdot 1.32 - 3.45 \cdot 1.92) / 2 = -0.07
# \end{aligned}
# $$
#
# Place and noun speak for `Katze`, but what the encoder found outweighs both. The powers of $e$ sum to 35.91, so `Fisch` gets the weight $28.50 / 35.91 = 0.79$. The value is what a word means, its "noun", "adjective", "article" and "edible", and $W^O$ adds three times the blend to the stream.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-cross", "caption": "What does the decoder find in the source? The query of `the` at 5, its scores and weights, and what is added to the stream."}}
tables(
    ("<i>Q</i>", run.cross.Q, ["the"], by_hand.SOUGHT, QUERY),
    (
        "scores and weights",
        torch.cat([run.cross.scores, run.cross.weights]),
        ["scores", "weights"],
        GERMAN,
        INK,
    ),
    ("3 × the blend", run.cross.out @ by_hand.C_O[:, 2:], ["the"], word, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(run.cross.Q, -1.99, 0.27, 3.14, 3.45)
    says(run.cross.K[1], 0.50, -0.16, 0.30, 1.97)
    says(run.cross.K[5], -1.12, 0.43, 1.32, -1.92)
    says(run.cross.scores[0, [1, 5]], 3.35, -0.07)
    says(run.cross.weights[0, 1], 0.79)
    says(two(run.cross.scores[0, 1].exp()), 28.50)
    says(two(run.cross.scores.exp()).sum(), 35.91)

# %% [markdown]
# **The network.** The sum has mean −0.68 and deviation 1.24, and the norm is
#
# $$
# c = (-1.06, 0.77, 0.95, 1.48, -1.66, -0.58, -0.21, 0.35).
# $$
#
# One unit, "food", looks for a noun, a verb and something edible: $0.95 + 1.48 - 0.21 - 1.5 = 0.72.$ The verb has been said and the food is due, so the unit takes twice that, 1.44, from "verb" and adds it to "edible". After the last norm (mean 0.01, deviation 0.96) the state is
#
# $$
# s = (-1.11, 0.79, 0.98, 0.03, -1.74, -0.61, 1.27, 0.35).
# $$
#
# ## Logits, probabilities, loss
#
# Each word of the table is scored by its dot product with $s.$ For `fish`, $1.5 \cdot 0.98 + 0.5 \cdot 0.03 + 1.27 = 2.76;$ for `cat`, $2 \cdot 0.98 = 1.96.$ The powers of $e$ are 0.30, 0.03, 7.10, 1.06 and 15.80, together 24.29. So `fish` has the probability $15.80 / 24.29 = 0.65,$ and the loss is $-\ln 0.65 = 0.43.$ Guessing among five words would cost $\ln 5 = 1.61.$

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-loss", "caption": "Which word comes next? Logits, probabilities, and the gradient of the loss at the logits. `cat`, the other noun, is the only serious rival."}}
g = p - F.one_hot(torch.tensor([4]), 5)
rows = ["logits", "<i>p</i>", "gradient"]
tables(("output", torch.cat([run.logits, p, g]), rows, WORDS, INK))

# %% tags=["remove-cell"]
if CHECKING:
    says(torch.cat(by_hand.mean_and_deviation(run.c_sum), -1), -0.68, 1.24)
    says(c, -1.06, 0.77, 0.95, 1.48, -1.66, -0.58, -0.21, 0.35)
    says(run.unit, 0.72)
    says(torch.cat(by_hand.mean_and_deviation(run.s_sum), -1), 0.01, 0.96)
    says(s, -1.11, 0.79, 0.98, 0.03, -1.74, -0.61, 1.27, 0.35)
    says(run.logits[0, [2, 4]], 1.96, 2.76)
    says(two(run.logits.exp()), 0.30, 0.03, 7.10, 1.06, 15.80)
    says(two(run.logits.exp()).sum(), 24.29)
    says(p, 0.01, 0.0, 0.29, 0.04, 0.65)
    says(two(-p[0, 4].log()), 0.43)
    says(torch.tensor(5).log(), 1.61)

# %% [markdown]
# ## Without the encoder's attention
#
# Let the encoder's self-attention add zeros, and compute everything again. No word hears of `den`, no noun hears of the verb, and so neither unit fires. In the memory, "object" is below zero at both nouns, −1.12 and −0.08, so the question for an object even speaks against `Fisch`. Place and noun decide (by these two alone, the scores of `Fisch` and `Katze` would be 0.49 and 5.12), and `Katze` gets the weight 0.95.

# %% tags=["remove-cell"]
if CHECKING:
    alone = by_hand.steps(x, t, without="self-attention")
    assert not alone.fired.any()
    says(alone.m[[1, 5], 7], -1.12, -0.08)
    place_and_noun = two(alone.cross.Q[:, :3] @ alone.cross.K[[1, 5], :3].T / 2)
    says(place_and_noun, 0.49, 5.12)
    says(alone.cross.weights[0, 5], 0.95)
    says(alone.p[0, [2, 4]], 0.72, 0.25)

# %% [markdown]
# Now `cat` has 0.72 and `fish` 0.25: the model would write *the black cat likes the cat*.
#
# ## One gradient, one update
#
# Which way should a single weight move? We take the 2 with which "food" adds to "edible".
#
# 1. The gradient at the logits is $p$ minus 1 at the right word: $g = (0.01, 0, 0.29, 0.04, -0.35).$
# 2. The state gets $g E.$ For "edible", that is $-0.35 \cdot 1,$ since only `fish` has any. All eight are $(0, 0, 0.06, -0.10,$ $0, 0.02, -0.35, 0).$
# 3. Now back through the norm. The norm undoes a shift of all eight numbers and a stretch of them, so neither can change the loss, and we subtract these two parts from the gradient. The part that shifts is the mean of the eight, −0.05. The part that stretches is $s$ for "edible", 1.27, times the mean of the eight products of gradient and $s$, −0.05. Then we divide by the deviation: $(-0.35 + 0.05 + 1.27 \cdot 0.05) / 0.96 = -0.25.$
# 4. The weight was multiplied by the unit's 0.72, so its gradient is $-0.25 \cdot 0.72 = -0.18.$
# 5. An update with learning rate 1 subtracts it, so the 2 becomes 2.18. Compute from there on again, and `fish` has 0.67: the loss falls from 0.43 to 0.40, by what the gradient predicted, $0.18 \cdot 0.18 = 0.03$.

# %% tags=["remove-cell"]
if CHECKING:
    pulls = two(g @ E)
    mean, along = two(pulls.mean()), two((pulls * s).mean())
    deviation = by_hand.mean_and_deviation(run.s_sum)[1]
    behind = two((pulls - mean - s * along) / deviation)
    entries = two(run.unit * behind)
    updated = by_hand.U_2 - entries * (by_hand.U_2 == 2)
    after = by_hand.softmax(two(by_hand.norm(c + run.unit @ updated) @ E.T))[0, 4]
    says(g, 0.01, 0.0, 0.29, 0.04, -0.35)
    says(pulls, 0.0, 0.0, 0.06, -0.10, 0.0, 0.02, -0.35, 0.0)
    says(torch.stack([mean, along]), -0.05, -0.05)
    says(torch.stack([behind[0, 6], entries[0, 6]]), -0.25, -0.18)
    says(updated[0, 6], 2.18)
    says(torch.stack([after, two(-after.log())]), 0.67, 0.40)

# %% [markdown]
# ## The same in the package
#
# Do the package's own layers say the same, with nothing rounded?
#
# **Exercise 1. Write it first** (★★, 30 min). Build an `EncoderLayer` and a `DecoderLayer` of width 8, give them the weights of this page (`from book.by_hand import ...`: `HEADS` and `W_O` for self-attention, `C_Q`, `C_K`, `C_V` and `C_O` for cross-attention, `W_1`, `b_1`, `W_2` and `U_1`, `c_1`, `U_2` for the networks; `x` and `t` are the rows below), and ask for the probabilities of the next word. `nn.Linear` stores its matrix transposed.

# %%
import torch
import torch.nn.functional as F

from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import DecoderLayer, EncoderLayer
from annotated_transformer.masks import causal_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from book.by_hand import C_K, C_O, C_Q, C_V, HEADS, U_1, U_2, W_1, W_2, W_O, WORDS
from book.by_hand import E, b_1, c_1, t, x


def filled(module, *weights):
    """Set the parameters of a module in turn."""
    module = module.double()
    for parameter, weight in zip(module.parameters(), weights, strict=True):
        parameter.data = weight.T.clone() if weight.dim() == 2 else weight
    return module


def both_heads():
    queries, keys, values = (torch.cat(parts, dim=1) for parts in zip(*HEADS))
    module = MultiHeadAttention(8, heads=2, d_k=2, d_v=1)
    return filled(module, queries, keys, values, W_O)


# %%
zeros = torch.zeros(8).double()
network = filled(FeedForward(8, 2), W_1, b_1, W_2, zeros)
cross = filled(MultiHeadAttention(8, heads=1, d_k=4, d_v=4), C_Q, C_K, C_V, C_O)
last = filled(FeedForward(8, 1), U_1, c_1, U_2, zeros)

encoder = EncoderLayer(8, both_heads(), network, dropout=0.0).double()
decoder = DecoderLayer(8, both_heads(), cross, last, dropout=0.0).double()


def logits():
    """Return the logits of the word after the last one."""
    memory = encoder(x[None])
    states = decoder(t[None], memory, causal_mask(len(t)), None)
    return states[0, -1] @ E.T


p = logits().softmax(dim=-1)
print("  ".join(f"{word} {share:.2f}" for word, share in zip(WORDS, p)))

# %% tags=["remove-cell"]
if CHECKING:
    assert (p - run.p[0]).abs().max() < 0.02
    assert (encoder(x[None])[0] - m).abs().max() < 0.05

# %% [markdown]
# They are ours, to within a hundredth. Now PyTorch's backward pass, for the weight that we moved:

# %%
loss = F.cross_entropy(logits()[None], torch.tensor([WORDS.index("fish")]))
loss.backward()
print(f"loss {loss:.2f}, gradient of the weight {last.linear2.weight.grad[6, 0]:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(last.linear2.weight.grad[6, 0] + 0.18) < 0.02
    assert abs(loss - 0.43) < 0.03

# %% [markdown]
# But for dropout, the factor $\sqrt{d_\text{model}}$ and a mask with something to hide, you have now done all that a Transformer does.
#
# ## What to remember
#
# - A layer multiplies matrices, takes one softmax in each head, sets negative numbers to zero inside the network, and adds and normalizes after each sub-layer.
# - The encoder writes into the vector of a word what only the other words can tell, and the decoder's query asks for it.
# - The gradient starts as "probability minus 1 for the right word" and runs back through the same numbers.
#
# ## Exercises
#
# **Exercise 1** is [above](#the-same-in-the-package), and the cells below it are its solution.
#
# **2. The subject first** (★★, 20 min). *Die schwarze Katze mag den Fisch* means the same. Which rows of $x$ change, and how? With the decoder as it was, does the model still say `fish`, and does it need the encoder's self-attention for it? Guess first; then compute the three scores that matter.

# %% [markdown]
# :::{admonition} Solution 2
# :class: dropdown
# The words move and the clock stays, so each row gets another place: `Fisch` now stands at 5, and `den` right before it. All three questions of cross-attention now have the same answer: the place is right, it is a noun, and it is the object. The model says `fish` with 0.68, and the weight of `Fisch` is 0.97. Without the encoder's self-attention it still says `fish`, with 0.55, because place and noun suffice. In such sentences you can't see what the encoder is for.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    swapped = by_hand.read(["die", "schwarze", "Katze", "mag", "den", "Fisch"])
    there, bare = (by_hand.steps(swapped, t, part) for part in ("", "self-attention"))
    says(there.p[0, 4], 0.68)
    says(there.cross.weights[0, 5], 0.97)
    says(bare.p[0, 4], 0.55)
    assert bare.p.argmax() == 4

# %% [markdown]
# **3. The whole sentence** (★★★, an evening; no solution). These weights were made for one step. Choose others with which the decoder writes *the black cat likes the fish* from the beginning, for both German sentences. What must the first `the` ask for, before any verb has been said?
#
# ## Sources
#
# The model is that of {cite:t}`vaswani2017attention`, one layer of it. The empty first row is `shift_right_3d` in `layers/common_layers.py` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor). Words, weights and units are made up.
