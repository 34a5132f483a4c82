# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # A corpus on disk
#
# This chapter turns millions of sentence pairs into a folder of token ids that every process of a training can read: cleaned, with sentences put aside to measure with, and with a vocabulary learned from the rest (section 5.1 of the paper).
#
# ## A file that loses a line
#
# A corpus mostly comes as two texts, in which line 1,000 of the one translates line 1,000 of the other. Let us take 2,000 pairs, lose a single line, and read on as if nothing had happened:

# %% tags=["export", "hide-input"]
import json
import math
import os
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from annotated_transformer.batching import EncodedCorpus
from annotated_transformer.data import Pair, as_pair
from annotated_transformer.files import (
    TOKENIZER,
    atomic_write,
    load_tokenizer,
    only_one,
    sha256,
)
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.own_data import (
    check_faults,
    cleaning_report,
    each_pair,
    hash_share,
    letters,
    sides_of,
    tidied,
)
from annotated_transformer.tokenization import Tokenizer

# %% tags=["hide-input"]
from contextlib import redirect_stderr
from random import Random
from tempfile import mkdtemp

from annotated_transformer.synchronous_grammar import grammar

# %%
pairs = [Pair(pair.source, pair.target) for pair in grammar(2000, seed=0)]
german = [pair.source for pair in pairs]
english = [pair.target for pair in pairs]
del german[700]  # one line is lost
read = [Pair(*lines) for lines in zip(german, english)]
wrong = sum(pair not in pairs for pair in read)
print(f"{len(read):,} pairs, {wrong:,} of them no translations")
print(read[-1].source, "|", read[-1].target)

# %% tags=["remove-cell"]
if CHECKING:
    assert 1000 < wrong < 1300

# %% [markdown]
# `zip` stops at the shorter text without a word, and no error comes later either: the loss of a model that trains on this falls, because it still learns how English sentences go. So the texts are read by [`each_pair`](C_own_data.ipynb), which wants both to end at once:

# %%
home = Path(mkdtemp())
(home / "news.de").write_text("\n".join(german))
(home / "news.en").write_text("\n".join(english))
try:
    list(each_pair(home / "news.de", home / "news.en"))
except ValueError as error:
    print(str(error).replace(f"{home}/", ""))

# %% [markdown]
# If one line is lost here and another is too many there, it sees nothing; [exercise 3](#exercises) asks what would. A faulty corpus raises no error by itself. So this chapter checks each line as it reads it, and counts what it drops.
#
# ## Why not a list?
#
# [Multi30k's captions](13_data.ipynb) fit into a list. WMT14 has 4.5 million German pairs, some 250 million ids. An integer in a Python list takes 36 bytes, 28 for the number and 8 for the pointer to it. That makes 9 GB, in *every* process that trains. As 16-bit numbers in one file the ids are half a gigabyte, and all processes of a machine read the same file. So a large corpus is prepared once, and opened as often as you like:
#
# ```bash
# annotated-transformer prepare news.en news.de --output news --vocabulary-size 16000
# annotated-transformer train --prepared news --preset base --output base
# ```
#
# ## One pair after another
#
# A corpus that doesn't fit into memory is read several times instead: once to choose what is put aside, twice for the vocabulary, once to encode. WMT14 comes from the Hugging Face hub, from which the library [`datasets`](https://huggingface.co/docs/datasets) downloads it at a pinned revision: data only, no script is run. Your own pairs come from two texts or a table. (Helpers that you don't see built here are in the appendices on [files](A_files.ipynb) and on [pairs of your own](C_own_data.ipynb).)

# %% tags=["export"]
WMT14 = {"wmt14-en-de": 37_000, "wmt14-en-fr": 32_000}  # the paper's vocabularies
REVISION = "b199e406369ec1b7634206d3ded5ba45de2fe696"  # of wmt/wmt14 on the hub
HELD_OUT = ("validation", "test")


