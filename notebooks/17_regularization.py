# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Regularization
#
# This chapter keeps the model from learning its sentences by heart and from being too sure of itself, with dropout and label smoothing (section 5.4 of the paper).
#
# In 100,000 updates of 25,000 target tokens, the paper's base model reads 2.5 billion tokens. The corpus has 4.5 million pairs of some 28 tokens, so the model reads each pair about twenty times, and its 63 million weights could store a good part of that. Would anybody notice? The training loss falls either way, because what has been learned by heart lowers it just as well as what has been understood.
#
# So we make it happen, with a corpus that is far too small. Then come the paper's two remedies. Both are odd: one breaks what the layers say to each other, the other gives the model labels that are slightly wrong.
#
# ## Learning by heart
#
# A small model reads 200 pairs from [the grammar](13_data.ipynb#a-pair-and-its-alignment) again and again. Another 200 are **held out**: the model never trains on them. They are what counts, because every sentence that you will ever translate is new.

# %% tags=["hide-input"]
import math
from itertools import chain

import altair as alt
import torch

from annotated_transformer.batching import batches, collate, encode_pairs
from annotated_transformer.synchronous_grammar import grammar
from book.figures import AMBER, INK, PLUM, SKY, curves, show, show_steps
from annotated_transformer.masks import PAD
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    evaluating,
)
from annotated_transformer.transformer import preset

# %%
pairs = grammar(5200, seed=1)
tokenizer = Tokenizer.train(pairs[:5000], vocabulary_size=600)
few, many = (encode_pairs(tokenizer, pairs[:count]) for count in (200, 5000))
held_out = collate([*encode_pairs(tokenizer, pairs[5000:])])
print(len(few), "pairs to learn from,", len(held_out.source), "held out")

# %% [markdown]
# The loss is the plain cross-entropy of the next token:

# %%
import torch.nn.functional as F


def plain_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)


# %% [markdown]
# `train`, folded here (not the package's), has [the previous chapter's loop](16_schedule.ipynb#what-a-constant-rate-does), for 300 steps, with a model of one layer. Its second argument is the largest number of tokens in a batch. Every 25 steps it has `measured` compute the loss on the batches in `watch`, always the plain loss and without dropout, whatever the training itself uses.


# %% tags=["hide-input"]
def loss_on(batch, model, loss=plain_loss):
    return loss(model(batch.source, batch.target[:, :-1]), batch.target[:, 1:])


def measured(model, batch):
    with evaluating(model):
        return loss_on(batch, model).item()


