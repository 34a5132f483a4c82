# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands
# %% [markdown]
# # Command line
#
# The book behind one command: prepare a corpus, train, average, translate, score, export.
#
# Four of its six commands do most of the work ([with your own pairs](../book/own_pair.md#train), step by step):
#
# ```
# annotated-transformer train --corpus multi30k --preset captions --output my-run
# annotated-transformer average --run my-run --last 5 --output my-model
# annotated-transformer evaluate --model my-model --corpus multi30k
# echo "Ein Hund läuft über die Wiese." | annotated-transformer translate --model my-model
# ```
#
# The other two are `prepare`, for a [corpus too large for memory](D_large_corpora.ipynb#reading), and `export`, which hands a model to [another engine](F_export.ipynb) or makes [a page](F_export.ipynb#a-page-to-send) of it. `train` and `evaluate` also run in [several processes](26_distributed.ipynb#in-and-out), started by `torchrun`; `prepare` has `--workers`. `annotated-transformer train --help` lists all options with their defaults.
#
# The commands don't call each other. They meet in files, so each can run on another day or another machine:
#
# | file | what it holds | who writes it | who reads it |
# |---|---|---|---|
# | `tokens.bin`, `lengths.npy`, `summary.json` | a [prepared corpus](D_large_corpora.ipynb#a-folder-whole-or-not-at-all) | `prepare` | `train`, `evaluate` |
# | `model.safetensors`, `config.json`, `tokenizer.json` | a model: weights, shape, vocabulary | `train`, `average` | `translate`, `evaluate`, `export`; `train --start` |
# | `checkpoints/` | weights and the optimizer's moments | `train` | `train`, to continue; `average` |
# | `training.json` | all settings of the run | `train` | `train`, to refuse others; `average` |
# | `log.jsonl` | loss, speed and scores, one line a report | `train` | you; copied by `average` |
# | `--output` of `export` | a folder for CTranslate2; with `--format page`, one HTML file | `export` | any machine without this package |
# | `averaged.json` | how many checkpoints it is the mean of, and the settings of their training | `average` | you |
# | `validation.tsv`, `test.tsv` | pairs put aside | `train`, `prepare` | `train`, `evaluate` |
#
# Any folder with a model will do: `translate` also takes `my-run`, where `train` leaves the weights with the best validation score.

# %% tags=["remove-cell"]
import warnings

warnings.filterwarnings(
    "ignore", message="IProgress"
)  # a progress bar that is not installed

# %% tags=["export"]
import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from sacrebleu import get_reference_files, get_source_file

from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.distributed import rank_and_world_size
from annotated_transformer.evaluation import compound_split_bleu, score
from annotated_transformer.speed import FastLoss, Precision, compile_layers
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import (
    large_corpora,
    model_io,
    planning,
    presets,
    run_folder,
    runs,
    translation,
)
from annotated_transformer.toolkit.downloads import MissingData, multi30k
from annotated_transformer.toolkit.own_data import (
    Splits,
    filter_pairs,
    read_pairs,
    split_pairs,
    utf8_lines,
)
from annotated_transformer.toolkit.processes import (
    find_device,
    gather_texts,
    process_group,
)
from annotated_transformer.toolkit.runs import TrainingConfig
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig

# %% [markdown]
# ## Which pairs
#
# `train` and `evaluate` share the options that say what to read. The corpora of the book are divided already, or by a seed. `train` [cleans and divides](C_own_data.ipynb#cleaning) your own files, with one pair in a hundred for validation and one for the test (of fewer than 5,000 pairs, about fifty each); `evaluate` scores them whole. A folder that `prepare` has filled needs neither. A model is given by its folder or, if it comes with the package, by its name.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] = "grammar"
    """A corpus of the book, German to English."""
    data: tuple[Path] | tuple[Path, Path] | None = None
    """Your own pairs: a TSV, or two text files."""
    columns: tuple[int, int] = (0, 1)
    """Those of source and target, counted from 0."""
    reverse: bool = False
    """Translate the other way round."""
    prepared: Path | None = None
    """Folder that `prepare` has filled, in place of all these."""
    limit: int | None = None
    """Learn from, or score, so many pairs at most, the first ones."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be above 0, not {self.limit}")
        chosen = [self.data is not None, self.prepared is not None, self.reverse]
        if sum(chosen) > 1:
            raise ValueError(
                "give only one of data (exchange its columns), prepared, reverse"
            )


# %% tags=["export"]
def read_own_pairs(data: Data) -> list[Pair]:
    """Read the pairs of the files that were named."""
    assert data.data is not None
    source, *target = data.data
    return read_pairs(source, target[0] if target else None, data.columns)


def read_splits(data: Data, seed: int) -> Splits:
    """Return pairs to learn from, to choose by and to measure on."""
    if data.data:
        pairs, dropped = filter_pairs(read_own_pairs(data))
        say(f"{len(pairs):,} pairs; dropped: {dropped}")
        fifty = 50 / max(len(pairs), 1)  # pairs at least, if there are 500
        share = min(0.1, max(0.01, fifty))
        return split_pairs(pairs, share, share, seed)
    if data.corpus == "multi30k":
        names = ("train", "val", "test_2016_flickr")
        splits = Splits(*(multi30k(name) for name in names))
    else:
        splits = split_pairs(grammar(10_000, seed), 0.01, 0.01, seed)
    if data.reverse:
        return Splits(*(reversed_pairs(part) for part in splits))
    return splits


def reversed_pairs(pairs: list[Pair]) -> list[Pair]:
    """Return pairs with source and target exchanged."""
    return [Pair(pair.target, pair.source) for pair in pairs]


def load(model: Path) -> tuple[Transformer, Tokenizer]:
    """Load a model from its folder, or by its name one that comes with the package."""
    if model.exists():
        return model_io.load_model(model)
    return model_io.load_pretrained(str(model))


# %% [markdown]
# ## Training
#
# `train` takes the options of its data and of its model, and the fields of [`TrainingConfig`](K_runs.ipynb#settings), whose comments serve as help texts. Defaults come with the preset, and what you type wins. For the paper's models they are the paper's. Its checkpoints were written every ten minutes: every 1,500 steps of 0.4 seconds for base, and (we assume) every 600 steps of 1.0 seconds for big. With `--start`, a run begins with [a trained model](../book/own_pair.md#start-from-a-trained-model).


# %% tags=["export"]
def recipe(preset: str) -> TrainingConfig:
    """Return the settings that go with a preset; those of the paper's models are in section 5."""
    if preset in ("captions", "everyday"):
        return TrainingConfig(
            steps=12_000,
            max_tokens=2048,
            warmup=1000,
            lr_scale=1.0,
            keep_checkpoints=12,
        )
    paper = TrainingConfig(
        steps=100_000, max_tokens=25_000, warmup=4000, lr_scale=1.0, save_every=1500
    )
    if preset == "base":
        return paper
    if preset == "big":
        return replace(paper, steps=300_000, save_every=600, keep_checkpoints=20)
    if preset in presets.TABLE_3:
        smoothing = preset.removeprefix("D-smoothing")
        if smoothing == preset:
            return paper
        return replace(paper, label_smoothing=float(smoothing))
    return TrainingConfig()


# %% tags=["export"]
class Material(NamedTuple):
    """What a training learns from, and what it is watched and measured by."""

    corpus: EncodedCorpus
    tokenizer: Tokenizer
    validation: list[Pair]
    test: list[Pair]


def read_material(
    data: Data, seed: int, tokenizer: Tokenizer | None, vocabulary_size: int
) -> Material:
    """Read and encode the pairs; without a tokenizer, one is learned from them."""
    if data.prepared:
        return Material(*large_corpora.open_corpus(data.prepared))
    pairs, validation, test = read_splits(data, seed)
    pairs = pairs[: data.limit]
    if tokenizer is None:
        tokenizer = Tokenizer.train(pairs, vocabulary_size)
    return Material(encode_pairs(tokenizer, pairs), tokenizer, validation, test)


