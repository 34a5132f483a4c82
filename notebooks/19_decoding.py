# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # Decoding
#
# This chapter turns a trained model into a translator, which chooses one word after another: by greedy search, by sampling, or by beam search with a length penalty (section 6.1 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("decoding")

# %% [markdown]
# A trained model doesn't translate. Given a German sentence and the English words so far, it returns a probability for every word that could come next. Something else has to choose one, append it, and ask again. The obvious choice is the model's favorite. We let the [captions model](18_training.ipynb#the-captions-model) translate *Der Mann ist auf dem Sofa eingeschlafen* like that: the man has fallen asleep on the couch.

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
from functools import lru_cache
from heapq import nlargest
from time import process_time

import altair as alt

from annotated_transformer import check, load_pretrained, preset, translate
from annotated_transformer.batching import pad
from annotated_transformer.own_data import multi30k
from benchmarks.common import read_log
from book.figures import AMBER, INK, PAPER, PLUM, SKY, curves, show, show_steps

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
# `next_words` takes the tokens written so far and returns these probabilities. (Most tokens are whole words, so we call them words.) **Greedy search** takes the most probable word each time:


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

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-fork", "caption": "Where does greedy search go wrong? Two ways to write the sentence, and the probability of each word after the words above it. The titles give the product of the column."}}


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
# After *The man is*, the model gives `on` 0.62 and `asleep` 0.09. Greedy search takes `on`, and in the German order there is no good place left for `asleep`. The other sentence accepts the 0.09 and has an easy way from there.
#
# What counts is the probability of the whole sentence $Y$ given the source $X$, the product of the bars. Long products vanish in 32 bits, so we add logarithms, which keep the order:
#
# $$
# \log P(Y \mid X) = \sum_{t=1}^{n} \log P(y_t \mid y_1, \dots, y_{t-1}, X)
# $$ (eq-log-probability)
#
# The last word $y_n$ is `</s>`, because stopping has its probability like any other choice. The sentence that greedy search never saw is four times as probable as its own, at $-3.13$ against $-4.59$.
#
# We can't try every sentence: with a vocabulary of 6,000, nine places hold about $10^{34}$. But we can follow several beginnings at a time.
#
# ## Beam search
#
# **Beam search** follows the best $k$ beginnings. A **hypothesis** is the beginning of a translation with its log-probability, and the **beam** is the set of hypotheses that are alive. Each round *expands* every hypothesis by every next word, *scores* the results by adding a logarithm, and *prunes* them to the best $k$:


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
# At step 4 of {numref}`fig-beam-tree`, `asleep` is far behind, $-0.225 - 2.370 = -2.595$ against $-0.225 - 0.477 = -0.702$ for `on`, but still in the beam. Will it catch up?

# %% tags=["remove-cell"]
if CHECKING:
    grown = {}
    for words, total in search(next_words, 2, limit=3):
        for word, p in next_words(words).items():
            grown[tokenizer.decode([*words, word])] = total, math.log(p)
    by_hand = {
        "The man is on": (-0.225, -0.477),
        "The man is asleep": (-0.225, -2.370),
    }
    assert nlargest(2, grown, key=lambda text: sum(grown[text])) == [*by_hand]
    for text, numbers in by_hand.items():
        assert max(abs(a - b) for a, b in zip(grown[text], numbers)) < 0.002

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-tree", "caption": "Which sentences does a beam of 3 consider? Each row is a step, sorted by the log-probability of all words so far. Lines lead from a hypothesis to its continuations; three are kept, the others (gray, dashed) are pruned, and only the first of those are drawn. A finished one (purple) holds its place. The thick path wins."}}
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
    totals = {n["word"]: n["total"] for n in nodes if n["step"] == 7}
    assert (totals["couch"], totals["is"]) == ("−2.82", "−2.84")

# %% [markdown]
# Three rounds later it is in front. *The man is on the couch* has to go on with a word at 0.14 and falls to $-2.84$; *The man is asleep on the couch* stands at $-2.82$.

