"""The command line: `main` is called here with arguments and standard input, as a shell does it.

Only a broken pipe, exit codes and what gets imported need processes of their own.
"""

import errno
import functools
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer import cli, files, planning, run_folder, runs
from annotated_transformer.cli import (
    Data,
    HeldOut,
    main,
    read_splits,
    recipe,
)
from annotated_transformer.data import Pair
from annotated_transformer.evaluation import Scores, compound_split_bleu
from annotated_transformer.files import load_model, save_model
from annotated_transformer.own_data import utf8_lines
from annotated_transformer.run_folder import read_checkpoint
from annotated_transformer.runs import TrainingConfig
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.transformer import PRESETS, TABLE_3

GRAMMAR = functools.cache(grammar)
FAST = [
    "--steps",
    30,
    "--save-every",
    10,
    "--vocabulary-size",
    400,
    "--max-tokens",
    300,
]


class Result(NamedTuple):
    code: Any
    out: str
    err: str


def run(*arguments: object, text: bytes = b"") -> Result:
    """Call the command; give its exit code and what it wrote."""
    out, err, code = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), 0
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(text))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    finally:
        sys.stdin = before
    out.flush()
    # tyro draws boxes, and breaks lines in them
    plain = " ".join(err.getvalue().replace("│", " ").split())
    return Result(code, out.buffer.getvalue().decode(), plain)  # type: ignore[attr-defined]


def table(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
    return path


@pytest.fixture(autouse=True)
def grammar_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "grammar", GRAMMAR)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run on a packed table of our own, with the target in the first column."""
    home = tmp_path_factory.mktemp("trained")
    rows = [f"{pair.target}\t{pair.source}\tCC BY\n" for pair in grammar(500, seed=4)]
    packed = home / "pairs.tsv.gz"
    packed.write_bytes(gzip.compress("".join([*rows, "one side only\t\tx\n"]).encode()))
    result = run(
        "train", "--data", packed, "--columns", 1, 0, "--output", home / "run", *FAST
    )
    assert result.code == 0, result.err
    assert "1 empty" in result.err and "step 30: loss" in result.err
    return home / "run"


# --- Options ---


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("prepare", "Entries of the joint vocabulary"),
        ("train", "steps until the learning rate is at its peak"),
        ("average", "How many checkpoints"),
        ("translate", "Hypotheses kept at each step; 1 is greedy"),
        ("evaluate", "Which part of a corpus"),
        ("export", "Folder for the exported one"),
    ],
)
def test_help_is_made_from_docstrings_and_comments(command: str, known: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert known in " ".join(result.out.replace("│", " ").split())


def test_help_shows_the_defaults_of_the_preset() -> None:
    shown = {
        name: " ".join(
            run("train", "--preset", name, "--help").out.replace("│", " ").split()
        )
        for name in ("tiny", "big")
    }
    assert (
        f"updates of the weights (default: {TrainingConfig().steps})" in shown["tiny"]
    )
    assert "updates of the weights (default: 300000)" in shown["big"]


def test_checkpoints_of_the_papers_models_are_ten_minutes_apart() -> None:
    # Section 5.2: a step took 0.4 seconds with base, 1.0 with big
    assert recipe("base").save_every * 0.4 == recipe("big").save_every * 1.0 == 600


def test_a_preset_brings_its_settings_and_what_is_typed_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[TrainingConfig] = []
    estimate = planning.estimate

    def look_on(config: Any, settings: TrainingConfig, *others: Any) -> Any:
        seen.append(settings)
        return estimate(config, settings, *others)

    monkeypatch.setattr(planning, "estimate", look_on)
    plan = [
        "train",
        "--output",
        "x",
        "--dry-run",
        "--limit",
        200,
        "--vocabulary-size",
        300,
    ]
    result = run(*plan, "--preset=big", "--steps", 77, "--peak", 1e15, "--gpus", 8)
    assert result.code == 0, result.err
    assert seen[-1] == TrainingConfig(
        steps=77,
        max_tokens=25_000,
        warmup=4000,
        lr_scale=1.0,
        save_every=600,
        keep_checkpoints=20,
    )
    assert (
        "77 steps" in result.out
        and "GiB a device" in result.out
        and "hours" in result.out
    )
    run(*plan, "--preset", "D-smoothing0.2", "--peak", 1e15)
    assert seen[-1].label_smoothing == 0.2 and seen[-1].steps == 100_000
    run(*plan, "--peak", 1e15)
    assert seen[-1] == TrainingConfig() == recipe("tiny") == recipe("small")
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "--model", "nowhere"], 'there is no model "nowhere"'),
        (["translate", "--model", "."], ". holds no model"),
        (
            ["train", "--output", "x", "--start", "everyday"],
            "the package has: captions-de-en,",
        ),
        (["train", "--output", "x", "--preset", "huge"], 'there is no preset "huge"'),
        (
            ["train", "--output", "x", "--preset", "D-smoothing0,2"],
            'no preset "D-smoothing0,2"',
        ),
        (["train", "--output", "x", "--steps", "0"], "steps must be a whole number"),
        (["train", "--output", "x", "--steps", "-3"], "steps must be a whole number"),
        (["train", "--output", "x", "--preset", "huge"], "of tiny, small, base, big,"),
        (["train", "--output", "x", "--seed", str(2**64)], "seed must be"),
        (["train", "--output", "x", "--peak", "nan"], "--peak must be a number above"),
        (["train", "--output", "x", "--gpus", "0"], "--gpus must be 1 or more"),
        (["train", "--output", "x", "--dropout", "7"], "dropout=7.0 must be a rate"),
        (["train", "--output", "t.tsv"], "t.tsv is a file: take another folder"),
        (["train", "--output", "/proc/x"], "nothing can be written into /proc"),
        (["train", "--output", "t.tsv/x"], "t.tsv is a file: take another folder"),
        (["train", "--output", "x", "--data", "."], ". is a folder"),
        (["train", "--output", "x", "--data", "no"], "there is no file"),
        (
            ["train", "--output", "x", "--data", "t.tsv", "t.tsv"],
            "t.tsv, line 1: it has columns, as a table has",
        ),
        (
            ["translate", "--model", "captions-de-en", "--input", "t.tsv/a"],
            "one of its folders is a file",
        ),
        (
            ["train", "--output", "x", "--prepared", "c", "--test", "t.tsv"],
            "a prepared corpus has parts of its own",
        ),
        (
            ["train", "--output", "x", "--corpus", "grammar", "--data", "t.tsv"],
            "give only one of --corpus",
        ),
        (["evaluate", "--model", "captions-de-en"], "say which pairs, with --data"),
        (
            ["evaluate", "--model", "captions-de-en", "--reverse"],
            "name it with --corpus",
        ),
        (["translate", "--model", "captions-de-en", "--nbest", "5"], "a --beam of 5"),
        (["translate", "--model", "captions-de-en", "--beam", "0"], "--beam must be"),
        (
            ["translate", "--model", "captions-de-en", "--nbest", "0"],
            "--nbest must be 1 or more, not 0",
        ),
        (
            ["translate", "--model", "captions-de-en", "--output", "t.tsv/out"],
            "t.tsv is a file",
        ),
        pytest.param(
            ["translate", "--model", "captions-de-en", "--output", "/proc/out"],
            "nothing can be written into /proc",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no /proc"),
        ),
        (
            ["translate", "--model", "captions-de-en", "--output", "a" * 249],
            "is too long",
        ),
        (["translate", "--model", "captions-de-en", "--input", "no"], "folder no"),
        (
            ["translate", "--model", "captions-de-en", "--output", "t.tsv"],
            "t.tsv is there already",
        ),
        (["train", "--output", "x", "--data", "a", "b", "c"], "--data"),
        (["train", "--output", "x", "--data", "missing.tsv"], "missing.tsv"),
        (["train", "--output", "x", "--prepared", "nowhere"], "nowhere"),
        (
            ["train", "--output", "x", "--prepared", "c", "--reverse"],
            "give only one of --corpus",
        ),
        (
            ["evaluate", "--model", "m", "--prepared", "c", "--data", "d"],
            "give only one of --corpus",
        ),
        (["train", "--output", "x", "--device", "gpu"], "there is no device 'gpu'"),
        (["train", "--output", "x", "--device", "meta"], "there is no device 'meta'"),
        (["train", "--output", "x", "--limit", "-5"], "limit must be above 0, not -5"),
        (["evaluate", "--model", "m", "--limit", "0"], "limit must be above 0, not 0"),
        (
            ["train", "--output", "x", "--columns", "0", "7", "--data", "t.tsv"],
            "t.tsv, line 1",
        ),
        (["average", "--run", "nowhere", "--output", "x"], "no folder nowhere"),
        (["prepare", "wmt99", "--output", "x", "--vocabulary-size", "300"], "wmt99"),
        (["prepare", "missing.tsv", "--vocabulary-size", "300"], "missing.tsv"),
        (
            ["export", "--model", "nowhere", "--output", "x"],
            'there is no model "nowhere"',
        ),
    ],
)
def test_bad_input_gets_a_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.tsv", grammar(50, seed=1))
    result = run(*arguments)
    assert result.code == 2 and not result.out
    assert message in result.err and "Traceback" not in result.err
    assert "Errno" not in result.err and "tyro" not in result.err
    assert not (tmp_path / "x").exists()


def test_help_lists_every_preset() -> None:
    shown = " ".join(run("train", "--help").out.replace("│", " ").split())
    for name in [*PRESETS, *TABLE_3]:
        assert f" {name}" in shown, name


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp437", "cp1252"])
def test_help_is_shown_in_any_encoding(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding))
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    sys.stdout.flush()
    text = shown.getvalue().decode(encoding)
    assert "--patience" in text and "limit" in text


def test_the_version() -> None:
    assert run("--version") == (0, "annotated-transformer 0.1.0\n", "")


def test_a_closed_stream_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["translate", "--model", "captions-de-en"]
    for name, message in (
        ("stdin", "standard input is closed: give a file with --input"),
        ("stdout", "standard output is closed: send it to a file"),
    ):
        errors = io.StringIO()
        with monkeypatch.context() as patch, redirect_stderr(errors):
            patch.setattr(sys, name, None)
            with pytest.raises(SystemExit) as stop:
                main(command)
        assert stop.value.code == 2
        assert message in errors.getvalue() and errors.getvalue().count("\n") == 1


def test_nothing_is_said_where_standard_error_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Print would turn to standard output."""
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as stop:
        main(["translate", "--model", "nowhere"])
    assert stop.value.code == 2 and capfd.readouterr() == ("", "")


