"""The page "Look inside": recorded, then live after a click; every place has an address."""

import gzip
import json
import re

import pytest
import torch
from package_values import inputs_and_outputs

from annotated_transformer.masks import BOS, EOS
from annotated_transformer.toolkit.export import export_page
from annotated_transformer.toolkit.model_io import load_pretrained
from annotated_transformer.toolkit.translation import translate
from annotated_transformer.transformer import evaluating
from book.site.inside import SENTENCE, START
from tools.inside import lines_of_a_head
from tools.recordings import model_of_the_page

CALM = {"reduced_motion": "reduce"}
FIRST_VIEW = 500 * 1024  # bytes before the reader comes to the figure, compressed
PLACES = {
    "machine": "#word=3",
    "layer": "#layer=2&word=3",
    "head": "#layer=3&head=2&word=3",
    "masked head": "#layer=1&part=self&head=1&word=3&step=4",
    "network": "#side=encoder&layer=2&part=network&word=4",
}


@pytest.fixture
def open_inside(open_page, address):
    """A function that opens the page at a place."""

    def open_inside(place="", root=address, **options):
        tab = open_page(f"{root}book/inside.html{place}", **CALM, **options)
        tab.wait_for_selector("figure[data-module=inside][data-drawn=true]")
        if place:
            tab.locator(".inside-crumbs > *").first.wait_for(timeout=60_000)
        return tab

    return open_inside


@pytest.fixture(scope="module")
def reference():
    """The recorded sentence in the package: what it writes, and what its modules compute."""
    model, tokenizer = model_of_the_page()
    source = [*tokenizer.encode(SENTENCE), EOS]
    target = [BOS]
    with evaluating(model):
        while target[-1] != EOS:
            logits = model(torch.tensor([source]), torch.tensor([target]))[0, -1]
            target.append(logits[2:].argmax().item() + 2)
    seen = inputs_and_outputs(model, source, target[:-1])
    return model, tokenizer, target[1:], seen


def said(tab):
    """What the page says of the place."""
    return tab.locator(".inside .translator-said").inner_text()


def numbers(tab, selector):
    """The numbers in some cells."""
    texts = tab.locator(selector).all_inner_texts()
    return [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts]


def test_without_scripts_there_is_a_picture(open_page, address, reference):
    """Both towers, the words up to the first step, and the likeliest next ones."""
    tab = open_page(f"{address}book/inside.html", java_script_enabled=False)
    _, tokenizer, written, _ = reference
    words = tokenizer.decode(written[: START + 1]).split()
    assert tab.locator(".inside-writes td b:visible").all_inner_texts() == words
    assert tab.locator(".inside-writes .chosen").inner_text() == words[-1]
    assert tab.locator(".inside-best .chosen span").first.inner_text() == words[-1]
    tiles = tab.locator(".inside-towers .inside-tile")
    assert tiles.count() == 4 * (len(written) + tab.locator(".inside-look td").count())
    assert tab.locator(".inside .translator-form").count() == 0


