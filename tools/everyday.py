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


def main(archive: str, direction: str, output: str) -> None:
    """Write the table."""
    pairs = tatoeba(Path(archive)) + multi30k("train")
    if direction == "en-de":
        pairs = [Pair(target, source) for source, target, _ in pairs]
    pairs += [Pair(typed(s), t) for s, t, _ in pairs if hash_share(f"{s}\t{t}", seed=0) < TYPED]
    Path(output).write_text("".join(f"{s}\t{t}\n" for s, t, _ in pairs), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
