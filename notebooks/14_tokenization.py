# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Tokenization
#
# This chapter turns text into numbers and back without losing a letter: byte-pair encoding with one vocabulary for both languages (section 5.1 of the paper).

# %% tags=["export", "hide-input"]
from collections.abc import Iterable
from itertools import chain

from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from annotated_transformer.data import Pair, as_pair
from annotated_transformer.masks import BOS, EOS, PAD, UNK

# %% [markdown]
# A model reads numbers. The obvious plan is to list all words that occur, and to let each word's place in the list be its number. We list the words of 2,000 German sentences of the grammar, and look up our own.

# %%
from annotated_transformer import grammar
from annotated_transformer.data import words

pairs = grammar(2000, seed=0)
vocabulary = {word for pair in pairs for word in words(pair.source)}
sentence = "Die schwarze Katze mag Fisch."
print([word if word in vocabulary else "?" for word in words(sentence)])

# %% [markdown]
# The black cat what? A word that isn't in the list is lost, and no model can bring it back. The usual fix is an "unknown" token, which merely records that something is missing.
#
# That was a toy. Suppose we list *every* German word of Multi30k's 29,000 training captions. How many of 1,014 new captions contain a word that isn't in the list? Make a guess before you read on: one in a hundred? One in ten?
#
# ## Words as tokens

# %%
from collections import Counter

from annotated_transformer.own_data import multi30k

train, val = multi30k("train"), multi30k("val")
seen = Counter(word for pair in train for word in words(pair.source))
for size in (len(seen), 8000):
    known = {word for word, _ in seen.most_common(size)}
    holes = [[word not in known for word in words(pair.source)] for pair in val]
    of_words = sum(map(sum, holes)) / sum(map(len, holes))
    of_captions = sum(map(any, holes)) / len(holes)
    print(f"{size:6,} words: {of_words:.1%} unknown, in {of_captions:.0%} of captions")

# %% tags=["remove-cell"]
if CHECKING:
    assert len(seen) == 18_483 and len(val) == 1014 and len(train) == 29_000
    assert 0.042 < of_words < 0.044 and 0.38 < of_captions < 0.4

# %% [markdown]
# More than one in four. With a list of the 8,000 most frequent words, a usual size, four words in a hundred are unknown. That sounds harmless until you count captions: four in ten have a hole in them. The reason is length. If holes came at random, a caption of 13 words would be whole with a chance of $0.957^{13} = 0.56$. (They cluster a little, so it's 0.61.)
#
# Here are the longest words of the new captions that aren't in the list of 18,483:

# %%
new = {word for pair in val for word in words(pair.source) if word.isalpha()}
missing = sorted(new - set(seen), key=lambda word: (-len(word), word))
print(*missing[:4], sep="\n")

# %% [markdown]
# German can make a new word out of almost any two old ones, and a reader understands it at once: a `Trockenblumensortiment` is an assortment of dried flowers. No list can hold all such words, but a list can hold many of their parts.
#
# ## Letters as tokens
#
# The other extreme is to number letters, or the bytes that a file stores for them. Every byte, and nearly every letter, is then in the list, and the list is tiny. But the German validation captions have 12.9 words on average, and 73.9 bytes. So in byte-level translation a caption is 5.7 times as long (in character-level translation hardly less), the encoder's attention has $5.73^2 = 33$ times as many weights, and the model must spend layers on finding out that `H`, `u`, `n` and `d` belong together.

# %% tags=["remove-cell"]
if CHECKING:
    length_in_words = sum(len(words(pair.source)) for pair in val) / len(val)
    length_in_bytes = sum(len(pair.source.encode()) for pair in val) / len(val)
    assert (round(length_in_words, 1), round(length_in_bytes, 1)) == (12.9, 73.9)
    assert round(length_in_bytes / length_in_words, 1) == 5.7
    assert round((length_in_bytes / length_in_words) ** 2) == 33

# %% [markdown]
# Between the two lie pieces of words. A **tokenizer** cuts text into pieces, **tokens**, and numbers them by a list of the size that we choose, the **vocabulary**. One function encodes a text as numbers, another decodes them, and nothing may be lost on the way:
#
# $$ \text{decode}(\text{encode}(x)) = x \quad \text{for every text } x. $$ (eq-lossless)
#
# Here are such pieces of our sentence. A **merge** joins two neighbors into one piece; the tokenizer learns which.

# %% tags=["hide-input"]
import json

import altair as alt

