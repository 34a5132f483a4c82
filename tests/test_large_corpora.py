"""A large corpus survives what happens to downloads, archives and disks; what comes out of the
shards is what `encode_pairs` makes of the same text; and a damaged shard is named.
"""

import gzip
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wmt_archives import as_bytes, build, catalog, serve, sha256

from annotated_transformer import shards
from annotated_transformer.batching import Example, batches, collate, encode_pairs, plan_batches, shapes_of
from annotated_transformer.data import MissingData, Pair
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.own_data import hash_share, read_pairs
from annotated_transformer.large_corpora import CATALOG, Corpus, Piece, EncodedCorpus, Source, fetch_piece, file_hash, load_catalog, prepare, read_manifest, text_files, tidy
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train
from annotated_transformer.transformer import Transformer, TransformerConfig

PAIRS = [Pair(english, german) for german, english, _ in grammar(700, seed=0)]
NEWS = "official/training-parallel-nc-v9.tgz"
MIRROR = "mirror/training-parallel-nc-v9.zip"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small shards, short pauses, and a cache of one's own."""
    monkeypatch.setattr(shards, "SHARD", 100)
    monkeypatch.setattr(shards, "CHUNK", 40)
    monkeypatch.setattr(shards, "PAUSE", 0.001)
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archives of a small WMT14, English to German."""
    folder = tmp_path_factory.mktemp("wmt")
    build(folder, PAIRS)
    return folder


@pytest.fixture(scope="module")
def prepared(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was prepared without any disturbance."""
    output = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch, serve(archives) as address:
        patch.setattr(shards, "SHARD", 100)
        patch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(output / "cache"))
        prepare(catalog(archives / "catalog-template.json", address), output)
    shutil.rmtree(output / "cache")
    return output


def copy_of(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place))


def contents(folder: Path) -> dict[str, bytes]:
    """All that was prepared, but for the notes on the way."""
    names = [path for path in folder.iterdir() if path.suffix in (".npy", ".tsv")]
    names.append(folder / "tokenizer.json")
    return {path.name: path.read_bytes() for path in names}


def go(archives: Path, output: Path, *, address: str = "", **options: Any) -> EncodedCorpus:
    """Prepare a corpus from a server and open it."""
    template = archives / "catalog-template.json"
    if address:
        prepare(catalog(template, address), output, **options)
    else:
        with serve(archives) as address:
            prepare(catalog(template, address), output, **options)
    return EncodedCorpus(output)


def slowly(pairs: Sequence[Sequence[Any]], tokenizer: Tokenizer) -> tuple[list[Pair], Counter[str]]:
    """The same rules, one pair and one rule at a time."""
    kept, counts = [], Counter[str]()
    for raw in pairs:
        try:
            one, other = (as_bytes(text).decode() for text in raw[:2])
        except UnicodeDecodeError:
            counts["not UTF-8"] += 1
            continue
        texts = [" ".join(shards.CONTROL.sub(" ", text).split()) for text in (one, other)]
        lengths = sorted(len(tokenizer.encode(text)) for text in texts)
        if not all(texts):
            counts["empty"] += 1
        elif lengths[1] > 250:
            counts["too long"] += 1
        elif lengths[1] > 1.5 * lengths[0] and lengths[1] - lengths[0] > 3:
            counts["lengths apart"] += 1
        else:
            kept.append(Pair(*texts))
    return kept, counts


# --- What comes out ---


def test_shards_are_encode_pairs_of_the_cleaned_text(prepared: Path) -> None:
    found = EncodedCorpus(prepared)
    kept, counts = slowly(PAIRS, found.tokenizer)
    expected = encode_pairs(found.tokenizer, kept)
    assert len(found) == len(expected) > 600
    assert list(found) == expected
    assert found[-1] == expected[-1] and found[3:9:2] == expected[3:9:2]
    with pytest.raises(IndexError):
        found[len(found)]
    assert torch.equal(found.shapes, shapes_of(expected).int())
    dropped = Counter[str]()
    for piece in found.manifest.pieces.values():
        assert piece["pairs"] == sum(piece[name] for name in ("kept", *shards.RULES))
        dropped.update({rule: piece[rule] for rule in shards.RULES if piece[rule]})
    assert dropped == counts


