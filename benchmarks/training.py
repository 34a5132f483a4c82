"""Train three Transformers of one size on the same batches; report useful target tokens a second.

The systems are this book's model and loss, torch.nn.Transformer, and MarianMTModel of Hugging Face
(if transformers is installed). All share one table for source, target and output, use fused Adam,
and take the token-budget batches of chapter 15. They take turns, so noise hits all of them alike.
"""

import math
import statistics
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import common
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from annotated_transformer.batching import Batch, batches
from annotated_transformer.masks import PAD
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.speed import FastLoss, Precision
from annotated_transformer.transformer import TransformerConfig

Loss = Callable[[Tensor, Tensor], Tensor]


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with what it lacks: one shared table, positions, dropout on both."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(c.vocabulary_size, c.d_model)
        nn.init.normal_(self.table.weight, std=c.d_model**-0.5)
        self.scale, self.dropout = math.sqrt(c.d_model), nn.Dropout(c.dropout)
        self.positions = SinusoidalPositions(c.d_model, c.max_length)
        sizes = (c.d_model, c.heads, c.layers, c.layers, c.d_ff, c.dropout)
        self.stacks = nn.Transformer(*sizes, batch_first=True)
        for module in self.stacks.modules():  # dropout only where the paper has it
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = 0.0

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.positions(self.table(tokens) * self.scale))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        future = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        padding = {f"{side}_key_padding_mask": source == PAD for side in ("src", "memory")}
        sides = self.embed(source), self.embed(target)
        states = self.stacks(*sides, tgt_mask=future, tgt_is_causal=True, **padding)
        return F.linear(states, self.table.weight)


def builtin_loss(predict: Callable[[Tensor, Tensor], Tensor], precision: Precision) -> Loss:
    """Return PyTorch's own smoothed cross-entropy, summed, of all logits."""

    def loss(source: Tensor, target: Tensor) -> Tensor:
        options = {"ignore_index": PAD, "label_smoothing": 0.1, "reduction": "sum"}
        with torch.autocast("cpu", torch.bfloat16, precision == "bf16"):
            logits = predict(source, target[:, :-1]).flatten(0, 1)
            return F.cross_entropy(logits, target[:, 1:].flatten(), **options)

    return loss


def trainer(model: nn.Module, loss: Loss, rounds: list[list[Batch]]) -> Callable[[int], int]:
    """Return what trains a model on the batches of one round and counts their target tokens."""
    adam = common.make_adam(model.train())

    def turn(number: int) -> int:
        for batch in rounds[number]:
            adam.zero_grad()
            (loss(*batch) / common.count(batch.target[:, 1:])).backward()
            adam.step()
        return sum(common.count(batch.target[:, 1:]) for batch in rounds[number])

    return turn


def main(
    size: common.Size = "mini", corpus: common.Corpus = "multi30k", threads: int = 1,
    rounds: int = 7, batches_each: int = 4, max_tokens: int = 2048, cpu_time: bool = False,
    precision: Precision = "fp32", results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Train three Transformers of one size on the same batches."""
    torch.set_num_threads(threads)
    examples = common.encoded(corpus, "train", common.SIZES[size]["vocabulary_size"])
    stream = iter(batches(examples, max_tokens))
    parts = [[*islice(stream, batches_each)] for _ in range(rounds + 1)]

    ours = common.make_model(size)
    rival = TorchTransformer(ours.config)
    models: dict[str, nn.Module] = {"ours": ours, "torch.nn.Transformer": rival}
    losses: list[Loss] = [FastLoss(ours, precision=precision), builtin_loss(rival, precision)]
    if common.has_transformers():
        hugging = models["MarianMTModel"] = common.marian(ours.config)

        def predict(source: Tensor, target: Tensor) -> Tensor:
            options = {"decoder_input_ids": target, "use_cache": False}
            return hugging(source, attention_mask=(source != PAD).long(), **options).logits

        losses.append(builtin_loss(predict, precision))
    systems = {n: trainer(m, loss, parts) for (n, m), loss in zip(models.items(), losses)}
    records = common.take_turns(systems, rounds, cpu_time)

    rows = []
    for name, model in models.items():
        rates = common.column(records, name)
        weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
        numbers = [f"{statistics.median(rates):,.0f}", common.quartiles(rates)]
        rows.append([name, *numbers, f"{common.times(records, 'ours', name):.2f}", f"{weights:,}"])
    header = ["training", "target tokens/s", "quartiles", "ours is x times", "parameters"]
    print(common.table(header, rows))
    settings = {"benchmark": "training", "size": size, "corpus": corpus, "threads": threads}
    settings |= {"max_tokens": max_tokens, "clock": "processor" if cpu_time else "wall"}
    name = f"training-{size}-{threads}" + ("-bf16" if precision == "bf16" else "")
    common.write_log(results, name, settings | {"precision": precision}, records)


if __name__ == "__main__":
    tyro.cli(main)
