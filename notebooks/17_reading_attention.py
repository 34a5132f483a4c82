# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Reading attention
#
# This chapter takes the attention weights out of a trained model, draws them, and measures which of them mean what they seem to mean (sections 3.2.3 and 4 of the paper, and its Figures 3 to 5).
#
# The last pages of the paper show lines between words: a verb that looks at its distant half, a pronoun that looks at its noun. They are among the most copied pictures of the field, because they seem to let us watch a network think.
#
# Such a picture is easy to make and hard to trust. A model with 3 layers of 4 heads, three kinds of attention and a sentence of ten pieces holds 36 maps with about a hundred numbers each. Among so many, some will look meaningful by chance. So this chapter does everything twice: it looks, and then it counts on many sentences what it seemed to see.

# %% tags=["export"]
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor

from annotated_transformer.corpus import words
from annotated_transformer.layers import DecoderLayer, EncoderLayer
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer, evaluating

# %%
import html
import json
from random import Random

import altair as alt
from IPython.display import display

from annotated_transformer import load_pretrained
from annotated_transformer.batching import collate, encode_pairs, encode_source
from annotated_transformer.corpus import draw_main_clause, english_clause, german_clause
from annotated_transformer.corpus import Phrase, grammar, join, linked, to_pair
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.figures import FONTS, INK, KEY, QUERY, RESIDUAL, VALUE
from annotated_transformer.figures import heatmap, page_colors, show, show_steps
from annotated_transformer.masks import BOS, PAD
from annotated_transformer.training import train
from annotated_transformer.transformer import greedy_decode, preset

# %% [markdown]
# ## Where the weights are
#
# We have a trained model from German to English, and look for its weights.

# %%
model, tokenizer = load_pretrained()
text = "Zwei Hunde spielen im Schnee."
source = torch.tensor([encode_source(tokenizer, text)])
first = model.encoder.layers[0].self_attention
with evaluating(model):
    model.encode(source)
print("weights:", first.weights)

# %% [markdown]
# Nothing there. The fast kernel never writes the weights down; that is why it is fast. `MultiHeadAttention` keeps them when its attribute `record` is set. We set it everywhere for the length of a block, and put everything back at its end, because a recording model is slow and holds on to memory.


# %% tags=["export"]
@contextmanager
def recording(model: Transformer) -> Iterator[None]:
    """Let all attention keep its weights inside the block; afterwards it is as before."""
    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    before = [(module.record, module.weights) for module in modules]
    for module in modules:
        module.record = True
    try:
        yield
    finally:
        for module, (record, weights) in zip(modules, before):
            module.record, module.weights = record, weights


# %% [markdown]
# The `finally` sees to it that all is put back even if the model raises an error inside the block. What is put back is what was there, not a blind `False`: somebody else may be recording, too.
#
# There are three kinds of attention in the model, as section 3.2.3 of the paper lists them. The encoder's looks from source to source, the decoder's from target to target, and cross-attention from target to source. Each has as many maps as there are layers times heads.


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
    encoder = cast("Iterable[EncoderLayer]", model.encoder.layers)
    decoder = cast("Iterable[DecoderLayer]", model.decoder.layers)
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }


# %% [markdown]
# One sentence at a time is enough, and is safer. In a batch, short sentences are padded, and every map would have rows and columns that mean nothing.


# %% tags=["export"]
def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> AttentionMaps:
    """Return all weights for source (1, S) and target (1, T) from `<s>` on (section 3.2.3).

    In evaluation mode and before dropout; the model is left as it was. Raises ValueError for
    more than one sentence, whose padding would blur the maps.
    """
    if source.size(0) != 1 or target.size(0) != 1:
        raise ValueError(f"one sentence at a time, not {source.size(0)} and {target.size(0)}")
    with recording(model), evaluating(model):
        model(source, target)
        found = [[m.weights for m in kind] for kind in attention_modules(model).values()]
        return AttentionMaps(*(torch.cat(cast("list[Tensor]", kind)) for kind in found))


# %%
target = torch.tensor([[BOS, *greedy_decode(model, source)[0]]])
maps = attention_maps(model, source, target)
for kind in maps:
    torch.testing.assert_close(kind.sum(dim=-1), torch.ones(kind.shape[:-1]))
assert maps.cross.shape[-2:] == (target.size(1), source.size(1))
assert not maps.decoder.triu(diagonal=1).any()
print("every row sums to 1; no position of the decoder looks ahead")
print("recording is off again:", not first.record and first.weights is None)

