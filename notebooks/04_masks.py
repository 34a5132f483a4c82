# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Masks
#
# A mask is a table of yes and no that decides which keys each query may see; a Transformer needs one against padding and one against the future (sections 3.1 and 3.2.3 of the paper).

# %% tags=["remove-input"]
from book.machine import show_machine

show_machine("masks")

# %% tags=["export", "hide-input"]
import torch
from torch import Tensor

# %% [markdown]
# A small model learns to predict the next token. Its loss falls to about 0.12, although the tokens are the tosses of a coin and nobody can do better than 0.69. What was forgotten is a **mask**.
#
# ## What a forgotten causal mask costs
#
# Each token is the one before it plus 1 or plus 3, modulo 8, and a coin decides which. The best prediction therefore gives one half to each of two tokens, and its loss is $-\ln \tfrac12 = 0.69$.

# %%
import torch.nn.functional as F

from annotated_transformer.attention import attention

modulus, length = 8, 6
random = torch.Generator().manual_seed(1)


def tosses(count, length):
    jumps = 1 + 2 * torch.randint(0, 2, (count, length), generator=random)
    return jumps.cumsum(dim=1) % modulus


print(tosses(2, 7).tolist())

# %% [markdown]
# The model is the smallest that will do: a vector for each token and for each of six places, one [attention](03_attention.ipynb#the-code), and scores for the next token. It reads six tokens at once and predicts at each of them the one that follows.


# %%
def predict(tokens, weights, mask):
    token, place, W_Q, W_K, W_V, out = weights
    x = token[tokens] + place[: tokens.size(1)]
    return (x + attention(x @ W_Q, x @ W_K, x @ W_V, mask)[0]) @ out


