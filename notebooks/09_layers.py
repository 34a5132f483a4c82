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
# # Layers
#
# This chapter stacks what we have into the encoder and the decoder, with the residual connections and normalization that make a deep stack trainable (section 3.1 of the paper).
#
# We have attention, which moves information between words, and a feed-forward network, which works on it within each word. The paper takes turns: attention, network, attention, network, six times over. Each attention and each network in such a stack is called a **sub-layer**.
#
# Simply calling one after the other fails. We first watch it fail. Then two small inventions hold the stack together, an addition and a division. They raise the two questions that readers ask most often about this model: on which side of the sub-layer does the normalization stand, and where exactly is dropout? After that, encoder and decoder are a few lines each.

# %% tags=["export"]
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.attention import Mask
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %%
import altair as alt

from annotated_transformer.embeddings import Embedding
from book.figures import INK, KEY, PAPER, QUERY, VALUE, arrow, box, curves
from book.figures import heatmap, plus, show, show_drawing, show_steps, stream
from book.figures import words_at
from annotated_transformer.masks import PAD, causal_mask, padding_mask

# %% [markdown]
# ## What goes wrong in a plain stack
#
# We build 24 sub-layers, an attention and a network in turn, each 64 numbers wide and untrained. Their matrices start as in the next chapter: random, of a size that keeps signals about as large as they were.


# %%
def sublayers(layers, width=64):
    """Make attentions and feed-forward networks in turn, each a function of x."""
    torch.manual_seed(0)
    for _ in range(layers):
        attention = MultiHeadAttention(width, 4).double()
        network = FeedForward(width, 4 * width).double()
        for p in (*attention.parameters(), *network.parameters()):
            nn.init.xavier_uniform_(p) if p.dim() == 2 else nn.init.zeros_(p)
        yield lambda x, a=attention: a(x, x, x)
        yield network


# %% [markdown]
# A stack is then a walk: start with some words, apply a rule at each sub-layer, and keep all states on the way. The rule of the plain stack is that the output replaces the input.


# %%
def walk(rule, layers=12):
    """Send random words (4, 10, 64) through a stack; return the state after each sub-layer."""
    words = torch.randn(4, 10, 64, generator=torch.Generator().manual_seed(1)).double()
    states = [words.requires_grad_()]
    for f in sublayers(layers):
        states.append(rule(states[-1], f))
    return states


plain = walk(lambda x, f: f(x))
print(len(plain), "states of shape", tuple(plain[-1].shape))

# %% [markdown]
# How alike are two words of a sentence on the way? Their cosine says it: near 0, they have nothing in common; at 1, they are the same vector up to its length.

# %%
for n in (0, 2, 6, 24):
    alike = F.cosine_similarity(plain[n][:, 0], plain[n][:, 1], dim=-1).mean()
    print(f"after {n:2} sub-layers: likeness {alike:.2f}, size {plain[n].std():.4f}")

# %% [markdown]
# After three attentions and three networks, two different words have become one vector. Each attention of an untrained model takes an average over the sentence. An average of ten random vectors is about the same for everyone who asks, and nothing brings the differences back. The average is also smaller than what went in, so the signal fades.
#
# It is no better on the way back. Learning needs the slope of the loss at the first layer. We put a random gradient on the last state and look at what arrives at each state below.


# %%
def gradients(states):
    """Return the size of the gradient at each state, for a random one at the last."""
    end = torch.randn(4, 10, 64, generator=torch.Generator().manual_seed(2)).double()
    slopes = torch.autograd.grad((states[-1] * end).sum(), states, retain_graph=True)
    return [slope.norm().item() for slope in slopes]


print(f"gradient at the end {gradients(plain)[-1]:.1f}, at the start {gradients(plain)[0]:.2f}")

# %% [markdown]
# Of every thousand parts of the gradient, less than one reaches the first layer. Whatever that layer should do differently, it hardly hears of it.
#
# ## Let each part add
#
# The cure is to let a sub-layer *add* to its input in place of replacing it:
#
# $$
# x_{n+1} = x_n + f_n(x_n)
# $$ (eq-skip)
#
# This is a **residual connection**. A sub-layer need not hand on what it does not use, since that passes by. It only has to compute a correction, and a sub-layer that has nothing to say can be silent.
#
# Put the formula into itself, and see what a whole stack becomes:
#
# $$
# x_N = x_0 + f_0(x_0) + f_1(x_1) + \dots + f_{N-1}(x_{N-1})
# $$ (eq-stream)
#
# So the vector of a word runs from the bottom of the stack to its top, and every sub-layer reads it and adds to it. We call it the **residual stream**. Here is the stream of *likes*, with the numbers that chapters 3 and 6 made up: attention adds what it fetched from *cat* and *fish*, the network adds what follows from it, and everything stays readable for the next layer.
#
# | stream of *likes* | living | dark | edible | pet | prey |
# |---|:---:|:---:|:---:|:---:|:---:|
# | at the start | 0 | 0 | 0 | 0 | 0 |
# | plus what attention fetched | 0.76 | 0 | 0.29 | 0 | 0 |
# | plus what the network concluded | 0.76 | 0 | 0.29 | 0 | 0.10 |
#
# That a whole stack is one sum can be checked.

# %%
added = walk(lambda x, f: x + f(x))
updates = [f(x) for f, x in zip(sublayers(12), added)]
torch.testing.assert_close(added[-1], added[0] + sum(updates))
print("the last state is the first, plus", len(updates), "updates")

