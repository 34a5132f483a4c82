"""The benchmarks have two rooms, one style of command line, and a page that lists them all."""

import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import tyro
from benchmark_runs import load

from benchmarks import common
from tools.chapters import ROOT

ROOMS = ("experiments", "speed")
COMMANDS = {
    f"{room}.{path.stem}"
    for room in ROOMS
    for path in (ROOT / "benchmarks" / room).glob("*.py")
    if path.stem not in ("__init__", "levers")
}
README = (ROOT / "benchmarks" / "README.md").read_text("utf-8")


def documented() -> list[str]:
    """What the book, its chapters, the benchmarks and their own page tell to run."""
    pages = [
        *ROOT.glob("notebooks/*.py"),
        *ROOT.glob("book/*.md"),
        *ROOT.glob("benchmarks/**/*.py"),
        ROOT / "benchmarks" / "README.md",
    ]
    form = re.compile(r"python -m benchmarks\.(\w+\.\w+[^`#\n\"]*)")
    commands = set[str]()
    for page in pages:
        for command in form.findall(page.read_text("utf-8")):
            if "{" not in command and "--help" not in command:
                commands.add(command.strip())
    return sorted(commands)


@pytest.mark.parametrize("command", documented())
def test_documented_commands_are_understood(command: str) -> None:
    name, *options = shlex.split(command)
    if name == "speed.serving":
        pytest.importorskip("ctranslate2")
    main = load(name).main
    calls = []

    def note(*arguments: Any, **named: Any) -> None:
        calls.append((arguments, named))

    if name == "speed.prepare" and "--data" not in options:
        options += ["--data", "pairs.tsv"]
    if name == "experiments.start" and not options:
        options = ["pairs.tsv"]
    tyro.cli(functools.wraps(main)(note), args=options)
    assert len(calls) == 1


def test_the_page_lists_every_command() -> None:
    tables = README.partition("## The parts of")[0]
    listed = set(re.findall(r"^\| `(\w+)`", tables, flags=re.MULTILINE))
    assert listed == {command.split(".")[1] for command in COMMANDS}


def test_the_page_names_logs_that_are_there() -> None:
    for name in re.findall(r"\[`([\w.-]+\.jsonl)`\]", README):
        assert (common.RESULTS / name).exists(), name


def test_no_file_has_the_name_of_a_module() -> None:
    modules = {path.stem for path in (ROOT / "annotated_transformer").rglob("*.py")}
    files = {path.stem for path in (ROOT / "benchmarks").rglob("*.py")}
    assert files & modules == {"__init__"}


def test_systems_take_turns() -> None:
    order: list[str] = []

    def system(name: str, number: int) -> int:
        order.append(name)
        return number + 1

    systems = {name: functools.partial(system, name) for name in "ABC"}
    turns = common.take_turns(systems, rounds=3)
    assert "".join(order) == "ABCBCACABABC"
    assert [turn["round"] for turn in turns] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [turn["tokens"] for turn in turns if turn["system"] == "A"] == [2, 3, 4]


def test_a_ratio_is_taken_round_by_round() -> None:
    """The median of the ratios, not the ratio of the medians."""
    seconds = {"ours": [1, 2, 4], "theirs": [3, 4, 4]}
    turns = [
        {"system": system, "tokens": 12, "seconds": took}
        for system, all_took in seconds.items()
        for took in all_took
    ]
    assert common.rates(turns, "ours") == [12, 6, 3]
    assert common.median_ratio(turns, "ours", "theirs") == 2


def test_a_log_of_other_settings_is_refused(tmp_path: Path) -> None:
    """A run that the log has is not made again."""
    path = tmp_path / "log.jsonl"
    runs: list[int] = []

    def measure(number: int) -> dict[str, int]:
        runs.append(number)
        return {"square": number**2}

    tasks = [{"number": 2}, {"number": 3}]
    common.make_runs(path, {"steps": 1}, tasks[:1], measure)
    common.make_runs(path, {"steps": 1}, tasks, measure)
    assert runs == [2, 3]
    with pytest.raises(ValueError, match="another steps: move it"):
        common.make_runs(path, {"steps": 2}, tasks, measure)
