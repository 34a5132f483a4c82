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
# # Attention maps
#
# This chapter takes the attention weights out of a trained model, draws them, and measures which of them mean what they seem to mean (sections 3.2.3 and 4 of the paper, and its Figures 3 to 5).
#
# The last pages of the paper show lines between words: a verb that looks at its distant half, a pronoun that looks at its noun. They are among the most copied pictures of the field, because they seem to let us watch a network think.
#
# Such a picture is easy to make and hard to trust. A model with 3 layers of 4 heads and three kinds of attention has $3 \cdot 4 \cdot 3 = 36$ maps for a sentence, and with ten tokens each of them holds about a hundred numbers. Among so many, some will look meaningful by chance. So this chapter does everything twice: it looks, and then it counts on many sentences what it seemed to see.
#
# Three questions lead through it. Where does a head look? That is read off a map. Does it look there because of what the word *is*, or because of where it stands? That takes a score. And does the model need the head? That takes an intervention: we change the head and see what happens.

# %% tags=["export"]
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from annotated_transformer.data import words
from annotated_transformer.layers import DecoderLayer, EncoderLayer
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer, evaluating

# %%
import html
import json
from itertools import product
from random import Random

import altair as alt
from IPython.display import display

from annotated_transformer import load_pretrained
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.synchronous_grammar import Phrase, draw_main_clause, english_clause
from annotated_transformer.synchronous_grammar import german_clause, grammar, join, linked, to_pair
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from book.figures import FONTS, INK, KEY, QUERY, RESIDUAL, VALUE
from book.figures import heatmap, page_colors, show, show_steps
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.training import TrainingConfig, train
from annotated_transformer.transformer import greedy_decode, preset

# %% [markdown]
# ## Where the weights are
#
# We have a trained model from German to English, and look for its weights.

# %%
model, tokenizer = load_pretrained()
text = "Zwei Hunde spielen im Schnee."
source = torch.tensor([[*tokenizer.encode(text), EOS]])
first = model.encoder.layers[0].self_attention
with evaluating(model):
    model.encode(source)
print("weights:", first.weights)

# %% [markdown]
# Nothing there. The fast kernel never writes the weights down; that is why it is fast. It works through the keys in blocks, keeps a running sum, and has only the output in the end.
#
# `MultiHeadAttention` has a second way, which computes the weights as [Attention](03_attention.ipynb) does and keeps them. It takes that way when its attribute `keep_weights` is set. We set it everywhere for the length of a block, and put everything back at its end. A model that goes on keeping them is slower, and it holds on to weights that nobody reads: for 64 sentences of 30 tokens, 8 heads and 18 modules, that is $64 \cdot 30^2 \cdot 8 \cdot 18 = 8.3$ million numbers.


# %% tags=["export"]
@contextmanager
def keeping_weights(model: Transformer) -> Iterator[None]:
    """Let all attention keep its weights inside the block; afterwards it is as before."""
    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    before = [(module.keep_weights, module.weights) for module in modules]
    for module in modules:
        module.keep_weights = True
    try:
        yield
    finally:
        for module, (keep, weights) in zip(modules, before):
            module.keep_weights, module.weights = keep, weights


# %% [markdown]
# `contextmanager` makes a `with` block of a function: what stands before `yield` runs at the beginning of the block, what follows it at the end. The `finally` sees to it that all is put back even if the model raises an error inside. What is put back is what was there, not a blind `False`: somebody else may want the weights, too.
#
# ## How do I get the weights out of PyTorch's own module?
#
# `nn.MultiheadAttention` returns its weights beside the output. But by default it returns the mean over the heads, and the heads cannot be had back from it.

# %%
module = torch.nn.MultiheadAttention(embed_dim=8, num_heads=4, batch_first=True)
x = torch.zeros(1, 5, 8)
print("by default:                ", tuple(module(x, x, x)[1].shape))
print("average_attn_weights=False:", tuple(module(x, x, x, average_attn_weights=False)[1].shape))
print("need_weights=False:        ", module(x, x, x, need_weights=False)[1])

# %% [markdown]
# In `nn.TransformerEncoderLayer` one cannot ask for them at all, since the layer itself calls its attention with `need_weights=False`. A forward hook on the attention comes too late: by then the weights were never made. One must change the arguments of the call.
#
# ## Three kinds of maps
#
# There are three kinds of attention in the model, as section 3.2.3 of the paper lists them.
#
# | kind | queries: rows | keys: columns | may look |
# |---|---|---|---|
# | encoder | source tokens | source tokens | everywhere |
# | decoder | target tokens | target tokens | at itself and to the left |
# | cross | target tokens | source tokens | everywhere |
#
# Each has as many maps as there are layers times heads. The first two kinds are square, and the second is half empty. The third is as high as the target is long and as wide as the source.


# %% tags=["export"]
class AttentionMaps(NamedTuple):
    """The weights of one sentence pair; queries are rows, keys are columns, rows sum to 1.

    With S source and T target tokens, L layers and H heads: encoder (L, H, S, S), decoder
    (L, H, T, T), cross (L, H, T, S).
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


# %% [markdown]
# The modules come from the layers of both stacks. Each decoder layer has two of them.


# %% tags=["export"]
def attention_modules(model: Transformer) -> dict[str, list[MultiHeadAttention]]:
    """Return the model's attention by its kind, encoder, decoder or cross, bottom layer first."""
    encoder = [layer for layer in model.modules() if isinstance(layer, EncoderLayer)]
    decoder = [layer for layer in model.modules() if isinstance(layer, DecoderLayer)]
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }


# %% [markdown]
# Now the weights themselves. One sentence at a time is enough, and is safer. In a batch, short sentences are padded, and every map would have rows and columns that mean nothing.
#
# `attention_maps` runs the model once, with the source and with a target that is already written. Then each module holds weights of shape (1, H, T, S). The axis in front has room for one sentence, and joining the layers along it gives (L, H, T, S).


# %% tags=["export"]
def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> AttentionMaps:
    """Return all weights for source (1, S) and target (1, T) from `<s>` on (section 3.2.3).

    In evaluation mode and before dropout; the model is left as it was. Raises ValueError for
    more than one sentence, whose padding would blur the maps.
    """
    if source.size(0) != 1 or target.size(0) != 1:
        raise ValueError(f"one sentence at a time, not {source.size(0)} and {target.size(0)}")
    with keeping_weights(model), evaluating(model):
        model(source, target)
        kinds = attention_modules(model).values()
        kept = [[m.weights for m in kind if m.weights is not None] for kind in kinds]
        return AttentionMaps(*map(torch.cat, kept))


# %%
target = torch.tensor([[BOS, *greedy_decode(model, source)[0]]])
maps = attention_maps(model, source, target)
for kind in maps:
    torch.testing.assert_close(kind.sum(dim=-1), torch.ones(kind.shape[:-1]))
assert maps.cross.shape[-2:] == (target.size(1), source.size(1))
assert not maps.decoder.triu(diagonal=1).any()
print("every row sums to 1; no position of the decoder looks ahead")
print("the weights are not kept any more:", not first.keep_weights and first.weights is None)

