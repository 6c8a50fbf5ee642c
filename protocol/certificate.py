"""The certificate: what a verifier saw, signed, in a form that anyone can hold to account without replaying.

An in-toto Statement v1 in a DSSE envelope, signed by the verifier. It carries the trainer's signed head, the statement
that bound the session, policy, nonce, every check and every challenge with its outcome. The draws are not taken from it
but derived again from head and nonce; probabilities are computed again; the verdict follows from the policy's required
set, never from the certificate's own word. A missing outcome is *incomplete*, and no path turns it into a pass.

Specified in spec/certificate.md.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from protocol import PROTOCOL_VERSION, dsse, soundness
from protocol.binding import check_statement
from protocol.encoding import Count, Hex32, Struct, decode, encode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.keys import PublicKey, SigningKey, parse_vkey
from protocol.messages import Note, Policy, SessionId
from protocol.notes import Checkpoint, open_head
from protocol.randomness import draw, session_seed
from protocol.required import ChallengeResult, CheckResult, Outcome, Text, assess, draws_asked, verdict_of
from protocol.soundness import MAX_DRAWS, MAX_STEPS, NEVER, Miss

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:training-witness:certificate:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_CERTIFICATE = 1 << 26
MAX_ASKED = 1000

CLAIMS = (
    "every gradient-free check listed as reproduced holds for every step of the log that the head signs",
    "every challenged step listed as reproduced was executed again from its committed state, records and seed, "
    "and gave the committed "
    "state, batch and fingerprint bit for bit",
    "the draws were fixed by head, policy and nonce after the trainer was bound to the head, so the stated "
    "probabilities hold for any "
    "trainer that could not predict the verifier's nonce",
)
NOT_CLAIMED = (
    "that no step at all is bad: a single bad step is found by random draws only with probability draws/steps",
    "that no other run was trained beside this one, or that unregistered or abandoned runs do not exist",
    "that the declared recipe, program or data are good, lawful or safe",
    "anything about data that is not in the committed corpus, such as paraphrases, or the pretraining of "
    "declared initial weights",
    "when the run took place, how long it took, or on which machines",
    "that the seed was not chosen among many, unless it was registered",
    "anything to a reader who believes that trainer and verifier work together: such a reader runs a session of "
    "their own",
)


class Asked(Struct, frozen=True):
    """One document of a set that the verifier asked about, found in a ledger."""

    name: Text
    tier: str
    documents: tuple[Count, ...]


class Exclusion(Struct, frozen=True):
    """A set of documents that the verifier asked about.

    Attributes:
        name: of the set.
        asked: how many documents.
        absent: how many of them are in no ledger of documents.
        included: the others, at most `MAX_ASKED`.
    """

    name: Text
    asked: Count
    absent: Count
    included: tuple[Asked, ...]


class DataReport(Struct, frozen=True):
    """What was checked of the run's data.

    Attributes:
        tiers: ledgers whose whole lists were read and have the committed roots.
        documents: in the corpus.
        checked: documents that challenged steps read, opened from end to end, and found to be what leaf and ledgers
            say. A single document that is missing from a ledger is found only if it is among these.
        exclusion: a set of documents that was asked about.
    """

    tiers: tuple[str, ...]
    documents: Count
    checked: Count
    exclusion: Exclusion | None = None


class Predicate(Struct, frozen=True):
    """What the verifier saw.

    Attributes:
        run: run id.
        trainer: the trainer's verifier key.
        verifier: the verifier's verifier key.
        head: the signed head of the trainer's log.
        statement: what bound the session; null when the verifier held the run itself.
        session: id.
        policy: what was demanded.
        commitment: to the nonce, published before the head was bound.
        nonce: revealed after.
        draws: uniform draws made, fixed when the nonce was revealed.
        steps: recorded under the head.
        promised: by the manifest.
        final_state_root: committed after the last step.
        mandatory: the challenges owed besides the draws, as `[step, reason]`.
        checks: their results.
        challenges: their results, in the order they were made.
        data: what was checked of corpus and ledgers.
        profile: the numeric profile's full name: `native`, or an exact arithmetic.
        seed_source: `own` or `registered`.
        notes: what a reader should know: NaN losses, declared faults, resumes...
        claims: what a *reproduced* verdict says.
        not_claimed: what it does not say.
        verdict: of this session alone.
        package: version of the verifier's package.
    """

    run: Hex32
    trainer: str
    verifier: str
    head: Note
    statement: Note | None
    session: SessionId
    policy: Policy
    commitment: Hex32
    nonce: Hex32
    draws: Count
    steps: Count
    promised: Count
    final_state_root: Hex32
    mandatory: tuple[tuple[Count, str], ...]
    checks: tuple[CheckResult, ...]
    challenges: tuple[ChallengeResult, ...]
    data: DataReport
    profile: str
    seed_source: str
    notes: tuple[Text, ...]
    claims: tuple[Text, ...]
    not_claimed: tuple[Text, ...]
    verdict: Outcome
    package: str
    version: str = PROTOCOL_VERSION


class Subject(Struct, frozen=True):
    """What the statement is about: the run's final state."""

    name: str
    digest: dict[str, str]


