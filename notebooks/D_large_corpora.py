# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown]
# # Large corpora
#
# This appendix turns millions of sentence pairs into token ids on disk, in bounded memory, and hands them to training (section 5.1 of the paper).
#
# For Multi30k, or for [your own files](C_own_data.ipynb#reading) of up to about a million pairs, a list in memory will do. WMT14 doesn't fit so easily. At 28 ids a side, its 4.5 million German pairs make some 250 million ids; at 36 bytes for a Python integer and the pointer to it, that's 9 GB in every process that trains. As 16-bit numbers in a file they are 0.5 GB, and all processes of a machine can read the same file. Prepare such a corpus once:
#
# ```bash
# pip install "./annotated-transformer[wmt14]"
# annotated-transformer prepare wmt14-en-de                                   # 4.5 million pairs from the Hugging Face hub
# annotated-transformer prepare news.en news.de --output news --vocabulary-size 16000
# annotated-transformer train --prepared news --preset base --output base
# ```
#
# or in Python `prepare("wmt14-en-de")`, and `open_corpus("wmt14-en-de")` when you train. The library [`datasets`](https://huggingface.co/docs/datasets) downloads, caches, reads and spreads the encoding over processes. What follows are our rules and our folder.
#
# | your files | `data` | `columns` |
# |---|---|---|
# | one TSV, plain or `.gz` | the file | numbers from 0; without them the first two |
# | two texts with one sentence a line, plain or `.gz` | source and target | - |
# | JSON lines, plain or `.gz`; Parquet | one or more files | names; without them the first two |
# | the hub's layout, `{"translation": {"de": ..., "en": ...}}` | one or more files | `translation.de`, `translation.en` |

# %% tags=["remove-cell"]
import warnings

warnings.filterwarnings(
    "ignore", message="IProgress not found"
)  # no bars are drawn here

# %% tags=["export"]
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from annotated_transformer.batching import EncodedCorpus
from annotated_transformer.data import Pair
from annotated_transformer.toolkit.downloads import MissingData
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.toolkit.model_io import (
    TOKENIZER,
    atomic_write,
    clear,
    folder_lock,
    remove,
)
from annotated_transformer.toolkit.own_data import aligned_lines, read_pairs
from annotated_transformer.tokenization import Tokenizer

# %% [markdown]
# ## Reading
#
# WMT14 is `wmt/wmt14` on the hub, at a pinned revision: data only, no script is run. Downloads stay in the library's cache, which `HF_HOME` moves; `HF_ENDPOINT` names a mirror. Your own files are copied into a cache beside the output, which is removed when the output is complete.

# %% tags=["export"]
# Entries of the paper's vocabularies
WMT14 = {"wmt14-en-de": 37_000, "wmt14-en-fr": 32_000}
# Of wmt/wmt14 on the Hugging Face hub
REVISION = "b199e406369ec1b7634206d3ded5ba45de2fe696"
# By the ending of a file; all else is text
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


def read_lines(
    paths: Sequence[str], columns: Sequence[str]
) -> Iterator[dict[str, str]]:
    """Yield the pairs of two texts, or of a TSV, in which a missing cell is an empty text.

    Raises ValueError if one of two texts has more lines, or for a line that cannot be read.
    """
    source, target = map(int, columns or (0, 1))
    empty_cells = "\t" * max(source, target)
    for lines in aligned_lines(*paths):
        cells = lines if len(lines) == 2 else (lines[0] + empty_cells).split("\t")
        yield {"source": cells[source], "target": cells[target]}


def read_texts(paths: Sequence[str], columns: Sequence[str], cache: str) -> Any:
    """Return the pairs of two texts, or of a TSV, as a table on disk."""
    from datasets import Dataset

    if len(paths) > 2:
        raise ValueError("give one TSV, or two texts")
    # As tuples: the library would share lists out among its processes
    arguments = {"paths": tuple(paths), "columns": tuple(columns)}
    return Dataset.from_generator(read_lines, cache_dir=cache, gen_kwargs=arguments)


