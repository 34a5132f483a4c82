"""The live figures in a browser: pictures first, then the model's own answers, by key as well.

That the numbers are the package's is tested without a browser, in tests/test_live.py.
"""

import re

import pytest
from axe import ALL, findings

from book.live import extension, pack, page

PHONE = {"width": 390, "height": 844}
CHAPTERS = {
    "maps": "21_attention_maps",
    "positions": "08_positional_encoding",
    "masks": "04_masks",
    "neighbors": "07_embeddings",
    "search": "19_decoding",
}
PAGES = ["book/index", "book/inside", *(f"notebooks/{c}" for c in CHAPTERS.values())]
GERMAN = extension.EXAMPLES[extension.MODELS["model"]]
FIGURE = "figure.book-translator"
SENTENCE = extension.SENTENCE
WHOLE = f"{FIGURE}:not(.waiting) > .live-said:has-text('Translation:')"


def recorded(text, model="model"):
    """The translation that was computed while the site was built."""
    return extension.record("translator", model, text)["steps"][-1]["text"]


@pytest.fixture
def open_figure(open_page, address):
    """A function that opens a page whose figure is alive; gives the tab and the figure."""

    def open_figure(name="book/index", root=address, **options):
        tab = open_page(
            f"{root}{name}.html" if "#" not in name else root + name, **options
        )
        figure = tab.locator(FIGURE).first
        if options.get("java_script_enabled", True):
            tab.locator(f"{FIGURE}[data-drawn=true]").first.wait_for()
        return tab, figure

    return open_figure


def ask(figure, text):
    figure.locator(".live-form input").fill(text)
    figure.locator(".live-form input").press("Enter")


def translate(figure, text):
    """Type a text, wait for its translation, and give it."""
    ask(figure, text)
    figure.page.locator(WHOLE).first.wait_for(timeout=60_000)
    return figure.locator(".translator-text").inner_text()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_from_its_own_host_alone(open_page, address, name):
    """Without an error, and without the model; without scripts there is a picture."""
    still = open_page(f"{address}{name}.html", java_script_enabled=False)
    picture = still.locator(f"{FIGURE} .live-still")
    assert picture.inner_text().strip() and not still.locator(".live-form").count()
    tab = open_page(f"{address}{name}.html", viewport=PHONE)
    hosts = []
    tab.on("request", lambda request: hosts.append(request.url.startswith(address)))
    tab.reload()
    tab.locator(f"{FIGURE}[data-drawn=true]").first.wait_for()
    tab.wait_for_load_state("networkidle")
    assert all(hosts) and "model.js" not in tab.requested
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("opened", ["from a server", "as a file"])
def test_what_is_typed_is_translated(open_figure, site, address, opened):
    root = address if opened == "from a server" else f"{site.as_uri()}/"
    _, figure = open_figure(root=root)
    button = figure.locator("button[type=submit]")
    assert "MB" in button.inner_text()
    for example in GERMAN[:2]:
        assert translate(figure, example.text) == recorded(example.text)
    assert button.inner_text() == "Translate"


def test_recordings_need_no_model(open_figure):
    """They say what is wrong with them; the words are chosen by key, each with its lines."""
    tab, figure = open_figure()
    for example in GERMAN:
        figure.get_by_role("button", name=example.text).click()
        assert figure.locator(".translator-text").inner_text() == recorded(example.text)
        assert example.note in figure.locator(".live-said").inner_text()
    figure.get_by_role("radio", name="all words").focus()
    words = figure.get_by_role("radio")
    for _ in range(2):
        tab.keyboard.press("ArrowUp")
    assert words.nth(words.count() - 3).is_checked()
    lines = figure.locator(".translator-lines:visible")
    assert lines.count() == 1 and "looks most at" in lines.get_attribute("aria-label")
    assert figure.locator(".translator-best li:visible").count() == 5
    assert "model.js" not in tab.requested


