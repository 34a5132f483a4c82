"""Write the sentence pairs of the everyday models as one table: Tatoeba's and Multi30k's captions.

One pair in eight comes a second time, its source as people type in a hurry: "ich liebe dich". The
command that trains keeps the two together when it puts pairs aside.

usage: python -m tools.everyday deu-eng.zip de-en|en-de everyday.tsv
"""

import sys
import zipfile
from pathlib import Path

from annotated_transformer.data import Pair, multi30k
from annotated_transformer.own_data import hash_share

TYPED = 1 / 8  # share of the pairs that come typed in a hurry, too


def tatoeba(archive: Path) -> list[Pair]:
    """Return the German-English pairs of a zip file of manythings.org/anki."""
    with zipfile.ZipFile(archive) as opened:
        rows = [line.split("\t") for line in opened.read("deu.txt").decode().splitlines()]
    return [Pair(german, english) for english, german, *_ in rows]


def typed(text: str) -> str:
    """Return a sentence without capitals and without its last mark."""
    return text.lower().rstrip(".!? ")


def pairs_of(archive: Path, direction: str) -> list[Pair]:
    """Return all pairs of the table."""
    pairs = tatoeba(archive) + multi30k("train")
    if direction == "en-de":
        pairs = [Pair(target, source) for source, target, _ in pairs]
    hurried = [pair for pair in pairs if hash_share("\t".join(pair[:2]), seed=0) < TYPED]
    return pairs + [Pair(typed(source), target) for source, target, _ in hurried]


if __name__ == "__main__":
    archive, direction, output = sys.argv[1:]
    lines = (f"{source}\t{target}\n" for source, target, _ in pairs_of(Path(archive), direction))
    Path(output).write_text("".join(lines), encoding="utf-8")
