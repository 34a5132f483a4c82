"""The grammar says what it should, a download that goes wrong never passes for data, and what a
reader brings along is read strictly, cleaned with a report and split without a leak.
"""

import gzip
import hashlib
import random
import re
import socket
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer import corpus
from annotated_transformer.data import SHA256, MissingData, Pair, cache_folder, fetch, multi30k, statistics, words
from annotated_transformer.own_data import filter_pairs, read_pairs, split_pairs
from annotated_transformer.synchronous_grammar import grammar

# --- The grammar ---

PAIRS = grammar(3000, seed=3)


def test_grammar_is_decided_by_its_seed() -> None:
    assert grammar(100, seed=3) == PAIRS[:100]
    assert grammar(100, seed=4) != PAIRS[:100]


def test_grammar_repeats_no_source() -> None:
    assert len({pair.source for pair in PAIRS}) == len(PAIRS)


def test_every_word_is_aligned_and_every_link_stays_inside() -> None:
    for source, target, alignment in PAIRS:
        german, english = words(source), words(target)
        assert alignment is not None
        assert {j for _, j in alignment} == set(range(len(english))), (source, target)
        unlinked = set(range(len(german))) - {i for i, _ in alignment}
        assert all(german[i] == "," for i in unlinked), (source, target)


def test_alignment_links_words_that_mean_the_same() -> None:
    """Every link of a few unmistakable words goes where a dictionary says."""
    dictionary = {
        "Hund": "dog",
        "Katze": "cat",
        "weil": "because",
        "nicht": "not",
        "Brief": "letter",
    }
    seen = set()
    for source, target, alignment in PAIRS:
        german, english = words(source), words(target)
        for i, j in alignment or ():
            if german[i] in dictionary:
                seen.add(german[i])
                assert english[j] == dictionary[german[i]], (source, target)
    assert seen == set(dictionary)


def test_sentences_are_spelled_as_sentences() -> None:
    for pair in PAIRS:
        for text in (pair.source, pair.target):
            assert re.fullmatch(r"[A-ZÄÖÜ].*\w[.?]", text), text
            assert not re.search(r" [,.?]|  |,,|,[.?]", text), text
            assert " ".join(words(text)) == re.sub(r"([,.?])", r" \1", text), text
        assert not re.search(r"\b[Aa] [aeiou]", pair.target), pair.target


def test_english_agrees() -> None:
    """Verbs agree with their subjects, and a negation has its `do`."""
    wrong = [
        r"\b(two|these) (\w+ )?(dogs|cats|mice|men|guests) (sees|is|was|does|has)\b",
        r"\b(I|we|they) (sees|is|does|has)\b",
        r"\b(he|she|it) (see|are|were|do|have)\b",
        r"\b(?!does|do|did|is|was|are|were)\w+ not\b",
    ]
    for pair in PAIRS:
        if pair.target.endswith("."):
            assert not re.search("|".join(wrong), pair.target), pair.target


def test_german_closes_its_bracket() -> None:
    """A particle ends its clause; in a subordinate clause it is one with its verb."""
    for pair in PAIRS:
        for clause in re.split(r"[,.?]", pair.source):
            found = words(clause)
            if found and found[0] in ("weil", "obwohl", "dass", "Weil", "Obwohl", "während"):
                assert found[-1] not in ("an", "auf", "ein", "ab", "zu"), pair.source
            assert "ruft" not in found or found[-1] == "an", pair.source


@pytest.mark.parametrize("count", [0, 1])
def test_grammar_of_few(count: int) -> None:
    assert len(grammar(count)) == count


# --- The cache and the network ---

