"""One challenge: open the committed state before a step, replay, and hold what comes out to what was committed.

Where something differs, the report names it: which part of the record, which tensor, its first differing element with
both values, and the first step since the last kept state that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.checks import LogAudit
from protocol.comparison import Comparison, require_attributable
from protocol.corpus import assemble
from protocol.errors import CODES, IncompleteError, ProtocolError, VerificationError, WitnessError
from protocol.leaves import piece_count
from protocol.opening import StateOpening
from protocol.records import StepRecord, parse_entry
from protocol.required import Result
from protocol.session import Challenge, probe_of, segment, whole_documents
from protocol.statetree import Entry, Table, first_difference, ranges
from protocol.verifying import VerifierSession
from witness.asking import Ask
from witness.difference import first_element
from witness.documents import check_document
from witness.outcomes import result_of
from witness.replay import Input, ReplayedState, ReplayedStep, Replayer

FIELDS = ("batch", "state_root", "fingerprint", "hyperparameters")
FAILURES = ("replay-batch", "replay-state", "replay-fingerprint", "replay-hyperparameters")
COMPUTED = frozenset({*FAILURES, "init-diverged", "released-weights", "replay-failed"})
"""Divergences of what was computed here: only these can be the fault of the machine."""


class Challenger:
    """Runs the challenges of a session whose nonce is revealed.

    Args:
        session: with its audit.
        ask: asks the prover.
        replayer: of the run.
        comparison: on what ground this machine is held to the recorded bits.
        entry: gives a log entry by index, as it was read and checked.
    """

    def __init__(
        self,
        session: VerifierSession,
        ask: Ask,
        replayer: Replayer,
        comparison: Comparison,
        entry: Callable[[int], bytes],
    ) -> None:
        if session.audit is None:
            raise RuntimeError("the log was not read")
        self._session, self._ask, self._replayer, self._entry = session, ask, replayer, entry
        self._audit: LogAudit = session.audit
        self._comparison = comparison
        self.documents: set[int] = set()
        """Documents that were opened whole and are what leaf and ledgers say."""
        # Where the operation probe had to settle a difference between the machines, a step that diverges accuses nobody
        # unless the probe stands for everything it used.
        replayer.trace = bool(comparison.settled)

    def state_bytes(self, step: int) -> int:
        """Bytes of the state kept nearest to `step`, from its opened table."""
        kept = max((s for s in self._audit.checkpoints if s <= step), default=0)
        try:
            return sum(entry.size for entry in self._table(kept)[1].entries)
        except WitnessError:
            return 0  # an estimate; the challenge itself will say what is wrong

    def run(self, challenge: Challenge) -> Result:
        """The outcome of one challenge; never raises for what the prover or the program does."""
        try:
            try:
                if challenge.step == 0:
                    self._init()
                else:
                    self._segment(challenge.step)
            except VerificationError as error:
                if error.code in COMPUTED:  # a refusal, or something else opened, has nothing to do with this machine
                    probe = self._audit.manifest.operations
                    require_attributable(self._comparison, probe, self._replayer.traced, error)
                elif error.code == "refused" and self._session.held:
                    self._excuse_own(error)
                raise
        except WitnessError as error:
            if isinstance(error, VerificationError | ProtocolError) and challenge.step:
                error.evidence |= self._localise(challenge.step, error.code)
            error.evidence.setdefault("step", challenge.step)
            return result_of(error)
        return Result("reproduced")

    def _excuse_own(self, error: VerificationError) -> None:
        """A folder in the verifier's hands is opened by its own machine: what that cannot do accuses nobody.

        Raises:
            IncompleteError: what keeps this machine from rebuilding a state.
        """
        code = str(error.evidence.get("prover_code"))
        if code in ("rebuild-diverged", "replay-failed"):
            require_attributable(self._comparison, self._audit.manifest.operations, (), error)
            if self._comparison.settled:  # which operations the rebuilding used is not known here
                first = self._comparison.settled[0].text()
                raise IncompleteError("operation-unprobed", f"{error}; but {first}", evidence=error.evidence) from error
        elif code in CODES and CODES[code].family == "cannot tell":
            raise IncompleteError(code, str(error), evidence=error.evidence) from error
        elif code == "disk-full":
            raise IncompleteError("replay-stopped", str(error), evidence=error.evidence) from error

    # -- challenges -------------------------------------------------------------------------------

    def _init(self) -> None:
        built = self._replayer.init()
        if built.table.root != self._audit.init_root:
            raise VerificationError(
                "init-diverged",
                "the initial state is not what the program builds from the seed",
                evidence=self._name(0, built),
            )

    def _segment(self, step: int) -> None:
        before, after = segment(self._audit.manifest, step)
        after = min(after, self._audit.steps)
        entries, buffers = self.open_state(before)
        for replayed in self._execute(entries, buffers, before + 1, after, [after]):
            self._hold(replayed)

    def _execute(
        self, entries: list[Entry], buffers: dict[str, bytes], first: int, last: int, keep: list[int]
    ) -> list[ReplayedStep]:
        inputs = [self._input(step) for step in range(first, last + 1)]
        return self._replayer.steps(entries, buffers, first, inputs, keep)

    def _hold(self, replayed: ReplayedStep) -> None:
        """Compares every field of a step's record with the replay."""
        record = self._record(replayed.step)
        committed = record.state_root
        state = replayed.state
        found = {
            "batch": record.batch != replayed.batch.hex(),
            "state_root": state is not None and committed is not None and state.table.root.hex() != committed,
            "fingerprint": record.fingerprint != replayed.fingerprint,
            "hyperparameters": record.hyperparameters != dict(replayed.hyperparameters),
        }
        differing = [name for name in FIELDS if found[name]]
        if not differing:
            self._hold_released(replayed)
            return
        code = FAILURES[FIELDS.index(differing[0])]
        evidence: dict[str, Any] = {"step": replayed.step, "fields": differing}
        if found["fingerprint"]:
            parts = ("loss", "gradient_norm", "update_norms", "probe")
            evidence["fingerprint"] = [
                p for p in parts if getattr(record.fingerprint, p) != getattr(replayed.fingerprint, p)
            ]
        if state is not None and found["state_root"]:
            evidence |= self._name(replayed.step, state)
        where = f", first in {evidence['tensor']}" if "tensor" in evidence else ""
        raise VerificationError(
            code, f"step {replayed.step} replays differently: {', '.join(differing)}{where}", evidence=evidence
        )

    def _hold_released(self, replayed: ReplayedStep) -> None:
        """Compares what the log announces as the published weights with those of the replayed last state."""
        final = self._audit.final
        if final is None or replayed.state is None or replayed.step != self._audit.steps:
            return
        weights = replayed.state.table.released().root.hex()
        if final.released != weights:
            raise VerificationError(
                "released-weights",
                "the log announces other weights as published than the run ends with",
                evidence={"step": replayed.step, "announced": final.released, "replayed": weights},
            )

    def _record(self, step: int) -> StepRecord:
        record = parse_entry(self._entry(self._audit.entry_of[step - 1]))
        if not isinstance(record, StepRecord):
            raise TypeError("the audit took another entry for a step's record")
        return record

    def _input(self, step: int) -> Input:
        opening = self._session.records(step)
        while not self._ask(opening.request(), opening.take):
            pass
        documents = self._audit.documents
        for document in whole_documents(self._audit, step):
            leaf = documents.leaves[document]
            data = b"".join(opening.pieces[document, piece] for piece in range(piece_count(leaf)))
            check_document(leaf, data, self._session.places, step)
            self.documents.add(document)

        def sample(index: int) -> bytes:
            return assemble(documents, opening.pieces, index)

        return Input([sample(i) for i in self._audit.indices(step)], [sample(i) for i in probe_of(self._audit, step)])

    # -- opened states ----------------------------------------------------------------------------

    def _table(self, step: int) -> tuple[StateOpening, Table]:
        opening = self._session.opening(step)
        while not self._ask(opening.table_request(), opening.take_table):
            pass
        if opening.table is None:
            raise RuntimeError("take_table said that it is there")
        return opening, opening.table

    def open_state(self, step: int) -> tuple[list[Entry], dict[str, bytes]]:
        """Entries and bytes of the committed state after `step`, every piece checked."""
        opening, table = self._table(step)
        size, most = sum(entry.size for entry in table.entries), self._replayer.largest_state
        if size > most:
            raise IncompleteError(
                "replay-stopped",
                f"the state after step {step} has {size} bytes; states of up to {most} are replayed here",
                evidence={"step": step, "bytes": size},
            )
        parts: dict[str, bytearray] = {entry.name: bytearray() for entry in table.entries}
        done = False
        while not done:
            pieces, done = self._ask(opening.pieces_request(), opening.take_pieces)
            for name, piece in pieces:
                parts[name] += piece
        return list(table.entries), {name: bytes(part) for name, part in parts.items()}

    # -- naming what differs ----------------------------------------------------------------------

    def _name(self, step: int, state: ReplayedState) -> dict[str, Any]:
        """Tensor, element and both values of the first difference, if the prover opens the state it committed to."""
        try:
            opening, committed = self._table(step)
            difference = first_difference(committed, state.table)
            if difference is None:
                return {}
            name, start, what = difference
            found: dict[str, Any] = {"tensor": name, "difference": what}
            entry = next((e for e in committed.entries if e.name == name), None)
            if what != "bytes" or entry is None:
                return found
            index = committed.first[name] + [a for a, _ in ranges(entry, committed.pieces)].index(start)
            pieces, _ = self._ask(opening.pieces_request(index), opening.take_pieces)
            theirs = pieces[0][1]
            element = first_element(entry, start, theirs, state.buffers[name][start : start + len(theirs)])
            if element is not None:
                found |= {"element": element[0], "committed": element[1], "replayed": element[2]}
        except WitnessError as error:
            return {"tensor": "unknown", "why": f"the prover does not open the state after step {step}: {error.code}"}
        return found

    def _localise(self, step: int, code: str) -> dict[str, Any]:
        """Executes from the last kept state before `step` and names the first step whose committed root differs."""
        kept = max((s for s in self._audit.checkpoints if s < step), default=0)
        last = min(segment(self._audit.manifest, step)[1], self._audit.steps)
        committed = [s for s in range(kept + 1, last + 1) if self._audit.manifest.commits(s)]
        if code == "unanswered":  # whoever let the time pass would let it pass again
            return {"searched_from": kept, "search_ended": code}
        try:
            entries, buffers = self.open_state(kept)
            for replayed in self._execute(entries, buffers, kept + 1, last, committed):
                if replayed.state is not None and replayed.state.table.root != self._audit.state_root(replayed.step):
                    return {"first_differing_step": replayed.step, "searched_from": kept}
        except WitnessError as error:
            return {"searched_from": kept, "search_ended": error.code}
        return {"searched_from": kept}
