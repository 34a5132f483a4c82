# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Command line
#
# This chapter puts all that the book has built behind one command: preparing a corpus, training, averaging, translating, scoring and exporting (sections 5 and 6.1 of the paper).
#
# A notebook is a good place to understand a model and a bad place to use one. It cannot stand in a pipe, nobody can start it on a server over night, and the order in which its cells were run is its owner's secret. From a shell, four commands do most of the work:
#
# ```
# annotated-transformer train --corpus multi30k --preset mini --output my-run
# annotated-transformer average --run my-run --last 5 --output my-model
# annotated-transformer evaluate --model my-model --corpus multi30k
# echo "Ein Hund läuft über die Wiese." | annotated-transformer translate --model my-model
# ```
#
# Two more are for the ends of the road: `prepare` makes a [corpus too large for memory](20_shards.ipynb) ready, and `export` hands a model to another engine. And each command that computes runs on one processor, one GPU or many.
#
# There is no new mathematics in this chapter, and nearly no new work: reading, training, searching and scoring are functions that we have. What is left are the decisions between a function and a person who types. Where do options come from? What goes to which output? What happens if the input is wrong, or if somebody pulls the plug?

# %% tags=["export"]
import codecs
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from torch import nn

# %% [markdown]
# From the chapters before, it needs one or two names of each step on the way: pairs, tokenizer, model, training, translation, score.

# %% tags=["export"]
from annotated_transformer.corpus import (
    MissingData,
    Pair,
    Splits,
    clean,
    grammar,
    multi30k,
    read_pairs,
    split_pairs,
)
from annotated_transformer.batching import BatchPlan, Example, encode_pairs, plan_batches, shapes_of
from annotated_transformer.decoding import next_logits, translate
from annotated_transformer.evaluation import paper_style_bleu, score

# %% [markdown]
# And from the chapters on speed and size, what makes the same work for eight GPUs and millions of pairs.

# %% tags=["export"]
from annotated_transformer.many_gpus import Processes, find_device, deal, gather_texts, processes
from annotated_transformer.serving import export_ctranslate2
from annotated_transformer.shards import Shards, prepare_corpus
from annotated_transformer.speed import (
    PEAKS,
    FastObjective,
    Precision,
    batch_shapes,
    best_precision,
    compiled,
    compiled_reader,
    estimate,
    known_peak,
    measured_peak,
    warm_up,
)
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import (
    LOG,
    TRAINING,
    Progress,
    Stopped,
    TrainingConfig,
    average_checkpoints,
    load_model,
    save_model,
    train,
    write_text,
)
from annotated_transformer.transformer import Transformer, TransformerConfig, preset

# %%
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib.resources import files

import matplotlib.pyplot as plt

from annotated_transformer.figures import INK, QUERY, RESIDUAL, style

# %% [markdown]
# ## Four commands and the files between them
#
# The commands do not call each other. They meet in files, so each can run on another day or another machine, and one can look at what lies in between.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-commands", "caption": "Which command writes what, and which one reads it? Commands in boxes, files and streams without. `train` leaves a folder with checkpoints and a model of its own; `average` makes a better one from the last checkpoints. The pairs that `train` has put aside wait in `test.tsv` for `evaluate`."}, "image": {"alt": "Pairs go into train, which fills the folder my-run. From there, average makes my-model. Translate reads it and standard input, and evaluate reads it and test.tsv."}}
style()
figure, axes = plt.subplots(figsize=(9.5, 3), layout="constrained")
places = {
    "pairs": (0, 1), "train": (1, 1), "my-run/": (2, 1), "average": (3, 1), "my-model/": (4, 1),
    "text.de": (4, 2), "translate": (5, 2), "text.en": (6, 2),
    "test.tsv": (2, 0), "evaluate": (5, 0), "scores": (6, 0),
}  # fmt: skip
box = {"boxstyle": "round,pad=0.5", "fc": "none", "ec": QUERY}
for name, place in places.items():
    look = {"bbox": box, "color": QUERY} if name in "train average translate evaluate" else {}
    axes.text(*place, name, ha="center", va="center", **{"color": INK, **look})
for way in (
    "pairs train my-run/ average my-model/", "my-model/ translate text.en", "text.de translate",
    "my-model/ evaluate scores", "my-run/ test.tsv evaluate",
):  # fmt: skip
    for start, end in pairwise(way.split()):
        arrow = {"arrowstyle": "->", "color": RESIDUAL, "shrinkA": 30, "shrinkB": 30}
        axes.annotate("", places[end], places[start], arrowprops=arrow)
axes.set(xlim=(-0.4, 6.4), ylim=(-0.3, 2.3))
axes.set_axis_off()
plt.show()

# %% [markdown]
# | file | what it holds | who writes it | who reads it |
# |---|---|---|---|
# | `manifest.json`, `train-0000.tokens.npy` and others | a [prepared corpus](20_shards.ipynb) | `prepare` | `train` |
# | `model.safetensors` | weights | `train`, `average` | `translate`, `evaluate` |
# | `config.json`, `tokenizer.json` | the shape of the model; its vocabulary | `train`, `average` | `average`, `translate`, `evaluate` |
# | `checkpoints/` | weights and the optimizer's moments, every few hundred steps | `train` | `train`, to go on; `average` |
# | `training.json` | all settings of the run | `train` | `train`, to refuse others; copied by `average` |
# | `log.jsonl` | loss, speed and scores, one line a report | `train` | you; copied by `average` |
# | `averaged.json` | the mean of how many checkpoints it is | `average` | you |
# | `validation.tsv`, `test.tsv` | pairs put aside, if they came from your own files | `train`, `prepare` | `evaluate` |
#
# A folder with the first three files is a model, whichever command made it. So `translate` also takes `my-run`, where `train` leaves, at its end, the weights with the best score on the validation pairs.
#
# ## A command is a dataclass
#
# With Python's own `argparse` an option lives in three places: a line that declares it with a type, a help text beside it, and the code that uses it under the same name, spelled once more. Sooner or later the three disagree, and no tool notices.
#
# Here each command is a frozen dataclass, and its fields are the options. `tyro` makes the parser from the types and the help from the docstrings below the fields. So an option has one place. A type checker knows it, and a misspelled `command.vocabulary_sise` is found before anything runs.
#
# *Frozen* means that nobody can change an option once it is read. If a function somewhere put another number of steps into the command, then what the user typed, what `training.json` says and what was done would be three things.
#
# ### Why not a configuration file?
#
# A file of settings is pleasant if there are hundreds of them. We have about twenty, and nearly all have defaults. A command fits into one line of a model's card or of a question to a colleague, and whoever copies the line repeats the run. The settings of model and training are stored anyway, in `training.json`.
#
# ### The options for pairs
#
# Two commands read pairs, so what to read is a group of options of its own:


# %% tags=["export"]
@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] = "grammar"
    """A corpus of the book, German to English."""
    data: tuple[Path, ...] = ()
    """Your own pairs in place of it: one TSV, or two text files; plain, .gz or .zip."""
    prepared: Path | None = None
    """Folder that `prepare` has filled, in place of both."""
    columns: tuple[int, int] = (0, 1)
    """Columns of source and target in a TSV, counted from 0."""
    reverse: bool = False
    """Translate the other way round."""
    limit: int | None = None
    """Use so many pairs at most, the first ones."""


# %% [markdown]
# The types do most of the work. `Literal` allows the two names and nothing else. `tuple[Path, ...]` takes any number of files behind one `--data`, and `tuple[int, int]` exactly two numbers. `bool` becomes the pair `--reverse` and `--no-reverse`. `int | None` is a number that may be left out.
#
# `columns` are counted from 0, as everywhere in Python. Tables from Tatoeba have English first, so German to English is `--columns 1 0`. `reverse` turns any corpus round, so that one pair of files serves both directions. `limit` is for trying things out. On Multi30k, `train` shortens the training part only, so that scores remain comparable; `evaluate` translates only so many sentences.

# %%
data = tyro.cli(Data, args=["--data", "text.de", "text.en", "--reverse"])
print([path.name for path in data.data], data.reverse, data.columns, data.limit)

# %% [markdown]
# What comes out is a `Data`, with paths and numbers and no strings to take apart. Had we asked for `--corpus wmt14`, `tyro` would have ended the program with the list of allowed names.
#
# ### On which machine?
#
# Everything that computes can do so on a processor or on a GPU. What the commands choose by themselves is what [the chapter on speed](21_speed.ipynb) found best: a GPU if there is one, numbers of 16 bits if its hardware has them, compiled code on a GPU. Each choice can be overruled.


# %% tags=["export"]
@dataclass(frozen=True)
class Machine:
    """What to compute on, and how."""

    device: str | None = None
    """cpu or cuda; if not given, a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Numbers of products in training; auto: bf16 where the hardware has it."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the model's layers before training; auto: on a GPU."""


# %% [markdown]
# None of this is a setting of the run. A training that was begun on eight GPUs may go on with one, and one that was begun with 16 bits with 32. The log says which device and how many processes each part of it was made with.
#
# ### The options of the commands
#
# A training has options about its data, about its model, and the settings of the training loop. The last are a dataclass already, [`TrainingConfig`](14_training.ipynb). It is taken over whole, docstrings included, so an option that is added there appears here by itself.


# %% tags=["export"]
@dataclass(frozen=True)
class Train:
    """Train a model in a folder; the same command again goes on where it stopped."""

    output: Path
    """Folder for log, checkpoints and model; made if it is not there."""
    data: tyro.conf.OmitArgPrefixes[Data] = field(default_factory=Data)
    """What to learn from."""
    preset: str = "tiny"
    """Shape of the model: tiny, mini, small, base, big, or a row of the paper's Table 3."""
    dropout: float | None = None
    """Share of numbers dropped in training, if not the preset's."""
    vocabulary_size: int = 2000
    """Entries of the vocabulary."""
    training: tyro.conf.OmitArgPrefixes[TrainingConfig] = field(default_factory=TrainingConfig)
    """How to train; the defaults go with the preset."""
    machine: tyro.conf.OmitArgPrefixes[Machine] = field(default_factory=Machine)
    """Where to train."""
    tensorboard: bool = False
    """Write the log for TensorBoard, too, into the folder `tensorboard` of the output."""
    dry_run: bool = False
    """Say what the training will be made of and how long it may take, and do nothing."""
    gpus: int | None = None
    """For --dry-run: as many GPUs, in place of those found."""
    gpu: str | None = None
    """For --dry-run: GPUs of this kind, such as H100, in place of those found."""


# %% [markdown]
# A dataclass inside a dataclass would give options such as `--training.steps`. `OmitArgPrefixes` leaves the first part away, at a price: no two groups may have an option of the same name. `output` has no default, and so it must be given. A training takes hours, and its folder should not be named by accident.
#
# `preset` is plain text and no `Literal`, since its names include every row of the paper's Table 3. The function [`preset`](08_transformer.ipynb) knows them, and its error lists them. `dropout` is `None` unless it is given, which means: whatever the preset says.

# %%
command = tyro.cli(Train, args=["--output", "my-run", "--limit", "500", "--steps", "40"])
print(command.output.name, command.preset, command.data.limit, command.training.steps)

# %% [markdown]
# Flat on the command line, nested in the program. Averaging needs a folder to read, one to write, and how many checkpoints; the paper takes five for its base model.


# %% tags=["export"]
@dataclass(frozen=True)
class Average:
    """Average the last checkpoints of a training into a model."""

    run: Path
    """Folder of the training."""
    output: Path
    """Folder for the model."""
    last: int = 5
    """How many checkpoints."""
    half: bool = False
    """Store the weights in half precision, in half the space."""


# %% [markdown]
# With `--half` a weight is stored in two bytes, not four. Such a number keeps 11 binary digits, so it is off by at most one part in $2^{11} = 2{,}048$ (tiny ones, below 0.00006, by somewhat more). When the model is loaded the weights become four bytes again, so nothing is computed in half precision.
#
# Translating and scoring share the two numbers of [beam search](15_decoding.ipynb), with the paper's values as defaults.


# %% tags=["export"]
@dataclass(frozen=True)
class Translate:
    """Translate standard input to standard output, line for line."""

    model: Path
    """Folder of a trained model."""
    beam: int = 4
    """Hypotheses kept at each step; 1 is greedy."""
    alpha: float = 0.6
    """Exponent of the length penalty; 0 for none."""
    device: str | None = None
    """cpu or cuda; if not given, a GPU if there is one."""
    compile: bool = False
    """Compile the decoder first: for many sentences, on a GPU."""


# %% tags=["export"]
@dataclass(frozen=True)
class Evaluate:
    """Translate sentences that have a reference, and score the translations."""

    model: Path
    """Folder of a trained model."""
    data: tyro.conf.OmitArgPrefixes[Data] = field(default_factory=Data)
    """What to translate: all of your own files, or a split of a corpus."""
    split: Literal["train", "validation", "test"] = "test"
    """Which part of a corpus."""
    seed: int = 0
    """Seed of the training, which divided the grammar."""
    beam: int = 4
    """Hypotheses kept at each step; 1 is greedy."""
    alpha: float = 0.6
    """Exponent of the length penalty; 0 for none."""
    output: Path | None = None
    """File for the translations, one a line."""
    json: bool = False
    """Print one line of JSON."""
    device: str | None = None
    """cpu or cuda; if not given, a GPU if there is one."""
    compile: bool = False
    """Compile the decoder first: for many sentences, on a GPU."""


# %% [markdown]
# `seed` needs a word. The grammar's pairs are drawn and divided by a seed, that of the training. To score a model on sentences that it has not learned, `evaluate` must divide in the same way. With another seed, some of its "test" sentences may be ones that the model was trained on, and the score is too good. The same holds for `--reverse`. With your own files the question does not come up, since `test.tsv` holds what was put aside.
#
# `beam`, `alpha` and `device` stand in two classes. One could make a third class of them, as with `Data`. For three options it is not worth it: a reader would have to look in one place more.
#
# Two commands are left. `prepare` takes the name of a corpus without an option's name before it, since `prepare wmt14-en-de` is how one would say it. All that it can do is told in [large corpora](20_shards.ipynb).


