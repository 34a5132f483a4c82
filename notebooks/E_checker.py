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
# It runs, and without a mask it is right. With one, the product makes a hidden score 0, and 0 is a score like any other.
#
# Wrong implementations are seldom wrong in new ways ([Common mistakes](../book/mistakes.md) lists the usual ones), and each mistake leaves its mark on the numbers. The checker therefore makes the known mistakes itself and looks for the one that gives exactly *your* numbers.
#
# ## The parts it knows
#
# Your function gets these arguments, in this order. Axis letters are those of the [notation page](../book/notation.md#axes). Matrices are on the right, `x @ W`.
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
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# %% [markdown]
# ## A right answer, inputs, and mistakes
#
# The right answer must not come from the book, or the book's own errors would count as right. We take PyTorch's functions where it has them, and elsewhere the formula written out.
#
# The inputs are random, in double precision. No two axes have the same size, and no $d_k$ is 4: there, dividing by $d_k / 2$ would be right by accident.


# %% tags=["export"]
Mistakes = dict[str, Callable[..., Any]]  # "... when ..." -> code that makes the mistake


class Exercise(NamedTuple):
    """One part of the model to write: what is right, inputs to try, and known mistakes."""

    right: Callable[..., Any]
    inputs: dict[str, tuple[Any, ...]]  # what is special about them -> the arguments
    mistakes: Mistakes
    returns: int = 1  # tensors


def normal(seed: int, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Draw independent normal numbers in double precision, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


# %% [markdown]
# ## The checker
#
# Code under test may raise, exit, change its arguments, return a tuple, a list or a number. It gets copies, and what it does becomes tensors or a sentence. Two outcomes are compared from the outside in: did it run, how many tensors came back, of what shape and type, with which numbers. Extra tensors are ignored, so an attention may return its weights as well.


# %% tags=["export"]
Outcome = list[Tensor] | str  # what code returned, or why nothing can be compared


def outcome(code: Callable[..., Any], arguments: tuple[Any, ...], returns: int = 1) -> Outcome:
    """Run code on copies of the arguments; return its first tensors, or say why it has none."""
    try:
        result = code(*(a.clone() if isinstance(a, Tensor) else a for a in arguments))
    except (Exception, SystemExit) as error:  # any code of a reader, any error
        return f"it raises {type(error).__name__} ({error})"
    several = isinstance(result, list) and (returns > 1 or any(map(torch.is_tensor, result)))
    parts = list(result[:returns]) if several or isinstance(result, tuple) else [result]
    if any(part is None for part in parts):
        return "it returns None, as if a `return` were missing"
    if len(parts) < returns:
        return f"it returns {len(parts)} tensor, not {returns}"
    try:
        return [torch.as_tensor(part).detach().to_dense().cpu() for part in parts]
    except Exception as error:
        return f"what it returns is no tensor that can be compared ({error})"


def difference(yours: Outcome, right: Outcome) -> str:
    """Say how an outcome differs from the right one; an empty string if it does not."""
    if isinstance(yours, str) or isinstance(right, str):
        return "" if yours == right else str(yours)
    for mine, other in zip(yours, right):
        mine = mine.reshape(()) if other.dim() == 0 and mine.numel() == 1 else mine
        if mine.shape != other.shape:
            return f"the shape is {tuple(mine.shape)}, not {tuple(other.shape)}"
        if mine.dtype == torch.bool != other.dtype or not torch.can_cast(mine.dtype, other.dtype):
            return f"the type is {mine.dtype}, not {other.dtype}"
        mine, other = mine.double(), other.double()
        if (nan := mine.isnan() & ~other.isnan()).any():
            return f"{nan.sum()} of {nan.numel()} numbers are NaN"
        near = 1e-4 * float(other.nan_to_num(0.0, 0.0, 0.0).abs().mean())
        if (far := ~torch.isclose(mine, other, rtol=0.0, atol=near, equal_nan=True)).any():
            return f"{far.sum()} of {far.numel()} numbers differ"
    return ""


def outcomes(code: Callable[..., Any], exercise: Exercise) -> list[Outcome]:
    """Run code on each input of an exercise."""
    return [outcome(code, a, exercise.returns) for a in exercise.inputs.values()]


def check(part: str, yours: Callable[..., Any]) -> str:
    """Run your implementation of a part of the model; say that it is right, or what is wrong.

    Parts: attention, padding_mask, causal_mask, multi_head_attention, feed_forward, embedding,
    positions, layer_norm, residual, shift, learning_rate, smoothed_loss, length_penalty.
    Raises ValueError for another one.
    """
    if part not in EXERCISES:
        raise ValueError(f'there is no exercise "{part}": take one of {", ".join(EXERCISES)}')
    with torch.device("cpu"):
        exercise = EXERCISES[part]()
        found = outcomes(yours, exercise)
        wrong = list(map(difference, found, outcomes(exercise.right, exercise)))
        if not any(wrong):
            return f"{part}: right"
        for mistake, code in exercise.mistakes.items():
            if not any(map(difference, found, outcomes(code, exercise))):
                return f"{part}: wrong. You get these numbers when {mistake}."
    where, what = next((name, what) for name, what in zip(exercise.inputs, wrong) if what)
    return f"{part}: wrong {where}: {what}. None of the mistakes known here gives this."


# %% [markdown]
# ## Attention and masks
#
# What follows is a collection of bugs. Most are the right code with one step exchanged.


# %% tags=["export"]
def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, axis: int = -1, turned: bool = False,
    by: Callable[[int], float] = lambda d: d**0.5, hidden: float = -torch.inf,
) -> Tensor:  # fmt: skip
    """Attention with steps to exchange: divisor, softmax axis, hidden score; what to hide."""
    scores = q @ k.mT / by(k.size(-1))
    mask = torch.tensor(not turned) if mask is None else mask
    return scores.masked_fill(mask if turned else ~mask, hidden).softmax(axis) @ v


