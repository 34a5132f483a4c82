"""Translating many lines: lines out are lines in, however they are cut into batches."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.decoding import Hypothesis, beam_search
from annotated_transformer.masks import EOS
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit import translation
from annotated_transformer.toolkit.model_io import load_pretrained
from annotated_transformer.toolkit.translation import (
    encode_sentence,
    even_batches,
    length_batches,
    translate,
    translate_n_best,
)
from annotated_transformer.transformer import Transformer


@given(
    lengths=st.lists(st.integers(0, 30), max_size=40), max_tokens=st.integers(1, 100)
)
def test_each_sentence_is_in_one_batch(lengths: list[int], max_tokens: int) -> None:
    groups = list(length_batches(lengths, max_tokens))
    together = [n for group in groups for n in group]
    assert sorted(together) == [n for n, length in enumerate(lengths) if length]
    assert [lengths[n] for n in together] == sorted(filter(None, lengths), reverse=True)
    for group in groups:
        assert len(group) == 1 or lengths[group[0]] * len(group) <= max_tokens


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


def test_order_and_empty_lines_are_kept(trained: Trained) -> None:
    lines = ["", *LINES[:3], "", "  \t", *LINES[3:]]
    together = translate(*trained, lines, max_tokens=30)
    assert together == [translate(*trained, [line])[0] for line in lines]
    assert [i for i, line in enumerate(together) if not line] == [0, 4, 5]
    assert len({*together}) == 1 + len(LINES)
    assert translate(*trained, []) == []


def test_sentences_may_be_read_once_only(trained: Trained, tmp_path: Path) -> None:
    expected = translate(*trained, LINES[:3])
    assert all(expected)
    assert translate(*trained, (line for line in LINES[:3])) == expected
    (tmp_path / "lines").write_text("\n".join(LINES[:3]), encoding="utf-8")
    with (tmp_path / "lines").open(encoding="utf-8") as file:
        assert translate(*trained, map(str.strip, file)) == expected


def test_translating_changes_nothing_about_the_model(trained: Trained) -> None:
    model, tokenizer = deepcopy(trained[0]), trained[1]
    quiet = translate(model, tokenizer, LINES[:2])
    model.train()
    model.encoder.eval()
    assert translate(model, tokenizer, LINES[:2]) == quiet  # no dropout
    assert model.training and model.decoder.training and not model.encoder.training


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set PyTorch's threads; afterwards they are as before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "count", [1, 2, *[pytest.param(n, marks=pytest.mark.slow) for n in (3, 8)]]
)
def test_batches_side_by_side_are_those_one_by_one(
    trained: Trained, threads: Callable[[int], None], count: int
) -> None:
    model, tokenizer = deepcopy(trained[0]), trained[1]
    lines = [*LINES, "", *LINES[::-1]]
    one_by_one = [translate(model, tokenizer, [line])[0] for line in lines]
    seen = []
    model.encoder.register_forward_hook(
        lambda *_: seen.append(
            (threading.get_ident(), torch.get_num_threads(), model.training)
        )
    )
    model.train()  # each thread turns dropout off, and none may turn it on again
    threads(count)
    assert translate(model, tokenizer, lines, max_tokens=30) == one_by_one
    workers, shares, training = map(set, zip(*seen))
    assert len(seen) > 4 >= len(workers) <= count and shares == {count // min(4, count)}
    assert (threading.get_ident() in workers) == (count == 1) and training == {False}
    assert torch.get_num_threads() == count and model.training


@pytest.mark.parametrize(
    ("count", "lines", "parts"),
    [
        (1, 300, 2),
        (2, 300, 2),
        (4, 300, 4),
        (2, 700, 4),
        (3, 700, 6),
        (2, 120, 2),
        (4, 30, 1),
    ],
)
def test_each_thread_gets_as_many_even_batches(
    trained: Trained,
    threads: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    lines: int,
    parts: int,
) -> None:
    """A few sentences stay together; for a batch too large for its threads, there are more."""
    taken: list[int] = []

    def look(model: Any, source: torch.Tensor, *_: Any) -> list[list[Hypothesis]]:
        taken.append(source.numel())
        return [[Hypothesis([], 0.0, 0.0)] for _ in source]

    monkeypatch.setattr(translation, "beam_search", look)
    threads(count)
    assert translate(*trained, (lines // 5) * LINES) == [""] * lines
    assert len(taken) == parts and max(taken) <= 2048
    assert max(taken) < 1.35 * min(taken) + 50


def test_calls_at_the_same_time_leave_the_threads_as_they_were(
    trained: Trained, threads: Callable[[int], None]
) -> None:
    """In the process, in a thread made later, and in the threads that called."""
    threads(4)
    expected = translate(*trained, LINES, max_tokens=20)

    def call(_: int) -> tuple[list[str], int]:
        lines = translate(*trained, LINES, max_tokens=20)
        return lines, torch.get_num_threads()

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(call, range(6)))
    assert results == [(expected, 4)] * 6
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 4
    assert torch.get_num_threads() == 4


def test_a_thread_that_cannot_be_started_is_an_error(
    trained: Trained, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the one that was doesn't wait for it, as in a container with few processes."""
    threads(2)
    begin = threading.Thread.start
    started = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        translate(*trained, LINES, max_tokens=20)
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="max_tokens=0 must be 1 or more"):
        translate(*trained, LINES, max_tokens=0)


