"""What others read about a page: description, card, canonical address, site map; and the pages for
an address that is the root or is wrong.
"""

import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from docutils import nodes
from sphinx.application import Sphinx

from book.site.search import plain

LENGTH = 200  # of a description, in characters
CARD = "_static/card.png"
SECTIONS = re.compile(r" \(sections? [^()]* of the paper[^()]*\)")
RELATIVE = re.compile(
    r'(\b(?:href|src|action|data-content_root)=)"(?!\w+:|[#/"])(?:\./)?'
)


def describe(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give a page its description and its card."""
    base = app.config.html_baseurl
    title = f"{context.get('title') or page} \N{EM DASH} {app.config.html_title}"
    if page == app.config.root_doc:
        title = app.config.html_title
    description = shorten(about(doctree)) if doctree else ""
    neighbors = app.builder.relations.get(page, [None, None, None])  # type: ignore[attr-defined]
    following = neighbors[2]
    if following:
        context["next_about"] = first_sentence(about(app.env.get_doctree(following)))
    facts = {
        "og:title": html.unescape(nodes_text(title)),
        "og:description": description,
        "og:type": "book" if page == app.config.root_doc else "article",
        "og:site_name": app.config.html_title,
        "og:url": context.get("pageurl") or "",
        "og:image": urljoin(base, CARD),
        "og:image:alt": "A German sentence and its translation, joined word to word.",
    }
    tags = [
        f'<meta property="{name}" content="{html.escape(text)}" />'
        for name, text in facts.items()
        if text
    ]
    tags.append('<meta name="twitter:card" content="summary_large_image" />')
    if description:
        tags.append(f'<meta name="description" content="{html.escape(description)}" />')
    context["metatags"] = context.get("metatags", "") + "\n    ".join(["", *tags])


def about(doctree: nodes.document) -> str:
    """Return what a page says first, without the sections of the paper."""
    first = next(iter(doctree.findall(is_text)), None)
    return SECTIONS.sub("", plain(first)) if first is not None else ""


def is_text(node: nodes.Node) -> bool:
    """Say whether a node is a paragraph that says something, and not the line under a title."""
    return (
        isinstance(node, nodes.paragraph)
        and "chapter-head" not in node["classes"]
        and len(node.astext()) > 40
    )


def nodes_text(markup: str) -> str:
    """Return the text of a title that holds markup."""
    parts = markup.split("<")
    return parts[0] + "".join(part.partition(">")[2] for part in parts[1:])


def shorten(text: str) -> str:
    """Return the start of a text, whole words of it."""
    if len(text) <= LENGTH:
        return text
    whole_words, _, _ = text[:LENGTH].rpartition(" ")
    return f"{whole_words.rstrip(' ,;:')} …"


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"(?<=[.!?]) ", text)[0]


def write_files(app: Sphinx, exception: Exception | None) -> None:
    """Write the site map and the page at the root, and let the page for a wrong address, which may
    be shown at any depth, count its own addresses from the root of the host.
    """
    if exception or app.builder.format != "html":
        return
    base, out = app.config.html_baseurl, Path(app.outdir)
    pages = sorted(app.builder.get_target_uri(page) for page in app.env.found_docs)
    entries = "\n".join(
        f"  <url><loc>{html.escape(urljoin(base, page))}</loc></url>" for page in pages
    )
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    (out / "sitemap.xml").write_text(
        f'<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="{space}">\n{entries}\n</urlset>\n',
        encoding="utf-8",
    )
    lost = out / "404.html"
    rooted = rf'\g<1>"{urlsplit(base).path}'
    lost.write_text(
        RELATIVE.sub(rooted, lost.read_text(encoding="utf-8")), encoding="utf-8"
    )
    first = app.builder.get_target_uri(app.config.root_doc)
    title = html.escape(app.config.html_title)
    (out / "index.html").write_text(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<title>{title}</title>
<link rel="canonical" href="{html.escape(urljoin(base, first))}" />
<meta http-equiv="refresh" content="0; url={first}" />
</head>
<body><p><a href="{first}">{title}</a></p></body>
</html>
""",
        encoding="utf-8",
    )
