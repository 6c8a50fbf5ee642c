"""DSSE envelopes: round trips, thresholds, and the edits that a verifier must notice."""

import json
from base64 import b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.dsse import MAX_SIGNATURES, open_envelope, pae, sign
from protocol.encoding import decode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.keys import PublicKey, SigningKey
from protocol.notes import open_note, sign_note

KEYS = [SigningKey(f"signer{i}", bytes([i]) * 32) for i in range(4)]
KIND = "application/vnd.in-toto+json"
PAYLOADS = st.binary(max_size=200)


def opened(data, keys=KEYS, **changes):
    options = {"payload_types": [KIND], "limit": 100_000} | changes
    return open_envelope(data, [key.public if isinstance(key, SigningKey) else key for key in keys], **options)


def code_of(family, data, keys=KEYS, **changes):
    with pytest.raises(family) as caught:
        opened(data, keys, **changes)
    return caught.value.code


def edited(data, change):
    envelope = json.loads(data)
    change(envelope)
    return json.dumps(envelope).encode()


@given(PAYLOADS, st.text(st.characters(codec="utf-8"), max_size=20), st.integers(1, 4), st.data())
def test_envelopes_round_trip(payload, kind, count, data):
    signers = data.draw(st.permutations(KEYS))[:count]
    envelope = sign(kind, payload, signers)
    assert decode(envelope, dict, limit=len(envelope))["payloadType"] == kind
    assert opened(envelope, payload_types={kind, "other"}, threshold=count) == payload
    if count < 4:
        assert code_of(VerificationError, envelope, payload_types=[kind], threshold=count + 1) == "envelope-unsigned"
    strangers = [key for key in KEYS if key not in signers]
    if strangers:
        assert code_of(VerificationError, envelope, strangers, payload_types=[kind]) == "envelope-unsigned"


@given(
    st.text(st.characters(codec="utf-8"), max_size=20),
    PAYLOADS,
    st.text(st.characters(codec="utf-8"), max_size=20),
    PAYLOADS,
)
def test_what_is_signed_is_unambiguous(kind, payload, other_kind, other_payload):
    same = (kind, payload) == (other_kind, other_payload)
    assert (pae(kind, payload) == pae(other_kind, other_payload)) == same


@given(PAYLOADS.filter(len), st.data())
def test_an_edited_payload_or_type_is_refused(payload, data):
    envelope = sign(KIND, payload, KEYS[:1])
    other = data.draw(PAYLOADS.filter(lambda p: p != payload))
    swapped = edited(envelope, lambda e: e.update(payload=urlsafe_b64encode(other).decode()))
    assert code_of(VerificationError, swapped) == "envelope-unsigned"
    retyped = edited(envelope, lambda e: e.update(payloadType="other"))
    assert code_of(VerificationError, retyped, payload_types=[KIND, "other"]) == "envelope-unsigned"
    assert code_of(VerificationError, retyped) == "payload-type"


def test_both_alphabets_one_spelling():
    payload = bytes(range(240, 256)) * 3 + b"\xfb"
    envelope = sign(KIND, payload, KEYS[:1])
    standard = json.loads(envelope)["payload"]
    url_safe = standard.replace("+", "-").replace("/", "_")
    assert standard != url_safe
    assert standard.endswith("==")
    assert opened(edited(envelope, lambda e: e.update(payload=url_safe))) == payload
    for spelling in (
        standard[:-1],
        standard[:-2],
        standard + "=",
        standard + "\n",
        " " + standard,
        standard[:-3] + chr(ord(standard[-3]) + 1) + "==",  # a stray bit that most decoders drop
        url_safe[:8] + standard[8:],
        "\u00e9" + standard[1:],
    ):
        assert spelling not in (standard, url_safe)
        assert (
            code_of(ProtocolError, edited(envelope, lambda e, s=spelling: e.update(payload=s))) == "envelope-malformed"
        )


