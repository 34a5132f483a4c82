"""axe-core finds nothing in figures that ask the model, and in those that look into a machine."""

import pytest
from axe import ALL, SIZES, findings, findings_by_size


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_what_the_model_answers(site, address, browser, scheme):
    """Nor in the figures that ask the model, once it has answered."""
    tab = browser.new_page(
        color_scheme=scheme, reduced_motion="reduce", viewport=SIZES["narrow"]
    )
    problems = []
    chapters = 0
    for path in sorted(site.glob("notebooks/*.html")):
        if 'data-module="whatif"' not in path.read_text(encoding="utf-8"):
            continue
        tab.goto(f"{address}notebooks/{path.name}")
        figure = tab.locator("figure[data-module=whatif]")
        figure.scroll_into_view_if_needed()
        figure.locator("button[type=submit]").click()
        figure.locator(
            ".what-if-stage :is(.what-if-pieces, .what-if-map, .what-if-shares td + td, table)"
        ).first.wait_for()
        tab.wait_for_timeout(2000)
        problems += [f"{path.name}: {problem}" for problem in findings(tab, ALL)]
        chapters += 1
    tab.close()
    assert chapters == 5
    assert not problems, "\n".join(problems)


INSIDE = {
    "machine": "#word=3",
    "layer": "#layer=2&word=3",
    "head": "#layer=3&head=2&word=3",
    "masked head": "#layer=1&part=self&head=1&word=3&step=4",
    "network": "#side=encoder&layer=2&part=network&word=4",
}


@pytest.mark.parametrize("page", ["book/inside.html", "notebooks/11_by_hand.html"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_inside(address, browser, scheme, page):
    """At each level of the figures that look into a machine, wide and narrow."""
    tab = browser.new_page(color_scheme=scheme, reduced_motion="reduce")
    problems = []
    for name, place in INSIDE.items():
        tab.goto("about:blank")
        tab.goto(f"{address}{page}{place}")
        tab.locator(".inside-crumbs > *").first.wait_for()
        found = findings_by_size(tab, dict.fromkeys(SIZES, ALL))
        problems += [f"{name}, {problem}" for problem in found]
    tab.close()
    assert not problems, "\n".join(problems)
