# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

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
# | the machine stops at 90 percent | all is encoded anew | Shards |
# | shards of one vocabulary, model of another | a model that learns noise | Opening a prepared folder |
#
# At the end stands one function, `prepare_corpus`, which goes from addresses to shards and may be killed at any moment, and one class, `Shards`, which training takes for a list. No new mathematics is in them. It is a part of the work that the paper passes over in two sentences, and that decides whether its numbers can be repeated.
#
# If you only want the data, run `prepare_corpus("wmt14-en-de", "wmt14")` and come back when a question comes up.

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
from annotated_transformer.corpus import MissingData, Pair, cache_folder, hash_share
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.tokenization import Tokenizer, sha256_of
from annotated_transformer.training import TOKENIZER, whole_file, write_text


# %%
import os
import sys
import tempfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import matplotlib.pyplot as plt

from annotated_transformer.batching import encode_pairs, plan_batches, shapes_of
from annotated_transformer.corpus import grammar
from annotated_transformer.figures import INK, KEY, QUERY, RESIDUAL, VALUE, style


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
# An array of two-byte numbers needs 124 bytes for the 62 tokens, in all 0.56 GB for 4.5 million pairs. That is small enough for memory. But it need not be there at all. A file can be **memory-mapped**: the system treats it as if it were in memory, and reads a page of it from disk when somebody looks at that page. Pages that nobody has looked at for a while are forgotten, and eight processes that look at the same page share it. To open such a file costs nothing, whatever its size.
#
# So the plan is:
#
# 1. Fetch the archives, once and for good.
# 2. Learn a vocabulary from a part of the pairs.
# 3. Go through all pairs, a few thousand at a time: drop the bad ones, encode the good ones, write their ids into files. Such a file is a **shard**, one of many parts of a whole.
# 4. Write down what was made of what, with hashes.
#
# Memory then depends on how many pairs are dealt with at a time, and not on how many there are.

# %% [markdown]
# ## Where a text comes from
#
# A corpus such as WMT14 is not one file. It consists of pieces: debates of a parliament, pages from the web, newspaper columns. Each is an archive on some server, and in it are two texts, one a language, in which line $i$ of one translates line $i$ of the other.
#
# Servers of universities come and go, and they are slow on some days. So for each archive we want several addresses, and a hash that tells whether what they sent is the file. Some archives have a mirror, a second place that keeps a copy. If the copy was packed anew, it has the same texts and another hash.


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
# A piece says which two members of the archive are meant. The first is the source language. Where it has no sources at all, its members are two files on the reader's own disk.


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
# A corpus is then a name and the pieces of each split. The vocabulary belongs to it as well, since the paper has another size for each language pair. `folder` is the place in the [cache](09_corpus.ipynb) for the archives: German and French share most of theirs, and need them only once.


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
# Here they are, each with the hash of the official archive and that of the mirror's copy. `None` means that none was published.


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
# For the two French additions no hash of the official archive has been published, and for the development sets none of the mirror's copy. What we must add: this chapter was written without a network. Addresses and hashes are as others have published them, and none could be tried. The code finds out. A wrong hash is an error, and where none is known, the hash that was seen is written into the manifest further down.
#
# ### What to measure with
#
# Training pieces are plain text. The sets to measure with come in a format of their own, SGML, which has a tag around each sentence. We take *newstest2013*, 3,000 sentences, to choose by (the paper did the same), and *newstest2014* to measure on once, at the end.
#
# There are two versions of the latter. The full one has 3,003 sentences. A filtered one has 2,737, and some papers report scores on it without saying so. We keep both, under different names, and report the full one.
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
# The three common pieces stand first and in the same order for both languages; more may follow. With it, the catalog is done:


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

# %%
for name, corpus in CATALOG.items():
    print(name, [piece.name for piece in corpus.pieces["train"]])
    print(" " * 11, corpus.pieces["train"][0].members)


# %% [markdown]
# ### Your own large corpus
#
# The same can be written as JSON, in the same form, for any other corpus. Names of files are looked for beside the JSON file. Whatever is wrong with it becomes one error that names the file.


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
# And if all you have is two large text files, they are a corpus of one piece:


# %% tags=["export"]
def text_files(source: str | Path, target: str | Path) -> Corpus:
    """Return the corpus of two text files of one's own, plain or .gz."""
    members = (str(Path(source).resolve()), str(Path(target).resolve()))
    name = Path(source).name
    return Corpus(name, name, {"train": (Piece(name, members),)})


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
# For the rest of the chapter we need something to download. We turn the pairs of our grammar round, English first, cut them into three parts, and pack each part under the names of the real archives and members. What is real about it is the layout.

# %%
pairs = [Pair(english, german) for german, english, _ in grammar(1500, seed=0)]
home = tempfile.TemporaryDirectory()
folder = Path(home.name)
os.environ["ANNOTATED_TRANSFORMER_CACHE"] = str(folder / "cache")
PARTS = {"train": [pairs[:200], pairs[200:800], pairs[800:]], "validation": [pairs[:40]]}
PARTS |= {"test": [pairs[40:100]], "test-filtered": [pairs[40:90]]}


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


server = ThreadingHTTPServer(("127.0.0.1", 0), Unreliable)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"


# %% [markdown]
# ## Is it the right file?
#
# [Chapter 9](09_corpus.ipynb) read a file as a whole to hash it. With two gigabytes, that alone would take all the memory we allow ourselves. A hash function can be fed bit by bit, and the result is the same.


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
# Next, whether a file is what a source should send. The answer is the hash, to be written down, or `None`. Where no hash is known, any file will do.


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
# Common Crawl is 918 MB. At 2 MB a second it takes nearly eight minutes, and over a bad line it may never get through in one go. The download of [chapter 9](09_corpus.ipynb) throws away what it has and begins again. We want it to go on.
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
# An empty block says that no more will come, and that is true. Only a comparison with the announced length tells that half of the file is missing. This is how half a file gets taken for a whole one.
#
# ### And if the disk is full?
#
# Errors of the network are a reason to try again, a full disk is not. Both are an `OSError`. So the latter gets a class of its own, and a sentence that says what to do. The error numbers are those for no space, for a quota that is used up, and for a file larger than is allowed. numpy reports failures of writing without any number.


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
# If all fails, the error says which file to put where. `MissingData` is the class that chapter 9 has for this, and the notebooks and tests know how to deal with it.
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
# The first answer broke off after half of the file, the second request asked for the other half. Altogether each byte was sent once.

# %% [markdown]
# ## Lines out of an archive
#
# Europarl's archive is 658 MB and holds several languages. Unpacked to disk it takes far more, of which we need a part, once. It is simpler not to unpack it at all. Python can read a `.tgz` as a stream: unpack a block, hand out lines, forget the block.
#
# A tar archive has no table of contents. The header of a member stands in front of it, so to find one, all those before it must be read. The mode `"r|*"` says that we will only go forward. A zip has a table of contents at its end, and `ZipFile` goes straight to the member. In the Giga corpus the member is a `.gz` by itself and goes through one more unpacker.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-tape", "caption": "How are two texts read side by side without unpacking? A tar archive is a tape: a header (dark) and a text, again and again. Two readers go over the same tape, each with an unpacker of its own. Each passes over all members before its own (hatched); then the two hand out lines by turns."}, "image": {"alt": "The same tape drawn twice. The upper reader has passed one member and stands in the German text; the lower one has passed two members and stands in the English text."}}
figure, axes = plt.subplots(2, 1, figsize=(7.5, 2.2), layout="constrained")
members = [("cs-en.cs", 2.2), ("de-en.de", 3.0), ("de-en.en", 2.7), ("fr-en.en", 2.4)]
for axis, wanted, color in zip(axes, ("de-en.de", "de-en.en"), (KEY, QUERY)):
    at = 0.0
    for member, width in members:
        axis.add_patch(plt.Rectangle((at, 0), 0.15, 1, color=INK))
        mine = member == wanted
        hatch = (
            None if mine else "////" if at < {"de-en.de": 2.3, "de-en.en": 5.4}[wanted] else None
        )
        box = plt.Rectangle(
            (at + 0.15, 0),
            width,
            1,
            facecolor="none",
            edgecolor=color if mine else RESIDUAL,
            hatch=hatch,
            lw=2 if mine else 0.6,
            alpha=1 if mine else 0.5,
        )
        axis.add_patch(box)
        label = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.text(
            at + 0.15 + width / 2, 0.5, member, ha="center", va="center", fontsize=8, bbox=label
        )
        if mine:
            axis.annotate(
                "reads line 7",
                (at + 0.5, 1),
                (at + 0.5, 1.45),
                ha="center",
                fontsize=8,
                color=color,
                arrowprops={"arrowstyle": "->", "color": color},
            )
        at += width + 0.15
    axis.set(xlim=(-0.1, at + 0.1), ylim=(-0.05, 1.75))
    axis.axis("off")
