# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Training
#
# This chapter trains the model, from a single update to a translator of captions with a BLEU score (sections 5.1 to 5.4 of the paper).
#
# We have a model that knows nothing, and everything needed to teach it: [pairs](13_data.ipynb), [a tokenizer](14_tokenization.ipynb), [batches](15_batching.ipynb), [a learning rate](16_schedule.ipynb) and [a loss](17_regularization.ipynb). A loop joins them, and in its simplest form the loop has ten lines. Before you read on, make a guess: a small model, 29,000 German captions with their translations, one processor core, one minute. Will the model by then write English? Will what it writes have to do with the German?

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
import copy
import json
import time
from importlib.resources import files

import matplotlib.pyplot as plt

from annotated_transformer import Tokenizer, load_pretrained, preset, train
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.batching import Example, collate, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.own_data import multi30k
from annotated_transformer.schedule import learning_rate
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

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-update", "caption": "What happens in one update? A batch of pairs goes up through the model, the loss compares what it says with the words that come next, and the gradient tells each weight which way to move. The optimizer moves them all a little, at the rate that the schedule gives for this step. Then comes the next batch."}}
parts = [
    box(20, 200, 130, 44, "batch", "chapter 15", "15_batching.html"),
    box(20, 110, 130, 44, "Transformer", "chapter 10", "10_transformer.html"),
    box(20, 20, 130, 44, "loss", "chapter 17", "17_regularization.html"),
    box(260, 20, 130, 44, "gradient", "of every weight"),
    box(260, 110, 130, 44, "Adam", "chapter 16", "16_schedule.html"),
    box(260, 200, 130, 44, "rate of this step", "chapter 16", "16_schedule.html"),
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
# Each turn of the loop makes one update of the weights, against the gradient of the mean loss over all real target tokens (all but padding) of its sentences $b$:
#
# $$ \text{loss} = \frac{\sum_b \sum_t \text{loss}_{bt}}{\sum_b \text{tokens}_b} $$ (eq-token-mean)
#
# In code:


# %%
def train_simply(model, stream, steps, report):
    loss = SmoothedLoss(model)
    adam = Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step, batch in zip(range(1, steps + 1), stream):
        adam.param_groups[0]["lr"] = learning_rate(step, 128, warmup=300, lr_scale=0.6)
        total = loss(*batch)
        tokens = (batch.target[:, 1:] != PAD).sum()
        adam.zero_grad()
        (total / tokens).backward()
        adam.step()
        report(step, total.item(), tokens.item())


# %% [markdown]
# Let's use it at once, on the captions of Multi30k, from German to English, with a joint vocabulary of 4,000 and a model of 1.4 million parameters. (Our base model has 63.05 million, 44 times as many.)

# %%
pairs, val, test = (multi30k(name) for name in ("train", "val", "test_2016_flickr"))
tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
corpus = encode_pairs(tokenizer, pairs)
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))

# %% tags=["hide-input"]
print(
    f"{len(pairs):,} to learn from, {len(val):,} to choose by, {len(test):,} to test on"
)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show watch", "code_prompt_hide": "Hide watch"}
# While it trains, look at its cross-attention on one caption, and compare with a longer run's log
settings, *history, found = read_log("captions")
logged = {line["step"]: line["loss"] for line in history}
example = collate([*encode_pairs(tokenizer, [val[1]])])


def cross_attention(model):
    """Return the last layer's cross-attention (T, S), a mean over heads, without dropout."""
    maps = attention_maps(model, example.source, example.target[:, :-1])
    return maps.cross[-1].mean(dim=0).tolist()


maps, sums, live = {0: cross_attention(model)}, torch.zeros(2), {}


def watch(step, total, tokens):
    sums.add_(torch.tensor([total, tokens]))
    if step % 50 == 0:
        live[step], maps[step] = (sums[0] / sums[1]).item(), cross_attention(model)
        other = logged.get(step, torch.nan)
        print(f"step {step:3}: loss {live[step]:.3f}, in the log {other:.3f}")
        sums.zero_()


# %% [markdown]
# Every 50 steps, `watch` prints the mean loss beside the one in the log of a longer run:

# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
train_simply(model, batches(corpus, 768, seed=0, epoch=0), 200, watch)
print(f"200 steps in {time.perf_counter() - start:.0f} s")

# %% tags=["remove-cell"]
if CHECKING:
    assert (
        all(abs(loss - logged[step]) < 0.02 for step, loss in live.items())
        and len(live) == 4
    )

# %% [markdown]
# Within a minute the loss has come down from nearly 9 to 5. The whole run takes 2,000 updates and was made once (`python -m benchmarks.experiments.captions`); our 200 steps lie on its log, which goes on like this. (The training loss is the higher one mainly because its labels are smoothed; [more on this](#why-is-the-training-loss-above-the-validation-loss) below.)


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
    live,
)

# %% tags=["hide-input"]
checks = [line for line in history if "score" in line]
print("German:   ", val[2].source)
for line in checks:
    if line["step"] in (250, 500, 1000, 2000):
        print(f"step {line['step']:4}:", line["said"][1])
print("reference:", val[2].target)

# %% [markdown]
# At step 250, soon after our run stops, the model writes English of a kind: it repeats itself and has taken little more from the German than the boy and the woman. At 2,000 the sentence is a translation.
#
# What follows opens the loop, makes it fit for real work, and leads to a [score](#captions-it-has-never-seen).
#
# ## The mean over all tokens
#
# Take two sentences. One has 5 tokens and a loss of 10 in all, the other 20 tokens and a loss of 60. The mean over tokens, {eq}`eq-token-mean`, is $(10 + 60) / 25 = 2.8$. The mean of the two means is $(10/5 + 60/20) / 2 = 2.5$, where a token of the short sentence counts four times as much as one of the long sentence. So sums and counts are kept apart and divided at the last moment.
#
# The difference matters most where one update is made of several batches. The paper's 25,000 tokens fit on a large GPU and not on a small one. With gradient **accumulation** you run the batches one after the other, add up their gradients, and update once. PyTorch does the adding: `backward` adds to what is in `.grad` already, and frees what the forward pass of its batch has kept, so ten batches need the memory of one. The gradient of a sum is the sum of the gradients, so the result is that of the one large batch, if each sum is divided by the tokens of *all* batches.
#
# ## One update
#
# An update therefore takes a `Group`: its batches, together with the number of their tokens, which must be known before the first gradient is divided by it. `group_batches`, folded here, makes such groups of a stream.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show Group and group_batches", "code_prompt_hide": "Hide Group and group_batches"}
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
# The **norm** of the gradient is its length as one long vector. A gradient longer than `grad_clip` is shortened to it and keeps its direction; the paper doesn't mention that, and by default it is off.
#
# Three small batches in one group move the weights exactly as one large batch does, to the last digits of double precision. Had we taken the mean of their three means, the gradient would be off by a fifth; the second reading computes both. And if a gradient isn't finite, the update is refused, because a single `nan` that gets into one weight is in all of them after the next step.

# %% [markdown]
# ## The settings
#
# A run's **hyperparameters** stand in one class, with defaults for a small model. An update sees up to `max_tokens` times `grad_accum_steps` tokens per side, about 25,000 in the paper. How well the model learns depends on the product, and how much memory it takes on `max_tokens` alone. The last five are for later chapters: [speed](26_speed.ipynb#the-fast-loss), and [the run as a whole](29_trainer.ipynb).


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
    lr_scale: float = 0.2  # times the paper's learning rate
    label_smoothing: float = 0.1  # probability given to all tokens alike, below 1
    grad_clip: float | None = None  # longest gradient; a longer one is shortened to it
    seed: int = 0  # decides the order of the batches and what dropout drops
    precision: Literal["fp32", "bf16"] = "fp32"  # of products
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
# ## The loop
#
# Here is `train_simply`, grown up. Around each update there is room for what a run needs: a line on the screen, a validation, or a **checkpoint**, a file with everything that is needed to go on later: the weights, Adam's two averages for each weight, and the number of updates made.


# %% tags=["export"]
def make_adam(model: nn.Module) -> Adam:
    """Return the optimizer of section 5.3; its rate is set before each update."""
    return Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


