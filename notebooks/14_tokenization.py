# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(
        [
            "git",
            "clone",
            "-q",
            "--depth",
            "1",
            "https://github.com/annotated-transformer/annotated-transformer",
            "/content/book",
        ],
        check=True,
    )
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # Tokenization
#
# This chapter turns text into numbers and back without losing a letter: byte-pair encoding with one vocabulary for both languages (section 5.1 of the paper).
#
# A model reads numbers. The obvious plan is to number the words: list all that occur, and let each one's place in the list be its number. Let us try it on our grammar, and then read a sentence with two words that were not in it.

# %% tags=["export"]
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from annotated_transformer.data import Pair
from annotated_transformer.masks import BOS, EOS, PAD, UNK

# %%
import copy
import tempfile
from collections import Counter
from itertools import pairwise
from random import Random

import altair as alt
import spacy

from annotated_transformer.data import MissingData, multi30k, words
from annotated_transformer.synchronous_grammar import grammar
from book.figures import INK, KEY, QUERY, VALUE, curves, show, show_steps

# %%
pairs = grammar(2000, seed=0)
vocabulary = {word for pair in pairs for word in words(pair.source)}
sentence = "Die Großmutter sieht den Igel."
print(len(vocabulary), "words;", [word if word in vocabulary else "?" for word in words(sentence)])

# %% [markdown]
# Who sees what? What is not in the list is lost, and no model can bring it back. The usual trick is a number for "unknown", and it only makes the loss official.
#
# The list of what has a number is the **vocabulary**, and what gets a number is a **token**. Why numbers at all? Because the first thing a model does is to look up a row of a table ([embeddings](07_embeddings.ipynb)), and rows are found by number. The numbers have no order that means anything: 17 is not nearer to 18 than to 900.
#
# This chapter asks what the tokens should be. Three answers are worth a look:
#
# | tokens | entries | length of a sentence | unknown |
# |---|---|---|---|
# | words | many, never all | short | each new word |
# | bytes | 256 | some six times as long | nothing |
# | pieces of words | as many as we like | a little longer than in words | nothing |
#
# Words come first, since it is worth knowing how well they do. Then we build something better from the letters up, by hand and on a toy. At the end stands the tokenizer that the rest of the book uses. It takes its merges from pieces and its completeness from bytes.
#
# ## What is a word?
#
# Even this is not clear. Python's `split` cuts at spaces, so that *Igel.* with its full stop is another word than *Igel*. To cut off every mark, as `words` of the last chapter does, goes wrong the other way:

# %%
odd = "Sie zahlt z. B. 3,50 Euro und can't say U.S.A. right."
print("·".join(odd.split()))
print("·".join(words(odd)))

# %% [markdown]
# Our `words` breaks a price in three, and *can't* as well. A rule-based tokenizer knows such cases: it has a list of abbreviations and exceptions for each language. spaCy has good ones, which need no trained model and no download.

# %%
rules = {"German": spacy.blank("de").tokenizer, "English": spacy.blank("en").tokenizer}
for language, rule in rules.items():
    print(language, "·".join(token.text for token in rule(odd)))

# %% [markdown]
# The price is whole now. Each language knows its own exceptions and not the other's: German keeps *can't* as it is, English makes *ca* and *n't* of it. So there is one program per language, written by people who know it, and we would need one for every pair that a reader brings along.
#
# Such words also cannot be put together again. Where was a space, and where was none?

# %%
tokens = [token.text for token in rules["English"]("I can't (today).")]
print(" ".join(tokens))

# %% [markdown]
# A second program must guess how to undo the first: no space in front of a full stop, none behind an opening bracket, one before *n't* or not? It is called a detokenizer, and its mistakes are counted against the translation. (The scores of many early papers were computed on tokens like these, and cannot be compared with scores on plain text.)
#
# ## How many words are unknown?
#
# Our 2,000 sentences have 303 German words, and more of them would bring no surprises. Captions written by people are the better test, so we take Multi30k where it can be had. Words are cut by spaCy's rules and counted on the training part. What is unknown is measured on the validation part, on sentences that nobody looked at while counting. Without the data, the grammar stands in, and the numbers below look different.

# %%
try:
    train, val = multi30k("train"), multi30k("val")
except MissingData:
    train, val = grammar(6000, seed=1)[:5000], grammar(6000, seed=1)[5000:]


def spacy_words(pairs, side, language):
    return [[t.text for t in doc] for doc in rules[language].pipe(pair[side] for pair in pairs)]


seen = {
    L: Counter(w for s in spacy_words(train, side, L) for w in s) for side, L in enumerate(rules)
}
unseen = {L: spacy_words(val, side, L) for side, L in enumerate(rules)}


# %% tags=["nbval-ignore-output"]
def unknown(language, size):
    """The shares of words and of sentences that the most frequent `size` words do not cover."""
    known = {word for word, _ in seen[language].most_common(size)}
    missing = [sum(word not in known for word in s) for s in unseen[language]]
    return sum(missing) / sum(map(len, unseen[language])), sum(map(bool, missing)) / len(missing)


for language in rules:
    of_words, of_sentences = unknown(language, 8000)
    print(f"{language}: {len(seen[language]):,} words; of new text, the most frequent 8,000 miss")
    print(f"    {of_words:.1%} of the words, in {of_sentences:.0%} of the sentences")
    assert of_words < 0.2

