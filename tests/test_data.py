"""Data from the network: a file is used only if it is the right one, and whatever goes wrong is one
error of one line, which says which files to put where.
"""

import gzip
import hashlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.data import Pair, words
from annotated_transformer.toolkit import downloads
from annotated_transformer.toolkit.downloads import MissingData, cache_folder, multi30k

# --- Words ---


def test_words_and_marks_are_counted_one_by_one() -> None:
    assert words("Ja, er schläft.") == ["Ja", ",", "er", "schläft", "."]
    assert words(" \t\n") == []


@given(st.text())
def test_words_lose_nothing_but_white_space(text: str) -> None:
    assert "".join(words(text)) == "".join(text.split())


# --- The cache and the network ---

SIDES = {
    "de": "Ein Hund rennt. \nEine Katze schläft.\n",
    "en": "A dog runs.\nA cat sleeps.\n",
}
FILES = {
    f"val.{side}.gz": gzip.compress(text.encode(), mtime=0)
    for side, text in SIDES.items()
}
PAIRS = [
    Pair("Ein Hund rennt.", "A dog runs."),
    Pair("Eine Katze schläft.", "A cat sleeps."),
]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a data set of two files, and an address where nobody answers."""
    hashes = {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(downloads, "MULTI30K_SHA256", hashes)
    monkeypatch.setattr(downloads, "MULTI30K", NOBODY)
    return tmp_path / "multi30k"


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


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


def requested_file(handler: BaseHTTPRequestHandler) -> bytes:
    return FILES[handler.path.rpartition("/")[2]]


def whole(handler: BaseHTTPRequestHandler) -> None:
    content = requested_file(handler)
    send(handler, content, len(content))


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    send(handler, requested_file(handler)[:20], 20)


def dropped(handler: BaseHTTPRequestHandler) -> None:
    send(handler, requested_file(handler)[:20], len(requested_file(handler)))
    handler.connection.shutdown(socket.SHUT_RDWR)


def altered(handler: BaseHTTPRequestHandler) -> None:
    send(handler, gzip.compress(b"Ein Mund rennt.\n\n"), 37)


def refused(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(404)


def test_a_data_set_is_downloaded_once_and_quietly(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with server(whole) as address, caplog.at_level(logging.INFO):
        monkeypatch.setattr(downloads, "MULTI30K", address)
        assert multi30k("val") == PAIRS
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == FILES
    assert multi30k("val") == PAIRS  # nobody is there any more, and nobody is asked
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_a_damaged_file_is_replaced(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache)
    (cache / "val.en.gz").write_bytes(FILES["val.en.gz"][:-1])
    with server(whole) as address:
        monkeypatch.setattr(downloads, "MULTI30K", address)
        assert multi30k("val") == PAIRS


@pytest.mark.parametrize("answer", [cut_short, dropped, altered, refused])
def test_a_bad_download_leaves_nothing_and_touches_nothing(
    cache: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache)
    (cache / "val.de.gz").write_bytes(b"an older file")
    with (
        server(answer) as address,
        pytest.raises(MissingData, match=r"val\.de\.gz") as caught,
    ):
        monkeypatch.setattr(downloads, "MULTI30K", address)
        multi30k("val")
    assert "\n" not in str(caught.value)
    before = {**FILES, "val.de.gz": b"an older file"}
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before


def test_a_cache_that_cannot_be_written_is_missing_data(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where a folder should be")
    with server(whole) as address, pytest.raises(MissingData, match=r"val\.de\.gz"):
        monkeypatch.setattr(downloads, "MULTI30K", address)
        multi30k("val")


def test_a_folder_filled_by_hand_is_only_read(cache: Path) -> None:
    fill(cache)
    cache.chmod(0o555)
    try:
        assert multi30k("val") == PAIRS
    finally:
        cache.chmod(0o755)


def test_without_network_one_line_names_every_file_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(downloads, "MULTI30K", NOBODY)
    with pytest.raises(MissingData) as caught:
        multi30k("train")
    message = str(caught.value)
    assert (
        "\n" not in message
        and f"from {NOBODY} into {tmp_path / 'multi30k'} " in message
    )
    assert len(downloads.MULTI30K_SHA256) == 6
    assert all(name in message for name in downloads.MULTI30K_SHA256)


def test_the_cache_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_CACHE", raising=False)
    assert "annotated-transformer" in cache_folder().parts


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
