"""Decoding: the fast search equals the slow one, and lines out are lines in; so does the command
line.
"""

import io
import math
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from annotated_transformer.batching import pad
from annotated_transformer.cli import main
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.decoding import Cache, Hypothesis, beam_search, length_batches, length_penalty, next_logits, restrict, sample, translate
from annotated_transformer.masks import BOS, EOS, PAD
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.training import TrainingConfig, train
from annotated_transformer.model_io import save_model
from annotated_transformer.transformer import Transformer, TransformerConfig, greedy_decode

settings.register_profile("decoding", deadline=None, max_examples=30)
settings.load_profile("decoding")

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


def forced(model: Transformer, source: Tensor, hypothesis: Hypothesis) -> tuple[float, int]:
    """The log-probability that the whole model, without a cache, gives to a hypothesis."""
    labels = torch.tensor([*hypothesis.tokens, *[EOS] * hypothesis.ended])
    with torch.no_grad():
        logits = model(source[source != PAD][None], torch.tensor([[BOS, *labels[:-1]]]))
    words = logits[0].log_softmax(dim=-1)
    return float(words.gather(1, labels[:, None]).sum()), len(labels)


def close(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> bool:
    """The same words and, to rounding, the same scores."""
    return all(
        [h.tokens for h in one] == [h.tokens for h in other]
        and all(math.isclose(h.score, g.score, abs_tol=1e-9) for h, g in zip(one, other))
        for one, other in zip(found, expected, strict=True)
    )


seeds = st.integers(0, 1000)
batches_of_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)
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
    assert cache.memory[0][0].size(0) == 2  # one for a sentence, not one for a hypothesis


# --- Beam search ---


@given(config=configs, seed=seeds, lengths=batches_of_lengths, alpha=st.floats(-1, 2))
def test_a_beam_of_one_is_greedy(
    config: TransformerConfig, seed: int, lengths: list[int], alpha: float
) -> None:
    model, source = make(config, seed), batch(seed, lengths)
    found = beam_search(model, source, beam=1, alpha=alpha, max_extra_tokens=5)
    assert [best.tokens for (best,) in found] == greedy_decode(model, source, max_extra_tokens=5)


@given(seed=seeds, lengths=batches_of_lengths, beam=st.integers(1, 6), alpha=st.floats(-1, 2))
def test_alone_as_in_company(seed: int, lengths: list[int], beam: int, alpha: float) -> None:
    model, source = make(seed=seed), batch(seed, lengths)
    together = beam_search(model, source, beam, alpha, max_extra_tokens=5, n_best=beam)
    alone = [
        beam_search(model, row[row != PAD][None], beam, alpha, max_extra_tokens=5, n_best=beam)[0]
        for row in source
    ]
    assert close(together, alone)


@given(
    config=configs,
    seed=seeds,
    lengths=batches_of_lengths,
    beam=st.integers(1, 7),
    alpha=st.floats(0, 2),
)
def test_scores_are_forced_scores_sorted_and_distinct(
    config: TransformerConfig, seed: int, lengths: list[int], beam: int, alpha: float
) -> None:
    model, source = make(config, seed), batch(seed, lengths)
    for row, found in zip(source, beam_search(model, source, beam, alpha, max_extra_tokens=4, n_best=beam)):
        assert 1 <= len(found) <= beam
        assert found == sorted(found, key=lambda h: -h.score)
        assert len({(*h.tokens, h.ended) for h in found}) == len(found)
        for h in found:
            total, length = forced(model, row, h)
            assert math.isclose(total, h.log_probability, abs_tol=1e-9)
            assert math.isclose(total / length_penalty(length, alpha), h.score, abs_tol=1e-9)
            assert length <= (row != PAD).sum() + 4
            assert h.ended or length == (row != PAD).sum() + 4
            assert not {PAD, BOS, EOS} & {*h.tokens}


@given(
    seed=seeds,
    lengths=batches_of_lengths,
    beam=st.integers(1, 6),
    alpha=st.floats(-1, 2),
    data=st.data(),
)
def test_stopping_early_changes_nothing(
    seed: int, lengths: list[int], beam: int, alpha: float, data: st.DataObject
) -> None:
    n_best = data.draw(st.integers(1, beam))
    model, source = make(seed=seed), batch(seed, lengths)
    early = beam_search(model, source, beam, alpha, 12, n_best)
    assert close(early, beam_search(model, source, beam, alpha, 12, n_best, early_stop=False))


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
    alpha: float, follows: dict[int, dict[int, float]], best: int
) -> None:
    shares = torch.zeros(11, 11, dtype=torch.float64)
    shares[:, EOS] = 1
    for word, after in follows.items():
        shares[word, EOS] = 0
        for following, share in after.items():
            shares[word, following] = share
    logits = (shares + 1e-12).log()

    def read(model: Transformer, words: Tensor, cache: Cache) -> Tensor:
        return logits[words]

    ((found,),) = beam_search(make(), batch(0, [4]), beam=2, alpha=alpha, read=read)
    assert found.tokens[0] == best and found.ended


