"""Write the card of a pretrained model from what its folder holds, so that no number is typed.

usage: python -m tools.card annotated_transformer/pretrained/NAME
"""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from annotated_transformer.cli import recipe
from annotated_transformer.model_io import load_model
from annotated_transformer.run_folder import LOG
from annotated_transformer.transformer import PRESETS, TransformerConfig, parameter_count, preset
from tools.everyday import PHRASES, WORDS

EVALUATION, JUDGED, CARD = "evaluation.jsonl", "judged.tsv", "README.md"
STAGES = ("start.json", "start.jsonl"), ("start-2.json", "start-2.jsonl"), ("averaged.json", LOG)
TIME = "%Y-%m-%d %H:%M:%S%z"
LANGUAGES = {"de": "German", "en": "English"}

ABOUT = {
    "captions": """A small Transformer that translates captions of pictures from {source} to
{target}, trained by this repository from nothing. It is made for reading and experiments: the book
decodes, scores and takes it apart. It knows 29,000 captions and little else; for any other kind of
text take the everyday models.""",
    "everyday": """A small Transformer that translates everyday sentences from {source} to {target},
trained by this repository from nothing. It is made for reading, experiments and the page that
translates. It knows short sentences, and captions of pictures; expect errors on news, and on
sentences of more than about twenty words.""",
}
SETS = {
    "captions": {
        "validation": "Multi30k, validation; all choices were made on it",
        "captions": "Multi30k, test_2016_flickr",
    },
    "everyday": {
        "validation": "Tatoeba, validation; choices were made on it",
        "tatoeba": "Tatoeba, held out",
        "every": "the same, against all translations that Tatoeba has (`nrefs:var`)",
        "several": "of these, sentences with several translations, against one of them",
        "person": "another of their translations, against this one",
        "captions": "Multi30k, test_2016_flickr",
    },
}
MULTI30K = """The task 1 captions of [Multi30k](https://github.com/multi30k/dataset) (Elliott,
Frank, Sima'an and Specia, 2016), at commit a3d2e0d26b56f3846f66a952536ffed4e401d05a; for research
and education. They describe pictures from Flickr, so they speak of people, dogs and streets as
people on the internet saw them around 2014, with their prejudices about who does what."""
TATOEBA = """The German-English pairs of [Tatoeba](https://tatoeba.org), as
[manythings.org](https://www.manythings.org/anki/) packed them on 2018-05-13
(SHA-256 b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28), by the contributors
of Tatoeba, under [CC BY 2.0 France](https://creativecommons.org/licenses/by/2.0/fr/). One sentence
in a hundred was put aside for validation and one for the test, with all its translations and all
that these translate, so none of them was seen on either side. One pair in eight comes a second
time, typed as if in a hurry, and many training pairs come again with other names, towns and
numbers (`tools/everyday.py`). The second table also has greetings and other phrases
that were written for this book (`tools/phrases.tsv`), short sentences with and without capitals and
marks, two sentences in a row, other dates and half hours, surnames, titles, small towns and made-up
names; what Tatoeba has for validation and test is put aside there, too.
{both}"""
TRANSLATORS = """

The everyday models, whose translations the second training learned from, had learned from these
captions (but not yet from single words, as `everyday-de-en` has now) and from pairs of
[Tatoeba](https://tatoeba.org), by its contributors, under
[CC BY 2.0 France](https://creativecommons.org/licenses/by/2.0/fr/)."""
DATA = {
    "captions": MULTI30K + TRANSLATORS,
    "everyday": TATOEBA.format(both="And " + MULTI30K[0].lower() + MULTI30K[1:]),
}

# Makes the table of the captions model's second training
TRANSLATE = """\
cache=$(python -c "from annotated_transformer.data import cache_folder; print(cache_folder())")
for side in de en; do gunzip -c "$cache/multi30k/train.$side.gz" > train.$side; done
annotated-transformer translate --model everyday-de-en < train.de > machine.en
annotated-transformer translate --model everyday-en-de < train.en > machine.de
paste train.de train.en > captions-2.tsv
paste machine.de train.en >> captions-2.tsv
paste train.de machine.en >> captions-2.tsv"""


