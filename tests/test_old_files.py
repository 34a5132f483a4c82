"""Files of an older version open with the code of today: model, prepared corpus, stopped runs.

tests/fixtures/make_old_files.py made them with the code of commit 688ad9e.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from annotated_transformer import (
    TrainingConfig,
    load_model,
    open_corpus,
    prepare,
    read_pairs,
    save_model,
    train,
    translate,
)
from annotated_transformer.toolkit.cli import main
from annotated_transformer.toolkit.run_folder import read_checkpoint

OLD_FILES = Path(__file__).parent / "fixtures" / "old"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old files; as then, they are used from the folder that they lie in."""
    folder = Path(shutil.copytree(OLD_FILES, tmp_path / "old"))
    monkeypatch.chdir(folder)
    return folder


def check_end(run: Path, end: Path) -> None:
    """Assert that a run arrived where the code of then arrived, but for rounding."""
    weights = read_checkpoint(run / "checkpoints" / "step-00000008.pt")["model"]
    expected = load_file(end)
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)


def test_an_old_model_translates_as_it_did(old: Path) -> None:
    model, tokenizer = load_model(old / "model")
    sentence = "Jeden Tag muss er die große Königin anrufen."
    expected = "I laman can calman herho cals chiv."  # it has learned very little
    assert translate(model, tokenizer, [sentence]) == [expected]


def test_an_old_model_is_saved_again_as_the_same_files(old: Path) -> None:
    save_model(*load_model(old / "model"), old / "again")
    for path in (old / "model").iterdir():
        assert (old / "again" / path.name).read_bytes() == path.read_bytes()


def test_an_old_prepared_corpus_opens(old: Path) -> None:
    corpus, tokenizer, validation, test = open_corpus(old / "corpus")
    pairs = read_pairs(old / "pairs.tsv")
    assert (len(corpus), len(validation), len(test)) == (51, 2, 3)
    # The pair of line 1 is in the validation part
    assert tokenizer.decode(corpus[0].source) == pairs[1].source
    assert tokenizer.decode(corpus[0].target) == pairs[1].target
    assert {*validation, *test} < {*pairs}


def test_an_old_prepared_corpus_is_known_by_its_settings(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Path("model/tokenizer.json")
    summary = prepare(["pairs.tsv"], Path("corpus"), tokenizer=tokenizer)
    assert capsys.readouterr().out == "corpus is prepared already\n"
    assert summary["key"] == "4f2ebfe8ad9490d3"
    with pytest.raises(FileExistsError, match="is not this corpus"):
        prepare(["pairs.tsv"], Path("corpus"), tokenizer=tokenizer, limit=40)


def test_the_same_corpus_is_prepared_with_other_pairs_held_out(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tenth row was held out then; now chance decides, and all else is as it was."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", old / "cache")
    prepare(["pairs.tsv"], Path("again"), tokenizer=Path("model/tokenizer.json"))
    contents = []
    for folder in (old / "corpus", old / "again"):
        corpus, tokenizer, validation, test = open_corpus(folder)
        learned = [tokenizer.decode(example.source) for example in corpus]
        held_out = [str(pair.source) for pair in validation + test]
        contents.append(sorted(learned + held_out))
    assert contents[0] == contents[1]


def test_an_old_run_is_continued(old: Path) -> None:
    model, tokenizer = load_model(old / "model")
    corpus, _, validation, _ = open_corpus(old / "corpus")
    config = TrainingConfig(
        steps=8,
        max_tokens=300,
        warmup=4,
        lr_scale=0.02,
        save_every=4,
        keep_checkpoints=1,
    )
    steps = []
    train(
        model,
        tokenizer,
        corpus,
        config,
        validation=validation,
        folder=old / "python_run",
        report=lambda line: steps.append(line["step"]),
    )
    assert steps == [8]  # not 4: it went on from step 5
    check_end(old / "python_run", old / "end_of_python_run.safetensors")


def test_an_old_run_is_continued_from_the_command_line(old: Path) -> None:
    command = "train --output command_run --prepared corpus --start model"
    settings = "--precision fp32 --max-tokens 300 --warmup 4 --lr-scale 0.02"
    more = "--save-every 4 --keep-checkpoints 1 --steps 8"
    main(f"{command} {settings} {more}".split())
    check_end(old / "command_run", old / "end_of_command_run.safetensors")
    load_model(old / "command_run")


def test_an_old_run_is_continued_where_its_first_model_is_spelled_otherwise(
    old: Path,
) -> None:
    """It noted a path, which nobody can compare with a model; its checkpoint has its weights."""
    command = f"train --output command_run --prepared corpus --start {old / 'model'}"
    settings = "--precision fp32 --max-tokens 300 --warmup 4 --lr-scale 0.02"
    more = "--save-every 4 --keep-checkpoints 1 --steps 8"
    main(f"{command} {settings} {more}".split())
    check_end(old / "command_run", old / "end_of_command_run.safetensors")
