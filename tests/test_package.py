"""The package as a user has it: names, versions, what a wheel holds, README lines that work."""

import ast
import importlib.util
import io
import json
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import asdict
from importlib.metadata import requires, version

import pytest
import torch
import yaml

import annotated_transformer
from annotated_transformer import cli, grammar, preset
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.chapters import ROOT
from tools.package import project, public_names

README = (ROOT / "README.md").read_text(encoding="utf-8")
PUBLIC = [name for names in public_names(ROOT).values() for name in names]
PACKAGE = ROOT / "annotated_transformer"
PRETRAINED = [path.parent for path in PACKAGE.glob("pretrained/*/config.json")]


# Names


def test_importing_needs_no_extra():
    """Neither a library of an extra, nor one for drawing or commands, is loaded."""
    extras = "datasets", "ctranslate2", "altair", "matplotlib", "tyro"
    code = f"import sys, annotated_transformer; print({{*sys.modules}} & {{*{extras}}})"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "set()"


def test_every_public_name_has_one_home():
    """And none is the name of a module, which importing the module would put in its place."""
    assert sorted(set(PUBLIC)) == sorted(PUBLIC)
    for home, names in public_names(ROOT).items():
        for name in names:
            found = getattr(annotated_transformer, name)
            assert found.__module__ == f"annotated_transformer.{home}"
    found = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
    assert len(found) > 10 and not found & {*PUBLIC}


# Numbers and addresses that stand in several places


def test_one_version_and_one_address():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    number = annotated_transformer.__version__
    assert number == version("annotated-transformer") == citation["version"]
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    address = config["repository"]["url"]
    assert project(ROOT)["project"]["urls"]["Repository"] == address
    assert citation["repository-code"] == address


# Dependencies


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[ ;<>=\[]", line)[0].lower() for line in requirements}


def test_everything_that_is_needed_is_pinned():
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    pinned = names_of([line for line in lines if "==" in line])
    assert names_of(requires("annotated-transformer") or []) <= pinned


def test_what_is_imported_is_a_dependency():
    """Or comes with an extra; each dependency is imported, and has a lower bound."""
    imported = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=aliases):
                    imported |= {alias.name.split(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module)):
                    imported.add(module.split(".")[0])
    imported -= {*sys.stdlib_module_names, "annotated_transformer"}
    bounds = project(ROOT)["project"]["dependencies"]
    assert all(re.fullmatch(r"[a-z]+>=[\d.]+", bound) for bound in bounds)
    assert names_of(bounds) <= imported
    assert imported - names_of(bounds) <= {"datasets", "ctranslate2"}


def test_what_is_built_has_models_and_cards_and_no_logs(tmp_path):
    """The source distribution has no half of the tests."""
    pytest.importorskip("setuptools", minversion="77")
    files = "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CITATION.cff"
    for name in files:
        shutil.copy(ROOT / name, tmp_path)
    large = shutil.ignore_patterns("__pycache__", "*.safetensors", "browser")
    for name in ("annotated_transformer", "tests", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=large)
    for folder in PRETRAINED:
        (tmp_path / folder.relative_to(ROOT) / "model.safetensors").touch()
    build = (
        "from setuptools import build_meta as b; b.build_sdist('.'); b.build_wheel('.')"
    )
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True)

    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert not any(name.startswith("tests") for name in names)
    lists = {str(path.relative_to(ROOT)) for path in ROOT.glob("tools/requirements/*")}
    assert {"annotated_transformer/cli.py", "CITATION.cff", *lists} <= names

    (archive,) = tmp_path.glob("*.whl")
    in_wheel = set(zipfile.ZipFile(archive).namelist())
    in_wheel = {name for name in in_wheel if name.startswith("annotated_transformer/")}
    expected = {*PACKAGE.glob("*.py"), PACKAGE / "py.typed"}
    parts = "config.json", "tokenizer.json", "model.safetensors", "README.md"
    expected |= {folder / part for folder in PRETRAINED for part in parts}
    assert in_wheel == {str(path.relative_to(ROOT)) for path in expected}


