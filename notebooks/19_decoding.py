# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands

# %% [markdown] needs=["multi30k"]
# # Decoding
#
# Decoding is how a trained model writes a translation, word by word: by beam search with a length penalty (section 6.1 of the paper) or by sampling, with a KV cache that makes each step cheap.
#
# A trained model doesn't translate. Given a source $X$ and the words written so far, it returns a probability for every possible next word, and something has to choose one, append it and ask again. The paper chooses by **beam search**, which keeps the best few beginnings alive and returns the sentence $Y$ with the highest score:
#
# $$
# \log P(Y \mid X) = \sum_{t=1}^{n} \log P(y_t \mid y_1, \dots, y_{t-1}, X)
# $$ (eq-log-probability)
#
# $$
# \operatorname{score}(Y) = \frac{\log P(Y \mid X)}{\operatorname{lp}(n)}, \qquad
# \operatorname{lp}(n) = \left(\frac{5 + n}{6}\right)^{\alpha}
# $$ (eq-length-penalty)
#
# The last word $y_n$ is `</s>`, because stopping has its probability like any other choice. Here is the search in its simplest form, on Python tuples. The rest of the chapter makes it fast without changing what it finds.

# %% tags=["export", "hide-input"]
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from annotated_transformer.attention import Mask
from annotated_transformer.layers import DecoderLayer
from annotated_transformer.masks import BOS, EOS, PAD, padding_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.transformer import Transformer, evaluating

# %% tags=["hide-input"]
import json
import math
from dataclasses import replace
from heapq import nlargest
from itertools import product
from pathlib import Path
from time import process_time

import altair as alt
import numpy as np
import sacrebleu
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer import TransformerConfig, check, load_pretrained
from annotated_transformer import preset, translate
from annotated_transformer.batching import pad
from annotated_transformer.toolkit.downloads import multi30k
from annotated_transformer.toolkit.translation import length_batches
from annotated_transformer.transformer import greedy_decode
from book.figures import INK, PAPER, curves, show, show_steps

PLUM = "#8A63A8"


# %%
def search(next_words, beam, limit, end="</s>", watch=None):
    running, finished = [((), 0.0)], []
    for _ in range(limit):
        grown = [
            ((*words, word), total + math.log(p))
            for words, total in running
            for word, p in next_words(words).items()
        ]
        best = nlargest(
            beam - len(finished), grown, key=lambda hypothesis: hypothesis[1]
        )
        if watch is not None:
            watch.append((running, grown, best))
        finished += [(words, total) for words, total in best if words[-1] == end]
        running = [(words, total) for words, total in best if words[-1] != end]
    return sorted(finished + running, key=lambda hypothesis: -hypothesis[1])


# %% [markdown]
# `next_words` gives the probability of each word that may come next. A **hypothesis** is the beginning of a translation together with its log-probability; `beam`, or $k$, is how many are kept. Each round *expands* every hypothesis by those words, *scores* the results by adding logarithms, and *prunes* them to the best few; one that has ended keeps its place, so the others get `beam - len(finished)`. We give the search the captions model that comes with the package, which is quick and has references to be scored against, and the caption *Der Mann ist auf dem Sofa eingeschlafen*, the man has fallen asleep on the couch. The German says *asleep* last. (`caption_words` asks the model, whose `tokenizer` made the ids in `german`; `sources` holds 250 captions of the validation set, and `watch` collects the steps for the picture.)

# %% tags=["hide-input"]
model, tokenizer = load_pretrained("captions-de-en")
captions = multi30k("val")[:250]
sources = [[*tokenizer.encode(pair.source), EOS] for pair in captions]
caption = next(pair for pair in multi30k("val") if "Sofa eingeschlafen" in pair.source)
german = torch.tensor([[*tokenizer.encode(caption.source), EOS]])


def caption_words(written, top=12):
    with evaluating(model):
        words = model(german, torch.tensor([[BOS, *written]]))[0, -1].softmax(dim=-1)
    words[[PAD, BOS]] = 0
    values, ids = words.topk(top)
    return dict(zip(ids.tolist(), values.clamp(min=1e-30).tolist()))


print(caption.source, "->", caption.target)

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-tree", "caption": "Which sentences does a beam of 3 consider? Each row is a step, sorted by the log-probability of all words so far. Lines lead from a hypothesis to its continuations; three are kept, the others (gray, dashed) are pruned, and only the first of those are drawn. A finished one (purple) holds its place. The thick path wins. *Asleep* is second in the fourth row; the sentence begun with it comes to the front in the seventh. *Has fallen*, as the reference has it, is pruned in the fourth. Recorded from the trained model; the search sees only its twelve likeliest words at each step."}}
trace = []
ranked = search(caption_words, 3, limit=10, end=EOS, watch=trace)
winner = max(ranked, key=lambda h: h[1] / ((5 + len(h[0])) / 6) ** 0.6)[0]
place, nodes = {(): 2}, []
for step, (_, grown, best) in enumerate(trace[: len(winner)], 1):
    shown = nlargest(5, grown, key=lambda h: h[1])
    for column, (words, total) in enumerate(shown):
        done, kept = words[-1] == EOS, any(words == other for other, _ in best)
        node = {
            "step": step,
            "above": step - 1,
            "column": column,
            "from": place[words[:-1]],
        }
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
            "size": 4400,
            "strokeOpacity": opacity,
        }
        box = part.mark_point(
            fill=PAPER, stroke=color, strokeDash=dash, opacity=1, **shape
        )
        boxes.append(box.encode(x, y, strokeWidth=width))
        text = {"color": color, "opacity": opacity}
        boxes.append(part.mark_text(dy=-6, **text).encode(x, y, text="word:N"))
        boxes.append(
            part.mark_text(dy=9, fontSize=10, **text).encode(x, y, text="total:N")
        )
    return alt.layer(*lines, *boxes).properties(width=420, height=56 * steps)


pictures = {
    f"{n}": (tree(n), f"Continuations at step {n}; the pruned ones are gray.")
    for n in range(1, steps + 1)
}
finding = "The man is asleep on the couch wins at step 9; fallen is pruned at step 4."
pictures["all"] = (tree(steps, result=True), finding)
show_steps(pictures, "Step", start=steps)
assert (
    tokenizer.decode(list(winner[:-1])) == "The man is asleep on the couch."
    and steps == 9
)
assert [(n["step"], n["fate"]) for n in nodes if n["word"] == "fallen"] == [
    (4, "pruned")
]
asleep = [n["column"] for n in nodes if n["wins"]]
assert asleep == [0, 0, 0, 1, 1, 1, 0, 0, 0]

# %% [markdown]
# ## What greedy search misses
#
# The decoder of [the model's chapter](10_transformer.ipynb#writing-a-sentence), `greedy_decode`, takes the likeliest word every time, which is a beam of 1. In the tree it goes astray at the fourth word. After *The man is* the model gives *on* 0.62 and *asleep* 0.09. *On* wins, greedy search is committed to the order of the German, and when *asleep* is due there is no good place left for it:

# %% tags=["nbval-ignore-output"]
for beam in (1, 2, 3):
    words, total = search(caption_words, beam, limit=10, end=EOS)[0]
    print(
        f"beam {beam}: {total:.2f}, probability {math.exp(total):.3f}",
        tokenizer.decode(words[:-1]),
    )
after = caption_words(tokenizer.encode("The man is"))

# %% tags=["remove-cell"]
assert total > search(caption_words, 1, limit=10, end=EOS)[0][1] + 1.4
assert [round(p, 2) for p in [*after.values()][:2]] == [0.62, 0.09]