# %% [markdown]
# `unknown` counts twice: how many of the words are missing, and how many sentences miss at least one. Eight thousand words miss about one German word in twenty. That sounds harmless until one counts sentences: two out of five have a hole in them. The reason is length. With one word in twenty missing at random, a sentence of 13 words is whole with a chance of $0.95^{13} = 0.51$. Real holes come in clusters, so it is not quite as bad.
#
# In English one sentence in five has a hole. Would more words help?

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-unknown", "caption": "Does a larger list of words help? Share of new sentences with at least one unknown word, by the number of words that are kept, most frequent first. The curves end where every word of the 29,000 training captions is kept. In German three sentences in ten still have a hole."}}
looks = {"German": (QUERY, [1, 0]), "English": (KEY, [6, 3])}
records = [
    {"size": size, "share": round(100 * unknown(language, size)[1], 2), "language": language}
    for language in rules
    for size in (500, 1000, 2000, 4000, 8000, len(seen[language]))
]
ticks = alt.Axis(values=[500, 1000, 2000, 4000, 8000, 16000], format="~s")
log = alt.Scale(type="log", nice=False)
x = alt.X("size:Q", title="words in the vocabulary", scale=log, axis=ticks)
y = alt.Y("share:Q", title="% of sentences with an unknown word", scale=alt.Scale(domainMin=0))
show(
    curves(records, x, y, "language", looks),
    alt="Both curves fall with the size of the vocabulary and flatten out. German ends at about 30 percent of sentences with an unknown word, English at about 14.",
)

# %% [markdown]
# Not enough. The curves end because the words of the corpus do; what is missing there is not in the corpus at all. And they fall slowly, because most words are rare: more than half of the German ones occur a single time in 29,000 captions, and new text is full of others like them. Here are the longest words that the validation sentences have and the training sentences do not.

# %% tags=["nbval-ignore-output"]
new = {
    word for s in unseen["German"] for word in s if word not in seen["German"] and word.isalpha()
}
print(*sorted(new, key=lambda word: (-len(word), word))[:4], sep="\n")

# %% [markdown]
# German makes a new word out of any two old ones, and a reader understands it at once: a *Trockenblumensortiment* is an assortment of dried flowers. No list can hold such words. But their parts are in every list.
#
# There is a way to make the problem vanish, and it is a mistake. It has been made in public more than once.

# %%
cheated = Counter(word for text in (*unseen["German"], seen["German"]) for word in text)
missed = sum(word not in cheated for s in unseen["German"] for word in s)
print("words unknown, if the vocabulary is built on the evaluation sentences too:", missed)

# %% [markdown]
# Zero, and it means nothing. The next sentence that someone types was not in anybody's test set. **A vocabulary is learned from the training part, like everything else.**
#
# ## Why not letters?
#
# The other extreme is to number the letters. Then nothing is ever unknown, and the vocabulary is tiny. But sentences get about six times longer, since a German word of the captions has six letters with its space. Attention has a weight for each pair of positions, so there are $6^2 = 36$ times as many of them. A translation is also written one token at a time: six times the tokens are six times the steps. And a model must find out by itself that *H-u-n-d* belongs together, and spend its layers on that.
#
# ## Byte-pair encoding
#
# The middle way starts from letters and joins what often stands side by side {cite:p}`sennrich2016neural`. Count all pairs of neighbors, make the most frequent pair one symbol, write it down as a **merge**, and repeat. Frequent words end up whole, rare ones in **pieces**. This is **byte-pair encoding** (BPE), after a method to compress files.
#
# Two facts follow before we write a line. Each merge adds one entry to the vocabulary, so its size is ours to choose: letters plus merges. And nothing is ever unknown, as long as the letters are known, because letters stay in the vocabulary when they are merged.
#
# We do it by hand, on five words with made-up counts. A word is a tuple of symbols, and at first these are its letters.

# %%
toy = {"weit": 5, "weiter": 4, "breit": 3, "breiter": 2, "zwei": 3}
letters = {tuple(word): count for word, count in toy.items()}
for symbols, count in letters.items():
    print(count, "times", " ".join(symbols))

# %% [markdown]
# Step one, count. Each word counts as often as it occurs, so what stands in *weit* counts five times. `pairwise` gives the neighbors: of *zwei*, it is *zw*, *we* and *ei*.


# %%
def count_pairs(words):
    """How often two symbols stand side by side, in words that occur so many times."""
    counts = Counter()
    for symbols, count in words.items():
        for pair in pairwise(symbols):
            counts[pair] += count
    return counts


# %%
for pair, count in count_pairs(letters).most_common(4):
    print(pair, count)

# %% [markdown]
# *E* and *i* are neighbors in all five words: 5 + 4 + 3 + 2 + 3 = 17. *I* and *t* are so in all but *zwei*, which leaves 14. *W* and *e* stand together in *weit*, *weiter* and *zwei*, so 5 + 4 + 3 = 12. The first pair wins.
#
# Step two, merge. Wherever the two stand side by side, they become one symbol. We go from left to right, which matters where a letter is repeated: *aaa* becomes *aa a*. Where the pair is found, we step over both of its symbols, and otherwise over one.


# %%
def merge_pair(symbols, pair):
    """The symbols of a word, with the pair joined wherever it stands, from left to right."""
    joined, at = [], 0
    while at < len(symbols):
        found = symbols[at : at + 2] == pair
        joined.append("".join(pair) if found else symbols[at])
        at += 2 if found else 1
    return tuple(joined)


# %%
print(merge_pair(tuple("breiter"), ("e", "i")))
print(merge_pair(tuple("aaa"), ("a", "a")))

