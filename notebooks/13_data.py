# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Data
#
# This chapter collects the sentence pairs to learn from: as many German-English ones as you like from a small grammar, and 29,000 real captions from Multi30k (section 5.1 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("training")

# %% tags=["export", "hide-input"]
import re
from typing import Any, NamedTuple

# %% [markdown]
# The last part built a model that knows nothing. This part teaches it, and opens one by one the boxes of the figure below. [Chapter 1](01_in_ten_minutes.ipynb#train-one-yourself) trained a translator as a black box; this time we listen to it while it learns, on one processor core and with nothing downloaded.

# %% tags=["hide-input"]
import altair as alt
import matplotlib.pyplot as plt

from book.figures import (
    INK,
    PLUM,
    SKY,
    arrow,
    box,
    show,
    show_drawing,
    show_plot,
    style,
    words_at,
)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-boxes", "caption": "What happens while a translator learns, and which chapter explains it? Read from the bottom. The call `train` is the dotted frame: the model guesses, the loss says how wrong it was, and an update makes it a little less wrong, hundreds of times."}}
parts = [
    '<rect x="4" y="10" width="232" height="300" rx="8" fill="none" '
    f'stroke="{INK}" stroke-dasharray="2 4"/>',
    words_at(14, 282, "train", anchor="start"),
    words_at(14, 298, "chapter 18", anchor="start", size=11),
    box(124, 336, 104, 44, "pairs", "13, B"),
    box(124, 252, 104, 44, "tokens", "14", "14_tokenization.html"),
    box(124, 180, 104, 44, "batches", "15", "15_batching.html"),
    box(124, 108, 104, 44, "Transformer", "03 to 10", "10_transformer.html"),
    box(124, 24, 104, 44, "loss", "17", "17_regularization.html"),
    box(14, 66, 78, 44, "update", "16", "16_schedule.html"),
    box(262, 108, 82, 44, "translate", "19", "19_decoding.html"),
    box(262, 24, 82, 44, "score", "20", "20_evaluation.html"),
    *(arrow([(176, y), (176, y - drop)]) for y, drop in ((336, 38), (252, 26))),
    *(arrow([(176, y), (176, y - drop)]) for y, drop in ((180, 26), (108, 38))),
    arrow([(124, 46), (53, 46), (53, 64)]) + arrow([(53, 110), (53, 130), (122, 130)]),
    arrow([(228, 130), (260, 130)]) + arrow([(303, 108), (303, 70)]),
    arrow([(303, 196), (303, 154)]),
    words_at(303, 214, "a new") + words_at(303, 230, "sentence"),
]
show_drawing(
    parts,
    348,
    388,
    alt="Pairs, tokens, batches, the Transformer and the loss, one above the other; an update leads from the loss back to the model. Beside them, a new sentence goes through translate to a score.",
)

# %% [markdown]
# ## Listening to a model that learns
#
# The next cell borrows its parts from later chapters. `grammar` makes 20,000 sentence pairs, the tokenizer turns them into numbers, and `train` does the rest. Every fifty steps it calls our function `watch`, which prints what the model makes of two sentences that differ in a single letter:
#
# - *Der Hund jagt die Katze*: the dog chases the cat;
# - *Den Hund jagt die Katze*: the cat chases the dog. The `n` marks the dog as the one who is chased.
#
# Nobody tells the model. Will it find out within seven hundred steps? And if so, what will the loss do at that moment? Make a guess, then run it.


# %% tags=["nbval-ignore-output"]
import torch

from annotated_transformer import Tokenizer, Transformer, TrainingConfig
from annotated_transformer import grammar, preset, train, translate

pairs = grammar(20_000, seed=1)
tokenizer = Tokenizer.train(pairs, vocabulary_size=1500)
watched = ["Der Hund jagt die Katze.", "Den Hund jagt die Katze."]
log = []


def watch(line):
    """Note a line of the log, and what the model makes of the two sentences by then."""
    der, den = translate(model, tokenizer, watched)
    log.append({**line, "der": der, "den": den})
    print(f"{line['step']:3}  {der:24.24}  {den:.32}")


torch.manual_seed(0)
shape = preset("tiny", layers=1, vocabulary_size=len(tokenizer), dropout=0)
model = Transformer(shape)
settings = TrainingConfig(steps=700, warmup=100)
model = train(model, tokenizer, pairs, settings, report=watch)

# %% tags=["remove-cell"]
if CHECKING:
    wanted = "The dog chases the cat.", "The cat chases the dog."
    assert wanted in {(line["der"], line["den"]) for line in log}