# README's lines


def examples() -> list[tuple[str, str]]:
    """README's examples in Python: (code, what it prints)."""
    blocks = re.findall(r"```python\n(.+?)```", README, re.S)
    parts = [block.partition("# ") for block in blocks]
    # The training must not hang on luck
    begin = "import torch\ntorch.manual_seed(0)\n"
    return [(begin + code, said.strip()) for code, _, said in parts]


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_readme_lines_work_as_printed(number, capsys):
    code, printed = examples()[number]
    exec(code, {})
    assert capsys.readouterr().out.strip() == printed


def test_readmes_shell_lines_go_through(tmp_path, monkeypatch):
    """With a shorter training, which leaves three checkpoints."""
    rows = [f"{pair.source}\t{pair.target}\n" for pair in grammar(400)]
    (tmp_path / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Guten Morgen!\n")))
    blocks = re.findall(r"```bash\n(.+?)```", README, re.S)
    (block,) = [block for block in blocks if "pairs.tsv" in block]
    short = ["--vocabulary-size", "400", "--steps", "26", "--save-every", "10"]
    for line in block.splitlines():
        program, *arguments = shlex.split(line.rpartition("| ")[2], comments=True)
        assert program == "annotated-transformer"
        cli.main(arguments + short * (arguments[0] == "train"))


# The model in one file


@pytest.fixture(scope="module")
def model_file():
    """book/model.py, imported where importing the package fails."""
    kept = {n: m for n, m in sys.modules.items() if n.startswith(PACKAGE.name)}
    path = ROOT / "book" / "model.py"
    spec = importlib.util.spec_from_file_location("model_file", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules |= dict.fromkeys(kept, None) | {"model_file": module}
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules |= kept
    return module


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pre_norm": True, "attention_bias": True, "attention_dropout": 0.2},
        {"positions": "learned", "d_k": 5, "d_v": 3, "relu_dropout": 0.1},
    ],
)
def test_the_model_file_computes_the_same(model_file, changes):
    """Same parameters, same start, same logits and gradients to the bit, with dropout too."""
    shape = {"vocabulary_size": 23, "layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
    results = []
    for config, kind in (
        (TransformerConfig, Transformer),
        (model_file.TransformerConfig, model_file.Transformer),
    ):
        torch.manual_seed(1)
        model = kind(config(**shape, **changes)).train()
        source = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
        logits = model(source, torch.tensor([[1, 10, 11], [1, 12, 0]]))
        logits.square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append({"logits": logits.detach(), **gradients})
    ours, of_file = results
    assert ours.keys() == of_file.keys()
    for name, numbers in ours.items():
        assert torch.equal(numbers, of_file[name]) and numbers.isfinite().all(), name


# The models that come along


@pytest.mark.parametrize("folder", PRETRAINED, ids=lambda folder: folder.name)
def test_a_card_is_true(folder):
    """Its lines of Python run, its preset has the model's shape, its scores are in the log."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.+?)```", card, re.S)[1], {})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = re.search(r"--preset (\w+)", card)[1]
    assert asdict(preset(name, vocabulary_size=config["vocabulary_size"])) == config

    lines = (folder / "evaluation.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    alpha = float(re.search(r"beam 4, alpha ([\d.]+)", card)[1])
    rows = re.findall(r"\| ([\d,]+) \| ([\d.]*) \| ([\d.]+) \| ([\d.]+) \| ", card)
    assert len(rows) >= 2
    for sentences, *scores in rows:
        of_set = [
            r for r in records if r["sentences"] == int(sentences.replace(",", ""))
        ]
        for score, search in zip(scores, [(1, 0.6), (4, 0.6), (4, alpha)]):
            logged = {
                f"{r['bleu']:.1f}" for r in of_set if (r["beam"], r["alpha"]) == search
            }
            assert score in (logged or {""})
