# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Command line
#
# The book behind one command: prepare a corpus, train, average, translate, score, export.
#
# ```
# annotated-transformer train --corpus multi30k --preset captions --output my-run
# annotated-transformer average --run my-run --last 5 --output my-model
# annotated-transformer evaluate --model my-model --corpus multi30k
# echo "Ein Hund läuft über die Wiese." | annotated-transformer translate --model my-model
# ```
#
# [Your own language pair](../book/own_pair.md#train) goes through these four step by step. The other three are `prepare`, for a [corpus too large for memory](28_corpus.ipynb), `export`, for [another engine](F_export.ipynb), and `check`, for [code of students](E_checker.ipynb#a-file-at-a-time). `train` and `evaluate` also run in [several processes](27_distributed.ipynb), started by `torchrun`. Every command has `--help`.
#
# The commands don't call each other. They meet in files, so each can run on another day or another machine:
#
# | file | what it holds | who writes it | who reads it |
# |---|---|---|---|
# | `tokens.bin`, `lengths.npy`, `summary.json` | a [prepared corpus](28_corpus.ipynb#the-folder) | `prepare` | `train`, `evaluate` |
# | `model.safetensors`, `config.json`, `tokenizer.json` | a [model](A_files.ipynb#saving-and-loading) | `train`, `average` | `translate`, `evaluate`, `export`; `train --start` |
# | `checkpoints/`, `training.json`, `log.jsonl` | a [run](29_trainer.ipynb#a-folder-for-each-run) | `train` | `train`, to go on; `average` |
# | `validation.tsv`, `test.tsv` | pairs put aside | `train`, `prepare`; copied by `average` | `evaluate` |

# %% tags=["export"]
import argparse
import csv
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import torch
import tyro

from annotated_transformer import corpus, trainer
from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.checker import check_file
from annotated_transformer.corpus import say
from annotated_transformer.data import Pair
from annotated_transformer.distributed import process_group, rank_and_world_size
from annotated_transformer.evaluation import compound_split_bleu, score
from annotated_transformer.files import atomic_write, load_model, save_model
from annotated_transformer.own_data import (
    MissingData,
    Splits,
    check_faults,
    cleaning_report,
    filter_pairs,
    multi30k,
    read_pairs,
    sides_of,
    split_pairs,
    utf8_lines,
)
from annotated_transformer.speed import best_precision, estimate, measured_peak
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import Transformer, preset
from annotated_transformer.translation import translate_n_best

# %% [markdown]
# ## Which pairs
#
# `train` and `evaluate` share the options that say what to read. The corpora of the book are divided already, or always in the same way. Your own files are [cleaned and divided](C_own_data.ipynb#cleaning), one pair in a hundred for validation and one for the test (of fewer than 5,000 pairs, about fifty each), unless you give files of your own for either. A folder that `prepare` has filled needs none of this.


# %% tags=["export"]
Files = tuple[Path] | tuple[Path, Path]  # a table, or two texts


@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] | None = None
    """A corpus of the book, German to English."""
    data: Files | None = None
    """Your own pairs: a TSV or CSV, or two text files, source first; plain or .gz."""
    columns: tuple[int, int] = (0, 1)
    """Of a table: those of source and target, counted from 0."""
    prepared: Path | None = None
    """Folder that `prepare` has filled."""
    limit: int | None = None
    """Learn from, or score, so many pairs at most, the first ones."""

    def __post_init__(self) -> None:
        if [self.corpus, self.data, self.prepared].count(None) < 2:
            raise ValueError("give only one of --corpus, --data and --prepared")
        if self.data and len(self.data) == 2 and self.columns != (0, 1):
            raise ValueError("two texts have no --columns: the first is the source")


@dataclass(frozen=True)
class HeldOut:
    """Pairs that are not learned from, if they are not to be a share of the data."""

    validation: Files | None = None
    """Your own pairs to choose the best weights by."""
    test: Files | None = None
    """Your own pairs to keep for `evaluate`."""


