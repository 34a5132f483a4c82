"""The chapters' figures that ask "what if": recorded pictures, until the reader loads the model.

`:::{what-if} NAME` holds the caption and, as its last paragraph, what a notebook says in its place.
"""

import html
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from tools.site.translator import packed, percent
from tools.web_model import SHOWN, settings

RECORDINGS = Path("book", "what_if.json")
LABELS = {"neighbors": "Word"}  # of the field; of others, the language
PRINTED = 12  # rows and columns of a table of weights whose numbers have room
KINDS = ("causal mask", "no mask", "no mask, rest in view")


class WhatIf(SphinxDirective):
    """`{what-if}`: a figure with its caption, its number, and what the script needs."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        recorded = Path(self.env.srcdir) / RECORDINGS
        for path in (recorded, SHOWN / "model.safetensors"):
            self.env.note_dependency(str(path))
        content = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, content)
        caption, *_ = content.children  # the rest is for notebooks
        figure = nodes.figure()
        figure += nodes.raw(
            "", live(name, json.loads(recorded.read_text("utf-8"))[name]), format="html"
        )
        figure += nodes.caption("", "", *caption.children)
        self.options["name"] = f"fig-what-if-{name}"
        self.add_name(figure)
        return [figure]


def live(name: str, recorded: dict[str, Any]) -> str:
    """Return the picture, and the data for the script."""
    data = settings(SHOWN) | {"figure": name, "text": recorded["text"]}
    data |= {"start": recorded.get("start"), "label": LABELS.get(name, "German")}
    data |= {"megabytes": f"{len(packed()) / 1e6:.1f}", "languages": ["de", "en"]}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    still = DRAWN[name](recorded)
    return (
        '<figure class="book-translator what-if" data-module="whatif">'
        f'<div class="what-if-still">{still}</div>'
        f'<script type="application/json">{text}</script></figure>'
    )


# The same elements as book/assets/whatif.js makes


def tag(name: str, content: str, **attributes: object) -> str:
    """Return an element; `class` is spelled `kind`, and a dash in a name `_`."""
    attributes["class"] = attributes.pop("kind", None)
    written = "".join(
        f' {key.replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>"


def sentences(*entries: tuple[str, str]) -> str:
    """Return named translations, one below the other."""
    rows = (tag("dt", html.escape(k)) + tag("dd", html.escape(v), lang="en") for k, v in entries)
    return tag("dl", "".join(rows), kind="what-if-lines")


def scrolling(label: str, content: str) -> str:
    """Return a part that scrolls if it is too wide."""
    return tag("div", content, kind="what-if-scroll", role="region", aria_label=label, tabindex=0)


def table(kind: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table from its heads and its rows, which are cells already."""
    top = "".join(heads)
    body = "".join(tag("tr", row) for row in rows)
    return tag("table", tag("thead", tag("tr", top)) + tag("tbody", body), kind=kind)


def column(name: str) -> str:
    """Return the head of a column."""
    return tag("th", html.escape(name), scope="col")


def heatmap(label: str, rows: list[str], columns: list[str], weights: list[list[float]]) -> str:
    """Return a table of weights, in percent where there is room."""
    printed = max(len(rows), len(columns)) <= PRINTED

    def cell(weight: float) -> str:
        number = f"{100 * weight:.0f}"  # a zero is not printed
        inside = number.removeprefix("0") if printed else tag("span", number, kind="heard")
        return tag("td", inside, style=f"--w:{weight:.3f}")

    heads = [tag("td", ""), *(tag("th", tag("span", html.escape(c)), scope="col") for c in columns)]
    body = (
        tag("th", html.escape(name), scope="row") + "".join(map(cell, row))
        for name, row in zip(rows, weights)
    )
    return scrolling(label, table("what-if-map", heads, body))


def bar(share: float) -> str:
    """Return a bar from 0 to 1."""
    return tag("i", "", style=f"--share:{max(0, share):.3f}")


def signed(value: float) -> str:
    """Return a number with two decimals and a proper minus."""
    return f"{value:.2f}".replace("-", "−")


