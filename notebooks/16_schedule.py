# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Schedule
#
# This chapter sets the learning rate of each training step: it rises in a straight line, then falls as one over the square root of the step (section 5.3 of the paper).
#
# A learning rate is a single number, and the obvious thing is to choose it once and leave it alone. We try that first, at three rates.
#
# ## What a constant rate does
#
# Our model is small enough to train in seconds: three layers of width 64, on 300 batches of sentences from [the grammar](13_data.ipynb#a-pair-and-its-alignment), none of which it sees twice.

# %% tags=["export", "hide-input"]
import math

# %% tags=["hide-input"]
from dataclasses import replace
from itertools import cycle, islice

import altair as alt
import torch
import torch.nn.functional as F

from annotated_transformer.batching import batches, encode_pairs
from annotated_transformer.masks import PAD
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig
from book.figures import AMBER, INK, PLUM, SKY, curves, show, show_steps

# %%
pairs = grammar(14_000, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=600)
encoded = encode_pairs(tokenizer, pairs)
stream = list(islice(batches(encoded, 384), 300))
sizes = {"layers": 3, "d_model": 64, "d_ff": 256, "heads": 4}
shape = TransformerConfig(len(tokenizer), **sizes, dropout=0.0)

# %% [markdown]
# In the training loop, `schedule` is a list with the rate of each step.


# %%
def loss_of(model, source, target):
    logits = model(source, target[:, :-1]).flatten(0, 1)
    labels = target[:, 1:].flatten()
    return F.cross_entropy(logits, labels, ignore_index=PAD)


runs, models, last = {}, {}, {}


def run(name, schedule, **changes):
    torch.manual_seed(0)
    models[name] = model = Transformer(replace(shape, **changes))
    runs[name] = losses = []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for rate, (source, target) in zip(schedule, stream):
        adam.param_groups[0]["lr"] = rate
        loss = loss_of(model, source, target)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    last[name] = sum(losses[-20:]) / 20
    print(f"{name}: {last[name]:.2f} in the last 20 steps")


# %% [markdown]
# PyTorch's optimizers keep their settings in `param_groups`, and you may change the rate there before every step. All runs start from the same weights and see the same batches. We try three rates, from cautious to bold.

# %% tags=["nbval-ignore-output"]
rates = 0.0001, 0.001, 0.0088
for rate in rates:
    run(f"always {rate}", [rate] * 300)

# %% tags=["remove-cell"]
if CHECKING:
    assert min(last["always 0.0001"], last["always 0.0088"]) > 3.5
    assert last["always 0.001"] < 2.5

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-constant-rates", "caption": "What does a constant rate do? Loss of the same model on the same batches at three rates, means of ten steps."}}
kinds = [(PLUM, [2, 2]), (SKY, [1, 0]), (AMBER, [6, 3]), (INK, [1, 0])]
looks = dict(zip(runs, cycle(kinds)))


def loss_chart(looks, places):
    records = [
        {
            "step": n + 10,
            "loss": round(sum(runs[name][n : n + 10]) / 10, 3),
            "rate": name,
        }
        for name in looks
        for n in range(0, len(stream) - 9, 10)
    ]
    x = alt.X("step:Q", title="step")
    y = alt.Y("loss:Q", title="loss, nats per token", scale=alt.Scale(domain=[0, 7]))
    names = dict(zip(looks, cycle(places)))
    return curves(records, x, y, "rate", looks, names).properties(width=290)


show(
    loss_chart(looks, [(90, "above right"), (130, "above right"), (250, "below")]),
    alt="The loss falls slowly at rate 0.0001 and steadily to 1.9 at 0.001. At 0.0088 it drops within twenty steps and then stays at about 4.7.",
)

# %% [markdown]
# The cautious run is merely slow. The bold one is the interesting failure: nothing exploded, no number is infinite, and still it never recovers.
#
# What can a model know whose loss is stuck near 4.7? Make a guess before you read on.
#
# ## The height of a loss that is stuck
#
# Suppose it knew nothing but how frequent each token is, and gave token $v$ its share $p_v$ of the text at every position. Its loss would be $-\sum_v p_v \log p_v$, the entropy of the text's tokens.

# %%
labels = torch.cat([target[:, 1:].flatten() for _, target in stream])
share = labels[labels != PAD].bincount() / (labels != PAD).sum()
print(f"knowing only how frequent each token is: {torch.special.entr(share).sum():.2f}")

# %% [markdown]
# That is where the bold run ended. Does it look at the source at all? We give each target the source of its neighbor in the batch, which a model that reads should notice.

