"""Write the notebooks for readers, in plain Markdown, which Jupyter, Colab and GitHub show alike.

`readers` is the book with its outputs. In the `workbook`, what a reader is to write is blank, and
the solutions are gone; `--solutions` writes the teacher's copy. A notebook that somebody has
changed is kept.
"""

import ast
import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from pprint import pformat
from typing import Any, NamedTuple
from urllib.parse import urljoin

import nbformat
import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.chapters import (
    KERNEL,
    ROOT,
    Chapter,
    chapters,
    hiding_metadata,
    selected,
    with_stable_ids,
)
from tools.command import command_line
from tools.package import PACKAGE, project
from tools.problem import ProblemError
from tools.reading import GUARDS

# In MyST Markdown
BOX = re.compile(r"^:::\{([\w-]+)\} ?(.*)\n(?::class:.*\n)?((?:.*\n)*?):::$", re.M)
CITATION = re.compile(r"\{cite:([tp])\}`([^`]+)`")
REFERENCE = re.compile(r"\{(numref|eq)\}`([^`]+)`")
EQUATION = re.compile(r"\$\$ \((eq-[\w-]+)\)")
LINK = re.compile(r"\]\((?=[\w./-]+\.(?:ipynb|md)\b|#)([^)]+)\)")

WORK = re.compile(r"^@\w+\{(\w+),\n(.*?)^\}", re.M | re.S)
PARTS = {  # what a reader of the workbook writes, and what `check` calls it
    "attention": "attention",
    "causal_mask": "causal_mask",
    "padding_mask": "padding_mask",
    "MultiHeadAttention": "multi_head_attention",
    "FeedForward": "feed_forward",
    "Embedding": "embedding",
    "sinusoid": "positions",
    "layer_norm": "layer_norm",
    "learning_rate": "learning_rate",
    "length_penalty": "length_penalty",
}
# What the workbook leaves out of a text
SOLUTION = re.compile(
    r":::\{admonition\} Solution[\s\S]*?\n:::$| Solution: .*|^Here is ours[^.:]*[.:] ?"
    r"|[;,] (?:and|the) [\w ]* solution(?=\.)",
    re.M,
)
TASK = """\
**Yours to write:** the body of `{}`. The cell below it says whether it is right, and until it is, \
the lesson goes on with the book's."""
DATA = {"multi30k": "Multi30k", "treebank": "the sample of the Penn Treebank"}
DOWNLOAD = "*This lesson downloads {}, once, when a cell first asks for it.*"
OFFLINE = """
from annotated_transformer import own_data
from annotated_transformer.synchronous_grammar import grammar

try:
    own_data.multi30k("train")
except own_data.MissingData:
    print("No network: sentences of the book's grammar take the place of the captions,")
    print("so your numbers will differ from those in the text.")
    drawn = grammar(30_000)
    own_data.multi30k = lambda split: drawn[:29_000] if split == "train" else drawn[29_000:]
"""
FIRST_CELL = """\
#@title Run this first: it finds the book's code, and in Colab fetches it
import os, shlex, sys
from importlib.metadata import distributions

url = "{url}"
needs = {needs}
has = {{package.name for package in distributions()}}
lacks = [package for package in needs if package.split(">")[0] not in has]
if "google.colab" in sys.modules:
    fetch = f"(test -e /book/book || git clone -q --depth 1 {{url}} /book)"
    if lacks:
        fetch += " && pip install -q " + " ".join(map(shlex.quote, lacks))
    print("Fetching the book and what this lesson needs ...")
    if os.system(fetch):
        sys.exit("The download failed. Check the network, then run this cell again.")
    lacks = []
up = [r for r in ("/book", "..", "../..", ".") if os.path.exists(r + "/book/figures.py")]
if not up:
    sys.exit(f"This needs the book's code: git clone {{url}}, and in its folder, make lab")
if lacks:
    sys.exit(f"Missing: {{', '.join(lacks)}}. Take the kernel of .venv, which make lab fills.")
sys.path.insert(0, up[0])
print("Ready.")
"""
CHECKER = '''
written = globals().get("written", {})  # by you


def checked(part, yours, ours):
    """Return what you wrote last if it is right, else the book's."""
    from annotated_transformer import check

    if yours is not ours:
        written[part] = yours
    verdict = check(part, written[part])
    print(verdict if verdict else f"{verdict} Until it is right, the book's is used.")
    return written[part] if verdict else ours
'''


class Book(NamedTuple):
    """What texts refer to: addresses, numbers of figures and equations, cited works."""

    site: str
    repository: str
    numbers: dict[str, tuple[str, str]]  # label -> number, address on the site
    works: dict[str, tuple[str, str]]  # key -> authors, year


