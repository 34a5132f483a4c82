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

from tools.chapters import (
    HIDING_KEYS,
    ROOT,
    Chapter,
    chapters,
    hiding_metadata,
    is_hidden,
    tags,
)
from tools.command import command_line
from tools.export import generate, written
from tools.problem import Problem, ProblemError
from tools.reading import check_reading

MACHINE_PATH = re.compile(
    r"(?<![\w.~])/(?:home|root|work|tmp|Users|private|mnt)/[\w.]+"
)
# What a notebook's cells have beyond the script's; `check_hiding` looks at the hiding keys
NOTEBOOK_ONLY = {"execution", "lines_to_next_cell", *HIDING_KEYS}


def shared_part(cell: NotebookNode) -> dict[str, Any]:
    """Return what script and notebook must share of a cell."""
    metadata = {
        key: value for key, value in cell.metadata.items() if key not in NOTEBOOK_ONLY
    }
    return {
        "id": cell.get("id"),
        "type": cell.cell_type,
        "metadata": metadata,
        "source": cell.source,
    }


def check_pair(chapter: Chapter) -> list[Problem]:
    """The notebook holds the script's cells, executed in order, with no stored error."""
    try:
        notebook = chapter.read_notebook()
    except ProblemError as error:
        return list(error.problems)
    script = chapter.read_script()
    remedy = f"the script is the source: {execute_command(chapter)}"
    name = chapter.notebook.name
    for index, (cell, stored) in enumerate(zip(script.cells, notebook.cells)):
        if shared_part(cell) != shared_part(stored):
            fault = f"differs from the same cell of {name}"
            return [Problem(chapter.cell(index), fault, remedy)]
    if len(script.cells) != len(notebook.cells):
        fault = f"has {len(script.cells)} cells, {name} has {len(notebook.cells)}"
        return [Problem(chapter.label, fault, remedy)]
    return [*check_hiding(chapter, notebook), *check_outputs(chapter, notebook)]


def execute_command(chapter: Chapter) -> str:
    """Return the remedy for a notebook that differs from its script."""
    return f'run "make execute NOTEBOOK={chapter.script.stem}"'


def check_hiding(chapter: Chapter, notebook: NotebookNode) -> Iterator[Problem]:
    """Cells that are tagged as hidden are closed in JupyterLab and Colab, and no others."""
    for index, cell in enumerate(notebook.cells):
        stored = {
            key: cell.metadata[key] for key in HIDING_KEYS if key in cell.metadata
        }
        if stored != hiding_metadata(cell):
            state = "open" if is_hidden(cell) else "closed"
            fault = f"is {state} in JupyterLab or Colab, against its tags"
            yield Problem(chapter.cell(index), fault, execute_command(chapter))


def check_outputs(chapter: Chapter, notebook: NotebookNode) -> Iterator[Problem]:
    """Counts run 1..n; nothing stored is an error or names a path of the machine it ran on."""
    count = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        count += 1
        for fault, remedy in faults_of(cell, count):
            remedy = f"{remedy}; then {execute_command(chapter)}"
            yield Problem(chapter.cell(index), fault, remedy)


def faults_of(cell: NotebookNode, count: int) -> Iterator[tuple[str, str]]:
    """Yield the faults of a stored code cell, the `count`th, each with a remedy."""
    if cell.execution_count is None:
        yield "was never executed", "run it"
    elif cell.execution_count != count:
        fault = f"has the execution count {cell.execution_count}, not {count}"
        yield fault, "run the notebook from top to bottom"
    if cell.source.rstrip().endswith(";"):
        yield "ends with a semicolon", "end with show_plot(...)"
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in tags(cell):
            fault = f"stores a traceback: {output.ename}: {output.evalue}"
            yield fault, 'mend the cell, or tag it "raises-exception"'
        text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        path = MACHINE_PATH.search(text)
        if path:
            fault = f"prints a path of the machine it ran on: {path[0]}"
            yield fault, "print the file's name only"


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
    commands = {
        "ruff check": ["ruff", "check", "--quiet", "."],
        "ruff format": ["ruff", "format", "--check", "--quiet", "."],
        "mypy": ["mypy", "--no-error-summary"],
    }
    return {
        name: subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name, command in commands.items()
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
