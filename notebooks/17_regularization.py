# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Regularization
#
# This chapter keeps the model from learning its sentences by heart and from being too sure of itself, with dropout and label smoothing (section 5.4 of the paper).
#
# In 100,000 updates of 25,000 target tokens, the paper's base model reads each of its 4.5 million pairs (of some 28 tokens) about twenty times, and its 63 million weights could store a good part of them. Would anybody notice? What has been learned by heart lowers the training loss just as well as what has been understood.
#
# The paper has two remedies, and both are odd: one breaks what the layers say to each other, the other gives the model labels that are slightly wrong.
#
# ## Dropout
#
# ### Learning by heart
#
# A small model reads 200 pairs from [the grammar](13_data.ipynb#a-pair-and-its-alignment) again and again. Another 200 are **held out**: the model never trains on them. They are what counts, because the sentences that you translate are new.

# %% tags=["hide-input"]
import math
from itertools import chain, count
from statistics import mean, stdev

import altair as alt
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.batching import batches, collate, encode_pairs
from annotated_transformer.masks import PAD
from annotated_transformer.schedule import learning_rate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    evaluating,
)
from benchmarks.common import read_log
from book.figures import AMBER, INK, SKY, curves, show, show_steps

# %%
pairs = grammar(5200, seed=1)
tokenizer = Tokenizer.train(pairs[:5000], vocabulary_size=600)
few = encode_pairs(tokenizer, pairs[:200])
own = collate([*few])
held_out = collate([*encode_pairs(tokenizer, pairs[5000:])])

# %% [markdown]
# The loss is the plain cross-entropy of the next token:


# %%
def loss_on(batch, model):
    logits = model(batch.source, batch.target[:, :-1])
    labels = batch.target[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)


# %% [markdown]
# The loop is that of [the previous chapter](16_schedule.ipynb#what-a-constant-rate-does), for 300 steps, with a model of one layer. The rate climbs to about half of what the paper's formula gives, and every 25 steps we measure the loss on both kinds of pairs, without dropout.


# %%
def practice(dropout):
    torch.manual_seed(0)
    sizes = {"layers": 1, "d_model": 64, "d_ff": 256, "heads": 4}
    model = Transformer(TransformerConfig(len(tokenizer), dropout=dropout, **sizes))
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    epochs = (batches(few, 256, seed=0, epoch=epoch) for epoch in count())
    log = []
    for step, batch in zip(range(1, 301), chain.from_iterable(epochs)):
        adam.param_groups[0]["lr"] = learning_rate(step, 64, warmup=100, peak_lr=0.006)
        adam.zero_grad()
        loss_on(batch, model).backward()
        adam.step()
        if step % 25 == 0:
            with evaluating(model):
                losses = [loss_on(batch, model).item() for batch in (own, held_out)]
            log.append([step, *losses])
    return model, log


# %% [markdown]
# The loss on its own 200 pairs will fall. Where will the loss on the other 200 go?

