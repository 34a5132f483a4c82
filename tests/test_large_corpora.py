"""A large corpus is what `encode_pairs` makes of the same text, however it is stored and however
often preparing it was interrupted; and a damaged or foreign folder is refused.
"""

import errno
import gzip
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

datasets = pytest.importorskip("datasets", reason='pip install ".[wmt14]"')
pa = pytest.importorskip("pyarrow")

from pyarrow import parquet  # noqa: E402
from wmt14_hub import build, serve, write_parquet  # noqa: E402

from annotated_transformer.batching import batches, encode_pairs  # noqa: E402
from annotated_transformer.data import Pair  # noqa: E402
from annotated_transformer.tokenization import Tokenizer  # noqa: E402
from annotated_transformer.toolkit import large_corpora  # noqa: E402
from annotated_transformer.toolkit.large_corpora import open_corpus, prepare  # noqa: E402
from annotated_transformer.toolkit.model_io import load_tokenizer, tokenizer_hash  # noqa: E402
from annotated_transformer.toolkit.own_data import hash_share, letters, read_pairs  # noqa: E402
from annotated_transformer.toolkit.synchronous_grammar import grammar  # noqa: E402

PAIRS = [Pair(english, german) for german, english, _ in grammar(700, seed=0)]
NEAR = next(
    p for p in PAIRS[1:10] if abs(len(p.source) - len(p.target)) < 4
)  # in length


def position(pair: Pair) -> float:
    """Where chance puts a pair; the lowest are held out, for validation and test by turns."""
    return hash_share(letters(pair.source), seed=0)


# Before the odd lines, which are the same to chance
FIRST, SECOND = sorted(PAIRS[:50], key=position)[:2]
ODD = {  # lines of a TSV, and what becomes of them
    "": "empty",
    "nothing else": "empty",
    "\t": "empty",
    " \u2028\tein Wort": "empty",
    "word " * 300 + "\t" + "Wort " * 300: "too long",
    "the cat sleeps well here now\tKatze": "lengths apart",
    "the same words here\tthe  same words here": "untranslated",
    f"{FIRST.source[0].swapcase()}{FIRST.source[1:]}\t{FIRST.target}!": "held out",
    f"{SECOND.source}?\t{SECOND.target}": "held out",
    NEAR.source.replace(" ", "\u2028 \r\u0085") + f"\t\xa0{NEAR.target}\r": "train",
    "a dog says </s> and <pad>\tein Hund sagt </s> und <pad>": "train",
}


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No library cache outside of the test; and the environment that `datasets` replaces."""
    monkeypatch.setattr(os, "environ", os.environ)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TSV with odd lines in it, each at a place that is not held out."""
    lines = [f"{pair.source}\t{pair.target}" for pair in PAIRS]
    for number, line in enumerate(ODD):
        lines.insert(50 + 10 * number + number % 7 + 1, line)
    path = tmp_path_factory.mktemp("table") / "pairs.tsv"
    path.write_bytes("\n".join(lines).encode("utf-8-sig"))
    return path


@pytest.fixture(scope="module")
def prepared(table: Path) -> Path:
    """A folder that was prepared without any disturbance."""
    prepare([table], table.parent / "corpus", vocabulary_size=400)
    return table.parent / "corpus"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tidied(line: str) -> Pair:
    source, target = (line + "\t").split("\t")[:2]
    return Pair(" ".join(source.split()), " ".join(target.split()))


# --- What comes out ---


def test_it_is_what_encode_pairs_makes_of_the_rows_that_are_kept(
    table: Path, prepared: Path
) -> None:
    corpus, tokenizer, validation, test = open_corpus(prepared)
    lines = table.read_bytes().decode("utf-8-sig").split("\n")
    pairs = list(map(tidied, lines))
    usable = [p for p in pairs if p.source and p.target and p.source != p.target]
    drawn = sorted({position(pair): pair for pair in reversed(usable)}.items())
    drawn = drawn[: math.ceil(len(usable) / 10)]
    parts = {
        id(pair): ("validation", "test")[n % 2] for n, (_, pair) in enumerate(drawn)
    }
    held_out = {text.lower() for _, pair in drawn for text in pair[:2]}
    outcomes = []
    for pair in pairs:
        shorter, longer = sorted(len(tokenizer.encode(text)) for text in pair[:2])
        if shorter == 0:
            outcomes.append("empty")
        elif longer > 250:
            outcomes.append("too long")
        elif longer > 1.5 * shorter:
            outcomes.append("lengths apart")
        elif pair.source == pair.target:
            outcomes.append("untranslated")
        elif id(pair) in parts:
            outcomes.append(parts[id(pair)])
        else:
            apart = {text.lower() for text in pair[:2]}.isdisjoint(held_out)
            outcomes.append("train" if apart else "held out")
    by_outcome = {
        name: [p for p, o in zip(pairs, outcomes) if o == name] for name in outcomes
    }
    assert (validation, test) == (by_outcome["validation"], by_outcome["test"])
    expected = encode_pairs(tokenizer, by_outcome["train"])
    assert (
        np.array_equal(corpus.tokens, expected.tokens)
        and corpus.tokens.dtype == np.uint16
    )
    assert np.array_equal(corpus.lengths, expected.lengths) and len(corpus) > 300
    summary = json.loads((prepared / "summary.json").read_bytes())
    counts = {name: outcomes.count(name) for name in large_corpora.OUTCOMES}
    assert summary["pairs"] == counts and min(counts.values()) > 0
    odd = dict(zip(lines, outcomes))
    assert {line: odd[line] for line in ODD} == ODD
    assert str(table.parent) not in json.dumps(summary)


