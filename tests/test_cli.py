"""The command line: `main` is called here with arguments and standard input, as a shell does it.

Only a broken pipe, exit codes and what gets imported need processes of their own.
"""

import functools
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
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

from annotated_transformer.data import Pair
from annotated_transformer.evaluation import compound_split_bleu
from annotated_transformer.toolkit import cli, planning, run_folder
from annotated_transformer.toolkit.cli import Data, main, read_splits, recipe
from annotated_transformer.toolkit.model_io import load_model
from annotated_transformer.toolkit.own_data import split_pairs, utf8_lines
from annotated_transformer.toolkit.runs import TrainingConfig
from annotated_transformer.toolkit.synchronous_grammar import grammar

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
    assert "'empty': 1" in result.err and "step 30: loss" in result.err
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
        (["train", "--output", "x", "--steps", "0"], "steps must lie between 0 and"),
        (["train", "--output", "x", "--data", "a", "b", "c"], "--data"),
        (["train", "--output", "x", "--data", "missing.tsv"], "missing.tsv"),
        (["train", "--output", "x", "--prepared", "nowhere"], "nowhere"),
        (
            ["train", "--output", "x", "--prepared", "c", "--reverse"],
            "give only one of data",
        ),
        (
            ["evaluate", "--model", "m", "--prepared", "c", "--data", "d"],
            "give only one of data",
        ),
        (["train", "--output", "x", "--device", "gpu"], "there is no device 'gpu'"),
        (["train", "--output", "x", "--device", "meta"], "there is no device 'meta'"),
        (["train", "--output", "x", "--limit", "-5"], "limit must be above 0, not -5"),
        (["evaluate", "--model", "m", "--limit", "0"], "limit must be above 0, not 0"),
        (
            ["train", "--output", "x", "--columns", "0", "7", "--data", "t.tsv"],
            "t.tsv, line 1",
        ),
        (["average", "--run", "nowhere", "--output", "x"], "checkpoints in nowhere: 0"),
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
    assert not (tmp_path / "x").exists()


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
    assert read_splits(Data(data=files, columns=(1, 0)), seed=3) == turned
    undivided = cli.test_sets(Data(data=files), "test", seed=3)
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
    assert own.sha256 == tokenizer.sha256 and after.config == replace(
        before.config, dropout=0.3
    )
    for name, weights in before.state_dict().items():
        assert torch.allclose(weights, after.state_dict()[name], atol=1e-6), name
    continued = run(*train[:-6], "--steps", 6, *train[-4:], "--dropout", 0.3)
    assert continued.code == 0 and "step 6: loss" in continued.err, continued.err
    without = run(*train[:5], *train[7:], "--dropout", 0.3)  # a vocabulary of its own
    assert without.code == 2 and "take another folder" in without.err
    shutil.copytree(trained, tmp_path / "copy")
    other = run(
        *train[:6], tmp_path / "copy", *train[7:], "--dropout", 0.3
    )  # of another name
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
    never_put_aside = split_pairs(grammar(60, seed=6), 0.1, 0.1, seed=0).train
    pairs = table(tmp_path / "few.tsv", never_put_aside)
    result = run("train", "--data", pairs, "--output", tmp_path / "run", *FAST)
    assert result.code == 0, result.err
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


def test_told_to_stop_it_leaves_a_checkpoint_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = table(tmp_path / "pairs.tsv", grammar(60, seed=7))
    command = ["train", "--data", pairs, "--output", tmp_path / "run", *FAST]
    write_log = run_folder.write_log

    def write_and_stop(folder: Path, record: dict[str, Any]) -> None:
        write_log(folder, record)
        if record["step"] == 20 and "loss" in record:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_log", write_and_stop)
        result = run(*command)
    assert result.code == 143 and "the same command continues there" in result.err
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
    pairs = table(tmp_path / "other.tsv", grammar(300, seed=9))
    same = ["--data", trained.parent / "pairs.tsv.gz", "--columns", 1, 0]
    others = {"pairs": ["--data", pairs], "dropout": [*same, "--dropout", 0.2]}
    for name, options in others.items():
        assert run("train", *options, "--output", tmp_path / name, *FAST).code == 0
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
    (tmp_path / "killed").mkdir()  # in the first write of all
    (tmp_path / "killed" / "averaged.json.123.unfinished").write_text("{")
    assert (
        run(
            "average", "--run", trained, "--last", 1, "--output", tmp_path / "killed"
        ).code
        == 0
    )
    assert not [*(tmp_path / "killed").glob("*.unfinished")]


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
            made = cli.translate_together(_Cpu(), None, sentences, 1, 0.6)  # type: ignore[arg-type]
    assert made == [f"<{number} >" for number in range(count)]


class _Cpu:
    """What translate_together asks of a model: where it is."""

    class embedding:
        class weight:
            is_cuda = False


# --- Scoring ---


def test_scores_with_signatures(trained: Path) -> None:
    result = run("evaluate", "--model", trained, "--beam", 1, "--limit", 25, "--json")
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
        record = json.loads(
            run("evaluate", "--model", trained, "--limit", limit, "--json").out
        )
        assert record["sentences"] == count


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    assert result.code == 2 and "0 translations for 0 references" in result.err
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
        and "needs the vocabulary of captions-de-en: see --tokenizer" in result.err
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
    assert run(*export, page).code == 0
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


def test_a_translation_starts_without_what_it_does_not_need(trained: Path) -> None:
    code = (
        "import sys; from annotated_transformer.toolkit.cli import main; main(sys.argv[1:]); "
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
