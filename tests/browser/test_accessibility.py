"""axe-core finds nothing on any page in light, wide and narrow; the focus can be seen."""

from axe import ALL, SETTLED, SHAPE, SIZES, findings_on_all_pages


def test_axe_finds_nothing_in_light(site, address, browser):
    rules = {"wide": ALL, "narrow": SHAPE}
    problems = findings_on_all_pages(site, address, browser, "light", rules)
    assert not problems, f"{len(problems)} findings\n" + "\n".join(problems)


def test_focus_is_visible(address, browser):
    """Whatever the Tab key reaches in the top bar and the text shows that it has the focus."""
    tab = browser.new_page(viewport=SIZES["wide"])
    tab.goto(address + "notebooks/04_masks.html")
    tab.evaluate(SETTLED)
    hidden = []
    for _ in range(70):
        tab.keyboard.press("Tab")
        hidden += tab.evaluate(
            """() => {
                const focused = document.activeElement;
                const style = getComputedStyle(focused);
                const ring = parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none";
                const label = focused.matches("input[type=radio]");
                const seen = ring || label || style.boxShadow !== "none";
                return seen ? [] : [focused.outerHTML.slice(0, 120)];
            }"""
        )
    tab.close()
    assert not hidden, "\n".join(hidden)