def test_one_key_counts_once():
    """However often it signs, and under however many names it is known."""
    payload = b"{}"
    envelope = sign(KIND, payload, [KEYS[0]])
    thrice = edited(envelope, lambda e: e.update(signatures=e["signatures"] * 3))
    alias = PublicKey("alias", KEYS[0].public.raw)
    assert opened(thrice, [KEYS[0], alias]) == payload
    assert code_of(VerificationError, thrice, [KEYS[0], KEYS[1], alias], threshold=2) == "envelope-unsigned"
    assert code_of(UsageError, thrice, [KEYS[0], alias], threshold=2) == "threshold"


def test_key_ids_and_strangers_neither_help_nor_harm():
    payload = b"{}"
    envelope = sign(KIND, payload, KEYS[:2])
    noisy = edited(
        envelope,
        lambda e: e.update(
            signatures=[
                {"sig": "AAAA", "keyid": "signer0"},
                {"sig": e["signatures"][1]["sig"], "keyid": e["signatures"][0]["keyid"], "cert": "ignored"},
                {"sig": "", "keyid": None},
                {"sig": e["signatures"][0]["sig"]},
            ],
            comment="unknown fields are ignored",
        ),
    )
    assert opened(noisy, KEYS, threshold=2) == payload


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"payload":"","payloadType":"t"}',
        b'{"payload":"","payloadType":1,"signatures":[]}',
        b'{"payload":null,"payloadType":"t","signatures":[]}',
        b'{"payload":"","payloadType":"t","signatures":[{}]}',
        b'{"payload":"","payloadType":"t","signatures":[{"sig":"="}]}',
        b'{"payload":"","payloadType":"t","signatures":{}}',
        b'{"payload":"","payloadType":"t","signatures":[]} trailing',
        b'\xff{"payload":"","payloadType":"t","signatures":[]}',
        b'{"payload":"","payloadType":"\\ud800","signatures":[]}',
        b'{"x":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
        b"[" * 40_000,
    ],
)
def test_malformed_envelopes(data):
    assert code_of(ProtocolError, data, payload_types=["t"]) == "envelope-malformed"


def test_caps():
    envelope = sign(KIND, b"{}", KEYS[:1])
    assert opened(envelope, limit=len(envelope)) == b"{}"
    assert code_of(ProtocolError, envelope, limit=len(envelope) - 1) == "too-large"
    for count, outcome in ((MAX_SIGNATURES, "ok"), (MAX_SIGNATURES + 1, "envelope-malformed")):
        data = edited(envelope, lambda e, n=count: e.update(signatures=[{"sig": ""}] * (n - 1) + e["signatures"]))
        assert ("ok" if opened_or_none(data) == b"{}" else "envelope-malformed") == outcome
    unsigned = edited(envelope, lambda e: e.update(signatures=[]))
    assert code_of(VerificationError, unsigned) == "envelope-unsigned"


def opened_or_none(data):
    try:
        return opened(data)
    except ProtocolError as error:
        assert error.code == "envelope-malformed"
        return None


def test_what_a_caller_must_not_ask():
    envelope = sign(KIND, b"{}", KEYS[:1])
    for threshold in (-1, 0, 5):
        assert code_of(UsageError, envelope, threshold=threshold) == "threshold"
    assert code_of(UsageError, envelope, []) == "threshold"
    assert code_of(UsageError, envelope, [KEYS[0].cosigner]) == "key-kind"
    assert code_of(UsageError, envelope, [KEYS[0].cosigner, KEYS[0]]) == "key-kind"
    for kind, keys in ((KIND, []), ("\ud800", KEYS)):
        with pytest.raises(UsageError) as caught:
            sign(kind, b"", keys)
        assert caught.value.code == "unsignable"


def test_an_envelope_is_no_note():
    """The signed bytes of an envelope can look like a note's text. They are refused as one where notes are signed."""
    text = pae("t", b"line\n").decode()
    with pytest.raises(UsageError):
        sign_note(text, KEYS[0])
    note = sign_note("line\n", KEYS[0])
    signature = b64decode(note.split(b" ")[-1])[4:]
    envelope = edited(
        sign("t", b"line\n", KEYS[1:2]), lambda e: e.update(signatures=[{"sig": urlsafe_b64encode(signature).decode()}])
    )
    assert open_note(note, [KEYS[0].public]).signers
    assert code_of(VerificationError, envelope, payload_types=["t"]) == "envelope-unsigned"
