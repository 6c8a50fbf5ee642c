"""What a trainer says of a ledger, and how an asker turns a digest into a question about it.

A tier says what "the same document" means, and is part of every key, so that nothing proven in one tier can be shown as
an answer in another. Its name carries its parameters:

    t0-sha256                     SHA-256 of the document's bytes
    t1-nfc-lf-strip-unicode14     SHA-256 of the bytes after a named normaliser (`protocol.normaliser`)
    t2-winnow-bytes-k32-w19       SHA-256 of spans of k units, chosen by windows of w (`protocol.winnowing`)

An asker needs the digest only, and need not have the normaliser to check a proof. Token spans (`u16`, `u32`) are spans
of the token stream of the corpus that stands in the same manifest and names its tokenizer.

A proof shows that a ledger with this root answers so. That the ledger lists every document that was trained on is
another claim: see the completeness levels of an answer.

Specified in spec/ledger.md, sections 2 and 8.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Annotated, Final

import msgspec

from protocol.corpus import MAX_DOCUMENTS
from protocol.encoding import MAX_INTEGER, Count, Hex32, Struct, tagged_hash
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.ledger_proof import EMPTY, HASH_BYTES, Proof, verify_absence, verify_inclusion

RAW: Final = "t0-sha256"
"""The tier of documents byte for byte: the default, and the only one called exact."""
Tier = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A(t0-sha256|t1-[a-z0-9][a-z0-9.-]{0,59}|t2-winnow-(bytes|u16|u32)-k[1-9][0-9]{0,3}-w[1-9][0-9]{0,3})\Z"
    ),
]
MAX_OCCURRENCES: Final = MAX_DOCUMENTS + 16
"""Bytes of the longest list of occurrences: every document. (A gap takes a
second byte only where it leaves out 128 documents, which would have taken one each.)"""


def document_key(tier: str, digest: bytes) -> bytes:
    """The ledger key of a document, or of a span, in a tier.

    Args:
        tier: its name.
        digest: SHA-256 of what the tier compares: the bytes, the normalised bytes, or the bytes of a gram.

    Raises:
        UsageError: `ledger-key`, if the digest is not 32 bytes.
    """
    if len(digest) != HASH_BYTES:
        raise UsageError("ledger-key", f"a digest is {HASH_BYTES} bytes, not {len(digest)}")
    return tagged_hash("ledger/key", tier.encode("ascii"), digest)


class Occurrences(Struct, frozen=True):
    """Where a key occurs in the corpus.

    Attributes:
        count: how often. In the tiers of documents, the number of documents; for spans, the number of chosen places.
        documents: indices of the documents, strictly ascending; all of them.
    """

    count: Count
    documents: tuple[Count, ...]

    def __post_init__(self) -> None:
        """Refuses lists that say nothing, say it twice, or are longer than a corpus can be."""
        documents = self.documents
        if not 0 < len(documents) <= self.count <= MAX_INTEGER:
            raise ProtocolError("not-canonical", f"{self.count} occurrences in {len(documents)} documents")
        if documents[0] < 0 or documents[-1] >= MAX_DOCUMENTS or any(a >= b for a, b in pairwise(documents)):
            raise ProtocolError("not-canonical", "documents are not in ascending order, each once")

    def to_bytes(self) -> bytes:
        """Count, number of documents, first document, and for each following one how many were left out before it.

        All are LEB128: seven bits a byte, lowest first, the eighth bit set on all but the last byte, no byte more than
        needed. A document that occurs once takes 3 to 6 bytes, and a run of neighbours a byte each.
        """
        out = bytearray()
        previous = -1
        _append(out, self.count)
        _append(out, len(self.documents))
        for document in self.documents:
            _append(out, document - previous - 1)
            previous = document
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: bytes, *, limit: int = MAX_OCCURRENCES) -> "Occurrences":
        """Parses occurrences from the other side.

        Args:
            data: what `to_bytes` gives.
            limit: cap in bytes; larger input is refused before it is parsed.

        Raises:
            ProtocolError: `too-large`, `not-canonical`.
        """
        if len(data) > limit:
            raise ProtocolError("too-large", f"{len(data)} bytes of occurrences where at most {limit} are allowed")
        numbers, number, shift = list[int](), 0, 0
        for byte in data:
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                numbers.append(number)
                number, shift = 0, 0
            elif shift > 56:
                raise ProtocolError("not-canonical", "a number of occurrences is larger than numbers here are")
        if shift or len(numbers) < 3 or numbers[1] != len(numbers) - 2:
            raise ProtocolError("not-canonical", "a list of occurrences is cut short or extended")
        documents, previous = list[int](), -1
        for left_out in numbers[2:]:
            previous += left_out + 1
            documents.append(previous)
        found = cls(numbers[0], tuple(documents))
        if found.to_bytes() != data:
            raise ProtocolError("not-canonical", "occurrences, but not in their one encoding")
        return found

    @property
    def value(self) -> bytes:
        """What the ledger's leaf holds: a tagged SHA-256 over the encoding."""
        return tagged_hash("ledger/value", self.to_bytes())