# %% [markdown]
# Two things follow. First, all sub-layers must have the same width, or they could not be added. That is why each of them ends in a matrix back to $d_\text{model}$, 512 in the base model, and why the embedding has 512 columns as well.
#
# Second, the gradient finds a way. The derivative of $x + f(x)$ is $1 + f'(x)$, so there is one path back to the start on which it is multiplied by 1 in each step, however small $f'$ is.
#
# And yet the job is only half done. Each sub-layer reads a sum, and answers in proportion to it. So the larger the stream, the larger the updates:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-plain-stack", "caption": "What does addition repair, and what not? An untrained stack of 12 layers, 24 sub-layers. Left: size of the state, the standard deviation of its numbers. Right: size of the gradient that arrives at the state. Where the output replaces the input (dashed), both die out. Where it is added (solid), both explode: the state on its way up, the gradient on its way down. Both axes are logarithmic."}}
looks = {
    "replaced": (KEY, [5, 3]),
    "added": (QUERY, [1, 0]),
    "post-norm": (QUERY, [1, 0]),
    "pre-norm": (VALUE, [5, 3]),
}


def deviations(states):
    return [state.std().item() for state in states]


def by_depth(stacks, measure, title, scale, form):
    records = [
        {"n": n, "value": float(f"{value:.3g}"), "stack": name}
        for name, states in stacks.items()
        for n, value in enumerate(measure(states))
    ]
    x = alt.X("n:Q", title="sub-layers passed", axis=alt.Axis(values=[0, 6, 12, 18, 24]))
    y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(format=form, tickCount=5))
    look = {name: looks[name] for name in stacks}
    return curves(records, x, y, "stack", look).properties(title=title, width=230, height=190)


log, stacks = alt.Scale(type="log"), {"replaced": plain, "added": added}
chart = by_depth(stacks, deviations, "size of the state", log, ".0e")
chart |= by_depth(stacks, gradients, "size of the gradient", log, ".0e")
assert plain[-1].std() < 0.001 and added[-1].std() > 100
assert gradients(plain)[0] < 0.1 and gradients(added)[0] > 1e5 * gradients(added)[-1]
show(chart, alt="Replaced, state and gradient die out. Added, both grow by powers of ten.")

# %% [markdown]
# The gradient arrives now, but at the bottom it is more than a hundred thousand times as large as at the top. A step that suits the last layer would destroy the first. Somebody has to keep the size in check.
#
# ## Layer normalization
#
# **Layer normalization** does so in the most direct way: it brings each vector to mean 0 and variance 1. For one vector $x$ of $D$ numbers,
#
# $$
# \text{LayerNorm}(x) = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b,
# \qquad \mu = \frac1D \sum_{i=1}^{D} x_i,
# \qquad \sigma^2 = \frac1D \sum_{i=1}^{D} (x_i - \mu)^2
# $$ (eq-layer-norm)
#
# Here $\odot$ multiplies number by number. The tiny $\varepsilon$, $10^{-6}$ in this book, keeps a vector of equal numbers from dividing zero by zero. Gain $g$ and bias $b$ have $D$ numbers each. They are learned, the same for all positions, and start at 1 and 0.
#
# By hand, for $x = (2, 4, 6, 8)$: the mean is 5. The distances from it are $(-3, -1, 1, 3)$, and the mean of their squares is $(9 + 1 + 1 + 9)/4 = 5$. So the result is $(-3, -1, 1, 3)/\sqrt 5 = (-1.34, -0.45, 0.45, 1.34)$. The formula in code has one line for each of its three parts:


# %% tags=["export"]
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalize each vector of x (..., D) by itself: the formula, to be read."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return gain * (x - mean) / torch.sqrt(variance + eps) + bias


# %% [markdown]
# `keepdim=True` keeps the axis at length 1. So for x of shape $(B, T, D)$ the mean is $(B, T, 1)$, one for each word, and the subtraction spreads it over the $D$ numbers of that word.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-layer-norm", "caption": "What does layer normalization keep, and what does it remove? Three vectors on their way through the formula; choose a step. *B* is ten times *A*, so the two are equal after the division: the size is gone. *C* has three equal numbers and a larger one, and that pattern stays. In the last step a made-up gain (1, 2, 1, 0.5) and bias (0, 0, 1, 0) scale and shift whole columns. Purple is positive, orange is negative."}}
X = torch.tensor([[2, 4, 6, 8], [20, 40, 60, 80], [1, 1, 1, 5]]).double()
normal = layer_norm(X, torch.ones(4), torch.zeros(4))
torch.testing.assert_close(normal[0], normal[1])
scaled = layer_norm(X, torch.tensor([1, 2, 1, 0.5]), torch.tensor([0, 0, 1, 0]))
stages = {
    "as they come": (X, "Three rows; B is ten times A."),
    "minus the mean": (X - X.mean(-1, keepdim=True), "Each row now sums to zero."),
    "divided": (normal, "Rows A and B are now equal; C keeps its one large number."),
    "times gain, plus bias": (scaled, "Columns are scaled and shifted."),
}
look = {"titles": ("vector", "number"), "signed": True, "cell": 46}
steps = {
    name: (heatmap(M, "ABC", "1234", limit=round(M.abs().max().item(), 1), **look), label)
    for name, (M, label) in stages.items()
}
show_steps(steps, "Which step?", start=2)