def test_training_pairs_and_the_sample_for_the_vocabulary_hold_no_held_out_sentence(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learned: list[Pair] = []
    train = Tokenizer.train

    def remember(pairs: Iterator[Pair], size: int) -> Tokenizer:
        learned.extend(pairs)
        return train(learned, size)

    monkeypatch.setattr(Tokenizer, "train", remember)
    monkeypatch.setattr(large_corpora, "SAMPLE", 300)
    prepare([table], tmp_path / "out", vocabulary_size=300)
    corpus, tokenizer, validation, test = open_corpus(tmp_path / "out")
    held_out = {text.lower() for pair in validation + test for text in pair[:2]}
    seen = {tokenizer.decode(ids).lower() for example in corpus for ids in example}
    seen |= {text.lower() for pair in learned for text in pair[:2]}
    assert held_out and not held_out & seen and 100 < len(learned) <= 300


def test_a_sentence_with_another_mark_is_no_other_sentence(tmp_path: Path) -> None:
    """As where `train` splits pairs: none is held out with one mark and learned with another."""
    path = tmp_path / "marks.tsv"
    rows = []
    for pair in PAIRS[:300]:
        for mark in ".!":
            rows.append(f"{pair.source[:-1]}{mark}\t{pair.target[:-1]}{mark}\n")
    path.write_text("".join(rows))
    prepare([path], tmp_path / "out", vocabulary_size=300, max_ratio=9)
    corpus, tokenizer, validation, test = open_corpus(tmp_path / "out")
    held_out = {letters(text) for pair in validation + test for text in pair[:2]}
    learned = {letters(tokenizer.decode(ids)) for example in corpus for ids in example}
    assert len(held_out) > 50 and len(learned) > 300
    assert held_out.isdisjoint(learned)


def test_a_wrong_column_is_not_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first pair is shown as it was read. With the right columns, all goes well."""
    path = tmp_path / "numbered.tsv"
    rows = [f"{n}\t{pair.target}\t{pair.source}\n" for n, pair in enumerate(PAIRS)]
    path.write_text("id\tDeutsch\tEnglish\n" + "".join(rows))
    message = "701 of 701 pairs have a fault. The first was read as 'id' and 'Deutsch'"
    with pytest.raises(ValueError, match=message):
        prepare([path], tmp_path / "out", vocabulary_size=300)
    assert "701 lengths apart" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    prepare([path], tmp_path / "out", columns=(1, 2), vocabulary_size=300)


@pytest.mark.parametrize("most", [3, 7, 20])
def test_no_more_is_held_out_than_the_most(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    monkeypatch.setattr(large_corpora, "MOST_HELD_OUT", most)
    prepare([table], tmp_path / "out", vocabulary_size=300)
    assert 0 < max(map(len, open_corpus(tmp_path / "out")[2:])) <= most


def write_texts(folder: Path) -> list[Path]:
    paths = [folder / "pairs.en.gz", folder / "pairs.de"]
    paths[0].write_bytes(
        gzip.compress("".join(f"{p.source}\n" for p in PAIRS).encode())
    )
    paths[1].write_text("".join(f"{pair.target}\r\n" for pair in PAIRS), newline="")
    return paths


def write_table(folder: Path) -> list[Path]:
    path = folder / "pairs.tsv.gz"
    path.write_bytes(
        gzip.compress("".join(f"{p[1]}\tx\t{p[0]}\n" for p in PAIRS).encode())
    )
    return [path]


def write_csv(folder: Path) -> list[Path]:
    path = folder / "pairs [v2].CSV"
    lines = [f'"{pair.source}";"a ""name""";"{pair.target}"' for pair in PAIRS]
    path.write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    return [path]


def write_array(folder: Path) -> list[Path]:
    path = folder / "pairs*.JSON"
    path.write_text(
        json.dumps([{"en": pair[0], "de": pair[1]} for pair in PAIRS], indent=1)
    )
    (folder / "pairs of another.JSON").write_text('[{"en": "WRONG", "de": "FALSCH"}]')
    return [path]


def write_lines(folder: Path) -> list[Path]:
    rows = [{"n": n, "de": pair[1], "en": pair[0]} for n, pair in enumerate(PAIRS)]
    path = folder / "pairs.jsonl.gz"
    path.write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    )
    return [path]


def write_files(folder: Path) -> list[Path]:
    """A name that could be a pattern for another's, and one that could be an address."""
    paths = [folder / "a[1].PARQUET", folder / "file::b.parquet"]
    write_parquet(paths[0], PAIRS[:333])
    write_parquet(paths[1], PAIRS[333:])
    write_parquet(folder / "a1.PARQUET", [("WRONG", "FALSCH")])
    return paths


