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
# # Masks
#
# This chapter builds the masks that decide which keys each query may see (sections 3.1 and 3.2.3 of the paper).
#
# [Attention](03_attention.ipynb) lets every query look at every key. Twice in a Transformer that is wrong. A batch holds sentences of different lengths, so short ones are filled up with **padding**, and nobody should attend to filling. And a decoder that learns to predict the next word must not read that word. Both cures are the same: a table of yes and no.
#
# The whole model needs three such tables, and each is one line of code. They are easy to get wrong, too, and a wrong mask seldom raises an error. So we build each one, and then measure what happens without it, with its opposite, and with its shape a little off.

# %% tags=["export"]
import torch
from torch import Tensor

# %%
import math

import altair as alt
import torch.nn.functional as F

from annotated_transformer.attention import attention
from book.figures import KEY, QUERY, RESIDUAL, curves, heatmap, show, show_steps

# %% [markdown]
# ## What goes wrong without a mask
#
# We take a sentence of three words that is easy to follow. Each is a vector of width 4, with a 2 at a place of its own and zeros elsewhere. They serve as queries, keys and values at once. So a word scores itself $2 \cdot 2 / \sqrt 4 = 2$ and each other word 0. We attend, then append zero vectors, as a batch with a longer neighbor would, and attend again.

# %%
words = 2 * torch.eye(3, 4)[None]  # one sentence, three words, width 4
for padding in (0, 2, 10, 30):
    padded = F.pad(words, (0, 0, 0, padding))
    first = attention(padded, padded, padded)[1][0, 0]  # the weights of the first word
    print(f"{padding:2} paddings: itself {first[0]:.2f}, padding {first[3:].sum():.2f}")

# %% [markdown]
# The same word gives different answers; which one we get depends on its neighbors in the batch. By hand: the exponentials of its scores are $e^2 = 7.39$, 1 and 1, together 9.39, so it keeps $7.39 / 9.39 = 0.79$ for itself. A zero key is not invisible. Its score is 0, and $e^0 = 1$ is as good a share as that of a real word. Two of them make the sum 11.39, and $2 / 11.39 = 0.18$ of the weight goes to nothing. Thirty make it 39.39, and three quarters are lost.
#
# In the model it is worse. There, padding is a token like the others, with a learned vector and a position. Its score can be anything.
#
# ## How do we hide a key?
#
# The key must get the weight zero, and the others must share what it leaves. Five ways to write this down come to mind. We try them on the first word, and give the padding a vector of ones, so that its score is $2 \cdot 1 / \sqrt 4 = 1$.

# %%
padded = torch.cat([words, torch.ones(1, 2, 4)], dim=1)
hidden = torch.tensor([False, False, False, True, True])
scores = (padded @ padded.mT / math.sqrt(4))[0, 0]
ways = {
    "nothing hidden": scores.softmax(-1),
    "score × 0": (scores * ~hidden).softmax(-1),
    "weight × 0": scores.softmax(-1) * ~hidden,
    "score = 1e9": scores.masked_fill(hidden, 1e9).softmax(-1),
    "score = −∞": scores.masked_fill(hidden, -math.inf).softmax(-1),
}
print("scores", scores.tolist())

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-hiding", "caption": "Which way hides a key? Weights of the first word over three words and two paddings, and their sum. Only the last row gives padding nothing and still sums to 1; it is also what the sentence gets alone (0.79, 0.11, 0.11)."}}
alone = attention(words, words, words)[1][0, 0]
torch.testing.assert_close(ways["score = −∞"][:3], alone)
rows = [[*weights.tolist(), weights.sum().item()] for weights in ways.values()]
columns = ["word 1", "word 2", "word 3", "<pad>", "<pad>", "sum"]
show(
    heatmap(rows, list(ways), columns, titles=("", "key: attended to")),
    alt="Five rows of weights. Only with minus infinity are both paddings at 0 and the sum at 1.",
)

