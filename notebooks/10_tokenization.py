# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Tokenization
#
# This chapter turns text into numbers and back without losing a letter: byte-pair encoding with one vocabulary for both
# languages (section 5.1 of the paper).
#
# A model reads numbers. The obvious plan is to number the words. Let us try it on our grammar, and then read a sentence
# with a word that was not in it.

# %% tags=["export"]
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from annotated_transformer.corpus import Pair
from annotated_transformer.masks import BOS, EOS, PAD, UNK

# %%
import tempfile

from annotated_transformer.corpus import grammar, words

# %%
pairs = grammar(2000, seed=0)
vocabulary = {word for pair in pairs for word in words(pair.source)}
sentence = "Die Großmutter sieht den Igel."
print(len(vocabulary), "words;", [word if word in vocabulary else "?" for word in words(sentence)])

# %% [markdown]
# What is not in the table is lost, and German can make a new word out of any two old ones. The other extreme is to number the
# letters. Then nothing is ever unknown, but sentences get five times longer, and attention costs the square of the length.
#
# ## Byte-pair encoding
#
# The middle way starts from letters and joins what often stands side by side {cite:p}`sennrich2016neural`. Count all pairs of neighbors, make the most frequent
# pair one symbol, and repeat until the vocabulary is as large as we like. Frequent words end up whole, rare ones in **pieces**.
#
# Ten lines do it. We learn five merges from a toy text.

# %%
text = ["w e i t", "w e i t e r", "b r e i t", "b r e i t e r", "z w e i"]
merges = []
for _ in range(5):
    counts = {}
    for word in text:
        for pair in zip(word.split(), word.split()[1:]):
            counts[pair] = counts.get(pair, 0) + 1
    best = max(counts, key=counts.get)
    merges.append("".join(best))
    text = [
        f" {word} ".replace(f" {' '.join(best)} ", f" {''.join(best)} ").strip() for word in text
    ]
print(merges)
print(text)

# %% [markdown]
# The toy finds a stem and an ending. No one told it what those are.
#
# ## From characters to bytes
#
# Unicode has 150,000 characters, and any of them can turn up. So the real tokenizer starts from the 256 **bytes** of UTF-8 in place
# of letters. Every text is a sequence of bytes, so none is unknown, and decoding gives back exactly what went in. We write
# $E$ for encoding and $D$ for decoding. The law is
#
# $$ D(E(x)) = x \quad \text{for every text } x. $$ (eq-lossless)
#
# Source and target share one vocabulary, as in the paper: names and numbers then look the same on both sides, and one
# table of embeddings serves both. The algorithm comes from the `tokenizers` library; the four reserved numbers of
# [masks](02_masks.ipynb) come first.

# %% tags=["export"]
SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


def plain_texts(texts: Iterable[str | Pair]) -> Iterator[str]:
    """Texts as they are, and both sides of pairs."""
    for text in texts:
        if isinstance(text, str):
            yield text
        else:
            yield from (text.source, text.target)


def learn_merges(texts: Iterable[str | Pair], vocabulary_size: int) -> Library:
    """Byte-pair encoding with the four reserved entries, 256 bytes and as many merges as there
    is room for.

    Raises ValueError if there is room for none.
    """
    room = vocabulary_size - len(SPECIAL) - 256
    if room < 0:
        raise ValueError(
            f"vocabulary_size must be at least 260 (4 reserved, 256 bytes), not {vocabulary_size}"
        )
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(plain_texts(texts), trainer)
    return library


# %% [markdown]
# A trained vocabulary belongs to a model as much as its weights do, so it must be kept. The file is JSON: text and numbers,
# nothing that could run. Two traps are closed when one is opened. A file may not be a tokenizer at all. And a text may contain
# the four letters `</s>`, which must not become an end of sentence.


# %% tags=["export"]
def prepare(library: Library) -> Library:
    """Keep text from being read as a reserved entry; raises ValueError if the four reserved
    ones do not come first.
    """
    if any(library.id_to_token(index) != name for index, name in SPECIAL.items()):
        raise ValueError(f"a tokenizer's first entries must be {' '.join(SPECIAL.values())}")
    library.encode_special_tokens = True
    return library


def read_library(path: str | Path) -> Library:
    """Read a tokenizer's JSON; raises ValueError if it is something else."""
    content = Path(path).read_bytes()
    try:
        return Library.from_str(content.decode())
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path} is not a tokenizer: {error}") from error


# %% [markdown]
# What the other chapters see is this.


# %% tags=["export"]
class Tokenizer:
    """Text to ids below `len(tokenizer)` and back, without loss, for any text (section 5.1)."""

    def __init__(self, library: Library) -> None:
        self.library = prepare(library)

    @classmethod
    def train(cls, texts: Iterable[str | Pair], vocabulary_size: int) -> "Tokenizer":
        """Learn at most `vocabulary_size` entries from texts, or from both sides of pairs."""
        return cls(learn_merges(texts, vocabulary_size))

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a saved tokenizer; raises ValueError if the file is something else."""
        return cls(read_library(path))

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON."""
        Path(path).write_text(self.library.to_str(pretty=True), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start or end."""
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; reserved ones are left out."""
        return str(self.library.decode([index for index in ids if index not in SPECIAL]))

    def __len__(self) -> int:
        return int(self.library.get_vocab_size())


# %% [markdown]
# ## What goes in comes out
#
# Two thousand entries hold every word of the grammar whole. An unknown word falls apart into pieces, and none is lost.

# %%
tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
ids = tokenizer.encode(sentence)
print([tokenizer.decode([index]) for index in ids])
assert tokenizer.decode(ids) == sentence

# %% [markdown]
# A piece carries the space before it, which is how decoding knows where to put one. Now the law {eq}`eq-lossless`, on texts that
# were chosen to break it.

# %%
for text in [
    "",
    " ",
    "  two  spaces\n",
    "\ttab\r\n",
    "naïve café",
    "日本語 😀",
    "\x00\ufeff",
    "</s> <pad>",
    "1 + 1 = 2",
]:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and min(ids, default=4) > UNK
print("every text came back, and none used a reserved number")

# %% [markdown]
# How large should the vocabulary be? The paper takes about 37,000 entries for millions of sentences. More entries make
# sentences shorter and the table of embeddings longer.

# %%
for size in (260, 500, 1000, 2000):
    tried = Tokenizer.train(pairs, vocabulary_size=size)
    length = sum(len(tried.encode(pair.target)) for pair in pairs) / len(pairs)
    print(f"{len(tried):5} entries: {length:4.1f} tokens a sentence")

# %% [markdown]
# Saving and loading changes nothing. Anything else is refused.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "tokenizer.json")
    tokenizer.save(path)
    assert Tokenizer.load(path).encode(sentence) == tokenizer.encode(sentence)
    path.write_text("[]")
    try:
        Tokenizer.load(path)
    except ValueError as error:
        print(str(error).split("/")[-1].partition(":")[0])

# %% [markdown]
# ## What to remember
#
# - Byte-pair encoding joins the most frequent neighbors until the vocabulary is full: frequent words whole, rare ones in pieces.
# - Starting from bytes, nothing is unknown and nothing is lost.
# - One vocabulary serves both languages. Four numbers are reserved and can never come from a text.