def read_book(root: Path = ROOT) -> Book:
    """Number the figures and equations of each chapter, as the site does; read the works."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    site = config["html"]["baseurl"]
    numbers = {}
    for chapter in chapters(root):
        counts: Counter[str] = Counter()
        for label in labels(chapter.read_script()):
            kind = label.partition("-")[0]
            counts[kind] += 1
            anchor = f"equation-{label}" if kind == "eq" else label
            numbers[label] = (
                f"{chapter.number.lstrip('0')}.{counts[kind]}",
                f"{site}notebooks/{chapter.script.stem}.html#{anchor}",
            )
    entries = (root / "book/references.bib").read_text(encoding="utf-8")
    entries = entries.replace(r"{\'c}", "ć").replace(r"{\"u}", "ü")
    works = {key: authors_and_year(entry) for key, entry in WORK.findall(entries)}
    return Book(site, config["repository"]["url"], numbers, works)


def labels(notebook: NotebookNode) -> list[str]:
    """Return the labels of figures, `fig-…`, and equations, `eq-…`, in order."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            running = re.findall(r"^:::\{what-if\} (\w+)$", cell.source, re.M)
            found += [f"fig-what-if-{name}" for name in running]
            found += EQUATION.findall(cell.source)
        elif figure := cell.metadata.get("mystnb", {}).get("figure"):
            found.append(figure["name"])
    return found


def authors_and_year(entry: str) -> tuple[str, str]:
    """Return the authors of a work, as a text names them, and its year."""
    fields = dict(re.findall(r"(author|year) = \{(.+)\}", entry))
    authors = fields["author"].split(" and ")
    names = [author.partition(",")[0].strip("{}") for author in authors]
    several = f"{names[0]} et al."
    return several if len(names) > 2 else " and ".join(names), fields["year"]


# Text


def plain_markdown(text: str, page: str, book: Book) -> str:
    """Return the text of a page in plain Markdown; `page` is its address on the site."""

    def reference(match: re.Match[str]) -> str:
        label, address = book.numbers[match[2]]
        word = "figure" if match[1] == "numref" else "equation"
        if re.search(r"(^|[\n.?)] ?)$", text[: match.start()]):
            word = word.capitalize()
        return f"[{word} {label}]({address})"

    def citation(match: re.Match[str]) -> str:
        works = []
        for key in match[2].split(","):
            authors, year = book.works[key.strip()]
            name = f"{authors} ({year})" if match[1] == "t" else f"{authors}, {year}"
            works.append(f"[{name}]({book.site}book/bibliography.html)")
        return "; ".join(works) if match[1] == "t" else f"({'; '.join(works)})"

    def link(match: re.Match[str]) -> str:
        return f"]({urljoin(page, re.sub(r'[.](ipynb|md)', '.html', match[1]))})"

    def box(match: re.Match[str]) -> str:
        kind, title, content = match[1], match[2], match[3].strip()
        if kind == "admonition":
            return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"
        if kind == "what-if":
            content = f"**Figure {book.numbers[f'fig-what-if-{title}'][0]}.** {content}"
        return re.sub(r"^", "> ", content, flags=re.M)

    written = CITATION.sub(citation, REFERENCE.sub(reference, text))
    written = BOX.sub(box, LINK.sub(link, written))
    tagged = EQUATION.sub(lambda m: rf"\tag{{{book.numbers[m[1]][0]}}} $$", written)
    return tagged.strip()


# Cells


def edition(chapter: Chapter, book: Book, kind: str = "readers") -> NotebookNode:
    """Return a chapter in plain Markdown; but for readers, below each part stands its check."""
    parts = {} if kind == "readers" else PARTS
    is_workbook = kind == "workbook"
    page = f"{book.site}notebooks/{chapter.script.stem}.html"
    module = f"{PACKAGE}.{chapter.module}"
    cells: list[NotebookNode] = []
    for cell in chapter.paired().cells[1:]:
        if cell.cell_type == "markdown":
            text = SOLUTION.sub("", cell.source) if is_workbook else cell.source
            text = plain_markdown(text, page, book)
            for name in cell.metadata.get("needs", []):
                text += "\n\n" + DOWNLOAD.format(DATA[name])
            cells += [new_markdown_cell(text)] if text else []
            continue
        on_site = cell.metadata.get("mystnb", {})
        is_solution = on_site.get("code_prompt_show") == "Show the solution"
        if cell.source.startswith(GUARDS) or (is_solution and is_workbook):
            continue
        source, checks = cell.source, []
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in parts:
                name = node.name
                source = blank(source, node) if is_workbook else source
                check = f'{name} = checked("{parts[name]}", {name}, {module}.{name})'
                checks.append(new_code_cell(f"import {module}\n\n{check}"))
                if is_workbook:
                    body = f"{name}.forward" if isinstance(node, ast.ClassDef) else name
                    cells.append(new_markdown_cell(TASK.format(body)))
        cells.append(code_cell(source, cell, outputs=[] if parts else cell.outputs))
        if figure := on_site.get("figure"):
            number, _ = book.numbers[figure["name"]]
            caption = plain_markdown(figure["caption"], page, book)
            cells.append(new_markdown_cell(f"**Figure {number}.** {caption}"))
        cells += checks
    needs = pformat(packages(cells), compact=True)
    first = FIRST_CELL.format(url=book.repository, needs=needs)
    first += OFFLINE * (chapter.number == "15") + CHECKER * bool(parts)
    metadata = hiding_metadata(new_code_cell(metadata={"tags": ["hide-input"]}))
    cells.insert(0, new_code_cell(first.strip(), metadata=metadata))
    return with_stable_ids(new_notebook(metadata=KERNEL, cells=cells))


