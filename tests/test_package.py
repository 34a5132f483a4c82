"""The package as a user has it: quick to import, one version everywhere, README lines that work."""

import ast
import importlib.util
import io
import json
import math
import pkgutil
import re
import shlex
import subprocess
import sys
import tokenize
from importlib.metadata import requires, version
from itertools import chain, product
from pathlib import Path

import pytest
import torch
import yaml

import annotated_transformer
from annotated_transformer import cli
from annotated_transformer.checker import EXERCISES
from annotated_transformer.synchronous_grammar import grammar
from annotated_transformer.training import TrainingConfig
from annotated_transformer.transformer import Transformer, TransformerConfig
from tools.card import card
from tools.chapters import ROOT
from tools.everyday import WORDS
from tools.package import project, public_names

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
MODEL = ["attention", "masks", "multi_head_attention", "feed_forward", "embeddings"]
MODEL += ["positional_encoding", "layers", "transformer"]
PUBLIC = [name for names in public_names(ROOT).values() for name in names]


# Names


def test_import_loads_nothing():
    """No torch, and no module of the package, before a name is used."""
    code = (
        "import sys, annotated_transformer as a; print(len(dir(a)) > 10,"
        "[m for m in sys.modules if m in ('torch', 'numpy') or m.startswith(a.__name__ + '.')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True []"


def test_every_public_name_is_there():
    """Each has one home, the stub for editors says the same, and no other name is offered."""
    assert sorted(annotated_transformer.__all__) == sorted(set(PUBLIC)) == sorted(PUBLIC)
    for home, names in public_names(ROOT).items():
        for name in names:
            found = getattr(annotated_transformer, name)
            assert (found.__name__, found.__module__) == (name, f"annotated_transformer.{home}")
    stub = ast.parse((ROOT / "annotated_transformer" / "__init__.pyi").read_text("utf-8"))
    typed = [n for n in stub.body if isinstance(n, ast.ImportFrom)]
    assert {(n.module, a.name) for n in typed for a in n.names} == {
        (home, name) for home, names in public_names(ROOT).items() for name in names
    }
    with pytest.raises(AttributeError, match="no attribute 'attend'"):
        _ = annotated_transformer.attend


def test_no_public_name_is_the_name_of_a_module():
    """Importing a module sets it as an attribute of the package: it would hide the name."""
    modules = {module.name for module in pkgutil.iter_modules(annotated_transformer.__path__)}
    assert len(modules) > 10 and not modules & set(PUBLIC)


# Numbers and addresses that stand in several places


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == version("annotated-transformer")
    assert citation["version"] == annotated_transformer.__version__
    assert f"## {annotated_transformer.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_one_address():
    """The repository is named only as _config.yml sets it."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    address = config["repository"]["url"]
    assert project(ROOT)["project"]["urls"]["Repository"] == address
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == address
    slug = address.removeprefix("https://github.com/").split("/")[1]
    for page in [*ROOT.glob("*.md"), *(ROOT / "book").glob("*.md"), ROOT / "CITATION.cff"]:
        named = set(re.findall(rf"https://github\.com/[\w-]+/{slug}", page.read_text("utf-8")))
        harvards = f"https://github.com/harvardnlp/{slug}"  # its threads are cited
        assert named <= {address, harvards}, page.name


# Dependencies


def test_extras_are_there():
    extras = set(re.findall(r'extra == "(\w+)"', " ".join(requires("annotated-transformer") or [])))
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


# README's lines


def examples() -> list[tuple[str, str]]:
    """README's examples in Python: (code, what it prints)."""
    found = [e.partition("# ") for e in re.findall(r"```python\n(.+?)```", README, re.S)]
    # The training must not hang on luck
    return [
        (f"import torch\ntorch.manual_seed(0)\n{code}", said.strip()) for code, _, said in found
    ]


def test_readme_has_three_short_examples():
    """Three lines with the pretrained model, five that train one, three that check one's own."""
    assert [len(code.strip().splitlines()) - 2 for code, _ in examples()] == [3, 5, 3]


def test_readmes_shell_lines_go_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shorter training, which leaves as many checkpoints as the one of the README."""
    usual, short = cli.recipe("tiny"), ["--steps", "26", "--save-every", "10"]
    assert math.ceil(usual.steps / usual.save_every) == math.ceil(26 / 10)
    rows = [f"{pair.source}\t{pair.target}\n" for pair in grammar(400)]
    (tmp_path / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Guten Morgen!\n")))
    (block,) = [b for b in re.findall(r"```bash\n(.+?)```", README, re.S) if "pairs.tsv" in b]
    for line in block.splitlines():
        program, *arguments = shlex.split(line.rpartition("| ")[2], comments=True)
        assert program == "annotated-transformer"
        cli.main(arguments + ["--vocabulary-size", "400", *short] * (arguments[0] == "train"))


def test_readme_counts_the_mistakes_that_the_checker_knows():
    (count,) = re.findall(r"`check` knows (\d+) ways to get it wrong", README)
    assert int(count) == sum(len(exercise().mistakes) for exercise in EXERCISES.values())


def code_lines(path: Path) -> int:
    """Count the lines that hold code: no comment, no docstring, no empty line."""
    text, documents = path.read_text("utf-8"), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            documents |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)][:-1]
    spans = ([*range(t.start[0], t.end[0] + 1)] for t in tokens if t.type not in empty)
    return len({*chain(*spans)} - documents)


def test_the_lines_of_code_are_as_many_as_told() -> None:
    """Those of all modules, and of the model's eight."""
    lines = {p.stem: code_lines(p) for p in Path(annotated_transformer.__path__[0]).glob("*.py")}
    index = (ROOT / "book" / "index.md").read_text("utf-8")
    total, of_model = re.findall(r"([\d,]+) lines of code, (\d+) of them the model", index)[0]
    assert int(total.replace(",", "")) == sum(lines.values())
    assert int(of_model) == sum(lines[name] for name in MODEL)
    assert f"It has {total} lines of code" in README


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
    kept = {n: m for n, m in sys.modules.items() if n.startswith("annotated_transformer")}
    spec = importlib.util.spec_from_file_location("model_file", ROOT / "book" / "model.py")
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
    names = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imports}
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
        assert name not in gradients or torch.equal(gradients[name], gradients_of_file[name]), name
    assert torch.equal(logits, logits_of_file) and logits.isfinite().all()
    other.load_state_dict(ours.state_dict())