# %% [markdown]
# For the target we take what the model itself writes, with `<s>` in front. `</s>` is not in it: it would be a row that writes nothing any more.
#
# The sum of the rows is the check that catches most mistakes. Weights normalized along the wrong axis have columns that sum to 1. And it catches one more thing, which has puzzled readers of many a picture.
#
# ## Why is one of my weights above 1?
#
# Because it was taken after dropout, in training mode. Where an implementation drops attention weights, it divides the survivors by $1 - p$, as [Regularization](17_regularization.ipynb) shows. At $p = 0.1$ a weight of 0.99 becomes 1.10, and a dropped one leaves a hole in the picture.

# %% tags=["nbval-ignore-output"]
random = torch.Generator().manual_seed(0)
weights = (2 * torch.randn(200, 10, generator=random)).softmax(dim=-1)
dropped = torch.nn.functional.dropout(weights, p=0.1)
sums = dropped.sum(dim=-1)
assert sums.min() < 0.95 and sums.max() > 1.05
print(f"rows sum to {sums.min():.2f} up to {sums.max():.2f}; largest weight {dropped.max():.2f}")

# %% [markdown]
# Our `attention` returns its weights before dropout, so that this cannot happen. It is still not enough. Even where the weights are taken before dropout, a model in training mode drops parts of the states that queries and keys are computed from. The rows sum to 1 then, and the map is another one at each call.

# %%
with keeping_weights(model), torch.no_grad():
    torch.manual_seed(0)
    model.train()
    drawn = []
    for _ in range(2):
        model.encode(source)
        drawn.append(model.encoder.layers[1].self_attention.weights)
    model.eval()
print("the same map twice, in training mode:  ", torch.equal(*drawn))
again = attention_maps(model, source, target)
print("the same map twice, in evaluation mode:", torch.equal(again.encoder, maps.encoder))

# %% [markdown]
# ## A map and its axes
#
# To draw a map, each row and column needs a name. Tokens are parts of words, subwords, and a small function names them. Most subwords at the beginning of a word carry the space before it; it is cut off. One that is nothing but a space becomes a dot.
#
# Which tokens belong to which axis follows from who asks: the rows of the decoder's two kinds are *target* tokens, the columns of cross-attention are *source* tokens.


