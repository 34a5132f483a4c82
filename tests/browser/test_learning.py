"""The slider over checkpoints in chapter 18: recorded, then live; by key, and on a phone."""

import json

import pytest

from tools.learning import OUTPUT

RECORDED = json.loads(OUTPUT.read_text(encoding="utf-8"))
PAGE = "notebooks/18_training.html"
FIGURE = "figure[data-module=learning]"
FIRST = RECORDED["examples"][0]
STEPS = RECORDED["steps"]
LAST = len(STEPS) - 1


@pytest.fixture
def open_figure(open_page, address):
    """A function that opens the chapter in a new tab with the figure in view."""

    def open_figure(root=address, **options):
        tab = open_page(f"{root}{PAGE}", **options)
        tab.locator(FIGURE).scroll_into_view_if_needed()
        if options.get("java_script_enabled", True):
            tab.wait_for_selector(f"{FIGURE}[data-drawn=true]")
        return tab

    return open_figure


def inside(tab, selector):
    return tab.locator(f"{FIGURE} {selector}")


def written(tab):
    return inside(tab, ".translator-text").inner_text()


def weights(tab):
    """The weights that are drawn, row by row."""
    rectangles = inside(tab, "svg rect").evaluate_all(
        "all => all.map((rect) => ['x', 'fill-opacity'].map((n) => rect.getAttribute(n)))"
    )
    columns = len({x for x, _ in rectangles})
    values = [float(opacity) for _, opacity in rectangles]
    return [values[start : start + columns] for start in range(0, len(values), columns)]


def type_in(tab, text):
    inside(tab, ".translator-form input").fill(text)
    tab.keyboard.press("Enter")


def test_without_scripts_there_is_a_table(open_figure):
    tab = open_figure(java_script_enabled=False)
    rows = inside(tab, "tbody tr").all_inner_texts()
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
        for number in range(LAST, -1, -1):
            recorded = example["steps"][number]
            check_said(inside(tab, ".translator-said").inner_text(), number, recorded)
            assert weights(tab) == recorded["looks"]
            previous = inside(tab, "button:text-is('Previous')")
            previous.click(force=number == 0, timeout=2000)
        inside(tab, "input[type=range]").fill(str(LAST))
        assert written(tab) == example["steps"][-1]["text"]
    assert not {"engine.js", "checkpoints.js"} & {*tab.requested}


def check_said(text, number, recorded):
    """The text beside the figure has the numbers of a checkpoint, and says what has no end."""
    step = STEPS[number]
    assert f"After {step['step']:,} updates: loss {step['loss']:.2f}" in text
    assert f"{step['right']} of {RECORDED['translated']}" in text
    ends = recorded["tokens"][-1] == "</s>"
    assert ("no end" in text) != ends


@pytest.mark.parametrize("opened", ["below a path", "as a file"])
def test_live_as_recorded(open_figure, site, serve, opened):
    """Typed, each example comes out at each checkpoint as PyTorch recorded it."""
    with serve(site.parent) as server:
        root = f"{site.as_uri()}/"
        examples = [FIRST]
        if opened == "below a path":
            root = f"{server}{site.name}/"
            examples = RECORDED["examples"]
        tab = open_figure(root)
        button = inside(tab, ".translator-form button")
        assert "MB" in button.inner_text()
        for example in examples:
            type_in(tab, example["text"] + " ")
            inside(tab, ".translator-form button:text-is('Translate')").wait_for()
            for number, step in enumerate(example["steps"]):
                inside(tab, "input[type=range]").fill(str(number))
                output = inside(tab, ".translator-text").evaluate("e => e.value")
                ended = step["tokens"][-1] == "</s>"
                assert output == step["text"] + ("" if ended else " …")
                for row, recorded in zip(weights(tab), step["looks"], strict=True):
                    assert row == pytest.approx(recorded, abs=0.011)


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
        inside(tab, ".translator-said").get_by_text(answer).wait_for()
    type_in(tab, "Der Hund schläft.")
    tab.wait_for_function(
        f"() => document.querySelector('{FIGURE} output').value.includes('dog')"
    )
    assert "never met" not in inside(tab, ".translator-said").inner_text()


def test_keyboard_and_announcements(open_figure):
    """The slider moves by arrow keys and says where it stands; all has a name."""
    tab = open_figure(reduced_motion="reduce")
    slider = inside(tab, "input[type=range]")
    slider.focus()
    tab.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext").startswith("After 0 updates")
    tab.keyboard.press("ArrowRight")
    label = slider.get_attribute("aria-valuetext")
    assert label.startswith(f"After {STEPS[1]['step']} updates")
    assert inside(tab, ".translator-said").get_attribute("aria-live") == "polite"
    snapshot = inside(tab, "").aria_snapshot()
    for name in (
        "textbox",
        'slider "Checkpoint"',
        "Previous",
        "Next",
        "img",
        "Examples",
    ):
        assert name in snapshot


def test_a_lost_file_is_told(open_figure):
    """Without it the figure says so, and another try works."""
    tab = open_figure()
    tab.route("**/checkpoints.js", lambda route: route.abort())
    type_in(tab, "Der Hund schläft.")
    inside(tab, ".translator-said").get_by_text("could not be loaded").wait_for()
    tab.unroute("**/checkpoints.js")
    type_in(tab, "Der Hund schläft.")
    inside(tab, ".translator-form button:text-is('Translate')").wait_for()
    tab.faults.clear()  # the browser's own line on the file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_the_figure_not_the_page(open_figure, scheme):
    tab = open_figure(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    tab.get_by_role("button", name=RECORDED["examples"][-1]["text"], exact=True).click()
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
