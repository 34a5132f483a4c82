# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Layers
#
# This chapter wraps each attention and each network in an addition and a normalization, and makes a layer of them (section 3.1 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("layers")

# %% tags=["export", "hide-input"]
from collections.abc import Callable

import torch
from torch import Tensor, nn

from annotated_transformer.attention import Mask
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %% [markdown]
# Attention and the feed-forward network, in this chapter *the network* for short, are called **sub-layers**. The paper's encoder alternates the two, six times over. The obvious way to build that is to hand the output of each sub-layer to the next one.
#
# Let's do just that. `random_stack` makes attentions and networks in turn, with random weights, [as they are before training](10_transformer.ipynb#how-weights-start). We send *the black cat likes fish* through it: five random vectors, as in an untrained table.


# %%
def random_stack(layers, width):
    """Make attentions and networks in turn; each is a function of x."""
    torch.manual_seed(0)
    sublayers = []
    for _ in range(layers):
        attend = MultiHeadAttention(width, heads=4).double()
        network = FeedForward(width, 4 * width).double()
        for p in (*attend.parameters(), *network.parameters()):
            nn.init.xavier_uniform_(p) if p.dim() == 2 else nn.init.zeros_(p)
        sublayers += [lambda x, attend=attend: attend(x, x, x), network]
    return sublayers


width = 64
stack = random_stack(12, width)  # 24 sub-layers
torch.manual_seed(1)
words = torch.randn(1, 5, width).double()  # the black cat likes fish

# %% [markdown]
# What will have become of the five words after two attentions and two networks?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-alike", "caption": "What becomes of five words in a plain stack? The cosine of each pair, 1 (filled) if two vectors point in the same direction; choose how many sub-layers they have passed, attention and network in turn. After one of each they resemble each other, after two of each they are one."}}
import torch.nn.functional as F

from book.example import FEATURES
from book.figures import INK, PAPER, SKY, arrow, box, heatmap, plus
from book.figures import show_drawing, show_steps, stream, words_at

spoken = ["the", "black", "cat", "likes", "fish"]
x = words
cosines = []
for f in [None, *stack[:4]]:
    x = x if f is None else f(x)
    cosines.append(F.cosine_similarity(x[0][:, None], x[0][None], dim=-1).detach())
steps = {}
for n in (0, 1, 2, 4)[: len(cosines)]:
    drawn = heatmap(
        cosines[n], spoken, spoken, titles=("", "cosine with"), cell=46, color=SKY
    )
    count = "1 sub-layer" if n == 1 else f"{n} sub-layers"
    steps[count] = (
        drawn,
        f"Cosines after {count}; the smallest is {cosines[n].min():.2f}.",
    )
show_steps(steps, "After how many?", start=3)

# %% tags=["remove-cell"]
if CHECKING:
    assert (cosines[0] - torch.eye(5)).abs().max() < 0.3
    assert 0.5 < cosines[2].min() < 0.7
    assert cosines[4].min() > 0.99

# %% [markdown]
# Five words went in, and one vector came out five times. Whatever is built on top can't tell `cat` from `likes` anymore.
#
# ## What goes wrong in a plain stack
#
# Let's follow it further up. A `rule(x, f)` takes a state `x` and the next sub-layer `f`, and returns the next state, in the plain stack simply `f(x)`. `walk` keeps the state after every sub-layer. The size of a state is the standard deviation of its numbers.

# %%
import torch.nn.functional as F


def walk(rule):
    states = [words.clone().requires_grad_()]
    for f in stack:
        states.append(rule(states[-1], f))
    return states


def alike(state):
    """Return the cosine of cat and likes."""
    return F.cosine_similarity(state[0, 2], state[0, 3], dim=0)


plain = walk(lambda x, f: f(x))
for n in (0, 4, len(stack)):
    print(f"after {n:2}: alike {alike(plain[n]):.2f}, size {plain[n].std():.4f}")

# %% [markdown]
# An untrained attention takes an average over the sentence, nearly the same for every word that asks, and nothing brings the differences back. The average is also smaller than what went in, so the signal fades.
#
# The backward pass fares no better. We put a random gradient on the last state and look at what arrives below.


# %%
def arriving(states):
    """Return how large the gradient at the first state is, measured by that at the last."""
    torch.manual_seed(2)
    last = torch.randn(words.shape).double()
    (first,) = torch.autograd.grad(states[-1], states[0], last, retain_graph=True)
    return (first.norm() / last.norm()).item()


print(f"gradient {arriving(plain):.1e} times as large")

