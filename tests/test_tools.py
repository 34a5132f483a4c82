"""Script, notebook and package are the same: what the tools write, and what they refuse."""

import ast
import re
import shutil
from functools import partial
from pathlib import Path

import jupytext
import nbformat
import pytest

from tools.chapters import Chapter, chapters
from tools.check import check_book
from tools.execute import execute, needs_execution, take_over_text
from tools.export import generate, written
from tools.problem import ProblemError
from tools.reading import check_reading

TITLE = "# %% [markdown]\n# # Adding\n#\n# This chapter adds numbers (section 1). And more.\n\n"
EXPORT = '# %% tags=["export"]\n'
DEMO = "# %%\n"
HIDDEN = '# %% tags=["hide-input"]\n'
UNSEEN = '# %% tags=["remove-cell"]\n'
ADD = EXPORT + "def add(a: int, b: int) -> int:\n    return a + b\n\n"
MODULE = "annotated_transformer/adding.py"


def write_book(root: Path, public: str = "", **scripts: str) -> Path:
    """Write a book of the given scripts; `public` is the table of public names."""
    project = '[project]\nname = "x"\nversion = "1.2.3"\n'
    table = "[tool.annotated-transformer.public]\n" + public
    (root / "pyproject.toml").write_text(project + table)
    for name in ("notebooks", "annotated_transformer", "book"):
        (root / name).mkdir(exist_ok=True)
    for stem, text in scripts.items():
        (root / "notebooks" / f"{stem.removeprefix('c')}.py").write_text(text)
    return root


@pytest.fixture
def book(tmp_path):
    """A function that writes a book of the given scripts and returns its root."""
    return partial(write_book, tmp_path)


def refused(root: Path) -> str:
    with pytest.raises(ProblemError) as error:
        generate(root)
    return str(error.value)


def chapter_text(*imports: str, names: str = "", tag: str = EXPORT) -> str:
    """A chapter whose cell imports and defines something."""
    lines = [f"from annotated_transformer{line}" for line in imports]
    return TITLE + tag + "\n".join([*lines, names or "pass"]) + "\n"


# What is written


def test_module_reads_as_if_written_by_hand(book):
    script = (
        TITLE
        + EXPORT
        + "import math\n\n# %% [markdown]\n# ## Sums\n\n"
        + ADD
        + "# %%\nprint(add(1, 2))\n\n# %% [markdown]\n# ## Roots\n\n"
        + EXPORT
        + "from math import pi\nimport os\n\n# Take the root\ndef root(x: float) -> float:\n"
        + "    return math.sqrt(x)\n\n\n_SECRET = pi\n\n"
    )
    module = generate(book(c03_adding=script))[MODULE]
    tree = ast.parse(module)
    assert (
        ast.get_docstring(tree) == "Adding.\n\nThis chapter adds numbers (section 1)."
    )
    assert "notebooks/03_adding.py" in module.splitlines()[0]
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert tree.body[1:4] == imports, "imports stand merged at the top"
    parts = ["# --- Sums ---", "def add", "# --- Roots", "# Take the root\ndef root"]
    assert sorted(map(module.index, parts)) == list(map(module.index, parts))
    assert "print" not in module


def test_the_package_offers_its_public_names(book):
    cli = TITLE + EXPORT + "def main() -> None: ...\n"
    files = generate(book('adding = ["add"]', c03_adding=TITLE + ADD, G_cli=cli))
    init = files["annotated_transformer/__init__.py"]
    assert "from annotated_transformer.adding import add as add\n" in init
    assert '__version__ = "1.2.3"' in init
    assert "import main" in files["annotated_transformer/__main__.py"]


def test_model_is_also_one_file(book):
    """Chapters up to the Transformer, in order, without imports of the package."""
    last = chapter_text(
        ".adding import add", names="def model() -> int:\n    return add(1, 1)"
    )
    later = TITLE + EXPORT + "def later() -> None: ...\n"
    root = book(c03_adding=TITLE + ADD, c10_transformer=last, c13_data=later)
    text = generate(root)["book/model.py"]
    assert "# --- Adding (section 1) ---" in text
    assert "later" not in text and "import" not in text
    values: dict = {}
    exec(text, values)
    assert values["model"]() == 2