# %% tags=["nbval-ignore-output"]
source, target = stream[-1]
good = min(last, key=last.get)
bold = f"always {max(rates)}"
for name in (good, bold):
    with torch.no_grad():
        right = loss_of(models[name], source, target)
        wrong = loss_of(models[name], source.roll(1, dims=0), target)
    print(f"{name:13}  own source {right:.4f}, a neighbor's {wrong:.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(right - wrong) < 0.01

# %% [markdown]
# The bold model doesn't notice. The good one does, though only a little: it has learned first how English sentences go, and has barely begun to translate. Two more numbers show what has broken inside: how much the encoder's output differs from position to position (as a standard deviation), and the typical gradient in the encoder.


# %% tags=["nbval-ignore-output"]
def encoder_state(model):
    source, target = stream[0]
    model.zero_grad()
    loss_of(model, source, target).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.encoder.parameters()])
    memory = model.encode(source).flatten(0, 1)
    return memory.std(0).mean().item(), gradients.square().mean().sqrt().item()


torch.manual_seed(0)
fresh = Transformer(shape)
for name, model in {"fresh": fresh, bold: models[bold]}.items():
    spread, gradient = encoder_state(model)
    print(f"{name:13}  spread over positions {spread:.4f}, gradient {gradient:.7f}")

# %% tags=["remove-cell"]
if CHECKING:
    at_first, stuck = encoder_state(fresh), encoder_state(models[bold])
    assert stuck[0] < at_first[0] / 10 and stuck[1] < at_first[1] / 10

# %% [markdown]
# The encoder now hands over practically the same vector at every position, whatever word is there. Then it doesn't matter where cross-attention looks, because any weights mix the same vector, and hardly any gradient reaches the encoder. The one path by which the source could help is closed, and the loss settles on the frequencies.
#
# How does a rate do this damage?
#
# ## What Adam does with the rate
#
# Plain gradient descent moves each weight by the rate times its gradient. That presumes gradients of similar size everywhere, and a Transformer doesn't have them. In the fresh model, these tensors have the smallest and the largest typical gradient (root mean square; the gradients are those that `encoder_state` has just computed):

# %% tags=["nbval-ignore-output"]
typical = {}
for name, parameter in fresh.named_parameters():
    typical[name] = parameter.grad.square().mean().sqrt().item()
for name in (min(typical, key=typical.get), max(typical, key=typical.get)):
    print(f"{typical[name]:.5f}  {name}")

# %% tags=["remove-cell"]
if CHECKING:
    assert max(typical.values()) > 50 * min(typical.values())

# %% [markdown]
# A rate that suits the one is far too small or far too large for the other. What counts isn't the size of a gradient but how it compares with what is usual *for this weight*.
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
# The third and the fourth line are the **bias correction**. Both averages start at zero, so at first they are mostly an average of nothing. After gradients of 2 and 2, $m$ is $0.9 \cdot 0.2 + 0.1 \cdot 2 = 0.38$, where the average is plainly 2. The zero at the start still has the weight $\beta^n$, so what has been seen carries $1 - \beta^n$, and dividing by it corrects the estimate: $0.38 / (1 - 0.81) = 2$. In code, each weight for itself (`torch.optim.Adam` does the same, to the last digits):


# %%
def adam_step(theta, g, m, v, n, rate, betas=(0.9, 0.98), eps=1e-9):
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    m_hat = m / (1 - betas[0] ** n)
    v_hat = v / (1 - betas[1] ** n)
    return theta - rate * m_hat / (v_hat.sqrt() + eps), m, v


# %% tags=["remove-cell"]
if CHECKING:
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
    torch.testing.assert_close(ours, weight.detach())

# %% [markdown]
# ## A step as long as the rate
#
# The quotient of the two averages stays the same if you multiply every gradient by a thousand. If a gradient is the same in each step, the quotient is 1. If its sign flips at random, $m$ cancels and the quotient is small. So Adam goes far where the batches agree and stays put where they contradict each other.
#
# The rate, then, is a length: how far a weight moves in one step if the batches agree. A rate of 0.001 takes a weight from 0.050 to 0.051, whichever layer it is in.

# %% [markdown]
# ## Why are the first steps the worst?
#
# After a single gradient, $\hat m = g$ and $\sqrt{\hat v} = |g|$. The quotient is 1 or −1 for *every* weight, however small its gradient, unless it is so close to zero that $\epsilon$ counts. With the same gradients, the fresh model takes its first step, at a rate of 0.01:

