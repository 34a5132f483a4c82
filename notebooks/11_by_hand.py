# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", ".", "..", "../..") if os.path.exists(r + "/book/map.svg")]
os.chdir(up[0] + "/notebooks" if up else sys.exit(f"Open this in a clone of {url}"))
sys.path.insert(0, "..")  # where book.figures stands


# %% [markdown]
# # By hand
#
# This page takes *the black cat likes fish* through one encoder layer and one step of the decoder, to the probability of the next word, its loss, a gradient and an update, and you can check each number on a pocket calculator.
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
# Here $x$ is the source with its positions, $t$ what the decoder has written so far, with its own, and $E$ the table of word vectors. A real model has more layers and wider ones, but no other kind of step. To work on paper, print this page: it takes four sheets.
#
# **The rule of the page.** Whatever you would write down is rounded to two decimals, halves away from zero, and the next number is computed from what is written.
#
# In code, the rule is `two`; softmax and [layer normalization](09_layers.ipynb#layer-normalization) follow it at each of their steps:

# %% tags=["hide-input"]
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from annotated_transformer.positional_encoding import sinusoid
from book.example import FEATURES, W_O


# %%
from book.example import W_K, W_Q, W_V, WORDS, X


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

from book.figures import INK, KEY, PAPER, POSITION, QUERY, RESIDUAL, VALUE
from book.figures import heatmap, page_colors, show, show_steps

# Words and positions; what the decoder has written begins with an empty row
PE = two(sinusoid(5, 6).double())
x = X + PE
t = torch.cat([torch.zeros(1, 6).double(), X[:4]]) + PE

# The two heads of chapter 5, and the units of chapter 6 with other thresholds
CUT = [(W_Q[:, :2], W_K[:, :2], W_V[:, [0, 2]]), (W_Q[:, 2:], W_K[:, 2:], W_V[:, [1]])]
JOIN = W_O[[0, 2, 1]]
W1 = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0]]).double().T
b1 = torch.tensor([-1.5, -1.0]).double()
W2 = torch.tensor([[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, -1]]).double()

# Cross-attention: a verb looks for a noun, and twice as much for something edible
C_Q, C_K, C_V = (
    torch.zeros(6, 2).double(),
    torch.zeros(6, 2).double(),
    torch.zeros(6, 1).double(),
)
C_Q[1] = torch.tensor([1.0, 2.0])
C_K[0, 0] = C_K[5, 1] = C_V[5, 0] = 1.0
C_O = torch.tensor([[1, 0, 0, 0, 0, 1]]).double()

# The decoder's unit "object": it fires at a verb that has found something edible
U1 = torch.tensor([[0, 1, 0, 0, 0, 1]]).double().T
c1 = torch.tensor([-1.0]).double()
U2 = torch.tensor([[1, -2, 0, -1, 0, 0]]).double()

STREAM = f"var(--book-residual, {RESIDUAL})"  # lighter on a dark page


def tables(*parts):
    """Show small tables: (title, matrix, names of the rows, names of the columns, color)."""
    page = plain = ""
    for title, matrix, rows, columns, color in parts:
        style = (
            "g" if torch.equal(2 * matrix, (2 * matrix).round()) else ".2f"
        )  # given: halves
        lines = [
            [f"{v + 0.0:{style}}".replace("-", "\u2212") for v in line]
            for line in matrix
        ]
        head = "".join(f'<th scope="col">{name}</th>' for name in columns)
        body = f"<tr><td></td>{head}</tr>"
        for name, line in zip(rows, lines):
            bold = ' style="font-weight:700"' if name == "likes" else ""
            cells = "".join(f"<td>{number}</td>" for number in line)
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


def says(tensor, *numbers):
    """Check a line of the text against what was computed."""
    found = [round(v, 2) for v in tensor.flatten().tolist()]
    assert found == [*numbers], found


# %% [markdown]
# One head, and two of them side by side. (1.41 is $\sqrt{d_k} = \sqrt 2$, `CUT` holds the matrices of the two, `JOIN` is $W^O$; all weights are folded above.)


