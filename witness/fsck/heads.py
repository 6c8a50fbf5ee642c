"""The stored heads: who signed them, and whether they are heads of this run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from protocol.checks import LogAudit
from protocol.errors import ProtocolError, VerificationError, WitnessError
from protocol.manifest import Manifest
from protocol.notes import Checkpoint, open_head
from witness.fsck.findings import Findings
from witness.logreader import require_file
from witness.rundir import RunDir, trainer_key

HEAD = "restore it from a copy; the heads over longer logs still bind the same entries"


def open_heads(
    run: RunDir, sizes: Iterable[int], manifest: Manifest, altered: bool, findings: Findings
) -> tuple[dict[int, Checkpoint], bool]:
    """Opens every stored head.

    A head's origin is the run's id, the hash of the manifest. When the manifest does not have the hash that was stored
    with it, and no head names its id, then the manifest was altered after the heads were signed; otherwise heads of
    another id are another run's.



    Args:
        run: the directory.
        sizes: that the heads are named after.
        manifest: as it stands in the log.
        altered: it does not have the hash that was stored with it.
        findings: hears what is wrong.

    Returns:
        The heads that the trainer's key signed, by size, and whether the manifest is the one that they were signed for.
    """
    heads: dict[int, Checkpoint] = {}
    foreign: list[tuple[Path, Checkpoint]] = []
    signed = LogAudit()
    for size in sizes:
        path = run.heads / f"{size:012}.note"
        try:
            require_file(path)
            head = open_head(run.read_head(size), [trainer_key(manifest)])
            if head.origin != manifest.origin:
                foreign.append((path, head))
                continue
            signed.watch([head])
            heads[head.size] = head
            if head.size != size:
                raise ProtocolError("head-name", f"{path.name} is the head over {head.size} entries")
        except WitnessError as error:
            findings.add(error, path, action=None if error.code == "equivocation" else HEAD)
    if altered and foreign and not heads:
        return {head.size: head for _, head in foreign}, False
    for path, head in foreign:
        findings.add(
            VerificationError("head-origin", f"it is a head of another run, {head.origin[:100]}"), path, action=HEAD
        )
    return heads, True