# %% [markdown]
# What is lost is exactly two numbers a vector: where its mean was and how large it was. Multiply the input by 10 or add 10 to it, and the output stays the same. What is kept is the pattern.
#
# There is a picture for this. After the division, the squares of the $D$ numbers have mean 1. So they sum to $D$, and every vector has length $\sqrt D$: the words lie on a sphere, and only their directions differ. For words of 512 numbers the radius is $\sqrt{512} = 22.6$.

# %%
x = 3 * torch.randn(2, 5, 512, dtype=torch.float64) + 7
lengths = layer_norm(x, torch.ones(512), torch.zeros(512)).norm(dim=-1)
print("lengths of ten words:", {round(length, 2) for length in lengths.flatten().tolist()})

# %% [markdown]
# ### What does it do to the gradient?
#
# On the way up the norm divides by the size of its input. So it does on the way down: if a vector ten times as long gives the same output, then a change must be ten times as large to have the same effect. The slope is one over the size.

# %%
x, toward = torch.randn(2, 512, dtype=torch.float64)
slopes = []
for factor in (1, 10):
    scaled = (factor * x).requires_grad_()
    y = layer_norm(scaled, torch.ones(512), torch.zeros(512))
    slopes += torch.autograd.grad(y @ toward, scaled)
print(f"slope at x: {(slopes[0] / slopes[1]).mean():.1f} times the slope at 10 x")

# %% [markdown]
# Keep this in mind. A stream that grows is divided by more and more, and the gradient that comes back through the division is smaller by the same factor. We meet it again at the end of the chapter.

# %% [markdown]
# ## The module
#
# The module holds gain and bias. It calls PyTorch's own version of the same formula, which does all in one pass over the numbers.


# %% tags=["export"]
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
# Formula, module and PyTorch's function must agree. Gain and bias get random values first, or a check could not notice that one of them is missing.

# %%
norm = LayerNorm(8).double()
nn.init.normal_(norm.gain)
nn.init.normal_(norm.bias)
x = 3 * torch.randn(2, 5, 8, dtype=torch.float64) + 1
reference = F.layer_norm(x, (8,), norm.gain, norm.bias, 1e-6)
torch.testing.assert_close(layer_norm(x, norm.gain, norm.bias), reference)
torch.testing.assert_close(norm(x), reference)
print("formula, module and F.layer_norm agree")

# %% [markdown]
# ## Over which numbers is the mean taken?
#
# Over the $D$ numbers of one word, and nothing else. Many drawings show a whole sentence, or a whole batch, being normalized at once.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-which-mean", "caption": "Which numbers enter the mean of word *a1*, number 2? A batch of two sentences, *a* with three words and *b* with two and one padding, each word with four numbers. Cells with a 1 enter. Left: layer normalization, the word itself. Middle: its sentence. Right: batch normalization, the same number of all words, padding included."}}
groups = {
    "one word": lambda t, d: t == 0,
    "a sentence": lambda t, d: t < 3,
    "a batch": lambda t, d: d == 1,
}
words = ["a1", "a2", "a3", "b1", "b2", "<pad>"]
look = {"cell": 32, "color": VALUE}
panels = []
for name, enters in groups.items():
    table = [[float(enters(t, d)) for d in range(4)] for t in range(6)]
    panels.append(heatmap(table, words, "1234", titles=("", name), **look))
show(alt.hconcat(*panels), alt="One row; the three rows of a sentence; one column of all words.")

# %% [markdown]
# The choice is not a matter of taste. We normalize a sentence of three words in the three ways, alone and then with two positions of padding behind it:

# %%
sentence = torch.randn(1, 3, 8, dtype=torch.float64) + 1
padded = F.pad(sentence, (0, 0, 0, 2))
for name, axes in {"one word": -1, "a sentence": (1, 2), "a batch": (0, 1)}.items():
    over = lambda x: (x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True, correction=0)
    change = (over(padded)[:, :3] - over(sentence)).abs().max().item()
    print(f"{name:10}  padding moves the words by up to {change:.2f}")

# %% [markdown]
# Only the first leaves the words alone. This also answers a common question.
#
# ### Why not batch normalization?
#
# It serves image networks well. Here it has three troubles. Padding enters the statistics, as just seen, and with it the other sentences of the batch. In use, there may be one sentence, and while writing there is one new word at a time, so there is no batch to take a mean of; stored averages from training have to stand in. And a word early in a sentence would see statistics of later words, which the causal mask forbids. Layer normalization has none of these, since it never looks beyond one vector.
#
# ## Three details that go wrong
#
# Layer normalization written by hand often differs from the formula in a detail. Two of them are frequent: the unbiased standard deviation, which divides by $D - 1$, and an $\varepsilon$ that is added to the deviation in place of the variance.
#
# The first makes every result too small by the factor $\sqrt{(D-1)/D}$. At width 8 that is $1 - \sqrt{7/8} = 6.5\,\%$, at width 512 it is 0.1 %.

# %%
for width in (8, 64, 512):
    x = torch.randn(100, width, dtype=torch.float64)
    right = layer_norm(x, torch.ones(width), torch.zeros(width))
    unbiased = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    print(f"width {width:3}: too small by {1 - (unbiased / right).mean():.1%}")

# %% [markdown]
# A model that is trained with it will not notice, since the gain can make up for a factor. It shows when weights go from one code to another, and when you compare your numbers with a reference and cannot find out why they are off.
#
# The place of $\varepsilon$ matters where a vector's numbers are nearly equal. At a deviation of $10^{-3}$ the variance is $10^{-6}$, as large as $\varepsilon$. Inside the root the two add up to $2 \cdot 10^{-6}$, so the result has size $1/\sqrt 2 = 0.71$. Outside, $10^{-6}$ is a thousandth of the deviation, and the result has size 1.00. Worse is a vector of *exactly* equal numbers, whose variance is 0. The slope of the root at 0 is infinite, and only an $\varepsilon$ inside keeps away from it.