# %% tags=["nbval-ignore-output"]
by_heart, log = practice(dropout=0.0)
for step, known, new in log[1::2]:
    print(f"step {step:3}: on its own pairs {known:.2f}, on new ones {new:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    best = min(new for _, _, new in log)
    assert log[-1][2] > log[-1][1] + 1.5 and log[-1][2] > best + 0.2

# %% [markdown]
# The model can soon recite its 200 pairs, and gets worse at new ones while it practices. This is **overfitting**, and only sentences that the model hasn't seen reveal it.
#
# Why does the loss on new sentences *rise*, instead of leveling off? Look at the probabilities that the model gives to the right word of each new sentence:

# %% tags=["nbval-ignore-output"]
with evaluating(by_heart):
    p = by_heart(held_out.source, held_out.target[:, :-1]).softmax(-1)
labels = held_out.target[:, 1:]
right = p.gather(-1, labels[..., None])[..., 0][labels != PAD]
print(f"above 90% at {(right > 0.9).float().mean():.0%} of the positions")
print(f"below 0.1% at {(right < 0.001).float().mean():.0%}")

# %% tags=["remove-cell"]
if CHECKING:
    dear = -right[right < 0.001].log().sum() / -right.log().sum()
    assert (right < 0.001).float().mean() > 0.05 and dear > 0.3

# %% [markdown]
# To lower the loss on its own sentences further, the model pushes their words towards 100%. So it is sure of much in new sentences, too, and often wrong. A word that was given 0.1% costs $-\log 0.001 = 6.9$ **nats**. (A nat is the unit of a loss with natural logarithms.) In the run shown the right word has less than that at 13% of the positions, and these alone bring at least $0.13 \cdot 6.9 = 0.9$ of the 2.57 nats per token.
#
# You could stop at the lowest point, which is called [early stopping](18_training.ipynb#whether-it-gets-better). But it would be better to keep the model from learning by heart at all.
#
# ### What dropout does
#
# Learning by heart often hangs on a few details. If one component of one layer says "this is pair 117", the rest of the sentence follows. **Dropout** sets each number $x$ of a vector to zero with probability $p$, anew in each step, so a layer that reads the vector can't count on any one component and has to spread its bets. The survivors are divided by $1 - p$. With $b$ for a coin that shows 1 with probability $1 - p$, and 0 otherwise:
#
# $$
# \operatorname{dropout}(x) = \frac{b\,x}{1 - p}, \qquad
# \mathbb{E}[\operatorname{dropout}(x)] = \frac{(1 - p)\,x + p \cdot 0}{1 - p} = x
# $$ (eq-dropout)
#
# Zeroing alone would shrink the mean, and the division restores it.


# %%
def dropout(x, p):
    coin = torch.empty_like(x).bernoulli_(1 - p)
    return coin * x / (1 - p)


x = torch.tensor([1.0, 2.0, 3.0, 4.0])
torch.manual_seed(3)
for _ in range(3):
    print(dropout(x, p=0.3))
print("mean:", dropout(x.expand(100_000, 4), p=0.3).mean(0).round(decimals=1))

# %% tags=["remove-cell"]
if CHECKING:
    many_x = x.expand(100_000, 4)
    torch.manual_seed(1)
    ours = dropout(many_x, 0.3)
    torch.manual_seed(1)
    torch.testing.assert_close(nn.Dropout(0.3)(many_x), ours)
    assert abs(3 / 0.7 - 4.29) < 0.01

# %% [markdown]
# A 3 becomes 0 or $3 / 0.7 = 4.29$, and on average it is still 3. A vector of 64 numbers loses about 19 of them at $p = 0.3$, different ones at each position and in each step, and no word is lost as a whole.
#
# The model has dropout already, as `nn.Dropout`. We train again on the same 200 pairs:

# %% tags=["nbval-ignore-output"]
rate = 0.3
logs = {0.0: log, rate: practice(dropout=rate)[1]}
for p, losses in logs.items():
    new = [loss for _, _, loss in losses]
    print(f"dropout {p}: on new pairs {min(new):.2f} at best, {new[-1]:.2f} at the end")

# %% tags=["remove-cell"]
if CHECKING:
    assert logs[0.3][-1][2] < min(loss for _, _, loss in logs[0.0])
    turn = min(logs[0.0], key=lambda entry: entry[2])[0]
    assert 100 <= turn <= 200, turn

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-overfitting", "caption": "Does a lower training loss mean a better model? Loss on the 200 pairs that a model repeats and on 200 new ones. Without dropout, the loss on new pairs turns up after some 150 steps, while the other goes on towards zero. With dropout both fall more slowly, and the loss on new pairs ends lower than it ever was without."}}
looks = {
    "no dropout, new": (AMBER, [1, 0]),
    "no dropout, own": (SKY, [1, 0]),
    f"dropout {rate}, new": (AMBER, [6, 3]),
    f"dropout {rate}, own": (SKY, [6, 3]),
}


records = [
    {"step": step, "loss": round(loss, 3), "run": f"{name}, {whose}"}
    for p, name in ((0.0, "no dropout"), (rate, f"dropout {rate}"))
    for step, *both in logs[p]
    for whose, loss in zip(("own", "new"), both)
]
y = alt.Y("loss:Q", title="loss, nats per token")
places = [(250, "above"), (225, "above"), (100, "above right"), (250, "below")]
names = dict(zip(looks, places))
drawn = curves(records, alt.X("step:Q", title="step"), y, "run", looks, names)
ends = {p: [f"{loss:.1f}" for loss in logs[p][-1][1:]] for p in logs}
show(
    drawn.properties(width=300, height=220),
    alt=f"Without dropout the loss on new pairs turns and ends at {ends[0.0][1]} while the loss on its own pairs goes to {ends[0.0][0]}. With dropout {rate} the loss on new pairs ends at {ends[rate][1]}.",
)

# %% [markdown]
# ### Why must I call `model.eval()`?
#
# Because dropout must be off when the model is used. `eval` flips the switch `training` in each module; it has nothing to do with gradients, which `torch.no_grad()` turns off. If you forget it, the model still translates, a little worse, and differently each time:

# %%
layer = nn.Dropout(0.3)
torch.manual_seed(0)
print("in training:  ", *[layer(x).numpy().round(2) for _ in range(2)])
layer.eval()
print("in evaluation:", *[layer(x).numpy().round(2) for _ in range(2)])

# %% [markdown]
# ### Where is dropout in the Transformer?
#
# The paper names two places: the output of each sub-layer, before it is added to the residual stream, and the sum of embedding and position, on both sides. Only there, at the bottom, does dropout hit the residual stream itself. In the layers it hits what a sub-layer *adds*, so where a component is dropped, the stream passes through unchanged.
#
# The rate should be higher where there is less text for each weight. The paper takes 0.1 for base and 0.3 for the larger model, big; for big on the French corpus, with eight times as many pairs, 0.1 is enough. Its Table 3 says what is at stake: base has a [BLEU](20_evaluation.ipynb#the-tool-and-its-signature) (higher is better) of 24.6 without dropout, 25.8 with 0.1, 25.5 with 0.2.

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer.transformer import preset

    base = Transformer(preset("base", vocabulary_size=100)).train()
    calls = []
    for part in base.modules():
        if isinstance(part, nn.Dropout) and part.p > 0:
            part.register_forward_hook(lambda *_: calls.append(1))
    base(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]]))
    assert len(calls) == 2 + 6 * 2 + 6 * 3

