"""Signed notes, heads and cosignatures: round trips, and every single-byte edit refused."""

import subprocess
import sys
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError, UsageError, VerificationError, WitnessError
from protocol.keys import COSIGNATURE, PublicKey, SigningKey, format_base64
from protocol.notes import (
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    Checkpoint,
    Note,
    Signature,
    cosign,
    open_cosignature,
    open_head,
    open_note,
    parse_checkpoint,
    parse_note,
    sign_head,
    sign_note,
)

LOG = SigningKey("example.com/log", bytes(range(32)))
OTHER = SigningKey("example.com/log", bytes(32))
COSIGNER = SigningKey("cosigner.example/c1", bytes(range(1, 33)))
HEAD = Checkpoint("example.com/log", 20852163, bytes(range(32)))
NOTE = sign_head(HEAD, LOG)

LINES = st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=30)
TEXTS = st.lists(LINES, min_size=1, max_size=5).map(lambda lines: "\n".join(lines) + "\n")
ORIGINS = LINES.filter(bool)
HEADS = st.builds(Checkpoint, ORIGINS, st.integers(0, 2**63 - 1), st.binary(min_size=32, max_size=32))


def code_of(family, call, *arguments, **keywords):
    with pytest.raises(family) as caught:
        call(*arguments, **keywords)
    return caught.value.code


def edits(data):
    """Each byte removed, doubled, and replaced by a few others; and the note cut short."""
    for at in range(len(data)):
        yield data[:at] + data[at + 1 :]
        yield data[: at + 1] + data[at:]
        for other in {data[at] ^ 1, data[at] ^ 0x80, ord("\n"), ord(" "), ord("A"), 0} - {data[at]}:
            yield data[:at] + bytes([other]) + data[at + 1 :]
        yield data[:at]


@given(TEXTS)
def test_notes_round_trip(text):
    data = sign_note(text, LOG)
    note = open_note(data, [COSIGNER.public, LOG.public])
    assert (note.text, note.signers) == (text, (LOG.public,))
    assert parse_note(data).encode() == data


@given(TEXTS, st.lists(st.sampled_from([LOG, OTHER, COSIGNER]), min_size=1, max_size=6))
def test_signers_are_listed_once_in_order(text, keys):
    """LOG and OTHER share a name, not a key ID."""
    lines = tuple(Signature(key.public.name, key.public.key_id, key.sign(text.encode())) for key in keys)
    data, known = Note(text, lines).encode(), [COSIGNER.public, LOG.public]
    expected = [key.public for key in dict.fromkeys(keys) if key is not OTHER]
    if expected:
        note = open_note(data, known)
        assert (list(note.signers), len(note.signatures)) == (expected, len(keys))
    else:
        assert code_of(VerificationError, open_note, data, known) == "note-unsigned"


def test_no_edited_note_opens():
    edited = 0
    for data in edits(NOTE):
        if data != NOTE:
            with pytest.raises((ProtocolError, VerificationError)):
                open_note(data, [LOG.public])
            edited += 1
    assert edited > 1000


def test_no_edited_cosignature_opens():
    """Also the time is signed. Edits of the log's own line are the log key's business, not the cosigner's."""
    data = cosign(NOTE, COSIGNER, 1679315147)
    line = data[len(NOTE) :]
    for other in edits(line):
        if other != line:
            with pytest.raises((ProtocolError, VerificationError)):
                open_cosignature(NOTE + other, COSIGNER.cosigner)
    body = HEAD.body()
    for other in edits(body):
        if other != body:
            with pytest.raises((ProtocolError, VerificationError)):
                open_cosignature(data.replace(body, other), COSIGNER.cosigner)


@given(HEADS)
def test_heads_round_trip(head):
    assert parse_checkpoint(head.body()) == head
    assert open_head(sign_head(head, LOG), [LOG.public], head.origin) == head
    assert code_of(VerificationError, open_head, sign_head(head, LOG), [LOG.public], head.origin + "x") == "head-origin"


