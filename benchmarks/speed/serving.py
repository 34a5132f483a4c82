"""Translate Multi30k's test captions with this book's decoder and with CTranslate2.

    python -m benchmarks.speed.serving --threads 2 --rounds 5 --bf16

All systems translate the same 1,000 sentences with the same weights, from text to text: cutting
into subwords and joining them counts. CTranslate2 computes in single precision, and in 8 bits; our
decoder in single precision, and with --bf16, for a processor that has units for it, in bf16. Of
several threads CTranslate2 makes parts of a product, or workers with batches of their own, as our
`translate` does. Writes `results/serving-MODEL-THREADS.jsonl`, with other batches than those of
2,048 tokens `serving-MODEL-THREADS-TOKENS.jsonl`.
"""

import copy
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import torch
import tyro

from annotated_transformer import (
    Tokenizer,
    Transformer,
    export_ctranslate2,
    load_model,
    load_pretrained,
    score,
    translate,
)
from benchmarks import common

MAX_TOKENS = 2048
PENALTY = 0.6  # CTranslate2 divides by length ** alpha, we by ((5 + length) / 6) ** 0.6
EXTRA = 51  # tokens that a translation may have more than the longest source


def their_translate(
    engine: ctranslate2.Translator,
    tokenizer: Tokenizer,
    lines: list[str],
    max_tokens: int,
    beam: int,
    length_penalty: float = PENALTY,
    **options: Any,
) -> list[str]:
    """Translate the lines with CTranslate2, searching nearly as we do."""
    sources = [tokenizer.library.encode(line).tokens for line in lines]
    translations = engine.translate_batch(
        sources,
        beam_size=beam,
        length_penalty=length_penalty,
        max_batch_size=max_tokens,
        batch_type="tokens",
        max_input_length=0,
        min_decoding_length=0,
        max_decoding_length=max(map(len, sources)) + EXTRA,
        suppress_sequences=[["<pad>"], ["<s>"]],
        **options,
    )
    decode = tokenizer.library.decoder.decode
    return [decode(translation.hypotheses[0]) for translation in translations]


def our_translate(
    model: Transformer,
    tokenizer: Tokenizer,
    lines: list[str],
    max_tokens: int,
    beam: int,
    threads: int,
) -> list[str]:
    """Translate the lines with our decoder."""
    torch.set_num_threads(threads)  # CTranslate2 changes it: both use one OpenMP
    return translate(model, tokenizer, lines, beam, max_tokens=max_tokens)


class Server:
    """Translates all lines in a turn, and keeps the translations."""

    def __init__(self, write: Callable[..., list[str]]) -> None:
        self.write = write
        self.translations: list[str] = []

    def turn(self, number: int) -> int:
        """Translate all lines once; return how many they are."""
        self.translations = self.write()
        return len(self.translations)


def count_same(texts: list[str], others: list[str]) -> int:
    """Count the translations that are the same."""
    return sum(text == other for text, other in zip(texts, others))


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


def results_of(
    servers: dict[str, Server], turns: list[common.Record], references: list[str]
) -> list[common.Record]:
    """Return what each system did: speed, BLEU, and how many translations are as ours."""
    ours = servers["ours"].translations
    records = []
    for name, server in servers.items():
        rate = statistics.median(common.rates(turns, name))
        ratio = common.median_ratio(turns, name, "ours")
        records.append(
            {
                "sentences_per_second": round(rate, 1),
                "system": name,
                "times_ours": round(ratio, 2),
                "bleu": round(score(server.translations, references).bleu, 2),
                "same_as_ours": count_same(server.translations, ours),
            }
        )
    return records


def vary_penalty(
    write: Callable[..., list[str]], ours: list[str]
) -> list[common.Record]:
    """Tell how many of CTranslate2's translations are ours with other settings of its search."""
    records = []
    for penalty in (PENALTY, 0.5):
        for patience in (1, 2):
            translations = write(length_penalty=penalty, patience=patience)
            records.append(
                {
                    "system": "CTranslate2 float32",
                    "length_penalty": penalty,
                    "patience": patience,
                    "same_as_ours": count_same(translations, ours),
                }
            )
            print(records[-1])
    return records


def command_line(
    model: Path | None, threads: int, rounds: int, max_tokens: int, bf16: bool
) -> str:
    """Return the command that makes this measurement."""
    command = f"python -m benchmarks.speed.serving --threads {threads}"
    command += f" --rounds {rounds}"
    if model:
        command += f" --model {model}"
    if max_tokens != MAX_TOKENS:
        command += f" --max-tokens {max_tokens}"
    return command + " --bf16" if bf16 else command


def main(
    model: Path | None = None,
    threads: int = 2,
    rounds: int = 5,
    beams: tuple[int, ...] = (1, 4),
    sentences: int = 1000,
    max_tokens: int = MAX_TOKENS,
    bf16: bool = False,
    corpus: common.Corpus = "multi30k",
    results: Path = common.RESULTS,
) -> None:
    """Translate test captions with this book's decoder and with CTranslate2.

    A batch has at most max_tokens source tokens, in all systems.
    """
    torch.set_num_threads(threads)
    ours, tokenizer = load_model(model) if model else load_pretrained("captions-de-en")
    models = {"ours": ours}
    if bf16:
        models["ours bf16"] = copy.deepcopy(ours).bfloat16()
    pairs = common.read(corpus, "test_2016_flickr")[:sentences]
    lines = [pair.source for pair in pairs]
    references = [pair.target for pair in pairs]
    records: list[common.Record] = []
    rows = []
    with tempfile.TemporaryDirectory() as home:
        export_ctranslate2(ours, tokenizer, f"{home}/model")
        engines = make_engines(f"{home}/model", threads)
        for beam in beams:
            search = "greedy" if beam == 1 else f"beam {beam}"
            text = (tokenizer, lines, max_tokens, beam)
            servers = {}
            for name, system in models.items():
                servers[name] = Server(partial(our_translate, system, *text, threads))
            for name, engine in engines.items():
                servers[name] = Server(partial(their_translate, engine, *text))
            systems = {name: server.turn for name, server in servers.items()}
            turns = common.take_turns(systems, rounds)
            for turn in turns:
                records.append({"search": search, **turn, "sentences": len(lines)})
            for result in results_of(servers, turns, references):
                records.append({"search": search, **result})
                rows.append(
                    [
                        f"{search}, {result['system']}",
                        f"{result['sentences_per_second']:,.0f}",
                        f"{result['times_ours']:.2f}",
                        f"{result['bleu']:.2f}",
                        f"{result['same_as_ours']:,}",
                    ]
                )
        if beam > 1:  # the last one
            single = servers["CTranslate2 float32"].write
            for result in vary_penalty(single, servers["ours"].translations):
                records.append({"search": search, **result})
    header = ["system", "sentences/s", "times ours", "BLEU", "same as ours"]
    print(common.table(header, rows))
    name = model.name if model else "captions-de-en"
    settings = {
        "benchmark": "serving",
        "model": name,
        "corpus": f"{corpus} test_2016_flickr",
        "command": command_line(model, threads, rounds, max_tokens, bf16),
        "threads": threads,
        "max_tokens": max_tokens,
        "clock": "wall",
        "sentences": len(lines),
    }
    ending = f"-{max_tokens}" if max_tokens != MAX_TOKENS else ""
    common.write_log(results, f"serving-{name}-{threads}{ending}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
