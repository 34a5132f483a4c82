# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Layers
#
# This chapter wraps each attention and each network in an addition and a normalization, and makes a layer of them (section 3.1 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("layers")

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.attention import Mask
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %% [markdown]
# Attention moves information between words; the feed-forward network, in this chapter *the network* for short, works within each word. The paper's encoder alternates the two, six times over. The obvious way to build that is to hand the output of each part to the next one.
#
# Suppose we do just that, with random weights, as they are before training, and send *the black cat likes fish* through it: five random vectors, as different as five words of an untrained table. Before you look: what will have become of the five words after two attentions and two networks?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-alike", "caption": "What becomes of five words in a plain stack? The cosine of each pair, 1 (filled) if two vectors point in the same direction; choose how many parts they have passed, attention and network in turn. At first they have nothing in common. After one attention and one network they resemble each other, and after two of each all five have become one."}}
import altair as alt

from annotated_transformer.attention import attention
from annotated_transformer.embeddings import Embedding
from annotated_transformer.masks import PAD, causal_mask, padding_mask
from book.example import FEATURES
from book.figures import AMBER, INK, PAPER, PLUM, SKY, arrow, box, curves, heatmap, plus
from book.figures import show, show_drawing, show_steps, stream, words_at


def sublayers(layers, width=64):
    """Make attentions and feed-forward networks in turn, each a function of x."""
    torch.manual_seed(0)
    for _ in range(layers):
        attend = MultiHeadAttention(width, 4).double()
        network = FeedForward(width, 4 * width).double()
        for p in (*attend.parameters(), *network.parameters()):
            nn.init.xavier_uniform_(p) if p.dim() == 2 else nn.init.zeros_(p)
        yield lambda x, f=attend: f(x, x, x)
        yield network


torch.manual_seed(1)
x = torch.randn(1, 5, 64).double()
spoken = ["the", "black", "cat", "likes", "fish"]
steps = {}
alike = []
for part in [None, *sublayers(2)]:
    x = x if part is None else part(x)
    alike.append(F.cosine_similarity(x[0][:, None], x[0][None], dim=-1).detach())
for n in (0, 1, 2, 4):
    drawn = heatmap(
        alike[n], spoken, spoken, titles=("", "cosine with"), cell=46, color=SKY
    )
    count = "1 part" if n == 1 else f"{n} parts"
    steps[count] = (
        drawn,
        f"Cosines after {count}; the smallest is {alike[n].min():.2f}.",
    )
show_steps(steps, "After how many parts?", start=3)

# %% tags=["remove-cell"]
if CHECKING:
    assert (alike[0] - torch.eye(5)).abs().max() < 0.3
    assert 0.5 < alike[2].min() < 0.7
    assert alike[4].min() > 0.99

# %% [markdown]
# Five words went in, and the same vector came out five times. Whatever is built on top of it can't tell *cat* from *likes* anymore.
#
# ## What goes wrong in a plain stack
#
# Let's follow it further up. `sublayers` (folded above) makes attentions and networks in turn, 64 numbers wide, with weights drawn as in the [next chapter](10_transformer.ipynb#how-weights-start); twelve of each make a stack of 24. A function `rule(x, f)` takes a state `x` and the next part `f`, and returns the next state. In the plain stack that is simply `f(x)`: the output takes the place of the input.


# %%
torch.manual_seed(1)
words = torch.randn(1, 5, 64).double()  # the black cat likes fish


def walk(rule, layers=12):
    states = [words.clone().requires_grad_()]
    for f in sublayers(layers, words.size(-1)):
        states.append(rule(states[-1], f))
    return states


plain = walk(lambda x, f: f(x))
top = len(plain) - 1
for n in (0, 2, 4, top):
    alike = F.cosine_similarity(plain[n][0, 2], plain[n][0, 3], dim=0)
    size = plain[n].std()
    print(f"after {n:2} parts: cat and likes {alike:.2f}, size {size:.4f}")

# %% [markdown]
# An untrained attention takes an average over the sentence. It's nearly the same average for every word that asks, and nothing brings the differences back. It's also smaller than what went in, so the signal fades.
#
# The backward pass fares no better. We put a random gradient on the last state and look at what arrives at the first (`gradients`, folded here, returns its size at every state).


