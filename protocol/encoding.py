"""Canonical bytes: one value, one encoding, and a decoder that refuses every other spelling.

Whatever is hashed, signed or sent is restricted RFC 8785 JSON: UTF-8, keys sorted, no white space, and only objects
with printable-ASCII keys, arrays, strings, booleans, null and integers of magnitude below 2**53. There are no floats: a
float is a string of its bits (`"f32:3f800000"`), because decimal renderings of one float differ between writers.

No JSON decoder at hand is strict (duplicate keys, `1.0`, NaN, escapes), so decoding is: cap, parse, re-encode, compare.

Specified in spec/encoding.md, sections 2 to 5.
"""

import hashlib
import struct
from typing import Annotated, Any, TypeVar

import msgspec

from protocol.errors import ProtocolError, UsageError

T = TypeVar("T")

MAX_INTEGER = 2**53 - 1
MAX_LEVELS = 256
"""How deep a value nests, the innermost one counted: so deep every reader can follow, whatever its stack."""
Hex32 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""A 32-byte digest as 64 lower-case hexadecimal digits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""A non-negative integer that every JSON implementation represents exactly."""


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every value type that travels: frozen, slotted, and closed to unknown fields."""


_UNPACK = {("f32:", 12): struct.Struct(">f").unpack, ("f64:", 20): struct.Struct(">d").unpack}
_encoder = msgspec.json.Encoder(order="sorted")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode(value: Any) -> bytes:
    """Encodes plain data or a `Struct` canonically.

    Args:
        value: objects, arrays, strings, booleans, null, integers below 2**53, or Structs of these.

    Raises:
        UsageError: `unencodable`, if the value holds a float, a large integer or anything else outside the profile.
    """
    try:
        _refuse_unencodable(msgspec.to_builtins(value, builtin_types=(bytes, bytearray)))
        return _encoder.encode(value)
    except UnicodeEncodeError:
        raise UsageError("unencodable", "a string holds a lone surrogate") from None
    except RecursionError:
        raise UsageError("unencodable", "the value is nested too deep") from None


def encode_trusted(value: Any) -> bytes:
    """`encode` for values whose types already exclude what the profile forbids (hot paths: step records)."""
    return _encoder.encode(value)


def decode(data: bytes, kind: type[T], *, limit: int, closed: bool = False, levels: int = MAX_LEVELS) -> T:
    """Decodes bytes that must be the canonical encoding of one `kind`.

    Args:
        data: what the other side sent.
        kind: the expected type, usually a `Struct`.
        limit: cap in bytes; larger input is refused before it is parsed.
        closed: the type by itself excludes whatever the profile forbids (floats, large integers, odd keys), so that the
            value need not be walked: for hot paths.
        levels: how deep the value may nest; less than `MAX_LEVELS` for what was cut out of another value.

    Raises:
        ProtocolError: `too-large` or `not-canonical`.
    """
    if len(data) > limit:
        raise ProtocolError("too-large", f"{len(data)} bytes where at most {limit} are allowed")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value = decoder.decode(data)
        again = _encoder.encode(value)
        if not closed:
            _refuse_unencodable(msgspec.to_builtins(value), levels)
    except UsageError as error:
        raise ProtocolError("not-canonical", f"not a canonical {_name(kind)}: {error}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError("not-canonical", f"not a canonical {_name(kind)}: {error}") from None
    if again != data:
        raise ProtocolError("not-canonical", f"a {_name(kind)}, but not in its canonical encoding")
    return value  # type: ignore[no-any-return]


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _refuse_unencodable(value: Any, levels: int = MAX_LEVELS) -> None:
    if levels == 0:
        raise UsageError("unencodable", "the value is nested too deep")
    if value is None or isinstance(value, bool | str):
        return
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise UsageError("unencodable", f"the integer {value} is not below 2^53")
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unencodable(item, levels - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not (isinstance(key, str) and key.isascii() and key.isprintable()):
                raise UsageError("unencodable", f"the key {key!r} is not printable ASCII")
            _refuse_unencodable(item, levels - 1)
    else:
        raise UsageError("unencodable", f"a {type(value).__name__} has no canonical encoding")


def f32(value: float) -> str:
    """The bits of a float32, big-endian: `1.0` is `"f32:3f800000"`."""
    return "f32:" + struct.pack(">f", value).hex()


def f64(value: float) -> str:
    """The bits of a float64, big-endian: `1.0` is `"f64:3ff0000000000000"`."""
    return "f64:" + struct.pack(">d", value).hex()


def parse_float(text: str) -> float:
    """The value of an `f32` or `f64` string.

    Raises:
        ProtocolError: `not-canonical`, for any other spelling.
    """
    unpack = _UNPACK.get((text[:4], len(text)))
    if unpack is None or text[4:].strip("0123456789abcdef"):
        raise ProtocolError("not-canonical", f"{text[:40]!r} is not the bits of a float")
    return unpack(bytes.fromhex(text[4:]))[0]  # type: ignore[no-any-return]


def is_float(text: str) -> bool:
    """Whether a string has the prefix and length of float bits; its digits are the caller's to look at."""
    return (text[:4], len(text)) in _UNPACK


def float_of(bits: str) -> float:
    """`parse_float` for bits whose spelling was checked before (hot paths)."""
    return _UNPACK[bits[:4], len(bits)](bytes.fromhex(bits[4:]))[0]  # type: ignore[no-any-return]


def tagged_hash(domain: str, *parts: bytes) -> bytes:
    """SHA-256 over a domain and parts, each prefixed by its length, so that no two inputs share a preimage.

    The preimage is `len(domain) || domain || len(part) || part ...`, lengths as unsigned 64-bit big-endian integers;
    the domain is prefixed by `training-witness/v1/`. (C2SP's tuple hash is the pattern: plain concatenation is
    ambiguous.)
    """
    return hashlib.sha256(tagged_preimage(domain, *parts)).digest()


def tagged_preimage(domain: str, *parts: bytes) -> bytes:
    """What `tagged_hash` hashes: for those who hash many that differ in their last part alone."""
    tag = b"training-witness/v1/" + domain.encode("ascii")
    chunks = [len(tag).to_bytes(8, "big"), tag]
    for part in parts:
        chunks += (len(part).to_bytes(8, "big"), part)
    return b"".join(chunks)