# %%
def normalized(x, inside):
    variance = x.var(correction=0)
    return (x - x.mean()) / ((variance + 1e-6).sqrt() if inside else variance.sqrt() + 1e-6)


small = torch.tensor([1.001, 0.999, 1.001, 0.999], dtype=torch.float64)
for inside in (True, False):
    equal = torch.ones(4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(normalized(equal, inside).sum(), equal)
    size = normalized(small, inside).std(correction=0)
    print("inside: " if inside else "outside:", f"size {size:.2f}, slope", slope[0].item())

# %% [markdown]
# One such vector, and the gradients of all layers below are NaN, and with the next update the whole model. It is not a rare vector: zeros are equal numbers, and padding is often filled with zeros.
#
# The third detail is where the norm stands. It needs a section of its own.
#
# ## Before or after? Post-norm and pre-norm
#
# "The formula says one thing and the code another. Which is right?" Readers of public implementations have been asking this since 2018. In the paper, the norm comes *after* the addition, **post-norm**. The authors' own code did the same in June 2017. In October they moved the norm to the sub-layer's input, **pre-norm**, and most models since have kept it there:
#
# $$
# \begin{aligned}
# \text{post-norm:} \quad & \text{LayerNorm}(x + \text{dropout}(\text{sublayer}(x))) \\
# \text{pre-norm:} \quad & x + \text{dropout}(\text{sublayer}(\text{LayerNorm}(x)))
# \end{aligned}
# $$ (eq-residual)
#
# So both are right, as two different models. What is wrong is to print the first and run the second, as much code does, since weights trained in one form are useless in the other. The drawing shows what the formulas hide: in pre-norm nothing stands on the stream, in post-norm it passes through a norm after each sub-layer.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-residual-forms", "caption": "Where does the norm stand? The thick line is the stream, upwards. Left: after the addition, on the stream itself. Middle: before the sub-layer, beside the stream. Right: a mix-up seen in tutorials, which is neither. The diamond is dropout, at the same place in all three: on what is added."}}


def diamond(x, y, fill=INK):
    return f'<path d="M{x},{y - 6}l6,6l-6,6l-6,-6z" fill="{fill}" stroke="{INK}"/>'


def form(x, title, formula, boxes):
    yield words_at(x + 100, 20, title, 15) + words_at(x + 100, 42, formula)
    yield stream([(x + 40, 295), (x + 40, 60)]) + words_at(x + 40, 312, "x")
    yield arrow([(x + 40, 270), (x + 145, 270), (x + 145, 130), (x + 50, 130)])
    yield diamond(x + 90, 130) + plus(x + 40, 130)
    yield from (box(x + left, y, 90, 30, name) for left, y, name in boxes)


forms = [
    ("post-norm: the paper", "norm(x + f(x))", [(100, 190, "sub-layer f"), (-5, 75, "norm")]),
    ("pre-norm", "x + f(norm(x))", [(100, 170, "sub-layer f"), (100, 220, "norm")]),
    ("swapped: a mistake", "norm(f(x)) + x", [(100, 220, "sub-layer f"), (100, 170, "norm")]),
]
parts = [part for i, f in enumerate(forms) for part in form(10 + 235 * i, *f)]
label = "Post-norm has its norm on the stream; in the other two it is on the branch."
show_drawing(parts, 700, 320, alt=label)

# %% [markdown]
# Our module can do both. It does not know what the sub-layer is: it gets it as a function, when it is called.


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


# %% [markdown]
# We check it with a sub-layer simple enough for paper and pencil, $\text{sublayer}(x) = 2x$, at $x = (1, 3)$. Its mean is 2 and its deviation 1, so normalized it is $(-1, 1)$.
#
# - Post-norm: $(1, 3) + (2, 6) = (3, 9)$ has mean 6 and deviation 3. Result: $(-1, 1)$.
# - Pre-norm: the sub-layer gets $(-1, 1)$ and returns $(-2, 2)$. Result: $(1, 3) + (-2, 2) = (-1, 5)$.
# - Swapped: the sub-layer returns $(2, 6)$, normalized $(-1, 1)$. Result: $(-1, 1) + (1, 3) = (0, 4)$.

# %%
x, double = torch.tensor([[1.0, 3.0]]), lambda y: 2 * y
post, pre = Residual(2, dropout=0.0), Residual(2, dropout=0.0, pre_norm=True)
outputs = {"post-norm": post(x, double), "pre-norm": pre(x, double)}
outputs["swapped"] = pre.norm(double(x)) + x
for name, y in outputs.items():
    print(f"{name:9}", [round(v, 2) for v in y[0].tolist()])

# %% [markdown]
# ### How bad is the swapped form?
#
# The three outputs above have the same shape, and all three would train. To see the difference we send random words through 24 sub-layers in each form, and look at the size at the end and the gradient at the start. The last two get a final norm, as every stack without a norm on its stream does.

# %%
norm = lambda x: F.layer_norm(x, (64,))  # gain 1, bias 0
walks = {
    "post-norm": walk(lambda x, f: norm(x + f(x))),
    "pre-norm": walk(lambda x, f: x + f(norm(x))),
    "swapped": walk(lambda x, f: norm(f(x)) + x),
}
for name, states in walks.items():
    first = gradients([*states, norm(states[-1])])[0]
    print(f"{name:9} size {states[-1].std():.1f}, gradient at the start {first:4.0f}")
assert first > 4 * gradients(walks["post-norm"])[0]

# %% [markdown]
# In the swapped form the norm brings each update to size 1, also where the sub-layer made it small because it had nothing to say. With 24 random updates of variance 1 on top of the input's 1, the stream has variance 25 and size 5. And the sub-layers read that stream as it is, so each multiplies the gradient anew: the first layer gets more than four times as much as in the other forms. (A few later models use this form on purpose, and with care. The mistake is to have it and not to know.)
#
# ## Where exactly is dropout?
#
# Dropout sets random numbers to zero while training and scales up the rest ([Regularization](17_regularization.ipynb) says why). The paper names two places (section 5.4): the output of each sub-layer, *before* it is added, and the sum of embedding and position. That is all.
#
# The first place has a point: what is dropped is an update and never the stream. We let a sub-layer add ones to a stream of fives, with dropout at 0.5:

# %%
torch.manual_seed(0)
fives = torch.full((1000,), 5.0)
on_the_update = Residual(1000, dropout=0.5, pre_norm=True)(fives, torch.ones_like)
print("on the update:", sorted(set(on_the_update.tolist())))
print("on the sum:   ", sorted(set(F.dropout(fives + 1, 0.5).tolist())))

# %% [markdown]
# On the update, each 1 becomes 0 or 2, and the stream's 5 is always there. On the sum, half of the stream is gone. Do this after all 12 sub-layers of an encoder, and of 4,096 numbers of the input one comes through: $0.5^{12}$.
#
# The weights of attention and the ReLU get no dropout in the paper, although much code has it there. The authors' later releases do, too. Our parts accept both as options at rate 0.
#
# ## The encoder layer
#
# All is ready. A layer of the **encoder**, the half of the model that reads, is self-attention and a feed-forward network, each in a residual connection. It is given its parts ready-made; the [next chapter](10_transformer.ipynb) makes them from one configuration.


# %% tags=["export"]
class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each inside a residual connection."""

    def __init__(
        self, d_model: int, self_attention: MultiHeadAttention, feed_forward: FeedForward,
        dropout: float = 0.1, pre_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(Residual(d_model, dropout, pre_norm) for _ in range(2))

    def forward(self, x: Tensor, mask: Mask = None) -> Tensor:
        """Map states (B, S, D) to (B, S, D); mask (B, 1, 1, S) hides the padding."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, y, mask))
        return self.residuals[1](x, self.feed_forward)


# %% [markdown]
# Follow one batch through it, with the widths of the base model. What comes in and what goes out have the same shape. Inside it takes others:
#
# | where | shape | in the base model |
# |---|---|---|
# | stream | $(B, S, D)$ | 512 numbers a word |
# | queries, keys, values | $(B, H, S, K)$ | 8 heads of 64 |
# | weights of attention | $(B, H, S, S)$ | 8 tables, words by words |
# | what the heads return, joined | $(B, S, HK)$ | 8 × 64 = 512 |
# | update, plus, norm | $(B, S, D)$ | 512 |
# | inside the network | $(B, S, d_\text{ff})$ | 2048 |
# | update, plus, norm | $(B, S, D)$ | 512 |
#
# Two lines of the code deserve a look. A residual wants a function of one argument, but attention takes four. The `lambda` closes the gap: whatever comes in, `y`, is query, key and value at once, and the mask is passed on. In pre-norm, `y` is the normalized input, so queries, keys and values are all normalized, and the residual alone knows.
#
# And there are two residuals, not one used twice, since each has a norm with its own gain and bias. A `ModuleList` makes them known to PyTorch; a plain list would hide their parameters from the optimizer, and nothing would complain.
#
# ## The encoder
#
# The encoder calls its layers in turn. With pre-norm nobody has normalized the stream when it leaves the last layer, so a final norm is needed. With post-norm every layer ends in one, and a second would be one too many: this is where the extra norms come from that some code has and the paper has not.


# %% tags=["export"]
class Encoder(nn.Module):
    """A stack of encoder layers; with pre_norm, one last normalization."""

    def __init__(
        self, layers: Iterable[EncoderLayer], d_model: int, pre_norm: bool = False
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
# The encoder's output is called the **memory**: one vector for each source word, computed once, which the decoder then reads again and again.
#
# ## The decoder layer
#
# The **decoder**, the half that writes, has a third sub-layer between the two: cross-attention. Its queries come from the target, its keys and values from the memory. So every target word may look at every source word, and it does so again in each layer.
#
# | attention | queries | keys and values | weights | mask hides |
# |---|---|---|---|---|
# | encoder, self | source | source | $(B, H, S, S)$ | padding of the source |
# | decoder, self | target | target | $(B, H, T, T)$ | padding and the future |
# | decoder, cross | target | memory | $(B, H, T, S)$ | padding of the source |
#
# Why no causal mask in the last? The source is all there before the first word is written. Looking ahead in it is allowed, and often needed: a German verb may stand at the end.


# %% tags=["export"]
class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, feed-forward network, each in a residual."""

    def __init__(
        self, d_model: int, self_attention: MultiHeadAttention, cross_attention: MultiHeadAttention,
        feed_forward: FeedForward, dropout: float = 0.1, pre_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.residuals = nn.ModuleList(Residual(d_model, dropout, pre_norm) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, mask: Mask, memory_mask: Mask) -> Tensor:
        """Map states (B, T, D) and memory (B, S, D) to (B, T, D)."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, y, mask))
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, memory, memory_mask))
        return self.residuals[2](x, self.feed_forward)


