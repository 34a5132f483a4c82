"""The book's own script: it draws when it can, and leaves the still picture when it cannot."""

import json

import pytest

STILL = (
    '<svg role="img" aria-label="A rising line." width="50" height="50">'
    "<text>still</text></svg>"
)
PAGE = (
    "<!doctype html><meta charset=utf-8><title>figures</title>{body}"
    '<script defer src="figures.js"></script>'
)


def chart(spec):
    """A chart as the notebooks store it."""
    data = f'<script type="application/json">{json.dumps(spec)}</script>'
    return f'<figure class="book-chart">{STILL}{data}</figure>'


LINE = {
    "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
    "params": [
        {"name": "width", "value": 2, "bind": {"input": "range", "min": 1, "max": 9}}
    ],
    "mark": "line",
    "encoding": {
        "x": {"field": "x", "type": "quantitative"},
        "y": {"field": "y", "type": "quantitative"},
    },
}


@pytest.fixture
def open_body(open_text):
    """A function that opens a page with the given body."""

    def open_body(body):
        tab = open_text(PAGE.format(body=body), ("figures.js", "vega.js"))
        tab.mouse.move(1, 1)  # charts wait for that
        return tab

    return open_body


def test_a_chart_comes_alive_and_keeps_its_label(open_body):
    """The live chart replaces the still, has its label, and a control that reacts."""
    tab = open_body(chart(LINE))
    tab.wait_for_selector("figure[data-drawn=true]")
    assert tab.locator("text=still").count() == 0
    assert tab.locator("figure svg").get_attribute("aria-label") == "A rising line."
    assert tab.locator("figure input[type=range]").count() == 1


@pytest.mark.parametrize(
    "spec", [{"mark": "no such mark"}, {**LINE, "data": {"url": "data.csv"}}]
)
def test_a_chart_that_fails_stays_a_picture(open_body, wait_for_still, spec):
    """A broken specification, or one that wants data from elsewhere, leaves the still."""
    wait_for_still(open_body(chart(spec)))


def test_nothing_loads_before_it_is_near(open_body):
    """Far from the reader a chart stays still; it is drawn when scrolled to."""
    tab = open_body(f'<div style="height: 5000px"></div>{chart(LINE)}')
    tab.wait_for_timeout(500)
    assert tab.locator("[data-drawn]").count() == 0
    tab.locator("figure").scroll_into_view_if_needed()
    tab.wait_for_selector("figure[data-drawn=true]")
