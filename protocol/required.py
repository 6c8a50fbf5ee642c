"""What a session owes, and the verdict that follows from what became of it.

The required set comes from the verifier's policy and the run's length, never from the certificate: every gradient-free
check, every mandatory challenge, every uniform draw. What has no outcome is missing, and what is missing is never a
pass.

Specified in spec/certificate.md, section 5, and spec/soundness.md, section 4.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from protocol import soundness
from protocol.encoding import Count, Struct
from protocol.errors import ProtocolError, UsageError
from protocol.messages import Policy
from protocol.soundness import MAX_DRAWS

Outcome = Literal["reproduced", "diverged", "incomplete"]
Text = Annotated[str, msgspec.Meta(max_length=4096)]

CHECKS = (
    "manifest",
    "initial-state",
    "step-order",
    "state-roots",
    "records",
    "checkpoints",
    "events",
    "fingerprints",
    "final",
    "heads",
    "hyperparameters",
    "ledgers",
)
"""Names of checks 1 to 12, as certificates list them."""


class Result(Struct, frozen=True):
    """The outcome of one check or challenge, with the code and the facts of a failure."""

    outcome: Outcome
    code: Annotated[str, msgspec.Meta(max_length=64)] = ""
    message: Text = ""
    evidence: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies defaults


class CheckResult(Struct, frozen=True):
    """One gradient-free check."""

    name: str
    result: Result


class ChallengeResult(Struct, frozen=True):
    """One challenged step; `order` is its place among the uniform draws."""

    step: Count
    reason: str
    order: int | None
    result: Result


def draw_count(policy: Policy, steps: int) -> int:
    """Uniform draws that a policy asks of a run of `steps` steps: at most `MAX_DRAWS`.

    Raises:
        UsageError: `not-a-fraction`, `impossible-count`, also for a policy that asks for more in one session.
    """
    soundness.fraction(policy.confidence)
    soundness.fraction(policy.bad_fraction)
    if policy.draws > MAX_DRAWS:
        raise UsageError("impossible-count", f"{policy.draws} draws; one session makes at most {MAX_DRAWS}")
    if steps == 0:
        return 0
    if policy.draws:
        return min(steps, policy.draws)
    return soundness.draws_needed(steps, policy.bad_fraction, policy.confidence, most=MAX_DRAWS)


def draws_asked(policy: Policy, steps: int) -> int:
    """`draw_count` of a policy that somebody else wrote.

    Raises:
        ProtocolError: `policy`.
    """
    try:
        return draw_count(policy, steps)
    except UsageError as error:
        raise ProtocolError("policy", str(error)) from None


def assess(
    steps: int,
    drawn: Sequence[int],
    mandatory: Sequence[tuple[int, str]],
    checks: Sequence[CheckResult],
    challenges: Sequence[ChallengeResult],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Holds a session to its required set: every check, every mandatory challenge, every draw.

    Returns:
        What is missing, and what diverged.
    """
    by_check: dict[str, Outcome] = {}
    for check in checks:
        by_check[check.name] = _worst(by_check.get(check.name), check.result.outcome)
    by_step: dict[int, Outcome] = {}
    for challenge in challenges:
        by_step[challenge.step] = _worst(by_step.get(challenge.step), challenge.result.outcome)
    missing = [f"check {name}" for name in CHECKS if by_check.get(name, "incomplete") == "incomplete"]
    owed = dict.fromkeys([*(step for step, _ in mandatory), *drawn])
    missing += [f"step {step}" for step in owed if by_step.get(step, "incomplete") == "incomplete"]
    if steps < 1:
        missing.append("steps: the log records none")
    failures = [f"check {name}" for name, outcome in by_check.items() if outcome == "diverged"]
    failures += [f"step {step}" for step, outcome in sorted(by_step.items()) if outcome == "diverged"]
    return tuple(missing), tuple(failures)


def verdict_of(missing: Sequence[str], failures: Sequence[str], draws: int, owed_draws: int) -> Outcome:
    """One session's verdict: reproduced only if nothing diverged or is missing and every owed draw was made."""
    if failures:
        return "diverged"
    return "incomplete" if missing or draws < owed_draws else "reproduced"


def _worst(left: Outcome | None, right: Outcome) -> Outcome:
    ranks: list[Outcome] = ["reproduced", "incomplete", "diverged"]
    return right if left is None else max(left, right, key=ranks.index)
