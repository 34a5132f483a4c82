"""The chapters on disk: a percent script, the source, beside the same notebook with its outputs.

Scripts are read with jupytext. A cell's id is the hash of its source, so that converting twice
gives the same file and a change in one cell leaves the others alone.
"""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs
from nbformat import NotebookNode

from tools.problem import Problem, ProblemError

ROOT = Path(__file__).resolve().parent.parent
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
HIDING_TAGS = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
TAGS = HIDING_TAGS | {  # CONTRIBUTING says what each is for
    "export",
    "remove-stderr",
    "nbval-ignore-output",
    "nbval-skip",
    "raises-exception",
}
HIDING_KEYS = ("jupyter", "cellView")  # a cell's metadata in JupyterLab, in Colab


@dataclass(frozen=True)
class Chapter:
    """One notebook: a lesson, `notebooks/NN_name.py`, or an appendix, `A_name.py`.

    It feeds the module `annotated_transformer/name.py`.
    """

    script: Path

    @property
    def notebook(self) -> Path:
        return self.script.with_suffix(".ipynb")

    @property
    def module(self) -> str:
        return self.script.stem.split("_", 1)[1]

    @property
    def number(self) -> str:
        """A chapter's two digits, or an appendix's letter."""
        return self.script.stem.split("_", 1)[0]

    @property
    def appendix(self) -> bool:
        return self.number.isalpha()

    @property
    def label(self) -> str:
        return f"notebooks/{self.script.name}"

    def cell(self, index: int) -> str:
        """Name a cell as people count it, from 1."""
        return f"{self.label}, cell {index + 1}"

    def read_script(self) -> NotebookNode:
        """Return the script as a notebook without outputs."""
        return with_stable_ids(jupytext.read(self.script, fmt="py:percent"))

    def read_notebook(self) -> NotebookNode:
        """Return the stored notebook."""
        return nbformat.read(self.notebook, as_version=4)

    def paired(self) -> NotebookNode:
        """Return the script's cells with the stored outputs of the cells that did not change."""
        notebook = self.read_script()
        if self.notebook.exists():
            notebook = combine_inputs_with_outputs(
                notebook, self.read_notebook(), fmt="py:percent"
            )
        return with_stable_ids(notebook)

    def write_notebook(self, notebook: NotebookNode) -> None:
        """Store the notebook, without what depends on the machine that ran it."""
        notebook.metadata = nbformat.from_dict(KERNEL)
        self.notebook.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def chapters(root: Path = ROOT) -> list[Chapter]:
    """Return all chapters in reading order; raises ProblemError for a notebook without script."""
    numbered = sorted((root / "notebooks").glob("[0-9][0-9]_*.py"))
    lettered = sorted((root / "notebooks").glob("[A-Z]_*.py"))
    scripts = [*numbered, *lettered]
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        if path.with_suffix(".py") not in scripts:
            fault = "has no script of the same name"
            remedy = "write its script, which is the source, or delete the notebook"
            raise ProblemError(Problem(f"notebooks/{path.name}", fault, remedy))
    return [Chapter(script) for script in scripts]


def selected(names: list[str]) -> list[Chapter]:
    """Return the chapters that the names mean: 03_attention, 3, or attention.

    Raises:
        ProblemError: a name means none.
    """
    book = chapters()
    selection = []
    for name in names:
        stem = Path(name).stem
        matches = [
            chapter
            for chapter in book
            if stem in (chapter.script.stem, chapter.module)
            or stem.zfill(2) == chapter.number.zfill(2)
        ]
        if not matches:
            stems = ", ".join(chapter.script.stem for chapter in book)
            raise ProblemError(Problem(name, "is no chapter", f"take one of: {stems}"))
        selection += matches
    return selection


def with_stable_ids(notebook: NotebookNode) -> NotebookNode:
    """Give each cell an id made from its source; a repeated source gets a number."""
    repetitions: Counter[str] = Counter()
    for cell in notebook.cells:
        content = f"{cell.cell_type}\n{cell.source}".encode()
        digest = hashlib.sha256(content).hexdigest()[:8]
        repetitions[digest] += 1
        cell.id = digest
        if repetitions[digest] > 1:
            cell.id = f"{digest}-{repetitions[digest]}"
    notebook.nbformat = 4
    notebook.nbformat_minor = 5
    return notebook


def tags(cell: NotebookNode) -> list[str]:
    """Return a cell's tags."""
    return list(cell.metadata.get("tags", []))


def is_hidden(cell: NotebookNode) -> bool:
    """True if the cell's code is folded on the site, or not there at all."""
    return not HIDING_TAGS.isdisjoint(tags(cell))


def hiding_metadata(cell: NotebookNode) -> dict[str, Any]:
    """Return what closes a code cell in JupyterLab (`jupyter`) and Colab (`cellView`), by its tags.

    It stands in the notebook only; the script has the tags alone.
    """
    if cell.cell_type != "code" or not is_hidden(cell):
        return {}
    jupyter = {"source_hidden": True}
    if "hide-cell" in tags(cell):
        jupyter["outputs_hidden"] = True
    return {"jupyter": jupyter, "cellView": "form"}


def close_hidden_cells(notebook: NotebookNode) -> None:
    """Close the cells that are tagged as hidden, and open all others."""
    for cell in notebook.cells:
        for key in HIDING_KEYS:
            cell.metadata.pop(key, None)
        cell.metadata.update(nbformat.from_dict(hiding_metadata(cell)))


def code_sources(notebook: NotebookNode) -> list[str]:
    """Return the sources of the code cells, in order."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def is_executed(notebook: NotebookNode) -> bool:
    """True if the code cells carry the counts 1..n, as a run from top to bottom leaves them."""
    counts = [
        cell.execution_count for cell in notebook.cells if cell.cell_type == "code"
    ]
    return counts == list(range(1, len(counts) + 1))


def plain(markdown: str) -> str:
    """Return Markdown as plain text: links become their text, emphasis goes."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"\*\*?([^*]+)\*\*?", r"\1", text)
    return re.sub(r"\s+", " ", text).strip()
