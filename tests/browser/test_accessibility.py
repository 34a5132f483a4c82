"""axe-core finds nothing on any page, in light and dark, wide and narrow.

axe-core comes from the npm registry, once: its address and hash are below.
"""

from pathlib import Path

import pooch
import pytest

VERSION = "4.14.1"
ADDRESS = f"https://registry.npmjs.org/axe-core/-/axe-core-{VERSION}.tgz"
HASH = (
    "sha512:1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73"
    "4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5"
)
SIZES = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}
DRAWN = 'figure:has(> script[type="application/json"])'
# What WCAG 2.2 AA asks for, what is good practice, and one rule that is still an experiment
RUN = """() => axe.run(document, {
    resultTypes: ["violations"],
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    rules: { "label-content-name-mismatch": { enabled: true }, "target-size": { enabled: true } },
}).then(({ violations }) => violations.flatMap(({ id, nodes }) =>
    nodes.slice(0, 5).map(({ target, html, failureSummary }) =>
        `${id} (${nodes.length}): ${target.join(" ")}\\n    ${html.slice(0, 160)}\\n    `
        + failureSummary.split("\\n").slice(1, 2).join(" ").trim())))"""
SETTLED = """async () => {
    if (window.MathJax) await MathJax.startup.promise;
    await document.fonts.ready;
    await new Promise((resolve) => setTimeout(resolve, 400));
}"""


@pytest.fixture(scope="module")
def axe():
    """The text of axe-core."""
    try:
        unpacked = pooch.retrieve(
            ADDRESS,
            HASH,
            fname=f"axe-core-{VERSION}.tgz",
            path=pooch.os_cache("axe-core"),
            processor=pooch.Untar(members=["package/axe.min.js"]),
        )
    except OSError as error:  # no network, and not in the cache
        pytest.skip(f"axe-core {VERSION} cannot be had from {ADDRESS}: {type(error).__name__}")
    return Path(unpacked[0]).read_text(encoding="utf-8")


def pages(site):
    """The pages of the book: no redirect, no wrong address, no source of the package."""
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    return [page for page in found if page not in ("index.html", "404.html") and page[0] != "_"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site, address, browser, axe, scheme):
    """No rule is broken by any page, wide or narrow, with all its figures drawn."""
    tab = browser.new_page(color_scheme=scheme, reduced_motion="reduce")
    problems = []
    for page in pages(site):
        tab.set_viewport_size(SIZES["wide"])
        tab.goto(address + page)
        for figure in tab.locator(DRAWN).element_handles():
            figure.scroll_into_view_if_needed()
            tab.wait_for_function("figure => figure.dataset.drawn", arg=figure, timeout=20_000)
        tab.evaluate(axe)
        for size, viewport in SIZES.items():
            tab.set_viewport_size(viewport)
            tab.evaluate(SETTLED)
            problems += [f"{page}, {size}: {problem}" for problem in tab.evaluate(RUN)]
    tab.close()
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