# %% [markdown]
# *Breiter* has one symbol less.
#
# Step three, again. After the merge *ei* is a symbol like any other and may be part of the next pair. One question is left: what if two pairs are equally frequent? Any rule will do as long as it is always the same one, so that a corpus gives one vocabulary and not several. Ours is the library's: letters are numbered by the alphabet and merges behind them, and the pair with the smaller numbers wins.
#
# So `best` is the pair with the smallest triple: minus its count, then the number of its left symbol, then that of its right one. Tuples are compared from the left, and the numbers only come into play where counts are equal. `setdefault` gives a number to a new symbol, and leaves it alone if the symbol exists: *aaa* can arise from *aa* + *a* and again from *a* + *aa*, and it is one symbol.


# %%
def learn_bpe(words, count):
    """Learn up to `count` merges from words and how often they occur; among equals, the pair whose
    symbols are older wins (section 5.1). Slow: it counts anew for each merge.
    """
    split = {tuple(word): times for word, times in words.items()}
    numbers = {letter: number for number, letter in enumerate(sorted({*"".join(words)}))}
    merges = []
    while len(merges) < count and (counts := count_pairs(split)):
        best = min(counts, key=lambda pair: (-counts[pair], numbers[pair[0]], numbers[pair[1]]))
        merges.append(best)
        numbers.setdefault("".join(best), len(numbers))
        split = {merge_pair(symbols, best): times for symbols, times in split.items()}
    return merges


# %% [markdown]
# Here are the first seven steps. Each line is one merge: how often the pair stood there, the new symbol, and the five words after it.

# %%
merges = learn_bpe(toy, 7)
now = dict(letters)
for step, pair in enumerate(merges, start=1):
    count = count_pairs(now)[pair]
    now = {merge_pair(symbols, pair): times for symbols, times in now.items()}
    cuts = "   ".join("·".join(symbols) for symbols in now)
    print(f"{step} {count:3} times {'+'.join(pair):8} {cuts}")

# %% [markdown]
# The first two lines are the counts from above, 17 and 14. The third is not 12: *w* has 12 neighbors *e*, but three of these now belong to the *ei* of *zwei*, which leaves $5 + 4 = 9$ for *w* + *eit*.
#
# After two merges all five words share *eit* or *ei*. The third makes *weit* whole, the most frequent word. The fourth finds an ending, *er*, which turns *far* into *farther* in German as it does in English. No one told the toy what a stem or an ending is: what is frequent is often what means something. Steps five and six had equal counts, *b+r* and *r+eit* with five each, and the rule took *b+r*.
#
# The list of merges is all that has been learned. To **cut** a new word, start from its letters and apply the merges in the order in which they were learned. The order matters, since later merges are made of what earlier ones leave; exercise 2 shows what happens otherwise.


# %%
def apply_bpe(word, merges):
    """Cut a word into the subwords that the merges make, in the order in which they were learned."""
    symbols = tuple(word)
    for pair in merges:
        symbols = merge_pair(symbols, pair)
    return symbols


# %%
for word in ("weiter", "zweiter", "heiter"):
    print(apply_bpe(word, merges))

# %% [markdown]
# *Zweiter* and *heiter* were not in the toy. The first comes out as its letter *z* and a known word, which is wrong, by the way: *zweiter* is *second*, and has nothing to do with *farther*. Merges know counts and no grammar. The *h* of *heiter* was in no word of the toy, so it has no number there. It is the last hole, and we will close it with bytes.
#
# ### Is this what libraries do?
#
# Does our toy do what others do? The `tokenizers` library counts in a cleverer way that does not start anew each time. Its merges must be ours, in the same order.

# %%
library = HFTokenizer(models.BPE())
library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
size = len({*"".join(toy)}) + len(merges)
trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
library.train_from_iterator((f"{word} " * count for word, count in toy.items()), trainer)
learned = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
assert learned == merges
assert library.encode("zweiter").tokens == list(apply_bpe("zweiter", merges))
print("the same", len(learned), "merges")

# %% [markdown]
# One toy proves little. So we let chance make words of four letters, in which equal counts and repeated letters abound, and compare again: what is learned, how a new word is cut, and that its pieces are the word again.


# %%
def by_library(words, count):
    """The library's tokenizer with the same number of merges, from the same words."""
    library = HFTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    size = len({*"".join(words)}) + count
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    library.train_from_iterator((f"{word} " * times for word, times in words.items()), trainer)
    return library


