"""RFC 9162 trees against the RFC's own recursions, against pymerkle, and against whoever edits a proof."""

import hashlib

import pymerkle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.merkle import EMPTY_ROOT, Frontier, Tree, leaf_hash, node_hash, root, verify_consistency, verify_inclusion

LEAVES = [leaf_hash(b"leaf %d" % i) for i in range(200)]


def split(n: int) -> int:
    """The largest power of two smaller than n, as RFC 9162 2.1.1 words it."""
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def rfc_root(leaves):
    """MTH of RFC 9162 2.1.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return hashlib.sha256(b"\x01" + rfc_root(leaves[:k]) + rfc_root(leaves[k:])).digest()


def rfc_path(m, leaves):
    """PATH of RFC 9162 2.1.3.1."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*rfc_path(m, leaves[:k]), rfc_root(leaves[k:])]
    return [*rfc_path(m - k, leaves[k:]), rfc_root(leaves[:k])]


def rfc_proof(m, leaves, known=True):
    """SUBPROOF of RFC 9162 2.1.4.1."""
    if m == len(leaves):
        return [] if known else [rfc_root(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*rfc_proof(m, leaves[:k], known), rfc_root(leaves[k:])]
    return [*rfc_proof(m - k, leaves[k:], False), rfc_root(leaves[:k])]


def refused(check, *arguments) -> str:
    with pytest.raises((ProtocolError, VerificationError)) as caught:
        check(*arguments)
    return caught.value.code


def test_every_builder_gives_the_rfc_root_of_every_size():
    frontier, grown, bulk = Frontier(), Tree(), Tree(LEAVES)
    for size in range(201):
        expected = rfc_root(LEAVES[:size])
        assert {frontier.root(), grown.root(), bulk.root(size), Tree(LEAVES[:size]).root(), root(LEAVES[:size])} == {
            expected
        }
        assert frontier.size == grown.size == size
        packed = Tree.packed(b"".join(LEAVES[:size]))
        assert packed._levels == Tree(LEAVES[:size])._levels and packed.root() == expected
        if size < 200:
            assert frontier.append(b"leaf %d" % size) == LEAVES[size]
            grown.append_hash(LEAVES[size])


def test_every_proof_of_every_small_size():
    tree = Tree(LEAVES[:40])
    for size in range(1, 41):
        leaves, top = LEAVES[:size], rfc_root(LEAVES[:size])
        for index in range(size):
            proof = tree.inclusion_proof(index, size)
            assert proof == rfc_path(index, leaves)
            verify_inclusion(leaves[index], index, size, proof, top)
        for old in range(1, size + 1):
            proof = tree.consistency_proof(old, size)
            assert proof == rfc_proof(old, leaves)
            verify_consistency(old, size, rfc_root(leaves[:old]), top, proof)


def test_a_tree_that_grew_proves_what_a_bulk_tree_proves():
    grown, bulk = Tree(LEAVES[:13]), Tree(LEAVES[:100])
    for leaf in LEAVES[13:100]:
        grown.append_hash(leaf)
    for size in (1, 13, 64, 77, 100):
        assert [grown.inclusion_proof(i, size) for i in range(size)] == [
            bulk.inclusion_proof(i, size) for i in range(size)
        ]
        assert [grown.consistency_proof(i, size) for i in range(1, size)] == [
            bulk.consistency_proof(i, size) for i in range(1, size)
        ]
    assert grown.inclusion_proof(7) == bulk.inclusion_proof(7, 100)
    assert grown.consistency_proof(7) == bulk.consistency_proof(7, 100)


def test_memory_is_64_bytes_a_leaf():
    tree = Tree(LEAVES[:128])
    assert sum(len(level) for level in tree._levels) == 32 * (2 * 128 - 1)


def edits(proof):
    """Every way to lose, repeat, swap or flip one element, and to lengthen the proof at either end."""
    for at, element in enumerate(proof):
        yield proof[:at] + proof[at + 1 :]
        yield [*proof[: at + 1], *proof[at:]]
        for byte in range(32):
            flipped = bytearray(element)
            flipped[byte] ^= 1 << (byte + at) % 8
            yield [*proof[:at], bytes(flipped), *proof[at + 1 :]]
    for at in range(len(proof) - 1):
        yield [*proof[:at], proof[at + 1], proof[at], *proof[at + 2 :]]
    for stranger in (EMPTY_ROOT, bytes(32), *proof):
        yield [stranger, *proof]
        yield [*proof, stranger]


def test_no_edited_inclusion_proof_verifies():
    tree, edited = Tree(LEAVES[:20]), 0
    for size in (1, 2, 3, 7, 8, 13, 20):
        top = tree.root(size)
        for index in range(size):
            proof = tree.inclusion_proof(index, size)
            for other in edits(proof):
                assert refused(verify_inclusion, LEAVES[index], index, size, other, top) == "inclusion-proof"
                edited += 1
            for elsewhere in set(range(size)) - {index}:
                assert refused(verify_inclusion, LEAVES[index], elsewhere, size, proof, top) == "inclusion-proof"
            assert refused(verify_inclusion, LEAVES[index - 1], index, size, proof, bytes(32)) == "inclusion-proof"
    assert edited > 5000


def test_no_edited_consistency_proof_verifies():
    tree, edited = Tree(LEAVES[:20]), 0
    for new in (1, 2, 3, 7, 8, 13, 20):
        for old in range(1, new + 1):
            tops = tree.root(old), tree.root(new)
            proof = tree.consistency_proof(old, new)
            for other in edits(proof):
                assert refused(verify_consistency, old, new, *tops, other) == "consistency-proof"
                edited += 1
            for wrong in ((bytes(32), tops[1]), (tops[0], bytes(32))):
                assert refused(verify_consistency, old, new, *wrong, proof) == "consistency-proof"
            if old < new:
                assert refused(verify_consistency, old, new, *reversed(tops), proof) == "consistency-proof"
    assert edited > 5000


@given(st.integers(0, 199), st.data())
def test_a_rewritten_history_is_inconsistent(changed, data):
    """A log that alters one old entry and grows cannot prove that it only grew."""
    old = data.draw(st.integers(changed + 1, 200))
    new = data.draw(st.integers(old, 200))
    rewritten = Tree([*LEAVES[:changed], leaf_hash(b"another past"), *LEAVES[changed + 1 :]])
    code = refused(
        verify_consistency, old, new, root(LEAVES[:old]), rewritten.root(new), rewritten.consistency_proof(old, new)
    )
    assert code == "consistency-proof"


def test_a_proof_of_the_wrong_length_is_called_so():
    tree = Tree(LEAVES[:13])
    path, proof = tree.inclusion_proof(6), tree.consistency_proof(6)
    for other, said in ((path[:-1], "too short"), ([*path, bytes(32)], "too long")):
        with pytest.raises(VerificationError, match=said):
            verify_inclusion(LEAVES[6], 6, 13, other, tree.root())
    for other, said in ((proof[:-1], "too short"), ([*proof, bytes(32)], "too long"), ([], "no proof")):
        with pytest.raises(VerificationError, match=said):
            verify_consistency(6, 13, tree.root(6), tree.root(), other)


def test_malformed_proofs():
    tree = Tree(LEAVES[:5])
    top, proof = tree.root(), tree.inclusion_proof(2)
    for arguments in (
        (LEAVES[2], -1, 5, proof, top),
        (LEAVES[2], 5, 5, proof, top),
        (LEAVES[2], 0, 0, [], EMPTY_ROOT),
        (LEAVES[2], 2, 2**63 + 1, proof, top),
        (LEAVES[2][:-1], 2, 5, proof, top),
        (LEAVES[2], 2, 5, proof, top + b"\x00"),
        (LEAVES[2], 2, 5, [proof[0] + b"\x00", *proof[1:]], top),
        (LEAVES[2], 2, 5, [b"", *proof], top),
        (LEAVES[2], 2, 5, [proof[0]] * 65, top),
    ):
        assert refused(verify_inclusion, *arguments) == "proof-malformed"
    proof = tree.consistency_proof(3)
    for arguments in (
        (0, 5, EMPTY_ROOT, top, []),
        (-1, 5, EMPTY_ROOT, top, proof),
        (5, 3, top, tree.root(3), proof),
        (3, 2**63 + 1, tree.root(3), top, proof),
        (3, 5, tree.root(3)[:-1], top, proof),
        (3, 5, tree.root(3), top[:-1], proof),
        (3, 5, tree.root(3), top, [*proof[:-1], proof[-1][:31]]),
        (3, 5, tree.root(3), top, [proof[0]] * 65),
    ):
        assert refused(verify_consistency, *arguments) == "proof-malformed"


def test_the_largest_tree():
    """Index and size at the cap: 63 siblings, no overflow, and no other index under the same root."""
    siblings = [leaf_hash(b"sibling %d" % i) for i in range(63)]
    index, top = 2**63 - 1, LEAVES[0]
    for sibling in siblings:
        top = node_hash(sibling, top)
    verify_inclusion(LEAVES[0], index, 2**63, siblings, top)
    assert refused(verify_inclusion, LEAVES[0], index - 1, 2**63, siblings, top) == "inclusion-proof"
    assert refused(verify_inclusion, LEAVES[0], index, 2**63, siblings[:-1], top) == "inclusion-proof"


def test_what_a_tree_cannot_prove():
    tree = Tree(LEAVES[:5])
    for call in (
        lambda: tree.root(6),
        lambda: tree.root(-1),
        lambda: tree.inclusion_proof(5),
        lambda: tree.inclusion_proof(-1),
        lambda: tree.inclusion_proof(3, 3),
        lambda: tree.inclusion_proof(0, 6),
        lambda: tree.consistency_proof(0),
        lambda: tree.consistency_proof(4, 3),
        lambda: tree.consistency_proof(1, 6),
        lambda: Tree().inclusion_proof(0),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "no-such-leaf"
    for call in (
        lambda: tree.append_hash(b"leaf"),
        lambda: Frontier().append_hash(b"leaf"),
        lambda: Tree([bytes(33)]),
        lambda: Tree.packed(bytes(65)),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "leaf-hash"
    assert tree.size == 5


def test_the_last_leaf_is_not_repeated():
    """CVE-2012-2459: where an odd leaf is paired with itself, two lists have one root."""
    assert root(LEAVES[:3]) != root([*LEAVES[:3], LEAVES[2]])


# pymerkle: an implementation that shares no code with ours. Its indices count from one and path[0] is the leaf.

ENTRIES = st.lists(st.binary(max_size=40), min_size=1, max_size=70)


def theirs(entries):
    tree = pymerkle.InmemoryTree(algorithm="sha256")
    for entry in entries:
        tree.append_entry(entry)
    return tree


@given(ENTRIES, st.data())
def test_inclusion_agrees_with_pymerkle(entries, data):
    size = data.draw(st.integers(1, len(entries)))
    index = data.draw(st.integers(0, size - 1))
    leaves = [leaf_hash(entry) for entry in entries]
    ours, other = Tree(leaves), theirs(entries)
    assert ours.root(size) == other.get_root(size)
    proof = other.prove_inclusion(index + 1, size)
    assert proof.path == [leaves[index], *ours.inclusion_proof(index, size)]
    verify_inclusion(leaves[index], index, size, proof.path[1:], other.get_root(size))
    proof.path[1:] = ours.inclusion_proof(index, size)
    pymerkle.verify_inclusion(leaves[index], ours.root(size), proof, index=index + 1, size=size, algorithm="sha256")


def folded(proof):
    """pymerkle's consistency proof as the RFC's: it lists the pieces of one node that the RFC sends whole, and the old
    root where the verifier has it."""
    if proof.prior_size == proof.size:
        return []
    pieces = proof.subset.index(1)
    node = proof.path[0]
    for bit, piece in zip(proof.rule, proof.path[1:pieces], strict=False):
        node = node_hash(piece, node) if bit else node_hash(node, piece)
    first, *rest = proof.path[pieces:]
    return [node, *rest] if proof.prior_size.bit_count() == 1 else [first, node, *rest]


@given(ENTRIES, st.data())
def test_consistency_agrees_with_pymerkle(entries, data):
    new = data.draw(st.integers(1, len(entries)))
    old = data.draw(st.integers(1, new))
    ours, other = Tree(leaf_hash(entry) for entry in entries), theirs(entries)
    proof = other.prove_consistency(old, new)
    assert folded(proof) == ours.consistency_proof(old, new)
    verify_consistency(old, new, other.get_root(old), other.get_root(new), folded(proof))
    pymerkle.verify_consistency(
        ours.root(old), ours.root(new), proof, prior_size=old, later_size=new, algorithm="sha256"
    )


def test_the_forgery_that_pymerkle_6_accepted():
    """A prover hides the hash of a document it never committed inside one that it did, then proves "inclusion" with a
    proof that says: do not separate leaves from nodes, and take my word for the path. Its path is longer by one, its
    elements carry the prefixes - and position and size are nobody's business."""
    forged = leaf_hash(b"never committed")
    committed = [b"zero", b"one", b"two", b"innocent bytes " + forged]
    tree = Tree(leaf_hash(document) for document in committed)
    top, honest = tree.root(), tree.inclusion_proof(3)
    path = [b"\x00innocent bytes ", *(b"\x01" + sibling for sibling in honest)]

    taken_at_its_word = forged
    for element in path:
        taken_at_its_word = hashlib.sha256(element + taken_at_its_word).digest()
    assert taken_at_its_word == top  # so a verifier without rules of its own believes it

    for size in range(1, 17):
        for index in range(size):
            assert refused(verify_inclusion, forged, index, size, path, top) == "proof-malformed"
            for bare in (honest, [leaf_hash(committed[3]), *honest], [bytes(32), *honest]):
                assert refused(verify_inclusion, forged, index, size, bare, top) == "inclusion-proof"
