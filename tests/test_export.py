"""A model exported to CTranslate2 computes and writes what ours does."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annotated_transformer.data import MissingData, multi30k
from annotated_transformer.decoding import beam_search, translate
from annotated_transformer.export import export_ctranslate2
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.model_io import load_pretrained, save_model
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating
from tools.chapters import ROOT

ctranslate2 = pytest.importorskip("ctranslate2")

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=400)
TOY = TransformerConfig(len(TOKENIZER), layers=2, d_model=24, d_ff=40, heads=4, max_length=90)
VARIANTS = {
    "post-norm": TOY,
    "pre-norm": replace(TOY, pre_norm=True),
    "learned": replace(TOY, positions="learned"),
    "bias": replace(TOY, attention_bias=True),
    "all": replace(TOY, pre_norm=True, positions="learned", attention_bias=True),
    "narrow": replace(TOY, d_k=3, d_v=3),
    "wide": replace(TOY, d_k=10, d_v=10, pre_norm=True),
    "more rows": replace(TOY, vocabulary_size=len(TOKENIZER) + 7),
    "one layer": replace(TOY, layers=1, heads=1),
}
SEARCH = {
    "min_decoding_length": 0,
    "max_input_length": 0,
    "suppress_sequences": [["<pad>"], ["<s>"]],
}


def make(config: TransformerConfig, seed: int = 0) -> Transformer:
    """A random model in which every parameter matters, gains and biases too."""
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def engine(folder: Path, kind: str = "float32"):
    return ctranslate2.Translator(str(folder), compute_type=kind, intra_threads=1)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return list(tokenizer.library.encode(text).tokens)


def ids(tokenizer: Tokenizer, words: list[str]) -> list[int]:
    return [tokenizer.library.token_to_id(word) for word in words]


def difference(model: Transformer, tokenizer: Tokenizer, folder: Path, pairs: list) -> float:
    """The largest difference of two log-probabilities, over all tokens of some pairs."""
    sources = [tokens_of(tokenizer, pair.source) for pair in pairs]
    targets = [tokens_of(tokenizer, pair.target) for pair in pairs]
    worst = 0.0
    for pair, result in zip(pairs, engine(folder).score_batch(sources, targets)):
        words = [*tokenizer.encode(pair.target), EOS]
        with evaluating(model):
            logits = model(
                torch.tensor([[*tokenizer.encode(pair.source), EOS]]),
                torch.tensor([[BOS, *words[:-1]]]),
            )
        ours = logits.log_softmax(dim=-1)[0, range(len(words)), words]
        assert len(result.log_probs) == len(words)
        worst = max(worst, (torch.tensor(result.log_probs) - ours).abs().max().item())
    return worst


@pytest.mark.parametrize("name", VARIANTS)
def test_same_log_probabilities(name: str, tmp_path: Path) -> None:
    model = make(VARIANTS[name])
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    assert difference(model, TOKENIZER, tmp_path / "model", PAIRS[:20]) < 1e-3


@pytest.mark.parametrize("name", ["post-norm", "all", "narrow"])
def test_double_precision_and_training_mode_are_no_matter(name: str, tmp_path: Path) -> None:
    model = make(VARIANTS[name]).double().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    assert model.training and all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert difference(model, TOKENIZER, tmp_path / "model", PAIRS[:5]) < 1e-3


@pytest.mark.parametrize("name", ["post-norm", "pre-norm", "learned", "wide"])
def test_same_greedy_words_of_random_models(name: str, tmp_path: Path) -> None:
    """A random model does not end by itself, so this tests the limit as well."""
    model = make(VARIANTS[name], seed=1)
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    translator = engine(tmp_path / "model")
    for pair in PAIRS[:6]:
        source = [*TOKENIZER.encode(pair.source), EOS]
        ours = beam_search(model, torch.tensor([source]), beam=1, max_extra_tokens=30)[0][0].tokens
        limit = min(len(source) + 30, model.config.max_length)
        result = translator.translate_batch(
            [tokens_of(TOKENIZER, pair.source)], beam_size=1, max_decoding_length=limit, **SEARCH
        )
        assert ids(TOKENIZER, result[0].hypotheses[0]) == ours


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    export_ctranslate2(*load_pretrained("captions-de-en"), folder)
    return folder


def captions(count: int) -> list[str]:
    try:
        return [pair.source for pair in multi30k("test_2016_flickr")[:count]]
    except MissingData as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("beam", "may_differ"), [(1, 0), (4, 0.06)])
def test_same_translations(beam: int, may_differ: float, pretrained: Path) -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    lines = captions(200)
    sources = [tokens_of(tokenizer, line) for line in lines]
    found = engine(pretrained).translate_batch(
        sources,
        beam_size=beam,
        length_penalty=0.5,  # its formula is another
        max_batch_size=32,
        max_decoding_length=max(map(len, sources)) + 51,
        **SEARCH,
    )
    theirs = [tokenizer.decode(ids(tokenizer, each.hypotheses[0])) for each in found]
    ours = translate(model, tokenizer, lines, beam)
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= may_differ * len(lines)


def test_eight_bits_say_nearly_the_same(pretrained: Path) -> None:
    _, tokenizer = load_pretrained("captions-de-en")
    source = [tokens_of(tokenizer, "Ein Hund läuft über die Wiese.")]
    words = engine(pretrained, "int8").translate_batch(source, beam_size=1, **SEARCH)
    assert "dog" in tokenizer.decode(ids(tokenizer, words[0].hypotheses[0]))


def test_the_script_needs_neither_torch_nor_this_package(pretrained: Path) -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    lines = ["\ufeffEin Hund läuft über die Wiese.", "", "  ", "Zwei Männer </s> reden.", "Ja.\r"]
    lines += ["Eine Frau\u2028liest.", "Ein Mann\x0bschläft."]  # a line ends at \n alone
    program = (
        "import sys, runpy\n"
        "sys.modules['torch'] = sys.modules['annotated_transformer'] = None\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, pretrained / "translate.py"],
        input="\n".join([*lines, ""]).encode(),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.decode().split("\n")
    assert len(found) == len(lines) + 1 and found[1] == found[2] == found[-1] == ""
    assert found[0] == translate(model, tokenizer, [lines[0].removeprefix("\ufeff")])[0]
    assert all(found[3:-1])
    nothing = subprocess.run(
        [sys.executable, pretrained / "translate.py"], input=b"", capture_output=True, timeout=120
    )
    assert (nothing.returncode, nothing.stdout) == (0, b"")


def test_the_tokenizer_beside_it_is_ours(pretrained: Path) -> None:
    _, tokenizer = load_pretrained("captions-de-en")
    assert Tokenizer.load(pretrained / "tokenizer.json").sha256 == tokenizer.sha256
    config = json.loads((pretrained / "config.json").read_text())
    assert config["layer_norm_epsilon"] == 1e-6 and config["add_source_eos"] is True


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_line_that_is_too_long_is_one_error(tmp_path: Path) -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    few = Transformer(replace(model.config, max_length=12))
    few.load_state_dict(model.state_dict())
    export_ctranslate2(few.eval(), tokenizer, tmp_path / "model")
    lines = ["Ein Hund.", "sehr " * 30, "", "Eine Frau."]
    done = subprocess.run(
        [sys.executable, tmp_path / "model" / "translate.py"],
        input="\n".join([*lines, ""]).encode(),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 1 and not done.stdout
    (said,) = done.stderr.decode().splitlines()
    assert said.startswith("line 2 has") and said.endswith("tokens: split it")


def test_eight_bits_on_disk(tmp_path: Path, pretrained: Path) -> None:
    export_ctranslate2(*load_pretrained("captions-de-en"), tmp_path / "model", quantization="int8")
    sizes = [(path / "model.bin").stat().st_size for path in (tmp_path / "model", pretrained)]
    assert sizes[0] < 0.4 * sizes[1]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    folder.mkdir(parents=True)
    export_ctranslate2(make(TOY), TOKENIZER, str(folder))
    assert {*content(folder)} >= {"model.bin", "translate.py", "tokenizer.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_other_work_is_refused_and_kept(tmp_path: Path) -> None:
    model = make(TOY)
    save_model(model, TOKENIZER, tmp_path / "trained")
    export_ctranslate2(model, TOKENIZER, tmp_path / "extra")
    (tmp_path / "extra" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("trained", "extra", "file"):
        before = (tmp_path / name).read_text() if name == "file" else content(tmp_path / name)
        with pytest.raises(FileExistsError, match=name):
            export_ctranslate2(model, TOKENIZER, tmp_path / name)
        after = (tmp_path / name).read_text() if name == "file" else content(tmp_path / name)
        assert after == before


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no room"):
        export_ctranslate2(make(TOY), TOKENIZER, tmp_path / "model")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TOY, d_k=4, d_v=8), "d_k=4 and d_v=8"),
        (replace(TOY, d_k=4), "d_k=4 and d_v=6"),
        (replace(TOY, vocabulary_size=300), "the tokenizer has"),
    ],
)
def test_what_cannot_be_exported(config: TransformerConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        export_ctranslate2(Transformer(config), TOKENIZER, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_missing_engine_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r'pip install "annotated-transformer\[export\]"'):
        export_ctranslate2(make(TOY), TOKENIZER, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_the_benchmark_runs(tmp_path: Path) -> None:
    captions(1)
    command = [sys.executable, str(ROOT / "benchmarks" / "serving.py"), "--threads", "1"]
    brief = ["--rounds", "1", "--sentences", "4", "--results", str(tmp_path)]
    done = subprocess.run([*command, *brief], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    settings, *records = map(json.loads, path.read_text().splitlines())
    assert settings["sentences"] == 4 and settings["threads"] == 1
    greedy = {r["system"]: r for r in records if "bleu" in r and r["search"] == "greedy"}
    assert greedy.keys() == {"ours", "CTranslate2 float32", "CTranslate2 int8"}
    assert greedy["CTranslate2 float32"]["same_as_ours"] == 4
