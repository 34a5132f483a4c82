"""Does a trained model mind where a sentence begins?

    python -m benchmarks.experiments.beyond

The captions model reads pairs of Multi30k's validation set, source and target both beginning at
another position than 0. The log has the mean loss of the right translations, in nats per token,
for each first position, and the loss with all positions set to zero. Writes
`results/beyond.jsonl`, which chapter 8 draws.
"""

from pathlib import Path

import torch

from annotated_transformer import load_pretrained
from annotated_transformer.batching import encode_pairs
from annotated_transformer.own_data import multi30k
from annotated_transformer.training import validation_loss
from benchmarks import common

STARTS = (*range(26), *range(30, 201, 10))
MAX_TOKENS = 2048


def main(sentences: int = 500, results: Path = common.RESULTS) -> None:
    """Measure the loss for each first position."""
    torch.set_num_threads(1)
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = multi30k("val")[:sentences]
    corpus = encode_pairs(tokenizer, pairs)
    table = model.positions.table
    records = []
    for first in (None, *STARTS):
        model.positions.table = 0 * table if first is None else table[first:]
        loss = validation_loss(model, corpus, MAX_TOKENS)
        records.append({"first": first, "loss": round(loss, 4)})
        print(records[-1], flush=True)
    short = [len(tokenizer.encode(pair.source)) <= 20 for pair in pairs]
    settings = {
        "model": "captions-de-en",
        "sentences": sentences,
        "up_to_20_tokens": round(sum(short) / len(short), 3),
    }
    common.write_log(results, "beyond", settings, records)


if __name__ == "__main__":
    common.command(main)
