"""RFC 9162 trees against the vectors of transparency-dev/merkle and of a real Certificate Transparency log."""

import json
from base64 import b64decode
from itertools import pairwise

import pytest

from protocol.errors import ProtocolError, VerificationError, WitnessError
from protocol.merkle import EMPTY_ROOT, Frontier, Tree, leaf_hash, node_hash, root, verify_consistency, verify_inclusion

# Wants a tree of size one whose "root" is 12 bytes long to be accepted. Hashes here are 32 bytes.
TWELVE_BYTE_ROOT = "sizes-are-equal-one-and-proof-is-empty.json"


def _cases(folder):
    return {path.relative_to(folder).as_posix(): json.loads(path.read_bytes()) for path in folder.rglob("*.json")}


def _outcome(check):
    try:
        check()
    except WitnessError as error:
        assert isinstance(error, ProtocolError | VerificationError)
        return error.code
    return "ok"


def test_classic_tree_of_eight(vectors):
    data = json.loads((vectors / "transparency-dev-merkle" / "rfc6962_tree8.json").read_bytes())
    leaves = [leaf_hash(bytes.fromhex(text)) for text in data["leaf_inputs_hex"]]
    roots = data["root_hashes_hex_by_size_0_to_8"]
    assert (len(leaves), len(roots)) == (8, 9)
    assert EMPTY_ROOT.hex() == roots[0]
    frontier, grown, bulk = Frontier(), Tree(), Tree(leaves)
    for size, expected in enumerate(roots):
        assert {frontier.root().hex(), grown.root().hex(), bulk.root(size).hex(), root(leaves[:size]).hex()} == {
            expected
        }
        if size < 8:
            frontier.append(bytes.fromhex(data["leaf_inputs_hex"][size]))
            grown.append_hash(leaves[size])

    levels = [[bytes.fromhex(text) for text in level] for level in data["node_hashes_hex_by_level"]]
    assert [len(level) for level in levels] == [8, 4, 2, 1]
    assert levels[0] == leaves
    for below, level in pairwise(levels):
        assert level == [node_hash(below[2 * i], below[2 * i + 1]) for i in range(len(level))]


def test_inclusion_proofs(vectors):
    cases = _cases(vectors / "transparency-dev-merkle" / "testdata" / "inclusion")
    outcomes = []
    for name, case in cases.items():
        outcome = _outcome(
            lambda case=case: verify_inclusion(
                b64decode(case["leafHash"]),
                case["leafIdx"],
                case["treeSize"],
                [b64decode(p) for p in case["proof"] or []],
                b64decode(case["root"]),
            )
        )
        assert (outcome != "ok") == case["wantErr"], f"{name}: {outcome}"
        outcomes.append(outcome)
    assert len(outcomes) == 98
    assert set(outcomes) == {"ok", "inclusion-proof", "proof-malformed"}


def test_consistency_proofs(vectors):
    cases = _cases(vectors / "transparency-dev-merkle" / "testdata" / "consistency")
    outcomes = {}
    for name, case in cases.items():
        outcomes[name] = _outcome(
            lambda case=case: verify_consistency(
                case["size1"],
                case["size2"],
                b64decode(case["root1"]),
                b64decode(case["root2"]),
                [b64decode(p) for p in case["proof"] or []],
            )
        )
    assert len(outcomes) == 98
    assert set(outcomes.values()) == {"ok", "consistency-proof", "proof-malformed"}
    disagreements = [name for name, outcome in outcomes.items() if (outcome != "ok") != cases[name]["wantErr"]]
    assert disagreements == [f"additional/{TWELVE_BYTE_ROOT}"]
    assert outcomes[disagreements[0]] == "proof-malformed"
    assert len(b64decode(cases[disagreements[0]]["root1"])) == 12


def test_nothing_is_consistent_with_size_zero():
    """These vectors refuse it and C2SP tlog-witness allows it with an empty proof: here it is its caller's question."""
    with pytest.raises(ProtocolError) as caught:
        verify_consistency(0, 1, EMPTY_ROOT, leaf_hash(b""), [])
    assert caught.value.code == "proof-malformed"


def test_a_real_log_grew_from_4_to_962_million_entries(vectors):
    data = json.loads((vectors / "golang-mod" / "argon2020.json").read_bytes())
    sizes = data["old_size"], data["sth"]["tree_size"]
    roots = b64decode(data["old_root"]), b64decode(data["sth"]["sha256_root_hash"])
    proof = [b64decode(p) for p in data[next(key for key in data if key.startswith("consistency"))]]
    assert len(proof) == 30
    verify_consistency(*sizes, *roots, proof)
    for at in range(30):
        with pytest.raises(VerificationError):
            verify_consistency(*sizes, *roots, [*proof[:at], proof[at][::-1], *proof[at + 1 :]])

    # The leaf itself is not in the vectors; the path has the right shape, and fits no leaf but one.
    path = [b64decode(p) for p in data["audit_path"]]
    with pytest.raises(VerificationError, match="is not in the tree"):
        verify_inclusion(leaf_hash(b""), data["leaf_index"], sizes[1], path, roots[1])