def test_the_first_view_is_small(browser, address):
    """Without the model, and before the reader comes to the figure."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    responses = []
    tab.on("response", lambda response: responses.append(response))
    tab.goto(f"{address}book/inside.html")
    tab.wait_for_selector("figure[data-module=inside][data-drawn=true]")
    tab.evaluate("document.fonts.ready")
    size = sum(len(gzip.compress(response.body())) for response in responses)
    print(f"{size / 1024:.0f} KiB")
    assert size <= FIRST_VIEW
    tab.close()


def test_the_recorded_sentence_needs_no_model(open_inside):
    """All its places, by links, with buttons and with a tap on a tile."""
    tab = open_inside()
    tab.locator(".inside-decoder tr", has_text="Layer 2").locator("td.chosen").click()
    tab.locator(".inside-layer").wait_for()
    assert "At “you”" in said(tab)
    tab.get_by_role("link", name="Head 3").first.click()
    tab.locator(".inside-head").wait_for()
    tab.get_by_role("link", name="network", exact=True).click()
    tab.locator(".inside-network").wait_for()
    tab.get_by_role("link", name="The machine").click()
    tab.locator(".inside-machine").wait_for()
    assert "inside_example.js" in tab.requested
    assert not {"engine.js", "model.js"} & {*tab.requested}


@pytest.mark.parametrize(("kind", "part"), [("cross", "cross"), ("self", "self")])
@pytest.mark.parametrize("head", [0, 3])
def test_the_numbers_of_a_head_are_those_of_the_package(
    open_inside, reference, kind, part, head
):
    """All dimensions of query, keys and values, the scores, the weights and the sum."""
    _, _, _, seen = reference
    layer, t = 1, 4
    place = f"#layer={layer + 1}&part={part}&head={head + 1}&word={t + 1}"
    tab = open_inside(place)
    tab.get_by_label("all dimensions").check()
    name = f"decoder.layers.{layer}.{kind}_attention"

    def of_head(which):
        return seen[f"{name}.{which}"][1].unflatten(-1, (4, -1))[:, head]

    query, keys, values = (of_head(which) for which in ("query", "key", "value"))
    if kind == "self":
        keys, values = keys[: t + 1], values[: t + 1]
    scores = keys @ query[t] / keys.size(-1) ** 0.5
    weights = scores.softmax(dim=-1)
    rows = ".inside-matrices tbody tr:not(.hidden)"
    shown = {
        ".inside-matrices thead td.is-query": query[t],
        f"{rows} td.is-keys": keys.flatten(),
        f"{rows} td.is-scores": scores,
        f"{rows} td.is-weights": weights,
        f"{rows} td.is-values": values.flatten(),
        ".inside-matrices tfoot td": weights @ values,
    }
    for selector, expected in shown.items():
        selector = selector.replace(" tfoot td", " tfoot td.is-sum")
        found = torch.tensor(numbers(tab, selector))
        assert found.shape == expected.shape, selector
        assert (found - expected).abs().max() <= 0.005 + 1e-3, selector


def test_the_numbers_of_a_layer_are_those_of_the_package(open_inside, reference):
    """Lengths of the stream and of what is added, read from above."""
    _, _, _, seen = reference
    tab = open_inside("#layer=2&word=3")
    texts = tab.locator(".inside-sum p + p").all_inner_texts()
    lengths = [float(re.search(r"length ([\d.]+)", text)[1]) for text in texts]
    expected = []
    for i, part in reversed(
        [*enumerate(("self_attention", "cross_attention", "feed_forward"))]
    ):
        name = f"decoder.layers.1.residuals.{i}"
        before, after = (states[2] for states in seen[name])
        expected += [before, seen[f"decoder.layers.1.{part}"][1][2], after]
    norms = [vector.norm().item() for vector in expected]
    assert lengths == pytest.approx(norms, abs=0.05 + 1e-3)


def test_the_units_are_those_of_the_package(open_inside, reference):
    """How many fire, and how strongly."""
    _, _, _, seen = reference
    tab = open_inside("#side=encoder&layer=3&part=network&word=6")
    hidden = seen["encoder.layers.2.feed_forward.linear2"][0][5]
    assert f"{(hidden > 0).sum()} of {len(hidden)} units fire" in said(tab)
    strongest = hidden.topk(min(12, int((hidden > 0).sum())))
    units = tab.locator(".inside-units tbody th").all_inner_texts()
    assert [int(unit) - 1 for unit in units] == strongest.indices.tolist()
    shown = numbers(tab, ".inside-units td:nth-child(2) span")
    assert shown == pytest.approx(strongest.values.tolist(), abs=0.005 + 1e-3)


def test_a_line_of_the_package_is_lit_at_each_step(open_inside):
    """The lines are the package's own; each step lights one, with the shape of its result."""
    lines = lines_of_a_head()
    tab = open_inside("#layer=1&part=self&head=2&word=4")
    order = ["query", "key", "scores", "mask", "weights", "value", "sum", "output"]
    lit = tab.locator(".inside-code .lit")
    for i, step in enumerate(order):
        assert f"step={i + 1}" in tab.url or i == 0
        assert lit.locator("code").inner_text() == lines[step]
        assert lit.get_attribute("aria-current") == "step"
        assert tab.locator(".inside-head td.lit, .inside-join.lit").count() > 0
        if step != "output":
            tab.get_by_role("button", name="Next").click()
    assert tab.get_by_role("button", name="Next").is_disabled()
    assert lit.locator("span").inner_text() == "(B, T, D) = (1, 10, 256)"


