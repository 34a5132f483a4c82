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

# %% [markdown] needs=["multi30k"]
# # Evaluation
#
# This chapter builds the score by which translations are compared, BLEU, finds out what it hides, and then reads what the model wrote (section 6.1 of the paper).
#
# The paper's main result is two numbers, 28.4 and 41.8 BLEU. To know what they say, we have to know how such a number comes about. It takes ten lines to compute it, and about as many small decisions can move it by a few points. Most of this chapter is about these decisions.
#
# Why is a score needed at all? Because reading a thousand translations after every change takes a day. Why not simply count those that are right? Let us try that on one sentence. A person who saw the German wrote the **reference**, and a model wrote the other line.

# %% tags=["export"]
import re
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

# %%
import html
import math
from collections import Counter

import altair as alt
import numpy as np
from IPython.display import display
from sacrebleu.significance import PairedTest

from annotated_transformer import load_pretrained
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.data import multi30k, words
from annotated_transformer.decoding import length_batches, translate
from annotated_transformer.transformer import evaluating
from book.figures import KEY, QUERY, RESIDUAL, VALUE, show

# %%
reference = "A brown dog is running across the green meadow with a ball ."
output = "A dog is running across the the meadow ."
print("the same sentence:", output == reference)

# %% [markdown]
# Not the same, so a zero. But most of it is there: the dog, the running, the meadow. Even two people translate few sentences alike, so equality would call nearly everything wrong. We need a measure that gives part of the credit.
#
# ## Counting words
#
# The first idea is to count the words of the output that also occur in the reference. The share of them is a **precision**: of what was said, how much is right?

# %%
said, wanted = output.split(), reference.split()
print(sum(word in wanted for word in said), "of", len(said))
print(sum(word in wanted for word in ["the", "the", "the", "the"]), "of", 4)

# %% [markdown]
# All nine words of the output are found, including the second *the*, which is plainly wrong. The second line shows where this leads: four times *the* is a perfect translation. The remedy is to let each word of the reference be used up. It has one *the*, so one is counted, and the rest is not. This is called **clipping**.


# %%
def matches(said, wanted):
    return (Counter(said) & Counter(wanted)).total()


print(matches(said, wanted), "of", len(said))
print(matches(["the"] * 4, wanted), "of", 4)

# %% [markdown]
# The operator `&` of two counters takes the smaller count of each word, which is just what clipping asks for:
#
# | | A | dog | is | running | across | the | meadow | . | sum |
# |---|---|---|---|---|---|---|---|---|---|
# | in the output | 1 | 1 | 1 | 1 | 1 | 2 | 1 | 1 | 9 |
# | in the reference | 1 | 1 | 1 | 1 | 1 | 1 | 1 | 1 | |
# | counted | 1 | 1 | 1 | 1 | 1 | 1 | 1 | 1 | 8 |
#
# Now it is 8 of 9, and 1 of 4. Note that *A* and *a* are two different words here; the reference has one of each.
#
# ## Counting sequences
#
# Words alone know nothing of their order. *Dog bites man* and *man bites dog* would get the same score. So sequences count as well: an **n-gram** is $n$ words in a row. A sentence of nine words has eight 2-grams, seven 3-grams and six 4-grams. They are clipped like words.


# %%
def ngrams(sentence, n):
    return [tuple(sentence[i : i + n]) for i in range(len(sentence) - n + 1)]


found = [matches(ngrams(said, n), ngrams(wanted, n)) for n in (1, 2, 3, 4)]
total = [len(ngrams(said, n)) for n in (1, 2, 3, 4)]
print([f"{f} of {t}" for f, t in zip(found, total)])

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ngrams", "caption": "Which sequences are in the reference? Each bar covers the words of one n-gram of the output. Filled ones occur in the reference, outlined ones do not. One wrong word breaks one 1-gram, but up to four 4-grams. The reference is *A brown dog is running across the green meadow with a ball.*"}}


def bars():
    for n in (1, 2, 3, 4):
        left = Counter(ngrams(wanted, n))
        for start, gram in enumerate(ngrams(said, n)):
            hit = left[gram] > 0
            left[gram] -= 1
            y = sum(range(1, n)) + 1.2 * n + start % n
            yield {"x": start + 0.06, "x2": start + n - 0.06, "y": y, "y2": y + 0.72, "hit": hit}


rows = list(bars())
assert sum(row["hit"] for row in rows) == sum(found)
heads = [{"x": i + 0.5, "y": 0.6, "text": word} for i, word in enumerate(said)]
sides = [
    {"x": 9.3, "y": sum(range(1, n)) + 1.2 * n + n / 2 - 0.1, "text": f"{n}-grams: {f} of {t}"}
    for n, f, t in zip((1, 2, 3, 4), found, total)
]
hidden = {"axis": None, "title": None}
x = alt.X("x:Q", scale=alt.Scale(domain=[0, 11.5]), **hidden)
y = alt.Y("y:Q", scale=alt.Scale(domain=[15.2, 0.2]), **hidden)
box = {"stroke": VALUE, "strokeWidth": 1.2, "cornerRadius": 2}
base = alt.Chart(alt.Data(values=rows)).encode(x, y, x2="x2:Q", y2="y2:Q")
chart = alt.layer(
    base.transform_filter("datum.hit").mark_rect(fill=VALUE, **box),
    base.transform_filter("!datum.hit").mark_rect(fillOpacity=0, strokeDash=[3, 2], **box),
    alt.Chart(alt.Data(values=heads)).mark_text(fontSize=13).encode(x, y, text="text:N"),
    alt.Chart(alt.Data(values=sides)).mark_text(align="left").encode(x, y, text="text:N"),
)
show(
    chart.properties(width=640, height=300),
    alt="Of the output's n-grams, 8 of 9 single words are in the reference, 4 of 8 pairs, 3 of 7 triples and 2 of 6 sequences of four.",
)

# %% [markdown]
# Why "up to"? A wrong word spoils every run that crosses it, and at the edge of a sentence fewer runs do. Errors that stand side by side share the runs that they spoil. So four errors in one place cost less than four that are spread over the sentence.
#
# ## One number from four
#
# Now there are four **clipped precisions**, $p_1 = 8/9$, $p_2 = 4/8$, $p_3 = 3/7$ and $p_4 = 2/6$, and one number is wanted. The plain mean, $0.54$, would be ruled by $p_1$, which is always the largest. If $p_1$ is halved, the plain mean falls by 21 %. If $p_4$ is halved, it falls by 8 %. Yet $p_4$ is the one that tells fluent sentences from shuffled words.
#
# A **geometric mean** multiplies the numbers and takes the fourth root. Halving any of the four divides it by $2^{1/4} = 1.19$, a loss of 16 %. Here:
#
# $$
# \frac{8}{9} \cdot \frac{4}{8} \cdot \frac{3}{7} \cdot \frac{2}{6} = 0.0635, \qquad 0.0635^{1/4} = 0.502
# $$

