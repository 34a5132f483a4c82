"""The site's extension: captions, links, numbers, API reference and scripts, on a small book.

The chapter's module imports something that does not exist, so reading it must be enough.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import nbformat
import pytest
import yaml

pytest.importorskip("jupyter_book")
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document
from fontTools.ttLib import TTFont
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from py_mini_racer import JSEvalException

from book.site.accessible import repair_body
from book.site.api import describe_class, docstring
from book.site.assets import without_unused_scripts
from book.site.formulas import has_lines, typeset
from book.site.heads import only_imports, table
from book.site.links import meanings
from book.site.numbers import (
    DECODED,
    PLACEHOLDER,
    code_lines,
    excerpt,
    number,
    table_rows,
)
from book.site.pictures import ShowPictures
from book.site.references import end_sentence
from book.site.search import without_tex
from book.site.tokens import WORD, names_of
from book.site.typography import keep_together
from tools.chapters import KERNEL, ROOT, chapters
from tools.package import defined_names, label_of, module_of, modules

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
BARE_LINKS = 60  # from notebooks to another as a whole, by its topic
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
        new_code_cell("total = add(1) + add(2)\nprint(total.add)", id="demo"),
    ]
    return new_notebook(cells=cells, metadata=nbformat.from_dict(KERNEL))


PAGE = """# A page

## A section