# %% [markdown]
# The sentence that begins with the likeliest words isn't the likeliest sentence. Greedy search makes each term of {eq}`eq-log-probability` as large as possible at the moment, and has no way back when that turns out badly.
#
# Trying everything is out of the question. With a vocabulary of 6,000, nine places hold $6000^9$, about $10^{34}$ sequences. Beam search asks the model about $k$ hypotheses a step instead of one and looks a little further. It promises nothing, since the best sentence may begin so badly that it falls out at once. Only a beam as wide as the number of all sentences is sure to find it. That is **exhaustive search**, and it will serve as a check.
#
# The product of the probabilities themselves would soon be too small for a float: forty words at 0.1 each make $10^{-40}$, below the smallest normal number in 32 bits. Their logarithm is $-92.1$, and a logarithm keeps the order.
#
# ### A hypothesis that ends
#
# There are three ways to treat a hypothesis that has written `</s>`.
#
# - It goes on growing like the others. This is a classic mistake: nothing was ever trained to follow `</s>`.
# - It leaves the race and keeps its place, so that the others have one place fewer. That is our way. A beam of 1 is then greedy search, the work shrinks as places fill, and the search ends by itself.
# - It moves to a list of its own, and the next best candidate takes its place. That is the authors' way. Their library, [tensor2tensor](https://github.com/tensorflow/tensor2tensor) (`utils/beam_search.py`, read at commit f8b951a), takes the best $2k$ candidates, of which at most $k$ can end in `</s>`. It keeps $k$ running and, beside them, the best $k$ finished.
#
# A beam of 4 there follows four unfinished hypotheses until a rule says stop, and looks at more sentences than ours does. Exercise 6 asks whether that matters.
#
# ## Why do searches prefer short sentences?
#
# Every word multiplies the probability by a number below 1. If a model is equally sure of each word, say 0.5, then 5 words have a log-probability of $5 \ln 0.5 = -3.5$ and 10 words $-6.9$. The longer sentence is 32 times less likely although no word in it is worse, so the short ones have an unfair lead among the finished.
#
# The paper follows Google's earlier system GNMT {cite:p}`wu2016google` and divides the log-probability by the **length penalty** of {eq}`eq-length-penalty`, with $\alpha = 0.6$ for translation and 0.3 for parsing. It doesn't say what $n$ counts. Ours counts the words and the `</s>`, as the authors' code does. An empty translation has $n = 1$ and a penalty of 1.
#
# The name misleads. Log-probabilities are negative, so dividing by a larger number brings a score closer to zero, which is *up*: the penalty helps long sentences. You can write it before you read on (exercise 1).


# %% tags=["export"]
def length_penalty(length: float, alpha: float) -> float:
    """Divide a log-probability by this; length counts the tokens and `</s>` (section 6.1)."""
    return float(((5 + length) / 6) ** alpha)


# %%
short, long = (-3.0, 5), (-3.6, 9)  # log-probability, length
for alpha in (0.0, 0.6):
    scores = [total / length_penalty(n, alpha) for total, n in (short, long)]
    print(f"alpha {alpha}: length 5 {scores[0]:.2f}, length 9 {scores[1]:.2f}")

# %% [markdown]
# By hand for the long one: $(14/6)^{0.6} = 1.66$, and $-3.6 / 1.66 = -2.17$. The short one gets $-3.0 / 1.36 = -2.21$ and loses, where it won before.
#
# Many programs divide by $n^\alpha$ instead, without the 5 and the 6; [CTranslate2](F_export.ipynb#a-script-that-goes-along) is one. Without the two constants the divisor grows faster with the length, so the same $\alpha$ pushes harder toward long output. Take length 2 at $-1.0$ against length 8 at $-2.0$:

# %%
for name, by in (
    ("with 5 and 6", length_penalty),
    ("without", lambda n, alpha: n**alpha),
):
    few, many = -1 / by(2, 0.6), -2 / by(8, 0.6)
    print(f"{name:13} length 2 {few:.2f}, length 8 {many:.2f}")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-length-penalty", "caption": "How strongly is length rewarded? What a log-probability is divided by: the penalty of {eq}`eq-length-penalty` (solid) and the plain power of the length (dashed). With the same exponent the second rises faster."}}
kinds = {"((5 + n) / 6)^0.6": (INK, [1, 0]), "n^0.6": (INK, [5, 3])}
kinds |= {"((5 + n) / 6)^1.0": (PLUM, [1, 0]), "n^1.0": (PLUM, [5, 3])}
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
    chart,
    alt="Four rising curves. At the same exponent, the plain power of the length rises faster.",
)

# %% [markdown]
# ### Where the penalty acts
#
# It acts later than you might think. All hypotheses of one step are equally long and are divided by the same number, so $\alpha$ can't change which of them stay in the beam. It decides only which of the finished ones wins, and when the search may stop.
#
# ### The length limit
#
# Nothing forces a model to write `</s>`, and one that is lost may repeat three words forever. The paper's limit is the length of the input plus 50. Ours counts tokens with `</s>` on both sides: a source of 11 tokens and its `</s>` allows at most 62. A hypothesis that reaches the limit is cut off, keeps its score and is marked as not ended. Every sentence of a batch has a limit of its own, and none exceeds the `max_length` of the model.
#
# ## The search in tensors
#
# The short `search` makes a Python tuple of each candidate: with 64 sentences, a beam of 4 and 8,000 words, two million tuples a step. The fast version holds all hypotheses in a few tensors, sentences on the axis $B$ and hypotheses of one sentence on the axis $R$. A place without a hypothesis has the log-probability minus infinity, which no `topk` prefers. Only the results are Python objects:


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
# The search starts with *one* hypothesis a sentence, nothing but `<s>`. With $k$ copies the beam would fill with $k$ equal hypotheses and search no wider than greedy.


# %% tags=["export"]
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
# The $R \cdot |V|$ continuations of a sentence go into one row, and one `topk` finds the best. A winner's place in that row gives its parent and its word: with 13 words, place 30 is word 4 of hypothesis 2, both counted from 0, since $30 = 2 \cdot 13 + 4$. Padding and `<s>` are forbidden *after* the log-softmax, so that a score stays what the model gives to the sentence. Weights that are damaged make NaN, and since every comparison with NaN is false, the search would come back with nothing; `check_finite` says what is wrong.


# %% tags=["export"]
def check_finite(scores: Tensor) -> None:
    """Raise ValueError if the model's logits are infinite or NaN."""
    if not scores.isfinite().all():
        raise ValueError(
            "the model's logits are infinite or NaN: are its weights damaged?"
        )


def extend(beams: Beams, logits: Tensor) -> tuple[Beams, Tensor]:
    """Continue hypotheses by the best tokens of logits (B, R, |V|); return also parents (B, R)."""
    log_probability = logits.log_softmax(dim=-1)
    log_probability[..., [PAD, BOS]] = -torch.inf
    log_probability += beams.total[..., None]
    candidates = log_probability.flatten(1)
    places = min(int(beams.free.max()), candidates.size(1))
    total, choice = candidates.topk(places)
    check_finite(total[:, 0])
    parent = choice // logits.size(-1)
    token = choice % logits.size(-1)
    # Finished hypotheses hold their places, so not all of these winners find one
    rank = torch.arange(places, device=total.device)
    total = total.where(rank < beams.free[:, None], -torch.inf)
    words = beams.tokens.take_along_dim(parent[..., None], dim=1)
    tokens = torch.cat([words, token[..., None]], dim=-1)
    return beams._replace(tokens=tokens, total=total), parent


# %% [markdown]
# Two hypotheses have log-probability $-1$ and $-2$. The first gives word 4 half of the probability and word 5 a quarter, the second is nearly sure of word 5. The candidates are at $-1.69$, $-2.39$ and about $-2.01$:

# %%
two = start_beams(torch.tensor([[4, EOS]]), limit=torch.tensor([9]), beam=2, n_best=1)
two = two._replace(
    tokens=torch.tensor([[[BOS, 3], [BOS, 4]]]), total=torch.tensor([[-1.0, -2.0]])
)
shares = torch.tensor([[[0, 0, 0.25, 0, 0.5, 0.25], [0, 0, 0, 0, 0.01, 0.99]]])
after, parent = extend(two, shares.log())
print("tokens:", after.tokens.tolist(), " parents:", parent.tolist())
print("log-probabilities:", [round(total, 2) for total in after.total[0].tolist()])

# %% [markdown]
# Those that wrote `</s>` or reached their limit are finished. They hand over sentence, tokens, score and log-probability, keep their place for good, and leave minus infinity behind.


# %% tags=["export"]
class Finished(NamedTuple):
    """The hypotheses that have finished in one step of a search, one in each row."""

    sentence: Tensor  # (F,), number in the batch
    tokens: Tensor  # (F, T), from <s> on
    score: Tensor  # (F,)
    log_probability: Tensor  # (F,)


