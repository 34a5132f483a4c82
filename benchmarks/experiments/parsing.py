"""Parse the Penn Treebank sample with the unchanged model: learning curve and constraints.

    python -m benchmarks.experiments.parsing --jobs 2
    python -m benchmarks.experiments.parsing --shares 1 --seeds 0

Trains on an eighth, a quarter, half and all of the trees in wsj_0001 to wsj_0159, from three
seeds, keeps the weights with the best loss on wsj_0160 to wsj_0179, and scores wsj_0180 to
wsj_0199 with a beam of 21, free and held to well-formed brackets; then all of the trees once more,
without words in the output. `results/parsing.jsonl` has the settings first and then a line a run;
a run that it has already is not repeated. Chapter 23 draws it.
"""

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from annotated_transformer import Transformer, TransformerConfig, decoding
from annotated_transformer.batching import EncodedCorpus, pad
from annotated_transformer.decoding import beam_search
from annotated_transformer.masks import BOS, EOS, UNK
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.training import make_adam, validation_loss
from annotated_transformer.translation import length_batches
from benchmarks import common
from benchmarks.treebank import (
    Tree,
    labeled_f1,
    linearize,
    restore,
    split_treebank,
    words_of,
)

SHAPE: dict[str, Any] = {
    "layers": 2,
    "d_model": 128,
    "d_ff": 512,
    "heads": 4,
    "dropout": 0.1,
    "pre_norm": True,  # it starts sooner (chapter 9)
}
VOCABULARY = 3000  # words; of rarer ones the outline
MAX_TOKENS = 1024
WARMUP = 400
PEAK = 0.0022
EVERY = 250  # updates between two looks at the held-out trees
PATIENCE = 1500  # updates without a better loss on them
EXAMPLE = ["the", "black", "cat", "likes", "fish", "."]

# --- The model's view: words go in, symbols come out ---

WORD, OPEN, CLOSE, TAG, OTHER = range(5)
KINDS = {"(": OPEN, ")": CLOSE, "/": TAG, "<": OTHER}


def outline(word: str) -> str:
    """Return what is kept of a rare word: whether it has a capital or a digit, and its end."""
    capital = "A" if word[0].isupper() else ""
    digit = "0" if any(letter.isdigit() for letter in word) else ""
    return "*" + capital + digit + word[-2:].lower()


class Code:
    """One vocabulary: frequent words, the outlines of rare ones, and the symbols of trees.

    If words aren't `written`, a tree is its brackets and tags alone.
    """

    def __init__(
        self, trees: Sequence[Tree], vocabulary: int = VOCABULARY, written: bool = True
    ) -> None:
        counts = Counter(chain.from_iterable(map(words_of, trees)))
        words = [word for word, _ in counts.most_common(vocabulary)]
        outlines = sorted({outline(word) for word in counts.keys() - set(words)})
        symbols = set[str]()
        for tree in trees:
            symbols |= {symbol for symbol in linearize(tree) if symbol[0] in KINDS}
        special = ["<pad>", "<s>", "</s>", "*"]
        self.entries = [*special, *words, *outlines, *sorted(symbols)]
        self.ids = {entry: number for number, entry in enumerate(self.entries)}
        self.kinds = torch.tensor([KINDS.get(entry[0], WORD) for entry in self.entries])
        self.written = written

    def word_id(self, word: str) -> int:
        """Return the id of a word, or of its outline, or that of the unknown."""
        return self.ids.get(word, self.ids.get(outline(word), UNK))

    def source(self, words: Sequence[str]) -> list[int]:
        """Return the ids of a sentence."""
        return [*map(self.word_id, words), EOS]

    def target(self, tree: Tree) -> list[int]:
        """Return the ids of a tree."""
        ids = [BOS]
        for symbol in linearize(tree):
            if symbol[0] in KINDS:
                ids.append(self.ids.get(symbol, UNK))
            elif self.written:
                ids.append(self.word_id(symbol))
        return [*ids, EOS]

    def read(self, ids: Sequence[int]) -> list[str]:
        """Return the symbols of ids."""
        return [self.entries[i] for i in ids]


