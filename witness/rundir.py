"""The run directory on disk.

    log.sqlite              the append-only log: manifest, initial state, steps, events
    heads/<size>.note       signed heads (C2SP checkpoints) over the first <size> entries
    checkpoints/<step>.state   kept states
    corpus/                 document leaves, and the data or where it lies
    program/                the program's source files
    model.safetensors       the released weights, once the run is finished
    key                     the trainer's private key, when none was named (mode 0600)
    lock                    held by the process that writes

Everything but the log is written atomically; the log commits each entry. Whatever a crash leaves can be read and
continued. Nothing here needs torch.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import ProtocolError, UsageError, WitnessError
from protocol.keys import PublicKey, SigningKey, parse_signing_key, parse_vkey
from protocol.manifest import MAX_SOURCE, Manifest, check_source, parse_manifest
from protocol.notes import Checkpoint, sign_head
from protocol.records import AfterManifest, CheckpointEvent, FinalEvent, parse_entry
from protocol.statetree import Entry, Pieces
from witness.statefile import disk_error, open_regular, read_state, write_bytes

if TYPE_CHECKING:
    from witness.logstore import LogStore

_HEAD_NAME = re.compile(r"^[0-9]{12}\.note$")
MAX_HEAD = 1 << 16
_EARLY = 4
"""Entries that there can be before the second step: manifest, initial state, a step and its state."""


class RunDir:
    """Paths and readers of one run directory.

    Args:
        path: of the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path = path / "log.sqlite"
        self.heads = path / "heads"
        self.checkpoints = path / "checkpoints"
        self.corpus = path / "corpus"
        self.program = path / "program"
        self.released = path / "model.safetensors"
        self.key = path / "key"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Makes an empty run directory.

        What a start that failed or was killed left behind, before it committed to anything, is taken as empty.

        Raises:
            UsageError: `run-exists`, unless the folder is missing or empty; `disk`, `disk-full`.
        """
        run = cls(path)
        try:
            if path.exists() and not (path.is_dir() and run._is_unbegun()):
                raise UsageError("run-exists", f"{path} exists and is not empty", next_action=run.way_out())
            for folder in (path, run.heads, run.checkpoints, run.corpus, run.program):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(path, error) from None
        return run

    def _is_unbegun(self) -> bool:
        """Whether everything here is ours and nothing was committed: no entry in the log, no head, no state."""
        ours = {p.name for p in (self.heads, self.checkpoints, self.corpus, self.program, self.key)} | {"lock"}
        log = {self.log_path.name + suffix for suffix in ("", "-wal", "-shm", "-journal")}
        found = {p.name for p in self.path.iterdir()}
        if not found <= ours | log or self.head_sizes() or self.kept_steps():
            return False
        if not self.log_path.exists():
            return True
        with self.log() as entries:
            return entries.size == 0

    def way_out(self) -> str | None:
        """What to do about a run that ended before its second step, as one does whose program is refused there.

        Until then a program has not shown that its steps follow from its state; a mended one is another run's.
        """
        from witness.logreader import LogReader

        try:
            with LogReader(self.log_path) as log:
                if log.size() > _EARLY:
                    return None
                last = parse_entry(list(log.entries(1))[-1]) if log.size() > 1 else None
        except (WitnessError, OSError):
            return None
        if isinstance(last, FinalEvent):
            return None
        return (
            f"it holds a run that ended before its second step: if its program was refused, or has been changed since, "
            f"delete {self.path} and start again; otherwise continue with --resume"
        )

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Opens an existing one.

        Raises:
            UsageError: `run-missing`.
        """
        if not (path / "log.sqlite").is_file():
            stopped = "nothing was committed to yet: start the run again, without --resume"
            raise UsageError(
                "run-missing",
                f"{path} is not a run directory (it has no log.sqlite)",
                next_action=stopped if (path / "lock").exists() else None,
            )
        return cls(path)

    def lock(self) -> None:
        """Holds the run for writing until the process ends or `unlock`.

        Raises:
            UsageError: `run-locked`, `disk`, `disk-full`.
        """
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise disk_error(self.path / "lock", error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise UsageError("run-locked", f"another process is writing {self.path}") from None
        self._lock = handle

    def unlock(self) -> None:
        """Lets go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def log(self) -> LogStore:
        """The log, opened."""
        from witness.logstore import LogStore

        return LogStore(self.log_path)

    def manifest(self) -> Manifest:
        """The manifest, from the log's first entry.

        Raises:
            ProtocolError: `log-empty`, `log-damaged`, or what is wrong with the entry.
        """
        from witness.logreader import LogReader

        with LogReader(self.log_path) as log:
            first = log.first()
        if first is None:
            raise ProtocolError("log-empty", f"{self.log_path} holds no manifest")
        return parse_manifest(first)

    # -- heads ------------------------------------------------------------------------------------

    def head_sizes(self) -> list[int]:
        """Sizes of the stored heads, ascending."""
        return (
            sorted(int(p.name[:12]) for p in self.heads.iterdir() if _HEAD_NAME.match(p.name))
            if self.heads.is_dir()
            else []
        )

    def read_head(self, size: int) -> bytes:
        """The signed note over the first `size` entries."""
        return self._read(self.heads / f"{size:012}.note", MAX_HEAD)

    def latest_head(self) -> bytes:
        """The newest signed head.

        Raises:
            ProtocolError: `head-missing`.
        """
        sizes = self.head_sizes()
        if not sizes:
            raise ProtocolError("head-missing", f"{self.path} holds no signed head")
        return self.read_head(sizes[-1])

    def sign_head(self, log: LogStore, origin: str, key: SigningKey) -> bytes:
        """Flushes the log, then signs a head over all of it and keeps it."""
        log.flush()
        note = sign_head(Checkpoint(origin, log.size, log.root()), key)
        write_bytes(self.heads / f"{log.size:012}.note", note)
        return note

    # -- states -----------------------------------------------------------------------------------

    def checkpoint_path(self, step: int) -> Path:
        """Where the state after `step` is kept."""
        return self.checkpoints / f"{step:010}.state"

    def kept_steps(self) -> list[int]:
        """Steps whose states are kept, ascending."""
        return sorted(int(p.stem) for p in self.checkpoints.glob("*.state") if p.stem.isdigit())

    def read_checkpoint(self, step: int, pieces: Pieces) -> tuple[list[Entry], dict[str, bytes]]:
        """Entries and bytes of a kept state, unverified: compare the root."""
        return read_state(self.checkpoint_path(step), pieces)

    # -- program and keys -------------------------------------------------------------------------

    def write_program(self, files: dict[str, bytes]) -> None:
        """Keeps the program's source."""
        for name, data in files.items():
            path = self.program / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, data)

    def read_program(self, manifest: Manifest) -> dict[str, bytes]:
        """The program's source, checked against the manifest.

        Raises:
            ProtocolError: `program-source`.
        """
        files = {}
        for file in manifest.program.files:
            data = self._read(self.program / file.path, MAX_SOURCE)
            check_source(manifest.program, file.path, data)
            files[file.path] = data
        return files

    def read_key(self) -> SigningKey:
        """The key that was made for this run.

        Raises:
            UsageError: `key-missing`, when another one was named for it.
            ProtocolError: `key-malformed`.
        """
        if not self.key.exists():
            raise UsageError(
                "key-missing",
                f"{self.path} holds no key: it was recorded with one that was named",
                next_action="name that key with --key",
            )
        return parse_signing_key(self._read(self.key, 4096).decode("ascii", "replace").strip())

    @staticmethod
    def _read(path: Path, limit: int) -> bytes:
        try:
            with open_regular(path) as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise ProtocolError(
                "file-missing", f"{path.name} cannot be read: {error.strerror}", evidence={"path": str(path)}
            ) from None
        if len(data) > limit:
            raise ProtocolError("too-large", f"{path.name} is larger than {limit} bytes", evidence={"path": str(path)})
        return data


def read_log(log: LogStore) -> tuple[Manifest, list[AfterManifest]]:
    """Manifest and entries of a log, parsed strictly.

    Raises:
        ProtocolError: `log-empty`, or whatever the first damaged entry is.
    """
    stored: Iterator[bytes] = iter(log.entries())
    first = next(stored, None)
    if first is None:
        raise ProtocolError("log-empty", f"{log.path} holds no manifest")
    manifest = parse_manifest(first)
    return manifest, [parse_entry(entry) for entry in stored]


def trainer_key(manifest: Manifest) -> PublicKey:
    """The key that signs this run's heads."""
    return parse_vkey(manifest.key)


def last_checkpoint(run: RunDir, entries: list[AfterManifest], pieces: Pieces) -> CheckpointEvent | None:
    """The newest checkpoint in the log whose file is whole; None when the run must start from the initial state."""
    from witness.hashing import hash_state

    for entry in reversed(entries):
        if isinstance(entry, CheckpointEvent):
            try:
                found, buffers = run.read_checkpoint(entry.step, pieces)
            except ProtocolError:
                continue
            if hash_state(found, buffers.__getitem__, pieces).root.hex() == entry.state_root:
                return entry
    return None
