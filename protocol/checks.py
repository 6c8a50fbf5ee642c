"""The numbered gradient-free checks: everything about a run that needs no gradient, on every step, with certainty.

`LogAudit` reads the log once, entry by entry, and raises at the first thing that does not hold. Numbers are the spec's:

 1. entry 0 is the canonical manifest of the expected run, and a signed head covers it;
 2. entry 1 is the initial state;
 3. steps are 1, 2, 3... with nothing left out, added or reordered, and none beyond the promise;
 4. the state root stands at every step where the manifest promises one, and nowhere else;
 5. the records drawn are what corpus, seed and step number say;
 6. a kept state is announced wherever the manifest promises one, with the root of its step;
 7. resumes and faults speak of the step before them;
 8. the fingerprint has the declared shape;
 9. the end is announced once, last, at the promised step, with the last root;
10. every signed head is the root of this log at its size;
11. hyperparameters are what the program's pure function says (computed in the sandbox, compared here);
12. every ledger is the tree over its list, and the list of raw documents is that of the corpus leaves.

Specified in spec/log.md, sections 3 to 6, and spec/challenge.md, sections 6 and 7.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protocol import merkle
from protocol.corpus import Documents
from protocol.encoding import decode, encode, encode_trusted, float_of, parse_float
from protocol.errors import IncompleteError, ProtocolError, VerificationError
from protocol.manifest import Manifest, parse_manifest
from protocol.notes import Checkpoint
from protocol.records import (
    MAX_ENTRY,
    CheckpointEvent,
    FaultEvent,
    FinalEvent,
    InitRecord,
    ResumeEvent,
    StepRecord,
    parse_entry,
)
from protocol.schedule import Schedule


class LogAudit:
    """Reads a log entry by entry and holds it to its manifest.

    What it keeps of a step is about 90 bytes, so a million steps fit in a fraction of the memory of the log.

    Args:
        documents: the corpus, already compared with the manifest by the caller through `bind`; None skips check 5
            until `bind` is called, and a log that was read without it never passes `finish`.
    """

    def __init__(self, documents: Documents | None = None) -> None:
        self._documents = documents
        self._schedule: Schedule | None = None
        self._frontier = merkle.Frontier()
        self._manifest: Manifest | None = None
        self._head_roots: dict[int, bytes] = {}
        self._checkpoint_due = False
        self._last: StepRecord | None = None
        self.init_root = b""
        self.final: FinalEvent | None = None
        self.roots = bytearray()
        """32 bytes for each step; zeros where none is committed."""
        self.losses, self.updates = array("d"), array("d")
        """Loss, and norm over all update norms, of each step."""
        self.entry_of = array("Q")
        """Log index of each step's record."""
        self.hyperparameters: list[bytes] = []
        """Canonical encoding of each step's row."""
        self.checkpoints: list[int] = []
        self.resumes: list[ResumeEvent] = []
        self.faults: list[FaultEvent] = []

    # -- reading ----------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The manifest, once entry 0 was read."""
        if self._manifest is None:
            raise ProtocolError("log-empty", "the log holds no manifest")
        return self._manifest

    @property
    def size(self) -> int:
        """Entries read so far."""
        return self._frontier.size

    @property
    def steps(self) -> int:
        """Steps read so far."""
        return len(self.entry_of)

    def root(self) -> bytes:
        """RFC 9162 root over what was read."""
        return self._frontier.root()

    def watch(self, heads: Iterable[Checkpoint]) -> None:
        """Names the signed heads to compare; called before the entries are read (check 10).

        Raises:
            VerificationError: `equivocation`; `head-root`, for a head over no entry that has another root than nothing.
        """
        for head in heads:
            if head.size == 0 and head.root != merkle.root([]):
                raise VerificationError(
                    "head-root", "a signed head over no entry is no head of any log", evidence={"size": 0}
                )
            known = self._head_roots.setdefault(head.size, head.root)
            if known != head.root:
                raise VerificationError(
                    "equivocation",
                    f"two signed heads over {head.size} entries of one log",
                    evidence={"size": head.size, "roots": [known.hex(), head.root.hex()]},
                )

    def read(self, entry: bytes) -> None:
        """Reads the next entry.

        Raises:
            ProtocolError: for malformed entries.
            VerificationError: for the first check that fails, with its step.
        """
        if self._manifest is None:
            self._read_manifest(entry)
        else:
            self._read_entry(entry)
        self._frontier.append(entry)
        expected = self._head_roots.get(self._frontier.size)
        if expected is not None and expected != self._frontier.root():
            raise VerificationError(  # check 10
                "head-root",
                f"the signed head over {self.size} entries is not a head of this log",
                evidence={"size": self.size},
            )

    def _read_manifest(self, entry: bytes) -> None:
        self._manifest = manifest = parse_manifest(entry)  # check 1
        if self._documents is not None:
            self._documents.check(manifest.corpus)
            self._schedule = Schedule(bytes.fromhex(manifest.seed.value), self._documents.samples, manifest.batch_size)

    def _read_entry(self, entry: bytes) -> None:
        record = parse_entry(entry)
        if self.final is not None:
            raise VerificationError("final-event", "the log goes on after its end", evidence={"entry": self.size})
        if (self.size == 1) is not isinstance(record, InitRecord):  # check 2
            raise VerificationError(
                "step-order", "entry 1, and no other, is the initial state", evidence={"entry": self.size}
            )
        if self._checkpoint_due and not isinstance(record, CheckpointEvent):  # check 6
            raise VerificationError(
                "checkpoint-event",
                f"no state is kept after step {self.steps}, where the manifest promises one",
                evidence={"step": self.steps},
            )
        if isinstance(record, StepRecord):
            self._read_step(record)
        elif isinstance(record, InitRecord):
            self.init_root = bytes.fromhex(record.state_root)
        elif isinstance(record, CheckpointEvent):
            self._read_checkpoint(record)
        elif isinstance(record, FinalEvent):
            self._read_final(record)
        else:
            self._read_event(record)

    def _read_step(self, record: StepRecord) -> None:
        step, manifest = self.steps + 1, self._manifest
        if record.step != step or manifest is None or step > manifest.steps:  # check 3
            raise VerificationError(
                "step-order",
                f"entry {self.size} is step {record.step} where step {step} is due",
                evidence={"step": step, "found": record.step},
            )
        if (record.state_root is not None) != manifest.commits(step):  # check 4
            raise VerificationError(
                "state-root-missing", f"step {step} does not commit as the manifest promises", evidence={"step": step}
            )
        if self._schedule is not None and self._documents is not None:  # check 5
            drawn = self._schedule.indices(step)
            if self._documents.records_digest(step, drawn).hex() != record.records:
                raise VerificationError(
                    "records-digest",
                    f"step {step} did not draw what corpus, seed and schedule say",
                    evidence={"step": step, "samples": drawn[:8]},
                )
        fingerprint = record.fingerprint
        previous = self._last.fingerprint if self._last else fingerprint
        shape = len(fingerprint.update_norms) == len(previous.update_norms) <= 4096
        if not shape or (fingerprint.probe is not None) != (previous.probe is not None):  # check 8
            raise VerificationError(
                "fingerprint-shape", f"the fingerprint of step {step} has another shape", evidence={"step": step}
            )
        if fingerprint.probe is not None and manifest.probe_samples == 0:
            raise VerificationError(
                "fingerprint-shape", f"step {step} shows a probe the manifest does not declare", evidence={"step": step}
            )
        self.roots += bytes.fromhex(record.state_root) if record.state_root is not None else bytes(32)
        self.losses.append(float_of(fingerprint.loss))
        self.updates.append(total_norm([float_of(bits) for bits in fingerprint.update_norms]))
        self.entry_of.append(self.size)
        row = encode_trusted(record.hyperparameters)
        shared = self.hyperparameters and self.hyperparameters[-1] == row  # constant schedules cost nothing
        self.hyperparameters.append(self.hyperparameters[-1] if shared else row)
        self._last = record
        self._checkpoint_due = manifest.keeps(step)

    def _read_checkpoint(self, event: CheckpointEvent) -> None:
        if event.step != self.steps or event.state_root != self.state_root(event.step).hex():
            raise VerificationError(
                "checkpoint-event",
                f"the state kept after step {self.steps} is not the one its record commits to",
                evidence={"step": self.steps},
            )
        self._checkpoint_due = False
        self.checkpoints.append(event.step)

    def _read_event(self, event: ResumeEvent | FaultEvent) -> None:  # check 7
        if isinstance(event, ResumeEvent):
            if event.step != self.steps or event.checkpoint > event.step:
                raise VerificationError(
                    "event",
                    f"a resume after step {event.step} stands after step {self.steps}",
                    evidence={"step": self.steps},
                )
            self.resumes.append(event)
        else:
            if not 1 <= event.step <= self.steps:
                raise VerificationError(
                    "event",
                    f"a fault at step {event.step} is declared after step {self.steps}",
                    evidence={"step": self.steps},
                )
            self.faults.append(event)

    def _read_final(self, event: FinalEvent) -> None:  # check 9
        if (
            event.steps != self.steps
            or self.steps != self.manifest.steps
            or event.state_root != self.state_root(self.steps).hex()
        ):
            raise VerificationError(
                "final-event",
                f"the run announces its end at step {event.steps}; {self.steps} of {self.manifest.steps} steps "
                "are recorded",
                evidence={"step": self.steps},
            )
        self.final = event

    def finish(self, head: Checkpoint) -> None:
        """Closes the audit: the log that was read is exactly the one `head` signs.

        Raises:
            VerificationError: `head-root`, `corpus-root`, `step-order`.
            IncompleteError: `head-beyond`, when a head that was named to `watch` covers entries that were not shown.
        """
        if head.size != self.size or head.root != self.root():
            raise VerificationError(
                "head-root",
                f"{self.size} entries were read; the head signs {head.size} others",
                evidence={"size": head.size},
            )
        beyond = max(self._head_roots, default=0)
        if beyond > self.size:
            raise IncompleteError(
                "head-beyond",
                f"a signed head covers {beyond} entries, of which {self.size} were shown: the rest may contradict it",
                evidence={"size": beyond, "shown": self.size},
            )
        if self._schedule is None:
            raise VerificationError("corpus-root", "the log was read without its corpus, so check 5 did not run")
        if not self.init_root:
            raise VerificationError(
                "step-order", "the log ends before the initial state", evidence={"entry": self.size}
            )

    # -- what was read ----------------------------------------------------------------------------

    def state_root(self, step: int) -> bytes:
        """The committed root after `step` (0: the initial state).

        Raises:
            VerificationError: `state-root-missing`, where `commit_every` skipped it.
        """
        root = self.init_root if step == 0 else bytes(self.roots[32 * (step - 1) : 32 * step])
        if not 0 <= step <= self.steps or root == bytes(32):
            raise VerificationError(
                "state-root-missing", f"no state root is committed at step {step}", evidence={"step": step}
            )
        return root

    def indices(self, step: int) -> list[int]:
        """The samples that `step` draws."""
        if self._schedule is None:
            raise VerificationError("corpus-root", "the log was read without its corpus")
        return self._schedule.indices(step)

    @property
    def documents(self) -> Documents:
        """The corpus the log was read with."""
        if self._documents is None:
            raise VerificationError("corpus-root", "the log was read without its corpus")
        return self._documents


