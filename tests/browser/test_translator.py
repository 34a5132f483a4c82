"""The translator of the first page: recorded, then live after a click; and a page of its own."""

import json
from itertools import chain

import pytest
import torch

from annotated_transformer.toolkit.export import export_page
from annotated_transformer.toolkit.model_io import load_pretrained
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.page import MOST
from tools.recordings import OUTPUT, WHAT_IF

RECORDED = json.loads(OUTPUT.read_text(encoding="utf-8"))
FIRST = RECORDED[0]
READY = "figure[data-module=translator][data-drawn=true]"
TRANSLATOR = "figure:not(.inside)"  # an exported page looks inside in another figure
CALM = {"reduced_motion": "reduce"}  # a translation is shown as soon as it is whole


@pytest.fixture
def open_first(open_page, address):
    """A function that opens the first page with its translator alive."""

    def open_first(root=address, **options):
        tab = open_page(f"{root}book/index.html", **options)
        tab.wait_for_selector(READY)
        return tab

    return open_first


def translate(tab, text):
    """Type a text, and wait until its translation is whole."""
    figure = tab.locator(TRANSLATOR)
    figure.locator(".translator-form input").fill(text)
    tab.keyboard.press("Enter")
    told = figure.locator(".translator-said:has-text('Translation:')")
    told.wait_for(timeout=60_000)
    return said(tab)


def said(tab):
    """What the page says of the step."""
    return tab.locator(f"{TRANSLATOR} .translator-said").inner_text()


def shown(tab, side):
    """The visible tokens of the source or the target."""
    return tab.locator(f".translator-{side} > :visible").all_inner_texts()


def drawn_weights(step):
    """The recorded weights that are large enough for a line."""
    return [weight for weight in step["look"] if weight >= 0.02]


def opacities(tab):
    """Those of the lines that are drawn."""
    paths = tab.locator(".translator-lines path").all()
    return [float(path.get_attribute("stroke-opacity")) for path in paths]


def test_without_scripts_it_steps_through_a_recording(open_page, address):
    """Each word is a button that shows its lines and its rivals."""
    tab = open_page(f"{address}book/index.html", java_script_enabled=False)
    assert tab.locator(".translator-text").inner_text() == FIRST["steps"][-1]["text"]
    assert shown(tab, "source") == FIRST["source"]
    for step in FIRST["steps"]:
        labels = tab.locator(".translator-target label")
        labels.get_by_text(step["token"], exact=True).click()
        lines = tab.locator(".translator-lines:visible")
        assert lines.count() == 1
        assert f"“{step['token']}”" in lines.get_attribute("aria-label")
        assert lines.locator("path").count() == len(drawn_weights(step))
        best = tab.locator(".translator-best li:visible span:first-child")
        assert best.all_inner_texts() == [name for name, _ in step["best"]]
    assert tab.locator(".translator-form").count() == 0


def test_recordings_need_no_model(open_first):
    """The examples play, with what went wrong at the end, and nothing is loaded for it."""
    tab = open_first(**CALM)
    for example in RECORDED:
        tab.get_by_role("button", name=example["text"], exact=True).click()
        assert shown(tab, "target") == [step["token"] for step in example["steps"]]
        ending = f"{example['steps'][-1]['text']} {example['note']}"
        assert said(tab).endswith(ending.strip())
    assert len(RECORDED) == 8
    assert not {"engine.js", "model.js"} & {*tab.requested}


def test_words_appear_one_at_a_time(open_first):
    """It plays once and stops; Previous, Next and Play lead through it again."""
    tab = open_first()
    tab.get_by_role("button", name=FIRST["text"], exact=True).click()
    assert len(shown(tab, "target")) < 4
    tab.get_by_role("button", name="Pause").click()
    before = len(shown(tab, "target"))
    tab.wait_for_timeout(1000)
    assert len(shown(tab, "target")) == before
    tab.get_by_role("button", name="Next").click()
    assert len(shown(tab, "target")) == before + 1
    tab.get_by_role("button", name="Play").click()
    tab.locator(".translator-said:has-text('Translation:')").wait_for()
    assert tab.get_by_role("button", name="Play").is_visible()
    tab.get_by_role("button", name="Previous").click()
    assert said(tab).startswith(f"Step {len(FIRST['steps']) - 1} of")


