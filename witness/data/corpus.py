"""A corpus with its bytes: the committed leaves, and a way to read what they commit to.

`protocol.corpus` knows documents by their leaves alone. The trainer also has the bytes, and needs three things from
them: samples to train on, pieces with proofs to open for a verifier, and the certainty that they are still what was
committed. Where the bytes are is a subclass's business; it only has to read a range.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, Self

from protocol import merkle
from protocol.corpus import (
    MAX_DOCUMENTS,
    PIECE,
    CorpusClaim,
    Document,
    Documents,
    Packing,
    check_piece,
    describe,
    iterate_pieces,
    piece_count,
    piece_leaf,
)
from protocol.errors import UsageError, VerificationError

CHUNK = 1 << 20
"""Bytes read at a time; a multiple of `PIECE`."""
CACHED_PIECES = 1 << 20
"""Pieces in cached piece trees, at 64 bytes each; one tree is kept whatever its size."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes done and, where it is known, the bytes in all."""


Kind = Literal["text-file", "text-folder", "npy", "documents", "tokens", "safetensors", "jsonl"]
"""How data that stays where it is gets read again."""


class Location(NamedTuple):
    """Where the data of a corpus is.

    Attributes:
        kind: which adapter reads it.
        path: absolute.
        names: of its files below `path`, in the order of their documents, for a folder.
        part: of each file or record that holds the documents: a tensor's name, a field's.
    """

    kind: Kind
    path: str
    names: tuple[bytes, ...] = ()
    part: str | None = None