def train(corpus, max_tokens, dropout=0.0, loss=plain_loss, watch=()):
    torch.manual_seed(0)
    shape = {"layers": 1, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": dropout}
    model, log = Transformer(TransformerConfig(len(tokenizer), **shape)), []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    epochs = (batches(corpus, max_tokens, 0, epoch) for epoch in range(300))
    for step, batch in zip(range(1, 301), chain.from_iterable(epochs)):
        adam.param_groups[0]["lr"] = learning_rate(step, 64, warmup=100, lr_scale=0.5)
        adam.zero_grad()
        loss_on(batch, model, loss).backward()
        adam.step()
        if watch and step % 25 == 0:
            log.append([step, *(measured(model, batch) for batch in watch)])
    return model, log


# %% [markdown]
# The loss on its own 200 pairs will fall. Before you run this: where will the loss on the other 200 go?

# %% tags=["nbval-ignore-output"]
watch = (collate([*few]), held_out)
by_heart, log = train(few, 256, watch=watch)
for step, own, new in log[1::2]:
    print(f"step {step:3}: on its own pairs {own:.2f}, on new ones {new:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    best = min(new for _, _, new in log)
    assert log[-1][2] > log[-1][1] + 1.5 and log[-1][2] > best + 0.2

# %% [markdown]
# The model can soon recite its 200 pairs, and what it says about new ones gets worse while it practices. This is **overfitting**, and only sentences that the model hasn't seen reveal it.
#
# Why does the loss on new sentences *rise*, instead of leveling off? Look at the probabilities that the model gives to the right word:


# %% tags=["nbval-ignore-output", "hide-input"]
def chances(model, batch):
    """Return the probability of the right word at each position with a word."""
    with evaluating(model):
        p = model(batch.source, batch.target[:, :-1]).softmax(-1)
    labels = batch.target[:, 1:]
    return p.gather(-1, labels[..., None])[..., 0][labels != PAD]


for name, batch in zip(("own pairs", "new pairs"), watch):
    p = chances(by_heart, batch)
    high, low = (p > 0.9).float().mean(), (p < 0.001).float().mean()
    print(f"{name}: above 90% at {high:.0%} of the positions, below 0.1% at {low:.0%}")

# %% tags=["remove-cell"]
if CHECKING:
    p = chances(by_heart, held_out)
    lost = (p < 0.001).float().mean()
    dear = -p[p < 0.001].log().sum() / -p.log().sum()
    assert lost > 0.05 and dear > 0.3, (lost, dear)
    assert (chances(by_heart, watch[0]) > 0.9).float().mean() > 0.7

# %% [markdown]
# The loss rises because the model has become sure. To lower the loss on its own sentences further, it pushes their words towards 100%. On new sentences it is still sure at many positions, and often wrong. A word that was given 0.01% costs $-\log 0.0001 = 9.2$ **nats**, where 1% would have cost 4.6. (A nat is the unit of a loss with natural logarithms.)
#
# You could stop at the lowest point, which is called early stopping ([next chapter](18_training.ipynb#whether-it-gets-better)). That limits the damage. A better way is to keep the model from leaning on what it has memorized.
#
# ## What dropout does
#
# Learning by heart often hangs on a few details. If one component of one layer says "this is pair 117", the rest of the sentence follows. **Dropout** sets each number $x$ of a vector to zero with probability $p$, anew in each step, so a layer that reads the vector can't count on any one component and has to spread its bets. The survivors are divided by $1 - p$. With $b$ for a coin that shows 1 with probability $1 - p$, and 0 otherwise:
#
# $$
# \operatorname{dropout}(x) = \frac{b\,x}{1 - p}, \qquad
# \mathbb{E}[\operatorname{dropout}(x)] = \frac{(1 - p)\,x + p \cdot 0}{1 - p} = x
# $$ (eq-dropout)
#
# Zeroing alone would shrink the mean; the division restores it. The finished model has no trace of dropout in it, and you needn't know the rate to run it.


# %%
def dropout(x, p):
    coin = torch.empty_like(x).bernoulli_(1 - p)
    return coin * x / (1 - p)


x = torch.tensor([1.0, -2.0, 3.0, 4.0])
torch.manual_seed(3)
for _ in range(3):
    print([round(v, 2) + 0.0 for v in dropout(x, p=0.3).tolist()])
mean = dropout(x.expand(100_000, 4), p=0.3).mean(0)
print("mean of 100,000:", [round(v, 1) for v in mean.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    from torch import nn

    many_x = x.expand(100_000, 4)
    torch.manual_seed(1)
    ours = dropout(many_x, 0.3)
    torch.manual_seed(1)
    torch.testing.assert_close(nn.Dropout(0.3)(many_x), ours)
    assert abs(3 / 0.7 - 4.29) < 0.01

# %% [markdown]
# A 3 becomes 0 or $3 / 0.7 = 4.29$, and on average it is still 3. A vector of 64 numbers loses about 19 of them at $p = 0.3$, different ones at each position and in each step. No word is ever lost as a whole.
#
# The model has dropout already, as `nn.Dropout`. We train again on the same 200 pairs:

# %% tags=["nbval-ignore-output"]
rate = 0.3
logs = {0.0: log, rate: train(few, 256, dropout=rate, watch=watch)[1]}
for p, losses in logs.items():
    lowest, end = min(new for _, _, new in losses), losses[-1][2]
    print(f"dropout {p}: on new pairs {lowest:.2f} at best, {end:.2f} at the end")

# %% tags=["remove-cell"]
if CHECKING:
    assert logs[0.3][-1][2] < min(loss for _, _, loss in logs[0.0])
    turn = min(logs[0.0], key=lambda entry: entry[2])[0]
    assert 100 <= turn <= 200, turn

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-overfitting", "caption": "Does a lower training loss mean a better model? Loss on the 200 pairs that a model repeats (blue) and on 200 new ones (orange), without dropout (solid) and with it (dashed). Without dropout, the loss on new pairs turns up after some 150 steps, while the other goes on towards zero. With dropout both fall more slowly, and the loss on new pairs ends lower than it ever was without."}}
looks = {
    "no dropout, new": (AMBER, [1, 0]),
    "no dropout, own": (SKY, [1, 0]),
    f"dropout {rate}, new": (AMBER, [6, 3]),
    f"dropout {rate}, own": (SKY, [6, 3]),
}


def narrow(chart, columns=2):
    """Make a chart fit for a phone, with its legend on top."""
    for channel in (chart.encoding.color, chart.encoding.strokeDash):
        channel.legend = alt.Legend(orient="top", title=None, columns=columns)
    return chart.properties(width=300, height=220)


records = [
    {"step": step, "loss": round(loss, 3), "run": f"{name}, {whose}"}
    for p, name in ((0.0, "no dropout"), (rate, f"dropout {rate}"))
    for step, *both in logs[p]
    for whose, loss in zip(("own", "new"), both)
]
y = alt.Y("loss:Q", title="loss, nats per token")
ends = {p: [f"{loss:.1f}" for loss in logs[p][-1][1:]] for p in logs}
show(
    narrow(curves(records, alt.X("step:Q", title="step"), y, "run", looks)),
    alt=f"Without dropout the loss on new pairs turns and ends at {ends[0.0][1]} while the loss on its own pairs goes to {ends[0.0][0]}. With dropout {rate} the loss on new pairs keeps falling, to {ends[rate][1]}.",
)

# %% [markdown]
# It learns its own pairs more slowly and new ones better: lower than the first model ever was, and still falling.
#
# ### Why must I call `model.eval()`?
#
# Because dropout must be off when the model is used. `eval` flips the switch `training` in each module; it has nothing to do with gradients, which `torch.no_grad()` turns off. If you forget it, the model still translates, a little worse, and differently each time:

# %%
from torch import nn

layer, vector = nn.Dropout(0.3), torch.tensor([1.0, -2.0, 3.0, 4.0])
torch.manual_seed(0)
print("in training:  ", *[layer(vector).numpy().round(2) for _ in range(2)])
print("in evaluation:", *[layer.eval()(vector).numpy().round(2) for _ in range(2)])

# %% [markdown]
# ### Where is dropout in the Transformer?
#
# The paper names two places: the output of each sub-layer, before it is added to the residual stream, and the sum of embedding and position, on both sides.
#
# | where | how often in the base model |
# |---|---|
# | embedding + position, source and target | 2 |
# | encoder: after self-attention, after the feed-forward network | 6 × 2 |
# | decoder: after self-attention, cross-attention, feed-forward network | 6 × 3 |
#
# Only at the bottom, on embedding + position, does dropout hit the residual stream itself. In the layers it hits what a sub-layer *adds*: where a component is dropped, the sub-layer adds nothing, and the stream passes through unchanged.
#
# The rate should be higher where there is less text for each weight. The paper takes 0.1 for base and 0.3 for the larger model, big, on 4.5 million pairs; for big on the French corpus, with eight times as many pairs, 0.1 is enough. Its Table 3 shows what is at stake for base: 24.6 BLEU without dropout, 25.8 with 0.1, 25.5 with 0.2.
#
# ## Why smooth the labels?
#
# The second remedy starts at the other end of the model. With plain cross-entropy, a model is never done. To give the right word 100%, its logit would have to be infinitely far above the others:

# %%
for lead in (2, 5, 10, 15):
    p = torch.tensor([float(lead), *[0.0] * 999]).softmax(0)[0].item()
    print(f"a lead of {lead:2} over 999 words:", end=" ")
    print(f"probability {p:.4f}, loss {-math.log(p):.4f}")

# %% [markdown]
# From a lead of 10 on, the model says 96% and better, and the loss still pays for more. And what does it pay for? There is seldom one right word. After *the black cat*, the training text happens to have *likes*, where *loves* would do as well. A model that bets everything on the one has learned an accident.
#
# **Label smoothing** takes a share $\epsilon$ of the probability from the right word $y$ and deals it out evenly to all $|V|$ words of the vocabulary. The bracket is 1 for the right word and 0 for all others:
#
# $$ q_v = (1 - \epsilon)\,[v = y] + \frac{\epsilon}{|V|} $$ (eq-smooth)
#
# The paper uses $\epsilon = 0.1$. It is a crude remedy: *loves* is a near miss and *the* is nonsense, and both get the same share. All that it says is: never be quite sure.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smooth-labels", "caption": "What is the model asked to say after *the black cat*? The hard label (outline) puts everything on *likes*. Smoothing (filled) takes a share from it and deals it out evenly to all eight words of a made-up vocabulary, fitting or not."}}
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
# **Exercise 7. Write it first** (★, 10 min). Write `smoothed_loss(logits, labels, smoothing)`: the mean of $-\sum_v q_v \log p_v$ over all rows whose label is not 0, which is padding. The [checker](E_checker.ipynb#the-parts-it-knows) knows the usual mistakes: `check("smoothed_loss", yours)`.
#
# The loss is the cross-entropy of $q$ with the model's distribution $p$, and one can write it as it stands:


# %%
def smoothed(labels, smoothing, vocabulary):
    hard = F.one_hot(labels, vocabulary).double()
    return (1 - smoothing) * hard + smoothing / vocabulary


def loss_by_hand(logits, labels, smoothing):
    q = smoothed(labels, smoothing, logits.shape[-1])
    losses = -(q * logits.log_softmax(-1)).sum(-1)
    return losses[labels != PAD].sum()


# %% [markdown]
# PyTorch has the same in one call, which does not build $q$, and this is the one that the package takes:

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


# %% tags=["hide-input"]
generator = torch.Generator().manual_seed(0)
logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
labels = torch.tensor([[4, 5, 6, PAD, PAD], [7, 8, 9, 10, 4], [5, PAD, PAD, PAD, PAD]])
for smoothing in (0.0, 0.1, 0.5):
    print(
        f"ε = {smoothing}: {label_smoothed_loss(logits, labels, smoothing):.4f},",
        end=" ",
    )
    print(f"by hand {loss_by_hand(logits, labels, smoothing):.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    for smoothing in (0.0, 0.1, 0.5):
        found = label_smoothed_loss(logits, labels, smoothing)
        torch.testing.assert_close(found, loss_by_hand(logits, labels, smoothing))

# %% [markdown]
# The losses are summed, and [the next chapter](18_training.ipynb#the-mean-over-all-tokens) divides by the tokens of all batches of an update. Padding counts for nothing, [as it must](#padding-doesnt-count).
#
# ## The loss in two parts
#
# What does the share change? Insert {eq}`eq-smooth`, and the sum over the vocabulary falls into two parts:
#
# $$ \text{loss} = -\sum_v q_v \log p_v = -(1 - \epsilon) \log p_y - \frac{\epsilon}{|V|} \sum_v \log p_v $$ (eq-smooth-loss)
#
# The first part is the old loss, a little weaker. The second is $\epsilon$ times the mean of $-\log p_v$ over all words. It grows when any word gets hardly a chance, and so it holds back a model that is about to be sure.
#
# The gradient at the logits $z$ is simpler still. Since the $q_v$ sum to 1, the loss is $\log \sum_i e^{z_i} - \sum_v q_v z_v$. The first term has the derivative $p_v$, the second $q_v$:
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
# Descent moves against the gradient. In the last row the hard label still raises the right word, while the smoothed one lowers it again.

# %% tags=["remove-cell"]
if CHECKING:
    for smoothing in (0.0, 0.1, 0.5):
        z = logits.clone().requires_grad_()
        label_smoothed_loss(z, labels, smoothing).backward()
        q = smoothed(labels, smoothing, 11)
        slope = (logits.softmax(-1) - q) * (labels != PAD)[..., None]
        torch.testing.assert_close(z.grad, slope)
        parts = (
            -(1 - smoothing)
            * logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        )
        parts = parts - smoothing * logits.log_softmax(-1).mean(-1)
        torch.testing.assert_close(
            parts[labels != PAD].sum(), label_smoothed_loss(logits, labels, smoothing)
        )
    for p in ([0.1, 0.2, 0.3, 0.4], [0.05, 0.05, 0.05, 0.85], [0.01, 0.01, 0.01, 0.97]):
        z = torch.tensor([p], dtype=torch.float64).log().requires_grad_()
        label_smoothed_loss(z, torch.tensor([3]), 0.2).backward()
        expected = torch.tensor([p]) - torch.tensor([[0.05, 0.05, 0.05, 0.85]])
        torch.testing.assert_close(z.grad, expected.double(), atol=1e-6, rtol=0)

# %% [markdown]
# ## Why does my loss stop above 1?
#
# Because the smoothed labels have an entropy of their own. Even a model that says exactly $q$ pays
#
# $$ H(q) = -\sum_v q_v \log q_v. $$ (eq-entropy)
#
# With 37,000 words, the right one adds $0.9 \cdot 0.1054 = 0.095$ and the many small shares add $0.1 \cdot \log 370{,}000 = 1.282$, together 1.38 nats per token. Whatever a model pays above that is the **Kullback-Leibler divergence** $\operatorname{KL}(q \,\|\, p)$, which some programs report instead. The **perplexity** leaves smoothing aside: it is $e$ to the power of the plain loss.
#
# Here are all four numbers for four models. Each gives the right word the probability in the first column, and shares the rest evenly among the other words. The first model knows nothing: it gives every word 1/37,000, which is printed as 0.00%.

# %% tags=["hide-input"]
V = 37_000
q = smoothed(torch.tensor(0), 0.1, V)
print("right word   plain loss   perplexity   smoothed loss   entropy +  KL")
for c in (1 / V, 0.5, q[0].item(), 0.9999):
    p = torch.full((V,), (1 - c) / (V - 1), dtype=torch.float64)
    p[0] = c
    plain, smooth = -p[0].log(), -(q * p.log()).sum()
    entropy, kl = -(q * q.log()).sum(), (q * (q / p).log()).sum()
    print(f"{c:10.2%}   {plain:10.2f}   {plain.exp():10,.2f}   {smooth:13.2f}", end="")
    print(f"   {entropy:7.2f}   {kl:4.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(entropy - 1.38) < 0.005 and abs(smooth - entropy - kl) < 1e-9
    assert abs(-q[0] * q[0].log() - 0.09) < 0.005
    assert abs(-(q[1:] * q[1:].log()).sum() - 1.28) < 0.005
    perfect = loss_by_hand(q.log()[None], torch.tensor([0]), 0.1)  # label 0 is padding
    assert perfect == 0

# %% [markdown]
# Read the last two rows. By its perplexity, the model that says 99.99% is the better one; by the smoothed loss it is the worse one, because it said more than it was asked to say. That is the price of smoothing, and the paper pays it: a perplexity of 4.92, where the same model without smoothing has 4.67 (Table 3, row D). So compare two smoothed losses only if vocabulary and $\epsilon$ are the same. The formula of the perplexity has no $\epsilon$ in it, so you can compare the perplexities of models that were trained with different $\epsilon$. Here, too, the vocabulary must be the same.
#
# ## What smoothing does to a model
#
# We train two models on 5,000 pairs, none seen twice, with the same start and the same batches. One follows hard labels, the other smoothing 0.1, and neither has dropout, so that only one thing differs. On the held-out sentences we ask for the perplexity, the confidence (the probability of the word that the model finds best), and how often that word is right; `best_guesses` returns the last two for every position.


# %% tags=["hide-input"]
def best_guesses(model):
    with evaluating(model):
        p = model(held_out.source, held_out.target[:, :-1]).softmax(-1)
    confidence, word = p.max(-1)
    labels = held_out.target[:, 1:]
    return confidence[labels != PAD], (word == labels)[labels != PAD]


# %% tags=["nbval-ignore-output"]
def mean_smoothed_loss(logits, labels):
    return label_smoothed_loss(logits, labels, 0.1) / (labels != PAD).sum()


models = {"hard": train(many, 384)[0]}
models["smoothed"] = train(many, 384, loss=mean_smoothed_loss)[0]
guesses = {name: best_guesses(model) for name, model in models.items()}
for name, (confidence, right) in guesses.items():
    perplexity = math.exp(measured(models[name], held_out))
    print(
        f"{name:9} perplexity {perplexity:.2f}, says {confidence.mean():.0%},", end=" "
    )
    print(f"is right {right.float().mean():.0%}")

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-confidence", "caption": "What does smoothing do to confidence? Held-out positions by the probability of the model's best word, with hard labels (outline) and with smoothing 0.1 (filled). With hard labels the last column, above 95%, is by far the highest. With smoothing it is nearly empty, and the positions stop where the model was told to stop, at 85 to 95%."}}
records = [
    {"bin": n / 20, "end": (n + 1) / 20, "share": round(share, 4), "labels": name}
    for name, (confidence, _) in guesses.items()
    for n, share in enumerate((confidence.histc(20, 0, 1) / len(confidence)).tolist())
]
both = alt.Chart(alt.Data(values=records)).encode(
    alt.X("bin:Q", title="probability of the best word", axis=alt.Axis(format="%")),
    alt.X2("end"),
    alt.Y("share:Q", title="share of positions", axis=alt.Axis(format="%")),
)
filled = both.transform_filter("datum.labels == 'smoothed'").mark_rect(
    color=SKY, opacity=0.75
)
outlined = both.transform_filter("datum.labels == 'hard'").mark_rect(
    filled=False, stroke=INK, strokeWidth=1.6
)
names = alt.Chart(
    alt.Data(
        values=[
            {"x": 0.94, "y": 0.28, "name": "hard labels"},
            {"x": 0.84, "y": 0.17, "name": "smoothed"},
        ]
    )
).mark_text(align="right", fontSize=12, color=INK)
bars = alt.layer(
    filled.encode(y2=alt.datum(0)),
    outlined.encode(y2=alt.datum(0)),
    names.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text="name:N"),
)
sure = {name: (c > 0.95).double().mean().item() for name, (c, _) in guesses.items()}
show(
    bars.properties(width=310, height=200),
    alt=f"Above 95 percent lie {sure['hard']:.0%} of the positions with hard labels and {sure['smoothed']:.0%} with smoothing.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert sure["smoothed"] < sure["hard"] / 3 and 0.2 < sure["hard"] < 0.4

# %% [markdown]
# In the run shown, the smoothed model is right a little more often and says so less loudly. Is it more honest? Here it isn't. The model with hard labels has seen no sentence twice, and is about as often right as it says. The smoothed one is [right more often than it says](#is-a-smoothed-model-calibrated). Where a model promises too much, after long training on little text, smoothing brings it nearer to the truth. It always takes confidence away, needed or not.
#
# ### Does it translate better?
#
# In the paper smoothing *gains* half a point of BLEU, 25.8 against 25.3, in spite of the worse perplexity. `python -m benchmarks.experiments.smoothing` repeats our pair of models from six seeds and lets each translate the held-out sentences word by word. From its log, with the standard errors of the six differences:

# %% tags=["hide-input"]
import statistics

from benchmarks.common import read_log

_, *lines = read_log("smoothing")
hard, soft = ([r for r in lines if r["smoothing"] == s] for s in (0.0, 0.1))
found = {}
for name in ("perplexity", "bleu", "says", "is_right"):
    gains = [after[name] - before[name] for before, after in zip(hard, soft)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    means = [statistics.mean(run[name] for run in runs) for runs in (hard, soft)]
    found[name] = statistics.mean(gains), error
    print(f"{name:10}  hard {means[0]:5.2f}, smoothed {means[1]:5.2f}", end=", ")
    print(f"difference {found[name][0]:+.3f} ± {error:.3f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert [round(v, 1) for v in found["bleu"]] == [5.2, 0.8]
    assert round(found["is_right"][0], 2) == 0.03
    assert found["perplexity"][0] > 2 * found["perplexity"][1]

# %% [markdown]
# As in the paper, the perplexity gets worse and the translations get better: by 5.2 points of BLEU, with a standard error of 0.8, and the right word is the model's first choice 3 points more often. That is a toy language after 300 steps, so take from it the direction and not the size. [Why](#why-would-a-less-sure-model-translate-better) it helps is less clear.
#
# ## The loss as a module
#
# For training, model and loss are put into one module. The decoder reads the target without its last token, and the labels are the target without its first, [one position apart](10_transformer.ipynb#the-target-shifted-by-one). Logits are computed only where the label is a real word. That saves work, because the matrix that turns a state into logits is the largest of the model.


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
    from copy import deepcopy

    model = deepcopy(models["smoothed"]).double().eval()
    whole = label_smoothed_loss(
        model(held_out.source, held_out.target[:, :-1]), held_out.target[:, 1:]
    )
    torch.testing.assert_close(SmoothedLoss(model)(*held_out), whole)

# %% [markdown]
# ## What to remember
#
# - Overfitting shows on held-out sentences only. Measure them with dropout off and hard labels.
# - Dropout sits on each sub-layer's output and on embedding + position. It zeroes with probability $p$, divides by $1 - p$, and is off when the model is used.
# - Label smoothing gives every word a share $\epsilon / |V|$ of the truth. The gradient is $p - q$, so too much certainty costs.
# - The smoothed loss can't fall below $H(q)$; the KL divergence is the same loss minus $H(q)$, and can reach zero.
#
# Model, batches, rate and loss are waiting for a loop. Its simplest form has ten lines, and before the chapter ends it will survive being killed.
#
# ## Exercises
#
# **1. A model that knows nothing** (★, 5 min). By hand: a vocabulary has four words, $\epsilon$ is 0.2, and the model gives each word 25%. What is the loss of a token, and what is it without smoothing?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All log p are -log 4, and q sums to 1: the loss is log 4 = 1.39 for any smoothing.
flat, label = torch.zeros(1, 4), torch.tensor([3])
print([round(label_smoothed_loss(flat, label, s).item(), 2) for s in (0.0, 0.2)])

# %% tags=["remove-cell"]
if CHECKING:
    assert all(
        abs(label_smoothed_loss(flat, label, s) - math.log(4)) < 1e-6
        for s in (0.0, 0.2)
    )

# %% [markdown]
# **2. Without the division** (★, 10 min). Let dropout not divide by $1 - p$. How large is a component on average after six layers of dropout at $p = 0.3$, compared with what it will be when the model is used?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The mean shrinks by 0.7 in each: after six it is 0.7 ** 6 = 0.12 of what it will be. The layers after it were trained
# on inputs eight times smaller than those they meet when it counts.
torch.manual_seed(0)
thinned = torch.ones(1_000_000)
for _ in range(6):
    thinned = thinned * (torch.rand_like(thinned) > 0.3)
print(f"{thinned.mean():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(thinned.mean() - 0.7**6) < 0.01

# %% [markdown]
# **3. A floor** (★, 5 min). A log shows a smoothed loss of 2.10 nats per token, for 8,000 words and $\epsilon = 0.1$. Which KL divergence is that? Could the loss ever fall to 1.0?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The floor is the entropy of the labels. It is above 1, so no: a loss of 1.0 would mean a mistake in the loss.
q = smoothed(torch.tensor(0), 0.1, 8000)
floor = -(q * q.log()).sum()
print(f"floor {floor:.2f}, divergence {2.10 - floor:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 1.0 < floor < 2.10

# %% [markdown]
# **4. Where the pull ends** (★★, 15 min). With hard labels no lead is enough. By how much must the right logit lead all others before label smoothing stops pulling, with 37,000 words and $\epsilon = 0.1$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The gradient is zero where p = q. Then the lead is log(q_y / q_v) = log((1 - e + e / V) / (e / V)) = log((1 - e) V / e + 1).
lead = math.log(0.9 * 37_000 / 0.1 + 1)
z = torch.zeros(1, 37_000, dtype=torch.float64).index_fill_(1, torch.tensor([7]), lead)
z.requires_grad_()
label_smoothed_loss(z, torch.tensor([7])).backward()
print(f"a lead of {lead:.1f}, where the gradient is {z.grad.abs().max():.5f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert z.grad.abs().max() < 1e-12

# %% [markdown]
# **5. Random labels** (★★, 15 min). Replace each label by a random word with probability $\epsilon$. Show that the mean of the hard-label loss is then the smoothed loss.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The loss is linear in the label's distribution, and the mean of the random label's distribution is q. So smoothing is
# the same as noise on the labels, without the noise.
torch.manual_seed(0)
z, right = torch.randn(11, dtype=torch.float64), 4
chance = torch.where(torch.rand(200_000) < 0.1, torch.randint(11, (200_000,)), right)
mean = -z.log_softmax(0)[chance].mean()
exact = label_smoothed_loss(z[None], torch.tensor([right]), 0.1)
print(f"{mean:.2f} {exact:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(mean - exact) < 0.02

# %% [markdown]
# **6. A kinder share** (★★★, an evening; open). Deal the share out by similarity instead: to the ten nearest neighbors of the right word in the model's own embedding. Is a model trained like that better calibrated, and does it translate better? Use at least six seeds, pair by pair.
#
# **7. Write it first** is [above](#why-smooth-the-labels); `loss_by_hand` below it is the solution, with the mean over the real rows instead of the sum.
#
# ## Second reading: dropout
#
# ### How often does it run?
#
# :::{admonition} We let the model count
# :class: dropdown
#
# A rate that wasn't passed on, or a second dropout that came in with a library's layer, shows up in a count. A forward hook is a function that PyTorch calls whenever a module has run; ours notes which part the module is in. (The module named `dropout`, on embedding and position, runs twice.)
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the count", "code_prompt_hide": "Hide the count"}
model = Transformer(preset("base", vocabulary_size=100)).train()
calls = []
for name, module in model.named_modules():
    if isinstance(module, nn.Dropout) and module.p > 0:
        module.register_forward_hook(
            lambda *_, name=name: calls.append(name.split(".")[0])
        )
model(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]]))
print(
    {part: calls.count(part) for part in ("dropout", "encoder", "decoder")},
    "in all",
    len(calls),
)

# %% tags=["remove-cell"]
if CHECKING:
    assert len(calls) == 2 + 6 * 2 + 6 * 3

# %% [markdown]
# ### Two more places
#
# :::{admonition} Dropout on the attention weights, and inside the feed-forward network
# :class: dropdown
#
# Both are common today. The first isn't mentioned for translation; section 6.3 tunes it for parsing. The second, after the ReLU, isn't mentioned at all. In tensor2tensor, the authors' code, both were 0 in the first settings for translation and 0.1 later. Ours are options that are off by default; in [short runs](../book/departures.md#the-model) they changed the loss by 0.03 and 0.01 nats per token, with standard errors of 0.02.
#
# The first paper on dropout {cite:p}`srivastava2014dropout` multiplied by $1 - p$ when the model was used, where we divide while it trains. The mean comes out alike; the spread doesn't stay either way. A component with the value 3 has a standard deviation of $3 \sqrt{p / (1 - p)} = 1.96$ at $p = 0.3$, where it was 0.
# :::
#
# ### What about weight decay?
#
# :::{admonition} Another way to hold weights back, which the paper doesn't use
# :class: dropdown
#
# **Weight decay** pulls every weight toward zero a little in each step. The paper doesn't mention it, and we leave it out. If the pull is added to the gradient, Adam divides it by that gradient's usual size, so weights with small gradients are pulled hardest. Today's default, [AdamW](16_schedule.ipynb#what-do-models-of-today-use), keeps the two apart. Where it is used, biases and the gains of norms are usually spared: a gain pulled to 0 would silence its norm.
# :::
#
# ## Second reading: label smoothing
#
# ### Who gets a share
#
# :::{admonition} Three programs, three ways to deal out the share
# :class: dropdown
#
# All call it label smoothing. With eight words and $\epsilon = 0.1$:
#
# | the share goes to | right word | each other word | `<pad>` |
# |---|:---:|:---:|:---:|
# | all words (`F.cross_entropy`, this book) | 0.9125 | 0.0125 | 0.0125 |
# | all but the right one (tensor2tensor) | 0.9 | 0.0143 | 0.0143 |
# | all but the right one and `<pad>` (Harvard's [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/)) | 0.9 | 0.0167 | 0 |
#
# In a vocabulary of thousands they are nearly the same. It matters when you compare two programs number by number.
# :::
#
# ### Padding doesn't count
#
# :::{admonition} Neither its logits nor its number
# :class: dropdown
#
# Whatever the logits are at padding, our loss doesn't move. A loss that counts padding as a word to be said gives another number and trains the model to say `<pad>`. The end of a sentence is another matter: `</s>` is a label like any word, and a model that never learns to say it doesn't stop.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the losses", "code_prompt_hide": "Hide the losses"}
loss = label_smoothed_loss(logits, labels)
noise = 100 * torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
real = labels != PAD
noisy = label_smoothed_loss(logits + noise * ~real[..., None], labels)
counted = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
print(f"nats per token: {loss / real.sum():.2f};", end=" ")
print(f"with other logits at padding {noisy / real.sum():.2f}")
print(f"with padding counted as words to be said {counted:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(noisy, loss)

# %% [markdown]
# ### Entropy and divergence
#
# :::{admonition} Where the two come from, and how certain is certain enough
# :class: dropdown
#
# Add and subtract $\sum_v q_v \log q_v$ in the cross-entropy:
#
# $$
# -\sum_v q_v \log p_v
# = \sum_v q_v \log \frac{q_v}{p_v} - \sum_v q_v \log q_v
# = \operatorname{KL}(q \,\|\, p) + H(q)
# $$ (eq-kl)
#
# The entropy has nothing to do with the model, so both losses have the same gradient. With $q_y = 1 - \epsilon + \epsilon / |V|$ for one word and $\epsilon / |V|$ for $|V| - 1$ words, it is
#
# $$
# H(q) = -q_y \log q_y - (|V| - 1)\, \frac{\epsilon}{|V|} \log \frac{\epsilon}{|V|}
# $$ (eq-label-entropy)
#
# or 1.15 nats for 4,000 words and 1.38 for 37,000. Let the model give the right word probability $c$ and share the rest evenly. Without smoothing, the loss falls for as long as $c$ grows. With it, there is a lowest point where $p = q$, at $c = q_y$; beyond it, more confidence costs.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the curves", "code_prompt_hide": "Hide the curves", "figure": {"name": "fig-smoothing", "caption": "Why punish certainty? Loss per token against the probability of the right word, for a vocabulary of 1,000. The dot marks the lowest point of each curve: at 100% without smoothing (solid), at 90% with 0.1 (dashed), at 70% with 0.3 (dotted). The floor rises with the smoothing."}}
V = 1000


def loss_at(c, smoothing):
    on, off = 1 - smoothing + smoothing / V, smoothing / V
    return -on * math.log(c) - (V - 1) * off * math.log((1 - c) / (V - 1))


looks = {
    "no smoothing": (PLUM, [1, 0]),
    "smoothing 0.1": (SKY, [6, 3]),
    "smoothing 0.3": (AMBER, [2, 2]),
}
amounts = dict(zip(looks, (0.0, 0.1, 0.3)))
confidences = [
    *(n / 200 for n in range(60, 198)),
    *(0.99 + n / 2000 for n in range(20)),
    0.9999,
]
records = [
    {"c": c, "loss": round(loss_at(c, amounts[name]), 3), "smoothing": name}
    for name in looks
    for c in confidences
]
lowest = []
for name in looks:
    c = min(confidences, key=lambda c: loss_at(c, amounts[name]))
    lowest.append({"c": c, "loss": round(loss_at(c, amounts[name]), 3)})
x = alt.X(
    "c:Q", title="probability of the right word", scale=alt.Scale(domain=[0.3, 1])
)
x.axis = alt.Axis(format="%")
chart = curves(
    records, x, alt.Y("loss:Q", title="loss, nats per token"), "smoothing", looks
)
dots = alt.Chart(alt.Data(values=lowest)).encode(alt.X("c:Q"), alt.Y("loss:Q"))
dots = dots.mark_point(filled=True, color=INK, size=80, opacity=1)
show(
    narrow(chart, columns=3) + dots,
    alt="Without smoothing the loss falls to 0 at 100 percent. With smoothing 0.1 and 0.3 it turns up again beyond 90 and 70 percent.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert [dot["c"] for dot in lowest] == [0.9999, 0.9, 0.7]
    for vocabulary, floor in ((4000, 1.15), (37_000, 1.38)):
        q = smoothed(torch.tensor(0), 0.1, vocabulary)
        entropy = -(q * q.log()).sum().item()
        on, off = 0.9 + 0.1 / vocabulary, 0.1 / vocabulary
        formula = -on * math.log(on) - (vocabulary - 1) * off * math.log(off)
        assert abs(entropy - floor) < 0.005 and abs(entropy - formula) < 1e-9

# %% [markdown]
# ### A divergence that is not a number
#
# :::{admonition} Zero times minus infinity
# :class: dropdown
#
# Harvard's page draws its loss for a made-up distribution in which `<pad>` has probability exactly 0, and takes the logarithm. The share of `<pad>` is 0 as well, so the contribution ought to be nothing; in floating point it is zero times minus infinity. The toy distribution is to blame, neither smoothing nor the padding entry: log-probabilities that come from `log_softmax` over finite logits never reach minus infinity. That is one reason why our loss takes logits.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the divergence", "code_prompt_hide": "Hide the divergence"}
p, q = torch.tensor([0.0, 0.7, 0.1, 0.1, 0.1]), torch.tensor([0.0, 0.9, *[0.1 / 3] * 3])
print("KL with log 0:", F.kl_div(p.log(), q, reduction="sum").item())
print(
    "without that entry:",
    round(F.kl_div(p[1:].log(), q[1:], reduction="sum").item(), 2),
)

# %% [markdown]
# ### Is a smoothed model calibrated?
#
# :::{admonition} Each confidence read as a promise
# :class: dropdown
#
# A model is **calibrated** if, of all positions where it says 90%, nine in ten are right. In the run shown, our model with hard labels nearly is, and the smoothed one is right more often than it says, by up to 15 points. {cite:t}`muller2019when` measure calibration on images and translations with models that have trained for long, and there smoothing improves it.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the promises", "code_prompt_hide": "Hide the promises"}
gaps = {}
for name, (confidence, right) in guesses.items():
    for low in (0.3, 0.5, 0.7, 0.9):
        here = (confidence >= low) & (confidence < low + 0.1)
        says, does = confidence[here].mean(), right[here].double().mean()
        gaps[name, low] = (does - says).item()
        print(f"{name:9} says {says:.0%}, is right {does:.0%}", end=" ")
        print(f"({here.sum()} positions)")

# %% tags=["remove-cell"]
if CHECKING:
    for (name, low), gap in gaps.items():
        assert abs(gap) < 0.2 if name == "hard" or low == 0.9 else gap > 0.05, (
            name,
            low,
            gap,
        )

# %% [markdown]
# ### Why would a less sure model translate better?
#
# :::{admonition} The usual answer, and why it doesn't explain our numbers
# :class: dropdown
#
# The usual answer looks at the search: a model that is sure at each step leaves [beam search](19_decoding.ipynb#expand-score-prune-one-topk), which keeps several translations going, nothing to choose, while a modest one keeps its second choices within reach. But our translations are greedy: no second choice is ever looked at. If the gain is real, it comes from training. One explanation: hard labels push the right logit up for ever, while smoothed ones hold all other words at the same finite distance, which keeps the weights from growing without end.
# :::
#
# ## Sources
#
# Rates and places of dropout and the smoothing of 0.1 are from section 5.4 of {cite:t}`vaswani2017attention`, the effects of leaving either out from its Table 3. Dropout is from {cite:t}`srivastava2014dropout`, label smoothing from {cite:t}`szegedy2016rethinking`; {cite:t}`muller2019when` ask when it helps. Who gets a share, and what was dropped when, is taken from `smoothing_cross_entropy` and `transformer_base_v1` to `v3` of tensor2tensor, and from `LabelSmoothing` of {cite:t}`rush2018annotated` as revised in 2022.
