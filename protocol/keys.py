"""Named Ed25519 keys: who signs a run, and how a key is written down.

Names, key IDs and texts are those of C2SP signed-note, which a run's heads, cosignatures and statements share. A key is
of one signature type: the same 32 bytes as a note key and as a cosigner's are two keys with two IDs.

Specified in spec/keys.md.
"""

import binascii
import hashlib
from typing import Final

from protocol import ed25519
from protocol.encoding import Struct
from protocol.errors import ProtocolError

NOTE: Final = 0x01
"""Signature type of a plain Ed25519 note signature (C2SP signed-note)."""
COSIGNATURE: Final = 0x04
"""Signature type of a time-stamped Ed25519 cosignature (C2SP tlog-cosignature, v1)."""

_PRIVATE = "PRIVATE+KEY+"


class PublicKey(Struct, frozen=True):
    """A named Ed25519 public key, of one signature type.

    Building one refuses malformed names and weak keys, so a `PublicKey` at hand is safe to trust or not.

    Args:
        name: non-empty, without spaces, control characters or `+`; a schema-less URL by convention.
        raw: the 32-byte key (RFC 8032).
        kind: `NOTE` or `COSIGNATURE`.

    Raises:
        ProtocolError: `key-malformed` or `weak-key`.
    """

    name: str
    raw: bytes
    kind: int = NOTE

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ProtocolError("key-malformed", f"{self.name[:80]!r} cannot name a key")
        if self.kind not in (NOTE, COSIGNATURE):
            raise ProtocolError("key-malformed", f"signature type {self.kind:#x} is of no key of ours")
        ed25519.refuse_weak(self.raw)

    @property
    def key_id(self) -> bytes:
        """Four bytes that, with the name, say which key a signature claims; an identifier, not a commitment."""
        preimage = self.name.encode() + b"\n" + bytes([self.kind]) + self.raw
        return hashlib.sha256(preimage).digest()[:4]

    @property
    def vkey(self) -> str:
        """The key as text: `name+key id+base64(type || key)`."""
        return f"{self.name}+{self.key_id.hex()}+{format_base64(bytes([self.kind]) + self.raw)}"

    def verify(self, signature: bytes, message: bytes) -> None:
        """Verifies a plain Ed25519 signature over exactly these bytes.

        Raises:
            VerificationError: `bad-signature`.
        """
        ed25519.verify(self.raw, signature, message)


class SigningKey:
    """A named Ed25519 private key.

    Args:
        name: as for `PublicKey`.
        seed: 32 secret bytes from the caller's source of randomness.

    Raises:
        ProtocolError: `key-malformed`, for a name that cannot name a key.
        UsageError: `signing-key`, for a seed that is not 32 bytes.
    """

    __slots__ = ("_private", "_public")

    def __init__(self, name: str, seed: bytes) -> None:
        self._private = ed25519.private_key(seed)
        self._public = PublicKey(name, self._private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"SigningKey({self._public.vkey!r})"

    @property
    def public(self) -> PublicKey:
        """The key that verifies this one's notes."""
        return self._public

    @property
    def cosigner(self) -> PublicKey:
        """The key that verifies this one's cosignatures."""
        return PublicKey(self._public.name, self._public.raw, COSIGNATURE)

    @property
    def secret_text(self) -> str:
        """The secret as text, as Go's sumdb/note writes it: `PRIVATE+KEY+name+key id+base64(type || seed)`."""
        secret = format_base64(bytes([NOTE]) + self._private.private_bytes_raw())
        return f"{_PRIVATE}{self._public.name}+{self._public.key_id.hex()}+{secret}"

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over exactly these bytes. Formats separate their domains; a caller of this must too."""
        return self._private.sign(message)


def parse_vkey(text: str) -> PublicKey:
    """Parses the one canonical text of a public key. The text appears in no error: it may be a secret, by mistake.

    Raises:
        ProtocolError: `key-malformed` or `weak-key`.
    """
    name, _, rest = text.partition("+")
    _, _, encoded = rest.partition("+")
    material = parse_base64(encoded, "key-malformed")
    if len(material) != 1 + ed25519.KEY_BYTES:
        raise ProtocolError("key-malformed", "not the text of an Ed25519 public key")
    key = PublicKey(name, material[1:], material[0])
    if key.vkey != text:
        raise ProtocolError("key-malformed", f"the text of the key {name[:80]!r} does not carry its key ID")
    return key


def parse_signing_key(text: str) -> SigningKey:
    """Parses the one canonical text of a private key. The text appears in no error.

    Raises:
        ProtocolError: `key-malformed`.
    """
    name, _, rest = text.removeprefix(_PRIVATE).partition("+")
    material = parse_base64(rest.partition("+")[2], "key-malformed")
    if len(material) != 1 + ed25519.KEY_BYTES or not is_name(name):
        raise ProtocolError("key-malformed", "not the text of an Ed25519 private key")
    key = SigningKey(name, material[1:])
    if key.secret_text != text:
        raise ProtocolError("key-malformed", "the text of a private key does not carry the key ID of its key")
    return key


def is_name(text: str) -> bool:
    """Whether a key can be named this: non-empty Unicode without spaces, control characters and `+`."""
    return bool(text) and not any(c == "+" or c < " " or c.isspace() or "\ud800" <= c <= "\udfff" for c in text)


def format_base64(data: bytes) -> str:
    """Standard base64 (RFC 4648 section 4), on one line."""
    return binascii.b2a_base64(data, newline=False).decode()


def parse_base64(text: str, code: str) -> bytes:
    """The bytes of standard base64 in its one canonical spelling.

    Raises:
        ProtocolError: `code`, for anything else.
    """
    # The decoder lets stray bits pass in the last character, even in its strict mode: compare.
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        data = b""
    if format_base64(data) != text:
        raise ProtocolError(code, "not base64 in its canonical spelling")
    return data
