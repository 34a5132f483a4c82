"""The grammar says the same sentences as ever, and its alignments are gold."""

from hashlib import sha256

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
