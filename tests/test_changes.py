"""A reader changes a number, a word or a sentence, and runs the whole notebook: nothing fails.

Where a change can't work, the cell that was changed, or one that the reader sees, says so in words.
"""

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
        ("01", "im Sand.", 'im Sand.", "Guten Morgen!'),
        ("03", "range(201)", "range(51)"),
        ("04", "[False, False, False, True, True]", "[False, False, True, True, True]"),
        ("05", "split_heads(numbers, heads=2)", "split_heads(numbers, heads=3)"),
        ("06", "MultiHeadAttention(d_model=8, heads=2)", "MultiHeadAttention(8, 4)"),
        ("08", "the black fish likes cat", "likes the cat black fish"),
        ("09", "manual_seed(1)\nwords", "manual_seed(2)\nwords"),
        ("09", "layers=12", "layers=6"),
        ("10", "Does the black cat", "The dog"),
        ("16", "rates = 0.0001, 0.001, 0.0088", "rates = 0.0005, 0.003"),
        ("17", "(200, 5000)", "(1000, 5000)"),
        ("19", "Der Mann ist auf dem Sofa eingeschlafen.", "Ein Hund schläft."),
    ],
)
def test_a_change_runs_through(monkeypatch, lesson, old, new):
    assert errors_after(monkeypatch, lesson, old, new) == []


@pytest.mark.parametrize(
    ("lesson", "old", "new", "message"),
    [
        (
            "09",
            "randn(1, 5, 64)",
            "randn(1, 5, 30)",
            "heads=4 does not divide d_model=30",
        ),
        ("10", "Does the black cat", "My black dog", "unknown: {'My'}; known: , . ?"),
        ("14", "(pairs, vocabulary_size=2000)", "(pairs, 200)", "take 260 (bytes + 4)"),
    ],
)
def test_a_change_that_cannot_work_is_refused_in_words(
    monkeypatch, lesson, old, new, message
):
    is_hidden, error = errors_after(monkeypatch, lesson, old, new)[0]
    assert not is_hidden and message in error
