"""The chapters' figures that ask "what if": recorded pictures, until the reader loads the model.

`:::{what-if} NAME` holds the caption and, as its last paragraph, what a notebook says in its place.
"""

import json
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from book.site.stills import RECORDED, json_script, still
from book.site.translator import LANGUAGES, model_settings
from tools.web_model import SHOWN

ANSWERS = RECORDED / "what_if.json"
LABELS = {"neighbors": "Word"}  # of the field; of others, the language


class WhatIf(SphinxDirective):
    """`{what-if}`: a figure with its caption, its number, and what the script needs."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        for path in (ANSWERS, SHOWN / "model.safetensors"):
            self.env.note_dependency(str(path))
        answers = json.loads(ANSWERS.read_text(encoding="utf-8"))
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        caption, *_ = content.children  # the rest is for notebooks
        figure = nodes.figure()
        figure += nodes.raw("", live(name, answers[name]), format="html")
        figure += nodes.caption("", "", *caption.children)
        self.options["name"] = f"fig-what-if-{name}"
        self.add_name(figure)
        return [figure]


def live(name: str, recorded: dict[str, Any]) -> str:
    """Return the picture, and the data for the script."""
    picture = still("whatif", name, recorded, LANGUAGES)
    shown = {
        "figure": name,
        "text": recorded["text"],
        "start": recorded.get("start"),
        "label": LABELS.get(name, "German"),
    }
    return (
        '<figure class="book-translator what-if" data-module="whatif">'
        f'<div class="what-if-still">{picture}</div>'
        f"{json_script(model_settings() | shown)}</figure>"
    )
