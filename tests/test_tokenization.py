"""What goes into the tokenizer comes out again, from copies and files too.

(Chapter 14 itself compares byte-pair encoding by hand with the library's on random corpora.)
"""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models

from annotated_transformer.data import Pair
from annotated_transformer.files import load_pretrained, load_tokenizer
from annotated_transformer.masks import UNK
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import SPECIAL, Tokenizer

PAIRS = grammar(300, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=600)

# --- The law: decoding undoes encoding ---

CONTROL = [chr(code) for code in (*range(32), *range(127, 160))]
LETTERS = list("aÄßжλ語かहعא🇩🇪👩‍👧\u0301\u200f\u2028\ufeff\uffff\U0010ffff \u00a0Ġ")
PIECES = st.sampled_from([*CONTROL, *LETTERS, *SPECIAL.values()])


@settings(deadline=None)
@given(st.text() | st.lists(PIECES).map("".join))
def test_round_trip_of_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(UNK < index < len(TOKENIZER) for index in ids)


@pytest.mark.parametrize("text", [*CONTROL, "Wörter " * 10_000, "x" * 10_000])
def test_round_trip_of_a_lone_control_character_and_of_long_lines(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(), st.lists(st.sampled_from(list(SPECIAL))))
def test_special_ids_are_left_out(text: str, special: list[int]) -> None:
    assert TOKENIZER.decode([*special, *TOKENIZER.encode(text), *special]) == text


def test_half_a_character_is_no_error_when_decoded_and_named_when_encoded() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("😀")[:2]) == "\ufffd"
    with pytest.raises(ValueError, match="position 3: surrogates not allowed"):
        TOKENIZER.encode("abc\udfff")


# --- Training ---


def test_training_is_deterministic_and_takes_texts_tuples_and_pairs() -> None:
    texts = [side for pair in PAIRS for side in pair[:2]]
    tuples: list[Any] = [pair[:2] for pair in PAIRS]
    for same in (PAIRS, texts, iter(texts), tuples):
        assert Tokenizer.train(same, vocabulary_size=600).text == TOKENIZER.text


@settings(deadline=None, max_examples=20)
@given(st.lists(st.text()), st.integers(260, 400))
def test_any_texts_make_a_tokenizer_without_loss(texts: list[str], size: int) -> None:
    tokenizer = Tokenizer.train(texts, size)
    assert 260 <= len(tokenizer) <= size
    for text in [*texts, "Quark für 5 Euro"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("texts", "size", "said"),
    [
        (["text"], 259, "take 260"),
        ("one text", 300, "put it into a list"),
        ([Pair("Ja.", "Yes."), ("Ja.", None)], 300, "is no pair"),
    ],
)
def test_what_no_vocabulary_can_be_made_of(texts: Any, size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tokenizer.train(texts, size)


# --- Copies and files (the library's own copy reads "</s>" in a text as the end) ---

TYPED = "Ein Mann </s> und <pad> eine Frau.<s>"


def by_pickle(tokenizer: Tokenizer) -> Tokenizer:
    return pickle.loads(pickle.dumps(tokenizer))


def by_text(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(tokenizer.text)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, by_pickle, by_text])
def test_a_copy_is_the_same(duplicate: Callable[[Tokenizer], Tokenizer]) -> None:
    twin = duplicate(TOKENIZER)
    assert twin.text == TOKENIZER.text and len(twin) == len(TOKENIZER)
    for text in (TYPED, "日本語", *(pair.source for pair in PAIRS[:50])):
        assert twin.encode(text) == TOKENIZER.encode(text)


@pytest.mark.parametrize("pretty", [False, True])
def test_a_file_that_the_library_wrote_is_read(tmp_path: Path, pretty: bool) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.library.save(str(path), pretty=pretty)
    assert load_tokenizer(path).encode(TYPED) == TOKENIZER.encode(TYPED)


def test_a_field_more_or_less_changes_nothing() -> None:
    """As another release of the library may write them."""
    more, less = json.loads(TOKENIZER.text), json.loads(TOKENIZER.text)
    more["model"]["rule"] = None
    del less["model"]["ignore_merges"], less["model"]["byte_fallback"]
    for content in (more, less):
        loaded = Tokenizer(json.dumps(content))
        assert loaded.encode(TYPED) == TOKENIZER.encode(TYPED)


def test_the_pretrained_tokenizer_loses_nothing() -> None:
    _, tokenizer = load_pretrained("captions-de-en")
    text = TYPED + "日本語\x00"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("content", ["", "[]", '{"model": 3}', TOKENIZER.text[:-100]])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_tokenizer_with_other_special_entries_is_refused() -> None:
    other = HFTokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    with pytest.raises(ValueError, match="ids 0 to 3 must be <pad>, <s>, </s>, <unk>"):
        Tokenizer(other.to_str())
