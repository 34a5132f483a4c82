"""The API reference: what users import, then the lessons' modules, then those of the appendices.

It is read from the source, for the site is built where the package cannot be imported. Docstrings
are Markdown, as the rest of the book; their sections (Args, Returns, Raises) become lists.
"""

import ast
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from tools.package import PACKAGE, Module, is_public, modules, public_names

SECTION = re.compile(r"^(Args|Returns|Yields|Raises):\n((?:[ ]+.*\n?|\n)+)", re.M)
ENTRY = re.compile(r"^([\w.*]+(?:, [\w.*]+)*): ")
Definition = ast.FunctionDef | ast.ClassDef
CODE_OR_BRACKET = re.compile(r"(`[^`]*`)|<")
LESSONS_SAY = "What the chapters build: the model, its training, what it writes."
APPENDICES_SAY = "What they need beside: files, tables of pairs, the command line."


class PackageReference(SphinxDirective):
    """`{package-reference}`: list the public names here, and describe all modules."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        package = modules(root)
        self.env.note_dependency(str(root / "pyproject.toml"))
        for module in package:
            self.env.note_dependency(str(module.path))
        lessons = [module for module in package if not is_tool(module)]
        appendices = [module for module in package if is_tool(module)]
        lines = list_public(public_names(root), package)
        lines += describe_storey("Lessons", LESSONS_SAY, lessons)
        lines += describe_storey("Appendices", APPENDICES_SAY, appendices)
        # Headings make sections of the page itself, so there is nothing to return
        markdown = StringList(lines, self.env.docname)
        self.state.nested_parse(markdown, 0, nodes.Element(), True)
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


def is_tool(module: Module) -> bool:
    """Say whether a module comes from an appendix."""
    return module.chapter.removeprefix("notebooks/")[0].isalpha()


def is_described(node: ast.stmt) -> TypeGuard[Definition]:
    """Say whether a statement defines something with a docstring and a public name."""
    if not isinstance(node, Definition):
        return False
    return is_public(node.name) and ast.get_docstring(node) is not None


def described(module: Module) -> list[Definition]:
    """Return the functions and classes that readers may use."""
    body = module.tree().body
    return [node for node in body if is_described(node)]


def list_public(public: dict[str, list[str]], package: list[Module]) -> list[str]:
    """List the names that users import, each with the first sentence of its docstring."""
    lines = [f"## {PACKAGE}", "", f"What `from {PACKAGE} import ...` offers:", ""]
    for module in package:
        for node in described(module):
            if node.name in public.get(module.name, []):
                target = f"{module.full_name}.{node.name}"
                about = first_paragraph(node)
                lines.append(f"- {{py:obj}}`{node.name} <{target}>`: {about}")
    return [*lines, ""]


def first_paragraph(node: Definition) -> str:
    """Return how a docstring begins, on one line."""
    paragraph, _, _ = (ast.get_docstring(node) or "").partition("\n\n")
    return " ".join(paragraph.split())


def describe_storey(title: str, about: str, package: list[Module]) -> list[str]:
    """Describe the modules of the lessons, or those of the appendices, under one heading."""
    if not package:
        return []
    lines = [f"## {title}", "", about, ""]
    for module in package:
        lines += describe_module(module)
    return lines


def describe_module(module: Module) -> list[str]:
    """Describe a module: heading, summary, functions and classes in order."""
    _, _, summary = (ast.get_docstring(module.tree()) or "").partition("\n\n")
    title = module.name
    lines = [f"### {title}", "", f"```{{py:module}} {module.full_name}", "```", ""]
    lines += [*summary.splitlines(), "", f"Built in [](/{module.chapter}.ipynb).", ""]
    source = module.path.read_text(encoding="utf-8").splitlines()
    for node in described(module):
        if isinstance(node, ast.ClassDef):
            lines += describe_class(node, source)
        else:
            lines += entry("function", signature(node), docstring(node))
    return lines


def describe_class(node: ast.ClassDef, source: list[str]) -> list[str]:
    """Describe a class with its public methods. The fields of a dataclass are its parameters."""
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    written = [method for method in methods if method.name == "__init__"]
    constructor = written[0] if written else constructor_of_fields(node)
    body = docstring(node) + field_notes(node, source)
    for method in methods:
        if is_described(method):
            body += ["", *describe_method(method)]
    return entry("class", f"{node.name}({arguments(constructor, bound=True)})", body)


def fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """Return the fields of a dataclass or of a named tuple."""
    return [item for item in node.body if isinstance(item, ast.AnnAssign)]


def field_notes(node: ast.ClassDef, source: list[str]) -> list[str]:
    """List the fields of a dataclass that have a comment behind them."""
    notes = []
    for field in fields(node):
        comment = comment_behind(field, source)
        if comment:
            notes.append(f"- `{ast.unparse(field.target)}`: {plain_text(comment)}")
    return ["", "**Fields**", "", *notes, ""] if notes else []


def comment_behind(node: ast.AnnAssign, source: list[str]) -> str:
    """Return the comment on the line where a statement ends."""
    last_line = source[(node.end_lineno or node.lineno) - 1]
    rest = last_line.encode()[node.end_col_offset :]  # columns are counted in bytes
    return rest.decode().strip().removeprefix("#").strip()


def plain_text(comment: str) -> str:
    """Keep Markdown from taking a token such as `<s>` for markup."""
    return CODE_OR_BRACKET.sub(lambda part: part[1] or r"\<", comment)


def describe_method(method: ast.FunctionDef) -> list[str]:
    """Describe a method, or a property, within its class."""
    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
    body = ["", *docstring(method)]
    if decorators & {"property", "cached_property"}:
        if method.returns:
            body = [f":type: {ast.unparse(method.returns)}", *body]
        return entry("property", method.name, body, fence=4)
    for option in ("staticmethod", "classmethod"):
        if option in decorators:
            body = [f":{option}:", *body]
    head = signature(method, bound="staticmethod" not in decorators)
    return entry("method", head, body, fence=4)


def constructor_of_fields(node: ast.ClassDef) -> ast.FunctionDef:
    """Return the `__init__` that a dataclass or a named tuple makes of its fields."""
    parameters = ["self"]
    for field in fields(node):
        default = f" = {ast.unparse(field.value)}" if field.value else ""
        annotation = ast.unparse(field.annotation)
        parameters.append(f"{ast.unparse(field.target)}: {annotation}{default}")
    code = f"def __init__({', '.join(parameters)}): ..."
    function = ast.parse(code).body[0]
    assert isinstance(function, ast.FunctionDef)
    return function


def signature(function: ast.FunctionDef, bound: bool = False) -> str:
    """Write a function's head on one line."""
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{function.name}({arguments(function, bound)}){result}"


def arguments(function: ast.FunctionDef, bound: bool) -> str:
    """Write a function's arguments; a bound one's without the first."""
    text = ast.unparse(function.args)
    if bound:
        _, _, text = text.partition(", ")
    return text


def entry(kind: str, head: str, body: list[str], fence: int = 5) -> list[str]:
    """Write one directive. Options come first in `body`."""
    ticks = "`" * fence
    return [f"{ticks}{{py:{kind}}} {head}", *body, ticks, ""]


# Docstrings


def docstring(node: Definition) -> list[str]:
    """Return the lines of a docstring, its sections (a title, indented lines) turned into lists."""
    text = ast.get_docstring(node) or ""
    return SECTION.sub(write_section, text).splitlines()


def write_section(section: re.Match[str]) -> str:
    """Write `name: text` entries as a list, free text as it is."""
    title, content = section.groups()
    lines = [f"**{title}**", ""]
    for item in re.split(r"\n(?=\S)", textwrap.dedent(content).strip()):
        text = " ".join(item.split())
        lines.append(ENTRY.sub(r"- `\1`: ", text))
    return "\n".join([*lines, "", ""])
