# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Embeddings
#
# This chapter builds the one table that turns tokens into vectors at the bottom of the model and
# vectors into predictions at its top (section 3.4 of the paper).
#
# A token is a number, but only as a name: token 8 is not twice token 4. The model needs a vector
# for each, and at the other end a score for each. Both ends know the same words. They can share
# what they know.

# %% tags=["export"]
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# %%
import matplotlib.pyplot as plt

from annotated_transformer.figures import POSITION, QUERY, RESIDUAL, style

# %% [markdown]
# ## A table, read in both directions
#
# Let $E$ be a table with a row of $d_\text{model}$ numbers for each of $V$ words. It is not taken from
# another model, such as word2vec; it starts at random and is learned with everything else.
#
# Write a token as a one-hot row vector $o$: all zeros but for a one in the token's place. Then
#
# $$
# \text{embed}(o) = \sqrt{d_\text{model}}\; o\, E
# \qquad\qquad
# \text{logits}(x) = x\, E^T
# $$ (eq-embedding)
#
# The first picks a row and scales it. The second takes the dot product of a vector with every
# row: the more a state points in the direction of a word, the higher that word's **logit**, its score
# before softmax. Reading and writing use the same numbers. This is called **weight tying**.
#
# Nobody multiplies by one-hot vectors. `F.embedding` looks the row up.


