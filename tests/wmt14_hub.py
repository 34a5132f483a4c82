"""A stand-in for the Hugging Face hub that has one data set, wmt/wmt14, made of any sentence pairs.

build(folder, train, validation, test)   # Parquet files laid out as the real ones, en-de
with serve(folder) as address: ...       # a process with HF_ENDPOINT=address asks here
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyarrow import parquet

from annotated_transformer.large_corpora import REVISION

API, FILES = "/api/datasets/wmt/wmt14/", f"/datasets/wmt/wmt14/resolve/{REVISION}/"


def write_parquet(path: Path, pairs: Sequence[Sequence[str | None]]) -> None:
    """Write English-German pairs as one Parquet file of WMT14's layout."""
    rows = [{"de": pair[1], "en": pair[0]} for pair in pairs]
    layout = pa.struct([("de", pa.string()), ("en", pa.string())])
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"translation": pa.array(rows, layout)}), path)


def build(folder: Path, **parts: Sequence[Sequence[str | None]]) -> None:
    """Write the files of the data set: train in two files, validation, test, and its card."""
    card = ["---", "configs:", "- config_name: de-en", "  data_files:"]
    for part, pairs in parts.items():
        files = [pairs[::2], pairs[1::2]] if part == "train" else [pairs]
        for number, share in enumerate(files):
            name = f"{part}-{number:05}-of-{len(files):05}.parquet"
            write_parquet(folder / "de-en" / name, share)
        card += [f"  - split: {part}", f"    path: de-en/{part}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Answer on 127.0.0.1 what the library asks the hub about the files of a folder.

    While there is a file `broken` in the folder, only half of each Parquet file is sent.
    """

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                half = (folder / "broken").exists() and content.startswith(b"PAR1")
                self.close_connection = half
                self.wfile.write(content[: len(content) // 2] if half else content)

        def do_GET(self) -> None:
            path = urlparse(unquote(self.path)).path
            listed = [
                p for p in sorted(folder.rglob("*")) if p.suffix in (".md", ".parquet")
            ]
            names = [path.relative_to(folder).as_posix() for path in listed]
            if path.startswith(f"{API}revision/"):
                known = {"id": "wmt/wmt14", "sha": REVISION}
                known["siblings"] = [{"rfilename": name} for name in names]
                self.answer(json.dumps(known).encode(), Content_Type="application/json")
            elif path.startswith(f"{API}tree/"):
                below = path.partition(REVISION)[2].strip("/")
                tree = [
                    {
                        "type": "file",
                        "path": name,
                        "size": p.stat().st_size,
                        "oid": etag(b""),
                    }
                    for name, p in zip(names, listed)
                    if name.startswith(below)
                ]
                if not below:
                    tree.append(
                        {"type": "directory", "path": "de-en", "oid": etag(b"")}
                    )
                self.answer(json.dumps(tree).encode(), Content_Type="application/json")
            elif path.removeprefix(FILES) in names:
                content = (folder / path.removeprefix(FILES)).read_bytes()
                self.answer(content, ETag=f'"{etag(content)}"', X_Repo_Commit=REVISION)
            else:
                self.answer(b"", 404, X_Error_Code="EntryNotFound")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
