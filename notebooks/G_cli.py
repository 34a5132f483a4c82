# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth", "1", "https://github.com/annotated-transformer/annotated-transformer", "/content/book"], check=True)
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

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
# Two more are for the ends of the road: `prepare` makes a [corpus too large for memory](D_large_corpora.ipynb) ready, and `export` hands a model to another engine. And each command that computes runs on one processor, one GPU or many.
#
# There is no new mathematics in this chapter, and nearly no new work: reading, training, searching and scoring are functions that we have. What is left are the decisions between a function and a person who types. Where do options come from? What goes to which output? What happens if the input is wrong, or if somebody pulls the plug?
#
# ## Why is a script not enough?
#
# The usual way from a notebook to a server is a script. The cells are copied into `train.py`, and at its top stand the constants: a path, a number of steps, a size. For one evening that is all one needs. The trouble comes with the second run:
#
# - To change a constant, one edits the file. Next week nobody can say which numbers made the model in the folder `new2`.
# - The second run writes over the first one, since the path was one of the constants that were not edited.
# - A typing mistake in the last line, where the model is saved, is found after eight hours.
# - A colleague who wants to translate one sentence has to read the program first.
#
# So what varies must come from outside, it must be written down beside the result, and it must be checked before the work begins. These three demands shape the whole chapter. They take more lines than the training loop itself, which is common for programs that people use.

# %% tags=["export"]
import codecs
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from torch import nn

# %% [markdown]
# From the chapters before, it needs one or two names of each step on the way: pairs, tokenizer, model, training, translation, score.

# %% tags=["export"]
from annotated_transformer.data import MissingData, Pair, multi30k
from annotated_transformer.own_data import Splits, filter_pairs, read_pairs, split_pairs
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.batching import BatchPlan, Example, encode_pairs, plan_batches, shapes_of
from annotated_transformer.decoding import next_logits, translate
from annotated_transformer.evaluation import compound_split_bleu, score

# %% [markdown]
# And from the chapters on speed and size, what makes the same work for eight GPUs and millions of pairs.

# %% tags=["export"]
from annotated_transformer.distributed import Processes, find_device, deal, gather_texts, processes
from annotated_transformer.export import export_ctranslate2
from annotated_transformer.large_corpora import EncodedCorpus, prepare
from annotated_transformer.speed import PEAKS, FastObjective, Precision, batch_shapes, best_precision, compiled, compiled_reader, estimate, known_peak, measured_peak, warm_up

# %% [markdown]
# Last come the names of the folder that a training leaves behind, and what writes into it.

# %% tags=["export"]
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import LOG, TRAINING, Progress, Stopped, TrainingConfig, average_checkpoints, train, write_text
from annotated_transformer.model_io import load_model, save_model
from annotated_transformer.transformer import Transformer, TransformerConfig, preset

# %%
import argparse
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import FrozenInstanceError
from importlib.resources import files

import matplotlib.pyplot as plt

from book.figures import INK, KEY, QUERY, RESIDUAL, VALUE, style

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
# | `manifest.json`, `train-0000.tokens.npy` and others | a [prepared corpus](D_large_corpora.ipynb) | `prepare` | `train` |
# | `model.safetensors` | weights | `train`, `average` | `translate`, `evaluate` |
# | `config.json`, `tokenizer.json` | the shape of the model; its vocabulary | `train`, `average` | `average`, `translate`, `evaluate` |
# | `checkpoints/` | weights and the optimizer's moments, every few hundred steps | `train` | `train`, to go on; `average` |
# | `training.json` | all settings of the run | `train` | `train`, to refuse others; copied by `average` |
# | `log.jsonl` | loss, speed and scores, one line a report | `train` | you; copied by `average` |
# | `averaged.json` | the mean of how many checkpoints it is | `average` | you |
# | `validation.tsv`, `test.tsv` | pairs put aside, if they came from your own files | `train`, `prepare` | `evaluate` |
#
# A folder with `model.safetensors`, `config.json` and `tokenizer.json` is a model, whichever command made it. So `translate` also takes `my-run`, where `train` leaves, at its end, the weights with the best score on the validation pairs.
#
# Why four commands and not one that does everything? Because they are not run equally often. A training is run once and takes a night. Its checkpoints are averaged three or four times, with other numbers. A model is scored with several beams, and it translates every day. If all were one command, each of these would need an option to leave the rest out. Files between the steps also show where something went wrong: a bad score with a good log is a matter of the search, not of the training.
#
# ## A command is a dataclass
#
# With Python's own `argparse` an option lives in three places: a line that declares it with a type, a help text beside it, and the code that uses it under the same name, spelled once more. Sooner or later the three disagree, and no tool notices. Here somebody has forgotten the type, and somebody else cannot spell:

# %%
parser = argparse.ArgumentParser()
parser.add_argument("--vocabulary-size", default=2000, help="entries of the vocabulary")
options = parser.parse_args(["--vocabulary-size", "500"])
print(repr(options.vocabulary_size), options.vocabulary_size == 500)
try:
    print(options.vocabulary_sise)
except AttributeError as error:
    print(error)

# %% [markdown]
# The default is a number and the typed value is a string. So the program works as long as nobody uses the option. The misspelling raises an error only when its line is reached, and in a training that line may come at the end.
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
# What comes out is a `Data`, with paths and numbers and no strings to take apart. Had we asked for `--corpus wmt14`, `tyro` would have ended the program with the list of allowed names. And nobody can change it from here on:

# %%
try:
    data.limit = 7
except FrozenInstanceError as error:
    print(error)

