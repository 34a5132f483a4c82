# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown]
# # Your own pairs
#
# This appendix reads, cleans and splits sentence pairs of your own.
#
# Any two languages will do. (In scripts with combining marks, such as those of Hindi, Bengali, Tamil and Thai, the tokenizer cuts a word at every mark, so sentences have several times as many tokens.) The classic accident is a lost line: two files are exported from somewhere, one is a line short, and from there on each source is paired with the translation of its neighbor. Training runs, the loss falls a little, the model talks nonsense. Reading is therefore strict: whatever is in doubt is an error that names the file, the line and what to do. Three calls lead from two files to what a training run needs:
#
# ```python
# pairs = read_pairs("train.de", "train.en")
# kept, dropped = filter_pairs(pairs)
# train, validation, test = split_pairs(kept)
# ```

# %% tags=["export"]
import gzip
import hashlib
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer.data import Pair, words

# %%
import csv
from random import Random
from tempfile import TemporaryDirectory

import altair as alt

from annotated_transformer.toolkit.downloads import MissingData, multi30k
from annotated_transformer.toolkit.synchronous_grammar import grammar
from book.figures import INK, RESIDUAL, show

# %% [markdown]
# ## Reading
#
# The pairs may be in two text files, where line $i$ of one translates line $i$ of the other, or in one file with columns separated by tabs, a **TSV**. Either may be packed as `.gz`. Text is UTF-8.
#
# A line ends at `\n` and nowhere else, as for `wc -l`. Python's `splitlines` also cuts at eight rarer characters, and a single one pulls the two sides apart:

# %%
print(len("Er liest.\x85Sie schreibt.\u2028Ende".splitlines()), "lines by splitlines")

# %% [markdown]
# A byte order mark and carriage returns at line ends are removed, and an empty line keeps its place. No line may have a million bytes or more, so a packed file can't fill the memory.

# %% tags=["export"]
LONGEST = 1_000_000  # bytes of a line