def wmt14_pairs(name: str, part: str) -> Iterator[Pair]:
    """The pairs of a part of WMT14: train, validation (newstest2013) or test (newstest2014)."""
    from datasets import load_dataset  # of the extra wmt14

    _, source, target = name.split("-")
    rows = load_dataset(
        "wmt/wmt14", f"{target}-{source}", revision=REVISION, split=part
    )
    for chunk in rows.iter(batch_size=1000):
        for translation in chunk["translation"]:
            yield Pair(translation[source], translation[target])


# %% [markdown]
# Wherever pairs come from, `tidied` makes white space a single space, because each text must later fit on one line.


# %% tags=["export"]
def paper_sets(name: str) -> dict[str, list[Pair]]:
    """The validation and test pairs of WMT14."""
    return {part: [*tidied(wmt14_pairs(name, part))] for part in HELD_OUT}


def read_corpus(
    data: Sequence[str], columns: tuple[int, int], limit: int | None
) -> Iterator[Pair]:
    """The pairs to learn from, of WMT14, of a table or of two texts."""
    if data[0] in WMT14:
        pairs = wmt14_pairs(data[0], "train")
    elif len(data) == 1:
        pairs = each_pair(data[0], columns=columns)
    else:
        source, target = data
        pairs = each_pair(source, target, columns)
    return tidied(islice(pairs, limit))


# %% [markdown]
# ## Put aside, and nothing of it learned
#
# What is put aside decides what the score will mean. Take a guess: of some 170,000 everyday sentence pairs, 6,000 are put aside to measure on. How many of the others still contain a sentence of theirs?
#
# WMT14 has its own validation and test sets, newstest2013 and newstest2014. From your own pairs we put up to 3,000 aside for each. Which ones? The obvious choice is every tenth pair. To see what is wrong with it, we need no model, only a translator that remembers. (The grammar never says a German sentence twice, but people do, so we draw 2,000 pairs with repetition.)


# %%
def remembered(learned, asked):
    translations = {letters(pair.source): pair.target for pair in learned}
    right = [translations.get(letters(p.source)) == p.target for p in asked]
    return sum(right) / len(asked)


talk = Random(0).choices(pairs, k=2000)
others = [pair for number, pair in enumerate(talk) if number % 10]
print(f"every tenth pair put aside: {remembered(others, talk[::10]):.0%} right")

# %% tags=["remove-cell"]
if CHECKING:
    assert remembered(others, talk[::10]) > 0.4

# %% [markdown]
# It understands nothing, and is right wherever a sentence comes twice. A model that has read the sentence gets the same gift, and the score measures its memory. Real corpora are full of sentences that come again, from *Thank you.* to the first line of every press release. So two things are needed: choose *sentences*, not lines, and learn from nothing that shares one with them.
#
# **Exercise 1. Write it first** (★★, 20 min). Write `choose(pairs, wanted)` for a corpus of a billion pairs, of which you may keep a few thousand in memory. It returns `wanted` pairs as if drawn by lot, no two of them with the same source; on another day, or with the lines in another order, it draws the same sources. The function `hash_share(text, seed)` turns a text into a number between 0 and 1. Why is it not enough to take every pair whose number is below 0.001?
#
# Our answer gives each source a number from the hash of its letters, and takes those with the lowest. Only the lowest so far have to be kept:


# %% tags=["export"]
MOST_HELD_OUT = 3_000  # pairs for validation, and for test
HELD_OUT_EVERY = 10  # of a small corpus, one pair of so many