# %% [markdown]
# ### Why three ways to name a corpus?
#
# Because they differ in what is known about them. The two corpora of the book are known completely: where they come from, which hash they must have, how they are divided. Your own files are known by nothing but their path, so they have to be cleaned, divided and counted. A prepared folder was treated so once already, and its [manifest](D_large_corpora.ipynb) says how. Only the third one may be larger than memory.
#
# The boundary lies at about a million pairs. A list of that many [weighs 2.5 GB](D_large_corpora.ipynb), each process of a training holds its own, and every start encodes it anew. Below that, `--data` is simpler. Above it, write a catalog and call `prepare` once.
#
# ### On which machine?
#
# Everything that computes can do so on a processor or on a GPU. What the commands choose by themselves is what [the chapter on speed](25_speed.ipynb) found best: a GPU if there is one, numbers of 16 bits if its hardware has them, compiled code on a GPU. Each choice can be overruled.


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
# ### When should one overrule them?
#
# Seldom, and mostly to find a fault. There are three cases:
#
# - `--compile no`, if the compiler fails. It is a large program between ours and the GPU, and an error in it need not cost a night. Training is then slower and otherwise the same.
# - `--precision fp32`, if the loss becomes `nan` and one wants to know whether the narrow numbers are to blame. If it stays `nan`, they are not.
# - `--device cpu`, if the GPU is busy with something else, or if an error message from the GPU says nothing. The same error on a processor usually names the line.
#
# ### The options of the commands
#
# A training has options about its data, about its model, and the settings of the training loop. The last are a dataclass already, [`TrainingConfig`](18_training.ipynb). It is taken over whole, docstrings included, so an option that is added there appears here by itself.


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
# A dataclass inside a dataclass would give options such as `--training.steps`. `OmitArgPrefixes` leaves the first part away, at a price: no two groups may have an option of the same name. `output` has no default, and so it must be given. A training takes hours, and its folder should not be named by accident. It is also the only memory that a run has. Nothing is stored in the home folder, and nothing in a database. Whoever moves the folder moves the run, and whoever deletes it has undone it.
#
# `preset` is plain text and no `Literal`, since its names include every row of the paper's Table 3. The function [`preset`](10_transformer.ipynb) knows them, and its error lists them. `dropout` is `None` unless it is given, which means: whatever the preset says.

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
# Translating and scoring share the two numbers of [beam search](19_decoding.ipynb), with the paper's values as defaults.


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


# %% [markdown]
# `compile` is no here unless it is asked for, and in training it is yes on a GPU. The programs have to be made before the first word comes out. A training of hours pays for that once; a single sentence would wait longer for its program than for its translation. What a compiled decoder brings on a GPU is [not measured yet](25_speed.ipynb).
#
# Scoring has the same options, and besides them a corpus, a part of it, and two places for results.


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
# Two commands are left. `prepare` takes the name of a corpus without an option's name before it, since `prepare wmt14-en-de` is how one would say it. All that it can do is told in [large corpora](D_large_corpora.ipynb).


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


# %% [markdown]
# The other one, `export`, has an option with a single choice. That looks odd, and it is there for the day when there is a second engine: a command line that is used in other people's scripts must not change its meaning. With the choice spelled out, a script says which engine it was written for.


# %% tags=["export"]
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
# First, a word to the person at the terminal. It goes to *standard error*, the second of the two outputs that every program has. The first is for results. In `annotated-transformer translate < text.de > text.en` the file gets the results, and messages still appear on the screen. With `print` alone, every message would stand among the translations.
#
# `flush` sends each line at once. Otherwise messages from a program that is killed may never be seen. Where [many processes](26_distributed.ipynb) share a command, the first of them speaks for all, or each line would come eight times. `torchrun` gives each its number in `RANK`.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


# %% [markdown]
# What then goes where? Each command keeps to this table, and a script may rely on it:
#
# | command | standard output | standard error |
# |---|---|---|
# | `prepare` | nothing | one line a stage |
# | `train` | nothing; with `--dry-run`, the plan | counts, progress, the reason of an end |
# | `average`, `export` | nothing | nothing, if all went well |
# | `translate` | translations, one a line | nothing, if all went well |
# | `evaluate` | scores, or one line of JSON | nothing, if all went well |
#
# Your own pairs stand in one table or in two files; [the corpus](13_data.ipynb) has a function that reads either. That there are no more than two is a rule that the type `tuple[Path, ...]` cannot express, so it is checked here.


# %% tags=["export"]
def read_files(data: Data) -> list[Pair]:
    """Return the pairs of the reader's own files."""
    if len(data.data) > 2:
        raise ValueError(f"--data takes one TSV or two text files, not {len(data.data)} files")
    target = data.data[1] if len(data.data) == 2 else None
    return read_pairs(data.data[0], target, data.columns)


# %% [markdown]
# A direction is a matter of two columns, so turning round is one line. It makes new pairs and leaves the old list alone, since someone else may hold it.


# %% tags=["export"]
def turned(pairs: Sequence[Pair], data: Data) -> list[Pair]:
    """Return the pairs, the other way round if asked."""
    return [Pair(pair.target, pair.source) if data.reverse else pair for pair in pairs]


# %% [markdown]
# Training needs pairs for three purposes: to learn from, to choose by while training, and to measure on at the end. Multi30k comes divided, and its parts stay as they are: a score on a test set of one's own making cannot be compared with anyone's. All other pairs we divide ourselves, one in a hundred for each of the two smaller parts.
#
# Pairs of your own are cleaned first, with a report of what was dropped, since a table from the web has empty lines and repetitions. They are turned round before they are divided, because [`split_pairs`](13_data.ipynb) sees to it that no *source* sentence is in two parts, and which side is the source must be settled by then. The grammar can make as many pairs as one likes, and makes 10,000 unless `--limit` says otherwise.


