"""When two machines may be held to the same bits: what a differing line means, and what a divergence then proves.

A manifest's numeric profile is a set of lines: versions, digests, settings. A replayer captures the same lines in its
own process, after it has applied what can be applied. Every line has a kind, and the kind says what a difference
means **then**:

| kind | the line | a difference |
| --- | --- | --- |
| `pinned` | is set by the replayer | blocks: applying it failed |
| `bits` | reaches the bits whatever else agrees | blocks |
| `kernel` | acts only through operations, which the operation probe tries one by one (native profile) | is settled by the probe, or blocks |
| `outside` | can reach the bits, but not through any operation that the profile defines (exact profile) | never blocks; but a step that then diverges accuses nobody |
| `note` | cannot reach a step | never blocks |

The point is the verdict: a machine that cannot give the recorded bits is *incomplete*, and is told why; it never
accuses. Nor does a trainer gain anything by false lines: *incomplete* is never a pass.

Specified in spec/profile.md, sections 2 and 8.
"""  # noqa: E501 - a table

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec

from protocol.encoding import Struct
from protocol.errors import IncompleteError, VerificationError
from protocol.operations import Integer, OperationProbe, OperationSpec, Word, uncovered

Value: TypeAlias = bool | Integer | Word | None
Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.]{1,64}\Z")]
Lines: TypeAlias = Annotated[dict[Name, Value], msgspec.Meta(max_length=128)]
Kind = Literal["pinned", "bits", "kernel", "outside", "note"]


class Difference(Struct, frozen=True):
    """One line in which two profiles differ; a missing line counts as null."""

    path: str
    recorded: Value
    here: Value
    kind: Kind

    def text(self) -> str:
        """The line for people."""
        return f"{self.path}: {self.values()}"

    def values(self) -> str:
        """What was recorded, and what is here."""
        return f"recorded {_shown(self.recorded)}, here {_shown(self.here)}"


class Comparison(Struct, frozen=True):
    """The ground on which bit equality may be demanded.

    Attributes:
        operations: how many operations gave the recorded bits here.
        settled: `kernel` lines that differ and that the probe settled.
        outside: `outside` lines that differ: equality counts, a divergence does not.
        notes: harmless differences.
    """

    operations: int
    settled: tuple[Difference, ...] = ()
    outside: tuple[Difference, ...] = ()
    notes: tuple[Difference, ...] = ()

    def remarks(self) -> list[str]:
        """What the reader of a certificate should know of this machine, a line each."""
        return [
            *(f"profile: {difference.text()}" for difference in self.notes),
            *(f"profile: {d.text()} (not of the defined arithmetic)" for d in self.outside),
        ]


def differing(
    recorded: Mapping[str, Value], here: Mapping[str, Value], kind: Callable[[str, Value, Value], Kind]
) -> list[Difference]:
    """Every line in which two flat maps differ, in path order.

    Args:
        recorded: lines by path.
        here: lines by path.
        kind: of a line, by its path and both values.
    """
    return [
        Difference(path, recorded.get(path), here.get(path), kind(path, recorded.get(path), here.get(path)))
        for path in sorted(recorded.keys() | here.keys())
        if not _same(recorded.get(path), here.get(path))
    ]


def of_kind(kind: Kind, found: list[Difference]) -> tuple[Difference, ...]:
    """The differences of one kind."""
    return tuple(difference for difference in found if difference.kind == kind)


def require_lines(found: list[Difference]) -> None:
    """The part of a comparison that needs no operations: lines that block by themselves.

    Raises:
        IncompleteError: `profile-differs`.
    """
    blocking = [d for d in found if d.kind in ("pinned", "bits")]
    if blocking:
        more = f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        raise IncompleteError(
            "profile-differs", f"{blocking[0].text()}{more}", evidence={d.path: d.values() for d in blocking}
        )


def require_attributable(
    comparison: Comparison, probe: OperationProbe, specs: tuple[OperationSpec, ...], error: VerificationError
) -> None:
    """Checks that a divergence of what was computed here is the run's, and cannot be this machine's.

    Under the native profile the probe holds the operations of the recorded step. On a machine whose `kernel` lines
    agree that is enough; on one that relies on the probe, a step that used something else (a shorter last batch) proves
    nothing by diverging. Under the exact profile no operation can differ, but what no arithmetic defines can.

    Args:
        comparison: of this machine with the run's profile.
        probe: from the manifest.
        specs: operations recorded while the step was replayed, where the comparison relies on the probe.
        error: the divergence.

    Raises:
        IncompleteError: `outside-differs`, naming the lines; `operation-unprobed`, naming the operation.
    """
    if comparison.outside:
        more = f" (and {len(comparison.outside) - 1} more)" if len(comparison.outside) > 1 else ""
        raise IncompleteError(
            "outside-differs",
            f"{error}; but {comparison.outside[0].text()}{more}",
            evidence={**error.evidence, "found": error.code, **{d.path: d.values() for d in comparison.outside}},
        ) from error
    missing = uncovered(probe, specs) if comparison.settled else []
    if missing:
        raise IncompleteError(
            "operation-unprobed",
            f"the step used {missing[0].signature()}, which the recorded probe does not cover",
            evidence={"operations": len(missing), **{d.path: d.text() for d in comparison.settled}},
        ) from error


def release(version: Value, numbers: int) -> str:
    """The leading numbers of a released version; the whole text of any other, so that nightly builds never agree."""
    match = re.fullmatch(r"(\d+(?:\.\d+)*)(\+[A-Za-z0-9.]+)?", str(version))
    return ".".join(match[1].split(".")[:numbers]) if match else str(version)


def _same(left: Value, right: Value) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _shown(value: Value) -> str:
    return "nothing" if value is None else str(value)
