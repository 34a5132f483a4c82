"""A large corpus is what `encode_pairs` makes of the same text, however it is stored and however
often preparing it was interrupted; and a damaged or foreign folder is refused.
"""

import gzip
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

datasets = pytest.importorskip(
    "datasets", reason='pip install "annotated-transformer[wmt14]"'
)
pytest.importorskip("pyarrow")

from wmt14_hub import build, serve, write_parquet  # noqa: E402

from annotated_transformer.batching import batches, encode_pairs  # noqa: E402
from annotated_transformer.data import Pair  # noqa: E402
from annotated_transformer.tokenization import Tokenizer  # noqa: E402
from annotated_transformer.toolkit import large_corpora  # noqa: E402
from annotated_transformer.toolkit.large_corpora import open_corpus, prepare  # noqa: E402
from annotated_transformer.toolkit.synchronous_grammar import grammar  # noqa: E402

PAIRS = [Pair(english, german) for german, english, _ in grammar(700, seed=0)]
NEAR = next(
    p for p in PAIRS[1:10] if abs(len(p.source) - len(p.target)) < 4
)  # in length
ODD = {  # lines of a TSV, and what becomes of them
    "": "empty",
    "nothing else": "empty",
    "\t": "empty",
    " \u2028\tein Wort": "empty",
    "word " * 300 + "\t" + "Wort " * 300: "too long",
    "the cat sleeps well here now\tKatze": "lengths apart",
    "the same words here\tthe  same words here": "untranslated",
    f"{PAIRS[0].source[0].swapcase()}{PAIRS[0].source[1:]}\t{PAIRS[0].target}!": "held out",
    f"{PAIRS[10].source}?\t{PAIRS[10].target}": "held out",
    NEAR.source.replace(" ", "\u2028 \r\u0085") + f"\t\xa0{NEAR.target}\r": "train",
    "a dog says </s> and <pad>\tein Hund sagt </s> und <pad>": "train",
}


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No library cache outside of the test; and the environment that `datasets` replaces."""
    monkeypatch.setattr(os, "environ", os.environ)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TSV with odd lines in it, each at a place that is not held out."""
    lines = [f"{pair.source}\t{pair.target}" for pair in PAIRS]
    for number, line in enumerate(ODD):
        lines.insert(50 + 10 * number + number % 7 + 1, line)
    path = tmp_path_factory.mktemp("table") / "pairs.tsv"
    path.write_bytes("\n".join(lines).encode("utf-8-sig"))
    return path


@pytest.fixture(scope="module")
def prepared(table: Path) -> Path:
    """A folder that was prepared without any disturbance."""
    prepare([table], table.parent / "corpus", vocabulary_size=400)
    return table.parent / "corpus"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tidied(line: str) -> Pair:
    source, target = (line + "\t").split("\t")[:2]
    return Pair(" ".join(source.split()), " ".join(target.split()))


# --- What comes out ---


def test_it_is_what_encode_pairs_makes_of_the_rows_that_are_kept(
    table: Path, prepared: Path
) -> None:
    corpus, tokenizer, validation, test = open_corpus(prepared)
    lines = table.read_bytes().decode("utf-8-sig").split("\n")
    pairs = list(map(tidied, lines))
    parts: dict[str, list[Pair]] = {"validation": pairs[::20], "test": pairs[10::20]}
    held_out = {
        text.lower() for part in parts.values() for pair in part for text in pair[:2]
    }
    outcomes = []
    for number, pair in enumerate(pairs):
        shorter, longer = sorted(len(tokenizer.encode(text)) for text in pair[:2])
        if shorter == 0:
            outcomes.append("empty")
        elif longer > 250:
            outcomes.append("too long")
        elif longer > 1.5 * shorter:
            outcomes.append("lengths apart")
        elif pair.source == pair.target:
            outcomes.append("untranslated")
        elif number % 10 == 0:
            outcomes.append("test" if number % 20 else "validation")
        else:
            apart = {text.lower() for text in pair[:2]}.isdisjoint(held_out)
            outcomes.append("train" if apart else "held out")
    by_outcome = {
        name: [p for p, o in zip(pairs, outcomes) if o == name] for name in outcomes
    }
    assert (validation, test) == (by_outcome["validation"], by_outcome["test"])
    expected = encode_pairs(tokenizer, by_outcome["train"])
    assert (
        np.array_equal(corpus.tokens, expected.tokens)
        and corpus.tokens.dtype == np.uint16
    )
    assert np.array_equal(corpus.lengths, expected.lengths) and len(corpus) > 300
    summary = json.loads((prepared / "summary.json").read_bytes())
    counts = {name: outcomes.count(name) for name in large_corpora.OUTCOMES}
    assert summary["pairs"] == counts and min(counts.values()) > 0
    odd = dict(zip(lines, outcomes))
    assert {line: odd[line] for line in ODD} == ODD
    assert str(table.parent) not in json.dumps(summary)


