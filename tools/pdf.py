"""Print the built site as one PDF: title, contents, the chapters in order, with outline and links.

usage: python -m tools.pdf

The chapters become one page, which Chromium prints twice: the contents need the numbers of pages.
"""

import html
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag
from pypdf import PdfReader, PdfWriter
from pypdf.generic import Destination, Fit, NameObject, TextStringObject

from tools.chapters import ROOT
from tools.problem import Problem, ProblemError

SITE = ROOT / "_build" / "html"
WORK = ROOT / "_build" / "pdf"
TARGET = ROOT / "_build" / "annotated-transformer.pdf"
STYLE = ROOT / "book" / "templates" / "pdf.css"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LONG = 28  # lines of code that may go on on the next page
# What paper cannot do, and what is folded on the site without being of the book
UNWANTED = (
    "script, .headerlink, .colab-button, .book-buttons, .toctree-wrapper, .letters, "
    ".viewcode-link, .player-controls, .cell:not(.tag_export):not(.tag_hide-cell) > details.hide"
)
LEFT_OUT = (
    "The code that draws figures is left out here; the site and the notebooks have it, and the "
    "figures that react."
)


@dataclass(frozen=True)
class Page:
    """A page of the site: its file, the name of its place in the PDF, its part, its article."""

    file: str
    name: str
    part: str
    article: Any  # of Beautiful Soup, typed so widely that little passes

    @property
    def title(self) -> str:
        """The heading, with its number."""
        return text(self.article.h1)


def main() -> None:
    """Write the PDF."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        what, remedy = "no browser", f"install one of {', '.join(BROWSERS)}"
        raise ProblemError(Problem("make pdf", what, remedy))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    pages = read_pages()
    known = {page.file: page.name for page in pages}
    anchors = {page.name: prefix_anchors(page) for page in pages}
    for page in pages:
        adapt(page, known, anchors, config["html"]["baseurl"])
    WORK.mkdir(exist_ok=True)
    numbers: dict[str, int] = {}
    for _ in range(2):
        (WORK / "book.html").write_text(write_book(pages, config, numbers), encoding="utf-8")
        print_page(browser, WORK / "book.html", WORK / "book.pdf")
        reader = PdfReader(WORK / "book.pdf")
        places = {n.lstrip("/"): place for n, place in reader.named_destinations.items()}
        numbers = {
            name: 1 + (reader.get_destination_page_number(place) or 0)
            for name, place in places.items()
        }
    finish(reader, pages, places, config)
    print(f"The book: {TARGET.as_uri()}, {len(reader.pages)} pages")


def read_pages() -> list[Page]:
    """Return the pages in the order of the book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    entries = [("", toc["root"])]
    entries += [(part["caption"], e["file"]) for part in toc["parts"] for e in part["chapters"]]
    pages = []
    for part, entry in entries:
        soup = BeautifulSoup((SITE / f"{entry}.html").read_bytes(), "lxml")
        article = soup.select_one("article.bd-article")
        assert article is not None
        for element in article.select(UNWANTED):
            element.decompose()
        pages.append(Page(f"{entry}.html", entry.rpartition("/")[2], part, article))
    return pages


def prefix_anchors(page: Page) -> set[str]:
    """Put the page's name before its anchors, which are unique on a page only; return them."""
    found = set()
    for element in page.article.find_all(id=True):
        if element.name != "input" and element.find_parent(["svg", "figure"]) is None:
            if "book-steps" in element.get("class", []):
                continue  # its style sheet names it
            found.add(element["id"])
            element["id"] = f"{page.name}--{element['id']}"
    return found


def adapt(page: Page, known: dict[str, str], anchors: dict[str, set[str]], base: str) -> None:
    """Make a page's links those of one document, and its folds and choices plain to see."""
    article = page.article
    for link in article.find_all("a", href=True):
        link["href"] = target_of(link["href"], page, known, anchors, base)
    for image in article.find_all("img"):
        image["src"] = urljoin((SITE / page.file).as_uri(), image["src"])
        image["loading"] = "eager"
    for fold in article.find_all("details"):
        fold["open"] = ""
        if (said := fold.select_one("summary .expanded")) is not None:
            said.string = text(said).removeprefix("Hide the ").capitalize()
    for code in article.find_all("pre"):
        if code.get_text().count("\n") > LONG:
            code["class"] = [*code.get("class", []), "long"]
    for figure in article.select("figure.book-steps"):
        names = [text(label) for label in figure.find_all("label")]
        for name, step in zip(names, figure.select(".step")):
            heading = BeautifulSoup(f'<p class="step-name">{html.escape(name)}</p>', "lxml").p
            assert heading is not None
            step.insert(0, heading)


def target_of(
    link: str, page: Page, known: dict[str, str], anchors: dict[str, set[str]], base: str
) -> str:
    """Return where a link leads: to a place in the PDF, or to the site."""
    parts = urlsplit(urljoin(f"https://book/{page.file}", link))
    if parts.netloc != "book":
        return link
    name = known.get(unquote(parts.path).lstrip("/"))
    if name is None:
        return urljoin(
            base, f"{parts.path.lstrip('/')}{'#' * bool(parts.fragment)}{parts.fragment}"
        )
    fragment = unquote(parts.fragment)
    return f"#{name}--{fragment}" if fragment in anchors[name] else f"#{name}"


