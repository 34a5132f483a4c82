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

import sacrebleu
import torch
import tyro

from annotated_transformer import (
    EncodedCorpus,
    Pair,
    Tokenizer,
    TrainingConfig,
    Transformer,
    average_checkpoints,
    encode_pairs,
    multi30k,
    preset,
    train,
)
from annotated_transformer.attention_maps import attention_maps
from annotated_transformer.batching import Batch, collate, pad
from annotated_transformer.masks import EOS
from annotated_transformer.training import validation_loss
from annotated_transformer.transformer import greedy_decode
from benchmarks import common

SETTINGS: dict[str, Any] = {
    "max_tokens": 768,
    "warmup": 300,
    "lr_scale": 0.6,
    "save_every": 250,
    "keep_checkpoints": 8,
}
AVERAGES = (1, 2, 3, 5)  # of the last checkpoints
BATCH = 64  # sentences that are translated side by side


def translate(model: Transformer, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Translate greedily, in batches of similar length; return the translations in order."""
    sources = [[*tokenizer.encode(text), EOS] for text in texts]
    order = sorted(range(len(texts)), key=lambda number: len(sources[number]))
    translations = [""] * len(texts)
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        rows = greedy_decode(model, pad([sources[number] for number in numbers]))
        for number, row in zip(numbers, rows):
            translations[number] = tokenizer.decode(row)
    return translations


def bleu(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]) -> float:
    """Score greedy translations."""
    hypotheses = translate(model, tokenizer, [pair.source for pair in pairs])
    return sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score


def cross_attention(model: Transformer, example: Batch) -> list[list[float]]:
    """Return the last layer's cross-attention (T, S), a mean over heads."""
    maps = attention_maps(model, example.source, example.target[:, :-1])
    mean = maps.cross[-1].mean(dim=0)
    return [[round(weight, 3) for weight in row] for row in mean.tolist()]


def with_strange_sources(pairs: list[Pair]) -> list[Pair]:
    """Give each target the source of the next pair."""
    following = [*pairs[1:], pairs[0]]
    return [Pair(other.source, pair.target) for pair, other in zip(pairs, following)]


class Observer:
    """Collects the reports of the training, and looks at the model after each validation."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, validation: list[Pair]
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.own = encode_pairs(tokenizer, validation[:100])
        self.strangers = encode_pairs(tokenizer, with_strange_sources(validation[:100]))
        self.sentences = [pair.source for pair in validation[1:4]]
        self.example = collate([*encode_pairs(tokenizer, [validation[1]])])
        self.lines = list[common.Record]()

    def report(self, line: common.Record) -> None:
        """Note a line of the training log; one with a score says more of the model."""
        if "score" in line:
            line = line | {
                "own": self.loss_of(self.own),
                "strangers": self.loss_of(self.strangers),
                "said": translate(self.model, self.tokenizer, self.sentences),
                "attention": cross_attention(self.model, self.example),
            }
        self.lines.append(line)
        print(line["step"], round(line["loss"], 3), line.get("score", ""), flush=True)

    def loss_of(self, corpus: EncodedCorpus) -> float:
        """Return the validation loss, rounded."""
        return round(validation_loss(self.model, corpus, SETTINGS["max_tokens"]), 3)


def test_scores(model: Transformer, tokenizer: Tokenizer) -> common.Record:
    """Score the translations of the test captions, and keep some of them."""
    pairs = multi30k("test_2016_flickr")
    translations = translate(model, tokenizer, [pair.source for pair in pairs])
    metric = sacrebleu.BLEU()
    references = [[pair.target for pair in pairs]]
    return {
        "bleu": metric.corpus_score(translations, references).score,
        "signature": str(metric.get_signature()),
        "translations": translations[::100],
    }


def main(
    steps: int = 2000,
    threads: int = torch.get_num_threads(),
    results: Path = common.RESULTS,
) -> None:
    """Train the model of chapter 18 to its end."""
    torch.set_num_threads(threads)
    pairs = multi30k("train")
    validation = multi30k("val")
    tokenizer = Tokenizer.train(pairs, vocabulary_size=4000)
    torch.manual_seed(0)
    model = Transformer(preset("tiny", vocabulary_size=len(tokenizer), dropout=0.0))
    config = TrainingConfig(steps=steps, **SETTINGS)
    observer = Observer(model, tokenizer, validation)
    averages = {}
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            tokenizer,
            pairs,
            config,
            validation=validation,
            folder=folder,
            report=observer.report,
            score=lambda model: bleu(model, tokenizer, validation[:100]),
        )
        for last in AVERAGES:
            if last <= steps // config.save_every:
                average = average_checkpoints(folder, last)[0]
                averages[last] = round(bleu(average, tokenizer, validation[:200]), 2)
    scores = test_scores(model, tokenizer) | {"averages": averages}
    settings = {"benchmark": "captions", **asdict(config), "threads": threads}
    common.write_log(results, "captions", settings, [*observer.lines, scores])


if __name__ == "__main__":
    tyro.cli(main)