# %% tags=["hide-input"]
def gradients(states):
    end = torch.randn(words.shape, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((states[-1] * end).sum(), states, retain_graph=True)
    return [gradient.norm().item() for gradient in found]


found = gradients(plain)
print(f"gradient at the end {found[-1]:.1f}, at the start {found[0]:.3f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert found[0] < found[-1] / 1000

# %% [markdown]
# Less than a thousandth is left. This is the **vanishing gradient**: the first layer hardly learns what it should do differently.
#
# ## Let each part add
#
# The remedy is from {cite:t}`he2016deep`: a part *adds* to its input instead of replacing it.
#
# $$
# x_{n+1} = x_n + f_n(x_n)
# $$ (eq-skip)
#
# This is a **residual connection**. A part need not hand on what it doesn't use, since that passes by anyway; it only computes a correction. Insert the formula into itself, and a whole stack turns out to be one sum:
#
# $$
# x_N = x_0 + f_0(x_0) + \dots + f_{N-1}(x_{N-1})
# $$ (eq-stream)
#
# The vector of a word thus runs from the bottom of the stack to its top. Every part reads it and adds its output to it. The running sum is the **residual stream**. In our example it begins with the five words of [chapter 3](03_attention.ipynb#queries-keys-and-values), and the first thing added is what attention fetched, brought back to the width of the stream by $W^O$:

# %%
from book.example import W_K, W_O, W_Q, W_V, WORDS, X

fetched, _ = attention(X @ W_Q, X @ W_K, X @ W_V)
added = X + fetched @ W_O
for word, before, after in zip(WORDS, X.tolist(), added.tolist()):
    print(f"{word:6} {[round(v, 2) for v in before]} -> {[round(v, 2) for v in after]}")

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(v, 2) for v in added[3].tolist()] == [0, 2, 0.06, 0, 0.76, 0.29]

# %% [markdown]
# The columns are noun, verb, adjective, article, living, edible. *Likes* is still the verb that it was, 2 in the second column, and now also carries 0.76 of something living and 0.29 of something edible: the next part can read that cat and fish are involved. Nothing was overwritten.
#
# All parts must have the same width, or they couldn't be added. That's why each of them ends in a matrix back to $d_\text{model}$, 512 in the base model, and why the embedding has 512 columns as well.
#
# The gradient benefits, too. The derivative of $x + f(x)$ is $1 + f'(x)$, so one path leads back to the start on which it's multiplied by 1 at every step, however small $f'$ is.
#
# ### Why doesn't adding mix everything up?
#
# A part can write in a direction of the 512-dimensional space that the others don't use, as attention did with the empty columns of *likes*, and a later matrix can read one direction and ignore the rest. Embedding and position share the stream in the same way. A part can also erase, by adding the negative of what is there.
#
# ### What is still broken
#
# The addition repairs only half of the damage. How large do you expect the stream to be after 24 additions, and the gradient at the start? (`describe` prints the size of the last state, and the gradient at the start divided by the gradient at the end.)


# %%
def describe(name, states):
    found = gradients(states)
    growth = found[0] / found[-1]
    print(f"{name:9} size {states[-1].std():8.4f}, gradient times {growth:.2g}")


added_up = walk(lambda x, f: x + f(x))
describe("replaced", plain)
describe("added", added_up)

# %% tags=["remove-cell"]
if CHECKING:
    assert 200 < added_up[-1].std() < 230
    assert 3000 < gradients(added_up)[0] / gradients(added_up)[-1] < 5000

# %% [markdown]
# Now everything explodes. Each part reads the sum and answers in proportion to it, so a larger stream brings larger outputs, and the state grows two hundredfold. The gradient arrives thousands of times too large, since each part makes it larger on its way down. A step that suits the last layer would destroy the first, so something has to keep the size in check.
#
# ## Layer normalization
#
# **Layer normalization** {cite:p}`ba2016layer` does so in the most direct way: it brings each vector to mean 0 and variance 1. For one vector $x$ of $D$ numbers,
#
# $$
# \begin{aligned}
# \text{LayerNorm}(x) &= g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b \\
# \mu &= \frac1D \sum_{i=1}^{D} x_i \\
# \sigma^2 &= \frac1D \sum_{i=1}^{D} (x_i - \mu)^2
# \end{aligned}
# $$ (eq-layer-norm)
#
# Here $\odot$ multiplies number by number, and the tiny $\varepsilon = 10^{-6}$ keeps a vector of equal numbers from dividing zero by zero. Gain $g$ and bias $b$ have $D$ numbers each; they're learned, shared by all positions, and start at 1 and 0.
#
# By hand, for *likes*: the six numbers 0, 2, 0.06, 0, 0.76, 0.29 have mean 0.52. The 2 is 1.48 above it, and the mean of the six squared distances is 0.51, with root 0.71. So the 2 becomes $1.48 / 0.71 = 2.08$. ([The worked sentence](11_by_hand.ipynb#add-and-norm) goes on from here.)
#
# If you'd like to write the function yourself first, go to exercise 2 now. Here is ours, one line for each part of the formula, with PyTorch's own beside it:


# %% tags=["export"]
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalize each vector of x (..., D) by itself: the formula, to be read."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return gain * (x - mean) / torch.sqrt(variance + eps) + bias


# %%
ones, zeros = torch.ones(6), torch.zeros(6)
normal = layer_norm(added, ones, zeros)
for word, row in zip(WORDS, normal.tolist()):
    print(f"{word:6} {[round(v, 2) for v in row]}")
difference = (normal - F.layer_norm(added, (6,), eps=1e-6)).abs().max()
print(f"largest difference from F.layer_norm: {difference:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert round(normal[3, 1].item(), 2) == 2.08

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-layer-norm", "caption": "What does a residual connection do to five words? The stream of the example; choose a step. Attention adds to three columns and leaves the rest alone. Subtracting the mean makes each row sum to zero. The division gives all rows the same size, and *fish*, whose numbers differ least, is stretched most: its 1.5, 0.78 above the mean, ends at 1.53, and the 2 of *cat*, 1.39 above it, at 1.90. Purple is positive, orange negative."}}
centered = added - added.mean(-1, keepdim=True)
stages = {
    "as they come": (X, "Five words, six features each."),
    "plus attention": (
        added,
        "Three columns have changed: adjective, living and edible.",
    ),
    "minus the mean": (centered, "Each row now sums to zero."),
    "divided": (normal, "Every row now has variance 1."),
}
look = {"titles": ("word", "feature"), "signed": True, "cell": 46, "limit": 2.2}
steps = {
    name: (heatmap(M, WORDS, FEATURES, **look), label)
    for name, (M, label) in stages.items()
}
show_steps(steps, "Which step?", start=3)

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(normal[i, 0].item(), 2) for i in (2, 4)] == [1.9, 1.53]

# %% [markdown]
# Each word loses exactly two numbers, its mean and its size: multiply the input by 10 or add 10, and the output stays the same. The pattern is kept. On the way back, the gradient [is divided by the size](#the-gradient-through-a-norm) of what came in, so it's held in check, too.
#
# The module `LayerNorm` holds gain and bias, and calls PyTorch's version of the formula.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the module LayerNorm", "code_prompt_hide": "Hide the module"}
class LayerNorm(nn.Module):
    """Layer normalization with learned gain and bias, as the function layer_norm, only faster."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each vector of x (..., D)."""
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)


