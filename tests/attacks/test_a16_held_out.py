"""A16: train on the documents that the model is then tested on.

The small likeness of a real dispute: a script put four fifths of the validation documents into the training set, and
nobody could tell from the logs. Here every leaked one is named with a proof, and in a clean split each is proven
absent.
"""

from pathlib import Path

import pytest
from attacks import programs
from attacks.asking import ask, ask_all
from attacks.court import Seen
from attacks.table import Row
from made_run import made_run

from protocol.answering import check_answer
from protocol.data_audit import open_audit
from protocol.errors import VerificationError
from protocol.keys import SigningKey
from protocol.ledger_claim import RAW, LedgerClaim
from protocol.normaliser import document_digest
from protocol.places import Places
from witness.auditing import audit_data
from witness.books import Books
from witness.query import Answerer
from witness.rundir import RunDir

LEAKED = Row("A16", "four fifths of the held-out documents are in the training set", "answer", "ledger", "included")
HIDDEN = Row(
    "A16",
    "held-out documents are trained on and left out of a ledger",
    "check",
    "lists of the ledgers",
    "ledger-documents",
)
ROWS = (LEAKED, HIDDEN)

TRAINING = [b"training document %d, of which nobody is tested." % i for i in range(60)]
HELD_OUT = [b"held-out document %d, on which the model is tested." % i for i in range(25)]
PART = 20


def test_every_leaked_document_is_named_with_proof_and_steps(tmp_path: Path) -> None:
    run = made_run(tmp_path / "leaky", [*TRAINING, *HELD_OUT[:PART]], steps=20)
    replies = ask_all(run, HELD_OUT)
    assert [reply.result for reply in replies] == [LEAKED.code] * PART + ["absent"] * (len(HELD_OUT) - PART)
    for number, reply in enumerate(replies[:PART]):
        (found,) = reply.found
        assert found.leaf.index == len(TRAINING) + number
        assert len(found.uses) == 1 and found.weight.influence == "some"  # one epoch: 20 steps of 4


def test_of_a_clean_split_every_document_is_proven_absent(tmp_path: Path) -> None:
    run = made_run(tmp_path / "clean", TRAINING, steps=20)
    assert {reply.result for reply in ask_all(run, HELD_OUT)} == {"absent"}


def hiding(number: int):
    def change(made):
        out = []
        for claim, places in made:
            fewer = Places.of((key, d) for key, d in places if d < number)
            root = fewer.claim(claim.tier, claim.documents)
            out.append((LedgerClaim(claim.tier, root.root, root.entries, claim.documents), fewer))
        return out

    return change


def test_what_is_left_out_of_the_ledgers_is_found_by_whoever_reads_the_lists(tmp_path: Path) -> None:
    """The trainer hides the leak. Proofs of absence verify, at the lowest level; the lists and an audit tell."""
    run = made_run(tmp_path / "hiding", [*TRAINING, *HELD_OUT], steps=20, change=hiding(len(TRAINING)))
    books = Books(run, run.manifest())
    tier = run.manifest().ledgers[1].tier
    with pytest.raises(VerificationError) as caught:
        books.of(tier)
    assert caught.value.code == HIDDEN.code
    with pytest.raises(VerificationError) as caught:  # this list follows from the leaves, and has another root
        books.of(RAW)
    assert caught.value.code == "ledger-root"
    audit = open_audit(audit_data(run, SigningKey("auditor", bytes(range(32))))).predicate
    assert audit.verdict == "differs" and len(audit.findings) == len(run.manifest().ledgers)


def test_a_session_over_a_real_run_raises_the_level_and_says_how_far(gpt: Path, honest_gpt: Seen) -> None:
    run = RunDir.open(gpt)
    reply = ask(run, programs.TEXTS[3])
    assert reply.result == "included" and reply.completeness.level == "root-consistent"
    found = ask(run, b"held out", evidence=[honest_gpt.certificate]).completeness
    assert found.level == "spot-checked"
    replayed = {c.step for c in honest_gpt.evidence.predicate.challenges if c.step}
    assert (found.spot.steps, found.spot.of_steps) == (len(replayed), programs.STEPS)
    assert f"spot-checked {len(replayed)} of {programs.STEPS} steps" in found.words()


def test_a_certificate_over_another_head_is_no_evidence(gpt: Path, honest_gpt: Seen, honest_mlp: Seen) -> None:
    keeper = Answerer(RunDir.open(gpt))
    answer = keeper.digests([(RAW, document_digest(RAW, b"held out"))], [honest_mlp.certificate])
    with pytest.raises(VerificationError, match="over another head"):
        check_answer(answer.to_bytes(), keeper.head)
