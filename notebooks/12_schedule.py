# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Schedule
#
# This chapter sets the size of each training step: Adam, and a learning rate that rises, then falls (section 5.3 of the paper).
#
# A training step asks two questions. In which direction should each weight move, and how far? The gradient answers the first. The second has no answer that can be computed, and a wrong one ruins the run: too short a step learns nothing in the time we have, too long a step wrecks the model in its first minute.
#
# We begin with both kinds of failure, on a real model. Then we take the optimizer apart, since what it does in its first steps is the reason that the rate must start small. The paper's formula follows from there, and at the end the same model learns with it.

# %% tags=["export"]
from math import sqrt

# %%
import math
from itertools import islice, pairwise

import altair as alt
import torch
import torch.nn.functional as F

from annotated_transformer.batching import batches, encode_pairs
from annotated_transformer.corpus import grammar
from annotated_transformer.figures import INK, KEY, QUERY, VALUE, curves, show
from annotated_transformer.masks import PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

# %% [markdown]
# ## One rate for the whole run
#
# Our model for this chapter is small enough to train in seconds: three layers of width 64, on sentences from [the grammar](09_corpus.ipynb). It sees 300 batches and no sentence twice.

# %%
pairs = grammar(14_000, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=600)
stream = list(islice(batches(encode_pairs(tokenizer, pairs), 384, seed=0, epoch=0), 300))
shape = TransformerConfig(len(tokenizer), layers=3, d_model=64, d_ff=256, heads=4, dropout=0.0)
print(len(stream), "batches,", len(tokenizer), "entries in the vocabulary")

# %% [markdown]
# The loss is the cross-entropy of the next token, averaged over those that are not padding. The training loop fits into ten lines. Its only argument is a function that says which rate each step gets. Chapter [Training](14_training.ipynb) builds a loop for long runs.


# %%
def loss_of(model, source, target):
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


def run(rate_of):
    torch.manual_seed(0)
    model, losses = Transformer(shape), []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    for step, (source, target) in enumerate(stream, start=1):
        adam.param_groups[0]["lr"] = rate_of(step)
        loss = loss_of(model, source, target)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# We try three rates, from cautious to bold. Each is kept for the whole run.

# %% tags=["nbval-ignore-output"]
runs = {f"always {rate}": run(lambda step: rate) for rate in (0.0001, 0.001, 0.0088)}
last = {name: sum(losses[-20:]) / 20 for name, losses in runs.items()}
assert last["always 0.0001"] > 3.5 and last["always 0.0088"] > 3.5 and last["always 0.001"] < 2.5
print({name: round(loss, 2) for name, loss in last.items()})

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-constant-rates", "caption": "What does a constant rate do? Loss of the same model on the same batches (means of ten steps). The small rate (dotted) is still far up when the run ends. The large one (dashed) falls fast, stops within a few steps, and never moves again."}}
looks = {
    "always 0.0001": (INK, [2, 2]),
    "always 0.001": (VALUE, [1, 0]),
    "always 0.0088": (KEY, [6, 3]),
}


def loss_chart(names, looks):
    records = [
        {"step": n + 10, "loss": round(sum(runs[name][n : n + 10]) / 10, 3), "rate": name}
        for name in names
        for n in range(0, 300, 10)
    ]
    y = alt.Y("loss:Q", title="loss a token", scale=alt.Scale(domain=[0, 7]))
    return curves(records, alt.X("step:Q", title="step"), y, "rate", looks)


show(
    loss_chart(looks, looks),
    alt="The loss falls slowly at rate 0.0001, steadily at 0.001, and stays at about 4.8 at 0.0088.",
)

# %% [markdown]
# The cautious run does what it should, only too slowly: after 300 steps it is where the middle one was after some sixty. The bold run is the interesting failure. Its loss drops within twenty steps and then stays where it is. About 4.8 is what a model reaches that has learned how frequent each token is, and nothing else. It no longer looks at the source, and it never recovers, although nothing exploded and no number is infinite.
#
# One could now search for the best constant, and 0.001 is not bad. But keep the number 0.0088 in mind. Later in this chapter the same model takes steps at that very rate, and learns. What kills it is not the size of the steps but taking them *at the beginning*. To see why, we need to know what the optimizer does with a rate.
#
# ## Gradients of very different sizes
#
# Plain gradient descent moves each weight by the rate times its gradient. That presumes that gradients are of similar size everywhere. In a Transformer they are not. We take the gradient of one batch and look at the typical size in a few places.

