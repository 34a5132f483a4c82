# %% tags=["remove-cell"]
import os, sys

url = "https://github.com/annotated-transformer/annotated-transformer"
if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    os.system(f"git clone -q --depth 1 {url} /book; pip install -q '/book[notebooks]'")
up = [r for r in ("/book", "..", ".", "../..") if os.path.exists(r + "/book/map.svg")]
sys.path.insert(0, up[0] if up else sys.exit(f"Open this in a clone of {url}"))
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only

# %% [markdown]
# # Check your own
#
# This appendix builds a checker for your own code: hand it your attention, your masks or your layer norm, and it says in words what is wrong (exercises of all chapters).
#
# Here is an attention that looks right:

# %%
from annotated_transformer import check


def mine(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    if mask is not None:
        scores = scores * mask
    return scores.softmax(dim=-1) @ value


print(check("attention", mine))

# %% [markdown]
# It runs, and without a mask it is right. With one, the product makes a hidden score 0, and 0 is a score like any other. (What `check` returns is a text that counts as true if the code is right, so that a teacher can write `assert check("attention", mine)`.)
#
# Wrong implementations are seldom wrong in new ways ([Common mistakes](../book/mistakes.md) lists the usual ones), and each mistake leaves its mark on the numbers. The checker therefore makes the known mistakes itself and looks for the one that gives exactly *your* numbers.
#
# ## The parts it knows
#
# Your function gets these arguments, in this order. Axis letters are those of the [notation page](../book/notation.md#axes). Matrices are on the right, `x @ W`. (A module of yours goes in as a function that copies the matrices into it and calls it.)
#
# | part | arguments | returns | built in |
# |---|---|---|---|
# | `attention` | query (B, T, d_k), key (B, S, d_k), value (B, S, d_v), mask (T, S) or None | (B, T, d_v) | [Attention](03_attention.ipynb#the-code) |
# | `padding_mask` | tokens (B, S), 0 is padding | boolean (B, 1, 1, S) | [Masks](04_masks.ipynb#the-padding-mask) |
# | `causal_mask` | length T | boolean (T, T) | [Masks](04_masks.ipynb#the-causal-mask) |
# | `multi_head_attention` | query (B, T, D), key and value (B, S, D), W_Q, W_K, W_V and W_O (D, D), heads | (B, T, D) | [Multi-head attention](05_multi_head_attention.ipynb#the-module) |
# | `feed_forward` | x (B, T, D), W_1 (D, d_ff), b_1 (d_ff), W_2 (d_ff, D), b_2 (D) | (B, T, D) | [Feed-forward networks](06_feed_forward.ipynb#a-network-is-a-sum-of-units) |
# | `embedding` | tokens (B, T), table (\|V\|, D) | (B, T, D) | [Embeddings](07_embeddings.ipynb#one-table-three-uses) |
# | `positions` | length T, width D | (T, D) | [Positional encoding](08_positional_encoding.ipynb#adding-positions-in-code) |
# | `layer_norm` | x (B, T, D), gain (D), bias (D), eps | (B, T, D) | [Layers](09_layers.ipynb#layer-normalization) |
# | `residual` | x (B, T, D), the functions sublayer and norm | (B, T, D), post-norm | [Layers](09_layers.ipynb#let-each-part-add) |
# | `shift` | target (B, T + 1) | the decoder's input and its labels, (B, T) each | [The Transformer](10_transformer.ipynb#the-target-shifted-by-one) |
# | `learning_rate` | step, d_model, warmup | a number | [The schedule](16_schedule.ipynb#up-and-down) |
# | `smoothed_loss` | logits (N, \|V\|), labels (N), smoothing | the mean where labels are not 0 | [Regularization](17_regularization.ipynb#the-loss-in-two-parts) |
# | `length_penalty` | length, alpha | the divisor | [Decoding](19_decoding.ipynb#why-do-searches-prefer-short-sentences) |

# %% tags=["export"]
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# %% [markdown]
# ## A right answer, inputs, and mistakes
#
# Each part is one table. The right answer must not come from the book, or the book's own errors would count as right: we take PyTorch's functions where it has them, and elsewhere the formula written out.


# %% tags=["export"]
Code = Callable[..., Any]


class Exercise(NamedTuple):
    """One part of the model to write.

    Inputs have a name each. In them a tuple is the shape of random numbers, a list is a tensor, and
    anything else is itself. The sentence of a mistake completes "You get these numbers when".
    """

    right: Code
    inputs: dict[str, tuple[Any, ...]]
    mistakes: dict[str, Code]
    returns: int = 1  # tensors


EXERCISES: dict[str, Exercise] = {}


def enter(part: str, **table: Any) -> None:
    """Enter the table of a part."""
    EXERCISES[part] = Exercise(**table)


# %% [markdown]
# ## The checker
#
# Code under test may raise, exit, change its arguments, or return a tuple, a number or an array of NumPy. It gets arguments of its own, and what it does becomes tensors or a sentence. Extra tensors are ignored, so an attention may return its weights as well.


# %% tags=["export"]
Outcome = list[Tensor] | str  # what code returned, or why there is nothing to compare


def outcome(code: Code, row: tuple[Any, ...], returns: int) -> Outcome:
    """Run code on a row of inputs; return its first tensors, or say why there are none."""
    generator = torch.Generator().manual_seed(1)
    arguments = []
    for value in row:
        if isinstance(value, tuple):
            value = torch.randn(value, generator=generator)
        elif isinstance(value, list):
            value = torch.tensor(value)
        arguments.append(value)
    try:
        result = code(*arguments)
    except (Exception, SystemExit) as error:  # any code of a reader, any error
        return f"it raises {type(error).__name__} ({error})"
    several = isinstance(result, tuple) or (returns > 1 and isinstance(result, list))
    tensors = []
    for value in result[:returns] if several else [result]:
        if value is None:
            return "it returns None, as if a `return` were missing"
        try:
            tensors.append(torch.as_tensor(value).detach().cpu())
        except (RuntimeError, TypeError, ValueError):
            return f"it returns a {type(value).__name__}, not a tensor"
    if len(tensors) < returns:
        return f"it returns {len(tensors)} tensor, not {returns}"
    return tensors


# %% [markdown]
# Two outcomes are compared from the outside in: did it run, of what shape and type are the tensors, with which numbers?


# %% tags=["export"]
def difference(yours: Tensor, right: Tensor) -> str:
    """Say how a tensor differs from the right one; an empty string if it does not."""
    if right.dim() == 0 and yours.numel() == 1:
        yours = yours.reshape(())
    if yours.shape != right.shape:
        return f"the shape is {tuple(yours.shape)}, not {tuple(right.shape)}"
    boolean_for_number = yours.dtype == torch.bool and right.dtype != torch.bool
    if boolean_for_number or not torch.can_cast(yours.dtype, right.dtype):
        return f"the type is {yours.dtype}, not {right.dtype}"
    distance = (yours.double() - right.double()).abs()
    wrong = ~(distance <= 1e-4 * right.double().abs().mean())  # NaN is wrong
    if not wrong.any():
        return ""
    index = torch.unravel_index(distance.argmax(), right.shape)
    place = f" at {[int(axis) for axis in index]}" if index else ""
    numbers = f"{float(yours[index]):.5g}, not {float(right[index]):.5g}"
    return f"{wrong.sum()} of {wrong.numel()} numbers differ, the furthest{place}: {numbers}"


def outcomes(code: Code, exercise: Exercise) -> dict[str, Outcome]:
    """Run code on each input of an exercise."""
    rows = exercise.inputs.items()
    return {name: outcome(code, row, exercise.returns) for name, row in rows}


def differences(yours: dict[str, Outcome], right: dict[str, Outcome]) -> dict[str, str]:
    """Say how outcomes differ from the right ones, by input, where they do."""
    described = {}
    for name, tensors in yours.items():
        expected = right[name]
        if isinstance(tensors, str) or isinstance(expected, str):
            described[name] = str(tensors)
            continue
        texts = [difference(*pair) for pair in zip(tensors, expected)]
        if any(texts):
            described[name] = ", and ".join(filter(None, texts))
    return described


# %% [markdown]
# A known mistake is named if it gives your numbers on every input on which your code runs at all. An inverted mask, `~mask`, fails where the mask is None; with a mask, its numbers still tell what is wrong.


# %% tags=["export"]
class Verdict(str):
    """What `check` says, as a text; true if the code is right, for `assert check(...)`."""

    passed = False

    def __bool__(self) -> bool:
        return self.passed


def check(part: str, yours: Code) -> Verdict:
    """Run your implementation of a part of the model; say that it is right, or what is wrong.

    Parts: attention, padding_mask, causal_mask, multi_head_attention, feed_forward, embedding,
    positions, layer_norm, residual, shift, learning_rate, smoothed_loss, length_penalty. Raises
    ValueError for another.
    """
    if part not in EXERCISES:
        parts = ", ".join(EXERCISES)
        raise ValueError(f'there is no exercise "{part}": take one of {parts}')
    exercise = EXERCISES[part]
    with torch.device("cpu"):
        results = outcomes(yours, exercise)
        failures = differences(results, outcomes(exercise.right, exercise))
        if not failures:
            verdict = Verdict(f"{part}: right")
            verdict.passed = True
            return verdict
        silent = [name for name in failures if isinstance(results[name], str)]
        if len(silent) < len(failures):  # there are wrong numbers to explain
            for mistake, code in exercise.mistakes.items():
                unlike = differences(results, outcomes(code, exercise))
                if [*unlike] == silent:
                    text = f"{part}: wrong. You get these numbers when {mistake}."
                    if silent:
                        text += f" Besides, {silent[0]}: {failures[silent[0]]}."
                    return Verdict(text)
    name, failure = next(iter(failures.items()))
    return Verdict(f"{part}: wrong {name}: {failure}.")


# %% [markdown]
# ## Attention and masks
#
# What follows is a collection of bugs. Most are the right code with one step exchanged. No two axes of an input have the same size, and no $d_k$ is 4: there, dividing by $d_k / 2$ would be right by accident.


# %% tags=["export"]
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    power: float = 0.5,
    axis: int = -1,
    visible: bool = True,
    hidden: float = -math.inf,
) -> Tensor:
    """Attention with steps to exchange: power of d_k, axis of softmax, mask, hidden score."""
    scores = query @ key.mT / key.size(-1) ** power
    if mask is not None:
        scores = scores.masked_fill(mask != visible, hidden)
    return scores.softmax(axis) @ value


