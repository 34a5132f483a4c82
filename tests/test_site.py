"""The site's extension: captions, links, numbers, API reference and search, on a small book.

The chapter's module imports something that does not exist, so reading it must be enough.
"""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

pytest.importorskip("jupyter_book")
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from py_mini_racer import JSEvalException

from book.site.api import describe_class
from book.site.formulas import typeset
from book.site.numbers import code_lines
from book.site.tokens import WORD, names_of
from tools.chapters import KERNEL, ROOT, chapters

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

ZERO = 0


{CODE}


def _helper() -> None:
    """Not for readers, and so not in the reference."""


def bare() -> None: ...
'''
TEXT = """# Adding

This chapter adds.

$$ a + b $$ (eq-sum)

See {eq}`eq-sum` in {{ repository }}."""
ADDRESS = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))[
    "repository"
]["url"]
CLASS = """class A(B):
    'Text.'
    def __init__(self, x: int): ...
    @classmethod
    def load(cls, path):
        'Load.'
    def _own(self):
        'Own.'
"""
FIELDS = """@dataclass(frozen=True)
class C:
    n: int
    m: float = 0.1  # A rate.
"""


def notebook():
    """A chapter with an exported import, an exported function and a demonstration."""
    cells = [
        new_markdown_cell(TEXT, id="text"),
        new_code_cell("import math", id="imports", metadata={"tags": ["export"]}),
        new_code_cell(CODE, id="code", metadata={"tags": ["export"]}),
        new_code_cell("total = add(1) + add(2)\nprint(total.add)", id="demo"),
    ]
    return new_notebook(cells=cells, metadata=nbformat.from_dict(KERNEL))


PAGE = """# A page

## A section

See [](../notebooks/A_using.ipynb#twice), [its use](../notebooks/A_using.ipynb#twice)
([again](../notebooks/A_using.ipynb#twice)) and [](../notebooks/A_using.ipynb).
"""
GLOSSARY = """# Glossary

```{glossary}
sum
  What adding gives, however many there are.

  German: Summe · 日本語: 和

total
  Another word that no page uses.
```
"""
USER = """from annotated_transformer import add as plus
from annotated_transformer.adding import add

plus(add(1), 2)"""


def appendix():
    """An appendix that imports the public name."""
    text = (
        "# Using\n\nThis page shows how one function is used (section 3.1 of the paper).\n\n"
        "## Twice\n\n$$ c $$ (eq-c)\n\nSee {eq}`eq-c`, a **sum**."
    )
    long = "\n".join(["1 + 1"] * 300)
    cells = [
        new_markdown_cell(text, id="text"),
        new_code_cell(USER, id="use"),
        new_code_cell(long, id="long", metadata={"tags": ["hide-cell"]}),
    ]
    return new_notebook(cells=cells, metadata=nbformat.from_dict(KERNEL))


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    """The root of a built book that has the real configuration, one chapter and one appendix."""
    root = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "conf.py"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "book", root / "book")
    shutil.copytree(
        ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__")
    )
    (root / "notebooks").mkdir()
    (root / "annotated_transformer").mkdir()
    models = root / "annotated_transformer" / "pretrained"
    models.symlink_to(ROOT / "annotated_transformer" / "pretrained")
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/api\nparts:\n"
        "- caption: Chapters\n  numbered: true\n  chapters:\n  - file: notebooks/07_adding\n"
        "- caption: Appendices\n  numbered: true\n  chapters:\n  - file: notebooks/A_using\n"
        "- caption: Further\n  chapters:\n  - file: book/page\n  - file: book/glossary\n"
    )
    (root / "pyproject.toml").write_text(
        '[tool.annotated-transformer.public]\nadding = ["add"]\n'
    )
    (root / "book" / "api.md").write_text("# API\n\n```{package-reference}\n```\n")
    (root / "book" / "page.md").write_text(PAGE)
    (root / "book" / "glossary.md").write_text(GLOSSARY)
    (root / "annotated_transformer" / "adding.py").write_text(MODULE)
    for stem, made in (("07_adding", notebook()), ("A_using", appendix())):
        (root / "notebooks" / f"{stem}.py").touch()
        nbformat.write(made, root / "notebooks" / f"{stem}.ipynb")
    build = ["-m", "sphinx", "-b", "html", "-j", "2", "-W", "--keep-going", "-q"]
    run = [sys.executable, *build, str(root), str(root / "_build" / "html")]
    sphinx = subprocess.run(run, cwd=root, capture_output=True, text=True, check=False)
    assert sphinx.returncode == 0, sphinx.stdout + sphinx.stderr
    return root


def page(book: Path, name: str) -> BeautifulSoup:
    return BeautifulSoup((book / "_build" / "html" / name).read_bytes(), "lxml")


def test_captions_lead_to_the_definition(book):
    """Each exported cell, and no other, names its file and leads to the place in the source."""
    cells = page(book, "notebooks/07_adding.html").select("div.cell")
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
    assert not reference.find_all(
        id=["annotated_transformer.adding._helper", "annotated_transformer.adding.bare"]
    )
    public = reference.find("section", id="annotated-transformer")
    assert "add: Add two numbers (section 1)." in public.get_text()
    assert public.find("a", href="#annotated_transformer.adding.add")
    links = [link.get("href") for link in reference.article.find_all("a")]
    assert "../_modules/annotated_transformer/adding.html#add" in links
    assert "../notebooks/07_adding.html" in links


def test_numbers_are_those_of_the_files(book):
    """A chapter has its number, an appendix its letter, another page none."""
    chapter = page(book, "notebooks/07_adding.html")
    appendix = page(book, "notebooks/A_using.html")
    other_page = page(book, "book/page.html")
    assert "equation (7.1)" in chapter.article.get_text()
    assert "equation (A.1)" in appendix.article.get_text()
    assert appendix.find("section", id="twice").h2.get_text().startswith("A.1 Twice")
    assert other_page.find("section", id="a-section").h2.get_text() == "A section#"
    entries = [link.get_text().strip() for link in chapter.select("nav.bd-links a")]
    assert entries == ["7 Adding", "A Using", "A page", "Glossary"]
    assert "7 Adding" in chapter.title.get_text()


def test_only_the_part_of_a_page_is_unfolded(book):
    """Before and after a page come those of its volume."""
    folds = {
        "notebooks/07_adding": {"The book", "Chapters"},
        "notebooks/A_using": {"The book", "Appendices"},
        "book/page": {"Further"},
        "book/api": {"The book"},
    }
    for name, is_open in folds.items():
        contents = page(book, f"{name}.html").select("nav.bd-links details[open]")
        assert {fold.summary.get_text() for fold in contents} == is_open
    assert not page(book, "notebooks/A_using.html").select("a.right-next")
    assert not page(book, "book/page.html").select("a.left-prev")
    assert page(book, "notebooks/A_using.html").select("a.left-prev")


def test_references_carry_the_number_of_their_section(book):
    """A link without a text gets number and title, one with a text the number."""
    links = page(book, "book/page.html").article.find(id="a-section").find_all("a")
    texts = [
        link.get_text().replace("\xa0", " ")
        for link in links
        if "headerlink" not in link["class"]
    ]
    assert texts == ["A.1 Twice", "its use (A.1)", "again, A.1", "Using"]


def test_glossary_and_chapters_lead_to_each_other(book):
    """A term says where it is defined, a translation its language; a chapter has the definition."""
    glossary = page(book, "book/glossary.html")
    term = glossary.find(id="term-sum").find_next("dd")
    assert term.select_one(".term-place a").get_text() == "A.1 Twice"
    assert [span["lang"] for span in term.select(".translations [lang]")] == [
        "de",
        "ja",
    ]
    letters = [
        (link.get_text(), link["href"]) for link in glossary.select(".letters a")
    ]
    assert letters == [("S", "#term-sum"), ("T", "#term-total")]
    assert not glossary.find(id="term-total").find_next("dd").select(".term-place")
    link = page(book, "notebooks/A_using.html").select_one("a.term")
    assert link["href"] == "../book/glossary.html#term-sum"
    assert link["title"] == "What adding gives, however many there are."


def test_the_head_of_a_chapter(book):
    """Minutes of what is not folded, sections of the paper and kind; imports are folded."""
    line = page(book, "notebooks/A_using.html").select_one("p.chapter-head")
    facts = [fact.get_text() for fact in line.select(".fact")]
    assert facts == ["5 minutes", "section 3.1 of the paper", "appendix"]
    cells = page(book, "notebooks/07_adding.html").select("div.cell")
    folds = [cell.select_one("details summary .collapsed") for cell in cells]
    assert [fold and fold.get_text() for fold in folds] == [
        "Show the imports",
        None,
        None,
    ]
    assert not page(book, "book/page.html").select(".chapter-head")


def test_words_are_tokens_and_names_are_code():
    """A name that the page's code uses is code; so is one with capitals within."""
    page = new_document("a page")
    page += nodes.literal_block(
        "", "import torch\nmask = torch.ones(2).tril()", language="ipython3"
    )
    page += nodes.literal_block("", "Fischen")  # an output
    code = names_of(page)
    assert {"mask", "tril", "ones", "torch"} <= code
    assert code.isdisjoint({"likes", "Katze", "Fischen", "is"})
    assert WORD.fullmatch("Katze")
    assert not WORD.fullmatch("LambdaLR") and not WORD.fullmatch("d_model")


def test_names_lead_to_the_reference(book):
    """In code, what is imported or exported by the page is linked the first time in a cell."""
    entry = "../book/api.html#annotated_transformer.adding.add"
    for name, expected in (("07_adding", ["add"]), ("A_using", ["add", "plus"])):
        links = page(book, f"notebooks/{name}.html").select("div.cell a.code-link")
        assert sorted(link.get_text() for link in links) == expected
        assert {link["href"] for link in links} == {entry}


def test_lines_of_code():
    """Comments, docstrings and empty lines are none; a statement over two lines is two."""
    assert code_lines(MODULE) == 6
    assert code_lines("x = (  # one\n    1\n)\n\n# two\n") == 3


def test_launch_buttons_open_the_notebook(book):
    """Colab and Binder get the address of this very notebook, as readers have it."""
    chapter = page(book, "notebooks/07_adding.html")
    links = {tag.get("href", "") for tag in chapter.find_all("a")}
    name = ADDRESS.removeprefix("https://github.com/")
    colab = "https://colab.research.google.com/github"
    assert f"{colab}/{name}/blob/readers/notebooks/07_adding.ipynb" in links
    binder = f"https://mybinder.org/v2/gh/{name}/readers?urlpath=lab/tree/notebooks/07_adding.ipynb"
    assert binder in links and ADDRESS in links
    assert ADDRESS in chapter.article.get_text()  # is filled in


def test_class_entries():
    """A class shows its arguments, from `__init__` or from fields, and its public methods."""
    text = "\n".join(describe_class(ast.parse(CLASS).body[0], CLASS.splitlines()))
    assert "{py:class} A(x: int)" in text
    assert "{py:method} load(path)\n:classmethod:" in text and "_own" not in text
    text = "\n".join(describe_class(ast.parse(FIELDS).body[0], FIELDS.splitlines()))
    assert "{py:class} C(n: int, m: float=0.1)" in text and "- `m`: A rate." in text


def test_the_search_knows_sections_and_names(book):
    """Each section is an entry with its own text; so is each name of the reference."""
    script = (book / "_build" / "html" / "_static" / "search_data.js").read_text(
        encoding="utf-8"
    )
    data = json.loads(script[script.index('{"pages"') : script.rindex(", {Stemmer}")])
    pages = [page["address"] for page in data["pages"]]
    entries = {
        (pages[entry["page"]], entry["anchor"]): entry for entry in data["entries"]
    }
    chapter = entries["notebooks/A_using.html", ""]
    assert chapter["title"] == "Using"
    assert chapter["number"] == "A"
    assert "Twice" not in chapter["text"]
    section = entries["notebooks/A_using.html", "twice"]
    assert section["number"] == "A.1"
    assert section["text"].startswith("See the formula")
    entry = entries["book/api.html", "annotated_transformer.adding.add"]
    assert entry["title"] == "add" and entry["text"].startswith("Add two numbers")


def test_formulas_are_typeset(book):
    """A formula is there as text and as MathML; a wrong one is an error."""
    formula = page(book, "notebooks/07_adding.html").select_one("div.math")
    assert formula.select_one(".eqno").get_text().startswith("(7.1)")
    assert formula.select_one("math mo").get_text() == "+"
    assert formula.select_one(".katex-html").get_text() == "a+b"
    with pytest.raises(JSEvalException, match="ParseError"):
        typeset(r"\frac{1}", display=True)


def test_the_book_holds_every_notebook_in_order():
    """Each once; chapters, then appendices, in parts that are numbered."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    stems = []
    for part in toc["parts"]:
        for entry in part["chapters"]:
            folder, _, stem = entry["file"].rpartition("/")
            if folder == "notebooks":
                assert part.get("numbered"), stem
                stems.append(stem)
    assert stems == [chapter.script.stem for chapter in chapters()]
