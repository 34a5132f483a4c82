"""Check that script, notebook and package say the same, and that code is clean. Changes nothing.

usage: python -m tools.check
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from tools.chapters import ROOT, Chapter, chapters, tags
from tools.export import generate, written
from tools.problem import Problem, ProblemError

MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|Users|private|mnt)/[\w.]+")


def essence(cell: NotebookNode) -> dict[str, Any]:
    """Return what script and notebook must share of a cell."""
    metadata = {
        k: v for k, v in cell.metadata.items() if k not in ("execution", "lines_to_next_cell")
    }
    return {"type": cell.cell_type, "metadata": metadata, "source": cell.source}


def check_pair(chapter: Chapter) -> list[Problem]:
    """The notebook holds the script's cells, executed in order, with no stored error."""
    stem = chapter.script.stem
    execute = f'run "make execute NOTEBOOK={stem}"'
    script, notebook = chapter.read_script(), chapter.read_notebook()
    for index, (ours, theirs) in enumerate(zip(script.cells, notebook.cells)):
        if essence(ours) != essence(theirs):
            what = f"differs from the same cell of {stem}.ipynb"
            return [Problem(chapter.cell(index), what, f"the script is the source: {execute}")]
    if len(script.cells) != len(notebook.cells):
        what = f"has {len(script.cells)} cells, {stem}.ipynb has {len(notebook.cells)}"
        return [Problem(chapter.label, what, f"the script is the source: {execute}")]
    return check_outputs(chapter, notebook, execute)


def check_outputs(chapter: Chapter, notebook: NotebookNode, execute: str) -> list[Problem]:
    """Counts run 1..n; nothing stored is an error or names a path of the machine it ran on."""
    problems, count = [], 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        count += 1
        where = chapter.cell(index)
        if cell.execution_count is None:
            problems.append(Problem(where, "was never executed", execute))
        elif cell.execution_count != count:
            what = f"has the execution count {cell.execution_count}, not {count}"
            problems.append(Problem(where, what, f"run from top to bottom: {execute}"))
        if cell.source.rstrip().endswith(";"):
            problems.append(Problem(where, "ends with a semicolon", "end with plt.show()"))
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags(cell):
                what = f"stores a traceback: {output.ename}: {output.evalue}"
                remedy = f'mend the cell, or tag it "raises-exception"; then {execute}'
                problems.append(Problem(where, what, remedy))
            text = str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
            if found := MACHINE_PATH.search(text):
                what = f"prints a path of the machine it ran on: {found.group(0)}"
                problems.append(Problem(where, what, f"print the file's name only; {execute}"))
    return problems


def check_package(root: Path = ROOT) -> list[Problem]:
    """The package, and the model in one file, are what the notebooks generate."""
    problems = []
    expected = generate(root)
    for path in sorted(written(root) | {*expected}):
        if path not in expected:
            what, remedy = "comes from no notebook", "delete it, or write it as a chapter"
        elif not (root / path).exists():
            what, remedy = "is missing", 'run "make export"'
        elif (root / path).read_text(encoding="utf-8") != expected[path]:
            what = "differs from what the notebooks generate"
            remedy = 'change the notebook, not this file; then run "make export"'
        else:
            continue
        problems.append(Problem(path, what, remedy))
    return problems


def check_book(root: Path = ROOT) -> list[Problem]:
    """All checks of scripts, notebooks and package."""
    problems: list[Problem] = []
    try:
        for chapter in chapters(root):
            try:
                problems += check_pair(chapter)
            except ProblemError as error:
                problems += error.problems
        problems += check_package(root)
    except ProblemError as error:
        problems += error.problems
    return problems


def check_code() -> list[Problem]:
    """Ruff and mypy; their own output is shown."""
    commands = {
        "ruff check": ["ruff", "check", "--quiet", "."],
        "ruff format": ["ruff", "format", "--check", "--quiet", "."],
        "mypy": ["mypy", "--no-error-summary"],
    }
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for name, command in commands.items()
    }
    problems = []
    for name, process in running.items():
        output, _ = process.communicate()
        if process.returncode:
            remedy = 'run "make lint"' if name.startswith("ruff") else "mend the types"
            problems.append(Problem(name, f"finds faults\n{output.rstrip()}", remedy))
    return problems


def main() -> None:
    """Print every finding; exit 1 if there is one."""
    problems = check_book() + check_code()
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"make check: {len(problems)} finding(s)")
    print("make check: script, notebook and package agree; ruff and mypy find nothing")


if __name__ == "__main__":
    main()
