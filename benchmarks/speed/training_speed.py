"""Train three Transformers of one size on the same batches; report useful target tokens a second.

    python -m benchmarks.speed.training_speed --size mini
    python -m benchmarks.speed.training_speed --size base --device cuda --precision bf16 \\
        --corpus made-up --max-tokens 25000

The systems are this book's model and loss, torch.nn.Transformer, and MarianMTModel of Hugging Face
(if transformers is installed). All share one table for source, target and output, use fused Adam,
and take the token-budget batches of chapter 15. They take turns, so noise hits all of them alike.
Writes `results/training-SIZE-THREADS.jsonl`, with bf16 `training-SIZE-THREADS-bf16.jsonl`. On a
GPU, its name stands in place of the threads. There attention isn't left to cuDNN, which prepares a
program for each new length; with --cudnn it is, but for ours. Chapter 26 shows the logs.
"""

import importlib.util
import math
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from annotated_transformer import Transformer, TransformerConfig
from annotated_transformer.batching import Batch
from annotated_transformer.decoding import use_fused
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.speed import FUSED, FastLoss, Precision
from annotated_transformer.training import make_adam
from benchmarks import common
from benchmarks.speed import made_up

SIZES: dict[str, dict[str, Any]] = {
    "base": {"vocabulary_size": 37_000},
    "small": {"vocabulary_size": 8000, "layers": 3, "d_model": 256, "d_ff": 1024},
    "mini": {
        "vocabulary_size": 4000,
        "layers": 3,
        "d_model": 192,
        "d_ff": 512,
        "heads": 4,
    },
    "toy": {"vocabulary_size": 300, "layers": 1, "d_model": 16, "d_ff": 32, "heads": 2},
}

# --- Two rivals ---


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
        states = self.stacks(
            self.embed(source),
            self.embed(target),
            tgt_mask=future.triu(1),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return states @ self.table.weight.T


class Marian(nn.Module):
    """A MarianMTModel of the same shape: post-norm, ReLU, one table, the paper's dropout."""

    def __init__(self, config: TransformerConfig) -> None:
        from transformers import MarianConfig, MarianMTModel, logging

        super().__init__()
        logging.set_verbosity_error()
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=config.vocabulary_size,
                d_model=config.d_model,
                encoder_layers=config.layers,
                decoder_layers=config.layers,
                encoder_ffn_dim=config.d_ff,
                decoder_ffn_dim=config.d_ff,
                encoder_attention_heads=config.heads,
                decoder_attention_heads=config.heads,
                max_position_embeddings=config.max_length,
                activation_function="relu",
                dropout=config.dropout,
                scale_embedding=True,
                init_std=config.d_model**-0.5,
                pad_token_id=PAD,
                bos_token_id=BOS,
                eos_token_id=EOS,
                decoder_start_token_id=BOS,
                forced_eos_token_id=None,
                attn_implementation="sdpa",
            )
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, |V|) from source (B, S) and target (B, T)."""
        mask = (source != PAD).long()
        options = {"decoder_input_ids": target, "use_cache": False}
        return self.model(source, attention_mask=mask, **options).logits


# --- Training by turns ---


def trainer(
    loss: nn.Module, rounds: list[list[Batch]], precision: str, cudnn: bool
) -> Callable[[int], int]:
    """Return what trains on the batches of one round and counts their target tokens."""
    adam = make_adam(loss)
    counts = [[int((b.target[:, 1:] != PAD).sum()) for b in part] for part in rounds]
    device = rounds[0][0].source.device

    def loss_of(source: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, precision == "bf16"):
            return loss(source, target)

    def turn(number: int) -> int:
        with nullcontext() if cudnn else sdpa_kernel(FUSED):
            for batch, tokens in zip(rounds[number], counts[number]):
                adam.zero_grad()
                (loss_of(*batch) / tokens).backward()
                adam.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return sum(counts[number])

    return turn


def main(
    size: str = "mini",
    corpus: str = "multi30k",
    threads: int = 1,
    rounds: int = 7,
    batches_each: int = 4,
    max_tokens: int = 2048,
    precision: Precision = "fp32",
    device: str = "cpu",
    cudnn: bool = False,
    results: Path = common.RESULTS,
) -> None:
    """Train three Transformers of one size on the same batches."""
    torch.set_num_threads(threads)
    config = TransformerConfig(**SIZES[size])
    if corpus == "made-up":
        examples = made_up.corpus(50_000, config.vocabulary_size)
    else:
        _, examples = common.captions(min(config.vocabulary_size, 8000))
    stream = common.endless_batches(examples, max_tokens)
    parts = []
    for _ in range(rounds + 1):
        part = []
        for source, target in islice(stream, batches_each):
            part.append(Batch(source.to(device), target.to(device)))
        parts.append(part)
    torch.manual_seed(0)
    ours = Transformer(config)
    use_fused(ours)
    losses: dict[str, nn.Module] = {
        "ours": FastLoss(ours, precision=precision),
        "torch.nn.Transformer": common.WholeLoss(TorchTransformer(config), 0.1),
    }
    if importlib.util.find_spec("transformers"):
        losses["MarianMTModel"] = common.WholeLoss(Marian(config), 0.1)
    else:
        print("without MarianMTModel: pip install -r benchmarks/requirements.txt")
    train = partial(trainer, rounds=parts, precision=precision, cudnn=cudnn)
    trainers = {name: train(loss.to(device)) for name, loss in losses.items()}
    records = common.take_turns(trainers, rounds)

    rows = []
    for name in losses:
        rates = common.rates(records, name)
        speeds = [f"{rate:,.0f}" for rate in (statistics.median(rates), *sorted(rates))]
        lead = common.times_as_fast(records, "ours", name)
        rows.append([name, speeds[0], speeds[1], speeds[-1], f"{lead:.2f}"])
    header = ["training", "target tokens/s", "slowest", "fastest", "ours is x times"]
    print(common.table(header, rows))
    name = common.device_name(device)
    settings = {
        "size": size,
        "corpus": corpus,
        "device": name,
        "threads": threads,
        "max_tokens": max_tokens,
        "precision": precision,
        "cudnn": cudnn,
    }
    where = str(threads) if name == "cpu" else name
    ending = "-bf16" if precision == "bf16" else ""
    ending += "-cudnn" if cudnn else ""
    common.write_log(results, f"training-{size}-{where}{ending}", settings, records)


if __name__ == "__main__":
    common.command(main)
