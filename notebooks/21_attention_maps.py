# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Attention maps
#
# This chapter takes the attention weights out of a trained model, draws them, counts over many sentences where its heads look, and tests them by silencing single heads (sections 3.2.3 and 4 of the paper, and its Figures 3 to 5).
#
# The book's everyday model translates our example back from German. While it writes, each of the three layers of its decoder looks at the German tokens. At which ones?

# %% tags=["export", "hide-input"]
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from annotated_transformer.attention import Mask, attention
from annotated_transformer.layers import DecoderLayer, EncoderLayer
from annotated_transformer.multi_head_attention import MultiHeadAttention, split_heads
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer, evaluating

# %% tags=["hide-input"]
from itertools import combinations, product

import altair as alt
import torch.nn.functional as F

from annotated_transformer import load_pretrained
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.data import words
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.transformer import greedy_decode
from book.figures import AMBER, INK, PLUM, SKY, heatmap, show, show_steps

# %%
model, tokenizer = load_pretrained("everyday-de-en")
source = torch.tensor([[*tokenizer.encode("Die schwarze Katze mag Fisch."), EOS]])
target = torch.tensor([[BOS, *greedy_decode(model, source)[0]]])
print(tokenizer.decode(target[0, 1:].tolist()))

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-two-stories", "caption": "Does the model look up each word that it writes? Choose a layer. Rows are the tokens about to be written, columns the German tokens; each cell is the mean over the four heads of the layer, and each row sums to 1."}}
cross = []


def note(module, inputs, output):
    query, key = inputs[:2]
    asked = split_heads(module.query(query), module.heads)
    answered = split_heads(module.key(key), module.heads)
    cross.append(attention(asked, answered, answered)[1].mean(dim=1)[0].detach())


hooks = [
    layer.cross_attention.register_forward_hook(note) for layer in model.decoder.layers
]
with evaluating(model):
    model(source, target)
for hook in hooks:
    hook.remove()
said = [tokenizer.decode([i]).strip() for i in target[0, 1:].tolist()] + ["</s>"]
read = [tokenizer.decode([i]).strip() for i in source[0, :-1].tolist()] + ["</s>"]
titles = ("about to be written", "looked at")
steps = {}
for layer, weights in enumerate(cross, start=1):
    best = weights.argmax(dim=-1).tolist()
    pairs = [f"{word} at {read[i]}" for word, i in zip(said, best)]
    label = f"Layer {layer}. Where most of each row's weight is: {', '.join(pairs)}."
    steps[f"layer {layer}"] = heatmap(weights, said, read, titles=titles), label
show_steps(steps, "Which layer of the decoder:", start=2)

# %% tags=["remove-cell"]
if CHECKING:
    cells = [
        (2, "cat", "Katze"),
        (2, "likes", "mag"),
        (0, "fish", "mag"),
        (0, "cat", "schwarze"),
    ]
    told = [cross[n][said.index(word), read.index(other)] for n, word, other in cells]
    assert [round(weight.item(), 2) for weight in told] == [0.98, 0.81, 0.53, 0.5]

# %% [markdown]
# In layer 3 one reads a dictionary off the diagonal: `cat` looks at `Katze` with 0.98 of its weight, `likes` at `mag` with 0.81. In layer 1 `cat` looks at `schwarze` and `fish` at `mag`, each at the word that has been translated already. Judged by layer 3 the translator looks up its words; judged by layer 1 it doesn't. (And this sentence goes word for word: a head that only counts positions would draw the same diagonal.)
#
# The paper ends with three pages of such pictures, which seem to let us watch a network think. But even this small model has 36 heads, and among so many maps some look meaningful by chance. So we ask four questions, of which a picture answers only the first:
#
# 1. Where does each head look?
# 2. Does it look at the *right* word, counted over many sentences?
# 3. Would the model miss the head?
# 4. Does the map say *why* the model writes what it writes?
#
# Make a guess for the third: if we silence each of the 36 heads in turn, for how many does it matter? And will the model miss most the head with the clearest map?
#
# ## Taking the weights out
#
# An attention map is what one head $i$ computes on its way to the layer's output:
#
# $$ A_i = \operatorname{softmax}\!\left( \frac{Q_i K_i^{\top}}{\sqrt{d_k}} \right) $$
#
# The model throws $A_i$ away once it has the output, and [the fused function](19_decoding.ipynb#the-same-in-one-call) never even stores it. But from the arguments of the call we can compute it again.
#
# **Exercise 1. Write it first** (★★, 10 min). A `MultiHeadAttention` has the linear maps `query`, `key` and `value` and a number of `heads`; `split_heads(x, heads)` cuts a projection into heads, and [our first](03_attention.ipynb#the-code) `attention` returns the weights beside its output. Before you read on, write `attention_weights(module, query, key, value, mask)`. Ours:


# %% tags=["export"]
def attention_weights(
    module: MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask = None,
) -> Tensor:
    """Return the weights (B, H, T, S) of a call of the module, before dropout; rows sum to 1.

    Takes the arguments of that call: query (B, T, D), key and value (B, S, D), mask (B, 1, T, S).
    """
    queries = split_heads(module.query(query), module.heads)
    keys = split_heads(module.key(key), module.heads)
    return attention(queries, keys, keys, mask)[1]  # the weights need no values


# %% [markdown]
# These calls happen deep inside the model, but we can listen: a **forward hook** is a function of ours that PyTorch calls whenever a module has run, with the arguments of the call. `keeping_weights` puts one on every attention of a model, for as long as its block lasts:


# %% tags=["export"]
@contextmanager
def keeping_weights(model: nn.Module) -> Iterator[dict[MultiHeadAttention, Tensor]]:
    """Collect the weights (B, H, T, S) of each attention, those of its last call in the block."""
    weights: dict[MultiHeadAttention, Tensor] = {}

    def keep(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        weights[module] = attention_weights(module, *args, **kwargs).detach()

    hooks = [
        module.register_forward_hook(keep, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, MultiHeadAttention)
    ]
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()


# %% [markdown]
# There are [three kinds](09_layers.ipynb#the-decoder-layer) of attention: the encoder's and the decoder's to themselves, and the decoder's to the source. `attention_modules` lists them by kind, and a record will hold their weights:


# %% tags=["export"]
class AttentionMaps(NamedTuple):
    """The weights of one sentence pair; queries are rows, keys are columns, rows sum to 1.

    With S source and T target tokens, L layers and H heads: encoder (L, H, S, S), decoder
    (L, H, T, T), cross (L, H, T, S).
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


def attention_modules(model: nn.Module) -> dict[str, list[MultiHeadAttention]]:
    """Return the model's attention by its kind, encoder, decoder or cross, bottom layer first."""
    encoder = [layer for layer in model.modules() if isinstance(layer, EncoderLayer)]
    decoder = [layer for layer in model.modules() if isinstance(layer, DecoderLayer)]
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }


# %% [markdown]
# Now `attention_maps` runs the model once, on one sentence and in evaluation mode, since with dropout a map would differ from call to call. `token_names` labels its rows and columns.


