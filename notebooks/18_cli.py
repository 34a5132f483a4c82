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
# This chapter puts training, averaging, translating and scoring behind one command (sections 5 and 6.1 of the paper).
#
# A notebook is a good place to understand a model and a bad place to use one. It cannot stand in a pipe, nobody can start it on a server over night, and
# the order in which its cells were run is its owner's secret. From a shell, four commands do the work:
#
# ```
# annotated-transformer train --corpus multi30k --preset mini --output my-run
# annotated-transformer average --run my-run --last 5 --output my-model
# annotated-transformer evaluate --model my-model --corpus multi30k
# echo "Ein Hund läuft über die Wiese." | annotated-transformer translate --model my-model
# ```

# %% tags=["export"]
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

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
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
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
from annotated_transformer.transformer import Transformer, preset

# %%
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib.resources import files

# %% [markdown]
# ## A command is a dataclass
#
# Each command is a frozen dataclass, and its fields are the options. `tyro` makes the parser from the types and the help from the
# docstrings below the fields. So an option has one place, and its help cannot be forgotten.
#
# Two commands read pairs, so what to read is a group of options of its own. The reader's own files go before the corpora of the book.


# %% tags=["export"]
@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] = "grammar"
    """A corpus of the book, German to English."""
    data: tuple[Path, ...] = ()
    """Your own pairs in place of it: one TSV, or two text files; plain, .gz or .zip."""
    columns: tuple[int, int] = (0, 1)
    """Columns of source and target in a TSV, counted from 0."""
    reverse: bool = False
    """Translate the other way round."""
    limit: int | None = None
    """Use so many pairs at most, the first ones."""


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
    """How to train."""


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


@dataclass(frozen=True)
class Translate:
    """Translate standard input to standard output, line for line."""

    model: Path
    """Folder of a trained model."""
    beam: int = 4
    """Hypotheses kept at each step; 1 is greedy."""
    alpha: float = 0.6
    """Exponent of the length penalty; 0 for none."""


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


# %% [markdown]
# ## Reading pairs
#
# Training needs pairs for three purposes: to learn from, to choose by while training, and to measure on at the end. Multi30k comes divided. All other pairs we divide ourselves, with
# [the reader's own pair](09_corpus.ipynb) cleaned first and a report of what was dropped. The grammar can make as many as one likes.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results."""
    print(text, file=sys.stderr, flush=True)


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
# ## Training
#
# Only here, in a program that owns its process, do we seed the global random numbers that the weights start from. The score that training watches
# is the BLEU of greedy translations of the validation pairs.


