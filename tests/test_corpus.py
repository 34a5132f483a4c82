"""A prepared corpus is its files without what it is measured with, and whole or not there."""

import gzip
import hashlib
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from annotated_transformer import corpus
from annotated_transformer.batching import encode_pairs
from annotated_transformer.corpus import (
    REVISION,
    choose_held_out,
    open_corpus,
    prepare,
    write_pairs,
)
from annotated_transformer.data import Pair
from annotated_transformer.own_data import cache_folder, each_pair, letters, tidied
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer

ROOT = Path(__file__).parent.parent
PAIRS = [Pair(english, german) for german, english, _ in grammar(500, seed=0)]
LEAK = choose_held_out(PAIRS)["test"][0]
ODD = {  # rows, and what becomes of them
    "": "empty",
    "\t": "empty",
    "\u2028 \tein Wort": "empty",
    "word " * 300 + "\t" + "Wort " * 300: "too long",
    "the cat sleeps well here now\tKatze": "lengths apart",
    "the same words here\tthe  same words here": "untranslated",
    f"{LEAK.source}?\t{LEAK.target}!": "held out",
    "a dog says </s> and <pad>\tein Hund sagt </s> und <pad>": "train",
    f"{PAIRS[7].source} \r\u0085\t\xa0{PAIRS[7].target}": "train",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with odd rows in it."""
    lines = [f"{pair.source}\t{pair.target}" for pair in PAIRS]
    for number, row in enumerate(ODD):
        lines.insert(50 * number, row)
    path = tmp_path_factory.mktemp("table") / "pairs.tsv"
    path.write_bytes("\n".join(lines).encode())
    return path


@pytest.fixture(scope="module")
def prepared(table: Path) -> Path:
    prepare([str(table)], table.parent / "corpus", vocabulary_size=400)
    return table.parent / "corpus"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def counts(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "summary.json").read_text())["pairs"]
    return found


def learned(folder: Path) -> list[Pair]:
    """The texts of the tokens to learn from."""
    examples, tokenizer, *_ = open_corpus(folder)
    return [Pair(*map(tokenizer.decode, example)) for example in examples]


def python(folder: Path, code: str, **variables: str) -> str:
    """Run code in a process of its own that begins in a folder; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- What comes out ---


def test_each_row_has_an_outcome_and_the_text_to_learn_from_comes_back(
    table: Path, prepared: Path
) -> None:
    examples, tokenizer, validation, test, name = open_corpus(prepared)
    assert isinstance(examples.tokens.base, np.memmap)
    rows = table.read_bytes().decode().split("\n")
    found = counts(prepared)
    assert sum(found.values()) == len(rows) == len(PAIRS) + len(ODD)
    outcomes = [*ODD.values()]
    for outcome in ("empty", "too long", "untranslated"):
        assert found[outcome] == outcomes.count(outcome)
    assert found["lengths apart"] >= 1 and found["held out"] >= 1

    pairs = [Pair(*row.split("\t")) for row in rows if row]
    wanted = [*tidied(pairs)]
    texts = learned(prepared)
    rest = iter(wanted)
    assert all(pair in rest for pair in texts)  # in order
    assert len(texts) == found["train"] > 300
    assert {*tidied(Pair(*row.split("\t")) for row in [*ODD][-2:])} <= {*texts}
    assert {*validation, *test} <= {*wanted} and name not in corpus.WMT14
    encoded = encode_pairs(tokenizer, texts)
    assert np.array_equal(examples.tokens, encoded.tokens)
    assert np.array_equal(examples.lengths, encoded.lengths)


def test_two_texts_and_a_table_give_the_same(table: Path, tmp_path: Path) -> None:
    texts = [tmp_path / "text.en.gz", tmp_path / "text.de"]
    for path, side in zip(texts, zip(*PAIRS)):
        lines = "\r\n".join(side).encode("utf-8-sig")
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    rows = [f'"{german}";"x";"{english}"\n' for english, german, _ in PAIRS]
    (tmp_path / "table.csv").write_text("".join(rows), encoding="utf-8")
    write_pairs(tmp_path / "table.tsv", PAIRS)
    made = []
    for files, columns in (
        (texts, (0, 1)),
        ([tmp_path / "table.csv"], (2, 0)),
        ([tmp_path / "table.tsv"], (0, 1)),
    ):
        output = tmp_path / f"out-{len(made)}"
        prepare([*map(str, files)], output, columns, vocabulary_size=300)
        made.append(contents(output))
        del made[-1]["summary.json"]  # has the hashes of the files
    assert made[0] == made[1] == made[2]


def test_a_wrong_column_is_not_learned_from(tmp_path: Path) -> None:
    rows = [f"{n}\t{pair.target}\t{pair.source}\n" for n, pair in enumerate(PAIRS)]
    (tmp_path / "pairs.tsv").write_text("id\tDeutsch\tEnglish\n" + "".join(rows))
    with pytest.raises(ValueError, match=r"501 of 501.*'id' and 'Deutsch'"):
        prepare([str(tmp_path / "pairs.tsv")], tmp_path / "out", vocabulary_size=300)
    assert not (tmp_path / "out").exists()


def sampled(patch: pytest.MonkeyPatch) -> list[Pair]:
    """A list that gets the pairs from which a vocabulary is learned."""
    sample: list[Pair] = []
    train = Tokenizer.train

    def look_on(pairs: Iterator[Pair], size: int) -> Tokenizer:
        sample.extend(pairs)
        return train(sample, size)

    patch.setattr(Tokenizer, "train", look_on)
    return sample


def test_a_text_of_a_hundred_thousand_letters_is_dropped_and_teaches_no_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = sampled(monkeypatch)
    write_pairs(tmp_path / "pairs.tsv", [*PAIRS[:60], Pair("ha" * 50_000, "ha")])
    prepare([str(tmp_path / "pairs.tsv")], tmp_path / "out", vocabulary_size=300)
    assert counts(tmp_path / "out")["too long"] == 1
    assert 0 < max(len(text) for pair in sample for text in pair[:2]) < 10_000


# --- What is held out ---


def sentences(pairs: Iterable[Pair]) -> set[tuple[int, str]]:
    """What the sentences of pairs are known by: language, letters and digits."""
    found = set()
    for pair in pairs:
        for side, text in enumerate(pair[:2]):
            folded = unicodedata.normalize("NFC", text).casefold()
            found.add((side, "".join(re.findall(r"[^\W_]", folded))))
    return found


MARKS = st.sampled_from(["", ".", "!", " ?", "..."])
WORDS = st.sampled_from(
    ["eins", "Zwei", "zwei", "DREI", "vier", "f\u00fcnf", "fu\u0308nf"]
)
SENTENCES = st.builds("{} {}{}".format, WORDS, st.integers(0, 9), MARKS)
CORPORA = st.lists(
    st.tuples(SENTENCES, SENTENCES.map("in Deutsch {}".format)), min_size=30
)


@settings(max_examples=15)
@given(CORPORA)
def test_nothing_is_learned_that_shares_a_sentence_with_what_is_held_out(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    """Sentences come again and again, with other marks, in all sorts of pairs."""
    folder = tmp_path_factory.mktemp("corpus")
    write_pairs(folder / "pairs.tsv", [Pair(*row) for row in rows])
    with pytest.MonkeyPatch.context() as patch:
        sample = sampled(patch)
        table = [str(folder / "pairs.tsv")]
        prepare(table, folder / "out", vocabulary_size=300, max_ratio=99)
    assert sum(counts(folder / "out").values()) == len(rows)
    assume("train" in counts(folder / "out"))
    _, _, validation, test, _ = open_corpus(folder / "out")
    seen = sentences([*learned(folder / "out"), *sample])
    assert seen.isdisjoint(sentences([*validation, *test]))


@given(CORPORA, st.randoms(use_true_random=False))
def test_the_choice_is_of_sentences_whatever_their_order(
    rows: list[tuple[str, str]], chance: random.Random
) -> None:
    pairs = [Pair(*row) for row in rows]
    chosen = [*choose_held_out(pairs).values()]
    of_others = [*choose_held_out(chance.sample(pairs, len(pairs))).values()]
    sources = [[letters(pair.source) for pair in part] for part in chosen]
    assert sources == [[letters(pair.source) for pair in part] for part in of_others]
    assert len({*sources[0], *sources[1]}) == len(sources[0]) + len(sources[1])
    different = len({letters(pair.source) for pair in pairs})
    wanted = min(math.ceil(len(pairs) / 10), different)
    assert [len(part) for part in sources] == [math.ceil(wanted / 2), wanted // 2]


def test_of_tatoeba_more_than_two_thousand_pairs_would_have_leaked(
    tmp_path: Path,
) -> None:
    """Chapter 28 quotes the numbers."""
    archive = cache_folder() / "tatoeba" / "deu-eng.zip"
    if not archive.is_file():
        pytest.skip(f"{archive} is not there (deu-eng.zip of manythings.org/anki)")
    with zipfile.ZipFile(archive) as packed:
        path = packed.extract("deu.txt", tmp_path)
    pairs = [*tidied(each_pair(path))]
    held_out = [p for part in choose_held_out(pairs).values() for p in part]
    known = sentences(held_out)
    others = {*pairs} - {*held_out}
    sharing = [pair for pair in others if not known.isdisjoint(sentences([pair]))]
    assert (len(held_out), len(sharing)) == (6000, 2359)


# --- WMT14 ---


@contextmanager
def hub(folder: Path, parts: dict[str, Sequence[Pair]]) -> Iterator[str]:
    """Serve English-German pairs as the Hugging Face hub serves WMT14, at one revision."""
    import pyarrow as pa
    from pyarrow import parquet

    repository = folder / f"datasets/wmt/wmt14/resolve/{REVISION}"
    (repository / "de-en").mkdir(parents=True)
    card = "---\nconfigs:\n- config_name: de-en\n  data_files:\n"
    for part, pairs in parts.items():
        rows = [{"de": pair.target, "en": pair.source} for pair in pairs]
        path = f"de-en/{part}-00000-of-00001.parquet"
        parquet.write_table(pa.table({"translation": rows}), repository / path)
        card += f"  - split: {part}\n    path: {path}\n"
    (repository / "README.md").write_text(f"{card}---\n")
    files = [path for path in repository.rglob("*") if path.is_file()]
    names = [str(path.relative_to(repository)) for path in files]
    info = {"id": "wmt/wmt14", "sha": REVISION}
    info["siblings"] = [{"rfilename": name} for name in names]
    api = folder / "api/datasets/wmt/wmt14"
    (api / "revision").mkdir(parents=True)
    (api / "revision" / REVISION).write_text(json.dumps(info))
    for below in ("", "de-en"):
        listed = [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": name}
            for name, path in zip(names, files)
            if name.startswith(below)
        ]
        (api / "tree" / REVISION / below).mkdir(parents=True, exist_ok=True)
        index = api / "tree" / REVISION / below / "index.html"
        index.write_text(json.dumps(listed))

    class Hub(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("ETag", hashlib.sha1(self.path.encode()).hexdigest())
            self.send_header("X-Repo-Commit", REVISION)
            super().end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


PREPARE = """
from annotated_transformer.corpus import prepare
prepare(["wmt14-en-de"], vocabulary_size=400, max_ratio=9)
"""


def test_wmt14_keeps_its_own_sets_to_measure_with_and_learns_nothing_of_them(
    tmp_path: Path,
) -> None:
    """The sets are whole and in order, also what would not be worth learning."""
    pytest.importorskip("datasets", reason='pip install ".[wmt14]"')
    sample = cache_folder() / "wmt-sample"  # real pairs of WMT
    pairs = PAIRS
    if sample.is_dir():
        files = each_pair(sample / "train.en", sample / "train.de")
        pairs = [*tidied(itertools.islice(files, 500))]
    odd = [Pair("word " * 300, "Wort " * 300), Pair("2014", "2014"), pairs[0]]
    parts = {"validation": pairs[:40], "test": [*odd, *pairs[40:90]]}
    leaks = [pairs[3], Pair("A new source.", pairs[50].target), Pair("", "leer")]
    parts["train"] = [*pairs[90:], *leaks]
    with hub(tmp_path / "hub", parts) as address:
        home = str(tmp_path / "home")
        python(tmp_path, PREPARE, HF_ENDPOINT=address, HF_HOME=home)
    _, _, validation, test, name = open_corpus(tmp_path / "wmt14-en-de")
    assert name == "wmt14-en-de"
    assert validation == parts["validation"] and test == [*tidied(parts["test"])]
    texts = learned(tmp_path / "wmt14-en-de")
    rest = iter(pairs[90:])
    assert len(texts) > 200 and all(pair in rest for pair in texts)
    assert sentences(texts).isdisjoint(sentences([*validation, *test]))
    found = counts(tmp_path / "wmt14-en-de")
    assert (found.pop("validation"), found.pop("test")) == (40, 53)
    assert sum(found.values()) == len(parts["train"]) and found["held out"] >= 2


# --- Whole, once, and nobody else's ---


@pytest.mark.parametrize(
    "owner, name",
    [(Tokenizer, "train"), (corpus, "outcome_of"), (np, "save"), (os, "replace")],
)
def test_killed_it_leaves_no_folder_and_the_next_call_makes_it(
    table: Path, prepared: Path, tmp_path: Path, owner: Any, name: str
) -> None:
    child = os.fork()
    if child == 0:
        setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        try:
            prepare([str(table)], tmp_path / "corpus", vocabulary_size=400)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not (tmp_path / "corpus").exists()
    prepare([str(table)], tmp_path / "corpus", vocabulary_size=400)
    assert contents(tmp_path / "corpus") == contents(prepared)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"corpus", "corpus.lock"}


def test_two_do_not_prepare_one_folder_at_a_time(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*_: Any) -> None:
        monkeypatch.undo()
        prepare([str(table)], tmp_path / "out", vocabulary_size=400)

    monkeypatch.setattr(corpus, "fill", again)
    with pytest.raises(BlockingIOError, match="out"):
        prepare([str(table)], tmp_path / "out", vocabulary_size=400)


def test_the_same_again_does_nothing_and_anything_else_is_refused(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "pairs.tsv"
    write_pairs(data, PAIRS)
    prepare([str(data)], tmp_path / "out", vocabulary_size=300)
    before = contents(tmp_path / "out")
    monkeypatch.setattr(corpus, "fill", lambda *_: pytest.fail("prepared again"))
    prepare([str(data)], tmp_path / "out", vocabulary_size=300)
    others: list[dict[str, Any]] = [
        {"vocabulary_size": 301},
        {"tokenizer": prepared / "tokenizer.json"},
        {"vocabulary_size": 300, "columns": (1, 0)},
    ]
    for options in others:
        with pytest.raises(FileExistsError, match="another --output"):
            prepare([str(data)], tmp_path / "out", **options)
    times = data.stat()
    write_pairs(data, PAIRS[::-1])  # of the same size and time
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(FileExistsError, match="another --output"):
        prepare([str(data)], tmp_path / "out", vocabulary_size=300)
    assert contents(tmp_path / "out") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("x")
    with pytest.raises(FileExistsError, match="another --output"):
        prepare([str(data)], tmp_path / "mine", vocabulary_size=300)
    assert contents(tmp_path / "mine") == {"letter": b"x"}


def fewer_tokens(folder: Path) -> None:
    os.truncate(folder / "tokens.bin", (folder / "tokens.bin").stat().st_size - 2)


def fewer_lengths(folder: Path) -> None:
    np.save(folder / "lengths.npy", np.load(folder / "lengths.npy")[:-1])


def fewer_test_pairs(folder: Path) -> None:
    lines = (folder / "test.tsv").read_text("utf-8").splitlines(keepends=True)
    (folder / "test.tsv").write_text("".join(lines[:-1]), "utf-8")


def another_tokenizer(folder: Path) -> None:
    another = Tokenizer.train(PAIRS[:50], 400)
    (folder / "tokenizer.json").write_text(another.text, "utf-8")


@pytest.mark.parametrize(
    "damage", [fewer_tokens, fewer_lengths, fewer_test_pairs, another_tokenizer]
)
def test_a_folder_that_is_not_as_it_was_prepared_is_refused(
    prepared: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "copy"))
    open_corpus(folder)
    damage(folder)
    with pytest.raises(ValueError, match="not whole"):
        open_corpus(folder)
    with pytest.raises(FileNotFoundError, match="not prepared"):
        open_corpus(tmp_path)


# --- Memory ---

MEASURE = """
import resource, sys
from annotated_transformer.corpus import prepare
for name in ("small", "large"):
    prepare([name + ".tsv"], name, vocabulary_size=300)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_corpus_five_times_as_large_takes_hardly_more_memory(tmp_path: Path) -> None:
    line = " ".join(["ein Hund sieht die Katze"] * 30)
    pairs = [Pair(f"{n} {line}", f"{line} {n}") for n in range(30_000)]
    write_pairs(tmp_path / "small.tsv", pairs[:6_000])
    write_pairs(tmp_path / "large.tsv", pairs)
    said = python(tmp_path, MEASURE)
    small, large = map(int, said.split())
    in_a_list = sum(sys.getsizeof(text) for pair in pairs[6_000:] for text in pair[:2])
    assert large - small < in_a_list / 2


def test_pairs_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score on half a test set would look like any other."""

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    path = tmp_path / "test.tsv"
    write_pairs(path, PAIRS)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_pairs(path, PAIRS[:9])
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