# What is refused, with cell and remedy


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (ADD + ADD, 'cell 3: exports "add", which notebooks/03_adding.py, cell 2'),
        (EXPORT + "# %time 1 + 1\n", "cell 2: does not parse"),
        (ADD.replace("export", "exprot"), 'cell 2: has the unknown tag "exprot"'),
    ],
)
def test_refused_cells(book, cell, message):
    found = refused(book(c03_adding=TITLE + cell))
    assert f"notebooks/03_adding.py, {message}" in found


# The import law

OTHERS = {
    "c03_adding": TITLE + ADD,
    "c20_later": TITLE + EXPORT + "x = 1\n",
    "A_files": TITLE + EXPORT + "y = 1\n",
    "G_cli": TITLE + EXPORT + "z = 1\n",
}


@pytest.mark.parametrize(
    ("stem", "tag", "line", "refused_name"),
    [
        ("c05_user", EXPORT, ".adding import add", None),
        ("c05_user", EXPORT, ".later import x", "later"),
        ("c05_user", EXPORT, ".files import y", "files"),
        ("c05_user", DEMO, ".later import x", None),
        ("c28_trainer", EXPORT, ".files import y", None),
        ("B_user", EXPORT, ".later import x", None),
        ("B_user", EXPORT, ".cli import z", "cli"),
    ],
)
def test_who_may_import_what(book, stem, tag, line, refused_name):
    root = book(**OTHERS | {stem: chapter_text(line, tag=tag)})
    if refused_name is None:
        generate(root)
    else:
        cell = f"{stem.removeprefix('c')}.py, cell 2"
        assert f'{cell}: imports "{refused_name}"' in refused(root)


def test_no_cycle(book):
    scripts = {
        "A_one": chapter_text(".two import b", names="a = b"),
        "B_two": chapter_text(".three import c", names="b = c"),
        "C_three": chapter_text(".one import a", names="c = a"),
    }
    found = refused(book(**scripts))
    cycle = re.search(r"closes a cycle of imports: (.+)", found)[1].split(" -> ")
    assert cycle[0] == cycle[-1] and {*cycle} == {"one", "two", "three"}


def test_translation_imports_no_training(book):
    """Not even through another appendix."""
    scripts = {
        "c18_training": TITLE + EXPORT + "a = 1\n",
        "A_files": chapter_text(".helper import b", names="c = b"),
        "B_helper": chapter_text(".training import a", names="b = a"),
        "c19_decoding": TITLE + EXPORT + "d = 1\n",
    }
    found = refused(book(**scripts))
    assert "A_files.py, cell 2: makes what translates import what trains: " in found
    assert "files -> helper -> training" in found and "decoding" not in found


# What a reader sees


def puzzles(root: Path) -> list[str]:
    return [str(problem) for problem in check_reading(chapters(root))]


def test_a_reader_sees_no_drawing_helper(book):
    line = "from book.figures import show"
    root = book(c03_adding=TITLE + DEMO + f"if True:\n    {line}\n")
    (puzzle,) = puzzles(root)
    assert f"03_adding.py, cell 2: shows a drawing helper: {line}" in puzzle
    assert puzzles(book(c03_adding=TITLE + HIDDEN + line + "\n")) == []


def test_an_assertion_stands_in_a_guard(book):
    line = "assert 1 + 1 == 2\n"
    guard = f"if CHECKING:\n    {line}"
    assert puzzles(book(c03_adding=TITLE + UNSEEN + guard)) == []
    for cell in (DEMO + guard, UNSEEN + line):
        (puzzle,) = puzzles(book(c03_adding=TITLE + cell))
        assert f"cell 2: asserts outside of a guard: {line.strip()}" in puzzle


