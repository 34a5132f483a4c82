"""A model exported to CTranslate2 computes and writes what ours does."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annotated_transformer import translate
from annotated_transformer.data import Pair
from annotated_transformer.decoding import beam_search
from annotated_transformer.masks import BOS, EOS
from annotated_transformer.tokenization import Tokenizer
from annotated_transformer.toolkit.downloads import MissingData, multi30k
from annotated_transformer.toolkit.export import export_ctranslate2, export_page
from annotated_transformer.toolkit.model_io import (
    load_pretrained,
    load_tokenizer,
    save_model,
)
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig, evaluating

ctranslate2 = pytest.importorskip("ctranslate2")

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=400)
TOY = TransformerConfig(
    len(TOKENIZER), layers=2, d_model=24, d_ff=40, heads=4, max_length=90
)
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


def random_model(config: TransformerConfig, seed: int = 0) -> Transformer:
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


def our_log_probabilities(
    model: Transformer, tokenizer: Tokenizer, pair: Pair
) -> torch.Tensor:
    """The log-probability of each token of a target and of its end."""
    source = torch.tensor([[*tokenizer.encode(pair.source), EOS]])
    labels = [*tokenizer.encode(pair.target), EOS]
    with evaluating(model):
        logits = model(source, torch.tensor([[BOS, *labels[:-1]]]))
    return logits.log_softmax(dim=-1)[0, range(len(labels)), labels]


def difference(
    model: Transformer, tokenizer: Tokenizer, folder: Path, pairs: list[Pair]
) -> float:
    """The largest difference of two log-probabilities, over all tokens of some pairs."""
    sources = [tokens_of(tokenizer, pair.source) for pair in pairs]
    targets = [tokens_of(tokenizer, pair.target) for pair in pairs]
    results = engine(folder).score_batch(sources, targets)
    largest = 0.0
    for pair, result in zip(pairs, results, strict=True):
        ours = our_log_probabilities(model, tokenizer, pair)
        theirs = torch.tensor(result.log_probs)
        assert theirs.shape == ours.shape
        largest = max(largest, (theirs - ours).abs().max().item())
    return largest


@pytest.mark.parametrize("name", VARIANTS)
def test_same_log_probabilities(name: str, tmp_path: Path) -> None:
    model = random_model(VARIANTS[name])
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    assert difference(model, TOKENIZER, tmp_path / "model", PAIRS[:20]) < 1e-3


@pytest.mark.parametrize("name", ["post-norm", "all", "narrow"])
def test_double_precision_and_training_mode_are_no_matter(
    name: str, tmp_path: Path
) -> None:
    model = random_model(VARIANTS[name]).double().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    assert model.training
    for key, value in model.state_dict().items():
        assert value.equal(before[key])
    assert difference(model, TOKENIZER, tmp_path / "model", PAIRS[:5]) < 1e-3


@pytest.mark.parametrize(
    "name",
    [
        "post-norm",
        "learned",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("pre-norm", "wide")],
    ],
)
def test_same_greedy_words_of_random_models(name: str, tmp_path: Path) -> None:
    """A random model does not end by itself, so this tests the limit as well."""
    model = random_model(VARIANTS[name], seed=1)
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    translator = engine(tmp_path / "model")
    for pair in PAIRS[:6]:
        source = [*TOKENIZER.encode(pair.source), EOS]
        (beams,) = beam_search(
            model, torch.tensor([source]), beam=1, max_extra_tokens=30
        )
        (result,) = translator.translate_batch(
            [tokens_of(TOKENIZER, pair.source)],
            beam_size=1,
            max_decoding_length=min(len(source) + 30, model.config.max_length),
            **SEARCH,
        )
        assert ids(TOKENIZER, result.hypotheses[0]) == beams[0].tokens


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
    longest = max(len(source) for source in sources)
    results = engine(pretrained).translate_batch(
        sources,
        beam_size=beam,
        length_penalty=0.5,  # its formula is another
        max_batch_size=32,
        max_decoding_length=longest + 51,
        **SEARCH,
    )
    ours = translate(model, tokenizer, lines, beam)
    different = 0
    for line, result in zip(ours, results, strict=True):
        if tokenizer.decode(ids(tokenizer, result.hypotheses[0])) != line:
            different += 1
    assert different <= may_differ * len(lines)


def test_eight_bits_say_nearly_the_same(pretrained: Path) -> None:
    _, tokenizer = load_pretrained("captions-de-en")
    source = tokens_of(tokenizer, "Ein Hund läuft über die Wiese.")
    translator = engine(pretrained, "int8")
    (result,) = translator.translate_batch([source], beam_size=1, **SEARCH)
    assert "dog" in tokenizer.decode(ids(tokenizer, result.hypotheses[0]))


# Runs a script where neither PyTorch nor this package can be imported
ALONE = """
import sys, runpy
sys.modules["torch"] = sys.modules["annotated_transformer"] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_script(folder: Path, text: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """Give text to the script that an export has written."""
    command = [sys.executable, "-c", ALONE, str(folder / "translate.py")]
    content = text.encode() if isinstance(text, str) else text
    return subprocess.run(command, input=content, capture_output=True, timeout=120)


def test_the_script_needs_neither_torch_nor_this_package(pretrained: Path) -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    first = "Ein Hund läuft über die Wiese."
    lines = [
        f"\ufeff{first}",
        "",
        "  ",
        "Zwei Männer </s> reden.",
        "Ja.\r",
        "Eine Frau\u2028liest.",  # a line ends at \n alone
        "Ein Mann\x0bschläft.",
    ]
    done = run_script(pretrained, "\n".join([*lines, ""]))
    assert done.returncode == 0, done.stderr
    *translations, behind = done.stdout.decode().split("\n")
    assert len(translations) == len(lines) and behind == ""
    assert translations[:1] == translate(model, tokenizer, [first])
    assert translations[1:3] == ["", ""]
    assert all(translations[3:])


def test_any_white_space_is_one_space_for_the_script(pretrained: Path) -> None:
    """The model's own translation, of every odd white space and a mark within the text."""
    words = ["Ein", "Hund", "läuft", "über", "die", "Wiese."]
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    spaces = [space for space in spaces if space != "\n"] + ["\ufeff", "  "]
    lines = [space.join(["", *words, ""]) for space in spaces]
    done = run_script(pretrained, "".join(f"{line}\n" for line in lines))
    assert done.returncode == 0, done.stderr
    expected = translate(*load_pretrained("captions-de-en"), [" ".join(words)])
    assert done.stdout.decode() == f"{expected[0]}\n" * len(lines)


def test_lines_of_an_old_macintosh_are_lines_for_the_script(pretrained: Path) -> None:
    lines = ["Ein Hund läuft.", "", "Eine Frau liest."]
    done = run_script(pretrained, "\r".join(lines))
    expected = translate(*load_pretrained("captions-de-en"), lines)
    assert done.stdout.decode().splitlines() == expected


def test_the_script_translates_nothing(pretrained: Path) -> None:
    done = run_script(pretrained, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_no_text_is_one_line_of_the_script(pretrained: Path) -> None:
    done = run_script(pretrained, "gut\nKäse\n".encode("latin-1"))
    assert (done.returncode, done.stdout) == (1, b"")
    (message,) = done.stderr.decode().splitlines()
    assert message.startswith("line 2 is no UTF-8 text")


def test_the_script_takes_closed_streams_quietly(pretrained: Path) -> None:
    """A reader that has enough, as `head -0`; no standard input or output at all."""
    script = f"{sys.executable} {pretrained / 'translate.py'}"
    for command, code in (
        (f"set -o pipefail; echo Ja. | {script} | head -0", 141),
        (f"{script} <&-", 1),
        (f"echo Ja. | {script} >&-", 1),
    ):
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
        assert (done.returncode, done.stdout) == (code, b""), done.stderr
        assert done.stderr.count(b"\n") == (code == 1), done.stderr


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """Only what would have had its name."""
    for name in (
        "model.1234.unfinished",
        "model.old.77.unfinished",
        "page.html.5.unfinished",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").touch()
    model = random_model(TOY)
    export_ctranslate2(model, TOKENIZER, tmp_path / "model")
    export_page(model, TOKENIZER, tmp_path / "page.html")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model", "page.html", "model.old.77.unfinished"}


def test_the_tokenizer_beside_it_is_ours(pretrained: Path) -> None:
    _, tokenizer = load_pretrained("captions-de-en")
    assert load_tokenizer(pretrained / "tokenizer.json").text == tokenizer.text
    config = json.loads((pretrained / "config.json").read_text())
    assert config["layer_norm_epsilon"] == 1e-6 and config["add_source_eos"] is True


def test_a_line_that_is_too_long_is_one_error(tmp_path: Path) -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    short = Transformer(replace(model.config, max_length=12))
    short.load_state_dict(model.state_dict())
    export_ctranslate2(short.eval(), tokenizer, tmp_path / "model")
    lines = ["Ein Hund.", "sehr " * 30, "", "Eine Frau."]
    done = run_script(tmp_path / "model", "\n".join([*lines, ""]))
    assert done.returncode == 1 and not done.stdout
    (message,) = done.stderr.decode().splitlines()
    assert message.startswith("line 2 has")
    assert message.endswith("tokens: split it")


def test_eight_bits_on_disk(tmp_path: Path, pretrained: Path) -> None:
    model, tokenizer = load_pretrained("captions-de-en")
    export_ctranslate2(model, tokenizer, tmp_path / "model", quantization="int8")
    small = (tmp_path / "model" / "model.bin").stat().st_size
    assert small < 0.4 * (pretrained / "model.bin").stat().st_size


def content(path: Path) -> bytes | dict[str, bytes]:
    """What a file holds, or each file of a folder."""
    if path.is_file():
        return path.read_bytes()
    return {inside.name: inside.read_bytes() for inside in path.iterdir()}


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    folder.mkdir(parents=True)
    export_ctranslate2(random_model(TOY), TOKENIZER, str(folder))
    names = {path.name for path in folder.iterdir()}
    assert names >= {"model.bin", "translate.py", "tokenizer.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_other_work_is_refused_and_kept(tmp_path: Path) -> None:
    model = random_model(TOY)
    save_model(model, TOKENIZER, tmp_path / "trained")
    export_ctranslate2(model, TOKENIZER, tmp_path / "extra")
    (tmp_path / "extra" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("trained", "extra", "file"):
        before = content(tmp_path / name)
        with pytest.raises(FileExistsError, match=name):
            export_ctranslate2(model, TOKENIZER, tmp_path / name)
        assert content(tmp_path / name) == before


def test_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no room"):
        export_ctranslate2(random_model(TOY), TOKENIZER, tmp_path / "model")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TOY, d_k=4, d_v=8), "d_k=4 and d_v=8"),
        (replace(TOY, d_k=4), "d_k=4 and d_v=6"),
        (replace(TOY, vocabulary_size=300), "the tokenizer has"),
    ],
)
def test_what_cannot_be_exported(
    config: TransformerConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export_ctranslate2(Transformer(config), TOKENIZER, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_missing_engine_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    message = r'pip install "\.\[export\]" in the folder of the book'
    with pytest.raises(ImportError, match=message):
        export_ctranslate2(random_model(TOY), TOKENIZER, tmp_path / "model")
    assert not list(tmp_path.iterdir())
