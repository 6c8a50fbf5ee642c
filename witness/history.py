"""What a run has already committed to, read and checked before anything is added to it.

A trainer who continues a damaged log signs a second history: whoever holds the earlier head can then prove equivocation
against an honest trainer. So a resume reads the whole log under the gradient-free checks, with every signed head, and
refuses where a head covers entries that are gone or other ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.checks import LogAudit
from protocol.errors import ProtocolError, WitnessError
from protocol.notes import open_head
from witness.rundir import RunDir, trainer_key

if TYPE_CHECKING:
    from protocol.corpus import Documents
    from protocol.manifest import Manifest
    from protocol.notes import Checkpoint
    from witness.logstore import LogStore


def require_unbroken(run: RunDir, log: LogStore, manifest: Manifest, documents: Documents) -> LogAudit:
    """Checks that the log holds together and is the one that every signed head of the run covers.

    Returns:
        The audit, for what it read.

    Raises:
        ProtocolError: `log-truncated`; or what is malformed in a head or an entry.
        VerificationError: `head-root`, `equivocation`, or the first gradient-free check that fails.
    """
    audit = LogAudit(documents)
    heads = [_head(run, size, manifest) for size in run.head_sizes()]
    audit.watch(heads)
    for entry in log.entries():
        audit.read(entry)
    newest = max((head.size for head in heads), default=0)
    if newest > audit.size:
        raise ProtocolError(
            "log-truncated",
            f"a head over {newest} entries is signed, and the log holds {audit.size}",
            evidence={"signed": newest, "found": audit.size, "path": str(run.log_path)},
        )
    return audit


def _head(run: RunDir, size: int, manifest: Manifest) -> Checkpoint:
    try:
        return open_head(run.read_head(size), [trainer_key(manifest)], manifest.origin)
    except WitnessError as error:
        error.evidence.setdefault("path", str(run.heads / f"{size:012}.note"))
        raise
