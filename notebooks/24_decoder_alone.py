# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown] needs=["multi30k"]
# # The decoder alone
#
# This chapter removes from the Transformer everything that serves the source, and trains the rest, a small GPT, on plain text.
#
# The book's translator of captions expects a German sentence. What does it write if there is none? Its source holds nothing but `</s>`, the end:

# %%
import torch

from annotated_transformer import load_pretrained
from annotated_transformer.masks import EOS
from annotated_transformer.transformer import greedy_decode

translator, its_tokenizer = load_pretrained("captions-de-en")
said = greedy_decode(translator, torch.tensor([[EOS]]))[0]
print(its_tokenizer.decode(said))

# %% tags=["remove-cell"]
if CHECKING:
    assert its_tokenizer.decode(said) == "A woman is walking."

# %% [markdown]
# Nobody has mentioned a woman, or walking, and yet that is an English sentence, and even a caption. So the decoder has learned two things: to say what the source says, and how captions go. The second needs no source, so it can be learned without pairs of sentences. Pairs are rare, and plain text is everywhere.
#
# Suppose that we only want the second. Before you look at the figure: which parts of the Transformer have lost their job? The base model has 63 million parameters. How many of them would you keep?

# %% tags=["hide-input"]
import math

import altair as alt
import torch.nn.functional as F

from annotated_transformer import Tokenizer
from annotated_transformer.multi_head_attention import merge_heads, split_heads
from annotated_transformer.own_data import multi30k
from annotated_transformer.schedule import learning_rate
from book.figures import INK, KEY, POSITION, QUERY, SKY, VALUE, arrow, box, plus
from book.figures import show_drawing, show_steps, stream, words_at

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-decoder-alone", "caption": "What does a writer without a source not need? The Transformer, read from the bottom up. What is dashed and pale goes: the whole encoder, the memory, and in each decoder layer the cross-attention with its addition and its norm. Blue, orange and green arrows carry queries, keys and values."}}
colors = {
    "feed-forward": [INK],
    "cross-attention": [QUERY],
    "self-attention": [QUERY, KEY, VALUE],
}


def sublayer(x, y, name, mask=""):
    side = 1 if x < 178 else -1
    near, edge = x + 10 * side, x + 34 * side
    left = edge if side == 1 else edge - 102
    yield arrow([(edge, y + 10), (near, y + 10)]) + plus(x, y + 10)
    yield box(x - 20, y - 24, 40, 20, "norm")
    for i, color in enumerate(colors[name]):
        yield arrow([(x, y + 22 + 9 * i), (edge, y + 22 + 9 * i)], color)
    yield box(left, y, 102, 48, name, mask)


def column(x, left, top, name):
    size = f'x="{left}" y="{top}" width="166" height="{540 - top}" rx="8"'
    yield f'<rect {size} fill="none" stroke="{INK}" stroke-dasharray="2 4"/>'
    yield stream([(x, 616), (x, top - 8)]) + plus(x, 574)
    yield words_at(left + 86, top - 9, name)


deleted = [
    *column(26, 3, 312, "encoder: goes"),
    *sublayer(26, 348, "feed-forward"),
    *sublayer(26, 456, "self-attention", "padding mask"),
    arrow([(108, 574), (36, 574)], POSITION),
    arrow([(26, 306), (26, 278), (181, 278), (181, 370), (194, 370)], KEY),
    arrow([(26, 306), (26, 285), (175, 285), (175, 388), (194, 388)], VALUE),
    words_at(90, 270, "memory"),
    *sublayer(330, 348, "cross-attention", "goes"),
    words_at(26, 640, "source"),
]
kept = [
    *column(330, 187, 204, "decoder: stays"),
    *sublayer(330, 240, "feed-forward"),
    *sublayer(330, 456, "self-attention", "causal mask"),
    box(108, 555, 140, 38, "positions"),
    arrow([(248, 574), (320, 574)], POSITION),
    box(187, 616, 166, 42, "embedding"),
    arrow([(330, 196), (330, 180)]),
    box(187, 138, 166, 42, "output: the same table"),
    words_at(270, 676, "text so far"),
]
dashed = '<g opacity="0.4" stroke-dasharray="4 3">'
show_drawing(
    ['<g transform="translate(0,-130)">', dashed, *deleted, "</g>", *kept, "</g>"],
    356,
    552,
    alt="The encoder, the memory and each layer's cross-attention are pale and dashed. One stack of causal self-attention and networks is left, between the table below and the same table above.",
)

