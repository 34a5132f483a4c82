# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Since 2017
#
# This chapter goes through what has changed in the Transformer since the paper, each change with the problem that it answers, and ends with a language model of today's kind.
#
# Here is the main part of the settings of a model whose weights are public, Llama 3 8B of 2024:
#
# ```json
# {
#   "vocab_size": 128256,
#   "hidden_size": 4096,
#   "num_hidden_layers": 32,
#   "num_attention_heads": 32,
#   "num_key_value_heads": 8,
#   "intermediate_size": 14336,
#   "hidden_act": "silu",
#   "rms_norm_eps": 1e-05,
#   "rope_theta": 500000.0,
#   "attention_bias": false,
#   "tie_word_embeddings": false
# }
# ```
#
# How many lines can you explain? `hidden_size` is $d_\text{model}$, `intermediate_size` is $d_\text{ff}$, and layers, heads and vocabulary are old friends. Which part of the paper's model isn't mentioned at all? Look once more before you read on.
#
# It is the encoder: no setting speaks of a second stack, or of attention to one. The lines that are new to you are changes within a layer. With $x$ for the residual stream, LN for LayerNorm and RMS for RMSNorm,
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
# This is a layer of Llama {cite:p}`touvron2023llama` and, with small variations, of most models whose weights are public.

# %% tags=["hide-input"]
import ast
import inspect
import math
import statistics
import textwrap
from dataclasses import replace
from difflib import ndiff

import altair as alt
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import LayerNorm
from annotated_transformer.masks import target_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    make_encoder,
    greedy_decode,
    initialize,
)
from benchmarks.common import read_log
from benchmarks.experiments import since
from book.figures import AMBER, PAPER, PLUM, RESIDUAL, SKY, arrow, box, heatmap, plus
from book.figures import show, show_drawing, show_steps, stream, words_at

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-since-layers", "caption": "What has changed in a layer? Left: the encoder layer of 2017. Right: a layer of a language model of today. Both are read from the bottom up, and the thick gray line is the residual stream. Norms have left the stream for the branches, positions have moved from the bottom into each attention, and the network has a gate. Not drawn: today's attention looks back only."}}


def layer(x, title, attention, network, norm, pre):
    yield words_at(x + 70, 18, title, 15)
    yield stream([(x, 384), (x, 28)])
    for y, (name, below) in ((258, attention), (98, network)):
        yield box(x + 24, y, 122, 54, name, below)
        yield arrow([(x + 85, y), (x + 85, y - 24), (x + 10, y - 24)])
        yield plus(x, y - 24)
        if pre:
            yield arrow([(x, y + 88), (x + 85, y + 88), (x + 85, y + 54)])
            yield box(x + 57, y + 68, 56, 24, norm)
        else:
            yield arrow([(x, y + 78), (x + 85, y + 78), (x + 85, y + 54)])
            yield box(x - 28, y - 62, 56, 24, norm)


ReLU = ("ReLU", "two matrices")
gated = ("SwiGLU", "three matrices")
left = layer(30, "2017", ("attention", "h heads of keys"), ReLU, "norm", False)
right = layer(204, "today", ("attention", "fewer keys, rotated"), gated, "RMS", True)
feet = [words_at(58, 404, "words + positions", 12), words_at(204, 404, "words", 12)]
show_drawing(
    [*left, *right, *feet],
    354,
    412,
    alt="Two layers. In that of 2017 the norms sit on the stream; in today's they sit on the branches, before attention and before SwiGLU.",
)

