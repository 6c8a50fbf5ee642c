"""Taking documents in: each file is read once, each document gets its leaf, and what cannot be read again is kept.

Memory does not grow with the data, only by 96 bytes a document (112 for lines), twice that when all are in. The reader
of the format finds the documents; here they are hashed, and written to the spool where they have to be made (from
compressed lines, columns, text that is tokenised).

One intake uses one core. Threads gain nothing: most hashing is of 4 KiB pieces, and at that size Python's lock changes
hands more often than a second core is worth (0.6 to 0.8 GB/s with one thread, and no more with two, on a machine of two
cores that had other work as well). So files are shared out over processes (`witness.data.workers`), each with an intake
of its own, and `absorb` puts together what they found.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np

from protocol.corpus import MAX_DOCUMENTS, Documents, Leaves, Packing, describe, token_bytes
from protocol.errors import UsageError
from protocol.leaf_columns import moved
from witness.data.corpus import CHUNK, Corpus, Meter, Progress
from witness.data.files import DataFile, FileCorpus
from witness.data.lines import PLACE, LineCorpus
from witness.data.reader import Chunk, InPlace
from witness.data.source import Source
from witness.statefile import disk_error

_PLACE = struct.Struct("<QII")


class Part(NamedTuple):
    """What an intake of some of the files found, for another to absorb.

    Attributes:
        leaves: of its documents, counted from its own first.
        places: of its lines, by the numbers of its own files.
        spooled: its documents, where they had to be made.
        files: for each of its files how many documents, and bytes of them, there were with it.
    """

    leaves: Leaves
    places: bytes
    spooled: BinaryIO | None
    files: Sequence[tuple[int, int]]


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

    @property
    def done(self) -> int:
        """How many files are done."""
        return self._done

    @property
    def _where(self) -> Path:
        return Path(str(self._spool.name if self._spool is not None else "the spool"))

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
                self._take(index, reader.chunks(file, opened))
                file.require_unchanged(opened)
            self._done = index + 1
            if watcher is not None:
                watcher.passed(index, self._count, self._size)

    def absorb(self, part: Part, watcher: Watcher | None = None) -> None:
        """Takes over what another intake found in the files that come next.

        Args:
            part: what it found.
            watcher: told of each file.

        Raises:
            UsageError: `corpus-data`, for too many documents; `disk`, `disk-full`.
        """
        documents, size, done = self._count, self._size, self._done
        start = size // self._width
        self._require_room(len(part.leaves))
        self.leaves += moved(part.leaves, documents, start)
        places = np.frombuffer(part.places, PLACE).copy()
        places["file"] += done
        self.places += places.tobytes()
        if self._spool is not None and part.spooled is not None:
            try:
                shutil.copyfileobj(part.spooled, self._spool, CHUNK)
            except OSError as error:
                raise disk_error(self._where, error) from error
        for index, (more_documents, more_size) in enumerate(part.files):
            self._count, self._size = documents + more_documents, size + more_size
            self._done = done + index + 1
            self._meter.advance(self.source.files[done + index].stamp.length)
            if watcher is not None:
                watcher.passed(done + index, self._count, self._size)

    def finish(self) -> None:
        """Reports that every file is done."""
        self._meter.finish()

    def corpus(self, packing: Packing, spooled: DataFile | None) -> Corpus:
        """What came in, to be read again: from the files, or from the spool. It is the intake's no more.

        Raises:
            VerificationError: `corpus-changed`.
        """
        leaves, places = Leaves(self.leaves), np.frombuffer(bytes(self.places), PLACE)
        self.leaves.clear()  # a second copy of them all is what most memory would go to
        self.places.clear()
        documents = Documents(leaves, packing, self.source.reader.tokenizer)
        name, files, reader, location = self.source
        if spooled is not None:
            return FileCorpus(documents, name, [spooled], offset=0)
        if location is not None and location.kind == "jsonl":
            return LineCorpus(documents, name, files, places, location)
        if not isinstance(reader, InPlace):
            raise TypeError(f"the documents of {name} were not kept")
        return FileCorpus(documents, name, files, layouts=map(reader.layout, files), location=location)

    def _take(self, index: int, stream: Iterator[Chunk]) -> None:
        for chunk in stream:
            self._require_room(1)
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
                    raise disk_error(self._where, error) from error
            yield chunk.data
            self._meter.advance(chunk.read)
            if chunk.last:
                break
            chunk = next(stream)
        if self.keeps_places:
            self.places += _PLACE.pack(*chunk.place, index)

    def _require_room(self, more: int) -> None:
        if self._count + more > MAX_DOCUMENTS:
            raise UsageError(
                "corpus-data",
                f"more than {MAX_DOCUMENTS} documents",
                next_action="join small documents into larger ones",
            )
