"""The chapters' figures that ask "what if": a recorded picture, then the model's own answers."""

import json
import re

import pytest

from tools.chapters import ROOT
from tools.recordings import WHAT_IF

RECORDED = json.loads(WHAT_IF.read_text(encoding="utf-8"))
CHAPTERS = {
    "maps": "21_attention_maps",
    "positions": "08_positional_encoding",
    "masks": "04_masks",
    "neighbors": "07_embeddings",
    "search": "19_decoding",
}
CALM = {"reduced_motion": "reduce"}  # a search is shown as soon as it is done
NUMBER = re.compile(r"<?−?\d+(?:\.\d+)?")
WORKING = "Loading the model …", "Working …"  # the beginnings of what is said meanwhile


class Figure:
    """A figure of a chapter in a tab."""

    def __init__(self, tab, name):
        self.tab = tab
        self.frame = tab.locator(f"#fig-what-if-{name}")
        self.stage = self.frame.locator(".what-if-stage, .what-if-still")

    def say(self):
        """What the page says."""
        return self.frame.locator(".translator-said").inner_text()

    def settle(self, act):
        """Do something that asks the model, and wait for the whole answer."""
        act()
        self.tab.wait_for_function(
            """([figure, working]) => {
                const said = figure.querySelector(".translator-said");
                const works = working.some((words) => said.textContent.startsWith(words));
                return said.ariaLive === "polite" && !works;
            }""",
            arg=[self.frame.element_handle(), WORKING],
            timeout=60_000,
        )
        return self.say()

    def ask(self, text=None):
        """Type a text and press Enter."""
        if text is not None:
            self.frame.locator("form input").fill(text)
        return self.settle(lambda: self.frame.locator("form input").press("Enter"))

    def lines(self):
        """The named translations."""
        return self.stage.locator("dd").all_inner_texts()

    def table(self, kind):
        """The cells of a table, row by row."""
        rows = self.stage.locator(f"table.{kind} tbody tr").all()
        return [row.locator("th, td").all_text_contents() for row in rows]


@pytest.fixture
def open_figure(open_page, address):
    """A function that opens a chapter at its figure."""

    def open_figure(name, root=address, **options):
        tab = open_page(f"{root}notebooks/{CHAPTERS[name]}.html", **options)
        figure = Figure(tab, name)
        figure.frame.scroll_into_view_if_needed()
        if options.get("java_script_enabled", True):
            figure.frame.locator("figure[data-drawn=true]").wait_for()
        return figure

    return open_figure


def words_and_numbers(figure):
    """What a picture shows: its text without numbers, and the numbers, those of maps by cell."""
    texts = figure.stage.evaluate(
        """element => [...element.querySelectorAll("dt, dd, p, th, li > *, td")]
            .filter((part) => !part.matches(".what-if-map td, :has(p, th, td, li)"))
            .map((part) => part.textContent)"""
    )
    text = " ".join(texts)
    cells = figure.stage.locator(".what-if-map td").all_text_contents()
    numbers = [
        float(number.strip("<").replace("−", "-")) for number in NUMBER.findall(text)
    ]
    numbers += [float(cell or 0) for cell in cells]
    return NUMBER.sub("#", text), numbers


@pytest.mark.parametrize("name", CHAPTERS)
def test_live_as_recorded(open_figure, name):
    """Without scripts there is a picture; the model, loaded once, draws the same."""
    still = open_figure(name, java_script_enabled=False)
    assert still.frame.locator("form").count() == 0
    words, numbers = words_and_numbers(still)
    assert len(numbers) > 8
    figure = open_figure(name, **CALM)
    assert words_and_numbers(figure) == (words, numbers)
    assert "MB" in figure.frame.locator("button[type=submit]").inner_text()
    figure.ask()
    assert figure.tab.requested.count("model.js") == 1
    figure.ask()
    assert figure.tab.requested.count("model.js") == 1
    live_words, live_numbers = words_and_numbers(figure)
    if name == "positions":  # the page draws another order
        source = RECORDED[name]["orders"][0]["pair"][1]["read"]
        assert live_words.partition(source[-1])[0] == words.partition(source[-1])[0]
        return
    assert live_words == words
    pairs = zip(numbers, live_numbers, strict=True)
    difference = max(abs(recorded - live) for recorded, live in pairs)
    assert difference <= (1 if name in ("maps", "masks") else 0.0101)


def test_a_head_is_chosen_and_silenced(open_figure):
    """The map is the chosen head's; without all heads of a layer the translation is another."""
    figure = open_figure("maps", **CALM)
    figure.ask()
    usual, without = figure.lines()
    assert (usual, without) == (RECORDED["maps"]["usual"], RECORDED["maps"]["changed"])
    figure.settle(figure.frame.get_by_role("button", name="Restore all").click)
    assert figure.lines() == [usual]
    tables = []
    for kind in ("encoder", "decoder", "cross"):
        figure.frame.get_by_role("combobox", name="Attention").select_option(kind)
        table = figure.table("what-if-map")
        for _, *weights in table:
            assert abs(sum(int(weight) for weight in weights if weight) - 100) <= 4
        tables.append(table)
    assert len({str(table) for table in tables}) == 3
    assert figure.stage.locator("td.hidden").count() == 0
    figure.frame.get_by_role("combobox", name="Head").select_option("mean")
    figure.settle(figure.frame.get_by_label("Silenced").check)
    first, without = figure.lines()
    assert first == usual
    assert without != usual


