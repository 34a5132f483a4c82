"""Run a benchmark's command in this process, at toy size, and read its log."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from annotated_transformer import grammar
from benchmarks import common

Lines = list[dict[str, Any]]


def load(name: str) -> ModuleType:
    """Import a benchmark, named as "experiments.since"."""
    return importlib.import_module(f"benchmarks.{name}")


def run(name: str, folder: Path, **options: Any) -> tuple[dict[str, Any], Lines]:
    """Run a command with a short grammar; return the settings and the lines of its log."""
    threads = torch.get_num_threads()
    try:
        with patch.object(common, "grammar", lambda count, seed: grammar(60, seed)):
            load(name).main(results=folder, **options)
    finally:
        torch.set_num_threads(threads)
    (path,) = folder.glob("*.jsonl")
    settings, *lines = map(json.loads, path.read_text().splitlines())
    assert settings["torch"]
    return settings, lines
