"""A38: turn "cannot tell" into a pass.

Everything that a session owes is taken away in turn: from the certificate, from what the prover answers, and from
what the verifier does. What is left never says *reproduced*. The required set comes from the reader's own policy
and arithmetic; a thing that is not there is missing, not fine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attacks.court import VERIFIER, Seen, Transport, refusing, tampering, verify
from attacks.programs import STEPS
from attacks.table import Row

from protocol import messages as m
from protocol.certificate import Evidence, Predicate, add, open_certificate, sign_certificate
from protocol.encoding import encode
from protocol.errors import CODES, EXIT_DIVERGED, EXIT_INCOMPLETE, IncompleteError, VerificationError, WitnessError
from protocol.required import CHECKS, CheckResult, Result
from witness import replay
from witness.challenging import Challenger
from witness.replay import Replayer
from witness.verifier import Verification

CLAIMED = Row(
    "A38",
    "a check or challenge taken out, the verdict kept",
    "certificate",
    "the verdict follows from the facts",
    "certificate",
)
TAKEN = Row(
    "A38",
    "a check or challenge taken out, the verdict as it follows",
    "certificate",
    "required set (incomplete)",
    "incomplete",
)
UNANSWERED = Row("A38", "a kind of request is never answered", "opening", "unanswered is diverged", "refused")
GARBAGE = Row("A38", "a kind of request is answered with something else", "parser", "the reply that is due", "frame")
UNDONE = Row(
    "A38", "a part of the verifier's work is not done", "certificate", "required set (incomplete)", "incomplete"
)
TWICE = Row("A38", "a session certified twice, once as diverged", "certificate", "any divergence counts", "diverged")
SHORT = Row("A38", "the replayed program answers for no step", "check", "rows of hyperparameters", "sandbox-output")
ROWS = (CLAIMED, TAKEN, UNANSWERED, GARBAGE, UNDONE, TWICE, SHORT)
UNKNOWN = Result("incomplete", "not-run", "not run")


def signed(predicate: Predicate, **changed: Any) -> Evidence:
    """A certificate of an honest key over other facts, opened."""
    return open_certificate(sign_certificate(msgspec.structs.replace(predicate, **changed), VERIFIER))


def pieces(predicate: Predicate) -> list[tuple[str, int]]:
    """Everything that was owed and has an outcome: place in `checks`, or in `challenges`."""
    places = [("checks", i) for i in range(len(predicate.checks))]
    return places + [("challenges", i) for i in range(len(predicate.challenges))]


@pytest.mark.parametrize("how", ["removed", "unknown", "renamed"])
def test_whatever_is_taken_out_of_a_certificate(honest_mlp: Seen, how: str) -> None:
    predicate = honest_mlp.evidence.predicate
    assert len(pieces(predicate)) >= len(CHECKS) + 3
    for name, at in pieces(predicate):
        kept = list(getattr(predicate, name))
        if how == "removed":
            del kept[at]
        elif how == "unknown":
            kept[at] = msgspec.structs.replace(kept[at], result=UNKNOWN)
        elif name == "checks":
            kept[at] = CheckResult("checked-" + kept[at].name, kept[at].result)
        else:
            continue
        changed = {name: tuple(kept)}
        with pytest.raises(VerificationError) as refused:
            signed(predicate, **changed)
        assert refused.value.code == CLAIMED.code
        evidence = signed(predicate, **changed, verdict="incomplete")
        assert evidence.verdict == TAKEN.code
        assert evidence.missing and evidence.draws == 0 and evidence.detection == 0
        assert add([evidence]).verdict == "incomplete"
        assert add([evidence, evidence]).verdict == "incomplete"


def test_every_outcome_that_diverged_diverges_the_whole(honest_mlp: Seen) -> None:
    predicate = honest_mlp.evidence.predicate
    for name, at in pieces(predicate):
        listed = list(getattr(predicate, name))
        listed[at] = msgspec.structs.replace(listed[at], result=Result("diverged", "replay-state", "it differs"))
        for beside in ((), (getattr(predicate, name)[at],)):  # a second outcome of the same thing does not mend it
            for order in (tuple(listed) + beside, beside + tuple(listed)):
                with pytest.raises(VerificationError):
                    signed(predicate, **{name: order})
                assert signed(predicate, **{name: order}, verdict="diverged").verdict == "diverged"


def test_fewer_draws_than_the_policy_asks_are_incomplete(honest_mlp: Seen) -> None:
    predicate = honest_mlp.evidence.predicate
    fewer = predicate.draws - 1
    kept = tuple(msgspec.structs.replace(c, order=None) if c.order == fewer else c for c in predicate.challenges)
    evidence = signed(predicate, draws=fewer, challenges=kept, verdict="incomplete")
    assert evidence.owed_draws == predicate.draws and evidence.verdict == "incomplete"


def test_a_divergence_is_not_outvoted_by_its_own_session(honest_mlp: Seen) -> None:
    """A hole until it was tried: of two certificates of one session the first counted, whatever the second said."""
    predicate = honest_mlp.evidence.predicate
    bad = (msgspec.structs.replace(predicate.challenges[0], result=Result("diverged", "replay-state")),)
    other = signed(predicate, challenges=bad + predicate.challenges[1:], verdict="diverged")
    for order in ([honest_mlp.evidence, other], [other, honest_mlp.evidence]):
        assert add(order).verdict == TWICE.code


# -- what the prover does not do -------------------------------------------------------------------

REQUESTS = [m.Hello, m.GetHeads, m.GetLeaves, m.GetLog, m.Reveal, m.OpenState, m.ReadPieces, m.OpenRecords]


def ending(run: Path, wrap: Callable[[Transport], Transport], **how: Any) -> tuple[str, str]:
    """Verdict and first code of a session; an error before there was anything to certify is one too."""
    try:
        seen = verify(run, wrap=wrap, **how)
    except WitnessError as error:
        exit_status = CODES[error.code].exit_status
        return {EXIT_DIVERGED: "diverged", EXIT_INCOMPLETE: "incomplete"}.get(exit_status, "error"), error.code
    return seen.verdict, seen.code


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_request_can_go_unanswered(mlp: Path, kind: type[m.Request]) -> None:
    assert ending(mlp, refusing(kind)) == ("diverged", UNANSWERED.code)


def wrong_kind(reply: bytes) -> bytes:
    return m.pack(m.Records(0, 0, (), ())) if b'"type":"done"' in reply else m.pack(m.Done())


def empty(reply: bytes) -> bytes:
    return b""


def cut(reply: bytes) -> bytes:
    return reply[: len(reply) // 2]


def noise(reply: bytes) -> bytes:
    return bytes(range(256)) * 4


def hollow(reply: bytes) -> bytes:
    """The right kind of reply, with nothing in it, that says it is complete."""
    header, _ = m.unpack_reply(reply, m.Struct)
    for name in ("total", "first"):
        if hasattr(header, name):
            header = msgspec.structs.replace(header, **{name: 0})
    for name in ("notes", "lengths", "proofs"):
        if hasattr(header, name):
            header = msgspec.structs.replace(header, **{name: ()})
    return m.pack(header)


# An empty list of heads is an answer: it says that there are no others.
ANSWERS = [(kind, what) for kind in REQUESTS for what in (wrong_kind, empty, cut, noise)]
ANSWERS += [(kind, hollow) for kind in REQUESTS if kind not in (m.Hello, m.GetHeads, m.Reveal)]


@pytest.mark.parametrize(("kind", "what"), ANSWERS)
def test_no_other_answer_will_do(mlp: Path, kind: type[m.Request], what: Callable[[bytes], bytes]) -> None:
    def change(request: m.Request, reply: bytes) -> bytes:
        return what(reply) if isinstance(request, kind) else reply

    verdict, code = ending(mlp, tampering(change))
    assert verdict == "diverged"
    assert code in CODES and (what is not wrong_kind or code == GARBAGE.code)


# -- what the verifier does not do -----------------------------------------------------------------


def without(name: str, result: Any) -> type[Verification]:
    """A verifier that leaves one part of its work out."""

    def nothing(*_: Any) -> Any:
        return result

    return type("Careless", (Verification,), {name: nothing, "__slots__": ()})


@pytest.mark.parametrize(
    ("name", "result"),
    [("_replay", None), ("_read_log", False), ("_check_hyperparameters", None), ("_challenge", None)],
)
def test_no_part_of_the_work_can_be_left_out(mlp: Path, name: str, result: Any) -> None:
    assert verify(mlp, kind=without(name, result)).verdict == UNDONE.code


def test_no_certificate_without_the_log(mlp: Path) -> None:
    with pytest.raises(RuntimeError, match="not read"):
        verify(mlp, kind=without("_read_log", True))


@pytest.mark.parametrize("step", [0, 1, STEPS])
def test_a_challenge_that_could_not_run_is_incomplete(mlp: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Challenger.run

    def broken(self: Challenger, challenge: Any) -> Result:
        if challenge.step == step:
            return Result("incomplete", "replay-stopped", "the machine was switched off")
        return run(self, challenge)

    monkeypatch.setattr(Challenger, "run", broken)
    for keep_going in (False, True):
        seen = verify(mlp, keep_going=keep_going)
        assert seen.verdict == "incomplete" and f"step {step}" in seen.evidence.missing


@pytest.mark.parametrize("job", ["init", "steps", "compare", "hyperparameters"])
def test_a_job_that_could_not_run_is_incomplete(mlp: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Replayer, *arguments: Any, **named: Any) -> Any:
        raise IncompleteError("replay-stopped", "no memory")

    monkeypatch.setattr(Replayer, job, broken)
    seen = verify(mlp)
    assert (seen.verdict, seen.code) == ("incomplete", "replay-stopped")


def test_an_interrupted_session_certifies_nothing(mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Challenger, challenge: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(Challenger, "run", interrupted)
    assert verify(mlp).verdict == "incomplete"


@pytest.mark.parametrize("rows", [0, STEPS - 1, STEPS + 1])
def test_rows_that_the_program_does_not_give_are_missing(mlp: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole until it was tried: a program that left an empty list was compared with nothing."""
    read = replay.sandbox.read_output

    def forged(job: Path, name: str, *, limit: int) -> bytes:
        return encode([{}] * rows) if name == "hyperparameters" else read(job, name, limit=limit)

    monkeypatch.setattr(replay.sandbox, "read_output", forged)
    seen = verify(mlp)
    assert (seen.verdict, seen.code) == ("diverged", SHORT.code)
