"""What a verification tells whoever listens: stages, the plan, outcomes. A terminal is one listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from protocol.manifest import Manifest
    from protocol.required import Result
    from protocol.session import Challenge


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to happen, said before it does.

    Attributes:
        steps: recorded under the head.
        mandatory: challenges that every verifier makes.
        draws: uniform draws that will be made.
        owed: uniform draws that the policy asks for.
        state_bytes: of the largest state to fetch, a challenge.
        seconds: estimate for all challenges.
        detection: probability with which a bad run would be rejected when all is done.
    """

    steps: int
    mandatory: int
    draws: int
    owed: int
    state_bytes: int
    seconds: float
    detection: str


class Listener:
    """Hears what happens, for progress; every method does nothing here."""

    def stage(self, text: str) -> None:
        """A new part begins."""

    def advance(self, done: int, total: int) -> None:
        """The part is at `done` of `total`."""

    def waiting(self, done: int, total: int) -> None:
        """The prover is rebuilding a state: `done` of `total` steps."""

    def consent(self, manifest: Manifest, digest: str, saved: Path | None) -> None:
        """The program that would run, when consent is missing; and the folder that its files were written to."""

    def planned(self, plan: Plan) -> None:
        """The challenges are known."""

    def challenged(self, challenge: Challenge, result: Result) -> None:
        """A challenge has an outcome."""

    def round_done(self, draws: int, detection: str) -> None:
        """So many draws were clean, and what that is worth."""
