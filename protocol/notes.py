"""Signed notes, and the two things that are signed as notes: heads and cosignatures.

The formats are those of the transparency-log community (C2SP signed-note, tlog-checkpoint, tlog-cosignature), so that a
run's heads can be checked, mirrored and cosigned by tools that have never heard of training. Three lines of text and
base64: small enough to read aloud, and to verify without us.

Two rules go beyond the specifications. Base64 is accepted in its one canonical spelling, so that a note has one
encoding; and a head has exactly three lines: an extension line would be signed by the log and vouched for by nobody.

Specified in spec/heads.md.
"""

import re
from collections.abc import Iterable
from typing import Final

from protocol.encoding import Struct
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.keys import (
    COSIGNATURE,
    NOTE,
    PublicKey,
    SigningKey,
    format_base64,
    is_name,
    parse_base64,
    parse_signing_key,
    parse_vkey,
)

__all__ = [
    "COSIGNATURE",
    "NOTE",
    "Checkpoint",
    "Cosignature",
    "Note",
    "PublicKey",
    "Signature",
    "SigningKey",
    "VerifiedNote",
    "cosign",
    "open_cosignature",
    "open_head",
    "open_note",
    "parse_checkpoint",
    "parse_note",
    "parse_signing_key",
    "parse_vkey",
    "sign_head",
    "sign_note",
]

MAX_NOTE_BYTES: Final = 1 << 20
MAX_SIGNATURES: Final = 100
"""Signatures a note may carry; C2SP asks verifiers for at least 16."""
MAX_TIME: Final = 2**63 - 1
MAX_HEAD_SIZE: Final = 2**63 - 1

_DASH = "\u2014 "
# Control characters but the newline, and what UTF-8 cannot say.
_FORBIDDEN = re.compile(r"[\x00-\x09\x0b-\x1f\ud800-\udfff]")
# What other formats sign under Ed25519. A note that began like this could be mistaken for one of theirs.
_OTHER_DOMAINS = ("DSSEv1 ", "cosignature/v1\n")


class Signature(Struct, frozen=True):
    """One signature line: the key it claims, and the bytes. Nothing is verified."""

    name: str
    key_id: bytes
    signature: bytes

    def line(self) -> str:
        """The line as it stands in a note, with its newline."""
        return f"{_DASH}{self.name} {format_base64(self.key_id + self.signature)}\n"


class Note(Struct, frozen=True):
    """A parsed note. Nothing is verified: `open_note` does that."""

    text: str
    signatures: tuple[Signature, ...]

    def encode(self) -> bytes:
        """The note's bytes."""
        return f"{self.text}\n{''.join(s.line() for s in self.signatures)}".encode()


class VerifiedNote(Note, frozen=True):
    """A note and the known keys that verifiably signed it, in the order of their first signatures; at least one."""

    signers: tuple[PublicKey, ...]


class Checkpoint(Struct, frozen=True):
    """What a head says: the log, its size and its root (C2SP tlog-checkpoint, without extension lines).

    Args:
        origin: identifies the log: one line, without control characters.
        size: number of leaves, at most 2^63 - 1.
        root: 32-byte RFC 9162 root.

    Raises:
        ProtocolError: `head-malformed`.
    """

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        if not self.origin or "\n" in self.origin or not _is_text(self.origin + "\n"):
            raise ProtocolError("head-malformed", f"{self.origin[:80]!r} is not the origin of a log")
        if not 0 <= self.size <= MAX_HEAD_SIZE:
            raise ProtocolError("head-malformed", f"a log cannot have {self.size} entries")
        if len(self.root) != 32:
            raise ProtocolError("head-malformed", f"a root is 32 bytes, not {len(self.root)}")

    def body(self) -> bytes:
        """The signed bytes: origin, decimal size and base64 root, each on its line."""
        return f"{self.origin}\n{self.size}\n{format_base64(self.root)}\n".encode()


class Cosignature(Struct, frozen=True):
    """A verified cosignature: `key` saw `head` as the largest consistent one of its log at `timestamp`.

    Args:
        key: who says so; of kind `COSIGNATURE`.
        head: what they saw.
        timestamp: POSIX seconds.
    """

    key: PublicKey
    head: Checkpoint
    timestamp: int


