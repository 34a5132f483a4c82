"""The built site, served on 127.0.0.1, and the system's Chromium.

Without a built site or without Chromium everything here is skipped with one line.
"""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.chromium import QUIET, REMEDY, find_browser

SITE = Path(__file__).parents[2] / "_build" / "html"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port; yield its address, with the slash."""
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Where something is missing, skip what needs it with one line in place of one for each."""
    here = Path(__file__).parent
    lacking = [item for item in items if item.path.parent == here]
    reason = 'the site is not built: run "make book"'
    if (SITE / "index.html").exists():
        if find_browser() is not None:
            return
        reason = f"no browser: {REMEDY}"
        lacking = [
            item for item in lacking if "browser" in getattr(item, "fixturenames", [])
        ]
    if lacking:
        first, *others = lacking
        first.add_marker(pytest.mark.skip(reason=reason))
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def site() -> Path:
    return SITE


@pytest.fixture(scope="session")
def serve():
    """A context that serves a folder and yields its address."""
    return serving


@pytest.fixture(scope="session")
def address(site) -> Iterator[str]:
    with serving(site) as root:
        yield root


@pytest.fixture(scope="session")
def browser(site):
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_browser(), args=QUIET
        )
        yield chromium
        chromium.close()


def note_error(tab, message):
    if message.type == "error":
        tab.faults.append(message.text)


def note_request(tab, request):
    tab.requested.append(request.url.rpartition("/")[2])


@pytest.fixture
def open_page(browser):
    """A function that opens an address in a new tab, and hears what goes wrong there."""
    tabs = []

    def open_page(address, **options):
        tab = browser.new_page(**options)
        tabs.append(tab)
        tab.faults = []
        tab.requested = []
        tab.on("pageerror", lambda error: tab.faults.append(str(error)))
        tab.on("console", lambda message: note_error(tab, message))
        tab.on("request", lambda request: note_request(tab, request))
        tab.goto(address)
        return tab

    yield open_page
    for tab in tabs:
        assert not tab.faults
        tab.close()
