"""The grammar says what it should: right German, right English, and an alignment that is gold."""

import re
from hashlib import sha256

import pytest

from annotated_transformer.data import words
from annotated_transformer.synchronous_grammar import grammar

PAIRS = grammar(3000, seed=3)


def test_the_seed_alone_decides() -> None:
    """Models were trained on these very sentences: whatever changes them makes new ones."""
    assert grammar(100, seed=3) == PAIRS[:100]
    assert grammar(100, seed=4) != PAIRS[:100]
    text = "\n".join(f"{pair.source}\t{pair.target}" for pair in PAIRS)
    assert sha256(text.encode()).hexdigest()[:16] == "d9b702a801ffbfaf"


def test_no_german_sentence_comes_twice() -> None:
    assert grammar(0) == []
    assert len({pair.source for pair in PAIRS}) == len(PAIRS)


def test_every_word_but_a_german_comma_is_aligned() -> None:
    for source, target, alignment in PAIRS:
        german, english = words(source), words(target)
        assert alignment is not None
        assert {j for _, j in alignment} == set(range(len(english))), (source, target)
        aligned = {i for i, _ in alignment}
        assert aligned <= set(range(len(german)))
        unaligned = [word for i, word in enumerate(german) if i not in aligned]
        assert set(unaligned) <= {","}, (source, target)


DICTIONARY = {
    "Hund": {"dog"},
    "weil": {"because"},
    "nicht": {"not"},
    "im": {"in", "the"},
    "angerufen": {"called", "call"},
    "zwei": {"two"},
}


def test_links_join_words_that_mean_the_same() -> None:
    drawn = set()
    for source, target, alignment in PAIRS:
        german, english = words(source), words(target)
        for i, j in alignment or ():
            if german[i] in DICTIONARY:
                drawn.add(german[i])
                partner = english[j].lower()
                assert partner in DICTIONARY[german[i]], (source, target)
    assert drawn == set(DICTIONARY)


def test_sentences_are_spelled_as_sentences() -> None:
    for pair in PAIRS:
        for text in (pair.source, pair.target):
            assert re.fullmatch(r"[A-ZÄÖÜ].*\w[.?]", text), text
            assert not re.search(r" [,.?]|  |,,|,[.?]", text), text
        assert not re.search(r"\b[Aa] [aeiou]", pair.target), pair.target


# A school book's table: determiners, and the ending of an adjective behind them, in all cases
MASCULINE = (
    "der e, dieser e, ein er, den en, diesen en, einen en, keinen en, dem en, "
    "diesem en, einem en"
)
FEMININE = "die e, diese e, eine e, keine e, der en, dieser en, einer en"
NEUTER = "das e, dieses e, ein es, kein es, dem en, diesem en, einem en"
PLURAL = "die en, diese en, keine en, zwei e, den en, diesen en"
ENDINGS = {
    "Hund": MASCULINE,
    "Brief": MASCULINE,
    "Katze": FEMININE,
    "Kind": NEUTER,
    "Buch": NEUTER,
    "Hunde": PLURAL,
    "Bücher": PLURAL,
    "Hunden": "den en, diesen en, zwei en",
}
ADJECTIVE = "klein|groß|alt|jung|freundlich|klug|schwarz|hungrig|neu|schön"
DETERMINER = r"der|die|das|den|dem|zwei|dies\w+|k?ein\w*"


@pytest.mark.parametrize("noun", ENDINGS)
def test_german_articles_and_adjectives_agree(noun: str) -> None:
    allowed = dict(row.split() for row in ENDINGS[noun].split(", "))
    pattern = rf"\b({DETERMINER}) (?:(?:{ADJECTIVE})(e[nrs]?) )?{noun}\b"
    endings = set()
    for pair in PAIRS:
        for determiner, ending in re.findall(pattern, pair.source.lower(), re.I):
            assert ending in ("", allowed[determiner]), pair.source
            endings.add(ending)
    assert len(endings) > 1


def clauses(pattern: str) -> list[list[str]]:
    """The words of all German clauses, cut at the marks, in which a pattern is found."""
    parts = [part for pair in PAIRS for part in re.split(r"[,.?]", pair.source)]
    found = [words(part) for part in parts if re.search(pattern, part)]
    assert found
    return found


def test_german_verbs_govern_their_case() -> None:
    """Who is helped stands in the dative, who is called in the accusative."""
    for clause in clauses("hilft|helfe|geholfen|folg|hör"):
        assert not {"ihn", "einen", "keinen", "keine", "kein"} & set(clause), clause
    for clause in clauses("ruf"):
        assert not {"ihm", "ihnen", "einem", "einer"} & set(clause), clause


def test_german_verbs_stand_where_they_belong() -> None:
    """The particle, or the infinitive of a modal verb, ends its clause; behind *weil* the verb."""
    for clause in clauses(r"\bruft\b"):
        assert clause[-1] == "an", clause
    for clause in clauses(r"\b(muss|soll|kann)\b"):
        assert clause[-1].endswith(("en", "muss", "soll", "kann")), clause
    last_words = {clause[-1] for clause in clauses("weil|obwohl|während")}
    assert "anruft" in last_words
    assert last_words.isdisjoint(["an", "auf", "ein", "ab", "zu"])


WRONG_ENGLISH = re.compile(
    r"\b(two|these) (\w+ )?(dogs|cats|mice|men|guests) (sees|does)\b"
    r"|\b(I|we|they) (sees|does)\b|\b(he|she) (see|do)\b"
    r"|\b(?!does|do|did)\w+ not\b"
    r"|\b(did|does|do|must|can|should)( not)? (sees|saw|calls|called|gave|gives)\b"
)


def test_english_agrees() -> None:
    """Verbs agree with their subjects, and a negation has its `do`."""
    for pair in PAIRS:
        if pair.target.endswith("."):
            assert not WRONG_ENGLISH.search(pair.target), pair.target