def choose_held_out(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Choose the pairs for validation and test: those whose sources have the lowest hashes."""
    lowest: dict[float, Pair] = {}
    count = 0
    for pair in pairs:
        if not pair.source or not pair.target or pair.source == pair.target:
            continue
        count += 1
        lowest.setdefault(hash_share(letters(pair.source), seed=0), pair)
        if len(lowest) > 4 * MOST_HELD_OUT:
            lowest = dict(sorted(lowest.items())[: 2 * MOST_HELD_OUT])
    wanted = min(math.ceil(count / HELD_OUT_EVERY), 2 * MOST_HELD_OUT)
    chosen = [pair for _, pair in sorted(lowest.items())[:wanted]]
    return {"validation": chosen[0::2], "test": chosen[1::2]}


# %% [markdown]
# The other half is [`sides_of`](C_own_data.ipynb#splitting), which gives a key for each sentence of a pair: its letters and digits, without case and punctuation. Whatever shares a side with a chosen pair isn't learned from.

# %%
held_out = choose_held_out(talk)
chosen = [pair for part in held_out.values() for pair in part]
known = {side for pair in chosen for side in sides_of(pair)}
others = [pair for pair in talk if known.isdisjoint(sides_of(pair))]
print({part: len(some) for part, some in held_out.items()}, len(others), "to learn")
print(f"lowest hashes put aside: {remembered(others, chosen):.0%} right")

# %% tags=["remove-cell"]
if CHECKING:
    assert remembered(others, chosen) == 0 and len(chosen) == 200

# %% [markdown]
# The price is some pairs that are neither put aside nor learned from, here 116 of 2,000. And your guess? Of the 169,813 pairs of Tatoeba with which [your own language pair](../book/own_pair.md) works, 6,000 are put aside, and 2,359 of the others share a sentence with them (a test of the project counts them).
#
# ## What is worth learning
#
# Each pair gets the first of these outcomes that applies, and all are counted:
#
# | outcome | |
# |---|---|
# | empty | a side has no token |
# | too long | a side has more than 250 tokens or 5,000 characters |
# | lengths apart | a side has more than 1.5 times the tokens of the other |
# | untranslated | both sides are the same |
# | held out | a sentence of it is put aside |
# | train | all others |
#
# The limits on tokens are fairseq's for WMT14; the paper doesn't say what it dropped. The rule about untranslated pairs matters most. Of the five kinds of noise that {cite:t}`khayrallah2018impact` added to a training corpus, untranslated sentences did the most harm: the model learned to copy its input.


# %% tags=["export"]
MOST_TOKENS = 250  # on a side
MOST_CHARACTERS = 20 * MOST_TOKENS  # of a longer text, the rest is not even read


def outcome_of(
    pair: Pair, source: list[int], target: list[int], max_ratio: float
) -> str:
    """Return why a pair with these ids is not worth learning from, or "train"."""
    shorter, longer = sorted((len(source), len(target)))
    if shorter == 0:
        return "empty"
    if longer > MOST_TOKENS or max(map(len, pair[:2])) > MOST_CHARACTERS:
        return "too long"
    if longer > max_ratio * shorter:
        return "lengths apart"
    return "untranslated" if pair.source == pair.target else "train"


# %% [markdown]
# The rules count tokens, so a pair has to be encoded before it can be judged. A thousand at a time go to the [tokenizer's library](14_tokenization.ipynb), which uses all cores of the machine:


# %% tags=["export"]
def encoded_pairs(
    tokenizer: Tokenizer, pairs: Iterable[Pair], max_ratio: float
) -> Iterator[tuple[Pair, list[int], list[int], str]]:
    """Yield each pair with the ids of both sides and its outcome."""
    pairs = iter(pairs)
    while chunk := list(islice(pairs, 1000)):
        texts = [text[:MOST_CHARACTERS] for pair in chunk for text in pair[:2]]
        encodings = tokenizer.library.encode_batch(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        for pair, source, target in zip(chunk, ids[0::2], ids[1::2]):
            yield pair, source, target, outcome_of(pair, source, target, max_ratio)


# %%
tokenizer = Tokenizer.train(others, vocabulary_size=600)
odd = [
    Pair("die Katze mag Fisch", "the cat likes fish"),
    Pair("", "the cat likes fish"),
    Pair("the cat likes fish", "the cat likes fish"),
    Pair("die Katze", "the cat likes fish, and the dog likes fish, too"),
]
for pair, source, target, outcome in encoded_pairs(tokenizer, odd, max_ratio=1.5):
    print(f"{outcome:14}{len(source):3} and {len(target):2} tokens: {pair.source!r}")

# %% tags=["remove-cell"]
if CHECKING:
    judged = [outcome for *_, outcome in encoded_pairs(tokenizer, odd, 1.5)]
    assert judged == ["train", "empty", "untranslated", "lengths apart"]

# %% [markdown]
# ## The folder
#
# | file | |
# |---|---|
# | `tokens.bin` | all ids, example after example, as 16-bit numbers if the vocabulary allows it |
# | `lengths.npy` | the lengths of both sides of each example |
# | `tokenizer.json` | the vocabulary, learned from an even sample of a million pairs, or the one you gave |
# | `validation.tsv`, `test.tsv` | sentences to measure with |
# | `summary.json` | settings, and how many pairs met which outcome |
#
# `write_examples` goes through the corpus once and writes each example as [batching](15_batching.ipynb#from-pairs-to-arrays) wants it: the source with an end, the target with a start and an end. It writes no pair with a side in `known`, which holds the sides of the pairs put aside. In memory are a thousand pairs, and two numbers for every example.


# %% tags=["export"]
TOKENS = "tokens.bin"
LENGTHS = "lengths.npy"


def id_type(tokenizer: Tokenizer) -> str:
    """Return the smallest type of numbers that holds all ids."""
    return "uint16" if len(tokenizer) <= 1 << 16 else "uint32"


def write_examples(
    folder: Path,
    pairs: Iterable[Pair],
    tokenizer: Tokenizer,
    known: frozenset[str],
    max_ratio: float,
) -> Counter[str]:
    """Write the ids of the pairs to learn from; return how many met which outcome."""
    outcomes: Counter[str] = Counter()
    lengths = array("i")
    with (folder / TOKENS).open("wb") as file:
        for pair, *ids, outcome in encoded_pairs(tokenizer, pairs, max_ratio):
            if outcome == "train" and not known.isdisjoint(sides_of(pair)):
                outcome = "held out"
            outcomes[outcome] += 1
            if outcome == "train":
                source, target = ids
                example = [*source, EOS, BOS, *target, EOS]
                file.write(np.array(example, id_type(tokenizer)).tobytes())
                lengths.extend((len(source) + 1, len(target) + 1))
    np.save(folder / LENGTHS, np.array(lengths, np.int32).reshape(-1, 2))
    return outcomes


# %% [markdown]
# The sentences to measure with stay text, since a score compares [words, not tokens](20_evaluation.ipynb):


# %% tags=["export"]
def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs of tidied texts, a line each, with a tab between."""
    lines = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    with atomic_write(path) as aside:
        aside.write_text("".join(lines), encoding="utf-8")


def read_held_out(path: Path) -> list[Pair]:
    """Read what write_pairs has written."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [as_pair(line.split("\t")) for line in lines]


# %% [markdown]
# The vocabulary is learned, too, so it may not see what is put aside. It gets a million pairs at most, taken at even distances from the whole corpus, because its beginning may be about one subject alone.


# %% tags=["export"]
SAMPLE = 1_000_000  # pairs that the vocabulary is learned from, at most


def learn_vocabulary(
    read: Callable[[], Iterator[Pair]], known: frozenset[str], size: int
) -> Tokenizer:
    """Learn a vocabulary from an even sample of the pairs that share no sentence with `known`."""
    say("learning the vocabulary ...")
    distance = math.ceil(sum(1 for _ in read()) / SAMPLE)
    to_learn = (
        pair
        for pair in islice(read(), 0, None, distance)
        if known.isdisjoint(sides_of(pair))
        and max(map(len, pair[:2])) <= MOST_CHARACTERS
    )
    return Tokenizer.train(to_learn, size)


# %% [markdown]
# `fill` puts the steps in order; `read` is a function that begins the corpus anew at each call. The pairs put aside from your own corpus are judged by the same rules, but only now, because counting tokens takes a vocabulary. WMT14's sets stay as they are, or their scores could not be compared with anybody's. If more than half of all pairs have a fault, `check_faults` raises an error, because probably the columns are wrong.


# %% tags=["export"]
def fill(
    folder: Path,
    read: Callable[[], Iterator[Pair]],
    given: dict[str, list[Pair]] | None,
    vocabulary: Tokenizer | int,
    max_ratio: float,
) -> Counter[str]:
    """Write all but the summary into a folder; return how many pairs met which outcome."""
    first = next(read(), None)
    if first is None:
        raise ValueError("there are no pairs in the corpus")
    held_out = given or choose_held_out(read())
    chosen = [pair for pairs in held_out.values() for pair in pairs]
    known = frozenset(side for pair in chosen for side in sides_of(pair))
    if isinstance(vocabulary, int):
        vocabulary = learn_vocabulary(read, known, vocabulary)
    (folder / TOKENIZER).write_text(vocabulary.text, encoding="utf-8")
    outcomes = write_examples(folder, read(), vocabulary, known, max_ratio)
    if given is None:  # they were read among the others
        for part, pairs in held_out.items():
            judged = encoded_pairs(vocabulary, pairs, max_ratio)
            held_out[part] = [pair for pair, _, _, fate in judged if fate == "train"]
            outcomes["held out"] -= len(held_out[part])
    dropped = +outcomes  # without zeros
    del dropped["train"]
    check_faults(first, outcomes.total(), dropped)
    say(cleaning_report(outcomes["train"], dropped))
    for part, pairs in held_out.items():
        say(f"{len(pairs):,} for {part}")
        write_pairs(folder / f"{part}.tsv", pairs)
        outcomes[part] = len(pairs)
    return outcomes


# %% [markdown]
# The summary holds the settings, so that the same command does nothing the second time and another one overwrites nothing; the counts, which belong to every result; and a fingerprint that tells whether the folder is still whole.


# %% tags=["export"]
SUMMARY = "summary.json"
FILES = (TOKENS, LENGTHS, TOKENIZER, "validation.tsv", "test.tsv")


def say(text: str) -> None:
    """Write a line where it does not mix with results; of many processes, the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a prepared folder; of any other, an empty one."""
    path = folder / SUMMARY
    if not path.is_file():
        return {}
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return the sizes of a folder's files and the hash of its tokenizer."""
    sizes: dict[str, Any] = {name: (folder / name).stat().st_size for name in FILES}
    text = (folder / TOKENIZER).read_text(encoding="utf-8")
    return {**sizes, "tokenizer": sha256(text)}


# %% [markdown]
# `prepare` is the command. It knows files by their content, so a changed file with an old name is another corpus. The folder is [written aside and renamed](A_files.ipynb#whole-or-not-at-all) at the end: if the process is killed, there is no folder, and never half of one.


# %% tags=["export"]
def prepare(
    data: Sequence[str],
    /,
    output: Path | None = None,
    columns: tuple[int, int] = (0, 1),
    vocabulary_size: int | None = None,
    tokenizer: Path | None = None,
    limit: int | None = None,
    max_ratio: float = 1.5,
) -> None:
    """Encode a corpus of any size into a folder, once, for `train --prepared`.

    Args:
        data: wmt14-en-de, wmt14-en-fr, or your files: a table or two texts.
        output: The folder; that of WMT14 has its name if not given.
        columns: Of a table: source and target, counted from 0.
        vocabulary_size: Entries of the joint vocabulary; WMT14 has the paper's.
        tokenizer: File of a tokenizer to use instead.
        limit: Read so many pairs at most.
        max_ratio: Drop a pair if one side has more than so many times the other's tokens.
    """
    from pooch import file_hash  # its import may warn, but not after that of own_data

    data = [*map(str, data)]
    name = data[0]
    own = name not in WMT14
    size = vocabulary_size or WMT14.get(name)
    vocabulary = load_tokenizer(tokenizer) if tokenizer else size
    if own and output is None:
        raise ValueError("give --output, a folder for the prepared corpus")
    if vocabulary is None:
        raise ValueError("give a --vocabulary-size, such as 16000, or a --tokenizer")
    settings = {
        "data": [*map(file_hash, data)] if own else [name, REVISION],
        "columns": list(columns),
        "vocabulary": file_hash(tokenizer) if tokenizer else size,
        "limit": limit,
        "max_ratio": max_ratio,
    }
    read = partial(read_corpus, data, columns, limit)
    output = Path(output or name)
    with only_one(output.with_name(f"{output.name}.lock"), f"prepares {output}"):
        if not output.exists():
            given = None if own else paper_sets(name)
            with atomic_write(output) as folder:
                folder.mkdir()
                pairs = fill(folder, read, given, vocabulary, max_ratio)
                files = fingerprint(folder)
                summary = {"settings": settings, "pairs": pairs, "files": files}
                (folder / SUMMARY).write_text(json.dumps(summary, indent=2))
        elif read_summary(output).get("settings") == settings:
            say(f"{output} is prepared already")
        else:
            raise FileExistsError(
                f"{output} is there and is not this corpus: take another --output"
            )


# %% [markdown]
# A table with three bad rows and 400 pairs shows it at work:

# %%
bad = ["Deutsch\tDeutsch", "\tNo German.", "Ja.\t" + "Yes, that is so. " * 9]
rows = bad + [f"{pair.source}\t{pair.target}" for pair in pairs[:400]]
(home / "pairs.tsv").write_text("\n".join(rows) + "\n")
with redirect_stderr(sys.stdout):
    prepare([str(home / "pairs.tsv")], home / "corpus", vocabulary_size=600)

# %% tags=["remove-cell"]
if CHECKING:
    assert sum(read_summary(home / "corpus")["pairs"].values()) == 403

# %% [markdown]
# Kept, dropped and put aside add up to the 403 rows. Some good pairs are lost as `lengths apart`: with a vocabulary of 600, a rare word is cut into many tokens, and a short sentence soon has one and a half times the tokens of its translation. Compare such counts with those of other corpora. If one is much larger, there is mostly a fault in the files.
#
# ## Opened
#
# For training, the tokens stay on disk: `np.memmap` looks like an array and reads a part of the file when it is asked for, and the operating system keeps what was read for all processes. The [`EncodedCorpus`](15_batching.ipynb#from-pairs-to-arrays) doesn't know the difference.


# %% tags=["export"]
class PreparedCorpus(NamedTuple):
    """What a prepared folder holds; `name` is that of WMT14, or the hash of your first file."""

    corpus: EncodedCorpus
    tokenizer: Tokenizer
    validation: list[Pair]
    test: list[Pair]
    name: str


def open_corpus(folder: str | Path) -> PreparedCorpus:
    """Open what `prepare` has made.

    Raises FileNotFoundError for another folder, ValueError for one that is no longer whole.
    """
    folder = Path(folder)
    summary = read_summary(folder)
    if not summary:
        raise FileNotFoundError(f"{folder} was not prepared: it has no {SUMMARY}")
    if summary.get("files") != fingerprint(folder):
        raise ValueError(f"{folder} is not whole: remove it, and prepare it again")
    tokenizer = load_tokenizer(folder / TOKENIZER)
    tokens = np.memmap(folder / TOKENS, id_type(tokenizer), "r").view(np.ndarray)
    corpus = EncodedCorpus(tokens, np.load(folder / LENGTHS))
    validation, test = (read_held_out(folder / f"{part}.tsv") for part in HELD_OUT)
    name = str(summary["settings"]["data"][0])
    return PreparedCorpus(corpus, tokenizer, validation, test, name)


# %% [markdown]
# Here are the first ids of the file, and the first example:

# %%
prepared = open_corpus(home / "corpus")
corpus, decode = prepared.corpus, prepared.tokenizer.decode
print(corpus.tokens[:50])
print(corpus.lengths[0])
print(decode(corpus[0].source), "|", decode(corpus[0].target))

# %% tags=["remove-cell"]
if CHECKING:
    from shutil import rmtree

    assert isinstance(corpus.tokens.base, np.memmap) and len(corpus) > 300
    assert sum(map(len, map(np.concatenate, corpus))) == len(corpus.tokens)
    rmtree(home)

# %% [markdown]
# The source ends with 2, which is `</s>`; the target begins with 1, `<s>`, and ends with 2 again. The next example follows without a gap. `lengths` says where: after the sum of its two numbers and one more, since the `<s>` isn't counted.
#
# ## What to remember
#
# - Two texts are a corpus only as long as no line is lost, so whatever can be checked is checked while they are read.
# - Put sentences aside before anything is learned, the vocabulary included, and learn from nothing that shares one with them.
# - Count what is dropped, and say why.
# - Ids in a mapped file take no memory of their own, and all processes share them.
#
# ## Exercises
#
# **1. Write it first** is [above](#put-aside-and-nothing-of-it-learned).
#
# :::{admonition} Solution 1
# :class: dropdown
# `choose_held_out` is the answer, with a dictionary that is cut down to the lowest numbers whenever it has grown to twice what is needed. A fixed limit such as 0.001 takes a share of the corpus: a million pairs of a billion, and none of a small one. And it takes a sentence each time it comes, so *Thank you.* is either missing or comes a thousand times.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    turned = choose_held_out(talk[::-1])
    assert [p.source for p in turned["test"]] == [p.source for p in held_out["test"]]

# %% [markdown]
# **2. Sixteen bits** (★, 5 min). How large is `tokens.bin` for 4.5 million pairs of 28 tokens a side, and how large with a vocabulary of 70,000 entries?
#
# :::{admonition} Solution 2
# :class: dropdown
# An example has 28 tokens and an end on each side, and a start: 59 ids. Two bytes for each make $4.5 \cdot 10^6 \cdot 59 \cdot 2 = 0.53$ GB. Sixteen bits count to 65,535, so beyond 65,536 entries an id takes four bytes, and the file has 1.06 GB.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    sizes = [4.5e6 * (28 + 1 + 1 + 28 + 1) * width / 1e9 for width in (2, 4)]
    assert [round(size, 2) for size in sizes] == [0.53, 1.06]

# %% [markdown]
# **3. A line too many** (★★, 15 min). One line is lost at the beginning of the German text, and at its end there is one too many, so `each_pair` is content. Which of the outcomes notices? And what would you count to notice it at once?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The lengths notice. More than half of these pairs drop out, so `prepare` refuses to go on; where
# all sentences are about equally long, fewer would. Better witnesses are digits: in a real corpus,
# count the pairs in which a number of one side is missing on the other.
shifted = [Pair(a.source, b.target) for a, b in zip(pairs[1:], pairs)]
for name, some in (("whole", pairs[1:]), ("shifted", shifted)):
    judged = encoded_pairs(prepared.tokenizer, some, max_ratio=1.5)
    print(name, dict(Counter(outcome for *_, outcome in judged)))

# %% [markdown]
# ## Further
#
# ### How strict is "shares a sentence"?
#
# *Thank you!* and *thank you* are the same sentence to `sides_of`, but *I thank you.* is another, and of two sentences that differ by one name, one may be learned and the other asked for. So a score on pairs put aside from your own corpus is usually kinder than one on a text from elsewhere, such as the news in WMT's test sets.
#
# ### Where a line comes from
#
# A file loses or gains a line more easily than one thinks. `sort -u` or `grep -v` on one of the two files is enough, and so is an editor that wraps long lines. Python's `str.splitlines` breaks lines not only at the usual two characters, but at eight others, too, among them the page feed and U+2028, which web pages contain. Iterating over an open binary file breaks at `\n` alone, and that is what `each_pair` does.

# %% tags=["remove-cell"]
if CHECKING:
    odd = [chr(n) for n in range(0x3000) if len(f"a{chr(n)}b".splitlines()) > 1]
    assert len(set(odd) - {"\n", "\r"}) == 8
