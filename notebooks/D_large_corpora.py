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
# # Large corpora
#
# This chapter turns archives of many gigabytes of text into token ids on disk, in two gigabytes of memory, and hands them to training as if they were a list (section 5.1 of the paper).
#
# So far a corpus was a list of pairs, and a training set a list of examples. For 29,000 captions nothing is simpler. The paper learned German from 4.5 million pairs and French from 36 million. Then the same list no longer fits, downloads take so long that they break, and in so much text everything that can be wrong with a line is wrong with some line.
#
# | what goes wrong | what one sees | the section about it |
# |---|---|---|
# | a list of Python numbers | the process is killed, out of memory | What does a list weigh? |
# | a download breaks after an hour | it begins again at zero | A download that can break |
# | an archive is damaged, or another one | nothing, or an error two hours later | Is it the right file? |
# | one line too many on one side | every pair after it is wrong | Lines out of an archive |
# | a line is binary rubbish | an error in line 2,399,123 | Cleaning |
# | the machine stops at 90 percent | all is encoded anew | EncodedCorpus |
# | shards of one vocabulary, model of another | a model that learns noise | Opening a prepared folder |
#
# At the end stands one function, `prepare`, which goes from addresses to shards and may be killed at any moment, and one class, `EncodedCorpus`, which training takes for a list. No new mathematics is in them. It is a part of the work that the paper passes over in two sentences, and that decides whether its numbers can be repeated.
#
# If you only want the data, run `prepare("wmt14-en-de", "wmt14")` and come back when a question comes up.

# %% tags=["export"]
import errno
import gzip
import hashlib
import html
import http.client
import io
import json
import math
import re
import tarfile
import time
import urllib.request
import zipfile
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

# %% tags=["export"]
from annotated_transformer.batching import Example
from annotated_transformer.data import MissingData, Pair, cache_folder
from annotated_transformer.own_data import hash_share
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.tokenization import Tokenizer, sha256_of
from annotated_transformer.training import TOKENIZER, atomic_write, write_text


# %%
import os
import sys
import tempfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.request import urlopen

import matplotlib.pyplot as plt

from annotated_transformer.batching import encode_pairs, plan_batches, shapes_of
from annotated_transformer.synchronous_grammar import grammar
from book.figures import INK, KEY, QUERY, RESIDUAL, VALUE, style


# %% [markdown]
# ## What does a list weigh?
#
# A token id is a number below 37,000. Two bytes can hold any number up to 65,535. How many bytes does Python take for it? We build 1,000 examples of 31 + 31 tokens, about the length of a sentence pair of WMT, and add up all objects they are made of.


# %%
def weigh(examples):
    """Return the bytes of a list of examples, each object counted once."""
    objects = {id(o): o for e in examples for o in [e, *e, *e.source, *e.target]}
    return sys.getsizeof(examples) + sum(map(sys.getsizeof, objects.values()))


chance = Random(0)
rows = [[int(chance.uniform(4, 37_000)) for _ in range(62)] for _ in range(1000)]
some = [Example(row[:31], row[31:]) for row in rows]


# %% tags=["nbval-ignore-output"]
each = weigh(some) / len(some)
print(
    f"{each:,.0f} bytes an example, {each / 62:.0f} a token; 4.5 million: {4.5e6 * each / 1e9:.1f} GB"
)
assert 1800 < each < 3000


# %% [markdown]
# Nearly 20 times what is needed. A number in a list is an object of 28 bytes, and the list holds its address, 8 bytes more. Then there are two lists and a tuple to administer. What is more, each process of a training has a list of its own: on a machine with eight GPUs the same tokens are there eight times.
#
# ### Does an array for each sentence help?
#
# An array keeps its numbers in two bytes each. So the first idea is to keep the list, and to make each sentence an array. Here is what one of 31 tokens weighs:

# %% tags=["nbval-ignore-output"]
sentence = np.array(rows[0][:31], dtype=np.uint16)
print(f"{sentence.nbytes} bytes of numbers in an object of {sys.getsizeof(sentence)} bytes")
assert sys.getsizeof(sentence) > 2 * sentence.nbytes


# %% [markdown]
# The numbers are small now, and the object round them is larger than they are. Two such objects a pair come to 1.6 GB for German, and 13 GB for French. What costs is not the tokens. It is that every sentence is a thing of its own. So all sentences should be one thing: a single row of numbers, and beside it where each sentence ends.
#
# ### Must it be in memory at all?
#
# As one row, the 62 tokens need 124 bytes, in all 0.56 GB for 4.5 million pairs. That is small enough for memory. But it need not be there. A file can be **memory-mapped**: the system treats it as if it were in memory, and reads a page of it from disk when somebody looks at that page. Pages that nobody has looked at for a while are forgotten, and eight processes that look at the same page share it. To open such a file costs nothing, whatever its size.
#
# What does it cost to read like this? A page has 4,096 bytes as a rule, and an example in it 124. While nothing is in memory, each example costs a page, 33 times what is wanted. But all tokens of German fill only 137,000 pages. A batch of 25,000 tokens takes about 800 examples from all over the corpus. After a thousand batches, a fifth of an epoch, nearly every page has been fetched once, and stays if there is room. So the slow time is the beginning of the first epoch, and a machine with little memory merely stays slower.
#
# So the plan is:
#
# 1. Fetch the archives, once and for good.
# 2. Learn a vocabulary from a part of the pairs.
# 3. Go through all pairs, a few thousand at a time: drop the bad ones, encode the good ones, write their ids into files. Such a file is a **shard**, one of many parts of a whole.
# 4. Write down what was made of what, with hashes.
#
# Memory then depends on how many pairs are dealt with at a time, and not on how many there are. The first half of the chapter is about bytes: where they come from, whether they are the right ones, how lines come out of them. The second half is about pairs: which are good, what they are in numbers, and how the numbers are kept.

# %% [markdown]
# ## Where a text comes from
#
# A corpus such as WMT14 is not one file. It consists of pieces: debates of a parliament, pages from the web, newspaper columns. Each is an archive on some server, and in it are two texts, one a language, in which line $i$ of one translates line $i$ of the other.
#
# The short way is a line with an address and a call that downloads it. It works on the day it is written. Servers of universities come and go, and they are slow on some days. Some answer with a page that says "moved", status 200, and that page is then unpacked as if it were an archive. So for each archive we want several addresses, and a hash that tells whether what they sent is the file. Some archives have a mirror, a second place that keeps a copy. If the copy was packed anew, it has the same texts and another hash. So the hash belongs to the address, and not to the archive.


