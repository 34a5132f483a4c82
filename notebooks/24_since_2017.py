# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands


# %% [markdown]
# # Since 2017
#
# Large language models are still built from the parts of this book, with a handful of changes. This chapter applies each of them to our own code, measures what it buys, and ends with a modern language model in thirty lines.
#
# A layer of 2017 and one of today, where $x$ is the residual stream, LN stands for LayerNorm, and RMS for RMSNorm:
#
# $$
# \begin{aligned}
# \text{2017} \; & x \leftarrow \text{LN}(x + \text{Attention}(x)) \\
# & x \leftarrow \text{LN}(x + \text{FFN}(x)) \\
# \text{today} \; & x \leftarrow x + \text{Attention}(\text{RMS}(x)) \\
# & x \leftarrow x + \text{SwiGLU}(\text{RMS}(x))
# \end{aligned}
# $$ (eq-today)
#
# That's a layer of Llama {cite:p}`touvron2023llama`, and, with small variations, of most models whose weights are public. Attention itself is unchanged. What changed is around it: how positions get in, how many keys there are, and that a single stack does the work of two.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
import ast
import inspect
import json
import math
import statistics
import textwrap
from dataclasses import replace
from difflib import ndiff
from itertools import pairwise
from pathlib import Path

import altair as alt
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import LayerNorm
from annotated_transformer.masks import BOS, EOS, PAD, target_mask
from annotated_transformer.multi_head_attention import (
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    make_encoder,
    greedy_decode,
    initialize,
)
from book.figures import INK, PAPER, RESIDUAL, arrow, box, heatmap, plus
from book.figures import show, show_drawing, show_steps, stream, words_at

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-since-layers", "caption": "What has changed in a layer? Left: the encoder layer of 2017. Right: a layer of a language model of today. Both are read from the bottom up, and the thick gray line is the residual stream. Norms have left the stream for the branches, positions have moved from the bottom into each attention, and the network has a gate. Not drawn: today's attention looks back only."}}


def layer(x, title, attention, network, norm, pre):
    yield words_at(x + 110, 22, title, 15)
    yield stream([(x, 400), (x, 40)])
    for y, (name, below) in ((270, attention), (110, network)):
        yield box(x + 70, y, 170, 58, name, below)
        yield arrow([(x + 155, y), (x + 155, y - 22), (x + 10, y - 22)]) + plus(
            x, y - 22
        )
        if pre:
            yield arrow([(x, y + 92), (x + 155, y + 92), (x + 155, y + 58)])
            yield box(x + 35, y + 80, 78, 24, norm)
        else:
            yield arrow([(x, y + 80), (x + 155, y + 80), (x + 155, y + 58)])
            yield box(x - 40, y - 62, 80, 24, norm)


left = layer(
    60,
    "2017",
    ("attention", "h heads of keys"),
    ("ReLU", "two matrices"),
    "norm",
    False,
)
right = layer(
    410,
    "today",
    ("attention", "fewer keys, rotated"),
    ("SwiGLU", "three matrices"),
    "RMS",
    True,
)
feet = [words_at(60, 424, "words + positions"), words_at(410, 424, "words")]
show_drawing(
    [*left, *right, *feet],
    690,
    436,
    alt="Two layers. In that of 2017 the norms sit on the stream; in today's they sit on the branches, before attention and before SwiGLU.",
)

# %% [markdown]
# | 2017 | today | what for | explained in |
# |---|---|---|---|
# | norm after the addition | norm before the sub-layer (pre-norm) | deep stacks train without drama | [layers](09_layers.ipynb#before-or-after-post-norm-and-pre-norm) |
# | LayerNorm | RMSNorm | less to compute | [layers](09_layers.ipynb#what-do-later-models-use-rmsnorm) |
# | sinusoids added to the words | queries and keys rotated (RoPE) | scores depend on distances | [positions](08_positional_encoding.ipynb#rotary-positions-rope) |
# | ReLU network | SwiGLU | lower loss at equal size | [feed-forward](06_feed_forward.ipynb#relu-and-swiglu-today) |
# | biases in networks and norms | none | stability in large models | below |
# | as many heads of keys as of queries | fewer (grouped queries) | a smaller KV cache | [decoding](19_decoding.ipynb#how-large-is-a-kv-cache) |
# | encoder and decoder | decoder only | one model for all texts | below |
#
# {numref}`fig-since` adds the column that such tables leave out: what each change bought on our own small task.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-since", "caption": "What does each change buy, here? Validation loss after 600 updates on Multi30k, against the paper's form (vertical line); left is better. Dots are means over the seeds, lines one standard error to either side, and numbers say both. All rows have about as many parameters. The last four rows combine changes, or have one stack instead of two. Measured by `benchmarks/experiments/since.py`."}}
lines = (
    Path("../benchmarks/results/since.jsonl").read_text(encoding="utf-8").splitlines()
)
settings, *log = map(json.loads, lines)
found = {}
for record in log:
    found.setdefault(record["change"], []).append(record["validation_loss"])
