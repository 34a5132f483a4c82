"""The scripts that a page loads: the Vega bundle, written here, and one that it can do without."""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from docutils import nodes
from sphinx.application import Sphinx

BUNDLE = "vega.js"
ICON_SCRIPT = re.compile(r"<script[^>]*/fontawesome\.js[^>]*></script>")


def write_vega_bundle(app: Sphinx, exception: Exception | None) -> None:
    """Write Vega, Vega-Lite and Vega-Embed as one script, unless this version is there already."""
    if exception or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / BUNDLE
    heading = f"// Vega-Embed, bundled by vl-convert {version('vl-convert-python')}\n"
    if target.exists() and target.read_text(encoding="utf-8").startswith(heading):
        return
    bundle = vl_convert.javascript_bundle("bookFigures.vega = { vegaEmbed };")
    target.write_text(f'{heading}(() => {{"use strict";{bundle}}})();\n', encoding="utf-8")


def add_helper(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give the page template a function that takes out the theme's icon script."""
    context["without_icon_script"] = without_icon_script


def without_icon_script(head: str) -> str:
    """Take the icon script out of a page's head: the theme's style sheet draws the same icons."""
    return ICON_SCRIPT.sub("", head)
