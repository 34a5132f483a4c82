"""Make one small model ill in the usual ways, and note how each illness looks from outside.

    python -m benchmarks.experiments.symptoms

Six trainings on the grammar, five of them with a mistake; one that goes on after a break; and the
book's trained model, asked for translations in wrong ways, for which Multi30k is needed. It takes
a few minutes. The page "When training does not work" quotes the log, `results/symptoms.jsonl`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from annotated_transformer import (
    Pair,
    Tokenizer,
    Transformer,
    TransformerConfig,
    grammar,
    load_pretrained,
    score,
)
from annotated_transformer.batching import Batch, encode_pairs
from annotated_transformer.masks import BOS, EOS, PAD, UNK, padding_mask, target_mask
from annotated_transformer.own_data import multi30k
from annotated_transformer.regularization import SmoothedLoss, label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.training import loss_and_tokens, make_adam
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
PEAK = 0.0063
EXTRA = 10  # tokens that a translation may have more than the longest source
AFTER_BREAK = 30  # updates after a training run goes on
BY_HEART = 150  # updates

# --- The same model with a mistake in it ---


class Mistaken(nn.Module):
    """A model whose logits are computed in another way than its own."""

    def __init__(self, way: Callable[..., Tensor], model: Transformer) -> None:
        super().__init__()
        self.way = way
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, |V|) from source (B, S) and target (B, T)."""
        return self.way(self.model, source, target)


def logits_with_masks(
    model: Transformer, source: Tensor, target: Tensor, masks: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the logits of a model whose masks are given: over the source, and over the target."""
    source_mask, past_mask = masks
    memory = model.encoder(model.embed(source), source_mask)
    states = model.decoder(model.embed(target), memory, past_mask, source_mask)
    return model.embedding.logits(states)


def no_causal_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Let each target position see the words after it."""
    masks = padding_mask(source), padding_mask(target)
    return logits_with_masks(model, source, target, masks)


def inverted_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Show the padding of the source and hide its words."""
    masks = ~padding_mask(source), target_mask(target)
    return logits_with_masks(model, source, target, masks)


def no_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Show the padding of the source beside its words."""
    masks = torch.ones_like(padding_mask(source)), target_mask(target)
    return logits_with_masks(model, source, target, masks)


def no_offset(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Let each target word claim to be the first, as without an offset."""
    memory = model.encode(source)
    embedded = model.embedding(target) + model.positions.table[:1]
    masks = target_mask(target), padding_mask(source)
    return model.embedding.logits(model.decoder(embedded, memory, *masks))


def with_way(way: Callable[..., Tensor]) -> Callable[[Transformer], SmoothedLoss]:
    """Return what makes the loss of a model that is mistaken in a way."""
    return lambda model: common.WholeLoss(Mistaken(way, model))


class NotShifted(common.WholeLoss):
    """The loss of a model that is asked for the words it reads."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (B, S) and target (B, T + 1) to the loss of predicting target[:, :-1]."""
        inputs = target[:, :-1]
        labels = inputs.where(target[:, 1:] != PAD, PAD)
        return label_smoothed_loss(self.model(source, inputs), labels, 0)


def without_end(tokens: Tensor) -> Tensor:
    """Replace each `</s>` by padding."""
    return tokens.where(tokens != EOS, PAD)


# --- Training ---


def rate(step: int, first: int = 1) -> float:
    """Return the learning rate of a step of a run that begins with the step `first`."""
    return learning_rate(step + first - 1, SHAPE["d_model"], WARMUP, PEAK)


def new_model(vocabulary_size: int) -> Transformer:
    """Make the model, always with the same start."""
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocabulary_size, **SHAPE))


