"""Every page, as readers meet it: light and dark, wide and narrow, with nothing from elsewhere,
served or opened as a file.
"""

import re

import pytest

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

TYPESET = """async () => {
    if (window.MathJax) await MathJax.startup.promise;
    await document.fonts.ready;
}"""

FORMULAS = """() => ({
    written: document.querySelectorAll(".math").length,
    typeset: document.querySelectorAll(".math mjx-container").length,
    faulty: document.querySelectorAll("mjx-merror, [data-mjx-error]").length,
    loose: document.querySelectorAll("mjx-container").length,
    beyondReach: [...document.querySelectorAll("mjx-container[display]")].filter((formula) => {
        const start = formula.closest(".math").getBoundingClientRect().left;
        return formula.querySelector("mjx-math").getBoundingClientRect().left < start - 1;
    }).length,
})"""

# Drawn by a script: what carries data
DRAWN = 'figure:has(> script[type="application/json"])'

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
        if (!svg.closest("button") && !svg.parentElement.closest("svg") && !name(svg)?.trim())
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


def pages(site):
    """The pages of the site, without the redirect at its root."""
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    return [page for page in found if page != "index.html" and not page.startswith("_static")]


def listen(tab, address):
    """Collect what goes wrong in a tab from now on."""
    heard = []
    tab.on("console", lambda said: said.type == "error" and heard.append(f"console: {said.text}"))
    tab.on("pageerror", lambda error: heard.append(f"exception: {error}"))
    tab.on(
        "response",
        lambda answer: answer.status < 400 or heard.append(f"answer {answer.status}: {answer.url}"),
    )
    tab.on("requestfailed", lambda request: heard.append(f"failed: {request.url}"))
    tab.on(
        "request",
        lambda request: (
            request.url.startswith((address, "data:", "blob:"))
            or heard.append(f"request to another host: {request.url}")
        ),
    )
    return heard


def check_page(tab):
    """Return what is wrong with the page in the tab, whatever its colors and width."""
    formulas = tab.evaluate(FORMULAS)
    complete = formulas["written"] == formulas["typeset"] == formulas["loose"]
    if not complete or formulas["faulty"] or formulas["beyondReach"]:
        yield f"formulas: {formulas}"
    yield from tab.evaluate(UNNAMED)
    for figure in tab.locator(DRAWN).element_handles():
        figure.scroll_into_view_if_needed()
        try:
            tab.wait_for_function("figure => figure.dataset.drawn", arg=figure, timeout=10_000)
        except Exception as error:
            yield f"a figure was not drawn: {figure.inner_text()[:80]} ({type(error).__name__})"


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
        found = []
        for size in sizes:
            tab.set_viewport_size(size)
            if size is sizes[0]:
                tab.goto(address + page)
                tab.evaluate(TYPESET)
                found += check_page(tab)
            found += [tab.evaluate(TOO_WIDE), None if theme(tab) == scheme else "wrong colors"]
        problems += [f"{page}: {what}" for what in dict.fromkeys([*heard, *found]) if what]
    tab.close()
    assert not problems, "\n".join(problems)


def theme(tab):
    """The colors that the page shows."""
    return tab.evaluate("document.documentElement.dataset.theme")


@pytest.fixture
def tab(browser):
    """A wide tab in light colors."""
    tab = browser.new_page(viewport=WIDE, color_scheme="light")
    yield tab
    tab.close()