# %% tags=["export"]
HASH = re.compile(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")


@dataclass(frozen=True)
class Source:
    """An address of a file, and its hash as "sha256:..." or "md5:...", or None if none is known."""

    address: str
    hash: str | None = None

    def __post_init__(self) -> None:
        if not re.match(r"(https?|file)://.+/[^/?#]+$", self.address):
            raise ValueError(f"{self.address!r} is not the address of a file, as http://host/file")
        if self.hash is not None and not HASH.fullmatch(self.hash):
            raise ValueError(f"{self.hash!r} is not a hash such as sha256:... or md5:..., in full")

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.address.rpartition("/")[2]


# %% [markdown]
# The expression for the hash asks for 64 hexadecimal digits after `sha256:` or 32 after `md5:`. An address must end in the name of a file, because that is the name it gets in the cache. The two checks run when the object is made, that is before anything is downloaded. A hash cut short by a careless copy would otherwise show up as a "damaged" download of two gigabytes. `hash` may be `None`, since for a few archives nobody has published one.
#
# A piece says which two members of the archive are meant. The first is the source language. So the direction is decided here, in the catalog, and German to English is another corpus than English to German. Where it has no sources at all, its members are two files on the reader's own disk. The check refuses a piece with one member, or with the same one twice: a model would learn to copy, its loss would fall fast, and nothing would look wrong.


# %% tags=["export"]
@dataclass(frozen=True)
class Piece:
    """Two texts, line i of one translating line i of the other: members of an archive that can be
    had from any of some sources or, where there are none, two files on this machine.
    """

    name: str
    members: tuple[str, str]
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        if len(self.members) != 2 or self.members[0] == self.members[1]:
            raise ValueError(
                f"{self.name} must have two members, one a language, not {self.members}"
            )


# %% [markdown]
# A corpus is then a name and the pieces of each split. The vocabulary belongs to it as well, since the paper has another size for each language pair. `folder` is the place in the [cache](13_data.ipynb) for the archives: German and French share most of theirs, and need them only once.
#
# The names of splits are fixed. With free names, a corpus with "dev" in place of "validation" would be prepared to the end, and training would then find nothing to validate with. Names of pieces must differ, since counts and shards are filed under them.


# %% tags=["export"]
SPLITS = ("train", "validation", "test", "test-filtered")


@dataclass(frozen=True)
class Corpus:
    """The pieces of each split, the folder of the cache for them, and a size for the vocabulary."""

    name: str
    folder: str
    pieces: Mapping[str, tuple[Piece, ...]]
    vocabulary_size: int = 37_000

    def __post_init__(self) -> None:
        for split in set(self.pieces) - set(SPLITS):
            raise ValueError(f"{self.name} has a split {split!r}: there are {', '.join(SPLITS)}")
        if not self.pieces.get("train"):
            raise ValueError(f'{self.name} has no pieces to learn from: list some under "train"')
        names = [piece.name for pieces in self.pieces.values() for piece in pieces]
        if len(set(names)) < len(names):
            raise ValueError(f"two pieces of {self.name} have the same name: {sorted(names)}")


# %% [markdown]
# ### What is WMT14?
#
# The paper names the task of 2014, English to German and English to French. For German that is three archives:
#
# | piece | what it is | archive | share of the pairs |
# |---|---|---|---|
# | News Commentary v9 | essays from newspapers | 80 MB | 4 % |
# | Europarl v7 | debates of the European Parliament | 658 MB | 43 % |
# | Common Crawl | pages from the web, matched by machine | 918 MB | 53 % |
#
# Together they are 4,520,620 pairs before cleaning. The archives hold other languages too, and other years of the task use the same ones.
#
# Care is needed with the first. Each year brought a longer News Commentary. Projects that say "WMT14" take version 9, 11, 12 or 13, and so train on different data under the same name. Version 9 is the one of 2014. The difference is tens of thousands of pairs out of millions. It would hardly be worth mentioning, if differences of a few tenths of BLEU were not published on top of it.
#
# The archives of the training pieces are at an address made of the year and a name, and the mirror's at another made of the same two.


# %% tags=["export"]
def wmt(year: str, file: str, official: str | None, mirror: str | None) -> tuple[Source, Source]:
    """Return where an archive of a WMT can be had: the official one, and the mirror's zip."""
    zipped = f"{file.rpartition('.')[0]}.zip"
    return (
        Source(f"http://www.statmt.org/{year}/{file}", official),
        Source(f"https://huggingface.co/datasets/wmt/{year}/resolve/main-zip/{zipped}", mirror),
    )


# %% [markdown]
# The function spares us to type each address twice. What remains are hashes, and those one should not read but compare. Here they are, each with the hash of the official archive and that of the mirror's copy. `None` means that none was published.


# %% tags=["export"]
EUROPARL = wmt(
    "wmt13",
    "training-parallel-europarl-v7.tgz",
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    "sha256:5b2d8b32c2396da739b4e731871c597fcc6e75729becd74619d0712eecf7770e",
)
COMMON_CRAWL = wmt(
    "wmt13",
    "training-parallel-commoncrawl.tgz",
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    "sha256:5ffe980072ea29adfd84568d099bea366d9f72772b988e670794ae851b4e5627",
)
NEWS_COMMENTARY = wmt(
    "wmt14",
    "training-parallel-nc-v9.tgz",
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
    "sha256:ce199f93ec56ff480137ba29f0819f9a22e70d88be6d7458f112303d67d623d5",
)


# %% tags=["export"]
UNITED_NATIONS = wmt(
    "wmt13",
    "training-parallel-un.tgz",
    None,
    "sha256:74f07002e053c81bc7f73b4fdab58e7987e831338748f264cbda82a8b062d2e2",
)
GIGA = wmt(
    "wmt10",
    "training-giga-fren.tar",
    None,
    "sha256:9439f86523e5dff3f923526dbf6c6929da1786c18dbf64436d2b7564b83aaba3",
)
DEV = (
    Source(
        "http://data.statmt.org/wmt19/translation-task/dev.tgz",
        "sha256:7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
    ),
    Source("https://huggingface.co/datasets/wmt/wmt19/resolve/main-zip/translation-task/dev.zip"),
)
TEST = (Source("https://statmt.org/wmt14/test-full.tgz", "md5:a8cd784e006feb32ac6f3d9ec7eb389a"),)
FILTERED = (
    Source("https://statmt.org/wmt14/test-filtered.tgz", "md5:84c597844c1542e29c2aff23aaee4310"),
)


# %% [markdown]
# ### What if an archive has no hash?
#
# For the two French additions no hash of the official archive has been published, and for the development sets none of the mirror's copy. What we must add: this chapter was written without a network. Addresses and hashes are as others have published them, and none could be tried. The code finds out. A wrong hash is an error that names the address, and the next address is tried. Where none is known, the file is taken on trust, and the hash that was seen is written into the manifest further down. So two people who trained on the French corpus can at least find out later whether they had the same one.
#
# ### What to measure with
#
# Training pieces are plain text. The sets to measure with come in a format of their own, SGML, which has a tag around each sentence. We take *newstest2013*, 3,000 sentences, to choose by (the paper did the same), and *newstest2014* to measure on once, at the end.
#
# There are two versions of the latter. The full one has 3,003 sentences. A filtered one has 2,737, and some papers report scores on it without saying so. Scores on two different sets cannot be compared, however alike the sets are called. We keep both, under different names, and report the full one.
#
# In the archives of training pieces, both texts of a language pair have the same stem and differ in their ending. English is the second language of every name, also where it is our source:


# %% tags=["export"]
def both(language: str, stem: str) -> tuple[str, str]:
    """Return the names of the English text of a pair of languages and of the other one."""
    return f"{stem}.{language}-en.en", f"{stem}.{language}-en.{language}"


# %% [markdown]
# Now the corpus itself. `src` and `ref` are the names of the source and of the reference translation in the test archives. They are the members that sacreBLEU reads, too.


# %% tags=["export"]
def wmt14(language: str, vocabulary_size: int, *more: Piece) -> Corpus:
    """Return WMT14 from English to a language; more pieces may come after the common three."""
    src = f"newstest2014-{language}en-src.en.sgm"
    ref = f"newstest2014-{language}en-ref.{language}.sgm"
    dev = ("dev/newstest2013-src.en.sgm", f"dev/newstest2013-ref.{language}.sgm")
    news = both(language, "training/news-commentary-v9")
    train = (
        Piece("News Commentary v9", news, NEWS_COMMENTARY),
        Piece("Europarl v7", both(language, "training/europarl-v7"), EUROPARL),
        Piece("Common Crawl", both(language, "commoncrawl"), COMMON_CRAWL),
        *more,
    )
    evaluation = {
        "validation": (Piece("newstest2013", dev, DEV),),
        "test": (Piece("newstest2014", (f"test-full/{src}", f"test-full/{ref}"), TEST),),
        "test-filtered": (
            Piece("newstest2014, filtered", (f"test/{src}", f"test/{ref}"), FILTERED),
        ),
    }
    return Corpus(f"wmt14-en-{language}", "wmt14", {"train": train, **evaluation}, vocabulary_size)


# %% [markdown]
# The three common pieces stand first and in the same order for both languages; more may follow. Whatever differs between the two corpora is an argument, and there are three: the language, the size of the vocabulary, and the pieces that only one of them has. With it, the catalog is done:


# %% tags=["export"]
NATIONS = Piece("United Nations", both("fr", "un/undoc.2000"), UNITED_NATIONS)
FIXED = ("giga-fren.release2.fixed.en.gz", "giga-fren.release2.fixed.fr.gz")
CATALOG = {
    "wmt14-en-de": wmt14("de", 37_000),
    "wmt14-en-fr": wmt14("fr", 32_000, NATIONS, Piece("Giga French-English", FIXED, GIGA)),
}


# %% [markdown]
# French has the same three pieces and two more: documents of the United Nations, and the "Giga" corpus of Canadian and European web pages, which is more than half of the whole. There the archive is a `.tar` whose members are packed themselves, as `.gz`.
#
# News Commentary comes first because it is small. Whoever tries things out with a limit of some thousand pairs then downloads 80 MB, and not 1.6 GB.
#
# What does the catalog say in the end?

# %%
for name, corpus in CATALOG.items():
    print(name, [piece.name for piece in corpus.pieces["train"]])
    print(" " * 11, corpus.pieces["train"][0].members)


# %% [markdown]
# ### Your own large corpus
#
# The same can be written as JSON, in the same form, for any other corpus. This one has an archive to learn from and two files of its own to measure with:
#
# ```json
# {
#   "name": "ours",
#   "vocabulary_size": 16000,
#   "pieces": {
#     "train": [{
#       "name": "web",
#       "members": ["web.de", "web.en"],
#       "sources": [{"address": "https://example.org/web.tgz", "hash": "sha256:..."}]
#     }],
#     "test": [{"name": "letters", "members": ["letters.de", "letters.en"]}]
#   }
# }
# ```
#
# Names of files are looked for beside the JSON file. Here the source is German, because it stands first. Whatever is wrong with the file becomes one error that names it.


# %% tags=["export"]
def read_piece(content: Mapping[str, Any], folder: Path) -> Piece:
    """Make a piece from JSON; files on this machine are looked for from a folder on."""
    sources = tuple(Source(**source) for source in content.get("sources", ()))
    names = content["members"]
    members = names if sources else [str((folder / name).resolve()) for name in names]
    return Piece(content["name"], tuple(members), sources)


# %% [markdown]
# The path is made absolute at once, so that it still means the same file when the program changes its folder.


# %% tags=["export"]
def load_catalog(path: str | Path) -> Corpus:
    """Read a corpus from a JSON file; raises ValueError if the file does not describe one."""
    path = Path(path)
    try:
        content = json.loads(path.read_bytes())
        pieces = {
            split: tuple(read_piece(piece, path.parent) for piece in some)
            for split, some in content.pop("pieces").items()
        }
        return Corpus(pieces=pieces, **{"folder": content["name"], **content})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a catalog: {what}; compare it with CATALOG") from error


# %% [markdown]
# A mistake can show up in four ways: as JSON that does not parse, as a key that is missing, as one too many, or as a value that our own checks refuse. Whoever wrote the file has to do the same in all four cases, look at it again.

# %% [markdown]
# Why is there no list of allowed keys, and no library that checks JSON against a description? Because the classes are the description. `Piece` and `Corpus` refuse what they do not know, and their own checks run whoever makes them. A second list would have to be kept equal to the first.
#
# And if all you have is two large text files, they are a corpus of one piece:


# %% tags=["export"]
def text_files(source: str | Path, target: str | Path) -> Corpus:
    """Return the corpus of two text files of one's own, plain or .gz."""
    members = (str(Path(source).resolve()), str(Path(target).resolve()))
    name = Path(source).name
    return Corpus(name, name, {"train": (Piece(name, members),)})


# %% [markdown]
# Three files with a mistake each: a split that does not exist, nothing to learn from, a piece without members.

# %%
with tempfile.TemporaryDirectory() as name:
    path = Path(name, "mine.json")
    for pieces in ({"dev": []}, {"train": []}, {"train": [{"name": "p"}]}):
        path.write_text(json.dumps({"name": "mine", "pieces": pieces}))
        try:
            load_catalog(path)
        except ValueError as error:
            print(str(error).removeprefix(name + os.sep))


# %% [markdown]
# ### A WMT14 in miniature
#
# For the rest of the chapter we need something to download. A gigabyte from a university would not do: the page could not be run without a network, and nobody could make the server fail at the right moment. So we make our own. We turn the pairs of our grammar round, English first, and cut them into three parts to learn from and three to measure with.

# %%
pairs = [Pair(english, german) for german, english, _ in grammar(1500, seed=0)]
home = tempfile.TemporaryDirectory()
folder = Path(home.name)
os.environ["ANNOTATED_TRANSFORMER_CACHE"] = str(folder / "cache")
PARTS = {"train": [pairs[:200], pairs[200:800], pairs[800:]], "validation": [pairs[:40]]}
PARTS |= {"test": [pairs[40:100]], "test-filtered": [pairs[40:90]]}

# %% [markdown]
# Each part is packed under the names of the real archive and its members, in the format of the real one: plain lines to learn from, SGML to measure with. What is real about it is the layout. Everything that follows works on the real archives in the same way.


# %%
def content_of(member, texts):
    """Return the bytes of a member: SGML, or one sentence a line."""
    form = '<seg id="1">{}</seg>' if member.endswith(".sgm") else "{}"
    return "".join(form.format(html.escape(text)) + "\n" for text in texts).encode()


def pack(piece, some):
    """Write the official archive of a piece."""
    with tarfile.open(folder / piece.sources[0].file, "w:gz") as tar:
        for side, member in enumerate(piece.members):
            content = content_of(member, [pair[side] for pair in some])
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


# %%
for split, pieces in CATALOG["wmt14-en-de"].pieces.items():
    for piece, some in zip(pieces, PARTS[split]):
        pack(piece, some)
print(sorted(path.name for path in folder.glob("*.tgz")))


# %% [markdown]
# Then a server for them, on this machine. It is not a good one. Whatever file it is asked for, it breaks off half way through its first answer. It does know how to begin in the middle, if it is asked to.


# %%
class Unreliable(BaseHTTPRequestHandler):
    """Sends the files of the folder, each one only by half at first."""

    log, begun = [], set()

    def do_GET(self):
        content = (folder / self.path[1:]).read_bytes()
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", len(content) - start)
        self.end_headers()
        stop = len(content) if self.path in self.begun else len(content) // 2
        self.begun.add(self.path)
        self.log.append((self.path[1:], start / len(content)))
        self.wfile.write(content[start:stop])

    def log_message(self, *arguments):
        pass


# %% [markdown]
# Two lines of it matter. `start` is what the header `Range` asks for, and with it the answer begins in the middle. `stop` is half of the file if the path was never asked for before. The announced length is always that of the rest of the file, so the server promises more than it sends, as a server does that dies. `log` keeps what was asked for.

# %%
server = ThreadingHTTPServer(("127.0.0.1", 0), Unreliable)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"


# %% [markdown]
# ## Is it the right file?
#
# A file of the right name and the right size can still be another one. It may be damaged, or from another year, or a login page of the network that one sits in. A name and a size say nothing about the content. A hash does: 64 digits that change when one bit of two gigabytes does.
#
# [Chapter 13](13_data.ipynb) read a file as a whole to hash it. With two gigabytes, that alone would take all the memory we allow ourselves. A hash function can be fed bit by bit, and the result is the same. So we feed it blocks of a megabyte, $2^{20}$ bytes.


# %% tags=["export"]
BLOCK = 1 << 20


def file_hash(path: Path, kind: str = "sha256") -> str:
    """Return the hash of a file of any size, as "sha256:..."; a block at a time."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


# %%
path = folder / "training-parallel-nc-v9.tgz"
print(file_hash(path) == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest())


# %% [markdown]
# `usedforsecurity=False` is there for MD5, by which sacreBLEU knows the test sets. Nobody should trust MD5 against an attacker, and some systems refuse it for that reason. Against a broken download it is good enough.
#
# Next, whether a file is what a source should send. The answer is the hash, to be written down, or `None`. Where no hash is known, any file will do. One function answers both questions, "is it right?" and "what was it?", because both need a pass over the file, and one pass is enough.


# %% tags=["export"]
def hash_seen(path: Path, source: Source) -> str | None:
    """Return the hash of a file if it is what a source should send, or if nothing is known."""
    if not path.is_file():
        return None
    seen = file_hash(path, source.hash.partition(":")[0] if source.hash else "sha256")
    return seen if source.hash in (None, seen) else None


# %% [markdown]
# Our miniature knows its hashes, so we can write the corpus down as `CATALOG` does, with our own addresses:


# %%
def served(piece):
    """Return a piece with the address of our server in place of the official ones."""
    file = piece.sources[0].file
    return replace(piece, sources=(Source(f"{address}/{file}", file_hash(folder / file)),))


mini = Corpus(
    "mini-wmt14",
    "mini",
    {split: tuple(map(served, some)) for split, some in CATALOG["wmt14-en-de"].pieces.items()},
    vocabulary_size=400,
)
print(hash_seen(path, mini.pieces["train"][0].sources[0]) is not None)


# %% [markdown]
# ## A download that can break
#
# There are programs that download, such as `wget` and `curl`, and libraries that make requests nicer. We use Python's own `urllib`. It is there everywhere, and the part that matters, what to do when something goes wrong, we would have to decide in any case.
#
# Common Crawl is 918 MB. At 2 MB a second it takes nearly eight minutes, and over a bad line it may never get through in one go. How bad is that? Say a line breaks once in 100 MB on average, at any moment with equal chance. Then the chance to get 918 MB through without a break is $e^{-9.18}$, one in ten thousand. A download that throws away what it has and begins again, as that of [chapter 13](13_data.ipynb) does, would be tried ten thousand times. One that goes on where it broke is there after ten. So it is not a matter of comfort.
#
# HTTP has a way to ask for a part of a file, the header `Range: bytes=1000-`. A server that can do it answers with the status 206 and the rest. One that cannot ignores the header, answers 200 and sends the whole file. So the status decides whether to append or to begin anew. What has come so far stands in a file `.part`, where the next try finds it, also if the next try is another process on another day.
#
# What if the connection just ends? We ask our server for a file, and read blocks until an empty one comes, as one reads any file:

# %% tags=["nbval-ignore-output"]
with urllib.request.urlopen(f"{address}/dev.tgz") as answer:
    announced, came = int(answer.headers["Content-Length"]), 0
    while block := answer.read(1000):
        came += len(block)
print(f"{came:,} of {announced:,} bytes, and no error")
assert came < announced


# %% [markdown]
# An empty block says that no more will come, and that is true. Only a comparison with the announced length tells that half of the file is missing. This is how half a file gets taken for a whole one. A `.tgz` that was cut like that even unpacks, up to the cut, and one gets half of the lines and a complaint at the end that a shell script may swallow.
#
# So there are two checks, one for each kind of trouble. The length is compared at once, and says "go on". The hash is compared at the end, and says "this is it".
#
# ### And if the disk is full?
#
# Errors of the network are a reason to try again, a full disk is not: each new try would write nothing, wait, and fail again, and the sentence that comes out in the end would be about the network. Both are an `OSError`. So the latter gets a class of its own, and a sentence that says what to do. The error numbers are those for no space, for a quota that is used up, and for a file larger than is allowed. numpy reports failures of writing without any number.


# %% tags=["export"]
FULL = (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # numpy gives no number


class NoRoom(OSError):
    """A file could not be written for want of room; one sentence says which, and what to do."""


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into NoRoom."""
    try:
        yield
    except OSError as error:
        if type(error) is not OSError or error.errno not in FULL:
            raise
        raise NoRoom(
            f"{path} could not be written ({error}): make room, then run the same command again; "
            "it goes on from here"
        ) from error


# %% [markdown]
# The condition looks for plain `OSError` only. Its children, such as a connection that was refused, have a meaning of their own and pass through unchanged. The sentence ends with what to do, and with the promise that nothing of the work so far is lost. The rest of the chapter has to keep it.
#
# Now the download of what is missing:


# %% tags=["export"]
def receive(address: str, part: Path) -> None:
    """Append to a file what is still missing of it; raises OSError if the server breaks off."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        start = start if answer.status == 206 else 0  # any other answer begins at the beginning
        size = start + int(answer.headers.get("Content-Length") or 0)
        bar = tqdm(
            total=size, initial=start, desc=part.stem, unit="B", unit_scale=True, disable=None
        )
        with bar, room_for(part), part.open("ab" if start else "wb") as file:
            while block := answer.read(BLOCK):
                bar.update(file.write(block))
    if part.stat().st_size < size:
        raise ConnectionError(
            f"the server broke off after {part.stat().st_size:,} of {size:,} bytes"
        )


# %% [markdown]
# Line by line:
#
# 1. What is there already decides the first byte to ask for. For a new file there is no header, since some servers refuse ranges altogether.
# 2. The status tells whether the server has understood. If not, the file is opened to be written from its beginning, which empties it.
# 3. `Content-Length` is the length of this answer. With what was there before, it makes the length of the file, and the bar can estimate the time left.
# 4. A block at a time goes to disk, so memory holds a megabyte of two gigabytes.
# 5. In the end, the comparison.
#
# ### How often should one try?
#
# A fixed number of tries is a bad rule for large files. A line that breaks every 100 MB needs ten tries for one gigabyte, and each of them gets further. A server that is down needs two tries to be sure. So we count tries *without progress*: whenever the file has become longer than ever before, the count begins again. "Than ever before" matters with servers that cannot begin in the middle. There the file grows from zero each time, and that is no progress.
#
# The pauses double, 1, 2, 4 seconds, so that a server in trouble is not troubled more. An answer such as 404, no such file, ends the matter at once; 416 means that nothing is left to send.


# %% tags=["export"]
NETWORK = (OSError, http.client.HTTPException)
TRIES, PAUSE = 4, 1.0  # pauses of 1, 2 and 4 seconds


def receive_all(address: str, part: Path) -> bool:
    """Receive a file, again and again while it grows; return whether it came in several parts."""
    longest, failures, whole = 0, 0, not part.exists()
    while True:
        try:
            receive(address, part)
            return not whole
        except NoRoom:
            raise
        except NETWORK as error:
            code = getattr(error, "code", 0)
            if code == 416:  # nothing is missing, or the file is another one: its hash tells
                return True
            size = part.stat().st_size if part.exists() else 0
            failures = 1 if size > longest else failures + 1
            longest, whole = max(size, longest), False
            if failures == TRIES or 400 <= code < 500:
                raise
            time.sleep(PAUSE * 2 ** (failures - 1))


# %% [markdown]
# `NETWORK` is wide on purpose: with a connection nearly anything can go wrong, in three layers of libraries. `NoRoom` is an `OSError`, too, so it is let through before the net is cast. The function returns whether the file came in several parts, which matters in a moment.
#
# How do count and pauses work together? A file of 900 MB arrives in parts of 100 MB. After the first break the file is longer than ever, so the count of failures is 1 and the pause one second. After the second break it is longer again, and the count is 1 again. Eight breaks cost eight seconds of pauses. Then the server goes down at 850 MB. Three more tries get nothing, after 1, 2 and 4 seconds, and the last error is raised. The `.part` of 850 MB stays for tomorrow.

# %% [markdown]
# ### One file out of two halves
#
# There is a trap in going on. Perhaps the server has another version of the file today. Then the old half and the new half make a file that never existed. The hash finds out, and all is well if we know what to do next: throw away what was put together, and fetch the file once in one go. If it is still wrong, the source has another file, and the next source gets its turn.


# %% tags=["export"]
def fetch_source(source: Source, folder: Path, again: bool = True) -> str:
    """Download a file into a folder and return its hash.

    Raises one of NETWORK, ValueError if the hash is wrong, NoRoom.
    """
    path = folder / source.file
    part = path.with_name(f"{path.name}.part")
    if source.hash is None:
        part.unlink(missing_ok=True)  # nobody could tell whether the rest belongs to it
    resumed = receive_all(source.address, part)
    seen = hash_seen(part, source)
    if seen is not None:
        part.replace(path)
        return seen
    part.unlink()
    if resumed and again:  # perhaps of two different files: once more, from the beginning
        return fetch_source(source, folder, again=False)
    raise ValueError(f"the file sent was cut short or altered: its hash is not {source.hash}")


# %% [markdown]
# `again` makes sure that this happens once. A server whose file is simply another one would otherwise be asked for ever. And a whole file that arrived in one go is not asked for a second time: it would be the same.
#
# For an archive without a known hash nobody would find out. So there a part that another process has left is not used. What this process has begun itself, a minute ago, it does go on with.
#
# ### Any of several sources
#
# What is in the cache already is taken, whichever source it came from, and also if somebody put it there by hand. Otherwise the sources are asked one after the other.


# %% tags=["export"]
def find_piece(piece: Piece, folder: Path) -> tuple[Path, str] | None:
    """Return the archive of a piece and its hash, if a folder has it from any of its sources."""
    for source in piece.sources:
        if seen := hash_seen(folder / source.file, source):
            return folder / source.file, seen
    return None


# %% [markdown]
# Looking costs a pass over the file, since it is hashed each time. For two gigabytes that takes some seconds, and an archive that was damaged in the cache since yesterday is found.


# %% tags=["export"]
def fetch_piece(piece: Piece, folder: Path) -> tuple[Path, str]:
    """Return the archive of a piece and its hash; download it if the folder does not have it.

    Raises MissingData if no source has it, NoRoom.
    """
    if found := find_piece(piece, folder):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    complaints = []
    with FileLock(folder / f"{piece.sources[0].file}.lock"):
        if found := find_piece(piece, folder):  # another process has fetched it while we waited
            return found
        for source in piece.sources:
            try:
                return folder / source.file, fetch_source(source, folder)
            except NoRoom:
                raise
            except (*NETWORK, ValueError) as error:
                complaints.append(f"{source.address}: {error}")
    names = " or ".join(source.file for source in piece.sources)
    raise MissingData(
        f"{piece.name} is missing: run the same command again to go on, or put {names} into "
        f"{folder} ({'; '.join(complaints)})"
    )


# %% [markdown]
# The lock keeps two processes from writing the same `.part`. Whoever comes second waits, looks again, and finds the file. If it is in the cache from the start, no lock is taken, so a cache that may only be read does as well.
#
# If all fails, the error says which file to put where. `MissingData` is the class that chapter 13 has for this, and the notebooks and tests know how to deal with it.
#
# Now our unreliable server:

# %%
PAUSE = 0.01  # we need not spare ourselves
Unreliable.log.clear()
piece = mini.pieces["train"][0]
path, seen = fetch_piece(piece, cache_folder() / mini.folder)
print("whole:", seen == piece.sources[0].hash, " left over:", list(path.parent.glob("*.part")))
for file, start in Unreliable.log:
    print(f"{file} from {start:.0%} on")
fetch_piece(piece, cache_folder() / mini.folder)
print("requests after one more call:", len(Unreliable.log))


# %% [markdown]
# The first answer broke off after half of the file, the second request asked for the other half. Altogether each byte was sent once. And the second call asked nobody: the file is in the cache and its hash is right.

# %% [markdown]
# ## Lines out of an archive
#
# Europarl's archive is 658 MB and holds several languages. The usual way is to unpack it in a folder and to open two of the files. That takes several gigabytes of disk, of which we need a part, once. It also leaves a new question behind: is the unpacked file whole, or was the unpacking killed? Its hash is not published. It is simpler not to unpack it at all. Python can read a `.tgz` as a stream: unpack a block, hand out lines, forget the block.
#
# A tar archive has no table of contents. The header of a member stands in front of it, so to find one, all those before it must be read. The mode `"r|*"` says that we will only go forward. A zip has a table of contents at its end, and `ZipFile` goes straight to the member. In the Giga corpus the member is a `.gz` by itself and goes through one more unpacker.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-tape", "caption": "How are two texts read side by side without unpacking? A tar archive is a tape: a header (dark) and a text, again and again. Two readers go over the same tape, each with an unpacker of its own. Each passes over all members before its own (hatched); then the two hand out lines by turns."}, "image": {"alt": "The same tape drawn twice. The upper reader has passed one member and stands in the German text; the lower one has passed two members and stands in the English text."}}
figure, axes = plt.subplots(2, 1, figsize=(7.5, 2.2), layout="constrained")
members = {
    "cs-en.cs": (0, 2.2),
    "de-en.de": (2.35, 3),
    "de-en.en": (5.5, 2.7),
    "fr-en.en": (8.35, 2.4),
}
for axis, wanted, color in zip(axes, ("de-en.de", "de-en.en"), (KEY, QUERY)):
    for member, (left, width) in members.items():
        edge, weight = (color, 2) if member == wanted else ("#AAAAAA", 0.8)
        hatch = "////" if left < members[wanted][0] else None
        box = plt.Rectangle((left + 0.15, 0), width, 1, fc="none", ec=edge, lw=weight, hatch=hatch)
        axis.add_patch(box)
        axis.add_patch(plt.Rectangle((left, 0), 0.15, 1, color=INK))
        label = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        middle = left + 0.15 + width / 2
        axis.text(middle, 0.5, member, ha="center", va="center", fontsize=8, bbox=label)
    at = members[wanted][0] + 0.5
    arrow = {"arrowstyle": "->", "color": color}
    axis.annotate("reads line 7", (at, 1), (at, 1.45), ha="center", color=color, arrowprops=arrow)
    axis.set(xlim=(-0.1, 11), ylim=(-0.05, 1.9))
    axis.axis("off")
plt.show()


# %% [markdown]
# The hatched parts are unpacked, looked at by nobody, and forgotten. That is the price: the reader of the second text has unpacked the first one as well. In the benchmark below, fetching the archives and counting all their lines took 13 seconds for 4.5 million pairs, so the price is small.
#
# Three kinds of archive and a plain file, each perhaps packed once more, make eight cases. One function opens them all, and what comes out can be read line by line whatever went in.


# %% tags=["export", "internal"]
def find_in_tar(tar: tarfile.TarFile, member: str) -> io.BufferedIOBase:
    """Return a file of an archive that is read from front to back; raises KeyError."""
    for found in tar:
        if found.name.removeprefix("./") == member and (file := tar.extractfile(found)):
            return cast("io.BufferedIOBase", file)
    raise KeyError(member)


@contextmanager
def open_member(archive: Path | None, member: str) -> Iterator[io.BufferedReader]:
    """Open a member of a .tgz, .tar or .zip, or a file, for reading; one in .gz is unpacked too."""
    with ExitStack() as stack:
        if archive is None:
            file: Any = stack.enter_context(Path(member).open("rb"))
        elif archive.suffix == ".zip":
            file = stack.enter_context(stack.enter_context(zipfile.ZipFile(archive)).open(member))
        else:
            tar = stack.enter_context(tarfile.open(archive, "r|*", bufsize=BLOCK))
            file = find_in_tar(tar, member)
        if member.endswith(".gz"):
            file = stack.enter_context(gzip.open(file))
        yield io.BufferedReader(file, BLOCK)


# %% [markdown]
# `ExitStack` collects what has to be closed in the end, here up to three things, one inside of the other. `BufferedReader` is there for speed: without it, every line would go through several layers of Python. With it, a megabyte at a time does, and lines are cut in C.
#
# What if the archive is damaged? Then one of five libraries notices, each with an error of its own, and none says which archive it was reading. "CRC check failed 0x1a2b != 0x3c4d" is true and of no use to somebody who has started a command on six archives. They become one error that names the archive and says what to do with it.


# %% tags=["export"]
DAMAGES = (EOFError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def member_lines(archive: Path | None, member: str) -> Iterator[bytes]:
    """Yield the lines of a member, without unpacking it to disk.

    Raises ValueError if there is no such member, or if the archive is damaged.
    """
    place = archive or member
    try:
        with open_member(archive, member) as file:
            yield from file
    except KeyError:
        raise ValueError(
            f"{place} has no member {member}: it is another archive, or cut short, so remove it "
            "and run the same command again"
        ) from None
    except DAMAGES as error:
        raise ValueError(
            f"{place} cannot be unpacked ({error}): it is cut short or damaged, so remove it and "
            "run the same command again"
        ) from error


# %% [markdown]
# What is a line? The bytes up to `\n` and nothing else. Python's `splitlines` knows ten more line ends, such as `\x85` and `\u2028`. They occur in web pages, in the middle of a sentence and on one side only. A reader that takes them for line ends gets one more line in German than in English, and all pairs below belong to their neighbors. We stay with bytes as long as lines are concerned, so there is no question.

# %%
raw = "one\u2028still one\ntwo\x85still two\n".encode()
print(len(raw.decode().splitlines()), "lines for Python;", len(list(io.BytesIO(raw))), "for us")


# %% [markdown]
# The file has two line ends and so two lines, as `wc -l` would say. Exercise 3 shows what the other count does to the pairs.
#
# ### Two texts side by side
#
# The two languages are two members of one archive, one behind the other. To read them in pairs we open the archive twice. Each reader unpacks the whole stream up to its member, so unpacking is paid for twice. The other way would be to keep one language in memory.
#
# A `Stock` is a piece that is at hand, with what we know about its files.


# %% tags=["export"]
class Stock(NamedTuple):
    """A piece that is at hand: its archive, if it has one, the hashes of its files, its pairs."""

    piece: Piece
    archive: Path | None
    hashes: dict[str, str]
    pairs: int = 0

    def lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the first `pairs` pairs of lines, as they are."""
        sides = [member_lines(self.archive, member) for member in self.piece.members]
        return islice(zip(*sides), self.pairs)


# %% [markdown]
# `lines` is a generator: nothing is opened before somebody asks for the first pair, and it can be asked for again from the start. Each stage of the preparation reads the text anew, and none keeps it. `islice` ends the lines after `pairs`, so a limit needs no code anywhere else.
#
# A stock is made by fetching its archive, or for local files by looking whether they are there:


# %% tags=["export"]
def stock_up(piece: Piece, folder: Path) -> Stock:
    """Return a piece with its archive, or its two files; raises MissingData, FileNotFoundError."""
    if piece.sources:
        archive, seen = fetch_piece(piece, folder)
        return Stock(piece, archive, {archive.name: seen})
    paths = [Path(member) for member in piece.members]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not a file: check its name and folder")
    return Stock(piece, None, {path.name: file_hash(path) for path in paths})


# %% [markdown]
# ### Why count first?
#
# `zip` stops at the shorter of two texts and says nothing. If one line is missing in the middle of the English side, all pairs after it are wrong, and the last German line falls off the end. Training on that goes well, in a way: half of the pairs are right, the loss falls, and the model is bad for no visible reason. So the lines are counted before anything else, on both sides. That takes one pass, and three things are gained. Unequal sides are an error in the first minute and not after an hour. The whole archive has been unpacked once, so damage is found as early. And the number of pairs is known, without which there is no "evenly" in the vocabulary and no estimate of the time left.


# %% tags=["export"]
def count_pairs(stock: Stock) -> int:
    """Return how many pairs a piece has; raises ValueError if one side has more lines."""
    source, target = stock.piece.members
    counts = [sum(1 for _ in member_lines(stock.archive, member)) for member in (source, target)]
    check_counts(stock.piece, *counts)
    return counts[0]


def check_counts(piece: Piece, sources: int, targets: int) -> None:
    """Raise ValueError if two texts cannot be translations of each other, line by line."""
    if sources != targets or not sources:
        raise ValueError(
            f"{piece.members[0]} has {sources:,} lines and {piece.members[1]} has {targets:,}: "
            "line i of one must translate line i of the other, so get another copy of both"
        )


# %%
with tarfile.open(folder / "wrong.tgz", "w:gz") as tar:
    for member, content in (("a.en", b"one\ntwo\n"), ("a.de", b"eins\nzwei\ndrei\n")):
        entry = tarfile.TarInfo(member)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))