# %% tags=["export"]
def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> AttentionMaps:
    """Return all weights for source (1, S) and target (1, T) from `<s>` on (section 3.2.3).

    In evaluation mode and before dropout; the model is left as it was. Raises ValueError for
    more than one sentence, whose padding would blur the maps.
    """
    if source.size(0) != 1 or target.size(0) != 1:
        raise ValueError(
            f"one sentence at a time, not {source.size(0)} and {target.size(0)}"
        )
    with evaluating(model), keeping_weights(model) as weights:
        model(source, target)
    maps = {}
    for kind, modules in attention_modules(model).items():
        maps[kind] = torch.stack([weights[module][0] for module in modules])
    return AttentionMaps(**maps)


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return how each token reads, reserved ones as `</s>`, without the space before a word."""
    return [
        SPECIAL.get(index) or tokenizer.decode([index]).strip() or "·" for index in ids
    ]


# %%
maps = attention_maps(model, source, target)
for kind, weights in zip(maps._fields, maps):
    low, high = weights.sum(dim=-1).aminmax()
    print(f"{kind}: {tuple(weights.shape)}, rows sum to {low:.2f} up to {high:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    for weights in maps:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    assert not maps.decoder.triu(diagonal=1).any()
    assert not any(module._forward_hooks for module in model.modules())

# %% [markdown]
# The axes are layers, heads, queries and keys. (Both sentences happen to have seven tokens.) A row that doesn't sum to 1 would be the first sign of [a mistake](#why-is-one-of-my-weights-above-1).
#
# ### Which name does a row have?
#
# A row of the decoder *reads* one token and *writes* the next: the row that reads `<s>` writes `The`. In this book the rows of cross-attention are named after the word about to be written. Name them after the word read, and layer 1 of the first figure is the dictionary, and layer 3 isn't. So we'll count both.
#
# ## Every head by itself
#
# The maps of the first figure are means over four heads, and a mean can show a pattern that none of them has. So here are all heads.


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-all-heads", "caption": "What do single heads look at? Every head (columns) of every layer (rows) of the everyday model, for the same sentence. In each small map, rows and columns are tokens in the order of the figure above (rows of the decoder: the tokens read). An empty cell is a weight of 0, a full one a weight of 1."}}
def grid(weights, cell=10):
    rows, columns = weights.shape[-2:]
    records = [
        {
            "layer": f"layer {n + 1}",
            "head": f"head {h + 1}",
            "i": i,
            "j": j,
            "w": round(w, 2),
        }
        for (n, h, i, j), w in zip(
            product(*map(range, weights.shape)), weights.flatten().tolist()
        )
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
    return f"layer {where[0] + 1}, head {where[1] + 1} is the sharpest: its largest weights are {peak.max():.2f} on average."


show_steps(
    {
        kind: (grid(getattr(maps, kind)), f"{kind}: {sharpest(getattr(maps, kind))}")
        for kind in maps._fields
    },
    "Kind of attention:",
    start=2,
)

# %% [markdown]
# A *diagonal* keeps a fixed distance. A *column* is one token that everyone looks at, mostly an [attention sink](#why-does-everyone-look-at-s-attention-sinks). In cross-attention, head 4 of layer 1 is a perfect diagonal one step late.
#
# ## Word alignment by cross-attention
#
# To count how often a head looks at the right word, we need to know which one is right, and [our grammar](13_data.ipynb#a-pair-and-its-alignment) does: each pair that it draws comes with its alignment. We take pairs in which every word is one token.
#
# :::{margin}
# For a word of several tokens, you'd add up what goes *to* them, and take the mean of what goes out *from* them.
# :::


# %%
def is_whole(text):
    return len(tokenizer.encode(text)) == len(words(text))


drawn = grammar(3000, seed=0)
whole = [pair for pair in drawn if is_whole(pair.source) and is_whole(pair.target)]
pairs = whole[:200]
gold = [pair.alignment for pair in pairs]
print(f"{pairs[11].source} {pairs[11].target} {sorted(gold[11])}")

# %% [markdown]
# Each target word is linked with the source word that gets its largest weight, or with none if that's `</s>`. Let $F$ be the links found and $G$ the grammar's, the gold. The **alignment error rate** ({cite:t}`och2003systematic`) is
#
# $$
# \text{AER} = 1 - \frac{2\,|F \cap G|}{|F| + |G|},
# $$ (eq-aer)
#
# which is 0 if all right links are found and no other, and 1 if none is right.


# %%
def align(weights, source_words):
    best = enumerate(weights.argmax(dim=-1).tolist())
    return {(source, target) for target, source in best if source < source_words}


def alignment_error_rate(found, gold):
    hits = sum(len(links & right) for links, right in zip(found, gold))
    count = sum(map(len, found)) + sum(map(len, gold))
    return 1 - 2 * hits / count


# %% tags=["remove-cell"]
if CHECKING:
    found, true = {(0, 0), (1, 2)}, {(0, 0), (1, 1), (2, 2)}
    precision, recall = 1 / 2, 1 / 3
    f_score = 2 * precision * recall / (precision + recall)
    assert abs(alignment_error_rate([found], [true]) - (1 - f_score)) < 1e-9

# %% [markdown]
# Which rate is a good one? A rival that knows only the lengths is a straight diagonal, first word to first, last to last, all others in proportion:

# %%
straight = []
for pair in pairs:
    n, m = len(words(pair.target)), len(words(pair.source))
    straight.append({(round(j * (m - 1) / (n - 1)), j) for j in range(n)})
diagonal = alignment_error_rate(straight, gold)
print(f"a straight diagonal: {diagonal:.2f}")

# %% [markdown]
# ### Which heads find the word
#
# We compute the rate of each of the twelve heads of cross-attention, in both rows of a target word: the one that *writes* it and the next one, which *reads* it.


# %%
def cross_attention(pair):
    source = torch.tensor([[*tokenizer.encode(pair.source), EOS]])
    target = torch.tensor([[BOS, *tokenizer.encode(pair.target)]])
    return attention_maps(model, source, target).cross


crossed = [cross_attention(pair) for pair in pairs]


def error_rate(layer, head, rows):
    found = []
    for weights, pair in zip(crossed, pairs):
        found.append(align(weights[layer, head, rows], len(words(pair.source))))
    return alignment_error_rate(found, gold)


ways = {"writes": slice(0, -1), "reads": slice(1, None)}
for (way, rows), layer in product(ways.items(), range(3)):
    each = [f"{error_rate(layer, head, rows):.2f}" for head in range(4)]
    print(f"{way:6} layer {layer + 1}:  {'  '.join(each)}")

# %% tags=["remove-cell"]
if CHECKING:
    heads = {
        (way, layer, head): error_rate(layer, head, ways[way])
        for way, layer, head in product(ways, range(3), range(4))
    }
    aligning = [heads["writes", 2, head] for head in range(4)]
    best, *others = sorted(heads, key=heads.get)[:5]
    assert best == ("reads", 0, 3)
    assert {*others} == {("writes", 2, head) for head in range(4)}
    assert max(aligning) < diagonal - 0.05

# %% [markdown]
# So both maps of the first figure are right. The five lowest rates are those of head 4 of layer 1, in the row that reads, and of the four heads of layer 3, in the row that writes (0.18 to 0.37; the straight diagonal has 0.49). The first is the best of all: head 4 of layer 1 looks at the word just translated, while layer 3 looks for the next one. Had we asked one row only, one of the two layers would have seemed to align nothing.
#
# ## Take a head away
#
# To learn whether the model would miss a head, remove it. By {eq}`eq-sum-of-heads` a layer's output is a sum with one term for each head, and $W_i^O$ is the head's own part of the output matrix. `nn.Linear` stores that matrix transposed, so the part is a block of columns. If they are zero, the head adds nothing. (The code counts layers and heads from 0, so head 4 of layer 1 is `layer=0, head=3`.)


# %% tags=["export"]
@contextmanager
def without_head(model: nn.Module, kind: str, layer: int, head: int) -> Iterator[None]:
    """Silence one head inside the block; afterwards the model is bit for bit as before.

    `kind` is encoder, decoder or cross; layers and heads count from 0.
    """
    module = attention_modules(model)[kind][layer]
    columns = module.output.weight.data.unflatten(1, (module.heads, -1))[:, head]
    before = columns.clone()
    columns.zero_()
    try:
        yield
    finally:
        columns.copy_(before)


# %%
def translation(text):
    ids = torch.tensor([[*tokenizer.encode(text), EOS]])
    return tokenizer.decode(greedy_decode(model, ids)[0])


print(translation("Die kleine Maus jagt die schwarze Katze."))
with without_head(model, "cross", layer=0, head=3):
    print(translation("Die kleine Maus jagt die schwarze Katze."))

# %% tags=["remove-cell"]
if CHECKING:
    text = "Die kleine Maus jagt die schwarze Katze."
    assert translation(text) == "The small mouse chases the black cat."
    with without_head(model, "cross", layer=0, head=3):
        assert translation(text) == "The small cat chases chase the black cat."

# %% [markdown]
# Without its best aligner the model loses its place, skips the mouse and writes the verb twice.
#
# One sentence is an anecdote, so we measure how far the loss rises over the 200 pairs, where each word is predicted after the right beginning. A rise of 0.1 nats per token makes the right word 10% less probable, on (geometric) average. And since 200 sentences are a sample, each rise gets a 95% interval from [the paired bootstrap](20_evaluation.ipynb#whether-a-difference-is-real).


# %%
batch = collate(encode_pairs(tokenizer, pairs))
labels = batch.target[:, 1:]
counts = (labels != PAD).sum(dim=1)


def losses():
    with evaluating(model):
        logits = model(batch.source, batch.target[:, :-1])
    loss = F.cross_entropy(logits.mT, labels, ignore_index=PAD, reduction="none")
    return loss.sum(dim=1)


seeded = torch.Generator().manual_seed(0)
samples = torch.randint(200, (1000, 200), generator=seeded)


def per_token(rise):
    drawn = rise[samples].sum(dim=1) / counts[samples].sum(dim=1)
    low, high = drawn.quantile(torch.tensor([0.025, 0.975])).tolist()
    return (rise.sum() / counts.sum()).item(), low, high


# %% [markdown]
# Now every head in turn:

# %% tags=["nbval-ignore-output"]
usual, rises = losses(), {}
for kind, layer, head in product(maps._fields, range(3), range(4)):
    with without_head(model, kind, layer, head):
        rises[kind, layer, head] = losses() - usual
costs = {head: per_token(rise) for head, rise in rises.items()}
much = sum(mean > 0.1 for mean, _, _ in costs.values())
unclear = sum(low <= 0 for _, low, _ in costs.values())
print(f"{much} of {len(costs)} heads cost more than 0.1 nats per token")
print(f"{unclear} cost nothing that 200 sentences can show")

# %% tags=["remove-cell"]
if CHECKING:
    ranked = sorted(costs, key=lambda head: -costs[head][0])
    aligners = {("cross", 0, 3), *(("cross", 2, head) for head in range(4))}
    assert {*ranked[:5]} == aligners and much == 6 and 7 <= unclear <= 11
    assert torch.equal(losses(), usual)


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-heads-removed", "caption": "Which heads does the model miss? Rise of the loss when a single head is silenced, by layer and head, with 95% intervals, on 200 sentences of the grammar. The squares are the five heads of cross-attention that align."}}
def name(head):
    kind, layer, number = head
    return f"{kind} {layer + 1}.{number + 1}"


aligning = [("cross", 0, 3), *[("cross", 2, head) for head in range(4)]]
records = [
    {
        "head": name(head),
        "cost": round(mean, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "aligns": head in aligning,
    }
    for head, (mean, low, high) in costs.items()
]
records.sort(key=lambda record: -record["cost"])
order = [record["head"] for record in records]
drawn = alt.Chart(alt.Data(values=records))
y = alt.Y("head:N", sort=order, title=None)
x = {"title": "rise of the loss, nats per token"}
color = alt.condition("datum.aligns", alt.value(PLUM), alt.value(SKY))
shape = alt.condition("datum.aligns", alt.value("square"), alt.value("circle"))
bars = drawn.mark_rule(strokeWidth=2).encode(
    alt.X("low:Q", **x), y, alt.X2("high:Q"), color=color
)
points = drawn.mark_point(filled=True, opacity=1, size=45).encode(
    alt.X("cost:Q", **x), y, color=color, shape=shape
)
zero = alt.Chart(alt.Data(values=[{"at": 0}])).mark_rule(color=INK, strokeDash=[3, 3])
show(
    (zero.encode(alt.X("at:Q", **x)) + bars + points).properties(width=220, height=540),
    alt=f"The five heads that align cost most, up to {records[0]['cost']:.2f} nats per token. The intervals of {unclear} of 36 heads reach below zero.",
)
# %% [markdown]
# Compare that with your guess. The five heads that cost most are the five that align, though the fifth of them costs hardly more than the next head, one of the decoder's self-attention.
#
# :::{margin}
# Of 36 such intervals, one or two miss the truth by chance.
# :::
#
# Take heads away yourself: what will the model write without all of layer 3?
#
# :::{what-if} maps
# What would the model write without a head? The two sentences are written by the whole model and without the silenced heads; the map shows the weights of the chosen head, in percent. In cross-attention a row is a step of the decoder, the token that it reads and, after the arrow, the token that it writes; a column is a token of the source (+ joins it to the one before).
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/21_attention_maps.html#fig-what-if-maps).
# :::
#
# ## What attention does not explain
#
# From "this head looks at that word" it's a short step to "the model wrote this because of that word". If the step were safe, the model would most miss the heads with the clearest maps. So we measure how *sharp* each head is, by the mean of the largest weight in its rows.

# %%
with evaluating(model), keeping_weights(model) as kept:
    model(batch.source, batch.target[:, :-1])
sharpness = {}
for kind, modules in attention_modules(model).items():
    tokens = batch.source if kind == "encoder" else labels
    for layer, module in enumerate(modules):
        largest = kept[module].amax(dim=-1)  # (B, H, T)
        for head in range(4):
            real = largest[:, head][tokens != PAD]
            sharpness[kind, layer, head] = real.mean().item()

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-sharp", "caption": "Is a sharp map an important one? Each point is a head: how sharp its maps are, and what it costs to silence it."}}
records = [
    {"kind": head[0], "sharp": round(sharpness[head], 3), "cost": round(cost, 4)}
    for head, (cost, _, _) in costs.items()
]
kinds = list(maps._fields)
shapes = alt.Scale(domain=kinds, range=["circle", "square", "triangle-up"])
colors = alt.Scale(domain=kinds, range=[SKY, AMBER, PLUM])
legend = alt.Legend(symbolType="circle", orient="top")
title = "sharpness: mean of the largest weight in a row"
base = alt.Chart(alt.Data(values=records)).encode(
    alt.X("sharp:Q", title=title, scale=alt.Scale(domain=[0.2, 1])),
    alt.Y("cost:Q", title="rise of the loss, nats per token"),
)
points = base.mark_point(filled=True, opacity=0.9, size=70).encode(
    alt.Shape("kind:N", scale=shapes, title=None),
    alt.Color("kind:N", scale=colors, title=None, legend=legend),
)
show(
    points.properties(width=290, height=250),
    alt="Heads with a large cost are all sharp, but among sharp heads the cost differs widely, and the ten sharpest cost little.",
)

# %% tags=["remove-cell"]
if CHECKING:
    ranked = sorted(sharpness, key=lambda head: -sharpness[head])
    assert sharpness[ranked[9]] > 0.95 and sharpness[ranked[10]] < 0.92
    assert max(costs[head][0] for head in ranked[:10]) < 0.1
    hazy = [head for head in costs if sharpness[head] < 0.6]
    assert max(costs[head][0] for head in hazy) < 0.1
# %% [markdown]
# Hazy heads, on the left, cost little, and the expensive ones are all fairly sharp. But a sharp head need not be expensive: the ten sharpest, at 0.95 and more, cost less than 0.1 each. How can a clear map matter little?
#
# - A weight says how much of a *value* is taken, and the value may be small ({cite:t}`kobayashi2020attention` measure the product instead).
# - A column is a word only in the first layer of self-attention. Elsewhere it's a state that has gathered from many words.
# - The residual stream runs past each head. What one head misses, another may have brought.
#
# A map is a fair answer to "where did this head look?" and a poor one to "why did the model write this?". For the second, change something and see what happens. But maps do find mistakes, such as weight on padding, and they suggest what to test.
#
# ## What to remember
#
# - Record in evaluation mode, before dropout, and see that rows sum to 1.
# - A row of cross-attention may look at the word that it writes or at the word that it reads. Count both before you say what a head does.
# - A sharp map isn't necessarily an important one. Remove the head to find out.
#
# ## Exercises
#
# **1. Write it first** is [above](#taking-the-weights-out); the code below it is the solution.
#
# **2. By hand** (★, 5 min). The gold links of a pair are (0, 0), (1, 1) and (2, 2). A head gives (0, 0), (1, 1), (2, 2) and (2, 3). What is its alignment error rate?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three hits, counted twice; four links found and three wanted: 1 - 6/7 = 0.14.
links, right = {(0, 0), (1, 1), (2, 2), (2, 3)}, {(0, 0), (1, 1), (2, 2)}
rate = alignment_error_rate([links], [right])
print(f"{rate:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(rate - 1 / 7) < 1e-9

# %% [markdown]
# **3. Two at a time** (★★, 15 min). Silence two cross-attention heads of layer 3 together, for each pair of them. Is the cost the sum of the single costs? Give the difference an interval.

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It is more than the sum for every pair, by a fifth up to four fifths, and no interval comes near 0.
# The four do the same work, so as long as one is there it covers for the other. Without all four
# the cost is more than three times the sum.
for one, other in combinations([("cross", 2, head) for head in range(4)], 2):
    with without_head(model, *one), without_head(model, *other):
        together = losses() - usual
    more, low, high = per_token(together - rises[one] - rises[other])
    cost = f"{per_token(together)[0]:.2f}, {more:.2f} more than the sum"
    print(f"heads {one[2] + 1}, {other[2] + 1}: {cost} (95%: {low:.2f} to {high:.2f})")

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(losses(), usual)
    four = [("cross", 2, head) for head in range(4)]
    for one, other in combinations(four, 2):
        with without_head(model, *one), without_head(model, *other):
            more = losses() - usual - rises[one] - rises[other]
        assert per_token(more)[1] > 0.05
        share = per_token(more)[0] / (costs[one][0] + costs[other][0])
        assert 0.18 < share < 0.84
    one, two, three, last = (without_head(model, *head) for head in four)
    with one, two, three, last:
        assert per_token(losses() - usual)[0] > 3 * sum(costs[h][0] for h in four)

# %% [markdown]
# ## Further
#
# ### Why does everyone look at `<s>`? Attention sinks
#
# A row must sum to 1, so a head that finds nothing parks its weight where it does little harm: on a token that is always there and hands over little. {cite:t}`xiao2024efficient` call it an **attention sink**, and find that language models break when a cache drops their first token.
#
# ### What single heads do
#
# The paper's Figures 3 to 5 show heads of one encoder layer on one English sentence each, and leave open how often they do the same elsewhere. A head that always looks at the next word also seems to know grammar wherever a verb follows its subject. So name a head only after a score over many sentences, beside such rivals.
#
# ### Why is one of my weights above 1?
#
# It was taken after dropout, which divides the weights that survive by $1 - p$ ([regularization](17_regularization.ipynb#what-dropout-does)): at $p = 0.1$ a weight of 0.99 becomes 1.10. If a map's rows sum to something else than 1, its axes may also be swapped. And if the decoder's attention to itself shows German words, its labels are wrong.
#
# ### How do I get one number for each source word, over all heads and layers?
#
# There is no agreed way. Rollout ({cite:t}`abnar2020quantifying`) multiplies the maps of all layers. Or ask directly: take the word out, and see how far the output changes.
#
# ### Are most heads superfluous?
#
# Removing one at a time can't say, since heads cover for each other (exercise 3), and without a head *from the start* another would have taken over. {cite:t}`voita2019analyzing` pruned 38 of the 48 encoder heads of a translation model while they went on training it, and lost 0.15 BLEU.
#
# ## Sources
#
# The three uses of attention are from section 3.2.3 of {cite:t}`vaswani2017attention`, its maps from Figures 3 to 5. That many heads can be removed was found by {cite:t}`michel2019sixteen` and {cite:t}`voita2019analyzing`. The dispute over attention as explanation began with {cite:t}`jain2019attention` and {cite:t}`wiegreffe2019attention`.
