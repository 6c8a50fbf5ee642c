"""The state root moves with every bit, is the same however a state is sharded, and opens strictly."""

import hashlib
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import merkle
from protocol.encoding import encode, tagged_hash
from protocol.errors import ProtocolError, VerificationError
from protocol.statetree import (
    ITEM_BYTES,
    Entry,
    Pieces,
    Table,
    digest_pieces,
    first_difference,
    piece_count,
    ranges,
    validate,
)

DTYPES = st.sampled_from(sorted(set(ITEM_BYTES) - {"json"}))
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
ENTRIES = st.builds(lambda d, s: Entry("t", d, s), DTYPES, SHAPES)
PIECES = st.builds(Pieces, st.sampled_from([4096, 8192]), st.integers(1, 7))


@given(ENTRIES, PIECES)
def test_ranges_cover_the_bytes_once(entry: Entry, pieces: Pieces) -> None:
    found = ranges(entry, pieces)
    assert len(found) == piece_count(entry, pieces)
    assert b"".join(bytes(range(256)) * 0 + bytes(b - a) for a, b in found) == bytes(entry.size)
    assert all(b - a <= pieces.size for a, b in found)
    assert found[0][0] == 0
    assert found[-1][1] == entry.size
    assert all(a[1] == b[0] for a, b in pairwise(found))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
def test_pieces_respect_the_shards_of_torch_chunk(rows: int, columns: int, shards: int) -> None:
    """A rank that holds one chunk computes exactly the digests that the whole tensor has there."""
    tensor = torch.arange(rows * columns * 300, dtype=torch.float32).view(rows, columns * 300)
    entry, pieces = Entry("t", "float32", tuple(tensor.shape)), Pieces(4096, shards)
    whole = digest_pieces(entry, pieces, memoryview(tensor.numpy()).cast("B"))
    by_rank = []
    for chunk in torch.chunk(tensor, shards):
        data = bytes(memoryview(chunk.contiguous().numpy()).cast("B"))
        by_rank += [hashlib.sha256(data[at : at + 4096]).digest() for at in range(0, len(data), 4096)]
    assert whole == by_rank


def table(states: dict[str, bytes], pieces: Pieces) -> Table:
    entries = [Entry(name, "uint8", (len(data),)) for name, data in sorted(states.items())]
    digests = [d for e in entries for d in digest_pieces(e, pieces, states[e.name])]
    return Table(entries, digests, pieces)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["a", "b/c", "d"]), st.binary(min_size=1, max_size=9000), min_size=1), st.data())
def test_every_bit_moves_the_root_and_is_named(states: dict[str, bytes], data: st.DataObject) -> None:
    before = table(states, Pieces(4096))
    name = data.draw(st.sampled_from(sorted(states)))
    bit = data.draw(st.integers(0, 8 * len(states[name]) - 1))
    changed = bytearray(states[name])
    changed[bit // 8] ^= 1 << bit % 8
    after = table({**states, name: bytes(changed)}, Pieces(4096))
    assert after.root != before.root
    assert first_difference(before, after) == (name, bit // 8 // 4096 * 4096, "bytes")


def test_the_root_is_what_the_specification_says() -> None:
    """An independent computation of leaf and root for two entries."""
    data = {"a": bytes(5000), "b": b"\x01"}
    leaves = []
    for name, content in data.items():
        head = b"TW1S" + tagged_hash("state/entry", encode(Entry(name, "uint8", (len(content),))))
        for i, at in enumerate(range(0, len(content), 4096)):
            stop = min(at + 4096, len(content))
            numbers = b"".join(n.to_bytes(8, "big") for n in (i, at, stop))
            leaves.append(hashlib.sha256(b"\x00" + head + numbers + hashlib.sha256(content[at:stop]).digest()).digest())
    node = hashlib.sha256(b"\x01" + leaves[0] + leaves[1]).digest()
    assert table(data, Pieces(4096)).root == hashlib.sha256(b"\x01" + node + leaves[2]).digest() == merkle.root(leaves)


@given(st.data())
def test_tables_open_only_as_they_were_committed(data: st.DataObject) -> None:
    committed = table({"a": bytes(5000), "b/c": b"xyz"}, Pieces(4096))
    encoded = committed.to_bytes()
    assert Table.from_bytes(encoded, Pieces(4096), root=committed.root).root == committed.root
    position = data.draw(st.integers(0, len(encoded) - 1))
    mutated = bytearray(encoded)
    mutated[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((ProtocolError, VerificationError)):
        Table.from_bytes(bytes(mutated), Pieces(4096), root=committed.root)


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("b", "uint8", (1,)), Entry("a", "uint8", (1,))],
        [Entry("a", "uint8", (1,)), Entry("a", "uint8", (1,))],
        [Entry("a", "uint9", (1,))],
        [Entry("a", "uint8", (1 << 47, 4))],
        [Entry("a", "float32", (1,), ("c", "b"))],
        [Entry("a", "float32", (1,), ("b",)), Entry("b", "float32", (1,))],
        [Entry("x" * 1025, "uint8", (1,))],
        [Entry("a", "uint8", (1,) * 17)],
        [Entry("a", "uint8", (1 << 40,))],
    ],
)
def test_entries_that_form_no_state_are_refused(entries: list[Entry]) -> None:
    with pytest.raises(ProtocolError):
        validate(entries, Pieces(4096))


def test_aliases_belong_to_the_root() -> None:
    plain, tied = Entry("a", "uint8", (1,)), Entry("a", "uint8", (1,), ("b",))
    digest = [hashlib.sha256(b"\x00").digest()]
    assert Table([plain], digest, Pieces()).root != Table([tied], digest, Pieces()).root
