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
# This chapter puts training and translation behind one command (sections 5 and 6.1 of the paper).
#
# A notebook is a good place to understand a model and a bad place to use one. From a shell, two commands do the work:
#
# ```
# annotated-transformer train --output my-model
# echo "Der Hund schläft." | annotated-transformer translate --model my-model
# ```

# %% tags=["export"]
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import tyro

from annotated_transformer.corpus import MissingData, Pair, grammar, multi30k
from annotated_transformer.decoding import translate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import Progress, TrainingConfig, load_model, save_model, train
from annotated_transformer.transformer import Transformer, preset

# %%
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout

# %% [markdown]
# ## A command is a dataclass
#
# Each command is a frozen dataclass, and its fields are the options. `tyro` makes the parser from the types and the help from the
# docstrings below the fields. So an option has one place, and its help cannot be forgotten.


# %% tags=["export"]
@dataclass(frozen=True)
class Train:
    """Train a model and write it into a folder."""

    output: Path
    """Folder for the model; made if it is not there."""
    corpus: Literal["grammar", "multi30k"] = "grammar"
    """What to learn from, German to English."""
    pairs: int = 10_000
    """Sentence pairs to draw from the grammar."""
    preset: str = "tiny"
    """Shape of the model: tiny, small, base, big, or a row of the paper's Table 3."""
    vocabulary_size: int = 2000
    """Entries of the vocabulary."""
    dropout: float = 0.0
    """Share of numbers dropped in training; the paper has 0.1."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How to train."""


@dataclass(frozen=True)
class Translate:
    """Translate standard input to standard output, line for line."""

    model: Path
    """Folder of a trained model."""


# %% [markdown]
# ## Training
#
# Only here, in a program that owns its process, do we seed the global random numbers that weights and dropout are drawn from.


# %% tags=["export"]
def show_progress(progress: Progress) -> None:
    """Write a line of progress where it does not mix with results."""
    print(f"step {progress.step}: loss {progress.loss:.3f}", file=sys.stderr)


def run_train(command: Train) -> None:
    """Train and save a model."""
    pairs: Sequence[Pair] = (
        grammar(command.pairs, command.training.seed)
        if command.corpus == "grammar"
        else multi30k("train")
    )
    tokenizer = Tokenizer.train(pairs, command.vocabulary_size)
    torch.manual_seed(command.training.seed)
    config = preset(command.preset, vocabulary_size=len(tokenizer), dropout=command.dropout)
    model = train(Transformer(config), tokenizer, pairs, command.training, show_progress)
    save_model(model, tokenizer, command.output)


# %% [markdown]
# ## Translating
#
# One line in, one line out, and nothing else on standard output: then the command can stand in a pipe. Bytes that are no UTF-8 get an
# error with the number of their line, before any work is done.


# %% tags=["export"]
def read_lines(content: bytes) -> list[str]:
    """The lines of UTF-8 text; raises ValueError with the number of the first line that is none."""
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
    for translation in translate(model, tokenizer, lines):
        print(translation.replace("\n", " "))


# %% [markdown]
# ## One error, one line
#
# A user's mistake is not a bug of ours, so it gets a sentence and not a traceback, and exit code 2 as is the custom. Everything that
# our chapters raise for bad input is caught here. Nothing else is: a real bug should be loud.


# %% tags=["export"]
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and one line for bad input."""
    command = tyro.cli(
        Train | Translate,
        prog="annotated-transformer",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    try:
        run_train(command) if isinstance(command, Train) else run_translate(command)
    except (ValueError, OSError, MissingData) as error:
        print(f"annotated-transformer: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


# %% [markdown]
# A model in a few steps, saved and asked for a translation. Standard input is a file here.


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


with tempfile.TemporaryDirectory() as folder:
    trained, *_ = run("train", "--output", folder, "--pairs", 500, "--steps", 30)
    code, output, _ = run(
        "translate", "--model", folder, lines="Der Hund schläft.\n\nDie Katze lacht.\n"
    )
print("exit codes", trained, code, "and lines out:", output.count("\n"))
assert output.split("\n")[1] == ""

# %% [markdown]
# Thirty steps make no translator; [training](14_training.ipynb) shows what more of them do. Here we care that three lines went in and three came out, and
# that mistakes get their sentence.

# %%
for arguments in (["--model", "nowhere"], ["--model", "nowhere", "--beam", "4"]):
    code, output, errors = run("translate", *arguments)
    print(
        code,
        "|",
        errors.strip().splitlines()[0] if "annotated" in errors.splitlines()[0] else "usage",
    )

# %% [markdown]
# ## What to remember
#
# - Options are the fields of a dataclass, and their help is its docstrings.
# - Standard output carries translations, line for line. Everything else goes to standard error.
# - Bad input ends in one line and exit code 2.