CONTENT = b"Ein Hund rennt.\n" * 5000
NAME = "captions.txt"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a data set of one file."""
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path))
    monkeypatch.setitem(SHA256, "toy", {NAME: hashlib.sha256(CONTENT).hexdigest()})
    return tmp_path


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server on the loop-back address that answers each request in its own way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()


def send(handler: BaseHTTPRequestHandler, content: bytes, promised: int) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(promised))
    handler.end_headers()
    handler.wfile.write(content)


def whole(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT, len(CONTENT))


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT[:1000], 1000)


def dropped(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT[:1000], len(CONTENT))
    handler.connection.shutdown(socket.SHUT_RDWR)


def altered(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT.replace(b"Hund", b"Mund"), len(CONTENT))


def refused(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(404)


def test_fetch_downloads_once(cache: Path) -> None:
    with server(whole) as address:
        path = fetch("toy", NAME, address)
    assert path == cache / "toy" / NAME and path.read_bytes() == CONTENT
    assert fetch("toy", NAME, "http://127.0.0.1:9") == path  # nobody there, and nobody asked


def test_fetch_replaces_a_damaged_file(cache: Path) -> None:
    path = cache / "toy" / NAME
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1])
    with server(whole) as address:
        assert fetch("toy", NAME, address).read_bytes() == CONTENT


@pytest.mark.parametrize("answer", [cut_short, dropped, altered, refused])
def test_fetch_leaves_nothing_of_a_bad_download(cache: Path, answer: Answer) -> None:
    with server(answer) as address, pytest.raises(MissingData) as caught:
        fetch("toy", NAME, address)
    assert NAME in str(caught.value) and "\n" not in str(caught.value)
    assert list((cache / "toy").iterdir()) == []


def test_a_bad_download_does_not_touch_what_was_there(cache: Path) -> None:
    path = cache / "toy" / NAME
    path.parent.mkdir()
    path.write_bytes(b"an older file")
    with server(altered) as address, pytest.raises(MissingData):
        fetch("toy", NAME, address)
    assert path.read_bytes() == b"an older file"


def test_a_cache_that_cannot_be_written_is_missing_data(cache: Path) -> None:
    (cache / "toy").write_text("a file where a folder should be")
    with server(whole) as address, pytest.raises(MissingData, match=NAME):
        fetch("toy", NAME, address)


def test_a_filled_cache_is_only_read(cache: Path) -> None:
    path = cache / "toy" / NAME
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    path.parent.chmod(0o555)
    try:
        assert fetch("toy", NAME, "http://127.0.0.1:9") == path
    finally:
        path.parent.chmod(0o755)


def test_without_network_one_line_names_every_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path))
    monkeypatch.setitem(corpus.ADDRESSES, "multi30k", "http://127.0.0.1:9")
    with pytest.raises(MissingData) as caught:
        multi30k("train")
    message = str(caught.value)
    assert "\n" not in message and str(tmp_path / "multi30k") in message
    assert all(name in message for name in SHA256["multi30k"])


def test_cache_folder_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_CACHE", raising=False)
    assert cache_folder().name == "annotated-transformer"


def test_unknown_split_is_named() -> None:
    with pytest.raises(ValueError, match=r"'dev': take train, val"):
        multi30k("dev")


# --- Multi30k itself, where it is ---


@pytest.mark.parametrize(
    ("split", "count"), [("train", 29_000), ("val", 1014), ("test_2016_flickr", 1000)]
)
def test_multi30k_is_complete(split: str, count: int) -> None:
    try:
        pairs = multi30k(split)
    except MissingData as error:
        pytest.skip(str(error))
    assert len(pairs) == count
    assert all(pair.source and pair.target for pair in pairs)


# --- Pairs of the reader's own: reading ---

GERMAN = "Hallo!\nDer Hund schläft.\n"
ENGLISH = "Hello!\nThe dog sleeps.\n"
EXPECTED = [Pair("Hallo!", "Hello!"), Pair("Der Hund schläft.", "The dog sleeps.")]
TABLE = "Hello!\tHallo!\tCC-BY\nThe dog sleeps.\tDer Hund schläft.\tCC-BY\n"


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, packed as its name says."""
    raw = content.encode() if isinstance(content, str) else content
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("pairs.txt", raw)
            archive.writestr("_about.txt", "terms of use")
        return path
    path.write_bytes(raw)
    return path


