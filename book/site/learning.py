"""The slider over checkpoints in chapter 18: without scripts, a table of what each one says.

`:::{learning}` holds the caption and, as its last paragraph, what a notebook says in its place.
"""

import html
import json

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from book.site.stills import ASSETS, RECORDED, json_script

RECORDING = RECORDED / "learning.json"
CHECKPOINTS = ASSETS / "checkpoints.js"
MOST = 30  # subwords that the figure takes
NAME = "fig-learning"


class Learning(SphinxDirective):
    """`{learning}`: a figure with its caption, its number, and what the script needs."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        for path in (RECORDING, CHECKPOINTS):
            self.env.note_dependency(str(path))
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        caption, *_ = content.children  # the rest is for notebooks
        figure = nodes.figure()
        figure += nodes.raw("", live(), format="html")
        figure += nodes.caption("", "", *caption.children)
        self.options["name"] = NAME
        self.add_name(figure)
        return [figure]


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
