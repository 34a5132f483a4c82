"""The slider over checkpoints in chapter 18: without scripts, a table of what each one says."""

import html
import json

from docutils import nodes

from book.site.live import LiveFigure
from book.site.stills import ASSETS, RECORDED, json_script

RECORDING = RECORDED / "learning.json"
CHECKPOINTS = ASSETS / "checkpoints.js"
MOST = 30  # subwords that the figure takes


class Learning(LiveFigure):
    """`{learning}`: a figure with its caption, its number, and what the script needs."""

    def run(self) -> list[nodes.Node]:
        return self.live_figure("fig-learning", live(), (RECORDING, CHECKPOINTS))


def live() -> str:
    """Return the table, and the data for the script."""
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    megabytes = f"{CHECKPOINTS.stat().st_size / 1e6:.1f}"
    data = json_script(recorded | {"megabytes": megabytes, "most": MOST})
    example = recorded["examples"][0]
    rows = "".join(
        f"<tr><td>{checkpoint['step']:,}</td><td>{checkpoint['loss']:.2f}</td>"
        f'<td lang="en">{html.escape(visible(translation["text"]))}</td></tr>'
        for checkpoint, translation in zip(recorded["steps"], example["steps"])
    )
    source = f'<span lang="de">{html.escape(example["text"])}</span>'
    return (
        '<figure class="book-translator" data-module="learning">'
        '<div class="learning-still" role="region" aria-label="Translations" tabindex="0">'
        '<table class="table"><thead><tr><th scope="col">updates</th>'
        f'<th scope="col">loss</th><th scope="col">{source}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{data}</figure>"
    )


def visible(text: str) -> str:
    """Return a text with a dot for each sign that cannot be seen."""
    return "".join(sign if sign.isprintable() else "·" for sign in text)
