# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Training
#
# This chapter trains the model, from a single update to a translator of captions with a BLEU score (sections 5.1 to 5.4 of the paper).
#
# We have a model that knows nothing, and everything needed to teach it: [pairs](13_data.ipynb), [a tokenizer](14_tokenization.ipynb), [batches](15_batching.ipynb), [a learning rate](16_schedule.ipynb) and [a loss](17_regularization.ipynb). A loop of ten lines joins them. Make a guess: a small model, some 8,000 German captions with their translations, one processor core, one minute. Will the model by then write English? Will what it writes have to do with the German?

# %% tags=["export", "hide-input"]
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from annotated_transformer.batching import Batch, EncodedCorpus, batches
from annotated_transformer.masks import PAD
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.transformer import Transformer, evaluating

# %% tags=["hide-input"]
import json
import time
from copy import deepcopy
from importlib.resources import files

import matplotlib.pyplot as plt

from annotated_transformer import Tokenizer, preset
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.own_data import multi30k
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import parameter_count
from benchmarks.common import RESULTS, read_log
from book.figures import (
    AMBER,
    INK,
    PLUM,
    SKY,
    arrow,
    box,
    heatmap,
    show_drawing,
    show_plot,
    show_steps,
    style,
    words_at,
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-update", "caption": "What happens in one update? The loss compares what the model says of a batch with the words that come next, and the gradient tells each weight which way to move. The optimizer moves them all a little. Then comes the next batch."}}
parts = [
    box(20, 200, 130, 44, "batch", "batching", "15_batching.html"),
    box(20, 110, 130, 44, "Transformer", "the model", "10_transformer.html"),
    box(20, 20, 130, 44, "loss", "regularization", "17_regularization.html"),
    box(260, 20, 130, 44, "gradient", "of every weight"),
    box(260, 110, 130, 44, "Adam", "schedule", "16_schedule.html"),
    box(260, 200, 130, 44, "rate of this step", "schedule", "16_schedule.html"),
    arrow([(85, 200), (85, 156)]),
    arrow([(85, 110), (85, 66)]),
    arrow([(150, 42), (258, 42)]),
    arrow([(325, 64), (325, 108)]),
    arrow([(325, 200), (325, 156)]),
    arrow([(260, 132), (152, 132)]),
    words_at(92, 182, "source, target so far", 11, INK, "start"),
    words_at(92, 92, "logits", 11, INK, "start"),
    words_at(205, 34, "backward", 11),
    words_at(206, 124, "new weights", 11),
]
show_drawing(
    parts,
    410,
    262,
    alt="A batch goes up through the Transformer to the loss; its gradient goes to Adam, which takes the rate of the step and hands new weights back to the Transformer.",
)

# %% [markdown]
# ## Ten lines
#
# Each turn of the loop makes one update of the weights, against the gradient of the mean loss over all real target tokens (all but padding) of its sentences $b$:
#
# $$ \text{loss} = \frac{\sum_b \sum_t \text{loss}_{bt}}{\sum_b \text{tokens}_b} $$ (eq-token-mean)


# %%
def train_simply(model, stream, steps, report):
    loss = SmoothedLoss(model)
    adam = Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step, batch in zip(range(1, steps + 1), stream):
        adam.param_groups[0]["lr"] = learning_rate(step, 128, 300, peak_lr=0.0031)
        total = loss(*batch)
        tokens = (batch.target[:, 1:] != PAD).sum()
        adam.zero_grad()
        (total / tokens).backward()
        adam.step()
        report(step, total.item(), tokens.item())


# %% [markdown]
# `SmoothedLoss` returns a sum, so we divide it by the number of tokens. The peak of the rate is well below [the one that broke a small model](16_schedule.ipynb#what-a-constant-rate-does).
#
# The model is `tiny`, without dropout.

# %%
pairs, val, test = (multi30k(name) for name in ("train", "val", "test_2016_flickr"))
tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
corpus = encode_pairs(tokenizer, pairs)
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
print(f"{parameter_count(model):,} parameters")

# %% [markdown]
# After each update `train_simply` calls `report`. Ours prints the mean loss of every 50 steps and keeps a copy of the weights, to look at later:

# %%
losses, copies = {}, {0: deepcopy(model.state_dict())}
sums = torch.zeros(2)


def watch(step, total, tokens):
    sums.add_(torch.tensor([total, tokens]))
    if step % 50 == 0:
        losses[step] = (sums[0] / sums[1]).item()
        copies[step] = deepcopy(model.state_dict())
        print(f"step {step:3}: loss {losses[step]:.2f}")
        sums.zero_()


# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
train_simply(model, batches(corpus, 768, seed=0, epoch=0), 200, watch)
print(f"200 steps in {time.perf_counter() - start:.0f} s")

# %% [markdown]
# The whole run takes 2,000 updates and was made once, by `python -m benchmarks.experiments.captions`, which wrote a log. In the figure our 200 steps lie on its curve.

# %%
settings, *history, found = read_log("captions")
checks = [line for line in history if "score" in line]  # every 250 steps

# %% tags=["remove-cell"]
if CHECKING:
    logged = {line["step"]: line["loss"] for line in history}
    assert all(abs(loss - logged[step]) < 0.02 for step, loss in losses.items())
    assert len(losses) == 4


# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-loss", "caption": "What does learning look like? Above: the loss on training captions, averaged over 50 steps and with label smoothing, and on validation captions without it (dashed); circles are the 200 steps made on this page. Below: BLEU of greedy translations of 100 validation captions. The losses still fall when the run ends; BLEU has moved between 28 and 31 since step 1,250."}}
def learning_curves(records, x, alt, own=()):
    """Draw the losses of a log, and its scores below."""
    checks = [record for record in records if record.get("score") is not None]
    _, (upper, lower) = plt.subplots(2, 1, figsize=(4.6, 4.6), layout="constrained")
    for axis, name, shown, line, color in [
        (upper, "loss", records, "-", SKY),
        (upper, "validation_loss", checks, "s--", AMBER),
        (lower, "score", checks, "s-", PLUM),
    ]:
        axis.plot(
            [r[x] for r in shown],
            [r[name] for r in shown],
            line,
            color=color,
            lw=1.5,
            ms=4,
        )
        axis.set(xlabel=x, ylim=(0, None), xlim=(0, None))
    upper.plot([*own], [own[step] for step in own], "o", mfc="none", color=INK, ms=8)
    place = {"transform": upper.transAxes}
    upper.text(0.35, 0.6, "training, smoothed labels", color=SKY, **place)
    upper.text(0.35, 0.1, "validation", color=AMBER, **place)
    upper.set_ylabel("loss per target token, nats")
    lower.set_ylabel("BLEU, validation captions")
    show_plot(alt)


style()
learning_curves(
    history,
    "step",
    "The training loss falls steeply to 4 at step 500, then ever more slowly to 2.9; validation from 4.1 to 2.2. BLEU rises steeply to 26 at step 1000 and then slowly to 30.",
    losses,
)

# %% [markdown]
# What do the curves mean? Here is a validation caption, which the model never trains on:

# %%
print("German:   ", val[2].source)
for line in checks:
    if line["step"] in (250, 500, 1000, 2000):
        print(f"step {line['step']:4}:", line["said"][1])
print("reference:", val[2].target)

# %% [markdown]
# At step 250, soon after our run stops, the model writes English of a kind: it repeats itself and has taken from the German little more than a boy, a woman and that somebody sits. At 2,000 the sentence is a translation.
#
# ## Captions it has never seen
#
# The next translations are by the weights that scored best in validation. We take every two-hundredth test caption, to pick neither the good ones nor the bad ones.

# %%
for pair, written in zip(test[::200], found["translations"][::2]):
    print(f"German:    {pair.source}\nours:      {written}\nreference: {pair.target}\n")
print(f"BLEU on all {len(test):,}, greedy: {found['bleu']:.1f} {found['signature']}")

# %% [markdown]
# **BLEU** {cite:p}`papineni2002bleu` counts the runs of one to four words that a translation shares with a human's, from 0 to 100; [evaluation](20_evaluation.ipynb#the-tool-and-its-signature) is about it, and about the signature that sacreBLEU {cite:p}`post2018call` prints. The frame of a sentence is mostly right. Rare words are not, because the model has seen each only a few times.
#
# And does it read the German? We test it as we tested [the model that was stuck](16_schedule.ipynb#the-height-of-a-loss-that-is-stuck), with the source of a neighbor:

# %%
own, strange = checks[-1]["own"], checks[-1]["strangers"]
print(f"loss with its own German {own:.2f}, with a neighbor's {strange:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert checks[-1]["strangers"] > checks[-1]["own"] + 2.5
    assert min(list(found["averages"].values())[1:]) > found["averages"]["1"] + 2.5

# %% [markdown]
# It does.
#
# :::{margin}
# The gap doesn't measure how much it *learns* from the German: a neighbor's is worse than none, because the model believes it.
# :::
#
# ## What averaging checkpoints brings
#
# A **checkpoint** is what a run has saved on its way. The paper doesn't translate with the last one but with the mean of several, weight by weight, five for base and twenty for big (section 6.1): each is partly where its last few batches have pushed it, and independent pushes cancel. At the end of our run, on 200 validation captions:

# %%
for last, score in found["averages"].items():
    print(f"mean of the last {last}: BLEU {score:.1f}")

# %% [markdown]
# All three means beat the last checkpoint. But they share checkpoints, and the last one may be an unlucky one: late in this one run, the score on 100 captions moves by up to 2.8 points from one validation to the next. So the size of the gain is open.
#
# The rest of the chapter makes the loop fit for real work.
#
# ## The mean over all tokens
#
# Take two sentences. One has 5 tokens and a loss of 10 in all, the other 20 tokens and a loss of 60. The mean over tokens, {eq}`eq-token-mean`, is $(10 + 60) / 25 = 2.8$. The mean of the two means is $(10/5 + 60/20) / 2 = 2.5$, where a token of the short sentence counts four times as much as one of the long sentence. So sums and counts are kept apart until the end.
#
# The difference matters most where one update is made of several batches. You need that if the paper's 25,000 tokens don't fit on your GPU. With gradient **accumulation** you run the batches one after the other, add up their gradients, and update once. PyTorch does the adding: `backward` adds to what is in `.grad` already, and frees what the forward pass of its batch has kept, so ten batches need the memory of one.
#
# **Exercise 1. Write it first** (★★, 20 min). Before you read on, change `train_simply` so that each update is made of a list of batches, with the mean of {eq}`eq-token-mean`. By which number do you divide, and when do you know it?
#
# ## One update
#
# The gradient of a sum is the sum of the gradients. So the result is that of one large batch, if each batch's sum is divided by the tokens of *all* batches. Their number must be known before the first `backward`, and therefore an update takes a `Group`, which holds both:


# %% tags=["export"]
class Group(NamedTuple):
    """The batches of one update, and how many real target tokens they have together."""

    batches: list[Batch]
    tokens: Tensor  # (), labels that are not padding


def group_batches(stream: Iterable[Batch], size: int) -> Iterator[Group]:
    """Take `size` batches at a time: more than one is gradient accumulation."""
    stream = iter(stream)
    while batches := list(islice(stream, size)):
        counts = [(batch.target[:, 1:] != PAD).sum() for batch in batches]
        yield Group(batches, torch.stack(counts).sum())


# %% tags=["export"]
class Update(NamedTuple):
    """What one update of the weights saw: three numbers, tensors of shape ()."""

    loss: Tensor  # in nats, summed over the tokens
    tokens: Tensor
    gradient_norm: Tensor


def training_step(
    loss: nn.Module, group: Group, optimizer: Optimizer, grad_clip: float | None = None
) -> Update:
    """Update the weights once, with the mean gradient over all real target tokens of a group.

    Raises FloatingPointError, and changes nothing, if that gradient is not finite.
    """
    optimizer.zero_grad()
    losses = []
    for batch in group.batches:
        batch_loss = loss(*batch)
        (batch_loss / group.tokens).backward()  # adds to the gradients
        losses.append(batch_loss.detach())
    norm = nn.utils.get_total_norm(
        [weight.grad for weight in loss.parameters() if weight.grad is not None]
    )
    if not norm.isfinite():
        raise FloatingPointError("the gradient is not finite, and was not used")
    if grad_clip is not None:
        nn.utils.clip_grads_with_norm_(loss.parameters(), grad_clip, norm)
    optimizer.step()
    return Update(torch.stack(losses).sum(), group.tokens, norm)


# %% [markdown]
# Is the gradient of three small batches that of the large one? We compare them at the same weights, in double precision:


# %% tags=["nbval-ignore-output"]
def gradient(*parts):
    """Return the gradient of one update with these batches, as one long vector."""
    torch.manual_seed(3)
    shape = preset("tiny", layers=1, vocabulary_size=len(tokenizer), dropout=0.0)
    small = Transformer(shape).double()
    (group,) = group_batches(parts, size=len(parts))
    training_step(SmoothedLoss(small), group, Adam(small.parameters()))
    return torch.cat([weight.grad.flatten() for weight in small.parameters()])


some = [corpus[n] for n in range(12)]
large = gradient(collate(some))
parts = [collate(some[:2]), collate(some[2:7]), collate(some[7:])]
off = (gradient(*parts) - large).norm() / large.norm()
of_means = (sum(map(gradient, parts)) / 3 - large).norm() / large.norm()
print(f"three batches, one update: off by {off:.0e}")
print(f"the mean of their means:   off by {of_means:.0%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert off < 1e-12 and 0.1 < of_means < 0.3

# %% [markdown]
# The group is right to the last digits, and the mean of the three means is off by about a fifth.
#
# :::{margin}
# That mean is what Hugging Face's Trainer computed until October 2024, by [their account](https://github.com/huggingface/blog/pull/2414).
# :::
#
# The **norm** of the gradient is its length as one long vector. A gradient longer than `grad_clip` is shortened to it and keeps its direction; the paper doesn't mention that, and by default it is off.
#
# ### A gradient that is NaN
#
# Suppose an overflow somewhere leaves one number of a gradient `nan`. Adam writes it into one weight. In the next forward pass that weight reaches every logit, so the loss is `nan`, so is nearly every gradient, and after the second update nearly every weight. Therefore the check must come *before* the weights change. The run ends there, and isn't continued without that batch, because if the rate is too high, the next ones will fail as well.

# %% tags=["remove-cell"]
if CHECKING:
    torch.manual_seed(3)
    careless = Transformer(preset("tiny", layers=1, vocabulary_size=len(tokenizer)))
    descent = Adam(careless.parameters(), lr=0.01)
    for step in (1, 2):
        descent.zero_grad()
        SmoothedLoss(careless)(*collate(some)).backward()
        if step == 1:
            careless.decoder.layers[0].feed_forward.linear1.weight.grad[0, 0] = (
                torch.nan
            )
        descent.step()
    weights = torch.cat([weight.flatten() for weight in careless.parameters()])
    lost = weights.isnan().double().mean()
    assert lost > 0.9

# %% [markdown]
# ## The settings
#
# A run's **hyperparameters** are in one class. An update sees up to `max_tokens` times `grad_accum_steps` tokens per side, about 25,000 in the paper. How well the model learns depends on the product of the two; how much memory it takes depends on `max_tokens` alone. (`precision` and `compile` are for [speed](26_speed.ipynb#the-fast-loss), `keep_checkpoints` and `patience` for [the trainer](29_trainer.ipynb).)


# %% tags=["export"]
@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults suit the `tiny` model and the grammar.

    Raises ValueError for a value that no run can have.
    """

    steps: int = 1300  # updates of the weights
    max_tokens: int = 384  # positions of a batch on either side, padding included
    grad_accum_steps: int = 1  # batches per update: more time, no more memory
    warmup: int = 200  # steps until the learning rate is at its peak
    peak_lr: float | None = 0.00125  # None: the paper's, by the model's width
    label_smoothing: float = 0.1  # probability given to all tokens alike, below 1
    grad_clip: float | None = None  # longest gradient; a longer one is shortened to it
    seed: int = 0  # decides the order of the batches and what dropout drops
    precision: Literal["fp32", "bf16"] | None = None  # of products; None: bf16 on a GPU
    compile: bool = False  # compile the layers first
    save_every: int = 500  # steps between two validations, each with a checkpoint
    keep_checkpoints: int = 5  # the last
    patience: int | None = None  # stop after so many validations without a lower loss

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("label_smoothing", "seed", "compile") else 1e-9
            if isinstance(value, (int, float)) and not least <= value < float("inf"):
                raise ValueError(f"{name}={value} is too small, or no number")
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be below 1")


# %% [markdown]
# ## Whether it gets better
#
# The training loss falls even when a model [learns its sentences by heart](17_regularization.ipynb#learning-by-heart). So now and then we measure on pairs that it doesn't learn from, without dropout and without smoothing, though each word is still predicted after the reference's own beginning. The exponential of this **validation loss** is the perplexity.


# %% tags=["export"]
def loss_and_tokens(loss: SmoothedLoss, stream: Iterable[Batch]) -> Tensor:
    """Return the loss of a stream in nats, without dropout, and its tokens, (2,)."""
    totals = torch.zeros(2, dtype=torch.float64)
    with evaluating(loss):
        for batch in stream:
            tokens = (batch.target[:, 1:] != PAD).sum()
            totals += torch.stack([loss(*batch).double(), tokens]).cpu()
    return totals


def validation_loss(
    model: Transformer, corpus: EncodedCorpus, max_tokens: int
) -> float:
    """Return the mean loss in nats per target token, without label smoothing and dropout."""
    plain_loss = SmoothedLoss(model, label_smoothing=0)
    loss, tokens = loss_and_tokens(plain_loss, batches(corpus, max_tokens))
    return float(loss / tokens)


# %% [markdown]
# If several validations in a row bring no lower loss, training may as well end, which is **early stopping**. How well a model *translates* is another question; it takes [decoding](19_decoding.ipynb) and a score, as above.
#
# ## The loop
#
# The optimizer is the paper's. (`fused=True` changes nothing but the speed of its step.)


# %% tags=["export"]
def make_adam(model: nn.Module) -> Adam:
    """Return the optimizer of section 5.3; its rate is set before each update."""
    return Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


# %% [markdown]
# In `train_simply`, `training_step` now takes the place of the five lines from `total` to `adam.step()`, and now and then comes a validation and a checkpoint. A checkpoint that a run can go on from holds Adam's two averages of each weight as well, and the number of updates made.
#
# This is how settings, groups and validation are used, here with the model of the first 200 steps:

# %% tags=["nbval-ignore-output"]
config = TrainingConfig(max_tokens=768, grad_accum_steps=2)
groups = group_batches(batches(corpus, config.max_tokens), config.grad_accum_steps)
print(f"{next(groups).tokens:,} target tokens in the first group")
watched = encode_pairs(tokenizer, val[:100])
measured = validation_loss(model, watched, config.max_tokens)
print(f"validation loss {measured:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 4.1 < measured < 4.8

# %% [markdown]
# A longer run chains one epoch to the next, and a run of hours needs a log, and a way to go on after it was stopped. None of this touches the update: in `train`, which [the trainer](29_trainer.ipynb) builds and which made the log of this chapter, `training_step` is called as well.
#
# ## What to remember
#
# - The loss is a mean over all tokens of an update, so sums and counts are kept apart until the end. Accumulated batches then equal the large one.
# - A gradient that is not finite is refused before the weights change.
# - Validation is measured on other pairs, without dropout and smoothing; whether the model translates, only its translations tell.
# - The paper translates with the mean of the last checkpoints; here, too, it was better than the last one.
#
# ## Exercises
#
# **1. Write it first** is [above](#the-mean-over-all-tokens).
#
# :::{admonition} Solution 1
# :class: dropdown
# You divide by the tokens of all batches of the update, so you count them before the first `backward`: `tokens = sum((batch.target[:, 1:] != PAD).sum() for batch in group)`. Then come `adam.zero_grad()`, for each batch `(loss(*batch) / tokens).backward()`, and one `adam.step()`. You may also let each batch's sum go backward undivided and divide all gradients by `tokens` before the step, since dividing a sum is dividing its parts. `training_step` does the former.
# :::
#
# **2. A large file** (★, 10 min). The big model has 214 million parameters. How many numbers does a checkpoint hold from which its training can go on, and how many gigabytes is that in 32 bits?
#
# :::{admonition} Solution 2
# :class: dropdown
# There are three numbers for each parameter, the weight and Adam's two averages, $3 \cdot 214 = 642$ million. At four bytes each that is 2.6 gigabytes. To translate, a third of it is enough.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert round(parameter_count(preset("big")) / 1e6) == 214
    assert round(3 * 4 * parameter_count(preset("big")) / 1e9, 1) == 2.6

# %% [markdown]
# **3. Never reached** (★★, 10 min). A loop accumulates ten batches with `if count % 10 == 0: optimizer.step(); count += 1`, where both statements are inside the `if`. What does its loss curve look like, and how would you notice?
#
# :::{admonition} Solution 3
# :class: dropdown
# If `count` starts at 0, one step is made, `count` becomes 1, and the condition is never true again; started at 1, not even that step is made. The curve stays where the first update left it, near the loss of a fresh model, and moves only with the batches. You notice it if you compare the weights before and after a hundred batches, or log the number of updates beside the loss.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    count = steps = 0
    for _ in range(100):
        if count % 10 == 0:
            steps += 1
            count += 1
    assert steps == 1

# %% [markdown]
# ## Further
#
# ### When attention forms
#
# A row of {numref}`fig-forming` asks: to write this English word, where did the model look? Up to step 50 all rows are alike and nearly even. At step 100 there is a first link, from `man` to `Mann`; at step 500 `sleeping`, `green` and `couch` look at their translations as well. Where to look comes before what to say: at step 250 the model's own translation of this caption is still *A man in a large large large ...*

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-forming", "caption": "When does attention become useful? Cross-attention of the last layer on one validation caption, mean of its heads; steps 0 to 200 from the run on this page, the others from the log. Choose a step. An empty cell is a weight of 0, a full one 0.6 or more. Each row is labeled with the word that is to be written there."}}
example = collate([*encode_pairs(tokenizer, [val[1]])])
maps = {}
for step, weights in copies.items():
    model.load_state_dict(weights)
    cross = attention_maps(model, example.source, example.target[:, :-1]).cross
    maps[step] = cross[-1].mean(dim=0).tolist()
sides = [example.source[0, :-1].tolist(), example.target[0, 1:-1].tolist()]
names = [
    [tokenizer.decode([token]).strip() or "·" for token in side] + ["</s>"]
    for side in sides
]
shape = len(names[1]), len(names[0])
drawn = {
    line["step"]: line["attention"]
    for line in checks
    if line["step"] in (250, 500, 2000)
    # Another vocabulary may cut the caption into other tokens than the log's
    and (len(line["attention"]), len(line["attention"][0])) == shape
}
drawn |= maps
titles = ("query: the English word to write", "key: the German source")
look = {"titles": titles, "limit": 0.6, "cell": 24}
steps = {
    f"{step}": (
        heatmap(drawn[step], names[1], names[0], **look),
        f"After {step} updates; the largest weight is {max(map(max, drawn[step])):.2f}.",
    )
    for step in sorted(drawn)
}
show_steps(steps, "After how many updates?", start=len(steps) - 1)

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        max(map(max, maps[50])) < 0.2
        and maps[100][1][1] > 0.4
        and drawn[2000][9][9] > 0.5
    )

# %% [markdown]
# ### Why is the training loss above the validation loss?
#
# The training loss has smoothed labels and can't get below [their entropy](17_regularization.ipynb#why-does-my-loss-stop-above-1), 1.15 for 4,000 words; the validation loss has hard labels and no such floor. And the training loss is a mean over the last 50 steps, over models that knew a little less. With dropout it would be higher still.
#
# ### The captions model
#
# The model that the next chapters decode, score and take apart was first trained by the same loop for 8,000 updates, some four hours on one core. The mean of its last four checkpoints has 40.5 BLEU on the validation captions, with a beam of 4. By then more of the same pairs brought little ({numref}`fig-long`; its scores are greedy, and of single checkpoints). So the book's everyday models translated each side once into the other language, and these pairs joined the real ones, which is **data diversification** {cite:p}`nguyen2020data`. After 6,000 more updates the mean of the last four has 42.8; part of the gain may come from elsewhere, since the two translators have read more than captions. It reads its German, too: on 100 validation captions its loss is 1.63, with a neighbor's German 5.89. All commands are in the model's [card](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/captions-de-en/README.md).

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-long", "caption": "How long does it pay to train? The first training of the captions model that comes with this book: loss, and BLEU on validation captions. BLEU is at 29 after nine epochs, at 36 after eighteen, and near 39 from epoch 26 on. The spike at epoch 21 is a single batch, before an interruption."}}
home = files("annotated_transformer") / "pretrained" / "captions-de-en"
records = [json.loads(line) for line in (home / "start.jsonl").read_text().splitlines()]
records = [record for record in records if "loss" in record]
learning_curves(
    records,
    "epoch",
    "Both losses fall steeply for a few epochs and then ever more slowly, to 2.5 and 1.6. BLEU rises to 29 within nine epochs and then slowly to 39.",
)

# %% tags=["remove-cell"]
if CHECKING:
    at = {int(line["epoch"]): line["score"] for line in records if "score" in line}
    assert [round(at[9]), round(at[18]), records[-1]["step"]] == [29, 36, 8223]
    assert all(38.5 < score < 39.5 for epoch, score in at.items() if epoch >= 26)
    scores = RESULTS / "captions-first.jsonl", home / "evaluation.jsonl"
    for path, told in zip(scores, ("40.5", "42.8")):
        lines = map(json.loads, path.read_text().splitlines())
        assert told == next(
            f"{line['bleu']:.1f}" for line in lines if line["averaged"] == 4
        )

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer import load_pretrained
    from annotated_transformer.data import Pair

    trained, its_tokenizer = load_pretrained("captions-de-en")
    some = val[:100]
    mixed = [Pair(b.source, a.target) for a, b in zip(some, [*some[1:], some[0]])]
    for each, told in ((some, 1.63), (mixed, 5.89)):
        loss = validation_loss(trained, encode_pairs(its_tokenizer, each), 1024)
        assert abs(loss - told) < 0.02, (loss, told)

# %% [markdown]
# ## Sources
#
# Data, steps and optimizer are from section 5 of {cite:t}`vaswani2017attention`, averaging from its section 6.1. The captions are those of {cite:t}`elliott2016multi30k`.