# %% tags=["nbval-ignore-output"]
before = [p.detach().clone() for p in fresh.parameters()]
torch.optim.Adam(fresh.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9).step()
steps = [(p - old).abs().flatten() for p, old in zip(fresh.parameters(), before)]
moved = torch.cat(steps)
share = ((moved - 0.01).abs() < 1e-4).float().mean().item()
print(f"{share:.1%} of {moved.numel():,} weights moved by 0.0100")

# %% tags=["remove-cell"]
if CHECKING:
    assert share > 0.95
    random = torch.Generator().manual_seed(0)
    zero = m = v = torch.zeros(20_000, dtype=torch.float64)
    lengths = []
    for n in range(1, 101):
        g = torch.randn(20_000, generator=random, dtype=torch.float64)
        moved, m, v = adam_step(zero, g, m, v, n, rate=1.0)
        lengths.append(moved.square().mean().sqrt().item())
    assert abs(lengths[0] - 1) < 1e-6 and lengths[-1] < 0.26

# %% [markdown]
# How much worse is that than a later step? Suppose there is nothing to learn, because each gradient is random with mean zero. In the first step, noise still moves each weight as far as the clearest signal would. Later most of it cancels: in $m$ a gradient that came $k$ steps ago has the weight $(1 - \beta_1)\,\beta_1^k$, and the squares of these weights add up to $(1 - \beta_1)/(1 + \beta_1)$. So the typical $m$ is only $\sqrt{0.1 / 1.9} = 0.23$ times as large as a single gradient.
#
# And the gradients themselves say least at the start. A fresh model has a loss of nearly 7, and knowing the frequencies alone would bring it down to 4.64. So the first gradients mostly say one thing, and the same at every position: make the frequent tokens more probable. This fits the bold run, whose encoder ended up with the same vector at every position.
#
# ## Up and down
#
# The remedy is the **warm-up**: tiny steps while the model is new, then longer ones. The paper gives update $n$, counted from 1, the rate
#
# $$
# \text{rate}(n) = d_\text{model}^{-0.5} \cdot \min\left(n^{-0.5},\; n \cdot \text{warmup}^{-1.5}\right)
# $$ (eq-schedule)
#
# The second term climbs with $n$ and is the smaller one at first. At $n = \text{warmup}$, 4,000 in the paper, the two are equal, and from there on the first term counts.
#
# **Exercise 1. Write it first** (★, 5 min). Before you read on, write `learning_rate(step, d_model, warmup)` from the formula. `print(check("learning_rate", yours))` says whether it is right, with `check` from `annotated_transformer`.
#
# At $n = \text{warmup}$ both terms give
#
# $$ \text{peak} = \frac{1}{\sqrt{d_\text{model} \cdot \text{warmup}}} $$ (eq-peak)
#
# For the base model that is $1/\sqrt{512 \cdot 4000} = 0.0007$. Written with the peak, the rate is $\text{peak} \cdot n / \text{warmup}$ on the way up and $\text{peak} \cdot \sqrt{\text{warmup} / n}$ on the way down. Ours has this form, because small models may want another peak than the formula's:


