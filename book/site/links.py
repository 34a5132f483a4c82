"""In code, names of the package link to their entry in the API reference.

A name is linked where it can mean nothing else: the page imports it, or its chapter exports it, and
no variable or argument on the page has that name. Nothing is imported to find this out.
"""

import ast
import re
from collections.abc import Iterable, Iterator
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
    blocks = []
    for block in doctree.findall(nodes.literal_block):
        if "python" in block.get("language", ""):
            blocks.append(block)
    entries: dict[str, Any] = app.env.domains["py"].objects
    codes = [block.astext() for block in blocks]
    imported, variables = meanings(codes, public_names(Path(app.srcdir)))
    exported = own_names(f"{PACKAGE}.{module_of(docname)}", entries)
    targets = {}
    for name, entry in (exported | imported).items():
        if entry in entries and name not in variables:
            page = entries[entry].docname
            address = app.builder.get_relative_uri(docname, page)
            targets[name] = f"{address}#{entries[entry].node_id}"
    for block in blocks:
        block["targets"] = targets


def own_names(module: str, entries: Iterable[str]) -> dict[str, str]:
    """Return the entries of a module's own functions and classes, by name."""
    names = {}
    for entry in entries:
        home, _, name = entry.rpartition(".")
        if home == module:
            names[name] = entry
    return names


def meanings(
    codes: list[str], public: dict[str, list[str]]
) -> tuple[dict[str, str], set[str]]:
    """Return what a page imports from the package, by name, and the names of its variables."""
    homes: dict[str, str] = {}
    for module, names in public.items():
        homes |= dict.fromkeys(names, f"{PACKAGE}.{module}")
    imported: dict[str, str] = {}
    variables: set[str] = set()
    for code in codes:
        for node in statements(code):
            match node:
                case ast.ImportFrom(module=str(module), names=aliases):
                    for alias in aliases:
                        home = homes.get(alias.name) if module == PACKAGE else module
                        imported[alias.asname or alias.name] = f"{home}.{alias.name}"
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    variables.add(name)
    return imported, variables


def statements(code: str) -> Iterator[ast.AST]:
    """Yield all nodes of a block; one that is not whole has none."""
    with suppress(SyntaxError):
        yield from ast.walk(ast.parse(code))


def visit_code(translator: HTML5Translator, node: nodes.literal_block) -> None:
    """Write a code block as Sphinx does, then put the links into it."""
    targets = dict(node.get("targets", {}))

    def linked(name: re.Match[str]) -> str:
        address = targets.pop(name[1], None)  # once: readers tab through links
        if not address:
            return name[0]
        return f'<a class="code-link" href="{address}">{name[0]}</a>'

    try:
        HTML5Translator.visit_literal_block(translator, node)
    except nodes.SkipNode:
        translator.body[-1] = NAME.sub(linked, translator.body[-1])
        raise
