"""The chapters' figures that ask "what if": recorded pictures, until the reader loads the model."""

import json
from typing import Any

from docutils import nodes

from book.site.live import LiveFigure
from book.site.stills import RECORDED, json_script, still
from book.site.translator import LANGUAGES, direction
from tools.web_model import SHOWN, settings

ANSWERS = RECORDED / "what_if.json"
LABELS = {"neighbors": "Word"}  # of the field; of others, the language


class WhatIf(LiveFigure):
    """`{what-if} NAME`: a figure with its caption, its number, and what the script needs."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        answers = json.loads(ANSWERS.read_text(encoding="utf-8"))
        recordings = (ANSWERS, SHOWN / "model.safetensors")
        html = live(name, answers[name])
        return self.live_figure(f"fig-what-if-{name}", html, recordings)


def live(name: str, recorded: dict[str, Any]) -> str:
    """Return the picture, and the data for the script."""
    picture = still("whatif", name, recorded, LANGUAGES)
    shown = direction(SHOWN) | {
        "figure": name,
        "text": recorded["text"],
        "start": recorded.get("start"),
        "label": LABELS.get(name, "German"),
    }
    return (
        '<figure class="book-translator what-if" data-module="whatif">'
        f'<div class="what-if-still">{picture}</div>'
        f"{json_script(settings(SHOWN) | shown)}</figure>"
    )
