"""A31: show one history to one verifier, and another to the next.

Both logs begin with the same manifest and are signed with the same key, so each is flawless by itself. Whoever
holds a head of the one and reads the other has the proof in hand: two signatures that cannot both be true.
"""

import shutil
from pathlib import Path

import pytest
from attacks.court import Seen, verify
from attacks.table import Row, caught
from attacks.trainers import Surgeon, entries_of, records_of, rewrite

from protocol.certificate import add, open_certificate
from protocol.errors import UsageError, VerificationError
from witness.rundir import RunDir

PARTED = 2 + 2 * Surgeon.at
"""Entries from which the histories differ: manifest, initial state, and for each step its record and its kept state."""
SAME = Row("A31", "two heads over as many entries", "check", "heads seen elsewhere", "equivocation")
EARLIER = Row("A31", "an earlier head of another history", "check", "heads seen elsewhere", "head-root")
SUM = Row("A31", "certificates over two histories are added", "check", "heads of all certificates", "equivocation")
BEYOND = Row(
    "A31", "an older log is shown than was signed", "check", "heads seen elsewhere (incomplete)", "head-beyond"
)
ROWS = (SAME, EARLIER, SUM, BEYOND)


@pytest.fixture(scope="module")
def other_heads(edited: Path, mlp: Path) -> dict[int, bytes]:
    """Signed heads of the other history, by the number of entries."""
    assert entries_of(edited)[0].run_id == entries_of(mlp)[0].run_id  # type: ignore[union-attr]
    assert records_of(edited)[Surgeon.at - 1] == records_of(mlp)[Surgeon.at - 1]
    run = RunDir.open(edited)
    return {size: run.read_head(size) for size in run.head_sizes()}


def test_each_history_alone_is_flawless(mlp: Path, honest_mlp: Seen) -> None:
    run = RunDir.open(mlp)
    assert honest_mlp.verdict == "reproduced"
    assert verify(mlp, known_heads=[run.read_head(size) for size in run.head_sizes()]).verdict == "reproduced"


def test_two_heads_over_as_many_entries_are_the_proof(mlp: Path, other_heads: dict[int, bytes]) -> None:
    seen = verify(mlp, known_heads=[other_heads[max(other_heads)]])
    caught(seen, SAME)
    assert seen.found[0][0] == "heads"
    assert len(set(seen.facts["roots"])) == 2  # type: ignore[call-overload]


def test_an_earlier_head_of_the_other_history_is_not_one_of_this_log(
    mlp: Path, other_heads: dict[int, bytes], tmp_path: Path
) -> None:
    """The prover shows its last head alone, so that there is none to compare with over as many entries."""
    run = rewrite(mlp, tmp_path / "run", lambda entries: entries)
    seen = verify(run, known_heads=[other_heads[PARTED]])
    caught(seen, EARLIER)
    assert seen.facts["size"] == PARTED
    # Before the histories part, their heads are the same.
    assert verify(run, known_heads=[other_heads[PARTED - 2]]).verdict == "reproduced"


def test_a_head_beyond_the_log_leaves_the_verdict_open(
    mlp: Path, other_heads: dict[int, bytes], tmp_path: Path
) -> None:
    """A hole until it was tried: heads over more entries than were shown were not compared with anything."""
    older = rewrite(mlp, tmp_path / "older", lambda entries: entries[:-3])
    assert verify(older).verdict == "reproduced"
    for head in (other_heads[max(other_heads)], RunDir.open(mlp).latest_head()):  # which of both nobody can tell
        seen = verify(older, known_heads=[head])
        assert (seen.verdict, seen.code) == ("incomplete", BEYOND.code)


@pytest.mark.parametrize("head", ["another run's", "nobody's", "no note"])
def test_what_a_verifier_brings_to_compare_must_be_heads_of_the_run(mlp: Path, gpt: Path, head: str) -> None:
    """A hole until it was tried: the verifier's own mistake accused the trainer."""
    own = RunDir.open(mlp).latest_head()
    brought = {
        "another run's": RunDir.open(gpt).latest_head(),
        "nobody's": own.replace(b"\n\n", b"0\n\n"),
        "no note": b"12\n",
    }
    with pytest.raises(UsageError) as refused:
        verify(mlp, known_heads=[brought[head]])
    assert refused.value.code == "known-head"


def test_a_listed_head_of_another_history_is_found_too(
    mlp: Path, other_heads: dict[int, bytes], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(mlp, run)
    (run / "heads" / f"{PARTED:012}.note").write_bytes(other_heads[PARTED])
    caught(verify(run), EARLIER)


def test_certificates_over_two_histories_do_not_add_up(edited: Path, honest_mlp: Seen) -> None:
    other = verify(edited, draws=0)
    with pytest.raises(VerificationError) as refused:
        add([honest_mlp.evidence, open_certificate(other.certificate)])
    assert refused.value.code == SUM.code