class Corpus(ABC):
    """Documents that can be read.

    Args:
        documents: the committed leaves and how samples are cut from them.
        source: what the data is called in the manifest, which is public: a name, not a path.
    """

    location: Location | None = None
    """Where the data can be found again when the process has ended; None where it is only in memory."""

    def __init__(self, documents: Documents, source: str) -> None:
        self.documents = documents
        self.source = source
        self._trees: OrderedDict[int, merkle.Tree] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def read(self, document: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of one document; safe to call from several threads.

        Raises:
            UsageError: `no-such-leaf`, when the document has no such bytes; `corpus-missing`, when they cannot be read.
            VerificationError: `corpus-changed`, when they are no longer what was committed, as far as that shows.
        """

    def claim(self) -> CorpusClaim:
        """The manifest's line on this corpus."""
        return self.documents.claim(self.source)

    def sample(self, index: int) -> bytes:
        """The bytes of one sample.

        Raises:
            UsageError: `schedule`, when there is no such sample; and what `read` raises.
        """
        return b"".join(self.read(*span) for span in self.documents.spans(index))

    def samples(self, indices: Iterable[int]) -> list[bytes]:
        """The bytes of several samples, in the order asked for."""
        return [self.sample(index) for index in indices]

    def chunks(self, document: int) -> Iterator[bytes]:
        """A whole document, a chunk at a time."""
        length = self.leaf(document).length
        for at in range(0, length, CHUNK):
            yield self.read(document, at, min(at + CHUNK, length))

    def leaf(self, document: int) -> Document:
        """The committed leaf of a document.

        Raises:
            UsageError: `no-such-leaf`.
        """
        if not 0 <= document < len(self.documents.leaves):
            raise UsageError(
                "no-such-leaf", f"there is no document {document} in a corpus of {len(self.documents.leaves)}"
            )
        return self.documents.leaves[document]

    def piece(self, document: int, piece: int) -> tuple[bytes, list[bytes]]:
        """One piece of a document, opened: its bytes, and their inclusion proof under the leaf's `pieces_root`.

        The first piece of a document costs one pass over the document; its tree (1/64 of its size) is kept for the
        next.

        Raises:
            UsageError: `no-such-leaf`, for a document or piece that does not exist; and what `read` raises.
            VerificationError: `corpus-changed`. A piece that its own leaf would refuse is never returned.
        """
        leaf = self.leaf(document)
        count = piece_count(leaf)
        if not 0 <= piece < count:
            raise UsageError("no-such-leaf", f"there is no piece {piece} in document {document}, which has {count}")
        proof = self._tree(leaf).inclusion_proof(piece) if count > 1 else []
        data = self.read(document, piece * PIECE, min((piece + 1) * PIECE, leaf.length))
        try:
            check_piece(leaf, piece, data, proof)
        except VerificationError:
            raise self.changed(document) from None
        return data, proof

    def check(self, progress: Progress | None = None) -> None:
        """Reads every document again and compares it with its leaf.

        Raises:
            VerificationError: `corpus-changed`, naming the first document that differs; and what `read` raises.
        """
        meter = Meter(self.documents.size, progress)
        for leaf in self.documents.leaves:
            chunks = meter.watch(self.chunks(leaf.index))
            if describe(leaf.index, leaf.token_start, chunks, self.documents.width) != leaf:
                raise self.changed(leaf.index)
        meter.finish()

    def with_packing(self, packing: Packing) -> Self:
        """The same documents, cut into other samples."""
        again = copy.copy(self)
        again.documents = self.documents.with_packing(packing)
        return again

    def name(self, document: int) -> str:
        """What messages call a document."""
        return f"document {document} of {self.source}"

    def changed(self, document: int, how: str = "its bytes differ") -> VerificationError:
        """The error for a document that is not the committed one."""
        return VerificationError(
            "corpus-changed",
            f"{self.name(document)} is not what was committed: {how}",
            evidence={"document": document, "source": self.source},
        )

    def _tree(self, leaf: Document) -> merkle.Tree:
        with self._lock:
            tree = self._trees.get(leaf.index)
            if tree is not None:
                self._trees.move_to_end(leaf.index)
                return tree
        # CHUNK is a multiple of PIECE, so pieces do not cross chunks.
        tree = merkle.Tree(piece_leaf(piece) for chunk in self.chunks(leaf.index) for piece in iterate_pieces(chunk))
        if tree.root() != leaf.pieces_root:
            raise self.changed(leaf.index)
        with self._lock:
            self._trees[leaf.index] = tree
            while len(self._trees) > 1 and sum(kept.size for kept in self._trees.values()) > CACHED_PIECES:
                self._trees.popitem(last=False)
        return tree


class Meter:
    """Counts bytes as they pass, and reports them about once a chunk.

    Args:
        total: bytes in all; None where nobody knows.
        progress: whom to tell; None for nobody.
    """

    def __init__(self, total: int | None, progress: Progress | None) -> None:
        self._done, self._told, self._total, self._progress = 0, 0, total, progress

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Passes chunks on."""
        for chunk in chunks:
            yield chunk
            self.advance(len(chunk))

    def advance(self, size: int) -> None:
        """Counts bytes that are done."""
        self._done += size
        if self._progress is not None and self._done - self._told >= CHUNK:
            self._told = self._done
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Reports the end: also for work so small that nothing was reported before."""
        if self._progress is not None:
            self._progress(self._done if self._total is None else self._total, self._total)


def commit(
    documents: Iterable[Iterable[bytes]],
    packing: Packing,
    *,
    total: int | None = None,
    progress: Progress | None = None,
) -> Documents:
    """Commits to documents that arrive one after another, each in chunks.

    Args:
        documents: each is read to its end before the next one is asked for.
        packing: how samples are cut.
        total: bytes in all, where known.
        progress: told as the work goes on.

    Raises:
        UsageError: `corpus-data`, for more documents than a corpus can hold.
    """
    meter = Meter(total, progress)
    leaves: list[Document] = []
    at = 0
    for index, chunks in enumerate(documents):
        if index == MAX_DOCUMENTS:
            raise UsageError(
                "corpus-data",
                f"more than {MAX_DOCUMENTS} documents",
                next_action="join small documents into larger ones",
            )
        leaves.append(describe(index, at, meter.watch(chunks)))
        at += leaves[-1].length
    meter.finish()
    return Documents(leaves, packing)


def require_range(document: Document, start: int, stop: int) -> None:
    """Raises `UsageError` (`no-such-leaf`) unless the document has bytes `start` to `stop`."""
    if not 0 <= start <= stop <= document.length:
        raise UsageError(
            "no-such-leaf", f"document {document.index} has {document.length} bytes, and none from {start} to {stop}"
        )


def require_samples(corpus: Corpus) -> Corpus:
    """Returns a corpus that holds something to draw.

    Raises:
        UsageError: `empty-corpus`, with the numbers.
    """
    documents, packing = corpus.documents, corpus.documents.packing
    if documents.samples and documents.tokens:
        return corpus
    found = f"{corpus.source} holds {len(documents.leaves)} documents with {documents.tokens} tokens in all"
    evidence: dict[str, object] = {"documents": len(documents.leaves), "tokens": documents.tokens}
    if packing.kind == "windows":
        evidence["window"] = packing.length
        found += f"; one window is {packing.length} tokens long"
    raise UsageError("empty-corpus", found, evidence=evidence)


def chunked(data: bytes | memoryview) -> Iterator[bytes]:
    """The chunks of a document in memory."""
    for at in range(0, len(data), CHUNK):
        yield bytes(data[at : at + CHUNK])
