"""Does a trained model mind where a sentence begins?

    python -m benchmarks.experiments.beyond

The captions model reads pairs of Multi30k's validation set, source and target both beginning at
another position than 0. The log has the mean loss of the right translations, in nats per token,
for each first position, and the loss with all positions set to zero. Writes
`results/beyond.jsonl`, which chapter 8 draws.
"""

from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

from annotated_transformer import Transformer, encode_pairs, load_pretrained
from annotated_transformer.batching import batches
from annotated_transformer.masks import PAD
from annotated_transformer.transformer import evaluating
from benchmarks import common

STARTS = (*range(26), *range(30, 201, 10))
MAX_TOKENS = 2048


def mean_loss(model: Transformer, batch_list: list, table: Tensor) -> float:
    """Return the loss in nats per token of a model that has this table of positions."""
    model.positions.table = table
    total = 0.0
    tokens = 0
    with evaluating(model):
        for source, target in batch_list:
            logits = model(source, target[:, :-1]).flatten(0, 1)
            labels = target[:, 1:].flatten()
            total += float(
                nn.functional.cross_entropy(
                    logits, labels, ignore_index=PAD, reduction="sum"
                )
            )
            tokens += common.count(target[:, 1:])
    return total / tokens


def main(sentences: int = 500, results: Path = common.RESULTS) -> None:
    """Measure the loss for each first position."""
    torch.set_num_threads(1)
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = common.read("multi30k", "val")[:sentences]
    batch_list = list(batches(encode_pairs(tokenizer, pairs), MAX_TOKENS))
    table = model.positions.table
    lengths = [len(tokenizer.encode(pair.source)) for pair in pairs]
    records = [{"first": None, "loss": mean_loss(model, batch_list, 0 * table)}]
    for first in STARTS:
        records.append(
            {"first": first, "loss": mean_loss(model, batch_list, table[first:])}
        )
        print(records[-1], flush=True)
    for record in records:
        record["loss"] = round(record["loss"], 4)
    short = sum(length <= 20 for length in lengths) / len(lengths)
    settings = {
        "benchmark": "beyond",
        "model": "captions-de-en",
        "sentences": sentences,
        "up_to_20_tokens": round(short, 3),
    }
    common.write_log(results, "beyond", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
