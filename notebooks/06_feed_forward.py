# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # The feed-forward network
#
# The feed-forward network ends every layer of the model. It is two linear maps with a cut at zero (a ReLU) between them, and draws conclusions from what attention has brought to a position (section 3.3 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("feed_forward")

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
# After attention, *likes* has heard of something living and of something edible. If you know both, you know more: this liking is about a meal. But a meal is a new fact, and what attention returns is a blend of old ones. Could more attention, ten layers of it, arrive at the conclusion?
#
# ## What attention alone cannot do
#
# To see the limit, give attention a sentence of one word. With a single key, its weight is 1 whatever the scores are, and all that remains is $x W^V W^O$. Twice the input gives twice the output:

# %% tags=["hide-input"]
import altair as alt
import torch

from annotated_transformer.attention import attention
from annotated_transformer.masks import EOS
from annotated_transformer.multi_head_attention import MultiHeadAttention
from book.example import FEATURES
from book.figures import AMBER, PLUM, SKY, curves, heatmap, show, show_steps

# %%
import torch

from annotated_transformer.multi_head_attention import MultiHeadAttention

torch.manual_seed(0)
layer = MultiHeadAttention(d_model=8, heads=2).double()
x = torch.randn(1, 1, 8, dtype=torch.float64)
once = layer(x, x, x)
twice = layer(2 * x, 2 * x, 2 * x)
for output in (once, twice):
    print([round(v, 2) for v in output[0, 0, :4].tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(twice, 2 * once)

# %% [markdown]
# Ten such layers are ten matrices in a row, and their product is one matrix. With more words, attention as a whole is no longer linear, because the weights come from a softmax. But the weights only decide how much to take from each word. What is made of a word, $x W^V$, stays linear.
#
# A linear map is too weak for even the simplest conclusion. Let $a$ and $b$ be 0 or 1, and suppose that $f(a, b) = ua + vb + c$ computes "$a$ *and* $b$". Then
#
# $$
# f(1, 1) + f(0, 0) = u + v + 2c = f(1, 0) + f(0, 1).
# $$ (eq-no-and)
#
# But *and* is 1 for $(1, 1)$ and 0 for the other three, so the left side must be 1 and the right side 0. No choice of $u$, $v$ and $c$ helps.
#
# ## One unit, built by hand
#
# The way out is to compute a sum and cut off everything below zero. The cut is called **ReLU** (rectified linear unit), $\operatorname{ReLU}(z) = \max(0, z)$, and with it *and* becomes $\operatorname{ReLU}(a + b - 1)$:
#
# | $a$ | $b$ | $a + b - 1$ | after ReLU |
# |:---:|:---:|:---:|:---:|
# | 0 | 0 | −1 | 0 |
# | 0 | 1 | 0 | 0 |
# | 1 | 0 | 0 | 0 |
# | 1 | 1 | 1 | **1** |
#
# The weights, 1 and 1, say what to look for, and the bias, −1, sets how much evidence it takes. Such a weighted sum with a threshold is a **unit**.
#
# ## The network
#
# The feed-forward network is many such units, side by side. The vector $x$ of one position, $d_\text{model} = 512$ numbers in the base model, is multiplied out to $d_\text{ff} = 2048$ sums. Negative sums become zero, and a second matrix turns the 2048 numbers back into 512:
#
# $$ \text{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2 $$ (eq-ffn)


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
# `nn.Linear` acts on the last axis and treats all axes in front of it, sentences and positions, as a list of vectors. This is why the paper calls the network *position-wise*.
#
# :::{margin}
# The dropout between the layers isn't in the paper; here it is an option, 0 by default.
# :::
#
# To see it work, take the five words of [chapter 3](03_attention.ipynb#from-scores-to-weights) after attention has added to each what it fetched, and a network with two units, set by hand. The first, "meal", adds up the columns verb, living and edible and needs more than 2.5. The second, "pet", adds up noun, adjective and living and needs more than 3. A unit *fires* where its sum, after the bias, is above zero.

# %%
from book.example import W_K, W_O, W_Q, W_V, WORDS, X

stream = X + attention(X @ W_Q, X @ W_K, X @ W_V)[0] @ W_O
# A unit is a column of W1 and a row of W2
W1 = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0]]).double().T
b1 = torch.tensor([-2.5, -3.0]).double()
W2 = torch.tensor([[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, -1]]).double()
fired = (stream @ W1 + b1).relu()
print({word: [round(v, 2) for v in row] for word, row in zip(WORDS, fired.tolist())})

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-stamp", "caption": "What does \u201cposition-wise\u201d mean? Each row is computed from the row to its left and from nothing else, by the same two units. Left: the five words after attention; *likes* carries the 0.76 and 0.29 that it fetched. Middle: the unit \u201cmeal\u201d fires at *likes*, the unit \u201cpet\u201d at *cat*. Right: what they write. Purple is positive, orange negative; the weights are made up."}}
units = ["meal", "pet", *[f"unit {j}" for j in range(3, len(b1) + 1)]]
drawn = [
    heatmap(stream, WORDS, FEATURES, titles=("position", "input x"), limit=2.2),
    heatmap(fired, WORDS, units, titles=("", "units"), color=SKY),
    heatmap(fired @ W2, WORDS, FEATURES, titles=("", "output"), signed=True),
]
chart = alt.hconcat(*drawn).resolve_scale(fillOpacity="independent", fill="independent")
show(
    chart,
    alt="The first unit fires at likes only and writes 0.55 into edible. The second fires at cat only and writes 0.53 into living and minus 0.53 into edible.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert fired.gt(0).nonzero().tolist() == [[2, 1], [3, 0]]  # cat: pet; likes: meal

# %% [markdown]
# ## A network is a sum of units
#
# A matrix product hides what happens. Let $w_j$ be column $j$ of $W_1$ and $u_j$ row $j$ of $W_2$. The same formula then reads
#
# $$ \text{FFN}(x) = b_2 + \sum_{j=1}^{d_\text{ff}} \operatorname{ReLU}(x \cdot w_j + b_{1j})\; u_j $$ (eq-ffn-units)
#
# Unit $j$ compares $x$ with its pattern $w_j$ by a dot product. If $x$ fits well enough, the unit adds its vector $u_j$ to the output, and the better the fit, the more of it. In {numref}`fig-stamp`, "meal" computes at *likes* $2 + 0.76 + 0.29 - 2.5 = 0.55$ and writes that much "edible": this liking is about food. Without what attention fetched, the sum would be −0.5 and the unit would be silent. *Fish*, which may also be a verb, just misses the threshold. "Pet" finds *cat*, a noun that is alive and dark, adds to "living" and takes "edible" away.
#
# The network is a lookup like attention, with $w_j$ as keys and $u_j$ as values ({cite:t}`geva2021transformer`). Attention finds its keys and values in the sentence; here they are learned once and stay. There is no softmax, so units don't compete: ten may fire, or none.
#
# The module agrees with both readings to twelve decimals.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the comparison", "code_prompt_hide": "Hide the comparison"}
network = FeedForward(d_model=8, d_ff=32).double()
x = torch.randn(2, 5, 8, dtype=torch.float64)
A, a, C, c = network.parameters()
by_formula = torch.clamp(x @ A.T + a, min=0) @ C.T + c
by_unit = c + sum((x @ A[j] + a[j]).relu()[..., None] * C[:, j] for j in range(32))
output = network(x)
print(tuple(x.shape), "->", tuple(network.linear1(x).shape), "->", tuple(output.shape))
for reading, expected in (("formula", by_formula), ("sum of units", by_unit)):
    print(f"difference to the {reading}: {(output - expected).abs().max():.5f}")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(output, by_formula)
    torch.testing.assert_close(output, by_unit)
    assert (output - by_formula).abs().max() < 1e-12
    assert (output - by_unit).abs().max() < 1e-12

# %% [markdown]
# ## Each position by itself
#
# Attention mixes positions; the feed-forward network mixes the numbers within one. To test it, we take the gradient of each output with respect to each input. Where it isn't zero, the output moves with the input.


# %% tags=["hide-input"]
def which_move(layer, width=8):
    """Return a (6, 6) table: does output t depend on input s?"""
    x = torch.randn(1, 6, width, dtype=torch.float64)
    gradient = torch.autograd.functional.jacobian(layer, x)  # (1, 6, D, 1, 6, D)
    return gradient.abs().amax(dim=(0, 2, 3, 5)) > 1e-9


window = nn.Conv1d(8, 8, kernel_size=3, padding=1).double()
moves = {
    "attention": which_move(lambda x: layer(x, x, x), once.size(-1)),
    "convolution, kernel 3": which_move(
        lambda x: window(x.transpose(1, 2)).transpose(1, 2)
    ),
    "feed-forward": which_move(network),
}
print({name: int(moved.sum()) for name, moved in moves.items()}, "of 36 pairs")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-who-moves", "caption": "Which outputs move when one input changes? A filled cell with a 1 means that the output at this row depends on the input at this column. Attention reaches everywhere, a convolution with kernel 3 reaches the neighbors, the feed-forward network stays where it is."}}
at = [str(t) for t in range(6)]
drawn = [
    heatmap(moved.double(), at, at, titles=("output", name), cell=24, color=SKY)
    for name, moved in moves.items()
]
show(
    alt.hconcat(*drawn, spacing=24),
    alt="For attention all cells are filled; for the convolution the diagonal and its neighbors; for the feed-forward network the diagonal.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(moves["feed-forward"], torch.eye(6).bool())

# %% [markdown]
# ## Why wide, and then narrow again?
#
# Each unit asks one question, and with 512 inputs there are already $512 \cdot 511 / 2 = 130{,}816$ *pairs* of features to ask about. To see what width buys, we ask for the product of two of eight inputs, which no linear map can give. The patterns stay random; only $W_2$ is fitted, by least squares.

# %% tags=["hide-input"]
random = torch.Generator().manual_seed(0)
inputs = torch.randn(8000, 8, generator=random, dtype=torch.float64)
target = inputs[:, 0] * inputs[:, 1]
for d_ff in (8, 64, 512):
    inner = torch.randn(8, d_ff, generator=random, dtype=torch.float64)
    bias = torch.randn(d_ff, generator=random, dtype=torch.float64)
    hidden = (inputs @ inner + bias).relu()
    outer = torch.linalg.lstsq(hidden[:4000], target[:4000]).solution
    unexplained = (hidden[4000:] @ outer - target[4000:]).var() / target.var()
    print(f"d_ff {d_ff:3}  unexplained: {unexplained:.2f}")

# %% [markdown]
# *Unexplained* is the part of the product's variance that the network misses on fresh inputs: with eight random units nearly all of it, with 512 a twentieth. In a real network the patterns are learned as well. The output must return to the input's width, because it is added to the input ([chapter 9](09_layers.ipynb#let-each-part-add)).
#
# The paper varies $d_\text{ff}$ alone in two of the rows (C) of Table 3. Four times the model's width is a choice that worked; nothing in the formula demands it.
#
# | $d_\text{ff}$ | parameters | BLEU (newstest2013) |
# |---:|---:|:---:|
# | 1024 | 53 M | 25.4 |
# | 2048 (base) | 65 M | 25.8 |
# | 4096 | 90 M | 26.2 |
#
# ## Which units fire
#
# In an untrained network a sum is as often above zero as below, so half of the units fire. We ask [the captions model](05_multi_head_attention.ipynb#how-heads-differ) again, and read the sums in its top encoder layer for one caption.

# %% tags=["nbval-ignore-output", "hide-input"]
from annotated_transformer import load_pretrained

model, tokenizer = load_pretrained("captions-de-en")
model.eval()
seen = {}
linear1 = model.encoder.layers[-1].feed_forward.linear1
linear1.register_forward_hook(
    lambda _, x, out: seen.update(x=x[0].detach(), out=out.detach())
)
ids = [*tokenizer.encode("Ein brauner Hund läuft durch den Schnee."), EOS]
model.encode(torch.tensor([ids]))
untrained = nn.Linear(linear1.in_features, linear1.out_features)
fresh = untrained(seen["x"])  # the same input
firing = [(out > 0).float().mean().item() for out in (fresh, seen["out"])]
print(f"units that fire: untrained {firing[0]:.0%}, trained {firing[1]:.1%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 0.45 < firing[0] < 0.55 and 0.012 < firing[1] < 0.02

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-firing", "caption": "Which units fire at which token? The top encoder layer of the trained model, and an untrained layer on the same input; the first 128 of 512 units. A dot is a unit that fires, its area says how strongly. Untrained, half of the places have a dot; trained, 16 places do."}}
names = [f"{t} {tokenizer.decode([i]).strip() or '</s>'}" for t, i in enumerate(ids)]
records = [
    {
        "unit": j,
        "token": names[t],
        "output": round(out[0, t, j].item(), 2),
        "layer": name,
    }
    for name, out in (("untrained", fresh), ("trained", seen["out"]))
    for t, j in (out[0, :, :128] > 0).nonzero().tolist()
]
chart = alt.Chart(alt.Data(values=records), width=370, height=170).mark_circle(
    opacity=1
)
size = alt.Size("output:Q", legend=None, scale=alt.Scale(range=[4, 60]))
y = alt.Y("token:N", title=None, scale=alt.Scale(domain=names))
panels = alt.Row("layer:N", title=None, sort=["untrained", "trained"])
show(
    chart.encode(x="unit:Q", y=y, size=size, row=panels),
    alt="About half of the untrained units fire at every token. Of the trained ones only a few dots are left in the whole picture.",
)

# %% [markdown]
# About one unit in sixty is left, although the loss doesn't count firing units. {cite:t}`li2023lazy` find the same elsewhere: 3.0% fire in T5-Base and 6.3% in a vision Transformer.
#
# A unit that is mostly silent may have a subject that we can name. We let the model read single words of its vocabulary. For each we take the unit that it excites most, compared with that unit's mean, and list the words that excite the same unit most.

# %% tags=["nbval-ignore-output", "hide-input"]
whole = {}  # the words of the vocabulary
for i in range(4, len(tokenizer)):
    spelled = tokenizer.decode([i])  # " Ball" begins a word
    if spelled[0] == " " and spelled[1:].isalpha() and len(spelled) > 3:
        whole[spelled[1:]] = i
with torch.no_grad():
    model.encode(torch.tensor([[i, EOS] for i in whole.values()]))
outputs = seen["out"][:, 0].relu()  # (words, units)


def same_unit(word):
    unit = (outputs[list(whole).index(word)] / (outputs.mean(dim=0) + 0.02)).argmax()
    return {
        list(whole)[i]: round(outputs[i, unit].item(), 2)
        for i in outputs[:, unit].topk(8)[1]
    }


snow = same_unit("Schnee")
print("the unit of Schnee (snow):", ", ".join(snow))

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        all("chne" in word for word in [*snow][:4]) and max([*snow.values()][4:]) < 0.1
    )


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-units", "caption": "What does a unit look for? Choose a German word: snow, walks, ball, red or brown. The bars are the words that excite its unit most, in the top encoder layer of the trained model. The unit of *Schnee* (snow) answers to four subwords of its family and to hardly anything else."}}
def bars(word):
    found = same_unit(word)
    data = alt.Data(values=[{"word": w, "output": v} for w, v in found.items()])
    x, y = (
        alt.X("output:Q", title="output of the unit"),
        alt.Y("word:N", sort=None, title=None),
    )
    chart = alt.Chart(data, width=300).mark_bar().encode(x, y)
    return chart, f"The unit of {word} fires at {', '.join(found)}."


asked = [w for w in ("Schnee", "geht", "Ball", "roten", "braun") if w in whole]
show_steps({word: bars(word) for word in asked}, "The unit of which word?")

# %% [markdown]
# Not every unit has a subject that we can name, and the lists change from one training run to the next. But the formula's picture holds: a stored pattern, and something to write where it is found.
#
# ## Its share of the model
#
# One network of the base model has $2 \cdot 512 \cdot 2048$ weights and $2048 + 512$ biases, 2,099,712 in all. The attention beside it has $4 \cdot 512^2 = 1{,}048{,}576$. So two thirds of an encoder layer's parameters sit here. In the whole model the 12 networks hold 25.2 M of 63 M parameters, or 40%. (The paper says 65 M; [chapter 10](10_transformer.ipynb#counting-parameters) counts.) Attention gave the paper its title, but the largest share of the model is feed-forward.
#
# The work is divided in the same way, since a position uses each weight once: two thirds of a layer's multiplications, as long as sentences are short.

# %% [markdown]
# ## What to remember
#
# - Attention moves information between positions; the feed-forward network works on it within one.
# - A unit compares $x$ with a pattern and, above a threshold, adds a vector to the output. The network is the sum of 2048 such units.
# - The same weights serve every position of a layer, and without the ReLU the two maps would collapse into one.
# - It holds two thirds of an encoder layer's parameters and takes, for sentences, two thirds of its multiplications.
#
# The vectors that all this works on were made up. Real ones are learned, in one table with three uses.

# %% [markdown]
# ## Exercises
#
# **1. Write it yourself** (★, 10 min). Without looking back at our class, write `feed_forward(x, W1, b1, W2, b2)` with matrices as in {eq}`eq-ffn`, without `nn` and `F`, and hand it to the [checker](E_checker.ipynb#the-parts-it-knows).

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
from annotated_transformer import check


def feed_forward(x, W1, b1, W2, b2):
    hidden = x @ W1 + b1
    return torch.where(hidden > 0, hidden, 0) @ W2 + b2


print(check("feed_forward", feed_forward))

# %% [markdown]
# **2. Exactly one** (★, 10 min). Let $a$ and $b$ be 0 or 1. Find two units that compute "exactly one of the two".

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# a + b is right except for (1, 1), where the unit for "both" takes 2 away: ReLU(a + b) - 2 ReLU(a + b - 1).
one, two = torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0], [-2.0]])
cases = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
exactly_one = (cases @ one + torch.tensor([0.0, -1.0])).relu() @ two
print(exactly_one[:, 0].tolist())