# %%
def attend(asks, answers, q, k, v):
    Q, K, V = two(asks @ q), two(answers @ k), two(answers @ v)
    scores = two(Q @ K.T / 1.41)
    weights = softmax(scores)
    out = two(weights @ V)
    return SimpleNamespace(Q=Q, K=K, V=V, scores=scores, weights=weights, out=out)


def self_attention(asks, answers):
    heads = [attend(asks, answers, *matrices) for matrices in CUT]
    return heads, torch.cat([head.out for head in heads], -1) @ JOIN


# %% [markdown]
# Now the whole page, {eq}`eq-by-hand` line by line. `x` and `t` hold the words of the source and of the target, each with its position from `PE`. The network of the encoder has the weights `W1`, `b1` and `W2`, that of the decoder `U1`, `c1` and `U2`, and cross-attention has `C_Q`, `C_K`, `C_V` and `C_O`:

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

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-by-hand", "caption": "Where does this page go? Above, the vector of *likes* on its way through the encoder layer; below, the same word in the decoder, where it stands at position 4 and has to become a prediction of what follows. A row that begins with a plus is a sum; a norm takes away the mean of the row above and divides by its deviation. In the last row, the state, \u201cverb\u201d has become the lowest number and \u201cedible\u201d the largest. Purple is positive, orange negative."}}
encoder = torch.stack([X[3], x[3], (x + fetched)[3], a[3], (a + fired @ W2)[3], m[3]])
decoder = [t[-1:], t[-1:] + recalled, b, b + cross.out @ C_O, c, c + unit @ U2, s]
names = ["likes", "+ position", "+ self-attention", "norm", "+ network", "norm: memory"]
later = ["likes at 4", *names[2:4], "+ cross-attention", *names[3:5], "norm: state"]


def statement(rows, names, title):
    """Chart rows with their mean and deviation."""
    size = {"height": 26 * len(names)}
    moments = (
        torch.cat(mean_and_deviation(rows), -1),
        [""] * len(names),
        ["mean", "deviation"],
    )
    look = {"titles": ("", ""), "cell": 38}
    left = heatmap(rows, names, FEATURES, signed=True, limit=2.8, **look)
    right = heatmap(*moments, color=PAPER, **look)
    chart = alt.hconcat(
        left.properties(title=title, **size), right.properties(**size), spacing=2
    )
    return chart.resolve_scale(fill="independent", fillOpacity="independent")


assert s[0].argmax() == 5 and s[0].argmin() == 1
says(s[0, 5], 1.8)
show(
    alt.vconcat(
        statement(encoder, names, "encoder"),
        statement(torch.cat(decoder), later, "decoder"),
        spacing=14,
        padding={"left": 16, "top": 4, "right": 4, "bottom": 4},
    ),
    alt="Likes changes at every addition and every norm. At the end of the decoder its largest number is 1.80, in the column edible.",
)

# %% [markdown]
# ## Words and positions
#
# The source vectors are those of [chapter 3](03_attention.ipynb#queries-keys-and-values), and to each we add its [position](08_positional_encoding.ipynb#why-sine-and-cosine), counted from 0. *Likes* stands at 3, and six columns are three clocks. The first shows $\sin 3 = 0.14$ and $\cos 3 = -0.99$ (set the calculator to radians). The second is $10000^{1/3} = 21.54$ times slower and shows $\sin(3/21.54) = 0.14$ and $\cos(3/21.54) = 0.99$; the third, slower again by as much, still stands at 0.01 and 1.00.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-input", "caption": "What goes in? The five words and their positions (pink) add up to the input $x$ of the encoder. The row in bold is the one that the text computes."}}
says(torch.tensor(10000 ** (1 / 3)), 21.54)
says(PE[3], 0.14, -0.99, 0.14, 0.99, 0.01, 1.0)
says(x[3], 0.14, 1.01, 0.14, 0.99, 0.01, 1.0)
short = ["noun", "verb", "adj.", "art.", "living", "edible"]
tables(
    ("words", X, WORDS, short, STREAM),
    ("+ positions", PE, list("01234"), short, POSITION),
    ("= <i>x</i>", x, WORDS, short, STREAM),
)

