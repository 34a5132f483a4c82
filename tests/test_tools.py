"""The tools that turn notebooks into a package: what they accept, write and refuse."""

import ast
from pathlib import Path

import jupytext
import nbformat
import pytest

from tools.chapters import Chapter, chapters, with_install_cell
from tools.check import check_book
from tools.execute import execute, needs_execution, take_over_text
from tools.export import address_changes, generate
from tools.problem import ProblemError

ADDRESS = "https://github.com/someone/somewhere"
TITLE = "# %% [markdown]\n# # Adding\n#\n# This chapter adds numbers (section 1). And more.\n\n"
EXPORT = '# %% tags=["export"]\n'
ADD = EXPORT + "def add(a: int, b: int) -> int:\n    return a + b\n\n"


@pytest.fixture
def book(tmp_path):
    """A function that writes a book of the given scripts and returns its root."""

    def write(public=(), **scripts: str) -> Path:
        names = ", ".join(f'"{name}"' for name in public)
        (tmp_path / "pyproject.toml").write_text(
            f'[project]\nname = "x"\nversion = "1.2.3"\n[project.urls]\nRepository = "{ADDRESS}"\n'
            f"[tool.annotated-transformer]\npublic = [{names}]\n"
        )
        (tmp_path / "_config.yml").write_text(f"repository:\n  url: {ADDRESS}\n")
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        (tmp_path / "annotated_transformer").mkdir(exist_ok=True)
        for stem, text in scripts.items():
            path = tmp_path / "notebooks" / f"{stem.removeprefix('c')}.py"
            path.write_text(with_install_cell(text, ADDRESS))
        return tmp_path

    return write


def build(root: Path) -> None:
    """Execute and export, as the two make commands do."""
    for chapter in chapters(root):
        execute(chapter)
    for name, text in generate(root).items():
        (root / "annotated_transformer" / name).write_text(text)


def refused(root: Path) -> str:
    with pytest.raises(ProblemError) as error:
        generate(root)
    return str(error.value)


# What an exported module looks like


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
        + '# %% tags=["export", "internal"]\nTABLE = (1, 2)\n'
    )
    module = generate(book(c00_adding=script))["adding.py"]
    tree = ast.parse(module)
    assert ast.get_docstring(tree) == "Adding.\n\nThis chapter adds numbers (section 1)."
    assert "notebooks/00_adding.py" in module.splitlines()[0]
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert tree.body[1:4] == imports, "imports stand merged at the top"
    assert '__all__ = ["add", "root"]' in module
    assert "TABLE = (1, 2)" in module
    assert module.index("Sums") < module.index("def add") < module.index("Roots")
    assert "# Take the root\ndef root" in module
    assert "print" not in module


def test_package_offers_public_names_lazily(book):
    root = book(public=["add"], c00_adding=TITLE + ADD)
    init = generate(root)["__init__.py"]
    assert '__version__ = "1.2.3"' in init
    assert '_HOME: dict[str, str] = {"add": "adding"}' in init


def test_unknown_public_name(book):
    assert "no chapter exports: missing" in refused(book(public=["missing"], c00_adding=TITLE))


# What is refused, with cell and remedy


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (ADD + ADD, 'cell 4: exports "add", which notebooks/00_adding.py, cell 3'),
        (EXPORT + "def add(:\n", "cell 3: does not parse"),
        (EXPORT + "# %time 1 + 1\n", 'cell 3: holds the magic "%time 1 + 1"'),
        (
            "# %%\nfrom annotated_transformer.later import x\n",
            'cell 3: imports "later", which no earlier chapter exports',
        ),
        (
            EXPORT + "from annotated_transformer import load_pretrained\n",
            'cell 3: imports "load_pretrained"',
        ),
    ],
)
def test_refused_cells(book, cell, message):
    found = refused(book(c00_adding=TITLE + cell))
    assert f"notebooks/00_adding.py, {message}" in found
    assert found.count("\n    ") == 1, "one remedy"


def test_name_exported_by_two_chapters(book):
    root = book(c00_adding=TITLE + ADD, c01_again=TITLE + ADD)
    assert '01_again.py, cell 3: exports "add", which notebooks/00_adding.py' in refused(root)


def test_earlier_chapter_may_be_imported(book):
    use = EXPORT + "from annotated_transformer.adding import add\n\n\ndef twice(a: int) -> int:\n"
    root = book(c00_adding=TITLE + ADD, c01_twice=TITLE + use + "    return add(a, a)\n")
    assert "def twice" in generate(root)["twice.py"]
    look_ahead = "# %%\nfrom annotated_transformer import load_pretrained\n"
    generate(book(c02_end=TITLE + look_ahead))


def test_title_is_needed(book):
    assert "has no title with a first sentence" in refused(book(c00_adding=ADD))


