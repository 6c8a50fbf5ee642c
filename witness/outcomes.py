"""From errors to outcomes: wrong or malformed is diverged, cannot tell is incomplete; and what readers should know."""

from __future__ import annotations

from typing import Any

from protocol import checks
from protocol.encoding import MAX_INTEGER, Struct
from protocol.errors import IncompleteError, ProtocolError, UsageError, VerificationError, WitnessError
from protocol.manifest import Manifest
from protocol.required import Result

NOT_RUN = Result("incomplete", "not-run", "not run")


def result_of(error: WitnessError) -> Result:
    """The outcome that an error means: wrong or malformed is diverged, cannot tell is incomplete."""
    outcome: Any = "incomplete" if isinstance(error, IncompleteError | UsageError) else "diverged"
    evidence = {ascii(name)[1:-1][:200]: _plain(value) for name, value in error.evidence.items()}
    return Result(outcome, error.code, str(error)[:4000], evidence)


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | str) or (isinstance(value, int) and abs(value) <= MAX_INTEGER):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Struct):
        return str(value)
    return str(value)


_CHECK_OF_CODE = {
    "manifest": "manifest",
    "weak-key": "manifest",
    "corpus-root": "records",
    "corpus-leaves": "records",
    "records-digest": "records",
    "step-order": "step-order",
    "state-root-missing": "state-roots",
    "checkpoint-event": "checkpoints",
    "event": "events",
    "fingerprint-shape": "fingerprints",
    "final-event": "final",
    "head-root": "heads",
    "equivocation": "heads",
    "ledger-root": "ledgers",
    "ledger-documents": "ledgers",
    "places": "ledgers",
    "bad-signature": "heads",
    "note-unsigned": "heads",
    "head-origin": "heads",
}


def failed_check(error: WitnessError) -> str:
    """The gradient-free check that an error belongs to."""
    return _CHECK_OF_CODE.get(
        error.code, "manifest" if isinstance(error, ProtocolError | VerificationError) else "heads"
    )


def run_notes(audit: checks.LogAudit, manifest: Manifest) -> list[str]:
    """What a reader of any certificate over this run should know."""
    notes = []
    nan = [step for step, loss in enumerate(audit.losses, 1) if loss != loss]
    if nan:
        notes.append(f"the loss is NaN at {len(nan)} steps, first at step {nan[0]}")
    if audit.final is None:
        notes.append(f"the run is not finished: {audit.steps} of {manifest.steps} promised steps are recorded")
    if audit.resumes:
        notes.append(f"the run was resumed after steps {', '.join(str(r.step) for r in audit.resumes[:20])}")
    if audit.faults:
        notes.append(f"the trainer declares faults at steps {', '.join(str(f.step) for f in audit.faults[:20])}")
    still = sum(1 for update in audit.updates if update == 0)
    if still:
        notes.append(f"{still} steps changed no parameter")
    if manifest.seed.source == "own":
        notes.append("the trainer chose the seed itself and could have tried many")
    return notes
