# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # By hand
#
# This page takes *the black cat likes fish* through one encoder layer and one step of the decoder, to the probability of the next word, its loss, a gradient and an update, and you can check each number on a pocket calculator.
#
# You have seen every part. Do they add up? Here is the task: a Transformer with one layer on either side has read the five words and repeats them, which is the simplest translation there is. It has written *the black cat likes* and must now say *fish*. These are all its steps:
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
# Here $x$ holds the source words with their positions added, $t$ the words written so far with theirs, and $E$ is the table of word vectors. A real model has more layers and wider ones, but no other kind of step. Before you start, guess: which word will come second to *fish*?
#
# **The rule of the page.** Whatever you would write down is rounded to two decimals, halves away from zero, and the next number is computed from what is written.
#
# To work on paper, print this page: it takes four sheets. For a class there are <a href="#blank">blank sheets</a> with every result left empty, to print in the same way. The same steps in a trained model, in any sentence, are on the page [Look inside](../book/inside.md).

# %% tags=["hide-input"]
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from book.example import FEATURES as WORD_FEATURES
from book.example import W_O as W_O_6

# %% [markdown]
# <p id="blank" hidden><a href="#by-hand">Fill in the results again</a></p>
#
# In code, the rule is `two`; a softmax and a [norm](09_layers.ipynb#layer-normalization) follow it at each of their steps:

# %%
from book.example import WORDS


def two(x):
    """Round to two decimals; 1e-9 makes up for binary fractions."""
    return x.sign() * torch.floor(100 * x.abs() + 0.5 + 1e-9) / 100


def softmax(scores):
    powers = two(scores.exp())
    return two(powers / powers.sum(-1, keepdim=True))


def mean_and_deviation(x):
    mean = two(x.mean(-1, keepdim=True))
    return mean, two(two(((x - mean) ** 2).mean(-1, keepdim=True)).sqrt())


def norm(x):
    mean, deviation = mean_and_deviation(x)
    return two((x - mean) / deviation)


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the weights, and how the tables are made", "code_prompt_hide": "Hide the weights"}
import altair as alt
from IPython.display import display

from book.example import W_K as W_K_6
from book.example import W_Q as W_Q_6
from book.example import W_V as W_V_6
from book.example import X as X_6
from book.figures import INK, KEY, POSITION, QUERY, RESIDUAL, VALUE
from book.figures import heatmap, page_colors, show


def matrix(rows, columns, **entries):
    """Return zeros with some entries; each is named by its row, and gives column: number."""
    filled = torch.zeros(len(rows), len(columns)).double()
    for row, numbers in entries.items():
        for column, number in numbers.items():
            filled[rows.index(row), columns.index(column)] = number
    return filled


def below(weights):
    """Put two rows of zeros on top: what does not ask about the place."""
    return F.pad(weights, (0, 0, 2, 0))


# Two columns for the place, then the six features of chapter 3
FEATURES = ["sin", "cos", *WORD_FEATURES]
SHORT = ["sin", "cos", "noun", "verb", "adj.", "art.", "living", "edible"]
X = F.pad(X_6, (2, 0))

# Positions; what the decoder has written begins with an empty row
place = torch.arange(5).double()
PE = two(2 * F.pad(torch.stack([place.sin(), place.cos()], 1), (0, 6)))
x = X + PE
t = torch.cat([torch.zeros(1, 8).double(), X[:4]]) + PE

# The two heads of chapter 5
CUT = [
    (below(W_Q_6[:, :2]), below(W_K_6[:, :2]), below(W_V_6[:, [0, 2]])),
    (below(W_Q_6[:, 2:]), below(W_K_6[:, 2:]), below(W_V_6[:, [1]])),
]
JOIN = F.pad(W_O_6[[0, 2, 1]], (2, 0))

# The units of chapter 6 with other thresholds, and one for the decoder
pattern = (
    {"verb": 1, "living": 1, "edible": 1},
    {"noun": 1, "adj.": 1, "living": 1, "edible": -1},
)
W1 = matrix(["meal", "pet"], SHORT, meal=pattern[0], pet=pattern[1]).T
b1 = torch.tensor([-2.0, -2.5]).double()
W2 = matrix(["meal", "pet"], SHORT, meal={"edible": 1}, pet={"living": 1, "edible": -1})
U1 = matrix(["object"], SHORT, object={"noun": 1, "verb": 1, "edible": 1}).T
c1 = torch.tensor([-2.0]).double()
U2 = matrix(["object"], SHORT, object={"verb": -2, "edible": 2})

