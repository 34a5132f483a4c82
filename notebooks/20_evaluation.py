# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Evaluation
#
# This chapter scores a model's translations against what people wrote, as the tool sacreBLEU does it, and nearly as the paper did (section 6.1).
#
# Multi30k has the caption *Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.* Suppose two systems translate it:
#
# 1. *A woman in a blue shirt is standing on a ladder cleaning a window.*
# 2. *On a ladder stands a man who cleans a window, wearing a blue shirt.*
#
# A person wrote *A man in a blue shirt is standing on a ladder cleaning a window.* Which of the two systems translates better? And which one scores higher when a program compares both with what the person wrote? Decide before you read on.

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
# The false translation gets six times as much as the sound one, and this is the score that everybody quotes. The main result of the paper is two numbers: 28.4 **BLEU** for English to German, and 41.8 for English to French. Nobody can read a thousand translations after every change of a model, so a program has to do it. BLEU counts the runs of one to four words that an output shares with a **reference**, a translation written by a person. For a single sentence that proves nothing, as you see; over a whole test set it is useful, if you know what moves it.

# %% tags=["export", "hide-input"]
import re
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

# %% tags=["hide-input"]
import html
import math
from collections import Counter
import json
from importlib.resources import files

import altair as alt
from IPython.display import display
from sacrebleu.significance import PairedTest

from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.data import words
from annotated_transformer.translation import length_batches
from annotated_transformer.transformer import evaluating
from book.figures import INK, SKY, show

# %% [markdown]
# ## How BLEU lies
#
# The captions model of the previous chapter translates the 1,000 captions of Multi30k's test set. It wasn't trained on them, and none of its settings was chosen on them.

# %% tags=["nbval-ignore-output"]
from annotated_transformer import load_pretrained
from annotated_transformer.own_data import multi30k
from annotated_transformer.translation import translate

model, tokenizer = load_pretrained("captions-de-en")
pairs = multi30k("test_2016_flickr")
sources = [pair.source for pair in pairs]
references = [pair.target for pair in pairs]
outputs = translate(model, tokenizer, sources)
honest = BLEU().corpus_score(outputs, [references]).score
print(f"{honest:.1f} BLEU")

# %% tags=["remove-cell"]
if CHECKING:
    assert 40.7 < honest < 41.8

# %% [markdown]
# We score the same model in ten other ways. For all but *teacher-forced* the outputs stay the same, to the letter.


# %% tags=["hide-input"]
def bleu(outputs, references, **options):
    return BLEU(force=True, **options).corpus_score(outputs, [references]).score


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


def marked(lines):
    return [f"<s> {' '.join(words(line))} </s>" for line in lines]


def in_subwords(lines):
    return [" ".join(map(str, tokenizer.encode(line))) for line in lines]


def split_up(lines):
    return [" ".join(words(line.lower())) for line in lines]


def by_place(outputs, references):
    rows = [list(zip(words(o), words(r))) for o, r in zip(outputs, references)]
    return 100 * sum(a == b for row in rows for a, b in row) / sum(map(len, rows))


