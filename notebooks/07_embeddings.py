# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Embeddings
#
# An embedding table holds one learned vector for each token; the model looks tokens up in it at the bottom and scores the next word against it at the top (section 3.4 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("embeddings")

# %% tags=["export", "hide-input"]
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
# ## Why not feed the number itself?
#
# A tokenizer turns a sentence into whole numbers, one for each *token*, a word or a piece of one. What goes wrong if you hand that number to a linear layer?

# %% tags=["hide-input"]
import altair as alt

from annotated_transformer import check
from book.example import FEATURES, WORDS, X
from book.figures import AMBER, SKY, heatmap, show

# %%
torch.manual_seed(0)
from_number = nn.Linear(1, 4, bias=False)
for token in (4, 8):
    vector = from_number(torch.tensor([float(token)]))
    print(token, [round(v, 2) for v in vector.tolist()])

# %% [markdown]
# Token 8 gets twice the vector of token 4, though 4 may be `cat` and 8 `quickly`. A token's number is only its place in a list.
#
# The fair input is a **one-hot vector**: as long as the vocabulary, zero everywhere but at the token's place. Then all tokens are equally far apart. But with the paper's vocabulary of about 37,000, 25 tokens become $25 \cdot 37{,}000 = 925{,}000$ numbers, all but 25 of them zero.
#
# A network begins by multiplying its input by some matrix $E$, and a one-hot vector times $E$ is one row of $E$. So we skip the zeros and look the row up. It is the token's **embedding**.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-lookup", "caption": "Why is a lookup a matrix product? `cat`, `likes` and `fish` as one-hot rows, times a table $E$ of five words, the vectors of chapter 3, are rows 2, 3 and 4 of the table."}}
tokens = torch.tensor([2, 3, 4])
one_hot = F.one_hot(tokens, num_classes=5).double()
three = ["cat", "likes", "fish"]
look = {"limit": 2, "cell": 26}
show(
    heatmap(one_hot, three, WORDS, titles=("", "one-hot"), color=SKY, cell=26),
    heatmap(X, WORDS, FEATURES, titles=("", "table E"), **look),
    heatmap(one_hot @ X, three, FEATURES, titles=("", "product"), **look),
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
# Suppose the model has written *the black cat likes*. At the top of the decoder stands one vector $x$, the *state*, and each word is scored by its dot product with it. Let the state ask for a noun that is edible. Which word will win, and which will come second?

# %%
from book.example import WORDS, X

x = torch.tensor([1, 0, 0, 0, 0, 1]).double()  # noun, and edible
scores = dict(zip(WORDS, (x @ X.T).tolist()))
print(scores)

# %% [markdown]
# For `fish` the product is $1 \cdot 1.5 + 1 \cdot 1 = 2.5$, for `cat` it is 2: a noun, but not edible. So the table that turns words into vectors can also score the next word. Using one table for both is called **weight tying**, and a score before the softmax is a **logit**.
#
# ## The code
#
# The table $E$ has $|V|$ rows and $d_\text{model}$ columns. For a one-hot row $o$ and a state $x$:
#
# $$
# \text{embedding}(o) = \sqrt{d_\text{model}}\; o\, E
# \qquad\qquad
# \text{logits}(x) = x\, E^\top
# $$ (eq-embedding)
#
# What the root is good for, we measure [further down](#why-multiply-by-the-square-root-of-).
#
# **Exercise 1. Write it first** (★, 10 min). Before you read on, write `embedding(tokens, table)` and `logits(states, table)` for tokens of any shape, without `F.embedding` and `F.linear`. `check("embedding", embedding)` from `annotated_transformer` says whether the first is right.


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


# %% [markdown]
# For two sentences of four tokens, we print the shapes of tokens, vectors and logits:

# %%
embedding = Embedding(vocabulary_size=10, d_model=6)
tokens = torch.tensor([[1, 4, 8, 2], [1, 7, 2, 0]])
states = embedding(tokens)
print(tuple(tokens.shape), tuple(states.shape), tuple(embedding.logits(states).shape))

# %% tags=["remove-cell"]
if CHECKING:
    product = F.one_hot(tokens, 10).float() @ embedding.weight * sqrt(6)
    torch.testing.assert_close(states, product)
    torch.testing.assert_close(embedding.logits(states), states @ embedding.weight.T)

# %% [markdown]
# ## One table, three uses
#
# The paper uses one table in three places, which is possible because both languages are cut into pieces from [one vocabulary](14_tokenization.ipynb#where-does-the-papers-37000-come-from).
#
# | use | operation | in, out | rows that learn in a step |
# |---|---|---|---|
# | source words | look up | $(B, S) \to (B, S, D)$ | the words of the source |
# | target words | look up | $(B, T) \to (B, T, D)$ | the words of the target |
# | output | dot products | $(B, T, D) \to (B, T, \lvert V\rvert)$ | all |
#
# In which direction does a row move? Let $p_v$ be the probability of word $v$, let $y$ be the right word, and let $[v = y]$ be 1 for the right word and else 0. The loss is $-\ln p_y$; its derivative by the logit of word $v$ is $p_v - [v = y]$, and that logit is $x \cdot E_v$. So at one position, the output sends row $v$ the gradient
#
# $$
# \frac{\partial L}{\partial E_v} = (p_v - [v = y])\; x.
# $$ (eq-output-gradient)
#
# A step goes against the gradient. So the right word's row moves in the direction of $x$, which raises its logit. Every other row moves away from $x$, and the more so the more probable the model found its word. Let `fish` be right:

# %%
p = torch.tensor(list(scores.values())).softmax(dim=-1)
pull = torch.tensor([0, 0, 0, 0, 1]) - p
print("pull along the state:", dict(zip(WORDS, [round(v, 2) for v in pull.tolist()])))

# %% tags=["remove-cell"]
if CHECKING:

    def rows_that_learn():
        return (embedding.weight.grad.abs().sum(dim=1) > 0).sum().item()

    embedding(tokens).sum().backward()
    assert rows_that_learn() == 6
    embedding.zero_grad()
    state = torch.ones(1, 6)
    F.cross_entropy(embedding.logits(state), torch.tensor([4])).backward()
    assert rows_that_learn() == 10
    chances = embedding.logits(state).softmax(dim=-1)[0]
    expected = (chances - F.one_hot(torch.tensor(4), 10))[:, None] * state
    torch.testing.assert_close(embedding.weight.grad, expected)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-output-step", "caption": "What does one step do to the table? The five words in two of their six columns, when `fish` is the right word (learning rate 1). Each moves to the open square: `fish` in the direction of the state, the others the opposite way. The model rates `cat` high, so `cat` moves far."}}
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
# One table holds $37{,}000 \times 512 = 18.9$ million numbers. Three would hold 56.8 million, more than the 44.1 million of all other parts of the base model together. The price is that `die`, a German article and an English verb, has one row for both, and the layers above must tell them apart by their neighbors. Many of today's large language models, in which the table is only a small part, give the output a table of its own.
#
# ## The softmax is in the loss
#
# The paper's Figure 1 has two boxes at the top, *Linear* and *Softmax*. The linear box is our `logits`, and the softmax turns them into probabilities.
#
# ### Why is there no softmax in the code?
#
# The loss needs the *logarithm* of one probability, and `F.cross_entropy` does softmax and logarithm in one step. In two steps, $e^{-200}$ would become 0, since it is too small for a float of 32 bits, and the logarithm of 0 is minus infinity.
#
# ### What one softmax too many breaks
#
# With a softmax in the model, everything still runs. But the loss takes the probabilities for logits and applies its own. Even a perfect answer is then only a logit of 1 among zeros:

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
# The paper gives no reason, but the authors' code, tensor2tensor, suggests one: it starts the table from a normal distribution with standard deviation $d_\text{model}^{-0.5}$. One table has two jobs, and they want numbers of different size (standard deviation).
#
# - **As output.** A logit is a sum of 512 products. If the state's numbers have size 1 and the table's have size $s$, the logit has size $s\sqrt{512}$. For logits of size 1, $s$ must be $1/\sqrt{512} = 0.044$.
# - **As input.** There the model expects numbers of size 1, so what comes out of the table is multiplied by $\sqrt{512} = 22.6$.
#
# "To match the positions", the usual explanation, is half an answer. The [positions](08_positional_encoding.ipynb#the-code) that are added next have a root mean square of $\sqrt{1/2} = 0.71$, and the words match them only if the table's numbers start at $1/\sqrt{512}$.
#
# We compare three starts: tensor2tensor's, Glorot's (Xavier's) rule, which Harvard's *Annotated Transformer* ({cite:t}`rush2018annotated`) applies to all its matrices, and size 1, the default of `nn.Embedding`. For each we fill a table of 37,000 words and measure three numbers. The size of a word after the factor and the size of the logits should both be near 1. The loss shouldn't be far above 10.5, the loss of a model that knows nothing. (Logits of size 1 cost half a nat.) Which start will fail, and at which end?

# %%
torch.manual_seed(0)
words, width = 37_000, 512
states, right = torch.randn(64, width), torch.arange(64)  # any 64 words are right
starts = {
    "tensor2tensor": width**-0.5,
    "Glorot": (2 / (words + width)) ** 0.5,
    "nn.Embedding": 1.0,
}
for name, size in starts.items():
    table = size * torch.randn(words, width)
    logits = states @ table.T
    word, logit = (sqrt(width) * table).std(), logits.std()
    loss = F.cross_entropy(logits, right)
    print(f"{name:14} word {word:5.2f}   logit {logit:5.2f}   loss {loss:5.1f}")

# %% [markdown]
# Only tensor2tensor's start is right at both ends. With it, the squared sizes of word and position are 1 and 0.5, so the word's share of their sum is two thirds.
#
# With Glorot's rule, the 37,000 rows make the numbers tiny, $\sqrt{2 / 37{,}512} = 0.0073$. Even after the factor the word's share is $0.17^2 / (0.17^2 + 0.5)$, so the model reads 95% position and 5% word. In our [short training runs](../book/departures.md#the-model) this start costs about 0.3 nats per token.
#
# With size 1 and the factor, words drown the positions, and logits of size 22.6 make the softmax sure of words picked at random.
#
# ## The table doesn't come from word2vec
#
# Word2vec's table ({cite:t}`mikolov2013distributed`) is learned beforehand, from which words occur near which. This one starts at random and learns from the translation alone. Does it find out anyway which words are alike? In [the captions model](05_multi_head_attention.ipynb#how-heads-differ), we look for the rows with the largest cosine to those of three words.

# %% tags=["nbval-ignore-output"]
from annotated_transformer import load_pretrained

model, tokenizer = load_pretrained("captions-de-en")
rows = F.normalize(model.embedding.weight.detach(), dim=1)
for word in ("guitar", "running", "snow"):
    *_, token = tokenizer.encode("a " + word)  # of a rare word, the last piece
    nearest = (rows @ rows[token]).topk(6).indices.tolist()
    first, *others = [tokenizer.decode([i]).strip() for i in nearest]
    print(f"{first}:", ", ".join(others))

# %% tags=["remove-cell"]
if CHECKING:

    def near(word):
        _, token = tokenizer.encode("a " + word)
        nearest = (rows @ rows[token]).topk(6).indices.tolist()[1:]
        return [tokenizer.decode([i]).strip() for i in nearest]

    assert {"runs", "walking"} <= {*near("running")}
    assert {"ice", "rain"} <= {*near("snow")}
    assert {"violin", "skateboard"} <= {*near("guitar")}

# %% [markdown]
# Words that can stand in for each other get similar gradients, so their rows drift the same way. Meaning isn't all that counts, as the `skateboard` near the `guitar` shows.
#
# ## What to remember
#
# - A token is a name. The table gives it a vector, learned with the model.
# - The same table scores all words: a logit is the dot product of a state and a row.
# - The softmax is inside the loss. A second one, in the model, leaves training almost nothing to gain.
# - Start at standard deviation $d_\text{model}^{-0.5}$ and multiply by $\sqrt{d_\text{model}}$: then words and logits both have size 1.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** is [above](#the-code).
#
# :::{admonition} Solution 1
# :class: dropdown
# A tensor of indices picks rows, for any shape of it:
#
# ```python
# def embedding(tokens, table):
#     return table[tokens] * table.shape[1] ** 0.5
#
#
# def logits(states, table):
#     return states @ table.T
# ```
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert check(
        "embedding", lambda tokens, table: table[tokens] * table.shape[1] ** 0.5
    )

# %% [markdown]
# **2. One table or three** (★, 5 min). A model with a vocabulary of 8,000 and $d_\text{model} = 256$ has 5.4 million parameters, one table included. How many numbers are in the table, and what share of the model is that? How many are in three tables, and what share are they of the model that has three?
#
# :::{admonition} Solution 2
# :class: dropdown
# One table has $8{,}000 \cdot 256 = 2{,}048{,}000$ numbers, or 38% of the model. Three have 6,144,000. All other parts have $5.4 - 2.05 = 3.35$ million, so the tables would be $6.14 / 9.50$, or 65% of the model.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    table, others = 8000 * 256, 5.4e6 - 8000 * 256
    assert round(100 * table / 5.4e6) == 38
    assert round(100 * 3 * table / (3 * table + others)) == 65

# %% [markdown]
# **3. By hand** (★, 10 min). Three words have the logits 2, 0 and 0, and the second word is right ($e^2 = 7.39$). What are the probabilities? How far does each row move along the state $x$ in a step with learning rate 1? What do the three moves add up to, and why?
#
# :::{admonition} Solution 3
# :class: dropdown
# The exponentials 7.39, 1 and 1 sum to 9.39, so the probabilities are 0.79, 0.11 and 0.11. By {eq}`eq-output-gradient` the rows move by $[v = y] - p_v$ times $x$: −0.79, $1 - 0.11 = 0.89$ and −0.11. Together they move by 0, but for rounding, because the probabilities sum to 1 and so does $[v = y]$.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    by_hand = torch.tensor([2.0, 0.0, 0.0]).softmax(dim=-1)
    assert [round(v, 2) for v in by_hand.tolist()] == [0.79, 0.11, 0.11]

# %% [markdown]
# ## Further
#
# ### A table that is copied is not shared
#
# In many programs the output is an `nn.Linear`, whose weight must then *be* the table: `output.weight = embedding.weight` gives one tensor two names. A copy of the numbers drifts away with the first step. To check a model, count its parameters, because PyTorch counts a shared tensor once.

# %% tags=["remove-cell"]
if CHECKING:
    embedding = Embedding(10, 6).double()
    tied = nn.Linear(6, 10, bias=False)
    copied = nn.Linear(6, 10, bias=False).double()
    tied.weight = embedding.weight
    copied.weight.data.copy_(embedding.weight.data)
    wanted = embedding.logits(torch.ones(1, 6, dtype=torch.float64))
    F.cross_entropy(wanted, torch.tensor([4])).backward()
    torch.optim.SGD(embedding.parameters(), lr=1.0).step()
    assert torch.equal(tied.weight, embedding.weight)
    assert not torch.equal(copied.weight, embedding.weight)

# %% [markdown]
# ### Could the model not learn the size?
#
# Nothing forbids it, but training has to get there. [Adam](16_schedule.ipynb#a-step-as-long-as-the-rate) moves each number by about the learning rate, at most 0.0007 in the base model, however large the gradient is. For numbers of size 0.044 that's a step of 1.6%; for numbers of size 1 it would be 0.07%. So a small table with a large factor can turn its vectors faster than a large table without one.
#
# ### Neighbors of your own words
#
# :::{what-if} neighbors
# What lies near a word in the table of `everyday-de-en`, the model of the first chapter? Type a word: you see the tokens whose rows have the largest cosine with the word's, and below them the median of all tokens. Only the nearest few tell much. A word that falls into several tokens has no row of its own: choose one of its pieces.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/07_embeddings.html#fig-what-if-neighbors).
# :::
#
# ## Sources
#
# The shared table and its factor are from section 3.4 of {cite:t}`vaswani2017attention`. Weight tying is studied by {cite:t}`press2017using`; Glorot's rule is from {cite:t}`glorot2010understanding`. The start and the factor are in `models/modalities.py` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor) (commit 0fad290).
