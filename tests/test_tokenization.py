"""What goes into the tokenizer comes out again, and a file is what its hash says."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from annotated_transformer.data import Pair
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.masks import UNK
from annotated_transformer.tokenization import Tokenizer, learn_bpe, pieces

PAIRS = grammar(300, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=600)

# --- The law: decoding undoes encoding ---


@settings(deadline=None)
@given(st.text())
def test_round_trip_of_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(UNK < index < len(TOKENIZER) for index in ids)


CONTROL = [chr(code) for code in (*range(32), *range(127, 160))]
SCRIPTS = list("aÄßжλ語かहعא🇩🇪👩‍👧\u0301\u200f\u2028\ufeff\uffff\U0010ffff \u00a0")


@settings(deadline=None)
@given(st.lists(st.sampled_from(CONTROL + SCRIPTS)))
def test_round_trip_of_control_characters_and_mixed_scripts(parts: list[str]) -> None:
    text = "".join(parts)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("character", CONTROL)
def test_round_trip_of_a_lone_control_character(character: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(character)) == character


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["<pad>", "<s>", "</s>", "<unk>", " ", "a", "Ġ", "\n", "🇩🇪", "e\u0301"])
    )
)
def test_round_trip_of_what_looks_reserved(parts: list[str]) -> None:
    text = "".join(parts)
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(index > UNK for index in ids)


@pytest.mark.parametrize("text", ["\ud83d", "abc\udfff", "\udcc3\udca4"])
def test_half_a_surrogate_pair_is_refused_with_its_place(text: str) -> None:
    place = next(i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    message = rf"character {place} of a text, .*surrogate.*read the text as UTF-8"
    with pytest.raises(ValueError, match=message) as caught:
        TOKENIZER.encode(text)
    assert str(caught.value).isascii()
    for texts in ([text], [Pair("Hallo", text)]):
        with pytest.raises(ValueError, match=message):
            Tokenizer.train(texts, 300)


def test_reserved_ids_are_left_out() -> None:
    ids = TOKENIZER.encode("Der Hund schläft.")
    assert TOKENIZER.decode([1, *ids, 2, 0, 0, 3]) == "Der Hund schläft."


def test_half_a_character_is_no_error() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("😀")[:2]) == "\ufffd"


def test_a_long_line_is_only_long() -> None:
    for line in ("Wörter " * 10_000, "x" * 10_000):
        assert TOKENIZER.decode(TOKENIZER.encode(line)) == line


# --- Training ---


def test_texts_and_pairs_give_the_same_vocabulary() -> None:
    texts = [text for pair in PAIRS for text in (pair.source, pair.target)]
    same = Tokenizer.train(texts, vocabulary_size=600)
    assert same.library.get_vocab() == TOKENIZER.library.get_vocab()


def test_training_is_deterministic() -> None:
    again = Tokenizer.train(PAIRS, vocabulary_size=600)
    assert again.to_json() == TOKENIZER.to_json()


@pytest.mark.parametrize("size", [0, 4, 259])
def test_too_small_a_vocabulary(size: int) -> None:
    with pytest.raises(ValueError, match=f"at least 260.*{size}"):
        Tokenizer.train(["text"], size)


def test_without_any_text_there_are_the_bytes() -> None:
    tokenizer = Tokenizer.train([], 300)
    assert len(tokenizer) == 260 and tokenizer.decode(tokenizer.encode("Hallo")) == "Hallo"


# --- The algorithm by hand and the library ---


def library_merges(words: dict[str, int], count: int) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    size = len({letter for word in words for letter in word}) + count
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    library.train_from_iterator((f"{word} " * times for word, times in words.items()), trainer)
    return library


@settings(deadline=None)
@given(
    st.dictionaries(st.text("abcd", min_size=1, max_size=8), st.integers(1, 9), min_size=1),
    st.text("abcd", min_size=1, max_size=12),
)
def test_by_hand_equals_the_library(words: dict[str, int], new: str) -> None:
    """Equal counts and repeated letters abound in words of four letters."""
    library = library_merges(words, 8)
    expected = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
    merges = learn_bpe(words, 8)[: len(expected)]
    assert merges == expected
    known = "".join(letter for letter in new if any(letter in word for word in words))
    if known:
        assert list(pieces(known, merges)) == library.encode(known).tokens


@settings(deadline=None)
@given(
    st.dictionaries(st.text("abc", max_size=6), st.integers(1, 9), max_size=6),
    st.text("abcd", max_size=12),
)
def test_pieces_are_the_word_again(words: dict[str, int], new: str) -> None:
    merges = learn_bpe(words, 20)
    assert "".join(pieces(new, merges)) == new
    cuts = [len(pieces(new, merges[:count])) for count in range(len(merges) + 1)]
    assert cuts == sorted(cuts, reverse=True)


def test_the_order_of_words_does_not_matter() -> None:
    words = {word: 1 + len(word) % 3 for pair in PAIRS for word in pair.source.split()}
    shuffled = list(words.items())
    random.Random(0).shuffle(shuffled)
    assert learn_bpe(dict(shuffled), 30) == learn_bpe(words, 30)


# --- The file and its hash ---


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.sha256 == TOKENIZER.sha256 and len(loaded) == len(TOKENIZER)
    for text in [*(pair.source for pair in PAIRS[:50]), "</s>", "日本語"]:
        assert loaded.encode(text) == TOKENIZER.encode(text)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2  # nothing is left beside them


def test_the_hash_names_the_tokenizer() -> None:
    other = Tokenizer.train(PAIRS, vocabulary_size=599)
    assert len(TOKENIZER.sha256) == 64 and TOKENIZER.sha256 != other.sha256
    assert json.loads(TOKENIZER.to_json())["sha256"] == TOKENIZER.sha256


def test_layout_does_not_matter(tmp_path: Path) -> None:
    """The file of the library, and one with line breaks, name the same tokenizer."""
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZER.library.to_str(pretty=True), encoding="utf-8")
    assert Tokenizer.load(path).sha256 == TOKENIZER.sha256
    path.write_text(json.dumps(json.loads(TOKENIZER.to_json()), indent=3))
    assert Tokenizer.load(path).sha256 == TOKENIZER.sha256


def test_an_edited_file_is_refused(tmp_path: Path) -> None:
    """Each edit leaves a file that the library would read without a word."""
    path = tmp_path / "tokenizer.json"
    for edit in ("merge", "entry", "rule", "hash"):
        content = json.loads(TOKENIZER.to_json())
        if edit == "merge":
            content["model"]["merges"].pop()
        elif edit == "entry":
            vocab = content["model"]["vocab"]
            vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
        elif edit == "rule":
            content["pre_tokenizer"]["add_prefix_space"] = True
        else:
            content["sha256"] = "0" * 64
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ValueError, match=r"tokenizer\.json was altered: .*get the file again"):
            Tokenizer.load(path)


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.99, 0.9999])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "tokenizer.json"
    raw = TOKENIZER.to_json().encode()
    path.write_bytes(raw[: int(len(raw) * keep)])
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(path)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_flipped_bit_is_found_out(tmp_path_factory: pytest.TempPathFactory, data) -> None:  # type: ignore[no-untyped-def]
    raw = bytearray(TOKENIZER.to_json().encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flipped") / "tokenizer.json"
    path.write_bytes(raw)
    try:
        assert Tokenizer.load(path).sha256 != TOKENIZER.sha256
    except ValueError as error:
        assert "tokenizer.json" in str(error)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x80\x04K\x01.", b'{"model": 3}', b"3"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_tokenizer_without_the_reserved_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Library(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(path))
    with pytest.raises(ValueError, match="<pad> <s> </s> <unk>"):
        Tokenizer.load(path)