def test_a_name_from_nowhere(book):
    use = "def f():\n    return seen\n"
    root = book(c03_adding=TITLE + HIDDEN + "seen = 1\n\n" + DEMO + use)
    (puzzle,) = puzzles(root)
    assert '03_adding.py, cell 3: uses "seen" as a hidden cell defines it' in puzzle
    seen = DEMO + "seen = 1\n\n"
    assert puzzles(book(c03_adding=TITLE + seen + DEMO + use)) == []
    changed = TITLE + seen + HIDDEN + "seen = 2\n\n" + DEMO + use
    (puzzle,) = puzzles(book(c03_adding=changed))
    assert 'cell 4: uses "seen" as a hidden cell defines it' in puzzle


# The check, and executing


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    """A book that is executed and exported, as the two make commands do."""
    cells = HIDDEN + 'print("a figure")\n\n' + DEMO + "print(add(1, 2))\n"
    root = write_book(tmp_path_factory.mktemp("built"), c03_adding=TITLE + ADD + cells)
    for chapter in chapters(root):
        execute(chapter)
    for path, text in generate(root).items():
        (root / path).write_text(text)
    assert check_book(root) == [] and written(root) == {*generate(root)}
    return root


@pytest.fixture
def built(built_once, tmp_path):
    """A copy of it, to change: its one chapter."""
    root = shutil.copytree(built_once, tmp_path / "book")
    return Chapter(root / "notebooks" / "03_adding.py")


def finding(chapter: Chapter) -> str:
    return "\n".join(map(str, check_book(chapter.script.parents[1])))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_edited_exported_line_names_what_to_do(built):
    edit(built.script, "a + b", "b + a")
    found = finding(built)
    assert "03_adding.py, cell 2: differs" in found
    assert 'run "make execute NOTEBOOK=03_adding"' in found
    assert f"{MODULE}: differs from what the notebooks generate" in found


ERROR = {"output_type": "error", "ename": "KeyError", "evalue": "1", "traceback": []}
PRINTED = {"output_type": "stream", "name": "stdout", "text": "/home/someone/x.txt\n"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"execution_count": 9}, "was not executed from top to bottom"),
        ({"outputs": [ERROR]}, "cell 4: stores a traceback: KeyError: 1"),
        ({"outputs": [PRINTED]}, "cell 4: prints a path of the machine it ran on"),
    ],
)
def test_edited_notebook(built, change, fault):
    notebook = built.read_notebook()
    notebook.cells[-1].update(nbformat.from_dict(change))
    built.write_notebook(notebook)
    assert fault in finding(built)


def test_execution_is_stable(built):
    """And closes hidden code in JupyterLab and Colab."""
    before = built.notebook.read_bytes()
    execute(built)
    assert built.notebook.read_bytes() == before
    assert not take_over_text(built) and not needs_execution(built)
    cells = built.read_notebook().cells
    assert ["cellView" in cell.metadata for cell in cells] == [0, 0, 1, 0]


def test_text_is_taken_over_without_execution(built):
    edit(built.script, "And more", "And no more")
    assert not needs_execution(built) and take_over_text(built)
    assert finding(built) == ""
    assert built.read_notebook().cells[-1].outputs[0].text == "3\n"


def test_failing_cell_leaves_the_notebook(built):
    before = built.notebook.read_bytes()
    built.script.write_text(built.script.read_text() + "\n# %%\n1 / 0\n")
    assert needs_execution(built)
    with pytest.raises(ProblemError, match=r"03_adding.py: fails: ZeroDivisionError"):
        execute(built)
    assert built.notebook.read_bytes() == before


# The scripts of the book


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.script.stem)
def test_scripts_are_as_jupytext_writes_them(chapter):
    text = chapter.script.read_text(encoding="utf-8")
    written = jupytext.writes(jupytext.reads(text, fmt="py:percent"), fmt="py:percent")
    assert written.split("# ---\n")[-1].lstrip() == text  # behind a header
