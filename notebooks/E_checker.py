# %% tags=["remove-cell"]
# Find the book's figures; in Colab, fetch the book and install what it needs first
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    subprocess.run(["git", "clone", "-q", "--depth", "1", "https://github.com/annotated-transformer/annotated-transformer", "/content/book"], check=True)
    os.chdir("/content/book/notebooks")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "..[notebooks]"], check=True)
sys.path.insert(0, "..")

# %% [markdown]
# # Check your own
#
# This chapter builds a checker for the reader's own code: hand it your attention, your masks or your layer norm, and it says in words what is wrong with it (exercises of all chapters).
#
# The best way to understand the Transformer is to write it once. The trouble comes after that. Your attention runs, its output has the right shape, and its numbers are not those of the book. Which line is it? A test that says *not equal* does not help much.
#
# Wrong implementations are seldom wrong in new ways. The softmax runs along the other axis, the mask is the wrong way round, the scale is forgotten. [Common mistakes](../book/mistakes.md) lists them. Each is a few characters away from the right code, and each leaves its mark on the numbers. So we can turn the question around: write the *mistakes* down as code, run them on the same input, and see which one gives what you got.

# %% tags=["export"]
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# %%
from annotated_transformer.attention import attention
from annotated_transformer.decoding import length_penalty
from annotated_transformer.embeddings import Embedding
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Residual, layer_norm
from annotated_transformer.masks import causal_mask, padding_mask
from annotated_transformer.multi_head_attention import MultiHeadAttention
from annotated_transformer.positional_encoding import sinusoid
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate

# %% [markdown]
# ## A right answer, inputs, and mistakes
#
# An exercise needs three things: what is right, some inputs to try it on, and the known mistakes. All are functions or tensors, so a small tuple holds them.
#
# What is right must not come from the book, or the book's own errors would count as right. We take PyTorch's functions where it has them, and elsewhere the formula written out.


# %% tags=["export"]
class Exercise(NamedTuple):
    """One part of the model to write: what is right, inputs to try, and known mistakes."""

    right: Callable[..., Any]
    inputs: dict[str, tuple[Any, ...]]  # what is special about them -> the arguments
    mistakes: dict[str, Callable[..., Any]]  # "... when ..." -> code that makes it


# %% [markdown]
# The inputs are random numbers, each axis of another size, in double precision. Random, because special numbers hide mistakes: with zeros, a forgotten bias is invisible. Of different sizes, because on a square table a swapped axis goes unnoticed. In double precision, so that a difference in the fourth decimal is a mistake and not rounding.


