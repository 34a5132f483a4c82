"""What the tests of accessibility share: axe-core, its rules, and the pages."""

from functools import cache
from importlib.resources import files

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


@cache
def axe_core():
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def pages(site):
    """The pages of the book: no redirect, no wrong address, no source of the package."""
    paths = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    excluded = ("index.html", "404.html")
    return [path for path in paths if path not in excluded and path[0] != "_"]


def findings(tab, rules):
    """What axe finds in a tab as it is."""
    tab.evaluate(axe_core())
    return tab.evaluate(RUN, rules)


def findings_by_size(tab, rules_by_size):
    """What axe finds in a tab by the rules of each of some sizes; each with the size."""
    found = []
    for size, rules in rules_by_size.items():
        tab.set_viewport_size(SIZES[size])
        tab.evaluate(SETTLED)
        found += [f"{size}: {problem}" for problem in findings(tab, rules)]
    return found


def findings_on_all_pages(site, address, browser, scheme, rules_by_size):
    """What axe finds on every page with all its figures drawn, in a color scheme."""
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
        found = findings_by_size(tab, rules_by_size)
        problems += [f"{page}, {problem}" for problem in found]
    tab.close()
    return problems
