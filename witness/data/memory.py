"""Documents in memory: a list of bytes or text, or an array."""

from collections.abc import Sequence

import numpy as np

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data.arrays import refuse_dtype
from witness.data.corpus import Corpus, Progress, chunked, commit, require_range


class MemoryCorpus(Corpus):
    """Documents that live as long as the process.

    Args:
        data: the documents, as bytes that nobody can change.
        packing: how samples are cut.
        source: what to call them.
        progress: told as the documents are hashed.
    """

    def __init__(
        self,
        data: Sequence[bytes | memoryview],
        packing: Packing,
        source: str = "memory",
        progress: Progress | None = None,
    ) -> None:
        documents = commit(map(chunked, data), packing, total=sum(map(len, data)), progress=progress)
        super().__init__(documents, source)
        self._data = data

    def read(self, document: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of one document."""
        require_range(self.leaf(document), start, stop)
        return bytes(self._data[document][start:stop])


def from_list(data: Sequence[object], packing: Packing, progress: Progress | None = None) -> MemoryCorpus:
    """The corpus of a list of bytes or text (as UTF-8), one document each.

    Raises:
        UsageError: `corpus-data`, naming the first element that is neither.
    """
    documents: list[bytes | memoryview] = []
    for index, item in enumerate(data):
        if isinstance(item, bytes):
            documents.append(item)
        elif isinstance(item, str):
            try:
                documents.append(item.encode())
            except UnicodeEncodeError as error:
                raise UsageError(
                    "corpus-data", f"document {index} is not text that UTF-8 can hold: {error.reason}"
                ) from None
        else:
            raise UsageError(
                "corpus-data", f"document {index} of the list is a {type(item).__name__}, not bytes or text"
            )
    return MemoryCorpus(documents, packing, progress=progress)


def from_array(
    array: np.ndarray, packing: Packing, progress: Progress | None = None, *, source: str = "array"
) -> MemoryCorpus:
    """The corpus of an array: one document a row, of its elements' little-endian bytes in row-major order.

    An array of one dimension is one document. The bytes are copied, so that later changes of the array cannot reach
    the corpus.

    Raises:
        UsageError: `corpus-data`, for an array of objects, records or dates, or without dimensions.
    """
    refuse_dtype(array.dtype)
    if array.ndim == 0:
        raise UsageError("corpus-data", "an array without dimensions has no rows")
    rows = 1 if array.ndim == 1 else array.shape[0]
    data = memoryview(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    length = len(data) // max(1, rows)
    return MemoryCorpus([data[row * length : (row + 1) * length] for row in range(rows)], packing, source, progress)
