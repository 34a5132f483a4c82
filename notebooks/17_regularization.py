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
# # Regularization
#
# This chapter keeps the model from learning its sentences by heart and from being too sure: dropout and label smoothing (section 5.4 of the paper).
#
# The base model has 63 million weights, and it meets each of its sentences again and again. In 100,000 updates of 25,000 target tokens it reads 2.5 billion tokens. For 4.5 million sentence pairs that is 556 tokens a pair, so at some 28 tokens a sentence it has seen each about twenty times. It could store a good part of them. What we want are the regularities, and a loss on training sentences cannot tell the two apart: learning by heart lowers it just as well.
#
# Whatever keeps a model from learning by heart is called **regularization**. The paper uses two means. Dropout disturbs what the layers say to each other, so that no path through the network can rely on one detail. Label smoothing disturbs the answer: the right word is declared only 90 % right.
#
# We first see the disease on a run of our own. Then we build both remedies, and measure what each of them does. One of the results will look bad, and the paper has it too. The package gets the smoothed loss from this chapter. Dropout is in the model already; here we look at what it does there.

# %% tags=["export"]
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.masks import PAD
from annotated_transformer.transformer import Transformer

# %%
import math
from itertools import chain

import altair as alt
import sacrebleu
import torch

from annotated_transformer.batching import batches, collate, encode_pairs
from annotated_transformer.synchronous_grammar import grammar
from book.figures import INK, KEY, QUERY, VALUE, curves, show
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import TransformerConfig, evaluating, greedy_decode, preset

# %% [markdown]
# ## Learning by heart
#
# Take 200 sentence pairs from [the grammar](B_synchronous_grammar.ipynb) and let a small model see them again and again. Another 200 pairs are **held out**: they come from the same grammar, and the model never trains on them. How good it is on these is what counts, for in use every sentence is new.

# %%
pairs = grammar(18_200, seed=1)
tokenizer = Tokenizer.train(pairs[:18_000], vocabulary_size=600)
few, many = (encode_pairs(tokenizer, pairs[:count]) for count in (200, 18_000))
held_out = collate([*encode_pairs(tokenizer, pairs[18_000:])])
print(len(few), "to learn by heart,", len(many), "to learn from,", len(held_out.source), "held out")

# %% [markdown]
# The loop is that of the last chapter, with a few more arguments: which corpus it repeats, how much dropout the model has, and which loss it follows. A run has 400 steps, at a rate with a warm-up of 100. `batches` gives one epoch after the other, each in an order of its own.
#
# Every 25 steps the loop also measures the loss on both sets. It does so under `evaluating`, which switches dropout off and keeps no gradients. So the two losses are measured alike, and the model is the one that would be used.


# %%
def loss_of(model, batch):
    logits = model(batch.source, batch.target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD)


def measured(model, batch):
    with evaluating(model):
        return loss_of(model, batch).item()


def train(corpus, max_tokens, dropout=0.0, criterion=loss_of, watch=()):
    torch.manual_seed(0)
    shape = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": dropout}
    model, log = Transformer(TransformerConfig(len(tokenizer), **shape)), []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    stream = chain.from_iterable(batches(corpus, max_tokens, 0, epoch) for epoch in range(400))
    for step, batch in zip(range(1, 401), stream):
        adam.param_groups[0]["lr"] = learning_rate(step, 64, warmup=100, lr_scale=0.5)
        loss = criterion(model, batch)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if watch and step % 25 == 0:
            log.append([step, *(measured(model, batch) for batch in watch)])
    return model, log


# %% [markdown]
# We train twice. The second run has dropout, at a rate of 0.3, which the next section explains.

# %% tags=["nbval-ignore-output"]
watch = (collate([*few]), held_out)
logs = {rate: train(few, 256, dropout=rate, watch=watch)[1] for rate in (0.0, 0.3)}
for rate, log in logs.items():
    best = min(log, key=lambda entry: entry[2])
    print(f"dropout {rate}: best held-out loss {best[2]:.2f} in step {best[0]},", end=" ")
    print(f"at the end {log[-1][2]:.2f}; on what it learned from {log[-1][1]:.2f}")
assert logs[0.0][-1][2] > logs[0.0][-1][1] + 1.5 and logs[0.3][-1][2] < logs[0.0][-1][2]

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-overfitting", "caption": "Does a lower training loss mean a better model? Loss on the 200 pairs that it repeats (no color) and on 200 held-out pairs (colored), without dropout and with it. Without dropout the two part early, and the held-out loss rises again while the other goes to zero. With dropout both fall more slowly, and the held-out loss gets lower than it ever was without."}}
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
    alt="Without dropout the held-out loss turns up while the training loss goes to zero. With dropout 0.3 the held-out loss keeps falling.",
)

