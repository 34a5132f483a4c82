"""The translator of the first page: recorded, then live after a click; and a page of its own."""

import json
import re
import unicodedata
from itertools import chain

import pytest
import torch

from annotated_transformer.toolkit.export import export_page
from annotated_transformer.toolkit.model_io import load_pretrained
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.examples import TRIALS
from tools.page import MOST
from tools.recordings import OUTPUT, WHAT_IF
from tools.web_model import BACK, SHOWN

BOTH = json.loads(OUTPUT.read_text(encoding="utf-8"))  # directions
RECORDED = BOTH[SHOWN.name]
BACKWARDS = BOTH[BACK.name]
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
    """What the page says of the step, on one line."""
    told = tab.locator(f"{TRANSLATOR} .translator-said").inner_text()
    return " ".join(told.split())


def shown(tab, side):
    """The visible tokens of the source or the target."""
    return tab.locator(f".translator-{side} > :visible:not(.all)").all_inner_texts()


def choose_example(tab, example):
    """Press the button of an example."""
    name = f"{example['text']} {example['gloss']}"
    tab.get_by_role("button", name=name, exact=True).click()


def turn(tab, names="English → German"):
    """Press the button of a direction."""
    tab.get_by_role("button", name=names, exact=True).click()


def try_out(tab, trial):
    """Press the button of a trial, and wait for what comes of it: whole, changed, what is said."""
    name = {"name": trial.name, "exact": True}
    tab.get_by_role("button", **name).click()
    tab.wait_for_function(
        """text => {
            const [said, usual] = ["said", "usual"].map((part) =>
                document.querySelector(`.translator-${part}`).innerText);
            return said.includes("Translation:") && usual.trim() === text;
        }""",
        arg=trial.whole,
        timeout=60_000,
    )
    return tab.locator(".translator-text").inner_text().strip()


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
        choose_example(tab, example)
        assert shown(tab, "target") == [step["token"] for step in example["steps"]]
        remark = example["note"] or "Choose a word to see where it came from."
        assert said(tab).endswith(f"{example['steps'][-1]['text']} {remark}")
    assert len(RECORDED) == 8
    assert not {"engine.js", "model.js"} & {*tab.requested}


def test_words_appear_one_at_a_time(open_first):
    """It plays once and stops; Previous, Next and Play lead through it again."""
    tab = open_first()
    choose_example(tab, FIRST)
    assert len(shown(tab, "target")) < 4
    tab.get_by_role("button", name="Pause", exact=True).click()
    before = len(shown(tab, "target"))
    tab.wait_for_timeout(1000)
    assert len(shown(tab, "target")) == before
    tab.get_by_role("button", name="Next", exact=True).click()
    assert len(shown(tab, "target")) == before + 1
    tab.get_by_role("button", name="Play", exact=True).click()
    tab.locator(".translator-said:has-text('Translation:')").wait_for()
    assert tab.get_by_role("button", name="Play", exact=True).is_visible()
    tab.get_by_role("button", name="Previous", exact=True).click()
    assert said(tab).startswith(f"Step {len(FIRST['steps'])} of")


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
            assert text.startswith(f"Translation: {translation} ")
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
    choose_example(tab, RECORDED[2])
    tab.locator(".translator-said:has-text('Translation:')").wait_for()
    weights = [w for step in RECORDED[2]["steps"] for w in drawn_weights(step)]
    assert opacities(tab) != pytest.approx(weights, abs=0.002)


@pytest.mark.parametrize("name", TRIALS)
def test_each_trial_bites(open_first, name):
    """Beside what the whole model writes stands what the changed one does, other words marked."""
    tab = open_first(**CALM)
    if name == BACK.name:
        turn(tab)
    tab.locator(".book-translator summary").click()
    for trial in TRIALS[name]:
        changed = try_out(tab, trial)
        if trial.changed:
            assert changed == trial.changed
            assert tab.locator(".translator-text mark").all_inner_texts()
            assert re.search(r"Of \d+ words \d+ (is|are) (new|gone)", said(tab))
    tab.get_by_role("button", name="Whole model").click()
    tab.locator(".translator-usual").wait_for(state="hidden")


def test_nothing_changed_is_said(open_first):
    """A head that is not needed leaves each word as it was."""
    tab = open_first(**CALM)
    translate(tab, FIRST["text"])
    tab.locator(".book-translator summary").click()
    tab.get_by_label("Silenced").select_option("encoder.1.2")
    tab.locator(
        ".translator-said", has_text="The same: this head wasn’t needed"
    ).wait_for()
    translation = FIRST["steps"][-1]["text"]
    assert tab.locator(".translator-usual").inner_text().strip() == translation
    assert tab.locator("mark").count() == 0