rng = Random(0)
for _ in range(300):
    drawn = ["".join(rng.choices("abcd", k=rng.randint(1, 8))) for _ in range(rng.randint(1, 12))]
    corpus = {word: rng.randint(1, 9) for word in drawn}
    new = "".join(rng.choices("".join(drawn), k=12))
    theirs, ours = by_library(corpus, 8), learn_bpe(corpus, 8)
    learned = [tuple(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    assert ours[: len(learned)] == learned
    assert list(apply_bpe(new, learned)) == theirs.encode(new).tokens
    assert "".join(apply_bpe(new, ours)) == new
    assert learn_bpe(dict(reversed(corpus.items())), 8) == ours  # the order does not matter
print("the same merges and the same cuts for 300 random corpora")

# %% [markdown]
# Now more words: the German side of our grammar.

# %%
counts = Counter(word for pair in pairs for word in words(pair.source))
print(sum(counts.values()), "words,", len(counts), "different ones")

# %% [markdown]
# This is the first saving, and both of us make it: we count different words with their numbers, and not the running text. But we walk through all of them again for each merge. The library remembers in which words a pair occurs and updates only those; exercise 5 shows why that is enough. It is also written in a faster language. Ours takes about a second for 400 merges of these words. The library learns 8,000 from 58,000 real captions in a few.
#
# Cutting can be made faster, too. `apply_bpe` tries each merge on each word, and most do not occur in it. The other way around, we ask which of the pairs in the word was learned first, join it, and ask again. *Königinnen* needs at most nine rounds then, one for each pair of letters, however many merges there are.

# %%
learned = learn_bpe(counts, 400)
ranks = {pair: rank for rank, pair in enumerate(learned)}


def cut_faster(word):
    symbols = tuple(word)
    while known := [pair for pair in pairwise(symbols) if pair in ranks]:
        symbols = merge_pair(symbols, min(known, key=ranks.get))
    return symbols


assert all(cut_faster(word) == apply_bpe(word, learned) for word in counts)
print("the same pieces for all", len(counts), "words")

# %% [markdown]
# ### Common words and rare words
#
# We follow four words through the 400 merges: one that is common, one that is rarer, and two that the grammar does not have. Choose how many merges are applied.

# %%
assert learned[:50] == learn_bpe(counts, 50)
watched = {"Königinnen": "common", "schläft": "rare", "Gartenbuch": "new", "Großmutter": "new"}
for word in watched:
    print(f"{word:11} {counts[word]:3} times, {len(apply_bpe(word, learned))} pieces")


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-merges", "caption": "What happens to a word as merges grow? Four German words, cut by the first merges of our grammar. The common word becomes whole first. The new ones stay in pieces for good, and the pieces are made of what the grammar knows: *Gartenbuch* (garden book) keeps its garden."}}
def stage(count):
    """The watched words, cut by the first `count` merges."""
    boxes = []
    for word, kind in watched.items():
        x = 0
        for piece in apply_bpe(word, learned[:count]):
            width = 12 * len(piece) + 6
            boxes.append({"word": f"{word}: {kind}", "x": x, "end": x + width, "piece": piece})
            x += width + 5
    row = alt.Y("word:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False, offset=8))
    scale = alt.Scale(domain=[0, 190], nice=False)
    base = alt.Chart(alt.Data(values=boxes)).encode(y=row)
    frames = base.mark_rect(fill=VALUE, fillOpacity=0.16, stroke=VALUE, height=26, cornerRadius=4)
    frames = frames.encode(alt.X("x:Q", axis=None, scale=scale), x2="end:Q")
    middle = base.transform_calculate(middle="(datum.x + datum.end) / 2")
    names = middle.mark_text(color=INK, fontSize=13).encode(
        alt.X("middle:Q", axis=None, scale=scale), text="piece:N"
    )
    cut = {word: len(apply_bpe(word, learned[:count])) for word in watched}
    label = f"After {count} merges, the pieces are: " + ", ".join(
        f"{w} {n}" for w, n in cut.items()
    )
    return alt.layer(frames, names).properties(width=300, height=150), label + "."


show_steps({str(n): stage(n) for n in (0, 40, 120, 400)}, "How many merges?", start=2)

# %% [markdown]
# Every stage is a compromise. With no merges the pieces are letters, few in kind and many in number. With all of them, a word that was seen often is one token, and a new word still is no worse than its letters.
#
# ## From characters to bytes
#
# One hole is left. A *new letter* is in no list. Unicode has some 150,000 characters, and any of them can turn up, in a name or as a smiling face. To list them all would fill the vocabulary of the paper four times. So the real tokenizer starts from **bytes** in place of letters. A text file is a sequence of bytes, that is of numbers from 0 to 255, and UTF-8 is the rule that writes each character as one to four of them.

# %%
for character in "aßж語😀":
    print(character, list(character.encode("utf-8")))

# %% [markdown]
# The merges do not mind. A pair of bytes is a pair of symbols, and if *ä* is frequent, its two bytes are among the first to be joined. The method gave byte-pair encoding its name: it was made for bytes and later used for letters.
#
# With all 256 bytes in the vocabulary, every text has an encoding and none is unknown. Decoding gives back exactly what went in. We write $E$ for encoding and $D$ for decoding. The law is
#
# $$ D(E(x)) = x \quad \text{for every text } x. $$ (eq-lossless)
#
# ### Where do words come from now?
#
# From one rule for all languages, in place of a program for each. A text is cut in front of each space, and the space stays, as the first letter of the word behind it. Marks are cut off as well. So nothing is thrown away, and merges never run across a space: they make words and parts of words, no phrases. Without that rule *of the* would be one of the first entries, and *in the*, and the vocabulary would fill up with such pairs before it had the nouns.

# %%
cutter = pre_tokenizers.ByteLevel(add_prefix_space=False)
print([piece for piece, _ in cutter.pre_tokenize_str("Der Hund schläft.")])

# %% [markdown]
# ### Why do I see Ġ and Ã¤?
#
# It looks like a broken encoding, and many people have reported it as one. It is not. Some bytes are no visible character: the space, the line end, and every byte above 127 taken alone. To store merges as readable text, the library gives each of the 256 bytes a visible sign of its own. The space gets `Ġ`. The two bytes of *ä*, 195 and 164, get `Ã` and `¤`. Only the inside of the tokenizer looks like this, and decoding turns the signs back into bytes.
#
# To see what a token stands for, decode it by itself, as we will do below.
#
# ### Reserved numbers
#
# Four numbers are reserved, those of [masks](04_masks.ipynb) for padding, start, end and unknown. They come first in the vocabulary. A text must never turn into one of them, even if it contains the four characters `</s>`.

# %% tags=["export"]
SPECIAL = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}

# %% [markdown]
# ### One vocabulary for both languages
#
# Source and target share one vocabulary, as in the paper, where about 37,000 entries serve German and English. Names and numbers then look the same on both sides, and to translate *Berlin* is to copy a token. And one table of embeddings can serve source, target and output, which [embeddings](07_embeddings.ipynb) made use of. The paper says no more than that. It does not tell how text was cut into words before the merges, nor whether anything was lower-cased, so two people who follow it end up with two vocabularies. Ours is defined by the code below.
#
# ## A tokenizer in code
#
# A byte-level tokenizer is made of its merges and of nothing else. Its entries are the four special ones, the 256 bytes, and what each merge makes, in this order. So we can build the library's tokenizer from merges alone.


# %% tags=["export"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())  # a visible sign for each of the 256


def byte_level_bpe(merges: Sequence[tuple[str, str]]) -> HFTokenizer:
    """A tokenizer of the library: ids 0 to 3 are special, then bytes, then what the merges make."""
    names = list(SPECIAL.values())
    entries = dict.fromkeys([*names, *BYTES, *map("".join, merges)])
    library = HFTokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, [*merges]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(names)
    library.encode_special_tokens = True  # "</s>" in a text is four characters like any others
    return library


# %% [markdown]
# Four lines deserve a word.
#
# - `dict.fromkeys` numbers the entries and drops repetitions: *aaa* can arise from *aa* + *a* and from *a* + *aa*, and it is one entry.
# - `add_prefix_space=False`: no space is put in front of a text. With it, decoding would return one more than went in.
# - `decoders.ByteLevel` turns signs back into bytes, and bytes into text. A library without a decoder joins tokens with spaces.
# - `encode_special_tokens = True` keeps text and special entries apart. By default the library searches each text for `</s>` and turns it into number 2. The option is named as if it did that. It means the opposite: encode such names like any other text.
#
# All 256 bytes are entries, also those that the training texts do not have. This is easily forgotten, and what breaks then breaks in silence. What has no entry is not unknown, it is dropped:

# %%
bare = HFTokenizer(models.BPE())
bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bare.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
bare.train_from_iterator([text for pair in pairs for text in pair[:2]], trainer)
print(bare.decode(bare.encode("Quark für 5 Euro").ids))

# %% [markdown]
# Our grammar has no *Q* and no *5*, so they are gone. No error was raised, and a model would translate something that nobody said.
#
# ### Learning the merges
#
# Training itself is the library's work. A tokenizer can learn from texts or from pairs, of which it takes both sides: a joint vocabulary is counted over both languages together. We say how large it may get. Of 2,000 entries, 4 are special and 256 are bytes, which leaves room for 1,740 merges. What comes out is JSON: text and numbers, nothing that could run.


# %% tags=["export"]
def train_bpe(texts: Iterable[str | Pair], vocabulary_size: int) -> str:
    """The JSON of a tokenizer with at most `vocabulary_size` entries, from texts or pairs."""
    if isinstance(texts, (str, Pair)):
        raise ValueError("texts is a single text or pair: put it into a list")
    if vocabulary_size < 260:
        raise ValueError(f"vocabulary_size={vocabulary_size} must be at least 260: 256 bytes + 4")
    library = byte_level_bpe([])
    start = {"special_tokens": [*SPECIAL.values()], "initial_alphabet": BYTES}
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size, show_progress=False, **start)
    sides = ([text] if isinstance(text, str) else text[:2] for text in texts)
    library.train_from_iterator((side for both in sides for side in both), trainer)
    return str(library.to_str())


# %% [markdown]
# ### A tokenizer is part of the model
#
# A trained vocabulary belongs to a model as much as its weights do. Say that 1,207 was the number of *Hund* in training. With another vocabulary the same number means something else, no error is raised, and fluent nonsense comes out. So the JSON is kept beside the weights, and they remember its SHA-256.
#
# Whatever is read back is built anew from its merges and compared with what the JSON describes. A file of another kind, such as one that normalizes text or has "a" in the place of padding, is refused.


# %% tags=["export"]
def read_bpe(text: str, origin: str | Path) -> HFTokenizer:
    """The tokenizer that a JSON describes; raises ValueError if `train_bpe` makes no such."""
    try:
        merges = json.loads(text)["model"]["merges"]
        library = byte_level_bpe([(left, right) for left, right in merges])
        if HFTokenizer.from_str(text).to_str() != library.to_str():
            raise ValueError("it differs from what Tokenizer.train makes")
        return library
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{origin} is not a tokenizer of this package: {error}") from error


# %% [markdown]
# What the other chapters see is this class. There are three ways to get a tokenizer: `train` it, or read its JSON from text or from a file. All end in `__init__`, so a tokenizer that was loaded cannot behave differently from one that was trained. Copies, also those that other processes get, are made from the JSON too (`__reduce__`): the library's own copy forgets to read `</s>` as text.
#
# `encode` adds neither start nor end. Who needs them puts them there: the target gets both, and the source only an end ([batching](15_batching.ipynb)). `decode` leaves special numbers out, so the output of a model can be handed over as it is.


# %% tags=["export"]
class Tokenizer:
    """Text to ids below `len(tokenizer)` and back without loss (section 5.1).

    It is made from JSON, whose SHA-256 is its name. Raises ValueError for JSON of another kind.
    """

    def __init__(self, text: str, origin: str | Path = "this text") -> None:
        self.library = read_bpe(text, origin)
        self.text, self.sha256 = text, hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def train(cls, texts: Iterable[str | Pair], vocabulary_size: int) -> "Tokenizer":
        """Learn at most `vocabulary_size` entries from texts, or from both sides of pairs."""
        return cls(train_bpe(texts, vocabulary_size))

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a saved tokenizer; raises ValueError if the file is something else."""
        return cls(Path(path).read_text(encoding="utf-8", errors="replace"), path)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON."""
        Path(path).write_text(self.text, encoding="utf-8")

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self.text,)

    def __len__(self) -> int:
        return int(self.library.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without start or end; half a surrogate raises ValueError."""
        text.encode()  # its error names the place, the library's does not
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special ones are left out."""
        return str(self.library.decode([index for index in ids if index not in SPECIAL]))


# %% [markdown]
# Is there text that has no bytes? Nearly none. Python lets a string hold half of a *surrogate pair*, a leftover of an older encoding. It comes about when a file is read with `errors="surrogateescape"`, and it is no character. Such a string is refused, with the place of the culprit.
#
# ## What goes in comes out
#
# Two thousand entries hold every word of the grammar whole. An unknown word falls apart into pieces, and none is lost.

# %%
tokenizer = Tokenizer.train(pairs, vocabulary_size=2000)
ids = tokenizer.encode(sentence)
print([tokenizer.decode([index]) for index in ids])
assert tokenizer.decode(ids) == sentence

# %% [markdown]
# The sentence that began this chapter comes through, grandmother, hedgehog and all. A piece carries the space before it, which is how decoding knows where to put one. No detokenizer has to guess.
#
# ### One text, all the way
#
# It helps to follow one text all the way. Characters become bytes, bytes are cut into words, words are joined up to pieces, and each piece has a number:

# %%
text = "Der Hund schläft."
print(len(text), "characters,", len(text.encode("utf-8")), "bytes")
print(len(cutter.pre_tokenize_str(text)), "words,", len(tokenizer.encode(text)), "tokens")
print(tokenizer.encode("der Hund") == tokenizer.encode("Der Hund"), "that case does not matter")

# %% [markdown]
# Seventeen characters are eighteen bytes, because of the *ä*, and four tokens, since the grammar has each of these words often enough. A capital letter makes another token: to the model, *der* and *Der* are two numbers that happen to be used alike. It has to learn that, and with enough text it does.
#
# ### Why does one word have two numbers?
#
# The space is part of the token. So a word at the start of a text, with no space before it, is cut otherwise than the same word later.

# %%
for text in ("Hund", " Hund"):
    print([tokenizer.decode([index]) for index in tokenizer.encode(text)])

# %% [markdown]
# In our grammar no sentence begins with *Hund*, so only the form with a space became one token. In real text, *Peter* begins some sentences and stands inside of others, and takes two entries. This wastes some room, and it is the price for getting spaces back without a guess.
#
# A related surprise: texts cannot be encoded in parts. Where a text is cut, so are its words.

# %%
parts = tokenizer.encode("Der Hun") + tokenizer.encode("d schläft.")
print(len(parts), "tokens in parts,", len(tokenizer.encode("Der Hund schläft.")), "as a whole")
assert tokenizer.decode(parts) == "Der Hund schläft."

# %% [markdown]
# Both decode to the same text. But a model was trained on the second way of cutting and hardly knows the first. So $D(E(x)) = x$ holds always, and $E(D(y)) = y$ does not.
#
# ### Nothing is lost
#
# Now the law {eq}`eq-lossless`, on texts that were chosen to break it: no text at all, spaces in odd places, accents made of two characters, other scripts, control characters, and the names of reserved entries. The package's tests add whatever a random generator comes up with. (The sixth text looks like the *café* before it and is another text: its accent is a character of its own. Many programs make them equal on the way in. Ours leaves that to you.)

# %%
hard = ["", " ", "  two  spaces\n", "\ttab\r\n", "naïve café", "cafe\u0301", "日本語 😀 👩‍👧"]
hard += ["\x00\x07\x1b\ufeff\u200f", "</s> <pad>", "1 + 1 = 2", "Ġ is a letter, too", "ﬁ ½ Ⅷ"]
for text in hard:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and min(ids, default=4) > UNK
print("all", len(hard), "texts came back, and none used a reserved number")

# %% [markdown]
# The converse is not a law. A model may write any ids, also the first half of a character, and bytes that are no text become the sign for "cannot be read". Trained models hardly ever do so.

# %%
face = tokenizer.encode("😀")
print(len(face), "tokens, whole:", ascii(tokenizer.decode(face)))
print("cut after two:", ascii(tokenizer.decode(face[:2])))

# %% [markdown]
# Saving and loading changes nothing, and the hash says so. Then we edit the file as someone might by accident: one merge has its two sides exchanged. The library reads such a file without a word. Here the merges no longer make the entries that the file lists, and it is found out. (Had the edit been a consistent one, the hash would differ from the one that the model's weights remember.)

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "tokenizer.json")
    tokenizer.save(path)
    assert Tokenizer.load(path).sha256 == tokenizer.sha256
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace('["e","n"]', '["n","e"]'), encoding="utf-8")
    try:
        Tokenizer.load(path)
    except ValueError as error:
        print(str(error).split("/")[-1])