# %% [markdown]
# Without dropout, the model can soon recite its 200 pairs, and what it says about new ones gets worse while it practices. This is **overfitting**. Nothing in the training loss shows it; it takes sentences that the model has not seen.
#
# Why does the loss on new sentences *rise*, and not just stay? Because the model becomes sure. To lower the loss on its 200 pairs further, it pushes their words towards 100 %. On a new sentence it is just as sure, and often wrong. A word that was given 1 % costs $-\log 0.01 = 4.6$; with 0.01 % it costs 9.2.
#
# One remedy needs nothing new: stop at the lowest point, here long before the end. [Training](18_training.ipynb) does that under the name of early stopping. But stopping only limits the damage. The run with dropout gets lower than the first one ever was.
#
# ## Dropout
#
# **Dropout** {cite:p}`srivastava2014dropout` sets each number of a vector to zero with probability $p$, anew in each step. A layer that reads the vector can no longer count on a single component, so it spreads its bets. What was learned by heart often hangs on a few such details: if one component of one layer says "this is pair 117", the rest of the sentence follows. With $p = 0.3$ that component is missing in three steps of ten.
#
# Zeroing alone would make the vector smaller on average, by the factor $1 - p$. So the survivors are divided by $1 - p$. For a component $x$ and a coin $b$ that is 1 with probability $1 - p$:
#
# $$
# \operatorname{dropout}(x) = \frac{b\,x}{1 - p}, \qquad
# \mathbb{E}[\operatorname{dropout}(x)] = \frac{(1 - p)\,x + p \cdot 0}{1 - p} = x
# $$ (eq-dropout)
#
# The mean is what it was, and the next layer sees inputs of the usual size. One could also leave the survivors alone and multiply by $1 - p$ in use. The first paper on dropout did. Dividing in training is the better place: the model that is used then has no trace of dropout in it, and whoever runs it need not know the rate.


# %%
def dropout(x, p):
    coin = torch.empty_like(x).bernoulli_(1 - p)
    return coin * x / (1 - p)


x = torch.tensor([[1.0, -2.0, 3.0, 4.0]]).expand(100_000, 4)
torch.manual_seed(1)
ours = dropout(x, p=0.3)
torch.manual_seed(1)
torch.testing.assert_close(nn.Dropout(0.3)(x), ours)
print("values of the third component:", [round(v, 2) for v in ours[:, 2].unique().tolist()])
print("means:", [round(v, 1) for v in ours.mean(0).tolist()])
print("spread of the third:", round(ours[:, 2].std().item(), 1))

# %% [markdown]
# Seeded alike, PyTorch's module draws the same coins and gives the same numbers. A 3 becomes 0 or $3 / 0.7 = 4.29$, and on average it is still 3.
#
# The mean is kept, the spread is not. Where there was always a 3, there is now a number with the standard deviation $3 \sqrt{p / (1 - p)} = 1.96$. At $p = 0.1$ it would be 1.0, at $p = 0.5$ it would be 3.0, as large as the number itself.
#
# Each number has a coin of its own. A vector of 64 components loses about 19 of them at $p = 0.3$, other ones at each position and in each step. No position is lost as a whole, and no word.
#
# ## Off in use
#
# A noisy answer is no good to anyone who uses the model, so dropout must be off then. In PyTorch that is `model.eval()`:

# %%
layer = nn.Dropout(0.3)
same = {mode: torch.equal(layer.train(mode)(x), layer(x)) for mode in (True, False)}
print(f"twice the same: in training {same[True]}, in evaluation {same[False]}")
assert torch.equal(layer.eval()(x), x)

# %% [markdown]
# `eval` only flips a switch, `training`, in each module. It has nothing to do with gradients, which `torch.no_grad()` turns off, and neither implies the other. A forgotten `eval` raises no error: the model still translates, a little worse, and differently each time. A forgotten `train` is as silent: the rest of the run has no dropout. Our `evaluating` puts back whatever was set before.
#
# ## Exactly where?
#
# Section 5.4 names two places. The first is the output of each sub-layer, before it is added to the residual stream and normalized. The second is the sum of embedding and position, on both sides. There is no dropout on attention weights, and none inside the feed-forward network; later code by the same authors added both, and our configuration offers them with 0 as default.
#
# The order matters. Dropped is what a sub-layer *adds*, not the stream itself. If a component of the addition falls out, the stream passes there as it was. Only dropout on embedding and position, at the bottom, takes something out of the stream for good.
#
# | where | how often in the base model |
# |---|---|
# | embedding + position, source and target | 2 |
# | encoder: after self-attention, after the feed-forward network | 6 × 2 |
# | decoder: after self-attention, cross-attention, feed-forward network | 6 × 3 |
#
# That makes 32 places. We let the model count. A forward hook is a function that PyTorch calls whenever a module has run; ours notes which part of the model the module is in. The module named `dropout` is the one on embedding and position, and it runs twice.

# %%
model = Transformer(preset("base", vocabulary_size=100)).train()
calls = []
for name, module in model.named_modules():
    if isinstance(module, nn.Dropout) and module.p > 0:
        module.register_forward_hook(lambda *_, name=name: calls.append(name.split(".")[0]))
model(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]]))
print({part: calls.count(part) for part in ("dropout", "encoder", "decoder")}, "in all", len(calls))
assert len(calls) == 2 + 6 * 2 + 6 * 3

# %% [markdown]
# Counting calls is better than reading the code. A layer whose rate was not passed on, or a second dropout that came in with a library's layer, both show up in the count.
#
# ## How high should the rate be?
#
# The paper takes 0.1 for the base model, and 0.3 for its big model on the smaller of its two corpora. On the larger one, with eight times the pairs, the big model needs only 0.1. Its Table 3 shows what is at stake for the base model:
#
# | dropout | BLEU, newstest2013 | against 0.1 |
# |:---:|:---:|:---:|
# | 0 | 24.6 | −1.2 |
# | 0.1 | 25.8 | |
# | 0.2 | 25.5 | −0.3 |
#
# The less text there is for each weight, the more dropout helps. Our first run had 200 pairs for a model of 270,000 weights, so 0.3 was not too much. The price is time: in the figure above, the curves with dropout fall later.
#
# ## Labels that are never satisfied
#
# The second remedy concerns the loss. With plain cross-entropy a model is never done. Give the right word a probability of 99 %, and the loss still asks for more. To reach 100 %, its logit must be infinitely far above the others.

