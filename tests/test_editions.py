"""The notebooks as readers get them: plain Markdown, and a workbook that runs in any state."""

import os
import re
import sys
from importlib import import_module
from types import ModuleType

import nbformat
import pytest
import yaml

from annotated_transformer import check, grammar, own_data
from tools.chapters import ROOT, chapters, code_sources, selected
from tools.editions import (
    PARTS,
    SOLUTION,
    edition,
    plain_markdown,
    read_book,
    write,
)
from tools.package import defined_names, modules
from tools.reading import bound, used

BOOK = read_book()
LESSONS = [chapter for chapter in chapters() if not chapter.appendix]
RAW = re.compile(r":::|\{numref\}|\{cite|\{eq\}|\(eq-|\{\{|\]\([^)]*\.ipynb")
YOURS = "raise NotImplementedError  # yours"


def lesson(name, kind="workbook"):
    (chapter,) = selected([name])
    return edition(chapter, BOOK, kind)


def texts(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


@pytest.mark.parametrize("kind", ["readers", "workbook"])
def test_nothing_is_left_that_only_the_site_reads(kind):
    for chapter in chapters():
        notebook = edition(chapter, BOOK, kind)
        nbformat.validate(notebook)
        assert all(texts(notebook)), f"{chapter.label}: Jupyter fills an empty cell"
        raw = [match[0] for text in texts(notebook) for match in RAW.finditer(text)]
        assert not raw, chapter.label
        for source in code_sources(notebook):
            assert "CHECKING" not in source, chapter.label


def test_links_lead_to_pages_of_the_site():
    site = yaml.safe_load((ROOT / "_config.yml").read_text())["html"]["baseurl"]
    for chapter in chapters():
        text = "\n".join(texts(edition(chapter, BOOK)))
        pages = re.findall(rf"\]\({site}([\w/]+)\.html", text)
        assert pages or chapter.appendix
        for page in set(pages):
            sources = [ROOT / f"{page}{ending}" for ending in (".md", ".py")]
            assert any(source.exists() for source in sources), (chapter.label, page)


def test_boxes_and_references_become_words_and_a_workbook_has_no_solutions():
    text = """By {eq}`eq-softmax`. {numref}`fig-attention` is of {cite:t}`vaswani2017attention`.

:::{admonition} Solution 1
:class: dropdown
See [above](#the-code) and [there](04_masks.ipynb).
:::

$$
x
$$ (eq-softmax)

**2. Again** is easy. Solution: twice."""
    page = f"{BOOK.site}notebooks/05_multi_head_attention.html"
    plain = plain_markdown(text, page, BOOK)
    assert "By [equation 3.1](" in plain and ". [Figure 3.1](" in plain
    assert "[Vaswani et al. (2017)](" in plain and r"\tag{3.1} $$" in plain
    assert "<summary>Solution 1</summary>\n\nSee" in plain
    assert f"[above]({page}#the-code)" in plain and "/04_masks.html)" in plain
    assert "olution" not in SOLUTION.sub("", text)


def test_every_figure_has_its_caption_below_its_picture():
    (chapter,) = selected(["3"])
    cells = edition(chapter, BOOK).cells
    captions = [i for i, c in enumerate(cells) if c.source.startswith("**Figure")]
    numbers = [cells[i].source.partition(" ")[2][:4] for i in captions]
    assert numbers == ["3.1.", "3.2.", "3.3.", "3.4.", "3.5."]
    for index in captions:
        drawn = cells[index - 1]
        assert drawn.source.startswith("#@title Code of the figure\n")
        assert drawn.metadata["cellView"] == "form"


# The first cell


@pytest.fixture
def in_colab(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))


def missing(split):
    raise own_data.MissingData("no network")


def first_cell(name, capsys):
    try:
        exec(code_sources(lesson(name, "readers"))[0], {})
    except SystemExit as stop:
        return capsys.readouterr().out + str(stop)
    return capsys.readouterr().out


