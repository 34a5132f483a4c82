# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Masks
#
# A mask is a table of yes and no that decides which keys each query may see; this chapter builds the two that a Transformer needs, one against padding and one against the future (sections 3.1 and 3.2.3 of the paper).

# %% tags=["remove-input"]
from book.figures import map_thumbnail

map_thumbnail("masks")

# %% tags=["export", "hide-cell"] mystnb={"code_prompt_show": "Show the imports", "code_prompt_hide": "Hide the imports"}
import torch
from torch import Tensor

# %% [markdown]
# [Attention](03_attention.ipynb#from-scores-to-weights) lets every query look at every key, and in a Transformer that is wrong for two reasons. In a batch, short sentences are filled up with **padding**, which must not be attended to. And a decoder that learns to predict the next word must not read that word. Each mask is a line or two of code, and a model with a wrong one still trains, so it pays to see what each mistake looks like.
#
# ## What goes wrong without a mask
#
# We take three words of our example, *cat likes fish*, in a batch with longer sentences. Zero vectors fill up the row. How many of them does it take to spoil what *likes* finds?

# %% tags=["hide-input"]
import math

import altair as alt
import torch.nn.functional as F

from annotated_transformer.attention import attention
from book.figures import AMBER, RESIDUAL, SKY, curves, heatmap, show, show_steps


def panels(*drawn):  # (title, rows, columns, weights, mask) each
    maps = [heatmap(w, r, c, m, cell=26).properties(title=t) for t, r, c, w, m in drawn]
    return alt.hconcat(*maps, spacing=14)


# %%
import torch.nn.functional as F

from annotated_transformer.attention import attention
from book.example import W_K, W_Q, W_V, X

short = X[2:]  # cat likes fish
for padding in (0, 2, 10, 30):
    x = F.pad(short, (0, 0, 0, padding))
    likes = attention(x @ W_Q, x @ W_K, x @ W_V)[1][1]
    print(
        f"{padding:2} padding tokens: cat {likes[0]:.2f}, fish {likes[2]:.2f}, padding {likes[3:].sum():.2f}"
    )

# %% [markdown]
# The same sentence gives different answers, depending on its neighbors in the batch. A zero key isn't invisible, because its score is 0 and $e^0 = 1$. By hand, the exponentials for *likes* are 20.1, 1 and 9.5, together 30.6; thirty padding tokens make it 60.6, and half of the weight goes to nothing. In a model it is worse: padding is a token with a learned vector, and its score can be anything.
#
# ## How to hide a key
#
# A hidden key must get the weight zero, and the others must share what it leaves. Here are four ways to hide a key, and for comparison hiding nothing. The query is *likes*, and two padding tokens are a little like a noun, so that each scores $3 \cdot 1 / \sqrt 4 = 1.5$.

# %%
filling = torch.tensor([[1.0, 0, 0, 0, 0, 0]] * 2, dtype=torch.float64)
padded = torch.cat([short, filling])
hidden = torch.tensor([False, False, False, True, True])
scores = (padded @ W_Q @ (padded @ W_K).T / math.sqrt(4))[1]
ways = {
    "nothing hidden": scores.softmax(-1),
    "score × 0": (scores * ~hidden).softmax(-1),
    "weight × 0": scores.softmax(-1) * ~hidden,
    "score = 1e9": scores.masked_fill(hidden, 1e9).softmax(-1),
    "score = −∞": scores.masked_fill(hidden, -math.inf).softmax(-1),
}
print("scores", scores.tolist())

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hiding", "caption": "Which way hides a key? Weights of *likes* over three words and two padding tokens, and their sum. Only the last row gives padding nothing and still sums to 1; it is also what the sentence gets alone."}}
rows = [[*weights.tolist(), weights.sum().item()] for weights in ways.values()]
columns = ["cat", "likes", "fish", *["<pad>"] * len(filling), "sum"]
show(
    heatmap(rows, list(ways), columns, titles=("", "key: attended to")),
    alt="Five rows of weights. Only with minus infinity are both padding tokens at 0 and the sum at 1.",
)