# %% [markdown]
# ## Before or after? Post-norm and pre-norm
#
# Where does the norm go? The paper puts it on the stream, after the addition: **post-norm**. Most later models put it on the branch, before the attention or network, which then reads a normalized *input*: **pre-norm**. Write $f$ for the attention or the network; either one is called a **sub-layer**. (*Dropout* sets random numbers to zero in training, [chapter 17](17_regularization.ipynb#what-dropout-does).)
#
# $$
# \begin{aligned}
# \text{post: } & \text{LayerNorm}(x + \text{dropout}(f(x))) \\
# \text{pre: } & x + \text{dropout}(f(\text{LayerNorm}(x)))
# \end{aligned}
# $$ (eq-residual)
#
# In code this is a module that takes the sub-layer as a function:


# %% tags=["export"]
class Residual(nn.Module):
    """Add what a sub-layer computes to its input, and normalize (section 3.1)."""

    def __init__(self, d_model: int, dropout: float, pre_norm: bool = False) -> None:
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return LayerNorm(x + dropout(sublayer(x))), or with pre_norm its other form."""
        if self.pre_norm:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-residual-forms", "caption": "Where is the norm? The thick line is the stream, upwards; the diamond is dropout, which in all three drawings acts on what is added. Left, the paper: the norm is on the stream itself, after the addition. Middle: it is on the branch, before the sub-layer, and the stream passes untouched. Right, what you get when norm and sum change places by mistake: on the branch, after the sub-layer."}}
def diamond(x, y, fill=INK):
    return f'<path d="M{x},{y - 6}l6,6l-6,6l-6,-6z" fill="{fill}" stroke="{INK}"/>'


def form(x, title, formula, boxes):
    yield words_at(x + 58, 18, title, 14) + words_at(x + 58, 38, formula, 12)
    yield stream([(x + 24, 270), (x + 24, 54)]) + words_at(x + 24, 287, "x")
    yield arrow([(x + 24, 250), (x + 76, 250), (x + 76, 120), (x + 34, 120)])
    yield diamond(x + 52, 120) + plus(x + 24, 120)
    for left, y, width, name in boxes:
        yield box(x + left, y, width, 28, name)


forms = [
    (
        "post-norm",
        "norm(x + f(x))",
        [(38, 172, 76, "sub-layer f"), (2, 68, 46, "norm")],
    ),
    (
        "pre-norm",
        "x + f(norm(x))",
        [(38, 152, 76, "sub-layer f"), (53, 202, 46, "norm")],
    ),
    (
        "swapped",
        "norm(f(x)) + x",
        [(38, 202, 76, "sub-layer f"), (53, 152, 46, "norm")],
    ),
]
parts = [part for i, f in enumerate(forms) for part in form(120 * i, *f)]
label = "Post-norm has its norm on the stream; in the other two it is on the branch."
show_drawing(parts, 356, 296, alt=label)

# %% [markdown]
# The figure shows a third form, *swapped*: $x + \text{LayerNorm}(f(x))$. It is often written by mistake in place of the paper's. These are three different models, and weights trained in one are useless in another. Take a sub-layer simple enough for pencil and paper, $f(x) = 2x$, at $x = (1, 3)$, whose mean is 2 and deviation 1:
#
# - Post-norm: $(1, 3) + (2, 6) = (3, 9)$ has mean 6 and deviation 3. Result: $(-1, 1)$.
# - Pre-norm: the sub-layer gets $(-1, 1)$ and returns $(-2, 2)$. Result: $(1, 3) + (-2, 2) = (-1, 5)$.
# - Swapped: the sub-layer returns $(2, 6)$, normalized $(-1, 1)$. Result: $(-1, 1) + (1, 3) = (0, 4)$.
#
# ## The stack, mended
#
# We put the norm of the paper into our stack, and send the five words up once more.

# %%
mended = walk(lambda x, f: F.layer_norm(x + f(x), x.shape[-1:]))
describe("mended", mended)
for n in (4, top // 2, top):
    alike = F.cosine_similarity(mended[n][0, 2], mended[n][0, 3], dim=0)
    print(f"after {n:2} parts: cat and likes {alike:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 0.5 < gradients(mended)[0] / gradients(mended)[-1] < 1.2
    assert F.cosine_similarity(mended[4][0, 2], mended[4][0, 3], dim=0) < 0.65
    assert alike > 0.98

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-plain-stack", "caption": "What do addition and norm repair? An untrained stack of 24 sub-layers; both vertical axes are logarithmic. Above: size of the state after so many sub-layers. Below: size of the gradient that arrives at that state from the end of the stack (right edge). Where the output replaces the input (dotted), both fall below a thousandth. Where it is added (dashed), the state grows two hundredfold on its way up, and the gradient by a factor of thousands on its way down. With the norm after each addition (solid), both keep their size."}}
looks = {
    "replaced": (PLUM, [2, 3]),
    "added": (AMBER, [6, 3]),
    "and normed": (SKY, [1, 0]),
    "post-norm": (SKY, [1, 0]),
    "pre-norm": (AMBER, [6, 3]),
}


def deviations(states):
    return [state.std().item() for state in states]


def by_depth(stacks, measure, title, scale, form):
    records = [
        {"n": n, "value": float(f"{value:.3g}"), "stack": name}
        for name, states in stacks.items()
        for n, value in enumerate(measure(states))
    ]
    ticks = alt.Axis(values=[*range(0, top + 1, 6)])
    x = alt.X("n:Q", title="sub-layers passed", axis=ticks)
    axis = alt.Axis(format=form, tickCount=5)
    y = alt.Y("value:Q", title=None, scale=scale, axis=axis)
    look = {name: looks[name] for name in stacks}
    chart = curves(records, x, y, "stack", look)
    return chart.properties(title=title, width=300, height=130)


stacks = {"replaced": plain, "added": added_up, "and normed": mended}
powers = alt.Scale(type="log")
upper = by_depth(stacks, deviations, "size of the state", powers, ".0e")
lower = by_depth(stacks, gradients, "size of the gradient", powers, ".0e")
show(
    alt.vconcat(upper, lower),
    alt="Replaced, state and gradient die out. Added, both grow by powers of ten. With the norm they stay level.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert plain[-1].std() < 0.001

# %% [markdown]
# The state keeps its size, and the gradient arrives at the start almost as large as it was at the end. One thing is still broken: the words still become alike, only more slowly. In the plain stack they were one vector after four parts; here they resemble each other after twelve, and are one at the top. An untrained attention averages, whatever is added to it. Training can change that, since the gradient now gets through to each part.
#
# ## The encoder layer
#
# A layer of the **encoder**, the half of the model that reads, is self-attention and a feed-forward network, each in a residual connection. A layer of the **decoder**, the half that writes, has one more sub-layer.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-layers", "caption": "What is in a layer? One encoder layer (left) and one decoder layer (right) of the paper, read from the bottom up. The thick gray line is the vector of a word on its way up, the stream. Each sub-layer reads it and adds to it, and a norm follows each of these five additions; the additions of the positions, at the bottom, have none. Filled diamonds are the paper's dropout; the outlined one in each box is where many other implementations have dropout as well."}}
def sublayer(x, y, name):
    """Yield a sub-layer beside the stream at x: it reads, its update is added, a norm follows."""
    side = 1 if x < 178 else -1
    near, middle, edge = x + 10 * side, x + 26 * side, x + 40 * side
    left = edge if side == 1 else edge - 102
    yield box(left, y, 102, 60, name)
    yield arrow([(x, y + 46), (edge, y + 46)])
    yield arrow([(edge, y + 14), (near, y + 14)]) + plus(x, y + 14)
    yield diamond(middle, y + 14) + diamond(left + 51, y + 12, PAPER)
    yield box(x - 21, y - 22, 42, 22, "norm")


def column(x, title, names, inputs):
    """Yield the layer whose stream is at x, from its sub-layers' names, topmost first."""
    top = 340 - 100 * len(names)
    side = 1 if x < 178 else -1
    yield stream([(x, 402), (x, top - 30)])
    yield words_at(x + 91 * side, top + 4, title, 14)
    for i, name in enumerate(names):
        yield from sublayer(x, top + 20 + 100 * i, name)
    yield arrow([(x + 60 * side, 374), (x + 10 * side, 374)]) + plus(x, 374)
    yield diamond(x, 350) + words_at(x + 91 * side, 379, "positions")
    yield words_at(x + 50 * side, 418, inputs)


