"""The grammar says what it should: right German, right English, and an alignment that is gold."""

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from annotated_transformer.data import Pair, words
from annotated_transformer.toolkit.synchronous_grammar import (
    PLACES,
    PRESENT_TIMES,
    Phrase,
    draw_main_clause,
    draw_sentence,
    english_clause,
    german_clause,
    grammar,
    join,
    linked,
    to_pair,
)

PAIRS = grammar(3000, seed=3)


def test_the_seed_alone_decides() -> None:
    assert grammar(100, seed=3) == PAIRS[:100]
    assert grammar(100, seed=4) != PAIRS[:100]


@pytest.mark.parametrize("count", [0, 1])
def test_a_corpus_of_few(count: int) -> None:
    assert len(grammar(count)) == count


def test_no_german_sentence_comes_twice() -> None:
    assert len({pair.source for pair in PAIRS}) == len(PAIRS)


def test_there_are_sentences_without_end() -> None:
    """Of n draws fewer than 2 in 100 repeat: drawing any number of different ones is cheap."""
    rng = Random(0)
    drawn = [to_pair(draw_sentence(rng)).source for _ in range(3000)]
    assert len(set(drawn)) > 0.98 * len(drawn)


def test_every_word_but_a_german_comma_is_aligned() -> None:
    for source, target, alignment in PAIRS:
        german, english = words(source), words(target)
        assert alignment is not None
        assert {j for _, j in alignment} == set(range(len(english))), (source, target)
        linked_words = {i for i, _ in alignment}
        assert linked_words <= set(range(len(german)))
        unlinked = [word for i, word in enumerate(german) if i not in linked_words]
        assert set(unlinked) <= {","}, (source, target)


DICTIONARY = {
    "Hund": {"dog"},
    "weil": {"because"},
    "nicht": {"not"},
    "Brief": {"letter"},
    "im": {"in", "the"},
    "angerufen": {"called", "call"},
    "zwei": {"two"},
}


def test_links_join_words_that_mean_the_same() -> None:
    """Every link of a few unmistakable words goes where a dictionary says."""
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
            assert " ".join(words(text)) == re.sub(r"([,.?])", r" \1", text), text
        assert not re.search(r"\b[Aa] [aeiou]", pair.target), pair.target


# Which ending an adjective has behind a determiner, from a school book: all cases together
MASCULINE = {
    "der": "e",
    "dieser": "e",
    "ein": "er",
    "den": "en",
    "diesen": "en",
    "einen": "en",
    "keinen": "en",
    "dem": "en",
    "diesem": "en",
    "einem": "en",
}
FEMININE = {
    "die": "e",
    "diese": "e",
    "eine": "e",
    "keine": "e",
    "der": "en",
    "dieser": "en",
    "einer": "en",
}
NEUTER = {
    "das": "e",
    "dieses": "e",
    "ein": "es",
    "kein": "es",
    "dem": "en",
    "diesem": "en",
    "einem": "en",
}
PLURAL = {
    "die": "en",
    "diese": "en",
    "keine": "en",
    "zwei": "e",
    "den": "en",
    "diesen": "en",
}
DATIVE_PLURAL = {"den": "en", "diesen": "en", "zwei": "en"}
NOUNS = {
    "Hund": MASCULINE,
    "Brief": MASCULINE,
    "Katze": FEMININE,
    "Frau": FEMININE,
    "Kind": NEUTER,
    "Buch": NEUTER,
    "Hunde": PLURAL,
    "Bücher": PLURAL,
    "Frauen": PLURAL | {"zwei": "e en"},  # in the dative, too
    "Hunden": DATIVE_PLURAL,
}
ADJECTIVE_STEMS = "klein|groß|alt|jung|freundlich|klug|schwarz|hungrig|neu|schön"


def noun_phrases(noun: str, text: str) -> list[tuple[str, str]]:
    """Determiner and adjective ending, which may be empty, wherever a noun has them."""
    determiners = {word for endings in NOUNS.values() for word in endings}
    determiner = rf"\b({'|'.join(determiners)}) "
    adjective = rf"(?:(?:{ADJECTIVE_STEMS})(e[nrs]?) )?"
    return re.findall(rf"{determiner}{adjective}{noun}\b", text, re.IGNORECASE)


@pytest.mark.parametrize("noun", NOUNS)
def test_german_articles_and_adjectives_agree(noun: str) -> None:
    """Determiner and adjective ending before a noun are those of a school book."""
    with_adjective = set()
    for pair in PAIRS:
        for determiner, ending in noun_phrases(noun, pair.source):
            assert determiner.lower() in NOUNS[noun], pair.source
            endings = NOUNS[noun][determiner.lower()].split()
            assert ending in ("", *endings), pair.source
            with_adjective.add(ending != "")
    assert with_adjective == {True, False}


