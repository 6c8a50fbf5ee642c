"""The audit of a run's data: somebody read every document again and computed every root, and signs what came of it.

It is the one piece of evidence that a ledger leaves no document out: a proof shows what a ledger says, and a verifier's
spot checks find a single omission only with the probability of meeting it. The manifest fixes corpus and ledgers before
step 1, so an audit holds for the run whatever head it was made under.

An in-toto Statement v1 in a DSSE envelope, signed by the auditor.

Specified in spec/data-audit.md.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from protocol import PROTOCOL_VERSION, dsse
from protocol.encoding import Count, Hex32, Struct, decode, encode
from protocol.errors import ProtocolError, VerificationError
from protocol.keys import PublicKey, SigningKey, parse_vkey
from protocol.ledger_claim import LedgerClaim
from protocol.manifest import MAX_LEDGERS
from protocol.notes import MAX_TIME, Checkpoint, open_head
from protocol.required import Text

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:training-witness:data-audit:v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MAX_AUDIT: Final = 1 << 18
MAX_FINDINGS: Final = 64


class DataAudit(Struct, frozen=True):
    """What an auditor found.

    Attributes:
        run: run id.
        trainer: the trainer's verifier key.
        auditor: the auditor's verifier key.
        head: the run's signed head at the time.
        corpus: root over the document leaves, computed from the documents.
        documents: how many were read.
        length: bytes of all of them.
        ledgers: every ledger of the manifest, computed from the documents.
        time: when it was done, POSIX seconds, by the auditor's clock.
        verdict: `complete`: corpus and ledgers are those of the manifest; `differs`: something is not.
        findings: what is not.
        package: version of the auditor's package.
    """

    run: Hex32
    trainer: str
    auditor: str
    head: Annotated[str, msgspec.Meta(max_length=1 << 16)]
    corpus: Hex32
    documents: Count
    length: Count
    ledgers: Annotated[tuple[LedgerClaim, ...], msgspec.Meta(max_length=MAX_LEDGERS)]
    time: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
    verdict: Literal["complete", "differs"]
    findings: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_FINDINGS)]
    package: str
    version: str = PROTOCOL_VERSION


class _Subject(Struct, frozen=True):
    name: str
    digest: dict[str, str]


class _Statement(Struct, frozen=True, rename={"type": "_type"}):
    type: str
    subject: tuple[_Subject, ...]
    predicateType: str  # noqa: N815 - in-toto's name
    predicate: DataAudit


@dataclass(frozen=True, slots=True)
class OpenedAudit:
    """A verified audit: what it says, who signed it, and the head that it names."""

    predicate: DataAudit
    auditor: PublicKey
    head: Checkpoint


def sign_audit(audit: DataAudit, key: SigningKey) -> bytes:
    """The signed audit."""
    statement = _Statement(STATEMENT_TYPE, _subjects(audit), PREDICATE_TYPE, audit)
    return dsse.sign(PAYLOAD_TYPE, encode(statement), [key])


def open_audit(data: bytes, *, keys: tuple[PublicKey, ...] = ()) -> OpenedAudit:
    """Checks an audit's signature and that it is in itself consistent.

    Args:
        data: the envelope.
        keys: auditors that the reader accepts; when empty, the audit must verify under the key it names itself, and the
            reader must decide whether to believe that key.

    Raises:
        ProtocolError: `data-audit-malformed`, or what else is malformed.
        VerificationError: `data-audit`, or a signature's code.
    """
    named = parse_vkey(decode(dsse.peek(data, limit=MAX_AUDIT), _Statement, limit=MAX_AUDIT).predicate.auditor)
    accepted = list(keys) or [named]
    payload = dsse.open_envelope(data, accepted, payload_types=[PAYLOAD_TYPE], limit=MAX_AUDIT)
    statement = decode(payload, _Statement, limit=MAX_AUDIT)
    audit = statement.predicate
    if (statement.type, statement.predicateType, statement.subject) != (
        STATEMENT_TYPE,
        PREDICATE_TYPE,
        _subjects(audit),
    ):
        raise ProtocolError("data-audit-malformed", "not a statement of this kind about this run")
    if audit.version != PROTOCOL_VERSION or audit.time > MAX_TIME:
        raise ProtocolError("data-audit-malformed", f"version {audit.version[:40]!r} is not {PROTOCOL_VERSION}")
    if named.raw not in {key.raw for key in accepted}:
        raise VerificationError("data-audit", "the signer is not the auditor that the audit names")
    dsse.open_envelope(data, [named], payload_types=[PAYLOAD_TYPE], limit=MAX_AUDIT)
    head = open_head(audit.head.encode(), [parse_vkey(audit.trainer)], f"{PROTOCOL_VERSION}/{audit.run}")
    if (audit.verdict == "complete") != (not audit.findings):
        raise VerificationError("data-audit", "the audit's verdict does not follow from its findings")
    return OpenedAudit(audit, named, head)


def is_audit(data: bytes) -> bool:
    """Whether an envelope says that it holds an audit, before anything is verified.

    Raises:
        ProtocolError: `too-large`, `envelope-malformed`.
    """
    payload = dsse.peek(data, limit=1 << 26)
    return PREDICATE_TYPE.encode() in payload[:4096] or PREDICATE_TYPE.encode() in payload[-4096:]


def _subjects(audit: DataAudit) -> tuple[_Subject, ...]:
    return (_Subject(f"data of training run {audit.run}", {"sha256": audit.corpus}),)
