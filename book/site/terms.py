"""The glossary and the chapters lead to each other.

A chapter sets a term in bold where it defines it. There the term becomes a link to the glossary,
with its definition on hover, and the glossary says in which section that is. A term that is nowhere
in bold leads to the first section that speaks of it.
"""

import html
import re
from collections.abc import Iterator
from functools import lru_cache

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from book.site.references import numbered, section_of
from tools.package import label_of

GLOSSARY = "book/glossary"
PLURAL = re.compile(r"(?<=[^s])s$")
LANGUAGES = {
    "German": "de",
    "French": "fr",
    "简体中文": "zh-Hans",
    "繁體中文": "zh-Hant",
    "日本語": "ja",
    "한국어": "ko",
}


def write_glossary_anew(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Ask for the glossary to be written whenever a page has changed: it says where terms are."""
    return [GLOSSARY] if GLOSSARY in env.all_docs else []


def connect_terms(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link terms to the glossary, or the glossary to the chapters."""
    if GLOSSARY not in app.env.all_docs:
        return
    if docname == GLOSSARY:
        lead_to_chapters(app, doctree)
    elif label_of(docname):
        lead_to_glossary(app, doctree, docname)


def entries(
    doctree: nodes.document,
) -> Iterator[tuple[list[str], str, nodes.definition]]:
    """Yield the names of each term, its anchor and its definition."""
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            terms = [child for child in item.children if isinstance(child, nodes.term)]
            names = []
            for term in terms:
                names += re.split(r",\s*", term.astext())
            yield names, terms[0]["ids"][0], next(item.findall(nodes.definition))


def key(text: str) -> str:
    """Return a term as it is compared: without capitals, hyphens and a plural's ending."""
    words = re.split(r"[\s-]+", text.lower().strip(" .,:"))
    return PLURAL.sub("", " ".join(words))


# From chapters to the glossary


@lru_cache(maxsize=1)
def definitions(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Return the anchor and the definition of each term."""
    return {
        key(name): (anchor, definition[0].astext())
        for names, anchor, definition in entries(env.get_doctree(GLOSSARY))
        for name in names
    }


def lead_to_glossary(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make each term that is set in bold a link, once a page."""
    unlinked = dict(definitions(app.env))
    address = app.builder.get_relative_uri(docname, GLOSSARY)
    for bold in list(doctree.findall(nodes.strong)):
        term = key(bold.astext())
        if term in unlinked and not isinstance(bold.parent, nodes.reference):
            anchor, definition = unlinked.pop(term)
            link = nodes.reference("", "", internal=True, refuri=f"{address}#{anchor}")
            link["reftitle"] = definition
            link["classes"] = ["term"]
            bold.replace_self(link)
            link += bold


# From the glossary to the chapters


def lead_to_chapters(app: Sphinx, doctree: nodes.document) -> None:
    """Say under each term which section defines it, and name the languages of its translations."""
    add_letters(doctree)
    homes = find_homes(app.env, [names for names, _, _ in entries(doctree)])
    for names, _, definition in entries(doctree):
        name_languages(definition)
        if names[0] not in homes:
            continue
        docname, anchor = homes[names[0]]
        entry = section_of(app.env, docname, anchor)
        if entry is not None:
            address = app.builder.get_relative_uri(GLOSSARY, docname)
            link = nodes.reference("", "", internal=True, refuri=f"{address}#{anchor}")
            link += numbered(entry)
            paragraph = nodes.paragraph("", "", link, classes=["term-place"])
            definition.insert(1, paragraph)


def add_letters(doctree: nodes.document) -> None:
    """Put a bar of letters above the terms; each leads to the first term that begins with it."""
    first: dict[str, str] = {}
    for names, anchor, _ in entries(doctree):
        first.setdefault(names[0][0].upper(), anchor)
    bar = nodes.paragraph(classes=["letters"])
    for letter, anchor in sorted(first.items()):
        bar += [
            nodes.reference("", letter, internal=True, refid=anchor),
            nodes.Text(" "),
        ]
    for glossary in list(doctree.findall(addnodes.glossary))[:1]:
        glossary.parent.insert(glossary.parent.index(glossary), bar)


Section = tuple[str, str]  # page and anchor


def find_homes(env: BuildEnvironment, terms: list[list[str]]) -> dict[str, Section]:
    """Return the section in which each term is bold, or else is first spoken of."""
    patterns = {names[0]: pattern_of(names) for names in terms}
    bold: dict[str, Section] = {}
    spoken: dict[str, Section] = {}
    for section, parts in sections(env):
        for part in parts:
            for strong in part.findall(nodes.strong):
                bold.setdefault(key(strong.astext()), section)
        prose = [p for p in parts if isinstance(p, nodes.title | nodes.paragraph)]
        text = " ".join(part.astext() for part in prose)
        for name, pattern in patterns.items():
            if name not in spoken and pattern.search(text):
                spoken[name] = section
    homes = {}
    for names in terms:
        defining = [bold[key(name)] for name in names if key(name) in bold]
        if defining:
            homes[names[0]] = defining[0]
        elif names[0] in spoken:
            homes[names[0]] = spoken[names[0]]
    return homes


def pattern_of(names: list[str]) -> re.Pattern[str]:
    """Return a pattern that finds a term by any of its names, in the plural, too."""
    choices = [rf"\b{re.escape(name)}s?\b" for name in names]
    return re.compile("|".join(choices), re.I)


def sections(env: BuildEnvironment) -> Iterator[tuple[Section, list[nodes.Element]]]:
    """Yield each section of the notebooks, with its parts that are no sections themselves."""
    for docname in sorted(filter(label_of, env.all_docs)):
        for section in env.get_doctree(docname).findall(nodes.section):
            if isinstance(section.parent, nodes.document):
                continue  # the head of a chapter names what its sections define
            parts = [part for part in section if not isinstance(part, nodes.section)]
            yield (docname, section["ids"][0]), parts


def name_languages(definition: nodes.definition) -> None:
    """Mark each translation with its language, which decides how its signs are drawn and read."""
    last = definition[-1]
    parts = re.split(r"\s*·\s*", last.astext())
    pairs = [part.partition(": ") for part in parts]
    if all(name in LANGUAGES for name, _, _ in pairs):
        last["classes"].append("translations")
        last.children = []
        for name, _, word in pairs:
            label = nodes.inline("", name, classes=["language"])
            entry = nodes.inline("", "", label, nodes.Text(" "))
            entry += nodes.raw(
                "",
                f'<span lang="{LANGUAGES[name]}">{html.escape(word)}</span>',
                format="html",
            )
            last += [entry, nodes.Text(" ")]
