# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Schedule
#
# This chapter sets the learning rate of each training step: it rises in a straight line, then falls as one over the square root of the step (section 5.3 of the paper).
#
# A learning rate is a single number, and the obvious thing is to choose it once and leave it alone. So we try that first, on a small model, at three rates. One of the runs fails in an instructive way, and the rest of the chapter finds out why.
#
# ## What a constant rate does
#
# Our model is small enough to train in seconds: three layers of width 64, on sentences from [the grammar](13_data.ipynb#a-pair-and-its-alignment). It sees 300 batches and no sentence twice.

# %% tags=["hide-input"]
import math
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import altair as alt
import torch
import torch.nn.functional as F

from annotated_transformer.batching import batches, encode_pairs
from annotated_transformer.synchronous_grammar import grammar
from book.figures import AMBER, INK, PLUM, SKY, curves, show, show_steps
from annotated_transformer.masks import PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig


def narrow(chart):
    """Make a chart fit for a phone, with its legend on top."""
    for channel in (chart.encoding.color, chart.encoding.strokeDash):
        channel.legend = alt.Legend(orient="top", title=None)
    return chart.properties(width=290)


# %%
pairs = grammar(14_000, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=600)
encoded = encode_pairs(tokenizer, pairs)
stream = list(islice(batches(encoded, 384, seed=0, epoch=0), 300))
sizes = {"layers": 3, "d_model": 64, "d_ff": 256, "heads": 4}
shape = TransformerConfig(len(tokenizer), **sizes, dropout=0.0)
print(len(stream), "batches,", len(tokenizer), "entries in the vocabulary")

# %% [markdown]
# The training loop is short. The argument that matters here, `rate_of`, is a function that gives the rate of each step.


# %%
def loss_of(model, source, target):
    logits = model(source, target[:, :-1]).flatten(0, 1)
    labels = target[:, 1:].flatten()
    return F.cross_entropy(logits, labels, ignore_index=PAD)


def run(rate_of, **changes):
    torch.manual_seed(0)
    model = Transformer(replace(shape, **changes))
    losses = []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step, (source, target) in enumerate(stream, start=1):
        adam.param_groups[0]["lr"] = rate_of(step)
        loss = loss_of(model, source, target)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses, model


# %% [markdown]
# PyTorch's optimizers keep their settings in `param_groups`, and you may change the rate there before every step. That is all a schedule does. All runs start from the same weights and see the same batches; they differ in the rate alone. We try three, from cautious to bold.

# %% tags=["nbval-ignore-output"]
rates = 0.0001, 0.001, 0.0088
runs = {f"always {rate}": run(lambda step: rate) for rate in rates}
last = {name: sum(losses[-20:]) / 20 for name, (losses, _) in runs.items()}
print({name: round(loss, 2) for name, loss in last.items()})

# %% tags=["remove-cell"]
if CHECKING:
    assert min(last["always 0.0001"], last["always 0.0088"]) > 3.5
    assert last["always 0.001"] < 2.5

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-constant-rates", "caption": "What does a constant rate do? Loss of the same model on the same batches, means of ten steps, at 0.0001 (dotted), 0.001 (solid) and 0.0088 (dashed)."}}
kinds = [(PLUM, [2, 2]), (SKY, [1, 0]), (AMBER, [6, 3]), (INK, [1, 0])]
looks = dict(zip(runs, cycle(kinds)))


def loss_chart(looks):
    records = [
        {
            "step": n + 10,
            "loss": round(sum(runs[name][0][n : n + 10]) / 10, 3),
            "rate": name,
        }
        for name in looks
        for n in range(0, len(stream) - 9, 10)
    ]
    y = alt.Y("loss:Q", title="loss, nats per token", scale=alt.Scale(domain=[0, 7]))
    return narrow(curves(records, alt.X("step:Q", title="step"), y, "rate", looks))


show(
    loss_chart(looks),
    alt="The loss falls slowly at rate 0.0001 and steadily to 1.9 at 0.001. At 0.0088 it drops within twenty steps and then stays at about 4.7.",
)

# %% [markdown]
# The cautious run is merely slow. The bold one is the interesting failure: its loss drops within twenty steps and then stays where it is. Nothing exploded, no number is infinite, and still it never recovers.
#
# A fresh model starts near 7, and the middle run ends below 2. What can a model know whose loss is stuck near 4.7? Make a guess before you read on.
#
# ## The height of a loss that is stuck
#
# The height of a plateau often tells you what a model knows. Suppose it knew nothing but how frequent each token is, and gave token $v$ its share $p_v$ of the text at every position. Its loss would be $-\sum_v p_v \log p_v$, the entropy of the text's tokens.

# %%
labels = torch.cat([target[:, 1:].flatten() for _, target in stream])
share = labels[labels != PAD].bincount() / (labels != PAD).sum()
print(f"knowing only how frequent each token is: {torch.special.entr(share).sum():.2f}")

# %% [markdown]
# That is where the bold run ended. Does it look at the source at all? We give each target the source of its neighbor in the batch. A model that reads its source should notice.