def attention_exercise() -> Exercise:
    """`attention(query (B, T, d_k), key (B, S, d_k), value (B, S, d_v), mask (T, S) or None)`."""
    (q, k, v), mask = normal(2, (3, 4, 5), (3, 6, 5), (3, 6, 7)), normal(4, (4, 6))[0] > 0
    deep = torch.arange(1.0, 5).to(q)[:, None].expand(3, 4, 1)  # each row further down
    far = torch.cat([200 * q[..., 1:], deep], -1), F.pad(k[..., 1:], (0, 1), value=-1600 * 5**0.5)
    inputs = {
        "without a mask": (*normal(1, (2, 3, 7), (2, 5, 7), (2, 5, 6)), None),
        "with a mask": (q, k, v, mask),
        "with a mask and scores of thousands below 0": (*far, v, mask),
    }
    mistakes: Mistakes = {
        "the softmax runs over the queries, not over the keys (dim=-1)": partial(attend, axis=-2),
        "the scores are not divided by sqrt(d_k)": partial(attend, by=lambda d: 1),
        "the scores are divided by d_k, not by its root": partial(attend, by=lambda d: d),
        "the scores are divided by d_k / 2 (`d_k ** 1/2`)": partial(attend, by=lambda d: d / 2),
        "the scores are divided by 2 d_k (`/ d_k ** 1/2`)": partial(attend, by=lambda d: 2 * d),
        "the mask is inverted: True means `may attend`": partial(attend, turned=True),
        "the mask is not used": lambda q, k, v, mask: attend(q, k, v, None),
        "a hidden score is 0, like any other, not minus infinity": partial(attend, hidden=0.0),
        "weights are hidden after the softmax: rows do not sum to 1": lambda q, k, v, mask: (
            attend(q, k, torch.eye(k.size(-2)).to(q), None) * (mask is None or mask) @ v
        ),
    }  # fmt: skip
    return Exercise(F.scaled_dot_product_attention, inputs, mistakes)


# %% tags=["export"]
def padding_mask_exercise() -> Exercise:
    """`padding_mask(tokens (B, S))`, boolean (B, 1, 1, S)."""
    mistakes: Mistakes = {
        "it is inverted: True must mark the words": lambda t: (t == 0)[:, None, None],
        "it has no axis for heads and queries": lambda t: t != 0,
        "it hides padded queries (rows), not keys (columns)": lambda t: (t != 0)[:, None, :, None],
    }  # fmt: skip
    left = torch.tensor([[0, 0, 0, 1, 5, 2], [0, 1, 7, 3, 9, 2]])
    inputs = {"with padding on the left": (left,), "without padding": (left[1:, 1:],)}
    inputs["with padding on the right"] = (left.flip(1),)
    return Exercise(lambda tokens: (tokens != 0)[:, None, None, :], inputs, mistakes)