def fail_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def torch_error(bytes_wanted: int) -> Exception:
    """What PyTorch says on a CPU if it cannot have so many bytes."""
    try:
        torch.empty(bytes_wanted, dtype=torch.uint8)
    except RuntimeError as error:
        return error
    raise AssertionError("so much memory?")


@pytest.mark.parametrize(
    "error",
    [
        torch_error(2**55),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ..."),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_too_little_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "translate_together", fail_with(error))
    monkeypatch.setattr(cli, "read_material", fail_with(error))
    result = run("translate", "--model", "captions-de-en", text=b"Ja.\n")
    assert result.code == 2 and "memory is too small" in result.err
    assert "--beam" in result.err and "Traceback" not in result.err
    result = run("train", "--output", tmp_path / "run")
    assert result.code == 2 and "memory is too small" in result.err
    assert "--max-tokens" in result.err and "--grad-accum-steps" in result.err


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = OSError(28, "No space left on device", "some/file")
    monkeypatch.setattr(cli, "read_material", fail_with(full))
    result = run("train", "--output", tmp_path / "run")
    assert result.code == 2 and "no space left to write some/file" in result.err


def test_a_bug_keeps_its_traceback_and_an_error_shows_it_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="no model"):
        run("translate", "--model", "nowhere", "--traceback")
    with pytest.raises(ValueError, match="no model"):
        run("--traceback", "translate", "--model", "nowhere")
    assert "--traceback" in run("--help").out
    monkeypatch.setattr(cli, "translate_together", fail_with(KeyError("a bug")))
    with pytest.raises(KeyError):
        run("translate", "--model", "captions-de-en")


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "translate_together", fail_with(KeyboardInterrupt()))
    result = run("translate", "--model", "captions-de-en")
    assert result == (130, "", "")