# %% [markdown]
# Read the column on the right from top to bottom. (Another processor rounds differently, so your model may take other detours.) At first all that the model has found out is that English has `the` in many places. By step 300 it has the animals and the verb, and then for a long time both sentences mean the same to it: a dog chases a cat. Only in the last two hundred steps, after cats that chase cats, does it discover what the `n` is for. The rule is in no line of the code; it was in the examples.
#
# Can the loss tell?

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-minute", "caption": "When does the model learn what? The training loss over 700 steps. Each number marks the step where a new translation of *Den Hund jagt die Katze* first appears."}}
curve = [{"step": line["step"], "loss": round(line["loss"], 3)} for line in log]
firsts = {}
for point, line in zip(curve[1:], log[1:]):  # the first is no sentence
    firsts.setdefault(line["den"], point)
marks = []
for number, (text, point) in enumerate(firsts.items(), start=1):
    short = text if len(text) < 44 else f"{text[:40]} ..."
    told = f"{number}  step {point['step']}: {short}"
    marks.append(point | {"number": number, "text": told})
x = alt.X("step:Q", title="step", axis=alt.Axis(tickCount=7))
y = alt.Y("loss:Q", title="loss, nats per token", scale=alt.Scale(domainMin=0))
falling = alt.Chart(alt.Data(values=curve)).mark_line().encode(x, y)
marked = alt.Chart(alt.Data(values=marks))
points = marked.mark_point(color=PLUM, filled=True, size=50, opacity=1).encode(x, y)
numbers = marked.mark_text(color=INK, dy=-12, fontSize=12).encode(x, y, text="number:O")
said_then = marked.mark_text(color=INK, align="left", fontSize=12).encode(
    alt.Y("number:O", axis=None), x=alt.value(0), text="text:N"
)
show(
    alt.vconcat(
        alt.layer(falling, points, numbers).properties(width=300, height=200),
        said_then.properties(width=300, height={"step": 17}),
    ),
    alt="The loss falls steeply for 300 steps and slowly after that. The second sentence is translated correctly only after a few hundred steps more.",
)

# %% [markdown]
# Hardly. Most of the fall is spent on getting words and order right, and who chases whom is learned where the curve is almost flat. But has the model only learned its sentences by heart?

# %% tags=["nbval-ignore-output"]
print(f"{log[-1]['epoch']:.2f} epochs")

# %% tags=["remove-cell"]
if CHECKING:
    assert log[0]["step"] == 50 and 0.85 < log[-1]["epoch"] < 1

# %% [markdown]
# An **epoch** is one pass over the data, and the training stopped before the end of the first, so no sentence was seen twice. The two that we watched are not in the training data at all, and neither are these three:

# %% tags=["nbval-ignore-output"]
new = [
    "Die Frau hat den Mann angerufen.",
    "Schläft der Hund nicht?",
    "Die schwarze Katze mag Fisch.",
]
for sentence, translation in zip(new, translate(model, tokenizer, new)):
    print(sentence, "→", translation)

# %% tags=["remove-cell"]
if CHECKING:
    known = {pair.source for pair in pairs}
    assert not known & {*new, *watched}
    assert translate(model, tokenizer, new[:1]) == ["The woman called the man."]

# %% [markdown]
# Two parts of a verb, far from each other, have become `called`, and one `schläft` has become `does` ... `sleep`. But of our black cat that likes fish the model makes something up, because the grammar has neither `mag` nor `Fisch`. A model knows what was in its data and nothing else, and so the rest of this chapter is about data.
#
# ## A pair and its alignment
#
# A **sentence pair** is a source sentence, its translation and, where we know it, the **alignment**: the set of (source word, target word) positions that mean the same, counted from 0.


# %% tags=["export"]
class Pair(NamedTuple):
    """A source sentence, its translation and, if known, the pairs of positions of words (of
    `words(source)` and `words(target)`, counted from 0) that translate each other.
    """

    source: str
    target: str
    alignment: frozenset[tuple[int, int]] | None = None


# %% [markdown]
# An unknown alignment is `None`; an empty set would claim that no word has a partner. Functions that take pairs also take plain tuples of two texts:


# %% tags=["export"]
def as_pair(row: Any) -> Pair:
    """A pair, or a plain tuple or list of two texts, as a pair; raises ValueError for others."""
    if isinstance(row, Pair):
        return row
    is_tuple = isinstance(row, (tuple, list)) and len(row) >= 2
    if not is_tuple or not all(isinstance(text, str) for text in row[:2]):
        raise ValueError(
            f'{row!r} is no pair: give two texts, as in ("Hallo!", "Hello!")'
        )
    return Pair(row[0], row[1])


