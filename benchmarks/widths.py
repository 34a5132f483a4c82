"""How wide a beam, and which alpha? The sweep of chapter 19.

    python benchmarks/widths.py

Translates the first 250 validation captions of Multi30k with the model that comes along, by beams
of 1 to 64 hypotheses. Alpha does not steer which of them survive, so each width is searched once,
and its finished hypotheses are sorted anew for each alpha. Writes `results/widths.jsonl`.
"""

from typing import Any

import common
import sacrebleu
import tyro

from annotated_transformer import load_pretrained
from annotated_transformer.batching import pad
from annotated_transformer.data import multi30k
from annotated_transformer.decoding import (
    Hypothesis,
    beam_search,
    encode_sources,
    length_batches,
    length_penalty,
)

ALPHAS = (0.0, 0.6, 1.0)


def score_of(found: Hypothesis, alpha: float) -> float:
    """Return what a search with this alpha would have called its score."""
    return found.log_probability / length_penalty(len(found.tokens) + found.ended, alpha)


def sweep(widths: tuple[int, ...], sentences: int = 250) -> list[dict[str, Any]]:
    """Return BLEU, length over that of the references, and mean log-probability."""
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = multi30k("val")[:sentences]
    sources = [*encode_sources(tokenizer, [pair.source for pair in pairs], 1024)]
    references = [[pair.target for pair in pairs]]
    true_length = sum(len(tokenizer.encode(pair.target)) for pair in pairs)
    records = []
    for beam in widths:
        rows: dict[int, list[Hypothesis]] = {}
        for batch in length_batches([len(row) for row in sources], min(2048, 16_384 // beam)):
            found = beam_search(model, pad([sources[n].numpy() for n in batch]), beam, n_best=beam)
            rows |= dict(zip(batch, found))
        for alpha in ALPHAS:
            best = [max(rows[n], key=lambda h: score_of(h, alpha)) for n in range(len(sources))]
            texts = [tokenizer.decode(found.tokens) for found in best]
            length = sum(len(found.tokens) for found in best) / true_length
            record = {
                "beam": beam, "alpha": f"alpha {alpha}",
                "BLEU": round(sacrebleu.corpus_bleu(texts, references).score, 2),
                "length": round(length, 3),
                "log p": round(sum(found.log_probability for found in best) / len(best), 2),
            }  # fmt: skip
            records.append(record)
    return records


def main(widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)) -> None:
    """Measure and log."""
    records = sweep(widths)
    for record in records:
        print(record)
    common.write_log(common.RESULTS, "widths", {"benchmark": "widths", "sentences": 250}, records)


if __name__ == "__main__":
    tyro.cli(main)