# %%
torch.manual_seed(0)
model = Transformer(shape)
loss_of(model, *stream[0]).backward()
sizes = {name: p.grad.square().mean().sqrt().item() for name, p in model.named_parameters()}
smallest, largest = min(sizes, key=sizes.get), max(sizes, key=sizes.get)
print(
    f"between the smallest and the largest: a factor above {sizes[largest] / sizes[smallest] // 10 * 10:.0f}"
)
assert sizes[largest] > 20 * sizes[smallest]

# %% [markdown]
# A rate that suits the one is far too large or far too small for the other. What we want to know about a gradient is not its size but how its size compares with what is usual *for this weight*.
#
# ## Two running averages
#
# **Adam** {cite:p}`kingma2015adam` keeps two numbers for each weight. The first, $m$, is a running average of its gradient $g$: which way it has been pointing lately. The second, $v$, is a running average of $g^2$: how large it usually is, whatever its sign. Adam divides the one by the root of the other.
#
# A running average keeps most of what it has and adds a little of what is new. Three gradients of one weight, 2, 2 and then −1, with the paper's $\beta_1 = 0.9$ and $\beta_2 = 0.98$:

# %%
m = v = 0.0
for g in (2.0, 2.0, -1.0):
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g**2
    print(f"gradient {g:4.1f}   m {m:.3f}   root of v {v**0.5:.3f}")

# %% [markdown]
# Both are much too small. After two gradients of 2 the average says 0.38, and the usual size comes out as 0.398. The reason is the start at zero: the first gradient enters with a tenth of its weight, and the other nine tenths are an average of nothing.
#
# How much of the average is real? After $n$ steps the zero still has the weight $\beta^n$. So what has been seen carries $1 - \beta^n$, and dividing by it mends the estimate. This is the **bias correction**: with it, $m$ after two steps is $0.38 / (1 - 0.81) = 2$, as it should be, and the root of $v$ is 2 as well.
#
# The whole update, with hats for the corrected averages and $\theta$ for the weight:
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
# The small $\epsilon$, $10^{-9}$ in the paper, only keeps a weight that never had a gradient from dividing by zero. In code it is one line an equation.


# %%
def adam_step(theta, g, m, v, n, rate, betas=(0.9, 0.98), eps=1e-9):
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    m_hat, v_hat = m / (1 - betas[0] ** n), v / (1 - betas[1] ** n)
    return theta - rate * m_hat / (v_hat.sqrt() + eps), m, v


# %% [markdown]
# PyTorch's optimizer is the reference. Both descend the same curve, $\theta^4$ in two dimensions, for fifty steps with a rate that changes all the time.

# %%
weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
ours, m, v = weight.detach().clone(), torch.zeros(2).double(), torch.zeros(2).double()
adam = torch.optim.Adam([weight], betas=(0.9, 0.98), eps=1e-9)
for n in range(1, 51):
    adam.param_groups[0]["lr"] = rate = 0.05 / n
    adam.zero_grad()
    (weight**4).sum().backward()
    adam.step()
    ours, m, v = adam_step(ours, 4 * ours**3, m, v, n, rate)
    torch.testing.assert_close(ours, weight.detach())
print("fifty steps by hand equal torch.optim.Adam")

# %% [markdown]
# ## A step as long as the rate
#
# The quotient of the two averages is a pure number. Multiply every gradient by a thousand, and it stays the same. If a gradient always points the same way, the quotient is 1. If it flips its sign at random, the averages of $g$ cancel and the quotient is small. So Adam goes far where the batches agree, and stays put where they contradict each other. The rate is the length of the longest step.
#
# That makes the choice of a rate much easier. It also has a consequence for the very first step. With one gradient seen, $\hat m = g$ and $\sqrt{\hat v} = |g|$. The quotient is 1 or −1, for *every* weight. We check it on the model.

# %%
before = [p.detach().clone() for p in model.parameters()]
torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9).step()
moved = torch.cat([(p - old).abs().flatten() for p, old in zip(model.parameters(), before)])
seen = torch.cat([p.grad.flatten() for p in model.parameters()]).abs() > 1e-6
assert ((moved[seen] - 0.01).abs() < 1e-4).all() and seen.float().mean() > 0.9
print(f"weights moved by 0.01: {((moved - 0.01).abs() < 1e-4).float().mean():.0%}")

