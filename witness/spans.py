"""Answers about a span: which of its grams the ledger lacks, or the document in which it stands.

The keeper is asked about grams only. One that is in no document settles it: the span is in none. Nor is it, if the
grams are never together in one document. Otherwise nothing is proven until a document is opened, which takes the data
and the span in one place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from protocol.answer import (
    MAX_GRAMS,
    MAX_PIECES,
    MAX_SHOWN_GRAMS,
    MAX_SPAN,
    Chosen,
    OpenedPiece,
    OpenedSpan,
    ShownGram,
    SpanReply,
)
from protocol.errors import UsageError, WitnessError
from protocol.leaves import PIECE
from protocol.ledger_claim import Occurrences
from protocol.winnowing import Gram, Winnowing, select
from witness.books import Books
from witness.data import Corpus

SEARCHED = 64
"""Candidate documents that are searched for a span."""
Ask = Callable[[bytes], tuple[str, Occurrences | None]]
"""The keeper: from a gram's digest to the ledger's proof, in hexadecimal, and the gram's occurrences."""


def grams_of(tier: str, span: bytes) -> list[Gram]:
    """The chosen grams of a span.

    Raises:
        UsageError: `span-length`, for a span too short for the tier to prove anything about it, or longer than an
            answer may be; `span-units`.
        ProtocolError: `not-canonical`, when the tier is not one of spans.
    """
    parameters = Winnowing.of_tier(tier)
    if len(span) < parameters.guarantee * parameters.width:
        raise UsageError(
            "span-length",
            f"{tier} proves nothing about spans shorter than T = {parameters.guarantee} units"
            f" ({parameters.guarantee * parameters.width} bytes): this one has {len(span)} bytes",
            evidence={"T": parameters.guarantee, "bytes": len(span)},
        )
    grams = select(span, parameters) if len(span) <= MAX_SPAN else []
    if not grams or len(grams) > MAX_GRAMS:
        raise UsageError("span-length", f"a span of {len(span)} bytes is too long for one question; cut it")
    return grams


def span_reply(tier: str, span: bytes, ask: Ask, *, at_most: int = MAX_GRAMS) -> tuple[SpanReply, list[int]]:
    """What a keeper's ledger says of a span, without opening anything; and the documents that may hold it.

    Args:
        tier: of spans.
        span: whole units.
        ask: the keeper.
        at_most: grams to ask about.

    Raises:
        UsageError: `span-length`, `span-units`.
    """
    grams = grams_of(tier, span)
    chosen = tuple(Chosen(gram.position, gram.digest.hex()) for gram in grams)

    def reply(result: str, shown: Sequence[ShownGram]) -> SpanReply:
        return SpanReply(
            tier,
            hashlib.sha256(span).hexdigest(),
            len(span),
            result,  # type: ignore[arg-type] # one of the three
            chosen,
            tuple(sorted(shown, key=lambda one: one.gram)),
            None,
        )

    narrowing, others = list[ShownGram](), list[ShownGram]()
    together: set[int] | None = None
    for number, gram in enumerate(grams[:at_most]):
        proof, occurrences = ask(gram.digest)
        if occurrences is None:
            return reply("absent", [ShownGram(number, proof, None)]), []
        shown = ShownGram(number, proof, occurrences.to_bytes().hex())
        before = together
        together = set(occurrences.documents) if before is None else before & set(occurrences.documents)
        if together != before and len(narrowing) < MAX_SHOWN_GRAMS:
            narrowing.append(shown)
            if not together:
                return reply("absent", narrowing), []
        elif len(others) < MAX_SHOWN_GRAMS:
            others.append(shown)
    return reply("possible", (narrowing + others)[:MAX_SHOWN_GRAMS]), sorted(together or ())


def opened(books: Books, reply: SpanReply, span: bytes, candidates: Sequence[int]) -> tuple[SpanReply, int | None]:
    """The same reply with the first candidate opened that holds the span; unchanged if none is found, or can be read.

    Returns:
        The reply, and the byte at which the span begins in the opened document.
    """
    width = Winnowing.of_tier(reply.tier).width
    if (len(span) - 1) // PIECE + 2 > MAX_PIECES:
        return reply, None
    try:
        corpus = books.corpus()
        for document in candidates[:SEARCHED]:
            start = _find(corpus, document, span, width)
            if start is not None:
                pieces = [
                    corpus.piece(document, piece)
                    for piece in range(start // PIECE, (start + len(span) - 1) // PIECE + 1)
                ]
                shown = tuple(OpenedPiece(data.hex(), tuple(part.hex() for part in proof)) for data, proof in pieces)
                where = OpenedSpan(books.listed(document), start, shown)
                return (
                    SpanReply(reply.tier, reply.digest, reply.length, "included", reply.grams, reply.shown, where),
                    start,
                )
    except WitnessError:  # the data has moved or changed: what the ledger says stands without it
        pass
    return reply, None


def _find(corpus: Corpus, document: int, span: bytes, width: int) -> int | None:
    """The first byte at which the span stands in a document, on a border of units."""
    kept, before = b"", 0
    for chunk in corpus.chunks(document):
        data = kept + chunk
        at = data.find(span)
        while at >= 0:
            if (before + at) % width == 0:
                return before + at
            at = data.find(span, at + 1)
        keep = min(len(data), len(span) - 1)
        before += len(data) - keep
        kept = data[len(data) - keep :]
    return None
