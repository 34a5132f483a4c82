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
    _, _, tokenizer = next(learn(last=0))
    return tokenizer


def test_the_files_are_small_and_complete():
    assert SCRIPT.stat().st_size < 1_100_000
    assert OUTPUT.stat().st_size < 100_000
    assert len(read_checkpoints()) == len(STEPS) == len(RECORDED["steps"])
    assert [line["step"] for line in RECORDED["steps"]] == [*STEPS]
    assert [example["text"] for example in RECORDED["examples"]] == [*EXAMPLES]


def test_something_is_learned():
    """The loss falls from each checkpoint to the next, and the sentences come out at the end."""
    steps = RECORDED["steps"]
    losses = [step["loss"] for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 6
    assert losses[-1] < 0.5
    assert steps[0]["right"] == 0
    assert steps[-1]["right"] > 0
    outputs = [example["steps"][-1]["text"] for example in RECORDED["examples"]]
    assert outputs[0] == "Yesterday the teacher did not look for the book."
    # The chapter says so: it is the other way round
    assert outputs[3] == "The dog chases the cat."


def test_nothing_held_out_is_learned():
    learned, held_out = read_pairs()
    assert len(held_out) == HELD_OUT
    assert not {pair.source for pair in learned} & {pair.source for pair in held_out}


def test_recordings_are_what_the_checkpoints_say(tokenizer):
    """Translations, attention and loss, computed with the weights as rounded."""
    _, held_out = read_pairs()
    corpus = encode_pairs(tokenizer, held_out)
    for number, checkpoint in enumerate(read_checkpoints()):
        model = rounded(checkpoint)
        for example in RECORDED["examples"]:
            recorded = example["steps"][number]
            computed = translation(model, tokenizer, example["text"])
            assert recorded["text"] == computed["text"]
            assert recorded["tokens"] == computed["tokens"]
            rows = zip(recorded["looks"], computed["looks"], strict=True)
            for recorded_row, computed_row in rows:
                assert recorded_row == pytest.approx(computed_row, abs=0.011)
        loss = RECORDED["steps"][number]["loss"]
        assert validation(model, corpus) == pytest.approx(loss, abs=0.006)


@pytest.mark.slow
def test_the_training_can_be_repeated():
    """`python -m tools.learning` makes the same checkpoints, but for the last bits of sums."""
    _, held_out = read_pairs()
    updates = []
    for step, model, tokenizer in learn(last=STEPS[2]):
        model = rounded(json.loads(packed(model, tokenizer)))
        corpus = encode_pairs(tokenizer, held_out)
        loss = RECORDED["steps"][len(updates)]["loss"]
        assert validation(model, corpus) == pytest.approx(loss, abs=0.05)
        updates.append(step)
    assert updates == [*STEPS[:3]]


@pytest.mark.slow
def test_it_begins_with_the_same_weights(tokenizer):
    _, model, _ = next(learn(last=0))
    tensors = unpacked(json.loads(packed(model, tokenizer)))
    first, *_ = read_checkpoints()
    for name, tensor in unpacked(first).items():
        assert tensor == pytest.approx(tensors[name], abs=1e-5), name