@given(HEADS, st.data())
def test_an_edited_head_says_something_else_or_nothing(head, data):
    body = head.body()
    at = data.draw(st.integers(0, len(body)))
    cut = data.draw(st.integers(at, min(at + 2, len(body))))
    edited = body[:at] + data.draw(st.binary(max_size=2)) + body[cut:]
    try:
        other = parse_checkpoint(edited)
    except ProtocolError as error:
        assert error.code == "head-malformed"
    else:
        assert other.body() == edited
        assert (other == head) == (edited == body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"log\n",
        b"log\n1\n",
        b"log\n1\n" + b"A" * 43 + b"=",
        b"\n1\n" + b"A" * 43 + b"=\n",
        b"log\n1\n" + b"A" * 43 + b"=\nextension\n",
        b"log\n1\n" + b"A" * 43 + b"=\n\n",
        b"log\r\n1\r\n" + b"A" * 43 + b"=\r\n",
        b"log\n1\n" + b"A" * 42 + b"B=\n",
        b"log\n1\n" + b"A" * 43 + b"\n",
        b"log\n1\n" + b"_" * 43 + b"=\n",
        b"log\n1\n" + b"A" * 44 + b"\n",
        b"log\n1\n\n",
        b"l\x00g\n1\n" + b"A" * 43 + b"=\n",
        *(b"log\n%b\n%b=\n" % (size, b"A" * 43) for size in (b"", b"01", b"-1", b"+1", b" 1", b"1_0", b"1.0", b"0x1")),
        *(
            b"log\n%b\n%b=\n" % (size, b"A" * 43)
            for size in ("\u0661".encode(), "\u00b2".encode(), b"%d" % 2**63, b"1" * 40)
        ),
    ],
)
def test_malformed_heads(body):
    assert code_of(ProtocolError, parse_checkpoint, body) == "head-malformed"
    # Nor does a signature help.
    text = body.decode()
    if text.endswith("\n") and "\r" not in text and "\x00" not in text:
        assert code_of(ProtocolError, open_head, sign_note(text, LOG), [LOG.public]) == "head-malformed"
        assert code_of(ProtocolError, cosign, sign_note(text, LOG), COSIGNER, 1) == "head-malformed"


def test_heads_that_are_not_text_or_take_long_to_read():
    for body in (b"l\xffg\n1\n" + b"A" * 43 + b"=\n", b"log\n" + b"1" * 1_000_000 + b"\n" + b"A" * 43 + b"=\n"):
        assert code_of(ProtocolError, parse_checkpoint, body) == "head-malformed"


@pytest.mark.parametrize(
    "arguments",
    [("", 1, bytes(32)), ("a\nb", 1, bytes(32)), ("a", -1, bytes(32)), ("a", 2**63, bytes(32)), ("a", 1, bytes(31))],
)
def test_heads_that_cannot_be_built(arguments):
    assert code_of(ProtocolError, Checkpoint, *arguments) == "head-malformed"


def test_an_extension_line_is_refused_even_when_signed():
    body = HEAD.body().decode() + "other data\n"
    note = sign_note(body, LOG)
    assert open_note(note, [LOG.public]).text == body
    assert code_of(ProtocolError, open_head, note, [LOG.public]) == "head-malformed"


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_cosignatures_round_trip(first, second):
    """Both count; the earlier one says more."""
    data = cosign(cosign(NOTE, COSIGNER, first), COSIGNER, second)
    seen = open_cosignature(data, COSIGNER.cosigner, HEAD.origin)
    assert (seen.key, seen.head, seen.timestamp) == (COSIGNER.cosigner, HEAD, min(first, second))
    assert open_head(data, [LOG.public, COSIGNER.cosigner]) == HEAD
    assert open_note(data, [COSIGNER.cosigner, LOG.public]).signers == (LOG.public, COSIGNER.cosigner)


def test_a_cosigner_cannot_stand_in_for_the_log():
    cosigned = cosign(sign_head(HEAD, OTHER), COSIGNER, 1)
    assert code_of(VerificationError, open_head, cosigned, [LOG.public, COSIGNER.cosigner]) == "note-unsigned"
    assert code_of(VerificationError, open_cosignature, NOTE, COSIGNER.cosigner) == "note-unsigned"
    assert code_of(UsageError, open_cosignature, cosigned, COSIGNER.public) == "key-kind"
    assert code_of(VerificationError, open_cosignature, cosigned, COSIGNER.cosigner, "another log") == "head-origin"


def test_one_bad_signature_of_a_known_key_rejects_the_note():
    """Whoever else signed it, and wherever the line stands; unknown keys may sign what they like."""
    bad = Signature(COSIGNER.public.name, COSIGNER.public.key_id, bytes(64))
    note = parse_note(NOTE)
    for signatures in ((*note.signatures, bad), (bad, *note.signatures), (*note.signatures, *note.signatures, bad)):
        data = Note(note.text, signatures).encode()
        assert code_of(VerificationError, open_note, data, [LOG.public, COSIGNER.public]) == "bad-signature"
        assert open_note(data, [LOG.public]).signers == (LOG.public,)
    # A good signature of the same key is no excuse.
    again = Signature(LOG.public.name, LOG.public.key_id, bytes(64))
    for signatures in ((*note.signatures, again), (again, *note.signatures)):
        data = Note(note.text, signatures).encode()
        assert code_of(VerificationError, open_note, data, [LOG.public]) == "bad-signature"


@pytest.mark.parametrize("length", [1, 7, 8, 63, 65, 71, 73])
def test_signatures_of_the_wrong_length(length):
    for key in (LOG.public, LOG.cosigner):
        data = Note(HEAD.body().decode(), (Signature(key.name, key.key_id, bytes(length)),)).encode()
        assert code_of(VerificationError, open_note, data, [key]) == "bad-signature"


