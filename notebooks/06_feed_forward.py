# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # The feed-forward network
#
# The feed-forward network ends every layer of the model. It is two linear maps with a cut at zero between them, and it draws conclusions from what attention has brought to a position (section 3.3 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("feed_forward")

# %% tags=["export", "hide-input"]
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
# After [attention](03_attention.ipynb#from-scores-to-weights) has added to each of our five words what it fetched, `likes` has heard of something living and of something edible:

# %%
import torch

from annotated_transformer.attention import attention
from book.example import FEATURES, W_K, W_O, W_Q, W_V, WORDS, X

stream = X + attention(X @ W_Q, X @ W_K, X @ W_V)[0] @ W_O
print({name: round(v, 2) for name, v in zip(FEATURES, stream[3].tolist())})

# %% [markdown]
# If you know that `likes` is a verb, and that something living and something edible are involved, you know more: this liking is about a meal. But that follows only from all three together, and attention only adds up what it finds. Could ten layers of attention arrive at the conclusion? Take a guess before you read on.
#
# ## What attention alone cannot do
#
# Give attention a sentence of one word. With a single key, its weight is 1 whatever the scores are, and all that remains is $x W^V W^O$, the word times a matrix. So twice the input gives twice the output:

# %%
from annotated_transformer.multi_head_attention import MultiHeadAttention

torch.manual_seed(0)
layer = MultiHeadAttention(d_model=8, heads=2).double()
x = torch.randn(1, 1, 8, dtype=torch.float64)
for word in (x, 2 * x):
    print(*(f"{v:6.3f}" for v in layer(word, word, word)[0, 0, :3].tolist()))

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(layer(2 * x, 2 * x, 2 * x), 2 * layer(x, x, x))

# %% [markdown]
# So ten such layers are ten matrices in a row, whose product is one matrix. That is too weak for even the simplest conclusion. Let $a$ and $b$ be 0 or 1, and suppose that $f(a, b) = ua + vb + c$ computes "$a$ *and* $b$". Then
#
# $$
# f(1, 1) + f(0, 0) = u + v + 2c = f(1, 0) + f(0, 1).
# $$ (eq-no-and)
#
# But the left side must be $1 + 0$ and the right side $0 + 0$, and no choice of $u$, $v$ and $c$ can give both.
#
# With more words the weights depend on the words, so a head can let a value through or hold it back. But it makes this choice with one softmax for each query, and one attention of the paper's model has 8 heads. The network of this chapter has 2,048 units, and they don't compete.
#
# ## One unit, built by hand
#
# A **unit** computes a weighted sum and cuts off everything below zero. The cut is called **ReLU** (rectified linear unit), $\operatorname{ReLU}(z) = \max(0, z)$, and $\operatorname{ReLU}(a + b - 1)$ is "$a$ *and* $b$":
#
# | $a$ | $b$ | $a + b - 1$ | after ReLU |
# |:---:|:---:|:---:|:---:|
# | 0 | 0 | −1 | 0 |
# | 0 | 1 | 0 | 0 |
# | 1 | 0 | 0 | 0 |
# | 1 | 1 | 1 | **1** |
#
# The weights, 1 and 1, say what to look for, and the bias, −1, sets how much evidence it takes.
#
# ## The network
#
# The feed-forward network is many units, side by side. The vector $x$ of one position, $d_\text{model} = 512$ numbers in the base model, is multiplied out to $d_\text{ff} = 2048$ sums. Negative sums become zero, and a second matrix turns the 2048 numbers back into 512:
#
# $$ \text{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2 $$ (eq-ffn)
#
# **Exercise 1. Write it first** (★, 10 min). Before you read on, write `feed_forward(x, W1, b1, W2, b2)` without `nn` and `F`. `check("feed_forward", feed_forward)` from `annotated_transformer` says whether it is right.


# %% tags=["export"]
class FeedForward(nn.Module):
    """The same two-layer network at every position (section 3.3, equation 2)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D), each position by itself."""
        hidden = F.relu(self.linear1(x))
        hidden = self.dropout(hidden)
        return self.linear2(hidden)