def finish(beams: Beams, alpha: float) -> tuple[Beams, Finished]:
    """Take out the hypotheses that have ended or reached their limit."""
    length = beams.tokens.size(-1) - 1  # without <s>
    at_end = (beams.tokens[..., -1] == EOS) | (beams.limit[:, None] <= length)
    done = at_end & (beams.total > -torch.inf)
    score = (beams.total / length_penalty(length, alpha)).where(done, -torch.inf)
    sentence = beams.sentence[:, None].expand_as(done)
    finished = Finished(
        sentence[done], beams.tokens[done], score[done], beams.total[done]
    )
    n_best = beams.best.size(1)
    running = beams._replace(
        free=beams.free - done.sum(dim=1),
        best=torch.cat([beams.best, score], dim=1).topk(n_best).values,
        total=beams.total.masked_fill(done, -torch.inf),
    )
    return running, finished


# %% [markdown]
# Suppose that the first of our two hypotheses had written `</s>` instead of word 4. Its score is $-1.69 / (7/6)^{0.6} = -1.54$, and one place stays free for the other:

# %%
ending = after._replace(tokens=torch.tensor([[[BOS, 3, EOS], [BOS, 4, 5]]]))
left, finished = finish(ending, alpha=0.6)
print(
    "places free:",
    left.free.tolist(),
    " still running:",
    left.total.isfinite().tolist(),
)
print("finished:", finished.tokens.tolist(), f" score: {finished.score.item():.2f}")

# %% [markdown]
# ## When a search may stop
#
# When all places are taken, at the latest. But often the best hypothesis was found long ago while three poor ones run on to the limit. Stopping at the *first* that finishes is tempting and wrong: one that finishes later may score higher, as our longer one did.
#
# What can a running hypothesis still reach? Let $s$ be its log-probability and $m$ the length limit. For $\alpha \ge 0$ it never scores more than
#
# $$
# \frac{s}{\operatorname{lp}(m)}
# $$ (eq-bound)
#
# 1. No probability is above 1, so no logarithm is above 0. However the hypothesis goes on, its final log-probability $s'$ is at most $s$.
# 2. It ends at some length $n \le m$, and $\operatorname{lp}(n) \le \operatorname{lp}(m)$. Since $s'$ is negative, $s' / \operatorname{lp}(n) \le s' / \operatorname{lp}(m)$.
# 3. By step 1, $s' / \operatorname{lp}(m) \le s / \operatorname{lp}(m)$.
#
# The bound is the authors' own. It divides the best running log-probability by the penalty at the limit and stops when the worst of the finished scores more. We compare with the worst of the $N$ best that you asked for, one unless you say otherwise. The result is the same as if the search had never stopped early.
#
# :::{margin}
# The paper says only that decoding ends early where it can. The bound is in `_is_finished` of the file named above.
# :::
#
# In numbers: with a limit of 40 and $\alpha = 0.6$, $\operatorname{lp}(40) = 7.5^{0.6} = 3.35$. Let the best finished score be $-1.2$. A running hypothesis at $-3$ may still reach $-3 / 3.35 = -0.90$, so the search goes on. At $-5$ it reaches $-1.49$ at best, and we stop.
#
# :::{margin}
# A negative $\alpha$ prefers short sentences. Its largest penalty is that of the next length, hence the `clamp`.
# :::


# %% tags=["export"]
def still_open(beams: Beams, alpha: float) -> Tensor:
    """Return (B,), True where a running hypothesis may still come among the best N."""
    most = beams.total.amax(dim=1)
    at_limit = ((5 + beams.limit.to(most.dtype)) / 6) ** alpha
    now = length_penalty(beams.tokens.size(-1), alpha)
    return most / at_limit.clamp(min=now) > beams.best[:, -1]


# %% [markdown]
# ### Why not compare with the score it has now?
#
# Because a score can rise. Let a finished hypothesis have $-0.50$ at $\alpha = 1$, and a running one $-0.82$ after one word. If it ended now, at $\operatorname{lp}(2) = 1.17$, it would get $-0.70$ and lose. But if it is certain of its next words and ends at length 7, it gets $-0.82/2 = -0.41$ and wins, so the search must go on. With $-0.30$ to beat and at most 9 words it need not: $-0.82/2.33 = -0.35$.

# %%
late = two._replace(total=torch.tensor([[-0.82, -math.inf]]))
for finished in (-0.50, -0.30):
    goes_on = still_open(late._replace(best=torch.tensor([[finished]])), 1.0)
    print(f"best finished {finished}: the search goes on", goes_on.item())

# %% tags=["remove-cell"]
assert not goes_on.item()

# %% [markdown]
# ## The whole search
#
# What is left is the loop, and the sorting at the end.


# %% tags=["export"]
def collect_n_best(
    steps: list[Finished], count: int, n_best: int
) -> list[list[Hypothesis]]:
    """Sort what has finished in each step: the best N hypotheses of each sentence, best first."""
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(count)]
    for finished in steps:
        rows = zip(*(column.tolist() for column in finished))
        for sentence, tokens, score, log_probability in rows:
            ended = tokens[-1] == EOS
            words = tokens[1:-1] if ended else tokens[1:]
            hypothesis = Hypothesis(words, score, log_probability, ended)
            hypotheses[sentence].append(hypothesis)
    for row in hypotheses:
        row.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
    return [row[:n_best] for row in hypotheses]


# %% tags=["export"]
def length_limit(model: Transformer, source: Tensor, max_extra_tokens: int) -> Tensor:
    """Return how many tokens the translation of each source (B, S) may have, (B,)."""
    limit = (source != PAD).sum(dim=1) + max_extra_tokens
    return limit.clamp(max=model.config.max_length)


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
    steps = []
    with evaluating(model):
        cache = Cache(model, source)
        while len(beams.sentence):
            logits = next_logits(model, beams.tokens[..., -1], cache)
            beams, parent = extend(beams, logits)
            beams, finished = finish(beams, alpha)
            steps.append(finished)
            going = still_open(beams, alpha).nonzero()[:, 0]
            cache.keep(going, parent[going])
            beams = Beams(*(column[going] for column in beams))
    return collect_n_best(steps, len(source), n_best)


# %% [markdown]
# `next_logits` and `cache.keep` come in a moment. Follow two sentences with a beam of 4. At first $R = 1$, two rows with `<s>`. `extend` finds four first words for each sentence, all with parent 0, and `keep` makes 8 rows of the 2. Some steps later sentence 0 is done: `going` is [1], sentence 0 leaves all tensors, and 4 rows remain. A batch gets cheaper while it runs.
#
# ## The KV cache
#
# To write word 20, `greedy_decode` sends `<s>` and all 19 words before it through the decoder. It did so for word 19, too. A sentence of $n$ words takes $1 + 2 + \dots + n = n(n+1)/2$ passes of a position through the decoder, 210 for 20 words, where 20 would do.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-cache", "caption": "What does a step compute? Each row is a step of decoding, each column a position of the sentence. Without a cache (left) a step computes every position up to its own, and the total at the right of a row grows with the square of the length. With a cache (right) it computes one and reuses the keys and values of the others (outlined)."}}


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
    fill = alt.condition("datum.fresh", alt.value(PLUM), alt.value(PAPER))
    cells = base.mark_rect(stroke=PLUM, strokeWidth=1.5, width=26, height=21)
    cells = cells.encode(position, step, fill=fill)
    last = base.transform_filter("datum.position == datum.step - 1")
    total = last.mark_text(dx=28, align="left").encode(position, step, text="done:Q")
    return (cells + total).properties(
        width=250, height=210, title=f"{way}: total so far"
    )


assert sum(r["fresh"] for r in work()) == 36 + 8
show(
    alt.hconcat(grid("without a cache"), grid("with a cache"), spacing=60),
    alt="Two triangles of eight steps. Without a cache all 36 cells are computed; with one, the 8 on the diagonal.",
)

# %% [markdown]
# Reusing an old result would be wrong if a new word changed it. The causal mask guarantees that it doesn't: a position attends to itself and to those before it. We decode a prefix and the whole with a random model and compare:

# %% tags=["nbval-ignore-output"]
toy = TransformerConfig(13, layers=2, d_model=24, d_ff=40, heads=3, max_length=60)
torch.manual_seed(0)
random_model = Transformer(toy).double().eval()
source = torch.tensor([[4, 5, 6, 7, EOS], [8, 9, EOS, PAD, PAD]])
target = torch.tensor([[BOS, 7, 4, 9, 6], [BOS, 5, 5, 8, 12]])
with torch.no_grad():
    memory = random_model.encode(source)
    whole = random_model.decode(target, memory, source)
    prefix = random_model.decode(target[:, :3], memory, source)
