"""What benchmarks share: sizes, data, models, taking turns, tables and logs."""

import importlib.util
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from annotated_transformer.batching import EncodedCorpus, encode_pairs
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

RESULTS = Path(__file__).parent / "results"
Corpus = Literal["multi30k", "grammar"]
Size = Literal["base", "small", "mini", "toy"]
SIZES: dict[str, dict[str, Any]] = {
    "base": {"vocabulary_size": 37_000},
    "small": {"vocabulary_size": 8000, "layers": 3, "d_model": 256, "d_ff": 1024, "heads": 8},
    "mini": {"vocabulary_size": 4000, "layers": 3, "d_model": 192, "d_ff": 512, "heads": 4},
    "toy": {"vocabulary_size": 300, "layers": 1, "d_model": 16, "d_ff": 32, "heads": 2},
}
GPU = torch.cuda.is_available()

# --- Data and models ---


def read(corpus: Corpus, split: str) -> list[Pair]:
    """Read the sentence pairs of a split; the grammar makes 2,000 of its own."""
    return multi30k(split) if corpus == "multi30k" else grammar(2000, seed=len(split))


def encoded(corpus: Corpus, split: str, vocabulary_size: int) -> EncodedCorpus:
    """Encode a split with a vocabulary learned from the training pairs, of 8,000 at most."""
    tokenizer = Tokenizer.train(read(corpus, "train"), min(vocabulary_size, 8000))
    return encode_pairs(tokenizer, read(corpus, split))


def make_model(size: str) -> Transformer:
    """Make the model of this book."""
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES[size]))


def make_adam(model: nn.Module, **form: bool) -> torch.optim.Adam:
    """Make the paper's Adam; fused unless told otherwise."""
    form = form or {"fused": True}
    return torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, **form)


def count(tokens: Tensor) -> int:
    """Count the tokens that are not padding."""
    return int((tokens != PAD).sum())


def has_transformers() -> bool:
    """Tell whether the library of Hugging Face is installed; say what to do if it is not."""
    if importlib.util.find_spec("transformers"):
        return True
    print("transformers is not installed: measuring without it")
    print("    pip install -r benchmarks/requirements.txt")
    return False


def marian(config: TransformerConfig) -> Any:
    """Make a MarianMTModel of the same shape: post-norm, ReLU, one table, the paper's dropout."""
    from transformers import MarianConfig, MarianMTModel, logging

    logging.set_verbosity_error()
    sides = {"layers": config.layers, "ffn_dim": config.d_ff, "attention_heads": config.heads}
    options = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sides.items()}
    options |= {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    options |= {"decoder_start_token_id": BOS, "forced_eos_token_id": None}
    options |= {"vocab_size": config.vocabulary_size, "d_model": config.d_model}
    options |= {"activation_function": "relu", "dropout": config.dropout, "scale_embedding": True}
    options |= {"max_position_embeddings": config.max_length, "init_std": config.d_model**-0.5}
    torch.manual_seed(0)
    return MarianMTModel(MarianConfig(attn_implementation="sdpa", **options))


# --- Measuring ---


def take_turns(
    systems: dict[str, Callable[[int], int]], rounds: int, cpu_time: bool = False
) -> list[dict[str, Any]]:
    """Run each system once a round, A B C, B C A, ..., so that any disturbance hits all alike.

    A system gets the number of the round and returns how many tokens it dealt with. Round 0 warms
    up and does not count. Returns a record for each turn.
    """
    clock = time.process_time if cpu_time else time.perf_counter
    names, records = list(systems), []
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            start = clock()
            tokens = systems[name](number)
            seconds = round(clock() - start, 4)
            records.append({"round": number, "system": name, "tokens": tokens, "seconds": seconds})
    return [record for record in records if record["round"]]


def column(records: Sequence[dict[str, Any]], system: str) -> list[float]:
    """Return the tokens a second of a system, round by round."""
    return [r["tokens"] / r["seconds"] for r in records if r["system"] == system]


def times(records: Sequence[dict[str, Any]], one: str, other: str) -> float:
    """Return how many times as fast one system is as another: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(column(records, one), column(records, other)))


def quartiles(rates: Sequence[float]) -> str:
    """Return the spread of some rates."""
    low, _, high = statistics.quantiles(rates, n=4) if len(rates) > 1 else [*rates] * 3
    return f"{low:,.0f} to {high:,.0f}"


# --- Reporting ---


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns: the first flush left, the others flush right."""
    widths = [max(map(len, cells)) for cells in zip(header, *rows)]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))])
        for line in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def machine() -> dict[str, Any]:
    """Describe where and with what the measurement was made."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    found = {"processor": (names or [platform.processor()])[0]}
    found |= {"python": platform.python_version(), "torch": torch.__version__}
    known = [name for name in ("transformers", "ctranslate2") if importlib.util.find_spec(name)]
    return found | {name: version(name) for name in known}


def write_log(folder: Path, name: str, settings: dict[str, Any], records: list[dict]) -> None:
    """Write the settings and one line a turn as JSONL."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{**settings, **machine()}, *records]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"log: {name}.jsonl")


def make_runs(
    path: Path, settings: dict[str, Any], tasks: Sequence[dict[str, Any]],
    measure: Callable[..., dict[str, Any]], jobs: int = 1,
) -> None:  # fmt: skip
    """Make the runs that a log doesn't have yet, `jobs` of them side by side.

    The log has the settings first; then come runs, each written when it ends: its task, what
    `measure(**task)` returns, and the machine. So a command may be stopped and given again. Raises
    ValueError for the log of other settings.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**settings, **machine()}) + "\n", encoding="utf-8")
    first, *runs = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    if other := sorted(key for key, value in settings.items() if first.get(key) != value):
        raise ValueError(f"{path.name} was made with another {', '.join(other)}: move it")
    missing = [task for task in tasks if not any(task.items() <= run.items() for run in runs)]
    print(f"{len(tasks) - len(missing)} runs found, {len(missing)} to make", flush=True)

    def save(task: dict[str, Any], found: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps({**task, **found, **machine()}) + "\n")
        short = {key: value for key, value in found.items() if not isinstance(value, list)}
        print(task | short, flush=True)

    if jobs == 1:
        for task in missing:
            save(task, measure(**task))
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(measure, **task): task for task in missing}
        try:
            for done in as_completed(running):
                save(running[done], done.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