# %% [markdown]
# ## What goes, and what is left
#
# Without a source the encoder has nothing to read, so it goes. Cross-attention has no memory to look at, so it goes too, with its residual connection and its norm: a layer has two of each, where it had three. And if the texts fill every row to the end, there is no padding to hide. All that remains of the masks is the causal one.
#
# What is left of a decoder layer is self-attention and a network. Where have you seen that layer before? It is the encoder's, to the last line. A stack of encoder layers becomes a writer once it gets the causal mask, because then no position sees the word that it has to predict.
#
# Such a **decoder-only model** predicts each token of a text $w_1, \dots, w_n$ from those before it, as our decoder always did. Since these are all it has, it's a **language model**:
#
# $$
# P(w_1, \dots, w_n) = \prod_{t=1}^{n} P(w_t \mid w_1, \dots, w_{t-1})
# $$ (eq-language-model)
#
# Each factor is one entry of the softmax of a row of logits. With $X$ for the embedded tokens and $E$ for the table,
#
# $$
# \text{logits} = \text{Stack}(X)\, E^\top
# $$ (eq-gpt)
#
# ## The code
#
# **Exercise 1. Write it first** (★, 20 min). Before you read on, take `DecoderLayer` from [the layers](09_layers.ipynb#the-decoder-layer) and delete until nothing speaks of a memory. Then write the model around it: `Embedding`, `SinusoidalPositions`, a list of your layers, `causal_mask`. Which class of the book is your layer?

# %%
from torch import nn

from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Residual
from annotated_transformer.masks import causal_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.transformer import initialize


class Layer(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, 4 * d_model)
        self.residuals = nn.ModuleList(Residual(d_model, 0.0) for _ in range(2))

    def forward(self, x, mask):
        x = self.residuals[0](x, lambda y: self.attention(y, y, y, mask))
        return self.residuals[1](x, self.feed_forward)


class GPT(nn.Module):
    def __init__(self, vocabulary_size, layers=2, d_model=128, heads=4, length=64):
        super().__init__()
        self.embedding = Embedding(vocabulary_size, d_model)
        self.positions = SinusoidalPositions(d_model, length)
        self.layers = nn.ModuleList(Layer(d_model, heads) for _ in range(layers))
        initialize(self)

    def forward(self, tokens):
        x = self.positions(self.embedding(tokens))
        mask = causal_mask(tokens.size(1))
        for layer in self.layers:
            x = layer(x, mask)
        return self.embedding.logits(x)


# %% [markdown]
# Tokens go in, $(B, T)$, and logits come out, $(B, T, |V|)$, as with [the Transformer](10_transformer.ipynb), but there is one row of tokens where there were two. Dropout is off, because the model will read each caption only two or three times.
#
# ## Plain text
#
# Our text is the English side of Multi30k. We join its captions into one long text, with `</s>` between any two:


# %%
def join(captions):
    tokens = [EOS]
    for caption in captions:
        tokens += [*tokenizer.encode(caption), EOS]
    return torch.tensor(tokens)


captions = [pair.target for pair in multi30k("train")]
tokenizer = Tokenizer.train(captions, vocabulary_size=2000)
text = join(captions)
unseen = join([pair.target for pair in multi30k("val")])
print(f"{len(captions):,} captions, {len(text):,} tokens")

