# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown] needs=["multi30k"]
# # Evaluation
#
# Evaluation scores a model's translations against those that people wrote, by BLEU and chrF as the tool sacreBLEU computes them, and by BLEU nearly as the paper counted it (section 6.1).
#
# The paper's main result is two numbers, 28.4 and 41.8 **BLEU**. A score is needed because reading a thousand translations after every change takes a day. This one counts the runs of one to four words that a translation shares with a **reference**, a translation written by a person:
#
# $$
# \text{BLEU} = 100 \cdot \min\!\left(1, e^{1 - r/c}\right) \cdot \left(p_1\, p_2\, p_3\, p_4\right)^{1/4}
# $$ (eq-bleu)
#
# Here $p_n$ is the share of the output's runs of $n$ words that are matched in the reference, where each run of the reference can be matched only once; $c$ is the length of all output and $r$ that of all references. The whole of it takes a dozen lines. About as many small decisions around them can move the result by several points, and most of this chapter is about those.

# %% tags=["export", "hide-input"]
import re
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

# %% tags=["hide-input"]
import html
import json
import math
from collections import Counter
from importlib.resources import files

import altair as alt
import numpy as np
from IPython.display import display
from sacrebleu.significance import PairedTest

from annotated_transformer import load_pretrained
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.data import words
from annotated_transformer.toolkit.downloads import multi30k
from annotated_transformer.toolkit.translation import length_batches, translate
from annotated_transformer.transformer import evaluating
from book.figures import INK, show

PLUM = "#8A63A8"


# %%
def ngrams(sentence, n):
    return [tuple(sentence[i : i + n]) for i in range(len(sentence) - n + 1)]


def matches(said, wanted):
    return (Counter(said) & Counter(wanted)).total()


def bleu_by_hand(outputs, references):
    lines = [(o.split(), r.split()) for o, r in zip(outputs, references)]
    c, r = (sum(len(line[side]) for line in lines) for side in (0, 1))
    product = 1.0
    for n in (1, 2, 3, 4):
        found = sum(
            matches(ngrams(said, n), ngrams(wanted, n)) for said, wanted in lines
        )
        product *= found / sum(len(ngrams(said, n)) for said, _ in lines)
    return 100 * min(1, math.exp(1 - r / c)) * product ** (1 / 4)


output = "A dog is running across the the meadow ."
reference = "A brown dog is running across the green meadow with a ball ."
library = BLEU(tokenize="none").corpus_score([output], [[reference]]).score
print(f"by hand {bleu_by_hand([output], [reference]):.2f}, sacreBLEU {library:.2f}")

# %% tags=["remove-cell"]
assert abs(bleu_by_hand([output], [reference]) - library) < 1e-6

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ngrams", "caption": "Which runs of words are matched? Each bar covers the words of one n-gram of the output. Filled ones are matched in the reference *A brown dog is running across the green meadow with a ball.*, outlined ones aren't. One wrong word breaks one 1-gram, but up to four 4-grams."}}
said, wanted = output.split(), reference.split()
found = [matches(ngrams(said, n), ngrams(wanted, n)) for n in (1, 2, 3, 4)]
total = [len(ngrams(said, n)) for n in (1, 2, 3, 4)]


def bars():
    for n in (1, 2, 3, 4):
        left = Counter(ngrams(wanted, n))
        for start, gram in enumerate(ngrams(said, n)):
            hit = left[gram] > 0
            left[gram] -= 1
            y = sum(range(1, n)) + 1.2 * n + start % n
            yield {
                "x": start + 0.06,
                "x2": start + n - 0.06,
                "y": y,
                "y2": y + 0.72,
                "hit": hit,
            }


rows = list(bars())
assert sum(row["hit"] for row in rows) == sum(found)
heads = [{"x": i + 0.5, "y": 0.6, "text": word} for i, word in enumerate(said)]
sides = [
    {
        "x": 9.3,
        "y": sum(range(1, n)) + 1.2 * n + n / 2 - 0.1,
        "text": f"{n}-grams: {f} of {t}",
    }
    for n, f, t in zip((1, 2, 3, 4), found, total)
]
hidden = {"axis": None, "title": None}
x = alt.X("x:Q", scale=alt.Scale(domain=[0, 11.5]), **hidden)
y = alt.Y("y:Q", scale=alt.Scale(domain=[15.2, 0.2]), **hidden)
box = {"stroke": PLUM, "strokeWidth": 1.2, "cornerRadius": 2}
base = alt.Chart(alt.Data(values=rows)).encode(x, y, x2="x2:Q", y2="y2:Q")
chart = alt.layer(
    base.transform_filter("datum.hit").mark_rect(fill=PLUM, **box),
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
    chart.properties(width=640, height=300),
    alt="Of the output's n-grams, 8 of 9 single words are matched in the reference, 4 of 8 pairs, 3 of 7 triples and 2 of 6 sequences of four.",
)

# %% [markdown]
# ## Why each part of BLEU is there
#
# Why not simply count the translations that are right? Our output differs from the reference, which would make it a zero, although the dog, the running and the meadow are there. Two people hardly ever translate a sentence alike. A score has to give part of the credit.
#
# ### Precision, clipped
#
# The first idea is a **precision**: of the words that were said, how many occur in the reference? Here that is 9 of 9, including the second *the*, which is plainly wrong. By that count, four times *the* would be a perfect translation. The remedy is **clipping**: each word of the reference may be used up only once. The operator `&` of two counters takes the smaller count of each word, which does just that.

# %%
said = output.split()
wanted = reference.split()
print("unclipped:", sum(word in wanted for word in said), "of", len(said))
print("clipped:  ", matches(said, wanted), "of", len(said))
print("'the the the the':", matches(["the"] * 4, wanted), "of 4")

