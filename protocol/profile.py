"""The native numeric profile: what a replayer must pin, and when two machines may be held to the same bits.

Stock floating point is bit-exact only while versions, vector width, threads, BLAS and a few dozen switches stay the
same. The manifest records them; the verifier applies what can be applied, compares the rest, and runs the operation
probe. The point is the verdict: a machine that cannot give the recorded bits is *incomplete*, and is told why; it never
accuses.

Every line of a profile has a kind, and the kind says what a difference means **after** the profile has been applied:

| kind | the line | a difference |
| --- | --- | --- |
| `pinned` | is set by the replayer: environment, switches, threads | blocks: applying it failed |
| `bits` | reaches the bits in ways that no operation shows: torch's release (autograd formulas, optimiser code), Python's minor version (`sum` of floats changed in 3.12), libm and numpy functions (schedules, augmentation), the vector class, multiprocessors (they lay out random numbers), the optimisers' algorithms | blocks |
| `kernel` | acts only through operations: CPU model and features, caches, MKL, oneDNN, CUDA, the build of one torch release | is settled by the operation probe, and blocks where the probe cannot settle it: an operation differs or is unprobed, nothing was probed, or compiled code ran, which the probe does not see |
| `note` | cannot reach a step: Python's patch level, the CPU's name, the driver | never blocks |

The probe has the last word in one direction only: an operation with other bits blocks even where every line agrees. A
trainer who records false lines or digests gains nothing by it: the verdict becomes *incomplete*, which is never a pass.
In the other direction it is a sample: it has met each operation with some 65,536 values, from the recorded step only. A
comparison therefore says what it rests on (`settled`), and a step that diverges on such a machine is held against the
trainer only if the probe covers all it used (`require_covered`).
"""  # noqa: E501 - a table

import re
from typing import Annotated, Literal, TypeAlias

import msgspec

from protocol.encoding import Struct
from protocol.errors import IncompleteError
from protocol.operations import (
    Integer,
    OperationProbe,
    OperationSpec,
    Word,
    first_difference,
    operation_differences,
    uncovered,
)

__all__ = [
    "Comparison",
    "Difference",
    "NativeProfile",
    "OperationProbe",
    "OptimizerUse",
    "Threads",
    "differences",
    "lines",
    "require_comparable",
    "require_covered",
]

Value: TypeAlias = bool | Integer | Word | None
Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.]{1,64}\Z")]
Lines: TypeAlias = Annotated[dict[Name, Value], msgspec.Meta(max_length=128)]
Kind = Literal["pinned", "bits", "kernel", "note"]
MAX_THREADS = 4096
ThreadCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)]


class Threads(Struct, frozen=True):
    """Sizes of torch's intra-op and inter-op pools. Split reductions and vector tails follow the intra-op one."""

    intra: ThreadCount
    inter: ThreadCount


class OptimizerUse(Struct, frozen=True):
    """An optimiser and the algorithm that really ran.

    Attributes:
        name: its name in the training state.
        kind: qualified class name.
        implementations: one for each parameter group: `loop`, `foreach` or `fused` as torch chose, `own` for a class
            that has one algorithm only. `loop` and `foreach` agree on a CPU, `fused` rounds differently.
    """

    name: Word
    kind: Word
    implementations: Annotated[
        tuple[Literal["loop", "foreach", "fused", "own"], ...], msgspec.Meta(min_length=1, max_length=4096)
    ]


class NativeProfile(Struct, frozen=True, tag_field="name", tag="native"):
    """Everything around a step that decides the bits of stock floating point.

    Attributes:
        build: versions and digests of torch, Python, numpy and the libraries under them.
        device: CPU, and GPU if one is used.
        environment: variables that libraries read at start; null when unset.
        switches: process-wide settings of torch, and whether subnormal numbers survive in each thread.
        threads: pool sizes.
        optimizers: in name order.
    """

    build: Lines
    device: Lines
    environment: Lines
    switches: Lines
    threads: Threads
    optimizers: Annotated[tuple[OptimizerUse, ...], msgspec.Meta(max_length=64)] = ()


class Difference(Struct, frozen=True):
    """One line in which two profiles differ; a missing line counts as null."""

    path: str
    recorded: Value
    here: Value
    kind: Kind

    def text(self) -> str:
        """The line for people."""
        return f"{self.path}: recorded {_shown(self.recorded)}, here {_shown(self.here)}"


class Comparison(Struct, frozen=True):
    """The ground on which bit equality may be demanded.

    Attributes:
        operations: how many operations gave the recorded bits here.
        settled: `kernel` lines that differ and that the probe settled.
        notes: harmless differences.
    """

    operations: int
    settled: tuple[Difference, ...]
    notes: tuple[Difference, ...]


_KINDS: dict[str, Kind] = {
    "build.libm": "bits",
    "build.nccl": "bits",
    "build.numpy_functions": "bits",
    "build.driver": "note",
    "device.byteorder": "bits",
    "device.cpu.capability": "bits",
    "device.cpu.name": "note",
    "device.gpu.capability": "bits",
    "device.gpu.multiprocessors": "bits",
    "device.gpu.threads_per_multiprocessor": "bits",
    "device.machine": "bits",
    "device.used": "bits",
    "switches.compile": "bits",
    "switches.compile.config": "bits",
}
_GROUPS: dict[str, Kind] = {"build": "kernel", "device": "kernel", "optimizers": "bits"}