from annotated_transformer import load_pretrained
from book.figures import INK, PLUM, SKY, curves, show, show_steps

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-merges", "caption": "How does a text fall into tokens? Our sentence in German and English, cut by the first merges of the book's captions model; an underscore marks a space. `black` is common in captions, so it is one token after 500 merges. Few captions say that anyone likes anything, so `likes` is still in two pieces at the end."}}
pretrained = json.loads(load_pretrained("captions-de-en")[1].text)["model"]
likes = {
    "German": "Die schwarze Katze mag Fisch.",
    "English": "The black cat likes fish.",
}


def cut_by(num_merges):
    """Both sentences, cut by the first `num_merges` merges."""
    cutter = HFTokenizer(
        models.BPE(
            pretrained["vocab"], [*map(tuple, pretrained["merges"][:num_merges])]
        )
    )
    cutter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return {language: cutter.encode(text).tokens for language, text in likes.items()}


def stage(num_merges):
    """A picture of the tokens after so many merges, and a sentence about it."""
    cut = cut_by(num_merges)
    boxes = []
    for language, tokens in cut.items():
        x = 0
        for token in tokens:
            width = 8 * len(token) + 3
            shown = token.replace("Ġ", "_")
            boxes.append({"row": language, "x": x, "end": x + width, "token": shown})
            x += width + 2
    row = alt.Y(
        "row:N",
        sort=None,
        title=None,
        axis=alt.Axis(ticks=False, domain=False, labels=False),
    )
    scale = alt.Scale(domain=[0, 376], nice=False)
    base = alt.Chart(alt.Data(values=boxes)).encode(y=row)
    frames = base.mark_rect(
        fill=SKY, fillOpacity=0.1, stroke=SKY, height=26, cornerRadius=4
    )
    frames = frames.encode(alt.X("x:Q", axis=None, scale=scale), x2="end:Q")
    middle = base.transform_calculate(middle="(datum.x + datum.end) / 2")
    names = middle.mark_text(color=INK, fontSize=12).encode(
        alt.X("middle:Q", axis=None, scale=scale), text="token:N"
    )
    lengths = " and ".join(
        f"{len(tokens)} tokens in {name}" for name, tokens in cut.items()
    )
    label = f"After {num_merges:,} merges the sentence has {lengths}."
    return alt.layer(frames, names).properties(width=376, height=80), label


steps = {f"{n:,}": stage(n) for n in (0, 50, 500, len(pretrained["merges"]))}
show_steps(steps, "How many merges?", start=2)

# %% tags=["remove-cell"]
if CHECKING:
    assert len(pretrained["merges"]) == 5740
    assert cut_by(500)["English"][4:7] == ["Ġl", "ik", "es"]
    assert "Ġblack" in cut_by(500)["English"]
    assert cut_by(5740)["English"][3:5] == ["Ġl", "ikes"]

# %% [markdown]
# ## Byte-pair encoding by hand
#
# Start from letters, and join what often occurs side by side {cite:p}`sennrich2016neural`. Each merge adds one entry to the vocabulary. Frequent words end up whole, rare ones in **subwords**. This is **byte-pair encoding**, BPE for short; Philip Gage invented it in 1994 to compress files.
#
# We do it on six words with made-up counts. Step one: count neighbors.


# %%
from itertools import pairwise


def count_pairs(word_counts):
    """How often two symbols stand side by side, in words that occur so many times."""
    counts = Counter()
    for symbols, frequency in word_counts.items():
        for pair in pairwise(symbols):
            counts[pair] += frequency
    return counts


toy = {"fish": 6, "fishing": 4, "wish": 3, "like": 5, "liking": 3, "is": 7}
for pair, frequency in count_pairs(toy).most_common(4):
    print(pair, frequency)

# %% [markdown]
# `i` and `s` are neighbors in `fish`, `fishing`, `wish` and `is`: 6 + 4 + 3 + 7 = 20. They win. Step two: merge them into one symbol.
#
# **Exercise 1. Write it first** (★, 10 min). Write `merge_pair(symbols, pair)`, which takes a word as a tuple of symbols and joins the pair wherever it stands. Go from left to right, and try it on `aaa` with the pair (`a`, `a`): one of the three must be left over.


# %%
def merge_pair(symbols, pair):
    """The symbols of a word, with the pair joined wherever it stands, from left to right."""
    joined = []
    at = 0
    while at < len(symbols):
        found = symbols[at : at + 2] == pair
        joined.append("".join(pair) if found else symbols[at])
        at += 2 if found else 1
    return tuple(joined)


