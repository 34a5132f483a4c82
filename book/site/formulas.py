"""Formulas, typeset by KaTeX while the site is built: pages show them without a script."""

import functools
import re
from pathlib import Path

from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

KATEX = Path(__file__).parent / "assets" / "katex" / "katex.min.js"
INSIDE = re.compile(
    r"\\begin\{(\w+)\}.*?\\end\{\1\}", re.S
)  # a matrix, or aligned lines
RELATION = re.compile(r"(?<![&:])=|\\(?:approx|equiv|[lg]eq?|neq?|in|to|sim)\b")
CLASSES = "math notranslate nohighlight"
PART = '<span class="katex-base">'
SPACE = r"\qquad"  # between statements side by side


@functools.cache
def engine() -> MiniRacer:
    """Return a JavaScript engine that knows KaTeX."""
    context = MiniRacer()
    context.eval(KATEX.read_text(encoding="utf-8"))
    return context


def typeset(tex: str, display: bool) -> str:
    """Return a formula as HTML, with MathML for those who listen.

    A line of it may end before a relation; KaTeX alone would end it behind one. Between parts
    stands <wbr>, which breaks a line even in a span that keeps the formula and a sign together.
    """
    tex = RELATION.sub(r"\\allowbreak \g<0>\\nobreak ", tex)
    html = str(engine().call("katex.renderToString", tex, {"displayMode": display}))
    return html.replace(f"</span>{PART}", f"</span><wbr>{PART}")


def typeset_formulas(app: Sphinx, doctree: nodes.document) -> None:
    """Typeset the formulas of a page when it is read: by then the engine is in no other process."""
    if app.builder.format != "html":
        return
    for node in doctree.findall(is_formula):
        display = isinstance(node, nodes.math_block)
        tex = node.astext()
        if display and has_lines(tex):
            tex = rf"\begin{{split}}{tex}\end{{split}}"
        elif display and SPACE in tex:
            statements = [f"{{{part}}}" for part in tex.split(SPACE)]  # each unbroken
            tex = rf"{SPACE}\allowbreak ".join(statements)
        try:
            node["typeset"] = typeset(tex, display)
        except JSEvalException as error:
            reason = str(error).partition("\n")[0]
            logging.getLogger(__name__).warning("%s: %s", reason, tex, location=node)
            node["typeset"] = ""


def has_lines(tex: str) -> bool:
    """Say whether a formula has several lines of its own, beside the rows of a matrix."""
    return r"\\" in INSIDE.sub("", tex)


def is_formula(node: nodes.Node) -> bool:
    """Say whether a part of a page is a formula, in a line or of its own."""
    return isinstance(node, nodes.math | nodes.math_block)


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line."""
    body = translator.body
    body += [
        translator.starttag(node, "span", "", CLASS=CLASSES),
        node["typeset"],
        "</span>",
    ]
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own, with its number."""
    translator.body.append(translator.starttag(node, "div", CLASS=CLASSES))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(f"{node['typeset']}</div>\n")
    raise nodes.SkipNode
