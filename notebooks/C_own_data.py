# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Your own pairs
#
# This appendix reads, cleans and splits sentence pairs: your own, or the captions of Multi30k.
#
# The classic accident is a lost line. Two files are exported from somewhere, one is a line short, and from there on each source is paired with the translation of its neighbor. Training runs, the loss falls a little, and the model talks nonsense. Reading is therefore strict: what is in doubt is an error that names the file and the line. Three calls lead from two files to what a training run needs:
#
# ```python
# from annotated_transformer.own_data import filter_pairs, read_pairs, split_pairs
#
# pairs = read_pairs("train.de", "train.en")
# kept, dropped = filter_pairs(pairs)
# train, validation, test = split_pairs(kept)
# ```

# %% tags=["export"]
import csv
import gzip
import hashlib
import os
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from annotated_transformer.data import Pair, as_pair, words

# Where notebooks lack a package for its progress bar, pooch warns as it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pooch

# %%
from itertools import pairwise
from tempfile import TemporaryDirectory

from annotated_transformer.synchronous_grammar import grammar

# %% [markdown]
# ## Reading
#
# The pairs are in two text files, where line $i$ of one translates line $i$ of the other, or in two columns of one table. Any of them may be packed as `.gz`. But where does a line end? Python's `splitlines` cuts at eight rare characters, too, and a single one of them pulls two files apart:

# %%
print(len("Er liest.\x85Sie schreibt.\u2028Ende".splitlines()), "lines by splitlines")

# %% [markdown]
# So a line ends at `\n` and nowhere else, and an empty line keeps its place. Text is UTF-8. Another encoding betrays itself by bytes that UTF-8 forbids, or, like English in UTF-16, by a NUL beside each letter.


# %% tags=["export"]
def utf8_lines(file: Iterable[bytes], name: object) -> Iterator[str]:
    """The lines of a binary file of UTF-8 text, without line ends and a byte order mark.

    Raises ValueError with the name and the line if the bytes are no UTF-8.
    """
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number:,}: {error}; save it as UTF-8 text"
            ) from error
        yield text.rstrip("\r\n")