def test_theme_switch_changes_colors_and_is_remembered(address, tab):
    """The button goes from the system's colors to light and dark, on the next page too."""
    paper = "getComputedStyle(document.body).backgroundColor"
    tab.goto(address + "book/notation.html")
    seen = {theme(tab): tab.evaluate(paper)}
    for _ in range(3):
        tab.locator(".theme-switch-button:visible").first.click()
        seen[theme(tab)] = tab.evaluate(paper)
        if theme(tab) == "dark":
            break
    assert set(seen) == {"light", "dark"} and seen["light"] != seen["dark"]
    tab.goto(address + "book/glossary.html")
    assert theme(tab) == "dark" and tab.evaluate(paper) == seen["dark"]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("attention", "notebooks/03_attention.html"),
        ("query key value", "03_attention.html#queries-keys-and-values"),
        ("why divide by sqrt d_k", "03_attention.html#why-divide-by-the-square-root"),
        ("causal mask", "04_masks.html#the-causal-mask"),
        ("why several heads", "05_multi_head_attention.html#why-several-heads"),
        ("softmax in the code", "07_embeddings.html#why-is-there-no-softmax"),
        ("why sines", "08_positional_encoding.html#why-sine-and-cosine"),
        ("where is dropout", "09_layers.html#where-exactly-is-dropout"),
        ("pre-norm post-norm", "09_layers.html#before-or-after"),
        ("beam search worse", "19_decoding.html#why-is-my-beam-search-worse"),
        ("Aufmerksamkeit", "book/glossary.html"),
    ],
)
def test_search_finds_the_answer(address, tab, question, answer):
    """The first result of a question opens the page at the heading that answers it."""
    tab.goto(f"{address}search.html?q={question}")
    first = tab.locator("#search-results li a").first
    first.wait_for()
    assert answer in first.get_attribute("href")


def test_search_opens_from_the_keyboard(address, tab):
    """Control and K opens the search field; Enter searches."""
    tab.goto(address + "book/notation.html")
    tab.wait_for_load_state()
    tab.keyboard.press("Control+K")
    tab.keyboard.type("softmax")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/search.html?q=softmax*")
    tab.locator("#search-results li a").first.wait_for()


@pytest.mark.parametrize("opened", ["served", "as a file"])
def test_own_typefaces_are_used(site, address, tab, opened):
    """Text, headings and code have the typefaces that the site brings along."""
    root = address if opened == "served" else f"{site.as_uri()}/"
    tab.goto(root + "notebooks/03_attention.html")
    tab.evaluate(TYPESET)
    loaded = "[...document.fonts].filter((f) => f.status === 'loaded').map((f) => f.family)"
    found = {family.strip('"') for family in tab.evaluate(loaded)}
    assert {"Source Serif 4", "Source Sans 3", "Source Code Pro"} <= found


def test_search_works_in_a_book_opened_as_a_file(site, tab):
    """Results, without excerpts from the pages; the first opens at its heading."""
    heard = listen(tab, f"{site.as_uri()}/")
    tab.goto(f"{site.as_uri()}/search.html?q=softmax")
    first = tab.locator("#search-results li a").first
    first.wait_for()
    first.click()
    tab.wait_for_url("**/*.html#*")
    assert tab.locator("article h1").is_visible() and not heard


def test_exported_cells_name_their_file(address, tab):
    """The caption of an exported cell leads to the definition in the package's source."""
    tab.goto(address + "notebooks/03_attention.html")
    caption = tab.locator(".cell.tag_export:has-text('def attention(') > .export-caption a")
    assert caption.inner_text() == "annotated_transformer/attention.py"
    caption.click()
    tab.wait_for_url("**/_modules/annotated_transformer/attention.html#attention")
    assert "def attention(" in tab.locator("#attention").inner_text()


def test_readable_without_scripts(address, browser):
    """Without JavaScript the text is dark on light and the still figures are there."""
    tab = browser.new_page(viewport=WIDE, java_script_enabled=False)
    tab.goto(address + "notebooks/03_attention.html")
    assert tab.locator("figure svg").first.is_visible()
    assert tab.locator("article p").first.is_visible()
    tab.close()


def test_by_hand_fits_on_four_sheets(address, tab):
    """The chapter that teachers print fits on four sheets, down to its last section."""
    tab.goto(address + "notebooks/11_by_hand.html")
    tab.evaluate(TYPESET)
    for paper in ("A4", "Letter"):
        assert len(re.findall(rb"/Type /Page\b", tab.pdf(format=paper))) <= 4, paper
    tab.emulate_media(media="print")
    assert tab.locator("#sources p").is_visible() and not tab.locator(".cell pre:visible").count()
