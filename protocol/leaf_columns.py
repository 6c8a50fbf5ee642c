"""All leaves of a corpus at once, as columns: what every reader of a corpus does first, for millions of documents.

Apart from `protocol.leaves`, so that whoever checks a single leaf need not wait for numpy.

Specified in spec/corpus.md, section 2.
"""

from array import array
from typing import Final

import numpy as np

from protocol.bulk_hash import hash_rows
from protocol.errors import ProtocolError
from protocol.leaves import LEAF_BYTES, LEAF_PREFIX, Leaves

_COLUMNS: Final = np.dtype(
    [("index", ">u8"), ("length", ">u8"), ("digests", "V64"), ("start", ">u8"), ("tokens", ">u8")]
)
_LIMIT: Final = np.uint64(1 << 63)
"""No token stream is longer."""


def leaf_hashes(leaves: Leaves) -> bytes:
    """The RFC 9162 leaf hash of each leaf, 32 bytes one after another."""
    data = np.frombuffer(leaves.to_bytes(), dtype=np.uint8).reshape(-1, LEAF_BYTES)
    return hash_rows(LEAF_PREFIX, data).tobytes()


def moved(leaves: Leaves, documents: int, tokens: int) -> bytes:
    """The bytes of leaves that were counted from 0, behind so many documents and tokens."""
    columns = np.frombuffer(leaves.to_bytes(), dtype=_COLUMNS).copy()
    columns["index"] += np.uint64(documents)
    columns["start"] += np.uint64(tokens)
    return columns.tobytes()


def token_starts(leaves: Leaves, width: int) -> "array[int]":
    """Where each document begins in the token stream, and where the stream ends.

    Args:
        leaves: in order.
        width: of a token, in bytes.

    Raises:
        ProtocolError: `corpus-leaves`, when the leaves are not numbered through, or do not form one stream.
    """
    columns = np.frombuffer(leaves.to_bytes(), dtype=_COLUMNS)
    starts, tokens = columns["start"].astype(np.uint64), columns["tokens"].astype(np.uint64)
    ends = starts + tokens  # of two numbers below the limit there is no overflow, and others are refused
    expected = np.append(np.zeros(1, dtype=np.uint64), ends)
    wrong = (columns["index"] != np.arange(len(columns), dtype=np.uint64)) | (starts != expected[:-1])
    wrong |= (columns["length"] // width != tokens) | (columns["length"] % width != 0)
    beyond = (starts >= _LIMIT) | (tokens >= _LIMIT) | (ends >= _LIMIT)
    if (wrong | beyond).any():
        document = int((wrong | beyond).argmax())
        if wrong[document]:
            raise ProtocolError(
                "corpus-leaves",
                f"document {document} does not continue the token stream at {int(expected[document])}",
            )
        raise ProtocolError("corpus-leaves", f"document {document} ends beyond any token stream")
    return array("Q", expected.tobytes())
