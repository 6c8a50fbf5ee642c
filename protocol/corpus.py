"""The corpus as both sides know it: committed documents, and how samples are cut from them.

A document's leaf binds its index, byte length, SHA-256 (the key of inclusion and exclusion queries), the root of its 4
KiB pieces (so that a window of a huge document opens without the rest of it), and its place in the token stream. The
root of the leaves is in the manifest before step 1.

Packing says what a sample is: one document each, or windows of `length` tokens every `stride` tokens over the
concatenation of all documents. `sample -> spans of documents` is a pure function of leaves and packing; that is what a
step's records digest binds, and it needs no document's bytes to check.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from protocol import merkle
from protocol.encoding import Count, Hex32, Struct, tagged_hash
from protocol.errors import ProtocolError, UsageError, VerificationError

PIECE = 4096
LEAF_BYTES = 96
MAX_DOCUMENTS = 1 << 24
MAX_OPENED = 1 << 20
"""Pieces that one step's samples may fill (4 GiB): leaves can claim any length, and a list of pieces costs memory."""
_LEAF = struct.Struct(">QQ32s32sQQ")
_SPAN = struct.Struct(">32sQQ")
_LEAF_TAG, _PIECE_TAG = b"TW1C", b"TW1D"


class Packing(Struct, frozen=True):
    """How documents become samples.

    Attributes:
        kind: `documents` (one sample a document) or `windows`.
        length: tokens of a window (0 for `documents`).
        stride: tokens from one window's start to the next (0 for `documents`).
    """

    kind: Literal["documents", "windows"]
    length: Count = 0
    stride: Count = 0

    def __post_init__(self) -> None:
        """Refuses windows that do not advance, and a second spelling of `documents`."""
        sizes = (self.length, self.stride)
        if min(sizes) < 1 if self.kind == "windows" else any(sizes):
            raise ProtocolError("not-canonical", "windows have a length and a stride, documents have neither")


class CorpusClaim(Struct, frozen=True):
    """What the manifest says of the corpus.

    Attributes:
        root: RFC 9162 root of the document leaves.
        documents: number of leaves.
        tokens: length of the token stream.
        tokenizer: `bytes`: a token is a byte.
        packing: how samples are cut.
        digest: how documents are cut for opening, with its parameters.
        source: what the trainer calls the data; not checked.
    """

    root: Hex32
    documents: Count
    tokens: Count
    packing: Packing
    tokenizer: Literal["bytes"] = "bytes"
    digest: Literal["sha256-pieces-4096"] = "sha256-pieces-4096"
    source: str = ""


class Document(NamedTuple):
    """One leaf of the corpus."""

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


class Span(NamedTuple):
    """A run of bytes of one document."""

    document: int
    start: int
    stop: int


def piece_leaf(piece: bytes | memoryview) -> bytes:
    """RFC 9162 leaf hash of one piece of a document."""
    return hashlib.sha256(b"".join((b"\x00", _PIECE_TAG, piece))).digest()


def describe(index: int, token_start: int, chunks: Iterable[bytes]) -> Document:
    """The leaf of a document that arrives in chunks: memory does not grow with its length.

    Args:
        index: place in the corpus.
        token_start: tokens before it.
        chunks: its bytes, cut anywhere.
    """
    whole, tree, rest, length = hashlib.sha256(), merkle.Frontier(), b"", 0
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
    return Document(index, length, whole.digest(), tree.root(), token_start, length)


