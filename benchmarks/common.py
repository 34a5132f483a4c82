"""What benchmarks share: sizes, data, the three models, taking turns, tables and logs."""

import argparse
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from annotated_transformer.batching import Example, encode_pairs
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

RESULTS = Path(__file__).parent / "results"
SIZES: dict[str, dict[str, Any]] = {
    "small": {"vocabulary_size": 8000, "layers": 3, "d_model": 256, "d_ff": 1024, "heads": 8},
    "mini": {"vocabulary_size": 4000, "layers": 3, "d_model": 192, "d_ff": 512, "heads": 4},
    "base": {"vocabulary_size": 37_000},
    "toy": {"vocabulary_size": 300, "layers": 1, "d_model": 16, "d_ff": 32, "heads": 2},
}


def arguments(description: str) -> argparse.ArgumentParser:
    """Make a parser with the options that both commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="mini", help="of all models")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7, help="turns that each model gets")
    parser.add_argument("--corpus", choices=["multi30k", "grammar"], default="multi30k")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the processor: for a busy machine, 1 thread",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the logs")
    return parser


# --- Data ---


def read(corpus: str, split: str) -> list[Pair]:
    """Read the sentence pairs of a split; the grammar makes 2,000 of its own."""
    return multi30k(split) if corpus == "multi30k" else grammar(2000, seed=len(split))


def encoded(corpus: str, split: str, vocabulary_size: int) -> list[Example]:
    """Encode a split with a vocabulary learned from the training pairs, of 8,000 at most."""
    tokenizer = Tokenizer.train(read(corpus, "train"), min(vocabulary_size, 8000))
    return encode_pairs(tokenizer, read(corpus, split))


# --- Models ---


def ours(size: str, **changes: Any) -> Transformer:
    """Make the model of this book."""
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**{**SIZES[size], **changes}))


def has_transformers() -> bool:
    """Tell whether the library of Hugging Face is installed; say what to do if it is not."""
    if importlib.util.find_spec("transformers"):
        return True
    print("transformers is not installed: measuring without it")
    print("    pip install -r benchmarks/requirements.txt")
    return False


def marian(config: TransformerConfig) -> nn.Module:
    """Make a MarianMTModel of the same shape: post-norm, ReLU, one table, the paper's dropout."""
    from transformers import MarianConfig, MarianMTModel, logging

    logging.set_verbosity_error()
    sides = {"layers": config.layers, "ffn_dim": config.d_ff, "attention_heads": config.heads}
    shape = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sides.items()}
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    marian_config = MarianConfig(
        vocab_size=config.vocabulary_size,
        decoder_vocab_size=config.vocabulary_size,
        d_model=config.d_model,
        activation_function="relu",
        dropout=config.dropout,
        scale_embedding=True,
        max_position_embeddings=config.max_length,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        init_std=config.d_model**-0.5,
        attn_implementation="sdpa",
        **shape,
        **ids,
    )
    torch.manual_seed(0)
    return MarianMTModel(marian_config)


# --- Measuring ---


def take_turns(
    systems: dict[str, Callable[[int], int]], rounds: int, cpu_time: bool = False
) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """Run each system once a round, A B C, B C A, ..., so that any disturbance hits all alike.

    A system gets the number of the round and returns how many tokens it dealt with. Round 0 warms
    up and does not count. Returns tokens a second by system, and one record a turn.
    """
    clock = time.process_time if cpu_time else time.perf_counter
    rates: dict[str, list[float]] = {name: [] for name in systems}
    records = []
    for number in range(rounds + 1):
        names = list(systems)[number % len(systems) :] + list(systems)[: number % len(systems)]
        for name in names:
            start = clock()
            tokens = systems[name](number)
            seconds = clock() - start
            if number:
                rates[name].append(tokens / seconds)
                record = {"round": number, "system": name, "tokens": tokens}
                records.append({**record, "seconds": round(seconds, 4)})
    return rates, records


def programs() -> int:
    """Return how many programs torch.compile has made so far in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def machine() -> dict[str, Any]:
    """Describe where and with what the measurement was made."""
    names = (
        [
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        if Path("/proc/cpuinfo").exists()
        else []
    )
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if importlib.util.find_spec("transformers"):
        from importlib.metadata import version

        versions["transformers"] = version("transformers")
    return {"processor": names[0] if names else platform.processor(), **versions}


# --- Reporting ---


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns: the first flush left, the others flush right."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))])
        for line in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def summary(rates: dict[str, list[float]], first: str) -> list[list[str]]:
    """Give each system a row: name, median, spread (quartiles), and the median of its ratios to
    the first system, round by round.
    """
    rows = []
    for name, values in rates.items():
        low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        ratio = statistics.median(a / b for a, b in zip(rates[first], values))
        middle = f"{statistics.median(values):,.0f}"
        rows.append([name, middle, f"{low:,.0f} to {high:,.0f}", f"{ratio:.2f}"])
    return rows


def write_log(folder: Path, name: str, settings: dict[str, Any], records: list[dict]) -> None:
    """Write the settings and one line a turn as JSONL."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{**settings, **machine()}, *records]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"log: {path.name}")


def count(tokens: Tensor) -> int:
    """Count the tokens that are not padding."""
    return int((tokens != PAD).sum())
