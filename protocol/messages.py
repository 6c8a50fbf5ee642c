"""Wire messages of a session: one frame asks, one frame answers.

A frame is the length of a header (u32, big-endian), the header as canonical JSON with its `type`, and a payload of raw
bytes whose meaning the header gives. Requests carry no payload. Caps hold before anything is parsed, and a reply that
answers another request is refused, so a peer that sends a gigabyte, garbage or somebody else's answer costs one bounded
read.

Specified in spec/session.md, sections 2 to 4.
"""

from typing import Annotated, TypeVar

import msgspec

from protocol import PROTOCOL_VERSION
from protocol.encoding import Count, Hex32, Struct, decode, encode
from protocol.errors import ProtocolError

MAX_REQUEST = 1 << 16
MAX_HEADER = 1 << 22
MAX_REPLY = 1 << 24
HEADER_ROOM = 1 << 10
"""Bytes of a header that lists things, besides the list."""
PART = 1 << 23
"""Most payload bytes a prover puts into one reply."""
MAX_ANSWER_SECONDS, MAX_SESSION_SECONDS = 1 << 20, 1 << 25
"""Twelve days, and a year."""
SessionId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Note = Annotated[str, msgspec.Meta(max_length=1 << 16)]
S = TypeVar("S", bound="Struct")


class Policy(Struct, frozen=True):
    """What the verifier will demand, fixed before it sees a head; with the run's length it gives the number of draws.

    Attributes:
        confidence: exact decimal or ratio: probability with which a bad run must be rejected.
        bad_fraction: exact decimal or ratio: least part of the steps that makes a run bad.
        draws: uniform draws; 0 lets confidence and bad_fraction decide.
        outliers: how many largest updates and loss rises are challenged besides.
        answer_seconds: time the prover has for each answer; after it, unanswered is diverged.
        session_seconds: time it has for all of them together. Whoever answers a byte at a time is asked no longer than
            this; it is known to both from the beginning, like the time for one answer, so that it accuses rightly.
    """

    confidence: Annotated[str, msgspec.Meta(max_length=64)]
    bad_fraction: Annotated[str, msgspec.Meta(max_length=64)]
    draws: Count = 0
    outliers: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 2
    answer_seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_ANSWER_SECONDS)] = 600
    session_seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_SESSION_SECONDS)] = 604_800


class Hello(Struct, frozen=True, tag="hello", tag_field="type"):
    """1. The verifier opens: its policy, and a commitment to its nonce."""

    policy: Policy
    commitment: Hex32
    version: str = PROTOCOL_VERSION


class GetHeads(Struct, frozen=True, tag="get-heads", tag_field="type"):
    """All signed heads of the run, oldest first, from number `first` on."""

    session: SessionId
    first: Count


class GetLog(Struct, frozen=True, tag="get-log", tag_field="type"):
    """Log entries from `first` on, below the session's head."""

    session: SessionId
    first: Count


class GetLeaves(Struct, frozen=True, tag="get-leaves", tag_field="type"):
    """Corpus leaves from document `first` on."""

    session: SessionId
    first: Count


class GetPlaces(Struct, frozen=True, tag="get-places", tag_field="type"):
    """The list behind the ledger of a tier, from place `first` on."""

    session: SessionId
    tier: Annotated[str, msgspec.Meta(max_length=64)]
    first: Count


class GetSource(Struct, frozen=True, tag="get-source", tag_field="type"):
    """One source file of the program."""

    session: SessionId
    path: Annotated[str, msgspec.Meta(max_length=255)]


class Reveal(Struct, frozen=True, tag="reveal", tag_field="type"):
    """3. The verifier shows its nonce and its number of draws; from here on both sides know every challenge.

    The number is said now, not while answers come in: a verifier that stopped at some later time would let the prover,
    which knows the draws, answer slowly until just before the first bad one.
    """

    session: SessionId
    nonce: Hex32
    draws: Count


class OpenState(Struct, frozen=True, tag="open-state", tag_field="type"):
    """The table of the state after `step`, from byte `first` on."""

    session: SessionId
    step: Count
    first: Count


class ReadPieces(Struct, frozen=True, tag="read-pieces", tag_field="type"):
    """Bytes of the state after `step`, from piece `first` on."""

    session: SessionId
    step: Count
    first: Count


