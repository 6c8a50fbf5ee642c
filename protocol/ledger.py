"""The ledger as its keeper has it: built from keys and values, and able to prove every key in or absent.

A trainer builds one for each tier over the digests of all documents, and commits to its root before step 1. What a
proof says and how it is checked is in `protocol.ledger_proof`.

There are no node objects. The keys lie sorted in one buffer, and a prefix tree over n sorted keys has exactly one
branching node for each of the n - 1 gaps between neighbours: at its depth the two keys beside the gap part. So the
tree is a second buffer, with the hashes of a branching node's two children at the place of its gap; nodes with a
single child are hashed when needed. That is 128 bytes a key, and both buffers may be files: a proof reads a few
hundred places.

How the second buffer is made is in `protocol.ledger_tree`.

Specified in spec/ledger.md, sections 3 and 4.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from protocol import ledger_tree as tree
from protocol.bulk_hash import Bytes
from protocol.errors import ProtocolError, UsageError
from protocol.ledger_proof import EMPTY, HASH_BYTES, MAX_DEPTH, Proof, inner_hash, leaf_hash
from protocol.ledger_tree import ROW_BYTES

_PACKED: Final = 1 << 18
"""Bytes of rows that are handed on at a time."""
_REMEMBERED: Final = 14
"""Nodes down to this depth (at most 2^15), and the ways to them, are found once: batches of questions share them."""


class Buffer(Protocol):
    """What holds rows or nodes: `bytes`, a `bytearray` or an open `mmap.mmap`. Slices are to be ordered like bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> Any: ...


class Ledger:
    """A prefix tree that can prove.

    Args:
        rows: key and value of every entry, 64 bytes, keys strictly ascending.
        pairs: for each gap between two neighbouring keys, the hashes of the left and right child of the node at which
            the two keys part, 64 bytes.

    `build` makes the two buffers; a keeper may store them and open them again, as memory maps too. They are the
    keeper's own and are not hashed again here: damaged ones give proofs that no asker accepts.

    Raises:
        ProtocolError: `ledger-buffers`, when the lengths of the two do not fit, or keys are seen to be out of order.
    """

    __slots__ = ("_found", "_size", "_ways", "pairs", "root", "rows")

    def __init__(self, rows: Buffer, pairs: Buffer) -> None:
        self._size = len(rows) // ROW_BYTES
        if len(rows) % ROW_BYTES or len(pairs) != max(0, self._size - 1) * ROW_BYTES:
            raise ProtocolError("ledger-buffers", f"{len(rows)} bytes of rows and {len(pairs)} of nodes are no ledger")
        self.rows, self.pairs = rows, pairs
        self._found: dict[tuple[int, int], int] = {}
        self._ways: dict[int, tuple[int, int, tuple[bytes, ...]]] = {}
        self.root = self._node(0, self._size, 0)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for at in range(self._size):
            row = self._row(at)
            yield row[:HASH_BYTES], row[HASH_BYTES:]

    def value(self, key: bytes) -> bytes | None:
        """The value of a key, or None where it is absent."""
        at = bisect_left(range(self._size), key, key=self._key)
        return self._row(at)[HASH_BYTES:] if at < self._size and self._key(at) == key else None

    def prove(self, key: bytes) -> Proof:
        """The proof that `key` is in the ledger (kind `inclusion`) or that it is not.

        Raises:
            UsageError: `ledger-key`, if the key is not 32 bytes.
            ProtocolError: `ledger-buffers`, if the stored keys are seen to be damaged.
        """
        if len(key) != HASH_BYTES:
            raise UsageError("ledger-key", f"a ledger key is {HASH_BYTES} bytes, not {len(key)}")
        asked = int.from_bytes(key, "big")
        way = asked >> (MAX_DEPTH - _REMEMBERED)
        low, high, siblings = self._ways.get(way, (0, self._size, ()))
        path = list(siblings)
        if high - low > 1:
            first, last = self._number(low), self._number(high - 1)
        while high - low > 1:
            depth, middle = self._branching(low, high, first, last)
            parting = MAX_DEPTH - (first ^ asked).bit_length()
            if parting < depth:  # the key leaves the path above the node at which these keys part
                path += [EMPTY] * (parting - len(path))
                path.append(self._node(low, high, parting + 1))
                return Proof("empty-slot", tuple(path))
            path += [EMPTY] * (depth - len(path))
            pair = self._pair(middle)
            if asked >> (MAX_DEPTH - 1 - depth) & 1:
                path.append(pair[:HASH_BYTES])
                low, first = middle, self._number(middle)
            else:
                path.append(pair[HASH_BYTES:])
                high, last = middle, self._number(middle - 1)
            if depth == _REMEMBERED - 1:
                self._ways[way] = low, high, tuple(path)
        if low == high:
            return Proof("empty-slot")
        row = self._row(low)
        found = row[:HASH_BYTES]
        if found == key:
            return Proof("inclusion", tuple(path))
        return Proof("other-leaf", tuple(path), (found, row[HASH_BYTES:]))

    def _row(self, at: int) -> bytes:
        return bytes(self.rows[at * ROW_BYTES : (at + 1) * ROW_BYTES])

    def _key(self, at: int) -> bytes:
        return bytes(self.rows[at * ROW_BYTES : at * ROW_BYTES + HASH_BYTES])

    def _number(self, at: int) -> int:
        return int.from_bytes(self.rows[at * ROW_BYTES : at * ROW_BYTES + HASH_BYTES], "big")

    def _pair(self, middle: int) -> bytes:
        return bytes(self.pairs[(middle - 1) * ROW_BYTES : middle * ROW_BYTES])

    def _branching(self, low: int, high: int, first: int, last: int) -> tuple[int, int]:
        """Where neighbouring keys from `first` to `last` part: the depth, and the row of the first key on the right."""
        if first >= last:
            raise ProtocolError("ledger-buffers", f"the keys from row {low} to row {high - 1} are not in order")
        below = (first ^ last).bit_length() - 1
        known = self._found.get((low, high))
        if known is not None:
            return MAX_DEPTH - 1 - below, known
        rows, boundary = self.rows, (last >> below << below).to_bytes(HASH_BYTES, "big")
        middle, right = low + 1, high - 1
        while middle < right:
            half = (middle + right) // 2
            if rows[half * ROW_BYTES : half * ROW_BYTES + HASH_BYTES] < boundary:
                middle = half + 1
            else:
                right = half
        if MAX_DEPTH - 1 - below < _REMEMBERED:
            self._found[low, high] = middle
        return MAX_DEPTH - 1 - below, middle

    def _node(self, low: int, high: int, depth: int) -> bytes:
        """The hash at `depth` over neighbouring keys that share that many bits."""
        if high - low < 2:
            row = self._row(low)
            return leaf_hash(row[:HASH_BYTES], row[HASH_BYTES:]) if row else EMPTY
        first = self._number(low)
        parting, middle = self._branching(low, high, first, self._number(high - 1))
        pair = self._pair(middle)
        return tree.raised(inner_hash(pair[:HASH_BYTES], pair[HASH_BYTES:]), first, parting, depth)