# The models that come along


@pytest.mark.parametrize("name", ["captions-de-en", "everyday-de-en", "everyday-en-de"])
def test_a_card_says_what_its_folder_holds(name):
    """No number of it is typed; it was written by `python -m tools.card`."""
    folder = ROOT / "annotated_transformer" / "pretrained" / name
    assert card(folder) == (folder / "README.md").read_text(encoding="utf-8")


def test_the_captions_card_quotes_its_first_training() -> None:
    """Two seeds' scores before the translations of its pairs came in, each from its record."""
    path = ROOT / "benchmarks" / "results" / "captions-first.jsonl"
    found = {
        (r["seed"], r["set"]): r["bleu"]
        for r in map(json.loads, path.read_text("utf-8").splitlines())
        if (r["averaged"], r["beam"], r["alpha"]) == (4, 4, 0.6)
    }
    folder = ROOT / "annotated_transformer" / "pretrained" / "captions-de-en"
    text = " ".join(card(folder).split())
    names = product((0, 1), ("validation", "captions"))
    one, tested, other, also = (f"{found[name]:.1f}" for name in names)
    assert f"it has {one} BLEU on validation with alpha 0.6 and {tested} on the test set" in text
    assert f"from another seed {other} and {also} (" in text
    first = [json.loads(line) for line in (folder / "start.jsonl").read_text("utf-8").splitlines()]
    assert f"was stopped at {first[-1]['step']:,} because" in text


def test_the_everyday_card_says_what_its_records_say() -> None:
    """Why not all checkpoints were averaged; the last rows are of words that were not taught."""
    folder = ROOT / "annotated_transformer" / "pretrained" / "everyday-de-en"
    lines = (folder / "evaluation.jsonl").read_text("utf-8").splitlines()
    validation = [json.loads(line) for line in lines if '"validation"' in line]
    (twelve,) = (r["bleu"] for r in validation if r["averaged"] == 12)
    text = " ".join(card(folder).split())
    assert f"all twelve checkpoints has {twelve:.1f} BLEU on validation, with alpha" in text
    assert '"last": 4' in (folder / "averaged.json").read_text("utf-8")
    rows = (folder / "judged.tsv").read_text("utf-8").splitlines()[-20:]
    listed = {line.split("\t")[0].split()[-1] for line in WORDS.read_text("utf-8").splitlines()}
    words = [row.split("\t")[0] for row in rows]
    assert len(words) == 20 and not {word for word in words if " " not in word} & listed