@pytest.mark.parametrize(
    ("write", "columns"),
    [
        (write_texts, ()),
        (write_table, ("2", "0")),
        (write_csv, (0, 2)),
        (write_lines, ("en", "de")),
        (write_array, ()),
        (write_files, ("translation.en", "translation.de")),
    ],
)
def test_all_formats_give_the_same(
    write: Callable[[Path], list[Path]],
    columns: tuple[Any, ...],
    prepared: Path,
    tmp_path: Path,
) -> None:
    tokenizer = prepared / "tokenizer.json"
    prepare(
        write(tmp_path),
        tmp_path / "out",
        columns=columns,
        tokenizer=tokenizer,
        max_ratio=9,
    )
    corpus, tokenizer, validation, test = open_corpus(tmp_path / "out")
    drawn = sorted(PAIRS, key=position)[:70]
    texts = {text.lower() for pair in drawn for text in pair[:2]}
    train = [p for p in PAIRS if not {p.source.lower(), p.target.lower()} & texts]
    expected = encode_pairs(tokenizer, train)
    assert np.array_equal(corpus.tokens, expected.tokens)
    assert validation == sorted(drawn[::2], key=PAIRS.index)
    assert test == sorted(drawn[1::2], key=PAIRS.index)


def test_workers_and_batches_of_rows_change_nothing(
    table: Path, prepared: Path, tmp_path: Path
) -> None:
    prepare([table], tmp_path / "out", vocabulary_size=400, workers=2)
    assert contents(tmp_path / "out") == contents(prepared)
    assert [path.name for path in tmp_path.iterdir()] == [
        "out"
    ]  # nothing is left beside it


def test_examples_lie_in_a_mapped_file_and_make_batches(prepared: Path) -> None:
    corpus = open_corpus(prepared)[0]
    assert isinstance(corpus.tokens.base, np.memmap)
    assert not corpus.tokens.flags.writeable
    plan = list(batches(corpus, 500))
    tokens = sum(int((side != 0).sum()) for batch in plan for side in batch)
    assert tokens == len(corpus.tokens)
    assert sum(len(batch.source) for batch in plan) == len(corpus)


def test_a_large_vocabulary_takes_wider_numbers(
    monkeypatch: pytest.MonkeyPatch, table: Path, prepared: Path, tmp_path: Path
) -> None:
    """All words are made of bytes with numbers above 65,535."""
    monkeypatch.setattr(Tokenizer, "__len__", lambda self: 70_000)
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text: [65_540 + ord(c) for c in text]
    )
    options = {"tokenizer": prepared / "tokenizer.json", "limit": 40}
    prepare([table], tmp_path / "out", **options)
    corpus = open_corpus(tmp_path / "out")[0]
    assert corpus.tokens.dtype == np.uint32 and len(corpus) > 10
    written = "".join(chr(i - 65_540) for i in corpus[0].source[:-1])
    assert written in {pair.source for pair in PAIRS}


# --- Interruptions ---


