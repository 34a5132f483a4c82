"""Every page, as readers meet it: light and dark, wide and narrow, with nothing from elsewhere,
served or opened as a file.
"""

import gzip
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from axe import DRAWN, SIZES, pages

WIDE = SIZES["wide"]
NARROW = SIZES["narrow"]
CONFIG = Path(__file__).parents[2] / "_config.yml"
FIRST_VIEW = 500 * 1024  # bytes of a chapter before the reader scrolls, compressed
FONTS = "document.fonts.ready.then(() => null)"
FORMULAS = """() => {
    const cut = (part) => {
        const box = part.getBoundingClientRect();
        for (let p = part.parentElement; p.tagName !== "ARTICLE"; p = p.parentElement) {
            const { overflowX } = getComputedStyle(p), around = p.getBoundingClientRect();
            if (/auto|scroll/.test(overflowX)) return box.left + p.scrollLeft < around.left - 1;
            if (overflowX !== "visible" && box.right > around.right + 1) return true;
        }
        return box.right > innerWidth;
    };
    const parts = [...document.querySelectorAll("article .katex-html .katex-base")];
    return {
        written: document.querySelectorAll(".math").length,
        typeset: document.querySelectorAll(".math .katex-html").length,
        cut: parts.filter((part) => part.checkVisibility() && cut(part)).map((p) => p.innerText),
    };
}"""


UNNAMED = """() => {
    const name = (svg) => svg.getAttribute("aria-label") || svg.querySelector("title")?.textContent;
    const bad = [];
    for (const image of document.querySelectorAll("img")) {
        const alt = image.getAttribute("alt");
        const inText = image.closest("article") !== null;
        if (alt === null || (inText && (!alt.trim() || /^[./\\w-]+[.](png|svg|jpe?g)$/.test(alt))))
            bad.push(`img ${image.getAttribute("src")} alt=${alt}`);
    }
    for (const svg of document.querySelectorAll("figure svg, .cell_output svg"))
        if (!svg.closest("button, [aria-hidden=true], svg svg") && !name(svg)?.trim())
            bad.push(`svg in ${svg.closest("figure")?.id || "an output"}`);
    return bad;
}"""

TOO_WIDE = """() => {
    const overflow = document.documentElement.scrollWidth - innerWidth;
    if (overflow <= 0) return null;
    const scrolls = (e) => {
        for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
            if (getComputedStyle(p).overflowX !== "visible") return true;
        return false;
    };
    const wide = [...document.querySelectorAll("body *")].filter(
        (e) => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e));
    return `${overflow} px too wide: ` + wide.slice(0, 3).map((e) => e.outerHTML.slice(0, 120));
}"""


# How many pixels of each stand beside the screen
BESIDE = """(kind) => [...document.querySelectorAll(kind)]
    .filter((part) => part.checkVisibility())
    .map((part) => part.scrollWidth - part.clientWidth)"""

# Words of drawings that are too small to read
SMALLEST = """() => [...document.querySelectorAll('article svg[style*="--least"]')]
    .filter((svg) => svg.checkVisibility())
    .flatMap((svg) => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return [...svg.querySelectorAll("text")].map((word) =>
            [word.textContent, scale * parseFloat(getComputedStyle(word).fontSize)]);
    })
    .filter(([word, size]) => word && size < 8.9)"""


def listen(tab, address):
    """Collect what goes wrong in a tab from now on."""
    problems = []

    def hear_console(message):
        if message.type == "error":
            problems.append(f"console: {message.text}")

    def hear_response(response):
        if response.status >= 400:
            problems.append(f"answer {response.status}: {response.url}")

    def hear_failure(request):
        if request.failure != "net::ERR_ABORTED":  # the page was left before it came
            problems.append(f"failed: {request.url}: {request.failure}")

    def hear_request(request):
        if not request.url.startswith((address, "data:", "blob:")):
            problems.append(f"request to another host: {request.url}")

    tab.on("console", hear_console)
    tab.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    tab.on("response", hear_response)
    tab.on("requestfailed", hear_failure)
    tab.on("request", hear_request)
    return problems


