# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", ".", "..", "../..") if os.path.exists(r + "/book/map.svg")]
os.chdir(up[0] + "/notebooks" if up else sys.exit(f"Open this in a clone of {url}"))
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown]
# # Regularization
#
# This chapter keeps the model from learning its sentences by heart and from being too sure of itself, with dropout and label smoothing (section 5.4 of the paper).
#
# **Dropout** {cite:p}`srivastava2014dropout` sets each number $x$ of a vector to zero with probability $p$ and divides the survivors by $1 - p$, so that the mean stays what it was. The coin $b$ is 1 with probability $1 - p$, and every number has one of its own:
#
# $$
# \operatorname{dropout}(x) = \frac{b\,x}{1 - p}, \qquad
# \mathbb{E}[\operatorname{dropout}(x)] = \frac{(1 - p)\,x + p \cdot 0}{1 - p} = x
# $$ (eq-dropout)
#
# **Label smoothing** {cite:p}`szegedy2016rethinking` takes a share $\epsilon$ of the probability from the right word $y$ and deals it out evenly to all $|V|$ words of the vocabulary. The bracket is 1 for the right word and 0 for all others:
#
# $$ q_v = (1 - \epsilon)\,[v = y] + \frac{\epsilon}{|V|} $$ (eq-smooth)
#
# The paper uses $p = 0.1$ and $\epsilon = 0.1$. Dropout is in our model already, as `nn.Dropout`. The loss with smoothed labels is one call:

# %% tags=["export"]
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
import json
import math
import statistics
from itertools import chain
from pathlib import Path

import altair as alt
import torch

from annotated_transformer.batching import batches, collate, encode_pairs
from annotated_transformer.toolkit.synchronous_grammar import grammar
from book.figures import INK, KEY, QUERY, VALUE, curves, show
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import TransformerConfig, evaluating
from annotated_transformer.toolkit.presets import preset

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smooth-labels", "caption": "What is the model asked to say after *the black cat*? The hard label (outline) puts everything on *likes*. Smoothing (filled, here with a share of 0.3; move the slider on the website) takes a share from it and deals it out evenly to all eight words of a made-up vocabulary, fitting or not."}}
amount = alt.param(
    "amount", value=0.3, bind=alt.binding_range(min=0, max=0.9, step=0.05, name="ε ")
)
words = ["the", "black", "cat", "likes", "loves", "eats", "fish", "."]
bars = alt.Chart(
    alt.Data(values=[{"word": w, "hard": float(w == "likes")} for w in words])
)
axis = alt.X("word:N", sort=words, title=None, axis=alt.Axis(labelAngle=0))
bars = bars.transform_calculate(q="(1 - amount) * datum.hard + amount / 8")
q_axis = alt.Y("q:Q", title="asked for", scale=alt.Scale(domain=[0, 1.05]))
chart = alt.layer(
    bars.mark_bar(color=VALUE).encode(axis, q_axis),
    bars.mark_bar(filled=False, stroke=INK, strokeDash=[4, 3]).encode(
        axis, alt.Y("hard:Q")
    ),
    bars.mark_text(dy=-7).encode(axis, q_axis, alt.Text("q:Q", format=".4f")),
)
show(
    chart.add_params(amount).properties(width=420, height=200),
    alt="With smoothing 0.3 the right word is asked for with 0.7375 and each of the other seven with 0.0375.",
)

# %% [markdown]
# Both do something odd: one breaks what the layers say to each other, the other gives the model labels that are slightly wrong. First we see what they are good for, on a model that learns its sentences by heart. Then we follow each in detail, and measure what label smoothing does to a model: it trusts itself less, even where it was right to trust itself.
#
# ## Learning by heart
#
# In the paper's 100,000 updates of 25,000 target tokens, the base model reads 2.5 billion tokens. For 4.5 million pairs of some 28 tokens, that is each pair about twenty times, and 63 million weights could store a good part of them. What we want are the regularities. A loss on training sentences can't tell the two apart, because learning by heart lowers it just as well.
#
# We let a small model see 200 pairs from [the grammar](13_data.ipynb#a-pair-and-its-alignment) again and again. Another 200 are **held out**: the model never trains on them. How good it is on these is what counts, because every sentence that you will ever translate is new.