def blank(source: str, part: ast.FunctionDef | ast.ClassDef) -> str:
    """Leave of a function, or of a class's `forward`, the signature and the docstring."""
    functions = [node for node in ast.walk(part) if isinstance(node, ast.FunctionDef)]
    function = next((f for f in functions if f.name == "forward"), functions[0])
    first = function.body[0]
    start = first.end_lineno if ast.get_docstring(function) else first.lineno - 1
    lines = source.splitlines()
    yours = "raise NotImplementedError  # yours"
    lines[start : function.end_lineno] = [" " * first.col_offset + yours]
    return "\n".join(lines)


def code_cell(source: str, cell: NotebookNode, outputs: list[Any]) -> NotebookNode:
    """Return a code cell with a title, if it is closed, and its figures as pictures."""
    metadata = hiding_metadata(cell)
    if metadata:
        source = f"#@title {title(cell)}\n{source}"
    for output in outputs:
        if "image/png" in output.get("data", {}):
            output.data.pop("text/html", None)  # drawings, which GitHub doesn't show
    return new_code_cell(source, metadata=metadata, outputs=outputs)


def title(cell: NotebookNode) -> str:
    """Name a closed cell."""
    if words := cell.metadata.get("mystnb", {}).get("code_prompt_show"):
        return str(words).removeprefix("Show the ").capitalize()
    statements = ast.parse(cell.source).body
    if all(isinstance(node, ast.Import | ast.ImportFrom) for node in statements):
        return "Imports"
    if not cell.outputs:
        return "Code for the cells below"
    drawn = cell.outputs[0].output_type == "display_data"
    return "Code of the figure" if drawn else "Code of what it prints"


def packages(cells: list[NotebookNode]) -> list[str]:
    """Return what a lesson needs: what the package does, and what cells import."""
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    imports = set(re.findall(r"^ *(?:from|import) (\w+)", code, re.M))
    if "book" in imports:  # its figures
        imports |= {"altair", "vl-convert-python"}
    lines = (ROOT / "tools/requirements/notebooks.txt").read_text(encoding="utf-8")
    own: list[str] = project(ROOT)["project"]["dependencies"]
    return own + [line for line in lines.split() if line.split(">")[0] in imports]


# Files


def digest(notebook: NotebookNode) -> str:
    """Return the hash of what a reader may change: text, code and outputs."""
    cells = [[cell.source, cell.get("outputs")] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def write(notebook: NotebookNode, path: Path) -> bool:
    """Write a notebook, unless somebody has changed the one that is there; True if written."""
    if path.exists():
        there = nbformat.read(path, as_version=4)
        if there.metadata.get("written") != digest(there):
            return False
    notebook.metadata["written"] = digest(notebook)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return True


def main() -> None:
    """Write an edition into its folder."""
    parser = command_line("tools.editions", __doc__)
    parser.add_argument("kind", choices=["readers", "workbook"])
    parser.add_argument("names", nargs="*", help="03_attention, 3 or attention")
    parser.add_argument("--solutions", action="store_true", help="for the teacher")
    arguments = parser.parse_intermixed_args()  # options may come first
    kind = "solutions" if arguments.solutions else arguments.kind
    try:
        selection = selected(arguments.names) or chapters()
    except ProblemError as error:
        sys.exit(f"nothing written\n{error}")
    book = read_book()
    kept = []
    for chapter in selection:
        if kind != "readers" and chapter.appendix:
            continue
        path = ROOT / "_build" / kind / chapter.notebook.name
        if not write(edition(chapter, book, kind), path):
            kept.append(chapter.script.stem)
    print(f"The notebooks are in _build/{kind}.")
    if kept:
        print("You have changed these, so they stay as they are:", ", ".join(kept))


if __name__ == "__main__":
    main()
