"""The slider over checkpoints in chapter 18: without scripts, a table of what each one says.

`:::{learning}` holds the caption and, as its last paragraph, what a notebook says in its place.
"""

import html
import json
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

RECORDED, CHECKPOINTS = Path("book", "learning.json"), Path("book", "assets", "checkpoints.js")
MOST = 30  # subwords that the figure takes
NAME = "fig-learning"


class Learning(SphinxDirective):
    """`{learning}`: a figure with its caption, its number, and what the script needs."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        home = Path(self.env.srcdir)
        for path in (RECORDED, CHECKPOINTS):
            self.env.note_dependency(str(home / path))
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        caption, *_ = content.children  # the rest is for notebooks
        figure = nodes.figure()
        figure += nodes.raw("", live(home), format="html")
        figure += nodes.caption("", "", *caption.children)
        self.options["name"] = NAME
        self.add_name(figure)
        return [figure]


def live(home: Path) -> str:
    """Return the table, and the data for the script."""
    recorded = json.loads((home / RECORDED).read_text(encoding="utf-8"))
    size = f"{(home / CHECKPOINTS).stat().st_size / 1e6:.1f}"
    data = json.dumps(recorded | {"megabytes": size, "most": MOST}, ensure_ascii=False)
    data = data.replace("</", "<\\/")
    example = recorded["examples"][0]
    rows = "".join(
        f"<tr><td>{line['step']:,}</td><td>{line['loss']:.2f}</td>"
        f'<td lang="en">{html.escape(visible(translation["text"]))}</td></tr>'
        for line, translation in zip(recorded["steps"], example["steps"])
    )
    source = f'<span lang="de">{html.escape(example["text"])}</span>'
    return (
        '<figure class="book-translator" data-module="learning"><div class="learning-still" '
        'role="region" aria-label="Translations" tabindex="0"><table class="table">'
        f'<thead><tr><th scope="col">updates</th><th scope="col">loss</th><th scope="col">{source}'
        f"</th></tr></thead><tbody>{rows}</tbody></table></div>"
        f'<script type="application/json">{data}</script></figure>'
    )


def visible(text: str) -> str:
    """Return a text with a dot for each sign that cannot be seen."""
    return "".join(sign if sign.isprintable() else "·" for sign in text)
