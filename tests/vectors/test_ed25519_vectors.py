"""Ed25519 against Wycheproof, and against CCTV's edge cases with the weak public keys refused."""

import json
from collections import Counter

import pytest

from protocol import ed25519
from protocol.errors import ProtocolError, VerificationError, WitnessError
from protocol.keys import COSIGNATURE, PublicKey, parse_vkey
from protocol.notes import open_note


def _outcome(public, signature, message):
    try:
        PublicKey("k", public).verify(signature, message)
    except WitnessError as error:
        assert isinstance(error, ProtocolError | VerificationError)
        return error.code
    return "ok"


def test_wycheproof(vectors):
    data = json.loads((vectors / "wycheproof" / "ed25519_test.json").read_bytes())
    outcomes = Counter()
    for group in data["testGroups"]:
        public = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            outcome = _outcome(public, bytes.fromhex(case["sig"]), bytes.fromhex(case["msg"]))
            assert outcome == {"valid": "ok", "invalid": "bad-signature"}[case["result"]], case
            outcomes[outcome] += 1
    assert outcomes == {"ok": 88, "bad-signature": 63}
    assert sum(outcomes.values()) == data["numberOfTests"] == 151


def test_cctv_edge_cases(vectors):
    """The verdict follows from the flags alone: no weak key, canonical R, and equality without the cofactor."""
    outcomes = Counter()
    for case in json.loads((vectors / "cctv-ed25519" / "ed25519vectors.json").read_bytes()):
        flags = set(case["flags"] or ())
        outcome = _outcome(bytes.fromhex(case["key"]), bytes.fromhex(case["sig"]), case["msg"].encode())
        if flags & {"low_order_A", "non_canonical_A"}:
            expected = "weak-key"
        elif flags & {"non_canonical_R", "low_order_residue"}:
            expected = "bad-signature"
        else:
            expected = "ok"
        assert outcome == expected, case
        outcomes[outcome] += 1
    assert sum(outcomes.values()) == 914
    assert outcomes == {"weak-key": 526, "bad-signature": 302, "ok": 86}


def test_public_keys_to_refuse(vectors):
    data = json.loads((vectors / "cctv-ed25519" / "reject_public_keys.json").read_bytes())
    low_order, non_canonical = data["low_order_public_keys_hex"], data["non_canonical_public_keys_hex"]
    assert (len(low_order), len(non_canonical)) == (14, 6)
    for text in low_order + non_canonical:
        raw = bytes.fromhex(text)
        for kind in (1, COSIGNATURE):
            with pytest.raises(ProtocolError) as caught:
                PublicKey("k", raw, kind)
            assert caught.value.code == "weak-key"


def test_the_danger_is_real(vectors):
    """Under the identity key the library accepts one signature for every message; no path of ours leads there."""
    identity = bytes([1]) + bytes(31)
    ed25519.verify(identity, identity + bytes(32), b"any message")
    ed25519.verify(identity, identity + bytes(32), b"any other message")
    # Written by hand, since no `PublicKey` can be made to write it.
    weak = "k+d2df6d1a+AQEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    with pytest.raises(ProtocolError) as caught:
        open_note(b"any message\n\n\xe2\x80\x94 k AAAAAA==\n", [parse_vkey(weak)])
    assert caught.value.code == "weak-key"
