"""A reader changes a number, a word or a sentence, and runs the whole notebook: nothing fails.

Where a change can't work, the cell that was changed, or one that the reader sees, says so in words.
"""

import os

import pytest
from nbclient import NotebookClient

from tools.chapters import is_hidden, selected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def errors_after(
    monkeypatch, lesson: str, old: str, new: str
) -> list[tuple[bool, str]]:
    """Run a lesson with a change in a visible cell; return (is it hidden, error) of what fails."""
    (chapter,) = selected([lesson])
    notebook = chapter.read_script()
    visible = [cell for cell in notebook.cells if not is_hidden(cell)]
    changed = next(
        cell for cell in visible if cell.cell_type == "code" and old in cell.source
    )
    changed.source = changed.source.replace(old, new, 1)
    monkeypatch.delenv("CHECK_BOOK")
    folder = {"metadata": {"path": str(chapter.script.parent)}}
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        allow_errors=True,
        resources=folder,
        env=dict(os.environ),
    ).execute()
    return [
        (is_hidden(cell), f"{output.ename}: {output.evalue}")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
        and "raises-exception" not in cell.metadata.get("tags", [])
    ]


@pytest.mark.parametrize(
    ("lesson", "old", "new"),
    [
        ("03", "x", "y"),
    ],
)
def test_a_change_runs_through(monkeypatch, lesson, old, new):
    assert errors_after(monkeypatch, lesson, old, new) == []
