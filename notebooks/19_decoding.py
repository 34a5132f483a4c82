# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Decoding
#
# This chapter turns a trained model into a translator, which chooses one word after another: by greedy search, by sampling, or by beam search with a length penalty (section 6.1 of the paper).
#
# A trained model doesn't translate. Given a German sentence and the English words so far, it returns a probability for every word that could come next. Something else has to choose one, append it, and ask again. The obvious choice is the model's own favorite. We try it on *Der Mann ist auf dem Sofa eingeschlafen*: the man has fallen asleep on the couch. The model is the captions model that comes with the package, which has about 6,000 tokens and [has trained for longer](18_training.ipynb#the-captions-model) than the one of the previous chapter.

# %% tags=["export", "hide-input"]
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from annotated_transformer.attention import Mask
from annotated_transformer.layers import DecoderLayer, LayerNorm
from annotated_transformer.masks import BOS, EOS, PAD, padding_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.transformer import Transformer, evaluating

# %% tags=["hide-input"]
import math
from dataclasses import replace
from functools import lru_cache
from heapq import nlargest
from itertools import product
from random import Random
from time import process_time

import altair as alt
import numpy as np
from sacrebleu import CHRF
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import TransformerConfig, check, load_pretrained
from annotated_transformer import preset, translate
from annotated_transformer.batching import pad
from annotated_transformer.own_data import multi30k
from annotated_transformer.transformer import greedy_decode
from benchmarks.common import read_log
from book.figures import AMBER, INK, PAPER, PLUM, SKY, curves, show, show_steps


def legend_above(chart):
    for channel in (chart.encoding.color, chart.encoding.strokeDash):
        channel.legend = alt.Legend(orient="top", columns=2)
    return chart


# %%
model, tokenizer = load_pretrained("captions-de-en")


def model_for(german):
    source = torch.tensor([[*tokenizer.encode(german), EOS]])

    def next_words(written):
        target = torch.tensor([[BOS, *written]])
        with evaluating(model):
            shares = model(source, target)[0, -1].softmax(dim=-1)
        shares[[PAD, BOS]] = 0  # neither is ever a next word
        return {word: p for word, p in enumerate(shares.tolist()) if p > 0}

    return next_words


caption = "Der Mann ist auf dem Sofa eingeschlafen."
next_words = model_for(caption)

# %% [markdown]
# `next_words` takes the tokens written so far and returns a dictionary: every possible next token, as a number of the vocabulary, with its probability. (Most tokens are whole words, and we call all of them words.) Until the section on the cache, we use the model only through this function. **Greedy search** takes the most probable word each time:


# %% tags=["nbval-ignore-output"]
def greedy(next_words, limit=20):
    written = []
    while EOS not in written and len(written) < limit:
        words = next_words(written)
        written.append(max(words, key=words.get))
    return written


print(tokenizer.decode(greedy(next_words)))

# %% tags=["remove-cell"]
if CHECKING:
    assert tokenizer.decode(greedy(next_words)) == "The man is on the couch is asleep."

# %% [markdown]
# Each word was the best on offer, and the sentence is broken. At which word did it go wrong? Decide before you look at the figure.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-fork", "caption": "Where does greedy search go wrong? Two ways to write the sentence, and the probability of each word after the words above it. The titles give the product of the column. Left: greedy search. Right: another sentence."}}


def column(title, ids):
    rows, product = [], 1.0
    for n, word in enumerate(ids):
        p = next_words(ids[:n])[word]
        product *= p
        name = "</s>" if word == EOS else tokenizer.decode([word]).strip()
        rows.append({"word": f"{n + 1}. {name}", "p": round(p, 2)})
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("p:Q", axis=None, scale=alt.Scale(domain=[0, 1.3])),
        y=alt.Y("word:N", sort=None, title=None),
    )
    bars = base.mark_bar(fill=SKY, height=15)
    numbers = base.mark_text(align="left", dx=5).encode(
        text=alt.Text("p:Q", format=".2f")
    )
    heading = f"{title}: {product:.3f}"
    return (bars + numbers).properties(width=90, height=23 * len(rows), title=heading)


(beamed,) = translate(model, tokenizer, [caption])
another = [*tokenizer.encode(beamed), EOS]
show(
    alt.hconcat(
        column("greedy", greedy(next_words)), column("another", another), spacing=10
    ),
    alt="Greedy search writes on with 0.62 as its fourth word and later has to accept 0.14 and 0.24; together 0.010. The other sentence accepts 0.09 for asleep at once, then nothing below 0.76; together 0.044.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert beamed == "The man is asleep on the couch."

# %% [markdown]
# ## What greedy search misses
#
# After *The man is*, the model gives *on* 0.62 and *asleep* 0.09. Greedy search takes *on* and is now committed to the order of the German. When *asleep* is due, there is no good place left for it: the best next word has 0.14. The other sentence accepts the 0.09 and has an easy way from there.
#
# What counts is the probability of the whole sentence $Y$ given the source $X$, the product of the bars. As a 32-bit number, the product of fifty words at 0.1 is zero, so we add logarithms, which keep the order:
#
# $$
# \log P(Y \mid X) = \sum_{t=1}^{n} \log P(y_t \mid y_1, \dots, y_{t-1}, X)
# $$ (eq-log-probability)
#
# The last word $y_n$ is `</s>`, because stopping has its probability like any other choice. Greedy search makes each term as large as possible at the moment and has no way back. The sentence that it never saw is four times as probable: its log-probability is $-3.13$, against $-4.59$.
#
# Trying every sentence is out of the question. With a vocabulary of 6,000, nine places hold $6000^9$, about $10^{34}$ sequences. Two ways are open. We can follow several beginnings at a time, which is beam search. Or we can stop asking for *the* best sentence and draw one, which changes a single line of the loop.
#
# ## Sampling: drawing words at random
#
# In **sampling**, a word is drawn by its probability: *on* in about 62 of 100 draws, *asleep* in about nine. Nearly every run writes another sentence. That is what you want when you need many, or want to see what the model thinks possible, and it is how chat programs write.
#
# Drawn as they are, words go wrong now and then, because thousands of improbable words add up. If they have 10% at each place, a sentence of 20 words escapes them with probability $0.9^{20} = 0.12$. Three knobs change the shares before a word is drawn:
#
# - The **temperature** $\tau$ raises each probability to the power $1/\tau$. (To divide the logits by $\tau$ is the same.) Below 1 the probable words gain, above 1 the improbable ones; towards 0 sampling becomes greedy.
# - **Top-k** keeps the $k$ most probable words.
# - **Top-p**, or nucleus sampling {cite:p}`holtzman2020curious`, keeps the most probable words that together reach a share of $p$: few where the model is sure, many where it isn't.


# %%
def sharpen(words, temperature=1.0, top_k=None, top_p=1.0):
    ranked = sorted(words, key=words.get, reverse=True)[:top_k]
    weights = {word: words[word] ** (1 / temperature) for word in ranked}
    whole = sum(weights.values())
    kept = {}
    before = 0.0
    for word, weight in weights.items():
        if before < top_p:
            kept[word] = weight
        before += weight / whole
    return {word: weight / sum(kept.values()) for word, weight in kept.items()}


made_up = {"on": 0.5, "asleep": 0.3, "in": 0.15, "at": 0.05}
trials = [{}, {"temperature": 0.5}, {"temperature": 2}, {"top_k": 2}, {"top_p": 0.7}]
for knobs in trials:
    shares = sharpen(made_up, **knobs)
    print(f"{knobs!s:20}", {word: round(p, 3) for word, p in shares.items()})

# %% [markdown]
# The four probabilities are made up, so that you can check the output by hand. With $\tau = 0.5$ they are squared, to 0.25, 0.09, 0.0225 and 0.0025, and divided by their sum, 0.365. With top-p 0.7 the first word isn't enough, the second brings the sum to 0.8, and these two stay. The loop is the greedy one, with a draw instead of the maximum:


# %% tags=["nbval-ignore-output"]
def sample_words(next_words, random, limit=20, **knobs):
    written = []
    while EOS not in written and len(written) < limit:
        words = sharpen(next_words(written), **knobs)
        written += random.choices([*words], [*words.values()])
    return written


random = Random(0)
for temperature in (0.5, 0.5, 1, 1, 2, 2):
    words = sample_words(next_words, random, limit=11, temperature=temperature)
    print(f"temperature {temperature:3}: {tokenizer.decode(words)}")

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-temperature", "caption": "What does the temperature change? The ten most probable tokens after *The man is* and their shares at three temperatures; *f*, *bl* and *st* begin longer words. Filled bars are what top-p 0.9 keeps, outlined ones it drops. At 1 and at 2 all ten stay, with many behind them. Recorded from the trained model."}}
after = next_words(greedy(next_words)[:3])
ranked = nlargest(10, after, key=after.get)


def bars(temperature):
    shares = sharpen(after, temperature)
    kept = sharpen(after, temperature, top_p=0.9)
    rows = []
    for number, word in enumerate(ranked, 1):
        name = f"{number}. {tokenizer.decode([word]).strip() or '·'}"
        share = round(shares[word], 3)
        rows.append({"word": name, "share": share, "kept": word in kept})
    fill = alt.condition("datum.kept", alt.value(SKY), alt.value(PAPER))
    ticks = alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1])
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("share:Q", title="share", scale=alt.Scale(domain=[0, 1.1]), axis=ticks),
        y=alt.Y("word:N", title=None, sort=None),
    )
    drawn = base.mark_bar(stroke=SKY, strokeWidth=1.2).encode(fill=fill)
    numbers = base.mark_text(align="left", dx=5).encode(text="share:Q")
    return (drawn + numbers).properties(width=255, height=230)


pictures = {}
for temperature in (0.5, 1, 2):
    share = sharpen(after, temperature)[ranked[0]]
    finding = f"{tokenizer.decode(ranked[:1]).strip()} has {share:.2f}"
    pictures[f"{temperature}"] = (
        bars(temperature),
        f"At temperature {temperature} {finding}, the others less.",
    )
show_steps(pictures, "Temperature", start=1)

# %% tags=["remove-cell"]
if CHECKING:
    widths = [
        len(sharpen(after, temperature, top_p=0.9)) for temperature in (0.5, 1, 2)
    ]
    assert [round(p, 2) for p in nlargest(2, after.values())] == [0.62, 0.09]
    assert widths[0] == 1 and 50 < widths[1] < 80 and 4200 < widths[2] < 4400

# %% [markdown]
# :::{admonition} How top-p and the temperature work together
# :class: dropdown
# After *The man is*, top-p 0.9 keeps one word at a temperature of 0.5, about 65 at 1, and some 4,300 of the 6,000 at 2. So it can't rescue a high temperature; top-k would still cut the improbable words. Draws also show how sure a model is: if ten of them say the same in other words, it is sure of the meaning, and if they disagree about who does what, it is guessing.
# :::
#
# ## Beam search
#
# Greedy search follows one beginning and exhaustive search all of them. **Beam search** follows the best $k$. A **hypothesis** is the beginning of a translation with its log-probability, and the **beam** is the set of hypotheses that are alive. Each round *expands* every hypothesis by every next word, *scores* the results by adding a logarithm, and *prunes* them to the best $k$:


# %%
def log_probability(hypothesis):
    _, total = hypothesis
    return total


