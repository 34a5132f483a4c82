"""Repairs of markup that others write, for readers who listen to a page or use the keyboard.

Each names the rule of axe-core that it satisfies; `tests/browser/axe.py` runs them.
"""

import re
from collections.abc import Callable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def lines(entries: str) -> str:
    """Write the arguments of a signature as lines."""
    return entries.replace("<dd>", '<span class="sig-line">').replace(
        "</dd>", "</span>"
    )


def name_formula(head: re.Match[str]) -> str:
    """Write a formula that is the whole head of a column, with a name."""
    before, formula, tex = head.groups()
    name = re.sub(r"\\text|[\\{}]", "", tex)
    return f'{before}<math aria-label="{name}"{formula}'


Replacement = str | Callable[[re.Match[str]], str]
BODY: list[tuple[re.Pattern[str], Replacement]] = [
    # label-content-name-mismatch: what can be unfolded is named by its text
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    # aria-deprecated-role, aria-required-children: a bibliography is a list of paragraphs
    (re.compile(r' role="(?:doc-biblioentry|list)"'), ""),
    # empty-table-header: a cell without a heading is no heading
    (re.compile(r'<th class="head[^"]*">\s*(?:<p>\s*</p>)?\s*</th>'), "<td></td>"),
    # empty-table-header: axe-core does not count MathML as text
    (
        re.compile(
            r'(<th class="head[^>]*>(?:<p>)?<span class="math[^>]*><span class="katex">'
            r'<span class="katex-mathml">)<math((?:(?!</th>).)*?x-tex">([^<]*))',
            re.S,
        ),
        name_formula,
    ),
    # No rule, but links in a drawing, which its notebook cannot hold
    (re.compile(r'<g data-page="([^"]*)">(.*?)</g>'), r'<a href="\1">\2</a>'),
    # No rule, but half the weight of code: what the style sheet gives no color needs no name
    (
        re.compile(r'<span class="(?:n|n[abenvt]|k?t|vm|bp|o|p|w)">([^<]*)</span>'),
        r"\1",
    ),
    # definition-list: the arguments of a long signature are lines, and define nothing
    (
        re.compile(r"<dl>\s*((?:<dd>(?:(?!</?d[ld]>).)*</dd>\s*)+)</dl>", re.S),
        lambda arguments: lines(arguments[1]),
    ),
]
LAYOUT = [
    # region: everything is inside of a landmark
    (
        '<div id="pst-primary-sidebar" class=',
        '<div id="pst-primary-sidebar" role="complementary" aria-label="The book" class=',
    ),
    # label-content-name-mismatch: the button is named by its text
    ('pst-js-only" title="Search" aria-label="Search"', 'pst-js-only" title="Search"'),
    # No rule, but a first view that is small: logos come when their menu opens
    ('<img alt="', '<img loading="lazy" alt="'),
]


def repair_body(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Repair what extensions have written into a page, and give its template a way to go on."""
    body = context.get("body")
    if body:
        for pattern, replacement in BODY:
            body = pattern.sub(replacement, body)
        context["body"] = body
    context["repaired"] = repair_layout


def repair_layout(markup: str) -> str:
    """Repair what the theme writes around a page."""
    for written, repaired in LAYOUT:
        markup = markup.replace(written, repaired)
    return markup
