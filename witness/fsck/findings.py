"""What an examination of stored bytes found: each finding with its code, its file and what to do.

An error ends a computation; a finding does not. `Findings` turns the one into the other, so that
one damaged file hides no other, and keeps apart what is damage, what this user may not read, and
what is only worth a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from protocol.errors import EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_REPRODUCED, IncompleteError, WitnessError

Kind = Literal["damage", "unreadable", "note"]
MAX_PER_CODE = 100
"""Findings that are kept of one code; the others are counted. A hostile log could have a million."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be.

    Attributes:
        kind: `damage`; `unreadable`, when permission is missing; `note`, for what does no harm.
        code: from `protocol.errors.CODES`.
        file: relative to the run's folder; absolute for data that lies elsewhere.
        message: what was found.
        step: it concerns, where that is known.
        entry: number of the log entry it concerns, from 0.
        next: what to do now.
    """

    kind: Kind
    code: str
    file: str
    message: str
    step: int | None
    entry: int | None
    next: str


@dataclass(slots=True)
class Counts:
    """How much was read and derived again.

    Attributes:
        entries: of the log.
        unsigned_entries: at its end, that no signed head covers yet.
        heads: whose signature and root hold.
        checkpoints: kept states whose root is the committed one.
        pieces: of those states.
        documents: whose bytes are the committed ones.
        program_files: that are the committed ones.
        bytes: read from disk.
    """

    entries: int = 0
    unsigned_entries: int = 0
    heads: int = 0
    checkpoints: int = 0
    pieces: int = 0
    documents: int = 0
    program_files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found.

    Attributes:
        run: the run's id; None when the manifest cannot be read.
        findings: in the order of discovery.
        counts: of what was derived again.
        unchecked: what damage made impossible to check, a line each.
        omitted: for each code with more than `MAX_PER_CODE` findings, how many are not listed.
    """

    run: str | None
    findings: tuple[Finding, ...]
    counts: Counts
    unchecked: tuple[str, ...] = ()
    omitted: Mapping[str, int] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """0: nothing but notes; 1: damage; 2: no damage seen, but something may not be read."""
        kinds = {finding.kind for finding in self.findings}
        if "damage" in kinds:
            return EXIT_DIVERGED
        return EXIT_INCOMPLETE if "unreadable" in kinds else EXIT_REPRODUCED

    def document(self) -> dict[str, Any]:
        """The report as plain data for JSON; the keys are listed in `witness.fsck`."""
        return {
            "clean": self.exit_status == EXIT_REPRODUCED,
            "counts": asdict(self.counts),
            "exit_status": self.exit_status,
            "findings": [asdict(finding) for finding in self.findings],
            "omitted": dict(self.omitted),
            "run": self.run,
            "unchecked": list(self.unchecked),
        }


class Findings:
    """Collects findings.

    Args:
        folder: of the run, which names of files are relative to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[Finding, None] = {}
        self._per_code: Counter[str] = Counter()
        self.run: str | None = None
        self.counts = Counts()
        self.unchecked: list[str] = []

    def add(
        self,
        error: WitnessError,
        file: Path,
        *,
        step: int | None = None,
        entry: int | None = None,
        action: str | None = None,
        note: bool = False,
    ) -> None:
        """Keeps what an error says.

        Args:
            error: as raised; one that came of a missing permission becomes `unreadable`.
            file: it is about.
            step: it concerns; by default the one in the error's evidence.
            entry: number of the log entry.
            action: what to do now, where the error's own advice is for another situation.
            note: it does no harm.
        """
        kind: Kind = "note" if note else "damage"
        code, advice = error.code, action or error.next_action
        if not_permitted(error):
            permission = IncompleteError("unreadable", "")
            kind, code, advice = "unreadable", permission.code, permission.next_action
        told = error.evidence.get("step")
        if step is None and isinstance(told, int):
            step = told
        finding = Finding(kind, code, self.name(file), str(error), step, entry, advice)
        if finding in self._found:
            return
        self._per_code[code] += 1
        if self._per_code[code] <= MAX_PER_CODE:
            self._found[finding] = None

    def name(self, file: Path) -> str:
        """What findings call a file."""
        return file.relative_to(self._folder).as_posix() if file.is_relative_to(self._folder) else str(file)

    def report(self) -> Report:
        """All that was found."""
        omitted = {code: count - MAX_PER_CODE for code, count in self._per_code.items() if count > MAX_PER_CODE}
        return Report(self.run, tuple(self._found), self.counts, tuple(self.unchecked), omitted)


def not_permitted(error: BaseException) -> bool:
    """Whether an error was made of the operating system's refusal to let this user read."""
    cause: BaseException | None = error
    for _ in range(16):
        if cause is None:
            break
        if isinstance(cause, PermissionError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
