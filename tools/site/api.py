"""The API reference: what users import, then each module, read from the source.

Docstrings are Markdown, as the rest of the book. Their sections (Args, Returns, Raises) become
lists.
"""

import ast
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from tools.package import PACKAGE, Module, is_public, modules, public_names

SECTION = re.compile(r"^(Args|Returns|Yields|Raises):\n((?:[ ]+.*\n?|\n)+)", re.M)
ENTRY = re.compile(r"^([\w.*]+(?:, [\w.*]+)*): ")


class PackageReference(SphinxDirective):
    """`{package-reference}`: list the public names here, and describe all modules."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        found = modules(root)
        for path in [root / "pyproject.toml", *(module.path for module in found)]:
            self.env.note_dependency(str(path))
        lines = list_public(public_names(root), found)
        lines += [line for module in found for line in describe_module(module)]
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


def described(module: Module) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return the functions and classes with a docstring and without a leading underscore."""
    found = [n for n in module.tree().body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return [node for node in found if is_public(node.name) and ast.get_docstring(node)]


def list_public(public: dict[str, list[str]], found: list[Module]) -> list[str]:
    """List the names that users import, each with the first sentence of its docstring."""
    lines = [f"## {PACKAGE}", "", f"What `from {PACKAGE} import ...` offers:", ""]
    for module in found:
        for node in described(module):
            if node.name in public.get(module.name, []):
                sentence = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                target = f"{module.full_name}.{node.name}"
                lines.append(f"- {{py:obj}}`{node.name} <{target}>`: {sentence}")
    return [*lines, ""]


def describe_module(module: Module) -> list[str]:
    """Describe a module: heading, summary, functions and classes in order."""
    _, _, summary = (ast.get_docstring(module.tree()) or "").partition("\n\n")
    lines = [f"## {module.name}", "", f"```{{py:module}} {module.full_name}", "```", ""]
    lines += [*summary.splitlines(), "", f"Built in [](/{module.chapter}.ipynb).", ""]
    source = module.path.read_text(encoding="utf-8").splitlines()
    for node in described(module):
        if isinstance(node, ast.ClassDef):
            lines += describe_class(node, source)
        else:
            lines += entry("function", signature(node), markdown(node))
    return lines


def describe_class(node: ast.ClassDef, source: list[str]) -> list[str]:
    """Describe a class with its public methods. The fields of a dataclass are its parameters."""
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    maker = methods.get("__init__") or constructor(node)
    body = markdown(node) + field_notes(node, source)
    for name, method in methods.items():
        if is_public(name) and ast.get_docstring(method):
            body += ["", *describe_method(method)]
    return entry("class", f"{node.name}({arguments(maker, bound=True)})", body)


def field_notes(node: ast.ClassDef, source: list[str]) -> list[str]:
    """List the fields of a dataclass that have a comment behind them."""
    notes = []
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and field.end_lineno:
            behind = source[field.end_lineno - 1].encode()[field.end_col_offset :].decode()
            if comment := plain_text(behind.strip().removeprefix("#").strip()):
                notes.append(f"- `{ast.unparse(field.target)}`: {comment}")
    return ["", "**Fields**", "", *notes, ""] if notes else []


def plain_text(comment: str) -> str:
    """Keep Markdown from taking a token such as `<s>` for markup."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or r"\<", comment)


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
