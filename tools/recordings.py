"""Record the translations that the first page shows before its model is loaded.

They come from PyTorch, with the weights rounded as the page has them.

usage: python -m tools.recordings
"""

import json
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.model_io import load_model
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer, greedy_decode
from tools.chapters import ROOT
from tools.web_model import SHOWN, rounded_weights

OUTPUT = ROOT / "book" / "recordings.json"

EXAMPLES = {  # a sentence -> what to say of its translation
    "Zwei Hunde spielen im Schnee.": "",
    "Eine Frau im roten Kleid fährt auf einem Fahrrad durch die Stadt.": "",
    "Ein Feuerwehrmann klettert auf eine Leiter.": "",
    "Ein Mann repariert ein Elektronenmikroskop.": (
        "Not quite: it is an electron microscope. The model has never met the word, "
        "which falls into nine pieces, and makes do with them."
    ),
    "Den Mann beißt der Hund.": (
        "Wrong: the dog bites the man. German may put the object first, "
        "and says so only by the endings of “den” and “der”."
    ),
    "Der Hund rennt nicht.": (
        "Wrong: “nicht” means “not”. Captions say what a picture shows, "
        "so the model has seldom met the word."
    ),
    "zwei hunde spielen im schnee": (
        "Wrong: without capitals the nouns fall into other subwords, "
        "which the model has seldom seen."
    ),
    "Ich habe heute keine Zeit.": (
        "Wrong: “I have no time today” is no caption, and captions are all that it has read."
    ),
}


VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in VISIBLE]  # their signs are those from 256 on
SIGNS = {chr(byte): byte for byte in VISIBLE} | {chr(256 + n): b for n, b in enumerate(OTHERS)}


def token_name(tokenizer: Tokenizer, token: int, place: int) -> str:
    """Return how a token reads, as the page's engine has it."""
    text = tokenizer.decode([token])
    if "\ufffd" in text:  # half a letter
        return " ".join(f"0x{SIGNS[sign]:x}" for sign in str(tokenizer.library.id_to_token(token)))
    joined = f"+{text}" if place else text
    return SPECIAL.get(token) or (text[1:] or "␣" if text.startswith(" ") else joined)


@torch.no_grad()
def record(model: Transformer, tokenizer: Tokenizer, text: str, note: str) -> dict[str, Any]:
    """Return what the page shows of one translation; shares and weights with three decimals."""
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    tokens = [*greedy_decode(model, source)[0], EOS]
    target = torch.tensor([[BOS, *tokens[:-1]]])
    logits = model(source, target)[0]
    logits[:, [PAD, BOS]] = -torch.inf
    shares, looks = logits.softmax(dim=-1), attention_maps(model, source, target).cross[-1].mean(0)
    steps = []
    for place, token in enumerate(tokens):
        best = zip(*(part.tolist() for part in shares[place].topk(5)))
        step = {
            "token": token_name(tokenizer, token, place),
            "text": tokenizer.decode(tokens[: place + 1]),
            "best": [[token_name(tokenizer, i, place), round(share, 3)] for share, i in best],
            "look": [round(weight, 3) for weight in looks[place].tolist()],
        }
        steps.append(step)
    names = [token_name(tokenizer, token, place) for place, token in enumerate(source[0].tolist())]
    return {"text": text, "note": note, "source": names, "steps": steps, "done": True}


def recordings(folder: Path = SHOWN) -> list[dict[str, Any]]:
    """Record all examples."""
    model, tokenizer = load_model(folder)
    weights = {name: torch.from_numpy(array) for name, array in rounded_weights(folder).items()}
    model.load_state_dict(weights)
    return [record(model, tokenizer, text, note) for text, note in EXAMPLES.items()]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in recordings())
    OUTPUT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