# %% [markdown]
# In the middle sub-layer only `y` passes through the residual's norm. The memory does not need to: it left the encoder normalized, in both forms. The stack is the same as the encoder's, and hands the same memory to each of its layers.


# %% tags=["export"]
class Decoder(nn.Module):
    """A stack of decoder layers; with pre_norm, one last normalization."""

    def __init__(
        self, layers: Iterable[DecoderLayer], d_model: int, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(d_model) if pre_norm else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, mask: Mask, memory_mask: Mask) -> Tensor:
        """Map embedded target (B, T, D) and memory (B, S, D) to states (B, T, D)."""
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask)
        return self.norm(x)


# %% [markdown]
# ### Which encoder layer does the decoder read?
#
# The last one, in all decoder layers. A picture with the two stacks side by side suggests that layer 3 reads layer 3. It does not: the encoder is finished before the decoder begins, and `memory` is one tensor. It follows that the two stacks need not have the same number of layers. The paper takes six for both.
#
# The next drawing has both kinds of layers with every norm and every place for dropout.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-dropout-sites", "caption": "Where are the norms, and where is dropout? One layer of each stack, in the form of the paper; read upwards. A filled diamond is dropout that the paper names: on each update before the plus, and on the sum of embedding and position. An open diamond is dropout that later code has and the paper has not: on the weights of attention and after the ReLU. Norms stand on the stream, one after each plus."}}