# %% [markdown]
# | problem | 2017 | today |
# |---|---|---|
# | pairs of sentences are rare, plain text is not | encoder and decoder | decoder only |
# | deep stacks are hard to train | norm after the addition | before the sub-layer (pre-norm) |
# | norms cost time | LayerNorm | RMSNorm |
# | scores should depend on distances | sinusoids added to the words | queries and keys rotated (RoPE) |
# | more from the same number of weights | ReLU network | SwiGLU |
# | large models get unstable | biases | none |
# | keys and values fill the memory | a head of keys for each head of queries | fewer (grouped queries) |
#
# ## Decoder-only
#
# A Transformer that translates learns from pairs. A **decoder-only model** learns from any text there is, because its one task is to go on with a text. Translation is a special case: source and target become one text, `source </s> target </s>`, and one stack of layers with a causal mask reads it. The encoder goes, and cross-attention with it, because each word of the target can see the source to its left.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-one-text", "caption": "Who sees whom in one text? A row may look where there is a 1, and nowhere else. Choose: with a causal mask *Katze* can't see the verb that follows; with its source whole, as an encoder has it, it can. The target sees the source in both."}}
text = ["Katze", "mag", "Fisch", "</s>", "cat", "likes", "fish"]
causal = torch.ones(7, 7).bool().tril()
whole = causal.clone()
whole[:4, :4] = True
charts = {
    name: (
        heatmap(mask.double(), text, text, mask.tolist(), limit=3, color=SKY),
        finding,
    )
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

# %% [markdown]
# Does translation lose by it? {cite:t}`zhang2022examining` compared both designs with care: one stack that sees the source whole comes out about level with two, and what difference there is shrinks as models grow. So decoders alone don't translate better. They can be trained on everything.
#
# ## Pre-norm
#
# In a deep post-norm stack the gradients are uneven at the start, and training needs a careful warm-up. With the norm on the branch, the stream runs through the whole stack untouched ([layers](09_layers.ipynb#before-or-after-post-norm-and-pre-norm)). The authors moved the norm in their own code four months after the paper. Since GPT-2 {cite:p}`radford2019language` nearly all models have it there, with one more norm at the end of the stack.
#
# ## RMSNorm
#
# LayerNorm subtracts the mean and divides by the standard deviation. RMSNorm {cite:p}`zhang2019root` leaves the mean where it is and divides by the root mean square, $\sqrt{\frac{1}{D} \sum_i x_i^2}$. The bias goes along with the mean.
#
# ## Rotary positions
#
# An added position enters the stream once, at the bottom, shares its room with the words, and has to survive all layers. RoPE {cite:p}`su2021roformer` adds nothing. In each layer it turns queries and keys by angles that grow with the position, so that of the two positions [only the distance](08_positional_encoding.ipynb#rotary-positions-rope) enters a score. `rope_theta` is the constant that the paper sets to 10,000. With a larger one the angles grow more slowly, which makes room for longer texts.
#
# ## SwiGLU
#
# A unit of the paper's network says how much of its pattern it has found. In a gated network {cite:p}`shazeer2020glu` a second pattern decides how much that counts:
#
# $$ \text{SwiGLU}(x) = \left(\text{SiLU}(x\, W_\text{gate}) \odot x\, W_\text{up}\right) W_\text{down} $$
#
# There are three matrices instead of two. With [two thirds of the units](06_feed_forward.ipynb#relu-and-swiglu-today) they have as many weights as the two had. At a width of 4,096 that would be 10,923 units; Llama 3 8B takes more, 14,336. `hidden_act` names SiLU, $z \cdot \text{sigmoid}(z)$, a ReLU with a round corner.
#
# ## No biases
#
# The paper has biases in its networks and norms. PaLM {cite:p}`chowdhery2023palm` left them all out and reports that large models became more stable; Llama has none either. Little is lost: fewer than one in a thousand weights of the base model is a bias.
#
# ## Grouped queries and the KV cache
#
# A model that writes keeps the keys and values of all earlier tokens in [a cache](19_decoding.ipynb#the-kv-cache), and each step has to fetch them. In long conversations the cache can outgrow the model. So several heads of queries share one head of keys and values {cite:p}`ainslie2023gqa`: in the settings above, 32 heads share 8 (`num_key_value_heads`). In a model of 70 billion parameters one sees why:

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
    alt.X("size:Q", title="KV cache, GiB", scale=alt.Scale(domain=[0, 400])),
)
fill = alt.condition("datum.real", alt.value(SKY), alt.value(PAPER))
bars = base.mark_bar(stroke=SKY, height={"band": 0.7}).encode(color=fill)
labels = base.mark_text(align="left", dx=5).encode(text="label:N")
show(
    (bars + labels).properties(width=265, height={"step": 26}),
    alt="With 64 heads of keys the cache takes 320 GiB, with 8 it takes 40, with one 5.",
)

# %% tags=["remove-cell"]
if CHECKING:
    assert cache[64] == 320 and cache[8] == 40

# %% [markdown]
# With all 64 heads, the cache of one text of 131,072 tokens would take 320 GiB, beside 131 for the weights. With eight it takes 40.
#
# ## What each change buys, here
#
# Tables like the one above leave out what each change is worth. We've trained the paper's form and twelve others on Multi30k, each from three seeds, and compare their validation losses as in [chapter 22](22_variations.ipynb): seed by seed, with 95% intervals.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-since", "caption": "What does each change buy, here? Validation loss after 600 updates on Multi30k, against the paper's form (vertical line), in nats per token; left is better. Lines are 95% intervals from three seeds. An open dot marks an interval that holds zero. All rows have about as many parameters; the last four combine changes, or have one stack instead of two. Measured by `benchmarks/experiments/since.py`."}}
settings, *log = read_log("since")
found = {}
for record in log:
    found.setdefault(record["change"], []).append(record["validation_loss"])
