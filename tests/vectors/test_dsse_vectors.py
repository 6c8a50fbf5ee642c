"""DSSE envelopes against the vectors proposed upstream."""

import json
from base64 import urlsafe_b64decode

import pytest

from protocol.dsse import open_envelope, pae
from protocol.errors import VerificationError
from protocol.keys import PublicKey, SigningKey


def test_envelopes(vectors):
    data = json.loads((vectors / "dsse" / "vectors.json").read_bytes())
    keys = {name: PublicKey(name, bytes.fromhex(key["public"])) for name, key in data["keys"].items()}
    for name, key in data["keys"].items():
        assert SigningKey(name, bytes.fromhex(key["seed"])).public == keys[name]
    ran = {}
    for case in data["vectors"]:
        envelope = case["envelope"]

        def opened(case=case, envelope=envelope):
            return open_envelope(
                json.dumps(envelope).encode(),
                [keys[name] for name in case["trustedKeys"]],
                payload_types=case["supportedPayloadTypes"],
                threshold=case["threshold"],
                limit=10_000,
            )

        if case["expect"] == "accept":
            payload = opened()
            assert payload == urlsafe_b64decode(envelope["payload"].replace("+", "-").replace("/", "_"))
            assert pae(envelope["payloadType"], payload).hex() == case["pae"]
            ran[case["id"]] = "ok"
        else:
            with pytest.raises(VerificationError) as caught:
                opened()
            ran[case["id"]] = caught.value.code
    assert ran == {
        "single-signature": "ok",
        "url-safe-base64": "ok",
        "payload-type-swapped": "envelope-unsigned",
        "non-ascii-payload-type": "ok",
        "empty-payload": "ok",
        "empty-payload-type": "payload-type",
        "threshold-two-distinct-keys": "ok",
        "threshold-two-one-key-twice": "envelope-unsigned",
        "threshold-two-without-keyids": "ok",
    }