names = ["feed-forward", "cross-attention", "self-attention"]
left = column(24, "encoder layer", names[::2], "source embeddings")
right = column(332, "decoder layer", names, "target embeddings")
memory = arrow([(24, 114), (24, 80), (178, 80), (178, 180), (190, 180)])
label = "Two sub-layers on the left, three on the right, each with dropout, plus and norm. The memory leads from the encoder to cross-attention."
show_drawing([*left, *right, memory, words_at(100, 72, "memory")], 356, 424, label)


# %% tags=["export"]
class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each inside a residual connection."""

    def __init__(
        self,
        d_model: int,
        self_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.1,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(
            Residual(d_model, dropout, pre_norm) for _ in range(2)
        )

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        """Map states (B, S, D) to (B, S, D); mask (B, 1, 1, S) hides the padding."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, y, mask))
        return self.residuals[1](x, self.feed_forward)


# %% [markdown]
# A residual wants a function of one argument, but attention takes four. The `lambda` closes the gap: whatever comes in is query, key and value at once. The two residuals are separate because each norm has its own gain and bias. Dropout, the filled diamonds, acts on every output before it is added ([why there](17_regularization.ipynb#where-is-dropout-in-the-transformer)).
#
# ## The encoder
#
# The encoder calls its layers in turn. Its output is the **memory**: one vector for each source word, computed once and then read by every decoder layer. With pre-norm, nothing has normalized the stream when it leaves the last layer, so the stack needs a final norm. With post-norm every layer ends in one.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the class Encoder", "code_prompt_hide": "Hide the class"}
class Encoder(nn.Module):
    """A stack of encoder layers; with pre_norm, one last normalization."""

    def __init__(
        self, layers: list[EncoderLayer], d_model: int, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(d_model) if pre_norm else nn.Identity()

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        """Map embedded source (B, S, D) to the memory (B, S, D) that the decoder reads."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


# %% [markdown]
# ## The decoder layer
#
# Between self-attention and the network, a decoder layer has one more sub-layer: **cross-attention**. Its queries come from the target and its keys and values from the memory, which every layer projects with its own $W^K$ and $W^V$. This makes three uses of attention in one model:
#
# | attention | queries | keys, values | weights | mask hides |
# |---|---|---|---|---|
# | encoder, self | source | source | $(B, H, S, S)$ | padding of the source |
# | decoder, self | target | target | $(B, H, T, T)$ | padding and the future |
# | decoder, cross | target | memory | $(B, H, T, S)$ | padding of the source |


# %% tags=["export"]
class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, feed-forward network, each in a residual."""

    def __init__(
        self,
        d_model: int,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float = 0.1,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(
            Residual(d_model, dropout, pre_norm) for _ in range(3)
        )

    def forward(
        self, x: Tensor, memory: Tensor, mask: Mask, memory_mask: Mask
    ) -> Tensor:
        """Map states (B, T, D) and memory (B, S, D) to (B, T, D)."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, y, mask))
        x = self.residuals[1](
            x, lambda y: self.cross_attention(y, memory, memory, memory_mask)
        )
        return self.residuals[2](x, self.feed_forward)


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the class Decoder, a stack of these", "code_prompt_hide": "Hide the class"}
class Decoder(nn.Module):
    """A stack of decoder layers; with pre_norm, one last normalization."""

    def __init__(
        self, layers: list[DecoderLayer], d_model: int, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(d_model) if pre_norm else nn.Identity()

    def forward(
        self, x: Tensor, memory: Tensor, mask: Mask, memory_mask: Mask
    ) -> Tensor:
        """Map embedded target (B, T, D) and memory (B, S, D) to states (B, T, D)."""
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask)
        return self.norm(x)


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show both stacks at work, and the shapes", "code_prompt_hide": "Hide the stacks at work"}
def stacks_of(d_model, heads, layers, pre_norm=False):
    """Return an encoder and a decoder in double precision, without dropout."""
    attend = lambda: MultiHeadAttention(d_model, heads)
    network = lambda: FeedForward(d_model, 4 * d_model)
    read = lambda: EncoderLayer(d_model, attend(), network(), 0.0, pre_norm)
    write = lambda: DecoderLayer(d_model, attend(), attend(), network(), 0.0, pre_norm)
    encoder = Encoder([read() for _ in range(layers)], d_model, pre_norm).double()
    return encoder, Decoder(
        [write() for _ in range(layers)], d_model, pre_norm
    ).double()


torch.manual_seed(0)
encoder, decoder = stacks_of(d_model=8, heads=2, layers=2)
source = torch.randn(2, 5, 8, dtype=torch.float64)
target = torch.randn(2, 4, 8, dtype=torch.float64)
hide = padding_mask(torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, PAD, PAD]]))
memory = encoder(source, hide)
states = decoder(target, memory, causal_mask(4), hide)
print("memory", tuple(memory.shape), " states", tuple(states.shape))

# %% [markdown]
# Only the decoder's states go on to the output. There is one for each target position, and it predicts the word that follows.
#
# ## What to remember
#
# - Every sub-layer adds to the residual stream. Without the addition, words become alike within two layers and gradients vanish; with the addition alone, state and gradient explode.
# - LayerNorm works on one vector at a time. It subtracts the mean of its numbers and divides by their standard deviation, then applies a learned gain and bias.
# - Post-norm, the paper's form, is $\text{LayerNorm}(x + \text{sublayer}(x))$. Pre-norm normalizes the sub-layer's input and needs a final norm at the end of each stack.
# - An encoder layer has two sub-layers, a decoder layer three: the one in the middle reads the memory.
#
# Every part is built. The next chapter joins them, and teaches the whole to copy.
#
# ## Exercises
#
# **1. By hand** (★, 5 min). What is LayerNorm of $(0, 0, 0, 4)$ with gain 1, bias 0 and no $\varepsilon$? And of $(7, 7, 7, 8)$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The mean is 1, the distances are (-1, -1, -1, 3), the variance is 12 / 4 = 3, so the result is
# (-1, -1, -1, 3) / root of 3. The second is the same: subtract 7 and multiply by 4, and it is the
# first, and layer norm sees neither a shift nor a factor.
x = torch.tensor([[0.0, 0, 0, 4], [7, 7, 7, 8]], dtype=torch.float64)
for row in layer_norm(x, torch.ones(4), torch.zeros(4), eps=0.0).tolist():
    print([round(v, 2) for v in row])

# %% [markdown]
# **2. Write it first** (★★, 15 min). Without looking back at our code, write `layer_norm(x, gain, bias, eps)` for `x` of shape (B, T, D) from the formula, and hand it to the [checker](E_checker.ipynb#the-parts-it-knows) with `check("layer_norm", yours)`. It knows five ways to get it wrong.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# correction=0 divides by D; by default PyTorch divides by D - 1.
from annotated_transformer import check


def my_layer_norm(x, gain, bias, eps):
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + eps) * gain + bias


print(check("layer_norm", my_layer_norm))

# %% [markdown]
# **3. Which form is it?** (★★, 15 min). Write `residual(x, sublayer, norm)` in the paper's form and check it with `check("residual", yours)`. Then say how you could tell, from the output of a layer alone, whether somebody built pre-norm instead.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Post-norm's output has just been normalized: before training, each vector has mean 0 and
# deviation 1. Pre-norm's output has the mean and the size of whatever is on the stream.


def my_residual(x, sublayer, norm):
    return norm(x + sublayer(x))


x, norm_5 = torch.randn(2, 3, 5).double() + 4, lambda y: F.layer_norm(y, (5,))
print(check("residual", my_residual))
print(f"mean after post-norm {my_residual(x, torch.tanh, norm_5).mean().abs():.2f}")
print(f"mean after pre-norm  {(x + torch.tanh(norm_5(x))).mean():.2f}")

# %% [markdown]
# **4. RMSNorm** (★, 10 min). Divide by the root mean square without subtracting the mean. Is the result still blind to a factor? To a shift? What does a model gain by that?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A factor is in the numerator and in the denominator, and cancels. A shift stays, since nothing
# subtracts the mean: the common level of a word's numbers becomes information that can be used.
rms = lambda x: x / x.square().mean(-1, keepdim=True).sqrt()
print(f"times 10 changes it by {(rms(10 * x) - rms(x)).abs().max():.2f}")
print(f"plus 10 changes it by  {(rms(x + 10) - rms(x)).abs().max():.2f}")

# %% [markdown]
# **5. No final norm** (★★, 15 min). Leave the last norm of a pre-norm encoder out. How large is the memory after 2, 6 and 24 layers, and what does that do to the part that reads it?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The memory grows with the depth. Cross-attention gets keys of that size, so its scores grow and
# its softmax becomes sure without a reason: the division by sqrt(d_k) counts on inputs of size 1.
normed = lambda y: F.layer_norm(y, y.shape[-1:])
for layers in (2, 6, 24):
    print(
        layers,
        f"layers: size {walk(lambda x, f: x + f(normed(x)), layers)[-1].std():.2f}",
    )

# %% [markdown]
# **6. A form of your own** (★★★, an evening; no solution). Gemma 2 normalizes on the branch both before and after the sub-layer, $x + \text{norm}(f(\text{norm}(x)))$; OLMo 2 uses the swapped form. Add both to `walk`, redraw {numref}`fig-plain-stack`, and predict which would need a gentle start. Then train all four with the loop of the next chapter and see whether you were right.
#
# ## Second reading
#
# ### Why not batch normalization?
#
# It takes the mean of one feature over all positions of the batch, and so a word's result depends on its neighbors, even on padding.
#
# :::{admonition} Three reasons against it in a translator
# :class: dropdown
# Batch normalization serves image networks well. In a batch of sentences, padding would enter every mean, as the drawing and the numbers below show. While you translate there may be one sentence, and one new word at a time, so stored averages have to replace the batch. And an early word would see statistics of later words, which the causal mask forbids.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show which numbers enter the mean, in three kinds of norm", "code_prompt_hide": "Hide the drawing", "figure": {"name": "fig-which-mean", "caption": "Which numbers enter the mean for word *a1*, number 2? A batch of two sentences, *a* with three words and *b* with two and one padding, each word with four numbers. Cells with a 1 enter. Left: layer normalization, the four numbers of the word itself. Middle: all numbers of its sentence, which a mean over two axes would take. Right: batch normalization, number 2 of every position, padding included."}}
groups = {
    "one word": lambda t, d: t == 0,
    "a sentence": lambda t, d: t < 3,
    "a batch": lambda t, d: d == 1,
}
tokens = ["a1", "a2", "a3", "b1", "b2", "<pad>"]
panels = []
for name, enters in groups.items():
    table = [[float(enters(t, d)) for d in range(4)] for t in range(6)]
    panels.append(heatmap(table, tokens, "1234", titles=("", name), cell=24, color=SKY))
show(
    alt.hconcat(*panels),
    alt="One row; the three rows of a sentence; one column of all words.",
)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show how far padding moves the words", "code_prompt_hide": "Hide the numbers"}
sentence = torch.randn(1, 3, 8, dtype=torch.float64) + 1
padded = F.pad(sentence, (0, 0, 0, 2))
for name, axes in {"one word": -1, "a sentence": (1, 2), "a batch": (0, 1)}.items():
    over = lambda x: (
        (x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True, correction=0)
    )
    change = (over(padded)[:, :3] - over(sentence)).abs().max().item()
    print(f"{name:10}  two positions of padding move the words by up to {change:.2f}")

# %% [markdown]
# ### What do later models use? RMSNorm
#
# Most of today's large language models, Llama among them, divide by the root mean square and drop mean and bias: **RMSNorm** {cite:p}`zhang2019root`, $g \odot x / \sqrt{\frac1D \sum x_i^2 + \varepsilon}$. Its authors found it as good and cheaper. Exercise 4 asks which of the two invariances is left.
#
# ### The gradient through a norm
#
# If a vector ten times as long gives the same output, a change must be ten times as large to have the same effect. So the gradient through a norm is divided by the size of what came in.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the gradient at x and at 10 x, and where D - 1 and epsilon go wrong", "code_prompt_hide": "Hide the gradients"}
x, toward = torch.randn(2, 512, dtype=torch.float64)
received = []
for factor in (1, 10):
    scaled = (factor * x).requires_grad_()
    y = layer_norm(scaled, torch.ones(512), torch.zeros(512))
    received += torch.autograd.grad(y @ toward, scaled)
print(
    f"gradient at x: {(received[0] / received[1]).mean():.1f} times the gradient at 10 x"
)

for width in (8, 512):
    x = torch.randn(100, width, dtype=torch.float64)
    ratio = x.std(-1, correction=0) / x.std(-1)
    print(f"width {width:3}: with D - 1, too small by {1 - ratio.mean():.1%}")
for inside in (True, False):
    equal = torch.ones(4, dtype=torch.float64, requires_grad=True)
    variance = equal.var(correction=0)
    root = (variance + 1e-6).sqrt() if inside else variance.sqrt() + 1e-6
    (gradient,) = torch.autograd.grad(((equal - equal.mean()) / root).sum(), equal)
    print(
        "epsilon", "inside: " if inside else "outside:", "gradient", gradient[0].item()
    )

# %% [markdown]
# :::{admonition} Two details that go wrong in a norm written by hand
# :class: dropdown
# Layer norm written by hand often divides the variance by $D - 1$ and adds $\varepsilon$ to the deviation instead of the variance. Harvard's *Annotated Transformer* {cite:p}`rush2018annotated` does both. The cell above measures them.
#
# The first makes every result too small by the factor $\sqrt{(D-1)/D}$: 6.5% at width 8, 0.1% at 512. The learned gain makes up for it, so it matters only if you move weights between programs or compare numbers.
#
# The second matters where numbers are nearly equal. For a vector of *exactly* equal numbers, zeros included, the variance is 0, where a root has an infinite derivative: written out, as in that cell, it makes the gradient NaN. PyTorch's `std`, which Harvard calls, prevents that, but then the gradient is multiplied by $1/\varepsilon$, a million, instead of $1/\sqrt\varepsilon$, a thousand.
# :::
#
# ### Checked against PyTorch
#
# `nn.TransformerEncoderLayer` is PyTorch's version of the layer. With our weights copied into it, once for each place of the norm, the outputs agree to nine decimals. (Its attention has biases; they start at zero.)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the differences from PyTorch", "code_prompt_hide": "Hide the differences"}
differences = {}
for pre_norm in (False, True):
    ours = stacks_of(8, 2, 1, pre_norm)[0].layers[0]
    theirs = nn.TransformerEncoderLayer(
        8,
        2,
        32,
        dropout=0.0,
        batch_first=True,
        norm_first=pre_norm,
        layer_norm_eps=1e-6,
    ).double()
    attend = ours.self_attention
    inputs = [attend.query.weight, attend.key.weight, attend.value.weight]
    theirs.self_attn.in_proj_weight.data = torch.cat(inputs).detach()
    theirs.self_attn.out_proj.weight.data = attend.output.weight.detach()
    theirs.linear1.load_state_dict(ours.feed_forward.linear1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.linear2.state_dict())
    differences[pre_norm] = (ours(source) - theirs(source)).abs().max()
    form = "pre-norm: " if pre_norm else "post-norm:"
    print(form, f"largest difference {differences[pre_norm]:.5f}")
norm = LayerNorm(8).double()
nn.init.normal_(norm.gain)  # or a forgotten gain or bias would go unnoticed
nn.init.normal_(norm.bias)
x = 3 * torch.randn(2, 5, 8, dtype=torch.float64) + 1
difference = (layer_norm(x, norm.gain, norm.bias) - norm(x)).abs().max()
print(f"formula and F.layer_norm differ by {difference:.5f}")
x, double = torch.tensor([[1.0, 3.0]]), lambda y: 2 * y
post, pre = Residual(2, dropout=0.0), Residual(2, dropout=0.0, pre_norm=True)
outputs = {"post-norm": post(x, double), "pre-norm": pre(x, double)}
outputs["swapped"] = pre.norm(double(x)) + x
for name, y in outputs.items():
    print(f"{name:9}", [round(v, 2) for v in y[0].tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    assert max(differences.values()) < 1e-9
    assert difference < 1e-9
    rounded = {
        name: [round(v, 2) for v in y[0].tolist()] for name, y in outputs.items()
    }
    assert rounded == {"post-norm": [-1, 1], "pre-norm": [-1, 5], "swapped": [0, 4]}

# %% [markdown]
# :::{admonition} All shapes inside a layer
# :class: dropdown
# | where | shape | base model |
# |---|---|---|
# | stream | $(B, S, D)$ | 512 numbers per word |
# | queries, keys, values | $(B, H, S, d_k)$ | 8 heads of 64 |
# | attention weights | $(B, H, S, S)$ | 8 matrices, words by words |
# | heads, concatenated | $(B, S, H d_v)$ | 8 × 64 = 512 |
# | inside the network | $(B, S, d_\text{ff})$ | 2,048 |
# | update, addition, norm | $(B, S, D)$ | 512 |
# :::
#
# ### Why the place of the norm matters
#
# Post-norm and pre-norm both keep the signal in bounds, but not in the same way: in post-norm every update has a full say, in pre-norm deep layers change little. The swapped form gives the first layer several times the gradient of either.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the stream and its updates, in both forms", "code_prompt_hide": "Hide the drawing", "figure": {"name": "fig-stream", "caption": "What happens to the stream? The untrained stack of 24 sub-layers again. Above: size of the stream. Post-norm (solid) resets it to 1 each time; in pre-norm (dashed) it grows to 3.6. Below: size of each update, relative to the stream that it is added to. In post-norm it swings between 0.4 and 1.1, attention and network in turn, and does not fall with depth; in pre-norm it falls from above 0.5 to below 0.2."}}
norm = lambda x: F.layer_norm(x, x.shape[-1:])  # gain 1, bias 0
walks = {
    "post-norm": walk(lambda x, f: norm(x + f(x))),
    "pre-norm": walk(lambda x, f: x + f(norm(x))),
}
reads = {"post-norm": lambda x: x, "pre-norm": norm}
shares = {
    name: [
        (f(reads[name](x)).std() / x.std()).item()
        for f, x in zip(sublayers(top // 2, words.size(-1)), states)
    ]
    for name, states in walks.items()
}
zero = alt.Scale(domainMin=0)
chart = by_depth(walks, deviations, "size of the stream", zero, "~g")
chart &= by_depth(shares, list, "update, relative to the stream", zero, "~g")
show(
    chart,
    alt="Post-norm keeps the stream at 1; in pre-norm it grows and updates count less.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert 3.6 < walks["pre-norm"][-1].std() < 3.7 and shares["pre-norm"][-1] < 0.2
    assert min(shares["post-norm"]) > 0.4 and 1.1 < max(shares["post-norm"]) < 1.2

# %% [markdown]
# :::{admonition} Why updates weigh less and less in pre-norm, and why swapped is worst
# :class: dropdown
# In pre-norm the stream is a sum of updates of similar size. Such a sum of $n$ terms grows about like $\sqrt n$, so update number $n$ is only about $1/\sqrt n$ of the whole, and deep layers change little. In post-norm every update has a full say. To make room, the norm shrinks all that came before: after an update of 0.7, the mean here, to $1/\sqrt{1 + 0.7^2} = 0.82$. After 24 sub-layers $0.82^{24}$, less than one percent, is left of the embedding.
#
# The swapped form gives every update size 1, even where the sub-layer has little to say. If 24 such updates and the input were unrelated, the stream would end at $\sqrt{25} = 5$; with these weights it ends at 4.8. But its sub-layers read that growing stream as it is, and the first layer gets more than three times the gradient that it gets in either of the other forms.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the three forms in numbers", "code_prompt_hide": "Hide the three forms"}
# walks holds the states of the two walks in the figure above
walks_of_three = {**walks, "swapped": walk(lambda x, f: norm(f(x)) + x)}
first = {}
for name, states in walks_of_three.items():
    first[name] = gradients([*states, norm(states[-1])])[0]
    print(
        f"{name:9} size {states[-1].std():.1f}, gradient at the start {first[name]:4.0f}"
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert 3 * max(first["pre-norm"], first["post-norm"]) < first["swapped"]
    assert round(walks_of_three["swapped"][-1].std().item(), 1) == 4.8
    mean = sum(shares["post-norm"]) / len(shares["post-norm"])
    assert round(mean, 1) == 0.7

# %% [markdown]
# ### What the gradients say
#
# We put an embedding below and the logits on top, take the loss of predicting random words, and measure the gradient of each layer's second feed-forward matrix before any training. In the last layer, post-norm has about the same gradient in a stack of 3 layers as in one of 24, while pre-norm's shrinks like one over the root of the depth, from 0.33 to 0.12. A deep post-norm stack thus starts with large gradients near its output, and is known to need a careful start. How that goes together with Adam is discussed in [the schedule](16_schedule.ipynb#why-does-a-transformer-need-a-warm-up).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the gradient of each layer, in stacks of four depths", "code_prompt_hide": "Hide the drawing", "figure": {"name": "fig-norm-place", "caption": "How large is the gradient of each layer before training? Choose the depth of the stack. Post-norm (solid) stays between 0.35 and 0.75 and has no clear trend; another start moves it by as much. Pre-norm (dashed) falls from the first layer to the last, and ends lower the deeper the stack is. Norm of the gradient of the second feed-forward matrix, from one random start; width 64, 1,000 words."}}


def gradient_by_layer(layers, pre_norm):
    """Return the norm of each layer's gradient for the loss of predicting random words."""
    torch.manual_seed(0)
    encoder, _ = stacks_of(64, 4, layers, pre_norm)
    for matrix in (p for p in encoder.parameters() if p.dim() == 2):
        nn.init.xavier_uniform_(matrix)
    table, words = Embedding(1000, 64).double(), torch.randint(1000, (2, 16, 10))
    logits = table.logits(encoder(table(words[0])))
    F.cross_entropy(logits.flatten(0, 1), words[1].flatten()).backward()
    return [
        layer.feed_forward.linear2.weight.grad.norm().item() for layer in encoder.layers
    ]


def gradient_chart(norms):
    records = [
        {"layer": layer, "gradient": round(norm, 3), "form": name}
        for name in walks
        for layer, norm in enumerate(norms[name], 1)
    ]
    x = alt.X("layer:Q", scale=alt.Scale(domain=[1, 24]), axis=alt.Axis(tickCount=6))
    y = alt.Y(
        "gradient:Q", title="norm of the gradient", scale=alt.Scale(domain=[0, 1])
    )
    label = "Post-norm's gradients stay of one size; pre-norm's fall from the first layer to the last."
    look = {name: looks[name] for name in walks}
    return curves(records, x, y, "form", look).properties(width=300, height=200), label


measured = {
    depth: {name: gradient_by_layer(depth, name == "pre-norm") for name in walks}
    for depth in (3, 6, 12, 24)
}
charts = {f"{depth} layers": gradient_chart(norms) for depth, norms in measured.items()}
show_steps(charts, "How deep?", start=2)

# %% tags=["remove-cell"]
if CHECKING:
    assert all(
        0.35 < v < 0.76 for norms in measured.values() for v in norms["post-norm"]
    )
    assert measured[24]["pre-norm"][0] >= measured[3]["pre-norm"][0]

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the gradients in numbers", "code_prompt_hide": "Hide the numbers"}
# measured is what the figure above draws
for depth, norms in measured.items():
    line = f"{depth:2} layers"
    for name, by_layer in norms.items():
        whole = sum(v**2 for v in by_layer) ** 0.5
        line += f" | {name}: first {by_layer[0]:.2f}, last {by_layer[-1]:.2f}, together {whole:.2f}"
    print(line)

# %% [markdown]
# :::{admonition} Why pre-norm's last gradient shrinks with depth
# :class: dropdown
# This is what {cite:t}`xiong2020layer` derive, and the reason is the final norm: the stream has grown like the root of the depth, and the norm divides the gradient by its size. The other layers don't follow suit: in the first, pre-norm's gradient is no smaller in 24 layers than in 3. (In their translator with six layers, post-norm's gradients grow from layer to layer and pre-norm's stay level.) From 3 layers to 24, the gradient of all layers together triples with post-norm and grows less with pre-norm.
# :::
#
# ### Which form is better?
#
# :::{admonition} Pre-norm wins our short runs; why this book keeps post-norm
# :class: dropdown
# With two layers of width 64 and 600 updates on Multi30k, pre-norm lowers the validation loss by 0.53 ± 0.01 nats per token, the largest effect on the page of [departures](../book/departures.md#the-model). Short runs reward whatever learns fastest at first, though, and the same test rewards switching dropout off, too. Pre-norm became the default mainly because it trains deep stacks without drama. At six layers and with the paper's schedule, post-norm trains well. This book follows the paper and keeps pre-norm as an option. The authors' code, tensor2tensor, was post-norm at first, and pre-norm by default from October 2017 on. In Harvard's *Annotated Transformer*, the formula is the paper's, post-norm, and the code (its docstring says so) is pre-norm; since 2018 its readers have asked why.
# :::
#
# ## Sources
#
# Residual connections are from {cite:t}`he2016deep`, layer normalization from {cite:t}`ba2016layer`, RMSNorm from {cite:t}`zhang2019root`. How the place of the norm shapes the gradients was worked out by {cite:t}`xiong2020layer`, whose measurement of the last layer we repeat. The formula of one form beside the code of the other is in {cite:t}`rush2018annotated`.
