"""The state root: one digest that changes when any bit of a training state changes.

A training state is a map of names to tensors and scalars. Here it is bytes: an *entry* says name, dtype and shape, its
little-endian bytes are cut into *pieces*, and a leaf binds `(entry, piece index, byte range, piece digest)`. The root
is the RFC 9162 root of the leaves in name order. Scalars are entries of dtype `json`: their bytes are canonical JSON.

Pieces never cross a shard boundary. `shards` is declared by the manifest (1 for one process; the number of ranks for
FSDP), and the boundaries are those of `torch.chunk` along dimension 0, so a rank that holds only its shard and a
process that holds the whole tensor compute the same digests, and the same root. Container files are never hashed:
safetensors orders its metadata at random and torch archives carry time stamps.

Specified in spec/state-root.md.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod

from protocol import merkle
from protocol.encoding import Count, Struct, decode, encode, tagged_hash
from protocol.errors import ProtocolError, VerificationError

JSON = "json"
ITEM_BYTES = {
    JSON: 1,
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
MIN_PIECE, DEFAULT_PIECE, MAX_PIECE = 4096, 65536, 1 << 20
MAX_ENTRIES, MAX_NAME, MAX_PIECES, MAX_TABLE = 1 << 20, 1024, 1 << 24, 1 << 28
_LEAF_TAG = b"TW1S"
_RANGE = struct.Struct(">QQQ")


class Entry(Struct, frozen=True, order=True):
    """What is known of one tensor or scalar before its bytes.

    Attributes:
        name: `component/...`, unique in the state; the order of leaves is the order of names as UTF-8 bytes.
        dtype: a key of `ITEM_BYTES`.
        shape: sizes; for `json`, the number of bytes.
        aliases: other names under which the same storage is reachable (tied weights), sorted; hashed once, here.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...]
    aliases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Length in bytes."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)


class Pieces(Struct, frozen=True):
    """How the bytes of states are cut: a digest name carries its parameters, `sha256-pieces-65536`.

    Attributes:
        size: bytes of a full piece, a power of two from 4 KiB to 1 MiB.
        shards: boundaries no piece crosses (dimension 0, as torch.chunk cuts).
    """

    size: int = DEFAULT_PIECE
    shards: int = 1

    def __post_init__(self) -> None:
        """Refuses sizes and shard counts outside the format."""
        if not MIN_PIECE <= self.size <= MAX_PIECE or self.size & (self.size - 1):
            raise ProtocolError(
                "not-canonical", f"a piece of {self.size} bytes is not a power of two from 4 KiB to 1 MiB"
            )
        if not 1 <= self.shards <= 1 << 20:
            raise ProtocolError("not-canonical", f"{self.shards} shards are not from 1 to 2^20")


def validate(entries: Sequence[Entry], pieces: Pieces) -> None:
    """Checks that entries from elsewhere form one state: known dtypes, sane sizes, names unique and in order.

    Raises:
        ProtocolError: `state-table`.
    """
    if len(entries) > MAX_ENTRIES:
        raise ProtocolError("state-table", f"{len(entries)} entries where at most {MAX_ENTRIES} are allowed")
    previous, total = b"", 0
    taken: set[str] = set()
    for entry in entries:
        name = entry.name.encode()
        if entry.dtype not in ITEM_BYTES or len(name) > MAX_NAME or len(entry.shape) > 16 or entry.size >= 1 << 48:
            raise ProtocolError("state-table", f"entry {entry.name[:80]!r} has an unknown dtype or an impossible size")
        if name <= previous:
            raise ProtocolError("state-table", f"entry {entry.name[:80]!r} is out of order or stands twice")
        if list(entry.aliases) != sorted(set(entry.aliases)):
            raise ProtocolError("state-table", f"the aliases of {entry.name[:80]!r} are not sorted and distinct")
        previous = name
        taken.update((entry.name, *entry.aliases))
        total += 1 + len(entry.aliases)
        if len(taken) != total:
            raise ProtocolError("state-table", f"a name of entry {entry.name[:80]!r} is used twice")
    if sum(piece_count(entry, pieces) for entry in entries) > MAX_PIECES:
        raise ProtocolError("state-table", f"more than {MAX_PIECES} pieces")


