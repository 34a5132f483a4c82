"""The figure of chapter 11 that steps through its sheets: the same numbers, no model, no clash."""

import json

import pytest

from tools.by_hand import OUTPUT, record
from tools.inside import lines_by_hand

CALM = {"reduced_motion": "reduce"}
PAGE = "notebooks/11_by_hand.html"
FIGURE = "#fig-hand-inside"
PLACES = {
    "machine": "#word=5",
    "layer": "#layer=1&word=5",
    "head": "#side=encoder&layer=1&head=2&word=1&step=3",
    "network": "#side=encoder&layer=1&part=network&word=4",
}
TABLES = """(figure) => [...figure.querySelectorAll("table")].map((table) => {
    const cells = (row) => [...row.cells].slice(1).map((cell) => cell.textContent);
    return { title: table.caption.textContent, rows: [...table.rows].slice(1).map(cells) };
})"""
GROUPS = """(table) => {
    const names = ["query", "keys", "scores", "weights", "values", "sum"];
    const cells = (name) => [...table.querySelectorAll(`td.is-${name}`)];
    const texts = (name) => cells(name).map((cell) => cell.textContent);
    return Object.fromEntries(names.map((name) => [name, texts(name)]));
}"""


@pytest.fixture
def open_by_hand(open_page, address):
    """A function that opens the chapter at a place of its figure, and gives tab and figure."""

    def open_by_hand(place="", **options):
        tab = open_page(f"{address}{PAGE}{place}", **CALM | options)
        figure = tab.locator(FIGURE)
        if options.get("java_script_enabled", True):
            figure.scroll_into_view_if_needed()
            tab.wait_for_selector(f"{FIGURE} [data-drawn=true]")
        return tab, figure

    return open_by_hand


def sheets(tab, name):
    """The tables of one of the chapter's figures by title: rows of numbers as they are printed."""
    found = tab.locator(f"#{name}").evaluate(TABLES)
    return {table["title"]: table["rows"] for table in found}


def go(tab, place):
    """Go to a place of the figure."""
    tab.evaluate("place => { location.hash = place; }", place)
    tab.locator(f"{FIGURE} .inside-crumbs a").first.wait_for()
    tab.wait_for_function("location.hash.includes('=')")


def columns(figure, selector):
    """The numbers of each vector that is written out."""
    lists = figure.locator(f"{selector} .inside-numbers").all()
    return [numbers.locator("li").all_inner_texts() for numbers in lists]


def test_the_recording_is_what_the_chapter_computes():
    """By the chapter's own cells; if they change, python -m tools.by_hand records them."""
    assert json.loads(json.dumps(record())) == json.loads(OUTPUT.read_text("utf-8"))


def test_without_scripts_there_is_a_picture(open_by_hand):
    """Both towers with all their numbers, at the word that the sheets compute."""
    tab, figure = open_by_hand(java_script_enabled=False)
    state = columns(figure, ".inside-decoder tr:nth-child(2) td.chosen")
    assert state == [
        ["−1.13", "−1.05", "0.94", "−0.57", "0.34", "−0.83", "0.50", "1.82"]
    ]
    memory = sheets(tab, "fig-hand-memory")["memory: m"]
    assert columns(figure, ".inside-encoder tr:nth-child(2)") == memory
    given = sheets(tab, "fig-hand-input")["= x"]
    assert columns(figure, ".inside-encoder tr:nth-child(3)") == given
    assert figure.locator(".inside-best .chosen").inner_text().split() == [
        "fish",
        "65%",
    ]


@pytest.mark.parametrize("head", [1, 2])
@pytest.mark.parametrize("word", range(1, 6))
def test_a_head_shows_the_numbers_of_the_sheets(open_by_hand, head, word):
    """Queries, keys, values, scores and weights of every word in the encoder's two heads."""
    tab, figure = open_by_hand(f"#side=encoder&layer=1&head={head}&word={word}")
    tables = sheets(tab, f"fig-hand-head-{head}")
    row = word - 1
    texts = figure.locator(".inside-matrices").evaluate(GROUPS)
    width = len(tables["Q"][0])  # the sheet of head 2 leaves out a column of zeros
    query = texts["query"]
    assert query[:width] == tables["Q"][row]
    assert {*query[width:]} <= {"0.00"}
    keys = [texts["keys"][i : i + width] for i in range(0, 10, 2)]
    assert keys == tables["K"]
    assert texts["values"] == [number for row in tables["V"] for number in row]
    assert texts["weights"] == tables["weights"][row]
    if "scores" in tables:
        assert texts["scores"] == tables["scores"][row]
    handed_over = sheets(tab, "fig-hand-head-2")["handed over"][row]
    assert texts["sum"] == (handed_over[:2] if head == 1 else handed_over[2:])


