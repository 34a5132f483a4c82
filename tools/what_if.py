"""Record what the chapters' figures that ask "what if" show before the model is loaded.

Everything comes from PyTorch, with the weights rounded as the page has them. Which sentence, which
head, which order is shown is chosen by rules, so that another model gets its own pictures.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.attention_maps import attention_maps, without_head
from annotated_transformer.decoding import length_penalty
from annotated_transformer.masks import BOS, EOS, PAD, UNK
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.transformer import Transformer, greedy_decode

SENTENCES = [
    "Zwei Hunde spielen im Schnee.",
    "Eine Frau mit einem Hund sieht ein Kind.",
    "Ein alter Mann mit Hut sieht eine junge Frau.",
    "Ein Mann sitzt auf einer Bank und liest ein Buch.",
    "Drei Kinder und zwei Hunde spielen am Strand.",
    "Der alte Mann hilft dem kleinen Jungen.",
    "Zwei Männer stehen neben einem Auto und reden miteinander.",
    "Die Kinder warten vor der Schule auf den Bus.",
    "Ich habe heute leider keine Zeit.",
    "Wann fährt der nächste Zug nach Hamburg?",
    "Er hat am Wochenende seine Eltern besucht.",
    "Ich weiß nicht, warum er so spät gekommen ist.",
]
WORD, NEAREST = "snow", 10
BEAM, ALPHA, RIVALS = 3, 0.6, 2

Figure = dict[str, Any]


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


class Recorder:
    """A model and its tokenizer, asked as the page asks them."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    def read(self, text: str) -> Tensor:
        """Return the tokens (1, S) of a source."""
        return torch.tensor([[*self.tokenizer.encode(text), EOS]])

    def write(self, source: Tensor) -> list[int]:
        """Return the greedy translation with its `</s>`."""
        return [*greedy_decode(self.model, source)[0], EOS]

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return how the tokens of a sentence read."""
        return [token_name(self.tokenizer, token, place) for place, token in enumerate(tokens)]

    def text(self, tokens: Sequence[int]) -> str:
        """Return what the tokens spell."""
        return self.tokenizer.decode([token for token in tokens if token != EOS])

    def logits(self, source: Tensor, target: Sequence[int], causal: bool = True) -> Tensor:
        """Return the logits (T, |V|) after each token of a target."""
        read = torch.tensor([target])
        if causal:
            return self.model(source, read)[0]
        everywhere = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        memory, words = self.model.encode(source), self.model.embed(read)
        decoder, embedding = self.model.decoder, self.model.embedding
        return embedding.logits(decoder(words, memory, everywhere, everywhere))[0]

    def shares(self, *asked: Any, **options: Any) -> Tensor:
        """Return the shares (T, |V|) of all words but those that are none."""
        logits = self.logits(*asked, **options)
        logits[:, [PAD, BOS]] = -torch.inf
        return logits.softmax(dim=-1)


def rounded(values: Tensor) -> Any:
    """Return numbers with three decimals, as lists."""
    return [rounded(row) for row in values] if values.ndim else round(values.item(), 3)


def record_maps(recorder: Recorder) -> Figure:
    """The head of cross-attention that a translation would miss most, and what comes without it."""
    for text in SENTENCES:
        source = recorder.read(text)
        usual = recorder.write(source)
        target, best = [BOS, *usual[:-1]], (0.0, 0, 0, usual)
        for layer in range(recorder.model.config.layers):
            for head in range(recorder.model.config.heads):
                with without_head(recorder.model, "cross", layer, head):
                    changed = recorder.write(source)
                    shares = recorder.shares(source, target)
                lost = -shares.log()[range(len(usual)), usual].sum().item()
                if changed != usual:
                    best = max(best, (lost, layer, head, changed))
        if best[0]:
            break
    _, layer, head, changed = best
    with without_head(recorder.model, "cross", layer, head):
        read = torch.tensor([[BOS, *changed[:-1]]])
        weights = attention_maps(recorder.model, source, read).cross[layer, head]
    return {
        "text": text,
        "start": {"kind": "cross", "layer": layer, "head": head},
        "usual": recorder.text(usual),
        "changed": recorder.text(changed),
        "read": recorder.names(source[0].tolist()),
        "written": recorder.names(changed),
        "weights": rounded(weights),
    }


def shuffled(text: str) -> str:
    """Return the words in another order; the first, whose token has no space before it, stays."""
    first, *others = text.split()
    Random(0).shuffle(others)
    return " ".join([first, *others])


def translated(recorder: Recorder, text: str) -> Figure:
    """A translation with the mean cross-attention of the top layer."""
    source = recorder.read(text)
    tokens = recorder.write(source)
    target = torch.tensor([[BOS, *tokens[:-1]]])
    weights = attention_maps(recorder.model, source, target).cross[-1].mean(dim=0)
    names = {"read": recorder.names(source[0].tolist()), "written": recorder.names(tokens)}
    return {"text": recorder.text(tokens), **names, "weights": rounded(weights)}


def record_positions(recorder: Recorder) -> Figure:
    """A sentence and its words in another order, with positions and without."""
    positions = recorder.model.positions
    for text in SENTENCES:
        orders: list[Figure] = [{"text": order, "pair": []} for order in (text, shuffled(text))]
        for order in orders:
            order["pair"].append(translated(recorder, order["text"]))
            off = positions.register_forward_hook(lambda module, inputs, output: inputs[0])
            order["pair"].append(translated(recorder, order["text"]))
            off.remove()
        distinct = {translation["text"] for order in orders for translation in order["pair"]}
        if len(distinct) == 3:  # without positions, both orders are the same to the model
            break
    return {"text": text, "orders": orders}


def record_masks(recorder: Recorder) -> Figure:
    """The share of each word of a translation with the causal mask and without, in two ways."""
    text = SENTENCES[0]
    source = recorder.read(text)
    tokens = recorder.write(source)
    target = [BOS, *tokens[:-1]]
    in_view = recorder.shares(source, target, causal=False)
    alone = [recorder.shares(source, target[: t + 1], causal=False)[-1] for t in range(len(target))]
    ways = torch.stack([recorder.shares(source, target), torch.stack(alone), in_view])
    shares = rounded(ways[:, range(len(tokens)), tokens].T)
    freely = [BOS]
    while freely[-1] != EOS and len(freely) <= source.size(1) + 50:
        freely.append(int(recorder.shares(source, freely, causal=False)[-1].argmax()))
    rows = [{"word": word, "shares": row} for word, row in zip(recorder.names(tokens), shares)]
    return {
        "text": text,
        "usual": recorder.text(tokens),
        "freely": recorder.text(freely[1:]),
        "rows": rows,
    }


def record_neighbors(recorder: Recorder) -> Figure:
    """The rows of the embedding matrix that are nearest to that of a word."""
    pieces = recorder.tokenizer.encode(f" {WORD}")
    directions = F.normalize(recorder.model.embedding.weight, dim=1)
    cosines = directions @ directions[pieces[0]]
    cosines[[PAD, BOS, EOS, UNK, pieces[0]]] = -torch.inf
    others = cosines.argsort(descending=True, stable=True)[: len(cosines) - 5]
    name = recorder.tokenizer
    return {
        "text": WORD,
        "pieces": [token_name(name, piece, 1) for piece in pieces],
        "nearest": [
            [token_name(name, token, 1), rounded(cosines[token])]
            for token in others[:NEAREST].tolist()
        ],
        "median": rounded(cosines[others[len(others) // 2]]),
    }


def rounds(recorder: Recorder, source: Tensor) -> Iterator[list[Figure]]:
    """Yield the candidates of each round of a beam search, winners first and two that were dropped.

    Chapter 19 does the same without keeping what was dropped, and faster.
    """
    limit, free = source.size(1) + 50, BEAM
    running, best = [([BOS], 0.0, 0)], -torch.inf
    while running:
        grown = []
        for target, total, place in running:
            shares = recorder.logits(source, target)[-1].log_softmax(dim=-1)
            shares[[PAD, BOS]] = -torch.inf
            for share, token in zip(*(part.tolist() for part in shares.topk(free + RIVALS))):
                grown.append(([*target, token], total + share, place))
        length = len(grown[0][0]) - 1
        shown, running, open_places = list[Figure](), [], free
        grown.sort(key=lambda candidate: -candidate[1])
        for place, (tokens, total, parent) in enumerate(grown[: free + RIVALS]):
            kept = place < open_places
            ended = kept and (tokens[-1] == EOS or length >= limit)
            score = total / length_penalty(length, ALPHA)
            shown.append(
                {
                    "word": token_name(recorder.tokenizer, tokens[-1], length - 1),
                    "text": recorder.text(tokens[1:]),
                    "length": length,
                    "total": round(total, 4),
                    "from": parent,
                    "score": round(score, 4),
                    "ended": ended,
                    "kept": kept,
                }
            )
            if ended:
                free, best = free - 1, max(best, score)
            elif kept:
                running.append((tokens, total, place))
        yield shown
        if running and running[0][1] / length_penalty(limit, ALPHA) <= best:
            return


def record_search(recorder: Recorder) -> Figure:
    """The tree of a beam search that finds something better than greedy search does."""
    for text in SENTENCES:
        source = recorder.read(text)
        found = list(rounds(recorder, source))
        endings = [row for step in found for row in step if row["ended"]]
        scores = sorted((row["score"] for row in endings), reverse=True)
        best = max(endings, key=lambda row: row["score"])
        clear = len(scores) == 1 or scores[0] - scores[1] >= 0.02  # as printed, and to the page
        if clear and best["text"] != recorder.text(recorder.write(source)):
            break
    return {"text": text, "start": {"beam": BEAM, "alpha": ALPHA}, "rounds": found}


@torch.no_grad()
def record(model: Transformer, tokenizer: Tokenizer) -> dict[str, Figure]:
    """Record all figures, by name."""
    recorder = Recorder(model, tokenizer)
    return {
        "maps": record_maps(recorder),
        "positions": record_positions(recorder),
        "masks": record_masks(recorder),
        "neighbors": record_neighbors(recorder),
        "search": record_search(recorder),
    }
