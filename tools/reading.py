"""What a reader of a lesson sees suffices: its visible cells, typed one after the other, run.

Of the hidden cells they need imports at most. Nothing is used as a hidden cell binds it, no cell
shows how to draw, and no guard of the text meets a reader.
"""

import ast
import re
import symtable
from collections.abc import Iterator

from nbformat import NotebookNode

from tools.chapters import Chapter, is_hidden, tags
from tools.problem import Problem

DRAWING = re.compile(r"\s*(from|import) (altair|matplotlib|book\.figures)\b")
ASSERTION = re.compile(r"\s*(assert\b|torch\.testing\.)")
# How a cell begins that speaks only where the book is checked
GUARDS = "if CHECKING:\n"


def check_reading(book: list[Chapter]) -> Iterator[Problem]:
    """Check what the lessons of a book show."""
    for chapter in book:
        cells = chapter.read_script().cells
        yield from check_guards(chapter, cells)
        if not chapter.appendix:
            yield from check_lesson(chapter, cells)


def check_guards(chapter: Chapter, cells: list[NotebookNode]) -> Iterator[Problem]:
    """An assertion never meets a reader who changes a number above it."""
    for index, cell in enumerate(cells):
        if cell.cell_type != "code" or "export" in tags(cell):
            continue
        lines = cell.source.splitlines()
        is_guard = tags(cell) == ["remove-cell"] and cell.source.startswith(GUARDS)
        if is_guard and all(line[:4].strip() == "" for line in lines[1:]):
            continue
        for line in filter(ASSERTION.match, lines):
            fault = f"asserts outside of a guard: {line.strip()}"
            remedy = f'move it below "{GUARDS.strip()}", in a cell tagged "remove-cell"'
            yield Problem(chapter.cell(index), fault, remedy)


def check_lesson(chapter: Chapter, cells: list[NotebookNode]) -> Iterator[Problem]:
    """Check what a lesson's visible cells show and use."""
    known: set[str] = set()
    hidden: set[str] = set()
    for index, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        if is_hidden(cell):
            hidden |= bound(cell.source)
            known -= bound(cell.source)
            known |= bound(imports_of(cell.source))
            continue
        where = chapter.cell(index)
        for line in filter(DRAWING.match, cell.source.splitlines()):
            fault = f"shows a drawing helper: {line.strip()}"
            yield Problem(where, fault, 'move it into a cell tagged "hide-input"')
        known |= bound(cell.source)
        for name in sorted((used(cell.source) & hidden) - known):
            fault = f'uses "{name}" as a hidden cell defines it'
            yield Problem(where, fault, "show where it comes from")


def imports_of(code: str) -> str:
    """Return the imports at the top level of a cell."""
    nodes = ast.parse(code).body
    kept = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return "\n".join(map(ast.unparse, kept))


def bound(code: str) -> set[str]:
    """Return the names that code binds at its top level."""
    table = symtable.symtable(code, "cell", "exec")
    return {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }


def used(code: str) -> set[str]:
    """Return the names that code, its functions and its classes take from the notebook."""
    top = symtable.symtable(code, "cell", "exec")
    names = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    tables = [*top.get_children()]
    for table in tables:  # grows on the way
        names |= {s.get_name() for s in table.get_symbols() if s.is_global()}
        tables += table.get_children()
    return names
