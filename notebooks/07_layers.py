# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Layers
#
# This chapter stacks what we have into the encoder and the decoder, with the residual connections and
# normalization that make a deep stack trainable (section 3.1 of the paper).
#
# Attention, then a feed-forward network, and again, six times. Simply calling one after
# the other fails: signals shrink or grow at each step, and whatever one part spoils is lost to all
# that follow. Two inventions hold the stack together, one addition and one division.

# %% tags=["export"]
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %%
import matplotlib.pyplot as plt

from annotated_transformer.figures import QUERY, VALUE, style
from annotated_transformer.masks import causal_mask

# %% [markdown]
# ## What goes wrong in a plain stack
#
# Twelve parts of the base model in a row, untrained. How alike are two different words after each?

# %%
torch.manual_seed(0)
x = torch.randn(1, 10, 512)
for _ in range(6):
    attention, network = MultiHeadAttention(512, 8), FeedForward(512, 2048)
    x = network(attention(x, x, x)).detach()
likeness = F.cosine_similarity(x[0, 0], x[0, 1], dim=0)
print(f"size {x.std():.2f}, likeness of two words {likeness:.2f}")

# %% [markdown]
# All words have become one vector: each attention averages, and nothing brings the lost
# differences back. The cure is to let each part *add* to its input in place of replacing it. The
# input then runs through the whole stack as a **residual stream**, and every part reads from it and
# writes to it. Adding up many parts makes the stream grow, so it is normalized.
#
# ## Layer normalization
#
# Each vector, by itself, is brought to mean 0 and variance 1. Two learned vectors, a gain and a
# bias, can then give it any other size:
#
# $$
# \text{LayerNorm}(x) = g \odot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b,
# \qquad \mu = \frac1D \sum_{i=1}^{D} x_i,
# \qquad \sigma^2 = \frac1D \sum_{i=1}^{D} (x_i - \mu)^2
# $$ (eq-layer-norm)
#
# Note the details: the variance divides by $D$, not $D - 1$, and the small $\varepsilon$ stands inside
# the root.


# %% tags=["export"]
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalize each vector of x (..., D) by itself: the formula, to be read."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return gain * (x - mean) / torch.sqrt(variance + eps) + bias


# %% [markdown]
# The module holds gain and bias, and calls PyTorch's fused version of the same formula.


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


# %%
norm = LayerNorm(8).double()
nn.init.normal_(norm.gain)
nn.init.normal_(norm.bias)
x = 3 * torch.randn(2, 5, 8, dtype=torch.float64) + 1
reference = F.layer_norm(x, (8,), norm.gain, norm.bias, 1e-6)
assert torch.allclose(layer_norm(x, norm.gain, norm.bias), reference)
assert torch.allclose(norm(x), reference)
print("formula, module and F.layer_norm agree")

# %% [markdown]
# The details matter a little. With $D - 1$ and $\varepsilon$ outside the root, a common variant, the
# result is off by $1 - \sqrt{7/8} = 6.5\,\%$ at width 8:

# %%
plain = layer_norm(x, torch.ones(8), torch.zeros(8))
variant = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
print(f"off by {(1 - variant / plain).mean():.1%}")

# %% [markdown]
# ## The residual connection
#
# The paper puts the normalization *after* the addition (**post-norm**). The authors' own code moved it
# inside a few months later, before the sub-layer (**pre-norm**), and most models since have kept it there:
#
# $$
# \begin{aligned}
# \text{post-norm:} \quad & \text{LayerNorm}(x + \text{dropout}(\text{sublayer}(x))) \\
# \text{pre-norm:} \quad & x + \text{dropout}(\text{sublayer}(\text{LayerNorm}(x)))
# \end{aligned}
# $$ (eq-residual)
#
# Dropout is applied to each sub-layer's output, before it is added (section 5.4). It is applied nowhere
# else in the stack.


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
# A mix-up seen in the wild is $\text{LayerNorm}(\text{sublayer}(x)) + x$. It is neither of the two. We check ours
# with a sub-layer simple enough for paper and pencil, $\text{sublayer}(x) = 2x$:

# %%
x = torch.tensor([[1.0, 3.0]])  # mean 2, standard deviation 1: normalized it is (-1, 1)
post, pre = Residual(2, dropout=0.0), Residual(2, dropout=0.0, pre_norm=True)
print("post-norm:", [round(v, 2) for v in post(x, lambda y: 2 * y)[0].tolist()])
print("pre-norm: ", [round(v, 2) for v in pre(x, lambda y: 2 * y)[0].tolist()])