def causal_mask_exercise() -> Exercise:
    """`causal_mask(length)`, boolean (T, T)."""
    on = partial(torch.ones, dtype=torch.bool)
    mistakes: Mistakes = {
        "it is inverted: True must be on and below the diagonal": lambda n: on(n, n).triu(1),
        "it is transposed: a query sees the future": lambda n: on(n, n).triu(),
        "a position may not see itself": lambda n: on(n, n).tril(-1),
        "one word of the future is seen": lambda n: on(n, n).tril(1),
    }
    inputs = {f"at length {length}": (length,) for length in (6, 1, 300)}
    return Exercise(lambda n: torch.arange(n) <= torch.arange(n)[:, None], inputs, mistakes)


# %% [markdown]
# ## Several heads
#
# The right answer makes all heads at once, and most mistakes are in its reshapes.


# %% tags=["export"]
def all_heads(
    q: Tensor, k: Tensor, v: Tensor, *matrices_and_heads: Any,
    split: Callable[[Tensor, int], Tensor] = lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2),
    merge: Callable[[Tensor], Tensor] = lambda x: x.transpose(1, 2).flatten(2),
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Multi-head attention with steps to exchange: split, merge or scale."""
    w_q, w_k, w_v, w_o, heads = matrices_and_heads
    q, k, v = (split(x @ matrix, heads) for x, matrix in ((q, w_q), (k, w_k), (v, w_v)))
    return merge(F.scaled_dot_product_attention(q, k, v, scale=scale)) @ w_o


def multi_head_attention_exercise() -> Exercise:
    """`multi_head_attention(query (B, T, D), key, value (B, S, D), four (D, D), heads)`."""
    joined: Any = {"merge": lambda x: x.reshape(len(x), x.size(2), -1)}  # without a transpose
    mistakes: Mistakes = {
        "the projections are reshaped into heads without a transpose": partial(
            all_heads, split=lambda x, h: x.reshape(len(x), h, x.size(1), -1), **joined),
        "the heads are joined without transposing back": partial(all_heads, **joined),
        "the scores are divided by sqrt(d_model)": partial(all_heads, scale=30**-0.5),
        "the scores are not divided by sqrt(d_k)": partial(all_heads, scale=1.0),
        "there is one wide head only": lambda *a: all_heads(*a[:-1], 1),
        "W_O is missing": lambda *a: all_heads(*a[:6], torch.eye(30).double(), a[-1]),
        "keys and values are exchanged": lambda q, k, v, *rest: all_heads(q, v, k, *rest),
        "the matrices are transposed: it is x @ W, and nn.Linear keeps W.T": lambda *a: (
            all_heads(*a[:3], *(matrix.T for matrix in a[3:7]), a[-1])),
    }  # fmt: skip
    inputs = {}
    for heads, b, t, s in ((3, 2, 4, 7), (5, 4, 7, 3)):
        *x, w_q, w_k, w_v, w_o = normal(heads, (b, t, 30), *[(b, s, 30)] * 2, *[(30, 30)] * 4)
        inputs[f"with {heads} heads"] = (*x, w_q / 4, w_k / 4, w_v / 4, w_o / 4, heads)
    return Exercise(all_heads, inputs, mistakes)


# %% [markdown]
# ## Feed-forward, embedding, positions
#
# Not everything that differs is worse. Sines in the first half and cosines in the second, as in the authors' code, serve as well as the paper's alternation. But weights trained with one don't work with the other, so the checker says so.


# %% tags=["export"]
def feed_forward_exercise() -> Exercise:
    """`feed_forward(x (B, T, D), W_1 (D, d_ff), b_1 (d_ff), W_2 (d_ff, D), b_2 (D))`."""
    mistakes: Mistakes = {"the ReLU is missing": lambda x, w, b, v, c: (x @ w + b) @ v + c}
    shapes = [((2, 3, 5), (5, 7), (7,), (7, 5), (5,)), ((5, 2, 3), (3, 11), (11,), (11, 3), (3,))]
    inputs = {f"on numbers of shape {s[0]}": normal(n, *s) for n, s in enumerate(shapes, 3)}
    return Exercise(lambda x, w, b, v, c: F.relu(x @ w + b) @ v + c, inputs, mistakes)


def embedding_exercise() -> Exercise:
    """`embedding(tokens (B, T), table (|V|, D))`, times the square root of D."""
    mistakes: Mistakes = {
        "the factor sqrt(d_model) is missing": lambda t, table: table[t],
        "the factor is d_model, not its square root": lambda t, table: table[t] * table.size(1),
    }
    batches = torch.tensor([[4, 2, 2, 0], [1, 0, 9, 3]]), torch.tensor([[5, 0], [1, 3], [4, 2]])
    inputs = {f"at width {d}": (t, *normal(d, (11, d))) for t, d in zip(batches, (7, 10))}
    return Exercise(lambda t, table: F.embedding(t, table) * table.size(1) ** 0.5, inputs, mistakes)


# %% tags=["export"]
def waves(length: int, d_model: int, first: int = 0, rate: Any = lambda i: 2 * (i // 2)) -> Tensor:
    """Sines and cosines of section 3.5 with steps to exchange."""
    p, i = torch.arange(first, first + length).double(), torch.arange(d_model).double()
    angle = p[:, None] / 10_000 ** (rate(i) / d_model)
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


def positions_exercise() -> Exercise:
    """`positions(length, d_model)`, (T, D)."""
    mistakes: Mistakes = {
        "the sines fill the first half and the cosines the second": lambda n, d: (
            waves(n, d)[:, [*range(0, d, 2), *range(1, d, 2)]]),
        "sine and cosine are exchanged": lambda n, d: waves(n, d)[:, torch.arange(d) ^ 1],
        "the first position is 1, not 0": partial(waves, first=1),
        "the cosine has a rate of its own; each pair shares one": partial(waves, rate=lambda i: i),
        "the exponent is i / d, not 2i / d": partial(waves, rate=lambda i: i // 2),
    }  # fmt: skip
    sizes = (7, 10), (1, 6), (300, 4)
    return Exercise(waves, {f"at {n} positions of width {d}": (n, d) for n, d in sizes}, mistakes)


# %% [markdown]
# ## Norm and residual


# %% tags=["export"]
def normalize(
    x: Tensor, gain: Tensor, bias: Tensor, eps: float, axes: Any = -1, fewer: int = 0,
    center: bool = True, root: Callable[[Tensor, float], Tensor] = lambda v, eps: (v + eps).sqrt(),
) -> Tensor:  # fmt: skip
    """Layer norm with steps to exchange; the variance divides by so many numbers fewer."""
    mean = x.mean(axes, keepdim=True) if center else 0.0
    return gain * (x - mean) / root(x.var(axes, correction=fewer, keepdim=True), eps) + bias


def layer_norm_exercise() -> Exercise:
    """`layer_norm(x (B, T, D), gain (D), bias (D), eps)`."""
    mistakes: Mistakes = {
        "the variance divides by D - 1, not by D": partial(normalize, fewer=1),
        "epsilon is outside the root": partial(normalize, root=lambda v, eps: v.sqrt() + eps),
        "the variance divides by D - 1, and epsilon is outside the root": partial(
            normalize, fewer=1, root=lambda v, eps: v.sqrt() + eps),
        "epsilon is not used": partial(normalize, root=lambda v, eps: v.sqrt()),
        "it is divided by the variance, not by its root": partial(normalize, root=torch.add),
        "all positions of a sentence are normalized together": partial(normalize, axes=(-2, -1)),
        "the mean is not subtracted": partial(normalize, center=False),
        "gain and bias are missing": lambda x, g, b, eps: F.layer_norm(x, g.shape, eps=eps),
    }  # fmt: skip
    sizes = (2, 3, 5, 0.1), (5, 2, 7, 0.01)
    inputs = {f"at width {d}": (*normal(d, (b, t, d), (d,), (d,)), eps) for b, t, d, eps in sizes}
    return Exercise(lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, eps), inputs, mistakes)


def residual_exercise() -> Exercise:
    """`residual(x (B, T, D), sublayer, norm)`, post-norm as in section 3.1."""
    mistakes: Mistakes = {
        "it normalizes first (pre-norm)": lambda x, f, norm: x + f(norm(x)),
        "norm and sum are swapped, norm(sublayer(x)) + x": lambda x, f, norm: norm(f(x)) + x,
        "the input is not added": lambda x, f, norm: norm(f(x)),
        "the normed input is added, not the input": lambda x, f, norm: norm(x) + f(norm(x)),
    }
    x, y = normal(1, (2, 3, 5), (5, 2, 7))
    inputs = {
        "on a batch": (x, lambda x: x.cumsum(1).tanh(), lambda x: F.layer_norm(x, (5,))),
        "with other functions": (y, torch.cos, lambda x: (3 * x - 1).tanh() + x.mean(-1, True)),
    }
    return Exercise(lambda x, f, norm: norm(x + f(x)), inputs, mistakes)


# %% [markdown]
# ## Training and decoding


# %% tags=["export"]
def shift_exercise() -> Exercise:
    """`shift(target (B, T + 1))`, two of (B, T): what is read and what is to be said."""
    mistakes: Mistakes = {
        "nothing is shifted: the decoder reads the word it must say": lambda t: [t[:, 1:]] * 2,
        "nothing is shifted: the decoder must say the word it reads": lambda t: [t[:, :-1]] * 2,
        "it is shifted the wrong way: it must say the past": lambda t: (t[:, 1:], t[:, :-1]),
    }
    batches = [[1, 5, 7, 2, 0], [1, 6, 4, 8, 2]], [[1, 9, 4, 3, 7, 2], [1, 5, 2, 0, 0, 0], [1] * 6]
    inputs = {f"on {len(rows)} sentences": (torch.tensor(rows),) for rows in batches}
    return Exercise(lambda t: (t[:, :-1], t[:, 1:]), inputs, mistakes, returns=2)


def learning_rate_exercise() -> Exercise:
    """`learning_rate(step, d_model, warmup)`, a number."""

    def rate(n: int, d: int, w: int, pick: Any = min, of_d: Any = -0.5, of_w: Any = -1.5) -> Any:
        return d**of_d * pick(n**-0.5, n * w**of_w)

    mistakes: Mistakes = {
        "the larger of the two terms is taken, not the smaller": partial(rate, pick=max),
        "d_model is missing": partial(rate, of_d=0),
        "there is no warm-up": partial(rate, pick=lambda fall, rise: fall),
        "`d ** -1/2` is half of 1 / d": lambda n, d, w: rate(n, d, w, of_d=-1) / 2,
        "the warm-up's exponent is -0.5, not -1.5": partial(rate, of_w=-0.5),
    }
    steps = (1, 50, 300), (70, 50, 300), (300, 90, 300), (5000, 90, 700)
    return Exercise(rate, {f"at step {n}, warm-up {w}": (n, d, w) for n, d, w in steps}, mistakes)


# %% tags=["export"]
def smoothed(logits: Tensor, labels: Tensor, smoothing: float, padding: int = 0) -> Tensor:
    """PyTorch's loss with label smoothing, the mean over labels that are not padding."""
    return F.cross_entropy(logits, labels, ignore_index=padding, label_smoothing=smoothing)


