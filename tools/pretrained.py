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

from annotated_transformer import cli
from annotated_transformer.data import Pair, multi30k
from annotated_transformer.decoding import translate
from annotated_transformer.evaluation import score
from annotated_transformer.model_io import load_model
from annotated_transformer.own_data import filter_pairs, split_pairs
from annotated_transformer.run_folder import CHECKPOINTS, LOG, SETTINGS
from tools.card import STAGES
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


def against_all(folder: Path, archive: Path, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Score against all known translations of each sentence, and one of these against another.

    The last tells what a person reaches who may choose other words than the reference.
    """
    known = defaultdict[str, list[str]](list)
    for pair in tatoeba(archive):
        german, english = (" ".join(text.split()) for text in pair[:2])
        known[german].append(english)
        known[english].append(german)
    written = translate(*load_model(folder), [pair.source for pair in pairs], BEAM, ALPHAS[0])
    every = [list(dict.fromkeys(known[pair.source])) for pair in pairs]
    several = [at for at, found in enumerate(every) if len(found) > 1]
    persons = [next(t for t in every[at] if t != pairs[at].target) for at in several]
    one, records = [[pairs[at].target for at in several]], list[dict[str, Any]]()
    for name, texts, references in (
        ("every", written, [list(column) for column in zip_longest(*every)]),
        ("several", [written[at] for at in several], one),
        ("person", persons, one),
    ):
        scores = {"bleu": (bleu := BLEU()).corpus_score(texts, references).score}
        scores |= {"chrf": (chrf := CHRF()).corpus_score(texts, references).score}
        scores |= {"bleu_signature": str(bleu.get_signature())}
        scores |= {"chrf_signature": str(chrf.get_signature())}
        search = {"beam": 0 if name == "person" else BEAM, "alpha": ALPHAS[0]}
        records.append({"set": name, "sentences": len(texts), **search, **scores})
    return records


def thin(log: Path) -> None:
    """Keep of a model's log what a reader wants: each start, and a line for each 250 steps."""
    lines = [(json.loads(line), line) for line in log.read_text("utf-8").splitlines(True)]
    kept = [line for told, line in lines if "torch" in told or told["step"] % 250 == 0]
    log.write_text("".join(kept), encoding="utf-8")


def finish(
    run: Path, model: Path, sets: dict[str, list[Pair]], last: int | None = None
) -> list[dict[str, Any]]:
    """Average a run into a model as validation says, or the `last`; return all scores."""
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
    for number in [n for n in AVERAGED if n <= held]:
        cli.average(run, model, number, half=True)
        found[number] = measure(validation, number)
    best = last or next(n for n, bleu in found.items() if bleu > max(found.values()) - 0.1)
    cli.average(run, model, best, half=True)
    thin(model / LOG)
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
    parser.add_argument(
        "--seeds", action="store_true", help="the model stays; add scores of others"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the models")
    parser.add_argument("--last", type=int, choices=AVERAGED, help="how many, whatever they score")
    parser.add_argument("--start", type=Path, help="folder of the model that the run began with")
    options = parser.parse_args()
    if len(options.runs) > 1 and not options.seeds:
        parser.error("a model is made of one run: give --seeds for others beside it")
    sets, model = test_sets(options.name, options.archive), options.home / options.name
    records = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as other:
        for at, run in enumerate(options.runs):
            home = Path(other, str(at)) if options.seeds else model
            records += finish(run, home, sets, options.last)
    if options.start:
        there = [names for names in STAGES if (options.start / names[0]).exists()]
        for names, copied in zip(there, STAGES):
            for name, copy in zip(names, copied):
                (model / copy).write_bytes((options.start / name).read_bytes())
    if options.archive and not options.seeds:
        about = {key: records[-1][key] for key in ("seed", "averaged", "threads")}
        records += [about | r for r in against_all(model, options.archive, sets["tatoeba"])]
    with (model / "evaluation.jsonl").open("a" if options.seeds else "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    if (model / "judged.tsv").exists():
        judge(model)


if __name__ == "__main__":
    main()
