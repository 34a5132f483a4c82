"""A reader changes a number, a word or a sentence of what a lesson shows: nothing fails.

Where a change can't work, a cell that the reader sees says so.
"""

import pytest
from nbclient import NotebookClient

from tools.chapters import is_hidden, selected, tags

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def errors_after(
    monkeypatch, lesson: str, old: str, new: str
) -> list[tuple[bool, str]]:
    """Run a lesson with a change in a visible cell; return (is it hidden, error) of what fails."""
    (chapter,) = selected([lesson])
    notebook = chapter.read_script()
    visible = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and not is_hidden(cell)
    ]
    changed = next(cell for cell in visible if old in cell.source)
    changed.source = changed.source.replace(old, new, 1)
    monkeypatch.delenv("CHECK_BOOK")
    folder = {"metadata": {"path": str(chapter.script.parent)}}
    NotebookClient(notebook, timeout=600, allow_errors=True, resources=folder).execute()
    return [
        (is_hidden(cell), f"{output.ename}: {output.evalue}")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error" and "raises-exception" not in tags(cell)
    ]


@pytest.mark.parametrize(
    ("lesson", "old", "new"),
    [
        ("01", "im Sand.", 'im Sand.", "Guten Morgen!'),
        ("03", "range(201)", "range(51)"),
        ("02", "text = X.repeat(10, 1)", "text = X.repeat(4, 1)"),
        ("04", "True, True, True, False, False", "True, True, False, False, False"),
        ("05", "split_heads(numbers, heads=2)", "split_heads(numbers, heads=3)"),
        ("06", "MultiHeadAttention(d_model=8, heads=2)", "MultiHeadAttention(8, 4)"),
        ("08", "Der Hund beißt den Mann.", "Die Katze sieht den Hund."),
        ("09", "random_stack(12, width)", "random_stack(6, width)"),
        ("07", "manual_seed(0)", "manual_seed(1)"),
        ("10", '"blackcat"', '"doggydog"'),
        ("24", '"Two dogs"', '"Three cats"'),
        ("19", "Der Mann ist auf dem Sofa eingeschlafen.", "Ein Hund schläft."),
    ],
)
def test_a_change_runs_through(monkeypatch, lesson, old, new):
    assert errors_after(monkeypatch, lesson, old, new) == []


@pytest.mark.parametrize(
    ("lesson", "old", "new", "said"),
    [
        ("09", "width = 64", "width = 30", "d_model=30"),
        ("14", "(pairs, vocabulary_size=2000)", "(pairs, 200)", "260"),
    ],
)
def test_a_change_that_cannot_work_is_refused(monkeypatch, lesson, old, new, said):
    is_hidden, error = errors_after(monkeypatch, lesson, old, new)[0]
    assert not is_hidden and said in error