def final_root(audit: LogAudit) -> bytes:
    """The root after the last recorded step; zeros where none is committed: a run can stop between committed steps."""
    return audit.state_root(audit.steps) if audit.steps and audit.manifest.commits(audit.steps) else bytes(32)


def check_hyperparameters(audit: LogAudit, first: int, computed: Sequence[Mapping[str, Any]]) -> None:
    """Check 11: the rows recorded from step `first` on are the ones the program's pure function gives.

    Raises:
        VerificationError: `hyperparameters`, with step, name and both values.
    """
    for step, row in enumerate(computed, first):
        if audit.hyperparameters[step - 1] != encode(row):
            recorded = decode(audit.hyperparameters[step - 1], dict[str, Any], limit=MAX_ENTRY)
            name = next(n for n in sorted(recorded.keys() | row.keys()) if recorded.get(n) != row.get(n))
            raise VerificationError(
                "hyperparameters",
                f"step {step} records {name} = {_show(recorded.get(name))}, the program says {_show(row.get(name))}",
                evidence={"step": step, "name": name, "recorded": recorded.get(name), "computed": row.get(name)},
            )


def _show(form: object) -> str:
    if isinstance(form, str) and form.startswith("f64:"):
        return repr(parse_float(form))
    return str(form)


def total_norm(norms: Sequence[float]) -> float:
    """The norm over the norms of a step's parameter groups; a single one stays as it is.

    Which steps stand out follows from it, on both sides alike: so it is made of operations that IEEE 754 rounds
    correctly. `sum` of floats is another function from Python 3.12 on, and `** 0.5` is libm's.
    """
    if len(norms) == 1:
        return norms[0]
    total = 0.0
    for norm in norms:
        total += norm * norm
    return math.sqrt(total)


