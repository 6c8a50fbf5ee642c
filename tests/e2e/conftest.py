"""What is slow and shared: one laboratory for recordings, one recorded run, one warm sandbox."""

from collections.abc import Iterator

import pytest
from e2e.lab import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Processes in which to record."""
    with Lab() as made:
        yield made
