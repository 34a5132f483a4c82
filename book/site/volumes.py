"""The volumes: *The book*, and what one looks up beside it.

The sidebar unfolds the part that one is in, and one leafs from page to page within a volume.
"""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

BOOK = "The book"
BESIDE = ("Further", "Manual")  # parts that are volumes of their own
PART = re.compile(
    r'<p[^>]*class="caption"[^>]*><span class="caption-text">([^<]*)</span></p>\s*'
    r"(<ul.*?</ul>)",
    re.S,
)


def set_apart(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Let no page lead out of its volume, and give the sidebar a way to fold its parts."""
    context["in_volumes"] = in_volumes
    volumes = {app.config.root_doc: BOOK}
    for part in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        volume = part["caption"] if part["caption"] in BESIDE else BOOK
        volumes |= dict.fromkeys(part["includefiles"], volume)
    _, before, after = app.builder.relations.get(page, [None, None, None])  # type: ignore[attr-defined]
    for name, neighbor in (("prev", before), ("next", after)):
        if volumes.get(neighbor) != volumes.get(page):
            context[name] = None


def in_volumes(contents: str) -> str:
    """Fold the parts of a table of contents, but for the one that holds the current page."""
    parts = PART.findall(str(contents))
    of_book = [part for part in parts if part[0] not in BESIDE]
    beside = [part for part in parts if part[0] in BESIDE]
    here = any('class="current' in pages or " current" in pages for _, pages in beside)
    book = "".join(folded(title, pages) for title, pages in of_book)
    volumes = [folded(BOOK, book, is_open=not here)] if book else []
    return "".join([*volumes, *(folded(title, pages) for title, pages in beside)])


def folded(title: str, inside: str, is_open: bool | None = None) -> str:
    """Return a fold, which is open where the current page is inside."""
    if is_open is None:
        is_open = " current" in inside
    state = " open" if is_open else ""
    return f"<details{state}><summary>{title}</summary>{inside}</details>"
