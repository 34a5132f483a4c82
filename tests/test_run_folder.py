"""A folder that belongs to something else is left alone; log and checkpoints tell the truth."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer import TrainingConfig, train
from annotated_transformer.batching import encode_pairs
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import run_folder
from annotated_transformer.toolkit.model_io import load_model, save_model
from annotated_transformer.toolkit.run_folder import (
    average_checkpoints,
    begin_log,
    checkpoints,
    last_checkpoint,
    read_checkpoint,
    read_log,
    remove_old_checkpoints,
    save_average,
    steps_made,
    write_log,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(60, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=300)
CORPUS = encode_pairs(TOKENIZER, PAIRS)
CONFIG = TrainingConfig(steps=4, max_tokens=300, save_every=2)


def make() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(len(TOKENIZER), 1, 16, 32, 2, dropout=0.0))


def go(folder: Path, config: TrainingConfig = CONFIG, **options: Any) -> Transformer:
    return train(make(), TOKENIZER, CORPUS, config, folder=folder, **options)


# --- Folders of something else ---


def letters(folder: Path) -> None:
    (folder / "thesis.tex").write_text("chapter 1")


def a_model(folder: Path) -> None:
    save_model(make(), TOKENIZER, folder)


def an_average(folder: Path) -> None:
    """With the settings and the log of its training copied beside it."""
    go(folder)
    for path in checkpoints(folder):
        path.unlink()
    (folder / "checkpoints").rmdir()


def a_prepared_corpus(folder: Path) -> None:
    for name in ("tokens.bin", "lengths.npy", "summary.json", "validation.tsv"):
        (folder / name).write_bytes(b"1")
    (folder / "tokenizer.json").write_bytes(TOKENIZER.text.encode())


def a_table(folder: Path) -> None:
    (folder / "mine.tsv").write_text("a\tb\n")


def a_folder_in_it(folder: Path) -> None:
    (folder / "photos").mkdir()


def lost_settings(folder: Path) -> None:
    go(folder)
    (folder / "training.json").unlink()


def files_and_folders(folder: Path) -> dict[Path, bytes | None]:
    """What is in a folder, but for the lock: the content of each file, None for a folder."""
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize(
    "holds",
    [
        letters,
        a_model,
        an_average,
        a_prepared_corpus,
        a_table,
        a_folder_in_it,
        lost_settings,
    ],
)
def test_a_folder_that_holds_something_else_is_left_alone(
    tmp_path: Path, holds: Any
) -> None:
    holds(tmp_path)
    before = files_and_folders(tmp_path)
    with pytest.raises(FileExistsError, match=r"is no run, it holds .*: take another"):
        go(tmp_path)
    assert files_and_folders(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1, 2]",
        "3",
        '{"tokenizer": "x", "epochs": [1]}',
        '{"tokenizer": "x", "pairs": "mine", "validation": "x"}',
        "\x00\xff",
    ],
)
def test_settings_of_something_else_are_named_and_left_alone(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "training.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"training\.json holds no settings of a run"):
        go(tmp_path)
    assert path.read_bytes() == content.encode("latin-1")


LIKE_OURS = [
    "thesis.2024.unfinished",
    "log.jsonl.old.7.unfinished",
    "step-1.pt.7.unfinished",
    "xstep-00000002.pt.7.unfinished",
]


def test_files_of_the_user_beside_a_training_stay(tmp_path: Path) -> None:
    """Only what a killed process of ours left goes: name.PID.unfinished."""
    go(tmp_path)
    ours = [tmp_path / "log.jsonl.12.unfinished"]
    ours += [tmp_path / "checkpoints" / "step-00000002.pt.12.unfinished"]
    for path in ours:
        path.write_text("half")
    for name in (
        "thesis.1.part",
        "step-backup.pt",
        "step-00000002.copy.pt",
        "chapter.two.unfinished",
        *LIKE_OURS,
    ):
        (tmp_path / name).write_text("mine")
        (tmp_path / "checkpoints" / name).write_text("mine")
    of_another_run = tmp_path / "another run" / "log.jsonl.12.unfinished"
    of_another_run.parent.mkdir()
    of_another_run.write_text("just being written")
    go(tmp_path, TrainingConfig(**{**vars(CONFIG), "steps": 6}))
    assert of_another_run.exists()
    for folder in (tmp_path, tmp_path / "checkpoints"):
        files = [path.name for path in folder.iterdir() if path.is_file()]
        assert {"thesis.1.part", "step-backup.pt", "chapter.two.unfinished"} < {*files}
        assert {"step-00000002.copy.pt", *LIKE_OURS} < {*files}
    assert not any(path.exists() for path in ours)


# --- Checkpoints ---

NAMES = st.dictionaries(
    st.integers(0, 99_999_999), st.sampled_from(["step", "stop"]), max_size=9
)


@settings(deadline=None, max_examples=50)
@given(NAMES, st.integers(1, 5))
def test_which_checkpoints_stay(
    tmp_path_factory: pytest.TempPathFactory, kinds: dict[int, str], keep: int
) -> None:
    """The last regular ones, and the last of all, from which a training continues."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "checkpoints").mkdir()
    for step, kind in kinds.items():
        (folder / "checkpoints" / f"{kind}-{step:08}.pt").touch()
    remove_old_checkpoints(folder, keep)
    regular = sorted(step for step, kind in kinds.items() if kind == "step")[-keep:]
    assert [int(path.stem[5:]) for path in checkpoints(folder)] == regular
    last = last_checkpoint(folder)
    assert (int(last.stem[5:]) if last else None) == max(kinds, default=None)
    needed = {*regular, max(kinds)} if kinds else set()
    assert len([*folder.rglob("*.pt")]) == len(needed)


