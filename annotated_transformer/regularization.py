import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.masks import PAD
from annotated_transformer.transformer import Transformer


def label_smoothed_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.1) -> Tensor:
    """Cross-entropy with smoothed labels in nats, summed over real tokens (section 5.4).

    Takes logits (..., |V|) and labels (...); labels that are PAD are ignored. Raises ValueError
    unless 0 <= label_smoothing < 1.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be from 0 to below 1, not {label_smoothing}")
    return F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(),
        ignore_index=PAD, label_smoothing=label_smoothing, reduction="sum",
    )  # fmt: skip


class SmoothedLoss(nn.Module):
    """The label-smoothed loss of a batch in nats, summed over real target tokens (section 5.4)."""

    precision = "fp32"

    def __init__(self, model: Transformer, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, 1:]."""
        states = self.model.decode(target[:, :-1], self.model.encode(source), source)
        labels = target[:, 1:]
        real = labels != PAD
        logits = self.model.embedding.logits(states[real])
        return label_smoothed_loss(logits, labels[real], self.label_smoothing)
