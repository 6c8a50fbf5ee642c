"""A33: answer every challenge but the bad one: "we have lost that", "nearly ready", silence.

If any of it were forgiven, the cheat would use it on exactly the bad draws, and random challenges would be worth
nothing. Unanswered is diverged. What the miss certifies is the same as for a cheat that answers: that the bad step
was not drawn.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacks.court import Seen, Transport, nonce_that, refusing, tampering, verify
from attacks.table import Row, caught, found_by_draws_alone
from attacks.trainers import Surgeon

from protocol import messages as m
from protocol.errors import IncompleteError
from witness import challenging
from witness.asking import Clock
from witness.rundir import RunDir

AT = Surgeon.at
STATE = Row("A33", "refuses to open the state that was drawn", "draw", "the step", "refused", AT, bad=1, draws=3)
RECORDS = Row("A33", "refuses to open the records that were drawn", "draw", "the step", "refused", AT, bad=1, draws=3)
STALL = Row(
    "A33",
    "is still rebuilding the state that was drawn, for ever",
    "draw",
    "the step",
    "unanswered",
    AT,
    bad=1,
    draws=3,
)
DRIP = Row(
    "A33",
    "opens the state that was drawn byte by byte, each in its time",
    "draw",
    "the step",
    "unanswered",
    AT,
    bad=1,
    draws=3,
)
NONCE = Row(
    "A33", "refuses to go on once it has seen the nonce", "opening", "every challenge counts as refused", "refused"
)
LOST = Row(
    "A33",
    "loses the bad state: what is rebuilt is another one",
    "draw",
    "the step after it",
    "refused",
    AT + 1,
    bad=2,
    draws=3,
)
ROWS = (STATE, RECORDS, STALL, DRIP, NONCE, LOST)


def stalling(step: int) -> Callable[[Transport], Transport]:
    def change(request: m.Request, reply: bytes) -> bytes:
        pending = isinstance(request, m.OpenState) and request.step == step
        return m.pack(m.Pending(1, 2)) if pending else reply

    return tampering(change)


def fast() -> Clock:
    """Time that passes when somebody waits."""
    time = [0.0]

    def wait(seconds: float) -> None:
        time[0] += seconds

    return Clock(lambda: time[0], wait)


@pytest.mark.parametrize(
    ("row", "prover"),
    [
        (STATE, refusing(m.OpenState, step=AT - 1)),
        (RECORDS, refusing(m.OpenRecords, step=AT)),
        (STALL, stalling(AT - 1)),
    ],
)
def test_what_is_not_opened_is_a_divergence(
    edited: Path, honest_mlp: Seen, row: Row, prover: Callable[[Transport], Transport]
) -> None:
    seen = found_by_draws_alone(edited, row, wrap=prover, clock=fast())
    assert seen.facts["searched_from"] == AT - 1
    assert honest_mlp.verdict == "reproduced"


def test_whoever_answers_a_byte_at_a_time_runs_out_of_it(edited: Path) -> None:
    """A hole until it was tried: every answer was in time, and the session would have taken a month."""
    clock, asked = fast(), 0

    def change(request: m.Request, reply: bytes) -> bytes:
        nonlocal asked
        if not (isinstance(request, m.OpenState) and request.step == AT - 1):
            return reply
        asked += 1
        clock.sleep(4.5)
        part, payload = m.unpack_reply(reply, m.Part)
        return m.pack(part, payload[:1])

    seen = found_by_draws_alone(edited, DRIP, wrap=tampering(change), clock=clock)
    assert asked * 4.5 <= 120 + 5
    assert seen.facts["session_seconds"] == 120


@pytest.mark.parametrize("silent", [False, True])
def test_whoever_has_seen_the_nonce_cannot_have_been_asked_nothing(edited: Path, silent: bool) -> None:
    """A hole until it was tried: refusing the nonce left the verdict incomplete, whatever would have been drawn."""
    nonce = nonce_that(edited, 3, hits=AT)

    def change(request: m.Request, reply: bytes) -> bytes:
        return m.pack(m.Pending(0, 1)) if isinstance(request, m.Reveal) else reply

    prover = tampering(change) if silent else refusing(m.Reveal)
    seen = verify(edited, draws=3, nonce=nonce, wrap=prover, clock=fast())
    if silent:
        assert (seen.verdict, seen.code) == ("diverged", "unanswered")
    else:
        caught(seen, NONCE)
    owed = {step for step, _ in seen.evidence.predicate.mandatory}
    assert {step for step, _ in seen.found} >= owed | {AT}


def test_a_state_that_was_lost_comes_back_as_the_honest_one(edited: Path, tmp_path: Path) -> None:
    """Losing the evidence makes two draws bad instead of one: the step to that state, and the step from it."""
    run = tmp_path / "run"
    shutil.copytree(edited, run)
    RunDir(run).checkpoint_path(AT).unlink()
    seen = found_by_draws_alone(run, LOST, also=[AT])
    assert seen.facts["prover_code"] == "rebuild-diverged"
    seen = verify(run, draws=3, nonce=nonce_that(run, 3, hits=AT, misses=[AT + 1]))
    assert (seen.verdict, seen.code, seen.step) == ("diverged", "replay-state", AT)
    assert seen.facts["tensor"] == "unknown"  # it cannot be opened, so that nothing more is said


@pytest.mark.parametrize("prover", [refusing(m.OpenState, step=AT - 1), stalling(AT - 1), None])
def test_another_machine_excuses_what_it_computed_and_nothing_else(
    edited: Path, prover: Callable[[Transport], Transport] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole until it was tried: where the machines differ, a refusal counted as one of the machine's differences."""

    def uncovered(*_: object) -> None:
        raise IncompleteError("operation-unprobed", "the step used an operation that was not probed")

    monkeypatch.setattr(challenging, "require_attributable", uncovered)
    how: dict[str, Any] = {} if prover is None else {"wrap": prover}
    seen = verify(edited, draws=3, nonce=nonce_that(edited, 3, hits=AT), clock=fast(), **how)
    assert seen.verdict == ("incomplete" if prover is None else "diverged")
