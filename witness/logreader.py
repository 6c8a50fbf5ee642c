"""A log read without any power to change it, and past what is damaged.

`LogStore` opens a log for writing and stops at the first damage, as a recorder must. Whoever looks
at a run that may be damaged, lies on a read-only disk, comes from a stranger or is being written by
somebody else needs the opposite: one snapshot, read-only, with each row's stored hash, and a `Gap`
where rows cannot be read.

The file is a database that a stranger may have made: entries have a length limit, views and virtual
tables are refused, and row numbers must rise, because pages that point at each other can make a
small file yield rows without end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from protocol.errors import ProtocolError
from protocol.manifest import MAX_MANIFEST

_ROW = "SELECT id, entry, hash, typeof(entry) = 'blob' AND typeof(hash) = 'blob' FROM leaf WHERE id > ? ORDER BY id"
_MAX_ROWS = 1 << 40


class Row(NamedTuple):
    """An entry and the leaf hash that was stored with it."""

    number: int
    entry: bytes
    stored_hash: bytes


class Gap(NamedTuple):
    """Entries that cannot be read: from number `first` up to `stop`; None: all that follow, however many there were."""

    first: int
    stop: int | None
    reason: str


class LogReader:
    """One snapshot of a log; a context manager.

    Args:
        path: of the database.

    Raises:
        ProtocolError: `file-missing`, `not-a-file`; `log-damaged`, when it is no database of a log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require_file(path)
        try:
            self._connection = self._connect()
        except sqlite3.Error as error:
            if error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                why = "the folder of an open write-ahead log must be writable"
                raise self._damaged(why) from PermissionError(str(error))
            raise self._damaged(str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        # Without a write-ahead log nobody is writing, and SQLite need not make its shared-memory file beside the log.
        # With one, its frames belong to the log, and only a connection that is not `immutable` reads them.
        settled = not self.path.with_name(self.path.name + "-wal").exists()
        uri = f"{self.path.absolute().as_uri()}?mode=ro{'&immutable=1' if settled else ''}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_MANIFEST + (1 << 16))
            connection.text_factory = bytes
            for pragma in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN")
            found = connection.execute("SELECT type, rootpage FROM sqlite_master WHERE name = 'leaf'").fetchall()
            if len(found) != 1 or found[0][0] != b"table" or not found[0][1]:
                raise self._damaged("it has no table of entries")
        except BaseException:
            connection.close()
            raise
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def rows(self, start: int = 0) -> Iterator[Row | Gap]:
        """Every row in order from number `start` on, with a `Gap` for each run of rows that cannot be read."""
        at, reason = start, ""
        while True:
            try:
                for row in self._connection.execute(_ROW, (at,)):
                    number, entry, stored, blobs = row
                    if not isinstance(number, int) or number <= at:
                        yield Gap(at, None, "its rows are out of order")
                        return
                    if number > at + 1:
                        yield Gap(at, number - 1, reason or "there is no such row")
                    at, reason = number, ""
                    if blobs:
                        yield Row(number - 1, entry, stored)
                    else:
                        yield Gap(number - 1, number, "the row does not hold bytes")
            except sqlite3.Error as error:
                reason = str(error)
            else:
                if reason:
                    yield Gap(at, None, reason)
                return
            onward = self._next_readable(at)
            if onward is None:
                yield Gap(at, None, reason)
                return
            yield Gap(at, onward, reason)
            at = onward

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The entries of an undamaged log, from number `start` up to `stop`.

        Raises:
            ProtocolError: `log-damaged`.
        """
        for row in self.rows(start):
            if stop is not None and (row.number if isinstance(row, Row) else row.first) >= stop:
                return
            if isinstance(row, Gap):
                raise self._damaged(f"entry {row.first} cannot be read: {row.reason}")
            yield row.entry

    def first(self) -> bytes | None:
        """Entry 0, where it can be read."""
        row = next(self.rows(), None)
        return row.entry if isinstance(row, Row) and row.number == 0 else None

    def size(self) -> int:
        """How many rows the database says it has; 0 where it cannot tell. For progress only."""
        try:
            found = self._connection.execute("SELECT max(id) FROM leaf").fetchone()[0]
        except sqlite3.Error:
            return 0
        return found if isinstance(found, int) else 0

    def problems(self) -> list[str]:
        """What SQLite's own check finds in the file's structure; it does not look at what the rows say."""
        try:
            lines = [
                " ".join(bytes(line).decode("utf-8", "replace").split())
                for (line,) in self._connection.execute("PRAGMA integrity_check(8)")
            ]
        except sqlite3.Error as error:
            return [str(error)]
        return [line for line in lines if line != "ok"]

    def _next_readable(self, at: int) -> int | None:
        """The smallest found number such that the row after it can be read again."""
        bad, good = at, None
        reach = 1
        while reach < _MAX_ROWS:
            if self._reads_after(at + reach):
                good = at + reach
                break
            bad, reach = at + reach, 2 * reach
        if good is None:
            return None
        while good - bad > 1:
            middle = (good + bad) // 2
            bad, good = (bad, middle) if self._reads_after(middle) else (middle, good)
        return good

    def _reads_after(self, number: int) -> bool:
        try:
            return self._connection.execute(f"{_ROW} LIMIT 1", (number,)).fetchone() is not None
        except sqlite3.Error:
            return False

    def _damaged(self, why: str) -> ProtocolError:
        return ProtocolError("log-damaged", f"{self.path.name}: {why}", evidence={"path": str(self.path)})


def require_file(path: Path) -> int:
    """Checks that `path` leads to a regular file that may be read, so that no pipe put in its place can hang us.

    Returns:
        Its length in bytes.

    Raises:
        ProtocolError: `file-missing`, `not-a-file`.
    """
    try:
        if path.exists() and not path.is_file():
            raise ProtocolError("not-a-file", f"{path.name} is not a regular file", evidence={"path": str(path)})
        with path.open("rb"):
            return path.stat().st_size
    except OSError as error:
        raise ProtocolError(
            "file-missing", f"{path.name} cannot be read: {error.strerror}", evidence={"path": str(path)}
        ) from error