def test_a_checkpoint_too_many_after_a_kill_goes_at_the_next_start(
    tmp_path: Path,
) -> None:
    config = TrainingConfig(**{**vars(CONFIG), "keep_checkpoints": 1})
    go(tmp_path, config)
    regular = checkpoints(tmp_path)
    for name in ("step-00000002.pt", "stop-00000003.pt"):
        (tmp_path / "checkpoints" / name).write_bytes(regular[0].read_bytes())
    go(tmp_path, config)  # has no step to make
    assert [*(tmp_path / "checkpoints").iterdir()] == regular


def test_of_two_of_a_step_the_regular_one_counts(tmp_path: Path) -> None:
    """The other was written before the validation."""
    assert steps_made(tmp_path) == 0
    go(tmp_path)
    regular = checkpoints(tmp_path)[-1]
    shutil.copy(regular, regular.with_name("stop-00000004.pt"))
    assert last_checkpoint(tmp_path) == regular and steps_made(tmp_path) == 4
    remove_old_checkpoints(tmp_path, keep=5)
    assert not regular.with_name("stop-00000004.pt").exists()


def test_an_archive_that_unpacks_to_more_than_its_size_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path)
    path = checkpoints(tmp_path)[-1]
    with ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    monkeypatch.setattr(ZipFile, "open", None)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ValueError, match="is not a whole checkpoint") as raised:
        read_checkpoint(path)
    assert str(raised.value.__cause__) == "it is compressed"


# --- The log ---


def test_a_start_forgets_what_comes_later_and_a_line_that_was_cut_off(
    tmp_path: Path,
) -> None:
    for step in (0, 10, 20, 30):
        write_log(tmp_path, {"step": step, "loss": 1.5})
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 20, "loss": 1}')  # whole but for the end of the line
    begin_log(tmp_path, 20, processes=3)
    lines = [
        json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == [0, 10, 20, 20]
    assert (
        lines[2]["loss"] == 1.5
        and lines[3]["processes"] == 3
        and "loss" not in lines[3]
    )
    assert all("time" in line for line in lines)


@pytest.mark.parametrize(
    "content",
    [
        "hello\n",
        "[]\n",
        "3\n",
        '{"loss": 1}\n',
        '{"step": "x"}\n',
        '{"st\n{}\n',
        "\xff\n",
    ],
)
def test_a_log_that_is_none_is_named_and_left_alone(
    tmp_path: Path, content: str
) -> None:
    go(tmp_path)
    path = tmp_path / "log.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"log\.jsonl is no log of a run .*: move it away"
    ):
        go(tmp_path)
    assert path.read_bytes() == content.encode("latin-1")
    path.unlink()
    go(tmp_path)


# --- The mean ---


def test_the_average_is_the_mean_in_double_precision(tmp_path: Path) -> None:
    model = go(tmp_path, TrainingConfig(**{**vars(CONFIG), "steps": 8}))
    last, tokenizer = average_checkpoints(tmp_path, 1)
    assert tokenizer.text == TOKENIZER.text and not last.training
    states = [
        torch.load(p, weights_only=True)["model"] for p in checkpoints(tmp_path)[-3:]
    ]
    for name, weights in average_checkpoints(str(tmp_path), 3)[0].state_dict().items():
        mean = torch.stack([state[name].double() for state in states]).mean(dim=0)
        assert torch.equal(weights, mean.float())
        assert torch.equal(last.state_dict()[name], model.state_dict()[name])


def test_large_checkpoints_are_mapped_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path)
    load = torch.load
    mapped = []

    def remember(*arguments: Any, **options: Any) -> Any:
        mapped.append(options["mmap"])
        return load(*arguments, **options)

    monkeypatch.setattr(torch, "load", remember)
    average_checkpoints(tmp_path, 2)
    assert mapped == [True, True]


def test_more_checkpoints_than_there_are_none_at_all_and_no_folder(
    tmp_path: Path,
) -> None:
    go(tmp_path)
    with pytest.raises(FileNotFoundError, match=r": 2, asked for: 3$"):
        average_checkpoints(tmp_path, 3)
    with pytest.raises(ValueError, match="take 1 or more"):
        average_checkpoints(tmp_path, 0)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere$"):
        average_checkpoints(tmp_path / "nowhere", 2)