# %% [markdown]
# ### Sequences
#
# Words alone know nothing of their order; *dog bites man* and *man bites dog* would score the same. So sequences count as well. An **n-gram** is $n$ words in a row, and n-grams are clipped like words. Errors next to each other share the sequences they spoil, so four errors in one place cost less than four spread over the sentence.
#
# ### A geometric mean
#
# Now there are four clipped precisions, and one number is wanted:
#
# $$
# p_1 = \frac{8}{9} \qquad p_2 = \frac{4}{8} \qquad p_3 = \frac{3}{7} \qquad p_4 = \frac{2}{6}
# $$
#
# The plain mean, 0.54, would be ruled by $p_1$, as a rule the largest: halve $p_1$ and it falls by 21%, halve $p_4$ and it falls by 8%. Yet $p_4$ is the one that tells fluent sentences from shuffled words. A **geometric mean** multiplies the four and takes the fourth root, $0.0635^{1/4} = 0.502$. Halving any of them divides it by $2^{1/4} = 1.19$.
#
# Why four, and not five or three? {cite:t}`papineni2002bleu` tried several lengths; four agreed best with people's judgments of fluency, and three and five nearly as well.
#
# ### A penalty for saying too little
#
# Precision asks only about what was said, so the way to a high score would be to say little. The **brevity penalty** compares the length $c$ of the output with the length $r$ of the reference. Ours has 9 words against 13, so it is $e^{1 - 13/9} = 0.641$ and a third of the score is gone: $100 \cdot 0.641 \cdot 0.502 = 32.2$.
#
# | $c / r$ | 1.1 | 1 | 0.99 | 0.95 | 0.9 | 0.8 | 0.5 |
# |---|---|---|---|---|---|---|---|
# | penalty | 1 | 1 | 0.99 | 0.95 | 0.89 | 0.78 | 0.37 |
#
# Near the right length, each percent that is missing costs one percent of the score, and further down somewhat more. Extra words need no penalty, because they already lower every precision.
#
# Recall would be the natural partner of precision. But BLEU was made for several references to a sentence. A good translation agrees with one of them at each place, not with all, so which words "should be there" is an open question. Lengths can always be compared; with several references, $r$ is the length of the closest.
#
# ### A corpus is not a mean of sentences
#
# When one factor is zero, the product is. A sentence without a single matching 4-gram scores 0, and short sentences often have none. BLEU was made for a whole test set: it adds up the matches of all sentences, then all the totals, and divides at the very end. Take two captions, one long and good, one short and poor.

# %%
outputs = ["Two men in red shirts play football on a green field .", "A big tree ."]
references = [
    "Two men in red shirts play football on a large field .",
    "A house stands there .",
]
metric = BLEU(tokenize="none", smooth_method="none")
single = [metric.corpus_score([o], [[r]]).score for o, r in zip(outputs, references)]
print(f"sentences {single[0]:.1f} and {single[1]:.1f}", end=", ")
print(f"mean {sum(single) / 2:.1f}", end=", ")
print(f"corpus {bleu_by_hand(outputs, references):.1f}")

# %% [markdown]
# | | $p_1$ | $p_2$ | $p_3$ | $p_4$ | $c$ | $r$ |
# |---|---|---|---|---|---|---|
# | the long one | 11/12 | 9/11 | 7/10 | 6/9 | 12 | 12 |
# | the short one | 2/4 | 0/3 | 0/2 | 0/1 | 4 | 5 |
# | both | 13/16 | 9/14 | 7/12 | 6/10 | 16 | 17 |
#
# The geometric mean of the last row is 0.654 and its penalty $e^{1 - 17/16} = 0.939$, which makes 61.4. The mean of sentences counts both alike; the corpus counts each *n-gram* alike, so the long sentence weighs more, and the zero disappears in the sum. "BLEU" means the corpus number.
#
# For single sentences, tools replace a zero by something small, which is called **smoothing**. sacreBLEU's default takes half a match for the first zero, a quarter for the second and an eighth for the third, which gives the short caption 14.8; other common ways give it anything from 7 to 30. BLEU of a single sentence is good for sorting and for little else.
#
# ## chrF: counting characters
#
# BLEU is strict about words: *dogs* for *dog* is as wrong as *helicopter*. A second score, **chrF**, counts sequences of one to six characters, with the spaces left out, and asks both questions: precision $P$, how much of the output is right, and recall $R$, how much of the reference is there. Each is the mean over the six lengths. Recall gets twice the weight, $\beta = 2$:
#
# $$
# \text{chrF} = 100 \cdot \frac{(1 + \beta^2)\, P\, R}{\beta^2 P + R}
# $$ (eq-chrf)
#
# chrF needs no decision about what a word is, is kind to languages with many endings, and works for single sentences too. Its numbers are higher than those of BLEU, and the two must not be compared.
#
# :::{admonition} For a second reading: chrF by hand
# :class: dropdown
# With lengths up to three only, for the output *dog* and the reference *dogs*:
#
# | | 1 | 2 | 3 | mean |
# |---|---|---|---|---|
# | the output's | d, o, g | do, og | dog | |
# | precision | 3/3 | 2/2 | 1/1 | $P = 1$ |
# | recall | 3/4 | 2/3 | 1/2 | $R = 0.639$ |
#
# This makes $100 \cdot 5 \cdot 0.639 / (4 + 0.639) = 68.9$, where BLEU finds nothing at all. The other way round, *dogs* for *dog*, gets $100 \cdot 5 \cdot 0.639 / (4 \cdot 0.639 + 1) = 89.8$: missing letters cost more than extra ones.
# :::


# %% tags=["hide-cell"]
def chrf_by_hand(output, reference, beta=2):
    said, wanted = output.replace(" ", ""), reference.replace(" ", "")
    hits = [matches(ngrams(said, n), ngrams(wanted, n)) for n in range(1, 7)]
    P = sum(h / len(ngrams(said, n)) for n, h in enumerate(hits, 1)) / 6
    R = sum(h / len(ngrams(wanted, n)) for n, h in enumerate(hits, 1)) / 6
    return 100 * (1 + beta**2) * P * R / (beta**2 * P + R)


by_hand, library = (
    chrf_by_hand(output, reference),
    CHRF().sentence_score(output, [reference]),
)
assert abs(by_hand - library.score) < 1e-6
three = [
    CHRF(char_order=3).sentence_score(*line).score
    for line in (("dog", ["dogs"]), ("dogs", ["dog"]))
]
print(
    f"by hand {by_hand:.2f}, sacreBLEU {library.score:.2f}; dogs {three[0]:.1f}, {three[1]:.1f}"
)
assert [round(score, 1) for score in three] == [68.9, 89.8]

# %% [markdown]
# ## What no counting can see
#
# Both scores compare letters, and neither knows which word matters. We change one sentence in three ways; two ruin the meaning and one keeps it.

# %%
reference = "A man in a blue shirt is standing on a ladder cleaning a window."
changes = {
    "another person": "A woman in a blue shirt is standing on a ladder cleaning a window.",
    "the opposite": "A man in a blue shirt is not standing on a ladder cleaning a window.",
    "in other words": "On a ladder stands a man who cleans a window, wearing a blue shirt.",
}
for name, line in changes.items():
    print(f"{name:15} {BLEU().corpus_score([line], [[reference]]).score:5.1f} BLEU")

# %% [markdown]
# The sound translation gets a sixth of what the two false ones get. Over many sentences this evens out to some degree, and systems that people prefer tend to have higher BLEU. For one sentence it proves nothing, least of all with one reference a sentence, as captions have here.
#
# ### What BLEU does a person get?
#
# Tatoeba, from which the everyday models learned, has several translations of many sentences, all written by people. So a person can be scored against another, and the model on the same sentences. The models' [cards](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/everyday-en-de/README.md) hold the numbers:

# %%
trained = files("annotated_transformer") / "pretrained"
logged = {}
for direction in ("de-en", "en-de"):
    path = trained / f"everyday-{direction}" / "evaluation.jsonl"
    bleu = logged[direction] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["beam"] in (0, 4) and record["alpha"] == 0.6:
            bleu[record["set"]] = record["bleu"]