def others_only(logits: Tensor, labels: Tensor, smoothing: float, first: int = 0) -> Tensor:
    """Smooth over the other words only, from id `first` on: the label keeps 1 - smoothing."""
    share = torch.full_like(logits, smoothing / (logits.size(-1) - 1 - first))
    share[:, :first] = 0.0
    share.scatter_(1, labels[:, None], 1 - smoothing)
    return F.cross_entropy(logits[labels > 0], share[labels > 0])


def divergence(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The loss less the entropy of the smoothed target, which is the least that it can be."""
    target = F.one_hot(labels, logits.size(-1)) * (1 - smoothing) + smoothing / logits.size(-1)
    return F.kl_div(logits.log_softmax(-1), target, reduction="none")[labels > 0].sum(-1).mean()


def smoothed_loss_exercise() -> Exercise:
    """`smoothed_loss(logits (N, |V|), labels (N), smoothing)`, the mean where labels are not 0."""
    mistakes: Mistakes = {
        "padding counts": partial(smoothed, padding=-100),
        "nothing is smoothed": lambda x, y, s: smoothed(x, y, 0.0),
        "the softmax is taken twice": lambda x, y, s: smoothed(x.softmax(-1), y, s),
        "it is the sum, not the mean": lambda x, y, s: smoothed(x, y, s) * (y > 0).sum(),
        "the sum is divided by N": lambda x, y, s: smoothed(x, y, s) * (y > 0).double().mean(),
        "the label keeps 1 - smoothing and the others share the rest": others_only,
        "padding gets no share of the smoothing": partial(others_only, first=1),
        "it is the KL divergence, which is lower by the target's entropy": divergence,
    }  # fmt: skip
    inputs = {
        "on nine labels": (*normal(1, (9, 7)), torch.tensor([3, 0, 1, 4, 0, 0, 6, 2, 5]), 0.3),
        "on large logits": (1000 * normal(2, (5, 11))[0], torch.tensor([0, 10, 3, 0, 1]), 0.1),
    }
    return Exercise(smoothed, inputs, mistakes)


def length_penalty_exercise() -> Exercise:
    """`length_penalty(length, alpha)`, the divisor of the log-probability."""
    mistakes: Mistakes = {
        "it is the length itself to the power of alpha": lambda n, alpha: n**alpha,
        "only the length is divided by 6": lambda n, alpha: (5 + n / 6) ** alpha,
        "it multiplies where it should divide": lambda n, alpha: ((5 + n) / 6) ** -alpha,
    }
    inputs = {f"at length {n}": (n, alpha) for n, alpha in ((10, 0.6), (3, 0.9))}
    return Exercise(lambda n, alpha: ((5 + n) / 6) ** alpha, inputs, mistakes)


# %% [markdown]
# All exercises by name; the values are functions, so nothing is drawn before you ask.

# %% tags=["export"]
EXERCISES: dict[str, Callable[[], Exercise]] = {
    key.removesuffix("_exercise"): make for key, make in [*globals().items()] if "_exercise" in key
}

# %% [markdown]
# ## The checker, checked
#
# A checker that says *right* to everything would be worse than none. We hand it its own mistakes: it must find each of them, under its own name, which also shows that no two give the same numbers.

# %%
count = 0
for part, exercise in EXERCISES.items():
    for mistake, code in exercise().mistakes.items():
        assert mistake in check(part, code), mistake
        count += 1
print(count, "mistakes in", len(EXERCISES), "exercises, each told from all others")

# %% [markdown]
# The book's own code must pass, too. Modules keep their matrices inside, so we first put the checker's matrices in.

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


@torch.no_grad()
def filled(module, *tensors):
    """Return the module in double precision, its parameters set to these, in order."""
    module.double()
    for parameter, tensor in zip(module.parameters(), tensors, strict=True):
        parameter.copy_(tensor.mT if tensor.ndim == 2 else tensor)
    return module


def our_heads(query, key, value, *rest):
    *matrices, heads = rest
    return filled(MultiHeadAttention(30, heads), *matrices)(query, key, value)


def our_residual(x, sublayer, norm):
    residual = Residual(x.size(-1), dropout=0.0)
    residual.norm.forward = norm
    return residual(x, sublayer)


ours = {
    "attention": attention,
    "padding_mask": padding_mask,
    "causal_mask": causal_mask,
    "multi_head_attention": our_heads,
    "feed_forward": lambda x, w, *rest: filled(FeedForward(*w.shape), w, *rest)(x),
    "embedding": lambda tokens, table: filled(Embedding(*table.shape), table.T)(tokens),
    "positions": sinusoid,
    "layer_norm": layer_norm,
    "residual": our_residual,
    "shift": lambda target: (target[:, :-1], target[:, 1:]),
    "learning_rate": learning_rate,
    "smoothed_loss": lambda x, labels, s: label_smoothed_loss(x, labels, s) / (labels != 0).sum(),
    "length_penalty": length_penalty,
}
for part, code in ours.items():
    print(check(part, code))

# %% [markdown]
# ## A mistake it doesn't know
#
# It still gets an answer, which names the input and what is off:

# %%
print(check("layer_norm", lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, eps) + 0.1))
print(check("causal_mask", lambda length: torch.ones(length, 1).bool()))

# %% [markdown]
# ## Exercises
#
# **1. Only one input** (★★, 20 min). How many of the mistakes would still be noticed if every exercise had its first input only?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Those whose numbers differ from the right ones on that input. All four that are lost are
# mistakes in attention's mask: its first input has none.
noticed = total = 0
for make in EXERCISES.values():
    exercise = make()
    arguments = next(iter(exercise.inputs.values()))
    right = outcome(exercise.right, arguments, exercise.returns)
    for code in exercise.mistakes.values():
        noticed += bool(difference(outcome(code, arguments, exercise.returns), right))
        total += 1
print(noticed, "of", total)

# %% [markdown]
# **2. A part of your own** (★★★, an evening; no solution). Write the exercise for `top_p`, which keeps the most likely words that together reach a share p ([Decoding](19_decoding.ipynb#sampling-drawing-words-at-random)): the right answer, two inputs, and the five mistakes that you'd expect.
