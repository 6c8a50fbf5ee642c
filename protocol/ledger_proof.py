"""Proofs that a key is in a ledger, or is not, and the two checks: all that an asker needs besides the signed root.

A ledger is a Merkle prefix tree (the construction of IETF KEYTRANS, CONIKS and AKD): from the root, bit `i` of a key
(most significant first) says where to go at depth `i`, 0 left and 1 right; a key alone below a node stands there as a
leaf, and where no key goes the slot is empty.

    leaf  = SHA-256(0x01 || "TW1L" || key || value)        69 bytes hashed
    inner = SHA-256(0x02 || "TW1I" || left || right)       69 bytes hashed
    empty = 32 zero bytes, also as the root of a ledger without keys

No node of another tree of this protocol hashes the same bytes: RFC 9162 leaves begin with 0x00, and its inner nodes
begin with 0x01 but hash 65 bytes.

What a check guarantees against whoever built the tree, however it was built: two proofs under one root cannot say that
a key is in and that it is not, nor give it two values, unless somebody has found a SHA-256 collision or a preimage of
zeros. Both proofs follow the same bits from the same root, so node by node they open the same preimages, until one of
them ends: there a leaf of the key would have to be another leaf, an inner node, or zeros. (A sorted tree with
neighbouring leaves has no such property: its builder can put a leaf out of order and prove both answers.)

What it does not guarantee: that the tree has the canonical shape everywhere. A builder can put a leaf where its key
does not lead, or deeper than needed. Such a leaf proves nothing (the checks refuse what they can see of it), questions
that end there stay unanswered, and an audit that builds the ledger again finds another root.

Specified in spec/ledger.md, sections 3 to 6.
"""

import hashlib
from typing import Final, Literal

from protocol.encoding import Struct
from protocol.errors import ProtocolError, UsageError, VerificationError

_sha256 = hashlib.sha256

HASH_BYTES: Final = 32
EMPTY: Final = bytes(HASH_BYTES)
"""An empty slot. A rule for the root of an empty ledger would be one more: it is an empty slot like any other."""
MAX_DEPTH: Final = 256
"""Keys have 256 bits, so no leaf lies deeper."""
LEAF_PREFIX: Final = b"\x01TW1L"
INNER_PREFIX: Final = b"\x02TW1I"
MAX_PROOF: Final = 3 + MAX_DEPTH // 8 + (MAX_DEPTH - 1) * HASH_BYTES + 2 * HASH_BYTES
"""Bytes of the longest proof, 8,259: another leaf at depth 255. Among a million documents a proof has about 680."""

Kind = Literal["inclusion", "other-leaf", "empty-slot"]
_KINDS: Final[tuple[Kind, ...]] = ("inclusion", "other-leaf", "empty-slot")


def leaf_hash(key: bytes, value: bytes) -> bytes:
    """The hash of a leaf, both parts 32 bytes long: their lengths are the caller's promise (this is a hot path)."""
    return _sha256(LEAF_PREFIX + key + value).digest()


def inner_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node over its two children's hashes, `EMPTY` for a missing child."""
    return _sha256(INNER_PREFIX + left + right).digest()


def shared_bits(left: bytes, right: bytes) -> int:
    """How many leading bits two keys share; 256 if they are equal."""
    return MAX_DEPTH - (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).bit_length()


