# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only
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
# | `validation.tsv`, `test.tsv` | pairs put aside | `train`, `prepare`; copied by `average` | `train`, `evaluate` |
#
# Any folder with a model will do: `translate` also takes `my-run`, where `train` leaves the weights with the lowest validation loss.

# %% tags=["remove-cell"]
import warnings

warnings.filterwarnings(
    "ignore", message="IProgress"
)  # a progress bar that is not installed

# %% tags=["export"]
import argparse
import errno
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

import torch
import tyro
from sacrebleu import get_reference_files, get_source_file
from torch.distributed import is_torchelastic_launched

from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.data import Pair
from annotated_transformer.distributed import rank_and_world_size
from annotated_transformer.evaluation import compound_split_bleu, score
from annotated_transformer.regularization import SmoothedLoss
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
from annotated_transformer.toolkit.graphs import GraphedLoss, largest_chunk
from annotated_transformer.toolkit.own_data import (
    Splits,
    check_faults,
    cleaning_report,
    filter_pairs,
    read_pairs,
    sides_of,
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
# `train` and `evaluate` share the options that say what to read. The corpora of the book are divided already, or by a seed. `train` [cleans and divides](C_own_data.ipynb#cleaning) your own files, with one pair in a hundred for validation and one for the test (of fewer than 5,000 pairs, about fifty each). With `--validation` and `--test` you give it files of your own for either. What was put aside is in the folder of the run, where `evaluate` finds it; other files of yours it scores whole. A folder that `prepare` has filled needs none of this. A model is given by its folder or, if it comes with the package, by its name.


# %% tags=["export"]
def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0" or not is_torchelastic_launched():
        with suppress(OSError):  # of a terminal that was closed
            print(text, file=sys.stderr, flush=True)


Files = tuple[Path] | tuple[Path, Path]  # a TSV, or two text files


@dataclass(frozen=True)
class Data:
    """Which sentence pairs."""

    corpus: Literal["grammar", "multi30k"] | None = None
    """A corpus of the book, German to English."""
    data: Files | None = None
    """Your own pairs: a TSV, or two text files."""
    columns: tuple[int, int] = (0, 1)
    """Of a table: those of source and target, counted from 0."""
    reverse: bool = False
    """Translate a corpus of the book the other way round."""
    prepared: Path | None = None
    """Folder that `prepare` has filled, in place of all these."""
    limit: int | None = None
    """Learn from, or score, so many pairs at most, the first ones."""

    @property
    def named(self) -> bool:
        """Whether any pairs were asked for."""
        return bool(self.corpus or self.data or self.prepared)


@dataclass(frozen=True)
class HeldOut:
    """Pairs that are not learned from, if they are not to be a share of the data."""

    validation: Files | None = None
    """Your own pairs to choose the best weights by: a TSV, or two text files."""
    test: Files | None = None
    """Your own pairs to keep for `evaluate`: a TSV, or two text files."""


def check_data(data: Data) -> None:
    """Raise ValueError for options that do not go together."""
    if data.limit is not None and data.limit < 1:
        raise ValueError(f"limit must be above 0, not {data.limit}")
    corpus = data.corpus is not None or data.reverse
    if [corpus, data.data is not None, data.prepared is not None].count(True) > 1:
        raise ValueError(
            "give only one of --corpus (with --reverse), --data (whose --columns can be "
            "exchanged) and --prepared"
        )


# %% tags=["export"]
def read_files(files: Files, columns: tuple[int, int]) -> list[Pair]:
    """Read the pairs of a table, or of two text files."""
    for path in files:
        if rank_and_world_size()[1] > 1 and path.exists() and not path.is_file():
            raise ValueError(
                f"{path} is no file, and each process has to read all of it"
            )
    source, *target = files
    return read_pairs(source, target[0] if target else None, columns, report=say)


def read_clean(files: Files, columns: tuple[int, int]) -> list[Pair]:
    """Read the pairs of files, and leave out those that are not worth learning from."""
    read = read_files(files, columns)
    pairs, dropped = filter_pairs(read)
    say(f"{files[0]}: {cleaning_report(len(pairs), dropped)}")
    check_faults(read[0], len(read), dropped)
    return pairs


def divide(pairs: list[Pair], held_out: HeldOut, seed: int) -> Splits:
    """Put pairs aside for what has no file of its own: a hundredth, or about fifty."""
    fifty = 50 / len(pairs)
    share = min(0.1, max(0.01, fifty))
    validation = 0.0 if held_out.validation else share
    test = 0.0 if held_out.test else share
    return split_pairs(pairs, validation, test, seed, report=say)


def read_splits(data: Data, seed: int, held_out: HeldOut = HeldOut()) -> Splits:
    """Return pairs to learn from, to choose by and to measure on."""
    if data.data:
        splits = divide(read_clean(data.data, data.columns), held_out, seed)
    elif data.corpus == "multi30k":
        names = ("train", "val", "test_2016_flickr")
        splits = Splits(*(multi30k(name) for name in names))
    else:
        splits = split_pairs(grammar(10_000, seed), 0.01, 0.01, seed)
    if data.reverse:
        splits = Splits(*(reversed_pairs(part) for part in splits))
    for part, files in vars(held_out).items():
        if files:
            columns = data.columns if len(files) == 1 else (0, 1)
            splits = splits._replace(**{part: read_clean(files, columns)})
    if held_out != HeldOut():
        warn_of_known_sentences(splits)
    return splits


def reversed_pairs(pairs: list[Pair]) -> list[Pair]:
    """Return pairs with source and target exchanged."""
    return [Pair(pair.target, pair.source) for pair in pairs]


def warn_of_known_sentences(splits: Splits) -> None:
    """Say how many pairs to learn from have a sentence that is put aside, too."""
    put_aside = [*splits.validation, *splits.test]
    known = {side for pair in put_aside for side in sides_of(pair)}
    count = sum(not known.isdisjoint(sides_of(pair)) for pair in splits.train)
    if count:
        say(
            f"{count:,} pairs to learn from share a sentence with the validation or the "
            "test pairs: scores on these will flatter"
        )


def load(model: Path) -> tuple[Transformer, Tokenizer]:
    """Load a model from its folder, or by its name one that comes with the package."""
    return model_io.load_by_name(model)


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
class Settings(TrainingConfig):
    """The settings as they were typed; `TrainingConfig`, made of them, checks them."""

    def __post_init__(self) -> None:
        pass


class Material(NamedTuple):
    """What a training learns from, and what it is watched and measured by."""

    corpus: EncodedCorpus
    tokenizer: Tokenizer
    validation: list[Pair]
    test: list[Pair]


def read_material(
    data: Data,
    held_out: HeldOut,
    seed: int,
    tokenizer: Tokenizer | None,
    vocabulary_size: int,
) -> Material:
    """Read and encode the pairs; without a tokenizer, one is learned from them."""
    if data.prepared:
        return Material(*large_corpora.open_corpus(data.prepared))
    if not data.named:
        say("no pairs were given: this trains on the grammar of the book")
    pairs, validation, test = read_splits(data, seed, held_out)
    pairs = pairs[: data.limit]
    if tokenizer is None:
        tokenizer = Tokenizer.train(pairs, vocabulary_size)
        if len(tokenizer) < vocabulary_size:
            say(large_corpora.small_vocabulary(tokenizer, vocabulary_size))
    return Material(encode_pairs(tokenizer, pairs), tokenizer, validation, test)


def identified(
    corpus: EncodedCorpus, limit: int | None, start: Transformer | None
) -> EncodedCorpus:
    """Return the first `limit` examples, under a name that changes with all that was asked for.

    By this name a run that is continued recognizes its corpus, and the model that it began with.
    """
    start_hash = model_io.weights_hash(start) if start is not None else ""
    name = f"{runs.content_hash(corpus)}{limit or ''}{start_hash}"
    return EncodedCorpus(corpus.tokens, corpus.lengths[:limit], name)


def shape_of(
    preset: str, start: Transformer | None, tokenizer: Tokenizer, dropout: float | None
) -> TransformerConfig:
    """Return the shape of the model to train: that of `start`, or of the preset."""
    changes: dict[str, Any] = {} if dropout is None else {"dropout": dropout}
    if start is not None:
        return replace(start.config, **changes)
    return presets.preset(preset, vocabulary_size=len(tokenizer), **changes)


def check_numbers(
    seed: int, dropout: float | None, peak: float | None, gpus: int
) -> None:
    """Raise ValueError for a number that cannot be meant, before anything is read."""
    if dropout is not None:
        presets.check_config({"dropout": dropout})
    if seed >= 2**63:
        raise ValueError(f"seed must be below 2**63, not {seed}")
    if peak is not None and not 0 < peak < float("inf"):
        raise ValueError(f"--peak must be a number above 0, not {peak}")
    if gpus < 1:
        raise ValueError(f"--gpus must be 1 or more, not {gpus}")


def check_output(folder: Path) -> None:
    """Raise OSError or ValueError if no run can be kept here, before anything is read."""
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the name of {folder} is not UTF-8: take another folder"
        ) from error
    if folder.is_dir():
        run_folder.check_belongs(folder)
    elif folder.is_symlink():
        raise FileNotFoundError(f"{folder} is a link that leads nowhere: remove it")
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raise OSError if nothing can be written into a folder, which need not be there yet."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise NotADirectoryError(f"{existing} is a file: take another folder")
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise PermissionError(
            f"nothing can be written into {existing} ({error.strerror}): "
            "take another folder for --output"
        ) from error