# %% tags=["export"]
@dataclass(frozen=True)
class Prepare:
    """Make a large corpus ready for training: fetch, clean, encode; goes on where it stopped."""

    corpus: tyro.conf.Positional[str]
    """wmt14-en-de, wmt14-en-fr, or a catalog of your own: a JSON file with addresses."""
    output: Path | None = None
    """Folder for it; if not given, one with the name of the corpus."""
    vocabulary_size: int | None = None
    """Entries of the joint vocabulary, if not as many as suit the corpus."""
    tokenizer: Path | None = None
    """A tokenizer.json to use, in place of learning one."""
    limit: int | None = None
    """Use so many pairs at most, to try things out."""


@dataclass(frozen=True)
class Export:
    """Write a model for another engine."""

    model: Path
    """Folder of a trained model."""
    output: Path
    """Folder for the exported one."""
    format: Literal["ctranslate2"] = "ctranslate2"
    """Which engine."""


# %% [markdown]
# ## Reading pairs
#
# First, a word to the person at the terminal. It goes to *standard error*, the second of the two outputs that every program has. The first is for results. In `annotated-transformer translate < text.de > text.en` the file gets the results, and messages still appear on the screen. `flush` sends each line at once. Otherwise messages from a program that is killed may never be seen. Where [many processes](22_many_gpus.ipynb) share a command, the first of them speaks for all; `torchrun` gives each its number in `RANK`.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


# %% [markdown]
# Your own pairs stand in one table or in two files; [the corpus](09_corpus.ipynb) has a function that reads either. That there are no more than two is a rule that the type `tuple[Path, ...]` cannot express, so it is checked here.


# %% tags=["export"]
def read_files(data: Data) -> list[Pair]:
    """Return the pairs of the reader's own files."""
    if len(data.data) > 2:
        raise ValueError(f"--data takes one TSV or two text files, not {len(data.data)} files")
    target = data.data[1] if len(data.data) == 2 else None
    return read_pairs(data.data[0], target, data.columns)


def turned(pairs: Sequence[Pair], data: Data) -> list[Pair]:
    """Return the pairs, the other way round if asked."""
    return [Pair(pair.target, pair.source) if data.reverse else pair for pair in pairs]


# %% [markdown]
# Training needs pairs for three purposes: to learn from, to choose by while training, and to measure on at the end. Multi30k comes divided, and its parts stay as they are: a score on a test set of one's own making cannot be compared with anyone's. All other pairs we divide ourselves, one in a hundred for each of the two smaller parts.
#
# Pairs of your own are cleaned first, with a report of what was dropped, since a table from the web has empty lines and repetitions. They are turned round before they are divided, because [`split_pairs`](09_corpus.ipynb) sees to it that no *source* sentence is in two parts, and which side is the source must be settled by then. The grammar can make as many pairs as one likes, and makes 10,000 unless `--limit` says otherwise.


# %% tags=["export"]
def read_data(data: Data, seed: int) -> Splits:
    """Return pairs to learn from, to choose by and to measure on, as a command asks for them."""
    if data.data:
        pairs, dropped = clean(read_files(data))
        say(f"{len(pairs):,} pairs; dropped: {dropped}")
        return split_pairs(turned(pairs[: data.limit], data), 0.01, 0.01, seed)
    if data.corpus == "grammar":
        return split_pairs(turned(grammar(data.limit or 10_000, seed), data), 0.01, 0.01, seed)
    parts = [turned(multi30k(name), data) for name in ("train", "val", "test_2016_flickr")]
    return Splits(parts[0][: data.limit], *parts[1:])


# %%
splits = read_data(Data(limit=1000), seed=0)
print({name: len(part) for name, part in splits._asdict().items()})
back = read_data(Data(limit=1000, reverse=True), seed=0)
print(splits.train[0].source, "|", back.train[0].source)

# %% [markdown]
# Two things can be seen. The counts are not exactly 10, since each sentence is put into a part by its hash, and one in a hundred is meant on average. And a part so small says little: with the 10,000 pairs of the default there are about a hundred to choose by and a hundred to measure on, and even those give a rough number. [Evaluation](16_evaluation.ipynb) says how rough.
#
# ## Training
#
# While it trains, a model is watched by a score that means more than the loss: the BLEU of its translations of the validation pairs. They are made greedily. A beam of four takes longer at each validation, and to see which of two checkpoints is better, greedy translations will do.


# %% tags=["export"]
def translate_together(
    team: Processes, model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str],
    beam: int = 4, alpha: float = 0.6, compile: bool = False,
) -> list[str]:  # fmt: skip
    """Translate sentences, each process its share of them; all processes get all translations."""
    mine = translate(
        model, tokenizer, sentences[team.rank :: team.size], beam, alpha,
        max_tokens=16_384 if team.device.type == "cuda" else 2048,
        read=compiled_reader(team.device) if compile else next_logits,
    )  # fmt: skip
    together = [""] * len(sentences)
    for rank, share in enumerate(gather_texts(mine)):
        together[rank :: team.size] = share
    return together


def validation_bleu(
    team: Processes, tokenizer: Tokenizer, pairs: Sequence[Pair]
) -> Callable[[Transformer], float]:
    """Return a function that scores a model by its greedy translations of pairs."""
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]

    def bleu(model: Transformer) -> float:
        translations = translate_together(team, model, tokenizer, sources, beam=1)
        return score(translations, references).bleu

    return bleu


# %% [markdown]
# The function returns a function: `train` wants something that takes a model and gives a number, and has no idea of sentences. The sentences are bound inside. All processes must come to the same score, or one of them would stop early and the rest wait for it. So each translates every `size`-th sentence, and then all get all.
#
# The pairs put aside for the end are written to a table, before the first step. So a run that is stopped early can be measured too. In the table the source is column 0, whatever the original files looked like. `evaluate` can read it without `--columns` and without `--reverse`. No tab or line break can spoil the table, as cleaning has made every run of white space a single space.


