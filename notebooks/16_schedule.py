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
# # Schedule
#
# This chapter sets the size of each training step: Adam, and a learning rate that rises, then falls (section 5.3 of the paper).
#
# A training step asks two questions. In which direction should each weight move, and how far? The gradient answers the first. The second is answered by a number that we choose, the **learning rate**, and a wrong one ruins the run. Too short a step learns nothing in the time we have. Too long a step wrecks the model in its first minute.
#
# We begin with both kinds of failure, on a real model. Then we take the optimizer apart, since what it does in its first steps is the reason that the rate must start small. The paper's formula follows from there, and at the end the same model learns with it.
#
# The package gets one function of three lines from this chapter. The rest is about why it looks as it does.

# %% tags=["export"]
from math import sqrt

# %%
import math
from itertools import islice, pairwise

import altair as alt
import torch
import torch.nn.functional as F

from annotated_transformer.batching import batches, encode_pairs
from annotated_transformer.synchronous_grammar import grammar
from book.figures import INK, KEY, QUERY, VALUE, curves, show
from annotated_transformer.masks import PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

# %% [markdown]
# ## One rate for the whole run
#
# Our model for this chapter is small enough to train in seconds: three layers of width 64, on sentences from [the grammar](B_synchronous_grammar.ipynb). It sees 300 batches and no sentence twice.

# %%
pairs = grammar(14_000, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=600)
stream = list(islice(batches(encode_pairs(tokenizer, pairs), 384, seed=0, epoch=0), 300))
shape = TransformerConfig(len(tokenizer), layers=3, d_model=64, d_ff=256, heads=4, dropout=0.0)
print(len(stream), "batches,", len(tokenizer), "entries in the vocabulary")

# %% [markdown]
# The loss is the cross-entropy of the next token, averaged over those that are not padding. `target[:, :-1]` is what the decoder reads, and `target[:, 1:]` is what it should write: the same sentences, one position apart.
#
# The training loop fits into ten lines. Its only argument is a function that says which rate each step gets. Chapter [Training](18_training.ipynb) builds a loop for long runs.


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
    return losses, model


# %% [markdown]
# Four lines of it are worth a look.
#
# - The rate sits in `param_groups`, where PyTorch's optimizers keep their settings. It may be changed before each step. That is all that a schedule does.
# - `zero_grad` comes before `backward`, because PyTorch adds new gradients to those that are there.
# - `fused=True` computes the same update with fewer passes through memory.
# - The seed is set inside, and `stream` is a list. So all runs have the same first weights and the same batches, and differ in nothing but the rate.
#
# ## Too short, about right, too long
#
# We try three rates, from cautious to bold. Each is kept for the whole run.

# %% tags=["nbval-ignore-output"]
runs = {f"always {rate}": run(lambda step: rate) for rate in (0.0001, 0.001, 0.0088)}
last = {name: sum(losses[-20:]) / 20 for name, (losses, _) in runs.items()}
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
        {"step": n + 10, "loss": round(sum(runs[name][0][n : n + 10]) / 10, 3), "rate": name}
        for name in names
        for n in range(0, 300, 10)
    ]
    y = alt.Y("loss:Q", title="loss a token", scale=alt.Scale(domain=[0, 7]))
    return curves(records, alt.X("step:Q", title="step"), y, "rate", looks)


show(
    loss_chart(looks, looks),
    alt="The loss falls slowly at rate 0.0001, steadily at 0.001, and stays at about 4.7 at 0.0088.",
)

# %% [markdown]
# The cautious run does what it should, only too slowly: after 300 steps it is where the middle one was after some sixty. The bold run is the interesting failure. Its loss drops within twenty steps and then stays where it is. Nothing exploded and no number is infinite, and still it never recovers.
#
# ## Stuck, but at which height?
#
# The height of a plateau often says what a model knows. Let us compute one. A model that says the same probabilities at every position does best if it gives each token its share $p_v$ of the text. Its loss is then $-\sum_v p_v \log p_v$.

# %%
labels = torch.cat([target[:, 1:].flatten() for _, target in stream])
share = labels[labels != PAD].bincount() / (labels != PAD).sum()
print(f"knowing only how frequent each token is: {torch.special.entr(share).sum():.2f}")

# %% [markdown]
# That is where the bold run ended. (`entr` is $-p \log p$, with 0 for $p = 0$.) It has learned how frequent the tokens are, and nothing else. Does it look at the source at all? We give each target the source of its neighbor in the batch. A model that reads its source should notice.

