"""The player steps through a recorded computation, by button, slider and key, and never loops."""

import json

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
def open_player(open_text):
    """A function that opens a page with a player, perhaps with reduced motion."""

    def open_player(text, **options):
        return open_text(text, ("figures.js", "player.js", "book.css"), **options)

    return open_player


@pytest.fixture
def tab(open_player):
    """A tab with the player."""
    tab = open_player(page())
    tab.wait_for_selector("figure[data-drawn=true]")
    return tab


def step(tab):
    """The number that slider and text agree on."""
    number = tab.locator("input[type=range]").input_value()
    text = tab.locator("figure p").inner_text()
    assert text.startswith(f"Step {number} of 3.")
    assert tab.locator("figure svg").get_attribute("aria-label") == text
    assert tab.locator("input[type=range]").get_attribute("aria-valuetext") == text
    return int(number)


def button(tab, name):
    """A button by what it says."""
    return tab.get_by_role("button", name=name)


def test_it_opens_paused_on_the_chosen_step(tab):
    """The still is gone; nothing moves by itself."""
    assert tab.locator("text=still").count() == 0
    assert step(tab) == 2
    tab.wait_for_timeout(300)
    assert step(tab) == 2
    assert tab.locator("circle.new").count() == 1
    assert tab.locator("circle.later").count() == 1
    first, second = tab.locator("figure line").all()
    assert first.get_attribute("stroke-opacity") == "0.75"
    assert second.get_attribute("stroke-opacity") == "0.25"
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
    presses = [("Home", 1), ("ArrowRight", 2), ("End", 3), ("ArrowLeft", 2)]
    for selector in (".player-stage", "input[type=range]"):
        tab.locator(selector).focus()
        for key, number in presses:
            tab.keyboard.press(key)
            assert step(tab) == number


def test_play_stops_at_the_end(tab):
    """It plays once; at the end, Play begins anew because the reader asks for it."""
    for _ in range(2):
        button(tab, "Play").click()
        button(tab, "Play").wait_for()  # it says Pause while it plays
        assert step(tab) == 3
        tab.wait_for_timeout(300)
        assert step(tab) == 3


def test_pause(open_player):
    """Play becomes Pause and back; from the end it starts at the first step."""
    tab = open_player(page(data={**DATA, "start": 2, "pause": 60_000}))
    button(tab, "Play").click()
    assert step(tab) == 1
    button(tab, "Pause").click()
    assert button(tab, "Play").is_visible() and step(tab) == 1


def test_reduced_motion_leaves_the_steps(open_player):
    """Nothing plays by itself, and every step can be reached."""
    tab = open_player(page(), reduced_motion="reduce")
    tab.wait_for_selector("figure[data-drawn=true]")
    assert button(tab, "Play").count() == 0
    button(tab, "Next").click()
    assert step(tab) == 3


def test_a_phone_scrolls_the_drawing_not_the_page(open_player):
    """At 390 pixels the drawing keeps its size and scrolls by itself."""
    tab = open_player(page(), viewport={"width": 390, "height": 800})
    tab.wait_for_selector("figure[data-drawn=true]")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    stage = "document.querySelector('.player-stage')"
    assert tab.evaluate(f"{stage}.scrollWidth > {stage}.clientWidth + 200")


@pytest.mark.parametrize("broken", [page("nosuch"), page(data={"frames": []})])
def test_what_fails_stays_a_picture(open_player, wait_for_still, broken):
    """An unknown module or damaged data leave the still as it is."""
    tab = open_player(broken)
    wait_for_still(tab)


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


def test_the_last_step_hands_the_focus_on(tab):
    """Next is off there; the keyboard goes on from Previous."""
    following = tab.get_by_role("button", name="Next")
    following.focus()
    tab.keyboard.press("Enter")
    assert step(tab) == 3 and following.is_disabled()
    assert tab.evaluate("document.activeElement.textContent") == "Previous"