plt.show()


# %% [markdown]
# The hatched parts are unpacked, looked at by nobody, and forgotten.


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
# The errors of five libraries become one that names the archive.


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
# `islice` ends the lines after `pairs`, so a limit needs no code anywhere else. A stock is made by fetching its archive, or for local files by looking whether they are there:


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
# `zip` stops at the shorter of two texts and says nothing. So the lines are counted before anything else, on both sides. That takes one pass, and three things are gained. Unequal sides are an error in the first minute and not after an hour. The whole archive has been unpacked once, so damage is found as early. And the number of pairs is known, without which there is no "evenly" in the vocabulary and no estimate of the time left.


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
# In a shell the same check is `wc -l`, on texts that have been unpacked. There is one difference: `wc` counts line ends, and a last line without one is missing from its count.
#
# ### Counting once
#
# The counts are kept in the folder that is being prepared, so that the second start does not count again. JSON is written as [training](14_training.ipynb) writes everything: aside, then renamed.


# %% tags=["export"]
def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all; raises NoRoom."""
    with room_for(path):
        write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


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
# The hashes of the files are kept beside the counts. Suppose a preparation is stopped, somebody mends a typo in the text, and it goes on. Half of the shards would come from one text and half from another. With hashes it is an error.
#
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
# `left` counts down what the limit still allows, and infinity stands for none. We count our miniature, whose archives all arrive in two halves.

# %%
stocks = survey(mini, folder, limit=None)
for stock in stocks:
    print(f"{stock.piece.name:20} {stock.pairs:6,} pairs")
print("with a limit of 250:", [stock.pairs for stock in survey(mini, folder, limit=250)])


# %% [markdown]
# ## Cleaning
#
# A corpus from the web contains everything. [Chapter 9](09_corpus.ipynb) had rules for small ones, among them "repeated", for which it remembers every pair it has seen. With 36 million pairs this alone takes some gigabytes. The paper mentions no such rule, and so we leave it out. What remains are rules that look at one pair at a time:
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
# ### What is tidied, and what is not
#
# White space of any kind, and control characters, become one space each run. Nothing that a translator would type is lost. A carriage return at the end of a line is gone with them, and so is a byte order mark.


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
# HTML entities such as `&amp;` stay in the training text as they are. A line of plain text does not say whether it means them. Copies of WMT that have passed through other people's scripts are often full of them, and cut into words besides. Those are another data set.
#
# Why is a broken line dropped, and not mended with a replacement character? Because the model would learn that this character is a good translation of something. A handful of lines in a million are no loss.
#
# ### Held out
#
# Sentences to measure with come in archives of their own. A reader's corpus may have none. Then some sentences are kept from training, by the [hash rule](09_corpus.ipynb): the sentence itself decides whether it belongs to training, validation or test, so the same sentence never stands on two sides. And it decides in the same way each time. That is what we need here, since two passes over the text must agree without a list in memory.


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
# These rules need the text alone. They come first, since what they drop need not be encoded.


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
# How long a sentence is, the model sees in pieces. So the two rules about length wait until both sides are encoded. The [tokenizer](10_tokenization.ipynb) we have encodes one text at a time. Its library can encode a list, on all cores, in Rust, without a second Python process. The result is the same.


# %% tags=["export"]
def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return what `tokenizer.encode` would, for many texts at once, on all cores."""
    found = tokenizer.library.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]