# %% tags=["nbval-ignore-output"]
source, target = stream[-1]
for name in ("always 0.001", "always 0.0088"):
    with torch.no_grad():
        right, wrong = (loss_of(runs[name][1], s, target) for s in (source, source.roll(1, dims=0)))
    print(f"{name:13}  own source {right:.4f}, a neighbor's {wrong:.4f}")
assert abs(right - wrong) < 0.01

# %% [markdown]
# The bold model does not notice. The good one does, though only a little: it has learned first how English sentences go, and has barely begun to translate.
#
# ## What is broken inside?
#
# Two measurements show it. The first is how much the encoder's output differs from position to position, as a standard deviation. The second is the typical gradient in the encoder, after one batch.


# %% tags=["nbval-ignore-output"]
def encoder_state(model):
    model.zero_grad()
    loss_of(model, *stream[0]).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.encoder.parameters()])
    memory = model.encode(stream[0][0]).detach().flatten(0, 1)
    return memory.std(0).mean().item(), gradients.square().mean().sqrt().item()


torch.manual_seed(0)
fresh, bold = encoder_state(Transformer(shape)), encoder_state(runs["always 0.0088"][1])
for name, (spread, gradient) in {"fresh": fresh, "always 0.0088": bold}.items():
    print(f"{name:13}  spread over positions {spread:.4f}, gradient {gradient:.7f}")
assert bold[0] < fresh[0] / 10 and bold[1] < fresh[1] / 10

# %% [markdown]
# The encoder now hands over practically the same vector at every position, whatever stands there. Then it does not matter where cross-attention looks: any weights mix the same vector. So nothing tells its queries and keys where to look instead, and hardly any gradient reaches the encoder. The road by which the source could help is closed, and the loss can only settle on the frequencies.
#
# One could now search for the best constant, and 0.001 is not bad. But keep the number 0.0088 in mind. Later in this chapter the same model takes steps at that very rate, and learns. What kills it is not the length of the steps but taking them *at the beginning*. To see why, we need to know what the optimizer does with a rate.
#
# ## Gradients of very different sizes
#
# Plain gradient descent moves each weight by the rate times its gradient. That presumes that gradients are of similar size everywhere. In a Transformer they are not. We take the gradient of one batch in a fresh model, and the typical size (the root of the mean square) in each of its tensors.

# %%
torch.manual_seed(0)
model = Transformer(shape)
loss_of(model, *stream[0]).backward()
sizes = {name: p.grad.square().mean().sqrt().item() for name, p in model.named_parameters()}
smallest, largest = min(sizes, key=sizes.get), max(sizes, key=sizes.get)
print("smallest:", smallest)
print("largest: ", largest)
assert sizes[largest] > 50 * sizes[smallest]

# %% [markdown]
# One is over fifty times as large as the other, as the assertion says. A rate that suits the one is far too large or far too small for the other. What we want to know about a gradient is not its size but how its size compares with what is usual *for this weight*.
#
# ## Two running averages
#
# **Adam** {cite:p}`kingma2015adam` keeps two numbers for each weight. The first, $m$, is a running average of its gradient $g$: which way it has been pointing lately. The second, $v$, is a running average of $g^2$: how large it usually is, whatever its sign. Adam divides the one by the root of the other.
#
# A running average keeps most of what it has and adds a little of what is new. Its memory is set by $\beta$: a gradient that came $k$ steps ago still counts $\beta^k$ of what it counted at first. With 0.9 that is half after seven steps, since $0.9^7 = 0.48$. With 0.98 it takes 34.
#
# Three gradients of one weight, 2, 2 and then −1, with the paper's $\beta_1 = 0.9$ and $\beta_2 = 0.98$:

# %%
m = v = 0.0
for g in (2.0, 2.0, -1.0):
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g**2
    print(f"gradient {g:4.1f}   m {m:.3f}   root of v {v**0.5:.3f}")

