"""Write the card of a pretrained model: its notes, with the numbers of its logs.

`notes.md` beside a model is written by hand. It names a number in braces, as `{hours}`;
`note_values` below says what each name stands for.
"""

import json
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer import load_model
from annotated_transformer.toolkit.cli import recipe
from annotated_transformer.toolkit.run_folder import LOG
from tools.command import command_line

NOTES = "notes.md"
CARD = "README.md"
EVALUATION = "evaluation.jsonl"
JUDGED = "judged.tsv"
JUDGEMENTS = ("right", "understandable", "wrong")
STAGE_FILES = (  # settings and log of each training; the last is the model's own
    ("start.json", "start.jsonl"),
    ("start-2.json", "start-2.jsonl"),
    ("averaged.json", LOG),
)
TIME_FORMAT = "%Y-%m-%d %H:%M:%S%z"
DEFAULT_ALPHA = 0.6
TEST_SETS = {  # in the table, in this order
    "captions": {
        "validation": "Multi30k, validation",
        "captions": "Multi30k, test_2016_flickr",
    },
    "everyday": {
        "validation": "Tatoeba, validation",
        "tatoeba": "Tatoeba, held out",
        "captions": "Multi30k, test_2016_flickr",
    },
}

Record = dict[str, Any]


class Stage(NamedTuple):
    """One training: the settings of what it made, and its log."""

    settings: Record
    log: list[Record]


def read_lines(path: Path) -> list[Record]:
    """Return the records of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_stages(folder: Path) -> list[Stage]:
    """Return the trainings that the model's own began with, and its own."""
    stages = []
    for settings_name, log_name in STAGE_FILES:
        path = folder / settings_name
        if path.exists():
            settings = json.loads(path.read_text(encoding="utf-8"))
            stages.append(Stage(settings, read_lines(folder / log_name)))
    return stages


def read_judged(folder: Path) -> list[list[str]]:
    """Return sentence, translation and judgement of each line that a person judged.

    Raises ValueError if one has another judgement than right, understandable or wrong.
    """
    path = folder / JUDGED
    if not path.exists():
        return []
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows, start=1):
        if row[2] not in JUDGEMENTS:
            raise ValueError(
                f'{path}, line {number}: "{row[2]}" is none of {", ".join(JUDGEMENTS)}'
            )
    return rows


def last_checkpoint(stage: Stage) -> Record:
    """Return the record of a training's last checkpoint."""
    checkpoints = [record for record in stage.log if "validation_loss" in record]
    return checkpoints[-1]


def hours(log: list[Record]) -> float:
    """Return how long a training took by its log's clock, without the pauses before a start."""
    seconds = 0.0
    for earlier, later in pairwise(log):
        if "torch" not in later:  # as a start has
            begin = datetime.strptime(earlier["time"], TIME_FORMAT)
            end = datetime.strptime(later["time"], TIME_FORMAT)
            seconds += (end - begin).total_seconds()
    return seconds / 3600


def train_options(stage: Stage, preset: str) -> str:
    """Return the options of `annotated-transformer train` for all that isn't the preset's recipe.

    A run may have been stopped before its end: the steps are those of its last checkpoint.
    """
    options = [f"--preset {preset}"]
    for name, default in asdict(recipe(preset)).items():
        value = stage.settings.get(f"training.{name}", default)
        if name == "steps":
            value = last_checkpoint(stage)["step"]
        if value != default:
            options.append(f"--{name.replace('_', '-')} {value}")
    if stage.settings["precision"] != "fp32":
        options.append(f"--precision {stage.settings['precision']}")
    return " ".join(options)