# %% tags=["export"]
def read_data(data: Data, seed: int) -> Splits:
    """Return pairs to learn from, to choose by and to measure on, as a command asks for them."""
    if data.data:
        pairs, dropped = filter_pairs(read_files(data))
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
# Two things can be seen. The counts are not exactly 10, since each sentence is put into a part by its hash, and one in a hundred is meant on average. And a part so small says little: with the 10,000 pairs of the default there are about a hundred to choose by and a hundred to measure on, and even those give a rough number. [Evaluation](20_evaluation.ipynb) says how rough.
#
# ## Training
#
# While it trains, a model is watched by a score that means more than the loss: the BLEU of its translations of the validation pairs. They are made greedily. A beam of four takes longer at each validation, and to see which of two checkpoints is better, greedy translations will do.
#
# ### Who translates which sentence?
#
# With eight GPUs, all of them should translate. The obvious way is to cut the list into eight parts, one behind the other. But test sets are documents in a row, and some documents have long sentences. The process that gets them would be at work when the others are done. So the sentences are dealt like cards, every `size`-th to the same process, as are the rows of [a batch](26_distributed.ipynb). With seven sentences and three processes:

# %%
sentences = list("abcdefg")
shares = [sentences[rank::3] for rank in range(3)]
together = [""] * 7
for rank, share in enumerate(shares):
    together[rank::3] = share
print(shares, together == sentences)

# %% [markdown]
# The same slice that takes a share out puts it back, so no sentence needs to carry its number along. This is the whole trick of the function. The rest hands on options: larger batches on a GPU, and a [compiled decoder](25_speed.ipynb) if there shall be one.


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


# %% [markdown]
# Now the score for the training loop. The function below returns a function: `train` wants something that takes a model and gives a number, and has no idea of sentences. The sentences are bound inside. All processes must come to the same score, or one of them would stop early and the rest wait for it. That is why all of them get all translations.


# %% tags=["export"]
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
# ### What is kept for the end?
#
# The pairs put aside for the end are written to a table, before the first step. So a run that is stopped early can be measured too. In the table the source is column 0, whatever the original files looked like. `evaluate` can read it without `--columns` and without `--reverse`. No tab or line break can spoil the table, as cleaning has made every run of white space a single space.


# %% tags=["export"]
def keep_tsv(pairs: Sequence[Pair], path: Path) -> None:
    """Write pairs as a table of two columns for `evaluate`, if the file is not there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_text(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))


# %% [markdown]
# ### How much longer?
#
# `train` reports every 50 steps, and once in a while with a score. At a terminal there is a progress bar in between. In a log file that someone will read tomorrow, one line for each validation is enough.
#
# The line ends with the time that is left. The naive estimate divides the time since the start by the steps made, and it is wrong where it matters, at the beginning. Say a GPU needs 60 seconds to compile, and then makes 20 steps a second. The first line comes after 1,500 steps, that is after 135 seconds. The naive estimate for 100,000 steps is $100{,}000 \cdot 135 / 1{,}500 = 9{,}000$ seconds, or two and a half hours. The truth is 1.4 hours. So the clock starts at the first report, at step 50, when all is compiled. Validations count, since they will come again.


# %% tags=["export"]
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
# How the line reads, and which of its numbers to trust, is for [the last chapter](27_wmt14.ipynb), where a real run prints some.
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
# The defaults of [`TrainingConfig`](18_training.ipynb) suit a tiny model and a small corpus. With `--preset base` they would be far off, and nobody should have to copy the paper's numbers by hand. So a preset brings settings along: for the paper's own models those of the paper. Its base model was trained for 100,000 steps with batches of about 25,000 tokens a side and 4,000 steps of warm-up, the big one for 300,000. They wrote a checkpoint every ten minutes. At their 0.4 seconds a step that is every 1,500 steps, and we count steps: what is averaged at the end should not depend on how fast a machine is. Two rows of Table 3 are about label smoothing, and here is where they differ.


# %% tags=["export"]
PAPER_TRAINING = TrainingConfig(
    steps=100_000, max_tokens=25_000, warmup=4000, lr_scale=1.0, save_every=1500, keep_checkpoints=5
)

# %% [markdown]
# The rows of Table 3 have names such as `D-smoothing0.2`. What stands behind the word is the number, so it need not be listed once more.


# %% tags=["export"]
def recipe(name: str) -> TrainingConfig:
    """Return the settings that go with a preset: the paper's for its own models (section 5)."""
    if name in ("tiny", "mini", "small"):
        return TrainingConfig()
    if name == "big":
        return replace(PAPER_TRAINING, steps=300_000, keep_checkpoints=20)
    smoothing = name.partition("smoothing")[2]
    return replace(PAPER_TRAINING, label_smoothing=float(smoothing)) if smoothing else PAPER_TRAINING


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
# 6. **Train.** Everything else is the work of [`train`](18_training.ipynb).
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
# Whatever the source, what comes out has the same three parts. The code that trains does not know whether its examples are a list or files on a disk.


# %% tags=["export"]
class Material(NamedTuple):
    """What a training needs of a corpus: tokenizer, pairs to learn from and pairs to watch."""

    tokenizer: Tokenizer
    train: Sequence[Example]
    validation: Sequence[Pair]


# %% [markdown]
# Of a prepared corpus, the first process reads every byte once and compares hashes. The others look at the sizes of the files only, as one check of a disk is enough. Why check at all, before each training? A disk that has lost a block returns other numbers without an error. A block of 4,096 bytes is 2,048 tokens, so some forty pairs would have wrong words in every epoch, and nobody would ever know.


