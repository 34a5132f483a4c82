"""What the modules of the package compute of a sentence, for tests to compare a page with."""

import torch
from torch import nn

from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.layers import Residual
from annotated_transformer.multi_head_attention import MultiHeadAttention


@torch.no_grad()
def inputs_and_outputs(model, source, target):
    """What goes into each module of the package and what comes out, by name, without the batch."""
    seen = {}

    def hook(name):
        def see(module, args, output):
            seen[name] = (args[0][0], output[0])

        return see

    handles = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Residual | MultiHeadAttention | FeedForward)
    ]
    model(torch.tensor([source]), torch.tensor([target]))
    for handle in handles:
        handle.remove()
    return seen