# %% [markdown]
# Post-norm: $(3, 9)$ has mean 6 and deviation 3, which gives $(-1, 1)$. Pre-norm: $(1, 3) + 2 \cdot (-1, 1)$.
#
# ## The encoder
#
# A layer of the encoder is self-attention and a feed-forward network, each in a residual connection.
# It is given its parts ready-made; the [next chapter](08_transformer.ipynb) makes them from one
# configuration.


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
        self.residuals = nn.ModuleList(Residual(d_model, dropout, pre_norm) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map states (B, S, D) to (B, S, D); mask (B, 1, 1, S) hides the padding."""
        attend, think = self.residuals
        x = attend(x, lambda y: self.self_attention(y, y, y, mask))
        return think(x, self.feed_forward)


# %% [markdown]
# The encoder calls its layers in turn. With pre-norm nobody has normalized the stream when it
# leaves the last layer, so a final norm is needed. With post-norm every layer ends in one, and a
# second would be one too many.


# %% tags=["export"]
class Encoder(nn.Module):
    """A stack of encoder layers; with pre_norm, one last normalization."""

    def __init__(
        self, layers: Iterable[EncoderLayer], d_model: int, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(d_model) if pre_norm else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map embedded source (B, S, D) to the memory (B, S, D) that the decoder reads."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


# %% [markdown]
# ## The decoder
#
# The decoder has a third sub-layer between the two: **cross-attention**. Its queries come from the
# target, its keys and values from the encoder's output, the **memory**. So every target word may look at
# every source word, and it does so again in each layer.


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
        self.residuals = nn.ModuleList(Residual(d_model, dropout, pre_norm) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, memory_mask: Tensor | None
    ) -> Tensor:
        """Map states (B, T, D) and memory (B, S, D) to (B, T, D)."""
        attend, translate, think = self.residuals
        x = attend(x, lambda y: self.self_attention(y, y, y, mask))
        x = translate(x, lambda y: self.cross_attention(y, memory, memory, memory_mask))
        return think(x, self.feed_forward)


# %% tags=["export"]
class Decoder(nn.Module):
    """A stack of decoder layers; with pre_norm, one last normalization."""

    def __init__(
        self, layers: Iterable[DecoderLayer], d_model: int, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = LayerNorm(d_model) if pre_norm else nn.Identity()

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, memory_mask: Tensor | None
    ) -> Tensor:
        """Map embedded target (B, T, D) and memory (B, S, D) to states (B, T, D)."""
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask)
        return self.norm(x)


# %% [markdown]
# A toy run: 2 sentences, 5 source and 4 target positions, 8 numbers.


# %%
def parts(pre_norm=False):
    """Return an encoder and a decoder of two layers, 8 numbers wide."""
    make = lambda: MultiHeadAttention(8, 2)
    think = lambda: FeedForward(8, 32)
    encoder = [EncoderLayer(8, make(), think(), 0.0, pre_norm) for _ in range(2)]
    decoder = [DecoderLayer(8, make(), make(), think(), 0.0, pre_norm) for _ in range(2)]
    return Encoder(encoder, 8, pre_norm).double(), Decoder(decoder, 8, pre_norm).double()


encoder, decoder = parts()
source = torch.randn(2, 5, 8, dtype=torch.float64)
target = torch.randn(2, 4, 8, dtype=torch.float64)
memory = encoder(source)
states = decoder(target, memory, causal_mask(4), None)
print("memory", tuple(memory.shape), " states", tuple(states.shape))

# %% [markdown]
# ## Checked against PyTorch
#
# `nn.TransformerEncoderLayer` is the same layer by other hands. We copy our weights into it, once for each
# place of the norm. Its attention always has biases; we set them to zero.


# %%
def copy_attention(ours, theirs):
    """Copy our projections into an nn.MultiheadAttention, whose biases become zero."""
    inputs = [ours.query.weight, ours.key.weight, ours.value.weight]
    theirs.in_proj_weight.data = torch.cat(inputs).detach()
    theirs.out_proj.weight.data = ours.output.weight.detach()
    nn.init.zeros_(theirs.in_proj_bias)
    nn.init.zeros_(theirs.out_proj.bias)


for pre_norm in (False, True):
    ours = parts(pre_norm)[0].layers[0]
    theirs = nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.0, batch_first=True, norm_first=pre_norm, layer_norm_eps=1e-6
    ).double()
    copy_attention(ours.self_attention, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    print("pre-norm" if pre_norm else "post-norm", torch.allclose(ours(source), theirs(source)))

# %% [markdown]
# The whole model gets the same check in the next chapter.
#
# ## Why the place of the norm matters
#
# With post-norm the stream is reset to size 1 after every sub-layer. With pre-norm nothing resets it, so it grows,
# and what a late layer writes is a smaller and smaller part of the whole. The gradients show the same: an
# untrained pre-norm stack moves its first layers most, a post-norm stack treats all layers much alike.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-norm-place", "caption": "What does the place of the norm change in an untrained encoder of 12 layers? Left: the size of the stream after each layer. Right: the size of the gradient at each layer's second feed-forward matrix, relative to the last layer's."}, "image": {"alt": "Left: the stream stays at 1 with post-norm and grows to about 3 with pre-norm. Right: with pre-norm the first layer's gradient is four times the last layer's, with post-norm less than twice."}}
style()
fig, (left, right) = plt.subplots(1, 2, figsize=(8.5, 2.9), layout="constrained")
for pre_norm, color, line in [(False, QUERY, "-"), (True, VALUE, "--")]:
    torch.manual_seed(0)
    layers = [
        EncoderLayer(128, MultiHeadAttention(128, 4), FeedForward(128, 512), 0.0, pre_norm)
        for _ in range(12)
    ]
    for matrix in (p for layer in layers for p in layer.parameters() if p.dim() == 2):
        nn.init.xavier_uniform_(matrix)
    x, sizes = torch.randn(8, 20, 128), []
    for layer in layers:
        x = layer(x)
        sizes.append(x.std().item())
    end = LayerNorm(128)(x) if pre_norm else x
    (end * torch.randn(8, 20, 128)).sum().backward()
    gradients = [layer.feed_forward.outer.weight.grad.norm().item() for layer in layers]
    name = "pre-norm" if pre_norm else "post-norm"
    left.plot(range(1, 13), sizes, line, color=color, marker="o", ms=3, label=name)
    relative = [g / gradients[-1] for g in gradients]
    right.plot(range(1, 13), relative, line, color=color, marker="o", ms=3, label=name)
left.set(xlabel="layer", ylabel="standard deviation", ylim=(0, None), title="residual stream")
right.set(xlabel="layer", ylabel="relative to the last layer", ylim=(0, None), title="gradient")
left.legend()
plt.show()

# %% [markdown]
# Which of the two trains better is another question, and one that the size of gradients does not settle.
# Pre-norm is known to train without a warm-up. The paper's model is post-norm and needs its
# [schedule](12_schedule.ipynb). We follow the paper and keep the other as an option.
#
# ## What to remember
#
# - Every sub-layer adds to a residual stream; nothing that came before is lost.
# - LayerNorm works on one vector at a time: variance over $D$, epsilon inside the root.
# - Post-norm is $\text{LayerNorm}(x + \text{sublayer}(x))$. Pre-norm normalizes the input, and the stack needs a final norm.
# - Dropout sits on each sub-layer's output before the addition, and nowhere else in the stack.
# - A decoder layer reads the memory between its self-attention and its feed-forward network.

# %% [markdown]
# ## Exercises
#
# 1. By hand: what is LayerNorm of $(1, 3, 5, 7)$ with gain 1 and bias 0, without $\varepsilon$?
# 2. LayerNorm does not change when its input is multiplied by 10, or when 10 is added to every number. Why?
#    What does that mean for the size of the stream in a post-norm model?
# 3. What breaks if a pre-norm encoder has no final norm?
#
# :::{admonition} Solution
# :class: dropdown
# 1. Mean 4, variance $(9 + 1 + 1 + 9) / 4 = 5$: $(-3, -1, 1, 3) / \sqrt 5$.
# 2. The mean takes away what was added, the division what was multiplied. So in a post-norm model each layer's
#    output has the same size however large its input was.
# 3. The memory's size then grows with the number of layers, and the decoder's cross-attention gets keys of that
#    size: the scores grow with it and softmax hardens.
# :::

# %% tags=["hide-input"]
ones, zeros = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
x = torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)
normal = layer_norm(x, ones, zeros, eps=0.0)
assert torch.allclose(normal, torch.tensor([-3.0, -1.0, 1.0, 3.0]).double() / 5**0.5)
assert torch.allclose(layer_norm(10 * x, ones, zeros, eps=0.0), normal)
assert torch.allclose(layer_norm(x + 10, ones, zeros, eps=0.0), normal)

# %% [markdown]
# ## Further reading
#
# Layer normalization is from {cite:t}`ba2016layer`, residual connections are from {cite:t}`he2016deep`. Why the
# place of the norm decides about the warm-up is worked out by {cite:t}`xiong2020layer`.
