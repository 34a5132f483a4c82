"""The tools that turn notebooks into a package: what they accept, write and refuse."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
import tyro
import yaml

from tools.chapters import ROOT, Chapter, chapters, selected, tags
from tools.check import check_book
from tools.execute import execute, needs_execution, take_over_text
from tools.export import generate, written
from tools.problem import ProblemError
from tools.reading import check_reading

TITLE = "# %% [markdown]\n# # Adding\n#\n# This chapter adds numbers (section 1). And more.\n\n"
EXPORT = '# %% tags=["export"]\n'
ADD = EXPORT + "def add(a: int, b: int) -> int:\n    return a + b\n\n"
FIGURE = '# %% tags=["hide-input"]\nprint("a figure")\n\n'
SOLUTION = '# %% tags=["hide-cell"]\nprint("a solution")\n\n'
MODULE = "annotated_transformer/adding.py"


def write_book(root: Path, public: str = "", **scripts: str) -> Path:
    """Write a book of the given scripts; `public` is the table of public names."""
    (root / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1.2.3"\n[tool.annotated-transformer.public]\n'
        + public
    )
    for name in ("notebooks", "annotated_transformer", "book"):
        (root / name).mkdir(exist_ok=True)
    for stem, text in scripts.items():
        (root / "notebooks" / f"{stem.removeprefix('c')}.py").write_text(text)
    return root


@pytest.fixture
def book(tmp_path):
    """A function that writes a book of the given scripts and returns its root."""
    return lambda public="", **scripts: write_book(tmp_path, public, **scripts)


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
    assert (
        module.index("# --- Sums ---")
        < module.index("def add")
        < module.index("# --- Roots")
    )
    assert "# Take the root\ndef root" in module
    assert "print" not in module and "__all__" not in module


def test_package_offers_public_names_lazily(book):
    files = generate(book('adding = ["add"]', c03_adding=TITLE + ADD))
    assert '__version__ = "1.2.3"' in files["annotated_transformer/__init__.py"]
    assert (
        "from .adding import add as add" in files["annotated_transformer/__init__.pyi"]
    )


def test_command_line_makes_the_package_runnable(book):
    files = generate(book(G_cli=TITLE + EXPORT + "def main() -> None: ...\n"))
    program = files["annotated_transformer/__main__.py"]
    assert "from annotated_transformer.toolkit import cli" in program
    assert "cli.main()" in program
    assert "annotated_transformer/__main__.py" not in generate(book(G_cli=TITLE))


def test_model_is_also_one_file(book):
    """Chapters up to the Transformer, in order, without imports of the package."""
    last = chapter_text(
        ".adding import add", names="def model() -> int:\n    return add(1, 1)"
    )
    later = TITLE + EXPORT + "def later() -> None: ...\n"
    root = book(c03_adding=TITLE + ADD, c10_transformer=last, c13_data=later)
    text = generate(root)["book/model.py"]
    assert (
        text.count("# --- Adding (section 1) ---") == 1
    )  # both chapters have this title
    assert text.index("def add(") < text.index("def model(")
    assert "later" not in text and "import" not in text
    values: dict = {}
    exec(text, values)
    assert values["model"]() == 2


def test_some_modules_alone(book):
    root = book(
        'adding = ["add"]', c03_adding=TITLE + ADD, c04_faulty=TITLE + EXPORT + "(\n"
    )
    assert list(generate(root, only=[Chapter(root / "notebooks/03_adding.py")])) == [
        MODULE
    ]


def test_names_of_chapters():
    names = [
        "03_attention",
        "3",
        "attention",
        "notebooks/03_attention.py",
        "E",
        "checker",
    ]
    stems = [chapter.script.stem for chapter in selected(names)]
    assert stems == ["03_attention"] * 4 + ["E_checker"] * 2
    with pytest.raises(ProblemError, match="99: is no chapter"):
        selected(["99"])


# What is refused, with cell and remedy


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            ADD + ADD,
            'cell 3: exports "add", which notebooks/03_adding.py, cell 2 exports',
        ),
        (EXPORT + "def add(:\n", "cell 2: does not parse"),
        (EXPORT + "# %time 1 + 1\n", "cell 2: does not parse"),
        (ADD.replace("export", "exprot"), 'cell 2: has the unknown tag "exprot"'),
        (ADD.replace("export", "export hide-cell"), "cell 2: has the unknown tag"),
    ],
)
def test_refused_cells(book, cell, message):
    found = refused(book(c03_adding=TITLE + cell))
    assert f"notebooks/03_adding.py, {message}" in found
    assert found.count("\n    ") == 1, "one remedy"


def test_name_exported_by_two_chapters(book):
    root = book(c03_adding=TITLE + ADD, c04_again=TITLE + ADD)
    assert (
        '04_again.py, cell 2: exports "add", which notebooks/03_adding.py'
        in refused(root)
    )


def test_a_command_may_have_the_name_of_what_it_runs(book):
    """In the package each name has one place; only the command line is apart."""
    assert (
        "def add" in generate(book(c03_adding=TITLE + ADD, G_cli=TITLE + ADD))[MODULE]
    )


def test_title_is_needed(book):
    assert "has no title with a first sentence" in refused(book(c03_adding=ADD))


def test_notebook_without_script(book):
    root = book(c03_adding=TITLE)
    (root / "notebooks" / "07_lost.ipynb").write_text("{}")
    assert "notebooks/07_lost.ipynb: has no script of the same name" in refused(root)


# The import law

DEMO = "# %%\n"
OTHERS = {
    "c01_tour": TITLE,
    "c03_adding": TITLE + ADD,
    "c20_later": TITLE + EXPORT + "x = 1\n",
    "A_files": TITLE + EXPORT + "y = 1\n",
    "G_cli": TITLE + EXPORT + "z = 1\n",
}


@pytest.mark.parametrize(
    ("stem", "tag", "line"),
    [
        ("c05_user", EXPORT, ".adding import add"),
        ("c05_user", EXPORT, " import adding"),
        ("c05_user", DEMO, " import load_pretrained, check"),
        ("c05_user", DEMO, " import add"),
        ("c05_user", DEMO, ".later import x"),
        ("c05_user", DEMO, ".toolkit.files import y"),
        ("c05_user", DEMO, ".toolkit.cli import z"),
        ("B_user", EXPORT, ".later import x"),
        ("B_user", EXPORT, ".toolkit.files import y"),
        ("B_user", EXPORT, ".toolkit import files"),
        ("c01_tour", DEMO, ".later import x"),
    ],
)
def test_law_allows(book, stem, tag, line):
    generate(book(**OTHERS | {stem: chapter_text(line, tag=tag)}))


@pytest.mark.parametrize(
    ("stem", "tag", "line", "named"),
    [
        ("c05_user", EXPORT, ".later import x", "later"),
        ("c05_user", EXPORT, " import later", "later"),
        ("c05_user", EXPORT, ".toolkit.files import y", "toolkit.files"),
        ("c05_user", EXPORT, ".toolkit import files", "toolkit.files"),
        ("c05_user", EXPORT, " import load_pretrained", "load_pretrained"),
        ("c05_user", EXPORT, ".toolkit.cli import z", "toolkit.cli"),
        ("c05_user", DEMO, ".user import x", "user"),
        ("c05_user", DEMO, ".nowhere import x", "nowhere"),
        ("B_user", EXPORT, ".toolkit.cli import z", "toolkit.cli"),
        ("B_user", EXPORT, " import load_pretrained", "load_pretrained"),
    ],
)
def test_law_refuses(book, stem, tag, line, named):
    found = refused(book(**OTHERS | {stem: chapter_text(line, tag=tag)}))
    assert f'{stem.removeprefix("c")}.py, cell 2: imports "{named}"' in found


def test_law_sees_imports_inside_of_functions(book):
    late = (
        "def f() -> int:\n    import annotated_transformer.later as x\n    return x.x\n"
    )
    found = refused(book(**OTHERS, c05_user=TITLE + EXPORT + late))
    assert '05_user.py, cell 2: imports "later"' in found


def test_no_cycle(book):
    scripts = {
        "A_one": chapter_text(".toolkit.two import b", names="a = b"),
        "B_two": chapter_text(".toolkit.three import c", names="b = c"),
        "C_three": chapter_text(".toolkit.one import a", names="c = a"),
    }
    found = refused(book(**scripts))
    cycle = re.search(r"closes a cycle of imports: (.+)", found)[1].split(" -> ")
    assert len(cycle) == 4 and cycle[0] == cycle[-1]
    order = ["toolkit.one", "toolkit.two", "toolkit.three"] * 2
    assert cycle[:3] in [order[i : i + 3] for i in range(3)]


def test_translation_imports_no_training(book):
    """Not even through another appendix."""
    scripts = {
        "c18_training": TITLE + EXPORT + "a = 1\n",
        "A_model_io": chapter_text(".toolkit.helper import b", names="c = b"),
        "B_helper": chapter_text(".training import a", names="b = a"),
        "c19_decoding": TITLE + EXPORT + "d = 1\n",
    }
    found = refused(book(**scripts))
    assert "A_model_io.py, cell 2: makes what translates import what trains: " in found
    assert "toolkit.model_io -> toolkit.helper -> training" in found
    assert "decoding" not in found


# The check


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    """A book that is executed and exported, as the two make commands do."""
    demonstration = ADD + FIGURE + SOLUTION + "# %%\nprint(add(1, 2))\n"
    root = write_book(
        tmp_path_factory.mktemp("built"), c03_adding=TITLE + demonstration
    )
    for chapter in chapters(root):
        execute(chapter)
    for path, text in generate(root).items():
        (root / path).write_text(text)
    assert check_book(root) == [] and written(root) == {*generate(root)}
    return root


@pytest.fixture
def built(built_once, tmp_path):
    """A copy of it, to change."""
    return shutil.copytree(built_once, tmp_path / "book")


def finding(root: Path) -> str:
    found = check_book(root)
    assert found, "the check finds nothing"
    return "\n".join(map(str, found))


def test_edited_exported_line_names_what_to_do(built):
    script = built / "notebooks" / "03_adding.py"
    script.write_text(script.read_text().replace("a + b", "b + a"))
    found = finding(built)
    assert "03_adding.py, cell 2: differs" in found
    assert 'run "make execute NOTEBOOK=03_adding"' in found
    assert (
        "annotated_transformer/adding.py: differs from what the notebooks generate"
        in found
    )


def test_edited_package_file(built):
    (built / "annotated_transformer" / "adding.py").write_text("x = 1\n")
    assert "change the notebook, not this file" in finding(built)


def test_package_file_from_no_notebook(built):
    (built / "annotated_transformer" / "extra.py").write_text("x = 1\n")
    assert "annotated_transformer/extra.py: comes from no notebook" in finding(built)


def edit_notebook(root: Path, change) -> None:
    chapter = Chapter(root / "notebooks" / "03_adding.py")
    notebook = chapter.read_notebook()
    change([cell for cell in notebook.cells if cell.cell_type == "code"][-1])
    chapter.write_notebook(notebook)


def test_cell_never_executed(built):
    edit_notebook(built, lambda cell: cell.update(execution_count=None, outputs=[]))
    assert "cell 5: was never executed" in finding(built)


def test_counts_out_of_order(built):
    edit_notebook(built, lambda cell: cell.update(execution_count=9))
    assert "cell 5: has the execution count 9, not 4" in finding(built)


def test_stored_traceback(built):
    error = {
        "output_type": "error",
        "ename": "ValueError",
        "evalue": "no",
        "traceback": [],
    }
    edit_notebook(built, lambda cell: cell.update(outputs=[nbformat.from_dict(error)]))
    assert "cell 5: stores a traceback: ValueError: no" in finding(built)


def test_path_of_the_machine(built):
    edit_notebook(
        built, lambda cell: cell.outputs[0].update(text="/home/someone/x.txt\n")
    )
    assert "prints a path of the machine it ran on: /home/someone" in finding(built)


def test_ids_that_a_run_would_rewrite(built):
    """What is committed is what `make execute` makes: it leaves an unchanged book alone."""
    edit_notebook(built, lambda cell: cell.update(id="another"))
    assert "cell 5: differs from the same cell of 03_adding.ipynb" in finding(built)


def test_missing_notebook(built):
    (built / "notebooks" / "03_adding.ipynb").unlink()
    assert "03_adding.ipynb: is missing" in finding(built)


def test_broken_notebook(built):
    (built / "notebooks" / "03_adding.ipynb").write_text("{")
    assert "03_adding.ipynb: is not a notebook" in finding(built)


def test_hidden_code_is_closed_in_jupyter_and_colab(built):
    """By its tags, and in the notebook alone; for a whole hidden cell its outputs, too."""
    chapter = Chapter(built / "notebooks" / "03_adding.py")
    stored = [cell.metadata for cell in chapter.read_notebook().cells]
    closed = {"jupyter": {"source_hidden": True}, "cellView": "form"}
    assert stored[2] == {"tags": ["hide-input"], **closed}
    outputs_too = {"source_hidden": True, "outputs_hidden": True}
    assert stored[3] == {"tags": ["hide-cell"], **closed, "jupyter": outputs_too}
    assert not any("cellView" in stored[index] for index in (0, 1, 4))
    assert "cellView" not in chapter.script.read_text()


@pytest.mark.parametrize("index", [1, 2, 4])
def test_closed_against_its_tags(built, index):
    chapter = Chapter(built / "notebooks" / "03_adding.py")
    notebook = chapter.read_notebook()
    metadata = notebook.cells[index].metadata
    if "cellView" in metadata:
        del metadata["cellView"]
    else:
        metadata["cellView"] = "form"
    chapter.write_notebook(notebook)
    state = "open" if index == 2 else "closed"
    assert f"cell {index + 1}: is {state} in JupyterLab or Colab" in finding(built)
    assert take_over_text(chapter) and check_book(built) == []


# The command lines

COMMANDS = [
    ("tools.by_hand", []),
    ("tools.card", ["folder"]),
    ("tools.check", []),
    ("tools.everyday", ["deu-eng.zip", "de-en", "everyday.tsv"]),
    ("tools.execute", []),
    ("tools.export", []),
    ("tools.learning", []),
    ("tools.pdf", []),
    ("tools.portable", []),
    ("tools.pretrained", ["everyday-de-en", "run"]),
    ("tools.recordings", []),
    ("tools.units", ["deu-eng.zip"]),
]
BENCHMARKS = [
    f"benchmarks.{path.parent.name}.{path.stem}"
    for path in sorted((ROOT / "benchmarks").glob("*/*.py"))
    if "tyro.cli(main)" in path.read_text(encoding="utf-8")
]


def refusal(command, arguments: list[str], monkeypatch, capsys) -> str:
    """Run a command that must end before it does anything; return what it says."""
    monkeypatch.setattr("sys.argv", ["command", *arguments])
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 2
    said = capsys.readouterr()
    return said.out + said.err


@pytest.mark.parametrize(("module", "arguments"), COMMANDS)
@pytest.mark.parametrize("option", ["--wrods", "--wor"])
def test_a_tool_refuses_an_option_that_it_does_not_know(
    module, arguments, option, monkeypatch, capsys
):
    """Neither a mistyped one nor the beginning of one does anything."""
    command = importlib.import_module(module).main
    said = refusal(command, [*arguments, option], monkeypatch, capsys)
    assert f"unrecognized arguments: {option}" in said


@pytest.mark.parametrize("module", BENCHMARKS)
def test_a_benchmark_refuses_an_option_that_it_does_not_know(
    module, monkeypatch, capsys
):
    main = importlib.import_module(module).main
    table = ["deu.txt"] if module.endswith((".learned", ".settings", ".start")) else []
    arguments = [*table, "--wrods"]
    said = refusal(lambda: tyro.cli(main), arguments, monkeypatch, capsys)
    assert "--wrods" in said


def test_every_tool_with_a_command_line_is_tested():
    """And none reads its arguments by itself."""
    commands = {module for module, _ in COMMANDS}
    for path in (ROOT / "tools").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        has_main = '__name__ == "__main__"' in text
        assert has_main == (f"tools.{path.stem}" in commands), path.name
        assert "sys.argv" not in text, path.name
    assert len(BENCHMARKS) >= 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["everyday-fr-en", "run"], "invalid choice: 'everyday-fr-en'"),
        (["everyday-de-en", "run", "other"], "give --seeds"),
    ],
)
def test_a_pretrained_model_has_one_of_three_names(
    arguments, message, monkeypatch, capsys
):
    command = importlib.import_module("tools.pretrained").main
    assert message in refusal(command, arguments, monkeypatch, capsys)


# What a reader sees

HIDDEN = '# %% tags=["hide-input"]\n'


def text_cell(text: str) -> str:
    return f"# %% [markdown]\n# {text}\n\n"


def puzzles(root: Path) -> list[str]:
    return [str(problem) for problem in check_reading(chapters(root))]


@pytest.mark.parametrize(
    "line", ["from book.figures import show", "import matplotlib.pyplot as plt"]
)
def test_a_reader_sees_no_drawing_helper(book, line):
    root = book(c03_adding=TITLE + DEMO + f"if True:\n    {line}\n")
    (puzzle,) = puzzles(root)
    assert f"03_adding.py, cell 2: shows a drawing helper: {line}" in puzzle
    assert puzzles(book(c03_adding=TITLE + HIDDEN + line + "\n")) == []


@pytest.mark.parametrize(
    "line", ["assert 1 + 1 == 2", "torch.testing.assert_close(1, 1)"]
)
def test_an_assertion_stands_in_a_guard(book, line):
    """Whatever the cell's tags, and in an appendix, too."""
    guard = f"if CHECKING:\n    {line}\n"
    unseen = '# %% tags=["remove-cell"]\n'
    assert puzzles(book(c03_adding=TITLE + unseen + guard)) == []
    for cell in (DEMO + guard, HIDDEN + guard, unseen + line, unseen + guard + line):
        for name in ("c03_adding", "A_files"):
            puzzle = puzzles(book(**{name: TITLE + cell + "\n"}))[-1]
            assert f"cell 2: asserts outside of a guard: {line}" in puzzle


