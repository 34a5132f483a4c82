"""Print the built site as two PDFs, the book and what one looks up beside it.

Each has a title, contents, the chapters in order, an outline, and links.

Chromium prints each part of the book by itself, since its time grows with the square of the pages,
and pypdf joins them. A link between two places of a volume is printed as one to `BOOK`, and led to
its place when all parts are there; one to the other volume leads to the site. The contents are
printed twice: they need the numbers of pages.
"""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag
from pypdf import PdfReader, PdfWriter
from pypdf.generic import Destination, Fit, NameObject, TextStringObject

from tools.chromium import QUIET, REMEDY, find_browser
from tools.command import command_line
from tools.problem import Problem, ProblemError

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build" / "html"
WORK = ROOT / "_build" / "pdf"
BESIDE = {"Further", "Manual"}  # the parts of the second volume
STYLE = ROOT / "book" / "site" / "templates" / "pdf.css"
LOGO = ROOT / "book" / "site" / "assets" / "logo.svg"
BOOK = "https://book.invalid/"  # where links within the book lead until its parts are joined
PRINT = ["--no-pdf-header-footer", "--disable-pdf-tagging"]
LONG_CODE = 20  # lines of code that may go on on the next page
# Sections that the contents leave out
EVERYWHERE = ("What to remember", "Exercises", "Further", "Sources")
# What paper cannot do, and what is folded on the site without being of the book
UNWANTED = (
    "script, .headerlink, .colab-button, .book-buttons, .toctree-wrapper, .letters, "
    ".viewcode-link, .cell.tag_export:has(> details.hide), "
    ".cell:not(.tag_hide-cell) > details.hide"
)
LEFT_OUT = (
    "Imports and the code that draws figures are left out here; the site and the notebooks have "
    "them, and the figures that react."
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


@dataclass(frozen=True)
class Targets:
    """Where links may lead: names of pages by file, their anchors by name, and the site itself."""

    names: dict[str, str]
    anchors: dict[str, set[str]]
    site: str


@dataclass(frozen=True)
class Place:
    """Where an anchor is in the PDF: its page, counted from 0, and its height there, in points."""

    page: int
    top: float


def main() -> None:
    """Write the PDF."""
    command_line("tools.pdf", __doc__).parse_args()
    browser = find_browser()
    if browser is None:
        raise ProblemError(Problem("make pdf", "no browser", REMEDY))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    WORK.mkdir(exist_ok=True)
    beside = [page for page in read_pages() if page.part in BESIDE]
    book = [page for page in read_pages() if page.part not in BESIDE]
    title = config["title"]
    print_volume(browser, config, book, title, "annotated-transformer.pdf")
    title = f"{title.partition(',')[0]}, further and manual"
    print_volume(browser, config, beside, title, "annotated-transformer-manual.pdf")


def print_volume(
    browser: str, config: dict[str, Any], pages: list[Page], title: str, file: str
) -> None:
    """Print some pages as a volume."""
    names = {page.file: page.name for page in pages}
    anchors = {page.name: prefix_anchors(page) for page in pages}
    targets = Targets(names, anchors, config["html"]["baseurl"])
    for page in pages:
        adapt(page, targets)
    sheets = style_sheets(pages[0])

    front = print_html(browser, write_front(pages, config, title, sheets, {}))
    printed = [front]
    places: dict[str, Place] = {}
    start = len(front.pages)
    for part, group in groupby(pages, key=lambda page: page.part):
        reader = print_html(browser, write_part(part, list(group), sheets, start))
        places |= read_places(reader, start)
        printed.append(reader)
        start += len(reader.pages)
    numbers = {name: place.page + 1 for name, place in places.items()}
    printed[0] = print_html(browser, write_front(pages, config, title, sheets, numbers))
    assert len(printed[0].pages) == len(front.pages)

    writer = join(printed, pages, places)
    writer.add_metadata({"/Title": title, "/Author": config["author"]})
    target = WORK.parent / file
    writer.write(target)
    print(f"{title}: {target.as_uri()}, {start} pages")


def read_places(reader: PdfReader, start: int) -> dict[str, Place]:
    """Return where the anchors of a part are that begins on page `start`, by name."""
    places = {}
    for name, destination in reader.named_destinations.items():
        page = reader.get_destination_page_number(destination) or 0
        places[name.lstrip("/")] = Place(start + page, float(destination.top or 0))
    return places


def read_pages() -> list[Page]:
    """Return the pages in the order of the book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    entries = [("", toc["root"])]
    for part in toc["parts"]:
        entries += [(part["caption"], entry["file"]) for entry in part["chapters"]]
    pages = []
    for caption, entry in entries:
        soup = BeautifulSoup((SITE / f"{entry}.html").read_bytes(), "html.parser")
        article = soup.select_one("article.bd-article")
        assert article is not None
        for element in article.select(UNWANTED):
            element.decompose()
        pages.append(Page(f"{entry}.html", entry.rpartition("/")[2], caption, article))
    return pages


def prefix_anchors(page: Page) -> set[str]:
    """Put the page's name before its anchors, which are unique on a page only; return them."""
    anchors = set()
    for element in page.article.find_all(id=True):
        in_drawing = element.find_parent(["svg", "figure"]) is not None
        has_own_style = "book-steps" in element.get("class", [])
        if element.name == "input" or in_drawing or has_own_style:
            continue
        anchors.add(element["id"])
        element["id"] = f"{page.name}--{element['id']}"
    return anchors


def adapt(page: Page, targets: Targets) -> None:
    """Make a page's links those of one document, and its folds and choices plain to see."""
    article = page.article
    for link in article.find_all("a", href=True):
        link["href"] = target_of(link["href"], page, targets)
    for image in article.find_all("img"):
        image["src"] = urljoin((SITE / page.file).as_uri(), image["src"])
        image["loading"] = "eager"
    for fold in article.find_all("details"):
        fold["open"] = ""
        label = fold.select_one("summary .expanded")
        if label is not None:
            label.string = text(label).removeprefix("Hide the ").capitalize()
    for code in article.find_all("pre"):
        if code.get_text().count("\n") > LONG_CODE:
            code["class"] = [*code.get("class", []), "long"]
    for figure in article.select("figure.book-steps"):
        chosen = [button.has_attr("checked") for button in figure.find_all("input")]
        for is_shown, step in zip(chosen, figure.select(".step")):
            if not is_shown:
                step.decompose()


def target_of(link: str, page: Page, targets: Targets) -> str:
    """Return where a link leads: to a place in the PDF, or to the site."""
    parts = urlsplit(urljoin(f"https://book/{page.file}", link))
    if parts.netloc != "book":
        return link
    path = parts.path.lstrip("/")
    name = targets.names.get(unquote(path))
    if name is None:
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return urljoin(targets.site, path + fragment)
    fragment = unquote(parts.fragment)
    if fragment in targets.anchors[name]:
        return f"{BOOK}#{name}--{fragment}"
    return f"{BOOK}#{name}"


def write_front(
    pages: list[Page],
    config: dict[str, Any],
    title: str,
    sheets: str,
    numbers: dict[str, int],
) -> str:
    """Return the title and the contents as a page of HTML."""
    name, subtitle = title.split(", ")
    lede = text(pages[0].article.select_one(".book-lede"))
    author = config["author"][0].upper() + config["author"][1:]
    return f"""{head(title, sheets, STYLE.read_text(encoding="utf-8"))}
<body>
<section class="title-page">
<img src="{LOGO.as_uri()}" alt="">
<p class="title">{html.escape(name)}</p>
<p class="subtitle">{html.escape(subtitle)}</p>
<p class="title-lede">{html.escape(lede)}</p>
<p class="foot">{html.escape(author)}, {config["copyright"]}<br>
{config["html"]["baseurl"]}<br>Text and figures: CC BY 4.0. Code: MIT.</p>
</section>
<nav class="book-contents"><h1>Contents</h1>{"".join(contents(pages, numbers))}
<p class="left-out">{LEFT_OUT}</p></nav>
</body>
</html>
"""


def write_part(part: str, pages: list[Page], sheets: str, start: int) -> str:
    """Return a part as a page of HTML, whose first sheet of paper has the number `start` + 1.

    Chromium keeps the places of the anchors to which a link leads, so at its end is one to each.
    """
    style = STYLE.read_text(encoding="utf-8")
    style += f"html {{ counter-reset: page {start} }}\n"
    articles = ""
    links = ""
    opening = f'<p class="part">{html.escape(part)}</p>' if part else ""
    for page in pages:
        name = style_name(page)
        title = quoted(page.title) if page.part else "none"
        style += f"@page {name} {{ @top-right {{ content: {title} }} }}\n"
        articles += (
            f'<article class="bd-article" id="{page.name}" style="page: {name}">'
            f"{opening}{page.article.decode_contents()}</article>"
        )
        opening = ""
        anchors = [element["id"] for element in page.article.find_all(id=True)]
        for anchor in [page.name, *anchors]:
            links += f'<a href="#{anchor}"></a>'
    body = f"<body>{articles}<nav hidden>{links}</nav></body>"
    return f"{head(part, sheets, style)}{body}</html>"


def head(title: str, sheets: str, style: str) -> str:
    """Return how a page of HTML begins, before its body."""
    return f"""<!doctype html>
<html lang="en" data-theme="light" data-mode="light">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
{sheets}
<style>{style}</style>
</head>
"""


def style_sheets(page: Page) -> str:
    """Return the links to the style sheets of the site."""
    address = (SITE / page.file).as_uri()
    head = BeautifulSoup((SITE / page.file).read_bytes(), "html.parser").head
    assert head is not None
    links: list[Any] = head.find_all("link", rel="stylesheet")
    hrefs = [urljoin(address, link["href"]) for link in links]
    return "".join(f'<link rel="stylesheet" href="{href}">' for href in hrefs)


def contents(pages: list[Page], numbers: dict[str, int]) -> Iterator[str]:
    """Yield the entries of the contents."""
    part = ""
    for page in pages:
        if page.part != part:
            part = page.part
            yield f'<p class="entry of-part">{html.escape(part)}</p>'
        entries = [("chapter", page.name, page.title)]
        if part:
            entries += [s for s in sections(page) if not s[-1].endswith(EVERYWHERE)]
        for level, name, title in entries:
            number = numbers.get(name, "")
            yield (
                f'<p class="entry of-{level}"><a href="{BOOK}#{name}">'
                f"<span>{html.escape(title)}</span><i></i><b>{number}</b></a></p>"
            )


def sections(page: Page) -> Iterator[tuple[str, str, str]]:
    """Yield the sections of a page, as level, place and title."""
    for heading in page.article.select("h2"):
        if heading.parent is not None and heading.parent.get("id"):
            yield "section", str(heading.parent["id"]), text(heading)


def print_html(browser: str, page: str) -> PdfReader:
    """Print a page of HTML with Chromium, and read the PDF."""
    source = WORK / "part.html"
    out = WORK / "part.pdf"
    source.write_text(page, encoding="utf-8")
    out.unlink(missing_ok=True)
    command = [browser, *QUIET, *PRINT, f"--print-to-pdf={out}"]
    run = subprocess.run(
        [*command, source.as_uri()], capture_output=True, text=True, check=False
    )
    if not out.exists():
        raise ProblemError(Problem(browser, "printed nothing", run.stderr[-500:]))
    return PdfReader(BytesIO(out.read_bytes()))


def join(
    printed: list[PdfReader], pages: list[Page], places: dict[str, Place]
) -> PdfWriter:
    """Join what was printed, with its links and its outline."""
    writer = PdfWriter()
    for reader in printed:
        writer.append(reader, import_outline=False)
    lead_links(writer, places)
    parts: dict[str, Any] = {"": None}
    for page in pages:
        start = places[page.name].page
        if page.part not in parts:
            parts[page.part] = writer.add_outline_item(
                title=page.part, page_number=start
            )
        chapter = writer.add_outline_item(
            title=page.title, page_number=start, parent=parts[page.part]
        )
        for _, name, title in sections(page):
            place = places[name]
            writer.add_outline_item(
                title=title,
                page_number=place.page,
                parent=chapter,
                fit=Fit.xyz(top=place.top),
            )
    writer.page_mode = "/UseOutlines"
    writer.root_object[NameObject("/Lang")] = TextStringObject("en")
    return writer


def lead_links(writer: PdfWriter, places: dict[str, Place]) -> None:
    """Lead the links within the book to their places."""
    for page in writer.pages:
        for annotation in page.get("/Annots", []):
            link = annotation.get_object()
            address = link.get("/A", {}).get("/URI", "")
            if not address.startswith(BOOK):
                continue
            name = unquote(urlsplit(address).fragment)
            place = places.get(name) or places[name.partition("--")[0]]  # if hidden
            target = writer.pages[place.page].indirect_reference
            assert target is not None
            destination = Destination(name, target, Fit.xyz(top=place.top))
            del link["/A"]
            link[NameObject("/Dest")] = destination.dest_array


def text(element: Tag | None) -> str:
    """Return the text of an element on one line, each formula once."""
    if element is None:
        return ""
    copy = BeautifulSoup(str(element), "html.parser")
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
