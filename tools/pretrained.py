"""Make a model that comes with the package from the folder of its training, and score it.

    python -m tools.pretrained captions-de-en run model
    python -m tools.pretrained everyday-de-en run model --archive deu-eng.zip

How many checkpoints to average (the fewest within 0.1 BLEU of the best), and the length penalty,
are chosen on validation; then each test set is scored. An everyday model is also scored against all
that Tatoeba holds as translations of its sentences. All scores go to the new model's
`evaluation.jsonl`. Its card is written by hand, and a test compares the two.
"""

import json
import shutil
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sacrebleu import BLEU, CHRF

from annotated_transformer import Pair, load_model, save_model, translate
from annotated_transformer.own_data import (
    filter_pairs,
    multi30k,
    single_spaced,
    split_pairs,
)
from annotated_transformer.trainer import (
    LOG,
    SETTINGS,
    average_checkpoints,
    checkpoints,
)
from tools.command import command_line
from tools.everyday import everyday_pairs, tatoeba

NAMES = ("captions-de-en", "everyday-de-en", "everyday-en-de")
BEAM = 4
ALPHAS = (0.6, 1.0, 1.4)  # the first is the default
CHECKPOINT_COUNTS = (1, 4, 8, 12)
CLOSE_ENOUGH = 0.1  # BLEU, for which no more checkpoints are averaged

Record = dict[str, Any]
Sets = dict[str, list[Pair]]


def test_sets(name: str, archive: Path | None) -> Sets:
    """Return validation first, then the sets that are scored once.

    Of an everyday model's pairs that are put aside, these are the ones that Tatoeba itself has.
    """
    direction = name.removeprefix("everyday-")
    captions = multi30k("test_2016_flickr")
    if direction == "en-de":
        captions = [Pair(pair.target, pair.source) for pair in captions]
    if archive is None:
        return {"validation": multi30k("val"), "captions": captions}
    clean, _ = filter_pairs(everyday_pairs(archive, direction))
    splits = split_pairs(clean, 0.01, 0.01)
    known = known_translations(archive)
    validation, tatoebas = (
        [pair for pair in part if pair.target in known.get(pair.source, [])]
        for part in (splits.validation, splits.test)
    )
    return {"validation": validation, "tatoeba": tatoebas, "captions": captions}


def known_translations(archive: Path) -> dict[str, list[str]]:
    """Return all that Tatoeba has as translations of each sentence, either way."""
    translations = defaultdict[str, dict[str, None]](dict)  # in order, each once
    for pair in tatoeba(archive):
        german, english = single_spaced(pair.source), single_spaced(pair.target)
        translations[german][english] = None
        translations[english][german] = None
    return {sentence: list(texts) for sentence, texts in translations.items()}


def scores_of(texts: list[str], references: list[list[Any]]) -> Record:
    """Score texts against columns of references, None where a text has fewer."""
    bleu, chrf = BLEU(), CHRF()
    return {
        "bleu": bleu.corpus_score(texts, references).score,
        "chrf": chrf.corpus_score(texts, references).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def measured(model: Path, pairs: list[Pair], beam: int, alpha: float) -> Record:
    """Translate with a saved model, and score it."""
    sources = [pair.source for pair in pairs]
    written = translate(*load_model(model), sources, beam, alpha)
    scores = scores_of(written, [[pair.target for pair in pairs]])
    return {"sentences": len(pairs), "beam": beam, "alpha": alpha, **scores}


def measured_against_all(model: Path, archive: Path, pairs: list[Pair]) -> list[Record]:
    """Score against all known translations of each sentence, and one of these against another.

    The last tells what a person reaches who may choose other words than the reference.
    """
    written = translate(*load_model(model), [pair.source for pair in pairs], BEAM)
    known = known_translations(archive)
    all_references = [known[pair.source] for pair in pairs]
    columns = [list(column) for column in zip_longest(*all_references)]

    of_model: list[str] = []
    of_person: list[str] = []
    references: list[str] = []
    for pair, text, translations in zip(pairs, written, all_references):
        alternatives = [other for other in translations if other != pair.target]
        if alternatives:
            of_model.append(text)
            of_person.append(alternatives[0])
            references.append(pair.target)
    return [
        {"set": name, "sentences": len(texts), "beam": beam, "alpha": ALPHAS[0]}
        | scores_of(texts, against)
        for name, beam, texts, against in (
            ("every", BEAM, written, columns),
            ("several", BEAM, of_model, [references]),
            ("person", 0, of_person, [references]),
        )
    ]


def save_average(run: Path, model: Path, last: int) -> None:
    """Write the mean of the last checkpoints as a model."""
    mean, tokenizer = average_checkpoints(run, last)
    save_model(mean, tokenizer, model, half=True)


def finish(run: Path, model: Path, sets: Sets) -> list[Record]:
    """Average a run into a model as validation says; return all scores."""
    records: list[Record] = []

    def measure(name: str, averaged: int, beam: int, alpha: float) -> Record:
        label = {"set": name, "averaged": averaged}
        records.append(label | measured(model, sets[name], beam, alpha))
        print({key: records[-1][key] for key in (*label, "beam", "alpha", "bleu")})
        return records[-1]

    for count in CHECKPOINT_COUNTS:
        if count <= len(checkpoints(run)):
            save_average(run, model, count)
            measure("validation", count, BEAM, ALPHAS[0])
    enough = max(record["bleu"] for record in records) - CLOSE_ENOUGH
    chosen = next(record for record in records if record["bleu"] > enough)
    count = chosen["averaged"]
    save_average(run, model, count)

    candidates = [chosen]
    for alpha in ALPHAS[1:]:
        candidates.append(measure("validation", count, BEAM, alpha))
    best_alpha = max(candidates, key=lambda record: record["bleu"])["alpha"]
    for name in sets:
        if name != "validation":
            measure(name, count, 1, ALPHAS[0])
            for alpha in sorted({ALPHAS[0], best_alpha}):
                measure(name, count, BEAM, alpha)
    return records


def main() -> None:
    """Make the model that the command line names."""
    parser = command_line("tools.pretrained", __doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("run", type=Path, help="folder of a training")
    parser.add_argument("model", type=Path, help="folder of the new model")
    parser.add_argument("--archive", type=Path, help="Tatoeba's pairs, deu-eng.zip")
    options = parser.parse_args()
    sets = test_sets(options.name, options.archive)
    records = finish(options.run, options.model, sets)
    if options.archive:
        pairs = sets["tatoeba"]
        records += measured_against_all(options.model, options.archive, pairs)
    for part in (SETTINGS, LOG):
        shutil.copy(options.run / part, options.model)
    lines = [json.dumps(record) + "\n" for record in records]
    (options.model / "evaluation.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