# %% [markdown]
# The second line by hand: $m$ is $0.9 \cdot 0.2 + 0.1 \cdot 2 = 0.38$. And $v$ is $0.98 \cdot 0.08 + 0.02 \cdot 4 = 0.1584$, whose root is 0.398.
#
# Both are much too small. After two gradients of 2, the average should be 2, and so should the usual size. The reason is the start at zero: the first gradient enters with a tenth of its weight, and the other nine tenths are an average of nothing.
#
# How much of the average is real? After $n$ steps the zero still has the weight $\beta^n$. So what has been seen carries $1 - \beta^n$, and dividing by it mends the estimate. This is the **bias correction**: with it, $m$ after two steps is $0.38 / (1 - 0.81) = 2$, as it should be, and $v$ is $0.1584 / (1 - 0.9604) = 4$, with the root 2.
#
# One could as well start the averages at the first gradient. But a single gradient is a poor start for a memory of fifty: it would keep a large weight for dozens of steps. Corrected from zero, all gradients so far count about alike, and the average becomes better with each.
#
# ## The whole update
#
# Here it is, with hats for the corrected averages and $\theta$ for the weight:
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
# All of this happens for each weight by itself. A matrix of 64 × 64 weights has an $m$ and a $v$ of the same shape, and no weight hears of another. The small $\epsilon$, $10^{-9}$ in the paper, only keeps a weight that never had a gradient from dividing by zero. In code it is one line an equation.


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
# The quotient of the two averages is a pure number. Multiply every gradient by a thousand, and it stays the same. If a gradient is the same in each step, the quotient is 1. If it flips its sign at random, the averages of $g$ cancel and the quotient is small. So Adam goes far where the batches agree, and stays put where they contradict each other.
#
# The rate, then, is a length: how far a weight moves in one step if the batches agree. A rate of 0.001 moves it from 0.050 to 0.051, whatever the loss is multiplied by and whatever layer the weight is in. That makes the choice of a rate much easier.
#
# ## Can a step be longer than the rate?
#
# Yes, but not by much. The first average forgets faster than the second. A gradient that grows all the time is already large in $m$ while $v$ still remembers that it was small. The worst case is a gradient that grows by the factor $\beta_2 / \beta_1$ in each step. Then the quotient climbs to
#
# $$ \frac{1 - \beta_1}{\sqrt{(1 - \beta_2)(1 - \beta_1^2 / \beta_2)}}, $$ (eq-longest-step)
#
# and no other sequence of gradients gets further (the inequality of Cauchy and Schwarz, applied to the two sums, says so). We let one grow, and compare.

# %%
zero = m = v = torch.zeros(1, dtype=torch.float64)
for n in range(1, 501):
    g = (0.98 / 0.9) ** torch.tensor([n]).double()
    moved, m, v = adam_step(zero, g, m, v, n, rate=1.0)
longest = {beta: 0.1 / math.sqrt((1 - beta) * (1 - 0.81 / beta)) for beta in (0.98, 0.999)}
print(f"a growing gradient: {-moved.item():.2f} times the rate")
print({f"by the formula, β₂ = {beta}": round(times, 2) for beta, times in longest.items()})

# %% [markdown]
# With the paper's constants a step is at most 1.7 times the rate. With PyTorch's default of 0.999 it could be 7.3 times. Real gradients do not grow for so long. But they do jump, when a rare kind of sentence comes by. A gradient that is huge beside all earlier ones gives the quotient $(1 - \beta_1) / \sqrt{1 - \beta_2}$. That is $0.1 / 0.141 = 0.7$ with 0.98, and $0.1 / 0.032 = 3.2$ with 0.999. The paper's shorter memory keeps surprises short.
#
# ## The first step
#
# The scheme has a consequence for the very first step. With one gradient seen, $\hat m = g$ and $\sqrt{\hat v} = |g|$. The quotient is 1 or −1, for *every* weight. We check it on the model.

# %%
before = [p.detach().clone() for p in model.parameters()]
torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9).step()
moved = torch.cat([(p - old).abs().flatten() for p, old in zip(model.parameters(), before)])
seen = torch.cat([p.grad.flatten() for p in model.parameters()]).abs() > 1e-6
assert ((moved[seen] - 0.01).abs() < 1e-4).all() and seen.float().mean() > 0.9
share = ((moved - 0.01).abs() < 1e-4).float().mean()
print("over 95 % of the weights moved by 0.01:", bool(share > 0.95))
assert len(stream[0].source) == 27