def test_who_has_no_home_is_told_which_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ANNOTATED_TRANSFORMER_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a new uid
    result = run("train", "--corpus", "multi30k", "--output", tmp_path / "run")
    assert result.code == 2 and "set ANNOTATED_TRANSFORMER_CACHE to a" in result.err


# --- Which pairs? ---


def test_a_corpus_is_divided_and_turned() -> None:
    splits = read_splits(Data(), seed=0)
    assert sum(map(len, splits)) == 10_000 and 60 < len(splits.test) < 140
    turned = read_splits(Data(reverse=True), seed=0)
    assert {p[:2] for part in turned for p in part} == {
        p[1::-1] for part in splits for p in part
    }
    assert read_splits(Data(), seed=1).test != splits.test


def test_own_files_are_turned_by_their_order(tmp_path: Path) -> None:
    pairs = grammar(300, seed=5)
    files = tmp_path / "text.de", tmp_path / "text.en"
    for side, path in enumerate(files):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    both = table(tmp_path / "both.tsv", pairs)
    assert read_splits(Data(data=files), seed=3) == read_splits(
        Data(data=(both,)), seed=3
    )
    turned = read_splits(Data(data=(both,), columns=(1, 0)), seed=3)
    assert read_splits(Data(data=files[::-1]), seed=3) == turned
    assert all(pair.source in {p.target for p in pairs} for pair in turned.train)
    with pytest.raises(ValueError, match="two texts have no columns: the first is"):
        read_splits(Data(data=files, columns=(1, 0)), seed=3)
    undivided = cli.test_sets(Path("m"), Data(data=files), "test", seed=3)
    assert undivided["test"] == [Pair(*pair[:2]) for pair in pairs]


def test_two_files_that_do_not_belong_together(tmp_path: Path) -> None:
    source, target = tmp_path / "text.de", tmp_path / "text.en"
    source.write_text("eins\nzwei\ndrei\n")
    target.write_text("one\ntwo\n")
    result = run("train", "--data", source, target, "--output", tmp_path / "run", *FAST)
    assert result.code == 2 and "text.en ends before line 3" in result.err
    assert not (tmp_path / "run").exists()


# --- Training ---


def test_own_pairs_are_put_aside_for_the_score(trained: Path) -> None:
    count = len((trained / "test.tsv").read_text().splitlines())
    assert count > 0 and (trained / "validation.tsv").stat().st_size > 0
    german = {pair.source for pair in grammar(500, seed=4)}
    assert all(line.split("\t")[0] in german for line in (trained / "test.tsv").open())
    result = run(
        "evaluate", "--model", trained, "--data", trained / "test.tsv", "--beam", 1
    )
    assert result.code == 0, result.err
    assert (
        f"sentences       {count}\n" in result.out
        and "split           test\n" in result.out
    )


def test_a_model_is_scored_on_what_its_training_put_aside(
    trained: Path, tmp_path: Path
) -> None:
    """An average of its checkpoints is, too."""
    mean = tmp_path / "mean"
    result = run("average", "--run", trained, "--last", 1, "--output", mean)
    assert result.code == 0 and f"is in {mean}" in result.err
    for model, split in ((trained, "validation"), (mean, "test")):
        options = ["--split", split, "--beam", 1, "--json"]
        result = run("evaluate", "--model", model, *options)
        assert result.code == 0 and f"{split}.tsv, put aside" in result.err
        lines = (trained / f"{split}.tsv").read_text().splitlines()
        assert json.loads(result.out)["sentences"] == len(lines)
    result = run("evaluate", "--model", trained, "--split", "train")
    assert result.code == 2 and "say which pairs, with --data" in result.err


def test_what_was_put_aside_keeps_its_quotation_marks(tmp_path: Path) -> None:
    """It is written plainly, and read so, though all of its sentences are quotations."""
    pairs = [Pair('"Wort."', '"Word."'), Pair('"Ein ""Wort""."', '"A word."')]
    cli.write_pairs(tmp_path / "test.tsv", pairs)
    assert [pair[:2] for pair in cli.own_test_set(tmp_path, "test")] == [
        pair[:2] for pair in pairs
    ]


def test_references_are_composed_as_translations_are(tmp_path: Path) -> None:
    """A letter and its mark count as the letter, or half of the words would be wrong."""
    english = ["Good day.", "Where is the station?", "The old man is tired."]
    model, tokenizer = files.load_by_name("everyday-en-de")
    german = cli.translate_together(model, tokenizer, english, beam=4, alpha=0.6)
    scores = []
    for form in ("NFC", "NFD"):
        rows = [
            Pair(e, unicodedata.normalize(form, g)) for e, g in zip(english, german)
        ]
        data = table(tmp_path / f"{form}.tsv", rows)
        result = run("evaluate", "--model", "everyday-en-de", "--data", data, "--json")
        scores.append(json.loads(result.out)["bleu"])
    assert any(len(unicodedata.normalize("NFD", g)) > len(g) for g in german)
    assert scores == [100.0, 100.0]


def test_a_run_says_that_its_patience_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "shared_validation_loss", lambda run: run.progress.step)
    data = table(tmp_path / "pairs.tsv", grammar(200, seed=5))
    options = [*FAST, "--patience", 1, "--warmup", 5]
    result = run("train", "--data", data, *options, "--output", tmp_path / "run")
    assert result.code == 0
    assert (
        "it ended after step 20: the validation loss no longer fell (--patience 1)"
        in result.err
    )


def test_a_name_that_is_no_text_is_refused_before_the_training(tmp_path: Path) -> None:
    output = os.fsdecode(bytes(tmp_path / "run") + b"\xff")
    result = run("train", "--corpus", "grammar", "--output", output, *FAST)
    assert result.code == 2 and "is not UTF-8: take another folder" in result.err


def test_an_html_file_is_a_page(tmp_path: Path) -> None:
    output = tmp_path / "german.html"
    result = run("export", "--model", "captions-de-en", "--output", output)
    assert result.code == 2 and "add --format page" in result.err
    assert not output.exists()


