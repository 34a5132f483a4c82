"""The grammar says what it should, and a download that goes wrong never passes for data."""

import hashlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from annotated_transformer import corpus
from annotated_transformer.corpus import (
    SHA256,
    MissingData,
    cache_folder,
    fetch,
    grammar,
    multi30k,
    words,
)

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
