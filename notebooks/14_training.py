# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown] needs=["multi30k"]
# # Training
#
# This chapter trains the model: first to copy, then to translate real captions from German, within three minutes on
# two cores (sections 5.1 to 5.4 of the paper).
#
# We have a model that knows nothing, and all the parts that can teach it: [pairs](09_corpus.ipynb), [numbers](10_tokenization.ipynb),
# [batches](11_batching.ipynb), [a rate](12_schedule.ipynb) and [a loss](13_regularization.ipynb). What is missing is the loop that
# joins them. It is short. Most of what can go wrong in it makes no noise: the model learns all the same, only worse.

# %% tags=["export"]
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.optim import Adam, Optimizer
from tqdm import tqdm

from annotated_transformer.batching import Batch, Example, batches, encode_pairs
from annotated_transformer.corpus import Pair
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

# %%
import math
import random
import tempfile
import time

import matplotlib.pyplot as plt
import sacrebleu
import torch.nn.functional as F

from annotated_transformer.batching import encode_source, pad
from annotated_transformer.corpus import multi30k
from annotated_transformer.figures import INK, RESIDUAL, style
from annotated_transformer.transformer import greedy_decode, preset

# %% [markdown]
# ## One step
#
# The decoder learns all positions of a sentence at once. At each one it reads the *true* words so far, whatever it would have said
# itself, and is asked for the next. This is **teacher forcing**. So the target serves twice, one place apart: without its last
# token it is what the decoder reads, without its first it is what the decoder must say.
#
# The loss of a step is the mean over all real tokens of the batch:
#
# $$ \text{loss} = \frac{\sum_b \sum_t \text{loss}_{bt}}{\sum_b \text{length}_b} $$ (eq-token-mean)
#
# It is not the mean over sentences, nor over batches. There, a word in a short sentence would count more than one in a long sentence.


