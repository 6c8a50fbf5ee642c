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
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from protocol.corpus import Document, Documents, describe
from protocol.errors import UsageError, VerificationError
from witness.data.corpus import CHUNK, Corpus, Location, require_range

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""Neither a pipe nor a symbolic link put in a file's place can hang us or lead us elsewhere."""


class Stamp(NamedTuple):
    """What shows at a glance that a file has changed: length in bytes, modification time in nanoseconds."""

    length: int
    modified: int


class Layout(NamedTuple):
    """Where documents stand in a file, one after another.

    Attributes:
        offset: of the first, in bytes.
        length: of all of them together.
        documents: how many there are; None where the file does not say.
        tail: bytes of other things after them.
        each: length of each, where they are equally long by the format.
    """

    offset: int
    length: int
    documents: int | None = None
    tail: int = 0
    each: int | None = None


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
            self.stamp = self.look(file)

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

    def look(self, file: int) -> Stamp:
        """The stamp that the open file has now."""
        found = os.fstat(file)
        return Stamp(found.st_size, found.st_mtime_ns)

    def read(self, start: int, stop: int) -> tuple[bytes, Stamp]:
        """Bytes `start` to `stop`, as many as there are, and the stamp of the file just before they were read."""
        with self.opened() as file:
            found = self.look(file)
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

    def chunks(self, file: int, start: int, stop: int, size: int = CHUNK) -> Iterator[bytes]:
        """Bytes `start` to `stop` of an open file, `size` at a time."""
        for at in range(start, stop, size):
            yield self.pread(file, at, min(at + size, stop))

    def require_unchanged(self, file: int) -> None:
        """Raises `VerificationError` (`corpus-changed`) when the open file is not the one first seen."""
        if self.look(file) != self.stamp:
            raise VerificationError(
                "corpus-changed", f"{self} changed while it was being read", evidence={"path": str(self)}
            )


class HeldFile(DataFile):
    """A file without a name, which is gone when the process has ended.

    Args:
        file: open for reading; stays open as long as this does.
        name: what messages call it.
    """

    __slots__ = ("_held",)

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._held = file
        super().__init__(name)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Its descriptor."""
        yield self._held.fileno()


class FileCorpus(Corpus):
    """Documents that stand in files as they are, one after another.

    Args:
        documents: committed before.
        source: what to call the data.
        files: in the order of their documents.
        offset: where in the only file the first document begins; None where layouts say it, or each document fills a
            file of its own.
        layouts: of the files.
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
        layouts: Iterable[Layout] | None = None,
        location: Location | None = None,
    ) -> None:
        super().__init__(documents, source)
        self.files, self.location = files, location
        if offset is not None:
            layouts = [Layout(offset, max(0, files[0].stamp.length - offset))]
        elif layouts is None:
            layouts = (Layout(0, file.stamp.length, 1) for file in files)
        self._firsts, self._bases = self._placed(layouts)
        apart = len(files) == len(documents.leaves) and all(map(int.__eq__, self._firsts, range(len(files))))
        self.offset = None if apart else offset or 0
        """None where each document has a file of its own."""

    def read(self, document: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of one document, after a look at the file's length and time."""
        leaf = self.leaf(document)
        require_range(leaf, start, stop)
        index = self._home(document)
        file = self.files[index]
        for _ in range(3):
            data, found = self._fetch(file, leaf, start, stop)
            if found == file.stamp and len(data) == stop - start:
                return data
            self._look_again(index)
        raise self.changed(document, "its file is being written to")

    def name(self, document: int) -> str:
        """What messages call a document: its file, where it has one of its own."""
        index = self._home(document)
        if self.offset is None and self._documents_in(index) == range(document, document + 1):
            return str(self.files[index])
        where = f" in {self.files[index]}" if len(self.files) > 1 else ""
        return super().name(document) + where

    def file_of(self, document: int) -> DataFile:
        """The file that a document is in."""
        return self.files[self._home(document)]

    def _home(self, document: int) -> int:
        """Number of the file that a document is in."""
        return bisect_right(self._firsts, document, 0, len(self.files)) - 1

    def _documents_in(self, index: int) -> range:
        return range(self._firsts[index], self._firsts[index + 1])

    def _fetch(self, file: DataFile, leaf: Document, start: int, stop: int) -> tuple[bytes, Stamp]:
        """Bytes `start` to `stop` of a document, as many as there are, and the stamp of its file before."""
        base = self._base(leaf)
        return file.read(base + start, base + stop)

    def _base(self, leaf: Document) -> int:
        return self._bases[self._home(leaf.index)] + leaf.token_start * self.documents.width

    def _redescribed(self, file: DataFile, opened: int, leaf: Document) -> Document:
        """The leaf that the file says now."""
        base = self._base(leaf)
        chunks = file.chunks(opened, base, base + leaf.length)
        return describe(leaf.index, leaf.token_start, chunks, self.documents.width)

    def _look_again(self, index: int) -> None:
        """Accepts a file with a new modification time if every document in it is still as committed."""
        file = self.files[index]
        with file.opened() as opened:
            found = file.look(opened)
            if found.length != file.stamp.length:
                raise _resized(file, file.stamp.length, found.length)
            for document in self._documents_in(index):
                leaf = self.documents.leaves[document]
                if self._redescribed(file, opened, leaf) != leaf:
                    raise self.changed(document)
        file.stamp = found

    def _placed(self, layouts: Iterable[Layout]) -> tuple[array[int], array[int]]:
        """Numbers of the first document of each file, and where each file's token stream would have begun in it."""
        documents = self.documents
        firsts, bases = array("Q"), array("q")
        document = 0
        for file, layout in zip(self.files, layouts, strict=True):
            firsts.append(document)
            begin = documents.start_of(document) * documents.width
            bases.append(layout.offset - begin)
            document = self._end(document, layout)
            held = documents.start_of(min(document, len(documents.leaves))) * documents.width - begin
            if held != layout.length:
                raise _resized(file, layout.offset + held + layout.tail, file.stamp.length)
            if layout.each is not None and any(
                documents.leaves[number].length != layout.each for number in range(firsts[-1], document)
            ):
                raise _recut(file, layout)
        firsts.append(document)
        if document != len(documents.leaves):
            raise VerificationError(
                "corpus-changed",
                f"{self.source} has {len(self.files)} files with {document} documents in all where "
                f"{len(documents.leaves)} were committed",
            )
        return firsts, bases

    def _end(self, document: int, layout: Layout) -> int:
        """Number of the first document after a file that begins with `document`."""
        if layout.documents is not None:
            return document + layout.documents
        if len(self.files) == 1:
            return len(self.documents.leaves)
        return self.documents.at_token(self.documents.start_of(document) + layout.length // self.documents.width)


def readable(path: str | bytes) -> str:
    """A path as text that can be printed and encoded, whatever bytes it is made of."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _resized(file: DataFile, committed: int, found: int) -> VerificationError:
    return VerificationError(
        "corpus-changed",
        f"{file} is not what was committed: {found} bytes where there were {committed}",
        evidence={"path": str(file), "committed": committed, "found": found},
    )


def _recut(file: DataFile, layout: Layout) -> VerificationError:
    return VerificationError(
        "corpus-changed",
        f"{file} is not what was committed: {layout.documents} rows of {layout.each} bytes",
        evidence={"path": str(file)},
    )
