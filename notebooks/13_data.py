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
# # Data
#
# This chapter gets sentence pairs to learn from: any number of German-English ones from a small grammar, and 29,000 real captions from Multi30k (section 5.1 of the paper).
#
# The paper trains on 4.5 million sentence pairs for half a day on eight GPUs. We want to see a model learn within a minute on a laptop, and without a network. That rules out the paper's corpus. It also rules out a thousandth of it: 4,500 sentences of news hold more different words than a model could get to know from them.
#
# There is a second trouble with found text. Chapter [Reading attention](21_attention_maps.ipynb) will ask whether a model looks at the *right* word. In a found corpus no one has written down which word that is. Programs exist that guess it, and they guess wrong often enough to make a poor ruler. So the first corpus is one that is made: a grammar that says a thing in German and in English at once, and knows all the time which German word became which English one. [Appendix B](B_synchronous_grammar.ipynb) has its rules.
#
# The second corpus is real: captions of photographs. It comes over the network, and this chapter is also about how a download can be trusted. A third is yours: [Appendix C](C_own_data.ipynb) reads, cleans and splits pairs that you bring along.

# %% tags=["export"]
import gzip
import os
import re
import warnings
from pathlib import Path
from typing import NamedTuple

with warnings.catch_warnings():  # it asks for a progress bar in notebooks that may be missing
    warnings.simplefilter("ignore")
    import pooch

# %%
import hashlib
from collections import Counter
from itertools import combinations
from tempfile import TemporaryDirectory

import altair as alt
import matplotlib.pyplot as plt

from annotated_transformer.synchronous_grammar import grammar
from book.figures import INK, KEY, QUERY, curves, show, style

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
# This is a way to count, and no way to prepare text for a model: it would cut *can't* in three. The next chapter shows what models read. For counting words and for the grammar, which has no such forms, it is exact.
#
# Now a pair with its alignment.

# %%
links = {(0, 0), (1, 1), (3, 1), (2, 2), (4, 3)}
pair = Pair("Sie ruft ihn an.", "She calls him.", frozenset(links))
for i, j in sorted(pair.alignment):
    print(words(pair.source)[i], "→", words(pair.target)[j])

# %% [markdown]
# Two German words lead to *calls*. So an alignment is a set of links and not a list with one partner for each word. A word may have several links, or none. An alignment that is known to be right, and not the guess of a program, is called **gold**.
#
# ## Pairs from a grammar
#
# The cheap way to make sentences is a template: *The ANIMAL sees the ANIMAL*, with a list of animals, in both languages. It makes thousands of pairs, and a model that learned to copy word by word would get them all right. German is worth translating because it does not go word by word:
#
# | German | English |
# |---|---|
# | Heute **ruft** der Mann die Frau **an**. | Today the man **calls** the woman. |
# | ..., weil der Mann die Frau **anruft**. | ... because the man **calls** the woman. |
# | **Den Hund** sieht die Katze. | The cat sees **the dog**. |
#
# In the first line a verb is in two places at once. In the second the same verb waits for the end of its clause. In the third the dog comes first and is still the one that is seen: the case of an article, *den* in place of *der*, tells who does what, and the order of the words does not. `grammar` draws sentences in which all of this happens, and much of it at once.

# %%
pairs = grammar(10_000, seed=0)
for pair in pairs[:3]:
    print(pair.source, "|", pair.target)

# %% [markdown]
# A pair is decided by its seed and comes with its alignment. How far do words travel? If German and English had the same order, the alignment would be a diagonal. The figure shows a sentence where it is not.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-alignment", "caption": "Which German word became which English one? Each square is a link of the gold alignment. The German verb *ruft ... an* is in two places, and so is the English *does ... call*: four links. Behind the comma *hilft* waits for the end of its clause, and the comma has no partner."}, "image": {"alt": "A grid with English words as rows and German words as columns. Links follow the diagonal except for the verbs: does and call are each linked to the second German word and to the last one before the comma, and the last two words of the clause behind it are swapped."}}
style()
pair = next(pair for pair in pairs if "nicht an, während eine" in pair.source)
german, english = words(pair.source), words(pair.target)
figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
for i, j in pair.alignment:
    axes.add_patch(plt.Rectangle((i + 0.06, j + 0.06), 0.88, 0.88, fc=INK))
axes.set(xlim=(0, len(german)), ylim=(len(english), 0), xlabel="German", ylabel="English")
axes.set_xticks([i + 0.5 for i in range(len(german))], german, rotation=45, ha="right")
axes.set_yticks([j + 0.5 for j in range(len(english))], english)
plt.show()