def lines(profile: NativeProfile) -> dict[str, Value]:
    """The profile as one flat map from path to value, for instance `threads.intra`."""
    flat: dict[str, Value] = {}
    for group in ("build", "device", "environment", "switches"):
        flat |= {f"{group}.{name}": value for name, value in getattr(profile, group).items()}
    flat |= {"threads.intra": profile.threads.intra, "threads.inter": profile.threads.inter}
    for use in profile.optimizers:
        flat[f"optimizers.{use.name}"] = f"{use.kind}: {', '.join(use.implementations)}"[:512]
    return flat


def differences(recorded: NativeProfile, here: NativeProfile) -> list[Difference]:
    """Every line in which the profiles differ, in path order.

    `ATEN_CPU_CAPABILITY` has no effect but the vector class, which has its own line: where that agrees, a replayer may
    have reached it by setting the variable, and the trainer by owning a smaller CPU.

    Args:
        recorded: from the manifest.
        here: captured in this process.
    """
    left, right = lines(recorded), lines(here)
    if left.get("device.cpu.capability") == right.get("device.cpu.capability"):
        for flat in (left, right):
            flat.pop("environment.ATEN_CPU_CAPABILITY", None)
    return [
        Difference(path, left.get(path), right.get(path), _kind(path, left.get(path), right.get(path)))
        for path in sorted(left.keys() | right.keys())
        if not _same(left.get(path), right.get(path))
    ]


def require_comparable(
    recorded: NativeProfile, here: NativeProfile, recorded_probe: OperationProbe, here_probe: OperationProbe
) -> Comparison:
    """Decides, before any replay, whether this process may be held to the recorded bits.

    Args:
        recorded: from the manifest.
        here: captured in the replaying process after the recorded profile was applied.
        recorded_probe: from the manifest.
        here_probe: the recorded operations, run in the replaying process.

    Returns:
        What the demand rests on.

    Raises:
        IncompleteError: `profile-differs`, `operation-differs` or `operation-unprobed`, naming lines and operation.
    """
    found = differences(recorded, here)
    require_lines(found)
    first = first_difference(recorded_probe, here_probe)
    if first is not None:
        unexplained = "" if any(d.kind == "kernel" for d in found) else ", although every line of the profile agrees"
        count = len(operation_differences(recorded_probe, here_probe))
        raise IncompleteError(
            "operation-differs",
            f"{first.operation}: {first.reason}{unexplained}",
            evidence={
                "operation": first.operation,
                "recorded": first.recorded,
                "here": first.here,
                "operations that differ": f"{count} of {len(recorded_probe.operations)}",
                **{d.path: d.text() for d in found},
            },
        )
    settled = tuple(d for d in found if d.kind == "kernel")
    if settled:
        _require_settling(settled, recorded, recorded_probe)
    return Comparison(len(recorded_probe.operations), settled, tuple(d for d in found if d.kind == "note"))


def require_lines(found: list[Difference]) -> None:
    """The part of the decision that needs no probe: lines that block by themselves.

    Raises:
        IncompleteError: `profile-differs`.
    """
    blocking = [d for d in found if d.kind in ("pinned", "bits")]
    if blocking:
        more = f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        raise IncompleteError(
            "profile-differs",
            f"{blocking[0].text()}{more}",
            evidence={d.path: f"recorded {_shown(d.recorded)}, here {_shown(d.here)}" for d in blocking},
        )


def require_covered(comparison: Comparison, probe: OperationProbe, specs: tuple[OperationSpec, ...]) -> None:
    """Checks that a replayed step which diverged used only operations that the probe stands for.

    The probe holds the operations of the recorded step. On a machine whose `kernel` lines agree that is enough; on one
    that relies on the probe, a step that used something else (a shorter last batch) proves nothing by diverging.

    Args:
        comparison: what `require_comparable` returned.
        probe: from the manifest.
        specs: operations recorded while the step was replayed.

    Raises:
        IncompleteError: `operation-unprobed`, naming the operation.
    """
    missing = uncovered(probe, specs) if comparison.settled else []
    if missing:
        raise IncompleteError(
            "operation-unprobed",
            f"the step used {missing[0].signature()}, which the recorded probe does not cover",
            evidence={"operations": len(missing), **{d.path: d.text() for d in comparison.settled}},
        )


def _require_settling(settled: tuple[Difference, ...], recorded: NativeProfile, probe: OperationProbe) -> None:
    if recorded.switches.get("compile", "eager") != "eager":
        why = "the run was compiled, and the probe does not see compiled kernels"
    elif not probe.operations:
        why = "no operation was probed"
    elif probe.unprobed:
        why = f"{probe.unprobed[0].operation} could not be probed ({probe.unprobed[0].reason})"
    else:
        return
    raise IncompleteError(
        "operation-unprobed",
        f"{settled[0].text()}; {why}",
        evidence={d.path: f"recorded {_shown(d.recorded)}, here {_shown(d.here)}" for d in settled},
    )


def _kind(path: str, recorded: Value, here: Value) -> Kind:
    if path == "build.torch":
        return "kernel" if _release(recorded, 3) == _release(here, 3) else "bits"
    if path in ("build.python", "build.numpy"):
        return "note" if _release(recorded, 2) == _release(here, 2) else "bits"
    return _KINDS.get(path) or _GROUPS.get(path.partition(".")[0], "pinned")


def _release(version: Value, numbers: int) -> str:
    """The leading numbers of a released version; the whole text of any other, so that nightly builds never agree."""
    match = re.fullmatch(r"(\d+(?:\.\d+)*)(\+[A-Za-z0-9.]+)?", str(version))
    return ".".join(match[1].split(".")[:numbers]) if match else str(version)


def _same(left: Value, right: Value) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _shown(value: Value) -> str:
    return "nothing" if value is None else str(value)
