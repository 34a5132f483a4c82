# %% tags=["remove-cell"]
import os, sys

sys.path.insert(0, "..")  # the folder of the book
CHECKING = bool(os.environ.get("CHECK_BOOK"))  # guards run in the book's tests only


# %% [markdown]
# # Translating many lines
#
# This appendix translates lines of text: some long, some short, some empty, in an order that matters (section 6.1 of the paper).
#
# [Decoding](19_decoding.ipynb#the-whole-search) searches one batch of token ids. `translate` stands between it and a user. It checks every line first, so that an error doesn't come after an hour of work, groups sentences of similar length, searches, and writes each result to its place. Empty lines stay empty, so input and output have the same number of lines. `translate_n_best` gives several translations of each line, with their scores.

# %% tags=["export"]
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer.decoding import Hypothesis, beam_search
from annotated_transformer.masks import EOS, PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.files import check_vocabulary
from annotated_transformer.own_data import single_spaced
from annotated_transformer.transformer import Transformer, evaluating

# %% [markdown]
# ## From lines to ids
#
# Each run of white space becomes one space first, by [the rule of the training data](C_own_data.ipynb#cleaning). To a model that has never seen two spaces in a row, or a no-break space, they are strange words: without the rule, a second space between all words of a text costs about a seventh of its BLEU, and no-break spaces cost nearly all.


# %% tags=["export"]
def encode_sentence(
    tokenizer: Tokenizer, sentence: str, number: int, longest: int
) -> Tensor:
    """Return the ids (S,) of a sentence, with `</s>`; of one without words, none.

    Raises ValueError for a sentence with more than `longest` tokens.
    """
    text = single_spaced(sentence)
    ids = [*tokenizer.encode(text), EOS] if text else []
    if len(ids) > longest:
        raise ValueError(
            f"sentence {number} has {len(ids)} tokens, the limit is {longest}: split it"
        )
    return torch.tensor(ids)


# %% [markdown]
# ## Batches of similar length
#
# A batch takes as long as its longest sentence, so neighbors in length go together. Long ones come first, so that a batch too large for the memory is the first to fail.


# %% tags=["export"]
def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sentences of like length, long ones first; returns their numbers.

    With padding a batch has at most max_tokens tokens; a longer sentence goes alone. Length 0
    is left out.
    """
    numbers = [number for number, length in enumerate(lengths) if length]
    numbers.sort(key=lambda number: lengths[number], reverse=True)
    batches = []
    start = 0
    while start < len(numbers):
        size = max(1, max_tokens // lengths[numbers[start]])
        batches.append(numbers[start : start + size])
        start += size
    return batches


# %%
lengths = [3, 0, 9, 4, 8]
print("of at most 16 tokens:", length_batches(lengths, max_tokens=16))

# %% [markdown]
# ## Side by side
#
# PyTorch shares each product among its threads, one for each core. The products of a step are too small for that to pay, so on a CPU each thread gets batches of its own instead. Python itself runs one thread at a time, but while one computes a product, another goes on. Many threads would wait for Python, so there are four at most.


# %% tags=["export"]
MOST_WORKERS = 4  # more would wait for Python
Search = Callable[[list[int]], list[list[Hypothesis]]]


def search_all(
    search: Search, batches: list[list[int]], device: torch.device
) -> list[list[list[Hypothesis]]]:
    """Search all batches, on a CPU several at a time, which share PyTorch's threads."""
    threads = torch.get_num_threads()
    workers = min(MOST_WORKERS, threads, len(batches))
    if device.type != "cpu" or workers < 2:
        return [search(batch) for batch in batches]
    try:
        with ThreadPoolExecutor(
            workers, initializer=torch.set_num_threads, initargs=(threads // workers,)
        ) as pool:
            return list(pool.map(search, batches))
    finally:
        torch.set_num_threads(threads)  # for threads that others start later


# %% [markdown]
# ## One call


# %% tags=["export"]
class Translation(NamedTuple):
    """A translation, with its log-probability divided by the length penalty."""

    text: str
    score: float


def translate_n_best(
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Iterable[str],
    n_best: int,
    beam: int = 4,
    alpha: float = 0.6,
    max_extra_tokens: int = 50,
    max_tokens: int = 2048,
) -> list[list[Translation]]:
    """Return up to n_best translations of each sentence, best first; of one without words, none.

    Arguments and errors are those of `translate`; n_best is the beam at most.
    """
    if isinstance(sentences, str):
        raise ValueError("sentences is one string: give a list of them")
    check_vocabulary(model, tokenizer)
    longest = model.config.max_length
    sources = [
        encode_sentence(tokenizer, sentence, number, longest)
        for number, sentence in enumerate(sentences, start=1)
    ]
    device = model.embedding.weight.device

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        rows = [sources[number] for number in batch]
        source = pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
        return beam_search(model, source, beam, alpha, max_extra_tokens, n_best)

    batches = length_batches([len(source) for source in sources], max_tokens)
    with evaluating(model):
        results = search_all(search, batches, device)
    translations: list[list[Translation]] = [[] for _ in sources]
    for batch, found in zip(batches, results):
        for number, hypotheses in zip(batch, found):
            for hypothesis in hypotheses:
                text = tokenizer.decode(hypothesis.tokens)
                translations[number].append(Translation(text, hypothesis.score))
    return translations


def translate(
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Iterable[str],
    beam: int = 4,
    alpha: float = 0.6,
    max_extra_tokens: int = 50,
    max_tokens: int = 2048,
) -> list[str]:
    """Translate sentences by beam search, the paper's by default; keeps the order.

    Sentences without words stay empty. A batch has at most max_tokens source tokens; on a CPU, up
    to four batches are searched at a time. Before you call this from threads of your own, call
    model.eval().
    Raises ValueError if a sentence is too long, or if the tokenizer is not the model's.
    """
    translations = translate_n_best(
        model, tokenizer, sentences, 1, beam, alpha, max_extra_tokens, max_tokens
    )
    return [best[0].text if best else "" for best in translations]


# %% tags=["hide-input"]
from annotated_transformer import load_pretrained

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained("captions-de-en")
lines = ["Ein Hund läuft über die Wiese.", "", "Eine Frau liest."]
exact = model.double()
for line, translation in zip(lines, translate(exact, tokenizer, lines, max_tokens=20)):
    print(f"{line!r} -> {translation!r}")

# %% tags=["remove-cell"]
if CHECKING:
    together = translate(exact, tokenizer, lines, max_tokens=20)
    assert together == [translate(exact, tokenizer, [line])[0] for line in lines]

# %% [markdown]
# The second-best translations, and what their scores say:

# %% tags=["nbval-ignore-output"]
for translation in translate_n_best(exact, tokenizer, lines[:1], n_best=3)[0]:
    print(f"{translation.score:.2f} {translation.text}")

# %% [markdown]
# What is too long says which sentence it is:

# %%
try:
    translate(model, tokenizer, ["Kurz.", "sehr " * 2000])
except ValueError as error:
    print(error)
