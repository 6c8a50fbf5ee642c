"""RFC 9162 Merkle trees over SHA-256: what every commitment of a run is rooted in.

Three builders for three needs - `root` (bulk, forgets everything), `Frontier` (streaming, logarithmic memory) and
`Tree` (every perfect node, so that it can prove) - and the two verifiers, which are all that a challenger needs. The
hashes are those of RFC 6962, so heads and proofs are readable by Certificate Transparency and C2SP tools.

A tree of size zero has a root but nothing to prove: consistency is defined from size one (RFC 9162 2.1.4.1: 0 < m). A
cosigner that follows C2SP tlog-witness handles `old 0` by requiring an empty proof, before it comes here.

Specified in spec/merkle-tree.md.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, Self

from protocol.errors import ProtocolError, UsageError, VerificationError

# Bound once: at two million calls a run the attribute look-up is visible.
_sha256 = hashlib.sha256

HASH_BYTES: Final = 32
MAX_SIZE: Final = 2**63
"""Trees of more leaves than this are refused (C2SP caps sizes at 2^63 - 1; so do most implementations' integers)."""
EMPTY_ROOT: Final = _sha256(b"").digest()
"""The root of the tree without leaves."""


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf: SHA-256(0x00 || data), RFC 9162 2.1.1."""
    return _sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node: SHA-256(0x01 || left || right), RFC 9162 2.1.1."""
    return _sha256(b"\x01" + left + right).digest()


def root(leaf_hashes: Sequence[bytes]) -> bytes:
    """The root of a whole tree, at about the cost of its hash calls.

    Carrying an odd last node up unchanged gives the same tree as the RFC's split at the largest power of two.

    Args:
        leaf_hashes: the 32-byte leaf hashes in order; their lengths are the caller's promise (this is a hot path).
    """
    if not leaf_hashes:
        return EMPTY_ROOT
    sha256 = _sha256
    level = list(leaf_hashes)
    while len(level) > 1:
        odd = [level.pop()] if len(level) & 1 else []
        lefts = iter(level)
        level = [sha256(b"\x01" + left + right).digest() for left, right in zip(lefts, lefts, strict=True)]
        level += odd
    return level[0]


class Frontier:
    """A tree that only grows and only knows its root: one hash per set bit of its size."""

    __slots__ = ("_peaks", "_size")

    def __init__(self) -> None:
        self._peaks: list[bytes] = []
        self._size = 0

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._size

    def append(self, data: bytes) -> bytes:
        """Appends a leaf and returns its leaf hash."""
        leaf = _sha256(b"\x00" + data).digest()
        self.append_hash(leaf)
        return leaf

    def append_hash(self, leaf: bytes) -> None:
        """Appends a leaf by its 32-byte leaf hash.

        Raises:
            UsageError: `leaf-hash`, if `leaf` is not 32 bytes.
        """
        _refuse_wrong_length(leaf)
        peaks, carries = self._peaks, self._size
        while carries & 1:
            leaf = _sha256(b"\x01" + peaks.pop() + leaf).digest()
            carries >>= 1
        peaks.append(leaf)
        self._size += 1

    def root(self) -> bytes:
        """The root of the leaves so far."""
        return _fold(self._peaks)


class Tree:
    """A tree that can prove: the hash of every perfect node, level by level, about 64 bytes a leaf.

    Only perfect nodes are kept. They never change as the tree grows, so every earlier size stays provable.

    Args:
        leaf_hashes: the 32-byte leaf hashes to begin with.
    """

    __slots__ = ("_levels",)

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        leaves = list(leaf_hashes)
        for leaf in leaves:
            _refuse_wrong_length(leaf)
        self._levels = [bytearray().join(leaves)]
        while len(below := self._levels[-1]) >= 2 * HASH_BYTES:
            pairs = range(0, len(below) - 2 * HASH_BYTES + 1, 2 * HASH_BYTES)
            nodes = [_sha256(b"\x01" + below[at : at + 2 * HASH_BYTES]).digest() for at in pairs]
            self._levels.append(bytearray().join(nodes))

    @classmethod
    def packed(cls, leaf_hashes: bytes | bytearray) -> Self:
        """The tree over leaf hashes that lie one after another: for many of them, in half the time.

        Raises:
            UsageError: `leaf-hash`, if the last one is cut short.
        """
        from protocol.bulk_hash import hash_pairs  # who only checks proofs need not wait for numpy

        tree = cls()
        if len(leaf_hashes) % HASH_BYTES:
            _refuse_wrong_length(leaf_hashes[-(len(leaf_hashes) % HASH_BYTES) :])
        tree._levels = [bytearray(leaf_hashes)]
        while len(below := tree._levels[-1]) >= 2 * HASH_BYTES:
            tree._levels.append(bytearray(hash_pairs(b"\x01", below)))
        return tree

    @property
    def size(self) -> int:
        """The number of leaves."""
        return len(self._levels[0]) // HASH_BYTES

    def append_hash(self, leaf: bytes) -> None:
        """Appends a leaf by its 32-byte leaf hash.

        Raises:
            UsageError: `leaf-hash`, if `leaf` is not 32 bytes.
        """
        _refuse_wrong_length(leaf)
        node = leaf
        for level in self._levels:
            level += node
            if len(level) // HASH_BYTES & 1:
                return
            node = _sha256(b"\x01" + level[-2 * HASH_BYTES :]).digest()
        self._levels.append(bytearray(node))

    def root(self, size: int | None = None) -> bytes:
        """The root of the first `size` leaves (all of them by default).

        Raises:
            UsageError: `no-such-leaf`, if the tree never had that size.
        """
        size = self._checked_size(size)
        return self._range_root(0, size) if size else EMPTY_ROOT

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """PATH(index, D[0:size]) of RFC 9162 2.1.3.1, leaf to root.

        Args:
            index: zero-based.
            size: of the tree to prove inclusion in; the present size by default.

        Raises:
            UsageError: `no-such-leaf`, if the tree never had that size or that size has no such leaf.
        """
        size = self._checked_size(size)
        if not 0 <= index < size:
            raise UsageError("no-such-leaf", f"there is no leaf {index} in a tree of size {size}")
        first, height = 0, 0  # of the perfect tree that the leaf is in: the tree is made of these, of falling height
        for height in range(size.bit_length() - 1, -1, -1):
            if size >> height & 1:
                if index < first + (1 << height):
                    break
                first += 1 << height
        path = [self._node(level, (index >> level) ^ 1) for level in range(height)]
        if size > first + (1 << height):
            path.append(self._range_root(first + (1 << height), size))
        for level in range(height + 1, size.bit_length()):
            if size >> level & 1:
                first -= 1 << level
                path.append(self._node(level, first >> level))
        return path

    def consistency_proof(self, old: int, new: int | None = None) -> list[bytes]:
        """PROOF(old, D[0:new]) of RFC 9162 2.1.4.1; empty where the sizes are equal.

        Raises:
            UsageError: `no-such-leaf`, unless 0 < old <= new and the tree has reached size `new`.
        """
        new = self._checked_size(new)
        if not 0 < old <= new:
            raise UsageError("no-such-leaf", f"there is no consistency proof from size {old} to size {new}")
        path: list[bytes] = []
        low, high = 0, new
        while high != old:
            middle = low + _split(high - low)
            if old <= middle:
                path.append(self._range_root(middle, high))
                high = middle
            else:
                path.append(self._range_root(low, middle))
                low = middle
        if low:  # else what is left is the old tree itself, whose root the verifier has
            path.append(self._range_root(low, high))
        path.reverse()
        return path

    def _checked_size(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise UsageError("no-such-leaf", f"there is no size {size} in a tree of size {self.size}")
        return size

    def _node(self, level: int, number: int) -> bytes:
        return bytes(self._levels[level][number * HASH_BYTES : (number + 1) * HASH_BYTES])

    def _range_root(self, low: int, high: int) -> bytes:
        """MTH(D[low:high]), where `low` is a multiple of the largest power of two in the range."""
        peaks: list[bytes] = []
        while low < high:
            height = (high - low).bit_length() - 1
            peaks.append(self._node(height, low >> height))
            low += 1 << height
        return _fold(peaks)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Verifies that a leaf is at `index` of the tree of `size` leaves under `root` (RFC 9162 2.1.3.2).

    Args:
        leaf: the leaf HASH, which the verifier computes from the leaf's bytes: the prover's word for it proves nothing.
        index: zero-based.
        size: number of leaves, from a verified head.
        proof: sibling hashes, leaf to root.
        root: 32 bytes, from the same head.

    Raises:
        ProtocolError: `proof-malformed`, for a hash that is not 32 bytes or an index and size that fit no tree.
        VerificationError: `inclusion-proof`, if the proof does not lead from the leaf to the root.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise ProtocolError("proof-malformed", f"no tree of size {size} has a leaf {index}")
    _refuse_malformed(leaf, root, proof)
    sha256 = _sha256
    fn, sn, r = index, size - 1, leaf
    for p in proof:
        if sn == 0:
            raise VerificationError("inclusion-proof", f"the proof of leaf {index} in size {size} is too long")
        if fn & 1 or fn == sn:
            r = sha256(b"\x01" + p + r).digest()
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            r = sha256(b"\x01" + r + p).digest()
        fn, sn = fn >> 1, sn >> 1
    if sn:
        raise VerificationError("inclusion-proof", f"the proof of leaf {index} in size {size} is too short")
    if r != root:
        evidence = {"index": index, "size": size, "expected": root.hex(), "found": r.hex()}
        raise VerificationError("inclusion-proof", f"leaf {index} is not in the tree of size {size}", evidence=evidence)


def verify_consistency(size1: int, size2: int, root1: bytes, root2: bytes, proof: Sequence[bytes]) -> None:
    """Verifies that the tree of `size2` leaves begins with the tree of `size1` leaves (RFC 9162 2.1.4.2).

    Raises:
        ProtocolError: `proof-malformed`, for a hash that is not 32 bytes, or unless 0 < size1 <= size2.
        VerificationError: `consistency-proof`, if the proof does not lead to both roots.
    """
    if not 0 < size1 <= size2 <= MAX_SIZE:
        raise ProtocolError("proof-malformed", f"consistency is not defined from size {size1} to size {size2}")
    _refuse_malformed(root1, root2, proof)
    if size1 == size2:
        if proof or root1 != root2:
            raise VerificationError("consistency-proof", f"two trees of size {size1} differ, or came with a proof")
        return
    path = list(proof)
    if size1 & (size1 - 1) == 0:
        path.insert(0, root1)
    if not path:
        raise VerificationError("consistency-proof", f"no proof from size {size1} to size {size2}")
    fn, sn = size1 - 1, size2 - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        if sn == 0:
            raise VerificationError("consistency-proof", f"the proof from size {size1} to {size2} is too long")
        if fn & 1 or fn == sn:
            fr, sr = node_hash(c, fr), node_hash(c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node_hash(sr, c)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        raise VerificationError("consistency-proof", f"the proof from size {size1} to {size2} is too short")
    if fr != root1 or sr != root2:
        which = size1 if fr != root1 else size2
        raise VerificationError(
            "consistency-proof", f"the proof from {size1} to {size2} misses the root of size {which}"
        )


def _fold(peaks: Sequence[bytes]) -> bytes:
    """The root over perfect subtrees of falling height."""
    if not peaks:
        return EMPTY_ROOT
    r = peaks[-1]
    for peak in peaks[-2::-1]:
        r = _sha256(b"\x01" + peak + r).digest()
    return r


def _split(n: int) -> int:
    """The largest power of two below `n`, for n > 1."""
    return 1 << ((n - 1).bit_length() - 1)


def _refuse_wrong_length(leaf: bytes | bytearray) -> None:
    if len(leaf) != HASH_BYTES:
        raise UsageError("leaf-hash", f"a leaf hash is {HASH_BYTES} bytes, not {len(leaf)}")


def _refuse_malformed(first: bytes, second: bytes, proof: Sequence[bytes]) -> None:
    # 64 is the longest consistency proof of a tree of at most 2^63 leaves, so a huge one costs nothing.
    if len(proof) > 64:
        raise ProtocolError("proof-malformed", f"a proof of {len(proof)} hashes belongs to no tree")
    if set(map(len, (first, second, *proof))) != {HASH_BYTES}:
        raise ProtocolError(
            "proof-malformed", f"a leaf, root or proof holds something other than {HASH_BYTES}-byte hashes"
        )
