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
SCRIPTS = (HERE / "document.js", ASSETS / "translator.js", ASSETS / "whatif.js")


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


def json_script(data: dict[str, Any]) -> str:
    """Return the element that hands data to a figure's script; no text in it can end it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    safe = text.replace("</", "<\\/")
    return f'<script type="application/json">{safe}</script>'