class Proof(Struct, frozen=True):
    """Where the path of a key ends, and what stands beside the path.

    Attributes:
        kind: `inclusion` (the path ends at the key's own leaf), `other-leaf` (at the leaf of another key, so this one
            is absent) or `empty-slot` (at nothing, so it is absent).
        path: the hashes beside the path, root first: `path[i]` is the sibling at depth `i + 1`. `EMPTY` where there is
            none. The path's length is the depth of where it ends.
        other: key and value of the other leaf; None for the other kinds.

    Raises:
        ProtocolError: `ledger-proof-malformed`, for a shape that no canonical tree has: a path deeper than 256, parts
            that are not 32 bytes, or nothing beside the end of the path (the node above would not exist).
    """

    kind: Kind
    path: tuple[bytes, ...] = ()
    other: tuple[bytes, bytes] | None = None

    def __post_init__(self) -> None:
        """Refuses shapes of no tree."""
        if (self.other is None) == (self.kind == "other-leaf") or self.kind not in _KINDS:
            raise _malformed(f"a proof of kind {self.kind} with the wrong ending")
        if len(self.path) > MAX_DEPTH - (self.kind != "inclusion"):  # two keys part at depth 255 at the latest
            raise _malformed(f"a path of {len(self.path)} levels is deeper than keys are long")
        if set(map(len, (*self.path, *(self.other or ())))) - {HASH_BYTES}:
            raise _malformed(f"a hash, key or value is not {HASH_BYTES} bytes")
        if self.path and self.path[-1] == EMPTY:
            raise _malformed("nothing stands beside the end of the path, so it would end further up")

    @property
    def depth(self) -> int:
        """Levels from the root to where the path ends."""
        return len(self.path)

    def to_bytes(self) -> bytes:
        """The one encoding: kind, depth, bitmap of siblings, siblings, other leaf.

        Kind is one byte: 1 inclusion, 2 other leaf, 3 empty slot. Depth is two bytes, big-endian. The bitmap has one
        bit a level, root first and most significant bit first, padded with zeros to whole bytes; where it is 1, a
        sibling of 32 bytes is listed, root first; where it is 0, the sibling is empty. Another leaf is its key and its
        value.
        """
        depth = len(self.path)
        size = (depth + 7) // 8
        bitmap = int("0" + "".join(["0" if sibling == EMPTY else "1" for sibling in self.path]), 2)
        head = (
            bytes((_KINDS.index(self.kind) + 1,))
            + depth.to_bytes(2, "big")
            + (bitmap << (8 * size - depth)).to_bytes(size, "big")
        )
        return head + b"".join(sibling for sibling in self.path if sibling != EMPTY) + b"".join(self.other or ())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Proof":
        """Parses a proof from the other side.

        Raises:
            ProtocolError: `too-large`; `ledger-proof-malformed`, for anything that is not the encoding of one proof:
                cut short or extended, an unknown kind, a bitmap with bits below the path's end, or a listed sibling of
                zeros, which only the bitmap may say.
        """
        if len(data) > MAX_PROOF:
            raise ProtocolError(
                "too-large", f"a ledger proof of {len(data)} bytes where at most {MAX_PROOF} are allowed"
            )
        if len(data) < 3 or not 1 <= data[0] <= len(_KINDS):
            raise _malformed("neither an inclusion, nor another leaf, nor an empty slot")
        kind, depth = _KINDS[data[0] - 1], int.from_bytes(data[1:3], "big")
        at = 3 + (depth + 7) // 8
        if depth > MAX_DEPTH or len(data) < at:
            raise _malformed(f"a path of {depth} levels, or one cut short")
        bits = f"{int.from_bytes(data[3:at], 'big'):0{8 * (at - 3)}b}"[:depth] if depth else ""
        path = []
        for bit in bits:
            path.append(data[at : at + HASH_BYTES] if bit == "1" else EMPTY)
            at += HASH_BYTES * (bit == "1")
        other = (data[at : at + HASH_BYTES], data[at + HASH_BYTES :]) if kind == "other-leaf" else None
        proof = cls(kind, tuple(path), other)
        if proof.to_bytes() != data:
            raise _malformed("a ledger proof, but not in its one encoding")
        return proof


def verify_inclusion(root: bytes, key: bytes, value: bytes, proof: Proof) -> None:
    """Verifies that the ledger under `root` holds `key` with `value`.

    Args:
        root: 32 bytes, from a signed head or manifest.
        key: derived by the asker (`protocol.ledger_claim.document_key`).
        value: computed by the asker from the occurrences that the prover names.
        proof: from the prover.

    Raises:
        UsageError: `ledger-key`, if root, key or value is not 32 bytes.
        VerificationError: `ledger-inclusion`.
    """
    _refuse_wrong_length(root, key, value)
    if proof.kind != "inclusion":
        raise VerificationError("ledger-inclusion", f"the proof ends at an {proof.kind}: it is one of absence")
    found = _climb(leaf_hash(key, value), key, proof.path)
    if found != root:
        raise VerificationError(
            "ledger-inclusion", "the key and value are not in the ledger", evidence=_roots(root, found)
        )


def verify_absence(root: bytes, key: bytes, proof: Proof) -> None:
    """Verifies that the ledger under `root` does not hold `key`, with any value.

    Args:
        root: 32 bytes, from a signed head or manifest.
        key: derived by the asker (`protocol.ledger_claim.document_key`).
        proof: from the prover.

    Raises:
        UsageError: `ledger-key`, if root or key is not 32 bytes.
        VerificationError: `ledger-absence`.
    """
    _refuse_wrong_length(root, key)
    if proof.kind == "inclusion":
        raise VerificationError("ledger-absence", "the proof is one of inclusion")
    end = EMPTY
    if proof.other is not None:
        shared = shared_bits(proof.other[0], key)
        if shared == MAX_DEPTH:
            raise VerificationError("ledger-absence", "the other leaf is the key's own: it is in the ledger")
        if shared < proof.depth:
            message = f"the other leaf shares {shared} bits with the key and lies at depth {proof.depth}, off its path"
            raise VerificationError("ledger-absence", message)
        end = leaf_hash(*proof.other)
    found = _climb(end, key, proof.path)
    if found != root:
        raise VerificationError(
            "ledger-absence", "the key is not proven to be absent from the ledger", evidence=_roots(root, found)
        )


def _climb(node: bytes, key: bytes, path: tuple[bytes, ...]) -> bytes:
    """The root that `path` leads to from `node`."""
    bits = int.from_bytes(key, "big") >> (MAX_DEPTH - len(path))
    for sibling in reversed(path):
        node = _sha256(INNER_PREFIX + (sibling + node if bits & 1 else node + sibling)).digest()
        bits >>= 1
    return node


def _roots(root: bytes, found: bytes) -> dict[str, str]:
    return {"expected": root.hex(), "found": found.hex()}


def _malformed(message: str) -> ProtocolError:
    return ProtocolError("ledger-proof-malformed", message)


def _refuse_wrong_length(*parts: bytes) -> None:
    if any(len(part) != HASH_BYTES for part in parts):
        raise UsageError("ledger-key", f"roots, keys and values of a ledger are {HASH_BYTES} bytes")
