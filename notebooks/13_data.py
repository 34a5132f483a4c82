# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth", "1", "https://github.com/annotated-transformer/annotated-transformer", "/content/book"], check=True)
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # Corpus
#
# This chapter makes sentence pairs to learn from: any number of German-English ones from a small grammar of our own, 29,000 real captions from Multi30k, and pairs of the reader's own (section 5.1 of the paper).
#
# The paper trains on 4.5 million sentence pairs for half a day on eight GPUs. We want to see a model learn within a minute on a laptop, and without a network. That rules out the paper's corpus. It also rules out a thousandth of it: 4,500 sentences of news hold more different words than a model could get to know from them.
#
# There is a second trouble with found text. Chapter [Reading attention](21_attention_maps.ipynb) will ask whether a model looks at the *right* word. In a found corpus no one has written down which word that is. Programs exist that guess it, and they guess wrong often enough to make a poor ruler. So the first corpus is one that we make: a grammar that says a thing in German and in English at once, and knows all the time which German word became which English one.
#
# The chapter has three parts.
#
# | part | what it gives | read it if |
# |---|---|---|
# | a grammar | any number of pairs, with gold alignments | you want to know what German does to a translator, or to write such a corpus for your language |
# | real captions | 29,000 pairs, and a download that can be trusted | you ever load a file from a network |
# | your own pair | reading, cleaning, splitting, counting | you bring sentences along: most accidents happen here |
#
# The parts need each other little. If you only want the pairs of the first one, start at [the sentences](#sentences).

# %% tags=["export"]
import gzip
import hashlib
import http.client
import os
import re
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from platformdirs import user_cache_dir
from tqdm import tqdm

# %%
import csv
from itertools import combinations
from tempfile import TemporaryDirectory

import altair as alt
import matplotlib.pyplot as plt

from book.figures import INK, KEY, QUERY, curves, show, show_steps, style

# %% [markdown]
# ## A pair of sentences
#
# A **sentence pair** is a source sentence, its translation, and, where we know it, the **alignment**: the set of (source word, target word) positions that mean the same. Positions count from 0. A comma counts as a word of its own.


# %% tags=["export"]
class Pair(NamedTuple):
    """A source sentence, its translation and, if known, the pairs of positions of words (of
    `words(source)` and `words(target)`, counted from 0) that translate each other.
    """

    source: str
    target: str
    alignment: frozenset[tuple[int, int]] | None = None


# %% [markdown]
# A named tuple does what we need of a pair and nothing else. It cannot be changed by accident, two equal pairs compare as equal, and it can be a member of a set, which is how we will find repetitions. For that the alignment must be a `frozenset`: an ordinary set has no hash. Where no one knows the alignment it is `None`, and not an empty set, which would claim that no word has a partner.
#
# Positions only mean something if everyone counts the same words. So the rule for counting comes with the pair.