print(merge_pair(tuple("fishing"), ("i", "s")), merge_pair(tuple("aaa"), ("a", "a")))

# %% [markdown]
# Step three: again. Now `is` is a symbol like any other and may be part of the next pair. Where two pairs are equally frequent, any fixed rule will do. Ours takes the pair whose symbols came first: letters by the alphabet, then merges as they were learned.


# %%
def learn_bpe(word_counts, num_merges):
    """Up to `num_merges` merges, learned from words and how often each occurs."""
    split = {tuple(word): frequency for word, frequency in word_counts.items()}
    age = {letter: n for n, letter in enumerate(sorted({*"".join(word_counts)}))}
    merges = []
    for _ in range(num_merges):
        counts = count_pairs(split)
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], age[pair[0]], age[pair[1]]))
        merges.append(best)
        age.setdefault("".join(best), len(age))
        split = {merge_pair(symbols, best): split[symbols] for symbols in split}
    return merges


merges = learn_bpe(toy, 8)
now = {tuple(word): frequency for word, frequency in toy.items()}
for step, pair in enumerate(merges, start=1):
    frequency = count_pairs(now)[pair]
    now = {merge_pair(symbols, pair): now[symbols] for symbols in now}
    cut = map("·".join, now)
    print(f"{step} {frequency:2} times {'+'.join(pair):6}", *cut, sep="  ")

# %% [markdown]
# The third merge makes `fish` whole. The fifth finds the stem `lik`, the seventh the ending `ing`. No line of the code knows what a stem or an ending is, but parts of words that carry a meaning occur often.
#
# The list of merges is all that has been learned. To cut a new word, start from its letters and apply the merges in the order in which they were learned, because a merge needs the symbols that earlier ones made.


# %%
def apply_bpe(word, merges):
    """Cut a word into the subwords that the merges make, in the order in which they were learned."""
    symbols = tuple(word)
    for pair in merges:
        symbols = merge_pair(symbols, pair)
    return symbols


for word in ("kingfish", "fishlike", "dish"):
    print(apply_bpe(word, merges))

# %% [markdown]
# `fishlike` gets its two parts. `kingfish` gets its `fish`, and a `k` with the ending of `liking`, which is nonsense: merges know counts, not grammar. The `d` of `dish` was in no word of the toy, so it has no number. That's the last hole, and bytes will close it.
#
# Is this the real algorithm? We let Hugging Face's library `tokenizers`, here `HFTokenizer`, learn 200 merges from the words of the grammar.


# %%
def by_library(word_counts, num_merges):
    """The merges that the library learns from the same words, as many of them."""
    library = HFTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    size = len({*"".join(word_counts)}) + num_merges  # the letters are entries, too
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    texts = [f"{word} " * frequency for word, frequency in word_counts.items()]
    library.train_from_iterator(texts, trainer)
    return [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]


spoken = Counter(word for pair in pairs for word in pair.source.split())
ours, theirs = learn_bpe(spoken, 200), by_library(spoken, 200)
equal = sum(mine == other for mine, other in zip(ours, theirs))
print(f"{equal} of {len(theirs)} merges are equal")

# %% tags=["remove-cell"]
if CHECKING:
    from random import Random

    assert by_library(toy, 8) == merges and equal == len(ours) == 200
    assert all("".join(apply_bpe(word, merges)) == word for word in toy)
    rng = Random(0)  # four letters: equal counts and repeated letters are common
    for _ in range(100):
        drawn = [
            "".join(rng.choices("abcd", k=rng.randint(1, 8)))
            for _ in range(rng.randint(1, 12))
        ]
        counted = {word: rng.randint(1, 9) for word in drawn}
        learned = by_library(counted, 8)
        assert learn_bpe(counted, 8)[: len(learned)] == learned

# %% [markdown]
# ## From letters to bytes
#
# Unicode has some 150,000 characters, and any of them can turn up in a name or as a smiling face. A list of them would fill the paper's vocabulary four times. The real tokenizer therefore starts from **bytes**, the numbers from 0 to 255 of which a text file is made. UTF-8 is the rule that writes each character as one to four of them.

# %%
for character in "aß語😀":
    print(character, list(character.encode("utf-8")))

