"""Figures of the chapters on a page without code: `{picture} fig-attention` shows what the figure
of that name shows, and the lines of the directive say what one sees there.
"""

import posixpath
import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective


class picture(nodes.General, nodes.Element):  # named as docutils names nodes
    """The place for what a figure shows; `figure` has its name."""


PAGE_BESIDE = re.compile(r'(?<= data-page=")')  # in a drawing with links


class Picture(SphinxDirective):
    """`{picture}`: what a figure of a chapter shows, and a text below it."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        place = nodes.container(classes=["picture"])
        place += picture(figure=self.arguments[0])
        self.state.nested_parse(self.content, self.content_offset, place)
        return [place]


class ShowPictures(SphinxPostTransform):
    """Put what the figures show into their places, before an output's form is chosen."""

    default_priority = 1

    def run(self, **kwargs: object) -> None:
        for place in [*self.document.findall(picture)]:
            place.replace_self(self.content_of(place["figure"]))

    def content_of(self, name: str) -> list[nodes.Node]:
        """Return a copy of what a figure of another page shows; it keeps no name."""
        labels = self.env.domaindata["std"]["anonlabels"]
        if name not in labels:
            raise ValueError(f"{self.env.docname}: there is no figure {name}")
        page, label = labels[name]
        for figure in self.env.get_doctree(page).findall(nodes.figure):
            if label in figure["ids"]:
                copy = figure.deepcopy()
                self.lead_links(copy, page)
                return [p for p in copy.children if not isinstance(p, nodes.caption)]
        raise ValueError(f"{self.env.docname}: {name} is no figure")

    def lead_links(self, figure: nodes.figure, page: str) -> None:
        """Let the links in a drawing lead on from here to the pages that lie beside its own."""
        here = posixpath.dirname(self.env.docname)
        way = posixpath.relpath(posixpath.dirname(page), here)
        for raw in figure.findall(nodes.raw):
            html = PAGE_BESIDE.sub(f"{way}/", raw.astext())
            raw.children = [nodes.Text(html)]
