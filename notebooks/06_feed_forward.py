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
# # The feed-forward network
#
# This chapter builds the small network that every position passes through after attention (section 3.3 of the paper).
#
# [Attention](03_attention.ipynb) fetches. The verb *likes* collects a little of *cat* and a little of *fish*, and the output is a blend of what these two handed over. Nobody has yet concluded anything. That a living thing which is also edible makes prey is a new fact, and no blend of old facts contains it.
#
# So after each attention comes a step that thinks about what has arrived. It is a network of two layers, the same at every position. It takes ten lines of code, it looks like an afterthought, and it holds two thirds of the weights of an encoder layer. *Feed-forward* only says that there is no loop in it: numbers go in below and come out above.
#
# We first see why attention cannot do without it. Then we build one unit of it by hand, and the whole from many units. At the end we open a trained model and ask which units fire at which word.

# %% tags=["export"]
import torch.nn.functional as F
from torch import Tensor, nn

# %%
import altair as alt
import torch

from annotated_transformer import load_pretrained
from book.figures import KEY, QUERY, VALUE, curves, heatmap, show, show_steps
from annotated_transformer.masks import EOS
from annotated_transformer.multi_head_attention import MultiHeadAttention

# %% [markdown]
# ## What attention alone cannot do
#
# Give attention a sentence of one word. There is one key, so its weight is 1, whatever the scores are. What is left of the module is $x W^V W^O$. Twice the input gives twice the output:

# %%
torch.manual_seed(0)
attention = MultiHeadAttention(d_model=8, heads=2).double()
x = torch.randn(1, 1, 8, dtype=torch.float64)
once, twice = attention(x, x, x), attention(2 * x, 2 * x, 2 * x)
print("twice in, twice out:", torch.allclose(twice, 2 * once))

# %% [markdown]
# Ten such layers in a row are ten matrices in a row, and their product is one matrix. So for this word the whole stack is a single linear map.
#
# With more words the weights do depend on the input, in a curved way: they come from a softmax. But they only decide *how much* to take from each word. What is taken, $x W^V$, is linear in $x$ again.
#
# ### Is a linear map really too weak?
#
# Take two features, $a$ and $b$, each 0 or 1, and ask for the simplest conclusion there is: $a$ *and* $b$. Suppose that $f(a, b) = ua + vb + c$ computes it. Then
#
# $$
# f(1, 1) + f(0, 0) = u + v + 2c = f(1, 0) + f(0, 1).
# $$ (eq-no-and)
#
# But *and* is 1 for $(1, 1)$ and 0 for the other three, so the left side would be $1 + 0$ and the right side $0 + 0$. No choice of $u$, $v$ and $c$ helps.
#
# ## One unit, built by hand
#
# The way out is small: compute a sum, and cut off everything below zero. The cut has a name, **ReLU** (rectified linear unit): $\operatorname{ReLU}(z) = \max(0, z)$. With it, $a$ and $b$ is $\operatorname{ReLU}(a + b - 1)$:
#
# | $a$ | $b$ | $a + b - 1$ | after ReLU |
# |:---:|:---:|:---:|:---:|
# | 0 | 0 | −1 | 0 |
# | 0 | 1 | 0 | 0 |
# | 1 | 0 | 0 | 0 |
# | 1 | 1 | 1 | **1** |
#
# The three numbers have three jobs. The weights, 1 and 1, say what the unit looks for. The bias, −1, is a threshold: how much evidence must be there before it speaks. And the ReLU keeps it silent below the threshold. A **unit** is such a weighted sum with a threshold. We say that it *fires* where its output is above zero.
#
# ## Many units
#
# A network needs many such questions, and for each an answer to write down. The paper uses two linear maps with a ReLU between them:
#
# $$ \text{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2 $$ (eq-ffn)
#
# This is the **feed-forward network**, FFN for short. The vector $x$ of one position has $d_\text{model}$ numbers. The inner layer is wider, $d_\text{ff}$, four times as wide in the base model:
#
# | step | shape | in the base model |
# |---|---|---|
# | input $x$ | $(B, T, D)$ | 512 numbers a position |
# | times $W_1$, plus $b_1$ | $(B, T, d_\text{ff})$ | 2048 units ask |
# | ReLU | $(B, T, d_\text{ff})$ | some fire, the others are 0 |
# | times $W_2$, plus $b_2$ | $(B, T, D)$ | 512 numbers again |
#
# Input and output have the same width, because the output is added to the input in the next step ([Layers](09_layers.ipynb)).
#
# ### Read it unit by unit
#
# A matrix product hides what happens. Let $w_j$ be column $j$ of $W_1$, and let $u_j$ be row $j$ of $W_2$. Then the same formula is a sum over units:
#
# $$ \text{FFN}(x) = b_2 + \sum_{j=1}^{d_\text{ff}} \operatorname{ReLU}(x \cdot w_j + b_{1j})\; u_j $$ (eq-ffn-units)
#
# Unit $j$ compares $x$ with its pattern $w_j$ by a dot product. If $x$ fits well enough, the unit adds its vector $u_j$ to the output, the more the better the fit.
#
# This should look familiar. Patterns are compared, and what belongs to them is mixed: it is a lookup, like attention, with $w_j$ as keys and $u_j$ as values. Attention finds its keys and values in the sentence. Here they are learned once and stay the same for every sentence. And there is no softmax. Units do not compete, so ten may fire, or none.
#
# ### A network with two units
#
# We let attention have done its work. *Cat* has fetched from *black* that it is dark. *Likes* has fetched 0.76 of something living and 0.29 of something edible, as computed in chapter 3. Two units look for "living and dark" and "living and edible". They write what follows: a black pet, and prey.

