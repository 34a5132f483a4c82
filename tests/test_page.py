"""A model packed for a page, and as a page: all in its place, and nothing that runs but ours."""

import json
import shutil
import subprocess
import sys
from base64 import b64decode
from dataclasses import asdict
from io import BytesIO, TextIOWrapper
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py_mini_racer import MiniRacer
from safetensors.numpy import load

from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.export import export_page, translating_script
from annotated_transformer.toolkit.model_io import (
    load_model,
    load_pretrained,
    load_tokenizer,
)
from annotated_transformer.toolkit.own_data import single_spaced, utf8_lines
from annotated_transformer.toolkit.page import pack, quantize
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.toolkit.translation import encode_sentence
from annotated_transformer.transformer import Transformer, TransformerConfig
from book.site import inside
from tools import units
from tools.chapters import ROOT
from tools.inside import lines_of_a_head
from tools.package import project
from tools.page import page_template
from tools.recordings import (
    OUTPUT,
    WHAT_IF,
    model_of_the_page,
    record_what_if,
    recordings,
)
from tools.web_model import BACK, SHOWN, pack_folder, rounded_weights
from tools.what_if import SIGNS


def test_a_row_is_rounded_to_its_own_scale():
    """No weight moves by more than half a step of its row; a row of zeros stays one."""
    matrix = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    matrix *= np.logspace(-6, 6, 20, dtype=np.float32)[:, None]
    matrix[7] = 0
    whole, scales = quantize(matrix)
    assert scales.dtype == np.float32 and whole.dtype == np.int8
    assert set(np.abs(whole).max(axis=1)) == {0, 127}
    error = np.abs(whole * scales[:, None] - matrix)
    assert (error <= 0.5001 * scales[:, None]).all()
    assert not error[7].any()


def default_model():
    """What `pack` takes of the model that loads without a name."""
    model, tokenizer = load_pretrained()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return "everyday", asdict(model.config), tokenizer.text, tensors


def test_the_text_holds_configuration_and_merges():
    """Twice the same text."""
    name, config, tokenizer, tensors = default_model()
    text = pack(name, config, tokenizer, tensors)
    assert text == pack(name, config, tokenizer, tensors)
    assert text.isascii()
    packed = json.loads(text)
    assert packed["name"] == name
    assert packed["config"] == config
    assert packed["merges"] == json.loads(tokenizer)["model"]["merges"]


def test_the_text_holds_every_tensor():
    """Vectors as they are, matrices in whole numbers with their scales."""
    packed = json.loads(pack(*default_model()))
    unpacked = load(b64decode(packed["weights"]))
    *_, tensors = default_model()
    for name, tensor in tensors.items():
        numbers = unpacked.pop(name)
        if tensor.ndim == 2:
            whole, scales = quantize(tensor.astype(np.float32))
            assert numbers.dtype == np.int8 and np.array_equal(numbers, whole)
            assert np.array_equal(unpacked.pop(f"{name}.scales"), scales)
        else:
            assert numbers.dtype == np.float32 and np.array_equal(numbers, tensor)
    assert not unpacked