# %% [markdown]
# Where does the time go? We take all pairs of the grammar and measure the processor's time for the rules about texts, for the library, and for all of it.

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
# At 6 pieces and above the slack has no effect: $1.5 \cdot 6 = 6 + 3$. So it saves short sentences and nothing else.
#
# ### From pairs to a row of numbers
#
# An example is two lists: the source with `</s>` at its end, the target from `<s>` to `</s>`. On disk they stand one after the other in one long row, with the lengths beside it. Numbers for the special tokens are those of [masks](02_masks.ipynb): `<s>` is 1 and `</s>` is 2.


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
# Both sides of all pairs go to the library in one list, since it shares out a long list better than two short ones. The lengths come back as a table with a row for each pair, and NumPy applies the rules to all of them at once. Only the last step goes through tokens one by one, and `chain` and `fromiter` do that without a list in between.

# %%
counts = Counter()
chunk = encode_chunk(
    [pairs[0], Pair("No.", "Das ist etwas ganz anderes."), pairs[1]], small, counts
)
examples = encode_pairs(small, pairs[:2])
print("dropped:", dict(counts), " lengths:", chunk.lengths.tolist())
print(
    "as chapter 11 makes them:",
    chunk.tokens.tolist() == [i for e in examples for s in e for i in s],
)


# %% [markdown]
# ## The vocabulary
#
# The paper has one vocabulary for both languages, of about 37,000 pieces for German. [Learning](10_tokenization.ipynb) it means counting words, and the counts of all different words must be in memory. New words never end: 4.5 million pairs of web pages have millions of different strings. So we look at a million pairs at most. A piece that is not frequent among these will not be among the 37,000 in any case.
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
# The step is rounded up, so there are never more pairs than asked for. The texts go to the trainer as they are read. It counts words while we read, and no list of a million pairs is ever made.

# %% [markdown]
# Nothing is shuffled, since counting words does not depend on the order. And the sentences that are held out are left out here, too: a vocabulary that knows the words of the test set is a small leak, but it is one.


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
# The file stands before the first shard is begun, and from then on the folder has its vocabulary. One can also give a file. That is the way to repeat another's experiment: two trainers, or two versions of one, may break ties in another way and learn slightly different pieces. Whoever publishes a model should publish its tokenizer, and ours is part of the model.
#
# For French the paper has 32,000 pieces of another kind, word pieces. We take as many with the same method.
#
# ## Shards
#
# One file for all tokens, some 270 million, would do for reading. It would not do for writing: a process that is killed at 90 percent leaves a file that is 90 percent of something. So the pairs are cut into shards of half a million, which take a minute or two to make. What is lost by a kill is the shard in progress.
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
# Shards are numbered through, and none has pairs of two pieces. So a piece ends with a shard that is shorter than the others:


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
# A shard has two files in NumPy's own format, `.npy`, which is a header of 128 bytes and then the numbers. It can be mapped, and it can hold no code, as long as `allow_pickle=False`, the default for reading.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-shard", "caption": "What stands in a shard? Two short examples. Above, the file of tokens: the ids of a source (blue, S) up to the end token 2, then those of its target (orange, T) from the start token 1 to the end token, and at once the next source. Below, the file of lengths, two numbers for each pair. The sum of all lengths before a pair is where its tokens begin."}, "image": {"alt": "A row of boxes with token ids, colored by source and target, without gaps. Below it a table of two rows with the lengths of both sides, which cut the row into four parts."}}
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
    axis.text(at + 0.5, 1.42, str(2 * at), ha="center", va="center", fontsize=5.5, color=RESIDUAL)
