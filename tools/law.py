"""The import law: who may import what, in the notebooks and in the package."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tools.chapters import Chapter
from tools.package import PACKAGE
from tools.problem import Problem

TRANSLATES = {"transformer", "tokenization", "model_io", "decoding"}
TRAINS = {
    "batching",
    "schedule",
    "regularization",
    "run_folder",
    "training",
    "speed",
    "distributed",
}
LOOK_AHEAD = {"load_pretrained", "check"}  # what a demonstration may import from the package
TOURS = {"01", "13"}  # these show what the next chapters lead to, and may import all of it


def imported(tree: ast.Module, book: list[Chapter]) -> Iterator[tuple[str, str]]:
    """Give what a cell imports from the package, as pairs: a module, or a public name without."""
    modules = {chapter.module for chapter in book}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                dotted = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(path), names=aliases):
                dotted = [f"{path}.{alias.name}" for alias in aliases]
            case _:
                continue
        for package, _, rest in (name.partition(".") for name in dotted):
            if package == PACKAGE:
                first = rest.split(".")[0]
                yield (first, "") if "." in rest or first in modules else ("", first)


def check_cell(
    user: Chapter, where: str, tree: ast.Module, exported: bool, book: list[Chapter]
) -> Iterator[Problem]:
    """A cell imports earlier chapters and appendices; only a demonstration imports `cli`."""
    for module, name in dict.fromkeys(imported(tree, book)):
        used = next((chapter for chapter in book if chapter.module == module), user)
        if not module:
            allowed = not exported and (name in LOOK_AHEAD or user.number in TOURS)
        elif used == user or (exported and module == "cli"):
            allowed = False
        else:
            ahead = not exported and user.number in TOURS
            allowed = user.appendix or used.appendix or used.number < user.number or ahead
        if not allowed:
            what = f'imports "{module or name or PACKAGE}": no earlier chapter and no appendix'
            remedy = f"import from {PACKAGE}.MODULE of one that is, or move the cell"
            yield Problem(where, what, remedy)


def check_graph(uses: dict[str, dict[str, str]]) -> Iterator[Problem]:
    """The package has no cycle, and what translates imports nothing that trains.

    Takes, for each module, the modules that it imports with the cell where it does.
    """
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]
        what = f"closes a cycle of imports: {' -> '.join(cycle)}"
        yield Problem(uses[cycle[0]][cycle[1]], what, "move what both need into an earlier module")
    for start in sorted(TRANSLATES & {*uses}):
        paths = [[start]]
        for path in paths:  # grows on the way
            known = {path[-1] for path in paths}
            paths += [[*path, used] for used in uses.get(path[-1], {}) if used not in known]
        if path := next((path for path in paths if path[-1] in TRAINS), []):
            what = f"makes what translates import what trains: {' -> '.join(path)}"
            remedy = "move what both need into a module that does not train"
            yield Problem(uses[start][path[1]], what, remedy)
