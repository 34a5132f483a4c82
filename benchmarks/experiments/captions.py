"""Train the model of chapter 18 to its end, and log what the chapter's figures and tables show.

    python -m benchmarks.experiments.captions

2,000 updates of a `tiny` model on the captions of Multi30k, some minutes on one core. The log,
`results/captions.jsonl`, has the settings first, then each report of the training, and last what
the trained model translates and scores. The chapter makes the first 200 updates itself and checks
that they are those of the log.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from annotated_transformer import (
    Pair,
    Tokenizer,
    TrainingConfig,
    Transformer,
    preset,
    score,
    train,
    translate,
)
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.batching import encode_pairs
from annotated_transformer.own_data import multi30k
from annotated_transformer.trainer import average_checkpoints
from annotated_transformer.training import validation_loss
from benchmarks import common

SETTINGS: dict[str, Any] = {
    "max_tokens": 768,
    "warmup": 300,
    "peak_lr": 0.0031,
    "save_every": 250,
    "keep_checkpoints": 8,
}
AVERAGES = (1, 2, 3, 5)  # of the last checkpoints


def bleu(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]) -> float:
    """Score greedy translations."""
    hypotheses = translate(model, tokenizer, [pair.source for pair in pairs], beam=1)
    return score(hypotheses, [pair.target for pair in pairs]).bleu


def main(steps: int = 2000, results: Path = common.RESULTS) -> None:
    """Train the model of chapter 18 to its end."""
    torch.set_num_threads(1)
    pairs = multi30k("train")
    validation = multi30k("val")
    tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
    config = TrainingConfig(steps=steps, **SETTINGS)
    some = validation[:100]
    sources = [pair.source for pair in some]
    following = [*sources[1:], sources[0]]
    strangers = [Pair(text, pair.target) for text, pair in zip(following, some)]
    example = common.as_batch(tokenizer, [validation[1]])
    lines: list[common.Record] = []

    def loss_on(pairs: list[Pair]) -> float:
        corpus = encode_pairs(tokenizer, pairs)
        return round(validation_loss(model, corpus, config.max_tokens), 3)

    def report(line: common.Record) -> None:
        if "score" in line:
            maps = attention_maps(model, example.source, example.target[:, :-1])
            mean = maps.cross[-1].mean(dim=0)
            line = line | {
                "own": loss_on(some),
                "strangers": loss_on(strangers),
                "said": translate(model, tokenizer, sources[1:4], beam=1),
                "attention": [[round(w, 3) for w in row] for row in mean.tolist()],
            }
        lines.append(line)
        print(line["step"], round(line["loss"], 3), line.get("score", ""), flush=True)

    averages = {}
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            tokenizer,
            pairs,
            config,
            validation=validation,
            folder=folder,
            report=report,
            score=lambda model: bleu(model, tokenizer, some),
        )
        for last in AVERAGES:
            if last <= steps // config.save_every:
                average = average_checkpoints(folder, last)[0]
                averages[last] = round(bleu(average, tokenizer, validation[:200]), 2)
    test = multi30k("test_2016_flickr")
    translations = translate(model, tokenizer, [pair.source for pair in test], beam=1)
    scores = score(translations, [pair.target for pair in test])
    lines.append(
        {
            "bleu": scores.bleu,
            "signature": scores.bleu_signature,
            "translations": translations[::100],
            "averages": averages,
        }
    )
    common.write_log(results, "captions", asdict(config), lines)


if __name__ == "__main__":
    common.command(main)