# %% tags=["export"]
def keep_tsv(pairs: Sequence[Pair], path: Path) -> None:
    """Write pairs as a table of two columns for `evaluate`, if the file is not there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_text(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))


def progress_teller(steps: int) -> Callable[[Progress], None]:
    """Return what says, at each validation, how training goes and how long it still takes."""
    reports: list[tuple[float, int]] = []

    def tell(progress: Progress) -> None:
        reports.append((time.monotonic(), progress.step))
        (begun, first), (now, step) = reports[0], reports[-1]
        if progress.score is None:
            return
        pace, left = (now - begun) / max(1, step - first), ""
        if step > first:
            left = f", {timedelta(seconds=round(pace * (steps - step)))} left"
        say(
            f"step {step}, epoch {progress.epoch:.1f}: loss {progress.loss:.3f}, "
            f"validation loss {progress.validation_loss:.3f}, BLEU {progress.score:.1f}, "
            f"{progress.tokens_per_second:,.0f} target tokens a second{left}"
        )

    return tell


# %% [markdown]
# `train` reports every 50 steps, and once in a while with a score. At a terminal there is a progress bar in between. In a log file that someone will read tomorrow, one line for each validation is enough. The time that is left is estimated from the pace since the first report, validations included. The steps before it do not count: there, a GPU's code is still being compiled.
#
# TensorBoard draws such numbers while they come in. It is optional, and what is missing is said in one line. The folder's `log.jsonl` remains the record: these files are made from it and can be thrown away.


# %% tags=["export"]
def tensorboard_writer(folder: Path) -> Callable[[Progress], None]:
    """Return what writes reports for TensorBoard; raises ValueError if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        remedy = 'pip install "annotated-transformer[train]"'
        raise ValueError(f"--tensorboard needs the package tensorboard: {remedy}") from None
    writer = SummaryWriter(folder)

    def write(progress: Progress) -> None:
        for name, value in progress._asdict().items():
            if value is not None and name != "step":
                writer.add_scalar(name, value, progress.step)
        writer.flush()

    return write


# %% [markdown]
# ### What goes with which model?
#
# The defaults of [`TrainingConfig`](14_training.ipynb) suit a tiny model and a small corpus. With `--preset base` they would be far off, and nobody should have to copy the paper's numbers by hand. So a preset brings settings along: for the paper's own models those of the paper. Its base model was trained for 100,000 steps with batches of about 25,000 tokens a side and 4,000 steps of warm-up, the big one for 300,000. They wrote a checkpoint every ten minutes. At their 0.4 seconds a step that is every 1,500 steps, and we count steps: what is averaged at the end should not depend on how fast a machine is. Two rows of Table 3 are about label smoothing, and here is where they differ.


# %% tags=["export"]
PAPER_TRAINING = TrainingConfig(
    steps=100_000, max_tokens=25_000, warmup=4000, factor=1.0, save_every=1500, keep=5
)


def recipe(name: str) -> TrainingConfig:
    """Return the settings that go with a preset: the paper's for its own models (section 5)."""
    if name in ("tiny", "mini", "small"):
        return TrainingConfig()
    if name == "big":
        return replace(PAPER_TRAINING, steps=300_000, keep=20)
    smoothing = name.partition("smoothing")[2]
    return replace(PAPER_TRAINING, smoothing=float(smoothing)) if smoothing else PAPER_TRAINING


# %%
for name in ("tiny", "base", "big", "D-smoothing0.2"):
    config = recipe(name)
    print(name, config.steps, config.max_tokens, config.warmup, config.factor, config.smoothing)

# %% [markdown]
# ### What is trained on
#
# From wherever the pairs come, a training needs a tokenizer, pairs to learn from and pairs to watch. A prepared corpus has all three. All others are read, divided, and a vocabulary is learned from the training part.
#
# What happens on the way, in order:
#
# 1. **Read and divide** the pairs, and say how many there are. Bad input ends the command here, before any work.
# 2. **Write `validation.tsv` and `test.tsv`**, for pairs of your own: the first to choose by, the second to measure on. A file that is there already stays: if this command is not allowed to go on with the folder, nothing of the old run is lost.
# 3. **Choose whom to watch**: at most 2,000 validation pairs, and no score at all where a small corpus has none. More would make each validation slow. They are taken at even distances from all over the file, since files are often sorted, by length or by topic, and the first 2,000 would be like each other. With 4,500 pairs the distance is $1 + \lfloor 4{,}500 / 2{,}000 \rfloor = 3$, which leaves 1,500.
# 4. **Learn the vocabulary**, from the training part alone. Each process learns it for itself: the same text gives the same vocabulary, and sending it round would be one thing more that can fail.
#
# The rest is done with it:
#
# 5. **Set the seed** and make the model. `torch.manual_seed` changes the random numbers of the whole process. A library must not do that behind its user's back, so no other function of the package leaves such a trace. A command owns its process, and here the first weights are drawn.
# 6. **Train.** Everything else is the work of [`train`](14_training.ipynb).
#
# First a refusal. The direction of a prepared corpus is written into its shards. Whoever asks for the other one with `--reverse` would get the old one, and a model that translates the wrong way without a word of warning.


# %% tags=["export"]
def check_direction(data: Data) -> None:
    """Raise ValueError if a prepared corpus is to be turned round, which is too late for it."""
    if data.reverse or data.data:
        raise ValueError(
            f"{data.prepared} was prepared in one direction and stands for itself: leave --reverse "
            "and --data away, or prepare another corpus"
        )


# %% [markdown]
# Whatever the source, what comes out has the same three parts. Of a prepared corpus, the first process reads every byte once and compares hashes; the others look at the sizes of the files only, as one check of a disk is enough.


# %% tags=["export"]
class Material(NamedTuple):
    """What a training needs of a corpus: tokenizer, pairs to learn from and pairs to watch."""

    tokenizer: Tokenizer
    train: Sequence[Example]
    validation: Sequence[Pair]


def read_prepared(folder: Path, limit: int | None, check: bool) -> Material:
    """Return the material of a prepared corpus; `check` reads all of it once, for damages."""
    shards = Shards(folder, check)
    say(f"{len(shards):,} pairs for train")
    validation = read_pairs(folder / "validation.tsv")
    return Material(shards.tokenizer, shards[:limit] if limit else shards, validation)


def read_material(command: Train, first: bool) -> Material:
    """Return what to train on; the first process writes down what it has put aside."""
    if command.data.prepared is not None:
        check_direction(command.data)
        return read_prepared(command.data.prepared, command.data.limit, first)
    splits = read_data(command.data, command.training.seed)
    say(", ".join(f"{len(part):,} pairs for {name}" for name, part in splits._asdict().items()))
    if command.data.data and first and not command.dry_run:
        for part in ("validation", "test"):
            keep_tsv(getattr(splits, part), command.output / f"{part}.tsv")
    tokenizer = Tokenizer.train(splits.train, command.vocabulary_size)
    return Material(tokenizer, encode_pairs(tokenizer, splits.train), splits.validation)


# %% [markdown]
# The model goes to its device, and what computes its loss is made [fast](21_speed.ipynb): products in the precision that the hardware likes best, and compiled layers on a GPU. Before the training begins, a GPU computes a few batches that do not count, the largest among them. So nothing is compiled later, and if a batch does not fit into its memory, that is known after a minute and not after hours.