def test_the_site_packs_the_same_without_pytorch():
    from_folder = json.loads(pack_folder(SHOWN))
    from_model = json.loads(pack(*default_model()))
    assert from_folder | {"name": "everyday"} == from_model


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["tokenizers"] = None
from tools.web_model import SHOWN, pack_folder
print(len(pack_folder(SHOWN)) > 1e6)
"""


def test_packing_needs_no_torch():
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "True\n", done.stderr


def test_rounding_hardly_changes_the_model():
    """It loads into PyTorch, and the weights are those of the model to three digits."""
    model, _ = load_model(SHOWN)
    rounded = rounded_weights(SHOWN)
    assert rounded.keys() == model.state_dict().keys()
    for name, array in rounded.items():
        exact = model.state_dict()[name]
        error = torch.linalg.norm(torch.from_numpy(array) - exact)
        assert error < 0.02 * torch.linalg.norm(exact)


def test_white_space_is_the_same_in_a_page_as_in_python():
    """Each character of Unicode alone, and between words."""
    engine = MiniRacer()
    engine.eval("var bookFigures = {};")
    engine.eval((ROOT / "book/site/assets/engine.js").read_text(encoding="utf-8"))
    engine.eval("var singleSpaced = bookFigures.engine().singleSpaced;")
    single = """(() => {
        const found = [];
        for (let code = 0; code < 0x110000; code++)
            if (singleSpaced(`a${String.fromCodePoint(code)}b`) === "a b") found.push(code);
        return JSON.stringify(found);
    })()"""
    characters = (chr(code) for code in range(sys.maxunicode + 1))
    expected = [ord(c) for c in characters if single_spaced(f"a{c}b") == "a b"]
    assert json.loads(engine.eval(single)) == expected
    text = "".join(map(chr, expected)).join(["", "Ein", "Hund.", ""])
    assert engine.eval(f"singleSpaced({json.dumps(text)})") == "Ein Hund."


def tokens_of_the_script(text, monkeypatch):
    """What the exported script gives to its engine; nothing where there are no words."""
    given_to_it = []

    def translate_batch(sources, **options):
        given_to_it.extend(sources)
        return [SimpleNamespace(hypotheses=[[]]) for _ in sources]

    translator = SimpleNamespace(translate_batch=translate_batch)
    engine = SimpleNamespace(Translator=lambda folder: translator)
    script = compile(translating_script(1000), "translate.py", "exec")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ctranslate2", engine)
        patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(f"{text}\n".encode())))
        patch.setattr(sys, "stdout", TextIOWrapper(BytesIO()))
        exec(script, {"__file__": str(SHOWN / "translate.py")})
    return given_to_it[0] if given_to_it else []


MIXED = st.text(
    st.sampled_from("Hund läuft.,!'\u0308\u030a")  # two marks among the letters
    | st.characters(exclude_characters="\n\r")
)


@given(MIXED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_way_in_reads_the_same_tokens(page_tokenizer, monkeypatch, text):
    """The call, the command, the page and the exported script, for whatever text."""
    tokenizer = load_tokenizer(SHOWN / "tokenizer.json")
    ids = encode_sentence(tokenizer, text, 1, 10_000).tolist()
    line = [*utf8_lines(BytesIO(f"{text}\n".encode()), "the input")]
    of_the_command = encode_sentence(tokenizer, *line, 1, 10_000).tolist()
    assert of_the_command == ids
    of_the_page = page_tokenizer.eval(f"encoded({json.dumps(text)})")
    assert json.loads(of_the_page) == ids[:-1]
    of_the_script = tokens_of_the_script(text, monkeypatch)
    assert [tokenizer.library.token_to_id(token) for token in of_the_script] == ids[:-1]


@pytest.fixture(scope="module")
def page_tokenizer():
    """The page's script with the merges of the model it shows; `encoded` gives the ids."""
    engine = MiniRacer()
    engine.eval("var bookFigures = {};")
    engine.eval((ROOT / "book/site/assets/engine.js").read_text(encoding="utf-8"))
    merges = json.loads((SHOWN / "tokenizer.json").read_text())["model"]["merges"]
    engine.eval(f"""
        class TextEncoder {{ encode(text) {{
            return Uint8Array.from(unescape(encodeURIComponent(text)), (c) => c.charCodeAt(0));
        }} }}
        var tools = bookFigures.engine(), tokenizer = tools.makeTokenizer({json.dumps(merges)});
        var encoded = (text) => JSON.stringify(tokenizer.encode(tools.singleSpaced(text)));
    """)
    return engine


