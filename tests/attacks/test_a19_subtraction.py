"""A19: claim data that was never used - safety data, licensed data - because it sounds well."""

from pathlib import Path

import msgspec
import pytest
from attacks.asking import ask
from attacks.table import Row
from made_run import made_run

from protocol.answering import check_answer
from protocol.errors import VerificationError
from protocol.ledger_claim import RAW
from protocol.normaliser import document_digest
from witness.query import Answerer

TEXTS = [b"document %d, of the usual kind." % i for i in range(40)]
SAFETY = b"be kind, and refuse to build weapons."
ABSENT = Row("A19", "data is claimed that is not in the corpus", "answer", "ledger", "absent")
UNREAD = Row(
    "A19", "data is in the corpus, and no step reads it", "answer", "steps derived from the schedule", "included"
)
ROWS = (ABSENT, UNREAD)


def test_what_is_only_claimed_is_absent(tmp_path: Path) -> None:
    assert ask(made_run(tmp_path / "run", TEXTS), SAFETY).result == ABSENT.code


def test_what_no_step_reads_is_included_and_unread(tmp_path: Path) -> None:
    """Four steps of four documents: the schedule leaves most of an epoch unread, and the answer says which."""
    run = made_run(tmp_path / "run", [*TEXTS, SAFETY], steps=4)
    replies = [ask(run, text) for text in (*TEXTS, SAFETY)]
    assert {reply.result for reply in replies} == {UNREAD.code}
    unread = [reply for reply in replies if not reply.found[0].uses]
    assert len(unread) == 41 - 16
    assert all(reply.found[0].weight.influence == "none" for reply in unread)


def test_a_run_that_ends_early_cannot_claim_the_rest_of_its_promise(tmp_path: Path) -> None:
    """The steps that count are those of the log under the head, not those that the manifest promises."""
    run = made_run(tmp_path / "run", [*TEXTS, SAFETY], steps=11)  # a whole epoch
    keeper = Answerer(run)
    answer = keeper.digests([(RAW, document_digest(RAW, SAFETY))])
    assert check_answer(answer.to_bytes(), keeper.head).replies[0].found[0].uses
    longer = msgspec.structs.replace(answer.tail[0].entry, steps=12)
    lie = msgspec.structs.replace(answer, tail=(msgspec.structs.replace(answer.tail[0], entry=longer),))
    with pytest.raises(VerificationError):
        check_answer(lie.to_bytes(), keeper.head)