def text_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file, plain or .gz; raises ValueError as above."""
    path = Path(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(utf8_lines(file, path), start=1):
            if "\0" in line:
                raise ValueError(
                    f"{path}, line {number:,}: a NUL, as in UTF-16; save it as UTF-8 text"
                )
            yield line


# %% [markdown]
# In a table, tabs separate the columns, and a quotation mark is a character like any other. A CSV reader takes one at the start of a cell for the beginning of a quotation, which may run over many lines. If a sentence doesn't close it, it swallows those below:

# %%
table = '"Komm!\tCome!\nJa.\tYes.\nNein.\tNo.\n'
rows = list(csv.reader(table.splitlines(), delimiter="\t"))
print(len(rows), "row by csv, 3 by lines")

# %% [markdown]
# Only a file named `.csv` is read in this way, as spreadsheets write it. Its cells are separated by a tab, a semicolon or a comma: whichever cuts the most of its first hundred lines into equally many.


# %% tags=["export"]
def csv_delimiter(lines: list[str]) -> str:
    """What separates the cells of a CSV, judged by its first lines."""

    def rows_alike(delimiter: str) -> int:
        rows = csv.reader(lines, delimiter=delimiter)
        widths = Counter(len(row) for row in rows if len(row) > 1)
        return max(widths.values(), default=0)

    return max("\t;,", key=rows_alike)


def table_rows(path: str | Path) -> Iterator[list[str]]:
    """The cells of each row of a table."""
    lines = text_lines(path)
    if not Path(path).name.lower().endswith((".csv", ".csv.gz")):
        return (line.split("\t") for line in lines)
    first = list(islice(lines, 100))
    with_ends = (f"{line}\n" for line in chain(first, lines))
    return csv.reader(with_ends, delimiter=csv_delimiter(first), strict=True)


# %% [markdown]
# A row that lacks one of the two columns is an error. So is a row with more cells than the first one: a separator amid a sentence looks like that. Two texts must be equally long, and a tab in their first line shows that they are tables. `each_pair` gives one pair after the other, for corpora that don't fit into memory.
#
# What was read is tidied: every run of white space becomes one space, and a letter spelled in two parts, a *u* and its dots, becomes the one letter *ü* that most texts have (Unicode calls this form NFC). The same is done to a text that is to be translated; otherwise a model would meet there what it never saw in training.


# %% tags=["export"]
def pairs_of_table(path: str | Path, columns: tuple[int, int]) -> Iterator[Pair]:
    """The pairs in two columns of a table; an empty row is a pair of empty texts."""
    width = 0
    for number, cells in enumerate(table_rows(path), start=1):
        if not "".join(cells).strip():
            yield Pair("", "")
            continue
        width = width or len(cells)
        if not max(columns) < len(cells) <= width:
            raise ValueError(
                f"{path}, row {number:,}: {len(cells)} columns; the first row has {width}, "
                f"and columns {columns} are wanted, counted from 0: {str(cells)[:80]}"
            )
        yield Pair(cells[columns[0]], cells[columns[1]])


def each_pair(
    source: str | Path,
    target: str | Path | None = None,
    columns: tuple[int, int] = (0, 1),
) -> Iterator[Pair]:
    """Pairs from two texts with one sentence a line, or from one table; plain or .gz.

    `columns` are those of a table, source and target, counted from 0; of two texts the first is the
    source. Raises ValueError that names file and line.
    """
    if target is None:
        yield from pairs_of_table(source, columns)
        return
    if columns != (0, 1):
        raise ValueError("two texts have no columns: the first is the source")
    lines = zip_longest(text_lines(source), text_lines(target))
    for number, (source_line, target_line) in enumerate(lines, start=1):
        if source_line is None or target_line is None:
            shorter = source if source_line is None else target
            raise ValueError(
                f"only {shorter} ends before line {number:,}: look for a missing line"
            )
        if number == 1 and "\t" in source_line + target_line:
            raise ValueError(
                f"{source} and {target}: line 1 has a tab, as in a table; give one table, "
                "or two texts"
            )
        yield Pair(source_line, target_line)


WHITE_SPACE = re.compile(r"[\s\ufeff]+")


def single_spaced(text: str) -> str:
    """A text with one space where it has white space, none at its ends, and letters in NFC.

    The rule for every text that is learned from or translated.
    """
    composed = unicodedata.normalize("NFC", text)
    return WHITE_SPACE.sub(" ", composed).strip()


def tidied(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """The pairs with one space where they have white space; no text holds a line's end."""
    for pair in pairs:
        yield Pair(single_spaced(pair.source), single_spaced(pair.target))


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    columns: tuple[int, int] = (0, 1),
) -> list[Pair]:
    """The pairs of `each_pair` in a list, tidied; raises ValueError if there are none."""
    pairs = list(tidied(each_pair(source, target, columns)))
    if not pairs:
        raise ValueError(f"{source} is empty")
    return pairs


# %% [markdown]
# We write a table with English first, one in another encoding (*ö* in Latin-1), and two texts of which one has lost a line.

# %%
pairs = grammar(2000, seed=5)
rows = [f"{pair.target}\t{pair.source}\tsomeone's name" for pair in pairs]
sources = [pair.source for pair in pairs]
targets = [pair.target for pair in pairs[:200] + pairs[201:]]
temporary = TemporaryDirectory()
folder = Path(temporary.name)
files = {
    "pairs.tsv": "\n".join(rows).encode(),
    "birds.tsv": "Katze\tcat\nVögel\tbirds\n".encode("latin-1"),
    "train.de": "\n".join(sources).encode(),
    "train.en": "\n".join(targets).encode(),
}
for name, content in files.items():
    (folder / name).write_bytes(content)


# %%
def attempt(*names, **options):
    try:
        print(len(read_pairs(*(folder / name for name in names), **options)), "pairs")
    except ValueError as error:
        print(str(error).replace(f"{folder}/", ""))


