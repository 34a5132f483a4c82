"""A file or folder is whole or not there, a lock keeps others out, and a model folder is read
only if its three files belong together; nothing that is read can run code.
"""

import errno
import json
import os
import pickle
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import annotated_transformer
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import model_io
from annotated_transformer.toolkit.model_io import (
    PRETRAINED,
    DiskFull,
    atomic_write,
    check_vocabulary,
    clear,
    folder_lock,
    load_by_name,
    load_model,
    load_pretrained,
    pretrained_names,
    read_tensors,
    save_model,
    weights_hash,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig

TOKENIZER = Tokenizer.train(grammar(100, seed=0), vocabulary_size=300)
SIZES = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}


def make() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(len(TOKENIZER), **SIZES))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 1.0}, "dropout="),
        ({"attention_bias": 1}, "attention_bias="),
        ({"max_length": 2**22}, "max_length"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    config = TransformerConfig(len(TOKENIZER), **(SIZES | change))  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match=message):
        save_model(Transformer(config), TOKENIZER, tmp_path / "odd")
    assert not (tmp_path / "odd").exists()


def test_a_model_with_a_part_of_ones_own_is_not_written(tmp_path: Path) -> None:
    model = make()
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="tensors, not"):
        save_model(model, TOKENIZER, tmp_path / "odd")


def test_shared_layers_and_turned_weights_are_written(tmp_path: Path) -> None:
    """What PyTorch allows comes back as a model that computes the same."""
    model = Transformer(TransformerConfig(len(TOKENIZER), **(SIZES | {"layers": 2})))
    model.encoder.layers[1] = model.encoder.layers[0]
    weight = model.decoder.layers[0].feed_forward.linear1.weight
    weight.data = weight.data.T.contiguous().T
    save_model(model, TOKENIZER, tmp_path / "model")
    read, _ = load_model(tmp_path / "model")
    tokens = torch.randint(4, len(TOKENIZER), (2, 5))
    torch.testing.assert_close(read(tokens, tokens), model.eval()(tokens, tokens))


@pytest.mark.parametrize("size", ["d_k", "d_v", "max_length"])
def test_a_size_of_0_is_no_configuration(size: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TransformerConfig(300, **{size: 0})  # type: ignore[arg-type]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(make(), TOKENIZER, tmp_path / "model")
    return tmp_path / "model"


# --- Whole or not at all ---


def test_a_file_appears_whole_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as aside:
        aside.write_text("old")
        assert not path.exists() and aside.parent == path.parent
    with atomic_write(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and names(path.parent) == ["file.txt"]


def test_a_folder_appears_whole_under_its_name(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "folder") as aside:
        (aside / "deep").mkdir(parents=True)
        (aside / "deep" / "file").write_text("x")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "deep" / "file").read_text() == "x"
    with pytest.raises(OSError), atomic_write(tmp_path / "folder") as aside:
        aside.mkdir()
    assert (tmp_path / "folder" / "deep").exists() and names(tmp_path) == ["folder"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="no space"), atomic_write(path) as aside:
        aside.write_bytes(b"ne")
        raise OSError("no space left on device")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "folder") as aside:
        aside.mkdir()
        (aside / "half").write_text("x")
        raise RuntimeError
    assert path.read_bytes() == b"old" and names(tmp_path) == ["config.json"]


def test_another_that_writes_the_same_is_named_as_the_cause(tmp_path: Path) -> None:
    """It removes what is half-written, as if its writer had been killed, or is done first."""
    message = f"another process writes {tmp_path / 'model'} at the same time"
    expected = pytest.raises(BlockingIOError, match=message)
    with expected, atomic_write(tmp_path / "model") as aside:
        aside.mkdir()
        clear(tmp_path, "model")
        (aside / "model.bin").touch()
    with expected, atomic_write(tmp_path / "model") as aside:
        aside.write_text("{}")
        clear(tmp_path, "model")
    with expected, atomic_write(tmp_path / "model") as aside:
        aside.mkdir()
        (tmp_path / "model" / "other").mkdir(parents=True)
    assert names(tmp_path) == ["model"] and (tmp_path / "model" / "other").exists()
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "config") as aside:
        (tmp_path / "missing").open()


