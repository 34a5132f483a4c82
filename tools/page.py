"""The page that `annotated-transformer export --format page` fills with a model."""

import json
import re
from pathlib import Path
from string import Template

from tools.inside import lines_of_a_head

MOST = 80  # subwords that a page takes
STYLES = ("colors", "figures", "translator", "inside")  # of the site's style sheet
SCRIPTS = (
    "engine.js",
    "translator.js",
    "inside_parts.js",
    "inside_machine.js",
    "inside_layer.js",
    "inside_head.js",
    "inside.js",
)
SECTION = re.compile(r"/\* -{20,} (.+) \*/\n")


def page_template(root: Path) -> str:
    """Return one file with styles and scripts, and a place for the model."""
    site = root / "book" / "site"
    style_sheet = (site / "assets" / "book.css").read_text("utf-8")
    _, *parts = SECTION.split(style_sheet)
    sections = dict(zip(parts[0::2], parts[1::2]))
    styles = [sections[name].strip() for name in STYLES]
    scripts = [(site / "assets" / name).read_text("utf-8") for name in SCRIPTS]
    template = Template((site / "templates" / "translator.html").read_text("utf-8"))
    return template.substitute(
        style="\n".join(styles),
        scripts="\n".join(scripts),
        most=MOST,
        code=json.dumps(lines_of_a_head(root / "annotated_transformer")),
    )
