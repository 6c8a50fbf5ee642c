"""From sorted rows to the root of a ledger's tree, with the children of every branching node on the way.

A prefix tree over n sorted keys has exactly one branching node for each of the n - 1 gaps between neighbours, at the
depth at which the two keys part. `nodes_of` makes the nodes of many gaps at once, the deepest first, so that all
hashes of a depth are one batch (`protocol.bulk_hash`). `fold` makes them one after another, over any sequence of
subtrees: it joins what the parts leave, and holds the right edge of the tree only, at most 256 nodes. Neither recurses,
so it does not matter how many bits the keys share.

Rows are cut into parts at gaps that lie high in the tree, and in a part the nodes below both of the gaps beside it are
made; so parts do not depend on each other, and a stream needs no more memory than a part.

Specified in spec/ledger.md, section 3.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from protocol.bulk_hash import Bytes, hash_rows
from protocol.ledger_proof import EMPTY, HASH_BYTES, INNER_PREFIX, LEAF_PREFIX, MAX_DEPTH, inner_hash

_sha256 = hashlib.sha256

ROW_BYTES: Final = 2 * HASH_BYTES
"""A row is a key and its value."""
PART_ROWS: Final = 1 << 16
"""Rows of a part at most: 4 MB, and as much again of nodes."""
_WORDS: Final = HASH_BYTES // 8
_ALONE: Final = -1
"""Above every gap: what lies beside the first row, and the last."""
Depths = npt.NDArray[np.int16]
Words = npt.NDArray[np.uint64]
B = TypeVar("B", bound="bytes | bytearray | memoryview")


class Part(NamedTuple):
    """Neighbouring rows, and the depth of the deeper one of the gaps beside them (-1: there are none)."""

    rows: Bytes
    above: int


class Subtree(NamedTuple):
    """A node over neighbouring keys, with what is needed to put it beside another one."""

    first: int
    last: int
    node: bytes
    depth: int  # at which the node stands; 0 for a leaf, which stands wherever its neighbours leave it alone
    end: int  # rows up to its last key


class DisorderError(Exception):
    """Keys that do not ascend; it names the second of them. It crosses borders of processes, which codes cannot."""


def in_order(data: B, width: int, key_bytes: int) -> B | bytearray:
    """Rows in ascending order of their first bytes.

    Args:
        data: bytes of the rows, one after another.
        width: of a row, in bytes.
        key_bytes: how many bytes of a row decide; a multiple of 4, at least 8.

    Returns:
        A sorted copy; the data itself, if the first 8 bytes of its rows show that they are in order.
    """
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    first = _word(rows, 0)
    if (first[1:] > first[:-1]).all():
        return data
    order = np.argsort(first)
    first = first[order]
    equal = first[1:] == first[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    del first, equal
    if len(tied):  # equal ones are neighbours now: put right among themselves, they go back to the same places
        columns = rows[order[tied], :key_bytes].view(">u4").astype(np.uint32)
        order[tied] = order[tied][np.lexsort(columns.T[::-1])]
    copy = bytearray(len(data))
    np.take(rows, order, axis=0, out=np.frombuffer(copy, dtype=np.uint8).reshape(-1, width), mode="clip")
    return copy


def parts(rows: Bytes) -> Iterator[Part]:
    """Sorted rows, cut into parts.

    Raises:
        DisorderError: if they are seen not to be in order.
    """
    left, at = _ALONE, 0
    while at < len(rows):
        cut, right = _cut(rows[at : at + PART_ROWS + 1])
        yield Part(rows[at : at + cut], max(left, right))
        left, at = right, at + cut


def streamed(blocks: Iterable[bytes]) -> Iterator[Part]:
    """`parts` of blocks of any length, whole rows each, in the memory that a part needs.

    Raises:
        DisorderError.
    """
    held, left = bytearray(), _ALONE
    for block in blocks:
        for at in range(0, len(block), PART_ROWS * ROW_BYTES):
            held += block[at : at + PART_ROWS * ROW_BYTES]
            while len(held) > PART_ROWS * ROW_BYTES:
                cut, right = _cut(as_rows(bytes(held[: (PART_ROWS + 1) * ROW_BYTES])))
                yield Part(as_rows(bytes(held[: cut * ROW_BYTES])), max(left, right))
                del held[: cut * ROW_BYTES]
                left = right
    if held:
        yield Part(as_rows(bytes(held)), left)


def nodes_of(part: Part, pairs: Bytes | None) -> Iterator[Subtree]:
    """The nodes of a part below the gaps beside it, from left to right.

    Args:
        part: rows in ascending order.
        pairs: takes the children of each gap whose node is made, shape (rows - 1, 64); None to forget them.

    Raises:
        DisorderError.
    """
    rows, above = part
    keys = rows[:, :HASH_BYTES]
    gaps = _gaps(keys)
    nodes = hash_rows(LEAF_PREFIX, rows)
    # A node is known by its first row; `first` and `last` lead from one end of its rows to the other.
    first, last = np.arange(len(rows)), np.arange(len(rows))
    by_depth = np.argsort(gaps, kind="stable")
    bounds = np.searchsorted(gaps[by_depth], np.arange(MAX_DEPTH + 1))
    taken = np.zeros(len(rows), dtype=bool)
    branching = np.empty(0, dtype=np.int64)  # nodes that branch, at the depth below this one
    for depth in range(int(gaps.max(initial=_ALONE)), above, -1):
        places = by_depth[bounds[depth] : bounds[depth + 1]]
        left, right = first[places], places + 1
        joined = np.concatenate((nodes[left], nodes[right]), axis=1)
        if pairs is not None:
            pairs[places] = joined
        taken[left] = taken[right] = True
        alone = branching[~taken[branching]]
        taken[left] = taken[right] = False
        nodes[left] = hash_rows(INNER_PREFIX, joined)
        last[left] = ends = last[right]
        first[ends] = left
        if len(alone):  # nothing stands beside these: above each is a node with one child
            nodes[alone] = hash_rows(INNER_PREFIX, _beside_nothing(nodes[alone], keys[alone], depth))
        branching = np.concatenate((left, alone))
    at = 0
    while at < len(rows):
        end = int(last[at])
        yield Subtree(_number(keys[at]), _number(keys[end]), nodes[at].tobytes(), above + 1 if end > at else 0, end + 1)
        at = end + 1


def fold(subtrees: Iterable[tuple[int, int, bytes, int, int]], pairs: bytearray | None) -> Subtree:
    """One node over neighbouring `Subtree`s in ascending order; the children of each gap between them go into `pairs`.

    The stack holds what is to the left of open gaps; the shared bits of the gaps ascend in it, because three keys in
    order cannot part twice at one depth. A gap closes when the next one is higher up.

    Raises:
        DisorderError.
    """
    stack: list[tuple[int, int, int, bytes, int]] = []
    start = last = -1
    node, depth, end = EMPTY, 0, 0
    for first, following, fresh, branching, stop in subtrees:
        if last < 0:
            start = first
        else:
            if first <= last:
                raise DisorderError(first.to_bytes(HASH_BYTES, "big").hex())
            gap = MAX_DEPTH - (first ^ last).bit_length()
            while stack and stack[-1][0] > gap:
                node, depth = _closed(stack.pop(), last, node, depth, pairs)
            stack.append((gap, end, last, node, depth))
        last, node, depth, end = following, fresh, branching, stop
    while stack:
        node, depth = _closed(stack.pop(), last, node, depth, pairs)
    return Subtree(start, last, node, depth, end)


def raised(node: bytes, key: int, depth: int, to: int) -> bytes:
    """The hash at depth `to` of a node at `depth` that is alone below it; `key` is any key below the node."""
    for level in range(depth - 1, to - 1, -1):
        node = inner_hash(EMPTY, node) if key >> (MAX_DEPTH - 1 - level) & 1 else inner_hash(node, EMPTY)
    return node


def as_rows(data: bytes | bytearray | memoryview) -> Bytes:
    """Bytes as rows."""
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, ROW_BYTES)


def _closed(
    open_gap: tuple[int, int, int, bytes, int], key: int, node: bytes, depth: int, pairs: bytearray | None
) -> tuple[bytes, int]:
    """The node at which what is left of a gap and what is right of it part, and its depth."""
    gap, place, left_key, left, left_depth = open_gap
    pair = raised(left, left_key, left_depth, gap + 1) + raised(node, key, depth, gap + 1)
    if pairs is not None:
        pairs[(place - 1) * ROW_BYTES : place * ROW_BYTES] = pair
    return _sha256(INNER_PREFIX + pair).digest(), gap


def _cut(rows: Bytes) -> tuple[int, int]:
    """How many of the rows make a part, and the depth of the gap behind them.

    Args:
        rows: one more than a part may have, or all that there are.
    """
    if len(rows) <= PART_ROWS:
        return len(rows), _ALONE
    gaps = _gaps(rows[PART_ROWS // 2 :, :HASH_BYTES])
    highest = int(gaps.argmin())
    return PART_ROWS // 2 + highest + 1, int(gaps[highest])


def _gaps(keys: Bytes) -> Depths:
    """The depth at which each key parts from the one before: how many leading bits the two share.

    Raises:
        DisorderError: if a key is not above the one before it.
    """
    depths = np.full(len(keys) - 1, MAX_DEPTH, dtype=np.int16)
    undecided = np.arange(len(depths))
    for word in range(_WORDS):
        left, right = _word(keys[undecided], 8 * word), _word(keys[undecided + 1], 8 * word)
        below = left > right
        if below.any():
            raise DisorderError(keys[undecided[below.argmax()] + 1].tobytes().hex())
        differing = left != right
        depths[undecided[differing]] = 64 * word + 64 - _bit_lengths((left ^ right)[differing])
        undecided = undecided[~differing]
        if not len(undecided):
            return depths
    raise DisorderError(keys[undecided[0] + 1].tobytes().hex())


def _word(rows: Bytes, at: int) -> Words:
    """Eight bytes of each row as a big-endian number."""
    return rows[:, at : at + 8].copy().view(">u8").ravel().astype(np.uint64)


def _bit_lengths(words: Words) -> Depths:
    """The number of bits of each word. All but the highest of neighbouring ones are cleared, so nothing rounds up."""
    return np.frexp((words & ~(words >> np.uint64(1))).astype(np.float64))[1].astype(np.int16)


def _beside_nothing(nodes: Bytes, keys: Bytes, depth: int) -> Bytes:
    """Nodes as one of two children, by the bit of their keys at `depth`; the other one is empty."""
    pairs = np.zeros((len(nodes), 2, HASH_BYTES), dtype=np.uint8)
    pairs[np.arange(len(nodes)), keys[:, depth // 8] >> (7 - depth % 8) & 1] = nodes
    return pairs.reshape(-1, ROW_BYTES)


def _number(key: Bytes) -> int:
    return int.from_bytes(key.tobytes(), "big")
