"""The grammar says what it should: right German, right English, and an alignment that is gold."""

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from annotated_transformer.data import Pair, words
from annotated_transformer.synchronous_grammar import (
    PLACES,
    TIMES,
    draw_main_clause,
    draw_sentence,
    english_clause,
    german_clause,
    grammar,
    join,
    linked,
    to_pair,
)
from annotated_transformer.synchronous_grammar import Phrase as GrammarPhrase

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
        unlinked = set(range(len(german))) - linked_words
        assert all(german[i] == "," for i in unlinked), (source, target)


def test_links_join_words_that_mean_the_same() -> None:
    """Every link of a few unmistakable words goes where a dictionary says."""
    dictionary = {"Hund": {"dog"}, "weil": {"because"}, "nicht": {"not"}, "Brief": {"letter"}}
    dictionary |= {"im": {"in", "the"}, "angerufen": {"called", "call"}, "zwei": {"two"}}
    seen = set()
    for source, target, alignment in PAIRS:
        german, english = words(source), words(target)
        for i, j in alignment or ():
            if german[i] in dictionary:
                seen.add(german[i])
                assert english[j].lower() in dictionary[german[i]], (source, target)
    assert seen == set(dictionary)


def test_sentences_are_spelled_as_sentences() -> None:
    for pair in PAIRS:
        for text in (pair.source, pair.target):
            assert re.fullmatch(r"[A-ZÄÖÜ].*\w[.?]", text), text
            assert not re.search(r" [,.?]|  |,,|,[.?]", text), text
            assert " ".join(words(text)) == re.sub(r"([,.?])", r" \1", text), text
        assert not re.search(r"\b[Aa] [aeiou]", pair.target), pair.target


# Which ending an adjective has behind a determiner, from a school book: all cases together
MASCULINE = {"der": "e", "ein": "er", "dieser": "e", "den": "en", "einen": "en"}
MASCULINE |= {"diesen": "en", "keinen": "en", "dem": "en", "einem": "en", "diesem": "en"}
FEMININE = {"die": "e", "eine": "e", "diese": "e", "keine": "e"}
FEMININE |= {"der": "en", "einer": "en", "dieser": "en"}
NEUTER = {"das": "e", "ein": "es", "dieses": "e", "kein": "es"}
NEUTER |= {"dem": "en", "einem": "en", "diesem": "en"}
MANY = {"die": "en", "diese": "en", "keine": "en", "zwei": "e", "den": "en", "diesen": "en"}
NOUNS = {"Hund": MASCULINE, "Brief": MASCULINE, "Katze": FEMININE, "Frau": FEMININE}
NOUNS |= {
    "Kind": NEUTER,
    "Buch": NEUTER,
    "Hunde": MANY,
    "Frauen": MANY | {"zwei": "e en"},
    "Bücher": MANY,
}
NOUNS |= {"Hunden": {"den": "en", "diesen": "en", "zwei": "en"}}


def test_german_articles_and_adjectives_agree() -> None:
    """Determiner and adjective ending before a noun are those of a school book."""
    determiner = "|".join({word for endings in NOUNS.values() for word in endings})
    adjective = "klein|groß|alt|jung|freundlich|klug|schwarz|hungrig|neu|schön"
    seen = set()
    for pair in PAIRS:
        for noun, endings in NOUNS.items():
            phrase = rf"\b({determiner}) (?:(?:{adjective})(e[nrs]?) )?{noun}\b"
            for found, ending in re.findall(phrase, pair.source, re.IGNORECASE):
                assert found.lower() in endings, (found, noun, pair.source)
                assert ending in ("", *endings[found.lower()].split()), pair.source
                seen.add((noun, bool(ending)))
    assert seen == {(noun, described) for noun in NOUNS for described in (True, False)}


def test_german_verbs_govern_their_case() -> None:
    """Who is helped stands in the dative, who is called in the accusative."""
    for pair in PAIRS:
        for clause in re.split(r"[,.?]", pair.source):
            if re.search(r"hilft|helfe|geholfen|folg|hört|hör|zugehört", clause):
                assert not re.search(r"\b(ihn|einen|keinen|keine|kein)\b", clause), pair.source
            if re.search(r"ruf", clause):
                assert not re.search(r"\b(ihm|ihnen|einem|einer)\b", clause), pair.source


def test_german_closes_its_bracket() -> None:
    """A particle ends its clause; in a subordinate clause it is one with its verb."""
    rejoined = 0
    for pair in PAIRS:
        for clause in re.split(r"[,.?]", pair.source):
            found = words(clause)
            if found and found[0].lower() in ("weil", "obwohl", "während"):
                assert found[-1] not in ("an", "auf", "ein", "ab", "zu"), pair.source
                rejoined += found[-1] == "anruft"
            assert "ruft" not in found or found[-1] == "an", pair.source
            opens = [word for word in found if word in ("muss", "soll", "kann")]
            assert not opens or found[-1].endswith(("en", *opens)), pair.source
    assert rejoined


def test_english_agrees() -> None:
    """Verbs agree with their subjects, and a negation has its `do`."""
    wrong = [
        r"\b(two|these) (\w+ )?(dogs|cats|mice|men|guests) (sees|does)\b",
        r"\b(I|we|they) (sees|does)\b",
        r"\b(he|she) (see|do)\b",
        r"\b(?!does|do|did)\w+ not\b",
        r"\b(did|does|do|must|can|should)( not)? (sees|saw|calls|called|gave|gives)\b",
    ]
    for pair in PAIRS:
        if pair.target.endswith("."):
            assert not re.search("|".join(wrong), pair.target), pair.target


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
    found = [{n for n, rule in PHENOMENA.items() if re.search(rule, p.source)} for p in PAIRS]
    assert set().union(*found) == set(PHENOMENA)
    assert sum(len(some) >= 4 for some in found) > len(PAIRS) / 20


class Chooser(Random):
    """Dice that take what is asked for, and no frills."""

    wanted = ("Hund", "schlafen")

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Sequence[Any]) -> Any:
        fits = [one for one in seq if str(one[0]) in self.wanted or one[0][0] in self.wanted]
        return (fits or seq)[0]


def test_the_sentence_of_the_readme_can_be_drawn() -> None:
    assert TIMES[0].startswith("heute=today") and PLACES.startswith("im|Garten=in the|garden")
    clause = draw_main_clause(Chooser())._replace(
        time=linked("heute", "today"), place=linked("im|Garten", "in the|garden")
    )
    phrase = join(GrammarPhrase(german_clause(clause), english_clause(clause)), linked(".", "."))
    links = {(0, 0), (1, 1), (2, 2), (3, 6), (4, 3), (4, 4), (5, 5), (6, 7)}
    source, target = "Der Hund schläft heute im Garten.", "The dog sleeps in the garden today."
    assert to_pair(phrase) == Pair(source, target, frozenset(links))