# %% [markdown]
# - **Score × 0** leaves the key with $e^0 = 1$. It is our zero vector again.
# - **Weight × 0**, after the softmax, hides the key and throws its share away. The row sums to 0.63, not to 1. Worse, how much is thrown away depends on the score of the hidden key. Were the score of the paddings 3 in place of 1, the first word would get $7.39 / (9.39 + 2 \cdot 20.1) = 0.15$ in place of 0.50. A hidden key must not have a say.
# - **Score = 1e9**, or $10^9$, gives the hidden keys everything. Texts that tell you to "set the score to infinity" mean *minus* infinity.
# - **Score = −∞** is right. Since $e^{-\infty} = 0$, the key is missing from the sum below the bar as well. The others get what they would get if the key had never been there.
#
# Is plus infinity at least as bad as $10^9$? It cannot even be computed, since softmax subtracts the largest score and $\infty - \infty$ is not a number:

# %%
print(torch.tensor([2.0, math.inf]).softmax(-1).tolist())

# %% [markdown]
# ## A table of yes and no
#
# A **mask** marks the scores to keep. It is a boolean matrix with a row for each query and a column for each key. In this book, and in PyTorch's fused attention, True means *may attend*:
#
# $$
# \text{score}_{ts} \leftarrow
# \begin{cases}
# \text{score}_{ts} & \text{if } M_{ts} \\
# -\infty & \text{otherwise}
# \end{cases}
# $$ (eq-mask)
#
# The last chapter's `attention` does just this, in one line: it fills the scores where the mask is False with minus infinity. What is left is to make $M$.
#
# ## Does True show or hide?
#
# Our rule, that True shows, is not universal, and many a silent bug is a mask that has crossed this border without a `~`:
#
# | where | True means |
# |---|---|
# | this book, `F.scaled_dot_product_attention` | may attend |
# | `nn.MultiheadAttention`, `nn.Transformer` and their layers | hidden |
# | a mask of floats, in any of them | no True: it is added to the scores, so 0 keeps and −∞ hides |
#
# What does the opposite of a mask do? On our padded sentence:

# %%
is_word = ~hidden
for name, mask in {"right": is_word, "inverted": ~is_word}.items():
    weights = attention(padded, padded, padded, mask)[1]
    print(f"{name}: weight on words {weights[..., :3].sum(-1).mean():.2f}")

# %% [markdown]
# The sentence attends to its padding and to nothing else. No error is raised, and training goes on. We are lucky if the batch has a sentence without padding. All of its keys are hidden then, and softmax returns NaN, "not a number".
#
# ## The padding mask
#
# Words reach the model as integers, called tokens. Four of them are reserved. We give padding the number 0, the start of a sentence 1, its end 2, and anything unknown 3.

# %% tags=["export"]
PAD, BOS, EOS, UNK = 0, 1, 2, 3  # <pad>, <s>, </s>, <unk>

# %% [markdown]
# The **padding mask** asks one thing of each key: is it a word? Whether position $s$ holds a word does not depend on who asks. So every row of the mask is the same, and one row is enough:
#
# $$ M_{ts} = [\,\text{token}_s \neq \text{PAD}\,] $$ (eq-padding-mask)
#
# The square bracket is 1, or True, if what it holds is true. The code compares, then adds two axes of length 1: `None` in an index puts a new axis at its place.


# %% tags=["export"]
def padding_mask(tokens: Tensor) -> Tensor:
    """Let every query attend to the keys that are words, in each sentence of a batch.

    Takes token ids (B, S); returns booleans (B, 1, 1, S), True where a key may be attended to.
    The paper leaves this mask unsaid.
    """
    return (tokens != PAD)[:, None, None, :]


# %%
tokens = torch.tensor([[5, 6, 7, PAD, PAD], [8, 9, 5, 6, 7]])
mask = padding_mask(tokens)
print(mask.shape)
print(mask.int().squeeze())

# %% [markdown]
# ### Why the two axes of length 1?
#
# The scores of the whole model have four axes: sentences, [heads](05_multi_head_attention.ipynb), queries, keys. PyTorch lines up the axes of two tensors from the right. It repeats an axis of length 1 as often as needed, and takes a missing axis as 1. So the mask has to say which of its axes are which. For 2 sentences, 8 heads and 5 tokens:
#
# | tensor | sentences | heads | queries | keys | |
# |---|:---:|:---:|:---:|:---:|---|
# | scores | 2 | 8 | 5 | 5 | |
# | `padding_mask(tokens)` | 2 | 1 | 1 | 5 | one row for all heads and queries |
# | `tokens != PAD` | | | 2 | 5 | error: 2 does not fit 5 queries |
#
# The error is welcome. It does not come when the batch has as many sentences as the sentences have tokens:

# %%
square = torch.tensor([[5, 6, 7, PAD, PAD], *[[8, 9, 5, 6, 7]] * 4])  # 5 sentences of 5 tokens
right, flat = padding_mask(square), square != PAD
print("both fit:", right.expand(5, 8, 5, 5).shape == flat.expand(5, 8, 5, 5).shape)
print("cells that differ, in each head:", (right ^ flat).sum().item(), "of 125")

# %% [markdown]
# The row of sentence 0 has become the row of *query* 0, in each sentence. So sentence 0 sees padding in its rows 1 to 4, which makes $4 \cdot 2 = 8$ wrong cells. And query 0 of the four full sentences is blind to two words, which makes 8 more. A bug that depends on the size of a batch shows up once in a thousand steps and is gone when you look. Four axes, always, are the cure.
#
# ### How do we test a mask?
#
# The check needs no second mask. Cutting the padding off is the honest reference: with the mask, a padded sentence must give what the bare sentence gives. One sentence proves little, so we draw a hundred, of 1 to 8 words with 1 to 8 paddings.

# %%
random = torch.Generator().manual_seed(1)
for _ in range(100):
    length, padding = torch.randint(1, 9, (2,), generator=random).tolist()
    x = torch.randn(1, length + padding, 4, generator=random, dtype=torch.float64)
    is_word = torch.arange(length + padding) < length
    masked, _ = attention(x, x, x, padding_mask(is_word.long()[None])[:, 0])
    bare = x[:, :length]
    assert torch.allclose(masked[:, :length], attention(bare, bare, bare)[0])
print("padding never changed a word")

# %% [markdown]
# Would the test notice a missing mask? We leave it out, for 300 sentences of four random words with twelve random paddings.

# %%
x = torch.randn(300, 16, 4, generator=random, dtype=torch.float64)
without, alone = attention(x, x, x)[0][:, :4], attention(*[x[:, :4]] * 3)[0]
off = (without - alone).std() / alone.std()
print(f"off by {off:.2f} of the spread of the outputs")

# %% [markdown]
# A model trained without the mask still learns. But what it makes of a short sentence depends on the batch. And a sentence that somebody translates alone, without padding, is of a kind that it has seldom met. How much the logits of a whole model move is measured in [the Transformer](10_transformer.ipynb).
#
# ## Columns or rows?
#
# Padding stands in two places of the table: as a key, in a column, and as a query, in a row. Should padded *queries* be masked as well? It sounds tidy, and people ask for it. Let us try all three on the padded sentence.

# %%
is_word = ~hidden[None]  # one sentence of five
column, row = is_word[:, None, :], is_word[:, :, None].expand(1, 5, 5)
alone = attention(words, words, words)[0]
for name, mask in {"columns": column, "rows": row, "both": column & row}.items():
    output, _ = attention(padded, padded, padded, mask)
    good, lost = torch.allclose(output[:, :3], alone), output.isnan().any(-1).sum().item()
    print(f"{name} hidden: words right {good}, rows not a number {lost}")


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-columns-rows", "caption": "Which hiding helps the words? Weights of the padded sentence with hidden columns (left), hidden rows (middle) and both (right). Hatched scores are hidden. In the middle the words spend weight on padding. In the middle and on the right, two rows are left with nothing."}}
def panels(*drawn):  # (title, rows, columns, weights, mask) each
    maps = [heatmap(w, r, c, m, cell=30).properties(title=t) for t, r, c, w, m in drawn]
    return alt.hconcat(*maps, spacing=14)


names, drawn = ["word 1", "word 2", "word 3", "<pad>", "<pad>"], []
for title, mask in {"columns": column, "rows": row, "both": column & row}.items():
    weights = attention(padded, padded, padded, mask)[1][0].nan_to_num()
    drawn.append((title, names, names, weights, mask[0].expand(5, 5)))