def test_english_is_noticed_and_translated(open_figure):
    _, figure = open_figure()
    ask(figure, "1")  # the model comes, and is not the one that is needed
    figure.locator(".live-form input").fill("Where is the dog?")
    figure.get_by_role("button", name="Translate from English").click()
    figure.page.locator(WHOLE, has_text="Wo ist der Hund?").wait_for(timeout=60_000)
    assert figure.locator(".live-form input").input_value() == "Where is the dog?"
    assert figure.locator(".translator-text").get_attribute("lang") == "de"


@pytest.mark.parametrize("name", extension.MODELS)
def test_each_trial_bites(open_figure, name):
    """Beside what the whole model writes stands what the changed one does, other words marked."""
    _, figure = open_figure()
    label = extension.LABELS[extension.LANGUAGES[name][0]]
    figure.get_by_role("button", name=f"{label} →").click()
    figure.locator("summary").click()
    for trial in extension.TRIALS[extension.MODELS[name]]:
        figure.get_by_role("button", name=trial.name).click()
        figure.page.locator(WHOLE).first.wait_for(timeout=60_000)
        figure.locator(".live-result dt").nth(1).wait_for()
        if "temperature" not in trial.options:
            assert figure.locator("mark").count()
            said = figure.locator(".live-said").inner_text()
            assert re.search(r"Of \d+ words \d+ (is|are) (new|gone)", said)
    figure.get_by_role("button", name="Whole model").click()
    figure.locator("mark").first.wait_for(state="detached")


def test_odd_input_gets_a_sentence(open_figure):
    """And where it is refused nothing stands there, for that answered something else."""
    _, figure = open_figure()
    for text, answer in {
        "  ": "Type something first.",
        "Hund " * 200: "subwords, and this page takes",
        f"Nummer {40 * '2'}": "no end",
        "Ein Donaudampfschiff fährt.": "“Donaudampfschiff” (",
    }.items():
        ask(figure, text)
        figure.locator(".live-said", has_text=answer).wait_for(timeout=60_000)
        is_refused = answer in (
            "Type something first.",
            "subwords, and this page takes",
        )
        for part in (".translator-text", ".translator-picture"):
            assert figure.locator(part).is_hidden() == is_refused
    assert translate(figure, "<b>Hund</b> </s> \ud83e\udd8a")
    ask(figure, "Ein Mann schläft.")  # the last one asked is the one that is answered
    assert translate(figure, GERMAN[0].text) == recorded(GERMAN[0].text)


def test_known_spellings(open_figure):
    """Capitals are read as small letters, and another spelling is one press away."""
    _, figure = open_figure()
    translate(figure, "WEISST DU, WO DER BAHNHOF IST?")
    said = figure.locator(".live-said").inner_text()
    assert "Read as “Weisst du, wo der Bahnhof ist?”." in said
    figure.get_by_role("button", name=SENTENCE, exact=True).click()
    figure.page.locator(WHOLE, has_text=recorded(SENTENCE)).wait_for(timeout=60_000)
    assert figure.locator(".live-form input").input_value() == SENTENCE
    assert not figure.locator(".translator-offer").inner_text()


@pytest.mark.parametrize(
    "line, is_early",
    [
        ("{ downlink: 10, saveData: false }", True),
        ("{ downlink: 10, saveData: true }", False),
        ("undefined", False),
    ],
)
def test_the_model_comes_early_where_the_line_is_fast(open_figure, line, is_early):
    """With the first touch of the field; elsewhere, and where nobody knows, with a click."""
    tab, figure = open_figure()
    tab.evaluate(f"Object.defineProperty(navigator, 'connection', {{ value: {line} }})")
    figure.locator(".live-form input").focus()
    button = figure.locator("button[type=submit]")
    if is_early:
        button.get_by_text("Translate", exact=True).wait_for(timeout=60_000)
    else:
        assert button.inner_text().startswith("Load the model")
        assert "model.js" not in tab.requested


def test_a_lost_model_is_told(open_figure):
    """Another click tries again."""
    tab, figure = open_figure()
    tab.route("**/model.js", lambda route: route.abort())
    ask(figure, GERMAN[1].text)
    figure.locator(".live-said", has_text="could not be loaded").wait_for()
    tab.unroute("**/model.js")
    assert translate(figure, GERMAN[1].text) == recorded(GERMAN[1].text)
    tab.faults.clear()  # the browser's own line on the file