# %% tags=["remove-cell"]
if CHECKING:
    assert exactly_one[:, 0].tolist() == [0, 1, 1, 0]

# %% [markdown]
# **3. Without the ReLU** (★★, 15 min). Find one matrix and one vector that do the same as both layers. How many numbers do they have for $d_\text{model} = 512$, and how many had the two layers?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# (x W1 + b1) W2 + b2 = x (W1 W2) + (b1 W2 + b2): 262,656 numbers would do the work of 2,099,712.
x = torch.randn(2, 5, 8, dtype=torch.float64)
both = network.linear2(network.linear1(x))
one = x @ (A.T @ C.T) + (a @ C.T + c)
print(f"off by {(both - one).abs().max():.5f}, with {512 * 512 + 512:,} numbers")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(both, one)

# %% [markdown]
# **4. One large network** (★★, 20 min). Somebody flattens a sentence of $T$ positions into one vector of $T \cdot D$ numbers and feeds it to one large network. Name three things that break, and check one with `which_move`.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Positions mix, so a decoder sees the future. Only one length fits. The weights grow with the square of T.
large = FeedForward(6 * 8, 4 * 6 * 8).double()
mixed = which_move(lambda x: large(x.flatten(1)).unflatten(1, (6, 8)))
print(
    "pairs that move:",
    int(mixed.sum()),
    "of 36, above the diagonal:",
    int(mixed.triu(1).sum()),
)