# %% [markdown]
# `nn.Linear` acts on the last axis and treats all axes in front of it, sentences and positions, as a list of vectors.
#
# :::{margin}
# The dropout between the layers isn't in the paper; here it is an option, 0 by default.
# :::
#
# Take a network with two units, set by hand. The first, "meal", adds up the columns verb, living and edible and needs more than 2.8. The second, "pet", adds up noun, adjective and living and needs more than 3.2. A unit *fires* where its sum, after the bias, is above zero. At which words will these two fire?

# %%
# A unit is a column of W1 and a row of W2
W1 = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0]]).double().T
b1 = torch.tensor([-2.8, -3.2]).double()
W2 = torch.tensor([[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, -1]]).double()
fired = (stream @ W1 + b1).relu()

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-stamp", "caption": "What does \u201cposition-wise\u201d mean? Each row is computed from the row to its left and from nothing else, by the same two units. The input is the five words after attention; `likes` carries the 0.76 and 0.29 that it fetched. The unit \u201cmeal\u201d fires at `likes`, the unit \u201cpet\u201d at `cat`; the output is what they write. Purple is positive, orange negative; the weights are made up."}}
from book.figures import SKY, heatmap, show

units = ["meal", "pet", *[f"unit {j}" for j in range(3, len(b1) + 1)]]
show(
    heatmap(stream, WORDS, FEATURES, titles=("", "input x"), limit=2.2, cell=30),
    heatmap(fired, WORDS, units, titles=("", "units"), color=SKY, cell=30),
    heatmap(fired @ W2, WORDS, FEATURES, titles=("", "output"), signed=True, cell=30),
    alt="The first unit fires at likes only and writes 0.25 into edible. The second fires at cat only and writes 0.33 into living and minus 0.33 into edible.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert fired.gt(0).nonzero().tolist() == [[2, 1], [3, 0]]  # cat: pet; likes: meal
    for word, unit in ((2, 1), (3, 0)):  # none of the three may be missing
        parts = (stream[word] * W1[:, unit])[W1[:, unit] > 0]
        assert (parts.sum() - parts + b1[unit] < 0).all()

# %% [markdown]
# ## A network is a sum of units
#
# A matrix product hides what happens. Let $w_j$ be column $j$ of $W_1$ and $u_j$ row $j$ of $W_2$. The same formula then reads
#
# $$ \text{FFN}(x) = b_2 + \sum_{j=1}^{d_\text{ff}} \operatorname{ReLU}(x \cdot w_j + b_{1j})\; u_j $$ (eq-ffn-units)
#
# Unit $j$ compares $x$ with its pattern $w_j$ by a dot product. If $x$ fits well enough, the unit adds its vector $u_j$ to the output, and the better the fit, the more of it. In {numref}`fig-stamp`, "meal" computes at `likes` $2 + 0.76 + 0.29 - 2.8 = 0.25$ and writes that much "edible": this liking is about food. Take any of the three away, and the sum is below zero: the unit computes an *and*. "Pet" finds `cat`, a noun that is alive and dark, adds to "living" and takes "edible" away.

# %% tags=["remove-cell"]
if CHECKING:
    wide = FeedForward(d_model=8, d_ff=32).double()
    batch = torch.randn(2, 5, 8, dtype=torch.float64)
    A, a, C, c = wide.parameters()
    by_formula = torch.clamp(batch @ A.T + a, min=0) @ C.T + c
    by_unit = c + sum(
        (batch @ A[j] + a[j]).relu()[..., None] * C[:, j] for j in range(32)
    )
    torch.testing.assert_close(wide(batch), by_formula, atol=1e-12, rtol=0)
    torch.testing.assert_close(wide(batch), by_unit, atol=1e-12, rtol=0)

# %% [markdown]
# The network is a lookup like attention, with $w_j$ as keys and $u_j$ as values ({cite:t}`geva2021transformer`). Attention finds its keys and values in the sentence; here they are learned once and stay. There is no softmax, so ten units may fire, or none.
#
# ## Why wide, and then narrow again?
#
# Each unit asks one question, and with 512 inputs there are already $512 \cdot 511 / 2 = 130{,}816$ *pairs* of features to ask about. To see what width buys, we ask for the product of two of eight inputs, which no linear map can give. The patterns stay random; only $W_2$ is fitted, by least squares, and then tested on fresh inputs.

# %%
random = torch.Generator().manual_seed(0)
inputs = torch.randn(8000, 8, generator=random, dtype=torch.float64)
half = len(inputs) // 2
product = inputs[:, 0] * inputs[:, 1]
for d_ff in (8, 64, 512):
    patterns = torch.randn(8, d_ff, generator=random, dtype=torch.float64)
    thresholds = torch.randn(d_ff, generator=random, dtype=torch.float64)
    outputs = (inputs @ patterns + thresholds).relu()
    fitted = torch.linalg.lstsq(outputs[:half], product[:half]).solution
    missed = (outputs[half:] @ fitted - product[half:]).var() / product.var()
    print(f"d_ff {d_ff:3}: {missed:.2f} of the variance is missed")

# %% [markdown]
# Eight random units miss nearly all of the product, 512 only a twentieth. The output must return to the input's width, because it is [added to the input](09_layers.ipynb#let-each-part-add).
#
# Four times the model's width is a choice that worked. In rows C of the paper's Table 3, a $d_\text{ff}$ of 1024, 2048 and 4096 brings 25.4, 25.8 and 26.2 BLEU. The gain goes on, but the last 0.4 takes 90 million parameters instead of 65 million.
#
# One network of the base model has $2 \cdot 512 \cdot 2048$ weights and $2048 + 512$ biases, 2,099,712 in all, and the attention beside it $4 \cdot 512^2 = 1{,}048{,}576$. So two thirds of an encoder layer is feed-forward.
#
# ## Which units fire
#
# In an untrained network a sum is as often above zero as below, so half of the units fire. And after training? We read the sums in the top encoder layer of [the captions model](05_multi_head_attention.ipynb#how-heads-differ), for one caption.

# %% tags=["nbval-ignore-output"]
from annotated_transformer import load_pretrained
from annotated_transformer.masks import EOS

model, tokenizer = load_pretrained("captions-de-en")
tokens = [*tokenizer.encode("Ein brauner Hund läuft durch den Schnee."), EOS]
first_map = model.encoder.layers[-1].feed_forward.linear1
seen = []
first_map.register_forward_hook(lambda part, x, sums: seen.extend([x[0], sums]))
with torch.no_grad():
    model.encode(torch.tensor([tokens]))
fires = seen[1] > 0
print(
    f"{int(fires.sum())} of {fires.numel()} sums are above zero, {fires.double().mean():.1%}"
)

# %% tags=["remove-cell"]
if CHECKING:
    assert 0.012 < fires.double().mean() < 0.02

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-firing", "caption": "Which units fire at which token? Rows are the tokens of the caption, and the number beside each counts its units; columns are the units that fire at one token or more, in the order of the tokens where they fire most. The fuller a cell, the more it gives. Most units answer to one token only; `.` and `</s>` share theirs, and `durch` has the fewest."}}
outputs = seen[1][0].relu()  # (tokens, units)
units = outputs.any(dim=0).nonzero().flatten().tolist()
units.sort(key=lambda j: (outputs[:, j].argmax().item(), -outputs[:, j].max().item()))
counts = (outputs > 0).sum(dim=1).tolist()
pieces = [tokenizer.decode([i]).strip() or "</s>" for i in tokens]
drawn = heatmap(
    outputs[:, units],
    [f"{piece}: {count}" for piece, count in zip(pieces, counts)],
    [""] * len(units),
    titles=("token: units that fire", f"{len(units)} of {outputs.size(1)} units"),
    limit=4,
    color=SKY,
)
show(
    drawn.transform_filter("datum.value > 0").properties(
        width=7 * len(units), height=22 * len(pieces)
    ),
    alt="Each token has a few units of its own, so that the filled cells go down the picture like stairs. The full stop and the end token share all their units.",
)

# %% tags=["remove-cell"]
if CHECKING:
    untrained = nn.Linear(first_map.in_features, first_map.out_features)
    assert 0.45 < (untrained(seen[0]) > 0).double().mean() < 0.55
    assert min(counts) >= 3 and max(counts) <= 12
    assert counts.index(min(counts)) == pieces.index("durch")
    assert torch.equal(outputs[-1] > 0, outputs[-2] > 0)  # the full stop and </s>
    alone = (outputs[:, units] > 0).sum(dim=0)
    assert alone.max() <= 4 and (alone > 2).sum() <= 3

# %% [markdown]
# Nothing in the loss asks for so few units to fire, and yet larger models are sparse, too ({cite:t}`li2023lazy`).
#
# ## What to remember
#
# - Attention moves information between positions; the feed-forward network works on it within one, with the same weights at every position.
# - A unit compares $x$ with a pattern and, above a threshold, adds a vector to the output. The network is the sum of 2048 such units.
# - Attention can gate, but with one softmax per head. What it makes of a single word is linear, and so would be the network without its ReLU.
# - Two thirds of an encoder layer's parameters are here.
#
# ## Exercises
#
# **1. Write it first** is [above](#the-network).
#
# :::{admonition} Solution 1
# :class: dropdown
# Two products, and a cut between them:
#
# ```python
# def feed_forward(x, W1, b1, W2, b2):
#     sums = x @ W1 + b1
#     return torch.where(sums > 0, sums, 0) @ W2 + b2
# ```
# :::

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer import check

    def feed_forward(x, W1, b1, W2, b2):
        sums = x @ W1 + b1
        return torch.where(sums > 0, sums, 0) @ W2 + b2

    assert check("feed_forward", feed_forward)

# %% [markdown]
# **2. Exactly one** (★, 10 min). Let $a$ and $b$ be 0 or 1. Find two units that compute "exactly one of the two".
#
# :::{admonition} Solution 2
# :class: dropdown
# The sum $a + b$ is right except for $(1, 1)$, where a unit for "both" has to take 2 away:
#
# $$ \operatorname{ReLU}(a + b) - 2 \operatorname{ReLU}(a + b - 1) $$
#
# gives 0, 1, 1 and $2 - 2 = 0$.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    cases = torch.tensor([0.0, 1.0, 1.0, 2.0])  # a + b
    exactly_one = cases.relu() - 2 * (cases - 1).relu()
    assert exactly_one.tolist() == [0, 1, 1, 0]

# %% [markdown]
# **3. Without the ReLU** (★★, 15 min). Find one matrix and one vector that do the same as both layers. How many numbers do they have for $d_\text{model} = 512$, and how many had the two layers?
#
# :::{admonition} Solution 3
# :class: dropdown
# Multiply out:
#
# $$ (x W_1 + b_1)\, W_2 + b_2 = x\, (W_1 W_2) + (b_1 W_2 + b_2). $$
#
# The matrix has $512 \cdot 512$ numbers and the vector 512, so 262,656 would do the work of 2,099,712.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    both = wide.linear2(wide.linear1(batch))
    torch.testing.assert_close(both, batch @ (A.T @ C.T) + (a @ C.T + c))
    assert sum(p.numel() for p in FeedForward(512, 2048).parameters()) == 2_099_712

# %% [markdown]
# ## Further
#
# ### Units that never fire
#
# The gradient of ReLU is 1 where a unit fires and 0 elsewhere. With $g$ for the gradient that arrives at the output of a position, the gradient of the pattern is
#
# $$ \frac{\partial L}{\partial w_j} = \sum_{\text{positions where } j \text{ fires}} (g \cdot u_j)\; x. $$ (eq-ffn-gradient)
#
# So a unit learns only where it fires already, and one that is silent for *every* input stays as it is: a **dead unit**. A few steps that are too large can push a threshold that far, which is one of the reasons to start training with small steps ([schedule](16_schedule.ipynb#why-does-a-transformer-need-a-warm-up)).

# %% tags=["remove-cell"]
if CHECKING:
    dying = FeedForward(d_model=8, d_ff=4).double()
    with torch.no_grad():
        dying.linear1.bias[
            0
        ] = -100.0  # no input of usual size gets over this threshold
    vectors = torch.randn(1000, 8, dtype=torch.float64)
    dying(vectors).sum().backward()  # every gradient g is a row of ones
    firing = (dying.linear1(vectors) > 0).double()
    g_times_u = dying.linear2.weight.sum(dim=0)
    gradient = dying.linear1.weight.grad
    torch.testing.assert_close(gradient, g_times_u[:, None] * (firing.T @ vectors))
    assert gradient[0].abs().max() == 0

# %% [markdown]
# ## Sources
#
# Equation 2 is from section 3.3 of {cite:t}`vaswani2017attention`, the rows from its Table 3. Units as keys and values: {cite:t}`geva2021transformer`; their silence: {cite:t}`li2023lazy`.