@pytest.mark.parametrize(
    "use",
    ["seen + 1", "lambda: seen", "def f():\n    return seen", "[seen for _ in 'ab']"],
)
def test_a_name_from_nowhere(book, use):
    root = book(c03_adding=TITLE + HIDDEN + "seen = 1\n\n" + DEMO + use + "\n")
    (puzzle,) = puzzles(root)
    assert '03_adding.py, cell 3: uses "seen", which only hidden cells define' in puzzle


@pytest.mark.parametrize(
    "cells",
    [
        DEMO + "seen = 1\n\n",  # a visible cell defines it
        HIDDEN + "seen = 1\n\n" + text_cell("Now `seen` counts what was seen."),
        HIDDEN + "from math import pi as seen\n\n",
        HIDDEN + "import torch.nn.functional as seen\n\n",
        HIDDEN + "seen = 1\n\n" + DEMO + "def f(seen):\n    return seen\n\n",
        EXPORT.replace("export", 'export", "hide-cell') + "pass\n\n",
    ],
)
def test_names_that_a_reader_knows(book, cells):
    use = "" if "def f" in cells else DEMO + "print(seen)\n"
    assert puzzles(book(c03_adding=TITLE + cells + use)) == []


def test_names_of_earlier_lessons_are_known(book):
    """What they export, or show how to import; what a toolkit exports wants a sentence."""
    user = TITLE + HIDDEN + "from annotated_transformer import add\n\n" + DEMO
    user += "add(1, 2)\n"
    shown = TITLE + DEMO + "from annotated_transformer import add\n\n"
    assert puzzles(book(c03_adding=TITLE + ADD, c04_user=user)) == []
    assert puzzles(book(c03_adding=shown, c04_user=user)) == []
    root = book(c03_adding=TITLE, c04_user=user, A_files=TITLE + ADD)
    assert '04_user.py, cell 3: uses "add"' in puzzles(root)[0]


