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
# It runs, and without a mask it is right. With one, the product makes a hidden score 0, and 0 is a score like any other. (What `check` returns is a text. A program, such as a teacher's, reads its `passed`, or all of it with `as_dict()`.)
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
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# %% [markdown]
# ## A right answer, inputs, and mistakes
#
# The right answer must not come from the book, or the book's own errors would count as right. We take PyTorch's functions where it has them, and elsewhere the formula written out.
#
# The inputs are random, in double precision (or in single precision, for code that makes such tensors itself). No two axes have the same size, and no $d_k$ is 4: there, dividing by $d_k / 2$ would be right by accident.


# %% tags=["export"]
Code = Callable[..., Any]


@dataclass
class Exercise:
    """One part of the model to write: what is right, inputs to try, and known mistakes."""

    right: Code
    returns: int = 1  # tensors
    inputs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    mistakes: dict[str, Code] = field(default_factory=dict)

    def add(self, description: str, code: Code) -> None:
        """Add a known mistake; the description completes "You get these numbers when"."""
        self.mistakes[description] = code

    def mistake(self, description: str) -> Callable[[Code], Code]:
        """Return a decorator that adds the function below it as a known mistake."""

        def add_code(code: Code) -> Code:
            self.add(description, code)
            return code

        return add_code


# %% [markdown]
# Each part has a function that makes its exercise, so nothing is drawn before you ask. A decorator enters it under the part's name.


# %% tags=["export"]
Maker = Callable[[], Exercise]
EXERCISES: dict[str, Maker] = {}


def exercise_for(part: str) -> Callable[[Maker], Maker]:
    """Return a decorator that enters a function as the maker of a part's exercise."""

    def enter(make: Maker) -> Maker:
        EXERCISES[part] = make
        return make

    return enter


def normal(seed: int, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Draw independent normal numbers in double precision, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )


# %% [markdown]
# ## The checker
#
# Code under test may raise, exit, change its arguments, return a tuple, a list, a number or an array of NumPy. It gets copies, and what it does becomes tensors or a sentence. Two outcomes are compared from the outside in: did it run, how many tensors came back, of what shape and type, with which numbers. Extra tensors are ignored, so an attention may return its weights as well.
#
# A known mistake is named if it gives your numbers on every input on which your code runs at all. An inverted mask, `~mask`, fails where the mask is None; with a mask, its numbers still tell what is wrong.


# %% tags=["export"]
Outcome = list[Tensor] | str  # what code returned, or why nothing can be compared


def call(code: Code, arguments: tuple[Any, ...], precision: torch.dtype) -> Any:
    """Run code on copies of the arguments, with their numbers in a precision."""
    copies = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            is_float = argument.is_floating_point()
            argument = argument.to(precision if is_float else argument.dtype, copy=True)
        copies.append(argument)
    return code(*copies)


def run(code: Code, arguments: tuple[Any, ...]) -> Any:
    """Run code in double precision, or in single precision where it makes such numbers itself."""
    try:
        return call(code, arguments, torch.float64)
    except RuntimeError:
        return call(code, arguments, torch.float32)


def outcome(code: Code, arguments: tuple[Any, ...], returns: int = 1) -> Outcome:
    """Run code on copies of the arguments; return its first tensors, or say why it has none."""
    try:
        result = run(code, arguments)
    except (Exception, SystemExit) as error:  # any code of a reader, any error
        return f"it raises {type(error).__name__} ({error})"
    results = first_results(result, returns)
    if any(part is None for part in results):
        return "it returns None, as if a `return` were missing"
    if len(results) < returns:
        return f"it returns {len(results)} tensor, not {returns}"
    try:
        return [torch.as_tensor(part).detach().to_dense().cpu() for part in results]
    except Exception as error:
        return f"what it returns is no tensor that can be compared ({error})"


def first_results(result: Any, returns: int) -> list[Any]:
    """Take what counts of a tuple or a list; a list of numbers is one result, not several."""
    if returns > 1 and isinstance(result, Iterator):
        result = [*result]  # as an assignment to several names would take it
    if isinstance(result, list):
        several = returns > 1 or any(isinstance(part, Tensor) for part in result)
    else:
        several = isinstance(result, tuple)
    return list(result[:returns]) if several else [result]


# %% tags=["export"]
def difference(yours: Outcome, right: Outcome) -> str:
    """Say how an outcome differs from the right one; an empty string if it does not."""
    if isinstance(yours, str) or isinstance(right, str):
        return "" if yours == right else str(yours)
    for your_tensor, right_tensor in zip(yours, right):
        described = tensor_difference(your_tensor, right_tensor)
        if described:
            return described
    return ""