# %% tags=["export"]
def batch_loss(model: Transformer, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss summed over the real target tokens of a batch, and how many those are.

    The decoder reads targets (B, T) without the last token and must say them without the first.
    """
    logits = model(batch.source, batch.target[:, :-1])
    return label_smoothed_loss(logits, batch.target[:, 1:], smoothing)


def training_step(
    model: Transformer, batch: Batch, optimizer: Optimizer, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Update the weights once; return the loss summed over tokens, and their number."""
    loss, tokens = batch_loss(model, batch, smoothing)
    optimizer.zero_grad()
    (loss / tokens).backward()
    optimizer.step()
    return loss.detach(), tokens


# %% [markdown]
# Is the shift right? An honest model must not see the word that it is asked for. We change one target word and look where the loss
# changes: at that word, as the answer, and after it, as context, never before.

# %%
torch.manual_seed(0)
toy = Transformer(preset("tiny", vocabulary_size=20)).double().eval()


def losses(target):
    logits = toy(torch.tensor([[4, 5, 2]]), target[:, :-1])
    return F.cross_entropy(logits[0], target[0, 1:], reduction="none")


one, other = torch.tensor([[1, 7, 8, 9, 2]]), torch.tensor([[1, 7, 11, 9, 2]])
print([bool(a != b) for a, b in zip(losses(one), losses(other))])

# %% [markdown]
# ## What can be chosen
#
# A training has a handful of numbers, kept in one frozen object and checked when it is made.


# %% tags=["export"]
@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults suit the `tiny` model and the grammar."""

    steps: int = 1300
    """Updates of the weights."""
    max_tokens: int = 384
    """Tokens of a batch, on either side, with padding."""
    warmup: int = 200
    """Steps until the learning rate is at its peak."""
    factor: float = 0.2
    """Times the paper's learning rate."""
    smoothing: float = 0.1
    """Label smoothing."""
    seed: int = 0
    """Decides the order of the batches."""

    def __post_init__(self) -> None:
        for name in ("steps", "max_tokens", "warmup", "factor"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be at least 0 and below 1, not {self.smoothing}")


# %% [markdown]
# ## The loop
#
# Epoch after epoch, batch after batch; each step sets its rate, then updates. To read a number from the loss stops
# the machine until all work is done, which on a GPU is a waste. So we add losses up and look at them once in 50 steps.


# %% tags=["export"]
class Progress(NamedTuple):
    """What training tells on its way: the step, the mean loss a token since the last report,
    and the learning rate.
    """

    step: int
    loss: float
    learning_rate: float


def endless_batches(examples: Sequence[Example], max_tokens: int, seed: int) -> Iterator[Batch]:
    """Epoch after epoch of batches."""
    for epoch in count():
        yield from batches(examples, max_tokens, seed, epoch)


def make_optimizer(model: Transformer) -> Adam:
    """Adam with the paper's numbers (section 5.3); the loop sets the learning rate."""
    return Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


def check_vocabulary(model: Transformer, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has ids for which the model has no embedding."""
    if len(tokenizer) > model.config.vocabulary_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} entries, the model "
            f"{model.config.vocabulary_size}: make it with vocabulary_size=len(tokenizer)"
        )


# %% tags=["export"]
def train(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    config: TrainingConfig = TrainingConfig(),
    report: Callable[[Progress], None] = lambda progress: None,
) -> Transformer:
    """Train a model on pairs and return it, in evaluation mode; `report` is called every 50 steps.

    Raises ValueError if there are no pairs, if one is too long for a batch, or if the tokenizer
    is not the model's.
    """
    if not pairs:
        raise ValueError("there are no sentence pairs to train on")
    check_vocabulary(model, tokenizer)
    stream = endless_batches(encode_pairs(tokenizer, pairs), config.max_tokens, config.seed)
    optimizer, device = make_optimizer(model), next(model.parameters()).device
    total = tokens = torch.zeros((), device=device)
    model.train()
    for step in tqdm(range(1, config.steps + 1), desc="training", unit="step", disable=None):
        rate = learning_rate(step, model.config.d_model, config.warmup, config.factor)
        optimizer.param_groups[0]["lr"] = rate
        batch = Batch(*(side.to(device) for side in next(stream)))
        loss, number = training_step(model, batch, optimizer, config.smoothing)
        total, tokens = total + loss, tokens + number
        if step % 50 == 0:
            report(Progress(step, float(total / tokens), rate))
            total = tokens = torch.zeros((), device=device)
    return model.eval()


# %% [markdown]
# ## To copy is to attend
#
# Before we spend minutes, we spend seconds. A row of random digits must come out as it went in. There is no meaning to learn, so if that fails, the
# code is wrong. A model that cannot find *where* to look cannot do it at all: each digit is as likely as any other.

# %% tags=["nbval-ignore-output"]
rng = random.Random(0)
digits = [" ".join(rng.choices("0123456789", k=rng.randint(3, 8))) for _ in range(4000)]
copies = [Pair(text, text) for text in digits]
tokenizer = Tokenizer.train(copies, vocabulary_size=300)
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), layers=1, dropout=0.0))
model = train(
    model,
    tokenizer,
    copies[:-100],
    TrainingConfig(steps=400, factor=0.2),
    report=lambda progress: print(f"step {progress.step}: loss {progress.loss:.2f}"),
)


# %% [markdown]
# Has it learned to copy, or only these rows? A hundred rows were held back. `greedy_decode` of
# [the model's chapter](08_transformer.ipynb) writes each of them, one most likely token at a time.


# %% tags=["nbval-ignore-output"]
def write(model, tokenizer, texts):
    """Translate texts in batches of similar length, and return them in the order given."""
    sources = [encode_source(tokenizer, text) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: len(sources[index]))
    written = {}
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        rows = greedy_decode(model, pad([sources[index] for index in chosen]))
        written |= zip(chosen, map(tokenizer.decode, rows))
    return [written[index] for index in range(len(texts))]


right = sum(
    one == other for one, other in zip(write(model, tokenizer, digits[-100:]), digits[-100:])
)
print(f"{right} of 100 unseen rows copied without an error")
assert right > 80

# %% [markdown]
# ## Keeping a model
#
# A model on disk is a folder of three files: the weights, the configuration and the tokenizer. PyTorch's usual format for weights is a pickle, and a
# pickle is a program: whoever loads one runs it. **safetensors** holds numbers and their names, nothing else. The other two are JSON.
#
# A file that is half written when the machine stops is worse than none. So each is written beside its place and renamed.

# %% tags=["export"]
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that under its name there is always all of it or what was there before."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def save_model(model: Transformer, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Write a model into a folder: weights, configuration, tokenizer."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / TOKENIZER, tokenizer.library.to_str(pretty=True).encode())
    write_whole(folder / CONFIG, json.dumps(asdict(model.config), indent=2).encode())
    write_whole(
        folder / WEIGHTS,
        save({name: value.contiguous() for name, value in model.state_dict().items()}),
    )


# %% [markdown]
# Loading trusts nothing. Each file can be missing, damaged, or another model's, and each case has its own sentence.


# %% tags=["export"]
def load_config(path: Path) -> TransformerConfig:
    """Read a configuration; raises ValueError if the file is not one."""
    try:
        return TransformerConfig(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a model's configuration: {error}") from error


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read weights; raises ValueError if the file is not whole or not in safetensors' format."""
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file; other formats, such as pickles, are refused "
            f"because they can run code ({error})"
        ) from error


def load_model(folder: str | Path) -> tuple[Transformer, Tokenizer]:
    """Read what `save_model` wrote; the model is in evaluation mode.

    Raises FileNotFoundError if a file is missing, ValueError if one is damaged or they do not
    belong together.
    """
    folder = Path(folder)
    missing = [name for name in (WEIGHTS, CONFIG, TOKENIZER) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} holds no model: {', '.join(missing)} missing")
    model, tokenizer = Transformer(load_config(folder / CONFIG)), Tokenizer.load(folder / TOKENIZER)
    check_vocabulary(model, tokenizer)
    try:
        model.load_state_dict(load_weights(folder / WEIGHTS))
    except RuntimeError as error:
        raise ValueError(
            f"{folder / WEIGHTS} holds the weights of another configuration: {error}"
        ) from error
    return model.eval(), tokenizer


# %% [markdown]
# What went in comes out, to the last bit, and a pickle does not get in.

# %%
with tempfile.TemporaryDirectory() as folder:
    save_model(model, tokenizer, folder)
    print(sorted(path.name for path in Path(folder).iterdir()))
    again, _ = load_model(folder)
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values())
    )
    torch.save(model.state_dict(), Path(folder, "model.safetensors"))
    try:
        load_model(folder)
    except ValueError as error:
        print(str(error).split("model.safetensors ")[1].split(" (")[0])

