"""The native numeric profile: stock floating point, and everything around a step that decides its bits.

Stock floating point is bit-exact only while versions, vector width, threads, BLAS and a few dozen switches stay the
same. The manifest records them; the verifier applies what can be applied, compares the rest, and runs the operation
probe. Which lines are of which kind (`protocol.comparison` says what a kind means):

| kind | lines |
| --- | --- |
| `pinned` | environment, switches, threads |
| `bits` | what reaches the bits in ways that no operation shows: torch's release (autograd formulas, optimiser code), Python's minor version (`sum` of floats changed in 3.12), libm and numpy functions (schedules, augmentation), the vector class, multiprocessors (they lay out random numbers), the optimisers' algorithms |
| `kernel` | CPU model and features, caches, MKL, oneDNN, CUDA, the build of one torch release: settled by the operation probe, and blocking where the probe cannot settle it: an operation differs or is unprobed, nothing was probed, or compiled code ran, which the probe does not see |
| `note` | Python's patch level, the CPU's name, the driver |

The probe has the last word in one direction only: an operation with other bits blocks even where every line agrees. A
trainer who records false lines or digests gains nothing by it: the verdict becomes *incomplete*, which is never a pass.
In the other direction it is a sample: it has met each operation with some 65,536 values, from the recorded step only. A
comparison therefore says what it rests on (`settled`), and a step that diverges on such a machine is held against the
trainer only if the probe covers all it used.

Specified in spec/profile.md, sections 3 and 7.
"""  # noqa: E501 - a table

from typing import Annotated, Literal

import msgspec

from protocol.comparison import Comparison, Difference, Kind, Lines, Value, differing, of_kind, release, require_lines
from protocol.encoding import Struct
from protocol.errors import IncompleteError
from protocol.operations import OperationProbe, Word, first_difference, operation_differences

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

    @property
    def full_name(self) -> str:
        """What certificates call it."""
        return "native"

    def lines(self) -> dict[str, Value]:
        """The profile as one flat map from path to value, for instance `threads.intra`."""
        flat: dict[str, Value] = {}
        for group in ("build", "device", "environment", "switches"):
            flat |= {f"{group}.{name}": value for name, value in getattr(self, group).items()}
        flat |= {"threads.intra": self.threads.intra, "threads.inter": self.threads.inter}
        for use in self.optimizers:
            flat[f"optimizers.{use.name}"] = f"{use.kind}: {', '.join(use.implementations)}"[:512]
        return flat


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


def differences(recorded: NativeProfile, here: NativeProfile) -> list[Difference]:
    """Every line in which the profiles differ, in path order.

    `ATEN_CPU_CAPABILITY` has no effect but the vector class, which has its own line: where that agrees, a replayer may
    have reached it by setting the variable, and the trainer by owning a smaller CPU.

    Args:
        recorded: from the manifest.
        here: captured in this process.
    """
    left, right = recorded.lines(), here.lines()
    if left.get("device.cpu.capability") == right.get("device.cpu.capability"):
        for flat in (left, right):
            flat.pop("environment.ATEN_CPU_CAPABILITY", None)
    return differing(left, right, _kind)


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
    settled = of_kind("kernel", found)
    if settled:
        _require_settling(settled, recorded, recorded_probe)
    return Comparison(len(recorded_probe.operations), settled=settled, notes=of_kind("note", found))


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
        evidence={d.path: d.values() for d in settled},
    )


def _kind(path: str, recorded: Value, here: Value) -> Kind:
    if path == "build.torch":
        return "kernel" if release(recorded, 3) == release(here, 3) else "bits"
    if path in ("build.python", "build.numpy"):
        return "note" if release(recorded, 2) == release(here, 2) else "bits"
    return _KINDS.get(path) or _GROUPS.get(path.partition(".")[0], "pinned")
