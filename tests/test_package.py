"""The package as a user has it: quick to import, one version everywhere, README lines that work."""

import re
import subprocess
import sys
import time
from importlib.metadata import requires, version

import yaml

import annotated_transformer
from tools.chapters import ROOT, repository

README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )


def test_import_costs_nothing_and_loads_no_torch():
    code = "import sys, annotated_transformer as a; print('torch' in sys.modules, len(dir(a)) > 10)"
    start = time.perf_counter()
    assert run(code).stdout.split() == ["False", "True"]
    bare = time.perf_counter()
    run("import sys")
    assert (bare - start) - (time.perf_counter() - bare) < 0.2


def test_every_public_name_is_there():
    for name in annotated_transformer.__all__:
        assert getattr(annotated_transformer, name).__name__ == name


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == version("annotated-transformer")
    assert citation["version"] == annotated_transformer.__version__
    assert f"## {annotated_transformer.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_are_there():
    extras = set(re.findall(r'extra == "(\w+)"', " ".join(requires("annotated-transformer") or [])))
    assert extras == {"notebooks", "docs", "test", "train", "serve"}


def test_everything_that_is_needed_is_pinned():
    pinned = {
        re.split(r"[ ;=]", line)[0]
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line
    }
    for requirement in requires("annotated-transformer") or []:
        name = re.split(r"[ ;<>=\[]", requirement)[0].lower()
        assert name in pinned, f"{name} has no pin in requirements.txt"


def test_the_readme_names_the_repository_only_as_configured():
    named = set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", README))
    assert named <= {repository()}


def test_the_readme_lines_work_as_printed():
    """Three lines with the pretrained model, five that train one, three that check one's own."""
    examples = re.findall(r"```python\n(.+?)```", README, re.S)
    lengths = []
    for example in examples:
        code, _, printed = example.partition("# ")
        lengths.append(len([line for line in code.splitlines() if line.strip()]))
        seeded = f"import torch\ntorch.manual_seed(0)\n{code}"  # a test must not hang on luck
        assert run(seeded).stdout.strip() == printed.strip()
    assert lengths == [3, 5, 3]