def test_notebook_without_script(book):
    root = book(c00_adding=TITLE)
    (root / "notebooks" / "07_lost.ipynb").write_text("{}")
    assert "notebooks/07_lost.ipynb: has no script of the same name" in refused(root)


# The check


@pytest.fixture
def built(book):
    root = book(c00_adding=TITLE + ADD + "# %%\nprint(add(1, 2))\n")
    build(root)
    assert check_book(root) == []
    return root


def finding(root: Path) -> str:
    found = check_book(root)
    assert found, "the check finds nothing"
    return "\n".join(map(str, found))


def test_edited_exported_line_names_what_to_do(built):
    script = built / "notebooks" / "00_adding.py"
    script.write_text(script.read_text().replace("a + b", "b + a"))
    found = finding(built)
    assert "00_adding.py, cell 3: differs" in found
    assert 'run "make execute NOTEBOOK=00_adding"' in found
    assert "annotated_transformer/adding.py: differs from what the notebooks generate" in found


def test_edited_package_file(built):
    (built / "annotated_transformer" / "adding.py").write_text("x = 1\n")
    assert "change the notebook, not this file" in finding(built)


def test_package_file_from_no_notebook(built):
    (built / "annotated_transformer" / "extra.py").write_text("x = 1\n")
    assert "annotated_transformer/extra.py: comes from no notebook" in finding(built)


def edit_notebook(root: Path, change) -> None:
    chapter = Chapter(root / "notebooks" / "00_adding.py")
    notebook = chapter.read_notebook()
    change([cell for cell in notebook.cells if cell.cell_type == "code"][-1])
    chapter.write_notebook(notebook)


def test_cell_never_executed(built):
    edit_notebook(built, lambda cell: cell.update(execution_count=None, outputs=[]))
    assert "cell 4: was never executed" in finding(built)


def test_counts_out_of_order(built):
    edit_notebook(built, lambda cell: cell.update(execution_count=9))
    assert "cell 4: has the execution count 9, not 3" in finding(built)


def test_stored_traceback(built):
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
    edit_notebook(built, lambda cell: cell.update(outputs=[nbformat.from_dict(error)]))
    assert "cell 4: stores a traceback: ValueError: no" in finding(built)


def test_path_of_the_machine(built):
    edit_notebook(built, lambda cell: cell.outputs[0].update(text="/home/someone/x.txt\n"))
    assert "prints a path of the machine it ran on: /home/someone" in finding(built)


def test_missing_notebook(built):
    (built / "notebooks" / "00_adding.ipynb").unlink()
    assert "00_adding.ipynb: is missing" in finding(built)


def test_broken_notebook(built):
    (built / "notebooks" / "00_adding.ipynb").write_text("{")
    assert "00_adding.ipynb: is not a notebook" in finding(built)


def test_address_follows_the_configuration(built):
    (built / "README.md").write_text(f"See {ADDRESS}.")
    (built / "_config.yml").write_text("repository:\n  url: https://github.com/new/place\n")
    assert "README.md: does not name the repository's address" in finding(built)
    for path, text in address_changes(built).items():
        path.write_text(text)
    assert address_changes(built) == {}
    assert (built / "README.md").read_text() == "See https://github.com/new/place."
    assert "git+https://github.com/new/place" in (built / "notebooks/00_adding.py").read_text()


# Executing


def test_execution_is_stable(built):
    chapter = Chapter(built / "notebooks" / "00_adding.py")
    before = chapter.notebook.read_bytes()
    execute(chapter)
    assert chapter.notebook.read_bytes() == before
    assert not take_over_text(chapter)
    assert not needs_execution(chapter)


def test_text_is_taken_over_without_execution(built):
    chapter = Chapter(built / "notebooks" / "00_adding.py")
    chapter.script.write_text(chapter.script.read_text().replace("And more", "And no more"))
    assert not needs_execution(chapter)
    assert take_over_text(chapter)
    assert check_book(built) == []
    assert chapter.read_notebook().cells[-1].outputs[0].text == "3\n"


def test_failing_cell_leaves_the_notebook(built):
    chapter = Chapter(built / "notebooks" / "00_adding.py")
    before = chapter.notebook.read_bytes()
    chapter.script.write_text(chapter.script.read_text() + "\n# %%\n1 / 0\n")
    assert needs_execution(chapter)
    with pytest.raises(ProblemError, match=r"cell 5: fails: ZeroDivisionError"):
        execute(chapter)
    assert chapter.notebook.read_bytes() == before


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.script.stem)
def test_scripts_are_as_jupytext_writes_them(chapter):
    text = chapter.script.read_text(encoding="utf-8")
    once = jupytext.writes(jupytext.reads(text, fmt="py:percent"), fmt="py:percent")
    twice = jupytext.writes(jupytext.reads(once, fmt="py:percent"), fmt="py:percent")
    assert twice == once
    body = once.split("# ---\n")[-1].lstrip()  # jupytext adds a header that names its version
    assert body == text
