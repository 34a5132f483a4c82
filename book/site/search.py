"""The index of the search: an entry for each section, for each term of the glossary and for each
name of the API. Prose, captions and the formulas in it are its text.

`book/site/assets/search.js` reads it, with MiniSearch, when somebody searches.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.search.en import SearchEnglish

DATA = "search_data.js"
WORDS = "book/site/search_words.yml"
SPACE = re.compile(r"\s+")
KEY = re.compile(r"([a-z]+)(\d{4})")  # of a source: author and year
LAYOUT = re.compile(r"\\(?:hat|left|right)\b\s*|\\[^a-zA-Z]")
WORD = re.compile(r"\\(?:text|operatorname)\{(\w+)\}")
ROOT = re.compile(r"\\sqrt\s*\{([^{}]*)\}")
FRACTION = re.compile(r"\\t?frac(?:\{([^{}]*)\}\{([^{}]*)\}|(\d)(\d))")
COMMAND = re.compile(r"\\([a-zA-Z]+)\s*")
SCRIPT = re.compile(r"\s*([_^])")
SIGNS = {
    "top": "T",
    "cdot": "·",
    "times": "×",
    "dots": "...",
    "ne": "≠",
    "le": "≤",
    "ge": "≥",
    "approx": "≈",
    "pm": "±",
    "to": "→",
    "infty": "∞",
    "lvert": "|",
    "rvert": "|",
    "ell": "l",
}
SKIPPED = (
    nodes.section,
    nodes.literal_block,
    nodes.math_block,
    nodes.raw,
    nodes.comment,
    nodes.image,
    nodes.system_message,
    addnodes.desc,
    addnodes.glossary,
)


def use_own_search(app: Sphinx) -> None:
    """Keep Sphinx from writing an index of its own, which knows pages only."""
    setattr(app.builder, "search", False)  # noqa: B010


def write_data(app: Sphinx, exception: Exception | None) -> None:
    """Write what the search needs as one script: a page that was opened as a file can load it."""
    if exception or app.builder.format != "html":
        return
    env = app.env
    pages = []
    found_on_pages = []
    for index, docname in enumerate(sorted(env.found_docs & env.all_docs.keys())):
        address = app.builder.get_target_uri(docname)
        pages.append({"address": address, "title": env.titles[docname].astext()})
        for entry in entries(env, docname):
            found_on_pages.append({"page": index, **entry})
    words = yaml.safe_load((Path(app.srcdir) / WORDS).read_text(encoding="utf-8"))
    data = {"pages": pages, "entries": found_on_pages, "words": words}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    script = f"{SearchEnglish.js_stemmer_code}\nObject.assign(bookSearch, {text}, {{Stemmer}});\n"
    target = Path(app.outdir) / "_static" / DATA
    target.write_text(script, encoding="utf-8")


def entries(env: BuildEnvironment, docname: str) -> Iterator[dict[str, Any]]:
    """Describe what can be found on a page."""
    doctree = env.get_doctree(docname)
    numbers = env.toc_secnumbers.get(docname, {})
    for section in doctree.findall(nodes.section):
        top = isinstance(section.parent, nodes.document)
        anchor = "" if top else section["ids"][0]
        number = numbers.get(f"#{anchor}" if anchor else "", ())
        yield {
            "kind": "section",
            "anchor": anchor,
            "number": ".".join(str(part) for part in number),
            "title": plain(section[0]),
            "text": joined(section[1:]),
        }
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            term = next(iter(item.findall(nodes.term)))
            yield {
                "kind": "term",
                "anchor": term["ids"][0],
                "title": plain(term),
                "text": joined(item.findall(nodes.definition)),
            }
    for description in doctree.findall(addnodes.desc):
        head = next(iter(description.findall(addnodes.desc_signature)))
        if head.get("ids"):
            yield {
                "kind": "name",
                "anchor": head["ids"][0],
                "title": head["fullname"],
                "text": joined(description.findall(addnodes.desc_content)),
            }


def joined(parts: Iterable[nodes.Node]) -> str:
    """Return the text of several parts of a page."""
    texts = [plain(part) for part in parts]
    return " ".join(text for text in texts if text)


def plain(node: nodes.Node) -> str:
    """Return the text of a part of a page as somebody would write it who searches for it."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.math):
        return without_tex(node.astext())
    if isinstance(node, SKIPPED):
        return ""
    if isinstance(node, addnodes.pending_xref) and node["reftype"] in ("numref", "eq"):
        return "the figure" if node["reftype"] == "numref" else "the formula"
    if isinstance(node, addnodes.pending_xref) and node.get("refdomain") == "cite":
        cited = KEY.findall(node["reftarget"])
        return ", ".join(f"{author.title()} {year}" for author, year in cited)
    if isinstance(node, nodes.TextElement):
        return SPACE.sub(" ", "".join(plain(child) for child in node.children))
    return SPACE.sub(" ", joined(node.children)).strip(" ")


def without_tex(formula: str) -> str:
    r"""Write a formula in a line as one types it: `d_model` for `d_\text{model}`."""
    text = WORD.sub(r"\1", LAYOUT.sub("", formula))
    text = ROOT.sub(r"sqrt(\1)", text)
    text = FRACTION.sub(r"\1\3 / \2\4", text)
    text = COMMAND.sub(lambda command: f"{SIGNS.get(command[1], command[1])} ", text)
    text = SCRIPT.sub(r"\1", re.sub("[{}]", "", text))
    return " ".join(text.split())
