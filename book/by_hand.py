"""The numbers of chapter 11: one sentence through a whole Transformer, by hand.

The words are those of `book.example`. A German word has the vector of its translation; only `den`
differs from `die`: it marks an object. Everything is rounded as the chapter says.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from book import example

# The column "living" makes room for "object", which only den has; two for the clock come first
COLUMNS = ["sin", "cos", "noun", "verb", "adj.", "art.", "edible", "object"]
FEATURES = COLUMNS[2:]
WORDS = example.WORDS
GERMAN = ["den", "Fisch", "mag", "die", "schwarze", "Katze"]
WRITTEN = ["the", "black", "cat", "likes", "the"]
MEANING = dict(zip(GERMAN, ["the", "fish", "likes", "the", "black", "cat"]))

# The parts that `steps` can do without
PARTS = ["self-attention", "network", "recall", "cross-attention", "last network"]


def two(x: Tensor) -> Tensor:
    """Round to two decimals, halves away from zero; 1e-9 makes up for binary fractions."""
    return x.sign() * torch.floor(100 * x.abs() + 0.5 + 1e-9) / 100


def matrix(rows: list[str], columns: list[str], **entries: dict[str, float]) -> Tensor:
    """Return zeros with some entries; each is named by its row, and gives column: number.

    A row is named without its dot: adj for "adj.".
    """
    filled = torch.zeros(len(rows), len(columns), dtype=torch.float64)
    names = [row.rstrip(".") for row in rows]
    for row, numbers in entries.items():
        for column, number in numbers.items():
            filled[names.index(row), columns.index(column)] = number
    return filled


# --- Words and positions ---

E = F.pad(example.X[:, [0, 1, 2, 3, 5]], (2, 1))


def clock(n: int) -> Tensor:
    """Return the positions 0 to n - 1: one clock, as large as the words."""
    place = torch.arange(n, dtype=torch.float64)
    return two(2 * F.pad(torch.stack([place.sin(), place.cos()], 1), (0, 6)))


def german(words: list[str]) -> Tensor:
    """Return the vectors of German words; den is the one article that marks an object."""
    rows = torch.stack([E[WORDS.index(MEANING[word])] for word in words])
    rows[:, 7] = torch.tensor([float(word == "den") for word in words])
    return rows


def read(words: list[str]) -> Tensor:
    """Return the encoder's input: the words with their positions."""
    return german(words) + clock(len(words))


def written(words: list[str]) -> Tensor:
    """Return the decoder's input: an empty row, then the words, with their positions."""
    rows = E[[WORDS.index(word) for word in words]]
    return F.pad(rows, (0, 0, 1, 0)) + clock(len(words) + 1)


x = read(GERMAN)
t = written(WRITTEN)

# --- The two heads, of the encoder and of the decoder ---

BEFORE, GROUPS = ["sin", "cos"], ["noun", "verb"]
# Head 1 asks with twice the clock of the place before: sin 1 is 0.84, cos 1 is 0.54
Q_1 = matrix(
    COLUMNS, BEFORE, sin={"sin": 1.08, "cos": 1.68}, cos={"sin": -1.68, "cos": 1.08}
)
Q_2 = matrix(
    COLUMNS,
    GROUPS,
    noun={"verb": 1},
    verb={"noun": 1.5},
    adj={"noun": 1},
    art={"verb": 1},
)
I_8 = torch.eye(8, dtype=torch.float64)
HEADS = [(Q_1, I_8[:, :2], I_8[:, 7:]), (Q_2, I_8[:, 2:4], I_8[:, 3:4])]
W_O = matrix(["mark", "verb"], COLUMNS, mark={"object": 3}, verb={"verb": 1})

# --- The networks ---

UNITS, LAST = ["object", "subject"], ["food"]
W_1 = matrix(
    UNITS,
    COLUMNS,
    object={"noun": 1, "verb": 1, "object": 1},
    subject={"noun": 1, "verb": 1, "object": -1},
).T
b_1 = torch.tensor([-2.5, -2.0], dtype=torch.float64)
W_2 = matrix(UNITS, COLUMNS, object={"object": 3}, subject={"object": -3})
U_1 = matrix(LAST, COLUMNS, food={"noun": 1, "verb": 1, "edible": 1}).T
c_1 = torch.tensor([-1.5], dtype=torch.float64)
U_2 = matrix(LAST, COLUMNS, food={"verb": -2, "edible": 2})

# --- Cross-attention: a place, a noun, an object; it fetches what the word is ---

SOUGHT = ["sin", "cos", "noun", "object"]
OFFERED = ["noun", "adj.", "art.", "edible"]
C_Q = matrix(
    COLUMNS,
    SOUGHT,
    sin={"sin": 1},
    cos={"cos": 1},
    art={"noun": 2},
    verb={"object": 3},
)
C_K = I_8[:, [0, 1, 2, 7]]
C_V = I_8[:, [2, 4, 5, 6]]
C_O = 3 * C_V.T

# --- The steps, each number rounded ---


def softmax(scores: Tensor) -> Tensor:
    powers = two(scores.exp())
    return two(powers / powers.sum(-1, keepdim=True))


def mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = two(x.mean(-1, keepdim=True))
    return mean, two(two(((x - mean) ** 2).mean(-1, keepdim=True)).sqrt())


def norm(x: Tensor) -> Tensor:
    mean, deviation = mean_and_deviation(x)
    return two((x - mean) / deviation)


def attend(
    asks: Tensor, answers: Tensor, q: Tensor, k: Tensor, v: Tensor, root: float = 1.41
) -> SimpleNamespace:
    Q, K, V = two(asks @ q), two(answers @ k), two(answers @ v)
    scores = two(Q @ K.T / root)
    weights = softmax(scores)
    out = two(weights @ V)
    return SimpleNamespace(Q=Q, K=K, V=V, scores=scores, weights=weights, out=out)


def steps(x: Tensor, t: Tensor, without: str = "") -> SimpleNamespace:
    """Take the source x and the target t through the model; return all that is computed.

    The decoder computes its last row only. `without` names one of PARTS, which then adds zeros.
    """
    on = {part: float(part != without) for part in PARTS}
    # Encoder
    heads = [attend(x, x, *weights) for weights in HEADS]
    found = torch.cat([head.out for head in heads], -1)
    a_sum = x + on["self-attention"] * found @ W_O
    a = norm(a_sum)
    fired = two((a @ W_1 + b_1).relu())
    m_sum = a + on["network"] * fired @ W_2
    m = norm(m_sum)
    # Decoder
    own = [attend(t[-1:], t, *weights) for weights in HEADS]
    recalled = torch.cat([head.out for head in own], -1)
    b_sum = t[-1:] + on["recall"] * recalled @ W_O
    b = norm(b_sum)
    cross = attend(b, m, C_Q, C_K, C_V, root=2)
    c_sum = b + on["cross-attention"] * cross.out @ C_O
    c = norm(c_sum)
    unit = two((c @ U_1 + c_1).relu())
    s_sum = c + on["last network"] * unit @ U_2
    s = norm(s_sum)
    # Output
    logits = two(s @ E.T)
    p = softmax(logits)
    return SimpleNamespace(**locals())