difference = (whole[:, :3] - prefix).abs().max().item()
print(f"largest difference in the first three positions: {difference:.0e}")

# %% tags=["remove-cell"]
assert difference < 1e-12

# %% [markdown]
# What a new word needs from an old one is its **key** and its **value**, in every layer. Kept, they are the **KV cache**, which every program that serves a language model has. Queries needn't be kept, since an old query has had its answer. Each decoder layer attends twice, so there are two things to keep:
#
# - `self_kv`, the keys and values of the words written so far, grows by one word a step. It has a row for each hypothesis, $B \cdot R$ in all.
# - `cross_kv`, the keys and values of the source, is computed once a sentence. All its hypotheses share one row, so it has $B$ rows, however wide the beam.
#
# [Multi-head attention](05_multi_head_attention.ipynb#the-module) does two things in one go, and here we need them apart: `project` makes keys and values, and `attend_to` lets a query look at them.


# %% tags=["export"]
def project(attention: MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and values (B, H, S, d_k or d_v) of vectors x (B, S, D)."""
    keys = split_heads(attention.key(x), attention.heads)
    values = split_heads(attention.value(x), attention.heads)
    return keys, values


def attend_to(
    attention: MultiHeadAttention,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Mask = None,
) -> Tensor:
    """Map query (B, T, D) and projected keys and values to (B, T, D)."""
    query = split_heads(attention.query(query), attention.heads)
    heads = F.scaled_dot_product_attention(query, keys, values, mask)
    return attention.output(merge_heads(heads))


# %% tags=["export"]
class Cache:
    """Keys and values that need not be computed twice, for R hypotheses of B sentences.

    For each decoder layer, `self_kv` holds those of the target so far, (B * R, H, T, d_k or d_v),
    and `cross_kv` those of the source, (B, H, S, d_k or d_v). Starts with R = 1 and length T = 0.
    """

    def __init__(self, model: Transformer, source: Tensor) -> None:
        memory = model.encode(source)
        self.length = 0
        self.mask = padding_mask(source)
        self.layers = [
            m for m in model.decoder.modules() if isinstance(m, DecoderLayer)
        ]
        self.cross_kv = [
            project(layer.cross_attention, memory) for layer in self.layers
        ]
        self.self_kv = [
            (keys[:, :, :0], values[:, :, :0]) for keys, values in self.cross_kv
        ]

    def keep(self, sentences: Tensor, parents: Tensor) -> None:
        """Keep the sentences of these numbers (B,), and of each the hypotheses parents (B, R)."""
        count = len(self.mask)
        rows = len(self.self_kv[0][0])
        chosen = (sentences[:, None] * (rows // count) + parents).flatten()
        if len(sentences) < count:
            self.mask = self.mask[sentences]
            self.cross_kv = [pick(layer, sentences) for layer in self.cross_kv]
        if not torch.equal(chosen, torch.arange(rows, device=chosen.device)):
            self.self_kv = [pick(layer, chosen) for layer in self.self_kv]


def pick(kv: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return some rows of keys and values."""
    keys, values = kv
    return keys.index_select(0, rows), values.index_select(0, rows)


# %% [markdown]
# ### When hypotheses change places
#
# Greedy search needs no `keep`. In beam search, say a beam of 3 holds *the cat*, *a dog* and *one bird*, and the best continuations are two of *the cat* and one of *one bird*. *A dog* dies out.
#
# | row | held | holds now | its parent | its past must be that of |
# |:---:|---|---|:---:|---|
# | 0 | the cat | the cat sat | 0 | the cat |
# | 1 | a dog | the cat ran | 0 | the cat |
# | 2 | one bird | one bird flew | 2 | one bird |
#
# The words have visibly moved, and the cache must move with them: row 1 still holds the keys and values of *a dog*. Left like that, *the cat ran* goes on as if it had begun with *a dog*. All shapes fit, the result reads well, and the probability printed beside it belongs to no sentence at all (exercise 4). The remedy is to gather the rows by their parents. Here are two sentences of three hypotheses each; sentence 0 keeps 0, 0 and 2, sentence 1 keeps 1, 0 and 1, and its rows begin at 3:

# %% tags=["hide-input"]
cache = Cache(random_model, source)
cache.self_kv = [(torch.arange(6.0).view(6, 1, 1, 1), torch.zeros(6, 1, 1, 1))]
cache.keep(torch.tensor([0, 1]), torch.tensor([[0, 0, 2], [1, 0, 1]]))
print(
    "rows:",
    cache.self_kv[0][0].flatten().int().tolist(),
    " sentences:",
    len(cache.mask),
)
cache.keep(torch.tensor([1]), torch.tensor([[2, 1]]))
print(
    "rows:",
    cache.self_kv[0][0].flatten().int().tolist(),
    " sentences:",
    len(cache.mask),
)

# %% [markdown]
# The second call drops sentence 0, whose translation is finished, and of the rows 4, 3 and 4 takes the last and the middle one.
#
# ### One word through the decoder
#
# A step takes one new word for each hypothesis. Its key and value join the past *before* it looks, because a word attends to itself as well. No mask is needed in self-attention: the future that the causal mask hides doesn't exist yet, and all hypotheses are equally long. Cross-attention takes the $R$ hypotheses as if they were $T$ positions of one sentence. Compare `layer_step` to `DecoderLayer.forward` in [Layers](09_layers.ipynb#the-decoder-layer), whose modules it uses: the same three lines.


# %% tags=["export"]
def attend_to_past(
    attention: MultiHeadAttention, x: Tensor, cache: Cache, number: int
) -> Tensor:
    """Self-attention of the newest tokens (B, R, D), each to its own hypothesis."""
    rows = x.flatten(0, 1)[:, None]  # (B * R, 1, D)
    past_keys, past_values = cache.self_kv[number]
    new_keys, new_values = project(attention, rows)
    keys = torch.cat([past_keys, new_keys], dim=2)
    values = torch.cat([past_values, new_values], dim=2)
    cache.self_kv[number] = keys, values
    return attend_to(attention, rows, keys, values).view_as(x)


# %% tags=["export"]
def layer_step(x: Tensor, cache: Cache, number: int) -> Tensor:
    """Pass the newest tokens (B, R, D) through one decoder layer."""
    layer = cache.layers[number]
    source_keys, source_values = cache.cross_kv[number]

    def look_back(y: Tensor) -> Tensor:
        return attend_to_past(layer.self_attention, y, cache, number)

    def look_at_source(y: Tensor) -> Tensor:
        cross = layer.cross_attention
        return attend_to(cross, y, source_keys, source_values, cache.mask)

    x = layer.residuals[0](x, look_back)
    x = layer.residuals[1](x, look_at_source)
    return layer.residuals[2](x, layer.feed_forward)


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
# Around the layers come embedding and position below, the logits above. The position of the new word is the number of words before it, `cache.length`. Forget it, and every word is embedded as the first.
#
# Is this the same function as one pass over the whole sentence? We feed a random target word by word to five variants of the model, with a padded source among the two:


# %% tags=["hide-input", "nbval-ignore-output"]
def step_by_step(model, source, target):
    cache = Cache(model, source)
    steps = [
        next_logits(model, target[:, t : t + 1], cache) for t in range(target.size(1))
    ]
    return torch.cat(steps, dim=1)


changes = [{}, {"pre_norm": True}, {"positions": "learned"}, {"d_k": 5, "d_v": 7}]
changes.append({"attention_bias": True})
differences = []
for change in changes:
    variant = Transformer(replace(toy, **change)).double().eval()
    with torch.no_grad():
        both = step_by_step(variant, source, target), variant(source, target)
    differences.append((both[0] - both[1]).abs().max().item())
print(
    "largest difference in each:", *(f"{difference:.0e}" for difference in differences)
)

# %% tags=["remove-cell"]
assert max(differences) < 1e-12

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-cache-time", "caption": "What does the next word cost? Processor time of one decoding step by the number of words already written, for 16 sentences and the tiny model, on the machine that ran this notebook. Without a cache (dashed) a step costs more with every word; with one (solid) it stays far below."}}
timed = Transformer(preset("tiny", vocabulary_size=2000)).eval()
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
        cached.append(
            milliseconds(lambda n=n: next_logits(timed, words[:, n - 1 : n], cache))
        )
        if n % 10 == 0:
            whole = lambda n=n: timed.decode(words[:, :n], memory, read)
            uncached = [milliseconds(whole) for _ in range(3)]
            for name, times in (
                ("without a cache", uncached),
                ("with a cache", cached[-10:]),
            ):
                measured.append({"words": n, "ms": round(min(times), 2), "step": name})
assert measured[-2]["ms"] > 3 * measured[-1]["ms"]
looks = {"without a cache": (PLUM, [5, 3]), "with a cache": (INK, [1, 0])}
x = alt.X("words:Q", title="words written", scale=alt.Scale(domain=[0, 70]))
show(
    curves(measured, x, alt.Y("ms:Q", title="milliseconds a step"), "step", looks),
    alt="Time of a step rises steeply with length without a cache and stays far below with one.",
)

# %% [markdown]
# **Why not cache in training?** There is nothing to reuse. All positions go through in one pass, and each is computed once.
#
# :::{admonition} For a second reading: why keep keys and values instead of states?
# :class: dropdown
# A state is one vector of 512 numbers in each layer of the base model; a key and a value are two. Keeping the states would take half the room. But every step would have to project every old state again, which costs $2 \cdot 512^2$ multiplications for each old word and layer. With 20 old words these are $40 \cdot 512^2 = 10.5$ M, where all the layer's work for the new word is $14 \cdot 512^2 = 3.7$ M. We pay with memory and save time.
# :::
#
# :::{admonition} For a second reading: what it saves, counted
# :class: dropdown
# Take the base model, 20 source tokens and 20 target tokens, and count a multiplication with its addition as one operation. A new word costs $14\,d^2$ in each decoder layer: $4\,d^2$ in self-attention, $2\,d^2$ in cross-attention (query and output, since keys and values are kept) and $8\,d^2$ in the feed-forward network. With $d = 512$ and 6 layers these are 22.0 M. Projecting the memory costs 3.15 M for each source token, the logits $37{,}000 \cdot 512 = 18.9$ M a word.
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
    step_by_step(base, twenty, twenty)
for counted, by_hand in ((slow, 6261 + 377), (fast, 882 + 377)):
    operations = counted.get_total_flops() / 2e6  # PyTorch counts the addition, too
    print(f"by hand {by_hand:,} M, counted {operations:,.0f} M")
    assert 1 <= operations / by_hand < 1.01

# %% [markdown]
# ### How large is a KV cache?
#
# Each token of each hypothesis keeps two vectors in every layer. For our base model in 32 bits that is small. For today's language models it decides how many users fit on a GPU, so their heads were rearranged. In **grouped-query attention** {cite:p}`ainslie2023gqa` several query heads share one key head and one value head; when all of them share a single one, it's called multi-query attention {cite:p}`shazeer2019fast`. As far as the cache is concerned, the two Llama models below differ in just that (their published shapes, at 16 bits):

# %%
shapes = {  # layers, heads that have keys and values, width of a head, bytes a number
    "the paper's base": (6, 8, 64, 4),
    "Llama 2 7B": (32, 32, 128, 2),
    "Llama 3 8B": (32, 8, 128, 2),
}
for name, (layers, heads, width, size) in shapes.items():
    bytes_each = 2 * layers * heads * width * size
    total = bytes_each * 131_072 / 2**30
    print(
        f"{name:17} {bytes_each / 1024:3.0f} KiB a token, {total:4.1f} GiB for 131,072 tokens"
    )

# %% [markdown]
# ## Checks
#
# Wrong beam searches write plausible sentences, so five checks cover what goes wrong most. All run in double precision, four on a random model whose `</s>` we made likelier, until some sentences end and others run to their limit.
#
# | check | what it would catch |
# |---|---|
# | a beam of 1 is greedy | limits off by one, padding or `<s>` chosen, `</s>` not honored |
# | scores are forced scores | a past that was not reordered, a wrong length in the penalty |
# | alone as in company | masks that leak, sentences mixed up when others are dropped |
# | as wide as the space is exhaustive | lost or doubled hypotheses, finished ones that grow on |
# | early stop or not | hypotheses lost when a sentence is dropped |

# %% tags=["hide-input"]
random = torch.Generator().manual_seed(1)
lengths = [1, 9, 4, 2, 6, 3]
source = pad(
    [[*torch.randint(4, 13, (n - 1,), generator=random).tolist(), EOS] for n in lengths]
)
torch.manual_seed(3)
random_model = Transformer(toy).double().eval()
with torch.no_grad():
    random_model.embedding.weight[EOS] *= 1.4
greedy = greedy_decode(random_model, source, max_extra_tokens=12)
narrow = [
    best.tokens for (best,) in beam_search(random_model, source, 1, max_extra_tokens=12)
]
print(
    "greedy:",
    [len(words) for words in greedy],
    " beam 1:",
    [len(words) for words in narrow],
)

# %% tags=["remove-cell"]
assert narrow == greedy

# %% [markdown]
# The second, third and last sentence end by themselves, the others at their limits, and the words are the same. The second check scores each hypothesis with the whole model, without a cache. This is called **forced scoring**: the words are given, and we add up their log-probabilities. A forgotten reordering can't pass it.


# %% tags=["hide-input", "nbval-ignore-output"]
def forced(model, source, tokens, ended=True):
    labels = torch.tensor([*tokens, *[EOS] * ended])
    inputs = torch.tensor([[BOS, *labels[:-1]]])
    with evaluating(model):
        words = model(source[source != PAD][None], inputs)[0].log_softmax(dim=-1)
    return words.gather(1, labels[:, None]).sum().item(), len(labels)


wide = {"beam": 4, "n_best": 4, "max_extra_tokens": 12}
together, gaps = beam_search(random_model, source, **wide), []
for row, hypotheses in zip(source, together):
    for h in hypotheses:
        total, n = forced(random_model, row, h.tokens, h.ended)
        gaps += [
            abs(total - h.log_probability),
            abs(total / length_penalty(n, 0.6) - h.score),
        ]
print(f"{len(gaps) // 2} hypotheses, largest difference {max(gaps):.0e}")

# %% tags=["remove-cell"]
assert max(gaps) < 1e-9

# %% tags=["hide-cell"]
# Third: a sentence must come out the same alone and in company


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert all(abs(h.score - g.score) < 1e-9 for h, g in zip(one, other))


alone = [beam_search(random_model, row[row != PAD][None], **wide)[0] for row in source]
same(together, alone)
ends = [h.ended for row in together for h in row]
print(
    f"{len(ends)} hypotheses, of which {sum(ends)} ended: the same alone and in company"
)

# %% tags=["hide-cell"]
# Fourth: the fast search finds what the short one finds, and as wide as the space, everything.
# Four next words are possible, so sentences of 0 to 2 words, or 3 at the limit: 1 + 3 + 9 + 27
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
    assert [tuple(h.tokens) + (EOS,) * h.ended for h in fast] == [
        words for words, _ in slow
    ]


def value(words, ended, alpha=0.6):
    total, n = forced(tiny, one[0], words, ended)
    return total / length_penalty(n, alpha)


space = [(words, n < 3) for n in range(4) for words in product((3, 4, 5), repeat=n)]
widest = beam_search(tiny, one, beam=40, max_extra_tokens=1, n_best=40)[0]
assert [(tuple(h.tokens), h.ended) for h in widest] == sorted(
    space, key=lambda h: -value(*h)
)
print(len(space), "sentences, all found, in the order of their forced scores")

# %% tags=["hide-cell"]
# Fifth: stopping early changes nothing, for any alpha, and saves work
source = torch.randint(4, 13, (20, 6), generator=random)
source[:, -1] = EOS


def counted(alpha):
    passed = []
    count = lambda _, x, y: passed.append(y[..., 0].numel())
    with random_model.decoder.norm.register_forward_hook(count):
        found = beam_search(
            random_model, source, 4, alpha, max_extra_tokens=30, n_best=2
        )
    return found, sum(passed)


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
# The last of the folded checks also shows what stopping saves: at $\alpha = 0.6$ a third of the positions (1,241 of 1,846 are computed), at 1.5 none, because a late finisher can still gain too much.
#
# How fast is it? Three ways to write the same 32 captions, by the processor's time on the machine that ran this notebook:

# %% tags=["nbval-ignore-output"]
middle, speed = pad(sorted(sources, key=len)[100:132]), {}
runs = {
    "greedy_decode": lambda: greedy_decode(model, middle, max_extra_tokens=20),
    "beam 1": lambda: beam_search(model, middle, 1, max_extra_tokens=20),
    "beam 4": lambda: beam_search(model, middle, 4, max_extra_tokens=20),
}
for name, run in runs.items():
    start = process_time()
    found = run()
    written = sum(
        len(row if name == "greedy_decode" else row[0].tokens) + 1 for row in found
    )
    speed[name] = written / (process_time() - start)
    print(f"{name:14} {speed[name]:6,.0f} tokens a second")

# %% tags=["remove-cell"]
assert speed["beam 1"] > 1.5 * speed["greedy_decode"]

# %% [markdown]
# The first two write the same words. A beam of 4 costs less than four times a beam of 1, because its rows share the matrix products.

# %% [markdown]
# ## From lines to translations
#
# Users have lines of text: some long, some short, some empty, in an order that matters. The package's `translate` cuts them into batches of similar length, searches, and writes each result to its place; [how](L_translation.ipynb) is told in an appendix.

# %% tags=["nbval-ignore-output"]
lines = ["Ein Hund läuft über die Wiese.", "", caption.source, "Eine Frau liest."]
for line, translation in zip(lines, translate(model, tokenizer, lines)):
    print(f"{line!r} -> {translation!r}")

# %% [markdown]
# ### Why does a batch give another translation than the sentence alone?
#
# Every translation library gets this question. Usually something is wrong: a missing padding mask, padding on the left that shifts the positions, a limit or a penalty that counts padding, one stopping rule for the whole batch, dropout still on. The check above ran in double precision, and it passed.
#
# The other answer is rounding. A matrix product of another size may add in another order, and `0.1 + 0.2 + 0.3` already depends on the order. In single precision the difference is about $10^{-7}$ of a number, and it matters where two words are equally likely to that many digits. In bfloat16, with its two or three digits, it matters often. A few translations among thousands may differ; if many do, look for a mistake.
#
# ## Coverage: words left out
#
# A search returns up to $k$ finished hypotheses, best first, and with `n_best` you get them all: an **n-best list**. Here is that of *Ein Mann sitzt allein beim Fischen an der Küste*, a man who sits alone at the coast and fishes.

# %% tags=["nbval-ignore-output"]
fisher = next(pair for pair in multi30k("val") if "allein beim Fischen" in pair.source)
shore = torch.tensor([[*tokenizer.encode(fisher.source), EOS]])
(four,) = beam_search(model, shore, n_best=4)
for h in four:
    print(f"{h.score:6.2f} {h.log_probability:7.2f}  {tokenizer.decode(h.tokens)}")
total, _ = forced(model, shore[0], tokenizer.encode(fisher.target))
print(f"reference {total:6.2f}  {fisher.target}")

# %% tags=["remove-cell"]
assert "fishing" not in tokenizer.decode(four[0].tokens + four[1].tokens)
assert "fishing" in tokenizer.decode(four[2].tokens)
assert 3.1 < four[0].log_probability - four[2].log_probability < 3.4
assert four[0].log_probability - total > 16.5

# %% [markdown]
# The columns are score and log-probability. The winner doesn't fish, nor does the next, which is that of greedy search; the third does, and is 25 times less likely than the first. Neither the search nor the penalty looks at the source. Only the model does, and a model that isn't sure of a phrase finds it cheap to skip.
#
# Whose fault is it? Forced scoring tells. If the reference scored better than the output, the search would have missed it. That is a **search error**, and a wider beam may help. Here the model gives the reference $-19.67$ and finds it twenty million times less likely than its own sentence. That is a **model error**, which no search mends. How often does the search miss the reference, over 100 captions?

# %% tags=["nbval-ignore-output"]
missed = 0
for row, pair, (found,) in zip(
    sources, captions, beam_search(model, pad(sources[:100]))
):
    total, n = forced(model, torch.tensor(row), tokenizer.encode(pair.target))
    missed += total / length_penalty(n, 0.6) > found.score
print(
    f"the reference scores better in {missed} of 100 captions, our output at least as well in {100 - missed}"
)

# %% tags=["remove-cell"]
assert missed <= 5

# %% [markdown]
# So search errors are rare, and a wider beam would mend little.
#
# ## Beam width and alpha
#
# The paper has a beam of 4 and $\alpha = 0.6$, chosen on its development set. We try seven widths on the first 250 validation captions. Since $\alpha$ doesn't steer which hypotheses survive, one search for each width is enough: we keep all that finished and sort them anew for each $\alpha$. Quality is measured in BLEU, which [Evaluation](20_evaluation.ipynb#why-each-part-of-bleu-is-there) takes apart; higher is better.
#
# :::{margin}
# Beams of 1, 2 and 4 run on this page. The wider ones, whose work doubles each time, are read from the log of `python -m benchmarks.experiments.widths`, with which these three must agree.
# :::


# %% tags=["nbval-ignore-output", "hide-input"]
def candidates(beam):
    rows = [None] * len(sources)
    for batch in length_batches(
        [len(row) for row in sources], min(2048, 16_384 // beam)
    ):
        found = beam_search(model, pad([sources[i] for i in batch]), beam, n_best=beam)
        for number, hypotheses in zip(batch, found):
            rows[number] = hypotheses
    return rows


def chosen_by(rows, alpha):
    def score(h):
        return h.log_probability / length_penalty(len(h.tokens) + h.ended, alpha)

    return [max(row, key=score) for row in rows]


references = [[pair.target for pair in captions]]
true_length = sum(len(tokenizer.encode(text)) for text in references[0])
swept = []
for beam in (1, 2, 4):
    rows = candidates(beam)
    for alpha in (0.0, 0.6, 1.0):
        best = chosen_by(rows, alpha)
        bleu = sacrebleu.corpus_bleu(
            [tokenizer.decode(h.tokens) for h in best], references
        ).score
        length = sum(len(h.tokens) for h in best) / true_length
        total = sum(h.log_probability for h in best) / len(best)
        record = {"beam": beam, "alpha": f"alpha {alpha}", "BLEU": round(bleu, 2)}
        swept.append(record | {"length": round(length, 3), "log p": round(total, 2)})
log = (
    Path("../benchmarks/results/widths.jsonl").read_text(encoding="utf-8").splitlines()
)
logged = [json.loads(line) for line in log[1:]]
assert all(abs(r["BLEU"] - old["BLEU"]) < 0.3 for r, old in zip(swept, logged))
swept += logged[len(swept) :]  # the wider ones, from the log
print("BLEU, length and log p at alpha 0, 0.6 and 1")
for beam in (1, 2, 4, 8, 16, 32, 64):
    three = [r for r in swept if r["beam"] == beam]
    texts = [f"{r['BLEU']:.1f} {r['length']:.2f} {r['log p']:.2f}" for r in three]
    print(f"beam {beam:2}: ", "   ".join(texts))
at = {(r["beam"], r["alpha"][6:]): r for r in swept}
assert all(
    at[2, alpha]["BLEU"] > at[1, alpha]["BLEU"] + 1 for alpha in ("0.0", "0.6", "1.0")
)
assert at[64, "0.0"]["BLEU"] < at[2, "0.0"]["BLEU"] - 0.4
for beam, alpha in product((8, 16, 32, 64), ("0.6", "1.0")):
    assert abs(at[beam, alpha]["BLEU"] - at[4, alpha]["BLEU"]) < 0.3
    assert at[beam, alpha]["BLEU"] > at[beam, "0.0"]["BLEU"] + 0.5
assert (
    at[64, "0.0"]["length"] < at[64, "0.6"]["length"] < at[64, "1.0"]["length"] < 0.92
)
assert at[1, "1.0"]["length"] > 0.93

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-beam-sweep", "caption": "What do a wider beam and a length penalty change? BLEU (left) and the length of the output over that of the reference (right) for seven widths and three values of alpha, on 250 validation captions. BLEU gains most from the second hypothesis. From a beam of 4 on it hardly changes, and is lower without a penalty. The output shrinks as the beam widens at every alpha, most without a penalty."}}
looks = {
    "alpha 0.0": (PLUM, [5, 3]),
    "alpha 0.6": (INK, [1, 0]),
    "alpha 1.0": (INK, [2, 2]),
}
x = alt.X("beam:O", title="beam", axis=alt.Axis(labelAngle=0))
limits = {"BLEU": [41.2, 43.2], "length": [0.87, 0.94]}
charts = [
    curves(
        swept,
        x,
        alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=domain)),
        "alpha",
        looks,
    ).properties(width=210, height=200)
    for (field, domain), title in zip(limits.items(), ("BLEU", "length / reference"))
]
show(
    alt.hconcat(*charts),
    alt="BLEU rises by more than a point from a beam of 1 to 2. From 4 on it hardly changes, half a point lower or more at alpha 0 than at the others. The output gets shorter with the width in all three curves.",
)

