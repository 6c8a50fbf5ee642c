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

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.bulk_hash import Bytes, hash_rows
from protocol.encoding import Struct
from protocol.errors import ProtocolError, UsageError
from protocol.ledger_claim import document_key

Unit = Literal["bytes", "u16", "u32"]
Numbers = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

MAX_UNITS: Final = 4096
"""Largest `k` and `w`."""
_WIDTH: Final[dict[Unit, int]] = {"bytes": 1, "u16": 2, "u32": 4}
_BLOCK: Final = 1 << 13
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
    """The chosen grams of a document or span, in order, each place once.

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
    for found in select_many([(0, chunks)], parameters):
        yield from map(Gram, found.positions.tolist(), (digest.tobytes() for digest in found.digests))


class Selection(NamedTuple):
    """Chosen grams of some documents, in order: for each its document, the place of its first unit, its SHA-256."""

    documents: Places
    positions: Places
    digests: Bytes


def select_many(documents: Iterable[tuple[int, Iterable[bytes]]], parameters: Winnowing) -> Iterator[Selection]:
    """The chosen grams of many documents, each by itself: about 50 ns a byte with k=32, w=19, however short they are.

    Args:
        documents: number and chunks of each, read one after another; equal numbers do not follow each other.
        parameters: how to choose.

    Raises:
        UsageError: `span-units`.
    """
    width, overlap = parameters.width, (parameters.guarantee - 1) * parameters.width
    step = max(_BLOCK * width, 4 * overlap)
    joined, parts = bytearray(), list[_Part]()
    last = -1, -1  # chosen: document and place
    for number, chunks in documents:
        parts.append(_Part(number, len(joined) // width, 0))
        for chunk in chunks:
            for at in range(0, len(chunk), step):
                joined += chunk[at : at + step]
                if len(joined) < step + overlap:
                    continue
                whole = len(joined) // width
                found = _selection(bytes(joined[: whole * width]), parts, last, parameters)
                if found is not None:
                    yield found
                    last = int(found.documents[-1]), int(found.positions[-1])
                current = parts[-1]
                kept = min(whole - current.start, overlap // width)
                parts = [_Part(number, 0, current.base + whole - current.start - kept)]
                del joined[: (whole - kept) * width]
        if len(joined) % width:
            raise UsageError("span-units", f"{len(joined) % width} bytes are left over after units of {width} bytes")
    found = _selection(bytes(joined), parts, last, parameters)
    if found is not None:
        yield found


class _Part(NamedTuple):
    """Where units of a document stand among joined ones, and how many of the document are not there any more."""

    number: int
    start: int
    base: int


def _selection(joined: bytes, parts: Sequence[_Part], last: tuple[int, int], parameters: Winnowing) -> Selection | None:
    """The grams that the windows within each part choose, but for those up to the last one that is known."""
    width = parameters.width
    units = np.frombuffer(joined, dtype=f"<u{width}")
    if len(units) < parameters.guarantee:
        return None
    hashes = _BYTE_HASHES[units] if parameters.unit == "bytes" else _unit_hashes(units.astype(np.uint64))
    order = _mixed(_polynomials(hashes, parameters.k))
    # Behind the order stands the place, counted down: the lowest is the rightmost among equals, and says where it is.
    ranks = order & ~_PLACES | (_PLACES - np.arange(len(order), dtype=np.uint64))
    chosen = (_PLACES - (_lowest(ranks, parameters.w) & _PLACES)).astype(np.int64)
    starts = np.array([part.start for part in parts])
    if len(parts) > 1:
        owners = np.repeat(np.arange(len(parts)), np.diff(starts, append=len(units)))
        chosen = chosen[owners[: len(chosen)] == owners[parameters.guarantee - 1 :]]  # windows within one document
    else:
        owners = np.zeros(len(units), dtype=np.int64)
    chosen = chosen[np.flatnonzero(np.diff(chosen, prepend=-1))]
    owner = owners[chosen]
    positions = chosen - starts[owner] + np.array([part.base for part in parts])[owner]
    numbers = np.array([part.number for part in parts])[owner]
    # The last window of one stretch and the first of the next may choose the same.
    fresh = (numbers != last[0]) | (positions > last[1])
    if not fresh.any():
        return None
    grams = np.lib.stride_tricks.sliding_window_view(np.frombuffer(joined, dtype=np.uint8), parameters.k * width)
    digests = hash_rows(b"", grams[chosen[fresh] * width])
    return Selection(numbers[fresh], positions[fresh], digests)


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