def stream(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> Iterator[Batch]:
    """Yield batches without end."""
    return common.endless_batches(encode_pairs(tokenizer, pairs), MAX_TOKENS)


def means(loss: nn.Module, adam: Adam, batches: Iterator[Batch]) -> Iterator[float]:
    """Train, and yield the loss of each update per token."""
    for update in common.updates(loss, adam, batches, rate):
        yield float(update.loss / update.tokens)


def last_mean(losses: Sequence[float], last: int = 20) -> float:
    """Return the mean of the last losses."""
    return round(sum(losses[-last:]) / len(losses[-last:]), 2)


# --- What can be seen from outside ---


def loss_on(loss: SmoothedLoss, batch: Batch) -> float:
    """Return the loss of a batch in nats per token, without dropout."""
    total, tokens = loss_and_tokens(loss, [batch])
    return round(float(total / tokens), 2)


def write(
    model: nn.Module, source: Tensor, start: int = BOS, dropout: bool = False
) -> list[list[int]]:
    """Write greedily until `</s>`, or EXTRA tokens more than the longest source has, and UNK."""
    target = torch.full_like(source[:, :1], start)
    with evaluating(model):
        model.train(dropout)
        for _ in range(source.size(1) + EXTRA):
            logits = model(source, target)[:, -1]
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
    loss: SmoothedLoss, tokenizer: Tokenizer, pairs: Sequence[Pair]
) -> common.Record:
    """Measure the loss, that with a neighbor's source, and what the model writes."""
    batch = common.as_batch(tokenizer, pairs)
    strange = Batch(batch.source.roll(1, dims=0), batch.target)
    return {
        "validation_loss": loss_on(loss, batch),
        "neighbors_source": loss_on(loss, strange),
        **describe(write(loss.model, batch.source), tokenizer, pairs),
    }


# --- The experiments ---


def by_heart(tokenizer: Tokenizer, pairs: list[Pair]) -> common.Record:
    """Learn ten pairs by heart, without dropout; return the loss and how many can be written."""
    model = new_model(len(tokenizer)).eval()
    loss = common.WholeLoss(model)
    batch = common.as_batch(tokenizer, pairs[:10])
    losses = [*means(loss, make_adam(loss), iter([batch] * BY_HEART))]
    texts = [tokenizer.decode(row) for row in write(model, batch.source)]
    return {
        "what": "ten pairs by heart",
        "step": BY_HEART,
        "first_loss": round(losses[0], 2),
        "last_loss": round(losses[-1], 3),
        "exact": sum(text == pair.target for text, pair in zip(texts, pairs)),
    }


