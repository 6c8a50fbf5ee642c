"""The ledger as its keeper has it: built from keys and values, and able to prove every key in or absent.

A trainer builds one for each tier over the digests of all documents, and commits to its root before step 1. What a
proof says and how it is checked is in `protocol.ledger_proof`.

There are no node objects. The keys lie sorted in one buffer, and a prefix tree over n sorted keys has exactly one
branching node for each of the n - 1 gaps between neighbours: at its depth the two keys beside the gap part. So the
tree is a second buffer, with the hashes of a branching node's two children at the place of its gap; nodes with a
single child are hashed when needed. That is 128 bytes a key, and both buffers may be files: a proof reads a few
hundred places.

Building goes over the sorted keys once and holds the right edge of the tree, at most 256 nodes. It does not recurse,
so it does not matter how many bits the keys share. Random keys take about 2.8 s and 175 MB a million in one process
(2.1 GHz, CPython 3.11); keys that all begin with one byte are sorted in one part, and take 200 bytes more each.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from protocol.errors import ProtocolError, UsageError
from protocol.ledger_proof import EMPTY, HASH_BYTES, INNER_PREFIX, LEAF_PREFIX, MAX_DEPTH, Proof, inner_hash, leaf_hash

_sha256 = hashlib.sha256

ROW_BYTES: Final = 2 * HASH_BYTES
"""A row is a key and its value."""
_REMEMBERED: Final = 14
"""Nodes above this depth (at most 2^14) are found once: batches of questions share them."""


class Buffer(Protocol):
    """What holds rows or nodes: `bytes`, a `bytearray` or an open `mmap.mmap`. Slices are to be ordered like bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> Any: ...


class Part(NamedTuple):
    """What becomes of the keys with one first byte: `build` runs these apart from each other."""

    rows: bytes
    pairs: bytearray
    top: "_Subtree"


class _Subtree(NamedTuple):
    """A node over neighbouring keys, with what is needed to put it beside another one."""

    first: int
    last: int
    node: bytes
    depth: int  # where it branches; 0 for a leaf, which stands wherever its neighbours leave it alone
    end: int  # rows up to its last key


class _DisorderError(Exception):
    """Keys not strictly ascending. It crosses process borders, which the errors with codes cannot."""


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

    __slots__ = ("_found", "_size", "pairs", "root", "rows")

    def __init__(self, rows: Buffer, pairs: Buffer) -> None:
        self._size = len(rows) // ROW_BYTES
        if len(rows) % ROW_BYTES or len(pairs) != max(0, self._size - 1) * ROW_BYTES:
            raise ProtocolError("ledger-buffers", f"{len(rows)} bytes of rows and {len(pairs)} of nodes are no ledger")
        self.rows, self.pairs = rows, pairs
        self._found: dict[tuple[int, int], tuple[int, int, int]] = {}
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
        asked, path = int.from_bytes(key, "big"), list[bytes]()
        low, high = 0, self._size
        while high - low > 1:
            depth, middle, first = self._branching(low, high)
            parting = MAX_DEPTH - (first ^ asked).bit_length()
            if parting < depth:  # the key leaves the path above the node at which these keys part
                path += [EMPTY] * (parting - len(path))
                path.append(self._node(low, high, parting + 1))
                return Proof("empty-slot", tuple(path))
            path += [EMPTY] * (depth - len(path))
            pair = self._pair(middle)
            if asked >> (MAX_DEPTH - 1 - depth) & 1:
                path.append(pair[:HASH_BYTES])
                low = middle
            else:
                path.append(pair[HASH_BYTES:])
                high = middle
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

    def _pair(self, middle: int) -> bytes:
        return bytes(self.pairs[(middle - 1) * ROW_BYTES : middle * ROW_BYTES])

    def _branching(self, low: int, high: int) -> tuple[int, int, int]:
        """Where two or more neighbouring keys part: the depth, the first of the right ones, and the first key."""
        if (found := self._found.get((low, high))) is not None:
            return found
        rows = self.rows
        first, last = int.from_bytes(self._key(low), "big"), int.from_bytes(self._key(high - 1), "big")
        if first >= last:
            raise ProtocolError("ledger-buffers", f"the keys from row {low} to row {high - 1} are not in order")
        below = (first ^ last).bit_length() - 1
        boundary = (last >> below << below).to_bytes(HASH_BYTES, "big")
        middle = bisect_left(
            range(high), boundary, low + 1, high - 1, key=lambda at: rows[at * ROW_BYTES : at * ROW_BYTES + HASH_BYTES]
        )
        found = MAX_DEPTH - 1 - below, middle, first
        if found[0] < _REMEMBERED:
            self._found[low, high] = found
        return found

    def _node(self, low: int, high: int, depth: int) -> bytes:
        """The hash at `depth` over neighbouring keys that share that many bits."""
        if high - low < 2:
            row = self._row(low)
            return leaf_hash(row[:HASH_BYTES], row[HASH_BYTES:]) if row else EMPTY
        parting, middle, first = self._branching(low, high)
        return _raised(_sha256(INNER_PREFIX + self._pair(middle)).digest(), first, parting, depth)


