"""What the exporter and the site know about the package's source without importing it."""

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = "annotated_transformer"
NOTEBOOK = re.compile(r"notebooks/([0-9]{2}|[A-Z])_(\w+)")


@dataclass(frozen=True)
class Module:
    """One module and the notebook it comes from: `notebooks/03_attention` feeds `attention`."""

    name: str
    chapter: str
    path: Path

    @property
    def full_name(self) -> str:
        return f"{PACKAGE}.{self.name}"

    def tree(self) -> ast.Module:
        """Parse the file."""
        return ast.parse(self.path.read_text(encoding="utf-8"), self.path)


def label_of(docname: str) -> str | None:
    """Return a chapter's number or an appendix's letter: 3 for `notebooks/03_attention`."""
    match = NOTEBOOK.fullmatch(docname)
    return match[1].lstrip("0") if match else None


def module_of(docname: str) -> str | None:
    """Name the module that a notebook feeds: `notebooks/03_attention` gives `attention`."""
    match = NOTEBOOK.fullmatch(docname)
    return match[2] if match else None


def modules(root: Path) -> list[Module]:
    """Return the modules below `root`, in the order of their chapters, then their appendices."""
    exported = []
    for script in sorted((root / "notebooks").glob("*_*.py")):
        chapter = f"notebooks/{script.stem}"
        name = module_of(chapter)
        if name is None:
            continue
        path = root / PACKAGE / f"{name}.py"
        if path.exists():
            exported.append(Module(name, chapter, path))
    return exported


def project(root: Path) -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def public_names(root: Path) -> dict[str, list[str]]:
    """Return the names that users import from the package, by module; pyproject.toml lists them."""
    settings = project(root)["tool"]["annotated-transformer"]
    public: dict[str, list[str]] = settings["public"]
    return public


def defined_names(definition: ast.stmt) -> list[str]:
    """Return the names that a statement at module level defines."""
    match definition:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            leaves = [leaf for target in targets for leaf in ast.walk(target)]
            return [leaf.id for leaf in leaves if isinstance(leaf, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def is_public(name: str) -> bool:
    """True if a reader may use the name."""
    return not name.startswith("_")