start = 0
for example in shown:
    for side, color in ((example.source, QUERY), (example.target, KEY)):
        middle = start + len(side) / 2
        axis.plot([start + 0.1, start + len(side) - 0.1], [1.2, 1.2], color=color, lw=1.5)
        axis.add_patch(
            plt.Rectangle((middle - 0.6, 0.2), 1.2, 0.7, facecolor="white", edgecolor=color)
        )
        axis.text(middle, 0.55, str(len(side)), ha="center", va="center", fontsize=8, color=INK)
        start += len(side)
axis.text(-0.3, 2.0, "tokens", ha="right", va="center", fontsize=9)
axis.text(-0.3, 1.42, "byte", ha="right", va="center", fontsize=7, color=RESIDUAL)
axis.text(-0.3, 0.55, "lengths", ha="right", va="center", fontsize=9)
axis.set(xlim=(-3.2, len(drawn) + 0.2), ylim=(0, 3))
axis.axis("off")
plt.show()


# %% [markdown]
# A token takes two bytes where the vocabulary has up to 65,536 entries, and four above that. A length takes two bytes always, since nothing is longer than 250 pieces.
#
# ### A shard that stands
#
# How do we know, after a kill, which shards are whole? Each file is written aside and renamed, so there are no halves of files. But tokens without lengths are half a shard, and a disk can lose a block. So there is a third file for each shard, a note in JSON, and it is written last. It names the range, the tokenizer, the counts of all rules, and the size and the hash of both arrays.


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
    with room_for(path), whole_file(path) as aside, aside.open("wb") as file:
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
# With these two files an example can be found by hand. Take the second one of {numref}`fig-shard`. Before it stands one pair, of 5 and 7 tokens, so its tokens begin at number 12. The header has 128 bytes and a token two, so that is byte $128 + 2 \cdot 12 = 152$ of the file. Its source has 9 tokens and ends before number 21, its target has 11 and ends before number 32.
#
# `casting="same_kind"` lets NumPy store a large kind of number in a small one. That is safe, as all ids are below the number of entries for which the kind was chosen.
#
# Now the work itself. A shard is made from its lines, 10,000 at a time. The chunks of one shard are kept until its end. With 60 tokens a pair and four bytes each, that is 120 MB, and it is all that grows.


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
# For each piece there is one stream of lines, and it is only read where a shard is missing. The lines of shards that stand are passed over, unpacked but not encoded. If all of them stand, the archive is not opened at all, since `lines` is a generator and nobody asks it for anything.
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
# Both kinds end as tables of two columns, `validation.tsv` and so on, which [`read_pairs`](09_corpus.ipynb) can read. They are small, and text is what BLEU needs. Tables of text can also be opened and read by people, which is the best check of all. They are *not* cleaned by length: what is measured on must be the whole set, or no score can be compared.


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
# Here, too, both sides must have as many sentences. The tables are written with what was tidied, so no sentence has a tab in it that could be taken for the border of a column.


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
# In a month someone will ask what exactly this model was trained on. The answer is written down now, in a **manifest**: a list of all that a folder holds.


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
# It is written last of all. So a folder with a manifest is finished, and one without is not. `sources` has the hash of each archive as it was seen, which is the only trace where none was published.
#
# ### One at a time, and always the same way
#
# Two processes in one folder would spoil each other's files, so there is a lock. And what decides the content is written down before the work begins. Whoever comes back with another limit or another catalog is told so, and does not get a mixture of two.


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
# This lock does not wait. Whoever starts the same command twice by mistake wants to know it, and not to find two processes in the morning of which one has waited all night. A lock goes when its process does, so a kill leaves no sign behind that somebody would have to remove by hand.


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
# Addresses are not among the settings. The same pieces from the mirror are the same corpus.
#
# How many sentences are held out, where a corpus has no sets of its own? One percent of a small one, and of a large one no more than about 3,000 a split, the size of WMT's own sets. More would make a score only a little steadier, and validation slower.


# %% tags=["export"]
HELD_OUT = 3_000  # sentences, if a corpus has none of its own to measure with


