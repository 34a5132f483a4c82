"""The book's figures: one palette, drawings that follow the page, and how far they may shrink."""

import re

import pytest

pytest.importorskip("vl_convert")

from book import figures, machine
from tools.chapters import ROOT, chapters

CSS = (ROOT / "book" / "site" / "assets" / "book.css").read_text(encoding="utf-8")
LIGHT = CSS[: CSS.index("@media screen")]


def test_colors_of_text_are_those_of_figures():
    """A query is as blue in a sentence as in a drawing."""
    for name in ("query", "key", "value", "position", "sky", "amber", "plum"):
        assert f"--book-{name}: {getattr(figures, name.upper()).lower()};" in LIGHT


def test_a_drawing_follows_the_page_and_says_how_far_it_may_shrink():
    """Colors become the page's, a role's words its legible tint; words stay 9 pixels high."""
    words = figures.words_at(0, 9, "query", 12, figures.QUERY)
    line = figures.arrow([(0, 0), (9, 0)], figures.SKY) + figures.stream(
        [(0, 0), (1, 1)]
    )
    drawn = figures.themed_svg(
        f'<svg width="400" viewBox="0 0 400 100">{words}{line}</svg>', "An arrow."
    )
    assert 'fill="var(--book-query-text, #0072B2)"' in drawn
    assert f'stroke="var(--book-sky, {figures.SKY})"' in drawn
    assert 'stroke="currentColor"' in drawn and figures.INK not in drawn
    assert "--least:300px" in drawn


def test_a_plot_is_a_drawing_without_styles_for_the_page(monkeypatch):
    """What Matplotlib draws is the same each time, in pixels, and reaches nothing around it."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    shown = []
    monkeypatch.setattr(figures, "display_all", lambda *forms: shown.append(forms))
    with pyplot.rc_context():
        figures.style()
        for _ in range(2):
            _, axis = pyplot.subplots()
            axis.plot([1, 2], [1, 3], label="a line")
            axis.legend()
            figures.show_plot(alt="It rises.")
    (page, image, alt), again = shown
    assert (page, alt) == (again[0], "It rises.") and image.startswith(b"\x89PNG")
    assert 'aria-label="It rises."' in page and ">a line</text>" in page
    assert "<style" not in page and "font-family: " not in page
    assert 'width="461"' in page and "--least:346px" in page
    assert f"var(--book-sky, {figures.SKY})" in page


def test_the_map_is_the_drawing():
    """Of `python -m book.machine`; it opens the chapters of its parts, and only these."""
    drawn = machine.write_map()
    assert machine.MAP.read_text(encoding="utf-8") == drawn
    opened = set(re.findall(r'href="\.\./notebooks/(\w+)\.html"', drawn))
    lit = {c.module for c in chapters() if c.script.stem in opened}
    assert len(opened) == len(machine.CHAPTERS) == len(lit) and lit <= set(machine.SAYS)
