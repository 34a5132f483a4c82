"""Make a model that comes with the package from its training, and score it.

    python -m tools.pretrained captions-de-en RUN
    python -m tools.pretrained captions-de-en RUN [RUN ...] --seeds
    python -m tools.pretrained everyday-de-en RUN --start MODEL --archive deu-eng.zip

How many checkpoints to average (the fewest within 0.1 BLEU of the best, if not `--last`), and the
length penalty, are chosen on validation. With `--seeds` the model stays, and runs from other seeds
are scored alike, to show how far such scores vary. All scores go to the model's `evaluation.jsonl`.
An everyday model is also scored against all that Tatoeba holds as translations of its sentences,
and translates those of its `judged.tsv`; where a translation is new, somebody has to judge it
again. With `--start`, settings and logs of the model that the run began with are kept beside its
own.
`python -m tools.card` writes the card from these files.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from sacrebleu import BLEU, CHRF

from annotated_transformer import (
    Pair,
    filter_pairs,
    load_model,
    multi30k,
    score,
    split_pairs,
    translate,
)
from annotated_transformer.toolkit import cli
from annotated_transformer.toolkit.own_data import single_spaced
from annotated_transformer.toolkit.run_folder import CHECKPOINTS, LOG, SETTINGS
from tools.card import (
    DEFAULT_ALPHA,
    EVALUATION,
    JUDGED,
    STAGE_FILES,
    Record,
)
from tools.command import command_line
from tools.everyday import everyday_pairs, tatoeba

NAMES = ("captions-de-en", "everyday-de-en", "everyday-en-de")
HOME = Path(__file__).parents[1] / "annotated_transformer" / "pretrained"
BEAM = 4
OTHER_ALPHAS = (1.0, 1.4)
CHECKPOINT_COUNTS = (1, 4, 8, 12)
CLOSE_ENOUGH = 0.1  # BLEU, for which no more checkpoints are averaged
LOGGED_STEPS = 250  # between the lines of a model's log


# --- What is scored ---


def tatoeba_sets(archive: Path, direction: str) -> dict[str, list[Pair]]:
    """Return the pairs that Tatoeba itself has of those put aside, for validation and test."""
    pairs = filter_pairs(everyday_pairs(archive, direction))[0]
    splits = split_pairs(pairs, 0.01, 0.01)
    originals = set()
    for pair in tatoeba(archive):
        sides = single_spaced(pair.source), single_spaced(pair.target)
        originals.add(frozenset(sides))
    return {
        name: [pair for pair in part if frozenset(pair[:2]) in originals]
        for name, part in (("validation", splits.validation), ("tatoeba", splits.test))
    }


def test_sets(name: str, archive: Path | None) -> dict[str, list[Pair]]:
    """Return validation first, then the sets that are scored once."""
    kind, _, direction = name.partition("-")
    captions = multi30k("test_2016_flickr")
    if kind == "captions":
        return {"validation": multi30k("val"), "captions": captions}
    if archive is None:
        raise SystemExit(
            "an everyday model is scored on pairs of Tatoeba: give --archive"
        )
    if direction == "en-de":
        captions = [Pair(pair.target, pair.source) for pair in captions]
    return {**tatoeba_sets(archive, direction), "captions": captions}


# --- Scores ---


def score_model(model: Path, pairs: Sequence[Pair], beam: int, alpha: float) -> Record:
    """Translate and score with a saved model."""
    loaded, tokenizer = load_model(model)
    start = time.perf_counter()
    written = translate(loaded, tokenizer, [pair.source for pair in pairs], beam, alpha)
    seconds = time.perf_counter() - start
    scores = score(written, [pair.target for pair in pairs])
    return {
        "sentences": len(pairs),
        "beam": beam,
        "alpha": alpha,
        **scores._asdict(),
        "seconds": round(seconds, 1),
    }


def score_texts(texts: list[str], references: list[list[Any]]) -> Record:
    """Score texts against columns of references, None where a text has fewer."""
    bleu = BLEU()
    chrf = CHRF()
    return {
        "bleu": bleu.corpus_score(texts, references).score,
        "chrf": chrf.corpus_score(texts, references).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def known_translations(archive: Path) -> dict[str, list[str]]:
    """Return all that Tatoeba has as translations of each sentence, either way."""
    translations = defaultdict[str, list[str]](list)
    for pair in tatoeba(archive):
        german, english = single_spaced(pair.source), single_spaced(pair.target)
        translations[german].append(english)
        translations[english].append(german)
    return {
        sentence: list(dict.fromkeys(texts)) for sentence, texts in translations.items()
    }


def score_against_all(
    model: Path, archive: Path, pairs: Sequence[Pair]
) -> list[Record]:
    """Score against all known translations of each sentence, and one of these against another.

    The last tells what a person reaches who may choose other words than the reference.
    """
    written = translate(
        *load_model(model), [pair.source for pair in pairs], BEAM, DEFAULT_ALPHA
    )
    by_sentence = known_translations(archive)
    all_references = [by_sentence[pair.source] for pair in pairs]
    columns = [list(column) for column in zip_longest(*all_references)]

    of_model = list[str]()
    of_person = list[str]()
    references = list[str]()
    for pair, text, translations in zip(pairs, written, all_references):
        alternatives = [t for t in translations if t != pair.target]
        if alternatives:
            of_model.append(text)
            of_person.append(alternatives[0])
            references.append(pair.target)

    records = []
    for name, beam, texts, against in (
        ("every", BEAM, written, columns),
        ("several", BEAM, of_model, [references]),
        ("person", 0, of_person, [references]),
    ):
        search = {"beam": beam, "alpha": DEFAULT_ALPHA}
        scores = score_texts(texts, against)
        records.append({"set": name, "sentences": len(texts), **search, **scores})
    return records


# --- A model from its run ---


def shorten_log(path: Path) -> None:
    """Keep of a model's log what a reader wants: each start, and a line for each 250 steps."""
    lines = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        record = json.loads(line)
        if "torch" in record or record["step"] % LOGGED_STEPS == 0:
            lines.append(line)
    path.write_text("".join(lines), encoding="utf-8")