# %% tags=["export"]
def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return how each token reads, reserved ones as `</s>`, without the space before a word."""
    return [SPECIAL.get(index) or tokenizer.decode([index]).strip() or "·" for index in ids]


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-three-maps", "caption": "Who looks at whom? The three kinds of attention in the top layer of the trained model, mean of its heads, for one sentence (choose on the website). A row asks, and sums to 1; a column answers. In the decoder, a row is the token that is read there; what it writes is the name of the next row. Hatched: hidden by the causal mask."}}
source_names, target_names = (token_names(tokenizer, row[0].tolist()) for row in (source, target))
causal = torch.ones(len(target_names), len(target_names)).tril().bool().tolist()
axes = {
    "encoder": (source_names, source_names, None),
    "decoder": (target_names, target_names, causal),
    "cross": (target_names, source_names, None),
}
steps = {}
for kind, (rows, columns, mask) in axes.items():
    weights = getattr(maps, kind)[-1].mean(dim=0)
    chart = heatmap(weights.tolist(), rows, columns, mask, cell=40)
    best = weights.argmax(dim=-1).tolist()
    found = f"{rows[1]} looks most at {columns[best[1]]}, {rows[2]} at {columns[best[2]]}."
    steps[kind] = (chart, f"Top layer of {kind} attention. {found}")
show_steps(steps, "Kind of attention:", start=2)

# %% [markdown]
# How to read it: take a row, go along it, and see how its ink is shared out among the columns. A dark *column* is a token that many others look at. It says nothing about that token's own interest in others.
#
# ## Which axis is which?
#
# Two errors are common in published maps of this kind. In one, the axes of cross-attention are swapped, so that German words seem to ask English ones. In the other, the decoder's self-attention is labeled with source tokens. Both look fine, as long as the two sentences are of similar length. The shape decides: cross-attention has as many rows as the target has tokens. Exercise 2 finds a swap even where both have the same number.
#
# A subtler trap is the shift between reading and writing. The row named `<s>` reads `<s>` and *writes* the first word.
#
# | row | reads | writes |
# |:---:|---|---|
# | 1 | `<s>` | Two |
# | 2 | Two | dogs |
# | 3 | dogs | ... |
#
# So when the model looks for the source of the word it is about to write, it does so one row higher than one would expect. We come back to this when we count.
#
# ## Every head by itself
#
# A mean over heads hides what heads are for. If one head looks at the word before and another at the word after, the mean shows two grey neighbors, and no head that does that. Here is every head of every layer.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-all-heads", "caption": "What do heads look at? Every head (columns) of every layer (rows) of the trained model, for the same sentence. Rows and columns of each small map are tokens in the order of the figure above. Ink is weight, from 0 (empty) to 1 (full)."}}


def grid(weights, cell=11):
    rows, columns = weights.shape[-2:]
    records = [
        {"layer": f"layer {n + 1}", "head": f"head {h + 1}", "i": i, "j": j, "w": round(w, 2)}
        for (n, h, i, j), w in zip(product(*map(range, weights.shape)), weights.flatten().tolist())
        if w >= 0.03
    ]
    blank = {"title": None, "axis": alt.Axis(labels=False, ticks=False, domain=False)}
    x, y = (alt.Scale(domain=list(range(size)), padding=0) for size in (columns, rows))
    ink = alt.Scale(domain=[0, 1], range=[0, 1])
    chart = alt.Chart(alt.Data(values=records)).mark_rect(fill=INK)
    chart = chart.encode(
        alt.X("j:O", scale=x, **blank),
        alt.Y("i:O", scale=y, **blank),
        alt.FillOpacity("w:Q", scale=ink, legend=None),
    )
    view = alt.ViewConfig(stroke=INK, strokeOpacity=0.3)
    chart = chart.properties(width=cell * columns, height=cell * rows, view=view)
    row, column = alt.Row("layer:N", title=None), alt.Column("head:N", title=None)
    return chart.facet(row=row, column=column, spacing=10)


def sharpest(weights):
    peak = weights.amax(dim=-1).mean(dim=-1)
    where = divmod(int(peak.argmax()), peak.size(1))
    return f"layer {where[0] + 1}, head {where[1] + 1} is the most decided: its largest weights are {peak.max():.2f} on average."


show_steps(
    {
        kind: (grid(getattr(maps, kind)), f"{kind}: {sharpest(getattr(maps, kind))}")
        for kind in axes
    },
    "Kind of attention:",
    start=2,
)

# %% [markdown]
# Four patterns are worth knowing, in this grid and in any other.
#
# | pattern | what the head seems to do |
# |---|---|
# | a diagonal | it looks at a fixed distance |
# | a column | everyone looks at one token, often the period or `</s>` |
# | a grey haze | it takes a mean of nearly everything |
# | single dark cells elsewhere | it picks out words that place does not explain |
#
# It is tempting to give names to heads now. We resist, and watch the whole machine at work first.
#
# ## Why does everyone look at `</s>`?
#
# A row must sum to 1. A head that looks for something which the sentence does not have cannot look nowhere. It has to put its weight somewhere, and a token that is always there, with a value that changes little, is a good place to park it. So a dark column at `</s>` or at the period is no sign that the token matters. More likely the head has nothing to say about these rows. What counts is the weight times the *value*, and the map shows only the weight.
#
# ## The machine at work
#
# The next figure replays one translation, from the numbers that the model computed for it. Each circle is a state, a vector of the residual stream. Each line is a weight, the mean over the heads of a layer. First the source: in each layer, all positions look at all positions, at the same time. Then the target, one token after another, and each token looks at all tokens before it *and* at the finished source.
#
# This is the trace of a single pass with the finished translation. Because of the causal mask, it is equal to what was computed step by step: a position never sees what comes after it.
#
# The figure needs three lists: the states and where they stand, the words, and for each frame what is new and which weights flow. A state has the number level × positions + position, so a line is two numbers and a weight.

# %% tags=["hide-input"]


def record_trace(maps, source_names, target_names, pitch=50, rise=58, lift=30, top=40):
    """Lay out states and words, and list for each frame what is new and which weights flow."""
    layers, S, T = len(maps.encoder), len(source_names), len(target_names)
    across = [30 + pitch * (i + 0.6 * (i >= S)) for i in range(S + T)]
    height = top + lift + rise * layers  # of the lowest source states; the target stands higher
    written = [*target_names[1:], "</s>"]
    flows = [kind.mean(dim=1).tolist() for kind in maps]  # [layer][query][key]

    def state(column, level):
        return level * (S + T) + column

    def lines(weights, first, below, level, column):
        found = ((i, round(w, 3)) for i, w in enumerate(weights, start=first))
        return [(state(i, below), state(column, level), w) for i, w in found if w >= 0.02]

    def born(column):  # the frame in which a target token is computed
        return layers + 1 + column - S

    states = [
        [round(x), height - rise * level - lift * (i >= S), level if i < S else born(i)]
        for level in range(layers + 1)
        for i, x in enumerate(across)
    ]
    words = [[round(across[i]), height + 24, name, 0] for i, name in enumerate(source_names)]
    for i, (read, write) in enumerate(zip(target_names, written), start=S):
        words.append([round(across[i]), height + 24 - lift, read, born(i)])
        words.append([round(across[i]), top - 18, write, born(i)])
    say = "Each source token is a vector that knows only itself and its place."
    frames = [{"say": say, "new": [state(i, 0) for i in range(S)], "lines": []}]
    for n in range(layers):
        say = f"Encoder layer {n + 1}: all {S} positions look at all {S}, in parallel."
        flow = [edge for j in range(S) for edge in lines(flows[0][n][j], 0, n, n + 1, j)]
        frames.append({"say": say, "new": [state(i, n + 1) for i in range(S)], "lines": flow})
    for t in range(T):
        seen = "itself" if t == 0 else f"{t + 1} target tokens"
        say = f"Decoder: reads “{target_names[t]}”, looks at {seen} and at the finished source, writes “{written[t]}”."
        flow = []
        for n in range(layers):
            flow += lines(flows[1][n][t][: t + 1], S, n, n + 1, S + t)
            flow += lines(flows[2][n][t], 0, layers, n + 1, S + t)
        new = [state(S + t, n) for n in range(layers + 1)]
        frames.append({"say": say, "new": new, "lines": flow})
    size = {"width": round(across[-1] + 30), "height": height + 36}
    player = {"start": layers + 2, "pause": 1500}
    return {**size, **player, "states": states, "words": words, "frames": frames}


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-player", "caption": "What is parallel, what is sequential, and who looks at whom? One translation by the trained model, replayed. Lines are attention weights of 0.02 and more, mean of the heads of a layer: the darker, the larger. Filled circles are computed in this step. Source on the left, layers from bottom to top; target on the right, the token read below and the token written above. Without scripts, six of the steps are shown."}}


def still_frame(trace, now, angle):
    frame = trace["frames"][now]
    for a, b, w in frame["lines"]:
        (x1, y1, _), (x2, y2, _) = trace["states"][a], trace["states"][b]
        yield f'<path d="M{x1},{y1}L{x2},{y2}" stroke="{INK}" stroke-opacity="{w:.2f}" stroke-width="{1 + 4 * w:.1f}"/>'
    for index, (x, y, born) in enumerate(trace["states"]):
        if born <= now:
            fill = INK if index in frame["new"] else "#FFFFFF"
            yield f'<circle cx="{x}" cy="{y}" r="7" fill="{fill}" stroke="{INK}" stroke-width="2"/>'
    for x, y, word, born in trace["words"]:
        if born <= now:
            turn, end = (-angle, "start") if y < 40 else (angle, "start")
            safe = html.escape(word)
            yield f'<text transform="translate({x - 8},{y})rotate({turn})" text-anchor="{end}" font-size="23" fill="{INK}">{safe}</text>'


def filmstrip(trace, chosen, label):
    wide, high = trace["width"] + 60, trace["height"] + 150
    parts = []
    for place, now in enumerate(chosen):
        x, y = place % 2 * wide, place // 2 * high + 100
        drawn = "".join(still_frame(trace, now, angle=38))
        parts.append(
            f'<g transform="translate({x},{y})"><text y="-66" font-size="26" fill="{INK}">{now + 1}.</text>{drawn}</g>'
        )
    rows = -(-len(chosen) // 2)
    size = f'viewBox="0 0 {2 * wide} {rows * high}" width="{wide}" height="{rows * high / 2:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" {size} style="font-family:{FONTS}">'
    return page_colors(f"{head}{''.join(parts)}</svg>")


trace = record_trace(maps, source_names, target_names)
count, depth = len(trace["frames"]), len(maps.encoder)
chosen = [0, 1, depth, depth + 1, (depth + 1 + count) // 2, count - 1]
label = f"All {len(source_names)} source tokens pass {depth} encoder layers in parallel. Then {len(target_names)} target tokens follow one by one, each looking back and at the source."
data = json.dumps(trace, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
assert len(data) < 100_000
picture = filmstrip(trace, chosen, label)
page = f'<figure class="book-figure" data-module="player" style="margin:0">{picture}<script type="application/json">{data}</script></figure>'
display({"text/html": page, "text/plain": f"[figure: {label}]"}, raw=True)

# %% [markdown]
# In training, the right half happens in one step, too: the target is known, and the mask does the rest. Only in use must the decoder wait for its own words. That is why a translation of ten tokens takes one pass through the encoder and eleven through the decoder: ten to write the tokens, and one to write `</s>`.
#
# Two things are easy to overlook in such pictures. Cross-attention always looks at the *top* of the encoder, from every layer of the decoder. And each line enters a vector that is already there: the state below it, which goes straight up in the residual stream and has no line.
#
# ## Does cross-attention align words?
#
# In the cross map above, target words seem to find their source words. Is that so, and in which heads? This can be counted where the right answer is known. Our grammar knows it: each pair that it draws comes with its alignment. So we train a small model on it, which takes about a minute.
#
# The first 9,000 pairs are learned from, and all counting is done on the other 400. Before we look into a model, we ask if it is worth it. A model that cannot translate has no reason to look at the right words.

# %% tags=["nbval-ignore-output"]
pairs = grammar(9400, seed=0)
learned, unseen = pairs[:9000], pairs[9000:]
subwords = Tokenizer.train(learned, vocabulary_size=2000)
torch.manual_seed(0)
small = Transformer(preset("tiny", vocabulary_size=len(subwords)))
train(small, subwords, learned, TrainingConfig(steps=800, warmup=150, lr_scale=0.3))
translated = translate(small, subwords, [pair.source for pair in unseen[:100]], beam=1)
honest = score(translated, [pair.target for pair in unseen[:100]]).bleu
print(f"BLEU {honest:.1f}")
assert honest > 60

# %% [markdown]
# ## From tokens to words
#
# The alignment speaks of words, the maps speak of tokens. Where a word has several tokens, three rules bring them together.
#
# - What goes *to* a word is the sum of what goes to its tokens: a look at any part is a look at the word.
# - What goes out *from* a word is the mean over its tokens. A sum would make a row of a long word sum to 2 or 3.
# - Each reserved token, such as `</s>`, counts as a word of its own.
#
# First we must know which token belongs to which word. The tokenizer tells for each token where it begins and ends in the text. The words of `words(text)` have no positions, so we look for them one after the other and note where each one ends. A token then belongs to the first word that does not end before it.


# %% tags=["export"]
def word_of_token(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return for each token of a text the position of its word in `words(text)`."""
    ends, start = [], 0
    for word in words(text):
        start = text.index(word, start) + len(word)
        ends.append(start)
    spans = tokenizer.library.encode(text, add_special_tokens=False).offsets
    # Spaces after the last word go to it
    return [min(sum(end < stop for end in ends), len(ends) - 1) for _, stop in spans]