# %%
pairs = grammar(18_200, seed=1)
tokenizer = Tokenizer.train(pairs[:18_000], vocabulary_size=600)
few, many = (encode_pairs(tokenizer, pairs[:count]) for count in (200, 18_000))
held_out = collate([*encode_pairs(tokenizer, pairs[18_000:])])
print(
    len(few),
    "to learn by heart,",
    len(many),
    "to learn from,",
    len(held_out.source),
    "held out",
)


# %% [markdown]
# The loop is [the last chapter's](16_schedule.ipynb#what-a-constant-rate-does), for 400 steps. Every 25 steps it measures the plain loss on both sets, under `evaluating`, which switches dropout off.


# %%
def loss_of(model, batch):
    logits = model(batch.source, batch.target[:, :-1])
    return F.cross_entropy(
        logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD
    )


def measured(model, batch):
    with evaluating(model):
        return loss_of(model, batch).item()


def train(corpus, max_tokens, dropout=0.0, criterion=loss_of, watch=()):
    torch.manual_seed(0)
    shape = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": dropout}
    model, log = Transformer(TransformerConfig(len(tokenizer), **shape)), []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    stream = chain.from_iterable(
        batches(corpus, max_tokens, 0, epoch) for epoch in range(400)
    )
    for step, batch in zip(range(1, 401), stream):
        adam.param_groups[0]["lr"] = learning_rate(step, 64, warmup=100, lr_scale=0.5)
        loss = criterion(model, batch)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if watch and step % 25 == 0:
            log.append([step, *(measured(model, batch) for batch in watch)])
    return model, log


# %% tags=["nbval-ignore-output"]
watch = (collate([*few]), held_out)
logs = {rate: train(few, 256, dropout=rate, watch=watch)[1] for rate in (0.0, 0.3)}
for rate, log in logs.items():
    best = min(log, key=lambda entry: entry[2])
    print(
        f"dropout {rate}: best held-out loss {best[2]:.2f} in step {best[0]},", end=" "
    )
    print(f"at the end {log[-1][2]:.2f}; on what it learned from {log[-1][1]:.2f}")

# %% tags=["remove-cell"]
assert logs[0.0][-1][2] > logs[0.0][-1][1] + 1.5
assert logs[0.3][-1][2] < min(loss for _, _, loss in logs[0.0])

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-overfitting", "caption": "Does a lower training loss mean a better model? Loss on the 200 pairs that it repeats (black) and on 200 held-out pairs (colored), without dropout (solid) and with it (dashed). Without dropout, the held-out loss turns up after step 175 while the other goes on towards zero. With dropout both fall more slowly, and the held-out loss ends lower than it ever was without."}}
looks = {
    "no dropout, held out": (KEY, [1, 0]),
    "no dropout, its own pairs": (INK, [1, 0]),
    "dropout 0.3, held out": (QUERY, [6, 3]),
    "dropout 0.3, its own pairs": (INK, [6, 3]),
}
records = [
    {"step": step, "loss": round(loss, 3), "run": f"{name}, {whose}"}
    for rate, name in ((0.0, "no dropout"), (0.3, "dropout 0.3"))
    for step, *both in logs[rate]
    for whose, loss in zip(("its own pairs", "held out"), both)
]
y = alt.Y("loss:Q", title="loss a token")
show(
    curves(records, alt.X("step:Q", title="step"), y, "run", looks),
    alt="Without dropout the held-out loss turns up to 3.1 while the training loss goes to 0.1. With dropout 0.3 the held-out loss keeps falling, to 2.0.",
)

# %% [markdown]
# Without dropout, the model can soon recite its 200 pairs, and what it says about new ones gets worse while it practices. This is **overfitting**, and only sentences that the model hasn't seen reveal it.
#
# Why does the loss on new sentences *rise* instead of leveling off? Because the model becomes sure. To lower the loss on its 200 pairs further, it pushes their words towards 100%. On a new sentence it is just as sure, and often wrong, and a word that was given 0.01% costs $-\log 0.0001 = 9.2$ where 1% would have cost 4.6.
#
# You could stop at the lowest point, as [Training](18_training.ipynb#whether-it-gets-better) does under the name of early stopping. That limits the damage; the run with dropout gets lower than the first one ever was.
#
# ## What dropout does
#
# Learning by heart often hangs on a few details. If one component of one layer says "this is pair 117", the rest of the sentence follows. With $p = 0.3$ that component is missing in three steps of ten, so a layer that reads the vector can't count on any single component and spreads its bets.
#
# Zeroing alone would shrink the mean to $1 - p$ of what it was; dividing by $1 - p$ restores it. The finished model has no trace of dropout in it, and you needn't know the rate to run it.
#
# :::{margin}
# The first paper on dropout multiplied by $1 - p$ at test time instead. Dividing in training is handier.
# :::