def test_training_pairs_and_the_sample_for_the_vocabulary_hold_no_held_out_sentence(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learned: list[Pair] = []
    train = Tokenizer.train

    def remember(pairs: Iterator[Pair], size: int) -> Tokenizer:
        learned.extend(pairs)
        return train(learned, size)

    monkeypatch.setattr(Tokenizer, "train", remember)
    monkeypatch.setattr(large_corpora, "SAMPLE", 300)
    prepare([table], tmp_path / "out", vocabulary_size=300)
    corpus, tokenizer, validation, test = open_corpus(tmp_path / "out")
    held_out = {text.lower() for pair in validation + test for text in pair[:2]}
    seen = {tokenizer.decode(ids).lower() for example in corpus for ids in example}
    seen |= {text.lower() for pair in learned for text in pair[:2]}
    assert held_out and not held_out & seen and 100 < len(learned) <= 300


@pytest.mark.parametrize("most", [3, 7, 20])
def test_no_more_is_held_out_than_the_most(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    monkeypatch.setattr(large_corpora, "MOST_HELD_OUT", most)
    prepare([table], tmp_path / "out", vocabulary_size=300)
    assert 0 < max(map(len, open_corpus(tmp_path / "out")[2:])) <= most


def write_texts(folder: Path) -> list[Path]:
    paths = [folder / "pairs.en.gz", folder / "pairs.de"]
    paths[0].write_bytes(
        gzip.compress("".join(f"{p.source}\n" for p in PAIRS).encode())
    )
    paths[1].write_text("".join(f"{pair.target}\r\n" for pair in PAIRS), newline="")
    return paths


def write_table(folder: Path) -> list[Path]:
    path = folder / "pairs.tsv.gz"
    path.write_bytes(
        gzip.compress("".join(f"{p[1]}\tx\t{p[0]}\n" for p in PAIRS).encode())
    )
    return [path]


def write_lines(folder: Path) -> list[Path]:
    rows = [{"n": n, "de": pair[1], "en": pair[0]} for n, pair in enumerate(PAIRS)]
    path = folder / "pairs.jsonl.gz"
    path.write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    )
    return [path]


def write_files(folder: Path) -> list[Path]:
    paths = [folder / "a.parquet", folder / "b.parquet"]
    write_parquet(paths[0], PAIRS[:333])
    write_parquet(paths[1], PAIRS[333:])
    return paths


@pytest.mark.parametrize(
    ("write", "columns"),
    [
        (write_texts, ()),
        (write_table, ("2", "0")),
        (write_lines, ("en", "de")),
        (write_files, ("translation.en", "translation.de")),
    ],
)
def test_all_formats_give_the_same(
    write: Callable[[Path], list[Path]],
    columns: tuple[str, ...],
    prepared: Path,
    tmp_path: Path,
) -> None:
    tokenizer = prepared / "tokenizer.json"
    prepare(
        write(tmp_path),
        tmp_path / "out",
        columns=columns,
        tokenizer=tokenizer,
        max_ratio=9,
    )
    corpus, tokenizer, validation, test = open_corpus(tmp_path / "out")
    texts = {text.lower() for pair in PAIRS[::10] for text in pair[:2]}
    train = [p for p in PAIRS if not {p.source.lower(), p.target.lower()} & texts]
    expected = encode_pairs(tokenizer, train)
    assert np.array_equal(corpus.tokens, expected.tokens)
    assert (validation, test) == (PAIRS[::20], PAIRS[10::20])


def test_workers_and_batches_of_rows_change_nothing(
    table: Path, prepared: Path, tmp_path: Path
) -> None:
    prepare([table], tmp_path / "out", vocabulary_size=400, workers=2)
    assert contents(tmp_path / "out") == contents(prepared)
    assert [path.name for path in tmp_path.iterdir()] == [
        "out"
    ]  # nothing is left beside it


def test_examples_lie_in_a_mapped_file_and_make_batches(prepared: Path) -> None:
    corpus = open_corpus(prepared)[0]
    assert isinstance(corpus.tokens.base, np.memmap)
    assert not corpus.tokens.flags.writeable
    plan = list(batches(corpus, 500))
    tokens = sum(int((side != 0).sum()) for batch in plan for side in batch)
    assert tokens == len(corpus.tokens)
    assert sum(len(batch.source) for batch in plan) == len(corpus)


def test_a_large_vocabulary_takes_wider_numbers(
    monkeypatch: pytest.MonkeyPatch, table: Path, prepared: Path, tmp_path: Path
) -> None:
    """All words are made of bytes with numbers above 65,535."""
    monkeypatch.setattr(Tokenizer, "__len__", lambda self: 70_000)
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text: [65_540 + ord(c) for c in text]
    )
    options = {"tokenizer": prepared / "tokenizer.json", "limit": 40}
    prepare([table], tmp_path / "out", **options)
    corpus = open_corpus(tmp_path / "out")[0]
    assert corpus.tokens.dtype == np.uint32 and len(corpus) > 10
    assert "".join(chr(i - 65_540) for i in corpus[0].source[:-1]) == PAIRS[1].source