def test_a_cosignature_time_beyond_the_cap():
    stamp = (2**63).to_bytes(8, "big")
    good = LOG.sign(b"cosignature/v1\ntime %d\n%b" % (2**63, HEAD.body()))
    data = Note(HEAD.body().decode(), (Signature(LOG.cosigner.name, LOG.cosigner.key_id, stamp + good),)).encode()
    assert code_of(VerificationError, open_note, data, [LOG.cosigner]) == "bad-signature"
    for time in (-1, 2**63):
        assert code_of(UsageError, cosign, NOTE, COSIGNER, time) == "unsignable"


def test_colliding_key_ids():
    """Four bytes collide for whoever tries 2^32 keys. An unknown key that collides is only a bad signature; two known
    keys that collide are a configuration to refuse, since a signature could be either's."""
    with patch.object(PublicKey, "key_id", b"same"):
        forged = sign_note(HEAD.body().decode(), OTHER)
        assert code_of(VerificationError, open_note, forged, [LOG.public]) == "bad-signature"
        assert code_of(UsageError, open_note, forged, [LOG.public, OTHER.public]) == "key-collision"
    assert open_note(NOTE, [LOG.public, PublicKey(LOG.public.name, LOG.public.raw)]).signers == (LOG.public,)


def test_caps():
    line = parse_note(NOTE).signatures
    at_the_cap = Note(HEAD.body().decode(), line * MAX_SIGNATURES)
    assert open_head(at_the_cap.encode(), [LOG.public]) == HEAD
    assert code_of(UsageError, cosign, at_the_cap.encode(), COSIGNER, 1) == "unsignable"
    beyond = Note(at_the_cap.text, line * (MAX_SIGNATURES + 1))
    assert code_of(ProtocolError, open_note, beyond.encode(), [LOG.public]) == "note-malformed"

    room = MAX_NOTE_BYTES - len(sign_note("\n", LOG))
    large = sign_note("x" * room + "\n", LOG)
    assert len(large) == MAX_NOTE_BYTES
    assert open_note(large, [LOG.public]).signers
    assert code_of(ProtocolError, open_note, large + b"\n", [LOG.public]) == "too-large"
    assert code_of(UsageError, sign_note, "x" * (room + 1) + "\n", LOG) == "unsignable"


@pytest.mark.parametrize("text", ["", "no newline", "a\rb\n", "a\tb\n", "\x00\n", "\x1b[2J\n", "\ud800\n"])
def test_texts_that_no_note_can_have(text):
    assert code_of(UsageError, sign_note, text, LOG) == "unsignable"


def test_a_note_cannot_be_passed_off_as_something_else():
    """One key may sign notes, cosignatures and envelopes: what it signs as one must not verify as another."""
    for text in ("DSSEv1 1 x 1 \n", "cosignature/v1\ntime 1\nlog\n1\nroot\n"):
        assert code_of(UsageError, sign_note, text, LOG) == "unsignable"
    assert code_of(UsageError, sign_head, Checkpoint("cosignature/v1", 1, bytes(32)), LOG) == "unsignable"
    assert code_of(UsageError, sign_head, Checkpoint("DSSEv1 28 x", 1, bytes(32)), LOG) == "unsignable"


def test_the_same_bytes_are_two_keys():
    """A note key does not open what its owner cosigned, nor the other way round."""
    cosigned = cosign(sign_head(HEAD, OTHER), LOG, 1)
    assert code_of(VerificationError, open_note, cosigned, [LOG.public]) == "note-unsigned"
    assert code_of(VerificationError, open_note, NOTE, [LOG.cosigner]) == "note-unsigned"
    # Relabelling the line does not help either: the signed bytes differ.
    stamped = parse_note(cosigned).signatures[-1].signature
    for signature in (stamped, stamped[8:]):
        relabelled = Note(HEAD.body().decode(), (Signature(LOG.public.name, LOG.public.key_id, signature),))
        assert code_of(VerificationError, open_note, relabelled.encode(), [LOG.public]) == "bad-signature"
    assert LOG.cosigner.kind == COSIGNATURE


@given(st.binary(max_size=60))
def test_noise_is_refused_by_name(noise):
    for data in (noise, NOTE + noise, noise + NOTE, NOTE[: len(noise)] + noise + NOTE[len(noise) :]):
        try:
            note = parse_note(data)
        except WitnessError as error:
            assert error.code == "note-malformed"
        else:
            assert note.encode() == data


def test_a_text_with_empty_lines_ends_at_the_last_one():
    text = "a\n\n\u2014 b AAAAAAA=\n\n\n"
    data = sign_note(text, LOG)
    assert open_note(data, [LOG.public]).text == text
    assert data.count(b"\n\n") == 3
    assert format_base64(LOG.public.key_id + parse_note(data).signatures[0].signature).encode() in data


def test_the_check_path_imports_nothing_slow():
    loaded = "import sys, protocol.notes, protocol.dsse, protocol.merkle; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "cryptography.hazmat.primitives.asymmetric.ed25519" in modules
    assert not {"torch", "numpy", "pymerkle", "asyncio", "ssl", "socket", "sqlite3", "dataclasses"} & set(modules)
