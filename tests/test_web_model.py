"""A model as a script for a page: rounded rows, all in its place, true recordings."""

import base64
import json

import numpy as np
import pytest
import torch

from annotated_transformer.model_io import load_model
from tools.recordings import OUTPUT, WHAT_IF, model_of_the_page, record_what_if, recordings
from tools.web_model import SHOWN, pack, page, quantize, read_weights, rounded_weights


def test_a_row_is_rounded_to_its_own_scale():
    """No weight moves by more than half a step of its row; a row of zeros stays one."""
    matrix = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    matrix *= np.logspace(-6, 6, 20, dtype=np.float32)[:, None]
    matrix[7] = 0
    whole, scales = quantize(matrix)
    assert whole.dtype == np.int8 and set(np.abs(whole).max(axis=1)) == {0, 127}
    apart = np.abs(whole * scales[:, None] - matrix)
    assert (apart <= 0.5001 * scales[:, None]).all() and not apart[7].any()


def test_the_script_holds_every_tensor():
    """Read back as the page reads it, each is what Python multiplies out; twice the same text."""
    text = pack(SHOWN)
    assert text == pack(SHOWN) and text.isascii()
    model = json.loads(text.removeprefix("bookFigures.model = ").removesuffix(";\n"))
    assert model["config"] == json.loads((SHOWN / "config.json").read_text(encoding="utf-8"))
    data = base64.b64decode(model["weights"])
    singles = np.frombuffer(data, "<f4", model["singles"])
    whole = np.frombuffer(data, np.int8, offset=4 * model["singles"])
    wanted, read = rounded_weights(SHOWN), 0
    assert {*model["tensors"]} == {*wanted} == {*read_weights(SHOWN)}
    for name, ((rows, *columns), single, byte) in model["tensors"].items():
        found = singles[single : single + rows]
        if columns:
            numbers = whole[byte : byte + rows * columns[0]].reshape(rows, -1)
            found = numbers * found[:, None]
            read += numbers.size
        assert np.array_equal(found, wanted[name]), name
    assert read == whole.size


def test_rounding_hardly_changes_the_model():
    """It loads into PyTorch, and the weights are those of the model to three digits."""
    model, _ = load_model(SHOWN)
    for name, array in rounded_weights(SHOWN).items():
        exact = model.state_dict()[name]
        assert torch.linalg.norm(torch.from_numpy(array) - exact) < 0.02 * torch.linalg.norm(exact)


def test_recordings_are_what_the_model_says():
    """`python -m tools.recordings` would write the same; eight, failures among them."""
    recorded = json.loads(OUTPUT.read_text(encoding="utf-8"))
    assert len(recorded) == 8 and 3 <= sum(bool(row["note"]) for row in recorded) <= 5
    for old, new in zip(recorded, recordings(), strict=True):
        assert [old[key] for key in ("text", "note", "source")] == [
            new[key] for key in ("text", "note", "source")
        ]
        for was, now in zip(old["steps"], new["steps"], strict=True):
            assert (was["token"], was["text"]) == (now["token"], now["text"])
            assert was["look"] == pytest.approx(now["look"], abs=0.002)
            shares = [[share for _, share in step["best"]] for step in (was, now)]
            assert shares[0] == pytest.approx(shares[1], abs=0.002)


@pytest.mark.slow
def test_what_if_is_what_the_model_says():
    """The same for the figures of the chapters; numbers may differ in the last digit."""

    def compare(old, new):
        assert type(old) is type(new)
        if isinstance(old, dict):
            assert old.keys() == new.keys()
            for key in old:
                compare(old[key], new[key])
        elif isinstance(old, list):
            for pair in zip(old, new, strict=True):
                compare(*pair)
        else:
            assert old == (pytest.approx(new, abs=0.002) if isinstance(old, float) else new)

    recorded = json.loads(WHAT_IF.read_text(encoding="utf-8"))
    assert len(recorded) == 5
    compare(recorded, json.loads(json.dumps(record_what_if(*model_of_the_page()))))


def test_one_page_holds_everything():
    """Nothing in it is loaded from elsewhere, and no script ends early."""
    text = page(SHOWN)
    assert "url(" not in text and "src=" not in text and "<link" not in text
    assert text.count("<script>") == text.count("</script>") == 1
    assert f"<title>{SHOWN.name} translates</title>" in text
