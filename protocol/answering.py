"""Checks an answer with nothing but the answer and a signed head: no run, no network, no trust in who wrote it.

The order: the head's signature; the manifest under the head, which fixes corpus, ledgers, schedule and key; the log's
last entries, which say how many steps there are; then each reply. What is reported is what was computed here.

That the log is in order (steps without a gap, records as scheduled) is not checked: a session (`witness verify`) or
`witness fsck` does that for a whole log. An answer speaks of the log that its head signs.

Specified in spec/answer.md, section 3.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from protocol import merkle
from protocol.answer import Answer, Logged, Path, Reply, Result, SpanReply, parse_answer, path_of
from protocol.completeness import Completeness, Completions
from protocol.encoding import encode
from protocol.errors import ProtocolError, VerificationError
from protocol.keys import PublicKey, parse_vkey
from protocol.leaves import Document
from protocol.ledger_claim import Occurrences
from protocol.manifest import Manifest, validate
from protocol.notes import Checkpoint, open_head
from protocol.records import AfterManifest, FaultEvent, FinalEvent, InitRecord, StepRecord, parse_entry
from protocol.replies import Verified, check_reply, check_span_reply
from protocol.usage import Orders, Weight, usage, weigh
from protocol.uses import Use
from protocol.winnowing import Winnowing, select


@dataclass(frozen=True, slots=True)
class Found:
    """A document that was found, and what the run did with it.

    Attributes:
        leaf: verified to be in the corpus.
        uses: steps that read it, derived; None where they are too many to list.
        weight: of them; None likewise.
    """

    leaf: Document
    uses: tuple[Use, ...] | None
    weight: Weight | None


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """A verified answer to one question.

    Attributes:
        tier: of the ledger.
        digest: that was asked about; of a span, its own.
        of_span: whether a span was asked about.
        result: `included`, `absent`, or of a span `possible`.
        occurrences: proven, of a digest that is in the ledger.
        found: documents listed, with their uses.
        candidates: of a span that is not absent: documents that hold all grams shown.
        length: of the span in bytes; 0 for a digest.
        completeness: of the ledger.
    """

    tier: str
    digest: bytes
    of_span: bool
    result: Result
    occurrences: Occurrences | None
    found: tuple[Found, ...]
    candidates: tuple[int, ...]
    length: int
    completeness: Completeness


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """A verified proof file.

    Attributes:
        manifest: of the run.
        head: that it stands under.
        steps: recorded under the head.
        replies: in the order of the questions.
        answer: as it was read.
    """

    manifest: Manifest
    head: Checkpoint
    steps: int
    replies: tuple[CheckedReply, ...]
    answer: Answer

    def alone(self, numbers: Sequence[int]) -> Answer:
        """A proof file with some of the replies only, and the records that they need."""
        needed = {use.step for n in numbers for found in self.replies[n].found for use in found.uses or ()}
        records = self.answer.records
        return msgspec.structs.replace(
            self.answer,
            replies=tuple(self.answer.replies[n] for n in numbers),
            records=tuple(r for r in records if isinstance(r.entry, StepRecord) and r.entry.step in needed),
        )


def check_answer(
    data: bytes,
    head: bytes,
    *,
    keys: Sequence[PublicKey] = (),
    evidence: Sequence[bytes] = (),
    orders: Orders | None = None,
) -> CheckedAnswer:
    """Verifies a proof file.

    Args:
        data: the file.
        head: a signed head of the run, from where the asker trusts it; the answer must stand under the same one.
        keys: verifiers and auditors whose certificates and audits count; any when empty.
        evidence: certificates and audits that the reader has besides those in the answer.
        orders: kept from one answer about a run to the next.

    Raises:
        ProtocolError: malformed.
        VerificationError: `answer`, and the codes of every part: nothing of the answer is to be believed.
    """
    answer = parse_answer(data)
    manifest = answer.manifest
    validate(manifest)
    trainer = parse_vkey(manifest.key)
    trusted = open_head(head, [trainer], manifest.origin)
    if open_head(answer.head.encode(), [trainer], manifest.origin) != trusted:
        raise VerificationError("answer", "the answer stands under another head of the run than the one at hand")
    _in_log(encode(manifest), 0, answer.manifest_proof, trusted)
    steps = _steps(answer, trusted)
    records = _records(answer, trusted, steps)
    supports = dict.fromkeys([*(text.encode() for text in answer.evidence), *evidence])
    completions = Completions(supports, manifest, trusted, keys)
    verified = [_verified(reply, manifest) for reply in answer.replies]
    used = iter(usage(manifest, steps, [part for one in verified for part in one.parts], orders))
    complete = {claim.tier: completions.of(claim) for claim in manifest.ledgers}
    checked = []
    for reply, one in zip(answer.replies, verified, strict=True):
        found = []
        for leaf in one.leaves:
            uses = next(used)
            found.append(Found(leaf, uses, None if uses is None else weigh(uses, records)))
        checked.append(
            CheckedReply(
                tier=reply.tier,
                digest=bytes.fromhex(reply.digest),
                of_span=isinstance(reply, SpanReply),
                result=reply.result,
                occurrences=one.occurrences,
                found=tuple(found),
                candidates=one.candidates,
                length=reply.length if isinstance(reply, SpanReply) else 0,
                completeness=complete[reply.tier],
            )
        )
    return CheckedAnswer(manifest, trusted, steps, tuple(checked), answer)


def steps_said(entry: AfterManifest) -> int:
    """How many steps a log records that ends in this entry; a fault does not know."""
    return 0 if isinstance(entry, InitRecord) else entry.steps if isinstance(entry, FinalEvent) else entry.step


def check_digest(reply: CheckedReply, digest: bytes) -> None:
    """Checks that a reply is to the question that was asked.

    Args:
        reply: verified.
        digest: what the asker computed: of the document in the reply's tier, or SHA-256 of the span.

    Raises:
        VerificationError: `answer`.
    """
    if digest != reply.digest:
        raise VerificationError(
            "answer",
            "the answer is to another question",
            evidence={"asked": digest.hex(), "answered": reply.digest.hex()},
        )


def check_grams(reply: SpanReply, span: bytes) -> None:
    """Checks that the grams of a reply are those that winnowing chooses from the span.

    Without the span, whoever asked must be believed in that.

    Raises:
        VerificationError: `answer`.
    """
    chosen = [(gram.position, gram.digest.hex()) for gram in select(span, Winnowing.of_tier(reply.tier))]
    if hashlib.sha256(span).hexdigest() != reply.digest or chosen != [(g.position, g.digest) for g in reply.grams]:
        raise VerificationError("answer", "the answer is about other grams than those of the span")


def _verified(reply: Reply | SpanReply, manifest: Manifest) -> Verified:
    claim = next((claim for claim in manifest.ledgers if claim.tier == reply.tier), None)
    if claim is None:
        raise VerificationError("answer", f"the run has no ledger {reply.tier}")
    if isinstance(reply, Reply):
        return check_reply(reply, claim, manifest.corpus)
    if not claim.of_spans:
        raise ProtocolError("answer-malformed", f"the ledger {reply.tier} knows no spans")
    return check_span_reply(reply, claim, manifest.corpus)


def _in_log(entry: bytes, index: int, proof: Path, head: Checkpoint) -> None:
    merkle.verify_inclusion(merkle.leaf_hash(entry), index, head.size, path_of(proof), head.root)


def _logged(logged: Logged, head: Checkpoint) -> None:
    entry = encode(logged.entry)
    parse_entry(entry)
    _in_log(entry, logged.index, logged.proof, head)


def _steps(answer: Answer, head: Checkpoint) -> int:
    """How many steps the log under the head records, from its last entries."""
    tail = answer.tail
    if [logged.index for logged in tail] != list(range(head.size - len(tail), head.size)) or (
        not tail and head.size > 1
    ):
        raise ProtocolError("answer-malformed", "the last entries of the log are not there, or not in order")
    for logged in tail:
        _logged(logged, head)
    if not tail:
        return 0
    first, *others = (logged.entry for logged in tail)
    if isinstance(first, FaultEvent) or not all(isinstance(entry, FaultEvent) for entry in others):
        raise ProtocolError("answer-malformed", "the last entries of the log do not begin where they must")
    steps = steps_said(first)
    if steps > min(answer.manifest.steps, head.size - 2):
        raise VerificationError("answer", f"the log's end speaks of step {steps}, which it cannot have")
    return steps


def _records(answer: Answer, head: Checkpoint, steps: int) -> dict[int, StepRecord]:
    records = dict[int, StepRecord]()
    last = 0
    for logged in answer.records:
        record = logged.entry
        if not isinstance(record, StepRecord) or logged.index <= last or not 1 <= record.step <= steps:
            raise ProtocolError("answer-malformed", "the records are not of steps, in order")
        _logged(logged, head)
        if record.step in records:
            raise VerificationError("answer", f"the log records step {record.step} twice")
        records[record.step], last = record, logged.index
    return records
