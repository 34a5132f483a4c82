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
# # Decoding
#
# This chapter turns a trained model into a function from sentences to sentences, by greedy search, beam search and sampling (section 6.1 of the paper).
#
# A trained model does not translate. It gives, for a source and the words written so far, a probability for each next word. Somebody has to choose one, append it and ask again. `greedy_decode` in [the model's chapter](10_transformer.ipynb) takes the most likely word each time. It has three faults.
#
# It is short-sighted, since the best first word need not begin the best sentence. It is slow, since each step computes the whole sentence again. And it handles numbers, where a user has lines of text: some long, some short, some empty, in an order that matters. We mend the three in this order.

# %% tags=["export"]
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer.layers import DecoderLayer
from annotated_transformer.masks import BOS, EOS, PAD, padding_mask
from annotated_transformer.model_io import check_vocabulary
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, evaluating

# %%
import math
from dataclasses import replace
from heapq import nlargest
from itertools import product
from time import perf_counter

import altair as alt
import sacrebleu
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import load_pretrained
from annotated_transformer.batching import pad
from annotated_transformer.data import multi30k
from book.figures import (
    INK,
    KEY,
    PAPER,
    QUERY,
    RESIDUAL,
    VALUE,
    curves,
    show,
    show_steps,
)
from annotated_transformer.transformer import TransformerConfig, greedy_decode, preset

# %% [markdown]
# ## The best next word is not enough
#
# First: what are we looking for? The model gives each word $y_t$ a probability, which depends on the source $X$ and on the words before it. The probability of a whole sentence $Y$ is the product of these, so its logarithm is a sum:
#
# $$
# \log P(Y \mid X) = \sum_{t=1}^{n} \log P(y_t \mid y_1, \dots, y_{t-1}, X)
# $$ (eq-log-probability)
#
# The last word $y_n$ is `</s>`. Without it a sentence is not complete, and stopping has its probability like any other choice. We look for the sentence with the largest sum.
#
# Greedy search makes each term of the sum as large as it can be at the moment. That is not the same. Suppose a model that knows three first words and what may follow them:

# %%
TABLE = {
    (): {"a": 0.5, "the": 0.4, "one": 0.1},
    ("a",): {"cat": 0.4, "dog": 0.3, "cow": 0.3},
    ("the",): {"dog": 0.9, "cat": 0.1},
    ("one",): {"dog": 1.0},
}


def next_words(written):
    return TABLE.get(written, {"</s>": 1.0})


# %% [markdown]
# This model can say six sentences. Their probabilities sum to 1:
#
# | sentence | probability |
# |---|---|
# | the dog | $0.4 \cdot 0.9 = 0.36$ |
# | a cat | $0.5 \cdot 0.4 = 0.20$ |
# | a dog, a cow | $0.5 \cdot 0.3 = 0.15$ each |
# | one dog | $0.1 \cdot 1.0 = 0.10$ |
# | the cat | $0.4 \cdot 0.1 = 0.04$ |
#
# Greedy search takes *a*, is stuck with it, and ends with *a cat*. The best sentence, *the dog*, is nearly twice as likely. Yet the model is not wrong about the first word. Half of its sentences do begin with *a*, but that half is shared by three sentences. *A* is the likeliest word; it is not the beginning of the likeliest sentence. And greedy search has no way back.
#
# ## Beam search
#
# Trying everything is out of the question: 8,000 words at each of 20 places make $8000^{20}$ sentences. **Beam search** keeps a few beginnings alive in place of one. The number it keeps is the **beam**, $k$, and a beginning is a **hypothesis**. One step has three parts:
#
# 1. *Expand*: continue each hypothesis with every word.
# 2. *Score*: add up the logarithms of the probabilities, as in {eq}`eq-log-probability`.
# 3. *Prune*: keep the best $k$.
#
# With $k = 2$, by hand:
#
# | step | candidates | kept |
# |:---:|---|---|
# | 1 | a 0.5, the 0.4, one 0.1 | a, the |
# | 2 | a cat 0.20, a dog 0.15, a cow 0.15, the dog 0.36, the cat 0.04 | the dog, a cat |
# | 3 | the dog `</s>` 0.36, a cat `</s>` 0.20 | both |
#
# *The* survives the first step as second best, and that is enough. *One dog* is never looked at, since *one* was pruned. For two hypotheses, the model was asked twice as often as for one.
#
# ### Why logarithms?
#
# A product of many probabilities gets too small for a float. Forty words at 0.1 each have $10^{-40}$, and the smallest normal number in 32 bits is about $10^{-38}$. The logarithm is $40 \cdot \ln 0.1 = -92.1$, an ordinary number. The order is the same, because a logarithm only grows.
#
# ### What happens to a hypothesis that ends?
#
# A hypothesis that ends with `</s>` is finished. There are three ways to go on:
#
# - It stays in the race and is expanded like the others. That is a classic mistake. Nothing was ever trained to come after `</s>`, and with each further word its probability falls.
# - It is put aside, and the next best candidate takes its place. Then $k$ hypotheses run all the time, and some other rule must say when to stop. Many libraries do this.
# - It leaves the race and keeps its place, so that one place less is left for the others. This is our way.
#
# Ours has three good sides. With one place, the first hypothesis that ends is the result, so a beam of 1 is greedy search. The work shrinks as places fill up. And the search ends by itself, when all places are taken.
#
# Here is the whole of it, on Python tuples. A hypothesis is its words and its log-probability, and `watch` collects the steps for a figure.


# %%
def search(next_words, beam, limit, end="</s>", watch=None):
    running, finished = [((), 0.0)], []
    for _ in range(limit):
        grown = [
            ((*words, word), total + math.log(p))
            for words, total in running
            for word, p in next_words(words).items()
        ]
        best = nlargest(beam - len(finished), grown, key=lambda hypothesis: hypothesis[1])
        if watch is not None:
            watch.append((running, grown, best))
        finished += [(words, total) for words, total in best if words[-1] == end]
        running = [(words, total) for words, total in best if words[-1] != end]
    return sorted(finished + running, key=lambda hypothesis: -hypothesis[1])


for beam in (1, 2):
    words, total = search(next_words, beam, limit=3)[0]
    print(f"beam {beam}: {' '.join(words):12} {math.exp(total):.2f}")

# %% [markdown]
# A beam of 2 finds *the dog*. In the loop, the list `grown` expands and scores, `nlargest` prunes, and the last two lines sort finished from running. This short function is the whole idea, and we keep it as the reference for the fast one.
#
# Beam search promises nothing. The best sentence may begin so badly that it falls out of the beam at once. Only a beam as wide as the number of all sentences is sure to find the best; then it is **exhaustive search**, which we use as a check below.
#
# ## Longer sentences score lower
#
# Each word multiplies the probability by a number below 1. Suppose the model is as sure of each word as of any other, 0.5. Then 5 words have a log-probability of $5 \ln 0.5 = -3.5$, and 10 words have $-6.9$. The longer sentence is 32 times less likely, and no word of it is worse.
#
# So among finished hypotheses, the short ones have an unfair lead, and a search for the most likely sentence prefers to stop early. The paper follows Google's earlier translation system (GNMT) and divides the log-probability by a **length penalty**:
#
# $$
# \operatorname{score}(Y) = \frac{\log P(Y \mid X)}{\operatorname{lp}(n)}, \qquad
# \operatorname{lp}(n) = \left(\frac{5 + n}{6}\right)^{\alpha}
# $$ (eq-length-penalty)
#
# With $\alpha = 0$ nothing changes, and the paper takes 0.6 for translation. It does not say what $n$ counts. Ours, as the authors' code, counts the words and the `</s>`. So the shortest translation, which is nothing but `</s>`, has $n = 1$, and its penalty is 1 for every $\alpha$.
#
# ### Does a larger divisor not lower the score?
#
# For a positive number it would. Log-probabilities are negative, and dividing a negative number by more brings it closer to zero, so up. The name is misleading, too: what is called a penalty is a help for long sentences.
#
# ### The penalty in numbers
#
# How much help is it? This is what a log-probability is divided by:
#
# | $\alpha$ | $n = 1$ | $n = 5$ | $n = 10$ | $n = 20$ | $n = 40$ |
# |---|---|---|---|---|---|
# | 0 | 1 | 1 | 1 | 1 | 1 |
# | 0.6 | 1 | 1.36 | 1.73 | 2.35 | 3.35 |
# | 1 | 1 | 1.67 | 2.50 | 4.17 | 7.50 |
#
# At $\alpha = 0.6$, a sentence of 10 words beats one of 5 if its log-probability is less than $1.73 / 1.36 = 1.27$ times as large. At $\alpha = 1$ it may be $1.5$ times as large. With equally sure words it is twice as large, so even $\alpha = 1$ is on the side of the short one.
#
# One could also *add* a reward for each word. Then a word would be worth the same in an easy sentence and in a hard one. Division helps in proportion: where the model is unsure and each word costs more, one more word is also forgiven more.


# %% tags=["export"]
def length_penalty(length: float, alpha: float) -> float:
    """Divide a log-probability by this; length counts the tokens and `</s>` (section 6.1)."""
    return float(((5 + length) / 6) ** alpha)


# %%
short, long = (-3.0, 5), (-3.6, 9)  # log-probability, length
for alpha in (0.0, 0.6):
    scores = [total / length_penalty(n, alpha) for total, n in (short, long)]
    print(f"alpha {alpha}: 5 words {scores[0]:.2f}, 9 words {scores[1]:.2f}")

# %% [markdown]
# By hand for the long one: $(14/6)^{0.6} = 1.66$, and $-3.6 / 1.66 = -2.17$. The short one gets $-3.0 / 1.36 = -2.21$ and loses, where it won before.
#
# Many libraries divide by $n^\alpha$, without the 5 and the 6. It looks like the same thing and is not, since the exponent acts on another curve. The constants soften the penalty for short sentences, where one word more or less would otherwise count most.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-length-penalty", "caption": "How strongly is length rewarded? What a log-probability is divided by, for the penalty of {eq}`eq-length-penalty` (solid) and for the simple power of the length (dashed). The same exponent means a stronger push in the second."}}
kinds = {"((5 + n) / 6)^0.6": (QUERY, [1, 0]), "n^0.6": (KEY, [5, 3])}
kinds |= {"((5 + n) / 6)^1.0": (VALUE, [1, 0]), "n^1.0": (RESIDUAL, [5, 3])}
records = []
for n in range(1, 31):
    for kind in kinds:
        alpha = float(kind[-3:])
        by = length_penalty(n, alpha) if kind.startswith("((") else n**alpha
        records.append({"n": n, "by": round(by, 3), "penalty": kind})
chart = curves(
    records, alt.X("n:Q", title="length n"), alt.Y("by:Q", title="divided by"), "penalty", kinds
)
show(
    chart,
    alt="Four rising curves. At the same exponent, the plain power of the length rises faster.",
)

# %% [markdown]
# Does that ever change a choice? Two words at $-1.0$ against eight words at $-2.0$, both with $\alpha = 0.6$:

# %%
for name, by in (("with 5 and 6", length_penalty), ("without", lambda n, alpha: n**alpha)):
    print(f"{name:13}", "the short one" if -1 / by(2, 0.6) > -2 / by(8, 0.6) else "the long one")

