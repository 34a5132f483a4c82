"""The package as a user has it: quick to import, one version everywhere, README lines that work."""

import ast
import importlib.util
import io
import json
import math
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import asdict
from importlib.metadata import requires, version
from pathlib import Path

import pytest
import torch
import yaml

import annotated_transformer
from annotated_transformer import preset
from annotated_transformer.toolkit import cli
from annotated_transformer.toolkit.checker import EXERCISES
from annotated_transformer.toolkit.downloads import cache_folder
from annotated_transformer.toolkit.runs import TrainingConfig
from annotated_transformer.toolkit.synchronous_grammar import grammar
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.card import card
from tools.chapters import ROOT
from tools.package import project, public_names

README = (ROOT / "README.md").read_text(encoding="utf-8")
PUBLIC = [name for names in public_names(ROOT).values() for name in names]


# Names


def test_import_loads_nothing():
    """No torch, and no module of the package, before a name is used."""
    code = (
        "import sys, annotated_transformer as a; print(len(dir(a)) > 10,"
        "[m for m in sys.modules if m in ('torch', 'numpy') or m.startswith(a.__name__ + '.')])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "True []"


def test_every_public_name_is_there():
    """Each has one home, the stub for editors says the same, and no other name is offered."""
    assert (
        sorted(annotated_transformer.__all__) == sorted(set(PUBLIC)) == sorted(PUBLIC)
    )
    for home, names in public_names(ROOT).items():
        for name in names:
            found = getattr(annotated_transformer, name)
            assert (found.__name__, found.__module__) == (
                name,
                f"annotated_transformer.{home}",
            )
    stub = ast.parse(
        (ROOT / "annotated_transformer" / "__init__.pyi").read_text("utf-8")
    )
    typed = [n for n in stub.body if isinstance(n, ast.ImportFrom)]
    assert {(n.module, a.name) for n in typed for a in n.names} == {
        (home, name) for home, names in public_names(ROOT).items() for name in names
    }
    with pytest.raises(AttributeError, match="no attribute 'attend'"):
        _ = annotated_transformer.attend


def test_a_list_of_names_has_public_ones_alone():
    assert dir(annotated_transformer) == sorted([*PUBLIC, "__version__"])


def test_no_public_name_is_the_name_of_a_module():
    """Importing a module sets it as an attribute of the package: it would hide the name."""
    modules = {
        module.name for module in pkgutil.iter_modules(annotated_transformer.__path__)
    }
    assert len(modules) > 10 and not modules & set(PUBLIC)


# Numbers and addresses that stand in several places


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == version("annotated-transformer")
    assert citation["version"] == annotated_transformer.__version__
    assert f"## {annotated_transformer.__version__}" in (
        ROOT / "CHANGELOG.md"
    ).read_text("utf-8")


def test_one_address():
    """The repository is named only as _config.yml sets it."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    address = config["repository"]["url"]
    assert project(ROOT)["project"]["urls"]["Repository"] == address
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == address
    slug = address.removeprefix("https://github.com/").split("/")[1]
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "book").glob("*.md"),
        ROOT / "CITATION.cff",
    ]:
        named = set(
            re.findall(rf"https://github\.com/[\w-]+/{slug}", page.read_text("utf-8"))
        )
        harvards = f"https://github.com/harvardnlp/{slug}"  # its threads are cited
        assert named <= {address, harvards}, page.name


# Dependencies


def test_extras_are_there():
    extras = set(
        re.findall(
            r'extra == "(\w+)"', " ".join(requires("annotated-transformer") or [])
        )
    )
    assert extras == {"notebooks", "docs", "test", "wmt14", "export"}


def test_everything_that_is_needed_is_pinned():
    pinned = {
        re.split(r"[ ;=]", line)[0]
        for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    for requirement in requires("annotated-transformer") or []:
        name = re.split(r"[ ;<>=\[]", requirement)[0].lower()
        assert name in pinned, f"{name} has no pin in requirements.txt"


def test_every_dependency_is_imported_and_has_a_lower_bound():
    """And what is imported is a dependency, or comes with one of the extras."""
    imported = set()
    for path in (ROOT / "annotated_transformer").glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=aliases):
                    imported |= {alias.name.split(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module)):
                    imported.add(module.split(".")[0])
    imported -= {*sys.stdlib_module_names, "annotated_transformer"}
    bounds = project(ROOT)["project"]["dependencies"]
    names = {re.fullmatch(r"([a-z]+)>=[\d.]+", bound)[1] for bound in bounds}
    assert names <= imported
    assert imported - names <= {"datasets", "multiprocess", "pyarrow", "ctranslate2"}


def test_the_oldest_versions_are_tested():
    """`make test-matrix` takes each lower bound of pyproject.toml."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"sed -nE 's/(.+)/\\1==\\2/p' pyproject.toml", makefile)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.findall(pattern.replace("$$", "$"), text, re.MULTILINE)
    bounds = project(ROOT)["project"]["dependencies"]
    assert [f"{name}>={number}" for name, number in lines] == bounds


def test_the_workflow_keeps_the_folder_of_the_data(monkeypatch):
    """Where the package looks on Linux, so that data sets are downloaded once."""
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_CACHE", raising=False)
    text = (ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8")
    (path,) = re.findall(r"path: (~/.cache/\S+)", text)
    assert Path(path).name == cache_folder().name


def test_the_source_distribution_has_the_package_and_no_half_of_the_tests(tmp_path):
    """A test without its conftest.py and fixtures could not run."""
    pytest.importorskip("setuptools", minversion="77")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.jsonl")
    for name in ("annotated_transformer", "tests", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    build = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True
    )
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert not any(name.startswith("tests") for name in names)
    assert {"annotated_transformer/toolkit/cli.py", "CITATION.cff"} <= names
    lists = (ROOT / "tools" / "requirements").glob("*.txt")
    assert {f"tools/requirements/{path.name}" for path in lists} <= names


# README's lines


def examples() -> list[tuple[str, str]]:
    """README's examples in Python: (code, what it prints)."""
    found = [
        e.partition("# ") for e in re.findall(r"```python\n(.+?)```", README, re.S)
    ]
    # The training must not hang on luck
    return [
        (f"import torch\ntorch.manual_seed(0)\n{code}", said.strip())
        for code, _, said in found
    ]


def test_readme_has_three_short_examples():
    """Three lines with the pretrained model, five that train one, three that check one's own."""
    assert [len(code.strip().splitlines()) - 2 for code, _ in examples()] == [3, 5, 3]


def test_readmes_shell_lines_go_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a shorter training, which leaves as many checkpoints as the one of the README."""
    usual, short = cli.recipe("tiny"), ["--steps", "26", "--save-every", "10"]
    assert math.ceil(usual.steps / usual.save_every) == math.ceil(26 / 10)
    rows = [f"{pair.source}\t{pair.target}\n" for pair in grammar(400)]
    (tmp_path / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Guten Morgen!\n")))
    (block,) = [
        b for b in re.findall(r"```bash\n(.+?)```", README, re.S) if "pairs.tsv" in b
    ]
    for line in block.splitlines():
        program, *arguments = shlex.split(line.rpartition("| ")[2], comments=True)
        assert program == "annotated-transformer"
        cli.main(
            arguments + ["--vocabulary-size", "400", *short] * (arguments[0] == "train")
        )


@pytest.mark.parametrize(
    ("chapter", "part"),
    [("05_multi_head_attention", "multi_head_attention"), ("09_layers", "layer_norm")],
)
def test_chapters_count_the_mistakes_of_a_part(chapter: str, part: str) -> None:
    text = (ROOT / "notebooks" / f"{chapter}.py").read_text("utf-8")
    (word,) = re.findall(r"knows (\w+) ways to get it wrong", text)
    mistakes = EXERCISES[part]().mistakes
    assert word == {7: "seven", 8: "eight", 9: "nine"}[len(mistakes)]


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_readme_lines_work_as_printed(number, capsys):
    code, printed = examples()[number]
    exec(code, {})
    assert capsys.readouterr().out.strip() == printed


def test_readme_training_runs(capsys):
    """A few steps of it; what it translates then is another matter."""
    code, _ = examples()[1]
    few = code.replace("20_000", "200").replace("pairs)\nprint", "pairs, few)\nprint")
    assert few.count("200,") == few.count("few") == 1
    exec(few, {"few": TrainingConfig(steps=2)})
    assert re.fullmatch(r"\['.*'\]", capsys.readouterr().out.strip())


# The model in one file


@pytest.fixture(scope="module")
def model_file():
    """book/model.py, imported where importing the package fails."""
    kept = {
        n: m for n, m in sys.modules.items() if n.startswith("annotated_transformer")
    }
    spec = importlib.util.spec_from_file_location(
        "model_file", ROOT / "book" / "model.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules |= dict.fromkeys(kept, None) | {"model_file": module}
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules |= kept
    return module


def test_the_model_file_needs_only_torch():
    tree = ast.parse((ROOT / "book" / "model.py").read_text(encoding="utf-8"))
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert imports == [n for n in tree.body if n in imports], "all at the top"
    names = {
        n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imports
    }
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}


SHAPE = {"vocabulary_size": 23, "layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pre_norm": True, "attention_bias": True},
        {"positions": "learned", "d_k": 5, "d_v": 3},
        {"dropout": 0.3, "attention_dropout": 0.2, "relu_dropout": 0.1},
    ],
)
def test_the_model_file_computes_the_same(model_file, changes):
    """Same parameters, same start, same logits and gradients to the bit, with dropout too."""
    results = []
    for classes in (
        (TransformerConfig, Transformer),
        (model_file.TransformerConfig, model_file.Transformer),
    ):
        torch.manual_seed(1)
        model = classes[1](classes[0](**SHAPE, **changes)).train()
        source = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
        target = torch.tensor([[1, 10, 11], [1, 12, 0]])
        logits = model(source, target)
        logits.square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((model, logits, gradients))
    (ours, logits, gradients), (other, logits_of_file, gradients_of_file) = results
    assert type(ours) is not type(other)
    assert ours.state_dict().keys() == other.state_dict().keys()
    for name, weights in ours.state_dict().items():
        assert torch.equal(weights, other.state_dict()[name]), name
        assert name not in gradients or torch.equal(
            gradients[name], gradients_of_file[name]
        ), name
    assert torch.equal(logits, logits_of_file) and logits.isfinite().all()
    other.load_state_dict(ours.state_dict())


# The models that come along


@pytest.mark.parametrize("name", ["captions-de-en", "everyday-de-en", "everyday-en-de"])
def test_a_card_is_written_from_its_folder(name):
    """By `python -m tools.card`; it is a screen long, and has a signature and a licence."""
    folder = ROOT / "annotated_transformer" / "pretrained" / name
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text == card(folder)
    lines = text.splitlines()
    assert len(lines) <= 55 and max(map(len, lines)) <= 100
    assert "nrefs:1|case:mixed" in text and "MIT" in text and "version:" in text
    _, code = text.split("```python\n")
    exec(code.partition("```")[0], {})


@pytest.mark.parametrize("name", ["captions-de-en", "everyday-de-en", "everyday-en-de"])
def test_the_commands_of_a_card_make_the_shape_of_its_model(name):
    folder = ROOT / "annotated_transformer" / "pretrained" / name
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = preset(name.partition("-")[0], vocabulary_size=config["vocabulary_size"])
    assert asdict(shape) == config


def test_the_wheel_has_models_and_cards_and_no_logs():
    patterns = project(ROOT)["tool"]["setuptools"]["package-data"]
    home = ROOT / "annotated_transformer"
    names = {
        path.name
        for pattern in patterns["annotated_transformer"]
        if pattern.startswith("pretrained")
        for path in home.glob(pattern)
    }
    model = {"config.json", "tokenizer.json", "model.safetensors"}
    assert names == model | {"README.md"}
