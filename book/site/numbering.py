"""Number each chapter as its file is: 3 for `03_attention`, A for the appendix `A_files`.

Sphinx counts the pages of the table of contents. The numbers of figures and equations follow from
those of sections, so it is enough to put the file's number in the place of the counted one.
"""

from collections.abc import Sequence
from typing import Any

from docutils import nodes
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

from tools.package import label_of


def install() -> None:
    """Put our numbers in the place of those that Jupyter Book's table of contents makes."""
    setattr(TocTreeCollectorWithStyles, "assign_section_numbers", number_by_file)  # noqa: B010


def number_by_file(collector: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Number the sections of all pages; return the pages whose numbers have changed."""
    before = env.toc_secnumbers
    TocTreeCollector.assign_section_numbers(collector, env)
    numbers: dict[str, Any] = env.toc_secnumbers
    for docname, counted in numbers.items():
        label = label_of(docname)
        numbers[docname] = {
            anchor: renumbered(number, label) for anchor, number in counted.items()
        }
        entries = env.tocs[docname].findall(nodes.reference)
        for node in [*entries, env.titles[docname]]:
            node["secnumber"] = renumbered(node.get("secnumber"), label) or None
    return [docname for docname in numbers if numbers[docname] != before.get(docname)]


def renumbered(
    number: Sequence[int] | None, label: str | None
) -> tuple[int | str, ...]:
    """Return a section's number with the file's label; a page that is no notebook has none."""
    if not label or not number:
        return ()
    return (label, *number[1:])