# %% [markdown]
# Every weight with a gradient worth the name moved by exactly the rate. It did not matter whether the gradient was large or small, or whether a second batch would have said the opposite. One batch of 27 sentences decided for some 380,000 weights, at full length.
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
# In the first step, noise moves each weight as far as the clearest signal would. After 20 steps the average has cancelled most of it, and a step on pure noise is a quarter as long. It does not get much shorter: in the limit it is close to $\sqrt{(1 - \beta_1)/(1 + \beta_1)} = 0.23$, the spread of an average with memory $\beta_1$.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-noise-steps", "caption": "How far does Adam go when there is nothing to learn? Typical length of a step on random gradients, in units of the rate, for the paper's memory (solid) and with no averaging of the gradient (dashed). Only averaging tells noise from signal, and it needs about twenty steps to do so."}}
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
# ## The usual size is a guess, too
#
# Not only the direction is uncertain at first. The paper's $\beta_2 = 0.98$ looks back about $1 / (1 - 0.98) = 50$ steps, where 0.999 looks back a thousand. Until that many batches have come by, $\hat v$ rests on fewer of them. Suppose that all gradients of a weight so far happen to be a tenth of what is usual for it. Adam takes them for usual and moves the weight by the full rate, ten times too far. How often does that happen, if gradients are normally distributed?

# %%
random = torch.Generator().manual_seed(0)
first = torch.randn(1, 20_000, generator=random).square().mean(0).sqrt()
fifty = torch.randn(50, 20_000, generator=random).square().mean(0).sqrt()
print(f"size underestimated tenfold, from  1 gradient:  {(first < 0.1).float().mean():.0%}")
print(f"size underestimated tenfold, from 50 gradients: {(fifty < 0.1).float().mean():.0%}")

# %% [markdown]
# After the first step, that is so for 8 % of all weights. With fifty gradients it does not happen any more.
#
# Add to this that the gradients themselves say least at the start. A fresh model has a loss of nearly 7, and all that lies between that and 4.64 can be had from the frequencies alone. So what the layers hear first is mostly how to make the frequent tokens more probable, and that advice is the same at every position. Longest steps, poorest directions: the bold run followed them until all positions were alike.
#
# ## Up and down in one line
#
# The remedy is plain. Take tiny steps while the estimates settle, then longer ones. That is the **warm-up**. And from a peak on, take shorter and shorter ones, since close to a minimum long steps only jump about. The paper writes both as two curves of which the smaller one counts:
#
# $$
# \text{rate}(n) = d_\text{model}^{-0.5} \cdot \min\left(n^{-0.5},\; n \cdot \text{warmup}^{-1.5}\right)
# $$ (eq-schedule)
#
# The second term grows in a straight line with the step $n$. The first falls as one over the root of $n$. Before they meet the second is the smaller one, and after that the first. So the minimum is no safety device but a switch: "climb, then fall" without an `if`.
#
# And a wide model takes smaller steps than a narrow one. Each output of a layer is a sum over $d_\text{model}$ weights. In the first step all of them move by the rate. If the moves were unrelated, their effect would add up like a random walk, to $\sqrt{d_\text{model}}$ times that of one. Dividing the rate by this root keeps the effect on the output alike for all widths.
#
# We add a factor of our own, `lr_scale`, which is 1 in the paper, because small models on small data often do better with another one.