def test_held_out_pairs_may_be_files(tmp_path: Path) -> None:
    pairs = grammar(300, seed=11)
    data = table(tmp_path / "train.tsv", pairs[:200])
    files = [tmp_path / "dev.de", tmp_path / "dev.en"]
    for path, side in zip(files, zip(*(pair[:2] for pair in pairs[200:240]))):
        path.write_text("\n".join(side).replace(" ", "\u00a0") + "\n")
    test = table(tmp_path / "mine.tsv", [*pairs[240:], pairs[0]])
    folder = tmp_path / "run"
    command = ["train", "--data", data, "--output", folder, *FAST]
    result = run(*command, "--validation", *files, "--test", test)
    assert result.code == 0, result.err
    assert "pairs to learn from share a sentence with the validation" in result.err
    rows = {
        name: (folder / name).read_text() for name in ("validation.tsv", "test.tsv")
    }
    assert rows["test.tsv"] == test.read_text()
    assert rows["validation.tsv"] == "".join(
        f"{pair.source}\t{pair.target}\n" for pair in pairs[200:240]
    )
    learned = read_splits(
        Data(data=(data,)), 0, HeldOut(validation=(files[0], files[1]), test=(test,))
    )
    assert len(learned.train) == len({pair[:2] for pair in pairs[:200]})


def test_columns_turn_no_texts_round(tmp_path: Path) -> None:
    """A table with English first, beside texts of which the first is the source."""
    pairs = grammar(300, seed=11)
    turned = [Pair(pair.target, pair.source) for pair in pairs]
    data = table(tmp_path / "english_first.tsv", turned)
    files = (tmp_path / "dev.de", tmp_path / "dev.en")
    for path, side in zip(files, zip(*(pair[:2] for pair in pairs[200:240]))):
        path.write_text("\n".join(side) + "\n")
    folder = tmp_path / "run"
    command = ["train", "--data", data, "--columns", 1, 0, "--output", folder, *FAST]
    result = run(*command, "--validation", *files)
    assert result.code == 0, result.err
    assert re.search(r"[0-9]+ pairs to learn from share a sentence", result.err)
    rows = (folder / "validation.tsv").read_text().splitlines()
    assert rows == [f"{pair.source}\t{pair.target}" for pair in pairs[200:240]]


def test_terms_too_short_for_bleu_keep_the_best_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets of up to three tokens have no 4-grams, so BLEU can be 0 at every validation."""
    monkeypatch.setattr(cli, "score", lambda *lines: Scores(0.0, 0.0, "", ""))
    terms = [
        Pair(f"{n} {noun}", f"{n} {word}")
        for n in range(100)
        for noun, word in (("Haus", "house"), ("Hund", "dog"))
    ]
    data = table(tmp_path / "terms.tsv", terms)
    folder = tmp_path / "run"
    options = [*FAST, "--save-every", 10, "--steps", 30]
    result = run("train", "--data", data, *options, "--output", folder)
    assert result.code == 0, result.err
    log = [json.loads(line) for line in (folder / "log.jsonl").open()]
    losses = {x["step"]: x["validation_loss"] for x in log if "validation_loss" in x}
    best = min(losses, key=lambda step: losses[step])
    newest = read_checkpoint(folder / "checkpoints" / f"step-{best:08}.pt")
    kept = load_model(folder)[0].state_dict()
    assert best > 10
    assert all(torch.equal(kept[name], newest["model"][name]) for name in kept)


def test_a_wrong_column_ends_the_training(tmp_path: Path) -> None:
    rows = [f"{n};{p.source};{p.target}\n" for n, p in enumerate(grammar(300, seed=1))]
    data = tmp_path / "firm.csv"
    data.write_text("id;Deutsch;English\n" + "".join(rows))
    command = ["train", "--data", data, "--output", tmp_path / "run", *FAST]
    result = run(*command)
    assert result.code == 2 and "The first was read as 'id' and 'Deutsch'" in result.err
    assert not (tmp_path / "run").exists()
    assert run(*command, "--columns", 1, 2, "--dry-run", "--peak", 1e12).code == 0


def test_translate_is_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would share the lines of a pipe between them as they come."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("translate", "--model", "captions-de-en", text=b"Hallo!\n")
    assert result == (
        2,
        "",
        "annotated-transformer: translate is for one process: start it without torchrun",
    )
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run("translate", "--model", "captions-de-en", text=b"Ja.\n").code == 0


def test_a_run_says_where_it_stands(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    data = ["--data", trained.parent / "pairs.tsv.gz", "--columns", 1, 0]
    command = ["train", *data, "--output", folder, *FAST]
    result = run(*command)
    assert f"{folder} has made all of its 30 steps: give more --steps" in result.err
    assert result.err.endswith(f"the model is in {folder}")
    result = run(*command, "--steps", 32)
    assert result.code == 0 and f"{folder} has made 30 of 32 steps, and" in result.err


def test_a_training_without_pairs_says_what_it_learns(tmp_path: Path) -> None:
    result = run("train", "--output", tmp_path / "x", "--dry-run", "--peak", 1e12)
    assert result.code == 0
    assert result.err.startswith("no pairs were given: this trains on the grammar")


def test_a_dry_run_says_when_more_gpus_will_not_help() -> None:
    plan = ["train", "--output", "x", "--dry-run", "--peak", 1e12, "--limit", 2000]
    many = [*plan, "--precision", "bf16", "--gpus", 1000]
    assert "more GPUs won't shorten them" in run(*many).err
    assert "more GPUs" not in run(*plan).err


def test_a_dry_run_says_which_settings_are_unusual_for_the_corpus() -> None:
    """100,000 steps of `base` are hundreds of epochs of few pairs; a preset's own are not."""
    plan = ["train", "--output", "x", "--dry-run", "--peak", 1e12, "--limit", 2000]
    result = run(*plan, "--preset", "base")
    assert result.code == 0 and "tokens per epoch" in result.out
    assert "unusual: 100,000 steps are 50,000 epochs" in result.err
    assert "an epoch is only 2 updates of 25,000 tokens" in result.err
    assert "own_pair.html#which-settings-for-my-corpus" in result.err
    assert "unusual" not in run(*plan).err


def test_without_a_terminal_a_line_is_written_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 29.0, 31.0, 31.0, 40.0, 62.0, 62.0, 63.0, 63.0, 200.0])
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(clock))
    report = cli.ProgressReport()
    line = {"step": 50, "loss": 3.0, "tokens_per_second": 1234}
    for _ in range(5):
        report(line)
    assert capsys.readouterr().err.count("1,234 tokens per second") == 2
    report(line | {"validation_loss": 3.5, "score": 1.0})
    assert "validation loss 3.500, BLEU 1.0" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report(line)
    assert not capsys.readouterr().err