def tensor_difference(yours: Tensor, right: Tensor) -> str:
    """Say how a tensor differs from the right one; an empty string if it does not."""
    if right.dim() == 0 and yours.numel() == 1:
        yours = yours.reshape(())
    if yours.shape != right.shape:
        return f"the shape is {tuple(yours.shape)}, not {tuple(right.shape)}"
    boolean_for_number = yours.dtype == torch.bool and right.dtype != torch.bool
    if boolean_for_number or not torch.can_cast(yours.dtype, right.dtype):
        return f"the type is {yours.dtype}, not {right.dtype}"
    yours = yours.double()
    right = right.double()
    is_nan = yours.isnan() & ~right.isnan()
    if is_nan.any():
        return f"{is_nan.sum()} of {is_nan.numel()} numbers are NaN"
    mean_size = float(right.nan_to_num(0.0, 0.0, 0.0).abs().mean())
    close = torch.isclose(yours, right, rtol=0.0, atol=1e-4 * mean_size, equal_nan=True)
    return "" if close.all() else wrong_numbers(yours, right, ~close)


def wrong_numbers(yours: Tensor, right: Tensor, differs: Tensor) -> str:
    """Say how many numbers differ, and show the one that is furthest from the right one."""
    distance = (yours - right).abs().nan_to_num(math.inf).where(differs, -1.0)
    index = int(distance.argmax())
    position = [
        int(axis) for axis in torch.unravel_index(distance.argmax(), right.shape)
    ]
    your_number = float(yours.flatten()[index])
    right_number = float(right.flatten()[index])
    where = f" at {position}" if position else ""
    return (
        f"{differs.sum()} of {differs.numel()} numbers differ, "
        f"the furthest{where}: {your_number:.6g}, not {right_number:.6g}"
    )


# %% tags=["export"]
def outcomes(code: Code, exercise: Exercise) -> dict[str, Outcome]:
    """Run code on each input of an exercise."""
    return {
        name: outcome(code, arguments, exercise.returns)
        for name, arguments in exercise.inputs.items()
    }


def differences(yours: dict[str, Outcome], right: dict[str, Outcome]) -> dict[str, str]:
    """Say how outcomes differ from the right ones, by input, where they do."""
    described = {name: difference(yours[name], right[name]) for name in right}
    return {name: description for name, description in described.items() if description}