# %% tags=["remove-cell"]
if CHECKING:
    alone = attention(short @ W_Q, short @ W_K, short @ W_V)[1][1]
    torch.testing.assert_close(ways["score = −∞"][:3], alone)

# %% [markdown]
# - **Score × 0** leaves the key with $e^0 = 1$, like our zero vectors.
# - **Weight × 0**, after the softmax, throws the share of the key away, so the row sums to 0.77.
# - **Score = 1e9**, where somebody forgot the minus sign, gives the hidden keys everything.
# - **Score = −∞** is right. Since $e^{-\infty} = 0$, the key drops out of the denominator, too, and the others get what they would get if it had never been there.
#
# ### Why not $-10^9$?
#
# Harvard's Annotated Transformer {cite:p}`rush2018annotated` writes $-10^9$, and so does tensor2tensor, the authors' own code. In 32 bits that works. But the largest number of fp16 is 65,504, so PyTorch refuses to store $-10^9$ there. And where *every* key of a row is hidden, the query takes the plain average of exactly the keys that it must not see, and nothing tells you. [The last section](#second-reading-empty-rows-and-half-precision) has more on both.
#
# ## Does True show or hide?
#
# In this book a **mask** is boolean and True means *may attend*, as in PyTorch's function `F.scaled_dot_product_attention`. In PyTorch's modules it means the opposite, and many bugs are masks passed from one convention to the other without a `~`:
#
# | where | True means |
# |---|---|
# | this book, `F.scaled_dot_product_attention` | may attend |
# | `nn.MultiheadAttention`, `nn.Transformer` and their layers | hidden |
# | PyTorch's masks of floats | they are added to the scores: 0 keeps, −∞ hides |

# %%
for name, mask in {"right": ~hidden, "inverted": hidden}.items():
    weights = attention(padded @ W_Q, padded @ W_K, padded @ W_V, mask)[1]
    print(f"{name}: weight on words {weights[:, :3].sum(-1).mean():.2f}")

# %% [markdown]
# Inverted, the sentence attends to its padding and to nothing else.
#
# ## The padding mask
#
# Tokens reach the model as integers. Four are reserved, for padding, the beginning and the end of a sentence, and what the vocabulary lacks:

# %% tags=["export"]
PAD = 0  # <pad>
BOS = 1  # <s>
EOS = 2  # </s>
UNK = 3  # <unk>

# %% [markdown]
# The **padding mask** is True where the key at position $s$ is a word, whatever the position $t$ of the query:
#
# $$ M^\text{padding}_{ts} = [\,\text{token}_s \neq \text{PAD}\,] $$ (eq-padding-mask)
#
# The square brackets are 1, or True, where what they hold is true. It looks as if comparing with `PAD` were enough.
#
# **Exercise 1. Write them first** (★, 10 min). Write `padding_mask(tokens)`. (Its second part comes [below](#the-causal-mask).) The [checker](E_checker.ipynb#the-parts-it-knows) knows three common mistakes, and the obvious first try is one of them:

# %%
from annotated_transformer import check

print(check("padding_mask", lambda tokens: tokens != PAD))

# %% [markdown]
# The scores of the whole model have four axes: sentences, [heads](05_multi_head_attention.ipynb#split), queries, keys. PyTorch lines up two shapes from the right, repeats axes of length 1, and takes a missing axis as 1, so the mask has to say which of its axes are which. `None` in an index adds an axis of length 1:


# %% tags=["export"]
def padding_mask(tokens: Tensor) -> Tensor:
    """Let every query attend to the keys that are words, in each sentence of a batch.

    Takes token ids (B, S); returns booleans (B, 1, 1, S), True where a key may be attended to.
    The paper does not mention this mask.
    """
    is_word = tokens != PAD
    return is_word[:, None, None, :]