def test_stopping_early_saves_work() -> None:
    model, source = make(), batch(0, [6] * 20)
    steps: list[int] = []
    model.decoder.norm.register_forward_hook(lambda _, x, y: steps.append(y.size(0)))
    beam_search(model, source, alpha=0.0, max_extra_tokens=30)
    early = sum(steps)
    steps.clear()
    beam_search(model, source, alpha=0.0, max_extra_tokens=30, early_stop=False)
    assert early < 0.7 * sum(steps)


@given(config=configs, seed=seeds, alpha=st.floats(-1, 2), sharp=st.floats(0.5, 3))
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(
    config: TransformerConfig, seed: int, alpha: float, sharp: float
) -> None:
    model = make(replace(config, vocabulary_size=6), seed, sharp)
    source = batch(seed, [2], words=6)
    words = (3, 4, 5)  # and EOS; never PAD or BOS
    space = [
        Hypothesis([*row], 0, 0, ended)
        for length, ended in ((0, True), (1, True), (2, True), (3, False))
        for row in product(words, repeat=length)
    ]
    scored = []
    for h in space:
        total, length = forced(model, source[0], h)
        scored.append(Hypothesis(h.tokens, total / length_penalty(length, alpha), total, h.ended))
    scored.sort(key=lambda h: -h.score)
    found = beam_search(model, source, beam=40, alpha=alpha, max_extra_tokens=1, n_best=40)
    assert close(found, [scored])
    assert close(beam_search(model, source, beam=40, alpha=alpha, max_extra_tokens=1), [scored[:1]])


@given(seed=seeds, beam=st.integers(1, 5))
def test_without_a_penalty_the_score_is_the_log_probability(seed: int, beam: int) -> None:
    for found in beam_search(make(seed=seed), batch(seed, [4, 2]), beam, 0.0, 5, n_best=beam):
        assert all(h.score == h.log_probability for h in found)


def test_the_penalty_counts_the_end() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert math.isclose(length_penalty(7, 0.6), 2**0.6)
    model = make()
    for (found,) in beam_search(model, batch(0, [3, 4]), alpha=0.6):
        length = len(found.tokens) + found.ended
        assert math.isclose(found.score, found.log_probability / length_penalty(length, 0.6))


def test_sentences_that_end_at_very_different_steps() -> None:
    model, source = make(seed=3), batch(3, [1, 9, 2, 9, 1, 5, 9, 3])
    found = beam_search(model, source, alpha=0.0, max_extra_tokens=25)
    lengths = [len(best.tokens) for (best,) in found]
    assert max(lengths) - min(lengths) >= 10
    alone = [beam_search(model, row[row != PAD][None], alpha=0.0, max_extra_tokens=25)[0] for row in source]
    assert close(found, alone)


def test_the_limit_is_never_beyond_the_positions() -> None:
    model = make(replace(TOY, max_length=9, positions="learned"))
    with torch.no_grad():
        model.embedding.weight[EOS] *= -1  # nothing ends by itself
    for beam in (1, 3):
        ((found,),) = beam_search(model, batch(0, [9]), beam, max_extra_tokens=50)
        assert len(found.tokens) <= 9


@pytest.mark.parametrize(("beam", "n_best"), [(0, 1), (-1, 1), (3, 4), (3, 0)])
def test_an_impossible_beam_is_refused(beam: int, n_best: int) -> None:
    with pytest.raises(ValueError, match=f"beam={beam} and n_best={n_best}"):
        beam_search(make(), batch(0, [3]), beam, n_best=n_best)


