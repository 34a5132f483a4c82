"""The player steps through a recorded computation, by button, slider and key, and never loops."""

import json
import shutil

import pytest

STILL = '<svg role="img" aria-label="Six steps." width="50" height="50"><text>still</text></svg>'
DATA = {
    "width": 900,
    "height": 120,
    "start": 1,
    "pause": 60,
    "states": [[30, 90, 0], [80, 90, 0], [30, 30, 1], [80, 30, 2]],
    "words": [[30, 110, "Zwei", 0], [80, 110, "Hunde", 2]],
    "frames": [
        {"say": "Words.", "new": [0, 1], "lines": []},
        {"say": "Layer 1.", "new": [2], "lines": [[0, 2, 0.75], [1, 2, 0.25]]},
        {"say": "Done.", "new": [3], "lines": [[1, 3, 1]]},
    ],
}


def page(module="player", data=DATA):
    """A page with one figure, as a notebook stores it."""
    script = f'<script type="application/json">{json.dumps(data)}</script>'
    return (
        "<!doctype html><meta charset=utf-8><title>player</title>"
        f'<figure class="book-figure" data-module="{module}">{STILL}{script}</figure>'
        '<link rel="stylesheet" href="book.css"><script defer src="figures.js"></script>'
    )


@pytest.fixture
def open_page(site, browser, serve, tmp_path):
    """A function that opens a page beside the site's scripts, perhaps with reduced motion."""
    for name in ("figures.js", "player.js", "book.css"):
        shutil.copy(site / "_static" / name, tmp_path)
    tabs = []
    with serve(tmp_path) as server:

        def open_page(text, **options):
            (tmp_path / "index.html").write_text(text, encoding="utf-8")
            tab = browser.new_page(**options)
            tabs.append(tab)
            tab.said = []
            tab.on("console", lambda said: tab.said.append(said.text))
            tab.goto(server)
            return tab

        yield open_page
        for tab in tabs:
            tab.close()


@pytest.fixture
def tab(open_page):
    """A tab with the player."""
    tab = open_page(page())
    tab.wait_for_selector("figure[data-drawn=true]")
    return tab


def step(tab):
    """The number that slider and text agree on."""
    shown = tab.locator("input[type=range]").input_value()
    said = tab.locator("figure p").inner_text()
    assert said.startswith(f"Step {shown} of 3.")
    assert tab.locator("figure svg").get_attribute("aria-label") == said
    assert tab.locator("input[type=range]").get_attribute("aria-valuetext") == said
    return int(shown)


def button(tab, name):
    """A button by what it says."""
    return tab.get_by_role("button", name=name)


def test_it_opens_paused_on_the_chosen_step(tab):
    """The still is gone; nothing moves by itself."""
    assert tab.locator("text=still").count() == 0 and step(tab) == 2
    tab.wait_for_timeout(300)
    assert step(tab) == 2
    assert tab.locator("circle.new").count() == 1 and tab.locator("circle.later").count() == 1
    lines = tab.locator("figure line")
    assert [lines.nth(i).get_attribute("stroke-opacity") for i in (0, 1)] == ["0.75", "0.25"]
    assert tab.locator("figure svg text").all_text_contents() == ["Zwei"]


def test_buttons_and_slider(tab):
    """Next and Previous stop at the ends; the slider goes anywhere."""
    button(tab, "Next").click()
    assert step(tab) == 3 and button(tab, "Next").is_disabled()
    button(tab, "Previous").click()
    button(tab, "Previous").click()
    assert step(tab) == 1 and button(tab, "Previous").is_disabled()
    tab.locator("input[type=range]").fill("3")
    assert step(tab) == 3


def test_keys(tab):
    """Arrow keys, Home and End work from each part that takes the focus."""
    for part in (".player-stage", "input[type=range]"):
        tab.locator(part).focus()
        for key, reached in (("Home", 1), ("ArrowRight", 2), ("End", 3), ("ArrowLeft", 2)):
            tab.keyboard.press(key)
            assert step(tab) == reached


def test_play_stops_at_the_end(tab):
    """It plays once; at the end, Play begins anew because the reader asks for it."""
    for _ in range(2):
        button(tab, "Play").click()
        button(tab, "Play").wait_for()  # it says Pause while it plays
        assert step(tab) == 3
        tab.wait_for_timeout(300)
        assert step(tab) == 3


def test_pause(open_page):
    """Play becomes Pause and back; from the end it starts at the first step."""
    tab = open_page(page(data={**DATA, "start": 2, "pause": 60_000}))
    button(tab, "Play").click()
    assert step(tab) == 1
    button(tab, "Pause").click()
    assert button(tab, "Play").is_visible() and step(tab) == 1


def test_reduced_motion_leaves_the_steps(open_page):
    """Nothing plays by itself, and every step can be reached."""
    tab = open_page(page(), reduced_motion="reduce")
    tab.wait_for_selector("figure[data-drawn=true]")
    assert button(tab, "Play").count() == 0
    button(tab, "Next").click()
    assert step(tab) == 3


def test_a_phone_scrolls_the_drawing_not_the_page(open_page):
    """At 390 pixels the drawing keeps its size and scrolls by itself."""
    tab = open_page(page(), viewport={"width": 390, "height": 800})
    tab.wait_for_selector("figure[data-drawn=true]")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    stage = "document.querySelector('.player-stage')"
    assert tab.evaluate(f"{stage}.scrollWidth > {stage}.clientWidth + 200")


@pytest.mark.parametrize("broken", [page("nosuch"), page(data={"frames": []})])
def test_what_fails_stays_a_picture(open_page, broken):
    """An unknown module or damaged data leave the still as it is."""
    tab = open_page(broken)
    for _ in range(100):
        if any("stays a picture" in said for said in tab.said):
            break
        tab.wait_for_timeout(50)
    assert tab.locator("text=still").count() == 1 and tab.locator("[data-drawn]").count() == 0


def test_the_player_of_the_book(address, browser):
    """In the chapter it comes alive, and has six still steps without scripts."""
    chapter = address + "notebooks/21_attention_maps.html"
    tab = browser.new_page()
    tab.goto(chapter)
    figure = tab.locator("figure[data-module=player]")
    figure.scroll_into_view_if_needed()
    tab.wait_for_selector("figure[data-module=player][data-drawn=true]")
    before = tab.locator(".player p").inner_text()
    button(tab, "Next").click()
    assert "writes" in before and tab.locator(".player p").inner_text() != before
    tab.close()
    still = browser.new_page(java_script_enabled=False)
    still.goto(chapter)
    assert still.locator("figure[data-module=player] svg > g").count() == 6
    still.close()
