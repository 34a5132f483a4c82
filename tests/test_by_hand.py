"""Chapter 11: the sentence that is worked by hand needs its encoder."""

import pytest

from book import by_hand


def answer(without=""):
    """Return the probabilities of the five English words."""
    return by_hand.steps(by_hand.x, by_hand.t, without).p[0]


def test_without_attention_in_the_encoder_the_word_is_wrong():
    """The position says cat, and what the encoder found says fish."""
    assert by_hand.WORDS[answer().argmax()] == "fish"
    alone = answer(without="self-attention")
    assert by_hand.WORDS[alone.argmax()] == "cat"
    assert answer()[4] > 0.6 and alone[2] > 0.6


@pytest.mark.parametrize("part", by_hand.PARTS)
def test_no_part_is_idle(part):
    """Whichever adds nothing, another word than fish is the likeliest."""
    assert answer(without=part).argmax() != by_hand.WORDS.index("fish")


def test_with_the_subject_first_the_position_suffices():
    """The same words in the order of the English ones: fish stands where it is asked for."""
    x = by_hand.read(["die", "schwarze", "Katze", "mag", "den", "Fisch"])
    for without in ("", "self-attention"):
        p = by_hand.steps(x, by_hand.t, without).p[0]
        assert by_hand.WORDS[p.argmax()] == "fish"


def test_only_den_marks_an_object():
    """With die in its place nothing says that the fish is liked, and it isn't found."""
    words = ["die", *by_hand.GERMAN[1:]]
    p = by_hand.steps(by_hand.read(words), by_hand.t).p[0]
    assert p.argmax() != by_hand.WORDS.index("fish") and p[4] < 0.1
