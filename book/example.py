"""The running example: five words, their vectors, and the first attention over them.

Chapter 03 makes these numbers up and explains them; later chapters go on with the same ones.
"""

import torch

WORDS = ["the", "black", "cat", "likes", "fish"]
FEATURES = ["noun", "verb", "adjective", "article", "living", "edible"]
SOUGHT = FEATURES[:4]  # the columns of queries and keys
OFFERED = ["living", "dark", "edible"]  # the columns of values

# One row a word, one column a feature
X = torch.tensor(
    [
        [0.0, 0.0, 0.0, 2.0, 0.0, 0.0],  # the
        [0.0, 0.0, 2.0, 0.0, 0.0, 0.0],  # black
        [2.0, 0.0, 0.0, 0.0, 1.0, 0.0],  # cat
        [0.0, 2.0, 0.0, 0.0, 0.0, 0.0],  # likes
        [1.5, 0.5, 0.0, 0.0, 0.5, 1.0],  # fish: mostly a noun, but one may also fish
    ],
    dtype=torch.float64,
)

# One row a feature of the word that asks, one column a feature of the word it looks for
W_Q = torch.tensor(
    [
        # a noun looks for its verb, and less urgently for an adjective
        [0.0, 1.0, 0.5, 0.0],
        [1.5, 0.0, 0.0, 0.0],  # a verb for its nouns
        [1.0, 0.0, 0.0, 0.0],  # an adjective for its noun
        [1.0, 0.0, 0.5, 0.0],  # an article for its noun, and an adjective before it
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
    ],
    dtype=torch.float64,
)

# A word is found by what it is: the first four features as they are
W_K = torch.eye(6, 4, dtype=torch.float64)

# It hands over whether it lives, whether it is dark (the adjective is *black*), whether one eats it
W_V = torch.tensor(
    [
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.5, 0.0],
        [0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
        [0.0, 0.0, 1.0],
    ],
    dtype=torch.float64,
)

# Back to the width of X: living to living, dark to adjective, edible to edible
W_O = torch.tensor(
    [
        [0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 2.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    ],
    dtype=torch.float64,
)