# %% tags=["export"]
def learning_rate(step: int, d_model: int, warmup: int, lr_scale: float = 1.0) -> float:
    """Return the learning rate of a step, counted from 1 (equation 3, times lr_scale).

    Raises ValueError for a step or warm-up below 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step and warmup count from 1, not from {min(step, warmup)}")
    return lr_scale / sqrt(d_model) * min(1 / sqrt(step), step / (warmup * sqrt(warmup)))


# %% [markdown]
# The code writes $\text{warmup}^{-1.5}$ as one over warm-up times its root, which is the same number. Steps count from 1. At step 0 the first term divides by zero. Some implementations set the rate to 0 there, and their first batch teaches nothing.
#
# The numbers of the base model, with the two terms side by side:

# %%
for n in (1, 1000, 4000, 16_000, 100_000):
    down, up, rate = n**-0.5, n * 4000**-1.5, learning_rate(n, 512, 4000)
    print(f"step {n:6}   n^-0.5 {down:.5f}   n · 4000^-1.5 {up:.5f}   rate {rate:.7f}")

# %% [markdown]
# ## Is that not far too careful?
#
# In the first step the rate is 0.00000017. Add up the first hundred rates: $0.00000017 \cdot (1 + 2 + \dots + 100) = 0.0009$. So for a hundred batches all weights stay where they were, up to the third decimal, while Adam's averages fill with real gradients. A hundred batches of 100,000 is a low price.
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
# For the base model, with 512 and 4,000, that is $1/\sqrt{2{,}048{,}000} = 0.0007$. Note the side effect: a warm-up four times as long halves the peak. Whoever changes the one changes the other, and a comparison of warm-ups with this formula is also a comparison of peaks.
#
# Written with the peak, the schedule is easier to picture: $\text{peak} \cdot n / \text{warmup}$ on the way up, $\text{peak} \cdot \sqrt{\text{warmup} / n}$ on the way down. We check this second form against the first, and look for the peak by trying all steps.

# %%
peak = 1 / math.sqrt(512 * 4000)
for n in range(1, 20_001):
    expected = peak * (n / 4000 if n <= 4000 else math.sqrt(4000 / n))
    assert math.isclose(learning_rate(n, 512, 4000), expected)
assert max(range(1, 20_001), key=lambda n: learning_rate(n, 512, 4000)) == 4000
print(f"peak {peak:.6f}; at step 16000, {learning_rate(16_000, 512, 4000) / peak:.2f} of it")

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
# ## Can PyTorch's scheduler do this?
#
# Yes, and two details go wrong easily. `LambdaLR` multiplies the optimizer's own rate by what a function returns. So the optimizer's rate must be 1. And it calls the function with 0 before the first step, where we count from 1.

# %%
adam = torch.optim.Adam([weight], lr=1.0)
schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda done: learning_rate(done + 1, 512, 4000))
for n in range(1, 6):
    assert math.isclose(adam.param_groups[0]["lr"], learning_rate(n, 512, 4000))
    adam.step()
    schedule.step()
print("LambdaLR gives the same rates")

# %% [markdown]
# With `lr=0.001` left in place, every rate would be a thousand times too small, and the run would look like the cautious one above, or worse. We set the rate ourselves. It takes one line, and there is no counter that could get out of step.
#
# ## The same rate, reached slowly
#
# Back to our model of width 64. With a warm-up of 200 steps the peak is $1/\sqrt{64 \cdot 200} = 0.0088$, the rate that wrecked the bold run. With a warm-up of 20 it is 0.028. We train both.

# %% tags=["nbval-ignore-output"]
for warmup in (20, 200):
    runs[f"warm-up {warmup}"] = run(lambda step: learning_rate(step, 64, warmup))
    last[f"warm-up {warmup}"] = sum(runs[f"warm-up {warmup}"][0][-20:]) / 20
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
    alt="With a warm-up of 200 steps the loss falls throughout. Without one, or with 20 steps, it stays near 4.7.",
)

# %% [markdown]
# Compare the dashed run with the blue one. Same model, same batches, same largest rate, and the main difference is how it is reached. The blue run may take long steps in the middle, because it did not take them at the start. It ends about where the best of our constants ends, although it spent two thirds of the run on the way up. The dotted run shows that climbing alone is no protection: within twenty steps it is at a rate three times as high.
#
# ## Is warm-up a law of nature?
#
# It is not. It belongs to this design: layer normalization *after* the addition, and Adam. Pre-norm models, built as the alternative in [Layers](09_layers.ipynb), are far less sensitive and can do with a short warm-up or none {cite:p}`xiong2020layer`. And a constant rate small enough for the start works as well, in more steps: our run at 0.001 needed no warm-up.
#
# What the schedule buys is the middle of the run. The rate that a trained model can bear is higher than the one a fresh model can bear. A constant has to suit both.
#
# ## Three ways to get it wrong
#
# ### A decimal point
#
# The exponent of the width is minus one half. Some copies of the formula have lost the point and say $d_\text{model}^{-5}$.

# %%
wrong = 512**-5.0 * 4000**-0.5
print(f"peak {wrong:.0e}; a weight of 1 moves:", bool(torch.ones(1) - wrong != torch.ones(1)))
assert wrong < torch.finfo(torch.float32).eps / 1e6

# %% [markdown]
# The next 32-bit number above 1 is 0.0000001 away. A change that small cannot be stored, let alone $4 \cdot 10^{-16}$. Training runs, the loss stays where it started, and nothing complains. Print the rate of step 1 and of the peak before a long run; that is all it takes to find this.
#
# ### "Exponential decay"
#
# An exponential loses the same share in each interval. This curve loses less and less: to halve, it takes four times the steps, whatever the step.

# %%
halved = [4000 * 4**k for k in range(5)]
print([(n, round(learning_rate(n, 512, 4000) / peak, 4)) for n in halved])
for n, after in pairwise(halved):
    assert math.isclose(learning_rate(after, 512, 4000), learning_rate(n, 512, 4000) / 2)

# %% [markdown]
# An exponential with the same first halving, 12,000 steps after the peak, would be down to a quarter at step 28,000. Here that takes until 64,000. At the paper's last step, 100,000, the rate is still a fifth of its peak, since $\sqrt{4000 / 100000} = 0.2$. An exponential would have halved eight times and left 0.4 %.
#
# ### A schedule that counts batches
#
# When memory is short, several small batches are added up to one update. The schedule must count updates. If it is moved at every small batch, of which ten make one update, everything happens ten times too soon:

# %%
for update in (40, 400, 728):
    right, fast = (learning_rate(n, 512, 4000) for n in (update, 10 * update))
    print(f"update {update:3}: rate {right:.6f}, counted per batch {fast:.6f}")
assert max(range(1, 4001), key=lambda n: learning_rate(10 * n, 512, 4000)) == 400

# %% [markdown]
# The warm-up is over after 400 updates in place of 4,000. In one public run that had this slip, the schedule had made 7,256 steps when the weights had made 728. The table shows what it meant: a rate ten times too high for 400 updates and still four times too high at 728, which is just where it hurts. Later the error turns around. After update 1,857 the rate is too low, at 4,000 by the factor $\sqrt{10} = 3.2$.
#
# ## Questions that come up
#
# ### Why a warm-up of 4,000?
#
# The paper does not say. As a share of its 100,000 steps it is 4 %. In our short runs, 200 of 300 was good because the rest of the formula ties the peak to the warm-up: a short one means a high peak. The factor `lr_scale` cuts that tie. Choose the warm-up for a safe start, then the factor for the peak; exercise 5 does it once.
#
# ### What is the factor for?
#
# It stands in many implementations and not in the paper, where it is 1. Another common form asks for the peak itself, and multiplies by $\text{warmup}^{0.5}$ in place of $d_\text{model}^{-0.5}$. Both are the same family of curves with another name for the height. When you compare settings of two programs, compare peaks, not factors.
#
# ### Why one over the root?
#
# The paper gives no reason. It has a practical side: this curve needs no end. A straight line or a cosine down to zero must know the last step in advance, and a run that goes on longer has nothing left to learn with. With the root one may stop at any step, or go on. Later work often uses schedules that end near zero, where the last steps no longer jump about.
#
# ### Does the schedule start anew when training is resumed?
#
# It must not. A second warm-up wastes its steps, and the peak after it disturbs a model that was nearly done. Our rate is a function of the step number alone, so it is enough to save that one number. PyTorch's schedulers keep a counter of their own, which has to be saved and loaded beside the optimizer. Adam's averages belong into the file as well: without them the first step after the pause has full length again.
#
# ### Is the rate per batch or per sentence?
#
# Per update. The paper's updates see 25,000 target tokens. Ours see 384 positions at most, so their gradients are noisier. Noisier gradients ask for a lower rate or a longer warm-up.
#
# ### Why is $\beta_2$ 0.98?
#
# The paper does not say. A memory of 50 steps follows changes faster, and gradients change a lot while the rate climbs. It also keeps the longest step short, as we saw. The authors' later code went to 0.997, with twice the warm-up. Neither is sacred.
#
# ### Does Adam need memory?
#
# Two numbers for each weight, besides the gradient. A model of 63 M weights keeps four times 252 MB while it trains: weights, gradients, $m$ and $v$, each 4 bytes a number.
#
# ## What to remember
#
# - Adam divides a running average of the gradient by the root of a running average of its square. The quotient is 1 for a steady gradient and small for noise, so the rate is the length of a step.
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
# is 3: 0.05 upwards. The second batch disagrees, and Adam nearly stops. Plain descent would go all the way back.
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
# **5. Cut the tie.** Find the `lr_scale` that gives a model of width 128 and a warm-up of 200 the base model's peak.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# factor / sqrt(128 * 200) = 1 / sqrt(512 * 4000), so lr_scale = sqrt(128 * 200 / (512 * 4000)) = 0.11.
lr_scale = math.sqrt(128 * 200 / (512 * 4000))
assert math.isclose(learning_rate(200, 128, 200, lr_scale), peak)
print(f"{lr_scale:.2f}")

# %% [markdown]
# ## Sources
#
# Equation 3 and Adam's constants are from section 5.3 of {cite:t}`vaswani2017attention`; Adam and its bias correction from {cite:t}`kingma2015adam`. Later values of the authors' own code are from its public repository.
