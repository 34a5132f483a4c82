"""How hard hypothesis tries, and with how many threads."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import settings

# `make test` takes ci, `make test-slow` nightly: --hypothesis-profile
settings.register_profile("ci", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=300, deadline=None)
settings.load_profile("ci")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set PyTorch's threads; afterwards they are as before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
