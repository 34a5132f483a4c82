"""In code, names of the package link to their entry in the API reference.

A name is linked where it can mean nothing else: the page imports it, or its chapter exports it, and
no variable or argument on the page has that name. Nothing is imported to find this out.
"""

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from tools.package import PACKAGE, module_of, public_names

NAME = re.compile(r'(?<!<span class="o">\.</span>)<span class="n">(\w+)</span>')


def find_targets(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Note in each code block of a page which names lead where."""
    blocks = [b for b in doctree.findall(nodes.literal_block) if "python" in b.get("language", "")]
    entries: dict[str, Any] = app.env.domains["py"].objects
    named, variables = meanings(
        [block.astext() for block in blocks], public_names(Path(app.srcdir))
    )
    module = f"{PACKAGE}.{module_of(docname)}"
    own = {e.rpartition(".")[2]: e for e in entries if e.rpartition(".")[0] == module}
    targets = {
        name: f"{app.builder.get_relative_uri(docname, entries[entry].docname)}#{entry}"
        for name, entry in (own | named).items()
        if entry in entries and name not in variables
    }
    for block in blocks:
        block["targets"] = targets


def meanings(codes: list[str], public: dict[str, list[str]]) -> tuple[dict[str, str], set[str]]:
    """Return what a page imports from the package, by name, and the names of its variables."""
    homes = {name: f"{PACKAGE}.{home}" for home, names in public.items() for name in names}
    named, variables = {}, set()
    for code in codes:
        with suppress(SyntaxError):  # a block need not be whole
            for node in ast.walk(ast.parse(code)):
                match node:
                    case ast.ImportFrom(module=str(module), names=aliases):
                        for alias in aliases:
                            home = homes.get(alias.name) if module == PACKAGE else module
                            named[alias.asname or alias.name] = f"{home}.{alias.name}"
                    case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                        variables.add(name)
    return named, variables


def visit_code(translator: HTML5Translator, node: nodes.literal_block) -> None:
    """Write a code block as Sphinx does, then put the links into it."""
    targets = dict(node.get("targets", {}))

    def linked(name: re.Match[str]) -> str:
        address = targets.pop(name[1], None)  # the first time only: readers tab through links
        return f'<a class="code-link" href="{address}">{name[0]}</a>' if address else name[0]

    try:
        HTML5Translator.visit_literal_block(translator, node)
    except nodes.SkipNode:
        translator.body[-1] = NAME.sub(linked, translator.body[-1])
        raise
