"""Write the package from the notebooks: every cell tagged `export`, in the order of the book.

What a cell also tagged `internal` defines is left out of the module's `__all__`.

usage: python -m tools.export
"""

import ast
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from tools.chapters import ROOT, Chapter, chapters, plain, repository, tags, with_install_cell
from tools.problem import Problem, ProblemError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = "annotated_transformer"
LOOK_AHEAD = "load_pretrained"  # the one name that a demonstration may import from the package


@dataclass
class Module:
    """One module of the package while it is put together."""

    chapter: Chapter
    title: str
    summary: str
    imports: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # name -> the cell that defines it
    public: list[str] = field(default_factory=list)  # those that `__all__` lists

    def render(self) -> str:
        """Return the module's text, formatted."""
        docstring = textwrap.fill(self.summary, 92, break_long_words=False)
        head = (
            f"# Generated from {self.chapter.label}: "
            'change it there, then run "make execute" and "make export".\n'
            f'"""{self.title}.\n\n{docstring}\n"""\n'
        )
        public = ", ".join(f'"{name}"' for name in self.public)
        parts = [head, *self.imports, f"__all__ = [{public}]", *self.body]
        return formatted("\n\n".join(parts) + "\n")


def formatted(code: str) -> str:
    """Sort and merge the imports and lay the code out, as `make lint` would."""
    for command in (["check", "--select", "I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", f"{PACKAGE}/x.py", "-"]
        done = subprocess.run(
            ruff, input=code, capture_output=True, text=True, check=True, cwd=ROOT
        )
        code = done.stdout
    return code


def title_and_summary(chapter: Chapter, notebook: NotebookNode) -> tuple[str, str]:
    """Return the chapter's title and its first sentence.

    Raises:
        ProblemError: the notebook has no title cell with a sentence below the title.
    """
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := re.search(r"^# (.+)$", cell.source, re.M)):
            below = cell.source[found.end() :].strip().split("\n\n")[0]
            sentence = re.match(r".+?[.!?](?=\s|$)", plain(below))
            if sentence:
                return plain(found.group(1)), sentence.group(0)
    what = "has no title with a first sentence below it"
    remedy = 'begin with a Markdown cell "# Title", then say what the chapter builds'
    raise ProblemError(Problem(chapter.label, what, remedy))


def parse(chapter: Chapter, index: int, source: str) -> ast.Module:
    """Parse a code cell.

    Raises:
        ProblemError: it holds a magic or is no Python.
    """
    where = chapter.cell(index)
    magic = re.search(r"^\s*[%!].*$", source, re.M)
    try:
        return ast.parse(source)
    except SyntaxError as error:
        if magic:
            what, remedy = f'holds the magic "{magic.group(0).strip()}"', "use plain Python"
        else:
            what = f"does not parse: {error.msg} in line {error.lineno}"
            remedy = "mend the cell; each cell must be Python by itself"
        raise ProblemError(Problem(where, what, remedy)) from error


def imported_modules(tree: ast.Module) -> list[tuple[str, str]]:
    """List what a cell imports from the package, as (module, name) pairs."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            dotted = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in dotted:
            if module == PACKAGE or module.startswith(PACKAGE + "."):
                found.append((module.removeprefix(PACKAGE).removeprefix("."), name))
    return found


def check_law(where: str, tree: ast.Module, before: list[str], exported: bool) -> list[Problem]:
    """The import law: a cell uses only modules of earlier chapters."""
    problems = []
    for module, name in imported_modules(tree):
        if module.split(".")[0] in before or (not module and name == LOOK_AHEAD and not exported):
            continue
        what = f'imports "{module or name}", which no earlier chapter exports'
        remedy = (
            f"import from {PACKAGE}.MODULE with one of: {', '.join(before) or 'none yet'}; "
            "or move the cell to a later chapter"
        )
        problems.append(Problem(where, what, remedy))
    return problems


def defined_names(tree: ast.Module) -> list[str]:
    """List the names that a cell defines at its top level."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return names


