"""Caption each exported cell with its package file, and link the caption to the source page."""

import ast

from docutils import nodes
from sphinx.application import Sphinx

from book.site.api import is_described
from tools.package import PACKAGE, module_of


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


def caption(module: str, address: str) -> nodes.container:
    """Build the caption, a link."""
    label = nodes.literal("", f"{PACKAGE}/{module.replace('.', '/')}.py")
    link = nodes.reference("", "", label, internal=True, refuri=address)
    return nodes.container(
        "", nodes.paragraph("", "", link), classes=["export-caption"]
    )


def source_address(app: Sphinx, docname: str, module: str, source: str) -> str:
    """Return the address, on this site, of the lines that the cell became."""
    page = app.builder.get_relative_uri(
        docname, f"_modules/{PACKAGE}/{module.replace('.', '/')}"
    )
    for statement in ast.parse(source).body:
        if is_described(statement):
            return f"{page}#{statement.name}"
    return page
