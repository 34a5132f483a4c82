# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Evaluation
#
# This chapter scores a model's translations against what people wrote, as the tool sacreBLEU does it, and nearly as the paper did (section 6.1).
#
# Multi30k has the caption *Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.* Two systems translate it:
#
# 1. *A woman in a blue shirt is standing on a ladder cleaning a window.*
# 2. *On a ladder stands a man who cleans a window, wearing a blue shirt.*
#
# A person wrote *A man in a blue shirt is standing on a ladder cleaning a window.* Which system translates better? And which scores higher when a program compares both with what the person wrote? Decide before you read on.

# %%
from sacrebleu import BLEU

reference = "A man in a blue shirt is standing on a ladder cleaning a window."
first = "A woman in a blue shirt is standing on a ladder cleaning a window."
second = "On a ladder stands a man who cleans a window, wearing a blue shirt."
for line in (first, second):
    print(f"{BLEU().corpus_score([line], [[reference]]).score:.1f} BLEU: {line}")

# %% tags=["remove-cell"]
if CHECKING:
    wrong_person, in_other_words = (
        BLEU().corpus_score([line], [[reference]]).score for line in (first, second)
    )
    assert 5.5 < wrong_person / in_other_words < 6.5

# %% [markdown]
# The false translation gets six times as much as the sound one, in the score that everybody quotes: the paper's main result is 28.4 **BLEU** from English to German, and 41.8 to French. People can't read a thousand translations after every change of a model, so a program has to. BLEU counts the runs of one to four words that an output shares with a **reference**, a translation written by a person. For one sentence that proves nothing; over a whole test set it is useful, if you know what moves it.

# %% tags=["export", "hide-input"]
import re
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

# %% tags=["hide-input"]
import math
from collections import Counter

import altair as alt
import numpy as np

from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.data import words
from annotated_transformer.transformer import evaluating
from benchmarks.common import read_log
from book.figures import SKY, show

# %% [markdown]
# ## Why each part of BLEU is there
#
# Let's work one score out by hand. The reference is *the black cat likes fish*, and a model has written *the black cat likes the fish*. An **n-gram** is $n$ words in a row, and $p_n$, the **precision**, is the share of the output's n-grams that are found in the reference. With $c$ for the number of words in the output and $r$ for those in the reference,
#
# $$
# \begin{gathered}
# \text{BLEU} = 100 \cdot b \cdot \left(p_1\, p_2\, p_3\, p_4\right)^{1/4} \\[2pt]
# b = \min\!\left(1,\; e^{1 - r/c}\right)
# \end{gathered}
# $$ (eq-bleu)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ngrams", "caption": "Which runs of words are matched? Each bar covers the words of one n-gram of the output. Filled ones are matched in the reference *the black cat likes fish*, dashed ones aren't."}}
output = ["the", "black", "cat", "likes", "the", "fish"]
wanted = ["the", "black", "cat", "likes", "fish"]


def runs_of(line, n):
    return [tuple(line[i : i + n]) for i in range(len(line) - n + 1)]


def bars():
    for n in (1, 2, 3, 4):
        left = runs_of(wanted, n)
        for start, gram in enumerate(runs_of(output, n)):
            hit = gram in left
            if hit:
                left.remove(gram)
            y = sum(range(1, n)) + 1.2 * n + start % n
            x = {"x": start + 0.06, "x2": start + n - 0.06}
            yield x | {"y": y, "y2": y + 0.72, "hit": hit, "n": n}