# %% [markdown]
# Three things can be read off, for this model and these captions.
#
# - **The second hypothesis pays most.** At $\alpha = 0.6$, two hypotheses gain 1.1 points, and eight only 0.4 more. Each doubling of the beam doubles the decoder's work.
# - **Without a penalty a wide beam loses some of what it gained.** At $\alpha = 0$, BLEU climbs from 41.4 to 42.5 at a beam of 2, falls to 42.0 at 4 and stays near that, although each wider beam finds likelier sentences. With a penalty it stays at 42.7 or above from a beam of 4 on.
# - **The penalty saves the score, but not the length.** From a beam of 1 to 64 the output shrinks from 0.94 of the references' length to 0.88 without a penalty. It still shrinks to 0.89 at 0.6 and to 0.91 at 1.0.
#
# On 250 captions, differences of a point may be chance. [Evaluation](20_evaluation.ipynb#whether-a-difference-is-real) tests some on a thousand others. There little of the gain is left: a beam of 4 is ahead of greedy search by 0.2, with a 95% interval from $-0.3$ to $0.6$. Nor is a beam of 8 surely ahead of a beam of 4: $0.1$, from $-0.1$ to $0.3$. A larger exponent does pay there: $\alpha = 1.4$, the best of three tried on all validation captions, is ahead of 0.6 by $0.9$, from $0.6$ to $1.4$.
#
# ### Why is my beam search worse with a larger beam?
#
# Because it is a better search, and the model isn't made to be searched so well. (Ours loses only without a penalty; others have seen worse.) Training asks for the next word after a right beginning, so nothing has ever taught the model that an empty translation, as a whole, is a bad one. We compare the probability of nothing but `</s>` with that of the sentence a beam of 4 finds:

# %% tags=["hide-input", "nbval-ignore-output"]
empty, ranks, unsure, leads = [], [], [], []
for row, (found,) in zip(sources, beam_search(model, pad(sources))):
    with evaluating(model):
        first = next_logits(
            model, torch.tensor([[BOS]]), Cache(model, torch.tensor([row]))
        )[0, 0]
    nothing = first.log_softmax(dim=-1)[EOS].item()
    ranks.append((first > first[EOS]).sum().item() + 1)
    leads.append(found.score - nothing)  # the penalty of the empty one is 1
    if nothing > found.log_probability:
        empty.append(len(found.tokens))
        unsure.append(row)
print(
    f"the empty one is likelier in {len(empty)} of {len(sources)}, {np.mean(empty):.0f} tokens on average"
)
print(f"as a first word </s> is the {min(ranks)}th choice, or worse")
for beam in (4, 64, 128):
    answers = beam_search(model, pad(unsure), beam, alpha=0.0)
    shortest = min((best.tokens for (best,) in answers), key=len)
    print(
        f"beam {beam:3}, alpha 0, the shortest of these: {tokenizer.decode(shortest)}"
    )

# %% tags=["remove-cell"]
assert 3 < len(empty) < 10 and min(ranks) > 50 and len(shortest) < 5
assert min(leads) > 0

