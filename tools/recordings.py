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
from tools.web_model import SHOWN, rounded_weights
from tools.what_if import record as record_what_if
from tools.what_if import rounded, token_name, token_names

RECORDED = ROOT / "book" / "site" / "recorded"
OUTPUT = RECORDED / "translations.json"
WHAT_IF = RECORDED / "what_if.json"

RIVALS = 5  # words shown with their shares at each step
EXAMPLES = {  # a sentence -> what to say of its translation
    "Weißt du, wo der Bahnhof ist?": "",
    "Sie hat mir nicht gesagt, dass sie krank ist.": "",
    "Ich stehe jeden Tag um sechs Uhr auf.": "",
    "Zwei Hunde spielen im Schnee.": "",
    "Wenn es morgen regnet, bleibe ich zu Hause.": "",
    "Den Mann beißt der Hund.": (
        "Wrong: the dog bites the man. German may put the object first, "
        "and says so only by the endings of “den” and “der”."
    ),
    "Das Buch, das du mir geliehen hast, habe ich noch nicht gelesen.": (
        "Wrong: “I haven’t read the book you lent me yet” is what it means. The object comes first "
        "in German, and the model keeps that order until it is lost."
    ),
    "Die Bundesregierung hat das Gesetz zum Schutz der Wälder verabschiedet.": (
        "Wrong: the federal government passed the law that protects the forests. These are words "
        "of the news, and the model has read how people talk."
    ),
}


@torch.no_grad()
def record(
    model: Transformer, tokenizer: Tokenizer, text: str, note: str
) -> dict[str, Any]:
    """Return what the page shows of one translation; shares and weights with three decimals."""
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
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
            "text": tokenizer.decode(tokens[: t + 1]),
            "best": [[word, share] for word, share in zip(words, shares)],
            "look": rounded(weights[t]),
        }
        steps.append(step)
    names = token_names(tokenizer, source[0].tolist())
    return {"text": text, "note": note, "source": names, "steps": steps, "done": True}


def model_of_the_page(folder: Path = SHOWN) -> tuple[Transformer, Tokenizer]:
    """Return a model with its weights rounded as the page has them."""
    model, tokenizer = load_model(folder)
    weights = {
        name: torch.from_numpy(array) for name, array in rounded_weights(folder).items()
    }
    model.load_state_dict(weights)
    return model, tokenizer


def recordings() -> list[dict[str, Any]]:
    """Record all examples of the first page."""
    model, tokenizer = model_of_the_page()
    return [record(model, tokenizer, text, note) for text, note in EXAMPLES.items()]


def main() -> None:
    """Write both files, one example or figure a line."""
    command_line("tools.recordings", __doc__).parse_args()
    rows = [json.dumps(row, ensure_ascii=False) for row in recordings()]
    OUTPUT.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")

    figures = record_what_if(*model_of_the_page())
    entries = [
        f'"{name}": {json.dumps(figure, ensure_ascii=False)}'
        for name, figure in figures.items()
    ]
    WHAT_IF.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
