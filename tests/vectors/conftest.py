"""Where the public test vectors lie: beside the repository, in shared/vectors. Others' data, so not copied in."""

import os
from pathlib import Path

import pytest

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors"


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of public vectors. Without it the tests are skipped, but on CI they fail: there nobody reads skips."""
    if not VECTORS.is_dir():
        message = f"the public test vectors are not at {VECTORS}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return VECTORS
