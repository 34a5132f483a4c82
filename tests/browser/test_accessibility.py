"""axe-core finds nothing on any page, in light and dark, wide and narrow."""

from importlib.resources import files

import pytest

SIZES = {
    "wide": {"width": 1280, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
DRAWN = 'figure:has(> script[type="application/json"])'
# What WCAG 2.2 AA asks for, what is good practice, and one rule that is still an experiment.
# Contrast takes most of the time and hangs on the colors alone: asked once in each of them
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
ALWAYS = {
    "label-content-name-mismatch": {"enabled": True},
    "target-size": {"enabled": True},
}
CONTRAST = {"runOnly": ["color-contrast"]}
SHAPE = {"runOnly": TAGS, "rules": ALWAYS | {"color-contrast": {"enabled": False}}}
ALL = {"runOnly": TAGS, "rules": ALWAYS}
RUN = """async (asked) => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"], ...asked });
    return violations.flatMap(({ id, nodes }) =>
    nodes.slice(0, 5).map(({ target, html, failureSummary }) =>
        `${id} (${nodes.length}): ${target.join(" ")}\\n    ${html.slice(0, 160)}\\n    `
        + failureSummary.split("\\n").slice(1, 2).join(" ").trim()));
}"""
SETTLED = """async () => {
    await document.fonts.ready;
    await new Promise((resolve) => setTimeout(resolve, 400));
}"""


@pytest.fixture(scope="module")
def axe():
    """The text of axe-core."""
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def pages(site):
    """The pages of the book: no redirect, no wrong address, no source of the package."""
    paths = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    excluded = ("index.html", "404.html")
    return [path for path in paths if path not in excluded and path[0] != "_"]


@pytest.mark.parametrize(
    ("scheme", "rules_by_size"),
    [("light", {"wide": ALL, "narrow": SHAPE}), ("dark", {"wide": CONTRAST})],
)
def test_axe_finds_nothing(site, address, browser, axe, scheme, rules_by_size):
    """No rule is broken by any page, wide or narrow, with all its figures drawn."""
    tab = browser.new_page(color_scheme=scheme, reduced_motion="reduce")
    problems = []
    for page in pages(site):
        tab.set_viewport_size(SIZES["wide"])
        tab.goto(address + page)
        tab.mouse.move(1, 1)  # charts wait for that
        for figure in tab.locator(DRAWN).element_handles():
            figure.scroll_into_view_if_needed()
            tab.wait_for_function(
                "figure => figure.dataset.drawn", arg=figure, timeout=20_000
            )
        tab.evaluate(axe)
        for size, rules in rules_by_size.items():
            tab.set_viewport_size(SIZES[size])
            tab.evaluate(SETTLED)
            problems += [
                f"{page}, {size}: {problem}" for problem in tab.evaluate(RUN, rules)
            ]
    tab.close()
    assert not problems, f"{len(problems)} findings\n" + "\n".join(problems)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_what_the_model_answers(
    site, address, browser, axe, scheme
):
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
        tab.evaluate(axe)
        problems += [f"{path.name}: {problem}" for problem in tab.evaluate(RUN, ALL)]
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
def test_axe_finds_nothing_inside(address, browser, axe, scheme, page):
    """At each level of the figures that look into a machine, wide and narrow."""
    tab = browser.new_page(color_scheme=scheme, reduced_motion="reduce")
    problems = []
    for name, place in INSIDE.items():
        tab.goto("about:blank")
        tab.goto(f"{address}{page}{place}")
        tab.locator(".inside-crumbs > *").first.wait_for()
        tab.evaluate(axe)
        for size, viewport in SIZES.items():
            tab.set_viewport_size(viewport)
            tab.evaluate(SETTLED)
            found = tab.evaluate(RUN, ALL)
            problems += [f"{name}, {size}: {problem}" for problem in found]
    tab.close()
    assert not problems, "\n".join(problems)


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