def test_many_sentences_are_grouped_in_seconds() -> None:
    """A time that grows with the square of their number would be half a minute."""
    lengths = [1 + number % 60 for number in range(200_000)]
    start = time.process_time()
    batches = even_batches(lengths, max_tokens=2048, workers=4)
    assert time.process_time() - start < 8
    assert sum(map(len, batches)) == len(lengths)


def test_autocast_holds_for_all_batches(
    trained: Trained, threads: Callable[[int], None]
) -> None:
    model, narrow = deepcopy(trained[0]), []
    model.encoder.register_forward_hook(
        lambda *_: narrow.append(torch.is_autocast_enabled("cpu"))
    )
    threads(2)
    with torch.autocast("cpu", torch.bfloat16):
        translate(model, trained[1], LINES, beam=1, max_tokens=20)
    assert len(narrow) > 2 and all(narrow)


def test_a_batch_that_fails_ends_the_others(
    trained: Trained, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = deepcopy(trained[0]), []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        time.sleep(0.05)
        raise ValueError("no more")

    monkeypatch.setattr(translation, "beam_search", fail)
    threads(2)
    with pytest.raises(ValueError, match="no more"):
        translate(model, trained[1], 50 * LINES, max_tokens=20)
    assert len(calls) < 20  # of some 200
    with ThreadPoolExecutor(1) as pool:  # a thread made later has its share again
        assert (
            pool.submit(torch.get_num_threads).result() == 2 == torch.get_num_threads()
        )


def test_a_sentence_that_is_too_long_is_named_before_any_work(trained: Trained) -> None:
    with pytest.raises(
        ValueError, match=r"sentence 2 has \d+ tokens, the limit is 120: split it"
    ):
        translate(*trained, ["Der Hund schläft.", "sehr " * 200])


SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
SPACES.append("\ufeff")
WHITE_SPACE = st.text(st.sampled_from(SPACES), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_pretrained("captions-de-en")[1]


@given(spaces=st.lists(WHITE_SPACE, min_size=6, max_size=6))
def test_any_white_space_is_read_as_one_space(
    tokenizer: Tokenizer, spaces: list[str]
) -> None:
    words = ["Ein", "Hund", "läuft", "weg.", ""]
    text = spaces[0] + "".join(map(str.__add__, words, spaces[1:]))
    expected = encode_sentence(tokenizer, "Ein Hund läuft weg.", 1, longest=99)
    assert encode_sentence(tokenizer, text, 1, longest=99).equal(expected)
    assert not len(encode_sentence(tokenizer, "".join(spaces), 1, longest=99))


def test_white_space_does_not_change_a_translation(trained: Trained) -> None:
    words = LINES[0].split()
    odd = [space.join(["", *words, ""]) for space in (*SPACES, "  ", "\u00a0\n")]
    assert set(translate(*trained, odd)) == set(translate(*trained, LINES[:1]))


def test_several_translations_have_scores_and_the_best_comes_first(
    trained: Trained,
) -> None:
    lines = [LINES[0], "", LINES[2]]
    several = translate_n_best(*trained, lines, n_best=3)
    assert [len(translations) for translations in several] == [3, 0, 3]
    best = [translations[0].text for translations in several if translations]
    assert best == [line for line in translate(*trained, lines) if line]
    for translations in several:
        scores = [translation.score for translation in translations]
        assert scores == sorted(scores, reverse=True)
    with pytest.raises(ValueError, match="n_best"):
        translate_n_best(*trained, lines, n_best=5, beam=4)


def test_unknown_characters_are_no_error(trained: Trained) -> None:
    odd = [
        "日本語 😀 \x00",
        "Ünïcödé",
        "\u200b",
        "a\u0301\ufeff",
        "\U0010ffff",
        "e\r\nf",
    ]
    assert len(translate(*trained, odd, max_extra_tokens=3)) == len(odd)


def test_half_a_character_is_named(trained: Trained) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 is no text: .*'\\udcfc'"):
        translate(*trained, ["gut", "gr\udcfcn"])


def test_one_string_is_not_a_list(trained: Trained) -> None:
    with pytest.raises(ValueError, match="give a list"):
        translate(*trained, "Der Hund")


def test_another_tokenizer_is_refused(trained: Trained) -> None:
    config = replace(trained[0].config, vocabulary_size=len(trained[1]) - 1)
    model = Transformer(config)
    with pytest.raises(ValueError, match="vocabulary_size"):
        translate(model, trained[1], ["Der Hund"])


def test_options_reach_the_search(trained: Trained) -> None:
    model, tokenizer = trained
    sources = [torch.tensor([[*tokenizer.encode(line), EOS]]) for line in LINES]
    by_hand = [
        tokenizer.decode(beam_search(model, source, 2, 1.0, -2)[0][0].tokens)
        for source in sources
    ]
    assert (
        translate(model, tokenizer, LINES, beam=2, alpha=1.0, max_extra_tokens=-2)
        == by_hand
    )
    assert translate(model, tokenizer, LINES) != by_hand