# %% tags=["remove-cell"]
if CHECKING:
    assert arriving(plain) < 1 / 1000
    assert plain[-1].std() < 0.001

# %% [markdown]
# Less than a thousandth is left, so the first layer hardly learns what it should do differently: a **vanishing gradient**.
#
# ## Let each part add
#
# The remedy is from {cite:t}`he2016deep`: a sub-layer *adds* to its input instead of replacing it.
#
# $$
# x_{n+1} = x_n + f_n(x_n)
# $$ (eq-skip)
#
# With this **residual connection**, what a sub-layer doesn't use passes by, and it only computes a correction. Insert the formula into itself, and a whole stack is one sum:
#
# $$
# x_N = x_0 + f_0(x_0) + \dots + f_{N-1}(x_{N-1})
# $$ (eq-stream)
#
# This running sum, from the bottom of the stack to its top, is the **residual stream**: every sub-layer reads it and adds to it. In the [running example](03_attention.ipynb#queries-keys-and-values) it begins with the five words, and the first thing added is what attention fetched, brought back to the width of the stream by $W^O$. This is `likes`, before and after:

# %%
from annotated_transformer.attention import attention
from book.example import W_K, W_O, W_Q, W_V, WORDS, X

fetched, _ = attention(X @ W_Q, X @ W_K, X @ W_V)
added = X + fetched @ W_O
for state in (X, added):
    print([round(v, 2) for v in state[WORDS.index("likes")].tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(v, 2) for v in added[3].tolist()] == [0, 2, 0.06, 0, 0.76, 0.29]

# %% [markdown]
# The columns are noun, verb, adjective, article, living, edible. `likes` is still a verb, because attention wrote into columns that `likes` had left empty. In 512 dimensions there is room for many to do so, and a sub-layer can even erase, by adding the negative of what is there.
#
# The gradient benefits, too. The derivative of $x + f(x)$ is $1 + f'(x)$, so the gradient always has one way back on which nothing shrinks it, however small $f'$ is.
#
# ### What is still broken
#
# How large do you expect the stream to be after 24 additions, and the gradient at the start?

# %%
added_up = walk(lambda x, f: x + f(x))
print(
    f"size {added_up[-1].std():.0f}, gradient {arriving(added_up):.1e} times as large"
)

# %% tags=["remove-cell"]
if CHECKING:
    assert 200 < added_up[-1].std() < 230
    assert 3000 < arriving(added_up) < 5000

# %% [markdown]
# Now everything explodes. Each sub-layer reads the sum and answers in proportion to it, so a larger stream brings larger outputs, and the state grows two hundredfold. The gradient also grows at each of them on its way down. A step that suits the last layer would destroy the first, so something has to keep the size in check.
#
# ## Layer normalization
#
# **Layer normalization** {cite:p}`ba2016layer` brings each vector to mean 0 and variance 1. For one vector $x$ of $D$ numbers,
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
# By hand, for `likes`: the six numbers 0, 2, 0.06, 0, 0.76, 0.29 have mean 0.52. The 2 is 1.48 above it, and the mean of the six squared distances is 0.51, with root 0.71. So the 2 becomes $1.48 / 0.71 = 2.08$.
#
# **Exercise 1. Write it first** (★★, 15 min). From the formula alone, write `layer_norm(x, gain, bias, eps)` for `x` of shape (B, T, D). The [checker](E_checker.ipynb#the-parts-it-knows) knows five ways to get it wrong: `from annotated_transformer import check`, then `print(check("layer_norm", layer_norm))`.


# %% tags=["export"]
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalize each vector of x (..., D) by itself."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return gain * (x - mean) / torch.sqrt(variance + eps) + bias


# %%
normal = layer_norm(added, torch.ones(6), torch.zeros(6))
print("likes", [round(v, 2) for v in normal[WORDS.index("likes")].tolist()])
difference = (normal - F.layer_norm(added, (6,), eps=1e-6)).abs().max()
print(f"largest difference from PyTorch's own: {difference:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert round(normal[3, 1].item(), 2) == 2.08
    assert difference < 1e-9

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-layer-norm", "caption": "What do addition and norm do to five words? The stream of the example; choose a step. Attention adds to three columns and leaves the rest alone. The division gives all rows the same size, so `fish`, whose numbers differ least, is stretched most. Purple is positive, orange negative."}}
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

# %% [markdown]
# Each word loses exactly two numbers, its mean and its size, and keeps its pattern: multiply the input by 10 or add 10, and the output stays the same. This also holds the gradient in check. If a vector ten times as long gives the same output, a change must be ten times as large to have the same effect, so the gradient through a norm is divided by the size of what came in.
#
# The module `LayerNorm` holds gain and bias, and the function, for which a [faster one](19_decoding.ipynb#the-same-in-one-call) can be put in:


# %% tags=["export"]
class LayerNorm(nn.Module):
    """Layer normalization with learned gain and bias."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps
        self.normalize: Callable[..., Tensor] = layer_norm

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each vector of x (..., D)."""
        return self.normalize(x, self.gain, self.bias, self.eps)


# %% [markdown]
# ## Before or after? Post-norm and pre-norm
#
# The paper puts the norm on the stream, after the addition: **post-norm**. Most later models put it on the branch, so that the sub-layer reads a normalized *input*: **pre-norm**. ([Dropout](17_regularization.ipynb#what-dropout-does) sets random numbers to zero in training.)
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


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-residual-forms", "caption": "Where is the norm? The thick line is the stream, upwards; the diamond is dropout. Left, the paper: the norm is on the stream itself. Right: it is on the branch, before the sub-layer, and the stream passes untouched."}}
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
]
parts = [part for i, f in enumerate(forms) for part in form(120 * i, *f)]
label = "Post-norm has its norm on the stream, pre-norm on the branch."
show_drawing(parts, 240, 296, alt=label)

# %% [markdown]
# (A norm after the sub-layer, before the addition, is a common mistake; the [checker](E_checker.ipynb#norm-and-residual) knows it.) Take a sub-layer simple enough for pencil and paper, $f(x) = 2x$, at $x = (1, 3)$, whose mean is 2 and deviation 1:
#
# - Post-norm: $(1, 3) + (2, 6) = (3, 9)$ has mean 6 and deviation 3. Result: $(-1, 1)$.
# - Pre-norm: the sub-layer gets $(-1, 1)$ and returns $(-2, 2)$. Result: $(1, 3) + (-2, 2) = (-1, 5)$.

# %%
x = torch.tensor([[1.0, 3.0]])
for pre_norm in (False, True):
    y = Residual(2, dropout=0.0, pre_norm=pre_norm)(x, lambda x: 2 * x)
    print(f"{pre_norm=}: {[round(v, 2) for v in y[0].tolist()]}")

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(v, 2) for v in y[0].tolist()] == [-1, 5]

