"""Edited proofs: any byte, any length, order, depth and bitmap; and proofs of other questions and of other trees."""

import hashlib
from collections.abc import Callable
from itertools import combinations, product

import pytest
from naive_ledger import ZEROS, inner, leaf

from protocol import merkle
from protocol.errors import ProtocolError, VerificationError
from protocol.ledger import Ledger, build
from protocol.ledger_claim import RAW, LedgerClaim, Occurrences, document_key
from protocol.ledger_proof import INNER_PREFIX, LEAF_PREFIX, MAX_PROOF, Proof, verify_absence, verify_inclusion

T1 = "t1-nfc-lf-strip-unicode14"


def digest(i: int) -> bytes:
    return hashlib.sha256(b"document %d" % i).digest()


def ledger_of(size: int, tier: str = RAW) -> Ledger:
    return build((document_key(tier, digest(i)), Occurrences(1, (i,)).value) for i in range(size))


SMALL, LARGE = ledger_of(9), ledger_of(1000)


def question(ledger: Ledger, kind: str) -> tuple[bytes, Proof]:
    """The first key whose proof is of that kind and has a path with an empty sibling in it, if any has."""
    keys = [document_key(RAW, digest(i)) for i in range(4000)]
    proofs = [(key, proof) for key in keys if (proof := ledger.prove(key)).kind == kind]
    return next((found for found in proofs if ZEROS in found[1].path), proofs[0])


def accepted(ledger: Ledger, key: bytes, data: bytes) -> bool:
    """Whether an asker takes these bytes as an answer, whichever."""
    try:
        proof = Proof.from_bytes(data)
        if proof.kind == "inclusion":
            verify_inclusion(ledger.root, key, ledger.value(key) or b"v" * 32, proof)
        else:
            verify_absence(ledger.root, key, proof)
    except (ProtocolError, VerificationError):
        return False
    return True


KINDS = ["inclusion", "other-leaf", "empty-slot"]
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_every_change_of_every_byte_is_refused(kind: str) -> None:
    key, proof = question(SMALL, kind)
    data = proof.to_bytes()
    assert accepted(SMALL, key, data)
    for at, change in product(range(len(data)), range(1, 256)):
        edited = bytearray(data)
        edited[at] ^= change
        assert not accepted(SMALL, key, bytes(edited)), (at, change)


