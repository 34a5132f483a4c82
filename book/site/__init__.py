"""What the site needs beyond Jupyter Book: captions on exported cells, the API reference, and
scripts that come from our own host. Nothing here needs torch.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from book.site import (
    accessible,
    api,
    assets,
    captions,
    formulas,
    heads,
    links,
    meta,
    numbering,
    numbers,
    pictures,
    references,
    search,
    terms,
    tokens,
    typography,
    volumes,
)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the parts with Sphinx."""
    numbering.install()
    app.connect("source-read", numbers.fill_in)
    app.add_directive("package-reference", api.PackageReference)
    app.connect("viewcode-find-source", api.find_source)
    app.connect("doctree-resolved", captions.add_captions)
    app.connect("doctree-resolved", links.find_targets)
    app.connect("doctree-resolved", tokens.mark_tokens)
    app.connect("doctree-resolved", references.number_references)
    app.connect("doctree-resolved", terms.connect_terms)
    app.connect("env-updated", terms.write_glossary_anew)
    app.add_node(nodes.literal_block, override=True, html=(links.visit_code, None))
    app.connect("doctree-resolved", typography.keep_together)
    app.connect("doctree-resolved", typography.let_columns_scroll)
    app.connect("doctree-resolved", typography.set_notes_beside)
    app.connect("html-page-context", assets.add_helper)
    app.add_node(pictures.picture)
    app.add_directive("picture", pictures.Picture)
    app.add_post_transform(pictures.ShowPictures)
    app.connect("build-finished", assets.write_card)
    app.connect("build-finished", assets.keep_what_is_used)
    app.connect("build-finished", assets.leave_out)
    app.connect("build-finished", assets.write_style_without_scripts)
    # Before anything copies a title with a formula
    app.connect("doctree-read", formulas.typeset_formulas, priority=100)
    app.add_html_math_renderer(
        "katex", (formulas.visit_math, None), (formulas.visit_math_block, None)
    )
    app.connect("doctree-read", heads.fold_imports)
    app.connect("doctree-resolved", heads.add_head)
    app.connect("doctree-resolved", heads.fold_solutions)
    app.connect("html-page-context", volumes.set_apart)
    app.connect("html-page-context", meta.describe)
    app.connect("build-finished", meta.write_files)
    app.connect("html-page-context", accessible.repair_body)
    app.connect("builder-inited", search.use_own_search)
    app.connect("build-finished", search.write_data)
    app.connect("config-inited", allow_processes)
    # Sphinx notices changed pages only. So that it also notices changed styles (it writes all
    # pages anew) and changed code here (it reads them anew), both become a number that it compares.
    styles = (Path(__file__).parent / "assets").rglob("*")
    app.add_config_value("fingerprint_of_assets", fingerprint(styles), "html")
    code = fingerprint(Path(__file__).parent.glob("*.py"))
    return {
        "env_version": code,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }


def allow_processes(app: Sphinx, config: Config) -> None:
    """Let several processes read pages: extensions that say nothing of it do not act on pages."""
    for extension in app.extensions.values():
        if extension.parallel_read_safe is None:
            extension.parallel_read_safe = True


def fingerprint(paths: Iterable[Path]) -> int:
    """Return a number that changes with the content of the files."""
    files = sorted(path for path in paths if path.is_file())
    return zlib.crc32(b"".join(file.read_bytes() for file in files))
