"""As many sentences out as in, in the same order; the command line does so for lines."""

import io
import sys
from pathlib import Path

import pytest
import torch

from annotated_transformer.cli import main
from annotated_transformer.corpus import grammar
from annotated_transformer.decoding import translate
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, save_model, train
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = grammar(300, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=500)


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A model that has learned a little, so that its sentences end."""
    torch.manual_seed(0)
    shape = TransformerConfig(
        len(TOKENIZER), layers=1, d_model=32, d_ff=64, heads=2, max_length=120
    )
    return train(Transformer(shape).double(), TOKENIZER, PAIRS, TrainingConfig(steps=60))


def test_order_and_empty_lines_are_kept(model: Transformer) -> None:
    lines = [pair.source for pair in PAIRS[:30]]
    lines[0] = lines[11] = ""
    lines[20] = "  \t"
    together = translate(model, TOKENIZER, lines, batch_size=7)
    assert together == [translate(model, TOKENIZER, [line])[0] for line in lines]
    assert [i for i, line in enumerate(together) if not line] == [0, 11, 20]
    assert translate(model, TOKENIZER, []) == []


def test_translating_changes_nothing_about_the_model(model: Transformer) -> None:
    lines = [pair.source for pair in PAIRS[:3]]
    quiet = translate(model, TOKENIZER, lines)
    model.train()
    assert translate(model, TOKENIZER, lines) == quiet  # no dropout
    assert model.training
    model.eval()
    translate(model, TOKENIZER, lines)
    assert not model.training


def test_a_sentence_that_is_too_long_is_named_before_any_work(model: Transformer) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has \d+ tokens, the model reads 120"):
        translate(model, TOKENIZER, ["Der Hund schläft.", "sehr " * 200])


def test_unknown_characters_are_no_error(model: Transformer) -> None:
    assert len(translate(model, TOKENIZER, ["日本語 😀 \x00", "Ünïcödé"])) == 2


# --- The command line ---


def run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    lines: bytes = b"",
) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()


def test_train_then_translate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "model")
    options = ["--pairs", "300", "--steps", "60", "--vocabulary-size", "400"]
    code, output, _ = run(capsys, monkeypatch, ["train", "--output", folder, *options])
    assert (code, output) == (0, "")
    lines = "Der Hund schläft.\n\nDie Katze lacht.\r\n".encode()
    code, output, _ = run(capsys, monkeypatch, ["translate", "--model", folder], lines)
    assert code == 0 and output.count("\n") == 3
    first, empty, third, _ = output.split("\n")
    assert first and third and not empty


@pytest.mark.parametrize(
    ("lines", "count"), [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b"Hund", 1), (b"Hund\n", 1)]
)
def test_as_many_lines_out_as_in(
    model: Transformer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lines: bytes,
    count: int,
) -> None:
    save_model(model, TOKENIZER, tmp_path)
    code, output, _ = run(capsys, monkeypatch, ["translate", "--model", str(tmp_path)], lines)
    assert code == 0 and output.count("\n") == count


@pytest.mark.parametrize(
    ("arguments", "lines", "message"),
    [
        (["translate", "--model", "nowhere"], b"", "nowhere holds no model"),
        (["translate", "--model", "SAVED"], b"Hund\n\xff\n", "line 2 of the input is not UTF-8"),
        (["translate", "--model", "SAVED"], b"sehr " * 500, "sentence 1 has"),
        (["train", "--output", "out", "--preset", "huge"], b"", 'no preset "huge"'),
        (["train", "--output", "out", "--vocabulary-size", "5"], b"", "at least 260"),
        (["train", "--output", "out", "--pairs", "0"], b"", "no sentence pairs"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    model: Transformer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    lines: bytes,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(model, TOKENIZER, tmp_path / "SAVED")
    code, output, errors = run(capsys, monkeypatch, arguments, lines)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1 and message in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "train"),
        (["sing"], "sing"),
        (["train"], "--output"),
        (["train", "--output", "out", "--steps", "0"], "steps must be above 0, not 0"),
        (["train", "--output", "out", "--steps", "many"], "many"),
        (["translate", "--model", "m", "--beam", "4"], "--beam"),
    ],
)
def test_wrong_options_are_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    code, output, errors = run(capsys, monkeypatch, arguments)
    assert (code, output) == (2, "") and message in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--help"], "Translate standard input to standard output"),
        (["train", "--help"], "Steps until the learning rate is at its peak"),
        (["translate", "--help"], "Folder of a trained model"),
    ],
)
def test_help_comes_from_docstrings(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, output, _ = run(capsys, monkeypatch, arguments)
    assert code == 0 and text in " ".join(output.split())