# %% [markdown]
# A position is useful only if everybody counts words in the same way.
#
# **Exercise 1. Write it first** (★, 5 min). Write `words(text)`, which returns the words and punctuation marks of a text in order: *Ja, er schläft.* has five. Hint: in a regular expression, `\w+` matches a run of letters and digits, and `[^\w\s]` a single mark.


# %% tags=["export"]
def words(text: str) -> list[str]:
    """The words and punctuation marks of a text, in order."""
    return re.findall(r"\w+|[^\w\s]", text)


# %%
links = {(0, 0), (1, 1), (3, 1), (2, 2), (4, 3)}
pair = Pair("Sie ruft ihn an.", "She calls him.", frozenset(links))
for i, j in sorted(pair.alignment):
    print(words(pair.source)[i], "→", words(pair.target)[j])

# %% [markdown]
# Both halves of `ruft` ... `an` lead to `calls`, which is why an alignment is a set of links rather than one partner for each word. An alignment that is known to be right, rather than guessed by a program, is called **gold**.
#
# ## Why not templates?
#
# *The ANIMAL sees the ANIMAL*, with a list of animals in both languages, would give thousands of pairs for nothing, but a model that translated word by word would get them all right. Our running example is that easy: *Die schwarze Katze mag Fisch* is *The black cat likes fish*, word for word. Most of German isn't:
#
# | German | English | |
# |---|---|---|
# | Heute **ruft** der Mann die Frau **an**. | Today the man **calls** the woman. | one verb in two places |
# | ..., weil der Mann die Frau **anruft**. | ... because the man **calls** the woman. | the same verb waits for the end of its clause |
# | **Den Hund** jagt die Katze. | The cat chases **the dog**. | the article tells who does what; the order doesn't |
#
# `grammar` draws sentences in which all of this happens, often at once. It first decides *what is said* and then puts it in order by the rules of each language, so it knows which word became which. ([Appendix B](B_synchronous_grammar.ipynb) has the rules.)

# %%
pairs = grammar(10_000, seed=0)
for pair in pairs[1:3]:
    print(f"{pair.source}\n    {pair.target}")

# %% [markdown]
# If German and English had the same order, the alignment would be a diagonal. How far does it stray from one?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-alignment", "caption": "Which German word became which English one? Each box is a link of the gold alignment. The German verb `ruft` ... `an` is in two places, and so is the English `does` ... `call`: four links. After the comma, which has no partner, `hilft` waits for the end of its clause."}}
style()
split = (pair for pair in pairs if "nicht an, während eine" in pair.source)
pair = next(split, pairs[0])
german, english = words(pair.source), words(pair.target)
figure, axes = plt.subplots(figsize=(3.2, 3.4), layout="constrained")
for i, j in pair.alignment:
    axes.add_patch(plt.Rectangle((i + 0.06, j + 0.06), 0.88, 0.88, fc=SKY))
axes.set(
    xlim=(0, len(german)), ylim=(len(english), 0), xlabel="German", ylabel="English"
)
axes.set_xticks([i + 0.5 for i in range(len(german))], german, rotation=60, ha="right")
axes.set_yticks([j + 0.5 for j in range(len(english))], english)
show_plot(
    alt="A grid with English words as rows and German words as columns. Links follow the diagonal except for not, which moves forward, and the verbs: does and call are each linked to the second German word and to the last one before the comma, and the last two words of the clause behind it are swapped.",
)

# %% [markdown]
# With such a picture one can ask [whether a trained model looks at the *right* word](21_attention_maps.ipynb#word-alignment-by-cross-attention). For real text the alignment usually comes from a program, which makes mistakes of its own; here it is gold.
#
# How many pairs could a word-by-word translator get right? At most those whose alignment is a plain diagonal. One in three? One in ten?

# %%
plain = [pair for pair in pairs if all(i == j for i, j in pair.alignment)]
print(f"{len(plain) / len(pairs):.0%} go word by word, such as:", plain[0].source)

# %% tags=["remove-cell"]
if CHECKING:
    assert round(len(plain) / len(pairs), 2) == 0.05