def test_the_folder_is_looked_at_before_the_pairs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    monkeypatch.setattr(cli, "read_material", fail_with(AssertionError("too late")))
    result = run("train", "--output", tmp_path)
    assert result.code == 2 and "it holds letter.txt" in result.err


def test_another_direction_needs_another_folder(trained: Path) -> None:
    before = (trained / "test.tsv").read_bytes()
    result = run(
        "train", "--data", trained.parent / "pairs.tsv.gz", "--output", trained, *FAST
    )
    assert result.code == 2 and "take another folder" in result.err
    assert (trained / "test.tsv").read_bytes() == before


def test_a_training_can_begin_with_a_model(trained: Path, tmp_path: Path) -> None:
    """Its shape and vocabulary stay, its weights are where the first step begins."""
    pairs = table(
        tmp_path / "pairs.tsv",
        [p._replace(source=p.target, target=p.source) for p in grammar(500, seed=4)],
    )
    train = ["train", "--data", pairs, "--output", tmp_path / "run", "--start", trained]
    train += ["--steps", 4, "--save-every", 2, "--max-tokens", 300, "--lr-scale", 1e-9]
    result = run(*train, "--dropout", 0.3)
    assert result.code == 0, result.err
    (before, tokenizer), (after, own) = (
        load_model(trained),
        load_model(tmp_path / "run"),
    )
    assert own.text == tokenizer.text and after.config == replace(
        before.config, dropout=0.3
    )
    for name, weights in before.state_dict().items():
        assert torch.allclose(weights, after.state_dict()[name], atol=1e-6), name
    continued = run(*train[:-6], "--steps", 6, *train[-4:], "--dropout", 0.3)
    assert continued.code == 0 and "step 6: loss" in continued.err, continued.err
    without = run(*train[:5], *train[7:], "--dropout", 0.3)  # a vocabulary of its own
    assert without.code == 2 and "take another folder" in without.err
    shutil.copytree(trained, tmp_path / "copy")
    for_copy = [*train[:6], tmp_path / "copy", *train[7:], "--dropout", 0.3]
    assert run(*for_copy).code == 0  # the same model, wherever it lies
    with torch.no_grad():
        before.embedding.weight[5] += 1
    save_model(before, tokenizer, tmp_path / "copy")
    other = run(*for_copy)
    assert other.code == 2 and "take another folder" in other.err


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "work.txt").write_text("keep")
    pairs = table(tmp_path.parent / f"{tmp_path.name}.tsv", grammar(100, seed=6))
    result = run("train", "--data", pairs, "--output", tmp_path, *FAST)
    assert result.code == 2 and "take another folder" in result.err
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == [
        "work.txt"
    ]


@pytest.mark.parametrize(("count", "about"), [(100, 10), (1000, 50), (10_000, 100)])
def test_of_few_pairs_a_larger_share_is_put_aside(
    tmp_path: Path, count: int, about: int
) -> None:
    pairs = [Pair(f"Wort {n}", f"word {n}") for n in range(count)]
    splits = read_splits(Data(data=(table(tmp_path / "few.tsv", pairs),)), seed=0)
    assert all(0.3 * about < len(part) < 2 * about for part in splits[1:])


@pytest.mark.slow
def test_what_an_abandoned_start_put_aside_does_not_stay(
    trained: Path, tmp_path: Path
) -> None:
    """Before the first checkpoint other settings are welcome, and divide the pairs anew."""
    home = tmp_path / "run"
    home.mkdir()
    for name in ("training.json", "validation.tsv", "test.tsv"):
        (home / name).write_bytes((trained / name).read_bytes())
    pairs = table(tmp_path / "pairs.tsv", grammar(500, seed=4))
    result = run("train", "--data", pairs, "--output", home, "--seed", 1, *FAST)
    assert result.code == 0, result.err
    written = [
        (home / name).read_text().splitlines()
        for name in ("validation.tsv", "test.tsv")
    ]
    splits = read_splits(Data(data=(pairs,)), seed=1)
    assert written == [
        [f"{pair[0]}\t{pair[1]}" for pair in part] for part in splits[1:]
    ]


def test_too_few_pairs_to_watch(tmp_path: Path) -> None:
    four_groups = [Pair(f"Wort {n}", f"word {n % 4}") for n in range(60)]
    pairs = table(tmp_path / "few.tsv", four_groups)
    result = run("train", "--data", pairs, "--output", tmp_path / "run", *FAST)
    assert result.code == 0, result.err
    assert "0 of 60 pairs are for validation and 0 for the test" in result.err
    assert ", 0 for validation" in result.err
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_killed_before_its_first_report_it_puts_pairs_aside_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = table(tmp_path / "pairs.tsv", grammar(60, seed=7))
    command = [
        "train",
        "--data",
        pairs,
        "--output",
        tmp_path / "run",
        *FAST,
        "--steps",
        6,
    ]
    save = run_folder.save_checkpoint

    def save_and_die(*arguments: Any) -> None:
        save(*arguments)
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "save_checkpoint", save_and_die)
        assert run(*command).code == "killed"
    assert not (tmp_path / "run" / "test.tsv").exists()
    assert run(*command).code == 0 and (tmp_path / "run" / "test.tsv").exists()


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
)
def test_told_to_stop_it_leaves_a_checkpoint_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    pairs = table(tmp_path / "pairs.tsv", grammar(60, seed=7))
    command = ["train", "--data", pairs, "--output", tmp_path / "run", *FAST]
    write_log = run_folder.write_log

    def write_and_stop(folder: Path, record: dict[str, Any]) -> None:
        write_log(folder, record)
        if record["step"] == 20 and "loss" in record:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_log", write_and_stop)
        result = run(*command)
    assert result.code == 128 + number
    assert "the same command continues there" in result.err
    assert run_folder.last_checkpoint(tmp_path / "run") is not None
    assert run(*command).code == 0
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").open()
    ]
    assert steps[-1] == 30 and 20 in steps