# %%
def dropout(x, p):
    coin = torch.empty_like(x).bernoulli_(1 - p)
    return coin * x / (1 - p)


x = torch.tensor([[1.0, -2.0, 3.0, 4.0]]).expand(100_000, 4)
torch.manual_seed(1)
ours = dropout(x, p=0.3)
torch.manual_seed(1)
print(
    "values of the third component:",
    [round(v, 2) for v in ours[:, 2].unique().tolist()],
)
print("means:", [round(v, 1) for v in ours.mean(0).tolist()])

# %% tags=["remove-cell"]
torch.testing.assert_close(nn.Dropout(0.3)(x), ours)

# %% [markdown]
# A 3 becomes 0 or $3 / 0.7 = 4.29$, and on average it is still 3. The spread isn't kept: it is now $3 \sqrt{p / (1 - p)} = 1.96$, where it was 0. A vector of 64 numbers loses about 19 of them at $p = 0.3$, different ones at each position and step; no word is ever lost as a whole.
#
# ### Why must I call `model.eval()`?
#
# Because dropout must be off when the model is used. `eval` flips the switch `training` in each module, and has nothing to do with gradients, which `torch.no_grad()` turns off. If you forget it, the model still translates, a little worse, and differently each time:

# %%
layer, vector = nn.Dropout(0.3), torch.tensor([1.0, -2.0, 3.0, 4.0])
torch.manual_seed(0)
print("in training:  ", *[layer(vector).numpy().round(2) for _ in range(2)])
print("in evaluation:", *[layer.eval()(vector).numpy().round(2) for _ in range(2)])

# %% [markdown]
# Our `evaluating` puts back whatever was set before, so the rest of the run doesn't lose its dropout either.
#
# ### Where is dropout in the Transformer?
#
# Section 5.4 names two places: the output of each sub-layer, before it is added to the residual stream and normalized, and the sum of embedding and position, on both sides.
#
# | where | how often in the base model |
# |---|---|
# | embedding + position, source and target | 2 |
# | encoder: after self-attention, after the feed-forward network | 6 × 2 |
# | decoder: after self-attention, cross-attention, feed-forward network | 6 × 3 |
#
# Inside the layers, then, dropout hits what a sub-layer *adds*, never the stream: where a component of the update is dropped, the stream simply passes through. Only the dropout on the embeddings hits the stream itself, at its start.
#
# Two more places are common. Dropout on the attention weights isn't mentioned for translation; section 6.3 tunes it for parsing, and the authors' code, tensor2tensor, sets it to 0.2 there (`transformer_parsing_base`). Dropout inside the feed-forward network, after the ReLU, isn't mentioned at all. In tensor2tensor both were 0 in the first settings for translation and 0.1 from `transformer_base_v2` on. Ours are options that are off by default; in [short runs](../book/departures.md#the-model) they changed the loss by 0.03 and 0.01 nats, with standard errors of 0.02.
#
# To be sure, we let the model count. A forward hook is a function that PyTorch calls whenever a module has run; ours notes which part the module is in. (The module named `dropout`, on embedding and position, runs twice.)

# %%
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
assert len(calls) == 2 + 6 * 2 + 6 * 3

# %% [markdown]
# A rate that wasn't passed on, or a second dropout that came in with a library's layer, shows up in this count.
#
# ### The rate of dropout
#
# It should be higher where there is less text for each weight. The paper takes 0.1 for base, 0.3 for big on 4.5 million pairs, and again 0.1 for big on the French corpus with eight times as many. Its Table 3 shows what is at stake for base: 24.6 BLEU without dropout, 25.8 with 0.1, 25.5 with 0.2.
#
# ## Why smooth the labels?
#
# With plain cross-entropy a model is never done. To give the right word 100%, its logit would have to be infinitely far above the others:

# %%
for lead in (2, 5, 10, 15):
    p = torch.tensor([float(lead), *[0.0] * 999]).softmax(0)[0].item()
    print(
        f"a lead of {lead:2} over 999 other words: probability {p:.4f}, loss {-math.log(p):.4f}"
    )

# %% [markdown]
# From a lead of 10 on, the model says 96% and better, and the loss still pays for more. And for what? There is seldom one right word. After *the black cat*, the training text happens to have *likes*, where *loves* would do as well. A model that bets everything on the one has learned an accident.
#
# Smoothing is a crude remedy: *loves* is a near miss and *the* is nonsense, and both get the same share. It only says: never be quite sure.
#
# ### Who gets a share
#
# Programs deal the share out differently, and all call it label smoothing. With eight words and $\epsilon = 0.1$:
#
# | the share goes to | right word | each other word | `<pad>` |
# |---|:---:|:---:|:---:|
# | all words (`F.cross_entropy`, this book) | 0.9125 | 0.0125 | 0.0125 |
# | all but the right one (tensor2tensor) | 0.9 | 0.0143 | 0.0143 |
# | all but the right one and `<pad>` (Harvard's [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/)) | 0.9 | 0.0167 | 0 |
#
# In a vocabulary of thousands they are nearly the same. It matters when you compare two programs number by number.
#
# ## The loss in two parts
#
# The loss is the cross-entropy of $q$ with the model's distribution $p$. Insert {eq}`eq-smooth`, and the sum over the vocabulary falls into two parts:
#
# $$ \text{loss} = -\sum_v q_v \log p_v = -(1 - \epsilon) \log p_y - \frac{\epsilon}{|V|} \sum_v \log p_v $$ (eq-smooth-loss)
#
# The first part is the old loss, a little weaker. The second is $\epsilon$ times the mean of $-\log p_v$ over all words. It grows when any word gets hardly a chance, and so it holds back a model that is about to be sure.
#
# The gradient has a form worth knowing. With $\log p_v = z_v - \log \sum_i e^{z_i}$ for logits $z$, the loss is $\log \sum_i e^{z_i} - \sum_v q_v z_v$, since the $q_v$ sum to 1. The first term has the derivative $p_v$, the second $q_v$:
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
# Descent moves against the gradient. In the last row the hard label still raises the right word, while the smoothed one lowers it again. We check both formulas against `F.cross_entropy` and its derivative, with padding among the labels:


# %%
def smoothed(labels, smoothing, vocabulary):
    return (1 - smoothing) * F.one_hot(
        labels, vocabulary
    ).double() + smoothing / vocabulary


generator = torch.Generator().manual_seed(0)
logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
labels = torch.tensor([[4, 5, 6, PAD, PAD], [7, 8, 9, 10, 4], [5, PAD, PAD, PAD, PAD]])
log_p, real = logits.log_softmax(-1), labels != PAD
differences = []
for smoothing in (0.0, 0.1, 0.5):
    z = logits.clone().requires_grad_()
    loss = label_smoothed_loss(z, labels, smoothing)
    loss.backward()
    log_p_y = log_p.gather(-1, labels[..., None])[..., 0]
    by_hand = -(1 - smoothing) * log_p_y - smoothing * log_p.mean(-1)
    gradient = (log_p.exp() - smoothed(labels, smoothing, 11)) * real[..., None]
    differences.append((z.grad - gradient).abs().max().item())
    differences.append(abs(loss.item() - by_hand[real].sum().item()))
    print(f"ε = {smoothing}: {loss:.4f}, by hand {by_hand[real].sum():.4f}")

# %% tags=["remove-cell"]
assert max(differences) < 1e-9

# %% [markdown]
# ### Padding doesn't count
#
# Whatever the logits are at padding, our loss doesn't move; a loss that counts padding as a word to be said gives another number and trains the model to say `<pad>`. The end of a sentence is another matter: `</s>` is a label like any word, and a model that never learns to say it doesn't stop.

# %%
loss = label_smoothed_loss(logits, labels)
noise = 100 * torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
for_all = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
print(
    f"a token: {loss / real.sum():.2f}; with padding counted as words to be said: {for_all:.2f}"
)

