"""Scores are sacreBLEU's, and what cannot be scored is refused."""

import pytest
import sacrebleu

from annotated_transformer.evaluation import compound_split_bleu, score, split_compounds
from annotated_transformer.synchronous_grammar import grammar

REFERENCES = [pair.target for pair in grammar(120, seed=3)]


def damaged(every: int) -> list[str]:
    """The references, where each `every`-th has lost its second word."""
    lines = []
    for number, reference in enumerate(REFERENCES):
        words = reference.split()
        if number % every == 0:
            del words[1]
        lines.append(" ".join(words))
    return lines


def test_scores_are_those_of_sacrebleu() -> None:
    outputs = damaged(3)
    scores = score(outputs, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(outputs, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(outputs, [REFERENCES]).score
    assert "case:mixed" in scores.bleu_signature
    assert "tok:13a" in scores.bleu_signature
    assert "nc:6|nw:0" in scores.chrf_signature


def test_the_reference_itself_has_100_and_nothing_has_0() -> None:
    assert score(REFERENCES, REFERENCES)[:2] == pytest.approx((100, 100))
    assert score([""] * len(REFERENCES), REFERENCES)[:2] == (0, 0)
    assert compound_split_bleu(REFERENCES, REFERENCES) == pytest.approx(100)


def test_compounds_are_cut_at_hyphens_and_quotes_are_plain() -> None:
    assert split_compounds("the „dark-blue“ 3-D T-Shirt - new.") == (
        'the " dark ##AT##-##AT## blue " 3 - D T ##AT##-##AT## Shirt - new .'
    )


@pytest.mark.parametrize(
    ("output", "reference", "tokens"),
    [
        ("他昨天丢了钥匙。", "他昨天弄丢了钥匙。", "char"),
        ("เมื่อวานเขาทำกุญแจหาย", "เมื่อวานเขาทำลูกกุญแจหาย", "char"),
        ("그는 어제 열쇠를 잃어버렸다.", "그는 어제 그 열쇠를 잃어버렸다.", "13a"),
        ("Он вчера потерял ключ.", "Вчера он потерял ключ.", "13a"),
        ("བོད་ཀྱི་སྐད་ཡིག", "བོད་ཀྱི་སྐད་ཡིག་གི", "char"),
        ("ｱﾘｶﾞﾄｳｺﾞｻﾞｲﾏｽ", "ｱﾘｶﾞﾄｳｺﾞｻﾞｲﾏｼﾀ", "char"),
        ("My name is 王.", "My name is 王, too.", "13a"),
    ],
)
def test_text_without_spaces_is_scored_by_characters(
    output: str, reference: str, tokens: str
) -> None:
    outputs = [output] * 2
    references = [reference] * 2
    scores = score(outputs, references)
    expected = sacrebleu.corpus_bleu(outputs, [references], tokenize=tokens)
    assert scores.bleu == expected.score
    assert f"tok:{tokens}" in scores.bleu_signature
    if tokens == "char":
        assert scores.bleu > 20


def test_compounds_that_agree_raise_the_score() -> None:
    outputs = [f"a dark-blue T-shirt and {line}" for line in damaged(2)]
    references = [f"a dark-blue T-shirt and {line}" for line in REFERENCES]
    assert compound_split_bleu(outputs, references) > score(outputs, references).bleu


def test_without_compounds_and_quotes_it_is_the_usual_score() -> None:
    outputs = damaged(2)
    usual = score(outputs, REFERENCES).bleu
    assert compound_split_bleu(outputs, REFERENCES) == pytest.approx(usual)


@pytest.mark.parametrize(
    ("hypotheses", "references", "counts"),
    [
        (["one"], ["one", "two"], "1 translations for 2 references"),
        ([], [], "0 translations for 0 references"),
        ("ab", ["a", "b"], "2 translations for 2 references"),
    ],
)
def test_what_cannot_be_scored_is_refused(hypotheses, references, counts) -> None:
    with pytest.raises(ValueError, match=counts):
        score(hypotheses, references)