def test_a_link_opens_at_its_place(open_inside):
    """Head 2 of layer 3; a place that there is not becomes the nearest."""
    tab = open_inside(PLACES["head"])
    assert tab.locator(".inside-crumbs [aria-current]").all_inner_texts() == [
        "3",
        "2",
        "you",
    ]
    tab = open_inside("#layer=99&head=99&word=99&step=99")
    assert tab.locator(".inside-crumbs [aria-current]").all_inner_texts() == [
        "3",
        "4",
        "+?",
    ]
    assert tab.get_by_role("button", name="Next").is_disabled()


@pytest.mark.parametrize("opened", ["below a path", "as a file"])
def test_a_sentence_of_ones_own(open_inside, site, serve, opened):
    """It is in the address, which opens at the same place again."""
    with serve(site.parent) as server:  # so the site lies in /html/
        root = f"{site.as_uri()}/" if opened == "as a file" else f"{server}{site.name}/"
        tab = open_inside(root=root)
        tab.locator(".inside .translator-form input").fill("Der Hund schläft.")
        tab.keyboard.press("Enter")
        tab.locator(".inside-tokens th:text-is('Hund')").wait_for(timeout=60_000)
        tab.get_by_role("link", name="Layer 3").first.click()
        tab.get_by_role("link", name="Head 2").first.click()
        tab.locator(".inside-head").wait_for()
        picture = tab.locator(".inside-matrices").inner_text()
        again = open_inside(f"#{tab.url.partition('#')[2]}", root=root)
        again.locator(".inside-head").wait_for(timeout=60_000)
        assert again.locator(".inside-matrices").inner_text() == picture
        assert "text=" in tab.url and "layer=3" in tab.url and "head=2" in tab.url


def test_an_english_sentence_goes_through_the_other_model(open_inside):
    """A link names the direction; the words are the package's, and the units have no table."""
    tab = open_inside("#from=en&text=The%20dog%20sleeps.&layer=3&part=network")
    tab.locator(".inside-units").wait_for(timeout=60_000)
    assert not tab.locator(".inside-known").count()
    assert tab.locator(".inside .translator-form label").inner_text() == "English"
    tab.get_by_role("link", name="The machine").click()
    model, tokenizer = load_pretrained("everyday-en-de")
    (text,) = translate(model, tokenizer, ["The dog sleeps."], beam=1)
    tab.keyboard.press("End")
    assert f"Translation: {text}" in said(tab)
    assert "from=en" in tab.url


def test_the_direction_can_be_turned(open_inside):
    """The other model comes when a sentence is asked for; the recorded one comes back."""
    tab = open_inside("#word=3")
    tab.get_by_role("button", name="English → German").click()
    tab.locator(".inside .translator-form input").fill("The dog sleeps.")
    tab.keyboard.press("Enter")
    tab.locator(".inside-tokens th:text-is('dog')").wait_for(timeout=60_000)
    assert "from=en" in tab.url
    tab.go_back()
    tab.locator(".inside-tokens th:text-is('Bahnhof')").wait_for()
    pressed = tab.locator(".translator-ways [aria-pressed=true]")
    assert pressed.inner_text() == "German → English"