# %% [markdown]
# `attention_maps` runs the model once, with the source and with a target that is already written. Each module then holds weights of shape (1, H, T, S), and joining the layers on the first axis gives (L, H, T, S). For the target we take what the model itself writes, with `<s>` in front.
#
# The first check is the one that catches most mistakes. Weights taken after dropout have rows that sum to anything between one half and one and a half, and their pictures have holes. Weights normalized along the wrong axis have columns that sum to 1.
#
# The second check is about evaluation mode. Even where the weights are taken before dropout, a model in training mode drops parts of the states that queries and keys are computed from. The map is then another one at each call.

# %%
with recording(model), torch.no_grad():
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
# To draw a map, each row and column needs a name. Tokens are pieces of words, and a small function names them. Which tokens belong to which axis follows from who asks: the rows of the decoder's two kinds are *target* tokens, the columns of cross-attention are *source* tokens.


# %% tags=["export"]
def piece_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return how each token reads, reserved ones as `</s>`, without the space before a word."""
    return [SPECIAL.get(index) or tokenizer.decode([index]).strip() or "·" for index in ids]


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-three-maps", "caption": "Who looks at whom? The three kinds of attention in the top layer of the trained model, mean of its heads, for one sentence (choose on the website). A row asks, and sums to 1; a column answers. In the decoder, a row is the token that is read there; what it writes is the name of the next row. Hatched: hidden by the causal mask."}}
source_names, target_names = (piece_names(tokenizer, row[0].tolist()) for row in (source, target))
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
# Two errors are common in published maps of this kind. In one, the axes of cross-attention are swapped, so that German words seem to ask English ones. In the other, the decoder's self-attention is labeled with source tokens. Both look fine, as long as the two sentences are of similar length.
#
# A subtler trap is the shift between reading and writing. The row named `<s>` reads `<s>` and *writes* the first word. So when the model looks for the source of the word it is about to write, it does so one row higher than one would expect. We come back to this when we count.
#
# A mean over heads hides what heads are for. Here is every head of every layer.

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-all-heads", "caption": "What do heads look at? Every head (columns) of every layer (rows) of the trained model, for the same sentence. Rows and columns of each small map are tokens in the order of the figure above. Ink is weight, from 0 (empty) to 1 (full)."}}


def grid(weights, cell=11):
    layers, heads, rows, columns = weights.shape
    records = [
        {
            "layer": f"layer {n + 1}",
            "head": f"head {h + 1}",
            "row": i,
            "column": j,
            "w": round(w, 2),
        }
        for n in range(layers)
        for h in range(heads)
        for i in range(rows)
        for j in range(columns)
        if (w := weights[n, h, i, j].item()) >= 0.03
    ]
    place = {"axis": alt.Axis(labels=False, ticks=False, domain=False)}
    opacity = alt.Scale(domain=[0, 1], range=[0, 1])
    chart = (
        alt.Chart(alt.Data(values=records))
        .mark_rect(fill=INK)
        .encode(
            x=alt.X(
                "column:Q",
                bin=False,
                title=None,
                scale=alt.Scale(domain=[0, columns], nice=False),
                **place,
            ),
            y=alt.Y("row:Q", title=None, scale=alt.Scale(domain=[rows, 0], nice=False), **place),
            x2=alt.X2("right:Q"),
            y2=alt.Y2("low:Q"),
            fillOpacity=alt.FillOpacity("w:Q", scale=opacity, legend=None),
        )
    )
    chart = chart.transform_calculate(right="datum.column + 1", low="datum.row + 1")
    view = alt.ViewConfig(stroke=INK, strokeOpacity=0.3)
    facets = chart.properties(width=cell * columns, height=cell * rows, view=view).facet(
        row=alt.Row("layer:N", title=None), column=alt.Column("head:N", title=None), spacing=10
    )
    return facets


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
# Some heads draw a diagonal: they look at a fixed distance. Some draw a column: everyone looks at one token, often the period or `</s>`. Some are a grey haze. And a few pick out single words that are not explained by place. It is tempting to give them names now. We resist, and watch the whole machine at work first.
#
# ## The machine at work
#
# The next figure replays one translation, from the numbers that the model computed for it. Each circle is a state, a vector of the residual stream. Each line is a weight, the mean over the heads of a layer. First the source: in each layer, all positions look at all positions, at the same time. Then the target, one token after another, and each token looks at all tokens before it *and* at the finished source.
#
# This is the trace of a single pass with the finished translation. Because of the causal mask, it is equal to what was computed step by step: a position never sees what comes after it.

# %% tags=["hide-input"]


def record_trace(maps, source_names, target_names, pitch=50, rise=58, lift=30, top=40):
    """Lay out states and words, and list for each frame what is new and which weights flow."""
    layers, S, T = len(maps.encoder), len(source_names), len(target_names)
    across = [30 + pitch * i for i in range(S)] + [30 + pitch * (S + 0.6 + t) for t in range(T)]
    height = top + lift + rise * layers  # of the lowest source states; the target stands higher
    states, words, frames = [], [], []

    def state(column, level):
        return level * (S + T) + column

    def lines(weights, below, level, column):
        pairs = [(state(i, below), state(column, level), round(w, 3)) for i, w in weights]
        return [pair for pair in pairs if pair[2] >= 0.02]

    for level in range(layers + 1):
        for column, x in enumerate(across):
            born = level if column < S else layers + 1 + column - S
            states.append([round(x), height - rise * level - (column >= S) * lift, born])
    for i, name in enumerate(source_names):
        words.append([round(across[i]), height + 24, name, 0])
    for t, name in enumerate(target_names):
        words.append([round(across[S + t]), height + 24 - lift, name, layers + 1 + t])
        written = target_names[t + 1] if t + 1 < T else "</s>"
        words.append([round(across[S + t]), top - 18, written, layers + 1 + t])
    say = "Each source token is a vector that knows only itself and its place."
    frames.append({"say": say, "new": [state(i, 0) for i in range(S)], "lines": []})
    for level in range(1, layers + 1):
        flow = maps.encoder[level - 1].mean(dim=0).tolist()
        frames.append({
            "say": f"Encoder layer {level}: all {S} positions look at all {S}, in parallel.",
            "new": [state(i, level) for i in range(S)],
            "lines": [edge for j in range(S) for edge in lines(enumerate(flow[j]), level - 1, level, j)],
        })  # fmt: skip
    for t in range(T):
        flow = []
        for level in range(1, layers + 1):
            self_, cross = (
                kind[level - 1].mean(dim=0)[t].tolist() for kind in (maps.decoder, maps.cross)
            )
            flow += lines([(S + u, self_[u]) for u in range(t + 1)], level - 1, level, S + t)
            flow += lines(enumerate(cross), layers, level, S + t)
        written = target_names[t + 1] if t + 1 < T else "</s>"
        seen = "itself" if t == 0 else f"{t + 1} target tokens"
        say = f"Decoder: reads “{target_names[t]}”, looks at {seen} and at the finished source, writes “{written}”."
        frames.append(
            {"say": say, "new": [state(S + t, n) for n in range(layers + 1)], "lines": flow}
        )
    width = round(across[-1] + 30)
    return {"width": width, "height": height + 36, "start": layers + 2, "pause": 1500,
            "states": states, "words": words, "frames": frames}  # fmt: skip


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
# In training, the right half happens in one step, too: the target is known, and the mask does the rest. Only in use must the decoder wait for its own words. That is why a sentence of ten words takes one pass through the encoder and eleven through the decoder.
#
# ## Does cross-attention align words?
#
# In the cross map above, target words seem to find their source words. Is that so, and in which heads? This can be counted where the right answer is known. Our grammar knows it: each pair that it draws comes with its alignment. So we train a small model on it, which takes a minute or two.

# %% tags=["nbval-ignore-output"]
pairs = grammar(9400, seed=0)
learned, unseen = pairs[:9000], pairs[9000:]
pieces = Tokenizer.train(learned, vocabulary_size=2000)
torch.manual_seed(0)
small = Transformer(preset("tiny", vocabulary_size=len(pieces)))
train(small, pieces, learned)
translated = translate(small, pieces, [pair.source for pair in unseen[:100]], beam=1)
honest = score(translated, [pair.target for pair in unseen[:100]]).bleu
print(f"BLEU {honest:.1f}")
assert honest > 60

# %% [markdown]
# The alignment speaks of words, the maps speak of pieces. Where a word has several pieces, three rules bring them together. What goes *to* a word is the sum of what goes to its pieces. What goes out *from* it is the mean over its pieces. And each reserved token, such as `</s>`, counts as a word of its own. With these rules a row still sums to 1.


# %% tags=["export"]
def word_of_piece(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return for each piece of a text the position of its word in `words(text)`."""
    ends, start = [], 0
    for word in words(text):
        start = text.index(word, start) + len(word)
        ends.append(start)
    spans = tokenizer.library.encode(text, add_special_tokens=False).offsets
    last = len(ends) - 1  # spaces after the last word go to it
    return [min(sum(end < stop for end in ends), last) for _, stop in spans]


