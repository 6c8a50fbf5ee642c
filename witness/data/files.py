"""Documents that lie in files: read by position, and never silently from a file that is no longer the committed one.

Files are read with `pread`, not mapped: a mapped file that somebody truncates kills the process with SIGBUS, where a
short read is an error with a name. Every read compares the file's length and modification time with those at
commitment. Another length is a change; another time alone makes us read the file again, so that a `touch` does no harm
and an edit is named. An edit that keeps both is seen when a piece is opened, because pieces are checked against the
committed leaf.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from protocol.corpus import Documents, Packing, describe
from protocol.errors import UsageError, VerificationError
from witness.data.corpus import CHUNK, Corpus, Progress, commit, require_range

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Neither a pipe nor a symbolic link put in a file's place can hang us or lead us elsewhere."""


class Location(NamedTuple):
    """Where the data of a corpus is.

    Attributes:
        kind: which adapter reads it.
        path: absolute.
        names: of the documents' files below `path`, for a folder.
    """

    kind: Literal["text-file", "text-folder", "npy"]
    path: str
    names: tuple[bytes, ...] = ()


class Stamp(NamedTuple):
    """What shows at a glance that a file has changed: length in bytes, modification time in nanoseconds."""

    length: int
    modified: int


class DataFile:
    """A regular file as it was when it was first seen.

    Args:
        path: must not be a symbolic link itself.

    Raises:
        UsageError: `corpus-missing`, when it cannot be opened; `corpus-data`, when it is not a regular file.
    """

    __slots__ = ("path", "stamp")

    def __init__(self, path: str | bytes) -> None:
        self.path = os.fsencode(path)
        with self.opened() as file:
            self.stamp = stamp(file)

    def __str__(self) -> str:
        return readable(self.path)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A file descriptor for reading."""
        try:
            file = os.open(self.path, _FLAGS)
        except OSError as error:
            raise UsageError(
                "corpus-missing", f"cannot open {self}: {error.strerror}", evidence={"path": str(self)}
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UsageError("corpus-data", f"{self} is not a regular file", evidence={"path": str(self)})
            yield file
        finally:
            os.close(file)

    def read(self, start: int, stop: int) -> tuple[bytes, Stamp]:
        """Bytes `start` to `stop`, as many as there are, and the stamp of the file just before they were read."""
        with self.opened() as file:
            found = stamp(file)
            return self.pread(file, start, stop), found

    def pread(self, file: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of an open file, as many as there are."""
        parts: list[bytes] = []
        try:
            while start < stop and (part := os.pread(file, stop - start, start)):
                parts.append(part)
                start += len(part)
        except OSError as error:
            raise UsageError(
                "corpus-missing", f"cannot read {self}: {error.strerror}", evidence={"path": str(self)}
            ) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def chunks(self, file: int, start: int, stop: int) -> Iterator[bytes]:
        """Bytes `start` to `stop` of an open file, a chunk at a time."""
        for at in range(start, stop, CHUNK):
            yield self.pread(file, at, min(at + CHUNK, stop))

    def require_unchanged(self, file: int) -> None:
        """Raises `VerificationError` (`corpus-changed`) when the open file is not the one first seen."""
        if stamp(file) != self.stamp:
            raise VerificationError(
                "corpus-changed", f"{self} changed while it was being read", evidence={"path": str(self)}
            )


class FileCorpus(Corpus):
    """Documents in files: each fills a file of its own, or all of them stand in one file, one after another.

    Args:
        documents: committed before; `FileCorpus.commit` commits now.
        source: what to call the data.
        files: one a document, or the one that holds them all.
        offset: where in the one file the first document begins; None when there is a file for each document.
        location: where a later process finds the data; None for a run's own copy.

    Raises:
        VerificationError: `corpus-changed`, when a file's length shows that it is not the committed one.
    """

    def __init__(
        self,
        documents: Documents,
        source: str,
        files: Sequence[DataFile],
        *,
        offset: int | None = None,
        location: Location | None = None,
    ) -> None:
        super().__init__(documents, source)
        self.files, self.offset = files, offset
        self.location = location
        if offset is not None:
            self._require_length(0, offset + documents.tokens)
        elif len(files) != len(documents.leaves):
            raise VerificationError(
                "corpus-changed",
                f"{source} has {len(files)} files where {len(documents.leaves)} documents were committed",
            )
        else:
            for leaf in documents.leaves:
                self._require_length(leaf.index, leaf.length)

    @classmethod
    def commit(
        cls,
        files: Sequence[DataFile],
        rows: Sequence[int] | None,
        packing: Packing,
        source: str,
        location: Location,
        offset: int = 0,
        progress: Progress | None = None,
    ) -> FileCorpus:
        """Commits to files.

        Args:
            files: one a document, or the one that holds them all.
            rows: lengths of the documents in the one file; None when there is a file for each.
            packing: how samples are cut.
            source: what to call the data.
            location: where a later process finds it.
            offset: where in the one file the first document begins.
            progress: told as the files are hashed.
        """
        streams = _whole(files) if rows is None else _rows(files[0], rows, offset)
        total = sum(file.stamp.length for file in files) if rows is None else sum(rows)
        documents = commit(streams, packing, total=total, progress=progress)
        return cls(documents, source, files, offset=None if rows is None else offset, location=location)

    def read(self, document: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of one document, after a look at the file's length and time."""
        leaf = self.leaf(document)
        require_range(leaf, start, stop)
        index, base = (document, 0) if self.offset is None else (0, self.offset + leaf.token_start)
        file = self.files[index]
        for _ in range(3):
            data, found = file.read(base + start, base + stop)
            if found == file.stamp and len(data) == stop - start:
                return data
            self._look_again(index)
        raise self.changed(document, "its file is being written to")

    def name(self, document: int) -> str:
        """What messages call a document: its file, where it has one of its own."""
        return str(self.files[document]) if self.offset is None else super().name(document)

    def _look_again(self, index: int) -> None:
        """Accepts a file with a new modification time if every byte is still as committed."""
        file = self.files[index]
        with file.opened() as opened:
            found = stamp(opened)
            if found.length != file.stamp.length:
                self._require_length(index, file.stamp.length, found.length)
            for leaf in self.documents.leaves if self.offset is not None else [self.documents.leaves[index]]:
                base = 0 if self.offset is None else self.offset + leaf.token_start
                if describe(leaf.index, leaf.token_start, file.chunks(opened, base, base + leaf.length)) != leaf:
                    raise self.changed(leaf.index)
        file.stamp = found

    def _require_length(self, index: int, length: int, found: int | None = None) -> None:
        found = self.files[index].stamp.length if found is None else found
        if found != length:
            raise VerificationError(
                "corpus-changed",
                f"{self.files[index]} is not what was committed: {found} bytes where there were {length}",
                evidence={"path": str(self.files[index]), "committed": length, "found": found},
            )


def stamp(file: int) -> Stamp:
    """The stamp of an open file."""
    found = os.fstat(file)
    return Stamp(found.st_size, found.st_mtime_ns)


def readable(path: str | bytes) -> str:
    """A path as text that can be printed and encoded, whatever bytes it is made of."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _whole(files: Sequence[DataFile]) -> Iterator[Iterable[bytes]]:
    for file in files:
        with file.opened() as opened:
            yield file.chunks(opened, 0, file.stamp.length)
            file.require_unchanged(opened)


def _rows(file: DataFile, rows: Sequence[int], offset: int) -> Iterator[Iterable[bytes]]:
    with file.opened() as opened:
        for length in rows:
            yield file.chunks(opened, offset, offset + length)
            offset += length
        file.require_unchanged(opened)