@pytest.mark.slow
def test_compiled_layers_learn_the_same(tmp_path: Path) -> None:
    pairs = table(tmp_path / "pairs.tsv", grammar(300, seed=8))
    losses = []
    for name, more in (("plain", []), ("compiled", ["--compile"])):
        command = [
            "train",
            "--data",
            pairs,
            "--output",
            tmp_path / name,
            "--dropout",
            0,
            *FAST,
        ]
        result = run(*command, *more)
        assert result.code == 0, result.err
        records = map(json.loads, (tmp_path / name / "log.jsonl").open())
        losses.append([record["loss"] for record in records if "loss" in record])
    assert len(losses[0]) == 3 and losses[1] == pytest.approx(losses[0], rel=1e-3)


# --- Averaging ---


def test_the_average_is_a_model_and_no_training(trained: Path, tmp_path: Path) -> None:
    mean = tmp_path / "mean"
    result = run("average", "--run", trained, "--last", 2, "--half", "--output", mean)
    assert result.code == 0, result.err
    assert run("translate", "--model", mean, text=b"Ja.\n").out.count("\n") == 1
    assert (mean / "log.jsonl").read_bytes() == (trained / "log.jsonl").read_bytes()
    note = json.loads((mean / "averaged.json").read_text())
    assert note["last"] == 2 and note["training.steps"] == 30
    assert not (mean / "training.json").exists()
    weights = (mean / "model.safetensors").read_bytes()
    assert len(weights) < 0.6 * (trained / "model.safetensors").stat().st_size
    pairs = trained.parent / "pairs.tsv.gz"
    result = run("train", "--data", pairs, "--columns", 1, 0, "--output", mean, *FAST)
    assert result.code == 2 and "take another folder" in result.err
    assert (mean / "model.safetensors").read_bytes() == weights
    assert run("average", "--run", trained, "--last", 1, "--output", mean).code == 0
    assert (mean / "model.safetensors").read_bytes() != weights


