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
# # Large corpora
#
# This appendix turns millions of sentence pairs into token ids on disk, in bounded memory, and hands them to training (section 5.1 of the paper).

# %% tags=["export"]
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pooch import file_hash

from annotated_transformer.batching import EncodedCorpus
from annotated_transformer.data import MissingData, Pair
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.model_io import TOKENIZER, atomic_write, folder_lock, remove
from annotated_transformer.own_data import hash_share, read_pairs, stream_pairs
from annotated_transformer.tokenization import Tokenizer

# %% [markdown]
# `prepare` takes the paper's corpora by name, or files of your own. The library [datasets](https://huggingface.co/docs/datasets) downloads, caches and reads them, and runs our function on all rows in several processes; it comes with `pip install "annotated-transformer[wmt14]"`.
#
# ## Reading
#
# WMT14 lies on the Hugging Face hub, at a revision that is pinned here. Your own pairs may be one TSV, two texts, JSON lines or Parquet.

# %% tags=["export"]
WMT14 = {"wmt14-en-de": 37_000, "wmt14-en-fr": 32_000}  # entries of the paper's vocabularies
REVISION = "b199e406369ec1b7634206d3ded5ba45de2fe696"  # of wmt/wmt14 on the Hugging Face hub
NEWSTEST = (3_000, 6_003)  # rows where validation (newstest2013) and test (newstest2014) end
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}  # all else is text


def text_rows(paths: list[str], columns: tuple[int, int]) -> Iterator[dict[str, str]]:
    """Yield the pairs of two texts, or of a TSV, as rows of a table."""
    for pair in stream_pairs(paths[0], paths[1] if len(paths) == 2 else None, columns):
        yield {"source": pair.source, "target": pair.target}


def read_rows(name: str, paths: list[str], columns: Sequence[str], cache: str) -> Any:
    """Return pairs as a table on disk with the columns source and target; of WMT14, which has no
    paths, validation and test come first. Raises ImportError, MissingData or ValueError.
    """
    try:
        from datasets import Dataset, load_dataset

        if not paths:
            _, source, target = name.split("-")
            parts = {"revision": REVISION, "split": "validation+test+train"}
            rows = load_dataset("wmt/wmt14", f"{target}-{source}", **parts).flatten()
            columns = (f"translation.{source}", f"translation.{target}")
        elif kind := FORMATS.get(Path(paths[0].removesuffix(".gz")).suffix):
            rows = load_dataset(kind, data_files=paths, cache_dir=cache, split="train").flatten()
        else:
            given = {"paths": paths, "columns": tuple(map(int, columns or (0, 1)))}
            rows = Dataset.from_generator(text_rows, cache_dir=cache, gen_kwargs=given)
            columns = ("source", "target")
        names = [*columns] or rows.column_names[:2]
        return rows.select_columns(names).rename_columns(dict(zip(names, ("source", "target"))))
    except ImportError as error:
        remedy = 'pip install "annotated-transformer[wmt14]"'
        raise ImportError(f"large corpora need the library datasets: {remedy}") from error
    except Exception as error:  # of many unrelated types
        kind, remedy = (ValueError, "mend it") if paths else (MissingData, "call again online")
        raise kind(f"{name} cannot be read ({error.__cause__ or error}): {remedy}") from error


# %% [markdown]
# ## What is kept?
#
# A pair is dropped if a side is empty, has more than 250 tokens or much more than the other, or if both sides are the same. The same rules hold for the pairs put aside for validation and test, so none of them is too long for a batch. Of your own pairs, the hash of the source decides which are put aside.

# %% tags=["export"]
OUTCOMES = ("empty", "too long", "lengths apart", "untranslated", "validation", "test", "train")
MAX_TOKENS = 250  # on either side
HELD_OUT = 3_000  # of one's own pairs for validation, and for the test; one in 20 at most
SAMPLE = 1_000_000  # pairs that the vocabulary is learned from, at most


def tidy(text: str | None) -> str:
    """Return a text with each run of white space as one space."""
    return " ".join((text or "").split())


def id_type(tokenizer: Tokenizer) -> str:
    """Return the smallest type of numbers that holds all ids."""
    return "uint16" if len(tokenizer) <= 1 << 16 else "uint32"


