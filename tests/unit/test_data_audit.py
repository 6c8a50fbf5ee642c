"""The audit of a run's data: true runs are complete, and a ledger that hides a document is found whatever it hides."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from made_run import SPANS, Made, made_run

from protocol.answering import check_answer
from protocol.data_audit import open_audit, sign_audit
from protocol.errors import ProtocolError, VerificationError
from protocol.keys import SigningKey
from protocol.ledger_claim import RAW, LedgerClaim
from protocol.normaliser import document_digest
from protocol.places import Places
from witness.auditing import audit_data
from witness.cli import group
from witness.query import Answerer
from witness.rundir import RunDir

AUDITOR = SigningKey("auditor.example", bytes(range(3, 35)))
TEXTS = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 4 for i in range(12)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_run(tmp_path_factory.mktemp("audit") / "run", TEXTS)


def audited(run: RunDir) -> bytes:
    return audit_data(run, AUDITOR, clock=lambda: 1_800_000_000.5)


def test_a_true_run_is_complete_and_raises_the_level_of_its_answers(run: RunDir) -> None:
    signed = audited(run)
    audit = open_audit(signed, keys=(AUDITOR.public,)).predicate
    manifest = run.manifest()
    assert (audit.verdict, audit.ledgers, audit.corpus) == ("complete", manifest.ledgers, manifest.corpus.root)
    assert (audit.documents, audit.length) == (len(TEXTS), sum(map(len, TEXTS)))
    keeper = Answerer(run)
    answer = keeper.digests([(RAW, document_digest(RAW, b"other"))], [signed])
    completeness = check_answer(answer.to_bytes(), keeper.head).replies[0].completeness
    assert completeness.level == "fully audited"
    assert completeness.words() == f"fully audited by {AUDITOR.public.vkey} at 2027-01-15 08:00:00 UTC (1800000000)"
    with pytest.raises(VerificationError):
        check_answer(answer.to_bytes(), keeper.head, keys=[SigningKey("other", bytes(32)).public])


def without(document: int, tier: str):
    """A trainer who trained on a document and leaves it out of one ledger."""

    def change(made: Made) -> Made:
        out = []
        for claim, places in made:
            if claim.tier == tier:
                fewer = Places.of((key, d) for key, d in places if d != document)
                true = fewer.claim(tier, claim.documents)
                out.append((LedgerClaim(tier, true.root, true.entries, claim.documents), fewer))
            else:
                out.append((claim, places))
        return out

    return change


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_document_left_out_of_any_ledger_is_found(tmp_path: Path, run: RunDir, which: int) -> None:
    tier = run.manifest().ledgers[which].tier
    cheat = made_run(tmp_path / "run", TEXTS, change=without(4, tier))
    audit = open_audit(audited(cheat)).predicate
    assert audit.verdict == "differs"
    assert [finding.split(":")[0] for finding in audit.findings] == [f"ledger {tier}"]
    found = CliRunner().invoke(group, ["data", "audit", str(cheat.path), "--json"])
    assert (found.exit_code, json.loads(found.stdout)["verdict"]) == (1, "differs")


def test_an_audit_that_accuses_does_not_pass_as_evidence(tmp_path: Path) -> None:
    cheat = made_run(tmp_path / "run", TEXTS, change=without(4, SPANS))
    keeper = Answerer(cheat)
    answer = keeper.digests([(RAW, document_digest(RAW, b"other"))], [audited(cheat)])
    with pytest.raises(VerificationError, match="an audit found"):
        check_answer(answer.to_bytes(), keeper.head)


def test_changed_data_is_named(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", TEXTS)
    path = run.corpus / "data"
    data = bytearray(path.read_bytes())
    data[len(TEXTS[0]) + 3] ^= 1
    path.write_bytes(data)
    audit = open_audit(audited(run)).predicate
    assert audit.verdict == "differs"
    assert audit.findings[0].startswith("document 1:") and len(audit.findings) == 5


def test_an_audit_of_another_run_is_no_evidence(run: RunDir, tmp_path: Path) -> None:
    other = audited(made_run(tmp_path / "run", TEXTS[:-1]))
    keeper = Answerer(run)
    with pytest.raises(VerificationError, match="another run"):
        check_answer(keeper.digests([(RAW, bytes(32))], [other]).to_bytes(), keeper.head)


def test_an_audit_cannot_be_turned(run: RunDir) -> None:
    signed = audited(run)
    audit = open_audit(signed).predicate
    with pytest.raises(VerificationError, match="verdict"):
        open_audit(sign_audit(msgspec.structs.replace(audit, verdict="differs"), AUDITOR))
    with pytest.raises(VerificationError):  # signed by somebody else than it says
        open_audit(sign_audit(audit, SigningKey("somebody", bytes(range(9, 41)))))
    with pytest.raises(ProtocolError):
        open_audit(signed[:-4])
    # A lie that is signed: complete, but other roots. Whoever checks an answer compares with the manifest.
    lie = sign_audit(msgspec.structs.replace(audit, ledgers=audit.ledgers[:1]), AUDITOR)
    keeper = Answerer(run)
    with pytest.raises(VerificationError, match="other ledgers"):
        check_answer(keeper.digests([(RAW, bytes(32))], [lie]).to_bytes(), keeper.head)


def test_the_command_writes_what_query_takes(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    found = CliRunner().invoke(group, ["data", "audit", str(run.path), "--out", str(out)])
    assert found.exit_code == 0 and "complete: 12 documents" in found.output
    again = CliRunner().invoke(group, ["data", "audit", str(run.path), "--out", str(out)])
    assert again.exception is not None and again.exception.code == "certificate-exists"
    asked = CliRunner().invoke(group, ["query", str(run.path), "--digest", "00" * 32, "--audit", str(out), "--json"])
    assert json.loads(asked.stdout)["answers"][0]["completeness"]["level"] == "fully audited"
