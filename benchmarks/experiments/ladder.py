"""What does each part of the model pay? One task, a part more on each rung, trained to the end.

    python -m benchmarks.experiments.ladder

The task is the grammar. The first rung knows the newest word, the mean of the words before it, and
the mean of the source; each rung after it has one part more, in the order of the book's chapters.
All see the same batches and the same rates. Each is trained until its loss on the validation pairs
has not fallen for a while, and its best weights are kept. The log has, of each rung and seed, the
loss on the test pairs in nats per token, how many of these it translates word for word, and what
it writes of a few sentences. The models are those of `parts`; the last rungs change one thing, to
see which half of a chapter's part pays. Writes `results/ladder.jsonl`.
"""

import copy
from functools import cache, partial
from itertools import islice
from pathlib import Path

import torch
import tyro
from torch import nn

from annotated_transformer import (
    EncodedCorpus,
    Pair,
    Tokenizer,
    encode_pairs,
    grammar,
)
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.schedule import learning_rate
from annotated_transformer.transformer import evaluating
from benchmarks import common
from benchmarks.experiments.parts import (
    D_MODEL,
    LR_SCALE,
    MAX_TOKENS,
    PARTS,
    VARIANTS,
    WARMUP,
    Row,
    loss_of,
    make,
    mean_loss,
)

VOCABULARY = 600
HELD_OUT = 1000  # pairs to stop by, and as many to measure on
LEARNED = 40_000  # pairs
CHECKED = 250  # updates between two looks at the validation loss
PATIENCE = 4  # looks without progress, after which training ends
PROGRESS = 0.005  # nats per token
MOST = 8000  # updates
LONGEST = 50  # tokens that a model may write
SENTENCES = [
    Pair("Den Hund jagt die Katze.", "The cat chases the dog."),
    Pair(
        "Der Lehrer ruft am Abend die Königin an.",
        "The teacher calls the queen in the evening.",
    ),
]
CHANGED = (
    "means with value matrices",
    "feed_forward without ReLU",
    "three scaled tables",
)
RUNGS = {part: Row(part) for part in PARTS}
RUNGS |= {name: VARIANTS[name] for name in CHANGED}

# --- The task ---


@cache
def task() -> tuple[Tokenizer, EncodedCorpus, list[Pair], list[Pair]]:
    """Return the tokenizer, what is learned, and the pairs for validation and test."""
    pairs = grammar(2 * HELD_OUT + LEARNED)
    validation = pairs[:HELD_OUT]
    test = pairs[HELD_OUT : 2 * HELD_OUT]
    asked = {pair.source for pair in SENTENCES}
    learned = [pair for pair in pairs[2 * HELD_OUT :] if pair.source not in asked]
    tokenizer = Tokenizer.train(learned, VOCABULARY)
    return tokenizer, encode_pairs(tokenizer, learned), validation, test


# --- Training ---


def train(
    model: nn.Module,
    learned: EncodedCorpus,
    validation: EncodedCorpus,
    seed: int,
    most: int,
) -> list[float]:
    """Train a model until it stops improving, and leave it with its best weights.

    Returns the validation losses, one for every CHECKED updates.
    """
    adam = common.make_adam(model)
    stream = common.endless_batches(learned, MAX_TOKENS, seed)
    curve: list[float] = []
    best_weights = copy.deepcopy(model.state_dict())
    for step, batch in enumerate(islice(stream, most), start=1):
        adam.param_groups[0]["lr"] = learning_rate(step, D_MODEL, WARMUP, LR_SCALE)
        adam.zero_grad()
        loss_of(model, *batch).backward()
        adam.step()
        if step % CHECKED and step < most:
            continue
        curve.append(mean_loss(model, validation))
        if curve[-1] == min(curve):
            best_weights = copy.deepcopy(model.state_dict())
        if has_stopped(curve):
            break
    model.load_state_dict(best_weights)
    return curve


def has_stopped(curve: list[float]) -> bool:
    """Return True if the last PATIENCE losses are no progress over those before them."""
    before, recent = curve[:-PATIENCE], curve[-PATIENCE:]
    return bool(before) and min(recent) > min(before) - PROGRESS


# --- What a model writes ---


def write(model: nn.Module, sources: list[list[int]]) -> list[list[int]]:
    """Write the likeliest next token until `</s>`, for each source; ids without it."""
    written = []
    with evaluating(model):
        for ids in sources:
            source = torch.tensor([ids])
            target = torch.tensor([[BOS]])
            while target[0, -1] != EOS and target.size(1) <= LONGEST:
                logits = model(source, target)[:, -1]
                target = torch.cat([target, logits.argmax(-1, keepdim=True)], dim=1)
            written.append([token for token in target[0, 1:].tolist() if token != EOS])
    return written


def translations(
    model: nn.Module, tokenizer: Tokenizer, pairs: list[Pair]
) -> list[str]:
    """Return what a model writes of the sources of some pairs."""
    sources = [[*tokenizer.encode(pair.source), EOS] for pair in pairs]
    return [tokenizer.decode(ids) for ids in write(model, sources)]


# --- The runs ---


def measure(rung: str, seed: int, most: int, asked: int, threads: int) -> common.Record:
    """Train one rung from one seed; return a line of the log."""
    torch.set_num_threads(threads)
    tokenizer, learned, validation, test = task()
    torch.manual_seed(seed)
    model = make(len(tokenizer), RUNGS[rung].part, **RUNGS[rung].changes)
    held_out = encode_pairs(tokenizer, validation)
    curve = train(model, learned, held_out, seed, most)
    outputs = translations(model, tokenizer, test[:asked])
    right = sum(output == pair.target for output, pair in zip(outputs, test[:asked]))
    return {
        "loss": round(mean_loss(model, encode_pairs(tokenizer, test)), 4),
        "right": right,
        "updates": min(most, CHECKED * len(curve)),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "curve": [round(loss, 3) for loss in curve],
        "writes": translations(model, tokenizer, SENTENCES),
    }


def main(
    rungs: tuple[str, ...] = tuple(RUNGS),
    seeds: tuple[int, ...] = (0, 1, 2),
    most: int = MOST,
    asked: int = 500,
    jobs: int = 1,
    threads: int = 1,
    results: Path = common.RESULTS,
) -> None:
    """Make the runs that the log doesn't have yet.

    Each has at most `most` updates and is asked for `asked` translations of the test pairs.
    """
    unknown = sorted(set(rungs) - set(RUNGS))
    if unknown:
        names = ", ".join(RUNGS)
        raise SystemExit(f"no rung {', '.join(unknown)}: take some of {names}")
    settings = {
        "benchmark": "ladder",
        "d_model": D_MODEL,
        "max_tokens": MAX_TOKENS,
        "warmup": WARMUP,
        "lr_scale": LR_SCALE,
        "learned": LEARNED,
        "most": most,
        "asked": asked,
        "sentences": [pair.source for pair in SENTENCES],
        "threads": threads,
    }
    run = partial(measure, most=most, asked=asked, threads=threads)
    tasks = [{"rung": rung, "seed": seed} for seed in seeds for rung in rungs]
    common.make_runs(results / "ladder.jsonl", settings, tasks, run, jobs)


if __name__ == "__main__":
    tyro.cli(main)
