"""Train the model of chapter 18 to its end, and log what the chapter's figures and tables show.

    python benchmarks/captions.py

2,000 updates of a `tiny` model on the captions of Multi30k, some minutes on one core. The log,
`results/captions.jsonl`, has the settings first, then each report of the training, and last what
the trained model translates and scores. The chapter makes the first 200 updates itself and checks
that they are those of the log.
"""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from common import RESULTS, write_log
from torch import Tensor

from annotated_transformer.batching import EncodedCorpus, collate, encode_pairs, pad
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.masks import EOS
from annotated_transformer.run_folder import average_checkpoints
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train, validation_loss
from annotated_transformer.transformer import Transformer, evaluating, greedy_decode, preset

SETTINGS: dict[str, Any] = {"max_tokens": 768, "warmup": 300, "lr_scale": 0.6, "save_every": 250}


def translate(model: Transformer, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Translate greedily, in batches of similar length; return the translations in order."""
    sources = [[*tokenizer.encode(text), EOS] for text in texts]
    order, written = sorted(range(len(texts)), key=lambda i: len(sources[i])), dict[int, str]()
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        rows = greedy_decode(model, pad([sources[i] for i in chosen]))
        written |= zip(chosen, map(tokenizer.decode, rows))
    return [written[i] for i in range(len(texts))]


def bleu(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]) -> float:
    """Score greedy translations."""
    hypotheses = translate(model, tokenizer, [pair.source for pair in pairs])
    return sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score


def cross_attention(model: Transformer, source: Tensor, target: Tensor) -> list[list[float]]:
    """Return the last layer's cross-attention (T, S), a mean over heads."""
    attention = model.decoder.layers[-1].cross_attention
    attention.keep_weights = True
    with evaluating(model):
        model(source, target)
    attention.keep_weights = False
    mean: Tensor = attention.weights[0].mean(dim=0)
    return [[round(weight, 3) for weight in row] for row in mean.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    pairs, val, test = (multi30k(name) for name in ("train", "val", "test_2016_flickr"))
    tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
    config = TrainingConfig(steps=options.steps, keep_checkpoints=8, **SETTINGS)

    own = val[:100]
    strangers = [Pair(other.source, one.target) for one, other in zip(own, [*own[1:], own[0]])]
    encoded: list[EncodedCorpus] = [encode_pairs(tokenizer, some) for some in (own, strangers)]
    example = collate([*encode_pairs(tokenizer, [val[1]])])
    lines: list[dict[str, Any]] = []

    def report(line: dict[str, Any]) -> None:
        if "score" in line:
            losses = [round(validation_loss(model, some, 768), 3) for some in encoded]
            line = {
                **line, "own": losses[0], "strangers": losses[1],
                "said": translate(model, tokenizer, [pair.source for pair in val[1:4]]),
                "attention": cross_attention(model, example.source, example.target[:, :-1]),
            }  # fmt: skip
        lines.append(line)
        print(line["step"], round(line["loss"], 3), line.get("score", ""), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        train(
            model, tokenizer, pairs, config, validation=val, folder=folder, report=report,
            score=lambda model: bleu(model, tokenizer, own),
        )  # fmt: skip
        averages = {
            last: round(bleu(average_checkpoints(folder, last)[0], tokenizer, val[:200]), 2)
            for last in (1, 2, 3, 5)
            if last <= options.steps // config.save_every
        }
    translations = translate(model, tokenizer, [pair.source for pair in test])
    metric = sacrebleu.BLEU()
    found = {
        "bleu": metric.corpus_score(translations, [[pair.target for pair in test]]).score,
        "signature": str(metric.get_signature()), "averages": averages,
        "translations": translations[::100],
    }  # fmt: skip
    settings = {"benchmark": "captions", **asdict(config), "threads": options.threads}
    write_log(options.results, "captions", settings, [*lines, found])


if __name__ == "__main__":
    main()
