"""The line under a chapter's title: minutes, sections of the paper, what is needed, core or extra,
and a button that opens it in Colab. Cells of imports are folded.

Minutes follow from words and visible lines of code, sections of the paper from the first sentence.
What is needed and what is extra is in `book/chapters.yml`, by number.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx

from tools.package import label_of

TABLE = "book/chapters.yml"
PAPER = re.compile(r"\((sections? [\d., and]*(?:to [\d.]+)?[\d., and]*) of the paper")
WORDS_A_MINUTE, LINES_A_MINUTE = 200, 12  # of prose, and of code that is not folded
COLAB = "https://colab.research.google.com/github"


@lru_cache(maxsize=1)
def table(root: Path) -> dict[str, dict[str, Any]]:
    """Return what is needed for each chapter, and which are extra."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load((root / TABLE).read_text(encoding="utf-8"))
    return rows


def fold_imports(app: Sphinx, doctree: nodes.document) -> None:
    """Fold each cell that only imports."""
    for cell in doctree.findall(nodes.container):
        own_words = app.config.nb_code_prompt_show != cell.get(
            "prompt_show", app.config.nb_code_prompt_show
        )
        if cell.get("nb_element") == "cell_code" and not own_words:
            code = next((block.astext() for block in cell.findall(nodes.literal_block)), "")
            if only_imports(code):
                cell["hide_mode"] = "input"
                cell["prompt_show"], cell["prompt_hide"] = "Show the imports", "Hide the imports"


def only_imports(code: str) -> bool:
    """Say whether code only imports."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return False
    return bool(statements) and all(isinstance(s, ast.Import | ast.ImportFrom) for s in statements)


def add_head(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the line under the title of a chapter or an appendix."""
    label = label_of(docname)
    top = next(iter(doctree.findall(nodes.section)), None)
    if not label or top is None or app.builder.format != "html":
        return
    row = table(Path(app.srcdir)).get(label, {})
    parts: list[nodes.Node] = [nodes.Text(f"{minutes(doctree)} minutes")]
    first = next(iter(top.findall(nodes.paragraph)), None)
    if first is not None and (found := PAPER.search(first.astext())):
        parts.append(nodes.Text(f"{found[1]} of the paper"))
    chapters = {label_of(name): name for name in app.env.all_docs if label_of(name)}
    if known := [label for label in row.get("needs", []) if str(label) in chapters]:
        parts.append(needs(app, docname, known, chapters))
    parts.append(nodes.Text(row.get("kind") or ("appendix" if label.isalpha() else "core")))
    line = nodes.paragraph(classes=["chapter-head"])
    for part in parts:
        line += nodes.inline("", "", part, classes=["fact"])
    line += nodes.reference(
        "", "Open in Colab", refuri=colab(app, docname), classes=["colab-button"], internal=False
    )
    top.insert(1, line)


def minutes(doctree: nodes.document) -> int:
    """Estimate how long a page takes to read, to five minutes; what is folded does not count."""
    words, lines = 0, 0
    for node in doctree.findall(lambda n: isinstance(n, nodes.paragraph | nodes.literal_block)):
        if any(is_folded(parent) for parent in parents(node)):
            continue
        if isinstance(node, nodes.paragraph):
            words += len(node.astext().split())
        elif "python" in node.get("language", ""):
            lines += node.astext().count("\n") + 1
    return max(5, 5 * round((words / WORDS_A_MINUTE + lines / LINES_A_MINUTE) / 5))


def parents(node: nodes.Node) -> list[nodes.Element]:
    """Return what a node is in."""
    found = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


def is_folded(node: nodes.Element) -> bool:
    """Say whether a part of a page is closed until somebody opens it."""
    classes = set(node.get("classes", []))
    return bool({"dropdown", "hide", "tag_hide-input", "toggle"} & classes or node.get("hide_mode"))


def needs(
    app: Sphinx, docname: str, known: list[int], chapters: dict[str | None, str]
) -> nodes.Node:
    """Name the chapters that come before: the titles of up to two, the numbers of more."""
    runs = [known] if len(known) > 3 and known[-1] - known[0] < len(known) else [[n] for n in known]
    inline = nodes.inline("", "after chapters " if len(known) > 2 else "after ")
    for place, run in enumerate(runs):
        if place:
            inline += nodes.Text(" and " if run is runs[-1] else ", ")
        for label in run[:: len(run) - 1 or 1]:  # of a run, the first and the last
            inline += [nodes.Text(" to ")] if label != run[0] else []
            page = chapters[str(label)]
            title = app.env.titles[page].astext()
            text = str(label) if len(known) > 2 else f"{label} {title}"
            address = app.builder.get_relative_uri(docname, page)
            inline += nodes.reference("", text, internal=True, refuri=address, reftitle=title)
    return inline


def colab(app: Sphinx, docname: str) -> str:
    """Return the address that opens a notebook in Colab."""
    options = app.config.html_theme_options
    place = options["repository_url"].removeprefix("https://github.com/")
    return f"{COLAB}/{place}/blob/{options['repository_branch']}/{docname}.ipynb"
