"""The honest verifier: one session over a run, what it found first, and nonces that draw a given step or miss it."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import msgspec

from protocol import checks
from protocol import messages as m
from protocol.certificate import Evidence, open_certificate
from protocol.encoding import encode
from protocol.keys import SigningKey
from protocol.messages import Policy
from protocol.notes import parse_checkpoint, parse_note
from protocol.randomness import commit_nonce, session_seed
from protocol.records import StepRecord
from protocol.required import Result
from protocol.session import challenges
from witness.asking import Clock
from witness.prover import RunArchive, local_transport
from witness.rundir import RunDir
from witness.verifier import Options, Verification

SESSION = bytes(range(16))
"""The prover's choice, made before it knows the nonce."""
VERIFIER = SigningKey("verifier.example", bytes(range(2, 34)))
Transport = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session ended with.

    Attributes:
        certificate: as signed.
        evidence: of the certificate, opened again as a reader would.
        found: what did not reproduce: check name or step, and the result; in the order in which it was found.
    """

    certificate: bytes
    evidence: Evidence
    found: list[tuple[str | int, Result]] = field(repr=False)

    @property
    def verdict(self) -> str:
        return self.evidence.verdict

    @property
    def code(self) -> str:
        """Of the first finding; empty when there is none."""
        return self.found[0][1].code if self.found else ""

    @property
    def step(self) -> int | None:
        """Of the first finding, where it names one."""
        return self.found[0][1].evidence.get("step") if self.found else None

    @property
    def facts(self) -> dict[str, object]:
        """Evidence of the first finding."""
        return self.found[0][1].evidence


class Brazen(RunArchive):
    """A prover's archive that serves what the honest one refuses to serve: a log whose own checks fail."""

    def _read_log(self) -> None:
        self.audit = BlindAudit(self.corpus.documents)
        super()._read_log()


class BlindAudit(checks.LogAudit):
    """Overlooks records that were not drawn."""

    def _read_step(self, record: StepRecord) -> None:
        step = self.steps + 1
        drawn = self.documents.records_digest(step, self.indices(step)).hex()
        super()._read_step(msgspec.structs.replace(record, records=drawn))


def policy_for(steps: int, draws: int) -> Policy:
    """So many draws, stated against a run with a single bad step."""
    return Policy("0.9", f"1/{max(steps, 1)}", draws=draws, answer_seconds=5, session_seconds=120)


def audit_of(run: Path) -> checks.LogAudit:
    """All that the log says, with every check that needs no program."""
    with Brazen(RunDir.open(run)) as archive:
        return archive.audit


def verify(
    run: Path,
    *,
    draws: int = 1,
    nonce: bytes = bytes(32),
    trust: str = "",
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
    known_heads: Sequence[bytes] = (),
    keep_going: bool = False,
    clock: Clock | None = None,
    kind: type[Verification] = Verification,
) -> Seen:
    """Runs a session over a run folder.

    Args:
        run: the folder.
        draws: uniform draws.
        nonce: of the verifier.
        trust: digest of a program to run.
        wrap: what the cheating prover makes of its transport.
        known_heads: signed heads seen elsewhere.
        keep_going: replay on after a divergence.
        clock: of the verifier.
        kind: a verifier with something taken away.
    """
    with Brazen(RunDir.open(run), block=True) as archive:
        session = kind(
            wrap(local_transport(archive, SESSION)),
            policy_for(archive.audit.steps, draws),
            VERIFIER,
            nonce,
            Options(trust=trust, held=True, known_heads=known_heads, keep_going=keep_going),
            clock=clock or Clock(),
        )
        certificate = session.run()
    evidence = open_certificate(certificate, keys=[VERIFIER.public])
    failed: list[tuple[str | int, Result]] = [
        (c.name, c.result) for c in evidence.predicate.checks if c.result.outcome != "reproduced"
    ]
    failed = [(name, result) for name, result in failed if result.code != "not-run"]
    failed += [(c.step, c.result) for c in evidence.predicate.challenges if c.result.outcome != "reproduced"]
    return Seen(certificate, evidence, failed)


# -- dishonest provers -----------------------------------------------------------------------------


def tampering(change: Callable[[m.Request, bytes], bytes]) -> Callable[[Transport], Transport]:
    """A prover that answers with what `change` makes of the request and of the honest reply."""

    def wrap(transport: Transport) -> Transport:
        return lambda frame: change(m.unpack_request(frame), transport(frame))

    return wrap


def refusing(*kinds: type[m.Request], step: int | None = None) -> Callable[[Transport], Transport]:
    """A prover that refuses requests of these kinds: all of them, or those about one step."""

    def change(request: m.Request, reply: bytes) -> bytes:
        asked = isinstance(request, kinds) and (step is None or getattr(request, "step", None) == step)
        return m.pack(m.Refusal("disk", "we have lost that, sorry")) if asked else reply

    return tampering(change)


# -- draws -----------------------------------------------------------------------------------------


def nonces() -> Iterator[bytes]:
    """Nonces without end, the same every time."""
    number = 0
    while True:
        yield hashlib.sha256(b"attack %d" % number).digest()
        number += 1


def drawn(run: Path, draws: int) -> Callable[[bytes], set[int]]:
    """The steps that a nonce draws in a session over this run."""
    with Brazen(RunDir.open(run)) as archive:
        audit, head = archive.audit, parse_checkpoint(parse_note(archive.head).text.encode()).body()
    policy = policy_for(audit.steps, draws)

    def steps(nonce: bytes) -> set[int]:
        seed = session_seed(
            session=SESSION, policy=encode(policy), commitment=commit_nonce(nonce), head=head, nonce=nonce
        )
        return {c.step for c in challenges(audit, policy, seed, draws) if c.order is not None}

    return steps


def nonce_that(run: Path, draws: int, *, hits: int | None = None, misses: Collection[int] = ()) -> bytes:
    """The first nonce whose draws hold one step, and do not hold others."""
    draw = drawn(run, draws)
    return next(n for n in nonces() if (hits is None or hits in draw(n)) and draw(n).isdisjoint(misses))


def share_that_hits(run: Path, draws: int, step: int, tries: int) -> Fraction:
    """The part of so many nonces that draw a step."""
    draw = drawn(run, draws)
    source = nonces()
    return Fraction(sum(step in draw(next(source)) for _ in range(tries)), tries)