STOPPED = {
    "captions-de-en": """
The first training was planned for 16,000 updates and was stopped at 8,223 because time ran out; its
last checkpoint is that of update 8,000. By itself it has 40.5 BLEU on validation with alpha 0.6 and
39.6 on the test set, from another seed 41.0 and 39.9 (`benchmarks/results/captions-first.jsonl`).
The second, planned for 8,000 and stopped at 6,000, learned from most pairs in three forms: as they
are, with the German translated into English by `everyday-de-en`, and with the English translated
into German by `everyday-en-de`. [Nguyen and others](https://arxiv.org/abs/1911.01986) call this
data diversification. The scores in its log, about 50, are on pairs put aside from the same table,
of captions that the first training had seen; they say little. Training on with the pairs alone was
tried, too: on validation, two seeds had 40.6 and 41.0 after 1,250 updates, of which no logs were
kept. Earlier models had been scored on the test set.""",
    "everyday-de-en": """
Earlier models had been scored on the same sets, those that the second and the third training began
with among them. The other names, towns and numbers came into the data because the first model had
failed at these in sentences that a visitor might type; all that the second table adds came into it
for the same reason. Two trainings on earlier versions of that table were looked at, sentence by
sentence and on validation; after the first, which was stopped early, the learning rate was lowered.

The third table was made when the model of the second turned out to make sentences of single words:
*Hund* had become *Dogs!*, and *Ich liebe dich ❤* had become *I love you City.* It also has words
and short phrases that were written for this book (`tools/words.tsv`), alone and a few in a row;
sentences with an emoji; and two sentences in a row of which one may be English already. Trainings
on two earlier versions of it were looked at. The first had few rows for each word and was stopped
after 2,400 updates, when many words were still wrong; the second had words in a row with only a
space between them, and made *a cup coffee* of *eine Tasse Kaffee*. The mean of all twelve
checkpoints has 52.3 BLEU on validation, with alpha 0.6, but still makes *hound* of *Hund*, so the
last four were taken. (By then it and the second version had been scored on the held-out pairs.) All
other choices were made on validation. A word that isn't in that list still comes out wrong nearly
always when it stands alone; the last twenty rows below show some.""",
    "everyday-en-de": """
Earlier models had been scored on the same sets, the one that the second training began with among
them. The other names, towns and numbers came into the data because a model of the other direction
had failed at these; all that the second table adds came into it because models had failed at such
things in sentences that a visitor might type. Two trainings on earlier versions of that table were
looked at, sentence by sentence and on validation; after the first, which was stopped early, the
learning rate was lowered. All other choices were made on validation.

We aimed for 45 BLEU on the held-out pairs, and did not reach it. More updates stopped helping: the
first training, which was planned for 48,000, has 45.1 on validation after 23,500, 46.0 after 38,000
and 45.5 when a trial went on to 51,500. A second trial, which replaced the second training, had
137,000 more pairs, whose English a model of the other direction had written for the German of the
table; it came to 46.0 after 11,500 updates, where the model above has 45.8, and to 45.9 after
28,000. A third began with the second at 23,000 and had 111,000 other pairs more: the table's
English, each with the best of five translations that a search found, by the log-probability of the
second plus half that of `everyday-de-en`. It came to 46.5 after 5,500 updates. It was not taken,
since `everyday-de-en` has learned from most pairs that are held out here, and may have told it. The
model above has 45.8 there and 43.5 on the held-out pairs.

Six more trials followed, and no single model got far beyond it. Choosing among twelve
hypotheses of a search with the help of a model of the other direction, which had briefly learned
from this model's training pairs alone, has 46.1 at the best weight. Choosing the one most like 24
samples has 45.3. Learning on from Tatoeba's pairs alone came to 45.7, and with each pair's nearest
of eight translations of the model's own beside it
([Kim and Rush](https://aclanthology.org/D16-1139/)) to 45.9 and then 45.6. A fifth,
[R-Drop](https://arxiv.org/abs/2106.14448), asks two passes with other dropout to agree, with weight
5. It had 44.0 after 1,000 updates at `--lr-scale 0.4`; another start, at 0.5, had 42.1 after 2,000
and with 0.15 came to 44.5 after 7,000, by then rising hardly at all. With dropout 0.2 it had 39.7
after 1,000. In one search with the model above it has 46.0, and so has the mean of their weights,
so the two know little more together than one does. The sixth looked for a better teacher: a model
from another start, which learned from Tatoeba's pairs alone, with
[BPE dropout](https://arxiv.org/abs/1910.13267) and a rate that falls in a line to zero. By itself
it has 44.7 after 28,000 updates, but 47.2 in one search with the model above, the best of three
weightings. The same recipe for 4,800 updates from the model above came to 44.9. Two starts know
more together than either, then, but what the two know did not go into one model. The model above,
shown 117,648 of their translations beside the pairs, of English to learn from and of English that
`everyday-de-en` had written for the German, came to 46.0 after 4,900 updates, two epochs. Widened
to 7.1 million parameters and taught the two's probabilities of every next token instead, it came to
46.0 after 3,600, again two epochs. The two in one search, twice the size, have 44.3 on the held-out
pairs: below 45, too. (Last, single words were added as in the third training of `everyday-de-en`.
*dog*, of which the model above makes *Hunde!*, became *Hund*, but after 7,000 updates it had 45.6
on validation and 42.8 on the held-out pairs.) The logs are `everyday-en-de.jsonl`,
`teacher-en-de.jsonl` (the other start), `student-en-de.jsonl` and `wider-en-de.jsonl` (what was
learned from both), in `benchmarks/results`.

The model has room for what it was shown: it has 55.6 on 1,200 pairs of Tatoeba that it learned
from. It lacks more such pairs, or a better way to learn from them. And much of what is missing lies
in the references: English leaves open what German has to say, whether *you* is a friend, a family
or a stranger, and a reference holds one answer. So a person gets no more than the table says, which
is 1.4 above the model on the same sentences, as 45 is 1.5 above it on all; and against all known
translations the model does better. On Tatoeba's sentences, too, large models that were trained on
up to 87 million pairs are reported with
[43.7](https://huggingface.co/gsarti/opus-mt-tc-big-en-de),
[45.8](https://huggingface.co/teelinsan/opus-mt-eng-deu) and
[47.3](https://huggingface.co/Helsinki-NLP/opus-mt-en-de) BLEU, on test sets of their own.""",
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
        same = {"vocabulary_size": config.vocabulary_size, "dropout": config.dropout}
        if preset(name, **same) == config:
            return name
    raise ValueError("the model has the shape of no preset")


Stage = tuple[dict[str, Any], list[dict[str, Any]]]  # what a model is the mean of, and its log


def stages(folder: Path) -> list[Stage]:
    """Return the trainings that the model's own began with, if there were any, and its own."""
    there = [(folder / made, folder / log) for made, log in STAGES if (folder / made).exists()]
    return [(json.loads(made.read_text("utf-8")), read_lines(log)) for made, log in there]


def last_line(stage: Stage) -> dict[str, Any]:
    """Return the line of a training run's last checkpoint."""
    return [record for record in stage[1] if "validation_loss" in record][-1]


def commands(name: str, config: TransformerConfig, stage: Stage, number: int) -> str:
    """Return the commands that make a model anew, from its settings; `number` is 1, 2 or 3."""
    kind, _, direction = name.partition("-")
    made_of, before, more = stage[0], *["", "", "-2", "-3"][number - 1 : number + 1]
    # A run may have been stopped before its end
    settings = made_of | {"training.steps": last_line(stage)["step"]}
    lines, corpus = list[str](), "--corpus multi30k"
    if kind == "everyday":
        table = f"everyday{more}.tsv"
        line = f"python -m tools.everyday deu-eng.zip {direction} {table}"
        lines, corpus = [line + ["", " --more", " --words"][number - 1]], f"--data {table}"
    elif more:
        lines, corpus = [TRANSLATE], "--data captions-2.tsv"
    options = [f"annotated-transformer train {corpus} --preset {preset_of(config)}"]
    options[0] += (
        f" --start model{before}" if more else f" --vocabulary-size {config.vocabulary_size}"
    )
    if config.dropout != preset(preset_of(config)).dropout:
        options[0] += f" --dropout {config.dropout}"
    for key, default in asdict(recipe(preset_of(config))).items():
        value = settings.get(f"training.{key}", default)
        if value != default:
            options.append(f"--{key.replace('_', '-')} {value}")
    if settings["precision"] != "fp32":
        options.append(f"--precision {settings['precision']}")
    lines.append(" \\\n    ".join([*options, f"--output run{more}"]))
    average = f"annotated-transformer average --run run{more} --last {made_of['last']}"
    return "\n".join([*lines, f"{average} --half --output model{more}"])


def search(record: dict[str, Any]) -> str:
    """Return how a set was translated."""
    named = {0: "a person", 1: "greedy"}
    return named.get(record["beam"], f"beam {record['beam']}, alpha {record['alpha']}")


def scores(name: str, made_of: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """Return the table of scores, and how they vary from seed to seed."""
    sets = SETS[name.partition("-")[0]]
    seed = made_of["training.seed"]
    rows = ["| what | sentences | search | BLEU | chrF2 |", "|---|---|---|---|---|"]
    for r in sorted(records, key=lambda record: list(sets).index(record["set"])):
        if r["seed"] == seed and r["averaged"] == made_of["last"]:
            cells = sets[r["set"]], f"{r['sentences']:,}", search(r)
            rows.append(f"| {' | '.join(cells)} | {r['bleu']:.1f} | {r['chrf']:.1f} |")
    own = list(sets)[-1]
    found = {r["seed"]: r for r in records if r["set"] == own}  # a seed's last has its own choices
    if len(found) > 1:
        each = ", ".join(f"{r['bleu']:.2f} (seed {seed}, {search(r)})" for seed, r in found.items())
        values = [r["bleu"] for r in found.values()]
        mean, spread = statistics.mean(values), statistics.stdev(values)
        what = f"{sets[own]} by seed, each with what validation chose for it"
        rows += ["", f"{what}: {each}; mean {mean:.2f}, standard deviation {spread:.2f}."]
    return "\n".join(rows)


def taught(sentences: Sequence[str], source: str) -> int:
    """Count the sentences that stand in the written phrases and words, however they are typed."""
    written = (path.read_text(encoding="utf-8") for path in (PHRASES, WORDS))
    lines = [line.split("\t") for text in written for line in text.splitlines()]
    known, asked = (
        ["".join(filter(str.isalnum, text.casefold())) for text in texts]
        for texts in ([line[source == "en"] for line in lines], sentences)
    )
    return sum(text in known for text in asked)


def judged(path: Path, source: str) -> str:
    """Return the table of sentences judged by hand; raises ValueError if one was not."""
    if not path.exists():
        return ""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    counts = Counter(row[2] for row in rows)
    if strange := set(counts) - {"right", "understandable", "wrong"}:
        raise ValueError(f"{path} has judgements {sorted(strange)}: right, understandable or wrong")
    told = ", ".join(f"{counts[name]} {name}" for name in ("right", "understandable", "wrong"))
    kinds = "sentences and words" if any(" " not in row[0] for row in rows) else "sentences"
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""
## What a visitor tries first

{len(rows)} {kinds}, translated with a beam of 4 and judged by hand, by one reader:
{told}.

Take this as an impression, not a measurement: many of these sentences are common, and others may
be in Tatoeba. The list was written before this training, and an earlier model translated most of
it. That one got the surname wrong, so surnames were added to the second table, with other phrases
(`tools/phrases.tsv`). Sentences of the list that were among these phrases were dropped from it or
replaced, all but {taught([row[0] for row in rows], source)} of the {len(rows)}.

| sentence | translation | judged |
|---|---|---|
{table}
"""


def card(folder: Path) -> str:
    """Return the text of the card."""
    name = folder.resolve().name
    kind, source, target = name.split("-")
    model, tokenizer = load_model(folder)
    config, records, trainings = model.config, read_lines(folder / EVALUATION), stages(folder)
    settings, log = trainings[-1]
    averaged = settings["last"]
    starts = [record for record in log if "torch" in record]
    threads = " then ".join(dict.fromkeys(str(record["threads"]) for record in starts))
    ends = [last_line(training) for training in trainings]
    updates = ", then ".join(f"{r['step']:,} updates, {r['epoch']:.0f} epochs" for r in ends)
    mean = (
        f"mean of the last {averaged} checkpoints, {settings['training.save_every']:,} steps apart"
    )
    made = "\n".join(commands(name, config, stage, n) for n, stage in enumerate(trainings, 1))
    about = ABOUT[kind].format(source=LANGUAGES[source], target=LANGUAGES[target])
    return f"""# {name}

{about}

| | |
|---|---|
| shape | {config.layers} + {config.layers} layers, d_model {config.d_model}, d_ff {config.d_ff}, \
{config.heads} heads, post-norm, dropout {config.dropout}, {parameter_count(config):,} parameters |
| vocabulary | {len(tokenizer):,} byte-level subwords, joint; learned from the training pairs |
| trained | {updates}, batches of at most \
{settings["training.max_tokens"]:,} tokens a side, seed {settings["training.seed"]} |
| weights | {mean if averaged > 1 else "the last checkpoint"}; stored in half precision |
| time | {sum(hours(log) for _, log in trainings):.1f} hours by the clock, other work included, \
on a processor \
({starts[-1]["machine"]}, threads: {threads}, products in {settings["precision"]}), with torch \
{starts[-1]["torch"].split("+")[0]} |

Made by

```bash
{made}
```

## Scores

{scores(name, settings, records)}

Cased, on plain text, by sacreBLEU: `{records[0]["bleu_signature"]}` and
`{records[0]["chrf_signature"]}`. The other test sets of Multi30k were not looked at.
{STOPPED.get(name, "")}
{judged(folder / JUDGED, source)}
## Data and terms

{DATA[kind]}

Code and weights: MIT; mind the terms of the data for what you do with them.
"""


def main() -> None:
    """Write the card of the folder named on the command line."""
    folder = Path(sys.argv[1])
    (folder / CARD).write_text(card(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