# %% tags=["export"]
def read_prepared(folder: Path, limit: int | None, check: bool) -> Material:
    """Return the material of a prepared corpus; `check` reads all of it once, for damages."""
    shards = EncodedCorpus(folder, check)
    say(f"{len(shards):,} pairs for train")
    validation = read_pairs(folder / "validation.tsv")
    return Material(shards.tokenizer, shards[:limit] if limit else shards, validation)


# %% [markdown]
# And here is the list from above as code: read and divide, write the tables, learn the vocabulary. A dry run writes nothing, so it leaves the tables out.


# %% tags=["export"]
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
# ### Why are some batches computed for nothing?
#
# The model goes to its device, and what computes its loss is made [fast](25_speed.ipynb): products in the precision that the hardware likes best, and compiled layers on a GPU. Then one could begin. The batches come in random order, and the largest of an epoch may be the one at step 5,000. If it does not fit into memory, the night ends there.
#
# So before the training begins, a GPU computes a few batches that do not count, [the largest among them](25_speed.ipynb). Nothing is compiled later, and what does not fit is known after a minute. The plan of an epoch says which shapes there are, and a process looks at its own share of it only, since that is what it will have to compute.


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
# ### Who is told of the progress?
#
# The person at the terminal, and TensorBoard if it was asked for. `train` calls one function, so two listeners are put behind one. `tensorboard_writer` is made here, before the first step. If its package is missing, the error comes at once, and not with the first report.


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
# ### In which order?
#
# The call of [`train`](18_training.ipynb) itself has no decision left to make. Each argument was settled above. Only the order matters. The seed comes before the model, since the first weights are drawn when it is made. The model goes to its device before there is an optimizer, or the moments of a run that goes on would be left behind. And the objective, with its warm-up, is made before `train` is called. So if a batch does not fit, no settings have been written yet, and the folder is free for others.


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
# Before a GPU is rented for a night, one wants to know what for. `--dry-run` reads the corpus, makes the plan of an epoch, and prints what [speed](25_speed.ipynb) can say of it in advance: parameters, steps, operations, memory and hours. It starts nothing and writes nothing. With `--gpus 8 --gpu H100` it speaks of GPUs that one does not have yet.
#
# The hours rest on a guess: that training gets a fifth of what the GPUs' data sheet promises. That is the aim for one large GPU, and with many small steps it will be less. The first lines of a real training say how it is. For a processor no data sheet is asked. Its speed is measured with a few large products, which takes seconds.
#
# Which GPUs are meant? Those that are named, else those that are there. `--gpu A100` alone means one of them, and `--gpus 4` alone means four of the kind that is there. A GPU that our list does not know is refused, with the names of those that it knows. A made-up number of hours would look just like a good one.


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
# What must fit into memory? A batch is dealt to all GPUs, so the memory of each is that of its share. Weights, gradients and moments are not shared, and each GPU holds all of them. So with eight GPUs each needs more than an eighth of what one needs. The largest batch decides.


# %% tags=["export"]
def memory_each(
    config: TransformerConfig, plan: list[BatchPlan], count: int, precision: Precision
) -> float:
    """Return the GiB that training takes on each of `count` GPUs that share the batches."""
    shares = [deal(batch, 0, count) for batch in plan]
    return sum(estimate(config, shares, 1, 1, precision).memory.values()) / 2**30


# %% [markdown]
# Six lines are printed, each for a decision that one can still change:
#
# | line | what to ask of it |
# |---|---|
# | parameters | is it the model that I meant? The base model has 63 million |
# | steps | are the steps and tokens those of my plan? |
# | epochs | how often is each pair seen? Hundreds of times means a small corpus, and [overfitting](17_regularization.ipynb) |
# | operations | the price, independent of the machine |
# | memory | does it fit, with some room to spare? |
# | time | can I pay for it? |


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
# ### Who does what, when there are many?
#
# `torchrun` starts the whole command eight times. Eight programs parse the same options and read the same corpus, and none of them is told what its part is. It must follow from the rank alone. The figure shows what that comes to for `run_train`, line by line.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-who", "caption": "Who does what when torchrun starts four processes of one training? Time runs downwards. A box is work that a process does by itself, a bar across all is something that they do together and must all reach, and a dash is nothing. The first process alone touches the folder of the run."}, "image": {"alt": "A table of twelve steps and four processes. Options, corpus, vocabulary, model and warm-up are done by each; the tables, checkpoints and words to the terminal by the first only; meeting, gradients and scores by all together."}}
STEPS = (
    ("parse the options", "each"),
    ("meet, and take a GPU", "all"),
    ("read the corpus", "each"),
    ("check every byte, write the tables", "first"),
    ("learn or load the vocabulary", "each"),
    ("make the model; compile, warm up", "each"),
    ("read the last checkpoint", "first"),
    ("get weights, moments and step of the first", "all"),
    ("compute a share of each batch", "each"),
    ("add up gradients; update", "all"),
    ("translate a share, then score", "all"),
    ("checkpoint, log, a line of progress", "first"),
)
figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
shape = {"lw": 1.5, "height": 0.62}
for row, (name, who) in enumerate(STEPS):
    axis.text(-0.7, row, name, ha="right", va="center", fontsize=9.5)
    if who == "all":
        axis.barh(row, 3.8, left=-0.4, fc="none", ec=VALUE, **shape)
        axis.text(1.5, row, "together", ha="center", va="center", color=VALUE, fontsize=9)
    for rank in range(4):
        if who == "each" or (who == "first" and rank == 0):
            color, word = (QUERY, "itself") if who == "each" else (KEY, "alone")
            axis.barh(row, 0.8, left=rank - 0.4, fc="none", ec=color, **shape)
            axis.text(rank, row, word, ha="center", va="center", color=color, fontsize=9)
        elif who == "first":
            axis.text(rank, row, "-", ha="center", va="center", color=RESIDUAL)