def test_an_average_replaces_nothing_else(trained: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    result = run("average", "--run", trained, "--last", 2, "--output", trained)
    assert result.code == 2 and "take an empty folder" in result.err
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before
    assert (
        run(
            "average", "--run", trained, "--last", 1, "--output", tmp_path / "mean"
        ).code
        == 0
    )
    for name, setting in (("pairs", "pairs"), ("dropout", "model.dropout")):
        shutil.copytree(trained, tmp_path / name)
        settings = tmp_path / name / "training.json"
        changed = json.loads(settings.read_text()) | {setting: "another"}
        settings.write_text(json.dumps(changed))
        mean = [
            "average",
            "--run",
            tmp_path / name,
            "--last",
            1,
            "--output",
            tmp_path / "mean",
        ]
        result = run(*mean)
        assert result.code == 2 and "take an empty folder" in result.err
    assert (
        run(
            "average", "--run", trained, "--last", 2, "--output", tmp_path / "mean"
        ).code
        == 0
    )
    (tmp_path / "mean" / "averaged.json").write_text("[3]")
    result = run(
        "average", "--run", trained, "--last", 1, "--output", tmp_path / "mean"
    )
    assert result.code == 2 and "averaged.json holds no settings" in result.err
    result = run(
        "average", "--run", trained, "--last", 9, "--output", tmp_path / "none"
    )
    assert result.code == 2 and ": 3, asked for: 9" in result.err
    assert not (tmp_path / "none").exists()
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("averaged.json", "test.tsv"):  # in the first write of all, in the last
        (killed / f"{name}.123.unfinished").write_text("{")
        mean = ["average", "--run", trained, "--last", 1, "--output", killed]
        assert run(*mean).code == 0
        assert not [*killed.glob("*.unfinished")]


def test_nothing_has_to_be_removed_once_a_folder_was_found_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing stays when the command is killed there."""
    monkeypatch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
    cli.check_output(tmp_path / "run")
    assert not [*tmp_path.iterdir()]


# --- Translating ---


def test_a_model_that_comes_along_goes_by_its_name() -> None:
    result = run(
        "translate", "--model", "captions-de-en", text="Ein Hund schläft.".encode()
    )
    assert result.code == 0 and result.out.startswith("A dog sle"), result.err


def test_lines_in_lines_out(trained: Path) -> None:
    text = "Der Hund schläft.\n\n  \nDie Katze lacht.\r\nEin 日本 😀".encode()
    result = run("translate", "--model", trained, "--beam", 2, text=text)
    assert result.code == 0, result.err
    lines = result.out.split("\n")
    assert len(lines) == 6 and lines[-1] == "" and lines[1] == lines[2] == ""
    assert run("translate", "--model", trained, text=b"").out == ""


WHITE_SPACE = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
WHITE_SPACE += ["\ufeff", "  ", "\u00a0\t ", "\r\r"]


def test_any_white_space_is_one_space_for_the_command() -> None:
    words = ["Ein", "Hund", "läuft", "über", "die", "Wiese."]
    lines = [" ".join(words)]
    for space in WHITE_SPACE:
        if "\n" not in space:
            lines += [space.join(words), f"{space}{' '.join(words)}{space}"]
    result = run(
        "translate",
        "--model",
        "captions-de-en",
        "--beam",
        1,
        text="".join(f"{line}\n" for line in lines).encode(),
    )
    assert result.code == 0, result.err
    translations = result.out.removesuffix("\n").split("\n")
    assert len(translations) == len(lines) and len(set(translations)) == 1


def test_files_and_several_translations(tmp_path: Path) -> None:
    """Rows of three cells, best first; a line without words has none."""
    source, target = tmp_path / "text.de", tmp_path / "text.en"
    source.write_text("Ein Hund läuft.\n\nEine Frau liest.\n")
    command = ["translate", "--model", "captions-de-en", "--input", source]
    result = run(*command, "--output", target)
    assert (result.code, result.out) == (0, "") and f"are in {target}" in result.err
    best = target.read_text().splitlines()
    assert len(best) == 3 and best[0] and not best[1] and best[2]
    target.unlink()
    (tmp_path / "text.en.123.unfinished").write_text("A d")  # of a call that was killed
    assert run(*command, "--output", target).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text.de", "text.en"}
    assert run(*command).out == target.read_text()
    result = run(*command, "--nbest", 3)
    rows = [row.split("\t") for row in result.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "3", "3", "3"]
    assert [rows[0][2], rows[3][2]] == [best[0], best[2]]
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    source.write_text("")
    assert run(*command) == (0, "", "")


def test_a_file_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    """Another command wrote it while this one translated: both texts are there at the end."""
    target = tmp_path / "text.de"
    translate = cli.translation.translate

    def slow(*arguments: Any, **options: Any) -> list[str]:
        target.write_text("of another")
        return translate(*arguments, **options)

    monkeypatch.setattr(cli.translation, "translate", slow)
    command = ["translate", "--model", "captions-de-en", "--output", target]
    result = run(*command, text=b"Ein Hund.\n")
    (other,) = set(tmp_path.iterdir()) - {target}
    assert result.code == 0 and f"are in {other}" in result.err
    assert target.read_text() == "of another"
    assert other.suffix == ".de" and other.read_text().strip()


def test_evaluate_says_that_references_are_missing(tmp_path):
    """chrF passes over them, so that its score flatters."""
    table = tmp_path / "pairs.tsv"
    table.write_text("Ein Hund.\tA dog.\nDer Hund.\t\n")
    result = run("evaluate", "--model", "captions-de-en", "--data", table)
    assert result.code == 0 and "1 of 2 pairs have no reference" in result.err


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r"))),
    st.sampled_from(["\n", "\r\n"]),
)
def test_lines_are_what_stands_between_line_feeds(lines: list[str], end: str) -> None:
    text = "".join(line + end for line in lines).encode(errors="replace")
    wanted = [line.encode(errors="replace").decode() for line in lines]

    def read(content: bytes) -> list[str]:
        return [*utf8_lines(io.BytesIO(content), "a name")]

    assert read(b"\xef\xbb\xbf" + text) == (wanted or [""])  # a mark alone is a line
    if not text.startswith(b"\xef\xbb\xbf"):
        assert read(text) == wanted
    if lines and lines[-1]:
        assert read(text.removesuffix(end.encode())) == wanted


def test_bytes_that_are_no_text(trained: Path) -> None:
    for text in (b"gut\n\xff\n", b"\xef\xbb\xbfgut\nK\xe4se\n"):
        result = run("translate", "--model", trained, text=text)
        assert result.code == 2 and not result.out
        assert "the input, line 2: 'utf-8' codec can't decode" in result.err


@pytest.mark.parametrize("alpha", ["nan", "inf", "400", "-400"])
def test_an_alpha_that_is_no_penalty(trained: Path, alpha: str) -> None:
    result = run("translate", "--model", trained, "--alpha", alpha, text=b"Ja.\n")
    assert result.code == 2 and not result.out
    assert "alpha" in result.err and "damaged" not in result.err


@given(st.integers(0, 20), st.integers(1, 6))
def test_shares_of_all_processes_come_back_in_order(
    count: int, world_size: int
) -> None:
    """Each of them gets all; a line feed within a translation becomes a space."""
    shares: list[list[str]] = []
    _, tokenizer = files.load_by_name("captions-de-en")

    def decode(
        model: Any, tokenizer: Any, mine: list[str], *_: Any, **__: Any
    ) -> list[str]:
        return [f"<{sentence}\n>" for sentence in mine]

    def gather(mine: list[str]) -> list[list[str]]:
        shares.append(mine)
        rest = range(len(shares), world_size)
        return shares + [[""] * len(range(rank, count, world_size)) for rank in rest]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.translation, "translate", decode)
        patch.setattr(cli, "gather_texts", gather)
        for rank in range(world_size):
            patch.setattr(
                cli, "rank_and_world_size", lambda rank=rank: (rank, world_size)
            )
            sentences = [*map(str, range(count))]
            made = cli.translate_together(_Cpu(), tokenizer, sentences, 1, 0.6)  # type: ignore[arg-type]
    assert made == [f"<{number} >" for number in range(count)]


class _Cpu:
    """What translate_together asks of a model: where it is, and how much it takes."""

    class config:
        max_length = 1024

    class embedding:
        class weight:
            is_cuda = False


# --- Scoring ---


def test_scores_with_signatures(trained: Path) -> None:
    grammar = ["--corpus", "grammar", "--limit", 25]
    result = run("evaluate", "--model", trained, "--beam", 1, "--json", *grammar)
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert record["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert (
        record["sentences"] == 25 and record["beam"] == 1 and record["split"] == "test"
    )
    pairs = read_splits(Data(), seed=0).test[:25]
    text = "".join(f"{pair.source}\n" for pair in pairs).encode()
    hypotheses = run(
        "translate", "--model", trained, "--beam", 1, text=text
    ).out.splitlines()
    wanted = sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score
    assert record["bleu"] == round(wanted, 2)


def test_a_limit_shortens_what_is_scored_and_not_the_corpus(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cli, "translate_together", lambda m, t, sentences, b, a: [*sentences]
    )
    test = read_splits(Data(), seed=0).test
    for limit, count in ((100, min(100, len(test))), (7, 7), (100_000, len(test))):
        grammar = ["--corpus", "grammar", "--limit", limit]
        result = run("evaluate", "--model", trained, "--json", *grammar)
        record = json.loads(result.out)
        assert record["sentences"] == count


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("datasets", reason="needs the extra wmt14")
    home = tmp_path_factory.mktemp("prepared")
    pairs = table(home / "pairs.tsv", grammar(600, seed=9))
    result = run(
        "prepare", pairs, "--output", home / "corpus", "--vocabulary-size", 400
    )
    assert result.code == 0, result.err
    return home / "corpus"


def test_from_a_prepared_corpus_to_a_score(prepared: Path, tmp_path: Path) -> None:
    train = [
        "train",
        "--prepared",
        prepared,
        "--output",
        tmp_path / "run",
        "--limit",
        100,
        *FAST,
    ]
    result = run(*train)
    assert result.code == 0, result.err
    assert "100 pairs to learn from" in result.err
    assert result.err.count("takes thousands of pairs") == 1
    evaluate = [
        "evaluate",
        "--model",
        tmp_path / "run",
        "--prepared",
        prepared,
        "--beam",
        1,
    ]
    record = json.loads(run(*evaluate, "--split", "validation", "--json").out)
    assert record["sentences"] == len(
        (prepared / "validation.tsv").read_text().splitlines()
    )
    result = run(*evaluate, "--split", "train")
    assert result.code == 2 and "has put no pairs aside for train" in result.err
    damaged = Path(shutil.copytree(prepared, tmp_path / "damaged"))
    (damaged / "summary.json").write_text("{}")
    result = run("evaluate", "--model", tmp_path / "run", "--prepared", damaged)
    assert result.code == 2 and "is damaged" in result.err
    result = run(
        *train[: -len(FAST) - 2], *FAST
    )  # without the limit it is another training
    assert result.code == 2 and "take another folder" in result.err
    result = run(*train[:4], tmp_path / "other", "--start", "captions-de-en", *FAST)
    assert (
        result.code == 2
        and "needs the vocabulary of captions-de-en: prepare" in result.err
    )


def test_wmt14_is_scored_on_the_sets_of_sacrebleu(
    prepared: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [Pair(f"Satz {n} so-lala.", f"Sentence {n} so-so.") for n in range(9)]
    sets = {"wmt14/full": full, "wmt14": full[:6]}

    def side(number: int) -> Callable[[str, str], Path]:
        def write(name: str, languages: str) -> Path:
            assert languages == "en-de"
            path = tmp_path / f"{name.replace('/', '-')}.{number}"
            path.write_text("".join(f"{pair[number]}\n" for pair in sets[name]))
            return path

        return write

    summary = prepared / "summary.json"
    before = summary.read_text()
    content = json.loads(before)
    content["settings"]["data"] = ["wmt14-en-de", "revision"]
    summary.write_text(json.dumps(content))
    evaluate = ["evaluate", "--model", trained, "--prepared", prepared, "--beam", 1]
    try:
        with monkeypatch.context() as patch:
            patch.setattr(cli, "get_source_file", side(0))
            patch.setattr(cli, "get_reference_files", lambda *names: [side(1)(*names)])
            lines = run(*evaluate, "--json").out.splitlines()
            shown = run(*evaluate).out
        one, other = map(json.loads, lines)
        assert (one["split"], one["sentences"]) == ("wmt14/full", 9)
        assert (other["split"], other["sentences"]) == ("wmt14", 6)
        text = "".join(f"{pair.source}\n" for pair in full).encode()
        hypotheses = run(
            "translate", "--model", trained, "--beam", 1, text=text
        ).out.splitlines()
        wanted = compound_split_bleu(hypotheses, [pair.target for pair in full])
        assert one["not_comparable"] == round(wanted, 2)
        assert "not_comparable" not in other and "not_comparable" in shown

        def offline(name: str, languages: str) -> str:
            raise OSError("no network")

        monkeypatch.setattr(cli, "get_source_file", offline)
        result = run(*evaluate)
        assert result.code == 2 and "sacreBLEU cannot fetch" in result.err
        assert "check the network" in result.err
    finally:
        summary.write_text(before)


# --- Exporting ---


def test_a_model_becomes_a_page(trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "german.html"
    export = ["export", "--model", trained, "--format", "page", "--output"]
    result = run(*export, page)
    assert result.code == 0 and f"is in {page}" in result.err
    before = page.read_text(encoding="utf-8")
    assert "<!doctype html>" in before and '"name":"german"' in before
    for taken in (page, tmp_path / "folder", trained):
        result = run(*export, taken)
        assert result.code == 2 and f"not into {taken}" in result.err
    assert page.read_text(encoding="utf-8") == before
    result = run(
        "export",
        "--model",
        tmp_path,
        "--format",
        "page",
        "--output",
        tmp_path / "x.html",
    )
    assert result.code == 2 and "holds no model" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["german.html"]


def test_an_exported_model_is_a_folder_of_its_own(
    trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    result = run("export", "--model", trained, "--output", tmp_path / "served")
    assert result.code == 0, result.err
    assert (tmp_path / "served" / "model.bin").stat().st_size > 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("keep")
    result = run("export", "--model", trained, "--output", tmp_path / "mine")
    assert result.code == 2 and str(tmp_path / "mine") in result.err
    assert (tmp_path / "mine" / "work.txt").read_text() == "keep"


# --- Processes of their own ---


def test_a_reader_that_has_enough(trained: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "annotated_transformer",
        "translate",
        "--model",
        str(trained),
    ]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    process = subprocess.Popen(words, **pipes)  # type: ignore[call-overload]
    process.stdout.close()
    process.stdin.write(b"Ja.\n")
    process.stdin.close()
    assert (process.wait(timeout=120), process.stderr.read()) == (141, b"")


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "annotated_transformer.cli":
            os.kill(os.getpid(), signal.SIGINT)

# As in a terminal; what a shell starts in the background ignores Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("annotated_transformer", run_name="__main__")
"""


def test_ctrl_c_while_python_imports_is_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGINT  # which shells show as 130
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.slow
def test_a_translation_starts_without_what_it_does_not_need(trained: Path) -> None:
    code = (
        "import sys; from annotated_transformer.cli import main; main(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "translate", "--model", str(trained)],
        input=b"Ja.\n",
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 0 and result.stdout.count(b"\n") == 1
    heavy = {"datasets", "pandas", "pyarrow", "ctranslate2", "matplotlib", "scipy"}
    assert not heavy & set(result.stderr.decode().split())


# --- One of several processes ---


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "rank_and_world_size", lambda: (1, 2))


def test_a_sentence_that_is_too_long_has_its_number_among_all(
    second_of_two: None,
) -> None:
    model, tokenizer = files.load_by_name("captions-de-en")
    lines = ["Ein Hund.", "Zwei.", "Drei.", "Vier " * 2000]
    with pytest.raises(ValueError, match="sentence 4 has 4000 tokens"):
        cli.translate_together(model, tokenizer, lines, beam=1, alpha=0.6)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_shared_among_processes(
    tmp_path: Path, second_of_two: None
) -> None:
    os.mkfifo(pipe := tmp_path / "pairs.tsv")
    with pytest.raises(ValueError, match="is no file, and each process"):
        cli.read_files((pipe,), (0, 1))


def test_the_plan_of_all_is_printed_once(tmp_path: Path, second_of_two: None) -> None:
    result = run("train", "--output", tmp_path / "x", "--dry-run", "--peak", 1e12)
    assert result.code == 0 and result.out == ""


def test_a_message_to_a_terminal_that_was_closed_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    cli.say("step 500")


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")