def utf8_lines(file: Any, name: object) -> Iterator[str]:
    """The lines of a binary file of UTF-8 text, without line ends and a byte order mark.

    Raises ValueError with the name, the line and a remedy.
    """
    number = 1
    try:
        while line := file.readline(LONGEST):
            if len(line) == LONGEST:
                raise ValueError(f"it has {LONGEST:,} bytes or more")
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            number += 1
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        remedy = (
            "unpack it, save it as UTF-8 text with one sentence a line, or get it again"
        )
        raise ValueError(f"{name}, line {number}: {error}; {remedy}") from error


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a file, plain or .gz; raises FileNotFoundError, or ValueError as above."""
    is_packed = path.suffix.lower() == ".gz"
    with gzip.open(path) if is_packed else path.open("rb") as file:
        yield from utf8_lines(file, path)
        if path.is_file() and not file.tell():
            raise ValueError(f"{path} is empty: there must be one sentence a line")


def aligned_lines(*paths: str | Path) -> Iterator[tuple[str, ...]]:
    """Lines of several texts side by side; raises ValueError if one has fewer than the others."""
    texts = [text_lines(Path(path)) for path in paths]
    for number, lines in enumerate(zip_longest(*texts), start=1):
        if None in lines:
            shortest = paths[lines.index(None)]
            raise ValueError(
                f"only {shortest} ends before line {number:,}: "
                "look for a missing or a broken line"
            )
        yield lines


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    columns: tuple[int, int] = (0, 1),
) -> list[Pair]:
    """Pairs from two text files with one sentence a line, or from one TSV; plain or .gz.

    `columns` are those of source and target, counted from 0; a second file is column 1.
    Raises FileNotFoundError, or ValueError naming file, line and remedy.
    """
    paths = [source] if target is None else [source, target]
    pairs: list[Pair] = []
    for number, lines in enumerate(aligned_lines(*paths), start=1):
        if target is not None:
            cells = list(lines)
        elif lines[0].strip():
            cells = lines[0].split("\t")
        else:  # an empty line keeps its place
            cells = [""] * (max(columns) + 1)
        for column in columns:
            if not 0 <= column < len(cells):
                raise ValueError(
                    f"{source}, line {number}: there is no column {column} (counted from 0, "
                    f"parted by tabs) in {lines[0][:60]!r}; mend the line"
                )
        pairs.append(Pair(cells[columns[0]], cells[columns[1]]))
    return pairs


# %% [markdown]
# ### Without the csv module
#
# A CSV reader takes a quotation mark at the start of a cell for the beginning of a quoted cell, which may run over many lines. One sentence that opens a quotation without closing it swallows those after it:

# %%
table = '"Komm!\tCome!\nJa.\tYes.\nNein.\tNo.\n'
print(
    len(list(csv.reader(table.splitlines(), delimiter="\t"))), "row by csv, 3 by lines"
)

# %% [markdown]
# A table with English first and a third column, read from German to English, and then four accidents: a missing column, another encoding (*ö* in Latin-1), a lost line, a file that was cut short.

# %%
pairs = grammar(2000, seed=5)
lost = 200  # a line that goes missing on one side
targets = [pair.target for pair in pairs[:lost] + pairs[lost + 1 :]]


def attempt(*arguments, **named):
    try:
        print(len(read_pairs(*arguments, **named)), "pairs")
    except ValueError as error:
        print(str(error).replace(f"{folder}/", "").partition(";")[0])


with TemporaryDirectory() as folder:
    table = Path(folder, "pairs.tsv.gz")
    latin = Path(folder, "birds.tsv")
    cut = Path(folder, "cut.tsv.gz")
    lines = [f"{pair.target}\t{pair.source}\tsomeone's name" for pair in pairs]
    table.write_bytes(gzip.compress("\n".join(lines).encode()))
    latin.write_bytes("Katze\tcat\nVögel\tbirds\n".encode("latin-1"))
    cut.write_bytes(table.read_bytes()[:30])
    german, english = Path(folder, "train.de"), Path(folder, "train.en")
    german.write_text("\n".join(pair.source for pair in pairs), encoding="utf-8")
    english.write_text("\n".join(targets), encoding="utf-8")
    attempt(table, columns=(1, 0))
    attempt(table, columns=(1, 3))
    attempt(latin)
    attempt(german, english)
    attempt(cut)

# %% [markdown]
# A packed file marks its end, which gives away one that was cut short; half of a plain text is still a text.
#
# If the counts agree, are the pairs right? Two faults can cancel. Print twenty pairs from all over the file and read them.
#
# ## Cleaning
#
# Pairs collected from the web contain much that isn't translation. Five rules drop it; each pair falls to the first that applies, so the counts add up. (Runs of white space become one space first.)
#
# | rule | the pair is dropped if | what it costs to keep such pairs |
# |---|---|---|
# | **empty** | one side has no word | the model learns to answer with nothing |
# | **too long** | one side has over `max_words` words | one page sets the memory that a batch needs |
# | **lengths apart** | one side is over `ratio` times as long as the other | the model learns to leave out, or to invent |
# | **untranslated** | both sides are equal | the model learns to copy the source |
# | **repeated** | the same pair came before | it counts several times |
#
# How long is a text? Chinese and Thai put no spaces between words, and a whole clause would count as one. Lengths are therefore apart only if they are apart *by every count*: in words, in characters and in bytes. Ten characters count as at least one word, and what stands between two spaces as two at most, for `words` takes each vowel sign of Hindi for a mark of its own.


# %% tags=["export"]
def sizes(text: str) -> tuple[int, int, int]:
    """Words, characters and bytes of a text; where there are no spaces, ten characters a word."""
    # `words` cuts at combining marks, hence the limit
    count = min(len(words(text)), 2 * len(text.split()))
    return max(count, len(text) // 10), len(text), len(text.encode(errors="replace"))


def fault_of(source: str, target: str, max_words: int, ratio: float) -> str | None:
    """The first rule that a pair breaks, if it breaks one."""
    source_sizes = sizes(source)
    target_sizes = sizes(target)
    number_of_words = (source_sizes[0], target_sizes[0])
    if min(number_of_words) == 0:
        return "empty"
    if max(number_of_words) > max_words:
        return "too long"
    if all(max(size) > ratio * min(size) for size in zip(source_sizes, target_sizes)):
        return "lengths apart"
    return "untranslated" if source == target else None


def filter_pairs(
    pairs: Iterable[Pair], max_words: int = 100, ratio: float = 3.0
) -> tuple[list[Pair], dict[str, int]]:
    """The pairs worth learning from, with tidy white space, and how many were dropped and why.

    A side may have `max_words` words, and be `ratio` times as long as the other.
    """
    clean: dict[tuple[str, str], Pair] = {}
    dropped = Counter[str]()
    for pair in pairs:
        source, target = (" ".join(text.split()) for text in pair[:2])
        fault = fault_of(source, target, max_words, ratio)
        if fault is None and (source, target) in clean:
            fault = "repeated"
        if fault is None:
            clean[source, target] = Pair(source, target, pair.alignment)
        else:
            dropped[fault] += 1
    return list(clean.values()), dict(dropped)


# %% [markdown]
# We damage a corpus on purpose and check that each kind of damage is caught.

# %%
damaged = [
    *pairs[:1000],
    Pair("Guten Tag.", "  "),
    Pair("Hallo! " * 10_000, "Hello!"),
    Pair("Ja.", "Yes, I think that I will come to the garden."),
    *[Pair("Alle Rechte vorbehalten.", "Alle Rechte vorbehalten.")] * 2,
    *pairs[:30],
    Pair(
        "我的朋友昨天在花园里看了一本书。",
        "Yesterday my friend read a book in the garden.",
    ),
]
kept, dropped = filter_pairs(damaged)
print(len(kept), "kept of", len(damaged))
print(dropped)

# %% tags=["remove-cell"]
assert len(kept) + sum(dropped.values()) == len(damaged)

# %% [markdown]
# All 35 bad lines are out, and nothing else. Of the 29,000 curated captions of [Multi30k](13_data.ipynb#real-captions) the rules drop a handful. If a rule drops a tenth of your data, doubt the rule.

# %% tags=["nbval-ignore-output"]
try:
    captions = multi30k("train")
except MissingData:
    captions = grammar(29_000, seed=1)
for ratio in (3.0, 2.0, 1.5):
    print(f"ratio {ratio}:", filter_pairs(captions, ratio=ratio)[1])

# %% tags=["remove-cell"]
assert sum(filter_pairs(captions)[1].values()) < 10

# %% [markdown]
# ### Wrong pairs found by their lengths
#
# Lengths give a wrong pair away only where they happen not to fit. How many of the pairs after a lost line does the rule drop?

# %%
tail = [Pair(pair.source, target) for pair, target in zip(pairs, targets)][lost:]
for ratio in (3.0, 2.0, 1.5):
    _, wrong = filter_pairs(tail, ratio=ratio)
    _, right = filter_pairs(pairs[lost:], ratio=ratio)
    caught = wrong.get("lengths apart", 0) / len(tail)
    false_alarm = right.get("lengths apart", 0) / len(tail)
    print(
        f"ratio {ratio}: {caught:4.0%} of the wrong pairs, {false_alarm:3.0%} of the right ones"
    )


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-length-rule", "caption": "Can lengths tell a wrong pair from a right one? Each dot is a pair of lengths, larger where more pairs have it. Right pairs stay near the diagonal. After a lost line the lengths have nothing to do with each other, yet most dots are still between the dashed lines of the ratio 3. Drawn from 1,800 pairs of the grammar, on the right one fewer; beyond 26 words they are cut off."}}
def spots(pairs):
    lengths = [(len(words(pair.source)), len(words(pair.target))) for pair in pairs]
    count = Counter(lengths)
    return [{"german": g, "english": e, "pairs": n} for (g, e), n in count.items()]


lines = [("above", 0, 0), ("above", 26 / 3, 26), ("below", 0, 0), ("below", 26, 26 / 3)]
limits = [{"side": side, "german": g, "english": e} for side, g, e in lines]
x = alt.X("german:Q", title="German words", scale=alt.Scale(domain=[0, 26]))
y = alt.Y("english:Q", title="English words", scale=alt.Scale(domain=[0, 26]))
size = alt.Size("pairs:Q", scale=alt.Scale(range=[6, 140]), legend=None)
panels = []
for name, drawn in {"right pairs": pairs[lost:], "shifted by one line": tail}.items():
    dots = alt.Chart(alt.Data(values=spots(drawn))).mark_circle(
        color=INK, opacity=0.6, clip=True
    )
    edges = alt.Chart(alt.Data(values=limits)).mark_line(
        color=RESIDUAL, strokeDash=[5, 3]
    )
    panel = alt.layer(dots.encode(x, y, size), edges.encode(x, y, detail="side:N"))
    panels.append(panel.properties(title=name, width=215, height=215))
show(
    alt.hconcat(*panels),
    alt="Right pairs lie close to the diagonal. Shifted pairs spread over the square, and most of them still lie between the two lines of the rule.",
)

# %% [markdown]
# Even at a ratio of 1.5 the rule misses about half of the wrong pairs. It spares the right ones because the grammar is so regular; of the captions it would lose more than a hundred.
#
# ## Splitting
#
# Some pairs must be put aside to measure the model on sentences it hasn't seen. The obvious way is to shuffle the lines and cut. See what that does where sentences have several translations, as in most collections by volunteers:

# %%
twice = [*pairs, *(pair._replace(target="And so: " + pair.target) for pair in pairs)]
Random(0).shuffle(twice)
train, test = twice[:3600], twice[3600:]
seen = {pair.source for pair in train}
print(
    f"{sum(pair.source in seen for pair in test) / len(test):.0%} of the test was trained on"
)

# %% [markdown]
# A model that memorizes looks brilliant there. Pairs that share a sentence in either language must go the same way, and so must pairs tied by others: *Lauf! / Run!*, *Lauf! / Go!* and *Geh! / Go!* are one group. Only letters and digits count, in any case: *Lauf!* and *lauf* are one sentence.
#
# A shuffled list has a second flaw. With one more line the shuffle comes out differently, and what was test is training now. Here the SHA-256 of each group's alphabetically first sentence, together with a seed, places the group between 0 and 1; from 0 up come test, validation and training. Other pairs change nothing, unless they share a sentence with the group.


# %% tags=["export"]
class Splits(NamedTuple):
    """Pairs to learn from, to choose by, and to measure on once, at the end."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def hash_share(text: str, seed: int) -> float:
    """Where a text stands between 0 and 1."""
    sha256 = hashlib.sha256(f"{seed} {text}".encode(errors="surrogatepass"))
    return int(sha256.hexdigest()[:16], 16) / 2**64


