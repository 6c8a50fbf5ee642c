"""Taking documents in: each file is read once, each document gets its leaf, and what cannot be read again is kept.

Memory does not grow with the data, only by 96 bytes a document (112 for lines). What is read by whom: the reader of the
format finds documents, in another thread where its library works without Python's lock; here they are hashed, and
written to the spool where they have to be made (from compressed lines, columns, text that is tokenised). Hashing itself
stays in one thread: most of it goes into 4 KiB pieces, at which size Python's lock changes hands more often than two
cores gain (measured: 0.6 to 0.8 GB/s with one thread, and no more with two).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from protocol.corpus import MAX_DOCUMENTS, Documents, Leaves, Packing, describe, token_bytes
from protocol.errors import UsageError
from witness.data.corpus import Corpus, Meter, Progress
from witness.data.files import DataFile, FileCorpus
from witness.data.lines import PLACE, LineCorpus
from witness.data.reader import Chunk, InPlace, ahead
from witness.data.source import Source
from witness.statefile import disk_error

AHEAD_FROM = 1 << 22
"""Bytes of a file for which another thread is worth starting."""
_PLACE = struct.Struct("<QII")


class Watcher(Protocol):
    """Who is told when a file is done."""

    def passed(self, index: int, documents: int, size: int) -> None:
        """File number `index` is done: so many documents with so many bytes are in, from it and all before it."""


class Intake:
    """The documents of a source, as they come in.

    Args:
        source: to read.
        spool: keeps documents that have to be made; None where they stay where they are.
        progress: told as files are read.
    """

    def __init__(self, source: Source, spool: BinaryIO | None, progress: Progress | None = None) -> None:
        self.source, self._spool = source, spool
        self._meter = Meter(source.size, progress)
        self._width = token_bytes(source.reader.tokenizer)
        self.leaves, self.places = bytearray(), bytearray()
        """The leaves; and for lines that stay where they are, their places."""
        self.keeps_places = source.location is not None and source.location.kind == "jsonl"
        self._done = self._count = self._size = 0

    def resume(self, files: int, leaves: bytes, places: bytes, size: int) -> None:
        """Goes on after so many files, whose documents are in.

        Args:
            files: done before.
            leaves: of their documents.
            places: of their lines.
            size: of their documents, in bytes; that much is in the spool.
        """
        self._done, self._count, self._size = files, len(Leaves(leaves)), size
        self.leaves[:], self.places[:] = leaves, places
        for file in self.source.files[:files]:
            self._meter.advance(file.stamp.length)

    def run(self, watcher: Watcher | None = None) -> None:
        """Reads the files that are not done.

        Raises:
            UsageError: what the format's reader raises; `corpus-data`, for too many documents; `disk`, `disk-full`.
            VerificationError: `corpus-changed`, when a file changes while it is being read.
        """
        reader = self.source.reader
        for index in range(self._done, len(self.source.files)):
            file = self.source.files[index]
            with file.opened() as opened:
                chunks = reader.chunks(file, opened)
                stream = ahead(chunks) if reader.ahead and file.stamp.length >= AHEAD_FROM else chunks
                with closing(stream):  # type: ignore[type-var] # readers are generators
                    self._take(index, stream)
                file.require_unchanged(opened)
            if watcher is not None:
                watcher.passed(index, self._count, self._size)
        self._meter.finish()

    def documents(self, packing: Packing) -> Documents:
        """What came in, committed."""
        return Documents(Leaves(self.leaves), packing, self.source.reader.tokenizer)

    def corpus(self, packing: Packing, spooled: DataFile | None) -> Corpus:
        """What came in, to be read again: from the files, or from the spool.

        Raises:
            VerificationError: `corpus-changed`.
        """
        documents = self.documents(packing)
        name, files, reader, location = self.source
        if spooled is not None:
            return FileCorpus(documents, name, [spooled], offset=0)
        if location is not None and location.kind == "jsonl":
            return LineCorpus(documents, name, files, np.frombuffer(bytes(self.places), PLACE), location)
        if not isinstance(reader, InPlace):
            raise TypeError(f"the documents of {name} were not kept")
        return FileCorpus(documents, name, files, layouts=map(reader.layout, files), location=location)

    def _take(self, index: int, stream: Iterator[Chunk]) -> None:
        for chunk in stream:
            if self._count == MAX_DOCUMENTS:
                raise UsageError(
                    "corpus-data",
                    f"more than {MAX_DOCUMENTS} documents",
                    next_action="join small documents into larger ones",
                )
            at = self._size // self._width
            leaf = describe(self._count, at, self._document(index, chunk, stream), self._width)
            self.leaves += leaf.to_bytes()
            self._count += 1
            self._size += leaf.length

    def _document(self, index: int, chunk: Chunk, stream: Iterator[Chunk]) -> Iterator[bytes]:
        """The parts of the document that begins with `chunk`."""
        while True:
            if self._spool is not None:
                try:
                    self._spool.write(chunk.data)
                except OSError as error:
                    raise disk_error(Path(str(self._spool.name)), error) from error
            yield chunk.data
            self._meter.advance(chunk.read)
            if chunk.last:
                break
            chunk = next(stream)
        if self.keeps_places:
            self.places += _PLACE.pack(*chunk.place, index)