def test_a_layer_shows_the_numbers_of_the_sheets(open_by_hand):
    """What comes in, what is added, the sum, and the norm, for each word of the encoder."""
    tab, figure = open_by_hand("#side=encoder&layer=1&word=1")
    given = sheets(tab, "fig-hand-input")["= x"]
    tables = sheets(tab, "fig-hand-memory")
    for word in range(5):
        go(tab, f"side=encoder&layer=1&word={word + 1}")
        after, before = figure.locator(".inside-sublayer").all()  # read upwards
        stream, _, _, normalized = columns(before, ".inside-sum")
        assert stream == given[word]
        assert normalized == tables["norm: a"][word]
        *_, memory = columns(after, ".inside-sum")
        assert memory == tables["memory: m"][word]
        units = columns(after, ".inside-firing")
        assert units == [tables["units"][word]]


def test_the_decoder_shows_the_numbers_of_the_sheets(open_by_hand):
    """Weights of its self-attention, cross-attention, and all the text says of its norms."""
    tab, figure = open_by_hand("#layer=1&word=5")
    network, cross, own = figure.locator(".inside-sublayer").all()
    means = [part.locator(".inside-sum").inner_text() for part in (own, cross, network)]
    for text, said in zip(
        means, [("0.07", "1.06"), ("1.17", "1.88"), ("0.00", "1.25")]
    ):
        assert " ".join(text.split()).count(f"mean {said[0]}, deviation {said[1]}") == 1
    weights = sheets(tab, "fig-hand-decoder")["weights"]
    for head in range(2):
        go(tab, f"layer=1&part=self&head={head + 1}&word=5")
        assert figure.locator("td.is-weights").all_inner_texts() == weights[head]
    tables = sheets(tab, "fig-hand-cross")
    go(tab, "layer=1&part=cross&head=1&word=5")
    assert figure.locator("td.is-query").all_inner_texts() == tables["Q"][0]
    scores, weights = tables["scores and weights"]
    assert figure.locator("td.is-scores").all_inner_texts() == scores
    assert figure.locator("td.is-weights").all_inner_texts() == weights
    added = figure.locator(".inside-join .inside-named li").all_inner_texts()
    assert added[-6:] == tables["3 × the blend"][0]


def test_its_lines_are_those_of_the_chapter(open_by_hand):
    """A cell that a reader sees has each of them."""
    tab, figure = open_by_hand("#layer=1&part=self&head=1&word=5")
    lines = lines_by_hand()
    shown = figure.locator(".inside-code code").all_inner_texts()
    order = ("query", "key", "scores", "weights", "value", "sum", "output")
    assert shown == [lines[step] for step in order]
    go(tab, "layer=1&head=1&word=5")
    shown += figure.locator(".inside-code code").all_inner_texts()
    assert lines["cross.output"] in shown
    code = tab.locator(".cell_input:visible").all_inner_texts()
    assert all(any(line in cell for cell in code) for line in lines.values())


def test_it_needs_no_model(open_by_hand):
    """Nor a field for other sentences; it walks with buttons and with keys."""
    tab, figure = open_by_hand()
    assert figure.locator("form").count() == 0
    figure.locator(".inside-encoder [data-to]").first.click()
    figure.locator(".inside-layer").wait_for()
    tab.get_by_role("link", name="Head 2").click()
    figure.locator(".inside-head").wait_for()
    tab.keyboard.press("ArrowRight")
    assert "step=2" in tab.url
    tab.keyboard.press("Escape")
    figure.locator(".inside-layer").wait_for()
    assert not {"model.js", "engine.js", "inside_example.js"} & {*tab.requested}


def test_places_and_anchors_of_the_page_leave_each_other_alone(open_by_hand):
    """A link to a section moves no figure; a link to a place of the figure opens it there."""
    tab, figure = open_by_hand("#layer=1&head=1&word=4&step=4")
    crumbs = figure.locator(".inside-crumbs [aria-current]")
    place = ["1", "1", "cat"]
    assert crumbs.all_inner_texts() == place
    assert figure.locator(".inside-matrices").is_visible()
    tab.evaluate("location.hash = 'the-first-head'")
    tab.wait_for_timeout(300)
    assert crumbs.all_inner_texts() == place
    heading = tab.locator("#the-first-head h2")
    assert 0 <= heading.bounding_box()["y"] < 300
    tab.evaluate("location.hash = 'layer=1&head=1&word=1&text=Hallo'")
    figure.locator(".inside-crumbs [aria-current]:text-is('(empty)')").wait_for()


def test_a_link_brings_the_figure_into_view(open_page, address):
    """Though it stands far down the page."""
    tab = open_page(f"{address}{PAGE}#layer=1&head=1&word=4", **CALM)
    figure = tab.locator(FIGURE)
    figure.locator(".inside-head").wait_for()
    tab.wait_for_timeout(500)
    assert 0 <= figure.locator(".inside-crumbs").bounding_box()["y"] < 600


def test_blank_sheets_and_paper_leave_it_out(open_by_hand):
    tab, figure = open_by_hand()
    tab.evaluate("location.hash = 'blank'")
    assert not figure.is_visible()
    tab.evaluate("location.hash = 'sources'")
    assert figure.is_visible()
    tab.emulate_media(media="print")
    assert not figure.is_visible()


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_phone_scrolls_the_figure_not_the_page(open_by_hand, place):
    tab, _ = open_by_hand(place, viewport={"width": 390, "height": 844})
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
