"""How wide a beam, and which alpha? The sweep of chapter 19.

    python -m benchmarks.experiments.widths

Translates the 1,014 validation and 1,000 test captions of Multi30k with the model that comes along,
by beams of 1 to 16 hypotheses. Alpha does not steer which of them survive, so each width is
searched once, and its finished hypotheses are sorted anew for each alpha. Each result is compared
with that of the first width, greedy search, by the paired bootstrap of chapter 20. Writes
`results/widths.jsonl`: the validation captions, the test captions, and both together.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from sacrebleu import BLEU

from annotated_transformer import Transformer, load_pretrained
from annotated_transformer.batching import pad
from annotated_transformer.decoding import Hypothesis, beam_search, length_penalty
from annotated_transformer.masks import EOS
from annotated_transformer.own_data import multi30k
from annotated_transformer.translation import length_batches
from benchmarks import common

ALPHAS = (0.0, 0.6, 1.0, 1.4)
SPLITS = ("val", "test_2016_flickr")
RESAMPLES = 1000


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


def bleu_counts(texts: list[str], references: list[str]) -> np.ndarray:
    """Return what BLEU adds up over sentences: matches and totals of n-grams, two lengths."""
    metric = BLEU(effective_order=True)
    rows = []
    for text, reference in zip(texts, references, strict=True):
        score = metric.sentence_score(text, [reference])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows)


def bleu_of(counts: np.ndarray) -> float:
    """Return BLEU from sums of counts."""
    numbers = counts.tolist()
    matched, total = numbers[:4], numbers[4:8]
    score = BLEU.compute_bleu(matched, total, numbers[8], numbers[9], "exp")
    return float(score.score)


def compared(
    rows: np.ndarray, base: np.ndarray, score: Callable[[np.ndarray], float]
) -> list[float]:
    """Return the score of all rows, how far it is ahead of the base's, and the middle 95% of that.

    There is a row for each sentence; `score` makes a score of their sum. Test sets are drawn anew
    from the sentences, the same ones at each call.
    """
    ahead = [score(rows.sum(axis=0)) - score(base.sum(axis=0))]
    shares = np.full(len(rows), 1 / len(rows))
    draws = np.random.default_rng(12345).multinomial(len(rows), shares, RESAMPLES)
    for sums, base_sums in zip(draws @ rows, draws @ base):
        ahead.append(score(sums) - score(base_sums))
    low, high = np.percentile(ahead[1:], [2.5, 97.5])
    numbers = score(rows.sum(axis=0)), ahead[0], low, high
    return [round(float(number), 2) for number in numbers]


def main(
    widths: tuple[int, ...] = (1, 2, 4, 8, 16),
    sentences: int = 1014,
    results: Path = common.RESULTS,
) -> None:
    """Measure each width and alpha, on at most so many sentences of each split.

    `length` is that of the output over that of the references, in tokens; `log p` is a mean.
    """
    model, tokenizer = load_pretrained("captions-de-en")
    splits = [multi30k(split)[:sentences] for split in SPLITS]
    first = len(splits[0])
    parts = dict(
        zip((*SPLITS, "both"), (slice(first), slice(first, None), slice(None)))
    )
    pairs = [pair for split in splits for pair in split]
    sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    references = [pair.target for pair in pairs]
    lengths = np.array([len(tokenizer.encode(text)) for text in references])
    base = None
    records = []
    for beam in widths:
        hypotheses = search(model, sources, beam)
        for alpha in ALPHAS:
            best = [max(row, key=lambda h: score_of(h, alpha)) for row in hypotheses]
            texts = [tokenizer.decode(hypothesis.tokens) for hypothesis in best]
            written = np.array([len(hypothesis.tokens) for hypothesis in best])
            log_p = np.array([hypothesis.log_probability for hypothesis in best])
            counts = bleu_counts(texts, references)
            if base is None:
                base = counts
            for name, part in parts.items():
                record = {"captions": name, "beam": beam, "alpha": alpha}
                found = compared(counts[part], base[part], bleu_of)
                record |= zip(("BLEU", "ahead", "low", "high"), found)
                share = written[part].sum() / lengths[part].sum()
                record["length"] = round(float(share), 3)
                record["log p"] = round(float(log_p[part].mean()), 2)
                records.append(record)
                print(record, flush=True)
    sizes = dict(zip(SPLITS, map(len, splits)))
    common.write_log(results, "widths", {"captions": sizes}, records)


if __name__ == "__main__":
    common.command(main)
