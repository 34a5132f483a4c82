# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Since 2017
#
# This chapter explains the settings of a language model of today, measures what each change since the paper brings to a small model, and builds the whole.
#
# Here is the main part of the settings of Llama 3 8B, a model of 2024 whose weights are public:
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
# How many lines can you explain? `hidden_size` is $d_\text{model}$, `intermediate_size` is $d_\text{ff}$, and layers, heads and vocabulary are old friends. Half of the paper's model isn't mentioned at all. Which half? Look once more before you read on.
#
# It is the encoder: no line speaks of a second stack. What is left is the [decoder alone](24_decoder_alone.ipynb). The lines that are new to you change the inside of a layer. With $x$ for the residual stream, LN for LayerNorm and RMS for RMSNorm,
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
# The last two lines are a layer of Llama {cite:p}`touvron2023llama` and, with small variations, of most models whose weights are public.

# %% tags=["hide-input"]
import math
import random
import statistics

import altair as alt
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.multi_head_attention import merge_heads, split_heads
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from book.figures import PAPER, RESIDUAL, SKY, arrow, box, plus
from book.figures import show, show_drawing, stream, words_at

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-since-layers", "caption": "What has changed in a layer? Left: the encoder layer of 2017. Right: a layer of a language model of today. Both are read from the bottom up, and the thick gray line is the residual stream. Not drawn: today's attention looks back only."}}


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
# ## Seven changes, seven problems
#
# | problem | 2017 | today |
# |---|---|---|
# | pairs of sentences are rare, plain text is not | encoder and decoder | decoder only |
# | deep stacks are hard to train | norm after the addition | before the sub-layer (pre-norm) |
# | norms cost time | LayerNorm | RMSNorm |
# | scores should depend on distances | sinusoids added to the words | queries and keys rotated (RoPE) |
# | more from the same number of weights | ReLU network | SwiGLU |
# | large models get unstable | biases | none |
# | keys and values fill the memory | each head of queries has its own keys and values | several heads share them (grouped queries) |
#
# ### Decoder-only
#
# A decoder alone learns from any text there is. Translating becomes a special case: source and target are one text, `source </s> target </s>`, in which each word of the target sees the source to its left, as it did by cross-attention.
#
# Does the translation suffer? {cite:t}`zhang2022examining` compared both designs with care. If the words of the source may see each other in both directions, as in an encoder, one stack comes out about level with two.
#
# ### Pre-norm
#
# In a deep post-norm stack the gradients are uneven at the start, and training needs a careful warm-up. With the norm on the branch, the stream runs through the whole stack untouched ([layers](09_layers.ipynb#before-or-after-post-norm-and-pre-norm)). Since GPT-2 {cite:p}`radford2019language` nearly all models have it there, with one more norm at the end of the stack.
#
# ### RMSNorm
#
# LayerNorm subtracts the mean and divides by the standard deviation. RMSNorm {cite:p}`zhang2019root` leaves the mean where it is and divides by the root mean square, $\sqrt{\frac{1}{D} \sum_i x_i^2}$. (`rms_norm_eps` is added under the root, so that nothing is divided by zero.)
#
# ### Rotary positions
#
# An added position enters the stream once, at the bottom. There it shares the room with the words, and it has to survive all layers. RoPE {cite:p}`su2021roformer` adds nothing. Instead each layer turns its queries and keys by angles that grow with the position, pair of columns by pair of columns:


# %%
def rotate(x):
    table = sinusoid(x.size(-2), x.size(-1)).to(x)
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


# %% [markdown]
# The angles are those of the paper's [sinusoids](08_positional_encoding.ipynb#the-code). If both sides of a dot product are turned, only the difference of the angles is left. So only the distance between two positions enters a score. We put the same query and the same key at each of 20 places and look at three scores:

# %%
torch.manual_seed(0)
query, key = torch.randn(2, 64).double()
scores = rotate(query.expand(20, 64)) @ rotate(key.expand(20, 64)).T
for i, j in [(3, 1), (12, 10), (12, 1)]:
    print(f"query at {i:2}, key at {j:2}: score {scores[i, j]:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert abs(scores[3, 1] - scores[12, 10]) < 1e-4 < abs(scores[12, 1] - scores[3, 1])

# %% [markdown]
# `rope_theta` is the constant that the paper sets to 10,000. With a larger one the angles grow more slowly, which makes room for longer texts.
#
# ### SwiGLU
#
# A unit of the paper's network says how much of its pattern it has found. In a gated network {cite:p}`shazeer2020glu` a second pattern decides how much that counts:
#
# $$ \text{SwiGLU}(x) = \left(\text{SiLU}(x\, W_\text{gate}) \odot x\, W_\text{up}\right) W_\text{down} $$
#
# With two thirds of the units (1,365 instead of 2,048), the three matrices have about as many weights as the two had. `hidden_act` names SiLU, $z \cdot \text{sigmoid}(z)$, a ReLU with a round corner.
#
# ### No biases
#
# The paper has biases in its networks and norms. PaLM {cite:p}`chowdhery2023palm` left them all out and reports that large models became more stable; Llama has none either (`attention_bias` is `false`). In the base model, fewer than one weight in a thousand is a bias.

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer.transformer import Transformer, preset

    with torch.device("meta"):
        of_base = dict(Transformer(preset("base")).named_parameters())
    size_of_base = sum(weights.numel() for weights in of_base.values())
    biases = sum(w.numel() for name, w in of_base.items() if name.endswith("bias"))
    assert 0 < biases < size_of_base / 1000
    assert 2 * 80 * 64 * 128 * 131_072 * 2 == 320 * 2**30
    assert round(100_000 * 25_000 / size_of_base) == 40  # target tokens per parameter
    assert round(15e12 / 8.03e9, -2) == 1900

# %% [markdown]
# ### Grouped queries and the KV cache
#
# A model that writes keeps the keys and values of all earlier tokens in [a cache](19_decoding.ipynb#the-kv-cache), and each step has to fetch them. So several heads of queries share one head of keys and values, in **grouped-query attention** {cite:p}`ainslie2023gqa`: in the settings above, 32 heads share 8 (`num_key_value_heads`).
#
# Llama 3.1 70B shows why. It has 80 layers with 64 heads of queries, each 128 wide. If it had 64 heads of keys and values as well, those of one text of 131,072 tokens would take $2 \cdot 80 \cdot 64 \cdot 128 \cdot 131{,}072$ numbers of two bytes, or 320 GiB, more than twice as much as the weights with their 131 GiB. It has 8, which take 40 GiB.
#
# ## What each change buys, here
#
# We have trained a small model on Multi30k in the paper's form and in eleven others, for 600 updates, from three seeds each (`benchmarks/experiments/changes.py`). Which change would you bet on, if the loss is what counts? As in [the variations](22_variations.ipynb#a-difference-and-how-far-to-trust-it), we take the differences of the validation losses seed by seed, and their mean with its 95% interval:

# %%
from benchmarks.common import read_log

log = {}
for run in read_log("changes")[1:]:  # after the settings
    log.setdefault(run["change"], {})[run["seed"]] = run["validation_loss"]


def gain(change, against="the paper's form"):
    d = [log[change][seed] - log[against][seed] for seed in (0, 1, 2)]
    return statistics.mean(d), 4.30 * statistics.stdev(d) / math.sqrt(3)


mean, half = gain("pre-norm")
print(f"pre-norm: {mean:.2f} ± {half:.2f} nats per token")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-since", "caption": "What does each change buy, here? Change of the validation loss against the paper's form (vertical line); left is better. Lines are 95% intervals from three seeds. An open dot marks an interval that holds zero. All rows have about as many parameters. Rotation is in self-attention only. \"All five\" are pre-norm, RMSNorm, rotation, SwiGLU and no biases; the last two rows have one stack instead of two."}}
shown = {
    "pre-norm": "pre-norm",
    "RMSNorm": "RMSNorm",
    "no positions": "no positions",
    "rotary positions": "rotary positions",
    "SwiGLU": "SwiGLU",
    "two heads of keys": "two heads of keys",
    "one head of keys": "one head of keys",
    "no biases": "no biases",
    "all five": "all five",
    "decoder-only": "one stack",
    "decoder-only, all five": "one stack, all five",
}
gains = {name: gain(name) for name in shown}
rows = [
    {
        "change": shown[name],
        "gain": round(mean, 4),
        "low": round(mean - half, 4),
        "high": round(mean + half, 4),
        "label": f"{mean:+.2f} ± {half:.2f}".replace("-", "−"),
        "sure": abs(mean) > half,
    }
    for name, (mean, half) in gains.items()
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
    alt="; ".join(f"{row['change']}: {row['label']}" for row in rows) + ".",
)

# %% [markdown]
# Pre-norm, SwiGLU and all five changes together, with two stacks or one, lower the loss clearly. RMSNorm, missing biases and shared keys can't be told from no change at all, and none of them was meant to lower it: they are there for time, stability and memory.
#
# Rotation seems to lower the loss, too, but its interval just holds zero. And leaving out the sinusoids without any replacement already brings a good part of that, with an interval that doesn't. Two reasons are likely: the causal mask [tells the decoder something about the order](08_positional_encoding.ipynb#doesnt-the-causal-mask-tell-the-order), and the words have the stream to themselves. Do the distances that rotation brings add anything?

# %%
mean, half = gain("rotary positions", against="no positions")
print(f"rotation against no positions: {mean:.2f} ± {half:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    from benchmarks.experiments import changes

    assert len(shown) == 11  # "source whole" is in the log and not on the page
    assert {*shown, "decoder-only, source whole"} == {"pre-norm", *changes.SINCE}
    sizes = [
        run["parameters"]
        for run in read_log("changes")[1:]
        if run["change"] in {changes.PLAIN, *shown}
    ]
    assert len(sizes) == 3 * 12 and max(sizes) / min(sizes) < 1.01
    clear = {name for name, (mean, half) in gains.items() if abs(mean) > half}
    # CHECK AFTER RUN: "lower the loss clearly"
    for name in ("pre-norm", "SwiGLU", "all five", "decoder-only, all five"):
        assert gains[name][0] < -1.5 * gains[name][1], name
    # CHECK AFTER RUN: "can't be told from no change at all"
    for name in ("RMSNorm", "no biases", "two heads of keys", "one head of keys"):
        assert name not in clear, name
    # CHECK AFTER RUN: "gains a good part of that"
    assert gains["rotary positions"][0] < gains["no positions"][0] < 0
    assert gains["no positions"][0] < 0.4 * gains["rotary positions"][0]
    # CHECK AFTER RUN: "Three seeds can't tell"
    mean, half = gain("rotary positions", against="no positions")
    assert abs(mean) < half
    # CHECK AFTER RUN: "ahead by 0.11 ± 0.06", "behind by 0.09 ± 0.03"
    behind = gain("decoder-only, all five", against="all five")
    one_stack = [gains["decoder-only"], behind]
    rounded = [[round(x, 2) for x in pair] for pair in one_stack]
    assert rounded == [[-0.11, 0.06], [0.09, 0.03]]

# %% [markdown]
# Three seeds can't tell. Whether one stack beats two depends on the rest: in the paper's form it is ahead by 0.11 ± 0.06, and with all five changes on both sides it is behind by 0.09 ± 0.03.
#
# Read all this with suspicion. Of eleven intervals that are each right 19 times in 20, one may well be wrong. And a run of a minute, with two layers of width 64, tells you what learns faster at the start, not what wins after weeks. In larger experiments most published changes do nothing: {cite:t}`narang2021transformer` put some forty into one code base, and gated networks and RMSNorm were among the few that helped.
#
# ## How they are trained
#
# The task is still the next token, and the optimizer still Adam, now as [AdamW](16_schedule.ipynb#what-do-models-of-today-use). Dropout is mostly gone, because a text that is read once can't be learned by heart. Two questions have new answers.
#
# **How large a model, on how much text?** For a given amount of computation, {cite:t}`hoffmann2022training` found, model and text should grow alike, with about 20 tokens per parameter. If a model will be used a lot, it pays to make it smaller and train it longer: Llama 3 8B read 15 trillion tokens, some 1,900 per parameter. The paper's base model reads 2.5 billion target tokens, 40 per parameter, though the same sentences many times.
#
# **Must the end be known in advance?** For the usual schedule, yes: after the warm-up the rate comes down along half a wave of a **cosine**, which reaches its lowest point at a planned last step. *Warmup-stable-decay* (WSD, {cite:t}`hu2024minicpm`) keeps the rate constant for as long as one likes, and lets it fall only in a short last part, which may start from any checkpoint.

# %% [markdown]
# ## A model of today's kind
#
# Everything together, made of PyTorch's parts. From the book come only `split_heads`, `merge_heads` and the `rotate` from above.
#
# **Exercise 1. Write it first** (★★, 30 min). Before you read on, write `Block` from {eq}`eq-today` and the settings at the top, with `nn.Linear`, `nn.RMSNorm` and `F.scaled_dot_product_attention`. By hand: how many parameters has one block of Llama 3 8B?


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


# %% [markdown]
# `forward` is {eq}`eq-today`, word for word. With `enable_gqa=True`, each head of keys and values serves its whole group of queries. The model puts a table below the blocks, and a norm and an output matrix above them, which is one of its own: that is what `tie_word_embeddings: false` says.


# %%
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
# Is it the model of the settings? We count, on the `meta` device, where tensors take no memory:

# %%
with torch.device("meta"):
    llama = LanguageModel(128_256, 4096, heads=32, groups=8, inner=14_336, layers=32)
print(f"{sum(p.numel() for p in llama.parameters()):,} parameters")

# %% tags=["remove-cell"]
if CHECKING:
    assert sum(p.numel() for p in llama.parameters()) == 16_060_522_496 // 2
    # The parts that were measured compute the same as those of Block
    tried = Block(64, heads=4, groups=2, inner=170)
    x_tried = torch.randn(2, 7, 64)
    gate = changes.SwiGLU(64, 256)
    gate.gate.weight, gate.linear1.weight = tried.gate.weight, tried.up.weight
    gate.linear2.weight = tried.down.weight
    changes.no_biases(gate)
    torch.testing.assert_close(tried.network(x_tried), gate(x_tried))
    torch.testing.assert_close(rotate(x_tried), changes.rotate(x_tried))
    norm = changes.RMSNorm(64)
    torch.testing.assert_close(nn.RMSNorm(64)(x_tried), norm(x_tried))
    grouped = changes.GroupedAttention(64, 4, 2)
    heads_tried = [
        split_heads(grouped.query(x_tried), 4),
        split_heads(grouped.key(x_tried), 2),
        split_heads(grouped.value(x_tried), 2),
    ]
    mixed = F.scaled_dot_product_attention(*heads_tried, enable_gqa=True)
    torch.testing.assert_close(
        grouped.output(merge_heads(mixed)), grouped(x_tried, x_tried, x_tried)
    )

# %% [markdown]
# The published weights take 16,060,522,496 bytes, two per parameter: these lines make a model of the right size, to the last weight.
#
# ### Each text once
#
# Now a small one learns. The book's [grammar](B_synchronous_grammar.ipynb) makes its texts, each a German sentence, `</s>`, its translation, `</s>`. Texts of about the same length share a batch, and the batches are shuffled. There is only one epoch.

# %%
pairs = grammar(13_000)
unseen, training = pairs[:200], pairs[200:]
tokenizer = Tokenizer.train(training, vocabulary_size=1500)
texts = []
for pair in training:
    source, target = tokenizer.encode(pair.source), tokenizer.encode(pair.target)
    texts.append(torch.tensor([BOS, *source, EOS, *target, EOS]))
texts.sort(key=len)
batches = []
for i in range(0, len(texts), 16):
    rows = texts[i : i + 16]
    batches.append(pad_sequence(rows, batch_first=True, padding_value=PAD))
random.seed(0)
random.shuffle(batches)

# %% [markdown]
# The schedule is WSD, in one line. Nothing masks the padding, because it comes last, where a causal model never looks, and its labels don't count.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
model = LanguageModel(len(tokenizer))
adam = torch.optim.AdamW(model.parameters())
steps, losses = len(batches), []
for step, batch in enumerate(batches):
    rate = 0.005 * min((step + 1) / 50, 1, (steps - step) / 200)
    adam.param_groups[0]["lr"] = rate
    logits = model(batch[:, :-1]).flatten(0, 1)
    loss = F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=PAD)
    adam.zero_grad()
    loss.backward()
    adam.step()
    losses.append(loss.item())
for end in (50, steps - 200, steps):  # after the warm-up, before the decay, at the end
    mean = sum(losses[end - 50 : end]) / 50
    print(f"steps {end - 49:3} to {end:3}: loss {mean:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert statistics.mean(losses[750:]) < 0.25 * losses[0]
    assert statistics.mean(losses[750:]) < statistics.mean(losses[550:600]) - 0.1

# %% [markdown]
# ### Translating by going on
#
# If we begin with a German sentence, it goes on in English. If we begin with `<s>` alone, it makes up a German sentence first:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def go_on(tokens, temperature=0.01):  # so cold that it takes the best
    added = []
    while EOS not in added and len(added) < 40:
        logits = model(torch.tensor([tokens + added]))[0, -1]
        shares = (logits / temperature).softmax(dim=-1)
        added.append(shares.multinomial(1).item())
    return added


def translated(german):
    return tokenizer.decode(go_on([BOS, *tokenizer.encode(german), EOS]))


short = [pair for pair in unseen if len(pair.source) < 50][:40]
for pair in short[:3]:
    print(f"{pair.source}\n    -> {translated(pair.source)}")
exact = sum(translated(pair.source) == pair.target for pair in short)
print(f"{exact} of {len(short)} short sentences are right to the word")
made_up = go_on([BOS], temperature=0.8)
print("made up:", tokenizer.decode(made_up))
print("    ->", tokenizer.decode(go_on([BOS, *made_up])))

# %% tags=["remove-cell"]
if CHECKING:
    assert exact >= 14, exact

# %% [markdown]
# None of these sentences was in its texts, and it has read each text once. The Transformer of [the first chapter](01_in_ten_minutes.ipynb#train-one-yourself), which learned from the same grammar, had been told which sentence is the source. This one was told nothing: that a translation follows the first `</s>` is something it found in the texts. `source </s>` is its prompt.
#
# ## What has not changed
#
# More has stayed than has changed: attention in several heads, a residual stream that each part reads and adds to, a network for each position, tokens from subwords, and the next token as the task, at all positions at once, under the causal mask. Make the model above wider and deeper and let it read fifteen trillion tokens, and you have the kind of model from which a chat assistant is made.
#
# ## What to remember
#
# - A layer of today differs from that of 2017 in six ways: the norm stands on the branch, it subtracts no mean, positions enter in the scores, the network has a gate, heads share keys and values, and there are no biases.
# - A lower loss is only one reason for a change: grouped queries and RMSNorm are there for memory and time, pre-norm for depth.
# - One causal stack over `source </s> target` can replace encoder and decoder, because translating is one way of continuing a text.
#
# ## Exercises
#
# **1. Write it first** is [above](#a-model-of-todays-kind), and so is its solution.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Two maps of 4096 x 4096, two of 4096 x 1024, three of 4096 x 14,336, two norms of 4096.
by_hand = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096
print(f"{by_hand:,}")

# %% tags=["remove-cell"]
if CHECKING:
    assert by_hand == sum(p.numel() for p in llama.blocks[0].parameters())

# %% [markdown]
# **2. Two norms** (★, 5 min). By hand: what do LayerNorm and RMSNorm make of $(1, 7)$, with gain 1, bias 0 and no $\varepsilon$?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The mean is 4 and the deviation 3: LayerNorm gives (-1, 1).
# The mean square is (1 + 49) / 2 = 25: RMSNorm divides by 5 and gives (0.2, 1.4).
# With two numbers LayerNorm leaves only the sign of a difference, RMSNorm their ratio.
x = torch.tensor([1.0, 7.0])
for norm in (F.layer_norm, F.rms_norm):
    print([round(v, 2) for v in norm(x, (2,)).tolist()])

# %% [markdown]
# **3. How many users?** (★, 10 min). A machine has 640 GiB, of which the weights of Llama 3.1 70B take 131 GiB in 16 bits. How many conversations of 8,192 tokens fit beside them, with 64 heads of keys and with 8?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# 8,192 is a sixteenth of 131,072, so a conversation takes 320 / 16 = 20 GiB, or 40 / 16 = 2.5 GiB.
for heads, size in ((64, 20), (8, 2.5)):
    print(heads, "heads:", int((640 - 131) // size), "conversations")

# %% [markdown]
# ## Further
#
# ### Where to go from here
#
# Newer models go on:
#
# - **Mixtures of experts.** Each token chooses a few of many feed-forward networks, so the weights grow and the work per token hardly does. Mixtral of 2023 chooses two of eight, DeepSeek-V3 eight of 256.
# - **Norms in attention.** *QK-norm* puts an RMSNorm on queries and keys so that scores can't explode (OLMo 2, Qwen3).
# - **Less to keep.** *Sliding windows* let most layers look back only so far (Gemma 3), as the paper itself proposes in section 4. *Multi-head latent attention* squeezes keys and values through a narrow matrix before they are kept (DeepSeek).
# - **From continuing to answering.** InstructGPT describes how a language model learns to follow instructions, and LoRA how to fine-tune one cheaply.
# - **A state again.** Mamba and others carry a state from word to word, as [before attention](02_before_attention.ipynb), and can still be trained in parallel.
#
# To build a larger one, read Andrej Karpathy's *nanoGPT* or Sebastian Raschka's *Build a Large Language Model (From Scratch)*, and *How To Scale Your Model* for thousands of chips.
#
# ## Sources
#
# Why pre-norm trains more easily is explained by {cite:t}`xiong2020layer`. That all heads of queries share one head of keys and values was proposed by {cite:t}`shazeer2019fast`. The settings and the size of Llama 3 8B are those of the files `config.json` and `model.safetensors.index.json` that Meta published with the weights.
