"""The book's figures: one palette, drawings that follow the page, and how far they may shrink."""

import re

import pytest

pytest.importorskip("vl_convert")

from book import figures, machine
from tools.chapters import ROOT, chapters, code_sources

CSS = (ROOT / "book" / "site" / "assets" / "book.css").read_text(encoding="utf-8")
LIGHT, DARK = CSS[: CSS.index("@media screen")], CSS[CSS.index("@media screen") :]
SERIES = ("sky", "amber", "plum")


def test_colors_of_text_are_those_of_figures():
    """A query is as blue in a sentence as in a drawing."""
    for name in ("query", "key", "value", "position", *SERIES):
        assert f"--book-{name}: {getattr(figures, name.upper()).lower()};" in LIGHT


def contrast(color, other):
    """Return the contrast of two colors, as WCAG computes it."""

    def luminance(code):
        shares = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(color), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_series_stand_out_from_the_page(theme):
    """On a light page and on a dark one each color has a contrast of 3."""

    def color(name):
        code = re.search(rf"--book-{name}: (#\w+);", theme)[1]
        return "#" + 2 * code[1:] if len(code) == 4 else code

    paper = "#ffffff" if theme is LIGHT else color("paper")
    for name in SERIES:
        assert contrast(color(name), paper) >= 3, name
    for role in (figures.QUERY, figures.KEY, figures.VALUE, figures.POSITION):
        assert contrast(role, paper) >= 3, role


def test_no_chapter_names_a_color_by_its_code():
    """One place defines the colors of figures; notebooks take them from there."""
    for chapter in chapters():
        for source in code_sources(chapter.read_script()):
            code = re.search(r"#[0-9A-Fa-f]{6}\b", source)
            assert code is None, f"{chapter.script.name}: {code}"


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


def test_a_hatch_is_seen_on_its_pale_ground(monkeypatch):
    """Only the ground is transparent: the lines of the hatch keep their color."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    shown = []
    monkeypatch.setattr(
        figures, "display_all", lambda page, image, alt: shown.append(page)
    )
    with pyplot.rc_context():
        figures.style()
        _, axis = pyplot.subplots()
        axis.bar([1], [1], fc=(figures.SKY, 0.25), ec=figures.SKY, hatch="//")
        figures.show_plot(alt="A bar.")
    (pattern,) = re.findall(r"<pattern.*?</pattern>", shown[0])
    assert pattern.count("opacity") == 1 and 'fill-opacity="0.25"' in pattern
    assert not re.search(r"fill: url\(#[\w-]+\); fill-opacity", shown[0])


def test_a_signed_matrix_has_no_color_at_zero():
    """Size is how full a cell is, sign its color: true on a light page and on a dark one."""
    spec = figures.heatmap([[1.0, -0.5]], ["a"], ["b", "c"], signed=True).to_dict()
    cells = spec["layer"][0]["encoding"]
    assert cells["fillOpacity"]["scale"]["range"] == [0, 1]
    assert cells["fill"]["condition"] == {
        "test": "datum.value < 0",
        "value": figures.AMBER,
    }
    assert cells["fill"]["value"] == figures.PLUM


def test_the_map_is_the_drawing():
    """Of `python -m book.machine`; it opens the chapters of its parts, and only these."""
    drawn = machine.write_map()
    assert machine.MAP.read_text(encoding="utf-8") == drawn
    opened = set(re.findall(r'href="\.\./notebooks/(\w+)\.html"', drawn))
    lit = {c.module for c in chapters() if c.script.stem in opened}
    assert len(opened) == len(machine.CHAPTERS) == len(lit) and lit <= set(machine.SAYS)


def test_panels_stack_and_speak_once():
    """Each panel is a drawing of its own, and one of them says what all show."""
    panel = figures.heatmap([[1.0, 0.5]], ["a"], ["b", "c"], marked=[(0, 1)])
    drawn, _ = figures.draw([panel, panel], "the finding")
    assert drawn.count("<svg ") == 2 and "flex-wrap:wrap" in drawn
    assert drawn.count("the finding") == 1 and drawn.count('aria-hidden="true"') == 1