for rank in range(4):
    axis.text(rank, -0.75, f"process {rank}", ha="center", fontsize=9.5)
axis.set(xlim=(-4.3, 3.5), ylim=(len(STEPS) - 0.5, -1.1))
axis.set_axis_off()
plt.show()

# %% [markdown]
# Two rules can be read from it. What is cheap and always gives the same result is done by each, because sending it would be one thing more that can fail. What changes the world outside, a file or a screen, is done by the first.
#
# There is one exception, for errors. If something fails, *every* process that it happens to says so. An error may come to process 5 alone, say when its GPU is out of memory, and the first would have nothing to tell. So a missing file may be reported eight times. One reads the line once and does not mind.
#
# ### How do I go on with a training that was stopped?
#
# With the same command. All steps above are repeated, and each gives the same result as before: the same pairs, the same parts, the same vocabulary. `train` then finds checkpoints in the folder, takes the last one, and goes on [to the bit](18_training.ipynb). If the files have changed in the meantime, the pairs or the vocabulary have another SHA-256, and there is an error in place of a mixture.
#
# ### How do I make it longer?
#
# With the same command and more `--steps`. The [learning rate](16_schedule.ipynb) depends on the step and the warm-up, not on where the training ends, so the longer run is the one that it would have been from the start. `--save-every`, `--keep` and `--patience` may change too. Any other change is another training, and is refused.
#
# ### How many steps should I ask for?
#
# Think in epochs, and let the corpus say how many steps they are. In [batching](15_batching.ipynb) the 29,000 captions made 527 batches of 1,024 tokens, so 30 epochs are $30 \cdot 527 = 15{,}810$ steps. Twice the tokens in a batch means half the steps for the same epochs. Each line of progress says how far it has come, in steps and in epochs. If you cannot tell, ask for many and add `--patience 5`: five validations in a row without a better score end the training.
#
# ### What if a batch does not fit into memory?
#
# Then the warm-up says so, with the shape of the batch and the remedy: halve `--max-tokens` and double `--accumulate`. An update then sees [as many tokens as before](18_training.ipynb), in two parts. At the beginning of a run this costs nothing: no step has been made, no settings have been written, and the same folder will do. It is different for a run that was begun on a larger GPU. There the size of a batch is a setting of the run, and the folder refuses another one. More GPUs help in this case, since each then gets a smaller share of the same batch.
#
# ### How do I leave it running over night?
#
# ```
# nohup annotated-transformer train --corpus multi30k --preset mini --output my-run 2> progress.txt &
# ```
#
# `nohup` keeps it alive when the terminal closes, and `&` gives the terminal back. Progress goes to standard error, so `2>` is what puts it into a file. Since that is no terminal, the progress bar stays away. `tail -f progress.txt` shows the last lines, and `kill` with the number of the process ends it politely: it finishes its step and writes a checkpoint. Two trainings cannot get into each other's way, as the [folder is locked](18_training.ipynb) while one is at work.
#
# ### What if it is dead in the morning?
#
# Look at the last line of `progress.txt`, and at `my-run/log.jsonl`. There are few cases:
#
# | the last line | what happened | what to do |
# |---|---|---|
# | `stopped at step 41500: the same command goes on from there` | someone sent SIGTERM: a reboot, a scheduler, a colleague | the same command |
# | a line of progress, and nothing after it | it was killed without warning: no power, or no main memory (`dmesg` names the program that was killed for it) | the same command; for memory, `prepare` the corpus |
# | `the gradient of step 41537 is not finite` | the training went wrong; the update was not used | first the same command: a rare fault of the hardware does not come back. At the same step again: a smaller `--factor`, in another folder |
# | a checkpoint `could not be written` | the disk is full | make room, then the same command |
# | `another training is at work in my-run` | it is not dead | `ps aux`, to find it |
# | a traceback | a bug, in this program or below it | read its last line; if it names the GPU, once more with `--compile no` |
#
# Mostly the answer is the same command, and nobody has to decide anything. That is worth much at three in the morning. It is why one command both starts and goes on: a scheduler may repeat it as often as it likes.
#
# ### Can it use a GPU, or many?
#
# Yes, one without being asked. For many, `torchrun` starts the same command in as many processes, and they [share the batches](26_distributed.ipynb):
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
# `my-run` itself holds the best: the weights with the highest score on the validation pairs. The average is usually better still, and [training](18_training.ipynb) shows why. But not always: in a short run the older checkpoints are much worse than the last, and pull the average down. So compare the two on validation pairs, for a corpus of the book with `evaluate --split validation`, and keep the test pairs for the end.
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
# ### What is wrong with this line?
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
# On the way out the same rule holds: a translation must not contain a line feed. Our vocabulary has all 256 bytes, so a model could write one, and it becomes a space.


# %% tags=["export"]
def one_line_each(sentences: Sequence[str]) -> str:
    """Join sentences to a text with one on each line; a line feed inside becomes a space."""
    return "".join(" ".join(sentence.split("\n")) + "\n" for sentence in sentences)


# %%
print(repr(one_line_each(["A dog\nruns.", "", "Yes."])))

# %% [markdown]
# Three sentences, three lines. The text goes out as bytes, too: a Windows console has another encoding than UTF-8, and a file should not depend on it. Empty lines stay empty: [`translate`](19_decoding.ipynb) passes over what has no words.
#
# This command does not ask for other processes, and uses one GPU at most. A pipe has one reader. If eight processes read from it, each would get a part of the lines, and who gets which is chance.


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


