"""Record what the first page and the chapters show before the page's model is loaded.

They come from PyTorch, with the weights rounded as the page has them.
"""

import json
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.model_io import load_model
from annotated_transformer.transformer import Transformer, greedy_decode
from tools.chapters import ROOT
from tools.command import command_line
from tools.examples import EXAMPLES, Example
from tools.web_model import PRETRAINED, SHOWN, rounded_weights
from tools.what_if import record as record_what_if
from tools.what_if import rounded, token_name, token_names

RECORDED = ROOT / "book" / "site" / "recorded"
OUTPUT = RECORDED / "translations.json"
WHAT_IF = RECORDED / "what_if.json"

RIVALS = 5  # words shown with their shares at each step


@torch.no_grad()
def record(
    model: Transformer, tokenizer: Tokenizer, example: Example
) -> dict[str, Any]:
    """Return what the page shows of one translation; shares and weights with three decimals."""
    source = torch.tensor([[*tokenizer.encode(example.text), EOS]])
    tokens = [*greedy_decode(model, source)[0], EOS]
    target = torch.tensor([[BOS, *tokens[:-1]]])
    logits = model(source, target)[0]
    logits[:, [PAD, BOS]] = -torch.inf
    rivals = logits.softmax(dim=-1).topk(RIVALS)
    weights = attention_maps(model, source, target).cross[-1].mean(dim=0)
    steps = []
    for t, token in enumerate(tokens):
        words = [
            token_name(tokenizer, rival, t) for rival in rivals.indices[t].tolist()
        ]
        shares = rounded(rivals.values[t])
        step = {
            "token": token_name(tokenizer, token, t),
            "share": shares[0],  # the likeliest is written
            "text": tokenizer.decode(tokens[: t + 1]),
            "best": [[word, share] for word, share in zip(words, shares)],
            "look": rounded(weights[t]),
        }
        steps.append(step)
    names = token_names(tokenizer, source[0].tolist())
    shown = {"source": names, "steps": steps, "done": True}
    return example._asdict() | shown


def model_of_the_page(folder: Path = SHOWN) -> tuple[Transformer, Tokenizer]:
    """Return a model with its weights rounded as the page has them."""
    model, tokenizer = load_model(folder)
    weights = {
        name: torch.from_numpy(array) for name, array in rounded_weights(folder).items()
    }
    model.load_state_dict(weights)
    return model, tokenizer


def recordings() -> dict[str, list[dict[str, Any]]]:
    """Record all examples of the first page, by the name of their model."""
    recorded = {}
    for name, examples in EXAMPLES.items():
        model, tokenizer = model_of_the_page(PRETRAINED / name)
        recorded[name] = [record(model, tokenizer, example) for example in examples]
    return recorded


def main() -> None:
    """Write both files, one example or figure a line."""
    command_line("tools.recordings", __doc__).parse_args()
    models = []
    for name, examples in recordings().items():
        rows = [json.dumps(example, ensure_ascii=False) for example in examples]
        models.append(f'"{name}": [\n' + ",\n".join(rows) + "\n]")
    OUTPUT.write_text("{\n" + ",\n".join(models) + "\n}\n", encoding="utf-8")

    figures = record_what_if(*model_of_the_page())
    entries = [
        f'"{name}": {json.dumps(figure, ensure_ascii=False)}'
        for name, figure in figures.items()
    ]
    WHAT_IF.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
