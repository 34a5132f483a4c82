"""What all measurements share: data, models, taking turns, tables and logs."""

import importlib.util
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from annotated_transformer import (
    EncodedCorpus,
    Pair,
    SmoothedLoss,
    Tokenizer,
    Transformer,
    TransformerConfig,
    encode_pairs,
    grammar,
    multi30k,
)
from annotated_transformer.batching import Batch, batches
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.training import Update, group_batches, training_step

RESULTS = Path(__file__).parent / "results"
GPU = torch.cuda.is_available()

Record = dict[str, Any]  # a line of a log
Corpus = Literal["multi30k", "grammar"]
Size = Literal["base", "small", "mini", "toy"]

SIZES: dict[str, dict[str, Any]] = {
    "base": {"vocabulary_size": 37_000},
    "small": {
        "vocabulary_size": 8000,
        "layers": 3,
        "d_model": 256,
        "d_ff": 1024,
        "heads": 8,
    },
    "mini": {
        "vocabulary_size": 4000,
        "layers": 3,
        "d_model": 192,
        "d_ff": 512,
        "heads": 4,
    },
    "toy": {"vocabulary_size": 300, "layers": 1, "d_model": 16, "d_ff": 32, "heads": 2},
}

# --- Data and models ---


def read(corpus: Corpus, split: str) -> list[Pair]:
    """Read the sentence pairs of a split; the grammar makes 2,000 of its own."""
    if corpus == "multi30k":
        return multi30k(split)
    return grammar(2000, seed=len(split))


def encoded(corpus: Corpus, split: str, vocabulary_size: int) -> EncodedCorpus:
    """Encode a split with a vocabulary learned from the training pairs, of 8,000 at most."""
    tokenizer = Tokenizer.train(read(corpus, "train"), min(vocabulary_size, 8000))
    return encode_pairs(tokenizer, read(corpus, split))


def endless_batches(
    corpus: EncodedCorpus, max_tokens: int, seed: int = 0
) -> Iterator[Batch]:
    """Yield the batches of epoch after epoch."""
    epoch = 0
    while True:
        yield from batches(corpus, max_tokens, seed, epoch)
        epoch += 1


def make_model(size: str) -> Transformer:
    """Make the model of this book."""
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES[size]))


def make_adam(model: nn.Module, **form: bool) -> torch.optim.Adam:
    """Make the paper's Adam; fused unless another form is asked for."""
    form = form or {"fused": True}
    return torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, **form
    )


def update(
    loss: SmoothedLoss, batch: Batch, optimizer: torch.optim.Optimizer
) -> Update:
    """Update the weights once, with one batch."""
    (group,) = group_batches([batch], 1)
    return training_step(loss, group, optimizer)


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
    torch.manual_seed(0)
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.vocabulary_size,
            d_model=config.d_model,
            encoder_layers=config.layers,
            decoder_layers=config.layers,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            max_position_embeddings=config.max_length,
            activation_function="relu",
            dropout=config.dropout,
            scale_embedding=True,
            init_std=config.d_model**-0.5,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            attn_implementation="sdpa",
        )
    )


# --- Measuring ---


def take_turns(
    systems: dict[str, Callable[[int], int]], rounds: int, cpu_time: bool = False
) -> list[Record]:
    """Run each system once a round, A B C, B C A, ..., so that any disturbance hits all alike.

    A system gets the number of the round and returns how many tokens it dealt with. Round 0 warms
    up and does not count. Returns a record for each turn.
    """
    clock = time.process_time if cpu_time else time.perf_counter
    names = list(systems)
    records = []
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            tokens = systems[name](number)
            seconds = round(clock() - start, 4)
            if number > 0:
                records.append(
                    {
                        "round": number,
                        "system": name,
                        "tokens": tokens,
                        "seconds": seconds,
                    }
                )
    return records


def rates(turns: Sequence[Record], system: str) -> list[float]:
    """Return the tokens a second of a system, round by round."""
    return [
        turn["tokens"] / turn["seconds"] for turn in turns if turn["system"] == system
    ]


def median_ratio(turns: Sequence[Record], system: str, rival: str) -> float:
    """Return how many times as fast a system is as its rival: the median over the rounds."""
    pairs = zip(rates(turns, system), rates(turns, rival))
    return statistics.median(own / rivals for own, rivals in pairs)


def quartiles(numbers: Sequence[float]) -> str:
    """Return the spread of some rates."""
    if len(numbers) == 1:
        return f"{numbers[0]:,.0f} to {numbers[0]:,.0f}"
    low, _, high = statistics.quantiles(numbers, n=4)
    return f"{low:,.0f} to {high:,.0f}"


def device_name(device: torch.device | str) -> str:
    """Return the name of a GPU, or "cpu"."""
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextmanager
def cudnn_attention(allowed: bool) -> Iterator[None]:
    """Say whether cuDNN may compute attention on a GPU inside the block (chapter 25)."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


# --- Reporting ---


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns: the first flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:]):
            cells.append(cell.rjust(width))
        lines.append("  ".join(cells))
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def processor() -> str:
    """Return the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


def machine() -> Record:
    """Describe where and with what the measurement was made."""
    description = {
        "processor": processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for library in ("transformers", "ctranslate2"):
        if importlib.util.find_spec(library):
            description[library] = version(library)
    return description


def as_lines(records: Sequence[Record]) -> str:
    """Write records as JSON, one a line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def write_log(
    folder: Path, name: str, settings: Record, records: Sequence[Record]
) -> None:
    """Write the settings, with the machine, and then one line a record."""
    folder.mkdir(parents=True, exist_ok=True)
    text = as_lines([{**settings, **machine()}, *records])
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"log: {name}.jsonl")


# --- Reading logs ---


def read_log(name: str) -> list[Record]:
    """Return a committed log: its settings, then its records."""
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# --- Runs that a log collects ---


def read_runs(path: Path, settings: Record) -> list[Record]:
    """Return the runs that a log has, and begin the log if there is none.

    Raises ValueError for the log of other settings.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_lines([{**settings, **machine()}]), encoding="utf-8")
    first, *runs = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    different = [name for name, value in settings.items() if first.get(name) != value]
    if different:
        names = ", ".join(sorted(different))
        raise ValueError(f"{path.name} was made with another {names}: move it")
    return runs


def short(record: Record) -> Record:
    """Return a record without its lists, to be printed."""
    return {
        name: value for name, value in record.items() if not isinstance(value, list)
    }


def make_runs(
    path: Path,
    settings: Record,
    tasks: Sequence[Record],
    measure: Callable[..., Record],
    jobs: int = 1,
) -> None:
    """Make the runs that a log doesn't have yet, `jobs` of them side by side.

    The log has the settings first; then come runs, each written when it ends: its task, what
    `measure(**task)` returns, and the machine. So a command may be stopped and given again. Raises
    ValueError for the log of other settings.
    """
    runs = read_runs(path, settings)
    missing = []
    for task in tasks:
        if not any(task.items() <= run.items() for run in runs):
            missing.append(task)
    print(f"{len(tasks) - len(missing)} runs found, {len(missing)} to make", flush=True)

    def save(task: Record, result: Record) -> None:
        with path.open("a", encoding="utf-8") as log:
            log.write(as_lines([{**task, **result, **machine()}]))
        print(task | short(result), flush=True)

    if jobs == 1:
        for task in missing:
            save(task, measure(**task))
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(measure, **task): task for task in missing}
        try:
            for future in as_completed(running):
                save(running[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