class Statement(Struct, frozen=True, rename={"type": "_type"}):
    """In-toto Statement v1."""

    type: str
    subject: tuple[Subject, ...]
    predicateType: str  # noqa: N815 - in-toto's name
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one certificate is worth, computed again from its facts.

    Attributes:
        predicate: as signed.
        head: of the trainer's log.
        draws: uniform draws that count: all that were made, or none when anything owed in this session has no outcome.
            (A
            session that ended early may have been ended by whoever knew which draw comes next.)
        owed_draws: draws that the policy asks for.
        verdict: that follows from the required set.
        missing: what was owed and has no outcome.
        failures: checks and challenges that diverged.
        miss: probability with which a run with the policy's bad fraction would have passed.
    """

    predicate: Predicate
    head: Checkpoint
    draws: int
    owed_draws: int
    verdict: Outcome
    missing: tuple[str, ...]
    failures: tuple[str, ...]
    miss: Miss

    @property
    def detection(self) -> Fraction:
        """The probability with which a run with the policy's bad fraction would have been rejected."""
        return self.miss.detection


def sign_certificate(predicate: Predicate, key: SigningKey) -> bytes:
    """The signed certificate."""
    subject = Subject(f"training run {predicate.run}", {"sha256": predicate.final_state_root})
    statement = Statement(STATEMENT_TYPE, (subject,), PREDICATE_TYPE, predicate)
    return dsse.sign(PAYLOAD_TYPE, encode(statement), [key])


