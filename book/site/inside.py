"""The page "Look inside": one sentence through the whole machine; in chapter 11, one by hand.

The engine of the page computes the recorded sentence while the site is built, so that picture,
numbers and model cannot disagree. A page shows the picture; the numbers lie in a script of their
own, which comes when a reader does. What chapter 11 computes is so little that it stands in the
page; `tools.by_hand` records it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.site import stills
from book.site.live import LiveFigure
from book.site.translator import LANGUAGES, direction
from tools.inside import BY_HAND, lines_by_hand, lines_of_a_head
from tools.web_model import BACK, SHOWN, pack_folder, read_config, settings

SENTENCE = "Weißt du, wo der Bahnhof ist?"
START = 2  # the word that is shown at first
RECORDED_BY_HAND = stills.RECORDED / "by_hand.json"
UNITS = (
    stills.RECORDED / "units.json"
)  # of each network: the words at which its units fire


@cache
def example() -> dict[str, Any]:
    """Return what the page's model computes of the recorded sentence."""
    answer: dict[str, Any] = json.loads(stills.inside(pack_folder(SHOWN), SENTENCE))
    return answer | {"layers": read_config(SHOWN)["layers"]}


def write_data(app: Sphinx, exception: Exception | None) -> None:
    """Write the recorded sentence and the table of units as scripts, if a page shows them."""
    if exception or app.builder.format != "html" or not SHOWN.is_dir():
        return
    if "book/inside" not in app.env.found_docs:
        return
    units = json.loads(UNITS.read_text(encoding="utf-8"))
    for name, data in {"inside_example": example(), "inside_units": units}.items():
        text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
        target = Path(app.outdir) / "_static" / f"{name}.js"
        target.write_text(f"bookFigures.{name} = {text};\n", encoding="ascii")


class Inside(SphinxDirective):
    """`{inside}`: what stands in the figure, within `<figure data-module="inside">`."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(SHOWN / "model.safetensors"))
        return [nodes.raw("", figure(), format="html")]


def figure() -> str:
    """Return the still picture of the recorded sentence, and what the script needs."""
    answer = example()
    shown = {
        "directions": [direction(SHOWN), direction(BACK)],
        "text": SENTENCE,
        "start": START,
        "steps": len(answer["written"]),
        "pre_norm": read_config(SHOWN)["pre_norm"],
        "code": lines_of_a_head(),
        "units": True,
    }
    picture = stills.still("inside", answer, START, LANGUAGES)
    return picture + stills.json_script(settings(SHOWN) | shown)


class ByHand(LiveFigure):
    """`{by-hand}`: the figure of chapter 11, with its caption and its number."""

    def run(self) -> list[nodes.Node]:
        recordings = (RECORDED_BY_HAND, BY_HAND)
        return self.live_figure("fig-hand-inside", figure_by_hand(), recordings)


def figure_by_hand() -> str:
    """Return the still picture of the sentence at its last word, and all of its numbers."""
    answer = json.loads(RECORDED_BY_HAND.read_text(encoding="utf-8"))
    start = len(answer["written"]) - 1
    languages = ["", ""]  # those of the page
    shown = {
        "text": answer["text"],
        "example": answer,
        "start": start,
        "steps": len(answer["written"]),
        "layers": answer["layers"],
        "pre_norm": False,
        "directions": [{"languages": languages, "megabytes": 0}],
        "code": lines_by_hand(),
        "one_head": True,
    }
    picture = stills.still("inside", answer, start, languages)
    return (
        '<figure class="book-translator inside" data-module="inside">'
        f"{picture}{stills.json_script(shown)}</figure>"
    )
