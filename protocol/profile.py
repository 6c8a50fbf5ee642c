"""The numeric profile of a run, of one of two sorts: which arithmetic it used, and what a replayer must know of it.

Specified in spec/profile.md.
"""

from typing import TypeAlias

from protocol.errors import UsageError
from protocol.exact_profile import ARITHMETICS, DEFAULT, ExactProfile
from protocol.native_profile import NativeProfile

Profile: TypeAlias = NativeProfile | ExactProfile
"""Tagged by `name`: `native` or `exact`."""

NATIVE = "native"
NAMES = (NATIVE, "exact", *ARITHMETICS)
"""By which a profile may be asked for."""


def full_name(name: str) -> str:
    """The name under which a profile is certified, from one under which it is asked for: `exact` is an abbreviation.

    Raises:
        UsageError: `profile-unknown`.
    """
    if name not in NAMES:
        raise UsageError("profile-unknown", f"there is no numeric profile {name[:80]!r}; there are {', '.join(NAMES)}")
    return DEFAULT if name == "exact" else name