# %% [markdown]
# ## Label smoothing
#
# ### Why smooth the labels?
#
# With plain cross-entropy, a model is never done. To give the right word 100%, its logit would have to be infinitely far above the others:

# %%
for lead in (2, 5, 10, 15):
    p = torch.tensor([float(lead), *[0.0] * 999]).softmax(0)[0].item()
    print(f"{lead:2} above 999 others: probability {p:.4f}, loss {-math.log(p):.4f}")

# %% [markdown]
# Even at 96%, more certainty still lowers the loss. Yet there is seldom one right word. After *the black cat*, the training text happens to have `likes`, where `loves` would do as well. A model that bets everything on the one has learned an accident.
#
# **Label smoothing** takes a share $\epsilon$ of the probability from the right word $y$ and deals it out evenly to all $|V|$ words of the vocabulary. The bracket is 1 for the right word and 0 for all others:
#
# $$ q_v = (1 - \epsilon)\,[v = y] + \frac{\epsilon}{|V|} $$ (eq-smooth)
#
# The paper uses $\epsilon = 0.1$. It is a crude remedy, because `loves` is a near miss and `the` is nonsense, and both get the same share.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smooth-labels", "caption": "What is the model asked to say after *the black cat*? The hard label (outline) puts everything on `likes`. Smoothing (filled) takes a share from it and deals it out evenly to all eight words of a made-up vocabulary, fitting or not."}}
WORDS = ["the", "black", "cat", "likes", "loves", "eats", "fish", "."]


