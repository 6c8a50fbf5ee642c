"""The exact profile of this process: begin, capture, apply, compare.

Threads, vector width, BLAS and the environment stay as they are. The arithmetic itself is `witness.arithmetic`, which
is imported only here and only when it is used: its kernels take a second to load.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from protocol.comparison import Comparison, Difference
from protocol.errors import IncompleteError, UsageError
from protocol.exact_profile import DEFINITION, ExactProfile, differences, require_comparable, require_known
from witness import machine

if TYPE_CHECKING:
    from torch.optim import Optimizer

MODE = "witness.arithmetic.mode"
"""What a process imports to compute under this profile."""
_BUILD = ("torch", "torch_git", "python", "numpy", "libm", "numpy_functions")
_KEPT = ("kept", "none")


def announce_compilation(say: Callable[[str], object]) -> None:
    """Says so where the kernels of the arithmetic have to be compiled first. Imports no torch."""
    from witness.arithmetic import machine_code

    if machine_code.missing():
        say("compiling the exact arithmetic, once for this installation (about half a minute)")


def begin() -> None:
    """Makes this process ready to record: subnormal numbers kept, torch deterministic, the arithmetic proven.

    Raises:
        UsageError: `subnormals-flushed`.
        IncompleteError: `arithmetic-unproven`.
    """
    from witness import switches

    flushing = _flushing()
    if flushing:
        raise UsageError("subnormals-flushed", f"subnormal numbers are flushed to zero {flushing}")
    switches.set_recommended()
    _prove()


def capture(arithmetic: str, reachable: Mapping[str, Any]) -> ExactProfile:
    """The profile of this process as it is now, for the manifest.

    Args:
        arithmetic: its full name.
        reachable: what the steps use (modules, optimisers, the program), by name; searched for devices and for compiled
            functions, which no definition reaches.

    Raises:
        UsageError: `exact-refused`, for compiled functions.
    """
    from witness import compiled, switches

    found = dict(compiled.find_compiled(reachable))
    if found:
        names = ", ".join(list(found)[:8])
        raise UsageError(
            "exact-refused",
            f"{names} {'is' if len(found) == 1 else 'are'} compiled, and compiled code is not made of operations that "
            "have a definition",
            evidence={"compiled": names},
            next_action="leave torch.compile out, or record with the native profile",
        )
    build = machine.build()
    if type(reachable.get("program")).__module__.startswith("witness.programs."):
        # Reference programs use no numpy (a test reads them), so that a divergence of theirs cannot be numpy's.
        build |= {"numpy": None, "numpy_functions": None}
    return ExactProfile(
        arithmetic=arithmetic,
        definition=DEFINITION,
        build={name: build.get(name) for name in _BUILD},
        device={"byteorder": sys.byteorder, "used": machine.gpu(machine.devices(reachable))["used"]},
        switches=switches.read_defaults(),
    )


def apply(profile: ExactProfile) -> None:
    """Applies a recorded profile inside the process that is to replay, before anything else uses torch.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the line that cannot be applied here.
    """
    import torch

    from witness import switches

    require_known(profile)
    torch.set_flush_denormal(False)
    flushing = _flushing()
    if flushing:
        raise IncompleteError(
            "profile-not-applicable",
            f"subnormal numbers are flushed to zero {flushing}; the profile keeps them",
            evidence={"line": "subnormals"},
            next_action="load no library that was linked with -ffast-math, or replay on another machine",
        )
    switches.set_recommended()
    switches.apply_defaults(profile.switches)


def compare(recorded: ExactProfile, optimizers: Mapping[str, "Optimizer"], reachable: Mapping[str, Any]) -> Comparison:
    """Decides, in the replaying process and before any replay, whether the recorded bits may be demanded here.

    Args:
        recorded: the manifest's profile, already applied.
        optimizers: the rebuilt program's.
        reachable: as for `capture`.

    Raises:
        IncompleteError: `profile-differs`, `arithmetic-unproven`.
    """
    comparison = require_comparable(recorded, capture(recorded.arithmetic, {**reachable, **optimizers}))
    _prove()
    return comparison


def excuses(recorded: ExactProfile) -> list[Difference]:
    """Lines in which this process differs so that a program may fail here; see `witness.profile.excuses`.

    Other releases of torch, and other devices, ask for other operations. A line that was not recorded is of something
    that the program does not use.
    """
    here = capture(recorded.arithmetic, {})
    here = structs.replace(here, device={**here.device, "used": machine.best_device()})
    found = [d for d in differences(recorded, here) if d.recorded is not None]
    return [d for d in found if d.kind != "note" or d.path == "device.used"]


def arithmetic(name: str) -> AbstractContextManager[Any]:
    """Runs what is inside under the arithmetic of that full name."""
    from witness.arithmetic import mode

    return mode.activate(name)


def _prove() -> None:
    from witness.arithmetic import mode

    mode.prove()


def _flushing() -> str:
    """Where this process flushes subnormal numbers; empty where it keeps them."""
    from witness import switches

    main, pool = switches.subnormals()
    places = [("in the main thread", main), ("in torch's threads", pool)]
    return " and ".join(f"{where} ({what})" for where, what in places if what not in _KEPT)