# %% [markdown]
# In 6 of 250 captions the model gives the empty sentence a higher probability than our translation. These captions are long, because a long product of unsure words loses to a single unlikely `</s>`. A narrow beam protects us, since `</s>` is never among the first fifty choices for a first word; the penalty protects us, too, and with it the empty sentence wins nowhere. With neither, a beam of 128 answers one of these captions with three words.
#
# Others have seen the same on a larger scale. {cite:t}`koehn2017six` found that beam search helps only while the beam is narrow, {cite:t}`stahlberg2019nmt` searched a Transformer base model exactly and got the empty translation as the best of all for more than half of the sentences, and {cite:t}`murray2018correcting` showed that wide beams do hardly any harm once a reward for each word has corrected the length. So if a larger beam lowers your score, look at the lengths first.
#
# :::{admonition} For a second reading: why are my translations too short?
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
# ## Sampling: drawing words at random
#
# A search wants the best sentence. Sometimes you want many different ones, to see what the model thinks possible or to make training data. Then each word is drawn by its probability, which is called **sampling**. Drawn as they are, words go wrong now and then, because thousands of unlikely words add up. If they have 10% at each place, a sentence of 20 words escapes them with probability $0.9^{20} = 0.12$. Three knobs sharpen the choice:
#
# - The **temperature** $\tau$ divides the logits. Below 1 the likely words gain, above 1 the unlikely ones; towards 0 sampling becomes greedy.
# - **Top-k** keeps the $k$ most likely words.
# - **Top-p**, or nucleus sampling {cite:p}`holtzman2020curious`, keeps the most likely words that together reach a share of $p$: few where the model is sure, many where it isn't.
#
# Take four words with shares of 0.5, 0.3, 0.15 and 0.05. With $\tau = 0.5$ the shares are squared, 0.25, 0.09, 0.0225 and 0.0025, and divided by their sum 0.365. With top-p 0.7 the first word isn't enough, the second makes it 0.8, and the two stay.
#
# | | word 1 | word 2 | word 3 | word 4 |
# |---|---|---|---|---|
# | as it is | 0.500 | 0.300 | 0.150 | 0.050 |
# | $\tau = 0.5$ | 0.685 | 0.247 | 0.062 | 0.007 |
# | $\tau = 2$ | 0.379 | 0.294 | 0.208 | 0.120 |
# | top-k 2, or top-p 0.7 | 0.625 | 0.375 | 0 | 0 |
#
# In code, all words are sorted, the tail is set to minus infinity, and `scatter` restores the order. A word is dropped if the words ahead of it already have $p$ or more, so the first always stays.


