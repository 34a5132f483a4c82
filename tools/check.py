"""Check that script, notebook and package say the same, and that code is clean. Changes nothing.

No cell is run: whether a stored output is what its cell prints, `make test` finds out.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from tools.chapters import ROOT, Chapter, chapters, hiding_metadata, is_executed, tags
from tools.command import command_line
from tools.export import generate, written
from tools.problem import Problem, ProblemError
from tools.reading import check_reading

MACHINE_PATH = re.compile(
    r"(?<![\w.~])/(?:home|root|work|tmp|Users|private|mnt)/[\w.]+"
)
NOTEBOOK_ONLY = {"execution", "lines_to_next_cell"}  # metadata that scripts lack
TOOLS = {
    "ruff check": ["ruff", "check", "--quiet", "."],
    "ruff format": ["ruff", "format", "--check", "--quiet", "."],
    "mypy": ["mypy", "--no-error-summary"],
}


def shared_part(cell: NotebookNode, hiding: dict[str, Any]) -> tuple[Any, ...]:
    """Return what script and notebook must share of a cell; `hiding` joins its metadata."""
    metadata = {
        key: value for key, value in cell.metadata.items() if key not in NOTEBOOK_ONLY
    }
    return cell.id, cell.cell_type, metadata | hiding, cell.source


def check_pair(chapter: Chapter) -> Iterator[Problem]:
    """The notebook holds the script's cells, executed in order, with no stored error."""
    remedy = f'run "make execute NOTEBOOK={chapter.script.stem}"'
    name = chapter.notebook.name
    if not chapter.notebook.exists():
        yield Problem(chapter.label, f"has no {name}", remedy)
        return
    script = chapter.read_script()
    notebook = chapter.read_notebook()
    for index, (cell, stored) in enumerate(zip(script.cells, notebook.cells)):
        if shared_part(cell, hiding_metadata(cell)) != shared_part(stored, {}):
            fault = f"differs from the same cell of {name}"
            yield Problem(chapter.cell(index), fault, remedy)
            return
    if len(script.cells) != len(notebook.cells):
        fault = f"has {len(script.cells)} cells, {name} has {len(notebook.cells)}"
        yield Problem(chapter.label, fault, remedy)
    if not is_executed(notebook):
        yield Problem(chapter.label, "was not executed from top to bottom", remedy)
    for index, cell in enumerate(notebook.cells):
        for fault in output_faults(cell):
            yield Problem(chapter.cell(index), fault, f"mend it, and {remedy}")


def output_faults(cell: NotebookNode) -> Iterator[str]:
    """Nothing stored is an error, or names a path of the machine it ran on."""
    for output in cell.get("outputs", []):
        if output.output_type == "error" and "raises-exception" not in tags(cell):
            yield f"stores a traceback: {output.ename}: {output.evalue}"
        text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        path = MACHINE_PATH.search(text)
        if path:
            yield f"prints a path of the machine it ran on: {path[0]}"


def check_package(root: Path = ROOT) -> Iterator[Problem]:
    """The package, and the model in one file, are what the notebooks generate."""
    expected = generate(root)
    for path in sorted(written(root) | set(expected)):
        if path not in expected:
            fault = "comes from no notebook"
            remedy = "delete it, or write it as a chapter"
        elif not (root / path).exists():
            fault = "is missing"
            remedy = 'run "make export"'
        elif (root / path).read_text(encoding="utf-8") != expected[path]:
            fault = "differs from what the notebooks generate"
            remedy = 'change the notebook, not this file; then run "make export"'
        else:
            continue
        yield Problem(path, fault, remedy)


def check_book(root: Path = ROOT) -> list[Problem]:
    """All checks of scripts, notebooks and package."""
    problems: list[Problem] = []
    try:
        book = chapters(root)
        for chapter in book:
            problems += check_pair(chapter)
        problems += check_package(root)  # which refuses cells that do not parse
        problems += check_reading(book)
    except ProblemError as error:
        problems += error.problems
    return problems


def start_tools() -> dict[str, subprocess.Popen[str]]:
    """Start ruff and mypy, which take a while, beside the other checks."""
    return {
        name: subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name, command in TOOLS.items()
    }


def check_code(tools: dict[str, subprocess.Popen[str]]) -> Iterator[Problem]:
    """What ruff and mypy find; their own output is shown."""
    for name, process in tools.items():
        output, _ = process.communicate()
        if process.returncode:
            remedy = 'run "make lint"' if name.startswith("ruff") else "mend the types"
            yield Problem(name, f"finds faults\n{output.rstrip()}", remedy)


def main() -> None:
    """Print every finding; exit 1 if there is one."""
    command_line("tools.check", __doc__).parse_args()
    tools = start_tools()
    problems = [*check_book(), *check_code(tools)]
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"make check: {len(problems)} finding(s)")
    print("make check: script, notebook and package agree; ruff and mypy find nothing")


if __name__ == "__main__":
    main()
