"""Record what makes each unit of the page's networks fire, over sentences that it has learned.

For every unit of every layer: the tokens at which it fires most, in the mean over all their
occurrences; in the decoder, the tokens that come next. It takes some minutes on one core.

`deu-eng.zip` is that of `tools.everyday`, Tatoeba's pairs.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from annotated_transformer.data import Pair
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, evaluating
from tools.command import command_line
from tools.everyday import tatoeba
from tools.recordings import RECORDED, model_of_the_page
from tools.what_if import token_name

OUTPUT = RECORDED / "units.json"
PAIRS = 10_000
LEAST = 10  # occurrences of a token that counts
SHOWN = 4  # tokens a unit


class Firing:
    """How much the units of one network fire in sum, by token."""

    def __init__(self, units: int, vocabulary_size: int) -> None:
        self.sums = torch.zeros(vocabulary_size, units)
        self.counts = torch.zeros(vocabulary_size)

    def add(self, tokens: Tensor, hidden: Tensor) -> None:
        """Add the units (T, d_ff) that fired at tokens (T,)."""
        self.sums.index_add_(0, tokens, hidden)
        self.counts.index_add_(0, tokens, torch.ones(len(tokens)))

    def strongest(self) -> list[list[int]]:
        """Return the tokens of each unit at which it fires most; none at which it never does."""
        frequent = self.counts >= LEAST
        means = self.sums[frequent] / self.counts[frequent, None]
        tokens = frequent.nonzero()[:, 0]
        best = means.topk(min(SHOWN, len(means)), dim=0)
        return [
            [int(tokens[row]) for row, mean in zip(rows, values) if mean > 0]
            for rows, values in zip(best.indices.T.tolist(), best.values.T.tolist())
        ]


def network_names(model: Transformer) -> dict[str, str]:
    """Return the name of each network in the page, "encoder.0", by its name in the package."""
    names = {}
    for name, module in model.named_modules():
        if isinstance(module, FeedForward):
            side, _, layer, _ = name.split(".")
            names[name] = f"{side}.{layer}"
    return names


def named(tokenizer: Tokenizer, token: int) -> str:
    """Return how a token reads; with a capital and no space before it, it began a sentence."""
    began = tokenizer.decode([token])[:1].isupper()
    return token_name(tokenizer, token, 0 if began else 1)


def record(
    model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]
) -> dict[str, list[list[str]]]:
    """Return the names of the strongest tokens of each unit, by network."""
    config = model.config
    networks = network_names(model)
    firing = {
        page: Firing(config.d_ff, config.vocabulary_size) for page in networks.values()
    }
    hidden = {}
    modules = dict(model.named_modules())
    for name, page in networks.items():

        def keep(module: object, args: tuple[Tensor], page: str = page) -> None:
            hidden[page] = args[0][0]

        modules[name].linear2.register_forward_pre_hook(keep)
    with evaluating(model):
        for pair in pairs:
            source = torch.tensor([*tokenizer.encode(pair.source), EOS])
            target = torch.tensor([BOS, *tokenizer.encode(pair.target), EOS])
            model(source[None], target[None, :-1])
            for page, units in hidden.items():
                tokens = source if page.startswith("encoder") else target[1:]
                firing[page].add(tokens, units)
    return {
        page: [
            [named(tokenizer, token) for token in tokens]
            for tokens in found.strongest()
        ]
        for page, found in firing.items()
    }


def main() -> None:
    """Write the file, one network a line."""
    parser = command_line("tools.units", __doc__)
    parser.add_argument("archive", type=Path, help="deu-eng.zip")
    arguments = parser.parse_args()
    pairs = tatoeba(arguments.archive)
    chosen = pairs[:: len(pairs) // PAIRS][:PAIRS]
    recorded = record(*model_of_the_page(), chosen)
    entries = [
        f'"{name}": {json.dumps(units, ensure_ascii=False, separators=(",", ":"))}'
        for name, units in recorded.items()
    ]
    OUTPUT.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