def test_the_translator_leads_inside(open_page, address):
    """With its sentence and its word."""
    tab = open_page(f"{address}book/index.html", **CALM)
    tab.wait_for_selector("figure[data-module=translator][data-drawn=true]")
    tab.locator(".translator-target label").nth(3).click()
    tab.locator(".translator-inside").click()
    tab.locator(".inside-crumbs > *").first.wait_for()
    assert said(tab).startswith("Word 4 of")
    assert tab.locator(".inside input[type=text]").input_value() == SENTENCE


def test_keyboard_and_announcements(open_inside):
    """Arrows step, Escape goes out, the browser's Back goes back; each place is said."""
    tab = open_inside("#word=3")
    tab.locator(".inside-stage").focus()
    tab.keyboard.press("ArrowRight")
    assert said(tab).startswith("Word 4 of")
    assert "word=4" in tab.url
    tab.keyboard.press("End")
    assert "Translation: Do you know" in said(tab)
    tab.keyboard.press("Home")
    tab.get_by_role("link", name="Layer 1").first.press("Enter")
    tab.get_by_role("link", name="Head 1").first.press("Enter")
    tab.locator(".inside-head").wait_for()
    tab.keyboard.press("ArrowRight")
    assert "step=2" in tab.url
    tab.keyboard.press("Escape")
    tab.locator(".inside-layer").wait_for()
    assert "head" not in tab.url
    tab.go_back()
    tab.locator(".inside-head").wait_for()
    assert (
        tab.locator(".inside .translator-said").get_attribute("aria-live") == "polite"
    )
    snapshot = tab.locator("figure.inside").aria_snapshot()
    for name in ("textbox", 'navigation "Place', 'slider "Step"', "table", "code"):
        assert name in snapshot


def test_up_and_down_change_the_layer(open_inside):
    """At the same head and step, said in words, up to the ends of a tower; else they scroll."""
    tab = open_inside("#layer=2&head=3&word=4&step=2")
    tab.locator(".inside-stage").focus()
    tab.keyboard.press("ArrowUp")
    assert said(tab).startswith("Decoder, layer 3, cross-attention, head 3.")
    assert tab.url.endswith("#layer=3&head=3&word=4&step=2")
    tab.keyboard.press("ArrowUp")
    assert tab.url.endswith("#layer=3&head=3&word=4&step=2")
    for _ in range(2):
        tab.keyboard.press("ArrowDown")
    assert said(tab).startswith("Decoder, layer 1, cross-attention, head 3.")
    label = tab.locator(".inside-stage").get_attribute("aria-label")
    assert "up and down change the layer" in label
    tab.keyboard.press("Escape")
    tab.keyboard.press("Escape")
    tab.locator(".inside-machine").wait_for()
    top = tab.evaluate("scrollY")
    tab.keyboard.press("ArrowDown")
    tab.wait_for_function("top => scrollY > top", arg=top)


def test_the_keyboard_stays_in_the_figure(open_inside):
    """A step draws all links anew, also the one that had the focus."""
    tab = open_inside("#layer=2&word=3")
    tab.get_by_role("link", name="Head 1").first.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert "word=5" in tab.url


def test_a_stroke_of_a_finger_steps(open_inside):
    """To the left is on; not where the table itself scrolls, and not up or down."""
    phone = {"width": 390, "height": 844}
    tab = open_inside("#layer=2&word=3", viewport=phone, has_touch=True)
    hand = tab.context.new_cdp_session(tab)

    def stroke(selector, x, y):
        tab.locator(selector).first.scroll_into_view_if_needed()
        box = tab.locator(selector).first.bounding_box()
        start = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 10}
        end = {"x": start["x"] + x, "y": start["y"] + y}
        for kind, points in {
            "touchStart": [start],
            "touchMove": [end],
            "touchEnd": [],
        }.items():
            event = {"type": kind, "touchPoints": points}
            hand.send("Input.dispatchTouchEvent", event)
        tab.wait_for_timeout(100)

    stroke(".inside-words", -80, 5)
    assert "word=4" in tab.url
    stroke(".inside-words", 80, 5)
    assert "word=3" in tab.url
    stroke(".inside-words", 30, 80)
    assert "word=3" in tab.url
    tab.evaluate("location.hash = 'layer=2&head=1&word=3'")
    tab.locator(".inside-head").wait_for()
    stroke(".inside-matrices", -80, 5)
    assert "step" not in tab.url