# %%
words = ["the", "black", "cat", "likes", "fish"]
X = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 1, 0], [0.76, 0, 0.29], [0.5, 0, 1]])
W1, b1 = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([-1.0, -1.0])
W2 = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
fired = (X @ W1 + b1).relu()
print("likes:", [round(v, 2) for v in fired[3].tolist()], " fish:", fired[4].tolist())

# %% [markdown]
# By hand for *fish*: $0.5 \cdot 1 + 1 \cdot 1 - 1 = 0.5$, so the second unit fires with 0.5. Its row of $W_2$ doubles that. For *likes*, the sum is $0.76 + 0.29 - 1 = 0.05$: just above the threshold.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-stamp", "caption": "What does \u201cposition-wise\u201d mean? Each row is computed from its own row to the left and from nothing else, with the same two units. Left: five words with three features. Middle: two units, living-and-dark and living-and-edible, fire at three of the words (green). Right: what they write. All numbers are made up."}}
drawn = [
    heatmap(X, words, ["living", "dark", "edible"], titles=("position", "input x")),
    heatmap(fired, words, ["liv+dark", "liv+edib"], titles=("", "units that fire"), color=VALUE),
    heatmap(fired @ W2, words, ["pet", "prey"], titles=("", "output")),
]
chart = alt.hconcat(*drawn).resolve_scale(fillOpacity="independent")
show(chart, alt="The first unit fires at cat only; the second fires at fish, and faintly at likes.")

# %% [markdown]
# ## The network in code
#
# `nn.Linear` holds a matrix and a bias, and it acts on the last axis. All axes in front, sentences and positions, are just more vectors to treat the same way. That is all that "position-wise" takes.


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
        return self.linear2(self.dropout(F.relu(self.linear1(x))))


# %% [markdown]
# The dropout on the units is not in the paper. The authors' later code has it, so it is an option here, and 0 unless asked for.
#
# One trap when reading such code: `nn.Linear` stores its matrix transposed, as (outputs, inputs). The pattern $w_j$, a column of $W_1$ in the formula, is *row* $j$ of `linear1.weight`. We check both forms of the formula, the matrices and the sum over units, on two sentences of five positions.

