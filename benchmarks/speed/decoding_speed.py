"""Translate the same sentences with the same weights: this book's decoder and `generate`.

    python -m benchmarks.speed.decoding_speed --threads 2

Our weights are copied into a MarianMTModel of Hugging Face, so that both compute the same numbers;
before the clock starts, their logits are compared. Sentences are sorted by length and cut into the
same batches. Without --model, weights are random: no sentence then ends by itself, and both write
as many tokens as they may. A GPU is used if there is one. Writes
`results/decoding-MODEL-THREADS.jsonl`.
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

from annotated_transformer import Transformer, load_model
from annotated_transformer.batching import pad
from annotated_transformer.decoding import beam_search
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.transformer import evaluating
from benchmarks import common

ALPHA = 0.6
ATTENTION = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "output",
}
Rows = list[list[int]]
Write = Callable[[Tensor], Rows]

# --- The same weights in another library ---


def copy_linear(theirs: nn.Linear, ours: nn.Linear) -> None:
    """Copy weight and bias; where we have no bias, theirs becomes zero."""
    theirs.weight.copy_(ours.weight)
    if ours.bias is None:
        theirs.bias.zero_()
    else:
        theirs.bias.copy_(ours.bias)


def copy_attention(theirs: Any, ours: Any) -> None:
    """Copy the four projections of an attention."""
    for their_name, our_name in ATTENTION.items():
        copy_linear(getattr(theirs, their_name), getattr(ours, our_name))


def copy_layer(theirs: Any, ours: Any) -> None:
    """Copy one layer of the encoder or the decoder."""
    norms = [theirs.self_attn_layer_norm, theirs.final_layer_norm]
    copy_attention(theirs.self_attn, ours.self_attention)
    if hasattr(theirs, "encoder_attn"):
        norms.insert(1, theirs.encoder_attn_layer_norm)
        copy_attention(theirs.encoder_attn, ours.cross_attention)
    copy_linear(theirs.fc1, ours.feed_forward.linear1)
    copy_linear(theirs.fc2, ours.feed_forward.linear2)
    for norm, residual in zip(norms, ours.residuals, strict=True):
        norm.weight.copy_(residual.norm.gain)
        norm.bias.copy_(residual.norm.bias)
        norm.eps = residual.norm.eps


@torch.no_grad()
def same_weights(model: Transformer) -> Any:
    """Make a MarianMTModel that computes what the model computes, positions included."""
    if model.config.pre_norm or model.config.attention_bias:
        raise ValueError(
            "MarianMTModel normalizes after each sub-layer: take a post-norm model"
        )
    rival = common.marian(model.config).eval()
    rival.model.shared.weight.copy_(model.embedding.weight)
    zeros = torch.zeros(1, model.config.max_length, model.config.d_model)
    for side in ("encoder", "decoder"):
        their_stack, our_stack = getattr(rival.model, side), getattr(model, side)
        their_stack.embed_positions.weight.copy_(model.positions(zeros)[0])
        for theirs, ours in zip(their_stack.layers, our_stack.layers, strict=True):
            copy_layer(theirs, ours)
    return rival


def check_same(model: Transformer, rival: Any, source: Tensor) -> None:
    """Refuse to compare models that do not compute the same."""
    real = source != PAD
    with evaluating(model):
        ours = model(source, source)
        theirs = rival(
            source, attention_mask=real.long(), decoder_input_ids=source
        ).logits
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-3, atol=1e-3)


# --- Translating a batch ---


def our_write(model: Transformer, beam: int, extra: int, source: Tensor) -> Rows:
    """Translate a batch of sources (B, S) with the decoder of chapter 19."""
    with common.cudnn_attention(False):
        results = beam_search(model, source, beam, ALPHA, max_extra_tokens=extra)
    return [list(hypotheses[0].tokens) for hypotheses in results]


def their_write(rival: Any, beam: int, extra: int, source: Tensor) -> Rows:
    """Translate a batch of sources (B, S) with `generate`."""
    mask = (source != PAD).long()
    written = rival.generate(
        input_ids=source,
        attention_mask=mask,
        num_beams=beam,
        do_sample=False,
        length_penalty=ALPHA,
        max_new_tokens=source.size(1) + extra,
        suppress_tokens=[PAD, BOS],
    )
    limits = (mask.sum(dim=1) + extra).tolist()
    return [row[:limit] for row, limit in zip(written[:, 1:].tolist(), limits)]


def without_end(row: list[int]) -> list[int]:
    """Return the tokens before `</s>`."""
    return row[: row.index(EOS)] if EOS in row else row


class Translator:
    """Translates all batches in a turn, and keeps what it wrote."""

    def __init__(self, write: Write, batches: list[Tensor]) -> None:
        self.write = write
        self.batches = batches
        self.rows: Rows = []

    def turn(self, number: int) -> int:
        """Translate all batches; return how many tokens that are."""
        self.rows = []
        for batch in self.batches:
            self.rows += map(without_end, self.write(batch))
        return self.tokens()

    def tokens(self) -> int:
        """Count the tokens of the last turn."""
        return sum(map(len, self.rows))


# --- The comparison ---


def compare(
    search: str, translators: dict[str, Translator], turns: list[common.Record]
) -> list[list[str]]:
    """Return the rows of the table for one kind of search."""
    ours = translators["ours"]
    table = []
    for name, translator in translators.items():
        rates = common.rates(turns, name)
        middle = statistics.median(rates)
        tokens_each = translator.tokens() / len(translator.rows)
        # In sentences a second, whatever the number of tokens
        lead = common.median_ratio(turns, "ours", name)
        lead *= translator.tokens() / ours.tokens()
        same = statistics.mean(a == b for a, b in zip(ours.rows, translator.rows))
        table.append(
            [
                f"{search}, {name}",
                f"{middle:,.0f}",
                common.quartiles(rates),
                f"{middle / tokens_each:.1f}",
                f"{tokens_each:.1f}",
                f"{lead:.2f}",
                f"{same:.1%}",
            ]
        )
    return table


def read_sources(
    corpus: common.Corpus, size: common.Size, folder: Path | None
) -> tuple[Transformer, Rows]:
    """Return a trained model, or one with random weights, and the sources it translates."""
    if folder is None:
        model = common.make_model(size).eval()
        examples = common.encoded(corpus, "val", model.config.vocabulary_size)
        return model, [example.source.tolist() for example in examples]
    model, tokenizer = load_model(folder)
    pairs = common.read(corpus, "val")
    return model, [[*tokenizer.encode(pair.source), EOS] for pair in pairs]


def main(
    size: common.Size = "mini",
    model: Path | None = None,
    corpus: common.Corpus = "multi30k",
    beams: tuple[int, ...] = (1, 4),
    sentences: int = 256,
    batch: int = 64,
    extra: int = 50,
    threads: int = 1,
    rounds: int = 7,
    cpu_time: bool = False,
    device: str = "cuda" if common.GPU else "cpu",
    results: Path = common.RESULTS,
) -> None:
    """Translate the same sentences with the same weights in two systems."""
    torch.set_num_threads(threads)
    ours, sources = read_sources(corpus, size, model)
    sources = sorted(sources[:sentences], key=len)
    starts = range(0, len(sources), batch)
    batches = [pad(sources[start : start + batch]).to(device) for start in starts]
    rival = same_weights(ours).to(device) if common.has_transformers() else None
    ours = ours.to(device)
    if rival is not None:
        check_same(ours, rival, batches[-1][:8])

    records, rows = [], []
    for beam in beams:
        search = "greedy" if beam == 1 else f"beam {beam}"
        writers: dict[str, Write] = {"ours": partial(our_write, ours, beam, extra)}
        if rival is not None:
            writers["generate"] = partial(their_write, rival, beam, extra)
        translators = {
            name: Translator(write, batches) for name, write in writers.items()
        }
        systems = {name: translator.turn for name, translator in translators.items()}
        turns = common.take_turns(systems, rounds, cpu_time)
        records += [{"search": search, **turn} for turn in turns]
        rows += compare(search, translators, turns)
    header = ["decoding", "tokens/s", "quartiles", "sentences/s", "tokens each"]
    print(common.table([*header, "ours is x times", "same output"], rows))
    name = model.name if model else size
    settings = {
        "benchmark": "decoding",
        "model": name,
        "corpus": corpus,
        "threads": threads,
        "batch": batch,
        "extra": extra,
        "sentences": len(sources),
        "device": common.device_name(device),
        "clock": "processor" if cpu_time else "wall",
    }
    common.write_log(results, f"decoding-{name}-{threads}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
