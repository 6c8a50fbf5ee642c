"""Derive everything in a run directory again from stored bytes, and say all that is not as it must be.

What is derived: every log entry (strict parse, and the hash stored with it), every gradient-free
check that needs no program, every head's signature and root, every kept state (entries, pieces,
root), the corpus (leaves and every document's bytes), the program's files, the released weights.
What needs the program or a gradient - hyperparameters, the transitions themselves - is for `witness
verify`. Nothing is written, nothing of the run is executed, and no torch is needed.

`Report.document()`, and so `witness fsck --json`, has these keys:

| key | value |
| --- | --- |
| `run` | the run's id; null when the manifest cannot be read |
| `clean` | true when there is nothing but notes |
| `exit_status` | 0 clean, 1 damage, 2 no damage seen, but something may not be read |
| `findings` | list of `kind` (damage, unreadable, note), `code`, `file`, `message`, `step`, `entry`, `next` |
| `omitted` | code to number of findings beyond the first hundred of that code |
| `unchecked` | what damage made impossible to check, a line each |
| `counts` | `entries`, `unsigned_entries`, `heads`, `checkpoints`, `pieces`, `documents`, `program_files`, `bytes` |
"""

from __future__ import annotations

from pathlib import Path

from witness.fsck.examination import Examination
from witness.fsck.findings import Counts, Finding, Report
from witness.fsck.meter import Progress
from witness.rundir import RunDir

__all__ = ["Counts", "Finding", "Progress", "Report", "fsck", "open_run"]


def fsck(run: RunDir, progress: Progress | None = None, data: Path | None = None) -> Report:
    """Examines a run directory.

    Args:
        run: the directory; it may be damaged, hostile, or be written at the moment.
        progress: told as bytes are read.
        data: where the corpus lies now, if it was moved.

    Returns:
        All findings, and the counts of what was derived again. Damage never raises.
    """
    return Examination(run, progress, data).report()


def open_run(path: Path) -> RunDir:
    """A directory to examine, which need not have its log any more.

    Raises:
        UsageError: `run-missing`, when nothing in it looks like a run.
    """
    run = RunDir(path)
    return run if run.heads.is_dir() or run.checkpoints.is_dir() else RunDir.open(path)
