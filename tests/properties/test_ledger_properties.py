"""The ledger against its definition: two naive builders, every proof, and never both answers."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_ledger import Node, bits, root_of

from protocol.errors import ProtocolError, VerificationError
from protocol.ledger import build, root_of_sorted
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


def test_both_naive_builders_agree_with_the_fast_one_at_every_small_size():
    tree = Node()
    for size in range(131):
        ledger = build(ITEMS[:size])
        assert ledger.root == root_of(ITEMS[:size]) == tree.hash
        assert len(ledger) == size
        tree.insert(bits(ITEMS[size][0]), *ITEMS[size])


def test_the_growing_builder_agrees_with_the_fast_one_up_to_two_thousand():
    """Every size has its root from the growing tree; the fast builder is asked at every 47th, the stream at others."""
    tree = Node()
    for size in range(2001):
        if size % 47 == 0 or size == 2000:
            assert build(ITEMS[:size]).root == tree.hash, size
        if size % 61 == 0:
            assert root_of_sorted(sorted(ITEMS[:size])) == (tree.hash, size)
        tree.insert(bits(ITEMS[size][0]), *ITEMS[size])


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