def compare_recordings(recorded, again):
    """The same texts, and numbers that differ in the last digit at most."""
    assert type(recorded) is type(again)
    if isinstance(recorded, dict):
        assert recorded.keys() == again.keys()
        for key in recorded:
            compare_recordings(recorded[key], again[key])
    elif isinstance(recorded, list):
        for value, value_again in zip(recorded, again, strict=True):
            compare_recordings(value, value_again)
    elif isinstance(recorded, float):
        assert recorded == pytest.approx(again, abs=0.002)
    else:
        assert recorded == again


def test_recordings_are_what_the_model_says():
    """`python -m tools.recordings` would write the same; eight, failures among them."""
    directions = json.loads(OUTPUT.read_text(encoding="utf-8"))
    again = recordings()
    assert directions.keys() == again.keys() == {SHOWN.name, BACK.name}
    for name, recorded in directions.items():
        assert len(recorded) == 8
        assert 3 <= sum(bool(sentence["note"]) for sentence in recorded) <= 5
        compare_translations(recorded, again[name])


def compare_translations(recorded, recorded_again):
    """The same texts, and numbers that differ in the last digit at most."""
    for sentence, again in zip(recorded, recorded_again, strict=True):
        for key in ("text", "gloss", "note", "source"):
            assert sentence[key] == again[key]
        for step, step_again in zip(sentence["steps"], again["steps"], strict=True):
            for key in ("token", "text"):
                assert step[key] == step_again[key]
            assert step["look"] == pytest.approx(step_again["look"], abs=0.002)
            assert step["share"] == pytest.approx(step_again["share"], abs=0.002)
            shares = [share for _, share in step["best"]]  # words may change places
            shares_again = [share for _, share in step_again["best"]]
            assert shares == pytest.approx(shares_again, abs=0.002)


@pytest.mark.slow
def test_what_if_is_what_the_model_says():
    """The same for the figures of the chapters."""
    recorded = json.loads(WHAT_IF.read_text(encoding="utf-8"))
    assert len(recorded) == 5
    again = record_what_if(*model_of_the_page())
    compare_recordings(recorded, json.loads(json.dumps(again)))


def test_signs_of_bytes():
    """Those of the tokenizers library."""
    tokenizer = load_tokenizer(SHOWN / "tokenizer.json").library
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
    before, data, after = around_the_model(text)
    assert json.loads(data)["name"] == "dogs" and "<" not in data
    template_before, _, template_after = around_the_model(page_template(ROOT))
    assert (before, after) == (template_before, template_after)


def around_the_model(text):
    """What a page has before its model, the model, and what comes behind it."""
    before, _, others = text.partition('<script type="application/json" id="model">')
    data, _, after = others.partition("</script>")
    return before, data, after


def test_a_compiled_model_makes_the_same_page(tmp_path):
    usual = tmp_path / "dogs.html"
    export_page(TOY, TOKENIZER, usual)
    (tmp_path / "other").mkdir()
    compiled = tmp_path / "other" / "dogs.html"
    export_page(torch.compile(TOY), TOKENIZER, compiled)
    assert compiled.read_bytes() == usual.read_bytes()


def test_no_name_can_end_the_script(tmp_path):
    """A name may look like a tag: it stays text."""
    path = tmp_path / "<script>alert(1)<!--.html"
    export_page(TOY, TOKENIZER, path)
    text = path.read_text(encoding="utf-8")
    assert "alert(1)" in text
    assert "alert(1)<" not in text and "<script>alert" not in text


def test_nothing_in_a_model_can_end_the_script():
    """A setting, a merge or the name of a tensor may look like a tag, too."""
    config = {"<!--": "</script>"}
    merges = [["</script", "><b>"]]
    tokenizer = json.dumps({"model": {"merges": merges}})
    text = pack("</script>", config, tokenizer, {"<a>": np.ones(1)})
    assert "<" not in text
    packed = json.loads(text)
    assert packed["name"] == "</script>"
    assert packed["config"] == config
    assert packed["merges"] == merges