def piece_count(entry: Entry, pieces: Pieces) -> int:
    """How many pieces the bytes of `entry` are cut into, without listing them."""
    full, last, shards = _shard_bytes(entry, pieces.shards)
    count = -(-full // pieces.size) * (shards - 1) + -(-last // pieces.size)
    return max(1, count)


def _shard_bytes(entry: Entry, shards: int) -> tuple[int, int, int]:
    """Bytes of a full shard, bytes of the last one, and how many there are (empty shards do not exist)."""
    if shards == 1 or entry.dtype == JSON or not entry.shape or entry.size == 0:
        return 0, entry.size, 1
    rows = -(-entry.shape[0] // shards)
    row_bytes = entry.size // entry.shape[0]
    used = -(-entry.shape[0] // rows)
    return rows * row_bytes, entry.size - (used - 1) * rows * row_bytes, used


@lru_cache(maxsize=1 << 16)
def ranges(entry: Entry, pieces: Pieces) -> tuple[tuple[int, int], ...]:
    """The byte ranges `(start, stop)` of the pieces of `entry`; an empty tensor has one empty piece."""
    full, _, shards = _shard_bytes(entry, pieces.shards)
    found: list[tuple[int, int]] = []
    for shard in range(shards):
        start = shard * full
        stop = entry.size if shard == shards - 1 else start + full
        found += [(at, min(at + pieces.size, stop)) for at in range(start, stop, pieces.size)]
    return tuple(found) or ((0, 0),)


@lru_cache(maxsize=1 << 16)
def _prefixes(entry: Entry, pieces: Pieces) -> tuple[bytes, ...]:
    """The part of each leaf's RFC 9162 preimage that does not depend on the tensor's values (0x00 included)."""
    head = b"\x00" + _LEAF_TAG + tagged_hash("state/entry", encode(entry))
    return tuple(head + _RANGE.pack(i, start, stop) for i, (start, stop) in enumerate(ranges(entry, pieces)))


def leaf_hashes(entry: Entry, pieces: Pieces, digests: Sequence[bytes]) -> list[bytes]:
    """The RFC 9162 leaf hashes of one entry, from the SHA-256 digests of its pieces."""
    sha256 = hashlib.sha256
    prefixes = _prefixes(entry, pieces)
    return [sha256(prefix + digest).digest() for prefix, digest in zip(prefixes, digests, strict=True)]


def digest_pieces(entry: Entry, pieces: Pieces, data: memoryview | bytes) -> list[bytes]:
    """SHA-256 of each piece of `data`, the little-endian bytes of `entry`.

    Raises:
        VerificationError: `state-bytes`, when the length is not the entry's.
    """
    if len(data) != entry.size:
        raise VerificationError("state-bytes", f"{entry.name}: {len(data)} bytes where {entry.size} are declared")
    view, sha256 = memoryview(data), hashlib.sha256
    return [sha256(view[start:stop]).digest() for start, stop in ranges(entry, pieces)]


class Table:
    """Entries and piece digests of one state: what is opened before any tensor byte is sent.

    Args:
        entries: in name order.
        digests: SHA-256 of every piece, entry after entry.
        pieces: how bytes were cut.

    Raises:
        ProtocolError: `state-table`.
    """

    __slots__ = ("digests", "entries", "first", "pieces", "root")

    def __init__(self, entries: Iterable[Entry], digests: Sequence[bytes], pieces: Pieces) -> None:
        self.entries = tuple(entries)
        self.digests = tuple(digests)
        self.pieces = pieces
        self.first: dict[str, int] = {}
        """Index of the first piece of each entry, by name."""
        leaves: list[bytes] = []
        for entry in self.entries:
            self.first[entry.name] = at = len(leaves)
            stop = at + piece_count(entry, pieces)
            if stop > len(self.digests):
                raise ProtocolError("state-table", f"{len(self.digests)} piece digests, but {entry.name} needs more")
            leaves += leaf_hashes(entry, pieces, self.digests[at:stop])
        if len(leaves) != len(self.digests):
            raise ProtocolError("state-table", f"{len(self.digests)} piece digests for {len(leaves)} pieces")
        self.root = merkle.root(leaves)

    def piece(self, index: int) -> tuple[Entry, int, int]:
        """The entry and byte range of piece `index` of the whole state."""
        if not 0 <= index < len(self.digests):
            raise ProtocolError("state-table", f"there is no piece {index}")
        entry = self.entries[bisect_right(self.entries, index, key=lambda e: self.first[e.name]) - 1]
        start, stop = ranges(entry, self.pieces)[index - self.first[entry.name]]
        return entry, start, stop

    def subset(self, keep: Iterable[str]) -> "Table":
        """The table of some entries alone, as used for released weights."""
        wanted = set(keep)
        entries = [e for e in self.entries if e.name in wanted]
        digests: list[bytes] = []
        for e in entries:
            digests += self.digests[self.first[e.name] : self.first[e.name] + piece_count(e, self.pieces)]
        return Table([Entry(e.name, e.dtype, e.shape) for e in entries], digests, self.pieces)

    def released(self) -> "Table":
        """The table of the weights alone: parameters and buffers of every module, as a weights file publishes them.

        A module is a component with the entry `<component>/@attributes`; no other kind of component has one.
        """
        names = {e.name for e in self.entries}
        modules = {name.removesuffix("/@attributes") for name in names if name.endswith("/@attributes")}
        return self.subset(
            e.name
            for e in self.entries
            if e.dtype != JSON and "/@" not in e.name and e.name.partition("/")[0] in modules
        )

    def to_bytes(self) -> bytes:
        """Length of the entries' JSON (u32, big-endian), that JSON, then the digests."""
        entries = encode(self.entries)
        return len(entries).to_bytes(4, "big") + entries + b"".join(self.digests)

    @classmethod
    def from_bytes(cls, data: bytes, pieces: Pieces, *, root: bytes) -> "Table":
        """Parses a table from the other side and checks it against a committed root.

        Raises:
            ProtocolError: `state-table`, `not-canonical`, `too-large`.
            VerificationError: `state-root`, when it is a table of another state.
        """
        if len(data) > MAX_TABLE:
            raise ProtocolError("too-large", f"a state table of {len(data)} bytes")
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 + length or (len(data) - 4 - length) % 32:
            raise ProtocolError("state-table", "the state table is cut short")
        entries = decode(data[4 : 4 + length], tuple[Entry, ...], limit=MAX_TABLE)
        validate(entries, pieces)
        digests = [data[at : at + 32] for at in range(4 + length, len(data), 32)]
        table = cls(entries, digests, pieces)
        if table.root != root:
            raise VerificationError(
                "state-root",
                "the opened state is not the committed one",
                evidence={"committed": root.hex(), "opened": table.root.hex()},
            )
        return table


def first_difference(left: Table, right: Table) -> tuple[str, int, str] | None:
    """Where two states first differ: entry name, byte offset of the piece, and what differs; None if equal."""
    a, b = {e.name: e for e in left.entries}, {e.name: e for e in right.entries}
    for name in sorted(a.keys() | b.keys(), key=str.encode):
        if name not in a or name not in b:
            return name, 0, "stands in one of the two states only"
        if a[name] != b[name]:
            return name, 0, f"{a[name].dtype}{list(a[name].shape)} against {b[name].dtype}{list(b[name].shape)}"
        at = zip(
            ranges(a[name], left.pieces),
            left.digests[left.first[name] :],
            right.digests[right.first[name] :],
            strict=False,
        )
        for (start, _), mine, theirs in at:
            if mine != theirs:
                return name, start, "bytes"
    return None