# %% tags=["export"]
def words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in order."""
    return re.findall(r"\w+|[^\w\s]", text)


# %% [markdown]
# The pattern has two halves. `\w+` takes letters and digits as long as they last. `[^\w\s]` takes a single character that is neither part of a word nor white space, such as a comma. White space belongs to neither and falls away.

# %%
print(list(enumerate(words("Ja, er schläft."))))

# %% [markdown]
# This is a way to count, and no way to prepare text for a model: it would cut *can't* in three. The next chapter shows what models read. For counting words and for our own grammar, which has no such forms, it is exact.
#
# Now a pair with its alignment.

# %%
links = {(0, 0), (1, 1), (3, 1), (2, 2), (4, 3)}
pair = Pair("Sie ruft ihn an.", "She calls him.", frozenset(links))
for i, j in sorted(pair.alignment):
    print(words(pair.source)[i], "→", words(pair.target)[j])

# %% [markdown]
# One pair in twenty is that easy, and none of them has a second clause. All others need a reordering, two words for one, or a comma that vanishes.
#
# ## Real captions
#
# **Multi30k** holds 29,000 captions of photographs for training, 1,014 to tune on and 1,000 to test. The English ones were written first, and professional translators wrote the German. It is small enough to learn something from in minutes, and its sentences are real.
#
# A download can go wrong half way, and then a model trains on half a file without a word. It can also go right and be the wrong file. So we know the **SHA-256** of each file beforehand: a number of 256 bits, written as 64 hexadecimal digits, that is computed from all bytes of a file. Change one byte, and about half of the bits change. A file is used only if its number is the known one.
#
# The address names one commit of the data set's repository, so the files there cannot change under us.

# %% tags=["export"]
MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)
ADDRESSES = {"multi30k": MULTI30K}
MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
SHA256 = {"multi30k": MULTI30K_SHA256}

# %% [markdown]
# `ADDRESSES` and `SHA256` have one entry for each data set. A later chapter adds its own there and uses the functions below as they are.
#
# ### Why does the hash of my download differ?
#
# It is a common question, and for this data set it has two answers. Copies of Multi30k are about that are packed in another way or differ in a file, and each has its own hash. A program that takes its address from one and its hash from another will never be content. And some people report a hash that begins with `e3b0c442`. That is the hash of nothing at all:

# %%
print(hashlib.sha256(b"").hexdigest()[:8])
print(hashlib.sha256(b"Ein Hund rennt.").hexdigest()[:8])
print(hashlib.sha256(b"Ein Hund rennt!").hexdigest()[:8])

# %% [markdown]
# So their file is empty: the server sent no bytes, and the download counted as done. The other two texts differ by one character, and their hashes in seven of the eight digits shown.
#
# ### Where files live
#
# There is one folder for each user, where programs keep what they can get again, and an environment variable that may point elsewhere. So all projects of a user share one copy, and a test can use a folder of its own.


# %% tags=["export"]
class MissingData(RuntimeError):
    """A data set is neither in the cache nor to be had; one line names the files and a remedy."""


def cache_folder() -> Path:
    """Where data sets are kept: `$ANNOTATED_TRANSFORMER_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("ANNOTATED_TRANSFORMER_CACHE")
    return Path(chosen or user_cache_dir("annotated-transformer"))


# %% [markdown]
# A data set that cannot be had is an error with a name of its own. A caller can then tell it from a mistake, and do without the data. The notebooks of this book do: where captions are missing, they take the grammar or are skipped.
#
# ### A file is there or it is not
#
# A program can be stopped at any moment. If it writes straight into `train.de.gz`, a broken half may stay behind under the good name. The remedy is old. A new file is written beside its place first, under another name, and renamed when it is complete. Renaming happens in one instant: whoever looks sees all of the file or none of it. The number of the process is part of the other name, so that two programs that download at the same time do not write into one file.


# %% tags=["export"]
def is_intact(path: Path, sha256: str) -> bool:
    """True if the file is there and is the one that we know."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def download(address: str, path: Path, sha256: str) -> None:
    """Download a file; it appears under its name only when it is complete and its SHA-256 is right.

    Raises OSError or http.client.HTTPException (no network, no room), ValueError (another SHA-256).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(address, timeout=10) as answer, aside.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            with tqdm(total=size, desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
                while block := answer.read(1 << 16):
                    bar.update(file.write(block))
        if not is_intact(aside, sha256):
            raise ValueError(f"what {address} sends was cut short or altered: its SHA-256 differs")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


# %% [markdown]
# The file is read in blocks of $2^{16}$ bytes, 64 kB, so that the progress bar can move. `timeout=10` gives up after ten seconds of silence; without it a dead server holds the program for good. `finally` clears away what is left beside, whatever went wrong. After a success nothing is left, since the file has been renamed.
#
# What if there is no network? Then someone has to carry the files there. The message for them names all that are missing, and not only the first. To learn of the second file only after the first has arrived would cost another walk.


# %% tags=["export", "internal"]
def missing_files(dataset: str, address: str) -> str:
    """What to put where, for the files of a data set that the cache does not have intact."""
    folder, known = cache_folder() / dataset, SHA256[dataset]
    names = [name for name, sha256 in known.items() if not is_intact(folder / name, sha256)]
    return f"{dataset} is incomplete: put {', '.join(names)} from {address} into {folder}"


# %% [markdown]
# `fetch` ties this together. If the file in the cache is intact, no one is asked: a folder that was filled by hand works like a download. If it is damaged, it is replaced. If that fails, whatever the cause, the caller gets one kind of error.


# %% tags=["export"]
def fetch(dataset: str, name: str, address: str | None = None) -> Path:
    """The path of a file of a data set; it is downloaded where the cache does not have it intact.

    `address` replaces the folder that it is downloaded from. Raises MissingData.
    """
    address, path = address or ADDRESSES[dataset], cache_folder() / dataset / name
    if not is_intact(path, SHA256[dataset][name]):
        try:
            download(f"{address}/{name}", path, SHA256[dataset][name])
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise MissingData(f"{missing_files(dataset, address)} ({error})") from error
    return path


# %% [markdown]
# We ask for a file that cannot be had, with an address where nobody answers:

# %%
with TemporaryDirectory() as folder:
    os.environ["ANNOTATED_TRANSFORMER_CACHE"], before = folder, cache_folder()
    try:
        fetch("multi30k", "val.de.gz", "http://127.0.0.1:9")
    except MissingData as error:
        print(str(error)[:61] + " ...")
    os.environ["ANNOTATED_TRANSFORMER_CACHE"] = str(before)

# %% [markdown]
# The message goes on with the other files, the address, the folder and what went wrong.
#
# What comes out of the files is a list of pairs. Each split is two files, and line $i$ of one translates line $i$ of the other. The text is cut at `\n` only. `strict=True` insists on equal numbers of lines, though the hashes have settled that already: it says what we rely on. `strip` takes off the spaces around 40 of the German captions.


# %% tags=["export"]
def multi30k(split: str) -> list[Pair]:
    """German captions and their English translations; `split` is train, val or test_2016_flickr."""
    if f"{split}.de.gz" not in SHA256["multi30k"]:
        raise ValueError(f"Multi30k has no split {split!r}: take train, val or test_2016_flickr")
    paths = [fetch("multi30k", f"{split}.{language}.gz") for language in ("de", "en")]
    texts = [gzip.decompress(path.read_bytes()).decode().rstrip("\n") for path in paths]
    lines = zip(*(text.split("\n") for text in texts), strict=True)
    return [Pair(source.strip(), target.strip()) for source, target in lines]


# %% tags=["nbval-ignore-output"]
try:
    captions = multi30k("train")
except MissingData:
    captions = grammar(29_000, seed=1)
for pair in captions[1:3]:
    print(pair.source, "|", pair.target)
assert len(captions) == 29_000

# %% [markdown]
# One validation caption has a twin in training, and no test caption has. That is clean. Near twins are another matter: there are only so many ways to say that a man rides a bicycle, and a test of captions is easier than one of news.
#
# ### How large should the test be?
#
# Large enough that chance does not decide, and no larger, since each pair in it is one less to learn from. A thousand or two is usual; chapter [Evaluation](20_evaluation.ipynb) shows how far a score wavers on so many. With 170,000 pairs a share of 0.01 gives 1,700. With 5,000 pairs take 0.1, and expect the score to waver.
#
# ## A look at the numbers
#
# Before training, look at what there is: how many pairs, how long, how many different words. A word is called a **type** when we count it once however often it occurs. Types that occur a single time are the hard ones, since a model sees them once and is then asked to know them.


# %% tags=["export"]
class Side(NamedTuple):
    """What one language of a corpus is made of: words, types, types that occur once, lengths."""

    words: int
    types: int
    once: int
    mean: float
    longest: int


class Statistics(NamedTuple):
    """The number of pairs and what either side is made of."""

    pairs: int
    source: Side
    target: Side


# %% [markdown]
# A `Counter` does the work: its keys are the types, its values how often each occurs. `max(..., 1)` and `default=0` are for an empty list, which should give zeros and no error.


# %% tags=["export"]
def describe_side(texts: Sequence[str]) -> Side:
    """Count the words of texts; `mean` and `longest` are words a sentence."""
    lengths, counts = [], Counter[str]()
    for text in texts:
        found = words(text)
        lengths.append(len(found))
        counts.update(found)
    once = sum(count == 1 for count in counts.values())
    mean = sum(lengths) / max(len(lengths), 1)
    return Side(sum(lengths), len(counts), once, round(mean, 2), max(lengths, default=0))


def statistics(pairs: Sequence[Pair]) -> Statistics:
    """Count pairs, words and types of a corpus."""
    source = describe_side([pair.source for pair in pairs])
    return Statistics(len(pairs), source, describe_side([pair.target for pair in pairs]))


# %%
counted = statistics(grammar(10_000, seed=0))
for name in ("source", "target"):
    print(name, getattr(counted, name)._asdict())

# %% [markdown]
# Ten thousand sentences, and fewer than 400 types: no real text is like that. German has more of them than English, for its endings. And here are the captions.

# %% tags=["nbval-ignore-output"]
counted = statistics(captions)
for name in ("source", "target"):
    print(name, getattr(counted, name)._asdict())
assert counted.source.types > counted.target.types

# %% [markdown]
# The captions are about as many words long. But there are 18,483 German types and 10,825 English ones, and over half of the German ones occur once. More captions would not end this, as the next figure shows: every thousand captions bring new words, and the curve does not level off.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-types", "caption": "When have we seen all words? Different words among the first captions and among the first sentences of the grammar, by how many we have read. The grammar runs out of new words at once. The captions never do, and German brings more of them than English."}}
looks = {"captions, German": (QUERY, [1, 0]), "captions, English": (KEY, [6, 3])}
looks["grammar, German"] = (INK, [2, 2])
known, records = {name: set() for name in looks}, []
for number, (pair, made) in enumerate(zip(captions, grammar(29_000, seed=0)), start=1):
    for name, text in zip(looks, (pair.source, pair.target, made.source)):
        known[name].update(words(text))
        if number % 1000 == 0:
            records.append({"read": number, "types": len(known[name]), "corpus": name})
x = alt.X("read:Q", title="sentences read", axis=alt.Axis(format="~s"))
y = alt.Y("types:Q", title="different words", axis=alt.Axis(format="~s"))
show(
    curves(records, x, y, "corpus", looks),
    alt="The curves of the captions rise all the way, German to over 18,000, English to over 10,000. The curve of the grammar is flat, below 500.",
)

# %% [markdown]
# A list of words, then, will never be complete. The next chapter is about that.
#
# ### A corpus to try this on
#
# A good collection to practice on is Tatoeba's, which volunteers write and which comes as one zip per language pair; [Train on your own language pair](../book/own_pair.md) says where. The numbers here were measured once on its German-English file of May 2018, with the functions of this chapter, and are not run with the book:
#
# | command | result |
# |---|---|
# | `pairs = read_pairs("deu-eng.zip", columns=(1, 0))` | 169,813 pairs |
# | `filter_pairs(pairs)` | drops 4, all for *lengths apart* |
# | `filter_pairs(pairs, ratio=1.5)` | drops 7,798, nearly one in twenty |
# | `len({pair.source for pair in pairs})` | 159,223 different German sentences |
# | `len({pair.target for pair in pairs})` | 135,534 different English sentences |
#
# One pair in nine shares its German sentence with another, and one in three its English one. This is the case that splitting by lines gets wrong. A shuffle and a cut at nine tenths put 10 % of the German test sentences and 32 % of the English ones into training as well. Three quarters of the sentences are shorter than ten words, so a model trained on them knows small talk, and neither captions nor news.
#
# ## Questions that come up
#
# **How do I write such a grammar for another pair of languages?** Keep `linked`, `join`, `fuse` and everything from `spell` on. Exchange the dictionary, write how your language shows agreement where ours has `decline` and the three tenses, and write one function that puts a `Clause` in order. Begin with statements and two verbs. The check that every word is linked finds most mistakes.
#
# **Can a model learn the grammar's habits in place of the language?** It will. Ours always puts the place last and never says *nicht ein*. So a score on the grammar tells whether a model can learn, and nothing about how it treats real text.
#
# **How many pairs do I need?** For a toy grammar some ten thousand. For real text a hundred thousand give something useful within a narrow field, and good news translation begins at millions, the paper's 4.5 for example. More text of another field helps less than some of your own.
#
# **May a line hold two sentences?** Yes. What counts is that a line and its partner say the same. A model translates what it has seen as one line, so lines of one sentence each make it good at single sentences.
#
# **May I lower-case everything, or strip the punctuation?** You can, and the model will then write like that. What the reader should see must be in the training text. The next chapter makes lower-casing unnecessary.
#
# **Must I remove sentences that are too long?** Yes, or the longest decides how much memory a batch needs. A hundred words is generous for single sentences: of the captions none is longer than 45.
#
# **Can I train in both directions from one corpus?** Yes: turn the pairs around. The split must then go by the side that is the source in that direction, or by both.
#
# **Does the order of the pairs matter?** Not here: [batching](15_batching.ipynb) shuffles anew in each epoch. It matters if you cut pieces off a file by hand, since files are often sorted by length or topic.
#
# **Why is the German the source in this book?** The model then writes English, which more readers can judge. From German to English it must undo what this chapter built: brackets, cases and waiting verbs.
#
# ## What to remember
#
# - A synchronous grammar says one meaning in two languages. Its links move with the words and give gold alignments.
# - German verbs split or wait for the end of their clause; cases, not order, tell who does what. That is what a translation model must learn.
# - A data set is used only if its SHA-256 is the known one, and a file appears under its name only when complete.
# - Line counts that differ are an error. Lengths that differ are a hint, and no proof that the rest is right.
# - Split by source sentence, never by line. Look at the test set once.
#
# ## Exercises
#
# **1. By hand.** Write down the alignment of *Wir haben ihr den Apfel gezeigt.* and *We showed her the apple.* as pairs of positions. How many links cross?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Wir-We, haben-showed, gezeigt-showed, ihr-her, den-the, Apfel-apple and the full stops. Only the
# link of gezeigt crosses others: those of ihr, den and Apfel. Three crossings.
gold = {(0, 0), (1, 1), (5, 1), (2, 2), (3, 3), (4, 4), (6, 5)}
links = combinations(sorted(gold), 2)
print("crossings:", sum((a - c) * (b - d) < 0 for (a, b), (c, d) in links))

# %% [markdown]
# **2. Which order is harder?** Count the crossings of links in 10,000 sentences: on average, in those that have a subordinate clause, and in those that have none.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
def crossings(pair):
    links = combinations(sorted(pair.alignment), 2)
    return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in links)


many = grammar(10_000, seed=0)
for name, some in {
    "with": [pair for pair in many if "," in pair.source],
    "without": [pair for pair in many if "," not in pair.source],
}.items():
    print(f"{name:7} a comma: {sum(map(crossings, some)) / len(some):.1f} crossings")
# Longer sentences have more words to cross, and each clause has a bracket or waiting verbs.

# %% [markdown]
# **3. What breaks if** the empty lines of each file are deleted before the files are put side by side, "to tidy up"?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Each side loses other lines. Where it is the same number on both, even the line count is silent.
german = ["Ja.", "", "Der Hund schläft."]
english = ["Yes.", "No.", ""]
print(list(zip(filter(None, german), filter(None, english)))[1])
# Read first and clean then: an empty side takes its other side along.
kept, dropped = filter_pairs([Pair(g, e) for g, e in zip(german, english)])
assert [pair.source for pair in kept] == ["Ja."] and dropped["empty"] == 2

# %% [markdown]
# **4. The leak that is left.** Turn the pairs of `twice` around, so that two English sources share a German target, and split them. How many test pairs have a target that is also in training? Close the leak.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
splits = split_pairs([Pair(pair.target, pair.source) for pair in twice], 0.1, 0.1)
known = {pair.target for pair in splits.train}
strict = [pair for pair in splits.test if pair.target not in known]
print(f"{1 - len(strict) / len(splits.test):.0%} of the test pairs have a known target")
assert strict and not {pair.target for pair in strict} & known
# Dropping from the test costs little where few targets are shared. Here it would be cheaper to
# turn the corpus around, split by the German side, and turn the three parts back.

# %% [markdown]
# **5. A rule of your own.** Numbers survive translation. Write a rule that drops a pair whose two sides do not contain the same numbers. Which right pairs does it drop?


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
def same_numbers(pair):
    return sorted(re.findall(r"\d+", pair.source)) == sorted(re.findall(r"\d+", pair.target))


assert same_numbers(Pair("Er ist 30.", "He is 30.")) and not same_numbers(Pair("Um 8.", "At 9."))
print(same_numbers(Pair("Um 20 Uhr.", "At 8 pm.")), same_numbers(Pair("3,5 kg", "3.5 kg")))
# It drops times of day, converted units, and numbers that one side writes as a word.

# %% [markdown]
# ## Sources
#
# The captions of Multi30k {cite:p}`elliott2016multi30k` are for research and education. The paper's own corpora, WMT 2014, are a hundred times larger. Cleaning by length and ratio is as old as statistical translation; what is ours is the report.