# %% [markdown]
# ### Why does nothing come out until the input ends?
#
# Because all lines are read before the first is translated. Sentences of similar length are translated together, as in [batching](15_batching.ipynb), and put back in order at the end. To do that one must know them all. For a file this is the fast way. At a terminal, type the sentences and end the input with Ctrl-D.
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
# ### Would the training have seen these sentences?
#
# Here the seed comes back that `evaluate` has as an option. What happens if it is forgotten? We draw the grammar's default corpus with two seeds, and count the test sentences of the second that were training sentences of the first:

# %%
learned = {pair.source for pair in read_data(Data(), seed=0).train}
for seed in (0, 1):
    test = read_data(Data(), seed).test
    seen = sum(pair.source in learned for pair in test)
    print(f"seed {seed}: {seen} of {len(test)} test sentences were learned from")

# %% [markdown]
# With the right seed there is none, as it must be. With the wrong one a sentence has slipped in. One does not move a score, but nobody would notice ninety either. No tool warns of it: a score that is too good looks like success.
#
# ### Which of two test sets?
#
# WMT14's test set exists twice: all of its 3,003 pairs, and 2,737 that were left after a filter. Papers have used both, seldom saying which. The full set is the one to report. Where the smaller one lies beside it, its pairs are scored too. Most of its sources are in the full set and have been translated already; only others are added.


# %% tags=["export"]
def filtered_pairs(command: Evaluate) -> list[Pair]:
    """Return the filtered test set of a prepared corpus, if it has one and the test was asked."""
    path = (command.data.prepared or Path()) / "test-filtered.tsv"
    asked = command.data.prepared is not None and command.split == "test"
    return read_pairs(path)[: command.data.limit] if asked and path.exists() else []


# %% [markdown]
# ### What is printed, and for whom?
#
# A score needs three things to mean something, and the command prints all of them: the number, the [signature](20_evaluation.ipynb) that says how it was computed, and how the translations were made. A program that reads the result gets the same as one line of JSON. Then `evaluate --json >> results.jsonl`, in a loop over beam sizes, makes a table that needs no copying by hand.


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
# Where does the record come from? It is made in two parts. The second test set gets a part of its own, since most corpora have none.


# %% tags=["export"]
def score_filtered(filtered: list[Pair], found: Mapping[str, str]) -> dict[str, Any]:
    """Return what there is to say of the filtered test set; nothing if there is none."""
    if not filtered:
        return {}
    hypotheses = [found[pair.source] for pair in filtered]
    bleu = score(hypotheses, [pair.target for pair in filtered]).bleu
    return {"filtered_bleu": bleu, "filtered": len(filtered)}


# %% [markdown]
# Translations are looked up by their source. A test set may hold the same sentence twice, with two references; it is translated once and scored twice.


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
    record |= score(hypotheses, references)._asdict() | score_filtered(filtered, found)
    if filtered:
        record["paper_style"] = compound_split_bleu(hypotheses, references)
    return record


# %% [markdown]
# Now all of it in order: what is wrong with the input comes first, then the weights, then the translation, then the scores. The clock runs around the translation alone, so that reading files and loading weights do not count. With `torchrun` in front, all processes translate, each its share, and the first one scores.
#
# The translations can be kept in a file and looked at, which is worth more than a second decimal. The file can also be scored by another program, and must give the same number there.


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
# Two commands are no more than a call. The first only has to find a name for its folder: `prepare wmt14-en-de` fills `wmt14-en-de`, and `prepare my.json` fills `my`.


# %% tags=["export"]
def run_prepare(command: Prepare) -> None:
    """Make a large corpus ready for training."""
    name = Path(command.corpus).stem if command.corpus.endswith(".json") else command.corpus
    prepare(
        command.corpus,
        command.output or Path(name),
        vocabulary_size=command.vocabulary_size,
        tokenizer=command.tokenizer,
        limit=command.limit,
        report=say,
    )


# %% [markdown]
# The second reads a model and writes it [for another engine](F_export.ipynb).


# %% tags=["export"]
def run_export(command: Export) -> None:
    """Write a model for another engine; there is one so far."""
    model, tokenizer = load_model(command.model)
    export_ctranslate2(model, tokenizer, command.output)


# %% [markdown]
# ## One table of commands
#
# Six dataclasses say what can be asked for, and six functions do it. Which belongs to which is written down once:


# %% tags=["export"]
COMMANDS: dict[type, Callable[[Any], None]] = {
    Prepare: run_prepare,
    Train: run_train,
    Average: run_average,
    Translate: run_translate,
    Evaluate: run_evaluate,
    Export: run_export,
}

# %% [markdown]
# From a union of classes, such as `Prepare | Train | Average`, `tyro` makes one command each, named after the class, and hands back an object of the one that was chosen. Its class finds the function in the table. So a seventh command would be a class, a function and one line here. If the union, the dispatch and the help had lists of their own, the seventh would be forgotten in one of them.
#
# ### Why can `tyro` not do it alone?
#
# One thing it cannot know: that the defaults of a training go with its preset. By the time it has read `--preset base`, the defaults of the other options are fixed. The naive way out is to make every default `None` and to fill the gaps afterwards. Then the help says "default: None" for each of them, and a type checker wants a test for `None` at every use.
#
# So we look for `--preset` among the arguments before, and hand `tyro` a `Train` with the right defaults. The help shows them as well: `train --preset base --help` has the paper's numbers. Whatever is typed beside it still wins.
#
# The function below has a few small decisions in it. A preset can be typed in two ways, `--preset base` and `--preset=base`, and both are looked for. If it is typed twice the last one counts, as with every other option. A name that nobody knows is no error here: the function `preset` will complain of it, with the list of names, and one place for that is enough. `tyro.MISSING` stands for the folder, which has no default and must stay so. And `reduce(or_, ...)` writes the `|` of the union between the classes of the table.


