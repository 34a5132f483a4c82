"""The drawing that runs through the book: a sentence on its way up through the model.

Each chapter that builds a part opens with it, and lights that part. The map on the first page is
the same drawing with the chapters' numbers: `python -m book.machine` writes it.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from book.figures import (
    AMBER,
    INK,
    PAPER,
    PLUM,
    POSITION,
    page_colors,
    show_drawing,
    words_at,
)

MAP = Path(__file__).with_name("map.svg")
WIDTH, HEIGHT = 640, 388

# Where each word's stream rises, and at which heights things happen to it, from the words up
SOURCE = {"die": 26, "schwarze": 92, "Katze": 164, "mag": 219, "Fisch": 274}
TARGET = {"<s>": 374, "the": 426, "black": 484, "cat": 544, "likes": 602}
NEXT = ("the", "black", "cat", "likes", "fish")
INPUT, TABLE, WAVE, READ, ADDED = 376, 331, 312, 286, 242
ENCODER_NETWORK, ENCODER_ADDED = 218, 194
MEMORY = (130, 140, 150, 160, 170)  # where the encoder's streams pass the decoder's
CROSS_ADDED, DECODER_NETWORK, DECODER_ADDED, OUTPUT_TABLE, OUTPUT = 113, 89, 65, 35, 22

SAYS = {  # what is lit: what it is to the words
    "attention": ("Attention: the only place", "where words meet"),
    "masks": ("Masks: who may look at whom,", "and who may not (dotted)"),
    "multi_head_attention": ("Heads: several ways", "of looking, side by side"),
    "feed_forward": ("Feed-forward: a network", "that sees one word at a time"),
    "embeddings": ("Embeddings: words become", "vectors, and vectors words"),
    "positional_encoding": ("Positions: a wave tells", "each word where it stands"),
    "layers": ("Layers: read, add, normalize,", "and all that N times"),
    "transformer": ("The Transformer:", "all of it at work"),
    "training": ("Training: how wrong it was,", "sent back to every part"),
    "decoding": ("Decoding: one word more,", "from all that stands so far"),
}
CHAPTERS = {  # a part's chapter: its name on the map, and where its number stands beside the part
    "03_attention": ("attention", 322, READ - 3),
    "04_masks": ("masks", 322, READ - 24),
    "05_multi_head_attention": ("several heads", 322, READ - 45),
    "06_feed_forward": ("feed-forward", 327, DECODER_NETWORK),
    "07_embeddings": ("embeddings", 322, TABLE + 6),
    "08_positional_encoding": ("positions", 322, WAVE),
    "09_layers": ("layers", 327, DECODER_ADDED - 2),
    "10_transformer": ("the Transformer", 327, OUTPUT_TABLE),
}


def show_machine(lit: str) -> None:
    """Display the model, read upwards, with one of its parts lit, or all of it at some work."""
    first, second = SAYS[lit]
    says = words_at(6, 40, first, 18, anchor="start")
    says += words_at(6, 64, second, 18, anchor="start")
    label = f"A sentence rises through encoder and decoder. {first} {second}."
    show_drawing([*machine(lit), says], WIDTH, HEIGHT, label)


def machine(lit: str) -> Iterator[str]:
    """Yield what is drawn, from the back to the front."""
    everything = lit == "transformer"
    yield from streams(everything or lit == "layers")
    if lit == "training":
        yield from corrections()
    if lit == "decoding":
        yield line(f"M602,{TABLE}V{OUTPUT_TABLE}", PLUM, 3.5, 1)
    yield from attention(lit)
    yield from networks(everything or lit == "feed_forward")
    yield from additions(everything or lit == "layers")
    yield from positions(everything or lit == "positional_encoding")
    yield from tables(everything or lit == "embeddings")
    yield from words(lit)


def streams(lit: bool) -> Iterator[str]:
    """Yield the two layers, and the residual streams of all words through them."""
    yield layer(3, ENCODER_ADDED, 298, lit)
    yield layer(343, DECODER_ADDED, 294, lit)
    for x, y in zip(SOURCE.values(), MEMORY, strict=True):
        yield line(f"M{x},{TABLE}V{y + 12}Q{x},{y} {x + 12},{y}H618", INK, 3.5, 0.2)
    for x in TARGET.values():
        yield line(f"M{x},{TABLE}V{OUTPUT_TABLE}", INK, 3.5, 0.2)


def layer(x: float, top: float, width: float, lit: bool) -> str:
    """Return the ground of a layer, with an edge if it is lit."""
    size = f'x="{x}" y="{top - 14}" width="{width}" height="{READ - top + 20}" rx="12"'
    edge = f'stroke="{PLUM}" stroke-width="1.8"' if lit else ""
    return f'<rect {size} fill="{INK}" fill-opacity="0.04" {edge}/>'


def attention(lit: str) -> Iterator[str]:
    """Yield who reads whom: curves within a sentence, dots where the decoder reads the encoder."""
    for sentence in (SOURCE, TARGET):
        for to, reader in enumerate(sentence.values()):
            for of, x in enumerate(sentence.values()):
                allowed = sentence is SOURCE or of <= to
                curve = (
                    f"M{x},{READ}C{x},{READ - 22} {reader},{READ - 22} {reader},{ADDED}"
                )
                if allowed:
                    yield line(curve, *look_of(lit, sentence, of, to))
                elif lit == "masks":
                    yield line(curve, INK, 1.1, 0.6, dash="1 4")
    for to, x in enumerate(TARGET.values()):
        color, width, opacity = look_of(lit, TARGET, 4, to)
        if opacity == 1:
            yield line(f"M{x},{MEMORY[-1]}V{CROSS_ADDED}", color, width, 1)
        for of, y in enumerate(MEMORY):
            color, width, opacity = look_of(lit, TARGET, of, to)
            radius = 2 + opacity
            dot = f'cx="{x}" cy="{y}" r="{radius:g}" fill="{color}"'
            yield f'<circle {dot} fill-opacity="{max(opacity, 0.35)}"/>'


def look_of(lit: str, sentence: object, of: int, to: int) -> tuple[str, float, float]:
    """Return color, width and opacity of the line along which word `to` reads word `of`."""
    if lit in ("multi_head_attention", "transformer"):
        near = (
            abs(of - to) <= 1
        )  # as if one head looked at neighbors, the other beyond them
        return AMBER if near else PLUM, 1.5, 1
    if lit == "masks":
        return PLUM, 1.3, 1
    reader = 3 if sentence is SOURCE else 4
    shown = lit == "attention" or (lit == "decoding" and sentence is TARGET)
    return (PLUM, 2.2, 1) if shown and to == reader else (INK, 1, 0.15)


def corrections() -> Iterator[str]:
    """Yield the way of the gradients: down each stream, against the words."""
    down = f"V{TABLE - 8}"
    for x in TARGET.values():
        yield line(f"M{x},{OUTPUT_TABLE + 14}{down}", AMBER, 3, 1)
    for x, y in zip(SOURCE.values(), MEMORY, strict=True):
        yield line(f"M602,{y}H{x + 12}Q{x},{y} {x},{y + 12}{down}", AMBER, 3, 1)
    for x in (*SOURCE.values(), *TARGET.values()):
        yield f'<path d="M{x},{TABLE - 1}l-6,-10h12z" fill="{AMBER}"/>'


def networks(lit: bool) -> Iterator[str]:
    """Yield a small network on each stream: it widens, and narrows again."""
    heights = [(SOURCE, ENCODER_NETWORK), (TARGET, DECODER_NETWORK)]
    for x, y in [(x, y) for sentence, y in heights for x in sentence.values()]:
        shape = f"M{x - 5},{y + 12}l-10,-12l10,-12h10l10,12l-10,12z"
        look = (
            f'fill="{PLUM}"'
            if lit
            else f'fill="{PAPER}" stroke="{INK}" stroke-opacity="0.35"'
        )
        yield f'<path d="{shape}" {look}/>'


def additions(lit: bool) -> Iterator[str]:
    """Yield a plus wherever a sublayer adds to a stream."""
    for x in SOURCE.values():
        yield addition(x, ADDED, PLUM, lit) + addition(x, ENCODER_ADDED, PLUM, lit)
    for x in TARGET.values():
        for y in (ADDED, CROSS_ADDED, DECODER_ADDED):
            yield addition(x, y, PLUM, lit)


def addition(x: float, y: float, color: str, lit: bool) -> str:
    """Return a plus in a small circle."""
    look = (
        f'stroke="{color}" stroke-width="1.8"'
        if lit
        else f'stroke="{INK}" stroke-opacity="0.4"'
    )
    cross = f'<path d="M{x - 3},{y}h6M{x},{y - 3}v6" {look}/>'
    return f'<circle cx="{x}" cy="{y}" r="6" fill="{PAPER}" {look}/>{cross}'


def positions(lit: bool) -> Iterator[str]:
    """Yield the wave that is added to all words of a sentence."""
    for sentence in (SOURCE, TARGET):
        first, *_, last = sentence.values()
        xs = range(first - 22, last + 26, 3)
        points = [f"{x},{WAVE - 7 * math.sin((x - first) / 20):.1f}" for x in xs]
        yield line(
            "M" + "L".join(points), POSITION, 3 if lit else 1.2, 1 if lit else 0.5
        )
        for x in sentence.values():
            yield addition(x, WAVE, POSITION, lit)


def tables(lit: bool) -> Iterator[str]:
    """Yield the one table of vectors, below both sentences and again below the output."""
    for start, count, y in ((3, 62, TABLE), (343, 28, OUTPUT_TABLE)):
        for cell in range(count):
            shade = 0.05 + (0.85 if lit else 0.12) * (7 * cell * cell % 23) / 23
            size = f'x="{start + 10.23 * cell:.1f}" y="{y}" width="10.3" height="13"'
            yield f'<rect {size} fill="{PLUM if lit else INK}" fill-opacity="{shade:.2f}"/>'


def words(lit: str) -> Iterator[str]:
    """Yield the words below, and those that come out."""
    framed = lit in ("embeddings", "transformer")
    for word, x in (*SOURCE.items(), *TARGET.items()):
        yield chip(word, x, INPUT, PLUM if framed else INK)
    for word, x in zip(NEXT, TARGET.values(), strict=True):
        new = lit == "decoding" and word == NEXT[-1]
        color = AMBER if lit == "training" else PLUM if framed or new else INK
        yield chip(word, x, OUTPUT, color)


def chip(word: str, x: float, y: float, color: str) -> str:
    """Return a word in its frame; y is its base line."""
    width = 8.4 * len(word) + 14
    size = f'x="{x - width / 2:g}" y="{y - 17}" width="{width:g}" height="24" rx="6"'
    look = f'stroke="{color}" stroke-opacity="{0.4 if color == INK else 1}"'
    return f'<rect {size} fill="{PAPER}" {look}/>{words_at(x, y, word, 16)}'


def line(path: str, color: str, width: float, opacity: float, dash: str = "") -> str:
    """Return a line along a path."""
    look = f'stroke="{color}" stroke-width="{width}" stroke-opacity="{opacity}"'
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" {look} stroke-linecap="round"{dashes}/>'


def write_map() -> str:
    """Return the drawing with all parts lit, with a number at each that opens its chapter."""
    label = "The model, from bottom to top, with the words of a sentence. Numbers open chapters."
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    inside = [*machine("transformer"), *map(number, range(8), CHAPTERS)]
    return f'{head} role="group" aria-label="{label}">{page_colors("".join(inside))}</svg>\n'


def number(place: int, chapter: str) -> str:
    """Return a chapter's number at its part, and with a name in the list beside it."""
    name, x, y = CHAPTERS[chapter]
    digits = chapter[:2].lstrip("0")
    left, base = 17 + 146 * (place // 4), 22 + 27 * (place % 4)
    listed = disk(left, base, digits) + words_at(
        left + 18, base + 6, name, 17, anchor="start"
    )
    link = f'<a href="../notebooks/{chapter}.html"'
    return f'{link}>{listed}</a>{link} aria-hidden="true" tabindex="-1">{disk(x, y, digits)}</a>'


def disk(x: float, y: float, digits: str) -> str:
    """Return a number in a filled circle."""
    circle = f'<circle cx="{x}" cy="{y}" r="11" fill="{INK}"/>'
    return circle + words_at(x, y + 5, digits, 14, PAPER)


if __name__ == "__main__":
    MAP.write_text(write_map(), encoding="utf-8")