attempt("pairs.tsv", columns=(1, 0))
attempt("pairs.tsv", columns=(1, 3))
attempt("birds.tsv")
attempt("train.de", "train.en")

# %% tags=["remove-cell"]
if CHECKING:
    english_first = read_pairs(folder / "pairs.tsv", columns=(1, 0))
    assert english_first == [Pair(*pair[:2]) for pair in pairs]

# %% [markdown]
# If the counts agree, two faults may have canceled. Print twenty pairs from all over the file, and read them.
#
# ## Captions, fetched once
#
# The pairs of [Multi30k](13_data.ipynb#real-captions) come from the network. A download can break off half way, or deliver something else, so we know the **SHA-256** of each file in advance, a number of 256 bits that is computed from all its bytes. The library `pooch` puts the files into one folder per user, which an environment variable can move. A file that is there with the right hash is not fetched again, so you can fill the folder by hand.

# %% tags=["export"]
COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
MULTI30K = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}


class MissingData(RuntimeError):
    """A data set is neither cached nor downloadable; one line names the files and a remedy."""


def cache_folder() -> Path:
    """Where data sets are kept: `$ANNOTATED_TRANSFORMER_CACHE`, else the user's cache folder."""
    chosen = os.getenv("ANNOTATED_TRANSFORMER_CACHE")
    return Path(chosen or pooch.os_cache("annotated-transformer"))


def multi30k(split: str) -> list[Pair]:
    """German captions and their English translations; `split` is train, val or test_2016_flickr.

    Raises MissingData if they are neither in the cache nor downloadable.
    """
    folder = cache_folder() / "multi30k"
    pooch.get_logger().setLevel("WARNING")  # it would report each download
    paths = []
    for name in (f"{split}.de.gz", f"{split}.en.gz"):
        sha256 = MULTI30K_SHA256[name]
        try:
            paths.append(pooch.retrieve(f"{MULTI30K}/{name}", sha256, name, folder))
        except (OSError, ValueError) as error:  # no network or room; another file came
            names = ", ".join(MULTI30K_SHA256)
            remedy = f"put {names} from {MULTI30K} into {folder}"
            raise MissingData(f"Multi30k is incomplete: {remedy} ({error})") from error
    return [
        Pair(pair.source.strip(), pair.target.strip()) for pair in each_pair(*paths)
    ]


# %%
captions = multi30k("val")
print(len(captions), "pairs, such as", captions[0][:2])

# %% [markdown]
# ## Cleaning
#
# Pairs from the web contain much that isn't translation. Five rules drop it, and each pair falls to the first that applies.
#
# | rule | the pair is dropped if | what it costs to keep such pairs |
# |---|---|---|
# | **empty** | one side has no word | the model learns to answer with nothing |
# | **too long** | one side has over `max_words` words | one page sets the memory that a batch needs |
# | **lengths apart** | one side is over `ratio` times as long as the other | the model learns to leave out, or to invent |
# | **untranslated** | both sides are equal | the model learns to copy the source |
# | **repeated** | the same pair came before | it counts several times |
#
# Chinese and Thai put no spaces between words, so a whole clause would count as one. Lengths are therefore apart only if they are so in words, in characters *and* in bytes, and ten characters are at least one word. (What stands between two spaces is two at most, for `words` takes each vowel sign of Hindi for a mark of its own.)


