"""Hold a certificate, or a weights file, to the run's own log. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from protocol import checks
from protocol.certificate import Evidence
from protocol.errors import UsageError, VerificationError
from protocol.notes import open_head
from witness.data import open_stored
from witness.logreader import LogReader
from witness.rundir import RunDir, trainer_key
from witness.weights import read_weights


def audit_run(path: Path, size: int | None = None) -> checks.LogAudit:
    """All gradient-free checks over a run folder's first `size` entries, with every signed head among them.

    Raises:
        ProtocolError, VerificationError: the first thing that does not hold.
    """
    run = RunDir.open(path)
    audit = checks.LogAudit(open_stored(run.corpus).documents)
    manifest = run.manifest()
    key = trainer_key(manifest)
    sizes = [s for s in run.head_sizes() if size is None or s <= size]
    heads = [open_head(run.read_head(s), [key], manifest.origin) for s in sizes]
    audit.watch(heads)
    with LogReader(run.log_path) as log:
        for entry in log.entries(0, size if size is not None else sizes[-1] if sizes else 0):
            audit.read(entry)
    return audit


def hold_to_run(evidence: Evidence, path: Path) -> None:
    """Checks that a certificate is about this run's log, and that it owes no mandatory challenge.

    Raises:
        UsageError: `other-run`: neither run nor certificate is accused.
        VerificationError: `head-root`, `certificate`.
    """
    predicate = evidence.predicate
    manifest = RunDir.open(path).manifest()
    if manifest.run_id.hex() != predicate.run or manifest.key != predicate.trainer:
        raise UsageError(
            "other-run",
            "the certificate is about another run",
            evidence={"certificate": predicate.run, "folder": manifest.run_id.hex()},
        )
    if evidence.verdict == "diverged":
        return  # a log that fails its checks cannot confirm what it owes
    audit = audit_run(path, evidence.head.size)
    audit.finish(evidence.head)
    owed = checks.mandatory(audit, predicate.policy.outliers)
    if audit.steps != predicate.steps or tuple(owed) != predicate.mandatory:
        raise VerificationError(
            "certificate", "the certificate does not list the mandatory challenges that the log owes"
        )
    if checks.final_root(audit).hex() != predicate.final_state_root:
        raise VerificationError("certificate", "the certificate names another final state than the log")


def hold_weights(path: Path, run_path: Path, size: int | None = None) -> None:
    """Checks that a weights file is the one the run released.

    Args:
        path: of the weights file.
        run_path: of the run.
        size: entries that count: those that a certificate's head covers; None for all that are signed. What stands
            after a certified head was replayed by nobody.

    Raises:
        VerificationError: `released-weights`.
    """
    run = RunDir.open(run_path)
    audit = audit_run(run_path, size)
    if audit.final is None:
        raise VerificationError("released-weights", "the run is not finished there, so it released nothing")
    root = read_weights(path, run.manifest().pieces).root
    if root.hex() != audit.final.released:
        raise VerificationError(
            "released-weights",
            f"{path.name} does not hold the weights that the run released",
            evidence={"released": audit.final.released, "found": root.hex()},
        )