# %% [markdown]
# To see it work, we need a tokenizer that cuts words into small parts. One with a vocabulary of 330 has little more than the 256 bytes.

# %%
text = "Der Hund schläft."
coarse = Tokenizer.train(grammar(400, seed=0), vocabulary_size=330)
names = token_names(coarse, coarse.encode(text))
place = word_of_token(coarse, text)
print(list(zip(names, place)))
assert [place.count(n) for n in range(4)] == [2, 4, 6, 1] and len(words(text)) == 4

# %% [markdown]
# *Hund* has four tokens, of which the first is the space before it, the dot. The place where a token *ends* decides. So it does not matter how a tokenizer marks the beginning of a word, or whether it counts the space in front as part of it.
#
# ## Adding columns, averaging rows
#
# With the word of each token known, a map between tokens becomes a map between words. Both rules are matrices of zeros and ones. Multiplied from the right, one adds up the columns that belong together. Multiplied from the left and divided by the number of tokens, the other takes the mean of rows.
#
# Such a matrix comes from the unit matrix by choosing rows: `torch.eye(3)[[0, 1, 1, 2]]` has a row for each of four tokens, with a 1 in the column of its word. For three tokens that ask and four that answer, two words and three words, the shapes are (2, 3) @ (3, 4) @ (4, 3), and (2, 3) comes out. The `clamp` is for a word without a token of its own, which happens where the tokenizer and `words` cut differently. Its row is then zero and not a division by zero.


