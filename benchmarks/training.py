"""Train three Transformers of one size on the same batches; report useful target tokens a second.

    python benchmarks/training.py --size small --threads 2

The systems are this book's model and loss, torch.nn.Transformer, and MarianMTModel of Hugging Face
(if transformers is installed). All share one table for source, target and output, use fused Adam,
and take the token-budget batches of chapter 15. They take turns, so noise hits all of them alike.
"""

import math
from collections.abc import Callable
from itertools import islice

import torch
import torch.nn.functional as F
from common import (
    SIZES,
    arguments,
    count,
    encoded,
    has_transformers,
    marian,
    ours,
    summary,
    table,
    take_turns,
    write_log,
)
from torch import Tensor, nn

from annotated_transformer.batching import Batch, batches
from annotated_transformer.masks import PAD
from annotated_transformer.positional_encoding import SinusoidalPositions
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.transformer import TransformerConfig


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with what it lacks: one shared table, positions, dropout on both."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(c.vocabulary_size, c.d_model)
        nn.init.normal_(self.table.weight, std=c.d_model**-0.5)
        self.scale, self.dropout = math.sqrt(c.d_model), nn.Dropout(c.dropout)
        self.positions = SinusoidalPositions(c.d_model, c.max_length)
        self.stacks = nn.Transformer(
            c.d_model, c.heads, c.layers, c.layers, c.d_ff, c.dropout, batch_first=True
        )
        for module in self.stacks.modules():  # dropout only where the paper has it
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = 0.0

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.positions(self.table(tokens) * self.scale))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == PAD
        future = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        states = self.stacks(
            self.embed(source),
            self.embed(target),
            tgt_mask=future,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(states, self.table.weight)


def builtin_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own smoothed cross-entropy, summed, and the number of real tokens."""
    loss = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=0.1,
        reduction="sum",
    )
    return loss, (labels != PAD).sum()


def trainer(
    model: nn.Module,
    predict: Callable[[Tensor, Tensor], Tensor],
    criterion: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    rounds: list[list[Batch]],
) -> Callable[[int], int]:
    """Return what trains a model on the batches of one round and counts their target tokens."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    model.train()

    def turn(number: int) -> int:
        for source, target in rounds[number]:
            loss, tokens = criterion(predict(source, target[:, :-1]), target[:, 1:])
            optimizer.zero_grad()
            (loss / tokens).backward()
            optimizer.step()
        return sum(count(batch.target[:, 1:]) for batch in rounds[number])

    return turn


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a batch, on either side")
    parser.add_argument("--batches", type=int, default=4, help="that a turn takes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    examples = encoded(options.corpus, "train", SIZES[options.size]["vocabulary_size"])
    stream = batches(examples, options.max_tokens, seed=0, epoch=0)
    rounds = [list(islice(stream, options.batches)) for _ in range(options.rounds + 1)]

    model = ours(options.size)
    rival = TorchTransformer(model.config)
    models = {"ours": model, "torch.nn.Transformer": rival}
    systems = {
        "ours": trainer(model, model, label_smoothed_loss, rounds),
        "torch.nn.Transformer": trainer(rival, rival, builtin_loss, rounds),
    }
    if has_transformers():
        hugging = models["MarianMTModel"] = marian(model.config)

        def predict(source: Tensor, target: Tensor) -> Tensor:
            mask = (source != PAD).long()
            return hugging(
                input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False
            ).logits

        systems["MarianMTModel"] = trainer(hugging, predict, builtin_loss, rounds)

    rates, records = take_turns(systems, options.rounds, options.cpu_time)
    kept = [batch for turn in rounds[1:] for batch in turn]
    useful = sum(count(b.target[:, 1:]) for b in kept) / sum(b.target[:, 1:].numel() for b in kept)
    shown = {**SIZES[options.size], "threads": options.threads, "max_tokens": options.max_tokens}
    print(", ".join(f"{key} {value}" for key, value in shown.items()), f"useful {useful:.1%}")
    sizes = {
        name: sum(p.numel() for p in made.parameters() if p.requires_grad)
        for name, made in models.items()
    }
    rows = [[*row, f"{sizes[row[0]]:,}"] for row in summary(rates, first="ours")]
    header = ["training", "target tokens/s", "quartiles", "ours is x times", "parameters"]
    print(table(header, rows))
    settings = {"benchmark": "training", "size": options.size, "corpus": options.corpus, **shown}
    settings["clock"] = "processor" if options.cpu_time else "wall"
    write_log(options.results, f"training-{options.size}-{options.threads}", settings, records)


if __name__ == "__main__":
    main()
