"""Caption each exported cell with its package file, and link the caption to the source page."""

import ast
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from tools.package import PACKAGE, defined_names, module_of


def add_captions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the caption on top of each cell that carries the tag `export`."""
    module = module_of(docname)
    if module is None or app.builder.format != "html":
        return
    for cell in list(doctree.findall(nodes.container)):
        if "tag_export" in cell["classes"]:
            block = next(iter(cell.findall(nodes.literal_block)))
            address = source_address(app, docname, module, block.astext())
            cell.insert(0, caption(module, address))


def caption(module: str, address: str | None) -> nodes.container:
    """Build the caption; without an address it is plain text."""
    label: nodes.Node = nodes.literal("", f"{PACKAGE}/{module.replace('.', '/')}.py")
    if address:
        label = nodes.reference("", "", label, internal=True, refuri=address)
    return nodes.container(
        "", nodes.paragraph("", "", label), classes=["export-caption"]
    )


def source_address(app: Sphinx, docname: str, module: str, source: str) -> str | None:
    """Return the address, on this site, of the lines that the cell became."""
    listed: dict[str, Any] = getattr(app.env, "_viewcode_modules", {})
    entry = listed.get(f"{PACKAGE}.{module}")
    if not entry:
        return None
    page = app.builder.get_relative_uri(
        docname, f"_modules/{PACKAGE}/{module.replace('.', '/')}"
    )
    _, _, listed_names, *_ = entry
    for statement in ast.parse(source).body:
        for name in defined_names(statement):
            if name in listed_names:
                return f"{page}#{name}"
    return page