def test_a_phone_shows_the_answer_below_the_field(open_figure):
    _, figure = open_figure(viewport=PHONE)
    figure.locator(".live-form").scroll_into_view_if_needed()
    translate(figure, GERMAN[1].text)
    field = figure.locator(".live-form input").bounding_box()
    answer = figure.locator(".translator-text").bounding_box()
    assert 0 < answer["y"] - field["y"] < 120


def words_of(figure):
    """What a chapter's figure shows, without its numbers and bars."""
    text = figure.locator(".live-still, .what-if-stage").inner_text()
    return re.sub(r"[<−]?\d[\d.]*%?", "#", text).split()


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_model_draws_what_the_site_did(open_figure, name):
    """Of the same text, but for another order of the words."""
    still = words_of(
        open_figure(f"notebooks/{CHAPTERS[name]}", java_script_enabled=False)[1]
    )
    tab, figure = open_figure(f"notebooks/{CHAPTERS[name]}")
    assert words_of(figure) == still
    figure.locator("button[type=submit]").click()
    figure.locator(".live-options").wait_for(state="attached")
    tab.wait_for_function(
        "(figure) => !figure.querySelector('.live-options').hidden",
        arg=figure.element_handle(),
        timeout=60_000,
    )
    live = words_of(figure)
    if name == "positions":
        assert live[:8] == still[:8] and sorted(live) != live
    else:
        assert live == still


def test_a_head_is_silenced_and_a_beam_is_widened(open_figure):
    _, figure = open_figure(f"notebooks/{CHAPTERS['maps']}")
    figure.locator("button[type=submit]").click()
    figure.get_by_role("button", name="Restore all").click(timeout=60_000)
    figure.page.locator(WHOLE).wait_for(timeout=60_000)
    assert figure.locator(".live-lines dd").count() == 1
    figure.get_by_role("combobox", name="Head").select_option("mean")
    figure.get_by_label("Silenced").check()
    figure.locator(".live-lines dd").nth(1).wait_for(timeout=60_000)
    _, figure = open_figure(f"notebooks/{CHAPTERS['search']}")
    figure.locator("button[type=submit]").click()
    beam = figure.get_by_label("Beam", exact=True)
    beam.fill("1", timeout=60_000)
    beam.press("Enter")
    kept = figure.locator(".what-if-tree > li:nth-child(2) > ol > .kept")
    kept.nth(1).wait_for(state="detached", timeout=60_000)
    assert kept.count() == 1


def said(tab):
    return tab.locator(".inside .live-said").inner_text()


def test_a_head_shows_the_numbers_that_were_computed(open_figure):
    """Those of the engine, which tests/test_live.py compares with the package."""
    _, figure = open_figure("book/inside.html#layer=3&head=2&word=3")
    figure.locator(".inside-matrices").wait_for()
    trace = extension.record("inside", "model", SENTENCE)["trace"]
    part = trace["decoder.layers.2.cross_attention"]
    texts = figure.locator("tbody td.is-scores").all_inner_texts()
    shown = [float(text.replace("−", "-")) for text in texts]
    assert shown == pytest.approx(part["scores"][2][1], abs=0.006)
    texts = figure.locator("tbody td.is-weights").all_inner_texts()
    shown = [float(text.strip("<%")) / 100 for text in texts]
    assert shown == pytest.approx(part["weights"][2][1], abs=0.01)
    assert (
        figure.locator("tfoot td.is-sum").first.inner_text().replace("−", "-")
        == f"{part['joined'][2][len(part['joined'][2]) // 4]:.2f}"
    )
    for line in pack.lines_of_a_head().values():
        assert line in figure.locator(".inside-code").inner_text() or "mask" in line


