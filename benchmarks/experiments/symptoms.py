"""Make one small model ill in the usual ways, and note how each illness looks from outside.

    python -m benchmarks.experiments.symptoms

Six trainings on the grammar, five of them with a mistake; one that goes on after a break; and the
book's trained model, asked for translations in wrong ways, for which Multi30k is needed. It takes
a few minutes. The page "When training does not work" quotes the log, `results/symptoms.jsonl`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from annotated_transformer import (
    Pair,
    Tokenizer,
    Transformer,
    TransformerConfig,
    encode_pairs,
    grammar,
    load_pretrained,
    multi30k,
    score,
)
from annotated_transformer.batching import Batch, collate
from annotated_transformer.masks import BOS, EOS, PAD, UNK, padding_mask, target_mask
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import evaluating
from benchmarks import common

SHAPE: dict[str, Any] = {
    "layers": 2,
    "d_model": 64,
    "d_ff": 256,
    "heads": 4,
    "dropout": 0.1,
}
MAX_TOKENS = 384
WARMUP = 100
LR_SCALE = 0.5
EXTRA = 10  # tokens that a translation may have more than the longest source
AFTER_BREAK = 30  # updates after a training run goes on
Forward = Callable[[Transformer, Tensor, Tensor], Tensor]  # source and target to logits

# --- The model, and the same model with a mistake in it ---


def logits_with_masks(
    model: Transformer,
    source: Tensor,
    target: Tensor,
    source_mask: Tensor,
    past_mask: Tensor,
) -> Tensor:
    """Return the logits of a model whose masks are given: over the source, and over the target."""
    memory = model.encoder(model.embed(source), source_mask)
    states = model.decoder(model.embed(target), memory, past_mask, source_mask)
    return model.embedding.logits(states)


def healthy_logits(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Return what the model says."""
    return model(source, target)


def no_causal_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Let each target position see the words after it."""
    masks = padding_mask(source), padding_mask(target)
    return logits_with_masks(model, source, target, *masks)


def inverted_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Show the padding of the source and hide its words."""
    masks = ~padding_mask(source), target_mask(target)
    return logits_with_masks(model, source, target, *masks)


def no_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Show the padding of the source beside its words."""
    masks = torch.ones_like(padding_mask(source)), target_mask(target)
    return logits_with_masks(model, source, target, *masks)


def no_offset(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Let each target word claim to be the first, as without an offset."""
    memory = model.encode(source)
    embedded = model.embedding(target) + model.positions.table[:1]
    masks = target_mask(target), padding_mask(source)
    return model.embedding.logits(model.decoder(embedded, memory, *masks))


# --- Training ---


def loss_of(
    model: Transformer, batch: Batch, forward: Forward = healthy_logits, shift: int = 1
) -> Tensor:
    """Return the mean loss a token, with hard labels; without the shift, of the words it reads."""
    inputs = batch.target[:, :-1]
    labels = batch.target[:, shift : shift + inputs.size(1)]
    logits = forward(model, batch.source, inputs)
    total = label_smoothed_loss(logits, labels, label_smoothing=0.0)
    return total / common.count(labels)


def update(
    model: Transformer,
    adam: torch.optim.Adam,
    batch: Batch,
    step: int,
    forward: Forward = healthy_logits,
    shift: int = 1,
) -> float:
    """Make one update at the rate of its step; return the loss."""
    adam.param_groups[0]["lr"] = learning_rate(step, SHAPE["d_model"], WARMUP, LR_SCALE)
    loss = loss_of(model, batch, forward, shift)
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss.item()


