"""The translator of the first page: still, it shows a recorded translation, which needs no script.

The book's own model lies beside the site's scripts, and comes when the reader asks for it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.site.stills import RECORDED, json_script, still
from tools.web_model import SHOWN, pack_folder, settings

TRANSLATIONS = RECORDED / "translations.json"
LANGUAGES = ["de", "en"]  # of source and target
START = 2  # the step that is shown at first


@cache
def packed() -> str:
    """The script with the model."""
    return f"bookFigures.model = {pack_folder(SHOWN)};\n"


def write_model(app: Sphinx, exception: Exception | None) -> None:
    """Write the model as a script, unless it is there already."""
    if exception or app.builder.format != "html" or not SHOWN.is_dir():
        return
    target = Path(app.outdir) / "_static" / "model.js"
    if not target.exists() or target.read_text(encoding="ascii") != packed():
        target.write_text(packed(), encoding="ascii")


def model_settings() -> dict[str, Any]:
    """Return what a figure's script must know of the model before it is loaded."""
    megabytes = f"{len(packed()) / 1e6:.1f}"
    return settings(SHOWN) | {"megabytes": megabytes, "languages": LANGUAGES}


class Translator(SphinxDirective):
    """`{translator}`: what stands in the figure, within `<figure data-module="translator">`."""

    def run(self) -> list[nodes.Node]:
        for path in (TRANSLATIONS, SHOWN / "model.safetensors"):
            self.env.note_dependency(str(path))
        examples = json.loads(TRANSLATIONS.read_text(encoding="utf-8"))
        return [nodes.raw("", figure(examples), format="html")]


def figure(examples: list[dict[str, Any]]) -> str:
    """Return the still picture of the first example, and the data of all for the script."""
    picture = still("translator", examples[0], START, LANGUAGES)
    shown = {
        "label": "German",
        "start": START,
        "inside": "inside.html",
        "examples": examples,
    }
    return picture + json_script(model_settings() | shown)
