"""How complete a ledger is known to be: a claim of its own, beside every proof from it.

A proof shows what a ledger says. That the ledger lists every document the run was trained on is known at one of three
levels, from what others checked:

- `root-consistent`: the proof verifies under the root in the manifest. A trainer could have left documents out.
- `spot-checked`: a verifier read the whole list behind the ledger and replayed k of N steps, opening their documents
  and comparing them with corpus and ledger. A single document left out is met with probability about k/N only.
- `fully audited`: somebody computed corpus and ledger again from every document, and signed it.

Specified in spec/answer.md, section 6.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from protocol.certificate import Evidence, open_certificate
from protocol.data_audit import OpenedAudit, is_audit, open_audit
from protocol.errors import VerificationError
from protocol.keys import PublicKey
from protocol.ledger_claim import LedgerClaim
from protocol.manifest import Manifest
from protocol.notes import Checkpoint

Level = Literal["root-consistent", "spot-checked", "fully audited"]


@dataclass(frozen=True, slots=True)
class Spot:
    """What verifiers of one head looked at.

    Attributes:
        verifiers: their keys.
        steps: distinct steps that they replayed.
        of_steps: recorded under the head.
        documents: that one of them opened from end to end; the largest number, because two may have opened the same.
        of_documents: in the corpus.
    """

    verifiers: tuple[str, ...]
    steps: int
    of_steps: int
    documents: int
    of_documents: int


@dataclass(frozen=True, slots=True)
class Completeness:
    """The level of one ledger, and what it rests on.

    Attributes:
        level: the highest.
        spot: what was looked at, if anything was.
        audits: who audited it all, and when (POSIX seconds, by their own clocks).
    """

    level: Level
    spot: Spot | None = None
    audits: tuple[tuple[str, int], ...] = ()

    def words(self) -> str:
        """The level as it is to be read."""
        if self.audits:
            return "; ".join(f"fully audited by {key} at {_date(time)}" for key, time in self.audits)
        if self.spot is not None:
            spot = self.spot
            return (
                f"spot-checked {spot.steps} of {spot.of_steps} steps ({spot.documents} of {spot.of_documents} documents"
                f" opened): one document left out of the ledger would have been met with probability about "
                f"{spot.steps}/{spot.of_steps} only"
            )
        return "root-consistent: nobody is known to have checked that the ledger leaves nothing out"


class Completions:
    """Opens certificates and audits that come with an answer, and says what they make of each ledger.

    Args:
        evidence: DSSE envelopes.
        manifest: of the run, verified.
        head: under which the answer stands.
        keys: verifiers and auditors that the reader accepts; any when empty.

    Raises:
        ProtocolError: malformed.
        VerificationError: `completeness`, for evidence about something else, or one that accuses the run; and what
            `open_certificate` and `open_audit` raise.
    """

    def __init__(
        self, evidence: Iterable[bytes], manifest: Manifest, head: Checkpoint, keys: Sequence[PublicKey] = ()
    ) -> None:
        self._manifest = manifest
        self._certificates: list[Evidence] = []
        self._audits: list[OpenedAudit] = []
        for data in evidence:
            if is_audit(data):
                self._audits.append(_about(open_audit(data, keys=tuple(keys)), manifest))
            else:
                self._certificates.append(_over(open_certificate(data, keys=list(keys)), manifest, head))

    def of(self, claim: LedgerClaim) -> Completeness:
        """The completeness of one of the manifest's ledgers."""
        spot = self._spot(claim)
        audits = tuple((one.auditor.vkey, one.predicate.time) for one in self._audits if claim in one.predicate.ledgers)
        level: Level = "fully audited" if audits else "spot-checked" if spot is not None else "root-consistent"
        return Completeness(level, spot, audits)

    def _spot(self, claim: LedgerClaim) -> Spot | None:
        counted = [
            one.predicate
            for one in self._certificates
            if claim.tier in one.predicate.data.tiers
            and any(check.name == "ledgers" and check.result.outcome == "reproduced" for check in one.predicate.checks)
        ]
        steps = {c.step for p in counted for c in p.challenges if c.step > 0 and c.result.outcome == "reproduced"}
        if not steps:
            return None
        documents = max(p.data.checked for p in counted)
        verifiers = tuple(dict.fromkeys(p.verifier for p in counted))
        return Spot(verifiers, len(steps), counted[0].steps, documents, self._manifest.corpus.documents)


def _about(audit: OpenedAudit, manifest: Manifest) -> OpenedAudit:
    predicate = audit.predicate
    if predicate.run != manifest.run_id.hex() or predicate.trainer != manifest.key:
        raise VerificationError("completeness", "an audit that came with the answer is about another run")
    if predicate.verdict != "complete":
        raise VerificationError(
            "completeness",
            "an audit found that the data is not what the manifest commits to",
            evidence={"auditor": predicate.auditor, "findings": list(predicate.findings)},
        )
    corpus = manifest.corpus
    if (predicate.corpus, predicate.documents, predicate.ledgers) != (
        corpus.root,
        corpus.documents,
        manifest.ledgers,
    ):
        raise VerificationError("completeness", "an audit calls another corpus or other ledgers complete")
    return audit


def _over(evidence: Evidence, manifest: Manifest, head: Checkpoint) -> Evidence:
    if evidence.predicate.trainer != manifest.key or evidence.head != head:
        raise VerificationError("completeness", "a certificate that came with the answer is over another head")
    if evidence.verdict == "diverged":
        raise VerificationError(
            "completeness",
            "a certificate over this head says that the run diverged",
            evidence={"verifier": evidence.predicate.verifier, "failures": list(evidence.failures)},
        )
    return evidence


def _date(time: int) -> str:
    """A moment in POSIX seconds, for people too; an auditor may have written any number."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC ({time})"
    except (ValueError, OverflowError, OSError):
        return str(time)
