"""The page that `annotated-transformer export --format page` fills with a model."""

import re
from pathlib import Path
from string import Template

MOST = 80  # subwords that a page takes
STYLES = ("colors", "figures", "translator")  # sections of the site's style sheet
SCRIPTS = ("engine.js", "translator.js")


def page_template(root: Path) -> str:
    """Return one file with styles and scripts, and a place for the model."""
    book = root / "book"
    parts = re.split(r"/\* -{20,} (.+) \*/\n", (book / "assets" / "book.css").read_text("utf-8"))
    sections = dict(zip(parts[1::2], parts[2::2]))
    return Template((book / "templates" / "translator.html").read_text("utf-8")).substitute(
        style="\n".join(sections[name].strip() for name in STYLES),
        scripts="\n".join((book / "assets" / name).read_text("utf-8") for name in SCRIPTS),
        most=MOST,
    )
