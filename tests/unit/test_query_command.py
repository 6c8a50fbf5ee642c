"""`witness query`: documents, digests, passages and sets; and the offline check with two files and nothing else."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from made_run import KEY, SPANS, made_run

from protocol.encoding import encode
from protocol.errors import WitnessError
from protocol.keys import SigningKey
from protocol.ledger_claim import RAW
from protocol.records import FaultEvent
from witness.auditing import audit_data
from witness.cli import group
from witness.query import Answerer
from witness.rundir import RunDir

ROOT = Path(__file__).parents[2]
AUDITOR = SigningKey("auditor.example", bytes(range(3, 35)))
TEXTS = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 4 for i in range(24)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_run(tmp_path_factory.mktemp("query") / "run", TEXTS, steps=12)


def newest(run: RunDir) -> Path:
    return run.heads / f"{run.head_sizes()[-1]:012}.note"


def ask(*arguments: object, data: bytes | None = None) -> Result:
    return CliRunner().invoke(group, ["query", *map(str, arguments)], input=data)


def told(*arguments: object, data: bytes | None = None, status: int = 0) -> dict:
    found = ask(*arguments, "--json", data=data)
    assert found.exit_code == status, (found.output, found.exception)
    return json.loads(found.stdout)


def refusal(*arguments: object, data: bytes | None = None) -> WitnessError:
    found = ask(*arguments, data=data)
    assert isinstance(found.exception, WitnessError), found.output
    return found.exception


def test_a_document_is_asked_about_in_every_tier_of_documents(run: RunDir) -> None:
    facts = told(run.path, "--document", "-", data=TEXTS[4])
    assert [a["tier"] for a in facts["answers"]] == [c.tier for c in run.manifest().ledgers if c.tier != SPANS]
    assert {a["result"] for a in facts["answers"]} == {"included"}
    assert facts["answers"][0]["documents"][0]["document"] == 4
    assert (facts["found"], facts["absent"], facts["not_asked"]) == (1, 0, [SPANS])


def test_what_the_normaliser_evens_out_is_found_in_its_tier_only(run: RunDir) -> None:
    facts = told(run.path, "--document", "-", data=b"\xef\xbb\xbf" + TEXTS[4].rstrip() + b"\r\n")
    assert {a["tier"][:2]: a["result"] for a in facts["answers"]} == {"t0": "absent", "t1": "included"}


def test_the_words_say_what_is_not_covered(run: RunDir) -> None:
    text = ask(run.path, "--document", "-", data=b"unknown").output
    assert (
        "ABSENT" in text and "near-duplicates" in text and "root-consistent" in text and "not in the committed" in text
    )


def test_a_digest_is_enough(run: RunDir) -> None:
    digest = hashlib.sha256(TEXTS[4]).hexdigest()
    assert told(run.path, "--digest", digest)["answers"][0]["result"] == "included"
    assert told(run.path, "--digest", digest, "--tier", SPANS)["answers"][0]["result"] == "absent"
    assert refusal(run.path, "--digest", "abc").code == "usage"
    assert refusal(run.path, "--digest", digest, "--tier", "t1-none").code == "ledger-tier"


def test_a_passage(run: RunDir, tmp_path: Path) -> None:
    facts = told(run.path, "--span", "-", data=TEXTS[4][9:99])
    assert (facts["answers"][0]["result"], facts["answers"][0]["documents"][0]["document"]) == ("included", 4)
    assert told(run.path, "--span", "-", data=b"%d" % 7 * 80)["answers"][0]["result"] == "absent"
    found = refusal(run.path, "--span", "-", data=b"short")
    assert (found.code, found.exit_status, found.evidence["T"]) == ("span-length", 64, 50)


def test_a_passage_that_cannot_be_opened_is_incomplete(run: RunDir, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "run"))
    (copy / "corpus/data").unlink()
    assert told(copy, "--span", "-", data=TEXTS[4][9:99], status=2)["answers"][0]["result"] == "possible"


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    folder = tmp_path / "validation"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_bytes(TEXTS[number] if number < 4 else b"clean %d" % number)
    return folder


def test_a_set_gives_hits_by_name_and_proofs(run: RunDir, validation: Path, tmp_path: Path) -> None:
    facts = told(run.path, "--all", validation, "--out", tmp_path / "proofs")
    hits = {a["name"] for a in facts["answers"] if a["result"] == "included"}
    assert hits == {"0.txt", "1.txt", "2.txt", "3.txt"}
    assert (facts["asked"], facts["found"], facts["absent"]) == (10, 4, 6)
    proofs = sorted((tmp_path / "proofs").iterdir())
    assert len(proofs) == 10
    head = newest(run)
    results = [told("--check", proof, "--head", head)["found"] for proof in proofs]
    assert sum(found > 0 for found in results) == 4
    text = ask(run.path, "--all", validation, "--out", tmp_path / "all.json").output
    assert "10 documents asked, 4 included, 6 proven absent" in text and "3.txt: INCLUDED as document 3" in text
    assert told("--check", tmp_path / "all.json", "--head", head)["head"]["size"] == run.head_sizes()[-1]


def test_no_two_documents_of_a_set_share_a_name(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names tell answers apart: of files in different folders, and of lines in different files, however it is named."""
    files = tmp_path / "set"
    for name, text in (("a/x.txt", TEXTS[1]), ("b/x.txt", b"clean"), ("x.txt", TEXTS[2]), ("y.txt", TEXTS[2])):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(text)
    lines = tmp_path / "lines"
    lines.mkdir()
    for name, texts in (("one", [TEXTS[3], b"clean", TEXTS[4]]), ("two", [b"other", TEXTS[3], b"clean"])):
        (lines / f"{name}.jsonl").write_text("".join(json.dumps({"text": text.decode()}) + "\n" for text in texts))
    monkeypatch.chdir(tmp_path)
    for named in (files, Path("set"), Path("set/"), Path("./lines/../set")):
        facts = told(run.path, "--all", named, "--tier", RAW)
        assert {a["name"]: a["result"] for a in facts["answers"]} == {
            "a/x.txt": "included",
            "b/x.txt": "absent",
            "x.txt": "included",
            "y.txt": "included",
        }
        assert (facts["asked"], facts["found"], facts["absent"]) == (4, 3, 1)
    for named in (lines, Path("lines")):
        facts = told(run.path, "--all", named)
        assert (facts["asked"], facts["found"], facts["absent"]) == (6, 3, 3)
        hits = {a["name"] for a in facts["answers"] if a["result"] == "included"}
        assert hits == {
            "document 0 of lines in one.jsonl",
            "document 2 of lines in one.jsonl",
            "document 4 of lines in two.jsonl",
        }
        assert str(tmp_path) not in json.dumps(facts["answers"])


