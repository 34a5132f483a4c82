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
from annotated_transformer.model_io import load_pretrained
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import SPECIAL, Tokenizer

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
    message = rf"position {place}\b|position {place}-.*surrogates not allowed"
    with pytest.raises(ValueError, match=message) as caught:
        TOKENIZER.encode(text)
    assert str(caught.value).isascii()
    for texts in ([text], [Pair("Hallo", text)]):
        with pytest.raises(ValueError, match=message):
            Tokenizer.train(texts, 300)


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
    texts = [text for pair in PAIRS for text in (pair.source, pair.target)]
    same = Tokenizer.train(texts, vocabulary_size=600)
    assert same.library.get_vocab() == TOKENIZER.library.get_vocab()


def test_training_is_deterministic() -> None:
    again = Tokenizer.train(PAIRS, vocabulary_size=600)
    assert again.text == TOKENIZER.text


@pytest.mark.parametrize("size", [0, 4, 259, 10**12])
def test_a_vocabulary_that_cannot_be(size: int) -> None:
    with pytest.raises(ValueError, match=f"vocabulary_size={size}: take 260 \\(bytes"):
        Tokenizer.train(["text"], size)


@pytest.mark.parametrize("single", ["abc", Pair("Hallo", "Hello")])
def test_one_text_is_no_list_of_texts(single: Any) -> None:
    with pytest.raises(ValueError, match="single text or pair: put it into a list"):
        Tokenizer.train(single, 300)


def test_without_any_text_there_are_the_bytes() -> None:
    tokenizer = Tokenizer.train([], 300)
    assert len(tokenizer) == 260 and tokenizer.decode(tokenizer.encode("Hallo")) == "Hallo"


# --- Copies (the library's own copy reads "</s>" in a text as the end) ---

TYPED = "Ein Mann </s> und <pad> eine Frau.<s>"


def same(twin: Tokenizer) -> bool:
    return (twin.encode(TYPED), twin.sha256) == (TOKENIZER.encode(TYPED), TOKENIZER.sha256)


def test_the_library_forgets_and_we_do_not() -> None:
    forgetful = copy.deepcopy(TOKENIZER.library)
    assert min(forgetful.encode(TYPED).ids) <= UNK < min(TOKENIZER.encode(TYPED))


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_reads_text_as_text(duplicate: Any) -> None:
    assert same(duplicate(TOKENIZER))


def test_a_saved_object_reads_text_as_text() -> None:
    file = io.BytesIO()
    torch.save({"tokenizer": TOKENIZER}, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=False)["tokenizer"])


def encode_elsewhere(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(TYPED)


def test_a_worker_process_reads_text_as_text() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(encode_elsewhere, [TOKENIZER]) == TOKENIZER.encode(TYPED)


# --- The file and its hash ---


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    for loaded in (Tokenizer.load(path), Tokenizer(TOKENIZER.text)):
        assert loaded.sha256 == TOKENIZER.sha256 and len(loaded) == len(TOKENIZER)
        for text in [*(pair.source for pair in PAIRS[:50]), TYPED, "日本語"]:
            assert loaded.encode(text) == TOKENIZER.encode(text)
        assert loaded.text == TOKENIZER.text == path.read_text(encoding="utf-8")


def test_the_hash_names_the_tokenizer() -> None:
    other = Tokenizer.train(PAIRS, vocabulary_size=599)
    assert len(TOKENIZER.sha256) == 64 and TOKENIZER.sha256 != other.sha256


def test_the_file_of_the_library_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.library.save(str(path), pretty=True)
    assert Tokenizer.load(path).encode(TYPED) == TOKENIZER.encode(TYPED)


def test_the_pretrained_tokenizer_loses_nothing() -> None:
    tokenizer = load_pretrained("captions-de-en")[1]
    assert [tokenizer.library.id_to_token(index) for index in SPECIAL] == [*SPECIAL.values()]
    assert tokenizer.decode(tokenizer.encode(TYPED + "日本語\x00")) == TYPED + "日本語\x00"


def without_bytes(content: dict[str, Any]) -> None:
    content["model"]["vocab"] = {k: v for k, v in content["model"]["vocab"].items() if k != "Q"}


def exchanged(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["<pad>"], vocabulary["a"] = vocabulary["a"], vocabulary["<pad>"]


EDITS: dict[str, Any] = {
    "ids with holes": lambda c: c["model"]["vocab"].update({"Hund": 9999}),
    "two entries with one id": lambda c: c["model"]["vocab"].update(a=c["model"]["vocab"]["b"]),
    "an entry that no merge makes": lambda c: c["model"]["vocab"].update(qq=600),
    "a merge without its entry": lambda c: c["model"]["merges"].append(["q", "x"]),
    "a merge is lost": lambda c: c["model"]["merges"].pop(),
    "a letter as padding": exchanged,
    "a byte without an entry": without_bytes,
    "a normalizer": lambda c: c.update(normalizer={"type": "Lowercase"}),
    "a normalizer that ends the library": lambda c: c.update(
        normalizer={"type": "Precompiled", "precompiled_charsmap": ""}
    ),
    "no byte level": lambda c: c.update(pre_tokenizer={"type": "WhitespaceSplit"}),
    "a space too many": lambda c: c["pre_tokenizer"].update(add_prefix_space=True),
    "no decoder": lambda c: c.update(decoder=None),
    "cut to ten tokens": lambda c: c.update(
        truncation={"direction": "Right", "max_length": 10, "strategy": "LongestFirst", "stride": 0}
    ),
    "random cuts": lambda c: c["model"].update(dropout=0.5),
    "a special entry more": lambda c: c["added_tokens"].append(
        {**c["added_tokens"][3], "id": 600, "content": "<mask>"}
    ),
    "not special": lambda c: c["added_tokens"][2].update(special=False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, edit: str) -> None:
    content = json.loads(TOKENIZER.text)
    EDITS[edit](content)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer of this package: "):
        Tokenizer.load(path)


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.99, 0.9999])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "tokenizer.json"
    raw = TOKENIZER.text.encode()
    path.write_bytes(raw[: int(len(raw) * keep)])
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(path)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_flipped_bit_is_found_out(tmp_path_factory: pytest.TempPathFactory, data) -> None:  # type: ignore[no-untyped-def]
    raw = bytearray(TOKENIZER.text.encode())
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


def test_a_tokenizer_without_special_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    HFTokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(path))
    with pytest.raises(ValueError, match="not a tokenizer of this package"):
        Tokenizer.load(path)