# %% tags=["export"]
def merge_tokens(weights: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Turn weights between tokens (..., T, S) into weights between words.

    `rows` and `columns` name the word of each token, from 0. Keys are added up, queries averaged,
    so rows still sum to 1; a word without a token of its own has zeros.
    """
    to = torch.eye(max(columns) + 1, dtype=weights.dtype)[list(columns)]
    out = torch.eye(max(rows) + 1, dtype=weights.dtype)[list(rows)]
    return (out / out.sum(dim=0).clamp(min=1)).T @ weights @ to


# %%
made_up = torch.tensor([[0.5, 0.1, 0.2, 0.2], [0.0, 0.6, 0.3, 0.1], [0.2, 0.2, 0.1, 0.5]])
by_word = merge_tokens(made_up, rows=[0, 1, 1], columns=[0, 1, 1, 2])
print([[round(w, 2) for w in row] for row in by_word.tolist()])

# %% [markdown]
# Three tokens ask and four answer; there are two words on the left and three on top. By hand: the second word has two query tokens, rows two and three. To the first word they send 0.0 and 0.2, on average 0.1. To the second, which has two key tokens, 0.9 and 0.3, on average 0.6. To the third, 0.1 and 0.5, on average 0.3. Each row of the result sums to 1 again.
#
# The sum has a side effect to keep in mind. A head that looks at all tokens alike gives a word of three tokens three times the weight of a word of one. Long words look more important than they are.
#
# ## How good is an alignment?
#
# Now each target word is aligned with the source word that gets its largest weight, or with none if that is `</s>`. How good is a set $A$ of such links? Measured against a set $S$ of sure links and, where people disagree, a larger set $P$ of possible ones, the **alignment error rate** is
#
# $$
# \text{AER} = 1 - \frac{|A \cap S| + |A \cap P|}{|A| + |S|}.
# $$ (eq-aer)
#
# It is 0 if all sure links are found and no impossible one, and 1 if nothing fits. The two sets treat the two kinds of mistakes. Leaving out a link hurts only if it is sure: $|S|$ stands below the bar. Adding one hurts only if it is not even possible, since $|A|$ stands there as well, and what is in $P$ is counted above.
#
# Our grammar is sure of everything, so $P = S$. Links are counted over all sentences before dividing, as with BLEU, so that long sentences count for more than short ones.
#
# The links come from the largest weight of each row. A link is a pair (source word, target word), the order in which the grammar writes its own.

# %% tags=["export"]
Links = set[tuple[int, int]] | frozenset[tuple[int, int]]  # (source word, target word)


def align(weights: Tensor, source_words: int) -> Links:
    """Link each target word with the source word it looks at most, from weights (T, S) by word.

    Columns from source_words on are no words; who looks there most gets no link.
    """
    return {(i, j) for j, i in enumerate(weights.argmax(dim=-1).tolist()) if i < source_words}


# %% [markdown]
# The error rate itself is the formula, with the sums taken over sentences.


# %% tags=["export"]
def alignment_error_rate(
    predicted: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> float:
    """Return the alignment error rate of sentences, 0 (best) to 1; possible includes sure links.

    Raises ValueError if the numbers of sentences differ.
    """
    possible = sure if possible is None else possible
    if not len(predicted) == len(sure) == len(possible):
        raise ValueError(f"{len(predicted)} alignments, {len(sure)} sure, {len(possible)} possible")
    hits = sum(len(a & s) + len(a & p) for a, s, p in zip(predicted, sure, possible))
    total = sum(len(a) + len(s) for a, s in zip(predicted, sure))
    return 1 - hits / max(total, 1)


# %% [markdown]
# Two links of which one is right, against three sure ones: $1 - (1 + 1)/(2 + 3) = 0.6$. Since $P = S$, this is also one minus the F-score, which gives us an independent check.

# %%
found, true = {(0, 0), (1, 2)}, {(0, 0), (1, 1), (2, 2)}
precision, recall = len(found & true) / len(found), len(found & true) / len(true)
f_score = 2 * precision * recall / (precision + recall)
assert abs(alignment_error_rate([found], [true]) - (1 - f_score)) < 1e-9
print(f"{alignment_error_rate([found], [true]):.2f}")

# %% [markdown]
# Why not simply count how many links are right? For the reason that gave BLEU its brevity penalty. A head that dares a single link, and a safe one, would look perfect. The formula has the number of predicted links below the bar *and* that of the wanted ones, so both inventing and leaving out cost.
#
# ## Which row is a word's row?
#
# The shift returns here. A target word has two rows: the one that *writes* it, and the next one, which *reads* it. With $n$ tokens and `<s>` in front, the map has $n + 1$ rows. All but the last are the rows that write, and all but the first are the rows that read. We count both, for 200 sentences that training has not seen.


# %%
def cross_by_word(pair):
    """Cross-attention by word, (L, H, words, words + 1), for writing and for reading a word."""
    source = torch.tensor([[*subwords.encode(pair.source), EOS]])
    target = torch.tensor([[BOS, *subwords.encode(pair.target)]])
    cross = attention_maps(small, source, target).cross
    rows, columns = (word_of_token(subwords, side) for side in (pair.source, pair.target))
    rows, columns = columns, [*rows, len(words(pair.source))]
    return {
        "writes": merge_tokens(cross[:, :, :-1], rows, columns),
        "reads": merge_tokens(cross[:, :, 1:], rows, columns),
    }


some = unseen[:200]
by_word = [cross_by_word(pair) for pair in some]
gold = [pair.alignment for pair in some]

# %% [markdown]
# ## Is a rate of 0.3 good?
#
# A rate by itself says little. What matters is how far one gets without looking at any word. So we add a rival that knows only the lengths: a straight diagonal, which links the first word with the first, the last with the last, and all others in proportion. A head that does not beat it has shown nothing.

# %% tags=["nbval-ignore-output"]
rates = {}
for way in ("writes", "reads"):
    for layer in range(2):
        for head in range(4):
            links = [
                align(w[way][layer, head], len(words(p.source))) for w, p in zip(by_word, some)
            ]
            rates[way, layer, head] = alignment_error_rate(links, gold)
lengths = [(len(words(pair.source)), len(words(pair.target))) for pair in some]
diagonal = [{(round(j * (m - 1) / max(n - 1, 1)), j) for j in range(n)} for m, n in lengths]
baseline = alignment_error_rate(diagonal, gold)
way, layer, head = best = min(rates, key=rates.get)
print(
    f"diagonal {baseline:.2f}; best: the row that {way} the word, layer {layer + 1}, head {head + 1}: {rates[best]:.2f}"
)
assert rates[best] < baseline - 0.1

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-aer", "caption": "Which heads align words? Alignment error rate of each cross-attention head against the grammar's gold alignments, 200 unseen sentences; lower is better. Above: the map row that writes a word. Below: the row that reads it. The line is what a straight diagonal achieves without looking at any word."}}
ways = {"writes": "the row that writes the word", "reads": "the row that reads the word"}
records = [
    {"head": f"layer {n + 1}, head {h + 1}", "way": ways[way], "rate": round(rate, 3)}
    for (way, n, h), rate in rates.items()
]
drawn = alt.Chart(alt.Data(values=records))
x = alt.X("rate:Q", title="alignment error rate", scale=alt.Scale(domain=[0, 1]))
bars = drawn.encode(x, alt.Y("head:N", title=None, axis=alt.Axis(ticks=False, domain=False)))
line = drawn.mark_rule(color=KEY, strokeWidth=1.5, strokeDash=[5, 3])
chart = alt.layer(
    bars.mark_bar(color=VALUE, height=13),
    bars.mark_text(align="left", dx=4).encode(text=alt.Text("rate:Q", format=".2f")),
    line.encode(x=alt.datum(round(baseline, 3))),
).properties(width=360, height=150)
header = alt.Header(labelOrient="top", labelAnchor="start")
chart = chart.facet(row=alt.Row("way:N", sort=list(ways.values()), title=None, header=header))
show(
    chart,
    alt=f"The best of sixteen has an error rate of {rates[best]:.2f}, the worst {max(rates.values()):.2f}; the diagonal has {baseline:.2f}.",
)

# %% [markdown]
# Heads differ widely. Some align well, and others are worse than a straight line that knows no words. So "the attention of the model" aligns nothing in general; certain heads do, in one of two rows. Had we taken the other row or the other layer, we would have reported that attention does not align at all, and the pictures would have agreed with us.
#
# The losing row is no accident. At the moment when a word is read, its translation is done, and the decoder is busy with the next one. In deeper models the picture can turn around: there, lower layers have often been found to look at the source of the word just read. Which row and which layer align has to be measured for each model.
#
# The choice of the best head of sixteen is a choice with hindsight, made on the same sentences that its rate is reported on. With 200 sentences and a lead of this size, luck is a small part of it. Further below, where leads are smaller, we choose on one half of the sentences and report on the other.
#
# ## Why is even the best head not perfect?
#
# It need not be. The model was trained to write the next word, not to point at its source. To write *not* after *does*, or the second half of *picks up*, it may look elsewhere. And what it needs may be found in another place: a state at the top of the encoder has gathered from its neighbors, so the meaning of *Hund* may be read at *der* as well.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-aligned", "caption": "Where does the best head look? Weights of the head with the lowest error rate, between words of an unseen sentence of the grammar. Framed cells are the gold alignment. Rows are target words, columns source words; the last column is `</s>`."}}
chosen = next(
    i for i, p in enumerate(some) if 7 <= len(words(p.target)) <= 9 and " nicht " not in p.source
)
pair, weights = some[chosen], by_word[chosen][way][layer, head]
rows, columns = words(pair.target), [*words(pair.source), "</s>"]
frames = alt.Chart(alt.Data(values=[{"row": j, "column": i} for i, j in sorted(pair.alignment)]))
frames = frames.mark_rect(fillOpacity=0, stroke=VALUE, strokeWidth=3).encode(
    x="column:O", y="row:O"
)
hits = sum((i, j) in pair.alignment for i, j in align(weights, len(columns) - 1))
show(
    heatmap(weights.tolist(), rows, columns, cell=40) + frames,
    alt=f"Of {len(rows)} target words, {hits} look most at a word of their gold alignment.",
)

# %% [markdown]
# ## What single heads do
#
# Now to the names that we did not give. The paper gives some, in its last three figures. All three show self-attention in the encoder, layer 5 of 6, on one English sentence each.
#
# | figure | what it shows | what it leaves open |
# |---|---|---|
# | 3 | the heads that look from *making* at its distant completion, *more difficult* | would a fixed distance find it as well? |
# | 4 | two heads that look from *its* at the noun it stands for, and at little else | how often do they find the noun? |
# | 5 | two heads over a whole sentence, which seem to follow its structure | which structure, and against what chance? |
#
# We ask of many sentences what the figures ask of one, with a number, and with the number that chance would get.
#
# Two things make this possible. The grammar knows the structure of what it draws. And a relation can be turned into pairs (query word, key word): from the particle *an* to its verb *ruft*, from a verb to its subject. In *Er ruft den Hund an* these are word 4 to word 1, and word 1 to word 0.
#
# `draw_known` draws a clause and notes where its parts came to stand. The words of a clause are objects, so `id` tells two *der* in one sentence apart where `==` could not.


# %%
def draw_known(rng):
    """A German main clause, its relations as pairs (query word, key word)."""
    clause = draw_main_clause(rng)
    german = german_clause(clause)
    at = {id(word): place for place, word in enumerate(german)}
    verb, subject = at[id(clause.predicate.finite)], at[id(clause.subject.german[-1])]
    relations = {"verb → its subject": (verb, subject), "subject → its verb": (subject, verb)}
    if clause.predicate.separable:
        particle = at[id(clause.predicate.closing[0])]
        relations |= {
            "particle → its verb": (particle, verb),
            "verb → its particle": (verb, particle),
        }
    phrase = join(Phrase(german, english_clause(clause)), linked(".", "."))
    return to_pair(phrase).source, relations


for text, relations in map(draw_known, [Random(2), Random(5)]):
    print(text)
    for name, (query, key) in relations.items():
        print(f"   {name}: {words(text)[query]} → {words(text)[key]}")

# %% [markdown]
# German makes this a fair test. The verb comes second, but time or object may come first, and then the subject stands behind the verb. A head that always looks one word to the left is right only some of the time.
#
# ## A score, and two rivals
#
# The score of a head is its **hit rate**: the share of sentences in which the query word looks at the right word more than at any other. Looking at itself does not count, since a state can always keep what it has through the residual stream. Two rivals stand beside it.
#
# - *Chance* is the hit rate of a blind guess: one in seven if there are seven other words to look at.
# - The *best distance* is what a head could reach that always looks, say, two words to the right. Only a head that beats it has learned about more than places.
#
# And since the best of eight heads is partly luck, we choose the head on one half of the sentences and report it on the other. Exercise 5 shows how large that luck is.
#
# In the code, a row is cloned before it is changed, since it is a view of the map. Then the word's own entry is set to −1, which no weight can be below. So the largest of the others wins.


# %% tags=["export"]
def hit_rates(weights: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Return how often each head's query word looks most at its key word, (L, H), 0 to 1.

    One weights (L, H, T, S) between words and one (query, key) a sentence; what a word gives to
    itself does not count. Raises ValueError if there are no sentences or the numbers differ.
    """
    if not len(weights) or len(weights) != len(pairs):
        raise ValueError(f"{len(weights)} maps for {len(pairs)} pairs: give one pair a sentence")
    hits = []
    for maps, (query, key) in zip(weights, pairs):
        row = maps[:, :, query].clone()
        row[..., query] = -1
        hits.append(row.argmax(dim=-1) == key)
    return torch.stack(hits).double().mean(dim=0)


# %% [markdown]
# The rival is simpler still: of all distances between query and key, take the most frequent one.


# %%
def distance_rate(pairs):
    distances = [key - query for query, key in pairs]
    return max(distances.count(distance) for distance in distances) / len(distances)


# %%
made_up = torch.tensor([[[[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]]])
print(hit_rates([made_up] * 4, [(0, 1), (1, 2), (2, 0), (2, 1)]).item())
print(distance_rate([(0, 1), (1, 2), (2, 0), (2, 1)]))

# %% [markdown]
# By hand: the first three pairs are hits. Row 0 looks most at itself, which does not count, and next at 1. The fourth is a miss, so 3 of 4. Of the distances +1, +1, −2 and −1, the best is +1, right in 2 of 4.
#
# ## Four hundred clauses
#
# Now 400 clauses, half of them with a separable verb, go through the encoders of both models: the *small* one of this chapter, and the *trained* one, which knows captions. Each clause gives one pair for each relation that it has. Clauses with even numbers choose the head, those with odd numbers score it. As a control we also ask for mere places, such as the word before the one in the middle.


# %% tags=["nbval-ignore-output", "hide-input"]
def encoder_by_word(model, tokenizer, text):
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    maps = attention_maps(model, source, torch.tensor([[BOS]])).encoder
    place = [*word_of_token(tokenizer, text), len(words(text))]
    return merge_tokens(maps, place, place)


rng = Random(5)
drawn = [draw_known(rng) for _ in range(3000)]
separable = [clause for clause in drawn if len(clause[1]) == 4]
clauses = [*separable[:200], *[clause for clause in drawn if len(clause[1]) == 2][:200]]
Random(0).shuffle(clauses)
encoded = {
    "small": [encoder_by_word(small, subwords, text) for text, _ in clauses],
    "trained": [encoder_by_word(model, tokenizer, text) for text, _ in clauses],
}


def probe(maps, relation_of):
    """Find the best head on one half of the sentences; count on the other half."""
    known = [(i, pair) for i, clause in enumerate(clauses) if (pair := relation_of(*clause))]
    rates = []
    for half in (known[::2], known[1::2]):
        rates.append(hit_rates([maps[i] for i, _ in half], [pair for _, pair in half]))
    layer, head = divmod(int(rates[0].argmax()), rates[0].size(1))
    chance = sum(1 / (maps[i].size(-1) - 1) for i, _ in known) / len(known)
    distance = distance_rate([pair for _, pair in known])
    return f"layer {layer + 1}, head {head + 1}", rates[1][layer, head].item(), chance, distance


def middle(distance):
    return lambda text, _: (len(words(text)) // 2, len(words(text)) // 2 + distance)


def relation(name):
    return lambda text, relations: relations.get(name)


places = {"previous word": middle(-1), "next word": middle(1), "two words back": middle(-2)}
bonds = {name: relation(name) for name in separable[0][1]}
probed = {("small", name): probe(encoded["small"], ask) for name, ask in (places | bonds).items()}
probed |= {("trained", name): probe(encoded["trained"], ask) for name, ask in places.items()}
assert max(rate for _, rate, *_ in probed.values()) > 0.25


# %% tags=["nbval-ignore-output"]
print(f"{'':32}hit rate  chance  best distance")
for (which, name), (head, rate, chance, distance) in probed.items():
    beaten = "  beaten" if rate > distance + 0.05 else ""
    print(f"{name:20}{which:12}{rate:8.0%}{chance:8.0%}{distance:15.0%}  {head}{beaten}")

# %% [markdown]
# ## Place or grammar?
#
# For a place, such as the previous word, the best distance is 100 % by definition; these rows only ask whether some head keeps to a place. A hit rate near chance there means that no head does, whatever single maps seemed to show.
#
# The rows about verbs are the interesting ones. A hit rate far above chance is not enough for a claim about grammar. It must also beat the best distance, by more than five points; then the line ends with *beaten*. How sure is that? The rates of particles rest on 100 clauses. At a rate of 40 % their standard error is $\sqrt{0.4 \cdot 0.6 / 100} = 0.049$, so five points are one standard error. That is the least one can ask. A lead of ten and more is one to believe.
#
# For the subject, distance is a strong rival, because most clauses begin with it and the verb comes right after. A picture of one such clause, with a thick line from verb to subject, would have looked like proof. The particle is a cleaner case. It stands at the end of the clause and its verb near the front, with anything between them, so no fixed distance gets far.
#
# ## What does a low score prove?
#
# Little. Where no head beats the distance, the model may still know its subjects. Its translations have to agree with them, and mostly do. What a head has to fetch can come by way of another word, or be spread over several heads, or be in the residual stream already. We asked for one way of doing it, one head with its largest weight on one word, and a low score says that the model does not do it this way.
#
# A high score proves more, but not everything either. That a head looks from particle to verb does not say what it takes from there, nor whether anyone uses it. For that we turn from looking to changing.
#
# ## Take a head away
#
# The direct test is to remove the head. It enters the rest of the model through its own columns of the output matrix $W^O$. With a width of 128 and 4 heads, columns 0 to 31 belong to the first head, 32 to 63 to the second, and so on. If they are zero, the head adds nothing, and all others are as before.
#
# Setting its attention weights to zero would come to the same. But it would take a hook in the midst of the fast path, and the kernel has no weights to set. The matrix is always there.
#
# First we find the head, or say which ones there are.


# %% tags=["export", "internal"]
def find_head(model: Transformer, kind: str, layer: int, head: int) -> MultiHeadAttention:
    """Return the attention that a head is part of; layers and heads count from 0.

    Raises ValueError if there is no such head, and says how many there are.
    """
    known = attention_modules(model)
    modules = known.get(kind, [])
    if not (0 <= layer < len(modules) and 0 <= head < modules[layer].heads):
        sizes = ", ".join(f"{name} {len(m)} x {m[0].heads}" for name, m in known.items())
        raise ValueError(f"no head {head} in layer {layer} of {kind!r}: layers x heads are {sizes}")
    return modules[layer]


# %% [markdown]
# Negative numbers are refused, too: Python would count them from the end, and a loop that runs one too far would silence a wrong head without a word.


# %% tags=["export"]
@contextmanager
def without_head(model: Transformer, kind: str, layer: int, head: int) -> Iterator[None]:
    """Silence one head inside the block; afterwards the model is bit for bit as before.

    `kind` is encoder, decoder or cross; layers and heads count from 0. Raises ValueError if there
    is no such head.
    """
    module = find_head(model, kind, layer, head)
    columns = module.output.weight.data.unflatten(1, (module.heads, -1))[:, head]
    kept = columns.clone()
    columns.zero_()
    try:
        yield
    finally:
        columns.copy_(kept)


# %% [markdown]
# The function works on a view of the stored weights, not on a copy. Setting the view to zero changes the model itself, at no cost and without a word changed in its code. Afterwards the kept numbers are written back. We do not subtract and add again: that would leave rounding errors behind, and after a hundred tries the model would be another one.
#
# A check against the definition. Heads put side by side and multiplied by $W^O$ are a sum with one term a head, where $W^O_h$ is the part of the matrix that belongs to head $h$:
#
# $$ \text{output} = \sum_{h=1}^{H} A_h V_h W^O_h $$ (eq-heads-apart)
#
# So what is lost by removing a head should be exactly that head's term: its weights $A_h$ times its values times its part of the matrix. (`nn.Linear` stores the matrix transposed, so the rows of $W^O_h$ are columns in the code.)

# %%
attention = small.encoder.layers[0].self_attention
x = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    attention.keep_weights = True
    whole = attention(x, x, x)
    values = attention.project(x, x)[1]
    term = attention.weights[:, 2] @ values[:, 2] @ attention.output.weight[:, 64:96].T
    attention.keep_weights, attention.weights = False, None
    with without_head(small, "encoder", 0, 2):
        torch.testing.assert_close(whole - attention(x, x, x), term, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(attention(x, x, x), whole)
print("what is missing is the term of head 3, and only inside the block")

# %% [markdown]
# ## Every head in turn
#
# Now every head in turn: silence it, translate 60 unseen sentences, and see how much BLEU is gone. The model is 24 heads rich, so this means 25 translations of the same sentences. The last assertion translates once more with all heads back and asks for exactly the score of the beginning.

# %% tags=["nbval-ignore-output"]
held = unseen[200:260]


def quality():
    texts = translate(small, subwords, [pair.source for pair in held], beam=1)
    return score(texts, [pair.target for pair in held]).bleu


whole, lost = quality(), {}
for kind in axes:
    for layer in range(2):
        for head in range(4):
            with without_head(small, kind, layer, head):
                lost[kind, layer, head] = whole - quality()
assert quality() == whole and max(lost.values()) > 3
print(
    f"whole model {whole:.1f}; {sum(loss < 2 for loss in lost.values())} of 24 heads cost less than 2 BLEU"
)

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-heads-removed", "caption": "Which heads matter? BLEU lost when a single head is silenced, by kind and layer (rows) and head (columns), on 60 unseen sentences of the grammar. Darker is worse; a number near zero means that nobody misses the head."}}
names = [f"{kind} {layer + 1}" for kind in axes for layer in range(2)]
matrix = [
    [round(max(lost[kind, layer, head], 0), 1) for head in range(4)]
    for kind in axes
    for layer in range(2)
]
most, top = max(lost, key=lost.get), max(lost.values())
columns = [f"head {h + 1}" for h in range(4)]
look = {"titles": ("attention, layer", "BLEU lost without it"), "limit": round(top, 1)}
show(
    heatmap(matrix, names, columns, **look, color=KEY, cell=52),
    alt=f"Silencing {most[0]} layer {most[1] + 1} head {most[2] + 1} costs {top:.0f} BLEU, the most; {sum(loss < 2 for loss in lost.values())} of 24 heads cost less than 2.",
)

# %% [markdown]
# The losses are very uneven. Most of the damage sits in a few heads, and many can go without much notice. Small losses should not be ranked: on 60 sentences, a few changed words move BLEU as much. Where the model seems to do better without a head, that is noise of this kind, and the figure shows 0.
#
# Compare with the alignment above. The head that aligns best need not be the one that is missed most. To point at the right word, and to hand over what the decoder needs from it, are two things.
#
# Bear in mind what this does not show. If two heads do the same work, each can be removed at no cost, but not both; exercise 4 tries it. And the model was trained with all of them. Without a head *from the start*, another would have taken over.
#
# ## What attention does not explain
#
# It is a short step from "this head looks at that word" to "the model wrote this because of that word". The step is not safe. We test it with the heads of the small model.
#
# For each head we measure how sharp its maps are: the mean of the largest weight in each row. Then we flatten the head. Its keys are set to zero, so all scores are $q \cdot 0 = 0$, and softmax makes them equal weights: it looks at everything alike, and its map is pure grey. If a map told why the model writes what it writes, flattening the sharpest maps should change most.
#
# The head's keys are *rows* of their matrix, where its part of $W^O$ was columns: keys come out of their matrix, and $W^O$ takes the heads in.


# %%
@contextmanager
def flattened(model, kind, layer, head):
    rows = find_head(model, kind, layer, head).key.weight.data[32 * head : 32 * (head + 1)]
    kept = rows.clone()
    rows.zero_()
    yield
    rows.copy_(kept)


batch = collate(encode_pairs(subwords, unseen[:200]))


def predicted():
    with evaluating(small):
        return small(batch.source, batch.target[:, :-1]).argmax(dim=-1)


# %% tags=["nbval-ignore-output"]
real = batch.target[:, 1:] != PAD
usual = predicted()
sharp = [
    attention_maps(small, one.source, one.target[:, :-1])
    for one in (collate([example]) for example in encode_pairs(subwords, unseen[:40]))
]
records = []
for kind, layer, head in lost:
    peaks = torch.cat([getattr(maps, kind)[layer, head].amax(dim=-1) for maps in sharp])
    with flattened(small, kind, layer, head):
        changed = (predicted() != usual)[real].double().mean().item()
    values = {"peak": round(peaks.mean().item(), 3), "changed": round(100 * changed, 2)}
    records.append({"kind": kind, "head": f"{kind} {layer + 1}.{head + 1}", **values})
assert torch.equal(predicted(), usual)
changes = [record["changed"] for record in sorted(records, key=lambda r: r["peak"])[12:]]
print(f"the 12 sharpest heads: {min(changes):.1f} to {max(changes):.1f} % of the words change")

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-sharp", "caption": "Is a sharp map an important one? Each point is a head: how sharp its maps are, and how many of the next words, with the right beginning given, change when it looks at everything alike. If maps explained the output, the points would rise to the right along a line."}}
shapes = alt.Scale(domain=list(axes), range=["circle", "square", "triangle-up"])
colors = alt.Scale(domain=list(axes), range=[QUERY, RESIDUAL, KEY])
sharpness = "sharpness: mean of the largest weight in a row"
base = alt.Chart(alt.Data(values=records)).encode(
    alt.X("peak:Q", title=sharpness, scale=alt.Scale(domain=[0, 1])),
    alt.Y("changed:Q", title="next words changed, %"),
)
points = base.mark_point(filled=True, opacity=0.9, size=70).encode(
    alt.Shape("kind:N", scale=shapes, title=None),
    alt.Color("kind:N", scale=colors, title=None, legend=alt.Legend(symbolType="circle")),
)
order = sorted(records, key=lambda r: -r["changed"])
named = base.transform_filter(alt.FieldOneOfPredicate("head", [r["head"] for r in order[:2]]))
chart = points + named.mark_text(align="right", dx=-8).encode(text="head:N")
show(
    chart.properties(width=420, height=260),
    alt=f"Points scatter: flattening changes from {order[-1]['changed']:.1f} to {order[0]['changed']:.1f} percent of the next words, and equally sharp heads differ widely.",
)

# %% [markdown]
# ## Why a clear map may not matter
#
# Flattening is gentler than removing: the head still hands something over, the mean of all values. We count next words, each with the right beginning given, so that one changed word does not drag all later ones along.
#
# A hazy head has little to lose by being flattened, so the left end of the figure is low by construction. But among the sharp ones, heads with equally clear maps differ widely in what they do to the output. For some, the whole pattern can be replaced by grey, and the model goes on as before. There are good reasons for it:
#
# - A weight says how much of a *value* is taken. The value may be small, or the output matrix may ignore it. Heads with nothing to do often park their weight on `</s>` or on the period.
# - Above the first layer, a column is not a word any more. It is a state that has gathered from the whole sentence, and a look at the column of *Hund* may fetch what it knows about the verb.
# - The residual stream carries every word past each head. What one head misses, another may have brought already.
# - Different weights can lead to the same output, so one map cannot be *the* reason.
#
# So a map is a fair answer to "where did this head look?" and a poor one to "why did the model write this?". To the second question, the answer is an intervention, as in the last two sections: change it and see what happens.
#
# ## Questions that come up
#
# ### How do I get one number for each source word, over all heads and layers?
#
# There is no right way, only habits: the mean over heads of the top layer, the largest weight anywhere, or a product over layers. Each throws away what the maps had to say about *which* head and *where*. If the question is how much a source word matters, ask it directly. Take the word out or exchange it, and see how far the output changes.
#
# ### May weights of several layers be multiplied, to follow a word from bottom to top?
#
# That is done, and is called rollout. It assumes that a layer only mixes, and that the residual stream counts as much as attention. Both are guesses. An intervention needs neither.
#
# ### Do two trainings give the same heads?
#
# No. Head 1 of one run has nothing to do with head 1 of another; the seed decides who does what. The order of heads has no meaning: exchange two of them together with their columns of $W^O$, and the model computes the same. Kinds of heads come back, at other places. So a head is described by what it does, never by its number.
#
# ### Why the mean over the heads in the player?
#
# To have one line for each pair of positions. It shows the flow of a whole layer, and hides who is responsible for it. For questions about heads, use the grid.
#
# ### Is a head the right unit at all?
#
# It is a convenient one, since $W^O$ keeps heads apart. But nothing in training asks a head to do one thing. Some do two things, on different words, and some things are done by two heads together.
#
# ### Can a useless head be left out for good?
#
# Often. Models have been trained, then robbed of most of their heads and trained a little further, with hardly any loss. That the heads were not needed in the end does not mean that training could have done without them.
#
# ### Are attention maps useless, then?
#
# No. They find mistakes: a mask that hides the wrong half, a source that is never looked at, a padding column that gets weight. They suggest what to test. And where a head has passed such a test, its map on a new sentence can be read with some trust. What they are not is an explanation by themselves.
#
# ## What to remember
#
# - Record in evaluation mode, before dropout, and assert that rows sum to 1. Queries are rows; label them with the tokens that ask.
# - In the decoder, the row that writes a word is one above the row that reads it.
# - Some cross-attention heads align words and others do not; the alignment error rate against gold links tells which.
# - Name a head only after a score on many sentences, against chance and against the best fixed distance, on sentences that were not used to find it.
# - Removing a head says whether it is needed. Its picture does not.
#
# ## Exercises
#
# **1. By hand.** The gold links of a pair are (0, 0), (1, 1) and (2, 2). A head gives (0, 0), (1, 1), (1, 2) and (2, 2). What is its alignment error rate?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three hits, counted twice; four links found and three wanted: 1 - 6/7 = 0.14.
rate = alignment_error_rate([{(0, 0), (1, 1), (1, 2), (2, 2)}], [{(0, 0), (1, 1), (2, 2)}])
assert abs(rate - 1 / 7) < 1e-9
print(f"{rate:.2f}")

# %% [markdown]
# **2. What breaks if** the axes of a cross-attention map are swapped? Write the one-line check that finds it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The sums: each row of the right map has 1. The columns of the right map are the rows of the swapped one.
swapped = maps.cross.transpose(-2, -1)
rows_sum_to_1 = [
    torch.allclose(m.sum(dim=-1), torch.tensor(1.0), atol=1e-4) for m in (maps.cross, swapped)
]
print("right:", rows_sum_to_1[0], " swapped:", rows_sum_to_1[1])
assert rows_sum_to_1 == [True, False]

# %% [markdown]
# **3. The mean of all heads.** What alignment error rate does the mean over all heads of the better layer reach, in the better row? Compare it with the best single head.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
way, layer, head = best
mean = [align(w[way][layer].mean(dim=0), len(words(p.source))) for w, p in zip(by_word, some)]
print(
    f"mean of layer {layer + 1}: {alignment_error_rate(mean, gold):.2f}  its best head: {rates[best]:.2f}"
)
assert 0 < alignment_error_rate(mean, gold) < 1

# %% [markdown]
# **4. Two at a time.** Take the two least needed encoder heads by the figure above, and remove both. Is the loss the sum of the single losses?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Not in general: heads that do the same work cover for each other until both are gone.
one, other = sorted((loss, key) for key, loss in lost.items() if key[0] == "encoder")[:2]
with without_head(small, *one[1]), without_head(small, *other[1]):
    both = whole - quality()
print(f"{one[0]:.1f} and {other[0]:.1f} apart, {both:.1f} together")
assert quality() == whole

# %% [markdown]
# **5. Chance.** A head looks at a random other word of a sentence of nine tokens. How often does the best of eight such heads hit on 20 sentences? Simulate it, and say what that means for finding heads by looking.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A single one hits 1 in 8. The best of eight looks a good deal better, without having learned a thing.
rng = Random(0)
trials = [
    max(sum(rng.random() < 1 / 8 for _ in range(20)) for _ in range(8)) / 20 for _ in range(1000)
]
print(f"a single head {1 / 8:.2f}, the best of eight {sum(trials) / 1000:.2f}")
assert sum(trials) / 1000 > 0.2

# %% [markdown]
# ## Sources
#
# The three uses of attention are from section 3.2.3 of {cite:t}`vaswani2017attention`, its attention maps from Figures 3 to 5. The alignment error rate is by {cite:t}`och2003systematic`. That alignments show better in the row that reads a word was found by {cite:t}`chen2020accurate`; that many heads can be removed, by {cite:t}`michel2019sixteen` and by {cite:t}`voita2019analyzing`. The dispute over attention as explanation began with {cite:t}`jain2019attention` and {cite:t}`wiegreffe2019attention`.