def sentence_mean(outputs, references):
    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(o, [r]).score for o, r in zip(outputs, references)]
    return sum(scores) / len(scores)


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-bleu-lies", "caption": "How much can a score be moved without touching the model? The same model on the same captions, scored in eleven ways. The vertical line is the honest score; filled blue bars are higher, outlined ones lower. Counted in characters the score is 24 points higher, with `<s>` and `</s>` five, and the other ways stay within three points."}}
few = [i for i, line in enumerate(references) if len(words(line)) <= 12]
value = {
    "honest: sacreBLEU": honest,
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
    "word by place": by_place(outputs, references),
}
apart = {name: number - honest for name, number in value.items()}
records = [
    {"way": name, "bleu": round(n, 1), "over": apart[name] > 0}
    for name, n in value.items()
]
order = sorted(value, key=value.get, reverse=True)
axis = alt.Axis(labelLimit=160, ticks=False, domain=False)
base = alt.Chart(alt.Data(values=records)).encode(
    y=alt.Y("way:N", sort=order, title=None, axis=axis),
    x=alt.X("bleu:Q", title="score", scale=alt.Scale(domain=[0, 75], nice=False)),
)
is_honest = "datum.way == 'honest: sacreBLEU'"
only = alt.Chart(alt.Data(values=[{"bleu": round(honest, 1)}]))
chart = alt.layer(
    base.transform_filter(is_honest).mark_bar(fill=INK, height=15),
    base.transform_filter(f"datum.over && !({is_honest})").mark_bar(
        fill=SKY, height=15
    ),
    base.transform_filter(f"!datum.over && !({is_honest})").mark_bar(
        fillOpacity=0, stroke=SKY, strokeWidth=1.4, height=15
    ),
    only.mark_rule(color=INK, strokeWidth=2).encode(x="bleu:Q"),
    base.transform_calculate(at=f"max(datum.bleu, {honest:.1f})")
    .mark_text(align="left", dx=7)
    .encode(x="at:Q", text=alt.Text("bleu:Q", format=".1f")),
)
show(
    chart.properties(width=190, height=290),
    alt=f"Bars of eleven scores of one model from {min(value.values()):.0f} to {max(value.values()):.0f}; the honest one is {honest:.0f}, the highest counts characters.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert apart["in characters"] > 20 and 4 < apart["with <s> and </s>"] < 6
    assert (
        sum(abs(number) < 3 for number in apart.values()) == 9
        and abs(apart["teacher-forced"]) < 0.5
    )

# %% [markdown]
# The gain from characters is the emptiest: a run of four characters is often a piece of one word, and matches without any phrase being right. Counting `<s>` and `</s>` gives away two words that can't be wrong.
#
# *Teacher-forced* takes for each place the model's likeliest word after the *reference's* beginning. It looks harmless and is the worst of all: such words are easy to collect during training, but nothing was translated, since whatever the model says, the decoder goes on with the reference. That the score comes out near the honest one is luck.
#
# *Word by place* compares the first word with the first, the second with the second: against *the black cat likes fish*, the output *so the black cat likes fish* then gets 0.
#
# None of this takes bad faith. A pipeline lower-cases early, a metric is handed ids, a loader drops its last batch, and a number comes out that looks like any other. Three habits protect you: turn ids back into plain text and score the text, count the lines, and report how the score was computed.
#
# ## Why each part of BLEU is there
#
# Now one score by hand. The reference is *the black cat likes fish*, and a model has written *the black cat likes the fish*. An **n-gram** is $n$ words in a row, and $p_n$, the **precision**, is the share of the output's n-grams that are found in the reference. With $c$ for the number of words in the output and $r$ for those in the reference,
#
# $$
# \begin{gathered}
# \text{BLEU} = 100 \cdot b \cdot \left(p_1\, p_2\, p_3\, p_4\right)^{1/4} \\[2pt]
# b = \min\!\left(1,\; e^{1 - r/c}\right)
# \end{gathered}
# $$ (eq-bleu)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ngrams", "caption": "Which runs of words are matched? Each bar covers the words of one n-gram of the output. Filled ones are matched in the reference *the black cat likes fish*, dashed ones aren't. One wrong word spoils one 1-gram, but two pairs, two triples, and two of the three runs of four."}}
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
# Each of the six words stands in the reference, the second *the* included. Counted like that, *the the the the* would be a perfect translation. So matches are **clipped**: each word of the reference can be used up only once. That leaves five of six.
#
# ### Sequences
#
# Words alone know nothing of their order: *fish likes the black cat* would be perfect, too. So longer n-grams count as well, clipped in the same way.
#
# The four precisions are multiplied, and the fourth root is taken:
#
# $$
# \left(\frac{5}{6} \cdot \frac{3}{5} \cdot \frac{2}{4} \cdot \frac{1}{3}\right)^{1/4} = 0.0833^{1/4} = 0.537
# $$
#
# In such a **geometric mean** each factor counts alike: halve any of them, and the score is divided by $2^{1/4} = 1.19$. A plain mean would be ruled by $p_1$, nearly always the largest, while it is $p_4$ that tells fluent sentences from shuffled words.
#
# ### A penalty for saying too little
#
# What would *the black cat likes* get? Every run it has is matched, so all its precisions are 1, and saying little would be the way to a high score. The **brevity penalty** $b$ compares the lengths, 4 and 5: $e^{1 - 5/4} = 0.78$. A percent too short costs about a percent of the score. Extra words need no penalty, because they already lower every precision. Our six words against five keep their 53.7.
#
# ### A corpus is not a mean of sentences
#
# When one factor is zero, the product is, and short sentences often have no run of four that is right. BLEU was made for a whole test set. It adds up the matches of all sentences, then all the totals, and divides at the very end. So for each sentence we keep ten numbers: four matches, four totals, two lengths.

# %%
import numpy as np


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
dog = counts_of("a dog sleeps", "the dog is sleeping")
print(f"the cat {bleu_of(cat):.1f}, the cat and the dog {bleu_of(cat + dog):.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(bleu_of(cat) - 53.7) < 0.05
    short = counts_of("the black cat likes", "the black cat likes fish")
    assert abs(bleu_of(short) - 77.9) < 0.05
    lines = ["the black cat likes the fish", "a dog sleeps"]
    wanted_lines = ["the black cat likes fish", "the dog is sleeping"]
    plain = BLEU(tokenize="none", smooth_method="none", force=True)
    assert (
        abs(plain.corpus_score(lines, [wanted_lines]).score - bleu_of(cat + dog)) < 1e-9
    )
    assert plain.corpus_score(lines[1:], [wanted_lines[1:]]).score == 0

# %% [markdown]
# The dog alone would have 0, since none of its pairs is right. Together they have 44.2, and not the mean of the two: every n-gram counts alike, so longer sentences weigh more. "BLEU" means this number for the corpus.
#
# For the test set one thing is missing. Real text has *window.* with a period, so sentences are cut into tokens first. With `Tokenizer13a`, sacreBLEU's own cutter, our three functions give sacreBLEU's score:

# %% tags=["nbval-ignore-output"]
tokenize = Tokenizer13a()


def all_counts(outputs, references):
    lines = zip(map(tokenize, outputs), map(tokenize, references))
    return np.array([counts_of(*line) for line in lines])


counts = all_counts(outputs, references)
print(f"by hand {bleu_of(counts.sum(axis=0)):.6f}, sacreBLEU {honest:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(bleu_of(counts.sum(axis=0)) - honest) < 1e-6

# %% [markdown]
# ## The tool and its signature
#
# How text is cut decides which runs match. Each paper used to cut in its own way, and {cite:t}`post2018call` found differences of up to 1.8 BLEU between the ways in common use. His tool sacreBLEU takes plain text, cuts it itself, and writes what it did into a line called the **signature**. A score without one is half a result. The package's `score`, folded here, returns BLEU with its signature, and a second score, **chrF**, which compares sequences of one to six characters and so forgives *dogs* for *dog*.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show Scores, check_lines and mostly_unspaced", "code_prompt_hide": "Hide Scores, check_lines and mostly_unspaced"}
class Scores(NamedTuple):
    """Scores of a test set, 0 to 100, each with the signature that says how it was computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise ValueError unless there is one translation for each reference, and at least one."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("a test set is a list of sentences, not one string")
    if len(hypotheses) != len(references) or not references:
        counts = f"{len(hypotheses):,} translations for {len(references):,} references"
        raise ValueError(f"{counts}: there must be one for each, and at least one")


def mostly_unspaced(lines: Sequence[str]) -> bool:
    """True if less than 7% of the text is white space: its words aren't cut at spaces."""
    text = "".join(lines)
    return sum(map(str.isspace, text)) < 0.07 * len(text)


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show score", "code_prompt_hide": "Hide score"}
def score(hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
    """Score translations by corpus BLEU and chrF2, cased and as sacreBLEU tokenizes (section 6.1).

    Both are plain text as people write it: not tokenized, not in subwords, not lower-cased.
    Where words are written without spaces, BLEU counts characters.
    Raises ValueError if they differ in number or there are none.
    """
    check_lines(hypotheses, references)
    bleu = BLEU(tokenize="char" if mostly_unspaced(references) else "13a")
    chrf = CHRF()
    lines = list(hypotheses), [list(references)]
    return Scores(
        bleu.corpus_score(*lines).score,
        chrf.corpus_score(*lines).score,
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )


# %% tags=["nbval-ignore-output"]
scores = score(outputs, references)
print(f"BLEU {scores.bleu:.1f}  {scores.bleu_signature}")
print(f"chrF {scores.chrf:.1f}  {scores.chrf_signature}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(scores.bleu - honest) < 1e-9 and 60 < scores.chrf < 61.2
    assert "tok:13a" in score(["Er hat Zeit."], ["他 Zeit."]).bleu_signature

# %% [markdown]
# | field | says | other choices, and what they do |
# |---|---|---|
# | `nrefs:1` | references for each sentence | more of them raise the score |
# | `case:mixed` | upper and lower case as they are | `lc` forgives every wrong capital |
# | `eff:no` | all four lengths of n-grams count | `yes` leaves out lengths that a sentence is too short for |
# | `tok:13a` | how lines are cut into words | `none`, `char`, or one made for a language |
# | `smooth:exp` | what replaces a count of zero, which a corpus hardly has | `none`, `floor`, `add-k` |
#
# Two scores may be compared if their signatures are equal *and* the test set is the same. There is no absolute scale: captions are short and use few words, so 41.2 on captions says nothing about news, and the paper's 28.4 doesn't belong in one table with it.
#
# ## Whether a difference is real
#
# A beam of 4 or greedy search? A length penalty of 0.6 or of 1.4? With other captions the difference between two scores would have been another one, and if chance alone can produce one of that size, it tells you nothing.
#
# ### A test set is a sample
#
# To see how the difference swings we'd need a thousand other test sets, and we have only one. The **bootstrap** takes the captions we have as a picture of all captions, and draws as many from *them*, each time from the full set, so that some come twice or three times and others not at all. One such test set is a **resample**; a thousand of them show the swing. Try it on ten made-up gains of one system over another, sentence by sentence. It won six of them and lost three. Would you say that it is better?

# %% tags=["nbval-ignore-output"]
gains = np.array([2, 5, -1, 0, 3, -4, 6, 1, -2, 4])
draws = np.random.default_rng(0).choice(gains, (10_000, len(gains)))
means = draws.mean(axis=1)
low, high = np.percentile(means, [2.5, 97.5])
print(f"mean gain {gains.mean()}, 95% of the draws from {low:.1f} to {high:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(low + 0.5) < 0.3 and abs(high - 3.3) < 0.3

# %% [markdown]
# A range that holds 95% of the draws is a **confidence interval**, *interval* for short. This one contains zero, so ten sentences can't tell.
#
# ### A bootstrap for BLEU
#
# No new translations are needed, and not even a new count. `times_drawn` says, in one row for each of the 1,000 resamples, how often each caption was drawn, and the product `times_drawn @ counts` adds up the rows of `counts` that often. The comparison must be **paired**: both systems are scored on the *same* drawn captions. Hard captions are hard for both, so their luck cancels in the difference.


# %%
def resampled(counts, samples=1000, seed=12345):
    size = len(counts)
    times_drawn = np.random.default_rng(seed).multinomial(
        size, np.full(size, 1 / size), samples
    )
    return np.array([bleu_of(row) for row in times_drawn @ counts])


def paired_bootstrap(one, other):
    ahead = resampled(one) - resampled(other)  # one seed: the same draws
    low, high = np.percentile(ahead, [2.5, 97.5])
    return bleu_of(one.sum(axis=0)) - bleu_of(other.sum(axis=0)), low, high


# %% tags=["nbval-ignore-output"]
greedy = all_counts(translate(model, tokenizer, sources, beam=1), references)
longer = all_counts(translate(model, tokenizer, sources, alpha=1.4), references)
compared = {
    "beam 4 - greedy": (counts, greedy),
    "alpha 1.4 - alpha 0.6": (longer, counts),
}
for name, systems in compared.items():
    difference, low, high = paired_bootstrap(*systems)
    print(f"{name}: {difference:+.2f} BLEU, 95% from {low:+.2f} to {high:+.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    versus_greedy, versus_short = (
        paired_bootstrap(*pair) for pair in compared.values()
    )
    paired = np.std(resampled(counts) - resampled(greedy))
    unpaired = np.std(resampled(counts) - resampled(greedy, seed=2))
    assert versus_greedy[1] < 0 < versus_greedy[0] < 0.3
    assert abs(versus_greedy[0] - 0.2) < 0.1 and abs(versus_greedy[2] - 0.6) < 0.1
    assert versus_short[0] > 0.8 and versus_short[1] > 0.5
    assert 5 < unpaired / paired < 6


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-bootstrap", "caption": "Could it be chance? How far a beam of 4 is ahead of greedy search (above), and alpha 1.4 of alpha 0.6 (below), on 1,000 resampled test sets. The thick line at the bottom covers 95% of them."}}
def histogram(name, one, other):
    ahead = resampled(one) - resampled(other)
    first, last = min(-0.8, ahead.min()), max(1.9, ahead.max())
    heights, edges = np.histogram(ahead, np.arange(first, last + 0.1, 0.07))
    low, high = np.percentile(ahead, [2.5, 97.5])
    rows = [
        {"x": round(a, 2), "x2": round(b, 2), "count": int(n)}
        for a, b, n in zip(edges, edges[1:], heights)
    ]
    ticks = alt.Axis(values=[-0.5, 0, 0.5, 1, 1.5])
    title = "BLEU of " + name.replace(" - ", " minus BLEU of ")
    x = alt.X("x:Q", title=title, scale=alt.Scale(domain=[first, last]), axis=ticks)
    interval = {"x": round(low, 3), "x2": round(high, 3), "count": 0}
    bars = alt.Chart(alt.Data(values=rows)).mark_rect(fill=SKY)
    line = alt.Chart(alt.Data(values=[interval])).mark_rule(strokeWidth=6, color=INK)
    chart = alt.layer(
        bars.encode(x, alt.Y("count:Q", title="resamples"), x2="x2:Q", y2=alt.datum(0)),
        line.encode(x, x2="x2:Q", y="count:Q"),
    )
    return chart.properties(width=285, height=110), (ahead < 0).mean()


charts, below = zip(*(histogram(name, *compared[name]) for name in compared))
show(
    alt.vconcat(*charts),
    alt=f"Of the resampled differences between beam and greedy search {below[0]:.0%} lie below zero; of those between alpha 1.4 and alpha 0.6 none does.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert 0.2 < below[0] < 0.28 and below[1] == 0

# %% [markdown]
# Between greedy search and a beam of 4, a thousand captions can't decide (two thousand [could](19_decoding.ipynb#beam-width-and-alpha)). The larger $\alpha$ is another matter: it is 0.9 ahead, and every resample agrees. Without pairing, with draws of its own for each system, the first difference would swing more than five times as widely.
#
# This test knows only one kind of chance, the choice of captions. The seed of the training is another: to show that a *method* is better, train both several times. And a difference that is certain may still be small. Papers are written about half a point of BLEU, which is what our model would gain from [six captions in a thousand made perfect](#what-does-half-a-point-of-bleu-mean).
#
# ## What no counting can see
#
# An interval says how sure a score is, and not whether it measures what you want. BLEU and chrF compare strings. Neither knows that *woman* for *man* is an error and *cleans* for *cleaning* is none, or that a *not* reverses a sentence.
#
# ### How people judge
#
# The simplest way is to ask people for a grade from 0 to 100. A slower one has become the standard: professional translators read source and translation, mark each error, and say what kind it is and how bad. It is called **MQM**, multidimensional quality metrics. As {cite:t}`freitag2021experts` count, a minor error costs 1 point, and a major one, which misleads the reader, 5. No reference is needed. We've marked four captions of our model like this:
#
# | German | the model | errors | points | chrF |
# |---|---|---|---|---|
# | Ein Mann fährt auf einem Fahrrad durch einen Torbogen. | A man is riding a bike through a basket. | *basket* for an archway: major | 5 | 28 |
# | Ein Mann wirft einen Ast in einen Kanal während zwei Hunde zusehen. | A man throws an a canal while two dogs watch. | the branch is lost: major; *an a*: minor | 6 | 48 |
# | Ein Tisch voller gerahmter Bilder, ein Freiluftmarkt. | A table full of pictures, an outdoor market. | the frames are lost: minor | 1 | 75 |
# | Kinder kämpfen um den Ballbesitz. | Children fighting for the ball. | none | 0 | 15 |
#
# The flawless translation has the lowest chrF, because the person who wrote the reference had kids *compete to gain possession of the soccer ball*. In the study of Freitag and colleagues, the professionals' marks ranked the systems of a large competition differently from the grades of paid laymen, and put translations made by people clearly first.

# %% tags=["remove-cell"]
if CHECKING:
    marked_lines = {
        (
            "A man is riding a bike through a basket.",
            "A man on a bicycle pedals through an archway.",
        ): 28,
        (
            "A man throws an a canal while two dogs watch.",
            "A man is throwing a log into a waterway while two dogs watch.",
        ): 48,
        (
            "A table full of pictures, an outdoor market.",
            "A table full of pictures in frames, at an outdoor market.",
        ): 75,
        (
            "Children fighting for the ball.",
            "Kids compete to gain possession of the soccer ball.",
        ): 15,
    }
    for (line, wanted), rounded in marked_lines.items():
        assert round(CHRF().sentence_score(line, [wanted]).score) == rounded
        assert wanted in references
    assert sum(line in outputs for line, _ in marked_lines) >= 2

# %% [markdown]
# ### Scores that have read something
#
# People's judgments can be learned. **COMET** {cite:p}`rei2020comet` encodes source, translation and reference with a pretrained multilingual Transformer and predicts the grade that a person would give. When scores were compared with experts' marks in 2022, learned ones came out ahead, and BLEU and chrF agreed poorly; the report is called "Stop Using BLEU" {cite:p}`freitag2022results`. But nobody can compute such a score by hand, and its blind spots are harder to know. This book doesn't run it. With `pip install unbabel-comet` you can:
#
# ```bash
# comet-score -s source.de -t output.en -r reference.en --model Unbabel/wmt22-comet-da
# ```
#
# For a comparison with the paper there is only BLEU. To choose between systems of your own, report COMET beside it, and read the output.

# %% [markdown]
# ## What to remember
#
# - BLEU multiplies clipped precisions of n-grams, n = 1 to 4, takes the fourth root, and punishes short output. The counts are added up over the whole corpus first.
# - A score means little without its signature, its test set and the number of lines. Score plain text that the model wrote by itself.
# - A difference comes with a paired interval. If the interval includes zero, the test set can't tell the systems apart.
# - BLEU and chrF compare strings and know nothing of *not*. Read the output, above all the worst of it.
#
# A score tells how well a model translates, and nothing about how. The model's attention weights [can be looked at](21_attention_maps.ipynb), but what do they prove?

# %% [markdown]
# ## Exercises
#
# **1. By hand, and then in code** (★, 15 min, before you read the code above). The output is *the cat sat*, the reference *the cat sat down .* What is BLEU with 1-grams and 2-grams only? ($e^{-2/3} = 0.513$) Write a function that computes it for any two sentences.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both precisions are 1: every word and every pair is right. The penalty is e^(1 - 5/3) = 0.513.


def bleu_2(output, reference):
    said, wanted = output.split(), reference.split()
    product = min(1, math.exp(1 - len(wanted) / len(said))) ** 2
    for n in (1, 2):
        left = [wanted[i : i + n] for i in range(len(wanted) - n + 1)]
        runs = [said[i : i + n] for i in range(len(said) - n + 1)]
        hits = 0
        for run in runs:
            if run in left:
                left.remove(run)  # used up
                hits += 1
        product *= hits / len(runs)
    return 100 * product**0.5


pairs_only = BLEU(max_ngram_order=2, tokenize="none")
answer = pairs_only.corpus_score(["the cat sat"], [["the cat sat down ."]])
ours = bleu_2("the cat sat", "the cat sat down .")
print(f"by hand {ours:.1f}, sacreBLEU {answer.score:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(answer.score - ours) < 1e-9

# %% [markdown]
# **2. What breaks if** (★, 5 min) precisions are not clipped? Find an output of seven words that gets 100 for $p_1$ against the reference *two dogs play in the deep snow*, and says nothing.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Any word of the reference, seven times.
wanted = "two dogs play in the deep snow"
said = "in in in in in in in"
print("unclipped:", sum(word in wanted.split() for word in said.split()), end=" ")
print("clipped:", counts_of(said, wanted)[0])

# %% tags=["remove-cell"]
if CHECKING:
    assert counts_of(said, wanted)[0] == 1

# %% [markdown]
# **3. What breaks if** (★★, 10 min) one output line is lost near the beginning, and a blank one is added at the end so that the counts agree? Predict the score, then try it.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# From the sixth on, each line is compared with its neighbor's reference. Half of what is left
# comes from the five before.
shifted = [*outputs[:5], *outputs[6:], ""]
lost = score(shifted, references).bleu
print(f"{honest:.1f} falls to {lost:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert lost < honest / 3

# %% [markdown]
# **4. How many sentences?** (★★, 10 min) Predict how much wider the 95% interval of our model's BLEU becomes when only every fourth caption is kept.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It goes with one over the root of the number of sentences: a quarter of them, about twice as wide.
spreads = [resampled(some, 1000, seed=2) for some in (counts, counts[::4])]
widths = [np.ptp(np.percentile(scores, [2.5, 97.5])) for scores in spreads]
print(f"{widths[0]:.1f} and {widths[1]:.1f} points wide")

# %% tags=["remove-cell"]
if CHECKING:
    assert 1.4 < widths[1] / widths[0] < 2.9

# %% [markdown]
# **5. Which comes first?** (★★, 10 min) Exchange output and reference: the model writes *the black cat likes fish*, and the reference has *the fish*. Compute the score by hand, and say why such a mistake in a script can stay unnoticed for long.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The matches stay the same and are divided by the shorter line's counts, 5/5, 3/4, 2/3 and 1/2: their product is 1/4,
# its fourth root 0.707. The penalty is e^(1 - 6/5) = 0.819. 57.9 instead of 53.7 looks as likely; only the ratio of
# the lengths, which sacreBLEU prints, is inverted.
long_line, short_line = "the black cat likes the fish", "the black cat likes fish"
both_ways = (
    bleu_of(counts_of(long_line, short_line)),
    bleu_of(counts_of(short_line, long_line)),
)
print(f"{both_ways[0]:.1f} and {both_ways[1]:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(both_ways[1] - 57.9) < 0.05

# %% [markdown]
# **6. Endings** (★★, 10 min). The reference is *Two dogs are running.* Which of *Two dog is running.* and *Two cars are burning.* gets the higher BLEU, and which the higher chrF?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Both have three of five words. The first also has the pair "running.", so its BLEU is
# higher. For chrF, "dog" is most of "dogs", while "cars" is little of it.
true = "Two dogs are running."
for line in ("Two dog is running.", "Two cars are burning."):
    metrics = BLEU(effective_order=True), CHRF()
    both = [metric.sentence_score(line, [true]).score for metric in metrics]
    print(f"{line:22} BLEU {both[0]:.1f}  chrF {both[1]:.1f}")

# %% [markdown]
# **7. Mark twenty** (★★, 30 min, open). Mark the errors in twenty outputs of a model of yours, a point for a minor and five for a major one. Wait a day and mark them again. How well do you agree with yourself, and how well with chrF?
#
# **8. The other score** (★★★, an evening, open). Score greedy search, a beam of 4 and a beam of 64 with COMET. Does it rank them as BLEU does? Read twenty captions on which the two disagree most.

# %% [markdown]
# ## Second reading: other ways to count
#
# ### chrF: counting characters
#
# :::{admonition} The formula, and *dog* for *dogs* by hand
# :class: dropdown
# BLEU is strict about words: *dogs* for *dog* is as wrong as *helicopter*. chrF counts sequences of one to six characters, with the spaces left out, and asks both questions: precision $P$, how much of the output is right, and recall $R$, how much of the reference is there. Each is the mean over the six lengths. Recall gets twice the weight, $\beta = 2$:
#
# $$
# \text{chrF} = 100 \cdot \frac{(1 + \beta^2)\, P\, R}{\beta^2 P + R}
# $$ (eq-chrf)
#
# It needs no decision about what a word is, is kind to languages with many endings, and works for single sentences. Its numbers are higher than BLEU's, and the two must not be compared. With lengths up to three only, for the output *dog* and the reference *dogs*:
#
# | | 1 | 2 | 3 | mean |
# |---|---|---|---|---|
# | the output's | d, o, g | do, og | dog | |
# | precision | 3/3 | 2/2 | 1/1 | $P = 1$ |
# | recall | 3/4 | 2/3 | 1/2 | $R = 0.639$ |
#
# This makes $100 \cdot 5 \cdot 0.639 / (4 + 0.639) = 68.9$, where BLEU finds nothing at all. The other way round, *dogs* for *dog*, gets $100 \cdot 5 \cdot 0.639 / (4 \cdot 0.639 + 1) = 89.8$: missing letters cost more than extra ones.
#
# Why has BLEU no recall? It was made for several references to a sentence. A good translation agrees with one of them at each place, not with all, so which words "should be there" is an open question. Lengths can always be compared. And why four lengths of n-grams? {cite:t}`papineni2002bleu` tried several; four agreed best with people's judgments of fluency, and three and five nearly as well.
# :::


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show chrF in ten lines", "code_prompt_hide": "Hide chrF in ten lines"}
def chrf_by_hand(output, reference, longest=6, beta=2):
    said, wanted = output.replace(" ", ""), reference.replace(" ", "")
    longest = min(longest, len(said), len(wanted))
    P = R = 0.0
    for n in range(1, longest + 1):
        here, there = ngrams(said, n), ngrams(wanted, n)
        P += (here & there).total() / here.total() / longest
        R += (here & there).total() / there.total() / longest
    return 100 * (1 + beta**2) * P * R / (beta**2 * P + R)


library = CHRF().sentence_score(second, [reference]).score
print(f"by hand {chrf_by_hand(second, reference):.2f}, sacreBLEU {library:.2f}")
for pair in (("dog", "dogs"), ("dogs", "dog")):
    print(*pair, f"{chrf_by_hand(*pair, longest=3):.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(chrf_by_hand(second, reference) - library) < 1e-6
    for pair, expected in ((("dog", "dogs"), 68.9), (("dogs", "dog"), 89.8)):
        assert abs(chrf_by_hand(*pair, longest=3) - expected) < 0.05
        three = CHRF(char_order=3).sentence_score(pair[0], [pair[1]]).score
        assert abs(three - expected) < 0.05

# %% [markdown]
# ### Chinese, and a list of lists
#
# :::{admonition} A good translation with 0, and a wrong one with 100
# :class: dropdown
# Chinese, Japanese, Thai and a few other languages write no spaces between words. There `13a` takes a clause for one word, hardly any four in a row match, and a good translation gets 0. So `score` counts characters where white space makes up less than 7% of the references (in English captions it is 18%), and the signature says `char`. The first two lines below score two ways of saying in Chinese that he lost his key yesterday.
#
# sacreBLEU allows several references for each sentence, and wants them by *set*: the first reference of all sentences, then the second of all. The shape that comes to mind first, a short list for each sentence, is a trap. The library takes each short list for a whole set, each set ends after its first line, and only the first sentence is scored. The last two lines show what comes of it. A score that is too good deserves the same care as one that is too bad.
#
# For a single sentence, sacreBLEU replaces a zero by something small, which is called **smoothing**: half a match for the first zero, a quarter for the second, an eighth for the third. The dog alone has 0 without it. Other common ways give other numbers, so BLEU of a single sentence is good for sorting and for little else.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show both traps", "code_prompt_hide": "Hide both traps"}
lost = ["他昨天丢了钥匙。"]
also_lost = ["他昨天弄丢了钥匙。"]
by_character = score(lost, also_lost)
print("13a: ", round(BLEU().corpus_score(lost, [also_lost]).score, 1))
print("char:", round(by_character.bleu, 1), by_character.bleu_signature)

two = ["a b c d e", "all of this is wrong"]
right = ["a b c d e", "nothing like it at all"]
in_sets = BLEU().corpus_score(two, [right]).score
in_lists = BLEU().corpus_score(two, [[line] for line in right]).score
print("sets of references:      ", round(in_sets, 1))
print("a list for each sentence:", round(in_lists, 1))

# %% [markdown]
# ### Why never to compare tokenized BLEU
#
# :::{admonition} One sentence cut in three ways, and how the paper counted
# :class: dropdown
# Before sacreBLEU, the usual script took text that was *already* cut into words, on both sides, by a tokenizer of one's own choice. The score then belongs to the translation *and* to the tokenizer. Take one sentence with one difference, *isn't* for *is not*, cut in three ways: at spaces, by `13a`, and at every mark. The finest cut makes the most words, and many of the new ones are easy: *dark-blue* is one word right in the first row and three in the last, with the runs across them. On a whole test set the effect is smaller, and still larger than most improvements.
#
# The paper's scores are of this kind. To stand beside its table you can count in its way, nearly. The authors' script (`get_ende_bleu.sh` of tensor2tensor) tokenizes with Moses and cuts each compound at its hyphens, where the hyphen becomes a word of its own, `##AT##-##AT##`; its reference file had all kinds of quotation marks made plain, as [a user found out](https://github.com/tensorflow/tensor2tensor/issues/317). `compound_split_bleu` takes `13a` for the first step and does the other two. The result has no signature. Print it beside the real score, never instead of it.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show one sentence cut in three ways", "code_prompt_hide": "Hide one sentence cut in three ways"}
output = "A man's dark-blue T-shirt isn't dry."
reference = "A man's dark-blue T-shirt is not dry."
split = lambda line: " ".join(re.findall(r"\w+|[^\w\s]", line))
for name, cut, tokenizer_name in (
    ("spaces", str, "none"),
    ("13a", str, "13a"),
    ("split", split, "none"),
):
    metric = BLEU(tokenize=tokenizer_name)
    found = metric.corpus_score([cut(output)], [[cut(reference)]])
    words_right = f"{found.counts[0]} of {found.totals[0]} words"
    print(f"{name:6} {found.score:.1f} {words_right}:")
    print("      ", metric.tokenizer(cut(output)))


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show BLEU nearly as the paper counted it", "code_prompt_hide": "Hide BLEU nearly as the paper counted it"}
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


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show what it makes of the sentence", "code_prompt_hide": "Hide what it makes of the sentence"}
for line in (output, "Ein „dunkelblaues“ T-Shirt."):
    print(split_compounds(line))
print(f"{score([output], [reference]).bleu:.1f}", end=" is now ")
print(f"{compound_split_bleu([output], [reference]):.1f}")

# %% [markdown]
# ## Second reading: more about differences
#
# ### What does half a point of BLEU mean?
#
# :::{admonition} Where half a point comes from
# :class: dropdown
# A small relative change of BLEU is the mean of the relative changes of the four precisions, plus the change of the penalty. At our 41.2 BLEU, half a point is 1.2%. It can come from
#
# - every precision 1.2% higher: where 741 of 1,000 words were right, now 750 are, with the runs around them;
# - $p_4$ alone 4.9% higher, the others as before: better order, and no better words;
# - the penalty alone: output at 97.6% of the length instead of 96.5%, so 11 words more in 1,000.
#
# The last is a warning. Much of what a tuned length penalty gains is length: of the 0.9 points of the larger $\alpha$, 0.7 come from the brevity penalty. In whole captions: let us make some of them perfect, in random order, until the score is half a point up. Six in a thousand are enough, so if you read 20 translations, you won't see it. It needn't be nothing, since ten such steps make five points. But before half a point is called progress, it takes the same signature, the same search, a paired interval without zero, and more than one training run on each side.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show how many captions make half a point", "code_prompt_hide": "Hide how many captions make half a point"}
perfect = all_counts(references, references)
order = np.random.default_rng(3).permutation(len(counts))
improved = counts.sum(axis=0) + (perfect - counts)[order].cumsum(axis=0)
needed = next(n for n, row in enumerate(improved, 1) if bleu_of(row) > honest + 0.5)
print(f"{needed} of {len(counts):,} captions made perfect gain half a point")

# %% tags=["remove-cell"]
if CHECKING:
    assert 4 <= needed <= 8
    brevity = [
        math.exp(1 - 1 / (rows[:, 8].sum() / rows[:, 9].sum()))
        for rows in (counts, longer)
    ]
    assert (
        0.65 < honest * (brevity[1] / brevity[0] - 1) < 0.85
    )  # what length alone gains
    precision_1 = counts[:, 0].sum() / counts[:, 4].sum()
    assert abs(precision_1 - 0.741) < 0.006
    assert abs(counts[:, 8].sum() / counts[:, 9].sum() - 0.965) < 0.004

# %% [markdown]
# ### The p-value, ours and sacreBLEU's
#
# :::{admonition} How sure is "surely better"?
# :class: dropdown
# A **p-value** answers another question than the interval: how often would a difference at least as large turn up if the two systems were equally good? To imitate equally good systems, the resampled differences are moved so that their mean is zero; their spread stays, and the spread is what chance can do. It isn't the probability that the systems are equal, and it says nothing about how large the difference is. One is added above and below, because a thousand draws can't show that something never happens.
#
# For your own comparisons, take sacreBLEU's `PairedTest`; on the command line, give `sacrebleu` two outputs and `--paired-bs`. Its p-values aren't quite ours. Following an older script of Moses, it takes the size of each resampled difference, without its sign, before it moves the mean to zero, so small differences look surer than they are. We take the beam of 4 and greedy search once more, and compute a p-value from our draws in its way, too. Compare p-values only within one tool, and look at the interval first.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show both p-values", "code_prompt_hide": "Hide both p-values"}
difference, low, high = paired_bootstrap(counts, greedy)
ahead = resampled(counts) - resampled(greedy)
as_large = np.sum(np.abs(ahead - ahead.mean()) >= abs(difference))
ours = (1 + as_large) / (1 + len(ahead))

by_greedy = translate(model, tokenizer, sources, beam=1)
systems = [("greedy", by_greedy), ("beam 4", outputs)]
metrics = {"BLEU": BLEU(references=[references])}
_, results = PairedTest(systems, metrics, None, "bs", 1000)()
theirs = results["BLEU"][1].p_value
their_way = np.mean(abs(ahead) - abs(ahead).mean() > abs(difference))
print(f"beam 4 - greedy: {difference:+.2f}, 95% from {low:+.2f} to {high:+.2f}")
print(f"p-value: ours {ours:.2f}, sacreBLEU's {theirs:.2f}", end=", ")
print(f"our draws in its way {their_way:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert low < 0 < difference < 0.3
    assert abs(theirs - their_way) < 0.06 and theirs < ours - 0.1

# %% [markdown]
# ### What BLEU does a person get?
#
# :::{admonition} A person scored against another person
# :class: dropdown
# Tatoeba, from which the everyday models learned, has several translations of many sentences, all written by people. So a person can be scored against another, and the model on the same sentences. The models' [cards](https://github.com/annotated-transformer/annotated-transformer/blob/main/annotated_transformer/pretrained/everyday-en-de/README.md) hold the numbers.
#
# On the left, one of several translations of a sentence is the reference, and two others are scored against it: one by a person and the model's (239 sentences into English, 598 into German). The person gets 41 into English and 40 into German, for translations that are all right. The model into English gets more, most likely because it has learned this corpus's favorite wordings. So a BLEU above a person's doesn't make a better translator.
#
# On the right are the model's translations of all test sentences, against one reference and against all that Tatoeba knows. Against one, the model into German looks more than ten points worse than its sister. Against all, part of that is gone: English *you* is *du*, *ihr* or *Sie*, and one reference accepts one of them. A score belongs to its references. Between languages it can't be compared at all.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the scores of people and models", "code_prompt_hide": "Hide the scores of people and models"}
trained = files("annotated_transformer") / "pretrained"
logged = {}
for direction in ("de-en", "en-de"):
    path = trained / f"everyday-{direction}" / "evaluation.jsonl"
    by_set = logged[direction] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["beam"] in (0, 4) and record["alpha"] == 0.6:
            by_set[record["set"]] = record["bleu"]

print("       person   model  |    one     all")
for direction, by_set in logged.items():
    print(f"{direction} {by_set['person']:7.1f} {by_set['several']:7.1f}", end="  | ")
    print(f"{by_set['tatoeba']:6.1f} {by_set['every']:7.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    for by_set in logged.values():
        assert 39 < by_set["person"] < 41 and by_set["every"] > by_set["tatoeba"] + 2
    assert logged["de-en"]["tatoeba"] > logged["en-de"]["tatoeba"] + 10

# %% [markdown]
# ## Second reading: the outputs themselves
#
# ### Which sentences are hard
#
# :::{admonition} Up to 19 words, length does not matter
# :class: dropdown
# Length is the first suspect. With each word there is one more chance to go astray, and what went wrong stays in view of all later words. We sort the captions by the length of the source and score five groups. Up to 19 words the intervals overlap. Captions of 20 words or more have 30.0, with an interval from 25 to 34, which doesn't reach the one before it, 38 to 46. Only 53 are that long, 30 of them with a word that no training caption has.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show BLEU by length", "code_prompt_hide": "Hide BLEU by length", "figure": {"name": "fig-length-quality", "caption": "Are long sentences harder? BLEU for captions grouped by the number of words of the source, with intervals that cover 95% of 300 resamples. The number of captions is below each point. The last interval lies below all others, which overlap."}}
groups = [(1, 9), (10, 12), (13, 15), (16, 19), (20, 99)]
source_words = np.array([len(words(line)) for line in sources])
records = []
for first_word, last_word in groups:
    member = (first_word <= source_words) & (source_words <= last_word)
    if not member.any():
        continue
    low, high = np.percentile(resampled(counts[member], 300, seed=1), [2.5, 97.5])
    records.append(
        {
            "group": f"{first_word}-{last_word}" if last_word < 99 else "20 or more",
            "bleu": round(bleu_of(counts[member].sum(axis=0)), 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "count": f"{member.sum()}",
        }
    )
base = alt.Chart(alt.Data(values=records)).encode(
    x=alt.X(
        "group:N", sort=None, title="words of the source", axis=alt.Axis(labelAngle=0)
    )
)
y = alt.Y("bleu:Q", title="BLEU", scale=alt.Scale(domain=[0, 60]))
chart = alt.layer(
    base.mark_rule(strokeWidth=2, color=SKY).encode(
        alt.Y("low:Q", title="BLEU"), y2="high:Q"
    ),
    base.mark_point(filled=True, opacity=1, size=90, color=SKY).encode(y),
    base.mark_text(align="left", dx=9).encode(y, text=alt.Text("bleu:Q", format=".1f")),
    base.mark_text(fontSize=12).encode(y=alt.value(212), text="count:N"),
)
show(
    chart.properties(width=295, height=220),
    alt="BLEU is between 41 and 44 for captions of up to 19 words and 30 for longer ones.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert records[-1]["high"] < min(r["low"] for r in records[:-1])
    assert max(r["low"] for r in records[:-1]) < min(r["high"] for r in records[:-1])

# %% [markdown]
# ### Reading what it wrote
#
# :::{admonition} Every hundredth caption, the eight worst, and what goes wrong
# :class: dropdown
# The first table has every hundredth caption, so that we can't pick the nice ones. Read them against the German, not against the reference. *Is riding a bike* is as good as *on a bicycle pedals*. But the *basket* he rides through is an archway, and the *special event* of the men in orange is a social one; both read well and are false. *Throws an a canal* has lost its branch and shows it. Most errors don't: fluency comes first and easily, and it hides them.
#
# The second table is the other end, the eight with the lowest chrF. A low score has two kinds of reasons. *Children fighting for the ball* is a good translation of its German, and *Two actors play a fight in front of a crowd* nearly one; the people who wrote the references chose other words, or saw more in the photo than the German says. That is a failure of the score. The others are failures of the model, and some kinds can be counted roughly, without reading, which is the third table (no row: none).
#
# A word that no training caption has is its most telling row: a quarter of the captions have one, and score 52 chrF, the others 65. The tokenizer can spell it, so no `<unk>` appears. But subwords that it has hardly seen together mean little to the model, and it puts something that fits the rest of the picture. Such counts are crude (*a young woman* for *a girl* is counted as a change of person). They say where to look, not how bad it is.
# :::


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


# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show every hundredth caption", "code_prompt_hide": "Hide every hundredth caption"}
by_chrf = [CHRF().sentence_score(o, [r]).score for o, r in zip(outputs, references)]
head = ("chrF", "German", "the model", "the reference")


def lines_of(chosen):
    return [
        (f"{by_chrf[i]:.0f}", sources[i], outputs[i], references[i]) for i in chosen
    ]


table(head, lines_of(range(0, len(outputs), 100)))

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show the eight with the lowest chrF", "code_prompt_hide": "Hide the eight with the lowest chrF"}
worst = sorted(range(len(outputs)), key=by_chrf.__getitem__)[:8]
table(head, lines_of(worst))

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show what went wrong, counted", "code_prompt_hide": "Hide what went wrong, counted"}
NUMBERS = {*words("two three four five six seven eight nine ten several")}
COLORS = {*words("black white red blue green yellow brown orange pink purple")}
PEOPLE = {*words("man men woman women boy boys girl girls child children")}
known = {word for pair in multi30k("train") for word in words(pair.source)}


def repeats(line):
    return max(ngrams(line, 2).values(), default=0)


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


found = {}
for i, line in enumerate(zip(sources, outputs, references)):
    for kind in kinds(*line):
        found.setdefault(kind, []).append(by_chrf[i])
rows = [
    (kind, len(scores), f"{np.mean(scores):.0f}")
    for kind, scores in sorted(found.items(), key=lambda f: -len(f[1]))
]
table(
    ("what happened", f"captions of {len(outputs):,}", "their mean chrF"),
    [*rows, ("all captions", len(outputs), f"{np.mean(by_chrf):.0f}")],
)

# %% tags=["remove-cell"]
if CHECKING:
    assert np.mean([by_chrf[i] for i in worst]) < np.mean(by_chrf) / 1.5
    unseen = found["the German has a word that no training caption has"]
    assert 230 < len(unseen) < 260 and 9 < np.mean(by_chrf) - np.mean(unseen) < 11.5

# %% [markdown]
# ### What it was not trained for
#
# :::{admonition} Questions, *I*, and *not*, to a model that has read captions
# :class: dropdown
# A test set from the same source answers a narrow question: how well does it do more of the same? Here are sentences from elsewhere, with one caption as a control at the end. Most of what comes out has the shape of a caption. There are no questions and no *I*, and a negation gives way to a book lying on a table. Captions hardly contain these things, so few examples taught the model what they do, and it doesn't say that it is lost.
#
# This isn't a flaw of the architecture, as the book's everyday model shows in the last column. It has the same parts and has read everyday sentences as well. A test score is a statement about a model *and* about the sentences it was tested on.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show both models on other sentences", "code_prompt_hide": "Hide both models on other sentences"}
elsewhere = {
    "Wo ist der nächste Bahnhof?": "Where is the nearest train station?",
    "Ich habe gestern meinen Schlüssel verloren.": "I lost my key yesterday.",
    "Die Inflation ist im März auf zwei Prozent gefallen.": "Inflation fell to two percent in March.",
    "Das Buch liegt nicht auf dem Tisch.": "The book is not on the table.",
    "Wir kämen gern, wenn wir könnten.": "We would love to come if we could.",
    "Zwei Hunde spielen im Schnee.": "Two dogs are playing in the snow.",
}
strange = translate(model, tokenizer, list(elsewhere))
everyday = translate(*load_pretrained(), list(elsewhere))
head = ("German", "it should say", "the captions model", "the everyday model")
table(head, list(zip(elsewhere, elsewhere.values(), strange, everyday)))
away = score(strange[:-1], list(elsewhere.values())[:-1])
print(f"chrF {away.chrf:.0f} on the first five, {scores.chrf:.0f} on the test captions")

# %% tags=["remove-cell"]
if CHECKING:
    assert away.chrf < scores.chrf
    assert score(everyday[:-1], list(elsewhere.values())[:-1]).chrf > away.chrf + 20

# %% [markdown]
# ## Questions that come up
#
# ### My BLEU is 0, or 100. What is wrong?
#
# :::{admonition} Look at the text first
# :class: dropdown
# At 0, look at the text: ids instead of words, one string instead of a list, or a test set so small that no 4-gram matches. At 100, look at the shape of the references, and whether they were scored against themselves.
# :::
#
# ### Can BLEU be the loss?
#
# :::{admonition} Not for gradient descent
# :class: dropdown
# It counts, so a small change of the weights changes it not at all or by a jump, and there is no gradient to follow. Reinforcement learning can take such a score as a reward, as {cite:t}`wu2016google` did at the end of training; the usual way is to train by cross-entropy and choose checkpoints by BLEU.
# :::
#
# ### May the test captions choose the beam or the checkpoint?
#
# :::{admonition} No
# :class: dropdown
# Try twenty settings on the test set, report the best, and you have fitted the test set a little. Choose on the validation captions, then score the test captions once. (Some pages of this book, this one too, score several settings on them; that is harmless as long as nothing is chosen that way.)
# :::

# %% [markdown]
# ## Sources
#
# BLEU is from {cite:t}`papineni2002bleu`; sacreBLEU, its signature, and the case against comparing scores of unknown origin are from {cite:t}`post2018call`. chrF was proposed by {cite:t}`popovic2015chrf`, bootstrap tests for translation by {cite:t}`koehn2004statistical`, COMET by {cite:t}`rei2020comet`; the study of experts and their marks is {cite:t}`freitag2021experts`. The captions are from {cite:t}`elliott2016multi30k`.