def hide_late(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention that hides weights, not scores."""
    weights = (q @ k.mT / k.size(-1) ** 0.5).softmax(-1)
    return (weights if mask is None else weights * mask) @ v


MASK = [[True, False, True, True], [True, True, False, False]]
enter(
    "attention",
    right=F.scaled_dot_product_attention,
    inputs={
        "without a mask": ((2, 3, 7), (2, 5, 7), (2, 5, 6), None),
        "with a mask": ((3, 2, 5), (3, 4, 5), (3, 4, 7), MASK),
    },
    mistakes={
        "the scores are not divided by sqrt(d_k)": partial(attend, power=0),
        "the scores are divided by d_k, not by its root": partial(attend, power=1),
        "the softmax runs over the queries, not the keys": partial(attend, axis=-2),
        "the mask is not used": lambda q, k, v, mask: attend(q, k, v, None),
        "the mask is inverted: True means `may attend`": partial(attend, visible=False),
        "a hidden score is 0, not minus infinity": partial(attend, hidden=0.0),
        "weights are hidden after the softmax: rows do not sum to 1": hide_late,
    },
)

# %% tags=["export"]
enter(
    "padding_mask",
    right=lambda tokens: (tokens != 0)[:, None, None, :],
    inputs={
        "with padding on the right": ([[2, 5, 1, 0, 0, 0], [2, 9, 3, 7, 1, 0]],),
        "with padding on the left": ([[0, 1, 5, 2, 3], [0, 0, 0, 0, 2]],),
    },
    mistakes={
        "it is inverted: True marks words": lambda ids: (ids == 0)[:, None, None, :],
        "it has no axis for heads and queries": lambda ids: ids != 0,
        "it hides padded queries, not keys": lambda ids: (ids != 0)[:, None, :, None],
    },
)
enter(
    "causal_mask",
    right=lambda length: torch.arange(length) <= torch.arange(length)[:, None],
    inputs={"at length 6": (6,), "at length 1": (1,)},
    mistakes={
        "it is inverted": lambda n: torch.ones(n, n).triu(1) > 0,
        "it is transposed: one sees the future": lambda n: torch.ones(n, n).triu() > 0,
        "a position may not see itself": lambda n: torch.ones(n, n).tril(-1) > 0,
        "one word of the future is seen": lambda n: torch.ones(n, n).tril(1) > 0,
    },
)

# %% [markdown]
# ## Several heads
#
# The right answer makes all heads at once, and most mistakes are in its reshapes.


# %% tags=["export"]
def all_heads(
    *arguments: Any,
    project: Code = torch.matmul,
    split: bool = True,
    join: bool = True,
    scale: float | None = None,
) -> Tensor:
    """Multi-head attention with steps to exchange: products, the two transposes, scale."""
    query, key, value, w_q, w_k, w_v, w_o, heads = arguments
    parts = [project(query, w_q), project(key, w_k), project(value, w_v)]
    if split:
        q, k, v = [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in parts]
    else:
        q, k, v = [x.reshape(len(x), heads, x.size(1), -1) for x in parts]
    output = F.scaled_dot_product_attention(q, k, v, scale=scale)
    if join:
        output = output.transpose(1, 2)
    return project(output.reshape(query.shape), w_o)


MATRICES = [(12, 12)] * 4
enter(
    "multi_head_attention",
    right=all_heads,
    inputs={
        "with 2 heads": ((3, 5, 12), (3, 7, 12), (3, 7, 12), *MATRICES, 2),
        "with 4 heads": ((2, 7, 12), (2, 5, 12), (2, 5, 12), *MATRICES, 4),
    },
    mistakes={
        "the projections are reshaped into heads without a transpose": partial(
            all_heads, split=False, join=False
        ),
        "the heads are joined without transposing back": partial(all_heads, join=False),
        "the scores are divided by sqrt(d_model)": partial(all_heads, scale=12**-0.5),
        "the scores are not divided by sqrt(d_k)": partial(all_heads, scale=1.0),
        "it is x @ W.T, as in nn.Linear": partial(all_heads, project=F.linear),
    },
)

# %% [markdown]
# ## Feed-forward, embedding, positions
#
# Not everything that differs is worse. Sines in the first half and cosines in the second, as in the authors' code, serve as well as the paper's alternation. But weights trained with one don't work with the other, so the checker says so.


# %% tags=["export"]
enter(
    "feed_forward",
    right=lambda x, w_1, b_1, w_2, b_2: F.relu(x @ w_1 + b_1) @ w_2 + b_2,
    inputs={
        "at width 5": ((2, 3, 5), (5, 7), (7,), (7, 5), (5,)),
        "at width 3": ((5, 2, 3), (3, 11), (11,), (11, 3), (3,)),
    },
    mistakes={
        "the ReLU is missing": lambda x, w, b, v, c: (x @ w + b) @ v + c,
        "it is a GELU, not a ReLU": lambda x, w, b, v, c: F.gelu(x @ w + b) @ v + c,
        "the first bias is missing": lambda x, w, b, v, c: F.relu(x @ w) @ v + c,
        "the second bias is missing": lambda x, w, b, v, c: F.relu(x @ w + b) @ v,
    },
)
enter(
    "embedding",
    right=lambda tokens, table: F.embedding(tokens, table) * table.size(1) ** 0.5,
    inputs={
        "at width 7": ([[4, 2, 2, 0], [1, 0, 9, 3]], (11, 7)),
        "at width 10": ([[5, 0], [1, 3], [4, 2]], (11, 10)),
    },
    mistakes={
        "the factor sqrt(d_model) is missing": lambda ids, table: table[ids],
        "the factor is d_model itself": lambda ids, table: table[ids] * table.size(1),
    },
)


def waves(
    length: int,
    d_model: int,
    first: int = 0,
    shared: int = 2,
    step: int = 2,
    even: Code = torch.sin,
    odd: Code = torch.cos,
    join: Code = lambda pair: torch.stack(pair, dim=-1).flatten(1),
) -> Tensor:
    """Sines and cosines with steps to exchange: positions, exponents, order of the columns."""
    position = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    exponent = torch.arange(d_model).double() // shared * step / d_model
    angle = position / 10_000**exponent
    return join([even(angle[:, 0::2]), odd(angle[:, 1::2])])


enter(
    "positions",
    right=waves,
    inputs={
        "at 7 positions of width 10": (7, 10),
        "at 300 positions of width 4": (300, 4),
    },
    mistakes={
        "the sines come first, then the cosines": partial(waves, join=torch.hstack),
        "sine and cosine are exchanged": partial(waves, even=torch.cos, odd=torch.sin),
        "the first position is 1, not 0": partial(waves, first=1),
        "the cosine has a rate of its own": partial(waves, shared=1, step=1),
        "the exponent is i / d, not 2i / d": partial(waves, step=1),
    },
)

# %% [markdown]
# ## Norm and residual


# %% tags=["export"]
def normalize(
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    eps: float,
    axes: int | tuple[int, ...] = -1,
    correction: int = 0,
    outside: bool = False,
) -> Tensor:
    """Layer norm with steps to exchange: axes, D - correction, whether eps is outside the root."""
    centered = x - x.mean(axes, keepdim=True)
    variance = x.var(axes, correction=correction, keepdim=True)
    root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
    return gain * centered / root + bias


enter(
    "layer_norm",
    right=lambda x, gain, bias, eps: F.layer_norm(x, gain.shape, gain, bias, eps),
    inputs={
        "at width 5": ((2, 3, 5), (5,), (5,), 0.1),
        "at width 7": ((5, 2, 7), (7,), (7,), 0.01),
    },
    mistakes={
        "the variance divides by D - 1, not by D": partial(normalize, correction=1),
        "epsilon is outside the root": partial(normalize, outside=True),
        "the variance divides by D - 1, and epsilon is outside the root": partial(
            normalize, correction=1, outside=True
        ),
        "all positions are normalized together": partial(normalize, axes=(-2, -1)),
        "gain and bias are missing": lambda x, g, b, e: F.layer_norm(x, g.shape, eps=e),
    },
)
enter(
    "residual",
    right=lambda x, sublayer, norm: norm(x + sublayer(x)),
    inputs={
        "on a batch": ((2, 3, 5), torch.cos, lambda x: F.layer_norm(x, (5,))),
        "with another norm": ((5, 2, 7), torch.sin, lambda x: (3 * x - 1).tanh()),
    },
    mistakes={
        "it normalizes first (pre-norm)": lambda x, f, norm: x + f(norm(x)),
        "norm and sum are swapped": lambda x, f, norm: norm(f(x)) + x,
        "the input is not added": lambda x, f, norm: norm(f(x)),
    },
)

# %% [markdown]
# ## Training and decoding


# %% tags=["export"]
enter(
    "shift",
    right=lambda target: (target[:, :-1], target[:, 1:]),
    inputs={
        "on 2 sentences": ([[1, 5, 7, 2, 0], [1, 6, 4, 8, 2]],),
        "on 3 sentences": ([[1, 9, 4, 2], [1, 5, 2, 0], [1, 7, 3, 2]],),
    },
    mistakes={
        "the decoder reads the word it must say": lambda t: (t[:, 1:], t[:, 1:]),
        "the decoder must say the word it reads": lambda t: (t[:, :-1], t[:, :-1]),
        "the decoder must say the past": lambda t: (t[:, 1:], t[:, :-1]),
    },
    returns=2,
)


def rate(
    step: int, d_model: int, warmup: int, power: float = -0.5, pick: Code = min
) -> Any:
    """Equation 3 with steps to exchange: power of d_model, which of the two terms."""
    return d_model**power * pick(step**-0.5, step * warmup**-1.5)


enter(
    "learning_rate",
    right=rate,
    inputs={
        "at step 1": (1, 50, 300),
        "at the end of the warm-up": (300, 90, 300),
        "at step 5000": (5000, 90, 700),
    },
    mistakes={
        "the larger of the two terms is taken": partial(rate, pick=max),
        "d_model is missing": partial(rate, power=0),
        "there is no warm-up": lambda n, d, warmup: d**-0.5 * n**-0.5,
        "`d ** -1/2` is half of 1 / d": lambda n, d, warmup: rate(n, d, warmup, -1) / 2,
        "it is a step ahead: steps count from 1": lambda n, d, w: rate(n + 1, d, w),
    },
)


# %% tags=["export"]
def smoothed(x: Tensor, labels: Tensor, smoothing: float, padding: int = 0) -> Tensor:
    """PyTorch's loss with label smoothing, the mean over labels that are not padding."""
    return F.cross_entropy(x, labels, ignore_index=padding, label_smoothing=smoothing)


def share_with_others(x: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The loss with a target that gives nothing of the smoothing to the label."""
    target = torch.full_like(x, smoothing / (x.size(-1) - 1))
    target.scatter_(1, labels[:, None], 1 - smoothing)
    return F.cross_entropy(x[labels > 0], target[labels > 0])


LOGITS = [[900.0, -700.0, 200.0, 0.0], [0.0, 500.0, 0.0, -300.0], [0.0, 0.0, 1.0, 2.0]]
enter(
    "smoothed_loss",
    right=smoothed,
    inputs={
        "on nine labels": ((9, 7), [3, 0, 1, 4, 0, 0, 6, 2, 5], 0.3),
        "on large logits": (LOGITS, [2, 0, 1], 0.1),
    },
    mistakes={
        "padding counts": partial(smoothed, padding=-100),
        "nothing is smoothed": lambda x, labels, share: smoothed(x, labels, 0.0),
        "the softmax is taken twice": lambda x, y, s: smoothed(x.softmax(-1), y, s),
        "it is a sum, not a mean": lambda x, y, s: smoothed(x, y, s) * (y > 0).sum(),
        "the label gets no share of the smoothing": share_with_others,
    },
)
enter(
    "length_penalty",
    right=lambda length, alpha: ((5 + length) / 6) ** alpha,
    inputs={"at length 10": (10, 0.6), "at length 3": (3, 0.9)},
    mistakes={
        "it is the length to the power of alpha": lambda length, alpha: length**alpha,
        "only the length is divided by 6": lambda n, alpha: (5 + n / 6) ** alpha,
        "it multiplies where it should divide": lambda n, alpha: (6 / (5 + n)) ** alpha,
    },
)

# %% [markdown]
# ## The checker, checked
#
# A checker that says *right* to everything would be worse than none. We hand it its own mistakes: it must find each of them, under its own name, which also shows that no two give the same numbers. (The book's tests also hand it the book's own code.)

# %%
named = [
    check(part, code).endswith(f"when {mistake}.")
    for part, table in EXERCISES.items()
    for mistake, code in table.mistakes.items()
]
print(len(named), "mistakes in", len(EXERCISES), "exercises")
print(sum(named), "of them found under their own name")

# %% tags=["remove-cell"]
if CHECKING:
    assert all(named)
    assert all(check(part, table.right) for part, table in EXERCISES.items())

# %% [markdown]
# A mistake that it doesn't know still gets an answer, which names the input and what is off:

# %%
print(
    check("layer_norm", lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, eps) * 1.1)
)
print(check("causal_mask", lambda length: torch.ones(length, 1).bool()))

# %% [markdown]
# ## Exercises
#
# **1. A part of your own** (★★★, an evening; no solution). Write the table of `top_p`, the function that keeps the most likely words that together reach a share p ([Decoding](19_decoding.ipynb#sampling-drawing-words-at-random)): the right answer, two inputs, and the three mistakes that you'd expect.