# %% [markdown]
# | for 2 sentences of 5 tokens, 8 heads | sentences | heads | queries | keys | |
# |---|:---:|:---:|:---:|:---:|---|
# | scores | 2 | 8 | 5 | 5 | |
# | `padding_mask(tokens)` | 2 | 1 | 1 | 5 | one row for all heads and queries |
# | `tokens != PAD` | | | 2 | 5 | error: 2 does not fit 5 queries |
#
# There is no error when a batch has as many sentences as each has tokens:

# %%
# 5 sentences of 5 tokens
square = torch.tensor([[5, 6, 7, PAD, PAD], *[[8, 9, 5, 6, 7]] * 4])
right = padding_mask(square).expand(5, 1, 5, 5)
flat = (square != PAD).expand(5, 1, 5, 5)
differ = (right ^ flat).sum().item()
print("cells that differ, in each head:", differ, "of", right.numel())

# %% [markdown]
# The row of sentence 0 has become the row of *query* 0, in all sentences. Four axes, always, prevent it.
#
# ### How to test a mask
#
# Cut the padding off: with the mask, a padded sentence must give what the bare one gives. On a hundred random sentences it does, up to rounding errors. Without the mask the outputs are off by more than 1.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the test", "code_prompt_hide": "Hide the test"}
random = torch.Generator().manual_seed(1)
largest = {"with the mask": 0.0, "without": 0.0}
for _ in range(100):
    length, padding = torch.randint(1, 9, (2,), generator=random).tolist()
    x = torch.randn(1, length + padding, 4, generator=random, dtype=torch.float64)
    mask = padding_mask((torch.arange(length + padding) < length).long()[None])[:, 0]
    bare = attention(*[x[:, :length]] * 3)[0]
    for name, hide in zip(largest, (mask, None)):
        off = (attention(x, x, x, hide)[0][:, :length] - bare).abs().max().item()
        largest[name] = max(largest[name], off)
print({name: round(off, 2) for name, off in largest.items()})

# %% tags=["remove-cell"]
if CHECKING:
    assert largest["with the mask"] < 1e-12 and largest["without"] > 1

# %% [markdown]
# ### Padded queries
#
# Padded positions also ask: each has a row of its own in the matrix. Hiding those rows, too, sounds tidy, but it can destroy the sentence. In a row without any open key, softmax divides zero by zero, and our `attention` returns NaN ("not a number"). In the next layer every word gives that row the weight 0. But $0 \cdot \text{NaN}$ is NaN, so the rows of the padding spoil the rows of the words. (PyTorch's function, which the model uses from the next chapter on, returns zeros for such a row and says nothing. Don't rely on either.)
#
# The rule is: *mask keys*, and keep a key open in every row. A padded query may compute what it likes, since no word attends to it and the loss skips it. In this book no row is ever empty: a source ends with `</s>`, which every query may see, and a target begins with `<s>`, which is in no query's future.

# %% [markdown]
# ## The causal mask
#
# A decoder writes from left to right, but in training the whole sentence is known, and we want the predictions at all positions in one pass. With the **causal mask**, position $t$ may look at itself and to its left, never to its right:
#
# $$ M^\text{causal}_{ts} = [\,s \leq t\,] $$ (eq-causal-mask)
#
# **Exercise 1, second part.** Write `causal_mask(length)` without `tril`. The checker knows four common mistakes.
#
# A position may see itself because it predicts the word *after* it: [the targets are shifted](10_transformer.ipynb#the-target-shifted-by-one).
#
# A target of 30 tokens then gives 30 predictions in one pass over 30 positions. With a pass for each prediction it would be $1 + 2 + \dots + 30 = 465$ positions, 15.5 times as many.


