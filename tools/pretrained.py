"""Make a model that comes with the package from its training, and score it.

    python -m tools.pretrained captions-de-en RUN [RUN ...]
    python -m tools.pretrained everyday-de-en RUN --archive deu-eng.zip

How many checkpoints to average, and the length penalty, are chosen on validation. The first run
becomes the model; runs from other seeds are scored alike, and show how far such scores vary. All
scores go to the model's `evaluation.jsonl`. An everyday model also translates the sentences of its
`judged.tsv`; where a translation is new, somebody has to judge it again. `python -m tools.card`
writes the card from these files.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from annotated_transformer import cli
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.model_io import load_model
from annotated_transformer.own_data import filter_pairs, split_pairs
from annotated_transformer.run_folder import CHECKPOINTS, SETTINGS
from tools.everyday import pairs_of, tatoeba

HOME = Path(__file__).parents[1] / "annotated_transformer" / "pretrained"
BEAM, ALPHAS, AVERAGED = 4, (0.6, 1.0, 1.4), (1, 4, 8, 12)


def test_sets(name: str, archive: Path | None) -> dict[str, list[Pair]]:
    """Return validation first, then the sets that are scored once."""
    kind, _, direction = name.partition("-")
    captions = multi30k("test_2016_flickr")
    if kind == "captions":
        return {"validation": multi30k("val"), "captions": captions}
    if not archive:
        raise SystemExit("an everyday model is scored on pairs of Tatoeba: give --archive")
    parts = split_pairs(filter_pairs(pairs_of(archive, direction))[0], 0.01, 0.01)
    reverse = direction == "en-de"
    known = {frozenset((" ".join(p[0].split()), " ".join(p[1].split()))) for p in tatoeba(archive)}
    held_out = {"validation": parts.validation, "tatoeba": parts.test}
    sets = {key: [p for p in part if frozenset(p[:2]) in known] for key, part in held_out.items()}
    return sets | {"captions": [Pair(p[1], p[0]) if reverse else p for p in captions]}


def scored(folder: Path, pairs: Sequence[Pair], beam: int, alpha: float) -> dict[str, Any]:
    """Translate and score with a saved model."""
    model, tokenizer = load_model(folder)
    start = time.perf_counter()
    written = translate(model, tokenizer, [pair.source for pair in pairs], beam, alpha)
    seconds = round(time.perf_counter() - start, 1)
    scores = score(written, [pair.target for pair in pairs])._asdict()
    return {"sentences": len(pairs), "beam": beam, "alpha": alpha, **scores, "seconds": seconds}


def finish(run: Path, model: Path, sets: dict[str, list[Pair]]) -> list[dict[str, Any]]:
    """Average a run into a model as validation says; return all scores."""
    validation, *others = sets
    seed = json.loads((run / SETTINGS).read_text("utf-8"))["training.seed"]
    held = len(list((run / CHECKPOINTS).glob("step-*")))
    records = []

    def measure(name: str, last: int, beam: int = BEAM, alpha: float = ALPHAS[0]) -> float:
        about = {"seed": seed, "set": name, "averaged": last, "threads": torch.get_num_threads()}
        records.append(about | scored(model, sets[name], beam, alpha))
        print({k: v for k, v in records[-1].items() if "signature" not in k}, flush=True)
        return records[-1]["bleu"]

    found = {}
    for last in [n for n in AVERAGED if n <= held]:
        cli.average(run, model, last, half=True)
        found[last] = measure(validation, last)
    best = max(found, key=found.__getitem__)
    cli.average(run, model, best, half=True)
    rest = {alpha: measure(validation, best, alpha=alpha) for alpha in ALPHAS[1:]}
    by_alpha = {ALPHAS[0]: found[best]} | rest
    chosen = max(by_alpha, key=by_alpha.__getitem__)
    for name in others:
        measure(name, best, beam=1)
        for alpha in dict.fromkeys((ALPHAS[0], chosen)):
            measure(name, best, alpha=alpha)
    return records


def judge(model: Path) -> None:
    """Translate the sentences of `judged.tsv` anew; a judgement stays if the translation does."""
    path = model / "judged.tsv"
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    written = translate(*load_model(model), [row[0] for row in rows], BEAM)
    judged = [
        f"{row[0]}\t{new}\t{row[2] if row[1:2] == [new] else '?'}\n"
        for row, new in zip(rows, written)
    ]
    path.write_text("".join(judged), encoding="utf-8")
    print(f"{path}: {sum(line.endswith('?' + chr(10)) for line in judged)} lines to judge")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="captions-de-en, everyday-de-en or everyday-en-de")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of trainings")
    parser.add_argument("--archive", type=Path, help="Tatoeba's pairs, deu-eng.zip")
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the models")
    options = parser.parse_args()
    sets, model = test_sets(options.name, options.archive), options.home / options.name
    records = finish(options.runs[0], model, sets)
    with tempfile.TemporaryDirectory() as folder:
        for run in options.runs[1:]:
            records += finish(run, Path(folder) / run.name, sets)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (model / "evaluation.jsonl").write_text(lines, encoding="utf-8")
    if (model / "judged.tsv").exists():
        judge(model)


if __name__ == "__main__":
    main()