show(
    panels(*drawn),
    alt="With hidden columns each row has weights on three words. With hidden rows the three words put weight on padding, and two rows are empty.",
)

# %% [markdown]
# Hiding columns is what counts. Hiding rows alone leaves every word looking at padding. Hiding both gets the words right, and destroys the two padded rows: they have no key left, and softmax divides zero by zero.
#
# Does this matter, since nobody reads those rows? The next layer reads them. Padding is hidden there as a key, so its weight is 0. But $0 \cdot \text{NaN}$ is NaN, not 0:

# %%
once, _ = attention(padded, padded, padded, column & row)
twice, _ = attention(once, once, once, column)  # the next layer, masked as it should be
print("rows lost:", once.isnan().any(-1).sum().item(), "then", twice.isnan().any(-1).sum().item())

# %% [markdown]
# Two useless rows have taken the three good ones with them. PyTorch itself is of two minds about a row without keys: its fused kernel returns zeros, its `nn.MultiheadAttention` NaN (exercise 3 tries both). We avoid such rows.
#
# So the rule is: *mask keys*. A padded query may compute what it likes. Nobody attends to it, and the loss skips it ([regularization](17_regularization.ipynb)). It wastes a little work and harms no one.
#
# ## The causal mask
#
# The second mask is about time. A decoder writes a sentence from left to right, each word from the words before it. In training the whole sentence is known, and we want the predictions at all positions in one pass. So position $t$ may look at itself and to its left, never to its right. This is the **causal mask**:
#
# $$ M_{ts} = [\,s \leq t\,] $$ (eq-causal-mask)
#
# What is gained? A target of 30 tokens gives 30 predictions in one pass over 30 positions. Without the mask, each prediction would need a pass of its own over the words before it: $1 + 2 + \dots + 30 = 465$ positions in all, 15 times as many. A recurrent network has the predictions in one pass as well, but must walk from word to word. Here all rows are computed at the same time.
#
# May a position see itself? Yes. The word at $t$ has been written, and position $t$ predicts the word *after* it. The [targets are shifted](10_transformer.ipynb) by one place for this purpose.


# %% tags=["export"]
def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Let each position attend to itself and to those before it (section 3.2.3).

    Returns booleans (length, length): row t is True up to and including column t.
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


# %%
print(causal_mask(4).int())

# %% [markdown]
# `tril` keeps the lower triangle. Its twin `triu` keeps the upper one, which is this table turned over: each word would see the future only. The first row tells them apart. The first position sees nothing but itself, so there is one 1.
#
# The argument `device` says where the table is made. Scores and mask must be on the same device, and making the mask there is faster than sending it. We make it anew in each call. At 50 tokens it has 2,500 entries of one byte, too little to be worth a place in the model.
#
# PyTorch's fused attention can apply this mask by itself, which makes it our reference.

# %%
x = torch.randn(1, 6, 4, generator=random, dtype=torch.float64)
ours, _ = attention(x, x, x, causal_mask(6))
torch.testing.assert_close(ours, F.scaled_dot_product_attention(x, x, x, is_causal=True))

# %% [markdown]
# A second check asks what we really want to know: does changing the future change the past? We replace everything after position $t$, for each $t$.

# %%
for t in range(5):
    later = torch.randn(1, 5 - t, 4, generator=random, dtype=torch.float64)
    other = torch.cat([x[:, : t + 1], later], dim=1)
    changed, _ = attention(other, other, other, causal_mask(6))
    assert torch.allclose(changed[:, : t + 1], ours[:, : t + 1])
    assert not torch.allclose(changed[:, t + 1 :], ours[:, t + 1 :])
print("the past never depends on the future")

# %% [markdown]
# ## What does a forgotten causal mask cost?
#
# The model learns nothing that is of use, and its loss looks excellent. We show it on sequences that nobody can foresee. Each token is the one before it plus 1 or plus 3, counted around a circle of 8, and a coin decides which.


# %%
def tosses(count, length, random):
    steps = 1 + 2 * torch.randint(0, 2, (count, length), generator=random)
    return steps.cumsum(dim=1) % 8