print("       person   model  |    one     all")
for direction, bleu in logged.items():
    print(f"{direction} {bleu['person']:7.1f} {bleu['several']:7.1f}", end="  | ")
    print(f"{bleu['tatoeba']:6.1f} {bleu['every']:7.1f}")

# %% tags=["remove-cell"]
for bleu in logged.values():
    assert 39 < bleu["person"] < 41 and bleu["every"] > bleu["tatoeba"] + 2

# %% [markdown]
# On the left, one of several translations of a sentence is the reference, and two others are scored against it: one by a person and the model's (239 sentences into English, 598 into German). The person gets 41 into English and 40 into German, for translations that are all right. The model into English gets more, most likely because it has learned this corpus's favorite wordings. So a BLEU above a person's doesn't make a better translator.
#
# On the right are the model's translations of all test sentences, against one reference and against all that Tatoeba knows. Against one, the model into German looks more than ten points worse than its sister. Against all, part of that is gone: English *you* is *du*, *ihr* or *Sie*, and one reference accepts one of them. A score belongs to its references. Between languages it can't be compared at all.
#
# ### COMET: a score that has read something
#
# The scores that researchers trust most today are networks themselves. **COMET** {cite:p}`rei2020comet` encodes source, translation and reference with a pretrained multilingual Transformer and predicts the rating that a person would give; it was trained on such ratings. It can accept other words for the same thing, which counting can't. At WMT22, metrics were compared with the judgments of experts on four kinds of text. Learned ones came out ahead, BLEU and chrF agreed poorly, and the report's title says what follows: "Stop Using BLEU" {cite:p}`freitag2022results`. In exchange you can't compute such a score by hand, it needs a large model (COMET's of 2020 is a file of 2.3 GB), the number depends on which one, and its blind spots are harder to know. This book doesn't run it. With `pip install unbabel-comet` you can:
#
# ```bash
# comet-score -s source.de -t output.en -r reference.en --model Unbabel/wmt22-comet-da
# ```
#
# For a comparison with the paper there is only BLEU. If you choose between systems of your own, report COMET beside it.
#
# ## The tool and its signature
#
# In the toy sentences a word was what is between spaces. Real text has *window.* with a period. How it is cut off is the first decision that moves the score. sacreBLEU {cite:p}`post2018call` decides it once, for text as people write it; its standard tokenizer is called `13a`, after the version of an older script.

# %%
line = "The dog's 3.5-kg ball isn't here, \"Max\" says."
for name in ("none", "13a", "char"):
    print(f"{name:5}", BLEU(tokenize=name).tokenizer(line))

# %% [markdown]
# What was done is written into a line called the **signature**. A score without it is half a result, so our function returns both scores with theirs. `BLEU`, `CHRF` and `Tokenizer13a` below are sacreBLEU's. `check_lines` counts the two sides first: with a line missing in the middle, every later translation would be held against the wrong reference (exercise 3 shows how low the score falls).


# %% tags=["export"]
class Scores(NamedTuple):
    """Scores of a test set, 0 to 100, each with the signature that says how it was computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


# %% tags=["export", "hide-input"]
def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise ValueError unless there is one translation for each reference, and at least one."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("a test set is a list of sentences, not one string")
    if len(hypotheses) != len(references) or not references:
        counts = f"{len(hypotheses):,} translations for {len(references):,} references"
        raise ValueError(f"{counts}: there must be one for each, and at least one")


# %% tags=["export"]
# Thai, Lao, Burmese and Khmer; Japanese and Chinese
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Score translations by corpus BLEU and chrF2, cased and as sacreBLEU tokenizes (section 6.1).

    Both are plain text as people write it: not tokenized, not in subwords, not lower-cased.
    Where words are written without spaces, BLEU counts characters.
    Raises ValueError if they differ in number or there are none.
    """
    check_lines(hypotheses, references)
    text = "".join(references)
    mostly_spaced = len(UNSPACED.sub("", text)) >= len(text) / 2
    bleu = BLEU(tokenize="13a" if mostly_spaced else "char")
    chrf = CHRF()
    return Scores(
        bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf.corpus_score(list(hypotheses), [list(references)]).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )


# %% [markdown]
# Chinese, Japanese, Thai and a few others write no spaces between words. There `13a` takes a clause for one word, hardly any four in a row match, and a good translation gets 0. So our function counts characters instead if most of the references is in such a script, and the signature says `char`. Here are two ways of saying in Chinese that he lost his key yesterday:

# %%
lost = ["他昨天丢了钥匙。"]
also_lost = ["他昨天弄丢了钥匙。"]
by_character = score(lost, also_lost)
print("13a: ", round(BLEU().corpus_score(lost, [also_lost]).score, 1))
print("char:", round(by_character.bleu, 1), by_character.bleu_signature)

# %% tags=["remove-cell"]
assert "tok:13a" in score(["Er hat Zeit."], ["他 Zeit."]).bleu_signature

# %% [markdown]
# The references are in a list of their own because sacreBLEU allows several for each sentence, and wants them by *set*: the first reference of all sentences, then the second of all. The shape that comes to mind first, a short list for each sentence, is a trap:

# %%
two = ["a b c d e", "all of this is wrong"]
right = ["a b c d e", "nothing like it at all"]
in_sets = BLEU().corpus_score(two, [right]).score
in_lists = BLEU().corpus_score(two, [[line] for line in right]).score
print("sets of references:      ", round(in_sets, 1))
print("a list for each sentence:", round(in_lists, 1))

# %% [markdown]
# The second score is perfect, because the library takes each short list for a whole set, and each set ends after its first line: only the first sentence is scored. A score that is too good deserves the same care as one that is too bad.
#
# ## The score of our model
#
# Now the captions model translates the 1,000 captions of Multi30k's test set with a beam of 4. It wasn't trained on them, and none of its settings was chosen on them. (Some pages of this book, this one too, score several settings on them; that is harmless as long as nothing is chosen that way.)

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained("captions-de-en")
pairs = multi30k("test_2016_flickr")
sources = [pair.source for pair in pairs]
references = [pair.target for pair in pairs]
outputs = translate(model, tokenizer, sources)
honest = score(outputs, references)
print(f"BLEU {honest.bleu:.1f}  {honest.bleu_signature}")
print(f"chrF {honest.chrf:.1f}  {honest.chrf_signature}")

# %% tags=["remove-cell"]
assert 40.7 < honest.bleu < 41.8 and 60 < honest.chrf < 61.2