rows = list(bars())
found = [sum(row["hit"] for row in rows if row["n"] == n) for n in (1, 2, 3, 4)]
heads = [{"x": i + 0.5, "y": 0.6, "text": word} for i, word in enumerate(output)]
sides = [
    {
        "x": 6.25,
        "y": sum(range(1, n)) + 1.2 * n + n / 2 - 0.1,
        "text": f"{n}-grams: {f} of {7 - n}",
    }
    for n, f in zip((1, 2, 3, 4), found)
]
hidden = {"axis": None, "title": None}
x = alt.X("x:Q", scale=alt.Scale(domain=[0, 8.6], nice=False), **hidden)
y = alt.Y("y:Q", scale=alt.Scale(domain=[14.2, 0.2], nice=False), **hidden)
box = {"stroke": SKY, "strokeWidth": 1.2, "cornerRadius": 2}
base = alt.Chart(alt.Data(values=rows)).encode(x, y, x2="x2:Q", y2="y2:Q")
chart = alt.layer(
    base.transform_filter("datum.hit").mark_rect(fill=SKY, **box),
    base.transform_filter("!datum.hit").mark_rect(
        fillOpacity=0, strokeDash=[3, 2], **box
    ),
    alt.Chart(alt.Data(values=heads))
    .mark_text(fontSize=13)
    .encode(x, y, text="text:N"),
    alt.Chart(alt.Data(values=sides))
    .mark_text(align="left")
    .encode(x, y, text="text:N"),
)
show(
    chart.properties(width=345, height=260),
    alt="Of the output's n-grams, 5 of 6 single words are matched in the reference, 3 of 5 pairs, 2 of 4 triples and 1 of 3 sequences of four.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert found == [5, 3, 2, 1]

# %% [markdown]
# ### Precision, clipped
#
# Each of the six words is in the reference, the second `the` included. But counted like that, *the the the the* would be a perfect translation. So matches are **clipped**: each word of the reference can be used up only once. That leaves five of six.
#
# ### Sequences
#
# Words alone know nothing of their order: *fish likes the black cat* would be perfect, too. So longer n-grams count as well, clipped in the same way. The four precisions are multiplied, and the fourth root is taken:
#
# $$
# \left(\frac{5}{6} \cdot \frac{3}{5} \cdot \frac{2}{4} \cdot \frac{1}{3}\right)^{1/4} = 0.0833^{1/4} = 0.537
# $$
#
# In such a **geometric mean** each factor counts alike. A plain mean would be ruled by $p_1$, nearly always the largest, while it is $p_4$ that tells fluent sentences from shuffled words.
#
# ### A penalty for saying too little
#
# All precisions of *the black cat likes* are 1, so saying little would be the way to a high score. The **brevity penalty** $b$ compares the lengths, 4 and 5: $e^{1 - 5/4} = 0.78$. Extra words need no penalty, because they already lower every precision.
#
# **Exercise 1. Write it first** (★★, 15 min). Before you read on, write `bleu(output, reference)` for one pair of sentences that are cut at spaces. *the black cat likes the fish* should get 53.7, and *the black cat likes* 77.9.
#
# ### A corpus is not a mean of sentences
#
# When one factor is zero, the product is, and short sentences often have no run of four that is right. BLEU was made for a whole test set: it adds up the matches of all sentences and all the totals before it divides. So for each sentence we keep ten numbers: four matches, four totals, two lengths.


# %%
def ngrams(words, n):
    starts = range(len(words) - n + 1)
    return Counter(tuple(words[i : i + n]) for i in starts)


def counts_of(output, reference):
    said, wanted = output.split(), reference.split()
    matched, total = [], []
    for n in (1, 2, 3, 4):
        both = ngrams(said, n) & ngrams(wanted, n)  # the smaller count of each
        matched.append(both.total())
        total.append(ngrams(said, n).total())
    return np.array([*matched, *total, len(said), len(wanted)])


def bleu_of(counts):
    precisions = counts[:4] / counts[4:8]
    c, r = counts[8:]
    penalty = min(1, math.exp(1 - r / c))
    return 100 * penalty * precisions.prod() ** (1 / 4)


cat = counts_of("the black cat likes the fish", "the black cat likes fish")
dog = counts_of("the dog is asleep", "the dog is sleeping")
for name, line in {"the cat": cat, "the dog": dog, "both": cat + dog}.items():
    print(f"{name}: {bleu_of(line):.1f} BLEU")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(bleu_of(cat) - 53.7) < 0.05 and bleu_of(dog) == 0
    short = counts_of("the black cat likes", "the black cat likes fish")
    assert abs(bleu_of(short) - 77.9) < 0.05
    lines = ["the black cat likes the fish", "the dog is asleep"]
    wanted_lines = ["the black cat likes fish", "the dog is sleeping"]
    # force: no warning that the text looks tokenized
    exact = BLEU(tokenize="none", smooth_method="none", force=True)
    assert (
        abs(exact.corpus_score(lines, [wanted_lines]).score - bleu_of(cat + dog)) < 1e-9
    )

# %% [markdown]
# By itself the dog gets 0, because it has no run of four that matches. In a corpus it needs none of its own: together the two have 50.0, while the mean of their scores is 26.9.
#
# Now the captions model from [the training chapter](18_training.ipynb) translates the 1,000 captions of Multi30k's test set. It wasn't trained on them, and none of its settings was chosen on them. Real text has `window.` with a period, so lines are cut into tokens first, as sacreBLEU does it, by `Tokenizer13a`:

# %% tags=["nbval-ignore-output"]
from annotated_transformer import load_pretrained
from annotated_transformer.own_data import multi30k
from annotated_transformer.translation import translate

model, tokenizer = load_pretrained("captions-de-en")
test = multi30k("test_2016_flickr")
references = [pair.target for pair in test]
outputs = translate(model, tokenizer, [pair.source for pair in test])
tokenize = Tokenizer13a()


def all_counts(outputs, references):
    lines = zip(map(tokenize, outputs), map(tokenize, references))
    return np.array([counts_of(*line) for line in lines])


counts = all_counts(outputs, references)
honest = BLEU().corpus_score(outputs, [references]).score
print(f"by hand {bleu_of(counts.sum(axis=0)):.6f}, sacreBLEU {honest:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 40.7 < honest < 41.8
    assert abs(bleu_of(counts.sum(axis=0)) - honest) < 1e-6

# %% [markdown]
# ## chrF: counting characters
#
# BLEU is strict about words: `hats` for `hat` is as wrong as `helicopter`. **chrF** {cite:p}`popovic2015chrf` counts runs of one to six characters, without the spaces, and asks two questions. The precision $P$ is how much of the output is right, and the recall $R$ how much of the reference is there. Each is the mean over the six lengths, and recall gets twice the weight, $\beta = 2$:
#
# $$
# \text{chrF} = 100 \cdot \frac{(1 + \beta^2)\, P\, R}{\beta^2 P + R}
# $$ (eq-chrf)
#
# It, too, prefers the false translation, 97.5 to 51.2. (Its numbers are higher than BLEU's, and the two must not be compared.)
#
# ## The tool and its signature
#
# How text is cut decides which runs match: {cite:t}`post2018call` found differences of up to 1.8 BLEU between the ways in common use. His tool sacreBLEU takes plain text, cuts it itself, and writes what it did into a line called the **signature**. The package's `score` returns BLEU and chrF with theirs. It refuses lists of different lengths, which sacreBLEU takes without a warning: if a line got lost, every later translation would be compared with its neighbor's reference.
#
# Chinese, Japanese and Thai have no spaces between words, so `13a` takes a clause for one word, and a good translation gets 0. Therefore `score` counts characters where white space makes up less than 7% of the references (in English captions it is 18%):


# %% tags=["export"]
class Scores(NamedTuple):
    """Scores of a test set, 0 to 100, each with the signature that says how it was computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


# %% tags=["export"]
def mostly_unspaced(lines: Sequence[str]) -> bool:
    """True if less than 7% of the text is white space: its words aren't cut at spaces."""
    text = "".join(lines)
    return sum(map(str.isspace, text)) < 0.07 * len(text)


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Score translations by corpus BLEU and chrF2, cased and as sacreBLEU tokenizes (section 6.1).

    Both are plain text as people write it: not tokenized, not in subwords, not lower-cased.
    Where words are written without spaces, BLEU counts characters.
    Raises ValueError if they differ in number or there are none.
    """
    given, wanted = len(hypotheses), len(references)
    no_list = isinstance(hypotheses, str) or isinstance(references, str)
    if no_list or given != wanted or not wanted:
        counts = f"{given:,} translations for {wanted:,} references"
        raise ValueError(f"{counts}: give lists, with one translation for each")
    bleu = BLEU(tokenize="char" if mostly_unspaced(references) else "13a")
    chrf = CHRF()
    return Scores(
        bleu.corpus_score(hypotheses, [references]).score,
        chrf.corpus_score(hypotheses, [references]).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )


# %% tags=["nbval-ignore-output"]
scores = score(outputs, references)
print(f"BLEU {scores.bleu:.1f}  {scores.bleu_signature}")
print(f"chrF {scores.chrf:.1f}  {scores.chrf_signature}")

# %% tags=["remove-cell"]
if CHECKING:
    chrf = [CHRF().sentence_score(line, [reference]).score for line in (first, second)]
    assert [round(number, 1) for number in chrf] == [97.5, 51.2]
    assert abs(scores.bleu - honest) < 1e-9 and 60 < scores.chrf < 61.2
    assert "tok:13a" in score(["Er hat Zeit."], ["他 Zeit."]).bleu_signature
    spaces = sum(line.count(" ") for line in references)
    assert round(spaces / sum(map(len, references)), 2) == 0.18
    lost = ["他昨天丢了钥匙。"], ["他昨天弄丢了钥匙。"]
    assert (
        BLEU().corpus_score(lost[0], [lost[1]]).score < 0.1 and score(*lost).bleu > 50
    )

# %% [markdown]
# | field of BLEU's signature | what it says |
# |---|---|
# | `nrefs:1` | one reference for each sentence; more of them raise the score |
# | `case:mixed` | upper and lower case as they are; `lc` forgives wrong capitals |
# | `tok:13a` | how lines are cut into words |
# | `eff:no`, `smooth:exp` | what happens if no run of some length matches, which hardly occurs in a corpus |
#
# (`[references]` is a list in a list, because sacreBLEU takes several *sets* of references.) Two scores may be compared if their signatures *and* the test set are the same. So 41.2 on short captions doesn't belong in one table with the paper's 28.4 on news.
#
# ## One model, four scores
#
# A number can look right although something else was scored. We score the same outputs in two other forms, and then what the model says under [teacher forcing](10_transformer.ipynb#is-it-fair-to-show-the-target-to-the-decoder): at each place its likeliest word after the *reference's* beginning, which is easy to collect during training.

# %% tags=["nbval-ignore-output"]
as_tokens, as_characters = BLEU(tokenize="none", force=True), BLEU(tokenize="char")


def marked(lines):
    return [f"<s> {tokenize(line)} </s>" for line in lines]


forced = []
with evaluating(model):
    for example in encode_pairs(tokenizer, test):
        source, target = collate([example])
        best = model(source, target[:, :-1]).argmax(dim=-1)[0]
        forced.append(tokenizer.decode(best[:-1].tolist()))

four = {
    "sacreBLEU, of plain text": BLEU().corpus_score(outputs, [references]),
    "in characters": as_characters.corpus_score(outputs, [references]),
    "with <s> and </s>": as_tokens.corpus_score(marked(outputs), [marked(references)]),
    "under teacher forcing": BLEU().corpus_score(forced, [references]),
}
for way, result in four.items():
    p1, b = result.precisions[0], result.bp
    print(f"{result.score:.1f}: p1 {p1:.1f}%, b {b:.3f}, {way}")
print(forced[1])

# %% tags=["remove-cell"]
if CHECKING:
    by_hand, characters, marks, teacher = (result.score for result in four.values())
    assert characters - by_hand > 20 and 4 < marks - by_hand < 6
    assert abs(teacher - by_hand) < 0.8
    real, *_, other = four.values()
    assert abs(real.precisions[0] - 74.1) < 0.6 and abs(real.bp - 0.964) < 0.005
    assert abs(other.precisions[0] - 70.5) < 0.6 and other.bp == 1

# %% [markdown]
# In characters the same outputs get 24 points more, because a run of four is often a piece of one word and matches without any phrase being right. `<s>` and `</s>` give away two words that can't be wrong.
#
# Teacher forcing misleads most. Its score looks like the honest one, yet nothing was translated: whatever the model says, the decoder goes on with the reference, and the result isn't even English. Two differences happen to cancel. Fewer words are right, 70.5% instead of 74.1%, but the reference sets the length, so there is no brevity penalty, which costs the real outputs 3.6%.
#
# ### Why never to compare tokenized BLEU
#
# Older scripts took text that was already cut into words, so their score belongs to the translation *and* to the cutter. Here is one sentence with one difference, `isn't` for `is not`, cut in three ways: at spaces, by `13a`, and at every mark.

# %%
said = "A man's dark-blue T-shirt isn't dry."
wanted = "A man's dark-blue T-shirt is not dry."


def at_marks(line):
    return " ".join(re.findall(r"\w+|[^\w\s]", line))


for cut in (str, tokenize, at_marks):
    number = as_tokens.corpus_score([cut(said)], [[cut(wanted)]]).score
    print(f"{number:.1f}  {cut(said)}")

# %% [markdown]
# The finest cut makes the most words, and many of them are easy: `dark-blue` is one word right in the first line and three in the last.
#
# The paper's scores are of this kind. Its authors made quotation marks plain and cut compounds at their hyphens, where the hyphen becomes a word of its own:


# %% tags=["export"]
def split_compounds(text: str) -> str:
    """Cut text nearly as the paper's authors did: 13a, plain quotes, compounds cut at hyphens."""
    text = re.sub("[‚‘’]", "'", text)
    text = re.sub("[„“”«»]", '"', text)
    tokens = Tokenizer13a()(text)
    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", tokens)


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Score nearly as the paper did (section 6.1): higher than `score`, comparable with nothing."""
    outputs, wanted = [], []
    for line, reference in zip(hypotheses, references, strict=True):
        outputs.append(split_compounds(line))
        wanted.append(split_compounds(reference))
    bleu = BLEU(tokenize="none", force=True)
    return float(bleu.corpus_score(outputs, [wanted]).score)


# %%
print(f"{compound_split_bleu([said], [wanted]):.1f}  {split_compounds(said)}")

# %% [markdown]
# It gives the same sentence 67.7, where `13a` gave it 42.4, and it has no signature. Print it beside the real score, never instead of it.
#
# ## Whether a difference is real
#
# Should our model search greedily, or with a beam of 4? And with which $\alpha$ in [the length penalty](19_decoding.ipynb#why-do-searches-prefer-short-sentences), 0.6 or 1.4? We choose on the 1,014 validation captions, because [the test set is for one measurement at the end](13_data.ipynb#test-sentences-in-the-training-data). But other captions would have given another difference. If the choice of captions alone can produce a difference as large as the one that we see, it tells us nothing.
#
# ### A test set is a sample
#
# To see how the difference swings we'd need a thousand other sets of captions, and we have only one. The **bootstrap** takes our set for all the captions there are. It draws a new set of the same size from it and puts each caption back before the next draw, so some come two or three times and others not at all. A thousand such **resamples** show the swing. Try it on ten made-up gains of one system over another, sentence by sentence. It won six times and lost three. Is it better?

# %% tags=["nbval-ignore-output"]
gains = np.array([2, 5, -1, 0, 3, -4, 6, 1, -2, 4])
draws = np.random.default_rng(0).choice(gains, (10_000, len(gains)))
low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
print(f"mean gain {gains.mean()}, 95% of the draws from {low:.1f} to {high:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(low + 0.5) < 0.3 and abs(high - 3.3) < 0.3

# %% [markdown]
# A range that holds 95% of the draws is a **confidence interval**. This one contains zero, so ten sentences can't tell.
#
# ### A bootstrap for BLEU
#
# No new translations are needed, and not even new counts: each row of `times_drawn` says how often each caption was drawn for one of the 1,000 resamples, and `times_drawn @ counts` adds up the rows of `counts` that often. The comparison must be **paired**: both systems are scored on the *same* drawn captions. Hard captions are hard for both, so their luck cancels.


# %%
def resampled(counts, samples=1000, seed=12345):
    size = len(counts)
    shares = np.full(size, 1 / size)
    times_drawn = np.random.default_rng(seed).multinomial(size, shares, samples)
    return np.array([bleu_of(row) for row in times_drawn @ counts])


def paired_bootstrap(one, other):
    ahead = resampled(one) - resampled(other)  # one seed: the same draws
    low, high = np.percentile(ahead, [2.5, 97.5])
    return bleu_of(one.sum(axis=0)) - bleu_of(other.sum(axis=0)), low, high


# %% tags=["nbval-ignore-output"]
val = multi30k("val")


def val_counts(**settings):
    said = translate(model, tokenizer, [pair.source for pair in val], **settings)
    return all_counts(said, [pair.target for pair in val])


greedy, beam, longer = val_counts(beam=1), val_counts(), val_counts(alpha=1.4)
compared = {
    "beam 4 - greedy": (beam, greedy),
    "alpha 1.4 - alpha 0.6": (longer, beam),
}
for name, systems in compared.items():
    difference, low, high = paired_bootstrap(*systems)
    print(f"{name}: {difference:+.2f} BLEU, 95% from {low:+.2f} to {high:+.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    versus_greedy, versus_short = (
        paired_bootstrap(*pair) for pair in compared.values()
    )
    paired = np.std(resampled(beam) - resampled(greedy))
    unpaired = np.std(resampled(beam) - resampled(greedy, seed=2))
    assert versus_greedy[1] > 0.2 and 0.6 < versus_greedy[0] < 1.4
    assert versus_short[0] > 0 and abs(versus_short[1]) < 0.3
    assert 3.5 < unpaired / paired < 5

# %% [markdown]
# The beam of 4 is ahead by a full point, with an interval far from zero; the larger $\alpha$ is ahead by 0.4, and in the run shown its interval just leaves zero out. We choose both, and score the test captions with them:
#
# :::{margin}
# Without pairing, the difference would swing four times as widely.
# :::

# %% tags=["nbval-ignore-output"]
chosen = translate(model, tokenizer, [pair.source for pair in test], alpha=1.4)
print(f"{score(chosen, references).bleu:.1f} BLEU")

# %% tags=["remove-cell"]
if CHECKING:
    assert 41.5 < score(chosen, references).bleu < 42.8
    widths = [run for run in read_log("widths")[1:] if run["beam"] == 4]
    (tested,) = (
        run["ahead"]
        for run in widths
        if (run["captions"], run["alpha"]) == ("test_2016_flickr", 0.6)
    )
    assert round(tested, 1) == 0.2

# %% [markdown]
# On the test captions the larger $\alpha$ gains 0.9 over the 41.2 from before, and the beam only 0.2 over greedy search (from the log of [the last chapter's figure](19_decoding.ipynb#beam-width-and-alpha)). Both lie outside the intervals above. That can happen, because the test captions are a sample, too, and swing as the validation captions do. And an interval knows only one kind of chance, the choice of captions. The seed of the training is another, so to compare *methods*, train several times with each.
#
# ## What no counting can see
#
# BLEU and chrF compare strings. They don't know that `woman` for `man` is an error and `cleans` for `cleaning` is none, or that `not` reverses a sentence.
#
# ### How people judge
#
# In **MQM**, multidimensional quality metrics, professional translators read source and translation, without a reference, and mark each error. As {cite:t}`freitag2021experts` count, a minor one costs 1 point, and a major one, which misleads the reader, 5. We've marked two captions of our model like this:
#
# | German | the model | errors | points | chrF |
# |---|---|---|---|---|
# | Ein Mann fährt auf einem Fahrrad durch einen Torbogen. | A man is riding a bike through a basket. | `basket` for an archway: major | 5 | 28 |
# | Kinder kämpfen um den Ballbesitz. | Children fighting for the ball. | none | 0 | 15 |
#
# The flawless translation has the lower chrF, because the person who wrote the reference had kids *compete to gain possession of the soccer ball*.

# %% tags=["remove-cell"]
if CHECKING:
    marked_lines = {
        (
            "A man is riding a bike through a basket.",
            "A man on a bicycle pedals through an archway.",
        ): 28,
        (
            "Children fighting for the ball.",
            "Kids compete to gain possession of the soccer ball.",
        ): 15,
    }
    for (line, wanted_line), rounded in marked_lines.items():
        assert round(CHRF().sentence_score(line, [wanted_line]).score) == rounded
        assert wanted_line in references
    assert any(line in outputs for line, _ in marked_lines)

# %% [markdown]
# ## What to remember
#
# - BLEU is the geometric mean of clipped precisions of one to four words, counted over the whole corpus; short output is punished.
# - Score plain text that the model wrote by itself, and report the signature and the test set.
# - Choose on validation data. If the paired interval of a difference includes zero, these sentences can't tell.
# - Read the output, too.
#
# ## Exercises
#
# **1. Write it first** is [above](#a-penalty-for-saying-too-little). Solution: `bleu_of(counts_of(output, reference))`.
#
# **2. A lost line** (★, 10 min). Near the beginning one output line gets lost, and a blank one is added at the end so that the counts agree. Predict the score of our captions, then try it.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# From the sixth on, each line is compared with its neighbor's reference. What is left comes from
# the five lines before, and from words that all captions share.
shifted = [*outputs[:5], *outputs[6:], ""]
lost = score(shifted, references).bleu
print(f"{scores.bleu:.1f} falls to {lost:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert lost < honest / 3

# %% [markdown]
# **3. How many sentences?** (★★, 10 min) Predict how much wider the 95% interval of our model's BLEU becomes when only every fourth caption is kept.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It goes with one over the root of the number of sentences: a quarter of them, about twice as wide.
for some in (counts, counts[::4]):
    low, high = np.percentile(resampled(some), [2.5, 97.5])
    print(f"{len(some):,} captions: {high - low:.1f} points wide")

# %% tags=["remove-cell"]
if CHECKING:
    widths = [
        np.ptp(np.percentile(resampled(some), [2.5, 97.5]))
        for some in (counts, counts[::4])
    ]
    assert 1.4 < widths[1] / widths[0] < 2.9

# %% [markdown]
# ## Further
#
# ### Scores that have read something
#
# **COMET** {cite:p}`rei2020comet` reads source, translation and reference with a pretrained Transformer and predicts the grade that a person would give. Such learned scores agreed best with experts' marks in 2022, and BLEU and chrF poorly; the report is called "Stop Using BLEU" {cite:p}`freitag2022results`. But their blind spots are harder to know, and for a comparison with the paper there is only BLEU.
#
# ### Reading what it wrote
#
# A quarter of the German test captions have a word that no training caption has, and their mean chrF is 52, the others' 65. The tokenizer can spell such a word, so no `<unk>` appears, but the model writes something that fits the rest of the picture and reads well.

# %% tags=["remove-cell"]
if CHECKING:
    known = {word for pair in multi30k("train") for word in words(pair.source)}
    by_chrf = {True: [], False: []}
    for pair, line in zip(test, outputs):
        strange = not {*words(pair.source)} <= known
        by_chrf[strange].append(CHRF().sentence_score(line, [pair.target]).score)
    assert 230 < len(by_chrf[True]) < 260
    assert abs(np.mean(by_chrf[True]) - 52) < 1.5
    assert abs(np.mean(by_chrf[False]) - 65) < 1.5

# %% [markdown]
# ### What it was not trained for
#
# Captions hardly contain questions or negations, and a test set from the same source doesn't show what that leads to:

# %% tags=["nbval-ignore-output"]
elsewhere = ["Wo ist der nächste Bahnhof?", "Das Buch liegt nicht auf dem Tisch."]
for line in translate(model, tokenizer, elsewhere):
    print(line)

# %% tags=["remove-cell"]
if CHECKING:
    narrow = translate(model, tokenizer, elsewhere)
    wide = translate(*load_pretrained(), elsewhere)
    assert "?" not in narrow[0] and " not " not in narrow[1]
    assert wide[0] == "Where is the nearest train station?"
    assert " not " in wide[1] or "n't " in wide[1]

# %% [markdown]
# Both become captions. The book's everyday model, which has read everyday sentences as well, translates both. A test score is a statement about a model *and* about the sentences it was tested on.
#
# ## Sources
#
# BLEU is from {cite:t}`papineni2002bleu`, and bootstrap tests for translation are from {cite:t}`koehn2004statistical`. The case against comparing scores of unknown origin is made by {cite:t}`post2018call`.