def grouped(places: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, Occurrences]]:
    """Every key with its occurrences, for `protocol.ledger.build`: equal documents become one entry.

    Args:
        places: key and document index of every document (for spans: of every chosen gram, the same pair perhaps several
            times), in ascending order.
    """
    for key, same in groupby(places, itemgetter(0)):
        documents = [document for _, document in same]
        yield key, Occurrences(len(documents), tuple(dict.fromkeys(documents)))


class LedgerClaim(Struct, frozen=True):
    """What the manifest says of one ledger.

    Attributes:
        tier: what it compares.
        root: of the prefix tree; zeros if and only if it has no entries.
        entries: number of distinct keys. Not proven by proofs; an audit counts.
        documents: number of documents that it lists, those of the corpus.
    """

    tier: Tier
    root: Hex32
    entries: Count
    documents: Count

    def __post_init__(self) -> None:
        """Refuses numbers that contradict each other."""
        if (self.entries == 0) != (self.root == EMPTY.hex()):
            raise ProtocolError("not-canonical", "a ledger has no entries if and only if its root is the empty one")
        if self.documents > MAX_DOCUMENTS or (self.entries > 0 and self.documents == 0):
            raise ProtocolError("not-canonical", f"a ledger of {self.entries} entries over {self.documents} documents")
        if not self.of_spans and (self.entries > self.documents or (self.entries == 0) != (self.documents == 0)):
            raise ProtocolError("not-canonical", "every document has one entry, alone or with others")

    @property
    def of_spans(self) -> bool:
        """Whether keys are grams of documents, not documents."""
        return self.tier.startswith("t2-")

    def check_inclusion(self, digest: bytes, occurrences: Occurrences, proof: Proof) -> Occurrences:
        """Checks that a document (or gram) is in the ledger, exactly at these places.

        Args:
            digest: as for `document_key`.
            occurrences: from the prover.
            proof: from the prover.

        Returns:
            The occurrences, now proven to be what the ledger says.

        Raises:
            VerificationError: `ledger-inclusion`.
        """
        documents = occurrences.documents
        if documents[-1] >= self.documents or not (self.of_spans or occurrences.count == len(documents)):
            raise VerificationError(
                "ledger-inclusion",
                f"{occurrences.count} occurrences up to document {documents[-1]} where there are {self.documents}",
            )
        verify_inclusion(bytes.fromhex(self.root), document_key(self.tier, digest), occurrences.value, proof)
        return occurrences

    def check_absence(self, digest: bytes, proof: Proof) -> None:
        """Checks that a document (or gram) is not in the ledger.

        Args:
            digest: as for `document_key`.
            proof: from the prover.

        Raises:
            VerificationError: `ledger-absence`.
        """
        verify_absence(bytes.fromhex(self.root), document_key(self.tier, digest), proof)


def _append(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
