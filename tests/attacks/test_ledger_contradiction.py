"""One root, two answers: what breaks a sorted tree, and what it would take to break the ledger.

A dishonest builder hashes whatever it likes into a root, signs it, and then proves to one asker that a document is in
and to another that it is not. With a sorted tree this is easy. For the ledger, all proofs that can be put together from
a set of nodes - right places and wrong ones, swapped, deepened, doubled, and nodes of other trees - are made here, and
no root is reached by both answers. The same search finds the contradiction in every weakened ledger.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest
from naive_ledger import ZEROS, bits, h, inner, leaf, root_of

from protocol import merkle
from protocol.errors import ProtocolError, VerificationError
from protocol.ledger import build
from protocol.ledger_proof import Proof, verify_absence, verify_inclusion

FILL = b"\x5a" * 31
KEYS = [bytes([prefix << 6]) + FILL for prefix in range(4)]
"""Four keys that part in their first two bits: every shape of two levels, and every wrong place, is among the tries."""
VALUES = [b"v" * 32, b"w" * 32]


# --- the attack that breaks sorted trees


def sorted_leaf(number: int) -> bytes:
    return merkle.leaf_hash(number.to_bytes(32, "big"))


def verify_in_sorted(root: bytes, size: int, number: int, index: int, proof: list[bytes]) -> None:
    merkle.verify_inclusion(sorted_leaf(number), index, size, proof, root)


def verify_absent_in_sorted(
    root: bytes, size: int, number: int, left: tuple[int, int, list[bytes]], right: tuple[int, int, list[bytes]]
) -> None:
    """The usual check: two neighbouring leaves of the tree, one below and one above."""
    assert left[0] < number < right[0] and right[1] == left[1] + 1
    for neighbour, index, proof in (left, right):
        merkle.verify_inclusion(sorted_leaf(neighbour), index, size, proof, root)


def test_a_dishonest_sorted_tree_proves_in_and_not_in():
    """Tomescu's example: 7 and 9 stay neighbours, and 8 is put where nobody looks for it."""
    tree = merkle.Tree(sorted_leaf(number) for number in (7, 9, 20, 8))
    root = tree.root()
    proofs = [tree.inclusion_proof(index) for index in range(4)]
    verify_in_sorted(root, 4, 8, 3, proofs[3])
    verify_absent_in_sorted(root, 4, 8, (7, 0, proofs[0]), (9, 1, proofs[1]))


# --- every proof that can be put together


@dataclass(frozen=True)
class Rules:
    """How a ledger hashes and what its checks look at; the defaults are written from the definition."""

    leaf: Callable[[bytes, bytes], bytes] = leaf
    inner: Callable[[bytes, bytes], bytes] = inner
    other_may_be_the_key: bool = False
    way_is_told: bool = False  # the prover says left or right, not the key
    others: tuple[tuple[bytes, bytes], ...] = ()
    """Further keys and values that a forger shows as another leaf."""


@dataclass(frozen=True)
class Forged:
    """A proof that these rules accept, and under which root."""

    key: bytes
    value: bytes | None
    proof: Proof
    root: bytes


def endings(rules: Rules, key: bytes) -> Iterator[tuple[str, bytes | None, tuple[bytes, bytes] | None, bytes, int]]:
    """What a way can end in: kind, value, other leaf, hash, and how deep the checks allow it."""
    for value in VALUES:
        yield "inclusion", value, None, rules.leaf(key, value), 256
    for other in [*product(KEYS, VALUES), *rules.others]:
        if other[0] != key or rules.other_may_be_the_key:
            shared = next((i for i in range(256) if bits(other[0])[i] != bits(key)[i]), 256)
            yield "other-leaf", None, other, rules.leaf(*other), shared
    yield "empty-slot", None, None, ZEROS, 256


def climbed(rules: Rules, node: bytes, way: Iterable[str], path: Iterable[bytes]) -> bytes:
    """The root above a node."""
    for turn, sibling in reversed([*zip(way, path, strict=True)]):
        node = rules.inner(sibling, node) if turn == "1" else rules.inner(node, sibling)
    return node


def forge(rules: Rules, pool: list[bytes], depths: range) -> Iterator[Forged]:
    """Every accepted proof for one of the keys with siblings from `pool`."""
    for key in KEYS:
        for depth in depths:
            ways = product("01", repeat=depth) if rules.way_is_told else [tuple(bits(key)[:depth])]
            for way in ways:
                for path in product(pool, repeat=depth):
                    if path and path[-1] == ZEROS:
                        continue
                    for kind, value, other, node, deepest in endings(rules, key):
                        if depth <= deepest:
                            yield Forged(key, value, Proof(kind, path, other), climbed(rules, node, way, path))