# %% tags=["remove-cell"]
if CHECKING:
    assert len(captions) == 29_000

# %% [markdown]
# A batch is cut out of the text wherever chance puts the scissors. All rows are equally long, so nothing is padded. A row holds some four captions, and most rows begin in the middle of one, or even of a word:


# %%
def cut_rows(text, rows=16, length=64):
    starts = torch.randint(len(text) - length, (rows, 1))
    return text[starts + torch.arange(length + 1)]


torch.manual_seed(0)
batch = cut_rows(text)
print(tuple(batch.shape), tokenizer.decode(batch[0, :12]))

# %% [markdown]
# A row has 65 tokens, because the model reads the first 64 and is asked for the last 64. The loop is the simplest one of [training](18_training.ipynb).


# %% tags=["nbval-ignore-output"]
def loss_of(model, rows):
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def train_on(model, text, steps):
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    losses = []
    for step in range(1, steps + 1):
        adam.param_groups[0]["lr"] = learning_rate(step, 128, warmup=100, peak_lr=0.004)
        loss = loss_of(model, cut_rows(text))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
        if step % 300 == 0:
            print(f"up to step {step:4}: loss {sum(losses[-300:]) / 300:.2f}")


torch.manual_seed(0)
model = GPT(len(tokenizer))
train_on(model, text, steps=1200)

# %% [markdown]
# (That takes about a minute and a half on one processor core.) Is that a good loss? We measure it on captions that the model hasn't seen, beside the loss of somebody who knows only how frequent each token is:

# %% tags=["nbval-ignore-output"]
counts = torch.bincount(text, minlength=len(tokenizer)) + 1  # 1: so that none is 0
shares = counts / counts.sum()
by_frequency = -shares[unseen].log().mean().item()
with torch.no_grad():
    reached = loss_of(model, cut_rows(unseen, rows=200)).item()