@each_kind
def test_every_flipped_bit_of_a_longer_proof_is_refused(kind: str) -> None:
    key, proof = question(LARGE, kind)
    data = proof.to_bytes()
    assert accepted(LARGE, key, data) and len(data) > 250
    for bit in range(8 * len(data)):
        edited = bytearray(data)
        edited[bit // 8] ^= 1 << bit % 8
        assert not accepted(LARGE, key, bytes(edited)), bit


@each_kind
def test_truncated_and_extended_proofs_are_malformed(kind: str) -> None:
    _, proof = question(LARGE, kind)
    data = proof.to_bytes()
    wrong = [data[:at] for at in range(len(data))] + [data[at:] for at in range(1, len(data), 7)]
    wrong += [data + more for more in (b"\x00", ZEROS, b"\xff" * 32, data)]
    for edited in wrong:
        with pytest.raises(ProtocolError) as caught:
            Proof.from_bytes(edited)
        assert caught.value.code == "ledger-proof-malformed"


@each_kind
def test_paths_reordered_shortened_and_lengthened_do_not_verify(kind: str) -> None:
    key, proof = question(LARGE, kind)
    path = proof.path
    wrong = [path[::-1], path[1:], path[:-1], (*path, b"\x11" * 32), (ZEROS, *path), (*path[:-1], ZEROS, path[-1])]
    for left, right in combinations(range(len(path)), 2):
        swapped = list(path)
        swapped[left], swapped[right] = swapped[right], swapped[left]
        wrong.append(tuple(swapped))
    refused = 0
    for edited in wrong:
        if edited != path:
            try:
                data = Proof(proof.kind, edited, proof.other).to_bytes()
            except ProtocolError as error:
                assert error.code == "ledger-proof-malformed"
            else:
                assert not accepted(LARGE, key, data)
            refused += 1
    assert refused > 20


@each_kind
def test_a_proof_told_as_another_kind_does_not_verify(kind: str) -> None:
    key, proof = question(LARGE, kind)
    value = LARGE.value(key) or b"v" * 32
    for told in KINDS:
        for other in (None, (key, value), (document_key(RAW, digest(5)), value), proof.other):
            if (told, other) != (kind, proof.other) and (other is None) == (told != "other-leaf"):
                assert not accepted(LARGE, key, Proof(told, proof.path, other).to_bytes())
            if kind == "empty-slot" and told == "inclusion":
                with pytest.raises(VerificationError):  # the path is right: only the kind says something else
                    verify_absence(LARGE.root, key, Proof(told, proof.path))
    # Nor does the wrong check take it.
    with pytest.raises(VerificationError) as caught:
        if kind == "inclusion":
            verify_absence(LARGE.root, key, proof)
        else:
            verify_inclusion(LARGE.root, key, value, proof)
    assert caught.value.code == ("ledger-absence" if kind == "inclusion" else "ledger-inclusion")


def test_a_key_is_not_absent_because_its_own_leaf_is_there() -> None:
    key, proof = question(LARGE, "inclusion")
    value = LARGE.value(key)
    assert value is not None
    with pytest.raises(VerificationError, match="own") as caught:
        verify_absence(LARGE.root, key, Proof("other-leaf", proof.path, (key, value)))
    assert caught.value.code == "ledger-absence"


def test_another_leaf_must_lie_on_the_way_of_the_key() -> None:
    """The path, the leaf and the root are genuine: only the key does not lead there."""
    key, proof = question(LARGE, "inclusion")
    value = LARGE.value(key)
    assert value is not None
    asked = (int.from_bytes(key, "big") ^ 1 << (256 - proof.depth)).to_bytes(32, "big")
    with pytest.raises(VerificationError, match="off its path") as caught:
        verify_absence(LARGE.root, asked, Proof("other-leaf", proof.path, (key, value)))
    assert caught.value.code == "ledger-absence"


# --- tricks with depth and bitmap


def encoded(kind: int, depth: int, bitmap: bytes, rest: bytes) -> bytes:
    return bytes([kind]) + depth.to_bytes(2, "big") + bitmap + rest


HASH = b"\x77" * 32
MALFORMED = {
    "a listed sibling of zeros": encoded(3, 2, b"\xc0", ZEROS + HASH),
    "a listed sibling of zeros at the end": encoded(3, 1, b"\x80", ZEROS),
    "nothing beside the end": encoded(3, 2, b"\x80", HASH),
    "nothing beside the whole path": encoded(1, 8, b"\x00", b""),
    "bits below the end": encoded(3, 1, b"\xc0", HASH),
    "bits below the end, with a sibling": encoded(3, 1, b"\xc0", HASH + HASH),
    "the bitmap a byte longer": encoded(3, 1, b"\x80\x00", HASH),
    "the bitmap a byte shorter": encoded(3, 9, b"\x80", HASH),
    "fewer siblings than bits": encoded(3, 2, b"\xc0", HASH),
    "more siblings than bits": encoded(3, 2, b"\x40", HASH + HASH),
    "depth 257": encoded(1, 257, b"\x00" * 32 + b"\x80", HASH),
    "an empty slot at depth 256": encoded(3, 256, b"\x00" * 31 + b"\x01", HASH),
    "another leaf at depth 256": encoded(2, 256, b"\x00" * 31 + b"\x01", HASH + HASH + HASH),
    "depth 65535": encoded(1, 65535, b"\xff" * 8000, b""),
    "kind 0": encoded(0, 0, b"", b""),
    "kind 4": encoded(4, 0, b"", b""),
    "another leaf without its value": encoded(2, 0, b"", HASH),
    "another leaf that is none": encoded(2, 0, b"", b""),
    "a leaf behind an empty slot": encoded(3, 0, b"", HASH + HASH),
    "nothing": b"",
}


@pytest.mark.parametrize("trick", MALFORMED)
def test_shapes_of_no_tree_are_malformed(trick: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Proof.from_bytes(MALFORMED[trick])
    assert caught.value.code == "ledger-proof-malformed"


def test_the_shapes_beside_them_are_proofs() -> None:
    """Else the list above could be refused for another reason."""
    for data in [
        encoded(3, 2, b"\x40", HASH),
        encoded(3, 2, b"\xc0", HASH + HASH),
        encoded(3, 9, b"\x80\x80", HASH + HASH),
        encoded(1, 256, b"\x00" * 31 + b"\x01", HASH),
        encoded(2, 255, b"\x00" * 31 + b"\x02", HASH + HASH + HASH),
        encoded(2, 0, b"", HASH + HASH),
        encoded(3, 0, b"", b""),
    ]:
        assert Proof.from_bytes(data).to_bytes() == data


def test_a_huge_proof_is_refused_unread() -> None:
    with pytest.raises(ProtocolError) as caught:
        Proof.from_bytes(bytes(MAX_PROOF + 1))
    assert caught.value.code == "too-large"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Proof("inclusion", (HASH,), (HASH, HASH)),
        lambda: Proof("other-leaf", (HASH,)),
        lambda: Proof("other-leaf", (), (HASH, HASH[1:])),
        lambda: Proof("empty-slot", (HASH[1:],)),
        lambda: Proof("empty-slot", (HASH + HASH,)),
        lambda: Proof("inclusion", (HASH, ZEROS)),
        lambda: Proof("inclusion", (HASH,) * 257),
        lambda: Proof("unknown", ()),  # type: ignore[arg-type]
    ],
)
def test_a_proof_of_impossible_shape_cannot_be_made(make: Callable[[], Proof]) -> None:
    with pytest.raises(ProtocolError) as caught:
        make()
    assert caught.value.code == "ledger-proof-malformed"


