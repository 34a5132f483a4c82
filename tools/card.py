"""Write the card of a pretrained model from what its folder holds, so that no number is typed.

usage: python -m tools.card annotated_transformer/pretrained/NAME
"""

import json
import sys
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from annotated_transformer.model_io import load_model
from annotated_transformer.run_folder import LOG, SETTINGS
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import PRESETS, TransformerConfig, parameter_count, preset

EVALUATION, CARD = "evaluation.jsonl", "README.md"
TIME = "%Y-%m-%d %H:%M:%S%z"
SPLITS = {
    "validation": "validation, 1,014 captions; all choices were made on them",
    "test": "test_2016_flickr, 1,000 captions",
}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def hours(log: list[dict[str, Any]]) -> float:
    """Return how long a run took, without the pauses between a last line and the next start."""
    timed, total = [record for record in log if "time" in record], 0.0
    for before, after in pairwise(timed):
        if "torch" not in after or "torch" in before:  # early logs have the time of starts only
            start, end = (datetime.strptime(r["time"], TIME) for r in (before, after))
            total += (end - start).total_seconds()
    return total / 3600


def preset_of(config: TransformerConfig) -> str:
    """Return the name of the preset that has this shape."""
    for name in PRESETS:
        if preset(name, vocabulary_size=config.vocabulary_size) == config:
            return name
    raise ValueError("the model has the shape of no preset")


def commands(folder: Path, config: TransformerConfig, averaged: int, steps: int) -> str:
    """Return the commands that make the model anew, from its settings."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    settings["training.steps"] = steps  # it may have been stopped before its end
    words = ["annotated-transformer train --corpus multi30k", f"--preset {preset_of(config)}"]
    words.append(f"--vocabulary-size {config.vocabulary_size}")
    for name, default in asdict(TrainingConfig()).items():
        value = settings.get(f"training.{name}", default)
        if value != default:
            words.append(f"--{name.replace('_', '-')} {value}")
    return (
        " \\\n    ".join([" ".join(words[:3]), *words[3:], "--output run"])
        + f"\nannotated-transformer average --run run --last {averaged} --half --output model"
    )


def scores(records: list[dict[str, Any]]) -> str:
    """Return the table of scores."""
    rows = ["| captions | search | BLEU | chrF2 |", "|---|---|---|---|"]
    for record in records:
        search = f"beam {record['beam']}, alpha {record['alpha']}"
        search = "greedy" if record["beam"] == 1 else search
        name = SPLITS[record["split"]]
        rows.append(f"| {name} | {search} | {record['bleu']:.1f} | {record['chrf']:.1f} |")
    return "\n".join(rows)


def card(folder: Path) -> str:
    """Return the text of the card."""
    model, tokenizer = load_model(folder)
    config, log = model.config, read_lines(folder / LOG)
    records = read_lines(folder / EVALUATION)
    starts = [record for record in log if "torch" in record]
    last = [record for record in log if "epoch" in record][-1]
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    threads = " then ".join(dict.fromkeys(str(record["threads"]) for record in starts))
    averaged = json.loads((folder / "averaged.json").read_text())["last"]
    return f"""# multi30k-de-en

A small Transformer that translates captions of pictures from German to English, trained by this
repository from nothing. It is made for reading and experiments. It knows 29,000 captions and little
else: expect nonsense on any other kind of text.

| | |
|---|---|
| shape | {config.layers} + {config.layers} layers, d_model {config.d_model}, d_ff {config.d_ff}, \
{config.heads} heads, post-norm, {parameter_count(config):,} parameters |
| vocabulary | {len(tokenizer):,} byte-level subwords, joint; learned from the training captions |
| trained | {last["step"]:,} updates, {last["epoch"]:.0f} epochs, batches of at most \
{settings["training.max_tokens"]:,} tokens a side, seed {settings["training.seed"]} |
| weights | mean of the last {averaged} checkpoints, {settings["training.save_every"]:,} steps \
apart; stored in half precision |
| time | {hours(log):.1f} hours on a processor ({starts[-1]["machine"]}, threads: {threads}), with \
torch {starts[-1]["torch"].split("+")[0]} |

Made by

```bash
{commands(folder, config, averaged, last["step"])}
```

## Scores

{scores(records)}

Cased, on plain text, by sacreBLEU: `{records[0]["bleu_signature"]}` and
`{records[0]["chrf_signature"]}`. The other test sets of Multi30k were not looked at.

## Data and terms

The task 1 captions of [Multi30k](https://github.com/multi30k/dataset) (Elliott, Frank, Sima'an and
Specia, 2016), at commit a3d2e0d26b56f3846f66a952536ffed4e401d05a; for research and education. They
describe pictures from Flickr, so they speak of people, dogs and streets as people on the internet
saw them around 2014, with their prejudices about who does what. Code and weights: MIT; mind the
terms of the data for what you do with them.
"""


def main() -> None:
    """Write the card of the folder named on the command line."""
    folder = Path(sys.argv[1])
    (folder / CARD).write_text(card(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
