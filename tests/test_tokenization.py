"""What goes into the tokenizer comes out again, whatever it is."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.corpus import grammar
from annotated_transformer.masks import UNK
from annotated_transformer.tokenization import Tokenizer

PAIRS = grammar(300, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=600)


@settings(deadline=None)
@given(st.text())
def test_round_trip_of_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(UNK < index < len(TOKENIZER) for index in ids)


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


def test_reserved_ids_are_left_out() -> None:
    ids = TOKENIZER.encode("Der Hund schläft.")
    assert TOKENIZER.decode([1, *ids, 2, 0, 0, 3]) == "Der Hund schläft."


def test_texts_and_pairs_give_the_same_vocabulary() -> None:
    texts = [text for pair in PAIRS for text in (pair.source, pair.target)]
    same = Tokenizer.train(texts, vocabulary_size=600)
    assert same.library.get_vocab() == TOKENIZER.library.get_vocab()


def test_training_is_deterministic() -> None:
    again = Tokenizer.train(PAIRS, vocabulary_size=600)
    assert again.library.to_str() == TOKENIZER.library.to_str()


def test_a_long_line_is_only_long() -> None:
    line = "Wörter " * 10_000
    assert TOKENIZER.decode(TOKENIZER.encode(line)) == line


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    loaded = Tokenizer.load(path)
    for text in [*(pair.source for pair in PAIRS[:50]), "</s>", "日本語"]:
        assert loaded.encode(text) == TOKENIZER.encode(text)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x80\x04K\x01.", b'{"model": 3}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(path)


def test_a_tokenizer_without_the_reserved_entries_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    path = tmp_path / "tokenizer.json"
    Library(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(path))
    with pytest.raises(ValueError, match="<pad> <s> </s> <unk>"):
        Tokenizer.load(path)


@pytest.mark.parametrize("size", [0, 4, 259])
def test_too_small_a_vocabulary(size: int) -> None:
    with pytest.raises(ValueError, match=f"at least 260.*{size}"):
        Tokenizer.train(["text"], size)
