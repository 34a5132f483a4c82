"""Still pictures of figures that react: the site's scripts draw the recordings, without a browser.

A page shows such a picture until its script is there, which then draws with the same functions.
"""

import functools
import json
from pathlib import Path
from typing import Any

from py_mini_racer import MiniRacer

HERE = Path(__file__).parent
ASSETS = HERE / "assets"
RECORDED = HERE / "recorded"
NAMES = (
    "engine",
    "translator",
    "whatif",
    "inside_parts",
    "inside_machine",
    "inside",
)
SCRIPTS = (HERE / "document.js", *(ASSETS / f"{name}.js" for name in NAMES))


@functools.cache
def engine() -> MiniRacer:
    """Return a JavaScript engine that knows the scripts which draw."""
    context = MiniRacer()
    for script in SCRIPTS:
        context.eval(script.read_text(encoding="utf-8"))
    return context


def still(figure: str, *recording: Any) -> str:
    """Return the picture, as HTML, that the script `figure` draws of a recording."""
    return str(engine().call("still", figure, *recording))


def inside(packed: str, text: str) -> str:
    """Return what a packed model computes of a sentence, all of it, as JSON."""
    return str(engine().call("inside", packed, text))


def json_script(data: dict[str, Any]) -> str:
    """Return the element that hands data to a figure's script; no text in it can end it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    safe = text.replace("</", "<\\/")
    return f'<script type="application/json">{safe}</script>'