def test_beam(open_first):
    """With a beam it writes what the search in PyTorch has found."""
    recorded = json.loads(WHAT_IF.read_text(encoding="utf-8"))["search"]
    assert recorded["start"]["alpha"] == 0.6  # which the engine takes by itself
    rows = chain.from_iterable(recorded["rounds"])
    endings = [row for row in rows if row["ended"]]
    tab = open_first(**CALM)
    translate(tab, recorded["text"])
    greedy = tab.locator(".translator-text").inner_text()
    tab.locator(".book-translator summary").click()
    tab.get_by_label("Beam").fill(str(recorded["start"]["beam"]))
    best = max(endings, key=lambda row: row["score"])["text"]
    assert best != greedy
    tab.locator(".translator-said", has_text=f"Translation: {best}").wait_for()


def test_english_is_translated_too(open_first):
    """Its examples need no model; what is typed loads its own; languages are named."""
    tab = open_first(**CALM)
    turn(tab)
    for example in BACKWARDS:
        choose_example(tab, example)
        assert shown(tab, "target") == [step["token"] for step in example["steps"]]
    assert not {"engine.js", "model.js", "model_en_de.js"} & {*tab.requested}
    for example in BACKWARDS[:2]:
        translation = example["steps"][-1]["text"]
        assert translate(tab, example["text"]).startswith(f"Translation: {translation}")
        check_steps(tab, example)
    assert "model_en_de.js" in tab.requested and "model.js" not in tab.requested
    languages = tab.evaluate(
        """() => ["form input", "source", "target", "text", "examples span", "examples small"].map(
            (part) => document.querySelector(`.translator-${part}`).lang)"""
    )
    assert languages == ["en", "en", "de", "de", "en", "de"]
    inside = tab.locator(".translator-inside")
    assert inside.get_attribute("href").startswith("inside.html#from=en&text=")
    turn(tab, "German → English")
    assert translate(tab, FIRST["text"])
    assert inside.get_attribute("href").startswith("inside.html#text=")


def test_the_other_language_is_noticed(open_first):
    """What looks like English is offered to the model that reads it, and nothing else is."""
    tab = open_first(**CALM)
    field = tab.locator(".translator-form input")
    offer = tab.locator(".translator-offer button")
    for text in ("Der Hund ist im Haus", "Hund", "Die Hand war warm", "42", ""):
        field.fill(text)
        assert offer.count() == 0
    field.fill("Where is the dog?")
    offer.click()
    tab.locator(".translator-said", has_text="Translation: Wo ist der Hund?").wait_for()
    assert field.input_value() == "Where is the dog?" and offer.count() == 0
    field.fill("Wo ist der Hund?")
    assert offer.inner_text() == "Translate from German"


def test_it_comes_to_rest_on_the_whole(open_first):
    """All lines are there, at first and after playing; a button leads there at once."""
    tab = open_first()
    every = [weight for step in FIRST["steps"] for weight in drawn_weights(step)]
    assert opacities(tab) == pytest.approx(every, abs=0.001)
    choose_example(tab, FIRST)
    assert len(shown(tab, "target")) < len(FIRST["steps"])
    tab.get_by_role("button", name="To the end").click()
    assert len(shown(tab, "target")) == len(FIRST["steps"])
    assert opacities(tab) == pytest.approx(every, abs=0.001)
    assert tab.get_by_role("radio", name="all words").is_checked()


def test_doubt_is_underlined(open_first):
    """Each token of a low share, in the sentence and in the list; the title has the share."""
    tab = open_first(**CALM)
    for example in RECORDED:
        choose_example(tab, example)
        labels = tab.locator(".translator-target > div:not(.all) label")
        for label, step in zip(labels.all(), example["steps"], strict=True):
            kind = label.get_attribute("class")
            share = step["share"]
            assert kind == (
                "" if share >= 0.8 else "doubt much" if share < 0.5 else "doubt"
            )
            title = label.get_attribute("title")
            assert float(title.strip("<%")) == pytest.approx(100 * share, abs=0.51)
        words = tab.locator(".translator-text .doubt").all_inner_texts()
        unsure = [
            s for s in example["steps"] if s["share"] < 0.8 and s["token"] != "</s>"
        ]
        assert [*map(str.strip, words)] == [
            s["token"].removeprefix("+") for s in unsure
        ]