def test_the_first_cell_fetches_what_the_lesson_needs(in_colab, monkeypatch, capsys):
    """It says what it does, and takes the small things alone that this lesson imports."""
    commands = []
    monkeypatch.setattr(os, "system", lambda command: commands.append(command))
    monkeypatch.setattr("importlib.metadata.distributions", list)
    for name in ("3", "F"):
        said = first_cell(name, capsys)
        assert said.startswith("Fetching the book") and said.endswith("Ready.\n")
    attention, export = commands
    assert "'torch>=" in attention and "vl-convert-python" in attention
    assert "ctranslate2" in export and "ctranslate2" not in attention


def test_without_a_network_the_grammar_takes_the_place_of_captions(monkeypatch, capsys):
    monkeypatch.setattr(own_data, "multi30k", missing)
    assert "grammar" in first_cell("15", capsys)
    train, val = own_data.multi30k("train"), own_data.multi30k("val")
    assert train + val == grammar(30_000)


# The workbook


def test_the_book_passes_its_own_checks():
    """Each part is known to `check`, and a lesson exports what takes a wrong one's place."""
    homes = {
        name: module.full_name
        for module in modules(ROOT)
        for statement in module.tree().body
        for name in defined_names(statement)
    }
    for name, part in PARTS.items():
        ours = getattr(import_module(homes[name]), name)
        assert check(part, ours), name


@pytest.mark.parametrize("chapter", LESSONS, ids=lambda chapter: chapter.script.stem)
def test_no_cell_misses_a_solution(chapter):
    """What is taken out of the workbook defines nothing that a cell below needs."""
    whole = code_sources(chapter.read_script())[1:]
    kept = code_sources(edition(chapter, BOOK, "workbook"))
    names = set().union(*map(bound, whole))
    assert names & set().union(*map(used, kept)) <= set().union(*map(bound, kept))


def filled(notebook, answers):
    """The code of a lesson, with a body for each name."""
    code = "\n\n".join(code_sources(notebook))
    for name, body in answers.items():
        head = re.search(rf'def {name}\(.*?""".*?"""\n    ', code, re.S)
        assert head and code[head.end() :].startswith(YOURS)
        code = code[: head.end()] + body + code[head.end() + len(YOURS) :]
    return code


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("3", {}, ["attention: not written yet"]),
        (
            "4",
            {
                "causal_mask": "return torch.ones(length, length).tril() > 0",
                "padding_mask": "return (tokens == 0)[:, None, None]",
            },
            ["causal_mask: right", "padding_mask: wrong"],
        ),
    ],
)
def test_the_workbook_runs_in_any_state(name, answers, said, capsys, monkeypatch):
    monkeypatch.setattr("book.figures.picture", lambda spec: b"")  # the SVG is enough
    code = filled(lesson(name), answers)
    scope = {"__name__": "__main__"}
    exec(code, scope)
    lines = capsys.readouterr().out.splitlines()
    for words in said:
        (line,) = (line for line in lines if words in line)
        assert ("the book's is used" in line) == (": right" not in line)
        part = line.partition(":")[0]
        file = scope[part].__code__.co_filename
        assert ("<string>" in file) == (": right" in line)
        exec(code_sources(lesson(name))[0], scope)  # the first cell, once more
        again = scope["checked"](part, scope[part], scope[part])
        assert (again is scope[part]) and line in capsys.readouterr().out


def test_what_somebody_changed_is_kept(tmp_path):
    path = tmp_path / "03_attention.ipynb"
    assert write(lesson("3"), path) and write(lesson("3", "solutions"), path)
    notebook = nbformat.read(path, as_version=4)
    assert YOURS not in "".join(code_sources(notebook))
    notebook.cells[1].source += "\n\nMy note."
    nbformat.write(notebook, path)
    assert not write(lesson("3"), path)
    assert "My note." in path.read_text()
