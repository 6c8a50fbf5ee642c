"""An asker: questions to whoever keeps a run, each answer checked as a file under the head."""

import hashlib
from collections.abc import Iterable, Sequence

from made_run import SPANS

from protocol.answering import CheckedReply, check_answer
from protocol.ledger_claim import RAW
from protocol.normaliser import document_digest
from witness.query import Answerer
from witness.rundir import RunDir


def ask(run: RunDir, text: bytes, tier: str = RAW, evidence: Sequence[bytes] = ()) -> CheckedReply:
    """What the run's keeper proves about a document."""
    return ask_all(run, [text], tier, evidence)[0]


def ask_all(
    run: RunDir, texts: Iterable[bytes], tier: str = RAW, evidence: Sequence[bytes] = ()
) -> tuple[CheckedReply, ...]:
    """The same for many, in one file."""
    keeper = Answerer(run)
    answer = keeper.digests([(tier, document_digest(tier, text)) for text in texts], evidence)
    return check_answer(answer.to_bytes(), keeper.head).replies


def ask_span(run: RunDir, span: bytes, tier: str = SPANS) -> CheckedReply:
    """What the run's keeper proves about a passage."""
    keeper = Answerer(run)
    reply = check_answer(keeper.spans(tier, [span]).to_bytes(), keeper.head).replies[0]
    assert reply.digest == hashlib.sha256(span).digest()
    return reply


def normalised(run: RunDir) -> str:
    """The tier of normalised documents that the run has."""
    return next(claim.tier for claim in run.manifest().ledgers if claim.tier.startswith("t1-"))
