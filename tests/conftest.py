"""How hard hypothesis tries."""

from hypothesis import settings

# `make test` takes ci, `make test-slow` nightly: --hypothesis-profile
settings.register_profile("ci", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=300, deadline=None)
settings.load_profile("ci")