@pytest.mark.parametrize("opened", ["below a path", "as a file"])
def test_live_as_recorded(open_first, site, serve, opened):
    """What is typed is translated by the model in the page; each example as PyTorch recorded it."""
    with serve(site.parent) as server:  # so the site lies in /html/
        root = f"{site.as_uri()}/"
        examples = RECORDED[:1]
        if opened == "below a path":
            root = f"{server}{site.name}/"
            examples = RECORDED
        tab = open_first(root, **CALM)
        button = tab.locator(".translator-form button")
        assert "MB" in button.inner_text()
        for example in examples:
            translation = example["steps"][-1]["text"]
            text = translate(tab, example["text"])
            assert text.endswith(f"Translation: {translation}")
            check_steps(tab, example)
        assert button.inner_text() == "Translate"


def check_steps(tab, example):
    """Each step of a translation is the recorded one: tokens, the best word, and the lines."""
    steps = example["steps"]
    assert shown(tab, "source") == example["source"]
    assert shown(tab, "target") == [step["token"] for step in steps]
    for number, step in enumerate(steps):
        tab.locator(".translator-target label").nth(number).click()
        bars = tab.locator(".translator-best li")
        name, share = step["best"][0]
        assert bars.locator("span").first.inner_text() == name
        width = bars.first.locator("i").get_attribute("style").partition(":")[2]
        assert float(width) == pytest.approx(share, abs=0.002)
        lines = opacities(tab)
        recorded = drawn_weights(step)
        if len(lines) == len(recorded):  # unless one lies at the limit
            assert lines == pytest.approx(recorded, abs=0.002)


ANOTHER = """usual => {
    const said = document.querySelector('.translator-said').innerText
    return !said.includes('Translating') && said !== usual
}"""


def test_what_if(open_first):
    """A changed model is asked at once, also for an example; put back, it writes as before."""
    tab = open_first(**CALM)
    usual = translate(tab, FIRST["text"])
    tab.locator(".book-translator summary").click()
    mask = tab.get_by_label("Causal mask")
    silenced = tab.get_by_label("Silenced")
    option = tab.locator(
        ".book-translator option", has_text="cross, layer 3: all heads"
    )
    all_heads = option.get_attribute("value")
    changes = [
        (mask.uncheck, mask.check),
        (
            lambda: silenced.select_option(all_heads),
            lambda: silenced.select_option(""),
        ),
    ]
    for change, undo in changes:
        change()
        tab.wait_for_function(ANOTHER, arg=usual)
        undo()
        tab.locator(".translator-said").get_by_text(usual).wait_for()
    tab.get_by_role("checkbox", name="Positions").uncheck()
    tab.get_by_role("button", name=RECORDED[2]["text"], exact=True).click()
    tab.locator(".translator-said:has-text('Translation:')").wait_for()
    last_step = RECORDED[2]["steps"][-1]
    assert opacities(tab) != pytest.approx(drawn_weights(last_step), abs=0.002)


def test_beam(open_first):
    """With a beam it writes what the search in PyTorch has found."""
    recorded = json.loads(WHAT_IF.read_text(encoding="utf-8"))["search"]
    assert recorded["start"]["alpha"] == 0.6  # which the engine takes by itself
    rows = chain.from_iterable(recorded["rounds"])
    endings = [row for row in rows if row["ended"]]
    tab = open_first(**CALM)
    greedy = translate(tab, recorded["text"]).partition("Translation: ")[2]
    tab.locator(".book-translator summary").click()
    tab.get_by_label("Beam").fill(str(recorded["start"]["beam"]))
    best = max(endings, key=lambda row: row["score"])["text"]
    assert best != greedy
    tab.locator(".translator-said", has_text=f"Translation: {best}").wait_for()


def test_odd_input_gets_a_sentence(open_first):
    """Nothing, no words, too much, letters that it never saw, and a text in a hurry."""
    tab = open_first(**CALM)
    field = tab.locator(".translator-form input")
    for text, answer in [
        ("  ", "Type a sentence first."),
        ("?! 🦊", "There is no word in that. Type a sentence."),
        ("Hund " * 200, f"subwords, and this page takes {MOST}. Give it one sentence."),
    ]:
        field.fill(text)
        tab.keyboard.press("Enter")
        tab.locator(".translator-said").get_by_text(answer).wait_for()
    assert "byte by byte" in translate(tab, 20 * "犬")
    assert "no end" in translate(tab, f"Nummer {40 * '2'}")
    assert translate(tab, "<b>Hund</b> </s> \ud83e\udd8a")
    field.fill("Ein Mann schläft.")  # the last one asked is the one that is answered
    tab.keyboard.press("Enter")
    assert FIRST["steps"][-1]["text"] in translate(tab, FIRST["text"])


