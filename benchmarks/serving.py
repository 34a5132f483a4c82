"""Translate Multi30k's test captions with this book's decoder and with CTranslate2.

    python benchmarks/serving.py --threads 2 --rounds 5

All systems translate the same 1,000 sentences with the same weights, from text to text: cutting
into pieces and joining them counts. CTranslate2 computes in single precision, and in 8 bits.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from common import RESULTS, table, take_turns, write_log

from annotated_transformer.data import multi30k
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.export import export_ctranslate2
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.model_io import load_model, load_pretrained

MAX_TOKENS = 2048  # source tokens of a batch, in all systems
FORBIDDEN = [["<pad>"], ["<s>"]]
PENALTY = 0.6  # CTranslate2 divides by length ** alpha, we by ((5 + length) / 6) ** 0.6


def served(
    folder: str,
    tokenizer: Tokenizer,
    lines: list[str],
    kind: str,
    beam: int,
    threads: int,
    penalty: float = PENALTY,
    patience: float = 1,
) -> Callable[[], list[str]]:
    """Return what translates the lines with CTranslate2, searching nearly as we do."""
    engine = ctranslate2.Translator(
        folder, compute_type=kind, inter_threads=1, intra_threads=threads
    )

    def write() -> list[str]:
        sources = [tokenizer.library.encode(line).tokens for line in lines]
        found = engine.translate_batch(
            sources,
            beam_size=beam,
            length_penalty=penalty,
            patience=patience,
            max_batch_size=MAX_TOKENS,
            batch_type="tokens",
            min_decoding_length=0,
            max_input_length=0,
            max_decoding_length=max(map(len, sources)) + 51,
            suppress_sequences=FORBIDDEN,
        )
        return [tokenizer.library.decoder.decode(each.hypotheses[0]) for each in found]

    return write


def turn(write: Callable[[], list[str]], seen: list[str]) -> Callable[[int], int]:
    """Return what translates all lines once and keeps the translations in `seen`."""

    def run(number: int) -> int:
        seen[:] = write()
        return len(seen)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a model; else the pretrained one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns that each system gets")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="1 is greedy")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the log")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    model, tokenizer = load_model(options.model) if options.model else load_pretrained()
    pairs = multi30k("test_2016_flickr")[: options.sentences]
    lines, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    records: list[dict[str, Any]] = []
    rows = []
    with tempfile.TemporaryDirectory() as home:
        export_ctranslate2(model, tokenizer, f"{home}/model")
        for beam in options.beams:
            search = "greedy" if beam == 1 else f"beam {beam}"
            writers = {
                "ours": lambda beam=beam: translate(
                    model, tokenizer, lines, beam, max_tokens=MAX_TOKENS
                )
            }
            for kind in ("float32", "int8"):
                writers[f"CTranslate2 {kind}"] = served(
                    f"{home}/model", tokenizer, lines, kind, beam, options.threads
                )
            seen: dict[str, list[str]] = {name: [] for name in writers}
            systems = {name: turn(write, seen[name]) for name, write in writers.items()}
            rates, turns = take_turns(systems, options.rounds)
            for each in turns:
                each["sentences"] = each.pop("tokens")
            records += [{"search": search, **each} for each in turns]
            for name, values in rates.items():
                bleu = score(seen[name], references).bleu
                alike = sum(a == b for a, b in zip(seen[name], seen["ours"], strict=True))
                ratio = statistics.median(b / a for a, b in zip(rates["ours"], values))
                median = statistics.median(values)
                result = {"sentences_per_second": round(median, 1), "times_ours": round(ratio, 2)}
                result |= {"bleu": round(bleu, 2), "same_as_ours": alike}
                records.append({"search": search, "system": name, **result})
                texts = [f"{median:,.0f}", f"{ratio:.2f}", f"{bleu:.2f}", f"{alike:,}"]
                rows.append([f"{search}, {name}", *texts])
        for penalty in (PENALTY, 0.5) if beam > 1 else ():  # of the last beam
            for patience in (1, 2):
                write = served(
                    f"{home}/model",
                    tokenizer,
                    lines,
                    "float32",
                    beam,
                    options.threads,
                    penalty,
                    patience,
                )
                alike = sum(a == b for a, b in zip(write(), seen["ours"], strict=True))
                result = {"length_penalty": penalty, "patience": patience, "same_as_ours": alike}
                records.append({"search": search, "system": "CTranslate2 float32", **result})
                print(f"{search}, length_penalty {penalty}, patience {patience}: {alike} as ours")
    print(table(["system", "sentences/s", "times ours", "BLEU", "same as ours"], rows))
    settings = {
        "benchmark": "serving",
        "command": f"python benchmarks/serving.py --threads {options.threads} "
        f"--rounds {options.rounds}",
        "model": options.model.name if options.model else "multi30k-de-en",
        "corpus": "multi30k test_2016_flickr",
        "threads": options.threads,
        "max_tokens": MAX_TOKENS,
        "clock": "wall",
        "sentences": len(lines),
        "ctranslate2": ctranslate2.__version__,
    }
    write_log(options.results, f"serving-{settings['model']}-{options.threads}", settings, records)


if __name__ == "__main__":
    main()