# %% [markdown]
# A copy reads text as the original does, also text that looks like a special entry:

# %%
twin = copy.deepcopy(tokenizer)
assert twin.encode("Ja </s> <pad>") == tokenizer.encode("Ja </s> <pad>")
assert min(twin.encode("</s><pad>")) > UNK
print("same name:", twin.sha256 == tokenizer.sha256)

# %% [markdown]
# ## How large should it be?
#
# More entries make sentences shorter, and so attention cheaper. They also make the table of embeddings longer, and the rarer an entry is, the fewer sentences teach the model what it means. The paper takes about 37,000 entries for 4.5 million sentences, and its tables hold 37,000 × 512 = 18.9 million numbers, nearly a third of the base model.
#
# | | small vocabulary | large vocabulary |
# |---|---|---|
# | a sentence has | many tokens | few tokens |
# | attention and decoding | dear | cheap |
# | table of embeddings, softmax over it | small | large |
# | how often each entry is seen in training | often | some of them hardly ever |
#
# On the grammar the gain ends early, when every word is whole:

# %%
for size in (260, 500, 1000, 2000):
    tried = Tokenizer.train(pairs, vocabulary_size=size)
    length = sum(len(tried.encode(pair.target)) for pair in pairs) / len(pairs)
    print(f"{len(tried):5} entries: {length:4.1f} tokens a sentence")

