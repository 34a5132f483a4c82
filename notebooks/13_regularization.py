# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Regularization
#
# This chapter keeps the model from being too sure: label smoothing, and what it does beside dropout (section 5.4 of the paper).
#
# Train a model with plain cross-entropy, and it is never done. Give the right word a probability of 99 %, and the loss still
# asks for more, with ever larger logits. But there is seldom one right word. *A dog runs* and *A dog is running* both
# translate *Ein Hund rennt*, and the training text happens to have one of them.

# %% tags=["export"]
from torch import Tensor

from annotated_transformer.masks import PAD

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from annotated_transformer.figures import INK, style

# %% [markdown]
# ## Soft labels
#
# **Label smoothing** {cite:p}`szegedy2016rethinking` takes a share $\epsilon$ of the probability from the right word and deals it out to all words of the vocabulary alike:
#
# $$ q_v = (1 - \epsilon)\,[v = y] + \frac{\epsilon}{V} $$ (eq-smooth)
#
# The loss is the cross-entropy of $q$ with the model's distribution $p$. The sum over the vocabulary falls into two parts:
#
# $$ \text{loss} = -\sum_v q_v \log p_v = -(1 - \epsilon) \log p_y - \frac{\epsilon}{V} \sum_v \log p_v $$ (eq-smooth-loss)
#
# The first part is the old loss. The second one punishes a model that gives any word no chance at all. With $\log p_v = z_v - \operatorname{logsumexp}(z)$ for
# logits $z$, it all comes down to three numbers a position: the logsumexp, the right word's logit, and the mean logit.
#
# Padding has no right word and must not count. And we return the sum and the number of words rather than their quotient, because whoever adds up
# several batches needs both.


# %% tags=["export"]
def label_smoothed_loss(
    logits: Tensor, labels: Tensor, smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Cross-entropy with smoothed labels, summed over real tokens, and how many those are
    (section 5.4).

    Takes logits (..., V) and labels (...); labels that are PAD are ignored. Raises ValueError
    unless 0 <= smoothing < 1.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, not {smoothing}")
    correct = logits.gather(-1, labels[..., None])[..., 0]
    loss = logits.logsumexp(-1) - (1 - smoothing) * correct - smoothing * logits.mean(-1)
    real = labels != PAD
    return (loss * real).sum(), real.sum()


# %% [markdown]
# PyTorch has the same loss built in. That is our reference, in double precision, with padding among the labels.

# %%
generator = torch.Generator().manual_seed(0)
logits = torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
labels = torch.tensor([[4, 5, 6, PAD, PAD], [7, 8, 9, 10, 4], [5, PAD, PAD, PAD, PAD]])
for smoothing in (0.0, 0.1, 0.5):
    loss, count = label_smoothed_loss(logits, labels, smoothing)
    reference = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    torch.testing.assert_close(loss, reference)
print(f"equal to F.cross_entropy on {count} real tokens of {labels.numel()}")

# %% [markdown]
# Whatever the logits at padding are, the loss does not move.

# %%
loss, _ = label_smoothed_loss(logits, labels)
shouted = torch.where((labels == PAD)[..., None], 100 * logits, logits)
assert torch.equal(label_smoothed_loss(shouted, labels)[0], loss)

# %% [markdown]
# ## The loss that cannot be zero
#
# Some implementations report the **KL divergence** from $q$ to $p$ in place of the cross-entropy. The two differ by the entropy of $q$, which has nothing to do with the model:
#
# $$
# -\sum_v q_v \log p_v = \text{KL}(q \,\|\, p) + H(q), \qquad
# H(q) = -\left(1 - \epsilon + \tfrac{\epsilon}{V}\right) \log\left(1 - \epsilon + \tfrac{\epsilon}{V}\right) - (V - 1)\, \tfrac{\epsilon}{V} \log \tfrac{\epsilon}{V}
# $$ (eq-kl)
#
# Gradients are equal. The printed numbers are not, so two losses can be compared only if one knows which kind they are.


# %%
def label_entropy(smoothing, vocabulary):
    on, off = 1 - smoothing + smoothing / vocabulary, smoothing / vocabulary
    return -on * math.log(on) - (vocabulary - 1) * off * math.log(off)


q = torch.full_like(logits, 0.1 / 11).scatter(-1, labels[..., None], 0.9 + 0.1 / 11)
kl = F.kl_div(logits.log_softmax(-1), q, reduction="none").sum(-1)[labels != PAD].sum()
torch.testing.assert_close(kl + count * label_entropy(0.1, 11), loss)
print(f"lowest loss a token with 37,000 words and smoothing 0.1: {label_entropy(0.1, 37_000):.2f}")

# %% [markdown]
# A perfect model of the paper's size would still show a loss of 1.38 a token. A loss that seems stuck there may be fine.
#
# ## How sure is sure enough?
#
# Let the model give the right word probability $c$ and share the rest evenly. The figure draws the loss against $c$. Without smoothing it falls
# for ever. With smoothing it has a lowest point, at $c = 1 - \epsilon + \epsilon / V$, and beyond it more confidence costs.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-smoothing", "caption": "Why punish certainty? Loss of a token against the probability of the right word, for a vocabulary of 1,000. The dot marks the lowest point of each curve: without smoothing there is none below 100 %."}, "image": {"alt": "Three falling curves. With smoothing 0.1 and 0.3 they turn up again near probabilities 0.9 and 0.7."}}
style()
V, confidence = 1000, torch.linspace(0.3, 0.9999, 2000, dtype=torch.float64)
figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
for smoothing, line in ((0.0, "-"), (0.1, "--"), (0.3, ":")):
    on, off = 1 - smoothing + smoothing / V, smoothing / V
    loss = -on * confidence.log() - (V - 1) * off * ((1 - confidence) / (V - 1)).log()
    axes.plot(100 * confidence, loss, line, color=INK)
    axes.plot(100 * confidence[loss.argmin()], loss.min(), "o", color=INK)
    axes.annotate(f"smoothing {smoothing}", (31, loss[0]), (0, 5), textcoords="offset points")
axes.set(xlabel="probability of the right word in %", ylabel="loss of a token", ylim=(0, 4.5))
plt.show()

# %% [markdown]
# The price shows in the perplexity: the model is less sure, also where it is right. The gain shows in the translations. The paper
# says both in one sentence, and Table 3, row D, has the numbers.
#
# ## Dropout, once more
#
# The other half of section 5.4 is **dropout** {cite:p}`srivastava2014dropout`. It lives in [the layers](07_layers.ipynb): each number is set to zero with probability $p$, and the
# survivors are divided by $1 - p$, so that the mean stays. It must be off in use, which is what `model.eval()` is for.

# %%
x = torch.ones(1_000_000)
dropped = F.dropout(x, p=0.3)
assert abs(dropped.mean() - 1) < 0.01 and abs((dropped == 0).float().mean() - 0.3) < 0.01
assert torch.equal(F.dropout(x, p=0.3, training=False), x)
print("values after dropout:", [round(value, 2) for value in dropped.unique().tolist()])

# %% [markdown]
# ## What to remember
#
# - Label smoothing gives every word a share $\epsilon / V$ of the truth. Too much certainty then costs.
# - The loss has a floor, $H(q)$. Cross-entropy and KL divergence differ by exactly that.
# - Padding has no label: it adds nothing to the loss and is not counted.
