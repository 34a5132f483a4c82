"""Numbers in the prose, computed when the site is built.

A page writes `{{ code.model }}`, or `{{ code.practice:, }}` with a format as Python has it. A name
begins with its group, a function below, which reads the package, the notebooks or a log.
"""

import ast
import functools
import io
import json
import math
import re
import tokenize
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

from book.site.heads import LINES_A_MINUTE, WORDS_A_MINUTE
from tools.package import modules

PLACEHOLDER = re.compile(r"\{\{ (?P<name>[a-z][\w.]*)(?::(?P<format>[\w.,]+))? \}\}")
LAST_OF_MODEL = "transformer"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
MINUTES = re.compile(r"\(★+, (\d+) min\b")
LOGGED = 60  # characters of a translation that the log of symptoms holds
REPEATED = re.compile(r"(.+?)\1{9,}")
BROKEN = (
    "| {what} | {validation_loss:.2f} | {neighbors_source:.2f} | {bleu} "
    "| {different} | {loops} | {endless} | *{said}* |"
)
RESUMED = "| {what} | {before:.2f} | {after_1:.2f} | {worst:.2f} | {end:.2f} |"
CHECKPOINT = "step {step}: loss {loss:.3f}, validation loss {validation_loss:.3f}, BLEU {score:.1f}"
SETTINGS = (
    "| {pairs:,} | `{preset}` | {dropout} | {max_tokens:,} | {peak_lr} | {warmup:,} "
    "| {best_step:,} | {best_epoch:.0f} | {processor_hours:.1f} | {bleu:.1f} |"
)
DECODED = "| {what} | {bleu} | {loops} | {endless} | *{said}* |"

Values = dict[str, Any]
Record = dict[str, Any]


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the numbers into a page's source, and the addresses of the repository and the site."""
    root = Path(app.srcdir)
    addresses = {
        "repository": str(app.config.html_theme_options["repository_url"]),
        "site": app.config.html_baseurl.rstrip("/"),
    }

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name in addresses:
            return addresses[name]
        app.env.note_reread()  # what is counted or logged may have changed
        try:
            return format(number(root, name), match["format"] or "")
        except LookupError:
            logging.getLogger(__name__).warning("no such number: %s", name)
            return match[0]

    source[0] = PLACEHOLDER.sub(value, source[0])


def number(root: Path, name: str) -> Any:
    """Return a number by its name.

    Raises:
        LookupError: there is no such number.
    """
    group, _, key = name.partition(".")
    return values(root, group)[key]


@functools.cache
def values(root: Path, group: str) -> Values:
    """Return the numbers of a group, by the rest of their names."""
    return GROUPS[group](root)


# What is counted


def code(root: Path) -> Values:
    """Lines of the package: the model, the lessons that train it and translate, the appendices."""
    lessons: dict[str, int] = {}
    appendices = 0
    for module in modules(root):
        lines = code_lines(module.path.read_text(encoding="utf-8"))
        if module.chapter.removeprefix("notebooks/")[0].isalpha():
            appendices += lines
        else:
            lessons[module.name] = lines
    names = list(lessons)
    model_names = names[: names.index(LAST_OF_MODEL) + 1]
    model = sum(lessons[name] for name in model_names)
    practice = sum(lessons.values()) - model
    return {"model": model, "practice": practice, "appendices": appendices}