def open_certificate(data: bytes, *, keys: Sequence[PublicKey] = ()) -> Evidence:
    """Checks a certificate and computes again all it says. Needs neither the run nor torch.

    Args:
        data: the envelope.
        keys: verifiers that the reader accepts; when empty, the certificate must verify under the key it names itself,
            and
            the reader must decide whether to believe that key.

    Raises:
        ProtocolError: malformed.
        VerificationError: `certificate`, `statement`, `nonce-mismatch`, or a signature's code.
    """
    # 1. the envelope's signature, by an accepted key or by the one the payload names
    named = _named_key(data)
    accepted = list(keys) or [named]
    payload = dsse.open_envelope(data, accepted, payload_types=[PAYLOAD_TYPE], limit=MAX_CERTIFICATE)
    statement = decode(payload, Statement, limit=MAX_CERTIFICATE)
    predicate = statement.predicate
    # 2. types, version, subject, and that the signer is the verifier it names
    expected = Subject(f"training run {predicate.run}", {"sha256": predicate.final_state_root})
    if (statement.type, statement.predicateType, statement.subject) != (STATEMENT_TYPE, PREDICATE_TYPE, (expected,)):
        raise ProtocolError("certificate-malformed", "not a statement of this kind about this run")
    if predicate.version != PROTOCOL_VERSION:
        raise ProtocolError("certificate-malformed", f"version {predicate.version[:40]!r} is not {PROTOCOL_VERSION}")
    if named.raw not in {key.raw for key in accepted}:
        raise VerificationError("certificate", "the signer is not the verifier that the certificate names")
    if len(accepted) > 1:  # any of them could have signed: it must be the one that is named
        dsse.open_envelope(data, [named], payload_types=[PAYLOAD_TYPE], limit=MAX_CERTIFICATE)
    # 3. the trainer's head, for this run, and the statement that bound the session before the nonce was known
    trainer = parse_vkey(predicate.trainer)
    head = open_head(predicate.head.encode(), [trainer], f"{PROTOCOL_VERSION}/{predicate.run}")
    if predicate.statement is not None:
        check_statement(
            predicate.statement, trainer, predicate.session, predicate.policy, predicate.commitment, head.body()
        )
    # 4. the nonce opens its commitment; 5. the draws, derived again
    seed = session_seed(
        session=bytes.fromhex(predicate.session),
        policy=encode(predicate.policy),
        commitment=bytes.fromhex(predicate.commitment),
        head=head.body(),
        nonce=bytes.fromhex(predicate.nonce),
    )
    if predicate.promised > MAX_STEPS:
        raise ProtocolError("certificate-malformed", f"a run of {predicate.promised} steps; {MAX_STEPS} are possible")
    if not predicate.steps <= min(predicate.promised, head.size):
        raise VerificationError("certificate", "more steps than the run promised or the head covers")
    owed = draws_asked(predicate.policy, predicate.steps)
    if predicate.draws > min(predicate.steps, MAX_DRAWS):
        raise VerificationError("certificate", f"{predicate.draws} draws of {predicate.steps} steps")
    drawn = [i + 1 for i in draw(seed, predicate.steps, predicate.draws)]
    order = {step: place for place, step in enumerate(drawn)}
    for challenge in predicate.challenges:
        if challenge.order != order.get(challenge.step):
            raise VerificationError(
                "certificate",
                f"the place of step {challenge.step} among the draws is not what head and nonce give",
                evidence={"step": challenge.step},
            )
    owed_mandatory = {step for step, _ in predicate.mandatory}
    if predicate.steps and not {0, 1, predicate.steps} <= owed_mandatory:
        raise VerificationError("certificate", "the initial state, the first and the last step are always challenged")
    # 6. the verdict, from the required set; 7. the probability
    missing, failures = assess(predicate.steps, drawn, predicate.mandatory, predicate.checks, predicate.challenges)
    verdict = verdict_of(missing, failures, predicate.draws, owed)
    counted = 0 if missing else predicate.draws
    if verdict != predicate.verdict:
        raise VerificationError(
            "certificate",
            f"the certificate says {predicate.verdict}, its facts say {verdict}",
            evidence={"missing": list(missing), "failures": list(failures)},
        )
    if predicate.claims != CLAIMS or predicate.not_claimed != NOT_CLAIMED:
        raise VerificationError("certificate", "the certificate claims something else than this format's claims")
    missed = NEVER
    if predicate.steps:
        bad = soundness.bad_steps(predicate.steps, predicate.policy.bad_fraction)
        missed = soundness.miss(predicate.steps, bad, counted)
    return Evidence(predicate, head, counted, owed, verdict, missing, failures, missed)


def _named_key(data: bytes) -> PublicKey:
    """The verifier key that the payload names, before anything is verified: used only to check that it signed."""
    payload = dsse.peek(data, limit=MAX_CERTIFICATE)
    return parse_vkey(decode(payload, Statement, limit=MAX_CERTIFICATE).predicate.verifier)