def score_table(kind: str, records: list[Record], alpha: float) -> str:
    """Return the table of the scores of one model: BLEU of three searches, chrF2 of the second."""
    by_search = {(r["set"], r["beam"], r["alpha"]): r for r in records}
    rows = [
        f"| | sentences | greedy | beam 4 | beam 4, alpha {alpha} | chrF2, beam 4 |",
        "|---|---|---|---|---|---|",
    ]
    for key, label in TEST_SETS[kind].items():
        default = by_search[key, 4, DEFAULT_ALPHA]
        greedy = by_search.get((key, 1, DEFAULT_ALPHA))
        cells = [
            label,
            f"{default['sentences']:,}",
            f"{greedy['bleu']:.1f}" if greedy else "",
            f"{default['bleu']:.1f}",
            f"{by_search[key, 4, alpha]['bleu']:.1f}",
            f"{default['chrf']:.1f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def score_values(kind: str, records: list[Record], settings: Record) -> Record:
    """Return what the notes may say of the scores; `records` are in the order of measuring.

    `{tatoeba}` is the BLEU of a set with the default search, `{tatoeba_sentences}` its size;
    `{seed_1}` the BLEU on the last set from that seed, with what validation chose for it.
    """
    own = [
        record
        for record in records
        if record["seed"] == settings["training.seed"]
        and record["averaged"] == settings["last"]
    ]
    validation = [record for record in own if record["set"] == "validation"]
    alpha = max(validation, key=lambda record: record["bleu"])["alpha"]
    values: Record = {
        "alpha": alpha,
        "scores": score_table(kind, own, alpha),
        "bleu_signature": own[0]["bleu_signature"],
        "chrf_signature": own[0]["chrf_signature"],
    }
    for record in own:
        if record["beam"] != 1 and record["alpha"] == DEFAULT_ALPHA:
            values[record["set"]] = f"{record['bleu']:.1f}"
            values[f"{record['set']}_sentences"] = f"{record['sentences']:,}"
    for record in records:
        if record["set"] == "captions":
            values[f"seed_{record['seed']}"] = f"{record['bleu']:.1f}"
    return values


def training_values(stages: list[Stage], preset: str) -> Record:
    """Return what the notes may say of the trainings; `{options_1}` and `{last_1}` of the first."""
    starts = [record for stage in stages for record in stage.log if "torch" in record]
    threads = {record["threads"] for record in starts}
    checkpoints = [last_checkpoint(stage) for stage in stages]
    values: Record = {
        "updates": " + ".join(f"{record['step']:,}" for record in checkpoints),
        "epochs": " + ".join(f"{record['epoch']:.0f}" for record in checkpoints),
        "hours": f"{sum(hours(stage.log) for stage in stages):.1f}",
        "threads": " or ".join(str(number) for number in sorted(threads)),
        "torch": starts[-1]["torch"].partition("+")[0],
        "max_tokens": f"{stages[-1].settings['training.max_tokens']:,}",
        "save_every": stages[-1].settings["training.save_every"],
        "seed": stages[-1].settings["training.seed"],
        "precision": stages[-1].settings["precision"],
        "last": stages[-1].settings["last"],
    }
    for number, stage in enumerate(stages, start=1):
        values[f"options_{number}"] = train_options(stage, preset)
        values[f"last_{number}"] = stage.settings["last"]
    return values


def judged_values(rows: list[list[str]]) -> Record:
    """Return what the notes may say of the judged sentences.

    `{judged}` is how many there are, `{wrong}` how many are wrong, `{translation[Hund]}` one.
    """
    counts = Counter(judgement for _, _, judgement in rows)
    values: Record = {judgement: counts[judgement] for judgement in JUDGEMENTS}
    values["judged"] = len(rows)
    values["translation"] = {sentence: written for sentence, written, _ in rows}
    return values


def note_values(folder: Path) -> Record:
    """Return what each name in the notes of a model stands for."""
    kind = folder.resolve().name.partition("-")[0]  # the name of its preset, too
    model, _ = load_model(folder)
    stages = read_stages(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        **asdict(model.config),
        "parameters": f"{parameters:,}",
        **training_values(stages, kind),
        **score_values(kind, read_lines(folder / EVALUATION), stages[-1].settings),
        **judged_values(read_judged(folder)),
    }


def card(folder: Path) -> str:
    """Return the text of a model's card; raises KeyError if the notes use an unknown name."""
    notes = (folder / NOTES).read_text(encoding="utf-8")
    return notes.format_map(note_values(folder))


def main() -> None:
    """Write the card of the folder named on the command line."""
    parser = command_line("tools.card", __doc__)
    parser.add_argument(
        "folder", type=Path, help="annotated_transformer/pretrained/NAME"
    )
    folder = parser.parse_args().folder
    (folder / CARD).write_text(card(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
