"""Read the package's source files without importing them."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "annotated_transformer"
NUMBERED = re.compile(r"\d\d_")


@dataclass(frozen=True)
class Module:
    """One module and the chapter it comes from: `notebooks/03_attention` feeds `attention`."""

    name: str
    chapter: str
    path: Path

    @property
    def full_name(self) -> str:
        return f"{PACKAGE}.{self.name}"

    def tree(self) -> ast.Module:
        """Parse the file."""
        return ast.parse(self.path.read_text(encoding="utf-8"), self.path)


def module_of(docname: str) -> str | None:
    """Name the module that a chapter feeds: `notebooks/03_attention` gives `attention`."""
    folder, _, stem = docname.rpartition("/")
    return stem[3:] if folder == "notebooks" and NUMBERED.match(stem) else None


def modules(root: Path) -> list[Module]:
    """Return the modules below `root`, in the order of their chapters."""
    found = []
    for notebook in sorted((root / "notebooks").glob("*.ipynb")):
        name = module_of(f"notebooks/{notebook.stem}")
        path = root / PACKAGE / f"{name}.py"
        if name and path.exists():
            found.append(Module(name, f"notebooks/{notebook.stem}", path))
    return found


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