def test_what_cannot_become_a_page(tmp_path):
    """Work that is there stays, and a failure leaves nothing."""
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    for name in ("mine.html", "folder.html", "page", "page.htm"):
        message = f"a new file that ends in .html, not into .*{name}"
        with pytest.raises(ValueError, match=message):
            export_page(TOY, TOKENIZER, tmp_path / name)
    other = Transformer(TransformerConfig(260, 1, 8, 12, 2))
    with pytest.raises(ValueError, match="the tokenizer has"):
        export_page(other, TOKENIZER, tmp_path / "other.html")
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.html", "folder.html"}


def copy_package(target):
    """Copy what an installed package has: its modules, and the files that it names."""
    source = ROOT / "annotated_transformer"
    data = project(ROOT)["tool"]["setuptools"]["package-data"]
    for pattern in ("*.py", "toolkit/*.py", *data["annotated_transformer"]):
        for path in source.glob(pattern):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


@pytest.mark.slow
def test_an_installed_package_needs_no_repository(tmp_path):
    """With the package's own files alone, the command writes a page."""
    package = tmp_path / "site-packages" / "annotated_transformer"
    copy_package(package)
    model = package / "pretrained" / SHOWN.name
    page = tmp_path / "captions.html"
    command = [sys.executable, "-m", "annotated_transformer", "export"]
    options = ["--format", "page", "--model", str(model), "--output", str(page)]
    environment = {"PYTHONPATH": str(package.parent), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"the exported model is in {page}\n"
    assert page.stat().st_size > (model / "model.safetensors").stat().st_size / 4


# --- The numbers of a sentence, and the lines beside them


def test_the_recorded_sentence_is_translated_by_the_engine():
    """The picture that the site's build draws needs no browser, and no PyTorch."""
    example = inside.example()
    assert example["texts"][-1].startswith("Do you know where")
    assert len(example["lens"]) == example["layers"] + 1
    numbers = example["trace"]["decoder.layers.2.cross_attention"]["joined"]
    assert len(numbers) == len(example["written"]) and len(numbers[0]) == 256
    picture = inside.figure()
    assert f"<b>{example['written'][inside.START]}</b>" in picture


def test_a_line_of_the_package_that_is_not_there_is_told(tmp_path):
    package = tmp_path / "package"
    shutil.copytree(
        ROOT / "annotated_transformer",
        package,
        ignore=shutil.ignore_patterns("pretrained"),
    )
    path = package / "attention.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("weights = scores.softmax", "w = scores.softmax"))
    with pytest.raises(
        ValueError, match=r"attention\.py has 0 lines .*tools/inside\.py"
    ):
        lines_of_a_head(package)


def test_a_unit_is_known_by_the_words_it_fires_at():
    """The highest mean first, over all occurrences of a word; rare words do not count."""
    firing = units.Firing(2, 5)
    for _ in range(units.LEAST):
        firing.add(
            torch.tensor([0, 1, 2]), torch.tensor([[1.0, 0], [3.0, 0], [2.0, 0]])
        )
    firing.add(torch.tensor([1, 4]), torch.tensor([[0.0, 0], [9.0, 9]]))
    assert firing.strongest() == [[1, 2, 0], []]


def test_the_table_of_units_is_that_of_the_model():
    """A list of names for each unit of each network."""
    recorded = json.loads(units.OUTPUT.read_text(encoding="utf-8"))
    model, _ = load_model(SHOWN)
    assert [*recorded] == [*units.network_names(model).values()]
    for names in recorded.values():
        assert len(names) == model.config.d_ff
        assert max(map(len, names)) == units.SHOWN


def test_units_are_recorded_from_sentences():
    """Each name is a word of them."""
    model, tokenizer = load_model(SHOWN)
    pairs = grammar(30, seed=0)
    recorded = units.record(model, tokenizer, pairs)
    text = " ".join(f"{pair.source} {pair.target}" for pair in pairs)
    names = {name for rows in recorded.values() for row in rows for name in row}
    assert names
    assert all(name.lstrip("+") in f"{text} </s>" for name in names)
