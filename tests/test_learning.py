"""The slider over checkpoints: what it shows is what the committed checkpoints say."""

import json

import pytest

from annotated_transformer.batching import encode_pairs
from tools.learning import (
    EXAMPLES,
    HELD_OUT,
    OUTPUT,
    SCRIPT,
    STEPS,
    learn,
    packed,
    read_checkpoints,
    read_pairs,
    rounded,
    translation,
    validation,
)
from tools.web_model import unpacked

RECORDED = json.loads(OUTPUT.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    """The one that the training made."""
    return next(learn(last=0))[2]


def test_the_files_are_small_and_complete():
    assert SCRIPT.stat().st_size < 1_100_000 and OUTPUT.stat().st_size < 100_000
    assert len(read_checkpoints()) == len(STEPS) == len(RECORDED["steps"])
    assert [line["step"] for line in RECORDED["steps"]] == [*STEPS]
    assert [example["text"] for example in RECORDED["examples"]] == [*EXAMPLES]


def test_something_is_learned():
    """The loss falls from each checkpoint to the next, and the sentences come out at the end."""
    losses = [line["loss"] for line in RECORDED["steps"]]
    assert losses == sorted(losses, reverse=True) and losses[0] > 6 and losses[-1] < 0.5
    assert RECORDED["steps"][0]["right"] == 0 < RECORDED["steps"][-1]["right"]
    learned, held_out = ({pair.source for pair in part} for part in read_pairs())
    assert len(held_out) == HELD_OUT and not learned & held_out
    last = [example["steps"][-1]["text"] for example in RECORDED["examples"]]
    assert last[0] == "Yesterday the teacher did not look for the book."
    assert last[3] == "The dog chases the cat.", "the chapter says so: it is the other way round"


def test_recordings_are_what_the_checkpoints_say(tokenizer):
    """Translations, attention and loss, computed with the weights as rounded."""
    corpus = encode_pairs(tokenizer, read_pairs()[1])
    for place, checkpoint in enumerate(read_checkpoints()):
        model = rounded(checkpoint)
        for example in RECORDED["examples"]:
            old, new = example["steps"][place], translation(model, tokenizer, example["text"])
            assert (old["text"], old["tokens"]) == (new["text"], new["tokens"])
            for was, now in zip(old["looks"], new["looks"], strict=True):
                assert was == pytest.approx(now, abs=0.011)
        found = validation(model, corpus)
        assert found == pytest.approx(RECORDED["steps"][place]["loss"], abs=0.006)


@pytest.mark.slow
def test_the_training_can_be_repeated():
    """`python -m tools.learning` makes the same checkpoints, but for the last bits of sums."""
    corpus = None
    for place, (step, model, tokenizer) in enumerate(learn(last=STEPS[2])):
        corpus = corpus or encode_pairs(tokenizer, read_pairs()[1])
        assert step == STEPS[place]
        again = rounded(json.loads(packed(model, tokenizer)))
        was = RECORDED["steps"][place]["loss"]
        assert validation(again, corpus) == pytest.approx(was, abs=0.05)
    assert step == STEPS[2]
    first = next(iter(learn(last=0)))
    ours, theirs = unpacked(read_checkpoints()[0]), unpacked(json.loads(packed(*first[1:])))
    for name, tensor in ours.items():
        assert tensor == pytest.approx(theirs[name], abs=1e-5), name
