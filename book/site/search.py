"""The index of the search: an entry for each section, for each term of the glossary and for each
name of the API. Prose, captions and formulas are its text; of code it has the names alone.

`book/site/assets/search.js` reads it, with MiniSearch, when somebody searches.
"""

import json
import keyword
import re
from collections.abc import Iterator, Mapping
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
NAME = re.compile(r"[^\W\d]\w{2,}")
COMMON = {
    *keyword.kwlist,
    "assert",
    "print",
    "range",
    "self",
    "torch",
    "numpy",
    "math",
    "annotated_transformer",
}
IMPORT = re.compile(r"^(?:from|import) [^(\n]*(?:\([^)]*\))?$", re.M)
SPACE = re.compile(r"\s+")
STRING = re.compile(r'("""|\'\'\'|"|\').*?\1|#.*', re.S)
LAYOUT = re.compile(
    r"\\(?:begin|end)\s*\{[a-z]+\}|\\\\(?:\[\w+\])?|&"
    r"|\\(?:left|right|big|q?quad|displaystyle)\b|\\[^a-zA-Z]"
)
WRAPPED = re.compile(
    r"\\(?:text[a-z]*|math[a-z]+|operatorname|bar|hat|overline|underbrace|phantom)"
    r"\s*\{([^{}]*)\}"
)
GROUP = re.compile(r"(\\sqrt|[_^])\s*\{([^{}]*)\}")
FRACTION = re.compile(r"\\[td]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)(\d))")
SEVERAL = re.compile(r"\s[-+]|[-+]\s|\\(?:cdot|times|odot)\b")
COMMAND = re.compile(r"\\([a-zA-Z]+)")
SCRIPT = re.compile(r"\s*([_^])\s*")
SIGNS = {
    "top": "T ",
    "cdot": " · ",
    "odot": " · ",
    "circ": " · ",
    "times": " × ",
    "dots": " ... ",
    "ldots": " ... ",
    "cdots": " ... ",
    "lvert": "|",
    "rvert": "|",
    "lVert": "|",
    "rVert": "|",
    "mid": " | ",
    "ne": " ≠ ",
    "neq": " ≠ ",
    "le": " ≤ ",
    "leq": " ≤ ",
    "ge": " ≥ ",
    "approx": " ≈ ",
    "pm": " ± ",
    "in": " ∈ ",
    "cap": " ∩ ",
    "to": " → ",
    "leftarrow": " ← ",
    "infty": "∞",
    "ell": "l ",
}
SKIPPED = (
    nodes.section,
    nodes.literal_block,
    nodes.raw,
    nodes.comment,
    nodes.image,
    nodes.system_message,
    addnodes.desc,
)


Numbers = Mapping[str, tuple[int | str, ...]]  # of sections, by anchor


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
    name_references(env, doctree)
    yield from sections(doctree, env.toc_secnumbers.get(docname, {}))
    yield from terms(doctree)
    yield from names_of_api(doctree)


