"""What goes into the tokenizer comes out again; copies are the same, and other kinds are refused.

(Chapter 14 itself compares byte-pair encoding by hand with the library's on random corpora.)
"""

import copy
import io
import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models

from annotated_transformer.data import Pair
from annotated_transformer.masks import UNK
from annotated_transformer.tokenization import SPECIAL, Tokenizer
from annotated_transformer.toolkit.model_io import (
    load_pretrained,
    load_tokenizer,
    tokenizer_hash,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar

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
LETTERS = list("aÄßжλ語かहعא🇩🇪👩‍👧\u0301\u200f\u2028\ufeff\uffff\U0010ffff \u00a0")


@settings(deadline=None)
@given(st.lists(st.sampled_from(CONTROL + LETTERS)))
def test_round_trip_of_control_characters_and_mixed_scripts(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("character", CONTROL)
def test_round_trip_of_a_lone_control_character(character: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(character)) == character


RESERVED = ["<pad>", "<s>", "</s>", "<unk>"]
BESIDE = [" ", "a", "Ġ", "\n", "🇩🇪", "e\u0301"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(RESERVED + BESIDE)))
def test_round_trip_of_what_looks_reserved(pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(index > UNK for index in ids)


@pytest.mark.parametrize(
    ("text", "position"), [("\ud83d", 0), ("abc\udfff", 3), ("\udcc3\udca4", 0)]
)
def test_half_a_surrogate_pair_is_refused_with_its_place(
    text: str, position: int
) -> None:
    message = rf"position {position}\b|position {position}-.*surrogates not allowed"
    with pytest.raises(ValueError, match=message) as caught:
        TOKENIZER.encode(text)
    assert str(caught.value).isascii()
    with pytest.raises(ValueError, match=message):
        Tokenizer.train([text], 300)
    with pytest.raises(ValueError, match=message):
        Tokenizer.train([Pair("Hallo", text)], 300)


def test_special_ids_are_left_out() -> None:
    ids = TOKENIZER.encode("Der Hund schläft.")
    assert TOKENIZER.decode([1, *ids, 2, 0, 0, 3]) == "Der Hund schläft."


def test_half_a_character_is_no_error() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("😀")[:2]) == "\ufffd"


def test_a_long_line_is_only_long() -> None:
    for line in ("Wörter " * 10_000, "x" * 10_000):
        assert TOKENIZER.decode(TOKENIZER.encode(line)) == line


# --- Training ---


def test_texts_and_pairs_give_the_same_vocabulary() -> None:
    texts = []
    for pair in PAIRS:
        texts += [pair.source, pair.target]
    from_texts = Tokenizer.train(texts, vocabulary_size=600)
    assert from_texts.library.get_vocab() == TOKENIZER.library.get_vocab()


def test_training_is_deterministic() -> None:
    twin = Tokenizer.train(PAIRS, vocabulary_size=600)
    assert twin.text == TOKENIZER.text


@pytest.mark.parametrize("size", [0, 4, 259, 10**12])
def test_a_vocabulary_that_cannot_be(size: int) -> None:
    with pytest.raises(ValueError, match=f"vocabulary_size={size}: take 260 \\(bytes"):
        Tokenizer.train(["text"], size)


@pytest.mark.parametrize("single", ["abc", Pair("Hallo", "Hello")])
def test_one_text_is_no_list_of_texts(single: Any) -> None:
    with pytest.raises(ValueError, match="single text or pair: put it into a list"):
        Tokenizer.train(single, 300)


def test_plain_tuples_count_as_pairs_and_what_is_no_pair_is_named() -> None:
    tuples: list[Any] = [pair[:2] for pair in PAIRS]
    assert Tokenizer.train(tuples, vocabulary_size=600).text == TOKENIZER.text
    for wrong in ({"source": "Ja.", "target": "Yes."}, ("Ja.",), ("Ja.", None), 3):
        with pytest.raises(ValueError, match="is no pair: give two texts"):
            Tokenizer.train([*tuples, wrong], 600)


def test_without_any_text_there_are_the_bytes() -> None:
    tokenizer = Tokenizer.train([], 300)
    assert len(tokenizer) == 260
    assert tokenizer.decode(tokenizer.encode("Hallo")) == "Hallo"


# --- Copies (the library's own copy reads "</s>" in a text as the end) ---

TYPED = "Ein Mann </s> und <pad> eine Frau.<s>"


def check_twin(twin: Tokenizer) -> None:
    assert twin.encode(TYPED) == TOKENIZER.encode(TYPED)
    assert twin.text == TOKENIZER.text


def test_the_library_forgets_and_we_do_not() -> None:
    forgetful = copy.deepcopy(TOKENIZER.library)
    assert min(forgetful.encode(TYPED).ids) <= UNK
    assert min(TOKENIZER.encode(TYPED)) > UNK


def through_pickle(tokenizer: Tokenizer) -> Tokenizer:
    return pickle.loads(pickle.dumps(tokenizer))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, through_pickle])
def test_a_copy_reads_text_as_text(duplicate: Any) -> None:
    check_twin(duplicate(TOKENIZER))


def test_a_saved_object_reads_text_as_text() -> None:
    file = io.BytesIO()
    torch.save({"tokenizer": TOKENIZER}, file)
    file.seek(0)
    check_twin(torch.load(file, weights_only=False)["tokenizer"])