def learn(mask, updates=200, width=16):
    random.manual_seed(0)
    places = (length, width)
    shapes = [(modulus, width), places, *[(width, width)] * 3, (width, modulus)]
    weights = [0.3 * torch.randn(shape, generator=random) for shape in shapes]
    adam = torch.optim.Adam([w.requires_grad_() for w in weights], lr=0.03)
    losses = []
    for _ in range(updates):
        rows = tosses(32, length + 1)
        scores = predict(rows[:, :-1], weights, mask)
        loss = F.cross_entropy(scores.mT, rows[:, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return weights, losses


# %% [markdown]
# We train it twice. In the first run, position $t$ sees the tokens up to its own; in the second, it sees all six.

# %%
everything = torch.ones(length, length, dtype=torch.bool)
past = everything.tril()  # row t: True in columns 0 to t
trained = {"with a mask": learn(past), "without": learn(everything)}

# %% tags=["hide-input"]
import math

import altair as alt

from book.figures import AMBER, RESIDUAL, SKY, curves, heatmap, show


def panels(*drawn):  # (title, rows, columns, weights, mask) each
    return [heatmap(w, r, c, m, cell=26).properties(title=t) for t, r, c, w, m in drawn]


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-leak", "caption": "Which of these models would you take? Training loss with a mask that hides the future (solid) and without it (dashed), when the next token is the toss of a coin. The gray line is ln 2, the best mean that an honest model can reach."}}
looks = {"with a mask": (SKY, [1, 0]), "without": (AMBER, [5, 3])}
records = [
    {"update": i, "loss": round(losses[i], 3), "mask": name}
    for name, (_, losses) in trained.items()
    for i in range(0, len(losses), 2)
]
names = dict.fromkeys(looks, (160, "above"))
drawn = curves(records, alt.X("update:Q"), alt.Y("loss:Q"), "mask", looks, names)
floor = alt.Chart(alt.Data(values=[{"loss": math.log(2)}])).mark_rule(color=RESIDUAL)
show(
    drawn + floor.encode(y="loss:Q"),
    alt="With the mask the loss falls to ln 2. Without it, the loss falls far below.",
)

# %% tags=["remove-cell"]
if CHECKING:
    honest, cheating = (sum(losses[-50:]) / 50 for _, losses in trained.values())
    assert abs(honest - math.log(2)) < 0.1 and abs(cheating - math.log(2) / 6) < 0.1

# %% [markdown]
# The second loss comes down to about $0.69 / 6 = 0.12$, and that number gives the trick away. At five of the six positions the answer is in view, one place to the right, so the model copies it. Only the last position has to guess.
#
# Now both write, one token after another. Which of them do you expect to do it better?


# %% tags=["nbval-ignore-output"]
def flawless(weights, mask):
    rows = tosses(200, 1)
    for n in range(1, length + 1):
        scores = predict(rows, weights, mask[:n, :n])[:, -1]
        following = scores.softmax(-1).multinomial(1, generator=random)
        rows = torch.cat([rows, following], dim=1)
    jumps = rows.diff() % modulus
    return ((jumps == 1) | (jumps == 3)).all(dim=1).float().mean()


print(f"with a mask: {flawless(trained['with a mask'][0], past):.0%} keep to the rule")
print(f"without: {flawless(trained['without'][0], everything):.0%} keep to the rule")

# %% tags=["remove-cell"]
if CHECKING:
    assert flawless(trained["with a mask"][0], past) > 0.8
    assert flawless(trained["without"][0], everything) < 0.4

# %% [markdown]
# The model with the better loss has learned to copy and hardly anything else. If your loss is too good and your output is nonsense, look at this mask and at the [shift of the targets](10_transformer.ipynb#the-target-shifted-by-one), because either mistake looks like this. Validation won't warn you, since it leaks in the same way.
#
# ## The causal mask
#
# In this book a mask is boolean, each row is a query and each column a key, and True means *may attend*.
#
# A decoder writes from left to right. In training the whole sentence is known, and we want the predictions at all positions in one pass. With the **causal mask**, position $t$ may look at itself and to its left, never to its right:
#
# $$ M^\text{causal}_{ts} = [\,s \leq t\,] $$ (eq-causal-mask)
#
# The square brackets are True where what they hold is true. A position may see itself, because it predicts the word *after* it.
#
# **Exercise 1. Write them first** (★, 10 min). First half: write `causal_mask(length)` without `tril`. `check("causal_mask", yours)`, from `annotated_transformer`, knows the common mistakes.


# %% tags=["export"]
def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Let each position attend to itself and to those before it (section 3.2.3).

    Returns booleans (length, length): row t is True up to and including column t.
    """
    everything = torch.ones(length, length, dtype=torch.bool, device=device)
    return everything.tril()


# %% [markdown]
# `tril` keeps the lower triangle. PyTorch's own attention has this mask built in, so it serves as the reference. Then comes the test that matters: if the future changes, does the past?

# %%
random.manual_seed(1)
x = torch.randn(1, 6, 4, generator=random, dtype=torch.float64)
ours = attention(x, x, x, causal_mask(6))[0]
reference = F.scaled_dot_product_attention(x, x, x, is_causal=True)
print(f"largest difference to PyTorch's output: {(ours - reference).abs().max():.5f}")

other = torch.cat([x[:, :3], -x[:, 3:]], dim=1)  # another future
change = attention(other, other, other, causal_mask(6))[0] - ours
print("change:", [round(c, 2) for c in change.norm(dim=-1)[0].tolist()])

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ours, reference)
    assert not change[0, :3].any() and change[0, 3:].any(-1).all()

# %% [markdown]
# The first three positions don't move. In a stack of many layers they wouldn't either, because they look only at positions that haven't seen the future.
#
# ### Is the causal mask needed at inference?
#
# When the model writes, the last position sees all words anyway. With one layer you could drop the mask. With two you can't:


# %%
def last_of_stack(x, mask, layers):
    for _ in range(layers):
        x = attention(x, x, x, mask)[0]
    return x[:, -1]  # the position that writes the next word


for layers in (1, 2):
    masked, open_to_all = (last_of_stack(x, m, layers) for m in (causal_mask(6), None))
    difference = (masked - open_to_all).abs().max()
    print(f"layers: {layers}, difference {difference:.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    assert difference > 0.05

# %% [markdown]
# The last position reads *earlier* ones, and without a mask those have seen words after them, as they never did in training. A trained model lets you see what that does to the next word:
#
# :::{what-if} masks
# What is the causal mask worth when the model writes? Each row is a word of a translation that was written with the mask; the bars are the probability that the model gives to this word, with the mask and without it. In the last column the mask is off and the whole translation is in view, the word to be predicted included.
#
# The figure runs on [the website](https://annotated-transformer.github.io/annotated-transformer/notebooks/04_masks.html#fig-what-if-masks).
# :::
#
# ## How to hide a key
#
# Sentences differ in length but the rows of a tensor don't, so short ones are filled up with **padding**, a token `<pad>`. It has a vector like any other. We make one up that is a little like a noun, and fill *cat likes fish* up to five places:

# %%
from book.example import W_K, W_Q, W_V, X

pad = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
padded = torch.stack([*X[2:], pad, pad])  # cat likes fish <pad> <pad>
q, k, v = padded @ W_Q, padded @ W_K, padded @ W_V
is_word = torch.tensor([True, True, True, False, False])

before = attention(q, k, v)[1]
after = attention(q, k, v, is_word)[1]  # one row, the same for each query
rows_hidden = attention(q, k, v, is_word[:, None])[1]

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-columns-rows", "caption": "What does padding take from the words, and how is it stopped? Weights of a padded sentence without a mask, with its padded keys hidden, and with its padded queries hidden instead. Hatched means hidden. With hidden keys the words share everything among themselves; with hidden queries they still spend weight on `<pad>`."}}
names = ["cat", "likes", "fish", "<pad>", "<pad>"]
everywhere = torch.ones(5, 5, dtype=torch.bool)
show(
    *panels(
        ("no mask", names, names, before, everywhere),
        ("keys hidden", names, names, after, is_word & everywhere),
        ("queries hidden", names, names, rows_hidden, is_word[:, None] & everywhere),
    ),
    alt="Without a mask likes gives 0.11 to each of two padding tokens. With hidden keys it gives them 0. With hidden queries it still gives them 0.11 each, and the two padded rows are empty.",
)

# %% tags=["remove-cell"]
if CHECKING:
    alone = attention(q[:3], k[:3], v[:3])[1]
    torch.testing.assert_close(after[:3, :3], alone)
    assert not rows_hidden[3:].any() and round(before[1, 3].item(), 2) == 0.11

# %% [markdown]
# Without a mask, `likes` gives nearly a quarter of its weight to padding, so what it finds depends on the other sentences of the batch.
#
# Here are four ways to hide a key, after a row that hides nothing. Which of them work?

# %%
scores = (q @ k.T / 4**0.5)[1]  # of likes
hidden = ~is_word
ways = {
    "nothing hidden": scores.softmax(-1),
    "score × 0": (scores * is_word).softmax(-1),
    "weight × 0": scores.softmax(-1) * is_word,
    "score = 1e9": scores.masked_fill(hidden, 1e9).softmax(-1),
    "score = −∞": scores.masked_fill(hidden, -torch.inf).softmax(-1),
}

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hiding", "caption": "Which way hides a key? Weights of `likes` over three words and two padding tokens, and their sum. Only the last row gives padding nothing and still sums to 1."}}
rows = [[*weights.tolist(), weights.sum().item()] for weights in ways.values()]
show(
    heatmap(rows, list(ways), [*names, "sum"], titles=("", "key: attended to")),
    alt="Five rows of weights. Only with minus infinity are both padding tokens at 0 and the sum at 1.",
)

# %% tags=["remove-cell"]
if CHECKING:
    torch.testing.assert_close(ways["score = −∞"][:3], alone[1])
    assert round(rows[2][-1], 2) == 0.77

# %% [markdown]
# With score × 0 the hidden key still has the exponential $e^0 = 1$, as it would with a vector of zeros. With weight × 0, its share is thrown away after the softmax, so the row sums to 0.77. And 1e9, where somebody forgot the minus sign, gives the hidden keys everything. Minus infinity is right: since $e^{-\infty} = 0$, the key drops out of the denominator, too.
#
# ### Does True show or hide?
#
# If a mask goes from one convention to the other without a `~`, a sentence attends to its padding and to nothing else.
#
# | where | True means |
# |---|---|
# | this book, `F.scaled_dot_product_attention` | may attend |
# | `nn.MultiheadAttention`, `nn.Transformer` and their layers | hidden |
# | PyTorch's masks of floats | they are added to the scores: 0 keeps, −∞ hides |
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
# Comparing with `PAD` isn't enough. In the model the scores have four axes: sentences, attentions side by side (eight of them, from the next chapter on), queries, keys. PyTorch lines up two shapes from the right and takes a missing axis as 1, so the mask has to say which of its axes are which.
#
# **Exercise 1, second half.** Write `padding_mask(tokens)`, which is True where a key is not padding. It takes the token ids of $B$ sentences, $(B, S)$, and its result must broadcast to scores of shape $(B, H, T, S)$, for $H$ attentions side by side. `check("padding_mask", yours)` says whether it does.
#
# In ours, `None` in an index adds an axis of length 1:


# %% tags=["export"]
def padding_mask(tokens: Tensor) -> Tensor:
    """Let every query attend to the keys that are words, in each sentence of a batch.

    Takes token ids (B, S); returns booleans (B, 1, 1, S), True where a key may be attended to.
    The paper does not mention this mask.
    """
    is_word = tokens != PAD
    return is_word[:, None, None, :]


# %% [markdown]
# | for 2 sentences of 5 tokens | sentences | side by side | queries | keys | |
# |---|:---:|:---:|:---:|:---:|---|
# | scores | 2 | 8 | 5 | 5 | |
# | `padding_mask(tokens)` | 2 | 1 | 1 | 5 | one row for all queries |
# | `tokens != PAD` | | | 2 | 5 | error: 2 does not fit 5 queries |
#
# There is no error when a batch has as many sentences as each has tokens:

# %%
# 5 sentences of 5 tokens
square = torch.tensor([[5, 6, 7, PAD, PAD], *[[8, 9, 5, 6, 7]] * 4])
right = padding_mask(square).expand(5, 1, 5, 5)
flat = (square != PAD).expand(5, 1, 5, 5)
print("cells that differ:", (right ^ flat).sum().item(), "of", right.numel())

# %% [markdown]
# The row of sentence 0 has become the row of *query* 0, in all sentences.
#
# ### How to test a mask
#
# Cut the padding off. With the mask, a padded sentence must give what the bare one gives:

# %%
tokens = torch.tensor([[5, 6, 7, 8, PAD, PAD]])
kept = tokens[0] != PAD
bare = attention(x[:, kept], x[:, kept], x[:, kept])[0]
for name, mask in {"with the mask": padding_mask(tokens)[0], "without": None}.items():
    words = attention(x, x, x, mask)[0][:, kept]
    print(f"{name}: words off by {(words - bare).abs().max():.2f}")

# %% tags=["remove-cell"]
if CHECKING:
    masked = attention(x, x, x, padding_mask(tokens)[0])[0][:, kept]
    torch.testing.assert_close(masked, bare)
    assert (words - bare).abs().max() > 0.1

# %% [markdown]
# ### Padded queries
#
# Padded positions also ask. Hiding their rows instead of their columns protects nobody, as the right panel of {numref}`fig-columns-rows` shows. It also leaves rows without any open key, where softmax divides zero by zero; `attention` returns zeros there ([Further](#what-becomes-of-an-empty-row)).
#
# The rule is to *mask keys, never rows*. What a padded query computes does no harm, because no word attends to it and the loss skips it. In this book no row is ever empty, because a source ends with `</s>`, which every query may see, and a target begins with `<s>`, which is in no query's future.
#
# ## Both at once
#
# Targets are padded, too, so a key must be open in both masks. $(B, 1, 1, T)$ and $(T, T)$ broadcast to $(B, 1, T, T)$.


# %% tags=["export"]
def target_mask(tokens: Tensor) -> Tensor:
    """Let each target position attend to the words up to and including itself.

    Takes token ids (B, T); returns booleans (B, 1, T, T): padding and causal mask in one.
    """
    past = causal_mask(tokens.size(1), tokens.device)
    return padding_mask(tokens) & past


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-and", "caption": "How do a row and a triangle make one mask? Hatched keys are hidden. The padding mask is one row, repeated for each query; the causal mask is the same for each sentence. In both together, which is the target mask, a key is open where each of them leaves it open."}}
names = ["<s>", "the", "cat", "<pad>", "<pad>"]
word_row = torch.tensor([[True, True, True, False, False]])
triangle = causal_mask(5)
show(
    *panels(
        ("padding", ["any"], names, word_row, word_row),
        ("causal", names, names, triangle, triangle),
        ("both", names, names, triangle & word_row, triangle & word_row),
    ),
    alt="A row with three open keys, and a triangle. Together they leave a triangle whose last two columns are hidden.",
)

# %% [markdown]
# ## Which mask goes where
#
# The model attends in three places, and *the padding mask belongs to the keys* in all of them.
#
# | where | queries | keys | mask |
# |---|---|---|---|
# | the encoder, to itself | source | source | `padding_mask(source)` |
# | the decoder, to itself | target | target | `target_mask(target)` |
# | the decoder, to the source | target | source | `padding_mask(source)` |
#
# The encoder has no causal mask, because the source is complete before the first word is written. A German word often has to look to its right, since the verb may come at the end. When the decoder looks at the source, the target's mask, $T \times T$, doesn't fit scores of $T \times S$ unless the two lengths happen to be equal; then it hides the wrong keys.
#
# ## What to remember
#
# - Queries are rows, keys are columns, and True means *may attend*.
# - A hidden score becomes minus infinity before the softmax. Zero vectors, zero scores and zeroed weights don't hide a key.
# - The causal mask lets a decoder learn at all positions at once. A loss that is too good to be true means that it leaks.
# - Mask keys, never rows. The padding mask belongs to the keys in all three attentions.
#
# ## Exercises
#
# **1. Write them first** is above, [one half](#the-causal-mask) and [the other](#the-padding-mask).
#
# :::{admonition} Solution 1
# :class: dropdown
# The causal mask compares the place of the key with the place of the query, $s \le t$, by broadcasting a row against a column: with `position = torch.arange(length)` it is `position[None, :] <= position[:, None]`. The padding mask needs its two axes of length 1: `(tokens != 0).unsqueeze(1).unsqueeze(1)` has the shape $(B, 1, 1, S)$. Without them, `tokens != 0` is taken for a table of queries and keys.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    from annotated_transformer import check

    def by_places(length):
        position = torch.arange(length)
        return position[None, :] <= position[:, None]

    assert check("causal_mask", by_places).passed
    two_axes = check("padding_mask", lambda t: (t != 0).unsqueeze(1).unsqueeze(1))
    assert two_axes.passed

# %% [markdown]
# **2. By hand** (★, 5 min). How many cells of `target_mask` are True for a target of 6 tokens, the last 2 of them padding?
#
# :::{admonition} Solution 2
# :class: dropdown
# Row $t$, counted from 0, has $\min(t + 1, 4)$ open cells. That makes $1 + 2 + 3 + 4 + 4 + 4 = 18$.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    assert target_mask(torch.tensor([[BOS, 5, 6, 7, PAD, PAD]])).sum() == 18

# %% [markdown]
# **3. Too late** (★★, 10 min). Hide the future by setting weights to zero *after* the softmax. Does the past stay the same when the future changes? Guess first, then try it with `x` and `other` from above.
#
# :::{admonition} Solution 3
# :class: dropdown
# It doesn't. Position $t$ gets $\sum_{s \le t} e^{a_s} v_s \,/\, \sum_{\text{all } s} e^{a_s}$, where $a_s$ are its scores. The future is gone from the sum on top and is still in the one below, so it changes how much the past gets: `((x @ x.mT / 2).softmax(-1) * causal_mask(6)) @ x` moves at the first three positions as well. A model can learn to read its answer there.
# :::

# %% tags=["remove-cell"]
if CHECKING:
    late = [(y @ y.mT / 2).softmax(-1) * causal_mask(6) @ y for y in (x, other)]
    assert (late[0] - late[1])[:, :3].abs().max() > 0.1

# %% [markdown]
# ## Further
#
# ### What becomes of an empty row?
#
# A padded batch with an empty sentence, or padding on the left under a causal mask, makes rows without an open key. Our `attention` and `F.scaled_dot_product_attention` give them zeros. `nn.MultiheadAttention` returns NaN ("not a number") by default; with `need_weights=False` it returns zeros, except with `batch_first=True` in evaluation without gradients, where a fast path gives NaN again (torch 2.13). So a model of PyTorch's layers can train undisturbed and show its first NaN in evaluation.
#
# In training, the gradient has to survive, too. Behind the zeros the softmax still holds NaN, and sends NaN back. In our code the *first* `torch.where` stops it, because no gradient passes to a score that was replaced. Where a mask is *added* to the scores, nothing stops it: replace NaN by 0 after the softmax, and the output is clean while the gradients are not.

# %% tags=["remove-cell"]
if CHECKING:
    added = torch.full((3,), -math.inf)
    asked = torch.zeros(3, requires_grad=True)
    (asked + added).softmax(-1).nan_to_num().sum().backward()
    assert asked.grad.isnan().all()
    ours = torch.ones(2, 2, requires_grad=True)
    attention(ours, ours, ours, torch.zeros(2, 2, dtype=torch.bool))[0].sum().backward()
    assert not ours.grad.isnan().any()
    empty_row = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    nothing = F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2)] * 3, empty_row)
    assert not nothing.any()

# %% [markdown]
# ### Why not $-10^9$?
#
# Harvard's Annotated Transformer {cite:p}`rush2018annotated` hides a key with $-10^9$, and so does [tensor2tensor](https://github.com/tensorflow/tensor2tensor/blob/017f83a91da0a4f481834fa0eac44d446774acfe/tensor2tensor/layers/common_attention.py), the authors' own code. In 32 bits that works, as long as each row keeps an open key. Where *every* key is hidden, all scores are equal, so the query takes the plain average of exactly what it must not see.
#
# In 16 bits it fails at once: the largest number of fp16 is 65,504, and PyTorch refuses to store $-10^9$ there.

# %% tags=["remove-cell"]
if CHECKING:
    try:
        scores.half().masked_fill(hidden, -1e9)
        message = "no error"
    except RuntimeError as error:
        message = str(error)
    assert "overflow" in message
    even = torch.full((5,), -1e9).softmax(-1)
    torch.testing.assert_close(even, torch.full((5,), 0.2))