def encode_trees(code: Code, trees: Sequence[Tree]) -> EncodedCorpus:
    """Encode trees as pairs of a sentence and its symbols."""
    tokens = list[int]()
    lengths = []
    for tree in trees:
        source, target = code.source(words_of(tree)), code.target(tree)
        tokens += source + target
        lengths.append((len(source), len(target) - 1))
    return EncodedCorpus(
        np.array(tokens, np.int32), np.array(lengths, np.int64).reshape(-1, 2)
    )


def fit(
    model: Transformer,
    corpus: EncodedCorpus,
    held_out: EncodedCorpus,
    steps: int,
    seed: int = 0,
    max_tokens: int = MAX_TOKENS,
    warmup: int = WARMUP,
    every: int = EVERY,
    patience: int = PATIENCE,
    report: Callable[[int, float, float], None] = lambda *_: None,
) -> Transformer:
    """Train a model and return it with the weights that had the best loss on held-out trees.

    It ends early when this loss hasn't fallen for `patience` updates.
    """

    def rate(step: int) -> float:
        return learning_rate(step, model.config.d_model, warmup, PEAK)

    loss = SmoothedLoss(model, 0.1)
    best_loss, best_step, best_weights = math.inf, 0, model.state_dict()
    total = tokens = 0.0
    stream = islice(common.endless_batches(corpus, max_tokens, seed), steps)
    updates = common.updates(loss, make_adam(loss), stream, rate)
    for step, update in enumerate(updates, start=1):
        total += float(update.loss)
        tokens += float(update.tokens)
        if step % every != 0 and step != steps:
            continue
        held_out_loss = validation_loss(model, held_out, max_tokens)
        report(step, round(total / tokens, 4), round(held_out_loss, 4))
        total = tokens = 0.0
        if held_out_loss < best_loss:
            best_loss, best_step = held_out_loss, step
            best_weights = copy.deepcopy(model.state_dict())
        if step - best_step >= patience:
            break
    model.load_state_dict(best_weights)
    return model.eval()


# --- Held to well-formed brackets ---


def allowed(
    tokens: Tensor, source: Tensor, words: Tensor, kinds: Tensor, written: bool = True
) -> Tensor:
    """Tell which entries may follow: (B, R, |V|) for tokens (B, R, T), source (B, S), words (B, 1).

    kinds (|V|,) tells what each entry is, `words` how many words a sentence has.
    """
    kind = kinds[tokens]
    last = kind[..., -1]
    depth = (kind == OPEN).sum(-1) - (kind == CLOSE).sum(-1)
    tagged = (kind == TAG).sum(-1)
    begun = tokens.size(-1) > 1
    inside = depth > 0
    words_left = tagged < words
    tag_due = last == WORD
    five_opened = (kind[..., -5:] == OPEN).all(-1)  # <s> is none

    may_open = ~tag_due & words_left & ~five_opened
    if begun:
        may_open &= inside  # there is one tree
    may_close = ~tag_due & inside & (last != OPEN) & ((depth > 1) | ~words_left)
    may_tag = tag_due if written else inside & words_left
    permitted = (
        (may_open[..., None] & (kinds == OPEN))
        | (may_close[..., None] & (kinds == CLOSE))
        | (may_tag[..., None] & (kinds == TAG))
    )
    if written:  # the next word, and no other
        next_word = source.gather(1, tagged.clamp(max=source.size(1) - 1))
        may_write = ~tag_due & inside & words_left
        permitted.scatter_(-1, next_word[..., None], may_write[..., None])
    permitted[..., EOS] = ~inside & begun
    return permitted


