"""Fixtures of the tests in this folder."""

from recorded_run import recorded, run

__all__ = ["recorded", "run"]