wrong = Stock(Piece("wrong", ("a.en", "a.de")), folder / "wrong.tgz", {})
broken = folder / "broken.tgz"
broken.write_bytes((folder / "wrong.tgz").read_bytes()[:100])
for stock in (wrong, wrong._replace(archive=broken), wrong._replace(piece=Piece("x", ("b", "c")))):
    try:
        count_pairs(stock)
    except ValueError as error:
        print(str(error).replace(f"{folder}{os.sep}", "").split(" (")[0])


# %% [markdown]
# The first archive has three lines against two. The second was cut off, and the third does not have the members. Each sentence says which file, what is wrong, and what to do.
#
# Equal counts do not prove that the pairs are right. A line too many at the top and one too few at the bottom make equal counts. [Chapter 13](13_data.ipynb) has a way to find that out from the lengths; for a corpus with a published hash, the hash has settled it.
#
# In a shell the same check is `wc -l`, on texts that have been unpacked. There is one difference: `wc` counts line ends, and a last line without one is missing from its count.
#
# ### Counting once
#
# The counts are kept in the folder that is being prepared, so that the second start does not count again. JSON is written as [training](18_training.ipynb) writes everything: aside, then renamed. What comes on top is the sentence about a full disk.


# %% tags=["export"]
def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all; raises NoRoom."""
    with room_for(path):
        write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


# %% [markdown]
# ### What if a file changes in between?
#
# The hashes of the files are kept beside the counts. Suppose a preparation is stopped, somebody mends a typo in the text, and it goes on. Half of the shards would come from one text and half from another. With hashes it is an error.


# %% tags=["export"]
SURVEY = "pieces.json"


def count_once(stock: Stock, output: Path) -> Stock:
    """Return a piece with its number of pairs, counted or as it was counted before.

    Raises ValueError if a file has changed since, or as count_pairs does.
    """
    path = output / SURVEY
    known = json.loads(path.read_text()) if path.exists() else {}
    before = known.setdefault(stock.piece.name, {"files": {}})
    for name, seen in stock.hashes.items():
        if before["files"].setdefault(name, seen) != seen:
            raise ValueError(f"{name} has changed since {output} was begun: take another folder")
    if "pairs" not in before:
        before["pairs"] = count_pairs(stock)
        write_json(path, known)
    return stock._replace(pairs=before["pairs"])


# %% [markdown]
# All pieces are counted like this. With a limit, pieces that are not needed are not even fetched.


# %% tags=["export"]
def survey(corpus: Corpus, output: Path, limit: int | None) -> list[Stock]:
    """Fetch and count the pieces to learn from; with a limit, only as many as it needs."""
    stocks: list[Stock] = []
    left = math.inf if limit is None else limit
    for piece in corpus.pieces["train"]:
        if left > 0:
            stock = count_once(stock_up(piece, cache_folder() / corpus.folder), output)
            stocks.append(stock._replace(pairs=int(min(stock.pairs, left))))
            left -= stocks[-1].pairs
    return stocks


# %% [markdown]
# `left` counts down what the limit still allows, and infinity stands for none. With a limit the first pieces are taken, not a sample of all: the point of a limit is to try things out without a download of 1.6 GB. So a model trained with one has seen nothing but newspapers, and no score of it means anything.
#
# We count our miniature, whose archives all arrive in two halves.

# %%
stocks = survey(mini, folder, limit=None)
for stock in stocks:
    print(f"{stock.piece.name:20} {stock.pairs:6,} pairs")
print("with a limit of 250:", [stock.pairs for stock in survey(mini, folder, limit=250)])


# %% [markdown]
# ## Cleaning
#
# A corpus from the web contains everything: menus, prices, sentences in a third language, half a page in one line, and beside it a translation that says "click here". Should one clean at all? A Transformer survives much. But it learns what it is shown. Pairs in which the target is a copy of the source teach it to copy, and pairs that do not belong together teach it to make things up. And a single line of 20,000 pieces is a batch of its own that fills the memory of a GPU.
#
# [Chapter 13](13_data.ipynb) had rules for small ones, among them "repeated", for which it remembers every pair it has seen. With 36 million pairs this alone takes some gigabytes. The paper mentions no such rule, and so we leave it out. What remains are rules that look at one pair at a time:
#
# | rule | dropped if | why |
# |---|---|---|
# | not UTF-8 | a side has bytes that are no text | there is nothing right to replace them by |
# | empty | a side has no text | a sentence that translates nothing |
# | too long | a side has more than 250 pieces | often tables and lists; one alone fills a row of a batch |
# | lengths apart | one side has more than 1.5 times the pieces of the other | often two sentences that do not belong together |
#
# The numbers 250 and 1.5 are those that toolkits commonly use for WMT14. The paper gives none.
#
# All of them are crude, and that is on purpose. A rule that reads as "more than 1.5 times the pieces" can be repeated by anybody, in any program. A rule such as "looks like German to this classifier" needs the classifier, in the version of that day.
#
# ### What is tidied, and what is not
#
# The same sentence can be written with one space or two, with a tab, with a space that does not break. To a tokenizer each of them is another text, and a model would have to learn that they mean the same. So white space of any kind, and control characters, become one space each run. Nothing that a translator would type is lost. A carriage return at the end of a line is gone with them, and so is a byte order mark.
#
# Capital letters, quotation marks and umlauts stay. To change those is to change the text that BLEU will be measured on.


# %% tags=["export"]
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


def tidy(line: bytes) -> str | None:
    """Return a line as text, each run of white space and control characters as one space.

    None if the line is not UTF-8.
    """
    try:
        return " ".join(CONTROL.sub(" ", line.decode()).split())
    except UnicodeDecodeError:
        return None


# %%
for raw in (
    b"A tab\there,\r\n",
    "a\u00a0space\u2028and \x07 a bell".encode(),
    b"half a letter: \xc3",
    b" \n",
):
    print(tidy(raw))


# %% [markdown]
# The third line ends in the middle of a letter, and `None` says so. The last one is empty text, which is something else, and is counted under another rule.
#
# HTML entities such as `&amp;` stay in the training text as they are. A line of plain text does not say whether it means them. Copies of WMT that have passed through other people's scripts are often full of them, and cut into words besides. Those are another data set.
#
# Why is a broken line dropped, and not mended with a replacement character? Because the model would learn that this character is a good translation of something. A handful of lines in a million are no loss.
#
# ### Held out
#
# Sentences to measure with come in archives of their own. A reader's corpus may have none. Then some sentences are kept from training, by the [hash rule](13_data.ipynb): the sentence itself decides whether it belongs to training, validation or test, so the same sentence never stands on two sides. And it decides in the same way each time. That is what we need here, since two passes over the text must agree without a list in memory.


# %% tags=["export"]
class HeldOut(NamedTuple):
    """Shares of the source sentences that are kept from training."""

    validation: float = 0.0
    test: float = 0.0

    def split_of(self, source: str) -> str | None:
        """Return where a sentence belongs if it is not for training; the sentence decides."""
        if not any(self) or (at := hash_share(source, seed=0)) >= sum(self):
            return None
        return "test" if at < self.test else "validation"


# %% [markdown]
# `hash_share` turns a sentence into a number from 0 to 1, always the same one. With a share of 0.01 for each split, sentences below 0.01 are for the test, those from there to 0.02 for validation, and the rest is for training. If the corpus has its own sets, both shares are zero, and nobody computes a hash at all.
#
# These rules need the text alone. They come first, since what they drop need not be encoded, and encoding is most of the work. Their order matters for the counts only: a line that is no text cannot be empty, and a pair without text is not held out.


# %% tags=["export"]
MAX_PIECES, RATIO, SLACK = 250, 1.5, 3
RULES = ("not UTF-8", "empty", "held out", "too long", "lengths apart")


def fault_of_texts(source: str | None, target: str | None, held_out: HeldOut) -> str | None:
    """Return the first of the rules, if any, by which a pair of texts is dropped."""
    if source is None or target is None:
        return "not UTF-8"
    if not source or not target:
        return "empty"
    return "held out" if held_out.split_of(source) else None


# %% tags=["export"]
def tidy_pairs(
    lines: Iterable[tuple[bytes, bytes]], held_out: HeldOut, counts: Counter[str]
) -> Iterator[Pair]:
    """Yield the pairs of texts that are worth encoding, and count the others by rule."""
    for source, target in ((tidy(one), tidy(other)) for one, other in lines):
        if fault := fault_of_texts(source, target, held_out):
            counts[fault] += 1
        else:
            yield Pair(cast("str", source), cast("str", target))


# %% [markdown]
# `counts` is handed in and filled, because a generator has nothing to return before its end. A pair is counted under the first rule that it breaks. So the counts add up to the number of pairs that are missing, and nobody has to wonder whether a line was both empty and too long.

# %% [markdown]
# ### Lengths in pieces
#
# Should length be counted in letters, words or pieces? In letters one would not need the tokenizer, and could drop the pair at once. But how long a sentence is, the model sees in pieces. A name of 12 letters may be one piece or seven, and a line of rubbish has few letters for many pieces. So the two rules about length wait until both sides are encoded. The [tokenizer](14_tokenization.ipynb) we have encodes one text at a time. Its library can encode a list, on all cores, in Rust, without a second Python process. The result is the same.


# %% tags=["export"]
def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return what `tokenizer.encode` would, for many texts at once, on all cores."""
    found = tokenizer.library.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]