def write_book(pages: list[Page], config: dict[str, Any], numbers: dict[str, int]) -> str:
    """Return the book as one page of HTML."""
    head = BeautifulSoup((SITE / pages[0].file).read_bytes(), "lxml").head
    assert head is not None
    links: list[Any] = head.find_all("link", rel="stylesheet")
    sheets = [
        f'<link rel="stylesheet" href="{urljoin((SITE / pages[0].file).as_uri(), link["href"])}">'
        for link in links
    ]
    running = "\n".join(
        f"@page {style_name(page)} {{ @top-right {{ content: {quoted(page.title)} }} }}"
        for page in pages[1:]
    )
    body, part = [], ""
    for page in pages:
        opens = f'<p class="part">{html.escape(page.part)}</p>' if page.part != part else ""
        part = page.part
        body.append(
            f'<article class="bd-article" id="{page.name}" style="page: {style_name(page)}">'
            f"{opens}{page.article.decode_contents()}</article>"
        )
    title, subtitle = config["title"].split(", ")
    author = config["author"][0].upper() + config["author"][1:]
    style = STYLE.read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en" data-theme="light" data-mode="light">
<head>
<meta charset="utf-8">
<title>{html.escape(config["title"])}</title>
{"".join(sheets)}
<style>{style}{running}</style>
</head>
<body>
<section class="title-page">
<img src="../../book/assets/logo.svg" alt="">
<p class="title">{html.escape(title)}</p>
<p class="subtitle">{html.escape(subtitle)}</p>
<p class="title-lede">{html.escape(text(pages[0].article.select_one(".book-lede")))}</p>
<p class="foot">{html.escape(author)}, {config["copyright"]}<br>
{config["html"]["baseurl"]}<br>Text and figures: CC BY 4.0. Code: MIT.</p>
</section>
<nav class="book-contents"><h1>Contents</h1>{"".join(contents(pages, numbers))}
<p class="left-out">{LEFT_OUT}</p></nav>
{"".join(body)}
</body>
</html>
"""


def contents(pages: list[Page], numbers: dict[str, int]) -> Iterator[str]:
    """Yield the entries of the contents."""
    part = ""
    for page in pages:
        if page.part != part:
            part = page.part
            yield f'<p class="entry of-part">{html.escape(part)}</p>'
        inside = sections(page) if part else ()
        for level, name, title in [("chapter", page.name, page.title), *inside]:
            number = numbers.get(name, "")
            yield (
                f'<p class="entry of-{level}"><a href="#{name}"><span>{html.escape(title)}</span>'
                f"<i></i><b>{number}</b></a></p>"
            )


def sections(page: Page) -> Iterator[tuple[str, str, str]]:
    """Yield the sections of a page, as level, place and title."""
    for heading in page.article.select("h2"):
        if heading.parent is not None and heading.parent.get("id"):
            yield "section", str(heading.parent["id"]), text(heading)


def print_page(browser: str, page: Path, out: Path) -> None:
    """Print a page with Chromium."""
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    quiet += ["--disable-background-networking", "--disable-component-update"]
    to = ["--no-pdf-header-footer", f"--print-to-pdf={out}", page.as_uri()]
    out.unlink(missing_ok=True)
    done = subprocess.run([browser, *quiet, *to], capture_output=True, text=True, check=False)
    if not out.exists():
        raise ProblemError(Problem(browser, "printed nothing", done.stderr[-500:]))


def finish(
    reader: PdfReader, pages: list[Page], places: dict[str, Destination], config: dict[str, Any]
) -> None:
    """Write the PDF with its outline and what it says of itself."""
    writer = PdfWriter(clone_from=reader)
    parents: dict[str, Any] = {"": None}
    for page in pages:
        start = reader.get_destination_page_number(places[page.name]) or 0
        if page.part not in parents:
            parents[page.part] = writer.add_outline_item(title=page.part, page_number=start)
        parent = writer.add_outline_item(
            title=page.title, page_number=start, parent=parents[page.part]
        )
        for _, name, title in sections(page):
            if place := places.get(name):
                number = reader.get_destination_page_number(place) or 0
                writer.add_outline_item(
                    title=title, page_number=number, parent=parent, fit=Fit.xyz(top=place.top)
                )
    writer.add_metadata({"/Title": config["title"], "/Author": config["author"]})
    writer.page_mode = "/UseOutlines"
    writer.root_object[NameObject("/Lang")] = TextStringObject("en")
    writer.write(TARGET)


def text(element: Tag | None) -> str:
    """Return the text of an element on one line, each formula once."""
    if element is None:
        return ""
    copy = BeautifulSoup(str(element), "lxml")
    for formula in copy.select(".katex-mathml"):
        formula.decompose()
    return re.sub(r"\s+", " ", copy.get_text().replace("\u200b", "")).strip()


def style_name(page: Page) -> str:
    """Return a name that a style sheet may use."""
    return f"page-{page.name.replace('_', '-')}"


def quoted(title: str) -> str:
    """Return a title as a string of a style sheet."""
    return '"' + title.replace("\\", "").replace('"', "'") + '"'


if __name__ == "__main__":
    try:
        main()
    except ProblemError as error:
        sys.exit(str(error))
