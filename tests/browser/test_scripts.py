"""The book's own script: it draws when it can, and leaves the still picture when it cannot."""

import pytest

PAGE = (
    "<!doctype html><meta charset=utf-8><title>figures</title>{body}"
    '<script defer src="figures.js"></script>'
)
FIGURE = (
    '<figure data-module="toy"><svg role="img" aria-label="A word."><text>still</text></svg>'
    '<script type="application/json">{"word": "alive"}</script></figure>'
)
RENDER = "bookFigures.toy = { render: async ({ data, el }) => (el.textContent = data.word) };"
THROW = "bookFigures.toy = { render: () => Promise.reject(new Error('no')) };"
FARTHER = '<div style="height: 5000px"></div>'


@pytest.fixture
def open_body(open_text, tmp_path):
    """A function that opens a page with the given body, and perhaps a script of the figure."""

    def open_body(body, script=None):
        if script is not None:
            (tmp_path / "toy.js").write_text(script)
        return open_text(PAGE.format(body=body), ("figures.js",))

    return open_body


def test_a_figure_comes_alive(open_body):
    """Its script gets the data that lie beside the still, and takes its place."""
    tab = open_body(FIGURE, RENDER)
    tab.wait_for_selector("figure[data-drawn=true]")
    assert tab.locator("figure").text_content() == "alive"


@pytest.mark.parametrize("script", [None, "", THROW], ids=["missing", "empty", "fails"])
def test_a_figure_that_fails_stays_a_picture(open_body, wait_for_still, script):
    """A script that does not come, is no figure's, or breaks, leaves the still."""
    wait_for_still(open_body(FIGURE, script))


def test_nothing_loads_before_it_is_near(open_body):
    """Far from the reader a figure stays still; it comes alive when scrolled to."""
    tab = open_body(FARTHER + FIGURE, RENDER)
    tab.wait_for_timeout(500)
    assert tab.locator("[data-drawn]").count() == 0
    tab.locator("figure").scroll_into_view_if_needed()
    tab.wait_for_selector("figure[data-drawn=true]")