def test_a_phone_shows_code_buttons_and_table_together(open_figure):
    _, figure = open_figure(
        "book/inside.html#layer=3&head=2&word=3&step=2", viewport=PHONE
    )
    box = figure.locator(".live-scroll")
    box.wait_for()
    lines = figure.locator(".inside-code li:visible")
    assert lines.count() == 1 and pack.lines_of_a_head()["key"] in lines.inner_text()
    above = figure.get_by_role("button", name="Next").bounding_box()
    table = box.bounding_box()
    assert 0 < table["y"] + table["height"] - above["y"] < PHONE["height"] - 200
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert figure.locator("figcaption p:visible").get_attribute("data-level") == "head"


def test_keys_walk_through_the_machine(open_figure):
    """Arrows step and climb, Escape goes out, Back goes back; the address has the place."""
    tab, figure = open_figure("book/inside.html#layer=2&head=3&word=4")
    figure.locator(".inside-stage").focus()
    tab.keyboard.press("ArrowRight")
    assert tab.url.endswith("#layer=2&head=3&word=4&step=2")
    tab.keyboard.press("ArrowUp")
    assert said(tab).startswith("Decoder, layer 3, cross-attention, head 3.")
    tab.keyboard.press("Escape")
    figure.locator(".inside-sublayer").first.wait_for()
    tab.keyboard.press("Escape")
    figure.locator(".inside-towers").wait_for()
    tab.keyboard.press("End")
    assert f"Translation: {recorded(SENTENCE)}" in said(tab)
    tab.go_back()
    figure.locator(".inside-sublayer").first.wait_for()
    figure.get_by_role("link", name="units fire").click()
    figure.locator(".inside-known").first.wait_for()  # at which other words they fire


def test_a_sentence_of_ones_own_has_an_address(open_figure):
    tab, figure = open_figure("book/inside")
    figure.get_by_role("button", name="English → German").click()
    ask(figure, "The dog sleeps.")
    figure.locator(".inside-towers tfoot th:text-is('dog')").wait_for(timeout=60_000)
    figure.get_by_role("link", name="Layer 3").first.click()
    figure.locator(".inside-sublayer").first.wait_for()
    told = said(tab)
    assert "from=en&text=The%20dog%20sleeps." in tab.url and "layer=3" in tab.url
    again, figure = open_figure(
        tab.url.partition("/")[2].partition("/")[2].partition("/")[2]
    )
    figure.locator(".inside-sublayer").first.wait_for(timeout=60_000)
    assert said(again) == told


def test_a_page_of_its_own(open_page, tmp_path):
    """One file, opened without a network, translates and looks inside."""
    path = tmp_path / "mine.html"
    path.write_text(page.page(pack.PRETRAINED / "everyday-de-en", "mine"), "utf-8")
    tab = open_page(path.as_uri(), offline=True, viewport=PHONE)
    first, inside = tab.locator(FIGURE).all()
    assert translate(first, GERMAN[1].text) == recorded(GERMAN[1].text)
    first.locator(".translator-target label").nth(1).click()
    first.get_by_role("link", name="Look inside").click()
    inside.locator(".inside-towers").wait_for(timeout=60_000)
    assert said(tab).startswith("Word 2 of")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [name for name in tab.requested if "." in name] == ["mine.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_figure, scheme):
    """In what the model answers, and in the parts of the machine, on a phone."""
    problems = []
    for name in ("maps", "search"):
        page_name = f"notebooks/{CHAPTERS[name]}"
        tab, figure = open_figure(page_name, color_scheme=scheme, viewport=PHONE)
        figure.locator("button[type=submit]").click()
        figure.locator(".live-options:not([hidden])").wait_for(timeout=60_000)
        problems += findings(tab, ALL)
        tab.faults.clear()  # axe asks for a style sheet at an address where none is
    for place in ("word=3", "layer=2&word=3", "layer=3&head=2&word=3&step=4"):
        page_name = f"book/inside.html#{place}"
        tab, figure = open_figure(page_name, color_scheme=scheme, viewport=PHONE)
        figure.locator(".inside-crumbs > *").first.wait_for()
        problems += findings(tab, ALL)
        tab.faults.clear()
    assert not problems, "\n".join(problems)