def check_page(tab):
    """Return what is wrong with the page in the tab, whatever its colors and width."""
    yield from tab.evaluate(UNNAMED)
    tab.mouse.move(1, 1)  # charts wait for that
    for figure in tab.locator(DRAWN).element_handles():
        figure.scroll_into_view_if_needed()
        try:
            tab.wait_for_function(
                "figure => figure.dataset.drawn", arg=figure, timeout=10_000
            )
        except Exception as error:
            yield f"a figure was not drawn: {figure.inner_text()[:80]} ({type(error).__name__})"


def check_layout(tab):
    """Return what is wrong with the page in the tab at the width that it has."""
    formulas = tab.evaluate(FORMULAS)
    if formulas["written"] != formulas["typeset"] or formulas["cut"]:
        yield f"formulas: {formulas}"
    overflow = tab.evaluate(TOO_WIDE)
    if overflow is not None:
        yield overflow


@pytest.mark.parametrize(
    ("opened", "scheme", "sizes"),
    [
        ("served", "light", (WIDE, NARROW)),
        ("served", "dark", (NARROW, WIDE)),
        ("as a file", "light", (WIDE,)),
    ],
)
def test_every_page(site, address, browser, opened, scheme, sizes):
    """Each page is in order as it opens, and keeps to the window when its width changes."""
    if opened == "as a file":
        address = f"{site.as_uri()}/"
    tab = browser.new_page(color_scheme=scheme)
    heard = listen(tab, address)
    problems = []
    for page in pages(site):
        heard.clear()
        for size in sizes:
            tab.set_viewport_size(size)
            if size is sizes[0]:
                tab.goto(address + page)
                tab.evaluate(FONTS)
                heard += check_page(tab)
            heard += check_layout(tab)
            if theme(tab) != scheme:
                heard.append("wrong colors")
        problems += [f"{page}: {problem}" for problem in dict.fromkeys(heard)]
    tab.close()
    assert not problems, "\n".join(problems)


def theme(tab):
    """The colors that the page shows."""
    return tab.evaluate("document.documentElement.dataset.theme")


@pytest.fixture
def tab(browser):
    tab = browser.new_page(viewport=WIDE, color_scheme="light")
    yield tab
    tab.close()


def test_theme_switch_changes_colors_and_is_remembered(address, tab):
    """The button goes from the system's colors to light and dark, on the next page too."""
    paper = "getComputedStyle(document.body).backgroundColor"
    tab.goto(address + "book/notation.html")
    colors = {theme(tab): tab.evaluate(paper)}
    for _ in range(3):
        tab.locator(".theme-switch-button:visible").first.click()
        colors[theme(tab)] = tab.evaluate(paper)
        if theme(tab) == "dark":
            break
    assert colors.keys() == {"light", "dark"}
    assert colors["light"] != colors["dark"]
    tab.goto(address + "book/glossary.html")
    assert theme(tab) == "dark"
    assert tab.evaluate(paper) == colors["dark"]


@pytest.mark.parametrize("opened", ["served", "as a file"])
def test_own_typefaces_are_used(site, address, tab, opened):
    root = address if opened == "served" else f"{site.as_uri()}/"
    tab.goto(root + "notebooks/03_attention.html")
    tab.evaluate(FONTS)
    loaded = (
        "[...document.fonts].filter((f) => f.status === 'loaded').map((f) => f.family)"
    )
    families = {family.strip('"') for family in tab.evaluate(loaded)}
    assert {"Book Serif", "Book Sans", "Book Mono"} <= families


@pytest.mark.parametrize(
    "scheme, paper", [("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 29)")]
)
def test_readable_without_scripts(address, browser, scheme, paper):
    """Without JavaScript the theme is the system's, and the still figures are there."""
    tab = browser.new_page(
        viewport=WIDE, java_script_enabled=False, color_scheme=scheme
    )
    tab.goto(address + "notebooks/03_attention.html")
    color = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(color) == paper
    assert tab.locator("figure svg").first.is_visible()
    assert tab.locator("article p").first.is_visible()
    assert tab.locator(".math .katex-html .sqrt").first.is_visible()
    tab.close()


