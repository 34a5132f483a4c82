"""What a reader of a lesson sees: code that teaches, and no name that comes from nowhere.

A visible cell may use a name that a visible cell before it binds, that the text before it mentions,
or that an earlier lesson exports or shows how to import from the package. A name that only hidden
cells bind, and no sentence introduces, puzzles the reader.
"""

import ast
import re
import symtable
import sys
from collections.abc import Iterator

from nbformat import NotebookNode

from tools.chapters import Chapter, is_hidden, tags
from tools.package import PACKAGE
from tools.problem import Problem

# What is imported from these needs no introduction
WELL_KNOWN = {"numpy", "torch", *sys.stdlib_module_names}
DRAWING = re.compile(r"\s*(from|import) (altair|matplotlib|book\.figures)\b")
ASSERTION = re.compile(r"\s*(assert\b|torch\.testing\.)")
# How a cell begins that speaks only where the book is checked
GUARDS = "if CHECKING:\n"


def check_reading(book: list[Chapter]) -> Iterator[Problem]:
    """Check what the lessons of a book show, in order."""
    familiar: set[str] = set()
    for chapter in book:
        cells = chapter.read_script().cells
        yield from check_guards(chapter, cells)
        if not chapter.appendix:
            yield from check_lesson(chapter, cells, familiar)
            for cell in cells:
                if "export" in tags(cell):
                    familiar |= bound(cell)
                elif cell.cell_type == "code" and not is_hidden(cell):
                    familiar |= imported_from(cell, {PACKAGE})


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


def check_lesson(
    chapter: Chapter, cells: list[NotebookNode], familiar: set[str]
) -> Iterator[Problem]:
    """Check a lesson's visible cells; `familiar` names are known from the lessons before it."""
    introduced = set(familiar)
    hidden: set[str] = set()
    text = ""
    for index, cell in enumerate(cells):
        if cell.cell_type != "code":
            text += cell.source + "\n"
        elif is_hidden(cell):
            hidden |= bound(cell)
            introduced |= imported_from(cell, WELL_KNOWN)
        else:
            where = chapter.cell(index)
            introduced |= bound(cell)
            for line in filter(DRAWING.match, cell.source.splitlines()):
                fault = f"shows a drawing helper: {line.strip()}"
                yield Problem(where, fault, 'move it into a cell tagged "hide-input"')
            for name in sorted((used(cell) & hidden) - introduced):
                if not re.search(rf"\b{name}\b", text):
                    fault = f'uses "{name}", which only hidden cells define'
                    remedy = "show where it comes from, or introduce it in the text"
                    yield Problem(where, fault, remedy)


def bound(cell: NotebookNode) -> set[str]:
    """Return the names that a cell binds at its top level."""
    table = symtable.symtable(cell.source, "cell", "exec")
    return {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }


def used(cell: NotebookNode) -> set[str]:
    """Return the names that a cell, its functions and its classes take from the notebook."""
    top = symtable.symtable(cell.source, "cell", "exec")
    names = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    tables = [*top.get_children()]
    for table in tables:  # grows on the way
        names |= {s.get_name() for s in table.get_symbols() if s.is_global()}
        tables += table.get_children()
    return names


def imported_from(cell: NotebookNode, libraries: set[str]) -> set[str]:
    """Return the names that a cell imports from any of the libraries."""
    names = set()
    for node in ast.walk(ast.parse(cell.source)):
        match node:
            case ast.Import(names=aliases):
                modules = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                modules = [module] * len(aliases)
            case _:
                continue
        for module, alias in zip(modules, aliases):
            library = module.partition(".")[0]
            if library in libraries:
                names.add(alias.asname or alias.name.partition(".")[0])
    return names
