# %% tags=["remove-cell"]
# In Colab, install the package that this book builds
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "annotated-transformer[notebooks] @ git+https://github.com/annotated-transformer/annotated-transformer"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)

# %% [markdown]
# # Decoding
#
# This chapter turns a trained model into a function from sentences to sentences (section 6.1 of the paper).
#
# A model gives probabilities for one next token. Somebody has to choose, append and ask again. `greedy_decode` in
# [the model's chapter](08_transformer.ipynb) does that for a tensor of numbers. A user has text: a list of sentences, some long, some
# short, some empty, in an order that matters.

# %% tags=["export"]
from collections.abc import Sequence

from annotated_transformer.batching import encode_source, pad
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import check_vocabulary
from annotated_transformer.transformer import Transformer, greedy_decode

# %%
import torch

from annotated_transformer.corpus import grammar
from annotated_transformer.training import TrainingConfig, train
from annotated_transformer.transformer import preset

# %% [markdown]
# ## From lines to batches and back
#
# A batch takes as long as its longest sentence. So we sort by length, translate neighbors together, and put each translation back where its source
# was. Lines without words have nothing to translate and stay empty: who counts lines on both sides must get the same number.
#
# Sentences that are too long for the model's positions are found before any work is done.


# %% tags=["export"]
def check_lengths(sources: Sequence[Sequence[int]], max_length: int) -> None:
    """Raise ValueError for the first source that has more tokens than the model has positions."""
    for number, source in enumerate(sources, start=1):
        if len(source) > max_length:
            raise ValueError(
                f"sentence {number} has {len(source)} tokens, the model reads {max_length}: "
                "cut it in parts"
            )


def translate(
    model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str], batch_size: int = 64
) -> list[str]:
    """Translate sentences, each into its most likely next token until `</s>` (greedy); empty
    ones stay empty.

    Raises ValueError if a sentence is too long, or if the tokenizer is not the model's.
    """
    check_vocabulary(model, tokenizer)
    sources = [encode_source(tokenizer, sentence) for sentence in sentences]
    check_lengths(sources, model.config.max_length)
    device = next(model.parameters()).device
    order = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    order.sort(key=lambda index: len(sources[index]))
    translations = [""] * len(sentences)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        rows = greedy_decode(model, pad([sources[index] for index in chosen]).to(device))
        for index, row in zip(chosen, rows):
            translations[index] = tokenizer.decode(row)
    return translations


# %% [markdown]
# What must hold needs no good model, so we take one that has hardly been trained. The order is kept and empty lines stay. A sentence comes
# out the same alone and in company, since [padding is masked](02_masks.ipynb). And translating changes nothing about the model: dropout is as it was.

# %% tags=["nbval-ignore-output"]
pairs = grammar(1000, seed=0)
tokenizer = Tokenizer.train(pairs, vocabulary_size=1000)
torch.manual_seed(0)
model = Transformer(preset("tiny", vocabulary_size=len(tokenizer))).double()
model = train(model, tokenizer, pairs, TrainingConfig(steps=60))

# %%
lines = [pair.source for pair in pairs[:20]]
lines[3] = lines[7] = ""
model.train()
together = translate(model, tokenizer, lines, batch_size=8)
assert model.training
assert [index for index, line in enumerate(together) if not line] == [3, 7]
assert together == [translate(model, tokenizer, [line])[0] for line in lines]
print(len(lines), "lines in,", len(together), "lines out; alone as in company")

# %%
try:
    translate(model, tokenizer, ["Kurz.", "sehr " * 2000])
except ValueError as error:
    print(error)

# %% [markdown]
# ## What to remember
#
# - Decoding asks for one next token, appends it, and asks again until `</s>`.
# - Sort by length, translate in batches, put back in order. Empty lines stay where they are.
# - A translation must not depend on its neighbors in the batch.
