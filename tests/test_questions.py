"""The pages of questions and symptoms: each link leads somewhere, each number is in the log."""

import json
import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from tokenizers import pre_tokenizers

from tools.chapters import ROOT

PAGES = {name: ROOT / "book" / f"{name}.md" for name in ("questions", "troubleshooting")}
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)?)\)")
ANCHOR = re.compile(r"^\{#([\w-]+)\}$", re.MULTILINE)
COLUMNS = {
    "loss": "validation_loss", "neighbor's": "neighbors_source", "BLEU": "bleu",
    "different": "different", "it writes": "said",
    "loops": "loops", "endless": "endless", "before": "before", "after 1 update": "after_1",
    "worst of 30": "worst", "after 30": "end",
}  # fmt: skip
ASKED = re.compile(r"^\{\.asked\}\n(.+)$", re.MULTILINE)


def text_of(path: Path) -> str:
    """The Markdown of a page or of a notebook's text cells."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def slugs(text: str) -> set[str]:
    """The anchors that MyST makes of the headings of a text, and those that it names itself."""
    tokens = MarkdownIt().use(dollarmath_plugin).parse(text)
    found = set(ANCHOR.findall(text))
    for head, inline in pairwise(tokens):
        if head.type == "heading_open" and head.tag in ("h1", "h2", "h3"):
            parts = [t.content for t in inline.children or [] if t.type in ("text", "code_inline")]
            found.add(re.sub(r"[^\w\- ]", "", "".join(parts).strip().lower()).replace(" ", "-"))
    return found


def figures() -> set[str]:
    """The names of all figures in notebooks."""
    cells = (c for p in (ROOT / "notebooks").glob("*.ipynb") for c in nbformat.read(p, 4).cells)
    return {c.metadata.get("mystnb", {}).get("figure", {}).get("name", "") for c in cells}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_has_an_anchor(name: str) -> None:
    """The file is there, and so is the heading, the named anchor or the figure."""
    text, broken = text_of(PAGES[name]), []
    named = {anchor for page in PAGES.values() for anchor in ANCHOR.findall(text_of(page))}
    links = [link for link in LINK.findall(text) if not urlsplit(link).scheme]
    assert len(links) > 40
    known: dict[Path, set[str]] = {}
    for link in links:
        file, _, anchor = link.partition("#")
        path = (ROOT / "book" / file).resolve()
        if file and not path.exists():
            broken.append(link)
        elif file and anchor:
            known.setdefault(path, slugs(text_of(path)))
            broken += [] if anchor in known[path] else [link]
        elif anchor and anchor not in named:
            broken.append(link)
    drawn = figures()
    broken += [label for label in re.findall(r"\{numref\}`(.+?)`", text) if label not in drawn]
    assert not broken, "\n".join(broken)


def test_every_question_names_its_thread_and_a_section() -> None:
    """Sixty and more; each has a short anchor, a thread by its title, and a way into the book."""
    text = text_of(PAGES["questions"])
    entries = re.split(r"^(?=\{#q-)", text, flags=re.MULTILINE)[1:]
    assert len(entries) >= 60
    anchors, threads = [], []
    for entry in entries:
        (anchor,), (asked,) = ANCHOR.findall(entry), ASKED.findall(entry)
        answer = entry[: entry.index("{.asked}")].split("\n\n", 1)[1]
        cited = [link for link in LINK.findall(asked) if link.startswith("https://")]
        assert cited and asked.count("[*") == len(cited), anchor
        assert ".ipynb#" in answer or "{numref}" in answer or ".md#" in answer, anchor
        assert len(anchor) <= 26 and 2 <= len(re.findall(r"[.?](?:\s|$)", answer)) <= 9, anchor
        anchors.append(anchor)
        threads += cited
    assert len({*anchors}) == len(anchors) and len({*threads}) == len(threads)


def test_the_hours_of_the_whole_book() -> None:
    """Reading at 200 words a minute, and the times beside the exercises."""
    chapters = [text_of(path) for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))]
    told = text_of(ROOT / "book" / "how_to_read.md")
    minutes = sum(int(n) for text in chapters for n in re.findall(r"\(★+, (\d+) min\b", text))
    assert f"a time beside them add up to {minutes / 60:.0f}." in told
    assert "some six hours of reading" in told
    assert 5.5 < sum(len(text.split()) for text in chapters) / 200 / 60 < 7


def test_vowel_signs_are_pieces_of_their_own() -> None:
    """What the page says of an Arabic sentence, and its remedy."""
    text = text_of(PAGES["questions"])
    (remedy,) = re.findall(r'`re\.sub\("(\[.+?\])", "", text\)`', text)
    sentence = "قَرَأَ صَدِيقِي كِتَابًا فِي الْحَدِيقَةِ أَمْسِ"
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    signs, plain = len(cut(sentence)), len(cut(re.sub(remedy, "", sentence)))
    assert f"of six words is {signs} pieces with them and {plain} without" in text
    assert len(sentence.split()) == 6


def test_the_price_is_computed_in_the_chapter() -> None:
    text, cells = text_of(PAGES["questions"]), nbformat.read(ROOT / "notebooks/27_wmt14.ipynb", 4)
    printed = "".join(out.get("text", "") for c in cells.cells for out in c.get("outputs", []))
    one, other = (
        re.findall(rf"base 1 x {gpu} .* ([\d.]+) hours at 20%", printed)[0]
        for gpu in ("H100", "RTX 4090")
    )
    assert f"takes {one} hours on one H100 and {other} on an RTX 4090" in text


def test_symptoms_quote_the_log() -> None:
    """Each illness of the log is a row of a table, with its numbers; so is what the prose says."""
    lines = (ROOT / "benchmarks" / "results" / "symptoms.jsonl").read_text().splitlines()
    settings, heart, *records = map(json.loads, lines)
    early, middle, late = (r for r in records if r["what"] == "healthy")
    known = {record["what"]: record for record in records}
    text, quoted = text_of(PAGES["troubleshooting"]), set()
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        rows = [
            [c.strip(" *…").replace("`", "") for c in row.split("|")[1:-1]]
            for row in table.splitlines()
        ]
        header = rows[0]
        for what, *cells in rows[2:]:
            if what in known:
                quoted.add(what)
                for name, cell in zip(header[1:], cells, strict=True):
                    held = known[what][COLUMNS[name]]
                    same = cell in str(held)[:80] if name == "it writes" else held == float(cell)
                    assert same, f"{what}, {name}: {cell} in the page, {held} in the log"
    assert quoted == {*known} and heart["exact"] == 10
    gaps = [r["neighbors_source"] - r["validation_loss"] for r in (early, late)]
    for words in (
        f"entropy of the tokens, {settings['frequencies_alone']:.1f} on",
        f"from {heart['first_loss']:.1f} to {heart['last_loss']} in {heart['step']} updates",
        f"it is {gaps[0]:.1f} after {early['step']} updates and {gaps[1]:.1f} after",
        f"in {early['loops']} after {early['step']} updates, in {middle['loops']} after",
        f"again in {late['loops']} after {late['step']}",
        f"{early['bleu']} after {early['step']} updates, {middle['bleu']} after {middle['step']}",
        f"and {late['bleu']} after {late['step']}",
        f"writes {known['source mask inverted']['different']} different sentences",
        f"{known['three of four untranslated']['german']} of {settings['sentences']} outputs",
        f"{known['no </s> in the targets']['endless']} of {settings['sentences']} translations",
    ):
        assert words in text, words
