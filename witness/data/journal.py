"""How a commit that was interrupted goes on: which files are done, in a journal beside what came of them.

The first line says what is committed and how; it has to be the same again. Each other line is a file that is done: its
name, length and time, and how many documents and bytes there were with it. A line is written after what it speaks of is
on the disk, so a line that is there can be believed, and a torn one is the last. A file that no longer has the length
and time of its line is read again, and so is every file after it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from protocol.corpus import LEAF_BYTES
from protocol.encoding import Count, Struct, decode, encode
from protocol.errors import ProtocolError, UsageError
from witness.data.files import DataFile
from witness.data.intake import Intake
from witness.data.lines import PLACE
from witness.data.options import DataOptions
from witness.statefile import disk_error

JOURNAL, LEAVES_PART, LINES_PART = "unfinished", "leaves.part", "lines.part"
EVERY_SECONDS = 2.0
MAX_LINE = 1 << 16


class Heading(Struct, frozen=True):
    """What is committed: the data's path, the options, what a token is, and the version of this format."""

    path: str
    options: DataOptions
    tokenizer: str
    version: str = "unfinished-corpus/1"


class FileDone(Struct, frozen=True):
    """A file whose documents are in: name (its bytes as Latin-1), length, time; documents and bytes with it."""

    name: str
    length: Count
    modified: str
    documents: Count
    size: Count


class Journal:
    """The journal of a commit into a folder, which nobody else may write to meanwhile.

    Args:
        folder: exists.
        heading: of this commit.
        intake: gives leaves and places.
        spool: of documents that have to be made; None where there are none.
    """

    def __init__(self, folder: Path, heading: Heading, intake: Intake, spool: BinaryIO | None) -> None:
        self._folder, self._heading, self._intake, self._spool = folder, encode(heading) + b"\n", intake, spool
        self._waiting: list[FileDone] = []
        self._written = time.monotonic()

    @contextmanager
    def opened(self) -> Iterator[Journal]:
        """Takes what was done before into the intake; keeps what is done until the end or an interruption.

        Raises:
            UsageError: `corpus-exists`, when the folder holds the beginning of another commit; `corpus-busy`.
        """
        with (
            _part(self._folder / JOURNAL) as self._journal,
            _part(self._folder / LEAVES_PART) as self._leaves,
            _part(self._folder / LINES_PART) as self._places,
        ):
            try:
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError("corpus-busy", f"another commit is writing {self._folder}") from None
            self._go_on()
            try:
                yield self
            finally:
                self.write()

    def passed(self, index: int, documents: int, size: int) -> None:
        """A file is done."""
        file = self._intake.source.files[index]
        self._waiting.append(
            FileDone(file.path.decode("latin-1"), file.stamp.length, str(file.stamp.modified), documents, size)
        )
        if time.monotonic() - self._written >= EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        """Puts what is done on the disk, then says so."""
        if not self._waiting:
            return
        count = self._waiting[-1].documents
        try:
            self._leaves.write(self._intake.leaves[self._leaves.tell() : count * LEAF_BYTES])
            self._places.write(self._intake.places[self._places.tell() : count * PLACE.itemsize])
            for file in (self._leaves, self._places, self._spool):
                if file is not None:
                    _flush(file)
            self._journal.write(b"".join(encode(line) + b"\n" for line in self._waiting))
            _flush(self._journal)
        except OSError as error:
            raise disk_error(self._folder, error) from error
        self._waiting, self._written = [], time.monotonic()

    def remove(self) -> None:
        """Ends the journal: the commit is complete."""
        for name in (LEAVES_PART, LINES_PART, JOURNAL):
            (self._folder / name).unlink(missing_ok=True)

    def _go_on(self) -> None:
        """Takes over what was done, and cuts off what came after it."""
        text = self._journal.read()
        if text and not text.startswith(self._heading):
            raise UsageError(
                "corpus-exists",
                f"{self._folder} holds an unfinished commit of other data, or with other options",
                next_action="name another folder, or remove this one",
            )
        lines = self._believable(text[len(self._heading) :], self._intake.source.files)
        count, size = (lines[-1].documents, lines[-1].size) if lines else (0, 0)
        leaves = _cut(self._leaves, count * LEAF_BYTES)
        places = _cut(self._places, count * PLACE.itemsize if self._intake.keeps_places else 0)
        if self._spool is not None:
            self._spool.truncate(size)
            self._spool.seek(size)
        kept = len(self._heading) + sum(len(encode(line)) + 1 for line in lines) if text else 0
        self._journal.truncate(kept)
        self._journal.seek(kept)
        if not text:
            self._journal.write(self._heading)
            _flush(self._journal)
        self._intake.resume(len(lines), leaves, places, size)

    def _believable(self, text: bytes, files: Sequence[DataFile]) -> list[FileDone]:
        """The files that are done and unchanged, up to the first that is not."""
        found: list[FileDone] = []
        for line, file in zip(text.split(b"\n")[:-1], files, strict=False):
            try:
                done = decode(line, FileDone, limit=MAX_LINE)
            except ProtocolError:
                break
            same = (file.path.decode("latin-1"), file.stamp.length, str(file.stamp.modified))
            there = _size(self._leaves) >= done.documents * LEAF_BYTES and (
                (not self._intake.keeps_places or _size(self._places) >= done.documents * PLACE.itemsize)
                and (self._spool is None or _size(self._spool) >= done.size)
            )
            if (done.name, done.length, done.modified) != same or not there:
                break
            found.append(done)
        return found


def _part(path: Path) -> BinaryIO:
    """A file to read and go on writing, made if need be."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b")
    except OSError as error:
        raise disk_error(path, error) from error


def _cut(file: BinaryIO, size: int) -> bytes:
    """The first bytes of a file, which is cut off behind them."""
    file.seek(0)
    data = file.read(size)
    file.truncate(size)
    return data


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
