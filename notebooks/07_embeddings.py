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
# # Embeddings
#
# This chapter builds the one table that turns tokens into vectors at the bottom of the model and vectors into predictions at its top (section 3.4 of the paper).
#
# A sentence reaches the model as a row of whole numbers, one for each *token*, which is a word or a piece of a word. The parts that we have built so far want vectors. And at the end of the model we have vectors and need words. This chapter is about these two doors. They turn out to be one door, used in both directions.
#
# On the way we answer three questions that nearly every reader of the paper asks. Where is the softmax in the code? Why is the embedding multiplied by $\sqrt{d_\text{model}}$? And does it come from word2vec?

# %% tags=["export"]
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %%
from math import log

import altair as alt

from annotated_transformer import load_pretrained
from book.figures import INK, KEY, POSITION, VALUE, heatmap, show

# %% [markdown]
# ## A token is only a name
#
# The simplest idea is to feed the number itself to a linear layer. It runs, and it is wrong:

# %%
torch.manual_seed(0)
from_number = nn.Linear(1, 6, bias=False)
four, eight = from_number(torch.tensor([4.0])), from_number(torch.tensor([8.0]))
print("token 8 is twice token 4:", torch.allclose(eight, 2 * four))

# %% [markdown]
# Token 4 may be *cat* and token 8 *quickly*. The numbers are places in a list, and another list would do as well. So no token may lie nearer to another, or count more, only because of its number.
#
# The fair way is a **one-hot vector**: as long as the vocabulary, all zeros but for a one in the token's place. Now all tokens are equally far apart. But the paper's vocabulary has about 37,000 entries. A sentence of 25 tokens is then $25 \cdot 37{,}000 = 925{,}000$ numbers, of which 25 are not zero.
#
# ## A row for each token
#
# Whatever takes in a one-hot vector begins with a matrix product. Let $E$ be that matrix, with a row for each of the $V$ tokens and $d_\text{model}$ columns. A one-hot vector times $E$ picks one row of $E$ and leaves the others alone. So we can skip the zeros and look the row up.
#
# Five words and three made-up columns show it. The sentence is *cat likes fish*.

# %%
words = ["the", "black", "cat", "likes", "fish"]
E = torch.tensor([[0.0, 0, 1], [0, 2, 0], [2, 1, 0], [-1, 0, 1], [2, -1, 0]])
tokens = torch.tensor([2, 3, 4])
one_hot = F.one_hot(tokens, num_classes=5).float()
print(tuple(one_hot.shape), "@", tuple(E.shape), "=", tuple((one_hot @ E).shape))
assert torch.equal(one_hot @ E, E[tokens])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-lookup", "caption": "Why is a lookup a matrix product? Left: three tokens as one-hot rows. Middle: the table, one row a word. Right: their product, which is rows 2, 3 and 4 of the table. Made-up numbers; purple is positive, orange negative."}}
three = ["cat", "likes", "fish"]
drawn = [heatmap(one_hot, three, words, titles=("", "one-hot"))]
drawn += [
    heatmap(matrix, rows, ["0", "1", "2"], titles=("", title), signed=True, limit=4)
    for matrix, rows, title in ((E, words, "table E"), (E[tokens], three, "product"))
]
chart = alt.hconcat(*drawn).resolve_scale(fill="independent", fillOpacity="independent")
show(
    chart, alt="A one-hot row times the table gives the row of the table that belongs to the token."
)

# %% [markdown]
# Such a row is the token's **embedding**: a vector of $d_\text{model}$ learned numbers. With 512 numbers, tokens can be alike in one respect and different in another, which a single number cannot express.
#
# ## The same table, read backwards
#
# At the top of the decoder stands a vector $x$ for each position, called a *state*. From it we need a score for each of the $V$ words that might come next. A score is large where two vectors fit, and we know how to measure that: by a dot product. So we compare $x$ with the embedding of every word.

# %%
x = torch.tensor([1.0, 0.5, 0.0])
scores = dict(zip(words, (x @ E.T).tolist()))
print(scores)

