"""Begin a training run with a model that is there: what it gains, and what it forgets.

    python -m benchmarks.experiments.start deu.txt

Five thousand everyday sentences of Tatoeba are all that there is to learn from. Three models learn
from them: one from nothing; one that begins with captions-de-en, which knows captions only; and one
that begins with it and sees five thousand captions as well. Each is the mean of its last four
checkpoints, and is scored on Tatoeba's held-out sentences and on captions, as is captions-de-en
itself; with other seeds, too. Writes `results/start.jsonl`, which the page on your own pair shows.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from annotated_transformer import (
    Pair,
    Tokenizer,
    Transformer,
    load_pretrained,
    preset,
    read_pairs,
    train,
)
from annotated_transformer.own_data import multi30k, split_pairs
from annotated_transformer.trainer import average_checkpoints, recipe
from benchmarks import common
from benchmarks.experiments.settings import scores_of

START = "captions-de-en"
NOTHING = "from nothing"
KEPT = "begun, captions kept"
WAYS = (NOTHING, "begun", KEPT)


def measure(
    model: str,
    seed: int,
    steps: int,
    own: list[Pair],
    captions: list[Pair],
    tests: dict[str, list[Pair]],
) -> common.Record:
    """Score captions-de-en or, in one of WAYS, a model that is trained."""
    torch.set_num_threads(1)
    learner, tokenizer = load_pretrained(START)
    config = replace(
        recipe("captions"),
        steps=steps,
        max_tokens=1024,
        peak_lr=0.0007,
        save_every=steps // 8,
        seed=seed,
    )
    if model == NOTHING:
        config = replace(config, peak_lr=recipe("captions").peak_lr)
        tokenizer = Tokenizer.train(own, 4000)
        torch.manual_seed(seed)
        learner = Transformer(preset("captions", vocabulary_size=len(tokenizer)))
    if model in WAYS:
        pairs = own + captions if model == KEPT else own
        with TemporaryDirectory() as folder:
            train(learner, tokenizer, pairs, config, folder=folder)
            learner = average_checkpoints(folder, last=4)[0]
    return {name: scores_of(learner, tokenizer, pairs) for name, pairs in tests.items()}


def main(
    table: Path,
    pairs: int = 5000,
    steps: int = 3000,
    seeds: tuple[int, ...] = (0, 1, 2),
    sentences: int = 2000,
    results: Path = common.RESULTS,
) -> None:
    """Train in three ways and score on at most so many sentences. `table` has English first."""
    parts = split_pairs(read_pairs(table, columns=(1, 0)), 0.01, 0.01, seed=0)
    tests = {
        "everyday": parts.test[:sentences],
        "captions": multi30k("test_2016_flickr")[:sentences],
    }
    own = Random(0).sample(parts.train, pairs)
    captions = Random(0).sample(multi30k("train"), pairs)
    tasks = [{"model": START, "seed": 0}]
    tasks += [{"model": way, "seed": seed} for seed in seeds for way in WAYS]
    run = partial(measure, steps=steps, own=own, captions=captions, tests=tests)
    settings = {"pairs": pairs, "steps": steps}
    common.make_runs(results, "start", settings, tasks, run)


if __name__ == "__main__":
    common.command(main)
