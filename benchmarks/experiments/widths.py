"""How wide a beam, and which alpha? The sweep of chapter 19.

    python -m benchmarks.experiments.widths

Translates the 1,014 validation and 1,000 test captions of Multi30k with the model that comes along,
by beams of 1 to 16 hypotheses. Alpha does not steer which of them survive, so each width is
searched once, and its finished hypotheses are sorted anew for each alpha. Each result is compared
with that of the first width, greedy search, by the paired bootstrap of chapter 20. Writes
`results/widths.jsonl`: the validation captions, the test captions, and both together.
"""

from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray
from sacrebleu import BLEU

from annotated_transformer import Transformer, load_pretrained, multi30k
from annotated_transformer.batching import pad
from annotated_transformer.decoding import (
    Hypothesis,
    beam_search,
    length_penalty,
)
from annotated_transformer.masks import EOS
from annotated_transformer.toolkit.translation import length_batches
from benchmarks import common

ALPHAS = (0.0, 0.6, 1.0, 1.4)
SPLITS = ("val", "test_2016_flickr")
RESAMPLES = 1000

Counts = NDArray[np.int64]


def score_of(hypothesis: Hypothesis, alpha: float) -> float:
    """Return what a search with this alpha would have called its score."""
    length = len(hypothesis.tokens) + hypothesis.ended
    return hypothesis.log_probability / length_penalty(length, alpha)


def search(
    model: Transformer, sources: list[list[int]], beam: int
) -> list[list[Hypothesis]]:
    """Return the finished hypotheses of each source, in order."""
    lengths = [len(source) for source in sources]
    hypotheses = dict[int, list[Hypothesis]]()
    for numbers in length_batches(lengths, min(2048, 16_384 // beam)):
        batch = pad([sources[number] for number in numbers])
        hypotheses |= zip(numbers, beam_search(model, batch, beam, n_best=beam))
    return [hypotheses[number] for number in range(len(sources))]


def sentence_counts(texts: list[str], references: list[str]) -> Counts:
    """Return what BLEU adds up over sentences: matches and totals of n-grams, two lengths."""
    metric = BLEU(effective_order=True)
    rows = []
    for text, reference in zip(texts, references, strict=True):
        score = metric.sentence_score(text, [reference])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows)


def bleu_of(counts: Counts) -> float:
    """Return BLEU from sums of counts."""
    numbers = counts.tolist()
    matched, total = numbers[:4], numbers[4:8]
    score = BLEU.compute_bleu(matched, total, numbers[8], numbers[9], "exp")
    return float(score.score)


def resampled(counts: Counts) -> NDArray[np.float64]:
    """Return BLEU on test sets drawn anew from the captions; the same ones at each call."""
    shares = np.full(len(counts), 1 / len(counts))
    random = np.random.default_rng(12345)
    draws = random.multinomial(len(counts), shares, RESAMPLES)
    return np.array([bleu_of(sums) for sums in draws @ counts])


def compared(counts: Counts, base: Counts) -> common.Record:
    """Return BLEU, how far it is ahead of the base, and the middle 95% of that when resampled."""
    bleu = bleu_of(counts.sum(axis=0))
    ahead = bleu - bleu_of(base.sum(axis=0))
    low, high = np.percentile(resampled(counts) - resampled(base), [2.5, 97.5])
    return {
        "BLEU": round(bleu, 2),
        "ahead": round(ahead, 2),
        "low": round(float(low), 2),
        "high": round(float(high), 2),
    }


def parts(sizes: list[int]) -> dict[str, slice]:
    """Return where in the list of all captions each split stands, and all of them."""
    first = sizes[0]
    return {
        SPLITS[0]: slice(0, first),
        SPLITS[1]: slice(first, None),
        "both": slice(None),
    }


def sweep(widths: tuple[int, ...], sentences: int | None) -> list[common.Record]:
    """Measure each width and alpha, on at most so many sentences of each split.

    `length` is that of the output over that of the references, in tokens; `log p` is a mean.
    """
    model, tokenizer = load_pretrained("captions-de-en")
    splits = [multi30k(split)[:sentences] for split in SPLITS]
    pairs = [pair for split in splits for pair in split]
    sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    references = [pair.target for pair in pairs]
    lengths = np.array([len(tokenizer.encode(text)) for text in references])
    base: Counts | None = None
    records: list[common.Record] = []
    for beam in widths:
        hypotheses = search(model, sources, beam)
        for alpha in ALPHAS:
            best = [
                max(row, key=lambda hypothesis: score_of(hypothesis, alpha))
                for row in hypotheses
            ]
            texts = [tokenizer.decode(hypothesis.tokens) for hypothesis in best]
            written = np.array([len(hypothesis.tokens) for hypothesis in best])
            log_p = np.array([hypothesis.log_probability for hypothesis in best])
            counts = sentence_counts(texts, references)
            if base is None:
                base = counts
            for name, part in parts([len(split) for split in splits]).items():
                record = {"captions": name, "beam": beam, "alpha": alpha}
                record |= compared(counts[part], base[part])
                share = written[part].sum() / lengths[part].sum()
                record["length"] = round(float(share), 3)
                record["log p"] = round(float(log_p[part].mean()), 2)
                records.append(record)
                print(record, flush=True)
    return records


def main(
    widths: tuple[int, ...] = (1, 2, 4, 8, 16),
    sentences: int | None = None,
    results: Path = common.RESULTS,
) -> None:
    """Measure and log."""
    records = sweep(widths, sentences)
    sizes = [len(multi30k(split)[:sentences]) for split in SPLITS]
    settings = {"benchmark": "widths", "captions": dict(zip(SPLITS, sizes))}
    common.write_log(results, "widths", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
