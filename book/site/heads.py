"""The line under a chapter's title: minutes, sections of the paper, what is needed, core or extra,
and a button that opens it in Colab. Cells of imports, and solutions, are folded.

Minutes follow from words, visible lines of code, figures and formulas, sections of the paper from
the first sentence. What is needed and what is extra is in `book/site/chapters.yml`, by number.
"""

import ast
import re
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx

from tools.package import label_of

TABLE = "book/site/chapters.yml"
PAPER = re.compile(r"\((sections? [\d., and]*(?:to [\d.]+)?[\d., and]*) of the paper")
WORDS_A_MINUTE = 200
LINES_A_MINUTE = 12  # of code that is not folded
FIGURES_A_MINUTE = 2  # and formulas that stand on lines of their own
FOLDED = {"dropdown", "hide", "tag_hide-input"}
SOLUTION = "Show the solution"
COLAB = "https://colab.research.google.com/github"


@lru_cache(maxsize=1)
def table(root: Path) -> dict[str, dict[str, Any]]:
    """Return what is needed for each chapter, and which are extra."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load(
        (root / TABLE).read_text(encoding="utf-8")
    )
    return rows


def fold_imports(app: Sphinx, doctree: nodes.document) -> None:
    """Fold each cell that only imports."""
    usual_prompt = app.config.nb_code_prompt_show
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") != "cell_code":
            continue
        prompt = cell.get("prompt_show", usual_prompt)
        if prompt == SOLUTION:
            cell["prompt_show"] = cell["prompt_hide"] = "Solution"
        if prompt != usual_prompt:
            continue  # it has words of its own
        blocks = list(cell.findall(nodes.literal_block))
        if blocks and only_imports(blocks[0].astext()):
            cell["hide_mode"] = "input"
            cell["classes"].append("imports")
            cell["prompt_show"] = "Show the imports"
            cell["prompt_hide"] = "Hide the imports"


def fold_solutions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fold solutions in words, and the like, as code is folded: without a script."""
    for box in list(doctree.findall(nodes.admonition)):
        if "dropdown" in box["classes"]:
            title, *content = box.children
            name = title.astext().rstrip(" 0123456789")
            head = f'<details class="hide"><summary>{escape(name)}</summary>'
            opening = nodes.raw("", head, format="html")
            closing = nodes.raw("", "</details>", format="html")
            box.parent.replace(box, [opening, *content, closing])


def only_imports(code: str) -> bool:
    """Say whether code only imports."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return False
    kinds = [isinstance(node, ast.Import | ast.ImportFrom) for node in statements]
    return bool(kinds) and all(kinds)


def add_head(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the line under the title of a chapter or an appendix."""
    label = label_of(docname)
    top = next(iter(doctree.findall(nodes.section)), None)
    if not label or top is None or app.builder.format != "html":
        return
    row = table(Path(app.srcdir)).get(label, {})
    usual_kind = "appendix" if label.isalpha() else "core"
    facts: list[nodes.Node | None] = [
        nodes.Text(f"{minutes(app.env.get_doctree(docname))} minutes"),
        sections_of_paper(top),
        needs(app, docname, row.get("needs", [])),
        nodes.Text(row.get("kind", usual_kind)),
    ]
    line = nodes.paragraph(classes=["chapter-head"])
    for fact in facts:
        if fact is not None:
            line += nodes.inline("", "", fact, classes=["fact"])
    line += nodes.reference(
        "",
        "Open in Colab",
        refuri=colab(app, docname),
        classes=["colab-button"],
        internal=False,
    )
    top.insert(1, line)


def sections_of_paper(top: nodes.section) -> nodes.Node | None:
    """Return the sections of the paper that a chapter names in its first paragraph."""
    first = next(iter(top.findall(nodes.paragraph)), None)
    sections = PAPER.search(first.astext()) if first is not None else None
    return nodes.Text(f"{sections[1]} of the paper") if sections else None


def minutes(doctree: nodes.document) -> int:
    """Estimate how long a page takes to read, to five minutes, without what is folded.

    Takes the page as it was read: when it is written, it no longer says what is folded.
    """
    words = 0
    for paragraph in doctree.findall(nodes.paragraph):
        if not is_folded(paragraph):
            words += len(paragraph.astext().split())
    lines = 0
    for block in doctree.findall(nodes.literal_block):
        if "python" in block.get("language", "") and not is_folded(block):
            lines += block.astext().count("\n") + 1
    looked_at = [*doctree.findall(nodes.figure), *doctree.findall(nodes.math_block)]
    exact = words / WORDS_A_MINUTE + lines / LINES_A_MINUTE
    exact += sum(not is_folded(node) for node in looked_at) / FIGURES_A_MINUTE
    return max(5, 5 * round(exact / 5))


def is_folded(node: nodes.Node) -> bool:
    """Say whether a part of a page is inside of something that is closed until it is opened."""
    parent = node.parent
    while parent is not None:
        if parent.get("hide_mode") or FOLDED.intersection(parent.get("classes", [])):
            return True
        parent = parent.parent
    return False


def needs(app: Sphinx, docname: str, numbers: list[int]) -> nodes.Node | None:
    """Name the chapters that come before: the titles of up to two, the numbers of more."""
    pages = {label_of(name): name for name in app.env.all_docs}
    numbers = [number for number in numbers if str(number) in pages]
    if not numbers:
        return None
    in_numbers = len(numbers) > 2

    def link(number: int) -> nodes.reference:
        page = pages[str(number)]
        title = app.env.titles[page].astext()
        text = str(number) if in_numbers else f"{number} {title}"
        address = app.builder.get_relative_uri(docname, page)
        return nodes.reference("", text, internal=True, refuri=address, reftitle=title)

    inline = nodes.inline("", "after chapters " if in_numbers else "after ")
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 3 and numbers == list(range(first, last + 1)):
        inline += [link(first), nodes.Text(" to "), link(last)]
        return inline
    for number in numbers:
        if number != first:
            inline += nodes.Text(" and " if number == last else ", ")
        inline += link(number)
    return inline


def colab(app: Sphinx, docname: str) -> str:
    """Return the address that opens a notebook in Colab."""
    options = app.config.html_theme_options
    repository = options["repository_url"].removeprefix("https://github.com/")
    return f"{COLAB}/{repository}/blob/{options['repository_branch']}/{docname}.ipynb"