# %% tags=["export"]
def with_recipe(arguments: Sequence[str]) -> Any:
    """Return the union of commands, with the defaults of the preset that is asked for."""
    named = [two[1] for two in pairwise(arguments) if two[0] == "--preset"]
    named += [one.removeprefix("--preset=") for one in arguments if one.startswith("--preset=")]
    default = Train(output=tyro.MISSING, training=recipe(named[-1]) if named else TrainingConfig())
    with_default = Annotated[Train, tyro.conf.subcommand(name="train", default=default)]
    return reduce(or_, [with_default if one is Train else one for one in COMMANDS])


# %%
for name in ("mini", "big"):
    arguments = ["train", "--output", "run", "--preset", name, "--warmup", "100"]
    config = tyro.cli(with_recipe(arguments), args=arguments).training
    print(name, config.steps, config.max_tokens, config.warmup)

# %% [markdown]
# `max_tokens` differs, as it should, and the warm-up is in both cases the one that was typed.
#
# ### Where does a number come from?
#
# Three places can decide about a number, and the last one that speaks wins. The first is the class, with its defaults for a small model. The second is the preset: [`preset`](10_transformer.ipynb) for the shape, `recipe` for the training. The third is the person who types. Here is one command with its eight most important numbers:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-options", "caption": "Which number does a run get? Eight settings of `train --preset base --warmup 8000 --dropout 0.3`. Each column is a place that may decide, from left to right. The last one that says something wins (boxed); what it overrules is gray."}, "image": {"alt": "A table of eight settings. Six numbers of the run come from the preset base, such as 100,000 steps and six layers. Only warm-up and dropout come from what was typed."}}
typed = ["train", "--output", "run", "--preset", "base", "--warmup", "8000", "--dropout", "0.3"]
command = tyro.cli(with_recipe(typed), args=typed)
shapes, runs = (preset("tiny"), preset("base")), (TrainingConfig(), recipe("base"))
names = ("layers", "d_model", "dropout", "steps", "max_tokens", "warmup", "factor", "keep")
said = {"warmup": command.training.warmup, "dropout": command.dropout}
figure, axis = plt.subplots(figsize=(8.5, 3.9), layout="constrained")
for row, name in enumerate(names):
    places = shapes if hasattr(shapes[0], name) else runs
    values = [getattr(place, name) for place in places] + [said.get(name)]
    axis.text(-0.6, row, name, ha="right", va="center", family="monospace")
    for column, value in enumerate(values):
        wins = value is not None and not any(later is not None for later in values[column + 1 :])
        look = {"color": (QUERY, KEY, VALUE)[column]} if wins else {"color": "#777777"}
        box = {"boxstyle": "round,pad=0.3", "fc": "none", "ec": look["color"]} if wins else None
        shown = "" if value is None else f"{value:,}"
        axis.text(column, row, shown, ha="center", va="center", bbox=box, **look)
    axis.annotate("", (2.75, row), (2.35, row), arrowprops={"arrowstyle": "->", "color": RESIDUAL})
    axis.text(3.1, row, f"{[v for v in values if v is not None][-1]:,}", ha="center", va="center")
for column, head in enumerate(("defaults:\ntiny", "preset:\nbase", "typed", "the run")):
    axis.text((0, 1, 2, 3.1)[column], -1, head, ha="center", va="center", fontsize=9.5)
axis.set(xlim=(-1.6, 3.5), ylim=(len(names) - 0.4, -1.7))
axis.set_axis_off()
plt.show()
assert (command.training.steps, command.training.warmup) == (100_000, 8000)

# %% [markdown]
# A fourth place there is not: no file in the home folder, no value left over from last time, and no environment variable. (One variable names the cache, which says where files lie and not what is done with them.) That is on purpose. What decides about a run is in the line that was typed and in the release of the package, and both can be written down.
#
# What a run got is in `training.json`, all of it, so nobody has to work it out from such a table afterwards.
#
# ## One error, one line
#
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
# Why not 1 for every failure, as most scripts have it? Think of a scheduler that starts a command again when it has failed. After a 143 that is right, since the training only has to go on. After a 2 it is useless, since the same input will be just as wrong in a minute. A program that knows the two apart can wait for a person in one case and need not in the other.
#
# The 2 is the custom for wrong usage. `tyro` uses it as well, for options that it cannot read, and shows their help. The 143 is 128 + 15: shells report a program that was ended by signal number $n$ as $128 + n$, and 15 is SIGTERM, the polite request to stop. A server sends it before it shuts down. Ctrl-C during a training is the same wish, and ends it with the same code.
#
# ### Which errors are mistakes?
#
# The easy way is `except Exception`, and it is wrong. It would turn every bug of ours into one short sentence, such as `'NoneType' object is not iterable`, without a file and without a line. Whoever gets that can neither mend it nor report it.
#
# So only the kinds of errors that our chapters raise on purpose are caught: a wrong value, a file that cannot be read or written, missing data, a gradient that is not finite, too little memory, a package that is not installed. Others are not: a real bug should be loud. The line between the two is not perfect, as a `ValueError` may come from a bug too. Whoever suspects one calls the function from Python, as in `run_train(Train(output=Path("my-run")))`, and gets the traceback.