def sublayer(x, y, name):
    """One sub-layer of the drawing; its plus stands at (x, y)."""
    yield arrow([(x, y + 48), (x + 80, y + 48)]) + box(x + 80, y - 14, 160, 74, name)
    yield arrow([(x + 80, y), (x + 10, y)]) + diamond(x + 45, y) + plus(x, y)
    yield diamond(x + 228, y - 2, PAPER) + box(x - 36, y - 42, 72, 24, "norm")


def column(x, title, names, words):
    top = 470 - 120 * len(names)
    yield stream([(x, 525), (x, top - 40)]) + words_at(x + 160, top - 10, title, 15)
    for i, name in enumerate(names):
        yield from sublayer(x, top + 25 + 120 * i, name)
    yield arrow([(x + 80, 500), (x + 10, 500)]) + plus(x, 500) + diamond(x, 476)
    yield words_at(x + 88, 505, "positions", anchor="start") + words_at(x, 545, words)


names = ["feed-forward", "cross-attention", "self-attention"]
left = column(70, "encoder layer", names[::2], "source embeddings")
right = column(420, "decoder layer", names, "target embeddings")
memory = arrow([(70, 192), (70, 24), (690, 24), (690, 278), (660, 278)])
label = "Dropout is on each of the five updates and after the positions are added."
show_drawing([*left, *right, memory, words_at(250, 18, "memory")], 720, 555, alt=label)

# %% [markdown]
# ## A run with toy sizes
#
# Two sentences, 5 source and 4 target positions, 8 numbers for each word, two layers.


# %%
def stacks(d_model, heads, layers, pre_norm=False):
    """Return an encoder and a decoder in double precision, without dropout."""
    attention = lambda: MultiHeadAttention(d_model, heads)
    network = lambda: FeedForward(d_model, 4 * d_model)
    read = lambda: EncoderLayer(d_model, attention(), network(), 0.0, pre_norm)
    write = lambda: DecoderLayer(d_model, attention(), attention(), network(), 0.0, pre_norm)
    encoder = Encoder([read() for _ in range(layers)], d_model, pre_norm).double()
    return encoder, Decoder([write() for _ in range(layers)], d_model, pre_norm).double()


torch.manual_seed(0)
encoder, decoder = stacks(d_model=8, heads=2, layers=2)
source = torch.randn(2, 5, 8, dtype=torch.float64)
target = torch.randn(2, 4, 8, dtype=torch.float64)
hide = padding_mask(torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, PAD, PAD]]))
memory = encoder(source, hide)
states = decoder(target, memory, causal_mask(4), hide)
print("memory", tuple(memory.shape), " states", tuple(states.shape))

# %% [markdown]
# As many vectors come out as went in, on both sides, and of the same width. Only the decoder's states go on to the output. They are four for each sentence, one for each target position, and each predicts the word that follows.
#
# ## Checked against PyTorch
#
# `nn.TransformerEncoderLayer` is the same layer by other hands. We copy our weights into it, once for each place of the norm. Its attention always has biases, which start at zero, so we leave them alone.

# %%
for pre_norm in (False, True):
    ours = stacks(8, 2, 1, pre_norm)[0].layers[0]
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.0, batch_first=True, norm_first=pre_norm, layer_norm_eps=1e-6
    ).double()
    attention = ours.self_attention
    inputs = [attention.query.weight, attention.key.weight, attention.value.weight]
    theirs.self_attn.in_proj_weight.data = torch.cat(inputs).detach()
    theirs.self_attn.out_proj.weight.data = attention.output.weight.detach()
    theirs.linear1.load_state_dict(ours.feed_forward.linear1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.linear2.state_dict())
    torch.testing.assert_close(ours(source), theirs(source))
    print("pre-norm: " if pre_norm else "post-norm:", "equal to nn.TransformerEncoderLayer")

