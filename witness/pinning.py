"""Start this interpreter again in the environment that a numeric profile needs.

Libraries read their variables once, when they start, and Python fixes the order of sets before the first line runs; so
the only way to pin them is to begin again. Needs no torch, and must run before anything imports it.
"""

import os
import sys
from collections.abc import Mapping

_MARK = "WITNESS_PINNED"


def restart_in(environment: Mapping[str, str], absent: frozenset[str] = frozenset()) -> None:
    """Replaces this process by itself under `environment`; returns at once where that is already so.

    Args:
        environment: variables to set.
        absent: variables that must not be set.
    """
    wanted = {k: v for k, v in os.environ.items() if k not in absent} | dict(environment)
    if wanted == dict(os.environ) or os.environ.get(_MARK):
        os.environ.pop(_MARK, None)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "witness", *sys.argv[1:]], wanted | {_MARK: "1"})  # noqa: S606