def hold_out(corpus: Corpus, pairs: int) -> HeldOut:
    """Return the shares to keep from training, for splits that a corpus does not have."""
    share = min(0.01, HELD_OUT / pairs)
    return HeldOut(*(0.0 if split in corpus.pieces else share for split in ("validation", "test")))


# %% [markdown]
# A folder that is finished need not be touched again. To be sure of it, all its files are compared with the manifest.


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
# Now the order of things. The small sets come first: if one of them is missing, we want to know before the long part. Then the pieces are fetched and counted. Then come vocabulary, shards, manifest.


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
# `take_evenly` is a generator. If the folder has its vocabulary, nobody asks it for a pair, and the text is not read.
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
def prepare_corpus(
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
# Our miniature has 1,500 pairs. We make shards of 250 pairs to get several, and add what the web would have added: some lines that are wrong.

# %%
SHARD, CHUNK = 250, 100
odd = [
    Pair("", "leer"),
    Pair("spam " * 300, "Werbung " * 300),
    Pair("No.", "Nein, das geht leider nicht so."),
]
PARTS["train"][2] = [*pairs[800:], *odd]
pack(CATALOG["wmt14-en-de"].pieces["train"][2], PARTS["train"][2])
train = (*mini.pieces["train"][:2], served(CATALOG["wmt14-en-de"].pieces["train"][2]))
mini = replace(mini, pieces={**mini.pieces, "train": train})

manifest = prepare_corpus(mini, folder / "prepared", report=print)
for name, counted in manifest.pieces.items():
    print(f"{name:20}", {rule: count for rule, count in counted.items() if count})


# %% [markdown]
# And the files:

# %%
print(
    *sorted(
        path.name for path in (folder / "prepared").glob("[!.]*[!0-9].*") if "-000" not in path.name
    )
)
print(*sorted(path.name for path in (folder / "prepared").glob("train-0000*")))


# %% [markdown]
# Now the drill. We delete one shard, as a disk may, cut another short, and call the function again. What it writes must be what was there, byte for byte, and the others must not be touched.

# %%
lost = folder / "prepared" / "train-0002.tokens.npy"
cut = folder / "prepared" / "train-0004.lengths.npy"
known = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in lost.parent.glob("*.npy")}
lost.unlink()
cut.write_bytes(cut.read_bytes()[:-2])

again = prepare_corpus(mini, folder / "prepared")
print("same manifest:", again == manifest)
print("same bytes:", all(path.read_bytes() == content for path, (_, content) in known.items()))
touched = sorted(path.name for path, (when, _) in known.items() if path.stat().st_mtime_ns != when)
print("written again:", touched)


# %% [markdown]
# The tests of this book do the same with `kill -9`, at moments that nobody chose, with a full disk, and with two processes at once.

# %%
try:
    prepare_corpus(mini, folder / "prepared", limit=100)
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
# The tokens are mapped, the lengths are read: four bytes a pair, 18 MB for 4.5 million. From the lengths of a shard, summed up, follows where each pair ends in the row of tokens, and where it begins is where the one before it ends.
#
# `shapes` is what [planning](11_batching.ipynb) needs to know of all examples: the places of encoder and decoder. The target is stored with one token more than the decoder reads, so one is taken off. Why numbers of 32 bits, if 16 would hold every length? Because planning multiplies them: the order of furrows has keys up to about $2 \cdot 252^2 = 127{,}008$, and arithmetic on numbers of 16 bits turns over at 32,767 without a word.


# %% tags=["export"]
class Shards(Sequence[Example]):
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
# Is it what chapter 11 would have made? We clean the pairs in the plain way, one after the other, encode them with `encode_pairs`, and compare all examples.

# %%
shards = Shards(folder / "prepared")
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
# And the tokens are where they should be, on disk:

# %%
tokens = shards.tokens[0]
print(type(tokens).__name__, tokens.dtype, "can be written:", tokens.flags.writeable)


# %% [markdown]
# From here on nothing is new. A plan is made from the shapes, the batches from the plan, and training does not know that there is no list.