# %% tags=["remove-cell"]
assert torch.equal(label_smoothed_loss(logits + noise * ~real[..., None], labels), loss)

# %% [markdown]
# The losses are summed. [Training](18_training.ipynb#the-mean-over-all-tokens) divides by the tokens of all batches of an update, and shows why.
#
# ## Why does my loss stop above 1?
#
# One run with smoothing shows a loss of 2.1, another 0.9, and the two models may be equally good. Some programs report the **KL divergence** from $q$ to $p$, which is zero where the two are equal. Add and subtract $\sum_v q_v \log q_v$ in the cross-entropy:
#
# $$
# -\sum_v q_v \log p_v
# = \sum_v q_v \log \frac{q_v}{p_v} - \sum_v q_v \log q_v
# = \operatorname{KL}(q \,\|\, p) + H(q)
# $$ (eq-kl)
#
# The **entropy** $H(q)$ of the labels has nothing to do with the model, so the gradients are equal, and the loss can't get below it. With $q_y = 1 - \epsilon + \epsilon / |V|$ for one word and $\epsilon / |V|$ for $|V| - 1$ words:
#
# $$
# H(q) = -q_y \log q_y - (|V| - 1)\, \frac{\epsilon}{|V|} \log \frac{\epsilon}{|V|}
# $$ (eq-label-entropy)


# %%
def label_entropy(smoothing, vocabulary):
    on, off = 1 - smoothing + smoothing / vocabulary, smoothing / vocabulary
    return -on * math.log(on) - (vocabulary - 1) * off * math.log(off)


kl = F.kl_div(log_p, smoothed(labels, 0.1, 11), reduction="none").sum(-1)[real].sum()
for vocabulary in (4000, 37_000):
    print(
        f"lowest loss with {vocabulary:6,} words: {label_entropy(0.1, vocabulary):.2f}"
    )

# %% tags=["remove-cell"]
torch.testing.assert_close(kl + real.sum() * label_entropy(0.1, 11), loss)

# %% [markdown]
# With 37,000 words the right one adds $0.9 \cdot 0.105 = 0.09$ and the many small shares add $0.1 \cdot \log 370{,}000 = 1.28$. A perfect model of the paper's size still shows 1.38 a token. For a **perplexity**, exponentiate the plain cross-entropy with hard labels: a model with perplexity 3 is as uncertain as if it had to choose among three equal words.
#
# :::{margin}
# tensor2tensor subtracts this constant from the loss that it reports.
# :::
#
# :::{admonition} For a second reading: a KL divergence that is not a number
# :class: dropdown
#
# Harvard's page draws its loss for a made-up distribution in which `<pad>` has probability exactly 0, and takes the logarithm. The share of `<pad>` is 0 as well, so the contribution ought to be nothing; in floating point it is zero times minus infinity. The toy distribution is to blame, neither smoothing nor the padding entry: log-probabilities that come from `log_softmax` over finite logits never reach minus infinity. That is one reason why our loss takes logits.
# :::

# %% tags=["hide-cell"]
p, q = torch.tensor([0.0, 0.7, 0.1, 0.1, 0.1]), torch.tensor([0.0, 0.9, *[0.1 / 3] * 3])
print("KL with log 0:", F.kl_div(p.log(), q, reduction="sum").item())
print(
    "without that entry:",
    round(F.kl_div(p[1:].log(), q[1:], reduction="sum").item(), 2),
)

# %% [markdown]
# ## How sure is sure enough
#
# Let the model give the right word probability $c$ and share the rest evenly. Without smoothing, the loss falls for as long as $c$ grows. With it, there is a lowest point where $p = q$, at $c = 1 - \epsilon + \epsilon / |V|$; beyond it, more confidence costs.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smoothing", "caption": "Why punish certainty? Loss of a token against the probability of the right word, for a vocabulary of 1,000. The dot marks the lowest point of each curve: at 100% without smoothing (solid), at 90% with 0.1 (dashed), at 70% with 0.3 (dotted). The floor rises with the smoothing."}}
V = 1000


def loss_at(c, smoothing):
    on, off = 1 - smoothing + smoothing / V, smoothing / V
    return -on * math.log(c) - (V - 1) * off * math.log((1 - c) / (V - 1))


