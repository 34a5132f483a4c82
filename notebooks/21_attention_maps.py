# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Attention maps
#
# This chapter takes the attention weights out of a trained model, draws them, scores them over many sentences, and tests them by silencing single heads (sections 3.2.3 and 4 of the paper, and its Figures 3 to 5).
#
# The book's everyday model translates our example back from German. While it writes, each of the three layers of its decoder looks at the German tokens. What do they look at?

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
import html
from bisect import bisect_left
from itertools import combinations, product
from random import Random

import altair as alt
from IPython.display import display

from annotated_transformer import load_pretrained
from annotated_transformer.batching import collate, encode_pairs
from annotated_transformer.data import words
from annotated_transformer.evaluation import score
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.transformer import preset
from annotated_transformer.trainer import train
from annotated_transformer.training import TrainingConfig
from annotated_transformer.synchronous_grammar import (
    Phrase,
    draw_main_clause,
    english_clause,
    german_clause,
    grammar,
    join,
    linked,
    to_pair,
)
from annotated_transformer.translation import translate
from annotated_transformer.transformer import greedy_decode
from book.figures import AMBER, FONTS, INK, PAPER, PLUM, SKY
from book.figures import heatmap, page_colors, show, show_steps

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
    assert 0.16 < cross[2][said.index("likes"), -2:].sum() < 0.18

# %% [markdown]
# In layer 3 one reads a dictionary off the diagonal: *cat* looks at *Katze* with 0.98 of its weight, *likes* at *mag* with 0.81. Now choose layer 1. *Cat* looks at *schwarze* there, with 0.50, and *fish* at *mag*, with 0.53: each at the word that has been translated already. From the same sentence and the same model, one map says that the translator looks up its words, and the other that it doesn't.
#
# Pictures like these are among the most copied of the field (the paper ends with three pages of them), because they seem to let us watch a network think. But this small model has 36 heads, each with a map for every sentence, and among so many some look meaningful by chance. So we ask four questions, of which a picture answers only the first:
#
# 1. Where does each head look?
# 2. Does it look at the *right* word, counted over many sentences?
# 3. Would the model miss the head?
# 4. Does the map say *why* the model writes what it writes?
#
# Make a guess for the third: we'll train a small model with 24 heads, and silence each of them in turn. For how many of the 24 will the translations suffer?
#
# ## Taking the weights out
#
# An attention map is what one head $h$ computes on its way to the layer's output:
#
# $$
# \begin{aligned}
# A_h &= \operatorname{softmax}\!\left( \frac{Q_h K_h^{\top}}{\sqrt{d_k}} \right) \\
# \text{output} &= \sum_{h=1}^{H} A_h \, V_h \, W^O_h
# \end{aligned}
# $$ (eq-heads-apart)
#
# The model can't hand over $A_h$: it calls PyTorch's `F.scaled_dot_product_attention`, which returns the output only, and is fast because it [never stores the weights](26_speed.ipynb#attention-without-the-matrix). But from the arguments of the call we can compute them again.
#
# **Exercise 7. Write it first** (★★, 10 min). A `MultiHeadAttention` has the linear maps `query`, `key` and `value` and a number of `heads`; `split_heads(x, heads)` cuts a projection into heads, and [chapter 3's](03_attention.ipynb#the-code) `attention` returns the weights beside its output. Write `attention_weights(module, query, key, value, mask)`. Ours:


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
    values = split_heads(module.value(value), module.heads)
    return attention(queries, keys, values, mask)[1]