# %% [markdown]
# The merges don't mind: if `ä` is frequent, its two bytes are among the first to be joined. With all 256 bytes in the vocabulary, every text has an encoding, and {eq}`eq-lossless` can hold. GPT-2 made this form of BPE popular {cite:p}`radford2019language`. We take its rule for words, too, `pre_tokenizers.ByteLevel`: a text is cut in front of each space, and the space stays, as the first letter of the word after it. Runs of punctuation marks become pieces of their own, and so do runs of digits. Nothing is thrown away, and merges never cross a space.
#
# ## A tokenizer in code
#
# From here on the library does the work, because it needs only seconds to learn 8,000 merges from the captions. The first four numbers of the vocabulary are reserved, as in [the chapter on masks](04_masks.ipynb#the-padding-mask): padding, start, end, and "unknown", which is kept by custom, since bytes never need it.


# %% tags=["export"]
SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}

# %% [markdown]
# The class is made from a JSON text that holds the merges and the number of every token.


# %% tags=["export"]
class Tokenizer:
    """Text to ids below `len(tokenizer)` and back without loss (section 5.1).

    It is made from the JSON that `text` holds, and raises ValueError for JSON of another kind.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.library = read_bpe(text)

    @classmethod
    def train(cls, texts: Iterable[str | Pair], vocabulary_size: int) -> "Tokenizer":
        """Learn at most `vocabulary_size` entries from texts, or from both sides of pairs."""
        return cls(train_bpe(texts, vocabulary_size))

    def __len__(self) -> int:
        return int(self.library.get_vocab_size())

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self.text,)  # a copy is made anew from the JSON

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start or end."""
        text.encode()  # raises, and says where, if a character has no bytes
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special ones are left out."""
        ids = [index for index in ids if index not in SPECIAL]
        return str(self.library.decode(ids))


# %% [markdown]
# `encode` adds neither start nor end; [batching](15_batching.ipynb#from-pairs-to-arrays) does. `decode` leaves special numbers out, so you can hand it the output of a model as it is.
#
# ### Learning the merges
#
# The vocabulary holds the four reserved entries, the 256 bytes, and what each merge makes. All bytes must be entries, even those that the training texts don't have, since the library drops what has no entry.


# %% tags=["export"]
def train_bpe(texts: Iterable[str | Pair], vocabulary_size: int) -> str:
    """The JSON of a tokenizer with at most `vocabulary_size` entries, from texts or pairs."""
    if isinstance(texts, str):
        raise ValueError("texts is a single text: put it into a list")
    if not 260 <= vocabulary_size <= 1_000_000:
        raise ValueError(
            f"vocabulary_size={vocabulary_size}: take 260 (bytes + 4) to 1,000,000"
        )
    library = HFTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # a sign for each byte
        show_progress=False,
    )
    sides = ([text] if isinstance(text, str) else as_pair(text)[:2] for text in texts)
    library.train_from_iterator(chain.from_iterable(sides), trainer)
    return str(library.to_str())


# %% [markdown]
# ### A tokenizer is part of the model
#
# Say that 1,207 was the number of `Hund` in training. With another vocabulary the same number means something else, and fluent nonsense comes out. So always keep the tokenizer [with the model](A_files.ipynb#saving-and-loading) that was trained with it. And a text that contains the four characters `</s>` must not turn into the reserved entry of that name; `encode_special_tokens = True` prevents it, though its name seems to say the opposite.


# %% tags=["export"]
def read_bpe(text: str) -> HFTokenizer:
    """The library's tokenizer that a JSON describes, with our special entries as ids 0 to 3."""
    try:
        library = HFTokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"not the JSON of a tokenizer: {error}") from error
    if [library.id_to_token(index) for index in SPECIAL] != list(SPECIAL.values()):
        names = ", ".join(SPECIAL.values())
        raise ValueError(f"not a tokenizer of this package: ids 0 to 3 must be {names}")
    # "</s>" in a text is four characters like any others
    library.encode_special_tokens = True
    return library


# %% [markdown]
# (In such a JSON you'll find `Ġ` for a space and `Ã¤` for the two bytes of `ä`. Nothing is broken: the library gives a sign to each byte that can't be shown.)
#
# ## What goes in comes out
#
# We learn from the grammar and read the sentence that a list of words couldn't spell:

# %%
tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
print(len(tokenizer), "entries of 2,000")
ids = tokenizer.encode(sentence)
print(ids)
print([tokenizer.decode([index]) for index in ids])
print(tokenizer.decode(ids))

