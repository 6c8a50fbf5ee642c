"""Reading, and clearing away, what a hostile process left in its folder.

Everything there is a stranger's: names, sizes, contents, depth. Files are opened without following links, must be
regular, and are read up to a cap; text is stripped of what could command a terminal.
"""

import os
import stat
from pathlib import Path

from protocol.errors import ProtocolError

PROGRESS_NAME = "progress"
_PROGRESS_CAP = 1 << 20
_CHUNK = 1 << 16
_LINE_CAP = 500
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def printable(data: bytes) -> str:
    """Text that is safe to show: UTF-8 where it is, and no control, bidirectional or other unprintable characters."""
    text = data.decode("utf-8", errors="replace")
    return "".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def read_output(job: Path, name: str, *, limit: int) -> bytes:
    """Reads one file that a job wrote.

    Args:
        job: the job folder.
        name: the file's name in it: a single path component, chosen by the caller and never by the job.
        limit: cap in bytes.

    Raises:
        ProtocolError: `sandbox-output` if there is no such regular file, `too-large` if it exceeds the cap.
    """
    try:
        # Non-blocking, because opening a named pipe would wait for a writer.
        descriptor = os.open(job / name, _FILE)
    except OSError as error:
        raise ProtocolError("sandbox-output", f"the job left no readable file {name!r}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ProtocolError("sandbox-output", f"what the job left as {name!r} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ProtocolError("too-large", f"the job's file {name!r} exceeds {limit} bytes")
    return data


class Progress:
    """Follows the lines that a job appends to its `progress` file, up to 1 MiB in all.

    Args:
        job: the job folder.
    """

    def __init__(self, job: Path) -> None:
        self._path = job / PROGRESS_NAME
        self._offset = 0
        self._partial = b""

    def lines(self) -> list[str]:
        """The complete lines since the last call, each cut to 500 bytes and made printable. Hostile: only show them."""
        budget = min(_CHUNK, _PROGRESS_CAP - self._offset)
        try:
            descriptor = os.open(self._path, _FILE)
        except OSError:
            return []
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            data = os.pread(descriptor, budget, self._offset)
        finally:
            os.close(descriptor)
        self._offset += len(data)
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[:_LINE_CAP]
        return [printable(line[:_LINE_CAP]) for line in lines]


def discard(job: Path) -> None:
    """Removes a job folder, however deep a tree the job built in it. The job must have ended.

    `shutil.rmtree` recurses and spells out paths, and so a few thousand nested folders would stop it. This walks with
    one open folder at a time, down by name and up by `..`.

    Raises:
        OSError: something in it cannot be removed by this user.
    """
    below: list[str] = []
    here = os.open(job, _FOLDER)
    try:
        while True:
            name = _first_folder(here)
            if name is not None:
                os.chmod(name, 0o700, dir_fd=here)
                there = os.open(name, _FOLDER, dir_fd=here)
                below.append(name)
            elif below:
                there = os.open("..", _FOLDER, dir_fd=here)
                os.rmdir(below.pop(), dir_fd=there)
            else:
                break
            os.close(here)
            here = there
    finally:
        os.close(here)
    job.rmdir()


def _first_folder(here: int) -> str | None:
    """Some folder in an open folder, after removing the files that come before it."""
    with os.scandir(here) as listing:
        for entry in listing:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            os.unlink(entry.name, dir_fd=here)
    return None