# %% tags=["export"]
def sizes(text: str) -> tuple[int, int, int]:
    """Words, characters and bytes of a text; where there are no spaces, ten characters a word."""
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

    A side may have `max_words` words, and be `ratio` times as long as the other. A pair may be a
    plain tuple.
    """
    clean: dict[tuple[str, str], Pair] = {}
    dropped = Counter[str]()
    for pair in map(as_pair, pairs):
        source = single_spaced(pair.source)
        target = single_spaced(pair.target)
        fault = fault_of(source, target, max_words, ratio)
        if fault is None and (source, target) in clean:
            fault = "repeated"
        if fault is None:
            clean[source, target] = Pair(source, target, pair.alignment)
        else:
            dropped[fault] += 1
    return list(clean.values()), dict(dropped)


# %% [markdown]
# Where more than half of the pairs have a fault, a column is probably the wrong one, and `check_faults` stops before anything is learned from it. To be repeated, or in a test set, is no fault.


# %% tags=["export"]
def check_faults(first: Pair, total: int, dropped: Mapping[str, int]) -> None:
    """Raise ValueError, with the first pair, if more than half of the pairs have a fault."""
    faultless = dropped.get("repeated", 0) + dropped.get("held out", 0)
    faulty = sum(dropped.values()) - faultless
    if faulty > total / 2:
        raise ValueError(
            f"{faulty:,} of {total:,} pairs have a fault. The first was read as "
            f"{first.source[:60]!r} and {first.target[:60]!r}: are --columns those of the "
            "two languages?"
        )


def cleaning_report(kept: int, dropped: Mapping[str, int]) -> str:
    """A line on how many pairs were kept, and how many dropped and why."""
    counts = [f"{count:,} {fault}" for fault, count in dropped.items()]
    reasons = f": {', '.join(counts)}" if counts else ""
    return f"{kept:,} pairs kept, {sum(dropped.values()):,} dropped{reasons}"


# %%
damaged = [
    *pairs[:1000],
    Pair("Guten Tag.", "  "),
    Pair("Hallo! " * 10_000, "Hello!"),
    Pair("Ja.", "Yes, I think that I will come to the garden."),
    Pair("Alle Rechte vorbehalten.", "Alle Rechte vorbehalten."),
    *pairs[:30],
]
kept, dropped = filter_pairs(damaged)
print(cleaning_report(len(kept), dropped))

# %% tags=["remove-cell"]
if CHECKING:
    assert kept == pairs[:1000]

# %% [markdown]
# All 34 bad lines are out, and nothing else.
#
# ### Wrong pairs found by their lengths
#
# Lengths give a wrong pair away only where they happen not to fit. We shift one side of the captions by a line, so that all pairs are wrong. How many does the rule drop, and how many of the right ones does it cost?

# %%
shifted = [Pair(one.source, two.target) for one, two in pairwise(captions)]
for ratio in (3.0, 2.0, 1.5):
    wrong = filter_pairs(shifted, ratio=ratio)[1].get("lengths apart", 0)
    right = filter_pairs(captions, ratio=ratio)[1].get("lengths apart", 0)
    print(f"ratio {ratio}: {wrong} of {len(shifted)} wrong pairs, {right} right ones")

# %% [markdown]
# At a ratio of 3 it finds one wrong pair in seventy. At 1.5 it finds three in ten, and begins to cost right ones. So the rules don't replace a look at the pairs; and where a rule drops a tenth of your data, doubt the rule first.
#
# ## Splitting
#
# Some pairs are put aside, to measure the model on sentences that it hasn't seen. The obvious way is to shuffle and cut, but where sentences come again, that [rewards a model that memorizes](28_corpus.ipynb#put-aside-and-nothing-of-it-learned). So pairs that share a sentence in either language must go the same way, and pairs tied by others as well: *Lauf! / Run!*, *Lauf! / Go!* and *Geh! / Go!* are one group. Only letters and digits count, in any case: *Lauf!* and *lauf* are one sentence.
#
# A shuffled list has a second flaw: with one more line the shuffle comes out differently, and what was test is training now. Here the SHA-256 of each group's alphabetically first sentence, together with a seed, places the group between 0 and 1; from 0 up come test, validation and training.


# %% tags=["export"]
class Splits(NamedTuple):
    """Pairs to learn from, to choose by, and to measure on once, at the end."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def hash_share(text: str, seed: int) -> float:
    """Where a text stands between 0 and 1."""
    sha256 = hashlib.sha256(f"{seed} {text}".encode())
    return int(sha256.hexdigest()[:16], 16) / 2**64


