"""Make one small model ill in the usual ways, and note how each illness looks from outside.

    python benchmarks/symptoms.py

Six trainings on the grammar, five of them with a mistake; one that goes on after a break; and the
book's trained model, asked for translations in wrong ways, for which Multi30k is needed. It takes
a few minutes. The page "When training does not work" quotes the log.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import chain, islice
from pathlib import Path
from typing import Any

import common
import torch
import tyro
from torch import Tensor

from annotated_transformer.batching import Batch, batches, collate, encode_pairs
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.evaluation import score
from annotated_transformer.masks import BOS, EOS, PAD, UNK, padding_mask, target_mask
from annotated_transformer.model_io import load_pretrained
from annotated_transformer.regularization import label_smoothed_loss
from annotated_transformer.schedule import learning_rate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

SHAPE: dict[str, Any] = {"layers": 2, "d_model": 64, "d_ff": 256, "heads": 4, "dropout": 0.1}
MAX_TOKENS, WARMUP, LR_SCALE, EXTRA = 384, 100, 0.5, 10
Forward = Callable[[Transformer, Tensor, Tensor], Tensor]  # source and target to logits

# --- The model, and the same model with a mistake in it ---


def through(
    model: Transformer, source: Tensor, target: Tensor, see: Tensor, past: Tensor
) -> Tensor:
    """Return the logits of a model whose masks are given: over the source, and over the target."""
    memory = model.encoder(model.embed(source), see)
    return model.embedding.logits(model.decoder(model.embed(target), memory, past, see))


def right(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Return what the model says."""
    return model(source, target)


def no_causal_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Let each target position see the words after it."""
    return through(model, source, target, padding_mask(source), padding_mask(target))


def inverted_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Show the padding of the source and hide its words."""
    return through(model, source, target, ~padding_mask(source), target_mask(target))