def read_files(files: Files, columns: tuple[int, int]) -> list[Pair]:
    """Read the pairs of a table, or of two texts, to which columns mean nothing."""
    if len(files) == 2:
        return read_pairs(files[0], files[1])
    return read_pairs(files[0], columns=columns)


def read_clean(files: Files, columns: tuple[int, int]) -> list[Pair]:
    """Read the pairs of files, and leave out those that are not worth learning from."""
    read = read_files(files, columns)
    pairs, dropped = filter_pairs(read)
    say(f"{files[0]}: {cleaning_report(len(pairs), dropped)}")
    check_faults(read[0], len(read), dropped)
    return pairs


def read_splits(data: Data, held_out: HeldOut) -> Splits:
    """Return pairs to learn from, to choose by and to measure on, the same for every seed."""
    if data.data:
        pairs = read_clean(data.data, data.columns)
        share = min(0.1, max(0.01, 50 / len(pairs)))
        validation = 0.0 if held_out.validation else share
        test = 0.0 if held_out.test else share
        splits = split_pairs(pairs, validation, test)
    elif data.corpus == "multi30k":
        names = ("train", "val", "test_2016_flickr")
        splits = Splits(*(multi30k(name) for name in names))
    else:
        splits = split_pairs(grammar(10_000), 0.01, 0.01)
    if held_out.validation:
        pairs = read_clean(held_out.validation, data.columns)
        splits = splits._replace(validation=pairs)
    if held_out.test:
        splits = splits._replace(test=read_clean(held_out.test, data.columns))
    return splits if held_out == HeldOut() else without_known_sentences(splits)


def without_known_sentences(splits: Splits) -> Splits:
    """Leave out pairs to learn from that have a sentence that is put aside, and say how many."""
    put_aside = [*splits.validation, *splits.test]
    known = {side for pair in put_aside for side in sides_of(pair)}
    train = [pair for pair in splits.train if known.isdisjoint(sides_of(pair))]
    count = len(splits.train) - len(train)
    if count:
        say(
            f"{count:,} pairs share a sentence with the validation or the test pairs, "
            "and are not learned from"
        )
    return splits._replace(train=train)


# %% [markdown]
# ## Training
#
# `train` takes the options of its data and its model, and the fields of [`TrainingConfig`](18_training.ipynb#the-settings), whose comments serve as help texts. Their defaults come [with the preset](29_trainer.ipynb#the-settings-that-go-with-a-model), and what you type wins. With `--start`, a run begins with [a trained model](../book/own_pair.md#start-from-a-trained-model).


# %% tags=["export"]
@dataclass(frozen=True)
class Shape:
    """Which model."""

    preset: str = "tiny"
    """tiny, small, base, big, captions or everyday."""
    start: str | None = None
    """Model to begin with, a folder or a name; its shape and vocabulary stay."""
    dropout: float | None = None
    """Share of numbers dropped in training, if not the preset's."""
    vocabulary_size: int = 2000
    """Entries of the vocabulary; a prepared corpus has its own."""


SECONDS_BETWEEN_LINES = 30  # where no progress bar is shown