# %% tags=["remove-cell"]
if CHECKING:
    assert tokenizer.decode(ids) == sentence
    assert len(tokenizer.encode("Hund")) == 2 and len(tokenizer.encode(" Hund")) == 1
    halves = tokenizer.encode("Der Hun") + tokenizer.encode("d schläft.")
    assert len(halves) == 7 and len(tokenizer.encode("Der Hund schläft.")) == 4

# %% [markdown]
# The grammar ran out of pairs to merge, so ask `len(tokenizer)` for the size of the model's table. `mag` and `Fisch` come through, in pieces. The first token of a word carries the space before it, which tells decoding where to put one. At the start of a text there is no space, and so the same word is cut differently there: `Hund` takes two tokens at the start and one after a space. So don't encode a text in parts: the words at a cut come out as the model hardly saw them in training.
#
# Is it lossless for every text? The next cell tries texts that were chosen to break {eq}`eq-lossless`.

# %%
hard = [
    "",  # no text at all
    "  two  spaces\n",
    "\ttab\r\n",
    "cafe\u0301",  # the accent is a character of its own
    "日本語 😀 👩‍👧",
    "\x00\x07\x1b\ufeff\u200f",  # control characters
    "</s> <pad>",
    "Ġ is a letter, too",
    "ﬁ ½ Ⅷ",
]
encoded = [tokenizer.encode(text) for text in hard]
returned = sum(tokenizer.decode(ids) == text for text, ids in zip(hard, encoded))
print(f"{returned} of {len(hard)} texts came back")
print("smallest number:", min(number for ids in encoded for number in ids))

# %% tags=["remove-cell"]
if CHECKING:
    assert returned == len(hard)
    assert min(number for ids in encoded for number in ids) > UNK

# %% [markdown]
# No number is below 4, so no text has turned into a reserved entry. The other way round nothing is promised: a model may write any ids, even half a character, and bytes that aren't text become the sign �.
#
# ## The size of the vocabulary
#
# More entries make sentences shorter, and attention and decoding cheaper. They also make the table of embeddings longer, and each entry rarer in training. The paper's one table holds 37,000 × 512 = 18.9 million numbers, nearly a third of the base model. We learn vocabularies of seven sizes from the training captions. Where would you stop?

# %%
tokens = {}
for size in (260, 500, 1000, 2000, 4000, 8000, 16000):
    tried = Tokenizer.train(train, vocabulary_size=size)
    tokens[size] = sum(len(tried.encode(pair.source)) for pair in val) / len(val)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-vocabulary-size", "caption": "What does a larger vocabulary buy? Mean length of a German validation caption, in tokens of a joint vocabulary and in words."}}