# --- Interruptions ---


def killed(function: Callable[[], Any]) -> None:
    """Run a function in a fork that ends with SIGKILL, which it must send to itself."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (large_corpora, "read_rows", 1),
        (Tokenizer, "train", 1),
        (Tokenizer, "encode", 900),
        (np, "save", 1),
        (json, "dumps", 2),
        (os, "fsync", 3),
        (shutil, "rmtree", 1),
    ],
)
def test_killed_at_any_moment_there_is_no_folder_and_the_next_run_gives_the_same(
    owner: Any, name: str, call: int, table: Path, prepared: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    function = getattr(owner, name)
    calls = iter(range(1, 10_000))

    def fatal(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    def attempt() -> None:
        setattr(owner, name, fatal)
        prepare([table], output, vocabulary_size=400)

    killed(attempt)
    if name != "rmtree":  # the cache goes when the folder has its name
        assert not output.exists()
    prepare([table], output, vocabulary_size=400)
    assert contents(output) == contents(prepared)


def test_what_was_encoded_before_a_failure_is_not_encoded_again(
    table: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr(np, "save", fails(OSError("no room")))
        prepare([table], tmp_path / "out", vocabulary_size=400)
    monkeypatch.setattr(
        large_corpora, "encode_rows", fails(AssertionError("encoded again"))
    )
    prepare([table], tmp_path / "out", vocabulary_size=400)
    assert contents(tmp_path / "out") == contents(prepared)


def fails(error: BaseException) -> Callable[..., Any]:
    def function(*arguments: Any, **options: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("size", [400, 500])
def test_two_processes_do_not_write_one_folder(
    size: int, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*arguments: Any) -> Any:
        return prepare([table], tmp_path / "out", vocabulary_size=size)

    monkeypatch.setattr(large_corpora, "read_rows", again)
    with pytest.raises(BlockingIOError, match="another process"):
        prepare([table], tmp_path / "out", vocabulary_size=400)


# --- A folder that is there ---


def test_a_prepared_folder_is_kept_and_anything_else_is_refused(
    prepared: Path,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = [tmp_path / "en", tmp_path / "de"]  # two files of one name
    sides = [[pair.source for pair in PAIRS], [pair.target for pair in PAIRS]]
    for folder, lines in zip(folders, sides):
        folder.mkdir()
        (folder / "train.txt").write_text("\n".join(lines) + "\n")
    files = [folder / "train.txt" for folder in folders]
    output = tmp_path / "out"
    summary = prepare(files, output, vocabulary_size=400)
    before = contents(output)
    monkeypatch.setattr(large_corpora, "read_rows", fails(AssertionError("read again")))
    assert prepare(files, output, vocabulary_size=400, workers=3) == summary
    assert "is prepared already" in capsys.readouterr().out
    changes: list[dict[str, Any]] = [
        {"vocabulary_size": 401},
        {"vocabulary_size": 400, "limit": 30},
        {"vocabulary_size": 400, "max_ratio": 2},
        {"tokenizer": prepared / "tokenizer.json"},
    ]
    for options in changes:
        with pytest.raises(FileExistsError, match="take another"):
            prepare(files, output, **options)
    stat = files[1].stat()
    shifted_by_one = sides[1][1:] + sides[1][:1]
    files[1].write_text("\n".join(shifted_by_one) + "\n")
    os.utime(files[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert files[1].stat().st_size == stat.st_size
    with pytest.raises(FileExistsError, match="take another"):
        prepare(files, output, vocabulary_size=400)
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_text("mine")
    with pytest.raises(FileExistsError, match="take another"):
        prepare(files, model, vocabulary_size=400)
    assert contents(output) == before and contents(model) == {
        "model.safetensors": b"mine"
    }


def test_a_summary_that_only_mentions_the_key_is_of_something_else(
    table: Path, prepared: Path, tmp_path: Path
) -> None:
    key = json.loads((prepared / "summary.json").read_bytes())["key"]
    for text in (f'{{"note": "{key}"}}', f'["{key}"]', key):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(FileExistsError, match="take another"):
            prepare([table], tmp_path, vocabulary_size=400)


def test_a_given_tokenizer_is_used_and_both_or_none_is_an_error(
    prepared: Path, table: Path, tmp_path: Path
) -> None:
    path = prepared / "tokenizer.json"
    summary = prepare([table], tmp_path / "out", tokenizer=path, limit=200)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == path.read_bytes()
    assert summary["tokenizer"] == Tokenizer.load(path).sha256
    assert sum(summary["pairs"].values()) == 200 == summary["settings"]["limit"]
    for options in (
        {},
        {"tokenizer": path, "vocabulary_size": 400},
        {"vocabulary_size": 100},
    ):
        with pytest.raises(ValueError, match="either a vocabulary_size"):
            prepare([table], tmp_path / "other", **options)
    for wrong in ({"limit": 0}, {"limit": -5}, {"max_ratio": math.nan}, {"workers": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            prepare([table], tmp_path / "other", tokenizer=path, **wrong)


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-2])

    return damage


def strange_word(folder: Path) -> None:
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[5] ^= 0x80
    (folder / "tokens.bin").write_bytes(content)


def archive(folder: Path) -> None:
    with (folder / "lengths.npy").open("wb") as file:
        np.savez(file, lengths=np.ones((3, 2), np.int32))


def retrain(folder: Path) -> None:
    Tokenizer.train(PAIRS[:50], 300).save(folder / "tokenizer.json")


def redirect(folder: Path) -> None:
    """Paths in a summary, which nothing follows, do not replace what it must say."""
    (folder / "summary.json").write_text(
        '{"tokens.bin": "/etc/passwd", "folder": "../.."}'
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut("tokens.bin"), "tokens.bin or lengths.npy was changed"),
        (strange_word, "tokens.bin or lengths.npy was changed"),
        (archive, "is damaged"),
        (cut("lengths.npy"), "is damaged"),
        (cut("summary.json"), "is damaged"),
        (cut("tokenizer.json"), "tokenizer"),
        (retrain, "tokenizer.json is not the one"),
        (redirect, "'tokenizer'"),
    ],
)
def test_a_damaged_folder_is_refused(
    damage: Callable[[Path], None], message: str, prepared: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "copy"))
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        open_corpus(folder)
    assert str(folder) in str(caught.value) and "prepare it again" in str(caught.value)


def test_what_is_no_prepared_folder_is_not_opened(
    prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"summary\.json"):
        open_corpus(tmp_path)
    folder = Path(shutil.copytree(prepared, tmp_path / "copy"))
    (folder / "tokens.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokens\.bin"):
        open_corpus(folder)


# --- Bad input ---


def test_bad_input_is_named(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_lines = tmp_path / "three.txt"
    two_lines = tmp_path / "two.txt"
    numbers = tmp_path / "numbers.jsonl"
    output = tmp_path / "out"
    three_lines.write_text("a\nb\nc\n")
    two_lines.write_text("a\nb\n")
    numbers.write_text('{"n": 1, "en": "a"}\n')
    (tmp_path / "lists.jsonl").write_text('{"de": ["a"], "en": "a"}\n')
    (tmp_path / "no.parquet").write_text("no Parquet")
    (tmp_path / "latin.tsv").write_bytes("one\teins\ntwo\tzwö\n".encode("latin-1"))
    wrong: dict[Any, str] = {
        (three_lines, two_lines): r"only \S*two\.txt ends before line 3",
        (numbers,): "n and en are not two columns of text",
        (tmp_path / "lists.jsonl",): "de and en are not two columns of text",
        (tmp_path / "no.parquet",): r"no\.parquet cannot be read \(.*: mend it",
        (three_lines,) * 3: r"three\.txt.*cannot be read .give one TSV, or two texts",
        (tmp_path / "latin.tsv",): r"latin\.tsv, line 2: .*UTF-8",
    }
    for files, message in wrong.items():
        with pytest.raises(ValueError, match=message) as caught:
            prepare(files, output, vocabulary_size=300)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ValueError, match=r"no pair is left to train on.*'untranslated': 2"
    ):
        copy = Path(shutil.copy(three_lines, two_lines))
        prepare([three_lines, copy], output, vocabulary_size=300, limit=2)
    with pytest.raises(ValueError, match=r"Current columns.*'n', 'en'"):
        prepare([numbers], output, columns=("en", "de"), vocabulary_size=300)
    with pytest.raises(ValueError, match="en and en are not two columns of text"):
        prepare([numbers], output, columns=("en", "en"), vocabulary_size=300)
    with pytest.raises(ValueError, match="give wmt14-en-de, wmt14-en-fr, or files"):
        prepare([], output, vocabulary_size=300)
    for data in ("wmt14-en-xx", ["wmt14-en-de", three_lines]):
        with pytest.raises(FileNotFoundError, match="wmt14-en"):
            prepare(data, output, vocabulary_size=300)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ImportError, match=r"pip install .annotated-transformer\[wmt14\]"
    ):
        prepare([table], output, vocabulary_size=300)
    assert not output.exists()


# --- WMT14 ---

SCRIPT = """
import json, sys, time
from pathlib import Path
time.sleep = lambda seconds: None  # between the library's attempts
from annotated_transformer.toolkit.downloads import MissingData
from annotated_transformer.toolkit.large_corpora import prepare
hub = Path(sys.argv[1])
try:
    (hub / "broken").touch()
    prepare("wmt14-en-de", "broken", vocabulary_size=400)
