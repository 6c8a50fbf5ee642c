"""The four families of failure, and the one table that gives every failure its code, exit status and HTTP status.

`ProtocolError`: the bytes are not what the format says (whoever sent them). `VerificationError`: well-formed, and
wrong - the run diverged from what was committed. `IncompleteError`: cannot tell; never a pass, never an accusation.
`UsageError`: our own caller asked for something impossible. Verification returns the verified thing or raises; it
never returns a bool, because a bool can be ignored.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

EXIT_REPRODUCED, EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_USAGE = 0, 1, 2, 64


class Code(NamedTuple):
    """One row of the error table."""

    meaning: str
    exit_status: int
    http_status: int
    next_action: str


def _malformed(meaning: str, action: str = "ask the sender for a well-formed artefact; nothing in this one was used") -> Code:
    return Code(meaning, EXIT_DIVERGED, 400, action)


def _wrong(meaning: str, action: str = "treat the run as diverged; the evidence names what differs") -> Code:
    return Code(meaning, EXIT_DIVERGED, 422, action)


def _unknown(meaning: str, action: str) -> Code:
    return Code(meaning, EXIT_INCOMPLETE, 503, action)


def _usage(meaning: str, action: str) -> Code:
    return Code(meaning, EXIT_USAGE, 400, action)


CODES: Mapping[str, Code] = MappingProxyType(
    {
        # manifest
        "manifest": _malformed("a line of the manifest says something impossible"),
        "program-source": _malformed("a source file is not the committed one", "ask the trainer for the committed sources"),
        # encoding
        "not-canonical": _malformed("the bytes are not the one canonical encoding of what they say"),
        "too-large": Code(
            "larger than the format's cap", EXIT_DIVERGED, 413, "ask the sender for a smaller artefact; nothing was read past the cap"
        ),
        # statetree
        "state-bytes": _wrong("the bytes of a tensor are not as long as its entry says"),
        "state-root": _wrong("an opened state is not the committed one"),
        "state-table": _malformed("a state table does not describe one training state"),
        # corpus and schedule
        "corpus-leaves": _malformed("the document leaves do not form one corpus"),
        "corpus-root": _wrong("the documents are not the committed corpus"),
        "empty-corpus": _usage("there is no sample to draw", "name a corpus with at least one sample (windows need `length` tokens)"),
        "record-bytes": _wrong("opened record bytes are not the committed ones"),
        "schedule": _usage("no such sample or batch", "use sample numbers below the corpus's sample count and a positive batch size"),
        # encoding
        "unencodable": _usage("the value has no canonical encoding", "use objects, arrays, strings, booleans, null and integers below 2^53"),
    }
)


class WitnessError(Exception):
    """An error with a machine-readable code from `CODES`.

    Args:
        code: a key of `CODES`.
        message: one line: what was found, in the terms of whoever must act.
        evidence: named facts (step, tensor, expected, found...), printable and JSON-able.
        next_action: what to do now, where the table's own advice is too general.
    """

    default_code: ClassVar[str] = ""

    def __init__(
        self, code: str, message: str, *, evidence: Mapping[str, object] | None = None, next_action: str | None = None
    ) -> None:
        if code not in CODES:
            raise KeyError(f"error code {code!r} is not in protocol.errors.CODES")
        super().__init__(message)
        self.code = code
        self.evidence: dict[str, object] = dict(evidence or {})
        self.next_action = next_action or CODES[code].next_action

    @property
    def exit_status(self) -> int:
        """The process exit status of this failure."""
        return CODES[self.code].exit_status

    @property
    def http_status(self) -> int:
        """The HTTP status of this failure."""
        return CODES[self.code].http_status

    def diagnostics(self) -> str:
        """What happened, the evidence, and what to do next, on a few lines."""
        lines = [f"{self.code}: {self}"]
        lines += [f"  {name}: {value}" for name, value in self.evidence.items()]
        lines.append(f"  next: {self.next_action}")
        return "\n".join(lines)


class ProtocolError(WitnessError):
    """Malformed bytes from the other side, or from disk."""


class VerificationError(WitnessError):
    """Well-formed and wrong: the claim does not hold."""


class IncompleteError(WitnessError):
    """Cannot tell: a check that was owed could not run."""


class UsageError(WitnessError):
    """Our caller asked for something that cannot be done."""