# %% [markdown]
# One in twenty. All others need a reordering, two words for one, or a comma that vanishes.
#
# The price is a small world, whose subjects and objects are 19 nouns and a few pronouns. A score on it tells you whether a model can learn, and nothing about real text.
#
# ## Real captions
#
# **Multi30k** {cite:p}`elliott2016multi30k` holds captions of photographs, written in English and put into German by professional translators: 29,000 pairs to train on, 1,014 to tune with and 1,000 to test. `multi30k` downloads them once. ([Appendix C](C_own_data.ipynb#captions-fetched-once) says where they are kept, and what to do without a network.)

# %%
from annotated_transformer.own_data import multi30k

captions = multi30k("train")
for pair in captions[1:3]:
    print(f"{pair.source}\n    {pair.target}")

# %% tags=["remove-cell"]
if CHECKING:
    assert len(captions) == 29_000

# %% [markdown]
# ## Test sentences in the training data
#
# The model learns from the split *train*. You look at *val*, for validation, while you choose sizes and rates. The *test* set is for one measurement at the end, because if you tune on it, your score says how well you tuned.
#
# A model that memorizes looks brilliant on sentences it was trained on, so first count how many sentences of the other two splits are in the training data:

# %%
known = {pair.source for pair in captions}
for name in ("val", "test_2016_flickr"):
    held_out = multi30k(name)
    count = sum(pair.source in known for pair in held_out)
    print(f"{name}: {count} of {len(held_out)} sources are in train")

# %% [markdown]
# That's clean enough. If you split data of your own by shuffling and cutting, a sentence that occurs twice can land on both sides; [the chapter on corpora](28_corpus.ipynb#put-aside-and-nothing-of-it-learned) prevents it.
#
# ## What to remember
#
# - A model knows what was in its data. It meets an unknown word with an invention.
# - The loss is a mean over all tokens. What matters to a reader, such as who chases whom, may hardly show in it.
# - A gold alignment says which word became which. German verbs split or wait, and cases tell who does what, so few sentences go word by word.
# - Look at the validation set as often as you like, and at the test set once.
#
# ## Exercises
#
# **1. Write it first** is [above](#a-pair-and-its-alignment).
#
# :::{admonition} Solution 1
# :class: dropdown
# `re.findall` with the two patterns joined by `|` walks through the text and takes whichever fits, `\w+|[^\w\s]`. Without a regular expression: put a space on both sides of each character that is neither a letter, nor a digit, nor a space, then `split()`. That rule and ours differ in rare cases only, such as the underscore, which `\w` counts as a letter.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    from itertools import combinations

    def spaced(text):
        return "".join(
            c if c.isalnum() or c.isspace() else f" {c} " for c in text
        ).split()

    assert spaced("Ja, er schläft.") == words("Ja, er schläft.")
    assert len(words("Ja, er schläft.")) == 5
    assert all(spaced(pair.source) == words(pair.source) for pair in pairs)

# %% [markdown]
# **2. Crossings by hand** (★, 5 min). Write down the alignment of *Wir haben ihr den Apfel gezeigt.* and *We showed her the apple.* as pairs of positions. How many pairs of links cross?
#
# :::{admonition} Solution 2
# :class: dropdown
# `Wir`–`We` is (0, 0), `haben`–`showed` (1, 1), `gezeigt`–`showed` (5, 1), `ihr`–`her` (2, 2), `den`–`the` (3, 3), `Apfel`–`apple` (4, 4), and the full stops are (6, 5). Two links $(a, b)$ and $(c, d)$ cross where $(a - c)(b - d) < 0$. Only the link of `gezeigt` crosses others, those of `ihr`, `den` and `Apfel`, so there are three crossings.
# :::

# %% tags=["remove-cell"]
if CHECKING:

    def crossings(links):
        both = combinations(sorted(links), 2)
        return sum((a - c) * (b - d) < 0 for (a, b), (c, d) in both)

    gold = {(0, 0), (1, 1), (5, 1), (2, 2), (3, 3), (4, 4), (6, 5)}
    assert crossings(gold) == 3

# %% [markdown]
# **3. Fish for the cat** (★★★, an evening, open). Write a few pairs with `mag` and `Fisch`, mix them into the 20,000, and train again. How many does the model need until our cat likes fish? Does it matter whether they are copies of one pair or different sentences?
#
# ## Further
#
# ### How many pairs do I need?
#
# You've seen 20,000 suffice for a toy grammar. The captions' 29,000 give a model that knows captions and little else. The paper takes 4.5 million pairs for German (section 5.1 of {cite:t}`vaswani2017attention`) and 36 million for French. Text from other fields helps less than [some of your own](../book/own_pair.md#what-you-need).
#
# ### Why is German the source here?
#
# The paper translates the other way. From German, the result is English, which more readers of this book can judge.
