"""The list behind a ledger: every key with the document it stands for. Whoever has it can compute the root again.

A place is a 32-byte key and the index of a document (u32, big-endian). Places are sorted; in the tiers of documents
each document has exactly one, in a tier of spans a document has one for each gram that was chosen from it, so equal
places may follow each other. Only digests are in it: publishing the list gives no text away, except to those who can
guess it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from protocol.encoding import tagged_hash
from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import Document
from protocol.ledger import Buffer, root_of_sorted
from protocol.ledger_claim import RAW, LedgerClaim, document_key, grouped

PLACE_BYTES: Final = 36
KEY_BYTES: Final = 32
MAX_PLACES: Final = 1 << 28


class Places:
    """A list of places.

    Args:
        data: what `of` joins; bytes or a memory map.

    Raises:
        ProtocolError: `places`, when it is cut short.
    """

    __slots__ = ("_size", "data")

    def __init__(self, data: Buffer) -> None:
        self._size, rest = divmod(len(data), PLACE_BYTES)
        if rest or self._size > MAX_PLACES:
            raise ProtocolError("places", f"{len(data)} bytes are no list of places")
        self.data = data

    @classmethod
    def of(cls, places: Iterable[tuple[bytes, int]]) -> "Places":
        """The list of keys and document indices that come in any order."""
        return cls(b"".join(sorted(key + document.to_bytes(4, "big") for key, document in places)))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        for at in range(self._size):
            place = self._place(at)
            yield place[:KEY_BYTES], int.from_bytes(place[KEY_BYTES:], "big")

    def claim(self, tier: str, documents: int) -> LedgerClaim:
        """What a manifest says of the ledger over this list.

        Raises:
            ProtocolError: `places`, when it is not in order or names a document that there is not.
        """
        if documents and not self._size and not tier.startswith("t2-"):
            raise ProtocolError("places", "an empty list of places over a corpus that is not empty")
        previous = b""
        for at in range(self._size):
            place = self._place(at)
            if place < previous or int.from_bytes(place[KEY_BYTES:], "big") >= documents:
                raise ProtocolError("places", f"place {at} is out of order, or of no document")
            previous = place
        root, entries = root_of_sorted((key, occurrences.value) for key, occurrences in grouped(self))
        return LedgerClaim(tier, root.hex(), entries, documents)

    def check(self, claim: LedgerClaim) -> None:
        """Checks that this is the whole list behind a claimed ledger.

        Raises:
            ProtocolError: `places`.
            VerificationError: `ledger-root`; `ledger-documents`, when a document has no place of its own.
        """
        found = self.claim(claim.tier, claim.documents)
        if found != claim:
            raise VerificationError(
                "ledger-root",
                f"the list of the ledger {claim.tier} is not the one that the manifest commits to",
                evidence={"tier": claim.tier, "committed": claim.root, "found": found.root},
            )
        if not claim.of_spans:
            listed = sorted(document for _, document in self)
            if listed != list(range(claim.documents)):
                raise VerificationError(
                    "ledger-documents",
                    f"the ledger {claim.tier} does not list every document once",
                    evidence={"tier": claim.tier},
                )

    def find(self, key: bytes) -> list[int]:
        """The documents listed under a key, ascending, as often as they are listed."""
        low, high = 0, self._size
        while low < high:
            middle = (low + high) // 2
            if self._place(middle)[:KEY_BYTES] < key:
                low = middle + 1
            else:
                high = middle
        found = []
        while low < self._size and (place := self._place(low))[:KEY_BYTES] == key:
            found.append(int.from_bytes(place[KEY_BYTES:], "big"))
            low += 1
        return found

    def digest(self) -> bytes:
        """A digest of the whole list, for naming it."""
        return tagged_hash("ledger/places", bytes(self.data[0 : len(self.data)]))

    def _place(self, at: int) -> bytes:
        return bytes(self.data[at * PLACE_BYTES : (at + 1) * PLACE_BYTES])


def raw_places(leaves: Iterable[Document]) -> Places:
    """The list of the tier of raw bytes, which follows from the corpus leaves alone."""
    return Places.of((document_key(RAW, leaf.digest), leaf.index) for leaf in leaves)
