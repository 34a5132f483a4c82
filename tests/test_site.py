"""The site's extension: captions, API reference and scripts, on a book of one chapter.

The chapter's module imports something that does not exist, so reading it must be enough.
"""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("jupyter_book")
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.chapters import KERNEL, ROOT, repository
from tools.site.api import describe, markdown
from tools.site.assets import without_icon_script
from tools.package import defined_names, module_of, modules
from tools.site.typography import keep_together, let_images_scroll

CODE = '''def add(a: int, b: int = 1) -> int:
    """Add two numbers (section 1).

    Args:
        a: the *first* number.
        b: the second, `1` if it is left out.

    Raises:
        ValueError: never.
    """
    return a + b'''
MODULE = f'''"""Adding.

This chapter adds.
"""

import no_such_module

__all__ = ["ZERO", "ONE", "add"]

ZERO, ONE = 0, "one"


{CODE}


def helper() -> None:
    """Not for users, and so not in the reference."""
'''
TEXT = """# Adding

This chapter adds.

$$ a + b $$ (eq-sum)

See {eq}`eq-sum` in {{ repository }}."""
CLASS = """class A(B):
    'Text.'
    def __init__(self, x: int): ...
    @classmethod
    def load(cls, path):
        'Load.'
    @staticmethod
    def one(x):
        'One.'
    @property
    def size(self) -> int:
        'Size.'
    def _own(self):
        'Own.'
"""


def notebook():
    """A chapter with an exported import, an exported function and a demonstration."""
    cells = [
        new_markdown_cell(TEXT, id="text"),
        new_code_cell("import math", id="imports", metadata={"tags": ["export"]}),
        new_code_cell(CODE, id="code", metadata={"tags": ["export"]}),
        new_code_cell("print(add(1))", id="demo"),
    ]
    return new_notebook(cells=cells, metadata=nbformat.from_dict(KERNEL))


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    """The root of a built book that has the real configuration and one chapter."""
    root = tmp_path_factory.mktemp("book")
    shutil.copy(ROOT / "_config.yml", root)
    shutil.copytree(ROOT / "book", root / "book")
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("notebooks", "annotated_transformer"):
        (root / name).mkdir()
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/api\nparts:\n- caption: A part\n  numbered: true\n"
        "  chapters:\n  - file: notebooks/01_adding\n"
    )
    (root / "book" / "api.md").write_text("# API\n\n```{package-reference}\n```\n")
    (root / "annotated_transformer" / "adding.py").write_text(MODULE)
    nbformat.write(notebook(), root / "notebooks" / "01_adding.ipynb")
    build = "from jupyter_book.cli.main import main; main()"
    run = [sys.executable, "-c", build, "build", str(root), "-W", "--keep-going", "-q"]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def page(book: Path, name: str) -> BeautifulSoup:
    """A built page."""
    return BeautifulSoup((book / "_build" / "html" / name).read_bytes(), "lxml")


def test_captions_lead_to_the_definition(book):
    """Each exported cell, and no other, names its file and leads to the place in the source."""
    cells = page(book, "notebooks/01_adding.html").select("div.cell")
    captions = [cell.select_one(".export-caption a") for cell in cells]
    assert [link and link.get_text() for link in captions] == [
        "annotated_transformer/adding.py",
        "annotated_transformer/adding.py",
        None,
    ]
    source = "../_modules/annotated_transformer/adding.html"
    assert [link["href"] for link in captions[:2]] == [source, f"{source}#add"]
    definition = page(book, "_modules/annotated_transformer/adding.html").find(id="add")
    assert definition.get_text().strip().startswith("[docs]\ndef add(")


def test_reference_is_read_from_the_source(book):
    """The reference has the signature, the sections as lists, constants, and both ways out."""
    reference = page(book, "book/api.html")
    head = reference.find(id="annotated_transformer.adding.add")
    assert "add(a: int, b: int = 1) → int" in head.get_text()
    entries = [item.get_text() for item in head.parent.find_all("li")]
    assert entries == [
        "a: the first number.",
        "b: the second, 1 if it is left out.",
        "ValueError: never.",
    ]
    assert reference.find(id="annotated_transformer.adding.helper") is None
    assert "= 'one'" in reference.find(id="annotated_transformer.adding.ONE").get_text()
    links = [link.get("href") for link in reference.article.find_all("a")]
    assert "../_modules/annotated_transformer/adding.html#add" in links
    assert "../notebooks/01_adding.html" in links


def test_formulas_are_numbered_and_the_address_is_filled_in(book):
    """A formula has the chapter's number; the repository's address comes from _config.yml."""
    text = page(book, "notebooks/01_adding.html").article.get_text()
    assert "equation (1.1)" in text
    assert repository(book) in text and "{{" not in text