# %% [markdown]
# `add_special_tokens=False` leaves the reserved tokens to us, as everywhere in this book. Where they go is decided a little further down.
#
# ### Where does the time go?
#
# We take all pairs of the grammar and measure the processor's time for the rules about texts, for the library, and for all of it.

# %% tags=["nbval-ignore-output"]
small = Tokenizer.train(pairs, vocabulary_size=400)
lines = [(pair.source.encode() + b"\n", pair.target.encode() + b"\n") for pair in pairs * 4]
began = time.process_time()
texts = list(tidy_pairs(lines, HeldOut(), Counter()))
tidied = time.process_time()
encode_texts(small, [text for pair in texts for text in pair[:2]])
encoded = time.process_time()
share = (encoded - tidied) / (encoded - began)
print(
    f"{share:.0%} in the library; 8 cores make it {1 / (1 - share + share / 8):.1f} times as fast"
)
assert share > 0.5


# %% [markdown]
# Only the library uses all cores. What Python does, it does on one, so the gain has an end, whatever the number of cores. If 15 % of the work is Python's, eight cores make it at most $1 / (0.15 + 0.85 / 8) = 3.9$ times as fast. We could run several Python processes to get more. It is not worth the trouble: this is done once for each corpus.
#
# The library returns an object for each text, of which we keep the ids. `encode_batch_fast` leaves out where in the text each piece stands, which we do not need.
#
# ### When are two lengths too far apart?
#
# Now the ratio. For long sentences it is a good rule: 20 pieces beside 40 are seldom a translation. For short ones it is a bad one. *I* is one piece and *Ich bin's* may be three; *Hi.* has two pieces and *Guten Tag.* four. Between small numbers large ratios are nothing special. So a difference of up to 3 pieces is never a fault, whatever the ratio.