def split_imports(source: str, tree: ast.Module) -> tuple[list[str], str]:
    """Separate a cell's top-level imports from the rest of its text."""
    lines = source.splitlines()
    imports = []
    for node in reversed(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.insert(0, "\n".join(lines[node.lineno - 1 : node.end_lineno]))
            del lines[node.lineno - 1 : node.end_lineno]
    return imports, "\n".join(lines).strip()


def build_module(chapter: Chapter, before: list[str]) -> tuple[Module, list[Problem]]:
    """Put one chapter's exported cells together and list what is wrong with its cells."""
    notebook = chapter.read_script()
    module = Module(chapter, *title_and_summary(chapter, notebook))
    problems: list[Problem] = []
    heading = written = ""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            headings = re.findall(r"^##+ (.+)$", cell.source, re.M)
            heading = plain(headings[-1]) if headings else heading
            continue
        exported = "export" in tags(cell)
        try:
            tree = parse(chapter, index, cell.source)
        except ProblemError as error:
            problems += error.problems
            continue
        problems += check_law(chapter.cell(index), tree, before, exported)
        if not exported:
            continue
        for name in defined_names(tree):
            if name in module.names:
                problems.append(twice(name, chapter.cell(index), module.names[name]))
            module.names[name] = chapter.cell(index)
            if not name.startswith("_") and "internal" not in tags(cell):
                module.public.append(name)
        imports, rest = split_imports(cell.source, tree)
        module.imports += imports
        if rest and heading != written:
            module.body.append(f"# {'-' * 3} {heading} {'-' * 3}")
            written = heading
        if rest:
            module.body.append(rest)
    return module, problems


def twice(name: str, where: str, first: str) -> Problem:
    """The problem of a name that two exported cells define."""
    remedy = "rename one, or export only the last stage"
    return Problem(where, f'exports "{name}", which {first} exports already', remedy)


def render_init(root: Path, modules: list[Module]) -> str:
    """Return `__init__.py`: the version and the names of pyproject.toml, imported lazily."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    public = project["tool"]["annotated-transformer"]["public"]
    home = {name: m.chapter.module for m in modules for name in m.names}
    missing = [name for name in public if name not in home]
    if missing:
        what = f"lists public names that no chapter exports: {', '.join(missing)}"
        remedy = "export them, or take them out of [tool.annotated-transformer]"
        raise ProblemError(Problem("pyproject.toml", what, remedy))
    typed = "\n".join(f"    from .{home[name]} import {name}" for name in public)
    table = ", ".join(f'"{name}": "{home[name]}"' for name in public)
    exported = ", ".join(f'"{name}"' for name in public)
    return formatted(f'''# Generated by "make export" from pyproject.toml and the notebooks.
"""The Transformer of "Attention Is All You Need", built chapter by chapter in the book.

Names are imported when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
{typed or "    pass"}

__version__ = "{project["project"]["version"]}"
__all__ = [{exported}]

_HOME = {{{table}}}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    return getattr(import_module(f".{{_HOME[name]}}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
''')


def generate(root: Path = ROOT) -> dict[str, str]:
    """Return what the package must hold: file name -> text.

    Raises:
        ProblemError: a cell breaks a rule; all findings at once.
    """
    modules: list[Module] = []
    problems: list[Problem] = []
    first: dict[str, str] = {}
    for chapter in chapters(root):
        module, found = build_module(chapter, [m.chapter.module for m in modules])
        problems += found
        for name, where in module.names.items():
            if name in first and not name.startswith("_"):
                problems.append(twice(name, where, first[name]))
            first.setdefault(name, where)
        modules.append(module)
    if problems:
        raise ProblemError(*problems)
    files = {f"{m.chapter.module}.py": m.render() for m in modules if m.body}
    return {"__init__.py": render_init(root, modules), "py.typed": "", **files}


def address_changes(root: Path = ROOT) -> dict[Path, str]:
    """Return the files whose repository address is not that of `_config.yml`, with their mended text.

    The address last exported stands in pyproject.toml; every file that names it follows.
    """
    new = repository(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    old_slug = project["project"]["urls"]["Repository"].split("github.com/")[1]
    slug = new.split("github.com/")[1]
    changes = {}
    pages = [root / name for name in ("pyproject.toml", "README.md", "CITATION.cff")]
    pages += [root / "CONTRIBUTING.md", root / "CHANGELOG.md", *(root / "book").glob("*.md")]
    for path in filter(Path.exists, pages):
        text = path.read_text(encoding="utf-8")
        if old_slug != slug and old_slug in text:
            changes[path] = text.replace(old_slug, slug)
    for chapter in chapters(root):
        text = chapter.script.read_text(encoding="utf-8")
        if (placed := with_install_cell(text.replace(old_slug, slug), new)) != text:
            changes[chapter.script] = placed
    return changes


def main() -> None:
    """Write the package, and the repository's address where it is named."""
    try:
        for path, text in address_changes().items():
            path.write_text(text, encoding="utf-8")
            print(f"address of the repository: {path.relative_to(ROOT)}")
        files = generate()
    except ProblemError as error:
        sys.exit(f"make export: nothing written\n{error}")
    folder = ROOT / PACKAGE
    for path in folder.glob("*.py"):
        if path.name not in files:
            path.unlink()
            print(f"removed {PACKAGE}/{path.name}")
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {PACKAGE}/{name}")


if __name__ == "__main__":
    main()