def begin(vocabulary_size: int) -> tuple[Transformer, torch.optim.Adam]:
    """Make the model, always with the same start, and its optimizer."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary_size, **SHAPE))
    return model, common.make_adam(model)


def stream(
    tokenizer: Tokenizer, pairs: Sequence[Pair], ends: bool = True
) -> Iterator[Batch]:
    """Yield batches without end; without `ends`, targets have no `</s>`."""
    for batch in common.endless_batches(encode_pairs(tokenizer, pairs), MAX_TOKENS):
        target = batch.target if ends else without_end(batch.target)
        yield Batch(batch.source, target)


def without_end(tokens: Tensor) -> Tensor:
    """Replace each `</s>` by padding."""
    return tokens.where(tokens != EOS, PAD)


def mean(losses: Sequence[float], last: int = 20) -> float:
    """Return the mean of the last losses."""
    return round(sum(losses[-last:]) / len(losses[-last:]), 2)


# --- What can be seen from outside ---


def write(
    model: Transformer,
    source: Tensor,
    forward: Forward = healthy_logits,
    start: int = BOS,
    dropout: bool = False,
) -> list[list[int]]:
    """Write greedily until `</s>`, or EXTRA tokens more than the longest source has, and UNK."""
    target = torch.full_like(source[:, :1], start)
    with evaluating(model):
        model.train(dropout)
        for _ in range(source.size(1) + EXTRA):
            logits = forward(model, source, target)[:, -1]
            logits[:, [PAD, BOS]] = -torch.inf
            target = torch.cat([target, logits.argmax(-1, keepdim=True)], dim=1)
            if (target[:, 1:] == EOS).any(dim=1).all():
                break
    rows = target[:, 1:].tolist()
    return [row[: row.index(EOS)] if EOS in row else [*row, UNK] for row in rows]


def has_loop(row: Sequence[int]) -> bool:
    """Tell whether three tokens come twice in the same order."""
    threes = Counter(zip(row, row[1:], row[2:]))
    return max(threes.values(), default=0) > 1


def describe(
    rows: Sequence[Sequence[int]], tokenizer: Tokenizer, pairs: Sequence[Pair]
) -> common.Record:
    """Describe translations: score, and how many differ, loop, are German, or never end."""
    texts = [tokenizer.decode(row) for row in rows]
    german = {word for pair in pairs for word in pair.source.split()}
    german -= {word for pair in pairs for word in pair.target.split()}
    return {
        "bleu": round(score(texts, [pair.target for pair in pairs]).bleu, 1),
        "different": len(set(texts)),
        "loops": sum(map(has_loop, rows)),
        "german": sum(len(german & set(text.split())) > 1 for text in texts),
        "endless": sum(row[-1:] == [UNK] for row in rows),
        "said": texts[0][:60],
    }


def examine(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    forward: Forward = healthy_logits,
    shift: int = 1,
) -> common.Record:
    """Measure the loss, that with a neighbor's source, and what the model writes."""
    batch = collate([*encode_pairs(tokenizer, pairs)])
    strange = Batch(batch.source.roll(1, dims=0), batch.target)
    with evaluating(model):
        loss = loss_of(model, batch, forward, shift).item()
        strange_loss = loss_of(model, strange, forward, shift).item()
    record = {
        "validation_loss": round(loss, 2),
        "neighbors_source": round(strange_loss, 2),
    }
    rows = write(model, batch.source, forward)
    return record | describe(rows, tokenizer, pairs)


# --- The experiments ---


def by_heart(tokenizer: Tokenizer, pairs: list[Pair], steps: int) -> common.Record:
    """Learn ten pairs by heart, without dropout; return the loss and how many can be written."""
    model, adam = begin(len(tokenizer))
    batch = collate([*encode_pairs(tokenizer, pairs[:10])])
    model.eval()
    losses = [update(model, adam, batch, step) for step in range(1, steps + 1)]
    texts = [tokenizer.decode(row) for row in write(model, batch.source)]
    return {
        "what": "ten pairs by heart",
        "step": steps,
        "first_loss": round(losses[0], 2),
        "last_loss": round(losses[-1], 3),
        "exact": sum(text == pair.target for text, pair in zip(texts, pairs)),
    }


