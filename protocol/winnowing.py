"""Winnowing: which spans of a document go into a ledger, so that an absent span can be proven absent (tier T2).

A gram is `k` consecutive units, and a window is `w` consecutive grams. From every window the gram of lowest order is
chosen, the rightmost among equals (Schleimer, Wilkerson, Aiken, SIGMOD 2003). What a window chooses depends on its
own units only. So a document that holds a span of at least `w + k - 1` units word for word, one window, has all the
grams in its ledger that the span alone would choose; and if one of them is absent, the span is in no document. Present
grams prove nothing: open the documents and look.

A document or span of fewer than `w + k - 1` units has no whole window and chooses nothing: nothing is proven about it
here. It is defined for a document by itself, before packing; and a token span is found only where the text around it
was cut into the same tokens, so questions about text belong to an index of bytes.

What is committed of a gram is its SHA-256. The order only decides which grams are chosen, and the guarantee holds for
every order, so it is a cheap one: who bends it makes an index larger, and hides nothing. With all arithmetic modulo
2^64, `mix` the finaliser of SplitMix64, and units u[0], ..., u[k-1] as integers:

    hash(u) = mix((u + 1) * 0x9E3779B97F4A7C15)
    order   = mix(sum of hash(u[i]) * 0xD1342543DE82EF95^(k-1-i)) >> 24

Specified in spec/tiers.md, section 4.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.encoding import Struct
from protocol.errors import ProtocolError, UsageError
from protocol.ledger_claim import document_key

Unit = Literal["bytes", "u16", "u32"]
Numbers = npt.NDArray[np.uint64]

MAX_UNITS: Final = 4096
"""Largest `k` and `w`."""
_WIDTH: Final[dict[Unit, int]] = {"bytes": 1, "u16": 2, "u32": 4}
_BLOCK: Final = 1 << 16
"""Grams that are ordered at a time: their arrays stay in the processor's cache."""
_PLACE_BITS: Final = 24
_PLACES: Final = np.uint64((1 << _PLACE_BITS) - 1)
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_BASE: Final = 0xD1342543DE82EF95
_TIER = re.compile(r"t2-winnow-(bytes|u16|u32)-k([1-9][0-9]{0,3})-w([1-9][0-9]{0,3})")


class Winnowing(Struct, frozen=True):
    """How grams are chosen.

    Attributes:
        k: units of a gram, 1 to 4096.
        w: grams of a window, 1 to 4096; 1 chooses every gram.
        unit: `bytes`, or tokens as little-endian integers of 16 or 32 bits.
    """

    k: int = 32
    w: int = 19
    unit: Unit = "bytes"

    def __post_init__(self) -> None:
        """Refuses sizes outside the format."""
        if not (1 <= self.k <= MAX_UNITS and 1 <= self.w <= MAX_UNITS) or self.unit not in _WIDTH:
            raise ProtocolError("not-canonical", f"no winnowing of {self.unit} by k={self.k}, w={self.w}")

    @property
    def tier(self) -> str:
        """The ledger tier that these grams go into."""
        return f"t2-winnow-{self.unit}-k{self.k}-w{self.w}"

    @classmethod
    def of_tier(cls, tier: str) -> "Winnowing":
        """The parameters that a tier's name says.

        Raises:
            ProtocolError: `not-canonical`, if it is not the name of a tier of spans.
        """
        match = _TIER.fullmatch(tier)
        if match is None:
            raise ProtocolError("not-canonical", f"{tier[:80]!r} is not a tier of spans")
        return cls(int(match[2]), int(match[3]), match[1])  # type: ignore[arg-type] # one of the three by the pattern

    @property
    def guarantee(self) -> int:
        """Units from which on a span cannot hide: at least one whole window."""
        return self.w + self.k - 1

    @property
    def width(self) -> int:
        """Bytes of a unit."""
        return _WIDTH[self.unit]


class Gram(NamedTuple):
    """A chosen gram: the place of its first unit, and SHA-256 over the `k * width` bytes of its units."""

    position: int
    digest: bytes


def guarantee(k: int, w: int) -> int:
    """Units from which on a verbatim span has a chosen gram inside: `w + k - 1`."""
    return Winnowing(k, w).guarantee


def span_key(parameters: Winnowing, gram: bytes) -> bytes:
    """The ledger key of a gram by its digest."""
    return document_key(parameters.tier, gram)