def encode_rows(
    rows: Mapping[str, list[str | None]], numbers: list[int], tokenizer: Tokenizer,
    ends: tuple[int, int], share: float, max_ratio: float,
) -> dict[str, list[Any]]:  # fmt: skip
    """Return for each row the first outcome that is true and, to train on, (S, T) and its tokens.

    Rows below `ends` are for validation and test, or else a `share` of all sources for each.
    """
    encoded: dict[str, list[Any]] = {"outcome": [], "lengths": [], "tokens": []}
    for number, *pair in zip(numbers, map(tidy, rows["source"]), map(tidy, rows["target"])):
        source, target = map(tokenizer.encode, pair)
        shorter, longer = sorted((len(source), len(target)))
        at = hash_share(pair[0], 0)
        outcome = [
            shorter == 0, longer > MAX_TOKENS, longer > max_ratio * shorter, pair[0] == pair[1],
            number < ends[0] or share <= at < 2 * share, number < ends[1] or at < share, True,
        ].index(True)  # fmt: skip
        kept = OUTCOMES[outcome] == "train"  # times a list: the list, or an empty one
        tokens = [*source, EOS, BOS, *target, EOS] * kept
        encoded["outcome"].append(np.int8(outcome))
        encoded["lengths"].append(np.array([len(source) + 1, len(target) + 1] * kept, np.int32))
        encoded["tokens"].append(np.array(tokens, id_type(tokenizer)))
    return encoded


# %% [markdown]
# ## A folder, whole or not at all
#
# | file | what it holds |
# |---|---|
# | `tokens.bin` | all token ids, pair after pair, 2 bytes each (4 for a vocabulary above 65,536) |
# | `lengths.npy` | $S$ and $T$ of each pair |
# | `tokenizer.json` | the joint vocabulary |
# | `validation.tsv`, `test.tsv` | the pairs put aside, as text |
# | `summary.json` | settings, how many pairs had which outcome, hashes |
#
# `open_corpus` maps `tokens.bin` into memory, so a corpus larger than memory reads like a list; `training.train` takes it as it is.

# %% tags=["export"]
TOKENS, LENGTHS, SUMMARY = "tokens.bin", "lengths.npy", "summary.json"