def test_keyboard_and_announcements(open_first):
    """Field, button, examples, words and controls are reached and used by key, and speak."""
    tab = open_first(**CALM)
    translate(tab, FIRST["text"])
    assert tab.locator(".translator-said").get_attribute("aria-live") == "polite"
    tab.locator(".translator-target input:checked").focus()
    tab.keyboard.press("ArrowUp")
    last = len(FIRST["steps"])
    assert said(tab).startswith(f"Step {last - 1} of {last}")
    snapshot = tab.locator(".book-translator").aria_snapshot()
    for name in ("textbox", "group", "radiogroup", "radio", "Previous", "Next", "img"):
        assert name in snapshot
    assert "Play" not in snapshot


def test_a_phone_scrolls_the_examples_not_the_page(open_first):
    """At 390 and 320 pixels a long translation stays within the window."""
    tab = open_first(viewport={"width": 390, "height": 844}, **CALM)
    tab.get_by_role("button", name=RECORDED[3]["text"], exact=True).click()
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        target = tab.locator(".translator-target").bounding_box()
        assert target["x"] + target["width"] <= width


def test_a_page_that_stays_responsive(open_first):
    """While the model works, the page does not stop."""
    tab = open_first(**CALM)
    translate(tab, FIRST["text"])
    tab.evaluate("""() => {
        window.pause = 0;
        let last = performance.now();
        setInterval(() => {
            const now = performance.now();
            [pause, last] = [Math.max(pause, now - last), now];
        }, 5);
    }""")
    translate(tab, RECORDED[1]["text"])
    assert tab.evaluate("pause") < 500


def test_memory(browser, open_first):
    """The model and its work take less than 100 MB of the browser's processes for pages."""
    psutil = pytest.importorskip("psutil")
    system = browser.new_browser_cdp_session()

    def megabytes():
        processes = system.send("SystemInfo.getProcessInfo")["processInfo"]
        pages = [
            process["id"] for process in processes if process["type"] == "renderer"
        ]
        return sum(psutil.Process(number).memory_info().rss for number in pages) / 1e6

    tab = open_first(**CALM)
    before = megabytes()
    translate(tab, FIRST["text"])
    translate(tab, RECORDED[1]["text"])
    assert 3 < megabytes() - before < 100


def test_a_lost_model_is_told(open_first):
    """Without its file the page says so, and another click tries again."""
    tab = open_first(**CALM)
    tab.route("**/model.js", lambda route: route.abort())
    tab.locator(".translator-form button").click()
    tab.locator(".translator-said").get_by_text("could not be loaded").wait_for()
    tab.unroute("**/model.js")
    assert translate(tab, FIRST["text"])
    tab.faults.clear()  # the browser's own line on the file


def test_a_page_of_its_own(open_page, tmp_path):
    """One file, opened without a network, translates and draws; its name stays text."""
    file = tmp_path / "<b>captions<!--.html"
    export_page(*load_pretrained(), file)
    for scheme in ("light", "dark"):
        tab = open_page(file.as_uri(), color_scheme=scheme, offline=True, **CALM)
        assert tab.title() == "<b>captions<!-- translates"
        assert tab.locator("h1").inner_text() == "<b>captions<!--"
        assert translate(tab, FIRST["text"]).endswith(FIRST["steps"][-1]["text"])
        assert tab.locator(".translator-lines path").count() > 0
        assert [name for name in tab.requested if "." in name] == [
            file.as_uri().rpartition("/")[2]
        ]
        tab.locator(".book-translator summary").click()
        assert tab.locator(".book-translator option").count() == 1 + 3 * 3 * (
            1 + 4
        )  # kinds, layers, heads
        for width in (390, 320):
            tab.set_viewport_size({"width": width, "height": 844})
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_of_a_model_with_few_positions(open_page, tmp_path):
    """It says what it can take, which is less than usual."""
    _, tokenizer = load_pretrained()
    torch.manual_seed(0)
    few = TransformerConfig(
        len(tokenizer), 1, 8, 12, 2, max_length=9, positions="learned"
    )
    export_page(Transformer(few), tokenizer, tmp_path / "few.html")
    tab = open_page((tmp_path / "few.html").as_uri(), **CALM)
    tab.locator(f"{TRANSLATOR} .translator-form input").fill("Hund " * 9)
    tab.keyboard.press("Enter")
    told = tab.locator(f"{TRANSLATOR} .translator-said")
    told.get_by_text("this page takes 8.").wait_for()
    assert translate(tab, "Hund Hund")