def test_the_manifest_tells_what_is_there(prepared: Path, archives: Path) -> None:
    manifest = read_manifest(prepared)
    assert manifest.corpus == "wmt14-en-de" and manifest.pairs == len(EncodedCorpus(prepared))
    assert len(manifest.shards) == 9  # three pieces of 234, 234 and 232 pairs
    for name, known in manifest.files.items():
        assert known == {
            "bytes": (prepared / name).stat().st_size,
            "hash": sha256(prepared / name),
        }
    assert manifest.sources["News Commentary v9"] == {
        "training-parallel-nc-v9.tgz": sha256(archives / NEWS)
    }
    assert set(manifest.files) == set(contents(prepared))


def test_sentences_to_measure_with(prepared: Path) -> None:
    assert read_pairs(prepared / "validation.tsv") == PAIRS[:20]
    assert read_pairs(prepared / "test.tsv") == PAIRS[20:60]
    assert read_pairs(prepared / "test-filtered.tsv") == PAIRS[20:60:2]


def test_entities_of_the_test_set(tmp_path: Path) -> None:
    test = [Pair('Bread & "butter" <now>', "Brot\t& „Butter“"), Pair("a < b", "a\n<  b")]
    build(tmp_path, PAIRS, test=test)
    go(tmp_path, tmp_path / "out", limit=200)
    first, second = read_pairs(tmp_path / "out" / "test.tsv")
    assert first == Pair('Bread & "butter" <now>', "Brot & „Butter“")
    assert second == Pair("a < b", "a < b")


def test_english_french_with_gz_inside_of_tar(tmp_path: Path) -> None:
    corpus = CATALOG["wmt14-en-fr"]
    build(tmp_path, PAIRS, corpus)
    found = go(tmp_path, tmp_path / "out", vocabulary_size=350)
    assert len(found.tokenizer) == 350
    kept, _ = slowly(PAIRS, found.tokenizer)
    assert list(found) == encode_pairs(found.tokenizer, kept)
    assert list(found.manifest.pieces) == [piece.name for piece in corpus.pieces["train"]]


def test_it_can_be_trained_on(prepared: Path) -> None:
    """Plan, batches and trained weights are those of a list of the same examples."""
    found = EncodedCorpus(prepared)
    listed = list(found)
    assert plan_batches(found.shapes, 300, 0, 0) == plan_batches(shapes_of(listed), 300, 0, 0)
    for one, other in zip(batches(found, 300, 0, 1), batches(listed, 300, 0, 1)):
        assert torch.equal(one.source, other.source) and torch.equal(one.target, other.target)
    assert torch.equal(collate(found[:5]).target, collate(listed[:5]).target)
    weights = []
    for examples in (found, listed):
        torch.manual_seed(0)
        shape = TransformerConfig(len(found.tokenizer), layers=1, d_model=16, d_ff=32, heads=2)
        model = Transformer(shape)
        train(model, found.tokenizer, examples, TrainingConfig(steps=8, max_tokens=300))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)


def test_many_entries_take_four_bytes(prepared: Path) -> None:
    class Large:
        sha256 = "x"

        def __len__(self) -> int:
            return 70_000

    chunk = shards.Chunk(np.array([69_999, 2, 1, 4, 2], np.uint32), np.array([[2, 3]], np.uint32))
    job = shards.Job(prepared, Large(), shards.HeldOut())  # type: ignore[arg-type]
    shard = shards.Shard("large", "p", 0, 1)
    shards.write_shard(shard, job, [chunk], Counter())
    tokens, lengths = (np.load(prepared / name) for name in shard.files)
    assert tokens.dtype == np.uint32 and tokens.tolist() == [69_999, 2, 1, 4, 2]
    assert lengths.dtype == np.uint16 and lengths.tolist() == [[2, 3]]
    for path in prepared.glob("large*"):
        path.unlink()


# --- Cleaning ---


ODD: list[tuple[str | bytes, str | bytes]] = [
    ("the dog sees the cat", b"der Hund \xff sieht die Katze"),
    (b"\xc3", "abgeschnitten"),
    ("", "etwas"),
    ("something", " \t "),
    ("", ""),
    ("carriage return\r", "Wagen\rrücklauf\r"),
    ("tab\tand\x00null", "ein\u2028Trenner \x85 und\x1c noch einer"),
    ("\ufeffbyte order mark", "Bytefolgemarke"),
    ("no-break\u00a0space", "kein Umbruch"),
    ("Hi.", "Guten Tag."),
    ("&amp; stays", "&amp; bleibt"),
    ("a " * 10_000, "a " * 10_000),
    ("one", "eins zwei drei vier fünf sechs sieben acht"),
    ("I", "Ich bin"),
]