# %% tags=["export"]
def make_objective(
    command: Train, model: Transformer, material: Material, team: Processes
) -> nn.Module:
    """Return what computes the loss of a model, as fast as its machine allows."""
    machine, gpu = command.machine, team.device.type == "cuda"
    precision = best_precision(team.device) if machine.precision == "auto" else machine.precision
    objective = FastObjective(model, command.training.smoothing, precision)
    if machine.compile == "yes" or (machine.compile == "auto" and gpu):
        say("compiling the layers")
        compiled(objective)
    if gpu or machine.compile == "yes":
        lengths = shapes_of(material.train)
        plan = team.arrange(plan_batches(lengths, command.training.max_tokens, seed=0, epoch=0))
        warm_up(objective, batch_shapes(plan))
    return objective


# %% [markdown]
# Who is told of the progress? The person at the terminal, and TensorBoard if it was asked for.


# %% tags=["export"]
def reporter(command: Train) -> Callable[[Progress], None]:
    """Return what gets the reports of a training."""
    tell = [progress_teller(command.training.steps)]
    if command.tensorboard:
        tell.append(tensorboard_writer(command.output / "tensorboard"))

    def report(progress: Progress) -> None:
        for some in tell:
            some(progress)

    return report


# %% [markdown]
# The call of [`train`](14_training.ipynb) itself has no decision left to make. Each argument was settled above.


