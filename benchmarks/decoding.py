"""Translate the same sentences with the same weights: this book's decoder and `generate`.

    python benchmarks/decoding.py --threads 2
    python benchmarks/decoding.py --compile --size base

Our weights are copied into a MarianMTModel of Hugging Face, so that both compute the same numbers;
before the clock starts, their logits are compared. Sentences are sorted by length and cut into the
same batches. Without --model, weights are random: no sentence then ends by itself, and both write
as many tokens as they may.

With --compile, the readers of chapter 25 take part in place of `generate`: a cache with room, and
the same compiled. A GPU is used if there is one.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from common import (
    SIZES,
    arguments,
    encoded,
    has_transformers,
    marian,
    ours,
    programs,
    read,
    table,
    take_turns,
    write_log,
)
from torch import Tensor, nn

from annotated_transformer.batching import encode_source, pad
from annotated_transformer.decoding import Reader, beam_search, next_logits
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.model_io import load_model
from annotated_transformer.speed import compiled_reader, static_reader
from annotated_transformer.transformer import Transformer, evaluating

ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}


def copy_linear(theirs: nn.Linear, ours: nn.Linear) -> None:
    """Copy weight and bias; where we have no bias, theirs becomes zero."""
    theirs.weight.copy_(ours.weight)
    theirs.bias.zero_() if ours.bias is None else theirs.bias.copy_(ours.bias)


def copy_layer(theirs: nn.Module, ours: nn.Module) -> None:
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
def same_weights(model: Transformer) -> nn.Module:
    """Make a MarianMTModel that computes what the model computes, positions included."""
    if model.config.pre_norm or model.config.attention_bias:
        raise ValueError("MarianMTModel normalizes after each sub-layer: take a post-norm model")
    rival = marian(model.config).eval()
    rival.model.shared.weight.copy_(model.embedding.weight)
    nothing = torch.zeros(1, model.config.max_length, model.config.d_model)
    for side in ("encoder", "decoder"):
        stack = getattr(rival.model, side)
        stack.embed_positions.weight.copy_(model.positions(nothing)[0])
        for theirs, mine in zip(stack.layers, getattr(model, side).layers, strict=True):
            copy_layer(theirs, mine)
    return rival


def check_same(model: Transformer, rival: nn.Module, source: Tensor) -> None:
    """Refuse to compare models that do not compute the same."""
    with evaluating(model):
        theirs = rival(
            input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=source
        ).logits
        real = source != PAD
        mine = model(source, source)[real]
        torch.testing.assert_close(mine, theirs[real], rtol=1e-3, atol=1e-3)


def up_to_end(row: list[int]) -> list[int]:
    """Return a translation without `</s>` and what follows."""
    return row[: row.index(EOS)] if EOS in row else row


def translator(
    write: Callable[[Tensor], list[list[int]]], parts: list[Tensor], seen: dict[int, list[int]]
) -> Callable[[int], int]:
    """Return what translates all batches, counts the tokens, and keeps them in `seen`."""

    def turn(number: int) -> int:
        rows = [up_to_end(row) for part in parts for row in write(part)]
        seen.update(enumerate(rows))
        return sum(map(len, rows))

    return turn


def our_writer(
    model: Transformer, beam: int, extra: int, reader: Reader = next_logits
) -> Callable[[Tensor], list[list[int]]]:
    """Return what translates a batch of sources (B, S) with the decoder of chapter 19."""

    def write(source: Tensor) -> list[list[int]]:
        found = beam_search(model, source, beam=beam, alpha=0.6, max_extra_tokens=extra, read=reader)
        return [list(best[0].tokens) for best in found]

    return write


def their_writer(rival: nn.Module, beam: int, extra: int) -> Callable[[Tensor], list[list[int]]]:
    """Return what translates a batch of sources (B, S) with `generate`."""

    def write(source: Tensor) -> list[list[int]]:
        rows = rival.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=beam,
            do_sample=False,
            length_penalty=0.6,
            max_new_tokens=source.size(1) + extra,
            suppress_tokens=[PAD, BOS],
        )
        limits = ((source != PAD).sum(dim=1) + extra).tolist()
        return [row[:limit] for row, limit in zip(rows[:, 1:].tolist(), limits)]

    return write


def agreement(one: dict[int, list[int]], other: dict[int, list[int]]) -> str:
    """Return the share of sentences that both wrote alike."""
    return f"{statistics.mean(one[index] == other[index] for index in one):.1%}"


def report(
    name: str, turns: list[dict], written: dict[str, dict[int, list[int]]], sentences: int
) -> list[list[str]]:
    """Give each system a row: tokens and sentences a second, and the time it takes beside ours."""
    seconds: dict[str, list[float]] = {"ours": []}
    tokens = {turn["system"]: turn["tokens"] for turn in turns}
    for turn in turns:
        seconds.setdefault(turn["system"], []).append(turn["seconds"])
    rows = []
    for system, taken in seconds.items():
        middle = statistics.median(taken)
        low, _, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3
        ratio = statistics.median(b / a for a, b in zip(seconds["ours"], taken))
        rows.append(
            [
                f"{name}, {system}",
                f"{tokens[system] / middle:,.0f}",
                f"{tokens[system] / high:,.0f} to {tokens[system] / low:,.0f}",
                f"{sentences / middle:.1f}",
                f"{tokens[system] / sentences:.1f}",
                f"{ratio:.2f}",
                "" if system == "ours" else agreement(written["ours"], written[system]),
            ]
        )
    return rows


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a trained model, instead of --size")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="1 is greedy")
    parser.add_argument("--sentences", type=int, default=256, help="of the validation split")
    parser.add_argument("--batch", type=int, default=64, help="sentences side by side")
    parser.add_argument("--extra", type=int, default=50, help="tokens beyond the source's")
    parser.add_argument("--compile", action="store_true", help="the readers of chapter 25")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)

    if options.model:
        model, tokenizer = load_model(options.model)
        pairs = read(options.corpus, "val")
        sources = [encode_source(tokenizer, pair.source) for pair in pairs]
    else:
        model = ours(options.size).eval()
        size = SIZES[options.size]["vocabulary_size"]
        sources = [example.source for example in encoded(options.corpus, "val", size)]
    sources = sorted(sources[: options.sentences], key=len)
    starts = range(0, len(sources), options.batch)
    parts = [pad(sources[start : start + options.batch]).to(device) for start in starts]

    rival = same_weights(model) if not options.compile and has_transformers() else None
    model = model.to(device)
    if rival is not None:
        check_same(model, rival.to(device), parts[-1][:8])
    readers: dict[str, Reader] = {"ours": next_logits}
    if options.compile:
        readers |= {"room for the past": static_reader(), "compiled": compiled_reader(device)}
    c = model.config
    shape = f"layers {c.layers}, d_model {c.d_model}, d_ff {c.d_ff}, heads {c.heads}"
    print(f"{shape}, vocabulary {c.vocabulary_size}, threads {options.threads}")
    records, rows = [], []
    for beam in options.beams:
        name = "greedy" if beam == 1 else f"beam {beam}"
        writers = {
            system: our_writer(model, beam, options.extra, reader)
            for system, reader in readers.items()
        }
        if rival is not None:
            writers["generate"] = their_writer(rival, beam, options.extra)
        written: dict[str, dict[int, list[int]]] = {system: {} for system in writers}
        systems = {
            system: translator(write, parts, written[system]) for system, write in writers.items()
        }
        _, turns = take_turns(systems, options.rounds, options.cpu_time)
        records += [{"search": name, **turn} for turn in turns]
        rows += report(name, turns, written, len(sources))
    header = ["decoding", "tokens/s", "quartiles", "sentences/s", "tokens each"]
    print(table([*header, "ours is x times", "same output"], rows))
    settings = {
        "benchmark": "decoding",
        "model": options.model.name if options.model else options.size,
        "corpus": options.corpus,
        "threads": options.threads,
        "batch": options.batch,
        "extra": options.extra,
        "clock": "processor" if options.cpu_time else "wall",
        "sentences": len(sources),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "programs": programs(),
    }
    kind = "compiled" if options.compile else settings["model"]
    write_log(options.results, f"decoding-{kind}-{options.threads}", settings, records)


if __name__ == "__main__":
    main()