def constrained_extend(
    code: Code, source: Tensor, words: Tensor
) -> Callable[[Any, Tensor], Any]:
    """Return the search's step, held to what may follow in the sentences of a batch."""
    free_extend = decoding.extend

    def extend(beams: Any, logits: Tensor) -> Any:
        rows = beams.sentence
        permitted = allowed(
            beams.tokens, source[rows], words[rows], code.kinds, code.written
        )
        empty = beams.total == -torch.inf  # no hypothesis: nothing to forbid
        permitted |= empty[..., None]
        return free_extend(beams, logits.masked_fill(~permitted, -torch.inf))

    return extend


def parse(
    model: Transformer,
    code: Code,
    sentences: Sequence[Sequence[str]],
    constrained: bool = False,
    beam: int = 21,
    alpha: float = 0.3,
    max_extra_tokens: int = 300,
) -> list[list[str]]:
    """Return the symbols that a search as in section 6.3 writes for each sentence, in order."""
    sources = [code.source(words) for words in sentences]
    symbols = dict[int, list[str]]()
    for group in length_batches([len(source) for source in sources], 512):
        source = pad([sources[number] for number in group])
        extend: Any = decoding.extend
        if constrained:
            words = torch.tensor([[len(sentences[number])] for number in group])
            extend = constrained_extend(code, source, words)
        with patch.object(decoding, "extend", extend):
            results = beam_search(model, source, beam, alpha, max_extra_tokens)
        for number, hypotheses in zip(group, results):
            symbols[number] = code.read(hypotheses[0].tokens)
    return [symbols[number] for number in range(len(sentences))]


# --- The learning curve ---


def evaluate(
    model: Transformer, code: Code, test: Sequence[Tree], constrained: bool
) -> tuple[float, float]:
    """Return labeled F1 and the share of well-formed parses."""
    sentences = [words_of(tree) for tree in test]
    written = parse(model, code, sentences, constrained)
    parses = [restore(symbols, words) for symbols, words in zip(written, sentences)]
    well_formed = sum(parse is not None for parse in parses)
    return round(labeled_f1(test, parses), 2), round(well_formed / len(test), 4)


def measure(
    share: int, seed: int, words_written: bool, steps: int, sentences: int
) -> common.Record:
    """Train on one tree in `share` and score."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    train, held_out, test = split_treebank()
    code = Code(train, written=words_written)
    train = train[seed % share :: share]
    test = test[:sentences]
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(len(code.entries), **SHAPE))
    curve = list[tuple[float, ...]]()

    def report(*line: float) -> None:
        curve.append(line)
        print(f"{len(train)} trees, seed {seed}: update, losses", *line, flush=True)

    trees, others = encode_trees(code, train), encode_trees(code, held_out)
    fit(model, trees, others, steps, seed, report=report)
    free_f1, free_share = evaluate(model, code, test, constrained=False)
    held_f1, held_share = evaluate(model, code, test, constrained=True)
    return {
        "trees": len(train),
        "tested": len(test),
        "f1_free": free_f1,
        "well_formed_free": free_share,
        "f1_constrained": held_f1,
        "well_formed_constrained": held_share,
        "ours": " ".join(parse(model, code, [EXAMPLE], constrained=True)[0]),
        "curve": curve,
        "seconds": round(time.perf_counter() - start, 1),
    }


def main(
    shares: tuple[int, ...] = (1, 2, 4, 8),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 4000,
    sentences: int = 300,
    jobs: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet, some of them side by side."""
    settings = {
        **SHAPE,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "peak_lr": PEAK,
        "steps": steps,
        "patience": PATIENCE,
        "vocabulary": VOCABULARY,
        "sentences": sentences,
    }
    kinds = [(share, True) for share in shares]
    if 1 in shares:
        kinds.append((1, False))
    tasks = []
    for share, written in kinds:
        for seed in seeds:
            tasks.append({"share": share, "seed": seed, "words_written": written})
    run = partial(measure, steps=steps, sentences=sentences)
    common.make_runs(results, "parsing", settings, tasks, run, jobs)


if __name__ == "__main__":
    common.command(main)