plain, *changes = found


def compared(name, with_what=plain):
    """Return the mean difference and the half of its 95% interval, as chapter 22 does."""
    d = [a - b for a, b in zip(found[name], found[with_what], strict=True)]
    return statistics.mean(d), 4.30 * statistics.stdev(d) / math.sqrt(len(d))


gains = {name: compared(name) for name in changes}


def gain_of(name):
    mean, error = gains[name]
    return f"{mean:+.2f} ± {error:.2f}".replace("-", "−")


shown = {
    "decoder-only, source whole": "one stack, source whole",
    "decoder-only": "one stack",
    "decoder-only, all five": "one stack, all five",
}
rows = [
    {
        "change": shown.get(n, n),
        "gain": round(m, 4),
        "low": round(m - e, 4),
        "high": round(m + e, 4),
        "label": gain_of(n),
        "sure": abs(m) > e,
    }
    for n, (m, e) in gains.items()
]
order = alt.Y(
    "change:N", sort=None, title=None, axis=alt.Axis(labelLimit=150, minExtent=134)
)
base = alt.Chart(alt.Data(values=rows))
scale = alt.Scale(domain=[-0.75, 0.3], nice=False)
axis = alt.Axis(values=[-0.6, -0.3, 0, 0.3])
title = "change of the loss, nats per token"
fill = alt.condition("datum.sure", alt.value(SKY), alt.value(PAPER))
dots = base.mark_point(filled=True, size=60, stroke=SKY, opacity=1).encode(
    alt.X("gain:Q", title=title, scale=scale, axis=axis), order, fill=fill
)
bars = base.mark_rule(strokeWidth=2, color=SKY).encode(
    alt.X("low:Q"), order, alt.X2("high:Q")
)
names = base.mark_text(align="left", fontSize=11).encode(
    x=alt.value(130), y=order, text="label:N"
)
zero = (
    alt.Chart(alt.Data(values=[{"gain": 0}]))
    .mark_rule(color=RESIDUAL)
    .encode(x="gain:Q")
)
show(
    (zero + bars + dots + names).properties(
        width=125,
        height={"step": 24},
        padding={"left": 5, "top": 5, "right": 62, "bottom": 5},
    ),
    alt="; ".join(f"{name}: {gain_of(name)}" for name in gains) + ".",
)

# %% tags=["remove-cell"]
if CHECKING:
    sizes = [record["parameters"] for record in log]
    assert max(sizes) / min(sizes) < 1.01 and all(
        len(runs) == 3 for runs in found.values()
    )
    clear = {name for name, (mean, error) in gains.items() if abs(mean) > error}
    assert set(changes) - clear == {
        "RMSNorm",
        "two heads of keys",
        "one head of keys",
        "no biases",
    }
    for name in ("pre-norm", "SwiGLU", "all five", "decoder-only, all five"):
        assert gains[name][0] < 0 and -gains[name][0] > 1.7 * gains[name][1]
    for name in ("no positions", "rotary positions"):
        assert gains[name][0] < 0 and -gains[name][0] < 1.2 * gains[name][1]
    assert round(gains["rotary positions"][0], 2) == -0.32
    assert round(gains["no positions"][0], 2) == -0.23
    mean, error = compared("rotary positions", "no positions")
    assert round(mean, 2) == -0.10 and abs(mean) < error
    assert len(changes) == 12 and round(gains["pre-norm"][0], 2) == -0.47
    assert round(gains["all five"][0], 2) == -0.54
    one, two = "decoder-only, all five", "all five"
    mean, error = compared(one, two)
    assert round(mean, 2) == 0.08 and mean > 2 * error