def test_rare_words_are_named(open_first):
    """What falls into many pieces, what has ue for ü, and what is shouted; not what is usual."""
    tab = open_first(**CALM)
    assert "Did you mean “für”, “Tür”?" in translate(
        tab, "Ich habe fuer dich die Tuer auf."
    )
    assert "Did you mean “Hund”?" in translate(tab, "Der HUND ist in den USA.")
    assert "“Donaudampfschiff” (7)" in translate(tab, "Ein Donaudampfschiff fährt.")
    usual = translate(tab, "Die neuen Frauen kaufen Bücher.")
    assert "Did you mean" not in usual and "pieces" not in usual


def test_letters_may_be_typed_in_two_parts(open_first):
    """A letter and its dots are the same as the letter with dots."""
    tab = open_first(**CALM)
    text = "Ich möchte fünf Brötchen für Müllers."
    translate(tab, text)
    usual = tab.locator(".translator-text").inner_text()
    source = shown(tab, "source")
    translate(tab, unicodedata.normalize("NFD", text))
    assert tab.locator(".translator-text").inner_text() == usual
    assert shown(tab, "source") == source


@pytest.mark.parametrize("refused", ["", "12 345", "Hund " * 400])
def test_a_refusal_stays(open_first, refused):
    """Also if it comes while a translation plays."""
    tab = open_first()
    choose_example(tab, FIRST)
    tab.locator(".translator-form input").fill(refused)
    tab.keyboard.press("Enter")
    answer = re.compile("Type a sentence|this page takes")
    tab.locator(".translator-said").get_by_text(answer).wait_for()
    refusal = said(tab)
    tab.wait_for_timeout(1500)
    assert said(tab) == refusal


def test_buttons_stay_where_they_are(open_first):
    """On a phone, too, while a translation grows below them."""
    tab = open_first(viewport={"width": 390, "height": 844})
    choose_example(tab, RECORDED[-1])
    buttons = [
        tab.get_by_role("button", name=name) for name in ("Previous", "To the end")
    ]
    places = set()
    while len(shown(tab, "target")) < 8:
        places.add(tuple(str(button.bounding_box()) for button in buttons))
        tab.wait_for_timeout(200)
    assert len(places) == 1


def test_a_long_word_scrolls_within_the_figure(open_first):
    """On a phone the figure stays small, and what is chosen is in view."""
    tab = open_first(viewport={"width": 390, "height": 844}, **CALM)
    translate(
        tab, "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz" * 2
    )
    pair = tab.locator(".translator-pair")
    assert pair.evaluate("(pair) => pair.scrollHeight > pair.clientHeight")
    assert pair.bounding_box()["height"] < 500
    tab.get_by_role("button", name="Previous", exact=True).click()
    chosen = tab.locator(".translator-target :checked + label").bounding_box()
    frame = pair.bounding_box()
    assert frame["y"] <= chosen["y"] <= frame["y"] + frame["height"]


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


OVERTAKEN = """async ([first, second]) => {
    const field = document.querySelector(".translator-form input");
    const ask = (text) => {
        field.value = text;
        field.form.requestSubmit();
        return new Promise((resolve) => setTimeout(resolve)); // until the model is asked
    };
    await ask(first);
    const end = performance.now() + 3000; // the whole first answer waits to be heard
    while (performance.now() < end);
    await ask(second);
}"""


def test_a_question_asked_before_the_last_answer_is_heard(open_first):
    """The end of the first answer doesn't end the wait for the second."""
    tab = open_first(**CALM)
    translate(tab, FIRST["text"])
    tab.evaluate(OVERTAKEN, ["Ein Mann schläft.", FIRST["text"]])
    told = tab.locator(f"{TRANSLATOR} .translator-said:has-text('Translation:')")
    told.wait_for(timeout=20_000)
    assert FIRST["steps"][-1]["text"] in said(tab)


def test_keyboard_and_announcements(open_first):
    """Field, button, examples, words and controls are reached and used by key, and speak."""
    tab = open_first(**CALM)
    translate(tab, FIRST["text"])
    assert tab.locator(".translator-said").get_attribute("aria-live") == "polite"
    tab.locator(".translator-target input:checked").focus()
    tab.keyboard.press("ArrowUp")
    last = len(FIRST["steps"])
    assert said(tab).startswith(f"Step {last} of {last}")
    snapshot = tab.locator(".book-translator").aria_snapshot()
    for name in ("textbox", "group", "radiogroup", "radio", "Previous", "Next", "img"):
        assert name in snapshot
    assert "Play" not in snapshot