except MissingData as error:
    print(json.dumps(str(error)))
(hub / "broken").unlink()
print(json.dumps(prepare("wmt14-en-de", "corpus", vocabulary_size=400, max_ratio=9)))
"""


def test_wmt14_comes_from_the_hub_and_survives_a_broken_download(
    tmp_path: Path,
) -> None:
    validation, test, train = PAIRS[:40], PAIRS[40:90], PAIRS[90:]
    held_out = {text for pair in PAIRS[:90] for text in pair[:2]}
    train = [
        *train,
        validation[3],
        Pair("A new source.", test[0].target),
        Pair("", "leer"),
    ]
    test = [*test, Pair("word " * 300, "Wort " * 300)]
    build(tmp_path / "hub", train=train, validation=validation, test=test)
    with serve(tmp_path / "hub") as address:
        environment = {
            **os.environ,
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "home"),
        }
        environment |= {"PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "hub")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    message, summary = map(json.loads, done.stdout.splitlines())
    assert message.startswith("wmt14-en-de cannot be read (")
    assert "check the network" in message
    assert "\n" not in message and not (tmp_path / "broken").exists()
    corpus, tokenizer, *measured = open_corpus(tmp_path / "corpus")
    assert measured == [validation, test[:-1]]
    ordered = train[::2] + train[1::2]  # the data set has two files
    expected = [p for p in ordered if p.source and not held_out & {p.source, p.target}]
    assert np.array_equal(corpus.tokens, encode_pairs(tokenizer, expected).tokens)
    assert summary["pairs"]["too long"] == 1 == summary["pairs"]["empty"]
    assert summary["pairs"]["held out"] >= 2
    assert summary["settings"]["data"] == ["wmt14-en-de", large_corpora.REVISION]


# --- The benchmark ---


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS), encoding="utf-8"
    )
    command = [sys.executable, "-m", "benchmarks.speed.prepare", "--data", str(table)]
    options = ["--pairs", "900", "--open", "3000", "--results", str(tmp_path)]
    done = subprocess.run(
        [*command, *options],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "prepare.jsonl").read_text().splitlines()
    head, prepared, opened, whole = map(json.loads, lines)
    assert head["benchmark"] == "prepare" and str(tmp_path) not in "".join(lines)
    assert (
        sum(prepared["pairs"].values()) == 900
        and prepared["without_pages_of_files"] > 0
    )
    assert (
        opened["examples"] >= 3000
        and opened["examples_a_second"] > 0 < whole["minutes"]
    )