# %% [markdown]
# The intervals of pre-norm, of SwiGLU and of all five changes together (pre-norm, RMSNorm, rotation, SwiGLU, no biases), with two stacks or one, are well clear of zero. RMSNorm, missing biases and shared keys can't be told from no change at all. None of them was meant to lower the loss.
#
# Rotary positions need care: their interval, −0.32 ± 0.31, ends just below zero, and *no positions at all* gains nearly as much, −0.23 ± 0.19. Of twelve intervals that are each right 19 times in 20, one may well be wrong, so we call neither settled. If both hold, much of what rotation gains comes from leaving the words alone.
#
# All five changes together gain little more than pre-norm by itself, 0.54 against 0.47. Two changes that help against the same trouble needn't add up. In the paper's form one stack seems ahead of two, by 0.11 ± 0.08; with all five changes on both sides it is behind, by 0.08 ± 0.03.
#
# Read the figure with suspicion. The model has two layers of width 64, the run takes minutes, and no row has had its learning rate tuned. It tells you what learns faster at the start, not what wins after weeks. In larger experiments most published changes do nothing: {cite:t}`narang2021transformer` put some forty into one code base, and gated networks and RMSNorm were among the few that helped.
#
# ## How they are trained
#
# The task is still the next token, and the optimizer still Adam, now as AdamW: in each step it also pulls every weight a little towards zero (*weight decay*). Three questions have got new answers.
#
# **How large a model, on how much text?** {cite:t}`hoffmann2022training` trained some four hundred models. For a given amount of computation, they found, model and text should grow alike, with about 20 tokens per parameter; their *Chinchilla* has 70 billion parameters and read 1.4 trillion tokens. If a model will be used a lot, it pays to make it smaller and train it longer: Llama 3 8B read 15 trillion, some 1,900 tokens per parameter. The paper's base model, with 63 million, reads 2.5 billion target tokens, 40 per parameter, though the same sentences many times.
#
# **Must the end be known in advance?** Most models let the rate fall along half a cosine, which reaches its lowest point at a planned last step. Whoever stops earlier, or goes on, has trained on the wrong curve. *Warmup-stable-decay* (WSD, {cite:t}`hu2024minicpm`) keeps the rate constant for as long as one likes, and lets it fall only in a short last part, which may start from any checkpoint.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-wsd", "caption": "When does the rate fall? Three schedules with the same peak. The paper's (dotted) falls from the end of the warm-up and has no end. A cosine (dashed) has its last step built in. Warmup-stable-decay (solid) waits, then falls in the last fifth."}}
steps, warmup = 10_000, 1000


def rates(n):
    up = min(n / warmup, 1)
    done = max(n - warmup, 0) / (steps - warmup)
    yield "paper", up * math.sqrt(warmup / max(n, warmup))
    yield "cosine", up * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
    yield "WSD", min(up, (steps - n) / (0.2 * steps))


records = [
    {"step": n, "rate": round(rate, 3), "schedule": name}
    for n in range(0, steps + 1, 200)
    for name, rate in rates(n)
]
axis = alt.Axis(values=[0, 2500, 5000, 7500, 10_000])
axes = (
    alt.X("step:Q", title="step", axis=axis),
    alt.Y("rate:Q", title="rate ÷ peak"),
)
looks = {"paper": (PLUM, [2, 2]), "cosine": (AMBER, [6, 3]), "WSD": (SKY, [1, 0])}
places = {"paper": (2400, 0.5), "cosine": (6500, 0.66), "WSD": (5000, 0.93)}
layers = []
for name, (color, dash) in looks.items():
    rows = [row for row in records if row["schedule"] == name]
    line = alt.Chart(alt.Data(values=rows)).mark_line(color=color, strokeDash=dash)
    step, rate = places[name]
    place = alt.Chart(alt.Data(values=[{"step": step, "rate": rate}]))
    layers += [
        line.encode(*axes),
        place.mark_text(text=name, color=color).encode(*axes),
    ]
show(
    alt.layer(*layers).properties(width=285, height=170),
    alt="After the warm-up the paper's rate falls at once, the cosine slowly and then fast, and WSD stays at the peak for four fifths of the steps.",
)

# %% [markdown]
# **Should each weight be treated on its own?** Adam divides each weight's gradient by its usual size, as if a matrix were a list of numbers. But a matrix works as a whole: its gradient pushes hard along a few directions and hardly along the others. *Muon* {cite:p}`jordan2024muon` averages the gradients and then makes all directions equally strong, for the matrices within the layers; embeddings and norms stay with AdamW. {cite:t}`liu2025muon` report the loss of AdamW for about half the computation. [A fold below](#second-reading-muon-on-one-gradient) shows it on one gradient.
#
# And dropout is mostly gone: a text that is read once can't be learned by heart.
#
# ## A model of today's kind
#
# Now everything together: the [decoder alone](24_decoder_alone.ipynb) with all the changes, made of PyTorch's parts. From the book come only `split_heads` and `merge_heads`; `rotate`, folded here, turns queries and keys by their places ([RoPE](08_positional_encoding.ipynb#rotary-positions-rope)). (Exercise 1 asks you to write `Block` first.)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show rotate and the imports", "code_prompt_hide": "Hide rotate and the imports"}
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.multi_head_attention import merge_heads, split_heads
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.synchronous_grammar import grammar
from torch.nn.utils.rnn import pad_sequence


def rotate(x):
    table = sinusoid(x.size(-2), x.size(-1)).to(x)
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