# %% [markdown]
# Every weight with a gradient worth the name moved by exactly the rate. It did not matter whether the gradient was large or small, or whether a second batch would have said the opposite. One batch of some thirty sentences decided for all of the model's weights, at full length.
#
# ## Why the first steps are the worst
#
# How much worse is that than a step later on? Suppose there is nothing to learn: each gradient is random, with mean zero. A good optimizer would stay where it is. We run Adam on 20,000 such weights and look at the typical length of a step in units of the rate.


# %%
def typical_steps(betas, steps=100, weights=20_000):
    random, lengths = torch.Generator().manual_seed(0), []
    m = v = torch.zeros(weights, dtype=torch.float64)
    for n in range(1, steps + 1):
        g = torch.randn(weights, generator=random, dtype=torch.float64)
        moved, m, v = adam_step(torch.zeros(weights), g, m, v, n, rate=1.0, betas=betas)
        lengths.append(moved.square().mean().sqrt().item())
    return lengths


lengths = typical_steps((0.9, 0.98))
print([round(lengths[n - 1], 2) for n in (1, 2, 5, 20, 100)])
assert abs(lengths[0] - 1) < 1e-6 and lengths[-1] < 0.26

# %% [markdown]
# In the first step, noise moves each weight as far as the clearest signal would. After 20 steps the average has cancelled most of it, and after a hundred, a step on pure noise is a quarter as long. (In the limit it is close to $\sqrt{(1 - \beta_1)/(1 + \beta_1)} = 0.23$, the spread of an average with memory $\beta_1$.)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-noise-steps", "caption": "How far does Adam go when there is nothing to learn? Typical length of a step on random gradients, in units of the rate, for the paper's memory (solid) and with no averaging of the gradient (dashed). Only averaging tells noise from signal, and it takes about twenty steps to begin."}}
looks = {"β₁ = 0.9, the paper's": (QUERY, [1, 0]), "β₁ = 0, no average": (KEY, [5, 3])}
records = [
    {"step": n, "length": round(length, 3), "memory": name}
    for name, betas in zip(looks, [(0.9, 0.98), (0.0, 0.98)])
    for n, length in enumerate(typical_steps(betas), start=1)
]
y = alt.Y("length:Q", title="step ÷ rate", scale=alt.Scale(domain=[0, 1.2]))
show(
    curves(records, alt.X("step:Q", title="step"), y, "memory", looks),
    alt="With the paper's memory the typical step falls from 1 to about a quarter within twenty steps; with none it stays near 1.",
)

# %% [markdown]
# The usual size is an estimate, too, and at first a poor one. The paper's $\beta_2 = 0.98$ looks back about $1 / (1 - 0.98) = 50$ steps, where the usual 0.999 looks back a thousand. Until that many batches have come by, $\hat v$ rests on fewer of them. A weight whose first gradients happened to be tiny then gets steps that are many times too long.

# %%
random = torch.Generator().manual_seed(0)
first = torch.randn(1, 20_000, generator=random).square().mean(0).sqrt()
fifty = torch.randn(50, 20_000, generator=random).square().mean(0).sqrt()
print(f"size underestimated tenfold, from  1 gradient:  {(first < 0.1).float().mean():.0%}")
print(f"size underestimated tenfold, from 50 gradients: {(fifty < 0.1).float().mean():.0%}")

# %% [markdown]
# Add to this that the gradients themselves are worst at the start. A fresh model attends everywhere alike and predicts noise. What its layers report in the first steps is mostly how to make the frequent words more probable. Longest steps, poorest directions: in a post-norm Transformer, this is enough to push attention into a corner where its softmax is sure and its gradient gone ([Attention](01_attention.ipynb) shows that corner).
#
# ## Up and down in one line
#
# The remedy is plain. Take tiny steps while the estimates settle, then longer ones. That is the **warm-up**. And from a peak on, take shorter and shorter ones, since close to a minimum long steps only jump about. The paper writes both as two curves of which the smaller one counts:
#
# $$
# \text{rate}(n) = d_\text{model}^{-0.5} \cdot \min\left(n^{-0.5},\; n \cdot \text{warmup}^{-1.5}\right)
# $$ (eq-schedule)
#
# The second term grows in a straight line with the step $n$. The first falls as one over the root of $n$. And a wide model takes smaller steps than a narrow one: each of its outputs sums over more weights, which all move at once. We add a factor of our own, 1 in the paper, because small models on small data often do better with another one.