class ProgressReport:
    """Says how each validation went; without a terminal, also that the training goes on."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, line: dict[str, Any]) -> None:
        text = f"step {line['step']}: loss {line['loss']:.3f}"
        is_late = time.monotonic() - self.last > SECONDS_BETWEEN_LINES
        if "validation_loss" in line:
            text += f", validation loss {line['validation_loss']:.3f}"
            text += f", BLEU {line['score']:.1f}"
        elif sys.stderr.isatty() or not is_late:
            return
        else:
            text += f", {line['tokens_per_second']:,} tokens per second"
        say(text)
        self.last = time.monotonic()


def steps_made(folder: Path) -> int:
    """Return how many steps the run in a folder has made; 0 if there is none."""
    newest = trainer.last_checkpoint(folder)
    return 0 if newest is None else int(newest.stem.partition("-")[2])


def train(
    output: Path,
    config: TrainingConfig,
    data: Data = Data(),
    held_out: HeldOut = HeldOut(),
    shape: Shape = Shape(),
    device: str | None = None,
    dry_run: bool = False,
    peak: float | None = None,
    gpus: int = 1,
) -> None:
    """Train a model in a folder; the same command continues it where it stopped.

    Args:
        output: Folder for log, checkpoints and model; made if it is not there.
        config: How to train.
        device: cpu or cuda; if not given, a GPU if there is one.
        dry_run: Say what the training is made of and how long it may take, and do nothing.
        peak: For --dry-run: FLOP/s of one GPU by its data sheet; if not given, this machine's.
        gpus: For --dry-run: so many GPUs.
    """
    ignored = data.columns != (0, 1) or held_out != HeldOut()
    if data.prepared and ignored:
        raise ValueError(
            "--columns, --validation and --test are not for a --prepared corpus"
        )
    model_config = preset(shape.preset)  # a wrong name fails before anything is read
    if not dry_run:
        trainer.check_folder(output)
    with process_group(device) as own_device:
        begun, tokenizer = load_model(shape.start) if shape.start else (None, None)
        keep: dict[str, list[Pair]] = {}
        if data.prepared:
            examples, own_tokenizer, validation, *_ = corpus.open_corpus(data.prepared)
            if tokenizer and tokenizer.text != own_tokenizer.text:
                raise ValueError(f"prepare the corpus with {shape.start}'s --tokenizer")
            tokenizer = own_tokenizer
            examples = EncodedCorpus(examples.tokens, examples.lengths[: data.limit])
        else:
            if not (data.corpus or data.data):
                say("no pairs were given: this trains on the grammar of the book")
            pairs, validation, test = read_splits(data, held_out)
            pairs = pairs[: data.limit]
            tokenizer = tokenizer or Tokenizer.train(pairs, shape.vocabulary_size)
            examples = encode_pairs(tokenizer, pairs)
            keep = {"validation": validation, "test": test}
        say(
            f"{len(examples):,} pairs to learn from, {len(validation):,} for validation"
        )

        model_config = begun.config if begun else model_config
        if not begun:
            model_config = replace(model_config, vocabulary_size=len(tokenizer))
        if shape.dropout is not None:
            model_config = replace(model_config, dropout=shape.dropout)
        if dry_run:
            precision = config.precision or best_precision(own_device)
            plan = estimate(model_config, config, examples.lengths, precision, gpus)
            hours = plan.hours(peak or measured_peak(own_device, precision), gpus)
            tokens = examples.lengths.sum()
            print(f"{plan.parameters:,} parameters, {tokens:,} tokens per epoch")
            print(f"{config.steps:,} steps, {plan.flops:.1e} floating-point operations")
            memory = plan.memory_bytes / 2**30
            print(f"{memory:.1f} GiB a device, {hours:.1f} hours in {precision}")
            return
        if steps_made(output):
            say(f"{output} has made {steps_made(output):,} of {config.steps:,} steps")
        torch.manual_seed(config.seed)
        model = Transformer(model_config).to(own_device)
        if begun:
            model.load_state_dict(begun.state_dict())
        trainer.train(
            model,
            tokenizer,
            examples,
            config,
            validation=encode_pairs(tokenizer, validation),
            score=trainer.bleu_on(tokenizer, validation) if validation else None,
            folder=output,
            report=ProgressReport(),
            start=shape.start or "",
            keep=keep,
        )
        if steps_made(output) < config.steps:
            say("the validation loss no longer fell: the run is over")
        say(f"the model is in {output}")


# %% [markdown]
# ## Averaging
#
# The folder of an average has the model, and copies of what tells where it comes from.


# %% tags=["export"]
def check_new(path: Path) -> None:
    """Raise FileExistsError for a name that is taken, before anything is computed."""
    if path.exists():
        raise FileExistsError(f"{path} is there already: take a new name")


def average(run: Path, output: Path, last: int = 5, half: bool = False) -> None:
    """Average the last checkpoints of a training run into a model.

    Args:
        run: Folder of the training.
        output: New folder for the model.
        last: How many checkpoints.
        half: Store the weights in half precision, in half the space.
    """
    check_new(output)
    model, tokenizer = trainer.average_checkpoints(run, last)
    with atomic_write(output) as folder:
        save_model(model, tokenizer, folder, half)
        for name in (trainer.SETTINGS, trainer.LOG, "validation.tsv", "test.tsv"):
            if (run / name).exists():
                shutil.copy(run / name, folder)
    say(f"the mean of {last} checkpoints is in {output}")


# %% [markdown]
# ## Translating
#
# Line 7 of the output is the translation of line 7 of the input, and an empty line stays empty. A line ends at `\n`, as in the training data, and not at the rarer characters that some programs take for ends of lines. With `--nbest 3` there are up to three lines for each, with its number, a score and a translation, separated by tabs, best first. The score is the log-probability divided by the length penalty.


# %% tags=["export"]
def translate(
    model: str,
    input: Path | None = None,
    output: Path | None = None,
    beam: int = 4,
    alpha: float = 0.6,
    nbest: int = 1,
    device: str | None = None,
) -> None:
    """Translate standard input to standard output, line for line, once all of it is read.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        input: File to translate, in place of standard input.
        output: New file for the translations, in place of standard output.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        nbest: Write so many translations of each line, with their scores.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("translate is for one process: start it without torchrun")
    if output is not None:
        check_new(output)
    loaded, tokenizer = load_model(model)
    with process_group(device) as own_device:
        loaded.to(own_device)
    with input.open("rb") if input else sys.stdin.buffer as file:
        lines = [*utf8_lines(file, input or "the input")]
    if nbest == 1:
        rows = trainer.translate_together(loaded, tokenizer, lines, beam, alpha)
    else:
        rows = []
        found = translate_n_best(loaded, tokenizer, lines, nbest, beam, alpha)
        for number, translations in enumerate(found, start=1):
            for text, value in translations:
                rows.append(f"{number}\t{value:.4f}\t{' '.join(text.split())}")
    written = "".join(f"{row}\n" for row in rows).encode()
    if output is None:
        sys.stdout.buffer.write(written)
        return
    with atomic_write(output) as aside:
        aside.write_bytes(written)
    say(f"the translations are in {output}")