def two_columns(rows: Any, columns: Sequence[str]) -> Any:
    """Return two columns of a table, without names its first two, as source and target.

    Raises ValueError if they are not two columns of text.
    """
    names = list(columns) or rows.column_names[:2]
    rows = rows.select_columns(names)
    types = [getattr(feature, "dtype", "") for feature in rows.features.values()]
    text_columns = [name for name in types if "string" in name]
    if not len(names) == len(text_columns) == 2:
        raise ValueError(f"{' and '.join(names)} are not two columns of text")
    return rows.rename_columns({names[0]: "source", names[1]: "target"})


def read_table(
    paths: Sequence[str], file_format: str, columns: Sequence[str], cache: str
) -> Any:
    """Return the pairs of JSON lines or Parquet as a table on disk."""
    from datasets import load_dataset

    files = list(paths)
    rows = load_dataset(file_format, data_files=files, cache_dir=cache, split="train")
    return two_columns(rows.flatten(), columns)


def read_wmt14(name: str) -> Any:
    """Return the pairs of WMT14 as a table on disk; validation and test come first."""
    from datasets import load_dataset

    _, source, target = name.split("-")
    rows = load_dataset(
        "wmt/wmt14",
        f"{target}-{source}",
        revision=REVISION,
        split="validation+test+train",
    )
    columns = (f"translation.{source}", f"translation.{target}")
    return two_columns(rows.flatten(), columns)


def read_rows(
    name: str, paths: Sequence[str], columns: Sequence[str], cache: str
) -> Any:
    """Return pairs as a table on disk with the columns source and target; WMT14 has no paths.

    Raises ImportError, MissingData or ValueError with a remedy.
    """
    try:
        if not paths:
            return read_wmt14(name)
        ending = Path(paths[0].removesuffix(".gz")).suffix
        if ending in FORMATS:
            return read_table(paths, FORMATS[ending], columns, cache)
        return read_texts(paths, columns, cache)
    except ImportError as error:
        remedy = 'pip install "annotated-transformer[wmt14]"'
        raise ImportError(
            f"large corpora need the library datasets: {remedy}"
        ) from error
    except Exception as error:  # the library raises many unrelated types
        fault = f"cannot be read ({error.__cause__ or error})"
        if paths:
            message = f"{' '.join(paths)} {fault}: mend it"
            raise ValueError(" ".join(message.split())) from error
        message = f"{name} {fault}: check the network and call again, which goes on"
        raise MissingData(" ".join(message.split())) from error


# %% [markdown]
# ## What is kept
#
# Each row gets the first of these outcomes that applies, and the summary counts them all:
#
# | outcome | |
# |---|---|
# | empty | one side is |
# | too long | a side has more than 250 tokens (this and the ratio of 1.5 are fairseq's limits for WMT14) |
# | lengths apart | one side has more than `max_ratio` times the tokens of the other |
# | untranslated | both sides are the same |
# | validation, test | newstest2013 and newstest2014, or each twentieth row of your own files (3,000 at most) |
# | held out | a side is a sentence of validation or test |
# | train | all others |
#
# The rule about untranslated pairs matters most. Of the five kinds of noise that {cite:t}`khayrallah2018impact` added to a training corpus, untranslated sentences did the most harm: the model learned to copy its input.
#
# The held-out sentences pass the same rules, so none is too long to validate on. For a score that others can compare, `evaluate` takes all 3,003 test sentences from sacreBLEU.

# %% tags=["export"]
HELD_OUT = ("validation", "test")
OUTCOMES = [
    "empty",
    "too long",
    "lengths apart",
    "untranslated",
    *HELD_OUT,
    "held out",
    "train",
]
MAX_TOKENS = 250  # on a side


class Rules(NamedTuple):
    """What decides, besides its text, what becomes of a row."""

    parts: Mapping[int, str]  # validation or test, for the numbers of their rows
    held_out: frozenset[str]  # texts that nothing is learned from
    max_ratio: float  # of the tokens of both sides


def id_type(tokenizer: Tokenizer) -> str:
    """Return the smallest type of numbers that holds all ids."""
    return "uint16" if len(tokenizer) <= 1 << 16 else "uint32"