def fewest_checkpoints(bleu: dict[int, float]) -> int:
    """Return the fewest checkpoints whose mean is close to the best, of BLEU by their number."""
    best = max(bleu.values())
    return min(count for count in bleu if bleu[count] > best - CLOSE_ENOUGH)


def finish(
    run: Path, model: Path, sets: dict[str, list[Pair]], last: int | None = None
) -> list[Record]:
    """Average a run into a model as validation says, or the `last`; return all scores."""
    seed = json.loads((run / SETTINGS).read_text("utf-8"))["training.seed"]
    checkpoints = len(list((run / CHECKPOINTS).glob("step-*")))
    records = list[Record]()

    def measure(name: str, count: int, beam: int, alpha: float) -> float:
        record = {
            "seed": seed,
            "set": name,
            "averaged": count,
            "threads": torch.get_num_threads(),
            **score_model(model, sets[name], beam, alpha),
        }
        records.append(record)
        print(
            {key: record[key] for key in record if "signature" not in key}, flush=True
        )
        return record["bleu"]

    by_count = dict[int, float]()
    for count in CHECKPOINT_COUNTS:
        if count <= checkpoints:
            cli.average(run, model, count, half=True)
            by_count[count] = measure("validation", count, BEAM, DEFAULT_ALPHA)
    count = last or fewest_checkpoints(by_count)
    cli.average(run, model, count, half=True)
    shorten_log(model / LOG)

    by_alpha = {DEFAULT_ALPHA: by_count[count]}
    for alpha in OTHER_ALPHAS:
        by_alpha[alpha] = measure("validation", count, BEAM, alpha)
    best_alpha = max(by_alpha, key=by_alpha.__getitem__)
    for name in sets:
        if name != "validation":
            measure(name, count, 1, DEFAULT_ALPHA)
            measure(name, count, BEAM, DEFAULT_ALPHA)
            if best_alpha != DEFAULT_ALPHA:
                measure(name, count, BEAM, best_alpha)
    return records


def keep_stages(start: Path, model: Path) -> None:
    """Copy settings and logs of the trainings of another model, with which this one began."""
    stages = [names for names in STAGE_FILES if (start / names[0]).exists()]
    for names, new_names in zip(stages, STAGE_FILES):
        for name, new_name in zip(names, new_names):
            (model / new_name).write_bytes((start / name).read_bytes())


def translate_judged(model: Path) -> None:
    """Translate the sentences of `judged.tsv` anew; a judgement stays if the translation does."""
    path = model / JUDGED
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    written = translate(*load_model(model), [row[0] for row in rows], BEAM)
    lines = list[str]()
    unjudged = 0
    for row, translation in zip(rows, written):
        judgement = "?"
        if row[1:2] == [translation]:
            judgement = row[2]
        if judgement == "?":
            unjudged += 1
        lines.append(f"{row[0]}\t{translation}\t{judgement}\n")
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {unjudged} lines to judge")


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = command_line("tools.pretrained", __doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of trainings")
    parser.add_argument("--archive", type=Path, help="Tatoeba's pairs, deu-eng.zip")
    parser.add_argument(
        "--seeds", action="store_true", help="the model stays; add scores of others"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the models")
    parser.add_argument(
        "--last",
        type=int,
        choices=CHECKPOINT_COUNTS,
        help="how many, whatever they score",
    )
    parser.add_argument(
        "--start", type=Path, help="folder of the model that the run began with"
    )
    options = parser.parse_args()
    if len(options.runs) > 1 and not options.seeds:
        parser.error("a model is made of one run: give --seeds for others beside it")
    return options


def score_seeds(
    runs: list[Path], model: Path, sets: dict[str, list[Pair]], last: int | None
) -> None:
    """Add the scores of runs from other seeds to those of a model."""
    with (
        tempfile.TemporaryDirectory() as folder,
        (model / EVALUATION).open("a", encoding="utf-8") as file,
    ):
        for number, run in enumerate(runs):
            for record in finish(run, Path(folder, str(number)), sets, last):
                file.write(json.dumps(record) + "\n")


def main() -> None:
    """Make the model that the command line names, or score others beside it."""
    options = read_options()
    sets = test_sets(options.name, options.archive)
    model = options.home / options.name
    if options.seeds:
        score_seeds(options.runs, model, sets, options.last)
        return
    records = finish(options.runs[0], model, sets, options.last)
    if options.start:
        keep_stages(options.start, model)
    if options.archive:
        shared = {key: records[-1][key] for key in ("seed", "averaged", "threads")}
        for record in score_against_all(model, options.archive, sets["tatoeba"]):
            records.append({**shared, **record})
    lines = [json.dumps(record) + "\n" for record in records]
    (model / EVALUATION).write_text("".join(lines), encoding="utf-8")
    if (model / JUDGED).exists():
        translate_judged(model)


if __name__ == "__main__":
    main()
