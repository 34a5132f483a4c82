"""The command line, called as a shell does it: arguments, input, output and exit codes."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sacrebleu
import torch

from annotated_transformer import cli, trainer
from annotated_transformer.cli import main
from annotated_transformer.corpus import read_held_out, write_pairs
from annotated_transformer.data import Pair
from annotated_transformer.files import load_model
from annotated_transformer.own_data import sides_of
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.training import TrainingConfig

ROOT = Path(__file__).parent.parent
CAPTIONS = ["--model", "captions-de-en", "--beam", "1"]
SHORT = ["--steps", "20", "--save-every", "10", "--vocabulary-size", "400"]
SHORT += ["--max-tokens", "300", "--warmup", "10"]


class Result(NamedTuple):
    code: Any
    out: str
    err: str


def run(*arguments: object, text: bytes = b"", encoding: str = "utf-8") -> Result:
    """Call the command; return its exit code and what it wrote."""
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    err = io.TextIOWrapper(io.BytesIO(), encoding)
    code: Any = 0
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(text), encoding)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdin = before
    written = []
    for stream in (out, err):
        stream.flush()
        written.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(code, *written)


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a module of Python in a process of its own."""
    command = [sys.executable, "-m", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run(command, env=env, timeout=300, **options)


def english_first(path: Path, pairs: list[Pair]) -> Path:
    """A table as those of Tatoeba: English, German, terms of use."""
    rows = [f"{pair.target}\t{pair.source}\tCC BY\n" for pair in pairs]
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "deu.txt"
    return english_first(path, [*grammar(400, seed=4), Pair("", "one side only")])


@pytest.fixture(scope="module")
def trained(table: Path) -> Path:
    """A run with pairs of one's own, German to English."""
    folder = table.parent / "run"
    data = ["--data", table, "--columns", 1, 0]
    result = run("train", *data, "--output", folder, *SHORT)
    assert result.code == 0, result.err
    assert "1 empty" in result.err and "BLEU" in result.err
    return folder


# --- The commands one after the other ---


def test_own_pairs_go_from_a_table_to_a_score_and_a_translation(
    trained: Path, table: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    result = run("average", "--run", trained, "--last", 2, "--half", "--output", model)
    assert result.code == 0, result.err
    test = read_held_out(trained / "test.tsv")
    assert {p[:2] for p in test} < {p[:2] for p in grammar(400, seed=4)}
    evaluate = ["evaluate", "--model", model, "--beam", 2, "--json"]
    found = json.loads(run(*evaluate, "--data", trained / "test.tsv").out)
    again = run(*evaluate).out  # without files, those put aside
    assert json.loads(again) == found
    sources = "".join(f"{pair.source}\n" for pair in test).encode()
    translate = ["translate", "--model", model, "--beam", 2]
    lines = run(*translate, text=sources).out.splitlines()
    references = [[pair.target for pair in test]]
    assert found["sentences"] == len(lines) == len(test) > 10
    assert found["bleu"] == round(sacrebleu.corpus_bleu(lines, references).score, 2)
    assert found["chrf"] == round(sacrebleu.corpus_chrf(lines, references).score, 2)
    assert "tok:13a" in found["bleu_signature"] and "nc:6" in found["chrf_signature"]
    shown = run(*evaluate[:-1], "--limit", 3).out
    assert f"{'sentences':16}3\n" in shown and "tok:13a" in shown

    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    again = run("average", "--run", trained, "--last", 1, "--output", trained)
    assert again.code == 2 and "is there already" in again.err
    assert before == {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}


def test_two_processes_give_the_scores_of_one(trained: Path) -> None:
    evaluate = ["evaluate", "--model", trained, "--split", "validation", "--json"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    done = process(
        *torchrun, "-m", "annotated_transformer", *evaluate, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(run(*evaluate).out)


def test_a_large_corpus_goes_from_files_to_a_score(
    table: Path, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "prepared"
    prepare = ["prepare", table, "--columns", 1, 0, "--output", folder]
    assert run(*prepare, "--vocabulary-size", 400).code == 0
    train = ["train", "--prepared", folder, "--output", tmp_path / "run", *SHORT]
    result = run(*train, "--limit", 200)
    assert result.code == 0 and "200 pairs" in result.err, result.err
    evaluate = ["evaluate", "--model", tmp_path / "run", "--prepared", folder]
    for split in ("validation", "test"):
        found = json.loads(run(*evaluate, "--split", split, "--json").out)
        assert found["sentences"] == len(read_held_out(folder / f"{split}.tsv")) > 10
    other = run(*train[:3], "--output", tmp_path / "other", "--start", trained, *SHORT)
    assert other.code == 2 and "--tokenizer" in other.err


def test_wmt14_is_scored_on_both_of_its_test_sets(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number that can be compared with others, and for all sentences the paper's kind."""
    folder = tmp_path / "prepared"
    prepare = ["prepare", table, "--columns", 1, 0, "--output", folder]
    assert run(*prepare, "--vocabulary-size", 400).code == 0
    summary = json.loads((folder / "summary.json").read_text())
    summary["settings"]["data"] = ["wmt14-de-en"]
    (folder / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setitem(cli.corpus.WMT14, "wmt14-de-en", 400)
    full = [Pair(f"Ein Hund {n}.", f"A dog no-{n}.") for n in range(6)]

    def side(name: str, direction: str, number: int) -> str:
        assert direction == "de-en"
        pairs = full if name == "wmt14/full" else full[:4]
        path = tmp_path / f"{len(pairs)}.{number}"
        path.write_text("".join(f"{pair[number]}\n" for pair in pairs))
        return str(path)

    monkeypatch.setattr(sacrebleu, "get_source_file", lambda *x: side(*x, 0))
    monkeypatch.setattr(sacrebleu, "get_reference_files", lambda *x: [side(*x, 1)])
    result = run("evaluate", *CAPTIONS, "--prepared", folder, "--json")
    all_of_it, usual = map(json.loads, result.out.splitlines())
    assert (all_of_it["split"], all_of_it["sentences"]) == ("wmt14/full", 6)
    assert (usual["split"], usual["sentences"]) == ("wmt14", 4)
    assert "not_comparable" in all_of_it and "not_comparable" not in usual


# --- Training ---


def test_pairs_to_validate_and_test_with_are_not_learned_from(tmp_path: Path) -> None:
    pairs = grammar(300, seed=11)
    data = english_first(tmp_path / "english_first.tsv", pairs)
    texts = [tmp_path / "dev.de", tmp_path / "dev.en"]
    for path, side in zip(texts, zip(*(pair[:2] for pair in pairs[200:240]))):
        path.write_text("\n".join(side) + "\n", encoding="utf-8")
    test = english_first(tmp_path / "test.tsv", pairs[240:])
    command = ["train", "--data", data, "--columns", 1, 0, *SHORT, "--steps", 1]
    folder = tmp_path / "run"
    held_out = ["--validation", *texts, "--test", test]
    result = run(*command, *held_out, "--output", folder)
    assert result.code == 0, result.err
    put_aside = {side for pair in pairs[200:] for side in sides_of(pair)}
    to_learn = sum(put_aside.isdisjoint(sides_of(pair)) for pair in pairs)
    assert f"{300 - to_learn} pairs share a sentence" in result.err
    assert f"{to_learn} pairs to learn from, 40 for validation" in result.err
    plain = [Pair(*pair[:2]) for pair in pairs]
    assert read_held_out(folder / "validation.tsv") == plain[200:240]
    assert read_held_out(folder / "test.tsv") == plain[240:]


def test_a_score_on_the_grammar_is_on_pairs_that_no_seed_has_learned(
    tmp_path: Path,
) -> None:
    put_aside = []
    for seed in (0, 1):
        folder = tmp_path / f"run{seed}"
        train = ["train", "--corpus", "grammar", "--output", folder, *SHORT]
        result = run(*train, "--steps", 1, "--seed", seed)
        assert result.code == 0, result.err
        put_aside.append(read_held_out(folder / "test.tsv"))
    assert put_aside[0] == put_aside[1]
    evaluate = ["evaluate", "--model", folder, "--limit", 5, "--json"]
    assert run(*evaluate).out == run(*evaluate, "--corpus", "grammar").out != ""


def test_a_model_to_start_with_keeps_its_shape_vocabulary_and_weights(
    trained: Path, table: Path, tmp_path: Path
) -> None:
    command = ["train", "--data", table, "--columns", 1, 0, "--start", trained]
    command += ["--dropout", 0.3, "--peak-lr", 1e-9, *SHORT, "--steps", 1]
    result = run(*command, "--output", tmp_path / "run")
    assert result.code == 0, result.err
    (before, tokenizer), (after, own) = map(load_model, (trained, tmp_path / "run"))
    assert own.text == tokenizer.text and after.config.dropout == 0.3
    for name, weights in before.state_dict().items():
        torch.testing.assert_close(weights, after.state_dict()[name], rtol=0, atol=1e-6)


def test_a_preset_brings_its_settings_and_what_is_typed_wins(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TrainingConfig] = []
    estimate = cli.estimate

    def look_on(model: Any, config: TrainingConfig, *others: Any) -> Any:
        seen.append(config)
        return estimate(model, config, *others)

    monkeypatch.setattr(cli, "estimate", look_on)
    monkeypatch.chdir(tmp_path)
    plan = ["train", "--data", table, "--columns", 1, 0, "--output", "x", "--dry-run"]
    plan += ["--device", "cpu", "--peak", 1e15, "--gpus", 8]
    result = run(*plan, "--preset=big", "--steps", 77, "--vocabulary-size", 400)
    assert result.code == 0, result.err
    typed = {"steps": 77, "save_every": 600, "keep_checkpoints": 20}
    typed |= {"max_tokens": 25_000, "warmup": 4000, "peak_lr": None}
    assert seen == [TrainingConfig(**typed)]  # type: ignore[arg-type]
    assert "77 steps" in result.out and "GiB" in result.out
    run(*plan, "--preset", "base", "--label-smoothing", 0.2)
    run(*plan)
    assert seen[1].label_smoothing == 0.2 and seen[1].steps == 100_000
    assert seen[2] == TrainingConfig()
    assert not list(tmp_path.iterdir())  # nothing was written


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop_it_saves_its_state_and_the_same_command_goes_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    command = ["train", "--data", table, "--columns", 1, 0, *SHORT, "--limit", 99]
    command += ["--output", tmp_path / "run"]

    def stop(line: dict[str, Any]) -> None:
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(cli, "ProgressReport", lambda: stop)
        result = run(*command)
    assert result.code == code and "step 11" in result.err, result.err
    assert "Traceback" not in result.err
    assert trainer.last_checkpoint(tmp_path / "run") is not None
    assert run(*command).code == 0
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    assert [line["step"] for line in log] == [0, 10, 11, 11, 20]


# --- Translating ---


def test_lines_out_are_lines_in(tmp_path: Path) -> None:
    """Whatever white space is in them, whatever a terminal can show."""
    sentence = "Ein Hund läuft über die Wiese."
    lines = [sentence, "", "  \t", sentence, sentence.replace(" ", "\u2028"), "日本 😀"]
    lines += [sentence.replace(" ", space) for space in ("\f", "\x85", "\r", "\u00a0")]
    for end in ("\n", "\r\n"):
        for encoding in ("utf-8", "ascii"):
            text = end.join(lines).encode()
            result = run("translate", *CAPTIONS, text=text, encoding=encoding)
            assert result.code == 0, result.err
            written = result.out.removesuffix("\n").split("\n")
            assert len(written) == len(lines) and written[1] == written[2] == ""
            assert written[0] and {written[0]} == {*written[3:5], *written[6:]}
    assert run("translate", *CAPTIONS, text=b"") == (0, "", "")


def test_several_translations_have_number_and_score_and_the_best_comes_first(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "text.de", tmp_path / "text.en"
    source.write_text("Ein Hund läuft.\n\nEine Frau liest.\n", encoding="utf-8")
    command = ["translate", "--model", "captions-de-en", "--input", source]
    assert run(*command, "--output", target).code == 0
    best = target.read_text(encoding="utf-8").split("\n")
    rows = [row.split("\t") for row in run(*command, "--nbest", 3).out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "3", "3", "3"]
    assert [rows[0][2], rows[3][2]] == [best[0], best[2]]
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)

    target.write_text("mine")
    result = run(*command, "--output", target)
    assert result.code == 2 and target.read_text() == "mine"


def test_it_is_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would share the lines of a pipe between them as they come."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("translate", *CAPTIONS, text=b"Ja.\n")
    assert result.code == 2 and "torchrun" in result.err and not result.out


def test_a_reader_that_has_enough_is_no_error() -> None:
    """In an odd terminal, too."""
    reading, writing = os.pipe()
    os.close(reading)
    done = process(
        "annotated_transformer",
        "translate",
        *CAPTIONS,
        input="Ein Hund läuft.\n".encode(),
        stdout=writing,
        stderr=subprocess.PIPE,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (141, b"")


def test_references_are_composed_as_translations_are(tmp_path: Path) -> None:
    english = ["Good day.", "Where is the station?", "The old man is tired."]
    text = "".join(f"{line}\n" for line in english).encode()
    german = run("translate", "--model", "everyday-en-de", text=text).out
    apart = unicodedata.normalize("NFD", german)
    assert apart != german
    pairs = [Pair(*row) for row in zip(english, apart.splitlines())]
    write_pairs(tmp_path / "pairs.tsv", pairs)
    data = ["--data", tmp_path / "pairs.tsv", "--json"]
    found = json.loads(run("evaluate", "--model", "everyday-en-de", *data).out)
    assert found["bleu"] == found["chrf"] == 100


# --- A student's file ---


def test_the_code_and_the_lines_of_a_check(tmp_path: Path) -> None:
    shift = "def shift(target): return target[:, :-1], target[:, 1:]\n"
    mask = "def causal_mask(length): raise ValueError('a\\nb')\n"
    file = tmp_path / "anna.py"
    file.write_text(shift)
    result = run("check", file)
    assert result.code == 0 and f"{'shift':22}right\n" in result.out
    file.write_text(shift + mask)
    result = run("check", file, "--json")
    records = {line["part"]: line for line in map(json.loads, result.out.splitlines())}
    assert result.code == 3 and len(records) > 10
    assert records["shift"]["verdict"] == records["shift"]["says"] == "right"
    assert records["causal_mask"]["verdict"] == "wrong"
    assert "ValueError (a b)" in records["causal_mask"]["says"]
    assert records["attention"]["verdict"] == "missing"
    file.write_text("")
    assert run("check", file).code == 3
    assert run("check", tmp_path / "nobody.py").code == 2


# --- Errors ---


@pytest.mark.parametrize(
    "command, said",
    [
        ("translate --model nowhere", "everyday-de-en"),
        ("train --output x --data missing.tsv", "missing.tsv"),
        ("train --output x --data broken.tsv", "broken.tsv, row 2"),
        ("train --output x --data numbered.tsv", "--columns"),
        ("train --output x --data half.tsv.gz", "end-of-stream"),
        ("train --output x --prepared y --columns 1 0", "not for a --prepared"),
        ("train --output .", "broken.tsv"),
        ("train --output x --data x.tsv --steps 0", "steps"),
        ("train --output x --data x.tsv --corpus grammar", "only one of"),
        ("train --output x --data x.tsv y.tsv --columns 1 0", "no --columns"),
        ("evaluate --model captions-de-en", "--data"),
    ],
)
def test_a_mistake_is_named(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.tsv").write_text("Ja.\tYes.\nNein.\n")
    Path("half.tsv.gz").write_bytes(gzip.compress(b"Ja.\tYes.\n" * 99)[:-9])
    Path("numbered.tsv").write_text(
        "".join(f"{n}\tDas ist ein Satz.\n" for n in range(99))
    )
    before = {*tmp_path.iterdir()}
    result = run(*command.split())
    assert result.code == 2 and not result.out
    assert said in result.err and "Traceback" not in result.err
    assert {*tmp_path.iterdir()} == before


def fail_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_a_traceback_is_for_bugs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer, "translate_together", fail_with(KeyError("a bug")))
    with pytest.raises(KeyError):
        run("translate", *CAPTIONS)
    monkeypatch.setattr(trainer, "translate_together", fail_with(KeyboardInterrupt()))
    assert run("translate", *CAPTIONS) == (130, "", "")
    full = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(trainer, "translate_together", fail_with(full))
    result = run("translate", *CAPTIONS)
    assert result.code == 2 and "--max-tokens" in result.err


def test_help_is_there_in_any_terminal() -> None:
    names = "prepare train average translate evaluate export check"
    for name in names.split():
        result = run(name, "--help", encoding="ascii")
        assert result.code == 0 and "--help" in result.out
