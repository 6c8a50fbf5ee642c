"""Strict Ed25519: which public keys may be named in a policy, and what a signature under them must satisfy.

RFC 8032 leaves corners in which a "valid" signature says nothing: under a public key of low order one signature fits
every message (OpenSSL accepts it), and a non-canonical encoding is a second spelling of a key that others refuse. Keys
enter here once, as bytes, and are refused by arithmetic on the curve rather than by a list of known bad ones.

What is left is verified without the cofactor, with canonical R and S < L (RFC 8032 5.1.7 and 8.4), which is what
OpenSSL does. A key that has a low-order component beside its prime-order part is accepted: only its owner can make one,
and the verdict on its signatures is the same for every verifier that follows these rules.

Specified in spec/keys.md, sections 3 and 4.
"""

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import ProtocolError, UsageError, VerificationError

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


def refuse_weak(public: bytes) -> None:
    """Refuses a public key that is not the canonical encoding of a point of large order (RFC 8032 5.1.3).

    The curve is `-x^2 + y^2 = 1 + d x^2 y^2`, so `x^2 = u/v` with `u = y^2 - 1` and `v = d y^2 + 1` (never zero).

    Raises:
        ProtocolError: `key-malformed` if it is not 32 bytes or names no point; `weak-key` if the encoding is not
            canonical or the point's order divides 8.
    """
    if len(public) != KEY_BYTES:
        raise ProtocolError("key-malformed", f"an Ed25519 public key is {KEY_BYTES} bytes, not {len(public)}")
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _P:
        raise ProtocolError("weak-key", f"the public key {public.hex()} is not canonical: y is not below 2^255 - 19")
    yy = y * y % _P
    u, v = (yy - 1) % _P, (_D * yy + 1) % _P
    # u/v is a square exactly where u*v is, by Euler's criterion.
    if u and pow(u * v, (_P - 1) // 2, _P) != 1:
        raise ProtocolError("key-malformed", f"the public key {public.hex()} is not a point of the curve")
    # Orders 1 and 2: x = 0. Order 4: y = 0. Order 8: doubling gives y = 0, and y(2P) is a multiple of x^2 + y^2.
    # The other non-canonical spelling, x = -0, is of the points with x = 0, so it goes the same way.
    if u * y * (u + v * yy) % _P == 0:
        raise ProtocolError("weak-key", f"the public key {public.hex()} has low order: any message verifies under it")


def verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Verifies one signature under a key that `refuse_weak` let pass.

    Raises:
        VerificationError: `bad-signature`.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        raise VerificationError("bad-signature", f"not a signature of {public.hex()} over these bytes") from None


def private_key(seed: bytes) -> Ed25519PrivateKey:
    """The private key of a 32-byte seed (RFC 8032 5.1.5).

    Raises:
        UsageError: `signing-key`, if the seed is not 32 bytes.
    """
    if len(seed) != KEY_BYTES:
        raise UsageError("signing-key", f"an Ed25519 seed is {KEY_BYTES} bytes, not {len(seed)}")
    return Ed25519PrivateKey.from_private_bytes(seed)
