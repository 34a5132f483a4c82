"""What browsers do not do by themselves: keep a sign beside its formula, scroll wide images, and
set a note beside what it belongs to.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx

OPENING = re.compile(r"[(\[“‘]+$")
CLOSING = re.compile(r"^(?:[.,;:!?)\]”’]+|-\w+|s\b)")


def keep_together(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put each formula with its signs into a span that does not break."""
    for formula in list(doctree.findall(nodes.math)):
        before, after = neighbor(formula, -1), neighbor(formula, 1)
        opening = OPENING.search(before.astext()) if before else None
        closing = CLOSING.search(after.astext()) if after else None
        if opening or closing:
            span = nodes.inline(classes=["nobreak"])
            formula.replace_self(span)
            span += formula
            if before and opening:
                span.insert(0, nodes.Text(opening.group()))
                before.parent.replace(before, nodes.Text(before.astext()[: opening.start()]))
            if after and closing:
                span += nodes.Text(closing.group())
                after.parent.replace(after, nodes.Text(after.astext()[closing.end() :]))


def neighbor(node: nodes.Node, step: int) -> nodes.Text | None:
    """Return the text next to a node, if what is there is text."""
    siblings = node.parent.children
    place = siblings.index(node) + step
    found = siblings[place] if 0 <= place < len(siblings) else None
    return found if isinstance(found, nodes.Text) else None


def let_images_scroll(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put a figure's image into a box of its own, so that the caption does not scroll along."""
    for figure in doctree.findall(nodes.figure):
        for image in [child for child in figure.children if isinstance(child, nodes.image)]:
            box = nodes.container(classes=["image-box"])
            image.replace_self(box)
            box += image


def set_notes_beside(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Join each margin note to the block before it, beside which a wide screen sets it."""
    for note in [n for n in doctree.findall(nodes.sidebar) if "margin" in n["classes"]]:
        parent = note.parent
        place = parent.index(note)
        pair = nodes.container(classes=["noted"])
        block = nodes.container(classes=["note-beside"])
        block += [child for child in note.children if not isinstance(child, nodes.title)]
        if place and not isinstance(parent[place - 1], nodes.title):
            pair += parent.pop(place - 1)
        pair += block
        parent.replace(note, pair)