def prepare(
    data: str | Path | Sequence[str | Path], output: str | Path, *, columns: Sequence[str] = (),
    vocabulary_size: int | None = None, tokenizer: str | Path | None = None,
    limit: int | None = None, max_ratio: float = 1.5, workers: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Encode a corpus of any size into a folder for `open_corpus`, and return its summary.

    `data` is "wmt14-en-de" or "wmt14-en-fr", or your files: one TSV, two texts with a sentence a
    line, JSON lines (each plain or .gz) or Parquet. `columns` are those of source and target, by
    number in a TSV, by name elsewhere, as "translation.de" within another; by default the first
    two. The vocabulary has `vocabulary_size` entries, or is that of the file `tokenizer`. Of the
    training pairs, the first `limit` are read; one whose sides are more than `max_ratio` apart is
    dropped. `workers` processes encode.

    Stopped at any moment, it leaves no folder, and goes on when it is called again. Raises
    FileExistsError for a folder that holds anything else, BlockingIOError while another process
    is at it, and FileNotFoundError, ImportError, MissingData or ValueError with a remedy.
    """
    output, name = Path(output), str(data)
    files = [data] if isinstance(data, str | Path) else data
    paths = [] if name in WMT14 else [str(path) for path in files]
    size = vocabulary_size or (0 if tokenizer else WMT14.get(name, 0))
    if bool(size) == bool(tokenizer):
        raise ValueError("give either a vocabulary_size, such as 16000, or a tokenizer")
    settings = {
        "data": [*map(file_hash, paths)] or [name, REVISION], "columns": [*columns],
        "limit": limit, "max_ratio": max_ratio,
        "vocabulary": file_hash(tokenizer) if tokenizer else size,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    if (output / SUMMARY).is_file() and key in (told := (output / SUMMARY).read_text()):
        return dict(json.loads(told))
    if output.exists():
        raise FileExistsError(f"{output} holds something else: remove it, or take another folder")
    cache = output.with_name(f"{output.name}.{key}.cache")
    with folder_lock(cache), atomic_write(output) as folder:
        rows, ends = read_rows(name, paths, columns, str(cache)), (0, 0) if paths else NEWSTEST
        rows = rows.select(range(min(len(rows), ends[1] + (limit or len(rows)))))
        share = min(HELD_OUT / max(len(rows), 1), 0.05) if paths else 0.0
        sample = rows.select(range(ends[1], len(rows), -(-len(rows) // SAMPLE) or 1))
        pairs = (Pair(tidy(row["source"]), tidy(row["target"])) for row in sample)
        train = (pair for pair in pairs if hash_share(pair.source, 0) >= 2 * share)
        known = Tokenizer.load(tokenizer) if tokenizer else Tokenizer.train(train, size)
        encoded = rows.map(
            encode_rows, with_indices=True, batched=True, remove_columns=rows.column_names,
            fn_kwargs={"tokenizer": known, "ends": ends, "share": share, "max_ratio": max_ratio},
            num_proc=workers if workers > 1 else None, new_fingerprint=key, desc="encoding",
            cache_file_name=str(cache / "encoded.arrow"),
        )  # fmt: skip
        summary = {"key": key, "settings": settings, "tokenizer": known.sha256}
        folder.mkdir()
        known.save(folder / TOKENIZER)
        summary |= write_corpus(folder, rows, encoded.data)
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2))
    remove(cache)
    return summary


def write_corpus(folder: Path, rows: Any, encoded: Any) -> dict[str, Any]:
    """Write ids, lengths and held-out pairs into a folder; return how many pairs became what."""
    outcomes = encoded["outcome"].to_numpy()
    counts = {name: int((outcomes == number).sum()) for number, name in enumerate(OUTCOMES)}
    if not counts["train"]:
        raise ValueError(f"no pair is left to train on: {counts}")
    with (folder / TOKENS).open("wb") as file:
        for chunk in encoded["tokens"].chunks:
            file.write(chunk.flatten().to_numpy())
    lengths = encoded["lengths"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
    np.save(folder / LENGTHS, lengths)
    for part in ("validation", "test"):
        chosen = rows.select(np.flatnonzero(outcomes == OUTCOMES.index(part)))
        lines = "".join(f"{tidy(row['source'])}\t{tidy(row['target'])}\n" for row in chosen)
        (folder / f"{part}.tsv").write_text(lines, encoding="utf-8")
    return {"pairs": counts, "tokens": int(lengths.sum()), "sha256": file_hash(folder / TOKENS)}


class PreparedCorpus(NamedTuple):
    """What a prepared folder holds: examples to train on, on disk, and pairs to measure with."""

    corpus: EncodedCorpus
    tokenizer: Tokenizer
    validation: list[Pair]
    test: list[Pair]


def open_corpus(folder: str | Path) -> PreparedCorpus:
    """Open what `prepare` made; raises FileNotFoundError, or ValueError if it is damaged."""
    folder = Path(folder)
    try:
        summary, lengths = json.loads((folder / SUMMARY).read_bytes()), np.load(folder / LENGTHS)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        tokens = np.memmap(folder / TOKENS, id_type(tokenizer), "r").view(np.ndarray)
        if tokenizer.sha256 != summary["tokenizer"]:
            raise ValueError(f"{TOKENIZER} is not the one that it was encoded with")
        if len(tokens) != lengths.sum() + len(lengths):
            raise ValueError(f"{TOKENS} or {LENGTHS} was cut short")
        corpus = EncodedCorpus(tokens, lengths, summary["sha256"])
    except (EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged ({error}): copy or prepare it again") from error
    texts = [folder / f"{part}.tsv" for part in ("validation", "test")]
    pairs = (read_pairs(path) if path.stat().st_size else [] for path in texts)
    return PreparedCorpus(corpus, tokenizer, *pairs)


# %% [markdown]
# ## Trying it out
#
# Two thousand pairs of the grammar, as a TSV of the kind that you may have. The result is the same with any number of workers, and the arrays hold exactly what [batching](15_batching.ipynb) makes of the same pairs.

# %% tags=["nbval-ignore-output"]
import tempfile
import warnings

from annotated_transformer.synchronous_grammar import grammar

warnings.filterwarnings("ignore", message="IProgress")  # a progress bar that is not installed
room = tempfile.TemporaryDirectory()
table = Path(room.name, "pairs.tsv")
table.write_text("".join(f"{p.source}\t{p.target}\n" for p in grammar(2000)), encoding="utf-8")
summary = prepare(table, Path(room.name, "prepared"), vocabulary_size=800, max_ratio=3)
print(json.dumps(summary["pairs"]))

# %%
from annotated_transformer.batching import encode_pairs

corpus, tokenizer, validation, test = open_corpus(Path(room.name, "prepared"))
texts = [Pair(*map(tokenizer.decode, example)) for example in corpus]
again = encode_pairs(tokenizer, texts)
assert (again.tokens == corpus.tokens).all() and (again.lengths == corpus.lengths).all()
print(texts[0].source, "->", texts[0].target)

# %% [markdown]
# For WMT14, the command line does the same with `annotated-transformer prepare wmt14-en-de`; [WMT14](27_wmt14.ipynb) goes on from there. `benchmarks/prepare.py` measures how long it takes and how much memory, on millions of real lines.
