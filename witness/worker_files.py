"""What parent and sandbox write to each other: the job, what a step showed, and why a job failed. Needs no torch."""

from typing import Any, Literal

from protocol.encoding import Count, Struct
from protocol.records import Fingerprint


class Job(Struct, frozen=True):
    """What to do.

    Attributes:
        kind: `compare` the profile, list `hyperparameters`, build the `init` state, or execute `steps`.
        program: folder of the program's files; empty for a reference program.
        first: first step.
        last: last step.
        keep: steps whose states are written.
        trace: list the operations that were used.
    """

    kind: Literal["compare", "hyperparameters", "init", "steps"]
    program: str
    first: Count = 0
    last: Count = 0
    keep: tuple[Count, ...] = ()
    trace: bool = False


class Shown(Struct, frozen=True):
    """What one executed step shows."""

    fingerprint: Fingerprint
    hyperparameters: dict[str, str | int | bool | None]


class Trouble(Struct, frozen=True):
    """Why a job did not come to its end; hostile text for the parent."""

    code: str
    message: str
    evidence: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies defaults