def code_lines(text: str) -> int:
    """Count the lines that hold code: no comment, no docstring, no empty line."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            docstring = node.body[0]
            last = docstring.end_lineno or docstring.lineno
            documentation.update(range(docstring.lineno, last + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def hours(root: Path) -> Values:
    """Hours of reading and of exercises."""
    reading_minutes = minutes = 0.0
    for path in sorted((root / "notebooks").glob("[0-9]*.ipynb")):
        text = prose(path)
        reading_minutes += len(text.split()) / WORDS_A_MINUTE
        reading_minutes += visible_lines(path) / LINES_A_MINUTE
        minutes += sum(int(number) for number in MINUTES.findall(text))
    reading = round(reading_minutes / 60)
    return {"reading": reading, "exercises": round(minutes / 60)}


# What a log says


def symptoms(root: Path) -> Values:
    """What `benchmarks/experiments/symptoms.py` saw of each run, and the rows of its tables."""
    settings, *records = log(root, "symptoms")
    named = {f"settings.{field}": value for field, value in settings.items()}
    for record in records:
        name = slug(record["what"])
        if record["what"] == "healthy":
            name = f"healthy_{record['step']}"
        if "neighbors_source" in record:
            record["gap"] = record["neighbors_source"] - record["validation_loss"]
        named |= {f"{name}.{field}": value for field, value in record.items()}
    broken, resumed, decoded = [], [], []
    last_of_each = {record["what"]: record for record in records}
    for record in last_of_each.values():
        if "neighbors_source" in record:
            broken.append(record)
        elif "worst" in record:
            resumed.append(record)
        elif "bleu" in record:
            decoded.append(record)
    named["broken"] = table_rows(BROKEN, broken)
    named["resumed"] = table_rows(RESUMED, resumed)
    named["decoded"] = table_rows(DECODED, decoded)
    return named


def table_rows(form: str, records: list[Record]) -> str:
    """Return rows of a Markdown table."""
    rows = []
    for record in records:
        shown = {
            "what": record["what"].replace("</s>", "`</s>`"),
            "said": excerpt(record.get("said", "")),
        }
        rows.append(form.format(**record | shown))
    return "\n".join(rows)


def excerpt(said: str) -> str:
    """Shorten what repeats itself, and say where the log has cut a text off."""
    text = REPEATED.sub(lambda repeated: f"{repeated[1] * 6}…", said.strip())
    if len(said) < LOGGED or text.endswith((".", "…")):
        return text
    whole_words, _, _ = text.rpartition(" ")
    return f"{whole_words} …"


def gpu(root: Path) -> Values:
    """What `benchmarks.speed.step_speed` measured on an H200, and each time beside base's."""
    _, *records = log(root, "gpu-NVIDIA-H200")
    runs = {record["name"]: record for record in records}
    base = runs["base"]["tokens_per_second"]
    named: Values = {}
    for name, record in runs.items():
        if "tokens_per_second" in record:
            record["times_as_long"] = base / record["tokens_per_second"]
        named |= {f"{slug(name)}.{field}": value for field, value in record.items()}
    return named


def serving(root: Path) -> Values:
    """By how many percent bf16 makes translating faster, in the worst case and in the best."""
    gains = []
    for name in ("captions-de-en-1", "captions-de-en-2", "everyday-de-en-2"):
        for record in log(root, f"serving-{name}"):
            if record.get("system") == "ours bf16" and "times_ours" in record:
                gains.append(100 * record["times_ours"] - 100)
    return {"least": min(gains), "most": max(gains)}


def changes(root: Path) -> Values:
    """What each of `benchmarks/experiments/changes.py` does to the loss, with its 95% interval."""
    losses: dict[str, list[float]] = {}
    _, *records = log(root, "changes")
    for record in sorted(records, key=lambda record: record["seed"]):
        losses.setdefault(slug(record["change"]), []).append(record["validation_loss"])
    (plain_name, plain), *changed = losses.items()
    found: Values = {plain_name: f"{mean(plain):.2f}"}
    for name, by_seed in changed:
        gains = [loss - before for loss, before in zip(by_seed, plain, strict=True)]
        half = 4.30 * stdev(gains) / math.sqrt(3)  # Student's t, for three seeds
        found[name] = f"{mean(gains):+.2f} ± {half:.2f}".replace("-", "−")
    return found


def models(root: Path) -> Values:
    """Size and score of the models of this book, from their cards and logs."""
    found: Values = {}
    for card in sorted(root.glob("annotated_transformer/pretrained/*/README.md")):
        name = slug(card.parent.name)
        size = re.search(r"([\d,]+) parameters", card.read_text(encoding="utf-8"))
        found[f"{name}.parameters"] = size[1] if size else ""
        own = "captions" if "captions" in name else "tatoeba"
        for line in (card.parent / "evaluation.jsonl").read_text().splitlines():
            record = json.loads(line)
            search = record["seed"], record["set"], record["beam"], record["alpha"]
            if search == (0, own, 4, 0.6):
                found[f"{name}.bleu"] = record["bleu"]
    _, *records = log(root, "table3")
    miniatures = [record for record in records if record["row"] == "base"]
    found["miniature.parameters"] = f"{miniatures[0]['parameters']:,}"
    found["miniature.bleu"] = mean(record["bleu"] for record in miniatures)
    return found