# %%
precision = math.prod(f / t for f, t in zip(found, total)) ** (1 / 4)
print(f"{precision:.3f}")

# %% [markdown]
# ## Saying too little
#
# Precision asks only about what was said. So the way to a high score is to say little: *A dog* and nothing else. No word of it is wrong.
#
# One could ask for recall as well: of what should be said, how much is there? BLEU has a simpler way. The **brevity penalty** compares the length $c$ of the output with the length $r$ of the reference, and nothing else. Put together:
#
# $$
# \text{BLEU} = 100 \cdot \min\!\left(1, e^{1 - r/c}\right) \cdot \left(p_1\, p_2\, p_3\, p_4\right)^{1/4}
# $$ (eq-bleu)
#
# Ours has $c = 9$ and $r = 13$ words, so the penalty is $e^{1 - 13/9} = e^{-0.44} = 0.64$. A third of the score is gone for what was left out: $100 \cdot 0.641 \cdot 0.502 = 32.2$.
#
# The exponential makes the start gentle and the rest steep:
#
# | $c / r$ | 1.1 | 1 | 0.95 | 0.9 | 0.8 | 0.5 |
# |---|---|---|---|---|---|---|
# | penalty | 1 | 1 | 0.95 | 0.89 | 0.78 | 0.37 |
#
# There is no penalty on the other side, for a good reason: words too many already lower every precision.
#
# ### Why not recall?
#
# Recall would be the natural partner of precision. But BLEU was made for several references to a sentence. A good translation agrees with one of them at each place, not with all, and nobody can say which words of which reference "should be there". Lengths can always be compared. With several references, $r$ is the length of the one that is closest.

# %%
penalty = min(1, math.exp(1 - len(wanted) / len(said)))
by_hand = 100 * penalty * precision
library = BLEU(tokenize="none").corpus_score([output], [[reference]])
assert abs(by_hand - library.score) < 1e-6
print(f"{by_hand:.2f}")

# %% [markdown]
# The tool that everyone uses, sacreBLEU, computes the same 32.19. That is BLEU: four clipped precisions, their geometric mean, and a penalty for short output. It goes from 0 to 100, where 100 is the reference itself.
#
# ### Which of the two comes first?
#
# The output comes first, and it matters. Exchange the two, and the matches stay the same, but they are divided by the reference's counts: $8/13$, $4/12$, $3/11$ and $2/10$. Their geometric mean is 0.325. There is no penalty, for now the longer one is judged. So the result is 32.5 in place of 32.2. The number looks right, and that is why the mistake lives long. It shows in the details that sacreBLEU prints: the ratio of the lengths turns over.
#
# ## A corpus is not a mean of sentences
#
# A formula that multiplies has a weak point. When one factor is zero, everything is. A sentence without a single matching 4-gram scores 0, however good its words are, and short sentences often have none.
#
# BLEU was made for a whole test set. It first adds up the matches of all sentences, then all the totals, and divides at the very end. To see that this differs from a mean of sentence scores, take two captions: one that is long and good, and one that is short and poor.

# %%
outputs = ["Two men in red shirts play football on a green field .", "A big tree ."]
references = ["Two men in red shirts play football on a large field .", "A house stands there ."]
corpus = BLEU(tokenize="none").corpus_score(outputs, [references]).score
plain = BLEU(tokenize="none", smooth_method="none")
single = [plain.corpus_score([o], [[r]]).score for o, r in zip(outputs, references)]
print(
    f"corpus {corpus:.1f}, sentences {single[0]:.1f}, {single[1]:.1f}, mean {sum(single) / 2:.1f}"
)

# %% [markdown]
# By hand, with the counts added up first:
#
# | | $p_1$ | $p_2$ | $p_3$ | $p_4$ | $c$ | $r$ |
# |---|---|---|---|---|---|---|
# | the long one | 11/12 | 9/11 | 7/10 | 6/9 | 12 | 12 |
# | the short one | 2/4 | 0/3 | 0/2 | 0/1 | 4 | 5 |
# | both | 13/16 | 9/14 | 7/12 | 6/10 | 16 | 17 |
#
# The geometric mean of the last row is 0.654 and its penalty $e^{1 - 17/16} = 0.939$, which makes 61.4.
#
# The mean counts both sentences alike. The corpus counts each *n-gram* alike, so the long sentence weighs more, and the zero disappears in the sum. The penalty, too, is one for all: a short output here is made good by a long one there. When you read "BLEU", the corpus number is meant. It does not depend on the order of the lines, only on which output stands beside which reference.
#
# ### What is smoothing?
#
# For single sentences, tools replace a zero by something small, which is called **smoothing**. sacreBLEU's default, `exp`, takes half a match for the first zero, a quarter for the second, an eighth for the third. Our short caption then has $2/4$, $0.5/3$, $0.25/2$ and $0.125/1$, and with its penalty of 0.78 it scores 14.8. There are other ways:

# %%
for method in ("exp", "floor", "add-k", "none"):
    metric = BLEU(tokenize="none", smooth_method=method)
    print(f"{method:6} {metric.corpus_score(outputs[1:], [references[1:]]).score:4.1f}")

# %% [markdown]
# One sentence, four scores. So BLEU of a single sentence is good for sorting and for little else. On a corpus of some size no count is zero, and smoothing does nothing.
#
# ## Counting characters
#
# BLEU is strict about words. *Dogs* in place of *dog* is as wrong as *helicopter*. A second score, **chrF**, counts sequences of one to six characters, with the spaces left out. It asks both questions: precision $P$, how much of the output is right, and recall $R$, how much of the reference is there. Each is the mean over the six lengths. Then it joins them in a way that gives recall twice the weight, $\beta = 2$:
#
# $$
# \text{chrF} = 100 \cdot \frac{(1 + \beta^2)\, P\, R}{\beta^2 P + R}
# $$ (eq-chrf)
#
# By hand, with lengths up to three only: the output is *dog*, the reference *dogs*.
#
# | | 1 | 2 | 3 | mean |
# |---|---|---|---|---|
# | the output's | d, o, g | do, og | dog | |
# | precision | 3/3 | 2/2 | 1/1 | $P = 1$ |
# | recall | 3/4 | 2/3 | 1/2 | $R = 0.639$ |
#
# So chrF is $100 \cdot 5 \cdot 0.639 / (4 + 0.639) = 68.9$, where BLEU finds nothing at all. The other way round, *dogs* for *dog*, has $P = 0.639$ and $R = 1$ and gets $100 \cdot 5 \cdot 0.639 / (4 \cdot 0.639 + 1) = 89.8$. This is the effect of $\beta$: what is missing costs more than what is too much.


