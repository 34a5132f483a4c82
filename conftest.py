"""Tests and notebooks run with one thread each, so that two fit on two cores, and guards speak.

Under nbval, a notebook whose data can be had neither from the cache nor from the network is skipped
with one line that says which file is missing and how to get it. A notebook names what it needs in
the metadata of its title cell: `needs=["multi30k"]`.
"""

import functools
import os

import pytest

# Before torch is imported; kernels and commands inherit both. tools.portable sets others
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CHECK_BOOK", "1")


@functools.cache
def reason_to_skip(dataset: str) -> str | None:
    """Return why a data set cannot be had, in one line, or None if it can."""
    from annotated_transformer import own_data

    try:
        if dataset == "treebank":
            from benchmarks.treebank import read_treebank

            read_treebank()
        else:
            getattr(own_data, dataset)("train")
    except own_data.MissingData as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the cells of notebooks whose data is missing."""
    for item in items:
        notebook = getattr(item.parent, "nb", None)
        if notebook is None:
            continue
        for cell in notebook.cells:
            for dataset in cell.metadata.get("needs", []):
                reason = reason_to_skip(dataset)
                if reason is not None:
                    item.add_marker(pytest.mark.skip(reason=reason))
