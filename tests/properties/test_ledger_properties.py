"""The ledger against its definition: two naive builders, every proof, and never both answers."""

import hashlib
import random
from bisect import insort

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ledger import Node, bits, root, root_of

from protocol import ledger_tree
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.ledger import Ledger, build, root_of_rows, root_of_sorted
from protocol.ledger_proof import MAX_PROOF, Proof, verify_absence, verify_inclusion


def digest(i):
    return hashlib.sha256(b"entry %d" % i).digest()


ITEMS = [(digest(i), digest(-i)) for i in range(2001)]

# Keys that share many bits are what goes wrong: prefixes of few bits, and one bit changed anywhere.
near = st.builds(
    lambda base, flips: (base ^ sum(1 << flip for flip in flips)).to_bytes(32, "big"),
    st.sampled_from([0, (1 << 256) - 1, int.from_bytes(digest(0), "big")]),
    st.sets(st.integers(0, 255), max_size=3),
)
coarse = st.builds(
    lambda prefix, rest: prefix + rest * 31, st.binary(min_size=1, max_size=1), st.sampled_from([b"\x00", b"\xff"])
)
keys = st.one_of(st.binary(min_size=32, max_size=32), near, coarse)
entries = st.dictionaries(keys, st.binary(min_size=32, max_size=32), max_size=40)


def test_all_builders_agree_at_every_size_up_to_two_thousand():
    """Three that share nothing but the definition (recursive, growing, level by level), and the last one streamed."""
    entries, known, tree = dict[str, tuple[bytes, bytes]](), {}, Node()
    ascending = list[tuple[bytes, bytes]]()
    for size, (key, value) in enumerate(ITEMS):
        ledger = build(ITEMS[:size])
        assert ledger.root == root(entries, known=known) == tree.hash, size
        assert len(ledger) == size
        assert root_of_sorted(ascending) == (tree.hash, size), size
        entries[bits(key)] = key, value
        tree.insert(bits(key), key, value)
        insort(ascending, (key, value))
    assert size == 2000


def test_what_is_known_of_growing_sets_is_what_they_are():
    known = {}
    for size in range(131):
        assert root({bits(key): (key, value) for key, value in ITEMS[:size]}, known=known) == root_of(ITEMS[:size])


@given(st.integers(0, 1 << 62), st.integers(0, 2000), st.sampled_from([0, 0, 9, 40, 200]))
@settings(max_examples=25, deadline=None)
def test_all_builders_agree_on_random_sets(seed, size, shared):
    """Keys that share some leading bits, in no order."""
    source = random.Random(seed)
    common = source.getrandbits(256) >> (256 - shared) << (256 - shared) if shared else 0
    number = {common | source.getrandbits(256 - shared) for _ in range(size)}
    items = [(key.to_bytes(32, "big"), source.randbytes(32)) for key in number]
    tree = Node()
    for key, value in items:
        tree.insert(bits(key), key, value)
    assert build(items).root == root_of(items) == tree.hash
    assert root_of_sorted(sorted(items)) == (tree.hash, len(items))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 100])
def test_parts_change_nothing(rows, monkeypatch):
    """However few rows a part has: nothing of a tree depends on where its rows are cut."""
    whole = [build(ITEMS[:size]) for size in (0, 1, 2, 3, 9, 200, 1000)]
    chain = [((1 << 256) - (1 << (256 - i))).to_bytes(32, "big") for i in range(257)]
    whole += [build((key, key) for key in chain), build((key[::-1], key) for key in chain)]
    monkeypatch.setattr(ledger_tree, "PART_ROWS", rows)
    for before in whole:
        items = list(before)
        again = build(reversed(items))
        assert (again.root, bytes(again.rows), bytes(again.pairs)) == (
            before.root,
            bytes(before.rows),
            bytes(before.pairs),
        )
        assert root_of_sorted(items) == (before.root, len(items))


@given(entries, st.integers(1, 9), st.integers(1, 7))
def test_parts_of_hostile_sets_change_nothing(found, rows, blocks):
    items = sorted(found.items())
    joined = b"".join(key + value for key, value in items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_tree, "PART_ROWS", rows)
        ledger = build(found.items())
        streamed = root_of_rows(joined[at : at + 64 * blocks] for at in range(0, len(joined), 64 * blocks))
    assert ledger.root == root_of(found.items())
    assert streamed == (ledger.root, len(found))
    for key in found:
        assert Ledger(ledger.rows, ledger.pairs).prove(key).kind == "inclusion"
        verify_inclusion(ledger.root, key, found[key], ledger.prove(key))


@given(entries.filter(lambda found: len(found) > 1), st.integers(1, 9), st.data())
def test_disorder_is_seen_wherever_rows_are_cut(found, rows, data):
    items = sorted(found.items())
    at = data.draw(st.integers(1, len(items) - 1))
    changed = data.draw(st.sampled_from(["swapped", "twice"]))
    if changed == "swapped":
        items[at - 1], items[at] = items[at], items[at - 1]
    else:
        items.insert(at, items[at])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_tree, "PART_ROWS", rows)
        with pytest.raises(UsageError) as caught:
            root_of_sorted(items)
        assert caught.value.code == "ledger-duplicate"
        if changed == "twice":
            with pytest.raises(UsageError) as caught:
                build(items)
            assert caught.value.code == "ledger-duplicate" and items[at][0].hex() in str(caught.value)