def maps(found: dict[str, Any]) -> str:
    """Chapter 21: one head's weights, and what is written without it."""
    kind, layer, head = (found["start"][key] for key in ("kind", "layer", "head"))
    written = found["written"]
    rows = [f"{read} → {token}" for read, token in zip(["<s>", *written], written)]
    title = f"{kind}, layer {layer + 1}, head {head + 1}"
    without = f"Without {kind} {layer + 1}.{head + 1}"
    return (
        sentences(("Whole model", found["usual"]), (without, found["changed"]))
        + tag("p", title, kind="what-if-title")
        + heatmap(f"Weights: {title}", rows, found["read"], found["weights"])
    )


def positions(found: dict[str, Any]) -> str:
    """Chapter 8: two orders of the same words, each with positions and without."""

    def panel(order: str, title: str, one: dict[str, Any]) -> str:
        label = f"Cross-attention. {title}: {order} → {one['text']}"
        drawn = heatmap(label, one["written"], one["read"], one["weights"])
        return tag("div", sentences((title, one["text"])) + drawn)

    return "".join(
        tag("p", html.escape(order["text"]), kind="what-if-source", lang="de")
        + tag(
            "div",
            panel(order["text"], "With positions", order["pair"][0])
            + panel(order["text"], "Without positions", order["pair"][1]),
            kind="what-if-pair",
        )
        for order in found["orders"]
    )


def masks(found: dict[str, Any]) -> str:
    """Chapter 4: the share of each word with the causal mask and without."""
    heads = map(column, ("next word", *KINDS))
    rows = (
        tag("th", html.escape(row["word"]), scope="row", lang="en")
        + "".join(tag("td", bar(share) + tag("span", percent(share))) for share in row["shares"])
        for row in found["rows"]
    )
    lines = sentences(("Causal mask", found["usual"]), ("No mask", found["freely"]))
    return lines + table("what-if-shares", heads, rows)


def neighbors(found: dict[str, Any]) -> str:
    """Chapter 7: the tokens whose rows point the same way."""

    def entry(name: str, cosine: float, kind: str | None = None) -> str:
        parts = tag("span", html.escape(name)) + bar(cosine) + tag("span", signed(cosine))
        return tag("li", parts, kind=kind)

    title = tag(
        "p", f"Nearest to {html.escape(found['pieces'][0])}, by cosine", kind="what-if-title"
    )
    rows = [entry(name, cosine) for name, cosine in found["nearest"]]
    rows.append(entry("half of all", found["median"], "median"))
    return title + tag("ol", "".join(rows), kind="what-if-nearest")


def search(found: dict[str, Any]) -> str:
    """Chapter 19: the tree of a beam search, and what has ended."""
    steps = found["rounds"]
    endings = sorted(
        (row for step in steps for row in step if row["ended"]), key=lambda row: -row["score"]
    )
    path: list[int] = []
    place = steps[endings[0]["length"] - 1].index(endings[0])
    for step in reversed(steps[: endings[0]["length"]]):
        path.insert(0, place)
        place = step[place]["from"]
    wide = max(map(len, steps))
    rows = "".join(
        level(step, wide, path[n] if n < len(path) else None) for n, step in enumerate(steps)
    )
    tree = tag("ol", rows, kind="what-if-tree", style=f"--columns:{wide}")
    heads = map(column, ("ended", "log P", "length", "score"))
    ended = (
        tag("th", html.escape(row["text"]), scope="row", lang="en")
        + tag("td", signed(row["total"]))
        + tag("td", str(row["length"]))
        + tag("td", signed(row["score"]))
        for row in endings
    )
    label = "Tree of hypotheses, one step a row"
    return scrolling(label, tree) + table("what-if-finished", heads, ended)


def level(step: list[dict[str, Any]], wide: int, winner: int | None) -> str:
    """Return one step of the tree: who continues whom, kept or dropped."""
    branches = boxes = ""
    for place, row in enumerate(step):
        fate = "dropped" if not row["kept"] else "ended" if row["ended"] else "kept"
        kind = f"{fate} wins" if place == winner else fate
        branches += tag("path", "", kind=kind, d=f"M{row['from'] + 0.5},0L{place + 0.5},1")
        told = tag("b", html.escape(row["word"])) + tag("span", signed(row["total"]))
        boxes += tag("li", told + tag("span", fate, kind="heard"), kind=kind)
    picture = tag(
        "svg",
        branches,
        kind="what-if-branches",
        viewBox=f"0 0 {wide} 1",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    return tag("li", picture + tag("ol", boxes))


DRAWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "maps": maps,
    "positions": positions,
    "masks": masks,
    "neighbors": neighbors,
    "search": search,
}