# %%
def chrf_by_hand(output, reference, beta=2):
    said, wanted = output.replace(" ", ""), reference.replace(" ", "")
    hits = [matches(ngrams(said, n), ngrams(wanted, n)) for n in range(1, 7)]
    P = sum(h / len(ngrams(said, n)) for n, h in enumerate(hits, 1)) / 6
    R = sum(h / len(ngrams(wanted, n)) for n, h in enumerate(hits, 1)) / 6
    return 100 * (1 + beta**2) * P * R / (beta**2 * P + R)


by_hand, library = chrf_by_hand(output, reference), CHRF().sentence_score(output, [reference])
assert abs(by_hand - library.score) < 1e-6
assert round(CHRF(char_order=3).sentence_score("dog", ["dogs"]).score, 1) == 68.9
print(f"{by_hand:.2f}")

# %% [markdown]
# Again the library agrees. chrF needs no decision about what a word is. It is kind to languages with many endings, where BLEU counts a right word with a wrong ending as lost. And it has fewer zeros, so it serves for single sentences too. We use it below to find the worst ones. Its numbers are higher than those of BLEU, and the two must not be compared.
#
# ## What no counting can see
#
# Both scores compare letters. Neither knows which word matters. We change one sentence in three ways, two that ruin the meaning and one that keeps it.

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
# The sound translation gets a fraction of what the two false ones get. One word in place of another breaks one of 15 words, counting the period, and at most four of the 4-grams. Saying the same in another order breaks nearly all of them.
#
# Over many sentences this evens out to some degree: systems that are better by human judgment tend to have higher BLEU. For one sentence it proves nothing, and a test set with one reference for each sentence leaves little room for other words. Captions have one here.
#
# ## The tool and its signature
#
# In the toy sentences a word was what stands between spaces. Real text has *window.* with a period, and somebody has to cut it off. How, is the first of the decisions that move the score. sacreBLEU decides it once, for text as people write it. Its standard tokenizer has the name `13a`, after the version of an older script.

# %%
line = "The dog's 3.5-kg ball isn't here, \"Max\" says."
for name in ("none", "13a", "char"):
    print(f"{name:5}", BLEU(tokenize=name).tokenizer(line))

# %% [markdown]
# `13a` cuts punctuation off, but neither an apostrophe nor a period between digits. A hyphen is cut only behind a digit. One may find other rules better. What counts is that everybody has the same.
#
# What was done is written into a line that the tool calls the **signature**. Our function returns both scores with theirs.


# %% tags=["export"]
class Scores(NamedTuple):
    """Scores of a test set, 0 to 100, each with the signature that says how it was computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


# %% [markdown]
# A score without its signature is half a result, so the two travel together. A named tuple is enough for that: it can be unpacked, compared and printed.
#
# Before anything is scored, the two sides are counted. With a line missing in the middle, every later translation would be held against the wrong reference, and a score would come out all the same; exercise 3 shows how low. A single string in place of a list is refused as well: Python would take it for a list of its letters.


# %% tags=["export"]
def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise ValueError unless there is one translation for each reference, and at least one."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("a test set is a list of sentences, not one string")
    if len(hypotheses) != len(references):
        what = f"{len(hypotheses):,} translations for {len(references):,} references"
        raise ValueError(f"{what}: line i must belong to line i, so look for a missing line")
    if not len(references):
        raise ValueError("the test set is empty: there is nothing to score")


# %% [markdown]
# What is left is to call the library, with its defaults.


# %% tags=["export"]
def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Score translations by corpus BLEU and chrF2, cased and as sacreBLEU tokenizes (section 6.1).

    Both are plain text as people write it: not tokenized, not in subwords, not lower-cased.
    Raises ValueError if they differ in number or there are none.
    """
    check_lines(hypotheses, references)
    bleu, chrf = metrics = BLEU(), CHRF()
    scores = [metric.corpus_score(hypotheses, [references]).score for metric in metrics]
    return Scores(*scores, str(bleu.get_signature()), str(chrf.get_signature()))


# %% [markdown]
# The scores are of the plain text, and of all lines at once. Should a text look as if it were tokenized already, with a space before each period, the library logs a warning.
#
# ### Why are the references in a list of their own?
#
# sacreBLEU allows several references for each sentence. It wants them by *set*: the first reference of all sentences, then the second of all sentences. With one reference that is a list with one list in it. The shape that comes to mind first, a short list for each sentence, is a trap:

# %%
two, right = ["a b c d e", "all of this is wrong"], ["a b c d e", "nothing like it at all"]
print("sets of references:      ", round(BLEU().corpus_score(two, [right]).score, 1))
print("a list for each sentence:", round(BLEU().corpus_score(two, [[r] for r in right]).score, 1))

# %% [markdown]
# A perfect score, and no error. The library takes each short list for a whole set, and each set ends after its first line. So it scores the first sentence alone. A score that is too good should be looked at with the same care as one that is too bad. `score` takes plain lists and builds the shape itself.
#
# ## The score of our model
#
# Now the trained model translates the 1,000 captions of Multi30k's test set, with a beam of 4. The test captions were used for nothing before: not for training, not to choose a setting.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained()
pairs = multi30k("test_2016_flickr")
sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
outputs = translate(model, tokenizer, sources)
honest = score(outputs, references)
print(f"BLEU {honest.bleu:.1f}  {honest.bleu_signature}")
print(f"chrF {honest.chrf:.1f}  {honest.chrf_signature}")
assert 15 < honest.bleu < 60 and honest.chrf > honest.bleu

# %% [markdown]
# The signature of BLEU has six fields. Each names a decision that moves the score.
#
# | field | says | other choices, and what they do |
# |---|---|---|
# | `nrefs:1` | references for each sentence | more of them raise the score, since more words can match |
# | `case:mixed` | upper and lower case as they are | `lc` scores lower-cased text and forgives every wrong capital |
# | `eff:no` | all four n-gram lengths always count | `yes` leaves out lengths for which a sentence is too short; for scores of single sentences |
# | `tok:13a` | how lines are cut into words | `none`, `char`, or one made for a language, such as `zh` for Chinese |
# | `smooth:exp` | what replaces a zero | matters for single sentences and tiny test sets |
# | `version:...` | of the library | rules have been mended over the years |
#
# That of chrF has three more: `nc:6`, characters up to six; `nw:0`, no words beside them; `space:no`, spaces left out.
#
# Two BLEU scores may be compared if their signatures are equal and the test set is the same. The signature does not say which test set it was, how many lines, or what was done to the text before. These must be reported beside it, and they are often missing.
#
# ### Is that a good score?
#
# As a rule of thumb for news, below 15 is hard to use, 25 to 30 conveys the message, and above 40 is good. It does not carry over. Captions are short, use few words, and follow a pattern, so 30 on captions is a much weaker system than 30 on news. Nor does it carry over between languages: a language that writes its compounds as one word has fewer and harder words to match. The paper's 28.4 and our number do not belong in one table.
#
# ## Why never to compare tokenized BLEU
#
# Before sacreBLEU, the usual script took text that was *already* cut into words, on both sides, and split it at spaces. Whoever ran it chose how to cut. The score then belongs to the translation and to the tokenizer, and nothing in it says which.
#
# Take one sentence with one difference, *isn't* for *is not*, and cut it in three ways:

# %%
output, reference = "A man's dark-blue T-shirt isn't dry.", "A man's dark-blue T-shirt is not dry."
split = lambda line: " ".join(re.findall(r"\w+|[^\w\s]", line))
for name, cut, tokenize in (("spaces", str, "none"), ("13a", str, "13a"), ("split", split, "none")):
    metric = BLEU(tokenize=tokenize)
    found = metric.corpus_score([cut(output)], [[cut(reference)]])
    print(f"{name:6} {found.score:.1f}", found.counts[0], "of", found.totals[0], end=" words: ")
    print(metric.tokenizer(cut(output)))


# %% [markdown]
# The finer the cut, the more words, and the new words are easy. Who translates *dark-blue* gets one word right in the first row, and three in the last, with the runs across them. The translation is the same.
#
# The effect on a whole test set is smaller and still larger than most improvements. For settings that were in common use, {cite:t}`post2018call` measured differences of up to 1.8 points. The paper's scores are of this kind: tokenized, and with compounds split. So a model of ours with the same quality would get fewer points from `13a`, and a comparison has to say so.
#
# Whoever wants to stand beside the paper's table can count in the paper's way, nearly. Its authors cut the text with another program than `13a`, made all quotation marks of the references plain, and cut each compound at its hyphens, where the hyphen became a word of its own, `##AT##-##AT##`. We take `13a` for the first step and do the other two. The result has no signature, and there is none to give it: it is to be printed beside the real score and never in its place.


# %% tags=["export"]
def split_compounds(text: str) -> str:
    """Cut text nearly as the paper's authors did: 13a, plain quotes, compounds cut at hyphens."""
    plain = re.sub("[„“”«»]", '"', re.sub("[‚‘’]", "'", text))
    return re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", Tokenizer13a()(plain))