def other_width(content: dict[str, Any]) -> None:
    content["config"]["d_ff"] = 64


def other_depth(content: dict[str, Any]) -> None:
    content["config"]["layers"] = 2


def other_tokenizer(content: dict[str, Any]) -> None:
    content["tokenizer"] += " "


def other_weights(content: dict[str, Any]) -> None:
    content["model"]["embedding.weight"] = torch.zeros(3)


def no_weights(content: dict[str, Any]) -> None:
    del content["model"]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_width, "another config than step-"),
        (other_depth, "another config than step-"),
        (other_tokenizer, "another tokenizer than step-"),
        (other_weights, r"holds no model: the shape of embedding\.weight is"),
        (no_weights, "holds no model: 'model'"),
    ],
)
def test_checkpoints_of_several_models_have_no_mean(
    tmp_path: Path, change: Any, message: str, number: int
) -> None:
    go(tmp_path)
    path = checkpoints(tmp_path)[number]
    content = read_checkpoint(path)
    change(content)
    torch.save(content, path)
    with pytest.raises(ValueError, match=rf"step-0000000\d\.pt.* {message}"):
        average_checkpoints(tmp_path, 2)


def test_an_average_takes_the_last_whole_checkpoints_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run writes one and removes one after the names of all were read."""
    config = replace(CONFIG, keep_checkpoints=2)
    go(tmp_path / "whole", replace(config, steps=6))
    go(tmp_path / "run", config)
    read = run_folder.read_checkpoint
    seen: list[str] = []

    def read_late(path: Path, mmap: bool) -> dict[str, Any]:
        if not seen:
            newest = checkpoints(tmp_path / "whole")[-1]
            shutil.copy(newest, path.parent)
            (path.parent / "step-00000008.pt.77.unfinished").write_text("half")
            remove_old_checkpoints(tmp_path / "run", keep=2)
        seen.append(path.name)
        return read(path, mmap)

    monkeypatch.setattr(run_folder, "read_checkpoint", read_late)
    mean, _ = average_checkpoints(tmp_path / "run", 2)
    assert seen == [f"step-0000000{step}.pt" for step in (2, 4, 6)]
    monkeypatch.undo()
    expected, _ = average_checkpoints(tmp_path / "whole", 2)
    assert torch.equal(mean.embedding.weight, expected.embedding.weight)


def test_half_a_line_at_the_end_of_a_log_is_left_out(tmp_path: Path) -> None:
    """A full disk leaves one."""
    go(tmp_path)
    before = read_log(tmp_path)
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 9, "lo')
    assert before and read_log(tmp_path) == before


def test_another_average_removes_the_score_of_the_one_before(tmp_path: Path) -> None:
    go(tmp_path / "run")
    save_average(tmp_path / "run", tmp_path / "mean", last=1)
    score = tmp_path / "mean" / "score.jsonl"
    score.write_text('{"bleu": 20.0}\n')
    save_average(tmp_path / "run", tmp_path / "mean", last=2)
    assert not score.exists()


def test_of_an_average_the_note_is_renamed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all files are written; so a full disk leaves the average that was there."""
    go(tmp_path / "run")
    save_average(tmp_path / "run", tmp_path / "mean", last=1)
    before = files_and_folders(tmp_path / "mean")
    steps: list[str] = []
    operations = {name: getattr(Path, name) for name in ("write_bytes", "replace")}

    def watch(name: str) -> Any:
        def watched(path: Path, *arguments: Any) -> Any:
            steps.append(f"{name} {path.name.split('.')[0]}")
            return operations[name](path, *arguments)

        return watched

    for name in operations:
        monkeypatch.setattr(Path, name, watch(name))
    save_average(tmp_path / "run", tmp_path / "mean", last=2, half=True)
    assert [step.split()[0] for step in steps] == ["write_bytes"] * 5 + ["replace"] * 5
    assert steps[5] == "replace averaged"
    note = json.loads((tmp_path / "mean" / "averaged.json").read_text())
    assert note["last"] == 2 and before != files_and_folders(tmp_path / "mean")
    load_model(tmp_path / "mean")


def test_an_average_that_was_interrupted_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path / "run")
    replace_path = Path.replace
    for files in range(5):
        left = files

        def interrupted(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return replace_path(path, target)

        mean = tmp_path / f"mean-{files}"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                save_average(tmp_path / "run", mean, last=1)
        assert len([*mean.iterdir()]) == files
        save_average(tmp_path / "run", mean, last=1)
        load_model(mean)


def test_what_is_being_written_in_a_foreign_folder_stays(tmp_path: Path) -> None:
    """A model that another run is just saving there is no leftover."""
    go(tmp_path / "run")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("training.json", "model.safetensors.77.unfinished"):
        (other / name).write_text("of another run")
    with pytest.raises(FileExistsError, match="take an empty folder"):
        save_average(tmp_path / "run", other, last=1)
    assert len([*other.iterdir()]) == 2