def test_what_was_tried_for_a_better_model_is_the_logs() -> None:
    """The scores on validation that the card of everyday-en-de compares, each from its record."""
    path = ROOT / "benchmarks" / "results" / "everyday-en-de.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]
    best: dict[tuple[str, int], float] = {}
    for record in records:
        key = record["training"].partition(",")[0].partition(" --")[0], record["updates"]
        best[key] = max(best.get(key, 0.0), record["bleu"])
    folder = ROOT / "annotated_transformer" / "pretrained" / "everyday-en-de"
    text = " ".join(card(folder).split())
    early, middle, late = (f"{best['first', n]:.1f}" for n in (23_500, 38_000, 51_500))
    assert f"has {early} on validation after 23,500, {middle} after 38,000 and {late} when" in text
    tried, kept = best["back-translated pairs", 11_500], best["second", 6000]
    assert f"came to {tried:.1f} after 11,500 updates, where the model above has {kept:.1f}" in text
    assert f"and to {best['back-translated pairs', 28_000]:.1f} after 28,000" in text
    assert f"It came to {best['distilled', 5500]:.1f} after 5,500 updates" in text
    helped, alike = (r["bleu"] for r in records if r["training"].startswith("reranked"))
    assert f"has {helped:.1f} at the best weight" in text and f"samples has {alike:.1f}." in text
    nearest = [best["nearest of eight translations", n] for n in (2500, 3500)]
    alone = best["Tatoeba's pairs alone", 1500]
    assert f"alone came to {alone:.1f}, and" in text
    assert f"to {nearest[0]:.1f} and then {nearest[1]:.1f}" in text
    agreeing = [best["two passes that agree (R-Drop", n] for n in (1000, 2000, 7000)]
    assert f"It had {agreeing[0]:.1f} after 1,000 updates at" in text
    assert f"had {agreeing[1]:.1f} after 2,000 and with 0.15 came to {agreeing[2]:.1f}" in text
    (dropped,) = (r["bleu"] for r in records if r["training"].endswith("0.5 --dropout 0.2"))
    assert f"With dropout 0.2 it had {dropped:.1f} after 1,000." in text
    joined = best["in one search", 7000], best["mean of the weights", 7000]
    assert f"it has {joined[0]:.1f}, and so has" in text
    assert f"{joined[0]:.1f}" == f"{joined[1]:.1f}"
    alone, both = best["another start", 28_000], best["in one search", 28_000]
    assert f"has {alone:.1f} after 28,000 updates, but {both:.1f} in one search with" in text
    assert f"4,800 updates from the model above came to {best['BPE dropout', 4800]:.1f}." in text
    assert f"to {best['learning from one search of two', 4900]:.1f} after 4,900 updates," in text
    assert f"it came to {best['wider', 3600]:.1f} after 3,600, again two epochs." in text
    words = [best[f"{kind}single words and emoji", 7000] for kind in ("", "held out: ")]
    assert f"updates it had {words[0]:.1f} on validation and {words[1]:.1f} on" in text
    wider = (path.parent / "wider-en-de.jsonl").read_text("utf-8").splitlines()
    assert json.loads(wider[-1])["step"] == 3600 and json.loads(wider[-1])["epoch"] == 2
    assert f"{json.loads(wider[0])['parameters'] / 1e6:.1f} million parameters" in text
    (together,) = (r["bleu"] for r in records if r["training"].startswith("held out: in one sear"))
    assert f"have {together:.1f} on the held-out pairs" in text and together < 45
    student = (path.parent / "student-en-de.jsonl").read_text("utf-8").splitlines()
    assert json.loads(student[-1])["step"] == 4900 and round(json.loads(student[-1])["epoch"]) == 2
    written = re.search(r"of ([\d,]+) of the 132,810 .* of ([\d,]+) that", path.read_text("utf-8"))
    assert written and f"{sum(int(n.replace(',', '')) for n in written.groups()):,} of" in text
    assert f"has {best['on 1', 6000]:.1f} on 1,200 pairs of Tatoeba that it learned from" in text
    lines = (folder / "evaluation.jsonl").read_text("utf-8").splitlines()
    scores = {r["set"]: r["bleu"] for r in map(json.loads, lines) if r["alpha"] == 0.6}
    person, others = scores["person"] - scores["several"], 45 - scores["tatoeba"]
    assert f"{person:.1f} above the model on the same sentences, as 45 is {others:.1f}" in text


def test_a_pretrained_model_is_there_at_once() -> None:
    """Neither the package nor a model loads what is slow to import: Dynamo takes seconds."""
    lines = "import sys, annotated_transformer as at; at.load_pretrained(), at.translate\n"
    lines += "print(sorted({'torch._dynamo', 'sympy', 'altair', 'sacrebleu'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert shown.stdout.strip() == "[]", shown.stderr