# %% tags=["nbval-ignore-output"]
for beam in (1, 2, 3):
    words, total = search(next_words, beam, limit=20)[0]
    print(f"beam {beam}: {total:.2f}  {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(total + 3.13) < 0.01

# %% [markdown]
# A beam of 1 is greedy search, and a second hypothesis is enough for this sentence. Beam search promises nothing, though: a better sentence may begin with words that were pruned.
#
# ### A hypothesis that ends
#
# The model was never trained to go on after `</s>`, so a hypothesis that has written it must not grow. In our search it keeps its place in the beam, which leaves fewer for the others. (The authors' search [frees the place](../book/departures.md#decoding).)
#
# ## Why do searches prefer short sentences?
#
# This is what a beam of 4 finds for *Zwei große Hunde tollen auf einem grasbewachsenen Feld*, two large dogs frolic in a grassy field:

# %% tags=["nbval-ignore-output"]
meadow = "Zwei große Hunde tollen auf einem grasbewachsenen Feld."
candidates = search(model_for(meadow), beam=4, limit=20)
for words, total in candidates:
    print(f"{total:.2f}  length {len(words)}  {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    (first_words, first), (second_words, second), *_ = candidates
    assert (len(first_words), len(second_words)) == (10, 11)
    assert "wrestle" in tokenizer.decode(second_words)
    assert abs(first + 3.925) < 0.004 and abs(second + 4.001) < 0.004

# %% [markdown]
# The winner no longer says what the dogs do, only where they are. The second says it, if not quite rightly, with `wrestle`; it is one token longer and loses by 0.08.
#
# Every word multiplies the probability by a number below 1. If each has 0.5, ten words are $2^5 = 32$ times less probable than five, although none of them is worse.
#
# The paper divides the log-probability by a **length penalty**, which it takes from GNMT {cite:p}`wu2016google`:
#
# $$
# \operatorname{score}(Y) = \frac{\log P(Y \mid X)}{\operatorname{lp}(n)}, \qquad
# \operatorname{lp}(n) = \left(\frac{5 + n}{6}\right)^{\alpha}
# $$ (eq-length-penalty)
#
# It takes $\alpha = 0.6$ and doesn't say what $n$ counts. We count the tokens and the `</s>`, as the authors' code does.
#
# **Exercise 1. Write it first** (★, 5 min). Before you read on, write `length_penalty(length, alpha)` from the formula. `print(check("length_penalty", yours))` says whether it is right, with `check` from `annotated_transformer`. And whom does the penalty help, the short or the long?


# %% tags=["export"]
def length_penalty(length: float | Tensor, alpha: float) -> float | Tensor:
    """Divide a log-probability by this; length counts the tokens and `</s>` (section 6.1)."""
    return ((5 + length) / 6) ** alpha


# %% tags=["nbval-ignore-output"]
for words, total in candidates:
    divided = total / length_penalty(len(words), alpha=0.6)
    print(f"{total:.3f} becomes {divided:.3f}  {tokenizer.decode(words)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert check("length_penalty", length_penalty).passed
    assert abs(first / length_penalty(10, 0.6) + 2.265) < 0.004
    assert abs(second / length_penalty(11, 0.6) + 2.221) < 0.004
    divided = [s / length_penalty(len(words), 0.6) for words, s in candidates]
    assert max(divided) == divided[1]

# %% [markdown]
# The name misleads. Log-probabilities are negative, so dividing by a larger number brings a score closer to zero, which is *up*: the penalty helps the long. By hand: $\operatorname{lp}(10) = (15/6)^{0.6} = 1.733$ and $-3.925 / 1.733 = -2.265$. The second has length 11, and $-4.001 / 1.801 = -2.221$ wins.
#
# ### Where the penalty acts
#
# All hypotheses of one step are equally long, so $\alpha$ can't change which of them stay in the beam. It decides which of the finished wins, and when the search may stop.
#
# ## When a search may stop
#
# Nothing forces a model to write `</s>`, and one that is lost may repeat three words forever. So the paper allows an output at most 50 tokens more than the input.
#
# To stop at the first hypothesis that finishes is tempting and wrong, because a longer one may score better, like the dogs that wrestle. How far can the score of a running one still rise? Its log-probability $s$ can only fall. But being negative, it gains from a large divisor, and the largest is that of the length limit $m$. So for $\alpha \ge 0$ the score never gets above
#
# $$
# \frac{s}{\operatorname{lp}(m)}
# $$ (eq-bound)
#
# When this is below the best finished score for every running hypothesis, the search may stop. Say the limit is 40, with $\operatorname{lp}(40) = 7.5^{0.6} = 3.35$, and the best finished score is $-1.2$. A running hypothesis at $-3$ may still reach $-3 / 3.35 = -0.90$, so the search goes on; one at $-5$ reaches $-1.49$ at best.
#
# ## The KV cache
#
# Our loops send the whole beginning through the decoder again for every new word. For 20 words these are $1 + 2 + \dots + 20 = 210$ positions, where 20 would do.
#
# An old result can be reused only if no new word changes it. The [causal mask](04_masks.ipynb) guarantees that: in every layer, a position attends to itself and to those before it.
#
# What a new word needs from an old one is its **key** and its **value**, in every layer. Kept, they are the **KV cache**. (Old queries aren't needed, since only the newest word still asks.) [Multi-head attention](05_multi_head_attention.ipynb#the-module) does two things in one go, which we need apart: `project` makes keys and values, and `attend_to` lets queries look at them.


# %% tags=["export"]
class KeysAndValues(NamedTuple):
    """What attention looks at, one row for each sentence or hypothesis."""

    keys: Tensor  # (rows, H, S, d_k)
    values: Tensor  # (rows, H, S, d_v)


def project(attention: MultiHeadAttention, x: Tensor) -> KeysAndValues:
    """Return the keys and values of vectors x (B, S, D)."""
    keys = split_heads(attention.key(x), attention.heads)
    values = split_heads(attention.value(x), attention.heads)
    return KeysAndValues(keys, values)


def attend_to(
    attention: MultiHeadAttention, x: Tensor, kv: KeysAndValues, mask: Mask = None
) -> Tensor:
    """Let vectors x (B, T, D) look at keys and values; returns (B, T, D)."""
    query = split_heads(attention.query(x), attention.heads)
    heads, _ = attention.attend(query, kv.keys, kv.values, mask)
    return attention.output(merge_heads(heads))


# %% [markdown]
# Two helpers choose rows of a cache and put new positions behind the old:


# %% tags=["export"]
def pick(kv: KeysAndValues, rows: Tensor) -> KeysAndValues:
    """Return some rows of keys and values."""
    return KeysAndValues(*(part.index_select(0, rows) for part in kv))


def lengthen(kv: KeysAndValues, new: KeysAndValues) -> KeysAndValues:
    """Put the keys and values of new positions behind the others."""
    return KeysAndValues(*(torch.cat(both, dim=2) for both in zip(kv, new)))


# %% [markdown]
# A decoder layer attends twice, so it has two caches. `cross_kv` holds the source; it is computed once, and all hypotheses of a sentence share it. `self_kv` holds the words written so far, with a row for each hypothesis, and grows by one position in each step.


# %% tags=["export"]
class Cache:
    """Keys and values of each decoder layer, for R hypotheses of each of B sentences.

    `self_kv` has B * R rows, `cross_kv` has B. Starts with R = 1 and nothing written.
    """

    def __init__(self, model: Transformer, source: Tensor) -> None:
        memory = model.encode(source)
        parts = model.decoder.modules()
        self.layers = [part for part in parts if isinstance(part, DecoderLayer)]
        self.length = 0
        self.mask = padding_mask(source)
        self.cross_kv = [
            project(layer.cross_attention, memory) for layer in self.layers
        ]
        self.self_kv = [
            KeysAndValues(k[:, :, :0], v[:, :, :0]) for k, v in self.cross_kv
        ]

    def keep(self, sentences: Tensor, parents: Tensor) -> None:
        """Keep the sentences of these numbers (B,), and of each the hypotheses parents (B, R)."""
        count = len(self.mask)
        rows = len(self.self_kv[0].keys)
        chosen = (sentences[:, None] * (rows // count) + parents).flatten()
        if len(sentences) < count:
            self.mask = self.mask[sentences]
            self.cross_kv = [pick(kv, sentences) for kv in self.cross_kv]
        if not torch.equal(chosen, torch.arange(rows, device=chosen.device)):
            self.self_kv = [pick(kv, chosen) for kv in self.self_kv]


# %% [markdown]
# ### When hypotheses change places
#
# Say a beam of 3 holds *the cat*, *a dog* and *one bird*, and the best continuations are *the cat sat*, *the cat ran* and *one bird flew*. Now *the cat ran* needs the keys and values of *the cat*, where those of *a dog* are stored. So `keep` gathers the rows of the parents, here 0, 0 and 2.
#
# ### One word through the decoder
#
# A step takes one new word for each hypothesis through the three sub-layers of [the decoder layer](09_layers.ipynb#the-decoder-layer). The word's key and value are added to the past *before* the word looks back, because it attends to itself as well. It needs no mask, since the future that a mask would hide doesn't exist yet.


# %% tags=["export"]
def layer_step(x: Tensor, cache: Cache, number: int) -> Tensor:
    """Pass the newest tokens (B, R, D) through one decoder layer."""
    layer = cache.layers[number]

    def look_back(y: Tensor) -> Tensor:
        rows = y.flatten(0, 1)[:, None]  # (B * R, 1, D): each looks at its own past
        new = project(layer.self_attention, rows)
        cache.self_kv[number] = lengthen(cache.self_kv[number], new)
        return attend_to(layer.self_attention, rows, cache.self_kv[number]).view_as(y)

    def look_at_source(y: Tensor) -> Tensor:
        # R hypotheses of a sentence are treated as R positions of one target
        return attend_to(layer.cross_attention, y, cache.cross_kv[number], cache.mask)

    x = layer.residuals[0](x, look_back)
    x = layer.residuals[1](x, look_at_source)
    return layer.residuals[2](x, layer.feed_forward)


# %% [markdown]
# The position of the new word is the number of words before it, `cache.length`. Forget it, and every word is embedded as the first.


# %% tags=["export"]
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
# Are the logits the same, and how much time is saved? Here are 32 captions, with forty random words for each.


# %% tags=["nbval-ignore-output"]
def with_cache(source, target):
    cache = Cache(model, source)
    return [next_logits(model, word, cache) for word in target.split(1, dim=1)]


def without_cache(source, target):
    memory = model.encode(source)
    prefixes = [target[:, :n] for n in range(1, target.size(1) + 1)]
    states = [model.decode(prefix, memory, source)[:, -1:] for prefix in prefixes]
    return [model.embedding.logits(state) for state in states]


source = pad([[*tokenizer.encode(p.source), EOS] for p in multi30k("val")[:32]])
target = torch.randint(4, len(tokenizer), (32, 40))
logits, seconds = [], []
for step_by_step in (without_cache, with_cache):
    start = process_time()
    with evaluating(model):
        logits.append(torch.cat(step_by_step(source, target), dim=1))
    seconds.append(process_time() - start)
    print(f"{step_by_step.__name__}: {seconds[-1]:.2f} seconds")
print(f"largest difference: {(logits[0] - logits[1]).abs().max():.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert (logits[0] - logits[1]).abs().max() < 1e-3
    assert seconds[0] > 2 * seconds[1]
    cache = Cache(model, source[:2])
    past = torch.arange(6.0).view(6, 1, 1, 1)
    cache.self_kv = [KeysAndValues(past, past)]
    cache.keep(torch.tensor([0, 1]), torch.tensor([[0, 0, 2], [1, 0, 1]]))
    assert cache.self_kv[0].keys.flatten().tolist() == [0, 0, 2, 4, 3, 4]
    cache.keep(torch.tensor([1]), torch.tensor([[2, 1]]))
    assert cache.self_kv[0].keys.flatten().tolist() == [4, 3] and len(cache.mask) == 1

# %% [markdown]
# In training there is nothing to cache, because all positions go through in one pass.
#
# ### The same, in one call
#
# With a cache, a step computes so little that much of its time goes into *starting* operations. The formula of `layer_norm` takes ten. PyTorch does it in one, and our `attention` in another:


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


# %% [markdown]
# `use_fused` puts them in the place of ours, and but for rounding nothing changes. Loading a model does this, and so does `train`; in training they [save memory as well](26_speed.ipynb#attention-without-the-matrix).


# %% tags=["export"]
def use_fused(model: nn.Module) -> None:
    """Let a model compute attention and layer normalization by PyTorch's fused functions."""
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.attend = fused_attention
        elif isinstance(part, LayerNorm):
            part.normalize = fused_layer_norm


# %% tags=["remove-cell"]
if CHECKING:
    tiny = Transformer(preset("tiny", vocabulary_size=9)).double().eval()
    pair = torch.tensor([[4, 5, EOS], [6, EOS, PAD]]), torch.tensor([[BOS, 7, 8]] * 2)
    by_formula = tiny(*pair)
    use_fused(tiny)
    torch.testing.assert_close(tiny(*pair), by_formula)

# %% [markdown]
# ## The search in tensors
#
# `search` makes a Python tuple of each candidate: for 64 sentences and a beam of 4, one and a half million per step. The package's search holds the hypotheses of all sentences in a few tensors, with sentences on the axis $B$ and hypotheses on the axis $R$. A place without a hypothesis has the log-probability minus infinity, which no `topk` prefers.


# %% tags=["export"]
class Beams(NamedTuple):
    """The running hypotheses, R places in each of the B sentences that are not done."""

    sentence: Tensor  # (B,), number in the batch
    limit: Tensor  # (B,), tokens at most
    free: Tensor  # (B,), places that no finished hypothesis holds
    best: Tensor  # (B, N), scores of the best finished hypotheses
    tokens: Tensor  # (B, R, T), from <s> on
    total: Tensor  # (B, R), log-probability; minus infinity: no hypothesis


def length_limit(model: Transformer, source: Tensor, max_extra_tokens: int) -> Tensor:
    """Return how many tokens the translation of each source (B, S) may have, (B,)."""
    limit = (source != PAD).sum(dim=1) + max_extra_tokens
    return limit.clamp(min=1, max=model.config.max_length)


def start_beams(source: Tensor, limit: Tensor, beam: int, n_best: int) -> Beams:
    """Begin with one hypothesis, `<s>`, for each source (B, S)."""
    count, device = len(source), source.device
    return Beams(
        sentence=torch.arange(count, device=device),
        limit=limit,
        free=torch.full_like(limit, beam),
        best=torch.full((count, n_best), -torch.inf, device=device),
        tokens=torch.full_like(source[:, :1, None], BOS),
        # One hypothesis: R equal ones would all grow alike
        total=torch.zeros(count, 1, device=device),
    )


# %% [markdown]
# ### Expand, score, prune: one `topk`
#
# The $R \cdot |V|$ continuations of a sentence go into one row, and one `topk` finds the best. A winner's position in that row gives its parent and its word: with 13 words, position 30 is word 4 of hypothesis 2, both counted from 0, since $30 = 2 \cdot 13 + 4$.


# %% tags=["export"]
def extend(beams: Beams, logits: Tensor) -> tuple[Beams, Tensor]:
    """Continue hypotheses by the best tokens of logits (B, R, |V|); return also parents (B, R)."""
    log_probability = logits.log_softmax(dim=-1)
    log_probability[..., [PAD, BOS]] = -torch.inf  # neither is ever a next word
    log_probability += beams.total[..., None]
    candidates = log_probability.flatten(1)
    width = min(int(beams.free.max()), candidates.size(1))
    total, choice = candidates.topk(width)
    parents = choice // logits.size(-1)
    token = choice % logits.size(-1)
    # Finished hypotheses hold their places, so not all of these winners find one
    rank = torch.arange(width, device=total.device)
    total = total.where(rank < beams.free[:, None], -torch.inf)
    words = beams.tokens.take_along_dim(parents[..., None], dim=1)
    tokens = torch.cat([words, token[..., None]], dim=-1)
    return beams._replace(tokens=tokens, total=total), parents


# %% [markdown]
# ### The whole search
#
# A hypothesis that is `done` keeps its place, and with minus infinity in `total` it can't grow.


# %% tags=["export"]
class Hypothesis(NamedTuple):
    """A translation that a search has found: ids without `<s>` and `</s>`, and its score.

    `ended` is False if the length limit cut it off before `</s>`.
    """

    tokens: list[int]
    score: float
    log_probability: float
    ended: bool = True


# %% tags=["export"]
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


# %% [markdown]
# `still_open` compares [the bound](#when-a-search-may-stop) with the worst of the `n_best` translations that you asked for.
#
# :::{margin}
# If $\alpha$ is negative, the largest divisor is that of the next length, hence the `maximum`.
# :::


# %% tags=["export"]
def still_open(beams: Beams, alpha: float) -> Tensor:
    """Return (B,), True where a running hypothesis may still come among the best N."""
    most = beams.total.amax(dim=1)
    at_limit = length_penalty(beams.limit.to(most.dtype), alpha)
    at_next = length_penalty(beams.tokens.size(-1), alpha)
    return torch.maximum(most / at_limit, most / at_next) > beams.best[:, -1]


# %% [markdown]
# The loop puts the pieces together. Sentences that are done leave all tensors, so a batch gets cheaper while it runs.


# %% tags=["export"]
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
            beams, parents = extend(beams, logits)
            beams = finish(beams, alpha, results)
            going = still_open(beams, alpha).nonzero()[:, 0]
            cache.keep(going, parents[going])
            beams = Beams(*(column[going] for column in beams))
    best_first = [sorted(found, key=lambda h: -h.score) for found in results]
    return [found[:n_best] for found in best_first]


# %% [markdown]
# ### Checks
#
# A wrong beam search writes plausible sentences, so check its numbers. The **forced score** gives the model a finished translation and adds up its log-probabilities in one pass, without cache or beam.


# %% tags=["nbval-ignore-output"]
def forced(model, source, tokens):
    labels = torch.tensor([*tokens, EOS])
    inputs = torch.tensor([[BOS, *tokens]])
    with evaluating(model):
        words = model(source, inputs)[0].log_softmax(dim=-1)
    return words.gather(1, labels[:, None]).sum().item()


source = torch.tensor([[*tokenizer.encode(meadow), EOS]])
(ranked,) = beam_search(model, source, n_best=4)
for h in ranked:
    again = forced(model, source, h.tokens)
    print(f"{h.log_probability:.2f}, forced {again:.2f}  {tokenizer.decode(h.tokens)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert sorted((*h.tokens, EOS) for h in ranked) == sorted(w for w, _ in candidates)
    for h in ranked:
        assert abs(forced(model, source, h.tokens) - h.log_probability) < 0.001

# %% [markdown]
# These are the four that `search` found, now sorted by score.
#
# :::{margin}
# The package's tests go on to **exhaustive search**, on models with six words.
# :::
#
# ## Sampling: drawing words at random
#
# Chat programs don't search. In **sampling**, each word is drawn by its probability, `on` in about 62 of 100 draws, `asleep` in about nine. But thousands of improbable words add up. If they have 10% at each place, a sentence of 20 words escapes them with probability $0.9^{20} = 0.12$. Three knobs change the shares:
#
# - The **temperature** $\tau$ divides the logits, which raises each probability to the power $1/\tau$. Below 1 the probable words gain, above 1 the improbable ones; towards 0 sampling becomes greedy.
# - **Top-k** keeps the $k$ most probable words.
# - **Top-p**, or nucleus sampling {cite:p}`holtzman2020curious`, keeps the most probable words that together reach a share of $p$: few where the model is sure, many where it isn't.


# %% tags=["export"]
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
    return torch.empty_like(logits).scatter(-1, tokens, ordered)  # in the old order


# %% [markdown]
# The loop is that of greedy search, except that the next word is drawn:


# %% tags=["export"]
def sample(
    model: Transformer,
    source: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
    max_extra_tokens: int = 50,
) -> list[list[int]]:
    """Draw a translation of each source (B, S), ids without `<s>` and `</s>`."""
    if not 0.01 <= temperature <= 100:
        raise ValueError(f"temperature={temperature} must be from 0.01 to 100")
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
# Two draws at each of three temperatures, cut after eleven tokens:

# %% tags=["nbval-ignore-output"]
sofa = torch.tensor([[*tokenizer.encode(caption), EOS]])
draws = Generator().manual_seed(0)
for temperature in (0.5, 1, 2):
    for row in sample(model, sofa.expand(2, -1), temperature, generator=draws):
        print(f"temperature {temperature}: {tokenizer.decode(row[:11])}")

# %% [markdown]
# Why is a temperature of 2 gibberish? We count how many words share 90% of the probability after *The man is*:

# %% tags=["nbval-ignore-output"]
target = torch.tensor([[BOS, *tokenizer.encode("The man is")]])
with evaluating(model):
    after = model(sofa, target)[0, -1]
counts = {}
for temperature in (0.5, 1, 2):
    kept = filter_logits(after / temperature, top_p=0.9)
    counts[temperature] = int(kept.isfinite().sum())
print(counts)

# %% tags=["remove-cell"]
if CHECKING:
    assert counts[0.5] == 1 and 50 < counts[1] < 80 and 4200 < counts[2] < 4500
    only = sample(model, sofa, top_k=1)
    assert tokenizer.decode(only[0]) == "The man is on the couch is asleep."

# %% [markdown]
# At a temperature of 2, it takes 4,315 of the 6,000 words to reach 90%. So even with a top-p of 0.9 most of the vocabulary is in play. Top-k would help.
#
# ## Beam width and alpha
#
# What does a beam buy? We have translated the 1,014 validation captions (`python -m benchmarks.experiments.widths`). The measure is [BLEU](20_evaluation.ipynb#why-each-part-of-bleu-is-there), and higher is better.


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-sweep", "caption": "What do a wider beam and a length penalty change? Above: how far a beam is ahead of greedy search in BLEU, on 1,014 validation captions. Below: the length of the output over that of the references."}}
_, *logged = read_log("widths")
swept = [
    record | {"exponent": f"alpha {record['alpha']}"}
    for record in logged
    if record["captions"] == "val" and record["alpha"] != 1.0
]
looks = {
    "alpha 0.0": (PLUM, [5, 3]),
    "alpha 0.6": (SKY, [1, 0]),
    "alpha 1.4": (AMBER, [2, 2]),
}
beam = alt.X("beam:O", title="beam", axis=alt.Axis(labelAngle=0))
ahead = alt.Y("ahead:Q", title="BLEU ahead of greedy search")
scale = alt.Scale(domain=[0.86, 0.96])
length = alt.Y("length:Q", title="length / reference", scale=scale)
sides = {
    "alpha 0.0": (16, "below"),
    "alpha 0.6": (8, "above right"),
    "alpha 1.4": (4, "above"),
}
above = curves(swept, beam, ahead, "exponent", looks, sides)
below = curves(swept, beam, length, "exponent", looks, sides)
show(
    above.properties(width=300, height=210) & below.properties(width=300, height=150),
    alt="A beam of 4 is 1.4 BLEU ahead of greedy search with alpha 1.4, 1.0 with 0.6 and 0.4 without a penalty; beyond it the curves are nearly level. The output gets shorter with the width, least with the largest alpha.",
)

# %% tags=["remove-cell"]
if CHECKING:
    at = {(r["beam"], r["alpha"]): r for r in logged if r["captions"] == "val"}
    shown = [round(at[4, a]["ahead"], 1) for a in (0.6, 1.4, 0.0)]
    assert shown == [1.0, 1.4, 0.4]
    assert [round(at[beam, 0.6]["ahead"], 1) for beam in (8, 16)] == [1.2, 1.1]
    assert at[4, 0.0]["log p"] > at[1, 0.0]["log p"] + 0.5
    assert [round(at[4, a]["length"], 2) for a in (0.0, 1.4)] == [0.91, 0.94]

# %% [markdown]
# With $\alpha = 0.6$ a beam of 4 is 1.0 BLEU ahead of greedy search. Wider beams gain little more (1.1 to 1.2), while each doubling doubles the decoder's work. With $\alpha = 1.4$ the beam of 4 is ahead by 1.4. Without a penalty it is ahead by only 0.4, because the sentences that it finds are more probable but too short. Whether chance could do that is [the next chapter's question](20_evaluation.ipynb#whether-a-difference-is-real).
#
# So greedy search will do for a quick look; for translations that are read or compared, take a beam. You can watch all three ways at work, in the everyday model:
#
# :::{what-if} search
# How does a translation come about? Each row is a step, and each box a token with the log-probability of all tokens up to it. Solid boxes are kept, dashed ones aren't, filled ones have ended, and the thick path leads to the best score. Change the beam or $\alpha$, or have the words drawn at random.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/19_decoding.html#fig-what-if-search).
# :::
#
# ## What to remember
#
# - The most probable words don't make the most probable sentence. A wider beam finds more probable ones, but hardly better ones.
# - The length penalty helps long sentences. It doesn't steer the beam, it chooses among the finished.
# - The KV cache works because the causal mask freezes the past. In beam search it moves with its hypothesis.
#
# ## Exercises
#
# **1. Write it first** is [above](#why-do-searches-prefer-short-sentences); the code below it is the solution.
#
# **2. By hand** (★, 10 min). A model knows the first words `a` (0.5), `the` (0.4) and `one` (0.1). After `a` come `cat` (0.4), `dog` (0.3) and `cow` (0.3), after `the` come `dog` (0.9) and `cat` (0.1), after `one` always `dog`. Which sentence does greedy search return, which one a beam of 2, and which sentence does that beam never look at?

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
# **3. What breaks if** (★★, 20 min) the cache is not reordered when one hypothesis takes another's place? Predict what happens to the words and to their log-probabilities. Then try it on *Der Mann ist auf dem Sofa eingeschlafen*, and compare with the forced scores.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing fails. A hypothesis looks back at the words of another, so its score is not the model's.
reorder = Cache.keep


def forgetful(cache, sentences, parents):
    if len(cache.self_kv[0].keys) > len(cache.mask):
        parents = torch.arange(parents.size(1)).expand_as(parents)
    reorder(cache, sentences, parents)


Cache.keep = forgetful
(wrong,) = beam_search(model, sofa, n_best=4)
Cache.keep = reorder
gaps = []
for h in wrong:
    again = forced(model, sofa, h.tokens)
    gaps.append(abs(again - h.log_probability))
    print(f"{h.log_probability:.2f}, forced {again:.2f}  {tokenizer.decode(h.tokens)}")

# %% tags=["remove-cell"]
if CHECKING:
    assert max(gaps) > 0.1

# %% [markdown]
# ## Further
#
# ### Why is my beam search worse with a larger beam?
#
# Because a better search finds more of what the model wrongly likes {cite:p}`koehn2017six`. The dogs' own reference, *Two large dogs frolic in a grassy field*, has a log-probability 16 below that of the sentence that our beam found. That is a **model error**, which no wider beam mends. (In a **search error**, the reference would score better.) When {cite:t}`stahlberg2019nmt` searched a Transformer base model exactly, the empty sentence was the best of all more than half of the time. So look at the lengths first.

# %% tags=["remove-cell"]
if CHECKING:
    reference = tokenizer.encode("Two large dogs frolic in a grassy field.")
    assert 16 < first - forced(model, source, reference) < 16.2

# %% [markdown]
# ### Why does a batch give another translation than the sentence alone?
#
# If many differ, it is a mistake: a missing padding mask, padding on the left that shifts the positions, a penalty that counts padding, dropout still on. If a few among thousands do, it is rounding: a matrix product of another size may add in another order, and two words may be equally likely.
#
# ## Sources
#
# Beam of 4, $\alpha = 0.6$ and the limit of 50 more tokens than the input are from section 6.1 of {cite:t}`vaswani2017attention`. The length penalty is that of {cite:t}`wu2016google`, without their second penalty for words of the source that nothing attended to. Nucleus sampling is from {cite:t}`holtzman2020curious`. The bound on a running hypothesis is in `_is_finished` of [tensor2tensor](https://github.com/tensorflow/tensor2tensor)'s `utils/beam_search.py` (commit f8b951a).