def compound_split_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Score nearly as the paper did (section 6.1): higher than `score`, comparable with nothing."""
    check_lines(hypotheses, references)
    cut, wanted = ([split_compounds(line) for line in side] for side in (hypotheses, references))
    return float(BLEU(tokenize="none", force=True).corpus_score(cut, [wanted]).score)


# %%
for line in (output, "Ein „dunkelblaues“ T-Shirt."):
    print(split_compounds(line))
print(
    f"{score([output], [reference]).bleu:.1f} is now {compound_split_bleu([output], [reference]):.1f}"
)

# %% [markdown]
# It gets worse when the text was changed before. If rare words were replaced by `<unk>` in the *references* too, the model gets points for saying that it does not know. So score what a reader would see, against what a person wrote.
#
# ## How BLEU lies
#
# The outputs above are fixed from here on. We now score the very same work in the ways that are found in published code, tables and tutorials, and watch the number move.
#
# The worst of them needs outputs of its own. Under teacher forcing, the decoder gets the right words so far, whatever it would have written, and says one more. That is how it is trained, and it is easy to collect these words and to score them. But then the model has been told the first half of each sentence while it says the second.


# %%
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
# The forced line need not make sense as a sentence: each of its words continues the reference, not the line. That helps and hurts. Every word has a flawless beginning to build on, and the length is right because the reference says when to stop. But a word that fits well gets its continuation cut off: the next one must go on with the reference's choice, not with the model's. Whether the score ends up above or below the honest one depends on the model. In either case it is not a score for translating, since nothing was translated.
#
# The other ways keep the outputs and change what is counted. One function for each way of spoiling a text, and one for each way of counting:


# %%
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


# %% [markdown]
# `same_place` is the oddest of them: it compares the first word with the first, the second with the second, and stops where the shorter sentence ends. It is what comes out when the accuracy of a classifier is applied to sentences. Leave the last three words of seven away, and it finds no fault.

# %%
whole = "Two dogs run through deep snow ."
part = "Two dogs run through"
print(same_place([part], [whole]), "by place,", round(bleu([part], [whole]), 1), "BLEU")
assert same_place(["So two dogs run through deep snow ."], [whole]) == 0

# %% [markdown]
# BLEU's four precisions are all 1 here as well; it is the penalty, $e^{1 - 7/4} = 0.47$, that notices. And with one word more at the front, all others are in the wrong place, and `same_place` falls to 0. Now everything side by side.

# %% tags=["nbval-ignore-output"]
few = [i for i, line in enumerate(references) if len(words(line)) <= 12]
ways = {
    "honest: sacreBLEU": (honest.bleu, "as people write, cased, every line"),
    "teacher-forced": (bleu(forced, references), "the model saw the reference"),
    "in characters": (bleu(outputs, references, tokenize="char"), "4-grams of letters match easily"),
    "in subwords": (bleu(in_subwords(outputs), in_subwords(references), tokenize="none"), "depends on the vocabulary"),
    "with <s> and </s>": (bleu(marked(outputs), marked(references), tokenize="none"), "two words for nothing"),
    "lower-cased": (bleu(outputs, references, lowercase=True), "forgives capitals"),
    "split up, lower-cased": (bleu(split_up(outputs), split_up(references), tokenize="none"), "more and easier words"),
    "split at spaces": (bleu(outputs, references, tokenize="none"), "'window.' is not 'window'"),
    "mean of sentences": (sentence_mean(outputs, references), "not a corpus score"),
    "short captions only": (bleu([outputs[i] for i in few], [references[i] for i in few]), "a part of the lines"),
    "word by place": (same_place(outputs, references), "no BLEU at all"),
}  # fmt: skip
value = {name: number for name, (number, _) in ways.items()}
assert value["in characters"] > honest.bleu + 5
assert value["with <s> and </s>"] > honest.bleu + 1 and value["lower-cased"] >= honest.bleu
spread = max(value.values()) - min(value.values())
print(f"{len(ways)} numbers for one model, {spread:.0f} points apart")

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-bleu-lies", "caption": "How much can a score be moved without touching the model? The same model on the same captions, scored in eleven ways. The vertical line is the honest score. Filled orange bars are higher than honest, outlined ones lower."}}
records = [
    {"way": name, "bleu": round(number, 1), "over": number > honest.bleu}
    for name, number in value.items()
]
order = sorted(value, key=value.get, reverse=True)
base = alt.Chart(alt.Data(values=records)).encode(
    y=alt.Y(
        "way:N", sort=order, title=None, axis=alt.Axis(labelLimit=220, ticks=False, domain=False)
    ),
    x=alt.X("bleu:Q", title="score", scale=alt.Scale(domain=[0, 100])),
)
is_honest = "datum.way == 'honest: sacreBLEU'"
line = alt.Chart(alt.Data(values=[{"bleu": round(honest.bleu, 1)}])).mark_rule(
    color=VALUE, strokeWidth=2
)
chart = alt.layer(
    base.transform_filter(is_honest).mark_bar(fill=VALUE, height=15),
    base.transform_filter(f"datum.over && !({is_honest})").mark_bar(fill=KEY, height=15),
    base.transform_filter(f"!datum.over && !({is_honest})").mark_bar(
        fillOpacity=0, stroke=RESIDUAL, strokeWidth=1.4, height=15
    ),
    line.encode(x="bleu:Q"),
    base.transform_calculate(at=f"max(datum.bleu, {honest.bleu:.1f})")
    .mark_text(align="left", dx=7)
    .encode(x="at:Q", text=alt.Text("bleu:Q", format=".1f")),
)
highest = order[0]
show(
    chart.properties(width=430, height=300),
    alt=f"Bars of eleven scores of one model from {min(value.values()):.0f} to {max(value.values()):.0f}; the honest one is {honest.bleu:.0f}, the highest is {highest}.",
)


# %% tags=["nbval-ignore-output", "hide-input"]
def table(head, rows):
    def line(tag, row):
        look = 'style="padding:0.2rem 0.7rem 0.2rem 0;text-align:left;vertical-align:top"'
        cells = (f"<{tag} {look}>{html.escape(str(cell))}</{tag}>" for cell in row)
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    grid = f"<table style=min-width:36rem><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
    page = f'<div style="overflow-x:auto">{grid}</div>'
    plain = "\n".join(" | ".join(map(str, row)) for row in [head, *rows])
    display({"text/html": page, "text/plain": plain}, raw=True)


table(
    ("scored", "score", "against honest", "what is wrong"),
    [(name, f"{n:.1f}", f"{n - honest.bleu:+.1f}", why) for name, (n, why) in ways.items()],
)

# %% [markdown]
# The gain from characters is the emptiest. Four letters in a row are matched by any English text: *ing* with the space after it, *the* with both. Counting `<s>` and `</s>` gives away two words that cannot be wrong, and the 2-grams at the edges with them. Leaving out the long captions does not change a single translation. It only changes which ones are looked at.
#
# The teacher-forced score and the mean of sentences may come out on either side of the honest one. That makes them worse, not better: one cannot even say in which direction to correct them.
#
# None of these needs bad faith. A pipeline lower-cases its text early, a metric is handed ids in place of words, a loader drops the last incomplete batch, and a number comes out that looks like any other. Some of the gains are larger than those for which papers are written.
#
# Three habits protect. Turn ids back into plain text first, and score the text. Count the lines. Print the signature beside the score. And be wary of a score that comes out of a training loop: often it is teacher-forced.
#
# ## Is the difference real?
#
# A beam of 4 against greedy search: which is better, and by how much? Two scores on the same captions give a difference, but with other captions it would be another one. If chance alone can produce a difference of that size, it says nothing.
#
# ### A test set is a sample
#
# The 1,000 captions are a draw from all captions that could have been written. With a thousand other test sets, we could score both systems on each and look at how the difference swings. That would be the answer, and nobody has a thousand test sets.
#
# The **bootstrap** makes do with the one we have. It takes the 1,000 captions as a picture of all captions and draws from *them*: 1,000 times one caption, each time from the full set. So some come twice or three times, others not at all. A caption is passed over with probability $(1 - 1/1000)^{1000} = 0.37$. Without repetition each draw would be the old test set in another order, and nothing would swing.
#
# Try it on ten sentences. These are made-up gains of one system over another, sentence by sentence.

# %% tags=["nbval-ignore-output"]
gains = np.array([2, 5, -1, 0, 3, -4, 6, 1, -2, 4])
draws = np.random.default_rng(0).integers(0, 10, (10_000, 10))
means = gains[draws].mean(axis=1)
low, high = np.percentile(means, [2.5, 97.5])
print("one draw:", draws[0], "mean", means[0])
print(f"mean {gains.mean()}, of 95 % of the draws between {low:.1f} and {high:.1f}")
assert abs(low + 0.5) < 0.3 and abs(high - 3.3) < 0.3

# %% [markdown]
# The mean gain is 1.4. Of all draws, 95 % have a mean between about $-0.5$ and $3.3$. Such a range is an **interval**, and this one contains 0. So with ten sentences we cannot say that the first system is better, though it won six of them and lost three.
#
# For a mean there is a formula. The standard deviation of the gains is 3.0, and that of their mean $3.0 / \sqrt{10} = 0.96$. Twice that to either side gives nearly the same interval. BLEU is no mean, and no formula for it is at hand. The bootstrap does not care: it needs a score and a test set, and does not look inside.
#
# ### Why paired?
#
# Two systems are scored on the *same* drawn captions, and each draw gives one difference. Hard captions are hard for both systems, so a draw with many of them lowers both scores, and the difference stays. If each system had draws of its own, the luck of both would be added up. We shall measure how much that matters.
#
# ### Ten counts for a caption
#
# Drawing captions does not ask for translating them again, nor for counting n-grams again. BLEU adds up ten numbers: the matches for $n = 1$ to 4, the totals, and the lengths of output and reference. So ten counts a caption are enough, and a thousand new test sets are a thousand sums.


# %%
def sentence_counts(hypotheses, references):
    metric = BLEU(effective_order=True)
    found = [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references)]
    return np.array([[*f.counts, *f.totals, f.sys_len, f.ref_len] for f in found])


# %% [markdown]
# For the sentence that we scored by hand, the ten numbers are known: 8, 4, 3, 2 matches of 9, 8, 7, 6 n-grams, and 9 words against 13.

# %%
dog = "A dog is running across the the meadow ."
print(sentence_counts([dog], ["A brown dog is running across the green meadow with a ball ."])[0])

# %% [markdown]
# The sum over some sentences, whichever they are, goes through {eq}`eq-bleu`. We leave that to the library, which also takes care of a zero among the precisions.


# %%
def bleu_of(counts):
    numbers = counts.tolist()
    return BLEU.compute_bleu(numbers[:4], numbers[4:8], numbers[8], numbers[9], "exp").score


# %% tags=["nbval-ignore-output"]
counts = sentence_counts(outputs, references)
assert abs(bleu_of(counts.sum(axis=0)) - honest.bleu) < 1e-6
print("counts", counts.shape, f" BLEU {bleu_of(counts.sum(axis=0)):.1f}")

# %% [markdown]
# The sum of the rows gives the same BLEU as before. For a resample, each row counts as often as its caption was drawn. With three captions and the draw 0, 2, 0 these numbers are 2, 0 and 1, and the sum is twice row 0 plus row 2. Such numbers follow a multinomial distribution, so we can draw them without drawing captions. Put as rows of a matrix $(1000, N)$ and multiplied by the counts $(N, 10)$, they give the sums of all resamples at once, $(1000, 10)$.


# %%
def resampled(counts, samples, seed):
    size = len(counts)
    draws = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), samples)
    return np.array([bleu_of(row) for row in draws @ counts])


# %% [markdown]
# What comes out is an interval and a **p-value**: how often would a difference at least as large turn up if the two systems were equally good? To imitate equally good systems, the resampled differences are moved so that their mean is zero. Their spread stays, and the spread is what chance can do.
#
# Suppose a difference of 0.6 with resampled differences of a standard deviation of 0.3. Moved to zero, they exceed 0.6 on one side or fall below $-0.6$ on the other in about 5 of 100 cases. So $p$ is about 0.05. It is not the probability that the systems are equal. And it says nothing about how large the difference is: on a large test set a difference too small to matter has a tiny $p$ as well.


# %%
class Comparison(NamedTuple):
    difference: float
    low: float
    high: float
    p_value: float


# %% [markdown]
# The same seed draws the same captions for both systems, and so the two lists of scores can be subtracted one by one. `low` and `high` cut off 2.5 % of the differences on each side. The share behind the p-value is counted with one added above and below: if none of 1,000 is as large, it is $1/1001$ and not 0. A thousand draws cannot show that something never happens.


# %%
def paired_bootstrap(first, second, references, samples=1000, seed=12345):
    one, other = (sentence_counts(lines, references) for lines in (first, second))
    ahead = resampled(one, samples, seed) - resampled(other, samples, seed)
    low, high = np.percentile(ahead, [2.5, 97.5]).tolist()
    difference = bleu_of(one.sum(axis=0)) - bleu_of(other.sum(axis=0))
    as_large = np.sum(np.abs(ahead - ahead.mean()) >= abs(difference))
    return Comparison(difference, low, high, (1 + as_large) / (1 + samples))


# %% tags=["nbval-ignore-output"]
greedy = translate(model, tokenizer, sources, beam=1)
beam_or_greedy = paired_bootstrap(outputs, greedy, references)
small = [line.lower() for line in outputs]
capitals = paired_bootstrap(outputs, small, references)
assert paired_bootstrap(greedy, greedy, references)[::3] == (0, 1)  # against itself
for name, found in (("beam 4 - greedy", beam_or_greedy), ("with - without capitals", capitals)):
    print(f"{name}: {found.difference:+.2f} BLEU, 95 % from {found.low:+.2f}", end=" ")
    print(f"to {found.high:+.2f}, p = {found.p_value:.3f}")
assert capitals.p_value < 0.01 and capitals.low > 0
assert beam_or_greedy.low < beam_or_greedy.difference < beam_or_greedy.high

# %% [markdown]
# The second line is a test of the test. Our own output without capital letters is certainly worse under a cased score, and no resample turns that around. About the first line, read the interval rather than the score. If it includes zero, the captions at hand cannot tell the two apart, and nobody should say that one is better. Nor that they are equal: the interval says how large a difference may still be hidden in it.
#
# What does the pairing do? Give the second system draws of its own, and the interval widens.

# %% tags=["nbval-ignore-output"]
one, other = counts, sentence_counts(greedy, references)
swings = [np.std(resampled(one, 1000, 1) - resampled(other, 1000, seed)) for seed in (1, 2)]
print(f"standard deviation of the difference: paired {swings[0]:.2f}, unpaired {swings[1]:.2f}")
assert swings[0] < swings[1]

# %% [markdown]
# The two systems share the model and most of their words, so pairing takes away a large part of the swing. If it leaves a third, an unpaired test needs nine times as many captions to see the same difference.
#
# ### Is the fast way right?
#
# A slow twin builds the drawn test sets as lists of sentences and lets sacreBLEU score them.

# %% tags=["nbval-ignore-output"]
draws = np.random.default_rng(7).multinomial(1000, np.full(1000, 1 / 1000), 3)
drawn = [[np.repeat(side, row).tolist() for side in (outputs, references)] for row in draws]
slow = [bleu(*sides) for sides in drawn]
fast = resampled(counts, samples=3, seed=7)
assert np.allclose(slow, fast)
print([f"{number:.2f}" for number in fast])

# %% [markdown]
# For your own comparisons, take sacreBLEU's: its `PairedTest` has a paired bootstrap, with the seed in an environment variable. It follows an old script that takes the size of each resampled difference, without its sign, before it moves the mean to zero. Small differences then look surer than they are. So compare p-values only within one tool, and look at the interval first.

# %% tags=["nbval-ignore-output"]
systems = [("greedy", greedy), ("beam 4", outputs)]
_, found = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", 1000)()
theirs = found["BLEU"][1].p_value
ahead = resampled(one, 1000, 12345) - resampled(other, 1000, 12345)
without_sign = abs(ahead) - abs(ahead).mean()
their_way = np.mean(without_sign > abs(beam_or_greedy.difference))
assert abs(theirs - their_way) < 0.06
print(f"ours {beam_or_greedy.p_value:.2f}, sacreBLEU's {theirs:.2f}, in its way {their_way:.2f}")

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-bootstrap", "caption": "Could it be chance? How far a beam of 4 is ahead of greedy search on 1,000 resampled test sets, as a histogram. The thick line at the bottom covers 95 % of them; the dashed one stands at no difference."}}
edges = np.linspace(ahead.min(), ahead.max(), 25)
heights, _ = np.histogram(ahead, edges)
cells = [
    {"x": round(a, 3), "x2": round(b, 3), "count": int(n)}
    for a, b, n in zip(edges, edges[1:], heights)
]
x = alt.X("x:Q", title="BLEU of beam 4 minus BLEU of greedy", scale=alt.Scale(zero=True, nice=True))
interval = {"x": round(beam_or_greedy.low, 3), "x2": round(beam_or_greedy.high, 3), "count": 0}
chart = alt.layer(
    alt.Chart(alt.Data(values=cells))
    .mark_rect(fill=QUERY)
    .encode(x, alt.Y("count:Q", title="resamples"), x2="x2:Q", y2=alt.datum(0)),
    alt.Chart(alt.Data(values=[interval]))
    .mark_rule(strokeWidth=6, color=KEY)
    .encode(x, x2="x2:Q", y="count:Q"),
    alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(x),
)
place = "includes" if beam_or_greedy.low <= 0 <= beam_or_greedy.high else "does not include"
show(
    chart.properties(width=420, height=200),
    alt=f"Resampled differences between beam and greedy search lie from {ahead.min():.1f} to {ahead.max():.1f} BLEU; the 95 percent interval {place} zero.",
)

# %% [markdown]
# How wide is the interval of one score by itself? On 1,000 captions, somewhat more than a point to either side. On 100 captions it is about three times as wide, since it shrinks with the square root of the number of sentences. A score from a small test set, given to two decimals, is mostly decoration. And the bootstrap knows of one kind of chance only. Another is the seed of the training: train again, and the score moves, too. To show that a *method* is better, train both several times.
#
# ## What does a difference of 0.5 BLEU mean?
#
# Papers are written about half a point, so it is worth knowing what one is. BLEU is a product, so a small relative change of it is the mean of the relative changes of the four precisions, plus that of the penalty. At 35 BLEU, half a point is $0.5/35 = 1.4$ %. It can come from
#
# - every precision 1.4 % higher: where 650 of 1,000 words were right, now 659 are, with the runs around them;
# - $p_4$ alone 5.7 % higher, the others as before: better order, and no better words;
# - the penalty alone: output at 97 % of the length in place of 95.7 %, so 13 words more in 1,000.
#
# The last is a warning. Much of what a tuned length penalty gains is length. sacreBLEU prints the ratio, so look at it.
#
# In whole captions: let us make some of them perfect, in random order, until the score is half a point up.

# %% tags=["nbval-ignore-output"]
perfect = sentence_counts(references, references)
order = np.random.default_rng(3).permutation(len(counts))
mended = counts.sum(axis=0) + (perfect - counts)[order].cumsum(axis=0)
needed = next(n for n, row in enumerate(mended, 1) if bleu_of(row) > honest.bleu + 0.5)
print(f"{needed} of {len(counts):,} captions made perfect gain half a point")
assert needed < 50

# %% [markdown]
# About one caption in a hundred. Nobody who reads 20 translations can see that. It need not be nothing: whoever collects ten such steps has five points, and those can be seen. But the step must be shown to be one:
#
# | what moves the score by half a point or more | see |
# |---|---|
# | another tokenizer, lower case | the figure of wrong ways |
# | another thousand captions | the interval of one score |
# | another seed of the training | several runs |
# | a beam in place of greedy search | the line above |
# | a better model | what we hoped for |
#
# So before half a point is called progress: the same signature, the same search, a paired interval without zero, and more than one training run on each side.
#
# ## Which sentences are hard?
#
# A single number hides that some captions are harder. Length is the first suspect. With each word, there is one more chance to go astray, and what went wrong stays in view of all later words. We sort the captions by the length of the source and score five groups.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-length-quality", "caption": "Are long sentences harder? BLEU for captions grouped by the number of words of the source, with intervals that cover 95 % of 300 resamples. The number of captions stands below each point."}}
groups = [(1, 9), (10, 12), (13, 15), (16, 19), (20, 99)]
source_words = np.array([len(words(line)) for line in sources])
records = []
for first, last in groups:
    member = (first <= source_words) & (source_words <= last)
    low, high = np.percentile(resampled(counts[member], 300, seed=1), [2.5, 97.5])
    name = f"{first}-{last}" if last < 99 else f"{first} or more"
    records.append(
        {"group": name, "bleu": round(bleu_of(counts[member].sum(axis=0)), 1), "low": round(low, 1),
         "high": round(high, 1), "count": f"{member.sum()} captions"}
    )  # fmt: skip
assert all(r["low"] <= r["bleu"] + 1 and r["bleu"] <= r["high"] + 1 for r in records)
base = alt.Chart(alt.Data(values=records)).encode(
    x=alt.X("group:N", sort=None, title="words of the source", axis=alt.Axis(labelAngle=0))
)
y = alt.Y("bleu:Q", title="BLEU", scale=alt.Scale(domain=[0, 60]))
chart = alt.layer(
    base.mark_rule(strokeWidth=2, color=QUERY).encode(alt.Y("low:Q", title="BLEU"), y2="high:Q"),
    base.mark_point(filled=True, opacity=1, size=90, color=QUERY).encode(y),
    base.mark_text(align="left", dx=9).encode(y, text=alt.Text("bleu:Q", format=".1f")),
    base.mark_text(fontSize=11).encode(y=alt.value(232), text="count:N"),
)
show(
    chart.properties(width=440, height=240),
    alt=f"BLEU by length of the source: {records[0]['bleu']:.0f} for the shortest captions, {records[-1]['bleu']:.0f} for the longest.",
)

# %% [markdown]
# Mind the intervals before reading a trend into five points. The groups are small, and neighbors often overlap. Captions are also short by nature; where attention and positions get into trouble with length, at 40 words and more, this test set has nothing to say.
#
# ## Reading what it wrote
#
# Numbers end here. Every hundredth caption, so that nobody picks the nice ones:

# %% tags=["nbval-ignore-output", "hide-input"]
by_chrf = [CHRF().sentence_score(o, [r]).score for o, r in zip(outputs, references)]
head = ("chrF", "German", "the model", "the reference")


def lines_of(chosen):
    return [(f"{by_chrf[i]:.0f}", sources[i], outputs[i], references[i]) for i in chosen]


table(head, lines_of(range(0, 1000, 100)))

# %% [markdown]
# Read them against the German, not against the reference. Some that differ from the reference are fine. Others read well, and are false. Fluency comes first and easily, and it hides errors: a model that has read 29,000 captions writes captions, whether or not they are about this picture.
#
# Now the other end, the eight with the lowest chrF.

# %% tags=["nbval-ignore-output", "hide-input"]
worst = sorted(range(1000), key=by_chrf.__getitem__)[:8]
table(head, lines_of(worst))
assert np.mean([by_chrf[i] for i in worst]) < np.mean(by_chrf) / 1.5

# %% [markdown]
# A low score has two kinds of reasons. Sometimes the person who wrote the reference chose other words, or saw more than the German says. That is a failure of the score. The others are failures of the model, and they come in kinds. Some kinds can be counted without reading, roughly:

# %% tags=["nbval-ignore-output"]
NUMBERS = {"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "several"}
COLORS = {"black", "white", "red", "blue", "green", "yellow", "brown", "orange", "pink", "purple"}
PEOPLE = {"man", "men", "woman", "women", "boy", "boys", "girl", "girls", "child", "children"}
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
        yield "the German has a word never seen in training"


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
unseen = found["the German has a word never seen in training"]
assert 50 < len(unseen) < 600 and np.mean(unseen) < np.mean(by_chrf)

# %% [markdown]
# A word that training never showed is the most telling row. The tokenizer can spell it, so nothing crashes and no `<unk>` appears. But subwords that were never seen together have no meaning to the model, and it puts something that fits the rest of the picture. German makes new compounds all the time, so this happens often. A count such as this one is crude: *a lady* for *a woman* is counted as a change of person. It says where to look, not how bad it is.
#
# ## What it was not trained for
#
# All of this was measured on captions, written for the same kind of photos as the training set. A test set from the same source answers a narrow question: how well does it do more of the same? Here are sentences from elsewhere, with one caption as a control at the end.

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
assert away.chrf < honest.chrf
print(f"chrF {away.chrf:.0f} on the first five, {honest.chrf:.0f} on the test captions")

# %% [markdown]
# Where the output has a shape at all, it is the shape of a caption. There are no questions in it, nobody says *I*, and what has no picture, such as inflation or a negation, gives way to something that has one. Captions hardly contain *I*, *not* or a question mark, so no example ever taught the model what they do. Nor does it say that it is lost. The program that calls it gets a line of text, as always.
#
# This is not a flaw of the architecture. It is what a test score means: a statement about a model *and* about the sentences it was tested on.
#
# ## Questions that come up
#
# **Why four, and not five or three?** It was tried out. Up to four, the score agreed best with people's judgment of fluency on the systems of that time. Nothing in the formula depends on it.
#
# **Would several references help?** Yes. An n-gram then counts if any of them has it, so other words are punished less. Scores rise a lot, by ten points and more, which is one more reason to look at the signature: `nrefs` says how many there were.
#
# **My BLEU is 0, or 100. What is wrong?** At 0, look at the text first: ids in place of words, one string in place of a list, or a test set so small that it has no 4-gram in common. At 100, look at the shape of the references, and whether the references were scored against themselves.
#
# **What does "100 lines that end in a tokenized period" mean?** At least 100 lines end in a space and a period, so the library guesses that the text was cut into words before. Join it again with the tokenizer's own `decode`. Passing `force=True` only silences the line; we did that above, where wrong text was the point.
#
# **Can BLEU be the loss?** No. It counts, so a small change of the weights changes it not at all or by a jump, and there is no slope to follow. It also needs whole sentences that the model wrote by itself, and a corpus of them. It is used to choose a checkpoint, and the cross-entropy to train it.
#
# **How many points are worth having?** On one test set, an interval tells what is not chance. What a reader notices is another matter. Differences below one point are seldom visible to people, and a system that is ahead by three points usually translates visibly better.
#
# **Is there nothing better?** Scores that are themselves neural networks, trained on human judgments, agree better with people. They accept other words and notice a lost *not* more often. In exchange nobody can compute them by hand, they need a large model, and they have blind spots of their own, which are harder to know. For comparison with the paper, BLEU it is.
#
# **May the test captions choose the beam or the checkpoint?** No. Whoever tries twenty settings on the test set and reports the best has fitted the test set a little. Choose on the validation captions, then score the test captions once.
#
# ## What to remember
#
# - BLEU: clipped n-gram precisions for n = 1 to 4, their geometric mean, a penalty for short output; summed over the corpus first.
# - A score without signature, test set and number of lines is no result. Score plain text that the model wrote by itself.
# - The same outputs can score many points apart. Never compare scores that were computed differently.
# - A difference comes with an interval. If it includes zero, the test set cannot tell the systems apart.
# - Half a point is about one caption in a hundred made perfect. Another tokenizer can move the score by more.
# - Read the output, above all the worst of it. Scores compare letters; they know nothing of *not*.
#
# ## Exercises
#
# **1. By hand.** The output is *the cat sat*, the reference *the cat sat down .* What is BLEU with 1-grams and 2-grams only? ($e^{-2/3} = 0.513$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both precisions are 1: every word and every pair is right. The penalty is e^(1 - 5/3) = 0.513.
pairs_only = BLEU(max_ngram_order=2, tokenize="none")
answer = pairs_only.corpus_score(["the cat sat"], [["the cat sat down ."]])
assert abs(answer.score - 51.3) < 0.1
print(f"{answer.score:.1f}")

# %% [markdown]
# **2. What breaks if** precisions are not clipped? Find an output of seven words that gets 100 for $p_1$ against the reference *two dogs play in the deep snow*, and says nothing.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Any word of the reference, seven times.
wanted = ["two", "dogs", "play", "in", "the", "deep", "snow"]
said = ["in"] * 7
print("unclipped:", sum(word in wanted for word in said), " clipped:", matches(said, wanted))
assert matches(said, wanted) == 1

# %% [markdown]
# **3. What breaks if** one output line is lost near the beginning, and a blank one is added at the end so that the counts agree? Predict the score, then try it.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Each line is now compared with its neighbor's reference. What is left comes from "A man in a" and from periods.
shifted = [*outputs[:5], *outputs[6:], ""]
lost = score(shifted, references).bleu
assert lost < honest.bleu / 3
print(f"{honest.bleu:.1f} falls to {lost:.1f}, and nothing raises an error")

# %% [markdown]
# **4. How many sentences?** Predict how much wider the 95 % interval of our model's BLEU becomes when only every fourth caption is kept.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It goes with one over the root of the number of sentences: a quarter of them, about twice as wide.
spreads = [resampled(some, 1000, seed=2) for some in (counts, counts[::4])]
widths = [np.ptp(np.percentile(scores, [2.5, 97.5])) for scores in spreads]
assert 1.4 < widths[1] / widths[0] < 2.9
print(f"{widths[0]:.1f} and {widths[1]:.1f} points wide")

# %% [markdown]
# **5. Endings.** The reference is *Two dogs are running.* Which of *Two dog is running.* and *Two cars are burning.* gets the higher BLEU, and which the higher chrF?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both have three of five words. The first also has the pair "running.", so BLEU is a little
# higher. For chrF, "dog" is most of "dogs", while "cars" is little of it.
true = "Two dogs are running."
for line in ("Two dog is running.", "Two cars are burning."):
    metrics = BLEU(effective_order=True), CHRF()
    scores = [metric.sentence_score(line, [true]).score for metric in metrics]
    print(f"{line:22} BLEU {scores[0]:.1f}  chrF {scores[1]:.1f}")

# %% [markdown]
# ## Sources
#
# BLEU is from {cite:t}`papineni2002bleu`; sacreBLEU, its signature, and the case against comparing scores of unknown origin are from {cite:t}`post2018call`. chrF was proposed by {cite:t}`popovic2015chrf`, bootstrap tests for translation by {cite:t}`koehn2004statistical`. The captions are from {cite:t}`elliott2016multi30k`.
