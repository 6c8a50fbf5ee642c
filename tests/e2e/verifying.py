"""A verification in this process, over a run folder, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.certificate import Evidence, open_certificate
from protocol.keys import SigningKey
from protocol.messages import Policy
from protocol.required import Result
from witness import sandbox
from witness.asking import Clock
from witness.prover import RunArchive, local_transport
from witness.rundir import RunDir
from witness.sandbox.parent import Sandbox
from witness.verifier import Listener, Options, Verification

VERIFIER = SigningKey("verifier.example", bytes(range(2, 34)))
SESSION, NONCE = bytes(range(16)), bytes(range(32))
Transport = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session ended with.

    Attributes:
        evidence: of its certificate, opened again as a reader would.
        found: what did not reproduce, by check or step, in order; `not-run` left out.
        notes: of the certificate.
    """

    evidence: Evidence
    found: list[tuple[str | int, Result]]
    notes: Sequence[str]

    @property
    def verdict(self) -> str:
        return self.evidence.verdict

    @property
    def codes(self) -> list[str]:
        return [result.code for _, result in self.found]

    @property
    def challenged(self) -> dict[int, str]:
        """Reasons by step."""
        return {c.step: c.reason for c in self.evidence.predicate.challenges}


def verify(
    run: Path,
    *,
    draws: int = 2,
    trust: str = "",
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
    keep_going: bool = False,
    answer_seconds: int = 60,
    budget: float | None = None,
    clock: Clock | None = None,
    listener: Listener | None = None,
    data: Path | None = None,
) -> Outcome:
    """Runs one session over a run folder; `wrap` puts something between the two ends."""
    with RunArchive(RunDir.open(run), data=data, block=True) as archive:
        session = Verification(
            wrap(local_transport(archive, SESSION)),
            Policy("0.9", "0.5", draws=draws, answer_seconds=answer_seconds),
            VERIFIER,
            NONCE,
            Options(trust=trust, held=True, keep_going=keep_going, budget=budget),
            listener or Listener(),
            clock or Clock(),
        )
        certificate = session.run()
    evidence = open_certificate(certificate, keys=[VERIFIER.public])
    found: list[tuple[str | int, Result]] = [(c.name, c.result) for c in evidence.predicate.checks]
    found += [(c.step, c.result) for c in evidence.predicate.challenges]
    found = [(where, result) for where, result in found if result.outcome != "reproduced" and result.code != "not-run"]
    return Outcome(evidence, found, evidence.predicate.notes)


@contextmanager
def warm_sandboxes() -> Iterator[None]:
    """One sandbox an environment, while this lasts: every job is a process of its own, but torch loads once."""
    warm: dict[str, Sandbox] = {}

    class Lasting(Sandbox):
        def close(self) -> None:
            """Stays: the next verification uses it."""

    def shared(**how: object) -> Sandbox:
        return Sandbox(**how) if how.get("readable") else warm.setdefault(repr(sorted(how.items())), Lasting(**how))

    patch = pytest.MonkeyPatch()
    patch.setattr(sandbox, "Sandbox", shared)
    try:
        yield
    finally:
        patch.undo()
        for one in warm.values():
            Sandbox.close(one)
