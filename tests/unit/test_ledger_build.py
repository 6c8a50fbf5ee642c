"""The builder at its edges: nothing, one key, keys that share all but a bit, stored buffers, and what it refuses."""

import hashlib
import mmap
import random
import sys
from itertools import pairwise

import numpy as np
import pytest
from naive_ledger import ZEROS, Node, bits, inner, leaf, root_of

from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.ledger import Ledger, build, build_rows, root_of_sorted
from protocol.ledger_proof import Proof, verify_absence, verify_inclusion

VALUE = b"v" * 32


def digest(i):
    return hashlib.sha256(b"key %d" % i).digest()


ITEMS = [(digest(i), digest(-i)) for i in range(300)]


def test_the_empty_ledger_is_an_empty_slot():
    ledger = build([])
    assert (ledger.root, len(ledger), list(ledger)) == (ZEROS, 0, [])
    proof = ledger.prove(digest(1))
    assert proof == Proof("empty-slot")
    verify_absence(ledger.root, digest(1), proof)
    assert root_of_sorted([]) == (ZEROS, 0)


def test_a_single_key_is_the_root():
    key, other = digest(1), digest(2)
    ledger = build([(key, VALUE)])
    assert ledger.root == hashlib.sha256(b"\x01TW1L" + key + VALUE).digest()
    assert ledger.prove(key) == Proof("inclusion")
    assert ledger.prove(other) == Proof("other-leaf", (), (key, VALUE))
    verify_inclusion(ledger.root, key, VALUE, ledger.prove(key))
    verify_absence(ledger.root, other, ledger.prove(other))


def test_a_tree_drawn_by_hand():
    a, b, c = b"\x00" * 32, b"\x20" + b"\x00" * 31, b"\xc0" + b"\x00" * 31  # 000..., 001..., 110...
    below = inner(leaf(a, VALUE), leaf(b, VALUE))
    left = inner(below, ZEROS)  # 00 and 01
    ledger = build([(c, VALUE), (a, VALUE), (b, VALUE)])
    assert ledger.root == inner(left, leaf(c, VALUE))
    assert ledger.prove(b) == Proof("inclusion", (leaf(c, VALUE), ZEROS, leaf(a, VALUE)))
    assert ledger.prove(c) == Proof("inclusion", (left,))
    asked = b"\x40" + b"\x00" * 31  # 010...: leaves the path of a and b where they are still together
    assert ledger.prove(asked) == Proof("empty-slot", (leaf(c, VALUE), below))
    asked = b"\x80" + b"\x00" * 31
    assert ledger.prove(asked) == Proof("other-leaf", (left,), (c, VALUE))


def test_the_order_of_the_keys_changes_nothing():
    shuffled = ITEMS[:]
    random.Random(5).shuffle(shuffled)
    first, second = build(ITEMS), build(iter(shuffled))
    third = build_rows(b"".join(key + value for key, value in reversed(ITEMS)))
    assert first.root == second.root == third.root == root_of(ITEMS)
    assert bytes(first.rows) == bytes(second.rows) == bytes(third.rows)
    assert bytes(first.pairs) == bytes(second.pairs) == bytes(third.pairs)
    assert list(first) == sorted(ITEMS)


def test_values_by_key():
    ledger = build(ITEMS)
    assert all(ledger.value(key) == value for key, value in ITEMS)
    assert [ledger.value(key) for key in (digest(-1), b"\x00" * 32, b"\xff" * 32)] == [None] * 3


def test_a_streamed_root_is_the_built_one():
    assert root_of_sorted(sorted(ITEMS)) == (build(ITEMS).root, len(ITEMS))
    assert root_of_sorted(ITEMS[:1]) == (leaf(*ITEMS[0]), 1)


@pytest.mark.parametrize("items", [[ITEMS[0], ITEMS[0]], [*ITEMS, (ITEMS[7][0], VALUE)]])
def test_a_key_that_comes_twice_is_refused(items):
    for builder in (build, lambda items: root_of_sorted(sorted(items))):
        with pytest.raises(UsageError) as caught:
            builder(items)
        assert caught.value.code == "ledger-duplicate"
        assert items[-1][0].hex() in str(caught.value)


def test_a_stream_out_of_order_is_refused():
    ascending = sorted(ITEMS)
    ascending[3], ascending[4] = ascending[4], ascending[3]
    with pytest.raises(UsageError) as caught:
        root_of_sorted(ascending)
    assert caught.value.code == "ledger-duplicate"


def test_rows_that_are_cut_short_are_refused():
    with pytest.raises(ProtocolError) as caught:
        build_rows(bytes(65))
    assert caught.value.code == "ledger-buffers"