class Documents:
    """All leaves of a corpus and the samples cut from them.

    Args:
        leaves: in order.
        packing: how samples are cut.

    Raises:
        ProtocolError: `corpus-leaves`, when the leaves do not form one token stream.
    """

    def __init__(self, leaves: Sequence[Document], packing: Packing) -> None:
        if len(leaves) > MAX_DOCUMENTS:
            raise ProtocolError("corpus-leaves", f"{len(leaves)} documents where at most {MAX_DOCUMENTS} are allowed")
        at = 0
        for index, leaf in enumerate(leaves):
            if leaf.index != index or leaf.token_start != at or leaf.token_length != leaf.length:
                raise ProtocolError("corpus-leaves", f"document {index} does not continue the token stream at {at}")
            at += leaf.token_length
        self.leaves, self.packing, self.tokens = tuple(leaves), packing, at
        self.hashes = [leaf.leaf_hash() for leaf in leaves]
        self.root = merkle.root(self.hashes)
        self.samples = len(leaves)
        """How many samples the packing cuts."""
        if packing.kind == "windows":
            self.samples = max(0, (at - packing.length) // packing.stride + 1)
        self._starts = [leaf.token_start for leaf in leaves]

    def claim(self, source: str = "") -> CorpusClaim:
        """The manifest's line on this corpus."""
        return CorpusClaim(self.root.hex(), len(self.leaves), self.tokens, self.packing, source=source)

    def check(self, claim: CorpusClaim) -> None:
        """Raises `VerificationError` (`corpus-root`) unless these are the claimed documents."""
        if self.claim(claim.source) != claim:
            raise VerificationError(
                "corpus-root",
                "the documents are not the committed corpus",
                evidence={"committed": claim.root, "found": self.root.hex(), "documents": len(self.leaves)},
            )

    def spans(self, sample: int) -> list[Span]:
        """The runs of bytes that sample number `sample` is made of.

        Raises:
            UsageError: `schedule`, when there is no such sample.
        """
        if not 0 <= sample < self.samples:
            raise UsageError("schedule", f"sample {sample} of {self.samples}")
        if self.packing.kind == "documents":
            return [Span(sample, 0, self.leaves[sample].length)]
        start = sample * self.packing.stride
        stop = start + self.packing.length
        found = []
        document = bisect_right(self._starts, start) - 1
        leaf = self.leaves[document]
        if stop <= leaf.token_start + leaf.token_length:  # most windows lie within one document
            return [Span(document, start - leaf.token_start, stop - leaf.token_start)]
        while start < stop:
            leaf = self.leaves[document]
            end = min(stop, leaf.token_start + leaf.token_length)
            if end > start:
                found.append(Span(document, start - leaf.token_start, end - leaf.token_start))
                start = end
            document += 1
        return found

    def records_digest(self, step: int, samples: Sequence[int]) -> bytes:
        """What a step record commits to as drawn: each sample's number and its spans, as leaf hash and byte range."""
        parts = []
        for sample in samples:
            part = sample.to_bytes(8, "big")
            for document, start, stop in self.spans(sample):
                part += _SPAN.pack(self.hashes[document], start, stop)
            parts.append(part)
        return tagged_hash("records", step.to_bytes(8, "big"), *parts)

    def pieces_of(self, samples: Iterable[int]) -> list[tuple[int, int]]:
        """The `(document, piece)` pairs that hold the bytes of `samples`, sorted and distinct.

        Raises:
            ProtocolError: `too-large`, for more than `MAX_OPENED` of them.
        """
        needed: set[tuple[int, int]] = set()
        for sample in samples:
            for document, start, stop in self.spans(sample):
                last = max(start, stop - 1)
                if len(needed) + last // PIECE - start // PIECE >= MAX_OPENED:
                    raise ProtocolError("too-large", f"the samples fill more than {MAX_OPENED} pieces of documents")
                needed.update((document, piece) for piece in range(start // PIECE, last // PIECE + 1))
        return sorted(needed)


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


def parse_leaves(data: bytes) -> list[Document]:
    """The leaves in `data`, 96 bytes each.

    Raises:
        ProtocolError: `corpus-leaves`.
    """
    if len(data) % LEAF_BYTES:
        raise ProtocolError("corpus-leaves", "the list of document leaves is cut short")
    return [Document(*fields) for fields in _LEAF.iter_unpack(data)]


def assemble(documents: Documents, pieces: dict[tuple[int, int], bytes], sample: int) -> bytes:
    """The bytes of one sample from opened pieces."""
    return b"".join(_cut(pieces, span) for span in documents.spans(sample))


def _cut(pieces: dict[tuple[int, int], bytes], span: Span) -> bytes:
    first = span.start // PIECE
    last = max(span.start, span.stop - 1) // PIECE
    data = b"".join(pieces[span.document, piece] for piece in range(first, last + 1))
    return data[span.start - first * PIECE : span.stop - first * PIECE]


def iterate_pieces(data: bytes) -> Iterator[bytes]:
    """The pieces of a document held in memory."""
    for at in range(0, max(1, len(data)), PIECE):
        yield data[at : at + PIECE]