def tidy(source: str | None, target: str | None) -> Pair:
    """Return a pair with each run of white space as one space."""
    return Pair(" ".join((source or "").split()), " ".join((target or "").split()))


def texts(pair: Pair) -> set[str]:
    """Return both texts of a pair, without regard to case."""
    return {pair.source.casefold(), pair.target.casefold()}


def outcome_of(
    number: int, pair: Pair, source: list[int], target: list[int], rules: Rules
) -> str:
    """Return the first outcome that is true of a row, its pair and the ids of both sides."""
    shorter, longer = sorted((len(source), len(target)))
    if shorter == 0:
        return "empty"
    if longer > MAX_TOKENS:
        return "too long"
    if longer > rules.max_ratio * shorter:
        return "lengths apart"
    if pair.source == pair.target:
        return "untranslated"
    if number in rules.parts:
        return rules.parts[number]
    if texts(pair) & rules.held_out:
        return "held out"
    return "train"


def encode_rows(
    rows: Mapping[str, list[str | None]],
    numbers: list[int],
    tokenizer: Tokenizer,
    rules: Rules,
) -> dict[str, list[Any]]:
    """Return for each row its outcome and, to train on, its lengths (S, T) and its tokens."""
    encoded: dict[str, list[Any]] = {"outcome": [], "lengths": [], "tokens": []}
    number_type = id_type(tokenizer)
    for number, pair in zip(numbers, map(tidy, rows["source"], rows["target"])):
        source = tokenizer.encode(pair.source)
        target = tokenizer.encode(pair.target)
        outcome = outcome_of(number, pair, source, target, rules)
        lengths: list[int] = []
        tokens: list[int] = []
        if outcome == "train":
            lengths = [len(source) + 1, len(target) + 1]
            tokens = [*source, EOS, BOS, *target, EOS]
        encoded["outcome"].append(np.int8(OUTCOMES.index(outcome)))
        encoded["lengths"].append(np.array(lengths, np.int32))
        encoded["tokens"].append(np.array(tokens, number_type))
    return encoded


# %% [markdown]
# ## A folder, whole or not at all
#
# | file | |
# |---|---|
# | `tokens.bin` | all ids, example after example, as 16-bit numbers if the vocabulary allows it |
# | `lengths.npy` | the lengths of both sides of each example |
# | `tokenizer.json` | the vocabulary, learned from an even sample of a million training pairs, or the one you gave |
# | `validation.tsv`, `test.tsv` | sentences to measure with |
# | `summary.json` | settings, SHA-256 of sources, tokenizer and tokens, and how many rows met which outcome |
#
# The folder is [written aside and renamed](A_model_io.ipynb#whole-or-not-at-all) at the end. If `prepare` is killed before that, the next call finds in the cache each part that was finished: what was read, and a worker's whole share. If the folder is there and was made from the same files with the same settings, there is nothing to do; any other folder is refused.

# %% tags=["export"]
TOKENS = "tokens.bin"
LENGTHS = "lengths.npy"
SUMMARY = "summary.json"
SMALLEST_VOCABULARY = 260  # the special tokens and all bytes
LARGEST_VOCABULARY = 1_000_000
HELD_OUT_EVERY = 10  # rows; for validation and for test by turns
MOST_HELD_OUT = 3_000  # rows for validation, and for test
SAMPLE = 1_000_000  # pairs that the vocabulary is learned from, at most


def check_arguments(
    vocabulary_size: int,
    tokenizer: Path | None,
    limit: int | None,
    max_ratio: float,
    workers: int,
) -> None:
    """Raise ValueError for what cannot be prepared; a vocabulary_size of 0 is none."""
    if tokenizer:
        one_vocabulary = vocabulary_size == 0
    else:
        one_vocabulary = SMALLEST_VOCABULARY <= vocabulary_size <= LARGEST_VOCABULARY
    if not one_vocabulary:
        raise ValueError(
            "give either a vocabulary_size, 260 to 1,000,000, or a tokenizer"
        )
    numbers = [max_ratio, workers] if limit is None else [max_ratio, workers, limit]
    if not all(number >= 1 for number in numbers):
        raise ValueError("limit, max_ratio and workers must be at least 1")