SMALL = """(figure) => [...figure.querySelectorAll("a, button, input, [data-to]")]
    .map((target) => target.closest(".inside-code li, .inside-all") ?? target)
    .filter((target) => target.checkVisibility())
    .filter((target) => {
        const { width, height } = target.getBoundingClientRect();
        return Math.min(width, height) < 43.5;
    })
    .map((target) => target.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize("page", ["book/inside.html", "notebooks/11_by_hand.html"])
def test_a_finger_finds_its_target_on_a_phone(open_page, address, page):
    """Whatever can be chosen is at least 44 pixels wide and high."""
    small = {}
    for name, place in PLACES.items():
        phone = {"width": 390, "height": 844}
        tab = open_page(f"{address}{page}{place}", viewport=phone, **CALM)
        tab.locator(".inside-crumbs > *").first.wait_for(timeout=60_000)
        small[name] = tab.locator("figure.inside").evaluate(SMALL)
    assert not any(small.values()), json.dumps(small, indent=1)


def test_it_plays_when_motion_is_welcome(open_page, address):
    """To the end, once; with reduced motion there is no such button."""
    tab = open_page(f"{address}book/inside.html#word=8")
    tab.locator(".inside-crumbs > *").first.wait_for()
    tab.get_by_role("button", name="Play").click()
    tab.locator(".inside .translator-said:has-text('Translation:')").wait_for()
    assert tab.get_by_role("button", name="Play").is_visible()
    calm = open_page(f"{address}book/inside.html", **CALM)
    calm.wait_for_selector("figure[data-module=inside][data-drawn=true]")
    assert calm.get_by_role("button", name="Play").count() == 0


def test_odd_input_gets_a_sentence(open_inside):
    tab = open_inside()
    field = tab.locator(".inside .translator-form input")
    for text, answer in {
        "": "Type a sentence first.",
        "123": "There is no word",
        "Hund " * 100: "this page takes",
    }.items():
        field.fill(text)
        field.press("Enter")
        tab.locator(".inside .translator-said").get_by_text(answer).wait_for(
            timeout=60_000
        )


def test_a_lost_file_is_told(open_inside):
    tab = open_inside()
    tab.route("**/model.js", lambda route: route.abort())
    field = tab.locator(".inside .translator-form input")
    field.fill("Der Hund schläft.")
    field.press("Enter")
    tab.locator(".inside .translator-said").get_by_text(
        "could not be loaded"
    ).wait_for()
    tab.faults.clear()  # the browser's own line on the file


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_phone_scrolls_the_figure_not_the_page(open_inside, place):
    tab = open_inside(place, viewport={"width": 390, "height": 844})
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_of_its_own_looks_inside(open_page, tmp_path):
    """What the command exports: the link under a translation opens it below."""
    model, tokenizer = load_pretrained("captions-de-en")
    export_page(model, tokenizer, tmp_path / "captions.html")
    tab = open_page((tmp_path / "captions.html").as_uri(), **CALM)
    tab.locator(".translator-form input").first.fill("Ein Hund schläft.")
    tab.keyboard.press("Enter")
    tab.locator(".translator-said:has-text('Translation:')").first.wait_for(
        timeout=60_000
    )
    tab.locator(".translator-inside").click()
    tab.locator(".inside-machine").wait_for(timeout=60_000)
    tab.get_by_role("link", name="Layer 1").first.click()
    tab.get_by_role("link", name="Head 1").first.click()
    tab.locator(".inside-head").wait_for()
    assert json.dumps(lines_of_a_head()["scores"])[1:-1] in tab.content()
