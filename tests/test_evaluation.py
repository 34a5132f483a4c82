"""Scores are sacreBLEU's, refuse what cannot be scored, and their comparison is fair."""

import numpy as np
import pytest
import sacrebleu

from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.evaluation import bleu_of, paired_bootstrap, resampled, score, sentence_counts

REFERENCES = [pair.target for pair in grammar(120, seed=3)]


def damaged(every: int) -> list[str]:
    """The references, where each `every`-th has lost its second word."""
    lines = [line.split() for line in REFERENCES]
    return [" ".join(w[:1] + w[2:] if i % every == 0 else w) for i, w in enumerate(lines)]


def test_scores_are_those_of_sacrebleu() -> None:
    outputs = damaged(3)
    found = score(outputs, REFERENCES)
    assert found.bleu == sacrebleu.corpus_bleu(outputs, [REFERENCES]).score
    assert found.chrf == sacrebleu.corpus_chrf(outputs, [REFERENCES]).score
    assert "case:mixed" in found.bleu_signature and "tok:13a" in found.bleu_signature
    assert "nc:6|nw:0" in found.chrf_signature


def test_the_reference_itself_has_100_and_nothing_has_0() -> None:
    assert score(REFERENCES, REFERENCES)[:2] == pytest.approx((100, 100))
    assert score([""] * len(REFERENCES), REFERENCES)[:2] == (0, 0)


@pytest.mark.parametrize(
    "hypotheses, references, message",
    [
        (["one"], ["one", "two"], "1 translations for 2 references"),
        ([], [], "empty"),
        ("one", ["one"], "not one string"),
        (["a"], "a", "not one string"),
    ],
)
def test_what_cannot_be_scored_is_refused(hypotheses, references, message) -> None:
    for function in (score, sentence_counts):
        with pytest.raises(ValueError, match=message):
            function(hypotheses, references)


def test_counts_add_up_to_the_corpus_score() -> None:
    outputs = [*damaged(2)[:-2], "", "a"]
    total = sentence_counts(outputs, REFERENCES).sum(axis=0)
    assert bleu_of(total) == pytest.approx(score(outputs, REFERENCES).bleu)


def test_resamples_equal_lists_of_drawn_sentences() -> None:
    outputs, size = damaged(2), len(REFERENCES)
    fast = resampled(sentence_counts(outputs, REFERENCES), samples=4, seed=5)
    draws = np.random.default_rng(5).multinomial(size, np.full(size, 1 / size), 4)
    for row, found in zip(draws, fast):
        lines = [np.repeat(side, row).tolist() for side in (outputs, REFERENCES)]
        assert found == pytest.approx(score(*lines).bleu)


def test_a_system_is_not_better_than_itself() -> None:
    found = paired_bootstrap(damaged(2), damaged(2), REFERENCES, samples=50)
    assert found == (0, 0, 0, 1)


def test_a_clear_difference_is_found_and_turns_with_the_order() -> None:
    better, worse = damaged(10), damaged(2)
    found = paired_bootstrap(better, worse, REFERENCES, samples=200)
    assert 0 < found.low < found.difference < found.high and found.p_value < 0.02
    turned = paired_bootstrap(worse, better, REFERENCES, samples=200)
    assert turned.difference == pytest.approx(-found.difference)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert turned.p_value == found.p_value


def test_the_seed_decides() -> None:
    lines = damaged(10), damaged(9), REFERENCES
    once, again, other = (paired_bootstrap(*lines, samples=60, seed=seed) for seed in (1, 1, 2))
    assert once == again != other


def test_chance_is_not_called_a_difference() -> None:
    """Two systems that fail on every second of the odd or the even lines are about equal."""
    words = [line.split() for line in REFERENCES]
    one, other = (
        [" ".join(w[:1] + w[2:] if i % 2 == part else w) for i, w in enumerate(words)]
        for part in (0, 1)
    )
    assert paired_bootstrap(one, other, REFERENCES, samples=300).p_value > 0.05
