"""The whole log under every gradient-free check, past the first thing that does not hold.

`LogAudit` stops at the first failure, as a verdict must. To find *all* damage the survey goes on:
where an entry is lost or wrong it puts a stand-in in its place - a step with the right number and
the right records - so that what follows is still checked. Roots for the signed heads are computed
apart from that, over the entries as they are, and over the hashes that were stored with them: when
only the stored hashes give the root that the trainer signed, the damage is in the named entries and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from protocol import merkle
from protocol.checks import LogAudit
from protocol.corpus import Documents
from protocol.encoding import encode, encode_trusted, f32
from protocol.errors import ProtocolError, VerificationError, WitnessError
from protocol.notes import Checkpoint
from protocol.records import (
    AfterManifest,
    CheckpointEvent,
    FaultEvent,
    FinalEvent,
    Fingerprint,
    InitRecord,
    ResumeEvent,
    StepRecord,
    parse_entry,
)
from witness.logreader import Gap, Row

UNKNOWN = "f" * 64
"""The root of a stand-in whose own root is lost."""
_END = -1
"""Stands for the final event among the doubtful steps."""
_LOST = "restore log.sqlite from a copy; without it the run cannot be verified"
_HISTORY = "restore log.sqlite from a copy; if it was never altered, the trainer signed another history"


class Survey:
    """Reads rows and gaps in order.

    Args:
        documents: the committed corpus; None leaves the records drawn (check 5) unchecked.
        heads: verified signed heads by size.
        report: hears each finding: an error, the entry's number, what to do (None: the error says it).
        held: entry 0 is a manifest that the log can be held to.

    """

    def __init__(
        self,
        documents: Documents | None,
        heads: Mapping[int, Checkpoint],
        report: Callable[[WitnessError, int, str | None], None],
        *,
        held: bool = True,
    ) -> None:
        self.audit = LogAudit(documents)
        self.size = 0
        """Entries so far, lost ones included."""
        self.confirmed: set[int] = set()
        """Sizes of heads whose root these entries have, or had when their hashes were stored."""
        self.owed: list[tuple[int, int]] = []
        """`(size, step)` of the heads that the recorder signs and that no crash excuses."""
        self.unheld: int | None = None if held else 0
        """Number of the entry from which on the log could not be held to its manifest; None: to its end."""
        self.final: FinalEvent | None = None
        """The end as announced, even if check 9 refuses it."""
        self._documents, self._heads, self._report = documents, heads, report
        self._entries, self._stored = merkle.Frontier(), merkle.Frontier()
        self._whole = True
        self._altered: list[int] = []
        self._lost = 0
        self._sample = b""
        self._pending: tuple[int, int] | None = None
        self._doubts: dict[int, int] = {}
        self._announced: dict[int, str] = {}
        self._compare()

    def read(self, row: Row | Gap) -> None:
        """Takes the next row."""
        if isinstance(row, Gap):
            self._skip(row)
            return
        leaf = merkle.leaf_hash(row.entry)
        altered = leaf != row.stored_hash
        if altered:
            self._altered.append(row.number)
        if self._whole:
            self._entries.append_hash(leaf)
            self._stored.append_hash(row.stored_hash if len(row.stored_hash) == merkle.HASH_BYTES else leaf)
        self.size = row.number + 1
        if self.unheld is None:
            self._hold(row.number, row.entry, altered)
        self._compare()

    def finish(self) -> None:
        """Says what only the end of the log shows."""
        self._name_altered("no verified head covers it, so nothing says which is right")
        if self._pending is not None and self.final is not None:
            self.owed.append(self._pending)
        for size, head in self._heads.items():
            if size > self.size:
                short = f"the head over {size} entries is signed; the log holds {self.size}"
                self._report(ProtocolError("log-truncated", short), self.size, None)
            elif size not in self.confirmed and not self._whole:
                continue  # the entries it covers are lost, which is said already
            elif size not in self.confirmed:
                other = f"the signed head over {size} entries is not a head of this log: its root is {head.root.hex()}"
                self._report(VerificationError("head-root", other), size - 1, _HISTORY)

    def root_of(self, step: int) -> str | None:
        """The committed root of the state after `step`; None where it is lost, or there is none."""
        if step in self._announced or step in self._doubts.values():
            return self._announced.get(step)
        try:
            root = self.audit.state_root(step).hex()
        except VerificationError:
            return None
        return None if root in (UNKNOWN, "") else root

    @property
    def released(self) -> str | None:
        """The root of the published weights; None where the run is not finished or its end was altered."""
        return None if self.final is None or _END in self._doubts.values() else self.final.released

    # -- hashes and heads -------------------------------------------------------------------------

    def _skip(self, gap: Gap) -> None:
        until = "" if gap.stop is None else f" to {gap.stop - 1}" if gap.stop > gap.first + 1 else ""
        rest = ", or what follows it," if gap.stop is None else ""
        unread = f"entry {gap.first}{until}{rest} cannot be read: {gap.reason}"
        self._report(ProtocolError("log-damaged", unread), gap.first, _LOST)
        self._whole, self._pending = False, None
        if gap.first == 0:
            self.unheld = 0
        if gap.stop is not None:
            self._lost += gap.stop - gap.first
            self.size = gap.stop

    def _compare(self) -> None:
        head = self._heads.get(self.size)
        if head is None or not self._whole:
            return
        right, stored = self._entries.root() == head.root, self._stored.root() == head.root
        if right or stored:
            self.confirmed.add(self.size)
        if right:
            altered = tuple(self._altered)
            self._name_altered("the stored hash was altered, the entry is as signed")
            for number in altered:
                self._doubts.pop(number, None)

        elif stored:
            self._name_altered("the entry was altered after it was signed")
        else:
            self._name_altered("neither of them leads to the root that was signed")

    def _name_altered(self, which: str) -> None:
        for number in self._altered:
            wrong = f"entry {number} does not have the hash that was stored with it: {which}"
            step = self._doubts.get(number, 0)
            self._report(ProtocolError("log-entry", wrong, evidence={"step": step} if step > 0 else {}), number, None)
        self._altered.clear()

    # -- the manifest's promises ------------------------------------------------------------------

    def _hold(self, number: int, entry: bytes, altered: bool) -> None:
        audit = self.audit
        steps, checkpoints, resumes = audit.steps, len(audit.checkpoints), len(audit.resumes)
        try:
            if self._lost:
                self._catch_up(entry)
            steps, checkpoints = audit.steps, len(audit.checkpoints)
            audit.read(entry)
        except WitnessError as error:
            if not altered:
                self._report(error, number, None if isinstance(error, VerificationError) else _LOST)
            self._mend(number, entry, altered)
            if number == 0:
                self.unheld = 0
        else:
            if audit.steps > steps:
                self._sample = entry
            if len(audit.checkpoints) > checkpoints and not altered and audit.steps in self._doubts.values():
                self._announced[audit.steps] = audit.state_root(audit.steps).hex()
        ended = self.final is None and audit.final is not None
        self.final = self.final or audit.final
        if altered and (audit.steps > steps or number == 1 or ended):
            self._doubts[number] = _END if ended else audit.steps
        # A recorder that was killed between an entry and its head resumes without signing that head.
        if self._pending is not None and len(audit.resumes) == resumes:
            self.owed.append(self._pending)
        signed = number <= 1 or len(audit.checkpoints) > checkpoints or self.final is not None
        self._pending = (number + 1, audit.steps) if signed else None

    def _mend(self, number: int, entry: bytes, altered: bool) -> None:
        """Goes on after an entry that the audit refused, if it is clear how."""
        audit = self.audit
        try:
            record: Any = parse_entry(entry)
        except ProtocolError:
            self._lost += 1
            return
        try:
            if audit.final is not None:
                self.unheld = number
            elif self._due():
                audit.read(encode(CheckpointEvent(audit.steps, audit.state_root(audit.steps).hex())))
                if not isinstance(record, CheckpointEvent):
                    audit.read(entry)
                elif not altered and record.step == audit.steps:
                    self._announced[record.step] = record.state_root
            elif isinstance(record, StepRecord) and record.step == audit.steps + 1:
                audit.read(self._stand_in(record.step, record.fingerprint, record.state_root))
            elif isinstance(record, FinalEvent):
                self.final, self.unheld = record, number + 1
            elif not isinstance(record, ResumeEvent | FaultEvent):
                self.unheld = number
        except WitnessError:
            self.unheld = number

    def _catch_up(self, entry: bytes) -> None:
        """Puts stand-ins where entries were lost, until `entry` is due; as many as were lost at most."""
        audit = self.audit
        record: Any = parse_entry(entry)
        if isinstance(record, InitRecord | FaultEvent):
            return
        if not audit.init_root:
            audit.read(encode(InitRecord(UNKNOWN)))
        target = record.steps if isinstance(record, FinalEvent) else record.step - isinstance(record, StepRecord)
        if target > min(audit.steps + self._lost, audit.manifest.steps):
            return  # too many are missing: the audit will say so
        shape = record.fingerprint if isinstance(record, StepRecord) else None
        self._announce(record)
        for step in range(audit.steps + 1, target + 1):
            known = record.state_root if step == target and isinstance(record, CheckpointEvent | FinalEvent) else None
            audit.read(self._stand_in(step, shape, known))
            self._announce(record)
        self._lost = 0

    def _announce(self, record: AfterManifest) -> None:
        """Stands in for the event of a kept state that was lost, unless it is the one that comes."""
        audit = self.audit
        if self._due() and not (isinstance(record, CheckpointEvent) and record.step == audit.steps):
            audit.read(encode(CheckpointEvent(audit.steps, audit.state_root(audit.steps).hex())))

    def _due(self) -> bool:
        """Whether the manifest promises a kept state here that was not announced yet."""
        audit = self.audit
        return audit.steps > 0 and audit.manifest.keeps(audit.steps) and audit.steps not in audit.checkpoints[-1:]

    def _stand_in(self, step: int, shape: Fingerprint | None, root: str | None) -> bytes:
        audit = self.audit
        if self._sample:
            shape = cast("StepRecord", parse_entry(self._sample)).fingerprint
        elif shape is None:
            shape = Fingerprint(f32(0.0), f32(0.0), (f32(0.0),), None)
        records = UNKNOWN
        if self._documents is not None:
            records = self._documents.records_digest(step, audit.indices(step)).hex()
        committed = (root or UNKNOWN) if audit.manifest.commits(step) else None
        return encode_trusted(StepRecord(step, records, UNKNOWN, {}, shape, committed))
