# %% tags=["remove-cell"]
import os, sys

if "google.colab" in sys.modules:  # fetch the book, and install what it needs
    book = "https://github.com/annotated-transformer/annotated-transformer"
    os.system(f"git clone -q --depth 1 {book} /book; pip install -q '/book[notebooks]'")
    os.chdir("/book/notebooks")
sys.path.insert(0, "..")  # where book.figures stands


# %% [markdown]
# # Translating many lines
#
# This appendix translates lines of text: some long, some short, some empty, in an order that matters (section 6.1 of the paper).
#
# [Decoding](19_decoding.ipynb#the-whole-search) searches one batch of token ids. `translate` stands between it and a user. It checks every line first, so that an error doesn't come after an hour of work, groups sentences of similar length, searches, and writes each result to its place. Empty lines stay empty, so input and output have the same number of lines.

# %% tags=["export"]
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from annotated_transformer.decoding import beam_search
from annotated_transformer.masks import EOS, PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.model_io import check_vocabulary
from annotated_transformer.transformer import Transformer, evaluating

# %% [markdown]
# ## From lines to ids


# %% tags=["export"]
def encode_sentence(
    tokenizer: Tokenizer, sentence: str, number: int, longest: int
) -> Tensor:
    """Return the ids (S,) of a sentence, with `</s>`; of one without words, none.

    Raises ValueError for a sentence with more than `longest` tokens, or one that isn't text.
    """
    try:
        ids = [*tokenizer.encode(sentence), EOS] if sentence.strip() else []
    except (AttributeError, ValueError) as error:
        raise ValueError(f"sentence {number} is no text: {error}") from error
    if len(ids) > longest:
        raise ValueError(
            f"sentence {number} has {len(ids)} tokens, the limit is {longest}: split it"
        )
    return torch.tensor(ids)


# %% [markdown]
# ## Batches of similar length
#
# A batch takes as long as its longest sentence, so neighbors in length go together. Long ones come first, so that a batch too large for the memory is the first to fail.
#
# PyTorch shares each product among its threads, one for each core. The products of a step are too small for that to pay, so on a CPU `translate` gives each thread batches of its own. Python itself runs one thread at a time, but while one computes a product, another goes on. Many threads would wait for Python, so there are four at most. Each gets as many batches, of about the same size; a few sentences stay in one.


# %% tags=["export"]
MOST_WORKERS = 4  # more would wait for Python
TOKENS_PER_WORKER = 512  # below that, a second batch does not pay


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


def even_batches(
    lengths: Sequence[int], max_tokens: int, workers: int
) -> list[list[int]]:
    """Group sentences so that each worker gets as many batches, of about the same size."""
    workers = max(1, min(workers, sum(lengths) // TOKENS_PER_WORKER))
    fewest = len(length_batches(lengths, max_tokens))
    wanted = workers * math.ceil(fewest / workers)
    step = max_tokens // 32 + 1
    for budget in range(TOKENS_PER_WORKER, max_tokens, step):
        batches = length_batches(lengths, budget)
        if len(batches) <= wanted:
            return batches
    return length_batches(lengths, max_tokens)


def count_workers(device: torch.device) -> int:
    """Return how many batches may be searched at a time."""
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):  # set for one thread
        return 1
    return min(MOST_WORKERS, torch.get_num_threads())


# %%
lengths = [3, 0, 9, 4, 8]
print("of at most 16 tokens:", length_batches(lengths, max_tokens=16))

# %% [markdown]
# ## Side by side


# %% tags=["export"]
Search = Callable[[list[int]], list[str]]


def search_all(search: Search, batches: list[list[int]], workers: int) -> list[str]:
    """Search all batches, several at a time, which share the threads of PyTorch; in their order."""
    if workers < 2:
        results = list(map(search, batches))
    else:
        threads = torch.get_num_threads()
        share = (threads // workers,)
        try:
            with ThreadPoolExecutor(
                workers, initializer=torch.set_num_threads, initargs=share
            ) as pool:
                results = list(pool.map(search, batches))
        finally:
            torch.set_num_threads(threads)
    return [translation for batch in results for translation in batch]


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
    Raises ValueError if a sentence is too long or no text, or if the tokenizer is not the model's.
    """
    if isinstance(sentences, str):
        raise ValueError("sentences is one string: give a list of them")
    check_vocabulary(model, tokenizer)
    longest = model.config.max_length
    sources = [
        encode_sentence(tokenizer, sentence, number, longest)
        for number, sentence in enumerate(sentences, start=1)
    ]
    lengths = [len(source) for source in sources]
    device = model.embedding.weight.device
    workers = count_workers(device)
    batches = even_batches(lengths, max_tokens, workers)

    def search(numbers: list[int]) -> list[str]:
        rows = [sources[number] for number in numbers]
        source = pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
        best = beam_search(model, source, beam, alpha, max_extra_tokens)
        return [tokenizer.decode(hypotheses[0].tokens) for hypotheses in best]

    with evaluating(model):
        written = search_all(search, batches, min(workers, len(batches)))
    translations = [""] * len(sources)
    in_order = [number for numbers in batches for number in numbers]
    for number, translation in zip(in_order, written, strict=True):
        translations[number] = translation
    return translations


# %% tags=["hide-input"]
from annotated_transformer import load_pretrained

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_pretrained("captions-de-en")
lines = ["Ein Hund läuft über die Wiese.", "", "Eine Frau liest."]
exact = model.double()
for line, translation in zip(lines, translate(exact, tokenizer, lines, max_tokens=20)):
    print(f"{line!r} -> {translation!r}")

# %% tags=["remove-cell"]
together = translate(exact, tokenizer, lines, max_tokens=20)
assert together == [translate(exact, tokenizer, [line])[0] for line in lines]

# %% [markdown]
# What fails says which sentence it is:

# %%
for wrong in (["Kurz.", "sehr " * 2000], ["gr\udcfcn"]):
    try:
        translate(model, tokenizer, wrong)
    except ValueError as error:
        print(error)