# %%
def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self, d, heads, groups, inner):
        super().__init__()
        self.heads = heads
        self.groups = groups
        d_kv = groups * (d // heads)
        self.norm1 = nn.RMSNorm(d)
        self.q = linear(d, d)
        self.k = linear(d, d_kv)
        self.v = linear(d, d_kv)
        self.o = linear(d, d)
        self.norm2 = nn.RMSNorm(d)
        self.gate = linear(d, inner)
        self.up = linear(d, inner)
        self.down = linear(inner, d)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.network(self.norm2(x))

    def attention(self, x):
        q = rotate(split_heads(self.q(x), self.heads))
        k = rotate(split_heads(self.k(x), self.groups))
        v = split_heads(self.v(x), self.groups)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(merge_heads(y))

    def network(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, d=96, heads=4, groups=2, inner=256, layers=3):
        super().__init__()
        self.words = nn.Embedding(vocabulary, d)
        blocks = [Block(d, heads, groups, inner) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.RMSNorm(d)
        self.out = linear(d, vocabulary)

    def forward(self, tokens):
        return self.out(self.norm(self.blocks(self.words(tokens))))


# %% [markdown]
# `forward` of the block is {eq}`eq-today`, word for word. `out` is a matrix of its own, which is what `tie_word_embeddings: false` says. Is it the model of the settings above? We give it their numbers and count, on PyTorch's `meta` device, where tensors have shapes and take no memory:

# %%
with torch.device("meta"):
    llama = LanguageModel(128_256, 4096, heads=32, groups=8, inner=14_336, layers=32)
print(f"{sum(p.numel() for p in llama.parameters()):,} parameters")

# %% tags=["remove-cell"]
if CHECKING:
    assert sum(p.numel() for p in llama.parameters()) == 16_060_522_496 // 2

# %% [markdown]
# The published weights take 16,060,522,496 bytes, two per parameter: these lines make a model of the right size, to the last weight.
#
# Now a small one learns. The book's [grammar](B_synchronous_grammar.ipynb) makes its text: a German sentence, `</s>`, its translation, `</s>`. The schedule is WSD, in one line. Nothing masks the padding, because it comes last, where a causal model never looks, and its labels don't count.

# %% tags=["nbval-ignore-output"]
pairs = grammar(10_200)
unseen, training = pairs[:200], pairs[200:]
tokenizer = Tokenizer.train(training, vocabulary_size=1500)
texts = []
for pair in training:
    source, target = tokenizer.encode(pair.source), tokenizer.encode(pair.target)
    texts.append(torch.tensor([BOS, *source, EOS, *target, EOS]))
texts.sort(key=len)  # neighbors in length need little padding

torch.manual_seed(0)
model = LanguageModel(len(tokenizer))
adam = torch.optim.AdamW(model.parameters())
steps, losses = 400, []
for step in range(steps):
    rate = 0.005 * min((step + 1) / 50, 1, (steps - step) / 100)
    adam.param_groups[0]["lr"] = rate
    first = torch.randint(len(texts) - 32, ()).item()
    batch = pad_sequence(texts[first : first + 32], batch_first=True, padding_value=PAD)
    logits = model(batch[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=PAD)
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(loss.item())
for end in (50, steps - 100, steps):  # after the warm-up, before the decay, at the end
    mean = sum(losses[end - 50 : end]) / 50
    print(f"steps {end - 49:3} to {end:3}: loss {mean:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert statistics.mean(losses[350:]) < 0.25 * losses[0]
    assert statistics.mean(losses[350:]) < statistics.mean(losses[250:300]) - 0.1

# %% [markdown]
# Give it a German sentence, and it goes on in English. Give it nothing but `<s>`, and it makes up a German sentence first:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def go_on(tokens, temperature):
    added = []
    while EOS not in added and len(added) < 40:
        logits = model(torch.tensor([tokens + added]))[0, -1]
        shares = (logits / temperature).softmax(dim=-1)
        added.append(shares.multinomial(1).item())
    return added


def translated(german):
    start = [BOS, *tokenizer.encode(german), EOS]
    return tokenizer.decode(go_on(start, temperature=0.01))


short = [pair for pair in unseen if len(pair.source) < 50][:40]
for pair in short[:3]:
    print(f"{pair.source}\n    -> {translated(pair.source)}")
exact = sum(translated(pair.source) == pair.target for pair in short)
print(f"{exact} of {len(short)} short sentences are right to the word")
made_up = go_on([BOS], temperature=0.8)
print("made up:", tokenizer.decode(made_up))
print("    ->", tokenizer.decode(go_on([BOS, *made_up], temperature=0.01)))

# %% tags=["remove-cell"]
if CHECKING:
    assert 15 <= exact <= 38, exact

# %% [markdown]
# None of these sentences was in its texts. In the run shown, it takes the dog in the second one for another bird. The German that it makes up is right, with *anrufen* at the end, as *kann* requires; in other tries it gets a form wrong now and then.
#
# Compare this with [chapter 1](01_in_ten_minutes.ipynb#train-one-yourself), where a Transformer of 2017 learned from the same grammar. It had been told which sentence is the source. This one was told nothing: that a translation follows the first `</s>` is something it found in the texts. It's a translator, though nothing in it is made for translating. `source </s>` is its prompt. Make it wider and deeper, let it read fifteen trillion tokens instead of ten thousand pairs of sentences, and you have what the models that people talk to start from.
#
# ## What has not changed
#
# More has stayed than has changed: scaled dot-product attention in several heads, a residual stream that each part reads and adds to, a network for each position, wider than the stream, tokens from subwords, and the next token as the task, at all positions at once, with the causal mask.
#
# Newer models go on from here. Many have *mixtures of experts*: each token chooses a few of many feed-forward networks, so that the weights grow and the work per token hardly does. [The last fold](#second-reading-why-these-and-where-to-go-from-here) says more about them, and about three smaller changes.

# %% [markdown]
# ## What to remember
#
# - A layer of today is the one of 2017 with the norm on the branch and without its mean, positions in the scores, a gate in the network, fewer keys, and no biases.
# - Each change answers a problem, and lower loss is only one of them: grouped queries and RMSNorm are there for memory and time, pre-norm for depth.
# - One causal stack over `source </s> target` can replace encoder and decoder, because translating is one way of continuing a text.

# %% [markdown]
# ## Exercises
#
# **1. Write it first** (★★, 30 min, before you read the code). Write `Block` from {eq}`eq-today` and the settings at the top, with `nn.Linear`, `nn.RMSNorm` and `F.scaled_dot_product_attention`. How many parameters has one block of Llama 3 8B?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The code is above. By hand: two maps of 4096 x 4096, two of 4096 x 1024, three of 4096 x 14,336, two norms of 4096.
by_hand = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096
print(f"{by_hand:,}")

# %% tags=["remove-cell"]
if CHECKING:
    assert by_hand == sum(p.numel() for p in llama.blocks[0].parameters())

# %% [markdown]
# **2. By hand** (★, 5 min). What do LayerNorm and RMSNorm make of $(1, 7)$, with gain 1, bias 0 and no $\varepsilon$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The mean is 4 and the deviation 3: LayerNorm gives (-1, 1). The mean square is (1 + 49) / 2 = 25: RMSNorm divides by 5
# and gives (0.2, 1.4). With two numbers LayerNorm leaves only the sign of a difference, RMSNorm their ratio.
x = torch.tensor([1.0, 7.0])
for norm in (F.layer_norm, F.rms_norm):
    print([round(v, 2) for v in norm(x, (2,)).tolist()])

# %% [markdown]
# **3. How many users?** (★, 10 min). A machine has 640 GiB, of which the 70-billion-parameter model of {numref}`fig-kv-heads` takes 131 GiB in 16 bits. How many conversations of 8,192 tokens fit beside it, with 64 heads of keys and with 8?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 8,192 is a sixteenth of 131,072, so a conversation takes 320 / 16 = 20 GiB, or 40 / 16 = 2.5 GiB.
for heads in (64, 8):
    print(heads, "heads:", int((640 - 131) // (cache[heads] / 16)), "conversations")

# %% [markdown]
# **4. See the source whole** (★★, 20 min). Write the second mask of {numref}`fig-one-text` for a batch of texts with padding. Give it to a stack of this book's encoder layers, and check that a word at the end of the source now changes what is computed for its first word, and that no word of the target does.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A position is early if it lies within the source; two early ones may see each other. `benchmarks/experiments/since.py` has it, too.


def whole_source_mask(text, source):
    early = torch.arange(text.size(1)) < (source != PAD).sum(dim=1, keepdim=True)
    return target_mask(text) | (early[:, None, :, None] & early[:, None, None, :])


torch.manual_seed(0)
one_stack = Transformer(TransformerConfig(20, d_model=64, d_ff=320, heads=4)).eval()


def first_state(text):
    with torch.no_grad():
        mask = whole_source_mask(text, text[:, :3])
        return one_stack.encoder(one_stack.embed(text), mask)[0, 0]


start = torch.tensor([[5, 6, EOS, BOS, 9]])
for place in (1, 4):
    other = start.clone()
    other[0, place] = 11
    change = (first_state(other) - first_state(start)).norm()
    print(f"word {place} changes the first state by {change:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert torch.equal(first_state(other), first_state(start))

# %% [markdown]
# **5. A cache** (★★★, 90 min). `go_on` computes all positions anew for each token. Let `Block` keep its rotated keys and its values, and rotate the newest query by its own place. Measure the time for 40 tokens before and after.
#
# **6. Your own row** (★★★, an evening, open). Add a change of your own to `CHANGES` in `benchmarks/experiments/since.py`: parallel sub-layers as in PaLM, a norm on queries and keys, learned positions, GELU. Write down what you expect before you start the run, and take five seeds.

# %% [markdown]
# ## Second reading: the changes in this book's model
#
# :::{admonition} Each change as the smallest step from the code you know
# :class: dropdown
# These are the parts that were measured for {numref}`fig-since`. `compare` counts the lines that differ from an earlier chapter's. A check that isn't shown makes sure that all parts but `DecoderOnly` are the code that was measured; the measured one has one more setting, `whole`.
#
# - **RMSNorm** keeps every direction of the stream. LayerNorm removes one, in which all numbers are equal; weights that want to ignore it can learn to.
# - **Rotation** is applied in self-attention. Cross-attention stays as it was, since a place in a German sentence has no fixed distance from one in an English sentence. The check moves a text nine places on, and nothing changes. A cache keeps the keys as they are after the rotation, since the place of a word doesn't change later on. With the paper's 10,000 no clock takes longer than 62,800 tokens for a turn, and most are far quicker; Llama 3 takes 500,000.
# - **SwiGLU** lets a unit multiply two findings, for which the old form needs [many units](06_feed_forward.ipynb#why-wide-and-then-narrow-again).
# - **Grouped queries**: the cache stays small because it keeps the few heads, and they are repeated only for the moment of use. (A fused kernel needn't even repeat them.) With fewer keys the layer has fewer weights, and in {numref}`fig-since` the networks get these back as extra units.
# - **One stack**: `DecoderOnly` keeps the two methods `encode` and `decode`, so training, validation and decoding of this book never notice that one stack stands behind them. Because this book's decoders begin with `<s>`, the text has one between source and target. The only care goes to padding. The source's would end up in the middle of the text and push the target's positions to the right, so a sort moves it to the end. Four of these layers with networks of 320 have exactly as many parameters as our two and two with 256.
# :::

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


def compare(new, old, chapter):
    """Print how many lines differ from an earlier part."""
    before, after = ("\n".join(methods(part)).splitlines() for part in (old, new))
    marks = [line[0] for line in ndiff(before, after)]
    written = marks.count("+")
    print(f"changed or new against chapter {chapter}: {written} of {len(after)} lines")


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show RMSNorm", "code_prompt_hide": "Hide RMSNorm"}
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
if CHECKING:
    torch.testing.assert_close(RMSNorm(8).double()(x), by_hand)


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show rotary attention", "code_prompt_hide": "Hide rotary attention"}
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
if CHECKING:
    assert moved < 1e-5  # positions are rounded to single precision


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show SwiGLU", "code_prompt_hide": "Hide SwiGLU"}
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


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show a model without biases", "code_prompt_hide": "Hide a model without biases"}
def no_biases(model):
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            module.register_parameter("bias", None)


base_model = Transformer(TransformerConfig(37_000))
with_them = sum(p.numel() for p in base_model.parameters())
no_biases(base_model)
without = sum(p.numel() for p in base_model.parameters())
biases = with_them - without
print(f"{biases:,} of the base model's {with_them:,} parameters are biases")
print("no biases:", gain_of("no biases"))

# %% tags=["remove-cell"]
if CHECKING:
    assert biases / with_them < 0.001
    assert abs(with_them - 63e6) < 0.1e6  # 40 target tokens per parameter
    assert (
        round(100_000 * 25_000 / with_them) == 40 and round(15e12 / 8.03e9, -2) == 1900
    )


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show grouped queries", "code_prompt_hide": "Hide grouped queries"}
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


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show one stack", "code_prompt_hide": "Hide one stack"}
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
if CHECKING:
    assert together[1] == alone
    measured = {
        bare(ast.parse(ast.unparse(node)))
        for node in ast.walk(ast.parse(inspect.getsource(since)))
        if isinstance(node, ast.FunctionDef)
    }
    for part in (RMSNorm, RotaryAttention, rotate, SwiGLU, GroupedAttention, no_biases):
        assert set(methods(part)) <= measured, part

# %% [markdown]
# ## Second reading: Muon on one gradient
#
# :::{admonition} A matrix whose directions are all equally strong, in six lines
# :class: dropdown
# Any matrix is a sum of directions, each with a strength, its singular value. In the last gradient of a matrix of our language model the ten strongest of 96 directions have about 60% of the squared strength. To set all of them to 1 one could compute the singular values, which is slow. Muon gets close with products alone: it applies a polynomial of fifth degree to the matrix five times, with coefficients chosen so that small strengths grow fast and all end up near 1. (The coefficients are those of {cite:t}`jordan2024muon`, chosen for speed: strengths end up roughly between 0.7 and 1.2, which is good enough.) Muon does this to a running average of the gradients, and the step is the result times the rate. It keeps one average for each weight, where Adam keeps two. PyTorch has it as `torch.optim.Muon` since version 2.9.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the six lines", "code_prompt_hide": "Hide the six lines"}


def equalize(matrix):
    x = matrix / matrix.norm()
    for _ in range(5):
        square = x.T @ x
        x = 3.4445 * x - 4.775 * x @ square + 2.0315 * x @ square @ square
    return x


gradient = model.blocks[len(model.blocks) // 2].up.weight.grad
for name, matrix in (("gradient", gradient), ("equalized", equalize(gradient))):
    strength = torch.linalg.svdvals(matrix)
    share = strength[:10].square().sum() / strength.square().sum()
    print(f"{name:9}: ten of {len(strength)} directions have {share:.0%},", end=" ")
    print(f"strongest ÷ weakest = {strength[0] / strength[-1]:.1f}")

# %% tags=["remove-cell"]
if CHECKING:
    before, after = (torch.linalg.svdvals(m) for m in (gradient, equalize(gradient)))
    assert 0.5 < before[:10].square().sum() / before.square().sum() < 0.77
    assert after.min() > 0.6 and after.max() < 1.25

# %% [markdown]
# ## Second reading: why these, and where to go from here
#
# :::{admonition} Why these changes, of the hundreds that were tried?
# :class: dropdown
# Each of them is simple, costs next to nothing and gets along with the others. Most came without a theory: Shazeer's paper on gates credits divine benevolence, and the case for RMSNorm was made with a stopwatch. What they share is that they were still good when everything else had become a hundred times larger. A run of some minutes, like ours, can't test that.
# :::
#
# :::{admonition} Books, code and papers that go on from here
# :class: dropdown
# - **Build a larger one.** Andrej Karpathy's *nanoGPT* trains GPT-2 in two short files, and Sebastian Raschka's *Build a Large Language Model (From Scratch)* devotes a book to it; his *The Big LLM Architecture Comparison* draws the newer models side by side. *How To Scale Your Model*, by engineers of Google DeepMind, explains how one trains on thousands of chips.
# - **Other uses of the same block.** BERT keeps only the encoder and T5 both stacks {cite:p}`raffel2020exploring`; the Vision Transformer reads patches of pictures as words.
# - **Mixtures of experts.** The idea is from 1991 (Jacobs and others); in the same year as the paper, Shazeer and others let each token choose a few of many experts. A linear map of the token chooses the experts, and a softmax weighs what they return. All experts must be in memory, and something has to keep them evenly used. Mixtral of 2023 chooses two of eight, Qwen3's largest model eight of 128, and DeepSeek-V3 eight of 256.
# - **Three smaller changes.** *QK-norm* puts an RMSNorm on queries and keys so that scores can't explode (OLMo 2, Qwen3). *Sliding windows* let most layers look back only so far (Gemma 3), as the paper itself proposes in section 4. *Multi-head latent attention* squeezes keys and values through a narrow matrix before they are kept (DeepSeek).
# - **From continuing to answering.** InstructGPT describes how a language model learns to follow instructions, LoRA how to fine-tune one cheaply.
# - **Without attention's square.** Mamba and other state space models carry a state from word to word again, and can still be trained in parallel. [Chapter 2](02_before_attention.ipynb) is the story that they reopen.
# :::

# %% [markdown]
# ## Sources
#
# Pre-norm: {cite:t}`xiong2020layer`; RMSNorm: {cite:t}`zhang2019root`; rotary positions: {cite:t}`su2021roformer`; gates: {cite:t}`shazeer2020glu`; shared keys: {cite:t}`shazeer2019fast`, {cite:t}`ainslie2023gqa`. Most together, without biases: {cite:t}`chowdhery2023palm` and {cite:t}`touvron2023llama`. The settings and the size of Llama 3 8B are those of the files `config.json` and `model.safetensors.index.json` that Meta published with the weights. Which changes last was asked by {cite:t}`narang2021transformer`, and one stack was compared with two by {cite:t}`zhang2022examining`. Size and text: {cite:t}`hoffmann2022training`; warmup-stable-decay: {cite:t}`hu2024minicpm`; Muon: {cite:t}`jordan2024muon`, {cite:t}`liu2025muon`.