# %% tags=["export"]
def learning_rate(
    step: int, d_model: int, warmup: int, peak_lr: float | None = None
) -> float:
    """Return the learning rate of a step, counted from 1 (equation 3).

    The paper's peak follows from d_model and warmup; `peak_lr` takes its place.
    """
    if peak_lr is None:
        peak_lr = 1 / math.sqrt(d_model * warmup)
    rise = step / warmup
    fall = math.sqrt(warmup / step)
    return peak_lr * min(rise, fall)


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-schedule", "caption": "Where is the peak, and how high? The rate of each step for the paper's base model (solid) and for another one. The peak is always at the end of the warm-up. A longer warm-up lowers it; a wider model lowers the whole curve. Once both curves are past their peaks, only the width matters."}}
def schedule_chart(d, w, name):
    looks = {"base": (SKY, [1, 0]), name: (AMBER, [5, 3])}
    shapes = {"base": (512, 4000), name: (d, w)}
    records = [
        {"step": n, "rate": round(learning_rate(n, *shape), 6), "model": label}
        for label, shape in shapes.items()
        for n in [1, *range(200, 30_001, 200)]
    ]
    x = alt.X("step:Q", axis=alt.Axis(values=[0, 10_000, 20_000, 30_000]))
    axis, scale = alt.Axis(format=".4f"), alt.Scale(domain=[0, 0.0011])
    y = alt.Y("rate:Q", title="learning rate", axis=axis, scale=scale)
    tops = {label: learning_rate(w, d, w) for label, (d, w) in shapes.items()}
    names = {label: (w // 2, "below right") for label, (_, w) in shapes.items()}
    higher = max(tops, key=tops.get)
    names[higher] = shapes[higher][1], "above right"
    chart = curves(records, x, y, "model", looks, names).properties(width=290)
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
# The base model's first hundred rates add up to $0.00000017 \cdot (1 + 2 + \dots + 100) = 0.0009$, so for a hundred batches no weight moves by much more than that. After the peak the steps get shorter, because close to a minimum long ones only jump about. It now takes four times the steps to halve the rate, and at the paper's last step, 100,000, it is a fifth of its peak.

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
# Back to our model of width 64. With a warm-up of 200 steps the peak is $1/\sqrt{64 \cdot 200} = 0.0088$, the rate of the bold run.

# %% tags=["nbval-ignore-output"]
slowly = [learning_rate(n, 64, warmup=200) for n in range(1, 301)]
run("warm-up 200", slowly)

# %% tags=["remove-cell"]
if CHECKING:
    assert math.isclose(learning_rate(200, 64, 200), 0.0088, rel_tol=0.01)
    assert abs(last["warm-up 200"] - last["always 0.001"]) < 0.3

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-warm-up-runs", "caption": "What does the warm-up save? Above: two schedules for our small model. Below: its loss under each. Both reach the rate of 0.0088; the run that starts there stays near 4.7, the one that climbs there learns."}}
drawn = {bold: [max(rates)] * 300, "warm-up 200": slowly}
looks = dict(zip(drawn, [(AMBER, [6, 3]), (SKY, [1, 0])]))
records = [
    {"step": n, "value": round(each[n - 1], 5), "rate": name}
    for name, each in drawn.items()
    for n in [1, *range(5, len(stream) + 1, 5)]
]
x, y = alt.X("step:Q", title=None), alt.Y("value:Q", title="learning rate")
names = dict(zip(drawn, [(240, "above"), (100, "below right")]))
above = curves(records, x, y, "rate", looks, names).properties(width=290, height=120)
below = loss_chart(looks, [(110, "above"), (130, "above right")])
show(
    above & below.properties(height=200),
    alt="With a warm-up of 200 steps the loss falls to about 2. Without one it stays near 4.7.",
)

# %% [markdown]
# The run with the warm-up may take long steps in the middle, because it didn't take them at the start. So the warm-up rescues a bold rate. Whether a bold rate beats a tame one, this run can't show. From this one seed it ends level with the constant 0.001, although it spent two thirds of its steps on the warm-up, which in a long run is a small part.
#
# ## Why does a Transformer need a warm-up?
#
# You'll meet four answers:
#
# - Adam's first steps are long and badly aimed, as here.
# - Its estimate of the usual size varies too much at first {cite:p}`liu2020variance`.
# - In post-norm the gradients near the output are large {cite:p}`xiong2020layer`.
# - A step that is too long can switch off [ReLU units](06_feed_forward.ipynb#units-that-never-fire) for good.
#
# They may be links of one chain. Large gradients alone don't make Adam's steps longer, because it divides their size out. But in post-norm a step of the same length also changes the output more {cite:p}`liu2020understanding`, and once the damage is done, little gradient is left to repair it. If so, the bold rate should do less harm with [the norm in front](09_layers.ipynb#why-the-place-of-the-norm-matters) of the sub-layers:

# %% tags=["nbval-ignore-output"]
run(f"{bold}, pre-norm", [max(rates)] * 300, pre_norm=True)

# %% tags=["remove-cell"]
if CHECKING:
    assert min(last, key=last.get) == f"{bold}, pre-norm"

# %% [markdown]
# It learns, and ends lower than any other run on this page, from one seed again. ([The variations](22_variations.ipynb#norm-and-depth) have deeper stacks.) So how much warm-up you need depends on the design.
#
# ## What to remember
#
# - Adam divides an average of the gradient by its usual size. The quotient is 1 for a steady gradient and small for noise, so the rate is the length of a step.
# - Its first step would move nearly every weight by the full rate, although only one batch has been seen. So the rate starts near zero.
# - The rate climbs in a straight line for `warmup` steps, then falls as one over the square root. The peak is $1/\sqrt{d_\text{model} \cdot \text{warmup}}$: 0.0007 for the base model.
# - A loss that is stuck at the entropy of the tokens points to a model that doesn't read its source.
#
# ## Exercises
#
# **1. Write it first** is [above](#up-and-down); the code below it is the solution.
#
# **2. On the way down** (★, 5 min). By hand: what is the base model's rate at step 1,000, and at which step after the peak is it the same again?
#
# :::{admonition} Solution 2
# :class: dropdown
# Step 1,000 is a quarter of the way up, so the rate is $0.0007 / 4 = 0.000175$. On the way down a quarter takes $4 \cdot 4 = 16$ times the steps, because the rate falls as one over the root: $16 \cdot 4{,}000 = 64{,}000$.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    there, back = (learning_rate(n, 512, 4000) for n in (1000, 64_000))
    assert math.isclose(there, back) and abs(there - 0.000175) < 1e-6

# %% [markdown]
# **3. There and back** (★, 10 min). By hand: a weight sees the gradients 3 and −3. How far does Adam move it in the first step and in the second, in units of the rate?
#
# :::{admonition} Solution 3
# :class: dropdown
# In the first step $3 / 3 = 1$, downwards. Then $m = 0.9 \cdot 0.3 - 0.1 \cdot 3 = -0.03$, which is corrected to $-0.03 / (1 - 0.81) = -0.158$. The usual size is still 3, so the second step has length $0.158 / 3 = 0.05$, upwards. The second batch disagrees, and Adam nearly stops. Plain descent would go all the way back.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    zero = torch.zeros(1).double()
    one, m, v = adam_step(zero, torch.tensor([3.0]).double(), zero, zero, 1, rate=1.0)
    two, m, v = adam_step(one, torch.tensor([-3.0]).double(), m, v, 2, rate=1.0)
    assert abs((two - one).item() - 0.158 / 3) < 1e-3

# %% [markdown]
# ## Further
#
# ### With PyTorch's scheduler
#
# PyTorch's own scheduler can follow {eq}`eq-schedule`, if you watch three details. `LambdaLR` multiplies the optimizer's own rate by what your function returns, so that rate must be 1. It calls the function with 0 before the first step, where we count from 1. And `schedule.step()` counts whatever you call it after, though the schedule must count *updates*: where several batches make one update, call it once for all of them. In fp16, where `GradScaler` skips an update whose gradients overflowed, the schedule must not move either. The scale falls exactly then:
#
# :::{margin}
# Harvard's [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) of 2022 calls it after every batch and updates the weights after every tenth, so its warm-up of 3,000 is over after some 300 updates.
# :::
#
# ```python
# before = scaler.get_scale()
# scaler.step(adam)
# scaler.update()
# if scaler.get_scale() >= before:  # the update was made
#     schedule.step()
# ```

# %% tags=["remove-cell"]
if CHECKING:
    weight = torch.tensor([1.0, -2.0], requires_grad=True)
    adam = torch.optim.Adam([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda done: learning_rate(done + 1, 512, 4000)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    used = []
    while len(used) < 5:
        rate = adam.param_groups[0]["lr"]
        adam.zero_grad()
        scale = scaler.get_scale()
        scaler.scale((weight**4).sum()).backward()
        scaler.step(adam)
        scaler.update()
        if scaler.get_scale() >= scale:
            schedule.step()
            used.append(rate)
    expected = torch.tensor([learning_rate(n, 512, 4000) for n in range(1, 6)])
    torch.testing.assert_close(torch.tensor(used), expected)
    assert scaler.get_scale() < 2.0**127

# %% [markdown]
# ### What do models of today use?
#
# Today's schedules are in [since 2017](25_since_2017.ipynb#how-they-are-trained). The optimizer is mostly **AdamW** ([Loshchilov and Hutter](https://arxiv.org/abs/1711.05101)), which lets each weight shrink a little in each step, by the rate times a decay (often 0.1), *beside* the quotient. That is **weight decay**, which the paper doesn't mention and we leave out. If the decay were added to the gradient instead, Adam would divide it by the usual size like everything else, and weights with large gradients would hardly shrink. Biases and the gains of norms are usually spared, because a gain pulled to 0 would silence its norm.
#
# ## Sources
#
# Equation 3 and Adam's constants are from section 5.3 of {cite:t}`vaswani2017attention`, Adam and its bias correction from {cite:t}`kingma2015adam`. {cite:t}`liu2020variance` explain warm-up by the variance of Adam's denominator (their remedy is RAdam), {cite:t}`xiong2020layer` by post-norm's gradients, {cite:t}`liu2020understanding` by the reaction of its output (their remedy is Admin). The loop with the miscounted schedule is `run_epoch` in the code of {cite:t}`rush2018annotated`, as revised in 2022.
