"""The ledger's prefix tree as its definition is written, and as a tree that grows: what the fast builder is held to.

Bits are characters and nodes are objects here, so that nothing is shared with `protocol.ledger` but the definition.
"""

import hashlib
from collections.abc import Iterable

ZEROS = b"\x00" * 32


def h(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def leaf(key: bytes, value: bytes) -> bytes:
    return h(b"\x01TW1L", key, value)


def inner(left: bytes, right: bytes) -> bytes:
    return h(b"\x02TW1I", left, right)


def bits(key: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in key)


Known = dict[tuple[str, int], bytes]


def root(entries: dict[str, tuple[bytes, bytes]], depth: int = 0, known: Known | None = None) -> bytes:
    """The root over entries by the bits of their keys, straight from the definition.

    Where sets are asked about that grow by a key at a time, `known` may be shared between them: then a prefix and the
    number of keys below it name a set, and what is known of a set is not computed again.
    """
    if len(entries) < 2:
        return leaf(*next(iter(entries.values()))) if entries else ZEROS
    name = next(iter(entries))[:depth], len(entries)
    if known is not None and name in known:
        return known[name]
    left = {key: entry for key, entry in entries.items() if key[depth] == "0"}
    right = {key: entry for key, entry in entries.items() if key[depth] == "1"}
    found = inner(root(left, depth + 1, known), root(right, depth + 1, known))
    if known is not None:
        known[name] = found
    return found


def root_of(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    return root({bits(key): (key, value) for key, value in items})


class Node:
    """A node that grows: empty, a leaf, or an inner node that knows its hash."""

    def __init__(self) -> None:
        self.entry: tuple[str, bytes, bytes] | None = None
        self.children: tuple[Node, Node] | None = None
        self.hash = ZEROS

    def insert(self, way: str, key: bytes, value: bytes) -> None:
        """Puts a key below this node; `way` is what of its bits is left."""
        if self.children is None and self.entry is None:
            self.entry, self.hash = (way, key, value), leaf(key, value)
            return
        if self.children is None:
            assert self.entry is not None
            old_way, *old = self.entry
            assert old_way != way
            self.entry, self.children = None, (Node(), Node())
            self.children[int(old_way[0])].insert(old_way[1:], *old)
        self.children[int(way[0])].insert(way[1:], key, value)
        self.hash = inner(self.children[0].hash, self.children[1].hash)

    def answer(self, way: str, path: tuple[bytes, ...] = ()) -> tuple[str, tuple[bytes, ...], tuple[bytes, ...] | None]:
        """How the way of a key ends: kind, siblings from the root on, and the other leaf."""
        if self.children is not None:
            turn = int(way[0])
            return self.children[turn].answer(way[1:], (*path, self.children[1 - turn].hash))
        if self.entry is None:
            return "empty-slot", path, None
        return ("inclusion", path, None) if self.entry[0] == way else ("other-leaf", path, self.entry[1:])