# %% tags=["export"]
class Verdict(str):
    """What `check` says, as a text with a few fields for a program to read; true if it passed."""

    part: str
    passed: bool
    mistake: str | None  # the known mistake that gives these numbers
    failures: dict[str, str]  # what is wrong, by input

    def __bool__(self) -> bool:
        return self.passed

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the text, as JSON can hold them."""
        return {**vars(self), "text": str(self)}


def verdict(part: str, failures: dict[str, str], mistake: str | None = None) -> Verdict:
    """Put into words what is wrong with a part, if anything is.

    With a known mistake, `failures` are what it does not explain.
    """
    lines = [f"{name}: {description}" for name, description in failures.items()]
    if mistake:
        text = f"{part}: wrong. You get these numbers when {mistake}."
        if lines:
            text += f" Besides, {lines[0]}."
    elif lines:
        text = f"{part}: wrong {lines[0]}. None of the mistakes known here gives this."
    else:
        text = f"{part}: right"
    result = Verdict(text)
    result.part = part
    result.passed = not failures and mistake is None
    result.mistake = mistake
    result.failures = failures
    return result


def check(part: str, yours: Code) -> Verdict:
    """Run your implementation of a part of the model; say that it is right, or what is wrong.

    What it returns is a text, and true if it passed, for `assert check(...)`. Parts: attention,
    padding_mask, causal_mask, multi_head_attention, feed_forward, embedding, positions, layer_norm,
    residual, shift, learning_rate, smoothed_loss, length_penalty. Raises ValueError for another.
    """
    if part not in EXERCISES:
        parts = ", ".join(EXERCISES)
        raise ValueError(f'there is no exercise "{part}": take one of {parts}')
    with torch.device("cpu"):
        exercise = EXERCISES[part]()
        your_outcomes = outcomes(yours, exercise)
        failures = differences(your_outcomes, outcomes(exercise.right, exercise))
        if not failures:
            return verdict(part, {})
        without_result = {
            name: description
            for name, description in failures.items()
            if isinstance(your_outcomes[name], str)
        }
        if len(without_result) < len(failures):  # there are wrong numbers to explain
            for mistake, code in exercise.mistakes.items():
                unlike = differences(your_outcomes, outcomes(code, exercise))
                if unlike.keys() <= without_result.keys():
                    return verdict(part, without_result, mistake)
        return verdict(part, failures)


# %% [markdown]
# ## Attention and masks
#
# What follows is a collection of bugs. Most are the right code with one step exchanged.


# %% tags=["export"]
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    softmax_axis: int = -1,
    divisor: Callable[[int], float] = math.sqrt,
    hidden_score: float = -math.inf,
) -> Tensor:
    """Attention with steps to exchange: softmax axis, divisor from d_k, hidden score."""
    scores = query @ key.mT / divisor(key.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, hidden_score)
    return scores.softmax(softmax_axis) @ value


@exercise_for("attention")
def attention_exercise() -> Exercise:
    """`attention(query (B, T, d_k), key (B, S, d_k), value (B, S, d_v), mask (T, S) or None)`."""
    exercise = Exercise(F.scaled_dot_product_attention)
    query, key, value = normal(1, (2, 3, 7), (2, 5, 7), (2, 5, 6))
    exercise.inputs["without a mask"] = (query, key, value, None)

    query, key, value = normal(2, (3, 4, 5), (3, 6, 5), (3, 6, 7))
    mask = normal(4, (4, 6))[0] > 0
    exercise.inputs["with a mask"] = (query, key, value, mask)

    # The last feature lowers all scores of the first query by 1600, of the second by 3200, ...
    rank = torch.arange(1, 5, dtype=torch.float64)[:, None].expand(3, 4, 1)
    far_query = torch.cat([200 * query[..., 1:], rank], dim=-1)
    far_key = F.pad(key[..., 1:], (0, 1), value=-1600 * math.sqrt(5))
    name = "with a mask and scores of thousands below 0"
    exercise.inputs[name] = (far_query, far_key, value, mask)

    exercise.add(
        "the softmax runs over the queries, not over the keys (dim=-1)",
        partial(attend, softmax_axis=-2),
    )
    exercise.add(
        "the scores are not divided by sqrt(d_k)",
        partial(attend, divisor=lambda d_k: 1),
    )
    exercise.add(
        "the scores are divided by d_k, not by its root",
        partial(attend, divisor=lambda d_k: d_k),
    )
    exercise.add(
        "the scores are divided by d_k / 2 (`d_k ** 1/2`)",
        partial(attend, divisor=lambda d_k: d_k / 2),
    )
    exercise.add(
        "the scores are divided by 2 d_k (`/ d_k ** 1/2`)",
        partial(attend, divisor=lambda d_k: 2 * d_k),
    )

    @exercise.mistake("the softmax runs over all scores together, not over the keys")
    def softmax_of_all(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.mT / math.sqrt(k.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.flatten().softmax(0).view_as(scores) @ v

    @exercise.mistake("the mask is inverted: True means `may attend`")
    def inverted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return attend(q, k, v, None if mask is None else ~mask)

    @exercise.mistake("the mask is not used")
    def unmasked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return attend(q, k, v, None)

    exercise.add(
        "a hidden score is 0, like any other, not minus infinity",
        partial(attend, hidden_score=0.0),
    )

    @exercise.mistake("weights are hidden after the softmax: rows do not sum to 1")
    def hidden_late(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        weights = (q @ k.mT / math.sqrt(k.size(-1))).softmax(-1)
        if mask is not None:
            weights = weights * mask
        return weights @ v

    return exercise


# %% tags=["export"]
@exercise_for("padding_mask")
def padding_mask_exercise() -> Exercise:
    """`padding_mask(tokens (B, S))`, boolean (B, 1, 1, S)."""

    def right(tokens: Tensor) -> Tensor:
        return (tokens != 0)[:, None, None, :]

    exercise = Exercise(right)
    tokens = torch.tensor([[0, 0, 0, 1, 5, 2], [0, 1, 7, 3, 9, 2]])
    exercise.inputs["with padding on the left"] = (tokens,)
    exercise.inputs["without padding"] = (tokens[1:, 1:],)
    exercise.inputs["with padding on the right"] = (tokens.flip(1),)

    @exercise.mistake("it is inverted: True must mark the words")
    def inverted(tokens: Tensor) -> Tensor:
        return (tokens == 0)[:, None, None, :]

    @exercise.mistake("it has no axis for heads and queries")
    def without_axes(tokens: Tensor) -> Tensor:
        return tokens != 0

    @exercise.mistake("it hides padded queries (rows), not keys (columns)")
    def rows(tokens: Tensor) -> Tensor:
        return (tokens != 0)[:, None, :, None]

    return exercise


@exercise_for("causal_mask")
def causal_mask_exercise() -> Exercise:
    """`causal_mask(length)`, boolean (T, T)."""

    def right(length: int) -> Tensor:
        position = torch.arange(length)
        return position <= position[:, None]

    def all_true(length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool)

    exercise = Exercise(right)
    for length in (6, 1, 300):
        exercise.inputs[f"at length {length}"] = (length,)

    @exercise.mistake("it is inverted: True must be on and below the diagonal")
    def inverted(length: int) -> Tensor:
        return all_true(length).triu(1)

    @exercise.mistake("it is transposed: a query sees the future")
    def transposed(length: int) -> Tensor:
        return all_true(length).triu()

    @exercise.mistake("a position may not see itself")
    def past_only(length: int) -> Tensor:
        return all_true(length).tril(-1)

    @exercise.mistake("one word of the future is seen")
    def next_word(length: int) -> Tensor:
        return all_true(length).tril(1)

    return exercise


# %% [markdown]
# ## Several heads
#
# The right answer makes all heads at once, and most mistakes are in its reshapes.


# %% tags=["export"]
def split_into_heads(x: Tensor, heads: int) -> Tensor:
    """From (B, T, D) to (B, H, T, d_k)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def split_without_transpose(x: Tensor, heads: int) -> Tensor:
    """The same shape, but the numbers of different positions are mixed."""
    return x.reshape(len(x), heads, x.size(1), -1)