# %% [markdown]
# It does, so an $\alpha$ from one program says little in another.
#
# ### Where does the penalty act?
#
# Not where one might think. All hypotheses of one step are equally long, so they are divided by the same number, and it cannot change which of them stay in the beam. It only decides among the finished ones, and when we may stop.
#
# ## How long may a translation get?
#
# Nothing forces a model to write `</s>`. A model that is untrained, or lost, may repeat three words for ever. So there must be a limit. The paper's is the length of the input and 50 more.
#
# Our input counts as the encoder gets it, with its `</s>`. A source of 11 tokens and the `</s>` has length 12, so its translation has at most 62 tokens, its own `</s>` included. What reaches the limit without one is cut off. It takes part as it is, with the score that it has, and is marked as not ended.
#
# Why relative to the input? A constant that is large enough for a paragraph would let a caption of three words run on for hundreds. Why as much as 50? The limit is there to stop runaways, and it should never touch a good translation. With 50 more, a source of 30 tokens may even have a translation twice as long, 60 of the 80 allowed.
#
# Each sentence of a batch has a limit of its own. With one limit for all, a translation would depend on its neighbors. The positions of the model set the last bound: nothing gets longer than `max_length`.

# %% [markdown]
# ## The work that is done again
#
# Now the second fault. To write word 20, `greedy_decode` sends all 19 words before it through the decoder, with `<s>` in front. It did so for word 19, too. A sentence of $n$ words takes $1 + 2 + \dots + n = n(n+1)/2$ passes of a position through the decoder: 210 for 20 words, where 20 would do.
#
# Why does it do that? The model takes a whole target and returns logits for every position of it. In training each of them is used. In decoding all but the last repeat what earlier steps have seen, and `greedy_decode` keeps `states[:, -1]` and throws the others away.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-cache", "caption": "What does a step compute? Each row is a step of decoding, each column a position of the sentence. Without a cache (left) a step computes every position up to its own, and the total on the right of a row grows with the square of the length. With a cache (right) it computes one and reuses the keys and values of the others (outlined)."}}


def work(n=8):
    for way, cached in (("without a cache", False), ("with a cache", True)):
        for step, position in product(range(1, n + 1), range(1, n + 1)):
            if position <= step:
                done = step if cached else step * (step + 1) // 2
                fresh = not cached or position == step
                row = {"step": step, "position": position, "done": done, "fresh": fresh}
                yield row | {"way": way}


def grid(way):
    base = alt.Chart(alt.Data(values=[r for r in work() if r["way"] == way]))
    position = alt.X("position:O", title="position", axis=alt.Axis(orient="top", labelAngle=0))
    step = alt.Y("step:O", title="step")
    fill = alt.condition("datum.fresh", alt.value(KEY), alt.value(PAPER))
    cells = base.mark_rect(stroke=KEY, strokeWidth=1.5, width=26, height=21)
    cells = cells.encode(position, step, fill=fill)
    last = base.transform_filter("datum.position == datum.step")
    total = last.mark_text(dx=28, align="left").encode(position, step, text="done:Q")
    return (cells + total).properties(width=250, height=210, title=f"{way}: total so far")


assert sum(r["fresh"] for r in work()) == 36 + 8
show(
    alt.hconcat(grid("without a cache"), grid("with a cache"), spacing=60),
    alt="Two triangles of eight steps. Without a cache all 36 cells are computed; with one, the 8 on the diagonal.",
)

# %% [markdown]
# May we reuse what an earlier step computed? It would be wrong if a new word changed what the old positions hold. The causal mask sees to it that it does not: a position attends to itself and to those before it, so the future cannot touch it. We decode a prefix and the whole, with a random model in double precision.

# %%
toy = TransformerConfig(13, layers=2, d_model=24, d_ff=40, heads=3, max_length=60)
torch.manual_seed(0)
model = Transformer(toy).double().eval()
source = torch.tensor([[4, 5, 6, 7, EOS], [8, 9, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 7, 4, 9, 6], [BOS, 5, 5, 8, 12]])
with torch.no_grad():
    memory = model.encode(source)
    whole = model.decode(target, memory, source)
    prefix = model.decode(target[:, :3], memory, source)
torch.testing.assert_close(whole[:, :3], prefix)
print("prefix", tuple(prefix.shape), "is the start of the whole", tuple(whole.shape))

# %% [markdown]
# The states of old positions stay as they are, and nobody asks for them again. What a new word needs from an old one is its <span style="color:#D55E00">**key**</span> and its <span style="color:#009E73">**value**</span>, in every layer. So these are what we keep, and the store is called the **cache**. Queries need no keeping: an old query has had its answer.
#
# The causal mask is what pays for this. Without it, each new word would change the states of all old ones in every layer above the first, and nothing could be kept. The encoder is such a network: add a word to the source, and all of its output is new. That does no harm here, since the source is complete before we start.
#
# ## What to keep
#
# Each decoder layer attends twice, so there are two things to keep for each layer:
#
# - `self_kv`, the keys and values of the words written so far, the **past**. It grows by one word a step.
# - `cross_kv`, the keys and values of the source, made from the memory. The encoder's output never changes while we write, so its projection is computed once for a sentence.
#
# Both belong to one batch of sentences, not to the model, so they live in an object of their own. The same weights may then serve two searches at a time.
#
# ### Why keys and values, and not the states?
#
# A state is one vector of 512 numbers in each layer of the base model; a key and a value are two. Keeping the states would take half the room. But then every step would have to project every old state again, which costs $2 \cdot 512^2$ multiplications for each old word and layer. With 20 old words these are $40 \cdot 512^2 = 10.5$ M, where all the layer's work for the new word is $14 \cdot 512^2 = 3.7$ M. We pay with memory and save time.
#
# ### Two halves of attention
#
# [Multi-head attention](05_multi_head_attention.ipynb) comes in two halves for this purpose. `project` makes keys and values, and `attend` lets a query look at them. `self_kv` starts as `cross_kv` cut to length 0, which has the right number of heads and the right widths for a model of any shape.
#
# Beam search follows several hypotheses of one sentence. Each has a past of its own, and all share one source. So the past has a row for each hypothesis, $B \cdot R$ rows in all, and the memory one for each sentence, $B$. We never copy the memory.
#
# ### The cache in code
#
# A cache is made for one batch of sources. Making it runs the encoder once and projects its output once for each decoder layer. The layers are picked out of the model by their type, so that a type checker knows what they are. Then the batch is decoded with the cache alone, and the encoder's output is no longer needed.