def clauses(text: str) -> list[str]:
    """The parts of a sentence between its marks."""
    return re.split(r"[,.?]", text)


def test_german_verbs_govern_their_case() -> None:
    """Who is helped stands in the dative, who is called in the accusative."""
    for pair in PAIRS:
        for clause in clauses(pair.source):
            if re.search(r"hilft|helfe|geholfen|folg|hört|hör|zugehört", clause):
                accusative = r"\b(ihn|einen|keinen|keine|kein)\b"
                assert not re.search(accusative, clause), pair.source
            if re.search(r"ruf", clause):
                dative = r"\b(ihm|ihnen|einem|einer)\b"
                assert not re.search(dative, clause), pair.source


def test_german_closes_its_bracket() -> None:
    """A particle ends its clause, and an infinitive that of its modal verb."""
    for pair in PAIRS:
        for clause in clauses(pair.source):
            german = words(clause)
            if "ruft" in german:
                assert german[-1] == "an", pair.source
            modals = [word for word in german if word in ("muss", "soll", "kann")]
            if modals:
                assert german[-1].endswith(("en", *modals)), pair.source


def test_in_a_subordinate_clause_particle_and_verb_are_one_word() -> None:
    last_words = set()
    for pair in PAIRS:
        for clause in clauses(pair.source):
            german = words(clause)
            if german and german[0].lower() in ("weil", "obwohl", "während"):
                last_words.add(german[-1])
    assert "anruft" in last_words
    assert last_words.isdisjoint(["an", "auf", "ein", "ab", "zu"])


WRONG_ENGLISH = [
    r"\b(two|these) (\w+ )?(dogs|cats|mice|men|guests) (sees|does)\b",
    r"\b(I|we|they) (sees|does)\b",
    r"\b(he|she) (see|do)\b",
    r"\b(?!does|do|did)\w+ not\b",
    r"\b(did|does|do|must|can|should)( not)? (sees|saw|calls|called|gave|gives)\b",
]


@pytest.mark.parametrize("wrong", WRONG_ENGLISH)
def test_english_agrees(wrong: str) -> None:
    """Verbs agree with their subjects, and a negation has its `do`."""
    for pair in PAIRS:
        if pair.target.endswith("."):
            assert not re.search(wrong, pair.target), pair.target


PHENOMENA = {
    "question": r"\?$",
    "perfect": r"\b([Hh]at|[Hh]aben|[Ii]st|[Ss]ind|[Hh]abe|[Bb]in)\b",
    "modal": r"\b([Kk]ann|[Mm]uss|[Ss]oll|[Kk]önnen|[Mm]üssen|[Ss]ollen)\b",
    "particle apart": r"\b(ruft|holt|hebt|steht|lädt|kommt|hört)\b.* (an|ab|auf|ein|zu)\b",
    "verb last": r"([Ww]eil|[Oo]bwohl|[Ww]ährend) ",
    "relative clause": r", (der|die|das|dem|den|denen) ",
    "negation": r"\b(nicht|keine?n?)\b",
    "plural": r"\b([Zz]wei|Männer|Frauen|Hunde|Katzen|Bücher)\b",
    "early object or clause": r"^(Den|Dem|Diesen|Diesem|Einen|Einem|Weil|Obwohl|Während) ",
    "time or place": r"\b([Hh]eute|[Gg]estern|im Garten|am Fluss|vor der Schule)\b",
}


def test_every_phenomenon_comes_up_and_several_meet() -> None:
    counts: Counter[str] = Counter()
    rich_sentences = 0
    for pair in PAIRS:
        names = [
            name for name, rule in PHENOMENA.items() if re.search(rule, pair.source)
        ]
        counts.update(names)
        if len(names) >= 4:
            rich_sentences += 1
    assert set(counts) == set(PHENOMENA)
    assert rich_sentences > len(PAIRS) / 20


class Chooser(Random):
    """Dice that take what is asked for, and no frills."""

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Sequence[Any]) -> Any:
        wanted = [entry for entry in seq if entry[0] in ("Hund", "schlafen")]
        return wanted[0] if wanted else seq[0]


def test_the_sentence_of_the_readme_can_be_drawn() -> None:
    assert PRESENT_TIMES.startswith("heute=today")
    assert PLACES.startswith("im|Garten=in the|garden")
    clause = draw_main_clause(Chooser())._replace(
        time=linked("heute", "today"), place=linked("im|Garten", "in the|garden")
    )
    ordered = Phrase(german_clause(clause), english_clause(clause))
    phrase = join(ordered, linked(".", "."))
    links = {(0, 0), (1, 1), (2, 2), (3, 6), (4, 3), (4, 4), (5, 5), (6, 7)}
    source = "Der Hund schläft heute im Garten."
    target = "The dog sleeps in the garden today."
    assert to_pair(phrase) == Pair(source, target, frozenset(links))