# %% [markdown]
# (`fused=True` changes nothing but the speed of Adam's step.)

# %% tags=["nbval-ignore-output"]
torch.manual_seed(3)
fresh = Transformer(preset("tiny", vocabulary_size=len(tokenizer)))
config = TrainingConfig(steps=10, max_tokens=768, grad_accum_steps=2, warmup=5)
loss, adam = SmoothedLoss(fresh, config.label_smoothing), make_adam(fresh)
groups = group_batches(batches(corpus, config.max_tokens), config.grad_accum_steps)
for step, group in zip(range(1, config.steps + 1), groups):
    rate = learning_rate(step, 128, config.warmup, config.lr_scale)
    adam.param_groups[0]["lr"] = rate
    update = training_step(loss, group, adam, config.grad_clip)
    if step in (1, 5, 10):
        print(f"step {step:2}: loss {update.loss / update.tokens:.2f}")

# %% [markdown]
# ## Whether it gets better
#
# The training loss falls even when a model learns its sentences by heart. So every now and then we measure on pairs that it doesn't learn from, without dropout and without smoothing, though still with the right words as input. The exponential of this **validation loss** is the perplexity. `validation_loss` adds up losses and tokens as an update does; it's folded here.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show validation_loss", "code_prompt_hide": "Hide validation_loss"}
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
# If several validations in a row bring no lower loss, training may as well end, which is **early stopping**. We also want to know how well the model translates; that takes [decoding](19_decoding.ipynb) and [a score](20_evaluation.ipynb#the-tool-and-its-signature).
#
# ## One call
#
# A run that takes hours needs more: a log, validation as it goes, checkpoints, and a way to go on after a stop. None of it touches the update; a [later chapter](29_trainer.ipynb) builds it. The function `train` from there makes the same updates, also from the command line, [with your own pairs](../book/own_pair.md#train).


# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show the same updates with train", "code_prompt_hide": "Hide these updates"}
from annotated_transformer import TrainingConfig, train

config = TrainingConfig(
    steps=50, max_tokens=768, warmup=300, lr_scale=0.6, save_every=50
)
torch.manual_seed(0)
again = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
log = []
train(again, tokenizer, corpus, config, report=log.append)
by_hand = live.get(50, torch.nan)
print(f"50 steps: loss {log[-1]['loss']:.3f} with train, {by_hand:.3f} by hand")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(log[-1]["loss"] - live[50]) < 0.01

# %% [markdown]
#
#
# ## A test that it reads the German
#
# Back to the run of 2,000 steps. As it trained, we measured two losses: on 100 captions as they are, and on the same captions when each has the German of its neighbor. For a model that knows only English, both are the same.

# %% tags=["hide-input"]
for line in checks[::2] + checks[-1:]:
    print(f"step {line['step']:4}: {line['own']:.2f} with its own German,", end=" ")
    print(f"{line['strangers']:.2f} with a neighbor's")
gaps = [line["strangers"] - line["own"] for line in checks]

# %% tags=["remove-cell"]
if CHECKING:
    assert gaps[-1] > 2.5 and gaps[0] < 1

# %% [markdown]
# The gap doesn't measure how much the model learns from the German. A neighbor's German is worse than none, because the model believes it and writes words that don't belong there. So the gap shows how much the model *trusts* its source. Try the neighbor's German on your own models, too. If the gap stays at zero, the German is of no use to the decoder: the pairs don't belong together, a mask hides the source, or [the rate was too high](16_schedule.ipynb#the-height-of-a-loss-that-is-stuck) and attention never recovered.
#
# ### When attention forms
#
# Attention forms earlier than the translations suggest. A row of {numref}`fig-forming` asks: to write this English word, where did the model look? Up to step 50 all rows are alike and nearly even. At step 100 there is a first link, from *man* to *Mann*; at step 500 *sleeping*, *green* and *couch* look at their translations as well.
#
# :::{admonition} Where to look comes before what to say
# :class: dropdown
# At step 250, with *man* already looking at *Mann* and several others near their places, the model's own translation of this caption is still "A man in a large large large ...". And at step 2,000 the row of *couch* lies on *Sofa*, and the model, left to itself, stops after "A man sleeping in a green room."
# :::

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-forming", "caption": "When does attention become useful? Cross-attention of the last layer on one validation caption, mean of its heads; steps 0 to 200 from the run on this page, the others from the log. Choose a step. An empty cell is a weight of 0, a full one 0.6 or more. Each row is labeled with the word that is to be written there."}}
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
# ## Captions it has never seen
#
# The translations below are by the weights that scored best in validation, those of step 1,750. We take every two-hundredth test caption, to pick neither the good ones nor the bad ones.