def contradictions(found: Iterator[Forged]) -> list[tuple[Forged, Forged]]:
    """Two answers about one key under one root: in and not in, or two values."""
    answers: dict[tuple[bytes, bytes], dict[bytes | None, Forged]] = defaultdict(dict)
    for forged in found:
        answers[forged.root, forged.key].setdefault(forged.value, forged)
    return [tuple(said.values())[:2] for said in answers.values() if len(said) > 1]


def terminals(rules: Rules) -> list[bytes]:
    return [ZEROS, *(rules.leaf(key, value) for key, value in product(KEYS, VALUES))]


def strangers() -> list[bytes]:
    """Nodes of other trees over the same bytes, which a forger may pass off as nodes of this one."""
    key, value = KEYS[1], VALUES[0]
    return [
        merkle.leaf_hash(key + value),
        merkle.leaf_hash(b"TW1L" + key + value),
        merkle.node_hash(key, value),
        merkle.node_hash(leaf(key, value), ZEROS),
        hashlib.sha256(key + value).digest(),
        inner(key, value),  # a key and a value where hashes belong
        leaf(leaf(key, value), leaf(KEYS[0], value)),  # hashes where a key and a value belong
        b"\xff" * 32,
    ]


def pool_of(rules: Rules) -> list[bytes]:
    """Every node of height 0 and 1, wrong places and empty pairs included."""
    low = terminals(rules)
    return list(dict.fromkeys([*low, *(rules.inner(*pair) for pair in product(low, repeat=2))]))


def all_forgeries(rules: Rules) -> Iterator[Forged]:
    """Two levels from all nodes of height 0 and 1 and of other trees; three from leaves and empty slots."""
    yield from forge(rules, [*pool_of(rules), *strangers()], range(3))
    yield from forge(rules, [*terminals(rules)[:5], strangers()[3]], range(3, 4))


@pytest.fixture(scope="module")
def forgeries() -> list[Forged]:
    return list(all_forgeries(Rules()))


def test_no_root_is_reached_by_two_answers(forgeries):
    assert len(forgeries) > 100_000
    assert contradictions(iter(forgeries)) == []
    # The search sees real ledgers too: the honest root over all four keys, with every key in it.
    honest = root_of([(key, VALUES[0]) for key in KEYS])
    assert {forged.key for forged in forgeries if forged.root == honest and forged.value == VALUES[0]} == set(KEYS)
    assert {forged.key for forged in forgeries if forged.root == leaf(KEYS[2], VALUES[1]) and forged.value is None} == {
        KEYS[0],
        KEYS[1],
        KEYS[3],
    }


def test_the_checks_accept_exactly_what_the_search_made(forgeries):
    """Else the search would be about other rules than the ledger's."""
    for forged in forgeries[::5]:
        if forged.value is None:
            verify_absence(forged.root, forged.key, forged.proof)
        else:
            verify_inclusion(forged.root, forged.key, forged.value, forged.proof)
    accepted = refused = 0
    for forged in forgeries[::61]:
        for key in KEYS:
            possible = {
                "not in" if value is None else "in"
                for kind, value, other, node, deepest in endings(Rules(), key)
                if (kind, other) == (forged.proof.kind, forged.proof.other)
                and forged.proof.depth <= deepest
                and climbed(Rules(), node, bits(key)[: forged.proof.depth], forged.proof.path) == forged.root
            }
            assert answers(forged.root, key, [forged.proof]) == possible
            accepted, refused = accepted + bool(possible), refused + (not possible)
    assert accepted > 1000 and refused > 1000


WEAKENED = {
    "leaves and inner nodes hash alike": Rules(
        leaf=lambda key, value: h(key, value),
        inner=lambda left, right: h(left, right),
        others=tuple(product([h(key, VALUES[0]) for key in KEYS], repeat=2)),
    ),
    "the other leaf may be the key's own": Rules(other_may_be_the_key=True),
    "leaves do not hash their key": Rules(leaf=lambda _, value: h(b"\x01TW1L", value)),
    "leaves do not hash their value": Rules(leaf=lambda key, _: h(b"\x01TW1L", key)),
    "a node with one child is that child": Rules(
        inner=lambda left, right: left if right == ZEROS else right if left == ZEROS else inner(left, right)
    ),
    "the prover says which way to go": Rules(way_is_told=True),
}


@pytest.mark.parametrize("weakness", WEAKENED)
def test_the_search_breaks_every_weakened_ledger(weakness):
    rules = WEAKENED[weakness]
    found = contradictions(forge(rules, [*terminals(rules)[:5:2], *terminals(rules)[1:5:2]], range(3)))
    assert found
    first, second = found[0]
    assert (first.root, first.key) == (second.root, second.key) and first.value != second.value