# %% [markdown]
# We asked for 2,000 and got fewer, as there was nothing left to merge: every word is one token. So ask `len(tokenizer)` for the size of a model's table, and do not take the number that was asked for. Real text has no such end. The next cell learns from the captions, if they are there, and counts tokens on the validation part.

# %% tags=["nbval-ignore-output"]
measured = []
for size in (260, 500, 1000, 2000, 4000, 8000, 16000):
    tried = Tokenizer.train(train, vocabulary_size=size)
    for side, language in enumerate(rules):
        length = sum(len(tried.encode(pair[side])) for pair in val) / len(val)
        measured.append({"size": len(tried), "tokens": round(length, 2), "language": language})
german = [m["tokens"] for m in measured if m["language"] == "German"]
print("German tokens a caption:", german)
assert german == sorted(german, reverse=True) and german[0] > 4 * german[-1]

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-vocabulary-size", "caption": "What does a larger vocabulary buy? Tokens in a validation caption, by the size of a joint vocabulary that was learned on the training captions. From bytes to 4,000 entries the captions shrink to less than a quarter. From 8,000 to 16,000 they hardly change, while the table of embeddings doubles. The dotted line is the number of words in German."}}
looks = {**looks, "words, German": (INK, [2, 2])}
average = sum(map(len, unseen["German"])) / len(unseen["German"])
floor = [
    {"size": s, "tokens": round(average, 2), "language": "words, German"} for s in (260, 16000)
]
ticks = alt.Axis(values=[260, 500, 1000, 2000, 4000, 8000, 16000], format="~s")
x = alt.X("size:Q", title="entries of the vocabulary", scale=log, axis=ticks)
y = alt.Y("tokens:Q", title="tokens a caption", scale=alt.Scale(domainMin=0))
show(
    curves([*measured, *floor], x, y, "language", looks),
    alt="Both curves fall steeply up to about 4,000 entries and slowly after that, close to the number of words.",
)

