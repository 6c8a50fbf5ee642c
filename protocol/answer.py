"""The answer to a question about the data: a file that proves itself to whoever has it and a signed head.

Was this document used in training, at which steps, how often - or is it in no ledger at all? An answer carries what an
asker cannot know, each part with its proof: the manifest (entry 0 of the log), the log's last entries (which say how
many steps there are), for each question the ledger's proof, the corpus leaves of the documents found, and the records
of steps that read them. What follows from these is not carried: which samples hold a document and which steps drew
them is derived again by `protocol.answering`.

One file answers one question or fifty thousand: what they share is carried once.

Specified in spec/answer.md, section 2.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from protocol import PROTOCOL_VERSION
from protocol.encoding import MAX_LEVELS, Count, Hex32, Struct, decode, encode, encode_trusted
from protocol.errors import ProtocolError
from protocol.leaves import LEAF_BYTES, PIECE
from protocol.ledger_claim import MAX_OCCURRENCES, Tier
from protocol.ledger_proof import HASH_BYTES, MAX_PROOF
from protocol.manifest import MAX_MANIFEST, Manifest
from protocol.records import AfterManifest

MAX_ANSWER: Final = 1 << 28
"""Bytes of an answer; one about one document takes some kilobytes beyond its manifest."""
MAX_LISTED: Final = 1000
"""Documents that an answer lists for one question; the rest are counted."""
MAX_SHOWN: Final = 64
"""Steps whose records an answer carries for one document; the weight of the others is not shown."""
MAX_RECORDS: Final = 1 << 14
MAX_REPLIES: Final = 1 << 20
MAX_GRAMS: Final = 1 << 16
"""Chosen grams of a span."""
MAX_SHOWN_GRAMS: Final = 64
"""Grams of one span that are shown to be in the ledger, when all are."""
MAX_SPAN: Final = 1 << 19
"""Bytes of the longest span that can be asked about; cut a longer one, or ask about the whole document."""
MAX_PIECES: Final = 64
"""Pieces of a document (4 KiB each) that are opened to show a span."""
MAX_TAIL: Final = 64
MAX_EVIDENCE: Final = 16
"""Certificates and audits that come with an answer."""

_HEX: Final = r"\A(?:[0-9a-f]{64})*+(?:[0-9a-f]{2})*+\Z"
"""Whole bytes in hexadecimal: long runs first, and nothing taken is given back, so that it is quick also to refuse."""
Node = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
"""A `Hex32` whose digits `path_of` looks at: one by one they would take a fifth of the time of a whole check."""
Path = Annotated[tuple[Node, ...], msgspec.Meta(max_length=64)]
"""An RFC 9162 inclusion proof, leaf to root."""
LedgerProof = Annotated[str, msgspec.Meta(pattern=_HEX, min_length=2, max_length=2 * MAX_PROOF)]
"""`protocol.ledger_proof.Proof.to_bytes`, in hexadecimal."""
Places = Annotated[str, msgspec.Meta(pattern=_HEX, min_length=2, max_length=2 * MAX_OCCURRENCES)]
"""`protocol.ledger_claim.Occurrences.to_bytes`, in hexadecimal."""
Result = Literal["included", "possible", "absent"]


class Logged(Struct, frozen=True):
    """An entry of the log, with the proof that the head covers it."""

    index: Count
    entry: AfterManifest
    proof: Path


class Listed(Struct, frozen=True):
    """A document of the corpus: its leaf (96 bytes, hexadecimal), with the proof that the corpus holds it."""

    leaf: Annotated[str, msgspec.Meta(pattern=rf"\A[0-9a-f]{{{2 * LEAF_BYTES}}}\Z")]
    proof: Path


class Reply(Struct, frozen=True, tag="digest", tag_field="question"):
    """What one ledger says of one digest.

    Attributes:
        tier: of the ledger.
        digest: that was asked about: SHA-256 of what the tier compares.
        result: `included` or `absent`.
        proof: from the ledger.
        occurrences: where it is; null when it is absent.
        documents: the first of them, at most `MAX_LISTED`; none in a tier of spans, where a digest is that of a gram.
    """

    tier: Tier
    digest: Hex32
    result: Result
    proof: LedgerProof
    occurrences: Places | None
    documents: Annotated[tuple[Listed, ...], msgspec.Meta(max_length=MAX_LISTED)]


class Chosen(Struct, frozen=True):
    """A gram that winnowing chooses from a span: its first unit, and the SHA-256 of its units."""

    position: Count
    digest: Hex32


class ShownGram(Struct, frozen=True):
    """What the ledger says of a gram.

    Attributes:
        gram: which of the span's.
        proof: from the ledger.
        occurrences: where it is; null when it is absent.
    """

    gram: Count
    proof: LedgerProof
    occurrences: Places | None


class OpenedPiece(Struct, frozen=True):
    """A piece of a document: its bytes in hexadecimal, with their proof under the leaf."""

    data: Annotated[str, msgspec.Meta(pattern=_HEX, max_length=2 * PIECE)]
    proof: Path


class OpenedSpan(Struct, frozen=True):
    """A document opened where the span stands in it.

    Attributes:
        document: the document.
        start: byte of the document with which the span begins.
        pieces: every piece that holds a byte of the span, in order.
    """

    document: Listed
    start: Count
    pieces: Annotated[tuple[OpenedPiece, ...], msgspec.Meta(min_length=1, max_length=MAX_PIECES)]


class SpanReply(Struct, frozen=True, tag="span", tag_field="question"):
    """What a ledger of grams says of a span.

    Attributes:
        tier: of the ledger.
        digest: SHA-256 of the span.
        length: of the span, in bytes.
        result: `absent`: one gram is shown not to be there, or the grams shown are in no document together; `included`:
            a document is opened where the span stands; `possible`: neither.
        grams: all chosen ones of the span, in order.
        shown: one absent gram, or at most `MAX_SHOWN_GRAMS` present ones; in order.
        opened: where the span stands.
    """

    tier: Tier
    digest: Hex32
    length: Annotated[int, msgspec.Meta(ge=1, le=MAX_SPAN)]
    result: Result
    grams: Annotated[tuple[Chosen, ...], msgspec.Meta(min_length=1, max_length=MAX_GRAMS)]
    shown: Annotated[tuple[ShownGram, ...], msgspec.Meta(min_length=1, max_length=MAX_SHOWN_GRAMS)]
    opened: OpenedSpan | None


class Answer(Struct, frozen=True):
    """Answers about one run under one head.

    Attributes:
        head: the run's signed head, a C2SP note.
        manifest: entry 0 of its log.
        manifest_proof: that the head covers it.
        tail: the last entries of the log: faults, and before them the entry that says how many steps are recorded;
            empty when the log holds nothing but the manifest.
        replies: to the questions, in their order.
        records: of steps that read documents found, by index.
        evidence: for the ledgers' completeness: certificates and audits, DSSE envelopes each.
        version: of this protocol.
    """

    head: Annotated[str, msgspec.Meta(max_length=1 << 16)]
    manifest: Manifest
    manifest_proof: Path
    tail: Annotated[tuple[Logged, ...], msgspec.Meta(max_length=MAX_TAIL)]
    replies: Annotated[tuple[Reply | SpanReply, ...], msgspec.Meta(min_length=1, max_length=MAX_REPLIES)]
    records: Annotated[tuple[Logged, ...], msgspec.Meta(max_length=MAX_RECORDS)]
    evidence: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_EVIDENCE)] = ()
    version: str = PROTOCOL_VERSION

    def to_bytes(self) -> bytes:
        """The proof file."""
        encode(self.manifest)  # refuses what only plain data can hold
        return encode_trusted(self)


def path_of(path: Path) -> list[bytes]:
    """The hashes of a proof.

    Raises:
        ProtocolError: `not-canonical`, for anything but lower-case hexadecimal digits.
    """
    digits = "".join(path)
    try:
        hashes = bytes.fromhex(digits)
    except ValueError:
        hashes = b""
    if hashes.hex() != digits:
        raise ProtocolError("not-canonical", "a proof holds a hash in another spelling")
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def parse_answer(data: bytes) -> Answer:
    """Parses a proof file; nothing in it is verified.

    Raises:
        ProtocolError: `too-large`, `not-canonical`, `answer-malformed`.
    """
    answer = decode(data, Answer, limit=MAX_ANSWER, closed=True)  # but for the manifest, which holds plain data
    decode(encode_trusted(answer.manifest), Manifest, limit=MAX_MANIFEST, levels=MAX_LEVELS - 1)
    if answer.version != PROTOCOL_VERSION:
        raise ProtocolError("answer-malformed", f"version {answer.version[:40]!r} is not {PROTOCOL_VERSION}")
    return answer


def merge(answers: Sequence[Answer]) -> Answer:
    """One file for several answers about one run under one head; a question answered twice stays twice.

    Raises:
        ProtocolError: `answer-malformed`, when they are not about the same run and head.
    """
    first = answers[0]
    if any(one.head != first.head or one.manifest != first.manifest for one in answers):
        raise ProtocolError("answer-malformed", "answers about different runs or heads do not fit into one file")
    records = {logged.index: logged for one in answers for logged in one.records}
    return msgspec.structs.replace(
        first,
        replies=tuple(reply for one in answers for reply in one.replies),
        records=tuple(records[index] for index in sorted(records)[:MAX_RECORDS]),
        evidence=tuple(dict.fromkeys(text for one in answers for text in one.evidence)),
    )