# %% tags=["export"]
def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Let each position attend to itself and to those before it (section 3.2.3).

    Returns booleans (length, length): row t is True up to and including column t.
    """
    everything = torch.ones(length, length, dtype=torch.bool, device=device)
    return everything.tril()


# %% [markdown]
# `tril` keeps the lower triangle; `device` says where the mask is made, on a CPU or a GPU. PyTorch's own attention can apply this mask by itself, and serves as the reference. Then comes the test that matters: if the future changes, does the past?
#

# %%
x = torch.randn(1, 6, 4, generator=random, dtype=torch.float64)
past = causal_mask(x.size(1))
ours = attention(x, x, x, past)[0]
reference = F.scaled_dot_product_attention(x, x, x, is_causal=True)
print(f"largest difference to PyTorch's output: {(ours - reference).abs().max():.5f}")
another_future = torch.randn(x[:, 3:].shape, generator=random)
other = torch.cat([x[:, :3], another_future], dim=1)
moved = (attention(other, other, other, past)[0] - ours).abs().amax(-1)[0]
print("change at each position:", [round(m, 2) for m in moved.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ours, reference)
    assert not moved[:3].any() and moved[3:].all()

# %% [markdown]
# This holds through many layers, too. In each layer a position looks only at itself and to its left, so it can't learn of its future through another position, either.
#
# ### Is the causal mask needed at inference?
#
# When the model writes, there is no future to hide, and the last position sees all words anyway. With one layer you could drop the mask. With two you can't:


# %%
def last_of_stack(x, mask, layers):
    for _ in range(layers):
        x = attention(x, x, x, mask)[0]
    return x[:, -1]  # the position that writes the next word


for layers in (1, 2):
    with_mask = last_of_stack(x, causal_mask(x.size(1)), layers)
    without = last_of_stack(x, None, layers)
    print(f"layers: {layers}, difference {(with_mask - without).abs().max():.2f}")

# %% [markdown]
# The last position reads *earlier* ones, and without a mask those have seen words after them, as they never did in training. With the mask, the state of an old word never changes again, so a model that writes can [keep that state](19_decoding.ipynb#the-kv-cache).
#
# A trained model lets you see what that does to the next word:
#
# :::{what-if} masks
# What is the causal mask worth when the model writes? Each row is a word of a translation that was written with the mask; the bars are the probability that the model gives to this word, with the mask and without it. In the last column the mask is off and the whole translation is in view, the word to be predicted included.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/04_masks.html#fig-what-if-masks).
# :::
#
# ## What a forgotten causal mask costs
#
# Without the causal mask a model learns to copy the next word instead of predicting it, and its loss looks excellent. To show it, we take sequences that can't be foreseen: each token is the one before it plus 1 or plus 3, modulo 8, and a coin decides which.


# %%
modulus = 8


def tosses(count, length, random):
    steps = 1 + 2 * torch.randint(0, 2, (count, length), generator=random)
    return steps.cumsum(dim=1) % modulus


print(tosses(2, 7, random).tolist())

# %% [markdown]
# The best prediction gives one half to each of two tokens, and its loss is $-\ln \tfrac12 = 0.69$. A lower loss is proof of cheating. The model is the smallest that will do: a vector for each token and each place, one attention, and scores for the next token.


# %%
def predict(tokens, weights, masked):
    token, place, W_Q, W_K, W_V, out = weights
    n = tokens.size(1)
    x = token[tokens] + place[:n]
    mask = causal_mask(n) if masked else None
    return (x + attention(x @ W_Q, x @ W_K, x @ W_V, mask)[0]) @ out


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-leak", "caption": "What does a leak look like? Training loss with the causal mask (solid) and without it (dashed), when the next token is the toss of a coin. The gray line is ln 2, the best mean that an honest model can reach."}}


def learn(masked, updates=200, n=6, width=16):
    random = torch.Generator().manual_seed(0)
    shapes = [(modulus, width), (n, width), *[(width, width)] * 3, (width, modulus)]
    weights = [
        (0.3 * torch.randn(s, generator=random)).requires_grad_() for s in shapes
    ]
    adam = torch.optim.Adam(weights, lr=0.03)
    for _ in range(updates):
        rows = tosses(32, n + 1, random)
        loss = F.cross_entropy(predict(rows[:, :-1], weights, masked).mT, rows[:, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return weights


losses, looks = [], {"causal mask": (SKY, [1, 0]), "no mask": (AMBER, [5, 3])}
trained = {name: learn(name == "causal mask") for name in looks}
records = [
    {"update": i % 200, "loss": round(losses[i], 3), "mask": list(looks)[i // 200]}
    for i in range(0, 400, 4)
]
drawn = curves(records, alt.X("update:Q"), alt.Y("loss:Q"), "mask", looks)
floor = alt.Chart(alt.Data(values=[{"loss": math.log(2)}])).mark_rule(color=RESIDUAL)
show(
    drawn + floor.encode(y="loss:Q"),
    alt="With the mask the loss falls to ln 2. Without it, the loss falls far below.",
)

# %% tags=["remove-cell"]
if CHECKING:
    honest, cheating = (sum(losses[end - 50 : end]) / 50 for end in (200, 400))
    assert abs(honest - math.log(2)) < 0.1 and abs(cheating - math.log(2) / 6) < 0.1

# %% [markdown]
# Without the mask the loss falls to about $0.69 / 6 = 0.12$: five of the six positions find their answer one place to the right and copy it, and the last one has to guess. Now both models, which the code holds as `trained`, write one token after another, and there is nothing on the right to copy from.

# %% tags=["nbval-ignore-output"]
flawless = {}
for name, weights in trained.items():
    rows = tosses(200, 1, random)
    for _ in range(6):  # each model has vectors for six places
        chances = predict(rows, weights, name == "causal mask")[:, -1].softmax(-1)
        rows = torch.cat([rows, chances.multinomial(1, generator=random)], dim=1)
    steps = rows.diff() % modulus
    flawless[name] = ((steps == 1) | (steps == 3)).all(dim=1).float().mean()
    print(f"{name}: {flawless[name]:.0%} of the rows follow the rule")

# %% tags=["remove-cell"]
if CHECKING:
    assert flawless["causal mask"] > 0.8
    assert max(share for name, share in flawless.items() if name != "causal mask") < 0.4

# %% [markdown]
# The model with the better loss has learned to copy: in training, the first five places always found their answer one place to the right. Only the sixth place, which had to guess in training, learned the rule. If your loss is too good and your output is nonsense, look at this mask and at the [shift of the targets](10_transformer.ipynb#if-the-shift-is-forgotten), since either mistake looks like this. Validation won't tell you, because it leaks in the same way.
#
# ## Both at once
#
# Targets are padded, too, so their mask is the *and* of the two. $(B, 1, 1, T)$ and $(T, T)$ broadcast to $(B, 1, T, T)$.


# %% tags=["export"]
def target_mask(tokens: Tensor) -> Tensor:
    """Let each target position attend to the words up to and including itself.

    Takes token ids (B, T); returns booleans (B, 1, T, T): padding and causal mask in one.
    """
    past = causal_mask(tokens.size(1), tokens.device)
    return padding_mask(tokens) & past


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-and", "caption": "How do a row and a triangle make one mask? Hatched keys are hidden. The padding mask (left) is one row, repeated for each query; the causal mask (middle) is the same for each sentence. A key is open in the target mask (right) where both leave it open."}}
names = ["<s>", "the", "cat", "<pad>", "<pad>"]
is_word = torch.tensor([[True, True, True, False, False]])
past = causal_mask(5)
show(
    panels(
        ("padding", ["any"], names, is_word, is_word),
        ("causal", names, names, past, past),
        ("both", names, names, past & is_word, past & is_word),
    ),
    alt="A row with three open keys, and a triangle. Together they leave a triangle whose last two columns are hidden.",
)

# %%
target = torch.tensor([[BOS, 5, 6, PAD, PAD]])
either = padding_mask(target) | causal_mask(target.size(1))
open_with_and = target_mask(target).sum().item()
open_with_or = either.sum().item()
print(f"open of {either.numel()}: with & {open_with_and}  with | {open_with_or}")


# %% [markdown]
# If True means *hidden*, the two masks are joined by *or*. If it means *may attend*, as here, *or* opens every pair that either of them would open.


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-toggles", "caption": "Which positions may each row see? Choose the masks that are on. Three targets of unequal length, the short ones padded. All scores are equal here, so that open keys share the weight evenly: what a mask takes from one key, the others in the row get."}}
def evenly(title, asking, answering, mask):
    weights = mask / mask.sum(dim=-1, keepdim=True)
    return title, asking, answering, weights, mask


texts = [
    "<s> the black cat likes",
    "<s> cats like <pad> <pad>",
    "<s> fish <pad> <pad> <pad>",
]
lines = [text.split() for text in texts]
batch = torch.tensor(
    [[PAD if word == "<pad>" else 9 for word in line] for line in lines]
)
choices = {
    "no mask": torch.tensor(True),
    "padding": padding_mask(batch),
    "causal": causal_mask(5),
    "padding and causal": target_mask(batch),
}
steps = {}
for name, mask in choices.items():
    mask = mask.expand(3, 1, 5, 5)
    drawn = [evenly("", line, line, rows[0]) for line, rows in zip(lines, mask)]
    label = f"Of {mask.numel()} pairs of query and key, {mask.sum()} are open."
    steps[name] = panels(*drawn), label
show_steps(steps, "Which masks are on?", start=3)

# %% [markdown]
# ## Which mask goes where
#
# The model attends in three places ([chapter 9](09_layers.ipynb#the-decoder-layer) has the table), and the rule is the same in each: *the padding mask belongs to the keys*.
#
# :::{margin}
# "Only the decoder needs a mask" is a common reading of the paper, which speaks of the causal one alone. Padding has to be hidden, too: [tensor2tensor](https://github.com/tensorflow/tensor2tensor/blob/017f83a91da0a4f481834fa0eac44d446774acfe/tensor2tensor/layers/common_attention.py) has `attention_bias_ignore_padding` for it.
# :::

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-masks", "caption": "Which keys may each query see, in each of the three attentions? Hatched keys are hidden; open ones share the weight evenly, as if all scores were equal. The source has three words and two padding tokens, the target four tokens and one padding token. In the last map the rows are named after the word that is about to be written."}}
german = ["Katzen", "mögen", "Fisch", "<pad>", "<pad>"]
english = ["<s>", "cats", "like", "fish", "<pad>"]
next_words = ["cats", "like", "fish", "</s>", "<pad>"]
source, target = (
    torch.tensor([[5, 6, 7, PAD, PAD]]),
    torch.tensor([[BOS, 8, 9, 10, PAD]]),
)
of_source = padding_mask(source)[0, 0].expand(5, 5)
show(
    panels(
        evenly("encoder, to itself", german, german, of_source),
        evenly("decoder, to itself", english, english, target_mask(target)[0, 0]),
        evenly("decoder, to the source", next_words, german, of_source),
    ),
    alt="In the first and third map the two padded source columns are hatched in every row; in the second everything right of the diagonal is, and the padded column.",
)

# %% tags=["remove-cell"]
if CHECKING:
    for mask in [*choices.values(), of_source, target_mask(target)]:
        assert mask.any(dim=-1).all()  # no row is empty

# %% [markdown]
# ### Why no causal mask in the encoder?
#
# The source is complete before the first word is written. A word may look to its right, and in German it often must, because the verb may come at the end.
#
# ### Why the source's mask in cross-attention?
#
# Because the keys there are source positions. The target's mask, $T \times T$, doesn't fit scores of $T \times S$, unless the two lengths happen to be equal, as in the figure. Then it hides the wrong keys.

# %% [markdown]
# ## What to remember
#
# - A mask is boolean, queries are rows, keys are columns, and True means *may attend*.
# - A hidden score becomes minus infinity before the softmax. Zero vectors, zero scores and zeroed weights don't hide a key.
# - Padding is hidden by columns, in all three attentions. The padding mask belongs to the keys.
# - The causal mask lets a decoder learn at all positions at once. A loss that is too good to be true means that it leaks.
# - A row must keep at least one open column, or its softmax divides zero by zero.
#
# One softmax still has to answer all the questions of a word. The next chapter gives each question a head of its own.

# %% [markdown]
# ## Exercises
#
# **1. Write them first** is [above](#the-padding-mask); this is its solution.


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Four axes for the padding mask. For the causal one, compare the key's place with the query's place.
def my_padding_mask(tokens):
    return (tokens != 0).unsqueeze(1).unsqueeze(1)


def my_causal_mask(length):
    position = torch.arange(length)
    return position[None, :] <= position[:, None]


print(check("padding_mask", my_padding_mask))
print(check("causal_mask", my_causal_mask))

# %% [markdown]
# **2. By hand** (★, 5 min). How many cells of `target_mask` are True for a target of 6 tokens, the last 2 of them padding?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Row t, from 0, has min(t + 1, 4) open cells: 1 + 2 + 3 + 4 + 4 + 4 = 18.
target = torch.tensor([[BOS, 5, 6, 7, PAD, PAD]])
print(target_mask(target).sum().item())

# %% [markdown]
# **3. Too late** (★★, 10 min). Hide the future by setting weights to zero *after* the softmax. Does the past stay the same when the future changes?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# It doesn't. The future's scores are still in the denominator, so they change how much the past gets.


def hidden_too_late(x):
    weights = (x @ x.mT / math.sqrt(x.size(-1))).softmax(-1) * causal_mask(x.size(1))
    return weights @ x


other = torch.cat([x[:, :3], -x[:, 3:]], dim=1)
off = (hidden_too_late(other)[:, :3] - hidden_too_late(x)[:, :3]).abs().max()
print(f"the past moves by {off:.2f}")

# %% [markdown]
# **4. Padding on the left** (★★, 15 min). Some models pad on the left. What does `target_mask` look like for the tokens `[PAD, PAD, BOS, 5]`, and what goes wrong? Repair it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The first two rows see padding only, all of it hidden: they are empty and become NaN, which spreads.
# Let each position see itself. The words' rows stay as they were; a padded query sees its own padding.
left = torch.tensor([[PAD, PAD, BOS, 5]])
repaired = target_mask(left) | torch.eye(4, dtype=torch.bool)
print("open keys by row:", target_mask(left).sum(-1).flatten().tolist(), end=", ")
print("repaired:", repaired.sum(-1).flatten().tolist())

# %% [markdown]
# **5. A sliding window** (★★, 30 min; open). Some models for long texts let each position see only the last $w$, itself included ([restricted self-attention](12_why_self_attention.ipynb#five-layers)). Write this mask. How many layers does it take until position 100 hears of position 0? Test it with gradients.

# %% [markdown]
# ## Second reading: empty rows and half precision
#
# :::{admonition} What becomes of a row without an open key?
# :class: dropdown
# With $-10^9$, every key of the row has the same score, and the query averages what it must not see. With minus infinity, softmax divides zero by zero and returns NaN; our `attention` does, and you notice. PyTorch's fused `F.scaled_dot_product_attention`, which the model uses from [chapter 5](05_multi_head_attention.ipynb#the-module) on, returns zeros instead, silently. `nn.MultiheadAttention` returns NaN when asked for its weights, the default; with `need_weights=False` it returns zeros, except with `batch_first=True` in evaluation without gradients, where a fast path gives NaN again (torch 2.13). `nn.TransformerEncoderLayer` asks for no weights, so with `batch_first=True` it can train undisturbed on a batch with an empty row and show its first NaN in evaluation.
#
# Replacing NaN by 0 after the softmax repairs the output and not the training: where the mask was *added* to the scores, the gradient that flows back through the softmax is still NaN.
# :::
#
# :::{admonition} Masks in half precision
# :class: dropdown
# Many programs hide a key with the smallest number that the type holds, `torch.finfo(dtype).min`, which is $-65{,}504$ in fp16. One such mask is fine. Add two, say for padding and for the future, and the sum overflows to minus infinity; for that reason some programs take $-10^4$. A boolean mask, as here, has no such sums. It also pays to compute the softmax in 32 bits and to go back to half precision afterwards, as PyTorch's autocast and its fused attention do. bf16 has the range of 32-bit floats and stores $-10^9$ without complaint.
# :::

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show both failures", "code_prompt_hide": "Hide both failures"}
try:
    scores.half().masked_fill(hidden, -1e9)
except RuntimeError as error:
    message = str(error)
    print("fp16:", message)
for value in (-1e9, -math.inf):
    weights = torch.full((5,), value).softmax(-1)
    print(f"all hidden, {value}:", [round(w, 2) for w in weights.tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    assert "overflow" in message
    assert weights.isnan().all()
    added = torch.full((3,), -math.inf)
    asked = torch.zeros(3, requires_grad=True)
    (asked + added).softmax(-1).nan_to_num().sum().backward()
    assert asked.grad.isnan().all()
    empty_row = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    nothing = F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2)] * 3, empty_row)
    assert not nothing.any()

# %% [markdown]
# :::{admonition} Hidden rows, computed and drawn
# :class: dropdown
# The padded sentence of this chapter, with hidden columns, with hidden rows, and with both. Columns are right. With hidden rows, the words still spend weight on padding. With both, the words come out right and the padded rows are NaN, until the next layer spreads it.
# :::

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the three ways to hide", "code_prompt_hide": "Hide the three ways to hide"}
column = ~hidden[None, :]
row = (~hidden[:, None]).expand(len(hidden), -1)
q, k, v = padded @ W_Q, padded @ W_K, padded @ W_V
bare = attention(short @ W_Q, short @ W_K, short @ W_V)[0]
for name, mask in {"columns": column, "rows": row, "both": column & row}.items():
    output = attention(q, k, v, mask)[0]
    off = (output[:3] - bare).abs().max()
    lost = output.isnan().any(-1).sum()
    print(f"{name} hidden: words off by {off:.2f}, rows not a number {lost}")

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the drawing", "code_prompt_hide": "Hide the drawing", "figure": {"name": "fig-columns-rows", "caption": "Which hiding helps the words? Weights of the padded sentence with hidden columns (left), hidden rows (middle) and both (right). In the middle, all three words spend weight on padding. Rows that are all hatched have no key left; their weights are NaN."}}
words, drawn = columns[:-1], []
for title, mask in {"columns": column, "rows": row, "both": column & row}.items():
    weights = attention(q, k, v, mask)[1].nan_to_num()  # hatched: without a number
    drawn.append((title, words, words, weights, mask.expand(weights.shape)))
show(
    panels(*drawn),
    alt="With hidden columns every row has weights on three words. With hidden rows the words put weight on padding, and two rows are empty.",
)

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the next layer", "code_prompt_hide": "Hide the next layer"}
states = torch.randn(len(hidden), 4, generator=random)
once = attention(states, states, states, column & row)[0]
twice = attention(once, once, once, column)[0]  # the next layer, masked as it should be
lost_at_first = once.isnan().any(-1).sum().item()
lost_later = twice.isnan().any(-1).sum().item()
print("rows lost:", lost_at_first, "then", lost_later)

# %% [markdown]
# ## Sources
#
# The paper states the causal mask in section 3.1 and its value $-\infty$ in 3.2.3 ({cite:t}`vaswani2017attention`). Padding is not mentioned there; its mask is in the authors' released code.
