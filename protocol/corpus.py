"""The corpus as both sides know it: committed documents, and how samples are cut from them.

Each document has a leaf (`protocol.leaves`); the root of the leaves is in the manifest before step 1.

Packing says what a sample is: one document each, or windows of `length` tokens every `stride` tokens over the
concatenation of all documents. `sample -> spans of documents` is a pure function of leaves and packing; that is what a
step's records digest binds, and it needs no document's bytes to check.

A token is one byte, or two or four of them, little-endian: `tokenizer` in the claim says which. Windows are cut in
tokens; lengths, pieces and spans of documents are always in bytes.

Specified in spec/corpus.md.
"""

import copy
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple, Self

import msgspec

from protocol import merkle
from protocol.encoding import Count, Hex32, Struct, tagged_hash
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.leaves import (
    LEAF_BYTES,
    MAX_DOCUMENTS,
    PIECE,
    Document,
    Leaves,
    check_piece,
    describe,
    iterate_pieces,
    parse_leaves,
    piece_count,
    piece_leaf,
)

__all__ = [
    "LEAF_BYTES",
    "MAX_DOCUMENTS",
    "MAX_OPENED",
    "PIECE",
    "TOKEN_BYTES",
    "CorpusClaim",
    "Document",
    "Documents",
    "Leaves",
    "Packing",
    "Span",
    "Tokenizer",
    "assemble",
    "check_piece",
    "describe",
    "iterate_pieces",
    "parse_leaves",
    "piece_count",
    "piece_leaf",
    "token_bytes",
]

MAX_OPENED = 1 << 20
"""Pieces that one step's samples may fill (4 GiB): leaves can claim any length, and a list of pieces costs memory."""
_SPAN = struct.Struct(">32sQQ")

TOKEN_BYTES = {"bytes": 1, "uint16": 2, "uint32": 4}
"""Width of a token in bytes, by the first word of a tokenizer's name."""
Tokenizer = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A(bytes|uint(16|32)(:(tokenizers|tiktoken-(r50k_base|cl100k_base|o200k_base)):[0-9a-f]{64})?)\Z"
    ),
]
"""What a token is: `bytes`, `uint16` or `uint32`, little-endian. Where text was tokenised: with what, too, as the
library that reads the tokenizer's file and the file's SHA-256. A tiktoken file does not hold the rule by which text is
split, so the encoding whose rule was used is named as well."""


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
        tokens: length of the token stream, in tokens.
        tokenizer: what a token is. The documents are the tokens' bytes, also where they were made from text.
        packing: how samples are cut.
        digest: how documents are cut for opening, with its parameters.
        source: what the trainer calls the data; not checked.
    """

    root: Hex32
    documents: Count
    tokens: Count
    packing: Packing
    tokenizer: Tokenizer = "bytes"
    digest: Literal["sha256-pieces-4096"] = "sha256-pieces-4096"
    source: str = ""


def token_bytes(tokenizer: str) -> int:
    """The width of a token in bytes, from a tokenizer's name as a claim spells it."""
    return TOKEN_BYTES[tokenizer.partition(":")[0]]


class Span(NamedTuple):
    """A run of bytes of one document."""

    document: int
    start: int
    stop: int


class Documents:
    """All leaves of a corpus and the samples cut from them; about 140 bytes of memory a document.

    Args:
        leaves: in order.
        packing: how samples are cut.
        tokenizer: what a token is.

    Raises:
        ProtocolError: `corpus-leaves`, when the leaves do not form one stream of such tokens.
    """

    def __init__(self, leaves: Sequence[Document], packing: Packing, tokenizer: str = "bytes") -> None:
        if len(leaves) > MAX_DOCUMENTS:
            raise ProtocolError("corpus-leaves", f"{len(leaves)} documents where at most {MAX_DOCUMENTS} are allowed")
        from protocol.leaf_columns import leaf_hashes, token_starts  # who checks certificates does without numpy

        self.leaves, self.packing = Leaves.of(leaves), packing
        self.tokenizer, self.width = tokenizer, token_bytes(tokenizer)
        """Bytes of a token."""
        self._starts = token_starts(self.leaves, self.width)
        self.tokens = self._starts[-1]
        self.leaf_hashes = leaf_hashes(self.leaves)
        """RFC 9162 leaf hashes, one after another."""
        self.root = merkle.Tree.packed(self.leaf_hashes).root()
        self.samples = _sample_count(len(leaves), self.tokens, packing)
        """How many samples the packing cuts."""

    @property
    def size(self) -> int:
        """Length of all documents together, in bytes."""
        return self.tokens * self.width

    def start_of(self, document: int) -> int:
        """Tokens before a document; those in all for the number after the last."""
        return self._starts[document]

    def at_token(self, position: int) -> int:
        """The last document that begins at or before a token; the number of documents for the end of the stream."""
        return bisect_right(self._starts, position) - 1

    def with_packing(self, packing: Packing) -> Self:
        """The same documents, cut into other samples."""
        again = copy.copy(self)
        again.packing, again.samples = packing, _sample_count(len(self.leaves), self.tokens, packing)
        return again

    def claim(self, source: str = "") -> CorpusClaim:
        """The manifest's line on this corpus."""
        return CorpusClaim(
            self.root.hex(), len(self.leaves), self.tokens, self.packing, tokenizer=self.tokenizer, source=source
        )

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
        starts, width = self._starts, self.width
        if self.packing.kind == "documents":
            return [Span(sample, 0, (starts[sample + 1] - starts[sample]) * width)]
        start = sample * self.packing.stride
        stop = start + self.packing.length
        document = bisect_right(starts, start, 0, len(starts) - 1) - 1
        before = starts[document]
        if stop <= starts[document + 1]:  # most windows lie within one document
            return [Span(document, (start - before) * width, (stop - before) * width)]
        found = []
        while start < stop:
            before, end = starts[document], min(stop, starts[document + 1])
            if end > start:
                found.append(Span(document, (start - before) * width, (end - before) * width))
                start = end
            document += 1
        return found

    def records_digest(self, step: int, samples: Sequence[int]) -> bytes:
        """What a step record commits to as drawn: each sample's number and its spans, as leaf hash and byte range."""
        parts = []
        for sample in samples:
            part = sample.to_bytes(8, "big")
            for document, start, stop in self.spans(sample):
                part += _SPAN.pack(self.leaf_hashes[32 * document : 32 * document + 32], start, stop)
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


def assemble(documents: Documents, pieces: dict[tuple[int, int], bytes], sample: int) -> bytes:
    """The bytes of one sample from opened pieces."""
    return b"".join(_cut(pieces, span) for span in documents.spans(sample))


def _cut(pieces: dict[tuple[int, int], bytes], span: Span) -> bytes:
    first = span.start // PIECE
    last = max(span.start, span.stop - 1) // PIECE
    data = b"".join(pieces[span.document, piece] for piece in range(first, last + 1))
    return data[span.start - first * PIECE : span.stop - first * PIECE]


def _sample_count(documents: int, tokens: int, packing: Packing) -> int:
    if packing.kind == "documents":
        return documents
    return max(0, (tokens - packing.length) // packing.stride + 1)
