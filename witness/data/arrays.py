"""Arrays in `.npy` files: one document a row, read row by row and never whole.

A file is accepted only when its rows stand in it as the documents' bytes: plain numbers, little-endian, row-major.
Then any row is one read at a known place, and nothing has to be unpickled, converted or held in memory.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from protocol.corpus import MAX_DOCUMENTS, Packing
from protocol.errors import UsageError
from witness.data.corpus import Progress
from witness.data.files import DataFile, FileCorpus, Location, readable

NUMBERS = "biufc"
"""Kinds of dtype whose elements are all bytes and no padding, references or units."""
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of headers by the format's version; 3.0 only serves named fields."""


class Layout(NamedTuple):
    """Where the rows of an array stand in its file.

    Attributes:
        offset: of the first row, in bytes.
        rows: how many there are.
        row_bytes: length of each.
    """

    offset: int
    rows: int
    row_bytes: int


def open_array(path: Path, packing: Packing, progress: Progress | None = None) -> FileCorpus:
    """Commits to the rows of a `.npy` file; an array of one dimension is one document.

    Args:
        path: absolute, links followed.
        packing: how samples are cut.
        progress: told as the rows are hashed.

    Raises:
        UsageError: `corpus-data`, when the file is not an array of plain numbers in that layout.
    """
    file = DataFile(str(path))
    layout = read_layout(file)
    rows = [layout.row_bytes] * layout.rows
    return FileCorpus.commit(
        [file], rows, packing, readable(path.name), Location("npy", str(path)), offset=layout.offset, progress=progress
    )


def read_layout(file: DataFile) -> Layout:
    """Parses the header of a `.npy` file.

    Raises:
        UsageError: `corpus-data`.
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
    length = dtype.itemsize
    for size in shape:
        length *= size
    if min(shape) < 0 or offset + length != file.stamp.length:
        raise refuse(
            f"{file.stamp.length} bytes where its header tells of {offset + length}",
            "make the file again: it is cut short or altered",
        )
    rows = 1 if len(shape) == 1 else shape[0]
    if rows > MAX_DOCUMENTS:
        raise refuse(
            f"{rows} rows where a corpus holds at most {MAX_DOCUMENTS} documents", "save several samples in a row"
        )
    return Layout(offset, rows, length // max(1, rows))


def refuse_dtype(dtype: np.dtype, name: str = "the array") -> None:
    """Raises `UsageError` (`corpus-data`) unless elements are plain numbers or truth values."""
    if dtype.kind not in NUMBERS:
        raise UsageError(
            "corpus-data",
            f"{name} holds elements of dtype {dtype}, not plain numbers",
            next_action="convert it to integers or floats",
        )