# %%
plan = plan_batches(shards.shapes, max_tokens=1024, seed=0, epoch=0)
print(plan == plan_batches(shapes_of(examples), 1024, seed=0, epoch=0), f"{len(plan)} batches")
print(sorted(index for batch in plan for index in batch.indices) == list(range(len(shards))))


# %% [markdown]
# And damage is named:

# %%
whole = lost.read_bytes()
lost.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
try:
    Shards(folder / "prepared")
except ValueError as error:
    print(str(error).replace(str(folder) + os.sep, ""))
lost.write_bytes(whole)
Tokenizer.train(pairs[:300], 380).save(folder / "prepared" / "tokenizer.json")
try:
    Shards(folder / "prepared")
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
for name, bytes_, color, marker in (
    ("list of examples", listed, KEY, "o"),
    ("map", mapped, VALUE, "s"),
):
    axis.plot(sizes, bytes_, marker, color=color)
    last = bytes_[-1] / sizes[-1] * 4.5e6
    axis.plot([sizes[0], 4.5e6], [bytes_[0], last], color=color, lw=1.2)
    axis.annotate(
        f"{name}: {last / 1e9:.2g} GB",
        (4.5e6, last),
        (-8, 8),
        textcoords="offset points",
        ha="right",
        color=color,
    )
axis.axhline(8e9, color=RESIDUAL, lw=0.8, ls="--")
axis.set(xscale="log", yscale="log", xlabel="examples", ylabel="bytes in memory", ylim=(500, 1e11))
plt.show()
assert listed[-1] > 100 * mapped[-1]

# %% [markdown]
# ## How long does it take?
#
# There is no WMT14 on the machine on which this book is made, so we build something of its size. The command
#
# ```
# python benchmarks/prepare.py --data deu-eng.zip --data train.en train.de --data train.en train.de --pairs 4500000 --open 4500000
# ```
#
# packs 4.5 million pairs into archives laid out as the real ones, serves them on 127.0.0.1, and prepares them. The sentences are real: 10,000 pairs of WMT, as another project has published them, and for News Commentary the sentence pairs of Tatoeba. They are repeated, each time with another number at their end, so that no two lines are the same and new words never end. The log is `benchmarks/results/prepare.jsonl`.
#
# | stage | seconds | seconds of the processor |
# |---|---|---|
# | fetch and count | 13 | 13 |
# | vocabulary | 108 | 80 |
# | clean and encode | 1,194 | 760 |
#
# The machine has two cores and had other work to do, so the second column is the one to go by. It comes to 5,924 pairs a second and core for cleaning and encoding. With eight cores, and 15 % of the work on one of them as above, this stage should take about 3 minutes for all of German. That is arithmetic: we had no such machine to try it on.
#
# The process never had more than 700 MB of memory. It is the vocabulary that needs most, and by then a million pairs have been counted, whatever the size of the corpus. The shards take 531 MB on disk.
#
# Opening them and planning an epoch with the paper's 25,000 tokens a batch, in another process:
#
# | | |
# |---|---|
# | pairs | 4,568,613 |
# | open without hashing | 0.6 s |
# | open and compare all hashes | 1.0 s |
# | plan an epoch of 5,471 batches | 2.5 s |
# | useful places in it | 94.5% |
# | memory of the process when it begins | 297 MB |
# | when the shards are open | 343 MB |
# | at most, while the epoch is planned | 486 MB |
#
# These are seconds of the processor again, and the last record of the log: the shards of a smaller run, linked under many names until there were 4.6 million. Planning needs the most memory while it sorts. The plan itself, the number of every pair in its place, has four bytes for each.
#
# ### Where do the pairs go?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-rules", "caption": "How many pairs does each rule take? The three pieces of the benchmark. News Commentary is made of sentences from Tatoeba here, which are short and clean; the two others of a WMT sample that was cut into words, with its HTML entities. None was too long."}, "image": {"alt": "Three bars of pairs, each nearly all kept. Lengths apart takes a small part of the first and about a tenth of the two others."}}
counted = {  # kept, too long, lengths apart
    "News Commentary v9": (198_883, 0, 3_617),
    "Europarl v7": (1_761_397, 0, 151_103),
    "Common Crawl": (2_196_953, 0, 188_047),
}
figure, axis = plt.subplots(figsize=(7, 2.2), layout="constrained")
for row, numbers in enumerate(counted.values()):
    left = 0.0
    for number, color, hatch in zip(numbers, (VALUE, INK, KEY), (None, None, "////")):
        share = 100 * number / sum(numbers)
        axis.barh(
            row, share, left=left, color="none" if hatch else color, edgecolor=color, hatch=hatch
        )
        left += share
    axis.text(
        101, row, f"{numbers[2] / sum(numbers):.1%} apart", va="center", fontsize=9, color=KEY
    )
