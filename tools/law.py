"""The import law: who may import what, in the notebooks and in the package.

Lessons (numbered) import earlier lessons; the toolkit (lettered) imports lessons and itself; no
lesson imports the toolkit. What translates never imports what trains, and nothing imports the
command line. A demonstration, which is never exported, may use the whole package.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tools.chapters import Chapter
from tools.package import PACKAGE
from tools.problem import Problem

COMMAND_LINE = "toolkit.cli"
TRANSLATES = {
    "transformer",
    "tokenization",
    "decoding",
    "toolkit.model_io",
    "toolkit.translation",
}
TRAINS = {
    "batching",
    "schedule",
    "regularization",
    "training",
    "speed",
    "distributed",
    "toolkit.run_folder",
    "toolkit.runs",
}


def imported(tree: ast.Module, book: list[Chapter]) -> Iterator[tuple[str, str]]:
    """Give what a cell imports from the package, as pairs: a module's dotted name and a name in it.

    A name of the package itself comes with an empty module, a whole module with an empty name.
    """
    homes = {chapter.home for chapter in book}
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
                yield split_home(inner_path, homes)


def split_home(dotted: str, homes: set[str]) -> tuple[str, str]:
    """Split a dotted name within the package into a module and a name in it."""
    if dotted in homes:
        return dotted, ""
    module, _, name = dotted.rpartition(".")
    return module, name


def check_cell(
    user: Chapter, where: str, tree: ast.Module, exported: bool, book: list[Chapter]
) -> Iterator[Problem]:
    """Check what a cell imports; only a demonstration may look ahead, or import `cli`."""
    chapters = {chapter.home: chapter for chapter in book}
    for home, name in dict.fromkeys(imported(tree, book)):
        used = chapters.get(home)
        if exported:
            allowed = used is not None and may_export(user, used)
        else:
            allowed = used != user and (used is not None or not home)
        if not allowed:
            fault = f'imports "{home or name or PACKAGE}", which this cell may not use'
            remedy = "a lesson exports what needs earlier lessons alone: CONTRIBUTING has the laws"
            yield Problem(where, fault, remedy)


def may_export(user: Chapter, used: Chapter) -> bool:
    """True if an exported cell of the one chapter may import the module of the other."""
    if used == user or used.home == COMMAND_LINE:
        return False
    if user.appendix:
        return True
    return not used.appendix and used.number < user.number


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
    for start in sorted(TRANSLATES.intersection(uses)):
        path = path_to_training(start, uses)
        if path:
            fault = f"makes what translates import what trains: {' -> '.join(path)}"
            remedy = "move what both need into a module that does not train"
            yield Problem(uses[start][path[1]], fault, remedy)


def path_to_training(start: str, uses: dict[str, dict[str, str]]) -> list[str]:
    """Return the shortest path of imports from a module to one that trains; empty without one."""
    paths = [[start]]
    reached = {start}
    for path in paths:  # grows on the way
        if path[-1] in TRAINS:
            return path
        for used in uses.get(path[-1], {}):
            if used not in reached:
                reached.add(used)
                paths.append([*path, used])
    return []
