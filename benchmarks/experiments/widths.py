"""How wide a beam, and which alpha? The sweep of chapter 19.

    python -m benchmarks.experiments.widths

Translates the first 250 validation captions of Multi30k with the model that comes along, by beams
of 1 to 64 hypotheses. Alpha does not steer which of them survive, so each width is searched once,
and its finished hypotheses are sorted anew for each alpha. Writes `results/widths.jsonl`.
"""

from pathlib import Path

import sacrebleu
import tyro

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

ALPHAS = (0.0, 0.6, 1.0)


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


def sweep(widths: tuple[int, ...], sentences: int = 250) -> list[common.Record]:
    """Return BLEU, length over that of the references, and mean log-probability."""
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = multi30k("val")[:sentences]
    sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    references = [pair.target for pair in pairs]
    true_length = sum(len(tokenizer.encode(text)) for text in references)
    records = []
    for beam in widths:
        hypotheses = search(model, sources, beam)
        for alpha in ALPHAS:
            best = [
                max(row, key=lambda hypothesis: score_of(hypothesis, alpha))
                for row in hypotheses
            ]
            texts = [tokenizer.decode(hypothesis.tokens) for hypothesis in best]
            length = sum(len(hypothesis.tokens) for hypothesis in best)
            log_probability = sum(hypothesis.log_probability for hypothesis in best)
            bleu = sacrebleu.corpus_bleu(texts, [references]).score
            records.append(
                {
                    "beam": beam,
                    "alpha": f"alpha {alpha}",
                    "BLEU": round(bleu, 2),
                    "length": round(length / true_length, 3),
                    "log p": round(log_probability / len(best), 2),
                }
            )
    return records


def main(
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    sentences: int = 250,
    results: Path = common.RESULTS,
) -> None:
    """Measure and log."""
    records = sweep(widths, sentences)
    for record in records:
        print(record)
    settings = {"benchmark": "widths", "sentences": sentences}
    common.write_log(results, "widths", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