# %% tags=["export"]
def numbers(*shape: int) -> Tensor:
    """Draw normal numbers in double precision, always the same for a shape."""
    generator = torch.Generator().manual_seed(math.prod(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# %% [markdown]
# ## Running code that may fail
#
# The code under test may do anything: raise, change its arguments in place, return a tuple or a plain number. So it gets copies, what it raises becomes a sentence, and what it returns becomes a tuple of tensors.


# %% tags=["export"]
def outcome(code: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Tensor, ...] | str:
    """Run code on copies of the arguments; return its tensors, or say what it raised."""
    copies = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
    try:
        result = code(*copies)
        parts = result if isinstance(result, tuple) else (result,)
        return tuple(torch.as_tensor(part).detach() for part in parts)
    except Exception as error:  # any code of a reader, any error
        return f"it raises {type(error).__name__} ({error})"


# %% [markdown]
# Two outcomes are compared from the outside in: did it run, how many tensors came back, what shape have they, what type, and only then the numbers. The first difference is reported. An attention that also returns its weights is fine: what comes after the tensors asked for is ignored.


# %% tags=["export"]
def difference(yours: tuple[Tensor, ...] | str, right: tuple[Tensor, ...]) -> str:
    """Say how an outcome differs from the right one; an empty string if it does not."""
    if isinstance(yours, str):
        return yours
    if len(yours) < len(right):
        return f"it returns {len(yours)} tensor, not {len(right)}"
    for mine, other in zip(yours, right):
        if mine.shape != other.shape:
            return f"the shape is {tuple(mine.shape)}, not {tuple(other.shape)}"
        if (mine.dtype == torch.bool) != (other.dtype == torch.bool):
            return f"the type is {mine.dtype}, not {other.dtype}"
        if not torch.equal(mine.isnan(), other.isnan()):
            return f"{mine.isnan().sum()} of {mine.numel()} numbers are NaN"
        expected = other.double().nan_to_num()
        far = (mine.double().nan_to_num() - expected).abs() > 1e-4 * expected.abs().mean()
        if far.any():
            return f"{far.sum()} of {far.numel()} numbers differ"
    return ""


# %% [markdown]
# ## The checker
#
# Now the idea of the chapter in one function. If your code is right on all inputs, it says so. If not, it looks for a mistake that gives *your* numbers on all inputs. If there is none, it tells where and how your numbers differ.


# %% tags=["export"]
def check(part: str, yours: Callable[..., Any]) -> str:
    """Run your implementation of a part of the model; say that it is right, or what is wrong.

    Parts: attention, padding_mask, causal_mask, multi_head_attention, feed_forward, embedding,
    positions, layer_norm, residual, shift, learning_rate, smoothed_loss, length_penalty.
    Raises ValueError for another one.
    """
    if part not in EXERCISES:
        raise ValueError(f'there is no exercise "{part}": take one of {", ".join(EXERCISES)}')
    right, inputs, mistakes = EXERCISES[part]()
    found = {name: outcome(yours, arguments) for name, arguments in inputs.items()}
    wrong = {
        name: difference(got, right_outcome(right, inputs[name])) for name, got in found.items()
    }
    if not any(wrong.values()):
        return f"{part}: right"
    for mistake, code in mistakes.items():
        theirs = {name: right_outcome(code, arguments) for name, arguments in inputs.items()}
        if not any(difference(got, theirs[name]) for name, got in found.items()):
            return f"{part}: wrong. It gives what comes out when {mistake}."
    name, what = next((name, what) for name, what in wrong.items() if what)
    return f"{part}: wrong {name}: {what}. It is none of the {len(mistakes)} mistakes known here."


def right_outcome(code: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Run code of this chapter, which does not fail."""
    result = outcome(code, arguments)
    if isinstance(result, str):
        raise RuntimeError(f"the checker itself fails: {result}")
    return result


# %% [markdown]
# ## Attention
#
# What follows is a list of exercises. Each names its arguments, in the order in which your function gets them, and holds its mistakes as one-liners: read them as a collection of bugs. The first is [attention](03_attention.ipynb), `attention(query, key, value, mask)`. The mask is boolean, True where a query may attend, or `None`.
#
# The mistakes need an attention with its parts in the open, so that one of them can be exchanged.


# %% tags=["export"]
def attention_with(
    scores: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.mT / math.sqrt(q.size(-1)),
    hide: Callable[[Tensor, Tensor], Tensor] = lambda s, mask: s.masked_fill(~mask, -math.inf),
    share: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1),
    after: Callable[[Tensor, Tensor], Tensor] = lambda weights, mask: weights,
) -> Callable[..., Tensor]:
    """Return attention with one of its steps exchanged; `after` changes the weights."""

    def code(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        raw = scores(query, key)
        if mask is None:
            return share(raw) @ value
        return after(share(hide(raw, mask)), mask) @ value

    return code


# %% tags=["export"]
def attention_exercise() -> Exercise:
    """`attention(query (B, T, K), key (B, S, K), value (B, S, V), mask (T, S) or None)`."""
    arguments = numbers(2, 3, 4), numbers(2, 5, 4), numbers(2, 5, 6)
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 0, 1, 1], [0, 1, 1, 0, 1]]).bool()
    mistakes = {
        "the softmax runs over the queries, not over the keys (dim=-1)": attention_with(
            share=lambda s: s.softmax(-2)
        ),
        "the scores are not divided by sqrt(d_k)": attention_with(lambda q, k: q @ k.mT),
        "the scores are divided by d_k, not by its root": attention_with(
            lambda q, k: q @ k.mT / q.size(-1)
        ),
        "the root is taken of the number of keys, not of their width": attention_with(
            lambda q, k: q @ k.mT / math.sqrt(k.size(-2))
        ),
        "the mask is turned round: True means that a query may attend": attention_with(
            hide=lambda s, mask: s.masked_fill(mask, -math.inf)
        ),
        "the mask is not used": attention_with(hide=lambda s, mask: s),
        "a hidden score is 0, a score like any other, not minus infinity": attention_with(
            hide=lambda s, mask: s * mask
        ),
        "weights are hidden after the softmax, so that rows do not sum to 1": attention_with(
            hide=lambda s, mask: s, after=lambda weights, mask: weights * mask
        ),
    }
    inputs = {"without a mask": (*arguments, None), "with a mask": (*arguments, mask)}
    return Exercise(F.scaled_dot_product_attention, inputs, mistakes)


# %% [markdown]
# ## Masks
#
# From [Masks](04_masks.ipynb): `padding_mask(tokens)` takes ids (B, S), where 0 is padding, and returns (B, 1, 1, S). `causal_mask(length)` returns (T, T). Both are boolean, and True means that the key may be seen.


# %% tags=["export"]
def padding_mask_exercise() -> Exercise:
    """`padding_mask(tokens (B, S))`, boolean (B, 1, 1, S)."""
    tokens = torch.tensor([[5, 7, 2, 0, 0], [9, 4, 8, 6, 2]])
    return Exercise(
        lambda tokens: (tokens != 0)[:, None, None, :],
        {"on a batch with padding": (tokens,)},
        {
            "it is turned round: True must stand at the words": lambda t: (t == 0)[:, None, None],
            "padded queries (rows) are hidden, not padded keys (columns)": lambda t: (t != 0)[
                :, None, :, None
            ],
            "it holds numbers, not True and False": lambda t: (t != 0).long()[:, None, None],
            "it has no axis for heads and queries": lambda t: t != 0,
        },
    )


# %% tags=["export"]
def all_true(length: int) -> Tensor:
    """Return a boolean square of True."""
    return torch.ones(length, length, dtype=torch.bool)


def causal_mask_exercise() -> Exercise:
    """`causal_mask(length)`, boolean (T, T)."""
    return Exercise(
        lambda length: all_true(length).tril(),
        {"at length 4": (4,), "at length 1": (1,)},
        {
            "it is turned round: True must stand on and below the diagonal": lambda length: (
                all_true(length).triu(1)
            ),
            "it is transposed: a query sees the future": lambda length: all_true(length).triu(),
            "a position may not see itself": lambda length: all_true(length).tril(-1),
            "one word of the future is seen": lambda length: all_true(length).tril(1),
            "it holds numbers, not True and False": lambda length: all_true(length).tril().long(),
        },
    )


# %% [markdown]
# ## Several heads
#
# From [Multi-head attention](05_multi_head_attention.ipynb): `multi_head_attention(query, key, value, W_Q, W_K, W_V, W_O, heads)`, where each matrix is (D, D) and stands on the right, `x @ W`. What is right is the paper's formula, one head after the other. Most mistakes are in the reshapes.


# %% tags=["export"]
def one_head_at_a_time(
    query: Tensor, key: Tensor, value: Tensor, *matrices: Tensor, heads: int
) -> Tensor:
    """Multi-head attention as section 3.2.2 defines it: a loop over slices of the matrices."""
    *projections, output = matrices
    slices = zip(*(matrix.chunk(heads, dim=1) for matrix in projections))
    found = [
        F.scaled_dot_product_attention(query @ a, key @ b, value @ c, None) for a, b, c in slices
    ]
    return torch.cat(found, dim=-1) @ output


# %% tags=["export"]
def heads_with(
    split: Callable[[Tensor, int], Tensor] = lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2),
    merge: Callable[[Tensor, Tensor], Tensor] = lambda x, like: x.transpose(1, 2).reshape(
        like.shape
    ),
    scale: Callable[[int, int], float] = lambda d, h: (d / h) ** -0.5,
) -> Callable[..., Tensor]:
    """Return multi-head attention with one step exchanged: split, merge or scale."""

    def code(q: Tensor, k: Tensor, v: Tensor, *matrices: Any) -> Tensor:
        *projections, output, heads = matrices
        q_heads, k_heads, v_heads = (
            split(x @ matrix, heads) for x, matrix in zip((q, k, v), projections)
        )
        factor = scale(q.size(-1), heads)
        found = F.scaled_dot_product_attention(q_heads, k_heads, v_heads, scale=factor)
        return merge(found, q) @ output

    return code


# %% tags=["export"]
def multi_head_attention_exercise() -> Exercise:
    """`multi_head_attention(query (B, T, D), key, value (B, S, D), four (D, D), heads)`."""
    matrices = [numbers(8, 8).roll(shift, 0) / 3 for shift in range(4)]
    arguments = numbers(2, 3, 8), numbers(2, 5, 8), numbers(2, 5, 8).flip(1), *matrices
    return Exercise(
        lambda *a: one_head_at_a_time(*a[:-1], heads=a[-1]),
        {"with 2 heads": (*arguments, 2), "with 4 heads": (*arguments, 4)},
        {
            "the projections are reshaped into heads without a transpose": heads_with(
                lambda x, h: x.reshape(x.size(0), h, x.size(1), -1),
                lambda x, like: x.reshape(like.shape),
            ),
            "the heads are joined without transposing back": heads_with(
                merge=lambda x, like: x.reshape(like.shape)
            ),
            "a head takes every h-th column, not columns side by side": heads_with(
                lambda x, h: x.unflatten(-1, (-1, h)).movedim(-1, 1)
            ),
            "the scores are divided by sqrt(d_model), not by the root of a head's width": (
                heads_with(scale=lambda d, h: d**-0.5)
            ),
            "there is one wide head only": lambda *a: one_head_at_a_time(*a[:-1], heads=1),
            "the output matrix W_O is missing": lambda *a: one_head_at_a_time(
                *a[:6], torch.eye(8, dtype=torch.float64), heads=a[-1]
            ),
        },
    )


# %% [markdown]
# ## Feed-forward, embedding, positions
#
# - `feed_forward(x, W_1, b_1, W_2, b_2)`, with matrices (D, F) and (F, D) that stand on the right, from [Feed-forward networks](06_feed_forward.ipynb);
# - `embedding(tokens, table)` with a table (V, D), from [Embeddings](07_embeddings.ipynb);
# - `positions(length, d_model)`, from [Positional encoding](08_positional_encoding.ipynb).
#
# Not all that differs is worse. Sines in the first half and cosines in the second, as the authors' own code has them, serve as well as the paper's alternation. But weights trained with one do not work with the other, so the checker tells.


# %% tags=["export"]
def feed_forward_exercise() -> Exercise:
    """`feed_forward(x (B, T, D), W_1 (D, F), b_1 (F), W_2 (F, D), b_2 (D))`."""
    return Exercise(
        lambda x, w, b, v, c: F.linear(F.linear(x, w.T, b).relu(), v.T, c),
        {"on a batch": (numbers(2, 3, 4), numbers(4, 7), numbers(7), numbers(7, 4), numbers(4))},
        {
            "the ReLU is missing": lambda x, w, b, v, c: (x @ w + b) @ v + c,
            "there is a second ReLU at the end": lambda x, w, b, v, c: (
                (x @ w + b).relu() @ v + c
            ).relu(),
            "the ReLU comes before the first matrix": lambda x, w, b, v, c: (
                (x.relu() @ w + b) @ v + c
            ),
            "the biases are missing": lambda x, w, b, v, c: (x @ w).relu() @ v,
            "the input is added; that is the residual connection's task": lambda x, w, b, v, c: (
                (x @ w + b).relu() @ v + c + x
            ),
        },
    )


# %% tags=["export"]
def embedding_exercise() -> Exercise:
    """`embedding(tokens (B, T), table (V, D))`, times the square root of D."""
    return Exercise(
        lambda tokens, table: F.embedding(tokens, table) * math.sqrt(table.size(1)),
        {"on a batch": (torch.tensor([[4, 2, 2], [1, 0, 3]]), numbers(5, 9))},
        {
            "the factor sqrt(d_model) is missing": lambda t, table: table[t],
            "the factor is d_model, not its square root": lambda t, table: table[t] * table.size(1),
            "it is divided by sqrt(d_model)": lambda t, table: table[t] / table.size(1) ** 0.5,
            "the factor is the root of the vocabulary's size": lambda t, table: (
                table[t] * table.size(0) ** 0.5
            ),
        },
    )


# %% tags=["export"]
def waves(
    length: int,
    d_model: int,
    base: float = 10_000.0,
    first: int = 0,
    rate: Callable[[int], float] = lambda i: 2 * (i // 2),
) -> Tensor:
    """Write the sines and cosines of section 3.5 number by number: slow, and as the formula is."""
    rows = [
        [
            (math.cos if i % 2 else math.sin)(position / base ** (rate(i) / d_model))
            for i in range(d_model)
        ]
        for position in range(first, first + length)
    ]
    return torch.tensor(rows, dtype=torch.float64)


# %% tags=["export"]
def positions_exercise() -> Exercise:
    """`positions(length, d_model)`, (T, D)."""
    return Exercise(
        waves,
        {"at 7 positions of width 6": (7, 6), "at 1 position of width 4": (1, 4)},
        {
            "the sines fill the first half and the cosines the second": lambda n, d: torch.cat(
                [waves(n, d)[:, 0::2], waves(n, d)[:, 1::2]], dim=1
            ),
            "sine and cosine are exchanged": lambda n, d: (
                waves(n, d).unflatten(1, (-1, 2)).flip(2).flatten(1)
            ),
            "the first position is 1, not 0": lambda n, d: waves(n, d, first=1),
            "the base is the length, not 10000": lambda n, d: waves(n, d, base=n + 1e-9),
            "the cosine has a rate of its own; each pair shares one": lambda n, d: waves(
                n, d, rate=lambda i: i
            ),
            "the exponent is i / d, not 2i / d": lambda n, d: waves(n, d, rate=lambda i: i // 2),
        },
    )


# %% [markdown]
# ## Norm and residual
#
# From [Layers](09_layers.ipynb): `layer_norm(x, gain, bias, eps)`, and `residual(x, sublayer, norm)`, which gets two functions and joins them as the paper does. The epsilon of the test is 0.1, far larger than in use. With $10^{-6}$, code with the epsilon in the wrong place would pass.


# %% tags=["export"]
def variance(x: Tensor, axes: tuple[int, ...] = (-1,)) -> Tensor:
    """Return the mean squared distance from the mean, over some axes."""
    return x.var(axes, correction=0, keepdim=True)


def norm_with(
    spread: Callable[[Tensor, float], Tensor], axes: tuple[int, ...] = (-1,)
) -> Callable[..., Tensor]:
    """Return layer norm that divides by another spread and takes its mean over other axes."""
    return lambda x, gain, bias, eps: (
        gain * (x - x.mean(axes, keepdim=True)) / spread(x, eps) + bias
    )


# %% tags=["export"]
def layer_norm_exercise() -> Exercise:
    """`layer_norm(x (B, T, D), gain (D), bias (D), eps)`."""
    mistakes = {
        "the variance divides by D - 1, not by D": norm_with(
            lambda x, eps: (x.var(-1, keepdim=True) + eps).sqrt()
        ),
        "epsilon stands outside the root": norm_with(lambda x, eps: variance(x).sqrt() + eps),
        "the variance divides by D - 1, and epsilon stands outside the root": norm_with(
            lambda x, eps: x.std(-1, keepdim=True) + eps
        ),
        "it is divided by the variance, not by its root": norm_with(
            lambda x, eps: variance(x) + eps
        ),
        "all positions of a sentence are normalized together": norm_with(
            lambda x, eps: (variance(x, (-2, -1)) + eps).sqrt(), (-2, -1)
        ),
        "it normalizes over the batch, as batch norm does": norm_with(
            lambda x, eps: (variance(x, (0, 1)) + eps).sqrt(), (0, 1)
        ),
        "the mean is not subtracted": norm_with(
            lambda x, eps: (variance(x) + eps).sqrt() * (1 - x.mean(-1, keepdim=True) / x)
        ),
        "gain and bias are missing": lambda x, gain, bias, eps: F.layer_norm(x, (5,), eps=eps),
    }
    arguments = numbers(2, 3, 5), numbers(5), numbers(5).flip(0), 0.1
    return Exercise(
        lambda x, gain, bias, eps: F.layer_norm(x, gain.shape, gain, bias, eps),
        {"on a batch": arguments},
        mistakes,
    )


# %% tags=["export"]
def residual_exercise() -> Exercise:
    """`residual(x (B, T, D), sublayer, norm)`, post-norm as in section 3.1."""
    arguments = numbers(2, 3, 5), lambda x: x.cumsum(1).tanh(), lambda x: F.layer_norm(x, (5,))
    return Exercise(
        lambda x, sublayer, norm: norm(x + sublayer(x)),
        {"on a batch": arguments},
        {
            "it normalizes first (pre-norm)": lambda x, sublayer, norm: x + sublayer(norm(x)),
            "norm and sum are swapped, norm(sublayer(x)) + x": lambda x, sublayer, norm: (
                norm(sublayer(x)) + x
            ),
            "the input is not added": lambda x, sublayer, norm: norm(sublayer(x)),
            "nothing is normalized": lambda x, sublayer, norm: x + sublayer(x),
            "the normalized input is added": lambda x, sublayer, norm: norm(x) + sublayer(norm(x)),
        },
    )


# %% [markdown]
# ## Training and decoding
#
# - `shift(target)` takes ids (B, T + 1) from `<s>` to `</s>` and returns what the decoder reads and what it must say, both (B, T), from [The Transformer](10_transformer.ipynb);
# - `learning_rate(step, d_model, warmup)`, from [The schedule](16_schedule.ipynb);
# - `smoothed_loss(logits, labels, smoothing)`, the mean over labels that are not 0, from [Regularization](17_regularization.ipynb);
# - `length_penalty(length, alpha)`, from [Decoding](19_decoding.ipynb).


# %% tags=["export"]
def shift_exercise() -> Exercise:
    """`shift(target (B, T + 1))`, two of (B, T): what is read and what is to be said."""
    return Exercise(
        lambda target: (target[:, :-1], target[:, 1:]),
        {"on two sentences": (torch.tensor([[1, 5, 7, 2, 0], [1, 6, 4, 8, 2]]),)},
        {
            "nothing is shifted: the decoder reads the word it must say": lambda t: (
                t[:, 1:],
                t[:, 1:],
            ),
            "it is shifted the wrong way: the decoder must say the past": lambda t: (
                t[:, 1:],
                t[:, :-1],
            ),
            "both are whole: they have one position too many": lambda t: (t, t),
        },
    )


# %% tags=["export"]
def learning_rate_exercise() -> Exercise:
    """`learning_rate(step, d_model, warmup)`, a number."""
    return Exercise(
        lambda step, d, warmup: d**-0.5 * min(step**-0.5, step * warmup**-1.5),
        {f"at step {step} of a warm-up of 400": (step, 64, 400) for step in (1, 200, 400, 3000)},
        {
            "the larger of the two terms is taken, not the smaller": lambda n, d, w: (
                d**-0.5 * max(n**-0.5, n * w**-1.5)
            ),
            "the exponent of d_model is -5: a decimal point was lost": lambda n, d, w: (
                d**-5 * min(n**-0.5, n * w**-1.5)
            ),
            "d_model is missing": lambda n, d, w: min(n**-0.5, n * w**-1.5),
            "the rate stays at its peak after the warm-up": lambda n, d, w: (
                d**-0.5 * min(w**-0.5, n * w**-1.5)
            ),
            "there is no warm-up": lambda n, d, w: d**-0.5 * n**-0.5,
            "the warm-up's exponent is -0.5, not -1.5": lambda n, d, w: (
                d**-0.5 * min(n**-0.5, n * w**-0.5)
            ),
        },
    )


# %% tags=["export"]
def smoothed(logits: Tensor, labels: Tensor, smoothing: float, padding: int = 0) -> Tensor:
    """PyTorch's loss with label smoothing, the mean over labels that are not padding."""
    return F.cross_entropy(logits, labels, ignore_index=padding, label_smoothing=smoothing)


def others_only(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Smooth over the V - 1 other words only: the label keeps 1 - smoothing."""
    share = torch.full_like(logits, smoothing / (logits.size(-1) - 1))
    share.scatter_(1, labels[:, None], 1 - smoothing)
    return -(share * logits.log_softmax(-1)).sum(-1)[labels != 0].mean()


def target_entropy(size: int, smoothing: float) -> float:
    """Entropy of a smoothed target over `size` words: the least that the loss can be."""
    rest = smoothing / size
    top = 1 - smoothing + rest
    return -top * math.log(top) - (size - 1) * rest * math.log(rest)


# %% tags=["export"]
def smoothed_loss_exercise() -> Exercise:
    """`smoothed_loss(logits (N, V), labels (N), smoothing)`, the mean where labels are not 0."""
    mistakes = {
        "padding counts": lambda x, y, s: smoothed(x, y, s, padding=-100),
        "nothing is smoothed": lambda x, y, s: smoothed(x, y, 0.0),
        "the softmax is taken twice: F.cross_entropy wants logits": lambda x, y, s: smoothed(
            x.softmax(-1), y, s
        ),
        "the sum is not divided by the number of labels": lambda x, y, s: (
            smoothed(x, y, s) * (y != 0).sum()
        ),
        "the sum is divided by all labels, padding among them": lambda x, y, s: (
            smoothed(x, y, s) * (y != 0).double().mean()
        ),
        "the label keeps 1 - smoothing and the others share the rest": others_only,
        "it is the KL divergence, which is lower by the target's entropy": lambda x, y, s: (
            smoothed(x, y, s) - target_entropy(x.size(-1), s)
        ),
    }
    arguments = numbers(6, 5), torch.tensor([3, 1, 4, 2, 0, 0]), 0.3
    return Exercise(smoothed, {"on labels with padding": arguments}, mistakes)


# %% tags=["export"]
def length_penalty_exercise() -> Exercise:
    """`length_penalty(length, alpha)`, the divisor of the log-probability."""
    return Exercise(
        lambda n, alpha: ((5 + n) / 6) ** alpha,
        {"at length 10": (10, 0.6), "at length 3": (3, 0.9)},
        {
            "it is the length itself to the power of alpha": lambda n, alpha: n**alpha,
            "alpha is a factor, not an exponent": lambda n, alpha: (5 + n) / 6 * alpha,
            "only the numerator has the exponent": lambda n, alpha: (5 + n) ** alpha / 6,
            "it multiplies where it should divide": lambda n, alpha: ((5 + n) / 6) ** -alpha,
            "the log-probability is not divided at all": lambda n, alpha: 1.0,
        },
    )


# %% [markdown]
# All exercises by name. The values are functions, so that no number is drawn before someone asks.

# %% tags=["export"]
EXERCISES: dict[str, Callable[[], Exercise]] = {
    "attention": attention_exercise,
    "padding_mask": padding_mask_exercise,
    "causal_mask": causal_mask_exercise,
    "multi_head_attention": multi_head_attention_exercise,
    "feed_forward": feed_forward_exercise,
    "embedding": embedding_exercise,
    "positions": positions_exercise,
    "layer_norm": layer_norm_exercise,
    "residual": residual_exercise,
    "shift": shift_exercise,
    "learning_rate": learning_rate_exercise,
    "smoothed_loss": smoothed_loss_exercise,
    "length_penalty": length_penalty_exercise,
}

# %% [markdown]
# ## Does the checker work?
#
# A checker that says *right* to everything would be worse than none. So we hand it its own mistakes: each must be found, and as itself, not as one of the others. That also proves that no two of them give the same numbers.

# %%
count = 0
for part, exercise in EXERCISES.items():
    for mistake, code in exercise().mistakes.items():
        assert mistake in check(part, code), mistake
        count += 1
print(count, "mistakes in", len(EXERCISES), "exercises, each told from all others")

# %% [markdown]
# And the book's own code must be right. Modules keep their matrices inside, so for these we first put the checker's matrices in.


# %%
@torch.no_grad()
def filled(module, *tensors):
    """Return the module in double precision, its parameters set to these, in order."""
    module.double()
    for parameter, tensor in zip(module.parameters(), tensors, strict=True):
        parameter.copy_(tensor.mT if tensor.ndim == 2 else tensor)
    return module


def our_heads(query, key, value, *rest):
    *matrices, heads = rest
    return filled(MultiHeadAttention(8, heads), *matrices)(query, key, value)


def our_feed_forward(x, *parameters):
    return filled(FeedForward(4, 7), *parameters)(x)


def our_embedding(tokens, table):
    return filled(Embedding(*table.shape), table.T)(tokens)


# %%
def our_residual(x, sublayer, norm):
    residual = Residual(x.size(-1), dropout=0.0)
    residual.norm = norm_module(norm)
    return residual(x, sublayer)


def norm_module(function):
    module = torch.nn.Module()
    module.forward = function
    return module


def our_loss(logits, labels, smoothing):
    total, count = label_smoothed_loss(logits[None], labels[None], smoothing)
    return total / count


# %%
ours = {
    "attention": attention,
    "padding_mask": padding_mask,
    "causal_mask": causal_mask,
    "multi_head_attention": our_heads,
    "feed_forward": our_feed_forward,
    "embedding": our_embedding,
    "positions": sinusoid,
    "layer_norm": layer_norm,
    "residual": our_residual,
    "shift": lambda target: (target[:, :-1], target[:, 1:]),
    "learning_rate": learning_rate,
    "smoothed_loss": our_loss,
    "length_penalty": length_penalty,
}
for part, code in ours.items():
    print(check(part, code))

# %% [markdown]
# ## How it feels to use it
#
# Here is an attention that many have written. It even looks tidy.


# %%
def mine(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    if mask is not None:
        scores = scores * mask
    return scores.softmax(dim=-1) @ value


print(check("attention", mine))

# %% [markdown]
# Without a mask it is right, and with one it runs, so nothing but a comparison finds the fault: a product with 0 makes a score of 0, and 0 is a score like any other.
#
# A mistake that the checker does not know still gets an answer. It says on which input, and what is off:

# %%
print(check("layer_norm", lambda x, gain, bias, eps: F.layer_norm(x, (5,), gain, bias, eps) + 0.1))
print(check("causal_mask", lambda length: torch.ones(length, 1).bool()))

# %% [markdown]
# ## How much does a mistake change?
#
# Some mistakes shout and some whisper. For each we measure the mean change of the output beside the mean size of the right output, over all inputs of the exercise. A change of 100 % is as large as the output itself. Here are the twelve quietest.


# %%
def change(code, exercise):
    """Return the mean change of the output, as a share of its mean size."""
    right = [right_outcome(exercise.right, a)[0].double() for a in exercise.inputs.values()]
    wrong = [right_outcome(code, a)[0].double() for a in exercise.inputs.values()]
    size = sum(r.abs().sum() for r in right)
    return float(sum((w - r).abs().sum() for w, r in zip(wrong, right)) / size)


sizes = [
    (change(code, exercise), part, mistake)
    for part, exercise in ((part, make()) for part, make in EXERCISES.items())
    for mistake, code in exercise.mistakes.items()
    if part not in ("padding_mask", "causal_mask", "shift")
]
for size, part, mistake in sorted(sizes)[:12]:
    print(f"{size:6.1%}  {part}: {mistake}")

# %% [markdown]
# The small numbers are the dangerous ones. A layer norm that divides by $D - 1$ trains as well as the right one. With weights from elsewhere it is a little wrong everywhere: at $D = 512$ by a factor of $\sqrt{512 / 511}$, or 0.1 %, which no one will see. That is why the checker uses a width of 5.
#
# ## What to remember
#
# - Test a part of the model on random inputs with a different size on each axis, in double precision, against something you did not write.
# - A wrong result is evidence. Ask which mistake would give exactly these numbers.
# - The mistakes that raise an error are the good ones.
#
# ## Exercises
#
# **1. By hand.** Why does the checker's attention have three queries, five keys and a width of four, and not four of each? Name two mistakes that would raise no error with 4, 4, 4 and do raise one here.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# A product with the key not transposed, and weights applied from the wrong side: both fit a square only.
print(check("attention", lambda q, k, v, mask: (q @ k / 2).softmax(-1) @ v)[:48])
print(check("attention", lambda q, k, v, mask: (q @ k.mT / 2).softmax(-1).mT @ v)[:48])

# %% [markdown]
# **2. A bug of your own.** Which mistake have you made that is not in the list? Write it as a function and see what the checker says. One more example: a causal mask that is right, and one row short.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
print(check("causal_mask", lambda length: torch.ones(length, length).tril().bool()[1:]))

# %% [markdown]
# **3. What breaks if** all inputs of the checker are zero? Count how many of the mistakes are still found.

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
found = 0
for exercise in EXERCISES.values():
    right, inputs, mistakes = exercise()
    for arguments in inputs.values():
        blank = [a * 0 if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
        good = right_outcome(right, tuple(blank))
        found += sum(
            bool(difference(outcome(code, tuple(blank)), good)) for code in mistakes.values()
        )
print(found, "of", count)