# %% [markdown]
# For *cat*, row $(2, 1, 0)$, the product is $1 \cdot 2 + 0.5 \cdot 1 = 2.5$, the highest. The state points where *cat* points, so *cat* is the likely next word. Such a score before the softmax is called a **logit**.
#
# Both directions in one line:
#
# $$
# \text{embed}(o) = \sqrt{d_\text{model}}\; o\, E
# \qquad\qquad
# \text{logits}(x) = x\, E^\top
# $$ (eq-embedding)
#
# Here $o$ is a one-hot row. Reading and writing use the same numbers. This is called **weight tying**. The factor $\sqrt{d_\text{model}}$ has a section of its own below.
#
# ## The table in code
#
# Nobody multiplies by one-hot vectors: `F.embedding` looks the rows up. `F.linear(x, weight)` is $x E^\top$. The table is a plain `nn.Parameter`, and not an `nn.Embedding`, because that class starts its numbers at size 1 and knows one direction only.


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
        return F.embedding(tokens, self.weight) * self.scale

    def logits(self, states: Tensor) -> Tensor:
        """Score every word of the vocabulary at every position: (B, T, D) to (B, T, |V|)."""
        return F.linear(states, self.weight)


# %% [markdown]
# The check does multiply by one-hot vectors. Two sentences of four tokens, a table of 10 words with 6 numbers each:

# %%
embedding = Embedding(vocabulary_size=10, d_model=6).double()
tokens = torch.tensor([[1, 4, 8, 2], [1, 7, 2, 0]])
one_hot = F.one_hot(tokens, num_classes=10).double()
states = embedding(tokens)
torch.testing.assert_close(states, one_hot @ embedding.weight * 6**0.5)
torch.testing.assert_close(embedding.logits(states), states @ embedding.weight.T)
print(tuple(tokens.shape), "->", tuple(states.shape), "->", tuple(embedding.logits(states).shape))

# %% [markdown]
# Read the shapes: 2 sentences of 4 tokens become 8 vectors of 6 numbers, and at the top 8 rows of 10 scores. In the model six layers of encoder and decoder stand between the two; here we go straight from one end to the other.
#
# ## One table, three uses
#
# The paper shares the table three ways. That is possible because both languages are cut into pieces from *one* vocabulary ([Tokenization](14_tokenization.ipynb)).
#
# | use | operation | in, out | rows that learn in a step |
# |---|---|---|---|
# | source words | look up | $(B, S) \to (B, S, D)$ | the words of the source |
# | target words | look up | $(B, T) \to (B, T, D)$ | the words of the target |
# | output | dot products | $(B, T, D) \to (B, T, V)$ | all |
#
# The last column is worth a look. As input, a row learns only when its word occurs. As output, every row takes part in every prediction.

# %%
embedding(tokens).sum().backward()
print("rows that learn as input: ", (embedding.weight.grad.abs().sum(dim=1) > 0).sum().item())
embedding.zero_grad()
state = torch.ones(1, 6, dtype=torch.float64)
F.cross_entropy(embedding.logits(state), torch.tensor([4])).backward()
print("rows that learn as output:", (embedding.weight.grad.abs().sum(dim=1) > 0).sum().item())

# %% [markdown]
# Six different tokens occur in our two sentences, so six rows learn as input. (Tokens 1 and 2 occur twice; their rows get the sum of two gradients.) As output, all ten do. In which direction? With $p_v$ as the probability of word $v$, and $y$ as the right word, the gradient of the loss is
#
# $$
# \frac{\partial L}{\partial E_v} = (p_v - [v = y])\; x,
# $$ (eq-output-gradient)
#
# where $[v = y]$ is 1 for the right word and else 0. A step goes against the gradient. So the right word's row moves towards the state, and all the others move a little away from it.

# %%
p = embedding.logits(state).softmax(dim=-1)[0]
right = F.one_hot(torch.tensor(4), 10)
torch.testing.assert_close(embedding.weight.grad, (p - right)[:, None] * state)
print("rows pulled towards the state:", (p < right).nonzero().flatten().tolist())

