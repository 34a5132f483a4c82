"""Record at which words the units of the first page's model fire, for "Look inside".

    python -m book.live.record deu-eng.zip

For every unit of every network: the tokens at which it fires most, in the mean over all their
occurrences in 10,000 sentences that the model has learned; in the decoder, those that come next.
`deu-eng.zip` is that of `tools.everyday`. It takes some minutes on one core, and writes units.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated_transformer import load_pretrained
from annotated_transformer.feed_forward import FeedForward
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import evaluating
from tools.everyday import tatoeba

OUTPUT = Path(__file__).with_name("units.json")
SENTENCES = 10_000
LEAST = 10  # occurrences of a token that counts
SHOWN = 4  # tokens a unit


def strongest(tokens: Tensor, hidden: Tensor, vocabulary_size: int) -> list[list[int]]:
    """Return the tokens at which each unit fires most; none at which it never does.

    The units `hidden` (T, d_ff) fired at `tokens` (T,).
    """
    sums = torch.zeros(vocabulary_size, hidden.size(1)).index_add_(0, tokens, hidden)
    counts = tokens.bincount(minlength=vocabulary_size)
    frequent = (counts >= LEAST).nonzero()[:, 0]
    means = sums[frequent] / counts[frequent, None]
    best = means.topk(SHOWN, dim=0)
    return [
        [int(frequent[row]) for row, mean in zip(rows, values) if mean > 0]
        for rows, values in zip(best.indices.T.tolist(), best.values.T.tolist())
    ]


def name(tokenizer: Tokenizer, token: int) -> str:
    """Return how a token reads: with a + where it goes on with a word, as in the page."""
    text = tokenizer.decode([token])
    if text.startswith(" ") or text[:1].isupper():
        return text.strip()
    return f"+{text}" if text else str(tokenizer.library.id_to_token(token))


def record(archive: Path) -> dict[str, list[list[str]]]:
    """Return the names of the strongest tokens of each unit, by network."""
    model, tokenizer = load_pretrained()
    fired: dict[str, list[Tensor]] = {}
    read: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}
    for module_name, module in model.named_modules():
        if isinstance(module, FeedForward):
            side, _, layer, _ = module_name.split(".")
            units = fired.setdefault(f"{side}.{layer}", [])

            def keep(_: object, inputs: Any, units: list[Tensor] = units) -> None:
                units.append(inputs[0][0])

            module.linear2.register_forward_pre_hook(keep)
    pairs = tatoeba(archive)
    with evaluating(model):
        for pair in pairs[:: len(pairs) // SENTENCES][:SENTENCES]:
            source = torch.tensor([*tokenizer.encode(pair.source), EOS])
            target = torch.tensor([BOS, *tokenizer.encode(pair.target), EOS])
            model(source[None], target[None, :-1])
            read["encoder"].append(source)
            read["decoder"].append(target[1:])
    recorded = {}
    for network, units in fired.items():
        tokens = torch.cat(read[network.partition(".")[0]])
        found = strongest(tokens, torch.cat(units), len(tokenizer))
        recorded[network] = [[name(tokenizer, one) for one in row] for row in found]
    return recorded


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m book.live.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("archive", type=Path, help="deu-eng.zip")
    recorded = record(parser.parse_args().archive)
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    OUTPUT.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