plain, *changes = found
gains = {}
for name in changes:
    differences = [loss - base for loss, base in zip(found[name], found[plain])]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    gains[name] = (statistics.mean(differences), error)


def gain_of(name):
    mean, error = gains[name]
    return f"{mean:+.2f} ± {error:.2f}".replace("-", "−")


rows = [
    {"change": n, "gain": round(m, 4), "low": m - e, "high": m + e, "label": gain_of(n)}
    for n, (m, e) in gains.items()
]
order = alt.Y(
    "change:N", sort=None, title=None, axis=alt.Axis(labelLimit=220, minExtent=175)
)
base = alt.Chart(alt.Data(values=rows))
dots = base.mark_point(filled=True, size=70, color=INK, opacity=1)
scale, axis = (
    alt.Scale(domain=[-0.65, 0.25], nice=False),
    alt.Axis(values=[-0.6, -0.4, -0.2, 0, 0.2]),
)
dots = dots.encode(
    alt.X("gain:Q", title="change of the loss, nats a token", scale=scale, axis=axis),
    order,
)
bars = base.mark_rule(strokeWidth=2).encode(alt.X("low:Q"), order, alt.X2("high:Q"))
names = base.mark_text(align="left", fontSize=11).encode(
    x=alt.value(310), y=order, text="label:N"
)
zero = (
    alt.Chart(alt.Data(values=[{"gain": 0}]))
    .mark_rule(color=RESIDUAL)
    .encode(x="gain:Q")
)
sizes = [record["parameters"] for record in log]
print(
    f"{plain}: {statistics.mean(found[plain]):.2f} nats a token; {settings['steps']} updates"
)
print(f"{min(sizes):,} to {max(sizes):,} parameters, {len(found[plain])} seeds")
assert max(sizes) / min(sizes) < 1.01 and len(found[plain]) >= 3
for name in ("pre-norm", "no positions", "rotary positions", "SwiGLU", "decoder-only"):
    assert gains[name][0] + 3 * gains[name][1] < 0
assert all(
    abs(gains[name][0]) < 2 * gains[name][1] for name in ("RMSNorm", "no biases")
)
show(
    (zero + bars + dots + names).properties(
        width=300,
        height={"step": 24},
        padding={"left": 5, "top": 5, "right": 30, "bottom": 5},
    ),
    alt="; ".join(f"{name}: {gain_of(name)}" for name in gains) + ".",
)

# %% [markdown]
# Pre-norm, SwiGLU and rotary positions lower the loss beyond doubt; so does leaving positions out, and [below](#rotary-positions) you see why that row is there. RMSNorm and the missing biases change it by about a standard error, and heads that share their keys seem to cost about a tenth of a nat. (With three seeds, it takes 4.3 standard errors to be sure, by [the rule of the variations](22_variations.ipynb#variations).) One stack does the work of two: slightly better in the paper's form, slightly worse with all five changes.
#
# Read this figure with suspicion. The model has two layers of width 64, the run takes a few minutes, and no row has had its learning rate tuned. A model that learns faster at the start needn't win in the end ([departures](../book/departures.md) explains this for an earlier run of this test). Nor should you expect more: {cite:t}`narang2021transformer` put some forty published changes into one code base, and found that most of them did nothing there. Gated networks and RMSNorm were among the few that helped.
#
# Now the changes one by one, each as the smallest step from the code you know. `compare` counts the lines that differ, and a hidden check makes sure that the code on this page is the code that was measured. Each section prints the gain, as `gain_of` reads it from the log, with its standard error.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the helper", "code_prompt_hide": "Hide the helper"}