# %% [markdown]
# In the plane this can be drawn. Four words, the state $(1.5, 1)$, and the right word is *cat*.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-output-step", "caption": "What does one step do to the table? Each word (filled square) moves along its line to the open square: in the direction of the state (circle) if it is the right word, else the other way. How far depends on the mistake: *fish* was rated almost as high as *cat* and moves much; *the* was not likely anyway and stays. Made-up numbers, learning rate 1."}}
rated = {"cat": (1.2, 0.2), "fish": (0.9, 0.5), "black": (0.1, 1.0), "the": (-1.0, 0.3)}
before, x = torch.tensor(list(rated.values())), torch.tensor([1.5, 1.0])
p = (before @ x).softmax(dim=-1)
after = before - (p - torch.tensor([1.0, 0, 0, 0]))[:, None] * x
ends = torch.cat([torch.cat([before, after], dim=1), torch.tensor([[1.5, 1, 1.5, 1]])])
names = zip([*rated, "state"], ["word"] * 4 + ["state"], ends.tolist())
records = [{"name": n, "kind": k, **dict(zip(["x", "y", "x2", "y2"], e))} for n, k, e in names]
look = {"color": alt.Color("kind:N", legend=None), "shape": alt.Shape("kind:N", legend=None)}
base = alt.Chart(alt.Data(values=records), width=400, height=240)
x, y = alt.X("x:Q", title="first number"), alt.Y("y:Q", title="second number")
here = base.encode(x, y, **look)
chart = (
    base.mark_rule(color=KEY).encode(x, y, x2="x2:Q", y2="y2:Q")
    + base.mark_point(size=60, opacity=1).encode(
        alt.X("x2:Q", title=""), alt.Y("y2:Q", title=""), **look
    )
    + here.mark_point(filled=True, size=100, opacity=1)
    + here.mark_text(align="right", dx=-9).encode(text="name:N")
)
show(
    chart,
    alt="Cat moves in the direction of the state. Fish and black move the other way, the hardly.",
)

# %% [markdown]
# ### What sharing saves
#
# One table holds $37{,}000 \times 512 = 18.9$ million numbers. Three would hold 56.8 million, more than the 44.1 million of all other parts of the base model together. Rare words gain most: a word that was read a few times only has been an output, wanted or not, at every position.
#
# Does *die* mean the German article or the English verb? It is one row for both. The layers above have to tell from the other words, as they do for *bank* in one language.
#
# ### A table that is copied is not shared
#
# In many programs the output is an `nn.Linear` of its own. Its weight must then *be* the table. Copying the numbers looks the same until the first step:

# %%
tied, copied = nn.Linear(6, 10, bias=False), nn.Linear(6, 10, bias=False).double()
tied.weight = embedding.weight  # one tensor with two names
copied.weight.data.copy_(embedding.weight.data)  # two tensors with the same numbers
torch.optim.SGD(embedding.parameters(), lr=1.0).step()
print("tied, still equal:  ", torch.equal(tied.weight, embedding.weight))
print("copied, still equal:", torch.equal(copied.weight, embedding.weight))

# %% [markdown]
# From then on the copy goes its own way, and the model has 18.9 million parameters more than you think. Our model has one tensor and two methods that read it, so there is nothing to keep equal. To check a model by somebody else, count its parameters: PyTorch counts a shared tensor once.
#
# ## Where is the softmax?
#
# The paper's picture has two boxes at the top, *Linear* and *Softmax*. The linear box is our `logits`. The softmax turns the logits of a position into probabilities. Often they are divided by a **temperature** $\tau$ first:
#
# $$
# p_v = \frac{e^{z_v / \tau}}{\sum_{w} e^{z_w / \tau}}
# $$ (eq-temperature)
#
# At $\tau = 1$ this is the plain softmax, the one that is trained. Other temperatures are for use: they change how a finished model picks its words, not the model. A low temperature makes the best word surer, a high one gives the others a chance. The order of the words never changes. We take the five logits from above.

