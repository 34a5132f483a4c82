"""Icons, card and themes of the site, written here; what a page can do without."""

import html
import re
import shutil
import string
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
import vl_convert
from docutils import nodes
from fontTools import subset
from sphinx.application import Sphinx

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
ASSETS = Path(__file__).parent / "assets"
RULE = re.compile(r"([^{}]+)\{[^{}]*\}")  # of a style sheet
CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")
NEGATION = re.compile(r":not\([^()]*\)")
WORD = re.compile(r"[\w-]+")
ICON_CODE = re.compile(r':"\\([ef][0-9a-f]{3})"')
TYPED = string.printable + "äöüßÄÖÜ"  # in the page that translates
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


def keep_what_is_used(app: Sphinx, exception: Exception | None) -> None:
    """Leave what pages and scripts use: of 2,000 icons a dozen, a third of the theme's style."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    static = out / "_static"
    files = [*out.rglob("*.html"), *out.rglob("*.js")]
    text = html.unescape("".join(file.read_text(encoding="utf-8") for file in files))
    words = set(WORD.findall(text))

    def kept(rule: re.Match[str]) -> str:
        selectors = NEGATION.sub("", rule[1]).split(",")
        used = any(words.issuperset(CLASS.findall(selector)) for selector in selectors)
        return rule[0] if used else ""

    style_sheet = Path("styles", "pydata-sphinx-theme.css")
    style = RULE.sub(kept, (THEME / style_sheet).read_text(encoding="utf-8"))
    (static / style_sheet).write_text(style, encoding="utf-8")
    sheets = [file.read_text("utf-8") for file in (static / "styles").glob("*.css")]
    icons = [int(code, 16) for code in ICON_CODE.findall("".join(sheets))]
    webfonts = Path("vendor", "fontawesome", "webfonts")
    for font in (THEME / webfonts).glob("*.woff2"):
        write_part(font, icons, static / webfonts / font.name)
        (static / webfonts / font.name).with_suffix(".ttf").unlink(missing_ok=True)
    letters = [ord(letter) for letter in set(text) | set(TYPED)]
    for font in ASSETS.rglob("*.woff2"):
        write_part(font, letters, static / font.relative_to(ASSETS))


def write_part(font: Path, characters: list[int], target: Path) -> None:
    """Write a font with no more than some characters, and without its name: Adobe reserves it."""
    options = subset.Options(flavor="woff2", hinting=False, layout_features=["*"])
    options.name_IDs = [0, 13, 14]  # copyright and license
    options.notdef_outline = True  # a box for what no font has
    options.drop_tables += ["FFTM"]
    loaded = subset.load_font(font, options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=characters)
    subsetter.subset(loaded)
    subset.save_font(loaded, target, options)


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
    own = (ASSETS / NO_SCRIPT).read_text(encoding="utf-8")
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