# %% tags=["hide-input"]
for pair, written in zip(test[::200], found["translations"][::2]):
    print("German:   ", pair.source)
    print("ours:     ", written)
    print("reference:", pair.target, end="\n\n")
print(f"BLEU on all {len(test):,}, greedy: {found['bleu']:.1f}", found["signature"])

# %% [markdown]
# **BLEU** {cite:p}`papineni2002bleu` counts the runs of one to four words that a translation shares with a human's, from 0 to 100; [chapter 20](20_evaluation.ipynb#the-tool-and-its-signature) is about it, and about the signature that sacreBLEU {cite:p}`post2018call` prints. The frame of a sentence is right most of the time. Rare words are not: the model has seen each a few times only, and spells what it doesn't know from pieces.
#
# ## What averaging checkpoints brings
#
# The paper doesn't translate with the last weights of a run. It takes the mean of the last checkpoints, weight by weight: five for base, written ten minutes apart, and twenty for big (section 6.1). Each checkpoint is partly where the last few batches have pushed it. If that part is independent noise, the mean of five keeps $1 / \sqrt 5 = 0.45$ of it. That is worth having, since the noise isn't small: the paper's rate is [still a fifth of its peak](16_schedule.ipynb#the-peak) when training ends. [`average_checkpoints`](29_trainer.ipynb#the-mean-of-checkpoints) takes the mean. At the end of our run, on 200 validation captions:

# %% tags=["hide-input"]
for last, score in found["averages"].items():
    print(f"mean of the last {last}: BLEU {score:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert min(list(found["averages"].values())[1:]) > found["averages"]["1"] + 2.5

# %% [markdown]
# Averaging brings 2.7 to 3.7 points here. How sure is that? It is one run and 200 captions, and late in it the score on 100 captions moves by up to 2.8 points from one validation to the next. All three means beat the last checkpoint, so a gain is likely; its size, and the order of 2, 3 and 5, remain open.

# %% [markdown]
# ## What to remember
#
# - The loss is a mean over all tokens of an update, so sums and counts are kept apart until the end. Accumulated batches then equal the large one.
# - A gradient that is not finite is caught before the weights change.
# - The loss with a neighbor's source tells whether the model reads.
#
# The model gives each next word a probability. Choosing the likeliest each time doesn't give the likeliest sentence, and a better search can make worse translations.

# %% [markdown]
# ## Exercises
#
# **1. Two means** (★, 5 min). By hand: two batches have losses summing to 30 over 10 tokens and to 10 over 5 tokens. What is the loss of the update, and what is the mean of the means?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# (30 + 10) / (10 + 5) = 2.67, against (3 + 2) / 2 = 2.5
print(f"{40 / 15:.2f} {(30 / 10 + 10 / 5) / 2:.2f}")

# %% [markdown]
# **2. A large file** (★, 10 min). How many numbers does a checkpoint of the big model hold, and how many gigabytes is that?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three for each parameter, the weight and Adam's two averages, of four bytes each
with torch.device("meta"):
    big = Transformer(preset("big"))
numbers = 3 * sum(p.numel() for p in big.parameters())
print(f"{numbers:,} numbers, {4 * numbers / 1e9:.2f} GB")

# %% [markdown]
# **3. Half a memory** (★★, 15 min). A run goes on with its averages from step 1,000, but Adam's own count begins at zero. How many times too long is the first step?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The bias correction divides full averages as if they had seen one gradient: m by 0.1, v by 0.02.
print(f"{(1 / (1 - 0.9)) / (1 / (1 - 0.98)) ** 0.5:.2f} times")

# %% [markdown]
# **4. Accumulate** (★★, 20 min). Change `train_simply` so that each update is made of several batches, with the right mean. Check that one update of three batches moves a model exactly as `training_step` does.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The tokens of all batches must be known before the first backward; dividing the gradients afterwards would do, too.
def accumulate(model, groups, optimizer):
    loss = SmoothedLoss(model)
    for group in groups:
        tokens = sum((batch.target[:, 1:] != PAD).sum() for batch in group)
        optimizer.zero_grad()
        for batch in group:
            (loss(*batch) / tokens).backward()
        optimizer.step()


three = [collate([corpus[n] for n in range(start, start + 4)]) for start in (0, 4, 8)]
twins = []
for _ in range(2):
    torch.manual_seed(3)
    twin = preset("tiny", layers=1, vocabulary_size=len(tokenizer), dropout=0.0)
    twins.append(Transformer(twin).double())
mine, ours = twins
accumulate(mine, [three], torch.optim.SGD(mine.parameters(), lr=1.0))
(together,) = group_batches(three, size=3)
descent = torch.optim.SGD(ours.parameters(), lr=1.0)
training_step(SmoothedLoss(ours), together, descent)
apart = [
    (a - b).abs().max().item() for a, b in zip(mine.parameters(), ours.parameters())
]
print(f"off by {max(apart):.0e} at most")

# %% tags=["remove-cell"]
if CHECKING:
    assert max(apart) < 1e-14

# %% [markdown]
# **5. Never reached** (★★, 10 min). A loop says `if count % 10 == 0: optimizer.step(); count += 1`, with both statements inside the `if`. What does its loss curve look like, and how would you notice?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# If count starts at 0, one step is made, count becomes 1, and the condition is never true again. The loss stays where
# the first update left it, near the loss of a fresh model, up to the noise of the batches; started at 1, not even that
# step is made. Compare the weights before and after a hundred batches, or log the rate and the number of updates.
count = steps = 0
for _ in range(100):
    if count % 10 == 0:
        steps += 1
        count += 1
print(steps, "update in 100 batches")

# %% [markdown]
# **6. The rival** (★★★, an evening; open). Train a GRU with additive attention under the same loop, with as many parameters and the same 2,000 updates. Compare BLEU, time, and the map of {numref}`fig-forming`.

# %% [markdown]
# ## Second reading: gradients, averages, and the long run
#
# :::{admonition} Uneven targets: what is asked of a padded row?
# :class: dropdown
# The sentences of a batch differ in length. With two targets of two words and one, `</s>` being 2 and padding 0, the last column doesn't hold the `</s>` of every row. In the second row the decoder is asked for padding. Where the label is padding, neither the loss nor the count changes, so no row needs special treatment.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the two targets", "code_prompt_hide": "Hide the two targets"}
uneven = collate([Example([5, 2], [1, 7, 8, 2]), Example([6, 2], [1, 9, 2])]).target
print("reads:   ", uneven[:, :-1].tolist())
print("must say:", uneven[:, 1:].tolist())

# %% [markdown]
# :::{admonition} Is it the gradient of the large batch?
# :class: dropdown
# We compare three small batches with one large one, the same twelve captions from the same start, in double precision. Plain gradient descent at rate 1 takes Adam's place, to compare the gradient itself. (Until October 2024 the Trainer of Hugging Face ([their account](https://github.com/huggingface/blog/pull/2414)) and torchtune ([the repair](https://github.com/meta-pytorch/torchtune/pull/1875)) divided each batch by its own count.)
# :::


# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the comparison", "code_prompt_hide": "Hide the comparison"}
def very_small(seed=3, **changes):
    """Return a very small model, always with the same start."""
    torch.manual_seed(seed)
    sizes = {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, **changes}
    return Transformer(preset("tiny", vocabulary_size=len(tokenizer), **sizes))


def moved(batches):
    """Return how far one step of plain gradient descent moves the weights."""
    model = very_small(dropout=0.0).double()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    (group,) = group_batches(batches, len(batches))
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    training_step(SmoothedLoss(model), group, descent)
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


some = [corpus[n] for n in range(12)]
parts = [collate(part) for part in (some[:2], some[2:7], some[7:])]
large, small = moved([collate(some)]), moved(parts)
means = torch.stack([moved([part]) for part in parts]).mean(dim=0)
print(f"three batches, one update: off by {(small - large).norm() / large.norm():.0e}")
print(f"the mean of their means:   off by {(means - large).norm() / large.norm():.0%}")

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.allclose(large, small, rtol=0, atol=1e-14)
    assert 0.17 < (means - large).norm() / large.norm() < 0.25

# %% [markdown]
# ### A gradient that is NaN
#
# :::{admonition} How much harm can one do?
# :class: dropdown
# An overflow somewhere, and one number of a gradient is `nan`. We put it into a single weight's gradient, with an optimizer that doesn't look, and count the weights that are lost.
#
# In the first step one weight is lost. In the second it reaches every logit, and so the loss and all gradients. The check must come *before* the weights change. It costs a GPU a short wait in each step, because to read a number off a GPU is to wait until all its work is done. We end the run there: one bad batch would do no harm, but if the rate is too high, the next hundred are bad too, and a loop that skips them learns nothing.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show one nan, two steps", "code_prompt_hide": "Hide one nan, two steps"}
careless, batch = very_small(), collate(some)
adam = torch.optim.Adam(careless.parameters(), lr=0.01)
for step in (1, 2):
    adam.zero_grad()
    SmoothedLoss(careless)(*batch).backward()
    if step == 1:
        careless.decoder.layers[0].feed_forward.linear1.weight.grad[0, 0] = torch.nan
    adam.step()
    lost = sum(int(p.isnan().sum()) for p in careless.parameters())
    print(f"lost after step {step}: {lost:,} of {large.numel():,}")

# %% tags=["remove-cell"]
if CHECKING:
    assert lost > 0.99 * large.numel()

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the update refused", "code_prompt_hide": "Hide the update refused"}
careful = very_small()
hook = careful.embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
(group,) = group_batches([batch], 1)
try:
    training_step(SmoothedLoss(careful), group, Adam(careful.parameters(), lr=0.01))
except FloatingPointError as error:
    print(error)
changed = sum(
    int((a != b).sum()) for a, b in zip(careful.parameters(), very_small().parameters())
)
print("weights changed:", changed)

# %% [markdown]
# ### Why is the training loss above the validation loss?
#
# :::{admonition} Two losses that measure different things
# :class: dropdown
# {numref}`fig-loss` draws two different things. The training loss has smoothed labels and can't get below [their entropy](17_regularization.ipynb#why-does-my-loss-stop-above-1), 1.15 for 4,000 words; the validation loss has hard labels and no such floor. And the training loss is a mean over the last 50 steps, over models that knew a little less. With dropout it would be higher still.
# :::
#
# ### How much does the German tell the model?
#
# :::{admonition} The loss without a source
# :class: dropdown
# A neighbor's German misleads, so the gap overstates what the source tells. Take the source away instead. For the captions model that comes with this book, which was trained for much longer, the loss without a source is 4.48, and all that the model has then is English. Its own German brings 2.9 nats per token, and a wrong one costs 1.4. An empty source is something it never saw in training, so take the split as rough.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the three losses", "code_prompt_hide": "Hide the three losses"}
trained, its_tokenizer = load_pretrained("captions-de-en")
ours = val[:100]
sources = {
    "its own German": [pair.source for pair in ours],
    "no German at all": ["" for _ in ours],
    "a neighbor's": [pair.source for pair in [*ours[1:], ours[0]]],
}
losses = {}
for name, texts in sources.items():
    mixed = [Pair(text, pair.target) for text, pair in zip(texts, ours)]
    losses[name] = validation_loss(trained, encode_pairs(its_tokenizer, mixed), 1024)
    print(f"{losses[name]:.2f}  {name}")
own, none, strange = losses.values()

# %% tags=["remove-cell"]
if CHECKING:
    assert 2.8 < none - own < 2.9 and 1.35 < strange - none < 1.45

# %% [markdown]
# ### Can I average any two models?
#
# :::{admonition} A model and its twin
# :class: dropdown
# No. The checkpoints of one run are points on one path, and agree about which hidden unit does what. Two models from different starts don't, even if they translate equally well. We make such a pair: our model of 200 steps, and a twin whose hidden units are in another order. A unit's input and output weights move together, so the twin computes the same function. Then we take the mean of the two.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the model and its twin", "code_prompt_hide": "Hide the model and its twin"}
twin, mean = copy.deepcopy(model), copy.deepcopy(model)
for layer in [*twin.encoder.layers, *twin.decoder.layers]:
    inner, outer = layer.feed_forward.linear1, layer.feed_forward.linear2
    order = torch.arange(inner.out_features).flip(0)
    inner.weight.data, inner.bias.data = (
        inner.weight.data[order],
        inner.bias.data[order],
    )
    outer.weight.data = outer.weight.data[:, order]
for weights, other in zip(mean.parameters(), twin.parameters()):
    weights.data.lerp_(other.data, 0.5)
watched = encode_pairs(tokenizer, val[:100])
losses = [validation_loss(each, watched, 768) for each in (model, twin, mean)]
print("model, twin, mean:", [round(loss, 2) for loss in losses])

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(losses[0] - losses[1]) < 0.001 and losses[2] > losses[1] + 0.1

# %% [markdown]
# ### The captions model
#
# :::{admonition} The model that the next chapters use, and what made it better
# :class: dropdown
# A few minutes aren't enough for a good translation. The model that the next chapters decode, score and take apart was first trained by the same loop for 8,000 updates, some five hours on one core. The mean of the last four checkpoints has 40.5 BLEU on the validation captions, with a beam of 4. (The scores in {numref}`fig-long` are greedy, and of single checkpoints.)
#
# By then more of the same pairs brought little ({numref}`fig-long`). The book's everyday models translated each side once into the other language, and two more kinds of pairs joined the real ones: the machine's German with the person's English, and the person's German with the machine's English. That is **data diversification** {cite:p}`nguyen2020data`. After 6,000 more updates, at 0.3 times the rate and warmed up anew, the mean of the last four has 42.8. Part of the gain may come from elsewhere, since the two translators have read more than captions. All commands are in the model's [card](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/captions-de-en/README.md).
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the long run", "code_prompt_hide": "Hide the long run", "figure": {"name": "fig-long", "caption": "How long does it pay to train? The first training of the captions model that comes with this book: loss, and BLEU on validation captions. The training loss has dropout and label smoothing, which raise it above the validation loss. BLEU is at 29 after nine epochs, at 36 after eighteen, and near 39 from epoch 26 on. The spike at epoch 21 is a single batch, before an interruption."}}
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

# %% [markdown]
# ### When something looks wrong
#
# #### The loss begins near 9
#
# That is right for 4,000 words. A model that knows nothing gives each word about the same chance, a loss of $\ln 4000 = 8.3$, and half a unit more with [our start](10_transformer.ipynb#the-loss-before-training-is-ln-v). A first loss far from this points to a mistake in the code.
#
# #### The loss is stuck near 6
#
# That is about what you get by knowing only how often each token occurs: 5.8 on these captions, 6.2 with smoothed labels. If it stays there, the rate may have risen too fast or too high; [chapter 16](16_schedule.ipynb#the-height-of-a-loss-that-is-stuck) shows such runs.
#
# #### It says the same sentence whatever the source is
#
# That is normal in the first few hundred steps. Later, try the neighbor's German.
#
# #### Memory runs out
#
# Halve `max_tokens` and double `grad_accum_steps`; if there is a checkpoint already, take another folder.
#
# #### I want to change the rate, or the pairs, in the middle
#
# Load the model and train it in another folder, where averages and warm-up begin anew. The tokenizer must stay the old one. More `steps` in the same folder are fine, since the paper's rate depends on the step and not on the length of the run.
#
# #### My cluster stops every job after four hours
#
# Submit the same command again. At its end a job gets SIGTERM and leaves a checkpoint; the next goes on from there.

# %% [markdown]
# ## Sources
#
# Data, steps and optimizer are from section 5 of {cite:t}`vaswani2017attention`, averaging from its section 6.1. The captions are those of {cite:t}`elliott2016multi30k`.
