"""The run's log on disk: pymerkle's SqliteTree behind one adapter, and the only module that imports pymerkle.

SqliteTree stores entry and leaf hash per row, append-only. Three of its habits are kept from our callers: its indices
count from one, its default journal flushes the disk at every append (70 appends a second; write-ahead logging gives
thousands and survives a kill), and it trusts stored hashes, so readers here hash the entries again.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from pymerkle import SqliteTree

from protocol import merkle
from protocol.errors import ProtocolError, WitnessError
from witness.statefile import disk_error

_WORKING_SPACE = 1 << 16
"""Bytes without which SQLite cannot open a log, and says only that the disk refuses."""


class LogStore:
    """An append-only log of byte strings, with the running RFC 9162 root.

    Args:
        path: of the database; made when missing.

    Raises:
        ProtocolError: `log-damaged`.
        UsageError: `disk`, `disk-full`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _refuse_foreign(path)
        try:
            self._tree = SqliteTree(str(path), algorithm="sha256")
            self._tree.con.execute("PRAGMA journal_mode=WAL")
            self._tree.con.execute("PRAGMA synchronous=NORMAL")
        except (sqlite3.Error, ValueError) as error:
            raise _failure(path, error) from error
        self.frontier = merkle.Frontier()
        for entry in self.entries():
            self.frontier.append(entry)

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.frontier.size

    def root(self) -> bytes:
        """RFC 9162 root over all entries."""
        return self.frontier.root()

    def append(self, entry: bytes) -> int:
        """Appends one entry and returns its index, from 0. Survives a kill of the process from here on.

        Raises:
            UsageError: `disk-full`, `disk`.
            ProtocolError: `log-damaged`.
        """
        try:
            self._tree.append_entry(entry)
        except sqlite3.Error as error:
            raise _failure(self.path, error) from error
        self.frontier.append(entry)
        return self.size - 1

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The entries from `start` up to `stop`, in order, as stored.

        Raises:
            ProtocolError: `log-damaged`.
        """
        query = "SELECT id, entry FROM leaf WHERE id > ? AND id <= ? ORDER BY id"
        expected = start
        try:
            connection = sqlite3.connect(self.path)
            try:
                for number, entry in connection.execute(query, (start, stop if stop is not None else 1 << 62)):
                    expected += 1
                    if number != expected or not isinstance(entry, bytes):
                        raise ProtocolError("log-damaged", f"{self.path.name} lacks entry {expected - 1}")
                    yield entry
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise _failure(self.path, error) from error

    def stored_hashes(self) -> Iterator[bytes]:
        """The leaf hashes as stored, for `fsck` to compare with the entries."""
        connection = sqlite3.connect(self.path)
        try:
            yield from (row[0] for row in connection.execute("SELECT hash FROM leaf ORDER BY id"))
        except sqlite3.Error as error:
            raise _failure(self.path, error) from error
        finally:
            connection.close()

    def flush(self) -> None:
        """Forces everything appended so far to the disk: called before a head is signed over it.

        Raises:
            UsageError: `disk-full`, `disk`.
        """
        wal = self.path.with_name(self.path.name + "-wal")
        try:
            if wal.exists():  # not left to the checkpoint alone, which does nothing while a reader holds an older state
                for path, flags in ((wal, os.O_RDWR), (wal.parent, os.O_RDONLY)):
                    handle = os.open(path, flags)
                    try:
                        os.fsync(handle)
                    finally:
                        os.close(handle)
            self._tree.con.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except OSError as error:
            raise disk_error(self.path, error) from error
        except sqlite3.Error as error:
            raise _failure(self.path, error) from error

    def close(self) -> None:
        """Closes the database."""
        self._tree.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse_foreign(path: Path) -> None:
    """Refuses what is not a log of ours before anything is written or queried: it may come from a stranger.

    A link would let the database, or the files SQLite keeps beside it, write somewhere else. A view in place of the
    table would answer a query without end.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        if path.with_name(path.name + suffix).is_symlink():
            raise ProtocolError("log-damaged", f"{path.name}{suffix} is a link", evidence={"path": str(path)})
    if not path.exists():
        return
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
    with closing(SqliteTree(":memory:", algorithm="sha256").con) as fresh:
        fresh.row_factory = None
        ours = set(fresh.execute(query))
    try:
        with closing(sqlite3.connect(path)) as connection:
            foreign = set(connection.execute(query)) - ours
    except sqlite3.Error as error:
        raise _failure(path, error) from error
    if foreign:
        kind, name, *_ = min(foreign, key=str)
        what = f"{kind} {str(name)[:80]!r}"
        raise ProtocolError("log-damaged", f"{path.name} holds {what}, which no log has", evidence={"path": str(path)})


def _failure(path: Path, error: Exception) -> WitnessError:
    """What a refusal of SQLite's means: the disk, or the file."""
    name = getattr(error, "sqlite_errorname", "")
    if not name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_BUSY")):
        return ProtocolError("log-damaged", f"{path.name} cannot be read: {error}", evidence={"path": str(path)})
    found = os.statvfs(path.parent)
    full = name == "SQLITE_FULL" or found.f_bavail * found.f_frsize < _WORKING_SPACE
    return disk_error(path, OSError(errno.ENOSPC if full else errno.EIO, str(error)))