# Executing


def test_execution_is_stable(built):
    chapter = Chapter(built / "notebooks" / "03_adding.py")
    before = chapter.notebook.read_bytes()
    execute(chapter)
    assert chapter.notebook.read_bytes() == before
    assert not take_over_text(chapter)
    assert not needs_execution(chapter)


def test_text_is_taken_over_without_execution(built):
    chapter = Chapter(built / "notebooks" / "03_adding.py")
    chapter.script.write_text(
        chapter.script.read_text().replace("And more", "And no more")
    )
    assert not needs_execution(chapter)
    assert take_over_text(chapter)
    assert check_book(built) == []
    assert chapter.read_notebook().cells[-1].outputs[0].text == "3\n"


def test_failing_cell_leaves_the_notebook(built):
    chapter = Chapter(built / "notebooks" / "03_adding.py")
    before = chapter.notebook.read_bytes()
    chapter.script.write_text(chapter.script.read_text() + "\n# %%\n1 / 0\n")
    assert needs_execution(chapter)
    with pytest.raises(ProblemError, match=r"cell 6: fails: ZeroDivisionError"):
        execute(chapter)
    assert chapter.notebook.read_bytes() == before


@pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.script.stem)
def test_scripts_are_as_jupytext_writes_them(chapter):
    text = chapter.script.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    once = jupytext.writes(notebook, fmt="py:percent")
    twice = jupytext.writes(jupytext.reads(once, fmt="py:percent"), fmt="py:percent")
    assert twice == once
    body = once.split("# ---\n")[
        -1
    ].lstrip()  # jupytext adds a header that names its version
    assert body == text
    for cell in notebook.cells:
        # Jupytext takes the sign from a shebang: indent the block by one space
        assert not re.search(r"^!/", cell.source, re.M)


