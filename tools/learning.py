"""Train the small translator that chapter 18 shows while it learns, and keep it at seven steps.

The checkpoints, rounded as `annotated_transformer.page` packs them, become a script of the site;
what they make of the examples is recorded. It takes about a minute on one core.

usage: python -m tools.learning
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch.optim import Adam

from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.batching import EncodedCorpus, batches, encode_pairs
from annotated_transformer.data import Pair, words
from annotated_transformer.decoding import translate
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.page import pack
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import training_step, validation_loss
from annotated_transformer.transformer import Transformer, TransformerConfig, greedy_decode
from tools.web_model import ROOT, unpacked
from tools.what_if import token_name

SCRIPT = ROOT / "book" / "assets" / "checkpoints.js"  # each model as a page has it
OUTPUT = ROOT / "book" / "learning.json"

STEPS = (0, 100, 200, 350, 600, 1000, 1500)
SHAPE = {"layers": 2, "d_model": 40, "d_ff": 96, "heads": 4, "dropout": 0.0, "max_length": 128}
MAX_TOKENS, WARMUP, LR_SCALE = 512, 200, 0.4
PAIRS, HELD_OUT, TRANSLATED, VOCABULARY = 10_500, 500, 200, 500
EXTRA = 8  # a translation has so many tokens more than its source, at most
EXAMPLES = (
    "Gestern hat der Lehrer das Buch nicht gesucht.",
    "Der Mann lacht, weil der Vogel schläft.",
    "Die Frau gibt dem Kind einen Apfel.",
    "Den Hund jagt die Katze.",
)


@cache
def read_pairs() -> tuple[list[Pair], list[Pair]]:
    """Return pairs to learn from, and pairs that are put aside."""
    pairs = grammar(PAIRS)
    return pairs[HELD_OUT:], pairs[:HELD_OUT]


def learn(last: int = STEPS[-1]) -> Iterator[tuple[int, Transformer, Tokenizer]]:
    """Train, and yield the model at each of the steps, up to the last."""
    pairs, _ = read_pairs()
    tokenizer = Tokenizer.train(pairs, VOCABULARY)
    corpus = encode_pairs(tokenizer, pairs)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(len(tokenizer), **SHAPE))  # type: ignore[arg-type]
    loss, d_model = SmoothedLoss(model), model.config.d_model
    optimizer = Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    epochs = (batches(corpus, MAX_TOKENS, seed=0, epoch=epoch) for epoch in count())
    for step, batch in enumerate(chain.from_iterable(epochs)):
        if step in STEPS:
            yield step, model, tokenizer
        if step == last:
            return
        optimizer.param_groups[0]["lr"] = learning_rate(step + 1, d_model, WARMUP, LR_SCALE)
        training_step(loss.train(), [batch], optimizer)


def packed(model: Transformer, tokenizer: Tokenizer) -> str:
    """Return a checkpoint as a page has it."""
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    config = {"vocabulary_size": len(tokenizer), "pre_norm": False, **SHAPE}
    return pack("", config, tokenizer.text, tensors)


def rounded(checkpoint: dict[str, Any]) -> Transformer:
    """Return the model that computes what the page computes with a checkpoint."""
    model = Transformer(TransformerConfig(**checkpoint["config"]))
    tensors = {name: torch.from_numpy(array) for name, array in unpacked(checkpoint).items()}
    model.load_state_dict(tensors)
    return model.eval()


@torch.no_grad()
def translation(model: Transformer, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Return a translation, and where its tokens looked, with two decimals."""
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    tokens = greedy_decode(model, source, EXTRA)[0]
    tokens += [EOS] * (len(tokens) < source.size(1) + EXTRA)
    looks = attention_maps(model, source, torch.tensor([[BOS, *tokens[:-1]]])).cross[-1].mean(0)
    return {
        "text": tokenizer.decode(tokens),
        "tokens": [token_name(tokenizer, token, place) for place, token in enumerate(tokens)],
        "looks": [[round(weight, 2) for weight in look] for look in looks.tolist()],
    }


def validation(model: Transformer, corpus: EncodedCorpus) -> float:
    """Return the loss in nats a token."""
    return validation_loss(model, corpus, MAX_TOKENS)


def evaluate(model: Transformer, tokenizer: Tokenizer, corpus: EncodedCorpus) -> dict[str, Any]:
    """Return the loss on held-out pairs, and how many of some come out as the grammar has them."""
    pairs = read_pairs()[1][:TRANSLATED]
    found = translate(model, tokenizer, [pair.source for pair in pairs], beam=1)
    right = sum(text == pair.target for text, pair in zip(found, pairs))
    return {"loss": round(validation(model, corpus), 2), "right": right}


def record(checkpoints: list[dict[str, Any]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the figure shows without its models."""
    pairs, held_out = read_pairs()
    models, corpus = [rounded(c) for c in checkpoints], encode_pairs(tokenizer, held_out)
    measured = zip(STEPS, [evaluate(model, tokenizer, corpus) for model in models])
    examples = []
    for text in EXAMPLES:
        source = [*tokenizer.encode(text), EOS]
        names = [token_name(tokenizer, token, place) for place, token in enumerate(source)]
        steps = [translation(model, tokenizer, text) for model in models]
        examples.append({"text": text, "source": names, "steps": steps})
    known = {word.lower() for pair in pairs for word in words(pair.source) if word.isalpha()}
    return {
        "extra": EXTRA,
        "translated": TRANSLATED,
        "steps": [{"step": step, **found} for step, found in measured],
        "examples": examples,
        "words": sorted(known),
    }


def read_checkpoints(path: Path = SCRIPT) -> list[dict[str, Any]]:
    """Return the checkpoints of the script."""
    text = path.read_text(encoding="ascii")
    found: list[dict[str, Any]] = json.loads(text.partition(" = ")[2].removesuffix(";\n"))
    return found


def main() -> None:
    """Train, and write both files."""
    made = []
    for step, model, tokenizer in learn():
        print(f"step {step}", flush=True)
        made.append(packed(model, tokenizer))
    SCRIPT.write_text(f"bookFigures.checkpoints = [{','.join(made)}];\n", encoding="ascii")
    recorded = record(read_checkpoints(), tokenizer)
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    OUTPUT.write_text(f"{text}\n", encoding="utf-8")
    for line in recorded["steps"]:
        print(line)


if __name__ == "__main__":
    main()
