# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
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
# Your function gets these arguments, in this order. Axis letters are those of the [notation page](../book/notation.md#axes). Matrices are on the right, `x @ W`.
#
# Four parts may be a class of modules, too: `check("feed_forward", FeedForward)`. It is made as `MultiHeadAttention(d_model, heads)`, `FeedForward(d_model, d_ff)`, `Embedding(vocabulary_size, d_model)` or `LayerNorm(d_model, eps)`, and called with what comes before the matrices and vectors in the table, the attention also with a mask, None. Its parameters, in the order in which you define them, become those matrices and vectors.
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
# | `smoothed_loss` | logits (N, \|V\|), labels (N), smoothing | the mean where labels are not 0 | [Regularization](17_regularization.ipynb#why-smooth-the-labels) |
# | `length_penalty` | length, alpha | the divisor | [Decoding](19_decoding.ipynb#why-do-searches-prefer-short-sentences) |

# %% tags=["export"]
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.batching import batches, encode_pairs
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import validation_loss
from annotated_transformer.transformer import Transformer, preset

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
    run: Code | None = None  # runs your class on a row of inputs


EXERCISES: dict[str, Exercise] = {}


def enter(part: str, **table: Any) -> None:
    """Enter the table of a part."""
    EXERCISES[part] = Exercise(**table)


# %% [markdown]
# ## The checker
#
# Code under test may raise, exit, change its arguments, or return a tuple, a number or an array of NumPy. It gets arguments of its own, and what it does becomes tensors or a sentence. A blank of the [workbook](../book/teaching.md) raises `NotImplementedError`, without a text: it isn't written yet, which is no mistake. (With a text it may come from PyTorch, and is one.) Extra tensors are ignored, so an attention may return its weights as well.


# %% tags=["export"]
Outcome = list[Tensor] | str  # what code returned, or why there is nothing to compare
UNWRITTEN = "not written yet"  # it raises a bare NotImplementedError


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
        if isinstance(error, NotImplementedError) and not error.args:
            return UNWRITTEN
        return f"it raises {type(error).__name__} ({error})"
    if isinstance(result, Verdict):  # of a milestone
        return result
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
# A known mistake is named if it gives your numbers on every input on which your code runs at all. An inverted mask, `~mask`, fails where the mask is None; with a mask, its numbers still tell what is wrong. But first, wrong code is called a second time, because numbers that change from call to call say nothing about a mistake.


# %% tags=["export"]
class Verdict(str):
    """What `check` says, as a text; true if the code is right, for `assert check(...)`."""

    def __bool__(self) -> bool:
        return self.endswith(": right")

    passed = property(__bool__)


def check(part: str, yours: Code) -> Verdict:
    """Run your function or class for a part of the model; say that it is right, or what is wrong.

    Parts: attention, padding_mask, causal_mask, multi_head_attention, feed_forward, embedding,
    positions, layer_norm, residual, shift, learning_rate, smoothed_loss, length_penalty; and two
    milestones, transformer and train_simply. Raises ValueError for another.
    """
    if part not in EXERCISES:
        parts = ", ".join(EXERCISES)
        raise ValueError(f'there is no exercise "{part}": take one of {parts}')
    exercise = EXERCISES[part]
    is_milestone = not exercise.mistakes
    if exercise.run and (isinstance(yours, type) or is_milestone):
        yours = partial(exercise.run, yours)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        results = outcomes(yours, exercise)
        failures = differences(results, outcomes(exercise.right, exercise))
        if not failures:
            return Verdict(f"{part}: right")
        if UNWRITTEN in failures.values():
            return Verdict(f"{part}: {UNWRITTEN}.")
        silent = [name for name in failures if isinstance(results[name], str)]
        if len(silent) < len(failures):  # there are wrong numbers to explain
            if str(outcomes(yours, exercise)) != str(results):
                text = "A second call gives other numbers: are some drawn at random?"
                return Verdict(f"{part}: wrong. {text}")
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
# A class of yours becomes a module, and the module gets the matrices of the input. `nn.Linear` keeps its matrix transposed. A bias that the book doesn't have is set to 0, and dropout is off.


