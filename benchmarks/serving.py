"""Translate Multi30k's test captions with this book's decoder and with CTranslate2.

    python benchmarks/serving.py --threads 2 --rounds 5 --bf16

All systems translate the same 1,000 sentences with the same weights, from text to text: cutting
into subwords and joining them counts. CTranslate2 computes in single precision, and in 8 bits; our
decoder in single precision, and with --bf16, for a processor that has units for it, in bf16. Of
several threads CTranslate2 makes parts of a product, or workers with batches of their own, as our
`translate` does.
"""

import copy
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import ctranslate2
import torch
import tyro

from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.export import export_ctranslate2
from annotated_transformer.model_io import load_model, load_pretrained
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer

PENALTY = 0.6  # CTranslate2 divides by length ** alpha, we by ((5 + length) / 6) ** 0.6


def served(
    engine: ctranslate2.Translator, tokenizer: Tokenizer, lines: list[str], max_tokens: int,
    **options: Any,
) -> list[str]:  # fmt: skip
    """Translate the lines with CTranslate2, searching nearly as we do."""
    sources = [tokenizer.library.encode(line).tokens for line in lines]
    options |= {"max_batch_size": max_tokens, "batch_type": "tokens", "max_input_length": 0}
    options |= {"min_decoding_length": 0, "suppress_sequences": [["<pad>"], ["<s>"]]}
    longest = max(map(len, sources)) + 51
    found = engine.translate_batch(sources, max_decoding_length=longest, **options)
    return [tokenizer.library.decoder.decode(each.hypotheses[0]) for each in found]


def ours_served(
    model: Transformer, tokenizer: Tokenizer, lines: list[str], max_tokens: int, beam: int,
    threads: int,
) -> list[str]:  # fmt: skip
    """Translate the lines with our decoder."""
    torch.set_num_threads(threads)  # CTranslate2 changes it: both use one OpenMP
    return translate(model, tokenizer, lines, beam, max_tokens=max_tokens)


def turn(write: Callable[[], list[str]], seen: list[str]) -> Callable[[int], int]:
    """Return what translates all lines once and keeps the translations in `seen`."""

    def run(number: int) -> int:
        seen[:] = write()
        return len(seen)

    return run


def alike(some: list[str], others: list[str]) -> int:
    """Count the translations that are the same."""
    return sum(map(str.__eq__, some, others))


def main(
    model: Path | None = None, threads: int = 2, rounds: int = 5, beams: tuple[int, ...] = (1, 4),
    sentences: int = 1000, max_tokens: int = 2048, bf16: bool = False,
    corpus: common.Corpus = "multi30k", results: Path = common.RESULTS,
) -> None:  # fmt: skip
    """Translate test captions with this book's decoder and with CTranslate2.

    A batch has at most max_tokens source tokens, in all systems.
    """
    torch.set_num_threads(threads)
    ours, tokenizer = load_model(model) if model else load_pretrained("captions-de-en")
    models = {"ours": ours} | ({"ours bf16": copy.deepcopy(ours).bfloat16()} if bf16 else {})
    pairs = common.read(corpus, "test_2016_flickr")[:sentences]
    lines, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    records: list[dict[str, Any]] = []
    rows = []
    with tempfile.TemporaryDirectory() as home:
        export_ctranslate2(ours, tokenizer, f"{home}/model")
        ways = {"": {"inter_threads": 1, "intra_threads": threads}}
        if threads > 1:
            ways[" workers"] = {"inter_threads": threads, "intra_threads": 1}
        engines = {
            f"CTranslate2 {kind}{way}": ctranslate2.Translator(
                f"{home}/model", compute_type=kind, **shared
            )
            for kind in ("float32", "int8")
            for way, shared in ways.items()
        }
        for beam in beams:
            search = "greedy" if beam == 1 else f"beam {beam}"
            seen: dict[str, list[str]] = {name: [] for name in (*models, *engines)}
            settings = {"beam_size": beam, "length_penalty": PENALTY}
            systems = {
                name: turn(
                    partial(served, engine, tokenizer, lines, max_tokens, **settings), seen[name]
                )
                for name, engine in engines.items()
            }
            for name, mine in models.items():
                write = partial(ours_served, mine, tokenizer, lines, max_tokens, beam, threads)
                systems[name] = turn(write, seen[name])
            turns = common.take_turns(systems, rounds)
            records += [{"search": search, **r, "sentences": len(lines)} for r in turns]
            for name, written in seen.items():
                rate = statistics.median(common.column(turns, name))
                result = {"sentences_per_second": round(rate, 1), "system": name}
                result["times_ours"] = round(common.times(turns, name, "ours"), 2)
                result["bleu"] = round(score(written, references).bleu, 2)
                result["same_as_ours"] = alike(written, seen["ours"])
                records.append({"search": search, **result})
                texts = [f"{result['times_ours']:.2f}", f"{result['bleu']:.2f}"]
                texts.append(f"{result['same_as_ours']:,}")
                rows.append([f"{search}, {name}", f"{rate:,.0f}", *texts])
        for penalty in (PENALTY, 0.5) if beam > 1 else ():  # of the last beam
            for patience in (1, 2):
                settings |= {"length_penalty": penalty, "patience": patience}
                written = served(
                    engines["CTranslate2 float32"], tokenizer, lines, max_tokens, **settings
                )
                same = alike(written, seen["ours"])
                result = {"length_penalty": penalty, "patience": patience, "same_as_ours": same}
                records.append({"search": search, "system": "CTranslate2 float32", **result})
                print(f"{search}, length_penalty {penalty}, patience {patience}: {same} as ours")
    print(common.table(["system", "sentences/s", "times ours", "BLEU", "same as ours"], rows))
    name = model.name if model else "captions-de-en"
    settings = {"benchmark": "serving", "model": name, "corpus": f"{corpus} test_2016_flickr"}
    command = f"python benchmarks/serving.py --threads {threads} --rounds {rounds}"
    command += f" --model {model}" if model else ""
    command += f" --max-tokens {max_tokens}" if max_tokens != 2048 else ""
    settings |= {"command": command + " --bf16" * bf16}
    settings |= {"threads": threads, "max_tokens": max_tokens, "clock": "wall"}
    settings |= {"sentences": len(lines)}
    ending = f"-{max_tokens}" if max_tokens != 2048 else ""
    common.write_log(results, f"serving-{name}-{threads}{ending}", settings, records)


if __name__ == "__main__":
    tyro.cli(main)
