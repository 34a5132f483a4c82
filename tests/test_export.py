"""A model exported to CTranslate2 computes and writes what ours does."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annotated_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    grammar,
    load_pretrained,
    translate,
)
from annotated_transformer.export import export_ctranslate2
from annotated_transformer.masks import BOS, EOS

ctranslate2 = pytest.importorskip("ctranslate2")

PAIRS = grammar(200, seed=0)
TOKENIZER = Tokenizer.train(PAIRS, vocabulary_size=400)
TOY = TransformerConfig(
    len(TOKENIZER), layers=2, d_model=24, d_ff=40, heads=4, max_length=90
)
VARIANTS = {
    "post-norm": TOY,
    "pre-norm, learned, bias": replace(
        TOY, pre_norm=True, positions="learned", attention_bias=True
    ),
    "narrow": replace(TOY, d_k=3, d_v=3),
    "wide": replace(TOY, d_k=10, d_v=10, pre_norm=True),
    "more rows": replace(TOY, vocabulary_size=len(TOKENIZER) + 7),
    "one layer": replace(TOY, layers=1, heads=1),
}


def random_model(config: TransformerConfig) -> Transformer:
    """A random model in which every parameter matters, gains and biases too."""
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_same_log_probabilities(name: str, tmp_path: Path) -> None:
    """Of each token, whatever the precision and the mode in which the model was exported."""
    model = random_model(VARIANTS[name])
    export_ctranslate2(model.double().train(), TOKENIZER, tmp_path / "model")
    assert model.training
    model.float().eval()
    engine = ctranslate2.Translator(str(tmp_path / "model"), compute_type="float32")
    for pair in PAIRS[:10]:
        source, target = (TOKENIZER.library.encode(text) for text in pair[:2])
        (result,) = engine.score_batch([source.tokens], [target.tokens])
        labels = [*target.ids, EOS]
        with torch.no_grad():
            logits = model(
                torch.tensor([[*source.ids, EOS]]), torch.tensor([[BOS, *target.ids]])
            )
        ours = logits[0].log_softmax(dim=-1)[range(len(labels)), labels]
        assert torch.allclose(torch.tensor(result.log_probs), ours, atol=1e-3)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captions model, exported."""
    folder = tmp_path_factory.mktemp("export") / "served"
    export_ctranslate2(*load_pretrained("captions-de-en"), folder)
    return folder


# Runs a script where neither PyTorch nor this package can be imported
ALONE = """
import sys, runpy
sys.modules["torch"] = sys.modules["annotated_transformer"] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_script(folder: Path, text: str) -> list[str]:
    """Give text to the script that an export has written; what it prints, cut at line ends."""
    command = [sys.executable, "-c", ALONE, str(folder / "translate.py")]
    environment = {
        "PYTHONIOENCODING": "ascii",
        "PATH": "",
    }  # it writes UTF-8 all the same
    done = subprocess.run(
        command, input=text.encode(), capture_output=True, check=True, env=environment
    )
    return done.stdout.decode("utf-8").split("\n")


def test_the_script_translates_line_by_line(served: Path) -> None:
    """In order; an empty line stays empty; a line ends at \\n alone; </s> in a text is text."""
    lines = [
        "Zwei Männer </s> reden.",
        "",
        "  ",
        "Ein Hund läuft über die Wiese.",
        "Eine Frau\u2028liest.",
        "Ja.\r",
    ]
    *translations, behind = run_script(served, "\n".join([*lines, ""]))
    assert translations == translate(*load_pretrained("captions-de-en"), lines)
    assert behind == ""
    assert run_script(served, "\n".join(lines)) == [*translations, ""]
    assert run_script(served, "") == [""]


def test_white_space_and_letters_are_those_of_the_training_data(served: Path) -> None:
    """One translation, of every odd white space and of letters in two parts."""
    words = ["Ein", "Hund", "la\u0308uft", "u\u0308ber", "die", "Wiese."]
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    spaces = [space for space in spaces if space != "\n"] + ["\ufeff", "  "]
    lines = [space.join(["", *words, ""]) for space in spaces]
    *translations, _ = run_script(served, "".join(f"{line}\n" for line in lines))
    (expected,) = translate(
        *load_pretrained("captions-de-en"), ["Ein Hund läuft über die Wiese."]
    )
    assert translations == [expected] * len(lines)


def test_eight_bits(tmp_path: Path, served: Path) -> None:
    """A third of the size, and still a translation."""
    model, tokenizer = load_pretrained("captions-de-en")
    export_ctranslate2(model, tokenizer, tmp_path / "small", quantization="int8")
    small = (tmp_path / "small" / "model.bin").stat().st_size
    assert small < 0.4 * (served / "model.bin").stat().st_size
    assert "dog" in run_script(tmp_path / "small", "Ein Hund läuft über die Wiese.")[0]


def test_what_is_there_is_kept_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError, match="mine"):
        export_ctranslate2(random_model(TOY), TOKENIZER, tmp_path / "mine")
    for config, message in (
        (replace(TOY, d_k=4, d_v=8), "d_k=4 and d_v=8"),
        (replace(TOY, vocabulary_size=300), "tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            export_ctranslate2(Transformer(config), TOKENIZER, tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