def test_files_have_the_mode_that_the_user_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        save_model(make(), TOKENIZER, tmp_path / "mine")
        os.umask(0o022)
        save_model(make(), TOKENIZER, tmp_path / "ours")
    finally:
        os.umask(before)
    for folder, mode in (("mine", 0o600), ("ours", 0o644)):
        modes = {
            stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / folder).iterdir()
        }
        assert modes == {mode}


def test_only_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    foreign = ["backup.001.part", "a.unfinished", "model.safetensors", "inside"]
    unfinished = ["model.safetensors.123.unfinished", "prepared.9.unfinished"]
    for name in ("inside", "prepared.9.unfinished"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens.bin.9.unfinished").write_text("of another process")
    for name in (*foreign[:3], unfinished[0]):
        (tmp_path / name).write_text(name)
    clear(tmp_path, "prepared")
    assert {*names(tmp_path)} == {*foreign, unfinished[0]}
    clear(tmp_path, "model.safetensors")
    assert {*names(tmp_path)} == {*foreign}
    assert (tmp_path / "inside" / "tokens.bin.9.unfinished").exists()


LIKE_A_NAME = st.text("ab.1[]*?\n-é", min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)


@given(st.sets(LIKE_A_NAME, min_size=1, max_size=6), LIKE_A_NAME, st.data())
def test_what_is_cleared_is_of_exactly_this_name(
    tmp_path_factory: pytest.TempPathFactory,
    others: set[str],
    name: str,
    data: st.DataObject,
) -> None:
    """Whatever characters a name has, and whatever stands before or after it elsewhere."""
    folder = tmp_path_factory.mktemp("clear")
    foreign = {f"{other}.unfinished" for other in others | {name}}
    foreign |= {f"{other}.77.unfinished" for other in others - {name}}
    foreign |= {
        f"{name}.7x.unfinished",
        f"{name}.7.unfinished.1",
        f"x{name}.7.unfinished",
    }
    foreign -= {f"{name}.{number}.unfinished" for number in (1, 11, 77)}
    for file in {*foreign, f"{name}.77.unfinished"}:
        (folder / file).write_text("x")
    clear(folder, name)
    assert {*names(folder)} == foreign


FULL = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


@pytest.mark.parametrize("number", FULL)
def test_a_full_disk_is_named_with_the_file_and_changes_none_of_a_model(
    saved: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    write_bytes = Path.write_bytes

    def write_less(path: Path, content: bytes) -> int:
        if path.name.startswith("tokenizer.json"):
            raise OSError(number, os.strerror(number))
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_less)
    model = Transformer(TransformerConfig(len(TOKENIZER), 2, 16, 32, 2))
    with pytest.raises(DiskFull, match=r"no space left to write .*tokenizer\.json$"):
        save_model(model, TOKENIZER, saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_another_error_is_no_full_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        save_model(make(), TOKENIZER, tmp_path / "file" / "model")


HOLD = """
import sys, time
from pathlib import Path
from annotated_transformer.toolkit.model_io import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_locked_folder_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"mine\n"
        refused = pytest.raises(BlockingIOError, match="another process is working in")
        with refused, folder_lock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
    with folder_lock(tmp_path):  # the system dropped the lock of the killed one
        pass


# --- Saving and loading ---


def test_what_is_saved_comes_back_to_the_bit(saved: Path) -> None:
    model, tokenizer = load_model(saved)
    assert not model.training and model.config == make().config
    assert tokenizer.text == TOKENIZER.text
    for name, weights in make().state_dict().items():
        assert torch.equal(model.state_dict()[name], weights)
    assert names(saved) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    for number in range(8):  # safetensors orders its notes by chance
        save_model(make(), TOKENIZER, tmp_path / str(number))
    assert (
        len({path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}) == 1
    )


def test_a_compiled_model_is_saved_like_any_other(tmp_path: Path) -> None:
    save_model(torch.compile(make()), TOKENIZER, tmp_path)  # type: ignore[arg-type]
    again, _ = load_model(tmp_path)
    assert torch.equal(again.embedding.weight, make().embedding.weight)


def test_line_ends_in_the_json_of_a_tokenizer_stay(tmp_path: Path) -> None:
    spread = json.dumps(json.loads(TOKENIZER.text), indent=2).replace("\n", "\r\n")
    save_model(make(), Tokenizer(spread), tmp_path)
    assert load_model(tmp_path)[1].text == spread


def test_half_precision_halves_the_file(tmp_path: Path) -> None:
    save_model(make(), TOKENIZER, tmp_path / "whole")
    save_model(make(), TOKENIZER, tmp_path / "half", half=True)
    sizes = [
        (tmp_path / name / "model.safetensors").stat().st_size
        for name in ("whole", "half")
    ]
    assert sizes[1] < 0.6 * sizes[0]
    again, _ = load_model(tmp_path / "half")
    for name, weights in make().state_dict().items():
        assert again.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(
            again.state_dict()[name], weights, rtol=1e-3, atol=1e-6
        )


@pytest.mark.parametrize("weight", [70_000.0, -1e30, torch.nan])
def test_a_weight_beyond_half_precision_is_refused_and_nothing_written(
    tmp_path: Path, weight: float
) -> None:
    model = make()
    with torch.no_grad():
        model.embedding.weight[3, 5] = weight
    with pytest.raises(ValueError, match=r"embedding\.weight has a weight of .*65504"):
        save_model(model, TOKENIZER, tmp_path / "half", half=True)
    assert not (tmp_path / "half").exists()
    save_model(model, TOKENIZER, tmp_path / "whole")


def test_the_hash_of_weights_is_that_of_every_copy(saved: Path, tmp_path: Path) -> None:
    copy, _ = load_model(saved)
    save_model(copy, TOKENIZER, tmp_path / "elsewhere")
    again, _ = load_model(tmp_path / "elsewhere")
    assert weights_hash(again) == weights_hash(make())
    with torch.no_grad():
        again.embedding.weight[0, 0] += 1
    assert weights_hash(again) != weights_hash(make())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} missing"):
        load_model(saved)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("maker", ["pickle", "torch"])
def test_a_pickle_is_refused_and_not_run(saved: Path, maker: str) -> None:
    mark = saved / "it-ran"
    weights = saved / "model.safetensors"
    if maker == "pickle":
        weights.write_bytes(pickle.dumps(Trap(mark)))
    else:
        torch.save({"trap": Trap(mark)}, weights)
    with pytest.raises(ValueError, match="pickles, are refused"):
        load_model(saved)
    assert not mark.exists()


def test_cut_off_weights_are_refused(saved: Path) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        read_tensors(weights)


@pytest.mark.parametrize(
    "change",
    [
        {"d_ff": 64},
        {"heads": 4},
        {"pre_norm": True},
        {"layers": 10**9},
        {"colour": "red"},
    ],
)
def test_the_configuration_of_another_model_is_refused(
    saved: Path, change: dict[str, object]
) -> None:
    """Also where all shapes fit, and heads alone would change what comes out."""
    path = saved / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change, indent=2))
    with pytest.raises(ValueError, match="was trained with another config"):
        load_model(saved)


def test_the_line_ends_of_windows_are_no_other_configuration(saved: Path) -> None:
    """As git may write them."""
    path = saved / "config.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    load_model(saved)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "\x00"])
def test_a_configuration_that_is_none_is_refused(saved: Path, content: str) -> None:
    (saved / "config.json").write_text(content)
    with pytest.raises(ValueError, match="was trained with another config"):
        load_model(saved)


def test_the_tokenizer_of_another_model_is_refused(saved: Path) -> None:
    another = Tokenizer.train(grammar(100, seed=1), vocabulary_size=300)
    (saved / "tokenizer.json").write_bytes(another.text.encode())
    with pytest.raises(ValueError, match="was trained with another tokenizer"):
        load_model(saved)


def forge(folder: Path, text: str, more: dict[str, torch.Tensor] | None = None) -> None:
    """Make a configuration that the weights, and some more, claim to belong to."""
    tensors, notes = read_tensors(folder / "model.safetensors")
    tensors |= more or {}
    (folder / "config.json").write_text(text)
    save_file(tensors, folder / "model.safetensors", notes | {"config": text})


ABSURD = [
    {"layers": 10**9},
    {"d_ff": 10**15},
    {"vocabulary_size": 10**15},
    {"d_model": 10**10},
]
WRONG = [{"layers": 2}, {"d_ff": 64}, {"heads": 5}, {"colour": "red"}, {"d_ff": 10**30}]
LARGE = [{"max_length": 10**6, "d_model": 1000}, {"layers": 10**6}, {"layers": 20_000}]
SIZES_OF_JUNK = [0, 1, 10**4]


def not_built(config: TransformerConfig) -> Transformer:
    """A shape may be built of which no number takes memory."""
    assert torch.empty(0).device.type == "meta" and config.layers == 1, config
    return Transformer(config)


@pytest.mark.parametrize("size", SIZES_OF_JUNK)
def test_junk_of_the_right_size_builds_no_layers(
    saved: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = json.loads((saved / "config.json").read_text())
    junk = {f"junk.{number}": torch.zeros(size) for number in range(30)}
    for change in ({}, {"layers": 2}, {"layers": 20_000}):
        forge(saved, json.dumps(fields | change), junk)
        with monkeypatch.context() as patch:
            patch.setattr(model_io, "Transformer", not_built)
            with pytest.raises(ValueError, match=r"does not fit config\.json: there "):
                load_model(saved)


def test_weights_that_are_no_numbers_of_a_model_are_refused(saved: Path) -> None:
    weights = make().embedding.weight
    text = (saved / "config.json").read_text()
    for wrong in (torch.zeros(weights.shape, dtype=torch.int32), weights.flatten()):
        forge(saved, text, {"embedding.weight": wrong.detach()})
        with pytest.raises(ValueError, match=r"fit config\.json: .*embedding\.weight"):
            load_model(saved)


@pytest.mark.parametrize("change", ABSURD + WRONG + LARGE)
def test_a_forged_configuration_is_refused_before_anything_is_built(
    saved: Path, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(saved, json.dumps(json.loads((saved / "config.json").read_text()) | change))
    monkeypatch.setattr(model_io, "Transformer", not_built)
    with pytest.raises(
        ValueError, match=r"model\.safetensors does not fit config\.json"
    ):
        load_model(saved)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "3"])
def test_a_forged_configuration_that_is_none(saved: Path, content: str) -> None:
    forge(saved, content)
    with pytest.raises(
        ValueError, match=r"model\.safetensors does not fit config\.json"
    ):
        load_model(saved)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    small = Transformer(TransformerConfig(200, **SIZES))
    for refuse in (check_vocabulary, partial(save_model, folder=tmp_path / "model")):
        with pytest.raises(
            ValueError, match="300 entries, the model 200: build it with"
        ):
            refuse(small, TOKENIZER)
    assert not (tmp_path / "model").exists()
    check_vocabulary(make(), TOKENIZER)


def test_the_pretrained_models_are_small_and_whole() -> None:
    home = Path(annotated_transformer.__file__).parent / "pretrained"
    models = sorted(path.name for path in home.iterdir())
    for name in models:
        model, tokenizer = load_pretrained(name)
        assert not model.training and len(tokenizer) == model.config.vocabulary_size
    assert sum(path.stat().st_size for path in home.rglob("*")) <= 30 * 2**20
    with pytest.raises(
        ValueError, match=f'model "latin"; the package has: {", ".join(models)}'
    ):
        load_pretrained("latin")


def test_a_folder_with_a_model_goes_before_the_package_s_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the package's before a folder that holds something else."""
    monkeypatch.chdir(tmp_path)
    name = pretrained_names()[0]
    of_package, _ = load_model(PRETRAINED / name)
    for content in ("nothing", "letters", "a model"):
        folder = tmp_path / name
        if content != "nothing":
            folder.mkdir(exist_ok=True)
            (folder / "letter.txt").write_text("x")
        if content == "a model":
            save_model(make(), TOKENIZER, folder)
        model, _ = load_by_name(name)
        expected = make() if content == "a model" else of_package
        assert weights_hash(model) == weights_hash(expected)
    with pytest.raises(ValueError, match='no model "mine"; the package has: '):
        load_by_name("mine")
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match="mine holds no model: "):
        load_by_name(Path("mine"))