def outliers(audit: LogAudit, count: int) -> list[int]:
    """The steps that stand out: the `count` largest updates and the `count` largest rises of the loss, NaN before all.

    They are challenged besides the random draws, never instead of them: a cheat knows this rule too (attack A05).
    """

    def rank(values: Sequence[float]) -> list[int]:
        order = sorted(
            range(len(values)), key=lambda i: (values[i] == values[i], -values[i] if values[i] == values[i] else 0.0, i)
        )
        return [i + 1 for i in order[:count]]

    rises = array("d", (b - a for a, b in zip(audit.losses, audit.losses[1:], strict=False)))
    return sorted({*rank(audit.updates), *(step + 1 for step in rank(rises))})


def mandatory(audit: LogAudit, outlier_count: int) -> list[tuple[int, str]]:
    """The challenges every verifier makes, `(step, reason)` ascending; step 0 is the initial state, from its seed."""
    reasons: dict[int, str] = {0: "init"}
    if audit.steps:
        reasons |= dict.fromkeys(outliers(audit, outlier_count), "outlier")
        reasons |= {fault.step: "fault" for fault in audit.faults}
        reasons |= {resume.step + 1: "resume" for resume in audit.resumes if resume.step < audit.steps}
        reasons |= {1: "first", audit.steps: "last"}
    return sorted(reasons.items())
