"""Icons, card and themes of the site, written here; what a page can do without."""

import re
import shutil
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
import vl_convert
from docutils import nodes
from fontTools import subset
from sphinx.application import Sphinx

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
ICON_NAME = re.compile(r"\bfa-[\w-]+")
ICON_CODE = re.compile(r':"\\([ef][0-9a-f]{3})"')
ICON_RULE = re.compile(r'(?:\.fa-[\w-]+:before,?)+\{content:"\\[0-9a-f]+"\}')
NO_SCRIPT = "no_script.css"
COMMENT = re.compile(r"/\*.*?\*/", re.S)
THEMED_RULE = re.compile(r"([^{};]*\bdata-theme=[^{};]*)\{([^{}]*)\}")
THEMES = {
    "light": "print, screen and (prefers-color-scheme: light)",
    "dark": "screen and (prefers-color-scheme: dark)",
}
UNUSED = re.compile(
    r"<script[^>]*\b(?:doctools|fontawesome|language_data|searchindex|searchtools|sphinx_highlight)"
    r"\.js[^>]*></script>"
)


def keep_used_icons(app: Sphinx, exception: Exception | None) -> None:
    """Leave in the theme's fonts and style sheet the icons that pages show: a dozen of 2,000."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    shown: set[str] = set()
    for page in Path(app.outdir).rglob("*.html"):
        shown.update(ICON_NAME.findall(page.read_text(encoding="utf-8")))

    def kept(rule: re.Match[str]) -> str:
        return "" if shown.isdisjoint(ICON_NAME.findall(rule[0])) else rule[0]

    style_sheet = Path("styles", "pydata-sphinx-theme.css")
    style = ICON_RULE.sub(kept, (THEME / style_sheet).read_text(encoding="utf-8"))
    (static / style_sheet).write_text(style, encoding="utf-8")
    codes = [int(code, 16) for code in ICON_CODE.findall(style)]
    fonts = Path("vendor", "fontawesome", "webfonts")
    for path in (THEME / fonts).glob("*.woff2"):
        options = subset.Options(flavor="woff2", drop_tables=["FFTM"])
        font = subset.load_font(path, options)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=codes)
        subsetter.subset(font)
        subset.save_font(font, static / fonts / path.name, options)
        (static / fonts / path.name).with_suffix(".ttf").unlink(missing_ok=True)


def write_card(app: Sphinx, exception: Exception | None) -> None:
    """Write the picture that other sites show beside a link, which has to be made of dots."""
    if exception or app.builder.format != "html":
        return
    drawing = (Path(__file__).parent / "card.svg").read_text(encoding="utf-8")
    (Path(app.outdir) / "_static" / "card.png").write_bytes(
        vl_convert.svg_to_png(drawing)
    )


def leave_out(app: Sphinx, exception: Exception | None) -> None:
    """Take out what no page asks for."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    shutil.rmtree(static / "locales", ignore_errors=True)
    for file in [*static.rglob("*.map"), static / "scripts" / "fontawesome.js"]:
        file.unlink(missing_ok=True)


def write_style_without_scripts(app: Sphinx, exception: Exception | None) -> None:
    """Write the style of a page without scripts: nobody chooses its theme, so what the style sheets
    say of light and dark pages has to follow the system's.
    """
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    sheets = [
        *static.glob("styles/*.css"),
        static / "pygments.css",
        static / "book.css",
    ]
    text = "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
    rules = THEMED_RULE.findall(COMMENT.sub("", text))
    blocks = []
    for theme, medium in THEMES.items():
        mark = re.compile(f'data-theme="?{theme}"?')
        chosen = [
            f"{mark.sub('data-theme=auto', selector)}{{{body}}}"
            for selector, body in rules
            if mark.search(selector)
        ]
        blocks.append(f"@media {medium} {{{''.join(chosen)}}}\n")
    own = (Path(__file__).parent / "assets" / NO_SCRIPT).read_text(encoding="utf-8")
    (static / NO_SCRIPT).write_text(own + "".join(blocks), encoding="utf-8")


def add_helper(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give the page template a function that takes out scripts of the theme and of Sphinx."""
    context["without_unused_scripts"] = without_unused_scripts


def without_unused_scripts(head: str) -> str:
    """Take the icon script out of a page's head, for the theme's style sheet draws the same icons,
    and the scripts of Sphinx's search, for the book has its own.
    """
    return UNUSED.sub("", head)