def settings_of_corpus(
    name: str,
    paths: Sequence[str],
    columns: Sequence[str],
    limit: int | None,
    max_ratio: float,
    vocabulary: str | int,
) -> dict[str, Any]:
    """Return all that decides what is in the folder, as JSON can hold it; files by their SHA-256.

    The vocabulary is the SHA-256 of a tokenizer, or the number of its entries.
    """
    from pooch import file_hash  # slow to import

    data = [file_hash(path) for path in paths] if paths else [name, REVISION]
    return {
        "version": 1,
        "data": data,
        "columns": list(columns),
        "limit": limit,
        "max_ratio": max_ratio,
        "vocabulary": vocabulary,
    }


def already_prepared(output: Path, key: str) -> dict[str, Any] | None:
    """Return the summary of a folder with the same key, or None if nothing is there.

    Raises FileExistsError for anything else.
    """
    if not output.exists():
        return None
    if (output / SUMMARY).is_file():
        with suppress(ValueError, KeyError, TypeError, RecursionError):  # not ours
            summary = json.loads((output / SUMMARY).read_bytes())
            if summary["key"] == key:
                return dict(summary)
    raise FileExistsError(
        f"{output} is there and is not this corpus: take another output"
    )


def held_out_of_wmt14(rows: Any) -> dict[int, str]:
    """Return the part, validation or test, of the rows with which WMT14 begins."""
    parts: list[str] = []
    for part in HELD_OUT:
        parts += [part] * rows.info.splits[part].num_examples
    return dict(enumerate(parts))


def choose_held_out(count: int) -> dict[int, str]:
    """Return rows at equal distances, by number, and the part that each goes to."""
    distance = max(HELD_OUT_EVERY, math.ceil(count / (2 * MOST_HELD_OUT)))
    parts = {}
    for turn, number in enumerate(range(0, count, distance)):
        parts[number] = HELD_OUT[turn % 2]
    return parts


def choose_rows(
    rows: Any, limit: int | None, is_wmt14: bool
) -> tuple[Any, dict[int, str]]:
    """Return the first rows, and which of them are held out; those of WMT14 are not limited."""
    parts = held_out_of_wmt14(rows) if is_wmt14 else {}
    if limit is not None:
        rows = rows.select(range(min(len(rows), len(parts) + limit)))
    if not is_wmt14:
        parts = choose_held_out(len(rows))
    return rows, parts


def texts_of(rows: Any, numbers: Iterable[int]) -> frozenset[str]:
    """Return all texts of some rows, without regard to case."""
    held_out: set[str] = set()
    for row in rows.select(list(numbers)):
        held_out |= texts(tidy(**row))
    return frozenset(held_out)


def learn_vocabulary(rows: Any, held_out: frozenset[str], size: int) -> Tokenizer:
    """Learn a vocabulary from an even sample of the rows to train on."""

    def sample() -> Iterator[Pair]:
        distance = math.ceil(len(rows) / SAMPLE)
        for row in rows.select(range(0, len(rows), distance)):
            pair = tidy(**row)
            if held_out.isdisjoint(texts(pair)):
                yield pair

    return Tokenizer.train(sample(), size)


def encode(
    rows: Any, tokenizer: Tokenizer, rules: Rules, workers: int, cache_file: Path
) -> Any:
    """Return the columns that `encode_rows` makes; a file that holds them already is read."""
    encoded = rows.map(
        encode_rows,
        with_indices=True,
        batched=True,
        remove_columns=rows.column_names,
        fn_kwargs={"tokenizer": tokenizer, "rules": rules},
        num_proc=workers if workers > 1 else None,
        cache_file_name=str(cache_file),
        new_fingerprint=cache_file.stem,
        desc="encoding",
    )
    return encoded.data


