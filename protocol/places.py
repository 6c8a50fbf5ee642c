"""The list behind a ledger: every key with the document it stands for. Whoever has it can compute the root again.

A place is a 32-byte key and the index of a document (u32, big-endian). Places are sorted; in the tiers of documents
each document has exactly one, in a tier of spans a document has one for each gram that was chosen from it, so equal
places may follow each other. Only digests are in it: publishing the list gives no text away, except to those who can
guess it.

Specified in spec/ledger.md, section 7.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.bulk_hash import Bytes, hash_rows
from protocol.encoding import tagged_hash, tagged_preimage
from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import LEAF_BYTES, Document, Leaves
from protocol.ledger import Buffer, Ledger, build_rows, root_of_rows
from protocol.ledger_claim import RAW, LedgerClaim, Occurrences
from protocol.ledger_tree import in_order

PLACE_BYTES: Final = 36
KEY_BYTES: Final = 32
MAX_PLACES: Final = 1 << 28
_INDEX_END, _DIGEST = 8, 16
"""In a leaf: its index ends here, its digest begins."""
_BLOCK: Final = 1 << 16
"""Places, or entries, that are worked on at a time."""
_NUMBER_LIMITS: Final = (0, 1 << 7, 1 << 14, 1 << 21, 1 << 28, 1 << 35)
"""Numbers below the second take one byte of LEB128, below the third two, and so on; an index has four bytes."""
Numbers = npt.NDArray[np.int64]


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
        return cls.joined(b"".join(key + document.to_bytes(4, "big") for key, document in places))

    @classmethod
    def joined(cls, places: bytes) -> "Places":
        """The list of places in any order, one after another."""
        return cls(in_order(places, PLACE_BYTES, PLACE_BYTES))

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
        starts = self._starts(tier, documents)
        root, entries = root_of_rows(self._rows(starts))
        return LedgerClaim(tier, root.hex(), entries, documents)

    def check(self, claim: LedgerClaim) -> None:
        """Checks that this is the whole list behind a claimed ledger.

        Raises:
            ProtocolError: `places`.
            VerificationError: `ledger-root`; `ledger-documents`, when a document has no place of its own.
        """
        self._agree(claim, self.claim(claim.tier, claim.documents))

    def ledger(self, claim: LedgerClaim) -> Ledger:
        """`check`, and the ledger for proofs.

        Raises:
            ProtocolError, VerificationError: as `check`.
        """
        starts = self._starts(claim.tier, claim.documents)
        built = build_rows(b"".join(self._rows(starts)))
        self._agree(claim, LedgerClaim(claim.tier, built.root.hex(), len(built), claim.documents))
        return built

    def find(self, key: bytes) -> list[int]:
        """The documents listed under a key, ascending, as often as they are listed."""
        data, low, high = self.data, 0, self._size
        while low < high:
            middle = (low + high) // 2
            at = middle * PLACE_BYTES
            if data[at : at + KEY_BYTES] < key:
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

    def _agree(self, claim: LedgerClaim, found: LedgerClaim) -> None:
        if found != claim:
            raise VerificationError(
                "ledger-root",
                f"the list of the ledger {claim.tier} is not the one that the manifest commits to",
                evidence={"tier": claim.tier, "committed": claim.root, "found": found.root},
            )
        if not claim.of_spans:
            listed = np.zeros(claim.documents, dtype=bool)
            for at in range(0, self._size, _BLOCK):
                listed[_documents(self._block(at, at + _BLOCK))] = True
            if self._size != claim.documents or not listed.all():
                raise VerificationError(
                    "ledger-documents",
                    f"the ledger {claim.tier} does not list every document once",
                    evidence={"tier": claim.tier},
                )

    def _starts(self, tier: str, documents: int) -> Numbers:
        """Where a new key begins, and the end of the list.

        Raises:
            ProtocolError: `places`.
        """
        if documents and not self._size and not tier.startswith("t2-"):
            raise ProtocolError("places", "an empty list of places over a corpus that is not empty")
        starts = [np.zeros(min(1, self._size), dtype=np.int64)]
        for at in range(0, self._size, _BLOCK):
            block = self._block(max(0, at - 1), at + _BLOCK)
            left, right = block[:-1], block[1:]
            same = left == right
            first = same.argmin(axis=1)  # the first byte that differs; 0 where none does
            rows = np.arange(len(first))
            wrong = np.append(left[rows, first] > right[rows, first], False)
            wrong |= _documents(block) >= documents
            if wrong.any():
                place = max(0, at - 1) + int(wrong.argmax())
                raise ProtocolError("places", f"place {place} is not in order, or of no document")
            starts.append(np.flatnonzero(~same[:, :KEY_BYTES].all(axis=1)) + max(1, at))
        return np.append(np.concatenate(starts), self._size)

    def _rows(self, starts: Numbers) -> Iterator[bytes]:
        """The rows of the ledger: each key with the value over its documents."""
        for at in range(0, len(starts) - 1, _BLOCK):
            bounds = starts[at : at + _BLOCK + 1]
            block = self._block(int(bounds[0]), int(bounds[-1]))
            bounds = bounds - bounds[0]
            rows = np.empty((len(bounds) - 1, 2 * KEY_BYTES), dtype=np.uint8)
            rows[:, :KEY_BYTES] = block[bounds[:-1], :KEY_BYTES]
            documents = _documents(block)
            alone = np.diff(bounds) == 1
            rows[alone, KEY_BYTES:] = values_alone(documents[bounds[:-1][alone]])
            for entry in np.flatnonzero(~alone).tolist():
                listed = documents[bounds[entry] : bounds[entry + 1]].tolist()
                value = Occurrences(len(listed), tuple(dict.fromkeys(listed))).value
                rows[entry, KEY_BYTES:] = np.frombuffer(value, dtype=np.uint8)
            yield rows.tobytes()

    def _block(self, start: int, stop: int) -> Bytes:
        data = self.data[start * PLACE_BYTES : stop * PLACE_BYTES]
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, PLACE_BYTES)

    def _place(self, at: int) -> bytes:
        return bytes(self.data[at * PLACE_BYTES : (at + 1) * PLACE_BYTES])


def raw_places(leaves: Iterable[Document]) -> Places:
    """The list of the tier of raw bytes, which follows from the corpus leaves alone."""
    data = np.frombuffer(Leaves.of(leaves).to_bytes(), dtype=np.uint8).reshape(-1, LEAF_BYTES)
    indices = data[:, :_INDEX_END].copy().view(">u8").ravel().astype(np.int64)
    return Places.joined(joined_places(document_keys(RAW, data[:, _DIGEST : _DIGEST + KEY_BYTES]), indices))


def joined_places(keys: Bytes, documents: Numbers) -> bytes:
    """Places one after another, as they come.

    Args:
        keys: shape (n, 32), uint8.
        documents: shape (n,), int64.
    """
    places = np.empty((len(keys), PLACE_BYTES), dtype=np.uint8)
    places[:, :KEY_BYTES] = keys
    places[:, KEY_BYTES:] = documents.astype(">u4").reshape(-1, 1).view(np.uint8)
    return places.tobytes()


def document_keys(tier: str, digests: Bytes) -> Bytes:
    """`protocol.ledger_claim.document_key` of many digests.

    Args:
        tier: its name.
        digests: shape (n, 32), uint8.

    Returns:
        Shape (n, 32), uint8.
    """
    return hash_rows(tagged_preimage("ledger/key", tier.encode("ascii"), bytes(KEY_BYTES))[:-KEY_BYTES], digests)


def values_alone(documents: Numbers) -> Bytes:
    """`protocol.ledger_claim.Occurrences.value` for keys that occur once, in one document each.

    Args:
        documents: shape (n,), int64.

    Returns:
        Shape (n, 32), uint8.
    """
    values = np.empty((len(documents), KEY_BYTES), dtype=np.uint8)
    for size, (low, high) in enumerate(pairwise(_NUMBER_LIMITS), 1):
        chosen = np.flatnonzero((documents >= low) & (documents < high))
        number = documents[chosen, np.newaxis] >> (7 * np.arange(size)) & 127
        number[:, :-1] |= 128
        preimage = tagged_preimage("ledger/value", b"\x01\x01" + bytes(size))[:-size]
        values[chosen] = hash_rows(preimage, number.astype(np.uint8))
    return values


def _documents(places: Bytes) -> Numbers:
    """The documents of places."""
    return places[:, KEY_BYTES:].copy().view(">u4").ravel().astype(np.int64)