# %% [markdown]
# The whole model, decoder and all, gets the same check in the next chapter.
#
# ## Why the place of the norm matters
#
# Both forms keep the signal in bounds. They differ in who stays in charge. We look at the stream first, with the walks from above.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-stream", "caption": "What happens to the stream? The untrained stack of 24 sub-layers again. Left: size of the stream. Post-norm (solid) resets it to 1 each time; pre-norm (dashed) lets it grow. Right: size of an update, relative to the stream that it is added to. In post-norm every sub-layer has the same say, in pre-norm a later one has less."}}
chosen = {name: walks[name] for name in ("post-norm", "pre-norm")}
reads = {"post-norm": lambda x: x, "pre-norm": norm}
shares = {
    name: [f(reads[name](x)).std() / x.std() for f, x in zip(sublayers(12), states)]
    for name, states in chosen.items()
}
zero = alt.Scale(domainMin=0)
chart = by_depth(chosen, deviations, "size of the stream", zero, "~g")
chart |= by_depth(shares, list, "update, relative to the stream", zero, "~g")
assert walks["pre-norm"][-1].std() > 3 and shares["pre-norm"][-1] < shares["pre-norm"][0] / 2
show(chart, alt="Post-norm keeps the stream at 1; in pre-norm it grows and updates count less.")

# %% [markdown]
# In pre-norm the stream is a sum of updates of roughly one size, as in {eq}`eq-stream`. Sums of $n$ random things grow like $\sqrt n$, so update number $n$ is only about $1/\sqrt n$ of the whole. Deep layers change little.
#
# In post-norm each update is weighed against a stream of size 1 and has a full say. (The zigzag is attention and network taking turns. Once words are alike, their average is no longer small.) To make room, the norm shrinks all that came before. An attention with an update of 0.9 leaves $1/\sqrt{1 + 0.9^2} = 0.74$ of it, a network with 0.6 leaves $1/\sqrt{1 + 0.6^2} = 0.86$. After 12 layers that is $(0.74 \cdot 0.86)^{12}$, half a percent of the embedding.
#
# ### What do the gradients say?
#
# Now the question that decides about training. How large is the gradient at each layer, and how does that change when we stack more of them? We put an embedding below and the logits on top, take the loss of predicting random words, and measure the gradient of each layer's second feed-forward matrix.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-norm-place", "caption": "How large is the gradient at each layer before training? Choose the depth of the stack. In post-norm (solid) the gradient keeps its size at every depth. In pre-norm (dashed) it is smaller the deeper the stack, and smallest at the top. Norm of the gradient of the second feed-forward matrix, width 64, vocabulary of 1,000 words."}}


def gradient_by_layer(layers, pre_norm):
    """Return the norm of each layer's gradient for the loss of predicting random words."""
    torch.manual_seed(0)
    encoder, _ = stacks(64, 4, layers, pre_norm)
    for matrix in (p for p in encoder.parameters() if p.dim() == 2):
        nn.init.xavier_uniform_(matrix)
    table, words = Embedding(1000, 64).double(), torch.randint(1000, (2, 16, 10))
    logits = table.logits(encoder(table(words[0])))
    F.cross_entropy(logits.flatten(0, 1), words[1].flatten()).backward()
    return [layer.feed_forward.linear2.weight.grad.norm().item() for layer in encoder.layers]


def gradient_chart(norms):
    records = [
        {"layer": layer, "gradient": round(norm, 3), "form": name}
        for name in chosen
        for layer, norm in enumerate(norms[name], 1)
    ]
    x = alt.X("layer:Q", scale=alt.Scale(domain=[1, 24]), axis=alt.Axis(tickCount=6))
    y = alt.Y("gradient:Q", title="norm of the gradient", scale=alt.Scale(domain=[0, 1]))
    look = {name: looks[name] for name in chosen}
    label = "The gradients of post-norm are larger than those of pre-norm, most at the top."
    return curves(records, x, y, "form", look).properties(width=420), label


measured = {
    depth: {name: gradient_by_layer(depth, name == "pre-norm") for name in chosen}
    for depth in (3, 6, 12, 24)
}
charts = {f"{depth} layers": gradient_chart(norms) for depth, norms in measured.items()}
show_steps(charts, "How deep?", start=2)

# %% [markdown]
# We read off the last layer, where the forms differ most:

# %%
for depth, norms in measured.items():
    post, pre = norms["post-norm"][-1], norms["pre-norm"][-1]
    print(
        f"{depth:2} layers: post-norm {post:.2f}, pre-norm {pre:.2f} = {pre * depth**0.5:.1f} / root of {depth}"
    )