def test_odd_lines(tmp_path: Path) -> None:
    pairs = [*PAIRS[:100], *ODD, *PAIRS[100:]]
    build(tmp_path, pairs, validation=PAIRS[:5], test=PAIRS[5:9])
    found = go(tmp_path, tmp_path / "out")
    kept, counts = slowly(pairs, found.tokenizer)
    assert counts["not UTF-8"] == 2 and counts["empty"] == 3 and counts["too long"] == 1
    assert counts["lengths apart"] >= 1
    assert list(found) == encode_pairs(found.tokenizer, kept)
    texts = {found.tokenizer.decode(example.target) for example in found}
    assert {"Wagen rücklauf", "ein Trenner und noch einer", "&amp; bleibt"} <= texts
    read = sum(piece["pairs"] for piece in found.manifest.pieces.values())
    assert read == len(pairs)


@given(st.text())
def test_tidy_text_is_one_clean_line(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    found = tidy(raw)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        assert found is None
        return
    assert found is not None
    assert len(found.splitlines()) <= 1 and "\t" not in found
    assert found == " ".join(found.split()) == tidy(found.encode())
    kept = [c for c in text if not c.isspace() and not shards.CONTROL.match(c)]
    assert [c for c in found if c != " "] == kept


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=8))
def test_a_chunk_is_encode_pairs(prepared: Path, texts: list[tuple[str, str]]) -> None:
    tokenizer = Tokenizer.load(prepared / "tokenizer.json")
    pairs = [Pair(*map(str.strip, text)) for text in texts]
    pairs = [pair for pair in pairs if pair.source and pair.target]
    counts = Counter[str]()
    tokens, lengths = shards.encode_chunk(pairs, tokenizer, counts)
    kept = [
        example
        for example in encode_pairs(tokenizer, pairs)
        if not any(
            fault[0]
            for fault in shards.faults_of_lengths(
                np.array([[len(example.source) - 1, len(example.target) - 2]])
            ).values()
        )
    ]
    assert tokens.tolist() == [index for example in kept for side in example for index in side]
    assert lengths.tolist() == [[len(one), len(other)] for one, other in kept]
    assert sum(counts.values()) == len(pairs) - len(kept)


# --- Downloads ---


def fetch(
    archives: Path, folder: Path, faults: dict[str, list[str]], ranges: bool = True
) -> tuple[Path, list[tuple[str, str | None]]]:
    log: list[tuple[str, str | None]] = []
    with serve(archives, faults, ranges, log) as address:
        corpus = load_catalog(catalog(archives / "catalog-template.json", address))
        path, seen = fetch_piece(corpus.pieces["train"][0], folder)
    assert seen == sha256(path)
    assert not list(folder.glob("*.part"))
    return path, log


def test_a_dropped_connection_is_continued(archives: Path, tmp_path: Path) -> None:
    path, log = fetch(archives, tmp_path, {NEWS: ["half", "half", "busy"]})
    assert sha256(path) == sha256(archives / NEWS)
    size = path.stat().st_size
    half, quarter = size // 2, (size - size // 2) // 2
    starts = [None, half, half + quarter, half + quarter]
    assert log == [(NEWS, start and f"bytes={start}-") for start in starts]


def test_a_server_without_ranges(archives: Path, tmp_path: Path) -> None:
    path, log = fetch(archives, tmp_path, {NEWS: ["half"]}, ranges=False)
    assert sha256(path) == sha256(archives / NEWS)
    assert len(log) == 2


def test_what_another_process_had_begun(archives: Path, tmp_path: Path) -> None:
    whole = (archives / NEWS).read_bytes()
    part = tmp_path / (Path(NEWS).name + ".part")
    part.write_bytes(whole[:100])
    path, log = fetch(archives, tmp_path, {})
    assert path.read_bytes() == whole and log == [(NEWS, "bytes=100-")]


@pytest.mark.parametrize("length", [0, 1, 50])
def test_a_begun_file_of_other_content_is_fetched_anew(
    archives: Path, tmp_path: Path, length: int
) -> None:
    """Even one that is as long as the whole, or longer: the server then says 416."""
    whole = (archives / NEWS).read_bytes()
    part = tmp_path / (Path(NEWS).name + ".part")
    part.write_bytes(bytes(len(whole) + length - 1))
    path, log = fetch(archives, tmp_path, {})
    assert path.read_bytes() == whole and log[-1] == (NEWS, None) and len(log) == 2