for name, loss in (("by frequency", by_frequency), ("our model", reached)):
    print(f"{name:12}  loss {loss:.2f}  perplexity {math.exp(loss):.0f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert 5 < by_frequency < 6.5
    assert reached < by_frequency - 1.5

# %% [markdown]
# The exponential of the loss, the **perplexity**, says how many equally probable tokens would leave one just as unsure: for the model some thirty, where frequencies alone leave some three hundred open. It will never be sure, because the next word of a caption can't be known. After `A man in a`, many go on with a color, and nothing says which.
#
# ## Writing, with a cache
#
# To write, we draw a token, put it behind the text, and ask again. Because of the [causal mask](04_masks.ipynb), what an earlier position has computed never changes. So each layer can keep the keys and values of all earlier tokens, as in [the KV cache](19_decoding.ipynb#the-kv-cache), and compute only what belongs to the newest one:


# %%
def look_back(attention, x, cache):
    keys = split_heads(attention.key(x), attention.heads)
    values = split_heads(attention.value(x), attention.heads)
    if cache:
        keys = torch.cat([cache[0], keys], dim=2)
        values = torch.cat([cache[1], values], dim=2)
    cache[:] = keys, values
    query = split_heads(attention.query(x), attention.heads)
    found, _ = attention.attend(query, keys, values)
    return attention.output(merge_heads(found))


def next_logits(model, token, place, caches):
    x = model.embedding(torch.tensor([[token]]))
    x = model.positions(x, place)
    for layer, cache in zip(model.layers, caches):
        x = layer.residuals[0](x, lambda y: look_back(layer.attention, y, cache))
        x = layer.residuals[1](x, layer.feed_forward)
    return model.embedding.logits(x)[0, 0]


# %% [markdown]
# `look_back` is the forward pass of `MultiHeadAttention` for a single token $x$, whose keys and values join those of the past before it looks. It needs no mask, because the future isn't there yet. What can go wrong is `place`: the token comes alone, and only this number says where in the text it is. So we also check a cache that forgets it:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def difference(tokens, places):
    """Return how far the logits with a cache are from those of one pass, at most."""
    caches = [[] for _ in model.layers]
    rows = [next_logits(model, *each, caches) for each in zip(tokens, places)]
    return (torch.stack(rows) - model(torch.tensor([tokens]))[0]).abs().max()


tokens = unseen[:30].tolist()
print(f"with places, the logits differ by up to {difference(tokens, range(30)):.3f}")
print(f"without, by up to {difference(tokens, [0] * 30):.3f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert difference(tokens, range(30)) < 1e-3
    assert difference(tokens, [0] * 30) > 0.5

# %% [markdown]
# Without places each token is embedded as if it were the first, and no error tells you. Now the model may write. The logits are divided by a [temperature](19_decoding.ipynb#sampling-drawing-words-at-random) before the softmax. A caption ends at `</s>`, or where the model's positions end:


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def write(model, prompt="", temperature=0.7):
    tokens = [EOS, *tokenizer.encode(prompt)]
    caches = [[] for _ in model.layers]
    for place in range(64):  # the model has positions for 64 tokens
        logits = next_logits(model, tokens[place], place, caches)
        if place + 1 < len(tokens):
            continue  # it is still reading the prompt
        shares = (logits / temperature).softmax(dim=-1)
        tokens.append(shares.multinomial(1).item())
        if tokens[-1] == EOS:
            break
    return tokenizer.decode(tokens)


torch.manual_seed(1)
for _ in range(2):
    print(write(model))

# %% tags=["remove-cell"]
if CHECKING:
    cool = [write(model, temperature=0.3) for _ in range(20)]
    assert sum(text.endswith(".") for text in cool) >= 10, cool
    assert sum(text.startswith(("A", "Two", "The")) for text in cool) >= 8, cool

# %% [markdown]
# Neither caption belongs to a picture. They are what two layers and a table have kept of the captions of 29,000 pictures.
#
# ## What a prompt is
#
# In `write`, the **prompt** goes through the same loop as the words that the model draws later. While the prompt lasts, we throw the predictions away. Afterwards its keys and values lie in the caches beside those of the model's own tokens, and nothing tells the two apart. So a prompt isn't a command, because no part of the model is there to obey it. It is the beginning of a text, which you have written instead of the model. Here are three beginnings, and no caption starts with the last of them:

# %% tags=["nbval-ignore-output"]
prompts = ["Two dogs", "A man in a", "The Transformer"]
torch.manual_seed(2)
for prompt in prompts:
    for _ in range(2):
        print(write(model, prompt, temperature=0.5))

# %% tags=["remove-cell"]
if CHECKING:
    assert all(write(model, prompt).startswith(prompt) for prompt in prompts)

# %% tags=["hide-input", "nbval-ignore-output"] mystnb={"figure": {"name": "fig-prompt", "caption": "What does a prompt change? The ten most probable next tokens after each beginning; `</s>` would end the caption. Choose a beginning: the weights are the same for all three, and only the keys and values of the prompt differ."}}


def next_tokens(prompt):
    tokens = torch.tensor([[EOS, *tokenizer.encode(prompt)][:64]])
    with torch.no_grad():
        shares = model(tokens)[0, -1].softmax(dim=-1)
    best = shares.topk(10)
    rows = []
    for number, (share, token) in enumerate(zip(*best), 1):
        word = "</s>" if token == EOS else tokenizer.decode([token.item()]).strip()
        share = round(share.item(), 3)
        rows.append({"token": f"{number}. {word or '·'}", "share": share})
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("share:Q", title="share", scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("token:N", title=None, sort=None),
    )
    bars = base.mark_bar(fill=SKY)
    numbers = base.mark_text(align="left", dx=5).encode(text="share:Q")
    chart = (bars + numbers).properties(width=255, height=230)
    return chart, f"After {prompt}: {rows[0]['token'][3:]} has {rows[0]['share']}."


show_steps({prompt: next_tokens(prompt) for prompt in prompts}, "Prompt")

# %% [markdown]
# The model knows captions and nothing else, so it makes a caption of whatever you begin. A model that has read everything goes on as people do: with an answer after a question, with a summary where one is usual. {cite:t}`radford2019language` put `TL;DR:` behind an article and let GPT-2 continue, and what it wrote looked like a summary, though it often had the details wrong. No weight had been changed for this. [A later chapter](25_since_2017.ipynb#a-model-of-todays-kind) translates in this way, with the source as the prompt.
#
# ## How large is GPT-2?
#
# A layer has four maps of attention, $4 D^2$ in all, and a network of $2 \cdot D \cdot 4D = 8 D^2$ with $4D + D$ biases. Two norms have $4D$. With $N$ layers and the table, the model has
#
# $$
# |V|\, D + N\, (12 D^2 + 9 D)
# $$ (eq-gpt-size)
#
# parameters; positions cost none, since they are computed.


# %%
def size(vocabulary, layers, d):
    return vocabulary * d + layers * (12 * d**2 + 9 * d)


counted = sum(weights.numel() for weights in model.parameters())
print(f"ours: {size(len(tokenizer), 2, 128):,} by formula, {counted:,} counted")
print(f"the base model without its encoder: {size(37_000, 6, 512):,}")

# %% [markdown]
# So of the base model's 63 million we keep 38, half of them in the table. The smallest GPT-2 {cite:p}`radford2019language` has 12 layers of width 768 and a vocabulary of 50,257. Its [code](https://github.com/openai/gpt-2/blob/master/src/model.py) has three things that our formula doesn't count:

# %%
layers, d = 12, 768
gpt2 = size(50_257, layers, d)
gpt2 += layers * 4 * d  # biases of queries, keys, values and outputs
gpt2 += 1024 * d  # learned positions
gpt2 += 2 * d  # the last norm
print(f"{gpt2:,}")

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer import Transformer, TransformerConfig

    assert counted == size(len(tokenizer), 2, 128) == 651_520
    assert gpt2 == 124_439_808 and size(37_000, 6, 512) == 37_846_016
    config = TransformerConfig(
        50_257,
        layers=12,
        d_model=768,
        d_ff=3072,
        heads=12,
        attention_bias=True,
        pre_norm=True,
        positions="learned",
    )
    with torch.device("meta"):
        whole = Transformer(config)
    whole.decoder = None
    assert sum(weights.numel() for weights in whole.parameters()) == gpt2

# %% [markdown]
# That is the size of the published model, to the last parameter: none of its weights sits in a part that this book hasn't built.
#
# :::{margin}
# Its networks have a smoother ReLU, GELU, which has no weights.
# :::
#
# ## What to remember
#
# - Without a source, encoder and cross-attention go. A layer is left with self-attention, a network and two norms, which is an encoder layer under the causal mask.
# - A decoder-only model learns from any text, cut into rows of equal length: the next token at every position, no pairs, no padding.
# - To write, it needs one cache of keys and values for each layer, and the place of the newest token.
# - A prompt is the beginning of a text. It passes through the same loop as what the model writes itself.
#
# ## Exercises
#
# **1. Write it first** is [above](#the-code).
#
# :::{admonition} Solution 1
# :class: dropdown
# From `__init__` goes `cross_attention`, and `range(3)` becomes `range(2)`. From `forward` go `memory`, `memory_mask` and the middle one of the three steps. What remains is `EncoderLayer`: given the same weights and the same mask, both compute the same. `Layer` and `GPT` above are one way to write it.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer.layers import EncoderLayer

    ours = Layer(24, 3)
    theirs = EncoderLayer(24, MultiHeadAttention(24, 3), FeedForward(24, 96), 0.0)
    theirs.self_attention.load_state_dict(ours.attention.state_dict())
    theirs.feed_forward.load_state_dict(ours.feed_forward.state_dict())
    x_tried = torch.randn(2, 5, 24)
    mask_tried = causal_mask(5)
    assert torch.allclose(ours(x_tried, mask_tried), theirs(x_tried, mask_tried))

# %% [markdown]
# **2. By hand** (★, 10 min). The largest GPT-2 has 48 layers of width 1,600 and is otherwise like the smallest. Estimate its size with $12 N D^2$ alone, in your head, and then compute it exactly. In which of the two models does the table matter more?
#
# :::{admonition} Solution 2
# :class: dropdown
# $12 \cdot 48 \cdot 1600^2 = 576 \cdot 2.56\,\text{M} = 1.47$ billion. The table adds $50{,}257 \cdot 1600 = 80.4$ M, positions 1.6 M, biases and norms $48 \cdot 13 \cdot 1600 + 2 \cdot 1600 = 1.0$ M, which makes 1,557,611,200. The table has 5% of the large model and 31% of the small one. That is why one may forget it when speaking of billions, and why the small models of this book have small vocabularies.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    largest = size(50_257, 48, 1600) + 48 * 4 * 1600 + 1024 * 1600 + 2 * 1600
    assert largest == 1_557_611_200
    assert round(100 * 50_257 * 1600 / largest) == 5
    assert round(100 * 50_257 * 768 / gpt2) == 31

# %% [markdown]
# **3. The prompt in one pass** (★★, 30 min). `write` reads the prompt token by token, though all of it is known. Let `look_back` take $T$ new tokens at once, with $P$ others in the cache already. Which mask does it need, and of what shape?
#
# :::{admonition} Solution 3
# :class: dropdown
# New token $i$ may see all $P$ old ones and the new ones up to itself. That is what the last $T$ rows of the causal mask for $P + T$ positions say, a mask of shape $(T, P + T)$. So `look_back` gets one more line, `mask = causal_mask(keys.size(2))[-x.size(1):]`, and hands this mask to `attend`. For a single new token it is a row of True, and that's why we needed none. In `next_logits`, take a list of tokens and the place of the first, and the logits of the last. The prompt then goes through in one pass, as in training; programs that serve language models call this *prefill*.
# :::

# %% tags=["remove-cell"]
if CHECKING:

    def look_back_at_once(attention, x, cache):
        keys = split_heads(attention.key(x), attention.heads)
        values = split_heads(attention.value(x), attention.heads)
        if cache:
            keys = torch.cat([cache[0], keys], dim=2)
            values = torch.cat([cache[1], values], dim=2)
        cache[:] = keys, values
        query = split_heads(attention.query(x), attention.heads)
        mask = causal_mask(keys.size(2))[-x.size(1) :]
        found, _ = attention.attend(query, keys, values, mask)
        return attention.output(merge_heads(found))

    tried = model.layers[0].attention
    states = torch.randn(1, 9, 128)
    with torch.no_grad():
        whole = tried(states, states, states, causal_mask(9))
        kept_apart = []
        parts = [
            look_back_at_once(tried, part, kept_apart) for part in states.split(4, 1)
        ]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)

# %% [markdown]
# ## Further
#
# ### Was the first GPT like this?
#
# Nearly. Its [code](https://github.com/openai/finetune-transformer-lm/blob/master/train.py) of 2018 adds, then normalizes, twice per layer, as on this page. Positions are learned, and GELU replaces ReLU. GPT-2 moved the norms in front and added one at the end.
#
# ### Why is GPT-2 small sometimes called 117M?
#
# That is the number in its paper. A note in OpenAI's repository says that the first counts were wrong and that 117M and 124M are the same model.
#
# ### May a caption look at the one before?
#
# In our rows it does, since the causal mask knows nothing of `</s>`. The one before is about another picture, so the model has to learn to ignore it; in return no position is wasted on padding. Large models are usually trained on such packed rows, too, with or without a mask between texts.