# %% [markdown]
# ## Scoring
#
# Without `--data`, `--corpus` or `--prepared`, a model is scored on the pairs that its own training put aside. For WMT14 there are [two test sets](30_wmt14.ipynb#3003-or-2737-test-sentences), and sacreBLEU provides both, so scores can be compared with those of others. A score with compounds split, nearly as the paper computed it, is printed as `not_comparable`.


# %% tags=["export"]
Split = Literal["train", "validation", "test"]


def paper_test_sets(direction: str) -> dict[str, list[Pair]]:
    """Fetch the test sets of WMT14 through sacreBLEU: all sentences, and those it scores."""
    from sacrebleu import get_reference_files, get_source_file

    pairs = {}
    for name in ("wmt14/full", "wmt14"):
        source = get_source_file(name, direction)
        pairs[name] = read_pairs(source, get_reference_files(name, direction)[0])
    return pairs


def test_sets(model: str, data: Data, split: Split) -> dict[str, list[Pair]]:
    """Return what is to be translated and scored, by name."""
    if data.corpus:
        return {split: getattr(read_splits(data, HeldOut()), split)}
    if data.prepared:
        if split == "train":
            raise ValueError(
                "a prepared corpus has no text of its train pairs: take another --split"
            )
        prepared = corpus.open_corpus(data.prepared)
        if prepared.name in corpus.WMT14 and split == "test":
            return paper_test_sets(prepared.name.removeprefix("wmt14-"))
        return {split: prepared.test if split == "test" else prepared.validation}
    if data.data:
        return {split: read_files(data.data, data.columns)}
    path = Path(model, f"{split}.tsv")
    if not path.is_file():
        raise ValueError(f"there is no {path}: say which pairs, with --data, say")
    say(f"the pairs are those of {path}, put aside when it was trained")
    return {split: corpus.read_held_out(path)}