@pytest.mark.parametrize("fault", ["altered", "missing"])
def test_the_mirror_helps_out(archives: Path, tmp_path: Path, fault: str) -> None:
    path, log = fetch(archives, tmp_path, {NEWS: [fault]})
    assert path.name == Path(MIRROR).name and log == [(NEWS, None), (MIRROR, None)]
    _, log = fetch(archives, tmp_path, {})
    assert not log  # and is not asked again


def test_a_server_that_is_busy_for_long(archives: Path, tmp_path: Path) -> None:
    path, log = fetch(archives, tmp_path, {NEWS: ["busy"] * 99})
    assert path.name == Path(MIRROR).name
    assert len(log) == shards.TRIES + 1


def test_nobody_has_it(archives: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        fetch(archives, tmp_path, {NEWS: ["altered"], MIRROR: ["missing"]})
    for part in ("News Commentary v9", Path(NEWS).name, Path(MIRROR).name, str(tmp_path), "404"):
        assert part in str(caught.value)
    assert "cut short or altered" in str(caught.value)
    assert not list(tmp_path.glob("*.tgz"))


def test_a_file_put_there_by_hand(archives: Path, tmp_path: Path) -> None:
    shutil.copy(archives / NEWS, tmp_path)
    tmp_path.chmod(0o555)
    try:
        path, log = fetch(archives, tmp_path, {})
    finally:
        tmp_path.chmod(0o755)
    assert path == tmp_path / Path(NEWS).name and not log
    path.write_bytes(path.read_bytes()[:-1])  # a copy that was cut short is replaced
    path, log = fetch(archives, tmp_path, {})
    assert log and sha256(path) == sha256(archives / NEWS)


def test_md5_and_no_hash_at_all(archives: Path, tmp_path: Path) -> None:
    path = archives / NEWS
    md5 = f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
    for number, (known, seen) in enumerate([(md5, md5), (None, sha256(path))]):
        piece = Piece("news", ("a", "b"), (Source(path.as_uri(), known),))
        assert fetch_piece(piece, tmp_path / str(number))[1] == seen
    assert file_hash(path, "md5") == md5


def test_a_begun_file_without_a_hash_is_not_trusted(archives: Path, tmp_path: Path) -> None:
    (tmp_path / f"{Path(NEWS).name}.part").write_bytes(b"of another version")
    log: list[tuple[str, str | None]] = []
    with serve(archives, {NEWS: ["half"]}, log=log) as address:
        piece = Piece("news", ("a", "b"), (Source(f"{address}/{NEWS}"),))
        path, seen = fetch_piece(piece, tmp_path)
    assert seen == sha256(path) == sha256(archives / NEWS)
    assert [asked is None for _, asked in log] == [True, False]


def test_two_processes_fetch_one_file(archives: Path, tmp_path: Path) -> None:
    """The second waits, and finds what the first has fetched."""
    script = """
import sys
from pathlib import Path
from annotated_transformer.large_corpora import fetch_piece, load_catalog
corpus = load_catalog(sys.argv[1])
print(fetch_piece(corpus.pieces["train"][0], Path(sys.argv[2]))[1])
"""
    log: list[tuple[str, str | None]] = []
    with serve(archives, {NEWS: ["half", "half"]}, log=log) as address:
        path = catalog(archives / "catalog-template.json", address)
        command = [sys.executable, "-c", script, str(path), str(tmp_path / "both")]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        outputs = [process.communicate(timeout=120)[0] for process in running]
    assert outputs == [f"{sha256(archives / NEWS)}\n"] * 2
    assert len(log) == 3


def test_the_same_shards_from_the_mirror(archives: Path, prepared: Path, tmp_path: Path) -> None:
    names = [path.name for path in (archives / "official").iterdir() if "parallel" in path.name]
    with serve(archives, {f"official/{name}": ["missing"] for name in names}) as address:
        found = go(archives, tmp_path / "out", address=address)
    assert contents(tmp_path / "out") == contents(prepared)
    assert all(
        name.endswith(".zip")
        for piece in found.manifest.pieces
        for name in found.manifest.sources[piece]
    )


# --- Archives ---


def alone(path: Path, members: tuple[str, str] = ("a", "b")) -> Corpus:
    """A corpus of one archive without a known hash."""
    piece = Piece("mine", members, (Source(path.as_uri()),))
    return Corpus("mine", "mine", {"train": (piece,)}, 300)


def tar_of(path: Path, **members: bytes) -> Path:
    for name, content in members.items():
        path.with_name(name).write_bytes(content)
    with tarfile.open(path, "w:gz") as tar:
        for name in members:
            tar.add(path.with_name(name), name)
    return path


LINES = [
    b"".join(as_bytes(text) + b"\n" for text in side)
    for side in zip(*(pair[:2] for pair in PAIRS[:300]))
]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_named(tmp_path: Path, share: float) -> None:
    path = tar_of(tmp_path / "mine.tgz", a=LINES[0], b=LINES[1])
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"mine\.tgz cannot be unpacked .* remove it and run"):
        prepare(alone(path), tmp_path / "out")


