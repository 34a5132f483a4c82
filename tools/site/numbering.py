"""Number each chapter as its file is: 3 for `03_attention`, A for the appendix `A_model_io`.

Sphinx counts the pages of the table of contents. The numbers of figures and equations follow from
those of sections, so it is enough to put the file's number in the place of the counted one.
"""

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
        label = label_of(docname)  # None for a page that is no notebook: it has no numbers
        numbers[docname] = {
            anchor: (label, *number[1:]) if label and number else ()
            for anchor, number in counted.items()
        }
        for node in [*env.tocs[docname].findall(nodes.reference), env.titles[docname]]:
            number = node.get("secnumber")
            node["secnumber"] = [label, *number[1:]] if label and number else None
    return [docname for docname in numbers if numbers[docname] != before.get(docname)]
