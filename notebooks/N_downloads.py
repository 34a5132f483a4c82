# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown] needs=["multi30k"]
# # Downloads
#
# This appendix fetches the captions of Multi30k, once for all projects of a user, and uses a file only if it is the right one.
#
# [Data](13_data.ipynb#real-captions) says what the captions are.

# %% tags=["export"]
import gzip
import os
import warnings
from pathlib import Path

from annotated_transformer.data import Pair

# Where notebooks lack a package for its progress bar, pooch warns as it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pooch

# %%
import hashlib
from tempfile import TemporaryDirectory

# %% [markdown]
# ## Is it the right file?
#
# A download can break off half way, or deliver something else. We therefore know each file's **SHA-256** in advance: a number of 256 bits, computed from all bytes of the file. Change one byte and about half of the bits change. The address names one commit of the data set's repository, so the files can't change under us.

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

# %% [markdown]
# ### Why does the hash of my download differ?
#
# Several copies of Multi30k are in circulation, packed differently, and each has its own hash. A program that takes its address from one and its hash from another always fails. Sometimes the reported hash begins with `e3b0c442`, as in [an issue of torchtext](https://github.com/pytorch/text/issues/2215). You can recognize that one:

# %%
print(hashlib.sha256(b"").hexdigest()[:8])
print(hashlib.sha256(b"Ein Hund rennt.").hexdigest()[:8])
print(hashlib.sha256(b"Ein Hund rennt!").hexdigest()[:8])

# %% [markdown]
# It's the hash of nothing: the server sent an empty file. The other two texts differ in one character, and their hashes in seven of the eight digits shown.
#
# ## From files to pairs
#
# Files are kept in one folder per user, which an environment variable can move, so that all your projects share a copy. The library `pooch` downloads into it: each file is written under another name, checked, and renamed when it is complete. A file that is there with the right hash is not fetched again, so you can also fill the folder by hand.


# %% tags=["export"]
class MissingData(RuntimeError):
    """A data set is neither cached nor downloadable; one line names the files and a remedy."""


def cache_folder() -> Path:
    """Where data sets are kept: `$ANNOTATED_TRANSFORMER_CACHE`, else the user's cache folder.

    Raises MissingData where a user has no home, as in some containers.
    """
    chosen = os.getenv("ANNOTATED_TRANSFORMER_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(pooch.os_cache("annotated-transformer"))
    except RuntimeError as error:
        raise MissingData(
            "there is no home folder to keep data sets in: "
            "set ANNOTATED_TRANSFORMER_CACHE to a folder of yours"
        ) from error


# %% [markdown]
# Without network or file, the error names all six files at once, with the address and the folder to put them into.


# %% tags=["export"]
def read_multi30k(name: str) -> list[str]:
    """Return the lines of one of the files, which is downloaded unless the cache has it.

    Raises MissingData if it is neither in the cache nor downloadable.
    """
    folder = cache_folder() / "multi30k"
    pooch.get_logger().setLevel("WARNING")  # it would report each download
    try:
        path = pooch.retrieve(f"{MULTI30K}/{name}", MULTI30K_SHA256[name], name, folder)
    except (OSError, ValueError) as error:  # no network or room; another file came
        names = ", ".join(MULTI30K_SHA256)
        remedy = f"put {names} from {MULTI30K} into {folder}"
        raise MissingData(f"Multi30k is incomplete: {remedy} ({error})") from error
    text = gzip.decompress(Path(path).read_bytes()).decode()
    return text.rstrip("\n").split("\n")


# %% [markdown]
# Each split is two files, and line $i$ of one translates line $i$ of the other. We cut at `\n` only ([appendix C](C_own_data.ipynb#reading) shows why), insist that both have the same number of lines, and strip the spaces around 40 of the German captions.


# %% tags=["export"]
def multi30k(split: str) -> list[Pair]:
    """German captions and their English translations; `split` is train, val or test_2016_flickr.

    Raises MissingData if they are neither in the cache nor downloadable.
    """
    if f"{split}.de.gz" not in MULTI30K_SHA256:
        raise ValueError(
            f"Multi30k has no split {split!r}: take train, val or test_2016_flickr"
        )
    german = read_multi30k(f"{split}.de.gz")
    english = read_multi30k(f"{split}.en.gz")
    return [
        Pair(source.strip(), target.strip())
        for source, target in zip(german, english, strict=True)
    ]


# %%
captions = multi30k("val")
print(len(captions), "pairs, such as", captions[0][:2])

# %% [markdown]
# And here is the beginning of the error, with an empty folder and an address where nobody answers:

# %%
MULTI30K = "http://127.0.0.1:9"
with TemporaryDirectory() as folder:
    os.environ["ANNOTATED_TRANSFORMER_CACHE"] = folder
    try:
        multi30k("val")
    except MissingData as error:
        print(str(error)[:62] + " ...")
