"""The exact numeric profile: arithmetic that is defined operation by operation, so that any machine can give its bits.

Threads, vector width, BLAS, device and the builds under torch may differ freely, and are not recorded. What is left
are a few settings that change which operations a program asks for, and what computes a step's inputs or chooses its
operations without being one of them. By kind (`protocol.comparison` says what a kind means):

| kind | lines |
| --- | --- |
| `pinned` | `switches`: default dtype, autocast |
| `bits` | the arithmetic, the version of its definitions, byte order |
| `outside` | torch's release (formulas of autograd, code of optimisers), Python's minor version (`sum` of floats changed in 3.12), numpy's, libm and numpy functions (schedules, augmentation) |
| `note` | Python's and numpy's patch level, the build of one torch release, the kind of device |

What the profile fixes is no line either: subnormal numbers are kept, and torch is asked for its deterministic
algorithms (the last of several writes to one place wins, memory that was never written has a defined value).

Specified in spec/profile.md, section 4.
"""  # noqa: E501 - a table

from typing import Annotated

import msgspec

from protocol.comparison import Comparison, Difference, Kind, Lines, Value, differing, of_kind, release, require_lines
from protocol.encoding import Count, Struct
from protocol.errors import IncompleteError

DEFINITION = 1
"""Version of the definitions. A change of any bit of any operation is another version."""
ARITHMETICS = ("exact-14", "exact-18")
"""What this version can compute; the number is of the magnitude bits that operands of matrix products keep."""
DEFAULT = "exact-14"
"""The arithmetic that `exact` alone stands for."""
Arithmetic = Annotated[str, msgspec.Meta(pattern=r"\Aexact-[1-9][0-9]?\Z")]


class ExactProfile(Struct, frozen=True, tag_field="name", tag="exact"):
    """What a replayer needs besides the definitions.

    Attributes:
        arithmetic: which one, by its full name.
        definition: version of the definitions.
        build: versions of torch, Python and numpy, digests of the functions of libm and numpy.
        device: byte order, and the kind of device that computed.
        switches: default dtype and autocast.
    """

    arithmetic: Arithmetic
    definition: Count
    build: Lines
    device: Lines
    switches: Lines

    @property
    def full_name(self) -> str:
        """What certificates call it."""
        return self.arithmetic

    def lines(self) -> dict[str, Value]:
        """The profile as one flat map from path to value, for instance `switches.default.dtype`."""
        flat: dict[str, Value] = {"arithmetic": self.arithmetic, "definition": self.definition}
        for group in ("build", "device", "switches"):
            flat |= {f"{group}.{name}": value for name, value in getattr(self, group).items()}
        return flat


_KINDS: dict[str, Kind] = {"device.byteorder": "bits", "device.used": "note"}
_GROUPS: dict[str, Kind] = {"build": "outside", "switches": "pinned"}
_RELEASES = {"build.torch": 3, "build.python": 2, "build.numpy": 2}
"""How many leading numbers of a version decide; what follows them is a note."""


def require_known(profile: ExactProfile) -> None:
    """Checks that this version has the arithmetic of a profile, before anything is made ready for it.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the arithmetic.
    """
    if profile.arithmetic not in ARITHMETICS or profile.definition != DEFINITION:
        raise IncompleteError(
            "profile-not-applicable",
            f"arithmetic: recorded {profile.arithmetic} of definition {profile.definition}; this version has "
            f"{', '.join(ARITHMETICS)} of definition {DEFINITION}",
            evidence={"line": "arithmetic", "recorded": profile.arithmetic, "definition": profile.definition},
            next_action="verify with a version of this package that has the arithmetic which the manifest names",
        )


def differences(recorded: ExactProfile, here: ExactProfile) -> list[Difference]:
    """Every line in which the profiles differ, in path order.

    Args:
        recorded: from the manifest.
        here: captured in this process.
    """
    return differing(recorded.lines(), here.lines(), _kind)


def require_comparable(recorded: ExactProfile, here: ExactProfile) -> Comparison:
    """Decides, before any replay, whether this process may be held to the recorded bits.

    Args:
        recorded: from the manifest.
        here: captured in the replaying process after the recorded profile was applied.

    Returns:
        What the demand rests on.

    Raises:
        IncompleteError: `profile-differs`, naming the lines.
    """
    found = differences(recorded, here)
    require_lines(found)
    return Comparison(0, outside=of_kind("outside", found), notes=of_kind("note", found))


def _kind(path: str, recorded: Value, here: Value) -> Kind:
    if path in _RELEASES and release(recorded, _RELEASES[path]) == release(here, _RELEASES[path]):
        return "note"
    return _KINDS.get(path) or _GROUPS.get(path.partition(".")[0], "bits")