def identified(
    corpus: EncodedCorpus, limit: int | None, start: Path | None
) -> EncodedCorpus:
    """Return the first `limit` examples, under a name that changes with all that was asked for.

    By this name a run that is continued recognizes its corpus.
    """
    name = f"{runs.content_hash(corpus)}{limit or ''}{start or ''}"
    return EncodedCorpus(corpus.tokens, corpus.lengths[:limit], name)


def shape_of(
    preset: str, start: Transformer | None, tokenizer: Tokenizer, dropout: float | None
) -> TransformerConfig:
    """Return the shape of the model to train: that of `start`, or of the preset."""
    changes: dict[str, Any] = {} if dropout is None else {"dropout": dropout}
    if start is not None:
        presets.check_config(changes)
        return replace(start.config, **changes)
    return presets.preset(preset, vocabulary_size=len(tokenizer), **changes)


def print_plan(
    config: TransformerConfig,
    settings: TrainingConfig,
    corpus: EncodedCorpus,
    precision: Precision,
    gpus: int,
    peak: float,
) -> None:
    """Print what a training is made of and how long it may take."""
    plan = planning.estimate(config, settings, corpus.lengths, precision, gpus)
    hours = plan.hours(peak, gpus)
    print(f"{plan.parameters:,} parameters, {corpus.lengths.sum():,} tokens an epoch")
    print(f"{settings.steps:,} steps, {plan.flops:.1e} floating-point operations")
    print(f"{plan.memory_bytes / 2**30:.1f} GiB a device, {hours:.1f} hours")


# %% tags=["export"]
MOST_WATCHED = 2000  # pairs whose translations are scored at each validation


def translate_together(
    model: Transformer,
    tokenizer: Tokenizer,
    lines: list[str],
    beam: int,
    alpha: float,
) -> list[str]:
    """Translate sentences, each process its share of them; all processes get all translations."""
    rank, world_size = rank_and_world_size()
    max_tokens = 16_384 if model.embedding.weight.is_cuda else 2048
    share = translation.translate(
        model, tokenizer, lines[rank::world_size], beam, alpha, max_tokens=max_tokens
    )
    translations = [""] * len(lines)
    for number, texts in enumerate(gather_texts(share)):
        translations[number::world_size] = [text.replace("\n", " ") for text in texts]
    return translations