def test_launch_buttons_open_the_notebook(book):
    """Colab and Binder get the address of this very notebook."""
    links = {tag.get("href", "") for tag in page(book, "notebooks/01_adding.html").find_all("a")}
    name = repository(book).removeprefix("https://github.com/")
    colab = "https://colab.research.google.com/github"
    assert f"{colab}/{name}/blob/main/notebooks/01_adding.ipynb" in links
    binder = f"https://mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/notebooks/01_adding.ipynb"
    assert binder in links and repository(book) in links


def test_scripts_come_along(book):
    """Vega is written as a module, MathJax and its fonts are there, the icon script is not used."""
    static = book / "_build" / "html" / "_static"
    assert (static / "vega.mjs").read_text().rstrip().endswith("as vegaEmbed};")
    assert (static / "mathjax" / "tex-chtml.js").exists()
    assert list(static.glob("mathjax/output/chtml/fonts/woff-v2/MathJax_Main-Regular.woff"))
    scripts = [tag["src"] for tag in page(book, "notebooks/01_adding.html").select("script[src]")]
    assert any("mathjax" in script for script in scripts)
    assert not any("fontawesome" in script or "//" in script for script in scripts)


def test_class_entries():
    """A class shows its arguments, from `__init__` or from fields, and its public methods."""
    text = "\n".join(describe(ast.parse(CLASS).body[0]))
    assert "{py:class} A(x: int)" in text
    assert "{py:method} load(path)\n:classmethod:" in text
    assert "{py:method} one(x)\n:staticmethod:" in text
    assert "{py:property} size\n:type: int" in text
    assert "_own" not in text
    fields = "@dataclass(frozen=True)\nclass C:\n    n: int\n    rate: float = 0.1\n    'A rate.'\n"
    head, *body = describe(ast.parse(fields).body[0])
    assert "{py:class} C(n: int, rate: float=0.1)" in head
    assert [line for line in body if line.startswith("- ")] == ["- `rate`: A rate."]


def test_docstring_sections_end_where_the_indentation_ends():
    """What follows a section is a paragraph of its own."""
    text = (
        "Do it.\n\n    Args:\n        a: one,\n            on two lines.\n\n    Returns the rest."
    )
    function = ast.parse(f"def f():\n    '''{text}\n    '''").body[0]
    expected = "Do it.\n\n**Args**\n\n- `a`: one, on two lines.\n\nReturns the rest."
    assert "\n".join(markdown(function)) == expected


def test_punctuation_stays_with_its_formula():
    """Signs that touch a formula share a span with it; words do not."""
    parts = ["so (", "a", "), and ", "b", " or ", "c", "-th."]
    children = [nodes.math("", x) if len(x) == 1 else nodes.Text(x) for x in parts]
    page = new_document("page")
    page += nodes.paragraph("", "", *children)
    keep_together(None, page, "page")
    spans = [span.astext() for span in page.findall(nodes.inline)]
    assert spans == ["(a),", "c-th"]
    assert page.astext() == "".join(parts)


def test_only_the_image_of_a_figure_scrolls():
    """The image gets a box; the caption stays beside the box."""
    page = new_document("page")
    page += nodes.figure("", nodes.image(uri="a.png"), nodes.caption("", "What?"))
    let_images_scroll(None, page, "page")
    box, caption = page[0].children
    assert box["classes"] == ["image-box"] and isinstance(box[0], nodes.image)
    assert isinstance(caption, nodes.caption)


def test_names_and_modules(tmp_path):
    """Names of definitions; modules in the order of chapters, only those that exist."""
    statements = ast.parse("def f(): ...\nclass C: ...\nA, B = 1, 2\nD: int = 3\nimport x").body
    assert [defined_names(s) for s in statements] == [["f"], ["C"], ["A", "B"], ["D"], []]
    assert module_of("notebooks/03_attention") == "attention"
    assert module_of("book/index") is None and module_of("notebooks/attention") is None
    for name in ("notebooks/02_b.ipynb", "notebooks/01_z.ipynb", "notebooks/03_c.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "annotated_transformer").mkdir()
    for name in ("b.py", "z.py"):
        (tmp_path / "annotated_transformer" / name).touch()
    assert [module.name for module in modules(tmp_path)] == ["z", "b"]


def test_only_the_icon_script_is_taken_out():
    """Other scripts stay."""
    icons = '<script defer src="_static/scripts/fontawesome.js?digest=1"></script>'
    head = f'{icons}<script src="a.js"></script>'
    assert without_icon_script(head) == '<script src="a.js"></script>'