# %% [markdown]
# From 260 entries to 4,000 a German caption shrinks to less than a quarter. From 8,000 to 16,000 it loses one token more. At width 256 those last 8,000 entries cost 8,000 × 256 = 2 million parameters. What are they used for? We count how often each occurs in the training captions.

# %% tags=["nbval-ignore-output"]
used = Counter(n for pair in train for text in pair[:2] for n in tried.encode(text))
for first, last in ((260, 4000), (4000, 8000), (8000, len(tried))):
    rare = sum(used[index] < 10 for index in range(first, last)) / max(last - first, 1)
    print(f"entries {first:5,} to {last:6,}: {rare:4.0%} occur fewer than 10 times")

# %% [markdown]
# `tried` is still the tokenizer with 16,000 entries. Nearly nine in ten of its second half occur fewer than ten times in 29,000 pairs. So few sentences cannot teach a model what an entry means. Even among the early entries three in ten are rare: they were steps on the way to longer pieces, and with so many merges are hardly ever left over.
#
# At the other end, bytes alone are no bargain either. They make a caption of 74 tokens where 8,000 entries make one of 15, and since attention has a weight for each pair of positions, that is 74² / 15² = 24 times as many weights. For 29,000 captions a few thousand entries are plenty. Compare the words of the first half of this chapter: at 8,000 they left a hole in two German sentences out of five, and the pieces leave none.
#
# ## Mistakes to look out for
#
# Each of these is common, raises no error, and shows up as a model that is a little worse than it could be.
#
# **A vocabulary built on the test set.** Shown above. It hides the very words that a new text would bring.
#
# **A new vocabulary for each run.** The old checkpoint still loads, since the shapes fit, and translates into nonsense. Store the hash and compare it.
#
# **Normalizing on the quiet.** Some tokenizers replace *ﬁ* by *fi*, *½* by *1/2*, or drop accents, before anything is counted. It may even help, but then {eq}`eq-lossless` is gone, and a user's text comes back altered.
#
# **A space too many.** With the option that puts a space in front of each text, decoding returns one more than went in. In a score this costs nothing, in a command line that copies line for line it does.
#
# **Text that speaks for the program.** A user types `</s>`, and a tokenizer that looks for its reserved entries in the text ends the sentence there. Ours reads the four characters as text.
#
# **Bytes left out.** A byte that no training text had, and that has no entry, vanishes from every sentence. Shown above.
#
# **The wrong size of the table.** Fewer entries came out than were asked for, or an entry was added later. A number beyond the table is an error on a CPU, and on a GPU it stops the program with a message about something else.
#
# ## Questions that come up
#
# **Should text be lower-cased or cleaned of accents first?** Then nobody could get them back, and German nouns are told from verbs by their capital letter. Byte pairs have no need of it.
#
# **Why is "unknown" reserved if it never occurs?** So that the numbers are those of other toolkits, and a vocabulary of words can be exchanged for ours without moving anything.
#
# **Is the cutting unique?** For one text and one list of merges, yes. A model therefore sees one cut of each word. There are methods that cut at random while training, so that the model gets to know the pieces better; the paper does not use them.
#
# **Is this the word-piece or the unigram method?** Neither, though all three end with a list of pieces. Word pieces are also merged one by one, but the pair is chosen that makes the text most probable, and not the most frequent one. The unigram method goes the other way: it starts with many pieces and takes away those that are missed least. The paper uses byte pairs for German and word pieces for French, and does not say that one is better.
#
# **May I take a ready-made tokenizer, from a large language model for example?** It works, and it is seldom a good bargain. Such a vocabulary has 50,000 entries or more. At width 256 the table alone would have 50,000 × 256 = 12.8 million numbers, many times our whole model, and most entries would never occur in your text.
#
# **Can I add entries later?** Merges cannot be added without changing how known words are cut. A reserved entry can, at the end, with a new row in the table that is trained afterwards.
#
# **How much text does it take to learn one?** Little, compared with the model. Counts of frequent pairs settle after some ten thousand sentences. What matters is that the text is of the kind that will be translated.
#
# **Does a model know how a token is spelled?** No. It sees a number. That *Hund* and *Hunde* share four letters it can only learn from their company, unless their pieces are shared.
#
# ## What to remember
#
# - A vocabulary of words is never complete: on new German captions, 8,000 words leave a hole in two sentences out of five.
# - Learn the vocabulary on the training part, never on what you measure on.
# - Byte-pair encoding joins the most frequent neighbors until the vocabulary is full: frequent words whole, rare ones in pieces.
# - Starting from bytes, nothing is unknown and nothing is lost.
# - One vocabulary serves both languages. Four numbers are reserved and can never come from a text.
# - A tokenizer is part of the model. Its SHA-256 tells whether it is the right one.
#
# ## Exercises
#
# **1. By hand.** The words are *aab*, four times, and *ab*, three times. Which two merges come first, and how is *aaab* cut after them?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# (a, b) stands side by side 4 + 3 = 7 times, (a, a) 4 times: first ab. Then aab is a·ab: (a, ab), 4.
by_hand = learn_bpe({"aab": 4, "ab": 3}, 2)
print(by_hand, apply_bpe("aaab", by_hand))
assert by_hand == [("a", "b"), ("a", "ab")]