def test_order_needs_positions(open_figure):
    """Without positions every order gets the same translation, which a shuffle shows each time."""
    figure = open_figure("positions", **CALM)
    for _ in range(2):
        answer = figure.ask()
        assert answer.endswith("stays the same without.")
        _, without, _, without_shuffled = figure.lines()
        assert without == without_shuffled
        typed, order = figure.stage.locator(".what-if-source").all_inner_texts()
        assert sorted(typed.split()) == sorted(order.split())
        assert typed != order
    assert figure.ask("Zwei Hunde").startswith("Too few words")
    assert len(figure.lines()) == 2


def test_the_mask_and_the_share_of_the_next_word(open_figure):
    """The first word has nothing to its left, so the mask changes nothing there; later it does."""
    figure = open_figure("masks", **CALM)
    answer = figure.ask(RECORDED["search"]["text"])
    assert answer.startswith("Mean share")
    cells = figure.table("what-if-shares")
    assert cells[0][1] == cells[0][2]
    assert any(row[1] != row[2] for row in cells[1:])
    assert cells[-1][0] == "</s>"


def test_neighbors_lead_on(open_figure):
    """A neighbor can be clicked, by key as well; a long word falls into pieces."""
    figure = open_figure("neighbors", **CALM)
    figure.ask()
    first = figure.stage.locator("ol button").first
    name = first.inner_text()
    first.focus()
    answer = figure.settle(lambda: figure.tab.keyboard.press("Enter"))
    assert answer.startswith(f"Nearest to {name}:")
    assert figure.tab.evaluate(
        "document.activeElement.closest('.what-if-stage') !== null"
    )
    answer = figure.ask("Donaudampfschiff")
    pieces = figure.stage.locator(".what-if-pieces button")
    assert pieces.count() > 1
    assert f"falls into {pieces.count()} tokens" in answer
    last = pieces.last.inner_text()
    assert figure.settle(pieces.last.click).startswith(f"Nearest to {last}:")
    assert pieces.last.get_attribute("aria-pressed") == "true"
    assert figure.ask("\ud83e\udd8a").startswith("This falls into")


def test_a_search_grows(open_figure):
    """Step by step; a beam of 1 keeps one box a step; lots are drawn, and end or not."""
    figure = open_figure("search", **CALM)
    figure.ask()
    steps = figure.stage.locator(".what-if-tree > li")
    count = steps.count()
    figure.frame.get_by_role("button", name="Previous").click()
    assert steps.count() == count - 1 and figure.stage.locator("table").count() == 0
    figure.frame.get_by_role("button", name="Next").click()
    assert "Best:" in figure.say()
    ended = figure.table("what-if-finished")
    for _, total, length, score in ended:
        total, score = (float(cell.replace("−", "-")) for cell in (total, score))
        assert score == pytest.approx(total / ((5 + int(length)) / 6) ** 0.6, abs=0.011)
    beam = figure.frame.get_by_role("slider", name="Beam")
    beam.focus()
    figure.settle(
        lambda: [figure.tab.keyboard.press("Home"), figure.tab.wait_for_timeout(300)]
    )
    for step in steps.all():
        assert step.locator(".kept, .ended").locator("visible=true").count() >= 1
        assert step.locator("ol > .kept, ol > .ended").count() == 1
    figure.settle(
        lambda: figure.frame.get_by_role("combobox", name="Words are").select_option(
            "draw"
        )
    )
    assert (
        figure.frame.get_by_role("slider", name="Beam").count() == 0
        or not beam.is_visible()
    )
    assert figure.frame.get_by_label("Top-p").is_visible()
    assert figure.stage.locator("table").count() == 0


def test_a_search_can_be_watched(open_figure):
    """With motion it plays once, a step at a time, and stops when it is asked to."""
    figure = open_figure("search")
    figure.frame.locator("form input").press("Enter")
    steps = figure.stage.locator(".what-if-tree > li")
    figure.tab.wait_for_function(
        "document.querySelector('.what-if-stage .what-if-tree')"
    )
    figure.frame.get_by_role("button", name="Pause").click()
    before = steps.count()
    figure.tab.wait_for_timeout(1500)
    assert steps.count() == before < len(RECORDED["search"]["rounds"])


@pytest.mark.parametrize("name", CHAPTERS)
def test_odd_input_gets_a_sentence(open_figure, name):
    """Nothing, too much, and letters that the model never saw."""
    figure = open_figure(name, **CALM)
    assert figure.ask("   ").startswith("Type a ")
    assert "and this page takes" in figure.ask("Hund" * 2 + " Hund" * 200)
    assert figure.ask("Hund, <b>Hund</b>!")
    assert (
        figure.frame.locator(".translator-said").get_attribute("aria-live") == "polite"
    )


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_phone_scrolls_the_figure_not_the_page(open_figure, site, serve, name):
    """At 390 and 320 pixels, as a file, before the click and after it."""
    root = f"{site.as_uri()}/"
    figure = open_figure(
        name, root=root, viewport={"width": 390, "height": 844}, **CALM
    )
    for act in (lambda: None, figure.ask):
        act()
        for width in (390, 320):
            figure.tab.set_viewport_size({"width": width, "height": 844})
            assert figure.tab.evaluate(
                "document.documentElement.scrollWidth <= innerWidth"
            )
            box = figure.stage.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_notebooks_say_where_the_figure_runs():
    """In a notebook the fence is text, which ends with the address of the figure on the site."""
    settings = (ROOT / "_config.yml").read_text(encoding="utf-8")
    base = re.search(r"baseurl: (\S+)", settings)[1]
    for name, chapter in CHAPTERS.items():
        text = (ROOT / "notebooks" / f"{chapter}.py").read_text(encoding="utf-8")
        fence = text.partition(f":::{{what-if}} {name}\n")[2].partition("# :::\n")[0]
        assert f"({base}notebooks/{chapter}.html#fig-what-if-{name})" in fence
