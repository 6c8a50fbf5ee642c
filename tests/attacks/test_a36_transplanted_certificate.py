"""A36: a genuine certificate, or parts of one, on something else.

Whoever edits one cannot sign for its verifier; whoever signs it anew is named by it. What is signed must hang
together: run, head, statement, nonce, draws and outcomes are derived again, and the log itself says which
challenges were owed.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attacks.court import SESSION, VERIFIER, Seen, policy_for, verify
from attacks.programs import STEPS
from attacks.table import Row
from attacks.trainers import KEY

from protocol.certificate import Evidence, Predicate, add, open_certificate, sign_certificate
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.keys import SigningKey
from protocol.proving import ProverSession
from protocol.randomness import commit_nonce
from witness.holding import hold_to_run
from witness.prover import RunArchive
from witness.rundir import RunDir
from witness.verifier import Options, Verification

FORGER = SigningKey("forger.example", bytes(range(3, 35)))
RUN = Row("A36", "shown for another run", "certificate", "run id in the manifest", "other-run")
HEAD = Row("A36", "another run's head put in", "signature", "origin of the head", "head-origin")
NONCE = Row("A36", "another session's nonce put in", "certificate", "commitment to the nonce", "nonce-mismatch")
STATEMENT = Row("A36", "another session's statement put in", "signature", "what the statement binds", "statement")
VERIFIED = Row("A36", "another verifier's name put in", "signature", "key of the named verifier", "envelope-unsigned")
TRAINER = Row("A36", "another trainer's name put in", "signature", "key of the named trainer", "note-unsigned")
EDITED = Row("A36", "verdict edited in the envelope", "signature", "key of the named verifier", "envelope-unsigned")
VERDICT = Row(
    "A36", "verdict edited and signed anew", "certificate", "the verdict follows from the facts", "certificate"
)
REMOVED = Row(
    "A36", "a challenge removed and signed anew", "certificate", "the verdict follows from the facts", "certificate"
)
DRAWS = Row("A36", "draws renumbered", "certificate", "draws derived again", "certificate")
OWED = Row(
    "A36", "a mandatory challenge left out of what was owed", "certificate", "the log says what is owed", "certificate"
)
CLAIM = Row("A36", "more claimed than the format claims", "certificate", "claims", "certificate")
ROWS = (RUN, HEAD, NONCE, STATEMENT, VERIFIED, TRAINER, EDITED, VERDICT, REMOVED, DRAWS, OWED, CLAIM)


@pytest.fixture(scope="module")
def served(mlp: Path) -> Evidence:
    """A session over a transport, so that the trainer signs a statement."""
    with RunArchive(RunDir.open(mlp), block=True) as archive:
        prover = ProverSession(archive, SESSION, KEY)
        session = Verification(prover.handle, policy_for(STEPS, 4), VERIFIER, b"\7" * 32, Options())
        return open_certificate(session.run(), keys=[VERIFIER.public])


@pytest.fixture(scope="module")
def other(gpt: Path) -> Evidence:
    """A session of another verifier over another run."""
    with RunArchive(RunDir.open(gpt), block=True) as archive:
        prover = ProverSession(archive, bytes(16), KEY)
        session = Verification(prover.handle, policy_for(STEPS, 2), FORGER, b"\x08" * 32, Options())
        return open_certificate(session.run())


def forged(predicate: Predicate, key: SigningKey = FORGER, **changed: Any) -> bytes:
    """A certificate with some things replaced, signed by somebody."""
    named = {"verifier": key.public.vkey} | changed
    return sign_certificate(msgspec.structs.replace(predicate, **named), key)


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises((VerificationError, ProtocolError, UsageError)) as refused:
        act()
    return refused.value.code


def test_both_are_genuine(served: Evidence, other: Evidence, mlp: Path, gpt: Path) -> None:
    for evidence, run in ((served, mlp), (other, gpt)):
        assert evidence.verdict == "reproduced" and evidence.predicate.statement
        hold_to_run(evidence, run)
    assert (
        open_certificate(forged(served.predicate)).verdict == "reproduced"
    )  # signed anew without a lie, by whoever signs


def test_a_certificate_is_about_its_own_run(served: Evidence, gpt: Path) -> None:
    assert refusal(lambda: hold_to_run(served, gpt)) == RUN.code


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (HEAD, ["head"]),
        (NONCE, ["nonce"]),
        (STATEMENT, ["statement"]),
        (STATEMENT, ["session"]),
        (STATEMENT, ["policy"]),
        (STATEMENT, ["commitment", "nonce"]),
        (HEAD, ["run"]),
    ],
)
def test_parts_of_another_certificate_do_not_fit(served: Evidence, other: Evidence, row: Row, names: list[str]) -> None:
    taken = {name: getattr(other.predicate, name) for name in names}
    assert refusal(lambda: open_certificate(forged(served.predicate, **taken))) == row.code


def test_a_nonce_of_the_forgers_choice_does_not_fit(served: Evidence) -> None:
    """Not even with its commitment, and the draws that follow from it: the trainer signed another commitment."""
    chosen = bytes(32)
    changed = {"nonce": chosen.hex(), "commitment": commit_nonce(chosen).hex()}
    assert refusal(lambda: open_certificate(forged(served.predicate, **changed))) == STATEMENT.code


def test_nobody_signs_for_another(served: Evidence) -> None:
    named = {"verifier": VERIFIER.public.vkey}
    assert refusal(lambda: open_certificate(forged(served.predicate, **named))) == VERIFIED.code
    # A reader who accepts certain verifiers only does not get as far as the forger's name.
    assert refusal(lambda: open_certificate(forged(served.predicate), keys=[VERIFIER.public])) == VERIFIED.code
    named = {"trainer": FORGER.public.vkey}
    assert refusal(lambda: open_certificate(forged(served.predicate, **named))) == TRAINER.code


def test_an_edited_envelope_is_not_signed(edited: Path) -> None:
    seen = verify(edited, draws=STEPS)
    assert seen.verdict == "diverged"
    envelope = msgspec.json.decode(seen.certificate)
    payload = base64.b64decode(envelope["payload"]).replace(b'"verdict":"diverged"', b'"verdict":"reproduced"')
    envelope["payload"] = base64.b64encode(payload).decode()
    assert refusal(lambda: open_certificate(msgspec.json.encode(envelope, order="sorted"))) == EDITED.code


def test_a_verdict_follows_from_the_facts(served: Evidence, edited: Path) -> None:
    diverged = verify(edited, draws=STEPS).evidence.predicate
    assert refusal(lambda: open_certificate(forged(diverged, verdict="reproduced"))) == VERDICT.code
    without = tuple(c for c in diverged.challenges if c.result.outcome == "reproduced")
    assert refusal(lambda: open_certificate(forged(diverged, verdict="reproduced", challenges=without))) == REMOVED.code
    assert (
        refusal(lambda: open_certificate(forged(served.predicate, verdict="diverged"))) == VERDICT.code
    )  # nor to accuse


def test_draws_are_derived_again(served: Evidence) -> None:
    moved = [msgspec.structs.replace(c, order=None) if c.order == 0 else c for c in served.predicate.challenges]
    assert refusal(lambda: open_certificate(forged(served.predicate, challenges=tuple(moved)))) == DRAWS.code
    assert refusal(lambda: open_certificate(forged(served.predicate, draws=served.predicate.draws + 1))) == DRAWS.code
    assert refusal(lambda: open_certificate(forged(served.predicate, draws=STEPS + 1))) == DRAWS.code


@pytest.mark.parametrize("step", [0, 1, STEPS])
def test_some_challenges_are_owed_by_every_run(served: Evidence, step: int) -> None:
    owed = tuple(pair for pair in served.predicate.mandatory if pair[0] != step)
    assert refusal(lambda: open_certificate(forged(served.predicate, mandatory=owed))) == OWED.code


def test_the_others_are_what_the_log_owes(served: Evidence, mlp: Path) -> None:
    outlier = next(pair for pair in served.predicate.mandatory if pair[1] == "outlier")
    owed = tuple(pair for pair in served.predicate.mandatory if pair != outlier)
    lenient = open_certificate(forged(served.predicate, mandatory=owed))
    assert refusal(lambda: hold_to_run(lenient, mlp)) == OWED.code


def test_nothing_more_can_be_claimed(served: Evidence) -> None:
    assert refusal(lambda: open_certificate(forged(served.predicate, claims=("the model is safe",)))) == CLAIM.code
    assert refusal(lambda: open_certificate(forged(served.predicate, not_claimed=()))) == CLAIM.code


def test_a_session_counts_once(served: Evidence, honest_mlp: Seen) -> None:
    """Copies of one certificate, or the same session signed twice, are no new evidence."""
    total = add([served, served, open_certificate(forged(served.predicate))])
    assert (total.sessions, total.detection) == (1, served.detection)
    assert add([served, honest_mlp.evidence]).detection > served.detection
