"""Archives of exactly the layout of WMT14, built from any sentence pairs, and a server for them.

    template = build(folder, pairs)                          # archives, mirror and catalog
    with serve(folder) as address:                           # on 127.0.0.1
        prepare(catalog(template, address), output)

Names of archives and members come from CATALOG itself. Sentences may be bytes, and then stand in
the archives as they are.
"""

import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from annotated_transformer.large_corpora import CATALOG, Corpus, Piece

SERVER = "http://SERVER"  # stands for the address in a template
Texts = Sequence[Sequence[Any]]  # pairs of str or bytes; what comes after the first two is ignored


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def plain(texts: Sequence[str | bytes]) -> bytes:
    """One sentence a line."""
    return b"".join(as_bytes(text) + b"\n" for text in texts)


def sgml(texts: Sequence[str | bytes]) -> bytes:
    """The format of the development and test sets."""
    lines = [
        b'<srcset setid="newstest" srclang="any">',
        b'<doc sysid="ref" docid="some-paper/1" genre="news" origlang="en">',
        b"<p>",
    ]
    for number, text in enumerate(texts, start=1):
        content = escape(text).encode() if isinstance(text, str) else text
        lines.append(b'<seg id="%d">%s</seg>' % (number, content))
    return b"\n".join([*lines, b"</p>", b"</doc>", b"</srcset>", b""])


def content_of(member: str, texts: Sequence[str | bytes]) -> bytes:
    """The bytes of a member, as its name asks for."""
    if member.endswith(".sgm"):
        return sgml(texts)
    return gzip.compress(plain(texts), mtime=0) if member.endswith(".gz") else plain(texts)


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def sha256(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def write_archive(folder: Path, piece: Piece, pairs: Texts) -> list[dict[str, str]]:
    """Write a piece as the official archive and as the mirror's; return its sources."""
    stranger = f"other/{piece.members[0]}"
    members = {stranger: b"not this one\n"}  # real archives hold other languages, too
    for side, name in enumerate(piece.members):
        members[name] = content_of(name, [pair[side] for pair in pairs])
    sources = []
    for source in piece.sources:
        place = "mirror" if source.file.endswith(".zip") else "official"
        path = folder / place / source.file
        path.parent.mkdir(parents=True, exist_ok=True)
        (write_zip if path.suffix == ".zip" else write_tar)(path, members)
        sources.append({"address": f"{SERVER}/{place}/{source.file}", "hash": sha256(path)})
    return sources


def shared(pairs: Texts, pieces: Sequence[Piece]) -> list[Texts]:
    """Cut pairs into one part a piece, in order."""
    size = -(-len(pairs) // len(pieces))
    return [pairs[start : start + size] for start in range(0, size * len(pieces), size)]


def build(
    folder: Path,
    pairs: Texts,
    corpus: Corpus = CATALOG["wmt14-en-de"],
    validation: Texts | None = None,
    test: Texts | None = None,
    vocabulary_size: int = 400,
) -> Path:
    """Write the archives of a corpus from pairs (source, target), and return its catalog, in which
    http://SERVER stands for the address; without `validation` and `test`, the first pairs are used.
    """
    validation, test = validation or pairs[:20], test or pairs[20:60]
    parts = {
        "train": shared(pairs, corpus.pieces["train"]),
        "validation": [validation],
        "test": [test],
        "test-filtered": [test[::2]],
    }
    content = {
        "name": corpus.name,
        "vocabulary_size": vocabulary_size,
        "pieces": {
            split: [
                {
                    "name": piece.name,
                    "members": piece.members,
                    "sources": write_archive(folder, piece, part),
                }
                for piece, part in zip(corpus.pieces[split], some)
            ]
            for split, some in parts.items()
        },
    }
    template = folder / "catalog-template.json"
    template.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return template


def catalog(template: Path, address: str) -> Path:
    """Fill in the address of the server, and return the catalog."""
    path = template.with_name("catalog.json")
    path.write_text(template.read_text(encoding="utf-8").replace(SERVER, address), "utf-8")
    return path


class Handler(BaseHTTPRequestHandler):
    """Sends files, from the byte asked for on, with a fault where one is planned."""

    server: "Server"

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        asked = self.headers.get("Range")
        self.server.log.append((path, asked))
        planned = self.server.faults.get(path, [])
        fault = planned.pop(0) if planned else None
        file = self.server.folder / path
        if fault == "missing" or not file.is_file():
            return self.send_error(404)
        if fault == "busy":
            return self.send_error(503)
        content = file.read_bytes()
        if fault == "altered":
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int(asked[6:].split("-")[0]) if asked and self.server.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        rest = content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: len(rest) // 2] if fault == "half" else rest)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    folder: Path
    faults: dict[str, list[str]]
    ranges: bool
    log: list[tuple[str, str | None]]


@contextmanager
def serve(
    folder: Path,
    faults: Mapping[str, Sequence[str]] | None = None,
    ranges: bool = True,
    log: list[tuple[str, str | None]] | None = None,
) -> Iterator[str]:
    """Serve a folder on 127.0.0.1 and yield the address.

    `faults` says for a path below the folder what happens to its first requests, one after the
    other: "half" (the connection drops half way), "altered" (one bit is wrong), "missing" (404) or
    "busy" (503). Without `ranges`, a file always begins at its beginning. `log` collects the path
    and the Range of each request.
    """
    server = Server(("127.0.0.1", 0), Handler)
    server.folder, server.ranges = folder, ranges
    server.faults = {path: list(some) for path, some in (faults or {}).items()}
    server.log = [] if log is None else log
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
