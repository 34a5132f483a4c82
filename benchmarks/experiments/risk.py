"""Minimum Bayes risk decoding against beam search, on captions (chapter 19).

    python -m benchmarks.experiments.risk

Draws some translations of each of 250 validation captions, takes the one that is most like the
others by chrF, and scores these choices beside the beam search of the paper, with the paired
bootstrap of chapter 20 in BLEU and in chrF. Writes `results/risk.jsonl`.
"""

from pathlib import Path

import numpy as np
import torch
from sacrebleu import CHRF

from annotated_transformer import Tokenizer, Transformer, load_pretrained
from annotated_transformer.batching import pad
from annotated_transformer.decoding import beam_search, sample
from annotated_transformer.masks import EOS
from annotated_transformer.own_data import multi30k
from annotated_transformer.translation import length_batches
from benchmarks import common
from benchmarks.experiments.widths import bleu_counts, bleu_of, compared

MAX_EXTRA_TOKENS = 10

chrf = CHRF()


def least_risk(samples: list[str]) -> str:
    """Return the sample that is most like all of them."""
    likeness = {}
    for text in sorted(set(samples)):
        scores = [chrf.sentence_score(text, [other]).score for other in samples]
        likeness[text] = sum(scores)
    return max(likeness, key=lambda text: likeness[text])


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
    found = beam_search(model, pad(sources))
    systems = {"beam of 4": [tokenizer.decode(best.tokens) for (best,) in found]}
    for temperature in temperatures:
        drawn = draw(model, tokenizer, sources, samples, temperature)
        systems[f"one sample, {temperature}"] = [texts[0] for texts in drawn]
        systems[f"least risk, {temperature}"] = list(map(least_risk, drawn))

    def chrf_scores(texts: list[str]) -> np.ndarray:
        pairs = zip(texts, references, strict=True)
        return np.array([chrf.sentence_score(text, [r]).score for text, r in pairs])

    base = systems["beam of 4"]
    base_counts, base_chrf = bleu_counts(base, references), chrf_scores(base)
    records = []
    for system, texts in systems.items():
        bleu = compared(bleu_counts(texts, references), base_counts, bleu_of)
        mean = compared(
            chrf_scores(texts), base_chrf, lambda sum: float(sum) / len(pairs)
        )
        record: common.Record = {"system": system}
        record |= zip(("BLEU", "ahead", "low", "high"), bleu)
        record |= zip(("chrF", "chrF ahead", "chrF low", "chrF high"), mean)
        print(record, flush=True)
        records.append(record)
    settings = {"sentences": sentences, "samples": samples}
    common.write_log(results, "risk", settings, records)


if __name__ == "__main__":
    common.command(main)