# %% tags=["export"]
def filter_logits(
    logits: Tensor, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Set logits (..., |V|) to minus infinity but for the top k, and of these those making up p."""
    ordered, tokens = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[..., top_k:] = -torch.inf
    if top_p is not None and top_p < 1:
        share = ordered.softmax(dim=-1)
        before = share.cumsum(dim=-1) - share
        ordered[before >= top_p] = -torch.inf
    return torch.empty_like(logits).scatter(-1, tokens, ordered)


# %%
def rounded(logits):
    return [round(share, 3) for share in logits.softmax(dim=-1).tolist()]


shares = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=torch.float64)
for options in ({"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.55}):
    print(options, rounded(filter_logits(shares.log(), **options)))
for temperature in (0.5, 2):
    print("temperature", temperature, rounded(shares.log() / temperature))

# %% [markdown]
# The numbers of the table, in the order of the vocabulary, where word 1 comes second. In the third line, top-p counts the shares that top-k has left, of which the first is $0.5/0.95 = 0.526$, not enough for 0.55.
#
# The loop needs no beams. Padding and `<s>` are forbidden *before* the softmax here, since a draw needs shares that sum to 1.


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
    """Draw a translation of each source (B, S) token by token; ids without `<s>` and `</s>`.

    Raises ValueError for a temperature, top_k or top_p out of its range.
    """
    if not 0.01 <= temperature <= 100:
        raise ValueError(
            f"temperature={temperature} must be from 0.01 to 100; greedy is beam=1"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be 1 or more, or None")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 up to 1, or None")
    limit = length_limit(model, source, max_extra_tokens)
    target = torch.full_like(source[:, :1], BOS)
    running = torch.ones_like(limit, dtype=torch.bool)
    with evaluating(model):
        cache = Cache(model, source)
        while running.any():
            logits = next_logits(model, target[:, -1:], cache)[:, 0]
            check_finite(logits.amax(dim=-1))
            logits[:, [PAD, BOS]] = -torch.inf
            logits = filter_logits(logits / temperature, top_k, top_p)
            drawn = logits.softmax(dim=-1).multinomial(1, generator=generator)
            token = drawn[:, 0].where(running, PAD)
            target = torch.cat([target, token[:, None]], dim=1)
            running &= (token != EOS) & (target.size(1) <= limit)
    written = target[:, 1:].tolist()
    return [[token for token in row if token not in (PAD, EOS)] for row in written]


# %% [markdown]
# Drawn often enough, first words must come up as often as the model says. The share of a word with probability 0.5 varies by about $\sqrt{0.25 / 20{,}000} = 0.0035$ in 20,000 draws. And with top-k 1 there is nothing to draw:

# %% tags=["nbval-ignore-output"]
source = torch.tensor([[4, 5, 6, EOS]])
only = sample(random_model, source, top_k=1, max_extra_tokens=3)
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
assert only == [
    beam_search(random_model, source, beam=1, max_extra_tokens=3)[0][0].tokens
]
assert largest < 0.015

# %% [markdown]
# The figure shows the knobs on the trained model, three words into the winning sentence: after *The man is*.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-temperature", "caption": "What does the temperature change? The ten most likely tokens after *The man is* and their shares at three temperatures; *f*, *bl* and *st* begin longer words. Filled bars are what top-p 0.9 keeps, outlined ones it drops. At 1 and at 2 all ten stay, with many behind them. Recorded from the trained model."}}
begun = torch.tensor([[BOS, *tokenizer.encode("The man is")]])
with evaluating(model):
    fourth = step_by_step(model, german, begun)[0, -1]
fourth[[PAD, BOS]] = -torch.inf
ids = fourth.topk(10).indices


def bars(temperature):
    shares = (fourth / temperature).softmax(dim=-1)
    inside = filter_logits(fourth / temperature, top_p=0.9) > -torch.inf
    rows = []
    for number, i in enumerate(ids.tolist(), 1):
        word = f"{number}. {tokenizer.decode([i]).strip() or '·'}"
        rows.append(
            {
                "word": word,
                "share": round(shares[i].item(), 3),
                "kept": inside[i].item(),
            }
        )
    fill = alt.condition("datum.kept", alt.value(PLUM), alt.value(PAPER))
    ticks = alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8, 1])
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("share:Q", title="share", scale=alt.Scale(domain=[0, 1.1]), axis=ticks),
        y=alt.Y("word:N", title=None, sort=None),
    )
    chart = base.mark_bar(stroke=PLUM, strokeWidth=1.2).encode(fill=fill)
    return (
        chart + base.mark_text(align="left", dx=5).encode(text="share:Q")
    ).properties(width=330, height=230)


found = {0.5: "on has 0.97", 1: "on has 0.62, asleep 0.09, in 0.05", 2: "on has 0.03"}
pictures = {
    f"{t:g}": (bars(t), f"At temperature {t:g} {told}, the others less.")
    for t, told in found.items()
}
show_steps(pictures, "Temperature", start=1)

# %% tags=["nbval-ignore-output"]
draws = torch.Generator().manual_seed(0)
kept = []
for temperature in (0.5, 1.0, 2.0):
    kept.append(
        (filter_logits(fourth / temperature, top_p=0.9) > -torch.inf).sum().item()
    )
    drawn = sample(
        model, german.expand(3, -1), temperature, generator=draws, max_extra_tokens=5
    )
    texts = " | ".join(map(tokenizer.decode, drawn))
    print(f"{temperature}, top-p 0.9 would keep {kept[-1]}; without it: {texts}")

# %% tags=["remove-cell"]
assert kept[0] == 1 and 50 < kept[1] < 80 and kept[2] > 4000

# %% [markdown]
# Top-p 0.9 keeps one word at a temperature of 0.5, 65 at 1 and 4,314 of the 6,000 at 2, where the drawn sentences have come apart. There top-p hardly filters; top-k would. Sampling also shows what a search hides: if ten drawn translations say the same in other words, the model is sure of the meaning, and if they disagree about who does what, it is guessing.
#
# ## Which one to take
#
# | | hypotheses a step | gives | use it for |
# |---|---|---|---|
# | greedy, `beam=1` | 1 | one sentence, always the same | a quick look, validation during training |
# | beam of 4 | at most 4 | a likelier sentence, always the same, and others behind it | translations to be read, scores to be compared |
# | sampling | 1 | another sentence each time | many outputs for one source, seeing how sure the model is |
#
# All three can be watched at work, in the everyday model:
#
# :::{what-if} search
# How does a translation come about? Each row is a step. A box holds a token and the log-probability of all tokens up to it, the best on the left. Boxes with a solid frame are kept, dashed ones are dropped, filled ones have ended, and the thick path leads to the best score, for which the table divides by the length penalty. Change the beam (a beam of 1 is greedy search) or the exponent $\alpha$ of the length penalty, or have the words drawn at random and change temperature and top-p; then the dashed boxes are the likeliest words that weren't drawn.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/19_decoding.html#fig-what-if-search).
# :::
#
# **Why does the model repeat itself?** Having written a phrase makes the same phrase likelier, most of all in models that haven't learned enough. Programs that keep three words in a row from coming twice hide the loop and leave its cause.
#
# ## What to remember
#
# - The likeliest words don't make the likeliest sentence. Beam search expands, scores and prunes; it promises nothing.
# - Scores are divided by $((5 + n)/6)^\alpha$. The penalty doesn't steer the beam; it chooses among the finished and says when to stop: when no running hypothesis can still win, even if it were certain of every word to its limit.
# - The KV cache works because the causal mask freezes the past. In beam search it moves with its hypothesis.
# - A wider beam finds likelier sentences, and beyond a few hypotheses hardly better ones. Forced scoring tells a search error from a model error.
# - Temperature, top-k and top-p sharpen a distribution before a word is drawn.
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
        lambda written: TABLE.get(written, {"</s>": 1.0}), beam, limit=3
    )[0]
    print(f"beam {beam}: {' '.join(words):12} {math.exp(total):.2f}")

# %% [markdown]
# **3. Too early** (★★, 20 min). Stop at the first finished hypothesis. Write a table like that of exercise 2 for which this loses with a beam of 2 and $\alpha = 1$.

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
# **4. What breaks if** (★★, 20 min) the cache is not reordered when one hypothesis takes another's place? Predict what happens to the words and to their scores, then try it.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Nothing fails. A hypothesis looks back at the words of another, so its score is not the model's.
right = Cache.keep


def forgetful(cache, sentences, parents):
    if len(cache.self_kv[0][0]) > len(cache.mask):
        parents = torch.arange(parents.size(1)).expand_as(parents)
    right(cache, sentences, parents)


Cache.keep = forgetful
wrong = beam_search(random_model, source, beam=4, max_extra_tokens=6, n_best=4)[0]
Cache.keep = right
for h in wrong:
    true = forced(random_model, source[0], h.tokens, h.ended)[0]
    print(f"the search says {h.log_probability:.3f}, the model {true:.3f}")
assert abs(true - h.log_probability) > 1e-6

# %% [markdown]
# **5. In which order?** (★★, 10 min) Our `sample` applies the temperature before top-p. Would it be the same afterwards? And for top-k?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Top-k keeps the same words either way. A high temperature flattens the shares, so top-p then
# needs more words.
for name, options in {"top-k": {"top_k": 2}, "top-p": {"top_p": 0.7}}.items():
    before = filter_logits(shares.log() / 3, **options).isfinite().sum().item()
    after = (filter_logits(shares.log(), **options) / 3).isfinite().sum().item()
    print(f"{name}: words kept with the temperature first {before}, last {after}")

# %% [markdown]
# **6. The authors' search** (★★★, an evening, open). Change `extend` and `finish` so that finished hypotheses move to a list of their own and $k$ keep running. Does it find likelier sentences on the 250 captions, does BLEU change, and what does it cost?
#
# ## Sources
#
# Beam of 4, $\alpha = 0.6$ and the limit of 50 more tokens than the input are from section 6.1 of {cite:t}`vaswani2017attention`. The length penalty is that of {cite:t}`wu2016google`, without their second penalty for words of the source that nothing attended to. Grouped queries are from {cite:t}`ainslie2023gqa`, after {cite:t}`shazeer2019fast`; nucleus sampling is from {cite:t}`holtzman2020curious`.
