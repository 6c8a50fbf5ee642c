"""What lies in a run's folder: what belongs there, what a crash left, and whether somebody is writing."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import ProtocolError, WitnessError
from witness.fsck.findings import Findings
from witness.rundir import RunDir

_TEMPORARY = re.compile(r"^\..*\.tmp$")
_KNOWN = {
    "": re.compile(r"^(log\.sqlite(-wal|-shm)?|heads|checkpoints|corpus|program|model\.safetensors|key|lock)$"),
    "heads": re.compile(r"^[0-9]{12,}\.note$"),
    "checkpoints": re.compile(r"^[0-9]{10,}\.state$"),
    "corpus": re.compile(r"^(corpus\.json|leaves|data|names|lines|t[12]-[a-z0-9.-]+\.places)$"),
}


@dataclass(slots=True)
class Listing:
    """The files of a run.

    Attributes:
        heads: sizes that heads are named after.
        states: steps that kept states are named after.
        others: files that do not belong to a run.
        bytes: of all its files.
        written: a process holds the run for writing.
    """

    heads: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    bytes: int = 0
    written: bool = False


def list_run(run: RunDir, findings: Findings) -> Listing:
    """Lists the folder; a part that may not be listed is a finding."""
    found = Listing(written=_is_written(run.path / "lock"))
    for folder, known in _KNOWN.items():
        for entry in _scan(run.path / folder, findings):
            path = run.path / folder / entry.name
            if not known.match(entry.name):
                found.others.append(path)
                continue
            found.bytes += entry.stat().st_size if entry.is_file() else 0
            if folder == "heads" and path == run.heads / f"{int(path.stem):012}.note":
                found.heads.append(int(path.stem))
            elif folder == "checkpoints" and path == run.checkpoint_path(int(path.stem)):
                found.states.append(int(path.stem))
            elif folder in ("heads", "checkpoints"):
                found.others.append(path)
    found.heads.sort()
    found.states.sort()
    return found


def list_program(run: RunDir, files: list[str], findings: Findings) -> list[Path]:
    """What lies among the program's files and is none of them; folders are not entered unless files belong there."""
    folders = {""} | {"/".join(parts[:n]) for parts in (f.split("/") for f in files) for n in range(1, len(parts))}
    belongs = folders | set(files)
    others: list[Path] = []

    for folder in sorted(folders):
        names = [entry.name for entry in _scan(run.program / folder, findings)]
        others += [run.program / folder / name for name in names if f"{folder}/{name}".lstrip("/") not in belongs]

    return others


def stray(path: Path) -> WitnessError:
    """What a file that does not belong to a run is."""
    if _TEMPORARY.match(path.name):
        return ProtocolError("leftover", f"{path.name} is a temporary file of a writer that was killed")
    return ProtocolError("unknown-file", f"{path.name} is not a file of a run")


def _scan(folder: Path, findings: Findings) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        missing = ProtocolError("file-missing", f"the folder {folder.name} cannot be listed: {error.strerror}")
        missing.__cause__ = error
        findings.add(missing, folder, action="restore the folder from a copy of the run")
        return []


def _is_written(lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
