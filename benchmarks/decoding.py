"""Translate the same sentences with the same weights: this book's decoder and `generate`.

    python benchmarks/decoding.py --threads 2

Our weights are copied into a MarianMTModel of Hugging Face, so that both compute the same numbers;
before the clock starts, their logits are compared. Sentences are sorted by length and cut into the
same batches. Without --model, weights are random: no sentence then ends by itself, and both write
as many tokens as they may. A GPU is used if there is one.
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import torch
import tyro
from torch import Tensor, nn

from annotated_transformer.batching import pad
from annotated_transformer.decoding import beam_search, fast_kernels
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.model_io import load_model
from annotated_transformer.transformer import Transformer, evaluating

ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
Write = Callable[[Tensor], list[list[int]]]


def copy_linear(theirs: nn.Linear, ours: nn.Linear) -> None:
    """Copy weight and bias; where we have no bias, theirs becomes zero."""
    theirs.weight.copy_(ours.weight)
    theirs.bias.zero_() if ours.bias is None else theirs.bias.copy_(ours.bias)


def copy_layer(theirs: Any, ours: Any) -> None:
    """Copy one layer of the encoder or the decoder."""
    norms = [theirs.self_attn_layer_norm, theirs.final_layer_norm]
    pairs = [(theirs.self_attn, ours.self_attention)]
    if hasattr(theirs, "encoder_attn"):
        norms.insert(1, theirs.encoder_attn_layer_norm)
        pairs.append((theirs.encoder_attn, ours.cross_attention))
    for their_attention, our_attention in pairs:
        for their_name, our_name in ATTENTION.items():
            copy_linear(getattr(their_attention, their_name), getattr(our_attention, our_name))
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
        raise ValueError("MarianMTModel normalizes after each sub-layer: take a post-norm model")
    rival = common.marian(model.config).eval()
    rival.model.shared.weight.copy_(model.embedding.weight)
    nothing = torch.zeros(1, model.config.max_length, model.config.d_model)
    for side in ("encoder", "decoder"):
        stack = getattr(rival.model, side)
        stack.embed_positions.weight.copy_(model.positions(nothing)[0])
        for theirs, mine in zip(stack.layers, getattr(model, side).layers, strict=True):
            copy_layer(theirs, mine)
    return rival


def check_same(model: Transformer, rival: Any, source: Tensor) -> None:
    """Refuse to compare models that do not compute the same."""
    real = source != PAD
    with evaluating(model):
        theirs = rival(source, attention_mask=real.long(), decoder_input_ids=source).logits
        torch.testing.assert_close(model(source, source)[real], theirs[real], rtol=1e-3, atol=1e-3)


def our_write(model: Transformer, beam: int, extra: int, source: Tensor) -> list[list[int]]:
    """Translate a batch of sources (B, S) with the decoder of chapter 19."""
    with fast_kernels():
        found = beam_search(model, source, beam=beam, alpha=0.6, max_extra_tokens=extra)
    return [list(best.tokens) for best, *_ in found]


def their_write(rival: Any, beam: int, extra: int, source: Tensor) -> list[list[int]]:
    """Translate a batch of sources (B, S) with `generate`."""
    mask = (source != PAD).long()
    options = {"num_beams": beam, "do_sample": False, "length_penalty": 0.6}
    options |= {"max_new_tokens": source.size(1) + extra, "suppress_tokens": [PAD, BOS]}
    rows = rival.generate(input_ids=source, attention_mask=mask, **options)[:, 1:].tolist()
    limits = (mask.sum(dim=1) + extra).tolist()
    return [row[:limit] for row, limit in zip(rows, limits)]


def translator(write: Write, parts: list[Tensor], seen: list[list[int]]) -> Callable[[int], int]:
    """Return what translates all batches, counts the tokens, and keeps them in `seen`."""

    def turn(number: int) -> int:
        rows = [row for part in parts for row in write(part)]
        seen[:] = [row[: row.index(EOS)] if EOS in row else row for row in rows]
        return sum(map(len, seen))

    return turn


def main(
    size: common.Size = "mini", model: Path | None = None, corpus: common.Corpus = "multi30k",
    beams: tuple[int, ...] = (1, 4), sentences: int = 256, batch: int = 64, extra: int = 50,
    threads: int = 1, rounds: int = 7, cpu_time: bool = False,
    device: str = "cuda" if common.GPU else "cpu", results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Translate the same sentences with the same weights in two systems."""
    torch.set_num_threads(threads)
    if model:
        ours, tokenizer = load_model(model)
        pairs = common.read(corpus, "val")
        sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    else:
        ours = common.make_model(size).eval()
        examples = common.encoded(corpus, "val", ours.config.vocabulary_size)
        sources = [example.source.tolist() for example in examples]
    sources = sorted(sources[:sentences], key=len)
    starts = range(0, len(sources), batch)
    parts = [pad(sources[start : start + batch]).long().to(device) for start in starts]
    rival = same_weights(ours).to(device) if common.has_transformers() else None
    ours = ours.to(device)
    if rival is not None:
        check_same(ours, rival, parts[-1][:8])

    records, rows = [], []
    for beam in beams:
        search = "greedy" if beam == 1 else f"beam {beam}"
        writers: dict[str, Write] = {"ours": partial(our_write, ours, beam, extra)}
        if rival is not None:
            writers["generate"] = partial(their_write, rival, beam, extra)
        seen: dict[str, list[list[int]]] = {system: [] for system in writers}
        systems = {name: translator(write, parts, seen[name]) for name, write in writers.items()}
        turns = common.take_turns(systems, rounds, cpu_time)
        records += [{"search": search, **turn} for turn in turns]
        for name, written in seen.items():
            rates, tokens = common.column(turns, name), sum(map(len, written))
            middle = statistics.median(rates)
            spent = [f"{middle:,.0f}", common.quartiles(rates)]
            spent += [f"{middle * len(written) / tokens:.1f}", f"{tokens / len(written):.1f}"]
            ratio = common.times(turns, "ours", name) * tokens / sum(map(len, seen["ours"]))
            same = statistics.mean(a == b for a, b in zip(seen["ours"], written))
            rows.append([f"{search}, {name}", *spent, f"{ratio:.2f}", f"{same:.1%}"])
    header = ["decoding", "tokens/s", "quartiles", "sentences/s", "tokens each"]
    print(common.table([*header, "ours is x times", "same output"], rows))
    name = model.name if model else size
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    settings = {"benchmark": "decoding", "model": name, "corpus": corpus, "threads": threads}
    settings |= {"batch": batch, "extra": extra, "sentences": len(sources), "device": kind}
    settings |= {"clock": "processor" if cpu_time else "wall"}
    common.write_log(results, f"decoding-{name}-{threads}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