# %% tags=["remove-cell"]
if CHECKING:
    assert mixed.all()

# %% [markdown]
# **5. Silence a subject** (★★★, an evening, open). Set the row of $W_2$ that belongs to the unit of *Schnee* (a column of `linear2.weight`) to zero and let the model translate captions with and without snow. Does one unit matter? How many units do you have to silence before the word gets lost?

# %% [markdown]
# ## Second reading: dead units, other activations, the work
#
# ### Units that never fire
#
# :::{admonition} Which gradient a unit gets, and one that gets none
# :class: dropdown
# The gradient of ReLU is 1 where a unit fires and 0 elsewhere. With $g$ for the gradient that arrives at the output of a position, the gradient of the pattern is
#
# $$ \frac{\partial L}{\partial w_j} = \sum_{\text{positions where } j \text{ fires}} (g \cdot u_j)\; x. $$ (eq-ffn-gradient)
#
# A unit learns only from positions where it fires already. One that is silent for *every* input gets no gradient and stays as it is: a **dead unit**. The cell below pushes the first threshold far out, and the gradient of its unit is 0.
#
# A few steps that are too large can push a threshold that far. It is one of four reasons to start training with small steps; [chapter 16](16_schedule.ipynb#why-does-a-transformer-need-a-warm-up) weighs them against each other.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show a dead unit", "code_prompt_hide": "Hide a dead unit"}
dying = FeedForward(d_model=8, d_ff=4).double()
with torch.no_grad():
    dying.linear1.bias[0] = -100.0  # no input of usual size gets over this threshold
