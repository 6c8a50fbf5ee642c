"""Signed notes, keys and heads against the vectors of golang.org/x/mod, C2SP and sum.golang.org."""

import json
from base64 import b64decode

import pytest

from protocol.errors import ProtocolError, WitnessError
from protocol.merkle import leaf_hash
from protocol.notes import (
    Checkpoint,
    SigningKey,
    open_head,
    open_note,
    parse_checkpoint,
    parse_note,
    parse_signing_key,
    parse_vkey,
    sign_note,
)


@pytest.fixture(scope="module")
def signed_note(vectors):
    return json.loads((vectors / "golang-mod" / "signed_note.json").read_bytes())


@pytest.fixture(scope="module")
def sumdb(vectors):
    return json.loads((vectors / "golang-mod" / "tlog_checkpoint_tiles.json").read_bytes())


def test_keys(signed_note):
    peter = parse_signing_key(signed_note["skey_peter"])
    assert peter.secret_text == signed_note["skey_peter"]
    assert peter.public.vkey == signed_note["vkey_peter"]
    assert parse_vkey(signed_note["vkey_peter"]) == peter.public
    assert SigningKey("EnochRoot", bytes(32)).public == parse_vkey(signed_note["vkey_enoch"])


def test_signing_gives_the_golden_bytes(signed_note):
    data = sign_note(signed_note["sign_text"], parse_signing_key(signed_note["skey_peter"]))
    assert data.decode() == signed_note["sign_output"]


def test_malformed_vkeys(signed_note):
    good = signed_note["vkey_peter"]
    bad = set(signed_note["bad_vkeys"])
    bad |= {good[i:j] for i in range(len(good)) for j in range(i, len(good) + 1)} - {good}
    bad |= {good[:i] + chr(ord(good[i]) + 1) + good[i + 1 :] for i in range(len(good))}
    assert len(bad) > 2000
    for text in bad:
        with pytest.raises(ProtocolError) as caught:
            parse_vkey(text)
        assert caught.value.code == "key-malformed", text


CASES = {
    "101-signatures": "note-malformed",
    "bad-signature-of-known-key": "bad-signature",
    "both-known": "ok",
    "control-char": "note-malformed",
    "duplicates": "ok",
    "junk-line-after-signatures": "note-malformed",
    "no-final-newline": "note-malformed",
    "no-signatures-1": "note-malformed",
    "no-signatures-2": "note-malformed",
    "none-known": "note-unsigned",
    "not-utf8": "note-malformed",
    "one-known-one-unknown": "ok",
    "space-in-name": "note-malformed",
}
EXPECTED = {
    "malformed": "note-malformed",
    "invalid-signature": "bad-signature",
    "unverified": "note-unsigned",
    "ok": "ok",
}


def test_opening(signed_note):
    ran = {}
    for case in signed_note["open_cases_note_is_base64"]:
        data, keys = b64decode(case["note"]), [parse_vkey(text) for text in case["verifiers"]]
        try:
            note = open_note(data, keys)
        except WitnessError as error:
            ran[case["id"]] = error.code
        else:
            ran[case["id"]] = "ok"
            assert len(note.signers) == case["verified"]
            unknown = {s for s in note.signatures if s.name not in {key.name for key in keys}}
            assert len(unknown) == case["unverified"]
            assert note.text == signed_note["sign_text"]
        assert ran[case["id"]] == EXPECTED[case["expect"]], case["id"]
    assert ran == CASES


def test_a_hundred_signatures_are_accepted(signed_note):
    """The other side of the 101-signatures case; C2SP asks for 16."""
    case = next(c for c in signed_note["open_cases_note_is_base64"] if c["id"] == "101-signatures")
    text, signatures = b64decode(case["note"]).rsplit(b"\n\n", 1)
    lines = signatures.splitlines(keepends=True)
    assert len(lines) == 101
    keys = [parse_vkey(text) for text in case["verifiers"]]
    for count in (16, 100):
        note = open_note(text + b"\n\n" + b"".join(lines[:count]), keys)
        assert (len(note.signatures), len(note.signers)) == (count, 1)


def test_specification_example(signed_note):
    example = signed_note["spec_example"]
    note = open_note(example["note"].encode(), [parse_vkey(example["vkey"])])
    assert note.text == "This is an example message.\n"
    assert parse_note(example["note"].encode()).encode().decode() == example["note"]


def test_checkpoint_body(sumdb):
    body = sumdb["checkpoint_body"].encode()
    head = parse_checkpoint(body)
    assert head == Checkpoint("go.sum database tree", 123456789012, leaf_hash(sumdb["root_is_leaf_hash_of"].encode()))
    assert head.body() == body


def test_a_live_head_of_the_go_checksum_database(sumdb):
    live = sumdb["sumdb_checkpoint"]
    key = parse_vkey(live["vkey"])
    head = open_head(live["note"].encode(), [key], "go.sum database tree")
    assert head.size == 35225469
    assert head.body().decode() == live["note"].split("\n\n")[0] + "\n"
    with pytest.raises(WitnessError) as caught:
        open_head(live["note"].encode(), [key], "sum.golang.org")
    assert caught.value.code == "head-origin"