@dataclass(frozen=True, slots=True)
class Sum:
    """What several certificates over one head say together.

    Attributes:
        verdict: of all of them.
        sessions: distinct sessions counted.
        draws: uniform draws of each.
        miss: of all of them together, against `bad_fraction`.
        bad_fraction: the strictest of their policies.
        confidence: the strictest of their policies.
    """

    verdict: Outcome
    sessions: int
    draws: tuple[int, ...]
    miss: Miss
    bad_fraction: str
    confidence: str

    @property
    def detection(self) -> Fraction:
        """The probability with which one of the sessions would have found a run with that fraction of bad steps."""
        return self.miss.detection


def add(evidence: Sequence[Evidence]) -> Sum:
    """Adds certificates over one head: sessions are independent, so their misses multiply; one counts once.

    Raises:
        UsageError: `other-head`, when they are about different heads.
        VerificationError: `equivocation`, when two of them prove that the trainer signed two histories of one length.
    """
    first = evidence[0]
    distinct: dict[str, Evidence] = {}
    for one in evidence:
        if one.predicate.run == first.predicate.run and one.head.size == first.head.size and one.head != first.head:
            raise VerificationError(
                "equivocation",
                f"the trainer signed two heads over {one.head.size} entries of one run",
                evidence={"roots": [first.head.root.hex(), one.head.root.hex()]},
            )
        if one.head != first.head or one.predicate.steps != first.predicate.steps:
            raise UsageError("other-head", "the certificates are about different heads; evidence adds up over one")
        distinct.setdefault(one.predicate.nonce, one)
    parts = list(distinct.values())
    fractions = [soundness.fraction(one.predicate.policy.bad_fraction) for one in parts]
    confidences = [soundness.fraction(one.predicate.policy.confidence) for one in parts]
    strictest = fractions.index(min(fractions))
    wanted = max(confidences)
    draws, missed = tuple(one.draws for one in parts), NEVER
    if first.predicate.steps:  # a log can fail before its first step; that is a verdict too
        bad = soundness.bad_steps(first.predicate.steps, fractions[strictest])
        missed = soundness.miss(first.predicate.steps, bad, *draws)
    if any(one.verdict == "diverged" for one in evidence):  # also of a session that counts once
        verdict: Outcome = "diverged"
    elif any(one.verdict == "reproduced" for one in parts) or (
        missed.reaches(wanted) and any(one.draws for one in parts)
    ):
        verdict = "reproduced"
    else:
        verdict = "incomplete"
    return Sum(
        verdict,
        len(parts),
        draws,
        missed,
        parts[strictest].predicate.policy.bad_fraction,
        parts[confidences.index(wanted)].predicate.policy.confidence,
    )


def fingerprint_of(certificate: bytes) -> str:
    """Short name of a certificate, for people: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(certificate).hexdigest()[:16]


def facts(evidence: Evidence) -> Mapping[str, Any]:
    """The figures of one certificate as plain data, with stable keys."""
    p = evidence.predicate
    return {
        "verdict": evidence.verdict,
        "run": p.run,
        "trainer": p.trainer,
        "verifier": p.verifier,
        "head": {"size": evidence.head.size, "root": evidence.head.root.hex()},
        "steps": p.steps,
        "final": {"state_root": p.final_state_root},
        "draws": {"made": p.draws, "counted": evidence.draws, "owed": evidence.owed_draws},
        "challenges": len(p.challenges),
        "detection": evidence.miss.detection_down(6),
        "confidence": p.policy.confidence,
        "bad_fraction": p.policy.bad_fraction,
        "missing": list(evidence.missing),
        "failures": list(evidence.failures),
        "data": {
            "ledgers": list(p.data.tiers),
            "documents": p.data.documents,
            "documents_checked": p.data.checked,
            "exclusion": None
            if p.data.exclusion is None
            else {
                "name": p.data.exclusion.name,
                "asked": p.data.exclusion.asked,
                "absent": p.data.exclusion.absent,
                "included": [
                    {"name": one.name, "tier": one.tier, "documents": list(one.documents)}
                    for one in p.data.exclusion.included
                ],
            },
        },
        "profile": p.profile,
        "bound_by": "statement" if p.statement is not None else "held",
    }