def test_a_narrow_page_ends_with_its_menu_without_scripts(address, browser):
    """No button could open it: all chapters are there, and no button that does nothing."""
    tab = browser.new_page(viewport=NARROW, java_script_enabled=False)
    tab.goto(address + "notebooks/03_attention.html")
    assert not tab.locator("button.primary-toggle").is_visible()
    tab.locator("#pst-primary-sidebar").get_by_text("By hand").click()
    tab.wait_for_url("**/11_by_hand.html")
    tab.close()


def responses_of(tab):
    responses = []
    tab.on("response", lambda response: responses.append(response))
    return responses


def test_the_first_view_of_a_chapter_is_small(site, address, tab):
    sizes = {}
    for page in pages(site):
        if page.startswith("notebooks/"):
            # A browser's empty tab: what the last page still loads is not counted
            chapter = tab.context.browser.new_page()
            responses = responses_of(chapter)
            chapter.goto(address + page)
            chapter.evaluate(FONTS)
            sizes[page] = sum(len(gzip.compress(r.body())) for r in responses)
            chapter.close()
    print(f"{max(sizes.values()) / 1024:.0f} KiB")
    large = {page: size for page, size in sizes.items() if size > FIRST_VIEW}
    assert not large


def test_by_hand_fits_on_four_sheets(address, tab):
    """The chapter that teachers print fits on four sheets, down to its last section."""
    tab.goto(address + "notebooks/11_by_hand.html")
    tab.evaluate(FONTS)
    for paper in ("A4", "Letter"):
        assert len(re.findall(rb"/Type /Page\b", tab.pdf(format=paper))) <= 4, paper
    tab.emulate_media(media="print")
    assert tab.locator("#sources p").is_visible()
    assert not tab.locator(".cell pre:visible").count()


def test_what_is_shown_is_whole_on_a_phone(site, address, tab):
    """Nearly all figures and formulas need no scrolling, printed lines wrap unless they are the
    rows of a table, and no word of a drawing is below 9 pixels.
    """
    tab.set_viewport_size(NARROW)
    figures, formulas, outputs = [], [], []
    for page in pages(site):
        if not page.startswith("notebooks/"):
            continue
        tab.goto(address + page)
        tab.evaluate(
            "document.querySelectorAll('details').forEach((d) => (d.open = true))"
        )
        figures += tab.evaluate(BESIDE, ".book-chart, .book-figure, .book-steps .step")
        formulas += tab.evaluate(BESIDE, "div.math .katex-display")
        outputs += tab.evaluate(BESIDE, ".cell_output > .output:not(.columns) pre")
        small = tab.evaluate(SMALLEST)
        assert not small, f"{page}: {small}"
    assert sum(beside > 1 for beside in figures) < 0.15 * len(figures)
    assert sum(beside > 1 for beside in formulas) <= 2
    assert outputs and max(outputs) <= 1


def test_an_address_that_is_wrong_leads_on(serve, site, tmp_path, tab):
    """Below a sub-path and at any depth, the page for a wrong address has styles and searches."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    base = urlsplit(config["html"]["baseurl"]).path.strip("/")
    (tmp_path / base).symlink_to(site)
    lost = (site / "404.html").read_text(encoding="utf-8")
    with serve(tmp_path) as address:
        tab.route(
            "**/no/such/page",
            lambda route: route.fulfill(body=lost, content_type="text/html"),
        )
        heard = listen(tab, address)
        tab.goto(f"{address}{base}/no/such/page")
        tab.locator("article input[type=search]").fill("causal mask")
        first = tab.locator("#search-results li.section a").first
        first.wait_for()
        assert not heard
        first.click()
        tab.wait_for_url("**/notebooks/*#*")
