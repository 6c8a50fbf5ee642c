"""What a format is: a way to find the documents in a file.

Some formats hold documents as they are committed - texts, arrays, token files: then a document is a range of its file,
and is read there. In others - compressed lines, columns of tables, text that is tokenised - it first has to be made;
those are read through once, and what was made is kept (`witness.data.source`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from witness.data.corpus import CHUNK
from witness.data.files import DataFile, Layout


class Chunk(NamedTuple):
    """A part of a document.

    Attributes:
        data: of any length, also none.
        last: whether the document ends with it.
        read: bytes of the file that were read for it.
        place: where the record of a document stands in the file, as offset and length, if it must be parsed again; told
            with the last chunk.
    """

    data: bytes
    last: bool
    read: int
    place: tuple[int, int] = (0, 0)


class Reader(ABC):
    """One format, with its options."""

    tokenizer: str = "bytes"
    """What a token of its documents is, as the claim spells it."""

    @abstractmethod
    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The documents of a file, from its beginning to its end, each in chunks.

        Args:
            file: to read.
            opened: a descriptor for reading it.

        Raises:
            UsageError: `data-file`, `data-expands`, `data-option`.
        """


class InPlace(Reader):
    """A format whose documents stand in the file as they are, one after another."""

    @abstractmethod
    def layout(self, file: DataFile) -> Layout:
        """Where the documents begin and end, from the file's header alone.

        Raises:
            UsageError: `data-file`, `data-option`, `corpus-data`.
        """


def whole(file: DataFile, opened: int, start: int, stop: int) -> Iterator[Chunk]:
    """One document from `start` to `stop`."""
    if start == stop:
        yield Chunk(b"", True, 0)
    for data in file.chunks(opened, start, stop):
        start += len(data)
        yield Chunk(data, start >= stop or not data, len(data))


def rows(file: DataFile, opened: int, offset: int, count: int, length: int) -> Iterator[Chunk]:
    """Documents of one length, one after another; small ones are read many at a time."""
    if length > CHUNK or length == 0:
        for row in range(count):
            yield from whole(file, opened, offset + row * length, offset + (row + 1) * length)
        return
    step = CHUNK // length * length
    for data in file.chunks(opened, offset, offset + count * length, step):
        for at in range(0, len(data), length):
            yield Chunk(data[at : at + length], True, length)