def test_the_first_cell_of_all_notebooks_is_the_same():
    """It is short, and names the address of _config.yml."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    first_cells = [chapter.read_script().cells[0] for chapter in chapters()]
    sources = {cell.source for cell in first_cells}
    assert len(sources) == 1, "they differ"
    source = sources.pop()
    ast.parse(source)
    assert sum(line != "" for line in source.splitlines()) <= 7
    assert f'"{config["repository"]["url"]}"' in source
    assert all(tags(cell) == ["remove-cell"] for cell in first_cells)


def run_first_cell(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the first cell of a notebook in a folder, then look for the book as chapters do."""
    first_cell = chapters()[0].read_script().cells[0].source
    look = (
        "from importlib.util import find_spec\nprint(find_spec('book.figures').origin)"
    )
    return subprocess.run(
        [sys.executable, "-c", f"{first_cell}\n{look}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("folder", [".", "notebooks", "book", "benchmarks/results"])
def test_a_notebook_finds_the_book_from_any_folder_of_the_clone(folder):
    run = run_first_cell(ROOT / folder)
    found = ROOT / folder / run.stdout.strip()
    assert found.resolve() == ROOT / "book" / "figures.py", run.stderr


def test_a_notebook_alone_says_in_one_line_where_its_book_is(tmp_path):
    run = run_first_cell(tmp_path)
    assert run.returncode == 1
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert run.stderr == f"Open this in a clone of {config['repository']['url']}\n"