# %% tags=["nbval-ignore-output"]
source, target = stream[-1]
good = min(last, key=last.get)
bold = f"always {max(rates)}"
for name in (good, bold):
    _, trained = runs[name]
    with torch.no_grad():
        right = loss_of(trained, source, target)
        wrong = loss_of(trained, source.roll(1, dims=0), target)
    print(f"{name:13}  own source {right:.4f}, a neighbor's {wrong:.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(right - wrong) < 0.01

# %% [markdown]
# For the bold model, four decimals show no difference. The good one notices, though only a little: it has learned first how English sentences go, and has barely begun to translate. Two more numbers show what has broken inside: how much the encoder's output differs from position to position (as a standard deviation), and the typical gradient in the encoder.


# %% tags=["hide-input", "nbval-ignore-output"]
def encoder_state(model):
    model.zero_grad()
    loss_of(model, *stream[0]).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.encoder.parameters()])
    memory = model.encode(stream[0][0]).detach().flatten(0, 1)
    return memory.std(0).mean().item(), gradients.square().mean().sqrt().item()


torch.manual_seed(0)
fresh = encoder_state(Transformer(shape))
stuck = encoder_state(runs[bold][1])
for name, (spread, gradient) in {"fresh": fresh, bold: stuck}.items():
    print(f"{name:13}  spread over positions {spread:.4f}, gradient {gradient:.7f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert stuck[0] < fresh[0] / 10 and stuck[1] < fresh[1] / 10

# %% [markdown]
# The encoder now hands over practically the same vector at every position, whatever word is there. Then it doesn't matter where cross-attention looks, because any weights mix the same vector. Nothing tells its queries and keys where to look instead, and hardly any gradient reaches the encoder. The one path by which the source could help is closed, and the loss settles on the frequencies.
#
# Keep the number 0.0088 in mind. To see how it does this damage, we need to know what the optimizer does with a rate.
#
# ## What Adam does with the rate
#
# Plain gradient descent moves each weight by the rate times its gradient. That presumes gradients of similar size everywhere, and a Transformer doesn't have them. In a fresh model, the tensors with the smallest and the largest typical gradient (root mean square):

# %% tags=["nbval-ignore-output", "hide-input"]
torch.manual_seed(0)
model = Transformer(shape)
loss_of(model, *stream[0]).backward()
sizes = {}
for name, parameter in model.named_parameters():
    sizes[name] = parameter.grad.square().mean().sqrt().item()
for name in (min(sizes, key=sizes.get), max(sizes, key=sizes.get)):
    print(f"{sizes[name]:.5f}  {name}")

# %% tags=["remove-cell"]
if CHECKING:
    assert max(sizes.values()) > 50 * min(sizes.values())

# %% [markdown]
# A rate that suits the one is far too small or far too large for the other. What we want to know about a gradient isn't its size but how it compares with what is usual *for this weight*.
#
# **Adam** {cite:p}`kingma2015adam` therefore keeps two running averages for each weight $\theta$: $m$ of its gradient $g$, which says where it has been pointing lately, and $v$ of $g^2$, which says how large it usually is, whatever its sign. Then it divides the one by the root of the other:
#
# $$
# \begin{aligned}
# m_n &= \beta_1 m_{n-1} + (1 - \beta_1)\, g_n \\
# v_n &= \beta_2 v_{n-1} + (1 - \beta_2)\, g_n^2 \\
# \hat m_n &= m_n / (1 - \beta_1^n) \\
# \hat v_n &= v_n / (1 - \beta_2^n) \\
# \theta_n &= \theta_{n-1} - \text{rate}_n\, \frac{\hat m_n}{\sqrt{\hat v_n} + \epsilon}
# \end{aligned}
# $$ (eq-adam)
#
# The paper takes $\beta_1 = 0.9$, $\beta_2 = 0.98$ and $\epsilon = 10^{-9}$. A gradient that came $k$ steps ago still counts $\beta^k$ of what it counted at first: with 0.9 that is half after seven steps, with 0.98 after 34.
#
# The third and the fourth line are the **bias correction**. Both averages start at zero, so at first they are mostly an average of nothing. After gradients of 2 and 2, $m$ is $0.9 \cdot 0.2 + 0.1 \cdot 2 = 0.38$, where the average is plainly 2. The zero at the start still has the weight $\beta^n$, so what has been seen carries $1 - \beta^n$, and dividing by it corrects the estimate: $0.38 / (1 - 0.81) = 2$. In code, each weight for itself:


# %%
def adam_step(theta, g, m, v, n, rate, betas=(0.9, 0.98), eps=1e-9):
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    m_hat = m / (1 - betas[0] ** n)
    v_hat = v / (1 - betas[1] ** n)
    return theta - rate * m_hat / (v_hat.sqrt() + eps), m, v


# %% [markdown]
# Fifty steps down $\theta^4$, beside PyTorch's optimizer, at a rate that keeps changing:

# %% tags=["hide-input"]
weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
ours = weight.detach().clone()
m = v = torch.zeros(2).double()
adam = torch.optim.Adam([weight], betas=(0.9, 0.98), eps=1e-9)
for n in range(1, 51):
    rate = 0.05 / n
    adam.param_groups[0]["lr"] = rate
    adam.zero_grad()
    (weight**4).sum().backward()
    adam.step()
    ours, m, v = adam_step(ours, 4 * ours**3, m, v, n, rate)
print("after fifty steps, by hand:", [round(w, 4) for w in ours.tolist()])
print("torch.optim.Adam:          ", [round(w, 4) for w in weight.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ours, weight.detach())

# %% [markdown]
# ## A step as long as the rate
#
# The quotient of the two averages has no unit. Multiply every gradient by a thousand, and it stays the same. If a gradient is the same in each step, the quotient is 1. If its sign flips at random, $m$ cancels and the quotient is small. So Adam goes far where the batches agree and stays put where they contradict each other.
#
# The rate, then, is a length: how far a weight moves in one step if the batches agree. A rate of 0.001 takes a weight from 0.050 to 0.051, whatever the loss is multiplied by and whichever layer it is in. (A step can be a little longer than the rate; [how much](#can-a-step-be-longer-than-the-rate) is worked out below.)
#
# ## Why are the first steps the worst?
#
# After a single gradient, $\hat m = g$ and $\sqrt{\hat v} = |g|$. The quotient is 1 or −1 for *every* weight, however small its gradient, unless it is so close to zero that $\epsilon$ counts. A fresh `model`, made in the fold above, takes its first step, at a rate of 0.01:

# %% tags=["nbval-ignore-output"]
before = [p.detach().clone() for p in model.parameters()]
torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9).step()
steps = [(p - old).abs().flatten() for p, old in zip(model.parameters(), before)]
moved = torch.cat(steps)
share = ((moved - 0.01).abs() < 1e-4).float().mean().item()
print(f"{share:.1%} of {moved.numel():,} weights moved by 0.0100")

# %% tags=["remove-cell"]
if CHECKING:
    assert share > 0.95

# %% [markdown]
# How much worse is that than a later step? Suppose there is nothing to learn: each gradient is random, with mean zero, and a good optimizer would stay where it is. We run Adam on 20,000 such weights and look at the typical length of a step in units of the rate.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-noise-steps", "caption": "How far does Adam go when there is nothing to learn? Typical length of a step on random gradients, in units of the rate, with the paper's average of the gradient (solid) and with none (dashed)."}}
def typical_steps(betas, steps=100, weights=20_000):
    random = torch.Generator().manual_seed(0)
    lengths = []
    m = v = torch.zeros(weights, dtype=torch.float64)
    for n in range(1, steps + 1):
        g = torch.randn(weights, generator=random, dtype=torch.float64)
        moved, m, v = adam_step(torch.zeros(weights), g, m, v, n, rate=1.0, betas=betas)
        lengths.append(moved.square().mean().sqrt().item())
    return lengths


lengths = typical_steps((0.9, 0.98))
print({f"step {n}": round(lengths[n - 1], 2) for n in (1, 2, 5, 20, 100)})
looks = {"averaged, memory 0.9": (SKY, [1, 0]), "not averaged": (AMBER, [5, 3])}
records = [
    {"step": step, "length": round(length, 3), "memory": name}
    for name, betas in zip(looks, [(0.9, 0.98), (0.0, 0.98)])
    for step, length in enumerate(typical_steps(betas), start=1)
]
y = alt.Y("length:Q", title="step ÷ rate", scale=alt.Scale(domain=[0, 1.2]))
show(
    narrow(curves(records, alt.X("step:Q", title="step"), y, "memory", looks)),
    alt="With the paper's average the typical step falls from 1 to about a quarter within twenty steps; with none it stays near 1.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(lengths[0] - 1) < 1e-6 and lengths[-1] < 0.26

# %% [markdown]
# In the first step, noise moves each weight as far as the clearest signal would. After 20 steps most of it cancels, but never all: an average with that memory still spreads by about $\sqrt{(1 - \beta_1)/(1 + \beta_1)} = 0.23$.
#
# The divisor is a guess at first, too: after one step, the only gradient seen so far counts as the usual one. If it happened to be a tenth of the usual size or less, the step is at least ten times too long; with normally distributed gradients that happens to 8% of the weights.
#
# And the gradients themselves say least at the start. A fresh model has a loss of nearly 7, and knowing the frequencies alone would bring it down to 4.64. So the first gradients mostly say one thing, and the same at every position: make the frequent tokens more probable. This fits what we found in the bold run. It took its longest steps while the gradients said little else, and in the end its encoder gave the same vector at every position.

# %% [markdown]
# ## Up and down
#
# The remedy is the **warm-up**: tiny steps while the model is new, then longer ones. The paper gives update number $n$, counted from 1, the rate
#
# $$
# \text{rate}(n) = d_\text{model}^{-0.5} \cdot \min\left(n^{-0.5},\; n \cdot \text{warmup}^{-1.5}\right)
# $$ (eq-schedule)
#
# The second term climbs with $n$ and is the smaller one at first. At $n = \text{warmup}$, 4,000 in the paper, the two are equal, and from there on the first term counts. The minimum is only a switch: climb, then fall, without an `if`. In code there is a factor of our own, `lr_scale`, which is 1 in the paper.
#
# **Exercise 7. Write it first** (★, 5 min). Write `learning_rate(step, d_model, warmup)` from the formula and hand it to the [checker](E_checker.ipynb#the-parts-it-knows): `check("learning_rate", yours)`.


# %% tags=["export"]
def learning_rate(step: int, d_model: int, warmup: int, lr_scale: float = 1.0) -> float:
    """Return the learning rate of a step, counted from 1 (equation 3, times lr_scale)."""
    rise = step * warmup**-1.5
    fall = step**-0.5
    return float(lr_scale * d_model**-0.5 * min(rise, fall))


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-schedule", "caption": "Where is the peak, and how high? The rate of each step for the paper's base model (solid) and for another one (dashed). The peak is always at the end of the warm-up. A longer warm-up lowers it; a wider model lowers the whole curve. Once both curves are past their peaks, only the width matters."}}
def schedule_chart(d, w, name):
    looks = {"base": (SKY, [1, 0]), name: (AMBER, [5, 3])}
    steps = [1, *range(200, 30_001, 200)]
    records = [
        {"step": n, "rate": round(learning_rate(n, *shape), 6), "model": label}
        for label, shape in {"base": (512, 4000), name: (d, w)}.items()
        for n in steps
    ]
    x = alt.X("step:Q", axis=alt.Axis(values=[0, 10_000, 20_000, 30_000]))
    axis, scale = alt.Axis(format=".4f"), alt.Scale(domain=[0, 0.001])
    y = alt.Y("rate:Q", title="learning rate", axis=axis, scale=scale)
    chart = narrow(curves(records, x, y, "model", looks))
    tops = {"base": 1 / math.sqrt(512 * 4000), name: 1 / math.sqrt(d * w)}
    said = ", ".join(f"{label} {top:.5f}" for label, top in tops.items())
    return chart, f"Both rise in a straight line and fall like a root. Peaks: {said}."


show_steps(
    {
        "the big model": schedule_chart(1024, 4000, "width 1,024"),
        "half the width": schedule_chart(256, 4000, "width 256"),
        "twice the warm-up": schedule_chart(512, 8000, "warm-up 8,000"),
        "half the warm-up": schedule_chart(512, 2000, "warm-up 2,000"),
    },
    "Beside base:",
    start=2,
)

# %% [markdown]
# The base model's first rate is 0.00000017. Its first hundred rates add up to $0.00000017 \cdot (1 + 2 + \dots + 100) = 0.0009$, so for a hundred batches no weight moves by much more than that. Four thousand batches of 100,000 are a fair price. After the peak the steps get shorter, because close to a minimum long ones only jump about.
#
# ### The peak
#
# It comes at $n = \text{warmup}$, where the rate is
#
# $$ \text{peak} = \frac{1}{\sqrt{d_\text{model} \cdot \text{warmup}}} $$ (eq-peak)
#
# For the base model that is $1/\sqrt{512 \cdot 4000} = 0.0007$. Note the side effect: a warm-up four times as long halves the peak, so comparing warm-ups with this formula also compares peaks. Written with the peak, the schedule is easier to picture: $\text{peak} \cdot n / \text{warmup}$ on the way up, $\text{peak} \cdot \sqrt{\text{warmup} / n}$ on the way down.
#
# The decay is slow: to halve, the rate takes four times the steps. At step 16,000 it is half its peak, and at the paper's last step, 100,000, still a fifth.

# %% tags=["remove-cell"]
if CHECKING:
    top = 1 / math.sqrt(512 * 4000)
    for n in range(1, 20_001):
        expected = top * (n / 4000 if n <= 4000 else math.sqrt(4000 / n))
        assert math.isclose(learning_rate(n, 512, 4000), expected)
    assert math.isclose(learning_rate(16_000, 512, 4000), top / 2)
    assert math.isclose(learning_rate(100_000, 512, 4000), top / 5)
    assert max(range(1, 20_001), key=lambda n: learning_rate(n, 512, 4000)) == 4000

# %% [markdown]
# ## The same rate, reached slowly
#
# Back to our model of width 64. With a warm-up of 200 steps the peak is $1/\sqrt{64 \cdot 200} = 0.0088$, the rate of the bold run. With a warm-up of 20 it is 0.028. We train both.

# %% tags=["nbval-ignore-output"]
warmups = 20, 200
for warmup in warmups:
    name = f"warm-up {warmup}"
    runs[name] = run(lambda step: learning_rate(step, 64, warmup))
    last[name] = sum(runs[name][0][-20:]) / 20
    print(f"{name}: {last[name]:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert math.isclose(learning_rate(200, 64, 200), 0.0088, rel_tol=0.01)
    assert (
        last["warm-up 20"] > 3.5
        and abs(last["warm-up 200"] - last["always 0.001"]) < 0.3
    )

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-warm-up-runs", "caption": "What does the warm-up save? Above: three schedules for our small model. Below: its loss under each. The dashed and the solid run reach the same rate, 0.0088; the one that starts there stays near 4.7, the one that climbs there learns. A warm-up of 20 steps (dotted) climbs to three times that rate and ends exactly like the bold run."}}
drawn = {bold: lambda n: max(rates)}
for warmup in warmups:
    drawn[f"warm-up {warmup}"] = partial(learning_rate, d_model=64, warmup=warmup)
kinds = [(AMBER, [6, 3]), (PLUM, [2, 2]), (SKY, [1, 0]), (INK, [1, 0])]
looks = dict(zip(drawn, cycle(kinds)))
records = [
    {"step": n, "value": round(rate_of(n), 5), "rate": name}
    for name, rate_of in drawn.items()
    for n in [1, *range(5, len(stream) + 1, 5)]
]
above = curves(
    records,
    alt.X("step:Q", title=None),
    alt.Y("value:Q", title="learning rate"),
    "rate",
    looks,
)
show(
    narrow(above).properties(height=120) & loss_chart(looks).properties(height=200),
    alt="With a warm-up of 200 steps the loss falls to about 2. Without one, or with 20 steps, it stays near 4.7.",
)

# %% [markdown]
# The run with the long warm-up (solid) may take long steps in the middle, because it didn't take them at the start. It ends level with the best of our constants, although it spent two thirds of its steps on the way up.
#
# ## Why does a Transformer need a warm-up?
#
# You'll meet four answers, which seem to compete:
#
# 1. Adam's first steps have full length whatever the gradient, and poor aim (this chapter).
# 2. Its estimate of the usual size varies too much until enough batches have come by {cite:p}`liu2020variance`.
# 3. In post-norm the gradients near the output are large at the start, as {cite:t}`xiong2020layer` show ([chapter 9](09_layers.ipynb#why-the-place-of-the-norm-matters) measures them).
# 4. A step that is too long can switch off [ReLU units](06_feed_forward.ipynb#units-that-never-fire) for good.
#
# The third is the odd one: under Adam the size of the gradient cancels, so large gradients as such do no harm. What post-norm changes is how strongly the *output* reacts once the weights have moved. We give fresh models of both forms the same first step, at a rate of 0.001, and measure how far the encoder's output moves.


# %% tags=["hide-input", "nbval-ignore-output"]
def reaction(layers, pre_norm):
    torch.manual_seed(0)
    model = Transformer(replace(shape, layers=layers, pre_norm=pre_norm))
    adam = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98), eps=1e-9)
    before = model.encode(stream[1].source).detach()
    loss_of(model, *stream[0]).backward()
    adam.step()
    change = model.encode(stream[1].source) - before
    real = stream[1].source != PAD
    return (change[real].norm() / before[real].norm()).item()


reactions = {}
for layers in (1, 3, 6):
    post = reaction(layers, pre_norm=False)
    pre = reaction(layers, pre_norm=True)
    reactions[layers] = post, pre
    print(f"depth {layers}: the output moves by {post:.0%} in post-norm,", end=" ")
    print(f"{pre:.0%} in pre-norm")

# %% tags=["remove-cell"]
if CHECKING:
    assert all(post > 1.15 * pre for post, pre in reactions.values())

# %% [markdown]
# {cite:t}`liu2020understanding` describe this amplification, and conclude as well that the size of the gradients isn't the root of the trouble. The four answers may be links of one chain. Adam makes the first steps long and badly aimed, post-norm turns them into a large change of the output, and the damage, whether dead units or an encoder whose positions are all alike, leaves little gradient to repair it.
#
# If the chain is right, the bold rate should do less harm without post-norm. We repeat the bold run with the norm moved in front of the sub-layers:

# %% tags=["nbval-ignore-output"]
losses, _ = run(lambda step: max(rates), pre_norm=True)
pre_norm = sum(losses[-20:]) / 20
print(f"{bold}, pre-norm: {pre_norm:.2f}; post-norm: {last[bold]:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert pre_norm < min(last.values())

# %% [markdown]
# It learns, and ends lower than any other run on this page. (That is one run from one start; [chapter 22](22_variations.ipynb#norm-and-depth) has stacks of two, six and twelve layers.) So how much warm-up you need depends on the design. (Most language models of today are pre-norm, and still warm up.)
#
# ## What to remember
#
# - Adam divides an average of the gradient by its usual size. The quotient is 1 for a steady gradient and small for noise, so the rate is the length of a step.
# - Its first step moves nearly every weight by the full rate, although only one batch has been seen. Post-norm amplifies that. Warm-up avoids it.
# - The rate climbs in a straight line for `warmup` steps, then falls as one over the square root. The peak is $1/\sqrt{d_\text{model} \cdot \text{warmup}}$: 0.0007 for the base model.
#
# The loss falls now. On sentences that the model has never seen it may rise at the same time.

# %% [markdown]
# ## Exercises
#
# **1. On the way down** (★, 5 min). By hand: what is the base model's rate at step 1,000, and at which step after the peak is it the same again?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A quarter of the way up: 0.0007 / 4 = 0.000175. On the way down, a quarter takes 4 * 4 = 16 times the steps: 64,000.
print(f"{learning_rate(1000, 512, 4000):.6f} {learning_rate(64_000, 512, 4000):.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert math.isclose(
        learning_rate(1000, 512, 4000), learning_rate(64_000, 512, 4000)
    )

# %% [markdown]
# **2. There and back** (★, 10 min). By hand: a weight sees the gradients 3 and −3. How far does Adam move it in the first step and in the second, in units of the rate?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# First: 3 / 3 = 1, downwards. Then m = 0.9 * 0.3 - 0.3 = -0.03, corrected -0.03 / 0.19 = -0.158, and the usual size
# is 3: 0.05 upwards. The second batch disagrees, and Adam nearly stops. Plain descent would go all the way back.
zero = torch.zeros(1).double()
one, m, v = adam_step(zero, torch.tensor([3.0]).double(), zero, zero, 1, rate=1.0)
two, m, v = adam_step(one, torch.tensor([-3.0]).double(), m, v, 2, rate=1.0)
print(f"{(one - zero).item():.2f} {(two - one).item():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs((two - one).item() - 0.158 / 3) < 1e-3

# %% [markdown]
# **3. No correction** (★★, 15 min). Leave the bias correction out. With a gradient that is always 1, what is the longest step, in units of the rate, and when does it come?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# m fills up faster than v, so the quotient overshoots: steps are too long for dozens of steps, just at the start.
steps = {n: (1 - 0.9**n) / math.sqrt(1 - 0.98**n) for n in range(1, 200)}
longest = max(steps, key=steps.get)
print(
    f"{steps[longest]:.2f} times the rate, in step {longest}; in step 1 {steps[1]:.2f}"
)

# %% tags=["remove-cell"]
if CHECKING:
    assert steps[longest] > 1.4 and sum(length > 1.1 for length in steps.values()) > 60

# %% [markdown]
# **4. A sum for a mean** (★★, 15 min). The loss is a sum over tokens instead of a mean, so all gradients are a thousand times larger. Compare five steps with and without the factor, for Adam and for plain gradient descent.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Adam does not notice: the factor cancels in the quotient. Plain descent takes steps a thousand times as long.


def descend(optimizer, scale):
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    step = optimizer([weight])
    for _ in range(5):
        step.zero_grad()
        (scale * (weight**2).sum()).backward()
        step.step()
    return weight.detach()


kinds = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.001, betas=(0.9, 0.98), eps=1e-9),
    "plain descent": lambda p: torch.optim.SGD(p, lr=0.001),
}
for name, kind in kinds.items():
    print(
        f"{name:14}", [round(descend(kind, scale)[0].item(), 3) for scale in (1, 1000)]
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.allclose(descend(kinds["Adam"], 1), descend(kinds["Adam"], 1000))

# %% [markdown]
# **5. Cut the tie** (★, 5 min). Which `lr_scale` gives a model of width 128 with a warm-up of 200 the base model's peak?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# lr_scale / sqrt(128 * 200) = 1 / sqrt(512 * 4000), so lr_scale = sqrt(128 * 200 / (512 * 4000)) = 0.11.
lr_scale = math.sqrt(128 * 200 / (512 * 4000))
print(f"{lr_scale:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    base = learning_rate(4000, 512, 4000)
    assert math.isclose(learning_rate(200, 128, 200, lr_scale), base)

# %% [markdown]
# **6. The highest safe rate** (★★★, an evening; open). Find the largest constant rate that a fresh model of 1, 3, 6 and 12 layers survives, in post-norm and in pre-norm, with three seeds each. Does it go with how far the output moves in the first step, as measured above? Then find the shortest warm-up that saves the post-norm models at twice that rate.
#
# **7. Write it first** is [above](#up-and-down); the code below it is the solution.

# %% [markdown]
# ## Second reading
#
# ### Can a step be longer than the rate?
#
# :::{admonition} Yes, with the paper's constants by a factor of at most 1.7
# :class: dropdown
#
# The first average forgets faster than the second, so a gradient that keeps growing is already large in $m$ while $v$ still remembers that it was small. The worst case grows by the factor $\beta_2 / \beta_1$ in each step, and drives the quotient to
#
# $$ \frac{1 - \beta_1}{\sqrt{(1 - \beta_2)(1 - \beta_1^2 / \beta_2)}} $$ (eq-longest-step)
#
# By the inequality of Cauchy and Schwarz, no other sequence gets further. With the paper's constants a step is at most 1.7 times the rate; with PyTorch's default $\beta_2 = 0.999$ it could be 7.3 times. A single gradient that dwarfs all earlier ones gives $(1 - \beta_1) / \sqrt{1 - \beta_2}$: 0.7 with 0.98, and 3.2 with 0.999. The paper's shorter memory keeps surprises short. The cell below checks both.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the longest steps", "code_prompt_hide": "Hide the longest steps"}
zero = m = v = torch.zeros(1, dtype=torch.float64)
for n in range(1, 501):
    g = (0.98 / 0.9) ** torch.tensor([n]).double()
    moved, m, v = adam_step(zero, g, m, v, n, rate=1.0)
longest = {
    beta: 0.1 / math.sqrt((1 - beta) * (1 - 0.81 / beta)) for beta in (0.98, 0.999)
}
print(f"a growing gradient: {-moved.item():.2f} times the rate")
print(
    {f"by the formula, β₂ = {beta}": round(times, 2) for beta, times in longest.items()}
)
print([round(0.1 / math.sqrt(1 - beta), 1) for beta in (0.98, 0.999)])

# %% [markdown]
# ### Why does a wide model get smaller steps?
#
# :::{admonition} Half an argument, and an exponent that later work doubts
# :class: dropdown
#
# The paper doesn't say. Each output of a layer is a sum over $d_\text{model}$ weights, and in the first step all of them move by the rate. If the moves were unrelated, their effect would add up like a random walk, to $\sqrt{d_\text{model}}$ times the effect of one, and the factor $d_\text{model}^{-0.5}$ would keep it the same for all widths. But they all follow one gradient, so for the inputs of that batch they add up more like $d_\text{model}$. The factor has the right direction but perhaps not the right exponent; for Adam, later work on width (μP) arrives at $d_\text{model}^{-1}$ for the hidden layers.
# :::
#
# ### With PyTorch's scheduler
#
# :::{admonition} Two details, and updates that never happened
# :class: dropdown
#
# PyTorch's own scheduler can follow {eq}`eq-schedule`, too, if you watch two details. `LambdaLR` multiplies the optimizer's own rate by what your function returns, so that rate must be 1. And it calls the function with 0 before the first step, where we count from 1. (Harvard's [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) answers 0 as if it were 1. Its first two updates get the same rate, which does no harm.)
#
# The schedule counts updates. In fp16, `GradScaler` skips an update whose gradients overflowed, which often happens to the very first ones. Then the weights haven't moved, and the schedule must not move either. The scale falls exactly when an update was skipped, so compare it:
#
# ```python
# before = scaler.get_scale()
# scaler.step(adam)
# scaler.update()
# if scaler.get_scale() >= before:  # the update was made
#     schedule.step()
# ```
#
# Without this check PyTorch warns that `lr_scheduler.step()` was called before `optimizer.step()`, and it is right: the first update wasn't made. bf16 has the range of 32 bits and needs no scaler.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show both, tried", "code_prompt_hide": "Hide both, tried"}
adam = torch.optim.Adam([weight], lr=1.0)
schedule = torch.optim.lr_scheduler.LambdaLR(
    adam, lambda done: learning_rate(done + 1, 512, 4000)
)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
used = []
while len(used) < 5:
    rate = adam.param_groups[0]["lr"]
    adam.zero_grad()
    before = scaler.get_scale()
    scaler.scale((weight.float() ** 4).sum()).backward()
    scaler.step(adam)
    scaler.update()
    if scaler.get_scale() >= before:  # the update was made
        schedule.step()
        used.append(rate)
print(f"LambdaLR, five updates made: next rate {adam.param_groups[0]['lr']:.8f}")
print(f"before the first, {127 - math.log2(scaler.get_scale()):.0f} were skipped")

# %% tags=["remove-cell"]
if CHECKING:
    expected = torch.tensor([learning_rate(n, 512, 4000) for n in range(1, 6)])
    torch.testing.assert_close(torch.tensor(used), expected)

# %% [markdown]
# ### Does the schedule start anew when training is resumed?
#
# :::{admonition} It must not, and Adam's averages must be saved, too
# :class: dropdown
#
# If the same training goes on, a second warm-up wastes its steps, and the peak after it disturbs a model that was nearly done. (With *other* pairs a new, small one [is in place](../book/questions.md#how-do-i-train-a-finished-model-further-on-sentences-of-my-field).) Our rate is a function of the step number alone, so saving that number is enough. Adam's averages must be saved as well, or the first step after the pause has full length again ([a test](29_trainer.ipynb#why-are-the-weights-not-enough) measures it). They are two numbers for each weight.
# :::
#
# ### A schedule that counts batches
#
# :::{admonition} A warm-up that is over after 300 updates instead of 3,000
# :class: dropdown
#
# When memory is short, several batches are added up to one update, and the schedule must count updates. PyTorch's `schedule.step()` counts whatever you call it after. Harvard's [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) (the version of 2022) calls it after every batch, and updates the weights after the first batch of an epoch and then after every tenth. With its settings, 907 batches in each of 8 epochs, the schedule moves 7,256 times while the weights are updated 728 times, and its warm-up of 3,000 is over after some 300 updates. The rate is ten times too high up to there, just where it hurts, and still 2.6 times too high when the training ends.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the rates meant and used", "code_prompt_hide": "Hide the rates meant and used"}
for update in (30, 300, 728):
    right, fast = (learning_rate(n, 512, 3000) for n in (update, 10 * update))
    print(f"update {update:3}: {right:.6f} meant, {fast:.6f} used,", end=" ")
    print(f"{fast / right:.1f} times")
print(8 * 907, "moves of the schedule,", 8 * len(range(0, 907, 10)), "updates")

# %% [markdown]
# ### A lost decimal point
#
# :::{admonition} A rate at which no weight can change
# :class: dropdown
#
# The exponent of the width is minus one half. With $d_\text{model}^{-5}$ instead, the peak of the base model is $4 \cdot 10^{-16}$, and the next 32-bit number above 1 is $1.2 \cdot 10^{-7}$ away: the matrices can't change at all. Print the rate of step 1 and of the peak before a long run.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the peak", "code_prompt_hide": "Hide the peak"}
wrong = 512**-5.0 * 4000**-0.5
print(
    f"peak {wrong:.0e}; the next number above 1 is {torch.finfo(torch.float32).eps:.1e} away"
)

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.ones(1) - wrong == torch.ones(1)

# %% [markdown]
# ### The numbers of the paper
#
# :::{admonition} Why 4,000, why a root, why 0.98
# :class: dropdown
#
# The paper gives no reason for any of the three.
#
# The **warm-up of 4,000** is 4% of the base model's steps. The authors' code, tensor2tensor, later went to 8,000 (`transformer_base_v2`), with twice the rate. Here, doubling both cost 0.10 nats per token in [short runs](../book/departures.md#training). The factor `lr_scale` cuts the tie between warm-up and peak: choose the warm-up for a safe start, then the factor for the height.
#
# **One over the root** has a practical side: this curve needs no end, so you can stop at any step or go on. A straight line or a cosine down to zero must know the last step in advance. And it is slow. An exponential with the same first halving would have come down to 0.4% of the peak at the paper's last step, where the root still has 20%.
#
# **$\beta_2 = 0.98$** is a memory of some 50 steps. It follows changes faster than PyTorch's 1,000, and gradients change a lot while the rate climbs. Later, `transformer_base_v3` of tensor2tensor took 0.997.
# :::
#
# ### The numbers of other toolkits
#
# :::{admonition} tensor2tensor's 0.1, OpenNMT's 2, fairseq's 0.0005, converted
# :class: dropdown
#
# Compare settings of two programs by their peaks, never by what their options are called. All of these rise in a straight line and fall as one over the root.
#
# - **tensor2tensor** multiplies {eq}`eq-schedule` by 5,000, by 0.002 for Adam, and by `learning_rate`. With 0.1, as in `transformer_base_v1`, the product is 1: the paper's schedule. With 0.2 and a warm-up of 8,000 (`transformer_base_v2`) it is 2.
# - **OpenNMT-py** (`decay_method noam`) multiplies {eq}`eq-schedule` by `learning_rate`. Its usual 2 with `warmup_steps 8000` is the same schedule as tensor2tensor's second.
# - **fairseq** (`inverse_sqrt`) takes the peak itself: `--lr 0.0005 --warmup-updates 4000`, with `--adam-betas '(0.9, 0.98)'`, in its recipe for the big model. At width 1,024 that is 1.01 times the paper's schedule.
# - **This book's** `lr_scale` is the factor in front of {eq}`eq-schedule`. So a peak becomes $\texttt{lr\_scale} = \text{peak} \cdot \sqrt{d_\text{model} \cdot \text{warmup}}$.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the conversion", "code_prompt_hide": "Hide the conversion"}
settings = {  # name: (width, warm-up, factor in front of the paper's formula)
    "the paper, tensor2tensor v1": (512, 4000, 5000 * 0.002 * 0.1),
    "tensor2tensor v2": (512, 8000, 5000 * 0.002 * 0.2),
    "OpenNMT-py": (512, 8000, 2.0),
    "fairseq, big": (1024, 4000, 0.0005 * math.sqrt(1024 * 4000)),
}
for name, (width, warmup, factor) in settings.items():
    top = learning_rate(warmup, width, warmup, factor)
    print(f"{name:28} lr_scale {factor:.2f}, peak {top:.5f} at step {warmup:,}")

# %% [markdown]
# ### What do models of today use?
#
# :::{admonition} A cosine instead of the root, AdamW instead of Adam, in ten lines
# :class: dropdown
#
# Most language models still warm up, and then come down along half a **cosine**, to zero or to a tenth of the peak. The last steps are the shortest, so the weights settle, but one has to know in advance which step is the last.
#
# **AdamW** ([Loshchilov and Hutter](https://arxiv.org/abs/1711.05101)) lets each weight shrink a little in each step, by the rate times a decay (often 0.1, in PyTorch 0.01 unless you say otherwise). It does so *beside* the quotient. If the decay were added to the gradient instead, as in plain gradient descent, Adam would divide it by the usual size like everything else, and weights with large gradients would hardly shrink.
# :::


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show cosine and AdamW", "code_prompt_hide": "Hide cosine and AdamW"}
def cosine_rate(step, peak, warmup, last):
    if step < warmup:
        return peak * step / warmup
    done = (step - warmup) / (last - warmup)  # from 0 to 1
    return peak * (1 + math.cos(math.pi * done)) / 2


def adamw_step(theta, g, m, v, n, rate, decay):
    theta = theta * (1 - rate * decay)
    return adam_step(theta, g, m, v, n, rate)


peak = learning_rate(4000, 512, 4000)
for n in (2000, 4000, 28_000, 52_000, 76_000, 100_000):
    print(f"step {n:6}: root {learning_rate(n, 512, 4000):.6f}", end=", ")
    print(f"cosine {cosine_rate(n, peak, 4000, 100_000):.6f}")
weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
ours = weight.detach().clone()
m = v = torch.zeros(2).double()
adam = torch.optim.AdamW([weight], betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
for n in range(1, 51):
    rate = adam.param_groups[0]["lr"] = cosine_rate(n, 0.05, 10, 50)
    adam.zero_grad()
    (weight**4).sum().backward()
    adam.step()
    ours, m, v = adamw_step(ours, 4 * ours**3, m, v, n, rate, decay=0.1)
print("after fifty steps, by hand:", [round(w, 4) for w in ours.tolist()])
print("torch.optim.AdamW:         ", [round(w, 4) for w in weight.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ours, weight.detach())

# %% [markdown]
# ## Sources
#
# Equation 3 and Adam's constants are from section 5.3 of {cite:t}`vaswani2017attention`, Adam and its bias correction from {cite:t}`kingma2015adam`. {cite:t}`liu2020variance` explain warm-up by the variance of Adam's denominator (their remedy is RAdam), {cite:t}`xiong2020layer` by post-norm's gradients, {cite:t}`liu2020understanding` by the reaction of its output (their remedy is Admin). The loop with the miscounted schedule is `run_epoch` in the code of {cite:t}`rush2018annotated`, as revised in 2022; tensor2tensor's settings are in its `models/transformer.py`.
