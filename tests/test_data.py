"""Words; and data from the network: a file is used only if it is the right one, and whatever goes
wrong is one error of one line, which says which files to put where.
"""

import gzip
import hashlib
import logging
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer import own_data
from annotated_transformer.data import Pair, words
from annotated_transformer.own_data import MissingData, cache_folder, multi30k

# --- Words ---


def test_words_and_marks_are_counted_one_by_one() -> None:
    assert words("Ja, er schläft.") == ["Ja", ",", "er", "schläft", "."]
    assert words(" \t\n") == []


@given(st.text())
def test_words_lose_nothing_but_white_space(text: str) -> None:
    assert "".join(words(text)) == "".join(text.split())


# --- The cache and the network ---

FILES = {
    "val.de.gz": gzip.compress(
        "Ein Hund rennt. \nEine Katze schläft.\n".encode(), mtime=0
    ),
    "val.en.gz": gzip.compress(b"A dog runs.\nA cat sleeps.\n", mtime=0),
}
PAIRS = [
    Pair("Ein Hund rennt.", "A dog runs."),
    Pair("Eine Katze schläft.", "A cat sleeps."),
]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a data set of two files, and an address where nobody answers."""
    hashes = {name: hashlib.sha256(raw).hexdigest() for name, raw in FILES.items()}
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(own_data, "MULTI30K_SHA256", hashes)
    monkeypatch.setattr(own_data, "MULTI30K", NOBODY)
    return tmp_path / "cache" / "multi30k"


def fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the data set is downloaded from."""
    folder = tmp_path / "served"
    fill(folder)
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(
            own_data, "MULTI30K", f"http://127.0.0.1:{server.server_port}"
        )
        yield folder
        server.shutdown()


def test_a_data_set_is_downloaded_once_and_quietly(
    cache: Path,
    served: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level(logging.INFO):
        assert multi30k("val") == PAIRS
        for name in FILES:
            (served / name).unlink()  # nobody is asked again
        assert multi30k("val") == PAIRS
    assert contents(cache) == FILES
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_a_damaged_file_is_replaced(cache: Path, served: Path) -> None:
    fill(cache)
    (cache / "val.en.gz").write_bytes(FILES["val.en.gz"][:-1])
    assert multi30k("val") == PAIRS
    assert contents(cache) == FILES


@pytest.mark.parametrize("answer", [FILES["val.de.gz"][:20], b"another file", None])
def test_a_bad_download_leaves_nothing_and_touches_nothing(
    cache: Path, served: Path, answer: bytes | None
) -> None:
    (served / "val.de.gz").unlink()
    if answer is not None:
        (served / "val.de.gz").write_bytes(answer)
    fill(cache)
    (cache / "val.de.gz").write_bytes(b"an older file")
    before = contents(cache)
    with pytest.raises(MissingData) as caught:
        multi30k("val")
    assert "\n" not in str(caught.value)
    assert contents(cache) == before


def test_a_folder_filled_by_hand_works_without_network(cache: Path) -> None:
    fill(cache)
    assert multi30k("val") == PAIRS


def test_without_network_one_line_names_every_file_and_where_to_put_it(
    cache: Path,
) -> None:
    with pytest.raises(MissingData) as caught:
        multi30k("val")
    message = str(caught.value)
    assert "\n" not in message
    for part in (*FILES, NOBODY, str(cache)):
        assert part in message


def test_the_cache_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_CACHE", raising=False)
    assert "annotated-transformer" in cache_folder().parts


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