class OpenRecords(Struct, frozen=True, tag="open-records", tag_field="type"):
    """The corpus pieces that `step` needs (its batch and its probe), from number `first` of the sorted list on."""

    session: SessionId
    step: Count
    first: Count


class Close(Struct, frozen=True, tag="close", tag_field="type"):
    """The verifier is done."""

    session: SessionId


Request = (
    Hello
    | GetHeads
    | GetLog
    | GetLeaves
    | GetPlaces
    | GetSource
    | Reveal
    | OpenState
    | ReadPieces
    | OpenRecords
    | Close
)


class Welcome(Struct, frozen=True, tag="welcome", tag_field="type"):
    """2. The prover binds itself: session, the verifier's commitment and policy, and a head, in one signed statement.

    `statement` is null when the verifier holds the run directory itself: then the head was in its hands before the
    nonce was drawn.
    """

    session: SessionId
    head: Note
    statement: Note | None


class Part(Struct, frozen=True, tag="part", tag_field="type"):
    """A part of a byte string: `total` is its whole length, or the number of items."""

    first: Count
    total: Count


class Heads(Struct, frozen=True, tag="heads", tag_field="type"):
    """Signed heads."""

    first: Count
    total: Count
    notes: tuple[Note, ...]


class Records(Struct, frozen=True, tag="records", tag_field="type"):
    """Opened corpus pieces: for each its length in the payload and its proof in the document's piece tree."""

    first: Count
    total: Count
    lengths: tuple[Count, ...]
    proofs: tuple[tuple[Hex32, ...], ...]


class Done(Struct, frozen=True, tag="done", tag_field="type"):
    """Accepted; nothing to send."""


class Pending(Struct, frozen=True, tag="pending", tag_field="type"):
    """The state is being rebuilt: ask again."""

    done: Count
    total: Count


class Refusal(Struct, frozen=True, tag="refusal", tag_field="type"):
    """The prover does not answer, and says why."""

    code: Annotated[str, msgspec.Meta(max_length=64)]
    message: Annotated[str, msgspec.Meta(max_length=512)]


Reply = Welcome | Part | Heads | Records | Done | Pending | Refusal


def pack(header: Struct, payload: bytes = b"") -> bytes:
    """One frame."""
    head = encode(header)
    return len(head).to_bytes(4, "big") + head + payload


def unpack_request(data: bytes) -> Request:
    """The request in a frame.

    Raises:
        ProtocolError: `too-large`, `frame`, `not-canonical`.
    """
    if len(data) > MAX_REQUEST:
        raise ProtocolError("too-large", f"a request of {len(data)} bytes; at most {MAX_REQUEST} are read")
    header, payload = _split(data)
    if payload:
        raise ProtocolError("frame", "a request carries no payload")
    return decode(header, Request, limit=MAX_REQUEST)  # type: ignore[arg-type]


def unpack_reply(data: bytes, kind: type[S]) -> tuple[S | Pending | Refusal, bytes]:
    """The reply in a frame, which must be a `kind`, `Pending` or `Refusal`.

    Raises:
        ProtocolError: `too-large`, `frame`, `not-canonical`.
    """
    if len(data) > MAX_REPLY + MAX_HEADER:
        raise ProtocolError("too-large", f"a reply of {len(data)} bytes; at most {MAX_REPLY + MAX_HEADER} are read")
    header, payload = _split(data)
    reply: Reply = decode(header, Reply, limit=MAX_HEADER)  # type: ignore[arg-type]
    if not isinstance(reply, kind | Pending | Refusal):
        raise ProtocolError("frame", f"a {type(reply).__name__} answers where a {kind.__name__} is due")
    return reply, payload


def _split(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "big")
    if len(data) < 4 + length or length > MAX_HEADER:
        raise ProtocolError("frame", "the frame is cut short")
    return data[4 : 4 + length], data[4 + length :]


def join_entries(entries: list[bytes]) -> bytes:
    """Log entries as a payload: each prefixed by its length (u32, big-endian)."""
    return b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)


def split_entries(payload: bytes) -> list[bytes]:
    """The inverse of `join_entries`.

    Raises:
        ProtocolError: `frame`.
    """
    entries, at = [], 0
    while at < len(payload):
        stop = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        if stop > len(payload) or at + 4 > len(payload):
            raise ProtocolError("frame", "a list of entries is cut short")
        entries.append(payload[at + 4 : stop])
        at = stop
    return entries
