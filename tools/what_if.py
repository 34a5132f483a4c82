"""Record what the chapters' figures that ask "what if" show before the model is loaded.

Everything comes from PyTorch, with the weights rounded as the page has them. Which sentence, which
head, which order is shown is chosen by rules, so that another model gets its own pictures.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import Any, NamedTuple

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
EXTRA = 50  # a translation has so many tokens more than its source, at most

WORD = "snow"
NEAREST = 10  # neighbors of the word

BEAM = 3
ALPHA = 0.6  # of the length penalty
DROPPED = 2  # hypotheses shown in each round beside those that go on
CLEAR = 0.02  # the best score is ahead by so much, so that the page finds the same one

Figure = dict[str, Any]

# How the tokenizers library writes bytes: those that have a sign of their own as that sign, the
# others as the signs from 256 on
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
UNPRINTABLE = [byte for byte in range(256) if byte not in PRINTABLE]
SIGNS = {chr(byte): byte for byte in PRINTABLE}
SIGNS |= {chr(256 + number): byte for number, byte in enumerate(UNPRINTABLE)}


def token_name(tokenizer: Tokenizer, token: int, position: int) -> str:
    """Return how a token reads, as the page's engine has it."""
    text = tokenizer.decode([token])
    if "\ufffd" in text:  # half a letter
        signs = str(tokenizer.library.id_to_token(token))
        return " ".join(f"0x{SIGNS[sign]:x}" for sign in signs)
    if token in SPECIAL:
        return SPECIAL[token]
    if text.startswith(" "):
        return text[1:] or "␣"
    return f"+{text}" if position else text