# %%
for lead in (2, 5, 10, 15):
    p = torch.tensor([float(lead), *[0.0] * 999]).softmax(0)[0].item()
    print(f"a lead of {lead:2} over 999 other words: probability {p:.4f}, loss {-math.log(p):.4f}")

# %% [markdown]
# From a lead of 10 on, the model says 96 % and better, and the loss goes on paying for more: a lead of 15 in place of 10 brings the loss from 0.044 to 0.0003. Each step widens the gap a bit, in this sentence and in the next.
#
# And for what? There is seldom one right word. *A dog runs* and *A dog is running* both translate *Ein Hund rennt*, and the training text happens to have one of them. A model that bets everything on that one has learned an accident.
#
# ## A little for every word
#
# **Label smoothing** {cite:p}`szegedy2016rethinking` takes a share $\epsilon$ of the probability from the right word $y$ and deals it out to all $V$ words of the vocabulary alike:
#
# $$ q_v = (1 - \epsilon)\,[v = y] + \frac{\epsilon}{V} $$ (eq-smooth)
#
# The bracket is 1 for the right word and 0 for all others: this is the **hard label**. With $V = 8$ and $\epsilon = 0.1$ the right word keeps $0.9 + 0.0125 = 0.9125$, and each other word gets $0.0125$. With 37,000 words the share of each is $0.1 / 37000 = 0.0000027$. It is tiny and it is not nothing: a word that the model gives a probability of zero would cost infinitely much.


# %%
def smoothed(labels, smoothing, vocabulary):
    return (1 - smoothing) * F.one_hot(labels, vocabulary).double() + smoothing / vocabulary


q = smoothed(torch.tensor([3]), 0.1, 8)
print([round(share, 4) for share in q[0].tolist()], " sum", round(q.sum().item(), 6))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smooth-labels", "caption": "What is the model asked to say? The hard label (outline) puts everything on *runs*. Smoothing (filled, here with \u03b5 = 0.3; move the slider on the website) takes a share from it and deals it out evenly, to all words, fitting or not. A made-up vocabulary of eight words."}}
amount = alt.param(
    "amount", value=0.3, bind=alt.binding_range(min=0, max=0.9, step=0.05, name="ε ")
)
words = ["the", "dog", "dogs", "runs", "is", "running", "cat", "."]
bars = alt.Chart(alt.Data(values=[{"word": w, "hard": float(w == "runs")} for w in words]))
axis = alt.X("word:N", sort=words, title=None, axis=alt.Axis(labelAngle=0))
bars = bars.transform_calculate(q="(1 - amount) * datum.hard + amount / 8")
q_axis = alt.Y("q:Q", title="asked for", scale=alt.Scale(domain=[0, 1.05]))
chart = alt.layer(
    bars.mark_bar(color=VALUE).encode(axis, q_axis),
    bars.mark_bar(filled=False, stroke=INK, strokeDash=[4, 3]).encode(axis, alt.Y("hard:Q")),
    bars.mark_text(dy=-7).encode(axis, q_axis, alt.Text("q:Q", format=".4f")),
)
show(
    chart.add_params(amount).properties(width=420, height=200),
    alt="With smoothing 0.3 the right word is asked for with 0.7375 and each of the other seven with 0.0375.",
)

# %% [markdown]
# Note how crude this is. *Running* is a near miss and *the* is nonsense, and both get the same share. Label smoothing knows nothing about words. It only says: never be quite sure.
#
# ## Who gets a share?
#
# Four variants are in use. They differ in who gets a part of $\epsilon$, and all of them are called label smoothing. With $V = 8$ and $\epsilon = 0.1$:
#
# | the share goes to | right word | each other word | `<pad>` |
# |---|:---:|:---:|:---:|
# | all words (this book, `F.cross_entropy`) | $1 - \epsilon + \epsilon / V = 0.9125$ | $\epsilon / V = 0.0125$ | 0.0125 |
# | all words but the right one (the authors' code) | $1 - \epsilon = 0.9$ | $\epsilon / (V - 1) = 0.0143$ | 0.0143 |
# | all but the right one and `<pad>` | $0.9$ | $\epsilon / (V - 2) = 0.0167$ | 0 |
# | words by their frequency in the text | more than 0.9 | its frequency times $\epsilon$ | 0 |
#
# In a vocabulary of thousands, the first three are nearly the same. It matters only when two programs are compared number by number, or when a toy has eight words. In ours, `<pad>` and `<s>` get a share as well, although neither may ever be said. With 8,000 words that is 0.0000125 each. The decoder of chapter [Decoding](19_decoding.ipynb) forbids both tokens anyway.
#
# ## The loss
#
# The loss is the cross-entropy of $q$ with the model's distribution $p$. Insert {eq}`eq-smooth`, and the sum over the vocabulary falls into two parts:
#
# $$ \text{loss} = -\sum_v q_v \log p_v = -(1 - \epsilon) \log p_y - \frac{\epsilon}{V} \sum_v \log p_v $$ (eq-smooth-loss)
#
# The first part is the old loss, a little weaker. The second is $\epsilon$ times the mean of $-\log p_v$ over all words. It grows when any word gets hardly a chance, and so it holds back a model that is about to be sure.
#
# The naive way builds the table $q$: for 2,000 tokens and 8,000 words it has 16 million entries, nearly all the same. The two parts need none of it. One log-softmax gives both: its entry at the right word, and its mean.
#
# Picking the entry at the right word is the one line that is hard to read. `labels` has the shape (3, 5), `log_p` has (3, 5, 11). `gather` wants an index with as many axes as the table, so `labels[..., None]` adds one at the end: (3, 5, 1). It takes one number from each row of 11, and `[..., 0]` removes the extra axis again.

