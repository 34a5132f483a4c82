"""Serve the built site on 127.0.0.1 and rebuild it when a page changes.

usage: python -m tools.serve [PORT]
"""

import functools
import http.server
import subprocess
import sys
import threading
import time

from tools.chapters import ROOT

SITE = ROOT / "_build" / "html"
WATCHED = ("book", "notebooks", "_config.yml", "_toc.yml", "tools/site")
BUILD = ["make", "--no-print-directory", "book"]


def stamp() -> float:
    """Return the newest change below the watched paths, in seconds."""
    files = [ROOT / name for name in WATCHED]
    files += [path for name in WATCHED for path in (ROOT / name).rglob("*")]
    return max(path.stat().st_mtime for path in files if path.exists() and path.suffix != ".pyc")


def rebuild_on_change(pause: float = 1.0) -> None:
    """Build again whenever a page is saved; a failed build leaves the last site standing."""
    seen = stamp()
    while True:
        time.sleep(pause)
        if (now := stamp()) != seen:
            seen = now
            print("A page changed: building ...", flush=True)
            subprocess.run(BUILD, cwd=ROOT, check=False)


def main() -> None:
    """Build, serve, and watch until interrupted."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    subprocess.run(BUILD, cwd=ROOT, check=False)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        sys.exit(f"make serve: port {port}: {error.strerror}; give another: make serve PORT=8001")
    threading.Thread(target=rebuild_on_change, daemon=True).start()
    print(f"The book: http://127.0.0.1:{port}/  (Ctrl-C ends)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