def join_heads(x: Tensor) -> Tensor:
    """From (B, H, T, d_k) back to (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


def join_without_transpose(x: Tensor) -> Tensor:
    """The same shape, but the numbers of different positions are mixed."""
    return x.reshape(len(x), x.size(2), -1)


def all_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    heads: int,
    project: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    split: Callable[[Tensor, int], Tensor] = split_into_heads,
    join: Callable[[Tensor], Tensor] = join_heads,
    scale: float | None = None,
) -> Tensor:
    """Multi-head attention with steps to exchange: products, split, join or scale."""
    head_output = F.scaled_dot_product_attention(
        split(project(query, w_q), heads),
        split(project(key, w_k), heads),
        split(project(value, w_v), heads),
        scale=scale,
    )
    return project(join(head_output), w_o)


# %% tags=["export"]
@exercise_for("multi_head_attention")
def multi_head_attention_exercise() -> Exercise:
    """`multi_head_attention(query (B, T, D), key, value (B, S, D), four (D, D), heads)`."""
    exercise = Exercise(all_heads)
    matrices = [(30, 30)] * 4

    shapes = [(2, 4, 30), (2, 7, 30), (2, 7, 30), *matrices]
    query, key, value, *weights = normal(3, *shapes)
    small = [matrix / 4 for matrix in weights]
    exercise.inputs["with 3 heads"] = (query, key, value, *small, 3)

    shapes = [(4, 7, 30), (4, 3, 30), (4, 3, 30), *matrices]
    query, key, value, *weights = normal(5, *shapes)
    small = [matrix / 4 for matrix in weights]
    exercise.inputs["with 5 heads"] = (query, key, value, *small, 5)

    exercise.add(
        "the projections are reshaped into heads without a transpose",
        partial(all_heads, split=split_without_transpose, join=join_without_transpose),
    )
    exercise.add(
        "the heads are joined without transposing back",
        partial(all_heads, join=join_without_transpose),
    )
    exercise.add(
        "the scores are divided by sqrt(d_model)",
        partial(all_heads, scale=1 / math.sqrt(30)),
    )
    exercise.add(
        "the scores are not divided by sqrt(d_k)", partial(all_heads, scale=1.0)
    )
    exercise.add(
        "there is one wide head only",
        partial(all_heads, split=lambda x, heads: split_into_heads(x, 1)),
    )

    @exercise.mistake("W_O is missing")
    def without_w_o(
        query: Tensor, key: Tensor, value: Tensor, *parameters: Any
    ) -> Tensor:
        w_q, w_k, w_v, _, heads = parameters
        identity = torch.eye(30, dtype=torch.float64)
        return all_heads(query, key, value, w_q, w_k, w_v, identity, heads)

    @exercise.mistake("keys and values are exchanged")
    def exchanged(
        query: Tensor, key: Tensor, value: Tensor, *parameters: Any
    ) -> Tensor:
        return all_heads(query, value, key, *parameters)

    exercise.add(
        "the matrices are transposed: it is x @ W, and nn.Linear keeps W.T",
        partial(all_heads, project=F.linear),
    )
    return exercise


# %% [markdown]
# ## Feed-forward, embedding, positions
#
# Not everything that differs is worse. Sines in the first half and cosines in the second, as in the authors' code, serve as well as the paper's alternation. But weights trained with one don't work with the other, so the checker says so.


# %% tags=["export"]
@exercise_for("feed_forward")
def feed_forward_exercise() -> Exercise:
    """`feed_forward(x (B, T, D), W_1 (D, d_ff), b_1 (d_ff), W_2 (d_ff, D), b_2 (D))`."""

    def right(x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
        return F.relu(x @ w_1 + b_1) @ w_2 + b_2

    exercise = Exercise(right)
    shapes = [(2, 3, 5), (5, 7), (7,), (7, 5), (5,)]
    exercise.inputs[f"on numbers of shape {shapes[0]}"] = normal(3, *shapes)
    shapes = [(5, 2, 3), (3, 11), (11,), (11, 3), (3,)]
    exercise.inputs[f"on numbers of shape {shapes[0]}"] = normal(4, *shapes)

    def with_gelu(
        x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor, approximate: str
    ) -> Tensor:
        return F.gelu(x @ w_1 + b_1, approximate=approximate) @ w_2 + b_2

    exercise.add("it is a GELU, not a ReLU", partial(with_gelu, approximate="none"))
    exercise.add(
        "it is a GELU, in its approximation by tanh, not a ReLU",
        partial(with_gelu, approximate="tanh"),
    )

    @exercise.mistake("the ReLU is missing")
    def linear(x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
        return (x @ w_1 + b_1) @ w_2 + b_2

    return exercise


@exercise_for("embedding")
def embedding_exercise() -> Exercise:
    """`embedding(tokens (B, T), table (|V|, D))`, times the square root of D."""

    def right(tokens: Tensor, table: Tensor) -> Tensor:
        return F.embedding(tokens, table) * math.sqrt(table.size(1))

    exercise = Exercise(right)
    tokens = torch.tensor([[4, 2, 2, 0], [1, 0, 9, 3]])
    exercise.inputs["at width 7"] = (tokens, *normal(7, (11, 7)))
    tokens = torch.tensor([[5, 0], [1, 3], [4, 2]])
    exercise.inputs["at width 10"] = (tokens, *normal(10, (11, 10)))

    @exercise.mistake("the factor sqrt(d_model) is missing")
    def without_factor(tokens: Tensor, table: Tensor) -> Tensor:
        return table[tokens]

    @exercise.mistake("the factor is d_model, not its square root")
    def without_root(tokens: Tensor, table: Tensor) -> Tensor:
        return table[tokens] * table.size(1)

    return exercise


# %% tags=["export"]
def waves(
    length: int,
    d_model: int,
    first: int = 0,
    exponent: Callable[[Tensor], Tensor] = lambda column: 2 * (column // 2),
) -> Tensor:
    """Sines and cosines of section 3.5 with steps to exchange: first position, exponent."""
    position = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    column = torch.arange(d_model, dtype=torch.float64)
    angle = position / 10_000 ** (exponent(column) / d_model)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


@exercise_for("positions")
def positions_exercise() -> Exercise:
    """`positions(length, d_model)`, (T, D)."""
    exercise = Exercise(waves)
    for length, d_model in [(7, 10), (1, 6), (300, 4)]:
        name = f"at {length} positions of width {d_model}"
        exercise.inputs[name] = (length, d_model)

    @exercise.mistake("the sines fill the first half and the cosines the second")
    def halves(length: int, d_model: int) -> Tensor:
        table = waves(length, d_model)
        return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)

    @exercise.mistake("sine and cosine are exchanged")
    def exchanged(length: int, d_model: int) -> Tensor:
        table = waves(length, d_model)
        return torch.stack([table[:, 1::2], table[:, 0::2]], dim=-1).flatten(1)

    exercise.add("the first position is 1, not 0", partial(waves, first=1))
    exercise.add(
        "the cosine has a rate of its own; each pair shares one",
        partial(waves, exponent=lambda column: column),
    )
    exercise.add(
        "the exponent is i / d, not 2i / d",
        partial(waves, exponent=lambda column: column // 2),
    )
    return exercise


# %% [markdown]
# ## Norm and residual


# %% tags=["export"]
def root_of_sum(variance: Tensor, eps: float) -> Tensor:
    """What layer norm divides by."""
    return (variance + eps).sqrt()


def sum_of_root(variance: Tensor, eps: float) -> Tensor:
    """The same with epsilon outside the root."""
    return variance.sqrt() + eps


def normalize(
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    eps: float,
    axes: int | tuple[int, ...] = -1,
    correction: int = 0,
    divisor: Callable[[Tensor, float], Tensor] = root_of_sum,
) -> Tensor:
    """Layer norm with steps to exchange; the variance divides by D - correction."""
    centered = x - x.mean(axes, keepdim=True)
    variance = x.var(axes, correction=correction, keepdim=True)
    return gain * centered / divisor(variance, eps) + bias


@exercise_for("layer_norm")
def layer_norm_exercise() -> Exercise:
    """`layer_norm(x (B, T, D), gain (D), bias (D), eps)`."""

    def right(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, gain.shape, gain, bias, eps)

    exercise = Exercise(right)
    exercise.inputs["at width 5"] = (*normal(5, (2, 3, 5), (5,), (5,)), 0.1)
    exercise.inputs["at width 7"] = (*normal(7, (5, 2, 7), (7,), (7,)), 0.01)

    exercise.add(
        "the variance divides by D - 1, not by D", partial(normalize, correction=1)
    )
    exercise.add("epsilon is outside the root", partial(normalize, divisor=sum_of_root))
    exercise.add(
        "the variance divides by D - 1, and epsilon is outside the root",
        partial(normalize, correction=1, divisor=sum_of_root),
    )
    exercise.add(
        "epsilon is not used",
        partial(normalize, divisor=lambda variance, eps: variance.sqrt()),
    )
    exercise.add(
        "it is divided by the variance, not by its root",
        partial(normalize, divisor=lambda variance, eps: variance + eps),
    )
    exercise.add(
        "all positions of a sentence are normalized together",
        partial(normalize, axes=(-2, -1)),
    )

    @exercise.mistake("the mean is not subtracted")
    def uncentered(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        variance = x.var(-1, correction=0, keepdim=True)
        return gain * x / root_of_sum(variance, eps) + bias

    @exercise.mistake("gain and bias are missing")
    def unscaled(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, gain.shape, eps=eps)

    return exercise


# %% tags=["export"]
@exercise_for("residual")
def residual_exercise() -> Exercise:
    """`residual(x (B, T, D), sublayer, norm)`, post-norm as in section 3.1."""

    def right(x: Tensor, sublayer: Code, norm: Code) -> Tensor:
        return norm(x + sublayer(x))

    def running_sum(x: Tensor) -> Tensor:
        return x.cumsum(1).tanh()

    def plain_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (5,))

    def odd_norm(x: Tensor) -> Tensor:
        return (3 * x - 1).tanh() + x.mean(-1, keepdim=True)

    exercise = Exercise(right)
    x, other_x = normal(1, (2, 3, 5), (5, 2, 7))
    exercise.inputs["on a batch"] = (x, running_sum, plain_norm)
    exercise.inputs["with other functions"] = (other_x, torch.cos, odd_norm)

    @exercise.mistake("it normalizes first (pre-norm)")
    def norm_first(x: Tensor, sublayer: Code, norm: Code) -> Tensor:
        return x + sublayer(norm(x))

    @exercise.mistake("norm and sum are swapped, norm(sublayer(x)) + x")
    def sum_last(x: Tensor, sublayer: Code, norm: Code) -> Tensor:
        return norm(sublayer(x)) + x

    @exercise.mistake("the input is not added")
    def without_sum(x: Tensor, sublayer: Code, norm: Code) -> Tensor:
        return norm(sublayer(x))

    @exercise.mistake("the normed input is added, not the input")
    def normed_sum(x: Tensor, sublayer: Code, norm: Code) -> Tensor:
        return norm(x) + sublayer(norm(x))

    return exercise


# %% [markdown]
# ## Training and decoding


# %% tags=["export"]
@exercise_for("shift")
def shift_exercise() -> Exercise:
    """`shift(target (B, T + 1))`, two of (B, T): what is read and what is to be said."""

    def right(target: Tensor) -> tuple[Tensor, Tensor]:
        return target[:, :-1], target[:, 1:]

    exercise = Exercise(right, returns=2)
    target = torch.tensor([[1, 5, 7, 2, 0], [1, 6, 4, 8, 2]])
    exercise.inputs["on 2 sentences"] = (target,)
    target = torch.tensor([[1, 9, 4, 3, 7, 2], [1, 5, 2, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    exercise.inputs["on 3 sentences"] = (target,)

    @exercise.mistake("nothing is shifted: the decoder reads the word it must say")
    def both_late(target: Tensor) -> tuple[Tensor, Tensor]:
        return target[:, 1:], target[:, 1:]

    @exercise.mistake("nothing is shifted: the decoder must say the word it reads")
    def both_early(target: Tensor) -> tuple[Tensor, Tensor]:
        return target[:, :-1], target[:, :-1]

    @exercise.mistake("it is shifted the wrong way: it must say the past")
    def backwards(target: Tensor) -> tuple[Tensor, Tensor]:
        return target[:, 1:], target[:, :-1]

    return exercise


# %% tags=["export"]
@exercise_for("learning_rate")
def learning_rate_exercise() -> Exercise:
    """`learning_rate(step, d_model, warmup)`, a number."""

    def rate(
        step: int,
        d_model: int,
        warmup: int,
        pick: Callable[[float, float], float] = min,
        d_model_power: float = -0.5,
        warmup_power: float = -1.5,
    ) -> float:
        fall = step**-0.5
        rise = step * warmup**warmup_power
        return d_model**d_model_power * pick(fall, rise)

    exercise = Exercise(rate)
    settings = [(1, 50, 300), (70, 50, 300), (300, 90, 300), (5000, 90, 700)]
    for step, d_model, warmup in settings:
        name = f"at step {step}, warm-up {warmup}"
        exercise.inputs[name] = (step, d_model, warmup)

    exercise.add(
        "the larger of the two terms is taken, not the smaller", partial(rate, pick=max)
    )
    exercise.add("d_model is missing", partial(rate, d_model_power=0))
    exercise.add("there is no warm-up", partial(rate, pick=lambda fall, rise: fall))

    @exercise.mistake("`d ** -1/2` is half of 1 / d")
    def halved(step: int, d_model: int, warmup: int) -> float:
        return rate(step, d_model, warmup, d_model_power=-1) / 2

    exercise.add(
        "the warm-up's exponent is -0.5, not -1.5", partial(rate, warmup_power=-0.5)
    )
    return exercise


# %% tags=["export"]
def smoothed(
    logits: Tensor, labels: Tensor, smoothing: float, padding: int = 0
) -> Tensor:
    """PyTorch's loss with label smoothing, the mean over labels that are not padding."""
    return F.cross_entropy(
        logits, labels, ignore_index=padding, label_smoothing=smoothing
    )