# %% [markdown]
# We leave out the factor $\sqrt{d_\text{model}} = 2.45$ that [embeddings](07_embeddings.ipynb#why-multiply-by-the-square-root-of-) get, so that a 2 stays a 2. It costs something: half of the "verb" of *likes* is gone, and it is now just as much an article, and edible.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-given", "caption": "Which weights are given? $W^Q$ of both heads, two columns each: a row is a feature of the word that asks, a column a feature that it looks for. Keys are the first four features as they are. $W^O$ has one row for each number that the heads hand over."}}
says(torch.tensor(6).sqrt(), 2.45)
assert torch.equal(W_K, torch.eye(6, 4).double())
tables(
    ("<i>W<sup>Q</sup></i>, head 1", CUT[0][0], short, short[:2], QUERY),
    ("<i>W<sup>Q</sup></i>, head 2", CUT[1][0], short, short[2:4], QUERY),
    ("<i>W<sup>O</sup></i>", JOIN, ["living", "edible", "dark"], short, STREAM),
)

# %% [markdown]
# ## The first head
#
# We use the two [heads](05_multi_head_attention.ipynb#why-several-heads) of chapter 5. Head 1 asks about nouns and verbs and hands over *living* and *edible*. In its $W^Q$, a verb looks for a noun with strength 1.5, an adjective and an article with 1, and a noun looks for a verb:
#
# $$
# q_\text{likes} = (1.5 \cdot 1.01 + 0.14 + 0.99,\; 0.14) = (2.65,\, 0.14)
# $$
#
# A <span style="color:#D55E00">**key**</span> is the first two numbers of $x$, a <span style="color:#009E73">**value**</span> the last two. The score of *cat* is the product of <span style="color:#0072B2">**query**</span> and key over $\sqrt{d_k} = \sqrt 2 = 1.41$:
#
# $$
# (2.65 \cdot 2.91 - 0.14 \cdot 0.42) / 1.41 = 5.43
# $$
#
# For the softmax, raise $e$ to each score in the row of *likes*: 1.11, 5.10, 228.15, 1.43 and 3.97, which sum to 239.76. The share of *cat* is $228.15 / 239.76 = 0.95$.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-head-1", "caption": "Who looks at whom in head 1? Scores and weights have a query in each row. *The*, *black* and *likes* settle on *cat*. *Cat* looks for a verb and gives most to *likes* and to *the*, whose position has a cosine of 1 in that column."}}
one, second = read
says(one.Q[3], 2.65, 0.14)
says(one.K[2], 2.91, -0.42)
says(one.scores[3], 0.10, 1.63, 5.43, 0.36, 1.38)
says(two(one.scores[3].exp()), 1.11, 5.10, 228.15, 1.43, 3.97)
says(two(one.scores[3].exp()).sum(), 239.76)
says(one.weights[3], 0.0, 0.02, 0.95, 0.01, 0.02)
assert one.weights[[0, 1, 3], 2].min() >= 0.95 and {
    *one.weights[2].topk(2).indices.tolist()
} == {
    0,
    3,
}
tables(
    ("<i>Q</i>", one.Q, WORDS, short[:2], QUERY),
    ("<i>K</i>", one.K, WORDS, short[:2], KEY),
    ("<i>V</i>", one.V, WORDS, short[4:], VALUE),
    ("scores", one.scores, WORDS, WORDS, INK),
    ("weights", one.weights, WORDS, WORDS, INK),
)

