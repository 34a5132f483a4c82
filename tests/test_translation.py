"""Translating many lines: lines out are lines in, however they are cut into batches."""

import sys
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.decoding import beam_search
from annotated_transformer.files import load_pretrained
from annotated_transformer.masks import EOS
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer
from annotated_transformer.translation import (
    encode_sentence,
    length_batches,
    translate,
)

LINES = [
    "Ein Hund läuft über die Wiese.",
    "Zwei Kinder spielen mit einem Ball am Strand.",
    "Eine Frau liest.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Drei Männer sitzen auf einer Bank.",
]
Trained = tuple[Transformer, Tokenizer]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """The model that comes along, in double precision and with few positions."""
    model, tokenizer = load_pretrained("captions-de-en")
    few = Transformer(replace(model.config, max_length=120))
    few.load_state_dict(model.state_dict())
    return few.double().eval(), tokenizer


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 100))
def test_each_sentence_is_in_one_batch(lengths: list[int], max_tokens: int) -> None:
    groups = length_batches(lengths, max_tokens)
    together = [n for group in groups for n in group]
    assert sorted(together) == [n for n, length in enumerate(lengths) if length]
    assert [lengths[n] for n in together] == sorted(filter(None, lengths), reverse=True)
    for group in groups:
        assert len(group) == 1 or lengths[group[0]] * len(group) <= max_tokens


@pytest.mark.parametrize("count", [1, 2, 5])
def test_lines_out_are_lines_in_as_one_by_one(
    trained: Trained, threads: Callable[[int], None], count: int
) -> None:
    """With one thread and several, which share what PyTorch has and leave it as it was."""
    model, tokenizer = deepcopy(trained[0]), trained[1]
    lines = ["", *LINES[:3], "", "  \t", *LINES[3:], *LINES[::-1]]
    one_by_one = [translate(model, tokenizer, [line])[0] for line in lines]
    seen = []
    model.encoder.register_forward_hook(
        lambda part, *_: seen.append(
            (threading.get_ident(), torch.get_num_threads(), part.training)
        )
    )
    model.train()  # each thread turns dropout off, and none may turn it on again
    model.decoder.eval()
    threads(count)
    assert translate(model, tokenizer, iter(lines), max_tokens=30) == one_by_one
    assert [n for n, line in enumerate(one_by_one) if not line] == [0, 4, 5]
    workers, shares, training = map(set, zip(*seen))
    assert len(seen) > 4 >= len(workers) and len(workers) <= count
    assert shares == {1} and training == {False}
    assert torch.get_num_threads() == count
    assert model.training and not model.decoder.training
    assert translate(model, tokenizer, []) == []


def test_options_reach_the_search(trained: Trained) -> None:
    model, tokenizer = trained
    by_hand = []
    for line in LINES:
        source = torch.tensor([[*tokenizer.encode(line), EOS]])
        best = beam_search(model, source, 2, 1.0, -2)[0][0]
        by_hand.append(tokenizer.decode(best.tokens))
    options = {"beam": 2, "alpha": 1.0, "max_extra_tokens": -2}
    assert translate(model, tokenizer, LINES, **options) == by_hand
    assert translate(model, tokenizer, LINES) != by_hand


SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
WHITE_SPACE = st.text(st.sampled_from([*SPACES, "\ufeff"]), min_size=1, max_size=3)
TOKENIZER = load_pretrained("captions-de-en")[1]


@given(st.lists(WHITE_SPACE, min_size=5, max_size=5))
def test_any_white_space_is_read_as_one_space(spaces: list[str]) -> None:
    words = zip(["", "Ein", "Hund", "läuft", "weg."], spaces)
    text = "".join(word + space for word, space in words)
    expected = encode_sentence(TOKENIZER, "Ein Hund läuft weg.", 1, longest=99)
    assert encode_sentence(TOKENIZER, text, 1, longest=99).equal(expected)
    assert not len(encode_sentence(TOKENIZER, "".join(spaces), 1, longest=99))


def test_unknown_characters_are_no_error(trained: Trained) -> None:
    odd = ["日本語 😀 \x00", "\u200b", "a\u0301\ufeff", "\U0010ffff", "e\r\nf"]
    assert len(translate(*trained, odd, max_extra_tokens=3)) == len(odd)


def test_mistakes_are_named_before_any_work(trained: Trained) -> None:
    model, tokenizer = trained
    with pytest.raises(ValueError, match=r"sentence 2 has \d+ tokens, the limit is 12"):
        translate(model, tokenizer, ["Der Hund schläft.", "sehr " * 200])
    with pytest.raises(ValueError, match="give a list"):
        translate(model, tokenizer, "Der Hund")
    smaller = Transformer(replace(model.config, vocabulary_size=len(tokenizer) - 1))
    with pytest.raises(ValueError, match="vocabulary"):
        translate(smaller, tokenizer, ["Der Hund"])