# %% [markdown]
# The paper's form has a price. A moment ago we praised the path on which the gradient is multiplied by 1 at every step, and post-norm puts a norm right on that path, where pre-norm leaves it free. Does the paper's choice bring the vanishing gradient back?
#
# ## The stack, mended
#
# We put the paper's norm into our stack, and send the five words up once more.

# %%
mended = walk(lambda x, f: F.layer_norm(x + f(x), (width,)))
print(f"size {mended[-1].std():.2f}, gradient {arriving(mended):.2f} times as large")
for n in (4, len(stack) // 2, len(stack)):
    print(f"after {n:2}: alike {alike(mended[n]):.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 0.5 < arriving(mended) < 1.2
    assert alike(mended[4]) < 0.65 and alike(mended[24]) > 0.98

# %% [markdown]
# The gradient doesn't vanish: it arrives at the start almost as large as it was at the end. Each norm divides it by a little more than 1, the size of the sum, and each addition makes it larger by about as much. One thing is still broken. The words become alike, only more slowly: in the plain stack they were one vector after four sub-layers, here only at the top. An untrained attention averages, whatever is added to it. Training can change that, since the gradient now gets through.
#
# ## The encoder layer
#
# A layer of the **encoder**, the half of the model that reads, is self-attention and a feed-forward network, each in a residual connection. A layer of the **decoder**, the half that writes, has one more sub-layer.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-layers", "caption": "What is in a layer? One encoder layer (left) and one decoder layer (right) of the paper, read from the bottom up. Each sub-layer reads the stream (thick gray) and adds to it, and a norm follows; the additions of the positions, at the bottom, have none. Filled diamonds are the paper's dropout; the outlined one in each box is where many other implementations have dropout as well."}}
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
# A residual wants a function of one argument, but attention takes four. The `lambda` closes the gap: what comes in is query, key and value at once. There are two residuals because each norm has its own gain and bias.
#
# ## The encoder
#
# The encoder's output is the **memory**: one vector for each source word, computed once and then read by every decoder layer. With pre-norm, nothing has normalized the stream when it leaves the last layer, so the stack needs a final norm. With post-norm every layer ends in one.


# %% tags=["export"]
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
# Between self-attention and the network, a decoder layer has **cross-attention**. Its queries come from the target and its keys and values from the memory, which every layer projects with its own $W^K$ and $W^V$. So one model attends in three ways; [masks](04_masks.ipynb#which-mask-goes-where) has a table of them.


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


# %% [markdown]
# The decoder hands the same memory to each of its layers:


# %% tags=["export"]
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


# %% [markdown]
# Now both stacks at work, on two sentences of random vectors, 8 numbers wide. The second source ends in padding.

# %%
from annotated_transformer.masks import PAD, causal_mask, padding_mask

torch.manual_seed(0)
d = 8


def heads():
    return MultiHeadAttention(d, heads=2)


def network():
    return FeedForward(d, 4 * d)


encoder = Encoder([EncoderLayer(d, heads(), network()) for _ in range(2)], d)
decoder = Decoder([DecoderLayer(d, heads(), heads(), network()) for _ in range(2)], d)

words_only = padding_mask(torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, PAD, PAD]]))
memory = encoder(torch.randn(2, 5, d), words_only)
states = decoder(torch.randn(2, 4, d), memory, causal_mask(4), words_only)
print("memory", tuple(memory.shape), " states", tuple(states.shape))