# %%
network = FeedForward(d_model=8, d_ff=32).double()
x = torch.randn(2, 5, 8, dtype=torch.float64)
A, a, C, c = (
    network.linear1.weight,
    network.linear1.bias,
    network.linear2.weight,
    network.linear2.bias,
)
by_formula = torch.clamp(x @ A.T + a, min=0) @ C.T + c
by_unit = c + sum((x @ A[j] + a[j]).relu()[..., None] * C[:, j] for j in range(32))
torch.testing.assert_close(network(x), by_formula)
torch.testing.assert_close(network(x), by_unit)
print(tuple(x.shape), "->", tuple(network.linear1(x).shape), "->", tuple(network(x).shape))

# %% [markdown]
# ## Why does the paper speak of convolutions?
#
# Section 3.3 remarks that the network equals two convolutions with a kernel of size 1. A convolution slides a window over the sentence and computes each output from the positions in the window. With a kernel of size 1 the window holds one position, so nothing is mixed, and what remains is one linear map applied everywhere. It makes a good independent reference:

# %%
first, second = nn.Conv1d(8, 32, 1).double(), nn.Conv1d(32, 8, 1).double()
first.load_state_dict({"weight": A[:, :, None], "bias": a})
second.load_state_dict({"weight": C[:, :, None], "bias": c})
convolved = second(first(x.transpose(1, 2)).relu()).transpose(1, 2)
print("equal to two convolutions of kernel 1:", torch.allclose(network(x), convolved))

# %% [markdown]
# The transposes are needed because convolutions want the axes in another order, (B, D, T).
#
# ## Who sees whom?
#
# So the halves of a layer share the work. Attention mixes positions. The feed-forward network mixes the numbers within one position. To see it, we ask for the slope of each output by each input. Where it is not zero, the output moves when the input does.


# %%
def which_move(layer):
    """Return a (6, 6) table: does output t depend on input s?"""
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(layer, x)  # (1, 6, 8, 1, 6, 8)
    return slopes.abs().amax(dim=(0, 2, 3, 5)) > 1e-9


window = nn.Conv1d(8, 8, kernel_size=3, padding=1).double()
moves = {
    "attention": which_move(lambda x: attention(x, x, x)),
    "convolution, kernel 3": which_move(lambda x: window(x.transpose(1, 2)).transpose(1, 2)),
    "feed-forward": which_move(network),
}
print({name: int(moved.sum()) for name, moved in moves.items()}, "of 36 pairs")
assert torch.equal(moves["feed-forward"], torch.eye(6).bool())

# %% [markdown]
# Attention: all $6 \cdot 6 = 36$ pairs. Convolution: 6 on the diagonal and 5 on each side of it, 16. Feed-forward: the 6 on the diagonal.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-who-moves", "caption": "Which outputs move when one input changes? A filled cell with a 1 means that the output at this row depends on the input at this column. Attention reaches everywhere, a convolution with kernel 3 reaches its neighbors, the feed-forward network stays where it is."}}
at = [str(t) for t in range(6)]
drawn = [
    heatmap(moved.double(), at, at, titles=("output that moves", name), cell=26)
    for name, moved in moves.items()
]
show(
    alt.hconcat(*drawn, spacing=24),
    alt="For attention all cells are filled; for the convolution the diagonal and its neighbors; for the feed-forward network the diagonal.",
)

# %% [markdown]
# ## Why wide, and then narrow again?
#
# Each unit can ask one question. With 512 inputs there are about 131,000 pairs of features alone ($512 \cdot 511 / 2 = 130{,}816$), so more units mean more questions. The second map must come back to 512, because the next layer expects it.
#
# Let us see what width buys. We want the product of two of eight inputs, which no linear map can give. The inner layer stays random, and only $W_2$ is fitted, by least squares. Then we measure on fresh inputs which share of the target is still unexplained.

