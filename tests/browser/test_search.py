"""The search finds the section that answers, for what people ask."""

import re
from pathlib import Path

import pytest
import yaml

FILE = Path(__file__).with_name("questions.yml")
QUESTIONS = yaml.safe_load(FILE.read_text(encoding="utf-8"))
FIND = """question => bookSearch.find(question).then(
    (found) => found.slice(0, 3).map(({ entry }) => bookSearch.address(entry)))"""


@pytest.fixture
def tab(browser):
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    yield tab
    tab.close()


def test_questions_lead_to_the_section_that_answers(address, tab):
    tab.goto(address + "search.html")
    missed = []
    for question, sections in QUESTIONS.items():
        answers = tuple(sections.split())
        results = tab.evaluate(FIND, question)
        if not any(result.startswith(answers) for result in results):
            missed.append(f"{question}: {results}")
    assert not missed, "\n".join(missed)


def test_every_answer_exists(site):
    """No question waits for a section that is not there."""
    pages = {}
    for answer in " ".join(QUESTIONS.values()).split():
        page, _, anchor = answer.partition("#")
        if page not in pages:
            pages[page] = (site / page).read_text(encoding="utf-8")
        assert not anchor or f' id="{anchor}"' in pages[page], answer


def test_what_is_found_reads_as_on_the_page(address, tab):
    """No entry has a command of TeX, a key of a source, or the name of a figure in it."""
    tab.goto(address + "search.html")
    tab.evaluate(FIND, "softmax")
    entries = tab.evaluate("bookSearch.entries.map(({ title, text }) => title + text)")
    library = Path("book/references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{([\w-]+),", library, re.MULTILINE)
    assert len(keys) > 50
    raw = re.compile(rf"\\(?:frac|begin|text|sqrt)|(?<!\")\bfig-\w|{'|'.join(keys)}")
    found = [entry for entry in entries if raw.search(entry)]
    assert not found, [raw.search(entry)[0] for entry in found]


def test_search_opens_from_the_keyboard(address, tab):
    """Control and K opens the field; places appear as one types; arrow and Enter open one."""
    tab.goto(address + "book/notation.html")
    tab.wait_for_load_state()
    tab.keyboard.press("Control+K")
    tab.keyboard.type("causal mas")
    tab.locator("dialog .suggestions a").first.wait_for()
    assert "causal mask" in tab.locator("dialog .suggestions").inner_text().lower()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/*.html#*causal-mask*")


def test_enter_opens_the_page_of_results(address, tab):
    tab.goto(address + "book/notation.html")
    tab.wait_for_load_state()
    tab.keyboard.press("Control+K")
    tab.keyboard.type("softmax")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search.html?q=softmax*")
    tab.locator("#search-results li a").nth(8).wait_for()


def test_a_term_comes_with_its_definition(address, tab):
    """A hit in the glossary says what the term means, also in the words of another language."""
    tab.goto(address + "search.html?q=Aufmerksamkeit")
    hit = tab.locator("#search-results li.term", has_text="attention").first
    hit.wait_for()
    assert "lookup" in hit.locator("p").inner_text()


def test_search_works_in_a_book_opened_as_a_file(site, open_page):
    """The same results, with their excerpts; the first opens at its heading."""
    tab = open_page(f"{site.as_uri()}/search.html?q=softmax axis")
    first = tab.locator("#search-results li.section a").first
    first.wait_for()
    assert tab.locator("#search-results li.section p").first.inner_text()
    first.click()
    tab.wait_for_url("**/*.html#*")
    assert tab.locator("article h1").is_visible()


def test_nothing_found_is_said(address, tab):
    """A question without an answer gets a sentence; so does one of empty words."""
    tab.goto(address + "search.html?q=xyzzyqq")
    tab.get_by_text("Nothing found").wait_for()
    find = "question => bookSearch.find(question).then((found) => found.length)"
    assert tab.evaluate(find, "why is it") >= 0
    assert tab.evaluate(find, "(&<\\{") == 0