# %%
z = torch.tensor(list(scores.values()), dtype=torch.float64)
for temperature in (0.5, 1, 2):
    print(temperature, [round(p, 2) for p in (z / temperature).softmax(dim=-1).tolist()])

# %% [markdown]
# By hand for $\tau = 1$: the exponentials of 0, 1, 2.5, −1 and 1.5 are 1, 2.72, 12.18, 0.37 and 4.48, together 20.75. So *cat* gets $12.18 / 20.75 = 0.59$.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-softmax-temperature", "caption": "What do the last two boxes do? The five logits of the toy table as probabilities, at three temperatures and at one of your own (10 until you move the slider on the website). Low: the best word takes it all. High: all words come close to one fifth."}}
panels = {"τ = 0.5": 0.5, "τ = 1": 1, "τ = 2": 2, "τ of your own": None}
records = [
    {"word": w, "z": z, "tau": tau, "panel": name}
    for name, tau in panels.items()
    for w, z in scores.items()
]
slider = alt.binding_range(min=0.1, max=10, step=0.1, name="τ of your own ")
chart = alt.Chart(alt.Data(values=records), width=105, height=150).mark_bar(color=VALUE)
chart = chart.add_params(alt.param("own", value=10, bind=slider))
chart = chart.transform_calculate(e="exp(datum.z / (datum.tau || own))")
chart = chart.transform_joinaggregate(total="sum(e)", groupby=["panel"])
x, column = alt.X("word:N", sort=words, title=None), alt.Column("panel:N", sort=None, title=None)
y = alt.Y("p:Q", title="probability", scale=alt.Scale(domain=[0, 1]))
show(
    chart.transform_calculate(p="datum.e / datum.total").encode(x, y, column),
    alt="At temperature 0.5 cat has 0.84 of the probability, at 1 it has 0.59, at 2 it has 0.39; at 10 all words are close to 0.2.",
)

# %% [markdown]
# ### Why is there no softmax in the code?
#
# Because nobody wants it there. In training, the loss needs the *logarithm* of one probability. `F.cross_entropy` takes logits and does softmax and logarithm in one step. It wants one row a prediction, so the (2, 4, 10) logits are flattened to (8, 10), and the right words to 8 numbers. (Here each position is asked for its own token, for the shapes only; a real target is [shifted](10_transformer.ipynb) by one.)

# %%
logits = embedding.logits(states).flatten(0, 1)
by_hand = -logits.log_softmax(dim=-1)[torch.arange(8), tokens.flatten()].mean()
print("softmax is in the loss:", torch.allclose(F.cross_entropy(logits, tokens.flatten()), by_hand))

# %% [markdown]
# In two steps it would be less exact. A probability of $e^{-200}$ is too small for a float and becomes 0, whose logarithm is minus infinity. In one step, it is $-200$:

# %%
far = torch.tensor([0.0, 200.0])
print("two steps:", far.softmax(-1).log().tolist(), " one step:", far.log_softmax(-1).tolist())

# %% [markdown]
# In use, we need no softmax either if we only want the best word: the largest logit is the largest probability. Where probabilities are compared, as in [beam search](19_decoding.ipynb), the log-softmax is taken there.
#
# ### What breaks with a softmax too many
#
# A reader who misses the softmax may add one to the model. No error is raised. The loss takes the probabilities for logits and applies softmax again. Probabilities lie between 0 and 1, so even a perfect answer is only a logit of 1 among zeros:

# %%
perfect = 100 * F.one_hot(tokens.flatten(), num_classes=10).double()
print(f"once:  {F.cross_entropy(perfect, tokens.flatten()):.2f}")
print(f"twice: {F.cross_entropy(perfect.softmax(-1), tokens.flatten()):.2f}")