# Cross-attention compares places and fetches the word
C_K = torch.eye(8, 2).double()
C_Q = 3 * C_K
C_V = torch.eye(8).double()[:, 2:]
C_O = 3 * C_V.T

STREAM = f"var(--book-residual, {RESIDUAL})"  # lighter on a dark page


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
            bold = ' style="font-weight:700"' if name == "likes" else ""
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


# %% [markdown]
# `attend` is one head, and `self_attention` puts two side by side. (1.41 is $\sqrt{d_k} = \sqrt 2$, `CUT` holds the matrices of the two heads and `JOIN` is $W^O$; all weights are in the fold above.)


# %%
def attend(asks, answers, q, k, v):
    Q = two(asks @ q)
    K = two(answers @ k)
    scores = two(Q @ K.T / 1.41)
    weights = softmax(scores)
    V = two(answers @ v)
    out = two(weights @ V)
    return SimpleNamespace(Q=Q, K=K, V=V, scores=scores, weights=weights, out=out)


def self_attention(asks, answers):
    heads = [attend(asks, answers, *matrices) for matrices in CUT]
    return heads, torch.cat([head.out for head in heads], -1) @ JOIN


# %% [markdown]
# Now the whole page, {eq}`eq-by-hand` line by line. `x` and `t` hold the words of the source and of the target, each with its position from `PE`; `X` is the table $E$ of the word vectors. The network of the encoder has the weights `W1`, `b1` and `W2`, the decoder's has `U1`, `c1` and `U2`, and cross-attention has `C_Q`, `C_K`, `C_V` and `C_O`:

# %%
# Encoder
read, fetched = self_attention(x, x)
a = norm(x + fetched)
fired = two((a @ W1 + b1).relu())
m = norm(a + fired @ W2)

# Decoder, its last row only
wrote, recalled = self_attention(t[-1:], t)
b = norm(t[-1:] + recalled)
cross = attend(b, m, C_Q, C_K, C_V)
c = norm(b + cross.out @ C_O)
unit = two((c @ U1 + c1).relu())
s = norm(c + unit @ U2)

# Output
logits = two(s @ X.T)
p = softmax(logits)
loss = two(-p[0, 4].log())
print(*(f"{word} {v:.2f}," for word, v in zip(WORDS, p[0])), f"loss {loss:.2f}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-by-hand", "caption": "Where does this page go? Read upwards. Below, the vector of *likes* on its way through the encoder layer; above, the same word in the decoder, where it stands at position 4 and has to become a prediction of what follows. A row that begins with a plus is a sum; a norm takes away the mean of the row below and divides by its deviation. In the top row, the state, \u201cverb\u201d has gone and \u201cedible\u201d is the largest number. Purple is positive, orange negative."}}
encoder = torch.stack([X[3], x[3], (x + fetched)[3], a[3], (a + fired @ W2)[3], m[3]])
decoder = [t[-1:], t[-1:] + recalled, b, b + cross.out @ C_O, c, c + unit @ U2, s]
names = ["likes", "+ position", "+ self-attention", "norm", "+ network", "norm: memory"]
later = ["likes at 4", *names[2:4], "+ cross-attention", *names[3:5], "norm: state"]


def statement(rows, names, title):
    """Chart rows, the first one at the bottom."""
    chart = heatmap(
        rows.flip(0),
        names[::-1],
        FEATURES,
        signed=True,
        limit=3.5,
        titles=("", ""),
        cell=29,
    )
    return chart.properties(title=title, height=22 * len(names))


