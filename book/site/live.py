"""Figures that come alive: what the directive of each leaves in the page."""

from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class LiveFigure(SphinxDirective):
    """A directive that holds a caption and, as its last paragraph, what a notebook says instead."""

    has_content = True

    def live_figure(
        self, name: str, html: str, recordings: Iterable[Path]
    ) -> list[nodes.Node]:
        """Return the figure of this name: the HTML, which recordings decide, and the caption."""
        for path in recordings:
            self.env.note_dependency(str(path))
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        caption, *_ = content.children  # the rest is for notebooks
        figure = nodes.figure()
        figure += nodes.raw("", html, format="html")
        figure += nodes.caption("", "", *caption.children)
        self.options["name"] = name
        self.add_name(figure)
        return [figure]
