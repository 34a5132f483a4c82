"""Tokens look like tokens: a word of a sentence in code type is a chip, and so is it in figures.

`likes` is a token, `tril` is code. What a page's own code uses, Python or the package is code, but
for the words of the running example; every other plain word, and a special token, is a token. On
pages that speak of programs, only those of the example and special ones are.
"""

import ast
import builtins
import html
import keyword
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from book.site.links import statements
from tools.package import label_of, module_of, modules, public_names

EXAMPLE = frozenset("the black cat likes fish den die schwarze Katze mag Fisch".split())  # noqa: SIM905
SPECIAL = re.compile(r"</?(?:s|pad|unk)>|[.,?!]")
WORD = re.compile(r"[^\W\d_][^\W\d_A-Z]*")  # no capitals within, as in LambdaLR
# Python's words, too, but we quote them as words
ENGLISH = {"is", "in", "and", "not", "with"}
PYTHON = {*keyword.kwlist, *dir(builtins), "torch", "numpy", "self"} - ENGLISH
# Presets, and names of other programs' code, which no cell of the page uses
OTHER_CODE = (
    "tiny small base big captions everyday view tokenizers nan count memory meta generate "
    "none char false floor lc yes sacrebleu"
)
# Names beside the rows of a chart, or above its columns
AXIS = re.compile(r"(?:<text [^>]*translate\((?:-5,|[\d.]+,-5\))[^>]*>[^<]*</text>)+")
LABEL = re.compile(r"<text [^>]*>([^<]*)")
LAST_CHAPTER = 25  # later ones speak of programs, not of words


def mark_tokens(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give the tokens of a page's prose the class `token`."""
    label = label_of(docname) or ""
    speaks_of_words = label.isdigit() and int(label) <= LAST_CHAPTER
    code = names_of(doctree) | package_names(Path(app.srcdir)) | {module_of(docname)}

    def is_token(text: str) -> bool:
        is_word = speaks_of_words and WORD.fullmatch(text) and text not in code
        return text in EXAMPLE or bool(is_word or SPECIAL.fullmatch(text))

    known = {*EXAMPLE}
    for literal in doctree.findall(nodes.literal):
        if is_token(literal.astext()):
            literal["classes"].append("token")
            known.add(literal.astext())

    def mark_labels(axis: re.Match[str]) -> str:
        """Mark the tokens among the labels of an axis, if a token of the prose is among them."""
        names = {html.unescape(name) for name in LABEL.findall(axis[0])}
        if known.isdisjoint(names):
            return axis[0]
        words = "|".join(
            re.escape(html.escape(name)) for name in filter(is_token, names)
        )
        return re.sub(rf"<text(?=[^>]*>(?:{words})<)", '<text class="token"', axis[0])

    for figure in doctree.findall(nodes.raw):
        figure[:] = [nodes.Text(AXIS.sub(mark_labels, figure.astext()))]


def names_of(doctree: nodes.document) -> set[str | None]:
    """Return all names in the Python code of a page."""
    names: set[str | None] = {*PYTHON, *OTHER_CODE.split()}
    for block in doctree.findall(nodes.literal_block):
        if "python" not in block.get("language", ""):
            continue  # an output
        for node in statements(block.astext()):
            match node:
                case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=name):
                    names.add(name)
                case ast.Attribute(attr=name) | ast.alias(name=name):
                    names.add(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
    return names


def package_names(root: Path) -> set[str]:
    """Return the names of the package's modules, and those that users import."""
    public = {name for names in public_names(root).values() for name in names}
    return public | {module.name for module in modules(root)}