# %% tags=["export"]
def filled(module: nn.Module, *values: Tensor) -> nn.Module:
    """Give values to the parameters of a module; biases for which there are none become 0."""
    axes = {value.dim() for value in values}
    parameters = [p for p in module.parameters() if p.dim() in axes]
    if len(parameters) != len(values):
        raise ValueError(f"it has {len(parameters)} parameters, not {len(values)}")
    linear = [part.weight for part in module.modules() if isinstance(part, nn.Linear)]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for parameter, value in zip(parameters, values):
            is_linear = any(parameter is weight for weight in linear)
            parameter.copy_(value.mT if is_linear else value)
    return module.eval()


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
        "heads are cut without a transpose": partial(
            all_heads, split=False, join=False
        ),
        "the heads are joined without transposing back": partial(all_heads, join=False),
        "the scores are divided by sqrt(d_model)": partial(all_heads, scale=12**-0.5),
        "the scores are not divided by sqrt(d_k)": partial(all_heads, scale=1.0),
        "it is x @ W.T, as in nn.Linear": partial(all_heads, project=F.linear),
    },
    run=lambda made, q, k, v, *rest: filled(made(q.size(-1), rest[-1]), *rest[:-1])(
        q, k, v, None
    ),
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
        "the first bias is missing": lambda x, w, b, v, c: F.relu(x @ w) @ v + c,
        "the second bias is missing": lambda x, w, b, v, c: F.relu(x @ w + b) @ v,
        "it is a GELU, not a ReLU": lambda x, w, b, v, c: F.gelu(x @ w + b) @ v + c,
    },
    run=lambda made, x, *rest: filled(made(*rest[0].shape), *rest)(x),
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
    run=lambda made, ids, table: filled(made(*table.shape), table)(ids),
)


def alternate(sides: list[Tensor]) -> Tensor:
    """Put the columns of two matrices in turn."""
    return torch.stack(sides, dim=-1).flatten(1)


def waves(
    length: int,
    d_model: int,
    first: int = 0,
    shared: int = 2,
    step: int = 2,
    even: Code = torch.sin,
    odd: Code = torch.cos,
    join: Code = alternate,
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
        "the exponent is 4i / d: columns 0, 2, 4 are 2i": partial(waves, step=4),
    },
)

# %% [markdown]
# ## Norm and residual


# %% tags=["export"]
def normalize(
    *row: Any, axes: Any = -1, correction: int = 0, outside: bool = False
) -> Tensor:
    """Layer norm with steps to exchange: axes, D - correction, whether eps is outside the root."""
    x, gain, bias, eps = row
    centered = x - x.mean(axes, keepdim=True)
    variance = x.var(axes, correction=correction, keepdim=True)
    root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
    return torch.addcmul(bias, gain, centered / root)


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
    run=lambda made, x, gain, bias, eps: filled(made(len(gain), eps), gain, bias)(x),
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
        "d_model is missing": partial(rate, power=0),
        "the larger of the two terms is taken": partial(rate, pick=max),
        "there is no warm-up": lambda n, d, warmup: d**-0.5 * n**-0.5,
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
        "nothing is smoothed": lambda x, labels, share: smoothed(x, labels, 0.0),
        "padding counts": partial(smoothed, padding=-100),
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
        "only the length is divided by 6": lambda n, alpha: (5 + n / 6) ** alpha,
        "it is the length to the power of alpha": lambda length, alpha: length**alpha,
        "it multiplies where it should divide": lambda n, alpha: (6 / (5 + n)) ** alpha,
    },
)

# %% [markdown]
# ## Two milestones
#
# After chapter 10 you have a whole model, and after chapter 18 you can train one. So two parts are wholes, and what is compared is what they can do.
#
# `transformer` is a class, made with [a configuration](10_transformer.ipynb#one-configuration) and called with source and target tokens. With the weights of a model of ours it must give the same logits, wherever there is no padding. (This takes parameters of the same shapes in the same order. Where they differ, as with two tables instead of one, nothing is compared.) And it must [learn to copy](10_transformer.ipynb#the-model-learns-to-copy): after 200 updates, it writes at least half of a hundred rows of letters without a mistake, word by word, with no answer to look at.
#
# `train_simply` is [the loop of ten lines](18_training.ipynb#ten-lines). It is called with a small model of ours, batches of the grammar, 300 steps, and a `report` that does nothing. On other pairs, the loss must come below 2 nats per token; with the book's loop it comes to about 1.


