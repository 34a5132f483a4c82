# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # The feed-forward network
#
# This chapter builds the small network that every position passes through after attention
# (section 3.3 of the paper).
#
# Attention moves information between words. It does next to nothing *to* it: once the weights
# are chosen, the output is a weighted average, a linear map of the values. Someone has to think
# about what has arrived. That is the work of a two-layer network, the same at every position.

# %% tags=["export"]
import torch.nn.functional as F
from torch import Tensor, nn

# %%
import matplotlib.pyplot as plt
import torch

from annotated_transformer.figures import QUERY, VALUE, style
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %% [markdown]
# ## What attention alone cannot do
#
# Give attention a sentence of one word. There is one key, so its weight is 1 whatever the scores.
# What is left of the module is $x W^V W^O$. Twice the input gives twice the output:

# %%
torch.manual_seed(0)
attention = MultiHeadAttention(d_model=8, heads=2).double()
x = torch.randn(1, 1, 8, dtype=torch.float64)
once, twice = attention(x, x, x), attention(2 * x, 2 * x, 2 * x)
print("twice in, twice out:", torch.allclose(twice, 2 * once))

# %% [markdown]
# A stack of such layers is one linear map for this word. It cannot even compute "both of these
# two features are on". A nonlinear step is missing.
#
# ## The formula
#
# Two linear maps with a ReLU between them. The inner layer is wide, $d_\text{ff} = 2048$ for
# $d_\text{model} = 512$ in the base model:
#
# $$ \text{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2 $$ (eq-ffn)
#
# Read it unit by unit. Column $j$ of $W_1$ is a pattern; the unit asks how well $x$ matches it.
# Row $j$ of $W_2$ is what the unit writes if it matches. The ReLU keeps silent where it does not.
#
# The dropout between the maps is not in the paper. The authors' later code has it, so it is an option.


# %% tags=["export"]
class FeedForward(nn.Module):
    """The same two-layer network at every position (section 3.3, equation 2)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D), each position by itself."""
        return self.outer(self.dropout(F.relu(self.inner(x))))


# %%
network = FeedForward(d_model=8, d_ff=32).double()
x = torch.randn(2, 5, 8, dtype=torch.float64)
W1, b1 = network.inner.weight.T, network.inner.bias
W2, b2 = network.outer.weight.T, network.outer.bias
by_formula = torch.clamp(x @ W1 + b1, min=0) @ W2 + b2
assert torch.allclose(network(x), by_formula)
print(tuple(x.shape), "->", tuple(network(x).shape))

# %% [markdown]
# ## Position by position
#
# The paper remarks that the same thing is two convolutions with a kernel of size 1. A kernel of
# size 1 sees one position at a time, which is the point. It makes a good independent reference.

# %%
first, second = torch.nn.Conv1d(8, 32, 1).double(), torch.nn.Conv1d(32, 8, 1).double()
first.load_state_dict({"weight": network.inner.weight[:, :, None], "bias": network.inner.bias})
second.load_state_dict({"weight": network.outer.weight[:, :, None], "bias": network.outer.bias})
convolved = second(first(x.transpose(1, 2)).relu()).transpose(1, 2)
print("equal to two convolutions of kernel 1:", torch.allclose(network(x), convolved))

# %% [markdown]
# So the two halves of a layer share the work cleanly. Attention mixes positions. The
# feed-forward network mixes the numbers within one position. We can see it: change one input
# position, and mark which output positions move.


# %%
def which_move(layer, length=6):
    """Return a (length, length) table: does output t move when input s changes?"""
    x = torch.randn(1, length, 8, dtype=torch.float64)
    moved = torch.zeros(length, length, dtype=torch.bool)
    for s in range(length):
        other = x.clone()
        other[0, s] += 1
        moved[:, s] = (layer(other) - layer(x)).abs().amax(dim=(0, 2)) > 1e-9
    return moved


mixing = which_move(lambda x: attention(x, x, x))
alone = which_move(network)
print("attention moves all:", mixing.all().item())
print("feed-forward moves only its own position:", torch.equal(alone, torch.eye(6).bool()))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-who-moves", "caption": "Which outputs move when one input changes? A filled cell means that the output at this row depends on the input at this column."}, "image": {"alt": "Two grids of six outputs by six inputs. For attention every cell is filled; for the feed-forward network only the diagonal is."}}
style()
fig, axes = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
panels = [("attention", mixing, QUERY), ("feed-forward network", alone, VALUE)]
for axis, (title, moved, color) in zip(axes, panels):
    for t in range(6):
        for s in range(6):
            face = color if moved[t, s] else "white"
            axis.add_patch(plt.Rectangle((s, t), 1, 1, fc=face, ec="#777777"))
    axis.set(xlim=(-0.05, 6.05), ylim=(6.05, -0.05), aspect="equal", title=title)
    axis.set(xlabel="input that changes", ylabel="output that moves")
    axis.set_xticks([s + 0.5 for s in range(6)], range(6))
    axis.set_yticks([t + 0.5 for t in range(6)], range(6))
    axis.tick_params(length=0)
    axis.grid(False)
plt.show()

# %% [markdown]
# ## Where the parameters are
#
# One feed-forward network of the base model has $2 \cdot 512 \cdot 2048 + 2048 + 512 = 2{,}099{,}712$
# parameters. One attention has $4 \cdot 512^2 = 1{,}048{,}576$. So in an encoder layer two thirds of the
# weights sit in the part that everybody forgets.

# %%
count = sum(p.numel() for p in FeedForward(512, 2048).parameters())
print(f"{count:,} parameters, {count / (count + 4 * 512**2):.0%} of an encoder layer")
assert count == 2_099_712

# %% [markdown]
# It pays. Rows C of the paper's Table 3 change $d_\text{ff}$ alone: halving it costs 0.4 BLEU,
# doubling it gains 0.4.
#
# ## What to remember
#
# - Attention moves information between positions; the feed-forward network works on it within one.
# - Two linear maps, a ReLU between them, the same weights at every position.
# - Without it a stack of attention layers has no nonlinear step of its own on the values.
# - It holds two thirds of an encoder layer's parameters.

# %% [markdown]
# ## Exercises
#
# 1. By hand: let $x = (a, b)$ with $a, b \in \{0, 1\}$. Give $W_1$, $b_1$, $W_2$, $b_2$ for one inner
#    unit that computes "a and b".
# 2. What breaks without the ReLU? Find one matrix and one vector that do the same as both layers.
#
# :::{admonition} Solution
# :class: dropdown
# 1. $W_1 = (1, 1)^T$, $b_1 = -1$, $W_2 = 1$, $b_2 = 0$: the unit is $\max(0, a + b - 1)$.
# 2. $(x W_1 + b_1) W_2 + b_2 = x\,(W_1 W_2) + (b_1 W_2 + b_2)$. The wide layer buys nothing.
# :::

# %% tags=["hide-input"]
logical_and = [max(0, a + b - 1) for a in (0, 1) for b in (0, 1)]
assert logical_and == [0, 0, 0, 1]
assert torch.allclose((x @ W1 + b1) @ W2 + b2, x @ (W1 @ W2) + (b1 @ W2 + b2))
