"""References to sections carry their number: `[](#the-loop)` reads "18.7 The loop", and `[the
loop](#the-loop)` reads "the loop (18.7)".
"""

from posixpath import dirname, join, normpath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def number_references(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give each reference to a numbered section the number, and the title if it has no text."""
    here = app.builder.get_target_uri(docname)
    pages = {app.builder.get_target_uri(name): name for name in app.env.all_docs}
    for reference in list(doctree.findall(nodes.reference)):
        address, _, anchor = reference.get("refuri", "").partition("#")
        target = normpath(join(dirname(here), address)) if address else here
        if target not in pages or isinstance(reference.parent, nodes.title):
            continue
        anchor = reference.get("refid") or anchor
        entry = section_of(app.env, pages[target], anchor)
        if entry is not None:
            write_number(reference, entry)


def section_of(
    env: BuildEnvironment, docname: str, anchor: str
) -> nodes.reference | None:
    """Return the entry of a numbered section in the contents of its page."""
    if not anchor:
        return None
    for entry in env.tocs[docname].findall(nodes.reference):
        if entry["anchorname"] == f"#{anchor}" and entry.get("secnumber"):
            return entry
    return None


def write_number(reference: nodes.Element, entry: nodes.reference) -> None:
    """Put the number of a section, and its title where there is no other text, into a reference."""
    if reference.astext() == entry.astext():
        reference.children = []
        reference += numbered(entry)
        end_sentence(reference)
        return
    number = written_number(entry)
    in_parentheses = following(reference).startswith(")")  # one pair is enough
    text = f", {number}" if in_parentheses else f"\N{NO-BREAK SPACE}({number})"
    reference += nodes.inline("", text, classes=["section-number"])


def written_number(entry: nodes.reference) -> str:
    """Return the number of a section as it is printed."""
    return ".".join(str(part) for part in entry["secnumber"])


def numbered(entry: nodes.reference) -> list[nodes.Node]:
    """Return number and title of a section."""
    text = f"{written_number(entry)} "
    number = nodes.inline("", text, classes=["section-number"])
    title = [child.deepcopy() for child in entry.children]
    return [number, *title]


def end_sentence(reference: nodes.Element) -> None:
    """After a title that asks, a full stop would be one sign too many."""
    after = following(reference)
    if reference.astext().endswith("?") and after.startswith("."):
        parent = reference.parent
        full_stop = parent[parent.index(reference) + 1]
        parent.replace(full_stop, nodes.Text(after[1:]))


def following(reference: nodes.Element) -> str:
    """Return the text that comes next."""
    siblings = reference.parent.children
    index = siblings.index(reference) + 1
    return siblings[index].astext() if index < len(siblings) else ""