def search(next_words, beam, limit, end=EOS):
    running = [((), 0.0)]
    finished = []
    for _ in range(limit):
        grown = []
        for words, total in running:
            for word, p in next_words(words).items():
                grown.append(((*words, word), total + math.log(p)))
        # The finished keep their places in the beam
        best = nlargest(beam - len(finished), grown, key=log_probability)
        finished += [(words, total) for words, total in best if words[-1] == end]
        running = [(words, total) for words, total in best if words[-1] != end]
    return sorted(finished + running, key=log_probability, reverse=True)


# %% [markdown]
# One round by hand, with a beam of 2. Three words are written, and *The man is* stands at $-0.23$, *The man has* at $-3.28$. Of their 12,000 continuations, these are the best four (computed exactly, and rounded at the end):
#
# | continuation | log-probability | |
# |---|---|---|
# | The man is on | $-0.23 + \ln 0.62 = -0.70$ | kept |
# | The man is asleep | $-0.23 + \ln 0.094 = -2.59$ | kept |
# | The man is in | $-0.23 + \ln 0.052 = -3.18$ | pruned |
# | The man has fallen | $-3.28 + \ln 0.70 = -3.64$ | pruned |
#
# *Asleep* is far behind, and alive. Will it ever catch up? The figure has the whole search, with a beam of 3.

# %% tags=["remove-cell"]
if CHECKING:
    start = tokenizer.encode("The man is")
    grown = {}
    for words, total in search(next_words, 2, limit=3):
        for word, p in next_words(words).items():
            grown[tokenizer.decode([*words, word])] = round(total + math.log(p), 2)
    assert nlargest(4, grown.items(), key=lambda pair: pair[1]) == [
        ("The man is on", -0.7),
        ("The man is asleep", -2.59),
        ("The man is in", -3.18),
        ("The man has fallen", -3.64),
    ]

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-tree", "caption": "Which sentences does a beam of 3 consider? Each row is a step, sorted by the log-probability of all words so far. Lines lead from a hypothesis to its continuations; three are kept, the others (gray, dashed) are pruned, and only the first of those are drawn. A finished one (purple) holds its place. The thick path wins. Recorded from the trained model."}}
ask = lru_cache(next_words)
rounds = len(another)
best_at = {n: search(ask, 3, limit=n) for n in range(rounds + 1)}
winner = max(best_at[rounds], key=lambda h: h[1] / ((5 + len(h[0])) / 6) ** 0.6)[0]
columns, nodes = {(): 2}, []
for step in range(1, len(winner) + 1):
    kept = [words for words, _ in best_at[step]]
    grown = [
        ((*words, word), total + math.log(p))
        for words, total in best_at[step - 1]
        if EOS not in words
        for word, p in ask(words).items()
    ]
    drawn = nlargest(5, grown, key=log_probability)
    for number, (words, total) in enumerate(drawn):
        done = words[-1] == EOS
        node = {
            "step": step,
            "above": step - 1,
            "column": number,
            "from": columns[words[:-1]],
        }
        node["word"] = "</s>" if done else tokenizer.decode([words[-1]]).strip() or "·"
        node["total"] = f"{total:.2f}".replace("-", "−")
        node["fate"] = "pruned"
        if words in kept:
            node["fate"] = "finished" if done else "kept"
        node["wins"] = winner[:step] == words
        nodes.append(node)
    columns = {words: number for number, (words, _) in enumerate(drawn)}
steps = nodes[-1]["step"]


def tree(until, result=False):
    seen = [
        n
        for n in nodes
        if n["step"] == until
        or (n["step"] < until and (result or n["fate"] != "pruned"))
    ]
    base = alt.Chart(alt.Data(values=seen))
    x = alt.X("column:Q", axis=None, scale=alt.Scale(domain=[-0.5, 4.5]))
    start = alt.X("from:Q", axis=None)
    ticks = alt.Axis(
        values=list(range(1, steps + 1)), format="d", domain=False, ticks=False
    )
    scale = alt.Scale(domain=[0, steps + 0.5], reverse=True, nice=False)
    y = alt.Y("step:Q", title="step", axis=ticks, scale=scale)
    width = alt.condition("datum.wins", alt.value(4 if result else 1.5), alt.value(1.5))
    looks = {
        "pruned": (INK, [3, 3], 0.6),
        "kept": (INK, [1, 0], 1),
        "finished": (PLUM, [1, 0], 1),
    }
    lines, boxes = [], []
    for fate in dict.fromkeys(n["fate"] for n in seen):
        color, dash, opacity = looks[fate]
        part = base.transform_filter(f"datum.fate == '{fate}'")
        line = part.mark_rule(color=color, opacity=0.6 * opacity, strokeDash=dash)
        lines.append(
            line.encode(
                start, y="above:Q", x2="column:Q", y2="step:Q", strokeWidth=width
            )
        )
        shape = {
            "shape": "M-1,-.5L1,-.5L1,.5L-1,.5Z",
            "size": 3600,
            "strokeOpacity": opacity,
        }
        box = part.mark_point(
            fill=PAPER, stroke=color, strokeDash=dash, opacity=1, **shape
        )
        boxes.append(box.encode(x, y, strokeWidth=width))
        text = {"color": color, "opacity": opacity}
        boxes.append(part.mark_text(dy=-6, **text).encode(x, y, text="word:N"))
        boxes.append(
            part.mark_text(dy=9, fontSize=11, **text).encode(x, y, text="total:N")
        )
    return alt.layer(*lines, *boxes).properties(width=310, height=56 * steps)


pictures = {
    f"{n}": (tree(n), f"Continuations at step {n}; the pruned ones are gray.")
    for n in range(1, steps + 1)
}
finding = f"{tokenizer.decode(winner)} It wins at step {steps}."
pictures["all"] = (tree(steps, result=True), finding)
show_steps(pictures, "Step", start=steps)

# %% tags=["remove-cell"]
if CHECKING:
    assert tokenizer.decode(winner) == beamed and steps == 9
    assert [(n["step"], n["fate"]) for n in nodes if n["word"] == "fallen"] == [
        (4, "pruned")
    ]
    path = [n["column"] for n in nodes if n["wins"]]
    assert path == [0, 0, 0, 1, 1, 1, 0, 0, 0]

# %% [markdown]
# Three rounds later it is in front. *The man is on the couch* has to go on with a word at 0.14 and falls to $-2.84$; *The man is asleep on the couch* stands at $-2.82$.