# %% [markdown]
# Such a picture is what we will hold beside the attention of a trained model. It is known here without any model, which is what makes it a measure. The English of the grammar is plain, its world has 19 nouns in it, and nobody speaks like that. As a test of *whether a model looks at the right word*, it beats any amount of real text.
#
# How many pairs go word by word? If most of them did, a model could do well and have learned nothing of the above. We count the pairs whose alignment is a plain diagonal: word $i$ with word $i$, and nothing else.

# %%
plain = [pair for pair in pairs if all(i == j for i, j in pair.alignment)]
print(f"{len(plain) / len(pairs):.0%} go word by word, such as:", plain[0].source)
print(sum("," in pair.source for pair in plain), "of them have a subordinate clause")

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
def cache_folder() -> Path:
    """Where data sets are kept: `$ANNOTATED_TRANSFORMER_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("ANNOTATED_TRANSFORMER_CACHE")
    return Path(chosen or pooch.os_cache("annotated-transformer"))


# %% [markdown]
# ### Fetching
#
# A program can be stopped at any moment, and a network may fail. So a file must be there or not: it is written beside its place under another name, checked, and renamed when it is complete. Renaming happens in one instant, and whoever looks sees all of the file or none of it. The library `pooch` does this. If the file in the cache has the right hash, nobody is asked: a folder that was filled by hand works like a download.
#
# What if there is no network? Then someone has to carry the files there. The error for them names all six files, and not only the first that is missing. To learn of the second file only after the first has arrived would cost another walk. It is an error with a name of its own, so that a caller can do without the data.
#
# What comes out of the files is a list of pairs. Each split is two files, and line $i$ of one translates line $i$ of the other. The text is cut at `\n` only. `strict=True` insists on equal numbers of lines, though the hashes have settled that already: it says what we rely on. `strip` takes off the spaces around 40 of the German captions.


# %% tags=["export"]
class MissingData(RuntimeError):
    """A data set is neither in the cache nor to be had; one line names the files and a remedy."""


def multi30k(split: str) -> list[Pair]:
    """German captions and their English translations; `split` is train, val or test_2016_flickr.

    Raises MissingData if they are neither in the cache nor to be had over the network.
    """
    if f"{split}.de.gz" not in MULTI30K_SHA256:
        raise ValueError(f"Multi30k has no split {split!r}: take train, val or test_2016_flickr")
    folder, sides = cache_folder() / "multi30k", []
    pooch.get_logger().setLevel("WARNING")  # it would report each download
    for name in (f"{split}.de.gz", f"{split}.en.gz"):
        try:
            path = pooch.retrieve(f"{MULTI30K}/{name}", MULTI30K_SHA256[name], name, folder)
        except (OSError, ValueError) as error:  # no network, no room; what came is another file
            names = ", ".join(MULTI30K_SHA256)
            message = f"Multi30k is incomplete: put {names} from {MULTI30K} into {folder} ({error})"
            raise MissingData(message) from error
        sides.append(gzip.decompress(Path(path).read_bytes()).decode().rstrip("\n").split("\n"))
    return [Pair(source.strip(), target.strip()) for source, target in zip(*sides, strict=True)]


# %% tags=["nbval-ignore-output"]
try:
    captions = multi30k("train")
except MissingData:
    captions = grammar(29_000, seed=1)
for pair in captions[1:3]:
    print(pair.source, "|", pair.target)
assert len(captions) == 29_000

# %% [markdown]
# Where there is neither a network nor a file, this cell takes the grammar in place of the captions, and the outputs below differ from what you read here. Here is the error that it catches, from an empty cache and an address where nobody answers:

# %%
with TemporaryDirectory() as folder:
    before, address = cache_folder(), MULTI30K
    os.environ["ANNOTATED_TRANSFORMER_CACHE"], MULTI30K = folder, "http://127.0.0.1:9"
    try:
        multi30k("val")
    except MissingData as error:
        print(str(error)[:62] + " ...")
    os.environ["ANNOTATED_TRANSFORMER_CACHE"], MULTI30K = str(before), address

# %% [markdown]
# The message goes on with the other files, the address, the folder and what went wrong.
#
# ### Three parts
#
# The data comes in three parts, and the names say what each is for. *Train* is what the model learns from. *Val*, for validation, is what we look at while we choose sizes and rates. The test set is for one measurement at the end. Whoever tunes on the test set reports how well they tuned.
#
# Is the test in the training data? It is the first thing to ask of any data set. A model that memorizes looks brilliant there.

# %% tags=["nbval-ignore-output"]
known = {pair.source for pair in captions}
for name in ("val", "test_2016_flickr"):
    try:
        held_out = multi30k(name)
    except MissingData:
        held_out = grammar(30_000, seed=1)[29_000:]
    count = sum(pair.source in known for pair in held_out)
    print(f"{name}: {count} of {len(held_out)} sources are in train")
    assert count < 2

# %% [markdown]
# One validation caption has a twin in training, and no test caption has. That is clean. Near twins are another matter: there are only so many ways to say that a man rides a bicycle, and a test of captions is easier than one of news.
#
# How large should a test be? Large enough that chance does not decide, and no larger, since each pair in it is one less to learn from. A thousand or two is usual; chapter [Evaluation](20_evaluation.ipynb) shows how far a score wavers on so many.
#
# ## A look at the numbers
#
# Before training, look at what there is: how many pairs, how long, how many different words. A word is called a **type** when we count it once however often it occurs. Types that occur a single time are the hard ones, since a model sees them once and is then asked to know them.


# %%
def statistics(texts):
    """Words, types, types that occur once, and words a sentence of one language of a corpus."""
    counts = Counter(word for text in texts for word in words(text))
    once = sum(count == 1 for count in counts.values())
    return f"{counts.total():,} words, {len(counts):,} types, {once:,} of them once, {counts.total() / len(texts):.1f} words a sentence"


print("German: ", statistics([pair.source for pair in pairs]))
print("English:", statistics([pair.target for pair in pairs]))

# %% [markdown]
# Ten thousand sentences, and 325 German types: no real text is like that. German has more of them than English, for its endings. And here are the captions.

# %% tags=["nbval-ignore-output"]
print("German: ", statistics([pair.source for pair in captions]))
print("English:", statistics([pair.target for pair in captions]))
german, english = ({word for pair in captions for word in words(pair[side])} for side in (0, 1))
assert len(german) > len(english)

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
# ## Questions that come up
#
# **Can a model learn the grammar's habits in place of the language?** It will. The grammar always puts the place last and never says *nicht ein*. So a score on the grammar tells whether a model can learn, and nothing about how it treats real text.
#
# **How many pairs do I need?** For a toy grammar some ten thousand. For real text a hundred thousand give something useful within a narrow field, and good news translation begins at millions, the paper's 4.5 for example. More text of another field helps less than some of your own.
#
# **May a line hold two sentences?** Yes. What counts is that a line and its partner say the same. A model translates what it has seen as one line, so lines of one sentence each make it good at single sentences.
#
# **May I lower-case everything, or strip the punctuation?** You can, and the model will then write like that. What the reader should see must be in the training text. The next chapter makes lower-casing unnecessary.
#
# **Does the order of the pairs matter?** Not here: [batching](15_batching.ipynb) shuffles anew in each epoch. It matters if you cut pieces off a file by hand, since files are often sorted by length or topic.
#
# **Why is the German the source in this book?** The model then writes English, which more readers can judge. From German to English it must undo what the grammar built: brackets, cases and waiting verbs.
#
# ## What to remember
#
# - A pair is a sentence and its translation; a gold alignment says which word became which.
# - German verbs split or wait for the end of their clause; cases, not order, tell who does what. That is what a translation model must learn.
# - A data set is used only if its SHA-256 is the known one, and a file appears under its name only when complete.
# - No corpus has all words. Of real text, every thousand sentences bring new ones.
# - Look at the test set once.
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


many = pairs
for name, some in {
    "with": [pair for pair in many if "," in pair.source],
    "without": [pair for pair in many if "," not in pair.source],
}.items():
    print(f"{name:7} a comma: {sum(map(crossings, some)) / len(some):.1f} crossings")
# Longer sentences have more words to cross, and each clause has a bracket or waiting verbs.

# %% [markdown]
# **3. A rule of your own.** Numbers survive translation. Write a rule that drops a pair whose two sides do not contain the same numbers. Which right pairs does it drop?


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
def same_numbers(pair):
    return sorted(re.findall(r"\d+", pair.source)) == sorted(re.findall(r"\d+", pair.target))


assert same_numbers(Pair("Er ist 30.", "He is 30.")) and not same_numbers(Pair("Um 8.", "At 9."))
print(same_numbers(Pair("Um 20 Uhr.", "At 8 pm.")), same_numbers(Pair("3,5 kg", "3.5 kg")))
# It drops times of day, converted units, and numbers that one side writes as a word.

# %% [markdown]
# ## Sources
#
# The captions of Multi30k {cite:p}`elliott2016multi30k` are for research and education. The paper's own corpora, WMT 2014, are a hundred times larger.