# %% tags=["export"]
def train_together(
    command: Train, config: TransformerConfig, material: Material, team: Processes
) -> None:
    """Train a model, or go on with it, in as many processes as there are."""
    torch.manual_seed(command.training.seed)
    model = Transformer(config).to(team.device)
    watched = material.validation[:: 1 + len(material.validation) // 2000]
    train(
        model,
        material.tokenizer,
        material.train,
        command.training,
        validation=material.validation,
        score=validation_bleu(team, material.tokenizer, watched) if watched else None,
        folder=command.output,
        report=reporter(command),
        objective=make_objective(command, model, material, team),
        team=team,
    )


# %% [markdown]
# ### What will it take?
#
# Before a GPU is rented for a night, one wants to know what for. `--dry-run` reads the corpus, makes the plan of an epoch, and prints what [speed](21_speed.ipynb) can say of it in advance: parameters, steps, operations, memory and hours. It starts nothing and writes nothing. With `--gpus 8 --gpu H100` it speaks of GPUs that one does not have yet.
#
# The hours rest on a guess: that training gets a fifth of what the GPUs' data sheet promises. That is the aim for one large GPU, and with many small steps it will be less. The first lines of a real training say how it is.


# %% tags=["export"]
ASSUMED_SHARE, CPU = 0.2, "this processor"  # of a GPU's peak; the name of what is none


def gpus_of(command: Train, team: Processes) -> tuple[str, int, float]:
    """Return name, number and peak operations a second of the GPUs named or found, or the CPU's."""
    name = command.gpu or (torch.cuda.get_device_name() if team.device.type == "cuda" else "")
    count = command.gpus or (max(1, torch.cuda.device_count()) if not command.gpu else 1)
    if not name:
        return CPU, 1, measured_peak(team.device)
    if (peak := known_peak(name)) is None:
        raise ValueError(f"the peak of {name!r} is not known: take one of {', '.join(PEAKS)}")
    return name, count, peak


# %% [markdown]
# A batch is dealt to all GPUs, so the memory of each is that of its share. The largest batch decides.


# %% tags=["export"]
def memory_each(
    config: TransformerConfig, plan: list[BatchPlan], count: int, precision: Precision
) -> float:
    """Return the GiB that training takes on each of `count` GPUs that share the batches."""
    shares = [deal(batch, 0, count) for batch in plan]
    return sum(estimate(config, shares, 1, 1, precision).memory.values()) / 2**30


# %% tags=["export"]
def say_plan(
    command: Train, config: TransformerConfig, material: Material, team: Processes
) -> None:
    """Print what a training will be made of and how long it may take."""
    run, (name, count, peak) = command.training, gpus_of(command, team)
    precision = best_precision(team.device) if name == CPU else "bf16"
    plan = plan_batches(shapes_of(material.train), run.max_tokens, seed=0, epoch=0)
    found = estimate(config, plan, run.steps, run.accumulate, precision)
    size, hours = (
        memory_each(config, plan, count, precision),
        found.hours(peak, count, ASSUMED_SHARE),
    )
    epochs = run.steps * run.accumulate / len(plan)
    print(f"parameters  {found.parameters:,}")
    print(f"steps       {run.steps:,} of {run.accumulate} x {run.max_tokens:,} tokens a side")
    print(f"epochs      {epochs:.1f}, of {len(plan):,} batches")
    print(f"operations  {found.operations:.2e}")
    print(f"memory      {size:.1f} GiB on each of {count} x {name}, {precision}")
    print(f"time        {hours:.1f} hours, if it gets {ASSUMED_SHARE:.0%} of {peak:.2e} a second")


# %% [markdown]
# And this is the command. It joins the processes, if there are several, reads, and then trains or only says what training would take.


# %% tags=["export"]
def run_train(command: Train) -> None:
    """Train a model, go on with it, or say what that would take."""
    with processes(command.machine.device) as team:
        material = read_material(command, team.rank == 0)
        changes = {} if command.dropout is None else {"dropout": command.dropout}
        config = preset(command.preset, vocabulary_size=len(material.tokenizer), **changes)
        (say_plan if command.dry_run else train_together)(command, config, material, team)


# %% [markdown]
# ### How do I go on with a training that was stopped?
#
# With the same command. All steps above are repeated, and each gives the same result as before: the same pairs, the same parts, the same vocabulary. `train` then finds checkpoints in the folder, takes the last one, and goes on [to the bit](14_training.ipynb). If the files have changed in the meantime, the pairs or the vocabulary have another SHA-256, and there is an error in place of a mixture.
#
# ### How do I make it longer?
#
# With the same command and more `--steps`. The [learning rate](12_schedule.ipynb) depends on the step and the warm-up, not on where the training ends, so the longer run is the one that it would have been from the start. `--save-every`, `--keep` and `--patience` may change too. Any other change is another training, and is refused.
#
# ### How many steps should I ask for?
#
# Think in epochs, and let the corpus say how many steps they are. In [batching](11_batching.ipynb) the 29,000 captions made 527 batches of 1,024 tokens, so 30 epochs are $30 \cdot 527 = 15{,}810$ steps. Twice the tokens in a batch means half the steps for the same epochs. Each line of progress says how far it has come, in steps and in epochs. If you cannot tell, ask for many and add `--patience 5`: five validations in a row without a better score end the training.
#
# ### How do I leave it running over night?
#
# ```
# nohup annotated-transformer train --corpus multi30k --preset mini --output my-run 2> progress.txt &
# ```
#
# `nohup` keeps it alive when the terminal closes, and `&` gives the terminal back. Progress goes to standard error, so `2>` is what puts it into a file. Since that is no terminal, the progress bar stays away. `tail -f progress.txt` shows the last lines, and `kill` with the number of the process ends it politely: it finishes its step and writes a checkpoint. Two trainings cannot get into each other's way, as the [folder is locked](14_training.ipynb) while one is at work.
#
# ### Can it use a GPU, or many?
#
# Yes, one without being asked. For many, `torchrun` starts the same command in as many processes, and they [share the batches](22_many_gpus.ipynb):
#
# ```
# torchrun --standalone --nproc-per-node 8 -m annotated_transformer train --prepared wmt14-en-de --preset base --output base
# ```
#
# Number and kind of the machines are no settings of the run, so it may be begun on one and continued on eight.
#
# ## Averaging
#
# The averaged model gets a folder of its own, so the run stays as it is, and one may try other numbers of checkpoints. Log and settings are copied along. A model whose training nobody can look up is worth half as much, and run folders, with their large checkpoints, are deleted one day.


# %% tags=["export"]
def run_average(command: Average) -> None:
    """Average checkpoints and save the model, with the story of its training."""
    model, tokenizer = average_checkpoints(command.run, command.last)
    save_model(model, tokenizer, command.output, command.half)
    for name in (LOG, TRAINING):
        write_text(command.output / name, (command.run / name).read_text(encoding="utf-8"))
    write_text(command.output / "averaged.json", json.dumps({"last": command.last}))


# %% [markdown]
# ### Which model should I use, the last, the best or the average?
#
# `my-run` itself holds the best: the weights with the highest score on the validation pairs. The average is usually better still, and [training](14_training.ipynb) shows why. But not always: in a short run the older checkpoints are much worse than the last, and pull the average down. So compare the two on validation pairs, for a corpus of the book with `evaluate --split validation`, and keep the test pairs for the end.
#
# ## Translating
#
# One line in, one line out, and nothing else on standard output: then line 7 of the output is the translation of line 7 of the input, and the command can stand in a pipe. It sounds easy. But what is a line? Python's `splitlines` has its own opinion:

# %%
text = "Ein Hund\u2028läuft\x0büber die Wiese.\n"
print(len(text.splitlines()), "lines for Python,", text.count("\n"), "for all other tools")

# %% [markdown]
# There are ten characters at which `splitlines` cuts. Some of them, such as U+2028, turn up in text from the web, where nobody sees them. One such character, and all translations after it stand one line too low. No error is raised; only the score is strangely bad. Other toolkits have lost days to this. So we read bytes and cut at the line feed alone, as `wc -l` does. A carriage return before it, from a file made on Windows, is taken off, and so is the mark that Windows editors put before the first character.
#
# Reading bytes has a second use. What is no UTF-8 gets an error with the number of its line, and it gets it before any work is done.


# %% tags=["export"]
def read_lines(content: bytes) -> list[str]:
    """Return the lines of UTF-8 text; raises ValueError naming the first line that is none."""
    content = content.removeprefix(codecs.BOM_UTF8)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of the input is not UTF-8: {error.reason}") from error
    return [line.decode().rstrip("\r") for line in lines]


# %%
print(read_lines(text.encode()))
try:
    read_lines("gut\nschön\n".encode("latin-1"))
except ValueError as error:
    print(error)

# %% [markdown]
# A final line feed ends the last line and does not begin another one, so it is removed before the cut. An empty input has no lines at all, where `b"".split(b"\n")` would make one.
#
# On the way out the same rule holds: a translation must not contain a line feed. Our vocabulary has all 256 bytes, so a model could write one, and it becomes a space. The text goes out as bytes, too: a Windows console has another encoding than UTF-8, and a file should not depend on it. Empty lines stay empty: [`translate`](15_decoding.ipynb) passes over what has no words.


# %% tags=["export"]
def run_translate(command: Translate) -> None:
    """Translate standard input."""
    model, tokenizer = load_model(command.model)
    lines, team = read_lines(sys.stdin.buffer.read()), Processes(find_device(command.device))
    translations = translate_together(
        team, model.to(team.device), tokenizer, lines, command.beam, command.alpha, command.compile
    )
    sys.stdout.buffer.write(one_line_each(translations).encode())
    sys.stdout.buffer.flush()


def one_line_each(sentences: Sequence[str]) -> str:
    """Join sentences to a text with one on each line; a line feed inside becomes a space."""
    return "".join(" ".join(sentence.split("\n")) + "\n" for sentence in sentences)


# %% [markdown]
# ### Why does nothing come out until the input ends?
#
# Because all lines are read before the first is translated. Sentences of similar length are translated together, as in [batching](11_batching.ipynb), and put back in order at the end. To do that one must know them all. For a file this is the fast way. At a terminal, type the sentences and end the input with Ctrl-D.
#
# ## Scoring
#
# Which pairs? With your own files, all of them, just as they are: if a test set were cleaned, each sentence that a model finds hard might vanish as a fault. (So do not give it the file that you trained on; most of it was learned.) Otherwise it is a part of a corpus, divided as in training.


# %% tags=["export"]
def pairs_to_score(command: Evaluate) -> list[Pair]:
    """Return all pairs of the reader's own files, or a split of a corpus."""
    if command.data.prepared is not None:
        check_direction(command.data)
        if command.split == "train":
            raise ValueError("a prepared corpus has no text of its training pairs: take another")
        pairs = read_pairs(command.data.prepared / f"{command.split}.tsv")
    elif command.data.data:
        pairs = turned(read_files(command.data), command.data)
    else:
        pairs = getattr(read_data(command.data, command.seed), command.split)
    return pairs[: command.data.limit]


# %% [markdown]
# WMT14's test set exists twice: all of its 3,003 pairs, and 2,737 that were left after a filter. Papers have used both, seldom saying which. The full set is the one to report. Where the smaller one lies beside it, its pairs are scored too. Most of its sources are in the full set and have been translated already; only others are added.


# %% tags=["export"]
def filtered_pairs(command: Evaluate) -> list[Pair]:
    """Return the filtered test set of a prepared corpus, if it has one and the test was asked."""
    path = (command.data.prepared or Path()) / "test-filtered.tsv"
    asked = command.data.prepared is not None and command.split == "test"
    return read_pairs(path)[: command.data.limit] if asked and path.exists() else []


# %% [markdown]
# A score needs three things to mean something, and the command prints all of them: the number, the [signature](16_evaluation.ipynb) that says how it was computed, and how the translations were made. A program that reads the result gets the same as one line of JSON. Then `evaluate --json >> results.jsonl`, in a loop over beam sizes, makes a table that needs no copying by hand.


# %% tags=["export"]
def print_scores(command: Evaluate, record: dict[str, Any]) -> None:
    """Print scores and how they came about, for people or as one line of JSON."""
    if command.json:
        print(json.dumps(record))
        return
    print(f"BLEU  {record['bleu']:5.1f}  {record['bleu_signature']}")
    print(f"chrF2 {record['chrf']:5.1f}  {record['chrf_signature']}")
    if "filtered_bleu" in record:
        print(f"BLEU  {record['filtered_bleu']:5.1f}  on the {record['filtered']:,} filtered pairs")
        print(f"      {record['paper_style']:5.1f}  in the paper's style: not comparable with BLEU")
    print(
        f"{record['sentences']:,} sentences, beam {record['beam']}, alpha {record['alpha']}, "
        f"{record['seconds']:.1f} s"
    )


# %% [markdown]
# The clock runs around the translation alone, so that reading files and loading weights do not count. The translations can be kept in a file and looked at, which is worth more than a second decimal. The file can also be scored by another program, and must give the same number there.
#
# With `torchrun` in front, all processes translate, each its share, and the first one scores.


# %% tags=["export"]
def record_scores(
    command: Evaluate, pairs: list[Pair], filtered: list[Pair], found: Mapping[str, str]
) -> dict[str, Any]:
    """Return all scores of translations, found by their source, and what they were made with."""
    hypotheses, references = [found[pair.source] for pair in pairs], [pair.target for pair in pairs]
    record: dict[str, Any] = {"sentences": len(pairs), "beam": command.beam, "alpha": command.alpha}
    if not command.data.data:
        corpus = command.data.prepared.name if command.data.prepared else command.data.corpus
        record = {"corpus": corpus, "split": command.split, **record}
    record |= score(hypotheses, references)._asdict()
    if filtered:
        some = [found[pair.source] for pair in filtered]
        record["filtered_bleu"] = score(some, [pair.target for pair in filtered]).bleu
        record["filtered"] = len(filtered)
        record["paper_style"] = paper_style_bleu(hypotheses, references)
    return record


# %% tags=["export"]
def run_evaluate(command: Evaluate) -> None:
    """Translate, score, and print the scores."""
    pairs, filtered = pairs_to_score(command), filtered_pairs(command)
    model, tokenizer = load_model(command.model)
    if command.output is not None:
        command.output.parent.mkdir(parents=True, exist_ok=True)
    sources = list(dict.fromkeys(pair.source for pair in [*pairs, *filtered]))
    with processes(command.device) as team:
        start, model = time.perf_counter(), model.to(team.device)
        search = command.beam, command.alpha, command.compile
        made = translate_together(team, model, tokenizer, sources, *search)
        seconds = round(time.perf_counter() - start, 1)
        if team.rank > 0:
            return
    found = dict(zip(sources, made))
    if command.output is not None:
        write_text(command.output, one_line_each([found[pair.source] for pair in pairs]))
    print_scores(command, {**record_scores(command, pairs, filtered, found), "seconds": seconds})


# %% [markdown]
# ## Preparing and exporting
#
# Two commands are no more than a call.


# %% tags=["export"]
def run_prepare(command: Prepare) -> None:
    """Make a large corpus ready for training."""
    name = Path(command.corpus).stem if command.corpus.endswith(".json") else command.corpus
    prepare_corpus(
        command.corpus,
        command.output or Path(name),
        vocabulary_size=command.vocabulary_size,
        tokenizer=command.tokenizer,
        limit=command.limit,
        report=say,
    )


def run_export(command: Export) -> None:
    """Write a model for another engine; there is one so far."""
    model, tokenizer = load_model(command.model)
    export_ctranslate2(model, tokenizer, command.output)


# %% [markdown]
# ## One error, one line
#
# The six dataclasses together are the command line. From a union of classes `tyro` makes one command each, named after the class, and hands back an object of the one that was chosen. `match` then finds the function that goes with it.


# %% tags=["export"]
Command = Prepare | Train | Average | Translate | Evaluate | Export


def run_command(command: Command) -> None:
    """Do what a command says."""
    match command:
        case Prepare():
            run_prepare(command)
        case Train():
            run_train(command)
        case Average():
            run_average(command)
        case Translate():
            run_translate(command)
        case Evaluate():
            run_evaluate(command)
        case Export():
            run_export(command)


# %% [markdown]
# One thing `tyro` cannot know: that the defaults of a training go with its preset. So we look for `--preset` among the arguments before, and hand `tyro` a `Train` with the right defaults. The help shows them as well: `train --preset base --help` has the paper's numbers. Whatever is typed beside it still wins.


# %% tags=["export"]
def with_recipe(arguments: Sequence[str]) -> Any:
    """Return the union of commands, with the defaults of the preset that is asked for."""
    named = [two[1] for two in pairwise(arguments) if two[0] == "--preset"]
    named += [one.removeprefix("--preset=") for one in arguments if one.startswith("--preset=")]
    default = Train(output=tyro.MISSING, training=recipe(named[-1]) if named else TrainingConfig())
    with_default = Annotated[Train, tyro.conf.subcommand(name="train", default=default)]
    return Prepare | with_default | Average | Translate | Evaluate | Export


# %%
for name in ("mini", "big"):
    arguments = ["train", "--output", "run", "--preset", name, "--warmup", "100"]
    config = tyro.cli(with_recipe(arguments), args=arguments).training
    print(name, config.steps, config.max_tokens, config.warmup)

# %% [markdown]
# What is left is the end of a command, when something has gone wrong. A mistake of the user is not a bug of ours. It gets a sentence, without forty lines of traceback above it. A script that calls the command sees nothing of all this but the exit code, so the codes must tell the cases apart:
#
# | exit code | what happened | what is printed |
# |---|---|---|
# | 0 | all went well | the results |
# | 2 | an option or the input is wrong | one sentence: what, where, and what to do |
# | 141 | the program after it in a pipe has enough | nothing |
# | 143 | a training was asked to stop | the step, and that it can go on |
# | 1 | a bug | Python's traceback |
#
# The 2 is the custom for wrong usage. `tyro` uses it as well, for options that it cannot read, and shows their help. The 143 is 128 + 15: shells report a program that was ended by signal number $n$ as $128 + n$, and 15 is SIGTERM, the polite request to stop. A server sends it before it shuts down. Ctrl-C during a training is the same wish, and ends it with the same code.
#
# The kinds of errors that our chapters raise on purpose are caught: a wrong value, a file that cannot be read or written, missing data, a gradient that is not finite, too little memory, a package that is not installed. Others are not: a real bug should be loud. The line between the two is not perfect, as a `ValueError` may come from a bug too. Whoever suspects one calls `run_command` from Python and gets the traceback.


# %% tags=["export"]
MISTAKES = (ValueError, OSError, FloatingPointError, MemoryError, ImportError, MissingData)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and one line for bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = tyro.cli(with_recipe(arguments), prog="annotated-transformer", args=arguments)
    try:
        run_command(command)
    except Stopped as stopped:
        say(f"annotated-transformer: {stopped}")
        sys.exit(143)
    except BrokenPipeError:  # whoever read our output has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except MISTAKES as error:
        print(f"annotated-transformer: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


# %% [markdown]
# An error's text may have line breaks. `' '.join(...split())` makes one line of it, so that a log of many commands has one line for each failure.
#
# The name `annotated-transformer` in the shell is tied to `main` by two lines in `pyproject.toml`, and so is `python -m annotated_transformer`, which `torchrun` needs, by the two lines of `__main__.py`. Called with no arguments, it takes them from the shell. A test, or a notebook, can hand over a list.
#
# ### Can I have all this without the commands?
#
# Yes, they add nothing that Python could not reach:
#
# | command | the functions behind it |
# |---|---|
# | `train` | [`read_pairs`, `clean`, `split_pairs`](09_corpus.ipynb), [`Tokenizer.train`](10_tokenization.ipynb), [`train`](14_training.ipynb) |
# | `average` | [`average_checkpoints`, `save_model`](14_training.ipynb) |
# | `translate` | [`load_model`](14_training.ipynb), [`translate`](15_decoding.ipynb) |
# | `evaluate` | the same, and [`score`](16_evaluation.ipynb) |
# | `prepare` | [`prepare_corpus`](20_shards.ipynb) |
# | `export` | [`export_ctranslate2`](19_serving.ipynb) |
#
# ## A day in the life
#
# Here are the four commands in a row, on a corpus so small that it takes seconds. Standard input is a string for once. The function below calls `main` and collects what a shell would see: the exit code and the two outputs.


# %%
def run(*arguments, lines=""):
    """Call the command and return its exit code, standard output and standard error."""
    output, errors, code = io.TextIOWrapper(io.BytesIO()), io.StringIO(), 0
    standard_input, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(lines.encode()))
    try:
        with redirect_stdout(output), redirect_stderr(errors):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdin = standard_input
    output.flush()
    return code, output.buffer.getvalue().decode(), errors.getvalue()


# %% tags=["nbval-ignore-output"]
code, output, _ = run("train", "--help")
print(output[output.index("--steps INT") :][:600])
assert code == 0 and "Updates of the weights." in output

# %% [markdown]
# Every sentence of the help is a docstring; these are of `TrainingConfig`. (`tyro` looks them up in the source file of a class. In this notebook the dataclasses of the chapter have none, so their help would be bare. From the shell it is complete.) Now we train:

# %%
home = tempfile.TemporaryDirectory()
folder, averaged = f"{home.name}/run", f"{home.name}/averaged"
options = ("--limit", 500, "--steps", 40, "--save-every", 10, "--vocabulary-size", 500)
trained, _, told = run("train", "--output", folder, *options)
print("exit code", trained, "|", told.splitlines()[0])
print(sorted(path.name for path in Path(folder).iterdir() if path.name[0] != "."))
again, _, told = run("train", "--output", folder, *options)
print("exit code", again, "| nothing left to do:", "step" not in told)

# %% [markdown]
# The folder holds the files of the table above. There is no `test.tsv`, since the pairs come from the grammar, which can make them again. The same command once more finds that all is done; had it been killed, it would have gone on.
#
# Now the other three. The average is stored twice, the second time in half precision. Its file is half as long. The text has three lines, one of them empty, and three lines come out:

# %%
code, *_ = run("average", "--run", folder, "--last", 3, "--output", averaged)
run("average", "--run", folder, "--last", 3, "--output", f"{home.name}/half", "--half")
sizes = [Path(home.name, of, "model.safetensors").stat().st_size for of in ("half", "averaged")]
print(f"half of the precision: {sizes[0] / sizes[1]:.2f} of the file")
_, translations, _ = run("translate", "--model", averaged, lines="Der Hund schläft.\n\nJa.\n")
print("exit code", code, "| lines out:", translations.count("\n"))
assert translations.split("\n")[1] == ""

# %%
code, output, _ = run("evaluate", "--model", averaged, "--limit", 500)
for line in output.splitlines()[:2]:
    print(line.split()[0], "with signature", line.split()[2].rpartition("|version")[0])
assert code == 0

# %% [markdown]
# Forty steps make no translator, so we hide the numbers and show the signatures. For a program there is one line of JSON:

# %%
code, output, _ = run("evaluate", "--model", averaged, "--limit", 500, "--beam", 1, "--json")
print(*json.loads(output))

# %% [markdown]
# With the model that comes with the book, the translation is worth looking at:

# %% tags=["nbval-ignore-output"]
model = files("annotated_transformer") / "pretrained" / "multi30k-de-en"
code, output, _ = run("translate", "--model", model, lines="Ein Hund läuft über die Wiese.\n")
print(output)
assert code == 0 and "dog" in output

# %% [markdown]
# What would the paper's base model take on eight GPUs, with this grammar for a corpus? The dry run makes the plan and starts nothing. And the average goes to another engine:

# %%
paper = ("train", "--output", f"{home.name}/base", "--preset", "base")
code, output, _ = run(*paper, "--dry-run", "--gpu", "H100", "--gpus", 8)
print(output, end="")
print("exit code", code, "| anything written:", Path(home.name, "base").exists())

# %%
code, *_ = run("export", "--model", averaged, "--output", f"{home.name}/served")
print("exit code", code, "|", *sorted(path.name for path in Path(home.name, "served").iterdir()))

# %% [markdown]
# The operations would be those of the paper's run, 9.5e17, had the grammar 37,000 pieces in place of a few hundred and longer sentences. `prepare` is shown where it belongs, in [large corpora](20_shards.ipynb), and all of them in a row in [the last chapter](24_wmt14.ipynb).
#
# And mistakes get their sentence: a folder without a model, settings that are not those of the run, a table with a broken line, more checkpoints than there are.

# %%
table = Path(home.name, "pairs.tsv")
table.write_text("Guten Tag.\tHello.\nkaputt\n")
for arguments in (
    ("translate", "--model", "nowhere"),
    ("train", "--output", folder, *options, "--factor", 0.5),
    ("train", "--output", f"{home.name}/own", "--data", table),
    ("average", "--run", folder, "--output", averaged, "--last", 99),
):
    code, output, errors = run(*arguments)
    print(code, errors.splitlines()[-1].replace(f"{home.name}/", ""))

# %% [markdown]
# ## What to remember
#
# - Options are the fields of a dataclass, and their help is its docstrings.
# - The same command starts a training and goes on with it.
# - Standard output carries results, line for line. Everything else goes to standard error.
# - Bad input ends in one line and exit code 2.

# %% [markdown]
# ## Exercises
#
# 1. Which command shows what can be chosen in a training, with the defaults?
# 2. A pipe puts an empty line between paragraphs. What does `translate` do with it, and why must it?
# 3. What breaks if progress is printed to standard output?
# 4. By hand: how many validation pairs are watched if there are 1,654 of them, and how many of 5,000?
# 5. A server that shuts down sends SIGTERM, waits for ten seconds, and then kills. What is lost if a step takes one second, and what if it takes a minute?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. Each command has its own help, made from the docstrings
_, shown, _ = run("train", "--help")
assert "--max-tokens" in shown and "Steps until the learning rate is at its peak" in shown
# 2. It stays: line 7 of the output must be the translation of line 7 of the input
_, translations, _ = run("translate", "--model", averaged, lines="\n\n")
assert translations == "\n\n"
# 3. The next program of the pipe would take a progress report for a translation
# 4. All of them; and every third, from the first on
assert [len(range(n)[:: 1 + n // 2000]) for n in (1654, 5000)] == [1654, 1667]
# 5. Nothing: the step ends, a checkpoint is written. With a minute, all since the last checkpoint
home.cleanup()
