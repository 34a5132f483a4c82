"""The API reference: one section for each module, read from its source.

Docstrings are Markdown, as the rest of the book. Their sections (Args, Returns, Raises) become
lists.
"""

import ast
import json
import re
import textwrap
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from tools.package import PACKAGE, Module, defined_names, is_public, modules

SECTION = re.compile(r"^(Args|Returns|Yields|Raises):\n((?:[ ]+.*\n?|\n)+)", re.M)
ENTRY = re.compile(r"^([\w.*]+(?:, [\w.*]+)*): ")
LONGEST_VALUE = 60


class PackageReference(SphinxDirective):
    """`{package-reference}`: describe all modules here."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for module in modules(Path(self.env.srcdir)):
            self.env.note_dependency(str(module.path))
            lines += describe_module(module)
        # Headings make sections of the page itself, so there is nothing to return
        self.state.nested_parse(StringList(lines, self.env.docname), 0, nodes.Element(), True)
        return []


# Source pages: what `sphinx.ext.viewcode` asks for


def find_source(app: Sphinx, name: str) -> tuple[str, dict[str, Any]] | None:
    """Give a module's text and the lines of its definitions, without an import."""
    path = Path(app.srcdir) / f"{name.replace('.', '/')}.py"
    if not name.startswith(f"{PACKAGE}.") or not path.exists():
        return None
    code = path.read_text(encoding="utf-8")
    return code, definition_lines(code, name)


@cache
def definition_lines(code: str, name: str) -> dict[str, Any]:
    """Find the lines of each definition. Sphinx asks once for each name, so we remember."""
    return dict(ModuleAnalyzer.for_string(code, name).find_tags())


# Entries, written as Markdown with the directives of Sphinx's Python domain


def describe_module(module: Module) -> list[str]:
    """Describe a module: heading, summary, public names in order."""
    tree = module.tree()
    _, _, summary = (ast.get_docstring(tree) or "").partition("\n\n")
    lines = [f"## {module.name}", "", f"```{{py:module}} {module.full_name}", "```", ""]
    lines += [*summary.splitlines(), "", f"Built in the chapter [](/{module.chapter}.ipynb).", ""]
    public = listed(tree)
    for statement in tree.body:
        if not public.isdisjoint(defined_names(statement)):
            lines += describe(statement)
    return lines


def listed(tree: ast.Module) -> set[str]:
    """Return the names that a module's `__all__` lists."""
    for statement in tree.body:
        if "__all__" in defined_names(statement) and isinstance(statement, ast.Assign):
            return set(ast.literal_eval(statement.value))
    return set()


def describe(statement: ast.stmt) -> list[str]:
    """Describe a public function, class or constant; anything else gives nothing."""
    names = [name for name in defined_names(statement) if is_public(name)]
    match statement:
        case ast.FunctionDef() if names:
            return entry("function", signature(statement), markdown(statement))
        case ast.ClassDef() if names:
            return describe_class(statement)
        case ast.Assign() | ast.AnnAssign():
            return [line for name in names for line in constant(name, statement)]
    return []


def describe_class(node: ast.ClassDef) -> list[str]:
    """Describe a class with its public methods. The fields of a dataclass are its parameters."""
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    maker = methods.get("__init__") or constructor(node)
    body = markdown(node) + field_notes(node)
    for name, method in methods.items():
        if is_public(name) and ast.get_docstring(method):
            body += ["", *describe_method(method)]
    return entry("class", f"{node.name}({arguments(maker, bound=True)})", body)


def field_notes(node: ast.ClassDef) -> list[str]:
    """List the fields of a dataclass that have a docstring below them."""
    notes = []
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                notes.append(f"- `{ast.unparse(field.target)}`: {' '.join(text.split())}")
    return ["", "**Fields**", "", *notes, ""] if notes else []


def describe_method(method: ast.FunctionDef) -> list[str]:
    """Describe a method, or a property, within its class."""
    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
    text = ["", *markdown(method)]
    if decorators & {"property", "cached_property"}:
        kind = [f":type: {ast.unparse(method.returns)}"] if method.returns else []
        return entry("property", method.name, kind + text, fence=4)
    options = [f":{name}:" for name in ("classmethod", "staticmethod") if name in decorators]
    head = signature(method, bound="staticmethod" not in decorators)
    return entry("method", head, options + text, fence=4)


def constructor(node: ast.ClassDef) -> ast.FunctionDef:
    """Return the `__init__` that a dataclass or a named tuple makes of its fields."""
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    annotated = [
        f"{ast.unparse(field.target)}: {ast.unparse(field.annotation)}"
        + (f" = {ast.unparse(field.value)}" if field.value else "")
        for field in fields
    ]
    made = ast.parse(f"def __init__({', '.join(['self', *annotated])}): ...").body[0]
    assert isinstance(made, ast.FunctionDef)
    return made


def constant(name: str, statement: ast.Assign | ast.AnnAssign) -> list[str]:
    """Describe a constant, with its value where that is short."""
    value = statement.value
    if isinstance(statement, ast.Assign) and isinstance(value, ast.Tuple):
        names = defined_names(statement)
        if len(names) == len(value.elts):
            value = value.elts[names.index(name)]
    text = ast.unparse(value) if value else ""
    return entry(
        "data", name, [f":value: {json.dumps(text)}"] if 0 < len(text) <= LONGEST_VALUE else []
    )


def signature(function: ast.FunctionDef, bound: bool = False) -> str:
    """Write a function's head on one line."""
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{function.name}({arguments(function, bound)}){result}"


def arguments(function: ast.FunctionDef, bound: bool) -> str:
    """Write a function's arguments; a bound one's without the first."""
    text = ast.unparse(function.args)
    return text.partition(", ")[2] if bound else text


def entry(kind: str, head: str, body: list[str], fence: int = 5) -> list[str]:
    """Write one directive. Options come first in `body`."""
    ticks = "`" * fence
    return [f"{ticks}{{py:{kind}}} {head}", *body, ticks, ""]


# Docstrings


def markdown(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """Return a docstring, its sections (a title and indented lines below it) turned into lists."""
    return SECTION.sub(write_section, ast.get_docstring(node) or "").splitlines()


def write_section(section: re.Match[str]) -> str:
    """Write `name: text` entries as a list, free text as it is."""
    title, content = section.groups()
    items = re.split(r"\n(?=\S)", textwrap.dedent(content).strip())
    lines = [ENTRY.sub(r"- `\1`: ", " ".join(item.split())) for item in items]
    return "\n".join([f"**{title}**", "", *lines, "", ""])