# %% [markdown]
# ## From German to English
#
# Now the real thing. The 29,000 captions of Multi30k, one vocabulary for both languages, and a model about a fiftieth of the paper's.

# %%
pairs, test = multi30k("train"), multi30k("test_2016_flickr")
tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
print(
    f"{len(pairs):,} captions to learn from, {len(test):,} to test on, {len(tokenizer):,} entries"
)

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
config = TrainingConfig(steps=2000, max_tokens=768, warmup=300, factor=0.6)

history = []
start = time.perf_counter()
model = train(model, tokenizer, pairs, config, report=history.append)
print(f"trained {config.steps} steps in {time.perf_counter() - start:.0f} s")
assert history[-1].loss < history[0].loss / 1.5

# %% [markdown]
# The loss falls fast while the model learns which words exist, then slowly while it learns which of them follow from the source.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-loss", "caption": "What does learning look like? Loss a token on the training captions, averaged over 50 steps, with label smoothing; the dashed line is the entropy of the smoothed labels, below which no loss can fall."}, "image": {"alt": "The loss falls steeply at first, then more and more slowly, and stays far above the dashed line."}}
style()
on, off = 0.9 + 0.1 / len(tokenizer), 0.1 / len(tokenizer)
floor = -on * math.log(on) - (len(tokenizer) - 1) * off * math.log(off)
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.plot([p.step for p in history], [p.loss for p in history], color=INK)
axes.axhline(floor, ls="--", color=RESIDUAL)
axes.annotate(
    "lowest possible",
    (config.steps, floor),
    (0, 5),
    textcoords="offset points",
    ha="right",
    color=RESIDUAL,
)
axes.set(xlabel="step", ylabel="loss a token", ylim=(0, None), xlim=(0, config.steps))
plt.show()

# %% [markdown]
# ## Ten captions it has never seen
#
# We take every hundredth of the test captions, and so choose neither the good ones nor the bad ones.

# %% tags=["nbval-ignore-output"]
translations = write(model, tokenizer, [pair.source for pair in test])
for pair, ours in list(zip(test, translations))[::100]:
    print("German:   ", pair.source)
    print("ours:     ", ours)
    print("reference:", pair.target)
    print()

# %% [markdown]
# ## The score
#
# **BLEU** {cite:p}`papineni2002bleu` counts the runs of one to four words that a translation shares with a human's, from 0 to 100. We use sacreBLEU {cite:p}`post2018call`, which
# takes plain text and prints a signature, so that others can compute the same number. A score without one means little: the way of
# cutting text into words alone can move it by more than a point.

# %% tags=["nbval-ignore-output"]
metric = sacrebleu.BLEU()
score = metric.corpus_score(translations, [[pair.target for pair in test]])
print(f"BLEU on test_2016_flickr, greedy: {score.score:.1f}")
print(metric.get_signature())
assert score.score > 10

# %% [markdown]
# That is what two minutes on two cores buy. Read the ten captions above against the number. The frame of a sentence is right most of the time. Rare words are not: the model has seen
# each of them a few times only, and spells what it does not know from pieces.
#
# ## What to remember
#
# - The decoder reads the true words and says the next: input and answer are the same sentence, one place apart.
# - The loss is a mean over tokens, so sums and counts are kept apart until the end.
# - First a task that cannot fail, in seconds. Then the real one.
# - Weights are saved as numbers, never as a pickle. A file appears under its name only when it is whole.
# - A score is worth something with its signature, on text that the model has never seen.