# %% [markdown]
# Each field of the signature names a decision that moves the score.
#
# | field | says | other choices, and what they do |
# |---|---|---|
# | `nrefs:1` | references for each sentence | more of them raise the score, since more words can match |
# | `case:mixed` | upper and lower case as they are | `lc` forgives every wrong capital |
# | `eff:no` | all four n-gram lengths always count | `yes` leaves out lengths for which a sentence is too short |
# | `tok:13a` | how lines are cut into words | `none`, `char`, or one made for a language |
# | `smooth:exp` | what replaces a zero | matters for single sentences and tiny test sets |
# | `version:...` | of the library | rules have been mended over the years |
#
# chrF's signature has three more: `nc:6`, characters up to six; `nw:0`, no words beside them; `space:no`, spaces left out. Two scores may be compared if their signatures are equal *and* the test set is the same. The signature doesn't say which test set it was, how many lines, or what was done to the text before; report these beside it.
#
# Is 41.2 a good score? There is no absolute scale. Captions are short, use few words and follow a pattern, so a number on captions says nothing about news, and the paper's 28.4 doesn't belong in one table with it.
#
# ## Why never to compare tokenized BLEU
#
# Before sacreBLEU, the usual script took text that was *already* cut into words, on both sides, by a tokenizer of one's own choice. The score then belongs to the translation *and* to the tokenizer. Take one sentence with one difference, *isn't* for *is not*, cut in three ways:

# %%
output = "A man's dark-blue T-shirt isn't dry."
reference = "A man's dark-blue T-shirt is not dry."
split = lambda line: " ".join(re.findall(r"\w+|[^\w\s]", line))
for name, cut, tokenize in (
    ("spaces", str, "none"),
    ("13a", str, "13a"),
    ("split", split, "none"),
):
    metric = BLEU(tokenize=tokenize)
    found = metric.corpus_score([cut(output)], [[cut(reference)]])
    words_right = f"{found.counts[0]} of {found.totals[0]} words"
    print(f"{name:6} {found.score:.1f} {words_right}", end=": ")
    print(metric.tokenizer(cut(output)))

# %% [markdown]
# A finer cut makes more words, and many of the new ones are easy: *dark-blue* is one word right in the first row and three in the last, with the runs across them. (The period alone doesn't help: the new runs of three and four that end in it cross *isn't*.) On a whole test set the effect is smaller and still larger than most improvements. Between settings in common use, {cite:t}`post2018call` measured differences of up to 1.8 points.
#
# The paper's scores are of this kind. To stand beside its table you can count in its way, nearly. The script in tensor2tensor (`get_ende_bleu.sh`) tokenizes with Moses and cuts each compound at its hyphens, where the hyphen becomes a word of its own, `##AT##-##AT##`; its reference file had all kinds of quotation marks made plain, as [a user found out](https://github.com/tensorflow/tensor2tensor/issues/317). We take `13a` for the first step and do the other two. The result has no signature. Print it beside the real score, never instead of it.