def letters(text: str) -> str:
    """The letters and digits of a text, without regard to case; the text, if it has none."""
    folded = unicodedata.normalize("NFC", text.casefold())
    return "".join(filter(str.isalnum, folded)) or folded.strip()


def sides_of(pair: Pair) -> tuple[str, str]:
    """What both sentences of a pair are known by, whatever their marks; languages are apart."""
    return f"0 {letters(pair.source)}", f"1 {letters(pair.target)}"


def group_names(pairs: Iterable[Pair]) -> list[str]:
    """The name of each pair's group: the first of its sentences by the alphabet."""
    # Each sentence points to one of its group that comes before it, and the first to itself
    earlier: dict[str, str] = {}

    def first_of_group(sentence: str) -> str:
        while earlier[sentence] != sentence:
            earlier[sentence] = earlier[earlier[sentence]]  # shorter for the next time
            sentence = earlier[sentence]
        return sentence

    sources = []
    for pair in pairs:
        source, target = sides_of(pair)
        sources.append(source)
        firsts = [first_of_group(earlier.setdefault(s, s)) for s in (source, target)]
        earlier[max(firsts)] = min(firsts)
    return [first_of_group(source) for source in sources]


# %% [markdown]
# In a glossary, whose words have many translations each, one group may hold most of the pairs. A group with more pairs than a part is to have is always learned from, and of the others so much more is put aside.


# %% tags=["export"]
def split_pairs(
    pairs: Iterable[Pair], validation: float = 0.05, test: float = 0.05, seed: int = 0
) -> Splits:
    """Put a share of the pairs aside; no sentence of either language is in two splits.

    The seed and the sentences decide, not their order; only letters and digits count, in any case.
    Raises ValueError for shares that leave nothing to learn from.
    """
    pairs = [as_pair(pair) for pair in pairs]
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise ValueError(
            f"validation={validation} and test={test} are to be shares, such as 0.05"
        )
    groups = group_names(pairs)
    sizes = Counter(groups)
    largest = min(validation or 1, test or 1) * len(pairs)
    small = [group for group in sizes if sizes[group] <= largest]
    scale = sum(sizes[group] for group in small) / len(pairs)
    places = {group: hash_share(group, seed) * scale for group in small}
    # The last one is learned from, wherever it stands
    order = sorted(small, key=places.__getitem__)[:-1]
    for_test = sum(places[group] < test for group in order)
    put_aside = sum(places[group] < test + validation for group in order)
    if test:
        for_test = max(for_test, 1)
    if validation:
        put_aside = max(put_aside, for_test + 1)
    parts = dict.fromkeys(sizes, "train")
    parts |= dict.fromkeys(order[:for_test], "test")
    parts |= dict.fromkeys(order[for_test:put_aside], "validation")
    splits = Splits([], [], [])
    for pair, group in zip(pairs, groups):
        getattr(splits, parts[group]).append(pair)
    return splits


# %%
others = [pair._replace(target="And so: " + pair.target) for pair in pairs]
twice = [*pairs, *others]  # each source has two translations
splits = split_pairs(twice, validation=0.1, test=0.1)
print([len(split) for split in splits])

# %% tags=["remove-cell"]
if CHECKING:
    for split, other in ((0, 1), (0, 2), (1, 2)):
        for side in (0, 1):
            sentences = {pair[side] for pair in splits[split]}
            assert sentences.isdisjoint(pair[side] for pair in splits[other])

# %% [markdown]
# The shares come out roughly (400 were asked for). What that buys: with a thousand new pairs in front and the rest reversed, no sentence moves.

# %%
grown = split_pairs([*grammar(1000, seed=6), *reversed(twice)], 0.1, 0.1)
print([len(split) for split in grown])

# %% tags=["remove-cell"]
if CHECKING:
    assert all(set(old) <= set(new) for old, new in zip(splits, grown))

# %% [markdown]
# How large should a test be? A thousand or two is usual; with 5,000 pairs take 0.1, and expect a noisy score. [Train on your own language pair](../book/own_pair.md) does all of this with one command.