print(tosses(2, 7, random).tolist())

# %% [markdown]
# The best prediction gives one half to each of the two tokens, and its loss is $-\ln \tfrac12 = 0.69$. A lower loss is proof of cheating. The model is the smallest that will do: a vector for each token and each place, one attention, and scores for the next token.


# %%
def predict(tokens, weights, masked):
    token, place, W_Q, W_K, W_V, out = weights
    n = tokens.size(1)
    x = token[tokens] + place[:n]
    mask = causal_mask(n) if masked else None
    return (x + attention(x @ W_Q, x @ W_K, x @ W_V, mask)[0]) @ out


# %% tags=["nbval-ignore-output", "hide-input"] mystnb={"figure": {"name": "fig-leak", "caption": "What does a leak look like? Training loss with the causal mask (solid) and without it (dashed), on sequences whose next token is the toss of a coin. The grey line is ln 2, the best that an honest model can do. Falling below it is no success."}}


def learn(masked, updates=200, n=6, width=16):
    random = torch.Generator().manual_seed(0)
    shapes = [(8, width), (n, width), *[(width, width)] * 3, (width, 8)]
    weights = [(0.3 * torch.randn(s, generator=random)).requires_grad_() for s in shapes]
    adam = torch.optim.Adam(weights, lr=0.03)
    for _ in range(updates):
        rows = tosses(32, n + 1, random)
        loss = F.cross_entropy(predict(rows[:, :-1], weights, masked).mT, rows[:, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return weights


losses, looks = [], {"causal mask": (QUERY, [1, 0]), "no mask": (KEY, [5, 3])}
trained = {name: learn(name == "causal mask") for name in looks}
honest, cheating = (sum(losses[end - 50 : end]) / 50 for end in (200, 400))
assert abs(honest - math.log(2)) < 0.1 and abs(cheating - math.log(2) / 6) < 0.1
records = [
    {"update": i % 200, "loss": round(losses[i], 3), "mask": list(looks)[i // 200]}
    for i in range(0, 400, 4)
]
drawn = curves(records, alt.X("update:Q"), alt.Y("loss:Q"), "mask", looks)
floor = alt.Chart(alt.Data(values=[{"loss": math.log(2)}])).mark_rule(color=RESIDUAL)
show(
    drawn + floor.encode(y="loss:Q"),
    alt="With the mask the loss stays at ln 2. Without it, it falls far below.",
)

# %% [markdown]
# Without the mask the loss falls to about $0.69 / 6 = 0.12$. Five of the six positions find their answer one place to the right and copy it. The last has nothing to its right, and has to guess. Now let both write, one token after another. There is no right-hand side any more.

# %% tags=["nbval-ignore-output"]
for name, weights in trained.items():
    rows = tosses(200, 1, random)
    for _ in range(6):
        chances = predict(rows, weights, name == "causal mask")[:, -1].softmax(-1)
        rows = torch.cat([rows, chances.multinomial(1, generator=random)], dim=1)
    flawless = ((rows.diff() % 8 == 1) | (rows.diff() % 8 == 3)).all(dim=1).float().mean()
    print(f"{name}: {flawless:.0%} of the rows follow the rule")
    assert flawless > 0.8 if name == "causal mask" else flawless < 0.4

# %% [markdown]
# The model with the better loss has learned to copy, and knows nothing of the rule. A training loss that is too good, beside output that is nonsense, nearly always means this leak. Validation does not catch it, for it leaks there, too.
#
# ## Does it hold through many layers?
#
# A word sees only its past. But its past has looked around, too, one layer below. Can the future come in by a detour? We ask which inputs an output depends on. One layer's answer is the mask itself. For two layers, go from query to key and from that key to its keys: the product of the two tables.

# %%
reach = causal_mask(6).int()
for layers in (2, 3, 6):
    through = reach.matrix_power(layers) > 0
    print(f"layers: {layers}, still the lower triangle: {torch.equal(through, causal_mask(6))}")

# %% [markdown]
# The product of lower triangles is a lower triangle: a chain of steps to the left never leads to the right. The same argument protects the padding mask: a hidden column is hidden in each layer, so no chain of steps ends there.
#
# ## Is the causal mask needed in use?
#
# When the model writes, there is no future to hide. The last position sees all words in any case. So can we drop the mask? For one layer, yes:


# %%
def stack(x, mask, layers):
    for _ in range(layers):
        x, _ = attention(x, x, x, mask)
    return x[:, -1]  # the position that writes the next word


for layers in (1, 2):
    same = torch.allclose(stack(x, causal_mask(6), layers), stack(x, None, layers))
    print(f"layers: {layers}, same result with and without the mask: {same}")

# %% [markdown]
# With two layers the answer changes. The last position reads the states of *earlier* positions, and without a mask those have now seen words that came after them. In training they never did. So the mask stays on, or else the model meets states that it was not trained for.
#
# It also saves work. With the mask, the state of an old word never changes again, and [decoding](19_decoding.ipynb) computes it once and keeps it.
#
# ## Both at once
#
# The target side of a batch is padded too. Its mask is the *and* of the two. By the same rules as before, $(B, 1, 1, T)$ and $(T, T)$ give $(B, 1, T, T)$: the row of each sentence is repeated for all queries, the triangle for all sentences.


# %% tags=["export"]
def target_mask(tokens: Tensor) -> Tensor:
    """Let each target position attend to the words up to and including itself.

    Takes token ids (B, T); returns booleans (B, 1, T, T): padding and causal mask in one.
    """
    return padding_mask(tokens) & causal_mask(tokens.size(1), tokens.device)


# %%
target = torch.tensor([[BOS, 5, 6, PAD, PAD]])
print(target_mask(target).shape)

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-and", "caption": "How do a row and a triangle make one mask? The padding mask of a target (left) is one row, repeated for each query. The causal mask (middle) is the same for each sentence. Where both are open, the target mask (right) is open."}}
names = ["<s>", "the", "cat", "<pad>", "<pad>"]
row, triangle, both = padding_mask(target)[0, 0], causal_mask(5), target_mask(target)[0, 0]
show(
    panels(
        ("padding_mask", ["any"], names, row, row),
        ("causal_mask", names, names, triangle, triangle),
        ("target_mask", names, names, both, both),
    ),
    alt="A row with three open keys and a triangle; together a triangle whose last two columns are hidden.",
)

# %% [markdown]
# The first column is True in every row, since each target begins with `<s>`. So no row is empty, and softmax never meets a row of nothing but $-\infty$.
#
# Why *and*, when other code has *or*? There, True hides: a key is hidden if it is padding *or* if it lies in the future. With our meaning a key is open if it is a word *and* does not. Take the wrong one, and the mask opens wide:

# %%
either = padding_mask(target) | causal_mask(5)
print("open:", target_mask(target).sum().item(), "with &,", either.sum().item(), "with |, of 25")


# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-toggles", "caption": "Which positions may each row see? Choose the masks that are on. Three targets of unequal length, the short ones padded. Hatched keys are hidden. For this figure all scores are equal, so that open keys share the weight evenly: what a mask takes from one key, the others in the row get. Each row sums to 1 in all four cases."}}
def evenly(title, asking, answering, mask):
    weights = mask / mask.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(5))
    return title, asking, answering, weights, mask


texts = ["<s> the black cat sleeps", "<s> cats sleep <pad> <pad>", "<s> sleep <pad> <pad> <pad>"]
lines = [text.split() for text in texts]
batch = torch.tensor([[PAD if word == "<pad>" else 9 for word in line] for line in lines])
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
# Look at the third sentence with both masks on. Its query `<pad>` in the last row sees `<s>` and *sleep*: padded queries keep their rows. And the triangle already hides all padding from the rows of the words, since padding stands to their right. Exercise 2 asks why we hide it twice.
#
# ## Which mask goes where?
#
# The model attends in three places, and the rule is the same in each: *the mask belongs to the keys*.
#
# | attention | queries | keys | mask | hides | shape |
# |---|---|---|---|---|---|
# | encoder, to itself | source | source | `padding_mask(source)` | source padding | $(B, 1, 1, S)$ |
# | decoder, to itself | target | target | `target_mask(target)` | target padding and the future | $(B, 1, T, T)$ |
# | decoder, to the source | target | source | `padding_mask(source)` | source padding | $(B, 1, 1, S)$ |
#
# "Only the decoder needs a mask" is a common reading of the paper, which speaks of the causal mask alone. All three tables hide padding, and one of them is the encoder's.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-masks", "caption": "Which keys may each query see, in each of the three attentions? Hatched keys are hidden; open ones share the weight evenly, as if all scores were equal. The source has three words and two paddings; the target has four tokens and one padding."}}
german = ["die", "Katze", "schläft", "<pad>", "<pad>"]
english = ["<s>", "the", "cat", "sleeps", "<pad>"]
source, target = torch.tensor([[5, 6, 7, PAD, PAD]]), torch.tensor([[BOS, 8, 9, 10, PAD]])
of_source = padding_mask(source)[0, 0].expand(5, 5)
show(
    panels(
        evenly("encoder, to itself", german, german, of_source),
        evenly("decoder, to itself", english, english, target_mask(target)[0, 0]),
        evenly("decoder, to the source", english, german, of_source),
    ),
    alt="In the first and third map the two padded source columns are hatched in every row; in the second everything right of the diagonal is, and the padded column.",
)

# %% [markdown]
# ### Why no causal mask in the encoder?
#
# The source is complete before the first word is written. There is no future in it. A word may look to its right, and in German it often must: the verb that decides the meaning stands at the end.
#
# For the same reason the decoder sees all of the source. Its third table has no triangle. A causal mask there would be meaningless: target word 3 need not translate source word 3.
#
# ### Why the source's mask in cross-attention?
#
# Because its keys are source positions. Passing the target's mask is an easy slip, and $T \times T$ does not fit $T \times S$, so it fails. Unless the two lengths are the same, as in the figure above. Then it hides the wrong things in silence.
#
# ## Questions that come up
#
# **Is it enough to make the vector of padding zero?** No. A zero key has the score 0 and the share $e^0 = 1$, as in the first section. And the position that is added to it makes it nonzero at once.
#
# **Is the causal mask a kind of dropout?** No. Nothing about it is random, and it is on in use as well as in training.
#
# **Does each head or layer have a mask of its own?** They all share one. The mask is made from the tokens, once for a batch; nothing about it is learned.
#
# **May a mask be made of 0 and 1?** Not here. `attention` refuses integers and floats. In PyTorch's fused attention a mask of floats means something else: it is added to the scores, so that zeros and ones would hide next to nothing.
#
# **Does a mask save work?** Not in our readable version, which computes every score and then throws some away: 10 of 25 for a target of five. Fused kernels can skip blocks in the future when they are told `is_causal`. Padding is cheaper to avoid than to skip; [batching](15_batching.ipynb) puts sentences of similar length together.
#
# **Does a hidden key learn?** Not from the queries that it is hidden from. With the weight 0, neither its key nor its value has any influence, so no gradient comes back. The next cell asks for the gradient of the three words' outputs.

# %%
x = padded.clone().requires_grad_()
attention(x, x, x, is_word[:, None, :])[0][:, :3].sum().backward()
print("gradient at each position:", [g != 0 for g in x.grad[0].abs().sum(dim=-1).tolist()])

# %% [markdown]
# **Who hides padding from the loss?** Not the mask. A padded position still predicts something, and the loss has to ignore it by its label ([regularization](17_regularization.ipynb)).
#
# ## What to remember
#
# - A mask is boolean, queries are rows, keys are columns, and True means *may attend*.
# - A hidden score becomes minus infinity before the softmax. Zero vectors, zero scores and zeroed weights do not hide a key.
# - Padding is hidden by columns, in all three attentions. The mask belongs to the keys.
# - The causal mask lets a decoder learn all positions at once without reading the answer. A loss that is too good to be true means that it leaks.
# - A row must keep at least one open column, or softmax has nothing to share out.
#
# ## Exercises
#
# **1. By hand.** How many cells of `target_mask` are True for a target of 6 tokens, the last 2 of them padding?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Row t, from 0, has min(t + 1, 4) open cells: 1 + 2 + 3 + 4 + 4 + 4 = 18.
target = torch.tensor([[BOS, 5, 6, 7, PAD, PAD]])
print(target_mask(target).sum().item())
assert target_mask(target).sum() == 18

# %% [markdown]
# **2. Hidden twice.** Targets are padded on the right. Show that the padding part of `target_mask` then never changes the row of a real word. Why do we keep it?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A word at t sees columns 0..t, all of them words, since padding lies to the right of every word.
# We keep it because a mask that is right by itself needs no such argument, and costs one "and".
print("same rows for the words:", torch.equal(target_mask(target)[0, 0, :4], causal_mask(6)[:4]))
assert not torch.equal(target_mask(target)[0, 0], causal_mask(6))

# %% [markdown]
# **3. What breaks if** the causal mask is `tril(-1)`, so that a position may not see itself?

# %% tags=["hide-cell", "nbval-ignore-output"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Row 0 has no open column. And each position would have to predict the next word without seeing the
# current one, the best clue there is.
strict = causal_mask(6).tril(-1)
x = torch.randn(1, 6, 4, generator=random, dtype=torch.float64)
ours, _ = attention(x, x, x, strict)
print("ours: row 0 is", ours[0, 0].tolist())
print("fused: row 0 is", F.scaled_dot_product_attention(x, x, x, strict)[0, 0].tolist())
theirs = torch.nn.MultiheadAttention(4, 1, batch_first=True).double()
print("nn.MultiheadAttention:", theirs(x, x, x, attn_mask=~strict)[0][0, 0].tolist())
assert ours[:, 0].isnan().all() and not ours[:, 1:].isnan().any()

# %% [markdown]
# **4. What breaks if** the future is hidden by setting weights to zero *after* the softmax? Run the test of the past and the future on it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The future's scores stay in the sum below the bar, so they change how much the past gets. It leaks.


def hidden_too_late(x):
    weights = (x @ x.mT / math.sqrt(x.size(-1))).softmax(-1) * causal_mask(x.size(1))
    return weights @ x


other = torch.cat([x[:, :3], -x[:, 3:]], dim=1)  # another future
same = torch.allclose(hidden_too_late(other)[:, :3], hidden_too_late(x)[:, :3])
print("the past is safe:", same)
assert not same

# %% [markdown]
# **5. Padding on the left.** Some models pad on the left. What does `target_mask` look like for the tokens `[PAD, PAD, BOS, 5]`, and what goes wrong? Mend it.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# The first two rows see padding only, all of it hidden: they are empty and become NaN, which spreads.
# Let each position see itself. The words' rows stay as they were; a padded query sees its own padding.
left = torch.tensor([[PAD, PAD, BOS, 5]])
mended = target_mask(left) | torch.eye(4, dtype=torch.bool)
print("open keys in each row:", target_mask(left).sum(-1).flatten().tolist(), end=" ")
print("mended:", mended.sum(-1).flatten().tolist())
assert torch.equal(mended[0, 0, 2:], target_mask(left)[0, 0, 2:]) and mended.any(-1).all()

# %% [markdown]
# **6. Write it yourself.** Write `padding_mask(tokens)` and `causal_mask(length)` without `tril` and without looking above. The shapes are $(B, 1, 1, S)$ and $(T, T)$. Then ask the [checker](E_checker.ipynb).


# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
def my_padding_mask(tokens):
    return (tokens != 0).unsqueeze(1).unsqueeze(1)


def my_causal_mask(length):
    position = torch.arange(length)
    return position[None, :] <= position[:, None]  # the key's place, the query's place


assert torch.equal(my_padding_mask(batch), padding_mask(batch))
assert torch.equal(my_causal_mask(5) & my_padding_mask(batch), target_mask(batch))
print("equal, with", target_mask(batch).sum().item(), "open cells")

from annotated_transformer import check

print(check("padding_mask", my_padding_mask))
print(check("causal_mask", my_causal_mask))

# %% [markdown]
# ## Sources
#
# The causal mask and the value $-\infty$ are from section 3.2.3 of {cite:t}`vaswani2017attention`, with a hint of it in 3.1. The padding mask is in its authors' released code, not in its text.
