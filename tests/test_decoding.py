"""Decoding: the fast search finds what the slow ones find."""

import math
from collections.abc import Callable
from dataclasses import replace
from heapq import nlargest
from itertools import chain, pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from annotated_transformer import decoding
from annotated_transformer.batching import pad
from annotated_transformer.decoding import (
    Beams,
    Cache,
    Hypothesis,
    beam_search,
    filter_logits,
    length_penalty,
    next_logits,
    sample,
)
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.transformer import (
    Transformer,
    TransformerConfig,
    greedy_decode,
)

TOY = TransformerConfig(
    vocabulary_size=11,
    layers=2,
    d_model=12,
    d_ff=20,
    heads=3,
    dropout=0.1,
    max_length=40,
)
VARIANTS = [
    TOY,
    replace(TOY, pre_norm=True),
    replace(TOY, positions="learned"),
    replace(TOY, d_k=5, d_v=7),
    replace(TOY, attention_bias=True),
]


def make(
    config: TransformerConfig = TOY, seed: int = 0, sharp: float = 1.5
) -> Transformer:
    """A random model in double precision that is rather sure of itself and likes to end."""
    torch.manual_seed(seed)
    model = Transformer(config).double()
    with torch.no_grad():
        model.embedding.weight.mul_(sharp)[EOS] *= 1.2
    return model.eval()


def batch(seed: int, lengths: list[int], words: int = 11) -> Tensor:
    """Sources of these lengths, `</s>` included."""
    random = torch.Generator().manual_seed(seed)
    rows = [
        [*torch.randint(3, words, (n - 1,), generator=random).tolist(), EOS]
        for n in lengths
    ]
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
    limit = max(
        1, min(len(source) + extra, model.config.max_length)
    )  # one token at least
    for length in range(1, limit + 1):
        if not running:
            break
        prefixes = torch.tensor([[BOS, *tokens] for tokens, _ in running])
        words = model(source.expand(len(running), -1), prefixes)[:, -1].log_softmax(
            dim=-1
        )
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


def assert_same(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]]
) -> None:
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
    assert (
        cache.cross_kv[0][0].size(0) == 2
    )  # one for a sentence, not one for a hypothesis


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
    assert [best.tokens for (best,) in found] == greedy_decode(
        model, source, max_extra_tokens=5
    )


@given(config=configs, seed=seeds, alpha=st.floats(-1, 2), sharp=st.floats(0.5, 3))
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(
    config: TransformerConfig, seed: int, alpha: float, sharp: float
) -> None:
    model = make(replace(config, vocabulary_size=6), seed, sharp)
    source = batch(seed, [2], words=6)
    words = (3, 4, 5)  # and EOS; never PAD or BOS
    space = [
        [*row, EOS] for length in range(3) for row in product(words, repeat=length)
    ]
    space += [[*row] for row in product(words, repeat=3)]
    with torch.no_grad():
        rows = pad([[BOS, *tokens] for tokens in space])
        shares = model(source.expand(len(space), -1), rows[:, :-1]).log_softmax(dim=-1)
    each = shares.gather(2, rows[:, 1:, None])[..., 0].masked_fill(
        rows[:, 1:] == PAD, 0
    )
    scored = [
        score_of(tokens, total, alpha)
        for tokens, total in zip(space, each.sum(dim=1).tolist())
    ]
    scored.sort(key=lambda h: -h.score)
    for n_best in (40, 1):
        found = beam_search(
            model, source, beam=40, alpha=alpha, max_extra_tokens=1, n_best=n_best
        )
        assert_same(found, [scored[:n_best]])


def test_sentences_that_end_at_very_different_steps() -> None:
    model, source = make(seed=3), batch(3, [1, 9, 2, 9, 1, 5, 9, 3])
    found = beam_search(model, source, alpha=0.0, max_extra_tokens=25)
    lengths = [len(best.tokens) for (best,) in found]
    assert max(lengths) - min(lengths) >= 10
    assert_same(
        found, [slow_search(model, row[row != PAD], 4, 0.0, 25)[:1] for row in source]
    )