# %% tags=["export"]
def write_folder(
    folder: Path, rows: Any, encoded: Any, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Write what `encode` has made of rows; return counts and hashes for the summary.

    Raises ValueError if no pair is left to train on.
    """
    from pooch import file_hash  # slow to import

    outcomes = encoded["outcome"].to_numpy()
    lengths = encoded["lengths"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
    counts = {}
    for number, name in enumerate(OUTCOMES):
        counts[name] = int((outcomes == number).sum())
    if not counts["train"]:
        raise ValueError(f"no pair is left to train on: {counts}")
    folder.mkdir()
    with (folder / TOKENS).open("wb") as file:
        for chunk in encoded["tokens"].chunks:
            file.write(chunk.flatten().to_numpy())
    np.save(folder / LENGTHS, lengths)
    tokenizer.save(folder / TOKENIZER)
    for part in HELD_OUT:
        chosen = rows.select(np.flatnonzero(outcomes == OUTCOMES.index(part)))
        pairs = [tidy(**row) for row in chosen]
        lines = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
        (folder / f"{part}.tsv").write_text("".join(lines), encoding="utf-8")
    return {
        "pairs": counts,
        "tokens": int(lengths.sum()),
        "tokenizer": tokenizer.sha256,
        "sha256": file_hash(folder / TOKENS),
    }


def prepare(
    data: Sequence[str | Path],
    /,
    output: Path | None = None,
    columns: Sequence[str] = (),
    vocabulary_size: int | None = None,
    tokenizer: Path | None = None,
    limit: int | None = None,
    max_ratio: float = 1.5,
    workers: int = 1,
) -> dict[str, Any]:
    """Encode a corpus of any size into a folder for `open_corpus`, and return its summary.

    Stopped at any moment, it leaves no folder but its cache, and goes on when it is called again.

    Args:
        data: wmt14-en-de, wmt14-en-fr, or files: one TSV, two texts, JSON lines or Parquet.
        output: The folder, needed for files; that of WMT14 has its name if not given.
        columns: Source and target, such as 0 1 in a TSV, translation.de translation.en elsewhere.
        vocabulary_size: Entries of the joint vocabulary; WMT14 has the paper's by default.
        tokenizer: File of a tokenizer to use instead.
        limit: Read so many training pairs at most.
        max_ratio: Drop a pair if one side has more than so many times the other's tokens.
        workers: Processes that encode.

    Raises:
        FileExistsError: the folder holds anything else.
        BlockingIOError: another process is at it.
        FileNotFoundError, ImportError, MissingData, ValueError: with a remedy.
    """
    names = [data] if isinstance(data, str) else [str(name) for name in data]
    if not names:
        raise ValueError(f"give {', '.join(WMT14)}, or files")
    name = names[0]
    paths = [] if len(names) == 1 and name in WMT14 else names
    size = vocabulary_size or 0
    if not size and not tokenizer:
        size = WMT14.get(name, 0)
    check_arguments(size, tokenizer, limit, max_ratio, workers)
    given_tokenizer = Tokenizer.load(tokenizer) if tokenizer else None
    settings = settings_of_corpus(
        name,
        paths,
        columns,
        limit,
        max_ratio,
        vocabulary=given_tokenizer.sha256 if given_tokenizer else size,
    )
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    output = Path(output or name)
    summary = already_prepared(output, key)
    if summary is not None:
        print(f"{output} is prepared already")
        return summary

    cache = output.with_name(f"{output.name}.prepare.cache")
    with folder_lock(cache), atomic_write(output) as folder:
        clear(output.parent, output.name)
        rows = read_rows(name, paths, columns, str(cache / key))
        rows, parts = choose_rows(rows, limit, is_wmt14=not paths)
        rules = Rules(parts, texts_of(rows, parts), max_ratio)
        vocabulary = given_tokenizer or learn_vocabulary(rows, rules.held_out, size)
        encoded = encode(rows, vocabulary, rules, workers, cache / f"{key}.arrow")
        counts = write_folder(folder, rows, encoded, vocabulary)
        summary = {"key": key, "settings": settings, **counts}
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2))
    remove(cache)
    return summary


# %% tags=["export"]
def read_held_out(path: Path) -> list[Pair]:
    """Read the pairs of validation or test, of which there may be none."""
    return read_pairs(path) if path.stat().st_size else []


def open_corpus(
    folder: str | Path,
) -> tuple[EncodedCorpus, Tokenizer, list[Pair], list[Pair]]:
    """Open what `prepare` made: examples on disk, tokenizer, and pairs for validation and test.

    Raises FileNotFoundError, or ValueError if it is damaged.
    """
    folder = Path(folder)
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
        lengths = np.load(folder / LENGTHS)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        tokens = np.memmap(folder / TOKENS, id_type(tokenizer), "r").view(np.ndarray)
        if tokenizer.sha256 != summary["tokenizer"]:
            raise ValueError(f"{TOKENIZER} is not the one that it was encoded with")
        number_of_tokens = lengths.sum() + len(lengths)  # a target has one more
        if len(tokens) != number_of_tokens or tokens.max() >= len(tokenizer):
            raise ValueError(f"{TOKENS} or {LENGTHS} was changed")
        corpus = EncodedCorpus(tokens, lengths, summary["sha256"])
    except (
        AttributeError,
        EOFError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{folder} is damaged ({error}): remove and prepare it again"
        ) from error
    validation, test = (read_held_out(folder / f"{part}.tsv") for part in HELD_OUT)
    return corpus, tokenizer, validation, test


# %% [markdown]
# ## In use
#
# Four hundred pairs of the grammar and three bad lines, interrupted just before the end. (The ratio of 1.5, counted in tokens, is stricter than that of [your own pairs](C_own_data.ipynb#cleaning), and drops 17 good pairs as well.)

# %% tags=["remove-cell"]
import datasets

datasets.disable_progress_bars()

# %%
from tempfile import TemporaryDirectory
from unittest.mock import patch

from annotated_transformer.batching import batches
from annotated_transformer.toolkit.synchronous_grammar import grammar

home = TemporaryDirectory()
table = Path(home.name, "pairs.tsv")
output = Path(home.name, "corpus")
bad = ["no translation", "so many words for it\tein", "name\tname"]
table.write_text(
    "\n".join([*bad, *(f"{p.source}\t{p.target}" for p in grammar(400, seed=1))])
)
try:
    with patch.object(np, "save", side_effect=KeyboardInterrupt):
        prepare([table], output, vocabulary_size=500)
except KeyboardInterrupt:
    print("a folder:", output.exists())
summary = prepare([table], output, vocabulary_size=500)
print(summary["pairs"])

# %% tags=["remove-cell"]
assert summary["pairs"]["empty"] == summary["pairs"]["untranslated"] == 1

# %% [markdown]
# `open_corpus` returns the `EncodedCorpus` of [batching](15_batching.ipynb#from-pairs-to-arrays), with its tokens left on disk until they are read:

# %%
corpus, tokenizer, validation, test = open_corpus(output)
print(sorted(path.name for path in output.iterdir()))
print(len(corpus), "examples,", corpus.tokens.dtype, type(corpus.tokens.base).__name__)
print(tokenizer.decode(corpus[0].source), "|", tokenizer.decode(corpus[0].target))
print(
    sum(len(batch.source) for batch in batches(corpus, max_tokens=500)),
    "examples in batches",
)
print(len(validation), len(test), "to measure with")

# %% [markdown]
# A damaged folder is refused:

# %%
with (output / TOKENS).open("ab") as file:
    file.truncate((output / TOKENS).stat().st_size - 100)
try:
    open_corpus(output)
except ValueError as error:
    print(str(error).replace(home.name, ""))
home.cleanup()

# %% [markdown]
# ## What it costs
#
# `python -m benchmarks.speed.prepare` builds Parquet files in WMT14's layout from real sentences, prepares them, opens the folder and plans an epoch, each in a separate process. This is its committed log:

# %%
log = Path("../benchmarks/results/prepare.jsonl")
records = (
    [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
)
for record in records[1:]:
    print(record.pop("what").replace("_", " "))
    for name, value in record.items():
        print(f"  {name.replace('_', ' ')}: {value}")
if not records:
    print("not measured yet")

# %% [markdown]
# Two million pairs took 36 minutes by the clock, 11 of the CPU's time, and at most 1.6 GB of memory. Opening and planning were timed with three copies of them, 5.7 million examples. Computed from the CPU's time, all of WMT14 takes 5.6 minutes on eight cores, at best.
