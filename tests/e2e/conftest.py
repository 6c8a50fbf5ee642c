"""What is slow and shared: one laboratory for recordings, and warm sandboxes where a file asks for them."""

from collections.abc import Iterator

import pytest
from e2e.lab import Lab
from e2e.verifying import warm_sandboxes


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Processes in which to record."""
    with Lab() as made:
        yield made


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Verifications in this process share a sandbox."""
    with warm_sandboxes():
        yield