See [](../notebooks/A_using.ipynb#twice), [its use](../notebooks/A_using.ipynb#twice)
([again](../notebooks/A_using.ipynb#twice)) and [](../notebooks/A_using.ipynb).

:::{margin}
An aside.
:::
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
    """A built page."""
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


def test_a_note_stands_beside_its_paragraph(book):
    """A margin note shares a box with the paragraph before it, which comes first when read."""
    box = page(book, "book/page.html").select_one("#a-section > .noted")
    paragraph, note = box.find_all(["p", "div"], recursive=False)
    assert paragraph.get_text().startswith("See A.1") and "note-beside" in note["class"]
    assert note.get_text().strip() == "An aside."


def test_after_a_question_comes_no_full_stop():
    """A title that asks ends the sentence."""
    paragraph = nodes.paragraph()
    paragraph += [
        nodes.reference("", "Why?"),
        nodes.Text(". Then"),
        nodes.reference("", "This"),
    ]
    paragraph += nodes.Text(".")
    for link in list(paragraph.findall(nodes.reference)):
        end_sentence(link)
    assert paragraph.astext() == "Why? ThenThis."


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
    """Minutes of what is not folded, sections of the paper, kind and Colab; imports are folded."""
    line = page(book, "notebooks/A_using.html").select_one("p.chapter-head")
    facts = [fact.get_text() for fact in line.select(".fact")]
    assert facts == ["5 minutes", "section 3.1 of the paper", "appendix"]
    assert line.select_one("a.colab-button")["href"].endswith(
        "/notebooks/A_using.ipynb"
    )
    cells = page(book, "notebooks/07_adding.html").select("div.cell")
    folds = [cell.select_one("details summary .collapsed") for cell in cells]
    assert [fold and fold.get_text() for fold in folds] == [
        "Show the imports",
        None,
        None,
    ]
    assert not page(book, "book/page.html").select(".chapter-head")


def test_what_counts_as_reading():
    """Only what imports and nothing else is folded; what is needed comes before."""
    assert only_imports("import a\nfrom b import c") and not only_imports(
        "import a\na()"
    )
    assert not only_imports("") and not only_imports("not Python")
    rows = table(ROOT)
    assert rows
    for label, row in rows.items():
        assert all(int(need) < int(label) for need in row["needs"]), label


def test_what_others_read_about_a_page(book):
    """Description, card, canonical address and site map; the root says what it is."""
    base = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["html"][
        "baseurl"
    ]
    built = page(book, "notebooks/A_using.html")
    facts = {
        tag.get("property") or tag.get("name"): tag["content"]
        for tag in built.select("meta[content]")
    }
    assert facts["description"] == "This page shows how one function is used."
    assert (
        facts["og:title"].startswith("A Using")
        and facts["og:image"] == f"{base}_static/card.png"
    )
    canonical = f"{base}notebooks/A_using.html"
    assert (
        built.select_one("link[rel=canonical]")["href"] == facts["og:url"] == canonical
    )
    following = page(book, "notebooks/07_adding.html").select_one(
        "a.right-next .prev-next-about"
    )
    assert following.get_text() == "This page shows how one function is used."
    html = book / "_build" / "html"
    assert (html / "_static" / "card.png").read_bytes().startswith(b"\x89PNG")
    assert f"<loc>{canonical}</loc>" in (html / "sitemap.xml").read_text()
    assert (
        page(book, "book/api.html").title.get_text()
        == page(book, "index.html").title.get_text()
    )
    root = page(book, "index.html")
    assert (
        root.html["lang"] == "en" and root.title and root.a["href"] == "book/api.html"
    )
    lost = page(book, "404.html")
    assert lost.select_one("article form[role=search], article form.bd-search")
    path = urlsplit(base).path
    addresses = [tag.get("href") or tag["src"] for tag in lost.select("[href], [src]")]
    assert all(a.startswith((path, "https://", "#")) for a in addresses), addresses


def test_markup_of_others_is_repaired():
    """Each repair does what its rule asks for, and leaves the rest."""
    head = '<th class="head"><p>a</p></th>'
    line = '<span class="sig-line">'
    cases = {
        '<summary aria-label="Toggle hidden content">a': "<summary>a",
        '<div role="list" class="citation-list">': '<div class="citation-list">',
        f'<th class="head"><p></p></th>{head}': f"<td></td>{head}",
        "<dl>\n<dd>a,</dd>\n<dd>b</dd>\n</dl>": f"{line}a,</span>\n{line}b</span>\n",
        "<dl>\n<dt>a</dt><dd>b</dd>\n</dl>": "<dl>\n<dt>a</dt><dd>b</dd>\n</dl>",
    }
    for original, repaired in cases.items():
        context = {"body": original}
        repair_body(None, "", "", context, None)
        assert context["body"] == repaired


def test_references_in_the_reference_part_lead_to_sections():
    """Of links to chapters, those that have no anchor are few, and none is in the reference."""
    bare = re.compile(r"\]\((?:\.\./notebooks/|/notebooks/)?[0-9A-Z]+_\w+\.ipynb\)")
    reference = (
        "mistakes",
        "departures",
        "notation",
        "glossary",
        "questions",
        "troubleshooting",
        "messages",
    )
    for name in reference:
        text = (ROOT / "book" / f"{name}.md").read_text(encoding="utf-8")
        assert not bare.findall(text.partition("\n## ")[2]), name
    scripts = [chapter.script.read_text(encoding="utf-8") for chapter in chapters()]
    assert sum(len(bare.findall(text)) for text in scripts) <= BARE_LINKS


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


def test_meanings_of_names():
    """Imports lead to where a name is at home; variables and arguments are no such names."""
    imports = "from annotated_transformer import a\nfrom x.y import b as c\n"
    codes = [f"{imports}d = lambda e: 0\n", "not Python", "def f(g): ..."]
    named, variables = meanings(codes, {"m": ["a"]})
    assert named == {"a": "annotated_transformer.m.a", "c": "x.y.b"}
    assert variables == {"d", "e", "g"}


def test_every_number_of_the_pages_is_known():
    """A page that asks for one which is not there would not be built."""
    asked = set()
    for page in (ROOT / "book").glob("*.md"):
        for placeholder in PLACEHOLDER.finditer(page.read_text(encoding="utf-8")):
            asked.add((placeholder["name"], placeholder["format"] or ""))
    asked -= {("repository", ""), ("site", "")}
    assert len(asked) > 50
    for name, form in asked:
        assert format(number(ROOT, name), form), name
    for name in ("code.poetry", "nothing.at_all", "code"):
        with pytest.raises(LookupError):
            number(ROOT, name)


def test_lines_of_code():
    """Comments, docstrings and empty lines are none; a statement over two lines is two."""
    assert code_lines(MODULE) == 6
    assert code_lines("x = (  # one\n    1\n)\n\n# two\n") == 3


def test_a_row_shortens_what_repeats_itself():
    """So it does what the log has cut off, and says so."""
    assert excerpt(" a dog.") == "a dog."
    assert excerpt("no " + 57 * "g") == "no gggggg…"
    assert excerpt(
        "One, two, three, four, five, six, seven, eight, nine, ten el"
    ).endswith("nine, ten …")
    record = {"what": "no </s>", "bleu": 0.5, "loops": 1, "endless": 2, "said": "a."}
    assert table_rows(DECODED, [record]) == "| no `</s>` | 0.5 | 1 | 2 | *a.* |"


def test_the_address_is_filled_in(book):
    text = page(book, "notebooks/07_adding.html").article.get_text()
    assert ADDRESS in text and "{{" not in text


def test_launch_buttons_open_the_notebook(book):
    """Colab and Binder get the address of this very notebook, as readers have it."""
    links = {
        tag.get("href", "")
        for tag in page(book, "notebooks/07_adding.html").find_all("a")
    }
    name = ADDRESS.removeprefix("https://github.com/")
    colab = "https://colab.research.google.com/github"
    assert f"{colab}/{name}/blob/readers/notebooks/07_adding.ipynb" in links
    binder = f"https://mybinder.org/v2/gh/{name}/readers?urlpath=lab/tree/notebooks/07_adding.ipynb"
    assert binder in links and ADDRESS in links


def test_scripts_come_along(book):
    """Neither charts nor icons need a script of others, and formulas need fonts alone."""
    static = book / "_build" / "html" / "_static"
    assert not list(static.rglob("*vega*"))
    font = TTFont(static / "katex" / "fonts" / "KaTeX_Main-Regular.woff2")
    assert {"a", "Z", "+"} <= {chr(code) for code in font.getBestCmap()}
    assert len(font.getBestCmap()) < 200  # what pages show
    style = (static / "styles" / "pydata-sphinx-theme.css").read_text(encoding="utf-8")
    assert ".bd-article" in style and ".accordion-button" not in style
    scripts = [
        tag["src"]
        for tag in page(book, "notebooks/07_adding.html").select("script[src]")
    ]
    assert not list(static.rglob("katex*.js")) and not list(static.rglob("*.map"))
    assert not any("fontawesome" in script or "//" in script for script in scripts)


def test_class_entries():
    """A class shows its arguments, from `__init__` or from fields, and its public methods."""
    text = "\n".join(describe_class(ast.parse(CLASS).body[0], CLASS.splitlines()))
    assert "{py:class} A(x: int)" in text
    assert "{py:method} load(path)\n:classmethod:" in text
    assert "{py:method} one(x)\n:staticmethod:" in text
    assert "{py:property} size\n:type: int" in text
    assert "_own" not in text
    note = "# A rate, `<s>` or <s>."
    fields = (
        f"@dataclass(frozen=True)\nclass C:\n    n: int\n    é: float = 0.1  {note}\n"
    )
    head, *body = describe_class(ast.parse(fields).body[0], fields.splitlines())
    assert "{py:class} C(n: int, é: float=0.1)" in head
    assert [line for line in body if line.startswith("- ")] == [
        r"- `é`: A rate, `<s>` or \<s>."
    ]


def test_docstring_sections_end_where_the_indentation_ends():
    """What follows a section is a paragraph of its own."""
    text = "Do it.\n\n    Args:\n        a: one,\n            on two lines."
    text += "\n\n    Returns the rest."
    function = ast.parse(f"def f():\n    '''{text}\n    '''").body[0]
    expected = "Do it.\n\n**Args**\n\n- `a`: one, on two lines.\n\nReturns the rest."
    assert "\n".join(docstring(function)) == expected


def test_punctuation_stays_with_its_formula():
    """Signs that touch a formula share a span with it; words do not."""
    pieces = ["so (", "a", "), and ", "b", " or ", "c", "-th."]
    children = [nodes.math("", x) if len(x) == 1 else nodes.Text(x) for x in pieces]
    page = new_document("page")
    page += nodes.paragraph("", "", *children)
    keep_together(None, page, "page")
    spans = [span.astext() for span in page.findall(nodes.inline)]
    assert spans == ["(a),", "c-th"]
    assert page.astext() == "".join(pieces)


def test_a_picture_of_no_figure_is_an_error():
    """The build stops at a name that is mistyped, and says on which page."""
    document = new_document("page")
    std = {"anonlabels": {"a-section": ("chapter", "a-section")}}
    document.settings.env = SimpleNamespace(
        docname="page",
        domaindata={"std": std},
        get_doctree=lambda name: new_document(name),
        app=None,
        config=None,
    )
    show = ShowPictures(document)
    for name in ("fig-mistyped", "a-section"):
        with pytest.raises(ValueError, match=f"page: .*{name}"):
            show.content_of(name)


def test_names_and_modules(tmp_path):
    """Names of definitions; modules in the order of chapters, only those that exist."""
    statements = ast.parse(
        "def f(): ...\nclass C: ...\nA, B = 1, 2\nD: int = 3\nimport x"
    ).body
    assert [defined_names(s) for s in statements] == [
        ["f"],
        ["C"],
        ["A", "B"],
        ["D"],
        [],
    ]
    names = [
        "notebooks/03_attention",
        "notebooks/A_files",
        "book/index",
        "notebooks/attention",
    ]
    assert [module_of(name) for name in names] == [
        "attention",
        "files",
        None,
        None,
    ]
    assert [label_of(name) for name in names] == ["3", "A", None, None]
    for name in (
        "notebooks/02_b.py",
        "notebooks/A_y.py",
        "notebooks/01_z.py",
        "notebooks/03_c.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "annotated_transformer").mkdir(parents=True)
    for name in ("b.py", "y.py", "z.py"):
        (tmp_path / "annotated_transformer" / name).touch()
    assert [module.name for module in modules(tmp_path)] == [
        "z",
        "b",
        "y",
    ]


def test_only_unused_scripts_are_taken_out():
    """Other scripts stay."""
    icons = '<script defer src="_static/scripts/fontawesome.js?digest=1"></script>'
    index = '<script src="../searchindex.js"></script>'
    head = f'{icons}<script src="a.js"></script>{index}'
    assert without_unused_scripts(head) == '<script src="a.js"></script>'


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
    assert not (book / "_build" / "html" / "searchindex.js").exists()


def test_formulas_are_typeset(book):
    """A formula is there as text and as MathML, and breaks before "="; a wrong one is an error."""
    formula = page(book, "notebooks/07_adding.html").select_one("div.math")
    assert formula.select_one(".eqno").get_text().startswith("(7.1)")
    assert formula.select_one("math mo").get_text() == "+"
    assert formula.select_one(".katex-html").get_text() == "a+b"
    broken = BeautifulSoup(typeset("a = b", display=True), "lxml")
    assert [part.get_text() for part in broken.select(".katex-base")] == ["a", "=b"]
    with pytest.raises(JSEvalException, match="ParseError"):
        typeset(r"\frac{1}", display=True)


def test_the_rows_of_a_matrix_are_no_lines_of_a_formula():
    """Such a formula may break on a phone, at its signs."""
    assert has_lines(r"a \\ b")
    assert not has_lines(r"x \begin{pmatrix} a \\ b \end{pmatrix} = y")


@pytest.mark.parametrize(
    ("formula", "plain"),
    [
        (r"d_\text{model}", "d_model"),
        (r"\sqrt{d_k}", "sqrt(d_k)"),
        (r"W^O", "W^O"),
        (r"-10^{9}", "-10^9"),
        (r"\beta_2", "beta_2"),
        (r"\frac{Q K^\top}{\sqrt{d_k}}", "Q K^T / sqrt(d_k)"),
        (r"\tfrac12 \ne \infty", "1 / 2 ≠ ∞"),
        (r"1/\sqrt{d_\text{model} \cdot n}", "1/sqrt(d_model · n)"),
    ],
)
def test_formulas_are_found_as_they_are_typed(formula, plain):
    """No backslash, brace or command stands between a reader and a formula."""
    assert without_tex(formula) == plain


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