@pytest.mark.parametrize(
    ("alpha", "follows", "best"),
    [
        # The short one finishes first, and the long one, certain after its first word, overtakes
        (
            1.0,
            {
                BOS: {4: 0.56, 5: 0.44},
                5: {6: 1},
                6: {7: 1},
                7: {8: 1},
                8: {9: 1},
                9: {10: 1},
            },
            5,
        ),
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
    monkeypatch.setattr(
        decoding, "next_logits", lambda model, words, cache: logits[words]
    )
    ((found,),) = beam_search(make(), batch(0, [4]), beam=2, alpha=alpha)
    assert found.tokens[0] == best and found.ended


def test_stopping_early_saves_work_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, source = make(), batch(0, [6] * 20)
    rows: list[int] = []
    model.decoder.norm.register_forward_hook(
        lambda _, x, y: rows.append(y[..., 0].numel())
    )
    early, cost = beam_search(model, source, alpha=0.0, max_extra_tokens=30), sum(rows)
    rows.clear()

    def to_the_end(beams: Beams, alpha: float) -> Tensor:
        return beams.total.amax(dim=1) > -torch.inf

    monkeypatch.setattr(decoding, "still_open", to_the_end)
    late = beam_search(model, source, alpha=0.0, max_extra_tokens=30)
    assert_same(early, late)
    assert cost < 0.7 * sum(rows)


def test_the_penalty_counts_the_end() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert math.isclose(length_penalty(7, 0.6), 2**0.6)
    for (found,) in beam_search(make(), batch(0, [3, 4]), alpha=0.6):
        length = len(found.tokens) + found.ended
        assert math.isclose(
            found.score, found.log_probability / length_penalty(length, 0.6)
        )


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


@pytest.mark.parametrize(
    ("search", "name", "value"),
    [
        (beam_search, "beam", 0),
        (beam_search, "n_best", 5),
        (beam_search, "alpha", math.nan),
        (beam_search, "alpha", 400),
        (sample, "temperature", 0.0),
        (sample, "top_k", 0),
        (sample, "top_p", 1.1),
    ],
)
def test_an_impossible_option_is_named(
    search: Callable[..., object], name: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}"):
        search(make(), batch(0, [3]), **{name: value})


@pytest.mark.parametrize("alpha", [-5, 5])
def test_the_largest_alpha_is_no_trouble_in_single_precision(alpha: float) -> None:
    model = make(replace(TOY, max_length=3000)).float()
    with torch.no_grad():
        model.embedding.weight[EOS] *= -1
    ((found,),) = beam_search(
        model, batch(0, [3]), beam=2, alpha=alpha, max_extra_tokens=60
    )
    assert math.isfinite(found.score) and found.score < 0
    assert math.isfinite(length_penalty(3000, alpha))


@pytest.mark.parametrize("damage", [math.nan, math.inf])
def test_a_damaged_model_is_named(damage: float) -> None:
    model = make()
    with torch.no_grad():
        model.embedding.weight[5, 0] = damage
    for search in (beam_search, sample):
        with pytest.raises(ValueError, match="infinite or NaN"):
            search(model, batch(0, [3, 4]))


# --- Sampling ---


@given(
    shares=st.lists(
        st.floats(0.01, 1),
        min_size=2,
        max_size=8,
        unique_by=lambda share: round(math.log(share), 9),  # no ties among the logits
    ),
    top_k=st.none() | st.integers(1, 9),
    top_p=st.none() | st.floats(0.05, 1),
)
def test_filtered_shares(
    shares: list[float], top_k: int | None, top_p: float | None
) -> None:
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
    assert sample(model, source, top_k=1, max_extra_tokens=5) == greedy_decode(
        model, source, 5
    )


def test_the_coldest_and_the_hottest_temperature() -> None:
    model, source = make(seed=3, sharp=3), batch(0, [4, 2])
    generator = torch.Generator().manual_seed(0)
    cold = sample(model, source, 0.01, generator=generator, max_extra_tokens=5)
    assert cold == greedy_decode(model, source, max_extra_tokens=5)
    hot = sample(
        model,
        source[:1].expand(2000, -1),
        100,
        generator=generator,
        max_extra_tokens=-3,
    )
    counts = torch.bincount(
        torch.tensor([row[0] if row else EOS for row in hot]), minlength=11
    )
    assert counts[[PAD, BOS]].sum() == 0
    assert counts[2:].min() > 2000 / 9 / 1.5  # all words alike: nine of 222 each


def test_the_same_generator_draws_the_same_sentences() -> None:
    model, source = make(), batch(0, [4, 4, 4])
    before = torch.random.get_rng_state()
    one, other, third = (
        sample(model, source, generator=torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    )
    assert one == other != third
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any({PAD, BOS, EOS} & {*row} for row in one + third)