axis.set(
    yticks=range(3), yticklabels=counted, xlim=(0, 118), xlabel="percent of the pairs (solid: kept)"
)
axis.invert_yaxis()
plt.show()


# %% [markdown]
# All that is dropped here is dropped for its lengths. How much that is depends on the texts and on the vocabulary, so these shares say little about WMT14 itself. There, the manifest will tell. Look at it before you train. If one piece loses far more than the others, read some of its pairs.
#
# ## Questions that come up
#
# **May I delete the archives afterwards?** Yes. A finished folder is complete, and `prepare_corpus` finds that out without them. Only a damaged shard needs its archive again.
#
# **Where are the archives?** In the cache, `cache_folder() / "wmt14"`. Put them there yourself if the machine has no network: the names are those in the catalog, and a hash decides whether a file is right.
#
# **I want to add a corpus later.** Take another folder. A vocabulary learned from more text is another vocabulary, and all ids change with it. If you give the old `tokenizer.json`, the ids stay, but shards are not mixed between folders.
#
# **The order of the pairs is that of the archives. Is that not bad for training?** It would be, if training read from front to back. It follows the [plan](11_batching.ipynb), which shuffles examples within their lengths, and batches over the whole epoch. So each batch jumps about in all shards. On a hard disk that turns would be slow; half a gigabyte soon stands in memory, whoever reads it.
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
# 1. By hand: a corpus has 36 million pairs of 70 tokens, both sides together with the special ones. How large are its tokens on disk with a vocabulary of 32,000, and how large are the lengths?
# 2. By hand: a pair has 8 and 13 pieces, another 40 and 61. Which one is dropped, and by which rule?
# 3. What breaks if a line is what `str.splitlines` says it is? Count how many pairs of a text of two lines are then wrong.
# 4. What breaks if the note of a shard is written before its arrays?
# 5. What breaks if shapes are kept in 16 bits, and an order of furrows is computed from them in 16 bits? Find the smallest length at which a key turns over.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 1. Two bytes a token, and two lengths of two bytes a pair
print(f"{36e6 * 70 * 2 / 1e9:.2f} GB of tokens, {36e6 * 2 * 2 / 1e9:.2f} GB of lengths")

# 2. 13 > 12 and 13 > 11: dropped. 61 > 60, and 61 > 43: dropped, too; 12 and 60 would have passed
faults = faults_of_lengths(np.array([(8, 13), (40, 61), (8, 12), (40, 60)]))
print(faults["lengths apart"].tolist())

# 3. The first line becomes two: "still one" stands beside the second, and nothing is left for "two"
german, english = "eins\u2028noch eins\nzwei\n", "one, still one\ntwo\n"
wrong = list(zip(german.splitlines(), english.splitlines()))
print(wrong, "against", list(zip(german.strip().split("\n"), english.strip().split("\n"))))

# 4. A kill in between leaves a note and no arrays. It is found out, because the note has their
# hashes; with the mere existence of a note as the sign, a missing shard would count as made
print(find_damage(folder / "prepared" / "none.npy", {"bytes": 1, "hash": ""}))

# 5. The largest key is about (2w + 1) w + w
print(next(w for w in range(1, 300) if (2 * w + 1) * w + w - 1 > 2**15 - 1))

server.shutdown()
server.server_close()
home.cleanup()