vectors = torch.randn(1000, 8, dtype=torch.float64)
dying(vectors).sum().backward()  # every gradient g is a row of ones
fires = (dying.linear1(vectors) > 0).double()
g_times_u = dying.linear2.weight.sum(dim=0)
sizes = dying.linear1.weight.grad.norm(dim=1)
print("size of each unit's gradient:", [round(size) for size in sizes.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(
        dying.linear1.weight.grad, g_times_u[:, None] * (fires.T @ vectors)
    )

# %% [markdown]
# ### ReLU, and SwiGLU today
#
# :::{admonition} What newer models have in this place
# :class: dropdown
# Any nonlinear *activation function* would do for the argument of this chapter, and BERT and GPT took a ReLU rounded off at zero (GELU). Most newer language models, PaLM and Llama among them, change more than that. **SwiGLU** ({cite:t}`shazeer2020glu`) gives every unit two patterns: one, passed through the smooth ReLU called SiLU, is a gate, and the other's sum is multiplied by it.
#
# Three matrices instead of two would cost half as much again, so the width is cut to two thirds: $\tfrac23 \cdot 2048 \approx 1365$, and the count, 2,096,640, is nearly the same as with two. In Shazeer's experiments the gated forms beat ReLU and GELU at equal size. Shazeer offers no explanation; "divine benevolence" is the cause he names.
# :::


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show SwiGLU in code", "code_prompt_hide": "Hide SwiGLU in code"}
def swiglu(x, W_gate, W_in, W_out):
    return (F.silu(x @ W_gate) * (x @ W_in)) @ W_out


weights = [torch.randn(512, 1365), torch.randn(512, 1365), torch.randn(1365, 512)]
output = swiglu(torch.randn(2, 5, 512), *weights)
print(tuple(output.shape), sum(w.numel() for w in weights))

# %% [markdown]
# :::{admonition} Why does the paper speak of convolutions?
# :class: dropdown
#
# Section 3.3 remarks that the network equals two convolutions with kernel size 1. A window of one position mixes nothing, so what remains is one linear map applied everywhere. The next cell loads our weights into two `nn.Conv1d` and gets the same output. (They want the axes as (B, D, T), hence the transposes.)
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the convolutions", "code_prompt_hide": "Hide the convolutions"}
first, second = nn.Conv1d(8, 32, 1).double(), nn.Conv1d(32, 8, 1).double()
first.load_state_dict({"weight": A[:, :, None], "bias": a})
second.load_state_dict({"weight": C[:, :, None], "bias": c})
convolved = second(first(x.transpose(1, 2)).relu()).transpose(1, 2)
print(f"largest difference: {(network(x) - convolved).abs().max():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(network(x), convolved)

# %% [markdown]
# :::{admonition} Which part of an encoder layer does the work?
# :class: dropdown
# The share of multiplications depends on the length of the sentence: what attention computes for each *pair* of positions grows with it, and everything else doesn't. Up to about a hundred tokens two thirds are feed-forward; at 2,048 tokens it is overtaken.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the count", "code_prompt_hide": "Hide the count"}
from torch.utils.flop_counter import FlopCounterMode

count = sum(p.numel() for p in FeedForward(512, 2048).parameters())
with FlopCounterMode(display=False) as counter:
    FeedForward(512, 2048)(torch.zeros(1, 25, 512))
print(f"{count:,} parameters, {count / (count + 4 * 512**2):.0%} of an encoder layer")
print(f"{counter.get_total_flops() // 2 // 25:,} multiplications per position")

# %% tags=["remove-cell"]
if CHECKING:
    assert count == 2_099_712 and counter.get_total_flops() == 2 * 25 * 2 * 512 * 2048


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the drawing", "code_prompt_hide": "Hide the drawing", "figure": {"name": "fig-layer-work", "caption": "Which part of an encoder layer does the work? Share of the multiplications in the base model, by length of the sentence. Up to about a hundred tokens two thirds are feed-forward (solid), and scores and blending (dotted), which grow with the length, take next to nothing. At $n = 2048$ these two are equal."}}
def shares(n, d=512, d_ff=2048):
    cost = {
        "feed-forward": 2 * d * d_ff,
        "projections": 4 * d * d,
        "scores and blending": 2 * n * d,
    }
    return [
        {"n": n, "part": p, "share": round(c / sum(cost.values()), 3)}
        for p, c in cost.items()
    ]


records = [record for power in range(3, 15) for record in shares(2**power)]
looks = {"feed-forward": (SKY, [1, 0]), "projections": (AMBER, [6, 3])}
looks["scores and blending"] = (PLUM, [2, 2])
n = alt.X(
    "n:Q", title="length n", scale=alt.Scale(type="log", base=2, domain=[8, 16384])
)
chart = curves(records, n, alt.Y("share:Q", axis=alt.Axis(format="%")), "part", looks)
show(
    chart,
    alt="Up to 128 tokens the feed-forward network does about two thirds of the work. Beyond 2048, scores and blending have the largest share.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        shares(128)[0]["share"] > 0.63
        and shares(2048)[0]["share"] == shares(2048)[2]["share"]
    )

# %% [markdown]
# ## Sources
#
# Equation 2 and the remark on convolutions are from section 3.3 of {cite:t}`vaswani2017attention`, the rows from its Table 3. Units as keys and values: {cite:t}`geva2021transformer`; their silence: {cite:t}`li2023lazy`; gates: {cite:t}`shazeer2020glu`.