def test_a_proof_deeper_than_its_leaf_does_not_verify() -> None:
    """A way that goes on below a leaf, or ends above one, hashes something else."""
    a, b = b"\x00" * 32, b"\x80" + b"\x00" * 31
    ledger = build([(a, HASH), (b, HASH)])
    verify_inclusion(ledger.root, a, HASH, Proof("inclusion", (leaf(b, HASH),)))
    for path in [(), (leaf(b, HASH), leaf(b, HASH)), (ZEROS, leaf(b, HASH)), (leaf(a, HASH),)]:
        with pytest.raises(VerificationError):
            verify_inclusion(ledger.root, a, HASH, Proof("inclusion", path))


# --- nodes of other trees


def test_no_node_of_another_tree_has_the_bytes_of_a_node_of_this_one() -> None:
    """RFC 9162 hashes 0x00 and anything, or 0x01 and 64 bytes; here it is 0x01 or 0x02 and 68 bytes."""
    left, right = digest(1), digest(2)
    for prefix, node in ((LEAF_PREFIX, leaf(left, right)), (INNER_PREFIX, inner(left, right))):
        preimage = prefix + left + right
        assert node == hashlib.sha256(preimage).digest()
        assert len(preimage) == 69 != 1 + 2 * merkle.HASH_BYTES and preimage[0] in (1, 2)
        others = {merkle.leaf_hash(preimage[cut:]) for cut in range(len(preimage))}
        others |= {merkle.node_hash(preimage[1 : 1 + cut], preimage[1 + cut : 65]) for cut in range(64)}
        assert node not in others
    assert leaf(left, right) != inner(left, right)


def test_the_root_of_another_tree_answers_nothing() -> None:
    """A log's or corpus's root, put where a ledger's root belongs, with every path that leads to it there."""
    leaves = [merkle.leaf_hash(b"TW1L" + document_key(RAW, digest(i)) + Occurrences(1, (i,)).value) for i in range(8)]
    tree = merkle.Tree(leaves)
    for index, size in product(range(8), range(1, 9)):
        if index < size:
            path = tuple(reversed(tree.inclusion_proof(index, size)))
            key, value = document_key(RAW, digest(index)), Occurrences(1, (index,)).value
            for proof in [
                Proof("inclusion", path),
                Proof("empty-slot", path),
                Proof("other-leaf", path, (document_key(RAW, digest(9)), value)),
            ]:
                with pytest.raises(VerificationError):
                    if proof.kind == "inclusion":
                        verify_inclusion(tree.root(size), key, value, proof)
                    else:
                        verify_absence(tree.root(size), key, proof)