def labels_chart(share):
    q = {w: (1 - share) * (w == "likes") + share / 8 for w in WORDS}
    rows = [
        {"word": w, "q": round(q[w], 4), "hard": float(w == "likes")} for w in WORDS
    ]
    bars = alt.Chart(alt.Data(values=rows))
    axis = alt.X("word:N", sort=WORDS, title=None, axis=alt.Axis(labelAngle=0))
    scale = alt.Scale(domain=[0, 1.1])
    y = alt.Y("q:Q", title="probability asked for", scale=scale)
    chart = alt.layer(
        bars.mark_bar(color=SKY).encode(axis, y),
        bars.mark_bar(filled=False, stroke=INK, strokeDash=[4, 3]).encode(
            axis, alt.Y("hard:Q", scale=scale)
        ),
        bars.mark_text(dy=-7).encode(axis, y, alt.Text("q:Q", format=".4~f")),
    )
    said = f"likes is asked for with {q['likes']:.4f}, each of the others with {q['the']:.4f}"
    return chart.properties(width=330, height=170), f"With a share of {share}, {said}."


show_steps({f"ε = {s}": labels_chart(s) for s in (0.0, 0.1, 0.3)}, "How much?", start=2)

# %% [markdown]
# **Exercise 1. Write it first** (★, 10 min). Before you read on, write `smoothed_loss(logits, labels, smoothing)`: the mean of $-\sum_v q_v \log p_v$ over all rows whose label is not 0, which is padding. `print(check("smoothed_loss", yours))` says whether it is right, with `check` from `annotated_transformer`.
#
# The loss is the cross-entropy of $q$ with the model's distribution $p$, and we can write it as it stands:


# %%
def smoothed(labels, smoothing, vocabulary):
    hard = F.one_hot(labels, vocabulary).double()
    return (1 - smoothing) * hard + smoothing / vocabulary


def loss_by_hand(logits, labels, smoothing):
    q = smoothed(labels, smoothing, logits.shape[-1])
    losses = -(q * logits.log_softmax(-1)).sum(-1)
    return losses[labels != PAD].sum()


# %% [markdown]
# PyTorch has the same in one call, which does not build $q$. Ours returns a sum, because [an update divides](18_training.ipynb#the-mean-over-all-tokens) by the tokens of all its batches.

# %% tags=["export", "hide-input"]
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.masks import PAD
from annotated_transformer.transformer import Transformer


# %% tags=["export"]
def label_smoothed_loss(
    logits: Tensor, labels: Tensor, label_smoothing: float = 0.1
) -> Tensor:
    """Cross-entropy with smoothed labels in nats, summed over real tokens (section 5.4).

    Takes logits (..., |V|) and labels (...); labels that are PAD are ignored.
    """
    return F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


