"""References to sections carry their number: `[](#the-loop)` reads "18.7 The loop", and `[the
loop](#the-loop)` reads "the loop (18.7)".
"""

from posixpath import dirname, join, normpath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def number_references(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give each reference to a numbered section the number, and the title if it has no text."""
    here = app.builder.get_target_uri(docname)
    pages = {app.builder.get_target_uri(name): name for name in app.env.all_docs}
    for reference in list(doctree.findall(nodes.reference)):
        address, _, anchor = reference.get("refuri", "").partition("#")
        page = pages.get(normpath(join(dirname(here), address)) if address else here)
        entry = section_of(app.env, page, reference.get("refid") or anchor) if page else None
        if entry is not None and not isinstance(reference.parent, nodes.title):
            write_number(reference, entry)


def section_of(env: BuildEnvironment, docname: str, anchor: str) -> nodes.reference | None:
    """Return the entry of a numbered section in the contents of its page."""
    for entry in env.tocs[docname].findall(nodes.reference):
        if anchor and entry["anchorname"] == f"#{anchor}" and entry.get("secnumber"):
            return entry
    return None


def write_number(reference: nodes.Element, entry: nodes.reference) -> None:
    """Put the number of a section, and its title where there is no other text, into a reference."""
    number = ".".join(map(str, entry["secnumber"]))
    if reference.astext() == entry.astext():
        reference.children = []
        reference += numbered(entry)
        end_sentence(reference)
    else:
        inside = following(reference).startswith(")")  # one pair of parentheses is enough
        text = f", {number}" if inside else f"\N{NO-BREAK SPACE}({number})"
        reference += nodes.inline("", text, classes=["section-number"])


def numbered(entry: nodes.reference) -> list[nodes.Node]:
    """Return number and title of a section."""
    number: tuple[Any, ...] = tuple(entry["secnumber"])
    sign = nodes.inline("", f"{'.'.join(map(str, number))} ", classes=["section-number"])
    return [sign, *(child.deepcopy() for child in entry.children)]


def end_sentence(reference: nodes.Element) -> None:
    """After a title that asks, a full stop would be one sign too many."""
    after = following(reference)
    if reference.astext().endswith("?") and after.startswith("."):
        parent = reference.parent
        parent.replace(parent[parent.index(reference) + 1], nodes.Text(after[1:]))


def following(reference: nodes.Element) -> str:
    """Return the text that comes next."""
    siblings = reference.parent.children
    after = siblings[siblings.index(reference) + 1 :][:1]
    return after[0].astext() if after else ""
