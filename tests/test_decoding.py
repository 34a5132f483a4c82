"""Decoding: the fast search finds what the slow ones find, and lines out are lines in."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from heapq import nlargest
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from annotated_transformer import decoding
from annotated_transformer.batching import pad
from annotated_transformer.decoding import (
    Cache,
    Hypothesis,
    beam_search,
    filter_logits,
    length_batches,
    length_penalty,
    next_logits,
    sample,
    translate,
)
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.model_io import load_pretrained
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, greedy_decode

TOY = TransformerConfig(
    vocabulary_size=11, layers=2, d_model=12, d_ff=20, heads=3, dropout=0.1, max_length=40
)
VARIANTS = [
    TOY,
    replace(TOY, pre_norm=True),
    replace(TOY, positions="learned"),
    replace(TOY, d_k=5, d_v=7),
    replace(TOY, attention_bias=True),
]
NOT_FINITE = "logits are infinite or NaN"


def make(config: TransformerConfig = TOY, seed: int = 0, sharp: float = 1.5) -> Transformer:
    """A random model in double precision that is rather sure of itself and likes to end."""
    torch.manual_seed(seed)
    model = Transformer(config).double()
    with torch.no_grad():
        model.embedding.weight.mul_(sharp)[EOS] *= 1.2
    return model.eval()


def batch(seed: int, lengths: list[int], words: int = 11) -> Tensor:
    """Sources of these lengths, `</s>` included."""
    random = torch.Generator().manual_seed(seed)
    rows = [[*torch.randint(3, words, (n - 1,), generator=random).tolist(), EOS] for n in lengths]
    return pad(rows)


def score_of(tokens: list[int], total: float, alpha: float) -> Hypothesis:
    """A finished hypothesis from its tokens, with `</s>` if it has one, and its log-probability."""
    ended = tokens[-1] == EOS
    score = total / length_penalty(len(tokens), alpha)
    return Hypothesis(tokens[: len(tokens) - ended], score, total, ended)


@torch.no_grad()
def slow_search(
    model: Transformer, source: Tensor, beam: int, alpha: float, extra: int
) -> list[Hypothesis]:
    """Beam search over lists, for one source (S,): no cache, no early stop, no batch."""
    running, finished = [([], 0.0)], []
    limit = max(1, min(len(source) + extra, model.config.max_length))  # one token at least
    for length in range(1, limit + 1):
        if not running:
            break
        prefixes = torch.tensor([[BOS, *tokens] for tokens, _ in running])
        words = model(source.expand(len(running), -1), prefixes)[:, -1].log_softmax(dim=-1)
        grown = [
            ([*tokens, word], total + row[word])
            for (tokens, total), row in zip(running, words.tolist())
            for word in range(len(row))
            if word not in (PAD, BOS)
        ]
        best = nlargest(beam - len(finished), grown, key=lambda h: h[1])
        done = [tokens[-1] == EOS or length == limit for tokens, _ in best]
        finished += [score_of(*h, alpha) for h, over in zip(best, done) if over]
        running = [h for h, over in zip(best, done) if not over]
    return sorted(finished, key=lambda h: -h.score)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """The same words and, to rounding, the same scores."""
    assert [[(h.tokens, h.ended) for h in row] for row in found] == [
        [(h.tokens, h.ended) for h in row] for row in expected
    ]
    for h, other in zip(chain(*found), chain(*expected)):
        assert math.isclose(h.score, other.score, rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(h.log_probability, other.log_probability, abs_tol=1e-9)


seeds = st.integers(0, 1000)
batches_of_lengths = st.lists(st.integers(1, 7), min_size=1, max_size=5)
configs = st.sampled_from(VARIANTS)

# --- The cache ---


@given(config=configs, seed=seeds, lengths=batches_of_lengths, steps=st.integers(1, 12))
def test_cached_equals_uncached(
    config: TransformerConfig, seed: int, lengths: list[int], steps: int
) -> None:
    model, source = make(config, seed), batch(seed, lengths)
    target = torch.randint(3, 11, (len(lengths), steps))
    with torch.no_grad():
        cache = Cache(model, source)
        cached = [next_logits(model, target[:, t : t + 1], cache) for t in range(steps)]
        torch.testing.assert_close(torch.cat(cached, dim=1), model(source, target))
    assert cache.length == steps


@given(config=configs, seed=seeds)
def test_a_cache_follows_hypotheses_that_move_and_sentences_that_leave(
    config: TransformerConfig, seed: int
) -> None:
    model, source = make(config, seed), batch(seed, [5, 1, 3])
    random = torch.Generator().manual_seed(seed)
    words = torch.full((3, 1, 1), BOS)
    with torch.no_grad():
        cache = Cache(model, source)
        for step in range(6):
            logits = next_logits(model, words[..., -1], cache)
            for b, row in enumerate(words):
                alone = source[b][source[b] != PAD].expand(len(row), -1)
                torch.testing.assert_close(logits[b], model(alone, row)[:, -1])
            parents = torch.randint(words.size(1), (len(source), 4), generator=random)
            stay = torch.ones(len(source), dtype=torch.bool)
            stay[0] = step != 3
            cache.keep(stay.nonzero()[:, 0], parents[stay])
            words = words.gather(1, parents[..., None].expand(-1, -1, words.size(-1)))
            new = torch.randint(3, 11, (*parents.shape, 1), generator=random)
            words, source = torch.cat([words, new], dim=-1)[stay], source[stay]
    assert cache.cross_kv[0][0].size(0) == 2  # one for a sentence, not one for a hypothesis


def test_a_cache_whose_hypotheses_stay_is_not_copied() -> None:
    model, source = make(), batch(0, [4, 2])
    with torch.no_grad():
        cache = Cache(model, source)
        next_logits(model, torch.full((2, 1), BOS), cache)
    before = [cache.self_kv[0][0], cache.cross_kv[0][0], cache.mask]
    cache.keep(torch.arange(2), torch.zeros(2, 1, dtype=torch.long))
    after = [cache.self_kv[0][0], cache.cross_kv[0][0], cache.mask]
    assert all(one is other for one, other in zip(before, after))


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_scores_are_added_up_in_single_precision_or_better(
    kind: torch.dtype, found: torch.dtype
) -> None:
    model, source = make().to(kind), batch(0, [4])
    ((best,),) = beam_search(model, source, beam=1)
    total, labels = 0.0, [*best.tokens, *[EOS] * best.ended]
    with torch.no_grad():
        cache = Cache(model, source)
        for before, label in pairwise([BOS, *labels]):
            logits = next_logits(model, torch.tensor([[before]]), cache)
            assert logits.dtype == found
            total += logits[0, 0].log_softmax(dim=-1)[label].item()
    assert best.log_probability == pytest.approx(total, rel=1e-5)


# --- Beam search ---


@given(
    config=configs,
    seed=seeds,
    lengths=batches_of_lengths,
    beam=st.integers(1, 6),
    alpha=st.floats(-5, 5),
    extra=st.integers(-2, 8),
    data=st.data(),
)
def test_the_fast_search_in_a_batch_equals_the_slow_one_alone(
    config: TransformerConfig,
    seed: int,
    lengths: list[int],
    beam: int,
    alpha: float,
    extra: int,
    data: st.DataObject,
) -> None:
    n_best = data.draw(st.integers(1, beam))
    model, source = make(config, seed), batch(seed, lengths)
    slow = [slow_search(model, row[row != PAD], beam, alpha, extra) for row in source]
    found = beam_search(model, source, beam, alpha, extra, n_best)
    assert_same(found, [row[:n_best] for row in slow])


@given(config=configs, seed=seeds, lengths=batches_of_lengths, alpha=st.floats(-1, 2))
def test_a_beam_of_one_is_greedy(
    config: TransformerConfig, seed: int, lengths: list[int], alpha: float
) -> None:
    model, source = make(config, seed), batch(seed, lengths)
    found = beam_search(model, source, beam=1, alpha=alpha, max_extra_tokens=5)
    assert [best.tokens for (best,) in found] == greedy_decode(model, source, max_extra_tokens=5)


@given(config=configs, seed=seeds, alpha=st.floats(-1, 2), sharp=st.floats(0.5, 3))
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(
    config: TransformerConfig, seed: int, alpha: float, sharp: float
) -> None:
    model = make(replace(config, vocabulary_size=6), seed, sharp)
    source = batch(seed, [2], words=6)
    words = (3, 4, 5)  # and EOS; never PAD or BOS
    space = [[*row, EOS] for length in range(3) for row in product(words, repeat=length)]
    space += [[*row] for row in product(words, repeat=3)]
    with torch.no_grad():
        rows = pad([[BOS, *tokens] for tokens in space])
        shares = model(source.expand(len(space), -1), rows[:, :-1]).log_softmax(dim=-1)
    each = shares.gather(2, rows[:, 1:, None])[..., 0].masked_fill(rows[:, 1:] == PAD, 0)
    scored = [
        score_of(tokens, total, alpha) for tokens, total in zip(space, each.sum(dim=1).tolist())
    ]
    scored.sort(key=lambda h: -h.score)
    for n_best in (40, 1):
        found = beam_search(model, source, beam=40, alpha=alpha, max_extra_tokens=1, n_best=n_best)
        assert_same(found, [scored[:n_best]])


def test_sentences_that_end_at_very_different_steps() -> None:
    model, source = make(seed=3), batch(3, [1, 9, 2, 9, 1, 5, 9, 3])
    found = beam_search(model, source, alpha=0.0, max_extra_tokens=25)
    lengths = [len(best.tokens) for (best,) in found]
    assert max(lengths) - min(lengths) >= 10
    assert_same(found, [slow_search(model, row[row != PAD], 4, 0.0, 25)[:1] for row in source])


@pytest.mark.parametrize(
    ("alpha", "follows", "best"),
    [
        # The short one finishes first, and the long one, certain after its first word, overtakes
        (1.0, {BOS: {4: 0.56, 5: 0.44}, 5: {6: 1}, 6: {7: 1}, 7: {8: 1}, 8: {9: 1}, 9: {10: 1}}, 5),
        # A penalty that prefers short sentences rises towards the next length, not the last
        (-1.0, {BOS: {4: 0.3, 5: 0.7}, 5: {6: 1}}, 5),
    ],
)
def test_a_late_finisher_may_win(
    alpha: float,
    follows: dict[int, dict[int, float]],
    best: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = torch.zeros(11, 11, dtype=torch.float64)
    shares[:, EOS] = 1
    for word, after in follows.items():
        shares[word, EOS] = 0
        for following, share in after.items():
            shares[word, following] = share
    logits = (shares + 1e-12).log()
    monkeypatch.setattr(decoding, "next_logits", lambda model, words, cache: logits[words])
    ((found,),) = beam_search(make(), batch(0, [4]), beam=2, alpha=alpha)
    assert found.tokens[0] == best and found.ended


def test_stopping_early_saves_work_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = make(), batch(0, [6] * 20)
    rows: list[int] = []
    model.decoder.norm.register_forward_hook(lambda _, x, y: rows.append(y[..., 0].numel()))
    early, cost = beam_search(model, source, alpha=0.0, max_extra_tokens=30), sum(rows)
    rows.clear()
    to_the_end: Callable[..., Tensor] = lambda beams, alpha: beams.total.amax(dim=1) > -torch.inf  # noqa: E731
    monkeypatch.setattr(decoding, "still_open", to_the_end)
    late = beam_search(model, source, alpha=0.0, max_extra_tokens=30)
    assert_same(early, late)
    assert cost < 0.7 * sum(rows)


@given(seed=seeds, beam=st.integers(1, 5))
def test_without_a_penalty_the_score_is_the_log_probability(seed: int, beam: int) -> None:
    for found in beam_search(make(seed=seed), batch(seed, [4, 2]), beam, 0.0, 5, n_best=beam):
        assert all(h.score == h.log_probability for h in found)


def test_the_penalty_counts_the_end() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert math.isclose(length_penalty(7, 0.6), 2**0.6)
    for (found,) in beam_search(make(), batch(0, [3, 4]), alpha=0.6):
        length = len(found.tokens) + found.ended
        assert math.isclose(found.score, found.log_probability / length_penalty(length, 0.6))


def test_the_limit_is_never_beyond_the_positions() -> None:
    model = make(replace(TOY, max_length=9, positions="learned"))
    with torch.no_grad():
        model.embedding.weight[EOS] *= -1  # nothing ends by itself
    source = batch(0, [9])
    assert slow_search(model, source[0], 1, 0.6, 20)[0].tokens[8:]  # it would write on
    for beam in (1, 3):
        ((found,),) = beam_search(model, source, beam, max_extra_tokens=50, n_best=1)
        assert len(found.tokens) <= 9
    assert len(sample(model, source)[0]) <= 9


@pytest.mark.parametrize(("beam", "n_best"), [(0, 1), (-1, 1), (3, 4), (3, 0)])
def test_an_impossible_beam_is_refused(beam: int, n_best: int) -> None:
    with pytest.raises(ValueError, match=f"beam={beam} and n_best={n_best}"):
        beam_search(make(), batch(0, [3]), beam, n_best=n_best)


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf, 400, -5.1])
def test_an_impossible_alpha_is_refused_before_any_work(alpha: float) -> None:
    model = make()
    model.encode = None  # type: ignore[method-assign, assignment]
    with pytest.raises(ValueError, match=f"alpha={alpha} must be from -5 to 5"):
        beam_search(model, batch(0, [3]), alpha=alpha)


@pytest.mark.parametrize("alpha", [-5, 5])
def test_the_largest_alpha_is_no_trouble_in_single_precision(alpha: float) -> None:
    model = make(replace(TOY, max_length=3000)).float()
    with torch.no_grad():
        model.embedding.weight[EOS] *= -1
    ((found,),) = beam_search(model, batch(0, [3]), beam=2, alpha=alpha, max_extra_tokens=60)
    assert math.isfinite(found.score) and found.score < 0
    assert math.isfinite(length_penalty(3000, alpha))


@pytest.mark.parametrize("damage", [math.nan, math.inf])
def test_a_damaged_model_is_named(damage: float) -> None:
    model = make()
    with torch.no_grad():
        model.embedding.weight[5, 0] = damage
    for search in (beam_search, sample):
        with pytest.raises(ValueError, match=NOT_FINITE):
            search(model, batch(0, [3, 4]))


# --- Sampling ---


@given(
    shares=st.lists(st.floats(0.01, 1), min_size=2, max_size=8, unique=True),
    top_k=st.none() | st.integers(1, 9),
    top_p=st.none() | st.floats(0.05, 1),
)
def test_filtered_shares(shares: list[float], top_k: int | None, top_p: float | None) -> None:
    logits = torch.tensor(shares, dtype=torch.float64).log()
    kept = filter_logits(logits, top_k, top_p)
    chosen = set(kept.isfinite().nonzero().flatten().tolist())
    order = sorted(range(len(shares)), key=lambda word: -shares[word])[:top_k]
    inside, total = set(), 0.0
    whole = sum(shares[word] for word in order)
    for word in order:
        if top_p is None or total < top_p - 1e-12:
            inside.add(word)
        total += shares[word] / whole
    assert chosen == inside
    assert torch.equal(kept[sorted(chosen)], logits[sorted(chosen)])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
def test_a_top_p_of_1_drops_nothing(kind: torch.dtype) -> None:
    logits = torch.randn(2, 37_000, generator=torch.Generator().manual_seed(0)).to(kind)
    assert torch.equal(filter_logits(logits, top_p=1.0), logits)


@given(config=configs, seed=seeds, lengths=batches_of_lengths)
def test_sampling_the_top_word_is_greedy(
    config: TransformerConfig, seed: int, lengths: list[int]
) -> None:
    model, source = make(config, seed), batch(seed, lengths)
    assert sample(model, source, top_k=1, max_extra_tokens=5) == greedy_decode(model, source, 5)


def test_the_coldest_and_the_hottest_temperature() -> None:
    model, source = make(seed=3, sharp=3), batch(0, [4, 2])
    generator = torch.Generator().manual_seed(0)
    cold = sample(model, source, 0.01, generator=generator, max_extra_tokens=5)
    assert cold == greedy_decode(model, source, max_extra_tokens=5)
    hot = sample(model, source[:1].expand(2000, -1), 100, generator=generator, max_extra_tokens=-3)
    counts = torch.bincount(torch.tensor([row[0] if row else EOS for row in hot]), minlength=11)
    assert counts[[PAD, BOS]].sum() == 0
    assert counts[2:].min() > 2000 / 9 / 1.5  # all words alike: nine of 222 each


def test_the_same_generator_draws_the_same_sentences() -> None:
    model, source = make(), batch(0, [4, 4, 4])
    before = torch.random.get_rng_state()
    one, other, third = (
        sample(model, source, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    )
    assert one == other != third
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any({PAD, BOS, EOS} & {*row} for row in one + third)


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-40, math.nan, math.inf])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature={temperature} must be from 0.01 to 100"):
        sample(make(), batch(0, [3]), temperature)


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, None), (-1, 0.5), (None, 0.0), (3, 1.1), (None, math.nan)]
)
def test_impossible_filters_are_refused(top_k: int | None, top_p: float | None) -> None:
    with pytest.raises(ValueError, match=f"top_k={top_k} must be 1 or more, top_p={top_p} above 0"):
        sample(make(), batch(0, [3]), 1.0, top_k, top_p)


# --- Lines ---


@given(lengths=st.lists(st.integers(0, 30), max_size=40), max_tokens=st.integers(1, 100))
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


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_batches_side_by_side_are_those_one_by_one(
    trained: Trained, threads: Callable[[int], None], count: int
) -> None:
    model, tokenizer = deepcopy(trained[0]), trained[1]
    lines = [*LINES, "", *LINES[::-1]]
    one_by_one = [translate(model, tokenizer, [line])[0] for line in lines]
    seen = []
    model.encoder.register_forward_hook(
        lambda *_: seen.append((threading.get_ident(), torch.get_num_threads(), model.training))
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
    [(1, 300, 2), (2, 300, 2), (4, 300, 4), (2, 700, 4), (3, 700, 6), (2, 120, 2), (4, 30, 1)],
)
def test_each_thread_gets_as_many_even_batches(
    trained: Trained, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch,
    count: int, lines: int, parts: int,
) -> None:  # fmt: skip
    """A few sentences stay together; for a batch too large for its threads, there are more."""
    taken: list[int] = []

    def look(model: Any, source: torch.Tensor, *_: Any) -> list[list[Hypothesis]]:
        taken.append(source.numel())
        return [[Hypothesis([], 0.0, 0.0)] for _ in source]

    monkeypatch.setattr(decoding, "beam_search", look)
    threads(count)
    assert translate(*trained, (lines // 5) * LINES) == [""] * lines
    assert len(taken) == parts and max(taken) <= 2048
    assert max(taken) < 1.35 * min(taken) + 50


def test_autocast_holds_for_all_batches(trained: Trained, threads: Callable[[int], None]) -> None:
    model, narrow = deepcopy(trained[0]), []
    model.encoder.register_forward_hook(lambda *_: narrow.append(torch.is_autocast_enabled("cpu")))
    threads(2)
    with torch.autocast("cpu", torch.bfloat16):
        translate(model, trained[1], LINES, max_tokens=20)
    assert len(narrow) > 2 and all(narrow)


def test_a_batch_that_fails_ends_the_others(
    trained: Trained, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = deepcopy(trained[0]), []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        time.sleep(0.05)
        raise ValueError("no more")

    monkeypatch.setattr(decoding, "beam_search", fail)
    threads(2)
    with pytest.raises(ValueError, match="no more"):
        translate(model, trained[1], 50 * LINES, max_tokens=20)
    assert len(calls) < 20  # of some 200
    with ThreadPoolExecutor(1) as pool:  # a thread made later has its share again
        assert pool.submit(torch.get_num_threads).result() == 2 == torch.get_num_threads()


def test_a_sentence_that_is_too_long_is_named_before_any_work(trained: Trained) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has \d+ tokens, the limit is 120: split it"):
        translate(*trained, ["Der Hund schläft.", "sehr " * 200])


def test_unknown_characters_are_no_error(trained: Trained) -> None:
    odd = ["日本語 😀 \x00", "Ünïcödé", "\u200b", "a\u0301\ufeff", "\U0010ffff", "e\r\nf"]
    assert len(translate(*trained, odd, max_extra_tokens=3)) == len(odd)


def test_half_a_character_is_named(trained: Trained) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 is no text: .*'\\udcfc'"):
        translate(*trained, ["gut", "gr\udcfcn"])


def test_one_string_is_not_a_list(trained: Trained) -> None:
    with pytest.raises(ValueError, match="give a list"):
        translate(*trained, "Der Hund")


def test_another_tokenizer_is_refused(trained: Trained) -> None:
    model = Transformer(replace(TOY, vocabulary_size=len(trained[1]) - 1))
    with pytest.raises(ValueError, match="vocabulary_size"):
        translate(model, trained[1], ["Der Hund"])


def test_options_reach_the_search(trained: Trained) -> None:
    model, tokenizer = trained
    sources = [torch.tensor([[*tokenizer.encode(line), EOS]]) for line in LINES]
    by_hand = [
        tokenizer.decode(beam_search(model, source, 2, 1.0, -2)[0][0].tokens) for source in sources
    ]
    assert translate(model, tokenizer, LINES, beam=2, alpha=1.0, max_extra_tokens=-2) == by_hand
    assert translate(model, tokenizer, LINES) != by_hand
