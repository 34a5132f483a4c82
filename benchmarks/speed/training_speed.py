"""Train three Transformers of one size on the same batches; report useful target tokens a second.

    python -m benchmarks.speed.training_speed --size mini
    python -m benchmarks.speed.training_speed --size base --device cuda --precision bf16

The systems are this book's model and loss, torch.nn.Transformer, and MarianMTModel of Hugging Face
(if transformers is installed). All share one table for source, target and output, use fused Adam,
and take the token-budget batches of chapter 15. They take turns, so noise hits all of them alike.
Writes `results/training-SIZE-THREADS.jsonl`, with bf16 `training-SIZE-THREADS-bf16.jsonl`. On a
GPU, its name stands in place of the threads, and `-cudnn` is added where cuDNN may compute
attention.
"""

import math
import statistics
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from annotated_transformer import Transformer, TransformerConfig
from annotated_transformer.batching import Batch
from annotated_transformer.masks import PAD
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.speed import FastLoss, Precision
from annotated_transformer.toolkit.runs import move
from benchmarks import common

Predict = Callable[[Tensor, Tensor], Tensor]  # source and target to logits
Loss = Callable[[Tensor, Tensor], Tensor]


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with what it lacks: one shared table, positions, dropout on both."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.vocabulary_size, config.d_model)
        nn.init.normal_(self.table.weight, std=config.d_model**-0.5)
        self.scale = math.sqrt(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.positions = SinusoidalPositions(config.d_model, config.max_length)
        self.stacks = nn.Transformer(
            d_model=config.d_model,
            nhead=config.heads,
            num_encoder_layers=config.layers,
            num_decoder_layers=config.layers,
            dim_feedforward=config.d_ff,
            dropout=config.dropout,
            batch_first=True,
        )
        # Dropout only where the paper has it
        layers = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        for module in self.stacks.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, layers):
                module.dropout.p = 0.0

    def embed(self, tokens: Tensor) -> Tensor:
        """Turn tokens (B, T) into vectors (B, T, D)."""
        return self.dropout(self.positions(self.table(tokens) * self.scale))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, |V|) from source (B, S) and target (B, T)."""
        length = target.size(1)
        padding = source == PAD
        future = torch.ones(length, length, dtype=torch.bool, device=source.device)
        future = future.triu(1)
        states = self.stacks(
            self.embed(source),
            self.embed(target),
            tgt_mask=future,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(states, self.table.weight)


def builtin_loss(predict: Predict, precision: Precision) -> Loss:
    """Return PyTorch's own smoothed cross-entropy, summed, of all logits."""

    def loss(source: Tensor, target: Tensor) -> Tensor:
        kind = source.device.type
        with torch.autocast(kind, torch.bfloat16, precision == "bf16"):
            return F.cross_entropy(
                predict(source, target[:, :-1]).flatten(0, 1),
                target[:, 1:].flatten(),
                ignore_index=PAD,
                label_smoothing=0.1,
                reduction="sum",
            )

    return loss


def trainer(
    model: nn.Module, loss: Loss, rounds: list[list[Batch]], cudnn: bool = False
) -> Callable[[int], int]:
    """Return what trains a model on the batches of one round and counts their target tokens."""
    adam = common.make_adam(model.train())
    counts = [[common.count(batch.target[:, 1:]) for batch in part] for part in rounds]
    device = rounds[0][0].source.device

    def turn(number: int) -> int:
        with common.cudnn_attention(cudnn):
            for batch, tokens in zip(rounds[number], counts[number]):
                adam.zero_grad()
                (loss(*batch) / tokens).backward()
                adam.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return sum(counts[number])

    return turn


def rivals_of(
    ours: Transformer, precision: Precision
) -> dict[str, tuple[nn.Module, Loss]]:
    """Return the model and the loss of other libraries, of the shape of ours, where it is."""
    device = ours.embedding.weight.device
    torchs = TorchTransformer(ours.config).to(device)
    systems: dict[str, tuple[nn.Module, Loss]] = {
        "torch.nn.Transformer": (torchs, builtin_loss(torchs, precision)),
    }
    if common.has_transformers():
        marian = common.marian(ours.config).to(device)

        def predict(source: Tensor, target: Tensor) -> Tensor:
            return marian(
                source,
                attention_mask=(source != PAD).long(),
                decoder_input_ids=target,
                use_cache=False,
            ).logits

        systems["MarianMTModel"] = (marian, builtin_loss(predict, precision))
    return systems


def main(
    size: common.Size = "mini",
    corpus: common.Corpus = "multi30k",
    threads: int = 1,
    rounds: int = 7,
    batches_each: int = 4,
    max_tokens: int = 2048,
    cpu_time: bool = False,
    precision: Precision = "fp32",
    device: str = "cpu",
    cudnn: bool = False,
    results: Path = common.RESULTS,
) -> None:
    """Train three Transformers of one size on the same batches."""
    torch.set_num_threads(threads)
    examples = common.encoded(corpus, "train", common.SIZES[size]["vocabulary_size"])
    stream = common.endless_batches(examples, max_tokens)
    parts = []
    for _ in range(rounds + 1):
        part = islice(stream, batches_each)
        parts.append([move(batch, torch.device(device)) for batch in part])
    ours = common.make_model(size).to(device)
    systems = {"ours": (ours, FastLoss(ours, precision=precision))}
    systems |= rivals_of(ours, precision)
    trainers = {
        name: trainer(model, loss, parts, cudnn)
        for name, (model, loss) in systems.items()
    }
    records = common.take_turns(trainers, rounds, cpu_time)

    rows = []
    for name, (model, _) in systems.items():
        rates = common.rates(records, name)
        lead = common.median_ratio(records, "ours", name)
        weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
        speed = f"{statistics.median(rates):,.0f}", common.quartiles(rates)
        rows.append([name, *speed, f"{lead:.2f}", f"{weights:,}"])
    header = ["training", "target tokens/s", "quartiles", "ours is x times"]
    print(common.table([*header, "parameters"], rows))
    name = common.device_name(device)
    settings = {
        "benchmark": "training",
        "size": size,
        "corpus": corpus,
        "device": name,
        "threads": threads,
        "max_tokens": max_tokens,
        "clock": "processor" if cpu_time else "wall",
        "precision": precision,
        "cudnn": cudnn,
    }
    where = str(threads) if name == "cpu" else name.replace(" ", "-")
    ending = "-bf16" if precision == "bf16" else ""
    ending += "-cudnn" if cudnn else ""
    common.write_log(results, f"training-{size}-{where}{ending}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