def others_only(
    logits: Tensor, labels: Tensor, smoothing: float, first: int = 0
) -> Tensor:
    """Smooth over the other words only, from id `first` on: the label keeps 1 - smoothing."""
    other_words = logits.size(-1) - 1 - first
    target = torch.full_like(logits, smoothing / other_words)
    target[:, :first] = 0.0
    target.scatter_(1, labels[:, None], 1 - smoothing)
    real = labels > 0
    return F.cross_entropy(logits[real], target[real])


def divergence(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The loss less the entropy of the smoothed target, which is the least that it can be."""
    vocabulary_size = logits.size(-1)
    one_hot = F.one_hot(labels, vocabulary_size)
    target = (1 - smoothing) * one_hot + smoothing / vocabulary_size
    terms = F.kl_div(logits.log_softmax(-1), target, reduction="none")
    return terms[labels > 0].sum(-1).mean()


@exercise_for("smoothed_loss")
def smoothed_loss_exercise() -> Exercise:
    """`smoothed_loss(logits (N, |V|), labels (N), smoothing)`, the mean where labels are not 0."""
    exercise = Exercise(smoothed)
    (logits,) = normal(1, (9, 7))
    labels = torch.tensor([3, 0, 1, 4, 0, 0, 6, 2, 5])
    exercise.inputs["on nine labels"] = (logits, labels, 0.3)
    (logits,) = normal(2, (5, 11))
    labels = torch.tensor([0, 10, 3, 0, 1])
    exercise.inputs["on large logits"] = (1000 * logits, labels, 0.1)

    exercise.add("padding counts", partial(smoothed, padding=-100))

    @exercise.mistake("nothing is smoothed")
    def plain(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return smoothed(logits, labels, smoothing=0.0)

    @exercise.mistake("the softmax is taken twice")
    def softmax_twice(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return smoothed(logits.softmax(-1), labels, smoothing)

    @exercise.mistake("it is the sum, not the mean")
    def summed(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return smoothed(logits, labels, smoothing) * (labels > 0).sum()

    @exercise.mistake("the sum is divided by N")
    def mean_over_all(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        share_of_words = (labels > 0).double().mean()
        return smoothed(logits, labels, smoothing) * share_of_words

    exercise.add(
        "the label keeps 1 - smoothing and the others share the rest", others_only
    )
    exercise.add(
        "padding gets no share of the smoothing", partial(others_only, first=1)
    )
    exercise.add(
        "it is the KL divergence, which is lower by the target's entropy", divergence
    )
    return exercise


# %% tags=["export"]
@exercise_for("length_penalty")
def length_penalty_exercise() -> Exercise:
    """`length_penalty(length, alpha)`, the divisor of the log-probability."""

    def right(length: int, alpha: float) -> float:
        return ((5 + length) / 6) ** alpha

    exercise = Exercise(right)
    exercise.inputs["at length 10"] = (10, 0.6)
    exercise.inputs["at length 3"] = (3, 0.9)

    @exercise.mistake("it is the length itself to the power of alpha")
    def plain_power(length: int, alpha: float) -> float:
        return length**alpha

    @exercise.mistake("only the length is divided by 6")
    def without_brackets(length: int, alpha: float) -> float:
        return (5 + length / 6) ** alpha

    @exercise.mistake("it multiplies where it should divide")
    def inverse(length: int, alpha: float) -> float:
        return right(length, -alpha)

    return exercise


# %% [markdown]
# ## The checker, checked
#
# A checker that says *right* to everything would be worse than none. We hand it its own mistakes: it must find each of them, under its own name, which also shows that no two give the same numbers.

# %%
mistakes = [
    (part, description, code)
    for part, make in EXERCISES.items()
    for description, code in make().mistakes.items()
]
named = [
    check(part, code).endswith(f"when {description}.")
    for part, description, code in mistakes
]
print(len(mistakes), "mistakes in", len(EXERCISES), "exercises")
print(sum(named), "of them found under their own name")

# %% tags=["remove-cell"]
if CHECKING:
    assert sum(named) == len(mistakes)

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


def our_heads(query, key, value, w_q, w_k, w_v, w_o, heads):
    module = filled(MultiHeadAttention(30, heads), w_q, w_k, w_v, w_o)
    return module(query, key, value)


def our_feed_forward(x, w_1, b_1, w_2, b_2):
    d_model, d_ff = w_1.shape
    return filled(FeedForward(d_model, d_ff), w_1, b_1, w_2, b_2)(x)


def our_embedding(tokens, table):
    vocabulary_size, d_model = table.shape
    return filled(Embedding(vocabulary_size, d_model), table.T)(tokens)


def our_residual(x, sublayer, norm):
    residual = Residual(x.size(-1), dropout=0.0)
    residual.norm.forward = norm
    return residual(x, sublayer)


def our_loss(logits, labels, smoothing):
    return label_smoothed_loss(logits, labels, smoothing) / (labels != 0).sum()


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
# ## A mistake it doesn't know
#
# It still gets an answer, which names the input and what is off:

# %%
print(
    check("layer_norm", lambda x, g, b, eps: F.layer_norm(x, g.shape, g, b, eps) + 0.1)
)
print(check("causal_mask", lambda length: torch.ones(length, 1).bool()))

# %% [markdown]
# ## Exercises
#
# **1. Only one input** (★★, 20 min). How many of the mistakes would still be noticed if every exercise had its first input only?

# %% tags=["hide-cell"] mystnb={"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
# Those whose numbers differ from the right ones on that input. All four that are lost are
# mistakes in attention's mask: its first input has none.
noticed = 0
for make in EXERCISES.values():
    exercise = make()
    first = next(iter(exercise.inputs.values()))
    right = outcome(exercise.right, first, exercise.returns)
    for code in exercise.mistakes.values():
        if difference(outcome(code, first, exercise.returns), right):
            noticed += 1
print(noticed, "of", len(mistakes))

# %% [markdown]
# **2. A part of your own** (★★★, an evening; no solution). Write the exercise for `top_p`, which keeps the most likely words that together reach a share p ([Decoding](19_decoding.ipynb#sampling-drawing-words-at-random)): the right answer, two inputs, and the five mistakes that you'd expect.