# %% tags=["export"]
def split_compounds(text: str) -> str:
    """Cut text nearly as the paper's authors did: 13a, plain quotes, compounds cut at hyphens."""
    text = re.sub("[‚‘’]", "'", text)
    text = re.sub("[„“”«»]", '"', text)
    tokens = Tokenizer13a()(text)
    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", tokens)


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Score nearly as the paper did (section 6.1): higher than `score`, comparable with nothing."""
    check_lines(hypotheses, references)
    outputs = [split_compounds(line) for line in hypotheses]
    wanted = [split_compounds(line) for line in references]
    bleu = BLEU(tokenize="none", force=True)
    return float(bleu.corpus_score(outputs, [wanted]).score)


# %%
for line in (output, "Ein „dunkelblaues“ T-Shirt."):
    print(split_compounds(line))
print(f"{score([output], [reference]).bleu:.1f}", end=" is now ")
print(f"{compound_split_bleu([output], [reference]):.1f}")

# %% [markdown]
# ## How BLEU lies
#
# The outputs are fixed from here on. We score the very same work in ways that are found in published code, tables and tutorials, and watch the number move.
#
# One of them needs outputs of its own. Under **teacher forcing** the decoder gets the right words so far, whatever it would have written, and says one more. That is how it is trained, and it is easy to collect these words and score them. But then the model has been told the first half of each sentence while it says the second. `forced` holds what it says.


# %% tags=["hide-input"]
def forced_outputs(pairs):
    examples = encode_pairs(tokenizer, pairs)
    texts = [""] * len(pairs)
    for batch in length_batches(examples.lengths[:, 1].tolist(), max_tokens=4096):
        source, target = collate([examples[i] for i in batch])
        best = model(source, target[:, :-1]).argmax(dim=-1)
        for i, row in zip(batch, best.tolist()):
            texts[i] = tokenizer.decode(row[: len(examples[i].target) - 2])
    return texts


with evaluating(model):
    forced = forced_outputs(pairs)

# %% tags=["nbval-ignore-output"]
print("reference:", references[0])
print("forced:   ", forced[0])
print("written:  ", outputs[0])

# %% [markdown]
# The forced line needn't make sense: each of its words continues the reference, not the line. That helps, since every word has a flawless beginning to build on, and it hurts, since the next word must go on with the reference's choice. Here the two nearly cancel, which is luck. Nothing was translated.
#
# The other ways keep the outputs and change what is counted. `same_place` compares the first word with the first and the second with the second, and stops where the shorter sentence ends, as when the accuracy of a classifier is applied to sentences.


# %% tags=["hide-input"]
def bleu(outputs, references, **options):
    return BLEU(force=True, **options).corpus_score(outputs, [references]).score


def marked(lines):
    return [f"<s> {' '.join(words(line))} </s>" for line in lines]


def in_subwords(lines):
    return [" ".join(map(str, tokenizer.encode(line))) for line in lines]


def split_up(lines):
    return [" ".join(words(line.lower())) for line in lines]


def same_place(outputs, references):
    rows = [list(zip(words(o), words(r))) for o, r in zip(outputs, references)]
    return 100 * sum(a == b for row in rows for a, b in row) / sum(map(len, rows))


def sentence_mean(outputs, references):
    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(o, [r]).score for o, r in zip(outputs, references)]
    return sum(scores) / len(scores)


# %%
whole, part = "Two dogs run through deep snow .", "Two dogs run through"
longer = "So two dogs run through deep snow ."
print(f"half a sentence: {same_place([part], [whole]):.1f} by place", end=", ")
print(f"{bleu([part], [whole]):.1f} BLEU")
print(f"one word more:   {same_place([longer], [whole]):.1f} by place")

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-bleu-lies", "caption": "How much can a score be moved without touching the model? The same model on the same captions, scored in eleven ways. The vertical line is the honest score; filled purple bars are higher, outlined ones lower. Counted in characters the score is 24 points higher, with `<s>` and `</s>` five, and the other ways stay within three points."}}
few = [i for i, line in enumerate(references) if len(words(line)) <= 12]
value = {
    "honest: sacreBLEU": honest.bleu,
    "teacher-forced": bleu(forced, references),
    "in characters": bleu(outputs, references, tokenize="char"),
    "in subwords": bleu(in_subwords(outputs), in_subwords(references), tokenize="none"),
    "with <s> and </s>": bleu(marked(outputs), marked(references), tokenize="none"),
    "lower-cased": bleu(outputs, references, lowercase=True),
    "split up, lower-cased": bleu(
        split_up(outputs), split_up(references), tokenize="none"
    ),
    "split at spaces": bleu(outputs, references, tokenize="none"),
    "mean of sentences": sentence_mean(outputs, references),
    "short captions only": bleu(
        [outputs[i] for i in few], [references[i] for i in few]
    ),
    "word by place": same_place(outputs, references),
}
apart = {name: number - honest.bleu for name, number in value.items()}
assert apart["in characters"] > 20 and 4 < apart["with <s> and </s>"] < 6
assert (
    sum(abs(number) < 3 for number in apart.values()) == 9
    and abs(apart["teacher-forced"]) < 0.5
)
records = [
    {"way": name, "bleu": round(n, 1), "over": apart[name] > 0}
    for name, n in value.items()
]
order = sorted(value, key=value.get, reverse=True)
axis = alt.Axis(labelLimit=220, ticks=False, domain=False)
base = alt.Chart(alt.Data(values=records)).encode(
    y=alt.Y("way:N", sort=order, title=None, axis=axis),
    x=alt.X("bleu:Q", title="score", scale=alt.Scale(domain=[0, 100])),
)
is_honest = "datum.way == 'honest: sacreBLEU'"
only = alt.Chart(alt.Data(values=[{"bleu": round(honest.bleu, 1)}]))
chart = alt.layer(
    base.transform_filter(is_honest).mark_bar(fill=INK, height=15),
    base.transform_filter(f"datum.over && !({is_honest})").mark_bar(
        fill=PLUM, height=15
    ),
    base.transform_filter(f"!datum.over && !({is_honest})").mark_bar(
        fillOpacity=0, stroke=PLUM, strokeWidth=1.4, height=15
    ),
    only.mark_rule(color=INK, strokeWidth=2).encode(x="bleu:Q"),
    base.transform_calculate(at=f"max(datum.bleu, {honest.bleu:.1f})")
    .mark_text(align="left", dx=7)
    .encode(x="at:Q", text=alt.Text("bleu:Q", format=".1f")),
)
show(
    chart.properties(width=430, height=300),
    alt=f"Bars of eleven scores of one model from {min(value.values()):.0f} to {max(value.values()):.0f}; the honest one is {honest.bleu:.0f}, the highest counts characters.",
)


# %% [markdown]
# The gain from characters is the emptiest, since four letters in a row are often no more than one word. Counting `<s>` and `</s>` gives away two words that can't be wrong, and the 2-grams at the edges with them. Leaving out the long captions doesn't change a single translation, only which ones are looked at. None of this takes bad faith: a pipeline lower-cases early, a metric is handed ids, a loader drops its last batch, and a number comes out that looks like any other.
#
# Three habits protect you. Turn ids back into plain text and score the text. Count the lines. Print the signature beside the score.
#
# ## Whether a difference is real
#
# A beam of 4 against greedy search, or a length penalty with $\alpha = 1.4$, the best of three on validation, against the usual 0.6: which is better, and by how much? Two scores on the same captions give a difference, but with other captions it would be another one. If chance alone can produce a difference of that size, it says nothing.
#
# ### A test set is a sample
#
# With a thousand other test sets we could see how the difference swings, but we have only one. The **bootstrap** takes the 1,000 captions as a picture of all captions and draws from *them*: 1,000 times one caption, each time from the full set, so that some come twice or three times and others not at all. (A caption is passed over with probability $(1 - 1/1000)^{1000} = 0.37$.) Try it on ten made-up gains of one system over another, sentence by sentence:

# %% tags=["nbval-ignore-output"]
gains = np.array([2, 5, -1, 0, 3, -4, 6, 1, -2, 4])
draws = np.random.default_rng(0).integers(0, 10, (10_000, 10))
means = gains[draws].mean(axis=1)
low, high = np.percentile(means, [2.5, 97.5])
print("one draw:", draws[0], "mean", means[0])
print(f"mean {gains.mean()}, 95% of the draws between {low:.1f} and {high:.1f}")

# %% tags=["remove-cell"]
assert abs(low + 0.5) < 0.3 and abs(high - 3.3) < 0.3

# %% [markdown]
# The mean gain is 1.4, and 95% of the draws have a mean between $-0.5$ and $3.3$. Such a range is a **confidence interval**, or *interval* for short. This one contains 0, so ten sentences can't tell us that the first system is better, though it won six of them and lost three. For a mean there is a formula that gives nearly the same, two standard errors to either side. BLEU isn't a mean, but the bootstrap doesn't care: it needs a score and a test set, and never looks inside.
#
# ### A bootstrap for BLEU
#
# Drawing captions needs no new translations and no new count of n-grams. BLEU adds up ten numbers a caption: matches and totals for $n = 1$ to 4, and two lengths. A resample weights the rows by how often each caption was drawn, so a thousand new test sets are one matrix product. It must be *paired*: both systems are scored on the *same* drawn captions, because hard captions are hard for both, and their luck then cancels in the difference.


# %%
def sentence_counts(hypotheses, references):
    metric = BLEU(effective_order=True)
    found = [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references)]
    return np.array([[*f.counts, *f.totals, f.sys_len, f.ref_len] for f in found])


def bleu_of(counts):
    numbers = counts.tolist()
    matched, total = numbers[:4], numbers[4:8]
    return BLEU.compute_bleu(matched, total, numbers[8], numbers[9], "exp").score


def resampled(counts, samples, seed):
    size = len(counts)
    shares = np.full(size, 1 / size)
    draws = np.random.default_rng(seed).multinomial(size, shares, samples)
    return np.array([bleu_of(row) for row in draws @ counts])


def paired_bootstrap(one, other, samples=1000, seed=12345):
    ahead = resampled(one, samples, seed) - resampled(other, samples, seed)
    difference = bleu_of(one.sum(axis=0)) - bleu_of(other.sum(axis=0))
    as_large = np.sum(np.abs(ahead - ahead.mean()) >= abs(difference))
    low, high = np.percentile(ahead, [2.5, 97.5])
    return difference, low, high, (1 + as_large) / (1 + samples)


# %% [markdown]
# The last number is a **p-value**: how often would a difference at least as large turn up if the two systems were equally good? To imitate equally good systems, the resampled differences are moved so that their mean is zero; their spread stays, and the spread is what chance can do. It isn't the probability that the systems are equal, and it says nothing about how large the difference is. One is added above and below, because a thousand draws can't show that something never happens.

# %% tags=["nbval-ignore-output"]
greedy = translate(model, tokenizer, sources, beam=1)
wide = translate(model, tokenizer, sources, beam=8)
longer = translate(model, tokenizer, sources, alpha=1.4)
counts = sentence_counts(outputs, references)
fewer = sentence_counts(greedy, references)
more = sentence_counts(wide, references)
long = sentence_counts(longer, references)
compared = {
    "beam 4 - greedy": (counts, fewer),
    "beam 8 - beam 4": (more, counts),
    "alpha 1.4 - alpha 0.6": (long, counts),
}
intervals = {name: paired_bootstrap(*pair) for name, pair in compared.items()}
for name, (difference, low, high, p) in intervals.items():
    print(f"{name}: {difference:+.2f} BLEU", end=", ")
    print(f"95% from {low:+.2f} to {high:+.2f}, p = {p:.3f}")
versus_greedy, versus_four, versus_short = intervals.values()
ours = resampled(counts, 1000, seed=1)
paired = np.std(ours - resampled(fewer, 1000, seed=1))
unpaired = np.std(ours - resampled(fewer, 1000, seed=2))
print("beam 4 - greedy, standard deviation:", end=" ")
print(f"paired {paired:.2f}, unpaired {unpaired:.2f}")

# %% tags=["remove-cell"]
assert abs(bleu_of(counts.sum(axis=0)) - honest.bleu) < 1e-6
assert all(
    low < 0 < difference < 0.3 for difference, low, *_ in (versus_greedy, versus_four)
)
assert versus_short[0] > 0.8 and versus_short[1] > 0.5 and unpaired > 5 * paired

# %% [markdown]
# Between greedy search and a beam of 4 this test set can't decide: the beam is ahead by 0.2 points, with an interval from $-0.3$ to $0.6$. Nor between 4 and 8: 0.1, from $-0.1$ to $0.3$. In [Decoding](19_decoding.ipynb#beam-width-and-alpha) a beam of 4 was a point ahead of greedy search, on 250 other captions, which shows what such a curve is worth without intervals. The larger $\alpha$ is another matter: 0.9 ahead, from 0.6 to 1.4.
#
# Pairing matters: with draws of its own for each system the swing between greedy search and the beam is more than five times as wide, so an unpaired test would need nearly thirty times as many captions to see the same difference.


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-bootstrap", "caption": "Could it be chance? How far a beam of 4 is ahead of greedy search (above), and alpha 1.4 of alpha 0.6 (below), on 1,000 resampled test sets. The thick line at the bottom covers 95% of them. In the upper picture nearly a quarter are less than zero, in the lower none."}}
def histogram(name, one, other):
    ahead = resampled(one, 1000, 12345) - resampled(other, 1000, 12345)
    heights, edges = np.histogram(ahead, np.arange(-0.8, 2, 0.07))
    rows = [
        {"x": round(a, 2), "x2": round(b, 2), "count": int(n)}
        for a, b, n in zip(edges, edges[1:], heights)
    ]
    ticks = alt.Axis(values=[-0.5, 0, 0.5, 1, 1.5])
    title = "BLEU of {} minus BLEU of {}".format(*name.split(" - "))
    x = alt.X("x:Q", title=title, scale=alt.Scale(domain=[-0.8, 1.9]), axis=ticks)
    interval = {
        "x": round(intervals[name][1], 3),
        "x2": round(intervals[name][2], 3),
        "count": 0,
    }
    bars = alt.Chart(alt.Data(values=rows)).mark_rect(fill=PLUM)
    line = alt.Chart(alt.Data(values=[interval])).mark_rule(strokeWidth=6, color=INK)
    chart = alt.layer(
        bars.encode(x, alt.Y("count:Q", title="resamples"), x2="x2:Q", y2=alt.datum(0)),
        line.encode(x, x2="x2:Q", y="count:Q"),
    )
    return chart.properties(width=420, height=120), (ahead < 0).mean()


names = ("beam 4 - greedy", "alpha 1.4 - alpha 0.6")
charts, below = zip(*(histogram(name, *compared[name]) for name in names))
assert 0.2 < below[0] < 0.28 and below[1] == 0
show(
    alt.vconcat(*charts),
    alt=f"Of the resampled differences between beam and greedy search {below[0]:.0%} lie below zero; of those between alpha 1.4 and alpha 0.6 none does.",
)

# %% [markdown]
# For your own comparisons, take sacreBLEU's `PairedTest`; on the command line, give `sacrebleu` two outputs and `--paired-bs`. Its p-values aren't quite ours. Following an older script of Moses, it takes the size of each resampled difference, without its sign, before it moves the mean to zero, so small differences look surer than they are. We compare the two widths, and compute a p-value from our draws in its way, too:

# %% tags=["nbval-ignore-output"]
systems = [("beam 4", outputs), ("beam 8", wide)]
metrics = {"BLEU": BLEU(references=[references])}
_, results = PairedTest(systems, metrics, None, "bs", 1000)()
theirs = results["BLEU"][1].p_value
ahead = resampled(more, 1000, 12345) - resampled(counts, 1000, 12345)
their_way = np.mean(abs(ahead) - abs(ahead).mean() > abs(versus_four[0]))
print(f"ours {versus_four[3]:.2f}, sacreBLEU's {theirs:.2f}", end=", ")
print(f"our draws in its way {their_way:.2f}")

# %% tags=["remove-cell"]
assert abs(theirs - their_way) < 0.06 and theirs < versus_four[3] - 0.1

# %% [markdown]
# Compare p-values only within one tool, and look at the interval first. And the bootstrap knows one kind of chance only. Another is the seed of the training: train again, and the score moves too. To show that a *method* is better, train both several times.
#
# ## What does a difference of 0.5 BLEU mean?
#
# Papers are written about half a point. A small relative change of BLEU is the mean of the relative changes of the four precisions, plus that of the penalty. At our 41.2 BLEU, half a point is 1.2%. It can come from
#
# - every precision 1.2% higher: where 741 of 1,000 words were right, now 750 are, with the runs around them;
# - $p_4$ alone 4.9% higher, the others as before: better order, and no better words;
# - the penalty alone: output at 97.6% of the length instead of 96.5%, so 11 words more in 1,000.
#
# The last is a warning. Much of what a tuned length penalty gains is length: of the 0.9 points above, 0.7 come from the brevity penalty. In whole captions: let us make some of them perfect, in random order, until the score is half a point up.

# %% tags=["nbval-ignore-output"]
perfect = sentence_counts(references, references)
order = np.random.default_rng(3).permutation(len(counts))
mended = counts.sum(axis=0) + (perfect - counts)[order].cumsum(axis=0)
needed = next(n for n, row in enumerate(mended, 1) if bleu_of(row) > honest.bleu + 0.5)
print(f"{needed} of {len(counts):,} captions made perfect gain half a point")

# %% tags=["remove-cell"]
brevity = [
    math.exp(1 - 1 / (rows[:, 8].sum() / rows[:, 9].sum())) for rows in (counts, long)
]
assert 4 <= needed <= 8
assert (
    0.65 < honest.bleu * (brevity[1] / brevity[0] - 1) < 0.85
)  # what length alone gains

# %% [markdown]
# Six captions in a thousand: if you read 20 translations, you won't see it. It needn't be nothing, since ten such steps make five points. But before half a point is called progress, it takes the same signature, the same search, a paired interval without zero, and more than one training run on each side.
#
# ## Which sentences are hard
#
# Length is the first suspect. With each word there is one more chance to go astray, and what went wrong stays in view of all later words. We sort the captions by the length of the source and score five groups.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-length-quality", "caption": "Are long sentences harder? BLEU for captions grouped by the number of words of the source, with intervals that cover 95% of 300 resamples. The number of captions is below each point. The last interval lies below all others, which overlap."}}
groups = [(1, 9), (10, 12), (13, 15), (16, 19), (20, 99)]
source_words = np.array([len(words(line)) for line in sources])
records = []
for first, last in groups:
    member = (first <= source_words) & (source_words <= last)
    low, high = np.percentile(resampled(counts[member], 300, seed=1), [2.5, 97.5])
    name = f"{first}-{last}" if last < 99 else f"{first} or more"
    records.append(
        {
            "group": name,
            "bleu": round(bleu_of(counts[member].sum(axis=0)), 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "count": f"{member.sum()} captions",
        }
    )
assert records[-1]["high"] < min(r["low"] for r in records[:-1])
assert max(r["low"] for r in records[:-1]) < min(r["high"] for r in records[:-1])
base = alt.Chart(alt.Data(values=records)).encode(
    x=alt.X(
        "group:N", sort=None, title="words of the source", axis=alt.Axis(labelAngle=0)
    )
)
y = alt.Y("bleu:Q", title="BLEU", scale=alt.Scale(domain=[0, 60]))
chart = alt.layer(
    base.mark_rule(strokeWidth=2, color=PLUM).encode(
        alt.Y("low:Q", title="BLEU"), y2="high:Q"
    ),
    base.mark_point(filled=True, opacity=1, size=90, color=PLUM).encode(y),
    base.mark_text(align="left", dx=9).encode(y, text=alt.Text("bleu:Q", format=".1f")),
    base.mark_text(fontSize=11).encode(y=alt.value(232), text="count:N"),
)
show(
    chart.properties(width=440, height=240),
    alt="BLEU is between 41 and 44 for captions of up to 19 words and 30 for longer ones.",
)

# %% [markdown]
# Up to 19 words the intervals overlap. Captions of 20 words or more have 30.0, with an interval from 25 to 34, which doesn't reach that of the group before, 38 to 46. Only 53 are that long, 30 of them with a word that no training caption has.


# %% tags=["hide-input"]
def table(head, rows):
    def line(tag, row):
        look = (
            'style="padding:0.2rem 0.7rem 0.2rem 0;text-align:left;vertical-align:top"'
        )
        cells = (f"<{tag} {look}>{html.escape(str(cell))}</{tag}>" for cell in row)
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    grid = f"<table style=min-width:36rem><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
    page = f'<div style="overflow-x:auto">{grid}</div>'
    plain = "\n".join(" | ".join(map(str, row)) for row in [head, *rows])
    display({"text/html": page, "text/plain": plain}, raw=True)


# %% [markdown]
# ## Reading what it wrote
#
# Now for some reading. Here is every hundredth caption, so that we can't pick the nice ones:

# %% tags=["nbval-ignore-output", "hide-input"]
by_chrf = [CHRF().sentence_score(o, [r]).score for o, r in zip(outputs, references)]
head = ("chrF", "German", "the model", "the reference")


def lines_of(chosen):
    return [
        (f"{by_chrf[i]:.0f}", sources[i], outputs[i], references[i]) for i in chosen
    ]


table(head, lines_of(range(0, 1000, 100)))

# %% [markdown]
# Read them against the German, not against the reference. *Is riding a bike* is as good as *on a bicycle pedals*. But the *basket* he rides through is an archway, and the *special event* of the men in orange is a social one; both read well and are false. *Throws an a canal* has lost its branch and shows it. Most errors don't: fluency comes first and easily, and it hides them. Now the other end, the eight with the lowest chrF.

# %% tags=["nbval-ignore-output", "hide-input"]
worst = sorted(range(1000), key=by_chrf.__getitem__)[:8]
table(head, lines_of(worst))
assert np.mean([by_chrf[i] for i in worst]) < np.mean(by_chrf) / 1.5

# %% [markdown]
# A low score has two kinds of reasons. *Children fighting for the ball* is a good translation of its German, and *Two actors play a fight in front of a crowd* nearly one; the people who wrote the references chose other words, or saw more in the photo than the German says. That is a failure of the score. The others are failures of the model, and some kinds can be counted roughly, without reading (no row: none):

# %% tags=["hide-input", "nbval-ignore-output"]
NUMBERS = {*words("two three four five six seven eight nine ten several")}
COLORS = {*words("black white red blue green yellow brown orange pink purple")}
PEOPLE = {*words("man men woman women boy boys girl girls child children")}
known = {word for pair in multi30k("train") for word in words(pair.source)}


def repeats(line):
    return max(Counter(ngrams(line, 2)).values(), default=0)


def kinds(source, output, reference):
    said, wanted = words(output.lower()), words(reference.lower())
    for name, group in (("number", NUMBERS), ("color", COLORS), ("person", PEOPLE)):
        if group & {*wanted} and not group & {*wanted} & {*said}:
            yield f"lost or changed the {name}"
    if len(said) < 0.7 * len(wanted):
        yield "left out a good part"
    if repeats(said) > repeats(wanted) + 1:
        yield "says something over and over"
    if not {*words(source)} <= known:
        yield "the German has a word that no training caption has"


# %% tags=["nbval-ignore-output", "hide-input"]
found = {}
for i, line in enumerate(zip(sources, outputs, references)):
    for kind in kinds(*line):
        found.setdefault(kind, []).append(by_chrf[i])
rows = [
    (kind, len(scores), f"{np.mean(scores):.0f}")
    for kind, scores in sorted(found.items(), key=lambda f: -len(f[1]))
]
table(
    ("what happened", "captions of 1,000", "their mean chrF"),
    [*rows, ("all captions", 1000, f"{np.mean(by_chrf):.0f}")],
)
unseen = found["the German has a word that no training caption has"]
assert 230 < len(unseen) < 260 and 9 < np.mean(by_chrf) - np.mean(unseen) < 11.5

# %% [markdown]
# A word that no training caption has is the most telling row: a quarter of the captions have one, and score 52 chrF, the others 65. The tokenizer can spell it, so no `<unk>` appears. But subwords that it has hardly seen together mean little to the model, and it puts something that fits the rest of the picture. Such counts are crude (*a young woman* for *a girl* is counted as a change of person). They say where to look, not how bad it is.
#
# ## What it was not trained for
#
# A test set from the same source answers a narrow question: how well does it do more of the same? Here are sentences from elsewhere, with one caption as a control at the end.

# %% tags=["nbval-ignore-output"]
elsewhere = {
    "Wo ist der nächste Bahnhof?": "Where is the nearest train station?",
    "Ich habe gestern meinen Schlüssel verloren.": "I lost my key yesterday.",
    "Die Inflation ist im März auf zwei Prozent gefallen.": "Inflation fell to two percent in March.",
    "Das Buch liegt nicht auf dem Tisch.": "The book is not on the table.",
    "Wir kämen gern, wenn wir könnten.": "We would love to come if we could.",
    "Zwei Hunde spielen im Schnee.": "Two dogs are playing in the snow.",
}
strange = translate(model, tokenizer, list(elsewhere))
rows = list(zip(elsewhere, strange, elsewhere.values()))
table(("German", "the model", "it should say"), rows)
away = score(strange[:-1], list(elsewhere.values())[:-1])
print(f"chrF {away.chrf:.0f} on the first five, {honest.chrf:.0f} on the test captions")

# %% tags=["remove-cell"]
assert away.chrf < honest.chrf

# %% [markdown]
# Most of what comes out has the shape of a caption. There are no questions and no *I*, and a negation gives way to a book lying on a table. Captions hardly contain these things, so few examples taught the model what they do, and it doesn't say that it is lost. This isn't a flaw of the architecture, as the book's everyday model shows. It has the same parts and has read everyday sentences as well:

# %% tags=["nbval-ignore-output"]
everyday = translate(*load_pretrained(), list(elsewhere))
table(("German", "the everyday model"), list(zip(elsewhere, everyday)))

# %% tags=["remove-cell"]
assert score(everyday[:-1], list(elsewhere.values())[:-1]).chrf > away.chrf + 20

# %% [markdown]
# A test score is a statement about a model *and* about the sentences it was tested on.
#
# ## Questions that come up
#
# ### My BLEU is 0, or 100. What is wrong?
#
# At 0, look at the text first: ids instead of words, one string instead of a list, or a test set so small that no 4-gram matches. At 100, look at the shape of the references, and whether they were scored against themselves.
#
# ### Can BLEU be the loss?
#
# Not for gradient descent. It counts, so a small change of the weights changes it not at all or by a jump, and there is no gradient to follow. Reinforcement learning can take such a score as a reward, as {cite:t}`wu2016google` did at the end of training; the usual way is to train by cross-entropy and choose checkpoints by BLEU.
#
# ### May the test captions choose the beam or the checkpoint?
#
# No. Try twenty settings on the test set, report the best, and you have fitted the test set a little. Choose on the validation captions, then score the test captions once.
#
# ## What to remember
#
# - BLEU: clipped n-gram precisions for n = 1 to 4, their geometric mean, a penalty for short output; summed over the corpus first.
# - A score means little without its signature, its test set and the number of lines. Score plain text that the model wrote by itself.
# - A difference comes with a paired interval. If it includes zero, the test set can't tell the systems apart.
# - Half a point is six captions in a thousand made perfect. Another tokenizer can move the score by more.
# - Read the output, above all the worst of it. Scores compare letters; they know nothing of *not*.
#
# A score tells how well a model translates, and nothing about how. The model's attention weights can be looked at, but what do they prove?
#
# ## Exercises
#
# **1. By hand** (★, 5 min). The output is *the cat sat*, the reference *the cat sat down .* What is BLEU with 1-grams and 2-grams only? ($e^{-2/3} = 0.513$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both precisions are 1: every word and every pair is right. The penalty is e^(1 - 5/3) = 0.513.
pairs_only = BLEU(max_ngram_order=2, tokenize="none")
answer = pairs_only.corpus_score(["the cat sat"], [["the cat sat down ."]])
assert abs(answer.score - 51.3) < 0.1
print(f"{answer.score:.1f}")

# %% [markdown]
# **2. What breaks if** (★, 5 min) precisions are not clipped? Find an output of seven words that gets 100 for $p_1$ against the reference *two dogs play in the deep snow*, and says nothing.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Any word of the reference, seven times.
wanted = ["two", "dogs", "play", "in", "the", "deep", "snow"]
said = ["in"] * 7
print(
    "unclipped:",
    sum(word in wanted for word in said),
    " clipped:",
    matches(said, wanted),
)
assert matches(said, wanted) == 1

# %% [markdown]
# **3. What breaks if** (★★, 10 min) one output line is lost near the beginning, and a blank one is added at the end so that the counts agree? Predict the score, then try it.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# From the sixth on, each line is compared with its neighbor's reference. Half of what is left
# comes from the five before.
shifted = [*outputs[:5], *outputs[6:], ""]
lost = score(shifted, references).bleu
assert lost < honest.bleu / 3
print(f"{honest.bleu:.1f} falls to {lost:.1f}")

# %% [markdown]
# **4. How many sentences?** (★★, 10 min) Predict how much wider the 95% interval of our model's BLEU becomes when only every fourth caption is kept.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It goes with one over the root of the number of sentences: a quarter of them, about twice as wide.
spreads = [resampled(some, 1000, seed=2) for some in (counts, counts[::4])]
widths = [np.ptp(np.percentile(scores, [2.5, 97.5])) for scores in spreads]
assert 1.4 < widths[1] / widths[0] < 2.9
print(f"{widths[0]:.1f} and {widths[1]:.1f} points wide")

# %% [markdown]
# **5. Which comes first?** (★★, 10 min) Exchange output and reference of the dog on the first page. Compute the score by hand and say why the mistake can stay unnoticed for long.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The matches stay the same and are divided by the reference's counts, 8/13, 4/12, 3/11 and 2/10.
# There is no penalty, since now the longer one is judged. 32.5 instead of 32.2 looks right; only
# the ratio of the lengths, which sacreBLEU prints, is inverted.
dog = "A dog is running across the the meadow ."
brown = "A brown dog is running across the green meadow with a ball ."
print(f"{bleu_by_hand([dog], [brown]):.1f} and {bleu_by_hand([brown], [dog]):.1f}")

# %% [markdown]
# **6. Endings** (★★, 10 min). The reference is *Two dogs are running.* Which of *Two dog is running.* and *Two cars are burning.* gets the higher BLEU, and which the higher chrF?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both have three of five words. The first also has the pair "running.", so its BLEU is
# higher. For chrF, "dog" is most of "dogs", while "cars" is little of it.
true = "Two dogs are running."
for line in ("Two dog is running.", "Two cars are burning."):
    metrics = BLEU(effective_order=True), CHRF()
    scores = [metric.sentence_score(line, [true]).score for metric in metrics]
    print(f"{line:22} BLEU {scores[0]:.1f}  chrF {scores[1]:.1f}")

# %% [markdown]
# **7. The other score** (★★★, an evening, open). Score greedy search, a beam of 4 and a beam of 64 with COMET. Does it rank them as BLEU does? Read twenty captions on which the two disagree most.
#
# ## Sources
#
# BLEU is from {cite:t}`papineni2002bleu`; sacreBLEU, its signature, and the case against comparing scores of unknown origin are from {cite:t}`post2018call`. chrF was proposed by {cite:t}`popovic2015chrf`, bootstrap tests for translation by {cite:t}`koehn2004statistical`, COMET by {cite:t}`rei2020comet`. The captions are from {cite:t}`elliott2016multi30k`.