looks = {"tokens": (SKY, [1, 0]), "words": (PLUM, [2, 2])}
in_words = sum(len(words(pair.source)) for pair in val) / len(val)
records = [
    {"size": size, "length": round(length, 2), "counted": name}
    for size, in_tokens in tokens.items()
    for name, length in (("tokens", in_tokens), ("words", in_words))
]
x = alt.X(
    "size:Q",
    title="entries of the vocabulary",
    scale=alt.Scale(type="log", nice=False),
    axis=alt.Axis(values=[*tokens], format="~s"),
)
y = alt.Y("length:Q", title="length of a caption", scale=alt.Scale(domainMin=0))
names = {"tokens": (500, "above right"), "words": (500, "below")}
show(
    curves(records, x, y, "counted", looks, names).properties(width=290),
    alt="The curve falls steeply up to about 4,000 entries and slowly after that, close to the number of words.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert round(tokens[260]) == 74 and round(tokens[4000]) == 17
    assert 1 < tokens[8000] - tokens[16_000] < 1.2 and 8000 * 256 > 2e6
    used = Counter(n for pair in train for text in pair[:2] for n in tried.encode(text))
    rare = sum(used[index] < 10 for index in range(8000, len(tried)))
    assert 0.86 < rare / (len(tried) - 8000) < 0.9

# %% [markdown]
# A German caption has 74 tokens in bytes and 17 with 4,000 entries. Going from 8,000 to 16,000 saves one token more. In a model of width 256 those last 8,000 entries would cost two million parameters, and nearly nine in ten of them occur fewer than ten times in the training captions, too seldom to learn what they mean. For these captions a few thousand entries are plenty.
#
# Learn a vocabulary from the training part alone. One that has seen the validation captions, too, knows all their words, but not those of the next sentence that somebody types.
#
# ## What to remember
#
# - A list of words is never complete: 8,000 German words leave a hole in four of ten new captions.
# - Byte-pair encoding joins the most frequent neighbors until the vocabulary is full. Starting from bytes, nothing is unknown and nothing is lost.
# - Four numbers are reserved and can never come from a text.
# - A tokenizer is part of the model. It learns from the training part alone.
#
# ## Exercises
#
# **1. Write it first** is [above](#byte-pair-encoding-by-hand).
#
# :::{admonition} Solution 1
# :class: dropdown
# Instead of walking by index, you can build the result symbol by symbol: keep a list, and for each symbol ask whether the last of the list and this one are the pair. If so, replace the last by the two joined. On `aaa` this gives `aa`, `a`, too, because the joined symbol `aa` is no longer `a`.
# :::

# %% tags=["remove-cell"]
if CHECKING:

    def joined_at_once(symbols, pair):
        done = []
        for symbol in symbols:
            if done and (done[-1], symbol) == pair:
                done[-1] += symbol
            else:
                done.append(symbol)
        return tuple(done)

    for word in (*spoken, "aaa", "aaaa", "abab"):
        for pair in [("a", "a"), ("a", "b"), ("e", "n")]:
            assert joined_at_once(tuple(word), pair) == merge_pair(tuple(word), pair)

# %% [markdown]
# **2. By hand** (★, 5 min). The words are `aab`, four times, and `ab`, three times. Which two merges come first, and how is `aaab` cut after them?
#
# :::{admonition} Solution 2
# :class: dropdown
# (`a`, `b`) stand side by side $4 + 3 = 7$ times, (`a`, `a`) 4 times, so `ab` comes first. Then `aab` is `a`·`ab`, and the only pair left is (`a`, `ab`), 4 times. So `aaab` becomes `a`·`a`·`ab`, and then `a`·`aab`.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert learn_bpe({"aab": 4, "ab": 3}, 2) == [("a", "b"), ("a", "ab")]
    assert apply_bpe("aaab", [("a", "b"), ("a", "ab")]) == ("a", "aab")

# %% [markdown]
# **3. One or two?** (★★, 15 min). On the grammar, compare one joint vocabulary of 1,000 entries with two of 500, one for each language. Which makes fewer tokens? What else does the joint one save?
#
# :::{admonition} Solution 3
# :class: dropdown
# The joint one cuts the 2,000 pairs into 50,469 tokens, the two into 69,390. Its first 260 entries exist once, so it has room for 740 merges, and each of the others has room for 240. And it needs [one table of embeddings](07_embeddings.ipynb#one-table-three-uses) instead of two.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    joint = Tokenizer.train(pairs, 1000)
    alone = [Tokenizer.train([pair[side] for pair in pairs], 500) for side in (0, 1)]
    count = sum(len(joint.encode(text)) for pair in pairs for text in pair[:2])
    separate = sum(
        len(alone[side].encode(pair[side])) for pair in pairs for side in (0, 1)
    )
    assert (count, separate) == (50_469, 69_390)

# %% [markdown]
# ## Further
#
# ### Where does the paper's 37,000 come from?
#
# Source and target share one vocabulary of about 37,000 entries (section 5.1 of {cite:t}`vaswani2017attention`). So a name in the middle of a sentence, such as `Berlin`, can be copied. Languages in two scripts share little but digits and marks, so for them two vocabularies are the natural choice.
#
# The paper doesn't say how its text was cut into words, but the authors' code does: [tensor2tensor](https://github.com/tensorflow/tensor2tensor) read a corpus cut by Moses' tokenizer and then by 32,000 merges (`train.tok.clean.bpe.32000`). Merges plus letters make the vocabulary: about 37,000 in the paper, ["about 40000 word-pieces"](https://github.com/tensorflow/tensor2tensor/issues/55) as one of the authors wrote. We start from bytes and cut words by another rule, a [departure](../book/departures.md#training), so our tokens are not theirs.
#
# ### WordPiece and the unigram method
#
# WordPiece {cite:p}`wu2016google`, which the paper uses for French and BERT made popular, also merges step by step, but picks the pair that makes the text most probable instead of the most frequent one. The unigram method {cite:p}`kudo2018subword`, the default of the program SentencePiece, starts with many subwords and drops those that are missed least.
#
# ### Should I lower-case the text first?
#
# No, because capitals would be lost for good, and German nouns are told from verbs by theirs. The same goes for tokenizers that normalize text and turn `ﬁ` into `fi` or `½` into `1⁄2`, as SentencePiece does unless it is told not to.