def test_a_set_is_asked_about_in_parts_and_in_further_tiers_only_where_it_is_absent(
    run: RunDir, validation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (validation / "10.txt").write_bytes(TEXTS[11] + b"\r\n")  # equal to document 11 when normalised
    whole = told(run.path, "--all", validation, "--out", tmp_path / "whole.json")
    monkeypatch.setattr("witness.sets.AT_ONCE", 3)
    parts = told(run.path, "--all", validation, "--out", tmp_path / "each")
    assert {**parts, "out": None, "answers": 0} == {**whole, "out": None, "answers": 0}

    def said(facts: dict) -> list[tuple[str, str, str]]:
        return sorted((a["name"], a["tier"][:2], a["result"]) for a in facts["answers"])

    assert said(parts) == said(whole)
    assert (whole["asked"], whole["found"], whole["absent"]) == (11, 5, 6)
    hits = [row for row in said(whole) if row[2] == "included"]
    assert [(name, tier) for name, tier, _ in hits] == [
        ("0.txt", "t0"),
        ("1.txt", "t0"),
        ("10.txt", "t1"),
        ("2.txt", "t0"),
        ("3.txt", "t0"),
    ]
    assert sorted(name for name, tier, result in said(whole) if tier == "t1") == sorted(
        [*(f"{n}.txt" for n in range(4, 10)), "10.txt"]
    )
    assert told("--check", tmp_path / "whole.json", "--head", newest(run))["head"] == whole["head"]
    for name, data, results in (
        ("10.txt", TEXTS[11] + b"\r\n", ["absent", "included"]),
        ("3.txt", TEXTS[3], ["included"]),
    ):
        proof = tmp_path / "each" / (hashlib.sha256(data).hexdigest() + ".proof.json")
        facts = told("--check", proof, "--head", newest(run), "--document", validation / name)
        assert [a["result"] for a in facts["answers"]] == results


def test_a_set_asked_while_the_head_moves_is_not_put_together(
    run: RunDir, validation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts under two heads are two answers; the tiers of a part are asked again."""
    moving = made_run(tmp_path / "moving", TEXTS, final=False)

    class Mover(Answerer):
        calls: list[int] = []  # noqa: RUF012

        def digests(self, *arguments, **named):
            self.calls.append(1)
            if len(self.calls) in moves:
                with moving.log() as log:
                    log.append(encode(FaultEvent(1, "x")))
                    moving.sign_head(log, moving.manifest().origin, KEY)
            latest = Answerer(moving)
            self.head = latest.head
            return latest.digests(*arguments, **named)

    monkeypatch.setattr("witness.query.Answerer", Mover)
    moves = {2}  # between the tiers of the first part
    facts = told(moving.path, "--all", validation)
    assert (facts["found"], facts["head"]["size"]) == (4, moving.head_sizes()[-1])
    monkeypatch.setattr("witness.sets.AT_ONCE", 5)
    Mover.calls.clear()
    moves = {3}  # between the parts
    assert refusal(moving.path, "--all", validation).code == "head-moved"
    Mover.calls.clear()
    moves = set(range(1, 99))
    assert refusal(moving.path, "--all", validation).code == "head-moved"


def test_a_set_may_be_lines_or_digests(run: RunDir, tmp_path: Path) -> None:
    lines = tmp_path / "set.jsonl"
    lines.write_text("".join(json.dumps({"text": text.decode()}) + "\n" for text in [TEXTS[2], b"clean"]))
    facts = told(run.path, "--all", lines)
    assert (facts["asked"], facts["found"]) == (2, 1)
    digests = tmp_path / "set.txt"
    digests.write_text("".join(hashlib.sha256(text).hexdigest() + "\n" for text in [TEXTS[2], b"clean", b"other"]))
    facts = told(run.path, "--all", digests)
    assert (facts["asked"], facts["found"], facts["answers"][0]["tier"]) == (3, 1, RAW)


def test_two_files_are_enough_and_torch_is_not_needed(run: RunDir, tmp_path: Path) -> None:
    """In an empty folder, by a process of its own: proof and head, no run, no torch, no network module."""
    empty = tmp_path / "empty"
    empty.mkdir()
    ask(run.path, "--document", "-", "--out", empty / "proof", data=TEXTS[4])
    shutil.copy(newest(run), empty / "head")
    code = (
        "import sys; from witness.cli import group\n"
        "try: group(['query', '--check', 'proof', '--head', 'head', '--json'])\n"
        "except SystemExit as end: status = end.code\n"
        "print({'torch', 'httpx2', 'socket', 'sqlite3', 'pymerkle'} & set(sys.modules), status, file=sys.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr.strip() == "set() 0"
    assert json.loads(shown.stdout)["answers"][0]["result"] == "included"


def test_a_proof_is_held_to_the_question(run: RunDir, tmp_path: Path) -> None:
    proof, span, head = tmp_path / "p", tmp_path / "s", newest(run)
    ask(run.path, "--document", "-", "--out", proof, data=TEXTS[4])
    ask(run.path, "--span", "-", "--out", span, data=TEXTS[4][9:99])
    assert told("--check", proof, "--head", head, "--document", "-", data=TEXTS[4])["found"] == 1
    assert refusal("--check", proof, "--head", head, "--document", "-", data=TEXTS[5]).code == "answer"
    assert told("--check", span, "--head", head, "--span", "-", data=TEXTS[4][9:99])["found"] == 1
    assert refusal("--check", span, "--head", head, "--span", "-", data=TEXTS[4][8:99]).code == "answer"
    assert refusal("--check", proof, "--head", head, "--digest", "00" * 32).code == "answer"


def test_evidence_counts_where_a_proof_is_checked(run: RunDir, tmp_path: Path) -> None:
    """Also what came after the proof; and nothing that is named is passed over in silence."""
    proof, audit, head = tmp_path / "p", tmp_path / "a", newest(run)
    ask(run.path, "--document", "-", "--out", proof, data=TEXTS[4])
    audit.write_bytes(audit_data(run, AUDITOR))
    told_of = ("--check", proof, "--head", head)

    def levels(*more: object) -> set[str]:
        return {reply["completeness"]["level"] for reply in told(*told_of, *more)["answers"]}

    assert levels() == {"root-consistent"}
    assert levels("--audit", audit) == levels("--audit", audit, "--key", AUDITOR.public.vkey) == {"fully audited"}
    assert refusal(*told_of, "--audit", audit, "--key", KEY.public.vkey).exit_status == 1
    assert refusal(*told_of, "--audit", tmp_path / "gone").code == "file-unreadable"
    assert refusal(*told_of, "--cert", tmp_path / "gone").code == "file-unreadable"
    other = made_run(tmp_path / "other", TEXTS[:3])
    audit.write_bytes(audit_data(other, AUDITOR))
    assert refusal(*told_of, "--audit", audit).code == "completeness"
    for unused in (("--key", AUDITOR.public.vkey), ("--out", tmp_path / "x"), ("--tier", RAW), (run.path,)):
        assert refusal(*told_of, *unused).code == "usage"
    assert refusal(run.path, "--digest", "00" * 32, "--key", AUDITOR.public.vkey).code == "usage"


def test_the_head_of_another_run_is_the_wrong_head_and_accuses_nobody(run: RunDir, tmp_path: Path) -> None:
    proof, other = tmp_path / "p", made_run(tmp_path / "other", TEXTS[:3])
    ask(run.path, "--document", "-", "--out", proof, data=TEXTS[4])
    for arguments in (("--check", proof), (run.path, "--digest", "00" * 32)):
        found = refusal(*arguments, "--head", newest(other))
        assert found.exit_status == 1 and "not a head of the run" in str(found)
        assert found.evidence["run"] == run.manifest().run_id.hex() and "diverged" not in found.next_action


@pytest.mark.parametrize("arguments", [(), ("--digest", "00" * 32), ("run",), ("run", "--digest", "0", "--span", "x")])
def test_half_a_question_is_refused(arguments: tuple[str, ...]) -> None:
    found = refusal(*arguments)
    assert (found.code, found.exit_status) == ("usage", 64)
