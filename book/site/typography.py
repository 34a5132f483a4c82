"""What browsers do not do by themselves: keep a sign beside its formula, scroll wide tables, and
set a note beside what it belongs to.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx

OPENING = re.compile(r"[(\[“‘]+$")
BETWEEN_COLUMNS = re.compile(r"\S {2,}\S")
CLOSING = re.compile(r"^(?:[.,;:!?)\]”’]+|-\w+|s\b)")


def keep_together(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put each formula with its signs into a span that does not break."""
    for formula in list(doctree.findall(nodes.math)):
        before = neighbor(formula, -1)
        after = neighbor(formula, 1)
        opening = OPENING.search(before.astext()) if before else None
        closing = CLOSING.search(after.astext()) if after else None
        if not opening and not closing:
            continue
        span = nodes.inline(classes=["nobreak"])
        formula.replace_self(span)
        span += formula
        if before and opening:
            span.insert(0, nodes.Text(opening.group()))
            text = before.astext()[: opening.start()]
            before.parent.replace(before, nodes.Text(text))
        if after and closing:
            span += nodes.Text(closing.group())
            text = after.astext()[closing.end() :]
            after.parent.replace(after, nodes.Text(text))


def neighbor(node: nodes.Node, step: int) -> nodes.Text | None:
    """Return the text next to a node, if what is there is text."""
    siblings = node.parent.children
    index = siblings.index(node) + step
    if not 0 <= index < len(siblings):
        return None
    sibling = siblings[index]
    return sibling if isinstance(sibling, nodes.Text) else None


def let_columns_scroll(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Mark what a cell has printed in columns: long lines of it scroll, where others wrap."""
    for block in doctree.findall(nodes.literal_block):
        lines = block.astext().splitlines()
        rows = [line for line in lines if BETWEEN_COLUMNS.search(line)]
        if "output" in block["classes"] and len(rows) >= 3:
            block["classes"].append("columns")


def set_notes_beside(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Join each margin note to the block before it, beside which a wide screen sets it."""
    for note in list(doctree.findall(nodes.sidebar)):
        if "margin" not in note["classes"]:
            continue
        parent = note.parent
        index = parent.index(note)
        pair = nodes.container(classes=["noted"])
        if index and not isinstance(parent[index - 1], nodes.title):
            pair += parent.pop(index - 1)
        aside = nodes.container(classes=["note-beside"])
        aside += [child for child in note if not isinstance(child, nodes.title)]
        pair += aside
        parent.replace(note, pair)
