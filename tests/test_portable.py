"""Lessons that train hold on other machines; `make test-portable` runs all of them, eight times."""

import os
import subprocess
import sys

import pytest

from tools.portable import MOVE, run

LESSON = """
import torch
model = torch.nn.Linear(20, 20)
before = model.weight.clone()
optimizer = torch.optim.Adam(model.parameters(), lr=0)
for _ in range(3):
    model(torch.ones(20)).sum().backward()
    optimizer.step()
print((model.weight / before - 1).abs().max().item())
"""


@pytest.mark.parametrize("draw", ["1", "2"])
def test_a_millionth_is_added_once(tmp_path, draw):
    (tmp_path / "sitecustomize.py").write_text(MOVE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MOVED": draw}
    command = [sys.executable, "-c", LESSON]
    moved = subprocess.check_output(command, env=environment, text=True)
    assert 1e-6 < float(moved) < 6e-6


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", ["kernels-avx2", "moved-1"])
def test_lessons_that_train_hold_elsewhere(setting):
    lessons = ["10_transformer", "18_training", "23_parsing"]
    assert run(setting, [f"notebooks/{name}.ipynb" for name in lessons]) == 0