def token_names(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return how the tokens of a sentence read."""
    return [token_name(tokenizer, token, t) for t, token in enumerate(tokens)]


class Recorder:
    """A model and its tokenizer, asked as the page asks them."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def read(self, text: str) -> Tensor:
        """Return the tokens (1, S) of a source."""
        return torch.tensor([[*self.tokenizer.encode(text), EOS]])

    def write(self, source: Tensor) -> list[int]:
        """Return the greedy translation with its `</s>`."""
        return [*greedy_decode(self.model, source)[0], EOS]

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return how the tokens of a sentence read."""
        return token_names(self.tokenizer, tokens)

    def text(self, tokens: Sequence[int]) -> str:
        """Return what the tokens spell."""
        return self.tokenizer.decode([token for token in tokens if token != EOS])

    def logits(
        self, source: Tensor, target: Sequence[int], causal: bool = True
    ) -> Tensor:
        """Return the logits (T, |V|) after each token of a target."""
        tokens = torch.tensor([target])
        if causal:
            return self.model(source, tokens)[0]
        all_visible = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        memory = self.model.encode(source)
        x = self.model.embed(tokens)
        x = self.model.decoder(x, memory, all_visible, all_visible)
        return self.model.embedding.logits(x)[0]

    def probabilities(
        self, source: Tensor, target: Sequence[int], causal: bool = True
    ) -> Tensor:
        """Return the probabilities (T, |V|) of the next word; `<pad>` and `<s>` are none."""
        logits = self.logits(source, target, causal)
        logits[:, [PAD, BOS]] = -torch.inf
        return logits.softmax(dim=-1)


def rounded(values: Tensor) -> Any:
    """Return numbers with three decimals, as lists."""
    if values.ndim == 0:
        return round(values.item(), 3)
    return [rounded(row) for row in values]


# --- Attention maps: which head would be missed? ---


class Silenced(NamedTuple):
    """What comes of a translation without one head of cross-attention."""

    loss: float  # of the usual translation, summed over its tokens
    layer: int
    head: int
    tokens: list[int]


def silence_each_head(
    recorder: Recorder, source: Tensor, usual: list[int]
) -> Iterator[Silenced]:
    """Translate without each head of cross-attention in turn."""
    target = [BOS, *usual[:-1]]
    for layer in range(recorder.model.config.layers):
        for head in range(recorder.model.config.heads):
            with without_head(recorder.model, "cross", layer, head):
                tokens = recorder.write(source)
                probabilities = recorder.probabilities(source, target)
            log_likelihoods = probabilities.log()[range(len(usual)), usual]
            yield Silenced(-log_likelihoods.sum().item(), layer, head, tokens)


def record_maps(recorder: Recorder) -> Figure:
    """The head of cross-attention that a translation would miss most, and what comes without it."""
    for text in SENTENCES:
        source = recorder.read(text)
        usual = recorder.write(source)
        trials = silence_each_head(recorder, source, usual)
        changes = [trial for trial in trials if trial.tokens != usual]
        if changes:
            break
    _, layer, head, tokens = max(changes)
    target = torch.tensor([[BOS, *tokens[:-1]]])
    with without_head(recorder.model, "cross", layer, head):
        weights = attention_maps(recorder.model, source, target).cross[layer, head]
    return {
        "text": text,
        "start": {"kind": "cross", "layer": layer, "head": head},
        "usual": recorder.text(usual),
        "changed": recorder.text(tokens),
        "read": recorder.names(source[0].tolist()),
        "written": recorder.names(tokens),
        "weights": rounded(weights),
    }


# --- Positions: does the order of words matter? ---


def shuffled(text: str) -> str:
    """Return the words in another order; the first, whose token has no space before it, stays."""
    first, *words = text.split()
    Random(0).shuffle(words)
    return " ".join([first, *words])


def translated(recorder: Recorder, text: str) -> Figure:
    """A translation with the mean cross-attention of the top layer."""
    source = recorder.read(text)
    tokens = recorder.write(source)
    target = torch.tensor([[BOS, *tokens[:-1]]])
    weights = attention_maps(recorder.model, source, target).cross[-1].mean(dim=0)
    return {
        "text": recorder.text(tokens),
        "read": recorder.names(source[0].tolist()),
        "written": recorder.names(tokens),
        "weights": rounded(weights),
    }


def translated_without_positions(recorder: Recorder, text: str) -> Figure:
    """The same by a model that adds no positions to its embeddings."""
    hook = recorder.model.positions.register_forward_hook(
        lambda module, inputs, output: inputs[0]
    )
    translation = translated(recorder, text)
    hook.remove()
    return translation


def record_positions(recorder: Recorder) -> Figure:
    """A sentence and its words in another order, with positions and without."""
    for text in SENTENCES:
        orders = []
        outputs = set()
        for order in (text, shuffled(text)):
            pair = [
                translated(recorder, order),
                translated_without_positions(recorder, order),
            ]
            orders.append({"text": order, "pair": pair})
            outputs |= {translation["text"] for translation in pair}
        # Without positions, both orders are the same to the model; with them, they are not
        if len(outputs) == 3:
            break
    return {"text": text, "orders": orders}


# --- Masks: what if the future is in view? ---


def write_without_mask(recorder: Recorder, source: Tensor) -> list[int]:
    """Return the greedy translation (from `<s>` on) by a decoder that sees all it has written."""
    target = [BOS]
    while target[-1] != EOS and len(target) <= source.size(1) + EXTRA:
        probabilities = recorder.probabilities(source, target, causal=False)
        target.append(int(probabilities[-1].argmax()))
    return target


def record_masks(recorder: Recorder) -> Figure:
    """The share of each word of a translation with the causal mask and without, in two ways."""
    text = SENTENCES[0]
    source = recorder.read(text)
    tokens = recorder.write(source)
    target = [BOS, *tokens[:-1]]
    masked = recorder.probabilities(source, target)
    in_view = recorder.probabilities(source, target, causal=False)
    prefixes = [target[: t + 1] for t in range(len(target))]
    unmasked = torch.stack(
        [recorder.probabilities(source, p, causal=False)[-1] for p in prefixes]
    )
    ways = torch.stack([masked, unmasked, in_view])
    shares = rounded(ways[:, range(len(tokens)), tokens].T)
    words = recorder.names(tokens)
    return {
        "text": text,
        "usual": recorder.text(tokens),
        "freely": recorder.text(write_without_mask(recorder, source)[1:]),
        "rows": [{"word": word, "shares": row} for word, row in zip(words, shares)],
    }


# --- Embeddings: which words are neighbors? ---


def record_neighbors(recorder: Recorder) -> Figure:
    """The rows of the embedding matrix that are nearest to that of a word."""
    tokenizer = recorder.tokenizer
    pieces = tokenizer.encode(f" {WORD}")
    directions = F.normalize(recorder.model.embedding.weight, dim=1)
    cosines = directions @ directions[pieces[0]]
    excluded = [PAD, BOS, EOS, UNK, pieces[0]]
    cosines[excluded] = -torch.inf
    neighbors = cosines.argsort(descending=True, stable=True)[: -len(excluded)]
    nearest = [
        [token_name(tokenizer, token, 1), rounded(cosines[token])]
        for token in neighbors[:NEAREST].tolist()
    ]
    return {
        "text": WORD,
        "pieces": [token_name(tokenizer, piece, 1) for piece in pieces],
        "nearest": nearest,
        "median": rounded(cosines[neighbors[len(neighbors) // 2]]),
    }


# --- Search: what does a beam find that greedy search does not? ---


class Candidate(NamedTuple):
    """The beginning of a translation in a beam search."""

    tokens: list[int]  # from <s> on
    total: float  # the sum of log-probabilities
    parent: int  # its row in the round before


def grow(
    recorder: Recorder, source: Tensor, running: list[tuple[int, Candidate]], count: int
) -> list[Candidate]:
    """Return the likeliest words after each hypothesis, `count` of each; the best come first."""
    candidates = []
    for row, hypothesis in running:
        logits = recorder.logits(source, hypothesis.tokens)[-1]
        log_p = logits.log_softmax(dim=-1)
        log_p[[PAD, BOS]] = -torch.inf
        best = log_p.topk(count)
        for gain, token in zip(best.values.tolist(), best.indices.tolist()):
            tokens = [*hypothesis.tokens, token]
            candidates.append(Candidate(tokens, hypothesis.total + gain, row))
    return sorted(candidates, key=lambda candidate: -candidate.total)


def candidate_score(candidate: Candidate) -> float:
    """Return the total after the length penalty."""
    return candidate.total / length_penalty(len(candidate.tokens) - 1, ALPHA)


def describe(
    recorder: Recorder, candidate: Candidate, ended: bool, survives: bool
) -> Figure:
    """Return a box of the tree."""
    token = candidate.tokens[-1]
    length = len(candidate.tokens) - 1
    return {
        "word": token_name(recorder.tokenizer, token, length - 1),
        "text": recorder.text(candidate.tokens[1:]),
        "length": length,
        "total": round(candidate.total, 4),
        "from": candidate.parent,
        "score": round(candidate_score(candidate), 4),
        "ended": ended,
        "kept": survives,
    }


def rounds(recorder: Recorder, source: Tensor) -> Iterator[list[Figure]]:
    """Yield the candidates of each round of a beam search, winners first and two that were dropped.

    Chapter 19 does the same without keeping what was dropped, and faster.
    """
    limit = source.size(1) + EXTRA
    width = BEAM  # a hypothesis that ends takes its place in the beam along
    best_score = -torch.inf
    running = [(0, Candidate([BOS], 0.0, 0))]
    while running:
        candidates = grow(recorder, source, running, width + DROPPED)
        running = []
        rows = []
        endings = 0
        for number, candidate in enumerate(candidates[: width + DROPPED]):
            at_end = candidate.tokens[-1] == EOS or len(candidate.tokens) > limit
            survives = number < width
            ended = survives and at_end
            rows.append(describe(recorder, candidate, ended, survives))
            if ended:
                endings += 1
                best_score = max(best_score, candidate_score(candidate))
            elif survives:
                running.append((number, candidate))
        yield rows
        width -= endings
        # No hypothesis can end with more than it has now, at the mildest penalty
        if running and running[0][1].total / length_penalty(limit, ALPHA) <= best_score:
            return


def record_search(recorder: Recorder) -> Figure:
    """The tree of a beam search that finds something better than greedy search does."""
    for text in SENTENCES:
        source = recorder.read(text)
        tree = list(rounds(recorder, source))
        endings = [row for row in chain.from_iterable(tree) if row["ended"]]
        best, *runners_up = sorted(endings, key=lambda row: -row["score"])
        is_clear = not runners_up or best["score"] - runners_up[0]["score"] >= CLEAR
        greedy = recorder.text(recorder.write(source))
        if is_clear and best["text"] != greedy:
            break
    return {"text": text, "start": {"beam": BEAM, "alpha": ALPHA}, "rounds": tree}


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