def test_a_ledger_over_nodes_of_another_tree_holds_no_key_below_them() -> None:
    key, value = document_key(RAW, digest(1)), HASH
    below = merkle.node_hash(merkle.leaf_hash(key + value), merkle.leaf_hash(b""))
    root = inner(below, below)
    for path in [(below,), (below, merkle.leaf_hash(b"")), (below, below)]:
        for proof in (Proof("inclusion", path), Proof("empty-slot", path)):
            with pytest.raises(VerificationError):
                if proof.kind == "inclusion":
                    verify_inclusion(root, key, value, proof)
                else:
                    verify_absence(root, key, proof)


# --- proofs of other questions


def test_proofs_of_another_ledger_or_tier_or_document() -> None:
    claims = {
        tier: LedgerClaim(tier, ledger_of(50, tier).root.hex(), 50, 50) for tier in (RAW, T1, "t2-winnow-bytes-k32-w19")
    }
    ledger = ledger_of(50)
    proof = ledger.prove(document_key(RAW, digest(3)))
    absent = ledger.prove(document_key(RAW, digest(99)))
    claims[RAW].check_inclusion(digest(3), Occurrences(1, (3,)), proof)
    claims[RAW].check_absence(digest(99), absent)
    grown = ledger_of(51)
    older = LedgerClaim(RAW, grown.root.hex(), 51, 51)
    for claim in (older, claims[T1], claims["t2-winnow-bytes-k32-w19"]):
        with pytest.raises(VerificationError) as caught:
            claim.check_inclusion(digest(3), Occurrences(1, (3,)), proof)
        assert caught.value.code == "ledger-inclusion"
        with pytest.raises(VerificationError) as caught:
            claim.check_absence(digest(99), absent)
        assert caught.value.code == "ledger-absence"
    with pytest.raises(VerificationError):
        claims[RAW].check_inclusion(digest(4), Occurrences(1, (4,)), proof)
    with pytest.raises(VerificationError):
        claims[RAW].check_absence(digest(3), absent)
    # The whole first ledger, told to be of another tier: every document is "absent" there, so the tier is in the claim
    # that the trainer signs, and its key says which tier was asked.
    mislabelled = LedgerClaim(T1, ledger.root.hex(), 50, 50)
    with pytest.raises(VerificationError):
        mislabelled.check_inclusion(digest(3), Occurrences(1, (3,)), proof)


def test_an_empty_ledger_holds_nothing_and_no_other_has_its_root() -> None:
    key = document_key(RAW, digest(1))
    empty = build([])
    for path in [(), (HASH,), (ZEROS, HASH)]:
        with pytest.raises(VerificationError):
            verify_inclusion(empty.root, key, HASH, Proof("inclusion", path))
        with pytest.raises(VerificationError):
            verify_absence(SMALL.root, key, Proof("empty-slot", path))
    with pytest.raises(ProtocolError) as caught:
        LedgerClaim(RAW, empty.root.hex(), 1, 1)  # zeros are no root of a ledger that has documents
    assert caught.value.code == "not-canonical"


def test_documents_left_out_are_proven_absent() -> None:
    """What no proof shows: the trainer trained on document 3 and left it out. Only an audit or a spot check sees it."""
    hidden = build((document_key(RAW, digest(i)), Occurrences(1, (i,)).value) for i in range(50) if i != 3)
    claim = LedgerClaim(RAW, hidden.root.hex(), 49, 50)
    claim.check_absence(digest(3), hidden.prove(document_key(RAW, digest(3))))
    assert hidden.root != ledger_of(50).root  # what an audit over the published digests computes