# %% [markdown]
# The calls happen deep inside the model, but PyTorch lets us listen: a **forward hook** is a function of ours that PyTorch calls whenever a module has run. It gets the arguments of the call, and that is all that `attention_weights` needs. `keeping_weights`, folded here, puts such a hook on every attention of a model. `attention_maps` runs the model once, on one sentence and in evaluation mode (with dropout, a map would differ from call to call), and stacks the weights by kind: the encoder's and the decoder's attention to themselves, and the decoder's attention to the source ([all three in one table](09_layers.ipynb#the-decoder-layer)). (`attention_modules` lists them.)


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show keeping_weights", "code_prompt_hide": "Hide keeping_weights"}
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


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the record, the modules, and the names of tokens", "code_prompt_hide": "Hide the record, the modules, and the names of tokens"}
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


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return how each token reads, reserved ones as `</s>`, without the space before a word."""
    return [
        SPECIAL.get(index) or tokenizer.decode([index]).strip() or "·" for index in ids
    ]


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show attention_maps", "code_prompt_hide": "Hide attention_maps"}
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
        maps[kind] = torch.cat([weights[module] for module in modules])
    return AttentionMaps(**maps)


# %%
maps = attention_maps(model, source, target)
for name, weights in zip(maps._fields, maps):
    sums = weights.sum(dim=-1)
    print(f"{name}: {tuple(weights.shape)}", end=", ")
    print(f"rows sum to {sums.min():.2f} up to {sums.max():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    for weights in maps:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    assert not maps.decoder.triu(diagonal=1).any()
    assert not any(module._forward_hooks for module in model.modules())

# %% [markdown]
# Each kind has the shape (layers, heads, queries, keys). A row that doesn't sum to 1 is the first sign of a mistake; the second reading has [the usual ones](#why-is-one-of-my-weights-above-1), and one that the sums don't show.
#
# ### Which name does a row have?
#
# A row of the decoder has two tokens: the one that it *reads* and the one that it *writes* next. The row that reads `<s>` writes *The*. In this book the rows of cross-attention are named after the word about to be written. Name them after the token read instead, and every name moves down by one row: in layer 3 *likes* would then seem to look at *Fisch*, and in layer 1 at *mag*. The dictionary would have moved from one layer to the other. (In the decoder's attention to itself, rows are named after the token read, like the columns.)
#
# ## Every head by itself
#
# The maps of the first figure are means over four heads. If one head looks at the word before and another at the word after, their mean shows two gray neighbors, a pattern that neither head has. Here is every head of every layer.


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
# Four patterns come back in any such grid. A *diagonal* keeps a fixed distance. A *column* is one token that everyone looks at. Mostly it is an [attention sink](#why-does-everyone-look-at-s-attention-sinks), as in [chapter 3](03_attention.ipynb#what-attention-can-and-cannot-return): a token where a head parks the weight that it can't use. A *gray haze* is a mean of nearly everything. And *single full cells* elsewhere pick out words that can't be explained by their position. It's tempting to give such heads names, as the paper does; [What single heads do](#what-single-heads-do) shows what that takes.

# %% [markdown]
# ## The machine at work
#
# The next figure shows six moments of the translation: first the source, all of its positions at once in each layer, then the target, one token after another.


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-player", "caption": "What is parallel, what is sequential, and who looks at whom? Six moments of one translation by the trained model. Lines are attention weights of 0.02 and more, mean of the heads of a layer: the heavier the line, the larger the weight. Filled circles are computed in this step. Source on the left, layers from bottom to top; target on the right, the token read below and the token written above."}}
def record_trace(maps, source_names, target_names, pitch=50, rise=58, lift=30, top=40):
    """Lay out states and words, and list for each moment what is new and which weights flow."""
    layers, S, T = len(maps.encoder), len(source_names), len(target_names)
    across = [30 + pitch * (i + 0.6 * (i >= S)) for i in range(S + T)]
    height = (
        top + lift + rise * layers
    )  # of the lowest source states; the target stands higher
    written = [*target_names[1:], "</s>"]
    flows = [kind.mean(dim=1).tolist() for kind in maps]  # [layer][query][key]

    def state(column, level):
        return level * (S + T) + column

    def lines(weights, first, below, level, column):
        found = ((i, round(w, 3)) for i, w in enumerate(weights, start=first))
        return [
            (state(i, below), state(column, level), w) for i, w in found if w >= 0.02
        ]

    def born(column):  # the moment in which a target token is computed
        return layers + 1 + column - S

    states = [
        [round(x), height - rise * level - lift * (i >= S), level if i < S else born(i)]
        for level in range(layers + 1)
        for i, x in enumerate(across)
    ]
    words = [
        [round(across[i]), height + 24, name, 0] for i, name in enumerate(source_names)
    ]
    for i, (read, write) in enumerate(zip(target_names, written), start=S):
        words.append([round(across[i]), height + 24 - lift, read, born(i)])
        words.append([round(across[i]), top - 18, write, born(i)])
    moments = [{"new": [state(i, 0) for i in range(S)], "lines": []}]
    for n in range(layers):
        flow = [
            edge for j in range(S) for edge in lines(flows[0][n][j], 0, n, n + 1, j)
        ]
        moments.append({"new": [state(i, n + 1) for i in range(S)], "lines": flow})
    for t in range(T):
        flow = []
        for n in range(layers):
            flow += lines(flows[1][n][t][: t + 1], S, n, n + 1, S + t)
            flow += lines(flows[2][n][t], 0, layers, n + 1, S + t)
        new = [state(S + t, n) for n in range(layers + 1)]
        moments.append({"new": new, "lines": flow})
    size = {"width": round(across[-1] + 30), "height": height + 36}
    return {**size, "states": states, "words": words, "moments": moments}


def draw_moment(trace, now, angle):
    moment = trace["moments"][now]
    for a, b, w in moment["lines"]:
        (x1, y1, _), (x2, y2, _) = trace["states"][a], trace["states"][b]
        yield f'<path d="M{x1},{y1}L{x2},{y2}" stroke="{INK}" stroke-opacity="{w:.2f}" stroke-width="{1 + 4 * w:.1f}"/>'
    for index, (x, y, born) in enumerate(trace["states"]):
        if born <= now:
            fill = INK if index in moment["new"] else PAPER
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
        drawn = "".join(draw_moment(trace, now, angle=38))
        parts.append(
            f'<g transform="translate({x},{y})"><text y="-66" font-size="26" fill="{INK}">{now + 1}.</text>{drawn}</g>'
        )
    rows = -(-len(chosen) // 2)
    size = f'viewBox="0 0 {2 * wide} {rows * high}" width="{wide}" height="{rows * high / 2:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" {size} style="font-family:{FONTS}">'
    return page_colors(f"{head}{''.join(parts)}</svg>")


source_names = read
target_names = token_names(tokenizer, target[0].tolist())
trace = record_trace(maps, source_names, target_names)
count, depth = len(trace["moments"]), len(maps.encoder)
chosen = [0, 1, depth, depth + 1, (depth + 1 + count) // 2, count - 1]
label = f"All {len(source_names)} source tokens pass {depth} encoder layers in parallel. Then {len(target_names)} target tokens follow one by one, each looking back and at the source."
picture = filmstrip(trace, chosen, label)
page = f'<figure class="book-chart" style="margin:0;overflow-x:auto">{picture}</figure>'
display({"text/html": page, "text/plain": f"[figure: {label}]"}, raw=True)

# %% [markdown]
# ## Word alignment by cross-attention
#
# In layer 3 of the first figure, the words seem to find their translations. To *count* how often they do, we need to know the right answer, and [our grammar](13_data.ipynb#a-pair-and-its-alignment) does: each pair that it draws comes with its alignment. So we train a small model of two layers on its pairs, for half a minute, and count on pairs that it hasn't seen. Only a model that translates is worth asking, so BLEU comes first.

# %% tags=["nbval-ignore-output"]
pairs = grammar(9400, seed=0)
learned, unseen = pairs[:9000], pairs[9000:]
subwords = Tokenizer.train(learned, vocabulary_size=2000)
torch.manual_seed(0)
small = Transformer(preset("tiny", vocabulary_size=len(subwords)))
config = TrainingConfig(steps=800, max_tokens=192, warmup=150, lr_scale=0.3)
train(small, subwords, learned, config)
held = unseen[200:]


# %% tags=["nbval-ignore-output"]
def quality():
    texts = translate(small, subwords, [pair.source for pair in held], beam=1)
    return score(texts, [pair.target for pair in held]).bleu


whole = quality()
print(f"BLEU on 200 unseen pairs: {whole:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert whole > 60

# %% [markdown]
# The alignment speaks of words, the maps speak of tokens. So we add up what goes *to* the tokens of a word, and take the mean of what goes out *from* them.
#
# :::{admonition} For a second reading: both rules as products of matrices
# :class: dropdown
#
# A look at any part of a word is a look at the word, hence the sum. A sum over the rows would make the row of a long word sum to 2 or 3, hence the mean.
#
# First we need the word of each token. The tokenizer knows where a token ends in the text, and a token belongs to the first word that doesn't end before it. With a vocabulary of 330, *Hund* has four tokens, of which the first is the space before it. Only the end of a token counts, so it doesn't matter on which side a tokenizer puts the spaces.
#
# Both rules are matrices of zeros and ones, made by choosing rows of the identity matrix. Multiplied from the right, one adds up the columns of a word; multiplied from the left and divided by the number of tokens, the other averages its rows.
#
# By hand, for the made-up weights in the cell: the second word has the query tokens of rows two and three. To the first word they send 0.0 and 0.2, on average 0.1; to the second, which has two key tokens, 0.9 and 0.3, on average 0.6. (The sum favors long words: a head that looks at all tokens alike gives a word of three tokens three times the weight of a word of one.)
# :::


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show tokens, and weights between words", "code_prompt_hide": "Hide tokens, and weights between words"}
def word_of_token(tokenizer, text):
    """For each token of a text, the place of its word in words(text)."""
    ends = []
    for word in words(text):
        start = ends[-1] if ends else 0
        ends.append(text.index(word, start) + len(word))
    places = []
    for _, stop in tokenizer.library.encode(text, add_special_tokens=False).offsets:
        place = bisect_left(ends, stop)
        # Spaces after the last word go to it
        places.append(min(place, len(ends) - 1))
    return places


def merge_tokens(weights, rows, columns):
    """Weights between tokens as weights between words; rows and columns name each token's word."""
    to_word = torch.eye(max(columns) + 1).to(weights)[columns]
    from_word = torch.eye(max(rows) + 1).to(weights)[rows]
    from_word /= from_word.sum(dim=0).clamp(min=1)
    return from_word.T @ weights @ to_word


