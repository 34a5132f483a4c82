"""A model packed for a page, and as a page: all in its place, and nothing that runs but ours."""

import json
import shutil
import subprocess
import sys
from base64 import b64decode
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from annotated_transformer.export import export_page
from annotated_transformer.model_io import load_model, load_pretrained
from annotated_transformer.page import pack, quantize
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.chapters import ROOT
from tools.package import project
from tools.page import page_template
from tools.recordings import OUTPUT, WHAT_IF, model_of_the_page, record_what_if, recordings
from tools.web_model import SHOWN, pack_folder, rounded_weights
from tools.what_if import SIGNS


def test_a_row_is_rounded_to_its_own_scale():
    """No weight moves by more than half a step of its row; a row of zeros stays one."""
    matrix = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    matrix *= np.logspace(-6, 6, 20, dtype=np.float32)[:, None]
    matrix[7] = 0
    whole, scales = quantize(matrix)
    assert scales.dtype == np.float32
    assert whole.dtype == np.int8 and set(np.abs(whole).max(axis=1)) == {0, 127}
    apart = np.abs(whole * scales[:, None] - matrix)
    assert (apart <= 0.5001 * scales[:, None]).all() and not apart[7].any()


def test_the_text_holds_every_tensor():
    """Vectors as they are, matrices in whole numbers with their scales; twice the same text."""
    model, tokenizer = load_pretrained()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    text = pack("everyday", asdict(model.config), tokenizer.text, tensors)
    assert text == pack("everyday", asdict(model.config), tokenizer.text, tensors)
    assert text.isascii()
    packed = json.loads(text)
    assert packed["name"] == "everyday" and packed["config"] == asdict(model.config)
    assert packed["merges"] == json.loads(tokenizer.text)["model"]["merges"]
    found = load(b64decode(packed["weights"]))
    for name, tensor in tensors.items():
        got = found.pop(name)
        if tensor.ndim == 2:
            whole, scales = quantize(tensor.astype(np.float32))
            assert got.dtype == np.int8 and np.array_equal(got, whole)
            assert np.array_equal(found.pop(f"{name}.scales"), scales)
        else:
            assert got.dtype == np.float32 and np.array_equal(got, tensor)
    assert not found
    from_folder = json.loads(pack_folder(SHOWN))
    assert from_folder | {"name": "everyday"} == packed, "the site packs the same without PyTorch"


def test_packing_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['tokenizers'] = None;"
        "from tools.web_model import SHOWN, pack_folder; print(len(pack_folder(SHOWN)) > 1e6)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "True\n", done.stderr


def test_rounding_hardly_changes_the_model():
    """It loads into PyTorch, and the weights are those of the model to three digits."""
    model, _ = load_model(SHOWN)
    rounded = rounded_weights(SHOWN)
    assert rounded.keys() == model.state_dict().keys()
    for name, array in rounded.items():
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


def test_signs_of_bytes():
    """Those of the tokenizers library."""
    tokenizer = Tokenizer.load(SHOWN / "tokenizer.json").library
    for sign, byte in SIGNS.items():
        spelled = tokenizer.pre_tokenizer.pre_tokenize_str(chr(byte))  # as UTF-8
        assert byte > 127 or spelled[0][0] == sign
    assert len(SIGNS) == 256 and sorted(SIGNS.values()) == [*range(256)]


# --- A page of its own

TOKENIZER = Tokenizer.train(["Der Hund schläft.", "The dog sleeps."], 300)
TOY = Transformer(TransformerConfig(len(TOKENIZER), 1, 8, 12, 2, max_length=20))


def test_one_page_holds_everything(tmp_path):
    """Nothing in it is loaded from elsewhere; its data end where they should."""
    export_page(TOY, TOKENIZER, tmp_path / "dogs.html")
    text = (tmp_path / "dogs.html").read_text(encoding="utf-8")
    for sign in ("url(", "src=", "<link", "@import"):
        assert sign not in text
    before, _, rest = text.partition('<script type="application/json" id="model">')
    data, _, after = rest.partition("</script>")
    assert json.loads(data)["name"] == "dogs" and "<" not in data
    assert before + "THE MODEL" + after in page_template(ROOT).replace(
        '<script type="application/json" id="model">', "", 1
    ).replace("</script>", "", 1)


def test_a_compiled_model_makes_the_same_page(tmp_path):
    export_page(TOY, TOKENIZER, tmp_path / "dogs.html")
    (tmp_path / "other").mkdir()
    export_page(torch.compile(TOY), TOKENIZER, tmp_path / "other" / "dogs.html")
    assert (tmp_path / "other/dogs.html").read_bytes() == (tmp_path / "dogs.html").read_bytes()


def test_nothing_in_a_model_can_end_the_script(tmp_path):
    """A name, a setting or a merge may look like a tag: it stays text."""
    name = "<script>alert(1)<!--"
    export_page(TOY, TOKENIZER, tmp_path / f"{name}.html")
    text = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
    assert "alert(1)" in text and text.count("alert(1)<") == text.count("<script>alert") == 0
    merges = {"model": {"merges": [["</script", "><b>"]]}}
    hostile = pack("</script>", {"<!--": "</script>"}, json.dumps(merges), {"<a>": np.ones(1)})
    assert "<" not in hostile
    found = json.loads(hostile)
    assert found["name"] == "</script>" and found["merges"] == merges["model"]["merges"]


def test_what_cannot_become_a_page(tmp_path):
    """Work that is there stays, and a failure leaves nothing."""
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    for name in ("mine.html", "folder.html", "page", "page.htm"):
        with pytest.raises(ValueError, match=f"a new file that ends in .html, not into .*{name}"):
            export_page(TOY, TOKENIZER, tmp_path / name)
    other = Transformer(TransformerConfig(260, 1, 8, 12, 2))
    with pytest.raises(ValueError, match="the tokenizer has"):
        export_page(other, TOKENIZER, tmp_path / "other.html")
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.html", "folder.html"}


def test_an_installed_package_needs_no_repository(tmp_path):
    """With the package's own files alone, the command writes a page."""
    home = tmp_path / "site-packages" / "annotated_transformer"
    kept = project(ROOT)["tool"]["setuptools"]["package-data"]["annotated_transformer"]
    for pattern in ("*.py", *kept):
        for path in (ROOT / "annotated_transformer").glob(pattern):
            target = home / path.relative_to(ROOT / "annotated_transformer")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    model, page = home / "pretrained" / SHOWN.name, tmp_path / "captions.html"
    command = [sys.executable, "-m", "annotated_transformer", "export", "--format", "page"]
    done = subprocess.run(
        [*command, "--model", str(model), "--output", str(page)],
        cwd=tmp_path, env={"PYTHONPATH": str(home.parent), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert page.stat().st_size > Path(model / "model.safetensors").stat().st_size / 4