# %%
random = torch.Generator().manual_seed(0)
inputs = torch.randn(8000, 8, generator=random, dtype=torch.float64)
target = inputs[:, 0] * inputs[:, 1]
for d_ff in (8, 64, 512):
    inner = torch.randn(8, d_ff, generator=random, dtype=torch.float64)
    hidden = (inputs @ inner + torch.randn(d_ff, generator=random, dtype=torch.float64)).relu()
    fitted = hidden[4000:] @ torch.linalg.lstsq(hidden[:4000], target[:4000]).solution
    print(f"d_ff {d_ff:3}  unexplained: {(fitted - target[4000:]).var() / target.var():.2f}")

# %% [markdown]
# Eight units explain next to nothing, and 512 nearly everything, although nobody chose their questions. A trained network chooses its questions as well.
#
# Without the ReLU, width buys nothing at all: two linear maps in a row are one linear map. Exercise 2 shows it.
#
# The price of width is memory, too. In training, the outputs of all units are kept for the way back. A batch of the paper has about 25,000 tokens on each side. With 2048 units and 4 bytes a number, that is $25{,}000 \cdot 2048 \cdot 4 = 205$ MB in every layer, four times as much as the 51 MB of $x$ itself.
#
# ### What did the authors try?
#
# The paper varies $d_\text{ff}$ alone in two of the rows (C) of Table 3:
#
# | $d_\text{ff}$ | parameters | BLEU (newstest2013) |
# |---:|---:|:---:|
# | 1024 | 53 M | 25.4 |
# | 2048 (base) | 65 M | 25.8 |
# | 4096 | 90 M | 26.2 |
#
# Four times the model's width is a choice that worked. Nothing in the formula demands it.
#
# ## Which units fire?
#
# Before training, a unit's sum is as often above zero as below, so half of the units fire. After training? We look ahead to the model that comes with this book, which translates German captions of photographs. A *hook* lets us read what a layer computes, without changing the model: PyTorch calls our function with the layer's input and output.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained()
model.eval()
seen = {}
layer = model.encoder.layers[-1].feed_forward.linear1
layer.register_forward_hook(lambda layer, x, out: seen.update(x=x[0].detach(), out=out.detach()))
ids = [*tokenizer.encode("Ein brauner Hund läuft durch den Schnee."), EOS]
model.encode(torch.tensor([ids]))
fresh = nn.Linear(layer.in_features, layer.out_features)(seen["x"])  # an untrained layer beside it
firing = [(out > 0).float().mean().item() for out in (fresh, seen["out"])]
print(f"units that fire: untrained {firing[0]:.0%}, trained {firing[1]:.0%}")
assert 0.4 < firing[0] < 0.6 and firing[1] < 0.3

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-firing", "caption": "Which units fire at which token? The top encoder layer of the trained model, and an untrained layer on the same input; the first 128 units of each. A dot is a unit that fires, its area says how strongly. Untrained, half of the dots are there. Trained, few units fire at each token, and different ones."}}
names = [f"{t} {tokenizer.decode([i]).strip() or '</s>'}" for t, i in enumerate(ids)]
records = [
    {"unit": j, "token": names[t], "output": round(out[0, t, j].item(), 2), "layer": name}
    for name, out in (("untrained", fresh), ("trained", seen["out"]))
    for t, j in (out[0, :, :128] > 0).nonzero().tolist()
]
chart = alt.Chart(alt.Data(values=records), width=420, height=170).mark_circle(
    color=VALUE, opacity=1
)
size = alt.Size("output:Q", legend=None, scale=alt.Scale(range=[4, 60]))
y = alt.Y("token:N", title=None, scale=alt.Scale(domain=names))
panels = alt.Row("layer:N", title=None, sort=["untrained", "trained"])
show(
    chart.encode(x="unit:Q", y=y, size=size, row=panels),
    alt="Half of the untrained units fire at every token. Few of the trained ones do, and different ones at each token.",
)