def killed(function: Callable[[], Any]) -> None:
    """Run a function in a fork that ends with SIGKILL, which it must send to itself."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (large_corpora, "read_rows", 1),
        (Tokenizer, "train", 1),
        (Tokenizer, "encode", 900),
        (np, "save", 1),
        (json, "dumps", 2),
        (os, "fsync", 3),
        (shutil, "rmtree", 1),
    ],
)
def test_killed_at_any_moment_there_is_no_folder_and_the_next_run_gives_the_same(
    owner: Any, name: str, call: int, table: Path, prepared: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    function = getattr(owner, name)
    calls = iter(range(1, 10_000))

    def fatal(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    def attempt() -> None:
        setattr(owner, name, fatal)
        prepare([table], output, vocabulary_size=400)

    killed(attempt)
    if name != "rmtree":  # the cache goes when the folder has its name
        assert not output.exists()
    prepare([table], output, vocabulary_size=400)
    assert contents(output) == contents(prepared)


def test_what_was_encoded_before_a_failure_is_not_encoded_again(
    table: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr(np, "save", fails(OSError("no room")))
        prepare([table], tmp_path / "out", vocabulary_size=400)
    monkeypatch.setattr(
        large_corpora, "encode_rows", fails(AssertionError("encoded again"))
    )
    prepare([table], tmp_path / "out", vocabulary_size=400)
    assert contents(tmp_path / "out") == contents(prepared)


def fails(error: BaseException) -> Callable[..., Any]:
    def function(*arguments: Any, **options: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("size", [400, 500])
def test_two_processes_do_not_write_one_folder(
    size: int, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*arguments: Any) -> Any:
        return prepare([table], tmp_path / "out", vocabulary_size=size)

    monkeypatch.setattr(large_corpora, "read_rows", again)
    with pytest.raises(BlockingIOError, match="another process"):
        prepare([table], tmp_path / "out", vocabulary_size=400)


@pytest.mark.parametrize("size", [400, 500])
def test_a_call_that_finds_the_folder_made_when_it_has_the_lock_does_nothing(
    size: int,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of another vocabulary, it is refused, as it always is."""
    output = tmp_path / "out"
    lock = large_corpora.folder_lock

    @contextmanager
    def late_lock(folder: Path) -> Iterator[None]:
        monkeypatch.setattr(large_corpora, "folder_lock", lock)
        prepare([table], output, vocabulary_size=size)  # the other call
        monkeypatch.setattr(large_corpora, "read_rows", fails(AssertionError("again")))
        with lock(folder):
            yield

    monkeypatch.setattr(large_corpora, "folder_lock", late_lock)
    if size == 400:
        summary = prepare([table], output, vocabulary_size=400)
        assert summary == json.loads((output / "summary.json").read_bytes())
        assert capsys.readouterr().out == f"{output} is prepared already\n"
    else:
        with pytest.raises(FileExistsError, match="take another"):
            prepare([table], output, vocabulary_size=400)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_cache_is_removed_by_the_one_who_has_the_lock(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_cache = large_corpora.remove_cache
    removed = []

    def remove(cache: Path) -> None:
        with pytest.raises(BlockingIOError), large_corpora.folder_lock(cache):
            pass
        remove_cache(cache)
        removed.append(cache)

    monkeypatch.setattr(large_corpora, "remove_cache", remove)
    prepare([table], tmp_path / "out", vocabulary_size=400)
    assert len(removed) == 1 and not removed[0].exists()


AT_WORK = """
import signal, sys, time
from annotated_transformer.toolkit import cli, large_corpora

def encode_rows(*arguments, **options):
    print("encoding", flush=True)
    time.sleep(300)

large_corpora.encode_rows = encode_rows
# As in a terminal; what a shell starts in the background ignores Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "send", "code"),
    [
        (signal.SIGTERM, os.kill, -signal.SIGTERM),
        (signal.SIGKILL, os.kill, -signal.SIGKILL),
        (signal.SIGINT, os.killpg, 130),
    ],
)
def test_workers_end_with_the_process_that_was_told_to_end(
    kind: int, send: Callable[[int, int], None], code: int, table: Path, tmp_path: Path
) -> None:
    """Ctrl-C, which a terminal sends to all of them, is no traceback."""
    options = ["--output", "out", "--vocabulary-size", "400", "--workers", "2"]
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    environment |= {"PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", AT_WORK, "prepare", str(table), *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"e"
        send(process.pid, kind)
        # The pipes end with the last process that has them
        errors = process.communicate(timeout=60)[1].decode()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code
    assert errors.splitlines()[-1] == "a vocabulary of 400 entries: encoding"


# --- A folder that is there ---


def test_a_prepared_folder_is_kept_and_anything_else_is_refused(
    prepared: Path,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = [tmp_path / "en", tmp_path / "de"]  # two files of one name
    sides = [[pair.source for pair in PAIRS], [pair.target for pair in PAIRS]]
    for folder, lines in zip(folders, sides):
        folder.mkdir()
        (folder / "train.txt").write_text("\n".join(lines) + "\n")
    files = [folder / "train.txt" for folder in folders]
    output = tmp_path / "out"
    summary = prepare(files, output, vocabulary_size=400)
    before = contents(output)
    monkeypatch.setattr(large_corpora, "read_rows", fails(AssertionError("read again")))
    assert prepare(files, output, vocabulary_size=400, workers=3) == summary
    assert "is prepared already" in capsys.readouterr().out
    changes: list[dict[str, Any]] = [
        {"vocabulary_size": 401},
        {"vocabulary_size": 400, "limit": 30},
        {"vocabulary_size": 400, "max_ratio": 2},
        {"tokenizer": prepared / "tokenizer.json"},
    ]
    for options in changes:
        with pytest.raises(FileExistsError, match="take another"):
            prepare(files, output, **options)
    stat = files[1].stat()
    shifted_by_one = sides[1][1:] + sides[1][:1]
    files[1].write_text("\n".join(shifted_by_one) + "\n")
    os.utime(files[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert files[1].stat().st_size == stat.st_size
    with pytest.raises(FileExistsError, match="take another"):
        prepare(files, output, vocabulary_size=400)
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_text("mine")
    with pytest.raises(FileExistsError, match="take another"):
        prepare(files, model, vocabulary_size=400)
    assert contents(output) == before and contents(model) == {
        "model.safetensors": b"mine"
    }


def test_a_summary_that_only_mentions_the_key_is_of_something_else(
    table: Path, prepared: Path, tmp_path: Path
) -> None:
    key = json.loads((prepared / "summary.json").read_bytes())["key"]
    for text in (f'{{"note": "{key}"}}', f'["{key}"]', key):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(FileExistsError, match="take another"):
            prepare([table], tmp_path, vocabulary_size=400)


def test_a_given_tokenizer_is_used_and_both_or_none_is_an_error(
    prepared: Path, table: Path, tmp_path: Path
) -> None:
    path = prepared / "tokenizer.json"
    summary = prepare([table], tmp_path / "out", tokenizer=path, limit=200)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == path.read_bytes()
    assert summary["tokenizer"] == tokenizer_hash(load_tokenizer(path))
    assert sum(summary["pairs"].values()) == 200 == summary["settings"]["limit"]
    for options in (
        {},
        {"tokenizer": path, "vocabulary_size": 400},
        {"vocabulary_size": 100},
    ):
        with pytest.raises(ValueError, match="either a vocabulary_size"):
            prepare([table], tmp_path / "other", **options)
    for wrong in ({"limit": 0}, {"limit": -5}, {"max_ratio": math.nan}, {"workers": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            prepare([table], tmp_path / "other", tokenizer=path, **wrong)


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-2])

    return damage


def save_lengths(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        lengths = np.load(folder / "lengths.npy")
        np.save(folder / "lengths.npy", change(lengths))

    return damage


def moved(lengths: np.ndarray) -> np.ndarray:
    """The first source is a token longer, its target a token shorter."""
    return lengths + np.array([[1, -1]] + [[0, 0]] * (len(lengths) - 1), np.int32)


def negative(lengths: np.ndarray) -> np.ndarray:
    lengths[:2, 0] = lengths[:2, 0].sum() + 9, -9
    return lengths


def of_zero(lengths: np.ndarray) -> np.ndarray:
    shorter = lengths[0] - [1, 0]
    return np.vstack([[0, 0], shorter, lengths[1:]]).astype(np.int32)


def huge_claim(folder: Path) -> None:
    """A header that speaks of 10^12 rows."""
    content = (folder / "lengths.npy").read_bytes()
    header = {"descr": "<i4", "fortran_order": False, "shape": (10**12, 2)}
    text = repr(header).encode().ljust(117) + b"\n"
    (folder / "lengths.npy").write_bytes(
        content[:8] + struct.pack("<H", 118) + text + b"1234"
    )


def short_line(folder: Path) -> None:
    (folder / "test.tsv").write_text("no translation\n")


def lost_lines(folder: Path) -> None:
    lines = (folder / "test.tsv").read_text().splitlines(keepends=True)
    (folder / "test.tsv").write_text("".join(lines[:-1]))


def flipped_bit(folder: Path) -> None:
    """Another token that is in the vocabulary."""
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[4] ^= 1
    (folder / "tokens.bin").write_bytes(content)


def strange_word(folder: Path) -> None:
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[5] ^= 0x80
    (folder / "tokens.bin").write_bytes(content)


def archive(folder: Path) -> None:
    with (folder / "lengths.npy").open("wb") as file:
        np.savez(file, lengths=np.ones((3, 2), np.int32))


def retrain(folder: Path) -> None:
    another = Tokenizer.train(PAIRS[:50], 300)
    (folder / "tokenizer.json").write_bytes(another.text.encode())


def redirect(folder: Path) -> None:
    """Paths in a summary, which nothing follows, do not replace what it must say."""
    (folder / "summary.json").write_text(
        '{"tokens.bin": "/etc/passwd", "folder": "../.."}'
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut("tokens.bin"), "tokens.bin or lengths.npy was changed"),
        (strange_word, "tokens.bin was changed"),
        (flipped_bit, "tokens.bin was changed"),
        (save_lengths(moved), "lengths.npy was changed"),
        (save_lengths(negative), "lengths.npy does not hold two lengths"),
        (save_lengths(of_zero), "lengths.npy does not hold two lengths"),
        (
            save_lengths(lambda x: x.reshape(-1)),
            "lengths.npy does not hold two lengths",
        ),
        (
            save_lengths(lambda x: np.hstack([x, x])),
            "lengths.npy does not hold two lengths",
        ),
        (
            save_lengths(lambda x: x.astype(float)),
            "lengths.npy does not hold two lengths",
        ),
        (huge_claim, "is damaged"),
        (short_line, "is no pair"),
        (lost_lines, r"test\.tsv was changed"),
        (archive, "is damaged"),
        (cut("lengths.npy"), "is damaged"),
        (cut("summary.json"), "is damaged"),
        (cut("tokenizer.json"), "tokenizer"),
        (retrain, "tokenizer.json is not the one"),
        (redirect, "'tokenizer'"),
    ],
)
def test_a_damaged_folder_is_refused(
    damage: Callable[[Path], None], message: str, prepared: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "copy"))
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        open_corpus(folder)
    assert str(folder) in str(caught.value) and "prepare it again" in str(caught.value)


def test_of_several_processes_one_reads_all_tokens(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        large_corpora, "check_content", fails(AssertionError("read again"))
    )
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert len(open_corpus(prepared)[0]) > 300
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(AssertionError, match="read again"):
        open_corpus(prepared)


def test_what_is_no_prepared_folder_is_not_opened(
    prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"summary\.json"):
        open_corpus(tmp_path)
    folder = Path(shutil.copytree(prepared, tmp_path / "copy"))
    (folder / "tokens.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokens\.bin"):
        open_corpus(folder)


# --- Bad input ---


def test_bad_input_is_named(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_lines = tmp_path / "three.txt"
    two_lines = tmp_path / "two.txt"
    numbers = tmp_path / "numbers.jsonl"
    output = tmp_path / "out"
    three_lines.write_text("a\nb\nc\n")
    two_lines.write_text("a\nb\n")
    numbers.write_text('{"n": 1, "en": "a"}\n')
    (tmp_path / "lists.jsonl").write_text('{"de": ["a"], "en": "a"}\n')
    (tmp_path / "broken.jsonl").write_text('{"de": "a", "en": "b"}\n{"de": "a"\n')
    (tmp_path / "half.jsonl").write_text(
        '{"de": "a", "en": "b"}\n{"de": "\\ud800 x", "en": "b"}\n'
    )
    (tmp_path / "words.jsonl").write_text('"words"\n')
    (tmp_path / "deep.jsonl").write_text('{"de":' + "[" * 100_000 + "\n")
    (tmp_path / "no.parquet").write_text("no Parquet")
    (tmp_path / "latin.tsv").write_bytes("one\teins\ntwo\tzwö\n".encode("latin-1"))
    wrong: dict[Any, str] = {
        (three_lines, two_lines): r"only \S*two\.txt ends before line 3",
        (numbers,): r"numbers\.jsonl, line 1: the column n holds '1', which is no text",
        (
            tmp_path / "lists.jsonl",
        ): r"lists\.jsonl, line 1: the column de holds .* no text",
        (tmp_path / "broken.jsonl",): r"broken\.jsonl, line 2: it is no JSON",
        (
            tmp_path / "half.jsonl",
        ): r"half\.jsonl, line 2: the column de holds half a character",
        (tmp_path / "words.jsonl",): r"words\.jsonl, line 1: it is no object such as",
        (tmp_path / "deep.jsonl",): r"deep\.jsonl, line 1: it is no JSON",
        (tmp_path,): "is a folder or a pipe",
        (
            three_lines,
        ): r"three\.txt: no line has a column 1 .counted from 0, tab-separated",
        (three_lines, numbers): "give one TSV, or two texts, or files of JSON lines",
        (tmp_path / "no.parquet",): r"no\.parquet cannot be read \(.*: mend it",
        (three_lines,) * 3: r"three\.txt.*: give one TSV, or two texts",
        (tmp_path / "latin.tsv",): r"latin\.tsv, line 2: .*UTF-8",
    }
    for files, message in wrong.items():
        with pytest.raises(ValueError, match=message) as caught:
            prepare(files, output, vocabulary_size=300)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ValueError,
        match=r"2 of 2 pairs have a fault. The first was read as 'a' and 'a': are --columns",
    ):
        copy = Path(shutil.copy(three_lines, two_lines))
        prepare([three_lines, copy], output, vocabulary_size=300, limit=2)
    with pytest.raises(ValueError, match="has not the columns en and de, but n, en"):
        prepare([numbers], output, columns=("en", "de"), vocabulary_size=300)
    for columns in (("en", "en"), ("en",), (0, 1, 2)):
        with pytest.raises(ValueError, match="columns must be two, source and target"):
            prepare([numbers], output, columns=columns, vocabulary_size=300)
    for columns in ((-1, -2), ("de", "en"), (0.5, 1)):
        with pytest.raises(ValueError, match="there is no column"):
            prepare([table], output, columns=columns, vocabulary_size=300)
    with pytest.raises(ValueError, match="two texts have no columns: the first is the"):
        prepare([three_lines, two_lines], output, columns=(1, 0), vocabulary_size=300)
    with pytest.raises(ValueError, match="give --output, a folder for the prepared"):
        prepare([table], vocabulary_size=300)
    with pytest.raises(ValueError, match="give wmt14-en-de, wmt14-en-fr, or files"):
        prepare([], output, vocabulary_size=300)
    for data in ("wmt14-en-xx", ["wmt14-en-de", three_lines]):
        with pytest.raises(FileNotFoundError, match="wmt14-en"):
            prepare(data, output, vocabulary_size=300)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install .\.\[wmt14\]"):
        prepare([table], output, vocabulary_size=300)
    assert not output.exists()


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"Hund\tdog\n")
    os.close(writing)
    with pytest.raises(
        ValueError, match="is a folder or a pipe: write the pairs into a file"
    ):
        prepare([f"/dev/fd/{reading}"], tmp_path / "out", vocabulary_size=300)
    assert os.read(reading, 100) == b"Hund\tdog\n"
    os.close(reading)


def test_a_full_disk_is_named_and_not_the_source(
    table: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for owner, name in ((large_corpora, "position_of"), (np, "save"), (os, "fsync")):
        with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
            patch.setattr(owner, name, fails(full))
            prepare([table], tmp_path / "out", vocabulary_size=400)
        assert f"no space left on the disk of {tmp_path}" in str(caught.value)
        assert "pairs.tsv" not in str(caught.value)
    prepare([table], tmp_path / "out", vocabulary_size=400)
    assert contents(tmp_path / "out") == contents(prepared)


# --- What is held out ---


def test_what_comes_at_regular_distances_is_not_what_is_held_out(
    tmp_path: Path,
) -> None:
    """Rows without text, or headings, in each tenth line, where once the held-out rows were."""
    headings = [Pair(f"Chapter {n}", f"Kapitel {n}") for n in range(70)]
    nulls = [(None, None)] * 70
    for name, intruders in {"headings": headings, "nulls": nulls}.items():
        rows = [tuple(pair[:2]) for pair in PAIRS[:630]]
        for number, row in enumerate(intruders):
            rows.insert(10 * number, row[:2])
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"en": s, "de": t}) + "\n" for s, t in rows))
        summary = prepare([path], tmp_path / name, vocabulary_size=300, max_ratio=9)
        validation, test = open_corpus(tmp_path / name)[2:]
        usable = 700 if name == "headings" else 630
        assert len(validation) + len(test) == usable / 10
        assert 0 <= len(validation) - len(test) <= 1
        number_of_headings = sum("Chapter" in pair.source for pair in validation + test)
        assert number_of_headings < 20
        assert summary["pairs"]["empty"] == 700 - usable


def test_the_order_of_rows_and_repeated_rows_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    held_out = []
    for pairs in (PAIRS, PAIRS[::-1], [*PAIRS, *PAIRS[:1]]):
        path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
        output = tmp_path / str(len(held_out))
        prepare([path], output, vocabulary_size=300, max_ratio=9)
        held_out.append([sorted(part) for part in open_corpus(output)[2:]])
    assert held_out[0] == held_out[1]
    assert all(len(set(part)) == len(part) for part in held_out[2])


def test_held_out_sentences_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Also where all that is held out looks quoted."""
    path = tmp_path / "pairs.tsv"
    path.write_text(
        "".join(f'"{p.source}"\t"{p.target}"\n' for p in PAIRS) + "Yes.\tJa.\n"
    )
    prepare([path], tmp_path / "out", vocabulary_size=300, max_ratio=9)
    validation, test = open_corpus(tmp_path / "out")[2:]
    assert {*validation, *test} <= {*read_pairs(path)}
    assert any(pair.source.startswith('"') for pair in validation)


# --- Bounds ---


def test_a_very_long_cell_costs_little_and_is_dropped(
    prepared: Path, tmp_path: Path
) -> None:
    """Neither does a vocabulary learn from it, nor is it encoded."""
    path = tmp_path / "pairs.tsv"
    lines = [f"{pair.source}\t{pair.target}\n" for pair in PAIRS[:60]]
    path.write_text(
        "".join([*lines, "ha" * 400_000 + "\tha\n", "=\t" + "=" * 120_000 + "\n"])
    )
    start = time.process_time()
    summary = prepare([path], tmp_path / "out", vocabulary_size=300, max_ratio=9)
    assert time.process_time() - start < 5
    assert summary["pairs"]["too long"] == 2 and summary["pairs"]["train"] > 50


@pytest.mark.slow
def test_huge_cells_of_json_and_parquet_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "cell.jsonl"
    path.write_text(json.dumps({"en": "x" * 25_000_000, "de": "y"}) + "\n")
    with pytest.raises(
        ValueError, match=r"cell\.jsonl, line 1: it has 1,000,000 bytes"
    ):
        prepare([path], tmp_path / "out", vocabulary_size=300)
    path = tmp_path / "same.parquet"
    texts = [*PAIRS, Pair("x " * 500_000, "y")]
    numbers = pa.array([*range(700)] * 4 + [700] * 2000)
    columns = {
        name: pa.DictionaryArray.from_arrays(numbers, [pair[side] for pair in texts])
        for side, name in enumerate(("en", "de"))
    }
    parquet.write_table(pa.table(columns), path)
    assert path.stat().st_size < 1_000_000
    script = (
        "import resource, sys; from annotated_transformer import prepare;"
        "print(prepare([sys.argv[1]], sys.argv[2], vocabulary_size=300)['pairs']['too long'],"
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path, tmp_path / "out"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    too_long, megabytes = map(int, done.stdout.split())
    assert too_long == 2000 and megabytes < 1500


def test_a_parquet_file_of_books_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "books.parquet"
    write_parquet(path, [Pair(f"{n} " * 50_000, "y") for n in range(10)])
    with pytest.raises(
        ValueError, match=r"books\.parquet: a text of the column .* bytes on average"
    ):
        prepare(
            [path],
            tmp_path / "out",
            columns=("translation.en", "translation.de"),
            vocabulary_size=300,
        )


# --- What is said ---


def test_it_says_what_it_read_and_what_became_of_it(
    table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal in lines, not in progress bars."""
    summary = prepare([table], tmp_path / "out", vocabulary_size=50_000)
    lines = capfd.readouterr().err.splitlines()
    counts = summary["pairs"]
    assert lines[0] == "pairs.tsv: tab-separated"
    assert f"{len(PAIRS) + len(ODD)} rows are read" in lines
    assert any("entries, not of 50,000" in line for line in lines)
    assert lines[-1].startswith(
        f"{counts['train']} pairs to learn from, {counts['validation']} for validation, "
    )
    assert not any("examples/s" in line for line in lines)


def test_an_output_of_something_else_is_refused_before_anything_is_read(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    monkeypatch.setattr(
        large_corpora, "settings_of_corpus", fails(AssertionError("hashed"))
    )
    with pytest.raises(FileExistsError, match="take another"):
        prepare([table], tmp_path, vocabulary_size=400)


def test_what_another_has_put_beside_the_output_stays(
    table: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "out.prepare.cache"
    cache.mkdir()
    (cache / "thesis.txt").write_text("mine")
    prepare([table], tmp_path / "out", vocabulary_size=400)
    assert contents(cache) == {"thesis.txt": b"mine"}


def test_the_next_call_removes_what_a_killed_one_left_at_its_end(
    table: Path, tmp_path: Path
) -> None:
    prepare([table], tmp_path / "out", vocabulary_size=400)
    cache = tmp_path / "out.prepare.cache"
    (cache / "0123456789abcdef").mkdir(parents=True)
    (cache / "0123456789abcdef.arrow").touch()
    (tmp_path / "out.123.unfinished").mkdir()
    prepare([table], tmp_path / "out", vocabulary_size=400)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- WMT14 ---

SCRIPT = """
import json, sys, time
from pathlib import Path
time.sleep = lambda seconds: None  # between the library's attempts
from annotated_transformer.toolkit.downloads import MissingData
from annotated_transformer.toolkit.large_corpora import prepare
hub = Path(sys.argv[1])
try:
    (hub / "broken").touch()
    prepare("wmt14-en-de", "broken", vocabulary_size=400)
except MissingData as error:
    print(json.dumps(str(error)))
(hub / "broken").unlink()
print(json.dumps(prepare("wmt14-en-de", "corpus", vocabulary_size=400, max_ratio=9)))
"""


def test_wmt14_comes_from_the_hub_and_survives_a_broken_download(
    tmp_path: Path,
) -> None:
    validation, test, train = PAIRS[:40], PAIRS[40:90], PAIRS[90:]
    held_out = {text for pair in PAIRS[:90] for text in pair[:2]}
    train = [
        *train,
        validation[3],
        Pair("A new source.", test[0].target),
        Pair("", "leer"),
    ]
    test = [*test, Pair("word " * 300, "Wort " * 300)]
    build(tmp_path / "hub", train=train, validation=validation, test=test)
    with serve(tmp_path / "hub") as address:
        environment = {
            **os.environ,
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "home"),
        }
        environment |= {"PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "hub")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    message, summary = map(json.loads, done.stdout.splitlines())
    assert message.startswith("wmt14-en-de cannot be read (")
    assert "check the network" in message
    assert "\n" not in message and not (tmp_path / "broken").exists()
    corpus, tokenizer, *measured = open_corpus(tmp_path / "corpus")
    assert measured == [validation, test[:-1]]
    ordered = train[::2] + train[1::2]  # the data set has two files
    expected = [p for p in ordered if p.source and not held_out & {p.source, p.target}]
    assert np.array_equal(corpus.tokens, encode_pairs(tokenizer, expected).tokens)
    assert summary["pairs"]["too long"] == 1 == summary["pairs"]["empty"]
    assert summary["pairs"]["held out"] >= 2
    assert summary["settings"]["data"] == ["wmt14-en-de", large_corpora.REVISION]


# --- The benchmark ---


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS), encoding="utf-8"
    )
    command = [sys.executable, "-m", "benchmarks.speed.prepare", "--data", str(table)]
    options = ["--pairs", "900", "--open", "3000", "--results", str(tmp_path)]
    done = subprocess.run(
        [*command, *options],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "prepare.jsonl").read_text().splitlines()
    head, prepared, opened, whole = map(json.loads, lines)
    assert head["benchmark"] == "prepare" and str(tmp_path) not in "".join(lines)
    assert (
        sum(prepared["pairs"].values()) == 900
        and prepared["without_pages_of_files"] > 0
    )
    assert (
        opened["examples"] >= 3000
        and opened["examples_a_second"] > 0 < whole["minutes"]
    )


def test_a_nul_in_crawled_text_becomes_a_space(tmp_path: Path) -> None:
    """No table may hold one, and held-out pairs are kept as tables."""
    lines = tmp_path / "crawled.jsonl"
    records = ({"de": f"Satz {n}\0.", "en": f"sentence {n}."} for n in range(300))
    lines.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    prepare([lines], output=tmp_path / "out", vocabulary_size=300)
    _, _, validation, _ = open_corpus(tmp_path / "out")
    assert validation and all(re.match(r"Satz \d+ \.", p.source) for p in validation)


def test_columns_of_parquet_lie_at_any_depth(tmp_path: Path) -> None:
    texts = [
        {"row": {"translation": {"de": f"Satz {n}", "en": f"sentence {n}"}}}
        for n in range(50)
    ]
    path = tmp_path / "deep.parquet"
    parquet.write_table(pa.Table.from_pylist(texts), path)
    columns = ("row.translation.de", "row.translation.en")
    assert [*large_corpora.parquet_rows(path, columns)][7] == ("Satz 7", "sentence 7")


def test_an_output_that_leads_nowhere_is_refused_at_once(
    table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.symlink_to(tmp_path / "unmounted" / "disk")
    with pytest.raises(FileNotFoundError, match="out is a link that leads nowhere"):
        prepare([table], output=output, vocabulary_size=300)