# %% tags=["remove-cell"]
if CHECKING:
    source = torch.randn(2, 5, 8, dtype=torch.float64)
    for pre_norm in (False, True):
        ours = EncoderLayer(8, heads(), network(), 0.0, pre_norm).double()
        theirs = nn.TransformerEncoderLayer(
            8, 2, 32, 0.0, batch_first=True, norm_first=pre_norm, layer_norm_eps=1e-6
        ).double()
        part = ours.self_attention
        inputs = [part.query.weight, part.key.weight, part.value.weight]
        theirs.self_attn.in_proj_weight.data = torch.cat(inputs).detach()
        theirs.self_attn.out_proj.weight.data = part.output.weight.detach()
        theirs.linear1.load_state_dict(ours.feed_forward.linear1.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.linear2.state_dict())
        assert (ours(source) - theirs(source)).abs().max() < 1e-9

# %% [markdown]
# Only the decoder's states go on to the output. Each predicts the word after its position.
#
# :::{margin}
# Given the same weights, PyTorch's `nn.TransformerEncoderLayer` computes what our `EncoderLayer` does, to nine decimals, in both forms.
# :::
#
# ## What to remember
#
# - Every sub-layer adds to the residual stream. In an untrained stack, gradients vanish without the addition, state and gradient explode with it alone, and the norm keeps both level.
# - LayerNorm removes each vector's mean and size, then applies a learned gain and bias.
# - Post-norm, the paper's form, is $\text{LayerNorm}(x + \text{sublayer}(x))$. Pre-norm normalizes the sub-layer's input and needs a final norm at the end of each stack.
# - An encoder layer has two sub-layers, a decoder layer three: the one in the middle reads the memory.
#
# ## Exercises
#
# **1. Write it first** is [above](#layer-normalization).
#
# :::{admonition} Solution 1
# :class: dropdown
# Ours stands in [its section](#layer-normalization). If yours fails, look at two places first. The variance divides by $D$, but `x.var(-1)` divides by $D - 1$ unless you pass `correction=0`; every result is then too small by the factor $\sqrt{(D-1)/D}$, which is 6.5% at width 8. And $\varepsilon$ is added to the variance, inside the root, because the root of 0 has an infinite derivative: outside, a vector of equal numbers makes the gradient NaN.
# :::
#
# **2. By hand** (★, 5 min). What is LayerNorm of $(0, 0, 0, 4)$ with gain 1, bias 0 and no $\varepsilon$? And of $(7, 7, 7, 8)$?
#
# :::{admonition} Solution 2
# :class: dropdown
# The mean is 1, so the distances are $(-1, -1, -1, 3)$. The mean of their squares is $12 / 4 = 3$, and the result is $(-1, -1, -1, 3) / \sqrt 3 = (-0.58, -0.58, -0.58, 1.73)$. The second vector has the same result, because it becomes the first if you subtract 7 and multiply by 4, and LayerNorm sees neither a shift nor a factor.
# :::
#
# **3. Pre-norm's stream** (★★, 10 min). Send the words up the stack in pre-norm. Predict the size of the last state before you run it. What would such a memory do to the cross-attention that reads it?
#
# :::{admonition} Solution 3
# :class: dropdown
# The rule is `x + f(F.layer_norm(x, (width,)))`. If the input and 24 updates were unrelated and all of size 1, their sum would have size $\sqrt{25} = 5$. The updates are smaller, and the stream ends at 3.6. It grows with the depth. Keys of that size would make the scores of cross-attention large and its softmax sure without a reason, because the division by $\sqrt{d_k}$ counts on inputs of size 1. That's what the final norm of a pre-norm stack is for.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    unit = lambda x: F.layer_norm(x, (64,))
    walks = {
        "post-norm": mended,
        "pre-norm": walk(lambda x, f: x + f(unit(x))),
    }
    assert round(walks["pre-norm"][-1].std().item(), 1) == 3.6

    four = torch.tensor([[0.0, 0, 0, 4], [7, 7, 7, 8]], dtype=torch.float64)
    for row in layer_norm(four, torch.ones(4), torch.zeros(4), eps=0.0).tolist():
        assert [round(v, 2) for v in row] == [-0.58, -0.58, -0.58, 1.73]
    assert round(1 - (7 / 8) ** 0.5, 3) == 0.065
    equal = torch.ones(4, dtype=torch.float64, requires_grad=True)
    outside = (equal - equal.mean()) / (equal.var(correction=0).sqrt() + 1e-6)
    assert torch.autograd.grad(outside.sum(), equal)[0].isnan().all()

