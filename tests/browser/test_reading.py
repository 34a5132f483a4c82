"""What stands beside a text or opens over it: notes, and what terms and citations lead to."""

from pathlib import Path

import pytest

PAGE = "notebooks/03_attention.html"
NOTES = """() => {
    const right = (e) => e.getBoundingClientRect().right;
    const article = right(document.querySelector(".bd-article"));
    const others = [...document.querySelectorAll(".note-beside")];
    return others.map((note, n) => {
        const box = note.getBoundingClientRect();
        const next = others[n + 1]?.getBoundingClientRect().top ?? Infinity;
        return { beside: box.left >= article - 12 && box.right <= innerWidth,
                 below: box.top >= note.previousElementSibling.getBoundingClientRect().bottom - 12,
                 apart: box.bottom < next };
    });
}"""


@pytest.mark.parametrize(
    ("width", "where"), [(1600, "beside"), (1280, "beside"), (390, "below")]
)
def test_notes_stand_beside_the_text_or_below_it(site, address, browser, width, where):
    """A wide screen has notes in the column on the right, a narrow one under their paragraph."""
    tab = browser.new_page(viewport={"width": width, "height": 900})
    chapters = sorted(site.glob("notebooks/*.html"))
    noted = [page.name for page in chapters if "note-beside" in page.read_text()]
    assert Path(PAGE).name in noted
    for name in noted:
        tab.goto(f"{address}notebooks/{name}")
        notes = tab.evaluate(NOTES)
        assert notes
        for note in notes:
            assert note[where], (name, note)
            assert note["apart"], (name, note)
    tab.close()


def test_contents_make_room_for_notes(address, browser):
    """The contents on the right are folded while a note is in view, and only then."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(address + PAGE)
    tab.wait_for_selector(".bd-sidebar-secondary:not(.hide)")
    tab.locator(".note-beside").first.scroll_into_view_if_needed()
    tab.wait_for_selector(".bd-sidebar-secondary.hide")
    tab.close()


@pytest.mark.parametrize("name", ["05_multi_head_attention", "26_speed"])
def test_all_solutions_open_at_once(address, browser, name):
    """A button above the exercises opens all solutions of a page, and no code; then closes them."""
    tab = browser.new_page()
    tab.goto(f"{address}notebooks/{name}.html")
    solutions = tab.locator("article details.hide:has(> summary:has-text('Solution'))")
    button = tab.locator("#exercises > button")
    for opened in (solutions.count(), 0):
        button.click()
        assert tab.locator("article details.hide[open]").count() == opened
        tab.locator(f"button:text('{'close' if opened else 'open'} all')").wait_for()
    tab.close()


@pytest.mark.parametrize("link", ["a.term", "a[href*=bibliography]"])
def test_what_a_link_leads_to(address, browser, link):
    """Pointer and keyboard get it alike, inside of the window; Escape closes it."""
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(address + PAGE)
    target = tab.locator(f"article {link}[data-about]").first
    box = tab.locator("#about")
    for reach in (target.focus, target.hover):
        reach()
        text = box.inner_text()
        assert text == target.get_attribute("data-about")
        assert len(text) > 30
        edges = box.bounding_box()
        assert edges["x"] >= 0 and edges["x"] + edges["width"] <= 390
        tab.keyboard.press("Escape")
        box.wait_for(state="hidden")
        tab.mouse.move(0, 0)
    assert target.get_attribute("aria-describedby") == "about"
    tab.close()