# %% [markdown]
# With the word of each piece known, a map between pieces becomes a map between words.


# %% tags=["export"]
def merge_pieces(weights: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Turn weights between pieces (..., T, S) into weights between words.

    `rows` and `columns` name the word of each piece, from 0. Keys are added up, queries averaged,
    so rows still sum to 1; a word without a piece of its own has zeros.
    """
    to = torch.eye(max(columns) + 1, dtype=weights.dtype)[list(columns)]
    out = torch.eye(max(rows) + 1, dtype=weights.dtype)[list(rows)]
    return (out / out.sum(dim=0).clamp(min=1)).T @ weights @ to


# %%
text = "Der Hund schläft."
made_up = torch.tensor([[0.5, 0.1, 0.2, 0.2], [0.0, 0.6, 0.3, 0.1], [0.2, 0.2, 0.1, 0.5]])
by_word = merge_pieces(made_up, rows=[0, 1, 1], columns=[0, 1, 1, 2])
print([[round(w, 2) for w in row] for row in by_word.tolist()])
print(word_of_piece(pieces, text)[-1] == words(text).index("."))

# %% [markdown]
# `word_of_piece` finds the word of each piece by the place where it ends in the text. So it does not matter how a tokenizer marks the beginning of a word, or whether it counts the space in front as part of it. `merge_pieces` writes both rules as matrices of zeros and ones: multiplied from the right, one adds up the columns that belong together; from the left, divided by the number of pieces, the other takes the mean of rows.
#
# By hand: the second word has two query pieces, rows two and three. To the first word they send 0.0 and 0.2, on average 0.1. To the second, which has two key pieces, 0.9 and 0.3, on average 0.6.
#
# Now each target word is aligned with the source word that gets its largest weight, or with none if that is `</s>`. How good is a set $A$ of such links? Measured against a set $S$ of sure links and, where people disagree, a larger set $P$ of possible ones, the **alignment error rate** is
#
# $$
# \text{AER} = 1 - \frac{|A \cap S| + |A \cap P|}{|A| + |S|}.
# $$ (eq-aer)
#
# It is 0 if all sure links are found and no impossible one, and 1 if nothing fits. Our grammar is sure of everything, so $P = S$. Links are counted over all sentences before dividing, as with BLEU.

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
# The shift returns here. A target word has two rows: the one that *writes* it, and the next one, which *reads* it. We count both, for 200 sentences that training has not seen.


# %%
def cross_by_word(pair):
    """Cross-attention by word, (L, H, words, words + 1), for writing and for reading a word."""
    source = torch.tensor([encode_source(pieces, pair.source)])
    target = torch.tensor([[BOS, *pieces.encode(pair.target)]])
    cross = attention_maps(small, source, target).cross
    rows, columns = (word_of_piece(pieces, side) for side in (pair.source, pair.target))
    rows, columns = columns, [*rows, len(words(pair.source))]
    return {
        "writes": merge_pieces(cross[:, :, :-1], rows, columns),
        "reads": merge_pieces(cross[:, :, 1:], rows, columns),
    }


some = unseen[:200]
by_word = [cross_by_word(pair) for pair in some]
gold = [pair.alignment for pair in some]

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
records = [
    {
        "head": f"layer {n + 1}, head {h + 1}",
        "way": f"the row that {way} the word",
        "rate": round(rate, 3),
    }
    for (way, n, h), rate in rates.items()
]
base = alt.Chart(alt.Data(values=records)).encode(
    x=alt.X("rate:Q", title="alignment error rate", scale=alt.Scale(domain=[0, 1])),
    y=alt.Y("head:N", title=None, axis=alt.Axis(ticks=False, domain=False)),
)
line = base.transform_calculate(at=f"{baseline:.3f}").mark_rule(
    color=KEY, strokeWidth=1.5, strokeDash=[5, 3]
)
chart = alt.layer(
    base.mark_bar(color=VALUE, height=13),
    base.mark_text(align="left", dx=4).encode(text=alt.Text("rate:Q", format=".2f")),
    line.encode(x=alt.X("at:Q"), y=alt.Y()),
).properties(width=360, height=150)
chart = chart.facet(
    row=alt.Row(
        "way:N",
        sort=["the row that writes the word", "the row that reads the word"],
        title=None,
        header=alt.Header(labelOrient="top", labelAnchor="start"),
    )
)
show(
    chart,
    alt=f"The best of sixteen has an error rate of {rates[best]:.2f}, the worst {max(rates.values()):.2f}; the diagonal has {baseline:.2f}.",
)

# %% [markdown]
# Heads differ widely. Some align well, and others are worse than a straight line that knows no words. So "the attention of the model" aligns nothing in general; certain heads do, in one of two rows. Had we taken the other row or the other layer, we would have reported that attention does not align at all, and the pictures would have agreed with us.
#
# The losing row is no accident. At the moment when a word is read, its translation is done, and the decoder is busy with the next one. In deeper models the picture can turn around: there, lower layers have often been found to look at the source of the word just read. Which row and which layer align has to be measured for each model.
#
# Even the best head is not perfect, and need not be. The model was trained to write the next word, not to point at its source. To write *not* after *does*, or the second half of *picks up*, it may look elsewhere.

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
# Now to the names that we did not give. The paper's Figures 3 to 5 show heads that find the other half of a verb, or the noun of a pronoun, on one sentence each. We ask the same of many sentences, with a number, and with the number that chance would get.
#
# Two things make this possible. The grammar knows the structure of what it draws. And a relation can be turned into pairs (query word, key word): from the particle *an* to its verb *ruft*, from a verb to its subject.


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


for text, relations in map(draw_known, [Random(2), Random(24)]):
    print(text)
    for name, (query, key) in relations.items():
        print(f"   {name}: {words(text)[query]} → {words(text)[key]}")

# %% [markdown]
# German makes this a fair test. The verb comes second, but time or object may come first, and then the subject stands behind the verb. A head that always looks one word to the left is right only some of the time.
#
# The score of a head is its **hit rate**: the share of sentences in which the query word looks at the right word more than at any other. Looking at itself does not count. Three numbers stand beside it. *Chance* is the hit rate of a blind guess. The *best distance* is what a head could reach that always looks, say, two words to the right; only a head that beats it has learned about more than places. And since the best of eight heads is partly luck, we choose the head on one half of the sentences and report it on the other.


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


# %% tags=["export"]
def distance_rate(pairs: Sequence[tuple[int, int]]) -> float:
    """Return the hit rate of the best head that always looks at the same distance."""
    distances = [key - query for query, key in pairs]
    return max(distances.count(distance) for distance in distances) / len(distances)


# %%
made_up = torch.tensor([[[[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]]])
print(hit_rates([made_up] * 4, [(0, 1), (1, 2), (2, 0), (2, 1)]).item())
print(distance_rate([(0, 1), (1, 2), (2, 0), (2, 1)]))

# %% [markdown]
# By hand: the first three pairs are hits. Row 0 looks most at itself, which does not count, and next at 1. The fourth is a miss, so 3 of 4. Of the distances +1, +1, -2 and -1, the best is +1, right in 2 of 4. Now 400 clauses, half of them with a separable verb, go through the encoders of both models.


# %% tags=["nbval-ignore-output", "hide-input"]
def encoder_by_word(model, tokenizer, text):
    source = torch.tensor([encode_source(tokenizer, text)])
    maps = attention_maps(model, source, torch.tensor([[BOS]])).encoder
    place = [*word_of_piece(tokenizer, text), len(words(text))]
    return merge_pieces(maps, place, place)


rng = Random(5)
drawn = [draw_known(rng) for _ in range(3000)]
separable = [clause for clause in drawn if len(clause[1]) == 4]
clauses = [*separable[:200], *[clause for clause in drawn if len(clause[1]) == 2][:200]]
Random(0).shuffle(clauses)
encoded = {
    "small": [encoder_by_word(small, pieces, text) for text, _ in clauses],
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


rows = []
for (which, name), (head, rate, chance, distance) in probed.items():
    beaten = "" if name in places else "yes" if rate > distance + 0.05 else "no"
    line = (f"{rate:.0%}", f"{chance:.0%}", f"{distance:.0%}", beaten)
    rows.append((name, which, head, *line))
table(
    ("query → key", "model", "its best head", "hit rate", "chance", "best distance", "beaten?"),
    rows,
)

# %% [markdown]
# For a place, such as the previous word, the best distance is 100 % by definition; these rows only ask whether some head keeps to a place. They are also asked of the first model, *trained* on captions, which has more layers and saw other sentences. The rows about verbs are the interesting ones. A hit rate far above chance is not enough for a claim about grammar: it must also beat the best distance, as the last column says.
#
# For the subject, distance is a strong rival, because most clauses begin with it and the verb comes right after. A picture of one such clause, with a thick line from verb to subject, would have looked like proof. The particle is a cleaner case. It stands at the end of the clause and its verb near the front, with anything between them, so no fixed distance gets far.
#
# And a *no* in the last column does not say that the model does not know its subjects. Its translations have to agree with them, and mostly do. What a head has to fetch can come by way of another word, or be spread over several heads, or be in the residual stream already.
#
# ## Take a head away
#
# A head that does something may still not matter. The direct test is to remove it. A head enters the rest of the model through its own columns of the output matrix $W^O$. If they are zero, the head adds nothing, and all others are as before.


# %% tags=["export"]
@contextmanager
def without_head(model: Transformer, kind: str, layer: int, head: int) -> Iterator[None]:
    """Silence one head inside the block; afterwards the model is bit for bit as before.

    `kind` is encoder, decoder or cross; layers and heads count from 0. Raises ValueError if there
    is no such head.
    """
    known = attention_modules(model)
    modules = known.get(kind, [])
    if not (0 <= layer < len(modules) and 0 <= head < modules[layer].heads):
        sizes = ", ".join(f"{name} {len(m)} x {m[0].heads}" for name, m in known.items())
        raise ValueError(f"no head {head} in layer {layer} of {kind!r}: layers x heads are {sizes}")
    output = modules[layer].output.weight.data
    width = output.size(1) // modules[layer].heads
    columns = output[:, head * width : (head + 1) * width]
    kept = columns.clone()
    columns.zero_()
    try:
        yield
    finally:
        columns.copy_(kept)


# %% [markdown]
# The function works on a view of the stored weights, not on a copy. Setting the view to zero changes the model itself, at no cost and without a word changed in its code. Afterwards the kept numbers are written back. We do not subtract and add again: that would leave rounding errors behind, and after a hundred tries the model would be another one.
#
# A check against the definition: the output of multi-head attention is a sum with one term a head. So what is lost by removing a head should be exactly that head's term, its weights times its values times its part of $W^O$.

# %%
attention = small.encoder.layers[0].self_attention
x = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    attention.record = True
    whole = attention(x, x, x)
    values = attention.project(x, x)[1]
    term = attention.weights[:, 2] @ values[:, 2] @ attention.output.weight[:, 64:96].T
    attention.record, attention.weights = False, None
    with without_head(small, "encoder", 0, 2):
        torch.testing.assert_close(whole - attention(x, x, x), term, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(attention(x, x, x), whole)
print("what is missing is the term of head 3, and only inside the block")

# %% [markdown]
# Now every head in turn: silence it, translate 60 unseen sentences, and see how much BLEU is gone.

# %% tags=["nbval-ignore-output"]
held = unseen[200:260]


def quality():
    texts = translate(small, pieces, [pair.source for pair in held], beam=1)
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
matrix = [[lost[kind, layer, head] for head in range(4)] for kind in axes for layer in range(2)]
most = max(lost, key=lost.get)
top = max(lost.values())
show(
    heatmap(
        [[round(max(loss, 0), 1) for loss in row] for row in matrix],
        names,
        [f"head {h + 1}" for h in range(4)],
        titles=("attention, layer", "BLEU lost without it"),
        limit=round(top, 1),
        color=KEY,
        cell=52,
    ),
    alt=f"Silencing {most[0]} layer {most[1] + 1} head {most[2] + 1} costs {top:.0f} BLEU, the most; {sum(loss < 2 for loss in lost.values())} of 24 heads cost less than 2.",
)

# %% [markdown]
# The losses are very uneven. Most of the damage sits in a few heads, and many can go without much notice. Bear in mind what this does not show. If two heads do the same work, each can be removed at no cost, but not both. And the model was trained with all of them; without a head *from the start*, another would have taken over.
#
# ## What attention does not explain
#
# It is a short step from "this head looks at that word" to "the model wrote this because of that word". The step is not safe. We test it with the heads of the small model. For each head we measure how sharp its maps are: the mean of the largest weight in each row. Then we flatten the head: its keys are set to zero, all scores become equal, and it looks at everything alike. Its map is then pure grey. If a map told why the model writes what it writes, the sharpest maps should be those whose loss changes most.


# %%
@contextmanager
def flattened(model, kind, layer, head):
    keys = attention_modules(model)[kind][layer].key.weight.data
    rows = keys[32 * head : 32 * (head + 1)]
    kept = rows.clone()
    rows.zero_()
    yield
    rows.copy_(kept)


batch = collate(encode_pairs(pieces, unseen[:200]))


def predicted():
    with evaluating(small):
        return small(batch.source, batch.target[:, :-1]).argmax(dim=-1)


# %% tags=["nbval-ignore-output"]
real = batch.target[:, 1:] != PAD
usual = predicted()
sharp = [
    attention_maps(small, torch.tensor([e.source]), torch.tensor([e.target[:-1]]))
    for e in encode_pairs(pieces, unseen[:40])
]
records = []
for kind, layer, head in lost:
    peaks = torch.cat([getattr(maps, kind)[layer, head].amax(dim=-1) for maps in sharp])
    with flattened(small, kind, layer, head):
        changed = (predicted() != usual)[real].double().mean().item()
    records.append({"kind": kind, "head": f"{kind} {layer + 1}.{head + 1}", "peak": round(peaks.mean().item(), 3), "changed": round(100 * changed, 2)})  # fmt: skip
assert torch.equal(predicted(), usual)
sharpest_half = sorted(records, key=lambda r: r["peak"])[12:]
print(
    f"sharpest 12 heads: flattened, they change {min(r['changed'] for r in sharpest_half):.1f} to {max(r['changed'] for r in sharpest_half):.1f} % of the words"
)

# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-sharp", "caption": "Is a sharp map an important one? Each point is a head: how sharp its maps are, and how many of the next words, with the right beginning given, change when it looks at everything alike. If maps explained the output, the points would rise to the right along a line."}}
shapes = alt.Scale(domain=list(axes), range=["circle", "square", "triangle-up"])
colors = alt.Scale(domain=list(axes), range=[QUERY, RESIDUAL, KEY])
base = alt.Chart(alt.Data(values=records)).encode(
    x=alt.X(
        "peak:Q",
        title="sharpness: mean of the largest weight in a row",
        scale=alt.Scale(domain=[0, 1]),
    ),
    y=alt.Y("changed:Q", title="next words changed, %"),
)
points = base.mark_point(filled=True, opacity=0.9, size=70).encode(
    shape=alt.Shape("kind:N", scale=shapes, title=None),
    color=alt.Color("kind:N", scale=colors, title=None, legend=alt.Legend(symbolType="circle")),
)
order = sorted(records, key=lambda r: -r["changed"])
labels = base.transform_filter(alt.FieldOneOfPredicate("head", [r["head"] for r in order[:2]]))
show(
    (points + labels.mark_text(align="right", dx=-8).encode(text="head:N")).properties(
        width=420, height=260
    ),
    alt=f"Points scatter: flattening changes from {order[-1]['changed']:.1f} to {order[0]['changed']:.1f} percent of the next words, and equally sharp heads differ widely.",
)

# %% [markdown]
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
# **Do two trainings give the same heads?** No. Head 1 of one run has nothing to do with head 1 of another; the seed decides who does what. Kinds of heads come back, at other places. So a head is described by what it does, never by its number.
#
# **Why the mean over the heads in the player?** To have one line for each pair of positions. It shows the flow of a whole layer, and hides who is responsible for it. For questions about heads, use the grid.
#
# **May weights of several layers be multiplied, to follow a word from bottom to top?** That is done, and is called rollout. It assumes that a layer only mixes, and that the residual stream counts as much as attention. Both are guesses. An intervention needs neither.
#
# **Is a head the right unit at all?** It is a convenient one, since $W^O$ keeps heads apart. But nothing in training asks a head to do one thing. Some do two things, on different words, and some things are done by two heads together.
#
# **Can a useless head be left out for good?** Often. Models have been trained, then robbed of most of their heads and trained a little further, with hardly any loss. That the heads were not needed in the end does not mean that training could have done without them.
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
