"""What is slow and shared: one laboratory for recordings, and warm sandboxes where a file asks for them."""

import os
import sys
from collections.abc import Iterator

import pytest

from witness.environment import recommended_environment

if "numpy" not in sys.modules:  # it and torch read these once; tests of other folders in this process may record runs
    os.environ.update(recommended_environment(1))

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