def sign_note(text: str, key: SigningKey) -> bytes:
    r"""The note of `text` signed by `key` (C2SP signed-note).

    Args:
        text: ends in a newline; no control character but `\n`.
        key: the signer's.

    Raises:
        UsageError: `unsignable`, if the text cannot be a note's, or begins like what another format signs.
    """
    if not _is_text(text):
        raise UsageError("unsignable", "the text of a note is UTF-8, without control characters, and ends in a newline")
    if text.startswith(_OTHER_DOMAINS):
        raise UsageError("unsignable", f"a note does not begin with {text[:14]!r}: another format signs such bytes")
    signature = Signature(key.public.name, key.public.key_id, key.sign(text.encode()))
    data = Note(text, (signature,)).encode()
    if len(data) > MAX_NOTE_BYTES:
        raise UsageError("unsignable", f"the note would have {len(data)} bytes, more than {MAX_NOTE_BYTES}")
    return data


def parse_note(data: bytes) -> Note:
    """Parses a note without verifying anything.

    Raises:
        ProtocolError: `too-large`, or `note-malformed`.
    """
    if len(data) > MAX_NOTE_BYTES:
        raise ProtocolError("too-large", f"a note of {len(data)} bytes where at most {MAX_NOTE_BYTES} are allowed")
    try:
        content = data.decode()
    except UnicodeDecodeError:
        raise ProtocolError("note-malformed", "the note is not UTF-8") from None
    # The last empty line ends the text, which may have empty lines of its own.
    text, separator, block = content.rpartition("\n\n")
    text += "\n"
    lines = block.split("\n")
    if not separator or not _is_text(text) or lines.pop() or not lines:
        raise ProtocolError("note-malformed", "a note is text, an empty line and signature lines")
    if len(lines) > MAX_SIGNATURES:
        raise ProtocolError("note-malformed", f"{len(lines)} signatures where at most {MAX_SIGNATURES} are allowed")
    note = Note(text, tuple(_parse_signature(line) for line in lines))
    if note.encode() != data:
        raise ProtocolError("note-malformed", "a note, but not in its canonical encoding")
    return note


def open_note(data: bytes, keys: Iterable[PublicKey]) -> VerifiedNote:
    """Parses a note and verifies the signatures of the known keys, all of them.

    Signatures of unknown keys are ignored. One bad signature of a known key rejects the note, whoever else signed it.

    Args:
        data: the note.
        keys: the known keys; those of kind `COSIGNATURE` verify cosignatures.

    Raises:
        ProtocolError: `too-large` or `note-malformed`.
        VerificationError: `bad-signature`; `note-unsigned`, if no known key signed.
        UsageError: `key-collision`, if two different keys share a name and a key ID.
    """
    known: dict[tuple[str, bytes], PublicKey] = {}
    for key in keys:
        if known.setdefault((key.name, key.key_id), key) != key:
            raise UsageError("key-collision", f"two different keys are {key.name}+{key.key_id.hex()}")
    note = parse_note(data)
    signers: dict[PublicKey, None] = {}
    for signature in note.signatures:
        signer = known.get((signature.name, signature.key_id))
        if signer is not None:
            _verify_line(signature, signer, note.text)
            signers[signer] = None
    if not signers:
        raise VerificationError("note-unsigned", "no known key signed the note", evidence=_claimed(note))
    return VerifiedNote(note.text, note.signatures, tuple(signers))


def parse_checkpoint(body: bytes) -> Checkpoint:
    """Parses the text of a head; extension lines are refused.

    Raises:
        ProtocolError: `head-malformed`.
    """
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError:
        raise ProtocolError("head-malformed", "the head is not UTF-8") from None
    if len(lines) != 4 or lines[3]:
        raise ProtocolError("head-malformed", "a head is three lines: origin, size and root")
    origin, size, root, _ = lines
    # int() also reads signs, spaces, underscores and other scripts' digits, and takes quadratic time.
    if not (size.isascii() and size.isdigit() and len(size) <= len(str(MAX_HEAD_SIZE))):
        raise ProtocolError("head-malformed", f"{size[:40]!r} is not the size of a log")
    head = Checkpoint(origin, int(size), parse_base64(root, "head-malformed"))
    if head.body() != body:
        raise ProtocolError("head-malformed", "a head, but not in its canonical encoding")
    return head


def sign_head(checkpoint: Checkpoint, key: SigningKey) -> bytes:
    """The head as a note signed by the log's key.

    Raises:
        UsageError: `unsignable`.
    """
    return sign_note(checkpoint.body().decode(), key)