def test_a_truncated_zip_is_named(archives: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.zip"
    path.write_bytes((archives / MIRROR).read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"mine\.zip cannot be unpacked"):
        prepare(alone(path), tmp_path / "out")


@pytest.mark.parametrize("place", [NEWS, MIRROR])
def test_a_missing_member_is_named(archives: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(ValueError, match=r"nc-v9\.\w+ has no member nothing/here: it is another"):
        prepare(alone(archives / place, ("nothing/here", "b")), tmp_path / "out")


@pytest.mark.parametrize("place", ["train", "test"])
def test_unequal_lines_are_counted(tmp_path: Path, place: str) -> None:
    path = tar_of(tmp_path / "mine.tgz", a=LINES[0], b=LINES[1], c=LINES[1] + b"one more")
    corpus = alone(path, ("a", "c" if place == "train" else "b"))
    if place == "test":
        test = Piece("wrong", ("c", "a"), (Source(path.as_uri()),))
        corpus = replace(corpus, pieces={**corpus.pieces, "test": (test,)})
    numbers = {"train": "a has 300 lines and c has 301", "test": "c has 301 lines and a has 300"}
    with pytest.raises(ValueError, match=numbers[place]):
        prepare(corpus, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.npy"))


# --- Catalogs ---


def test_the_catalog_is_wmt14() -> None:
    german, french = CATALOG["wmt14-en-de"], CATALOG["wmt14-en-fr"]
    assert [len(c.pieces["train"]) for c in (german, french)] == [3, 5]
    assert (german.vocabulary_size, french.vocabulary_size) == (37_000, 32_000)
    for corpus in (german, french):
        for split, pieces in corpus.pieces.items():
            for piece in pieces:
                assert piece.members[0].count("en") and piece.sources
                assert split != "train" or piece.sources[1].hash is not None
    assert german.pieces["test"][0].members == (
        "test-full/newstest2014-deen-src.en.sgm",
        "test-full/newstest2014-deen-ref.de.sgm",
    )
    assert french.pieces["train"][-1].sources[0].file == "training-giga-fren.tar"


def test_a_catalog_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(LINES[0])
    (tmp_path / "b.gz").write_bytes(gzip.compress(LINES[1]))
    path = tmp_path / "mine.json"
    pieces = {"train": [{"name": "mine", "members": ["a", "b.gz"]}]}
    path.write_text(json.dumps({"name": "mine", "vocabulary_size": 300, "pieces": pieces}))
    manifest = prepare(path, tmp_path / "out")
    assert manifest.pieces["mine"]["pairs"] == 300


GOOD: dict[str, Any] = {"name": "mine", "pieces": {"train": [{"name": "p", "members": ["a", "b"]}]}}
WRONG: list[tuple[Any, str]] = [
    ([], "is not a catalog"),
    ({**GOOD, "pieces": {}}, "no pieces to learn from"),
    ({"name": "x"}, "'pieces' is missing"),
    ({**GOOD, "speed": 3}, "speed"),
    ({**GOOD, "pieces": {**GOOD["pieces"], "dev": []}}, "there are train, validation"),
    ({**GOOD, "pieces": {"train": [{"name": "p", "members": ["a"]}]}}, "must have two members"),
    ({**GOOD, "pieces": {"train": GOOD["pieces"]["train"] * 2}}, "the same name"),
]
SOURCES: list[tuple[dict[str, Any], str]] = [
    ({"address": "no"}, "not the address of a file"),
    ({"address": "http://host/"}, "not the address of a file"),
    ({"address": "http://host/x.tgz", "hash": "sha256:12"}, "not a hash"),
]
WRONG += [
    ({"name": "m", "pieces": {"train": [{"name": "p", "members": ["a", "b"], "sources": [s]}]}}, m)
    for s, m in SOURCES
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_a_wrong_catalog_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as caught:
        prepare(path, tmp_path / "out")
    assert "catalog.json" in str(caught.value)


def test_an_unknown_corpus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no corpus wmt15: take wmt14-en-de or wmt14-en-fr"):
        prepare("wmt15", tmp_path / "out")


# --- Two text files of one's own ---


def own_files(folder: Path) -> Corpus:
    """Two files, with some sentences more than once."""
    pairs = random.Random(0).choices(PAIRS, k=1500)
    for side, name in enumerate(("text.en", "text.de")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return replace(text_files(folder / "text.en", folder / "text.de"), vocabulary_size=350)


def test_validation_and_test_are_split_off(tmp_path: Path) -> None:
    prepare(own_files(tmp_path), tmp_path / "out")
    found = EncodedCorpus(tmp_path / "out")
    learned = {found.tokenizer.decode(example.source) for example in found}
    held = {
        name: {pair.source for pair in read_pairs(tmp_path / "out" / f"{name}.tsv")}
        for name in ("validation", "test")
    }
    assert all(held.values()) and not held["validation"] & held["test"]
    assert not learned & (held["validation"] | held["test"])
    assert all(hash_share(source, 0) < 0.01 for source in held["test"])
    assert found.manifest.pieces["text.en"]["held out"] == sum(
        len(read_pairs(tmp_path / "out" / f"{name}.tsv")) for name in held
    )


def test_a_file_that_changed_in_between(tmp_path: Path) -> None:
    corpus = own_files(tmp_path)
    prepare(corpus, tmp_path / "out")
    (tmp_path / "out" / "train-0000.tokens.npy").unlink()
    with (tmp_path / "text.en").open("a") as file:
        file.write("more\n")
    with pytest.raises(ValueError, match=r"text\.en has changed since .* take another folder"):
        prepare(corpus, tmp_path / "out")


def test_a_missing_file(tmp_path: Path) -> None:
    corpus = own_files(tmp_path)
    (tmp_path / "text.de").unlink()
    with pytest.raises(FileNotFoundError, match=r"text\.de is not a file"):
        prepare(corpus, tmp_path / "out")


# --- Stopped and started again ---

SCRIPT = """
import sys
from annotated_transformer import shards
shards.SHARD, shards.CHUNK = 100, 40
save = shards.save_array
def save_array(path, array):
    save(path, array)
    print(path.name, flush=True)
shards.save_array = save_array
{more}
print("ready", flush=True)
shards.prepare(sys.argv[1], sys.argv[2])
"""


def start(archives: Path, output: Path, address: str, more: str = "") -> subprocess.Popen[str]:
    path = catalog(archives / "catalog-template.json", address)
    command = [sys.executable, "-c", SCRIPT.format(more=more), str(path), str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while (read := process.stdout.readline()) not in (line, ""):
        pass
    assert read == line


def test_killed_at_any_moment(archives: Path, prepared: Path, tmp_path: Path) -> None:
    """kill -9 after a few files, and at moments nobody chose; then the same bytes."""
    output = tmp_path / "out"
    with serve(archives) as address:
        for name, pause in (("0000.tokens", 0.0), ("0001.lengths", 0.002), ("0004.tokens", 0.004)):
            process = start(archives, output, address)
            read_until(process, f"train-{name}.npy\n")
            time.sleep(pause)
            process.kill()
            process.communicate()
            assert not (output / "manifest.json").exists()
            with pytest.raises(FileNotFoundError, match="is not prepared"):
                EncodedCorpus(output)
        stood = {path: path.stat().st_mtime_ns for path in output.glob("train-0000*")}
        go(archives, output, address=address)
    assert contents(output) == contents(prepared)
    assert stood == {path: path.stat().st_mtime_ns for path in output.glob("train-0000*")}
    assert not list(output.glob("*.part"))


def test_terminated(archives: Path, prepared: Path, tmp_path: Path) -> None:
    for kind in (signal.SIGTERM, signal.SIGINT):
        with serve(archives) as address:
            process = start(archives, tmp_path / "out", address)
            read_until(process, "train-0002.lengths.npy\n")
            process.send_signal(kind)
            process.communicate()
            assert process.returncode != 0
            (tmp_path / "out" / "train-0002.tokens.npy").unlink()
    go(archives, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(prepared)


def test_a_second_call_does_nothing(archives: Path, prepared: Path, tmp_path: Path) -> None:
    output = copy_of(prepared, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in output.glob("train*")}
    log: list[tuple[str, str | None]] = []
    lines: list[str] = []
    with serve(archives, log=log) as address:
        go(archives, output, address=address, report=lines.append)
    assert not log and len(lines) == 1 and "is prepared" in lines[0]
    assert before == {path: path.stat().st_mtime_ns for path in output.glob("train*")}


def test_two_at_once(archives: Path, tmp_path: Path) -> None:
    with serve(archives) as address:
        process = start(archives, tmp_path / "out", address, "import time\ntime.sleep(0)")
        read_until(process, "train-0000.tokens.npy\n")
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(BlockingIOError, match="another preparation is at work in"):
                go(archives, tmp_path / "out", address=address)
        finally:
            process.kill()
            process.communicate()
        go(archives, tmp_path / "out", address=address)  # free again


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
"""


@pytest.mark.parametrize("what", ["a download", "a shard", "a table"])
def test_a_full_disk(archives: Path, prepared: Path, tmp_path: Path, what: str) -> None:
    """No file may grow to what is needed: one sentence, and later it goes on."""
    size = {
        "a download": (archives / NEWS).stat().st_size,
        "a shard": (prepared / "train-0000.tokens.npy").stat().st_size,
        "a table": (prepared / "test.tsv").stat().st_size,
    }[what]
    output = tmp_path / "out"
    with serve(archives) as address:
        if what != "a download":
            go(archives, tmp_path / "fetched", address=address)
        if what == "a shard":  # the vocabulary is larger than a shard
            output.mkdir()
            shutil.copy(prepared / "tokenizer.json", output)
            shutil.copy(tmp_path / "fetched" / "pieces.json", output)
        process = start(archives, output, address, LIMITED.format(size=size // 2))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "NoRoom: " in (last := errors.strip().splitlines()[-1])
        name = {"a download": ".tgz.part", "a shard": "tokens.npy", "a table": ".tsv"}[what]
        assert f"{name} could not be written" in last
        assert "make room, then run the same command again" in last
        go(archives, output, address=address)
    assert contents(output) == contents(prepared)


# --- Settings ---


def test_other_settings_are_refused(archives: Path, prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"begun with limit=None, not 50: repeat its settings"):
        go(archives, prepared, limit=50)
    with pytest.raises(ValueError, match=r"vocabulary_size=400, not 300"):
        go(archives, prepared, vocabulary_size=300)
    with pytest.raises(ValueError, match="not both"):
        go(archives, prepared, vocabulary_size=300, tokenizer=prepared / "tokenizer.json")
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        go(archives, tmp_path / "out", limit=0)


def test_a_limit_fetches_only_what_it_needs(archives: Path, tmp_path: Path) -> None:
    log: list[tuple[str, str | None]] = []
    with serve(archives, log=log) as address:
        found = go(archives, tmp_path / "out", address=address, limit=150)
    assert [piece["pairs"] for piece in found.manifest.pieces.values()] == [150]
    assert not any("europarl" in path for path, _ in log)
    with serve(archives, log=log) as address:
        found = go(archives, tmp_path / "more", address=address, limit=300)
    assert [piece["pairs"] for piece in found.manifest.pieces.values()] == [234, 66]


def test_a_given_tokenizer(archives: Path, prepared: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(grammar(100, seed=5), 290)
    tokenizer.save(tmp_path / "given.json")
    found = go(archives, tmp_path / "out", tokenizer=tmp_path / "given.json")
    assert found.tokenizer.sha256 == tokenizer.sha256 == found.manifest.tokenizer
    kept, _ = slowly(PAIRS, tokenizer)
    assert list(found) == encode_pairs(tokenizer, kept)


def test_the_vocabulary_sees_all_pieces_evenly(prepared: Path) -> None:
    stocks = [
        shards.Stock(Piece(name, ("a", "b")), None, {}, pairs)
        for name, pairs in (("x", 10), ("y", 5), ("z", 20))
    ]

    class Fake(shards.Stock):
        def lines(self) -> Any:
            name = self.piece.name.encode()
            return iter([(b"%s%d" % (name, i), name) for i in range(self.pairs)])

    found = list(shards.take_evenly([Fake(*s) for s in stocks], 7, shards.HeldOut()))
    assert [pair.source for pair in found] == ["x0", "x5", "y0", "z0", "z5", "z10", "z15"]


# --- Damaged shards ---


@pytest.mark.parametrize("name", ["train-0003.tokens.npy", "train-0000.lengths.npy"])
def test_a_damaged_shard_is_named_and_mended(
    archives: Path, prepared: Path, tmp_path: Path, name: str
) -> None:
    output = copy_of(prepared, tmp_path / "out")
    whole = (output / name).read_bytes()
    for damaged, message in (
        (whole[:-2], "has .* bytes, not"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "was altered"),
        (None, "is missing"),
    ):
        (output / name).unlink() if damaged is None else (output / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{name} {message}.*: run prepare again"):
            EncodedCorpus(output)
    go(archives, output)
    assert contents(output) == contents(prepared)


def test_trusting_the_files(prepared: Path, tmp_path: Path) -> None:
    """Without the check of hashes, sizes are still compared."""
    output = copy_of(prepared, tmp_path / "out")
    path = output / "train-0003.tokens.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert len(EncodedCorpus(output, check=False)) == len(EncodedCorpus(prepared))
    path.write_bytes(whole[:-2])
    with pytest.raises(ValueError, match="run prepare again"):
        EncodedCorpus(output, check=False)


def test_another_tokenizer(prepared: Path, tmp_path: Path) -> None:
    output = copy_of(prepared, tmp_path / "out")
    Tokenizer.train(grammar(300, seed=9), 400).save(output / "tokenizer.json")
    with pytest.raises(ValueError, match="made with another tokenizer"):
        EncodedCorpus(output)


def test_a_tokenizer_exchanged_on_the_way(archives: Path, prepared: Path, tmp_path: Path) -> None:
    """EncodedCorpus of two vocabularies never stand side by side."""
    output = copy_of(prepared, tmp_path / "out")
    (output / "manifest.json").unlink()
    tokenizer = Tokenizer.train(grammar(300, seed=9), 400)
    tokenizer.save(output / "tokenizer.json")
    found = go(archives, output)
    kept, _ = slowly(PAIRS, tokenizer)
    assert list(found) == encode_pairs(tokenizer, kept)


def test_names_of_what_is_read(prepared: Path, tmp_path: Path, archives: Path) -> None:
    """The hash is that of the content: the same from the mirror, another for other pairs."""
    assert EncodedCorpus(prepared).sha256 == EncodedCorpus(copy_of(prepared, tmp_path / "copy")).sha256
    assert go(archives, tmp_path / "out", limit=500).sha256 != EncodedCorpus(prepared).sha256


def test_an_example_is_lists_of_numbers(prepared: Path) -> None:
    example = EncodedCorpus(prepared)[0]
    assert isinstance(example, Example)
    assert all(type(index) is int for side in example for index in side)


# --- The benchmark ---

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_benchmark_runs(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{one}\t{other}\n" for one, other, _ in PAIRS), encoding="utf-8")
    command = [sys.executable, str(BENCHMARKS / "prepare.py"), "--data", str(table)]
    options = ["--pairs", "900", "--open", "3000", "--results", str(tmp_path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "prepare.jsonl").read_text().splitlines()
    head, prepared, opened = map(json.loads, lines)
    assert head["benchmark"] == "prepare" and "pairs.tsv" in head["command"]
    assert str(tmp_path) not in "".join(lines)
    assert 890 < prepared["pairs"] <= 900 and prepared["peak_megabytes"] > 0
    assert opened["pairs"] >= 3000 and opened["batches"] > 0


def test_the_chapter_quotes_the_log() -> None:
    """The chapter reads its tables from the committed log; the numbers in its text stand there."""
    lines = (BENCHMARKS / "results" / "prepare.jsonl").read_text().splitlines()
    settings, large, *_ = records = list(map(json.loads, lines))
    opened = [record for record in records if record.get("what") == "open and plan"][-1]
    chapter = (BENCHMARKS.parent / "notebooks" / "D_large_corpora.py").read_text(encoding="utf-8")
    assert f"# {settings['command']}\n" in chapter
    rate = large["pairs_per_cpu_second_encode"]
    assert f"At {rate:,} pairs a second" in chapter
    seconds = large["pairs"] / rate
    shown = f"{rate:,}".replace(",", "{,}")
    assert f"$4{{,}}500{{,}}000 / {shown} = {seconds:.0f}$ seconds" in chapter
    assert f"took {large['stages']['fetch and count']['cpu_seconds']:.0f} seconds" in chapter
    apart = {100 * each["lengths apart"] / each["pairs"] for each in large["pieces"].values()}
    assert f"{min(apart):.1f} percent of the first piece and {max(apart):.1f} of" in chapter
    assert opened["megabytes_opened"] - opened["megabytes_of_imports"] < 55
    assert large["peak_megabytes"] == 700 > opened["peak_megabytes"]
    assert 0.15 < 1000 / opened["batches"] < 0.25  # a thousand batches: a fifth of an epoch