# %% [markdown]
# **2. What breaks if** the merges are applied in another order than they were learned? Reverse the seven merges of the toy and cut *weiter*.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A merge needs the symbols that earlier ones made. Too early, it finds nothing to join.
print(apply_bpe("weiter", merges), "in order;", apply_bpe("weiter", merges[::-1]), "reversed")
assert len(apply_bpe("weiter", merges[::-1])) > len(apply_bpe("weiter", merges))

# %% [markdown]
# **3. One or two?** Compare one joint vocabulary of 1,000 entries with two of 500, one for each language, on the grammar. Which makes fewer tokens? What does the joint one save besides?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
joint = Tokenizer.train(pairs, 1000)
alone = [Tokenizer.train([pair[side] for pair in pairs], 500) for side in (0, 1)]
count = sum(len(joint.encode(text)) for pair in pairs for text in pair[:2])
separate = sum(len(alone[side].encode(pair[side])) for pair in pairs for side in (0, 1))
print("joint:", count, "tokens; separate:", separate)
assert count < separate
# Its 260 first entries exist once, so it has room for 740 merges, against twice 240. And one table
# of embeddings is enough.

# %% [markdown]
# **4. Bytes are not fair.** How many tokens does our tokenizer need for a Greek word of six letters, and why so many? What would help?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Greek letters take two bytes each, and no merge joins them: the grammar has none. Training on
# text in that language would help; a vocabulary is only as good as what it was learned on.
print(len(tokenizer.encode("σκύλος")), "tokens for 6 letters")
assert len(tokenizer.encode("σκύλος")) == 12

# %% [markdown]
# **5. Faster.** `learn_bpe` counts all words anew for each merge. Which counts does a merge change? Check on the toy that all others stay.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Only words that hold the pair are cut anew, so only counts of neighbors in those words change.
before = count_pairs(letters)
after = count_pairs({merge_pair(w, ("e", "r")): n for w, n in letters.items()})
changed = {pair for pair in before if before[pair] != after[pair]}
print(sorted(changed))
assert changed == {("t", "e"), ("e", "r")}

# %% [markdown]
# ## Sources
#
# Byte-pair encoding for translation is from {cite:t}`sennrich2016neural`; section 5.1 of {cite:t}`vaswani2017attention` uses it with a shared vocabulary for German, and word pieces for French. That we start from bytes in place of characters is a departure, listed in [departures](../book/departures.md).