# %% tags=["export"]
MISTAKES = (ValueError, OSError, FloatingPointError, MemoryError, ImportError, MissingData)

# %% [markdown]
# `main` puts the parts in order: parse, find the function, call it, and translate the end into an exit code. An error's text may have line breaks. `' '.join(...split())` makes one line of it, so that a log of many commands has one line for each failure.
#
# One of the ends needs a trick. In `translate < text.de | head -1` the reader leaves after one line, and writing to it is then an error, `BrokenPipeError`. That is nobody's mistake. But Python also empties its buffers when it exits, and would fail a second time, with a message that cannot be caught. So standard output is first pointed at nothing, `os.devnull`.


# %% tags=["export"]
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and one line for bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = tyro.cli(with_recipe(arguments), prog="annotated-transformer", args=arguments)
    try:
        COMMANDS[type(command)](command)
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
# The name `annotated-transformer` in the shell is tied to `main` by two lines in `pyproject.toml`, and so is `python -m annotated_transformer`, which `torchrun` needs, by the two lines of `__main__.py`. Called with no arguments, it takes them from the shell. A test, or a notebook, can hand over a list.
#
# ### Can I have all this without the commands?
#
# Yes, they add nothing that Python could not reach:
#
# | command | the functions behind it |
# |---|---|
# | `train` | [`read_pairs`, `clean`, `split_pairs`](13_data.ipynb), [`Tokenizer.train`](14_tokenization.ipynb), [`train`](18_training.ipynb) |
# | `average` | [`average_checkpoints`, `save_model`](18_training.ipynb) |
# | `translate` | [`load_model`](18_training.ipynb), [`translate`](19_decoding.ipynb) |
# | `evaluate` | the same, and [`score`](20_evaluation.ipynb) |
# | `prepare` | [`prepare`](D_large_corpora.ipynb) |
# | `export` | [`export_ctranslate2`](F_export.ipynb) |
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

# %% [markdown]
# A score needs references. `evaluate` finds the grammar's test pairs again, from the seed and the limit that the training had:

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
# ### How do I compare three settings?
#
# With a loop of the shell, and no copying by hand:
#
# ```bash
# for beam in 1 2 4; do
#     annotated-transformer evaluate --model my-model --beam $beam --json >> beams.jsonl
# done
# ```
#
# Each line of the file says what it was made with, so their order does not matter, and a line from last week may stand beside one from today. The same loop in Python, with the model of a minute ago:

# %%
table = []
for beam in (1, 2, 4):
    _, output, _ = run("evaluate", "--model", averaged, "--limit", 500, "--beam", beam, "--json")
    table.append(json.loads(output))
print([(record["beam"], record["split"], record["sentences"]) for record in table])

# %% [markdown]
# Do this with `--split validation` if you mean to choose one of them. Whoever chooses the beam on the test set reports a score that is a little too good.
#
# ### Is it any good?
#
# With the model that comes with the book, the translation is worth looking at:

# %% tags=["nbval-ignore-output"]
model = files("annotated_transformer") / "pretrained" / "multi30k-de-en"
code, output, _ = run("translate", "--model", model, lines="Ein Hund läuft über die Wiese.\n")
print(output)
assert code == 0 and "dog" in output

# %% [markdown]
# ### What would it take?
#
# What would the paper's base model take on eight GPUs, with this grammar for a corpus? The dry run makes the plan and starts nothing:

# %%
paper = ("train", "--output", f"{home.name}/base", "--preset", "base")
code, output, _ = run(*paper, "--dry-run", "--gpu", "H100", "--gpus", 8)
print(output, end="")
print("exit code", code, "| anything written:", Path(home.name, "base").exists())

# %% [markdown]
# The line about epochs is the one to stop at. Nobody should train on the same ten thousand sentences 16,000 times, and here it was seen before it cost anything. The operations would be those of the paper's run, about 9e17, had the grammar 37,000 pieces in place of 2,000 and longer sentences.
#
# And the average goes to another engine:

# %%
code, *_ = run("export", "--model", averaged, "--output", f"{home.name}/served")
print("exit code", code, "|", *sorted(path.name for path in Path(home.name, "served").iterdir()))

# %% [markdown]
# `prepare` is shown where it belongs, in [large corpora](D_large_corpora.ipynb), and all of them in a row in [the last chapter](27_wmt14.ipynb).
#
# ### What do mistakes look like?
#
# Each gets its sentence: a folder without a model, settings that are not those of the run, a table with a broken line, more checkpoints than there are.

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
# All four end with code 2, before any work. Each sentence names the thing, the place, and where it can, the way out. The third is worth a second look: the table has two lines, and the message says which of them, in which column, and what stands there. With a table of a million lines this is the difference between a minute and an afternoon.
#
# ## Questions that come up
#
# **Can two people use one model at the same time?** Yes. `translate` and `evaluate` only read. A folder in which a training is at work can be read too: checkpoints appear under their names when they are whole.
#
# **May I move or rename a folder of a run?** Yes, if nothing is at work in it. No file in it holds a path.
#
# **Can I average while the training goes on?** Yes, and it is a good way to look at a run of days. It may happen that a checkpoint is removed while it is being read, since `train` keeps the last few only. Then there is an error, and one calls it again.
#
# **Why does `translate` start slowly?** It loads PyTorch and the weights, which takes seconds, and then translates. For many files, one call with all lines is faster than a call for each. For a service that answers in milliseconds there is [serving](F_export.ipynb).
#
# ## What to remember
#
# - Options are the fields of a dataclass, and their help is its docstrings.
# - A number comes from the class, the preset or the person who types; the last one that speaks wins.
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
