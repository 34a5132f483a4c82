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
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pooch import file_hash

from annotated_transformer.batching import EncodedCorpus
from annotated_transformer.data import MissingData, Pair
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.model_io import TOKENIZER, atomic_write, folder_lock, remove
from annotated_transformer.own_data import read_pairs, text_lines
from annotated_transformer.tokenization import Tokenizer

# %% [markdown]
# ## Reading

# %% tags=["export"]
WMT14 = {"wmt14-en-de": 37_000, "wmt14-en-fr": 32_000}  # entries of the paper's vocabularies
REVISION = "b199e406369ec1b7634206d3ded5ba45de2fe696"  # of wmt/wmt14 on the Hugging Face hub
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}  # all else is text


def read_lines(paths: Sequence[str], columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the pairs of two texts, or of a TSV, in which a missing cell is an empty text.

    Raises ValueError if one of two texts has more lines, or for a line that cannot be read.
    """
    source, target = map(int, columns or (0, 1))
    for number, lines in enumerate(zip_longest(*map(text_lines, map(Path, paths))), start=1):
        if None in lines:
            ended = paths[lines.index(None)]
            raise ValueError(f"only {ended} ends before line {number:,}: which line is missing?")
        cells = lines if len(lines) == 2 else (lines[0] + "\t" * max(source, target)).split("\t")
        yield {"source": cells[source], "target": cells[target]}


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
            lines = {"paths": (*paths,), "columns": (*columns,)}  # lists would be shared out
            rows = Dataset.from_generator(read_lines, cache_dir=cache, gen_kwargs=lines)
            columns = ("source", "target")
        names = [*columns] or rows.column_names[:2]
        rows = rows.select_columns(names)
        if len(names) != 2 or any("string" not in str(kind) for kind in rows.features.values()):
            raise ValueError(f"{' and '.join(names)} are not two columns of text")
        return rows.rename_columns(dict(zip(names, ("source", "target"))))
    except ImportError as error:
        remedy = 'pip install "annotated-transformer[wmt14]"'
        raise ImportError(f"large corpora need the library datasets: {remedy}") from error
    except Exception as error:  # of many unrelated types
        remedy = "mend it" if paths else "check the network and call again, which goes on"
        message = f"{' '.join(paths) or name} cannot be read ({error.__cause__ or error}): {remedy}"
        raise (ValueError if paths else MissingData)(" ".join(message.split())) from error


# %% [markdown]
# ## What is kept?

# %% tags=["export"]
RULES = ("empty", "too long", "lengths apart", "untranslated")
OUTCOMES = (*RULES, "validation", "test", "held out", "train")
MAX_TOKENS = 250  # on either side
HELD_OUT = 3_000  # of one's own pairs for validation, and for the test; one in 20 at most
SAMPLE = 1_000_000  # pairs that the vocabulary is learned from, at most
VERSION = 1  # of these rules and of the folder


def id_type(tokenizer: Tokenizer) -> str:
    """Return the smallest type of numbers that holds all ids."""
    return "uint16" if len(tokenizer) <= 1 << 16 else "uint32"


def tidy(source: str | None, target: str | None) -> Pair:
    """Return a pair with each run of white space as one space."""
    return Pair(" ".join((source or "").split()), " ".join((target or "").split()))


def texts(pair: Pair) -> set[str]:
    """Return both texts of a pair, without regard to case."""
    return {text.casefold() for text in pair[:2]}


def encode_rows(
    rows: Mapping[str, list[str | None]], numbers: list[int], tokenizer: Tokenizer,
    parts: Mapping[int, str], held_out: frozenset[str], max_ratio: float,
) -> dict[str, list[Any]]:  # fmt: skip
    """Return for each row the first outcome that is true and, to train on, (S, T) and its tokens.

    `parts` are the rows, by number, for validation and test. `held_out` are their texts: what has
    one of them is not trained on.
    """
    encoded: dict[str, list[Any]] = {"outcome": [], "lengths": [], "tokens": []}
    for number, pair in zip(numbers, map(tidy, rows["source"], rows["target"])):
        source, target = tokenizer.encode(pair.source), tokenizer.encode(pair.target)
        shorter, longer = sorted((len(source), len(target)))
        part = parts.get(number)
        outcome = [
            shorter == 0, longer > MAX_TOKENS, longer > max_ratio * shorter,
            pair.source == pair.target, part == "validation", part == "test",
            not held_out.isdisjoint(texts(pair)), True,
        ].index(True)  # fmt: skip
        kept = OUTCOMES[outcome] == "train"  # times a list: the list, or an empty one
        tokens = [*source, EOS, BOS, *target, EOS] * kept
        encoded["outcome"].append(np.int8(outcome))
        encoded["lengths"].append(np.array([len(source) + 1, len(target) + 1] * kept, np.int32))
        encoded["tokens"].append(np.array(tokens, id_type(tokenizer)))
    return encoded


# %% [markdown]
# ## A folder, whole or not at all

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
    if not min(1 if limit is None else limit, max_ratio, workers) >= 1:
        raise ValueError("limit, max_ratio and workers must be at least 1")
    settings = {
        "version": VERSION, "data": [*map(file_hash, paths)] or [name, REVISION],
        "columns": [*columns], "limit": limit, "max_ratio": max_ratio,
        "vocabulary": file_hash(tokenizer) if tokenizer else size,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    if (output / SUMMARY).is_file() and key in (told := (output / SUMMARY).read_text()):
        print(f"{output} is prepared already")
        return dict(json.loads(told))
    if output.exists():
        raise FileExistsError(f"{output} holds something else: remove it, or take another folder")
    cache = output.with_name(f"{output.name}.{key}.cache")
    with folder_lock(cache), atomic_write(output) as folder:
        rows = read_rows(name, paths, columns, str(cache))
        if paths:
            rows = rows.select(range(min(len(rows), limit or len(rows))))
            step = max(10, len(rows) // (2 * HELD_OUT))
            parts = {n: ("validation", "test")[n // step % 2] for n in range(0, len(rows), step)}
        else:
            first, second = (rows.info.splits[p].num_examples for p in ("validation", "test"))
            parts = {n: "validation" if n < first else "test" for n in range(first + second)}
            rows = rows.select(range(min(len(rows), len(parts) + (limit or len(rows)))))
        held_out = frozenset(text for row in rows.select(parts) for text in texts(tidy(**row)))
        sample = (tidy(**row) for row in rows.select(range(0, len(rows), -(-len(rows) // SAMPLE))))
        train = (pair for pair in sample if held_out.isdisjoint(texts(pair)))
        known = Tokenizer.load(tokenizer) if tokenizer else Tokenizer.train(train, size)
        rules = {"parts": parts, "held_out": held_out, "max_ratio": max_ratio}
        encoded = rows.map(
            encode_rows, with_indices=True, batched=True, remove_columns=rows.column_names,
            fn_kwargs={"tokenizer": known, **rules}, num_proc=workers if workers > 1 else None,
            cache_file_name=str(cache / "encoded.arrow"), new_fingerprint=key, desc="encoding",
        ).data  # fmt: skip
        outcomes = encoded["outcome"].to_numpy()
        lengths = encoded["lengths"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
        counts = {name: int((outcomes == number).sum()) for number, name in enumerate(OUTCOMES)}
        if not counts["train"]:
            raise ValueError(f"no pair is left to train on: {counts}")
        folder.mkdir()
        with (folder / TOKENS).open("wb") as file:
            for chunk in encoded["tokens"].chunks:
                file.write(chunk.flatten().to_numpy())
        np.save(folder / LENGTHS, lengths)
        (folder / TOKENIZER).write_text(known.to_json(), encoding="utf-8")
        for part in ("validation", "test"):
            chosen = rows.select(np.flatnonzero(outcomes == OUTCOMES.index(part)))
            lines = "".join("{}\t{}\n".format(*tidy(**row)) for row in chosen)
            (folder / f"{part}.tsv").write_text(lines, encoding="utf-8")
        summary = {
            "key": key, "settings": settings, "pairs": counts, "tokens": int(lengths.sum()),
            "tokenizer": known.sha256, "sha256": file_hash(folder / TOKENS),
        }  # fmt: skip
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2))
    remove(cache)
    return summary


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