# %% tags=["export"]
def faults_of_lengths(lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Return, by rule, which pairs are dropped for their lengths (pairs, 2) in pieces."""
    shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
    too_long = longer > MAX_PIECES
    apart = (longer > RATIO * shorter) & (longer > shorter + SLACK)
    return {"too long": too_long, "lengths apart": apart & ~too_long}


# %%
lengths = np.array([(1, 3), (2, 5), (1, 5), (20, 30), (20, 31), (251, 250)])
for rule, faults in faults_of_lengths(lengths).items():
    print(f"{rule:14}", [tuple(map(int, pair)) for pair in lengths[faults]])


# %% [markdown]
# At 6 pieces and above the slack has no effect: $1.5 \cdot 6 = 6 + 3$. So it saves short sentences and nothing else. What does the rule do to a whole corpus? We ask all pairs of the grammar.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-dropped", "caption": "Which pairs are dropped for their lengths? The 1,500 pairs of the grammar, one point each, by the pieces of both sides (moved a little, so that they do not hide each other). Solid lines: the ratio of 1.5. Dashed: a difference of 3. A pair is dropped (cross) if it lies outside of both."}, "image": {"alt": "Most points lie in a wedge round the diagonal. Of 124 crosses nearly all lie just above it, where the German side is the longer one."}}
style()
sides = [encode_texts(small, [pair[side] for pair in pairs]) for side in (0, 1)]
lengths = np.array([[len(ids) for ids in side] for side in sides]).T
apart = faults_of_lengths(lengths)["lengths apart"]
moved = lengths + np.random.default_rng(0).uniform(-0.3, 0.3, lengths.shape)
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
axis.plot(*moved[~apart].T, "o", color=VALUE, ms=3, mfc="none", mew=0.6)
axis.plot(*moved[apart].T, "x", color=KEY, ms=4)
ends = np.array([0, lengths.max() + 2])
for x, y in ((ends, 1.5 * ends), (1.5 * ends, ends)):
    axis.plot(x, y, color=INK, lw=1)
for shift in (3, -3):
    axis.plot(
        [0, 6] if shift > 0 else [3, 9], [3, 9] if shift > 0 else [0, 6], "--", color=INK, lw=1
    )
share = f"{apart.sum()} of {len(apart):,}\nare dropped"
axis.text(0.04, 0.96, share, transform=axis.transAxes, color=KEY, va="top")
axis.set(xlabel="pieces of the source", ylabel="pieces of the target")
axis.set(xlim=(0, lengths[:, 0].max() + 2), ylim=(0, lengths[:, 1].max() + 2))
plt.show()


# %% [markdown]
# All of these pairs are right: a grammar made them. And the rule drops one in twelve. Nearly all of them lie above the wedge, where the German side has too many pieces. A vocabulary of 400 cuts long German words into many, so the whole cloud lies above the diagonal, and its upper edge is cut off. A rule about the middle of the cloud would be fairer. It would have to be measured for each language and each vocabulary, and nobody else could repeat it without our numbers.
#
# So the rule is a trade: some right pairs are lost, and with them most pairs of two sentences that have nothing to do with each other. In 4.5 million pairs one can afford the first. In a corpus of 20,000 pairs, look at what goes before it goes.
#
# ### From pairs to a row of numbers
#
# An example is two lists: the source with `</s>` at its end, the target from `<s>` to `</s>`. On disk they stand one after the other in one long row, with the lengths beside it. Numbers for the special tokens are those of [masks](04_masks.ipynb): `<s>` is 1 and `</s>` is 2.
#
# Could the reserved tokens be left out, and added when an example is read? They are 3 of about 60 tokens, so 5 percent of the disk would be saved. In return each reader would have to know the rule, and a shard could not say whether it was made with it. We store what training sees.
#
# The counts of a chunk come from two places: rules about texts have counted before, rules about lengths count here.


# %% tags=["export"]
class Chunk(NamedTuple):
    """Pairs in numbers: all their tokens in a row, and the lengths (pairs, 2) that cut the row."""

    tokens: np.ndarray
    lengths: np.ndarray


def encode_chunk(pairs: Sequence[Pair], tokenizer: Tokenizer, counts: Counter[str]) -> Chunk:
    """Return the pairs of good lengths as examples in a row, and count the others by rule."""
    ids = encode_texts(tokenizer, [text for pair in pairs for text in pair[:2]])
    lengths = np.fromiter(map(len, ids), np.uint32, len(ids)).reshape(-1, 2)
    keep = np.ones(len(lengths), bool)
    for rule, faults in faults_of_lengths(lengths).items():
        counts[rule] += int(faults.sum())
        keep &= ~faults
    sides = zip(ids[::2], ids[1::2], keep.tolist())
    rows = ((*source, EOS, BOS, *target, EOS) for source, target, good in sides if good)
    lengths = lengths[keep] + np.array([1, 2], np.uint32)  # EOS; BOS and EOS
    return Chunk(np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths)


# %% [markdown]
# Step by step: all texts are encoded at once, and their lengths counted. A table of two columns says how long both sides of each pair are. Each rule about lengths marks its pairs, and what is marked is not kept. The rest becomes one row of numbers, with its three special tokens a pair, and the lengths grow by one and by two for them.
#
# Both sides of all pairs go to the library in one list, since it shares out a long list better than two short ones. The lengths come back as a table with a row for each pair, and NumPy applies the rules to all of them at once. Only the last step goes through tokens one by one, and `chain` and `fromiter` do that without a list in between.

# %% [markdown]
# We try it with three pairs, of which the one in the middle is too uneven, and compare with chapter 15.

# %%
counts = Counter()
chunk = encode_chunk(
    [pairs[0], Pair("No.", "Das ist etwas ganz anderes."), pairs[1]], small, counts
)
examples = encode_pairs(small, pairs[:2])
print("dropped:", dict(counts), " lengths:", chunk.lengths.tolist())
print(
    "as chapter 15 makes them:",
    chunk.tokens.tolist() == [i for e in examples for s in e for i in s],
)


# %% [markdown]
# ## The vocabulary
#
# The paper has one vocabulary for both languages, of about 37,000 pieces for German. [Learning](14_tokenization.ipynb) it means counting words, and the counts of all different words must be in memory. New words never end: 4.5 million pairs of web pages have millions of different strings, names, prices, addresses. This is the one place where memory could grow with the corpus. So we look at a million pairs at most.
#
# Is a million enough? A million pairs have some 50 million words. A string that occurs once in a million words occurs 50 times among them. A piece must be among the 37,000 most useful ones to be taken, and those are far more frequent than that. What the rest of the corpus would add are words too rare for a piece of their own. They are cut into smaller pieces in any case.
#
# Which million? The first one would be newspapers and parliament, without any web page. A random choice would need chance, and a seed. Every fifth pair, say, is as good here, and pieces are represented by their size.


# %% tags=["export"]
SAMPLE = 1_000_000  # pairs that the vocabulary is learned from


def take_evenly(stocks: Sequence[Stock], at_most: int, held_out: HeldOut) -> Iterator[Pair]:
    """Yield pairs taken evenly from all pieces, at most so many."""
    total = sum(stock.pairs for stock in stocks)
    lines = chain.from_iterable(stock.lines() for stock in stocks)
    bar = tqdm(lines, "vocabulary", total, unit="pair", unit_scale=True, disable=None)
    yield from tidy_pairs(islice(bar, 0, None, -(-total // at_most)), held_out, Counter())


# %% [markdown]
# The step is rounded up, so there are never more pairs than asked for. With 4.5 million pairs and a million wanted, it is 5, and 900,000 pairs are taken. The texts go to the trainer as they are read. It counts words while we read, and no list of a million pairs is ever made.

# %%
taken = list(take_evenly(stocks, 100, HeldOut()))
print(len(taken), "pairs, every 15th:", taken == pairs[::15])


# %% [markdown]
# Of our 1,500 pairs a hundred are taken, from all three pieces alike.
#
# Nothing is shuffled, since counting words does not depend on the order. The rules about lengths cannot be applied, as there are no pieces yet. And the sentences that are held out are left out here, too: a vocabulary that knows the words of the test set is a small leak, but it is one.


# %% tags=["export"]
def make_tokenizer(
    path: Path, given: Tokenizer | None, pairs: Iterable[Pair], vocabulary_size: int | None
) -> Tokenizer:
    """Return the tokenizer of a file; if there is none yet, put the given one there, or learn."""
    if not path.exists():
        tokenizer = given or Tokenizer.train(pairs, vocabulary_size or 0)
        with room_for(path):
            write_text(path, tokenizer.to_json())
    return Tokenizer.load(path)


# %% [markdown]
# ### Why is a vocabulary never learned twice?
#
# The file stands before the first shard is begun, and from then on the folder has its vocabulary. If the process is killed and starts again, the file is read and not made anew. Were it learned again, with one tie broken in another way, old shards and new ones would speak two languages.
#
# One can also give a file. That is the way to repeat another's experiment: two trainers, or two versions of one, may break ties in another way and learn slightly different pieces. Whoever publishes a model should publish its tokenizer, and ours is part of the model.
#
# For French the paper has 32,000 pieces of another kind, word pieces. We take as many with the same method.
#
# ## EncodedCorpus
#
# One file for all tokens, some 270 million, would do for reading. It would not do for writing: a process that is killed at 90 percent leaves a file that is 90 percent of something. One could note how far it has come and append from there. Then a file that is being changed, and a number about it, must agree at each moment at which the power may fail. That can be done, and databases do it. We take the easier way: a file is never changed once it stands. So the pairs are cut into shards of half a million, which take a minute or two to make. What is lost by a kill is the shard in progress.
#
# Why half a million? At 5,924 pairs a second, the rate of the benchmark below, that is 84 seconds of work that a kill can cost. With 10,000 pairs it would be less than two seconds, and 452 shards of three files each. With five million, each piece of German would be one shard, and Common Crawl seven minutes of work. Between the two there is much room, and nobody will notice the difference.
#
# What a shard contains must not depend on the others. So each covers a fixed range of pairs *before* cleaning: pairs 500,000 to 999,999 of Europarl, whatever is dropped among them. Then any shard can be made alone, and comes out the same.


# %% tags=["export"]
SHARD, CHUNK = 500_000, 10_000  # pairs


class Shard(NamedTuple):
    """Which pairs of a piece go into which files."""

    name: str
    piece: str = ""
    start: int = 0
    stop: int = 0

    @property
    def files(self) -> tuple[str, str]:
        """Names of the files for tokens and lengths."""
        return f"{self.name}.tokens.npy", f"{self.name}.lengths.npy"


# %% [markdown]
# EncodedCorpus are numbered through, and none has pairs of two pieces. So a piece ends with a shard that is shorter than the others. For that, the manifest can count by piece: each shard belongs to one.


# %% tags=["export"]
def cut_shards(stocks: Sequence[Stock]) -> list[Shard]:
    """Return the shards of some pieces, in order; none has pairs of two pieces."""
    ranges = [
        (stock.piece.name, start, min(start + SHARD, stock.pairs))
        for stock in stocks
        for start in range(0, stock.pairs, SHARD)
    ]
    return [Shard(f"train-{number:04}", *found) for number, found in enumerate(ranges)]


# %%
for shard in cut_shards(
    [stock._replace(pairs=pairs) for stock, pairs in zip(stocks, (200_000, 1_200_000))]
):
    print(*shard)


# %% [markdown]
# The first piece has 200,000 pairs and one short shard. The second begins a new one, and its third holds what is left.
#
# ### What stands in the files?
#
# A shard has two files in NumPy's own format, `.npy`, which is a header of 128 bytes and then the numbers. It can be mapped, and it can hold no code, as long as `allow_pickle=False`, the default for reading. The header says what kind of numbers follow and how many. So the file explains itself to whoever opens it in ten years, and a plain row of bytes would not.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-shard", "caption": "What stands in a shard? Two short examples. Above, the file of tokens: the ids of a source (blue, S) up to the end token 2, then those of its target (orange, T) from the start token 1 to the end token, and at once the next source. Below it, the byte of the file at which each side begins, after a header of 128 bytes. At the bottom, the file of lengths, two numbers for each pair: their sums tell where the tokens of a pair begin."}, "image": {"alt": "A row of boxes with token ids, colored by source and target, without gaps. Below it a table of two rows with the lengths of both sides, which cut the row into four parts."}}
style()
shown = encode_pairs(small, [Pair("A dog.", "Ein Hund."), Pair("I see him.", "Ich sehe ihn.")])
drawn = []
assert [len(side) for example in shown for side in example] == [5, 7, 9, 11]
for example in shown:
    drawn += [(i, QUERY, "S") for i in example.source] + [(i, KEY, "T") for i in example.target]
figure, axis = plt.subplots(figsize=(8, 2.4), layout="constrained")
for at, (index, color, side) in enumerate(drawn):
    axis.add_patch(plt.Rectangle((at, 1.6), 1, 0.8, facecolor="white", edgecolor=color, lw=1.5))
    axis.text(at + 0.5, 2.0, str(index), ha="center", va="center", fontsize=7, color=INK)
    axis.text(at + 0.5, 2.55, side, ha="center", fontsize=7, color=color)
start = 0
for example in shown:
    for side, color in ((example.source, QUERY), (example.target, KEY)):
        middle = start + len(side) / 2
        axis.text(start, 1.42, str(128 + 2 * start), ha="left", va="center", fontsize=8)
        axis.plot([start + 0.1, start + len(side) - 0.1], [1.2, 1.2], color=color, lw=1.5)
        axis.add_patch(
            plt.Rectangle((middle - 0.6, 0.2), 1.2, 0.7, facecolor="white", edgecolor=color)
        )
        axis.text(middle, 0.55, str(len(side)), ha="center", va="center", fontsize=8, color=INK)
        start += len(side)
axis.text(-0.3, 2.0, "tokens", ha="right", va="center", fontsize=9)
axis.text(-0.3, 1.42, "at byte", ha="right", va="center", fontsize=9)
axis.text(-0.3, 0.55, "lengths", ha="right", va="center", fontsize=9)
axis.set(xlim=(-3.2, len(drawn) + 0.2), ylim=(0, 3))
axis.axis("off")
plt.show()


# %% [markdown]
# A token takes two bytes where the vocabulary has up to 65,536 entries, and four above that. A length takes two bytes always, since nothing is longer than 250 pieces.
#
# With these two files an example can be found by hand. Take the second one of {numref}`fig-shard`. Before it stands one pair, of 5 and 7 tokens, so its tokens begin at number 12. The header has 128 bytes and a token two, so that is byte $128 + 2 \cdot 12 = 152$ of the file. Its source has 9 tokens and ends before number 21, its target has 11 and ends before number 32.
#
# Why are lengths stored, and not the places where sentences begin? Places grow to 270 million and would need four bytes each. Lengths need two, batches are planned from them, and the places are their sums. A table of both could contradict itself.
#
# ### A shard that stands
#
# How do we know, after a kill, which shards are whole? Each file is written aside and renamed, so there are no halves of files. But that a file is there says little. It may be from another run, with another tokenizer. Tokens without lengths are half a shard, and a disk can lose a block. So there is a third file for each shard, a note in JSON, and it is written last. It names the range, the tokenizer, the counts of all rules, and the size and the hash of both arrays.


# %% tags=["export"]
def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and the hash of a file."""
    return {"bytes": path.stat().st_size, "hash": file_hash(path)}


def find_damage(path: Path, known: Mapping[str, Any], check_hash: bool = True) -> str | None:
    """Return what is wrong with a file that was described before, if anything is."""
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != known["bytes"]:
        return f"has {path.stat().st_size:,} bytes, not {known['bytes']:,}"
    return "was altered" if check_hash and file_hash(path) != known["hash"] else None


# %% [markdown]
# Why does the note have hashes, if the arrays are written before it? Because a note can outlive its arrays: a disk loses a block, somebody cleans up, a copy breaks off. With hashes it is not a memory of what was done but a statement that can be checked.
#
# `find_damage` looks at the cheap things first: is it there, is it as long as it was? A file that was cut short need not be hashed. It returns a phrase and raises nothing, because what to do about it is another matter in each place that asks.
#
# Three things are the same for all shards of a folder, and travel together.


# %% tags=["export"]
class Job(NamedTuple):
    """What the shards of a folder have in common."""

    output: Path
    tokenizer: Tokenizer
    held_out: HeldOut


def read_note(shard: Shard, job: Job) -> dict[str, Any] | None:
    """Return what was noted about a shard, if it was written and still stands whole."""
    path = job.output / f"{shard.name}.json"
    note = json.loads(path.read_text()) if path.exists() else {}
    if note.get("shard") != list(shard) or note["tokenizer"] != job.tokenizer.sha256:
        return None
    faults = [find_damage(job.output / name, known) for name, known in note["files"].items()]
    return None if any(faults) else cast("dict[str, Any]", note)


# %% [markdown]
# `read_note` believes a note only if all of it is true: the same range, the same tokenizer, both files there and unaltered. Otherwise the shard is made again. This one function is all there is to going on after a stop. There is no list of what was done that could disagree with what is there.


# %% tags=["export"]
def save_array(path: Path, array: np.ndarray) -> None:
    """Write numbers as .npy, whole or not at all; raises NoRoom."""
    with room_for(path), atomic_write(path) as aside, aside.open("wb") as file:
        np.save(file, array, allow_pickle=False)


# %% tags=["export"]
def write_shard(shard: Shard, job: Job, chunks: Sequence[Chunk], counts: Counter[str]) -> None:
    """Write the two arrays of a shard, then the note that says it is whole."""
    ids = np.uint16 if len(job.tokenizer) <= 1 << 16 else np.uint32
    for name, arrays, dtype in zip(shard.files, zip(*chunks), (ids, np.uint16)):
        save_array(job.output / name, np.concatenate(arrays, dtype=dtype, casting="same_kind"))
    note = {
        "shard": list(shard),
        "tokenizer": job.tokenizer.sha256,
        "counts": counts,
        "files": {name: describe_file(job.output / name) for name in shard.files},
    }
    write_json(job.output / f"{shard.name}.json", note)


# %% [markdown]
# `casting="same_kind"` lets NumPy store a large kind of number in a small one. That is safe, as all ids are below the number of entries for which the kind was chosen.
#
# ### What is in memory while a shard is made?
#
# Now the work itself. A shard is made from its lines, 10,000 at a time. The chunks of one shard are kept until its end. With 60 tokens a pair and four bytes each, that is 120 MB, and it is all that grows. The texts themselves are gone after each chunk: 10,000 pairs of lines, the pieces that the library made of them, and the lists of ids, some tens of megabytes together. A chunk could be larger. Then the library would have more to share out among its cores, and memory would hold more objects of Python, each of which weighs what we have seen at the beginning.


# %% tags=["export"]
def make_shard(
    shard: Shard, job: Job, lines: Iterator[tuple[bytes, bytes]], bar: "tqdm[Any]"
) -> None:
    """Clean and encode the lines of a shard, a chunk at a time, and write it."""
    counts = Counter(dict.fromkeys(("pairs", "kept", *RULES), 0))
    chunks = []
    while some := list(islice(lines, CHUNK)):
        pairs = list(tidy_pairs(some, job.held_out, counts))
        chunks.append(encode_chunk(pairs, job.tokenizer, counts))
        counts["pairs"] += len(some)
        counts["kept"] += len(chunks[-1].lengths)
        bar.update(len(some))
    write_shard(shard, job, chunks, counts)


# %% [markdown]
# Behind this function, pairs are numbers. Before it, they are bytes. `islice` takes the next 10,000 lines of the stream and no more, and an empty list says that the range is at its end. The bar is moved by what was read and not by what was kept, since only the former is known beforehand.


# %% tags=["export"]
def make_shards(stocks: Sequence[Stock], job: Job) -> list[dict[str, Any]]:
    """Make all shards that do not stand yet, and return the notes of all."""
    shards, total = cut_shards(stocks), sum(stock.pairs for stock in stocks)
    with tqdm(total=total, desc="shards", unit="pair", unit_scale=True, disable=None) as bar:
        for stock in stocks:
            lines, at = stock.lines(), 0
            for shard in [shard for shard in shards if shard.piece == stock.piece.name]:
                if read_note(shard, job):
                    bar.update(shard.stop - shard.start)
                else:  # pass over the lines of those that stand, then take its own
                    make_shard(shard, job, islice(lines, shard.start - at, shard.stop - at), bar)
                    at = shard.stop
    return [cast("dict[str, Any]", read_note(shard, job)) for shard in shards]


# %% [markdown]
# ### How does it go on in the middle of an archive?
#
# For each piece there is one stream of lines, and it is only read where a shard is missing. The lines of shards that stand are passed over, unpacked but not encoded. If all of them stand, the archive is not opened at all, since `lines` is a generator and nobody asks it for anything.
#
# An example: Europarl has four shards, and the third is missing. `at` is 0, and the shard wants pairs 1,000,000 to 1,499,999. So a million lines are unpacked and dropped, which takes seconds, and half a million are encoded. Then `at` is 1,500,000. The fourth shard stands, and the stream is left there.
#
# ### When may it be killed?
#
# At any moment. What is lost differs, and it is worth going through once:
#
# | killed | what stands | what the next start does |
# |---|---|---|
# | in a download | a `.part` | asks for the rest |
# | while counting | the counts of the pieces before | counts this piece again |
# | while learning the vocabulary | archives and counts | learns it again |
# | in the middle of a shard | the shards before it | makes this one again |
# | between the two arrays of a shard | one array, no note | makes this one again |
# | before its note | two arrays, no note | makes this one again |
# | in the middle of a file | a `.part` | sweeps it away |
# | before the manifest | all shards | reads the notes, writes the manifest |
#
# In no row does anybody have to clean up by hand, and in no row is anything in the folder half true.

# %% [markdown]
# ## Sentences to measure with
#
# The model will be judged on a few thousand sentences, so these deserve more care than any of the millions. Nothing may be dropped from them, their order must stay, and their text must be what others measured on.
#
# In SGML a sentence stands between `<seg id="7">` and `</seg>`, and `&` is written as `&amp;`. The format looks like XML and often is none, so we look for the tags alone. Entities become characters again: here they belong to the format and not to the text. (sacreBLEU leaves them as they are. Where a reference has one, its text and ours differ by it, so a score to be compared with others should be computed on the references that sacreBLEU fetches by itself.)


# %% tags=["export"]
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


def segments(stock: Stock, member: str) -> list[str]:
    """Return the sentences of a text, or those between the <seg> and </seg> of an .sgm.

    Raises ValueError if they are not UTF-8.
    """
    try:
        text = b"".join(member_lines(stock.archive, member)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{member} is not UTF-8 ({error}): get another copy of it") from error
    if member.endswith(".sgm"):
        found = [html.unescape(sentence) for sentence in SEGMENT.findall(text)]
    else:
        found = text.removesuffix("\n").split("\n")
    return [tidy(sentence.encode()) or "" for sentence in found]


# %%
with tempfile.TemporaryDirectory() as name:
    path = Path(name, "two.sgm")
    path.write_text('<DOC><seg id="1"> Tom &amp; Anna </seg>\n<seg id="2">1 &lt; 2</seg></DOC>')
    print(segments(wrong._replace(archive=None), str(path)))


# %% [markdown]
# What would a proper XML parser do? It would stop at the first `&` that stands alone, which SGML allows. A search for the two tags does not mind. What it cannot notice is a sentence that is missing. The number of sentences can, and is compared between the two sides below.
#
# For a corpus without such sets, the pairs that the hash rule holds out are collected in a pass of their own. There are at most some thousand.


# %% tags=["export"]
def held_pairs(stocks: Sequence[Stock], held_out: HeldOut) -> dict[str, list[Pair]]:
    """Return the pairs that training does not see, by split."""
    found: dict[str, list[Pair]] = {"validation": [], "test": []}
    for stock in stocks if any(held_out) else ():
        for pair in tidy_pairs(stock.lines(), HeldOut(), Counter()):
            if split := held_out.split_of(pair.source):
                found[split].append(pair)
    return {split: pairs for split, pairs in found.items() if pairs}


# %% [markdown]
# The same `split_of` decides here what is held out and, in `tidy_pairs`, what is kept from training. There is no second rule that could differ from the first. That it costs another pass over the text is the price of not keeping a list.
#
# Both kinds end as tables of two columns, `validation.tsv` and so on, which [`read_pairs`](13_data.ipynb) can read. They are small, and text is what BLEU needs. Tables of text can also be opened and read by people, which is the best check of all. They are *not* cleaned by length: what is measured on must be the whole set, or no score can be compared.


# %% tags=["export"]
def read_evaluation(corpus: Corpus) -> tuple[dict[str, list[Pair]], list[Stock]]:
    """Return the pairs of the splits that are not for training, and what they come from."""
    found: dict[str, list[Pair]] = {}
    stocks = []
    for split in [split for split in SPLITS[1:] if split in corpus.pieces]:
        found[split] = []
        for piece in corpus.pieces[split]:
            stock = stock_up(piece, cache_folder() / corpus.folder)
            sources, targets = (segments(stock, member) for member in piece.members)
            check_counts(piece, len(sources), len(targets))
            found[split] += map(Pair, sources, targets)
            stocks.append(stock)
    return found, stocks


# %% [markdown]
# `SPLITS[1:]` are all but the training. What is missing from a corpus is passed over. Here, too, both sides must have as many sentences. The tables are written with what was tidied, so no sentence has a tab in it that could be taken for the border of a column.


# %% tags=["export"]
def write_tsv(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as a table of two columns, whole or not at all."""
    with room_for(path):
        write_text(path, "".join(f"{source}\t{target}\n" for source, target, _ in pairs))


# %% [markdown]
# ## Putting it together
#
# ### What was made of what
#
# In a month someone will ask what exactly this model was trained on. "WMT14" is no answer, as we have seen: there are four versions of one piece, two test sets, and a rule about lengths that each toolkit sets in another way. The answer is written down now, in a **manifest**: a list of all that a folder holds.
#
# | a question in a month | where the manifest has the answer |
# |---|---|
# | which archives, exactly? | `sources`: the hash of each file as it was seen |
# | how many pairs were dropped, and why? | `pieces`: a count for each rule and piece |
# | with which rules? | `settings`: limits, ratio, slack, sample |
# | does this tokenizer belong to it? | `tokenizer`: its hash |
# | has a file changed since? | `files`: size and hash of each |


# %% tags=["export"]
MANIFEST, SETTINGS = "manifest.json", "settings.json"


@dataclass(frozen=True)
class Manifest:
    """What a prepared folder holds."""

    corpus: str
    pairs: int
    """Pairs to learn from."""
    pieces: dict[str, dict[str, int]]
    """For each piece, how many pairs were read, kept, and dropped by which rule."""
    sources: dict[str, dict[str, str]]
    """For each piece, its files and their hashes, as they were."""
    tokenizer: str
    """SHA-256 of the tokenizer."""
    settings: dict[str, Any]
    shards: list[str]
    files: dict[str, dict[str, Any]]
    """Size and hash of each file."""


# %% tags=["export"]
def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a prepared folder; raises FileNotFoundError, ValueError."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not prepared: there is no {MANIFEST}; run prepare")
    try:
        return Manifest(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a manifest ({error}): run prepare again") from error


# %% [markdown]
# A manifest that cannot be read is an error with a remedy, too. It is never guessed around: a folder without one is not finished, and one with a broken one is not known to be.
#
# All of it is in the notes already. The manifest adds up their counts, piece by piece, and puts their files into one list with the tokenizer and the tables.


# %% tags=["export"]
def summary(
    corpus: Corpus,
    output: Path,
    stocks: Sequence[Stock],
    notes: Sequence[dict[str, Any]],
    splits: Mapping[str, Sequence[Pair]],
) -> Manifest:
    """Return the manifest of all that was written."""
    pieces: dict[str, Counter[str]] = {}
    for note in notes:
        pieces.setdefault(note["shard"][1], Counter()).update(note["counts"])
    names = [TOKENIZER, *(f"{split}.tsv" for split in splits)]
    return Manifest(
        corpus=corpus.name,
        pairs=sum(counts["kept"] for counts in pieces.values()),
        pieces={name: dict(counts) for name, counts in pieces.items()},
        sources={stock.piece.name: stock.hashes for stock in stocks},
        tokenizer=Tokenizer.load(output / TOKENIZER).sha256,
        settings=json.loads((output / SETTINGS).read_text()),
        shards=[note["shard"][0] for note in notes],
        files={
            **{name: describe_file(output / name) for name in names},
            **{name: known for note in notes for name, known in note["files"].items()},
        },
    )


# %% [markdown]
# It is written last of all. So a folder with a manifest is finished, and one without is not. It is the same idea as the note of a shard, one level up: make the parts, then say that they are whole. `sources` has the hash of each archive as it was seen, which is the only trace where none was published.
#
# ### One at a time, and always the same way
#
# Two processes in one folder would spoil each other's files, so there is a lock. It is the lock of [training](18_training.ipynb) with another sentence, since here it is a preparation that is at work.


# %% tags=["export"]
@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Keep a folder for one preparation; raises BlockingIOError if another is at work in it."""
    output.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(output / ".lock", timeout=0):
            for part in output.glob("*.part"):
                part.unlink()  # left by a process that was killed while it wrote
            yield
    except Timeout:
        raise BlockingIOError(
            f"another preparation is at work in {output}: wait for it, or take another folder"
        ) from None


# %% [markdown]
# ### Should the second one wait?
#
# This lock does not wait. Whoever starts the same command twice by mistake wants to know it, and not to find two processes in the morning of which one has waited all night. A lock goes when its process does, so a kill leaves no sign behind that somebody would have to remove by hand. The lock of the download did wait, and for a good reason: two preparations in *different* folders may need the same archive, and both should get it.
#
# ### What if I come back with other settings?
#
# What decides the content is written down before the work begins. Suppose a preparation with a vocabulary of 37,000 was stopped, and somebody goes on with 32,000. The vocabulary stands already and would be used, and the manifest would say 32,000. Nothing would break. It would only be wrong, for ever. So whoever comes back with another limit or another catalog is told so, and does not get a mixture of two.


# %% tags=["export"]
def keep_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write down how a folder is prepared; raises ValueError if it was begun in another way."""
    before = json.loads(path.read_text()) if path.exists() else settings
    for name in {**before, **settings}:
        if before.get(name) != settings.get(name):
            raise ValueError(
                f"{path.parent} was begun with {name}={before.get(name)}, not "
                f"{settings.get(name)}: repeat its settings to go on, or take another folder"
            )
    write_json(path, settings)


# %% tags=["export"]
def settings_for(
    corpus: Corpus, vocabulary_size: int | None, tokenizer: Tokenizer | None, limit: int | None
) -> dict[str, Any]:
    """Return all that decides what a folder will hold; raises ValueError for what cannot be."""
    if tokenizer is not None and vocabulary_size is not None:
        raise ValueError("give a tokenizer or a vocabulary_size, not both: the one has the other")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return {
        "corpus": corpus.name,
        "pieces": {
            split: {piece.name: [Path(member).name for member in piece.members] for piece in pieces}
            for split, pieces in corpus.pieces.items()
        },
        "tokenizer": tokenizer and tokenizer.sha256,
        "vocabulary_size": None if tokenizer else vocabulary_size or corpus.vocabulary_size,
        "limit": limit,
        "max_pieces": MAX_PIECES,
        "ratio": RATIO,
        "slack": SLACK,
        "shard": SHARD,
        "sample": SAMPLE,
    }


# %% [markdown]
# What belongs into this list? Everything that changes a byte of the result, and nothing else. The rules are in it with their numbers, so that a later version of this book with a ratio of 2 would refuse to go on in a folder of today. The size of a chunk is not: it changes how the work is done, and not what comes out. Addresses are not among the settings, either. The same pieces from the mirror are the same corpus.
#
# ### How many sentences should be held out?
#
# How many sentences are held out, where a corpus has no sets of its own? One percent of a small one, and of a large one no more than about 3,000 a split, the size of WMT's own sets. More would make a score only a little steadier, and validation slower. In numbers: 20,000 pairs give 200 sentences a split, 300,000 give 3,000, and 4.5 million give 3,000 as well. The hash decides about each sentence by itself, so it is about as many, and not exactly.


# %% tags=["export"]
HELD_OUT = 3_000  # sentences, if a corpus has none of its own to measure with


def hold_out(corpus: Corpus, pairs: int) -> HeldOut:
    """Return the shares to keep from training, for splits that a corpus does not have."""
    share = min(0.01, HELD_OUT / pairs)
    return HeldOut(*(0.0 if split in corpus.pieces else share for split in ("validation", "test")))


# %% [markdown]
# A folder that is finished need not be touched again. To be sure of it, all its files are compared with the manifest. If one is missing or was altered, the function says `None`, as for a folder without a manifest. Then all stages are gone through, and each finds out for itself whether it has something to do.


# %% tags=["export"]
def is_prepared(output: Path) -> Manifest | None:
    """Return the manifest of a folder if all its files stand as they were written."""
    if not (output / MANIFEST).exists():
        return None
    manifest = read_manifest(output)
    faults = [find_damage(output / name, known) for name, known in manifest.files.items()]
    return None if any(faults) else manifest


# %% [markdown]
# ### The stages
#
# Now the order of things. The small sets come first: if one of them is missing, we want to know before the long part. Then the pieces are fetched and counted. Then come vocabulary, shards, manifest. As a rule, what may fail stands before what takes long.
#
# No stage has a flag that says "done". Each looks at what stands: is the archive in the cache with the right hash, is the piece counted, is there a tokenizer, does the note of the shard hold? So there is no record of progress that could be wrong about the progress.


# %% tags=["export"]
def run_stages(
    corpus: Corpus,
    output: Path,
    settings: Mapping[str, Any],
    given: Tokenizer | None,
    report: Callable[[str], None],
) -> Manifest:
    """Go through the stages of `prepare`, each of which passes over what stands already."""
    splits, others = read_evaluation(corpus)
    stocks = survey(corpus, output, settings["limit"])
    total = sum(stock.pairs for stock in stocks)
    report(f"fetched and counted: {total:,} pairs in {len(stocks)} pieces")
    held_out = hold_out(corpus, total)
    splits |= held_pairs(stocks, held_out)
    for split, pairs in splits.items():
        write_tsv(output / f"{split}.tsv", pairs)
    texts, size = take_evenly(stocks, SAMPLE, held_out), settings["vocabulary_size"]
    tokenizer = make_tokenizer(output / TOKENIZER, given, texts, size)
    report(f"vocabulary: {len(tokenizer):,} entries")
    notes = make_shards(stocks, Job(output, tokenizer, held_out))
    manifest = summary(corpus, output, [*stocks, *others], notes, splits)
    write_json(output / MANIFEST, asdict(manifest))
    report(f"encoded: {manifest.pairs:,} of {total:,} pairs in {len(notes)} shards")
    return manifest


# %% [markdown]
# `take_evenly` is a generator. If the folder has its vocabulary, nobody asks it for a pair, and the text is not read. `report` is a function that is given one sentence a stage. A command prints it, and a test collects it.
#
# And the function for the user. It finds the corpus, checks what it was given, and keeps the folder to itself.


# %% tags=["export"]
def find_corpus(corpus: Corpus | str | Path) -> Corpus:
    """Return a corpus by its name in CATALOG, or from a catalog of one's own."""
    if isinstance(corpus, Corpus):
        return corpus
    if str(corpus) in CATALOG:
        return CATALOG[str(corpus)]
    if not Path(corpus).is_file():
        raise ValueError(
            f"there is no corpus {corpus}: take {' or '.join(CATALOG)}, or a .json file"
        )
    return load_catalog(corpus)


# %% tags=["export"]
def prepare(
    corpus: Corpus | str | Path,
    output: str | Path,
    vocabulary_size: int | None = None,
    tokenizer: str | Path | None = None,
    limit: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Manifest:
    """Turn a corpus into shards in a folder: fetch, learn a vocabulary, clean and encode, sum up.

    Run it again after it was stopped, and it goes on. `limit` takes only the first pairs. Raises
    MissingData, ValueError naming file and remedy, OSError (no room), BlockingIOError (two runs).
    """
    corpus, output = find_corpus(corpus), Path(output)
    given = None if tokenizer is None else Tokenizer.load(tokenizer)
    settings = settings_for(corpus, vocabulary_size, given, limit)
    with alone(output):
        keep_settings(output / SETTINGS, settings)
        if done := is_prepared(output):
            report(f"{output} is prepared: {done.pairs:,} pairs")
            return done
        return run_stages(corpus, output, settings, given, report)


# %% [markdown]
# There is no code for signals. The function may be stopped by SIGTERM, by Ctrl-C, by `kill -9` or by a power cut, and all have the same result: what was renamed stands, and what was not is gone or will be swept away.
#
# ### Running it
#
# Our miniature has 1,500 pairs. We add what the web would have added, some lines that are wrong: a target without a source, a line that says one word 300 times, two sentences of very different lengths. The archive is packed anew, so it has another hash, and the catalog must know it.

# %%
odd = [
    Pair("", "leer"),
    Pair("spam " * 300, "Werbung " * 300),
    Pair("No.", "Nein, das geht leider nicht so."),
]
PARTS["train"][2] = [*pairs[800:], *odd]
pack(CATALOG["wmt14-en-de"].pieces["train"][2], PARTS["train"][2])
train = (*mini.pieces["train"][:2], served(CATALOG["wmt14-en-de"].pieces["train"][2]))
mini = replace(mini, pieces={**mini.pieces, "train": train})

# %% [markdown]
# Now all of it, in one call. EncodedCorpus of 250 pairs give us several.

# %%
SHARD, CHUNK = 250, 100
manifest = prepare(mini, folder / "prepared", report=print)
for name, counted in manifest.pieces.items():
    print(f"{name:20}", {rule: count for rule, count in counted.items() if count})


# %% [markdown]
# The counts add up in each row, and the three odd lines are where they should be: one empty, one too long, and one more among the lengths. Everything else that is missing is a pair of the grammar that the vocabulary cuts unevenly. There are 119 of them, where {numref}`fig-dropped` had 124: this vocabulary was learned from the three odd lines as well, and is another one.
#
# And the files, those of one shard and all others:

# %%
names = sorted(path.name for path in (folder / "prepared").iterdir() if path.name[0] != ".")
print(*(name for name in names if not name.startswith("train-")))
print(*(name for name in names if name.startswith("train-0000")))

# %% [markdown]
# `settings.json` and `pieces.json` were written first, `manifest.json` last. The three tables can be opened in any editor. And this is what stands in the note of the first shard:

# %%
note = json.loads((folder / "prepared" / "train-0000.json").read_text())
print(note["shard"], {rule: count for rule, count in note["counts"].items() if count})
for name, known in note["files"].items():
    print(f"{name}: {known['bytes']:,} bytes, {known['hash'].partition(':')[0]}")

# %% [markdown]
# The sizes can be checked by hand. 188 pairs were kept, with two lengths of two bytes each, after a header of 128: $128 + 188 \cdot 4 = 880$. The other file has $(23{,}636 - 128) / 2 = 11{,}754$ tokens, which is 62.5 an example.
#
# ### Does a damaged folder mend itself?
#
# Now the drill. We delete one shard, as a disk may, cut another short, and call the function again. What it writes must be what was there, byte for byte, and the others must not be touched.

# %%
lost = folder / "prepared" / "train-0002.tokens.npy"
cut = folder / "prepared" / "train-0004.lengths.npy"
known = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in lost.parent.glob("*.npy")}
lost.unlink()
cut.write_bytes(cut.read_bytes()[:-2])

again = prepare(mini, folder / "prepared")
print("same manifest:", again == manifest)
print("same bytes:", all(path.read_bytes() == content for path, (_, content) in known.items()))
touched = sorted(path.name for path, (when, _) in known.items() if path.stat().st_mtime_ns != when)
print("written again:", touched)


# %% [markdown]
# Two shards were written again, each with both of its files, and their bytes are what they were. The five others have their old times. Encoding has no chance in it, and a shard depends on its range and the tokenizer alone, so this is no luck.
#
# The tests of this book do the same with `kill -9`, at moments that nobody chose, with a full disk, and with two processes at once.
#
# And other settings are refused:

# %%
try:
    prepare(mini, folder / "prepared", limit=100)
except ValueError as error:
    print(str(error).replace(str(folder) + os.sep, ""))


# %% [markdown]
# ## Opening a prepared folder
#
# Training will read these files for days, often on another machine than the one that wrote them. So they are checked on opening: size and hash of each file, and whether the tokenizer beside them is the one they were made with. Without the last check, a folder with the wrong `tokenizer.json` would train without any error. Each id would simply mean another piece when the model is used.


# %% tags=["export"]
def check_shards(folder: Path, manifest: Manifest, check_hash: bool) -> Tokenizer:
    """Return the tokenizer of a prepared folder; raises ValueError for files that do not fit."""
    for shard in manifest.shards:
        for name in Shard(shard).files:
            if damage := find_damage(folder / name, manifest.files[name], check_hash):
                raise ValueError(f"{folder / name} {damage}: run prepare again, it mends the shard")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.sha256 != manifest.tokenizer:
        raise ValueError(
            f"the shards in {folder} were made with another tokenizer than {TOKENIZER} there: put "
            "the right one back, or run prepare in another folder"
        )
    return tokenizer


# %% [markdown]
# Is it not too careful to read all shards before training reads them? A single bit that a disk has turned over makes one token another one. Nobody would ever notice, and it would hardly matter. A file that was copied by half is what happens in earnest, and the size tells. The hash is for the cases between the two, and for the certainty that two trainings have learned from the same bytes.
#
# Hashing half a gigabyte takes about a second. On a machine with eight processes it is enough if one of them does it, and the others compare sizes only: `check=False`.


# %% tags=["export", "internal"]
def open_arrays(folder: Path, manifest: Manifest) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return for each shard its tokens, mapped, and its lengths, read."""
    files = [Shard(name).files for name in manifest.shards]
    tokens = [np.load(folder / name, mmap_mode="r") for name, _ in files]
    return tokens, [np.load(folder / name) for _, name in files]


# %% [markdown]
# `np.load` with `mmap_mode="r"` reads the header and nothing else. What comes back looks like an array. Only when a part of it is asked for does the system fetch that part from disk, in pages of a few thousand bytes. `"r"` means that nobody can write into it by mistake.
#
# ### What is read at once, and what is not?
#
# The tokens are mapped, the lengths are read: four bytes a pair, 18 MB for 4.5 million. From the lengths of a shard, summed up, follows where each pair ends in the row of tokens, and where it begins is where the one before it ends.
#
# An example: lengths of $(5, 7)$, $(9, 11)$ and $(4, 6)$ have the sums 12, 20 and 10. Summed up, the ends are 12, 32 and 42. So the third pair stands from number 32 to 41, and its source is the first four of them. `ends` has four bytes a pair, since a shard of half a million pairs has less than $2^{32}$ tokens, however long they are.
#
# `shapes` is what [planning](15_batching.ipynb) needs to know of all examples: the places of encoder and decoder. The target is stored with one token more than the decoder reads, so one is taken off. Why numbers of 32 bits, if 16 would hold every length? Because planning multiplies them: the order of furrows has keys up to about $2 \cdot 252^2 = 127{,}008$, and arithmetic on numbers of 16 bits turns over at 32,767 without a word.


# %% tags=["export"]
class EncodedCorpus(Sequence[Example]):
    """The examples of a prepared folder, read from disk when they are asked for.

    `shapes` (pairs, 2) holds S and T of each, `tokenizer` is the one they were made with, and
    `sha256` names them all. `check=False` compares sizes only: enough where another process has
    checked. Raises FileNotFoundError, or ValueError if a file is not what `prepare` wrote.
    """

    def __init__(self, folder: str | Path, check: bool = True) -> None:
        self.manifest = read_manifest(folder)
        self.tokenizer = check_shards(Path(folder), self.manifest, check)
        self.tokens, lengths = open_arrays(Path(folder), self.manifest)
        self.starts = [0, *accumulate(map(len, lengths))]
        self.ends = [some.sum(axis=1).cumsum(dtype=np.uint32) for some in lengths]
        self.shapes = torch.from_numpy(np.concatenate(lengths, dtype=np.int32))
        self.shapes[:, 1] -= 1
        arrays = {n: k for n, k in self.manifest.files.items() if n.endswith(".npy")}
        self.sha256 = sha256_of(arrays)

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return self.read(found) if isinstance(found, int) else [self.read(i) for i in found]

    def read(self, index: int) -> Example:
        """Return an example by its number from 0 on."""
        shard = bisect_right(self.starts, index) - 1
        row, ends = index - self.starts[shard], self.ends[shard]
        ids = self.tokens[shard][ends[row - 1] if row else 0 : ends[row]].tolist()
        source = int(self.shapes[index, 0])
        return Example(ids[:source], ids[source:])


# %% [markdown]
# To read an example, we need its shard and its row there. `starts` has the number of the first example of each shard, so a search by halves, `bisect`, finds the shard in a few steps: four for the ten shards of German. In the shard, `ends` says where the row begins and ends, and the first length, where source and target part.
#
# `Sequence` is the promise that this is a list in all but name: it has a length, can be indexed and can be looped over. `range` does the work of checking an index, counting negative ones from the end, and cutting slices. An example is two plain lists, as everywhere in this book. The attribute `sha256` names the content by the hashes of all shards, so a training can write down what it was fed without reading it all.
#
# ### Is it what chapter 15 would have made?
#
# We clean the pairs in the plain way, one after the other, encode them with `encode_pairs`, and compare all examples.

# %%
shards = EncodedCorpus(folder / "prepared")
kept = []
for pair in [*pairs, *odd]:
    source, target = (len(shards.tokenizer.encode(text)) for text in pair[:2])
    if source and target and max(source, target) <= 250:
        apart = max(source, target) > 1.5 * min(source, target)
        if not apart or abs(source - target) <= 3:
            kept.append(pair)
examples = encode_pairs(shards.tokenizer, kept)
print(len(shards), "examples; all equal:", list(shards) == examples)
print("shapes equal:", torch.equal(shards.shapes, shapes_of(examples).int()))
print("text:", shards.tokenizer.decode(shards[-1].source))


# %% [markdown]
# All 1,381 are equal, though one side went through archives, chunks and shards, and the other through a loop. And the tokens are where they should be, on disk:

# %%
tokens = shards.tokens[0]
print(type(tokens).__name__, tokens.dtype, "can be written:", tokens.flags.writeable)


# %% [markdown]
# Could another program find them there? We look for the second example by hand, with nothing but the bytes of the two files and the rule of {numref}`fig-shard`.

# %%
content = (folder / "prepared" / "train-0000.tokens.npy").read_bytes()
lengths = np.load(folder / "prepared" / "train-0000.lengths.npy")
at, source, target = 128 + 2 * int(lengths[0].sum()), *lengths[1].tolist()
found = np.frombuffer(content, np.uint16, source + target, offset=at).tolist()
print(f"from byte {at}: {source} and {target} tokens, the last one {found[-1]}")
print("the same:", Example(found[:source], found[source:]) == shards[1])


# %% [markdown]
# ### Does training notice the difference?
#
# From here on nothing is new. A plan is made from the shapes, the batches from the plan, and training does not know that there is no list.

# %%
plan = plan_batches(shards.shapes, max_tokens=1024, seed=0, epoch=0)
print(plan == plan_batches(shapes_of(examples), 1024, seed=0, epoch=0), f"{len(plan)} batches")
print(sorted(index for batch in plan for index in batch.indices) == list(range(len(shards))))


# %% [markdown]
# The plan is the same as that of the list, and it has each example exactly once. Memory is taken by the plan's numbers and by one batch at a time.
#
# ### What does damage look like?
#
# We turn over the last bit of a file, which leaves its size as it is. Then we put a tokenizer of another vocabulary into the folder.

# %%
whole = lost.read_bytes()
lost.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
try:
    EncodedCorpus(folder / "prepared")
except ValueError as error:
    print(str(error).replace(str(folder) + os.sep, ""))

# %%
_ = lost.write_bytes(whole)
Tokenizer.train(pairs[:300], 380).save(folder / "prepared" / "tokenizer.json")
try:
    EncodedCorpus(folder / "prepared")
except ValueError as error:
    print(str(error).replace(str(folder) + os.sep, ""))
_ = (folder / "prepared" / "tokenizer.json").write_text(small.to_json())


# %% [markdown]
# ### What it weighs now
#
# We compare a list of examples with the map, for three sizes, by the bytes that stay in memory. For the map these are the lengths in two forms, four bytes for where a pair ends and eight for its shape. The rest is the system's, and it takes it back when it needs it.

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-weights", "caption": "Which training set fits into memory? Bytes of a list of examples and of the map, measured for 100, 1,000 and 10,000 examples of 31 + 31 tokens (dots), and continued to the 4.5 million pairs of WMT14 (line). The gray line is a laptop with 8 GB."}, "image": {"alt": "Two parallel lines on logarithmic axes. The list crosses 8 gigabytes before it gets to 4.5 million pairs; the map is about two hundred times lighter and stays below 100 megabytes."}}
sizes = (100, 1_000, 10_000)
rows = [[int(chance.uniform(300, 37_000)) for _ in range(62)] for _ in range(sizes[-1])]
listed = [weigh([Example(row[:31], row[31:]) for row in rows[:size]]) for size in sizes]
per_pair = (sum(some.nbytes for some in shards.ends) + shards.shapes.nbytes) / len(shards)
mapped = [per_pair * size for size in sizes]
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, amounts, color, marker in (("list", listed, KEY, "o"), ("map", mapped, VALUE, "s")):
    axis.plot(sizes, amounts, marker, color=color)
    last = amounts[-1] / sizes[-1] * 4.5e6
    axis.plot([sizes[0], 4.5e6], [amounts[0], last], color=color, lw=1.2)
    text = f"{name}: {last / 1e9:.2g} GB"
    axis.annotate(text, (4.5e6, last), (-8, 8), textcoords="offset points", ha="right", color=color)
axis.axhline(8e9, color=RESIDUAL, lw=0.8, ls="--")
axis.set(xscale="log", yscale="log", xlabel="examples", ylabel="bytes in memory", ylim=(500, 1e11))
plt.show()
assert listed[-1] > 100 * mapped[-1]

# %% [markdown]
# A list of examples fills a laptop with 8 GB at 3.3 million pairs, and there is nothing else in it then. At 12 bytes a pair the map would get as far with 670 million. What grows with the corpus is still there. It has become 200 times smaller, because it is about pairs and no longer about tokens.
#
# ## How long does it take?
#
# There is no WMT14 on the machine on which this book is made, so we build something of its size. The command
#
# ```
# python benchmarks/prepare.py --data deu-eng.zip --data train.en train.de --data train.en train.de --pairs 4500000 --open 4500000
# ```
#
# packs 4.5 million pairs into archives laid out as the real ones, serves them on 127.0.0.1, and prepares them. The sentences are real: 10,000 pairs of WMT, as another project has published them, and for News Commentary the sentence pairs of Tatoeba. They are repeated, each time with another number at their end, so that no two lines are the same and new words never end. What it measured stands in a log beside the book.

# %%
path = Path("../benchmarks/results/prepare.jsonl")
address = "https://github.com/annotated-transformer/annotated-transformer/raw/main/benchmarks/results/prepare.jsonl"
text = path.read_text() if path.exists() else urlopen(address).read().decode()  # in Colab
log = [json.loads(line) for line in text.splitlines()]
large = next(line for line in log if line.get("what") == "prepare")
opened = [line for line in log if line.get("what") == "open and plan"][-1]
print(f"{large['pairs']:,} pairs, {large['kept']:,} kept, on {log[0]['cores']} cores")
for stage, spent in large["stages"].items():
    print(f"{stage:16}{spent['seconds']:7,.0f} s, of the processor {spent['cpu_seconds']:4,.0f} s")
print(f"encoded: {large['pairs_per_cpu_second_encode']:,} pairs a second of the processor")
print(
    f"memory, at most {large['peak_megabytes']} MB; shards {large['bytes_of_shards'] / 1e6:.0f} MB"
)

# %% [markdown]
# The machine has two cores and had other work to do, so the seconds of the processor are the ones to go by. Nearly all of them go into cleaning and encoding. With eight cores, and 15 % of the work on one of them as above, this stage should take about 3 minutes for all of German: $4{,}500{,}000 / 5{,}924 = 760$ seconds, divided by 3.9. That is arithmetic: we had no such machine to try it on.
#
# Is it worth to be faster? A training of the base model takes hours on eight GPUs, and this is done once before it, on a machine without any. What counts more is that it can be stopped.
#
# The vocabulary needs most memory, when 900,000 pairs have been counted. A corpus ten times as large would need hardly more, since a million pairs is the limit.
#
# ### What is not like WMT14 in it?
#
# Two things. The sentences repeat, so the only new words are the numbers at their ends. Real web pages bring names and misspellings by the million, and each of them is counted. So learning the vocabulary will need more memory than here; the two gigabytes at the top of this chapter leave room for it, and we have not measured it. And the server is on the same machine, so fetching takes no time. What carries over is the rate of encoding, since that depends on the length of sentences and hardly on which they are, and the size of the shards.
#
# ### What do I need for the real one?
#
# For German, the three archives are $80 + 658 + 918 = 1{,}656$ MB in the cache, and the shards about 530 MB beside them. At 2 MB a second the download takes 14 minutes. Then count on a quarter of an hour of one core, and less with more. No GPU is needed, and no disk beyond 2.2 GB, since nothing is unpacked to it. French has eight times the pairs: some 4 GB of shards, and about two hours of one core.
#
# ### What does opening cost?
#
# Then, in another process, the shards are opened and an epoch is planned, with the paper's 25,000 tokens a batch. This is the last record of the log: the shards of a smaller run, linked under many names until there were 4.6 million pairs.

# %%
print(f"{opened['pairs']:,} pairs in {opened['batches']:,} batches, {opened['useful']:.1%} useful")
for stage, spent in opened["stages"].items():
    print(f"{stage:16}{spent['cpu_seconds']:5.1f} s of the processor")
more = opened["megabytes_opened"] - opened["megabytes_of_imports"]
print(f"memory: {more} MB more when the shards are open")

# %% [markdown]
# So a training of this size begins a few seconds after its command. A list of examples would have to be made first, which is a quarter of an hour of encoding, each time and in each process.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-memory", "caption": "What is in memory, and when? Megabytes of a process with 4.5 million pairs, from the log. The hatched part is there before anything is read: Python, PyTorch and NumPy. The last bar is the list of examples from the beginning of the chapter, without those."}, "image": {"alt": "Four short bars of at most 700 megabytes, of which nearly 300 are the imported libraries. The bar of a list of examples is 15 times as long as the longest of them."}}
bars = {
    "all imported": opened["megabytes_of_imports"],
    "shards open": opened["megabytes_opened"],
    "planning, at most": opened["peak_megabytes"],
    "preparing, at most": large["peak_megabytes"],
    "a list of examples": round(4.5 * each),
}
figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
axis.barh(list(bars), list(bars.values()), 0.6, color="none", edgecolor=[VALUE] * 4 + [KEY])
axis.barh(list(bars)[:4], bars["all imported"], 0.6, color="none", edgecolor=INK, hatch="/////")
for row, number in enumerate(bars.values()):
    axis.text(number, row, f" {number:,} MB", va="center")
axis.set(xlim=(0, 13_000), xlabel="megabytes in memory")
axis.invert_yaxis()
plt.show()

# %% [markdown]
# The numbers are the most that the process ever held up to then. By hand, 12 bytes for each of 4.57 million pairs are 55 MB. What was measured for opening is a little less: the imports had most likely left some free memory behind, which counts as theirs. Planning needs the most while it sorts. The plan itself, the number of every pair in its place, has four bytes for each.
#
# ### Where do the pairs go?
#
# Each rule has counted what it dropped, piece by piece.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-rules", "caption": "How many pairs does each rule take? The three pieces of the benchmark. News Commentary is made of sentences from Tatoeba here, which are short and clean; the two others of a WMT sample that was cut into words, with its HTML entities. None was too long."}, "image": {"alt": "Three bars of pairs, each nearly all kept. Lengths apart takes a small part of the first and about a tenth of the two others."}}
figure, axis = plt.subplots(figsize=(7, 2.2), layout="constrained")
looks = {"kept": (VALUE, VALUE, None), "lengths apart": ("none", KEY, "////")}
for name, counted in large["pieces"].items():
    left = 0.0
    for rule, (color, edge, hatch) in looks.items():
        share = 100 * counted[rule] / counted["pairs"]
        axis.barh(name, share, left=left, color=color, edgecolor=edge, hatch=hatch)
        left += share
    axis.text(101, name, f"{share:.1f} % apart", va="center", fontsize=9, color=KEY)
    assert counted["kept"] + counted["lengths apart"] == counted["pairs"]
axis.set(xlim=(0, 120), xlabel="percent of the pairs (solid: kept)")
axis.invert_yaxis()
plt.show()


# %% [markdown]
# All that is dropped here is dropped for its lengths, 1.8 percent of the first piece and 7.9 of the others. How much that is depends on the texts and on the vocabulary, so these shares say little about WMT14 itself. There, the manifest will tell. Look at it before you train. If one piece loses far more than the others, read some of its pairs. Three things can be behind it: another language on one side, lines that are shifted against each other, or a vocabulary that has seen too little of one language.
#
# ## Questions that come up
#
# **May I delete the archives afterwards?** Yes. A finished folder is complete, and `prepare` finds that out without them. Only a damaged shard needs its archive again.
#
# **Where are the archives?** In the cache, `cache_folder() / "wmt14"`. Put them there yourself if the machine has no network: the names are those in the catalog, and a hash decides whether a file is right.
#
# **I want to add a corpus later.** Take another folder. A vocabulary learned from more text is another vocabulary, and all ids change with it. If you give the old `tokenizer.json`, the ids stay, but shards are not mixed between folders.
#
# **The order of the pairs is that of the archives. Is that not bad for training?** It would be, if training read from front to back. It follows the [plan](15_batching.ipynb), which shuffles examples within their lengths, and batches over the whole epoch. So each batch jumps about in all shards. On a hard disk that turns would be slow; half a gigabyte soon stands in memory, whoever reads it.
#
# **Does the process not grow while it trains?** Its *mapped* pages do, up to the size of the shards, and tools such as `top` count them. They are a copy of the disk, and the system drops them when something else needs the room.
#
# **And with 36 million pairs?** Lengths and shapes stay in memory, 12 bytes a pair, and so they grow: 0.43 GB for French. Tokens do not count. If that is too much, shapes could be mapped as well, from a file of their own. We have not needed it.
#
# **Is 1.5 too strict?** It drops more than wrong pairs. Languages differ in length, and so does one language in pieces, depending on the vocabulary. The numbers in the manifest say how much was dropped from which piece. If it is a tenth of a good corpus, look at some of them.
#
# **Why not a database, or a format for tables?** They can do more: search, columns of many types, changes. We need example 3,141,592, from several processes, without a server. In a row of numbers it is found by counting bytes, and the code for it is in this chapter.
#
# **Why are the shards not compressed?** It would save a part of half a gigabyte. For it, an example could no longer be found by counting bytes, and each look would unpack its neighbors.
#
# **Why is nothing shuffled?** Because nobody needs it. Counting words for the vocabulary does not depend on the order, and the plan of each epoch makes an order of its own. An order on disk that nobody chose by chance is also one that nobody has to repeat.
#
# **Can I prepare on one machine and train on another?** Yes, and it is the usual way, since preparing needs no GPU. Copy the folder, all of it. Opening compares sizes and hashes of the shards, so a copy that broke off is found before training begins. Nothing in the folder names a path of the first machine.
#
# **May several trainings read one folder at once?** Yes. Nobody writes into it any more, and pages that one process has read are there for the others, too.
#
# **A line of my corpus breaks a rule, and I want it all the same.** The rules are constants of the module, `MAX_PIECES`, `RATIO` and `SLACK`. They stand in `settings.json`, so a folder made with others says so. Change them for the whole corpus, and not for a line: an exception is something that nobody can repeat.
#
# **Can I read shards in another program?** Yes. `numpy.load` is all that it takes, and {numref}`fig-shard` is the whole format.
#
# ## What to remember
#
# - A token needs two bytes, and in a Python list it takes more than 36. A mapped file is read where it is looked at.
# - A download goes on where it broke, and its hash decides whether it is the file. An archive is read as a stream and never unpacked to disk.
# - Count the lines of both sides first: one line too many makes every pair after it wrong.
# - Rules look at one pair at a time, in pieces, and are counted. Short sentences are not judged by a ratio.
# - Each shard depends on its range alone and has a note that is written last. Going on after a stop is making the shards whose notes do not hold.
# - The manifest says what was made of what, with hashes. Opening compares.

# %% [markdown]
# ## Exercises
#
# **1. By hand.** A corpus has 36 million pairs of 70 tokens, both sides together with the special ones. How large are its tokens on disk with a vocabulary of 32,000, and how large are the lengths?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Two bytes a token, and two lengths of two bytes a pair
print(f"{36e6 * 70 * 2 / 1e9:.2f} GB of tokens, {36e6 * 2 * 2 / 1e9:.2f} GB of lengths")

# %% [markdown]
# **2. By hand.** A pair has 8 and 13 pieces, another 40 and 61. Which one is dropped, and by which rule? What is the longest partner that 8 and 40 may have?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 13 > 12 and 13 > 11: dropped. 61 > 60, and 61 > 43: dropped, too; 12 and 60 would have passed
faults = faults_of_lengths(np.array([(8, 13), (40, 61), (8, 12), (40, 60)]))
print(faults["lengths apart"].tolist())

# %% [markdown]
# **3. What breaks if** a line is what `str.splitlines` says it is? Pair the German "eins", U+2028, "noch eins", line feed, "zwei" with the English lines "one, still one" and "two", and count the pairs that are wrong.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both: the first line becomes two, "noch eins" stands beside "two", and nothing is left for "zwei"
german, english = "eins\u2028noch eins\nzwei\n", "one, still one\ntwo\n"
wrong = list(zip(german.splitlines(), english.splitlines()))
print(wrong, "against", list(zip(german.strip().split("\n"), english.strip().split("\n"))))

# %% [markdown]
# **4. What breaks if** the note of a shard is written before its arrays? Think of a kill in between, and of the two ways to believe a note.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A kill in between leaves a note and no arrays. It is found out, because the note has their
# hashes; with the mere existence of a note as the sign, a missing shard would count as made
print(find_damage(folder / "prepared" / "none.npy", {"bytes": 1, "hash": ""}))

# %% [markdown]
# **5. What breaks if** shapes are kept in 16 bits, and an order of furrows is computed from them in 16 bits? Find the smallest length at which a key turns over.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The largest key is about (2w + 1) w + w
print(next(w for w in range(1, 300) if (2 * w + 1) * w + w - 1 > 2**15 - 1))
server.shutdown()
server.server_close()
home.cleanup()
