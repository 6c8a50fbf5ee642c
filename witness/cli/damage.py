"""What to do about a run folder that does not hold together: the same for every command and every kind of damage."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import ProtocolError, VerificationError

_NOT_YET = frozenset({"head-missing", "log-empty"})
"""Nothing is damaged: the run has not got so far."""


@contextmanager
def advising(run: Path) -> Iterator[None]:
    """Within it, whatever is wrong with one's own run folder leads to `witness fsck`."""
    try:
        yield
    except (ProtocolError, VerificationError) as error:
        if error.code not in _NOT_YET:
            command = shlex.join(["witness", "fsck", str(run)])
            error.next_action = f"`{command}` names everything that is damaged; restore that from a copy of the run"
        raise