def bleu_on(tokenizer: Tokenizer, pairs: list[Pair]) -> Callable[[Transformer], float]:
    """Return a function that scores the greedy translations of a model, for validation."""
    watched = pairs[:: 1 + len(pairs) // MOST_WATCHED]
    sources = [pair.source for pair in watched]
    references = [pair.target for pair in watched]

    def bleu(model: Transformer) -> float:
        written = translate_together(model, tokenizer, sources, beam=1, alpha=0.6)
        return score(written, references).bleu

    return bleu


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as a TSV."""
    rows = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    run_folder.write_text(path, "".join(rows))


def report_progress(line: dict[str, Any]) -> None:
    """Say how a validation went."""
    if "score" in line:
        say(
            f"step {line['step']}: loss {line['loss']:.3f}, "
            f"validation loss {line['validation_loss']:.3f}, BLEU {line['score']:.1f}"
        )


# %% tags=["export"]
def train(
    output: Path,
    settings: TrainingConfig,
    data: Data = Data(),
    preset: str = "tiny",
    start: Path | None = None,
    dropout: float | None = None,
    vocabulary_size: int = 2000,
    device: str | None = None,
    precision: Precision | None = None,
    compile: bool = False,
    dry_run: bool = False,
    peak: float | None = None,
    gpus: int = 1,
) -> None:
    """Train a model in a folder; the same command continues it where it stopped.

    Args:
        output: Folder for log, checkpoints and model; made if it is not there.
        preset: Shape of the model: tiny, small, base, big, a row of the paper's Table 3 ...
        start: Model to begin with, a folder or a name; its shape and vocabulary stay.
        dropout: Share of numbers dropped in training, if not the preset's.
        vocabulary_size: Entries of the vocabulary; a prepared corpus has its own.
        device: cpu or cuda; if not given, a GPU if there is one.
        precision: Numbers of products; if not given, bf16 on a GPU that has it.
        compile: Compile the layers first: for a GPU and a long training.
        dry_run: Say what the training is made of and how long it may take, and do nothing.
        peak: For --dry-run: FLOP/s of one GPU by its data sheet; if not given, this machine's.
        gpus: For --dry-run: so many GPUs.
    """
    begun, vocabulary = load(start) if start else (None, None)
    presets.preset(preset)  # a wrong name fails before anything is read
    with process_group(device) as own_device:
        material = read_material(data, settings.seed, vocabulary, vocabulary_size)
        corpus = identified(material.corpus, data.limit, start)
        say(
            f"{len(corpus):,} pairs to learn from, "
            f"{len(material.validation):,} for validation"
        )
        tokenizer = material.tokenizer
        if vocabulary and vocabulary.sha256 != tokenizer.sha256:
            raise ValueError(
                f"{data.prepared} needs the vocabulary of {start}: see --tokenizer"
            )
        config = shape_of(preset, begun, tokenizer, dropout)
        precision = precision or planning.best_precision(own_device)
        if dry_run:
            peak = peak or planning.measured_peak(own_device, precision)
            print_plan(config, settings, corpus, precision, gpus, peak)
            return
        torch.manual_seed(settings.seed)
        model = Transformer(config).to(own_device)
        if begun:
            model.load_state_dict(begun.state_dict())
        if compile:
            compile_layers(model)
        train_in_folder(
            model,
            material._replace(corpus=corpus),
            settings,
            output,
            precision,
            bool(data.data),
        )


def train_in_folder(
    model: Transformer,
    material: Material,
    settings: TrainingConfig,
    folder: Path,
    precision: Precision,
    keep_splits: bool,
) -> None:
    """Train; with keep_splits, the pairs that were put aside are written into the folder."""
    tokenizer = material.tokenizer
    written: list[str] = []

    def write_splits() -> None:
        """Write the pairs that were put aside, once, when the folder is the run's."""
        if keep_splits and not written:
            write_pairs(folder / "validation.tsv", material.validation)
            write_pairs(folder / "test.tsv", material.test)
            written.append("both")

    def report(line: dict[str, Any]) -> None:
        write_splits()
        report_progress(line)

    runs.train(
        model,
        tokenizer,
        material.corpus,
        settings,
        validation=encode_pairs(tokenizer, material.validation),
        score=bleu_on(tokenizer, material.validation) if material.validation else None,
        folder=folder,
        report=report,
        loss=FastLoss(model, settings.label_smoothing, precision),
    )
    if rank_and_world_size()[0] == 0:
        write_splits()  # where a run was killed before its first report


# %% [markdown]
# ## Averaging
#
# No run continues in the folder of an average, but `--start` can begin with one. `average` writes into an empty folder or one of its own, and no other.


# %% tags=["export"]
def average(run: Path, output: Path, last: int = 5, half: bool = False) -> None:
    """Average the last checkpoints of a training run into a model.

    Args:
        run: Folder of the training.
        output: Folder for the model.
        last: How many checkpoints.
        half: Store the weights in half precision, in half the space.
    """
    model, tokenizer = run_folder.average_checkpoints(run, last)
    note = output / "averaged.json"
    settings = run_folder.read_settings(run / run_folder.SETTINGS)
    model_io.clear(output, note.name)
    if any(output.glob("*")) and not averages_same_run(note, settings):
        raise FileExistsError(f"{output} holds something else: take an empty folder")
    run_folder.write_text(note, json.dumps({"last": last, **settings}, indent=2))
    log = (run / run_folder.LOG).read_text("utf-8")
    run_folder.write_text(output / run_folder.LOG, log)
    model_io.save_model(model, tokenizer, output, half)


def averages_same_run(note: Path, settings: dict[str, Any]) -> bool:
    """Return whether the note of an averaged model tells of a run with these settings."""
    noted = run_folder.read_settings(note) if note.exists() else {}
    changed = {name for name, value in settings.items() if noted.get(name) != value}
    return changed <= run_folder.FREE


# %% [markdown]
# ## Translating
#
# Line 7 of the output is the translation of line 7 of the input, and an empty line stays empty.


# %% tags=["export"]
def translate(
    model: Path, beam: int = 4, alpha: float = 0.6, device: str | None = None
) -> None:
    """Translate standard input to standard output, line for line, once all of it is read.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    loaded, tokenizer = load(model)
    lines = list(utf8_lines(sys.stdin.buffer, "the input"))
    loaded.to(find_device(device))
    for line in translate_together(loaded, tokenizer, lines, beam, alpha):
        sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.buffer.flush()


# %% [markdown]
# ## Scoring
#
# For WMT14 there are [two test sets](27_wmt14.ipynb#3003-or-2737-test-sentences), and sacreBLEU provides both, so scores can be compared with those of others. A score with compounds split, nearly as the paper computed it, is printed as `not_comparable`.


# %% tags=["export"]
Split = Literal["train", "validation", "test"]


def paper_test_sets(direction: str) -> dict[str, list[Pair]]:
    """Fetch the test sets of WMT14 through sacreBLEU: all sentences, and those it scores."""
    sets = ("wmt14/full", "wmt14")
    pairs = {}
    try:
        for name in sets:
            source = get_source_file(name, direction)
            reference = get_reference_files(name, direction)[0]
            pairs[name] = read_pairs(source, reference)
    except (Exception, SystemExit) as error:  # of several unrelated types
        raise MissingData(
            f"sacreBLEU cannot fetch {sets}: {error}; check the network"
        ) from error
    return pairs


def prepared_test_sets(folder: Path, split: Split) -> dict[str, list[Pair]]:
    """Return what a prepared corpus has put aside; of WMT14, the test sets of the paper."""
    _, _, validation, test = large_corpora.open_corpus(folder)
    summary = json.loads((folder / large_corpora.SUMMARY).read_text("utf-8"))
    name = summary["settings"]["data"][0]
    if name in large_corpora.WMT14 and split == "test":
        return paper_test_sets(name.removeprefix("wmt14-"))
    return {split: {"train": [], "validation": validation, "test": test}[split]}


def test_sets(data: Data, split: Split, seed: int) -> dict[str, list[Pair]]:
    """Return what is to be translated and scored, by name; raises MissingData."""
    if data.prepared:
        return prepared_test_sets(data.prepared, split)
    if data.data:
        return {split: read_own_pairs(data)}
    splits = read_splits(data, seed)
    return {split: getattr(splits, split)}


# %% tags=["export"]
def evaluate(
    model: Path,
    data: Data = Data(),
    split: Split = "test",
    seed: int = 0,
    beam: int = 4,
    alpha: float = 0.6,
    json: bool = False,
    device: str | None = None,
) -> None:
    """Translate sentences that have a reference, and score the translations.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        split: Which part of a corpus; of your own files, all is scored.
        seed: Seed of the training, which divided the grammar.
        beam: Hypotheses kept at each step; 1 is greedy.
        alpha: Exponent of the length penalty; 0 for none.
        json: Print a line of JSON for each test set.
        device: cpu or cuda; if not given, a GPU if there is one.
    """
    loaded, tokenizer = load(model)
    with process_group(device) as own_device:
        loaded.to(own_device)
        for name, pairs in test_sets(data, split, seed).items():
            pairs = pairs[: data.limit]
            sources = [str(pair.source) for pair in pairs]
            references = [str(pair.target) for pair in pairs]
            written = translate_together(loaded, tokenizer, sources, beam, alpha)
            record = {"split": name, "sentences": len(written), "beam": beam}
            record |= {"alpha": alpha, **scores_of(written, references)}
            if name == "wmt14/full":
                split_bleu = compound_split_bleu(written, references)
                record["not_comparable"] = round(split_bleu, 2)
            if rank_and_world_size()[0] == 0:
                print_record(record, as_json=json)


def scores_of(written: list[str], references: list[str]) -> dict[str, Any]:
    """Return BLEU and chrF, rounded, with their signatures."""
    scores = score(written, references)._asdict()
    for name in ("bleu", "chrf"):
        scores[name] = round(scores[name], 2)
    return scores


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
Format = Literal["ctranslate2", "page"]


def export(model: Path, output: Path, format: Format = "ctranslate2") -> None:
    """Write a model for CTranslate2, a fast engine, or as a page that translates in a browser.

    Args:
        model: Folder of a trained model, or the name of one of the package's.
        output: Folder for the exported one; for a page, a file that ends in .html.
        format: What to write.
    """
    from annotated_transformer.toolkit.export import export_ctranslate2, export_page

    loaded, tokenizer = load(model)
    if format == "page":
        export_page(loaded, tokenizer, output)
    else:
        export_ctranslate2(loaded, tokenizer, output)


# %% [markdown]
# ## One error, one line
#
# [tyro](https://brentyi.github.io/tyro/) makes the options from the functions: their parameters, types and docstrings. Wrong input gets a message instead of a traceback, and scripts see an exit code:
#
# | exit code | what happened | what is printed |
# |---|---|---|
# | 0 | all went well | the results |
# | 2 | an option or the input is wrong | tyro's box about the option, or one sentence: what, where, and what to do |
# | 141 | the next program in a pipe stopped reading, as in `head -1` | nothing |
# | 130 | Ctrl+C, outside a training run | nothing (but a traceback in the first second or two, while Python still imports) |
# | 143 | a training run was asked to stop, by Ctrl+C or SIGTERM | the step, and that the same command continues there |
# | 1 | a bug, or a GPU out of memory | Python's traceback |


# %% tags=["export"]
PROGRAM = "annotated-transformer"
MISTAKES = (
    runs.Stopped,
    MissingData,
    ValueError,
    ArithmeticError,
    OSError,
    MemoryError,
    ImportError,
)


def chosen_preset(arguments: Sequence[str]) -> str:
    """Return the preset that is asked for: the defaults of the other options follow from it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", nargs="?", default="tiny")
    options, _ = parser.parse_known_args(arguments)
    return str(options.preset)


def run_command(arguments: Sequence[str]) -> None:
    """Do what the arguments say."""
    settings = recipe(chosen_preset(arguments))
    commands: dict[str, Callable[..., Any]] = {
        "prepare": large_corpora.prepare,
        "train": partial(train, settings=settings),
        "average": average,
        "translate": translate,
        "evaluate": evaluate,
        "export": export,
    }
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog=PROGRAM,
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with code 2 and says what is wrong with bad input."""
    try:
        run_command(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:  # whoever read our output has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except MISTAKES as error:
        message = " ".join(str(error).split())
        print(f"{PROGRAM}: {message}", file=sys.stderr)
        sys.exit(143 if isinstance(error, runs.Stopped) else 2)


# %% [markdown]
# `pyproject.toml` ties `annotated-transformer` in the shell to `main`. `python -m annotated_transformer` is the same, for `torchrun`.
#
# ## A day in the life
#
# Here are the commands in a row, on a corpus so small that it takes seconds. `run` calls `main` and collects what a shell would see: exit code and both outputs.


# %%
import io
import re
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
code, _, told = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "|", told.splitlines()[0])
print(sorted(path.name for path in Path(folder).iterdir() if path.name[0] != "."))
code, _, told = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "| nothing left to do:", "step" not in told)

# %% [markdown]
# The same command once more finds that all is done; had it been killed, it would have continued.
#
# The average is stored twice, the second time in half precision. Three lines go in, one of them empty, and three come out:

# %%
code, *_ = run("average", "--run", folder, "--last", 3, "--output", averaged)
run("average", "--run", folder, "--last", 3, "--output", f"{home.name}/half", "--half")
sizes = [
    Path(home.name, of, "model.safetensors").stat().st_size
    for of in ("half", "averaged")
]
print(f"half of the precision: {sizes[0] / sizes[1]:.2f} of the file")
_, translations, _ = run(
    "translate", "--model", averaged, lines="Der Hund schläft.\n\nJa.\n"
)
print("exit code", code, "| lines out:", translations.count("\n"))
assert translations.split("\n")[1] == ""

# %% [markdown]
# A second training run starts from this average. It takes over the vocabulary, and its first losses are those of a model that has learned something:

# %% tags=["nbval-ignore-output"]
first = {}
for name, start in (("new", ()), ("begun", ("--start", averaged))):
    again = (
        "--limit",
        500,
        "--steps",
        10,
        "--vocabulary-size",
        500,
        "--device",
        "cpu",
        *start,
    )
    *_, told = run("train", "--output", f"{home.name}/{name}", *again)
    first[name] = float(re.findall(r"validation loss (\d+\.\d+)", told)[0])
print("after ten steps:", first)
assert first["begun"] < first["new"]

# %% [markdown]
# `evaluate` finds the grammar's pairs again from the seed that the training had, and `--json` prints one line for a program to read. To compare two beams, loop over them, on the validation pairs if you mean to choose:

# %%
table = []
for beam in (1, 2):
    search = ("--limit", 20, "--beam", beam, "--split", "validation", "--json")
    _, output, _ = run("evaluate", "--model", averaged, *search)
    table.append(json.loads(output))
print(*table[0])
print([(record["beam"], record["split"], record["sentences"]) for record in table])

# %% [markdown]
# (After thirty steps the scores mean nothing, so they aren't shown.) What would the paper's base model take on eight GPUs, with this grammar for a corpus? The dry run starts nothing:

# %%
paper = (
    "train",
    "--output",
    f"{home.name}/base",
    "--preset",
    "base",
    "--precision",
    "bf16",
)
code, output, _ = run(*paper, "--dry-run", "--peak", 989e12, "--gpus", 8)
print(output, end="")
print("exit code", code, "| anything written:", Path(home.name, "base").exists())

# %% [markdown]
# The average goes to another engine, and into a page. `prepare` is shown in [large corpora](D_large_corpora.ipynb#in-use), and in a row with `train`, `average` and `evaluate` in [the last chapter](27_wmt14.ipynb#a-rehearsal).

# %%
code, *_ = run("export", "--model", averaged, "--output", f"{home.name}/served")
print(
    "exit code",
    code,
    "|",
    *sorted(path.name for path in Path(home.name, "served").iterdir()),
)
page = f"{home.name}/page.html"
code, *_ = run("export", "--model", averaged, "--format", "page", "--output", page)
print("exit code", code, "|", Path(page).read_text(encoding="utf-8").splitlines()[0])

# %% [markdown]
# And five mistakes: a model that doesn't exist, settings that aren't those of the run, a table with a broken line, a folder that belongs to a training run, more checkpoints than there are.

# %%
table = Path(home.name, "pairs.tsv")
table.write_text("Guten Tag.\tHello.\nkaputt\n")
for arguments in (
    ("translate", "--model", "nowhere"),
    ("train", "--output", folder, *options, "--lr-scale", 0.5),
    ("train", "--output", f"{home.name}/own", "--data", table),
    ("average", "--run", folder, "--output", folder, "--last", 3),
    ("average", "--run", folder, "--output", averaged, "--last", 99),
):
    code, output, errors = run(*arguments)
    print(code, errors.splitlines()[-1].replace(f"{home.name}/", ""))
home.cleanup()