# %% [markdown]
# Nobody asked for this. The loss does not count firing units; the ReLU only makes silence possible.
#
# The formula gives a hint of how it comes about. Let $g$ be the gradient that arrives at the output of a position. The slope of the ReLU is 1 where the unit fires and 0 elsewhere, so the gradient for the pattern of unit $j$ is
#
# $$ \frac{\partial L}{\partial w_j} = \sum_{\text{positions where } j \text{ fires}} (g \cdot u_j)\; x. $$ (eq-ffn-gradient)
#
# A unit learns only from the positions where it fires already. So it gets better at those, and words that never excite it have no say in what it becomes. It turns into a specialist.
#
# The silence also means that most of the products with $W_2$ are products with zero.
#
# ## What do the units look for?
#
# If units are specialists, we can ask for their subject. The model reads words of its vocabulary, each as a sentence of its own. For a word of interest we take the unit that it excites most, compared with that unit's mean. Then we list the words that excite the *same* unit most.

# %% tags=["nbval-ignore-output"]
spelled = {tokenizer.decode([i]): i for i in range(4, len(tokenizer))}  # " Ball" begins a word
whole = {w[1:]: i for w, i in spelled.items() if w[0] == " " and w[1:].isalpha() and len(w) > 3}
with torch.no_grad():
    model.encode(torch.tensor([[i, EOS] for i in whole.values()]))
outputs = seen["out"][:, 0].relu()  # (words, units)


def same_unit(word):
    unit = (outputs[list(whole).index(word)] / (outputs.mean(dim=0) + 0.02)).argmax()
    return {list(whole)[i]: round(outputs[i, unit].item(), 2) for i in outputs[:, unit].topk(8)[1]}


print("the unit of Schnee (snow):", ", ".join(same_unit("Schnee")))
assert outputs.gt(0).float().mean() < 0.3


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-units", "caption": "What does a unit look for? Choose a German word: snow, walks, ball, red or brown. The bars are the words that excite its unit most, in the top encoder layer of the trained model. Nobody told the model which words belong together."}}
def bars(word):
    found = same_unit(word)
    data = alt.Data(values=[{"word": w, "output": v} for w, v in found.items()])
    x, y = alt.X("output:Q", title="output of the unit"), alt.Y("word:N", sort=None, title=None)
    chart = alt.Chart(data, width=300).mark_bar(color=VALUE).encode(x, y)
    return chart, f"The unit of {word} fires at {', '.join(found)}."


asked = [w for w in ("Schnee", "geht", "Ball", "roten", "braun") if w in whole]
show_steps({word: bars(word) for word in asked}, "The unit of which word?")

# %% [markdown]
# Not every unit has a subject that we can name. Some answer to word endings, some to the end of the sentence, and the lists change with each training. But the picture fits the formula: a stored pattern, and something to write where it is found.
#
# ## What if a unit never fires?
#
# Where a unit is silent, the slope of the ReLU is zero, so the unit's weights get no gradient. That is harmless as long as it fires for some other word. A unit that is silent for *all* inputs can never learn again. It is a **dead unit**.

# %%
dying = FeedForward(d_model=8, d_ff=4).double()
with torch.no_grad():
    dying.linear1.bias[0] = -100.0  # no input of usual size gets over this threshold
x = torch.randn(1000, 8, dtype=torch.float64)
dying(x).sum().backward()  # so that every gradient g is a row of ones
fires = (dying.linear1(x) > 0).double()
g_times_u = dying.linear2.weight.sum(dim=0)
torch.testing.assert_close(dying.linear1.weight.grad, g_times_u[:, None] * (fires.T @ x))
print("units that learn:", (dying.linear1.weight.grad.abs().sum(dim=1) > 0).tolist())