# %% [markdown]
# The loss can never get below $\ln(e + V - 1) - 1$, here $\ln(e + 9) - 1 = 1.46$. With 37,000 words that is 9.52, where a model that knows nothing has $\ln 37{,}000 = 10.52$. All that training can gain is 1.
#
# ## Why multiply by the square root of $d_\text{model}$?
#
# The paper gives the factor and no reason. Note that it *multiplies* the embedding. The $\sqrt{d_k}$ that divides the scores of [attention](03_attention.ipynb) is another one.
#
# The reason lies in how the table starts, which the paper does not say either. The authors' code draws it from a normal distribution with standard deviation $d_\text{model}^{-0.5}$. One table has two jobs, and each wants another size:
#
# - **As output.** A logit is a sum of 512 products. If a state's numbers have size 1, and the table's have size $s$, the logit has size $s\sqrt{512}$. For logits of size 1, $s$ must be $1/\sqrt{512} = 0.044$.
# - **As input.** There the model expects numbers of size 1, as everywhere else. So what comes out of the table is multiplied by $\sqrt{512} = 22.6$.
#
# The next thing that happens to the vector is that its [position](08_positional_encoding.ipynb) is added. The numbers of a position have a root mean square of $\sqrt{1/2} = 0.71$, since they are sines and cosines.
#
# ### "To match the positions"?
#
# This is the usual explanation of the factor, and it is half of an answer. It holds for this start only. We try three: the authors'; Glorot's rule, which suits the model's other matrices; and size 1, which `nn.Embedding` takes unless told otherwise.

# %%
state, labels, measured = torch.randn(64, 512), torch.arange(64), {}
for name, std in {"authors": 512**-0.5, "Glorot": (2 / 37_512) ** 0.5, "nn.Embedding": 1.0}.items():
    table = torch.randn(37_000, 512) * std
    word, logits = table.std() * 512**0.5, state @ table.T
    measured[name] = word.item(), logits.std().item()
    loss = F.cross_entropy(logits, labels) - log(37_000)
    print(
        f"{name:12}  word {word:5.2f}  share {word**2 / (word**2 + 0.5):4.0%}  loss - ln V {loss:5.1f}"
    )

# %% [markdown]
# *Share* is how much of the sum of word and position is word, counted in squares. With the authors' start it is two thirds, $1 / (1 + 0.5)$. The last column says how far above $\ln V$ the loss starts, the loss of a model that gives every word the same chance. About a half is the price of logits of size 1: they differ, and know nothing yet.
#
# With Glorot's rule, the 37,000 rows make the numbers tiny, $\sqrt{2 / 37{,}512} = 0.0073$. Even multiplied by 22.6 they reach only 0.165. The model gets 95 % position and 5 % word.
#
# With size 1 and the factor, words have size 22.6 and positions drown. It is worse at the other end: logits of that size make the softmax sure of words picked at random, and the loss starts far above $\ln V$. Leave the factor out, and the input is right, but the output is not. So the start and the factor belong together, and with a shared table no single size suits both ends.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-embedding-scale", "caption": "Which start makes both ends fit? Size of a scaled word at the input (circle) and of a logit at the output (square), in the base model before training. Both should be near 1 (line). The dotted pink line is the size of the positions that are added to the words, 0.71. Only the authors' start gets both right."}}
records = [
    {"start": name, "size": round(size, 2), "end": end}
    for name, pair in measured.items()
    for end, size in zip(["input: a word", "output: a logit"], pair)
]
x = alt.X("size:Q", scale=alt.Scale(type="log"), axis=alt.Axis(values=[0.1, 1, 10, 100]))
y, move = alt.Y("start:N", sort=None, title=None), alt.YOffset("end:N")
kind = {"color": alt.Color("end:N", title=None), "shape": alt.Shape("end:N", title=None)}
base = alt.Chart(alt.Data(values=records), height=110)
points = base.mark_point(size=120, strokeWidth=2.5, opacity=1).encode(x, y, move, **kind)
lines = [
    alt.Chart(alt.Data(values=[{"size": size}])).mark_rule(color=color, strokeDash=dash).encode(x)
    for size, color, dash in ((1, INK, [1, 0]), (0.5**0.5, POSITION, [2, 2]))
]
show(
    alt.layer(*lines, points),
    alt="With the authors' start both sizes are 1. With Glorot's rule both are 0.165, with nn.Embedding's both are 22.6.",
)

