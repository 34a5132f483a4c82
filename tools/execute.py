"""Run notebooks from top to bottom and store their outputs.

usage: python -m tools.execute [NAME ...] [--all]     NAME: 03_attention, 1, attention

Without a name: every notebook whose code cells differ from its script or were never executed. The
other notebooks only take over changed text.
"""

import argparse
import os
import re
import sys
import time

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools.chapters import Chapter, chapters, code_sources, is_executed, selected
from tools.problem import Problem, ProblemError

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def needs_execution(chapter: Chapter) -> bool:
    """True if the stored outputs do not belong to the script's code."""
    if not chapter.notebook.exists():
        return True
    stored = chapter.read_notebook()
    return not is_executed(stored) or code_sources(stored) != code_sources(chapter.read_script())


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
        failed = next(
            index
            for index, cell in enumerate(notebook.cells)
            if any(o.output_type == "error" for o in cell.get("outputs", []))
        )
        what = f"fails: {error.ename}: {error.evalue}\n{ANSI.sub('', error.traceback)}"
        remedy = "mend the cell in the script; the stored notebook is unchanged"
        raise ProblemError(Problem(chapter.cell(failed), what, remedy)) from error
    chapter.write_notebook(notebook)


def take_over_text(chapter: Chapter) -> bool:
    """Bring Markdown, tags and captions into the stored notebook; True if anything changed."""
    before = chapter.notebook.read_text(encoding="utf-8")
    chapter.write_notebook(chapter.paired())
    return chapter.notebook.read_text(encoding="utf-8") != before


def main() -> None:
    """Execute what was named, or what changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true", help="execute every notebook")
    arguments = parser.parse_args()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its notes would stand on the page
    try:
        named = selected(arguments.names) if arguments.names else None
        for chapter in named if named is not None else chapters():
            if named is not None or arguments.all or needs_execution(chapter):
                start = time.perf_counter()
                execute(chapter)
                print(f"executed {chapter.script.stem} ({time.perf_counter() - start:.0f} s)")
            elif take_over_text(chapter):
                print(f"took over the text of {chapter.script.stem}")
    except ProblemError as error:
        sys.exit(f"make execute:\n{error}")


if __name__ == "__main__":
    main()
