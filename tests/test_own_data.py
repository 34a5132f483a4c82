"""What a reader brings along is read strictly, cleaned with a report, and split without a leak."""

import csv
import gzip
import hashlib
import io
import math
import random
import re
import unicodedata
import zipfile
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from annotated_transformer.data import Pair, words
from annotated_transformer.own_data import (
    Splits,
    cache_folder,
    check_faults,
    cleaning_report,
    each_pair,
    filter_pairs,
    read_pairs,
    split_pairs,
    tidied,
)
from annotated_transformer.synchronous_grammar import grammar

PAIRS = grammar(2000, seed=3)
IN_A_FOLDER = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# --- Reading ---

# Characters that some programs take for a line end, and others that are special somewhere
LINE = st.text(
    st.sampled_from("\x0b\x0c\x1c\x85\u2028\u00a0 \"',;a")
    | st.characters(exclude_characters="\n\r\t\ufeff\0", codec="utf-8"),
    max_size=8,
)
ROWS = st.lists(st.builds(Pair, LINE, LINE, st.none()), min_size=1, max_size=8)


def write(path: Path, text: str) -> Path:
    """Write a file, packed as its name says."""
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def with_empty_rows(rows: list[Pair]) -> list[Pair]:
    """What a table gives: a row of white space is empty."""
    return [row if (row.source + row.target).strip() else Pair("", "") for row in rows]


@IN_A_FOLDER
@given(
    ROWS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\ufeff"]),
    st.sampled_from(["", ".gz"]),
)
def test_what_was_written_is_read(
    tmp_path: Path, rows: list[Pair], end: str, mark: str, packed: str
) -> None:
    """From texts and a table; a line ends at a line feed only, and an empty one keeps its place."""
    texts = []
    for side in (0, 1):
        text = mark + "".join(row[side] + end for row in rows)
        texts.append(write(tmp_path / f"text.{side}{packed}", text))
    assert list(each_pair(*texts)) == rows
    assert read_pairs(*texts) == list(tidied(rows))
    lines = [f"{row.target}\t{row.source}\tsomeone{end}" for row in rows]
    table = write(tmp_path / f"pairs.tsv{packed}", mark + "".join(lines))
    assert list(each_pair(str(table), columns=(1, 0))) == rows
    lines = [f"{row.source}\t{row.target}" for row in rows]
    table = write(tmp_path / f"pairs.txt{packed}", end.join(lines))
    assert list(each_pair(table)) == with_empty_rows(rows)


@IN_A_FOLDER
@given(ROWS, st.sampled_from(",;\t"), st.booleans())
def test_a_csv_is_read_back(
    tmp_path: Path, rows: list[Pair], separator: str, breaks: bool
) -> None:
    """Its cells may hold separators, quotation marks and line ends."""
    rows = [*rows, *[Pair("Hund", "dog")] * 9]  # by which the separator shows
    if breaks:
        rows = [row._replace(source=f"two\n{row.source}") for row in rows]
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
    writer.writerows(row[:2] for row in rows)
    table = write(tmp_path / "pairs.CSV", file.getvalue())
    assert list(each_pair(table)) == with_empty_rows(rows)


def test_white_space_and_letters_are_those_of_a_text_to_translate(
    tmp_path: Path,
) -> None:
    text = "Der  Hund\u00a0la\u0308uft \tThe dog\u2028runs\n"
    (read,) = read_pairs(write(tmp_path / "pairs.tsv", text))
    assert read[:2] == ("Der Hund läuft", "The dog runs")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("number", [20, 200])
def test_the_separator_of_a_csv_shows(
    tmp_path: Path, separator: str, number: int
) -> None:
    """Though sentences hold commas, and the last of the first hundred lines is cut off."""
    rows = [
        Pair(f"Ja, {n}. „So“, gut.", f"Yes{n % 3 * ';'} fine") for n in range(number)
    ]
    rows.insert(97, Pair("one\ntwo\nthree\nfour", "1, 2, 3, 4"))
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator).writerows(row[:2] for row in rows)
    assert list(each_pair(write(tmp_path / "pairs.csv", file.getvalue()))) == rows


LATIN = "Hund\nVögel\n".encode("latin-1")
UTF_16 = "Dog\nBird\n".encode("utf-16-le")