# %% [markdown]
# ### Could the model not learn the size?
#
# Nothing forbids it: the table can grow or shrink, and the gain of the last [layer norm](09_layers.ipynb) can make up for it at the output. But training has to get there. [Adam](16_schedule.ipynb) moves each number by about the learning rate, at most 0.0007 in the base model, whatever the size of the number. On a table with numbers of size 0.044 that is a step of 1.6 %. On numbers of size 1 it would be 0.07 %. So a small table with a large factor also learns faster than a large table without one.
#
# ## Does it come from word2vec?
#
# No. Tables such as word2vec's are learned beforehand, from which words stand near each other, and then handed to a model. This one starts at random, and all that it knows comes from the loss of the translation.
#
# Random rows are nearly at right angles: the cosine of two of them spreads by $1/\sqrt{512} = 0.04$ around 0. After training, some rows are much closer. We look ahead to the model that comes with the book. It has learned from captions of photographs, German to English. For some of its words we ask which of all 4,000 tokens lie nearest, by the cosine of the angle.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained()
directions = F.normalize(model.embedding.weight.detach(), dim=1)


def row(word):
    (token,) = tokenizer.encode("a " + word)[1:]  # the word must be a single token
    return token


for word in ("guitar", "running", "snow"):
    nearest = (directions @ directions[row(word)]).topk(6).indices.tolist()[1:]
    print(f"{word:8}", ", ".join(tokenizer.decode([token]).strip() for token in nearest))

# %% [markdown]
# Instruments lie with instruments, and forms of a verb with each other. Nobody told the model. Words that can stand in for each other get similar gradients, and so they drift the same way.
#
# We can also compare words pair by pair. A cosine of 1 means the same direction, 0 a right angle.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-neighbors", "caption": "Which words does a trained table put together? The cosine for all pairs of eight English words: people, motion, ground. Along the diagonal, three blocks stand out from the rest. We chose the order; the model knows nothing of the groups."}}
chosen = ["man", "woman", "girl", "runs", "walking", "snow", "sand", "grass"]
rows = directions[[row(word) for word in chosen]]
likeness, same = rows @ rows.T, torch.block_diag(*[torch.ones(n, n) for n in (3, 2, 3)]).bool()
show(
    heatmap(likeness, chosen, chosen, titles=("", "cosine of the angle"), signed=True),
    alt="People are most like people, verbs of motion like each other, and the ground like the ground.",
)
assert likeness[same].mean() > likeness[~same].mean() + 0.3  # words with themselves included

# %% [markdown]
# ### What became of the words that are never written?
#
# German words are read and never written. As outputs they are always wrong, so {eq}`eq-output-gradient` pushes their rows away from every state, all the same way. They should end up pointing in a common direction, more so than English words.

# %% tags=["nbval-ignore-output"]
alike = []
for words in ("dog man woman snow guitar two", "Hund Mann Frau Schnee Gitarre zwei"):
    rows = directions[[row(word) for word in words.split()]]
    alike.append((rows @ rows.T)[~torch.eye(6).bool()].mean().item())
    print(f"{alike[-1]:.2f}  {words}")
assert alike[1] > alike[0]