# %%
generator = torch.Generator().manual_seed(0)
logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
labels = torch.tensor([[4, 5, 6, PAD, PAD], [7, 8, 9, 10, 4], [5, PAD, PAD, PAD, PAD]])
log_p = logits.log_softmax(-1)
by_sum = -(smoothed(labels, 0.1, 11) * log_p).sum(-1)
in_two = -0.9 * log_p.gather(-1, labels[..., None])[..., 0] - 0.1 * log_p.mean(-1)
torch.testing.assert_close(in_two, by_sum)
print("losses", tuple(in_two.shape), " of which count", (labels != PAD).sum().item())

# %% [markdown]
# ## Its gradient
#
# Training needs the slope of this loss, and it has a form that is worth knowing. For a logit $z_v$,
#
# $$ \frac{\partial\, \text{loss}}{\partial z_v} = p_v - q_v. $$ (eq-loss-slope)
#
# To see it, write $\log p_v = z_v - \log \sum_i e^{z_i}$. The loss becomes $\log \sum_i e^{z_i} - \sum_v q_v z_v$, since the $q_v$ sum to 1. The derivative of the first term by $z_v$ is $p_v$, and that of the second is $q_v$.
#
# So each logit is pulled down by what the model says and up by what it should say, and the pull ends where the two agree. Four words, the last one right, $\epsilon = 0.2$, so $q = (0.05, 0.05, 0.05, 0.85)$:
#
# | the model says $p$ | slope with a hard label | slope with $q$ |
# |---|---|---|
# | 0.10, 0.20, 0.30, 0.40 | 0.10, 0.20, 0.30, −0.60 | 0.05, 0.15, 0.25, −0.45 |
# | 0.05, 0.05, 0.05, 0.85 | 0.05, 0.05, 0.05, −0.15 | 0, 0, 0, 0 |
# | 0.01, 0.01, 0.01, 0.97 | 0.01, 0.01, 0.01, −0.03 | −0.04, −0.04, −0.04, 0.12 |
#
# A descent moves against the slope. In the first row both labels raise the right word. In the last the hard label still does, while the smoothed one lowers it again. Each line sums to zero: what one logit gains, the others lose.
#
# With hard labels the slope never ends: $p_y$ would have to be 1. With smoothed ones it does, at a finite distance between the logits. Setting $p = q$ gives a lead of $\log(q_y / q_v) = \log\left((1 - \epsilon)\,V / \epsilon + 1\right)$.

# %%
z = logits.clone().requires_grad_()
(-(smoothed(labels, 0.1, 11) * z.log_softmax(-1)).sum()).backward()
torch.testing.assert_close(z.grad, log_p.exp() - smoothed(labels, 0.1, 11))
print(f"a lead of {math.log(0.9 * 37_000 / 0.1 + 1):.1f} is enough with 37,000 words")

# %% [markdown]
# The check compares with automatic differentiation of the plain definition. Both agree, for all 15 labels, those at padding included; who counts and who does not comes next.
#
# ## In one call
#
# `F.cross_entropy` has all of this built in, with a backward pass that makes $p - q$ without the table $q$. The package's loss is this one call, with the options that we want. Padding is ignored. And the losses are summed, not averaged, because whoever adds up several batches needs the sum. Two batches with 10 and 90 words have losses of 3.0 and 2.0 a word. The mean of the two is 2.5. But the mean over words is $(10 \cdot 3.0 + 90 \cdot 2.0) / 100 = 2.1$. From the two sums, 30 and 180, and the two counts, 2.1 comes by itself.