@given(st.lists(st.binary(min_size=12, max_size=12), max_size=40), st.sampled_from([8, 12]))
def test_rows_are_sorted_as_bytes_are(rows, key_bytes):
    found = bytes(ledger_tree.in_order(b"".join(rows), 12, key_bytes))
    listed = [found[at : at + 12] for at in range(0, len(found), 12)]
    assert sorted(listed) == sorted(rows)
    assert [row[:key_bytes] for row in listed] == sorted(row[:key_bytes] for row in rows)


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 63).map(lambda b: 2**b)), min_size=1))
def test_bits_are_counted_as_python_counts_them(words):
    for near in (-1, 0, 1):
        words += [(word + near) % 2**64 for word in words[:20]]
    counted = ledger_tree._bit_lengths(np.array(words, dtype=np.uint64))
    assert counted.tolist() == [word.bit_length() for word in words]


def test_every_proof_is_the_naive_one():
    tree = Node()
    for key, value in ITEMS[:500]:
        tree.insert(bits(key), key, value)
    ledger = build(ITEMS[:500])
    for key, _ in ITEMS[:1000]:
        kind, path, other = tree.answer(bits(key))
        assert ledger.prove(key) == Proof(kind, path, other)


@given(entries)
def test_build_is_the_definition(found):
    ledger = build(found.items())
    assert ledger.root == root_of(found.items())
    assert root_of_sorted(sorted(found.items())) == (ledger.root, len(found))


@given(entries, st.lists(keys, max_size=10), st.binary(min_size=32, max_size=32))
@settings(max_examples=150)
def test_every_key_is_proven_in_or_absent_and_never_both(found, asked, wrong):
    ledger = build(found.items())
    for key in [*found, *asked]:
        proof = ledger.prove(key)
        encoded = proof.to_bytes()
        assert Proof.from_bytes(encoded) == proof
        assert len(encoded) <= MAX_PROOF
        present = key in found
        assert (proof.kind == "inclusion") == present
        if present:
            verify_inclusion(ledger.root, key, found[key], proof)
        else:
            verify_absence(ledger.root, key, proof)
        with pytest.raises(VerificationError):
            verify_absence(ledger.root, key, proof) if present else verify_inclusion(ledger.root, key, wrong, proof)
        if present and found[key] != wrong:
            with pytest.raises(VerificationError):
                verify_inclusion(ledger.root, key, wrong, proof)


@given(entries, keys, keys, keys, st.data())
@settings(max_examples=150)
def test_no_proof_answers_another_question(found, key, other, third, data):
    """A proof, told for another key, verifies only where the other key's own proof is the same."""
    found |= {third: b"t" * 32}
    ledger = build(found.items())
    proof = ledger.prove(key)
    told = data.draw(st.sampled_from(sorted({*found, other})))
    if told == key or ledger.prove(told) == proof:
        return
    for value in {found.get(told, b"v" * 32), found.get(key, b"v" * 32)}:
        with pytest.raises(VerificationError):
            verify_inclusion(ledger.root, told, value, proof)
    with pytest.raises(VerificationError):
        verify_absence(ledger.root, told, proof)


@given(st.binary(max_size=300))
def test_whatever_parses_is_encoded_as_it_came(data):
    try:
        proof = Proof.from_bytes(data)
    except ProtocolError as error:
        assert error.code == "ledger-proof-malformed"
    else:
        assert proof.to_bytes() == data


@given(
    st.sampled_from([1, 2, 3]),
    st.lists(st.one_of(st.just(None), st.binary(min_size=32, max_size=32)), max_size=20),
    st.binary(min_size=64, max_size=64),
)
def test_the_encoding_as_it_is_described(kind, path, other):
    """Made from the description of `Proof.to_bytes`, bit by bit; it parses exactly when the shape is possible."""
    bitmap = "".join("0" if sibling is None else "1" for sibling in path)
    bitmap += "0" * (-len(bitmap) % 8)
    data = bytes([kind, 0, len(path)]) + bytes(int(bitmap[at : at + 8], 2) for at in range(0, len(bitmap), 8))
    data += b"".join(sibling for sibling in path if sibling is not None) + (other if kind == 2 else b"")
    possible = (not path or path[-1] is not None) and bytes(32) not in path
    try:
        proof = Proof.from_bytes(data)
    except ProtocolError:
        assert not possible
    else:
        assert possible
        assert proof.depth == len(path)
        assert proof.path == tuple(sibling or bytes(32) for sibling in path)
        assert proof.other == ((other[:32], other[32:]) if kind == 2 else None)


def test_the_longest_proof():
    """Two keys that differ in the last bit, and a neighbour at every depth above."""
    base = int.from_bytes(digest(1), "big")
    found = [((base ^ 1 << bit).to_bytes(32, "big"), digest(bit)) for bit in range(1, 256)]
    key, twin = base.to_bytes(32, "big"), (base ^ 1).to_bytes(32, "big")
    ledger = build([*found, (twin, digest(0))])
    proof = ledger.prove(key)
    assert (proof.kind, proof.depth) == ("other-leaf", 255)  # the twin is alone below depth 255
    assert len(proof.to_bytes()) == MAX_PROOF
    verify_absence(ledger.root, key, Proof.from_bytes(proof.to_bytes()))
    ledger = build([*found, (twin, digest(0)), (key, digest(-1))])
    proof = ledger.prove(key)
    assert proof.depth == 256 and len(proof.to_bytes()) == MAX_PROOF - 32
    verify_inclusion(ledger.root, key, digest(-1), Proof.from_bytes(proof.to_bytes()))