# %% [markdown]
# They do. A shared table carries traces of both of its jobs.
#
# ## Questions that come up
#
# **Has a word one vector, or one for each meaning?** One row, the same in every sentence. What the word means *here* is worked out in the layers above, where attention brings in its neighbors.
#
# **Must `<pad>` have a row of zeros?** No. [Masks](04_masks.ipynb) see to it that nobody attends to padding, and padding is never a right answer. Its row does no harm, whatever it holds.
#
# **Is there a bias in the output?** The paper's formula has none, and neither has the authors' code. A bias could say that some words are frequent. The table can say it as well, if the states share a direction.
#
# **Does sharing make the model repeat the word that it has just read?** At first, yes, if the state at the top still resembles what came in below: the row most like it is the row of that very word. Chapter [The Transformer](10_transformer.ipynb) shows this in an untrained model. The layers learn to turn the vector of a word into one that points at the next.
#
# **Why 512 numbers?** It is a choice like $d_\text{ff}$. Rows (C) of Table 3 try 256 (24.5 BLEU) and 1024 (26.0), against 25.8.
#
# **Is there dropout on the embedding?** On the sum of embedding and position, yes (section 5.4). It stands in [the Transformer](10_transformer.ipynb), after the sum.
#
# **Why does the softmax cost so much?** For each position, $37{,}000 \cdot 512 = 18.9$ million multiplications, as much as nine feed-forward networks. Looking a row up costs none.
#
# ## What to remember
#
# - A token is a name. The table gives it a vector, learned with the model.
# - Read backwards, the same table scores all words: a logit is the dot product of a state and a row.
# - The softmax is inside the loss. One in the model as well would spoil training without an error.
# - Sharing one table of 18.9 million numbers three ways saves 37.9 million.
# - Start at standard deviation $d_\text{model}^{-0.5}$ and multiply by $\sqrt{d_\text{model}}$: then words and logits both have size 1.
#
# ## Exercises
#
# **1. By hand.** What share of the base model's 63.0 million parameters is the table? And with $d_\text{model} = 256$, where the other parts have 17.3 million?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 18.9 / 63.0 = 30 %. With 256 it is 9.5 / (9.5 + 17.3) = 35 %: a narrow model is mostly table.
for width, others in ((512, 44.1e6), (256, 17.3e6)):
    print(f"d_model {width}: {37_000 * width / (37_000 * width + others):.0%}")

# %% [markdown]
# **2. What breaks if** the logits are multiplied by $\sqrt{d_\text{model}}$ as well, "to be consistent"? Predict where the loss starts, then measure it with the authors' start.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The logits start at size 22.6: the softmax is sure of some random word, and the loss is far above ln V = 10.5.
logits = Embedding(37_000, 512).logits(state).detach()
plain, scaled = (F.cross_entropy(logits * factor, labels).item() for factor in (1, 512**0.5))
print("plain near 11:", abs(plain - 11) < 0.5, " scaled above 60:", scaled > 60)
assert abs(plain - 11) < 0.5 and scaled > 60

# %% [markdown]
# **3. Write it yourself.** Write `embed(tokens, table)` and `logits(states, table)` as functions of tensors, for tokens of any shape, without `F.embedding` and `F.linear`. Compare with our module, and ask the [checker](E_checker.ipynb).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}


def embed(tokens, table):
    return table[tokens] * table.shape[1] ** 0.5


def logits(states, table):
    return states @ table.T


torch.testing.assert_close(embed(tokens, embedding.weight), embedding(tokens))
torch.testing.assert_close(logits(states, embedding.weight), embedding.logits(states))
print("equal")

from annotated_transformer import check

print(check("embedding", embed))

# %% [markdown]
# **4. By hand.** Two words have the logits 2 and 0. What are their probabilities at temperature 1 and at temperature 2? ($e^2 = 7.39$, $e = 2.72$) At which temperature has the second word a third of the probability?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 7.39 / 8.39 = 0.88 and 2.72 / 3.72 = 0.73. A third means a ratio of 2, so 2 / t = ln 2 and t = 2.89.
for t in (1, 2, 2 / log(2)):
    print(f"{t:.2f}", [round(p, 2) for p in (torch.tensor([2.0, 0.0]) / t).softmax(-1).tolist()])

# %% [markdown]
# **5. What breaks if** the vocabulary is renumbered: every token gets another number, and the rows of the table are moved accordingly? Show it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing: numbers are names. With the old table and the new numbers, everything would break.
new_number = torch.randperm(10)
moved = Embedding(10, 6).double()
moved.weight.data[new_number] = embedding.weight.data
torch.testing.assert_close(moved(new_number[tokens]), embedding(tokens))
print("the same vectors")

# %% [markdown]
# ## Sources
#
# The shared table and its factor are from section 3.4 of {cite:t}`vaswani2017attention`. Weight tying is studied by {cite:t}`press2017using`; Glorot's rule is from {cite:t}`glorot2010understanding`.
