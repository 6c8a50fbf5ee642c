"""A17: claim ten times the data that there is, by counting the same shard again and again."""

from pathlib import Path

from attacks.asking import ask, normalised
from attacks.table import Row
from made_run import made_run

SHARD = [b"document %d of the only shard there is." % i for i in range(8)]
COPIED = Row("A17", "one shard is counted five times", "answer", "places under one digest", "included")
DISGUISED = Row(
    "A17", "the copies differ in white space at line ends", "answer", "places after the normaliser", "included"
)
ROWS = (COPIED, DISGUISED)


def test_an_answer_names_every_copy_and_the_claim_counts_them(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", SHARD * 5, steps=10)
    reply = ask(run, SHARD[2])
    assert reply.result == COPIED.code
    assert reply.occurrences.documents == (2, 10, 18, 26, 34)
    assert sum(len(found.uses) for found in reply.found) == 5  # an epoch visits every copy
    claim = run.manifest().ledgers[0]
    assert (claim.entries, claim.documents) == (8, 40)


def test_disguised_copies_are_one_entry_of_the_normaliser(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", [text + b" " * copy + b"\n" * copy for copy in range(5) for text in SHARD])
    assert ask(run, SHARD[2]).occurrences.documents == (2,)
    reply = ask(run, SHARD[2], normalised(run))
    assert (reply.result, reply.occurrences.documents) == (DISGUISED.code, (2, 10, 18, 26, 34))
