"""Log entries on disk, so that a log of any length costs no memory."""

from __future__ import annotations

from array import array
from pathlib import Path

from witness.statefile import disk_error


class LogSpool:
    """Appends log entries to a file and reads any of them again.

    Args:
        path: of a file that does not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b")
        self._starts = array("Q", [0])

    def append(self, entry: bytes) -> None:
        """Keeps the next entry.

        Raises:
            UsageError: `disk-full`, `disk`: the log may be a stranger's, and longer than this disk.
        """
        try:
            self._file.seek(self._starts[-1])
            self._file.write(entry)
        except OSError as error:
            raise disk_error(self._path, error) from error
        self._starts.append(self._starts[-1] + len(entry))

    def read(self, index: int) -> bytes:
        """Entry number `index`."""
        self._file.seek(self._starts[index])
        return self._file.read(self._starts[index + 1] - self._starts[index])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