# %% [markdown]
# In chapter 3 *likes* gave 0.29 to *fish*, and here it gives 0.02. That is mostly the position's doing: at 4 the sine is −0.76, which leaves *fish* with half of its "noun", while *cat* has gained 0.91. Six columns are too narrow for word and place. The factor 2.45 would let the words outweigh the clocks, and a trained model learns which columns to trust.
#
# What *likes* gets from head 1 is the blend of the values:
#
# $$
# \begin{aligned}
# \text{living:} \quad & 0.95 \cdot 1.00 + 0.01 \cdot 0.01 + 0.02 \cdot 0.51 = 0.96 \\
# \text{edible:} \quad & (0.02 + 0.95 + 0.01) \cdot 1.00 + 0.02 \cdot 2.00 = 1.02
# \end{aligned}
# $$
#
# ## The second head, and $W^O$
#
# Head 2 looks for adjectives and hands over half of "adjective", as *dark*. Nouns and articles ask with 0.5. *Likes*, which its place has made an article, asks with $0.5 \cdot 0.14 + 0.5 \cdot 0.99 = 0.57$. The key of *black* is 2.05, the score $0.57 \cdot 2.05 / 1.41 = 0.83$, and the weight 0.35.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-head-2", "caption": "What does head 2 find? Each query looks for an adjective and puts its largest weight on *black*; no word looks for an article, so queries and keys are shown without that column. A row may miss 1.00 by a hundredth, since its five shares are rounded one by one."}}
says(PE[4, 0], -0.76)
says(x[[4, 2], 0] - X[[4, 2], 0], -0.76, 0.91)
says(second.Q[3], 0.57, 0.0)
says(second.scores[3], 0.0, 0.83, 0.04, 0.06, 0.07)
says(second.weights[3], 0.15, 0.35, 0.16, 0.16, 0.17)
says(one.out[3], 0.96, 1.02)
says(second.out[3], 0.40)
assert second.weights.argmax(-1).tolist() == [1] * 5 and not second.Q[:, 1].any()
tables(
    ("<i>Q</i>", second.Q[:, :1], WORDS, ["adj."], QUERY),
    ("<i>K</i>", second.K[:, :1], WORDS, ["adj."], KEY),
    ("<i>V</i>", second.V, WORDS, ["dark"], VALUE),
    ("weights", second.weights, WORDS, WORDS, INK),
    (
        "handed over",
        torch.cat([one.out, second.out], 1),
        WORDS,
        [*short[4:], "dark"],
        VALUE,
    ),
)

