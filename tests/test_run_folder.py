"""A folder that belongs to something else is left alone; log and checkpoints tell the truth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer import TrainingConfig, train
from annotated_transformer.batching import encode_pairs
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.model_io import save_model
from annotated_transformer.toolkit.run_folder import (
    average_checkpoints,
    begin_log,
    checkpoints,
    last_checkpoint,
    remove_old_checkpoints,
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
    TOKENIZER.save(folder / "tokenizer.json")


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
    "content", ["", "{", "[1, 2]", "3", '{"tokenizer": "x", "epochs": [1]}', "\x00\xff"]
)
def test_settings_of_something_else_are_named_and_left_alone(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "training.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"training\.json holds no settings of a run"):
        go(tmp_path)
    assert path.read_bytes() == content.encode("latin-1")


def test_files_of_the_user_beside_a_training_stay(tmp_path: Path) -> None:
    """Only what a killed process of ours left goes: name.PID.unfinished."""
    go(tmp_path)
    for name in (
        "thesis.1.part",
        "step-backup.pt",
        "step-00000002.copy.pt",
        "log.jsonl.12.unfinished",
        "chapter.two.unfinished",
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
        assert "step-00000002.copy.pt" in files
        assert "log.jsonl.12.unfinished" not in files


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
    assert tokenizer.sha256 == TOKENIZER.sha256 and not last.training
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


@pytest.mark.parametrize("last", [0, 3])
def test_more_checkpoints_than_there_are(tmp_path: Path, last: int) -> None:
    go(tmp_path)
    with pytest.raises(FileNotFoundError, match=f": 2, asked for: {last}$"):
        average_checkpoints(tmp_path, last)