def encode_elsewhere(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(TYPED)


def test_a_worker_process_reads_text_as_text() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(encode_elsewhere, [TOKENIZER]) == TOKENIZER.encode(TYPED)


# --- The file and its hash ---


def test_write_and_load(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(TOKENIZER.text.encode())
    texts = [pair.source for pair in PAIRS[:50]] + [TYPED, "日本語"]
    for loaded in (load_tokenizer(path), Tokenizer(TOKENIZER.text)):
        check_twin(loaded)
        assert len(loaded) == len(TOKENIZER)
        assert loaded.text == TOKENIZER.text
        for text in texts:
            assert loaded.encode(text) == TOKENIZER.encode(text)


def test_the_hash_names_the_tokenizer() -> None:
    smaller = Tokenizer.train(PAIRS, vocabulary_size=599)
    name = tokenizer_hash(TOKENIZER)
    assert len(name) == 64
    assert name != tokenizer_hash(smaller)


def test_the_file_of_the_library_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.library.save(str(path), pretty=True)
    assert load_tokenizer(path).encode(TYPED) == TOKENIZER.encode(TYPED)


def test_the_pretrained_tokenizer_loses_nothing() -> None:
    _, tokenizer = load_pretrained("captions-de-en")
    for index, name in SPECIAL.items():
        assert tokenizer.library.id_to_token(index) == name
    text = TYPED + "日本語\x00"
    assert tokenizer.decode(tokenizer.encode(text)) == text


# --- Files of other tokenizers: each edit of a file's content makes one ---

Content = dict[str, Any]


def ids_with_holes(content: Content) -> None:
    content["model"]["vocab"]["Hund"] = 9999


def two_entries_with_one_id(content: Content) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["a"] = vocabulary["b"]


def an_entry_that_no_merge_makes(content: Content) -> None:
    content["model"]["vocab"]["qq"] = 600


def a_merge_without_its_entry(content: Content) -> None:
    content["model"]["merges"].append(["q", "x"])


def a_merge_is_lost(content: Content) -> None:
    content["model"]["merges"].pop()


def a_letter_as_padding(content: Content) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["<pad>"], vocabulary["a"] = vocabulary["a"], vocabulary["<pad>"]


def a_byte_without_an_entry(content: Content) -> None:
    del content["model"]["vocab"]["Q"]


def a_normalizer(content: Content) -> None:
    content["normalizer"] = {"type": "Lowercase"}


def a_normalizer_that_ends_the_library(content: Content) -> None:
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": ""}


def a_prefix_that_ends_the_library(content: Content) -> None:
    content["model"]["continuing_subword_prefix"] = "##"


def an_unknown_field(content: Content) -> None:
    content["model"]["rule"] = None


def a_field_is_missing(content: Content) -> None:
    del content["decoder"]


EDITS = [
    ids_with_holes,
    two_entries_with_one_id,
    an_entry_that_no_merge_makes,
    a_merge_without_its_entry,
    a_merge_is_lost,
    a_letter_as_padding,
    a_byte_without_an_entry,
]
REFUSED = r"tokenizer\.json is not a tokenizer of this package: "


@pytest.mark.parametrize("edit", EDITS)
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, edit: Any) -> None:
    content = json.loads(TOKENIZER.text)
    edit(content)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=REFUSED):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "edit",
    [
        a_normalizer,
        a_normalizer_that_ends_the_library,
        a_prefix_that_ends_the_library,
        an_unknown_field,
        a_field_is_missing,
    ],
)
def test_fields_that_come_or_go_in_another_release_change_nothing(edit: Any) -> None:
    """Only merges and vocabulary are read: nothing else reaches the library, or ends it."""
    content = json.loads(TOKENIZER.text)
    edit(content)
    loaded = Tokenizer(json.dumps(content))
    assert loaded.encode(" Ein Hund") == TOKENIZER.encode(" Ein Hund")


SMALL = Tokenizer.train(PAIRS[:5], vocabulary_size=265)
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0.5,
    10**30,
    "",
    "##",
    "Ġ",
    [],
    ["a"],
    {},
    {"a": 1},
]


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every field of a parsed JSON: what holds it, and its name or number there."""
    if isinstance(content, dict):
        fields = [*content.items()]
    elif isinstance(content, list):
        fields = [*enumerate(content)]
    else:
        return []
    deeper = [place for _, field in fields for place in places(field)]
    return [(content, name) for name, _ in fields] + deeper


@given(st.data())
def test_a_file_with_any_other_field_is_the_same_or_refused(
    data: st.DataObject,
) -> None:
    """By one error: nothing of it reaches the library, which may end the process over it."""
    content = json.loads(SMALL.text)
    near_the_top = [place for place in places(content) if len(place[0]) < 20]
    holder, name = data.draw(st.sampled_from(near_the_top))
    before = holder[name]
    holder[name] = data.draw(st.sampled_from(STRANGE))
    try:
        assert Tokenizer(json.dumps(content)).encode("Hund") == SMALL.encode("Hund")
    except ValueError as error:
        assert str(error).startswith("not a tokenizer of this package: ")
        assert holder[name] != before


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.99, 0.9999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "tokenizer.json"
    raw = TOKENIZER.text.encode()
    path.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(path)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_flipped_bit_is_found_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(TOKENIZER.text.encode())
    byte = data.draw(st.integers(0, len(raw) - 1))
    bit = data.draw(st.integers(0, 7))
    raw[byte] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "tokenizer.json"
    path.write_bytes(raw)
    try:
        assert load_tokenizer(path).text != TOKENIZER.text
    except ValueError as error:
        assert "tokenizer.json" in str(error)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\x80\x04K\x01.", b'{"model": 3}', b"3"]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_without_special_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    HFTokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(path))
    with pytest.raises(ValueError, match="not a tokenizer of this package"):
        load_tokenizer(path)
