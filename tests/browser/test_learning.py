"""The slider over checkpoints in chapter 18: recorded, then live; by key, and on a phone."""

import json

import pytest

from tools.chapters import ROOT

RECORDED = json.loads((ROOT / "book" / "learning.json").read_text(encoding="utf-8"))
PAGE = "notebooks/18_training.html"
FIGURE = "figure[data-module=learning]"
FIRST, STEPS = RECORDED["examples"][0], RECORDED["steps"]


@pytest.fixture
def open_figure(browser, address):
    """A function that opens the chapter in a new tab with the figure in view."""
    tabs = []

    def open_figure(root=address, **options):
        tab = browser.new_page(**options)
        tabs.append(tab)
        tab.faults, tab.asked = [], []
        tab.on("pageerror", lambda error: tab.faults.append(str(error)))
        tab.on("console", lambda said: said.type == "error" and tab.faults.append(said.text))
        tab.on("request", lambda request: tab.asked.append(request.url.rpartition("/")[2]))
        tab.goto(f"{root}{PAGE}")
        tab.locator(FIGURE).scroll_into_view_if_needed()
        if options.get("java_script_enabled", True):
            tab.wait_for_selector(f"{FIGURE}[data-drawn=true]")
        return tab

    yield open_figure
    for tab in tabs:
        assert not tab.faults
        tab.close()


def part(tab, name):
    return tab.locator(f"{FIGURE} {name}")


def written(tab):
    return part(tab, ".translator-text").inner_text()


def weights(tab):
    """The weights that are drawn, row by row."""
    found = [float(r.get_attribute("fill-opacity")) for r in part(tab, "svg rect").all()]
    columns = len({r.get_attribute("x") for r in part(tab, "svg rect").all()})
    return [found[start : start + columns] for start in range(0, len(found), columns)]


def type_in(tab, text):
    part(tab, ".translator-form input").fill(text)
    tab.keyboard.press("Enter")


def test_without_scripts_there_is_a_table(open_figure):
    tab = open_figure(java_script_enabled=False)
    rows = part(tab, "tbody tr").all_inner_texts()
    assert len(rows) == len(STEPS)
    for row, line, step in zip(rows, STEPS, FIRST["steps"]):
        assert row.startswith(f"{line['step']:,}\t{line['loss']:.2f}")
        if step["text"].isprintable():
            assert row.endswith(step["text"].strip())


def test_recordings_need_no_model(open_figure):
    """Every example at every checkpoint, by the buttons."""
    tab = open_figure()
    for example in RECORDED["examples"]:
        tab.get_by_role("button", name=example["text"], exact=True).click()
        for place in range(len(STEPS) - 1, -1, -1):
            said, step = part(tab, ".translator-said").inner_text(), example["steps"][place]
            assert (
                f"After {STEPS[place]['step']:,} updates: loss {STEPS[place]['loss']:.2f}" in said
            )
            assert f"{STEPS[place]['right']} of {RECORDED['translated']}" in said
            assert ("no end" in said) == (step["tokens"][-1] != "</s>")
            assert weights(tab) == step["looks"]
            part(tab, "button:text-is('Previous')").click(force=place == 0, timeout=2000)
        part(tab, "input[type=range]").fill(str(len(STEPS) - 1))
        assert written(tab) == example["steps"][-1]["text"]
    assert not {"engine.js", "checkpoints.js"} & {*tab.asked}


@pytest.mark.parametrize("opened", ["below a path", "as a file"])
def test_live_as_recorded(open_figure, site, serve, opened):
    """Typed, each example comes out at each checkpoint as PyTorch recorded it."""
    with serve(site.parent) as server:
        root = f"{server}{site.name}/" if opened == "below a path" else f"{site.as_uri()}/"
        tab = open_figure(root)
        button = part(tab, ".translator-form button")
        assert "MB" in button.inner_text()
        for example in RECORDED["examples"] if opened == "below a path" else [FIRST]:
            type_in(tab, example["text"] + " ")
            part(tab, ".translator-form button:text-is('Translate')").wait_for()
            for place, step in enumerate(example["steps"]):
                part(tab, "input[type=range]").fill(str(place))
                ended = step["tokens"][-1] == "</s>"
                shown = part(tab, ".translator-text").evaluate("e => e.value")
                assert shown == step["text"] + ("" if ended else " …")
                for drawn, look in zip(weights(tab), step["looks"], strict=True):
                    assert drawn == pytest.approx(look, abs=0.011)


def test_odd_input_gets_a_sentence(open_figure):
    """Nothing, too much, and words that the grammar does not have."""
    tab = open_figure()
    for text, answer in [
        ("  ", "Type a sentence first."),
        ("Hund " * 60, "Give it one short sentence."),
        ("Der Elefant sieht Kängurus.", "It has never met “Elefant”, “Kängurus”"),
        ("<b>Hund</b> 🦊", "It has never met “b”"),
    ]:
        type_in(tab, text)
        part(tab, ".translator-said").get_by_text(answer).wait_for()
    type_in(tab, "Der Hund schläft.")
    tab.wait_for_function(f"() => document.querySelector('{FIGURE} output').value.includes('dog')")
    assert "never met" not in part(tab, ".translator-said").inner_text()


def test_keyboard_and_announcements(open_figure):
    """The slider moves by arrow keys and says where it stands; all has a name."""
    tab = open_figure(reduced_motion="reduce")
    slider = part(tab, "input[type=range]")
    slider.focus()
    tab.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext").startswith("After 0 updates")
    tab.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext").startswith(f"After {STEPS[1]['step']} updates")
    assert part(tab, ".translator-said").get_attribute("aria-live") == "polite"
    names = part(tab, "").aria_snapshot()
    for name in ("textbox", 'slider "Checkpoint"', "Previous", "Next", "img", "Examples"):
        assert name in names


def test_a_lost_file_is_told(open_figure):
    """Without it the figure says so, and another try works."""
    tab = open_figure()
    tab.route("**/checkpoints.js", lambda route: route.abort())
    type_in(tab, "Der Hund schläft.")
    part(tab, ".translator-said").get_by_text("could not be loaded").wait_for()
    tab.unroute("**/checkpoints.js")
    type_in(tab, "Der Hund schläft.")
    part(tab, ".translator-form button:text-is('Translate')").wait_for()
    tab.faults.clear()  # the browser's own line on the file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_the_figure_not_the_page(open_figure, scheme):
    tab = open_figure(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    tab.get_by_role("button", name=RECORDED["examples"][-1]["text"], exact=True).click()
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