def build(items: Iterable[tuple[bytes, bytes]]) -> Ledger:
    """The ledger over keys and values, in any order.

    Args:
        items: 32-byte keys, each once, with 32-byte values (`protocol.ledger_claim` derives both).

    Raises:
        UsageError: `ledger-key`, if a key or value is not 32 bytes; `ledger-duplicate`, if a key comes twice: its
            documents belong into one value.
    """
    return build_rows(b"".join(_packed(items)))


def build_rows(rows: bytes | bytearray) -> Ledger:
    """The ledger over rows of 64 bytes, a key and its value each, in any order: about 1 us and 128 bytes a row.

    It uses one core. (A second process halves the hashing, and loses more by moving rows and nodes between the two.)

    Args:
        rows: kept if they are in order; copied if not.

    Raises:
        UsageError: `ledger-duplicate`.
        ProtocolError: `ledger-buffers`, if the last row is cut short.
    """
    if len(rows) % ROW_BYTES:
        raise ProtocolError("ledger-buffers", f"{len(rows)} bytes are no whole number of rows")
    rows = tree.in_order(rows, ROW_BYTES, HASH_BYTES)
    pairs = bytearray(max(0, len(rows) - ROW_BYTES))
    try:
        tree.fold(_subtrees(tree.parts(tree.as_rows(rows)), tree.as_rows(pairs)), pairs)
    except tree.DisorderError as error:
        raise UsageError("ledger-duplicate", f"the key {error} comes twice") from None
    return Ledger(rows, pairs)


def root_of_sorted(items: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    """The root over keys and values that come in ascending order, and their number, in constant memory.

    For an audit, or a ledger too large for `build`: sort outside, then stream.

    Raises:
        UsageError: `ledger-key`; `ledger-duplicate`, if a key is not above the one before it.
    """
    return root_of_rows(_packed(items))


def root_of_rows(blocks: Iterable[bytes]) -> tuple[bytes, int]:
    """`root_of_sorted` over blocks of whole rows.

    Raises:
        UsageError: `ledger-duplicate`.
    """
    try:
        top = tree.fold(_subtrees(tree.streamed(blocks), None), None)
    except tree.DisorderError as error:
        raise UsageError("ledger-duplicate", f"the key {error} is not above the one before") from None
    return tree.raised(top.node, top.first, top.depth, 0), top.end


def _subtrees(parts: Iterable[tree.Part], pairs: Bytes | None) -> Iterator[tree.Subtree]:
    """What is left of all parts, counted through."""
    count = 0
    for part in parts:
        for subtree in tree.nodes_of(part, None if pairs is None else pairs[count : count + len(part.rows) - 1]):
            yield subtree._replace(end=count + subtree.end)
        count += len(part.rows)


def _packed(items: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Keys and values as blocks of rows."""
    block = bytearray()
    for key, value in items:
        if len(key) != HASH_BYTES or len(value) != HASH_BYTES:
            raise UsageError("ledger-key", f"keys and values of a ledger are {HASH_BYTES} bytes")
        block += key
        block += value
        if len(block) >= _PACKED:
            yield bytes(block)
            block.clear()
    yield bytes(block)
