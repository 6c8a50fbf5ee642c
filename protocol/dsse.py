"""DSSE v1 envelopes: statements and certificates, signed as the very bytes they are.

An envelope (secure-systems-lab/dsse) signs a payload together with its type, so that nothing has to be canonical for
the signature to hold and no statement can pass for another kind. What we write is canonical JSON all the same; what we
read may be any JSON, because other people's tools write it. The payload that is returned is the payload that was
verified: nobody parses the envelope a second time.

Specified in spec/envelope.md.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from protocol.encoding import encode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.keys import NOTE, PublicKey, SigningKey, format_base64, parse_base64

MAX_SIGNATURES: Final = 100
"""Signatures an envelope may carry."""

_URL_SAFE = str.maketrans("-_", "+/")


class _Signature(msgspec.Struct, frozen=True):
    sig: str


class _Envelope(msgspec.Struct, frozen=True, rename={"payload_type": "payloadType"}):
    payload: str
    payload_type: str
    signatures: tuple[_Signature, ...]


_decoder = msgspec.json.Decoder(_Envelope)


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: `DSSEv1 len(type) type len(payload) payload`, lengths in bytes (DSSE "PAE").

    Raises:
        UsageError: `unsignable`, for a type that is not Unicode text.
    """
    try:
        kind = payload_type.encode()
    except UnicodeEncodeError:
        raise UsageError("unsignable", "the payload type holds a lone surrogate") from None
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload_type: str, payload: bytes, keys: Sequence[SigningKey]) -> bytes:
    """The envelope of a payload, as canonical JSON.

    Args:
        payload_type: says how to read the payload; a media type.
        payload: any bytes.
        keys: the signers, at least one. Each `keyid` written is the key's name and ID: a hint that no reader may trust.

    Raises:
        UsageError: `unsignable`.
    """
    if not keys:
        raise UsageError("unsignable", "an envelope needs a signer")
    message = pae(payload_type, payload)
    signatures = [
        {"keyid": f"{key.public.name}+{key.public.key_id.hex()}", "sig": format_base64(key.sign(message))}
        for key in keys
    ]
    return encode({"payload": format_base64(payload), "payloadType": payload_type, "signatures": signatures})


def open_envelope(
    data: bytes, keys: Iterable[PublicKey], *, payload_types: Collection[str], threshold: int = 1, limit: int
) -> bytes:
    """Opens an envelope that enough known keys signed.

    As DSSE says, a `keyid` is not trusted, unknown fields are ignored, and a signature that verifies under no known key
    counts for nothing. One key counts once, however often it signed and under however many names it is known.

    Args:
        data: the envelope, any JSON.
        keys: the known keys, of kind `NOTE`.
        payload_types: the types expected. With more than one, the payload itself must say which it is.
        threshold: how many different keys must have signed.
        limit: cap in bytes; larger input is refused before it is parsed.

    Returns:
        The payload, exactly as signed.

    Raises:
        ProtocolError: `too-large` or `envelope-malformed`.
        VerificationError: `payload-type`, or `envelope-unsigned`.
        UsageError: `threshold` or `key-kind`.
    """
    known: dict[bytes, PublicKey] = {}
    for key in keys:
        if key.kind != NOTE:
            raise UsageError("key-kind", f"the key {key.name} cosigns heads; it signs no statements")
        known[key.raw] = key
    if not 1 <= threshold <= len(known):
        raise UsageError("threshold", f"{threshold} signers cannot be found among {len(known)} different keys")
    envelope = _parse(data, limit)
    if envelope.payload_type not in payload_types:
        found = {"expected": sorted(payload_types), "found": envelope.payload_type}
        raise VerificationError("payload-type", "the envelope holds another kind of statement", evidence=found)
    payload = _bytes(envelope.payload)
    message = pae(envelope.payload_type, payload)
    signers: set[bytes] = set()
    for signature in [_bytes(s.sig) for s in envelope.signatures]:
        for raw, key in known.items():
            if raw not in signers and _verifies(key, signature, message):
                signers.add(raw)
                break
    if len(signers) < threshold:
        signed = {"signed": sorted(known[raw].vkey for raw in signers)}
        raise VerificationError("envelope-unsigned", f"{len(signers)} of {threshold} keys signed", evidence=signed)
    return payload


def peek(data: bytes, *, limit: int) -> bytes:
    """The payload of an envelope before anything is verified: only to learn which key claims to have signed.

    Raises:
        ProtocolError: `too-large` or `envelope-malformed`.
    """
    return _bytes(_parse(data, limit).payload)


def _parse(data: bytes, limit: int) -> _Envelope:
    if len(data) > limit:
        raise ProtocolError("too-large", f"an envelope of {len(data)} bytes where at most {limit} are allowed")
    try:
        envelope = _decoder.decode(data.decode())  # decoded first: in fields that are ignored, any bytes would pass
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError("envelope-malformed", f"not an envelope: {error}") from None
    if len(envelope.signatures) > MAX_SIGNATURES:
        raise ProtocolError("envelope-malformed", f"{len(envelope.signatures)} signatures, more than {MAX_SIGNATURES}")
    return envelope


def _bytes(text: str) -> bytes:
    # One alphabet or the other, never a mixture.
    if "-" in text or "_" in text:
        if "+" in text or "/" in text:
            raise ProtocolError("envelope-malformed", "base64 of two alphabets in one field")
        text = text.translate(_URL_SAFE)
    return parse_base64(text, "envelope-malformed")


def _verifies(key: PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except VerificationError:
        return False
    return True