# %% [markdown]
# Side by side the heads hand over three numbers a word. $W^O$ brings "living" and "edible" back to their columns, and twice the "dark" to "adjective". For *likes* it adds $(0, 0, 0.80, 0, 0.96, 1.02)$.
#
# ## Add and norm
#
# The sum is $(0.14, 1.01, 0.94, 0.99, 0.97, 2.02)$. Its mean is $6.07 / 6 = 1.01$. The squared distances from the mean average 0.30, and the root of that is the deviation, 0.55. With gain 1 and bias 0, [layer normalization](09_layers.ipynb#layer-normalization) gives
#
# $$
# \begin{aligned}
# a_\text{likes} &= (-0.87,\; 0,\; -0.07,\; -0.02,\; -0.04,\; 1.01) / 0.55 \\
# &= (-1.58,\; 0,\; -0.13,\; -0.04,\; -0.07,\; 1.84).
# \end{aligned}
# $$
#
# ## The network
#
# The two [units](06_feed_forward.ipynb#a-network-is-a-sum-of-units) are those of chapter 6, "meal" (verb, living, edible) and "pet" (noun, adjective, living). Only their thresholds are lower, 1.5 and 1, since after the norm the numbers of a row sum to about zero. At *likes*, "meal" computes $0 - 0.07 + 1.84 - 1.5 = 0.27$ and adds it to "edible": $1.84 + 0.27 = 2.11$. At *cat*, "pet" computes $1.48 + 0.35 - 0.31 - 1 = 0.52$, adds it to "living" and takes it from "edible". Everywhere else both are silent. One more norm, and the encoder layer is done.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-units", "caption": "What are the units? What each looks for, with its bias, and what it writes into the stream where it fires. \u201cObject\u201d belongs to the decoder."}}
units = ["meal", "pet", "object"]
seek = torch.cat([torch.cat([W1, U1], 1).T, torch.cat([b1, c1])[:, None]], 1)
tables(
    ("looks for", seek, units, [*short, "bias"], INK),
    ("writes", torch.cat([W2, U2]), units, short, STREAM),
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-memory", "caption": "What leaves the encoder? After attention and norm, $a$. One of the units fires at *cat* and one at *likes*. After the second norm, $m$, the memory that the decoder will read. Where no unit fires, both are the same: a row that is normalized stays as it is."}}
says((x + fetched)[3], 0.14, 1.01, 0.94, 0.99, 0.97, 2.02)
says(fetched[3], 0.0, 0.0, 0.80, 0.0, 0.96, 1.02)
says(torch.stack(mean_and_deviation((x + fetched)[3])), 1.01, 0.55)
says(two((((x + fetched)[3] - 1.01) ** 2).mean()), 0.30)
says(a[3], -1.58, 0.0, -0.13, -0.04, -0.07, 1.84)
says(a[2], 1.48, -1.76, 0.35, -0.38, -0.31, 0.63)
assert fired.nonzero().tolist() == [[2, 1], [3, 0]]
says(fired[2:4], 0.0, 0.52, 0.27, 0.0)
says((a + fired @ W2)[3, 5], 2.11)
assert torch.equal(m[[0, 1, 4]], a[[0, 1, 4]])
tables(
    ("norm: <i>a</i>", a, WORDS, short, STREAM),
    ("units", fired, WORDS, units[:2], INK),
    ("memory: <i>m</i>", m, WORDS, short, STREAM),
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-stream", "caption": "How do all five words change on the way? The stream in the encoder layer; choose a step. Attention raises \u201cedible\u201d by about 1 in every row, because each position has a cosine of 1 there, so that every value has one to give. Purple is positive, orange negative."}}
stages = {
    "words": (X, "Five words, six features each."),
    "+ positions": (x, "The first two columns and the cosines have changed most."),
    "+ attention": (x + fetched, "Adjective, living and edible have grown."),
    "norm": (a, "Each row sums to about zero."),
    "+ network": (a + fired @ W2, "Cat and likes have changed, nothing else."),
    "memory": (m, "The rows of cat and likes are normalized again."),
}
look = {"titles": ("word", "feature"), "signed": True, "cell": 44, "limit": 2.8}
steps = {
    name: (heatmap(M, WORDS, FEATURES, **look), label)
    for name, (M, label) in stages.items()
}
show_steps(steps, "Which step?", start=2)
assert (fetched[:, 5] - 1).abs().max() < 0.15 and a.sum(-1).abs().max() < 0.05

# %% [markdown]
# ## One step of the decoder
#
# Our decoder repeats the sentence, the simplest translation there is. It has written *the black cat likes* and must say *fish*. Its input begins with an empty row, as in the authors' code (our package puts the vector of `<s>` there), so each word stands one place later than in the source: *likes* is at 4.
#
# With one layer, only the last row is needed: the others lead to predictions that have already been made, though they still offer keys and values. The causal mask hides nothing from the last row. {numref}`fig-by-hand` has each of its sums.
#
# **Self-attention.** To save paper, the decoder has the encoder's matrices; a trained one has its own. *Likes* asks head 1 for nouns with 3.19, finds *cat* with 0.93, and fetches 0.94 of living and 0.99 of edible. Head 2 adds 0.28 of dark, which $W^O$ doubles. The sum has mean 0.88 and deviation 0.84, and the norm makes it $b = (-1.95, 0.56, -0.17, 0.12, 0.08, 1.32)$, mostly "edible" and anything but a noun.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-decoder", "caption": "What does the decoder see of itself? Its five inputs with positions, $t$, the first one empty, and the weights of the last row in either head. Head 1 settles on *cat*; head 2, with little to ask, is nearly even."}}
says(wrote[0].Q, 3.19, -0.76)
says(wrote[0].weights, 0.0, 0.02, 0.04, 0.93, 0.0)
says(torch.cat([head.out for head in wrote], -1), 0.94, 0.99, 0.28)
says(b, -1.95, 0.56, -0.17, 0.12, 0.08, 1.32)
assert wrote[1].weights.max() - wrote[1].weights.min() < 0.05
before = ["(empty)", *WORDS[:4]]
tables(
    ("<i>t</i>", t, before, short, STREAM),
    (
        "weights",
        torch.cat([h.weights for h in wrote]),
        ["head 1", "head 2"],
        before,
        INK,
    ),
)

# %% [markdown]
# **Cross-attention** has one head. Its query comes from the decoder: a verb looks for a noun with 1 and for something edible with 2, so 0.56 of "verb" asks with $(0.56, 1.12)$. The key of a word is "noun" and "edible" of its memory. For *fish*, the score is $(-0.56 \cdot 0.41 + 1.12 \cdot 2.02) / 1.41 = 1.44$ and the weight 0.38, the largest. The value is "edible". Mixed by the weights it is 1.36, which $W^O$ adds to "noun" and to "edible".

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-cross", "caption": "What does the decoder find in the source? The query of *likes*, keys and values of the memory (one column a word), and the weights. *Fish* gets the most; *likes*, nearly as edible, comes second."}}
says(cross.Q, 0.56, 1.12)
says(m[4, [0, 5]], -0.41, 2.02)
says(cross.scores[0, 4], 1.44)
says(cross.weights, 0.08, 0.12, 0.18, 0.23, 0.38)
says(cross.out, 1.36)
sums = torch.cat(decoder[1::2])  # the three before a norm
says(torch.cat(mean_and_deviation(sums), -1), 0.88, 0.84, 0.45, 1.06, -0.40, 1.39)
tables(
    ("<i>Q</i>", cross.Q, ["likes"], ["noun", "edible"], QUERY),
    ("<i>K</i>, transposed", cross.K.T, ["noun", "edible"], WORDS, KEY),
    ("<i>V</i>, transposed", cross.V.T, ["edible"], WORDS, VALUE),
    ("weights", cross.weights, ["likes"], WORDS, INK),
)

# %% [markdown]
# **The network.** The sum has mean 0.45 and deviation 1.06, and the norm gives $c = (-0.98, 0.10, -0.58, -0.31, -0.35, 2.10)$. One unit, "object", fires where a verb has found something edible: $0.10 + 2.10 - 1 = 1.20$. What comes next is no verb and no article but a noun, so it writes $1.20 \cdot (1, -2, 0, -1, 0, 0)$. The sum has mean −0.40 and deviation 1.39. After the last norm the state is
#
# $$
# s = (0.45,\; -1.37,\; -0.13,\; -0.80,\; 0.04,\; 1.80).
# $$
#
# ## Logits, probabilities, loss
#
# Each word of the table is scored by its dot product with $s$. For *fish*, $1.5 \cdot 0.45 - 0.5 \cdot 1.37 + 0.5 \cdot 0.04 + 1.80 = 1.81$; for *cat*, $2 \cdot 0.45 + 0.04 = 0.94$. The powers of $e$ are 0.20, 0.77, 2.56, 0.06 and 6.11, and their sum is 9.70. *Fish* has the probability $6.11 / 9.70 = 0.63$, and the loss is $-\ln 0.63 = 0.46$. Guessing among five words would cost $\ln 5 = 1.61$.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hand-loss", "caption": "Which word comes next? Logits, probabilities, and the gradient of the loss at the logits: the probability, minus 1 for the right word. *Cat*, also a noun, is the only serious rival."}}
g = p - F.one_hot(torch.tensor([4]), 5)
says(c, -0.98, 0.10, -0.58, -0.31, -0.35, 2.10)
says(unit, 1.20)
says(s, 0.45, -1.37, -0.13, -0.8, 0.04, 1.8)
says(logits, -1.6, -0.26, 0.94, -2.74, 1.81)
says(two(logits.exp()), 0.20, 0.77, 2.56, 0.06, 6.11)
says(two(logits.exp()).sum(), 9.70)
says(p, 0.02, 0.08, 0.26, 0.01, 0.63)
says(loss, 0.46)
says(torch.tensor(5).log(), 1.61)
rows = ["logits", "<i>p</i>", "gradient"]
tables(("output", torch.cat([logits, p, g]), rows, WORDS, INK))

# %% [markdown]
# ## One gradient, one update
#
# Which way should a single weight move? We take the −2 with which "object" erases "verb".
#
# 1. The gradient at the logits is $p$ minus 1 at the right word: $g = (0.02, 0.08, 0.26, 0.01, -0.37)$.
# 2. The state gets $g E$. For "verb", each word's gradient times its own "verb", that is $0.01 \cdot 2 - 0.37 \cdot 0.5 = -0.17$. All six are $(-0.04, -0.17, 0.16, 0.04, 0.08, -0.37)$.
# 3. A norm ignores the mean and the size of its input, so nothing can be gained in these two directions. We subtract the mean of the six, −0.05, and $s$ times the mean of their products with $s$, −0.08, then divide by the deviation: $(-0.17 + 0.05 - 1.37 \cdot 0.08) / 1.39 = -0.17$.
# 4. The weight was multiplied by the unit's 1.20, so its gradient is $-0.17 \cdot 1.20 = -0.20$.
# 5. An update with learning rate 1 subtracts it: the −2 becomes −1.80. Do the last norm and the softmax again, and *fish* has 0.66. The loss falls from 0.46 to 0.42, by the $0.20 \cdot 0.20 = 0.04$ that the gradient promised.
#
# "Object" now erases the verb a little less, which makes sense, since *fish* itself has 0.5 of "verb".
#
# :::{admonition} For a second reading: the gradient of a norm
# :class: dropdown
# Step 3 is the derivative of {eq}`eq-layer-norm` without gain and bias. With $\delta$ for the gradient that arrives at its output $s$, and $\overline{\phantom{x}}$ for a mean over the $D$ numbers, its input gets
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
updated[0, 1] -= entries[0, 1]
after = softmax(two(norm(c + unit @ updated) @ X.T))[0, 4]
print(f"fish {p[0, 4]:.2f} -> {after:.2f}, loss {loss:.2f} -> {two(-after.log()):.2f}")

# %% tags=["remove-cell"]
says(pulls, -0.04, -0.17, 0.16, 0.04, 0.08, -0.37)
says(torch.stack([mean, along, behind[0, 1], entries[0, 1]]), -0.05, -0.08, -0.17, -0.2)
says(updated[0, 1], -1.8)
says(torch.stack([after, two(-after.log())]), 0.66, 0.42)

# %% [markdown]
# ## The same in the package
#
# Now the package's own layers with these weights, nothing rounded, and PyTorch's backward pass. Head 2 gets a second value of zeros, since the module gives all heads one width.

# %%
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


nothing = torch.zeros(6, 1)
zeros = torch.zeros(6)
own = W_Q, W_K, torch.cat([W_V[:, [0, 2, 1]], nothing], 1), torch.cat([JOIN, nothing.T])
selves = [filled(MultiHeadAttention(6, heads=2, d_k=2, d_v=2), *own) for _ in range(2)]
crossing = filled(MultiHeadAttention(6, heads=1, d_k=2, d_v=1), C_Q, C_K, C_V, C_O)
first = filled(FeedForward(6, 2), W1, b1, W2, zeros)
last = filled(FeedForward(6, 1), U1, c1, U2, zeros)

places = sinusoid(5, 6).double()
memory = EncoderLayer(6, selves[0], first, dropout=0.0).double()((X + places)[None])
layer = DecoderLayer(6, selves[1], crossing, last, dropout=0.0).double()
states = layer((t - PE + places)[None], memory, causal_mask(5), None)
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

# %% tags=["remove-cell"]
assert (memory[0] - m).abs().max() < 0.05 and (states[0, -1] - s).abs().max() < 0.02
assert (gradient - entries[0]).abs().max() < 0.02

# %% [markdown]
# With nothing rounded, the package's layers end within 0.02 of our state and our gradient, and the loss is 0.46 as well. But for dropout, the factor $\sqrt{d_\text{model}}$ and a mask with something to hide, you have now done all that a Transformer does; the base model does it with 512 columns instead of six, eight heads and six layers on either side.
#
# ## What to remember
#
# - A layer is products, a softmax for each head, a cut at zero, and a sum and a norm after each sub-layer.
# - Positions share the columns of the words, and where these are few they disturb the words.
# - A decoder's step needs one row of queries; the earlier words are there as keys and values.
# - The gradient starts as "probability minus 1 for the right word" and runs back through the same numbers.
#
# You now know how it works. Was it worth giving up recurrence? That can be counted and timed.
#
# ## Exercises
#
# **1. The row of the decoder's *cat*** (★, 15 min). Do head 1 for *cat* at position 3 of the decoder: its query, its scores, its weights, and what it fetches. Which keys may it see?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The first four, itself included. A noun looks for verbs, here with 2.14, and the cosine of
# position 0 makes the empty row its best verb.
row = attend(t[3:4], t[:4], *CUT[0])
for name in ("Q", "scores", "weights", "out"):
    print(f"{name:7}", *(f"{v:.2f}" for v in vars(row)[name][0]))
says(row.Q, -0.36, 2.14)
assert row.weights.argmax() == 0

# %% [markdown]
# **2. Without the clocks** (★★, 15 min). Leave the positions out of the source. What does *likes* give to *cat* and to *fish* in head 1, and why doesn't it divide its weight as in chapter 3, where *cat* got 0.62 and *fish* 0.29?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The scores are 3 * 2 / 1.41 = 4.26 and 3 * 1.5 / 1.41 = 3.19. A head of width 2 divides by 1.41
# where chapter 3 divided by 2, so the same products give a sharper softmax.
plain = attend(X, X, *CUT[0])
print("cat and fish:", *(f"{v:.2f}" for v in plain.weights[3, [2, 4]]))
says(plain.scores[3, [2, 4]], 4.26, 3.19)
says(two((X @ W_Q @ (X @ W_K).T / 2).softmax(-1))[3, [2, 4]], 0.62, 0.29)

# %% [markdown]
# **3. Which word does it move?** (★★, 15 min). Used for the output, the row of *fish* has the gradient $(p - 1)\, s$ ({eq}`eq-output-gradient`). Compute its entry for "edible". In a shared table, what is missing from it?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# (0.63 - 1) * 1.80 = -0.67, so "edible" of fish grows. Fish is also a word of the source, so its
# row gets a second part, through memory and cross-attention.
entry = two((p[0, 4] - 1) * s[0, 5])
print(f"{entry:.2f}")
says(entry, -0.67)

# %% [markdown]
# **4. The other rows** (★★, 20 min). What does this decoder say at its four earlier positions? Guess first; they were not in view when the weights were chosen.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It repeats what it reads: after *the* comes *the*, after *black* comes *black*. The stream begins
# as the word itself, and in a shared table that word fits best. After the empty row it says *fish*.
chances = (states[0] @ X.T).softmax(-1)
for word, chance, best in zip(before, chances, chances.argmax(-1)):
    print(f"after {word:8} {WORDS[best]:5} {chance[best]:.2f}")
assert chances.argmax(-1).tolist() == [4, 0, 1, 2, 4]

# %% [markdown]
# **5. Make it a copier** (★★★, an evening; no solution). Choose cross-attention matrices and units by hand, in as many columns as you need, so that all five rows come out right. What must a query know about its place?
#
# ## Sources
#
# The model is that of {cite:t}`vaswani2017attention`, one layer of it. The empty first row is `shift_right_3d` in `layers/common_layers.py` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor). Words, weights and units are made up.
