"""What is printed reads as it should: one of a thing, dates, and no number that looks like another."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from made_run import made_run

from protocol.answer_terms import not_covered
from protocol.certificate import open_certificate
from protocol.completeness import Completeness
from witness.cli import group
from witness.cli.demo import expected
from witness.cli.verify import _awaits_consent, _listener, describe, show_exclusion
from witness.rundir import RunDir

EXAMPLE = Path(__file__).parents[2] / "spec" / "example"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    texts = [b"a text that is like no other: %d" % i for i in range(4)]
    return made_run(tmp_path_factory.mktemp("wording") / "run", texts, steps=2)


def ask(*arguments: object, data: bytes | None = None) -> str:
    done = CliRunner().invoke(group, ["query", *map(str, arguments)], input=data)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def printed(show: Any, *arguments: Any) -> str:
    command = click.Command("show", callback=lambda: show(*arguments))
    return CliRunner().invoke(command, [], catch_exceptions=False).stdout


def test_one_use_of_one_document(run: RunDir) -> None:
    text = ask(run.path, "--document", "-", data=b"a text that is like no other: 3")
    assert "1 time, in 1 document\n" in text and "1 times" not in text
    assert "some 0" not in text


def test_a_proof_of_one_document_in_two_tiers_is_about_one(run: RunDir, tmp_path: Path) -> None:
    proof, head = tmp_path / "proof", run.heads / f"{run.head_sizes()[-1]:012}.note"
    ask(run.path, "--document", "-", "--out", proof, data=b"unknown\r\n")
    text = ask("--check", proof, "--head", head)
    assert text.count("ABSENT in ") == 2 and "2 documents" not in text


def test_a_proof_of_many_documents_counts_questions(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("a", "b"):
        (tmp_path / "set" / f"{name}.txt").write_bytes(name.encode() + b"\r\n")
    proof, head = tmp_path / "all.json", run.heads / f"{run.head_sizes()[-1]:012}.note"
    told = ask(run.path, "--all", tmp_path / "set", "--out", proof)
    assert "2 documents asked, 0 included, 2 proven absent" in told
    assert "4 questions asked, 0 included, 4 proven absent" in ask("--check", proof, "--head", head)


def test_no_attack_is_named_that_a_reader_cannot_look_up() -> None:
    for tier in ("t0-sha256", "t1-nfc", "t2-winnow-bytes-k32-w19"):
        assert not any("A21" in line for line in not_covered(tier))


def test_a_time_is_a_date() -> None:
    assert "2026-11-29 20:32:00 UTC (1795984320)" in Completeness("fully audited", audits=(("k", 1795984320),)).words()
    assert str(1 << 52) in Completeness("fully audited", audits=(("k", 1 << 52),)).words()


def test_an_exclusion_is_a_sentence() -> None:
    hit = SimpleNamespace(name="x", documents=(1,), tier="t0-sha256")

    def said(asked: int, hits: int) -> str:
        found = SimpleNamespace(asked=asked, absent=asked - hits, name="validation", included=(hit,) * hits)
        return printed(show_exclusion, found).splitlines()[0]

    assert said(2, 1).endswith("asked about 2 documents of validation: 1 of them is in the corpus")
    assert said(3, 2).endswith("2 of them are in the corpus")
    assert said(1, 0).endswith("1 document of validation: none of them is in the corpus")


def test_a_certificate_says_that_challenges_overlap() -> None:
    evidence = open_certificate((EXAMPLE / "certificate.json").read_bytes())
    text = printed(describe, evidence)
    assert "mandatory" in text and "some may be both" in text and "Claimed:" in text


def test_one_draw_is_clean() -> None:
    lines: list[str] = []
    progress: Any = SimpleNamespace(line=lines.append)
    _listener(progress, None).round_done(1, "0.5")
    assert lines[0].startswith("1 draw clean")


def test_what_is_a_request_for_consent() -> None:
    asked = [{"code": "program-not-trusted"}, {"code": "not-run"}]
    assert _awaits_consent(asked)
    assert not _awaits_consent([]) and not _awaits_consent([*asked, {"code": "final-event"}])


def test_how_long_a_part_takes() -> None:
    assert expected(25, 80) == "25 to 80 s"
    assert expected(85, 310) == "1 to 5 min"
    assert expected(20, 100) == "1 to 2 min", "never none"