# %% [markdown]
# ## Further
#
# ### Why not batch normalization?
#
# Image networks normalize one feature over all positions of a batch. With sentences, padding would enter every mean, and in the decoder an early word would hear of later ones through it, although the causal mask is right. And while you translate, one new word at a time, stored averages would have to replace the batch. LayerNorm needs only the vector of the word itself.
#
# ### Why the place of the norm matters
#
# In post-norm, each norm shrinks all that was added before, so that early contributions fade. An update of size 0.7, the mean in our stack, shrinks the stream to $1/\sqrt{1 + 0.7^2} = 0.82$ of itself, and after 24 of them less than one percent is left of the embedding. In pre-norm nothing shrinks, but the stream grows. So the deeper a layer is, the less its update counts: in our stack an update falls from more than half of the stream's size to less than a fifth.

# %% tags=["remove-cell"]
if CHECKING:
    shares = {
        name: [(f(read(x)).std() / x.std()).item() for f, x in zip(stack, walks[name])]
        for name, read in (("post-norm", lambda x: x), ("pre-norm", unit))
    }
    assert shares["pre-norm"][0] > 0.5 and shares["pre-norm"][-1] < 0.2
    mean = sum(shares["post-norm"]) / len(shares["post-norm"])
    assert round(mean, 1) == 0.7 and 0.82**24 < 0.01

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer.embeddings import Embedding

    def last_gradient(layers, pre_norm):
        """Return the norm of the last layer's gradient for predicting random words."""
        torch.manual_seed(0)
        parts = []
        for _ in range(layers):
            heads, net = MultiHeadAttention(64, 4), FeedForward(64, 256)
            parts.append(EncoderLayer(64, heads, net, 0.0, pre_norm))
        tower = Encoder(parts, 64, pre_norm).double()
        for matrix in (p for p in tower.parameters() if p.dim() == 2):
            nn.init.xavier_uniform_(matrix)
        table, (reads_, says) = (
            Embedding(1000, 64).double(),
            torch.randint(1000, (2, 16, 10)),
        )
        logits = table.logits(tower(table(reads_)))
        F.cross_entropy(logits.flatten(0, 1), says.flatten()).backward()
        return tower.layers[-1].feed_forward.linear2.weight.grad.norm().item()

    measured = [last_gradient(n, pre) for pre in (False, True) for n in (3, 24)]
    assert min(measured[:2]) > 0.4 and max(measured[:2]) < 0.65
    assert [round(v, 1) for v in measured[2:]] == [0.3, 0.1]

# %% [markdown]
# The gradients follow. {cite:t}`xiong2020layer` show that before training the last layer's gradient is as large in a deep post-norm stack as in a shallow one. In pre-norm the final norm divides it by the size of a stream that has grown. We find the same: from 3 layers to 24 it stays near 0.5 with post-norm, and falls from 0.3 to 0.1 with pre-norm. So post-norm needs [a careful start](16_schedule.ipynb#why-does-a-transformer-need-a-warm-up).
#
# ### Which form is better?
#
# In two layers of width 64 and 600 updates on Multi30k, pre-norm lowers the validation loss by about half a nat per token, the largest effect on the page of [departures](../book/departures.md#the-model). But short runs reward whatever learns fastest at first. Pre-norm became the default mainly because it trains deep stacks without drama; at six layers and with the paper's schedule, post-norm trains well. This book follows the paper and keeps pre-norm as an option. The authors' own code switched to it in October 2017, and Harvard's *Annotated Transformer* {cite:p}`rush2018annotated` has the formula of post-norm above the code of pre-norm.
