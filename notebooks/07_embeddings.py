# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Embeddings
#
# An embedding table holds one learned vector for each token; the model looks tokens up in it at the bottom and scores the next word against it at the top (section 3.4 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("embeddings")

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
# ## Why not feed the number itself?
#
# A tokenizer turns a sentence into whole numbers, one for each *token*, a word or a piece of one. You could hand that number to a linear layer. What would be wrong with the result?

# %% tags=["hide-input"]
from math import log

import altair as alt

from book.example import FEATURES, WORDS, X
from book.figures import AMBER, INK, POSITION, SKY, heatmap, show

# %%
torch.manual_seed(0)
from_number = nn.Linear(1, 4, bias=False)
for token in (4.0, 8.0):
    print(token, [round(v, 2) for v in from_number(torch.tensor([token])).tolist()])

# %% [markdown]
# Token 8 gets twice the vector of token 4, though 4 may be *cat* and 8 *quickly*. A token's number is only its place in a list.
#
# The fair input is a **one-hot vector**: as long as the vocabulary, zero everywhere but at the token's place, so that all tokens are equally far apart. With the paper's vocabulary of about 37,000, 25 tokens become $25 \cdot 37{,}000 = 925{,}000$ numbers, 25 of which aren't zero.
#
# The first thing that a network does with a one-hot vector is to multiply it by some matrix $E$, and that product is one row of $E$ ({numref}`fig-lookup`). We skip the zeros and look the row up. It is the token's **embedding**.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-lookup", "caption": "Why is a lookup a matrix product? Left: *cat likes fish* as one-hot rows. Middle: a table of five words, the vectors of chapter 3. Right: the product of the two, which is rows 2, 3 and 4 of the table."}}
tokens = torch.tensor([2, 3, 4])
one_hot = F.one_hot(tokens, num_classes=5).double()
three = ["cat", "likes", "fish"]
look = {"cell": 30, "color": SKY}
drawn = [heatmap(one_hot, three, WORDS, titles=("", "one-hot"), **look)]
drawn += [
    heatmap(matrix, rows, FEATURES, titles=("", title), limit=2, cell=30)
    for matrix, rows, title in ((X, WORDS, "table E"), (one_hot @ X, three, "product"))
]
show(
    alt.hconcat(*drawn).resolve_scale(fillOpacity="independent"),
    alt="A one-hot row times the table gives the row of the table that belongs to the token.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(one_hot @ X, X[tokens])

# %% [markdown]
# :::{margin}
# Chapter 3 made up names for the six columns of our five words. The 512 columns of a trained model have none.
# :::
#
# ## How the table scores words
#
# Suppose the model has written *the black cat likes* and looks for the next word. At the top of the decoder there is one vector $x$ for this position, the *state*, and each word is scored by its dot product with it. Let the state ask for a noun that is edible.

# %%
from book.example import WORDS, X

x = torch.tensor([1, 0, 0, 0, 0, 1]).double()  # noun, and edible
scores = dict(zip(WORDS, (x @ X.T).tolist()))
print(scores)

# %% [markdown]
# For *fish* the product is $1 \cdot 1.5 + 1 \cdot 1 = 2.5$, for *cat* it is 2: a noun, but not edible. A score before the softmax is a **logit**. The table in which the model looks words up also scores the next word. Using one table for both is called **weight tying**.
#
# ## The code
#
# Let $E$ be the table, with $|V|$ rows and $d_\text{model}$ columns, $o$ a one-hot row, and $x$ the vector that the decoder has computed:
#
# $$
# \text{embed}(o) = \sqrt{d_\text{model}}\; o\, E
# \qquad\qquad
# \text{logits}(x) = x\, E^\top
# $$ (eq-embedding)
#
# Each direction is a method of a line or two. What the root is for, [we'll see](#why-multiply-by-the-square-root-of-).


# %% tags=["export"]
class Embedding(nn.Module):
    """One table of word vectors for source, target and output (section 3.4)."""

    def __init__(self, vocabulary_size: int, d_model: int) -> None:
        super().__init__()
        self.scale = sqrt(d_model)
        self.weight = nn.Parameter(torch.empty(vocabulary_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look tokens (B, T) up: vectors (B, T, D), scaled by sqrt(d_model)."""
        vectors = F.embedding(tokens, self.weight)
        return vectors * self.scale

    def logits(self, states: Tensor) -> Tensor:
        """Score every word of the vocabulary at every position: (B, T, D) to (B, T, |V|)."""
        return F.linear(states, self.weight)


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the check against one-hot vectors", "code_prompt_hide": "Hide the check against one-hot vectors"}
embedding = Embedding(vocabulary_size=10, d_model=6).double()
tokens = torch.tensor([[1, 4, 8, 2], [1, 7, 2, 0]])
one_hot = F.one_hot(tokens, num_classes=10).double()
states = embedding(tokens)
logits = embedding.logits(states)
print(tuple(tokens.shape), "->", tuple(states.shape), "->", tuple(logits.shape))
expected = one_hot @ embedding.weight * 6**0.5
print(f"difference to one-hot vectors: {(states - expected).abs().max():.5f}")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(logits, states @ embedding.weight.T)

# %% [markdown]
# ## One table, three uses
#
# The paper shares the table three ways, which is possible because both languages are cut into pieces from one vocabulary ([chapter 14](14_tokenization.ipynb#where-does-the-papers-37000-come-from)).
#
# | use | operation | in, out | rows that learn in a step |
# |---|---|---|---|
# | source words | look up | $(B, S) \to (B, S, D)$ | the words of the source |
# | target words | look up | $(B, T) \to (B, T, D)$ | the words of the target |
# | output | dot products | $(B, T, D) \to (B, T, \lvert V\rvert)$ | all |


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the rows that learn, counted", "code_prompt_hide": "Hide the rows that learn, counted"}
def rows_that_learn():
    return (embedding.weight.grad.abs().sum(dim=1) > 0).sum().item()


embedding(tokens).sum().backward()
print("rows that learn as input: ", rows_that_learn())
embedding.zero_grad()
state = torch.ones(1, 6, dtype=torch.float64)
F.cross_entropy(embedding.logits(state), torch.tensor([4])).backward()
print("rows that learn as output:", rows_that_learn())

# %% [markdown]
# In which direction does a row move? With $p_v$ for the probability of word $v$, $y$ for the right word, and $[v = y]$ equal to 1 for the right word and else 0, the gradient that the output sends to row $v$, for one position, is
#
# $$
# \frac{\partial L}{\partial E_v} = (p_v - [v = y])\; x.
# $$ (eq-output-gradient)
#
# A step goes against the gradient: the right word's row moves in the direction of $x$, which raises its logit. Every other row moves away from $x$; the more probable the model thought the word, the further its row moves.

# %%
p = torch.tensor(list(scores.values())).softmax(dim=-1)
pull = X.new_tensor([0, 0, 0, 0, 1]) - p
print("pull along the state:", dict(zip(WORDS, [round(v, 2) for v in pull.tolist()])))

# %% tags=["remove-cell"]
if CHECKING:
    chances = embedding.logits(state).softmax(dim=-1)[0]
    right = F.one_hot(torch.tensor(4), 10)
    torch.testing.assert_close(
        embedding.weight.grad, (chances - right)[:, None] * state
    )

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-output-step", "caption": "What does one step do to the table? The five words in two of their six columns, when *fish* is the right word (learning rate 1). Each moves along its line to the open square: *fish* parallel to the state (from the origin to the circle), so that its dot product grows, the others the opposite way. *Cat* was rated high and moves far; *the*, *black* and *likes*, all at (0, 0), hardly move."}}
ends = X + pull[:, None] * x
moves = {}  # words that begin and end at the same places share a line
for word, a, b in zip(WORDS, X.tolist(), ends.tolist()):
    moves.setdefault((a[0], a[5], b[0], b[5]), []).append(word)
records = [
    {"name": ", ".join(words), "x": x1, "y": y1, "x2": x2, "y2": y2}
    for (x1, y1, x2, y2), words in moves.items()
]
data = alt.Chart(alt.Data(values=records), width=400, height=260)
goal = alt.Chart(
    alt.Data(values=[{"x": x[0].item(), "y": x[5].item(), "name": "state"}])
)
x_axis = alt.X("x:Q", title="noun", scale=alt.Scale(domain={"unionWith": [-0.3, 2.3]}))
y_axis = alt.Y(
    "y:Q", title="edible", scale=alt.Scale(domain={"unionWith": [-0.6, 1.7]})
)
label = {"dx": 10, "dy": 14, "align": "left"}
chart = alt.layer(
    data.mark_rule().encode(x_axis, y_axis, x2="x2:Q", y2="y2:Q"),
    data.mark_square(size=110, opacity=1).encode(x_axis, y_axis),
    data.mark_square(size=70, filled=False, opacity=1).encode(x="x2:Q", y="y2:Q"),
    data.mark_text(**label).encode(x_axis, y_axis, text="name:N"),
    goal.mark_circle(size=130, color=AMBER, opacity=1).encode(x_axis, y_axis),
    goal.mark_text(**label).encode(x_axis, y_axis, text="name:N"),
)
show(
    chart,
    alt="Fish moves up and to the right, as the state lies from the origin. Cat moves a little less far the opposite way, the other words hardly at all.",
)

# %% [markdown]
# One table holds $37{,}000 \times 512 = 18.9$ million numbers. Three would hold 56.8 million, more than the 44.1 million of all other parts of the base model together. The price is that *die*, a German article and an English verb, has one row for both, and the layers above must tell them apart by their neighbors. Input and output may also want different vectors for the same word. Many of today's large language models, in which the table is only a small part, therefore leave the output untied, with a table of its own.
#
# ### A table that is copied is not shared
#
# :::{admonition} If the output is an `nn.Linear`: one tensor with two names, or two that drift apart
# :class: dropdown
#
# In many programs the output is an `nn.Linear`, whose weight must then *be* the table. A copy is equal until the first step, here one with a loss that wants token 4. To check a model, count its parameters: PyTorch counts a shared tensor once.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show both after one step", "code_prompt_hide": "Hide both after one step"}
embedding = Embedding(10, 6).double()
tied = nn.Linear(6, 10, bias=False)
copied = nn.Linear(6, 10, bias=False).double()
tied.weight = embedding.weight  # one tensor with two names
copied.weight.data.copy_(embedding.weight.data)  # two tensors with the same numbers
logits = embedding.logits(torch.ones(1, 6, dtype=torch.float64))
F.cross_entropy(logits, torch.tensor([4])).backward()
torch.optim.SGD(embedding.parameters(), lr=1.0).step()
for name, output in (("tied", tied), ("copied", copied)):
    print(f"{name:6} off by {(output.weight - embedding.weight).abs().max():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(tied.weight, embedding.weight)
    assert not torch.equal(copied.weight, embedding.weight)

# %% [markdown]
# ## The softmax is in the loss
#
# The paper's Figure 1 has two boxes at the top, *Linear* and *Softmax*. The linear box is our `logits`. The softmax turns a position's logits into probabilities, often after a division by a **temperature** $\tau$:
#
# $$
# p_v = \frac{e^{z_v / \tau}}{\sum_{w} e^{z_w / \tau}}
# $$ (eq-temperature)
#
# At $\tau = 1$ this is the plain softmax, the one in training. For our five words the exponentials of 0, 0, 2, 0 and 2.5 are 1, 1, 7.39, 1 and 12.18, together 22.57, and *fish* gets $12.18 / 22.57 = 0.54$. Other temperatures change how a finished model picks its words ([decoding](19_decoding.ipynb#sampling-drawing-words-at-random)), but never which of them is likelier.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-softmax-temperature", "caption": "What does the temperature do? The five logits as probabilities, at four temperatures. A lower one gives the best word more, 0.72 at 0.5; a high one brings all words close to one fifth."}}
z = torch.tensor(list(scores.values()))
shares = {tau: (z / tau).softmax(-1).tolist() for tau in (0.5, 1, 2, 10)}
records = [
    {"word": word, "p": round(p, 3), "panel": f"τ = {tau}"}
    for tau, row in shares.items()
    for word, p in zip(WORDS, row)
]
chart = alt.Chart(alt.Data(values=records), width=84, height=150).mark_bar()
chart = chart.encode(
    alt.X("word:N", sort=WORDS, title=None),
    alt.Y("p:Q", title="probability", scale=alt.Scale(domain=[0, 1])),
    alt.Column("panel:N", sort=[f"τ = {tau}" for tau in shares], title=None),
)
best = [round(row[4], 2) for row in shares.values()]
show(
    chart,
    alt=f"Fish has {best[0]} of the probability at temperature 0.5, {best[1]} at 1 and {best[2]} at 2; at 10 all words are close to 0.2.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert best[:2] == [0.72, 0.54]

# %% [markdown]
# ### Why is there no softmax in the code?
#
# In training, the loss needs the *logarithm* of one probability, and `F.cross_entropy` does softmax and logarithm in one step. Two steps would be less exact: $e^{-200}$ is too small for a float of 32 bits and becomes 0, whose logarithm is minus infinity.

# %%
far = torch.tensor([0.0, 200.0])
two_steps = far.softmax(-1).log()
one_step = far.log_softmax(-1)
print("two steps:", two_steps.tolist(), " one step:", one_step.tolist())

# %% tags=["remove-cell"]
if CHECKING:
    logits = embedding.logits(states).flatten(0, 1)
    by_hand = -logits.log_softmax(dim=-1)[torch.arange(8), tokens.flatten()].mean()
    torch.testing.assert_close(F.cross_entropy(logits, tokens.flatten()), by_hand)

# %% [markdown]
# A translator that always takes the most probable word needs no softmax, since the largest logit has the largest probability.
#
# ### What one softmax too many breaks
#
# Add one to the model, and everything still runs. But the loss takes the probabilities for logits and applies softmax again. Even a perfect answer is then only a logit of 1 among zeros:

# %%
right = torch.tensor([4, 2, 8])  # three of ten words
perfect = 100 * F.one_hot(right, num_classes=10).double()
print(f"once:  {F.cross_entropy(perfect, right):.2f}")
print(f"twice: {F.cross_entropy(perfect.softmax(-1), right):.2f}")

# %% [markdown]
# The loss can't get below $\ln(e + |V| - 1) - 1$, here 1.46. With 37,000 words that is 9.52, where a model that knows nothing has $\ln 37{,}000 = 10.52$. All that training can gain is 1.
#
# ## Why multiply by the square root of $d_\text{model}$?
#
# The paper gives the factor and no reason. The authors' code, tensor2tensor, starts the table from a normal distribution with standard deviation $d_\text{model}^{-0.5}$, and that explains it: one table has two jobs, and they want numbers of different size (standard deviation).
#
# - **As output.** A logit is a sum of 512 products. If the state's numbers have size 1 and the table's have size $s$, the logit has size $s\sqrt{512}$. For logits of size 1, $s$ must be $1/\sqrt{512} = 0.044$.
# - **As input.** There the model expects numbers of size 1, so what comes out of the table is multiplied by $\sqrt{512} = 22.6$.
#
# "To match the positions" is the usual explanation, and it's half an answer. The [positions](08_positional_encoding.ipynb#what-a-position-should-look-like) added next have a root mean square of $\sqrt{1/2} = 0.71$, and the words match them only if the table starts this way. We compare three starts: tensor2tensor's, Glorot's (Xavier's) rule, which Harvard's *Annotated Transformer* ({cite:t}`rush2018annotated`) applies to all its matrices, and size 1, the default of `nn.Embedding`.

# %% tags=["hide-input"]
state = torch.randn(64, 512)
labels = torch.arange(64)
measured = {}
starts = {
    "tensor2tensor": 512**-0.5,
    "Glorot": (2 / 37_512) ** 0.5,
    "nn.Embedding": 1.0,
}
for name, std in starts.items():
    table = torch.randn(37_000, 512) * std
    word = table.std() * 512**0.5
    logits = state @ table.T
    measured[name] = word.item(), logits.std().item()
    share = word**2 / (word**2 + 0.5)
    loss = F.cross_entropy(logits, labels) - log(37_000)
    above = round(loss.item(), 1) + 0.0  # no minus zero
    print(f"{name:14} word {word:5.2f}  share {share:4.0%}  loss - ln |V| {above:5.1f}")

# %% [markdown]
# *Word* is the size of a word's numbers after the factor, and *share* is the word's part of the squared size of word plus position. With tensor2tensor's start it is two thirds, $1 / (1 + 0.5)$. The last column says how far the loss starts above $\ln |V|$, where every word has the same chance.
#
# With Glorot's rule, the 37,000 rows make the numbers tiny, $\sqrt{2 / 37{,}512} = 0.0073$. Even after the factor, the model gets 95% position and 5% word. In our short training runs this start costs 0.27 ± 0.03 in the loss ([departures](../book/departures.md#the-model) has the conditions). With size 1 and the factor, words drown the positions, and logits of size 22.6 make the softmax sure of words picked at random. With size 1 and no factor, the input is right, but the logits are still 22.6 times too large.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-embedding-scale", "caption": "Which start makes both ends fit? Size of a scaled word at the input (circle) and of a logit at the output (square), in the base model before training. Both should be near 1 (solid line). The dotted pink line is the size of the positions that are added to the words, 0.71. Only tensor2tensor's start gets both right."}}
records = [
    {"start": name, "size": round(size, 2), "end": end}
    for name, pair in measured.items()
    for end, size in zip(["input: a word", "output: a logit"], pair)
]
x_axis = alt.X(
    "size:Q", scale=alt.Scale(type="log"), axis=alt.Axis(values=[0.1, 1, 10, 100])
)
y_axis, move = alt.Y("start:N", sort=None, title=None), alt.YOffset("end:N")
inks = alt.Scale(range=[SKY, AMBER])
kind = {
    "color": alt.Color("end:N", title=None, scale=inks),
    "shape": alt.Shape("end:N", title=None),
}
base = alt.Chart(alt.Data(values=records), height=110)
points = base.mark_point(size=120, strokeWidth=2.5, opacity=1).encode(
    x_axis, y_axis, move, **kind
)
lines = [
    alt.Chart(alt.Data(values=[{"size": size}]))
    .mark_rule(color=color, strokeDash=dash)
    .encode(x_axis)
    for size, color, dash in ((1, INK, [1, 0]), (0.5**0.5, POSITION, [2, 2]))
]
show(
    alt.layer(*lines, points),
    alt="With tensor2tensor's start both sizes are 1. With Glorot's rule both are about 0.17, with nn.Embedding's both are 22.6.",
)

# %% [markdown]
# ## The table doesn't come from word2vec
#
# Word2vec's table ({cite:t}`mikolov2013distributed`) is learned beforehand, from which words occur near which. This one starts at random and learns from the translation alone.
#
# Random rows are nearly at right angles: with the 192 columns of the model below, their cosines spread by $1/\sqrt{192} = 0.07$ around 0. After training, some rows are much closer. We ask [the captions model](05_multi_head_attention.ipynb#how-heads-differ) what lies nearest to three of its words.

# %% tags=["nbval-ignore-output", "hide-input"]
from annotated_transformer import load_pretrained

model, tokenizer = load_pretrained("captions-de-en")
directions = F.normalize(model.embedding.weight.detach(), dim=1)


def row(word):
    (token,) = tokenizer.encode("a " + word)[1:]  # the word must be a single token
    return token


for word in ("guitar", "running", "snow"):
    nearest = (directions @ directions[row(word)]).topk(6).indices.tolist()[1:]
    neighbors = [tokenizer.decode([token]).strip() for token in nearest]
    print(f"{word:8}", ", ".join(neighbors))

# %% [markdown]
# *Runs* and *walking* lie near *running*, *grass* and *ice* near *snow*, a violin near the guitar. Words that can stand in for each other get similar gradients and drift the same way. Meaning isn't all that counts, as the *skateboard* near the guitar shows.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-neighbors", "caption": "Which words does a trained table put together? The cosine for all pairs of eight English words: people, motion, ground. Along the diagonal three blocks stand out. Outside them only *runs* is as close to *grass* and *snow*, perhaps because so many captions have somebody running there. We chose the order; the model knows nothing of the groups."}}
chosen = ["man", "woman", "girl", "runs", "walking", "snow", "sand", "grass"]
rows = directions[[row(word) for word in chosen]]
likeness = rows @ rows.T
show(
    heatmap(likeness, chosen, chosen, titles=("", "cosine of the angle"), signed=True),
    alt="Within people, verbs of motion and kinds of ground the cosines are 0.30 to 0.49, between them at most 0.22, except 0.36 for runs with grass and with snow.",
)

# %% tags=["remove-cell"]
if CHECKING:
    same = torch.block_diag(*[torch.ones(n, n) for n in (3, 2, 3)]).bool()
    inside = likeness[same & ~torch.eye(8).bool()].min()
    assert (likeness[~same] > inside).sum() == 4
    assert likeness[3, [5, 7]].min() > inside  # runs

# %% [markdown]
# :::{what-if} neighbors
# What lies near a word in the table of `everyday-de-en`, the model of the first page? It learned from other sentences, so its lists differ from those above. Shown are the tokens whose rows have the largest cosine with the word's, and below them the median of all tokens. Type a word. A word that falls into several tokens has no row of its own: choose one of its pieces.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/07_embeddings.html#fig-what-if-neighbors).
# :::
#
# A word has the same row in every sentence; which *bank* is meant is worked out in the layers above, by attention. And `<pad>` needs no row of zeros, since [masks](04_masks.ipynb#the-padding-mask) hide it.

# %% [markdown]
# ## What to remember
#
# - A token is a name. The table gives it a vector, learned with the model.
# - Read backwards, the same table scores all words: a logit is the dot product of a state and a row.
# - The softmax is inside the loss. A second one, in the model, leaves training almost nothing to gain.
# - Start at standard deviation $d_\text{model}^{-0.5}$ and multiply by $\sqrt{d_\text{model}}$: then words and logits both have size 1.
#
# One thing is missing from every vector: its place. To attention, *cat likes fish* and *fish likes cat* are the same.

# %% [markdown]
# ## Exercises
#
# **1. Write it yourself** (★, 10 min). Without looking back at our class, write `embed(tokens, table)` and `logits(states, table)` for tokens of any shape, without `F.embedding` and `F.linear`, and hand the first to the [checker](E_checker.ipynb#the-parts-it-knows).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
from annotated_transformer import check


def embed(tokens, table):
    return table[tokens] * table.shape[1] ** 0.5


def logits(states, table):
    return states @ table.T


print(check("embedding", embed))
gap = logits(states, embedding.weight) - embedding.logits(states)
print(f"logits: off by {gap.abs().max():.5f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert gap.abs().max() < 1e-5

# %% [markdown]
# **2. "To be consistent"** (★★, 15 min). What breaks if the logits are multiplied by $\sqrt{d_\text{model}}$ as well? Predict where the loss starts, then measure it.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The logits start at size 22.6: the softmax is sure of some random word, and the loss is far above ln |V| = 10.5.
raw = Embedding(37_000, 512).logits(state).detach()
plain, scaled = (
    F.cross_entropy(raw * factor, labels).item() for factor in (1, 512**0.5)
)
print(f"plain {plain:.1f}, scaled {scaled:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(plain - 11) < 0.5 and scaled > 60

# %% [markdown]
# **3. By hand** (★, 10 min). Two words have the logits 2 and 0. What are their probabilities at temperature 1 and at temperature 2? ($e^2 = 7.39$, $e = 2.72$) At which temperature does the second word have a third of the probability?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 7.39 / 8.39 = 0.88 and 2.72 / 3.72 = 0.73. A third means a ratio of 2, so 2 / t = ln 2 and t = 2.89.
for t in (1, 2, 2 / log(2)):
    print(
        f"{t:.2f}",
        [round(p, 2) for p in (torch.tensor([2.0, 0.0]) / t).softmax(-1).tolist()],
    )

# %% [markdown]
# **4. Repeat after me** (★★, 15 min). After the attention of chapter 3, the state of *likes* is still close to *likes*. Score it against the table: which word scores highest? What has to happen in the layers above?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It would repeat *likes*: a residual stream starts as the word itself, and with a shared table that word fits
# best. The layers have to turn the vector of a word into one that points at the next.
from annotated_transformer.attention import attention
from book.example import W_K, W_O, W_Q, W_V

stream = X + attention(X @ W_Q, X @ W_K, X @ W_V)[0] @ W_O
print(dict(zip(WORDS, [round(score, 2) for score in (stream[3] @ X.T).tolist()])))

# %% tags=["remove-cell"]
if CHECKING:
    assert (stream[3] @ X.T).argmax() == 3

# %% [markdown]
# **5. A second table** (★★★, an evening, open). Train on the grammar with a separate output table and compare the loss with the tied model's, at equal steps and at equal parameters.

# %% [markdown]
# ## Second reading: two questions about the table
#
# :::{admonition} Could the model not learn the size?
# :class: dropdown
#
# Nothing forbids it: the table can grow or shrink, and the gain of the last [layer norm](09_layers.ipynb#layer-normalization) can make up for it. But training has to get there. [Adam](16_schedule.ipynb#a-step-as-long-as-the-rate) moves each number by about the learning rate, at most 0.0007 in the base model, however large the gradient is. For numbers of size 0.044 that's a step of 1.6%; for numbers of size 1 it would be 0.07%. A small table with a large factor can turn its vectors faster than a large table without one.
# :::
#
# :::{admonition} What became of the words that are never written?
# :class: dropdown
#
# This model reads German and never writes it. As outputs, German words are always wrong, so {eq}`eq-output-gradient` pushes their rows away from every state, all the same way. They should end up in a common direction, more so than English words. Frequent ones do: six have nearly two and a half times the mean cosine of their translations. Rare ones hardly do. A shared table carries traces of both its jobs.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show the cosines", "code_prompt_hide": "Hide the cosines"}
alike = []
for nouns in ("dog man woman snow guitar two", "Hund Mann Frau Schnee Gitarre zwei"):
    rows = directions[[row(word) for word in nouns.split()]]
    alike.append((rows @ rows.T)[~torch.eye(6).bool()].mean().item())
    print(f"{alike[-1]:.2f}  {nouns}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 2.3 < alike[1] / alike[0] < 2.5

# %% [markdown]
# ## Sources
#
# The shared table and its factor are from section 3.4 of {cite:t}`vaswani2017attention`. Weight tying is studied by {cite:t}`press2017using`; Glorot's rule is from {cite:t}`glorot2010understanding`. The start, the zeroed padding and the factor are in `models/modalities.py` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor) (commit 0fad290).