def healthy(
    tokenizer: Tokenizer, pairs: list[Pair], held_out: list[Pair], steps: int
) -> list[common.Record]:
    """Train without a mistake; look three times, and break off and go on in the middle."""
    model, adam = begin(len(tokenizer))
    batches = stream(tokenizer, pairs)
    validation = collate([*encode_pairs(tokenizer, held_out)])
    losses = []
    looks = list[common.Record]()
    resumed = list[common.Record]()
    for step in range(1, steps + 1):
        losses.append(update(model, adam, next(batches), step))
        if step in (steps // 4, steps // 2, steps):
            look = examine(model, tokenizer, held_out)
            looks.append(
                {"what": "healthy", "step": step, "loss": mean(losses), **look}
            )
        if step == steps // 2:
            following = islice(stream(tokenizer, pairs), step, step + AFTER_BREAK)
            resumed = resuming(model, adam, [*following], step, validation)
    return looks + resumed


def resuming(
    model: Transformer,
    adam: torch.optim.Adam,
    following: list[Batch],
    step: int,
    held_out: Batch,
) -> list[common.Record]:
    """Go on with all of a training run's state, or with less; note the validation losses."""

    def validation_loss(model: Transformer) -> float:
        with evaluating(model):
            return round(loss_of(model, held_out).item(), 2)

    records = []
    for name, with_averages, first_step in (
        ("resumed with all of its state", True, step + 1),
        ("resumed without Adam's averages", False, step + 1),
        ("resumed without averages and step", False, 1),
    ):
        again = deepcopy(model)
        optimizer = common.make_adam(again)
        if with_averages:
            optimizer.load_state_dict(deepcopy(adam.state_dict()))
        before = validation_loss(again)
        losses = []
        for number, batch in enumerate(following, start=first_step):
            update(again, optimizer, batch, number)
            losses.append(validation_loss(again))
        records.append(
            {
                "what": name,
                "step": step,
                "before": before,
                "after_1": losses[0],
                "worst": max(losses),
                "end": losses[-1],
            }
        )
    return records


@dataclass(frozen=True)
class Mistake:
    """A training with a mistake: for how long, on which pairs, and what is wrong."""

    name: str
    steps: int
    pairs: list[Pair]
    ends: bool = True  # targets end with </s>
    forward: Forward = healthy_logits
    shift: int = 1


def ill(
    tokenizer: Tokenizer, pairs: list[Pair], held_out: list[Pair], steps: int
) -> Iterator[common.Record]:
    """Train with one mistake after the other, and look."""
    untranslated = [
        pair._replace(target=pair.source) if number % 4 else pair
        for number, pair in enumerate(pairs)
    ]
    for mistake in (
        Mistake("no causal mask", steps, pairs, forward=no_causal_mask),
        Mistake("targets not shifted", steps // 4, pairs, shift=0),
        Mistake("source mask inverted", steps, pairs, forward=inverted_mask),
        Mistake("three of four untranslated", steps, untranslated),
        Mistake("no </s> in the targets", steps // 2, pairs, ends=False),
    ):
        model, adam = begin(len(tokenizer))
        batches = stream(tokenizer, mistake.pairs, mistake.ends)
        wrong = mistake.forward, mistake.shift
        losses = []
        for step, batch in enumerate(islice(batches, mistake.steps), start=1):
            losses.append(update(model, adam, batch, step, *wrong))
        record = {"what": mistake.name, "step": mistake.steps, "loss": mean(losses)}
        yield record | examine(model, tokenizer, held_out, *wrong)


def decodings(captions: int) -> Iterator[common.Record]:
    """Ask the book's trained model for translations in wrong ways."""
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = multi30k("val")[:captions]
    learned = multi30k("train")
    another = Tokenizer.train(learned[: len(learned) // 2], len(tokenizer))
    lower = [pair._replace(source=pair.source.lower()) for pair in pairs]

    def encode(tokenizer: Tokenizer, pairs: list[Pair]) -> Tensor:
        return collate([*encode_pairs(tokenizer, pairs)]).source

    source = encode(tokenizer, pairs)
    ways: dict[str, tuple[Tensor, dict[str, Any]]] = {
        "as it should be": (source, {}),
        "dropout left on": (source, {"dropout": True}),
        "no </s> after the source": (without_end(source), {}),
        "source in lower case": (encode(tokenizer, lower), {}),
        "padding not masked": (source, {"forward": no_mask}),
        "each word at position 0": (source, {"forward": no_offset}),
        "begun with </s>": (source, {"start": EOS}),
        "another tokenizer": (encode(another, pairs), {}),
    }
    for name, (tokens, options) in ways.items():
        torch.manual_seed(0)
        rows = write(model, tokens, **options)
        reader = another if name == "another tokenizer" else tokenizer
        yield {"what": name, **describe(rows, reader, pairs)}


def entropy(tokenizer: Tokenizer, pairs: list[Pair]) -> float:
    """Return the entropy of the target's tokens: the loss of who knows nothing but frequencies."""
    counts = Counter[int]()
    for pair in pairs:
        counts.update([*tokenizer.encode(pair.target), EOS])
    shares = torch.tensor([*counts.values()]).double() / counts.total()
    return round(torch.special.entr(shares).sum().item(), 2)


def main(
    steps: int = 400,
    heart_steps: int = 150,
    sentences: int = 100,
    captions: int = 50,
    pairs: int = 12_000,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make one small model ill in the usual ways, and note how each illness looks."""
    torch.set_num_threads(threads)
    drawn = grammar(pairs + sentences, seed=1)
    learned, held_out = drawn[:-sentences], drawn[-sentences:]
    tokenizer = Tokenizer.train(learned, vocabulary_size=600)
    settings = {
        "benchmark": "symptoms",
        **SHAPE,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "lr_scale": LR_SCALE,
        "threads": threads,
        "sentences": sentences,
        "captions": captions,
        "vocabulary_size": len(tokenizer),
        "frequencies_alone": entropy(tokenizer, learned),
    }
    records = []
    for record in chain(
        [by_heart(tokenizer, learned, heart_steps)],
        healthy(tokenizer, learned, held_out, steps),
        ill(tokenizer, learned, held_out, steps),
        decodings(captions),
    ):
        print(record, flush=True)
        records.append(record)
    common.write_log(results, "symptoms", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