# %%
torch.manual_seed(0)
logits = torch.randn(3, 5, 11, dtype=torch.float64)
labels = torch.tensor([[4, 5, 6, PAD, PAD], [7, 8, 9, 10, 4], [5, PAD, PAD, PAD, PAD]])
for smoothing in (0.0, 0.1, 0.5):
    by_hand = loss_by_hand(logits, labels, smoothing)
    loss = label_smoothed_loss(logits, labels, smoothing)
    print(f"ε = {smoothing}: {loss:.2f}, by hand {by_hand:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    for smoothing in (0.0, 0.1, 0.5):
        found = label_smoothed_loss(logits, labels, smoothing)
        torch.testing.assert_close(found, loss_by_hand(logits, labels, smoothing))

# %% [markdown]
# ### Padding doesn't count
#
# Where the label is padding, the position adds nothing to the loss; the comparison above has such labels. A loss that counts padding trains the model to say `<pad>`. But `</s>` is a label like any word, since a model that never learns to say it doesn't stop.
#
# ### The gradient
#
# Since the $q_v$ sum to 1, the loss $-\sum_v q_v \log p_v$ is $\log \sum_i e^{z_i} - \sum_v q_v z_v$, where $z$ are the logits. The first term has the derivative $p_v$, the second $q_v$:
#
# $$ \frac{\partial\, \text{loss}}{\partial z_v} = p_v - q_v $$ (eq-loss-gradient)
#
# Each logit is pulled down by what the model says and up by what it should say, until the two agree. Four words, the last one right, $\epsilon = 0.2$, so $q = (0.05, 0.05, 0.05, 0.85)$:
#
# | the model says $p$ | gradient with a hard label | gradient with $q$ |
# |---|---|---|
# | 0.10, 0.20, 0.30, 0.40 | 0.10, 0.20, 0.30, −0.60 | 0.05, 0.15, 0.25, −0.45 |
# | 0.05, 0.05, 0.05, 0.85 | 0.05, 0.05, 0.05, −0.15 | 0, 0, 0, 0 |
# | 0.01, 0.01, 0.01, 0.97 | 0.01, 0.01, 0.01, −0.03 | −0.04, −0.04, −0.04, 0.12 |
#
# Descent moves against the gradient. In the last row the hard label still raises the right word, and the smoothed one lowers it again.

# %% tags=["remove-cell"]
if CHECKING:
    for smoothing in (0.0, 0.1, 0.5):
        z = logits.clone().requires_grad_()
        label_smoothed_loss(z, labels, smoothing).backward()
        q = smoothed(labels, smoothing, 11)
        slope = (logits.softmax(-1) - q) * (labels != PAD)[..., None]
        torch.testing.assert_close(z.grad, slope)
    for p in ([0.1, 0.2, 0.3, 0.4], [0.05, 0.05, 0.05, 0.85], [0.01, 0.01, 0.01, 0.97]):
        z = torch.tensor([p], dtype=torch.float64).log().requires_grad_()
        label_smoothed_loss(z, torch.tensor([3]), 0.2).backward()
        expected = torch.tensor([p]) - torch.tensor([[0.05, 0.05, 0.05, 0.85]])
        torch.testing.assert_close(z.grad, expected.double(), atol=1e-6, rtol=0)

# %% [markdown]
# ### Why does my loss stop above 1?
#
# Because the smoothed labels have an entropy of their own. Even a model that says exactly $q$ pays
#
# $$ H(q) = -\sum_v q_v \log q_v. $$ (eq-entropy)
#
# With 37,000 words, the right one adds $-0.9 \cdot \log 0.9 = 0.095$. Each of the small shares is $0.1 / 37{,}000 = 1 / 370{,}000$, so together they add $0.1 \cdot \log 370{,}000 = 1.282$. That makes 1.38 nats per token. Whatever a model pays above that is the **Kullback-Leibler divergence** $\operatorname{KL}(q \,\|\, p)$, which some programs report instead. The **perplexity** leaves smoothing aside: it is $e$ to the power of the plain loss $-\log p_y$.
#
# Here are perplexity and smoothed loss for four models. Each gives the right word the probability $c$, and shares the rest evenly among the other words; the first knows nothing. Which of them has the lowest smoothed loss?

# %%
V = 37_000
q = smoothed(torch.tensor(0), 0.1, V)
for c in (1 / V, 0.5, q[0].item(), 0.9999):
    p = torch.full((V,), (1 - c) / (V - 1), dtype=torch.float64)
    p[0] = c
    loss = -(q * p.log()).sum()
    print(f"c = {c:.4f}: perplexity {1 / c:,.2f}, smoothed loss {loss:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    floor = -(q * q.log()).sum()
    assert abs(floor - 1.38) < 0.005 and loss > floor
    assert abs(-q[0] * q[0].log() - 0.09) < 0.005
    assert abs(-(q[1:] * q[1:].log()).sum() - 1.28) < 0.005
    small = smoothed(torch.tensor(0), 0.1, 4000)
    assert abs(-(small * small.log()).sum() - 1.15) < 0.005

# %% [markdown]
# By its perplexity, the model that says 99.99% is the best one; by the smoothed loss it is worse than even the one that says 50%, because it is surer than its labels are. So smoothing costs perplexity, in the paper 4.92 instead of 4.67 (Table 3, row D). And two smoothed losses can be compared only if vocabulary and $\epsilon$ are the same; for perplexities the same vocabulary is enough.
#
# ### What smoothing does to a model
#
# In the paper smoothing *gains* half a point of BLEU, 25.8 against 25.3, in spite of the worse perplexity. Does it do so here? `python -m benchmarks.experiments.smoothing` trained the model of this chapter on 5,000 pairs, none seen twice, without dropout, with hard labels and with smoothing, from six seeds each. Its log has what they do with 200 held-out sentences: perplexity, BLEU, the confidence in the best word, and how often that word is right. (± is a [95% interval](22_variations.ipynb#a-difference-and-how-far-to-trust-it).)

# %%
_, *lines = read_log("smoothing")
hard, soft = ([r for r in lines if r["smoothing"] == s] for s in (0.0, 0.1))
for name in ("perplexity", "bleu", "says", "is_right"):
    before, after = mean(r[name] for r in hard), mean(r[name] for r in soft)
    gains = [b[name] - a[name] for a, b in zip(hard, soft)]
    margin = 2.57 * stdev(gains) / 6**0.5  # 95% of Student's t, six differences
    print(
        f"{name:10} {before:5.2f} to {after:5.2f}: {after - before:+.2f} ± {margin:.2f}"
    )

# %% tags=["remove-cell"]
if CHECKING:
    gains = [b["bleu"] - a["bleu"] for a, b in zip(hard, soft)]
    assert round(mean(gains), 1) == 5.2 and len(gains) == 6
    assert round(2.57 * stdev(gains) / 6**0.5, 1) == 2.1
    said, done = (mean(r[name] for r in soft) for name in ("says", "is_right"))
    assert round(said, 2) == 0.65 and round(done, 2) == 0.77

# %% [markdown]
# As in the paper, the perplexity gets worse and the translations get better. That is a toy language after 300 steps, so take from it the direction and not the size.
#
# Is the smoothed model more honest? Not here, where no sentence was seen twice: it says 65% and is right 77% of the time. After long training, when a model promises too much, smoothing brings it nearer to the truth, as {cite:t}`muller2019when` measure.
#
# ### The loss as a module
#
# For training, model and loss are put into one module. The decoder reads the target without its last token, and the labels are the target [without its first](10_transformer.ipynb#the-target-shifted-by-one). Logits are computed only where the label is a real word.


# %% tags=["export"]
class SmoothedLoss(nn.Module):
    """The label-smoothed loss of a batch in nats, summed over real target tokens (section 5.4)."""

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        memory = self.model.encode(source)
        states = self.model.decode(target[:, :-1], memory, source)
        labels = target[:, 1:]
        real = labels != PAD
        logits = self.model.embedding.logits(states[real])
        return label_smoothed_loss(logits, labels[real], self.label_smoothing)


# %% tags=["remove-cell"]
if CHECKING:
    model = by_heart.double().eval()
    whole = label_smoothed_loss(
        model(held_out.source, held_out.target[:, :-1]), held_out.target[:, 1:]
    )
    torch.testing.assert_close(SmoothedLoss(model)(*held_out), whole)

# %% [markdown]
# ## What to remember
#
# - Overfitting shows on held-out sentences only. Measure the loss on them with dropout off and hard labels.
# - Dropout sits on each sub-layer's output and on embedding + position. It zeroes with probability $p$, divides by $1 - p$, and is off when the model is used.
# - Label smoothing gives every word a share $\epsilon / |V|$ of the truth. The gradient is $p - q$, so too much certainty costs.
# - The smoothed loss can't fall below $H(q)$, 1.38 nats per token for 37,000 words.
#
# ## Exercises
#
# **1. Write it first** is [above](#why-smooth-the-labels).
#
# :::{admonition} Solution 1
# :class: dropdown
# `loss_by_hand` below the exercise is one, if you divide its sum by the number of real rows, `(labels != PAD).sum()`. Two mistakes are common. Whoever takes the mean over all rows divides by the padding, too; and whoever shares $\epsilon$ among the *other* words writes $\epsilon / (|V| - 1)$, which is [another program's smoothing](#who-gets-a-share).
# :::
#
# **2. Without the division** (★, 5 min). Let dropout not divide by $1 - p$, with $p = 0.3$. A component is 3. What does the layer that reads it get in training, what on average, and what when the model is used?
#
# :::{admonition} Solution 2
# :class: dropdown
# In training it gets 3 or 0, on average $0.7 \cdot 3 = 2.1$, and when the model is used always 3. So it meets inputs that are $1 / 0.7 = 1.43$ times as large as those that it was trained on.
# :::
#
# **3. Where the pull ends** (★★, 15 min). With hard labels no lead is enough. By how much must the right logit lead all others before label smoothing stops pulling, with 37,000 words and $\epsilon = 0.1$?
#
# :::{admonition} Solution 3
# :class: dropdown
# The gradient is zero where $p = q$. The lead is then the logarithm of the quotient of the two probabilities, $\log \frac{1 - \epsilon + \epsilon / |V|}{\epsilon / |V|} = \log\left(\frac{(1 - \epsilon)\,|V|}{\epsilon} + 1\right) = \log 333{,}001 = 12.7$.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert round(0.7 * 3, 1) == 2.1 and round(1 / 0.7, 2) == 1.43
    lead = math.log(0.9 * 37_000 / 0.1 + 1)
    z = torch.zeros(1, 37_000, dtype=torch.float64)
    z[0, 7] = lead
    z.requires_grad_()
    label_smoothed_loss(z, torch.tensor([7])).backward()
    assert z.grad.abs().max() < 1e-12 and round(lead, 1) == 12.7

# %% [markdown]
# ## Further
#
# ### Two more places
#
# Many programs also drop attention weights, and inside the feed-forward network, after the ReLU. The first isn't mentioned for translation, though section 6.3 tunes it for parsing; the second isn't mentioned at all. In tensor2tensor, the authors' code, both were 0 in the first settings for translation and 0.1 later. Ours are options, off by default; what they change in short runs is among the [departures](../book/departures.md#the-model).
#
# ### Who gets a share
#
# Three programs deal out the share in three ways, and all call it label smoothing. With eight words and $\epsilon = 0.1$:
#
# | the share goes to | right word | each other word | `<pad>` |
# |---|:---:|:---:|:---:|
# | all words (`F.cross_entropy`, this book) | 0.9125 | 0.0125 | 0.0125 |
# | all but the right one (tensor2tensor) | 0.9 | 0.0143 | 0.0143 |
# | all but the right one and `<pad>` (Harvard's [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/)) | 0.9 | 0.0167 | 0 |
#
# In a vocabulary of thousands they are nearly the same. It matters when you compare two programs number by number.
#
# ## Sources
#
# Rates and places of dropout and the smoothing of 0.1 are from section 5.4 of {cite:t}`vaswani2017attention`, the effects of leaving either out from its Table 3. Dropout is from {cite:t}`srivastava2014dropout`, label smoothing from {cite:t}`szegedy2016rethinking`. Who gets a share, and what was dropped when, is taken from `smoothing_cross_entropy` and `transformer_base_v1` to `v3` of tensor2tensor, and from `LabelSmoothing` of {cite:t}`rush2018annotated` as revised in 2022.
