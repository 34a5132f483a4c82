"""Run notebooks from top to bottom and store their outputs.

Without a name: every notebook whose code cells differ from its script or were never executed. The
other notebooks only take over changed text.
"""

import os
import re
import sys
import time

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools.chapters import (
    Chapter,
    chapters,
    close_hidden_cells,
    code_sources,
    is_executed,
    selected,
)
from tools.command import command_line
from tools.problem import Problem, ProblemError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def needs_execution(chapter: Chapter) -> bool:
    """True if the stored outputs do not belong to the script's code."""
    if not chapter.notebook.exists():
        return True
    stored = chapter.read_notebook()
    same_code = code_sources(stored) == code_sources(chapter.read_script())
    return not same_code or not is_executed(stored)


def execute(chapter: Chapter, timeout: int = 1200) -> None:
    """Run the script's cells in a fresh kernel and store the notebook.

    Raises:
        ProblemError: a cell failed; the stored notebook stays as it was.
    """
    notebook = chapter.read_script()
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(chapter.script.parent)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        fault = f"fails: {error.ename}\n{ANSI.sub('', error.traceback)}"
        remedy = "mend the cell in the script; the stored notebook is unchanged"
        raise ProblemError(Problem(chapter.label, fault, remedy)) from error
    close_hidden_cells(notebook)
    chapter.write_notebook(notebook)


def take_over_text(chapter: Chapter) -> bool:
    """Bring Markdown, tags and captions into the stored notebook; True if anything changed."""
    before = chapter.notebook.read_text(encoding="utf-8")
    notebook = chapter.paired()
    close_hidden_cells(notebook)
    chapter.write_notebook(notebook)
    return chapter.notebook.read_text(encoding="utf-8") != before


def update(chapter: Chapter, run: bool) -> None:
    """Execute the notebook, or only bring changed text into it; say what was done."""
    name = chapter.script.stem
    if run:
        start = time.perf_counter()
        execute(chapter)
        print(f"executed {name} ({time.perf_counter() - start:.0f} s)")
    elif take_over_text(chapter):
        print(f"took over the text of {name}")


def main() -> None:
    """Execute what was named, or what changed."""
    parser = command_line("tools.execute", __doc__)
    parser.add_argument("names", nargs="*", help="03_attention, 3 or attention")
    parser.add_argument("--all", action="store_true", help="execute every notebook")
    arguments = parser.parse_args()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its notes would stand on the page
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in tests
    os.environ["CHECK_BOOK"] = "1"  # the guards of the text speak
    try:
        named = selected(arguments.names)
        for chapter in named or chapters():
            run = bool(named) or arguments.all or needs_execution(chapter)
            update(chapter, run)
    except ProblemError as error:
        sys.exit(f"make execute:\n{error}")


if __name__ == "__main__":
    main()
