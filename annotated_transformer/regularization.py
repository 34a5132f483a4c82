import torch.nn.functional as F
from torch import Tensor

from annotated_transformer.masks import PAD


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
