"""Translate Multi30k's test captions with this book's decoder and with CTranslate2.

    python -m benchmarks.speed.serving --threads 2 --bf16

All systems translate the same 1,000 sentences with the same weights, from text to text: cutting
into subwords and joining them counts. CTranslate2 computes in single precision, and in 8 bits; our
decoder in single precision, and with --bf16, for a processor that has units for it, in bf16. Of
several threads CTranslate2 makes parts of a product, or workers with batches of their own. Writes
`results/serving-MODEL-THREADS.jsonl`, which the appendix on exporting shows.
"""

import copy
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2
import torch

from annotated_transformer import Tokenizer, Transformer, load_model, score, translate
from annotated_transformer.export import export_ctranslate2
from annotated_transformer.own_data import multi30k
from benchmarks import common

MAX_TOKENS = 2048  # of a batch, in all systems
PENALTY = 0.6  # CTranslate2 divides by length ** alpha, we by ((5 + length) / 6) ** 0.6
EXTRA = 51  # tokens that a translation may have more than the longest source
Write = Callable[[], list[str]]


def their_translate(
    engine: ctranslate2.Translator, tokenizer: Tokenizer, beam: int, lines: list[str]
) -> list[str]:
    """Translate the lines with CTranslate2, searching nearly as we do."""
    sources = [tokenizer.library.encode(line).tokens for line in lines]
    translations = engine.translate_batch(
        sources,
        beam_size=beam,
        length_penalty=PENALTY,
        max_batch_size=MAX_TOKENS,
        batch_type="tokens",
        max_input_length=0,
        min_decoding_length=0,
        max_decoding_length=max(map(len, sources)) + EXTRA,
        suppress_sequences=[["<pad>"], ["<s>"]],
    )
    decode = tokenizer.library.decoder.decode
    return [decode(translation.hypotheses[0]) for translation in translations]


def our_translate(
    model: Transformer, tokenizer: Tokenizer, beam: int, lines: list[str], threads: int
) -> list[str]:
    """Translate the lines with our decoder."""
    torch.set_num_threads(threads)  # CTranslate2 changes it: both use one OpenMP
    return translate(model, tokenizer, lines, beam, max_tokens=MAX_TOKENS)


def make_engines(folder: str, threads: int) -> dict[str, ctranslate2.Translator]:
    """Open an exported model in single precision and in 8 bits, for each way to use threads."""
    ways = {"": {"inter_threads": 1, "intra_threads": threads}}
    if threads > 1:
        ways[" workers"] = {"inter_threads": threads, "intra_threads": 1}
    engines = {}
    for kind in ("float32", "int8"):
        for way, shares in ways.items():
            engines[f"CTranslate2 {kind}{way}"] = ctranslate2.Translator(
                folder, compute_type=kind, **shares
            )
    return engines


def measure(
    search: str, writers: dict[str, Write], rounds: int, references: list[str]
) -> list[common.Record]:
    """Let all systems translate by turns; return the turns, and what each system did."""
    written: dict[str, list[str]] = {}

    def turn(number: int, name: str) -> int:
        written[name] = writers[name]()
        return len(references)

    systems = {name: partial(turn, name=name) for name in writers}
    turns = common.take_turns(systems, rounds)
    records = [{"search": search, **turn} for turn in turns]
    for name, texts in written.items():
        rate = statistics.median(common.rates(turns, name))
        same = sum(text == own for text, own in zip(texts, written["ours"]))
        record = {
            "search": search,
            "system": name,
            "sentences_per_second": round(rate, 1),
            "times_ours": round(common.times_as_fast(turns, name, "ours"), 2),
            "bleu": round(score(texts, references).bleu, 2),
            "same_as_ours": same,
        }
        print(record, flush=True)
        records.append(record)
    return records


def main(
    model: str = "captions-de-en",
    threads: int = 2,
    rounds: int = 5,
    beams: tuple[int, ...] = (1, 4),
    sentences: int = 1000,
    bf16: bool = False,
    results: Path = common.RESULTS,
) -> None:
    """Translate test captions with a model of the package, or one in a folder."""
    torch.set_num_threads(threads)
    ours, tokenizer = load_model(model)
    models = {"ours": ours}
    if bf16:
        models["ours bf16"] = copy.deepcopy(ours).bfloat16()
    pairs = multi30k("test_2016_flickr")[:sentences]
    lines = [pair.source for pair in pairs]
    with TemporaryDirectory() as home:
        export_ctranslate2(ours, tokenizer, f"{home}/model")
        engines = make_engines(f"{home}/model", threads)
    records = []
    for beam in beams:
        writers: dict[str, Write] = {}
        text: dict[str, Any] = {"tokenizer": tokenizer, "beam": beam, "lines": lines}
        for name, system in models.items():
            writers[name] = partial(our_translate, system, threads=threads, **text)
        for name, engine in engines.items():
            writers[name] = partial(their_translate, engine, **text)
        search = "greedy" if beam == 1 else f"beam {beam}"
        references = [pair.target for pair in pairs]
        records += measure(search, writers, rounds, references)
    name = Path(model).name
    settings = {"model": name, "threads": threads, "max_tokens": MAX_TOKENS}
    settings["sentences"] = len(lines)
    common.write_log(results, f"serving-{name}-{threads}", settings, records)


if __name__ == "__main__":
    common.command(main)
