"""The numeric profile of this process, whichever sort a run has: begin, capture, apply, compare, compute under it.

To record: `begin(name)`; try the program; `capture(name, ...)`, which goes into the manifest. To replay: start a
process with `environment(profile)`; in it, before anything else, `apply(profile)`; build the program; `compare(...)`;
replay. Whatever computes does so inside `arithmetic(profile)()`. Each step raises `IncompleteError` naming the line or
the operation that stands in the way.

Importing this module imports neither torch nor the exact arithmetic, so that whoever starts processes can use it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from protocol.comparison import Comparison, Difference
from protocol.exact_profile import ExactProfile, require_known
from protocol.operations import OperationProbe
from protocol.profile import NATIVE, Profile
from witness import environment as variables
from witness import exact_profile, native_profile

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from witness.operations import OperationRecorder


class Settling(Protocol):
    """What an exact arithmetic does besides computing; see `witness.arithmetic.mode.Exact`."""

    def settle(self, tensors: Iterable["torch.Tensor"]) -> None:
        """Gives every NaN in the tensors its one pattern, in place."""


Arithmetic: TypeAlias = Callable[[], AbstractContextManager[Settling | None]]
"""Makes the context in which a run's steps compute; it yields the exact arithmetic, or None for the native one."""

DEFAULT = NATIVE
"""The profile of a run whose trainer names none."""


def begin(name: str) -> None:
    """Makes this process ready to record.

    Args:
        name: full name of the profile.

    Raises:
        UsageError: `subnormals-flushed`.
        IncompleteError: `arithmetic-unproven`.
    """
    if name == NATIVE:
        native_profile.begin()
    else:
        exact_profile.begin()


def capture(name: str, optimizers: Mapping[str, "Optimizer"], reachable: Mapping[str, Any] | None = None) -> Profile:
    """The profile of this process as it is now, for the manifest.

    Args:
        name: full name of the profile.
        optimizers: the run's optimisers by their names in the training state.
        reachable: what else the steps use (modules, the program), by name.

    Raises:
        UsageError: `compile-nondeterministic`, `environment-variable`, `exact-refused`.
    """
    if name == NATIVE:
        return native_profile.capture(optimizers, reachable)
    return exact_profile.capture(name, {**(reachable or {}), **optimizers})


def apply(profile: Profile) -> None:
    """Applies a recorded profile inside the process that is to replay, before anything else uses torch.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the line that cannot be applied here.
    """
    if isinstance(profile, ExactProfile):
        exact_profile.apply(profile)
    else:
        native_profile.apply(profile)


def compare(
    recorded: Profile,
    probe: OperationProbe,
    optimizers: Mapping[str, "Optimizer"],
    reachable: Mapping[str, Any] | None = None,
) -> Comparison:
    """Decides, in the replaying process and before any replay, whether the recorded bits may be demanded here.

    Args:
        recorded: the manifest's profile, already applied.
        probe: the manifest's operation probe.
        optimizers: the rebuilt program's.
        reachable: as for `capture`.

    Raises:
        IncompleteError: `profile-differs`, `operation-differs`, `operation-unprobed`, `arithmetic-unproven`.
        ProtocolError: `operation-refused`.
    """
    if isinstance(recorded, ExactProfile):
        return exact_profile.compare(recorded, optimizers, reachable or {})
    return native_profile.compare(recorded, probe, optimizers, reachable)


def excuses(recorded: Profile, *, compared: bool) -> list[Difference]:
    """Lines in which this process differs so that a program may fail here, and not where it was recorded.

    A program that fails does not diverge in bits, and may fail before it is built: so what it would have used is not
    known, and what is there to be used counts.

    Args:
        recorded: the manifest's profile, already applied.
        compared: whether `compare` held before. The native profile's lines are then settled.

    Raises:
        UsageError: `environment-variable`.
    """
    if isinstance(recorded, ExactProfile):
        return exact_profile.excuses(recorded)
    return [] if compared else native_profile.excuses(recorded)


def arithmetic(profile: Profile) -> Arithmetic:
    """What makes the context in which a run's steps compute."""
    if isinstance(profile, ExactProfile):
        return partial(exact_profile.arithmetic, profile.arithmetic)
    return nullcontext


def operation_recorder(profile: Profile) -> "AbstractContextManager[OperationRecorder | None]":
    """What watches a step for the operations that it uses; nothing where no operation can differ."""
    if isinstance(profile, ExactProfile):
        return nullcontext()
    from witness.operations import OperationRecorder

    return OperationRecorder()


def environment(profile: Profile) -> dict[str, str]:
    """The environment for a process that replays under a recorded profile.

    Raises:
        IncompleteError: `profile-not-applicable`.
    """
    if isinstance(profile, ExactProfile):
        require_known(profile)
        return variables.own_environment()
    return variables.environment(profile)


def preloads(profile: Profile) -> tuple[str, ...]:
    """Modules that a process which replays imports before anything else."""
    return (exact_profile.MODE,) if isinstance(profile, ExactProfile) else ()