def letters(text: str) -> str:
    """The letters and digits of a text, without regard to case; the text, if it has none."""
    folded = unicodedata.normalize("NFC", text.casefold())
    return "".join(filter(str.isalnum, folded)) or folded.strip()


class SentenceGroups:
    """Groups of sentences that must not be separated, each under its first by the alphabet.

    Every sentence points to another of its group that comes before it, and the first to itself.
    """

    def __init__(self) -> None:
        self.earlier: dict[str, str] = {}

    def first(self, sentence: str) -> str:
        """The first sentence of the group; a new sentence is a group of its own."""
        earlier = self.earlier
        earlier.setdefault(sentence, sentence)
        while earlier[sentence] != sentence:
            earlier[sentence] = earlier[earlier[sentence]]  # shorter for the next time
            sentence = earlier[sentence]
        return sentence

    def join(self, sentence: str, translation: str) -> None:
        """Make one group of those of two sentences."""
        first, second = sorted([self.first(sentence), self.first(translation)])
        self.earlier[second] = first


def split_pairs(
    pairs: Iterable[Pair], validation: float = 0.05, test: float = 0.05, seed: int = 0
) -> Splits:
    """Put a share of the pairs aside; no sentence of either language is in two splits.

    The seed and the sentences decide, not their order; only letters and digits count, in any case.
    Raises ValueError if a share is negative or nothing is left to learn from.
    """
    pairs = list(pairs)
    groups = SentenceGroups()
    sources: list[str] = []
    for pair in pairs:
        sources.append(f"0 {letters(pair[0])}")  # the languages are told apart
        groups.join(sources[-1], f"1 {letters(pair[1])}")
    splits = Splits([], [], [])
    for pair, source in zip(pairs, sources):
        share = hash_share(groups.first(source), seed)
        if share < test:
            splits.test.append(pair)
        elif share < test + validation:
            splits.validation.append(pair)
        else:
            splits.train.append(pair)
    shares_are_valid = validation >= 0 and test >= 0  # NaN is not
    if not shares_are_valid or not splits.train:
        raise ValueError(
            f"validation={validation} and test={test} leave nothing to learn from of "
            f"{len(pairs)} pairs: take shares such as 0.05, or more pairs"
        )
    return splits