def say_where_it_stands(folder: Path, steps: int) -> None:
    """Say how far the run in a folder has come, if there is one."""
    newest = run_folder.last_checkpoint(folder)
    if newest is None:
        return
    step = run_folder.step_of(newest)
    if step < steps:
        say(f"{folder} has made {step:,} of {steps:,} steps, and goes on from there")
    else:
        say(f"{folder} has made all of its {step:,} steps: give more --steps to go on")


SETTINGS_THAT_WORKED = (
    "https://annotated-transformer.github.io/annotated-transformer/book/own_pair.html"
    "#which-settings-for-my-corpus"
)


def print_plan(
    config: TransformerConfig,
    settings: TrainingConfig,
    corpus: EncodedCorpus,
    precision: Precision,
    gpus: int,
    peak: float,
) -> None:
    """Print what a training is made of and how long it may take; say what is unusual about it."""
    plan = planning.estimate(config, settings, corpus.lengths, precision, gpus)
    hours = plan.hours(peak, gpus)
    print(f"{plan.parameters:,} parameters, {corpus.lengths.sum():,} tokens per epoch")
    print(f"{settings.steps:,} steps, {plan.flops:.1e} floating-point operations")
    print(f"{plan.memory_bytes / 2**30:.1f} GiB a device, {hours:.1f} hours")
    if plan.launch_hours == hours:
        say(
            "the steps take no longer than launching their kernels: more GPUs won't shorten "
            "them, a larger --max-tokens would use them better"
        )
    unusual = planning.unusual_settings(
        settings, plan.updates_per_epoch, settings.patience
    )
    for sentence in unusual:
        say(f"unusual: {sentence}")
    if unusual:
        say(f"settings that have worked: {SETTINGS_THAT_WORKED}")