def start(root: Path) -> Values:
    """BLEU of `benchmarks/experiments/start.py` on each set, the mean over seeds."""
    scores: dict[str, list[float]] = {}
    _, *records = log(root, "start")
    for record in records:
        for name in ("everyday", "captions"):
            key = f"{slug(record['model'])}.{name}"
            scores.setdefault(key, []).append(record[name]["bleu"])
    return {key: mean(seeds) for key, seeds in scores.items()}


def tatoeba(root: Path) -> Values:
    """What the commands of *your own pair* printed: a training, then scores and translations."""
    training = log(root, "tatoeba-deu-eng")
    printed = {
        record["command"]: record["printed"]
        for record in log(root, "tatoeba-deu-eng-scores")
    }
    lines = [CHECKPOINT.format(**record) for record in training if "score" in record]
    bleu = {}
    for last in (1, 2, 3):
        score = json.loads(printed[f"evaluate, last {last}"])
        bleu[f"last_{last}"] = score["bleu"]
    sources, targets = (printed[side].splitlines() for side in ("source", "translate"))
    rows = [f"| {source} | {target} |" for source, target in zip(sources, targets)]
    seconds = (clock(training[-1]) - clock(training[0])).total_seconds()
    return {
        "kept": printed["train"],
        "minutes": seconds / 60,
        "printed": "\n".join(lines),
        "bleu": training[-1]["score"],
        "test": printed["evaluate, test"],
        "translated": "\n".join(rows),
        **bleu,
    }


def suits(root: Path) -> Values:
    """Settings that suit corpora of several sizes."""
    asked, *trainings = log(root, "settings")
    rows = []
    for training in sorted(trainings, key=lambda r: (r["pairs"], -r["bleu"])):
        pairs = min(training["pairs"], asked["found"])
        rows.append(SETTINGS.format(**{**training, "pairs": pairs}))
    by_size = {
        (training["pairs"], training["preset"]): training for training in trainings
    }
    larger: Values = {}
    for pairs, preset in ((30_000, "captions"), (200_000, "everyday")):
        training, tiny = by_size[pairs, preset], by_size[pairs, "tiny"]
        larger[f"{preset}.gains"] = training["bleu"] - tiny["bleu"]
        larger[f"{preset}.takes"] = (
            training["processor_hours"] / tiny["processor_hours"]
        )
    few, more = (
        max(t["bleu"] for t in trainings if (t["pairs"], t["preset"]) == (size, "tiny"))
        for size in (3_000, 30_000)
    )
    *_, last = log(root, "tatoeba-deu-eng")
    tokens_per_pair = last["step"] / last["epoch"] * 1024 / asked["found"]
    epochs_of_base = 100_000 * 25_000 / (200_000 * tokens_per_pair)
    return {
        "rows": "\n".join(rows),
        "gain": more - few,  # of ten times as many pairs
        "all_pairs": min(200_000, asked["found"]),
        **larger,
        "sentences": trainings[0]["sentences"],
        "processor": trainings[0]["processor"],
        "epochs_of_base": round(epochs_of_base, -2),
    }


def clock(line: Record) -> datetime:
    """Return the time of day of a line of a training's log."""
    return datetime.strptime(line["time"], "%Y-%m-%d %H:%M:%S%z")


GROUPS: dict[str, Callable[[Path], Values]] = {
    group.__name__: group
    for group in (
        code,
        hours,
        symptoms,
        gpu,
        serving,
        changes,
        models,
        start,
        tatoeba,
        suits,
    )
}


# Reading


def slug(text: str) -> str:
    """Return a text as part of a name: `12,500 tokens` is `12_500_tokens`."""
    return re.sub(r"\W+", "_", text.lower()).strip("_")


def log(root: Path, name: str) -> list[Record]:
    """Return the records of a committed log."""
    path = root / "benchmarks" / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@functools.cache
def cells(path: Path) -> list[Record]:
    """Return the cells of a notebook."""
    notebook: Record = json.loads(path.read_text(encoding="utf-8"))
    return list(notebook["cells"])


def prose(path: Path) -> str:
    """Return the text of a notebook."""
    texts = [cell["source"] for cell in cells(path) if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(lines) for lines in texts)


def visible_lines(path: Path) -> int:
    """Count the lines of code that a reader of a notebook sees without unfolding anything."""
    count = 0
    for cell in cells(path):
        tags = cell["metadata"].get("tags", [])
        is_hidden = any(tag.startswith(("hide", "remove")) for tag in tags)
        if cell["cell_type"] == "code" and not is_hidden:
            count += sum(1 for line in cell["source"] if line.strip())
    return count