def evaluate(
    model: str,
    data: Data = Data(),
    split: Split = "test",
    beam: int = 4,
    alpha: float = 0.6,
    json: bool = False,
    device: str | None = None,
) -> None:
    """Translate sentences that have a reference, and score the translations.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        split: Which part of a corpus; of your own files, all is scored.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        json: Print a line of JSON for each test set.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    loaded, tokenizer = load_model(model)
    with process_group(device) as own_device:
        loaded.to(own_device)
        for name, all_pairs in test_sets(model, data, split).items():
            pairs = all_pairs[: data.limit]
            sources = [pair.source for pair in pairs]
            references = [normalize("NFC", pair.target) for pair in pairs]
            missing = sum(not reference.strip() for reference in references)
            if missing:
                say(f"{missing:,} of {len(pairs):,} pairs have no reference")
            translations = trainer.translate_together(
                loaded, tokenizer, sources, beam, alpha
            )
            scores = score(translations, references)
            record = {
                "split": name,
                "sentences": len(pairs),
                "beam": beam,
                "alpha": alpha,
                "bleu": round(scores.bleu, 2),
                "chrf": round(scores.chrf, 2),
                "bleu_signature": scores.bleu_signature,
                "chrf_signature": scores.chrf_signature,
            }
            if name == "wmt14/full":
                in_their_way = compound_split_bleu(translations, references)
                record["not_comparable"] = round(in_their_way, 2)
            if rank_and_world_size()[0] == 0:
                print_record(record, as_json=json)


def print_record(record: dict[str, Any], as_json: bool) -> None:
    """Print a record as a line of JSON, or a line for each field."""
    if as_json:
        print(json.dumps(record))
        return
    for name, value in record.items():
        print(f"{name:16}{value}")


# %% [markdown]
# ## Exporting


# %% tags=["export"]
def export(model: str, output: Path, quantization: str | None = None) -> None:
    """Write a model for CTranslate2, a fast engine.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        output: New folder for the exported one.
        quantization: Of CTranslate2, such as int8.
    """
    from annotated_transformer.export import export_ctranslate2

    export_ctranslate2(*load_model(model), output, quantization)
    say(f"the exported model is in {output}")


# %% [markdown]
# ## Checking a student's file


# %% tags=["export"]
def grade(file: Path, /, json: bool = False, seconds: float = 180) -> None:
    """Run a student's file; say which parts of the model in it are right, wrong or missing.

    Exits with code 3 if a part is wrong, or if there is none. The file is run as it is, with your
    rights.

    Args:
        file: Python file or notebook; appendix E of the book says how its parts are named.
        json: Print a line of JSON for each part.
        seconds: Time for each part.
    """
    file.stat()  # an error if there is none
    verdicts = set()
    for part, said in check_file(file, seconds):
        says = " ".join(said.split())
        verdict = says.split()[0].strip(".:")
        verdicts.add(verdict)
        record = {"file": str(file), "part": part, "verdict": verdict, "says": says}
        if json:
            print_record(record, as_json=True)
        else:
            print(f"{part:22}{says}", flush=True)
    if "wrong" in verdicts or "right" not in verdicts:
        sys.exit(3)


# %% [markdown]
# ## One error, one line
#
# [tyro](https://brentyi.github.io/tyro/) makes the options from the functions: their parameters, types and docstrings. Wrong input gets a line instead of a traceback, and scripts see an exit code:
#
# | exit code | what happened |
# |---|---|
# | 0 | all went well |
# | 2 | an option or the input is wrong, or the memory too small; one line says what |
# | 3 | of `check`: a part is wrong, or the file has none |
# | 141 | the next program in a pipe stopped reading, as in `head -1` |
# | 130, 143 | Ctrl-C, or SIGTERM; of a training run the step, and that the same command goes on |
# | 1 | a bug, or any error with `--traceback`, which every command takes |


# %% tags=["export"]
PROGRAM = "annotated-transformer"
MISTAKES = (
    ValueError,
    OSError,
    EOFError,  # a .gz that ends too early
    csv.Error,
    ImportError,
    FloatingPointError,
    MissingData,
)


def typed_preset(arguments: Sequence[str]) -> str:
    """Return what was typed for --preset, on which the defaults of other options depend."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", nargs="?")
    return parser.parse_known_args(arguments)[0].preset or Shape.preset