text = "Der Hund schläft."
coarse = Tokenizer.train(grammar(400, seed=0), vocabulary_size=330)
names = token_names(coarse, coarse.encode(text))
place = word_of_token(coarse, text)
print(list(zip(names, place)))
made_up = torch.tensor(
    [[0.5, 0.1, 0.2, 0.2], [0.0, 0.6, 0.3, 0.1], [0.2, 0.2, 0.1, 0.5]]
)
by_word = merge_tokens(made_up, rows=[0, 1, 1], columns=[0, 1, 1, 2])
print([[round(w, 2) for w in row] for row in by_word.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    assert [place.count(n) for n in range(4)] == [2, 4, 6, 1] and len(words(text)) == 4

# %% [markdown]
# ### The alignment error rate
#
# Each target word is linked with the source word that gets its largest weight, or with none if that's `</s>`. Let $A$ be these links and $S$ the right ones. The **alignment error rate** ({cite:t}`och2003systematic`) is
#
# $$
# \text{AER} = 1 - \frac{2\,|A \cap S|}{|A| + |S|},
# $$ (eq-aer)
#
# 0 if all right links are found and no other, and 1 if none is right. Both sizes are in the denominator, so inventing links costs, and so does leaving them out.


# %%
def align(weights, source_words):
    """Link each target word with the source word that it looks at most, or with none for `</s>`."""
    best = enumerate(weights.argmax(dim=-1).tolist())
    return {(column, row) for row, column in best if column < source_words}


def alignment_error_rate(predicted, gold):
    """The alignment error rate of all sentences together, from 0 (best) to 1."""
    hits = sum(len(links & sure) for links, sure in zip(predicted, gold))
    count = sum(map(len, predicted)) + sum(map(len, gold))
    return 1 - 2 * hits / count


# %% [markdown]
# Two links of which one is right, against three right ones, give $1 - 2 \cdot 1/(2 + 3) = 0.6$.

# %% tags=["remove-cell"]
if CHECKING:
    found, true = {(0, 0), (1, 2)}, {(0, 0), (1, 1), (2, 2)}
    precision, recall = 1 / 2, 1 / 3
    f_score = 2 * precision * recall / (precision + recall)
    assert abs(alignment_error_rate([found], [true]) - (1 - f_score)) < 1e-9

# %% [markdown]
# ### Which heads find the word
#
# We compute this rate for each of the eight heads of cross-attention, and for the mean of the four heads of each layer. A rate by itself says little, so we add a rival that knows only the lengths: a straight diagonal, first word to first, last to last, all others in proportion. And we count both rows of a target word, the one that *writes* it and the next one, which *reads* it.


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-aer", "caption": "Which heads align words? Alignment error rate of each cross-attention head and of the mean of each layer, against the grammar's gold alignments, on 200 unseen sentences; lower is better. Above: the map row that writes a word. Below: the row that reads it. The dashed line is what a straight diagonal achieves without looking at any word."}}
def cross_by_word(pair):
    """Cross-attention by word, (L, H, words, words + 1), for writing and for reading a word."""
    source = torch.tensor([[*subwords.encode(pair.source), EOS]])
    target = torch.tensor([[BOS, *subwords.encode(pair.target)]])
    cross = attention_maps(small, source, target).cross
    rows, columns = (
        word_of_token(subwords, side) for side in (pair.source, pair.target)
    )
    rows, columns = columns, [*rows, len(words(pair.source))]
    return {
        "writes": merge_tokens(cross[:, :, :-1], rows, columns),
        "reads": merge_tokens(cross[:, :, 1:], rows, columns),
    }


some = unseen[:200]
by_word = [cross_by_word(pair) for pair in some]
gold = [pair.alignment for pair in some]


lengths = [(len(words(pair.source)), len(words(pair.target))) for pair in some]
diagonal = [
    {(round(j * (m - 1) / max(n - 1, 1)), j) for j in range(n)} for m, n in lengths
]
baseline = alignment_error_rate(diagonal, gold)


def error_rate(way, layer, heads):
    """Of the mean of some heads of a layer, from the rows that write or read a word."""
    found = [w[way][layer, heads].mean(dim=0) for w in by_word]
    return alignment_error_rate(
        [align(w, m) for w, (m, _) in zip(found, lengths)], gold
    )


rates, means = {}, {}
for way, layer in product(("writes", "reads"), range(2)):
    means[way, layer] = error_rate(way, layer, [0, 1, 2, 3])
    for head in range(4):
        rates[way, layer, head] = error_rate(way, layer, [head])
top = [rate for (way, layer, _), rate in rates.items() if (way, layer) == ("writes", 1)]
rest = [
    rate for (way, layer, _), rate in rates.items() if (way, layer) != ("writes", 1)
]
ways = {
    "writes": "the row that writes the word",
    "reads": "the row that reads the word",
}
records = [
    {"head": f"layer {n + 1}, head {h + 1}", "way": ways[way], "rate": round(rate, 2)}
    for (way, n, h), rate in rates.items()
]
records += [
    {"head": f"layer {n + 1}, mean", "way": ways[way], "rate": round(rate, 2)}
    for (way, n), rate in means.items()
]
drawn = alt.Chart(alt.Data(values=records))
x = alt.X("rate:Q", title="alignment error rate", scale=alt.Scale(domain=[0, 1]))
bars = drawn.encode(
    x, alt.Y("head:N", title=None, axis=alt.Axis(ticks=False, domain=False))
)
line = drawn.mark_rule(color=AMBER, strokeWidth=2, strokeDash=[5, 3])
chart = alt.layer(
    bars.mark_bar(fillOpacity=0.35, fill=SKY, stroke=SKY, height=12),
    bars.mark_text(align="left", dx=4).encode(text=alt.Text("rate:Q", format=".2f")),
    line.encode(x=alt.datum(round(baseline, 3))),
).properties(width=220, height=190)
header = alt.Header(labelOrient="top", labelAnchor="start")
chart = chart.facet(
    row=alt.Row("way:N", sort=list(ways.values()), title=None, header=header)
)
show(
    chart,
    alt=f"In the row that writes a word, the four heads of layer 2 have error rates of {min(top):.2f} to {max(top):.2f} and their mean {means['writes', 1]:.2f}. All others are above the diagonal's {baseline:.2f}.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert max(top) < baseline - 0.1 and min(rest) > baseline
    assert means["writes", 1] < min(top)

# %% [markdown]
# In the row that writes a word, *all four* heads of layer 2 align, in the run shown with error rates of 0.28 to 0.34, where the diagonal has 0.54. In layer 1 none does, and in the row that reads the word none does in either layer. **What matters here is which layer and which row, not which head.** And the mean of the four, 0.23, beats the best of them: each adds errors of its own, and the errors cancel. Had we taken the other row or the other layer, we'd have reported that attention doesn't align at all.
#
# When a word is read, its translation is done, and this decoder is busy with the next one. In other models it is the reading row that aligns, as in layer 1 of our first figure ({cite:t}`chen2020accurate` get their best alignments there), so measure yours.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-aligned", "caption": "Where do the heads of layer 2 look when a word is written? Mean of their weights, between words of an unseen sentence of the grammar. Framed cells are the gold alignment. Rows are target words, columns source words; the last column is `</s>`."}}
chosen = next(
    i
    for i, p in enumerate(some)
    if 7 <= len(words(p.target)) <= 9 and " nicht " not in p.source
)
pair, weights = some[chosen], by_word[chosen]["writes"][1].mean(dim=0)
rows, columns = words(pair.target), [*words(pair.source), "</s>"]
frames = alt.Chart(
    alt.Data(values=[{"row": j, "column": i} for i, j in sorted(pair.alignment)])
)
frames = frames.mark_rect(fillOpacity=0, stroke=AMBER, strokeWidth=3).encode(
    x="column:O", y="row:O"
)
hits = sum((i, j) in pair.alignment for i, j in align(weights, len(columns) - 1))
show(
    heatmap(weights.tolist(), rows, columns, titles=titles, cell=27) + frames,
    alt=f"Of {len(rows)} target words, {hits} look most at a word of their gold alignment.",
)

# %% [markdown]
# ## Take a head away
#
# The direct test of a head is to remove it. By {eq}`eq-heads-apart` a layer's output is a sum with one term for each head, and $W^O_h$ are the head's own columns of the output matrix as `nn.Linear` stores it. If they are zero, the head adds nothing. `without_head`, folded here, sets them to zero inside a `with` block and puts them back at its end.


# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show without_head", "code_prompt_hide": "Hide without_head"}
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


# %% [markdown]
# Now every head in turn: silence it, translate 200 unseen sentences, and see how much BLEU is lost.

# %% tags=["nbval-ignore-output"]
lost = {}
for kind in maps._fields:
    for layer, head in product(range(2), range(4)):
        with without_head(small, kind, layer, head):
            lost[kind, layer, head] = whole - quality()
cheap = sum(loss < 2 for loss in lost.values())
print(f"whole model {whole:.1f}; {cheap} of 24 heads cost less than 2 BLEU")

# %% tags=["remove-cell"]
if CHECKING:
    assert quality() == whole and max(lost.values()) > 5 and 7 <= cheap <= 18
    by_layer = [[lost["cross", n, head] for head in range(4)] for n in range(2)]
    assert sum(by_layer[1]) > 3 * sum(by_layer[0])

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-heads-removed", "caption": "Which heads matter? BLEU lost when a single head is silenced, by kind and layer (rows) and head (columns), on 200 unseen sentences of the grammar. The fuller the cell, the greater the loss. Where the model seems to do better without a head, that is noise, and the figure shows 0."}}
names = [f"{kind} {layer + 1}" for kind in maps._fields for layer in range(2)]
matrix = [
    [round(max(lost[kind, layer, head], 0), 1) for head in range(4)]
    for kind in maps._fields
    for layer in range(2)
]
most, top = max(lost, key=lost.get), max(lost.values())
columns = [f"head {h + 1}" for h in range(4)]
look = {"titles": ("attention, layer", "BLEU lost without it"), "limit": round(top, 1)}
look["color"] = PLUM
show(
    heatmap(matrix, names, columns, **look, cell=52),
    alt=f"Silencing {most[0]} layer {most[1] + 1} head {most[2] + 1} costs {top:.0f} BLEU, the most; {sum(loss < 2 for loss in lost.values())} of 24 heads cost less than 2.",
)

# %% [markdown]
# Compare that with your guess. In the run shown here, 14 of the 24 heads cost less than two points, and the costliest takes 14 BLEU with it. Now hold the losses beside the alignments. In cross-attention, the four heads that align cost ten points each on average, and those of layer 1 hardly anything. But among the four, the best aligner, head 4, costs the least: pointing at the right word is one thing, handing over what the decoder needs is another. (That a head can be spared *now* doesn't mean that training could have [done without it](#are-most-heads-superfluous).)
#
# Which head costs how much depends on the run: with the plainer kernels of another processor, the same program trained a model whose costliest head was one of the decoder's. In one thing all the runs agree that we made, with other kernels or with first weights moved by a millionth: a head of the layer that aligns costs several times as much, on average, as one of the other layer of cross-attention.
#
# In the everyday model you can take heads away yourself:
#
# :::{what-if} maps
# What would the model write without a head? The two sentences are written by the whole model and without the silenced heads; the map shows the weights of the chosen head, in percent. In cross-attention a row is a step of the decoder, the token that it reads and, after the arrow, the token that it writes; a column is a token of the source (+ joins it to the one before). Choose a head and silence it, or all heads of a layer, until the translation breaks.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/21_attention_maps.html#fig-what-if-maps).
# :::
#
# ## What attention does not explain
#
# From "this head looks at that word" it's a short step to "the model wrote this because of that word". The step isn't safe, and we can test it. For each head we measure how *sharp* its maps are: the mean of the largest weight in a row. Then we flatten the head: its keys are set to zero, so all scores are $q \cdot 0 = 0$, and softmax looks at everything alike. If a map said why the model writes what it writes, flattening should change most where the map is sharpest. (We count next words, each with the right beginning given, so that one changed word doesn't drag later ones along.)


# %% tags=["hide-input"]
@contextmanager
def flattened(model, kind, layer, head):
    module = attention_modules(model)[kind][layer]
    rows = module.key.weight.data[32 * head : 32 * (head + 1)]
    before = rows.clone()
    rows.zero_()
    yield
    rows.copy_(before)


batch = collate(encode_pairs(subwords, unseen[:200]))


def predicted():
    with evaluating(small):
        return small(batch.source, batch.target[:, :-1]).argmax(dim=-1)


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-sharp", "caption": "Is a sharp map an important one? Each point is a head: how sharp its maps are, and how many of the next words, with the right beginning given, change when it looks at everything alike."}}
real = batch.target[:, 1:] != PAD
usual = predicted()
sharp = [
    attention_maps(small, one.source, one.target[:, :-1])
    for one in (collate([example]) for example in encode_pairs(subwords, unseen[:40]))
]
records = []
for kind, layer, head in lost:
    peaks = torch.cat([getattr(one, kind)[layer, head].amax(dim=-1) for one in sharp])
    with flattened(small, kind, layer, head):
        changed = (predicted() != usual)[real].double().mean().item()
    values = {"peak": round(peaks.mean().item(), 3), "changed": round(100 * changed, 2)}
    records.append({"kind": kind, "head": f"{kind} {layer + 1}.{head + 1}", **values})


def rank_correlation(chosen):
    """Spearman's: the correlation of the ranks, 1 if the sharper head always changes more."""
    ranks = [
        torch.tensor([record[name] for record in chosen]).argsort().argsort().double()
        for name in ("peak", "changed")
    ]
    return torch.corrcoef(torch.stack(ranks))[0, 1].item()


print(f"rank correlation: all heads {rank_correlation(records):.2f}", end="")
for kind in maps._fields:
    chosen = [record for record in records if record["kind"] == kind]
    print(f", {kind} {rank_correlation(chosen):.2f}", end="")
print()
shapes = alt.Scale(domain=list(maps._fields), range=["circle", "square", "triangle-up"])
colors = alt.Scale(domain=list(maps._fields), range=[SKY, AMBER, PLUM])
sharpness = "sharpness: mean of the largest weight in a row"
base = alt.Chart(alt.Data(values=records)).encode(
    alt.X("peak:Q", title=sharpness, scale=alt.Scale(domain=[0, 1])),
    alt.Y("changed:Q", title="next words changed, %"),
)
points = base.mark_point(filled=True, opacity=0.9, size=70).encode(
    alt.Shape("kind:N", scale=shapes, title=None),
    alt.Color(
        "kind:N",
        scale=colors,
        title=None,
        legend=alt.Legend(symbolType="circle", orient="top"),
    ),
)
order = sorted(records, key=lambda r: -r["changed"])
named = base.transform_filter(
    alt.FieldOneOfPredicate("head", [r["head"] for r in order[:1]])
)
chart = points + named.mark_text(align="right", dx=-8).encode(text="head:N")
show(
    chart.properties(width=310, height=250),
    alt=f"Heads with a large effect are all sharp, but among sharp heads the effect differs widely, up to {order[0]['changed']:.1f} percent of the next words.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(predicted(), usual)
    by_peak = sorted(records, key=lambda record: record["peak"])
    changed = [record["changed"] for record in by_peak]
    hazy, clear = changed[:12], changed[12:]
    assert max(hazy) < 3.5 and sum(clear) > 2 * sum(hazy)
    assert by_peak[11]["peak"] < 0.7 and max(clear) > 1.5 * min(clear)

# %% [markdown]
# ### A clear map that matters little
#
# Hazy heads, on the left, change about 2% of the words at most, which is no surprise: they have little to lose by being flattened. Sharp ones, on the right, change more, between 4.0 and 8.1% here. So far sharpness is a guide. The rank correlation would be 1 if the sharper of two heads always changed more; over all heads it is 0.77. But twelve hazy heads that change little and twelve sharp ones that change more already give 0.75 on average, in whatever order each twelve are. *Within* the sharp group, sharpness tells little. In this run the decoder's eight heads, all of them sharp, have −0.05, and the four sharp heads of cross-attention are the least sharp of the twelve, yet one of them changes most. And of two maps that are equally clear, one may be worth much more than the other: head 3 of the decoder's layer 1 and head 4 of its layer 2 both put 0.9 of a row on one token, but when you silence them, as in the section before, the first costs 1.6 BLEU and the second 12.8.
#
# How can a clear map matter little?
#
# - A weight says how much of a *value* is taken. The value may be small, as with sinks, or the output matrix may ignore it ({cite:t}`kobayashi2020attention` measure the product instead).
# - A column is a word only in the first layer of self-attention. Higher up, and in every layer of cross-attention, it's a state that has gathered from many words.
# - The residual stream carries every word past each head. What one head misses, another may have brought.
# - Different weights can lead to the same output ({cite:t}`jain2019attention`), so one map can't be *the* reason.
#
# A map is a fair answer to "where did this head look?" and a poor one to "why did the model write this?". For the second, change something and see what happens.
#
# ### What attention maps are good for
#
# They find mistakes: a mask that hides the wrong half, a source that's never looked at, a padding column that gets weight. They suggest what to test. And once a layer has passed a test, as layer 2 has here, its map on a new sentence can be read with some trust.
#
# ## What to remember
#
# - Record in evaluation mode, before dropout, and see that rows sum to 1. Queries are rows.
# - In the small model, one layer of cross-attention aligns words, with every head, and best with their mean.
# - A sharp map isn't necessarily an important one. Only removing a head shows whether it is needed, and only flattening its map shows whether the map is.
# - Give a head a name only after a score on many sentences.
#
# A head that is taken away leaves a hole that training might have filled. To learn what a part is worth, train the model without it.

# %% [markdown]
# ## Exercises
#
# **1. By hand.** (★, 5 min) The gold links of a pair are (0, 0), (1, 1) and (2, 2). A head gives (0, 0), (1, 1), (2, 2) and (2, 3). What is its alignment error rate?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Three hits, counted twice; four links found and three wanted: 1 - 6/7 = 0.14.
rate = alignment_error_rate(
    [{(0, 0), (1, 1), (2, 2), (2, 3)}], [{(0, 0), (1, 1), (2, 2)}]
)
print(f"{rate:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(rate - 1 / 7) < 1e-9

# %% [markdown]
# **2. What breaks if** (★, 10 min) the axes of a cross-attention map are swapped? Write the check that finds it even if the map is square.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Each row of the right map sums to 1. The rows of the swapped map are the columns of the right one,
# and their sums say how much each source token is looked at: anything from 0 to the target's length.
for name, weights in (("right", maps.cross), ("swapped", maps.cross.transpose(-2, -1))):
    sums = weights.sum(dim=-1)
    print(f"{name}: rows sum to {sums.min():.2f} up to {sums.max():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert (sums - 1).abs().max() > 0.5

# %% [markdown]
# **3. How many heads make a good mean?** (★★, 20 min) In the row that writes, take the mean over one, two, three and all four heads of layer 2, for all ways to choose them. How does the error rate fall, and what does that say about their errors?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It falls with every head that joins, fastest at first: the heads look at the right word together
# and at wrong words each in its own way, so that a mean keeps what they share.
averages = []
for size in (1, 2, 3, 4):
    found = [
        error_rate("writes", 1, list(heads)) for heads in combinations(range(4), size)
    ]
    averages.append(sum(found) / len(found))
    print(
        f"{size} heads: {averages[-1]:.2f} on average, from {min(found):.2f} to {max(found):.2f}"
    )

# %% tags=["remove-cell"]
if CHECKING:
    assert averages == sorted(averages, reverse=True)

# %% [markdown]
# **4. Two at a time.** (★★, 15 min) Silence two cross-attention heads of layer 2 together. Is the loss the sum of the single losses?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It is more than the sum: they do the same work, so each covers a little for the other.
one, other = ("cross", 1, 0), ("cross", 1, 1)
with without_head(small, *one), without_head(small, *other):
    both = whole - quality()
print(f"{lost[one]:.1f} and {lost[other]:.1f} apart, {both:.1f} together")

# %% tags=["remove-cell"]
if CHECKING:
    assert quality() == whole and both > lost[one] + lost[other]

# %% [markdown]
# **5. Chance.** (★★, 15 min) A head looks at a random other word of a sentence of nine tokens. How often does the best of eight such heads hit on 20 sentences? Simulate it. What does it mean for finding heads by looking?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A single one hits 1 in 8. The best of eight looks a good deal better, without having learned a thing.
rng = Random(0)
trials = [
    max(sum(rng.random() < 1 / 8 for _ in range(20)) for _ in range(8)) / 20
    for _ in range(1000)
]
print(f"a single head {1 / 8:.2f}, the best of eight {sum(trials) / 1000:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert sum(trials) / 1000 > 0.2

# %% [markdown]
# **6. Without a grammar.** (★★★, an evening) Score the cross-attention of the captions model. There is no gold alignment, so align 50 captions by hand. Which layer and which row does it take, and does the mean of the heads win again?
#
# **7. Write it first** is [above](#taking-the-weights-out); the code below it is the solution.

# %% [markdown]
# ## Second reading
#
# ### Why does everyone look at `<s>`? Attention sinks
#
# :::{admonition} Where a head parks weight that it can't use
# :class: dropdown
# A row must sum to 1. A head that looks for something the sentence doesn't have must still look somewhere, so it parks its weight where it does little harm: on a token that's always there and hands over little. {cite:t}`xiao2024efficient` call such a token an **attention sink**. In layer 3 of our first figure, the row of *likes* spends 0.17 on the full stop and `</s>`.
#
# What counts is the weight times the *value*, and a sink has a small one. In the top layer of the captions model's decoder, `<s>` gets 62% of the weight, and its value has a sixth of the usual size ([measured below](#how-large-are-the-sinks)).
# :::
#
# ### How large are the sinks?
#
# :::{admonition} `<s>`, the full stop and `</s>` in two models
# :class: dropdown
#
# Over six sentences, the cell compares the weight of such a column with an even share, layer by layer, and the size of its value with other tokens' values. In the decoder of the captions model, `<s>` gets 14, 36 and 62% of the weight from layer to layer, where an even share would be 24%, and at the top its value has a sixth of the usual size: a sink in the upper layers, and none yet in the first. In its cross-attention the full stop is as large a sink as `</s>`. Each gets half as much again as its share in the third layer, with a third of a usual value. In the everyday model, `<s>` gets about its share. {cite:t}`clark2019what` found that many heads of BERT park on its separator, and {cite:t}`xiao2024efficient` that language models break when a cache drops their first token.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the sinks", "code_prompt_hide": "Hide the sinks"}
sentences = {
    "captions": """Zwei Hunde spielen im Schnee.
Ein Mann fährt auf einem Fahrrad durch die Stadt.
Eine Frau liest ein Buch im Park.
Drei Kinder spielen Fußball auf einer Wiese.
Ein Mädchen springt ins Wasser.
Ein Mann steht auf einer Leiter.""",
    "everyday": """Die schwarze Katze mag Fisch.
Zwei Hunde spielen im Schnee.
Der Zug kommt heute später.
Ich habe das Buch gelesen.
Wir gehen morgen in die Stadt.
Eine Frau liest ein Buch im Park.""",
}


def looked_at(name, kind, token):
    """A token's column in each layer: its weight, an even share, and its value's relative size."""
    model, tokenizer = load_pretrained(f"{name}-de-en")
    found, sizes = [], []

    def note(module, inputs, output):
        values = split_heads(module.value(inputs[2]), module.heads)
        size = values.norm(dim=-1).mean(dim=1)[0]
        others = torch.cat([size[:token], size[token:][1:]])
        sizes.append(size[token] / others.mean())

    for module in attention_modules(model)[kind]:
        module.register_forward_hook(note)
    for text in sentences[name].splitlines():
        source = torch.tensor([[*tokenizer.encode(text), EOS]])
        target = torch.tensor([[BOS, *greedy_decode(model, source)[0]]])
        sizes.clear()
        weights = getattr(attention_maps(model, source, target), kind)[:, :, 1:-1]
        seen = torch.ones_like(weights)
        if kind == "decoder":
            seen = seen.tril(diagonal=1)
        even = seen / seen.sum(dim=-1, keepdim=True)
        share = [each[..., token].mean(dim=(1, 2)) for each in (weights, even)]
        found.append(torch.stack([*share, torch.stack(sizes)], dim=1))
    return torch.stack(found).mean(dim=0)


columns = [
    ("captions", "decoder", "<s>", 0),
    ("everyday", "decoder", "<s>", 0),
    ("captions", "cross", ".", -2),
    ("captions", "cross", "</s>", -1),
]
sinks = {}
for name, kind, token, place in columns:
    sinks[name, token] = weight, even, size = looked_at(name, kind, place).T.tolist()
    print(f"{name} {kind:7} {token:4}: weight", *(f"{w:.2f}" for w in weight), end=", ")
    print(f"even {even[0]:.2f}, value times", *(f"{s:.2f}" for s in size))

# %% tags=["remove-cell"]
if CHECKING:
    weight, _, size = sinks["captions", "<s>"]
    assert weight[0] < 0.2 < 0.55 < weight[2] and size[2] < 0.25
    stop, end = sinks["captions", "."], sinks["captions", "</s>"]
    assert abs(stop[0][2] - end[0][2]) < 0.02 and 0.15 < stop[0][2] < 0.21
    assert max(sinks["everyday", "<s>"][0]) < 0.4 and max(stop[2][2], end[2][2]) < 0.36

# %% [markdown]
# ### Why is one of my weights above 1?
#
# :::{admonition} Because it was taken after dropout; and why maps change from call to call
# :class: dropdown
#
# An implementation that drops attention weights divides the survivors by $1 - p$ ([regularization](17_regularization.ipynb#what-dropout-does)), and at $p = 0.1$ a weight of 0.99 becomes 1.10. Assert that rows sum to 1, and you'll notice.
#
# Weights taken *before* dropout, as ours are, have another trap. In training mode, dropout in the layers below changes queries and keys: the rows sum to 1, and the map is a different one at each call. So `attention_maps` switches to evaluation mode.
#
# Two more errors are common in published maps. The axes of cross-attention are swapped, so that German words seem to ask English ones, or the decoder's self-attention is labeled with source tokens. Both look fine as long as the two sentences have similar lengths. The shape decides, and exercise 2 finds a swap even in a square map.
# :::
#
# ### How do I get the weights out of PyTorch's own module?
#
# :::{admonition} Ask for them head by head
# :class: dropdown
#
# `nn.MultiheadAttention` returns them beside its output, but by default as a mean, from which the heads can't be recovered. `nn.TransformerEncoderLayer` calls its attention with `need_weights=False`, so a forward hook finds none in the output. It can compute them, as ours does, or a hook that is called *before* the module can change the arguments of the call.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the three calls", "code_prompt_hide": "Hide the three calls"}
module = torch.nn.MultiheadAttention(embed_dim=8, num_heads=4, batch_first=True)
x = torch.zeros(1, 5, 8)
print("by default:                ", tuple(module(x, x, x)[1].shape))
print(
    "average_attn_weights=False:",
    tuple(module(x, x, x, average_attn_weights=False)[1].shape),
)
print("need_weights=False:        ", module(x, x, x, need_weights=False)[1])

# %% [markdown]
# ### What single heads do
#
# :::{admonition} A score for the paper's figures 3 to 5, against chance and a fixed distance
# :class: dropdown
#
# The paper names some heads, in three figures. All show self-attention in the encoder, layer 5 of 6, on one English sentence each.
#
# | figure | what it shows | what it leaves open |
# |---|---|---|
# | 3 | many heads look from *making* at its distant completion, *more difficult* | would a fixed distance find it as well? |
# | 4 | two heads look, very sharply, from *its* to *Law*, the noun it stands for, and to *application*, the noun it belongs to | how often do they find each of the two? |
# | 5 | two heads over a whole sentence, which seem to follow its structure | which structure, and against what chance? |
#
# We ask of many sentences what the figures ask of one, with a number, and with the number that chance would get. The grammar knows the structure of what it draws, so a relation becomes a pair (query word, key word). In *Er ruft den Hund an* the particle *an* belongs to the verb *ruft*: word 4 to word 1. German makes this a fair test, because time or object may come first, and then the subject follows the verb.
#
# The score of a head is its **hit rate**: the share of sentences in which the query word looks at the right word more than at any other. A look at itself doesn't count, since the residual stream keeps what a state has anyway. Two rivals stand beside it. *Chance* is a blind guess among the other words. The *best distance* is what a head could reach that always looks, say, two words to the right; only a head that beats it knows more than distances. And since the best of many heads is partly luck (exercise 5), we choose the head on one half of the sentences and report it on the other.
#
# The made-up map in the cell, by hand: the first three pairs are hits (row 0 looks most at itself, which doesn't count, and next at 1), the fourth is a miss. Of the distances +1, +1, −2 and −1 the best is right in 2 of 4.
# :::


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show relations, hit rates, and the rival", "code_prompt_hide": "Hide relations, hit rates, and the rival"}
def draw_known(rng):
    """A German main clause, its relations as pairs (query word, key word)."""
    clause = draw_main_clause(rng)
    german = german_clause(clause)
    at = {id(word): place for place, word in enumerate(german)}
    verb, subject = at[id(clause.predicate.finite)], at[id(clause.subject.german[-1])]
    relations = {
        "verb → its subject": (verb, subject),
        "subject → its verb": (subject, verb),
    }
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


def hit_rates(weights: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Return how often each head's query word looks most at its key word, (L, H), 0 to 1.

    For each sentence, weights (L, H, T, S) between words and one (query, key); what a word gives
    to itself does not count.
    """
    hits = []
    for maps, (query, key) in zip(weights, pairs):
        row = maps[:, :, query].clone()
        row[..., query] = -1
        hits.append(row.argmax(dim=-1) == key)
    return torch.stack(hits).double().mean(dim=0)


def distance_rate(pairs):
    distances = [key - query for query, key in pairs]
    return max(distances.count(distance) for distance in distances) / len(distances)


made_up = torch.tensor([[[[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]]])
print(hit_rates([made_up] * 4, [(0, 1), (1, 2), (2, 0), (2, 1)]).item())
print(distance_rate([(0, 1), (1, 2), (2, 0), (2, 1)]))

# %% [markdown]
# :::{admonition} The best head of the everyday model for each relation
# :class: dropdown
#
# 400 clauses, half of them with a separable verb, go through the encoder. As a control we also ask for mere places, such as the word before the one in the middle. For each, the cell prints the rate of the best head, what chance would give, the rate of the best distance, and the head.
#
# Start with the controls. For a place the best distance is right by definition. Two heads of layer 2 keep a distance: head 2 finds the word before in 92% of the sentences, head 1 the word after in 81%. For two words back there is no such head.
#
# For the subject, distance is a strong rival. Most clauses begin with it and the verb comes right after, so that one fixed step is right in 76% of them. No head reaches that: from subject to verb the best one hits in 58%, from verb to subject in 52%. And they are the same two heads, those that look at the next word and at the word before. A picture of one such clause, with a thick line from subject to verb, would have looked like proof of grammar.
#
# For the particle no fixed distance gets beyond 24%, since anything may stand between it and its verb. Here one head of layer 3 finds the verb in 72% of the clauses, and another one finds the particle in 66%, on clauses that weren't used to choose them. Each rate rests on 100 clauses, so its standard error is $\sqrt{0.72 \cdot 0.28 / 100} = 0.045$. A lead of five points would say nothing; these leads are above forty. (From the verb it may still be a look at the last word, which is where the particle stands.)
#
# A low score proves little. The model may still know its subjects, since what a head has to fetch can come by way of another word, be spread over several heads, or be in the residual stream already. A high score doesn't prove everything either. That a head looks from verb to particle doesn't say what it takes from there, nor whether anything depends on it. For that one has to turn from looking to changing.
# :::


# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show the search for heads, and what it finds", "code_prompt_hide": "Hide the search for heads, and what it finds"}
def encoder_by_word(text):
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    with evaluating(model), keeping_weights(model) as kept:
        model.encode(source)
    place = [*word_of_token(tokenizer, text), len(words(text))]
    return merge_tokens(torch.cat([*kept.values()]), place, place)


rng = Random(5)
drawn = [draw_known(rng) for _ in range(3000)]
separable = [clause for clause in drawn if len(clause[1]) == 4]
clauses = [*separable[:200], *[clause for clause in drawn if len(clause[1]) == 2][:200]]
Random(0).shuffle(clauses)
encoded = [encoder_by_word(text) for text, _ in clauses]


def probe(relation_of):
    """Find the best head on one half of the sentences; count on the other half."""
    known = [
        (i, pair) for i, clause in enumerate(clauses) if (pair := relation_of(*clause))
    ]
    rates = []
    for half in (known[::2], known[1::2]):
        maps_of_half = [encoded[i] for i, _ in half]
        rates.append(hit_rates(maps_of_half, [pair for _, pair in half]))
    layer, head = divmod(int(rates[0].argmax()), rates[0].size(1))
    chance = sum(1 / (encoded[i].size(-1) - 1) for i, _ in known) / len(known)
    distance = distance_rate([pair for _, pair in known])
    return (layer + 1, head + 1), rates[1][layer, head].item(), chance, distance


def middle(distance):
    return lambda text, _: (len(words(text)) // 2, len(words(text)) // 2 + distance)


def relation(name):
    return lambda text, relations: relations.get(name)


places = {
    "previous word": middle(-1),
    "next word": middle(1),
    "two words back": middle(-2),
}
bonds = {name: relation(name) for name in separable[0][1]}
probed = {name: probe(ask) for name, ask in (places | bonds).items()}
print(f"{'':20}hit rate  chance  best distance")
for name, ((layer, head), rate, chance, distance) in probed.items():
    print(f"{name:20}{rate:8.0%}{chance:8.0%}{distance:15.0%}", end="")
    print(f"  layer {layer}, head {head}")

# %% tags=["remove-cell"]
if CHECKING:
    assert probed["previous word"][1] > 0.85 and probed["next word"][1] > 0.7
    assert probed["subject → its verb"][0] == probed["next word"][0]
    assert probed["verb → its subject"][0] == probed["previous word"][0]
    assert max(probed["subject → its verb"][1], probed["verb → its subject"][1]) < 0.7
    for name in ("particle → its verb", "verb → its particle"):
        _, rate, _, distance = probed[name]
        assert rate > distance + 0.3

# %% [markdown]
# ### How do I get one number for each source word, over all heads and layers?
#
# :::{admonition} There is no agreed way, only habits
# :class: dropdown
#
# People use the mean over heads of the top layer, the largest weight anywhere, or **rollout** ({cite:t}`abnar2020quantifying`), which multiplies the maps of all layers, each mixed half and half with the identity matrix for the residual stream. Rollout assumes that layers only mix and that the stream counts as much as attention. If the question is how much a source word matters, ask directly: take the word out or exchange it, and see how far the output changes.
# :::
#
# ### Are most heads superfluous?
#
# :::{admonition} What removing one head at a time can't say
# :class: dropdown
#
# If two heads share a task, the loss of both is more than the sum of the single losses (exercise 4). And the model was trained with all of them; without a head *from the start*, another would have taken over. {cite:t}`voita2019analyzing` pruned 38 of the 48 encoder heads of a translation model as they went on training it, and lost 0.15 BLEU. That the heads weren't needed in the end doesn't mean that training could have done without them.
# :::
#
# ### Does silencing a head take away exactly one term?
#
# :::{admonition} A test of `without_head`
# :class: dropdown
#
# What is missing inside the block should be one term of the sum in {eq}`eq-heads-apart`: the weights of this head times its values, times its columns of the output matrix. The cell computes both.
# :::

# %% tags=["nbval-ignore-output", "hide-cell"] mystnb={"code_prompt_show": "Show the missing term", "code_prompt_hide": "Hide the missing term"}
module = small.encoder.layers[0].self_attention
x = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(1))
with evaluating(small):
    complete = module(x, x, x)
    values = split_heads(module.value(x), module.heads)
    looked_up = attention_weights(module, x, x, x)[:, 2] @ values[:, 2]
    term = looked_up @ module.output.weight[:, 64:96].T
    with without_head(small, "encoder", layer=0, head=2):
        missing = complete - module(x, x, x)
difference = (missing - term).abs().max()
print(f"the term of head 3 has size {term.norm():.1f}", end=", ")
print(f"and what is missing differs from it by {difference:.4f}")

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(missing, term, atol=1e-5, rtol=1e-4)
    with evaluating(small):
        torch.testing.assert_close(module(x, x, x), complete)

# %% [markdown]
# ### Do two training runs give the same heads?
#
# :::{admonition} No, and their order means nothing
# :class: dropdown
#
# Swap two heads together with their parts of $W^O$, and the model computes the same, so their order means nothing and the seed decides which does what. That's one more reason to describe a head by what it does, and a layer rather than a head where all of its heads do it.
# :::

# %% [markdown]
# ## Sources
#
# The three uses of attention are from section 3.2.3 of {cite:t}`vaswani2017attention`, its maps from Figures 3 to 5. That many heads can be removed was found by {cite:t}`michel2019sixteen` and {cite:t}`voita2019analyzing`. The dispute over attention as explanation began with {cite:t}`jain2019attention` and {cite:t}`wiegreffe2019attention`.