@pytest.mark.parametrize("item", [(b"k" * 31, VALUE), (b"k" * 33, VALUE), (b"k" * 32, b""), (b"", VALUE)])
def test_keys_and_values_of_other_lengths_are_refused(item):
    for builder in (build, root_of_sorted):
        with pytest.raises(UsageError) as caught:
            builder([item])
        assert caught.value.code == "ledger-key"
    with pytest.raises(UsageError) as caught:
        build(ITEMS).prove(b"k" * 31)
    assert caught.value.code == "ledger-key"


def test_the_deepest_tree_there_is():
    """Every depth from 1 to 256 has a leaf: key i begins with i ones, the rest zeros."""
    keys = [((1 << 256) - (1 << (256 - i))).to_bytes(32, "big") for i in range(257)]
    ledger = build((key, VALUE) for key in keys)
    assert [ledger.prove(key).depth for key in keys] == [*range(1, 257), 256]
    for key in keys:
        verify_inclusion(ledger.root, key, VALUE, Proof.from_bytes(ledger.prove(key).to_bytes()))
    tree = Node()
    for key in keys:
        tree.insert(bits(key), key, VALUE)
    assert ledger.root == tree.hash


def test_a_million_keys_that_share_forty_bits():
    """They lie 40 levels down, on a stack that would not hold a call for each level."""
    keys = np.random.default_rng(40).integers(0, 256, (1_000_000, 32), dtype=np.uint8)
    keys[:, :5] = 0x5A
    outside = b"\x5a" * 4 + b"\x5b" + digest(1)[:27]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len_of_stack() + 40)
    try:
        ledger = build_rows(np.concatenate((keys, keys), axis=1).tobytes())
        asked = [key.tobytes() for key in keys[:50]]
        proofs = [(key, ledger.prove(key)) for key in asked]
        beside = ledger.prove(outside)
    finally:
        sys.setrecursionlimit(limit)
    assert len(ledger) == 1_000_000
    for key, proof in proofs:
        assert proof.path[:40] == (ZEROS,) * 40
        verify_inclusion(ledger.root, key, key, proof)
    assert (beside.kind, beside.depth) == ("empty-slot", 40)
    verify_absence(ledger.root, outside, beside)


def len_of_stack():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def test_first_last_and_between():
    keys = sorted(key for key, _ in ITEMS)
    ledger = build(ITEMS)
    number = [int.from_bytes(key, "big") for key in keys]
    between = [(left + right) // 2 for left, right in pairwise(number)]
    beside = [n + d for n in number for d in (-1, 1)]
    edges = [0, (1 << 256) - 1, number[0] - 1, number[-1] + 1]
    for asked in {*between, *beside, *edges} - set(number):
        key = asked.to_bytes(32, "big")
        verify_absence(ledger.root, key, ledger.prove(key))
    for key in (keys[0], keys[-1]):
        verify_inclusion(ledger.root, key, ledger.value(key), ledger.prove(key))


def test_stored_buffers_answer_alike(tmp_path):
    ledger = build(ITEMS)
    (tmp_path / "rows").write_bytes(ledger.rows)
    (tmp_path / "pairs").write_bytes(ledger.pairs)
    with (tmp_path / "rows").open("rb") as rows, (tmp_path / "pairs").open("rb") as pairs:
        opened = Ledger(
            mmap.mmap(rows.fileno(), 0, access=mmap.ACCESS_READ), mmap.mmap(pairs.fileno(), 0, access=mmap.ACCESS_READ)
        )
        assert opened.root == ledger.root
        for asked in range(-20, 320):
            assert opened.prove(digest(asked)) == ledger.prove(digest(asked))


@pytest.mark.parametrize(
    ("rows", "pairs"),
    [(64 * 3, 64 * 3), (64 * 3, 64), (63, 0), (65, 0), (0, 64), (64 * 3, 64 * 2 - 1)],
)
def test_buffers_that_fit_no_ledger_are_refused(rows, pairs):
    with pytest.raises(ProtocolError) as caught:
        Ledger(bytes(rows), bytes(pairs))
    assert caught.value.code == "ledger-buffers"


def test_damaged_buffers_make_no_falsehood_verify():
    ledger = build(ITEMS[:40])
    rows = bytearray(ledger.rows)
    rows[64 * 10 : 64 * 30] = rows[64 * 10 : 64 * 11] * 20  # one row written twenty times
    damaged = Ledger(rows, ledger.pairs)
    outcomes = []
    for key, value in ledger:
        try:
            proof = damaged.prove(key)
            if proof.kind == "inclusion":
                verify_inclusion(ledger.root, key, value, proof)
            else:
                verify_absence(ledger.root, key, proof)
            outcomes.append(proof.kind)
        except (ProtocolError, VerificationError) as error:
            outcomes.append(error.code)
    assert set(outcomes) <= {"inclusion", "ledger-inclusion", "ledger-absence", "ledger-buffers"}
    assert "ledger-buffers" in outcomes, "the damage is where the questions go"