def no_mask(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Show the padding of the source beside its words."""
    everything = torch.ones_like(padding_mask(source))
    return through(model, source, target, everything, target_mask(target))


def one_place(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Let each target word claim to be the first, as without an offset."""
    memory, first = model.encode(source), model.embedding(target) + model.positions.table[:1]
    states = model.decoder(first, memory, target_mask(target), padding_mask(source))
    return model.embedding.logits(states)


# --- Training ---


def loss_of(model: Transformer, batch: Batch, forward: Forward = right, shift: int = 1) -> Tensor:
    """Return the mean loss a token, with hard labels; without the shift, of the words it reads."""
    reads = batch.target[:, :-1]
    labels = batch.target[:, shift : shift + reads.size(1)]
    total = label_smoothed_loss(forward(model, batch.source, reads), labels, label_smoothing=0.0)
    return total / common.count(labels)


def update(
    model: Transformer, adam: torch.optim.Adam, batch: Batch, step: int, **ill: Any
) -> float:
    """Make one update at the rate of its step; return the loss."""
    adam.param_groups[0]["lr"] = learning_rate(step, SHAPE["d_model"], WARMUP, LR_SCALE)
    loss = loss_of(model, batch, **ill)
    adam.zero_grad()
    loss.backward()
    adam.step()
    return loss.item()


def begin(vocabulary_size: int) -> tuple[Transformer, torch.optim.Adam]:
    """Make the model, always with the same start, and its optimizer."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary_size, **SHAPE))
    return model, common.make_adam(model)


def stream(tokenizer: Tokenizer, pairs: Sequence[Pair], ends: bool = True) -> Iterator[Batch]:
    """Yield batches without end; without `ends`, targets have no `</s>`."""
    corpus = encode_pairs(tokenizer, pairs)
    for batch in chain.from_iterable(batches(corpus, MAX_TOKENS, 0, epoch) for epoch in range(999)):
        target = batch.target if ends else batch.target.where(batch.target != EOS, PAD)
        yield Batch(batch.source, target)


def mean(losses: Sequence[float], last: int = 20) -> float:
    """Return the mean of the last losses."""
    return round(sum(losses[-last:]) / len(losses[-last:]), 2)


# --- What can be seen from outside ---


def write(
    model: Transformer, source: Tensor, forward: Forward = right, start: int = BOS,
    dropout: bool = False,
) -> list[list[int]]:  # fmt: skip
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


def looks(
    rows: Sequence[Sequence[int]], tokenizer: Tokenizer, pairs: Sequence[Pair]
) -> dict[str, Any]:
    """Describe translations: score, and how many differ, loop, are German, or never end."""
    texts = [tokenizer.decode(row) for row in rows]
    threes = [Counter(zip(row, row[1:], row[2:])) for row in rows]
    sides = [{word for pair in pairs for word in pair[side].split()} for side in (0, 1)]
    return {
        "bleu": round(score(texts, [pair.target for pair in pairs]).bleu, 1),
        "different": len({*texts}),
        "loops": sum(max(counts.values(), default=0) > 1 for counts in threes),
        "german": sum(len({*text.split()} & (sides[0] - sides[1])) > 1 for text in texts),
        "endless": sum(row[-1:] == [UNK] for row in rows),
        "said": texts[0][:60],
    }


def examine(
    model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair], forward: Forward = right,
    shift: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Measure the loss, that with a neighbor's source, and what the model writes."""
    own = collate([*encode_pairs(tokenizer, pairs)])
    strange = Batch(own.source.roll(1, dims=0), own.target)
    with evaluating(model):
        losses = [loss_of(model, batch, forward, shift).item() for batch in (own, strange)]
    found = {"validation_loss": round(losses[0], 2), "neighbors_source": round(losses[1], 2)}
    return found | looks(write(model, own.source, forward), tokenizer, pairs)


# --- The experiments ---


def by_heart(tokenizer: Tokenizer, pairs: list[Pair], steps: int) -> dict[str, Any]:
    """Learn ten pairs by heart, without dropout; return the loss and how many can be written."""
    model, adam = begin(len(tokenizer))
    batch = collate([*encode_pairs(tokenizer, pairs[:10])])
    losses = [update(model.eval(), adam, batch, step) for step in range(1, steps + 1)]
    said = [tokenizer.decode(row) for row in write(model, batch.source)]
    exact = sum(one == pair.target for one, pair in zip(said, pairs))
    ends = {"first_loss": round(losses[0], 2), "last_loss": round(losses[-1], 3), "exact": exact}
    return {"what": "ten pairs by heart", "step": steps, **ends}


def healthy(
    tokenizer: Tokenizer, pairs: list[Pair], held_out: list[Pair], steps: int
) -> list[dict[str, Any]]:
    """Train without a mistake; look three times, and break off and go on in the middle."""
    (model, adam), losses, records = begin(len(tokenizer)), [], list[dict[str, Any]]()
    source = stream(tokenizer, pairs)
    for step in range(1, steps + 1):
        losses.append(update(model, adam, next(source), step))
        if step in (steps // 4, steps // 2, steps):
            found = examine(model, tokenizer, held_out)
            records.append({"what": "healthy", "step": step, "loss": mean(losses), **found})
        if step == steps // 2:
            after = islice(stream(tokenizer, pairs), step, step + 30)
            resumed = resuming(
                model, adam, [*after], step, collate([*encode_pairs(tokenizer, held_out)])
            )
    return records + resumed


def resuming(
    model: Transformer, adam: torch.optim.Adam, rest: list[Batch], step: int, held_out: Batch
) -> list[dict[str, Any]]:
    """Go on with all of a training run's state, or with less; note the validation losses."""

    def validation_loss(model: Transformer) -> float:
        with evaluating(model):
            return round(loss_of(model, held_out).item(), 2)

    records = []
    for what, averages, first in (
        ("resumed with all of its state", True, step + 1),
        ("resumed without Adam's averages", False, step + 1),
        ("resumed without averages and step", False, 1),
    ):
        again = deepcopy(model)
        optimizer = common.make_adam(again)
        if averages:
            optimizer.load_state_dict(deepcopy(adam.state_dict()))
        seen = [validation_loss(again)]
        for number, batch in enumerate(rest, start=first):
            update(again, optimizer, batch, number)
            seen.append(validation_loss(again))
        record = {"before": seen[0], "after_1": seen[1], "worst": max(seen[1:]), "end": seen[-1]}
        records.append({"what": what, "step": step, **record})
    return records


def ill(
    tokenizer: Tokenizer, pairs: list[Pair], held_out: list[Pair], steps: int
) -> Iterator[dict[str, Any]]:
    """Train with one mistake after the other, and look."""
    untranslated = [
        pair._replace(target=pair.source) if number % 4 else pair
        for number, pair in enumerate(pairs)
    ]
    mistakes: dict[str, tuple[int, Iterator[Batch], dict[str, Any]]] = {
        "no causal mask": (steps, stream(tokenizer, pairs), {"forward": no_causal_mask}),
        "targets not shifted": (steps // 4, stream(tokenizer, pairs), {"shift": 0}),
        "source mask inverted": (steps, stream(tokenizer, pairs), {"forward": inverted_mask}),
        "three of four untranslated": (steps, stream(tokenizer, untranslated), {}),
        "no </s> in the targets": (steps // 2, stream(tokenizer, pairs, ends=False), {}),
    }
    for what, (count, source, how) in mistakes.items():
        model, adam = begin(len(tokenizer))
        losses = [update(model, adam, next(source), n, **how) for n in range(1, count + 1)]
        found = examine(model, tokenizer, held_out, **how)
        yield {"what": what, "step": count, "loss": mean(losses), **found}


def decodings(captions: int) -> Iterator[dict[str, Any]]:
    """Ask the book's trained model for translations in wrong ways."""
    model, tokenizer = load_pretrained("captions-de-en")
    learned, pairs = multi30k("train"), multi30k("val")[:captions]
    other = Tokenizer.train(learned[: len(learned) // 2], len(tokenizer))
    right_source, strange = (collate([*encode_pairs(t, pairs)]).source for t in (tokenizer, other))
    lower = [pair._replace(source=pair.source.lower()) for pair in pairs]
    lowered = collate([*encode_pairs(tokenizer, lower)]).source
    endless = right_source.where(right_source != EOS, PAD)
    ways: dict[str, tuple[Tensor, dict[str, Any]]] = {
        "as it should be": (right_source, {}),
        "dropout left on": (right_source, {"dropout": True}),
        "no </s> after the source": (endless, {}),
        "source in lower case": (lowered, {}),
        "padding not masked": (right_source, {"forward": no_mask}),
        "each word at position 0": (right_source, {"forward": one_place}),
        "begun with </s>": (right_source, {"start": EOS}),
        "another tokenizer": (strange, {}),
    }
    for what, (source, how) in ways.items():
        torch.manual_seed(0)
        reader = other if what == "another tokenizer" else tokenizer
        yield {"what": what, **looks(write(model, source, **how), reader, pairs)}


def main(
    steps: int = 400, heart_steps: int = 150, sentences: int = 100, captions: int = 50,
    pairs: int = 12_000, threads: int = 1, results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Make one small model ill in the usual ways, and note how each illness looks."""
    torch.set_num_threads(threads)
    made = common.grammar(pairs + sentences, seed=1)
    learned, held_out = made[:-sentences], made[-sentences:]
    tokenizer = Tokenizer.train(learned, vocabulary_size=600)
    settings = {"benchmark": "symptoms", **SHAPE, "max_tokens": MAX_TOKENS, "warmup": WARMUP}
    settings |= {"lr_scale": LR_SCALE, "threads": threads, "sentences": sentences}
    settings |= {"captions": captions}
    counts = Counter(i for pair in learned for i in [*tokenizer.encode(pair.target), EOS])
    share = torch.tensor([*counts.values()]).double() / counts.total()
    frequencies = round(torch.special.entr(share).sum().item(), 2)
    settings |= {"vocabulary_size": len(tokenizer), "frequencies_alone": frequencies}
    records = list[dict[str, Any]]()
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