def test_the_focus_stays_among_the_buttons(open_first):
    """The button that leads to the end is off there, and another one has the focus."""
    tab = open_first(**CALM)
    choose_example(tab, FIRST)
    tab.get_by_role("button", name="Previous", exact=True).click()
    following = tab.get_by_role("button", name="Next", exact=True)
    following.focus()
    tab.keyboard.press("Enter")
    assert following.is_disabled()
    assert tab.evaluate("document.activeElement.textContent") == "Previous"


def test_paper_has_the_picture_without_its_buttons(open_first):
    """Neither field nor examples are printed, but what was translated is."""
    tab = open_first()
    tab.emulate_media(media="print")
    figure = tab.locator(".book-translator")
    assert figure.locator("button:visible, input[type=text]:visible").count() == 0
    assert figure.locator(".translator-lines").is_visible()


def test_a_phone_scrolls_the_examples_not_the_page(open_first):
    """At 390 and 320 pixels a long translation stays within the window."""
    tab = open_first(viewport={"width": 390, "height": 844}, **CALM)
    choose_example(tab, RECORDED[3])
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        target = tab.locator(".translator-target").bounding_box()
        assert target["x"] + target["width"] <= width


def test_a_page_that_stays_responsive(open_first):
    """While the model works, the page does not stop; a busy machine may stop it now and then."""
    tab = open_first(**CALM)
    translate(tab, FIRST["text"])
    tab.evaluate("""() => {
        let last = performance.now();
        setInterval(() => {
            const now = performance.now();
            [window.pause, last] = [Math.max(window.pause, now - last), now];
        }, 5);
    }""")
    pauses = []
    for recorded in RECORDED[1:4]:
        tab.evaluate("window.pause = 0")
        translate(tab, recorded["text"])
        pauses.append(tab.evaluate("window.pause"))
    assert 0 < min(pauses) < 500


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
    tab.wait_for_timeout(2000)  # until the page has all that it needs by itself
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


# Note in a list what a page says while its model comes
NOTED = """(said) => {
    window.noted = [];
    const note = () => noted.push(said.textContent);
    new MutationObserver(note).observe(said, { childList: true, subtree: true });
}"""
FIGURES = {
    "translator": "book/index.html",
    "inside": "book/inside.html",
    "whatif": "notebooks/04_masks.html",
}


@pytest.mark.parametrize("figure", FIGURES)
def test_one_sees_how_much_of_the_model_has_come(open_page, address, figure):
    """In percent, which grow; a screen reader hears only that it is loading."""
    tab = open_page(f"{address}{FIGURES[figure]}", **CALM)
    frame = tab.locator(f"figure[data-module={figure}]")
    frame.scroll_into_view_if_needed()
    tab.wait_for_selector(f"figure[data-module={figure}][data-drawn=true]")
    said = frame.locator(".translator-said")
    said.evaluate(NOTED)
    line = tab.context.new_cdp_session(tab)
    line.send("Network.enable")
    slow = {"offline": False, "latency": 0, "uploadThroughput": -1}
    line.send(
        "Network.emulateNetworkConditions", slow | {"downloadThroughput": 4_000_000}
    )
    frame.locator(".translator-form input").fill("Der Hund schläft.")
    frame.locator(".translator-form input").press("Enter")
    share = said.locator("span[aria-hidden]")
    share.get_by_text("%").wait_for()
    assert share.get_attribute("aria-hidden") == "true"
    share.wait_for(state="detached", timeout=60_000)
    noted = tab.evaluate("noted")
    shares = [text.split()[-1] for text in noted if text.startswith("Loading")]
    shares = [int(text.rstrip("%")) for text in shares if text.endswith("%")]
    assert len({*shares}) > 5
    assert shares == sorted(shares)
    assert 95 <= shares[-1] <= 100


def test_a_page_of_its_own(open_page, tmp_path):
    """One file, opened without a network, translates and draws; its name stays text."""
    file = tmp_path / "<b>captions<!--.html"
    export_page(*load_pretrained(), file)
    for scheme in ("light", "dark"):
        tab = open_page(file.as_uri(), color_scheme=scheme, offline=True, **CALM)
        assert tab.title() == "<b>captions<!-- translates"
        assert tab.locator("h1").inner_text() == "<b>captions<!--"
        assert FIRST["steps"][-1]["text"] in translate(tab, FIRST["text"])
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
