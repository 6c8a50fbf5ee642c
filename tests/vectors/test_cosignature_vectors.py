"""The add-checkpoint conversation with torchwood's witness: notes, consistency and cosignatures working together."""

import json

import pytest

from protocol.errors import ProtocolError, VerificationError
from protocol.keys import COSIGNATURE, PublicKey, SigningKey, parse_base64
from protocol.merkle import verify_consistency
from protocol.notes import Checkpoint, cosign, open_cosignature, open_head, parse_note

NOW = 1_700_000_000


class StaleSizeError(Exception):
    """The client's idea of the last cosigned size is wrong (HTTP 409)."""


class Cosigner:
    """C2SP tlog-witness add-checkpoint for one log, without the HTTP."""

    def __init__(self, origin: str, log: PublicKey, key: SigningKey) -> None:
        self.origin, self.log, self.key = origin, log, key
        self.last = Checkpoint(origin, 0, bytes(32))

    def add_checkpoint(self, body: bytes) -> bytes:
        request, _, note = body.partition(b"\n\n")
        old, *lines = request.decode().split("\n")
        size = int(old.removeprefix("old "))
        proof = [parse_base64(line, "proof-malformed") for line in lines]
        head = open_head(note, [self.log], self.origin)
        if size != self.last.size:
            raise StaleSizeError(self.last.size)
        if size:
            verify_consistency(size, head.size, self.last.root, head.root, proof)
        else:
            assert not proof
        self.last = head
        return cosign(note, self.key, NOW + head.size)


@pytest.fixture(scope="module")
def data(vectors):
    return json.loads((vectors / "torchwood" / "witness_add_checkpoint.json").read_bytes())


@pytest.fixture
def cosigner(data):
    origin = data["log_origin"]
    key = SigningKey(data["witness_name"], bytes.fromhex(data["witness_ed25519_seed_hex"]))
    assert key.public.raw.hex() == data["witness_public_hex"]
    return Cosigner(origin, PublicKey(origin, bytes.fromhex(data["log_public_key_hex"])), key)


def test_conversation(data, cosigner):
    """HTTP statuses become what the protocol layer knows: cosigned, a conflict, or an error code."""
    expected = [
        (200, "cosigned"),
        (403, "note-malformed"),  # a spare bit set in the base64 of the signature; the next test says more
        (403, "note-unsigned"),  # another log's key
        (422, "consistency-proof"),
        (422, "consistency-proof"),
        (200, "cosigned"),
        (409, "3"),
        (200, "cosigned"),
        (409, "5"),
    ]
    said = []
    for turn in data["conversation_in_order"]:
        try:
            note = cosigner.add_checkpoint(turn["request_body"].encode())
        except StaleSizeError as conflict:
            outcome = str(conflict)
            assert turn["assert"] == f'body == "{outcome}\\n"'
        except (ProtocolError, VerificationError) as error:
            outcome = error.code
        else:
            outcome = "cosigned"
            seen = open_cosignature(note, cosigner.key.cosigner, data["log_origin"])
            assert (seen.head, seen.timestamp) == (cosigner.last, NOW + cosigner.last.size)
        said.append((turn["status"], outcome))
    assert said == expected
    assert len(said) == 9


def test_the_signature_with_a_spare_bit(data, cosigner):
    """Go drops the stray bits of the last character and finds a bad signature. We refuse the spelling; in its
    canonical one the signature is as bad here."""
    body = data["conversation_in_order"][1]["request_body"].encode()
    assert body.endswith(b"6gx=\n")
    cosigner.add_checkpoint(data["conversation_in_order"][0]["request_body"].encode())
    with pytest.raises(VerificationError) as caught:
        cosigner.add_checkpoint(body.replace(b"6gx=\n", b"6gw=\n"))
    assert caught.value.code == "bad-signature"


def test_cosignature_layout(data, cosigner):
    """72 bytes: a big-endian time and an Ed25519 signature over header, time and body (tlog-cosignature)."""
    request = data["conversation_in_order"][0]["request_body"].encode()
    note = cosigner.add_checkpoint(request)
    added = parse_note(note).signatures[-1]
    assert note.startswith(request.partition(b"\n\n")[2])
    assert len(added.signature) == 72
    assert int.from_bytes(added.signature[:8], "big") == NOW + 1
    body = note.rpartition(b"\n\n")[0] + b"\n"
    cosigner.key.public.verify(added.signature[8:], b"cosignature/v1\ntime %d\n%b" % (NOW + 1, body))
    assert cosigner.key.cosigner.kind == COSIGNATURE