# %%
splits = split_pairs(twice, validation=0.1, test=0.1, seed=0)
print([len(split) for split in splits])

# %% tags=["remove-cell"]
from itertools import combinations

for first_split, second_split in combinations(splits, 2):
    for side in ("source", "target"):
        sentences = {getattr(pair, side) for pair in first_split}
        assert sentences.isdisjoint(getattr(pair, side) for pair in second_split)

# %% [markdown]
# The shares come out roughly (400 were asked for). What that buys: with a thousand new pairs in front and the rest reversed, no sentence moves.

# %%
grown = split_pairs([*grammar(1000, seed=6), *reversed(twice)], 0.1, 0.1, seed=0)
print([len(split) for split in grown])

# %% tags=["remove-cell"]
assert all(set(old) <= set(new) for old, new in zip(splits, grown))

# %% [markdown]
# Look at the sizes of the three parts: in some collections short sentences tie much of the whole together. How large should a test be? A thousand or two is usual; with 5,000 pairs take 0.1, and expect a noisy score.
#
# ## A corpus to try this on
#
# [Train on your own language pair](../book/own_pair.md#what-you-need) says where to get Tatoeba's sentences. These numbers were measured once, on its German-English file of May 2018, and are not run with the book:
#
# | command | result |
# |---|---|
# | `pairs = read_pairs("deu.txt", columns=(1, 0))` | 169,813 pairs |
# | `filter_pairs(pairs)` | drops none; with `ratio=1.5`, 1,931 |
# | `split_pairs(kept, 0.01, 0.01)` | 166,312, 1,773 and 1,728 pairs |
#
# One pair in nine shares its German sentence with another, and one in three its English one. A shuffle and a cut at nine tenths put 10% of the German test sentences and 32% of the English ones into training as well.
