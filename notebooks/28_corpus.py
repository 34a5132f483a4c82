# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # A corpus on disk
#
# This chapter turns millions of sentence pairs into a folder of token ids that every process of a training can read: cleaned, with sentences put aside to measure with, and with a vocabulary learned from the rest (section 5.1 of the paper).
#
# The captions of [chapter 13](13_data.ipynb) fit into a list. WMT14 has 4.5 million German pairs, some 250 million ids; at 36 bytes for a Python integer and the pointer to it, that is 9 GB in every process that trains. As 16-bit numbers in one file they are half a gigabyte, and all processes of a machine read the same file. So a large corpus is prepared once, and opened as often as you like:
#
# ```bash
# annotated-transformer prepare news.en news.de --output news --vocabulary-size 16000
# annotated-transformer train --prepared news --preset base --output base
# ```
#
# Preparing looks like housekeeping, and it decides what the score will mean. Before you read on, take a guess: of some 170,000 everyday sentence pairs, 6,000 are put aside to measure on. How many of the others still contain a sentence of theirs?

# %% tags=["export"]
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    single_spaced,
)
from annotated_transformer.tokenization import Tokenizer

# %% [markdown]
# ## One pair after another
#
# A corpus that doesn't fit into memory is read several times instead: once to choose what is put aside, once for the vocabulary, once to encode. So what we need is a function that begins anew each time it is called. Your own pairs come from [two texts or a table](C_own_data.ipynb). WMT14 comes from the Hugging Face hub, where the library [`datasets`](https://huggingface.co/docs/datasets) downloads it at a pinned revision and keeps it on the disk: data only, no script is run.

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