def build(
    items: Iterable[tuple[bytes, bytes]],
    run: Callable[[Callable[[bytes], Part], Iterable[bytes]], Iterable[Part]] = map,
) -> Ledger:
    """The ledger over keys and values, in any order.

    Args:
        items: 32-byte keys, each once, with 32-byte values (`protocol.ledger_claim` derives both).
        run: how to do the up to 256 independent parts: `map`, or the `map` of a process pool (a part of a ledger of a
            million keys is 256 KB on the way out and 512 KB on the way back).

    Raises:
        UsageError: `ledger-key`, if a key or value is not 32 bytes; `ledger-duplicate`, if a key comes twice: its
            documents belong into one value.
    """
    waiting = [bytearray() for _ in range(256)]
    for key, value in items:
        if len(key) != HASH_BYTES or len(value) != HASH_BYTES:
            raise UsageError("ledger-key", f"keys and values of a ledger are {HASH_BYTES} bytes")
        waiting[key[0]] += key + value
    waiting.reverse()
    rows, pairs, tops = bytearray(), bytearray(), list[_Subtree]()
    try:
        for part in run(part_of, _drained(waiting)):
            pairs += part.pairs
            pairs += bytes(ROW_BYTES)  # of the node at which this part and the next one part
            rows += part.rows
            tops.append(part.top._replace(end=len(rows) // ROW_BYTES))
    except _DisorderError as error:
        raise UsageError("ledger-duplicate", f"the key {error} comes twice") from None
    del pairs[-ROW_BYTES:]
    if tops:
        _fold(tops, pairs)
    return Ledger(rows, pairs)


def part_of(unsorted: bytes) -> Part:
    """Sorts and hashes the rows of one part of a ledger: the work that `build` hands out."""
    rows = [unsorted[at : at + ROW_BYTES] for at in range(0, len(unsorted), ROW_BYTES)]
    rows.sort()
    pairs = bytearray((len(rows) - 1) * ROW_BYTES)
    top = _fold(_leaves(rows), pairs)
    return Part(b"".join(rows), pairs, top)


def root_of_sorted(items: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, int]:
    """The root over keys and values that come in ascending order, and their number, in constant memory.

    For an audit, or a ledger too large for `build`: sort outside, then stream.

    Raises:
        UsageError: `ledger-key`; `ledger-duplicate`, if a key is not above the one before it.
    """
    count = 0

    def rows() -> Iterator[bytes]:
        nonlocal count
        for key, value in items:
            if len(key) != HASH_BYTES or len(value) != HASH_BYTES:
                raise UsageError("ledger-key", f"keys and values of a ledger are {HASH_BYTES} bytes")
            count += 1
            yield key + value

    try:
        top = _fold(_leaves(rows()), None)
    except _DisorderError as error:
        raise UsageError("ledger-duplicate", f"the key {error} is not above the one before") from None
    return _raised(top.node, top.first, top.depth, 0), count


def _drained(waiting: list[bytearray]) -> Iterator[bytes]:
    """The parts that have keys, each forgotten here once it is taken."""
    while waiting:
        if part := waiting.pop():
            yield bytes(part)


def _leaves(rows: Iterable[bytes]) -> Iterator[tuple[int, int, bytes, int, int]]:
    for at, row in enumerate(rows, 1):
        key = int.from_bytes(row[:HASH_BYTES], "big")
        yield key, key, _sha256(LEAF_PREFIX + row).digest(), 0, at


def _fold(subtrees: Iterable[tuple[int, int, bytes, int, int]], pairs: bytearray | None) -> _Subtree:
    """One node over neighbouring subtrees, `_Subtree`s in ascending order; the children of each gap go into `pairs`.

    The stack holds what is to the left of open gaps; the shared bits of the gaps ascend in it, because three keys in
    order cannot part twice at one depth. A gap closes when the next one is higher up.
    """
    stack: list[tuple[int, int, int, bytes, int]] = []
    start = last = -1
    node, depth, end = EMPTY, 0, 0
    for first, following, fresh, branching, stop in subtrees:
        if last < 0:
            start = first
        else:
            if first <= last:
                raise _DisorderError(first.to_bytes(HASH_BYTES, "big").hex())
            gap = MAX_DEPTH - (first ^ last).bit_length()
            while stack and stack[-1][0] > gap:
                node, depth = _closed(stack.pop(), last, node, depth, pairs)
            stack.append((gap, end, last, node, depth))
        last, node, depth, end = following, fresh, branching, stop
    while stack:
        node, depth = _closed(stack.pop(), last, node, depth, pairs)
    return _Subtree(start, last, node, depth, end)


def _closed(
    open_gap: tuple[int, int, int, bytes, int], key: int, node: bytes, depth: int, pairs: bytearray | None
) -> tuple[bytes, int]:
    """The node at which what is left of a gap and what is right of it part, and its depth."""
    gap, place, left_key, left, left_depth = open_gap
    pair = _raised(left, left_key, left_depth, gap + 1) + _raised(node, key, depth, gap + 1)
    if pairs is not None:
        pairs[(place - 1) * ROW_BYTES : place * ROW_BYTES] = pair
    return _sha256(INNER_PREFIX + pair).digest(), gap


def _raised(node: bytes, key: int, depth: int, to: int) -> bytes:
    """The hash at depth `to` of a node at `depth` that is alone below it; `key` is any key below the node."""
    for level in range(depth - 1, to - 1, -1):
        node = inner_hash(EMPTY, node) if key >> (MAX_DEPTH - 1 - level) & 1 else inner_hash(node, EMPTY)
    return node