# --- the dishonest builders by name


def answers(root: bytes, key: bytes, proofs: list[Proof]) -> set[str]:
    """What the checks accept about a key among the given proofs, with any value."""
    said = set()
    for proof in proofs:
        for value in VALUES:
            try:
                verify_inclusion(root, key, value, proof)
                said.add("in")
            except VerificationError:
                pass
        try:
            verify_absence(root, key, proof)
            said.add("not in")
        except VerificationError:
            pass
    return said


def proofs_from(*nodes: bytes, deepest: int = 3) -> list[Proof]:
    """Every proof with these siblings in any order, and every ending."""
    found = []
    for depth in range(deepest + 1):
        for path in product([ZEROS, *nodes], repeat=depth):
            if path and path[-1] == ZEROS:
                continue
            found += [Proof("inclusion", path), Proof("empty-slot", path)]
            found += [Proof("other-leaf", path, other) for other in product(KEYS, VALUES)]
    return found


A, B, C, D = (leaf(key, VALUES[0]) for key in KEYS)


def test_the_sorted_trees_trick_hides_a_leaf_from_its_own_builder():
    """The key out of its place is proven absent, as the ledger without it would; it can no longer be proven in."""
    root = inner(inner(A, C), inner(B, D))  # B and C have changed places
    proofs = proofs_from(A, B, C, D, inner(A, C), inner(B, D), deepest=2)
    assert answers(root, KEYS[0], proofs) == {"in"}
    assert answers(root, KEYS[3], proofs) == {"in"}
    # The way of key 1 ends at the leaf of key 2, which has no business there: nothing is proven, and nobody is misled.
    assert answers(root, KEYS[1], proofs) == set()
    assert answers(root, KEYS[2], proofs) == set()


def test_swapped_children_prove_nothing():
    root = inner(inner(D, C), inner(B, A))
    proofs = proofs_from(A, B, C, D, inner(D, C), inner(B, A), deepest=2)
    assert [answers(root, key, proofs) for key in KEYS] == [set()] * 4


def test_a_leaf_that_was_put_too_deep_is_not_canonical():
    """Nothing stands beside it, and such a path has no proof at all."""
    root = inner(inner(A, ZEROS), D)
    with pytest.raises(ProtocolError) as caught:
        Proof("inclusion", (D, ZEROS))
    assert caught.value.code == "ledger-proof-malformed"
    proofs = proofs_from(A, D, inner(A, ZEROS))
    assert answers(root, KEYS[0], proofs) == set()
    assert answers(root, KEYS[1], proofs) == {"not in"}  # true: key 1 is in no leaf
    assert answers(root, KEYS[3], proofs) == {"in"}


def test_a_deep_leaf_beside_a_misplaced_one_says_nothing_false():
    """A builder can make a path longer by a leaf that does not belong there; that one is the one it cannot prove."""
    root = inner(inner(inner(A, D), B), ZEROS)
    proofs = proofs_from(A, B, D, inner(A, D), inner(inner(A, D), B))
    assert answers(root, KEYS[0], proofs) <= {"in"}
    assert answers(root, KEYS[1], proofs) == {"in"}
    assert answers(root, KEYS[3], proofs) == {"not in"}


def test_a_leaf_in_two_places_counts_where_it_belongs():
    root = inner(inner(A, B), inner(B, D))
    proofs = proofs_from(A, B, D, inner(A, B), inner(B, D), deepest=2)
    assert answers(root, KEYS[1], proofs) == {"in"}
    assert answers(root, KEYS[2], proofs) == set()
    # Two values for one key: the one that lies off the path is never reached.
    other = leaf(KEYS[1], VALUES[1])
    root = inner(inner(A, B), inner(other, D))
    proofs = proofs_from(A, B, D, other, inner(A, B), inner(other, D), deepest=2)
    for proof in proofs:
        with pytest.raises(VerificationError):
            verify_inclusion(root, KEYS[1], VALUES[1], proof)
    verify_inclusion(root, KEYS[1], VALUES[0], Proof("inclusion", (inner(other, D), A)))


def test_an_audit_sees_every_one_of_these():
    """Whoever builds the ledger again from the published digests finds another root."""
    honest = {
        build((key, VALUES[0]) for key in keys).root for keys in ([*KEYS], KEYS[:2], [KEYS[0], KEYS[3]], KEYS[:1])
    }
    dishonest = {
        inner(inner(A, C), inner(B, D)),
        inner(inner(D, C), inner(B, A)),
        inner(inner(A, ZEROS), D),
        inner(inner(inner(A, D), B), ZEROS),
        inner(inner(A, B), inner(B, D)),
    }
    assert honest.isdisjoint(dishonest) and len(honest) == 4
