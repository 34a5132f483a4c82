"""The translator of the first page: still, it shows a recorded translation, which needs no script.

The book's own models lie beside the site's scripts, and one comes when the reader asks for it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.site.stills import RECORDED, json_script, still
from tools.examples import TRIALS
from tools.web_model import BACK, SHOWN, pack_folder, settings

TRANSLATIONS = RECORDED / "translations.json"
LANGUAGES = ["de", "en"]  # of source and target
NAMES = {"de": "German", "en": "English"}
SCRIPTS = {SHOWN: "model", BACK: "model_en_de"}  # the name under which each lies


@cache
def packed(folder: Path = SHOWN) -> str:
    """Return the script with a model."""
    return f"bookFigures.{SCRIPTS[folder]} = {pack_folder(folder)};\n"


def write_models(app: Sphinx, exception: Exception | None) -> None:
    """Write the models as scripts, unless they are there already."""
    if exception or app.builder.format != "html":
        return
    for folder, name in SCRIPTS.items():
        if not folder.is_dir():
            continue
        target = Path(app.outdir) / "_static" / f"{name}.js"
        if not target.exists() or target.read_text(encoding="ascii") != packed(folder):
            target.write_text(packed(folder), encoding="ascii")


def megabytes(folder: Path) -> str:
    """Return how much a reader loads."""
    return f"{len(packed(folder)) / 1e6:.1f}"


def direction(folder: Path) -> dict[str, Any]:
    """Return what a figure's script must know of a direction: its model and its languages."""
    languages = LANGUAGES if folder == SHOWN else LANGUAGES[::-1]
    return {
        "model": SCRIPTS[folder],
        "megabytes": megabytes(folder),
        "languages": languages,
        "label": NAMES[languages[0]],
    }


def sentences(folder: Path) -> dict[str, Any]:
    """Return the recorded examples of a direction, and the sentences to try a change on."""
    recorded = json.loads(TRANSLATIONS.read_text(encoding="utf-8"))
    trials = [
        {"name": trial.name, "text": trial.text, "options": trial.options}
        for trial in TRIALS[folder.name]
    ]
    return {"examples": recorded[folder.name], "trials": trials}


class Translator(SphinxDirective):
    """`{translator}`: what stands in the figure, within `<figure data-module="translator">`."""

    def run(self) -> list[nodes.Node]:
        models = [folder / "model.safetensors" for folder in SCRIPTS]
        for path in (TRANSLATIONS, *models):
            self.env.note_dependency(str(path))
        return [nodes.raw("", figure(), format="html")]


def figure() -> str:
    """Return the still picture of the first example, and the data of all for the script."""
    directions = [direction(folder) | sentences(folder) for folder in SCRIPTS]
    picture = still("translator", directions[0]["examples"][0], LANGUAGES)
    shown = {"inside": "inside.html", "directions": directions}
    return picture + json_script(settings(SHOWN) | shown)