@pytest.mark.parametrize(
    ("contents", "columns", "place"),
    [
        ([LATIN, b"dog\nbirds\n"], (0, 1), "0.txt, line 2"),
        ([b"\xff\xfe" + UTF_16, b"dog\nbirds\n"], (0, 1), "0.txt, line 1"),
        ([b"Hund\nVogel\n", UTF_16], (0, 1), "1.txt, line 1"),
        ([b"a\n", b"b\nb\n"], (0, 1), "0.txt ends before line 2"),
        ([b"a\tb\n", b"a\tb\n"], (0, 1), "1.txt: line 1 has a tab"),
        ([b"Hund\tdog\nKatze cat\n"], (0, 1), "0.txt, row 2.*Katze cat"),
        ([b"Hund\tdog\n"], (0, 5), "0.txt, row 1.*Hund.*dog"),
        ([b"Hund\tdog\nmit\tTab\twith tab\n"], (0, 1), "0.txt, row 2.*with tab"),
        ([b""], (0, 1), "0.txt"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_with_the_place(
    tmp_path: Path, contents: list[bytes], columns: tuple[int, int], place: str
) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(len(contents))]
    for path, content in zip(paths, contents):
        path.write_bytes(content)
    with pytest.raises(ValueError, match=place) as caught:
        read_pairs(*paths, columns=columns)
    assert "\n" not in str(caught.value)


def test_a_quotation_that_a_csv_leaves_open_swallows_nothing(tmp_path: Path) -> None:
    table = write(tmp_path / "pairs.csv", 'Hund,dog\n"Komm!,Come!\nJa.,Yes.\n')
    with pytest.raises(csv.Error):
        read_pairs(table)


# --- Cleaning ---


def test_each_pair_falls_to_the_first_rule_that_applies() -> None:
    good = Pair("Der Hund schläft.", "The dog sleeps.")
    pairs = [
        good,
        Pair("\t ", "Hello."),
        Pair("Wort " * 10_000, "word " * 10_000),
        Pair("Ja", "Yes I do"),
        Pair("Ja", "Yes I really do"),
        Pair("OK.", "OK."),
        Pair("Der  Hund\tschla\u0308ft. ", good.target),
    ]
    faults = ["empty", "too long", "lengths apart", "untranslated", "repeated"]
    clean, dropped = filter_pairs(pairs)
    assert (clean, dropped) == ([good, pairs[3]], dict.fromkeys(faults, 1))
    report = cleaning_report(len(clean), dropped)
    assert all(f"1 {fault}" in report for fault in faults)
    assert filter_pairs(PAIRS) == (PAIRS, {})


IN_A_GARDEN = "Yesterday my friend read a book in the garden."
ARABIC = "قَرَأَ صَدِيقِي كِتَابًا فِي الْحَدِيقَةِ أَمْسِ "


@pytest.mark.parametrize(
    "pair",
    [
        Pair("我的朋友昨天在花园里看了一本书。", IN_A_GARDEN),
        Pair("我喜欢鱼", "I like fish very much"),
        Pair("เมื่อวานเพื่อนของฉันอ่านหนังสือในสวน", IN_A_GARDEN),
        Pair("Haustürschlüssel", "the key to the front door"),
        Pair((ARABIC * 8).strip(), " ".join([IN_A_GARDEN] * 8)),
    ],
)
def test_any_language_may_be_learned_from(pair: Pair) -> None:
    """Without spaces, or with vowel signs that `words` takes for marks."""
    clean, dropped = filter_pairs([pair, Pair(pair.target, pair.source)])
    assert len(clean) == 2 and not dropped
    page = Pair(pair.source * 100, pair.target * 100)
    assert filter_pairs([page])[1] == {"too long": 1}


TEXT = st.text(st.sampled_from("ab \t\r\n.ßẞ\u00a0\u2028"), max_size=12) | st.text(
    max_size=8
)
SOME = st.lists(st.builds(Pair, TEXT, TEXT, st.none()), min_size=1, max_size=30)


@settings(deadline=None)
@given(SOME, st.integers(1, 6), st.floats(1, 4))
def test_cleaning_accounts_for_every_pair_and_is_done_once(
    pairs: list[Pair], max_words: int, ratio: float
) -> None:
    clean, dropped = filter_pairs(pairs, max_words, ratio)
    assert len(clean) + sum(dropped.values()) == len(pairs)
    assert filter_pairs(clean, max_words, ratio) == (clean, {})
    assert filter_pairs([pair[:2] for pair in pairs], max_words, ratio)[0] == clean
    assert len({pair[:2] for pair in clean}) == len(clean)
    for source, target, _ in clean:
        number = [
            max(min(len(words(text)), 2 * len(text.split())), len(text) // 10)
            for text in (source, target)
        ]
        assert 0 < min(number) <= max(number) <= max_words
        characters = [len(source), len(target)]
        in_bytes = [len(source.encode()), len(target.encode())]
        sizes = (number, characters, in_bytes)
        assert any(max(size) <= ratio * min(size) for size in sizes)
        assert source != target
        for text in (source, target):
            assert not re.search(r"\s\s|[\t\r\n]|^\s|\s$", text)
            assert unicodedata.is_normalized("NFC", text)


def test_many_faults_are_an_error_and_many_repetitions_are_none() -> None:
    first = Pair("17", "Der Hund schläft.")
    check_faults(first, 1000, {"empty": 500, "repeated": 400, "held out": 90})
    with pytest.raises(ValueError, match=r"501 of 1,000 .* '17' and 'Der Hund schläft"):
        check_faults(first, 1000, {"empty": 500, "untranslated": 1})


# --- Splitting ---

SHARE = st.floats(0, 0.49)


def same(text: str) -> str:
    """Only letters and digits count."""
    folded = unicodedata.normalize("NFC", text.casefold())
    return "".join(filter(str.isalnum, folded)) or folded.strip()


def assert_apart(splits: Splits) -> None:
    """No sentence of either language is in two splits."""
    for side in (0, 1):
        sentences = [{same(str(pair[side])) for pair in split} for split in splits]
        for first, second in combinations(sentences, 2):
            assert first.isdisjoint(second)


@settings(deadline=None, max_examples=300)
@given(SOME, SHARE, SHARE, st.integers(0, 5), st.randoms(use_true_random=False))
def test_no_sentence_of_either_language_is_in_two_splits(
    pairs: list[Pair], validation: float, test: float, seed: int, rng: random.Random
) -> None:
    """Nothing is lost, something is learned, and the order does not matter."""
    splits = split_pairs(pairs, validation, test, seed)
    assert_apart(splits)
    assert Counter(pair for split in splits for pair in split) == Counter(pairs)
    assert splits.train
    for split in splits:
        assert split == [pair for pair in pairs if pair in split]
    mixed = split_pairs(rng.sample(pairs, len(pairs)), validation, test, seed)
    for split, same_ones in zip(splits, mixed):
        assert Counter(split) == Counter(same_ones)


def test_a_corpus_is_split_as_it_always_was() -> None:
    """Scores on the cards of models depend on it."""
    splits = split_pairs(grammar(10_000, 0), 0.01, 0.01)
    content = repr([[tuple(pair[:2]) for pair in split] for split in splits])
    assert hashlib.sha256(content.encode()).hexdigest()[:12] == "6a97c0176403"


def test_shares_and_seeds() -> None:
    _, validation, test = split_pairs(PAIRS, 0.1, 0.2, seed=1)
    assert abs(len(validation) - 200) < 50 and abs(len(test) - 400) < 70
    assert split_pairs(PAIRS, 0.1, 0.2, seed=2).test != test
    assert split_pairs(PAIRS, 0.3, 0.2, seed=1).test == test
    assert split_pairs(PAIRS, 0, 0) == (PAIRS, [], [])
    for shares in ((0.5, 0.5), (-0.1, 0.1), (5, 5), (math.nan, 0.1)):
        with pytest.raises(ValueError, match="are to be shares"):
            split_pairs(PAIRS, *shares)


# Words that hang together by their many translations, beside sentences that don't
GLOSSARY = [Pair(f"Wort {n // 40}", f"word {n % 150}") for n in range(6000)]
GLOSSARY += [Pair(f"Satz {n}", f"sentence {n}") for n in range(900)]
COMMANDS = [Pair(f"Tu {n}!", f"Do {n % 36}!") for n in range(1440)]


@pytest.mark.parametrize("pairs", [GLOSSARY, COMMANDS, PAIRS[:10]])
def test_large_groups_leave_no_part_empty_or_huge(pairs: list[Pair]) -> None:
    share = min(0.1, max(0.01, 50 / len(pairs)))
    wanted = share * len(pairs)
    for seed in range(10):
        splits = split_pairs(pairs, share, share, seed)
        assert_apart(splits)
        for part in (splits.validation, splits.test):
            assert wanted / 3 < len(part) <= max(4, 4 * wanted)


def test_a_chain_of_translations_stays_together() -> None:
    """Tied by one source, then by one target, and so on: one group, found in little time."""
    chain = [Pair(f"s{n // 2}", f"t{(n + 1) // 2}") for n in range(40_000)]
    random.Random(0).shuffle(chain)
    assert split_pairs(chain, 0.2, 0.2) == (chain, [], [])


def test_sentences_of_two_languages_are_never_the_same() -> None:
    """`Gift` is poison in German: such pairs are not tied together."""
    pairs = [Pair(f"word {n}", f"word {n + 1}") for n in range(200)]
    assert min(map(len, split_pairs(pairs, 0.2, 0.2))) > 10


# --- Tatoeba, where it is ---


@pytest.mark.slow
def test_tatoeba_is_read_and_divided_as_it_is(tmp_path: Path) -> None:
    archive = cache_folder() / "tatoeba" / "deu-eng.zip"
    if not archive.is_file():
        pytest.skip(
            f"{archive} is not there (deu-eng.zip of manythings.org/anki, 2018)"
        )
    with zipfile.ZipFile(archive) as packed:
        path = Path(packed.extract("deu.txt", tmp_path))
    pairs = read_pairs(path, columns=(1, 0))
    assert len(pairs) == 169_813 and pairs[0] == Pair("Hallo!", "Hi.")
    clean, dropped = filter_pairs(pairs)
    assert len(clean) == len(pairs) and dropped == {}
    splits = split_pairs(clean, 0.01, 0.01)
    assert [len(split) for split in splits] == [166_312, 1773, 1728]
    assert_apart(splits)
