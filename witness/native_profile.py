"""The native profile of this process: begin, capture, apply, compare.

A run is recorded under `witness.environment.recommended_environment`, because libraries read their variables once, at
start. The recorded profile travels in the manifest, and a replay is started with `environment(profile)`.

Importing this module does not import torch, so that whoever starts processes can use it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from protocol.comparison import Comparison, Difference, require_lines
from protocol.native_profile import NativeProfile, OptimizerUse, Threads, differences, require_comparable
from protocol.operations import OperationProbe
from witness import machine
from witness.environment import inapplicable, read_environment, require_environment

if TYPE_CHECKING:
    from torch.optim import Optimizer


_OF_THE_PROGRAM = ("device.gpu.", "optimizers.", "switches.compile")
"""Lines that a program has to be built for."""


def begin() -> None:
    """Sets, at the start of a run, the switches under which torch can be replayed at all.

    Afterwards an operation that has no deterministic implementation raises an error that names it.
    """
    from witness import switches

    switches.set_recommended()


def capture(optimizers: Mapping[str, "Optimizer"], reachable: Mapping[str, Any] | None = None) -> NativeProfile:
    """The profile of this process as it is now, for the manifest.

    Args:
        optimizers: the run's optimisers by their names in the training state.
        reachable: what the steps use (modules, the program), by name; searched for compiled functions and for devices.

    Raises:
        UsageError: `compile-nondeterministic`, or `environment-variable` for a value that no replayer could be given.
    """
    import torch

    from witness import compiled, switches

    reachable = {**(reachable or {}), **optimizers}
    return NativeProfile(
        build=machine.build(),
        device={**machine.cpu(), **machine.gpu(machine.devices(reachable)), "cpu.capability": _capability()},
        environment=read_environment(),
        switches={**switches.read_switches(), **compiled.compile_lines(reachable)},
        threads=Threads(torch.get_num_threads(), torch.get_num_interop_threads()),
        optimizers=tuple(optimizer_use(name, optimizers[name]) for name in sorted(optimizers)),
    )


def apply(profile: NativeProfile) -> None:
    """Applies a recorded profile inside the process that is to replay, before anything else uses torch.

    Args:
        profile: from the manifest.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the line that cannot be applied here.
    """
    import torch

    from witness import switches

    require_environment(profile)
    threads = profile.threads
    if torch.get_num_interop_threads() != threads.inter:
        try:
            torch.set_num_interop_threads(threads.inter)
        except RuntimeError:
            reason = "parallel work has started: apply the profile first"
            raise inapplicable("threads.inter", threads.inter, torch.get_num_interop_threads(), reason) from None
    if torch.get_num_threads() != threads.intra:
        torch.set_num_threads(threads.intra)
    if torch.get_num_threads() != threads.intra:
        raise inapplicable("threads.intra", threads.intra, torch.get_num_threads(), "")
    switches.apply_switches(profile.switches)


def compare(
    recorded: NativeProfile,
    probe: OperationProbe,
    optimizers: Mapping[str, "Optimizer"],
    reachable: Mapping[str, Any] | None = None,
) -> Comparison:
    """Decides, in the replaying process and before any replay, whether the recorded bits may be demanded here.

    Lines come first: where they block, nothing of the stranger's list is run.

    Args:
        recorded: the manifest's profile, already applied.
        probe: the manifest's operation probe.
        optimizers: the rebuilt program's.
        reachable: as for `capture`.

    Raises:
        IncompleteError: `profile-differs`, `operation-differs` or `operation-unprobed`.
        ProtocolError: `operation-refused`.
    """
    here = capture(optimizers, reachable)
    require_lines(differences(recorded, here))
    from witness.operations import build_probe

    return require_comparable(recorded, here, probe, build_probe(probe.specs, repeats=1))


def excuses(recorded: NativeProfile) -> list[Difference]:
    """Lines in which this process differs so that a program may fail here; see `witness.profile.excuses`."""
    here = capture({})
    here = structs.replace(here, device={**here.device, "used": machine.best_device()})
    found = differences(recorded, here)
    return [d for d in found if d.kind != "note" and not d.path.startswith(_OF_THE_PROGRAM)]


def optimizer_use(name: str, optimizer: "Optimizer") -> OptimizerUse:
    """Which algorithm an optimiser really uses for each of its parameter groups.

    What was asked for does not say it: left alone, torch decides by device, dtype and class.
    """
    kind = type(optimizer)
    groups = tuple(_implementation(group) for group in optimizer.param_groups)
    return OptimizerUse(name, f"{kind.__module__}.{kind.__qualname__}", groups or ("own",))


def _implementation(group: Mapping[str, Any]) -> Any:
    import torch
    from torch.optim.optimizer import _default_to_fused_or_foreach

    if "foreach" not in group:
        return "own"
    if group.get("fused"):
        return "fused"
    if group["foreach"] is None and group.get("fused") is None:
        _, foreach = _default_to_fused_or_foreach(group["params"], bool(group.get("differentiable")), use_fused=False)
        # A tensor as learning rate without `capturable` keeps torch from choosing foreach by itself.
        foreach = foreach and not (isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable"))
    else:
        foreach = bool(group["foreach"])
    return "foreach" if foreach else "loop"


def _capability() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability())