# %% tags=["nbval-ignore-output"]
for beam in (1, 2, 3):
    words, total = search(next_words, beam, limit=20)[0]
    print(f"beam {beam}: {total:.2f}  {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(total + 3.13) < 0.01
    totals = {n["word"]: n["total"] for n in nodes if n["step"] == 7}
    assert (totals["couch"], totals["is"]) == ("−2.82", "−2.84")

# %% [markdown]
# A beam of 1 is greedy search. A second hypothesis is enough for this sentence, and the price is a second question to the model at each step. Beam search promises nothing, though. The reference's own words, *has fallen*, are pruned in the fourth round, because *has* came with 0.04. Only a beam as wide as the number of all sentences is sure to find the best.
#
# ### A hypothesis that ends
#
# A hypothesis that has written `</s>` must not go on growing: nothing was ever trained to follow `</s>`. In our search it stops and still takes up one of the $k$ places, so that the others get `beam - len(finished)`. The work shrinks as places fill, and the search ends by itself. The authors' search [frees the place](../book/departures.md#decoding) and keeps $k$ hypotheses running until a rule says stop. Exercise 6 asks whether that matters.
#
# ## Why do searches prefer short sentences?
#
# This is what a beam of 4 finds for *Zwei große Hunde tollen auf einem grasbewachsenen Feld*, two large dogs frolic in a grassy field:

# %% tags=["nbval-ignore-output"]
dogs = model_for("Zwei große Hunde tollen auf einem grasbewachsenen Feld.")
candidates = search(dogs, beam=4, limit=20)
for words, total in candidates:
    print(f"{total:.2f}  length {len(words)}  {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    (first_words, first), (second_words, second), *_ = candidates
    assert (len(first_words), len(second_words)) == (10, 11)
    assert "wrestle" in tokenizer.decode(second_words)
    assert abs(first + 3.925) < 0.004 and abs(second + 4.001) < 0.004

# %% [markdown]
# The winner has thrown the verb away. The second keeps one, *wrestle*, and loses by 0.08; it has one token more.
#
# Every word multiplies the probability by a number below 1. If a model is equally sure of each word, say 0.5, then 5 words have a log-probability of $5 \ln 0.5 = -3.5$ and 10 words $-6.9$. The longer sentence is 32 times less probable although no word in it is worse.
#
# The paper follows Google's earlier system GNMT {cite:p}`wu2016google` and divides the log-probability by a **length penalty**:
#
# $$
# \operatorname{score}(Y) = \frac{\log P(Y \mid X)}{\operatorname{lp}(n)}, \qquad
# \operatorname{lp}(n) = \left(\frac{5 + n}{6}\right)^{\alpha}
# $$ (eq-length-penalty)
#
# It takes $\alpha = 0.6$ for translation and 0.3 for parsing, and doesn't say what $n$ counts. Ours counts the tokens and the `</s>`, as the authors' code does. Whom does the penalty help, the short or the long? (You can also write it yourself before you read on: exercise 1.)


# %% tags=["export"]
def length_penalty(length: float, alpha: float) -> float:
    """Divide a log-probability by this; length counts the tokens and `</s>` (section 6.1)."""
    return float(((5 + length) / 6) ** alpha)


# %% tags=["nbval-ignore-output"]
def best_of(candidates, alpha):
    return max(candidates, key=lambda h: h[1] / length_penalty(len(h[0]), alpha))


for alpha in (0.0, 0.6):
    words, total = best_of(candidates, alpha)
    score = total / length_penalty(len(words), alpha)
    print(f"alpha {alpha}: score {score:.2f}  {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(first / length_penalty(10, 0.6) + 2.265) < 0.004
    assert abs(second / length_penalty(11, 0.6) + 2.221) < 0.004
    assert (words, total) == (second_words, second)

# %% [markdown]
# The name misleads. Log-probabilities are negative, so dividing by a larger number brings a score closer to zero, which is *up*: the penalty helps the long. By hand: $\operatorname{lp}(10) = (15/6)^{0.6} = 1.733$ and $-3.92 / 1.733 = -2.26$; the next has $-4.00$ and length 11, and $-4.00 / 1.801 = -2.22$ wins.
#
# ### Where the penalty acts
#
# All hypotheses of one step are equally long and would be divided by the same number, so $\alpha$ can't change which of them stay in the beam. It only decides which of the finished ones wins, and when the search may stop.
#
# ### The length limit
#
# Nothing forces a model to write `</s>`, and one that is lost may repeat three words forever. The paper's limit is the length of the input plus 50.
#
# ## When a search may stop
#
# Our `search` asks the model until finished hypotheses take all places, or until the limit. Often the best one was found long before, and poor ones run on. To stop at the *first* that finishes is tempting and wrong: one that finishes later may have the better score, as we have just seen. Nor may it stop as soon as the best finished score is above all running ones, because those can still rise: a word of probability 1 adds $\ln 1 = 0$, and the longer sentence is divided by more.
#
# A safe rule asks how far a running hypothesis could still rise if the model were certain of every word up to the length limit. If that leaves all of them below the best finished score, the package's search stops, and the best sentence is the same as without the rule.
#
# :::{admonition} The bound, by hand, and why it holds
# :class: dropdown
# Let $s$ be the log-probability of a running hypothesis and $m$ the length limit. For $\alpha \ge 0$ it never scores more than
#
# $$
# \frac{s}{\operatorname{lp}(m)}
# $$ (eq-bound)
#
# With a limit of 40 and $\alpha = 0.6$, $\operatorname{lp}(40) = 7.5^{0.6} = 3.35$. Let the best finished score be $-1.2$. A running hypothesis at $-3$ may still reach $-3 / 3.35 = -0.90$, so the search goes on. At $-5$ it reaches $-1.49$ at best, and the search stops. The bound is the authors' own; the paper says only that decoding ends early where it can.
#
# Why does it hold?
#
# 1. No probability is above 1, so no logarithm is above 0. However the hypothesis goes on, its final log-probability $s'$ is at most $s$.
# 2. It ends at some length $n \le m$, so $\operatorname{lp}(n) \le \operatorname{lp}(m)$. Since $s'$ is negative, $s' / \operatorname{lp}(n) \le s' / \operatorname{lp}(m) \le s / \operatorname{lp}(m)$.
# :::
#
# ## The KV cache
#
# Our loops ask the model about the whole beginning again for every new word. A sentence of $n$ words sends $1 + 2 + \dots + n = n(n+1)/2$ positions through the decoder, 210 for 20 words, where 20 would do.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-cache", "caption": "What does a step compute? Rows are steps, columns positions. Without a cache (above) a step computes every position up to its own, and the total at the right of a row grows with the square of the length. With a cache (below) it computes one and reuses the keys and values of the others (outlined)."}}


def work(n=8):
    for way, cached in (("without a cache", False), ("with a cache", True)):
        for step, position in product(range(1, n + 1), range(n)):
            if position < step:
                done = step if cached else step * (step + 1) // 2
                fresh = not cached or position == step - 1
                row = {"step": step, "position": position, "done": done, "fresh": fresh}
                yield row | {"way": way}


def grid(way):
    base = alt.Chart(alt.Data(values=[r for r in work() if r["way"] == way]))
    position = alt.X(
        "position:O", title="position", axis=alt.Axis(orient="top", labelAngle=0)
    )
    step = alt.Y("step:O", title="step")
    fill = alt.condition("datum.fresh", alt.value(SKY), alt.value(PAPER))
    cells = base.mark_rect(stroke=SKY, strokeWidth=1.5, width=26, height=15)
    cells = cells.encode(position, step, fill=fill)
    last = base.transform_filter("datum.position == datum.step - 1")
    total = last.mark_text(dx=28, align="left").encode(position, step, text="done:Q")
    return (cells + total).properties(
        width=250, height=160, title=f"{way}: positions computed so far"
    )


show(
    alt.vconcat(grid("without a cache"), grid("with a cache"), spacing=24),
    alt="Two triangles of eight steps. Without a cache all 36 cells are computed; with one, the 8 on the diagonal.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert sum(r["fresh"] for r in work()) == 36 + 8

# %% [markdown]
# Reusing an old result would be wrong if a new word could change it. The [causal mask](04_masks.ipynb) guarantees that no new word does: a position attends to itself and to those before it, in every layer, so what it computes is settled once it is written. We run the decoder over the whole sentence and over its first four tokens alone, and compare the states of these four:

# %% tags=["nbval-ignore-output", "hide-input"]
source = torch.tensor([[*tokenizer.encode(caption), EOS]])
target = torch.tensor([[BOS, *tokenizer.encode("The man is asleep on the couch.")]])
with evaluating(model):
    memory = model.encode(source)
    whole = model.decode(target, memory, source)[:, :4]
    prefix = model.decode(target[:, :4], memory, source)
difference = (whole - prefix).abs().max()
print(f"states up to {whole.abs().max():.1f}, largest difference {difference:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert difference < 1e-5

# %% [markdown]
# What a new word needs from an old one is its **key** and its **value**, in every layer. Kept, they are the **KV cache**. Old queries aren't needed, since only the newest word still asks. A decoder layer attends twice, so it has two caches. One holds the keys and values of the words written so far and grows by one position in each step. The other holds the keys and values of the source and is computed once for each sentence.

# %% tags=["nbval-ignore-output", "hide-input"]
captions = multi30k("val")[:250]
middle = sorted((pair.source for pair in captions), key=len)[100:132]


def without_cache():
    rows = greedy_decode(model, pad([[*tokenizer.encode(t), EOS] for t in middle]))
    return [tokenizer.decode(row) for row in rows]


def with_cache():
    return translate(model, tokenizer, middle, beam=1)


written, speed = [], []
for name, run in {"without a cache": without_cache, "with a cache": with_cache}.items():
    start = process_time()
    written.append(run())
    seconds = process_time() - start
    tokens = sum(len(tokenizer.encode(text)) + 1 for text in written[-1])
    speed.append(tokens / seconds)
    print(f"{name:15} {speed[-1]:6,.0f} tokens per second")

# %% tags=["remove-cell"]
if CHECKING:
    assert speed[1] > 2 * speed[0]
    assert written[0] == written[1]

# %% [markdown]
# This is greedy search, 32 captions at a time, and both write the same words. The longer the sentences, the larger the gain. In beam search the cache has to move along when one hypothesis takes [another's place](#when-hypotheses-change-places). And in training there is nothing to cache: all positions go through in one pass, each computed once.
#
# ## Which one to take
#
# Greedy search is for a quick look and for validation during training, a beam for translations that are read or compared, and sampling for many outputs from one source.
#
# What does the beam buy? On 2,014 captions that the model wasn't trained on, a beam of 4 is 0.6 BLEU ahead of greedy search with $\alpha = 0.6$, and 1.2 with $\alpha = 1.4$. A wider beam adds hardly anything ([the curves](#beam-width-and-alpha), with their intervals, are below).
#
# All three can be watched at work, in the everyday model.
#
# :::{what-if} search
# How does a translation come about? Each row is a step. A box holds a token and the log-probability of all tokens up to it, the best on the left. Boxes with a solid frame are kept, dashed ones are dropped, filled ones have ended, and the thick path leads to the best score, for which the table divides by the length penalty. Change the beam (a beam of 1 is greedy search) or the exponent $\alpha$ of the length penalty, or have the words drawn at random and change temperature and top-p; then the dashed boxes are the likeliest words that weren't drawn.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/19_decoding.html#fig-what-if-search).
# :::
#
# The code of this chapter is a translator. Here it translates captions of the validation set, with `search`, `best_of` and a length limit, some forty lines of plain Python in all:

# %% tags=["nbval-ignore-output"]
lines = [
    "Ein Mann fährt ein altmodisches rotes Rennauto.",
    "Drei kleine Hunde schnüffeln an etwas.",
    "Zwei Mädchen gehen eine Straße entlang.",
    "Ein Mann isst in einem Restaurant zu Mittag.",
]
for line in lines:
    candidates = search(model_for(line), beam=4, limit=30)
    words, _ = best_of(candidates, alpha=0.6)
    print(f"{line}\n    {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    ours = [
        tokenizer.decode(
            best_of(search(model_for(line), beam=4, limit=30), alpha=0.6)[0]
        )
        for line in lines
    ]
    assert ours == translate(model, tokenizer, lines)

# %% [markdown]
# ## What to remember
#
# - The most probable words don't make the most probable sentence. Beam search expands, scores and prunes; it promises nothing.
# - Temperature, top-k and top-p reshape a distribution before a word is drawn.
# - Scores are divided by $((5 + n)/6)^\alpha$, which helps long sentences. The penalty doesn't steer the beam, it chooses among the finished. A search may stop when no running hypothesis can still win.
# - The KV cache works because the causal mask freezes the past. In beam search it moves with its hypothesis.
# - A wider beam finds more probable sentences, and beyond a few hypotheses hardly better ones.
#
# We have counted in BLEU without asking what it counts. A perfect sentence can score 0, and a point more can be chance.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** (★, 10 min). Write `length_penalty(length, alpha)` from {eq}`eq-length-penalty` and hand it to the [checker](E_checker.ipynb#the-parts-it-knows). Then compute by hand: two finished hypotheses have log-probability $-4$ at length 7 and $-4.4$ at length 13. Which wins at $\alpha = 0$, and which at 0.6? ($2^{0.6} = 1.52$, $3^{0.6} = 1.93$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# At 0 the first. At 0.6 the penalties are 2 ** 0.6 and 3 ** 0.6, and the second is ahead.
print(check("length_penalty", lambda length, alpha: ((5 + length) / 6) ** alpha))
short_one, long_one = -4 / length_penalty(7, 0.6), -4.4 / length_penalty(13, 0.6)
print(f"{short_one:.2f} {long_one:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(short_one + 4 / 1.52) < 0.01 and abs(long_one + 4.4 / 1.93) < 0.01

# %% [markdown]
# **2. By hand** (★, 10 min). A model knows the first words *a* (0.5), *the* (0.4) and *one* (0.1). After *a* come *cat* (0.4), *dog* (0.3) and *cow* (0.3), after *the* come *dog* (0.9) and *cat* (0.1), after *one* always *dog*. Which sentence does greedy search return, which one a beam of 2, and which sentence does that beam never look at?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Greedy takes "a" and ends with "a cat", 0.5 * 0.4. A beam of 2 keeps "the", too, and finds
# "the dog", 0.4 * 0.9. It never looks at "one dog", because "one" is pruned at once.
TABLE = {
    (): {"a": 0.5, "the": 0.4, "one": 0.1},
    ("a",): {"cat": 0.4, "dog": 0.3, "cow": 0.3},
    ("the",): {"dog": 0.9, "cat": 0.1},
}
for beam in (1, 2):
    words, total = search(
        lambda written: TABLE.get(written, {"</s>": 1.0}), beam, limit=3, end="</s>"
    )[0]
    print(f"beam {beam}: {' '.join(words):12} {math.exp(total):.2f}")

# %% [markdown]
# **3. Too early** (★★, 20 min). Stop at the first finished hypothesis. Write a table like that of exercise 2 for which this loses with a beam of 2 and $\alpha = 1$.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A short answer that is a little more likely, and a long one that is certain after its first word.
certain = ["yes", "of", "course", "it", "is", "as", "said", "</s>"]
table = {(): {"yes.": 0.6, "well,": 0.4}, ("yes.",): {"</s>": 1.0}}
table |= {("well,", *certain[:n]): {certain[n]: 1.0} for n in range(8)}
answers = search(lambda written: table[written], beam=2, limit=9, end="</s>")
first_done = min(answers, key=lambda h: len(h[0]))
best = best_of(answers, alpha=1.0)
print("first:", " ".join(first_done[0]), " best:", " ".join(best[0]))

# %% tags=["remove-cell"]
if CHECKING:
    assert first_done != best

# %% [markdown]
# **4. What breaks if** (★★, 20 min) the cache is not reordered when one hypothesis takes another's place? Predict what happens to the words and to their scores, then try it. (The solution stands [with the cache's code](#when-hypotheses-change-places).)
#
# **5. In which order?** (★★, 10 min) Our `sharpen` applies the temperature before top-p. Would it be the same afterwards? And for top-k?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Top-k keeps the same words either way. A high temperature flattens the shares, so top-p then
# needs more words.
for knobs in ({"top_k": 2}, {"top_p": 0.7}):
    first = len(sharpen(made_up, temperature=3, **knobs))
    last = len(sharpen(sharpen(made_up, **knobs), temperature=3))
    print(f"{knobs}: words kept with the temperature first {first}, last {last}")

# %% [markdown]
# **6. The authors' search** (★★★, an evening, open). Change `search` so that finished hypotheses move to a list of their own and $k$ keep running until the bound says stop. (For a whole test set, change `extend` and `finish` of [the package's search](#the-whole-search) instead.) Does it find likelier sentences on the validation captions, does BLEU change, and what does it cost?

# %% [markdown]
# ## Second reading: the package's code
#
# The first reading ends here. The rest is the code that the package runs, then measurements. Open what you need.
#
# ### The search in tensors
#
# :::{admonition} Why tensors, and along which axes
# :class: dropdown
# `search` makes a Python tuple of each candidate: with 64 sentences, a beam of 4 and 8,000 words, two million tuples per step. `beam_search` holds all hypotheses in a few tensors, sentences on the axis $B$ and hypotheses of one sentence on the axis $R$. A row without a hypothesis has the log-probability minus infinity, which no `topk` prefers. It [finds the same](#checks).
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show what a search holds", "code_prompt_hide": "Hide what a search holds"}
class Hypothesis(NamedTuple):
    """A translation that a search has found.

    `tokens` come without `<s>` and `</s>`; `score` is the log-probability divided by the length
    penalty; `ended` is False if the length limit cut it off before `</s>`.
    """

    tokens: list[int]
    score: float
    log_probability: float
    ended: bool = True


class Beams(NamedTuple):
    """The running hypotheses, R places in each of the B sentences that are not done."""

    sentence: Tensor  # (B,), number in the batch
    limit: Tensor  # (B,), tokens at most
    free: Tensor  # (B,), places that no finished hypothesis holds
    best: Tensor  # (B, N), scores of the best finished hypotheses
    tokens: Tensor  # (B, R, T), from <s> on
    total: Tensor  # (B, R), log-probability; minus infinity: no hypothesis


# %% [markdown]
# :::{admonition} A search of two sentences, field by field
# :class: dropdown
# Take two sentences, a beam of 3, two words written, and in sentence 1 a hypothesis that has already finished with a score of $-0.9$:
#
# | field | shape | sentence 0 | sentence 1 |
# |---|---|---|---|
# | `sentence` | $(2)$ | 0 | 1 |
# | `limit` | $(2)$ | 54 | 57 |
# | `free` | $(2)$ | 3 | 2 |
# | `best`, $N = 1$ | $(2, 1)$ | $-\infty$ | $-0.9$ |
# | `tokens` | $(2, 3, 3)$ | three times `<s>` and two words | three times `<s>` and two words |
# | `total` | $(2, 3)$ | $-1.1$, $-1.9$, $-2.4$ | $-1.4$, $-2.2$, $-\infty$ |
#
# The search starts with *one* hypothesis per sentence, nothing but `<s>`. With $k$ copies the beam would fill with $k$ equal hypotheses and search no wider than greedy.
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show how a search starts", "code_prompt_hide": "Hide how a search starts"}
def length_limit(model: Transformer, source: Tensor, max_extra_tokens: int) -> Tensor:
    """Return how many tokens the translation of each source (B, S) may have, (B,)."""
    limit = (source != PAD).sum(dim=1) + max_extra_tokens
    return limit.clamp(min=1, max=model.config.max_length)


def start_beams(source: Tensor, limit: Tensor, beam: int, n_best: int) -> Beams:
    """Begin with `<s>` for each source (B, S)."""
    count, device = len(source), source.device
    return Beams(
        sentence=torch.arange(count, device=device),
        limit=limit,
        free=torch.full_like(limit, beam),
        best=torch.full((count, n_best), -torch.inf, device=device),
        tokens=torch.full_like(source[:, :1, None], BOS),
        total=torch.zeros(count, 1, device=device),
    )


# %% [markdown]
# ### Expand, score, prune: one `topk`
#
# :::{admonition} How one `topk` finds words and parents
# :class: dropdown
# The $R \cdot |V|$ continuations of a sentence go into one row, and one `topk` finds the best. A winner's position in that row gives its parent and its word: with 13 words, position 30 is word 4 of hypothesis 2, both counted from 0, since $30 = 2 \cdot 13 + 4$. Padding and `<s>` are forbidden *after* the log-softmax, so that a score stays what the model gives to the sentence.
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the step of a search", "code_prompt_hide": "Hide the step of a search"}
def extend(beams: Beams, logits: Tensor) -> tuple[Beams, Tensor]:
    """Continue hypotheses by the best tokens of logits (B, R, |V|); return also parents (B, R)."""
    log_probability = logits.log_softmax(dim=-1)
    log_probability[..., [PAD, BOS]] = -torch.inf
    log_probability += beams.total[..., None]
    candidates = log_probability.flatten(1)
    width = min(int(beams.free.max()), candidates.size(1))
    total, choice = candidates.topk(width)
    parent = choice // logits.size(-1)
    token = choice % logits.size(-1)
    # Finished hypotheses hold their places, so not all of these winners find one
    rank = torch.arange(width, device=total.device)
    total = total.where(rank < beams.free[:, None], -torch.inf)
    words = beams.tokens.take_along_dim(parent[..., None], dim=1)
    tokens = torch.cat([words, token[..., None]], dim=-1)
    return beams._replace(tokens=tokens, total=total), parent


# %% [markdown]
# :::{admonition} Worked: two hypotheses, six words
# :class: dropdown
# Two hypotheses have log-probability $-1$ and $-2$. The first gives word 4 half of the probability and word 5 a quarter, the second is nearly sure of word 5. The candidates are at $-1.69$, $-2.39$ and about $-2.01$, and the next cell finds the first and the third. Had the first of them written `</s>` instead of word 4, it would be finished: its score is $-1.69 / (7/6)^{0.6} = -1.54$, and one place stays free for the other.
# :::

# %% tags=["hide-cell"]
pair = start_beams(torch.tensor([[4, EOS]]), limit=torch.tensor([9]), beam=2, n_best=1)
pair = pair._replace(
    tokens=torch.tensor([[[BOS, 3], [BOS, 4]]]), total=torch.tensor([[-1.0, -2.0]])
)
shares = torch.tensor([[[0, 0, 0.25, 0, 0.5, 0.25], [0, 0, 0, 0, 0.01, 0.99]]])
grown, parent = extend(pair, shares.log())
print("tokens:", grown.tokens.tolist(), " parents:", parent.tolist())
print("log-probabilities:", [round(total, 2) for total in grown.total[0].tolist()])

# %% [markdown]
# ### The whole search
#
# :::{admonition} Who is finished, and what leaves the tensors
# :class: dropdown
# Hypotheses that wrote `</s>` or reached their limit are finished: they hand over their words and scores, keep their place for good, and leave minus infinity behind. Sentences that are done leave all tensors, so a batch gets cheaper while it runs.
# :::
#
# :::{admonition} The bound, for each sentence
# :class: dropdown
# `still_open` computes [the bound](#when-a-search-may-stop) and compares it with the worst of the $N$ best that you asked for, one unless you say otherwise. A negative $\alpha$ prefers short sentences, and then the largest penalty is that of the next length, hence the `clamp`.
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show how hypotheses finish and when a search is over", "code_prompt_hide": "Hide how hypotheses finish and when a search is over"}
def finish(beams: Beams, alpha: float, results: list[list[Hypothesis]]) -> Beams:
    """Move hypotheses that have ended or reached their limit to the results, by sentence."""
    length = beams.tokens.size(-1) - 1  # without <s>
    at_end = (beams.tokens[..., -1] == EOS) | (beams.limit[:, None] <= length)
    done = at_end & (beams.total > -torch.inf)
    score = (beams.total / length_penalty(length, alpha)).where(done, -torch.inf)
    sentence = beams.sentence[:, None].expand_as(done)
    columns = (sentence, beams.tokens, score, beams.total)
    rows = zip(*(column[done].tolist() for column in columns))
    for number, tokens, value, log_probability in rows:
        ended = tokens[-1] == EOS
        words = tokens[1:-1] if ended else tokens[1:]
        results[number].append(Hypothesis(words, value, log_probability, ended))
    n_best = beams.best.size(1)
    return beams._replace(
        free=beams.free - done.sum(dim=1),
        best=torch.cat([beams.best, score], dim=1).topk(n_best).values,
        total=beams.total.masked_fill(done, -torch.inf),
    )


def still_open(beams: Beams, alpha: float) -> Tensor:
    """Return (B,), True where a running hypothesis may still come among the best N."""
    most = beams.total.amax(dim=1)
    at_limit = ((5 + beams.limit.to(most.dtype)) / 6) ** alpha
    now = length_penalty(beams.tokens.size(-1), alpha)
    return most / at_limit.clamp(min=now) > beams.best[:, -1]


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the loop", "code_prompt_hide": "Hide the loop"}
def beam_search(
    model: Transformer,
    source: Tensor,
    beam: int = 4,
    alpha: float = 0.6,
    max_extra_tokens: int = 50,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the n_best best translations found for each source (B, S), best first (section 6.1).

    A hypothesis has at most max_extra_tokens more than its source. Beam 1 is greedy search.
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"beam={beam} and n_best={n_best}: take 1 <= n_best <= beam")
    if not -5 <= alpha <= 5:
        raise ValueError(f"alpha={alpha} must be from -5 to 5; the paper takes 0.6")
    limit = length_limit(model, source, max_extra_tokens)
    beams = start_beams(source, limit, beam, n_best)
    results: list[list[Hypothesis]] = [[] for _ in source]
    with evaluating(model):
        cache = Cache(model, source)
        while len(beams.sentence):
            logits = next_logits(model, beams.tokens[..., -1], cache)
            beams, parent = extend(beams, logits)
            beams = finish(beams, alpha, results)
            going = still_open(beams, alpha).nonzero()[:, 0]
            cache.keep(going, parent[going])
            beams = Beams(*(column[going] for column in beams))
    for hypotheses in results:
        hypotheses.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
    return [hypotheses[:n_best] for hypotheses in results]


# %% [markdown]
# :::{admonition} Worked: a score that rises
# :class: dropdown
# Let a finished hypothesis have $-0.50$ at $\alpha = 1$, and a running one $-0.82$ after one word. If it ended now, at $\operatorname{lp}(2) = 1.17$, it would get $-0.70$ and lose. But if it is certain of its next words and ends at length 7, it gets $-0.82/2 = -0.41$ and wins, so the search must go on. With $-0.30$ to beat and at most 9 words it need not: $-0.82/2.33 = -0.35$. The next cell asks `still_open` both times.
# :::

# %% tags=["hide-cell"]
late = pair._replace(total=torch.tensor([[-0.82, -math.inf]]))
for finished in (-0.50, -0.30):
    goes_on = still_open(late._replace(best=torch.tensor([[finished]])), 1.0)
    print(f"best finished {finished}: the search goes on", goes_on.item())

# %% tags=["remove-cell"]
if CHECKING:
    assert not goes_on.item()

# %% [markdown]
# ### The cache in code
#
# :::{admonition} Attention in two halves, and who shares which keys
# :class: dropdown
# [Multi-head attention](05_multi_head_attention.ipynb#the-module) does two things in one go, and here we need them apart: `project` makes keys and values, and `attend_to` lets a query look at them. `self_kv` has a row for each hypothesis, $B \cdot R$ in all. The hypotheses of a sentence share its source, so `cross_kv` has $B$ rows, however wide the beam.
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the two halves of attention", "code_prompt_hide": "Hide the two halves of attention"}
KeysAndValues = tuple[Tensor, Tensor]  # (B, H, S, d_k) and (B, H, S, d_v)


def project(attention: MultiHeadAttention, x: Tensor) -> KeysAndValues:
    """Return the keys and values of vectors x (B, S, D)."""
    keys = split_heads(attention.key(x), attention.heads)
    values = split_heads(attention.value(x), attention.heads)
    return keys, values


def attend_to(
    attention: MultiHeadAttention, x: Tensor, kv: KeysAndValues, mask: Mask = None
) -> Tensor:
    """Let vectors x (B, T, D) look at keys and values; returns (B, T, D)."""
    keys, values = kv
    query = split_heads(attention.query(x), attention.heads)
    heads, _ = attention.attend(query, keys, values, mask)
    return attention.output(merge_heads(heads))


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the cache", "code_prompt_hide": "Hide the cache"}
class Cache:
    """Keys and values that need not be computed twice, for R hypotheses of B sentences.

    For each decoder layer, `self_kv` holds those of the target so far, in B * R rows, and
    `cross_kv` those of the source, in B rows. Starts with R = 1 and no target.
    """

    def __init__(self, model: Transformer, source: Tensor) -> None:
        memory = model.encode(source)
        parts = model.decoder.modules()
        self.length = 0
        self.mask = padding_mask(source)
        self.layers = [part for part in parts if isinstance(part, DecoderLayer)]
        self.self_kv: list[KeysAndValues] = []
        self.cross_kv: list[KeysAndValues] = []
        for layer in self.layers:
            keys, values = project(layer.cross_attention, memory)
            self.cross_kv.append((keys, values))
            self.self_kv.append((keys[:, :, :0], values[:, :, :0]))

    def append(self, number: int, keys: Tensor, values: Tensor) -> KeysAndValues:
        """Add the newest token of each row in one layer; return all of its keys and values."""
        past_keys, past_values = self.self_kv[number]
        keys = torch.cat([past_keys, keys], dim=2)
        values = torch.cat([past_values, values], dim=2)
        self.self_kv[number] = keys, values
        return keys, values

    def keep(self, sentences: Tensor, parents: Tensor) -> None:
        """Keep the sentences of these numbers (B,), and of each the hypotheses parents (B, R)."""
        count = len(self.mask)
        rows = len(self.self_kv[0][0])
        chosen = (sentences[:, None] * (rows // count) + parents).flatten()
        if len(sentences) < count:
            self.mask = self.mask[sentences]
            self.cross_kv = [pick(kv, sentences) for kv in self.cross_kv]
        if not torch.equal(chosen, torch.arange(rows, device=chosen.device)):
            self.self_kv = [pick(kv, chosen) for kv in self.self_kv]


def pick(kv: KeysAndValues, rows: Tensor) -> KeysAndValues:
    """Return some rows of keys and values."""
    keys, values = kv
    return keys.index_select(0, rows), values.index_select(0, rows)


# %% [markdown]
# ### One word through the decoder
#
# :::{admonition} The same three sub-layers
# :class: dropdown
# A step takes one new word for each hypothesis through the same three sub-layers as `DecoderLayer.forward` in [Layers](09_layers.ipynb#the-decoder-layer), whose modules it uses.
# :::
#
# :::{admonition} What is different from a pass over the whole sentence
# :class: dropdown
# - The new word's key and value join the past *before* it looks, because a word attends to itself as well.
# - No mask is needed in self-attention: the future that the causal mask hides doesn't exist yet, and all hypotheses are equally long.
# - Cross-attention takes the $R$ hypotheses as if they were $T$ positions of one sentence.
# - The position of the new word is the number of words before it, `cache.length`. Forget it, and every word is embedded as the first.
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show one step of the decoder", "code_prompt_hide": "Hide one step of the decoder"}
def layer_step(x: Tensor, cache: Cache, number: int) -> Tensor:
    """Pass the newest tokens (B, R, D) through one decoder layer."""
    layer = cache.layers[number]

    def look_back(y: Tensor) -> Tensor:
        rows = y.flatten(0, 1)[:, None]  # (B * R, 1, D): each looks at its own past
        attention = layer.self_attention
        kv = cache.append(number, *project(attention, rows))
        return attend_to(attention, rows, kv).view_as(y)

    def look_at_source(y: Tensor) -> Tensor:
        kv = cache.cross_kv[number]
        return attend_to(layer.cross_attention, y, kv, cache.mask)

    x = layer.residuals[0](x, look_back)
    x = layer.residuals[1](x, look_at_source)
    return layer.residuals[2](x, layer.feed_forward)


def next_logits(model: Transformer, tokens: Tensor, cache: Cache) -> Tensor:
    """Read the newest token of each hypothesis (B, R); return logits (B, R, |V|) of the next one.

    They are at least in single precision. Raises ValueError if they are infinite or NaN.
    """
    x = model.embed(tokens.reshape(-1, 1), cache.length).view(*tokens.shape, -1)
    for number in range(len(cache.layers)):
        x = layer_step(x, cache, number)
    cache.length += 1
    logits = model.embedding.logits(model.decoder.norm(x))
    if not logits.amax(dim=-1).isfinite().all():
        raise ValueError(
            "the model's logits are infinite or NaN: are its weights damaged?"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


# %% [markdown]
# Word by word through the cache, or in one pass: we compare the logits for a random target and a padded source, in five variants of the model.


# %% tags=["hide-input", "nbval-ignore-output"]
def step_by_step(model, source, target):
    cache = Cache(model, source)
    steps = [
        next_logits(model, target[:, t : t + 1], cache) for t in range(target.size(1))
    ]
    return torch.cat(steps, dim=1)


toy = TransformerConfig(13, layers=2, d_model=24, d_ff=40, heads=3, max_length=60)
torch.manual_seed(0)
random_model = Transformer(toy).double().eval()
padded = torch.tensor([[4, 5, 6, 7, EOS], [8, 9, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 7, 4, 9, 6], [BOS, 5, 5, 8, 12]])
changes = [{}, {"pre_norm": True}, {"positions": "learned"}, {"d_k": 5, "d_v": 7}]
changes.append({"attention_bias": True})
differences = []
for change in changes:
    variant = Transformer(replace(toy, **change)).double().eval()
    with torch.no_grad():
        stepwise = step_by_step(variant, padded, target)
        at_once = variant(padded, target)
    differences.append((stepwise - at_once).abs().max().item())
print("largest difference in each:", *(f"{gap:.0e}" for gap in differences))

# %% tags=["remove-cell"]
if CHECKING:
    assert max(differences) < 1e-12

# %% [markdown]
# ### The same, in one call
#
# With a cache, a step computes so little that much of its time goes into *starting* operations, and the formula of `layer_norm` alone takes ten of them. PyTorch has it as a single one, and our `attention`, too. Both give the same numbers, so a model may have either: `use_fused` puts PyTorch's in the place of ours. The models of the package get it when they are loaded, and `train` gives it to those that it trains, where it [saves memory as well](26_speed.ipynb#attention-without-the-matrix).


# %% tags=["export"]
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask = None,
    dropout: nn.Module = nn.Identity(),
) -> tuple[Tensor, None]:
    """Return what attention returns, but for the weights, which never exist as a whole.

    Raises TypeError for a mask that is not boolean: PyTorch would add its numbers to the scores.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"the mask is {mask.dtype}: make it boolean")
    # PyTorch's function doesn't know whether the model is training
    rate = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    return F.scaled_dot_product_attention(query, key, value, mask, rate), None


def fused_layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return what layer_norm returns."""
    return F.layer_norm(x, gain.shape, gain, bias, eps)


def use_fused(model: nn.Module) -> None:
    """Let a model compute attention and layer normalization by PyTorch's fused functions."""
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.attend = fused_attention
        elif isinstance(part, LayerNorm):
            part.normalize = fused_layer_norm


# %%
torch.manual_seed(0)
tiny = Transformer(preset("tiny", vocabulary_size=9)).double().eval()
read, written = (
    torch.tensor([[4, 5, EOS], [6, EOS, PAD]]),
    torch.tensor([[BOS, 7, 8]] * 2),
)
with torch.no_grad():
    by_formula = tiny(read, written)
    use_fused(tiny)
    difference = (tiny(read, written) - by_formula).abs().max()
print(f"largest difference: {difference:.6f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert difference < 1e-12

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-cache-time", "caption": "What does the next word cost? Processor time of one decoding step by the number of words already written, for 16 sentences and the tiny model, on the machine that ran this notebook. Without a cache (dashed) a step costs more with every word; with one (solid) it stays far below."}}
timed = Transformer(preset("tiny", vocabulary_size=2000)).eval()
use_fused(timed)
read, words = torch.randint(
    4, 2000, (2, 16, 72), generator=torch.Generator().manual_seed(0)
)
measured, cached = [], []


def milliseconds(run):
    start = process_time()
    run()
    return 1000 * (process_time() - start)


with torch.no_grad():
    memory, cache = timed.encode(read), Cache(timed, read)
    for n in range(1, 71):
        step = lambda n=n: next_logits(timed, words[:, n - 1 : n], cache)
        cached.append(milliseconds(step))
        if n % 10 == 0:
            again = lambda n=n: timed.decode(words[:, :n], memory, read)
            uncached = [milliseconds(again) for _ in range(3)]
            for name, times in (
                ("without a cache", uncached),
                ("with a cache", cached[-10:]),
            ):
                measured.append({"words": n, "ms": round(min(times), 2), "step": name})
looks = {"without a cache": (AMBER, [5, 3]), "with a cache": (SKY, [1, 0])}
x = alt.X("words:Q", title="words written", scale=alt.Scale(domain=[0, 70]))
y = alt.Y("ms:Q", title="milliseconds per step")
chart = legend_above(curves(measured, x, y, "step", looks))
chart = chart.properties(width=300, height=220)
show(
    chart,
    alt="Time of a step rises steeply with length without a cache and stays far below with one.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert measured[-2]["ms"] > 3 * measured[-1]["ms"]

# %% [markdown]
# :::{admonition} Why keep keys and values instead of states?
# :class: dropdown
# A state is one vector of 512 numbers in each layer of the base model; a key and a value are two. Keeping the states would take half the room. But every step would have to project every old state again, which costs $2 \cdot 512^2$ multiplications for each old word and layer. With 20 old words these are $40 \cdot 512^2 = 10.5$ M, where all the layer's work for the new word is $14 \cdot 512^2 = 3.7$ M. We pay with memory and save time.
# :::
#
# :::{admonition} What the cache saves, counted
# :class: dropdown
# Take the base model, 20 source tokens and 20 target tokens, and count a multiplication with its addition as one operation. A new word costs $14\,d^2$ in each decoder layer: $4\,d^2$ in self-attention, $2\,d^2$ in cross-attention (query and output, since keys and values are kept) and $8\,d^2$ in the feed-forward network. With $d = 512$ and 6 layers these are 22.0 M. Projecting the memory costs 3.15 M for each source token, the logits $37{,}000 \cdot 512 = 18.9$ M per word.
#
# | work | without a cache | with a cache |
# |---|---|---|
# | decoder layers | 210 × 22.0 M = 4,624 M | 20 × 22.0 M = 440 M |
# | the memory's keys and values | 20 × 20 × 3.15 M = 1,258 M | 20 × 3.15 M = 63 M |
# | logits of the newest word | 20 × 18.9 M = 379 M | 379 M |
# | together | 6,261 M | 882 M |
#
# That is 7 times less, and 13.5 times for 40 tokens on both sides. The folded cell below lets PyTorch count, on the device `meta`, where tensors have shapes and no numbers; both runs contain the encoder's 377 M.
# :::

# %% tags=["hide-cell"]
with torch.device("meta"):
    base, twenty = Transformer(preset("base")).eval(), torch.full((1, 20), 4)
with FlopCounterMode(display=False) as slow, torch.no_grad():
    memory = base.encode(twenty)
    for n in range(1, 21):
        base.embedding.logits(base.decode(twenty[:, :n], memory, twenty)[:, -1])
with FlopCounterMode(display=False) as fast, torch.no_grad():
    cache = Cache(base, twenty)
    for n in range(20):
        x = base.embed(twenty[:, n : n + 1], cache.length)
        for number in range(len(cache.layers)):
            x = layer_step(x, cache, number)
        cache.length += 1
        base.embedding.logits(base.decoder.norm(x))
by_hand = 6261 + 377, 882 + 377
# PyTorch counts the addition, too
by_torch = [counter.get_total_flops() / 2e6 for counter in (slow, fast)]
for ours, theirs in zip(by_hand, by_torch):
    print(f"by hand {ours:,} M, counted {theirs:,.0f} M")

# %% tags=["remove-cell"]
if CHECKING:
    assert all(1 <= b / a < 1.01 for a, b in zip(by_hand, by_torch))

# %% [markdown]
# ### When hypotheses change places
#
# :::{admonition} Words move, and their past must move with them
# :class: dropdown
# When one hypothesis takes another's place in a beam, the words visibly move, and the cache must move with them. `keep` gathers its rows by their parents.
# :::
#
# :::{admonition} Worked: a beam of three, in which one dies out
# :class: dropdown
# Say a beam of 3 holds *the cat*, *a dog* and *one bird*, and the best continuations are two of *the cat* and one of *one bird*. *A dog* dies out.
#
# | row | held | holds now | its past must be that of |
# |:---:|---|---|---|
# | 0 | the cat | the cat sat | the cat |
# | 1 | a dog | the cat ran | the cat |
# | 2 | one bird | one bird flew | one bird |
#
# Before `keep`, row 1 still holds the keys and values of *a dog*. Left like that, *the cat ran* goes on as if it had begun with *a dog*. All shapes fit, the result reads well, and the probability printed beside it belongs to no sentence at all (exercise 4).
# :::

# %% tags=["remove-cell"]
if CHECKING:
    cache = Cache(random_model, padded)
    cache.self_kv = [(torch.arange(6.0).view(6, 1, 1, 1), torch.zeros(6, 1, 1, 1))]
    cache.keep(torch.tensor([0, 1]), torch.tensor([[0, 0, 2], [1, 0, 1]]))
    assert cache.self_kv[0][0].flatten().tolist() == [0, 0, 2, 4, 3, 4]
    cache.keep(torch.tensor([1]), torch.tensor([[2, 1]]))
    assert cache.self_kv[0][0].flatten().tolist() == [4, 3] and len(cache.mask) == 1

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution of exercise 4", "code_prompt_hide": "Hide the solution of exercise 4"}
# Nothing fails. A hypothesis looks back at the words of another, so its score is not the model's.
right_way = Cache.keep


def forgetful(cache, sentences, parents):
    if len(cache.self_kv[0][0]) > len(cache.mask):
        parents = torch.arange(parents.size(1)).expand_as(parents)
    right_way(cache, sentences, parents)


Cache.keep = forgetful
wrong = beam_search(model, source, beam=4, n_best=4)[0]
Cache.keep = right_way
gaps = []
for h in wrong:
    labels = [*h.tokens, *[EOS] * h.ended]
    true = sum(math.log(next_words(labels[:n])[word]) for n, word in enumerate(labels))
    gaps.append(abs(true - h.log_probability))
    print(f"{tokenizer.decode(h.tokens)}")
    print(f"    the search says {h.log_probability:.2f}, the model {true:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert max(gaps) > 0.1

# %% [markdown]
# ### How large is a KV cache?
#
# :::{admonition} Two vectors for each token and layer, unless heads share them
# :class: dropdown
# Each token of each hypothesis keeps two vectors in every layer. For today's language models the cache decides how many users fit on a GPU, so in **grouped-query attention** {cite:p}`ainslie2023gqa` several query heads share one key head and one value head, and in multi-query attention {cite:p}`shazeer2019fast` all of them. The two Llama models below differ in just that (their published shapes, at 16 bits; the base model at 32).
# :::

# %% tags=["hide-input"]
shapes = {  # layers, heads that have keys and values, width of a head, bytes per number
    "the paper's base": (6, 8, 64, 4),
    "Llama 2 7B": (32, 32, 128, 2),
    "Llama 3 8B": (32, 8, 128, 2),
}
for name, (layers, heads, width, size) in shapes.items():
    bytes_each = 2 * layers * heads * width * size
    total = bytes_each * 131_072 / 2**30
    print(f"{name:17} {bytes_each / 1024:3.0f} KiB per token,", end=" ")
    print(f"{total:4.1f} GiB for 131,072 tokens")

# %% [markdown]
# ### Checks
#
# Does the search in tensors find what `search` finds? We compare them on random models with a vocabulary of six, where a beam as wide as the number of all sentences is **exhaustive search**.

# %% tags=["hide-input"]
one = torch.tensor([[4, EOS]])


def model_words(model, written):
    with torch.no_grad():
        words = model(one, torch.tensor([[BOS, *written]]))[0, -1].softmax(dim=-1)
    return {word: words[word].item() for word in (EOS, 3, 4, 5)}


same, searches = 0, 0
for seed in range(20):
    torch.manual_seed(seed)
    tiny = Transformer(replace(toy, vocabulary_size=6)).double().eval()
    ask = lru_cache(lambda written, model=tiny: model_words(model, written))
    for beam in (1, 2, 3, 5, 40):
        plain = [words for words, _ in search(ask, beam, limit=3)]
        (rows,) = beam_search(tiny, one, beam, 0.0, max_extra_tokens=1, n_best=beam)
        searches += 1
        same += plain == [(*h.tokens, *[EOS] * h.ended) for h in rows]
print(f"{same} of {searches} searches return the same hypotheses in the same order")

# %% tags=["remove-cell"]
if CHECKING:
    assert same == searches == 100

# %% [markdown]
# :::{admonition} Four checks, and what they would catch
# :class: dropdown
# A hundred searches, from one hypothesis to all forty sentences. Four more checks cover other mistakes, for wrong beam searches write plausible sentences.
#
# All run in double precision, on a random model whose `</s>` we made likelier, until some sentences end and others run to their limit.
#
# | check | what it would catch |
# |---|---|
# | a beam of 1 is greedy | limits off by one, padding or `<s>` chosen, `</s>` not honored |
# | scores are **forced scores**: the words are given, and the whole model, without a cache, adds up their log-probabilities | a past that was not reordered, a wrong length in the penalty |
# | alone as in company | masks that leak, sentences mixed up when others are dropped |
# | early stop or not | hypotheses lost when a sentence is dropped |
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the first three checks", "code_prompt_hide": "Hide the first three checks"}
random = torch.Generator().manual_seed(1)
lengths = [1, 9, 4, 2, 6, 3]
source = pad(
    [[*torch.randint(4, 13, (n - 1,), generator=random).tolist(), EOS] for n in lengths]
)
torch.manual_seed(3)
random_model = Transformer(toy).double().eval()
with torch.no_grad():
    random_model.embedding.weight[EOS] *= 1.4
by_greedy = greedy_decode(random_model, source, max_extra_tokens=12)
narrow = beam_search(random_model, source, beam=1, max_extra_tokens=12)
print("lengths by greedy_decode:", [len(words) for words in by_greedy])
print("lengths by a beam of 1:  ", [len(best.tokens) for (best,) in narrow])


def forced(model, source, tokens, ended=True):
    labels = torch.tensor([*tokens, *[EOS] * ended])
    inputs = torch.tensor([[BOS, *labels[:-1]]])
    with evaluating(model):
        words = model(source[source != PAD][None], inputs)[0].log_softmax(dim=-1)
    return words.gather(1, labels[:, None]).sum().item(), len(labels)


def score_gaps(results, expected):
    """How far the scores of two searches differ: infinitely, if their hypotheses do."""
    for row, other in zip(results, expected, strict=True):
        for h, g in zip(row, other, strict=True):
            yield abs(h.score - g.score) if h.tokens == g.tokens else math.inf


def rescored(row, h):
    """A hypothesis with its forced score."""
    total, n = forced(random_model, row, h.tokens, h.ended)
    return h._replace(score=total / length_penalty(n, 0.6), log_probability=total)


wide = {"beam": 4, "n_best": 4, "max_extra_tokens": 12}
together = beam_search(random_model, source, **wide)
scored = [[rescored(row, h) for h in found] for row, found in zip(source, together)]
alone = [beam_search(random_model, row[row != PAD][None], **wide)[0] for row in source]
ends = [h.ended for row in together for h in row]
print(f"{len(ends)} hypotheses, of which {sum(ends)} ended; scores differ from")
print(f"forced ones by {max(score_gaps(together, scored)):.5f} at most")
print(f"those of a sentence alone by {max(score_gaps(together, alone)):.5f} at most")

# %% tags=["remove-cell"]
if CHECKING:
    assert [best.tokens for (best,) in narrow] == by_greedy
    assert max(score_gaps(together, scored)) < 1e-9
    assert max(score_gaps(together, alone)) < 1e-9

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show that stopping early changes nothing, and what it saves", "code_prompt_hide": "Hide that stopping early changes nothing, and what it saves"}
source = torch.randint(4, 13, (20, 6), generator=random)
source[:, -1] = EOS


def counted(alpha):
    passed = []
    count = lambda _, x, y: passed.append(y[..., 0].numel())
    with random_model.decoder.norm.register_forward_hook(count):
        results = beam_search(
            random_model, source, 4, alpha, max_extra_tokens=30, n_best=2
        )
    return results, sum(passed)


def run_on(beams, alpha):
    return beams.total.amax(dim=1) > -torch.inf


bound = still_open
tried = []
for alpha in (-0.5, 0.0, 0.6, 1.5):
    still_open = bound
    early, passed = counted(alpha)
    still_open = run_on  # a sentence is done when nothing runs any more
    late, all_passed = counted(alpha)
    gap = max(score_gaps(early, late))
    print(f"alpha {alpha}: scores differ by {gap:.5f},", end=" ")
    print(f"{passed:,} of {all_passed:,} positions")
    tried.append((alpha, passed < all_passed, gap))
still_open = bound

# %% tags=["remove-cell"]
if CHECKING:
    for alpha, saved, gap in tried:
        assert gap < 1e-9 and saved == (alpha < 1)

# %% [markdown]
# ### Sampling in batches
#
# :::{admonition} `sharpen` for a batch, and where padding is forbidden
# :class: dropdown
# `filter_logits` is `sharpen` on logits: all words are sorted, the tail is set to minus infinity, and `scatter` restores the order. `sample` draws for a whole batch, with the cache. Padding and `<s>` are forbidden *before* the softmax here, since a draw needs shares that sum to 1.
# :::


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the filter", "code_prompt_hide": "Hide the filter"}
def filter_logits(
    logits: Tensor, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Set logits (..., |V|) to minus infinity but for the top k, and of these those making up p.

    Raises ValueError for a top_k or top_p out of its range.
    """
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be 1 or more, or None")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 up to 1, or None")
    if top_k is None and top_p is None:
        return logits
    ordered, tokens = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[..., top_k:] = -torch.inf
    if top_p is not None and top_p < 1:
        share = ordered.softmax(dim=-1)
        before = share.cumsum(dim=-1) - share
        dropped = before >= top_p
        dropped[..., 0] = False  # however small p is, one stays
        ordered[dropped] = -torch.inf
    return torch.empty_like(logits).scatter(-1, tokens, ordered)


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the loop that samples", "code_prompt_hide": "Hide the loop that samples"}
def sample(
    model: Transformer,
    source: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
    max_extra_tokens: int = 50,
) -> list[list[int]]:
    """Draw a translation of each source (B, S) token by token; ids without `<s>` and `</s>`.

    Raises ValueError for a temperature, top_k or top_p out of its range.
    """
    if not 0.01 <= temperature <= 100:
        raise ValueError(
            f"temperature={temperature} must be from 0.01 to 100; greedy is beam=1"
        )
    limit = length_limit(model, source, max_extra_tokens)
    target = torch.full_like(source[:, :1], BOS)
    running = torch.ones_like(limit, dtype=torch.bool)
    with evaluating(model):
        cache = Cache(model, source)
        while running.any():
            logits = next_logits(model, target[:, -1:], cache)[:, 0]
            logits[:, [PAD, BOS]] = -torch.inf
            logits = filter_logits(logits / temperature, top_k, top_p)
            drawn = logits.softmax(dim=-1).multinomial(1, generator=generator)
            token = drawn[:, 0].where(running, PAD)
            target = torch.cat([target, token[:, None]], dim=1)
            running &= (token != EOS) & (target.size(1) <= limit)
    written = target[:, 1:].tolist()
    return [[token for token in row if token not in (PAD, EOS)] for row in written]


# %% [markdown]
# Drawn often enough, first words must come up as often as the model says; with 20,000 draws, the share of a word with probability 0.5 varies by about $\sqrt{0.25 / 20{,}000} = 0.0035$.

# %% tags=["nbval-ignore-output", "hide-input"]
source = torch.tensor([[4, 5, 6, EOS]])
draws = torch.Generator().manual_seed(0)
many = sample(
    random_model, source.expand(20_000, -1), generator=draws, max_extra_tokens=-3
)
counts = torch.bincount(
    torch.tensor([row[0] if row else EOS for row in many]), minlength=13
)
with evaluating(random_model):
    logits = random_model(source, torch.tensor([[BOS]]))[0, 0]
logits[[PAD, BOS]] = -torch.inf
largest = (counts / 20_000 - logits.softmax(-1)).abs().max().item()
print(f"largest difference between drawn and given shares: {largest:.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert largest < 0.015
    only = sample(random_model, source, top_k=1, generator=draws, max_extra_tokens=3)
    ((best,),) = beam_search(random_model, source, beam=1, max_extra_tokens=3)
    assert only == [best.tokens]
    for knobs in ({"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.55}):
        logits = torch.tensor([*made_up.values()], dtype=torch.float64).log()
        expected = [sharpen(made_up, **knobs).get(word, 0) for word in made_up]
        shares = filter_logits(logits, **knobs).softmax(dim=-1)
        torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64))

# %% [markdown]
# ## Second reading: measurements
#
# ### Beam width and alpha
#
# :::{admonition} How it was measured
# :class: dropdown
# The paper has a beam of 4 and $\alpha = 0.6$, chosen on its development set. We try five widths and three exponents on the 2,014 captions of the validation and the test set. Since $\alpha$ doesn't steer which hypotheses survive, one search for each width is enough: all that finished are kept, and sorted anew for each $\alpha$. Quality is measured in [BLEU](20_evaluation.ipynb#why-each-part-of-bleu-is-there), higher is better. The numbers are from the log of `python -m benchmarks.experiments.widths`.
# :::

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-sweep", "caption": "What do a wider beam and a length penalty change? Above: how far a beam is ahead of greedy search in BLEU, on 2,014 captions, with 95% intervals of the paired bootstrap; squares, circles and triangles are the three exponents in their order. Below: the length of the output over that of the references. Without a penalty (dashed) a beam of 4 or more isn't surely ahead of greedy search at all; with one it is, and the larger exponent is ahead most."}}
_, *logged = read_log("widths")
swept = [
    record | {"exponent": f"alpha {record['alpha']}"}
    for record in logged
    if record["captions"] == "both" and record["alpha"] != 1.0
]
looks = {
    "alpha 0.0": (PLUM, [5, 3]),
    "alpha 0.6": (SKY, [1, 0]),
    "alpha 1.4": (AMBER, [2, 2]),
}
names = list(looks)
series = alt.Scale(domain=names, range=[color for color, _ in looks.values()])
forms = alt.Scale(domain=names, range=["square", "circle", "triangle-up"])
base = alt.Chart(
    alt.Data(values=[record for record in swept if record["beam"] > 1])
).encode(
    x=alt.X("beam:O", title="beam", axis=alt.Axis(labelAngle=0)),
    xOffset=alt.XOffset("exponent:N", sort=names),
    color=alt.Color("exponent:N", scale=series, sort=None, title=None, legend=None),
)
ahead = alt.Y("ahead:Q", title="BLEU ahead of greedy search")
intervals = base.mark_rule(strokeWidth=1.5).encode(
    y=alt.Y("low:Q"),
    y2="high:Q",
)
shape = alt.Shape("exponent:N", scale=forms, sort=None, title=None, legend=None)
points = base.mark_point(filled=True, size=55, opacity=1).encode(ahead, shape=shape)
zero = (
    alt.Chart(alt.Data(values=[{"ahead": 0}]))
    .mark_rule(opacity=0.5)
    .encode(y="ahead:Q")
)
above = (zero + intervals + points).properties(width=300, height=210)
below = legend_above(
    curves(
        swept,
        alt.X("beam:O", title="beam", axis=alt.Axis(labelAngle=0)),
        alt.Y(
            "length:Q", title="length / reference", scale=alt.Scale(domain=[0.86, 0.96])
        ),
        "exponent",
        looks,
    )
).properties(width=300, height=150)
show(
    alt.vconcat(above, below).resolve_scale(
        color="independent", strokeDash="independent"
    ),
    alt="With alpha 0.6 all beams are about 0.6 BLEU ahead of greedy search, with 1.4 about 1.2, without a penalty 0.4 at a beam of 2 and hardly anything beyond. The output gets shorter with the width, least with the largest alpha.",
)

# %% [markdown]
# :::{admonition} What can be read off, in numbers
# :class: dropdown
# - **The second hypothesis pays.** At $\alpha = 0.6$ it gains 0.6 BLEU (from 0.3 to 0.9). Wider beams stay at that, and each doubling of the beam doubles the decoder's work.
# - **Without a penalty a wide beam loses what it gained.** At $\alpha = 0$, two hypotheses are ahead of greedy search by 0.4, four by 0.1 (from $-0.3$ to $0.4$), although each wider beam finds more probable sentences on average.
# - **The exponent matters more than the width.** At $\alpha = 1.4$ a beam of 4 is ahead by 1.2. It also holds the length: the output of a beam of 4 has 0.94 of the references' length, as greedy search has, against 0.91 without a penalty.
#
# Two thousand captions aren't many for such differences. At $\alpha = 0.6$, the validation captions by themselves put a beam of 4 ahead of greedy search by 1.0, the test captions by 0.2.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    at = {(r["captions"], r["beam"], r["alpha"]): r for r in logged}
    shown = [
        at["both", 4, 0.6],
        at["both", 4, 1.4],
        at["both", 2, 0.6],
        at["both", 4, 0.0],
    ]
    assert [
        (round(r["ahead"], 1), round(r["low"], 1), round(r["high"], 1)) for r in shown
    ] == [
        (0.6, 0.2, 0.9),
        (1.2, 0.8, 1.6),
        (0.6, 0.3, 0.9),
        (0.1, -0.3, 0.4),
    ]
    assert round(at["both", 2, 0.0]["ahead"], 1) == 0.4
    assert [
        round(at[part, 4, 0.6]["ahead"], 1) for part in ("val", "test_2016_flickr")
    ] == [1.0, 0.2]
    assert [round(at["both", 4, a]["length"], 2) for a in (0.0, 1.4)] == [0.91, 0.94]
    assert round(at["both", 1, 0.6]["length"], 2) == 0.94
    for beam in (4, 8, 16):
        assert abs(at["both", beam, 0.6]["ahead"] - at["both", 2, 0.6]["ahead"]) < 0.25

# %% [markdown]
# ### Why is my beam search worse with a larger beam?
#
# :::{admonition} A better search, of a model that isn't made to be searched so well
# :class: dropdown
# Training asks for the next word after a right beginning, so nothing has ever taught the model that an empty translation, as a whole, is a bad one. In 6 of 250 captions, all of them long, it finds `</s>` alone more probable than the sentence of a beam of 4. If a larger beam lowers your score, look at the lengths first.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show how probable an empty translation is", "code_prompt_hide": "Hide how probable an empty translation is"}
empty, ranks, unsure, leads = [], [], [], []
sources = [[*tokenizer.encode(pair.source), EOS] for pair in captions]
for row, (best,) in zip(sources, beam_search(model, pad(sources))):
    with evaluating(model):
        first = next_logits(
            model, torch.tensor([[BOS]]), Cache(model, torch.tensor([row]))
        )[0, 0]
    nothing = first.log_softmax(dim=-1)[EOS].item()
    ranks.append((first > first[EOS]).sum().item() + 1)
    leads.append(best.score - nothing)  # the penalty of the empty one is 1
    if nothing > best.log_probability:
        empty.append(len(best.tokens))
        unsure.append(row)
print(f"the empty one is likelier in {len(empty)} of {len(sources)},", end=" ")
print(f"{np.mean(empty):.0f} tokens long on average")
print(f"as a first word </s> is the {min(ranks)}th choice, or worse")
for beam in (4, 64, 128):
    answers = beam_search(model, pad(unsure), beam, alpha=0.0)
    shortest = min((best.tokens for (best,) in answers), key=len)
    print(f"beam {beam:3}, the shortest: {tokenizer.decode(shortest)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert len(empty) == 6 and min(empty) > 14 and min(ranks) > 50 and len(shortest) < 5
    assert min(leads) > 0

# %% [markdown]
# :::{admonition} What protects us from the empty sentence, and what others saw
# :class: dropdown
# A long product of unsure words loses to a single improbable `</s>`. A narrow beam protects us, since `</s>` is never among the first fifty choices for a first word; the penalty protects us, too, and with it the empty sentence wins nowhere. With neither, a beam of 128 answers one of these captions with three words.
#
# {cite:t}`koehn2017six` saw that beam search helps only while the beam is narrow. {cite:t}`stahlberg2019nmt` searched a Transformer base model exactly and got the empty translation as the best of all for more than half of the sentences. {cite:t}`murray2018correcting` showed that wide beams do hardly any harm once a reward for each word has corrected the length.
# :::
#
# :::{admonition} Why are my translations too short?
# :class: dropdown
# Compare the number of tokens written with that of the references. A ratio well below 1 has one of these causes:
#
# | cause | how to see it |
# |---|---|
# | no length penalty | the ratio rises with $\alpha$ |
# | the search stops at the first finished hypothesis | running it to the end changes the result |
# | the limit cuts | `ended` is False |
# | a beam that is too wide | the ratio falls from one width to the next |
# | too little training | the ratio rises from checkpoint to checkpoint |
# | training pairs cut at some length | no translation is longer |
# :::
#
# :::{admonition} Why does the model repeat itself?
# :class: dropdown
# Having written a phrase makes the same phrase likelier, most of all in models that haven't learned enough. Settings that keep three tokens in a row from coming twice, such as `no_repeat_ngram_size` in Hugging Face's `generate`, hide the loop and leave its cause.
# :::
#
# ### Two length penalties
#
# :::{admonition} With the constants 5 and 6, and without
# :class: dropdown
# [CTranslate2](F_export.ipynb#a-script-that-goes-along) divides by $n^\alpha$, without the 5 and the 6. The divisor then grows faster with the length, so the same $\alpha$ pushes harder toward long output.
# :::
#
# :::{admonition} Worked: the same α, another winner
# :class: dropdown
# Take length 2 at $-1.0$ against length 8 at $-2.0$, with $\alpha = 0.6$: with the paper's penalty the short one wins, $-0.91$ to $-1.26$; without the constants the long one does, $-0.57$ to $-0.66$.
# :::

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-length-penalty", "caption": "How strongly is length rewarded? What a log-probability is divided by: the penalty of {eq}`eq-length-penalty` (solid) and the plain power of the length (dashed). With the same exponent the second rises faster."}}
kinds = {"((5 + n) / 6)^0.6": (SKY, [1, 0]), "n^0.6": (SKY, [5, 3])}
kinds |= {"((5 + n) / 6)^1.0": (AMBER, [1, 0]), "n^1.0": (AMBER, [5, 3])}
records = []
for n in range(1, 31):
    for kind in kinds:
        alpha = float(kind[-3:])
        by = length_penalty(n, alpha) if kind.startswith("((") else n**alpha
        records.append({"n": n, "by": round(by, 3), "penalty": kind})
chart = curves(
    records,
    alt.X("n:Q", title="length n"),
    alt.Y("by:Q", title="divided by"),
    "penalty",
    kinds,
)
show(
    legend_above(chart).properties(width=300, height=220),
    alt="Four rising curves. At the same exponent, the plain power of the length rises faster.",
)

# %% tags=["remove-cell"]
if CHECKING:
    short, long = -1 / length_penalty(2, 0.6), -2 / length_penalty(8, 0.6)
    assert (round(short, 2), round(long, 2)) == (-0.91, -1.26)
    assert (round(-1 / 2**0.6, 2), round(-2 / 8**0.6, 2)) == (-0.66, -0.57)

# %% [markdown]
# ### Coverage: words left out
#
# With `n_best`, a search returns its finished hypotheses, best first: an **n-best list**. This is the list for *Ein Mann sitzt allein beim Fischen an der Küste*, a man who sits alone at the coast and fishes, with scores and log-probabilities.

# %% tags=["nbval-ignore-output", "hide-input"]
fisher = next(pair for pair in multi30k("val") if "allein beim Fischen" in pair.source)
shore = torch.tensor([[*tokenizer.encode(fisher.source), EOS]])
(ranked,) = beam_search(model, shore, n_best=4)
print(" score   log p")
for h in ranked:
    print(f"{h.score:6.2f}  {h.log_probability:6.2f}  {tokenizer.decode(h.tokens)}")
total, n = forced(model, shore[0], tokenizer.encode(fisher.target))
print(
    f"{total / length_penalty(n, 0.6):6.2f}  {total:6.2f}  {fisher.target} (reference)"
)

# %% tags=["remove-cell"]
if CHECKING:
    assert "fishing" not in tokenizer.decode(ranked[0].tokens + ranked[1].tokens)
    assert "fishing" in tokenizer.decode(ranked[2].tokens)
    assert 3.1 < ranked[0].log_probability - ranked[2].log_probability < 3.4
    assert ranked[0].log_probability - total > 16.5

# %% [markdown]
# :::{admonition} Whose fault is it, the search's or the model's?
# :class: dropdown
# The winner doesn't fish, nor does the next; the third does, and is 25 times less probable than the first.
#
# Neither the search nor the penalty looks at the source. Only the model does, and a model that isn't sure of a phrase finds it cheap to skip. If the reference scored better than the output, the search would have missed it: a **search error**, which a wider beam may mend. Here the model finds the reference twenty million times less probable than its own sentence: a **model error**, which no search mends. The next line says how often the search misses the reference.
# :::

# %% tags=["nbval-ignore-output", "hide-input"]
missed = 0
for row, pair, (best,) in zip(
    sources, captions, beam_search(model, pad(sources[:100]))
):
    total, n = forced(model, torch.tensor(row), tokenizer.encode(pair.target))
    missed += total / length_penalty(n, 0.6) > best.score
print(f"captions whose reference scores better than our output: {missed} of 100")

# %% tags=["remove-cell"]
if CHECKING:
    assert missed <= 5

# %% [markdown]
# ### Minimum Bayes risk
#
# :::{admonition} The sentence that is most like the others
# :class: dropdown
# **Minimum Bayes risk** decoding {cite:p}`kumar2004minimum` asks for the sentence with the smallest expected loss: if the model's own samples were the references, which candidate would score best on average? Draw some translations, compare each with all of them, and keep the one that is most like the others. We measure likeness by [chrF](20_evaluation.ipynb), the overlap of character n-grams.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show it in fifteen lines, on sixteen samples of the first sentence", "code_prompt_hide": "Hide the fifteen lines"}
chrf = CHRF()


def least_risk(samples):
    likeness = {}
    for text in samples:
        scores = [chrf.sentence_score(text, [other]).score for other in samples]
        likeness[text] = sum(scores) / len(scores)
    best = max(likeness, key=likeness.get)
    return best, likeness[best]


sofa = torch.tensor([[*tokenizer.encode(caption), EOS]])
draws = torch.Generator().manual_seed(0)
rows = sample(model, sofa.expand(16, -1), temperature=0.5, generator=draws)
samples = [tokenizer.decode(row) for row in rows]
for text in samples[:5]:
    print("drawn:", text)
best, score = least_risk(samples)
print(f"most like all sixteen: {best} (mean chrF {score:.0f})")

# %% [markdown]
# On 250 captions, minimum Bayes risk doesn't beat the beam search in BLEU, and may be slightly ahead in chrF.
#
# :::{admonition} Minimum Bayes risk against a beam of 4, measured
# :class: dropdown
# Validation captions, sixteen samples each; BLEU, and the mean chrF of a sentence, each with its distance from the beam search and the 95% interval of the paired bootstrap (log of `python -m benchmarks.experiments.risk`).
#
# | | BLEU | distance | chrF | distance |
# |---|---|---|---|---|
# | beam of 4 | 42.7 | | 62.5 | |
# | one sample, $\tau = 1$ | 31.8 | $-10.9$ ($-13.3$ to $-8.5$) | 55.1 | $-7.3$ ($-9.0$ to $-5.7$) |
# | least risk, $\tau = 1$ | 39.9 | $-2.9$ ($-4.4$ to $-1.5$) | 63.3 | $0.9$ ($0.0$ to $1.8$) |
# | least risk, $\tau = 0.5$ | 41.9 | $-0.9$ ($-2.1$ to $0.2$) | 62.8 | $0.3$ ($-0.4$ to $1.1$) |
#
# The choice among sixteen wins back most of what drawing loses. If it is ahead of the beam at all, then in chrF, by which it chose; in BLEU it is behind, at $\tau = 1$ beyond doubt. A system that optimizes one measure is best judged by another. {cite:t}`eikema2020map` found this kind of decoding competitive with beam search.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    risks = {record["system"]: record for record in read_log("risk")[1:]}
    fields = [
        f"{kind}{field}" for kind in ("", "chrF ") for field in ("ahead", "low", "high")
    ]

    def to_a_tenth(number):
        return round(number + math.copysign(1e-9, number), 1)

    table = {
        name: [to_a_tenth(r[field]) for field in ("BLEU", "chrF", *fields)]
        for name, r in risks.items()
    }
    assert table["beam of 4"] == [42.7, 62.5, 0, 0, 0, 0, 0, 0]
    assert table["one sample, 1.0"] == [
        31.8,
        55.1,
        -10.9,
        -13.3,
        -8.5,
        -7.3,
        -9.0,
        -5.7,
    ]
    assert table["least risk, 1.0"] == [39.9, 63.3, -2.9, -4.4, -1.5, 0.9, 0, 1.8]
    assert table["least risk, 0.5"] == [41.9, 62.8, -0.9, -2.1, 0.2, 0.3, -0.4, 1.1]

# %% [markdown]
# ### Why does a batch give another translation than the sentence alone?
#
# Usually something is wrong; sometimes it is rounding.
#
# :::{admonition} What goes wrong, and what rounding can do
# :class: dropdown
# Mistakes: a missing padding mask, padding on the left that shifts the positions, a limit or a penalty that counts padding, one stopping rule for the whole batch, dropout still on. Our check of this ran in double precision, and it passed.
#
# Rounding: a matrix product of another size may add in another order, and `0.1 + 0.2 + 0.3` already depends on the order. In single precision the difference is about $10^{-7}$ of a number, and it matters where two words are equally likely to that many digits. In bfloat16, with its two or three digits, it matters often. A few translations among thousands may differ; if many do, look for a mistake.
# :::
#
# ## Sources
#
# Beam of 4, $\alpha = 0.6$ and the limit of 50 more tokens than the input are from section 6.1 of {cite:t}`vaswani2017attention`. The length penalty is that of {cite:t}`wu2016google`, without their second penalty for words of the source that nothing attended to. Grouped queries are from {cite:t}`ainslie2023gqa`, after {cite:t}`shazeer2019fast`; nucleus sampling is from {cite:t}`holtzman2020curious`. Minimum Bayes risk decoding is from {cite:t}`kumar2004minimum`, and with samples of a neural model from {cite:t}`eikema2020map`. The bound on a running hypothesis is in `_is_finished` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor)'s `utils/beam_search.py` (commit f8b951a), whose search takes the best $2k$ candidates, of which at most $k$ can end in `</s>`.
