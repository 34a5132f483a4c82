"""The import law: who may import what, in the notebooks and in the package.

A lesson (numbered) imports earlier lessons, an appendix (lettered) imports lessons and other
appendices; of the lessons, only the corpus and the trainer import appendices, too. What translates
never imports what trains, and nothing imports the command line. A demonstration, which is never
exported, may use the whole package.
"""

import ast
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter

from tools.chapters import Chapter
from tools.package import PACKAGE
from tools.problem import Problem

COMMAND_LINE = "cli"
USE_APPENDICES = {"corpus", "trainer"}
TRANSLATES = {"transformer", "tokenization", "decoding", "files", "translation"}
TRAINS = {
    "batching",
    "schedule",
    "regularization",
    "training",
    "speed",
    "distributed",
    "corpus",
    "trainer",
}


def imported(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    """Give the modules of the package that a cell imports; of what is none, its dotted name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                dotted = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                dotted = [f"{module}.{alias.name}" for alias in aliases]
            case _:
                continue
        for path in dotted:
            package, _, inner_path = path.partition(".")
            if package == PACKAGE:
                module = inner_path.partition(".")[0]
                yield module if module in modules else inner_path


def check_cell(
    user: Chapter, where: str, tree: ast.Module, exported: bool, book: list[Chapter]
) -> Iterator[Problem]:
    """Check what a cell imports."""
    chapters = {chapter.module: chapter for chapter in book}
    for name in dict.fromkeys(imported(tree, chapters)):
        used = chapters.get(name)
        if exported:
            allowed = used is not None and may_export(user, used)
        elif used is None:
            allowed = "." not in name  # a name that the package itself offers
        else:
            allowed = used != user
        if not allowed:
            fault = f'imports "{name or PACKAGE}", which this cell may not use'
            remedy = "CONTRIBUTING.md has the laws: which chapter may import which"
            yield Problem(where, fault, remedy)


def may_export(user: Chapter, used: Chapter) -> bool:
    """True if an exported cell of the one chapter may import the module of the other."""
    if used == user or used.module == COMMAND_LINE:
        return False
    if user.appendix:
        return True
    if used.appendix:
        return user.module in USE_APPENDICES
    return used.number < user.number


def check_graph(uses: dict[str, dict[str, str]]) -> Iterator[Problem]:
    """The package has no cycle, and what translates imports nothing that trains.

    Takes, for each module, the modules that it imports with the cell where it does.
    """
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]
        fault = f"closes a cycle of imports: {' -> '.join(cycle)}"
        remedy = "move what both need into an earlier module"
        yield Problem(uses[cycle[0]][cycle[1]], fault, remedy)
        return
    for start in sorted(TRANSLATES.intersection(uses)):
        path = path_to_training(start, uses)
        if path:
            fault = f"makes what translates import what trains: {' -> '.join(path)}"
            remedy = "move what both need into a module that does not train"
            yield Problem(uses[start][path[1]], fault, remedy)


def path_to_training(module: str, uses: dict[str, dict[str, str]]) -> list[str]:
    """Return the imports that lead from a module to one that trains; empty if none do."""
    if module in TRAINS:
        return [module]
    for used in uses.get(module, {}):
        path = path_to_training(used, uses)
        if path:
            return [module, *path]
    return []