# %% tags=["export"]
def validation_bleu(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> Callable[[Transformer], float]:
    """Return a function that scores a model by its greedy translations of pairs."""
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    return lambda model: score(translate(model, tokenizer, sources, beam=1), references).bleu


def write_tsv(pairs: Sequence[Pair], path: Path) -> None:
    """Write pairs as a table of two columns, for `evaluate`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))


def show_progress(progress: Progress) -> None:
    """Say how training goes, at each validation."""
    if progress.score is not None:
        say(
            f"step {progress.step}, epoch {progress.epoch:.1f}: loss {progress.loss:.3f}, "
            f"validation loss {progress.validation_loss:.3f}, BLEU {progress.score:.1f}, "
            f"{progress.tokens_per_second:,.0f} target tokens a second"
        )


def run_train(command: Train) -> None:
    """Train a model, or go on with it."""
    splits = read_data(command.data, command.training.seed)
    say(", ".join(f"{len(part):,} pairs for {name}" for name, part in splits._asdict().items()))
    if command.data.data:
        write_tsv(splits.test, command.output / "test.tsv")
    watched = splits.validation[:: 1 + len(splits.validation) // 2000]  # from all over the file
    tokenizer = Tokenizer.train(splits.train, command.vocabulary_size)
    changes = {} if command.dropout is None else {"dropout": command.dropout}
    torch.manual_seed(command.training.seed)
    train(
        Transformer(preset(command.preset, vocabulary_size=len(tokenizer), **changes)),
        tokenizer,
        splits.train,
        command.training,
        validation=splits.validation,
        score=validation_bleu(tokenizer, watched),
        folder=command.output,
        report=show_progress,
    )


def run_average(command: Average) -> None:
    """Average checkpoints and save the model, with the story of its training."""
    model, tokenizer = average_checkpoints(command.run, command.last)
    save_model(model, tokenizer, command.output, command.half)
    for name in (LOG, TRAINING):
        write_text(command.output / name, (command.run / name).read_text(encoding="utf-8"))
    write_text(command.output / "averaged.json", json.dumps({"last": command.last}))


# %% [markdown]
# ## Translating
#
# One line in, one line out, and nothing else on standard output: then the command can stand in a pipe. Bytes that are no UTF-8 get an
# error with the number of their line, before any work is done.


# %% tags=["export"]
def read_lines(content: bytes) -> list[str]:
    """Return the lines of UTF-8 text; raises ValueError naming the first line that is none."""
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of the input is not UTF-8: {error.reason}") from error
    return [line.decode().rstrip("\r") for line in lines]


def run_translate(command: Translate) -> None:
    """Translate standard input."""
    model, tokenizer = load_model(command.model)
    lines = read_lines(sys.stdin.buffer.read())
    for translation in translate(model, tokenizer, lines, command.beam, command.alpha):
        print(translation.replace("\n", " "))


# %% [markdown]
# ## Scoring
#
# A score needs three things to mean something, and the command prints all of them: the number, the signature that says how it was computed, and how the translations were made. They can be kept in a file and
# looked at, which is worth more than a second decimal.


# %% tags=["export"]
def run_evaluate(command: Evaluate) -> None:
    """Translate, score, and print the scores."""
    model, tokenizer = load_model(command.model)
    if command.data.data:
        pairs = turned(read_files(command.data), command.data)[: command.data.limit]
    else:
        pairs = getattr(read_data(command.data, command.seed), command.split)
    start = time.perf_counter()
    sources = [pair.source for pair in pairs]
    hypotheses = translate(model, tokenizer, sources, command.beam, command.alpha)
    seconds = time.perf_counter() - start
    if command.output is not None:
        write_text(command.output, "".join(f"{line}\n" for line in hypotheses))
    scores = score(hypotheses, [pair.target for pair in pairs])
    if command.json:
        what: dict[str, Any] = {
            "sentences": len(pairs),
            "beam": command.beam,
            "alpha": command.alpha,
        }
        if not command.data.data:
            what = {"corpus": command.data.corpus, "split": command.split, **what}
        print(json.dumps({**what, **scores._asdict(), "seconds": round(seconds, 1)}))
        return
    print(f"BLEU  {scores.bleu:5.1f}  {scores.bleu_signature}")
    print(f"chrF2 {scores.chrf:5.1f}  {scores.chrf_signature}")
    print(f"{len(pairs):,} sentences, beam {command.beam}, alpha {command.alpha}, {seconds:.1f} s")


# %% [markdown]
# ## One error, one line
#
# A user's mistake is not a bug of ours, so it gets a sentence and not a traceback, and exit code 2 as is the custom. Everything that
# our chapters raise for bad input is caught here. Nothing else is: a real bug should be loud. A training that was asked to stop leaves with the code of its signal, 143.


# %% tags=["export"]
Command = Train | Average | Translate | Evaluate


def run_command(command: Command) -> None:
    """Do what a command says."""
    match command:
        case Train():
            run_train(command)
        case Average():
            run_average(command)
        case Translate():
            run_translate(command)
        case Evaluate():
            run_evaluate(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and one line for bad input."""
    command = tyro.cli(Command, prog="annotated-transformer", args=arguments)
    try:
        run_command(command)
    except Stopped as stopped:
        say(f"annotated-transformer: {stopped}")
        sys.exit(143)
    except (ValueError, OSError, FloatingPointError, MissingData) as error:
        say(f"annotated-transformer: {' '.join(str(error).split())}")
        sys.exit(2)


# %% [markdown]
# ## A day in the life
#
# Here are the four commands in a row, on a corpus so small that it takes seconds. Standard input is a string for once.


# %%
def run(*arguments, lines=""):
    """Call the command and return its exit code, standard output and standard error."""
    output, errors, standard_input = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(lines.encode()))
    try:
        with redirect_stdout(output), redirect_stderr(errors):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code, output.getvalue(), errors.getvalue()
    finally:
        sys.stdin = standard_input
    return 0, output.getvalue(), errors.getvalue()


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
# The folder holds what the [chapter on training](14_training.ipynb) has put there. The same command once more finds that all is done; had it been killed, it would have gone on. Now the other three. The text has three lines, one of them empty, and three lines come out:

# %%
code, *_ = run("average", "--run", folder, "--last", 3, "--output", averaged)
_, translations, _ = run("translate", "--model", averaged, lines="Der Hund schläft.\n\nJa.\n")
print("exit code", code, "| lines out:", translations.count("\n"))
assert translations.split("\n")[1] == ""

# %%
code, output, _ = run("evaluate", "--model", averaged, "--limit", 500)
for line in output.splitlines()[:2]:
    print(line.split()[0], "with signature", line.split()[2].rpartition("|version")[0])
assert code == 0

# %% [markdown]
# Forty steps make no translator, so we hide the number and show the signature. With the model that comes with the book it is worth looking at:

# %% tags=["nbval-ignore-output"]
model = files("annotated_transformer") / "pretrained" / "multi30k-de-en"
code, output, _ = run("translate", "--model", model, lines="Ein Hund läuft über die Wiese.\n")
print(output)
assert code == 0 and "dog" in output

# %% [markdown]
# And mistakes get their sentence:

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

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. Each command has its own help, made from the docstrings
_, shown, _ = run("train", "--help")
assert "--max-tokens" in shown and "Steps until the learning rate is at its peak" in shown
# 2. It stays: line 7 of the output must be the translation of line 7 of the input
_, translations, _ = run("translate", "--model", averaged, lines="\n\n")
assert translations == "\n\n"
# 3. The next program of the pipe would take a progress report for a translation
home.cleanup()
