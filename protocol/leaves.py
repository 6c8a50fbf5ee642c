"""One leaf for each document: what commits to its bytes, and how a piece of it is opened.

A leaf binds a document's index, byte length, SHA-256 (the key of inclusion and exclusion queries), the root of its 4
KiB pieces (so that a window of a huge document opens without the rest of it), and its place in the token stream.

Specified in spec/corpus.md, sections 2 and 6.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, overload

from protocol import merkle
from protocol.errors import ProtocolError, VerificationError

PIECE = 4096
LEAF_BYTES = 96
MAX_DOCUMENTS = 1 << 24
_LEAF = struct.Struct(">QQ32s32sQQ")
_LEAF_TAG, _PIECE_TAG = b"TW1C", b"TW1D"
LEAF_PREFIX = b"\x00" + _LEAF_TAG
"""What stands before a leaf's bytes where they are hashed (`Document.leaf_hash`)."""


class Document(NamedTuple):
    """One leaf of the corpus: `length` is in bytes, `token_start` and `token_length` in tokens."""

    index: int  # type: ignore[assignment] # hides tuple.index, which nobody calls on a leaf
    length: int
    digest: bytes
    pieces_root: bytes
    token_start: int
    token_length: int

    def to_bytes(self) -> bytes:
        """96 bytes, integers big-endian."""
        return _LEAF.pack(*self)

    def leaf_hash(self) -> bytes:
        """RFC 9162 leaf hash under the corpus tag."""
        return merkle.leaf_hash(_LEAF_TAG + self.to_bytes())


class Leaves(Sequence[Document]):
    """Leaves at 96 bytes each, where a list of them takes six times that.

    Args:
        data: the leaves' bytes, one after another.

    Raises:
        ProtocolError: `corpus-leaves`, when they end within a leaf.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray) -> None:
        if len(data) % LEAF_BYTES:
            raise ProtocolError("corpus-leaves", "the list of document leaves is cut short")
        self._data = bytes(data)

    @classmethod
    def of(cls, leaves: Iterable[Document]) -> "Leaves":
        """The same leaves, packed."""
        return leaves if isinstance(leaves, Leaves) else cls(b"".join(leaf.to_bytes() for leaf in leaves))

    def to_bytes(self) -> bytes:
        """The leaves' bytes, one after another."""
        return self._data

    def __len__(self) -> int:
        return len(self._data) // LEAF_BYTES

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> "Leaves": ...

    def __getitem__(self, index: "int | slice") -> "Document | Leaves":
        count = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(count)
            if step != 1:
                return Leaves(b"".join(self[i].to_bytes() for i in range(start, stop, step)))
            return Leaves(self._data[start * LEAF_BYTES : max(start, stop) * LEAF_BYTES])
        if not -count <= index < count:
            raise IndexError(f"there is no leaf {index} among {count}")
        return Document._make(_LEAF.unpack_from(self._data, index % count * LEAF_BYTES))

    def __iter__(self) -> Iterator[Document]:
        return map(Document._make, _LEAF.iter_unpack(self._data))

    def __eq__(self, other: object) -> bool:
        return self._data == other._data if isinstance(other, Leaves) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._data)


def piece_leaf(piece: bytes | memoryview) -> bytes:
    """RFC 9162 leaf hash of one piece of a document."""
    return hashlib.sha256(b"".join((b"\x00", _PIECE_TAG, piece))).digest()


class Digest(Protocol):
    """What `hashlib` hashes with."""

    def update(self, data: bytes, /) -> None:
        """Takes the next bytes."""

    def digest(self) -> bytes:
        """The hash of all of them."""


def describe(
    index: int, token_start: int, chunks: Iterable[bytes], width: int = 1, whole: Digest | None = None
) -> Document:
    """The leaf of a document that arrives in chunks: memory does not grow with its length.

    Args:
        index: place in the corpus.
        token_start: tokens before it.
        chunks: its bytes, cut anywhere.
        width: of a token, in bytes.
        whole: a fresh SHA-256 for the document's digest, where the caller has a better one (in another thread).

    Raises:
        ProtocolError: `corpus-leaves`, for a document that ends within a token.
    """
    whole = whole or hashlib.sha256()
    tree, rest, length = merkle.Frontier(), b"", 0
    for chunk in chunks:
        whole.update(chunk)
        length += len(chunk)
        rest += chunk
        full = len(rest) - len(rest) % PIECE
        for at in range(0, full, PIECE):
            tree.append_hash(piece_leaf(rest[at : at + PIECE]))
        rest = rest[full:]
    if rest or length == 0:
        tree.append_hash(piece_leaf(rest))
    if length % width:
        raise ProtocolError(
            "corpus-leaves", f"document {index} is {length} bytes long, which are no {width}-byte tokens"
        )
    return Document(index, length, whole.digest(), tree.root(), token_start, length // width)


def piece_count(document: Document) -> int:
    """How many pieces a document is cut into; an empty one has one empty piece."""
    return max(1, -(-document.length // PIECE))


def check_piece(document: Document, piece: int, data: bytes, proof: Sequence[bytes]) -> None:
    """Checks opened bytes against a document's leaf.

    Raises:
        VerificationError: `record-bytes`.
    """
    size = min(PIECE, document.length - piece * PIECE)
    try:
        merkle.verify_inclusion(piece_leaf(data), piece, piece_count(document), proof, document.pieces_root)
    except VerificationError:
        size = -1
    if size != len(data):
        raise VerificationError(
            "record-bytes",
            f"piece {piece} of document {document.index} is not the committed one",
            evidence={"document": document.index},
        )


def parse_leaves(data: bytes) -> Leaves:
    """The leaves in `data`, 96 bytes each.

    Raises:
        ProtocolError: `corpus-leaves`.
    """
    return Leaves(data)


def iterate_pieces(data: bytes) -> Iterator[bytes]:
    """The pieces of a document held in memory."""
    for at in range(0, max(1, len(data)), PIECE):
        yield data[at : at + PIECE]