# %% [markdown]
# With post-norm the last layer gets about the same push in a stack of 3 layers as in one of 24. All layers do, so the deeper the stack, the larger their joint step. The first steps with a full learning rate can throw such a model off. It needs a learning rate that starts near zero, which is the subject of [the schedule](16_schedule.ipynb).
#
# With pre-norm the gradients shrink like one over the root of the depth. The reason is the final norm: the stream has grown like that root, the norm divides by its size, and the gradient is divided, too. So the joint step keeps its size however deep the stack is, and such a model can start at full speed.
#
# ### So is pre-norm better?
#
# It is easier to train, above all when stacks are deep. At six layers, with the paper's schedule, post-norm trains well, and its later layers have more to say. This book follows the paper and keeps pre-norm as an option. Gradients at the start are a fact about the start. Which form translates better is for a training to decide.
#
# ## Questions that come up
#
# **Is the stream itself ever dropped?** Once, at the bottom, on the sum of embedding and position. After that only updates are.
#
# **Is the norm's gain shared between layers?** No. Each of the 30 norms of the base model has its own gain and bias, 1,024 numbers. Together that is 30,720 of 63 million parameters.
#
# **Why does adding not mix everything up?** Different sub-layers can write in different directions of a space with 512 of them, and a later matrix can read one direction and ignore the rest. The embedding and the position share the stream in the same way.
#
# **Could a sub-layer erase something?** Yes, by adding its negative. Nothing forbids it. In post-norm the division also fades out what is old.
#
# **Do later models still use layer normalization?** Many use a simpler form, which divides by the root mean square and leaves out the mean and the bias. Exercise 4 asks what that changes.
#
# ## What to remember
#
# - Every sub-layer adds to a residual stream. Without it, words become alike within three layers, and gradients fade.
# - LayerNorm works on one vector at a time: variance over $D$, epsilon inside the root.
# - Post-norm, the paper's form, is $\text{LayerNorm}(x + \text{sublayer}(x))$. Pre-norm normalizes the sub-layer's input, and the stack needs a final norm.
# - Dropout sits on each update before the addition, and on the sum of embedding and position. Nowhere else.
# - A decoder layer reads the memory, the encoder's last output, between its self-attention and its feed-forward network.
#
# ## Exercises
#
# **1. By hand.** What is LayerNorm of $(0, 0, 0, 4)$ with gain 1 and bias 0, without $\varepsilon$? And of $(7, 7, 7, 8)$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Mean 1, distances (-1, -1, -1, 3), variance 12 / 4 = 3: (-1, -1, -1, 3) / root of 3. The second is the same:
# subtract 7 and multiply by 4, and it is the first.
x = torch.tensor([[0.0, 0, 0, 4], [7, 7, 7, 8]], dtype=torch.float64)
normal = layer_norm(x, torch.ones(4), torch.zeros(4), eps=0.0)
torch.testing.assert_close(normal, torch.tensor([[-1.0, -1, -1, 3]] * 2).double() / 3**0.5)
print([round(v, 2) for v in normal[0].tolist()])

# %% [markdown]
# **2. Write it yourself.** Write `layer_norm(x, gain, bias, eps)` without looking. Then compare with the reference on a tensor of shape (2, 3, 5), and ask the [checker](E_checker.ipynb).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# var(correction=0) divides by D; without it PyTorch divides by D - 1.


def my_layer_norm(x, gain, bias, eps):
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) * torch.rsqrt(variance + eps) * gain + bias


x, gain, bias = (torch.randn(*shape).double() for shape in [(2, 3, 5), (5,), (5,)])
expected = F.layer_norm(x, (5,), gain, bias, 0.1)
torch.testing.assert_close(my_layer_norm(x, gain, bias, 0.1), expected)
print("equal to F.layer_norm")

from annotated_transformer import check

print(check("layer_norm", my_layer_norm))

# %% [markdown]
# **3. Write it yourself.** Write `residual(x, sublayer, norm)`, which joins two functions as the paper does. How would you tell from its output alone whether someone wrote pre-norm?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Post-norm's output is normalized: each vector has mean 0 and deviation 1. Pre-norm's output is not.


def my_residual(x, sublayer, norm):
    return norm(x + sublayer(x))


norm_5 = lambda y: F.layer_norm(y, (5,))
torch.testing.assert_close(my_residual(x, torch.tanh, norm_5), norm_5(x + x.tanh()))
means = my_residual(x, torch.tanh, norm_5).mean(-1)
print("every vector has mean 0:", torch.allclose(means, torch.zeros(2, 3).double()))
print(check("residual", my_residual))

# %% [markdown]
# **4. A simpler norm.** Divide by the root mean square, without subtracting the mean. Which of the two invariances, to scale and to shift, is left?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Scale: a factor stands above and below the bar. The shift stays, since nothing takes the mean away.
rms = lambda x: x / x.square().mean(-1, keepdim=True).sqrt()
print("times 10:", torch.allclose(rms(10 * x), rms(x)))
print("plus 10: ", torch.allclose(rms(x + 10), rms(x)))
torch.testing.assert_close(norm_5(10 * x + 10), norm_5(x), atol=1e-4, rtol=0)

# %% [markdown]
# **5. What breaks if** a pre-norm encoder has no final norm? Measure the size of the memory for stacks of 2, 6 and 24 layers, and think of who reads it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The memory grows with the depth. The decoder's cross-attention gets keys of that size, so its scores grow and its
# softmax becomes sure without a reason: the division by sqrt(d_k) of chapter 3 counts on inputs of size 1.
sizes = [walk(lambda x, f: x + f(norm(x)), layers)[-1].std().item() for layers in (2, 6, 24)]
print("larger with each depth:", 1.2 < sizes[0] < sizes[1] < sizes[2])

# %% [markdown]
# **6. What breaks if** an encoder keeps its layers in a plain Python list? Count the parameters that an optimizer would get.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Everything runs, and nothing in the layers is ever trained, moved to a GPU or saved.
forgetful = nn.Module()
forgetful.layers = list(encoder.layers)
count = lambda module: sum(p.numel() for p in module.parameters())
print("ModuleList:", count(encoder), " list:", count(forgetful))
assert count(encoder) == 2 * (4 * 64 + 2 * 8 * 32 + 32 + 8 + 2 * 16)

# %% [markdown]
# ## Sources
#
# Layer normalization is from {cite:t}`ba2016layer`, residual connections are from {cite:t}`he2016deep`. Why the place of the norm decides about the warm-up is worked out by {cite:t}`xiong2020layer`, whose measurement of gradients by layer we repeat here.
