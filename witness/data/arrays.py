"""Arrays in `.npy` files: one document a row, read row by row and never whole.

A file is accepted only when its rows stand in it as the documents' bytes: plain numbers, little-endian, row-major.
Then any row is one read at a known place, and nothing has to be unpickled, converted or held in memory.
"""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from protocol.corpus import MAX_DOCUMENTS, token_bytes
from protocol.errors import UsageError
from witness.data.files import DataFile, Layout
from witness.data.options import DataOptions
from witness.data.reader import Chunk, InPlace, rows

NUMBERS = "biufc"
"""Kinds of dtype whose elements are all bytes and no padding, references or units."""
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of headers by the format's version; 3.0 only serves named fields."""


class ArrayReader(InPlace):
    """The rows of a `.npy` file; an array of one dimension is one document."""

    def __init__(self, options: DataOptions) -> None:
        options.require_only("format", "tokens")
        self.tokenizer = options.tokens or "bytes"

    def layout(self, file: DataFile) -> Layout:
        """Where the rows stand, from the header."""
        return read_layout(file, self.tokenizer)

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The rows."""
        found = self.layout(file)
        return rows(file, opened, found.offset, found.documents or 0, found.each or 0)


def read_layout(file: DataFile, tokenizer: str = "bytes") -> Layout:
    """Parses the header of a `.npy` file.

    Args:
        file: to read.
        tokenizer: what a token is; unless it is a byte, the elements must be tokens.

    Raises:
        UsageError: `corpus-data`, when the file is not an array of plain numbers in that layout.
    """

    def refuse(why: str, action: str | None = None) -> UsageError:
        return UsageError("corpus-data", f"{file}: {why}", evidence={"path": str(file)}, next_action=action)

    with file.opened() as opened, os.fdopen(os.dup(opened), "rb") as stream:
        stream.seek(0)
        try:
            version = np.lib.format.read_magic(stream)
            shape, columns_first, dtype = READERS[version](stream)
        except Exception as error:  # noqa: BLE001 - the parser lets through whatever its parts raise
            why = str(error).splitlines()[0][:200] if str(error) else ""
            raise refuse(f"not an array file ({type(error).__name__}: {why})") from None
        offset = stream.tell()
    refuse_dtype(dtype, str(file))
    mend = "save it again with numpy.save(path, numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder('<')))"
    if columns_first or dtype.newbyteorder("<") != dtype:
        raise refuse("the array is column-major or big-endian", mend)
    if not shape:
        raise refuse("an array without dimensions has no rows")
    if tokenizer != "bytes" and (dtype.kind != "u" or dtype.itemsize != token_bytes(tokenizer)):
        raise refuse(f"its elements are {dtype}, where {tokenizer} tokens were named")
    length = dtype.itemsize
    for size in shape:
        length *= size
    if min(shape) < 0 or offset + length != file.stamp.length:
        raise refuse(
            f"{file.stamp.length} bytes where its header tells of {offset + length}",
            "make the file again: it is cut short or altered",
        )
    return row_layout(file, offset, shape, length)


def row_layout(file: DataFile, offset: int, shape: Sequence[int], length: int, tail: int = 0) -> Layout:
    """The layout of an array's rows; an array of one dimension is one.

    Raises:
        UsageError: `corpus-data`, for more rows than a corpus holds documents.
    """
    count = 1 if len(shape) == 1 else shape[0]
    if count > MAX_DOCUMENTS:
        raise UsageError(
            "corpus-data",
            f"{file}: {count} rows where a corpus holds at most {MAX_DOCUMENTS} documents",
            evidence={"path": str(file)},
            next_action="save several samples in a row",
        )
    return Layout(offset, length, count, tail, length // max(1, count))


def refuse_dtype(dtype: np.dtype, name: str = "the array") -> None:
    """Raises `UsageError` (`corpus-data`) unless elements are plain numbers or truth values."""
    if dtype.kind not in NUMBERS:
        raise UsageError(
            "corpus-data",
            f"{name} holds elements of dtype {dtype}, not plain numbers",
            next_action="convert it to integers or floats",
        )
