"""Lessons that train hold on other machines; `make test-portable` runs all of them, eight times."""

import pytest

from tools.portable import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lessons_that_train_hold_elsewhere():
    lessons = ["10_transformer", "18_training", "23_parsing"]
    assert run("moved-1", [f"notebooks/{name}.ipynb" for name in lessons]) == 0
