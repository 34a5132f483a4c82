"""Minimum Bayes risk decoding against beam search, on captions (chapter 19).

    python -m benchmarks.experiments.risk

Draws some translations of each of 250 validation captions, takes the one that is most like the
others by chrF, and scores these choices beside the beam search of the paper, with the paired
bootstrap of chapter 20 in BLEU and in chrF. Writes `results/risk.jsonl`.
"""

from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from sacrebleu import CHRF

from annotated_transformer import Tokenizer, Transformer, load_pretrained, multi30k
from annotated_transformer.batching import pad
from annotated_transformer.decoding import beam_search, sample
from annotated_transformer.masks import EOS
from annotated_transformer.toolkit.translation import length_batches
from benchmarks import common
from benchmarks.experiments import widths
from benchmarks.experiments.widths import sentence_counts

RESAMPLES = 1000
MAX_EXTRA_TOKENS = 10

Scores = NDArray[np.float64]

chrf = CHRF()


def least_risk(samples: list[str]) -> str:
    """Return the sample that is most like all of them."""
    likeness = {}
    for text in set(samples):
        scores = [chrf.sentence_score(text, [other]).score for other in samples]
        likeness[text] = sum(scores)
    return max(sorted(likeness), key=lambda text: likeness[text])


def draw(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: list[list[int]],
    samples: int,
    temperature: float,
) -> list[list[str]]:
    """Return so many translations of each source, drawn at random."""
    generator = torch.Generator().manual_seed(0)
    drawn = dict[int, list[str]]()
    lengths = [len(source) for source in sources]
    for numbers in length_batches(lengths, 16_384 // samples):
        batch = pad([sources[number] for number in numbers])
        tokens = sample(
            model,
            batch.repeat_interleave(samples, dim=0),
            temperature,
            generator=generator,
            max_extra_tokens=MAX_EXTRA_TOKENS,
        )
        texts = [tokenizer.decode(row) for row in tokens]
        for row, number in enumerate(numbers):
            first = row * samples
            drawn[number] = texts[first : first + samples]
    return [drawn[number] for number in range(len(sources))]


def likeness_to(references: list[str], texts: list[str]) -> Scores:
    """Return the chrF of each text."""
    pairs = zip(texts, references, strict=True)
    return np.array([chrf.sentence_score(text, [right]).score for text, right in pairs])


def compared(scores: Scores, base: Scores) -> common.Record:
    """Return a mean, how far it is ahead of the base, and the middle 95% of that when resampled."""
    size = len(scores)
    random = np.random.default_rng(12345)
    draws = random.multinomial(size, np.full(size, 1 / size), RESAMPLES)
    low, high = np.percentile(draws @ (scores - base) / size, [2.5, 97.5])
    return {
        "chrF": round(float(scores.mean()), 2),
        "chrF ahead": round(float((scores - base).mean()), 2),
        "chrF low": round(float(low), 2),
        "chrF high": round(float(high), 2),
    }


def main(
    sentences: int = 250,
    samples: int = 16,
    temperatures: tuple[float, ...] = (0.5, 1.0),
    results: Path = common.RESULTS,
) -> None:
    """Measure and log."""
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = multi30k("val")[:sentences]
    sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    references = [pair.target for pair in pairs]
    searched = [
        tokenizer.decode(best.tokens) for (best,) in beam_search(model, pad(sources))
    ]
    systems = {"beam of 4": searched}
    for temperature in temperatures:
        drawn = draw(model, tokenizer, sources, samples, temperature)
        systems[f"one sample, {temperature}"] = [texts[0] for texts in drawn]
        systems[f"least risk, {temperature}"] = list(map(least_risk, drawn))
    records = []
    base = sentence_counts(searched, references)
    base_likeness = likeness_to(references, searched)
    for system, texts in systems.items():
        record = {"system": system}
        record |= widths.compared(sentence_counts(texts, references), base)
        record |= compared(likeness_to(references, texts), base_likeness)
        print(record, flush=True)
        records.append(record)
    settings = {"benchmark": "risk", "sentences": sentences, "samples": samples}
    common.write_log(results, "risk", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