def tidied(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """The pairs with one space where they have white space; no text may hold a line's end."""
    for pair in pairs:
        yield Pair(single_spaced(pair.source), single_spaced(pair.target))


def corpus_reader(
    data: Sequence[str], columns: tuple[int, int], limit: int | None
) -> Callable[[], Iterator[Pair]]:
    """Return a function that reads the pairs to learn from, from the first on at each call."""

    def read() -> Iterator[Pair]:
        if data[0] in WMT14:
            pairs = wmt14_pairs(data[0], "train")
        elif len(data) == 2:
            pairs = each_pair(data[0], data[1])
        else:
            pairs = each_pair(data[0], columns=columns)
        return tidied(islice(pairs, limit))

    return read


# %% [markdown]
# ## Put aside, and nothing of it learned
#
# WMT14 has sets of its own to choose and to measure by, newstest2013 and newstest2014. From your own pairs we put up to 3,000 aside for each. Which ones? Every thousandth would do harm, because a corpus has rhythms of its own, such as chapter headings. So each *source sentence* gets a number between 0 and 1 from its hash, and the pairs with the lowest numbers are taken. The choice is as good as chance, it is the same tomorrow, and a sentence that comes a hundred times is drawn once.


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
# Now the question from above. Of the 169,813 pairs of Tatoeba with which [your own language pair](../book/own_pair.md) works, 6,000 are put aside, and 2,359 of the others share a sentence with them (a test of the project counts them). [`sides_of`](C_own_data.ipynb#splitting) finds them: it gives what both sentences of a pair are known by, their letters and digits, whatever the marks between them.
#
# So whatever shares a sentence with a pair that is put aside, on either side, is not learned from. Otherwise the score would measure memory.
#
# ## What is worth learning
#
# Each remaining pair gets the first of these outcomes that applies, and all are counted:
#
# | outcome | |
# |---|---|
# | empty | one side is |
# | too long | a side has more than 250 tokens |
# | lengths apart | a side has more than 1.5 times the tokens of the other (this limit and the one above are fairseq's for WMT14) |
# | untranslated | both sides are the same |
# | held out | a sentence of it is put aside |
# | train | all others |
#
# The rule about untranslated pairs matters most. Of the five kinds of noise that {cite:t}`khayrallah2018impact` added to a training corpus, untranslated sentences did the most harm: the model learned to copy its input.


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


def encoded_pairs(
    tokenizer: Tokenizer, pairs: Iterator[Pair], at_once: int = 1_000
) -> Iterator[tuple[Pair, list[int], list[int]]]:
    """Yield each pair with the ids of both sides; the library encodes many on all cores."""
    while chunk := list(islice(pairs, at_once)):
        texts = [text[:MOST_CHARACTERS] for pair in chunk for text in pair[:2]]
        encodings = tokenizer.library.encode_batch(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        yield from zip(chunk, ids[0::2], ids[1::2])


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
# The folder is [written aside and renamed](A_files.ipynb#whole-or-not-at-all) at the end, so it is there as a whole or not at all. `write_examples` goes through the corpus once; what lies in memory is one chunk of it.


# %% tags=["export"]
TOKENS = "tokens.bin"
LENGTHS = "lengths.npy"
SUMMARY = "summary.json"


def id_type(tokenizer: Tokenizer) -> str:
    """Return the smallest type of numbers that holds all ids."""
    return "uint16" if len(tokenizer) <= 1 << 16 else "uint32"


def write_examples(
    folder: Path,
    pairs: Iterator[Pair],
    tokenizer: Tokenizer,
    held_out: frozenset[str],
    max_ratio: float,
) -> Counter[str]:
    """Write the ids of the pairs to learn from; return how many met which outcome."""
    outcomes: Counter[str] = Counter()
    lengths = []
    with (folder / TOKENS).open("wb") as file:
        for pair, source, target in encoded_pairs(tokenizer, pairs):
            outcome = outcome_of(pair, source, target, max_ratio)
            if outcome == "train" and not held_out.isdisjoint(sides_of(pair)):
                outcome = "held out"
            outcomes[outcome] += 1
            if outcome == "train":
                example = [*source, EOS, BOS, *target, EOS]
                file.write(np.array(example, id_type(tokenizer)).tobytes())
                lengths.append((len(source) + 1, len(target) + 1))
    np.save(folder / LENGTHS, np.array(lengths, np.int32).reshape(-1, 2))
    return outcomes


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs of tidied texts, a line each, with a tab between."""
    lines = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    path.write_text("".join(lines), encoding="utf-8")


def read_held_out(path: Path) -> list[Pair]:
    """Read what write_pairs has written."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [as_pair(line.split("\t")) for line in lines]


# %% [markdown]
# `fill` puts the steps in order, and `prepare` sees to it that nothing is done twice and nothing of somebody else's is overwritten. What is printed at the end belongs to every result: from how many pairs was learned, how many were dropped, and why.


# %% tags=["export"]
SAMPLE = 1_000_000  # pairs that the vocabulary is learned from, at most


def fill(
    folder: Path,
    read: Callable[[], Iterator[Pair]],
    held_out: dict[str, list[Pair]] | None,
    vocabulary: Tokenizer | int,
    max_ratio: float,
) -> dict[str, Any]:
    """Write what `read` gives into a folder; return counts and sizes for the summary."""
    own = held_out is None
    held_out = held_out or choose_held_out(read())
    chosen = [pair for pairs in held_out.values() for pair in pairs]
    known = frozenset(side for pair in chosen for side in sides_of(pair))
    if isinstance(vocabulary, int):
        say("learning the vocabulary ...")
        distance = math.ceil(sum(1 for _ in read()) / SAMPLE)
        even_sample = islice(read(), 0, None, distance)
        to_learn = (
            pair
            for pair in even_sample
            if known.isdisjoint(sides_of(pair))
            and max(map(len, pair[:2])) <= MOST_CHARACTERS
        )
        tokenizer = Tokenizer.train(to_learn, vocabulary)
    else:
        tokenizer = vocabulary
    say(f"encoding with {len(tokenizer):,} entries ...")
    outcomes = write_examples(folder, read(), tokenizer, known, max_ratio)
    if own:  # they were read among the others
        for part, pairs in held_out.items():
            held_out[part] = [
                pair
                for pair, source, target in encoded_pairs(tokenizer, iter(pairs))
                if outcome_of(pair, source, target, max_ratio) == "train"
            ]
            outcomes["held out"] -= len(held_out[part])
    dropped = +Counter(outcomes)  # without zeros
    del dropped["train"]
    say(cleaning_report(outcomes["train"], dropped))
    say(", ".join(f"{len(pairs):,} for {part}" for part, pairs in held_out.items()))
    check_faults(next(read()), outcomes.total(), dropped)
    (folder / TOKENIZER).write_text(tokenizer.text, encoding="utf-8")
    for part, pairs in held_out.items():
        write_pairs(folder / f"{part}.tsv", pairs)
    return {
        "pairs": {**outcomes, **{part: len(pairs) for part, pairs in held_out.items()}},
        "tokenizer": sha256(tokenizer.text),
        "bytes": (folder / TOKENS).stat().st_size,
    }


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
    from pooch import file_hash  # slow to import

    name = str(data[0])
    size = vocabulary_size or WMT14.get(name)
    if name not in WMT14 and output is None:
        raise ValueError("give --output, a folder for the prepared corpus")
    if len(data) > 2:
        raise ValueError(f"{len(data)} files are too many: give a table or two texts")
    vocabulary = load_tokenizer(tokenizer) if tokenizer else size
    if vocabulary is None:
        raise ValueError("give a --vocabulary-size, such as 16000, or a --tokenizer")
    settings = {
        "data": [name, REVISION]
        if name in WMT14
        else [file_hash(path) for path in data],
        "columns": list(columns),
        "vocabulary": size if tokenizer is None else file_hash(tokenizer),
        "limit": limit,
        "max_ratio": max_ratio,
    }
    output = Path(output or name)
    lock = output.with_name(f"{output.name}.lock")
    with only_one(lock, f"prepares {output}"):
        if output.exists():
            if read_summary(output).get("settings") != settings:
                raise FileExistsError(
                    f"{output} is there and is not this corpus: take another --output"
                )
            say(f"{output} is prepared already")
            return
        held_out = None
        if name in WMT14:
            held_out = {part: [*tidied(wmt14_pairs(name, part))] for part in HELD_OUT}
        with atomic_write(output) as folder:
            folder.mkdir()
            read = corpus_reader([str(path) for path in data], columns, limit)
            summary = fill(folder, read, held_out, vocabulary, max_ratio)
            summary["settings"] = settings
            (folder / SUMMARY).write_text(json.dumps(summary, indent=2))


def say(text: str) -> None:
    """Write a line where it does not mix with results."""
    print(text, file=sys.stderr, flush=True)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a prepared folder; of any other, an empty one."""
    path = folder / SUMMARY
    if not path.is_file():
        return {}
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show what the example needs", "code_prompt_hide": "Hide what the example needs"}
import tempfile

from annotated_transformer.synchronous_grammar import grammar

pairs = grammar(2000, seed=0)

# %% [markdown]
# A small table with a header, three bad rows and 400 pairs shows it at work. `redirect_stderr` lets the messages appear on this page.

# %%
from contextlib import redirect_stderr

bad = ["Deutsch\tDeutsch", "\tNo German.", "Ja.\t" + "Yes, that is so. " * 9]
rows = bad + [f"{source}\t{target}" for source, target, _ in grammar(400, seed=1)]
home = tempfile.TemporaryDirectory()
table, folder = Path(home.name, "pairs.tsv"), Path(home.name, "corpus")
table.write_text("\n".join(rows) + "\n")
with redirect_stderr(sys.stdout):
    prepare([str(table)], output=folder, vocabulary_size=600)
print(*sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# ## Opened
#
# `open_corpus` gives training what it needs. The tokens stay on disk: `np.memmap` reads a part of the file when it is asked for, and the operating system keeps what was read for all processes. The `EncodedCorpus` of [batching](15_batching.ipynb#from-pairs-to-arrays) doesn't know the difference.


# %% tags=["export"]
class PreparedCorpus(NamedTuple):
    """What a prepared folder holds; `name` is that of WMT14, or empty."""

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
    tokenizer = load_tokenizer(folder / TOKENIZER)
    tokens = np.memmap(folder / TOKENS, id_type(tokenizer), "r").view(np.ndarray)
    lengths = np.load(folder / LENGTHS)
    validation, test = (read_held_out(folder / f"{part}.tsv") for part in HELD_OUT)
    pairs = {"train": len(lengths), "validation": len(validation), "test": len(test)}
    is_whole = (
        sha256(tokenizer.text) == summary["tokenizer"]
        and tokens.nbytes == summary["bytes"]
        and pairs.items() <= summary["pairs"].items()
    )
    if not is_whole:
        raise ValueError(f"{folder} is not whole: remove it, and prepare it again")
    name = str(summary["settings"]["data"][0])
    corpus = EncodedCorpus(tokens, lengths)
    return PreparedCorpus(corpus, tokenizer, validation, test, name)


# %%
prepared = open_corpus(folder)
print(
    f"{len(prepared.corpus)} examples, {prepared.corpus.tokens.nbytes:,} bytes on disk"
)
print(prepared.corpus[0].source, prepared.tokenizer.decode(prepared.corpus[0].source))

# %% tags=["remove-cell"]
if CHECKING:
    counts = read_summary(folder)["pairs"]
    assert sum(counts.values()) == 403
    home.cleanup()

# %% [markdown]
# ## What to remember
#
# - Put pairs aside before anything is learned, the vocabulary included, and learn from nothing that shares a sentence with them.
# - Count what is dropped, and say why. More than a few percent of one kind is a fault in the files.
# - Ids in a mapped file cost no memory, and all processes share them.
#
# What remains is to train on it.
#
# ## Exercises
#
# **1. Before you look** (★★, 20 min). Write `choose_held_out` for a corpus of a billion pairs, of which you may keep a few thousand in memory and none twice. What goes wrong if you take a pair whenever its hash is below a fixed number?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A fixed number takes a share of the corpus, of unknown size, and takes a sentence each time it comes.
few = choose_held_out(grammar(100, seed=2))
print({part: len(some) for part, some in few.items()})

# %% [markdown]
# **2. Sixteen bits** (★, 5 min). How large is `tokens.bin` for 4.5 million pairs of 28 tokens a side, and for a vocabulary of 70,000 entries?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 28 tokens and an end on each side, and a start; beyond 65,536 entries an id takes four bytes.
print(f"{4.5e6 * 59 * 2 / 1e9:.2f} GB, {4.5e6 * 59 * 4 / 1e9:.2f} GB")

# %% [markdown]
# **3. The wrong file** (★, 10 min). Shift the German side of a corpus by one line. Which of the rules notices?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The ratio of lengths drops more pairs than before, and most stay. BLEU tells, in training.
from itertools import pairwise

shifted = [Pair(a.source, b.target) for a, b in pairwise(pairs[:2001])]
for name, some in (("whole", pairs[:2000]), ("shifted", shifted)):
    coded = encoded_pairs(prepared.tokenizer, iter(some))
    print(name, dict(Counter(outcome_of(*one, 1.5) for one in coded)))

# %% [markdown]
# ## Sources
#
# The corpora and the sizes of their vocabularies are from section 5.1 of {cite:t}`vaswani2017attention`; the noise that does harm, from {cite:t}`khayrallah2018impact`.