def healthy(
    tokenizer: Tokenizer, pairs: list[Pair], held_out: list[Pair], steps: int
) -> list[common.Record]:
    """Train without a mistake; look three times, and break off and go on in the middle."""
    loss = common.WholeLoss(new_model(len(tokenizer)))
    adam = make_adam(loss)
    batches = islice(stream(tokenizer, pairs), steps)
    losses: list[float] = []
    looks: list[common.Record] = []
    resumed: list[common.Record] = []
    for step, mean in enumerate(means(loss, adam, batches), start=1):
        losses.append(mean)
        if step in (steps // 4, steps // 2, steps):
            look = {"what": "healthy", "step": step, "loss": last_mean(losses)}
            looks.append(look | examine(loss, tokenizer, held_out))
        if step == steps // 2:
            following = islice(stream(tokenizer, pairs), step, step + AFTER_BREAK)
            validation = common.as_batch(tokenizer, held_out)
            resumed = resuming(loss, adam, [*following], step, validation)
    return looks + resumed


def resuming(
    loss: SmoothedLoss, adam: Adam, following: list[Batch], step: int, held_out: Batch
) -> list[common.Record]:
    """Go on with all of a training run's state, or with less; note the validation losses."""
    records = []
    for name, with_averages, first in (
        ("resumed with all of its state", True, step + 1),
        ("resumed without Adam's averages", False, step + 1),
        ("resumed without averages and step", False, 1),
    ):
        again = deepcopy(loss)
        optimizer = make_adam(again)
        if with_averages:
            optimizer.load_state_dict(deepcopy(adam.state_dict()))
        losses = [loss_on(again, held_out)]
        rates = partial(rate, first=first)
        for _ in common.updates(again, optimizer, following, rates):
            losses.append(loss_on(again, held_out))
        before, *after = losses
        seen = {"before": before, "after_1": after[0], "worst": max(after)}
        records.append({"what": name, "step": step, **seen, "end": after[-1]})
    return records


def ill(
    tokenizer: Tokenizer, pairs: list[Pair], held_out: list[Pair], steps: int
) -> Iterator[common.Record]:
    """Train with one mistake after the other, and look."""
    untranslated = [
        pair._replace(target=pair.source) if number % 4 else pair
        for number, pair in enumerate(pairs)
    ]

    endless = (
        Batch(batch.source, without_end(batch.target))
        for batch in stream(tokenizer, pairs)
    )
    plain = common.WholeLoss
    trainings: dict[str, tuple[Callable[..., SmoothedLoss], Iterator[Batch], int]] = {
        "no causal mask": (with_way(no_causal_mask), stream(tokenizer, pairs), steps),
        "targets not shifted": (NotShifted, stream(tokenizer, pairs), steps // 4),
        "source mask inverted": (
            with_way(inverted_mask),
            stream(tokenizer, pairs),
            steps,
        ),
        "three of four untranslated": (plain, stream(tokenizer, untranslated), steps),
        "no </s> in the targets": (plain, endless, steps // 2),
    }
    for name, (make_loss, batches, count) in trainings.items():
        loss = make_loss(new_model(len(tokenizer)))
        losses = [*means(loss, make_adam(loss), islice(batches, count))]
        record = {"what": name, "step": count, "loss": last_mean(losses)}
        yield record | examine(loss, tokenizer, held_out)


def decodings(captions: int) -> Iterator[common.Record]:
    """Ask the book's trained model for translations in wrong ways."""
    model, tokenizer = load_pretrained("captions-de-en")
    pairs = multi30k("val")[:captions]
    learned = multi30k("train")
    another = Tokenizer.train(learned[: len(learned) // 2], len(tokenizer))
    lower = [pair._replace(source=pair.source.lower()) for pair in pairs]

    source = common.as_batch(tokenizer, pairs).source
    lower_source = common.as_batch(tokenizer, lower).source
    other_source = common.as_batch(another, pairs).source
    ways: dict[str, Callable[[], list[list[int]]]] = {
        "as it should be": partial(write, model, source),
        "dropout left on": partial(write, model, source, dropout=True),
        "no </s> after the source": partial(write, model, without_end(source)),
        "source in lower case": partial(write, model, lower_source),
        "padding not masked": partial(write, Mistaken(no_mask, model), source),
        "each word at position 0": partial(write, Mistaken(no_offset, model), source),
        "begun with </s>": partial(write, model, source, start=EOS),
        "another tokenizer": partial(write, model, other_source),
    }
    for name, ask in ways.items():
        torch.manual_seed(0)
        reader = another if name == "another tokenizer" else tokenizer
        yield {"what": name, **describe(ask(), reader, pairs)}


def entropy(tokenizer: Tokenizer, pairs: list[Pair]) -> float:
    """Return the entropy of the target's tokens: the loss of who knows nothing but frequencies."""
    counts = Counter[int]()
    for pair in pairs:
        counts.update([*tokenizer.encode(pair.target), EOS])
    shares = torch.tensor([*counts.values()]).double() / counts.total()
    return round(torch.special.entr(shares).sum().item(), 2)


def main(
    steps: int = 400,
    sentences: int = 100,
    captions: int = 50,
    pairs: int = 12_000,
    results: Path = common.RESULTS,
) -> None:
    """Make one small model ill in the usual ways, and note how each illness looks."""
    torch.set_num_threads(1)
    drawn = grammar(pairs + sentences, seed=1)
    learned, held_out = drawn[:-sentences], drawn[-sentences:]
    tokenizer = Tokenizer.train(learned, vocabulary_size=600)
    settings = {
        **SHAPE,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "peak_lr": PEAK,
        "sentences": sentences,
        "captions": captions,
        "vocabulary_size": len(tokenizer),
        "frequencies_alone": entropy(tokenizer, learned),
    }
    records = []
    for record in chain(
        [by_heart(tokenizer, learned)],
        healthy(tokenizer, learned, held_out, steps),
        ill(tokenizer, learned, held_out, steps),
        decodings(captions),
    ):
        print(record, flush=True)
        records.append(record)
    common.write_log(results, "symptoms", settings, records)


if __name__ == "__main__":
    common.command(main)