# %% [markdown]
# The gradients are those of {eq}`eq-ffn-gradient`. The first unit gets none, so its threshold stays where it is. A few steps that are too large can push a threshold that far. The rate of chapter [Schedule](16_schedule.ipynb) therefore starts small, and the layer norm of chapter [Layers](09_layers.ipynb) keeps the inputs at their usual size.
#
# ## Where the parameters are
#
# One network of the base model has $2 \cdot 512 \cdot 2048$ weights and $2048 + 512$ biases, 2,099,712 in all. One attention has $4 \cdot 512^2 = 1{,}048{,}576$. So of an encoder layer's weights, two thirds sit here.

# %%
count = sum(p.numel() for p in FeedForward(512, 2048).parameters())
print(f"{count:,} parameters, {count / (count + 4 * 512**2):.0%} of an encoder layer")
assert count == 2_099_712

# %% [markdown]
# In the whole model there are 12 networks, 25.2 million parameters. The 18 attentions have 18.9 million, and so has the [table of embeddings](07_embeddings.ipynb). Attention gave the paper its title. The largest share of the model, 40 %, is feed-forward.
#
# ## And the work?
#
# Each weight of a linear map is used once at each position. So the network costs $2 \cdot 512 \cdot 2048 = 2.1$ million multiplications a position. The four projections of attention cost $4 \cdot 512^2 = 1.05$ million. Scores and blending cost $2 n d_\text{model}$, which depends on the length $n$: at 25 tokens $2 \cdot 25 \cdot 512 = 25{,}600$, about 1 % of the layer. PyTorch's own counter agrees; it counts a multiplication and an addition as two.

# %%
from torch.utils.flop_counter import FlopCounterMode

with FlopCounterMode(display=False) as counter:
    FeedForward(512, 2048)(torch.zeros(1, 25, 512))
print("multiplications a position:", counter.get_total_flops() // 2 // 25)
assert counter.get_total_flops() == 2 * 25 * (2 * 512 * 2048)


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-layer-work", "caption": "Which part of an encoder layer does the work? Share of the multiplications in the base model, by length of the sentence. At the length of a sentence, two thirds are feed-forward (solid green) and hardly any are scores and blending (dotted orange). At $n = 2048$ the two are equal."}}
def shares(n, d=512, d_ff=2048):
    cost = {
        "feed-forward": 2 * d * d_ff,
        "projections": 4 * d * d,
        "scores and blending": 2 * n * d,
    }
    return [{"n": n, "part": p, "share": round(c / sum(cost.values()), 3)} for p, c in cost.items()]


records = [record for power in range(3, 15) for record in shares(2**power)]
looks = dict(zip([r["part"] for r in records], [(VALUE, [1, 0]), (QUERY, [6, 3]), (KEY, [2, 2])]))
n = alt.X("n:Q", title="length n", scale=alt.Scale(type="log", base=2, domain=[8, 16384]))
chart = curves(records, n, alt.Y("share:Q", axis=alt.Axis(format="%")), "part", looks)
show(
    chart,
    alt="Up to 256 tokens the feed-forward network does about two thirds of the work. Beyond 2048, scores and blending do most.",
)

# %% [markdown]
# ## Questions that come up
#
# **Do all layers share one network?** No. Within a layer all positions share it. Each of the twelve layers has its own, with its own weights.
#
# **Why are there biases here and none in attention?** Equation 2 of the paper has them, equation 1 and the projections do not. Here they do real work: a ReLU without a threshold could only ask whether a sum is positive.
#
# **Why ReLU and not GELU?** The paper says ReLU. Many later models round the corner at zero. Any bend will do for the argument of this chapter.
#
# **Does the network need a mask?** No. It computes something for padding as well, and nobody reads it: positions do not mix here, and [masks](04_masks.ipynb) keep attention away. It is only wasted work.
#
# **What about writing word by word?** When the model translates, a new word needs one pass through the network, for its own position. The words before it need nothing. Attention, by contrast, must come back to their keys and values ([decoding](19_decoding.ipynb)).
#
# **Is the order of the words known here?** No more than in attention. Shuffle the positions, and the outputs are shuffled the same way. [Positional encoding](08_positional_encoding.ipynb) puts the order into $x$ itself.
#
# **Would one layer do, if it had a ReLU?** $\operatorname{ReLU}(x W)$ has as many questions as outputs, and it can only add, never take away, since its outputs are not negative. The second map lets 2048 answers meet in 512 numbers, with either sign.
#
# ## What to remember
#
# - Attention moves information between positions; the feed-forward network works on it within one.
# - A unit compares $x$ with a pattern and, above a threshold, writes a vector. The network is the sum of 2048 such units.
# - The same weights serve every position of a layer, and no position sees another.
# - Without the ReLU the two maps collapse into one.
# - It holds two thirds of an encoder layer's parameters and does two thirds of its work on sentences.
#
# ## Exercises
#
# **1. By hand.** Let $a$ and $b$ be 0 or 1. Find $W_1$, $b_1$ and $W_2$ of a network with two units that computes "exactly one of the two". Start from the table above.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# a + b counts; the unit for "both" takes 2 away again: ReLU(a + b) - 2 ReLU(a + b - 1).
one, two = torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0], [-2.0]])
cases = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
exactly_one = (cases @ one + torch.tensor([0.0, -1.0])).relu() @ two
print(exactly_one[:, 0].tolist())
assert exactly_one[:, 0].tolist() == [0, 1, 1, 0]