def select(data: bytes, parameters: Winnowing) -> list[Gram]:
    """The chosen grams of a document or span, in order, each place once: about 150 ns a byte with k=32, w=19.

    Args:
        data: all of it: units without a gap, little-endian.
        parameters: how to choose.

    Raises:
        UsageError: `span-units`, if the data is not a whole number of units.
    """
    return list(select_stream((data,), parameters))


def select_stream(chunks: Iterable[bytes], parameters: Winnowing) -> Iterator[Gram]:
    """`select` for a document that arrives in chunks, cut anywhere: memory does not grow with its length.

    Raises:
        UsageError: `span-units`.
    """
    last = -1
    for base, stretch in _stretches(chunks, parameters):
        for place in _places(stretch, parameters).tolist():
            if base + place > last:  # the last window of one stretch and the first of the next may choose the same
                last = base + place
                start = place * parameters.width
                yield Gram(last, hashlib.sha256(stretch[start : start + parameters.k * parameters.width]).digest())


def _stretches(chunks: Iterable[bytes], parameters: Winnowing) -> Iterator[tuple[int, bytes]]:
    """Stretches of whole units, each with the number of units before it; every window lies in exactly one."""
    width = parameters.width
    step, overlap = _BLOCK * width, (parameters.guarantee - 1) * width
    pending, base = bytearray(), 0
    for chunk in chunks:
        for at in range(0, len(chunk), step):
            pending += chunk[at : at + step]
            if len(pending) >= step + overlap:
                whole = len(pending) - len(pending) % width
                yield base, bytes(pending[:whole])
                del pending[: whole - overlap]
                base += (whole - overlap) // width
    if len(pending) % width:
        raise UsageError("span-units", f"{len(pending) % width} bytes are left over after units of {width} bytes")
    yield base, bytes(pending)


def _places(stretch: bytes, parameters: Winnowing) -> npt.NDArray[np.int64]:
    """The first units of the grams that the windows of a stretch choose, ascending, each once."""
    units = np.frombuffer(stretch, dtype=f"<u{parameters.width}")
    if len(units) < parameters.guarantee:
        return np.empty(0, dtype=np.int64)
    hashes = _BYTE_HASHES[units] if parameters.unit == "bytes" else _unit_hashes(units.astype(np.uint64))
    order = _mixed(_polynomials(hashes, parameters.k))
    # Behind the order stands the place, counted down: the lowest is the rightmost among equals, and says where it is.
    ranks = order & ~_PLACES | (_PLACES - np.arange(len(order), dtype=np.uint64))
    chosen = (_PLACES - (_lowest(ranks, parameters.w) & _PLACES)).astype(np.int64)
    return chosen[np.flatnonzero(np.diff(chosen, prepend=-1))]


def _mixed(values: Numbers) -> Numbers:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a permutation of the 64-bit integers."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _unit_hashes(units: Numbers) -> Numbers:
    return _mixed((units + np.uint64(1)) * _STEP)


_BYTE_HASHES: Final = _unit_hashes(np.arange(256, dtype=np.uint64))


def _polynomials(hashes: Numbers, k: int) -> Numbers:
    """The polynomial of every `k` consecutive hashes, modulo 2^64, put together from runs of 1, 2, 4, ... of them."""
    run, length = hashes, 1
    while not k & length:
        run, length = _joined(run, run, length, length), 2 * length
    total, done = run, length
    while done < k:
        run, length = _joined(run, run, length, length), 2 * length
        if k & length:
            total, done = _joined(total, run, done, length), done + length
    return total


def _joined(left: Numbers, right: Numbers, left_length: int, right_length: int) -> Numbers:
    """Polynomials of neighbouring runs: those of `left`, each continued by the run of `right` that follows it."""
    size = min(len(left), len(right) - left_length)
    return left[:size] * np.uint64(pow(_BASE, right_length, 1 << 64)) + right[left_length : left_length + size]


def _lowest(ranks: Numbers, w: int) -> Numbers:
    """The lowest of every `w` consecutive ranks, by doubling."""
    length = 1
    while 2 * length <= w:
        ranks = np.minimum(ranks[:-length], ranks[length:])
        length *= 2
    return np.minimum(ranks[: len(ranks) - (w - length)], ranks[w - length :])