def problem(*arguments: object, **named: object) -> str:
    """The one line that reading fails with."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        read_pairs(*arguments, **named)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    return message


@pytest.mark.parametrize("packed", ["", ".gz", ".zip"])
def test_a_table_is_read(tmp_path: Path, packed: str) -> None:
    """Columns are chosen, and a third one is ignored."""
    path = write(tmp_path / f"pairs.tsv{packed}", TABLE)
    assert read_pairs(path, columns=(1, 0)) == EXPECTED
    assert read_pairs(str(path))[0] == Pair("Hello!", "Hallo!")


@pytest.mark.parametrize("packed", ["", ".gz", ".zip"])
def test_two_texts_are_read(tmp_path: Path, packed: str) -> None:
    german = write(tmp_path / f"de.txt{packed}", GERMAN)
    english = write(tmp_path / "en.txt", ENGLISH.rstrip("\n"))
    assert read_pairs(german, english) == EXPECTED


def test_carriage_returns_and_byte_order_marks_are_no_words(tmp_path: Path) -> None:
    german = write(tmp_path / "de.txt", "\ufeff" + GERMAN.replace("\n", "\r\n"))
    english = write(tmp_path / "en.txt", ENGLISH)
    assert read_pairs(german, english) == EXPECTED
    table = write(tmp_path / "pairs.tsv", "\ufeff" + TABLE.replace("\n", "\r\n"))
    assert read_pairs(table, columns=(1, 0)) == EXPECTED


def test_a_carriage_return_inside_a_line_becomes_a_space(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "Der\rHund\tThe dog\n")
    assert filter_pairs(read_pairs(path))[0] == [Pair("Der Hund", "The dog")]


@pytest.mark.parametrize(
    "odd", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_only_a_line_end_ends_a_line(tmp_path: Path, odd: str) -> None:
    german = write(tmp_path / "de.txt", f"Hallo{odd}du!\nDer Hund schläft.\n")
    pairs = read_pairs(german, write(tmp_path / "en.txt", ENGLISH))
    assert pairs[1] == EXPECTED[1] and len(pairs) == 2


def test_an_empty_line_keeps_its_place(tmp_path: Path) -> None:
    german = write(tmp_path / "de.txt", "Hallo!\n\nTschüs!\n")
    english = write(tmp_path / "en.txt", "Hello!\nNobody said this.\nBye!\n")
    assert read_pairs(german, english)[1:] == [
        Pair("", "Nobody said this."),
        Pair("Tschüs!", "Bye!"),
    ]
    table = write(tmp_path / "pairs.tsv", "a\tb\n\n \nc\td\n")
    assert [pair.source for pair in read_pairs(table)] == ["a", "", "", "c"]


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        path = write(tmp_path / "pairs.tsv", mark + b"Hund\tdog\nV\xf6gel\tbirds\n")
        assert "pairs.tsv, line 2: the byte 0xf6 is not UTF-8; save the file" in problem(path)


def test_unequal_line_counts_name_both(tmp_path: Path) -> None:
    german = write(tmp_path / "train.de", "a\n" * 2000)
    english = write(tmp_path / "train.en", "b\n" * 1999)
    message = problem(german, english)
    assert "train.de has 2,000 lines" in message and "train.en has 1,999" in message
    assert "look for a missing or a broken line" in message


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("packed", [".gz", ".zip"])
def test_a_truncated_archive_is_named(tmp_path: Path, packed: str, keep: float) -> None:
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS)
    path = write(tmp_path / f"pairs.tsv{packed}", text)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep)])
    message = problem(path)
    assert str(path) in message and "cut short or damaged, so get it again" in message


@pytest.mark.parametrize("packed", [".gz", ".zip"])
def test_a_damaged_archive_is_named(tmp_path: Path, packed: str) -> None:
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS)
    path = write(tmp_path / f"pairs.tsv{packed}", text)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    path.write_bytes(raw)
    assert "cut short or damaged" in problem(path)


def test_something_else_named_gz_or_zip_is_refused(tmp_path: Path) -> None:
    for name in ("pairs.tsv.gz", "pairs.zip"):
        (tmp_path / name).write_bytes(b"<html>not found</html>")
        assert name in problem(tmp_path / name)


def test_a_zip_of_two_tables_names_them(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/de.txt", GERMAN)
        archive.writestr("data/en.txt", ENGLISH)
        archive.writestr("README.md", "two files")
        archive.writestr("__MACOSX/data/._de.txt", "")
    message = problem(path)
    assert "data/de.txt, data/en.txt" in message and "README" not in message
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("LICENSE", "terms")
    assert "not LICENSE" in problem(path)


def test_a_missing_column_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "Hund\tdog\nKatze cat\n")
    message = problem(path)
    assert "pairs.tsv, line 2: there is no column 1" in message and "'Katze cat'" in message
    assert "line 1: there is no column 5" in problem(path, columns=(0, 5))


@pytest.mark.parametrize("columns", [(0, 0), (-1, 0)])
def test_impossible_columns(tmp_path: Path, columns: tuple[int, int]) -> None:
    path = write(tmp_path / "pairs.tsv", TABLE)
    assert str(columns) in problem(path, columns=columns)


@pytest.mark.parametrize("name", ["empty.tsv", "empty.tsv.gz", "empty.zip"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    assert f"{name} is empty" in problem(write(tmp_path / name, ""))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.tsv", tmp_path):
        with pytest.raises(FileNotFoundError, match="is not a file: check its name"):
            read_pairs(path)


def test_the_same_file_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "de.txt", GERMAN)
    assert "given as source and as target" in problem(path, tmp_path / "." / "de.txt")


def test_progress_stays_away_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_pairs(write(tmp_path / "pairs.tsv", TABLE))
    assert capsys.readouterr() == ("", "")


# --- Cleaning ---


def test_each_reason_is_counted() -> None:
    good = Pair("Der Hund schläft.", "The dog sleeps.")
    pairs = [
        good,
        Pair("", "Hello."),
        Pair("\t ", "Hello."),
        Pair("Wort " * 10_000, "word " * 10_000),
        Pair("Ja", "Yes I do"),
        Pair("Ja", "Yes I really do"),
        Pair("OK.", "OK."),
        good._replace(source="Der  Hund\tschläft. "),
    ]
    kept, dropped = filter_pairs(pairs)
    assert kept == [good, Pair("Ja", "Yes I do")]
    assert dropped == {
        "empty": 2,
        "too long": 1,
        "lengths apart": 1,
        "untranslated": 1,
        "repeated": 1,
    }


def test_the_limits_are_inside() -> None:
    pair = Pair("a b c d", "a b")
    assert filter_pairs([pair], max_words=4, ratio=2)[0] == [pair]
    assert filter_pairs([pair], max_words=3, ratio=2)[1]["too long"] == 1
    assert filter_pairs([pair], max_words=4, ratio=1.9)[1]["lengths apart"] == 1
    assert filter_pairs([Pair("我喜欢鱼", "I like fish very much")], ratio=float("inf"))[0]


@pytest.mark.parametrize(("max_words", "ratio"), [(0, 3.0), (10, 0.5), (10, float("nan"))])
def test_senseless_limits(max_words: int, ratio: float) -> None:
    with pytest.raises(ValueError, match=f"not {max_words} and {ratio}"):
        filter_pairs([], max_words, ratio)


def test_cleaning_keeps_all_of_the_grammar_and_its_alignments() -> None:
    assert filter_pairs(PAIRS) == (PAIRS, dict.fromkeys(corpus.REASONS, 0))


TEXT = st.text(st.sampled_from("ab \t\r\n.ßẞ\u00a0\u2028"), max_size=12) | st.text(max_size=8)
SOME = st.lists(st.builds(Pair, TEXT, TEXT, st.none()), max_size=30)


@settings(deadline=None)
@given(SOME, st.integers(1, 6), st.floats(1, 4))
def test_cleaning_accounts_for_every_pair_and_is_done_once(
    pairs: list[Pair], max_words: int, ratio: float
) -> None:
    kept, dropped = filter_pairs(pairs, max_words, ratio)
    assert len(kept) + sum(dropped.values()) == len(pairs)
    assert filter_pairs(kept, max_words, ratio) == (kept, dict.fromkeys(corpus.REASONS, 0))
    for source, target, _ in kept:
        lengths = sorted((len(words(source)), len(words(target))))
        assert 0 < lengths[0] <= lengths[1] <= min(max_words, ratio * lengths[0])
        assert source != target and not re.search(r"\s\s|[\t\r\n]|^\s|\s$", source + "|" + target)
    assert len({pair[:2] for pair in kept}) == len(kept)


# --- Splitting ---

SHARE = st.floats(0, 0.49)


def same(text: str) -> str:
    return " ".join(text.casefold().split())


@settings(deadline=None)
@given(SOME, SHARE, SHARE, st.integers(0, 5))
def test_no_source_sentence_is_in_two_splits(
    pairs: list[Pair], validation: float, test: float, seed: int
) -> None:
    splits = split_pairs(pairs, validation, test, seed)
    assert Counter(pair for split in splits for pair in split) == Counter(pairs)
    found = [{same(pair.source) for pair in split} for split in splits]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])
    assert all(list(split) == [pair for pair in pairs if pair in split] for split in splits)


@settings(deadline=None)
@given(SOME, SOME, st.randoms(use_true_random=False))
def test_other_lines_and_their_order_do_not_matter(
    pairs: list[Pair], others: list[Pair], rng: random.Random
) -> None:
    mixed = [*pairs, *others]
    rng.shuffle(mixed)
    for small, large in zip(split_pairs(pairs, 0.3, 0.3), split_pairs(mixed, 0.3, 0.3)):
        assert set(small) <= set(large)


def test_case_and_spaces_make_no_other_sentence() -> None:
    for word in ("Lauf!", "STRASSE", "Weiß"):
        pairs = [Pair(f"{form} x", "y") for form in (word, word.upper(), word.casefold())]
        pairs.append(Pair(f"  {word}\t x ", "y"))
        for seed in range(20):
            assert max(map(len, split_pairs(pairs, 0.3, 0.3, seed))) == 4


def test_shares_and_seeds() -> None:
    train, validation, test = split_pairs(PAIRS, 0.1, 0.2, seed=1)
    assert abs(len(validation) - 300) < 60 and abs(len(test) - 600) < 80
    assert split_pairs(PAIRS, 0.1, 0.2, seed=2).test != test
    assert split_pairs(PAIRS, 0, 0) == (PAIRS, [], [])
    assert len(train) + len(validation) + len(test) == len(PAIRS)


@pytest.mark.parametrize(("validation", "test"), [(0.5, 0.5), (-0.1, 0.1), (1000, 0), (0, 1)])
def test_impossible_shares(validation: float, test: float) -> None:
    with pytest.raises(ValueError, match=f"not {validation} and {test}"):
        split_pairs(PAIRS, validation, test)


# --- Statistics ---


def test_statistics_by_hand() -> None:
    counted = statistics([Pair("Ja, ja.", "Yes."), Pair("Ja.", "Yes, yes, yes.")])
    assert counted.pairs == 2
    assert counted.source == (6, 4, 2, 3.0, 4)
    assert counted.target == (8, 4, 0, 4.0, 6)
    assert statistics([]).source == (0, 0, 0, 0, 0)


# --- Tatoeba, where it is ---


def test_tatoeba_loads_as_it_is() -> None:
    path = cache_folder() / "tatoeba" / "deu-eng.zip"
    if not path.is_file():
        pytest.skip(f"{path} is not there: it is deu-eng.zip of manythings.org/anki, May 2018")
    start = time.perf_counter()
    pairs = read_pairs(path, columns=(1, 0))
    assert time.perf_counter() - start < 8
    assert len(pairs) == 169_813
    assert pairs[0] == Pair("Hallo!", "Hi.")
    assert len({pair.source for pair in pairs}) == 159_223
    assert len({pair.target for pair in pairs}) == 135_534
    kept, dropped = filter_pairs(pairs)
    assert len(kept) == 169_809 and dropped["lengths apart"] == 4
    splits = split_pairs(kept, 0.05, 0.05, seed=0)
    assert sum(map(len, splits)) == len(kept) and 8000 < len(splits.test) < 9000
    found = [{same(pair.source) for pair in split} for split in splits]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])