# %% tags=["export"]
def same_logits(made: Code) -> bool | Verdict:
    """Compare a class of models with ours, given the same weights, if it can have them."""
    torch.manual_seed(0)
    config = preset("tiny", vocabulary_size=30, dropout=0.0)
    yours = made(config).eval()
    ours = Transformer(config).eval()
    shapes = [[weight.shape for weight in m.parameters()] for m in (yours, ours)]
    if shapes[0] != shapes[1]:
        return True
    source = letter_rows(20)
    target = F.pad(letter_rows(20), (1, 0), value=BOS)
    with torch.no_grad():
        for own, other in zip(yours.parameters(), ours.parameters()):
            own.copy_(other.normal_(std=0.3))
        logits = [model(source, target)[target != PAD] for model in (yours, ours)]
    fault = difference(*logits)
    return Verdict(fault) if fault else True


def letter_rows(rows: int) -> Tensor:
    """Draw rows of 3 to 8 letters, ids 4 to 29, each ended by EOS and padded."""
    place = torch.arange(9)
    length = torch.randint(3, 9, (rows, 1))
    ids = torch.randint(4, 30, (rows, 9))
    return ids.where(place < length, EOS).where(place <= length, PAD)


def learns_to_copy(made: Code) -> bool | Verdict:
    """Train a model of a class on rows of letters, and let it write others."""
    torch.manual_seed(0)
    model = made(preset("tiny", vocabulary_size=30, layers=1, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(200):
        source = letter_rows(64)
        logits = model(source, F.pad(source, (1, -1), value=BOS))
        loss = F.cross_entropy(logits.mT, source, ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source = letter_rows(100)
    written = torch.full_like(source[:, :1], BOS)
    with torch.no_grad():
        for _ in range(source.size(1)):
            words = model.eval()(source, written)[:, -1:].argmax(dim=-1)
            written = torch.cat([written, words], dim=1)
    right = ((written[:, 1:] == source) | (source == PAD)).all(dim=1).sum()
    if right >= 50:
        return True
    return Verdict(f"after 200 updates, {right} of 100 rows are right")


def learns_grammar(loop: Code) -> bool | Verdict:
    """Let a training loop teach a model of ours the grammar."""
    pairs = grammar(8000)
    tokenizer = Tokenizer.train(pairs, vocabulary_size=500)
    torch.manual_seed(0)
    size = len(tokenizer)
    model = Transformer(preset("tiny", vocabulary_size=size, layers=1, dropout=0.0))
    stream = batches(encode_pairs(tokenizer, pairs[200:]), max_tokens=384)
    loop(model, stream, 300, lambda *_: None)
    others = encode_pairs(tokenizer, pairs[:200])
    loss = validation_loss(model, others, max_tokens=384)
    if loss < 2:
        return True
    return Verdict(
        f"after 300 steps, the loss on other pairs is {loss:.2f}, not below 2"
    )


enter(
    "transformer",
    right=lambda task: True,
    inputs={
        "with the weights of a model of ours": (same_logits,),
        "when it learns to copy": (learns_to_copy,),
    },
    mistakes={},
    run=lambda made, task: task(made),
)
enter(
    "train_simply",
    right=lambda task: True,
    inputs={"on the grammar": (learns_grammar,)},
    mistakes={},
    run=lambda loop, task: task(loop),
)

# %% [markdown]
# ## A file at a time
#
# This section is for teachers. A student's file defines functions with the names of the parts, `attention`, `causal_mask`, and so on, down to `train_simply`, or classes: `MultiHeadAttention`, `FeedForward`, `Embedding`, `LayerNorm`, `Transformer`. Whatever else is in it doesn't matter, and what it only imports is not taken for the student's. `annotated-transformer check anna.py` says of each part whether it is right, wrong, or missing. It also takes a notebook, of which it runs all code cells.
#
# Checking a file runs it. Each part is checked in a process of its own, which is ended when its time is up, so neither an endless loop nor an exit keeps you from the other parts. But each process runs the file from the top: what trains for an hour belongs under `if __name__ == "__main__":`. And the code runs with your rights, so a file from somebody whom you don't trust belongs in a container.


# %% tags=["export"]
STUDENT = "student"  # name of a student's file while it runs


def parts_of(file: Path) -> dict[str, Code]:
    """Run a file, or the code cells of a notebook; return the parts that it defines itself."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        sources = [c["source"] for c in cells if c["cell_type"] == "code"]
        text = "\n".join("".join(lines) for lines in sources)
    sys.path.insert(0, str(file.parent))
    names: dict[str, Any] = {"__name__": STUDENT}
    exec(compile(text, file, "exec"), names)
    if {"checked", "written"} <= names.keys():  # a workbook: the rest is the book's
        return dict(names["written"])
    found: dict[str, Code] = {}
    for part, exercise in EXERCISES.items():
        for name in (part, part.title().replace("_", "")):  # a function, a class
            code: Any = names.get(name)
            is_theirs = getattr(code, "__module__", None) == STUDENT
            if is_theirs and (exercise.run or not isinstance(code, type)):
                found[part] = code
    return found


def answer(file: Path, part: str, sender: Connection) -> None:
    """Send what `check` says of a part of a file; of the part "file", which parts it has."""
    torch.set_num_threads(1)  # small models gain nothing from more
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = sys.stderr = nowhere  # whatever the file prints
        try:
            found = parts_of(file)
            sender.send([*found] if part == "file" else check(part, found[part]))
        except (Exception, SystemExit) as error:
            sender.send(f"wrong: it raises {type(error).__name__} ({error}).")


def ask(file: Path, part: str, seconds: float) -> Any:
    """Run `answer` in a process of its own, and end it after so many seconds."""
    context: Any = get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload([__name__])  # PyTorch is imported once
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(file, part, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(seconds):
            return receiver.recv()
        return f"wrong: it takes more than {seconds:g} seconds."
    except EOFError:
        return "wrong: its process ended without an answer."
    finally:
        process.kill()


def check_file(file: Path, seconds: float) -> Iterator[tuple[str, str]]:
    """Check a student's file; yield each part, and that it is right, missing, or what is wrong.

    Each part has a process of its own, and so many seconds. A file that does not run yields one
    part, "file".
    """
    found = ask(file, "file", seconds)
    if isinstance(found, str):
        yield "file", found
        return
    for part in EXERCISES:
        said = ask(file, part, seconds) if part in found else "missing"
        said = said.removeprefix(f"{part}: ")
        yield part, "missing" if said == f"{UNWRITTEN}." else said


# %% [markdown]
# Here are two parts of a student's, and what the command prints:

# %%
import tempfile

from annotated_transformer.cli import main

folder = tempfile.TemporaryDirectory()
anna = Path(folder.name, "anna.py")
anna.write_text("""
import torch

def causal_mask(length):
    return torch.ones(length, length).triu().bool()

def length_penalty(length, alpha):
    return ((5 + length) / 6) ** alphas
""")
try:
    main(["check", str(anna)])
except SystemExit as stop:
    print("exit code", stop.code)
folder.cleanup()

# %% [markdown]
# The exit code is 3 if a part is wrong, or if the file has none, and 0 if all parts that it has are right. `--json` prints each part as a line of JSON with the file's name, and `--seconds` sets the time for each part. So a teacher grades a class with
#
# ```bash
# for file in handed-in/*.py; do annotated-transformer check "$file" --json; done > grades.jsonl
# ```
#
# A part that is `missing` is no mistake, because only you know how far the class has come. What `says` holds can be sent back as it is.

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
print(len(named), "mistakes in", len(EXERCISES) - 2, "parts")
print(sum(named), "of them found under their own name")

# %% tags=["remove-cell"]
if CHECKING:
    assert all(named)
    exercises = {
        part: EXERCISES[part] for part in EXERCISES if EXERCISES[part].mistakes
    }
    assert all(check(part, table.right) for part, table in exercises.items())

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