looks = {
    "no smoothing": (INK, [1, 0]),
    "smoothing 0.1": (QUERY, [6, 3]),
    "smoothing 0.3": (KEY, [2, 2]),
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
assert [dot["c"] for dot in lowest] == [0.9999, 0.9, 0.7]
x = alt.X(
    "c:Q", title="probability of the right word", scale=alt.Scale(domain=[0.3, 1])
)
x.axis = alt.Axis(format="%")
chart = curves(records, x, alt.Y("loss:Q", title="loss of a token"), "smoothing", looks)
dots = alt.Chart(alt.Data(values=lowest)).encode(alt.X("c:Q"), alt.Y("loss:Q"))
dots = dots.mark_point(filled=True, color=INK, size=80, opacity=1)
show(
    chart + dots,
    alt="Without smoothing the loss falls to 0 at 100 percent. With smoothing 0.1 and 0.3 it turns up again beyond 90 and 70 percent.",
)

# %% [markdown]
# ## What smoothing does to a model
#
# We train two models on 18,000 pairs, with the same start and the same batches; one follows hard labels, the other smoothing 0.1. Neither has dropout, so that only one thing differs. On the held-out sentences we ask for the perplexity, the confidence (the probability of the word that the model finds best), and how often that word is right.


# %% tags=["nbval-ignore-output"]
def with_smoothing(smoothing):
    def criterion(model, batch):
        logits, labels = model(batch.source, batch.target[:, :-1]), batch.target[:, 1:]
        return label_smoothed_loss(logits, labels, smoothing) / (labels != PAD).sum()

    return criterion


def best_guesses(model):
    with evaluating(model):
        p = model(held_out.source, held_out.target[:, :-1]).softmax(-1)
    confidence, word = p.max(-1)
    labels = held_out.target[:, 1:]
    return confidence[labels != PAD], (word == labels)[labels != PAD]


models = {s: train(many, 384, criterion=with_smoothing(s))[0] for s in (0.0, 0.1)}
guesses = {s: best_guesses(model) for s, model in models.items()}
for s, (confidence, right) in guesses.items():
    print(
        f"smoothing {s}: perplexity {math.exp(measured(models[s], held_out)):.2f},",
        end=" ",
    )
    print(
        f"says {confidence.mean():.0%}, is right {right.float().mean():.0%},", end=" "
    )
    print(
        f"surer than 95% at {(confidence > 0.95).float().mean():.0%} of the positions"
    )
sure = {s: (confidence > 0.95).float().mean() for s, (confidence, _) in guesses.items()}

# %% tags=["remove-cell"]
assert sure[0.1] < sure[0.0] / 3

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-confidence", "caption": "What does smoothing do to confidence? Held-out positions by the probability of the model's best word, with hard labels (outline) and with smoothing 0.1 (filled). The last column, above 95%, holds a quarter of the positions with hard labels and nearly none with smoothing; its highest columns are at 85 to 95%, where it was told to stop."}}
records = [
    {"bin": n / 20, "end": (n + 1) / 20, "share": round(share, 4), "smoothing": s}
    for s, (confidence, _) in guesses.items()
    for n, share in enumerate((confidence.histc(20, 0, 1) / len(confidence)).tolist())
]
both = alt.Chart(alt.Data(values=records)).encode(
    alt.X("bin:Q", title="probability of the best word", axis=alt.Axis(format="%")),
    alt.X2("end"),
    alt.Y("share:Q", title="share of positions", axis=alt.Axis(format="%")),
)
filled = both.transform_filter("datum.smoothing > 0").mark_rect(
    color=QUERY, opacity=0.75
)
outlined = both.transform_filter("datum.smoothing == 0").mark_rect(
    filled=False, stroke=INK, strokeWidth=1.6
)
bars = alt.layer(
    filled.encode(y2=alt.datum(0)),
    outlined.encode(y2=alt.datum(0)),
)
show(
    bars.properties(width=420, height=220),
    alt="With hard labels the column above 95 percent is by far the highest. With smoothing 0.1 it is nearly empty, and the columns from 85 to 95 percent are highest.",
)

# %% [markdown]
# A model is **calibrated** if, of all positions where it says 90%, nine in ten are right. Read each line as a promise, and see whether it was kept:

# %% tags=["nbval-ignore-output"]
gaps = {}
for s, (confidence, right) in guesses.items():
    for low in (0.3, 0.5, 0.7, 0.9):
        here = (confidence >= low) & (confidence < low + 0.1)
        says, does = confidence[here].mean(), right[here].double().mean()
        gaps[s, low] = (does - says).item()
        print(f"smoothing {s}: says {says:.0%}, is right {does:.0%}", end=" ")
        print(f"({here.sum()} positions)")

# %% tags=["remove-cell"]
for (s, low), gap in gaps.items():
    assert abs(gap) < 0.08 if s == 0 or low == 0.9 else gap > 0.05

# %% [markdown]
# With hard labels our model says what it can do: it has seen no sentence twice. The smoothed one is right more often than it says. A model that has trained for long on little text promises too much, and smoothing brings it nearer to the truth, as {cite:t}`muller2019when` measure on images and translations. Smoothing doesn't make a model honest. It takes confidence away, whether there was too much of it or not.
#
# ### Does it translate better?
#
# In the paper smoothing *gains* half a point of BLEU, 25.8 against 25.3, in spite of a worse perplexity, 4.92 against 4.67 (Table 3, row D). The price was to be expected: where the best word is certain, saying 0.9 costs $-\log 0.9 = 0.105$. One pair of short runs can't confirm either, because another seed moves the scores by several points. A script, `benchmarks/experiments/smoothing.py`, repeats our pair from six seeds and lets each model translate the held-out sentences greedily. From its log:

# %%
lines = Path("../benchmarks/results/smoothing.jsonl").read_text().splitlines()[1:]
hard, soft = (
    [r for r in map(json.loads, lines) if r["smoothing"] == s] for s in (0.0, 0.1)
)
for name in ("perplexity", "bleu", "says", "is_right"):
    gains = [after[name] - before[name] for before, after in zip(hard, soft)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    means = [statistics.mean(run[name] for run in runs) for runs in (hard, soft)]
    print(f"{name:10}  hard {means[0]:5.2f}, smoothed {means[1]:5.2f}", end=", ")
    print(f"difference {statistics.mean(gains):+.2f} ± {error:.2f}")

# %% [markdown]
# Two runs of a pair share their start and their batches, so the differences are taken pair by pair. The smoothed models score 2.9 ± 1.4 points of BLEU more and are right 4 points more often, about two standard errors: a hint. After 400 steps the price in perplexity doesn't show yet.
#
# Why would a less sure model translate better? The usual answer looks at the search: a model that is sure at each step leaves [beam search](19_decoding.ipynb#expand-score-prune-one-topk), which keeps several translations going, nothing to choose, while a modest one keeps its second choices within reach. But these translations are greedy, where no second choice is ever looked at, so if this gain is real, it comes from training. One explanation: hard labels push the right logit up for ever, while smoothed ones hold all other words at the same finite distance, which keeps the weights from growing without end.
#
# ## The loss as a module
#
# [Training](18_training.ipynb#one-update) wants the loss of a batch as a module, because compilers and the tools for [many GPUs](26_distributed.ipynb#exchange-while-computing) take modules. The target serves twice, [one position apart](10_transformer.ipynb#the-target-shifted-by-one). We take the decoder's states at real labels only, so padding never meets the largest matrix of the model, that of the output. A batch without any label has a loss of zero.


# %% tags=["export"]
class SmoothedLoss(nn.Module):
    """The label-smoothed loss of a batch in nats, summed over real target tokens (section 5.4)."""

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be from 0 to below 1, not {label_smoothing}"
            )
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


# %%
model = models[0.1].double()
whole = label_smoothed_loss(
    model(held_out.source, held_out.target[:, :-1]), held_out.target[:, 1:]
)
try:
    SmoothedLoss(model, label_smoothing=10)
except ValueError as error:
    print(error)

# %% tags=["remove-cell"]
torch.testing.assert_close(SmoothedLoss(model)(*held_out), whole)

# %% [markdown]
# 10 for 10% is an easy slip, and with 1 all labels would be alike, so the module refuses both from the start.
#
# ### Dropout and smoothing side by side
#
# Both keep the model from being too sure of its training sentences, at different ends. Dropout works on how an answer is found, and shows its worth where sentences are repeated. Smoothing works on the answer alone, from the first sentence on. Neither is used when the model is tested. ([Why is my training loss above my validation loss?](18_training.ipynb#why-is-the-training-loss-above-the-validation-loss) has both among its reasons.)
#
# ### What about weight decay?
#
# **Weight decay** pulls every weight toward zero a little in each step. The paper doesn't mention it, and we leave it out. If the pull is added to the gradient, Adam divides it by that gradient's usual size, so weights with small gradients are pulled hardest. Today's default, AdamW, keeps the two apart. Where it is used, biases and the gains of norms are usually spared: a gain pulled to 0 would silence its norm.
#
# ## What to remember
#
# - Overfitting shows on held-out sentences only. Measure them with dropout off and hard labels.
# - Dropout sits on each sub-layer's output and on embedding + position. It zeroes with probability $p$, divides by $1 - p$, and is off when the model is used.
# - Label smoothing gives every word a share $\epsilon / |V|$ of the truth. The gradient is $p - q$, so too much certainty costs.
# - The smoothed loss can't fall below $H(q)$; the KL divergence is the same loss minus $H(q)$, and can reach zero.
#
# Model, batches, rate and loss are waiting for a loop. Its simplest form has nine lines, and it can be killed at any moment.
#
# ## Exercises
#
# **1. A model that knows nothing** (★, 5 min). By hand: a vocabulary has four words, $\epsilon$ is 0.2, and the model gives each word 25%. What is the loss of a token, and what is it without smoothing?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All log p are -log 4, and q sums to 1: the loss is log 4 = 1.39 for any smoothing.
flat, label = torch.zeros(1, 4), torch.tensor([3])
print([round(label_smoothed_loss(flat, label, s).item(), 2) for s in (0.0, 0.2)])
assert all(
    abs(label_smoothed_loss(flat, label, s) - math.log(4)) < 1e-6 for s in (0.0, 0.2)
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
assert abs(thinned.mean() - 0.7**6) < 0.01

# %% [markdown]
# **3. A floor** (★, 5 min). A log shows a smoothed loss of 2.10 a token, for 8,000 words and $\epsilon = 0.1$. Which KL divergence is that? Could the loss ever fall to 1.0?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The floor is the entropy of the labels. It is above 1, so no: a loss of 1.0 would mean a mistake in the loss.
floor = label_entropy(0.1, 8000)
print(f"floor {floor:.2f}, divergence {2.10 - floor:.2f}")
assert 1.0 < floor < 2.10

# %% [markdown]
# **4. Where the pull ends** (★★, 15 min). With hard labels no lead is enough. By how much must the right logit lead all others before label smoothing stops pulling, with 37,000 words and $\epsilon = 0.1$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The gradient is zero where p = q. Then the lead is log(q_y / q_v) = log((1 - e + e / V) / (e / V)) = log((1 - e) V / e + 1).
lead = math.log(0.9 * 37_000 / 0.1 + 1)
z = torch.zeros(1, 37_000, dtype=torch.float64).index_fill_(1, torch.tensor([7]), lead)
z.requires_grad_()
label_smoothed_loss(z, torch.tensor([7])).backward()
print(f"a lead of {lead:.1f}")
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
assert abs(mean - exact) < 0.02

# %% [markdown]
# **6. A kinder share** (★★★, an evening; open). Deal the share out by similarity instead: to the ten nearest neighbors of the right word in the model's own embedding. Is a model trained like that better calibrated, and does it translate better? Use at least six seeds, pair by pair.
#
# ## Sources
#
# Rates and places of dropout and the smoothing of 0.1 are from section 5.4 of {cite:t}`vaswani2017attention`, the effects of leaving either out from its Table 3. Dropout is from {cite:t}`srivastava2014dropout`, label smoothing from {cite:t}`szegedy2016rethinking`; {cite:t}`muller2019when` ask when it helps. Who gets a share, and what was dropped when, is taken from `smoothing_cross_entropy` and `transformer_base_v1` to `v3` of tensor2tensor, and in `LabelSmoothing` of {cite:t}`rush2018annotated` as revised in 2022.
