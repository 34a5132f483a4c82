"""The translator of the first page: still, it shows a recorded translation, which needs no script.

The book's own model lies beside the site's scripts, and comes when the reader asks for it.
"""

import html
import json
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tools.web_model import SHOWN, pack_folder, settings

RECORDINGS = Path("book", "recordings.json")
START = 2  # the step that is shown at first
LEAST = 0.02  # weight of a line that is drawn


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


class Translator(SphinxDirective):
    """`{translator}`: what stands in the figure, within `<figure data-module="translator">`."""

    def run(self) -> list[nodes.Node]:
        recorded = Path(self.env.srcdir) / RECORDINGS
        for path in (recorded, SHOWN / "model.safetensors"):
            self.env.note_dependency(str(path))
        return [nodes.raw("", figure(json.loads(recorded.read_text("utf-8"))), format="html")]


def figure(examples: list[dict[str, Any]]) -> str:
    """Return the still picture of the first example, and the data of all for the script."""
    megabytes = f"{len(packed()) / 1e6:.1f}"
    data = settings(SHOWN) | {"megabytes": megabytes, "languages": ["de", "en"], "label": "German"}
    data |= {"start": START, "examples": examples}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'{still(examples[0])}<script type="application/json">{text}</script>'


# The same elements as book/assets/translator.js makes; here each step has a panel of its own


def still(example: dict[str, Any]) -> str:
    """Return the translation with a button a word; style rules show the step that is chosen."""
    source, steps = example["source"], example["steps"]
    words = "".join(f"<li>{html.escape(token)}</li>" for token in source)
    rules = choices = lines = best = ""
    for t, step in enumerate(steps):
        shown = f".translator-still:has(#step-{t}:checked) .step-{t}"
        rules += f"{shown}{{display:block}}"
        checked = " checked" if t == START else ""
        choices += f'<div><input type="radio" name="step" id="step-{t}"{checked}>'
        choices += f'<label for="step-{t}">{html.escape(step["token"])}</label></div>'
        lines += attention(source, steps, t)
        bars = "".join(bar(name, share, name == step["token"]) for name, share in step["best"])
        best += f'<ol class="step step-{t}" lang="en">{bars}</ol>'
    style = f"<style>.translator-still .step{{display:none}}{rules}</style>"
    return (
        f'<div class="translator-still">{style}'
        f'<p class="translator-text" lang="en">{html.escape(steps[-1]["text"])}</p>'
        '<div class="translator-stage">'
        f'<ol class="translator-source" lang="de" aria-label="Source">{words}</ol>{lines}'
        '<div class="translator-target" lang="en" role="radiogroup" '
        f'aria-label="Translation, word by word">{choices}</div>'
        f'<div class="translator-best"><p>The five likeliest next</p>{best}</div></div></div>'
    )


def attention(source: list[str], steps: list[dict[str, Any]], t: int) -> str:
    """Return the lines of one step: from the token that is written to what it looks at."""
    look = steps[t]["look"]
    most = max(range(len(look)), key=look.__getitem__)
    label = f"“{steps[t]['token']}” looks most at “{source[most]}” ({percent(look[most])})"
    rows = max(len(source), len(steps))
    paths = "".join(
        f'<path d="M0,{s + 0.5}C50,{s + 0.5} 50,{t + 0.5} 100,{t + 0.5}" '
        f'stroke-opacity="{weight}" stroke-width="{1 + 4 * weight:.2f}"/>'
        for s, weight in zip(count(), look)
        if weight >= LEAST
    )
    return (
        f'<svg class="translator-lines step step-{t}" role="img" viewBox="0 0 100 {rows}" '
        f'preserveAspectRatio="none" style="--rows:{rows}" '
        f'aria-label="{html.escape(label)}">{paths}</svg>'
    )


def bar(name: str, share: float, chosen: bool) -> str:
    """Return one of the best five."""
    mark = ' class="chosen"' if chosen else ""
    return (
        f'<li{mark}><span>{html.escape(name)}</span><i style="--share:{share}"></i>'
        f"<span>{html.escape(percent(share))}</span></li>"
    )


def percent(share: float) -> str:
    """Return a share as it is printed."""
    return "<1%" if share < 0.005 else f"{100 * share:.0f}%"