# %% tags=["export"]
class Embedding(nn.Module):
    """One table of word vectors for source, target and output (section 3.4)."""

    def __init__(self, vocabulary_size: int, d_model: int) -> None:
        super().__init__()
        self.scale = sqrt(d_model)
        self.table = nn.Parameter(torch.empty(vocabulary_size, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look tokens (B, T) up: vectors (B, T, D), scaled by sqrt(d_model)."""
        return F.embedding(tokens, self.table) * self.scale

    def logits(self, states: Tensor) -> Tensor:
        """Score every word of the vocabulary at every position: (B, T, D) to (B, T, V)."""
        return F.linear(states, self.table)


# %% [markdown]
# The check does multiply by one-hot vectors. The table has 10 words of 6 numbers.

# %%
torch.manual_seed(0)
embedding = Embedding(vocabulary_size=10, d_model=6).double()
tokens = torch.tensor([[1, 4, 8, 2], [1, 7, 2, 0]])
one_hot = F.one_hot(tokens, num_classes=10).double()
assert torch.allclose(embedding(tokens), one_hot @ embedding.table * 6**0.5)

states = embedding(tokens)
assert torch.allclose(embedding.logits(states), states @ embedding.table.T)
print(tuple(tokens.shape), "->", tuple(states.shape), "->", tuple(embedding.logits(states).shape))

# %% [markdown]
# "Why is there no softmax in the code?" Because training does not want it here. The loss takes the
# logarithm of the softmax in one step, which is more exact than the two in turn:

# %%
logits = embedding.logits(states).flatten(0, 1)
loss = F.cross_entropy(logits, tokens.flatten())
by_hand = -logits.log_softmax(dim=-1)[torch.arange(8), tokens.flatten()].mean()
print("softmax is inside the loss:", torch.allclose(loss, by_hand))

# %% [markdown]
# ## What sharing saves
#
# The paper shares one table three ways: source words, target words and output. That is possible
# because both languages are cut into pieces from one joint vocabulary of about 37,000. One table
# holds $37{,}000 \times 512 = 18.9$ million numbers.

# %%
one = 37_000 * 512
print(f"one table: {one / 1e6:.1f} M; three tables: {3 * one / 1e6:.1f} M")

# %% [markdown]
# The rest of the base model has 44.1 million, so three tables would outweigh it. Tying also helps rare
# words. As an input, a row learns only when its word occurs. As an output, every row learns at
# every position, because softmax pushes all the words that were not said down a little.

# %%
embedding(tokens).sum().backward()
print("rows that learn as input: ", (embedding.table.grad.abs().sum(dim=1) > 0).sum().item())
embedding.zero_grad()
F.cross_entropy(embedding.logits(torch.ones(1, 6).double()), torch.tensor([4])).backward()
print("rows that learn as output:", (embedding.table.grad.abs().sum(dim=1) > 0).sum().item())

# %% [markdown]
# ## Why times the square root?
#
# The paper scales by $\sqrt{d_\text{model}}$ and gives no reason. A common guess is that words must not
# drown in the [positions](06_positional_encoding.ipynb), which are added next and whose
# numbers have a root mean square of 0.71. The guess is half of an answer. It depends on how the table
# starts, which the paper does not say either. The authors' code draws it from a normal distribution
# with standard deviation $d_\text{model}^{-0.5}$. Two uses then ask for two sizes:
#
# - As output, a state with numbers of size 1 should give logits of size 1. A sum of $d_\text{model}$
#   products has that size if the table's numbers are of size $d_\text{model}^{-0.5}$.
# - As input, the numbers should be of size 1. So multiply by $\sqrt{d_\text{model}}$.

# %%
table = Embedding(37_000, 512)
words = table(torch.arange(37_000))
state = torch.randn(64, 512)
logits = table.logits(state)
print(f"table {table.table.std():.2f}, scaled {words.std():.2f}, logits {logits.std():.1f}")

# %% [markdown]
# With another start the factor does not do this. Glorot's rule, which suits the other matrices,
# looks at both sides of the table, and 37,000 rows make the numbers tiny: $\sqrt{2 / 37{,}512} = 0.0073$.
# Even scaled they reach only 0.165, less than a quarter of the positions.

# %%
glorot = torch.empty(37_000, 512)
torch.nn.init.xavier_uniform_(glorot)
print(f"Glorot {glorot.std():.4f}, scaled {glorot.std() * 512**0.5:.3f}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-embedding-scale", "caption": "How large are a word's numbers beside its position's? Root mean square of what is added at the bottom of the base model, for two ways to start the table."}, "image": {"alt": "Bars: scaled words are at 1.0 with the authors' start and at 0.165 with Glorot's rule; the sinusoidal positions are at 0.71."}}
style()
bars = {
    "words, N(0, 1/d_model)": (words.std().item(), QUERY, ""),
    "words, Glorot": (glorot.std().item() * 512**0.5, RESIDUAL, "////"),
    "positions": (0.5**0.5, POSITION, "...."),
}
fig, axis = plt.subplots(figsize=(6.4, 2.0), layout="constrained")
for name, (size, color, hatch) in bars.items():
    axis.barh(name, size, fc="white", ec=color, hatch=hatch, lw=1.5)
    axis.text(size + 0.02, name, f"{size:.2f}", va="center", color=color)
axis.set(xlim=(0, 1.15), xlabel="root mean square of the numbers added")
axis.invert_yaxis()
axis.grid(False)
plt.show()

# %% [markdown]
# ## What to remember
#
# - A token is a name. The table gives it a vector, learned with the model.
# - The same table read backwards scores all words; softmax is left to the loss.
# - Sharing one table of 18.9 million numbers three ways saves 37.9 million.
# - Start at $\mathcal{N}(0, d_\text{model}^{-0.5})$ and scale by $\sqrt{d_\text{model}}$: the two belong together.

# %% [markdown]
# ## Exercises
#
# 1. By hand: what share of the base model's 63.0 million parameters is the table? And with
#    $d_\text{model} = 256$, where the other parts have 17.3 million?
# 2. What breaks if the logits are multiplied by $\sqrt{d_\text{model}}$ as well?
#
# :::{admonition} Solution
# :class: dropdown
# 1. $18.9 / 63.0 = 30\,\%$. With 256: $9.5 / 26.8 = 35\,\%$. A narrow model is mostly table.
# 2. Logits start at size $\sqrt{512} = 23$ in place of 1. Softmax then puts nearly all weight on one
#    word at random, and the loss starts far above $\ln V$. The cell below compares.
# :::

# %% tags=["hide-input"]
assert round(37_000 * 512 / 63.05e6, 2) == 0.30
assert round(37_000 * 256 / (37_000 * 256 + 17.34e6), 2) == 0.35
labels = torch.arange(64)
small = F.cross_entropy(table.logits(state), labels)
large = F.cross_entropy(table.logits(state) * 512**0.5, labels)
assert small < 12 < 60 < large

# %% [markdown]
# ## Further reading
#
# Weight tying is studied by {cite:t}`press2017using`; the start of matrices by {cite:t}`glorot2010understanding`.
