"""Train the small translator that chapter 18 shows while it learns, and keep it at seven steps.

The checkpoints, rounded as `annotated_transformer.toolkit.page` packs them, become a script of
the site; what they make of the examples is recorded. It takes about a minute on one core.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from annotated_transformer import translate
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.batching import EncodedCorpus, batches, encode_pairs
from annotated_transformer.data import Pair, words
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.regularization import SmoothedLoss
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.page import pack
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.training import (
    Hyperparameters,
    group_batches,
    make_adam,
    updates,
    validation_loss,
)
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    greedy_decode,
)
from tools.command import command_line
from tools.web_model import ROOT, unpacked
from tools.what_if import token_names

SITE = ROOT / "book" / "site"
SCRIPT = SITE / "assets" / "checkpoints.js"  # each model as a page has it
OUTPUT = SITE / "recorded" / "learning.json"

STEPS = (0, 100, 200, 350, 600, 1000, 1500)
SHAPE = {
    "layers": 2,
    "d_model": 40,
    "d_ff": 96,
    "heads": 4,
    "dropout": 0.0,
    "max_length": 128,
}
VOCABULARY = 500
MAX_TOKENS = 512  # of a batch
WARMUP = 200
LR_SCALE = 0.4
PAIRS = 10_500
HELD_OUT = 500  # of the pairs; the first of them are translated
TRANSLATED = 200
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
    epochs = (batches(corpus, MAX_TOKENS, seed=0, epoch=epoch) for epoch in count())
    groups = group_batches(chain.from_iterable(epochs), size=1)
    config = Hyperparameters(steps=last, warmup=WARMUP, lr_scale=LR_SCALE)
    yield 0, model, tokenizer
    training = updates(SmoothedLoss(model), groups, make_adam(model), config)
    for step, _ in enumerate(training, start=1):
        if step in STEPS:
            yield step, model, tokenizer


def packed(model: Transformer, tokenizer: Tokenizer) -> str:
    """Return a checkpoint as a page has it."""
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    config = {"vocabulary_size": len(tokenizer), "pre_norm": False, **SHAPE}
    return pack("", config, tokenizer.text, tensors)


def rounded(checkpoint: dict[str, Any]) -> Transformer:
    """Return the model that computes what the page computes with a checkpoint."""
    model = Transformer(TransformerConfig(**checkpoint["config"]))
    tensors = {
        name: torch.from_numpy(array) for name, array in unpacked(checkpoint).items()
    }
    model.load_state_dict(tensors)
    return model.eval()


@torch.no_grad()
def translation(model: Transformer, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Return a translation, and where its tokens looked, with two decimals."""
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    tokens = greedy_decode(model, source, EXTRA)[0]
    if len(tokens) < source.size(1) + EXTRA:  # it came to an end by itself
        tokens.append(EOS)
    target = torch.tensor([[BOS, *tokens[:-1]]])
    weights = attention_maps(model, source, target).cross[-1].mean(dim=0)
    return {
        "text": tokenizer.decode(tokens),
        "tokens": token_names(tokenizer, tokens),
        "looks": [[round(weight, 2) for weight in row] for row in weights.tolist()],
    }


def validation(model: Transformer, corpus: EncodedCorpus) -> float:
    """Return the loss in nats a token."""
    return validation_loss(model, corpus, MAX_TOKENS)


def evaluate(
    model: Transformer, tokenizer: Tokenizer, corpus: EncodedCorpus
) -> dict[str, Any]:
    """Return the loss on held-out pairs, and how many of some come out as the grammar has them."""
    _, held_out = read_pairs()
    pairs = held_out[:TRANSLATED]
    outputs = translate(model, tokenizer, [pair.source for pair in pairs], beam=1)
    right = sum(output == pair.target for output, pair in zip(outputs, pairs))
    return {"loss": round(validation(model, corpus), 2), "right": right}


def record(checkpoints: list[dict[str, Any]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the figure shows without its models."""
    pairs, held_out = read_pairs()
    corpus = encode_pairs(tokenizer, held_out)
    models = [rounded(checkpoint) for checkpoint in checkpoints]
    steps = []
    for step, model in zip(STEPS, models):
        steps.append({"step": step, **evaluate(model, tokenizer, corpus)})
    examples = []
    for text in EXAMPLES:
        source = [*tokenizer.encode(text), EOS]
        example = {
            "text": text,
            "source": token_names(tokenizer, source),
            "steps": [translation(model, tokenizer, text) for model in models],
        }
        examples.append(example)
    return {
        "extra": EXTRA,
        "translated": TRANSLATED,
        "steps": steps,
        "examples": examples,
        "words": vocabulary(pairs),
    }


def vocabulary(pairs: list[Pair]) -> list[str]:
    """Return the German words of some pairs, in small letters."""
    german_words = set()
    for pair in pairs:
        german_words |= {word.lower() for word in words(pair.source) if word.isalpha()}
    return sorted(german_words)


def read_checkpoints(path: Path = SCRIPT) -> list[dict[str, Any]]:
    """Return the checkpoints of the script."""
    _, _, data = path.read_text(encoding="ascii").partition(" = ")
    checkpoints: list[dict[str, Any]] = json.loads(data.removesuffix(";\n"))
    return checkpoints


def main() -> None:
    """Train, and write both files."""
    command_line("tools.learning", __doc__).parse_args()
    checkpoints = []
    for step, model, tokenizer in learn():
        print(f"step {step}", flush=True)
        checkpoints.append(packed(model, tokenizer))
    script = f"bookFigures.checkpoints = [{','.join(checkpoints)}];\n"
    SCRIPT.write_text(script, encoding="ascii")
    recorded = record(read_checkpoints(), tokenizer)
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    OUTPUT.write_text(f"{text}\n", encoding="utf-8")
    for line in recorded["steps"]:
        print(line)


if __name__ == "__main__":
    main()