show(
    alt.vconcat(
        statement(torch.cat(decoder), later, "decoder"),
        statement(encoder, names, "encoder"),
        spacing=14,
        padding={"left": 4, "top": 4, "right": 4, "bottom": 4},
    ),
    alt="Likes changes at every addition and every norm. At the end of the decoder its largest number is 1.82, in the column edible.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert s[0].argmax() == 7 and abs(s[0]).max() == 1.82

# %% [markdown]
# ## Words and positions
#
# The source vectors are [chapter 3's](03_attention.ipynb#queries-keys-and-values), with two empty columns in front. To these two we add the [position](08_positional_encoding.ipynb#why-sine-and-cosine): one clock, counted from 0 and made as large as the words. *Likes* stands at 3, and the clock shows $2 \sin 3 = 0.28$ and $2 \cos 3 = -1.98$ (set the calculator to radians).

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-input", "caption": "What goes in? The five words and their positions (pink) add up to the input $x$ of the encoder. The row in bold is the one that the text computes."}}
tables(
    ("given words", X, WORDS, SHORT, STREAM),
    ("+ positions", PE[:, :2], list("01234"), SHORT[:2], POSITION),
    ("= <i>x</i>", x, WORDS, SHORT, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:

    def says(tensor, *numbers):
        """Check a line of the text against what was computed."""
        found = [round(v, 2) + 0.0 for v in tensor.flatten().tolist()]
        assert found == [*numbers], found

    says(PE[3, :2], 0.28, -1.98)
    says(x[3], 0.28, -1.98, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0)

# %% [markdown]
# Sinusoids of eight columns would have three more clocks, ten, a hundred and a thousand times as slow. To save paper we leave them out, as a model that [learns its positions](08_positional_encoding.ipynb#learned-positions) may. We also leave out the factor $\sqrt{d_\text{model}} = 2.83$ that [embeddings](07_embeddings.ipynb#why-multiply-by-the-square-root-of-) get, so that a 2 stays a 2.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-given", "caption": "Which weights are given? $W^Q$ of both heads, two columns each: a row is a feature of the word that asks, a column a feature that it looks for. Keys are the first four features of the word as they are. $W^O$ has one row for each number that the heads hand over. The clock has only zeros in all of them and is not shown."}}
word = SHORT[2:]
tables(
    ("given <i>W<sup>Q</sup></i>, head 1", CUT[0][0][2:], word, word[:2], QUERY),
    ("given <i>W<sup>Q</sup></i>, head 2", CUT[1][0][2:], word, word[2:4], QUERY),
    (
        "given <i>W<sup>O</sup></i>",
        JOIN[:, 2:],
        ["living", "edible", "dark"],
        word,
        STREAM,
    ),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(torch.tensor(8).sqrt(), 2.83)
    assert torch.equal(W_K_6, torch.eye(6, 4).double())

# %% [markdown]
# ## The first head
#
# We use the two [heads](05_multi_head_attention.ipynb#why-several-heads) of chapter 5. Head 1 asks about nouns and verbs and hands over *living* and *edible*. In its $W^Q$, a verb looks for a noun with strength 1.5. An adjective or an article looks for a noun, too, with strength 1. A noun looks for a verb with strength 1. *Likes* has 2 of "verb", so its <span style="color:#0072B2">**query**</span> is
#
# $$
# q_\text{likes} = (1.5 \cdot 2,\; 0) = (3,\; 0).
# $$
#
# A <span style="color:#D55E00">**key**</span> is the "noun" and the "verb" of a word, a <span style="color:#009E73">**value**</span> its "living" and "edible". A score is the product of query and key over $\sqrt{d_k} = \sqrt 2 = 1.41$:
#
# $$
# \text{cat:} \;\; 3 \cdot 2 / 1.41 = 4.26 \qquad \text{fish:} \;\; 3 \cdot 1.5 / 1.41 = 3.19
# $$
#
# and 0 for the others. For the softmax, raise $e$ to each score in the row of *likes*: 1, 1, 70.81, 1 and 24.29, which sum to 98.10. *Cat* gets $70.81 / 98.10 = 0.72$, and *fish* gets 0.25.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-head-1", "caption": "Who looks at whom in head 1? Scores and weights have a query in each row. *The*, *black* and *likes* find *cat* first and *fish* second; *cat* finds its verb."}}
one, second = read
tables(
    ("<i>Q</i>", one.Q, WORDS, word[:2], QUERY),
    ("<i>K</i>", one.K, WORDS, word[:2], KEY),
    ("<i>V</i>", one.V, WORDS, word[4:], VALUE),
    ("scores", one.scores, WORDS, WORDS, INK),
    ("weights", one.weights, WORDS, WORDS, INK),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(one.Q[3], 3.0, 0.0)
    says(one.scores[3], 0.0, 0.0, 4.26, 0.0, 3.19)
    says(two(one.scores[3].exp()), 1.0, 1.0, 70.81, 1.0, 24.29)
    says(two(one.scores[3].exp()).sum(), 98.10)
    says(one.weights[3], 0.01, 0.01, 0.72, 0.01, 0.25)
    assert one.weights.argmax(-1).tolist() == [2, 2, 3, 2, 3]

# %% [markdown]
# So *likes* finds who likes and what is liked, as in chapter 3, where the two had 0.62 and 0.29. The difference comes from the division: chapter 3 had keys of four numbers and divided by 2.
#
# What *likes* gets from head 1 is the blend of the values:
#
# $$
# \begin{aligned}
# \text{living:} \quad & 0.72 \cdot 1 + 0.25 \cdot 0.5 = 0.85 \\
# \text{edible:} \quad & 0.25 \cdot 1 = 0.25
# \end{aligned}
# $$
#
# ## The second head, and $W^O$
#
# Head 2 looks for adjectives. Its value is a single number, half of what a word has in the column "adjective"; we call it *dark*. Nouns and articles ask with 0.5. The query of *the* is $0.5 \cdot 2 = 1,$ the key of *black* 2, the score $2 / 1.41 = 1.42,$ and the weight $4.14 / 8.14 = 0.51.$ A verb asks for nothing here. All scores of *likes* are 0, so it takes 0.20 of every word, and with it 0.20 of the one "dark" there is.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-head-2", "caption": "What does head 2 find? *The*, *cat* and *fish* put their largest weight on *black*; *black* and *likes* have nothing to ask and weigh all words alike. No word looks for an article, so queries and keys are shown without that column. A row may miss 1.00 by a hundredth, since its five shares are rounded one by one."}}
tables(
    ("<i>Q</i>", second.Q[:, :1], WORDS, ["adj."], QUERY),
    ("<i>K</i>", second.K[:, :1], WORDS, ["adj."], KEY),
    ("<i>V</i>", second.V, WORDS, ["dark"], VALUE),
    ("weights", second.weights, WORDS, WORDS, INK),
    (
        "handed over",
        torch.cat([one.out, second.out], 1),
        WORDS,
        [*word[4:], "dark"],
        VALUE,
    ),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(second.Q[[0, 3]], 1.0, 0.0, 0.0, 0.0)
    says(second.scores[0], 0.0, 1.42, 0.0, 0.0, 0.0)
    says(two(second.scores[0].exp()).sum(), 8.14)
    says(second.weights[0], 0.12, 0.51, 0.12, 0.12, 0.12)
    says(second.weights[3], 0.2, 0.2, 0.2, 0.2, 0.2)
    says(one.out[3], 0.85, 0.25)
    says(second.out[3], 0.20)
    assert not second.Q[:, 1].any()

# %% [markdown]
# Side by side the heads hand over three numbers per word. $W^O$ brings "living" and "edible" back to their columns, and twice the "dark" to "adjective". *Likes* gets 0.40 of "adjective", 0.85 of "living" and 0.25 of "edible".
#
# ## Add and norm
#
# The sum is $(0.28, -1.98, 0, 2, 0.40, 0, 0.85, 0.25).$ Its mean is $1.80 / 8 = 0.23.$ The squared distances from the mean average 1.07, and the root of that is the deviation, 1.03. With gain 1 and bias 0, [layer normalization](09_layers.ipynb#layer-normalization) gives
#
# $$
# \begin{aligned}
# a_\text{likes} = (& 0.05,\; -2.21,\; -0.23,\; 1.77, \\
# & 0.17,\; -0.23,\; 0.62,\; 0.02) / 1.03 \\
# = (& 0.05,\; -2.15,\; -0.22,\; 1.72, \\
# & 0.17,\; -0.22,\; 0.60,\; 0.02).
# \end{aligned}
# $$
#
# ## The network
#
# The two [units](06_feed_forward.ipynb#a-network-is-a-sum-of-units) are almost those of chapter 6. "Meal" looks for a verb with something living and something edible around it, "pet" for a noun that is dark, alive and not to be eaten. At *likes*, "meal" computes $1.72 + 0.60 + 0.02 - 2 = 0.34$ and adds it to "edible": $0.02 + 0.34 = 0.36.$ At *cat*, "pet" computes $1.45 + 0.40 + 0.48 + 0.60 - 2.5 = 0.43,$ adds it to "living" and takes it from "edible". Everywhere else both are silent. One more norm, and the encoder layer is done.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-units", "caption": "What are the units? What each looks for, with its bias, and what it writes into the stream where it fires. \u201cObject\u201d belongs to the decoder. None of them reads the clock or writes to it."}}
units = ["meal", "pet", "object"]
seek = torch.cat([torch.cat([W1, U1], 1).T, torch.cat([b1, c1])[:, None]], 1)
tables(
    ("given looks for", seek[:, 2:], units, [*word, "bias"], INK),
    ("given writes", torch.cat([W2, U2])[:, 2:], units, word, STREAM),
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-memory", "caption": "What leaves the encoder? After attention and norm, $a$. One of the units fires at *cat* and one at *likes*. After the second norm, $m$, the memory that the decoder will read. Where no unit fires, a row that is normalized again stays as it is, but for rounding."}}
tables(
    ("norm: <i>a</i>", a, WORDS, SHORT, STREAM),
    ("units", fired, WORDS, units[:2], INK),
    ("memory: <i>m</i>", m, WORDS, SHORT, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:
    says((x + fetched)[3], 0.28, -1.98, 0.0, 2.0, 0.4, 0.0, 0.85, 0.25)
    says(torch.stack(mean_and_deviation((x + fetched)[3])), 0.23, 1.03)
    says((x + fetched)[3].sum(), 1.80)
    says(two((((x + fetched)[3] - 0.23) ** 2).mean()), 1.07)
    says((x + fetched)[3] - 0.23, 0.05, -2.21, -0.23, 1.77, 0.17, -0.23, 0.62, 0.02)
    says(a[3], 0.05, -2.15, -0.22, 1.72, 0.17, -0.22, 0.6, 0.02)
    says(a[2, [2, 4, 6, 7]], 1.45, 0.40, 0.48, -0.60)
    says(fired[2:4], 0.0, 0.43, 0.34, 0.0)
    says((a + fired @ W2)[3, 7], 0.36)
    assert fired.nonzero().tolist() == [[2, 1], [3, 0]]
    assert torch.equal(m[[0, 4]], a[[0, 4]]) and (m[1] - a[1]).abs().max() < 0.035

# %% [markdown]
# ## One step of the decoder
#
# The decoder has written *the black cat likes*. Its input begins with an empty row, as in the authors' code (our package puts the vector of `<s>` there), so each word stands one place later than in the source: *likes* is at 4, the place of the word to be written.
#
# With one layer, only the last row is needed: the others lead to predictions that have already been made, though they still offer keys and values. The causal mask hides nothing from the last row.
#
# **Self-attention.** To save paper, the decoder has the encoder's matrices; a trained one has its own. *Likes* asks head 1 for nouns with 3 and finds the only one, *cat*, with 0.95. In head 2 all scores are 0 again, so each word gets 0.20. The sum has mean 0.07 and deviation 1.06, and the norm makes it
#
# $$
# b = (-1.49, -1.30, -0.07, 1.82, 0.31, -0.07, 0.83, -0.07).
# $$

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-decoder", "caption": "What does the decoder see of itself? Its five inputs with positions, $t$, the first one empty, and the weights of the last row in either head. Head 1 settles on *cat*."}}
before = ["(empty)", *WORDS[:4]]
tables(
    ("<i>t</i>", t, before, SHORT, STREAM),
    (
        "weights",
        torch.cat([h.weights for h in wrote]),
        ["head 1", "head 2"],
        before,
        INK,
    ),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(wrote[0].Q, 3.0, 0.0)
    says(wrote[0].weights, 0.01, 0.01, 0.01, 0.95, 0.01)
    says(b, -1.49, -1.30, -0.07, 1.82, 0.31, -0.07, 0.83, -0.07)
    assert (wrote[1].weights == 0.2).all()

# %% [markdown]
# **Cross-attention** has one head, and compares places. Its query is three times the clock of $b,$ $3 \cdot (-1.49, -1.30) = (-4.47, -3.90),$ and a key is the clock of a word's memory. For *fish*, the score is $(4.47 \cdot 1.68 + 3.90 \cdot 1.49) / 1.41 = 9.45,$ for *likes* 5.97, and the weight of *fish* is 0.97. The value is the word, all six features, and $W^O$ adds three times the blend to the stream. This is how a model copies: [two clocks fit best where they show the same time](08_positional_encoding.ipynb#why-sine-and-cosine).

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-cross", "caption": "What does the decoder find in the source? The query of *likes* at 4, its scores and weights, and what is added to the stream. Keys and values are the columns of the memory $m$, the first two and the other six. *Fish*, at 4 in the source, gets nearly everything."}}
tables(
    ("<i>Q</i>", cross.Q, ["likes"], SHORT[:2], QUERY),
    (
        "scores and weights",
        torch.cat([cross.scores, cross.weights]),
        ["scores", "weights"],
        WORDS,
        INK,
    ),
    ("3 × the blend", cross.out @ C_O[:, 2:], ["likes"], word, STREAM),
)

# %% tags=["remove-cell"]
if CHECKING:
    says(cross.Q, -4.47, -3.90)
    says(m[4, :2], -1.68, -1.49)
    says(cross.scores[0, 3:], 5.97, 9.45)
    says(cross.weights, 0.0, 0.0, 0.0, 0.03, 0.97)
    sums = torch.cat(decoder[1::2])  # the three before a norm
    says(torch.cat(mean_and_deviation(sums), -1), 0.07, 1.06, 1.17, 1.88, 0.0, 1.25)

# %% [markdown]
# **The network.** The sum has mean 1.17 and deviation 1.88, and the norm gives
#
# $$
# c = (-1.41, -1.31, 1.18, 0.79, 0.42, -1.04, 0.62, 0.78).
# $$
#
# One unit, "object", fires where a verb has found a noun and something edible: $1.18 + 0.79 + 0.78 - 2 = 0.75.$ Then the verb has been said and the food is due, so it takes twice that, 1.50, from "verb" and adds it to "edible". The sum has mean 0 and deviation 1.25. After the last norm the state is
#
# $$
# s = (-1.13, -1.05, 0.94, -0.57, 0.34, -0.83, 0.50, 1.82).
# $$
#
# ## Logits, probabilities, loss
#
# Each word of the table is scored by its dot product with $s.$ For *fish*, $1.5 \cdot 0.94 - 0.5 \cdot 0.57 + 0.5 \cdot 0.50 + 1.82 = 3.20;$ for *cat*, $2 \cdot 0.94 + 0.50 = 2.38.$ The powers of $e$ are 0.19, 1.97, 10.80, 0.32 and 24.53, and their sum is 37.81. *Fish* has the probability $24.53 / 37.81 = 0.65,$ and the loss is $-\ln 0.65 = 0.43.$ Guessing among five words would cost $\ln 5 = 1.61.$

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-loss", "caption": "Which word comes next? Logits, probabilities, and the gradient of the loss at the logits: the probability, minus 1 for the right word. *Cat*, also a noun, is the only serious rival."}}
g = p - F.one_hot(torch.tensor([4]), 5)
rows = ["logits", "<i>p</i>", "gradient"]
tables(("output", torch.cat([logits, p, g]), rows, WORDS, INK))

# %% tags=["remove-cell"]
if CHECKING:
    says(c, -1.41, -1.31, 1.18, 0.79, 0.42, -1.04, 0.62, 0.78)
    says(unit, 0.75)
    says(s, -1.13, -1.05, 0.94, -0.57, 0.34, -0.83, 0.5, 1.82)
    says(logits[0, [2, 4]], 2.38, 3.20)
    says(two(logits.exp()), 0.19, 1.97, 10.80, 0.32, 24.53)
    says(two(logits.exp()).sum(), 37.81)
    says(p, 0.01, 0.05, 0.29, 0.01, 0.65)
    says(loss, 0.43)
    says(torch.tensor(5).log(), 1.61)

# %% [markdown]
# ## One gradient, one update
#
# Which way should a single weight move? We take the −2 with which "object" takes away "verb".
#
# 1. The gradient at the logits is $p$ minus 1 at the right word: $g = (0.01, 0.05, 0.29, 0.01, -0.35).$
# 2. The state gets $g E.$ For "verb", that is each word's gradient times its own "verb", and only *likes* and *fish* have any: $0.01 \cdot 2 - 0.35 \cdot 0.5 = -0.16.$ All eight are $(0, 0, 0.06, -0.16,$ $0.10, 0.02, 0.12, -0.35).$
# 3. Now back through the norm. It subtracts the mean of its input and divides by the size, so a change that only shifts all eight numbers, or only stretches them, makes no difference to the output. We therefore subtract these two parts from the gradient. The part that shifts is the mean of the eight, −0.03. The part that stretches is $s$ for "verb", −0.57, times the mean of the eight products of gradient and $s$, −0.05. Then we divide by the deviation: $(-0.16 - (-0.03) - (-0.57) \cdot (-0.05)) / 1.25 = -0.13.$
# 4. The weight was multiplied by the unit's 0.75, so its gradient is $-0.13 \cdot 0.75 = -0.10.$
# 5. An update with learning rate 1 subtracts it: the −2 becomes −1.90. Compute the last norm, the logits and the softmax again, and *fish* has 0.66. The loss falls from 0.43 to 0.42. The gradient predicted that: the weight moved by 0.10, and each unit of it changes the loss by 0.10, which makes $0.10 \cdot 0.10 = 0.01$.
#
# "Object" now takes a little less of "verb", which makes sense, since *fish* itself has 0.5 of it.
#
# :::{admonition} For a second reading: the gradient of a norm
# :class: dropdown
# Step 3 is the derivative of {eq}`eq-layer-norm` without gain and bias. With $\delta$ for the gradient that arrives at its output $s,$ and $\overline{\phantom{x}}$ for a mean over the $D$ numbers, its input gets
#
# $$
# \big(\delta - \overline{\delta} - s\; \overline{\delta \odot s}\,\big) / \sigma.
# $$ (eq-norm-gradient)
#
# The middle term takes out what would shift all numbers alike, the last one what would only stretch them, and the division is why a large input gets a small gradient.
# :::

# %%
pulls = two(g @ X)
mean = two(pulls.mean())
along = two((pulls * s).mean())
behind = two((pulls - mean - s * along) / mean_and_deviation(c + unit @ U2)[1])
entries = two(unit * behind)

updated = U2.clone()
updated[0, 3] -= entries[0, 3]
after = softmax(two(norm(c + unit @ updated) @ X.T))[0, 4]
print(f"fish {p[0, 4]:.2f} -> {after:.2f}, loss {loss:.2f} -> {two(-after.log()):.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    says(pulls, 0.0, 0.0, 0.06, -0.16, 0.10, 0.02, 0.12, -0.35)
    says(
        torch.stack([mean, along, behind[0, 3], entries[0, 3]]),
        -0.03,
        -0.05,
        -0.13,
        -0.1,
    )
    says(updated[0, 3], -1.9)
    says(torch.stack([after, two(-after.log())]), 0.66, 0.42)

# %% [markdown]
# ## The same in the package
#
# Now the package's own layers with these weights, nothing rounded, and PyTorch's backward pass. Head 2 gets a second value of zeros, since the module gives all heads one width.

# %% tags=["hide-input"]
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import DecoderLayer, EncoderLayer
from annotated_transformer.masks import causal_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention


def filled(module, *weights):
    """Set a module's parameters in turn; nn.Linear stores its matrices transposed."""
    with torch.no_grad():
        for parameter, weight in zip(
            module.double().parameters(), weights, strict=True
        ):
            parameter.copy_(weight.T if weight.dim() == 2 else weight)
    return module


queries, keys, values = (torch.cat(parts, 1) for parts in zip(*CUT))
values, output = F.pad(values, (0, 1)), F.pad(JOIN, (0, 0, 0, 1))
own = queries, keys, values, output
selves = [filled(MultiHeadAttention(8, heads=2, d_k=2, d_v=2), *own) for _ in range(2)]
crossing = filled(MultiHeadAttention(8, heads=1, d_k=2, d_v=6), C_Q, C_K, C_V, C_O)
zeros = torch.zeros(8)
first = filled(FeedForward(8, 2), W1, b1, W2, zeros)
last = filled(FeedForward(8, 1), U1, c1, U2, zeros)

memory = EncoderLayer(8, selves[0], first, dropout=0.0).double()(x[None])
layer = DecoderLayer(8, selves[1], crossing, last, dropout=0.0).double()
states = layer(t[None], memory, causal_mask(5), None)
exact = F.cross_entropy(states[0, -1:] @ X.T, torch.tensor([4]))
exact.backward()

gradient = last.linear2.weight.grad[:, 0]
for name, ours, theirs in (
    ("state", s[0], states[0, -1]),
    ("gradient", entries[0], gradient),
):
    print(f"{name:9} by hand", *(f"{v:6.2f}" for v in ours))
    print(" " * 9, "package", *(f"{v:6.2f}" for v in theirs))
print(f"loss      by hand {loss:6.2f}\n          package {exact:6.2f}")

chances = (states[0] @ X.T).softmax(-1)
for word, chance, best in zip(before, chances, chances.argmax(-1)):
    print(f"after {word:8} {WORDS[best]:5} {chance[best]:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert (memory[0] - m).abs().max() < 0.05 and (states[0, -1] - s).abs().max() < 0.05
    assert (gradient - entries[0]).abs().max() < 0.02 and abs(exact - loss) < 0.02
    assert chances.argmax(-1).tolist() == [0, 1, 2, 3, 4]

# %% [markdown]
# Unrounded, the package's layers end within a few hundredths of our state, our gradient and our loss. The last five lines are all rows of the decoder, each of which has seen only the words before it: it repeats the whole sentence, least sure of *cat*. But for dropout, the factor $\sqrt{d_\text{model}}$ and a mask with something to hide, you have now done all that a Transformer does; the base model does it with 512 columns instead of eight, eight heads and six layers on either side.
#
# ## What to remember
#
# - A layer multiplies matrices, takes one softmax in each head, sets negative numbers to zero inside the network, and adds and normalizes after each sub-layer.
# - Positions and words are added into one vector. Here each has columns of its own. In a large model they share hundreds of columns, and training keeps them apart.
# - A decoder's step needs one row of queries; the earlier words are there as keys and values.
# - The gradient starts as "probability minus 1 for the right word" and runs back through the same numbers.
#
# You now know how it works. Was it worth giving up recurrence? That can be counted and timed.
#
# ## Exercises
#
# **1. The row of the decoder's *cat*** (★, 15 min). Do head 1 for *cat* at position 3 of the decoder: its query, its scores, its weights, and what it fetches. Which keys may it see?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The first four, itself included. A noun looks for verbs, and no verb has been written yet: all
# scores are 0, and it takes a quarter of each.
row = attend(t[3:4], t[:4], *CUT[0])
for name in ("Q", "scores", "weights", "out"):
    print(f"{name:7}", *(f"{v:.2f}" for v in vars(row)[name][0]))

# %% tags=["remove-cell"]
if CHECKING:
    says(row.Q, 0.0, 2.0)
    says(row.weights, 0.25, 0.25, 0.25, 0.25)

# %% [markdown]
# **2. Fish like cats** (★, 10 min). Swap *cat* and *fish* in the source, so that it reads *the black fish likes cat*. What does *likes* give to each of the two in head 1, and what does it fetch? Which numbers of $x$ change?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The weights go with the words, 0.25 at position 2 and 0.72 at position 4, and what is fetched is the
# same: head 1 doesn't look at the clock. In x the clock stays, and the words in front of it swap.
swapped = X[[0, 1, 4, 3, 2]] + PE
row = attend(swapped[3:4], swapped, *CUT[0])
print("weights", *(f"{v:.2f}" for v in row.weights[0]), " fetched", row.out[0].tolist())

# %% tags=["remove-cell"]
if CHECKING:
    says(row.weights, 0.01, 0.01, 0.25, 0.01, 0.72)
    assert torch.equal(row.out[0], one.out[3])

# %% [markdown]
# **3. Which word does it move?** (★★, 15 min). Used for the output, the row of *fish* has the gradient $(p - 1)\, s$ ({eq}`eq-output-gradient`). Compute its entry for "edible". In a shared table, what is missing from it?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# (0.65 - 1) * 1.82 = -0.64, so "edible" of fish grows. Fish is also a word of the source, so its
# row gets a second part, through memory and cross-attention.
entry = two((p[0, 4] - 1) * s[0, 7])
print(f"{entry:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    says(entry, -0.64)

# %% [markdown]
# **4. A faint clock** (★★, 20 min). Let cross-attention ask with the clock itself instead of three times the clock. Which rows does the decoder still get right? Guess first: where are the neighbors' clocks hardest to tell apart?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# With a softer softmax each row mixes in its neighbors, and the word just read, which the stream
# still carries, wins where the neighbors are loudest: after *black* comes *black*, after *cat* comes *cat*.
with torch.no_grad():
    next(crossing.parameters()).div_(3)
    faint = (layer(t[None], memory, causal_mask(5), None)[0] @ X.T).softmax(-1)
    next(crossing.parameters()).mul_(3)
for word, chance, best in zip(before, faint, faint.argmax(-1)):
    print(f"after {word:8} {WORDS[best]:5} {chance[best]:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert faint.argmax(-1).tolist() == [0, 1, 1, 2, 4]

# %% [markdown]
# **5. Make it translate** (★★★, an evening; no solution). Give the output a table of its own with five German words, and choose weights so that the decoder writes *die schwarze Katze mag Fisch*. Then a harder one: let the adjective follow its noun, as in French. What must the query of cross-attention know now?
#
# ## Sources
#
# The model is that of {cite:t}`vaswani2017attention`, one layer of it. The empty first row is `shift_right_3d` in `layers/common_layers.py` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor). Words, weights and units are made up.