def sections(doctree: nodes.document, numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Describe each section, by its own text and the names in its own code."""
    for section in doctree.findall(nodes.section):
        title = plain(section[0])
        top = isinstance(section.parent, nodes.document)
        anchor = "" if top else section["ids"][0]
        number = numbers.get(f"#{anchor}" if anchor else "", ())
        own = [plain(child) for child in section[1:] if not hidden(child)]
        yield {
            "kind": "section",
            "anchor": anchor,
            "number": dotted(number),
            "title": title,
            "text": " ".join(own).strip(),
            "code": " ".join(names(section)),
        }


def terms(doctree: nodes.document) -> Iterator[dict[str, Any]]:
    """Describe each term of a glossary."""
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            term = next(iter(item.findall(nodes.term)))
            definitions = [plain(part) for part in item.findall(nodes.definition)]
            yield {
                "kind": "term",
                "anchor": term["ids"][0],
                "title": plain(term),
                "text": " ".join(definitions),
            }


def names_of_api(doctree: nodes.document) -> Iterator[dict[str, Any]]:
    """Describe each function, class and method of the reference."""
    for description in doctree.findall(addnodes.desc):
        head = next(iter(description.findall(addnodes.desc_signature)))
        if head.get("ids"):
            content = description.findall(addnodes.desc_content)
            body = " ".join(plain(part) for part in content)
            yield {
                "kind": "name",
                "anchor": head["ids"][0],
                "title": head["fullname"],
                "text": body,
            }


def hidden(node: nodes.Node) -> bool:
    """Say whether a part of a section is found by itself."""
    return isinstance(node, nodes.section | addnodes.glossary | addnodes.desc)


def plain(node: nodes.Node) -> str:
    """Return the text of a part of a page as somebody would write it who searches for it."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.math | nodes.math_block):
        return without_tex(node.astext())
    if isinstance(node, SKIPPED):
        return ""
    parts = [plain(child) for child in node.children]
    if isinstance(node, nodes.TextElement):
        return SPACE.sub(" ", "".join(parts))
    return SPACE.sub(" ", " ".join(part for part in parts if part)).strip(" ")


def without_tex(formula: str) -> str:
    r"""Write a formula with letters and signs alone: `d_model` for `d_\text{model}`."""
    text = LAYOUT.sub(" ", formula)
    before = ""
    while text != before:  # from the innermost braces outward
        before = text
        text = WRAPPED.sub(r"\1", text)
        text = GROUP.sub(lambda group: f"{group[1]} {in_parentheses(group[2])}", text)
        text = FRACTION.sub(fraction, text)
    text = COMMAND.sub(lambda command: SIGNS.get(command[1], f"{command[1]} "), text)
    text = SCRIPT.sub(r"\1", re.sub("[{}]", "", text))
    return " ".join(text.split()).replace(" )", ")")


def fraction(found: re.Match[str]) -> str:
    """Write a fraction in one line."""
    upper, lower = (part for part in found.groups() if part is not None)
    return f"{in_parentheses(upper)} / {in_parentheses(lower)}"


def in_parentheses(part: str) -> str:
    """Put parentheses around what is more than one factor."""
    part = part.strip()
    return f"({part})" if SEVERAL.search(part) else part


def name_references(env: BuildEnvironment, doctree: nodes.document) -> None:
    """Put what a reader sees into each reference to a source, a figure or a formula."""
    for reference in doctree.findall(addnodes.pending_xref):
        seen = text_seen(env, reference)
        if seen:
            reference.children = [nodes.Text(seen)]


def text_seen(env: BuildEnvironment, reference: addnodes.pending_xref) -> str:
    """Return the text of a reference, empty if its own will do."""
    target = reference["reftarget"]
    if reference.get("refdomain") == "cite":
        keys = [key.strip() for key in target.split(",")]
        return ", ".join(authors_and_year(env, key) for key in keys)
    if reference.get("reftype") == "numref":
        docname, anchor = env.domaindata["std"]["anonlabels"].get(target, ("", ""))
        figures = env.toc_fignumbers.get(docname, {}).get("figure", {})
        return f"Figure {dotted(figures[anchor])}" if anchor in figures else ""
    if reference.get("reftype") == "eq":
        docname, _ = env.domaindata["math"]["objects"].get(target, ("", 0))
        formulas = env.toc_fignumbers.get(docname, {}).get("displaymath", {})
        number = formulas.get(f"equation-{target}")
        return f"({dotted(number)})" if number else ""
    return ""


def dotted(number: tuple[int | str, ...]) -> str:
    """Return the number of a section, a figure or a formula as it is printed."""
    return ".".join(str(part) for part in number)


def authors_and_year(env: BuildEnvironment, key: str) -> str:
    """Return how one speaks of a source: `Vaswani and others 2017`."""
    entries = {one.key: one.entry for one in env.domaindata["cite"]["citations"]}
    if key not in entries:
        return key
    names = [" ".join(one.last_names) for one in entries[key].persons["author"]]
    if len(names) > 2:
        names[1:] = ["others"]
    return f"{' and '.join(names)} {entries[key].fields['year']}"


def names(section: nodes.section) -> list[str]:
    """Return the names that the code of a section uses, without those that it imports."""
    used: dict[str, None] = {}  # in the order of their first use
    for child in section.children:
        if isinstance(child, nodes.section):
            continue
        for block in child.findall(nodes.literal_block):
            if "python" in block.get("language", ""):
                code = STRING.sub("", IMPORT.sub("", block.astext()))
                used |= dict.fromkeys(NAME.findall(code))
    return [name for name in used if name not in COMMON]
