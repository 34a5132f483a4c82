"""The command line as a user runs it: in a process of its own, with files and pipes."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from annotated_transformer.synchronous_grammar import grammar

FAST = ["--steps", "30", "--save-every", "10", "--vocabulary-size", "400", "--max-tokens", "300"]


MAIN = [sys.executable, "-c", "from annotated_transformer.cli import main; main()"]


def run(*arguments: object, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    words = [*MAIN, *map(str, arguments)]
    return subprocess.run(words, input=text, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    result = run("train", "--output", folder, "--limit", 400, *FAST)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize(
    "command", ["prepare", "train", "average", "translate", "evaluate", "export"]
)
def test_help_is_made_from_docstrings(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    text = " ".join(result.stdout.decode().replace("│", " ").split())
    known = {
        "train": "Steps until the learning rate is at its peak",
        "average": "How many checkpoints",
        "translate": "Hypotheses kept at each step; 1 is greedy",
        "evaluate": "Which part of a corpus",
        "prepare": "Entries of the joint vocabulary",
        "export": "Folder for the exported one",
    }
    assert known[command] in text


def test_lines_in_lines_out(trained: Path) -> None:
    text = "Der Hund schläft.\n\n  \nDie Katze lacht.\r\nEin 日本 😀".encode()
    result = run("translate", "--model", trained, "--beam", 2, text=text)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.decode().split("\n")
    assert len(lines) == 6 and lines[-1] == "" and lines[1] == lines[2] == ""
    assert run("translate", "--model", trained, text=b"").stdout == b""
    sentence = "Der Hund schläft.\n".encode()
    marked = run("translate", "--model", trained, text=b"\xef\xbb\xbf" + sentence)
    assert marked.stdout == run("translate", "--model", trained, text=sentence).stdout


def test_a_reader_that_has_enough(trained: Path) -> None:
    words = [*MAIN, "translate", "--model", str(trained)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, **pipes)
    assert process.stdout and process.stdin and process.stderr
    process.stdout.close()
    process.stdin.write(b"Ja.\n")
    process.stdin.close()
    assert (process.wait(timeout=120), process.stderr.read()) == (141, b"")


def test_bytes_that_are_no_text(trained: Path) -> None:
    result = run("translate", "--model", trained, text=b"gut\n\xff\n")
    assert result.returncode == 2 and not result.stdout
    assert "line 2 of the input is not UTF-8" in result.stderr.decode()


def test_scores_with_signatures(trained: Path, tmp_path: Path) -> None:
    written = tmp_path / "new" / "hypotheses.txt"
    result = run(
        "evaluate", "--model", trained, "--limit", 400, "--beam", 1, "--json", "--output", written
    )
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert record["sentences"] == len(written.read_text().splitlines()) > 0
    assert 0 <= record["bleu"] <= 100 and record["beam"] == 1


def test_the_average_is_a_model(trained: Path, tmp_path: Path) -> None:
    result = run("average", "--run", trained, "--last", 2, "--half", "--output", tmp_path / "mean")
    assert result.returncode == 0, result.stderr
    assert run("translate", "--model", tmp_path / "mean", text=b"Ja.\n").stdout.count(b"\n") == 1
    result = run("average", "--run", trained, "--last", 9, "--output", tmp_path / "none")
    assert result.returncode == 2 and b"3 checkpoints, 9 were asked for" in result.stderr


def test_own_pairs_from_a_table_to_a_score(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv.gz"
    rows = [f"{pair.target}\t{pair.source}\tCC BY\n" for pair in grammar(900, seed=4)]
    table.write_bytes(gzip.compress("".join([*rows, "one side only\t\tx\n"]).encode()))
    folder = tmp_path / "run"
    result = run("train", "--data", table, "--columns", 1, 0, "--output", folder, *FAST)
    assert result.returncode == 0, result.stderr
    assert b"dropped" in result.stderr and b"pairs for validation" in result.stderr
    test = folder / "test.tsv"
    count = len(test.read_text().splitlines())
    result = run("evaluate", "--model", folder, "--data", test, "--beam", 1)
    assert result.returncode == 0, result.stderr
    assert f"{count} sentences" in result.stdout.decode()
    assert (folder / "validation.tsv").read_text().count("\n") > 0
    before = test.read_bytes()
    result = run("train", "--data", table, "--output", folder, *FAST)  # the other direction
    assert result.returncode == 2 and b"take another folder" in result.stderr
    assert test.read_bytes() == before


def test_too_few_pairs_to_watch(tmp_path: Path) -> None:
    table = tmp_path / "few.tsv"
    table.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in grammar(30, seed=6)))
    result = run("train", "--data", table, "--output", tmp_path / "run", *FAST)
    assert result.returncode == 0, result.stderr
    assert b" 0 pairs for validation" in result.stderr


def test_own_pairs_from_two_files(tmp_path: Path) -> None:
    pairs = grammar(300, seed=5)
    source, target = tmp_path / "text.de", tmp_path / "text.en"
    source.write_text("".join(f"{pair.source}\n" for pair in pairs))
    target.write_text("".join(f"{pair.target}\n" for pair in pairs[1:]))
    result = run("train", "--data", source, target, "--output", tmp_path / "run", *FAST)
    assert result.returncode == 2 and b"300" in result.stderr and b"299" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "--model", "nowhere"], "nowhere holds no model"),
        (["train", "--output", "x", "--preset", "huge"], 'there is no preset "huge"'),
        (["train", "--output", "x", "--steps", "0"], "steps must be above 0"),
        (["train", "--output", "x", "--data", "a", "b", "c"], "not 3 files"),
        (["train", "--output", "x", "--data", "missing.tsv"], "missing.tsv"),
        (["train", "--output", "x", "--prepared", "nowhere"], "nowhere"),
        (["train", "--output", "x", "--prepared", "c", "--reverse"], "prepared in one direction"),
        (["train", "--output", "x", "--dry-run", "--gpu", "Z80"], "the peak of 'Z80' is not known"),
        (["train", "--output", "x", "--device", "gpu"], "there is no device 'gpu'"),
        (["prepare", "wmt99"], "wmt99"),
        (["prepare", "missing.json"], "missing.json"),
        (["export", "--model", "nowhere", "--output", "x"], "nowhere holds no model"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    errors = result.stderr.decode()
    assert result.returncode == 2
    assert "Traceback" not in errors
    assert message in " ".join(errors.replace("│", " ").split())


def test_sigterm_leaves_a_checkpoint(tmp_path: Path) -> None:
    words = [*MAIN, "train", "--output", str(tmp_path)]
    options = ["--limit", "300", "--vocabulary-size", "400", "--steps", "100000"]
    process = subprocess.Popen([*words, *options, "--save-every", "10"], stderr=subprocess.PIPE)
    while not list(tmp_path.glob("checkpoints/*.safetensors")) and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert b"the same command goes on from there" in errors


def test_a_preset_brings_its_settings_along() -> None:
    plan = ["train", "--output", "x", "--dry-run", "--limit", "300", "--gpu", "A100"]
    shown = run(*plan, "--preset", "base").stdout.decode()
    assert "100,000 of 1 x 25,000 tokens a side" in shown
    shown = run(*plan, "--preset=big", "--steps", "77").stdout.decode()
    assert "77 of 1 x 25,000" in shown
    assert "1,300 of 1 x 384" in run(*plan).stdout.decode()


def test_an_exported_model_is_a_folder_of_its_own(trained: Path, tmp_path: Path) -> None:
    result = run("export", "--model", trained, "--output", tmp_path / "served")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "served" / "model.bin").stat().st_size > 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("keep")
    result = run("export", "--model", trained, "--output", tmp_path / "mine")
    assert result.returncode == 2 and b"take an empty folder" in result.stderr
    assert (tmp_path / "mine" / "work.txt").read_text() == "keep"


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler")
def test_compiled_code_does_the_same(trained: Path, tmp_path: Path) -> None:
    text = "Der Hund schläft.\nDie Katze lacht.\n".encode()
    plain, fast = (
        run("translate", "--model", trained, "--beam", 2, *more, text=text)
        for more in ([], ["--compile"])
    )
    assert fast.returncode == 0, fast.stderr
    assert fast.stdout == plain.stdout
    losses = []
    for choice in ("no", "yes"):
        command = ["train", "--output", tmp_path / choice, "--limit", 400, "--dropout", 0, *FAST]
        result = run(*command, "--compile", choice)
        assert result.returncode == 0, result.stderr
        assert (b"compiling" in result.stderr) == (choice == "yes")
        records = map(json.loads, (tmp_path / choice / "log.jsonl").read_text().splitlines())
        losses.append([r["validation_loss"] for r in records if "validation_loss" in r])
    assert len(losses[0]) == 3 and losses[1] == pytest.approx(losses[0], rel=1e-3)
