"""A21: change a space, and the document is another one.

An answer never claims more than its tier: exact tiers say that near-duplicates are not covered, and the tier of spans
finds what was left unchanged.
"""

import unicodedata
from pathlib import Path

import pytest
from attacks.asking import ask, ask_span, normalised
from attacks.table import Row
from made_run import made_run

from protocol.answer_terms import not_covered, reply_facts
from witness.rundir import RunDir

TEXT = "The quick brown fox, caf\u00e9 in paw, jumps over the lazy dog;\nand the dog, who is no fool, lets it jump.\n"
REWRITTEN = TEXT.replace("quick", "slow", 1)
REWORDED = Row(
    "A21", "one word of a held-out document is replaced", "answer", "grams of the ledger of spans", "included"
)
DISGUISED = Row("A21", "a held-out document is spelled in other bytes", "answer", "ledger of a normaliser", "included")
ROWS = (REWORDED, DISGUISED)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that was trained on a reworded held-out document."""
    others = [b"document %d, of the usual kind." % i for i in range(10)]
    return made_run(tmp_path_factory.mktemp("a21") / "run", [*others, REWRITTEN.encode()])


def test_exact_tiers_say_absent_and_that_this_is_not_covered(run: RunDir) -> None:
    for tier in (claim.tier for claim in run.manifest().ledgers if not claim.tier.startswith("t2-")):
        reply = ask(run, TEXT.encode(), tier)
        assert reply.result == "absent"
        assert any("near-duplicates" in line for line in reply_facts(reply)["not_covered"])


def test_what_was_left_unchanged_is_found_by_the_ledger_of_spans(run: RunDir) -> None:
    after = TEXT.encode()[TEXT.encode().index(b"brown") :]
    reply = ask_span(run, after)
    assert (reply.result, reply.found[0].leaf.index) == (REWORDED.code, 10)
    whole = ask_span(run, TEXT.encode())  # the edit lies outside every chosen gram: not proven absent, and not included
    assert (whole.result, whole.candidates, whole.found) == ("possible", (10,), ())
    assert ask_span(run, TEXT.replace("lazy", "idle").encode()).result == "absent"  # this one lies within a gram
    assert any("altered" in line for line in not_covered(reply.tier))


TRICKS = {
    "newline at the end": lambda text: text + "\n",
    "no newline": lambda text: text.rstrip("\n"),
    "blanks at line ends": lambda text: text.replace("\n", " \t\n"),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "byte order mark": lambda text: "\ufeff" + text,
    "NFD": lambda text: unicodedata.normalize("NFD", text),
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
def test_other_spellings_are_the_same_document_after_the_normaliser(tmp_path: Path, trick) -> None:
    disguised = trick(TEXT)
    assert disguised != TEXT
    run = made_run(tmp_path / "run", [b"another", disguised.encode()])
    assert ask(run, TEXT.encode()).result == "absent"
    reply = ask(run, TEXT.encode(), normalised(run))
    assert (reply.result, reply.found[0].leaf.index) == (DISGUISED.code, 1)


BEYOND = {
    "zero-width space": lambda text: text.replace("fox", "f\u200box"),
    "zero-width joiner": lambda text: text.replace("fox", "f\u200dox"),
    "byte order mark inside": lambda text: text.replace("fox", "f\ufeffox"),
    "compatibility form": lambda text: text.replace("fox", "\ufb01x"),
    "another case": str.upper,
    "two blanks": lambda text: text.replace(" ", "  ", 1),
}


@pytest.mark.parametrize("trick", BEYOND.values(), ids=BEYOND.keys())
def test_what_no_normaliser_here_evens_out_is_absent_and_said_to_be_uncovered(tmp_path: Path, trick) -> None:
    run = made_run(tmp_path / "run", [b"another", trick(TEXT).encode()])
    for tier in ("t0-sha256", normalised(run)):
        reply = ask(run, TEXT.encode(), tier)
        assert reply.result == "absent" and "near-duplicates" in " ".join(not_covered(reply.tier))
