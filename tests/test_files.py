"""A file or folder is whole or not there, and what is read belongs together and runs no code."""

import io
import os
import pickle
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from annotated_transformer.decoding import use_fused
from annotated_transformer.files import (
    atomic_write,
    check_vocabulary,
    load_model,
    load_pretrained,
    only_one,
    pretrained_names,
    save_model,
)
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig

TOKENIZER = Tokenizer.train(grammar(100, seed=0), vocabulary_size=300)
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def make(seed: int = 0, layers: int = 1, entries: int = 300) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(entries, layers, 16, 32, heads=2)).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(make(), TOKENIZER, tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_a_child(work: Callable[[], object]) -> int:
    """Do something in a process of its own; return 0, 1 for an error, or minus its signal."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # those of this process are not there
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- Whole or not at all ---


def test_a_file_and_a_folder_appear_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    for text in ("old", "new"):
        with atomic_write(file) as aside:
            aside.write_text(text)
            assert text == "old" or file.read_text() == "old"
    with atomic_write(tmp_path / "folder") as aside:
        (aside / "deep").mkdir(parents=True)
        (aside / "deep" / "file").write_text("x")
        assert not (tmp_path / "folder").exists()
    assert file.read_text() == "new"
    assert [path.name for path in file.parent.iterdir()] == ["file"]
    assert (tmp_path / "folder" / "deep" / "file").read_text() == "x"


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_folder", [True, False])
def test_an_interrupted_write_leaves_what_was_there(
    tmp_path: Path, is_killed: bool, is_folder: bool
) -> None:
    """The next one is not disturbed by what lies about."""
    (tmp_path / "file").write_text("old")
    path = tmp_path / ("folder" if is_folder else "file")

    def write(is_interrupted: bool) -> None:
        with atomic_write(path) as aside:
            if is_folder:
                aside.mkdir()
            (aside / "part" if is_folder else aside).write_text("new")
            if is_interrupted:
                if is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KeyboardInterrupt

    assert in_a_child(lambda: write(True)) == (-signal.SIGKILL if is_killed else 1)
    assert (tmp_path / "file").read_text() == "old"
    assert not (tmp_path / "folder").exists()
    assert is_killed or contents(tmp_path) == {"file": b"old"}
    write(False)
    assert (path / "part" if is_folder else path).read_text() == "new"
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", path.name}


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "letter").write_text("mine")
    with pytest.raises(OSError), atomic_write(tmp_path / "work") as aside:
        aside.mkdir()
    assert contents(tmp_path / "work") == {"letter": b"mine"}


def test_a_full_disk_leaves_the_old_model(saved: Path) -> None:
    """Though there is room for configuration, tokenizer and half of the weights."""
    before = contents(saved)

    def save_larger() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        save_model(make(layers=5), TOKENIZER, saved)

    assert in_a_child(save_larger) == 1
    assert contents(saved) == before
    load_model(saved)


def test_a_lock_is_held_by_one_until_it_is_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        with only_one(tmp_path / "lock", "works"):
            os.write(writing, b"!")
            time.sleep(60)
            os._exit(0)
    os.read(reading, 1)
    refused = pytest.raises(BlockingIOError, match="works")
    with refused, only_one(tmp_path / "lock", "works"):
        pass
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with only_one(tmp_path / "lock", "works"):
        pass


# --- Saving and loading ---


@pytest.mark.parametrize("half", [False, True])
def test_a_model_comes_back_to_the_bit(tmp_path: Path, half: bool) -> None:
    """In half precision, with its weights rounded to 16 bits, in half the space."""
    model = make()
    use_fused(model)
    save_model(model, TOKENIZER, tmp_path, half)
    again, tokenizer = load_model(tmp_path)
    if half:
        rounded = {n: weights.half() for n, weights in model.state_dict().items()}
        model.load_state_dict(rounded)
    for name, weights in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights), name
    tokens = torch.arange(4, 20).view(2, 8)
    assert torch.equal(again(tokens, tokens), model(tokens, tokens))
    assert not again.training and again.config == model.config
    assert tokenizer.text == TOKENIZER.text
    assert {path.name for path in tmp_path.iterdir()} == {*FILES}
    numbers = sum(weights.numel() for weights in model.state_dict().values())
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size < numbers * (2 if half else 4) + 8000


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}.*captions-de-en"):
        load_model(saved)


@pytest.mark.parametrize("name", FILES)
def test_files_of_different_models_are_refused(saved: Path, name: str) -> None:
    """Also where all shapes fit, and the number of heads or the words alone would change."""
    other = Tokenizer.train(grammar(100, seed=1), vocabulary_size=300)
    model = Transformer(TransformerConfig(300, 1, 16, 32, heads=4))
    save_model(model, other, saved.parent / "other")
    shutil.copy(saved.parent / "other" / name, saved)
    with pytest.raises(ValueError, match="different models"):
        load_model(saved)


def torch_save(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_not_run_and_so_are_cut_off_weights(
    saved: Path,
) -> None:
    weights = saved / "model.safetensors"
    half = weights.read_bytes()[:-100]
    trap = Trap(saved / "it-ran")
    for content in (half, pickle.dumps(trap), torch_save(trap)):
        weights.write_bytes(content)
        with pytest.raises(ValueError, match="pickle"):
            load_model(saved)
    assert not (saved / "it-ran").exists()


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    small = make(entries=200)
    for refuse in (check_vocabulary, lambda *both: save_model(*both, tmp_path / "new")):
        with pytest.raises(ValueError, match="200"):
            refuse(small, TOKENIZER)
    assert not (tmp_path / "new").exists()


# --- Models of the package ---


def test_a_name_is_a_model_of_the_package_unless_there_is_a_folder_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = pretrained_names()[0]
    for number, of_package in enumerate((True, True, False)):
        if number == 1:  # a folder with something else
            (tmp_path / name).mkdir()
        if number == 2:
            save_model(make(), TOKENIZER, tmp_path / name)
        wanted = load_pretrained(name)[0] if of_package else make()
        assert load_model(name)[0].config == wanted.config
    for load in (load_model, load_pretrained):
        with pytest.raises((FileNotFoundError, ValueError), match=name):
            load("latin")
