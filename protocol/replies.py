"""Checks one reply of an answer against the ledger and the corpus that a verified manifest commits to.

Specified in spec/answer.md, sections 4 and 5.
"""

import hashlib
from dataclasses import dataclass

from protocol import merkle
from protocol.answer import MAX_LISTED, MAX_SHOWN_GRAMS, Listed, OpenedSpan, Reply, SpanReply, path_of
from protocol.corpus import CorpusClaim, token_bytes
from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import PIECE, Document, Leaves, check_piece, piece_count
from protocol.ledger_claim import RAW, LedgerClaim, Occurrences
from protocol.ledger_proof import Proof
from protocol.winnowing import Winnowing


@dataclass(frozen=True, slots=True)
class Verified:
    """What a reply proves.

    Attributes:
        occurrences: of a digest that is in the ledger.
        leaves: of the documents listed.
        parts: for each of these, the part of it that was asked about, as a leaf: of a span, where it stands.
        candidates: documents that hold all the grams shown.
    """

    occurrences: Occurrences | None = None
    leaves: tuple[Document, ...] = ()
    parts: tuple[Document, ...] = ()
    candidates: tuple[int, ...] = ()


def check_reply(reply: Reply, claim: LedgerClaim, corpus: CorpusClaim) -> Verified:
    """Checks what a reply says of a digest.

    Raises:
        ProtocolError: malformed.
        VerificationError: `answer`, `ledger-absence`, `ledger-inclusion`, `inclusion-proof`.
    """
    proof, digest = Proof.from_bytes(bytes.fromhex(reply.proof)), bytes.fromhex(reply.digest)
    if (reply.result == "absent") != (reply.occurrences is None) or reply.result == "possible":
        raise ProtocolError("answer-malformed", f"a reply that says {reply.result} with the wrong parts")
    occurrences = _on(claim, digest, proof, reply.occurrences)
    documents = () if occurrences is None or claim.of_spans else occurrences.documents[:MAX_LISTED]
    if len(reply.documents) != len(documents):
        raise VerificationError("answer", f"{len(reply.documents)} documents are listed where {len(documents)} belong")
    leaves = tuple(_listed(*pair, corpus) for pair in zip(reply.documents, documents, strict=True))
    for leaf in leaves:
        if claim.tier == RAW and leaf.digest != digest:
            raise VerificationError(
                "answer",
                f"the ledger lists document {leaf.index} under a digest that is not its own",
                evidence={"document": leaf.index, "digest": leaf.digest.hex(), "listed": reply.digest},
            )
    return Verified(occurrences, leaves, leaves)


def check_span_reply(reply: SpanReply, claim: LedgerClaim, corpus: CorpusClaim) -> Verified:
    """Checks what a reply says of a span.

    Raises:
        ProtocolError: malformed.
        VerificationError: `answer`, `ledger-absence`, `ledger-inclusion`, `inclusion-proof`, `record-bytes`.
    """
    parameters = Winnowing.of_tier(claim.tier)
    units, rest = divmod(reply.length, parameters.width)
    positions = [gram.position for gram in reply.grams]
    if rest or positions != sorted(set(positions)) or positions[-1] > units - parameters.k:
        raise ProtocolError("answer-malformed", "the grams of a span are not in order, or not within it")
    if units < parameters.guarantee:
        raise ProtocolError("answer-malformed", f"nothing is proven of spans below {parameters.guarantee} units")
    numbers = [shown.gram for shown in reply.shown]
    if numbers != sorted(set(numbers)) or numbers[-1] >= len(reply.grams):
        raise ProtocolError("answer-malformed", "the grams shown are not grams of the span, in order")
    together: set[int] | None = None
    for shown in reply.shown:
        proof = Proof.from_bytes(bytes.fromhex(shown.proof))
        where = _on(claim, bytes.fromhex(reply.grams[shown.gram].digest), proof, shown.occurrences)
        documents = set() if where is None else set(where.documents)
        together = documents if together is None else together & documents
    candidates = tuple(sorted(together or ()))
    if (reply.result == "absent") != (not candidates) or (reply.result == "included") != (reply.opened is not None):
        raise VerificationError("answer", f"the reply says {reply.result}, and does not show it")
    if reply.result == "possible" and len(reply.shown) != min(len(reply.grams), MAX_SHOWN_GRAMS):
        raise VerificationError("answer", "a span is called possible, and not all the grams that fit are shown")
    if reply.opened is None:
        return Verified(candidates=candidates)
    leaf, part = _opened(reply, reply.opened, candidates, corpus, parameters)
    return Verified(leaves=(leaf,), parts=(part,), candidates=candidates)


def _on(claim: LedgerClaim, digest: bytes, proof: Proof, places: str | None) -> Occurrences | None:
    if places is None:
        claim.check_absence(digest, proof)
        return None
    return claim.check_inclusion(digest, Occurrences.from_bytes(bytes.fromhex(places)), proof)


def _listed(listed: Listed, index: int, corpus: CorpusClaim) -> Document:
    leaf = Leaves(bytes.fromhex(listed.leaf))[0]
    if leaf.index != index:
        raise VerificationError("answer", f"document {leaf.index} is shown where document {index} belongs")
    merkle.verify_inclusion(
        leaf.leaf_hash(), index, corpus.documents, path_of(listed.proof), bytes.fromhex(corpus.root)
    )
    return leaf


def _opened(
    reply: SpanReply, opened: OpenedSpan, candidates: tuple[int, ...], corpus: CorpusClaim, parameters: Winnowing
) -> tuple[Document, Document]:
    """The document that holds the span, and the part of it that the span is."""
    index = Leaves(bytes.fromhex(opened.document.leaf))[0].index
    if index not in candidates:
        raise VerificationError("answer", f"document {index} is opened, which does not hold the grams of the span")
    leaf = _listed(opened.document, index, corpus)
    start, stop = opened.start, opened.start + reply.length
    first, last = start // PIECE, (stop - 1) // PIECE
    if stop > leaf.length or start % parameters.width or len(opened.pieces) != last - first + 1:
        raise ProtocolError("answer-malformed", f"bytes {start} to {stop} are not opened in document {index}")
    data = b""
    for number, piece in enumerate(opened.pieces, first):
        opened_bytes = bytes.fromhex(piece.data)
        if number >= piece_count(leaf):
            raise ProtocolError("answer-malformed", f"document {index} has no piece {number}")
        check_piece(leaf, number, opened_bytes, path_of(piece.proof))
        data += opened_bytes
    found = data[start - first * PIECE : stop - first * PIECE]
    if hashlib.sha256(found).hexdigest() != reply.digest:
        raise VerificationError("answer", f"the bytes opened in document {index} are not the span")
    size = parameters.k * parameters.width
    for gram in reply.grams:
        at = gram.position * parameters.width
        if hashlib.sha256(found[at : at + size]).hexdigest() != gram.digest:
            raise VerificationError("answer", "a gram of the reply is not one of the span")
    return leaf, part_of(leaf, start, reply.length, token_bytes(corpus.tokenizer))


def part_of(leaf: Document, start: int, length: int, width: int) -> Document:
    """A leaf whose tokens are only those of a part of the document: what `protocol.uses.holding` asks for.

    Args:
        leaf: of the document.
        start: first byte of the part.
        length: of the part, in bytes.
        width: of a token, in bytes.
    """
    begin, end = start // width, -(-(start + length) // width)
    return leaf._replace(token_start=leaf.token_start + begin, token_length=end - begin)