# %% [markdown]
# **2. What breaks** without the ReLU? Find one matrix and one vector that do the same as both layers. How many numbers do they have for $d_\text{model} = 512$, and how many had the two layers?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# (x W1 + b1) W2 + b2 = x (W1 W2) + (b1 W2 + b2): 262,656 numbers do the work of 2,099,712.
x = torch.randn(2, 5, 8, dtype=torch.float64)
both = network.linear2(network.linear1(x))
torch.testing.assert_close(both, x @ (A.T @ C.T) + (a @ C.T + c))
print(f"{512 * 512 + 512:,} numbers")

# %% [markdown]
# **3. Write it yourself.** Write `feed_forward(x, W1, b1, W2, b2)` with the matrices as in the formula, without `nn` and `F`. Compare with our module, and ask the [checker](E_checker.ipynb).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}


def feed_forward(x, W1, b1, W2, b2):
    hidden = x @ W1 + b1
    return torch.where(hidden > 0, hidden, 0) @ W2 + b2


torch.testing.assert_close(feed_forward(x, A.T, a, C.T, c), network(x))
print("equal")

from annotated_transformer import check

print(check("feed_forward", feed_forward))

# %% [markdown]
# **4. Count.** For which $d_\text{ff}$ does the network have as many weights as the attention beside it? Which row of Table 3 is that?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 2 d d_ff = 4 d^2 for d_ff = 2 d = 1024 in the base model: the row (C) with 25.4 BLEU. Biases come on top.
network_weights = sum(p.numel() for p in FeedForward(512, 1024).parameters() if p.dim() == 2)
assert network_weights == 4 * 512**2
print(f"{network_weights:,}")

# %% [markdown]
# **5. What breaks if** someone flattens a sentence of $T$ positions into one vector of $T \cdot D$ numbers and feeds that to one large network? Name three things. Check one with `which_move`.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Positions mix, so a decoder sees the future. Only one length fits. The weights grow with T squared.
large = FeedForward(6 * 8, 4 * 6 * 8).double()
mixed = which_move(lambda x: large(x.flatten(1)).unflatten(1, (6, 8)))
print("early outputs move with later inputs:", mixed.triu(1).any().item())
assert mixed.all()

# %% [markdown]
# ## Sources
#
# Equation 2 and the remark on convolutions are from section 3.3 of {cite:t}`vaswani2017attention`, the rows from its Table 3. To read the two matrices as keys and values is an idea of Geva, Schuster, Berant and Levy (*Transformer feed-forward layers are key-value memories*, 2021).