def bare(tree):
    """Drop docstrings and annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns, body = None, node.body
            node.body = body[1:] if ast.get_docstring(node) else body
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def methods(part):
    """Return the methods of a class, or a function, as bare text."""
    own = (
        [part]
        if inspect.isfunction(part)
        else filter(inspect.isfunction, vars(part).values())
    )
    return [bare(ast.parse(textwrap.dedent(inspect.getsource(f)))) for f in own]


benchmark = ast.parse(
    Path("../benchmarks/experiments/since.py").read_text(encoding="utf-8")
)
measured = {
    bare(ast.parse(ast.unparse(node)))
    for node in ast.walk(benchmark)
    if isinstance(node, ast.FunctionDef)
}


def compare(new, old, chapter):
    """Print how many lines differ from an earlier part."""
    assert set(methods(new)) <= measured, "this is not what the benchmark measures"
    before, after = ("\n".join(methods(part)).splitlines() for part in (old, new))
    marks = [line[0] for line in ndiff(before, after)]
    written = marks.count("+")
    print(f"changed or new against chapter {chapter}: {written} of {len(after)} lines")
    assert 0 < written <= 15


# %% [markdown]
# ## Pre-norm
#
# It is already in the code: `Residual` has two forms, and `TransformerConfig(pre_norm=True)` takes the other one. [Layers](09_layers.ipynb#why-the-place-of-the-norm-matters) shows what that does to stream and gradients. The authors themselves moved the norm in their code four months after the paper, and GPT-2 {cite:p}`radford2019language` and nearly everything since has it before the sub-layer, and one more at the end of the stack, because the stream itself is never normalized.

# %%
print("pre-norm:", gain_of("pre-norm"))


# %% [markdown]
# ## RMSNorm
#
# LayerNorm subtracts the mean and divides by the standard deviation. RMSNorm {cite:p}`zhang2019root` leaves the mean where it is:


# %%
class RMSNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)


compare(RMSNorm, LayerNorm, chapter=9)
x = torch.randn(3, 8, dtype=torch.float64) + 1
by_hand = x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
print("RMSNorm:", gain_of("RMSNorm"))

# %% tags=["remove-cell"]
torch.testing.assert_close(RMSNorm(8).double()(x), by_hand)

# %% [markdown]
# The bias goes along with the mean. The case for it is economy: one sum fewer, and no second pass over the numbers to take the mean off. It was never meant to lower the loss, so an effect near zero is just what its authors promise.
#
# Leaving the mean in does no harm, either. A norm that removes it throws away one direction of the stream, the one in which all numbers are equal. Weights that want to ignore this direction can learn to.
#
# ## Rotary positions
#
# [Chapter 8](08_positional_encoding.ipynb#rotary-positions-rope) has the rotation. Here it is in the model. Self-attention turns its queries and keys, nothing is added to the words any more, and cross-attention stays as it was, since a place in a German sentence has no fixed distance from one in an English sentence.


# %%
def rotate(x):
    table = sinusoid(x.size(-2), x.size(-1)).to(x)
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class RotaryAttention(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        query = rotate(split_heads(self.query(query), self.heads))
        key = rotate(split_heads(self.key(key), self.heads))
        value = split_heads(self.value(value), self.heads)
        heads = F.scaled_dot_product_attention(query, key, value, mask)
        return self.output(merge_heads(heads))


compare(RotaryAttention, MultiHeadAttention, chapter=5)
attend = RotaryAttention(16, heads=2).double()
x = torch.randn(1, 6, 16, dtype=torch.float64)
before = torch.zeros(1, 9, 16).double()
later = torch.cat([before, x], dim=1)  # the same words, nine places on
seen = torch.ones(15, 15).bool()
seen[:, :9] = False
moved = (attend(later, later, later, seen)[:, 9:] - attend(x, x, x)).abs().max()
print(f"nine places on, the result differs by {moved:.5f}")
print("rotary positions:", gain_of("rotary positions"))
print("no positions:    ", gain_of("no positions"))

# %% tags=["remove-cell"]
assert moved < 1e-5  # positions are rounded to single precision
assert round(gains["no positions"][0], 2) == -0.23

# %% [markdown]
# Shift a text, and nothing changes: attention knows only distances. A cache keeps the keys as they are after the rotation, since the place of a word doesn't change later on.
#
# Most of this gain isn't the rotation's. With no positions at all, neither added nor rotated, the loss falls by 0.23: after 600 updates on captions, added sinusoids still do more harm than good, although [the grammar](08_positional_encoding.ipynb#what-it-buys) gains by them within 300. Rotation keeps the words clean and still says where they stand. Also, an added position enters the stream once, at the bottom, and has to survive all the norms and additions up to the layer that needs it. A rotation is applied afresh in every layer, and only where it is needed, in the scores.
#
# Texts have grown since. With the paper's constant of 10,000, no clock takes longer than 62,800 tokens for a turn, and most are far quicker. Llama 3 slowed the clocks by taking 500,000 for the constant, to make room for 131,072 tokens later on.
#
# ## SwiGLU
#
# The formula is in [chapter 6](06_feed_forward.ipynb#relu-and-swiglu-today). A unit of the old network can say how much of its pattern it found. In the gated one, a second pattern decides how much that counts, and the product lets a unit multiply two findings, for which the old form needs [many units](06_feed_forward.ipynb#why-wide-and-then-narrow-again). As a module, with two thirds of the units:


# %%
class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.gate = nn.Linear(d_model, 2 * d_ff // 3)
        self.linear1 = nn.Linear(d_model, 2 * d_ff // 3)
        self.linear2 = nn.Linear(2 * d_ff // 3, d_model)

    def forward(self, x):
        return self.linear2(F.silu(self.gate(x)) * self.linear1(x))


compare(SwiGLU, FeedForward, chapter=6)
for kind in (FeedForward, SwiGLU):
    count = sum(p.numel() for p in kind(64, 256).parameters())
    print(f"{kind.__name__:12} {count:,} parameters")
print("SwiGLU:", gain_of("SwiGLU"))

# %% [markdown]
# ## No biases
#
# The paper's projections in attention have no biases, and its networks and norms do. PaLM {cite:p}`chowdhery2023palm` left out all of them, and reports that training large models became more stable; Llama has none either. They hold few numbers, fewer than one in a thousand of the base model's:


# %%
def no_biases(model):
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            module.register_parameter("bias", None)


model = Transformer(TransformerConfig(37_000))
with_them = sum(p.numel() for p in model.parameters())
no_biases(model)
without = sum(p.numel() for p in model.parameters())
biases = with_them - without
print(f"{biases:,} of the base model's {with_them:,} parameters are biases")
print("no biases:", gain_of("no biases"))

# %% tags=["remove-cell"]
assert set(methods(no_biases)) <= measured

# %% [markdown]
# ## Grouped queries and the KV cache
#
# Training treats all positions at once, but writing goes word by word, and at each step the keys and values of all earlier words are fetched from memory ([decoding](19_decoding.ipynb#the-kv-cache) has the cache). For a long text, the fetching takes longer than the arithmetic. Grouped-query attention {cite:p}`ainslie2023gqa` keeps all heads of queries, and lets several of them share one head of keys and values:


# %%
class GroupedAttention(MultiHeadAttention):
    def __init__(self, d_model, heads, groups):
        super().__init__(d_model, heads)
        self.groups = groups
        width = groups * (d_model // heads)
        self.key = nn.Linear(d_model, width, bias=False)
        self.value = nn.Linear(d_model, width, bias=False)

    def forward(self, query, key, value, mask=None):
        query = split_heads(self.query(query), self.heads)
        key = split_heads(self.key(key), self.groups)
        value = split_heads(self.value(value), self.groups)
        share = self.heads // self.groups  # heads that ask the same keys
        key = key.repeat_interleave(share, dim=1)
        value = value.repeat_interleave(share, dim=1)
        heads = F.scaled_dot_product_attention(query, key, value, mask)
        return self.output(merge_heads(heads))


compare(GroupedAttention, MultiHeadAttention, chapter=5)
x = torch.randn(1, 100, 512)
for groups in (8, 2, 1):
    attend = GroupedAttention(512, heads=8, groups=groups)
    size = attend.key(x).nbytes + attend.value(x).nbytes  # what a cache keeps
    print(f"{groups} heads of keys: {size / 1024:3.0f} KiB for 100 words in one layer")
print("two heads of keys:", gain_of("two heads of keys"))
print("one head of keys: ", gain_of("one head of keys"))

# %% [markdown]
# The cache stays small because it keeps the few heads, and they are repeated only for the moment of use. (A fused kernel needn't even repeat them.) With fewer keys the layer has fewer weights, and in {numref}`fig-since` the networks get these back as extra units.
#
# In our model of four heads that is a technicality. In a large one it decides what fits on the machine:

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-kv-heads", "caption": "How much memory do keys and values take? GiB in 16 bits for one text of 131,072 tokens in a model shaped like Llama 3 70B: 80 layers, 64 heads of queries, each 128 wide. Eight heads of keys and values (filled) is what that model has."}}
layers, width, tokens = 80, 128, 131_072
cache = {
    heads: 2 * layers * heads * width * 2 * tokens / 2**30
    for heads in (64, 32, 16, 8, 4, 1)
}
rows = [
    {"heads": h, "size": size, "label": f"{size:.0f} GiB", "real": h == 8}
    for h, size in cache.items()
]
base = alt.Chart(alt.Data(values=rows)).encode(
    alt.Y("heads:O", sort=None, title="heads of keys and values"),
    alt.X("size:Q", title="KV cache, GiB", scale=alt.Scale(domain=[0, 360])),
)
fill = alt.condition("datum.real", alt.value(INK), alt.value(PAPER))
bars = base.mark_bar(stroke=INK, height={"band": 0.7}).encode(color=fill)
labels = base.mark_text(align="left", dx=5).encode(text="label:N")
for heads in (64, 8):
    print(f"a token, {heads:2} heads: {cache[heads] / tokens * 2**20:,.0f} KiB")
assert cache[64] == 320 and cache[8] == 40
show(
    (bars + labels).properties(height={"step": 26}),
    alt="With 64 heads of keys the cache takes 320 GiB, with 8 it takes 40, with one 5.",
)

# %% [markdown]
# With all 64 heads, the cache of one text would take 320 GiB, beside 131 for the weights. With eight it takes 40.
#
# ## Decoder-only
#
# The largest change is the simplest to say: throw the encoder away. In a **decoder-only model**, source and target become one text, `source </s> <s> target </s>`, and one stack of layers with a causal mask reads it. Cross-attention goes, too, because each word of the target can see the source to its left.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-one-text", "caption": "Who sees whom in one text? A row may look where there is a 1, and nowhere else. Choose: with a causal mask *Katze* can't see the verb that follows; with its source whole, as an encoder has it, it can. The target sees the source in both."}}
text = ["Katze", "mag", "Fisch", "</s>", "<s>", "cat", "likes", "fish"]
causal = torch.ones(8, 8).bool().tril()
whole = causal.clone()
whole[:4, :4] = True
charts = {
    name: (heatmap(mask.double(), text, text, mask.tolist(), limit=4), finding)
    for name, mask, finding in [
        (
            "causal",
            causal,
            "A triangle: every row sees itself and what is to its left.",
        ),
        ("source whole", whole, "The triangle, and a full square over the source."),
    ]
}
show_steps(charts, "Which mask?")


# %%
class DecoderOnly(Transformer):
    def __init__(self, config, layers):
        super().__init__(config)
        self.encoder = nn.Identity()
        # A stack of encoder layers: no cross-attention
        self.decoder = make_encoder(replace(config, layers=layers))
        initialize(self)

    def encode(self, source):
        return source

    def decode(self, target, memory, source):
        text = torch.cat([source, target], dim=1)
        padding_last = (text == PAD).int().argsort(dim=1, stable=True)
        text = text.gather(1, padding_last)
        states = self.decoder(self.embed(text), target_mask(text))
        length = (source != PAD).sum(dim=1, keepdim=True)
        place = length + torch.arange(target.size(1), device=text.device)
        return states.gather(1, place[..., None].expand(-1, -1, states.size(2)))


torch.manual_seed(0)
config = TransformerConfig(20, d_model=64, d_ff=320, heads=4)
one_stack = DecoderOnly(config, layers=4).double()
source = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
together = greedy_decode(one_stack, source, max_extra_tokens=3)
alone = greedy_decode(one_stack, source[1:, :2], max_extra_tokens=3)[0]
print("in company", together[1], " alone", alone)

# %% tags=["remove-cell"]
assert together[1] == alone

# %% [markdown]
# (The code that was measured also has the second mask; exercise 3 adds it.)
#
# The trick is to keep the two methods `encode` and `decode`. Training, validation and decoding of this book never notice that one stack stands behind them. The only care goes to padding. The source's would end up in the middle of the text and push the target's positions to the right, so a sort moves it to the end.
#
# Four of these layers with networks of 320 have exactly as many parameters as our two and two with 256.

# %%
for name in ("decoder-only", "decoder-only, source whole"):
    print(f"{name}: {gain_of(name)}")

# %% [markdown]
# Here one stack is ahead by a tenth of a nat, and seeing the source whole adds nothing. After 600 updates, that may only mean that one stack starts faster.
#
# Does translation lose by it? {cite:t}`zhang2022examining` compared both designs with care. A causal mask over the source and a loss on the source hurt; with the source seen whole, one stack comes out about level with two, and the gap narrows as models grow. So the reason for decoders alone isn't that they translate better. A model that continues texts can be trained on any text there is, without pairs, and translation, summary and answer are all continuations. {cite:t}`liu2018generating` were the first to drop the encoder, to write Wikipedia articles; GPT followed in the same year.
#
# ## All five at once
#
# Pre-norm, RMSNorm, rotary positions, SwiGLU and no biases together, in two stacks and in one:

# %%
parts = ["pre-norm", "RMSNorm", "rotary positions", "SwiGLU", "no biases"]
total = sum(gains[part][0] for part in parts)
print(f"the five effects add up to {total:+.2f}")
for name in ("all five", "decoder-only, all five"):
    print(f"{name}: {gain_of(name)}")

# %% tags=["remove-cell"]
assert total < 1.5 * gains["all five"][0]
assert gains["all five"][0] > gains["pre-norm"][0] - 0.1

# %% [markdown]
# All five bring little more than pre-norm alone, and not much over half of the sum; with them, one stack is no longer ahead. Changes needn't add up: two that cure the same illness are worth no more together than one of them. Perhaps most of the gain here is a faster start, which a model can have only once; the experiment doesn't tell.
#
# ## What has not changed
#
# The list of what stayed is longer. Scaled dot-product attention in several heads, with the root of $d_k$ and the softmax. A residual stream that each part reads and adds to. A network for each position, wider than the stream and with the same weights everywhere, alternating with attention. Tokens from subwords. The next token as the only task, all positions at once, with the causal mask. Adam with a warm-up, now as AdamW, which keeps weight decay out of the moments. (Dropout is mostly gone: a text that is read once can't be learned by heart.) The model that you have built would recognize its descendants.
#
# Newer models take the same ideas further. *QK-norm* puts an RMSNorm on queries and keys so that scores can't explode (OLMo 2, Qwen3). *Sliding windows* let most layers look back only so far (Gemma 3), which is the restricted self-attention that the paper proposes in section 4. *Multi-head latent attention* squeezes keys and values through a narrow matrix before they are kept (DeepSeek). Sebastian Raschka's *The Big LLM Architecture Comparison* draws them side by side.
#
# ### Why these, of the hundreds that were tried?
#
# Each of them is simple, costs next to nothing and gets along with the others. Most came without a theory: Shazeer's paper on gates credits divine benevolence, and the case for RMSNorm was made with a stopwatch. What they share is that they were still good when everything else had become a hundred times larger. A run of some minutes, like ours, can't test that. It can show you that the change is small, that the code is right, and what it is *not* needed for.
#
# ## FlashAttention in twelve lines
#
# One change doesn't alter a single result. [Speed](25_speed.ipynb#attention-without-the-matrix) derives the online softmax for one row and says why it saves time. Here is its forward pass, blocks of queries against blocks of keys; the backward pass computes the weights again in the same way. No matrix of $T \times S$ weights ever exists:


# %%
def flash(Q, K, V, block=16):
    output = torch.empty(len(Q), V.size(1), dtype=V.dtype)
    for i in range(0, len(Q), block):  # on a GPU, all of these at the same time
        q = Q[i : i + block] / math.sqrt(K.size(1))
        m, total, out = torch.full((len(q), 1), -math.inf).to(V), 0.0, 0.0
        for j in range(0, len(K), block):
            scores = q @ K[j : j + block].T
            larger = torch.maximum(m, scores.amax(dim=1, keepdim=True))
            weights = (scores - larger).exp()
            shrink = (m - larger).exp()
            m = larger
            total = shrink * total + weights.sum(dim=1, keepdim=True)
            out = shrink * out + weights @ V[j : j + block]
        output[i : i + block] = out / total
    return output


torch.manual_seed(0)
Q, K, V = (torch.randn(n, 64, dtype=torch.float64) for n in (100, 200, 200))
difference = (flash(Q, 5 * K, V) - (Q @ (5 * K).T / 8).softmax(dim=-1) @ V).abs().max()
print(f"largest difference from the softmax over whole rows: {difference:.12f}")

# %% tags=["remove-cell"]
assert difference < 1e-12

# %% [markdown]
# ## A model of today's kind
#
# Now everything together, written anew: a language model with pre-norm, RMSNorm, rotary positions, grouped queries, SwiGLU and not one bias. From the book it borrows `rotate`, the two functions that split and merge heads, and the shared embedding.


# %%
class Block(nn.Module):
    def __init__(self, d, heads, groups):
        super().__init__()
        self.heads = heads
        self.groups = groups
        kv = groups * d // heads
        inner = 8 * d // 3
        shapes = {"q": (d, d), "k": (d, kv), "v": (d, kv), "o": (d, d)}
        shapes |= {"gate": (d, inner), "up": (d, inner), "down": (inner, d)}
        self.maps = nn.ModuleDict()
        for name, shape in shapes.items():
            self.maps[name] = nn.Linear(*shape, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in range(2))

    def forward(self, x):
        m = self.maps
        y = self.norms[0](x)
        q = rotate(split_heads(m["q"](y), self.heads))
        k = rotate(split_heads(m["k"](y), self.groups))
        v = split_heads(m["v"](y), self.groups)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + m["o"](merge_heads(y))
        y = self.norms[1](x)
        return x + m["down"](F.silu(m["gate"](y)) * m["up"](y))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, d=96, heads=4, groups=2, layers=3):
        super().__init__()
        self.words = Embedding(vocabulary, d)
        self.norm = nn.RMSNorm(d)
        self.blocks = nn.Sequential(*(Block(d, heads, groups) for _ in range(layers)))

    def forward(self, tokens):
        return self.words.logits(self.norm(self.blocks(self.words(tokens))))

    @torch.no_grad()
    def generate(self, tokens, ends, temperature=1.0):
        while tokens.count(EOS) < ends and len(tokens) < 80:
            scores = self(torch.tensor([tokens]))[0, -1] / max(temperature, 1e-5)
            tokens = [*tokens, scores.softmax(dim=-1).multinomial(1).item()]
        return tokens


# %% [markdown]
# The book's [grammar](B_synchronous_grammar.ipynb) makes its training text: a German sentence, `</s>`, and its translation. (`DecoderOnly` had an `<s>` between them because our decoders begin with one; nothing needs it.) The loss is the plain one, on every next token. There's no mask for padding, either. Padding comes last, where a causal model never looks, and its labels don't count.

# %% tags=["nbval-ignore-output"]
pairs = grammar(10_200)
unseen, training = pairs[:200], pairs[200:]
tokenizer = Tokenizer.train(training, vocabulary_size=1500)
texts = []
for pair in training:
    source, target = tokenizer.encode(pair.source), tokenizer.encode(pair.target)
    texts.append(torch.tensor([BOS, *source, EOS, *target, EOS]))

torch.manual_seed(0)
language_model = LanguageModel(len(tokenizer))
adam = torch.optim.AdamW(language_model.parameters())
steps = 500
losses = []
for step in range(steps):
    adam.param_groups[0]["lr"] = 5e-3 * min((step + 1) / 50, 1, 1.02 - step / steps)
    drawn = [texts[i] for i in torch.randint(len(texts), (32,))]
    batch = pad_sequence(drawn, batch_first=True)
    logits = language_model(batch[:, :-1])
    labels = batch[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(loss.item())
print(f"{sum(p.numel() for p in language_model.parameters()):,} parameters")
print(f"loss {losses[0]:.2f} at first, {statistics.mean(losses[-20:]):.2f} at the end")

# %% tags=["remove-cell"]
assert statistics.mean(losses[-20:]) < 0.25 * losses[0]

# %% [markdown]
# Give it a German sentence, and it goes on in English. Give it nothing but `<s>`, and it makes up a German sentence first:

# %% tags=["nbval-ignore-output"]


def read_out(tokens):
    ends = [i for i, token in enumerate(tokens) if token in (BOS, EOS)]
    ends += [] if tokens[-1] == EOS else [len(tokens)]  # it ran out of room
    return "\n       -> ".join(
        tokenizer.decode(tokens[a + 1 : b]) for a, b in pairwise(ends)
    )


torch.manual_seed(1)
for pair in unseen[:3]:
    start = [BOS, *tokenizer.encode(pair.source), EOS]
    print("given: ", read_out(language_model.generate(start, ends=2, temperature=0)))
for _ in range(3):
    print("made up:", read_out(language_model.generate([BOS], ends=2, temperature=0.8)))

# %% [markdown]
# In our run one of the three is right, one has *a* for *this*, and one begins well and then makes up something that could follow. The made-up German has the right order and wrong forms, such as *haben* for *hat*. Compare this with [chapter 1](01_in_ten_minutes.ipynb#train-one-yourself), where a Transformer of 2017 learned from the same grammar. It had been told which sentence is the source. This one was told nothing: that a translation follows the first `</s>` is something it found in the texts.
#
# It's a translator, though nothing in it is made for translating. `source </s>` is its prompt. Make it wider and deeper, let it read ten trillion tokens instead of ten thousand sentences, and you have what the models that people talk to start from. (Then the hard part begins, which is data and machines.)
#
# ## Where to go from here
#
# - **Build a larger one.** Andrej Karpathy's *nanoGPT* trains GPT-2 in two short files, and Sebastian Raschka's *Build a Large Language Model (From Scratch)* devotes a book to it. *How To Scale Your Model*, by engineers of Google DeepMind, explains how one trains on thousands of chips.
# - **Other uses of the same block.** BERT keeps only the encoder and T5 both stacks {cite:p}`raffel2020exploring`; the Vision Transformer reads patches of pictures as words.
# - **Larger without more work per token.** In a *mixture of experts*, each token passes through a few of many feed-forward networks: a linear map of the token chooses one or two, and a softmax weighs what they return. Weights grow, and the work per token hardly does, but all experts must be in memory, and an extra loss keeps them evenly used (Shazeer and others, in the same year as the paper; later Switch Transformer, Mixtral).
# - **How large, on how much text?** Look for *scaling laws*: Kaplan and others, then Hoffmann and others, whose model is called Chinchilla.
# - **From continuing to answering.** InstructGPT describes how a language model learns to follow instructions, LoRA how to fine-tune one cheaply.
# - **Without attention's square.** Mamba and other state space models carry a state from word to word again, and can still be trained in parallel. [Chapter 2](02_before_attention.ipynb) is the story that they reopen.
#
# ## What to remember
#
# - A layer of today is the one of 2017 with the norm on the branch and without its mean, positions in the scores, a gate in the network, fewer keys, and no biases.
# - Each of these is at most fifteen lines away from the code of this book.
# - Grouped queries and RMSNorm are there for memory and time; pre-norm, for depth. A lower loss isn't the only reason to change a part.
# - One causal stack over `source </s> target` can replace encoder and decoder, because translating is one way of continuing a text.
#
# ## Exercises
#
# **1. By hand** (★, 5 min). What do LayerNorm and RMSNorm make of $(1, 7)$, with gain 1, bias 0 and no $\varepsilon$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The mean is 4 and the deviation 3: LayerNorm gives (-1, 1). The mean square is (1 + 49) / 2 = 25: RMSNorm divides by 5
# and gives (0.2, 1.4). With two numbers LayerNorm leaves only the sign of a difference, RMSNorm their ratio.
x = torch.tensor([1.0, 7.0])
for norm in (F.layer_norm, F.rms_norm):
    print([round(v, 2) for v in norm(x, (2,)).tolist()])

# %% [markdown]
# **2. How many users?** (★, 10 min). A machine has 640 GiB, of which the 70-billion-parameter model of {numref}`fig-kv-heads` takes 131 GiB in 16 bits. How many conversations of 8,192 tokens fit beside it, with 64 heads of keys and with 8?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 8,192 is a sixteenth of 131,072, so a conversation takes 320 / 16 = 20 GiB, or 40 / 16 = 2.5 GiB.
for heads in (64, 8):
    print(heads, "heads:", int((640 - 131) // (cache[heads] / 16)), "conversations")

# %% [markdown]
# **3. See the source whole** (★★, 20 min). Give `DecoderOnly` the second mask of {numref}`fig-one-text`, for a batch with padding. Check that a word at the end of the source now changes what is computed for its first word, and that no word of the target does.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A position is early if it lies within the source; two early ones may see each other. `benchmarks/experiments/since.py` has it, too.


def whole_source_mask(text, source):
    early = torch.arange(text.size(1)) < (source != PAD).sum(dim=1, keepdim=True)
    return target_mask(text) | (early[:, None, :, None] & early[:, None, None, :])


def first_state(text):
    with torch.no_grad():
        mask = whole_source_mask(text, text[:, :3])
        return one_stack.eval().decoder(one_stack.embed(text), mask)[0, 0]


start = torch.tensor([[5, 6, EOS, BOS, 9]])
for place in (1, 4):
    other = start.clone()
    other[0, place] = 11
    change = (first_state(other) - first_state(start)).norm()
    print(f"word {place} changes the first state by {change:.2f}")
assert torch.equal(first_state(other), first_state(start))

# %% [markdown]
# **4. Skip the future** (★★, 20 min). Make `flash` causal. Which blocks need a mask, which none, and which can be left out? Compare with `scaled_dot_product_attention(..., is_causal=True)`.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Blocks left of the diagonal need no mask, those on it a triangle, and those right of it are skipped: nearly half of all.


def causal_flash(Q, K, V, block=16):
    output = torch.empty_like(V)
    for i in range(0, len(Q), block):
        q = Q[i : i + block] / math.sqrt(K.size(1))
        m, total, out = torch.full((len(q), 1), -math.inf).to(V), 0.0, 0.0
        for j in range(0, i + 1, block):
            scores = q @ K[j : j + block].T
            if i == j:
                scores = scores.masked_fill(
                    ~torch.ones_like(scores).bool().tril(), -math.inf
                )
            larger = torch.maximum(m, scores.amax(dim=1, keepdim=True))
            weights = (scores - larger).exp()
            shrink = (m - larger).exp()
            m = larger
            total = shrink * total + weights.sum(dim=1, keepdim=True)
            out = shrink * out + weights @ V[j : j + block]
        output[i : i + block] = out / total
    return output


Q = torch.randn(200, 64, dtype=torch.float64)
difference = causal_flash(Q, K, V) - F.scaled_dot_product_attention(
    Q, K, V, is_causal=True
)
print(f"largest difference {difference.abs().max():.12f}")
assert difference.abs().max() < 1e-12

# %% [markdown]
# **5. A cache for thirty lines** (★★★, 90 min). `generate` computes all positions anew for each token. Let `Block` keep its rotated keys and its values, and rotate the newest query by its own place. Measure the time for 80 tokens before and after.
#
# **6. Your own row** (★★★, an evening, open). Add a change of your own to `CHANGES` in `benchmarks/experiments/since.py`: parallel sub-layers as in PaLM, a norm on queries and keys, learned positions, GELU. Write down what you expect before you start the run, and take five seeds.
#
# ## Sources
#
# Pre-norm: {cite:t}`xiong2020layer`; RMSNorm: {cite:t}`zhang2019root`; rotary positions: {cite:t}`su2021roformer`; gates: {cite:t}`shazeer2020glu`; shared keys: {cite:t}`shazeer2019fast`, {cite:t}`ainslie2023gqa`. Most together, without biases: {cite:t}`chowdhery2023palm` and {cite:t}`touvron2023llama`. The blocks are those of {cite:t}`dao2022flashattention`. Which changes last was asked by {cite:t}`narang2021transformer`, and one stack was compared with two by {cite:t}`zhang2022examining`.