# %% tags=["export"]
class Cache:
    """Keys and values that need not be computed twice, for R hypotheses of B sentences.

    For each decoder layer, `self_kv` holds those of the target so far, (B * R, H, T, d_k or d_v),
    and `cross_kv` those of the source, (B, H, S, d_k or d_v). Starts with R = 1 and length T = 0.
    """

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, DecoderLayer)]
        self.length, self.mask, memory = 0, padding_mask(source), model.encode(source)
        self.cross_kv = [layer.cross_attention.project(memory, memory) for layer in self.layers]
        self.self_kv = [(keys[:, :, :0], values[:, :, :0]) for keys, values in self.cross_kv]

    def keep(self, sentences: Tensor, parents: Tensor) -> None:
        """Keep the sentences of these numbers (B,), and of each the hypotheses parents (B, R)."""
        rows, count = len(self.self_kv[0][0]), len(self.mask)
        chosen = (sentences[:, None] * (rows // count) + parents).flatten()
        if len(sentences) < count:
            self.mask = self.mask[sentences]
            self.cross_kv = [pick(layer, sentences) for layer in self.cross_kv]
        if not torch.equal(chosen, torch.arange(rows, device=chosen.device)):
            self.self_kv = [pick(layer, chosen) for layer in self.self_kv]


def pick(kv: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return some rows of keys and values."""
    return kv[0].index_select(0, rows), kv[1].index_select(0, rows)


# %% [markdown]
# `__init__` is the first half, what to keep. The method `keep`, the second half, is for beam search, and we come to it in a moment. First: is it worth the trouble?
#
# ## What it saves, in numbers
#
# Take the base model, a source of 20 tokens and a target of 20. A multiplication with the addition that follows it counts as one operation. A new word costs $14\,d^2$ of them in each layer:
#
# - $4\,d^2$ in self-attention, for query, key, value and output;
# - $2\,d^2$ in cross-attention, for query and output, since the keys and values are the memory's;
# - $8\,d^2$ in the feed-forward network, whose inner width is $4\,d$.
#
# With $d = 512$ and 6 layers this makes 22.0 M for each position. Projecting the memory costs $2\,d^2$ in each layer, 3.15 M for each source token. The logits cost $37{,}000 \cdot 512 = 18.9$ M for each word.
#
# | work | without a cache | with a cache |
# |---|---|---|
# | decoder layers | 210 positions × 22.0 M = 4,624 M | 20 × 22.0 M = 440 M |
# | the memory's keys and values | 20 steps × 20 × 3.15 M = 1,258 M | 20 × 3.15 M = 63 M |
# | logits of the newest word | 20 × 18.9 M = 379 M | 379 M |
# | together | 6,261 M | 882 M |
#
# That is 7 times less. The gain grows with the length, since only the left column has squares in it. For 40 tokens on both sides it is $18{,}056 + 5{,}033 + 758 = 23{,}847$ M against $881 + 126 + 758 = 1{,}765$ M, or 13.5 times less.
#
# The table also shows where the time goes once there is a cache. The logits are 379 of 882 M, more than 40 %. Half the vocabulary would save 190 M, and half the decoder layers 252 M.
#
# We left one thing out: a new word also has to *look* at the past. Scores and mixture cost $2\,d$ for each key and layer. With 20 words written and 20 in the source that is $2 \cdot 512 \cdot 40 \cdot 6 = 0.25$ M, one percent of 22.0 M. The cache does not save it, and at this length it hardly matters.
#
# ### What it costs in memory
#
# The cache keeps 2 vectors of 512 numbers in each of 6 layers: 24 KiB in 32-bit floats for each word of each hypothesis. Four hypotheses of 64 sentences with 30 words make $4 \cdot 64 \cdot 30 \cdot 24$ KiB = 180 MiB. The memory of 64 sources of 30 tokens takes 45 MiB, because the four hypotheses share it. A copy for each would take another 135.
#
# ## When hypotheses change places
#
# Greedy search needs no `keep`. In beam search the rows do not stay what they were. Say a beam of 3 holds *the cat*, *a dog* and *one bird*. Of all their continuations, the best three are two of *the cat* and one of *one bird*. *A dog* dies out.
#
# | row | held | holds now | its parent | its past must be that of |
# |:---:|---|---|:---:|---|
# | 0 | the cat | the cat sat | 0 | the cat |
# | 1 | a dog | the cat ran | 0 | the cat |
# | 2 | one bird | one bird flew | 2 | one bird |
#
# That the words move is plain to see. The cache has to move with them: row 1 of the past still holds the keys and values of *a dog*. Left like that, *the cat ran* would go on as if it had begun with *a dog*. Nothing crashes, since all shapes fit, and what comes out reads well. But the probability that is printed beside the sentence belongs to no sentence at all. Exercise 3 tries it.
#
# The remedy is to gather the past by the row of the parent, here 0, 0 and 2. The memory stays where it is, for the source is the same.
#
# In a batch the parents are counted within a sentence, so they must be turned into row numbers. Suppose two sentences with three hypotheses each, so six rows. Sentence 0 keeps its hypotheses 0, 0 and 2, that is rows 0, 0 and 2 of the past. Sentence 1 keeps 1, 0 and 1, and its rows begin at 3, so that makes 4, 3 and 4.

# %%
cache = Cache(model, source)
cache.self_kv = [(torch.arange(6.0).view(6, 1, 1, 1), torch.zeros(6, 1, 1, 1))]
cache.keep(torch.tensor([0, 1]), torch.tensor([[0, 0, 2], [1, 0, 1]]))
print("rows:", cache.self_kv[0][0].flatten().int().tolist(), " sentences:", len(cache.mask))
cache.keep(torch.tensor([1]), torch.tensor([[2, 1]]))
print("rows:", cache.self_kv[0][0].flatten().int().tolist(), " sentences:", len(cache.mask))

# %% [markdown]
# The second call drops sentence 0, whose translation is finished. From the rows 4, 3 and 4 of sentence 1 it takes the last and the middle one. The rows carry two hypotheses now; nothing says that there must be three.
#
# The number of rows may grow as well. After the first word, a beam of 4 has four hypotheses, which all come from the one row with `<s>`. Their parents are 0, 0, 0 and 0, and `keep` makes four rows of one.
#
# Moving has a price. It reads and writes the whole past, the 180 MiB from above, once a step. So where every row is its own parent, nothing is copied.
#
# ## One word through the decoder
#
# A step takes one new word for each hypothesis, $(B, R)$. Self-attention splits the hypotheses into rows, so that each attends to its own past. The new word's key and value join the past *before* it looks. A word attends to itself as well, and `<s>`, the first one, has nothing else to attend to.
#
# Why is there no mask? The causal mask hides the future, and here the future does not exist yet. The padding mask hides what fills up short rows, and at any step all hypotheses are equally long.


# %% tags=["export"]
def attend_to_past(x: Tensor, cache: Cache, number: int) -> Tensor:
    """Self-attention of the newest tokens (B, R, D) in a layer, each to its own hypothesis."""
    attention, rows = cache.layers[number].self_attention, x.flatten(0, 1)[:, None]
    both = zip(cache.self_kv[number], attention.project(rows, rows))
    keys, values = (torch.cat([old, new], dim=2) for old, new in both)
    cache.self_kv[number] = keys, values
    return attention.attend(rows, keys, values).view_as(x)


# %% [markdown]
# Follow the shapes for 2 sentences, 4 hypotheses each, with 5 words written, in a model with $d_\text{model} = 24$ and 3 heads:
#
# | what | shape |
# |---|---|
# | newest words, embedded | $(2, 4, 24)$ |
# | each a row of one position | $(8, 1, 24)$ |
# | their keys, 3 heads of width 8 | $(8, 3, 1, 8)$ |
# | keys of the past, and with the new one | $(8, 3, 5, 8)$, $(8, 3, 6, 8)$ |
# | weights: 1 query, 6 keys | $(8, 3, 1, 6)$ |
# | the result, by sentence again | $(2, 4, 24)$ |
#
# Cross-attention takes the hypotheses as they are. Attention allows any number of queries beside one set of keys, and it does not care whether these are positions of one sentence or hypotheses at one position. So $R$ stands where $T$ used to be. Compare the function below to `DecoderLayer.forward` in [Layers](09_layers.ipynb): the same three lines.


# %% tags=["export"]
def layer_step(x: Tensor, cache: Cache, number: int) -> Tensor:
    """Pass the newest tokens (B, R, D) through one decoder layer."""
    layer, source_kv = cache.layers[number], cache.cross_kv[number]
    x = layer.residuals[0](x, lambda y: attend_to_past(y, cache, number))
    x = layer.residuals[1](x, lambda y: layer.cross_attention.attend(y, *source_kv, cache.mask))
    return layer.residuals[2](x, layer.feed_forward)


# %% [markdown]
# Each residual connection adds and normalizes as in training, since it is the very same module.
#
# Around the layers stands what stands around them in the model: embedding and position below, the logits above. `embed` wants sentences, so it gets each hypothesis as a sentence of one word. It also has to know which position that word has. This is the number of words written before, since we count from 0, and the cache keeps it as its `length`. Forget it, and every word is embedded as the first. Nothing fails, and the model has lost count.
#
# The last line is for a model in 16 bits: its logits are handed on in 32, since sums of many logarithms need more than three digits.


# %% tags=["export"]
def next_logits(model: Transformer, tokens: Tensor, cache: Cache) -> Tensor:
    """Read the newest token of each hypothesis (B, R); return logits (B, R, |V|) of the next one.

    They are at least in single precision.
    """
    x = model.embed(tokens.reshape(-1, 1), cache.length).view(*tokens.shape, -1)
    for number in range(len(cache.layers)):
        x = layer_step(x, cache, number)
    cache.length += 1
    logits = model.embedding.logits(model.decoder.norm(x))
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


# %% [markdown]
# Nothing else of the model has to know about the cache. Chapters 7 and 8 stay as they are, and training never comes here.
#
# ## Is it the same function?
#
# We feed a random target word by word and compare each step to one full pass. Every option of the model that changes a layer gets its turn. A source with padding is among the two, so a lost mask would show. So would a position that is off by one, or a key that joins after its own query.


# %%
def step_by_step(model, source, target):
    cache = Cache(model, source)
    steps = [next_logits(model, target[:, t : t + 1], cache) for t in range(target.size(1))]
    return torch.cat(steps, dim=1)


changes = [{}, {"pre_norm": True}, {"positions": "learned"}, {"d_k": 5, "d_v": 7}]
changes.append({"attention_bias": True})
for change in changes:
    variant = Transformer(replace(toy, **change)).double().eval()
    with torch.no_grad():
        torch.testing.assert_close(step_by_step(variant, source, target), variant(source, target))
print(len(changes), "models: cached equals uncached at", target.numel(), "positions each")

# %% [markdown]
# And does it save what we computed? PyTorch can count operations. On the device `meta`, tensors have shapes and no numbers, so a pass through the base model takes no time. PyTorch counts a multiplication and an addition as two, so we halve. Both runs contain the encoder, $12\,d^2$ for each position and layer, which is $20 \cdot 6 \cdot 12 \cdot 512^2 = 377$ M.

# %%
with torch.device("meta"):
    base, twenty = Transformer(preset("base")).eval(), torch.full((1, 20), 4)
with FlopCounterMode(display=False) as slow, torch.no_grad():
    memory = base.encode(twenty)
    for n in range(1, 21):
        base.embedding.logits(base.decode(twenty[:, :n], memory, twenty)[:, -1])
with FlopCounterMode(display=False) as fast, torch.no_grad():
    step_by_step(base, twenty, twenty)
for counted, by_hand in ((slow, 6261 + 377), (fast, 882 + 377)):
    ratio = counted.get_total_flops() / 2e6 / by_hand
    print(f"by hand {by_hand:,} M, counted the same within 1 %:", 1 <= ratio < 1.01)
    assert 1 <= ratio < 1.01

# %% [markdown]
# The counts are ours and less than one percent more, which is the looking. A count is not yet a time. Here is what one step takes, at each length, for the `tiny` model and 16 sentences.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-cache-time", "caption": "What does the next word cost? Time of one decoding step by the number of words already written, on the machine that ran this notebook (16 sentences, the tiny model). Without a cache (dashed orange) a step takes longer with each word; with it (blue) it stays about level."}}
timed = Transformer(preset("tiny", vocabulary_size=2000)).eval()
read, words = torch.randint(4, 2000, (2, 16, 72), generator=torch.Generator().manual_seed(0))
measured, cached = [], []


def milliseconds(run):
    start = perf_counter()
    run()
    return 1000 * (perf_counter() - start)


with torch.no_grad():
    memory, cache = timed.encode(read), Cache(timed, read)
    for n in range(1, 71):
        cached.append(milliseconds(lambda n=n: next_logits(timed, words[:, n - 1 : n], cache)))
        if n % 10 == 0:
            whole = lambda n=n: timed.decode(words[:, :n], memory, read)
            uncached = [milliseconds(whole) for _ in range(3)]
            for name, times in (("without a cache", uncached), ("with a cache", cached[-10:])):
                measured.append({"words": n, "ms": round(min(times), 2), "step": name})
assert measured[-2]["ms"] > 3 * measured[-1]["ms"]
looks = {"without a cache": (KEY, [5, 3]), "with a cache": (QUERY, [1, 0])}
x = alt.X("words:Q", title="words written", scale=alt.Scale(domain=[0, 70]))
show(
    curves(measured, x, alt.Y("ms:Q", title="milliseconds a step"), "step", looks),
    alt="Time of a step rises steeply with length without a cache and stays nearly level with one.",
)

# %% [markdown]
# ## The race, in tensors
#
# The short `search` makes a Python tuple of each candidate: with 64 sentences, a beam of 4 and 8,000 words, two million tuples a step. The model's own work would be lost in it.
#
# The fast version handles no hypothesis by itself. It holds all of them in a few tensors: hypotheses of one sentence side by side on the axis $R$, and sentences on the axis $B$. A place without a hypothesis has the log-probability minus infinity, which no `topk` prefers.
#
# What comes out of a search is a list of hypotheses for each sentence. They are made once, at the end.


# %% tags=["export"]
class Hypothesis(NamedTuple):
    """A translation that a search has found.

    `tokens` come without `<s>` and `</s>`; `score` is the log-probability divided by the length
    penalty; `ended` is False if the length limit cut it off before `</s>`.
    """

    tokens: list[int]
    score: float
    log_probability: float
    ended: bool = True


# %% [markdown]
# A cut-off hypothesis keeps `ended=False`, so a caller can tell a sentence from a fragment. Both numbers are kept, since they serve different questions: `score` ranks the hypotheses of one source, `log_probability` is what the model said.
#
# While the race is on, six tensors say where we are.


# %% tags=["export"]
class Beams(NamedTuple):
    """The running hypotheses, R places in each of the B sentences that are not done."""

    sentence: Tensor  # (B,), number in the batch
    limit: Tensor  # (B,), tokens at most
    free: Tensor  # (B,), places that no finished hypothesis holds
    best: Tensor  # (B, N), scores of the best finished hypotheses
    tokens: Tensor  # (B, R, T), from <s> on
    total: Tensor  # (B, R), log-probability; minus infinity: no hypothesis


# %% [markdown]
# An example makes them concrete. Two sentences, a beam of 3, two words written, and in sentence 1 a hypothesis has already finished with a score of $-0.9$:
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
# Sentence 1 has only two hypotheses left that run. The third place is empty, whatever tokens stand in it.
#
# Nothing in `Beams` says which step it is: the length of `tokens` does. And nothing says how wide the beam is: $R$ may differ from step to step. `sentence` is needed because sentences leave. When sentence 0 is done, row 0 of all tensors belongs to sentence 1.
#
# At the start, each sentence has one hypothesis, which holds nothing but `<s>`. Its limit is the paper's: as many tokens as the source has, and 50 more.
#
# Why one, and not $k$ copies? Copies would all have the same best next word. The beam would fill with $k$ equal hypotheses, stay equal for ever, and search no wider than greedy. Libraries that need $k$ rows from the beginning give all but the first a total of minus infinity. With one row the problem does not come up. And no two hypotheses can become equal later, because they differ in the parent or in the newest word.


# %% tags=["export"]
def start_beams(source: Tensor, limit: Tensor, beam: int, n_best: int) -> Beams:
    """Begin with `<s>` for each source (B, S)."""
    total = torch.zeros(len(source), 1, device=source.device)
    numbers, best = torch.arange(len(source), device=source.device), total.expand(-1, n_best)
    tokens, free = torch.full_like(source[:, :1, None], BOS), torch.full_like(limit, beam)
    return Beams(numbers, limit, free, best - torch.inf, tokens, total)


# %% [markdown]
# ### Expand, score, prune: one `topk`
#
# The $R \cdot V$ continuations of a sentence stand in one row, and one `topk` finds the best of them. The place of a winner in that row tells both its parent and its word: with $V = 13$, place 30 is word 4 of hypothesis 2, both counted from 0, since $30 = 2 \cdot 13 + 4$.
#
# Padding and `<s>` are never a next word. We forbid them *after* the logarithm of the softmax. If we forbade them before, the probabilities of all other words would grow a little, and a score would no longer be what the model gives to the sentence.
#
# The best are taken for as many places as are free. Where one sentence has 4 places free and another has 2, the row has room for 4, and the last two of the second sentence are set to minus infinity: the sum of ones counts the winners from 1, and those beyond `free` get no place. The first step, with one hypothesis, fills all places.
#
# Damaged weights make logits that are infinite or NaN. Every comparison with NaN is false, so nothing would finish and the search would return nothing. `check_finite` looks at the best candidate of each sentence; it is better to say what is wrong.


# %% tags=["export"]
def check_finite(scores: Tensor) -> None:
    """Raise ValueError if the model's numbers are no numbers any more."""
    if not scores.isfinite().all():
        raise ValueError("the model's logits are infinite or NaN: are its weights damaged?")


def extend(beams: Beams, logits: Tensor) -> tuple[Beams, Tensor]:
    """Continue hypotheses by the best tokens of logits (B, R, |V|); return also parents (B, R)."""
    log_probability = logits.log_softmax(dim=-1)
    log_probability[..., [PAD, BOS]] = -torch.inf
    candidates = log_probability.add_(beams.total[..., None]).flatten(1)
    total, choice = candidates.topk(min(int(beams.free.max()), candidates.size(1)))
    parent, token = choice // logits.size(-1), choice % logits.size(-1)
    check_finite(total[:, 0])
    # Finished hypotheses hold their places, so not all of these winners find one
    total[torch.ones_like(total).cumsum(dim=1) > beams.free[:, None]] = -torch.inf
    parts = [beams.tokens.take_along_dim(parent[..., None], dim=1), token[..., None]]
    return beams._replace(tokens=torch.cat(parts, dim=-1), total=total), parent


# %% [markdown]
# The last lines put the winners' words together: the tokens of the parent, and the new word behind them. `take_along_dim` does for the tokens what `Cache.keep` does for the past. That is why the parents are returned.
#
# One step by hand. Two hypotheses with log-probability $-1$ and $-2$, a beam of 2, a vocabulary of six. The first gives word 4 half of the probability and word 5 a quarter, which is $-0.69$ and $-1.39$; the second is nearly sure of word 5. So the candidates have $-1.69$, $-2.39$ and about $-2.0$. The best two are word 4 after the first and word 5 after the second.

# %%
two = start_beams(torch.tensor([[4, EOS]]), limit=torch.tensor([9]), beam=2, n_best=1)
two = two._replace(tokens=torch.tensor([[[BOS, 3], [BOS, 4]]]), total=torch.tensor([[-1.0, -2.0]]))
shares = torch.tensor([[[0, 0, 0.25, 0, 0.5, 0.25], [0, 0, 0, 0, 0.01, 0.99]]])
after, parent = extend(two, shares.log())
print("tokens:", after.tokens.tolist(), " parents:", parent.tolist())
print("log-probabilities:", [round(total, 2) for total in after.total[0].tolist()])

# %% [markdown]
# Here each hypothesis has one child. Had the first one given word 5 a share of 0.45, its candidate would be at $-1.80$, and both places would go to its children.
#
# ### Taking out what has finished
#
# Then those that wrote `</s>`, or reached their limit, are finished. They hand over what they are (the sentence, their tokens, score and log-probability), keep their place for good, and leave minus infinity behind. Suppose that of four hypotheses two finish. Then `free` falls from 4 to 2, and the next step takes the best two continuations of the other two. When `free` is 0, the sentence is done.


# %% tags=["export"]
def finish(beams: Beams, alpha: float) -> tuple[Beams, list[Tensor]]:
    """Take out the hypotheses that have ended or reached their limit."""
    length = beams.tokens.size(-1) - 1  # without <s>
    done = (beams.tokens[..., -1] == EOS) | (beams.limit[:, None] <= length)
    done &= beams.total > -torch.inf
    score = (beams.total / length_penalty(length, alpha)).where(done, -torch.inf)
    sentence = beams.sentence[:, None].expand_as(done)
    finished = [part[done] for part in (sentence, beams.tokens, score, beams.total)]
    best = torch.cat([beams.best, score], dim=1).topk(beams.best.size(1)).values
    free, total = beams.free - done.sum(dim=1), beams.total.masked_fill(done, -torch.inf)
    return beams._replace(free=free, best=best, total=total), finished


# %% [markdown]
# `finish` must not count empty places: their last token may be `</s>` by chance, hence the second line with `done`. All hypotheses of a step have the same length, so one division scores them all. And `best` takes the new scores beside the old ones and keeps the $N$ largest, which is all that the question of stopping needs.
#
# Suppose that the first of our two hypotheses had written `</s>` in place of word 4:

# %%
ending = after._replace(tokens=torch.tensor([[[BOS, 3, EOS], [BOS, 4, 5]]]))
left, (_, tokens, score, _) = finish(ending, alpha=0.6)
print("places free:", left.free.tolist(), " still running:", left.total.isfinite().tolist())
print("finished:", tokens.tolist(), " score:", round(score.item(), 2))

# %% [markdown]
# It has two words with `</s>`, so the score is $-1.69 / (7/6)^{0.6} = -1.69 / 1.10 = -1.54$. One place stays free for the other.
#
# ## When may a search stop?
#
# When all places are taken, at the latest. But often the best hypothesis has long been found while three poor ones run on to the limit. It is tempting to stop at the first that finishes, and wrong: one that finishes later may score higher, as our nine words did.
#
# ### What can a running hypothesis still reach?
#
# Let $s$ be its log-probability and $m$ the length limit. It will never score more than
#
# $$
# \frac{s}{\operatorname{lp}(m)}
# $$ (eq-bound)
#
# Three steps show it, for $\alpha \ge 0$:
#
# 1. No word has a probability above 1, so no logarithm is above 0. However the hypothesis goes on, its final log-probability $s'$ is at most $s$.
# 2. It ends at some length $n \le m$. The penalty grows with the length, so $\operatorname{lp}(n) \le \operatorname{lp}(m)$. Since $s'$ is negative, $s' / \operatorname{lp}(n) \le s' / \operatorname{lp}(m)$.
# 3. By step 1, $s' / \operatorname{lp}(m) \le s / \operatorname{lp}(m)$.
#
# All running hypotheses of a sentence share $m$, so the one with the largest $s$ has the largest bound. One comparison a sentence is enough. If the worst of the $N$ best finished ones scores at least the bound, nothing that runs can come in. The sentence is done, and no result changes. As long as fewer than $N$ have finished, the worst of them is minus infinity, and the search goes on.
#
# The argument needs nothing about the model beyond step 1. It would fail with a bonus for some words, say for covering the source, since then a score could rise.
#
# In numbers: let the best finished score be $-1.2$, the limit 40 and $\alpha = 0.6$, so that $\operatorname{lp}(40) = 7.5^{0.6} = 3.35$. A running hypothesis at $-3$ may still reach $-3 / 3.35 = -0.90$, so the search goes on. At $-5$ the best it can reach is $-1.49$, and we stop.
#
# With $\alpha = 0$ the penalty is 1, and the bound is $s$ itself: the search stops as soon as the best finished hypothesis is ahead of all that run. For a negative $\alpha$, which prefers short sentences, the largest penalty is that of the next length, so we take the larger of the two.


# %% tags=["export"]
def still_open(beams: Beams, alpha: float) -> Tensor:
    """Return (B,), True where a running hypothesis may still come among the best N."""
    most = beams.total.amax(dim=1)
    penalty = ((5 + beams.limit.to(most.dtype)) / 6) ** alpha
    penalty = penalty.clamp(min=length_penalty(beams.tokens.size(-1), alpha))
    return most / penalty > beams.best[:, -1]


# %% [markdown]
# ### Why not compare with the score it has now?
#
# That is the mistake that looks most like a proof: "the best finished one is ahead of all running ones, so stop". A finished hypothesis scores $-0.50$ at $\alpha = 1$, and one that runs has $-0.82$ after two words. If it ended now, at $\operatorname{lp}(3) = 1.33$, it would score $-0.62$ and lose. But if it is certain of its next words, it ends at length 7 with $-0.82/2 = -0.41$ and wins. So the search has to go on. With $-0.30$ to beat and at most 9 words, it need not: $-0.82/2.33 = -0.35$.

# %%
late = two._replace(total=torch.tensor([[-0.82, -math.inf]]))
for finished in (-0.50, -0.30):
    goes_on = still_open(late._replace(best=torch.tensor([[finished]])), 1.0)
    print(f"best finished {finished}: the search goes on", goes_on.item())
    assert goes_on.item() == (finished == -0.50)

# %% [markdown]
# Stopping at the *first* finished hypothesis is worse still, since early means short. It undoes the length penalty. Exercise 4 builds such a case.
#
# ## The whole search
#
# What is left is the loop, and a last sorting. Note what is missing in the loop: any Python loop over sentences or hypotheses. These come only in `collect_n_best`, when the search is over.


# %% tags=["export"]
def collect_n_best(steps: list[list[Tensor]], count: int, n_best: int) -> list[list[Hypothesis]]:
    """Sort what has finished in each step: the best N hypotheses of each sentence, best first."""
    found: list[list[Hypothesis]] = [[] for _ in range(count)]
    for step in steps:
        for number, tokens, score, total in zip(*(part.tolist() for part in step)):
            ended = tokens[-1] == EOS
            found[number].append(Hypothesis(tokens[1 : len(tokens) - ended], score, total, ended))
    return [sorted(row, key=lambda h: h.score, reverse=True)[:n_best] for row in found]


# %% [markdown]
# The loop has one line for each thing that we have built:
#
# | line | what it does |
# |---|---|
# | `next_logits` | reads the newest words, grows the past by one |
# | `extend` | the best continuations, and whose they are |
# | `finish` | takes out what ended |
# | `still_open` | which sentences go on; `nonzero` makes numbers of the True ones |
# | `cache.keep` | past and memory, to the rows that go on |
# | `Beams(...)` | the same for the six tensors |
#
# Follow two sentences with a beam of 4. At first $R = 1$: two rows, each with `<s>`. `extend` finds four first words for each sentence, all with parent 0, and `keep` makes 8 rows of the 2. Some steps later sentence 0 is done. Then `going` is [1], sentence 0 leaves all tensors, and 4 rows remain. So a batch gets cheaper while it runs, and its last sentence runs alone.
#
# Two mistakes are refused before any work: more answers than the beam has places, and an $\alpha$ that is no number or so large that the penalty leaves the range of a float.


# %% tags=["export"]
def beam_search(
    model: Transformer, source: Tensor, beam: int = 4, alpha: float = 0.6,
    max_extra_tokens: int = 50, n_best: int = 1,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Return the n_best best translations found for each source (B, S), best first (section 6.1).

    A hypothesis has at most max_extra_tokens more than its source. Beam 1 is greedy search.
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"beam={beam} and n_best={n_best}: take 1 <= n_best <= beam")
    if not -5 <= alpha <= 5:
        raise ValueError(f"alpha={alpha} must be from -5 to 5; the paper takes 0.6")
    limit = ((source != PAD).sum(dim=1) + max_extra_tokens).clamp(max=model.config.max_length)
    beams, steps = start_beams(source, limit, beam, n_best), list[list[Tensor]]()
    with evaluating(model):
        cache = Cache(model, source)
        while len(beams.sentence):
            beams, parent = extend(beams, next_logits(model, beams.tokens[..., -1], cache))
            beams, finished = finish(beams, alpha)
            steps.append(finished)
            going = still_open(beams, alpha).nonzero()[:, 0]
            cache.keep(going, parent[going])
            beams = Beams(*(column[going] for column in beams))
    return collect_n_best(steps, len(source), n_best)


# %% [markdown]
# ## Is it right?
#
# There is much to get wrong, and wrong beam searches give plausible sentences. Five checks cover what goes wrong most:
#
# | check | what it would catch |
# |---|---|
# | a beam of 1 is greedy | limits off by one, padding or `<s>` chosen, `</s>` not honored |
# | alone as in company | masks that leak, sentences mixed up when others are dropped |
# | scores are forced scores | a past that was not reordered, a wrong length in the penalty |
# | as wide as the space is exhaustive | lost or doubled hypotheses, finished ones that grow on |
# | early stop or not | hypotheses lost when a sentence is dropped |
#
# All run in double precision, where two ways to compute the same number differ by $10^{-15}$ or so. What remains is mistakes. The model is random, but not any random model will do. Most of them never write `</s>`: every hypothesis runs to its limit, and the checks would miss all that concerns ending. We take a seed and stretch the row of `</s>` in the embedding, and with it its logit, until some sentences end and others do not.
#
# **First**, a beam of 1 must write what the readable `greedy_decode` writes, with sentences of very different lengths in one batch.

# %%
random = torch.Generator().manual_seed(1)
lengths = [1, 9, 4, 2, 6, 3]
source = pad([[*torch.randint(4, 13, (n - 1,), generator=random).tolist(), EOS] for n in lengths])
torch.manual_seed(3)
random_model = Transformer(toy).double().eval()
with torch.no_grad():
    random_model.embedding.weight[EOS] *= 1.4
greedy = greedy_decode(random_model, source, max_extra_tokens=12)
assert [
    best.tokens for (best,) in beam_search(random_model, source, beam=1, max_extra_tokens=12)
] == greedy
print("words:", [len(words) for words in greedy], " limits:", [n + 12 for n in lengths])

# %% [markdown]
# The second, third and last sentence end by themselves, the others at their limits. All end at different steps, and the rest went on without them.
#
# **Second**, a sentence must come out the same alone and in company, all hypotheses and all scores of it.


# %%
def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert all(abs(h.score - g.score) < 1e-9 for h, g in zip(one, other))


wide = {"beam": 4, "n_best": 4, "max_extra_tokens": 12}
together = beam_search(random_model, source, **wide)
alone = [beam_search(random_model, row[row != PAD][None], **wide)[0] for row in source]
same(together, alone)
ends = [h.ended for row in together for h in row]
print(f"{len(ends)} hypotheses, of which {sum(ends)} ended: the same alone and in company")

# %% [markdown]
# **Third**, the score of a hypothesis must be what the whole model, without a cache, gives to its words. This is **forced scoring**: the words are given, and we add up their log-probabilities.


# %%
def forced(model, source, hypothesis):
    labels = torch.tensor([*hypothesis.tokens, *[EOS] * hypothesis.ended])
    inputs = torch.tensor([[BOS, *labels[:-1]]])
    with torch.no_grad():
        words = model(source[source != PAD][None], inputs)[0].log_softmax(dim=-1)
    return words.gather(1, labels[:, None]).sum().item(), len(labels)


for row, hypotheses in zip(source, together):
    for h in hypotheses:
        total, n = forced(random_model, row, h)
        assert abs(total - h.log_probability) < 1e-9
        assert abs(total / length_penalty(n, 0.6) - h.score) < 1e-9
print("log-probabilities and scores agree")

# %% [markdown]
# This is the check that a forgotten reordering cannot pass. The words of a hypothesis and its past then come from two different sentences, and the cache's number is not the model's.
#
# **Fourth**, the fast search must find what the short `search` above finds, and with a beam as wide as the space, what trying everything finds. A vocabulary of six has four possible next words: `</s>`, `<unk>`, 4 and 5. A sentence of 0, 1 or 2 words and `</s>`, or of 3 words at the limit, makes $1 + 3 + 9 + 27 = 40$.

# %%
torch.manual_seed(3)
tiny = Transformer(replace(toy, vocabulary_size=6)).double().eval()
one = torch.tensor([[4, EOS]])


def model_words(written):
    with torch.no_grad():
        words = tiny(one, torch.tensor([[BOS, *written]]))[0, -1].softmax(dim=-1)
    return {word: words[word].item() for word in (EOS, 3, 4, 5)}


for beam in (1, 2, 3, 5, 40):
    slow = search(model_words, beam, limit=3, end=EOS)
    fast = beam_search(tiny, one, beam, alpha=0.0, max_extra_tokens=1, n_best=beam)[0]
    assert [tuple(h.tokens) + (EOS,) * h.ended for h in fast] == [words for words, _ in slow]


# %%
def value(words, ended, alpha=0.6):
    total, n = forced(tiny, one[0], Hypothesis([*words], 0, 0, ended))
    return total / length_penalty(n, alpha)


space = [(words, n < 3) for n in range(4) for words in product((3, 4, 5), repeat=n)]
widest = beam_search(tiny, one, beam=40, max_extra_tokens=1, n_best=40)[0]
assert [(tuple(h.tokens), h.ended) for h in widest] == sorted(space, key=lambda h: -value(*h))
print(len(space), "sentences, of total probability", end=" ")
print(round(sum(math.exp(h.log_probability) for h in widest), 2))

# %% [markdown]
# All 40 are found, in the order that a full enumeration with forced scores gives. Nothing in the enumeration knows of beams. Their probabilities do not sum to 1, because an untrained model gives a good part to padding and `<s>`, which we never write.
#
# **Fifth**, stopping early. It must not change anything, for any $\alpha$, and it must save work. We count the positions that pass through the decoder, for 20 new sources, with the bound and with a rule that lets every hypothesis run to its end.

# %%
source = torch.randint(4, 13, (20, 6), generator=random)
source[:, -1] = EOS


def counted(alpha):
    passed = []
    count = lambda _, x, y: passed.append(y[..., 0].numel())
    with random_model.decoder.norm.register_forward_hook(count):
        return beam_search(random_model, source, 4, alpha, max_extra_tokens=30, n_best=2), sum(
            passed
        )


def run_on(beams, alpha):
    return beams.total.amax(dim=1) > -torch.inf


bound = still_open
for alpha in (-0.5, 0.0, 0.6, 1.5):
    still_open = bound
    early, passed = counted(alpha)
    still_open = run_on  # a sentence is done when nothing runs any more
    late, all_passed = counted(alpha)
    same(early, late)
    print(f"alpha {alpha}: the same, with {passed:,} of {all_passed:,} positions")
    assert (passed < all_passed) == (alpha < 1)
still_open = bound

# %% [markdown]
# From 0 upwards, the larger $\alpha$ is, the more a late finisher can still gain, and the less is saved; at 1.5 it is nothing here. The bound is cautious: it allows for a hypothesis that runs to its limit and is certain of each word. At a limit of 62 tokens the penalty is $(67/6)^{0.6} = 4.25$, so a hypothesis at $-6$ could still reach $-1.41$. A tighter bound would need a promise about the model, and there is none.
#
# ## Watching a search
#
# So far nothing was translated. From here on we use a trained model, the small German-English one that comes with the package, and look ahead for it. Its numbers change when it is trained anew, so the text does not lean on them.
#
# The figure follows the short `search` on a caption where greedy search and a beam of 3 disagree, the one with the shortest translation.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained()
captions = multi30k("val")[:250]
sources = [[*tokenizer.encode(pair.source), EOS] for pair in captions]


def best_of(source, beam):
    return beam_search(model, torch.tensor([source]), beam)[0][0].tokens


differ = {}
for index, row in enumerate(sources):
    found = best_of(row, beam=3)
    if len(found) >= 4 and found != best_of(row, beam=1):
        differ[index] = found
chosen = min(differ, key=lambda index: len(differ[index]))
found = differ[chosen]
print(captions[chosen].source, "->", tokenizer.decode(found))

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-tree", "caption": "Which sentences does a beam of 3 consider? A row is a step; choose one on the website. Lines expand the hypotheses that were kept, the number is the log-probability of all words so far, and a row is sorted by it. The best are kept; a finished one (green) holds its place, so fewer are kept below it. The others are pruned (gray, dashed), and only the first of them are drawn. The last picture has all steps, and the thick path wins after the length penalty. Recorded from the trained model."}}
memory_of = torch.tensor([sources[chosen]])


def caption_words(written, top=12):
    with evaluating(model):
        words = model(memory_of, torch.tensor([[BOS, *written]]))[0, -1].softmax(dim=-1)
    words[[PAD, BOS]] = 0
    values, ids = words.topk(top)
    return dict(zip(ids.tolist(), values.clamp(min=1e-30).tolist()))


trace = []
ranked = search(caption_words, 3, limit=len(found) + 2, end=EOS, watch=trace)
winner = max(ranked, key=lambda h: h[1] / length_penalty(len(h[0]), 0.6))[0]
place, nodes = {(): 2}, []
for step, (_, grown, best) in enumerate(trace[: len(winner)], 1):
    shown = nlargest(5, grown, key=lambda h: h[1])
    for column, (words, total) in enumerate(shown):
        done, kept = words[-1] == EOS, any(words == other for other, _ in best)
        node = {"step": step, "above": step - 1, "column": column, "from": place[words[:-1]]}
        node["word"] = "</s>" if done else tokenizer.decode([words[-1]]).strip() or "·"
        node["total"] = f"{total:.2f}".replace("-", "−")
        node["fate"] = ("finished" if done else "kept") if kept else "pruned"
        node["wins"] = winner[:step] == words
        nodes.append(node)
    place = {words: column for column, (words, _) in enumerate(shown)}
steps = nodes[-1]["step"]


def tree(until, result=False):
    seen = [
        n
        for n in nodes
        if n["step"] == until or (n["step"] < until and (result or n["fate"] != "pruned"))
    ]
    base = alt.Chart(alt.Data(values=seen))
    x = alt.X("column:Q", axis=None, scale=alt.Scale(domain=[-0.5, 4.5]))
    start = alt.X("from:Q", axis=None)
    ticks = alt.Axis(values=list(range(1, steps + 1)), format="d", domain=False, ticks=False)
    scale = alt.Scale(domain=[0, steps + 0.5], reverse=True, nice=False)
    y = alt.Y("step:Q", title="step", axis=ticks, scale=scale)
    width = alt.condition("datum.wins", alt.value(4 if result else 1.5), alt.value(1.5))
    looks = {"pruned": (INK, [3, 3], 0.6), "kept": (INK, [1, 0], 1), "finished": (VALUE, [1, 0], 1)}
    lines, boxes = [], []
    for fate in dict.fromkeys(n["fate"] for n in seen):
        color, dash, opacity = looks[fate]
        part = base.transform_filter(f"datum.fate == '{fate}'")
        line = part.mark_rule(color=color, opacity=0.6 * opacity, strokeDash=dash)
        lines.append(line.encode(start, y="above:Q", x2="column:Q", y2="step:Q", strokeWidth=width))
        shape = {"shape": "M-1,-.5L1,-.5L1,.5L-1,.5Z", "size": 4400, "strokeOpacity": opacity}
        box = part.mark_point(fill=PAPER, stroke=color, strokeDash=dash, opacity=1, **shape)
        boxes.append(box.encode(x, y, strokeWidth=width))
        text = {"color": color, "opacity": opacity}
        boxes.append(part.mark_text(dy=-6, **text).encode(x, y, text="word:N"))
        boxes.append(part.mark_text(dy=9, fontSize=10, **text).encode(x, y, text="total:N"))
    return alt.layer(*lines, *boxes).properties(width=420, height=56 * steps)


pictures = {
    f"{n}": (tree(n), f"Continuations at step {n}; the pruned ones are gray.")
    for n in range(1, steps + 1)
}
pictures["all"] = (tree(steps, result=True), "All steps; the path of the winner is thick.")
show_steps(pictures, "Step", start=steps)
assert sum(n["fate"] == "finished" for n in nodes) <= 3

# %% [markdown]
# Begin with step 1 and go on button by button. Five words stand in the first row, and three of them survive. In the second row, look where the lines come from: the candidates of all three parents compete with one another, and a parent whose continuations are all too unlikely dies out. The numbers only fall on the way down, since each word costs something.
#
# Three things can be seen in nearly every such tree. The kept hypotheses often share a parent, and their last words differ little: a beam is less diverse than its width suggests. A hypothesis that leads for some steps may fall behind. And finished ones take up places, until none is left.
#
# The tree draws the short `search` with the twelve best words of each step, and it stops where the winner ends. A word of which all continuations are pruned has no lines below it.
#
# ## More than one answer
#
# The search ends with up to $k$ finished hypotheses, and sorts them. With `n_best=4` it returns four, which together are called an **n-best list**. They cost next to nothing, for they were found anyway. Only the early stop comes later, since it waits for the fourth.

# %% tags=["nbval-ignore-output"]
(four,) = beam_search(model, memory_of, n_best=4)
shares = torch.tensor([h.log_probability for h in four]).softmax(dim=0).tolist()
for h, share in zip(four, shares):
    print(f"{h.score:6.2f} {h.log_probability:7.2f} {share:5.0%}  {tokenizer.decode(h.tokens)}")
assert four[0] == beam_search(model, memory_of, n_best=1)[0][0]
assert [h.score for h in four] == sorted((h.score for h in four), reverse=True)

# %% [markdown]
# The columns are the score, the log-probability, and the share of each among the four. The two orders may differ: the score has the length penalty in it. Asking for more does not change the first, as the check says, since nothing in a step depends on $N$.
#
# What is such a list good for? A person may choose from it. A second model that is too slow to search with may sort it anew. The shares say how sure the model is: a first place with 90 % is another thing than one with 30 %. But scores compare within one source only. A rare topic makes every translation of it unlikely, and that says nothing about their quality.
#
# The four often differ in a comma or an article. If real alternatives are wanted, drawing by lot, below, gives more of them.
#
# ## From lines to batches and back
#
# The third fault: users have text. A batch takes as long as its longest sentence. Sources of 3 and of 40 tokens side by side waste the encoder's work on padding. In decoding they waste steps, too: the long translation goes on alone when the short one is done. So we sort by length, fill batches up to a number of tokens, and put each translation back where its source was. Lines without words stay empty, for who counts lines on both sides must get the same number.
#
# ### Errors before work
#
# Bad input should fail before any work is done, and say which sentence it is. There are two kinds: a sentence with more tokens than the model has positions, and a string that is no text. The second comes from bytes read with the wrong encoding. It holds half of a surrogate pair, which no UTF-8 can express; the tokenizer refuses it, and we add which sentence it was.


# %% tags=["export"]
def encode_sources(tokenizer: Tokenizer, sentences: Iterable[str], most: int) -> Iterator[Tensor]:
    """Yield the ids (S,) of each sentence, with `</s>`; of one without words, none.

    Raises ValueError for a sentence with more than `most` tokens, or that is no text.
    """
    for n, sentence in enumerate(sentences, start=1):
        try:
            ids = [*tokenizer.encode(sentence), EOS] if sentence.strip() else []
        except ValueError as error:
            raise ValueError(f"sentence {n}: {error}") from error
        if len(ids) > most:
            raise ValueError(f"sentence {n} has {len(ids)} tokens, the limit is {most}: split it")
        yield torch.tensor(ids)


# %% [markdown]
# Sentences are counted from 1, since that is how an editor shows them. And all are looked at before the first is translated. An error after an hour of work, in the last batch, would cost that hour.
#
# ### Batches by length
#
# With padding, a batch costs its number of sentences times its longest. Take sources of 3, 14, 4, 3 and 12 tokens and room for 30. Sorted, they are 14, 12, 4, 3, 3. The first of a batch is its longest, so it says at once how many fit: beside 14 there is room for $30 / 14$, rounded down, 2 sentences. Beside 4 there is room for 7, and three are left. That makes $2 \cdot 14 + 3 \cdot 4 = 40$ positions for 36 tokens. All five together would take $5 \cdot 14 = 70$.
#
# The long ones come first for one more reason: if a batch does not fit into memory, it is the first.


# %% tags=["export"]
def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Group sentences of like length, long ones first; yields their numbers.

    With padding a batch has at most max_tokens tokens; a longer sentence goes alone. Length 0
    is left out.
    """
    order = sorted((n for n, length in enumerate(lengths) if length), key=lambda n: -lengths[n])
    while order:
        size = max(1, max_tokens // lengths[order[0]])
        yield order[:size]
        order = order[size:]


# %%
lengths = [3, 14, 4, 3, 12, 0]
batches = list(length_batches(lengths, max_tokens=30))
positions = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
print(batches, f"{positions} positions for {sum(lengths)} tokens")

# %% [markdown]
# The numbers say which sentences they are, so that the caller can put results back. The sixth, of length 0, is in no batch. The plan of [Batching](15_batching.ipynb) cares about more: both sides, few shapes, a new order in each epoch. Here there is one side and one pass.
#
# `translate` puts it together: check everything, cut into tokens, plan, search, write each result to its place. The list of translations starts out with empty strings, so a line without words needs no further care.


# %% tags=["export"]
def translate(
    model: Transformer, tokenizer: Tokenizer, sentences: Iterable[str], beam: int = 4,
    alpha: float = 0.6, max_extra_tokens: int = 50, max_tokens: int = 2048,
) -> list[str]:  # fmt: skip
    """Translate sentences by beam search, the paper's by default; keeps the order.

    Sentences without words stay empty. A batch has at most max_tokens source tokens.
    Raises ValueError if a sentence is too long or no text, or if the tokenizer is not the model's.
    """
    if isinstance(sentences, str):
        raise ValueError("sentences is one string: give a list of them")
    check_vocabulary(model, tokenizer)
    sources = [*encode_sources(tokenizer, sentences, model.config.max_length)]
    translations = [""] * len(sources)
    for batch in length_batches([len(source) for source in sources], max_tokens):
        source = pad_sequence([sources[n] for n in batch], batch_first=True, padding_value=PAD)
        source = source.to(model.embedding.weight.device)
        for n, found in zip(batch, beam_search(model, source, beam, alpha, max_extra_tokens)):
            translations[n] = tokenizer.decode(found[0].tokens)
    return translations


# %% [markdown]
# With the paper's beam and penalty as defaults, the use is three lines: load, translate, print. The device is the model's own, so the same call works on a GPU.
#
# What must hold needs no good model. The order is kept and empty lines stay empty. A sentence comes out the same alone and in company. And translating changes nothing about the model: if it was in training, dropout is back on.

# %% tags=["nbval-ignore-output"]
lines = [pair.source for pair in captions[:12]]
lines[3] = lines[7] = ""
exact = load_pretrained()[0].double().train()
together = translate(exact, tokenizer, lines, max_tokens=100)
assert exact.training
assert [number for number, line in enumerate(together) if not line] == [3, 7]
assert together == [translate(exact, tokenizer, [line])[0] for line in lines]
for line, translation in zip(lines[:3], together):
    print(line, "->", translation)

# %% tags=["nbval-ignore-output"]
for bad, say in ((["Kurz.", "sehr " * 2000], "sentence 2"), (["gr\udcfcn"], "sentence 1")):
    try:
        translate(model, tokenizer, bad)
    except ValueError as error:
        print(error)
        assert say in str(error)

# %% [markdown]
# ## Why does a batch give another translation than the sentence alone?
#
# It is asked about every translation library, and the first answer is: because of a mistake. These are the usual ones.
#
# | mistake | its effect |
# |---|---|
# | no padding mask in the encoder or in cross-attention | a sentence attends to its neighbors' length |
# | padding on the left, and positions that count it | the first word is not at position 0 |
# | a length penalty or a limit that counts padding | another score, another place to be cut |
# | one rule to stop for the whole batch | neighbors decide how long a sentence is searched |
# | dropout that is still on | every call gives something else |
#
# Our check ran in double precision, and that is the second answer. Float addition depends on the order of the terms. A matrix product of another size may add in another order, and a batch is another size.

# %%
print((0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3), f"{(0.1 + 0.2) + 0.3 - (0.1 + (0.2 + 0.3)):.0e}")

# %% [markdown]
# In single precision the difference is about $10^{-7}$ of a number. It matters where two words are equally likely to seven digits; in bfloat16 with its three digits, it matters often. One word that tips over changes all words after it. So a few translations among thousands may differ from batch to batch, and the score hardly moves. If many differ, or they differ in double precision, look for a mistake of the first kind.
#
# ## What did the work of this chapter buy?
#
# We time three ways to write the same 32 captions of middle length, on the machine that ran this notebook.

# %% tags=["nbval-ignore-output"]
middle = pad(sorted(sources, key=len)[100:132])
speed = {}
for name, run in {
    "greedy_decode": lambda: greedy_decode(model, middle, max_extra_tokens=20),
    "beam 1": lambda: [
        found[0].tokens for found in beam_search(model, middle, 1, max_extra_tokens=20)
    ],
    "beam 4": lambda: [
        found[0].tokens for found in beam_search(model, middle, 4, max_extra_tokens=20)
    ],
}.items():
    start = perf_counter()
    written = sum(len(row) + 1 for row in run())
    speed[name] = written / (perf_counter() - start)
    print(f"{name:14} {speed[name]:6,.0f} tokens a second")
assert speed["beam 1"] > 1.5 * speed["greedy_decode"]

# %% [markdown]
# The first two give the same translations. Larger batches help all three, since a large matrix product costs less a row than a small one. That is also why a beam of 4 costs less than four times a beam of 1: its rows share the matrix products. The gain of the cache grows with the length of the sentences, as the figure above says.
#
# ## How wide, and which alpha?
#
# The paper has one setting for translation, chosen on its development set: a beam of 4 and $\alpha = 0.6$. We try others on the first 250 validation captions. Since $\alpha$ does not steer which hypotheses survive, one search for each width is enough. We keep all that finished and sort them anew for each $\alpha$. The quality is measured in BLEU, which [Evaluation](20_evaluation.ipynb) takes apart; higher is better.


# %%
def candidates(beam):
    rows = [None] * len(sources)
    for batch in length_batches([len(row) for row in sources], 2048):
        found = beam_search(model, pad([sources[i] for i in batch]), beam, n_best=beam)
        for number, hypotheses in zip(batch, found):
            rows[number] = hypotheses
    return rows


def chosen_by(rows, alpha):
    def score(h):
        return h.log_probability / length_penalty(len(h.tokens) + h.ended, alpha)

    return [max(row, key=score) for row in rows]


# %% tags=["nbval-ignore-output"]
references = [[pair.target for pair in captions]]
true_length = sum(len(tokenizer.encode(text)) for text in references[0])
swept = []
all_found = {beam: candidates(beam) for beam in (1, 2, 4, 8)}
for beam, rows in all_found.items():
    for alpha in (0.0, 0.6, 1.0):
        best = chosen_by(rows, alpha)
        texts = [tokenizer.decode(h.tokens) for h in best]
        bleu = sacrebleu.corpus_bleu(texts, references).score
        length = sum(len(h.tokens) for h in best) / true_length
        total = sum(h.log_probability for h in best) / len(best)
        print(f"beam {beam} alpha {alpha} BLEU {bleu:.1f} length {length:.2f} log p {total:.2f}")
        record = {"beam": beam, "alpha": f"alpha {alpha}", "BLEU": round(bleu, 2)}
        swept.append(record | {"length": round(length, 3)})
lengths_at = {(r["beam"], r["alpha"]): r["length"] for r in swept}
assert lengths_at[8, "alpha 0.0"] <= lengths_at[8, "alpha 0.6"] <= lengths_at[8, "alpha 1.0"]

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-sweep", "caption": "What do a wider beam and a length penalty change? BLEU (left) and the length of the output over that of the reference (right), for four widths and three values of alpha, on 250 validation captions and the trained model. Without a penalty, sentences get shorter as the beam gets wider."}}
looks = {"alpha 0.0": (KEY, [5, 3]), "alpha 0.6": (QUERY, [1, 0]), "alpha 1.0": (VALUE, [2, 2])}
x = alt.X("beam:O", title="beam", axis=alt.Axis(labelAngle=0))
charts = [
    curves(
        swept, x, alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False)), "alpha", looks
    ).properties(width=200, height=200)
    for field, title in (("BLEU", "BLEU"), ("length", "length / reference"))
]
show(
    alt.hconcat(*charts),
    alt="BLEU and relative length against beam width. Without a penalty the output is shorter at each width above 1.",
)

# %% [markdown]
# Read the left half from left to right: what does a wider beam bring? Read the right half from top to bottom: what does $\alpha$ do to the length? At a beam of 1 the three curves meet, since one hypothesis leaves nothing to choose from. Small ups and downs of BLEU on 250 captions mean little; [Evaluation](20_evaluation.ipynb) says how little.
#
# Three lessons hold far beyond this model.
#
# - **The first steps count most.** What a search gains, it gains with two or four hypotheses, and then the curve flattens. Yet each doubling of the beam doubles the operations of the decoder.
# - **Wider is not always better.** A wide beam finds sentences that the model thinks more likely: the last column is the mean log-probability. Whether they are better translations is another question.
# - **Without a penalty, short wins.** At $\alpha = 0$ the output shrinks as the beam widens. The penalty makes up for it, and the right $\alpha$ is a matter of measuring, on validation data and never on the test set.
#
# ## Why is my beam search worse with a larger beam?
#
# Because it is a better search, and the model is not made for being searched so well. Training asks for the next word, given a right beginning. Nobody ever told the model that an empty translation, as a whole, is a bad one.
#
# Suppose it gives `</s>` a probability of 0.001 as the first word, and 0.7 to the right word at each place of a sentence of 30. The empty sentence has a log-probability of $\ln 0.001 = -6.9$. The right one has $30 \ln 0.7 = -10.7$. So the empty sentence is $0.001 / 0.7^{30} = 44$ times as likely, and only a narrow beam protects us from it, because `</s>` is not among the best two at the first step.


# %%
def hesitant(written):
    unsure = {"word": 0.7, "other": 0.299, "</s>": 0.001}
    return unsure if len(written) < 30 else {"</s>": 1.0}


for beam in (1, 2, 3):
    found = search(hesitant, beam, limit=31)
    fair = max(found, key=lambda h: h[1] / length_penalty(len(h[0]), 0.6))
    print(f"beam {beam}: {len(found[0][0]) - 1} words, with penalty {len(fair[0]) - 1}")

# %% [markdown]
# A beam of 3 finds it. The penalty helps here: $-6.9$ is divided by 1 and $-10.7$ by $\operatorname{lp}(31) = 2.93$, which makes $-3.7$. It does not help always. So if a larger beam lowers your score, look at the lengths first. Then raise $\alpha$, or stay with a beam of 4, as the paper does.
#
# ## Why are my translations too short?
#
# Compare the number of tokens that were written with that of the references, as the right half of the figure does. A ratio well below 1 has one of these causes:
#
# | cause | how to see it |
# |---|---|
# | no length penalty, $\alpha = 0$ | the ratio rises with $\alpha$ |
# | the search stops at the first finished hypothesis | running it to the end changes the result |
# | the limit cuts | `ended` is False |
# | a beam that is too wide | the ratio falls from beam 4 to beam 8 |
# | too little training | the ratio rises from checkpoint to checkpoint |
# | training pairs cut at some length | no translation is longer than that |
#
# The first four lie in the search and the others in the model.
#
# ### Search error or model error?
#
# Which of the two is it? Score the reference with the same model, by forced scoring. If it scores better than the model's own output, the search has missed a better sentence. That is a **search error**, and a wider beam may help. If the output scores better, the search cannot be blamed for it: the model prefers the wrong sentence. That is a **model error**, and no search mends it.

# %% tags=["nbval-ignore-output"]
missed = 0
for row, pair, found in zip(sources[:100], captions, chosen_by(all_found[4], 0.6)):
    reference = Hypothesis(tokenizer.encode(pair.target), score=0, log_probability=0)
    total, n = forced(model, torch.tensor(row), reference)
    missed += total / length_penalty(n, 0.6) > found.score
print(f"the reference scores better in {missed} of 100 captions, our output in {100 - missed}")
assert missed < 50

# %% [markdown]
# The first number counts search errors that are proved. More may hide behind the second, where some third sentence is better than both. But usually the second is by far the larger, and a better search has little left to find.
#
# ## Drawing words by lot
#
# Search wants the best sentence. Sometimes many different ones are wanted: to see what the model thinks possible, or to make training data. Then we draw each word by its probability, which is called **sampling**.
#
# Drawn as they are, words go wrong now and then. Thousands of unlikely words have a small share each, and together they come up often. If they make up 10 % at each place, a sentence of 20 words escapes them with probability $0.9^{20} = 0.12$. And one word that makes no sense is then the beginning of all the rest. Three knobs sharpen the choice:
#
# - The temperature $\tau$ divides the logits. Below 1 the likely words gain, above 1 the unlikely ones. Towards 0 sampling becomes greedy.
# - **Top-k** keeps the $k$ most likely words.
# - **Top-p** keeps the most likely words that together have a share of at least $p$: few where the model is sure, many where it is not.
#
# ### Three knobs on one distribution
#
# Take four words with shares of 0.5, 0.3, 0.15 and 0.05.
#
# *Temperature.* A logit divided by $\tau$ is a share to the power $1/\tau$, up to the sum. With $\tau = 0.5$ the shares are squared: 0.25, 0.09, 0.0225 and 0.0025, which sum to 0.365. Divided by that, the first is $0.25 / 0.365 = 0.685$. With $\tau = 2$ we take square roots, 0.707, 0.548, 0.387 and 0.224, with the sum 1.866, and the first has 0.379. The last grows from 0.05 to 0.120.
#
# *Top-k*, $k = 2$. Two words stay, with $0.5 / 0.8$ and $0.3 / 0.8$.
#
# *Top-p*, $p = 0.7$. The first word has 0.5, which is not enough; with the second it is 0.8, and we stop. Here it is the same as $k = 2$. The difference shows when the model is surer: with shares of 0.9, 0.05, 0.03 and 0.02, top-p 0.7 keeps one word, and top-k 2 still keeps two.
#
# | | word 1 | word 2 | word 3 | word 4 |
# |---|---|---|---|---|
# | as it is | 0.500 | 0.300 | 0.150 | 0.050 |
# | $\tau = 0.5$ | 0.685 | 0.247 | 0.062 | 0.007 |
# | $\tau = 2$ | 0.379 | 0.294 | 0.208 | 0.120 |
# | top-k 2, or top-p 0.7 | 0.625 | 0.375 | 0 | 0 |
#
# In code, all words are sorted, the tail is set to minus infinity, and `scatter` brings them back to the order of the vocabulary. `before` is what the words ahead of a word have together. A word is dropped if that is $p$ or more already. So the first word always stays, for nothing is ahead of it. With $p = 1$ all stay; rounding must not drop the last of them, so that case is left out.


# %% tags=["export"]
def filter_logits(logits: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Set logits (..., V) to minus infinity except the top k, and of these those that make up p."""
    ordered, tokens = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[..., top_k:] = -torch.inf
    if top_p is not None and top_p < 1:
        share = ordered.softmax(dim=-1)
        ordered[share.cumsum(dim=-1) - share >= top_p] = -torch.inf
    return torch.empty_like(logits).scatter(-1, tokens, ordered)


# %%
def rounded(logits):
    return [round(share, 3) for share in logits.softmax(dim=-1).tolist()]


shares = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=torch.float64)
for options in ({"top_k": 2}, {"top_p": 0.7}, {"top_k": 3}, {"top_k": 3, "top_p": 0.55}):
    print(options, rounded(filter_logits(shares.log(), **options)))
for temperature in (0.5, 2):
    print("temperature", temperature, rounded(shares.log() / temperature))

# %% [markdown]
# All as computed, and the words are back in the order of the vocabulary, where the likeliest is the second. The fourth row has both knobs. Top-p counts the shares among the three that top-k has left, $0.526 + 0.316 + 0.158 = 1$. There the first has 0.526, less than 0.55, so a second one stays.
#
# ### Drawing a sentence
#
# The loop needs no beams: one hypothesis for each sentence, and the cache. The generator is handed in, so that the same seed draws the same sentences. The knobs are checked first: a temperature of 0 would divide by zero, and what it stands for has a name already, a beam of 1.


# %% [markdown]
# Two lines differ from the search on purpose. Padding and `<s>` are forbidden *before* the softmax, since here the other words must share what those had: a draw needs shares that sum to 1. And a sentence that is done stays in the batch. It writes padding, which is dropped at the end. That wastes some work and keeps the loop short.


# %% tags=["export"]
def sample(
    model: Transformer, source: Tensor, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None, generator: torch.Generator | None = None,
    max_extra_tokens: int = 50,
) -> list[list[int]]:  # fmt: skip
    """Draw a translation of each source (B, S) token by token; ids without `<s>` and `</s>`."""
    if not 0.01 <= temperature <= 100:
        raise ValueError(f"temperature={temperature} must be from 0.01 to 100; greedy is beam=1")
    if (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ValueError(f"top_k={top_k} must be 1 or more, top_p={top_p} above 0 up to 1, or None")
    limit = ((source != PAD).sum(dim=1) + max_extra_tokens).clamp(max=model.config.max_length)
    target, running = torch.full_like(source[:, :1], BOS), torch.ones_like(limit, dtype=torch.bool)
    with evaluating(model):
        cache = Cache(model, source)
        while running.any():
            logits = next_logits(model, target[:, -1:], cache)[:, 0]
            check_finite(logits.amax(dim=-1))
            logits[:, [PAD, BOS]] = -torch.inf
            shares = filter_logits(logits / temperature, top_k, top_p).softmax(dim=-1)
            token = shares.multinomial(1, generator=generator)[:, 0].where(running, PAD)
            target = torch.cat([target, token[:, None]], dim=1)
            running &= (token != EOS) & (target.size(1) <= limit)
    return [[token for token in row if token not in (PAD, EOS)] for row in target[:, 1:].tolist()]


# %% [markdown]
# Two checks. With top-k 1 there is nothing to draw, so sampling is greedy. And drawn often enough, first words come up as often as the model says. We draw 20,000 from a small model. The share of a word with probability 0.5 then varies by about $\sqrt{0.25 / 20{,}000} = 0.0035$, so 0.015 is more than four times that.

# %%
source = torch.tensor([[4, 5, 6, EOS]])
drawn = sample(random_model, source, top_k=1, max_extra_tokens=3)
assert drawn == [
    found[0].tokens for found in beam_search(random_model, source, beam=1, max_extra_tokens=3)
]

random = torch.Generator().manual_seed(0)
many = sample(random_model, source.expand(20_000, -1), generator=random, max_extra_tokens=-3)
counts = torch.bincount(torch.tensor([row[0] if row else EOS for row in many]), minlength=13)
with evaluating(random_model):
    logits = random_model(source, torch.tensor([[BOS]]))[0, 0]
logits[[PAD, BOS]] = -torch.inf
largest = (counts / 20_000 - logits.softmax(-1)).abs().max().item()
print("drawn as often as the model says, to within 1.5 %:", largest < 0.015)
assert largest < 0.015

# %% [markdown]
# What the temperature does to a trained model shows best on one choice. Here is its first word for the caption of the tree.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-temperature", "caption": "What does the temperature change? The ten most likely first words of a translation and their shares at three temperatures (choose on the website). Filled bars are what top-p 0.9 keeps, outlined ones it drops. Recorded from the trained model."}}
with evaluating(model):
    first = next_logits(model, torch.tensor([[BOS]]), Cache(model, memory_of))[0, 0]
first[[PAD, BOS]] = -torch.inf
ids = first.topk(10).indices


def bars(temperature):
    shares = (first / temperature).softmax(dim=-1)
    inside = filter_logits(first / temperature, top_p=0.9) > -torch.inf
    rows = []
    for number, i in enumerate(ids.tolist(), 1):
        word = f"{number}. {tokenizer.decode([i]).strip() or '·'}"
        rows.append({"word": word, "share": round(shares[i].item(), 3), "kept": inside[i].item()})
    fill = alt.condition("datum.kept", alt.value(QUERY), alt.value(PAPER))
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("share:Q", title="share", scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("word:N", title=None, sort=None),
    )
    chart = base.mark_bar(stroke=QUERY, strokeWidth=1.2).encode(fill=fill)
    return (chart + base.mark_text(align="left", dx=5).encode(text="share:Q")).properties(
        width=330, height=230
    )


assert bars(0.5).to_dict() != bars(2.0).to_dict()
pictures = {f"{t:g}": (bars(t), f"Ten first words at temperature {t:g}.") for t in (0.5, 1, 2)}
show_steps(pictures, "Temperature", start=1)

# %% tags=["nbval-ignore-output"]
generator = torch.Generator().manual_seed(0)
for temperature in (0.5, 1.0, 2.0):
    drawn = sample(
        model, memory_of.expand(3, -1), temperature, generator=generator, max_extra_tokens=5
    )
    print(f"temperature {temperature}:", " | ".join(tokenizer.decode(row) for row in drawn))

# %% [markdown]
# The lower the temperature, the more the drawn sentences resemble each other. At 2 the long tail of unlikely words has taken over, and that is why temperature is seldom raised without top-k or top-p.
#
# Sampling also tells what a search hides. If ten drawn translations say the same in other words, the model is sure of the meaning; if they disagree about who does what, it is guessing, and the fluent sentence on top should not be trusted.
#
# For translation, sampling loses to search: there is a source to be faithful to. It is the other way round where a text should surprise, since the most likely story is a dull one.
#
# ## Which one shall I take?
#
# | | asks the model a step for | gives | use it for |
# |---|---|---|---|
# | greedy, `beam=1` | 1 hypothesis | one sentence, always the same | a quick look, validation during training |
# | beam of 4 | at most 4 | a likelier sentence, always the same, and others behind it | translations that somebody reads, scores that somebody compares |
# | sampling | 1 | another sentence each time | many outputs for one source, seeing how sure the model is |
#
# Say which it was when you report a score. A beam may be worth as much as a change of the model.
#
# ## Questions that come up
#
# **Why not cache in training?** There is nothing to reuse. All positions go through in one pass, and each is computed once.
#
# **Is beam search used in training?** No. The model is trained to give the next word a high probability, given the true words before it. The search is put on top afterwards, and may be changed without training anew.
#
# **Do the logits need a scale when decoding?** Only the one they had in training. A model whose logits were divided by something in training and are not when decoding has another temperature than it learned with.
#
# **Why does the model repeat itself?** Having written a phrase makes the same phrase likelier, and each round adds to that. It happens most with models that have not learned enough, and the limit ends it. Some programs forbid a sequence of three words to come twice. That hides the loop and not its cause, and it breaks sentences where a repetition is right.
#
# **Can the cache stay for the next sentence?** No. The memory belongs to one source, and through cross-attention every state of the past does, too. What can stay is the memory alone, if the same source is to be translated twice.
#
# **Can the search leave words out?** Nothing forbids it. Neither beam search nor the length penalty looks at the source; only the model does. A model that is not sure may find it cheap to skip a clause, and a wide beam will find that.
#
# ## What to remember
#
# - The causal mask keeps old positions as they are, so their keys and values are computed once. The memory's are computed once a sentence, and all hypotheses share them.
# - In beam search the past moves with its hypothesis. A cache that is not reordered raises no error and gives wrong scores.
# - Beam search expands, scores and prunes. Finished hypotheses keep their place and do not grow on.
# - Scores are divided by $((5 + n)/6)^\alpha$, where $n$ counts `</s>`. The same $\alpha$ with $n^\alpha$ is another search.
# - A search may stop when no running hypothesis can still reach the best finished ones, even if it were certain of all words to its limit.
# - A wider beam finds more likely sentences, not always better ones. Forced scoring tells whose fault a bad sentence is, the search's or the model's.
# - Temperature, top-k and top-p sharpen a distribution before a word is drawn.

# %% [markdown]
# ## Exercises
#
# **1. By hand.** Two finished hypotheses have log-probability $-4$ at length 7 and $-4.4$ at length 13. Which wins at $\alpha = 0$, and which at $\alpha = 0.6$? ($2^{0.6} = 1.52$, $3^{0.6} = 1.93$)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# At 0 the first. At 0.6 the penalties are 2 ** 0.6 and 3 ** 0.6, and the second is ahead.
short_one, long_one = -4 / length_penalty(7, 0.6), -4.4 / length_penalty(13, 0.6)
print(f"{short_one:.2f} {long_one:.2f}")
assert abs(short_one + 4 / 1.52) < 0.01 and abs(long_one + 4.4 / 1.93) < 0.01

# %% [markdown]
# **2. By hand.** How many positions pass through the decoder for 30 words, without a cache and with one? And for a beam of 4 with a cache, if none of its hypotheses ends early?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 30 * 31 / 2 = 465 without and 30 with. The beam has one hypothesis at the first step and 4 at the other 29.
torch.manual_seed(1)
endless, passed = Transformer(toy).double(), []  # it never writes </s>
with endless.decoder.norm.register_forward_hook(lambda _, x, y: passed.append(y[..., 0].numel())):
    beam_search(endless, torch.tensor([[4, EOS]]), beam=4, max_extra_tokens=28)
print(30 * 31 // 2, 30, sum(passed))
assert sum(passed) == 1 + 29 * 4

# %% [markdown]
# **3. What breaks if** the cache is not reordered when one hypothesis takes another's place? Predict what happens to the words and to their scores, then try it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing fails. A hypothesis looks back at the words of another, so its score is not the model's any more.
right = Cache.keep


def forgetful(cache, sentences, parents):
    if len(cache.self_kv[0][0]) > len(cache.mask):
        parents = torch.arange(parents.size(1)).expand_as(parents)
    right(cache, sentences, parents)


Cache.keep = forgetful
wrong = beam_search(random_model, source, beam=4, max_extra_tokens=6, n_best=4)[0]
Cache.keep = right
agree = [abs(forced(random_model, source[0], h)[0] - h.log_probability) < 1e-9 for h in wrong]
print("all scores are the model's:", all(agree))
assert not all(agree)

# %% [markdown]
# **4. Too early.** Stop at the first finished hypothesis. Write a table like `TABLE` for which this loses with a beam of 2 and $\alpha = 1$.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A short answer that is a little more likely, and a long one that is certain after its first word.
certain = ["yes", "of", "course", "it", "is", "as", "said", "</s>"]
table = {(): {"yes.": 0.6, "well,": 0.4}, ("yes.",): {"</s>": 1.0}}
table |= {("well,", *certain[:n]): {certain[n]: 1.0} for n in range(8)}
found = search(lambda written: table[written], beam=2, limit=9)
first_done = min(found, key=lambda h: len(h[0]))
best = max(found, key=lambda h: h[1] / length_penalty(len(h[0]), 1.0))
print("first:", " ".join(first_done[0]), " best:", " ".join(best[0]))
assert first_done != best

# %% [markdown]
# **5. In which order?** Our `sample` applies the temperature before top-p. Would it be the same afterwards? And for top-k?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Top-k keeps the same words either way. A high temperature flattens the shares, so top-p then needs more words.
for name, options in {"top-k": {"top_k": 2}, "top-p": {"top_p": 0.7}}.items():
    before = filter_logits(shares.log() / 3, **options).isfinite().sum().item()
    after = (filter_logits(shares.log(), **options) / 3).isfinite().sum().item()
    print(f"{name}: words kept with the temperature first {before}, last {after}")

# %% [markdown]
# ## Sources
#
# Beam of 4, $\alpha = 0.6$ and the limit of 50 tokens more than the input are from section 6.1 of {cite:t}`vaswani2017attention`. The length penalty is that of {cite:t}`wu2016google`, without their second penalty for words of the source that nothing attended to.