# %% tags=["export"]
def learning_rate(step: int, d_model: int, warmup: int, factor: float = 1.0) -> float:
    """The learning rate of a step, counted from 1 (equation 3, times `factor`).

    Raises ValueError for a step or warm-up below 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step and warmup count from 1, not from {min(step, warmup)}")
    return factor / sqrt(d_model) * min(1 / sqrt(step), step / (warmup * sqrt(warmup)))


# %% [markdown]
# Steps count from 1. At step 0 the formula divides by zero, and a loop that starts there would also waste its first batch.
#
# ## Where is the peak?
#
# At the step where the two terms are equal:
#
# $$
# \begin{aligned}
# n^{-0.5} &= n \cdot \text{warmup}^{-1.5} \\
# \text{warmup}^{1.5} &= n^{1.5} \\
# n &= \text{warmup}
# \end{aligned}
# $$
#
# So the parameter is what its name says, the number of steps until the turn. The rate there is
#
# $$ \text{peak} = \frac{1}{\sqrt{d_\text{model} \cdot \text{warmup}}}. $$ (eq-peak)
#
# For the base model, with 512 and 4,000, that is $1/\sqrt{2{,}048{,}000} = 0.0007$. Written with the peak, the schedule is easier to picture: $\text{peak} \cdot n / \text{warmup}$ on the way up, $\text{peak} \cdot \sqrt{\text{warmup} / n}$ on the way down. We check this second form against the first, and look for the peak by trying all steps.

# %%
peak = 1 / math.sqrt(512 * 4000)
for n in range(1, 20_001):
    expected = peak * (n / 4000 if n <= 4000 else math.sqrt(4000 / n))
    assert math.isclose(learning_rate(n, 512, 4000), expected)
assert max(range(1, 20_001), key=lambda n: learning_rate(n, 512, 4000)) == 4000
print(
    f"peak {peak:.6f} at step 4000, at step 16000 {learning_rate(16_000, 512, 4000) / peak} of it"
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-schedule", "caption": "Why warm up, and where is the peak? The paper's base model (dashed) and its big one (dotted), and a curve of your own (blue; move the sliders on the website). The peak is always at the end of the warm-up. A longer warm-up lowers it, a wider model lowers the whole curve, and long after the peak only the width matters."}}
width = alt.param(
    "width", value=512, bind=alt.binding_range(min=64, max=1024, step=64, name="d_model ")
)
warm = alt.param(
    "warm", value=8000, bind=alt.binding_range(min=1000, max=16_000, step=500, name="warm-up ")
)
top = alt.Scale(domainMin=0, domainMax=alt.ExprRef("max(0.0008, 1.1 / sqrt(width * warm))"))
axes = (
    alt.X("n:Q", title="step", scale=alt.Scale(domain=[0, 30_000])),
    alt.Y("rate:Q", title="learning rate", scale=top, axis=alt.Axis(format=".4f")),
)
rate = "pow({d}, -0.5) * min(pow(datum.n, -0.5), datum.n * pow({w}, -1.5))"


def schedule_curve(d, w, color, dash):
    steps = alt.Chart(alt.sequence(1, 30_001, 100, as_="n")).encode(*axes)
    drawn = steps.transform_calculate(rate=rate.format(d=d, w=w))
    return drawn.mark_line(color=color, strokeDash=dash)


def label(n, d, w, text, color, dy=-6, dot=True):
    place = alt.Chart(alt.Data(values=[{}])).encode(*axes)
    place = place.transform_calculate(n=f"{n}").transform_calculate(
        rate=rate.format(d=d, w=w), text=text
    )
    words = place.encode(text="text:N").mark_text(color=color, align="left", dx=8, dy=dy)
    return place.mark_point(color=color, filled=True, opacity=float(dot), size=70) + words


yours = "'yours: peak ' + format(1 / sqrt(width * warm), '.4f') + ' at step ' + warm"
chart = alt.layer(
    schedule_curve(512, 4000, INK, [6, 3]),
    schedule_curve(1024, 4000, INK, [2, 2]),
    schedule_curve("width", "warm", QUERY, [1, 0]),
    label(4000, 512, 4000, "'base: peak 0.0007 at step 4000'", INK),
    label(4000, 1024, 4000, "''", INK),
    label(16_000, 1024, 4000, "'big: d_model 1024'", INK, dy=26, dot=False),
    label("warm", "width", "warm", yours, QUERY, dy=-10),
)
show(
    chart.add_params(width, warm).properties(width=460, height=260),
    alt="Three curves rise in a straight line and fall as one over the square root of the step. Peaks are at the end of the warm-up; the widest model has the lowest curve.",
)

# %% [markdown]
# ## The same rate, reached slowly
#
# Back to our model of width 64. With a warm-up of 200 steps the peak is $1/\sqrt{64 \cdot 200} = 0.0088$, the rate that wrecked the bold run. With a warm-up of 20 it is 0.028. We train both.

# %% tags=["nbval-ignore-output"]
for warmup in (20, 200):
    runs[f"warm-up {warmup}"] = run(lambda step: learning_rate(step, 64, warmup))
    last[f"warm-up {warmup}"] = sum(runs[f"warm-up {warmup}"][-20:]) / 20
assert math.isclose(learning_rate(200, 64, 200), 0.0088, rel_tol=0.01)
assert last["warm-up 200"] < 2.5 and last["warm-up 20"] > 3.5
print({name: round(loss, 2) for name, loss in last.items()})

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-warm-up-runs", "caption": "What does the warm-up save? Above: three schedules for our small model. Below: its loss under each, in runs made by this page. The dashed and the blue run reach the same rate, 0.0088; the one that starts there learns nothing, the one that climbs there learns. A warm-up of 20 steps (dotted) climbs too high, too soon."}}
looks = {
    "always 0.0088": (KEY, [6, 3]),
    "warm-up 20": (INK, [2, 2]),
    "warm-up 200": (QUERY, [1, 0]),
}
rates = {
    "always 0.0088": lambda n: 0.0088,
    "warm-up 20": lambda n: learning_rate(n, 64, 20),
    "warm-up 200": lambda n: learning_rate(n, 64, 200),
}
records = [
    {"step": n, "value": round(rates[name](n), 5), "rate": name}
    for name in looks
    for n in [1, *range(5, 301, 5)]
]
above = curves(
    records, alt.X("step:Q", title=None), alt.Y("value:Q", title="learning rate"), "rate", looks
)
show(
    above.properties(height=120) & loss_chart(looks, looks).properties(height=200),
    alt="With a warm-up of 200 steps the loss falls throughout. Without one, or with 20 steps, it stays near 4.8.",
)

# %% [markdown]
# Same model, same batches, same largest rate, and the only difference is how it gets there. It may take long steps in the middle, because it did not take them at the start. And without any search it ends about where the best of our constants ends, although it spent two thirds of the run on the way up.
#
# Is warm-up a law of nature? It is not. It belongs to this design: layer normalization *after* the addition, and Adam. Pre-norm models, built as the alternative in [Layers](07_layers.ipynb), are far less sensitive and can do with a short warm-up or none. And a constant rate small enough for the start would work as well, in many more steps.
#
# ## Three ways to get it wrong
#
# **A decimal point.** The exponent of the width is minus one half. Some copies of the formula have lost the point and say $d_\text{model}^{-5}$.

# %%
wrong = 512**-5.0 * 4000**-0.5
print(f"peak {wrong:.0e}; a weight of 1 moves:", bool(torch.ones(1) - wrong != torch.ones(1)))
assert wrong < torch.finfo(torch.float32).eps / 1e6

# %% [markdown]
# The peak is so small that a 32-bit weight cannot even represent the change. Training runs, the loss stays where it started, and nothing complains.
#
# **"Exponential decay".** An exponential loses the same share in each interval. This curve loses less and less: to halve, it takes four times the steps, whatever the step.

# %%
halved = [4000 * 4**k for k in range(5)]
print([(n, round(learning_rate(n, 512, 4000) / peak, 4)) for n in halved])
for n, after in pairwise(halved):
    assert math.isclose(learning_rate(after, 512, 4000), learning_rate(n, 512, 4000) / 2)

# %% [markdown]
# An exponential with the same first halving, 12,000 steps after the peak, would be down to a quarter at step 28,000. Here that takes until 64,000. At the paper's last step, 100,000, the rate is still a fifth of its peak, and the model is still learning.
#
# **A schedule that counts batches.** When memory is short, several small batches are added up to one update. The schedule must count updates. If it is moved at every small batch, of which ten make one update, everything happens ten times too soon:

# %%
for update in (40, 400, 728):
    right, fast = (learning_rate(n, 512, 4000) for n in (update, 10 * update))
    print(f"update {update:3}: rate {right:.6f}, counted per batch {fast:.6f}")
assert max(range(1, 4001), key=lambda n: learning_rate(10 * n, 512, 4000)) == 400

# %% [markdown]
# The warm-up is over after 400 updates in place of 4,000. In one public run that had this slip, the schedule had made 7,256 steps when the weights had made 728. The table shows what it meant: a rate three to ten times too high through the whole start, which is just where it hurts.
#
# ## Questions that come up
#
# **Why 4,000?** The paper does not say. As a share of its 100,000 steps it is 4 %. In our short runs, 200 of 300 was good because the rest of the formula ties the peak to the warm-up: a short one means a high peak. The `factor` cuts that tie.
#
# **Is the rate per batch or per sentence?** Per update. The paper's updates see 25,000 target tokens. Smaller batches mean noisier gradients, which ask for a lower rate or a longer warm-up.
#
# **Why is $\beta_2$ 0.98?** A memory of 50 steps follows changes faster, and gradients change a lot while the rate climbs. The authors' later code went to 0.997, with twice the warm-up. Neither is sacred.
#
# **Does Adam need memory?** Two numbers for each weight, besides the gradient. A model of 63 M weights keeps four times 252 MB while it trains.
#
# ## What to remember
#
# - Adam divides a running average of the gradient by the root of a running average of its square. The quotient is at most about 1, so the rate is the length of a step.
# - Its first step moves every weight by the full rate, on the word of a single batch. That is why the rate starts small.
# - The rate climbs in a straight line for `warmup` steps, then falls as one over the square root.
# - The peak is $1/\sqrt{d_\text{model} \cdot \text{warmup}}$: 0.0007 for the base model.
# - One step of the schedule is one update of the weights, not one batch that was looked at.
#
# ## Exercises
#
# **1. By hand.** What is the base model's rate at step 1,000? And at which step after the peak is it the same again?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A quarter of the way up: 0.0007 / 4 = 0.000175. On the way down a quarter takes 4 * 4 = 16 times the steps: 64,000.
print(f"{learning_rate(1000, 512, 4000):.6f} {learning_rate(64_000, 512, 4000):.6f}")
assert math.isclose(learning_rate(1000, 512, 4000), learning_rate(64_000, 512, 4000))

# %% [markdown]
# **2. By hand.** A weight sees the gradients 3 and −3. How far does Adam move it in the first step, and in the second, in units of the rate?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# First: 3 / 3 = 1, downwards. Then m = 0.9 * 0.3 - 0.3 = -0.03, corrected -0.03 / 0.19 = -0.158, and the usual size
# is 3: 0.05 upwards. The second batch disagrees, and Adam nearly stops. But it does not go back.
zero = torch.zeros(1).double()
one, m, v = adam_step(zero, torch.tensor([3.0]).double(), zero, zero, 1, rate=1.0)
two, m, v = adam_step(one, torch.tensor([-3.0]).double(), m, v, 2, rate=1.0)
print(f"{(one - zero).item():.2f} {(two - one).item():.2f}")
assert abs((two - one).item() - 0.158 / 3) < 1e-3

# %% [markdown]
# **3. What breaks if** the bias correction is left out? Take a gradient that is always 1 and find the longest step, in units of the rate.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# m fills up faster than v, so the quotient overshoots: the steps are too long for dozens of steps, just at the start.
steps = {n: (1 - 0.9**n) / math.sqrt(1 - 0.98**n) for n in range(1, 200)}
longest = max(steps, key=steps.get)
print(f"{steps[longest]:.2f} times the rate, in step {longest}; in step 1 {steps[1]:.2f}")
assert steps[longest] > 1.4 and sum(length > 1.1 for length in steps.values()) > 60

# %% [markdown]
# **4. What breaks if** the loss is a sum over tokens where it was a mean, so that all gradients are a thousand times larger? Try it for Adam and for plain gradient descent.

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
same = {name: torch.allclose(descend(kind, 1), descend(kind, 1000)) for name, kind in kinds.items()}
print(same)
assert same == {"Adam": True, "plain descent": False}

# %% [markdown]
# **5. Cut the tie.** Find the `factor` that gives a model of width 128 and a warm-up of 200 the base model's peak.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# factor / sqrt(128 * 200) = 1 / sqrt(512 * 4000), so factor = sqrt(128 * 200 / (512 * 4000)) = 0.11.
factor = math.sqrt(128 * 200 / (512 * 4000))
assert math.isclose(learning_rate(200, 128, 200, factor), peak)
print(f"{factor:.2f}")

# %% [markdown]
# ## Sources
#
# Equation 3 and Adam's constants are from section 5.3 of {cite:t}`vaswani2017attention`; Adam and its bias correction from {cite:t}`kingma2015adam`. Later values of the authors' own code are from its public repository.