def test_a_damaged_model_is_named() -> None:
    model = make()
    with torch.no_grad():
        model.embedding.weight[5, 0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        beam_search(model, batch(0, [3, 4]))


def test_in_single_precision_too() -> None:
    model, source = make().float(), batch(1, [3, 7, 5])
    assert len(beam_search(model, source, beam=5, n_best=5)) == 3


# --- Sampling ---


@given(
    shares=st.lists(st.floats(0.01, 1), min_size=2, max_size=8, unique=True),
    top_k=st.none() | st.integers(1, 9),
    top_p=st.none() | st.floats(0.05, 1),
)
def test_restricted_shares(shares: list[float], top_k: int | None, top_p: float | None) -> None:
    logits = torch.tensor(shares, dtype=torch.float64).log()
    kept = restrict(logits, top_k, top_p)
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


@given(config=configs, seed=seeds, lengths=batches_of_lengths)
def test_sampling_the_top_word_is_greedy(
    config: TransformerConfig, seed: int, lengths: list[int]
) -> None:
    model, source = make(config, seed), batch(seed, lengths)
    greedy = greedy_decode(model, source, max_extra_tokens=5)
    assert sample(model, source, top_k=1, max_extra_tokens=5) == greedy
    assert sample(model, source, temperature=1e-6, max_extra_tokens=5) == greedy


def test_the_same_generator_draws_the_same_sentences() -> None:
    model, source = make(), batch(0, [4, 4, 4])
    before = torch.random.get_rng_state()
    one, other, third = (
        sample(model, source, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    )
    assert one == other != third
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any({PAD, BOS, EOS} & {*row} for row in one + third)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"temperature": 0.0}, "temperature"), ({"top_k": 0}, "top_k"), ({"top_p": 0.0}, "top_p")],
)
def test_impossible_knobs_are_refused(options: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        sample(make(), batch(0, [3]), **options)  # type: ignore[arg-type]


# --- Lines ---


@given(lengths=st.lists(st.integers(0, 30), max_size=40), max_tokens=st.integers(1, 100))
def test_each_sentence_is_in_one_batch(lengths: list[int], max_tokens: int) -> None:
    groups = list(length_batches(lengths, max_tokens))
    together = sorted(n for group in groups for n in group)
    assert together == [n for n, length in enumerate(lengths) if length]
    for group in groups:
        assert len(group) == 1 or max(lengths[n] for n in group) * len(group) <= max_tokens


PAIRS = grammar(300, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=500)


@pytest.fixture(scope="module")
def model() -> Transformer:
    """A model that has learned a little, so that its sentences end."""
    torch.manual_seed(0)
    shape = TransformerConfig(
        len(TOKENIZER), layers=1, d_model=32, d_ff=64, heads=2, max_length=120
    )
    return train(Transformer(shape).double(), TOKENIZER, PAIRS, TrainingConfig(steps=60))


def test_order_and_empty_lines_are_kept(model: Transformer) -> None:
    lines = [pair.source for pair in PAIRS[:30]]
    lines[0] = lines[11] = ""
    lines[20] = "  \t"
    together = translate(model, TOKENIZER, lines, max_tokens=60)
    assert together == [translate(model, TOKENIZER, [line])[0] for line in lines]
    assert [i for i, line in enumerate(together) if not line] == [0, 11, 20]
    assert translate(model, TOKENIZER, []) == []


def test_translating_changes_nothing_about_the_model(model: Transformer) -> None:
    lines = [pair.source for pair in PAIRS[:3]]
    quiet = translate(model, TOKENIZER, lines)
    model.train()
    assert translate(model, TOKENIZER, lines) == quiet  # no dropout
    assert model.training
    model.eval()
    translate(model, TOKENIZER, lines)
    assert not model.training


def test_a_sentence_that_is_too_long_is_named_before_any_work(model: Transformer) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has \d+ tokens, the model reads 120"):
        translate(model, TOKENIZER, ["Der Hund schläft.", "sehr " * 200])


def test_unknown_characters_are_no_error(model: Transformer) -> None:
    odd = ["日本語 😀 \x00", "Ünïcödé", "\u200b", "a\u0301\ufeff", "\U0010ffff", "e\r\nf"]
    assert len(translate(model, TOKENIZER, odd)) == len(odd)


def test_half_a_character_is_named(model: Transformer) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 .*'\\udcfc', at position 3"):
        translate(model, TOKENIZER, ["gut", "gr\udcfcn"])


def test_one_string_is_not_a_list(model: Transformer) -> None:
    with pytest.raises(ValueError, match="give a list"):
        translate(model, TOKENIZER, "Der Hund")


def test_options_reach_the_search(model: Transformer) -> None:
    lines = [pair.source for pair in PAIRS[:6]]
    sources = [[*TOKENIZER.encode(line), EOS] for line in lines]
    by_hand = [
        TOKENIZER.decode(beam_search(model, torch.tensor([row]), 2, 1.0, 3)[0][0].tokens)
        for row in sources
    ]
    assert translate(model, TOKENIZER, lines, beam=2, alpha=1.0, max_extra_tokens=3) == by_hand


# --- The command line's translate ---


def run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    lines: bytes = b"",
) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("lines", "count"), [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b"Hund", 1), (b"Hund\n", 1)]
)
def test_as_many_lines_out_as_in(
    model: Transformer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lines: bytes,
    count: int,
) -> None:
    save_model(model, TOKENIZER, tmp_path)
    code, output, _ = run(capsys, monkeypatch, ["translate", "--model", str(tmp_path)], lines)
    assert code == 0 and output.count("\n") == count


@pytest.mark.parametrize(
    ("arguments", "lines", "message"),
    [
        (["translate", "--model", "nowhere"], b"", "nowhere holds no model"),
        (["translate", "--model", "SAVED"], b"Hund\n\xff\n", "line 2 of the input is not UTF-8"),
        (["translate", "--model", "SAVED"], b"sehr " * 500, "sentence 1 has"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    model: Transformer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    lines: bytes,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(model, TOKENIZER, tmp_path / "SAVED")
    code, output, errors = run(capsys, monkeypatch, arguments, lines)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1 and message in errors