# %% tags=["export"]
def label_smoothed_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.1) -> Tensor:
    """Cross-entropy with smoothed labels in nats, summed over real tokens (section 5.4).

    Takes logits (..., |V|) and labels (...); labels that are PAD are ignored. Raises ValueError
    unless 0 <= label_smoothing < 1.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be from 0 to below 1, not {label_smoothing}")
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(),
        ignore_index=PAD, label_smoothing=label_smoothing, reduction="sum",
    )  # fmt: skip


# %% [markdown]
# The share is checked because $\epsilon = 1$ would ask for the same distribution whatever the label, and 10 for 10 % is an easy slip. First the row that we followed by hand:

# %%
z = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log().requires_grad_()
label_smoothed_loss(z, torch.tensor([3]), 0.2).backward()
print([round(slope, 2) for slope in z.grad[0].tolist()])

# %% [markdown]
# Then our formulas as the reference, in double precision and with padding among the labels: the loss in two parts, and the gradient $p - q$, both without the rows of padding. A second, independent check nudges all logits a little in a random direction and compares the change of the loss with the gradient.

# %%
real = labels != PAD
for smoothing in (0.0, 0.1, 0.5):
    z = logits.clone().requires_grad_()
    loss = label_smoothed_loss(z, labels, smoothing)
    correct = log_p.gather(-1, labels[..., None])[..., 0]
    in_two = -(1 - smoothing) * correct - smoothing * log_p.mean(-1)
    torch.testing.assert_close(loss, in_two[real].sum())
    loss.backward()
    slope = (log_p.exp() - smoothed(labels, smoothing, 11)) * real[..., None]
    torch.testing.assert_close(z.grad, slope)
nudge = 1e-4 * torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
change = [label_smoothed_loss(logits + way * nudge, labels, 0.5) for way in (1, -1)]
torch.testing.assert_close((change[0] - change[1]) / 2, (slope * nudge).sum())
print(f"equal on {real.sum()} real tokens of {labels.numel()}")

# %% [markdown]
# ## Padding counts for nothing
#
# Whatever the logits at padding are, the loss does not move.

# %%
loss, count = label_smoothed_loss(logits, labels), real.sum()
noise = 100 * torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
assert torch.equal(label_smoothed_loss(logits + noise * ~real[..., None], labels), loss)
for_all = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
print(f"a token: {loss / count:.2f}; with padding counted as words to be said: {for_all:.2f}")

# %% [markdown]
# A loss that forgets this trains the model to say `<pad>` after each sentence. Where two thirds of a batch are padding, that is what it mostly learns, and the loss looks splendid, since nothing is easier to predict.
#
# `</s>` is another matter. It ends each target and is a label like any word, for a model that never learns to say it does not stop. `<s>` is never a label: the labels begin one place after it.
#
# ## The loss that cannot be zero
#
# A training with smoothing shows a loss of 2.1 and another one shows 0.9. Which is better? Perhaps they are equal. Some implementations report the **KL divergence** from $q$ to $p$ in place of the cross-entropy. It measures how far $p$ is from $q$ and is zero where they are equal. Take the cross-entropy, add and subtract $\sum_v q_v \log q_v$:
#
# $$
# \begin{aligned}
# -\sum_v q_v \log p_v
# &= \sum_v q_v \log \frac{q_v}{p_v} - \sum_v q_v \log q_v \\
# &= \operatorname{KL}(q \,\|\, p) + H(q)
# \end{aligned}
# $$ (eq-kl)
#
# The second term, the **entropy** $H(q)$ of the labels, has nothing to do with the model. Written out for one word with $q_y = 1 - \epsilon + \epsilon / V$ and $V - 1$ words with $\epsilon / V$:
#
# $$
# H(q) = -q_y \log q_y - (V - 1)\, \frac{\epsilon}{V} \log \frac{\epsilon}{V}
# $$ (eq-label-entropy)


# %%
def label_entropy(smoothing, vocabulary):
    on, off = 1 - smoothing + smoothing / vocabulary, smoothing / vocabulary
    return -on * math.log(on) - (vocabulary - 1) * off * math.log(off)


q = smoothed(labels, 0.1, 11)
kl = F.kl_div(log_p, q, reduction="none").sum(-1)[real].sum()
torch.testing.assert_close(kl + count * label_entropy(0.1, 11), loss)
print(f"lowest loss a token with 37,000 words and smoothing 0.1: {label_entropy(0.1, 37_000):.2f}")

# %% [markdown]
# Most of it comes from the many small shares: by hand, with $V = 37{,}000$, the right word adds $0.9 \cdot 0.105 = 0.09$, and the rest adds $0.1 \cdot \log 370{,}000 = 1.28$. So the floor grows with the logarithm of the vocabulary. It is the price of asking for something that is not there: no text has a tenth of its probability spread over all words.
#
# Gradients are equal, because a constant has none. The printed numbers are not. A perfect model of the paper's size still shows a cross-entropy of 1.38 a token, and a loss that seems stuck there may be fine. Two losses can be compared only if one knows which kind they are. For a perplexity, take neither: exponentiate the plain cross-entropy with hard labels, as we do below.
#
# ## Zero times minus infinity
#
# The KL form has a trap of its own. Some versions give the padding entry no share, $q_v = 0$, and feed probabilities that are exactly zero there as well. The contribution ought to be nothing. In floating point it is zero times minus infinity:

# %%
p = torch.tensor([0.0, 0.7, 0.1, 0.1, 0.1])
q = torch.tensor([0.0, 0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3])
print("KL with log 0:", F.kl_div(p.log(), q, reduction="sum").item())
print("without that entry:", round(F.kl_div(p[1:].log(), q[1:], reduction="sum").item(), 2))

# %% [markdown]
# One such number, and the loss of the whole batch is not a number. Log-probabilities that come from `log_softmax` over finite logits never reach minus infinity, which is why our loss takes logits.
#
# ## How sure is sure enough?
#
# Let the model give the right word probability $c$ and share the rest evenly. Without smoothing, the loss falls for as long as $c$ grows. With smoothing it has a lowest point where $p = q$, at $c = 1 - \epsilon + \epsilon / V$. Beyond it, more confidence costs: the others get less than was asked for them, and the logarithm of a small number is a large one.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smoothing", "caption": "Why punish certainty? Loss of a token against the probability of the right word, for a vocabulary of 1,000. The dot marks the lowest point of each curve. Without smoothing (solid) it lies at 100 %; with it, saying 99 % costs more than saying 90 %."}}
V = 1000


def loss_at(c, smoothing):
    on, off = 1 - smoothing + smoothing / V, smoothing / V
    return -on * math.log(c) - (V - 1) * off * math.log((1 - c) / (V - 1))


looks = {"ε = 0": (INK, [1, 0]), "ε = 0.1": (QUERY, [6, 3]), "ε = 0.3": (KEY, [2, 2])}
confidences = [*(n / 200 for n in range(60, 198)), *(0.99 + n / 2000 for n in range(20)), 0.9999]
records = [
    {"c": c, "loss": round(loss_at(c, float(name[4:])), 3), "smoothing": name}
    for name in looks
    for c in confidences
]
lowest = []
for name in looks:
    c = min(confidences, key=lambda c: loss_at(c, float(name[4:])))
    lowest.append({"c": c, "loss": round(loss_at(c, float(name[4:])), 3)})
assert [dot["c"] for dot in lowest] == [0.9999, 0.9, 0.7]
x = alt.X("c:Q", title="probability of the right word", scale=alt.Scale(domain=[0.3, 1]))
x.axis = alt.Axis(format="%")
chart = curves(records, x, alt.Y("loss:Q", title="loss of a token"), "smoothing", looks)
dots = alt.Chart(alt.Data(values=lowest)).encode(alt.X("c:Q"), alt.Y("loss:Q"))
dots = dots.mark_point(filled=True, color=INK, size=80, opacity=1)
show(
    chart + dots,
    alt="Three falling curves. With smoothing 0.1 and 0.3 they turn up again at probabilities 0.9 and 0.7.",
)

# %% [markdown]
# ## What it does to a model
#
# Now two real models. Both see the same sentences in the same order, for 400 steps, with the same start; one follows hard labels, the other smoothing 0.1. Neither has dropout, so that only one thing differs. On held-out sentences we ask three things: the perplexity of the reference, how sure the models are, and how good their own translations are.


# %% tags=["nbval-ignore-output"]
def with_smoothing(smoothing):
    def criterion(model, batch):
        logits, labels = model(batch.source, batch.target[:, :-1]), batch.target[:, 1:]
        return label_smoothed_loss(logits, labels, smoothing) / (labels != PAD).sum()

    return criterion


models = {s: train(many, 384, criterion=with_smoothing(s))[0] for s in (0.0, 0.1)}
perplexity = {s: math.exp(measured(model, held_out)) for s, model in models.items()}
print({f"smoothing {s}": f"perplexity {value:.2f}" for s, value in perplexity.items()})
assert perplexity[0.1] > 0.9 * perplexity[0.0]

# %% [markdown]
# **Perplexity** is the exponential of the cross-entropy: a model with perplexity 3 is as uncertain as if it had to choose among three equal words. Both models are measured with hard labels, whatever they were trained with.
#
# In a training that goes on for long, smoothing makes it worse. (After 400 steps it comes out either way, as a table further down shows.) It has to cost something, since a model that is asked for 0.9 will not say 0.99 where 0.99 would be right. Where the best word is certain, saying 0.9 costs $-\log 0.9 = 0.105$ a token in place of nothing. In the paper's full runs (Table 3, row D) the price is clear: 4.92 with smoothing, 4.67 without. As cross-entropies these are 1.593 and 1.541, so the price is 0.052 a token.
#
# ## How sure are they?
#
# For each position we take the probability of the word that the model finds best, and whether that word is right.


# %% tags=["nbval-ignore-output"]
def best_guesses(model):
    with evaluating(model):
        p = model(held_out.source, held_out.target[:, :-1]).softmax(-1)
    confidence, word = p.max(-1)
    labels = held_out.target[:, 1:]
    return confidence[labels != PAD], (word == labels)[labels != PAD]


guesses = {s: best_guesses(model) for s, model in models.items()}
for s, (confidence, right) in guesses.items():
    print(
        f"smoothing {s}: says {confidence.mean():.1%} on average, is right {right.float().mean():.1%},",
        end=" ",
    )
    print(f"surer than 95 % at {(confidence > 0.95).float().mean():.0%} of positions")
sure = {s: (confidence > 0.95).float().mean() for s, (confidence, _) in guesses.items()}
assert sure[0.1] < sure[0.0]

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-confidence", "caption": "What does smoothing do to confidence? Held-out positions by the probability of the model's best word, with hard labels (outline) and with smoothing 0.1 (filled). The last column, above 95 %, empties: what was asked for is 90 %, and the model has learned to say that."}}
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
filled = both.transform_filter("datum.smoothing > 0").mark_rect(color=QUERY, opacity=0.75)
outlined = both.transform_filter("datum.smoothing == 0").mark_rect(
    filled=False, stroke=INK, strokeWidth=1.6
)
bars = alt.layer(
    filled.encode(y2=alt.datum(0)),
    outlined.encode(y2=alt.datum(0)),
)
show(
    bars.properties(width=420, height=220),
    alt="With hard labels the column above 95 percent is the highest. With smoothing 0.1 it is nearly empty.",
)

# %% [markdown]
# The picture is plain. The hard-label model piles up at the right edge; the smoothed one stops where it was told to.
#
# ## Is it better to be less sure?
#
# That depends on how often each of them is right. A model is **calibrated** if, of all the positions where it says 90 %, nine in ten are right. We look at four kinds of positions, by what the model says there.

# %% tags=["nbval-ignore-output"]
for s, (confidence, right) in guesses.items():
    for low in (0.3, 0.5, 0.7, 0.9):
        here = (confidence >= low) & (confidence < low + 0.1)
        says, does = confidence[here].mean(), right[here].double().mean()
        print(f"smoothing {s}: says {says:.0%}, is right {does:.0%} ({here.sum()} positions)")

# %% [markdown]
# Read each line as a promise, and whether it was kept. A model trained for long on little text promises far too much, and smoothing brings it nearer to the truth. A model that was honest to begin with becomes too modest, and ours is of that kind. It has seen no sentence twice, and with hard labels it says about what it can do. The smoothed one is right as often and says less.
#
# So smoothing does not make a model honest. It takes confidence away, whether there was too much of it or not.
#
# ## And the translations?
#
# We let both write, greedily, and compare with the references. BLEU counts matching word sequences; [Evaluation](20_evaluation.ipynb) takes it apart.

# %% tags=["nbval-ignore-output"]
references = [pair.target for pair in pairs[18_000:]]
for s, model in models.items():
    written = [tokenizer.decode(row) for row in greedy_decode(model, held_out.source)]
    score = sacrebleu.corpus_bleu(written, [references]).score
    print(
        f"smoothing {s}: BLEU {score:.1f}, {sum(map(str.__eq__, written, references))} of 200 exact"
    )
    assert 5 < score <= 100

# %% [markdown]
# In the paper smoothing *gains* half a point of BLEU, 25.8 against 25.3, in spite of the worse perplexity. Is our pair of runs evidence of the same? One pair is not. With scores this low, another seed moves each of them by several points.
#
# So a script repeats the pair. The seed draws the first weights and the order of the batches, and all else is as on this page, so that seed 0 is the pair above. The command is `python benchmarks/smoothing.py --seeds 0 1 2 3 4 5`, and its log is `benchmarks/results/smoothing.jsonl`.
#
# | seed | perplexity, ε = 0 | perplexity, ε = 0.1 | BLEU, ε = 0 | BLEU, ε = 0.1 |
# |:---:|:---:|:---:|:---:|:---:|
# | 0, the pair of this page | 3.61 | 3.45 | 12.9 | 17.8 |
# | 1 | 3.44 | 3.99 | 9.4 | 7.7 |
# | 2 | 3.62 | 3.24 | 13.0 | 18.4 |
# | 3 | 3.79 | 3.98 | 6.5 | 7.0 |
# | 4 | 3.27 | 3.52 | 15.1 | 16.4 |
# | 5 | 4.10 | 3.51 | 5.1 | 11.9 |
#
# Compare along a row, not down a column. Two runs of a row share their first weights and their batches, so much of the luck is the same for both. The difference of BLEU within a row is 2.9 on average, with a standard error of 1.4, and in one of the six rows it has the other sign. A difference of less than two standard errors says little, and this one is hardly more.
#
# Even a clear difference would not settle the matter. These models are far from finished, and the grammar has one translation for each sentence where real text has many.
#
# ## Why would a less sure model translate better?
#
# The usual answer looks at the search. Scores of whole sentences are sums of log-probabilities. A model that is sure at each step hardly lets a search choose, and one sure mistake cannot be made good. A modest model keeps its second choices within reach.
#
# That cannot be all of it. Our translations are greedy: the best word is taken however sure the model is, and no second choice is ever looked at. Another part must lie in training. With hard labels the slope $p - q$ of a word shrinks to nothing once it is learned. With smoothed ones all words go on being held at the same distance below the right one, and the weights are kept from growing without end. Which of the two counts for more, a score alone does not tell.
#
# ## The loss as a module
#
# Chapter [Training](18_training.ipynb) wants the loss of a batch as a module: something that knows the model and the smoothing, and maps two tensors to a number. Compilers and the tools for many GPUs take modules and nothing else. [The chapter on speed](25_speed.ipynb) has a faster one that takes its place.
#
# The target serves twice, one position apart: `target[:, :-1]` is what the decoder reads, `target[:, 1:]` is what it should say. Where the label is padding there is nothing to say. So we take the decoder's states at real labels only, and padding never meets the largest matrix of the model, that of the output. A batch without any label, such as [the empty one](15_batching.ipynb), has a loss of zero.


# %% tags=["export"]
class SmoothedLoss(nn.Module):
    """The label-smoothed loss of a batch in nats, summed over real target tokens (section 5.4)."""

    precision = "fp32"

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        states = self.model.decode(target[:, :-1], self.model.encode(source), source)
        labels = target[:, 1:]
        real = labels != PAD
        logits = self.model.embedding.logits(states[real])
        return label_smoothed_loss(logits, labels[real], self.label_smoothing)


# %%
model = models[0.1].double()
whole = label_smoothed_loss(model(held_out.source, held_out.target[:, :-1]), held_out.target[:, 1:])
torch.testing.assert_close(SmoothedLoss(model)(*held_out), whole)
empty = SmoothedLoss(model)(*collate([]))
print(f"a batch without a label: {empty:.0f}")

# %% [markdown]
# `precision` is there for the log of a training: the faster loss computes in other numbers.
#
# ## Questions that come up
#
# ### Why is my training loss above my validation loss?
#
# It is no mistake, and there are up to three reasons. The training loss is measured with dropout on, so on a model with a tenth or more of its numbers missing. It is the smoothed loss, which has a floor of about 1, while a validation loss is often taken with hard labels. And it is a mean over an epoch in which the model was getting better, while validation comes at the end. To compare the two, measure both under `evaluating` and with the same loss, as we did in the first figure.
#
# ### Is smoothing used when the model is tested?
#
# No. It belongs to the training loss. Perplexity is measured with hard labels, or it could not be compared with anything.
#
# ### Do dropout and smoothing do the same?
#
# Both keep the model from being too sure of its training sentences, but at different ends. Dropout works on how an answer is found: no single path may decide. It shows its worth where sentences are repeated, as our 200 pairs are. Smoothing works on the answer alone, and acts from the first sentence on. The paper uses both, and its Table 3 shows a loss when either is left out.
#
# ### Is label smoothing the same as noise on the labels?
#
# Almost. A label that is replaced by a random word with probability $\epsilon$ gives the same loss on average, with more noise. Exercise 4 shows it.
#
# ### How do I choose the smoothing?
#
# Most take the paper's 0.1 and leave it. In Table 3, 0.2 gives a BLEU of 25.7 and 0.1 gives 25.8, so the score hardly depends on it. The perplexity does: 5.47 against 4.92.
#
# ### Why not weight decay?
#
# **Weight decay** pulls every weight towards zero a little in each step, and is an old remedy against overfitting. The paper does not mention any. If the pull is added to the gradient, Adam divides it by the usual size of that gradient, so that weights with small gradients are pulled hardest. Later variants of Adam keep the two apart.
#
# ## What to remember
#
# - Overfitting shows on held-out sentences only. Measure them with dropout off and hard labels.
# - Dropout zeroes with probability $p$ and divides by $1 - p$. It sits on each sub-layer's output and on embedding + position, and is off in use.
# - Label smoothing gives every word a share $\epsilon / V$ of the truth. The gradient is $p - q$, and too much certainty costs.
# - The loss has a floor, $H(q)$. Cross-entropy and KL divergence differ by exactly that.
# - Padding has no label: it adds nothing to the loss and is not counted.
#
# ## Exercises
#
# **1. By hand.** A vocabulary has four words, $\epsilon$ is 0.2, and the model gives each word 25 %. What is the loss of a token, and what is it without smoothing?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# All log p are -log 4, and q sums to 1: the loss is log 4 = 1.39 for any smoothing.
flat, label = torch.zeros(1, 4), torch.tensor([3])
print([round(label_smoothed_loss(flat, label, s).item(), 2) for s in (0.0, 0.2)])
assert all(abs(label_smoothed_loss(flat, label, s) - math.log(4)) < 1e-6 for s in (0.0, 0.2))

# %% [markdown]
# **2. What breaks if** dropout does not divide by $1 - p$? Compare the length of a vector in training and in use, at $p = 0.3$, after six layers of dropout.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The mean shrinks by 0.7 in each: after six it is 0.7 ** 6 = 0.12 of what it will be in use. The layers after it were
# trained on inputs eight times smaller than those they meet when it counts.
torch.manual_seed(0)
thinned = torch.ones(1_000_000)
for _ in range(6):
    thinned = thinned * (torch.rand_like(thinned) > 0.3)
print(f"{thinned.mean():.2f}")
assert abs(thinned.mean() - 0.7**6) < 0.01

# %% [markdown]
# **3. A floor.** A log shows a smoothed loss of 2.10 a token, for 8,000 words and $\epsilon = 0.1$. Which KL divergence is that? Could the loss ever fall to 1.0?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The floor is the entropy of the labels. It is above 1, so no: a loss of 1.0 would mean a mistake in the loss.
floor = label_entropy(0.1, 8000)
print(f"floor {floor:.2f}, divergence {2.10 - floor:.2f}")
assert 1.0 < floor < 2.10

# %% [markdown]
# **4. Random labels.** Show that replacing each label by a random word with probability $\epsilon$ has the smoothed loss as its mean.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The loss is linear in the label's distribution, and the mean of the random label's distribution is q.
torch.manual_seed(0)
z, right = torch.randn(11, dtype=torch.float64), 4
chance = torch.where(torch.rand(200_000) < 0.1, torch.randint(11, (200_000,)), right)
mean = -z.log_softmax(0)[chance].mean()
exact = label_smoothed_loss(z[None], torch.tensor([right]), 0.1)
print(f"{mean:.2f} {exact:.2f}")
assert abs(mean - exact) < 0.02

# %% [markdown]
# **5. What breaks if** smoothing is 1? Find out what the model would learn, and why our loss refuses it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# q is then the same for every label, so the best answer is the uniform distribution: nothing can be learned.
print(smoothed(torch.tensor([1, 2]), 1.0, 4).tolist())
try:
    label_smoothed_loss(torch.zeros(1, 4), torch.tensor([1]), 1.0)
except ValueError as error:
    print("refused:", error)

# %% [markdown]
# ## Sources
#
# Rates and places of dropout and the smoothing of 0.1 are from section 5.4 of {cite:t}`vaswani2017attention`, the effects of leaving either out from its Table 3. Dropout is from {cite:t}`srivastava2014dropout`, label smoothing from {cite:t}`szegedy2016rethinking`.
