"""JSON lines (JSONL, NDJSON): one JSON object a line, one of whose fields is the document, as UTF-8.

Lines that are not compressed stay where they are: the place of each is kept (16 bytes a document), and a document is
read by parsing its line again. Lines of white space hold no document. The line is the unit of trust in a file of
unknown origin: it has a cap, and whatever is wrong is said with its number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from protocol.corpus import Document, Documents, describe
from protocol.errors import VerificationError
from witness.data.compressed import SUFFIXES, compression, expand
from witness.data.corpus import CHUNK, Location
from witness.data.files import DataFile, FileCorpus, Layout, Stamp
from witness.data.options import MAX_RECORD, DataOptions, damaged
from witness.data.reader import Chunk, Reader

DEFAULT_FIELD = "text"
PLACE = np.dtype([("offset", "<u8"), ("length", "<u4"), ("file", "<u4")])
"""Where a document's line is: 16 bytes."""


class LineReader(Reader):
    """The documents of JSON lines, compressed or not.

    Args:
        options: `field`.
    """

    def __init__(self, options: DataOptions) -> None:
        options.require_only_for_texts("format", "field")
        self.field = DEFAULT_FIELD if options.field is None else options.field
        self._parse = parser(self.field)

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The documents; places are those of lines in what a compressed file expands to."""
        for number, (line, place, read) in enumerate(split(file, self._content(file, opened)), 1):
            if not line or line.isspace():
                continue
            try:
                document = self._parse(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise damaged(file, f"line {number}: {error}", line=number) from None
            yield Chunk(document, True, read, (place, len(line)))

    def _content(self, file: DataFile, opened: int) -> Iterator[tuple[bytes, int]]:
        kind = compression(file)
        named = next((kind for suffix, kind in SUFFIXES.items() if str(file).lower().endswith(suffix)), kind)
        if named != kind:
            raise damaged(file, f"its name says {named}, its first bytes do not")
        if kind is not None:
            return expand(file, opened, kind)
        return ((data, len(data)) for data in file.chunks(opened, 0, file.stamp.length))


def parser(field: str) -> Any:
    """A function from a line to the UTF-8 bytes of one of its fields.

    Other fields are skipped, not built. Of a field that occurs twice, the last one counts, as for Python's `json`.
    """
    line = msgspec.defstruct("Line", [("document", str, msgspec.field(name=field))])
    decoder = msgspec.json.Decoder(line)
    return lambda data: decoder.decode(data).document.encode()  # type: ignore[attr-defined] # a type made just now


def split(file: DataFile, content: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, int, int]]:
    """Lines without their ends: each with its offset in the content, and the bytes of the file read for it.

    Raises:
        UsageError: `data-file`, for a line of more than `MAX_RECORD` bytes.
    """
    begun: list[bytes] = []
    held = at = read = 0
    for data, size in content:
        read += size
        *lines, rest = data.split(b"\n")
        for line in lines:
            if begun:
                begun.append(line)
                line = b"".join(begun)
                begun, held = [], 0
            yield line, at, read
            at += len(line) + 1
            read = 0
        if rest:
            begun.append(rest)
            held += len(rest)
            if held > MAX_RECORD:
                raise damaged(file, f"a line of more than {MAX_RECORD} bytes, from byte {at} on")
    if begun:
        yield b"".join(begun), at, read


class LineCorpus(FileCorpus):
    """Documents in lines that stay where they are.

    Args:
        documents: committed before.
        source: what to call the data.
        files: in the order of their documents.
        places: of the documents' lines, an array of `PLACE`.
        location: where a later process finds the data; its `part` is the field.

    Raises:
        VerificationError: `corpus-changed`, when the places do not fit documents and files.
    """

    def __init__(
        self, documents: Documents, source: str, files: Sequence[DataFile], places: np.ndarray, location: Location
    ) -> None:
        self.places = places
        self._parse = parser(location.part or DEFAULT_FIELD)
        self._latest: tuple[int, bytes] = (-1, b"")
        super().__init__(documents, source, files, layouts=(), location=location)

    def _placed(self, layouts: Iterable[Layout]) -> tuple[array[int], array[int]]:
        """Numbers of the first document of each file."""
        del layouts
        homes, offsets, lengths = (self.places[name] for name in ("file", "offset", "length"))
        known = len(homes) == len(self.documents.leaves) and bool(np.all(homes[:-1] <= homes[1:]))
        if not known or (len(homes) and int(homes[-1]) >= len(self.files)):
            raise VerificationError(
                "corpus-changed", f"{self.source}: the places of its lines are not those of its files"
            )
        firsts = array("Q", np.searchsorted(homes, np.arange(len(self.files) + 1)).tolist())
        for index, file in enumerate(self.files):
            mine = slice(firsts[index], firsts[index + 1])
            last = int(offsets[mine].max(initial=0))  # alone first: a sum with it may pass 2^64
            if last <= file.stamp.length:
                last = int((offsets[mine] + lengths[mine]).max(initial=0))
            if last > file.stamp.length:
                raise VerificationError(
                    "corpus-changed",
                    f"{file} is not what was committed: {file.stamp.length} bytes where there were at least {last}",
                    evidence={"path": str(file)},
                )
        return firsts, array("q")

    def _fetch(self, file: DataFile, leaf: Document, start: int, stop: int) -> tuple[bytes, Stamp]:
        number, document = self._latest
        if number == leaf.index:
            return document[start:stop], file.stamp
        offset, length, _ = self.places[leaf.index].tolist()
        line, found = file.read(offset, offset + length)
        document = self._document(line)
        if len(document) != leaf.length:
            return b"", found
        if leaf.length > CHUNK:  # it will be asked for in several parts
            self._latest = (leaf.index, document)
        return document[start:stop], found

    def _redescribed(self, file: DataFile, opened: int, leaf: Document) -> Document:
        offset, length, _ = self.places[leaf.index].tolist()
        document = self._document(file.pread(opened, offset, offset + length))
        return describe(leaf.index, leaf.token_start, [document])

    def _document(self, line: bytes) -> bytes:
        """The document in a line; nothing where it is no longer a line of the format."""
        try:
            document: bytes = self._parse(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return b""
        return document