# %% tags=["export"]
HELD_OUT_FILES = {"validation": "validation.tsv", "test": "test.tsv"}
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
    if world_size > 1:
        # So that an error has the number that the sentence has among all
        for number, line in enumerate(lines, start=1):
            longest = model.config.max_length
            translation.encode_sentence(tokenizer, line, number, longest)
    share = translation.translate(
        model,
        tokenizer,
        lines[rank::world_size],
        beam,
        alpha,
        max_tokens=tokens_of_a_batch(model),
    )
    translations = [""] * len(lines)
    for number, texts in enumerate(gather_texts(share)):
        translations[number::world_size] = [on_one_line(text) for text in texts]
    return translations


def tokens_of_a_batch(model: Transformer) -> int:
    """Return how many source tokens are translated at a time."""
    return 16_384 if model.embedding.weight.is_cuda else 2048


def on_one_line(text: str) -> str:
    """Return a translation with a space for each end of a line in it."""
    return " ".join(text.splitlines())


def bleu_on(tokenizer: Tokenizer, pairs: list[Pair]) -> Callable[[Transformer], float]:
    """Return a function that scores the greedy translations of a model, for validation."""
    watched = pairs[:: 1 + len(pairs) // MOST_WATCHED]
    sources = [pair.source for pair in watched]
    references = [pair.target for pair in watched]

    def bleu(model: Transformer) -> float:
        translations = translate_together(model, tokenizer, sources, beam=1, alpha=0.6)
        return score(translations, references).bleu

    return bleu


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as a TSV."""
    rows = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    run_folder.write_text(path, "".join(rows))


SECONDS_BETWEEN_LINES = 30  # where no progress bar is shown


class ProgressReport:
    """Says how each validation went; without a terminal, also that the training goes on."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, line: dict[str, Any]) -> None:
        text = f"step {line['step']}: loss {line['loss']:.3f}"
        seconds = time.monotonic() - self.last
        if "score" in line:
            text += f", validation loss {line['validation_loss']:.3f}"
            text += f", BLEU {line['score']:.1f}"
        elif sys.stderr.isatty() or seconds < SECONDS_BETWEEN_LINES:
            return
        else:
            text += f", {line['tokens_per_second']:,} tokens per second"
        say(text)
        self.last = time.monotonic()


# %% tags=["export"]
FEW_PAIRS = 1000  # with fewer, one may try the commands, but not learn a language


def train(
    output: Path,
    settings: Settings,
    data: Data = Data(),
    held_out: HeldOut = HeldOut(),
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
        preset: Shape of the model: tiny, small, base, big; captions
            and everyday, those of the package's models; of the
            paper's Table 3 A-h1, A-h4, A-h16, A-h32, B-dk16,
            B-dk32, C-N2, C-N4, C-N8, C-d256, C-d1024, C-ff1024,
            C-ff4096, D-dropout0.0, D-dropout0.2,
            D-smoothing0.0, D-smoothing0.2, E-learned.
        start: Model to begin with, a folder or a name; its shape and vocabulary stay.
        dropout: Share of numbers dropped in training, if not the preset's.
        vocabulary_size: Entries of the vocabulary; a prepared corpus has its own.
        device: cpu or cuda; if not given, a GPU if there is one.
        precision: Numbers of products; if not given, bf16 on a GPU that has it.
        compile: Compile the layers first: for a GPU and a long training; with
            --pad-to-multiple-of 8, record each shape of batch as a CUDA graph.
        dry_run: Say what the training is made of and how long it may take, and do nothing.
        peak: For --dry-run: FLOP/s of one GPU by its data sheet; if not given, this machine's.
        gpus: For --dry-run: so many GPUs.
    """
    checked = TrainingConfig(**vars(settings))
    check_data(data)
    if data.prepared and held_out != HeldOut():
        raise ValueError(
            "a prepared corpus has parts of its own: no --validation, --test"
        )
    check_numbers(checked.seed, dropout, peak, gpus)
    presets.preset(preset)  # a wrong name fails before anything is read
    if not dry_run:
        check_output(output)
    begun, vocabulary = load(start) if start else (None, None)
    with process_group(device) as own_device:
        material = read_material(
            data, held_out, checked.seed, vocabulary, vocabulary_size
        )
        corpus = identified(material.corpus, data.limit, begun)
        say(
            f"{len(corpus):,} pairs to learn from, "
            f"{len(material.validation):,} for validation"
        )
        if len(corpus) < FEW_PAIRS and not begun:
            say("to learn a language takes thousands of pairs")
        tokenizer = material.tokenizer
        if vocabulary and vocabulary.text != tokenizer.text:
            raise ValueError(
                f"{data.prepared} needs the vocabulary of {start}: "
                f"prepare it with --tokenizer"
            )
        config = shape_of(preset, begun, tokenizer, dropout)
        precision = precision or planning.best_precision(own_device)
        if dry_run:
            peak = peak or planning.measured_peak(own_device, precision)
            if rank_and_world_size()[0] == 0:
                print_plan(config, checked, corpus, precision, gpus, peak)
            return
        torch.manual_seed(checked.seed)
        model = Transformer(config).to(own_device)
        if begun:
            model.load_state_dict(begun.state_dict())
        loss = FastLoss(model, checked.label_smoothing, precision)
        train_in_folder(
            loss_with_few_launches(loss, checked, corpus) if compile else loss,
            material._replace(corpus=corpus),
            checked,
            output,
            keep_splits=bool(data.data or held_out.validation or held_out.test),
        )


def loss_with_few_launches(
    loss: FastLoss, settings: TrainingConfig, corpus: EncodedCorpus
) -> SmoothedLoss:
    """Compile the layers of a loss's model; on a GPU, do more at once in the loss, too."""
    model = loss.model
    compile_layers(model)
    device = model.embedding.weight.device
    if device.type != "cuda":
        return loss
    _, processes = rank_and_world_size()
    plan = planning.estimate(
        model.config, settings, corpus.lengths, loss.precision, processes
    )
    memory = torch.cuda.get_device_properties(device).total_memory
    loss.chunk = largest_chunk(model.config, settings.max_tokens, plan, memory)
    return GraphedLoss(loss) if settings.pad_to_multiple_of > 1 else loss


def train_in_folder(
    loss: SmoothedLoss,
    material: Material,
    settings: TrainingConfig,
    folder: Path,
    keep_splits: bool,
) -> None:
    """Train; with keep_splits, the pairs that were put aside are written into the folder."""
    tokenizer = material.tokenizer
    report_progress = ProgressReport()
    written: list[str] = []

    def write_splits() -> None:
        """Write the pairs that were put aside, once, when the folder is the run's."""
        if keep_splits and not written:
            write_pairs(folder / HELD_OUT_FILES["validation"], material.validation)
            write_pairs(folder / HELD_OUT_FILES["test"], material.test)
            written.append("both")

    def report(line: dict[str, Any]) -> None:
        write_splits()
        report_progress(line)

    say_where_it_stands(folder, settings.steps)
    runs.train(
        loss.model,
        tokenizer,
        material.corpus,
        settings,
        validation=encode_pairs(tokenizer, material.validation),
        score=bleu_on(tokenizer, material.validation) if material.validation else None,
        folder=folder,
        report=report,
        loss=loss,
    )
    if rank_and_world_size()[0] == 0:
        write_splits()  # where a run was killed before its first report
    newest = run_folder.last_checkpoint(folder)
    if newest is not None and run_folder.step_of(newest) < settings.steps:
        say(
            f"it ended after step {run_folder.step_of(newest):,}: the validation loss "
            f"no longer fell (--patience {settings.patience})"
        )
    say(f"the model is in {folder}")


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
    run_folder.save_average(run, output, last, half)
    for name in HELD_OUT_FILES.values():
        model_io.clear(output, name)
        if (run / name).exists():
            run_folder.write_text(output / name, (run / name).read_text("utf-8"))
    say(f"the mean of {last} checkpoints is in {output}")


# %% [markdown]
# ## Translating
#
# Line 7 of the output is the translation of line 7 of the input, and an empty line stays empty. A line ends where [a line of the training data ends](C_own_data.ipynb#reading): at `\n`, and not at the rarer characters that some programs take for ends of lines. All other white space is [one space each](L_translation.ipynb#from-lines-to-ids), however much there is. With `--nbest 3` there are up to three lines for each, with its number, a score and a translation, separated by tabs, best first. The score is the log-probability divided by the length penalty.


# %% tags=["export"]
def translate(
    model: Path,
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
    if beam < 1:
        raise ValueError(f"--beam must be 1 or more, not {beam}")
    if nbest < 1:
        raise ValueError(f"--nbest must be 1 or more, not {nbest}")
    if nbest > beam:
        raise ValueError(f"--nbest {nbest} needs a --beam of {nbest} or more")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("translate is for one process: start it without torchrun")
    if output is not None:
        check_new(output)
    loaded, tokenizer = load(model)
    lines = read_lines(input)
    loaded.to(find_device(device))
    if nbest == 1:
        translations = translate_together(loaded, tokenizer, lines, beam, alpha)
    else:
        translations = n_best_lines(loaded, tokenizer, lines, nbest, beam, alpha)
    write_lines(translations, output)


def check_new(path: Path) -> None:
    """Raise OSError if a file is there or can't be written, before anything is computed."""
    if len(os.fsencode(path.name)) > 230:  # while it is written it has a longer one
        code = errno.ENAMETOOLONG
        raise OSError(code, os.strerror(code), str(path))
    if path.exists():
        raise FileExistsError(f"{path} is there already: take a new name")
    check_writable(path.absolute().parent)


def n_best_lines(
    model: Transformer,
    tokenizer: Tokenizer,
    lines: list[str],
    nbest: int,
    beam: int,
    alpha: float,
) -> list[str]:
    """Return rows with the number of a line, a score and a translation, separated by tabs."""
    candidates = translation.translate_n_best(
        model,
        tokenizer,
        lines,
        nbest,
        beam,
        alpha,
        max_tokens=tokens_of_a_batch(model),
    )
    rows = []
    for number, translations in enumerate(candidates, start=1):
        for text, value in translations:
            rows.append(f"{number}\t{value:.4f}\t{on_one_line(text)}")
    return rows


def read_lines(path: Path | None) -> list[str]:
    """Read the lines of a file, or of standard input."""
    if path is not None:
        with path.open("rb") as file:
            return list(utf8_lines(file, path))
    if sys.stdin is None:
        raise ValueError("standard input is closed: give a file with --input")
    return list(utf8_lines(sys.stdin.buffer, "the input"))


def write_lines(lines: Iterable[str], path: Path | None) -> None:
    """Write lines into a file, whole or not at all, or to standard output."""
    text = "".join(f"{line}\n" for line in lines)
    if path is not None:
        if path.exists():  # written by somebody else meanwhile: nothing is lost
            path = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
        model_io.clear(path.parent, path.name)
        run_folder.write_text(path, text)
        say(f"the translations are in {path}")
    else:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()


# %% [markdown]
# ## Scoring
#
# Without `--data`, `--corpus` or `--prepared`, a model is scored on the pairs that its own training put aside. For WMT14 there are [two test sets](27_wmt14.ipynb#3003-or-2737-test-sentences), and sacreBLEU provides both, so scores can be compared with those of others. A score with compounds split, nearly as the paper computed it, is printed as `not_comparable`.


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
    pairs = {"validation": validation, "test": test}.get(split)
    if not pairs:
        raise ValueError(f"{folder} has put no pairs aside for {split}")
    return {split: pairs}


def own_test_set(model: Path, split: Split) -> list[Pair]:
    """Return the pairs that the training of a model has put aside in its folder."""
    path = model / HELD_OUT_FILES.get(split, "train.tsv")
    if not path.is_file():
        raise ValueError(
            f"there is no {path}: say which pairs, with --data, --corpus or --prepared"
        )
    say(f"the pairs are those of {path}, put aside when it was trained")
    pairs = large_corpora.read_held_out(path)
    if not pairs:
        raise ValueError(f"{path} has no pairs: say which, with --data")
    return pairs


def test_sets(
    model: Path, data: Data, split: Split, seed: int
) -> dict[str, list[Pair]]:
    """Return what is to be translated and scored, by name; raises MissingData."""
    if data.prepared:
        return prepared_test_sets(data.prepared, split)
    if data.data:
        return {split: read_files(data.data, data.columns)}
    if data.corpus is None:
        return {split: own_test_set(model, split)}
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
    check_data(data)
    if data.reverse and data.corpus is None:
        raise ValueError("--reverse turns a corpus of the book: name it with --corpus")
    loaded, tokenizer = load(model)
    with process_group(device) as own_device:
        loaded.to(own_device)
        for name, pairs in test_sets(model, data, split, seed).items():
            pairs = pairs[: data.limit]
            sources = [str(pair.source) for pair in pairs]
            references = [normalize("NFC", pair.target) for pair in pairs]
            missing = sum(not reference.strip() for reference in references)
            if missing:
                say(
                    f"{missing:,} of {len(pairs):,} pairs have no reference: BLEU counts "
                    "them, chrF doesn't. Are --columns those of the two languages?"
                )
            translations = translate_together(loaded, tokenizer, sources, beam, alpha)
            record = {"split": name, "sentences": len(translations), "beam": beam}
            record |= {"alpha": alpha, **scores_of(translations, references)}
            if name == "wmt14/full":
                split_bleu = compound_split_bleu(translations, references)
                record["not_comparable"] = round(split_bleu, 2)
            if rank_and_world_size()[0] == 0:
                print_record(record, as_json=json)


def scores_of(translations: list[str], references: list[str]) -> dict[str, Any]:
    """Return BLEU and chrF, rounded, with their signatures."""
    scores = score(translations, references)._asdict()
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
    elif output.suffix == ".html":
        raise ValueError(f"{output} would be a folder: for a page, add --format page")
    else:
        export_ctranslate2(loaded, tokenizer, output)
    say(f"the exported model is in {output}")


# %% [markdown]
# ## One error, one line
#
# [tyro](https://brentyi.github.io/tyro/) makes the options from the functions: their parameters, types and docstrings. Wrong input gets a message instead of a traceback, and scripts see an exit code:
#
# | exit code | what happened | what is printed |
# |---|---|---|
# | 0 | all went well | the results |
# | 2 | an option or the input is wrong, or the memory too small | tyro's box about the option, or one sentence: what, where, and what to do |
# | 141 | the next program in a pipe stopped reading, as in `head -1` | nothing |
# | 130 | Ctrl+C | nothing; of a training run the step, and that the same command continues there |
# | 143 | a training run was asked to stop by SIGTERM | the same |
# | 1 | a bug, or any error with `--traceback` | Python's traceback |
#
# A sentence can hide a bug of ours. `--traceback`, which every command takes, shows where it came from.


# %% tags=["export"]
PROGRAM = "annotated-transformer"
VERSION = import_module("annotated_transformer").__version__
DESCRIPTION = (
    "Prepare a corpus, train, average, translate, score, export. Every command has --help, "
    "and takes --traceback, which shows where in the program an error came from. "
    f"--version prints the version, {VERSION}."
)
MISTAKES = (
    MissingData,
    ValueError,
    ArithmeticError,
    OSError,
    ImportError,
)
SYSTEM_ERRORS = {
    errno.ENOENT: "there is no file or folder {name}",
    errno.EISDIR: "{name} is a folder, where a file is needed",
    errno.ENOTDIR: "{name} cannot be: one of its folders is a file",
    errno.EEXIST: "{name} is there already: take another name",
    errno.ENOTEMPTY: "{name} is not empty: take another folder",
    errno.EACCES: "{name} may not be read or written: change who may, or take another",
    errno.EPERM: "{name} may not be read or written: change who may, or take another",
    errno.EROFS: "{name} is on a disk that cannot be written: take another folder",
    errno.ENOSPC: "there is no space left to write {name}: make room, and repeat the command",
    errno.EDQUOT: "there is no space left to write {name}: make room, and repeat the command",
    errno.ENAMETOOLONG: "the name {name} is too long: take a shorter one",
}
MEMORY_REMEDIES = {
    "train": "take a smaller --max-tokens with as much larger --grad-accum-steps, which "
    "makes the same updates; --dry-run says what a training needs",
    "translate": "take a smaller --beam, or split the longest lines",
    "evaluate": "take a smaller --beam, or leave out the longest pairs",
}


def explain(error: Exception, command: str) -> str | None:
    """Return a line for a user that says what is wrong and what helps, or None for a bug."""
    if runs.is_out_of_memory(error):
        remedy = MEMORY_REMEDIES.get(
            command, "end other programs, or take less at a time"
        )
        return f"the memory is too small: {remedy}"
    if isinstance(error, OSError) and error.errno in SYSTEM_ERRORS:
        name = error.filename or "the output"
        return SYSTEM_ERRORS[error.errno].format(name=name)
    if isinstance(error, MISTAKES):
        return " ".join(str(error).split()) or type(error).__name__
    return None


def check_streams() -> None:
    """Make standard output and error take any text; raises ValueError if there is no output.

    What the encoding of a terminal lacks is written as a question mark.
    """
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        raise ValueError("standard output is closed: send it to a file or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def chosen_preset(arguments: Sequence[str]) -> str:
    """Return the preset that is asked for: the defaults of the other options follow from it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", nargs="?", default="tiny")
    options, _ = parser.parse_known_args(arguments)
    return str(options.preset)


def run_command(arguments: Sequence[str]) -> None:
    """Do what the arguments say."""
    check_streams()
    if list(arguments) == ["--version"]:
        print(f"{PROGRAM} {VERSION}")
        return
    settings = Settings(**vars(recipe(chosen_preset(arguments))))
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
        description=DESCRIPTION,
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
    try:
        run_command(arguments)
    except BrokenPipeError:  # whoever read our output has enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except runs.Stopped as stop:
        print(f"{PROGRAM}: {stop}", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except Exception as error:
        message = explain(error, arguments[0] if arguments else "")
        if message is None or show_traceback:
            raise
        print(f"{PROGRAM}: {message}", file=sys.stderr)
        sys.exit(2)


# %% [markdown]
# In the shell, `annotated-transformer` calls `main`, and so does `python -m annotated_transformer`, for `torchrun`.
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
code, _, errors = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "|", errors.splitlines()[0])
print(sorted(path.name for path in Path(folder).iterdir() if path.name[0] != "."))
code, _, errors = run("train", "--output", folder, *options, "--device", "cpu")
print("exit code", code, "|", errors.splitlines()[-2].replace(f"{home.name}/", ""))

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

# %% tags=["remove-cell"]
if CHECKING:
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
    *_, errors = run("train", "--output", f"{home.name}/{name}", *again)
    first[name] = float(re.findall(r"validation loss (\d+\.\d+)", errors)[0])
print("after ten steps:", first)

# %% tags=["remove-cell"]
if CHECKING:
    assert first["begun"] < first["new"]

# %% [markdown]
# `evaluate --corpus grammar` finds the grammar's pairs again from the seed that the training had, and `--json` prints one line for a program to read. To compare two beams, loop over them, on the validation pairs if you mean to choose:

# %%
table = []
for beam in (1, 2):
    pairs = ("--corpus", "grammar", "--split", "validation", "--limit", 20)
    search = ("--beam", beam, "--json")
    _, output, _ = run("evaluate", "--model", averaged, *pairs, *search)
    table.append(json.loads(output))
print(*table[0])
print([(record["beam"], record["split"], record["sentences"]) for record in table])

# %% [markdown]
# (After thirty steps the scores mean nothing, so they aren't shown.) What would the paper's base model take on eight GPUs, with this grammar for a corpus? The dry run starts nothing, and says what is unusual for a corpus of this size:

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
code, output, errors = run(*paper, "--dry-run", "--peak", 989e12, "--gpus", 8)
print(output, end="")
print(*[line for line in errors.splitlines() if "unusual" in line], sep="\n")
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