def open_head(data: bytes, keys: Iterable[PublicKey], origin: str | None = None) -> Checkpoint:
    """Opens a head that a log's key signed. Cosignatures are not enough.

    Args:
        data: the note.
        keys: the known keys of the log, of kind `NOTE`; cosigners among them are verified too.
        origin: the log expected; any by default.

    Raises:
        ProtocolError: `too-large`, `note-malformed` or `head-malformed`.
        VerificationError: `bad-signature`, `note-unsigned`, or `head-origin` for the head of another log.
    """
    note = open_note(data, keys)
    if all(signer.kind != NOTE for signer in note.signers):
        raise VerificationError("note-unsigned", "cosigners signed the head, its log did not", evidence=_claimed(note))
    return _expect_origin(parse_checkpoint(note.text.encode()), origin)


def cosign(data: bytes, key: SigningKey, timestamp: int) -> bytes:
    """Adds a cosignature to a head (C2SP tlog-cosignature, Ed25519).

    It states that the head is the largest consistent one that this cosigner has seen of its log. Opening the head and
    verifying its consistency with the last one seen is the caller's duty, and the whole worth of the signature.

    Args:
        data: the head, as a note.
        key: the cosigner's. The format does not bind the cosigner's name, so use the key for nothing else.
        timestamp: now, in POSIX seconds.

    Raises:
        ProtocolError: `too-large`, `note-malformed` or `head-malformed`.
        UsageError: `unsignable`, if the time is out of range or the note has no room for another signature.
    """
    if not 0 <= timestamp <= MAX_TIME:
        raise UsageError("unsignable", f"{timestamp} is not a POSIX time below 2^63")
    note = parse_note(data)
    parse_checkpoint(note.text.encode())
    stamped = timestamp.to_bytes(8, "big") + key.sign(_cosigned(note.text, timestamp))
    signature = Signature(key.public.name, key.cosigner.key_id, stamped)
    cosigned = Note(note.text, (*note.signatures, signature))
    if len(cosigned.signatures) > MAX_SIGNATURES or len(result := cosigned.encode()) > MAX_NOTE_BYTES:
        raise UsageError("unsignable", "the note has no room for another signature")
    return result


def open_cosignature(data: bytes, key: PublicKey, origin: str | None = None) -> Cosignature:
    """Verifies a cosigner's signature on a head. Where it signed more than once, its earliest time counts.

    Args:
        data: the head, as a note.
        key: the cosigner's, of kind `COSIGNATURE`.
        origin: the log expected; any by default.

    Raises:
        ProtocolError: `too-large`, `note-malformed` or `head-malformed`.
        VerificationError: `bad-signature`, `note-unsigned` or `head-origin`.
        UsageError: `key-kind`, for a key of another kind.
    """
    if key.kind != COSIGNATURE:
        raise UsageError("key-kind", f"the key {key.name} signs notes, not cosignatures")
    note = open_note(data, [key])
    head = _expect_origin(parse_checkpoint(note.text.encode()), origin)
    mine = (s.signature for s in note.signatures if (s.name, s.key_id) == (key.name, key.key_id))
    return Cosignature(key, head, min(int.from_bytes(stamped[:8], "big") for stamped in mine))


def _verify_line(signature: Signature, key: PublicKey, text: str) -> None:
    if key.kind == NOTE:
        key.verify(signature.signature, text.encode())
        return
    stamp, plain = signature.signature[:8], signature.signature[8:]
    timestamp = int.from_bytes(stamp, "big")
    if timestamp > MAX_TIME:
        raise VerificationError("bad-signature", f"the cosignature of {key.name} has a time beyond 2^63 - 1")
    key.verify(plain, _cosigned(text, timestamp))


def _cosigned(text: str, timestamp: int) -> bytes:
    return f"cosignature/v1\ntime {timestamp}\n{text}".encode()


def _expect_origin(head: Checkpoint, origin: str | None) -> Checkpoint:
    if origin is not None and head.origin != origin:
        evidence = {"expected": origin, "found": head.origin}
        raise VerificationError("head-origin", "the head is another log's", evidence=evidence)
    return head


def _parse_signature(line: str) -> Signature:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    material = parse_base64(encoded, "note-malformed")
    if dash + " " != _DASH or not is_name(name) or len(material) < 5:
        raise ProtocolError("note-malformed", f"{line[:120]!r} is not a signature line")
    return Signature(name, material[:4], material[4:])


def _claimed(note: Note) -> dict[str, object]:
    return {"signatures claimed by": [f"{s.name}+{s.key_id.hex()}" for s in note.signatures[:16]]}


def _is_text(text: str) -> bool:
    return text.endswith("\n") and not _FORBIDDEN.search(text)
