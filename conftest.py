"""Tests and notebooks run with one thread each, so that two fit on two cores.

Under nbval, a notebook whose data can be had neither from the cache nor from the network is skipped
with one line that says which file is missing and how to get it. A notebook names what it needs in
the metadata of its title cell: `needs=["multi30k"]`.
"""

import functools
import importlib
import os
import sys
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; kernels and commands inherit it


@functools.cache
def missing(dataset: str) -> str | None:
    """Return why a data set cannot be had, in one line, or None if it can."""
    from annotated_transformer import data

    try:
        if dataset == "treebank":
            sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
            importlib.import_module("parsing").treebank()
        else:
            getattr(data, dataset)("train")
    except data.MissingData as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the cells of notebooks whose data is missing."""
    for item in items:
        notebook = getattr(item.parent, "nb", None)
        if notebook is None:
            continue
        for dataset in [d for cell in notebook.cells for d in cell.metadata.get("needs", [])]:
            if reason := missing(dataset):
                item.add_marker(pytest.mark.skip(reason=reason))
