"""Fixtures of the tests in this folder, and the way to the scripts of the specification."""

import sys
from pathlib import Path

from recorded_run import recorded, run

sys.path.append(str(Path(__file__).resolve().parents[2] / "spec"))

__all__ = ["recorded", "run"]