def run_command(arguments: Sequence[str]) -> None:
    """Do what the arguments say."""
    config = trainer.recipe(typed_preset(arguments))
    commands: dict[str, Callable[..., Any]] = {
        "prepare": corpus.prepare,
        "train": partial(train, config=config),
        "average": average,
        "translate": translate,
        "evaluate": evaluate,
        "export": export,
        "check": grade,
    }
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog=PROGRAM,
        description="Prepare a corpus, train, average, translate, score, export, check.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    sys.stdout.flush()  # here, where an error is still one line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and says what is wrong with bad input."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = "--traceback" in arguments
    if show_traceback:
        arguments.remove("--traceback")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal can't show becomes a ?
            stream.reconfigure(errors="replace")
    try:
        run_command(arguments)
    except BrokenPipeError:  # whoever read our output has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except trainer.Stopped as stop:
        print(f"{PROGRAM}: {stop}", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except (torch.OutOfMemoryError, MemoryError) as error:
        if show_traceback:
            raise
        print(
            f"{PROGRAM}: the memory is too small: take a smaller --max-tokens with as much "
            "larger --grad-accum-steps, for updates of the same size, or a smaller --beam",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    except MISTAKES as error:
        if show_traceback:
            raise
        print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


# %% [markdown]
# In the shell, `annotated-transformer` calls `main`, and so does `python -m annotated_transformer`, for `torchrun`.
#
# ## A day in the life
#
# Here are the commands in a row, on a corpus so small that it takes seconds. `run` calls `main` and collects what a shell would see: exit code and both outputs.


# %%
import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout


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


home = tempfile.TemporaryDirectory()
folder, averaged = f"{home.name}/run", f"{home.name}/averaged"
options = ("--limit", 500, "--steps", 30, "--save-every", 10, "--vocabulary-size", 500)
code, _, errors = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "|", errors.splitlines()[0])
print(sorted(path.name for path in Path(folder).iterdir() if path.name[0] != "."))

# %% [markdown]
# Three checkpoints are averaged. Three lines go in, one of them empty, and three come out:

# %%
code, *_ = run("average", "--run", folder, "--last", 3, "--output", averaged)
lines = "Der Hund schläft.\n\nJa.\n"
_, translations, _ = run("translate", "--model", averaged, lines=lines)
print("exit code", code, "| lines out:", translations.count("\n"))

# %% tags=["remove-cell"]
if CHECKING:
    assert translations.split("\n")[1] == ""

# %% [markdown]
# `evaluate --corpus grammar` divides the grammar as the training did, and `--json` prints one line for a program to read. (After thirty steps the scores mean nothing, so they aren't shown.)

# %%
pairs = ("--corpus", "grammar", "--split", "validation", "--limit", 20)
_, output, _ = run("evaluate", "--model", averaged, *pairs, "--json")
print(*json.loads(output))

# %% [markdown]
# What would the paper's base model take on eight GPUs, with this grammar for a corpus? The dry run starts nothing:

# %%
paper = ("train", "--output", f"{home.name}/base", "--preset", "base")
options_of_gpus = ("--precision", "bf16", "--peak", 989e12, "--gpus", 8)
code, output, errors = run(*paper, *options_of_gpus, "--dry-run")
print(output, end="")
print("exit code", code, "| anything written:", Path(home.name, "base").exists())

# %% [markdown]
# And five mistakes: a model that doesn't exist, settings that aren't those of the run, a table with a broken line, a folder that is there already, more checkpoints than there are.

# %%
table = Path(home.name, "pairs.tsv")
table.write_text("Guten Tag.\tHello.\nkaputt\n")
for arguments in (
    ("translate", "--model", "nowhere"),
    ("train", "--output", folder, *options, "--peak-lr", 0.002, "--device", "cpu"),
    ("train", "--output", f"{home.name}/own", "--data", table),
    ("average", "--run", folder, "--output", averaged, "--last", 3),
    ("average", "--run", folder, "--output", f"{home.name}/more", "--last", 99),
):
    code, output, errors = run(*arguments)
    print(code, errors.splitlines()[-1].replace(f"{home.name}/", ""))
home.cleanup()
